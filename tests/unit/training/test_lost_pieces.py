"""Pieces whose worker is lost or answers at an awkward moment: the run has the bits of one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from inline_workers import InlineWorkers
from unit.training.test_shards import digest, trained

from agilerl.engine.rows.native import available_kernels
from agilerl.errors import RunError
from agilerl.training import scheduling
from agilerl.training.manifest import workers as manifest_workers
from agilerl.workers.executor import Reply


class Scripted(InlineWorkers):
    """Workers of which the first one does not answer its first job until `until` looks have passed.

    Then it is lost, or answers. Looks are counted while this process works.

    Attributes:
        fate: "lost" or "done". jobs: number of jobs submitted.
    """

    until, fate = 0, "lost"
    looks = jobs = 0
    held: Reply | None = None

    def idle(self) -> list[int]:
        return [number for number in super().idle() if self.held is None or number != self.held.worker]

    def submit(self, worker: int, job: bytes) -> None:
        super().submit(worker, job)
        type(self).jobs += 1
        if type(self).jobs == 1:
            self.held = self._replies.pop(worker)[-1]

    def poll(self, seconds: float) -> list[Reply]:
        self.looks += seconds == 0.0
        if self.held is not None and self.looks >= self.until:
            held, self.held = self.held, None
            if self.fate == "lost":
                self.kill(held.worker, "it was switched off")
            else:
                self._replies[held.worker] = [held]
        return super().poll(seconds)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Replaces the processes by a class of its own with these attributes; looks are taken at every vector step."""

    def use(**attributes: Any) -> Any:
        kind = type("Kind", (Scripted,), {"jobs": 0, **attributes})
        monkeypatch.setattr(manifest_workers, "LocalWorkers", kind)
        monkeypatch.setattr(scheduling, "MIN_STRAGGLER_SECONDS", 0.0)
        monkeypatch.setattr(scheduling, "POLL_SECONDS", 1e-9)
        return kind

    return use


@pytest.mark.parametrize(
    ("case", "fate", "until"),
    [
        ("ppo", "lost", 110),  # a shard makes 64 vector steps and an update after 32: its copy has made one
        pytest.param("ppo", "done", 110, marks=pytest.mark.thorough),
        ("n-step, prioritised", "done", 75),  # a shard makes 50, and updates at each
    ],
)
def test_a_worker_ends_while_its_piece_is_copied_here(case: str, fate: str, until: int, scripted: Any) -> None:
    alone = digest(trained(case, shards=2))
    kind = scripted(fate=fate, until=until)
    assert digest(trained(case, shards=2, workers=2)) == alone
    assert kind.jobs > 1


class Starting(InlineWorkers):
    """Workers that are ready once the run has listened to them."""

    submitted = 0
    has_listened = False

    def idle(self) -> list[int]:
        return super().idle() if self.has_listened else []

    def poll(self, seconds: float) -> list[Reply]:
        self.has_listened = True
        return super().poll(seconds)

    def submit(self, worker: int, job: bytes) -> None:
        type(self).submitted += 1
        super().submit(worker, job)


def test_workers_that_become_ready_later_play_episodes_without_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the kernels, whose actions depend on each row alone, this process plays all of them."""
    monkeypatch.setattr(manifest_workers, "LocalWorkers", Starting)
    monkeypatch.setattr(Starting, "submitted", 0)
    trained("dqn", shards=1, workers=2)
    evaluations = 3  # one a generation
    assert Starting.submitted >= evaluations if available_kernels().name != "torch" else Starting.submitted == 0


class Dying(InlineWorkers):
    """Workers that end with every job."""

    def submit(self, worker: int, job: bytes) -> None:
        self.kill(worker, "it was switched off")


def test_many_lost_workers_in_a_row_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no piece loses more than two of them, as this process does it meanwhile."""
    monkeypatch.setattr(manifest_workers, "LocalWorkers", Dying)
    monkeypatch.setattr(scheduling, "MAX_LOSSES", 100)
    with pytest.raises(RunError, match=r"\(run seed 0\) has lost a worker, the 6th in a row .* it was switched off"):
        trained("ppo", shards=2, workers=2)
