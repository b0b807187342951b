"""Every mistake on the command line is named with a fix, in options and not in Python's keyword arguments."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from agilerl.cli import app
from agilerl.cli.commands import COMMANDS
from agilerl.cli.messages import on_command_line, remember_command
from agilerl.envs.returned import HEAL

TRAIN = ["train", "CartPole-v1"]
BAD: dict[str, dict[str, tuple[str, ...]]] = {
    "train": {
        "--seed": ("-1", "abc"), "--steps": ("0", "-5", "abc"), "--total-timesteps": ("abc", "0"),
        "--population": ("0", "x"), "--minutes": ("-1", "nan", "x"), "--target": ("nan", "x"), "--num-envs": ("0", "x"),
        "--set": ("lr=-1", "lr=nan", "learnrate=1", "lr", "=1", "algorithm=5", "training.foo=5", "foo.bar=5", "lr=[1",
                  "network.encoder_config.hidden_size=[0]", "eps_end=2", "rl_hp_selection.foo.min=1",
                  "network.kernel_size=3", "opponents=x", "learner=x"),
        "--algo": ("PPOO", "", "NeuralTS", "GRPO", "MADDPG"), "--env-kwargs": ("x", "foo=1"), "--device": ("gpu", ""),
        "--config": ("nope.yaml",), "--out": ("/proc/nope",), "--opponents": ("other", "self"),
        "--dataset": ("nope.h5",), "--model": ("nope",), "--test-episodes": ("-1", "x"), "--import": ("no_such_xy",),
        "--nope": ("x",),
    },
    "resume": {"--steps": ("abc",), "--target": ("x",), "--test-episodes": ("-1",), "--set": ("lr",)},
    "continue": {"--steps": ("abc",), "--seed": ("x",), "--test-episodes": ("-1",), "--device": ("gpu",)},
    "evaluate": {"--episodes": ("0", "x"), "--seed": ("x", "-1"), "--max-steps": ("0", "x"), "--split": ("foo",)},
    "record": {"--episodes": ("0",), "--format": ("foo",), "--seed": ("x",)},
    "export": {"--out": ("x",), "--import": ("no_such_xy",)},
    "report": {"--out": ("x.html",)},
    "compare": {"--html": ("x.html",), "--nope": ("x",)},
}  # fmt: skip
CASES = [
    [command, "CartPole-v1" if command == "train" else "nope", option, value]
    for command, options in BAD.items()
    for option, values in options.items()
    for value in values
] + [
    ["train"], ["train", ""], ["train", "cartpole"], ["train", "CartPole-v9"], ["train", "mod:Name-v0"], ["trian"],
    [*TRAIN, "Foo"], [*TRAIN, "--steps", "9", "--minutes", "3"], [*TRAIN, "--algo", "CQN"],
    *([*TRAIN, "--dry-run", "--minutes", number] for number in ("0", "nan", "inf")),
    ["train", "reasoning/chain_sum"], ["list", "algoz"], ["list", "envs", "x"], ["doctor", "Taxi-v3"],
    ["doctor", "--nope"], ["resume"], ["continue"], ["evaluate"], ["compare"], ["report"], ["record"], ["export"],
    ["export", "nope"], ["export", "nope", "--onnx"], ["compare", "nope"], ["config", "nope"], ["config", "convert"],
    ["config", "convert", "nope.yaml"], ["data", "nope"], ["data", "make"], ["data", "make", "CartPole-v1"],
    ["data", "show", "nope.h5"], ["--nope"],
    *(["data", "make", "CartPole-v1", "--out", "x.h5", *more] for more in (
        ["--policy", "foo"], ["--policy", "random", "--rows", "0"], ["--policy", "random", "--rows", "x"],
        ["--policy", "random", "--noise", "x"], ["--policy", "random", "--seed", "-1"],
        ["--policy", "random", "--algo", "DQN"], ["--policy", "medium", "--algo", "FOO"],
        ["--policy", "medium", "--set", "foo=1"],
    )),
]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("words", CASES, ids=[" ".join(words) or "none" for words in CASES])
def test_a_mistake_is_an_error_with_a_fix(words: list[str]) -> None:
    result = CliRunner().invoke(app, words)
    told = [line for line in result.stderr.splitlines() if "rror: " in line]
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    assert len(told) == 1, result.output
    assert told[0].count("fix: ") == 1
    fix = told[0].partition("fix: ")[2]
    assert len(fix) > 3
    assert not re.search(r"(?<!--set )(?<!--env-kwargs )(?<![.\w])(dataset|steps|algo|minutes|seed|model)=", fix), fix
    assert not list(Path().iterdir())


EXACT = [
    ([*TRAIN, "--seed", "-1"], "--seed: training.seed must be an integer of at least 0; got -1. fix: --seed 0."),
    ([*TRAIN, "--set", "lr=-1"], "algorithm.lr must be above 0; got -1. fix: --set algorithm.lr="),
    ([*TRAIN, "--algo", "CQN"], "none is named. fix: --dataset data.h5."),
    ([*TRAIN, "--minutes", "0"], "minutes must be above 0; got 0.0. fix: --minutes 10."),
    ([*TRAIN, "--minutes", "inf"], "minutes must be finite; got inf. fix: --minutes 10."),
    ([*TRAIN, "--import", ""], "--import names a module or a file; got ''. fix: --import my_module"),
    (["doctor", "Taxi-v3"], "(Taxi-v3). fix: `agilerl doctor --env ENV_ID`."),
    (["train", "LunarLnder-v3"], "Did you mean 'LunarLander-v3'?"),
    (["train", "cartpole"], "Did you mean 'CartPole-v1'?"),
    (["trian"], "Did you mean 'train'? fix: `agilerl -h` lists the commands."),
]


@pytest.mark.parametrize(("words", "told"), EXACT, ids=[" ".join(words) for words, _ in EXACT])
def test_the_fix_says_what_to_type(words: list[str], told: str) -> None:
    assert told in CliRunner().invoke(app, words, prog_name="agilerl").stderr


CONTRADICTING = [
    (("--minutes", "5"), "max_steps=1000"), (("--minutes", "5"), "training.total_timesteps=1000"),
    (("--steps", "1000"), "stop_after=500"), (("--steps", "1000"), "max_steps=2000"),
    (("--population", "2"), "pop_size=6"), (("--seed", "1"), "seed=2"),
    (("--target", "100"), "target_score=200"), (("--target", "100"), "training.target=null"),
    (("--num-envs", "2"), "environment.num_envs=3"), (("--set", "lr=1e-3"), "lr=2e-3"),
    (("--set", "target=null"), "target=3"), (("--env-kwargs", "g=-3"), "environment.kwargs.g=-5"),
]  # fmt: skip


@pytest.mark.parametrize(("option", "setting"), CONTRADICTING, ids=[f"{o[0]} {s}" for o, s in CONTRADICTING])
def test_an_option_and_a_setting_that_contradict_each_other_are_named(option: tuple[str, str], setting: str) -> None:
    done = CliRunner().invoke(app, [*TRAIN, *option, "--set", setting, "--dry-run"])
    told = f"ConfigError: {' '.join(option)} and --set {setting} contradict each other. fix: one of the two.\n"
    assert (done.exit_code, done.stderr) == (2, told)


def test_contradictions_are_named_when_a_run_goes_on() -> None:
    for words, told in (
        (["resume", "nope", "--minutes", "5", "--set", "max_steps=9"], "--minutes 5 and --set max_steps=9 contradict"),
        (["resume", "nope", "--target", "5", "--set", "target=9"], "--target 5 and --set target=9 contradict"),
        (["continue", "nope", "--steps", "5", "--set", "max_steps=9"], "--steps 5 and --set max_steps=9 contradict"),
    ):
        assert told in CliRunner().invoke(app, words).stderr


def test_an_option_and_a_setting_that_agree_are_taken() -> None:
    words = [
        *TRAIN,
        "--steps",
        "2000",
        "--population",
        "3",
        "--env-kwargs",
        "sutton_barto_reward=true",
        "--target",
        "100",
        "--dry-run",
    ]
    sets = ["max_steps=2e3", "training.pop_size=3", "environment.kwargs.render_mode=rgb_array", "target_score=100.0"]
    done = CliRunner().invoke(app, [*words, *(word for setting in sets for word in ("--set", setting))])
    assert done.exit_code == 0, done.output
    assert "3 members x 2k env steps" in done.output


@pytest.mark.parametrize("key", ["max_steps", "total_timesteps", "training.total_timesteps"])
def test_a_setting_of_the_budget_takes_the_place_of_ten_minutes(key: str) -> None:
    done = CliRunner().invoke(app, [*TRAIN, "--no-preset", "--set", f"{key}=90000", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "minutes" not in done.output


def test_a_problem_of_a_file_is_mended_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("environment: CartPole-v1\nalgorithm: DQN\ntraining: {pop_size: 0}\nevolution: {max_lag: 4}\n")
    told = CliRunner().invoke(app, ["train", "--config", str(file), "--dry-run"], prog_name="agilerl").stderr
    assert told == (
        "ConfigError: my.yaml: training.pop_size must be an integer of at least 1; got 0. fix: training.pop_size=4.\n"
    )
    file.write_text("environment: CartPole-v1\nalgorithm: DQN\nevolution: {max_lag: 4}\n")
    told = CliRunner().invoke(app, ["train", "--config", str(file), "--dry-run"], prog_name="agilerl").stderr
    assert told.endswith("fix: evolution.mode=async, or leave evolution.max_lag out.\n")


def test_options_hold_what_a_rule_over_several_keys_asks_for() -> None:
    sets = ["--set", "evolution.scheme=halving", "--set", "evolution.survivors=8", "--dry-run"]
    done = CliRunner().invoke(app, ["train", "CartPole-v1", *sets], prog_name="agilerl")
    assert "fix: --population 8" in done.stderr
    done = CliRunner().invoke(app, ["train", "CartPole-v1", "--population", "8", *sets], prog_name="agilerl")
    assert done.exit_code == 0, done.output


TRANSLATED = {
    "dataset='data.h5'.": "--dataset data.h5.",
    "steps=2000, or another folder.": "--steps 2000, or another folder.",
    "max_steps=90 goes on.": "--steps 90 goes on.",
    "reward_scale=1 and clip_rewards=False.": "--set reward_scale=1 and --set clip_rewards=false.",
    "opponents=None, or one process.": "leave --opponents out, or one process.",
    "agilerl.train(env, seed=1).": "agilerl.train(env, seed=1).",
    "`agilerl resume x --set seed=1`.": "`agilerl resume x --set seed=1`.",
    "--set lr=1.": "--set lr=1.",
    "env=make_vect_envs(num_envs=4).": "env=make_vect_envs(num_envs=4).",
    "threads=2.": "--set threads=2.",
    "algo='GRPO' with model='path/to/model'.": "--algo GRPO with --model path/to/model.",
}


@pytest.mark.parametrize("fix", TRANSLATED)
def test_keyword_arguments_become_options(fix: str) -> None:
    command = get_command(app).commands["train"]  # type: ignore[attr-defined]
    remember_command(typer.Context(command, info_name="train"), False)
    assert on_command_line(f"it is wrong. fix: {fix}") == f"it is wrong. fix: {TRANSLATED[fix]}"


@pytest.mark.parametrize(
    ("command", "fix"),
    [
        ("train", "--set environment.healing=true"),
        ("continue", "--set environment.healing=true"),
        ("resume", "make_vect_envs(..., healing=True)"),  # whose --set leaves the environment alone
        ("evaluate", "make_vect_envs(..., healing=True)"),
    ],
)
def test_the_healing_of_environments_is_a_setting_on_the_command_line(command: str, fix: str) -> None:
    remember_command(typer.Context(get_command(app).commands[command], info_name=command), False)
    assert on_command_line(f"it failed. {HEAL}") == (
        f"it failed. fix: correct the environment, or {fix} to replace an environment that fails."
    )


def test_the_help_of_all_commands_has_the_line_of_each() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert {name: commands[name].get_short_help_str(100) for name in commands} == {
        name: line for name, (_, line) in COMMANDS.items()
    }
    assert len(commands) == len(COMMANDS) == 18


def test_the_help_of_all_commands_loads_none_of_them() -> None:
    code = "import sys\nfrom agilerl.cli import app\napp(['--help'], standalone_mode=False)\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    modules = {f"agilerl.cli.{module}" for module, _ in COMMANDS.values()}
    assert not modules & set(loaded)
    assert "agilerl.cli.messages" in loaded
