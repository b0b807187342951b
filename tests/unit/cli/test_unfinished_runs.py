"""Runs that were killed, resumed and continued: what commands call them, where they stand, how they are counted."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agilerl.cli import app
from agilerl.runs.directory import folder_beside
from agilerl.runs.lock import is_abandoned, status_of
from agilerl.telemetry.console import PlainSink, TqdmSink, bar_sink

SMALL = [
    "train", "CartPole-v1", "--algo", "PPO", "--population", "1", "--num-envs", "2", "--steps", "64", "-q",
    "--set", "evo_steps=128", "--set", "learn_step=32", "--set", "eval_episodes=1", "--set", "eval_steps=10",
    "--set", "confirm_episodes=0", "--set", "target_score=null", "--set", "batch_size=16", "--test-episodes", "0",
]  # fmt: skip


def cli(*words: Any) -> Any:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run, in a folder beside the working one."""
    monkeypatch.chdir(tmp_path)
    cli(*SMALL, "--out", "mine")
    return Path("mine/CartPole-v1/ppo-0001")


def kill(run: Path) -> None:
    """Make a run look as a process that is gone leaves it."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "status": "running"}))
    (run / "LOCK").write_text(json.dumps({"pid": process.pid, "host": socket.gethostname(), "token": ""}))


def test_a_killed_run_is_interrupted_and_every_command_says_what_resumes_it(run: Path) -> None:
    assert "is not finished" not in cli("evaluate", run, "--episodes", 2).stderr
    kill(run)
    assert status_of(run, {"status": "running"}) == "interrupted"
    for words in (["compare", run], ["list", "runs", "--out", "mine"]):
        text = cli(*words).stdout
        assert "interrupted" in text
        assert "running" not in text
        assert f"agilerl resume {run}" in text
    result = cli("evaluate", run, "--episodes", 2, "--json")
    assert f"note: {run} is not finished (interrupted)." in result.stderr
    assert f"fix: agilerl resume {run}" in result.stderr
    assert json.loads(result.stdout)["episodes"] == 2


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
def test_a_process_that_has_ended_and_was_not_waited_for_is_gone(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()
    stat = Path(f"/proc/{process.pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "Z":
        pass
    (tmp_path / "LOCK").write_text(json.dumps({"pid": process.pid, "host": socket.gethostname(), "token": ""}))
    assert is_abandoned(tmp_path)
    process.wait()


def test_a_continued_run_stands_beside_its_parent(run: Path, tmp_path: Path) -> None:
    cli("continue", run, "--steps", 64, "-q", "--test-episodes", 0)
    assert (run.parent / "ppo-0002" / "run.json").is_file()
    assert not Path("runs").exists()
    assert folder_beside(run, "CartPole-v1") == Path("mine")
    assert folder_beside(tmp_path / run, "CartPole-v1") == tmp_path / "mine"
    assert folder_beside(Path("moved/ppo-0001"), "CartPole-v1") == Path("moved")


def test_a_resumed_run_counts_its_generations_to_the_end(run: Path) -> None:
    loud = cli("resume", run, "--steps", 128, "--test-episodes", 0).stdout
    assert "continues after 1 generation\n" in loud
    assert "gen  2/2 " in loud


def test_a_bar_is_drawn_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(bar_sink(), PlainSink)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert isinstance(bar_sink(), TqdmSink)


def test_a_run_that_goes_on_has_the_final_evaluation_with_which_it_began(tmp_path: Path) -> None:
    cli(*SMALL[:-1], 3, "--out", tmp_path)
    run = tmp_path / "CartPole-v1" / "ppo-0001"

    def tested(path: Path) -> int:
        return len(json.loads((path / "run.json").read_text())["result"]["test"]["returns"])

    assert tested(run) == 3
    cli("resume", run, "--steps", 256, "-q")
    assert tested(run) == 3
    cli("resume", run, "--steps", 384, "-q", "--test-episodes", 2)
    assert tested(run) == 2
    cli("continue", run, "--steps", 128, "-q")
    assert tested(tmp_path / "CartPole-v1" / "ppo-0002") == 3
    cli("resume", tmp_path / "CartPole-v1" / "ppo-0002", "--steps", 256, "-q")
    assert tested(tmp_path / "CartPole-v1" / "ppo-0002") == 3
