"""`--json`: one line with one object from every command that reports, and exit codes that scripts can rely on."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from agilerl.cli import app
from agilerl.cli.doctor import BROKEN, OK, Finding
from agilerl.runs.signals import Stopped

ROOT = Path(__file__).resolve().parents[3]
SMALL = [
    "--set", "training.evo_steps=40", "--set", "training.eval_episodes=1", "--set", "training.learning_delay=0",
    "--set", "training.target_score=null", "--set", "training.confirm_episodes=0",
]  # fmt: skip
REPORTING = {
    "train", "resume", "continue", "evaluate", "export", "list", "report", "record", "compare", "doctor",
    "data make", "data show", "config check", "schedule", "importance", "steer", "optuna", "push",
}  # fmt: skip


def call(*words: Any) -> tuple[int, dict[str, Any]]:
    """(exit code, the object) of a command with `--json`."""
    done = CliRunner().invoke(app, [*map(str, words), "--json"])
    (line,) = done.stdout.splitlines() or [f"nothing; {done.stderr}"]
    return done.exit_code, json.loads(line)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("runs")
    sizes = ["--steps", 80, "--population", 2, "--test-episodes", 2, "--seed", 3]
    code, facts = call("train", "CartPole-v1", *sizes, "--out", out, *SMALL)
    assert code == 0
    return out, facts


def test_a_run_closes_with_its_result(trained: tuple[Path, dict[str, Any]]) -> None:
    out, facts = trained
    path = out / "CartPole-v1" / "dqn-0001"
    named = {"command": "train", "path": str(path), "status": "done", "env_id": "CartPole-v1", "algo": "DQN", "seed": 3}
    assert {name: facts[name] for name in named} == named
    assert facts["evaluation"]["episodes"] == len(facts["evaluation"]["returns"]) == 2
    assert facts["result"]["env_steps_population"] == 160
    assert facts["result"]["stopped"] == "budget"
    assert facts["resume"] is None
    code, again = call("resume", path, "--steps", 120, "--test-episodes", 0)
    assert (code, again["command"], again["evaluation"]) == (0, "resume", None)
    assert again["result"]["env_steps_member"] == 120
    code, other = call("continue", path, "--steps", 40, "--test-episodes", 0)
    assert (code, other["command"], other["path"]) == (0, "continue", str(out / "CartPole-v1" / "dqn-0002"))


def test_commands_that_show_a_run(trained: tuple[Path, dict[str, Any]]) -> None:
    path = trained[1]["path"]
    code, scored = call("evaluate", path, "--episodes", 2)
    assert (code, scored["command"], scored["run"], scored["episodes"]) == (0, "evaluate", path, 2)
    code, shown = call("report", path)
    assert (code, shown) == (0, {"command": "report", "reports": [f"{path}/report.html"]})
    code, compared = call("compare", path)
    assert (code, compared["command"], len(compared["groups"])) == (0, "compare", 1)
    code, refused = call("compare", path, "--html", f"{path}/metrics.csv")
    assert (code, refused["error"]["type"]) == (2, "RunError"), "one object"
    code, listed = call("list", "runs", "--out", trained[0])
    (entry,) = [each for each in listed["entries"] if each["path"] == path]
    assert (entry["env_id"], entry["algo"], entry["seed"]) == ("CartPole-v1", "DQN", 3)


@pytest.mark.thorough
def test_lists_are_data() -> None:
    presets = {each["name"]: each for each in call("list", "presets")[1]["entries"]}
    assert presets["CartPole-v1"]["algo"] == "DQN"
    assert presets["CartPole-v1"]["target"] == 475
    algos = {each["name"]: each for each in call("list", "algos")[1]["entries"]}
    assert "clip_coef" in algos["PPO"]["hyperparameters"]
    assert "lamb" in algos["NeuralUCB"]["hyperparameters"]
    envs = {each["name"]: each["notes"] for each in call("list", "envs")[1]["entries"]}
    assert envs["CartPole-v1"] == ["preset"]
    assert call("list", "runs", "--out", "no_such_folder") == (0, {"command": "list", "what": "runs", "entries": []})


@pytest.mark.thorough
def test_a_plan_and_seeds_side_by_side(tmp_path: Path) -> None:
    code, plan = call("train", "CartPole-v1", "--dry-run", "--steps", 1000)
    assert (code, plan["dry_run"], plan["manifest"]["training"]["max_steps"]) == (0, True, 1000)
    options = ["--steps", 40, "--population", 1, "--test-episodes", 1, "--workers", 1, "--out", tmp_path]
    code, group = call("train", "CartPole-v1", "--seeds", "0-1", *options, *SMALL)
    assert (code, group["status"], len(group["runs"]), group["failed"]) == (0, "done", 2, {})
    assert group["groups"][0]["runs"]


def test_data_sets_are_described(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    code, made = call("data", "make", "CartPole-v1", "--policy", "random", "--rows", 50, "--out", file)
    assert (code, made["command"], made["rows"]) == (0, "data make", 50)
    code, shown = call("data", "show", file)
    assert {**shown, "command": "data make"} == made


def test_an_error_is_an_object_too() -> None:
    done = CliRunner().invoke(app, ["evaluate", "no_such_run", "--json"])
    assert done.exit_code == 2
    facts = json.loads(done.stdout)
    assert facts["command"] == "evaluate"
    assert facts["error"]["type"] == "RunError"
    assert facts["error"]["fix"]
    assert done.stderr.startswith("RunError: "), "and its text is where it always is"


@pytest.mark.parametrize(
    ("words", "command", "message", "fix"),
    [
        ("train CartPole-v1 --json --steps abc", "train", "must be a whole number; got 'abc'.", "--steps 100000."),
        (
            "evaluate nowhere --episodes 0 --json",
            "evaluate",
            "must be a whole number >= 1; got '0'.",
            "--episodes 100.",
        ),
        ("evaluate --json", "evaluate", "Missing argument 'RUN'.", "`agilerl evaluate RUN`."),
        ("evaluate nowhere --jsonn --json", "evaluate", "No such option: --jsonn", "`agilerl evaluate -h` lists"),
        ("data show --json", "data show", "Missing argument", "`agilerl data show"),
    ],
)
def test_a_usage_error_is_an_object_too(words: str, command: str, message: str, fix: str) -> None:
    done = CliRunner().invoke(app, words.split(), prog_name="agilerl")
    (line,) = done.stdout.splitlines()
    facts = json.loads(line)
    assert (done.exit_code, facts["command"], facts["error"]["type"]) == (2, command, "UsageError")
    assert message in facts["error"]["message"]
    assert facts["error"]["fix"].startswith(fix)
    assert message in " ".join(done.stderr.split()), "and its text is where it always is"


@pytest.mark.parametrize("words", [["watch", "--json"], ["trian", "--json"], ["train", "--steps", "x"]])
def test_a_usage_error_is_text_alone_without_the_option(words: list[str]) -> None:
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout) == (2, "")


def test_an_error_of_several_problems_has_all_of_them_and_all_fixes() -> None:
    words = ["train", "CartPole-v1", "--set", "pop_size=0", "--set", "max_steps=x", "--dry-run", "--json"]
    error = json.loads(CliRunner().invoke(app, words).stdout)["error"]
    assert [line.partition(" must ")[0] for line in error["message"].splitlines()] == [
        "--set: training.max_steps", "--set: training.pop_size"
    ]  # fmt: skip
    assert [line.split()[0] for line in error["fix"].splitlines()] == ["--steps", "--population"]


def commands() -> dict[str, Any]:
    found: dict[str, Any] = {}

    def walk(group: Any, path: str) -> None:
        for name, inner in group.commands.items():
            walk(inner, f"{path}{name} ") if hasattr(inner, "commands") else found.update({f"{path}{name}": inner})

    walk(typer.main.get_command(app), "")
    return found


def test_every_command_that_reports_has_the_option() -> None:
    found = commands()
    assert set(found) >= REPORTING
    for name in REPORTING:
        assert "--json" in [flag for option in found[name].params for flag in option.opts], name


# --- exit codes ------------------------------------------------------------------------------------------------------


def raising(error: BaseException) -> Any:
    def listing(*_: Any) -> Any:
        raise error

    return listing


def test_exit_codes_are_the_documented_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: dict[int, list[int]] = {0: [], 1: [], 2: [], 130: [], 143: []}
    codes[0].append(CliRunner().invoke(app, ["list", "presets"]).exit_code)
    codes[0].append(CliRunner().invoke(app, ["--version"]).exit_code)
    for words in (
        ["train", "CartPole-v7"],
        ["train", "--no-such-option"],
        ["no-such-command"],
        ["evaluate", "nowhere"],
    ):
        codes[2].append(CliRunner().invoke(app, words).exit_code)
    for error, code in ((KeyboardInterrupt(), 130), (Stopped(signal.SIGTERM), 143), (OSError(28, "No space left"), 2)):
        monkeypatch.setattr("agilerl.cli.listing.listing", raising(error))
        codes[code].append(CliRunner().invoke(app, ["list", "envs"]).exit_code)
    monkeypatch.setattr("agilerl.cli.listing.entries", raising(OSError(28, "No space left")))
    code, facts = call("list", "envs")
    assert (code, facts["command"], facts["error"]["message"]) == (2, "list", "No space left.")
    assert facts["error"]["fix"].startswith("make room")
    monkeypatch.setattr("agilerl.cli.listing.listing", raising(ZeroDivisionError()))
    codes[1].append(CliRunner().invoke(app, ["list", "envs"]).exit_code)
    monkeypatch.setattr("agilerl.cli.doctor.examine", lambda **_: [Finding("a", OK, ""), Finding("b", BROKEN, "")])
    code, facts = call("doctor")
    codes[1].append(code)
    assert (facts["ok"], facts["findings"][1]["state"]) == (False, "broken")
    for code, seen in codes.items():
        assert seen, code
        assert set(seen) == {code}
    page = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    assert {int(number) for number in re.findall(r"^\| (\d+) \|", page, re.M)} == set(codes)
