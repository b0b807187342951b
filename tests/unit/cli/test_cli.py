"""The commands and the two calls, with a training loop that is a stand-in: what they resolve, write, print, return."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

import agilerl
from agilerl import errors
from agilerl.algorithms import WHEN, available
from agilerl.api import build_manifest, env_name, resolve_device
from agilerl.cli import app
from agilerl.cli.errors import user_errors
from agilerl.config import manifest_from
from agilerl.errors import ConfigError, EnvError
from agilerl.telemetry.evaluation import Evaluation
from agilerl.telemetry.record import Birth, GenerationRecord, MemberRecord, RunPlan
from agilerl.training.result import EvolveResult

COUNT = 4


class FakeAgent:
    """What the calls need of an agent, with a policy of one tensor."""

    index, learns_language, environment = 0, False, {"id": "CartPole-v1"}

    def __init__(self, value: float = 7.0) -> None:
        self.value = value

    def hyperparameters(self) -> dict[str, float]:
        return {}

    def policy_spec(self) -> dict[str, Any]:
        return {"algo": "DQN", "high": [float("inf")]}

    def policy_state(self) -> dict[str, torch.Tensor]:
        return {"weight": torch.tensor([self.value])}

    def set_training_mode(self, training: bool) -> None:
        self.training = training

    def evaluate(self, episodes: int = 100, seed: int = 0) -> Evaluation:
        return Evaluation.from_returns([self.value + seed + i for i in range(episodes)])


def fake_run_manifest(setup: Any, *parts: Any) -> Any:
    """Two generations in no time, reported as the real loop reports them."""
    manifest, device, seed = setup.manifest, setup.device, setup.manifest.training.seed
    fake_run_manifest.called_with = {**vars(setup.request), "manifest": manifest, "device": device}
    (sinks,) = setup.request.sinks
    training = manifest.training
    size, steps = training.pop_size, training.max_steps
    founders = [Birth(i, None, 0, "founder") for i in range(size)]
    name = manifest.environment.name
    sinks.start(RunPlan("DQN", name, size, 4, steps, steps // 2, seed, device, "fused", "fake", 1), founders)
    births = list(founders)
    for generation in (0, 1):
        fitness = [float(10 * generation + 10 + i) for i in range(size)]
        members = tuple(
            MemberRecord(i, i, None, fitness[i], None, steps, 5, 0.1, "None", {"lr": 1e-3}, "[64]") for i in range(size)
        )
        born = (Birth(size + generation + 1, 0, generation + 1, "rl_hp", "lr", 1e-3, 2e-3),)
        births += born
        at = steps * (generation + 1) // 2
        sinks.generation(GenerationRecord(generation, 2, members, at, steps, at * size, 0, 1, 1.0, births=born))
    outcome = getattr(fake_run_manifest, "outcome", "max_steps")
    if isinstance(outcome, BaseException):
        raise outcome
    history = [[float(10 * g + i) for i in range(size)] for g in (1, 2)]
    agents = [FakeAgent() for _ in range(size)]
    return EvolveResult(
        population=agents, best=agents[0], history=history, births=births, generations=2, env_steps_member=steps,
        env_steps_population=steps * size, seconds=2.0, cpu_seconds=1.9,
        evaluation_env_steps=9, updates=8, confirmed=None, stopped=outcome, restarts=0, quarantined=0,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def loop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("agilerl.training.manifest.build.run_manifest", fake_run_manifest)
    monkeypatch.setattr("agilerl.api.agent_from_policy", lambda spec, state, *rest: FakeAgent(state["weight"].item()))
    monkeypatch.setattr(fake_run_manifest, "outcome", "max_steps", raising=False)
    monkeypatch.chdir(tmp_path)
    errors._warned.clear()


Cli = Callable[..., Any]


@pytest.fixture
def cli() -> Cli:
    runner = CliRunner()
    return lambda *args: runner.invoke(app, [str(a) for a in args])


def test_a_warning_of_another_package_is_printed_once_though_filters_change(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *rest, **more: shown.append(str(message)))
    with user_errors():
        for text in ("out of date", "another", "out of date"):
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.warn(text, DeprecationWarning, stacklevel=1)
    assert shown == ["out of date", "another"]


def test_train_prints_a_line_per_generation_and_six_closing_lines(cli: Cli) -> None:
    result = cli("train", "CartPole-v1", "--steps", 2000, "--population", 2)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("DQN on CartPole-v1   2 members x 2k env steps   seed 0")
    assert [line[:7] for line in lines[1:3]] == ["gen  1/", "gen  2/"]
    assert lines[-6] == "done  best 21  (100 episodes: mean 56.5, 95% CI 50.9..62.1)"
    assert lines[-5] == "cost  4k env steps (2k per member), 9 for evaluation   00:02   2k steps/s   stop: max_steps"
    assert lines[-1].startswith("DQN on CartPole-v1 did not reach its target of 475: a mean return of ")
    assert lines[-4:-1] == [
        "path  runs/CartPole-v1/dqn-0001",
        "report  runs/CartPole-v1/dqn-0001/report.html",
        'load  agilerl.load("runs/CartPole-v1/dqn-0001")',
    ]
    page = Path("runs/CartPole-v1/dqn-0001/report.html").read_text()
    assert "100 fresh episodes" in page  # written anew after the final evaluation


def test_train_leaves_a_complete_run_directory(cli: Cli) -> None:
    cli("train", "CartPole-v1", "--seed", 5, "--set", "lr=0.01", "-q")
    path = Path("runs/CartPole-v1/dqn-0001")
    facts = json.loads((path / "run.json").read_text())
    assert (facts["status"], facts["seed"], facts["learner"]) == ("done", 5, "fused")
    assert facts["result"]["test"]["episodes"] == 100
    assert yaml.safe_load((path / "config.yaml").read_text())["algorithm"]["lr"] == 0.01
    assert len((path / "metrics.csv").read_text().splitlines()) == 1 + 2 * COUNT
    assert len((path / "evolution.jsonl").read_text().splitlines()) == COUNT + 2
    again = cli("train", "--config", path / "config.yaml", "-q")
    assert again.exit_code == 0
    assert fake_run_manifest.called_with["manifest"].training.seed == 5
    assert json.loads(Path("runs/CartPole-v1/dqn-0002/run.json").read_text())["manifest_hash"] == facts["manifest_hash"]


def test_quiet_prints_only_the_closing_lines(cli: Cli) -> None:
    assert len(cli("train", "CartPole-v1", "-q").stdout.splitlines()) == 6


def test_options_reach_the_loop(cli: Cli) -> None:
    cli("train", "CartPole-v1", "--no-evolution", "--total-timesteps", 64, "--device", "cpu", "-q")
    called = fake_run_manifest.called_with
    assert called["evolution"] is False
    assert called["device"] == "cpu"
    assert called["manifest"].training.max_steps == 64


def test_dry_run_prints_yaml_that_gives_the_same_manifest_and_runs_nothing(cli: Cli) -> None:
    result = cli("train", "CartPole-v1", "--population", 3, "--dry-run")
    assert result.exit_code == 0
    assert manifest_from(yaml.safe_load(result.stdout)).training.pop_size == 3
    assert "# DQN on CartPole-v1: 3 members x 50k env steps, 50 generations" in result.stdout
    assert not Path("runs").exists()


MISTAKES = [
    (["train", "CartPole-v1", "--algo", "PPOO"], "AlgorithmError: unknown algorithm 'PPOO'. Did you mean 'PPO'?"),
    (
        ["train", "CartPole-v1", "--algo", "neuralts"],
        "AlgorithmError: CartPole-v1 shows Box(4,), and bandits read the contexts of all 2 arms, [2, ...]. fix:",
    ),
    (["train", "--config", "typo.yaml"], "ConfigError: typo.yaml: training.popsize is not a known key. Did you mean"),
    (["train", "CartPole-v1", "--config", "no.yaml"], "ConfigError: there is no configuration file no.yaml. fix:"),
    (["train", "CartPole-v9"], "EnvError: CartPole-v9: Environment version 'v9' for environment 'CartPole' doesn't"),
    (
        ["train", "Cartpole-v1"],
        "EnvError: Cartpole-v1: Environment 'Cartpole' doesn't exist. Did you mean 'CartPole-v1'",
    ),
    (["train", "CartPole-v1", "--device", "gpu"], "ConfigError: unknown device 'gpu'. fix: use auto, cpu, cuda"),
    (["train", "CartPole-v1", "--population", "0"], "--population: training.pop_size must be an integer of at least 1"),
    (["train", "CartPole-v1", "--set", "training.popsize=3"], "training.popsize is not a known key. Did you mean"),
    (["train", "CartPole-v1", "--set", "INIT_HP"], "ConfigError: --set 'INIT_HP' is not KEY=VALUE. fix:"),
    (["train", "CartPole-v1", "--out", "typo.yaml"], "RunError: cannot make a run directory in typo.yaml"),
    (["train"], "ConfigError: no environment is named. fix: agilerl train ENV_ID"),
    (["evaluate", "runs/nothing"], "RunError: there is no run at runs/nothing. fix:"),
    (["list", "algo"], "ConfigError: unknown list 'algo'. Did you mean 'algos'?"),
    (["resume", "runs/x", "--steps", "3"], "RunError: there is no run at runs/x. fix:"),
    (["record", "x"], "RunError: there is no run at x"),
    (["report", "x"], "RunError: there is no run at x"),
    (["report", "x", "y", "--out", "z.html"], "ConfigError: --out names one file, for one run. fix:"),
    (["compare", "x", "y"], "RunError: there is no run at x"),
    (["continue", "x"], "RunError: there is no run at x"),
    (["export", "x", "--onnx"], "RunError: there is no run at x"),
    (["export", "x"], "RunError: there is no run at x"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=[" ".join(m[0]) for m in MISTAKES])
def test_a_users_mistake_is_one_line_on_stderr_and_exit_2(cli: Cli, arguments: list[str], message: str) -> None:
    Path("typo.yaml").write_text("environment: {name: CartPole-v1}\ntraining: {popsize: 4}\n")
    result = cli(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" not in result.output
    assert not Path("runs").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_names_the_fix(cli: Cli) -> None:
    result = cli("train", "CartPole-v1", "--device", "cuda")
    assert result.exit_code == 2
    assert "ConfigError: device 'cuda' needs a CUDA GPU" in result.stderr
    assert "fix: --device cpu" in result.stderr
    assert resolve_device("auto") == "cpu"


def test_debug_shows_the_error_itself(cli: Cli) -> None:
    assert isinstance(cli("train", "Cartpole-v1", "--debug").exception, EnvError)


@pytest.mark.parametrize("module", ["gymnasium.envs.box2d", "gymnasium.envs.mujoco"])
def test_a_missing_simulator_names_the_extra(cli: Cli, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = module.rpartition(".")[2]
    env_id = {"box2d": "BipedalWalker-v3", "mujoco": "HalfCheetah-v5"}[extra]
    for name in [m for m in sys.modules if m.startswith(module)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    result = cli("train", env_id)
    assert result.exit_code == 2
    assert f'fix: pip install "agilerl[{extra}]"' in result.stderr


def test_atari_and_a_retired_version(cli: Cli) -> None:
    assert 'fix: pip install "agilerl[atari]"' in cli("train", "ALE/NoGame-v5").stderr
    result = cli("train", "CartPole-v0", "-q", "--test-episodes", 0)
    if result.exit_code == 0:  # Gymnasium still makes it, or it was replaced by the newest
        assert "CartPole-v" in result.stdout
    retired = cli("train", "LunarLander-v2", "--dry-run")
    assert "warning: LunarLander-v2 is retired in Gymnasium; LunarLander-v3 is used." in retired.stderr
    assert "# DQN on LunarLander-v3" in retired.stdout


@pytest.mark.parametrize("outcome", ["interrupted", KeyboardInterrupt()])
def test_an_interrupt_keeps_what_there_is_and_exits_130(cli: Cli, outcome: Any) -> None:
    fake_run_manifest.outcome = outcome
    result = cli("train", "CartPole-v1", "-q")
    assert result.exit_code == 130
    path = Path("runs/CartPole-v1/dqn-0001")
    assert json.loads((path / "run.json").read_text())["status"] == "interrupted"
    assert len((path / "metrics.csv").read_text().splitlines()) == 1 + 2 * COUNT
    assert '<span class="status">interrupted' in (path / "report.html").read_text()
    if outcome == "interrupted":
        assert (path / "best" / "policy.safetensors").is_file()
        assert "stopped  best 23" in result.stdout


def test_a_run_that_fails_says_so_in_run_json_and_keeps_its_files(tmp_path: Path) -> None:
    fake_run_manifest.outcome = RuntimeError("out of memory")
    with pytest.raises(RuntimeError, match="out of memory"):
        agilerl.train("CartPole-v1", verbose=False)
    path = tmp_path / "runs" / "CartPole-v1" / "dqn-0001"
    facts = json.loads((path / "run.json").read_text())
    assert (facts["status"], facts["error"]) == ("failed", "RuntimeError: out of memory")
    assert "It ended with an error: RuntimeError: out of memory" in (path / "report.html").read_text()
    assert len((path / "evolution.jsonl").read_text().splitlines()) == COUNT + 2


def test_evaluate_prints_a_table_or_json(cli: Cli) -> None:
    cli("train", "CartPole-v1", "-q")
    text = cli("evaluate", "runs/CartPole-v1/dqn-0001", "--episodes", 8).stdout
    assert "DQN on CartPole-v1   8 episodes" in text
    assert "mean         10.50   95% CI" in text
    assert "iqm          10.50" in text
    assert "not reached" in text
    raw = cli("evaluate", "runs/CartPole-v1/dqn-0001", "--episodes", 2, "--seed", 3, "--json").stdout
    assert json.loads(raw)["returns"] == [10.0, 11.0]


@pytest.mark.thorough
def test_lists(cli: Cli) -> None:
    assert "DQN           choices, where steps are dear\n              batch_size, lr" in cli("list", "algos").stdout
    assert sorted(WHEN) == available()
    assert ["CartPole-v1", "preset"] in [line.split() for line in cli("list", "envs").stdout.splitlines()]
    assert "4 members x 50k env steps   target 475" in cli("list", "presets").stdout
    assert cli("--version").stdout.strip() == f"agilerl {agilerl.__version__}"


def test_train_returns_the_run_and_load_gives_it_back() -> None:
    run = agilerl.train("CartPole-v1", population=3, steps=100, verbose=False)
    assert run.path == Path("runs/CartPole-v1/dqn-0001")
    assert run.history == [[10.0, 11.0, 12.0], [20.0, 21.0, 22.0]]
    assert [b.id for b in run.lineage] == [0, 1, 2, 4, 5]
    assert run.result["best_fitness"] == 22.0
    again = agilerl.load(run.path)
    assert again.best.value == 7.0
    assert (again.history, again.lineage, again.manifest) == (run.history, run.lineage, run.manifest)
    assert again.result["stopped"] == "max_steps"


def test_load_reads_past_the_half_line_of_a_killed_process() -> None:
    run = agilerl.train("CartPole-v1", verbose=False)
    with open(run.path / "evolution.jsonl", "a") as file:
        file.write('{"id": 99, "par')
    assert agilerl.load(run.path).lineage == run.lineage


def test_keyword_settings_are_manifest_keys_and_mistakes_are_named() -> None:
    agilerl.train("CartPole-v1", algo="dqn", lr=5e-3, **{"training.eval_episodes": 2}, verbose=False)
    manifest = fake_run_manifest.called_with["manifest"]
    assert (manifest.algorithm.lr, manifest.training.eval_episodes) == (5e-3, 2)
    with pytest.raises(ConfigError, match=r"learning_rat is not a known key\. Did you mean 'learning"):
        agilerl.train("CartPole-v1", learning_rat=1)
    with pytest.raises(ConfigError, match=r"training\.pop_size must be an integer of at least 1; got -1"):
        agilerl.train("CartPole-v1", population=-1)


def test_an_environment_object_reaches_the_loop_and_names_the_run() -> None:
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    run = agilerl.train(env, verbose=False, out=None)
    assert fake_run_manifest.called_with["env"] is env
    assert run.path is None
    assert run.manifest.environment.name == "CartPole-v1"
    assert not os.path.exists("runs")
    assert env_name(lambda: env) == "lambda"


def test_the_seed_of_a_configuration_counts_unless_one_is_given() -> None:
    config = {"environment": "CartPole-v1", "training": {"seed": 9}}
    assert build_manifest("CartPole-v1", config=config).training.seed == 9
    assert build_manifest("CartPole-v1", config=config, seed=0).training.seed == 0
    assert build_manifest(None, config=config).training.confirm_episodes == 100


def test_tensorboard_files_lie_in_the_run_and_a_missing_tracker_only_warns(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    pytest.importorskip("tensorboard")
    assert cli("train", "CartPole-v1", "-q", "--tensorboard").exit_code == 0
    assert list(Path("runs/CartPole-v1/dqn-0001/tb").glob("events*"))
    result = cli("train", "CartPole-v1", "-q", "--track")
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: wandb ")


def test_a_run_whose_checkpoints_could_not_be_written_says_so() -> None:
    from dataclasses import replace

    from agilerl.cli.output import closing_lines

    run = agilerl.train("CartPole-v1", verbose=False)
    assert not any(line.startswith("saved") for line in closing_lines(run, None))
    lines = closing_lines(replace(run, failed_saves=2), None)
    assert "saved  best/ alone: no checkpoint could be written, so that this run cannot be resumed" in lines
    assert run.path is not None
    (run.path / "checkpoints" / "gen-0000000001").mkdir(parents=True)
    assert "saved  2 of its checkpoints could not be written" in closing_lines(replace(run, failed_saves=2), None)


def test_an_interrupt_before_anything_was_saved_says_that(cli: Cli) -> None:
    fake_run_manifest.outcome = KeyboardInterrupt()
    told = cli("train", "CartPole-v1", "-q", "--out", "my runs").stderr.splitlines()
    assert told[0] == "interrupted"
    assert told[1] == "nothing was saved yet: the first generation had not ended."
    assert told[2] == "begin again  agilerl resume 'my runs/CartPole-v1/dqn-0001'"
