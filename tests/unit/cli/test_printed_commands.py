"""Every command that a run, an error or a help text prints runs as printed; options are taken as typed."""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium.envs.classic_control import CartPoleEnv
from typer.main import get_command
from typer.testing import CliRunner

import agilerl
from agilerl.api import build_manifest
from agilerl.cli import app
from agilerl.core.rng import Purpose, stream
from agilerl.errors import AlgorithmError, ConfigError
from agilerl.language.tiny import tiny_base, tiny_tokenizer
from agilerl.runs.names import command, imports_of

SMALL = ["--population", "2", "--steps", "64", "--num-envs", "4", "--set", "learn_step=16", "--set", "evo_steps=32",
         "--set", "eval_episodes=2", "--set", "confirm_episodes=2", "--test-episodes", "4"]  # fmt: skip
OWN = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

gymnasium.register("Own-v0", entry_point=CartPoleEnv, max_episode_steps=20)
"""
STOPPING = """
import os
import signal
from pathlib import Path

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

steps = 0


class Own(CartPoleEnv):
    def step(self, action):
        global steps
        steps += any(Path("my runs").glob("*/*"))  # none before the run, when the cost of a step is measured
        name, _, at = Path("happens").read_text().partition(" ") if Path("happens").exists() else ("", "", "0")
        if name and steps >= int(at):
            Path("happens").unlink()
            if name == "fails":
                raise RuntimeError("the simulator broke")
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(action)


gymnasium.register("Own-v0", entry_point=Own, max_episode_steps=20)
"""
VERBS = "train|resume|continue|evaluate|report|export|record|data make|config convert"
PRINTED = re.compile(rf"`(agilerl (?:{VERBS})[^`]*)`|(agilerl (?:{VERBS}) .*?)(?=\.$|\. |, | \(|$)", re.M)


def cli(*words: Any, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def printed(text: str) -> list[str]:
    """Commands in a text, without placeholders."""
    return [quoted or bare for quoted, bare in PRINTED.findall(text)]


def run_all(text: str, least: int = 1) -> None:
    found = printed(text)
    assert len(found) >= least, text
    for line in found:
        cli(*shlex.split(line)[1:])


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A file with an environment, in a folder with a space in its name, which is the working directory."""
    folder = tmp_path / "my work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "own envs.py").write_text(OWN)
    forget()
    yield "own envs.py"
    forget()


def forget() -> None:
    """As in a new process: the file is not imported yet."""
    gymnasium.registry.pop("Own-v0", None)
    sys.modules.pop("own envs", None)


def test_a_run_in_an_environment_of_ones_own_prints_commands_that_import_it(own: str) -> None:
    text = cli("train", "Own-v0", "--import", own, *SMALL, "--out", "my runs").output
    (run,) = Path("my runs/Own-v0").iterdir()
    assert json.loads((run / "run.json").read_text())["imports"] == [own]
    assert f"agilerl resume '{run}' --steps 128 --import 'own envs.py'" in text
    forget()
    run_all(text)
    for verb in ("resume", "evaluate", "continue", "record"):
        forget()
        told = cli(verb, run, code=2).stderr
        assert told.endswith("The run was made with --import 'own envs.py'. fix: repeat --import 'own envs.py'.\n"), (
            told
        )
        assert len(told.splitlines()) == 1
    forget()
    cli("evaluate", run, "--episodes", 2, "--import", own)
    assert agilerl.load(run).command("resume") == f"agilerl resume '{run}' --import 'own envs.py'"


def test_a_mistake_beside_a_missing_import_keeps_its_own_fix(own: str) -> None:
    cli("train", "Own-v0", "--import", own, *SMALL, "--out", "runs")
    (run,) = Path("runs/Own-v0").iterdir()
    forget()
    told = cli("resume", run, "--steps", 1, code=2).stderr
    assert "asked for. fix: --steps 128." in told, told
    assert "--import" not in told, told


def test_a_file_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def f(:\n")
    told = cli("train", "CartPole-v1", "--import", str(wrong), code=2).stderr
    assert "it raised SyntaxError (invalid syntax (wrong.py, line 1)). fix: correct it" in " ".join(told.split()), told


def test_nothing_is_imported_that_a_record_names(own: str) -> None:
    cli("train", "Own-v0", "--import", own, *SMALL, "--out", "runs")
    (run,) = Path("runs/Own-v0").iterdir()
    Path(own).write_text("raise SystemExit('code of a stranger')")
    forget()
    assert "The run was made with --import" in cli("evaluate", run, code=2).stderr
    assert "own envs" not in sys.modules


def test_a_finished_run_and_one_at_its_target_say_how_they_go_on(own: str) -> None:
    cli("train", "CartPole-v1", "--algo", "PPO", *SMALL, "--out", "runs")
    (run,) = Path("runs/CartPole-v1").iterdir()
    again = cli("resume", run, "--test-episodes", 2).output
    assert (
        f"finished: it has used its budget (64 steps of one member); `agilerl resume {run} --steps 128` goes" in again
    )
    run_all(again, least=2)
    cli("train", "CartPole-v1", "--algo", "PPO", "--target", 1, *SMALL, "--out", "met")
    (met,) = Path("met/CartPole-v1").iterdir()
    told = cli("resume", met, "--test-episodes", 2).output
    assert "finished: it has reached its target of 1" in told
    run_all(told)


def test_a_budget_below_what_is_done_is_refused_and_the_fix_goes_on(own: str) -> None:
    cli("train", "CartPole-v1", "--algo", "PPO", *SMALL, "--out", "runs")
    (run,) = Path("runs/CartPole-v1").iterdir()
    before = (run / "config.yaml").read_bytes()
    told = cli("resume", run, "--steps", 10, code=2).stderr
    assert "has trained 64 env steps of each member, more than the 10 asked for. fix: --steps 128." in told
    assert (run / "config.yaml").read_bytes() == before
    assert "warning" not in cli("resume", run, "--steps", "1.28e2", "--test-episodes", 2).output


# -- runs that ended otherwise -----------------------------------------------------------------------------------------

OWN_RUN = ["train", "Own-v0", "--import", "own envs.py", "--algo", "PPO", *SMALL, "--steps", "96", "--out", "my runs"]


@pytest.fixture
def stopping(own: str) -> str:
    Path(own).write_text(STOPPING)
    return own


@pytest.mark.parametrize(("happens", "code"), [("stops 40", 130), ("stops 300", 130), ("fails 300", 2)])
def test_an_interrupted_and_a_failed_run_print_what_goes_on(stopping: str, happens: str, code: int) -> None:
    Path("happens").write_text(happens)
    first_fault_ends = ("--set", "environment.max_restarts=0") if happens.startswith("fails") else ()
    done = cli(*OWN_RUN, *first_fault_ends, code=code)
    told = done.stdout + done.stderr
    (run,) = Path("my runs/Own-v0").iterdir()
    begin = {"stops 40": "begin again", "stops 300": "resume", "fails 300": "after solving that"}[happens]
    assert f"{begin}  agilerl resume '{run}' --import 'own envs.py'" in told
    assert not Path("happens").exists()
    forget()
    run_all(told)
    assert json.loads((run / "run.json").read_text())["status"] == "done"


def test_a_continued_run_that_was_stopped_early_is_continued_again(stopping: str) -> None:
    cli(*OWN_RUN)
    (old,) = Path("my runs/Own-v0").iterdir()
    forget()
    run_all(cli("continue", old, "--import", stopping, "--steps", 64, "--test-episodes", 2).output)
    forget()
    Path("happens").write_text("stops 40")
    told = cli("continue", old, "--import", stopping, code=130).stderr
    assert f"begin again  agilerl continue '{old}' --import 'own envs.py'" in told
    forget()
    run_all(told)


def test_a_run_whose_environment_was_handed_over_is_told_the_call(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(record: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    def train(**more: Any) -> Any:
        settings = {"num_envs": 2, "learn_step": 16, "evo_steps": 16, "eval_episodes": 1, "confirm_episodes": 0}
        return agilerl.train(CartPoleEnv, "PPO", population=1, steps=48, verbose=False, **settings, **more)

    run = train(callbacks=[stop])
    call = f"agilerl.resume({str(run.path)!r}, env=env)"
    assert f"stopped; {call} goes on" in capsys.readouterr().err
    assert not eval(call, {"agilerl": agilerl, "env": CartPoleEnv}).interrupted


def test_runs_from_data_print_commands_that_run(own: str) -> None:
    pytest.importorskip("h5py")
    small = ["--population", 2, "--steps", 16, "--set", "evo_steps=8", "--set", "eval_episodes=1",
             "--set", "confirm_episodes=0", "--test-episodes", 2]  # fmt: skip
    cli("data", "make", "CartPole-v1", "--policy", "random", "--rows", 200, "--out", "my data.h5")
    run_all(cli("data", "show", "my data.h5").output)
    assert Path("my data-again.h5").read_bytes() == Path("my data.h5").read_bytes()
    text = cli("train", "CartPole-v1", "--algo", "CQN", "--dataset", "my data.h5", *small).output
    run_all(text)
    told = cli("train", "Pendulum-v1", "--algo", "CQL", "--dataset", "my data.h5", *small, code=2).stderr
    assert "agilerl data make Pendulum-v1 --policy random --out Pendulum-v1.h5)" in told
    run_all(told.replace(".h5)", ".h5 --rows 20 (").replace("(agilerl", "agilerl"))
    (run,) = Path("runs/CartPole-v1").iterdir()
    Path("my data.h5").rename("moved data.h5")
    told = cli("resume", run, "--steps", 64, code=2).stderr
    assert "a run whose file has moved takes --set training.dataset=PATH." in told
    cli("resume", run, "--steps", 64, "--set", "training.dataset=moved data.h5", "--test-episodes", 2)
    cli("continue", run, "--set", "training.dataset=moved data.h5", "--test-episodes", 2)
    arrays = {"observations": np.zeros((20, 4)), "actions": np.arange(20) % 2, "rewards": np.ones(20)}
    kept = agilerl.train("CartPole-v1", "CQN", dataset={**arrays, "terminals": np.arange(20) % 5 == 4}, steps=8,
                         population=1, batch_size=4, out="my runs", verbose=False)  # fmt: skip
    run_all(cli("resume", kept.path, "--steps", 16, "--test-episodes", 2).output)
    cli("continue", kept.path, "--steps", 8, "--test-episodes", 2)


@pytest.mark.thorough
def test_language_runs_print_commands_that_run(own: str) -> None:
    base = tiny_base(Path("my base"), tiny_tokenizer("0123456789+= "), hidden_size=8, layers=1, heads=2, context=128)
    sizes = {"train_size": 12, "test_size": 4, "report_size": 4, "batch": 4}
    sets = [f"--set=environment.kwargs.{name}={value}" for name, value in sizes.items()]
    text = cli("train", "arithmetic/addition-2", "--algo", "DPO", "--model", base, "--population", 2, "--steps", 8,
               "--set", "evo_steps=4", *sets, "--out", "my runs").output  # fmt: skip
    (run,) = Path("my runs/arithmetic-addition-2").iterdir()
    assert f"Next: agilerl resume '{run}' --steps 16." in text
    run_all(text)
    run_all(cli("export", run, "--onnx", code=2).stderr)
    run_all(cli("continue", run, "--steps", 4).output)
    run_all(cli("resume", run).output)


@pytest.mark.thorough
def test_teams_print_commands_that_run(own: str) -> None:
    pytest.importorskip("mpe2")
    text = cli("train", "mpe2.simple_spread_v3", "--algo", "IPPO", *SMALL, "--out", "my runs").output
    run_all(text)


def test_the_examples_of_every_help_text_name_commands_and_options_that_there_are() -> None:
    count = 0

    def visit(group: Any, path: list[str]) -> None:
        nonlocal count
        for name, inner in sorted(group.commands.items()):
            text = CliRunner().invoke(app, [*path, name, "-h"]).output
            assert not re.search(r"\w\.\.\.$", text, re.M), text
            if hasattr(inner, "commands"):
                visit(inner, [*path, name])
                continue
            for line in re.findall(r"^    (agilerl .*)$", text, re.M):
                words = shlex.split(line)[1:]
                assert words[: len(path) + 1] == [*path, name]
                inner.make_context(name, words[len(path) + 1 :], resilient_parsing=False)
                count += 1
            assert text.count("    agilerl ") >= 2, name

    visit(get_command(app), [])
    assert count >= 30
    assert CliRunner().invoke(app, ["-h"]).output.count("    agilerl ") == 3


@pytest.mark.parametrize("words", [["--seed", "-1"], ["--set", "seed=-1"]])
def test_a_negative_seed_is_named_and_leaves_nothing(own: str, words: list[str]) -> None:
    told = cli("train", "CartPole-v1", *words, code=2).stderr
    assert "training.seed must be an integer of at least 0; got -1" in told
    assert not Path("runs").exists()
    with pytest.raises(ConfigError, match="seed must be an integer of at least 0; got -3"):
        stream(-3, Purpose.ENVIRONMENT)


def test_numbers_and_keywords_as_users_type_them(own: str) -> None:
    text = cli("train", "CartPole-v1", "--steps", "1e4", "--target", 300, "--num-envs", 2, "--env-kwargs",
               "sutton_barto_reward=true", "--dry-run").output  # fmt: skip
    assert "max_steps: 10000" in text
    assert "target_score: 300.0" in text
    assert "num_envs: 2" in text
    assert "sutton_barto_reward: true" in text
    assert agilerl.api.build_manifest("CartPole-v1", overrides={"target": 9}).training.target_score == 9
    assert (
        "must be a whole number; got '1.5'. fix: --steps 100000."
        in cli("train", "CartPole-v1", "--steps", "1.5", code=2).output
    )


MISTAKES = [
    (["train", "CartPole"], "CartPole: No registered env with id: CartPole. Did you mean 'CartPole-v1'? fix:"),
    (["train", "highway-fast-v0"], "fix: pip install highway-env, then --import highway_env."),
    (["train", "Nothing-v0"], "fix: --import MODULE, if a package or code of yours registers it"),
    (["train", "CartPole-v1", "--import", "no_package_xy"], "fix: pip install no-package-xy, if that is the package"),
    (["train", "CartPole-v1", "--import", "no.py"], "fix: check the path."),
    (
        ["train", "CartPole-v1", "--set", "env_id=FrozenLake-v1"],
        "ENV_ID CartPole-v1 and --set environment.name=FrozenLake-v1 name two environments. fix: one of the two.",
    ),
    (["train", "--replay", "run", "--set", "lr=1"], "without --set. fix: leave --set out."),
    (
        ["train", "CartPole-v1", "--algo", "dqn", "--set", "algo=PPO"],
        "--algo dqn and --set algorithm.name=PPO name two algorithms. fix: one of the two.",
    ),
    (
        ["train", "Pendulum-v1", "--algo", "CQL", "--dataset", "minari:none/such-v0"],
        "the data set 'none/such-v0'",
    ),
]


@pytest.mark.parametrize(("words", "told"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_mistakes_name_what_helps(own: str, words: list[str], told: str) -> None:
    if "minari" in words[-1]:
        pytest.importorskip("minari")
    error = cli(*words, code=2).stderr
    assert told in error
    assert len(error.splitlines()) == 1


NAMED_PPO = [["--algo", "PPO"], ["--set", "algo=PPO"], ["--set", "algorithm.name=ppo"], ["--set", "algo='PPO' # it"]]


@pytest.mark.parametrize("words", NAMED_PPO)
def test_an_algorithm_has_its_own_preset_however_it_is_named(own: str, words: list[str]) -> None:
    told = yaml.safe_load(cli("train", "CartPole-v1", *words, "--dry-run", "--steps", 2048).stdout)
    assert told == build_manifest("CartPole-v1", "PPO", steps=2048).as_dict()


@pytest.mark.parametrize("file", ["", "environment: FrozenLake-v1\n"])
def test_an_environment_has_its_own_preset_however_it_is_named(own: str, file: str) -> None:
    Path("mine.yaml").write_text(file)
    for words in (["Acrobot-v1"], ["--set", "environment.name=Acrobot-v1"], ["--set", "env_id='Acrobot-v1'"]):
        told = yaml.safe_load(cli("train", *words, "--config", "mine.yaml", "--dry-run").stdout)
        assert told == build_manifest("Acrobot-v1").as_dict()


def test_agents_of_another_algorithm_are_named(own: str) -> None:
    run = agilerl.train("CartPole-v1", "DQN", steps=64, population=1, num_envs=4, out=None, verbose=False)
    with pytest.raises(AlgorithmError, match=r"^the agents are DQN, the new run trains PPO\. fix: algo='DQN'"):
        agilerl.train("CartPole-v1", "PPO", agents=run, out=None)


@pytest.mark.thorough
def test_tensorboard_goes_on_with_a_resumed_run(own: str) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    cli("train", "CartPole-v1", "--algo", "PPO", "--tensorboard", *SMALL, "--out", "runs", "-q")
    (run,) = Path("runs/CartPole-v1").iterdir()
    cli("resume", run, "--steps", 128, "--test-episodes", 0, "-q")
    events = EventAccumulator(str(run / "tb")).Reload()
    assert {e.step for e in events.Scalars("population/best_fitness")} == {32, 64, 96, 128}
    cli("resume", run, "--steps", 192, "--no-tensorboard", "--test-episodes", 0, "-q")
    assert len(EventAccumulator(str(run / "tb")).Reload().Scalars("population/best_fitness")) == 4


def test_imports_are_read_off_the_command_of_an_earlier_version() -> None:
    assert imports_of({"argv": ["/bin/agilerl", "train", "X", "--import", "a.py", "--import=b"]}) == ("a.py", "b")
    assert imports_of({"argv": ["script.py", "--import", "a.py"]}) == ()
    assert imports_of({}) == ()
    assert command("data make", "a b") == "agilerl data make 'a b'"


def test_a_budget_below_one_rollout_goes_on_from_what_was_trained(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for scheme in ("race", "tournament"):
        text = cli(
            "train", "CartPole-v1", "--algo", "PPO", "--no-preset", "--steps", 20, "--population", 2, "--quiet",
            "--test-episodes", 0, "--set", "learn_step=64", "--set", f"evolution.scheme={scheme}",
        ).output  # fmt: skip
        assert "--steps 128" in text  # twice one rollout of 64 steps
        run_all(text)
