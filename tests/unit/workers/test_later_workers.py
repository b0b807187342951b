"""Workers that nobody asked for: they start after a while, change no bit, and a run goes on where they cannot start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from inline_workers import InlineWorkers
from typer.testing import CliRunner

from agilerl.cli.main import app
from agilerl.config import apply_overrides
from agilerl.config.load import preset_for
from agilerl.core.threads import available_cores
from agilerl.errors import RunError
from agilerl.training.manifest import workers as manifest_workers
from agilerl.training.manifest.worker_settings import MAX_SPARE, spare_cores
from agilerl.workers import later
from agilerl.workers.executor import Executor, Reply
from agilerl.workers.later import LaterWorkers

TINY = ["--steps", "300", "--population", "2", "--no-preset", "--algo", "DQN",
        "--set", "target=null", "--set", "evo_steps=100", "--set", "evolution.scheme=tournament", "--set",
        "network.latent_dim=8", "--test-episodes", "2",
        "--set", "eval_episodes=8", "--set", "eval_screen=0", "--set", "eval_members=null", "--set",
        "evolution.founders=equal", "--quiet"]  # fmt: skip


def make(place: int) -> Any:
    return lambda job, report: job


def test_workers_start_at_the_first_look_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [100.0]
    monkeypatch.setattr(later.time, "monotonic", lambda: seconds[0])
    said: list[str] = []
    workers = LaterWorkers(lambda: InlineWorkers(make, 2), said.append, after=10)
    for now, alive in ((100.0, 0), (109.9, 0), (110.0, 2), (111.0, 2)):
        seconds[0] = now
        assert workers.poll(0) == []
        assert workers.alive == alive
        assert workers.idle() == list(range(alive))
    workers.submit(0, b"job")
    assert workers.poll(0)[-1].payload == b"job"
    workers.close()
    assert workers.alive == 0
    assert said == ["2 more processes play episodes of evaluations from now on"]


@pytest.mark.parametrize("at_once", [True, False])
def test_where_they_cannot_start_one_process_does_the_work(at_once: bool) -> None:
    class Failing(InlineWorkers):
        def poll(self, seconds: float) -> list[Reply]:
            raise RunError("no memory. fix: more.\nand more lines")

    def start() -> Executor:
        if at_once:
            raise RunError("no memory. fix: more.\nand more lines")
        return Failing(make, 2)

    said: list[str] = []
    workers = LaterWorkers(start, said.append, after=0)
    for _ in range(2):
        assert workers.poll(0) == []
    assert workers.alive == 0
    assert said[-1] == "one process does all the work: no memory. fix: more."
    assert len(said) == (1 if at_once else 2)


class Counted(InlineWorkers):
    jobs = 0

    def submit(self, worker: int, job: bytes) -> None:
        Counted.jobs += 1
        super().submit(worker, job)


def trained(out: Path, *more: str) -> Path:
    ended = CliRunner().invoke(app, ["train", "CartPole-v1", "--out", str(out), *TINY, *more])
    assert ended.exit_code == 0, ended.output
    (path,) = out.glob("*/*/run.json")
    return path.parent


@pytest.mark.thorough
def test_a_bare_command_has_their_help_and_the_same_bits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(manifest_workers, "LocalWorkers", Counted)
    monkeypatch.setattr("agilerl.training.manifest.worker_settings.available_cores", lambda: 3)
    monkeypatch.setattr(Counted, "jobs", 0)
    runs = [trained(tmp_path / "short")]
    assert Counted.jobs == 0, "a short run is over before they would start"
    monkeypatch.setattr(manifest_workers, "START_AFTER", 0.0)
    runs.append(trained(tmp_path / "one", "--workers", "1"))
    assert Counted.jobs == 0, "one process was asked for"
    runs.append(trained(tmp_path / "three"))
    assert Counted.jobs >= 2 * 3, "two blocks of episodes in each of three generations"
    rows = [[line.rsplit(",", 1)[0] for line in (run / "metrics.csv").read_text().splitlines()] for run in runs]
    assert rows[0] == rows[1] == rows[2]
    policies = [(run / "best" / "policy.safetensors").read_bytes() for run in runs]
    assert policies[0] == policies[1] == policies[2]


@pytest.mark.parametrize(
    ("changes", "helps"),
    [
        ({}, True),
        ({"environment.healing": True}, False),
        ({"environment.num_workers": 2}, False),
        ({"training.shards": 2, "evolution.mode": "async"}, False),
    ],
)
def test_which_runs_they_would_help(changes: dict[str, Any], helps: bool) -> None:
    manifest = apply_overrides(preset_for("CartPole-v1"), changes)
    assert spare_cores(manifest, "cpu") == (min(available_cores(), MAX_SPARE) if helps else 1)
    assert spare_cores(manifest, "cuda") == 1
