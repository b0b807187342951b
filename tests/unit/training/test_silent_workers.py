"""Silence of a worker is a fault where workers report progress, and else only once its piece was done elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from inline_workers import InlineWorkers

import agilerl
from agilerl.training import dispatch, scheduling
from agilerl.training.manifest import workers as manifest_workers
from agilerl.workers.executor import Reply

SMALL = {"network.latent_dim": 8, "network.encoder_config.hidden_size": [8], "network.head_config.hidden_size": [8]}
SILENT_POLLS = 150  # vector steps made here: more than two shards have in the generation


class Silent(InlineWorkers):
    """Workers of which the first result stays away for some polls, without a sign of life."""

    killed: list[tuple[int, bool]]
    dispatchers: list[dispatch.Dispatcher]
    polls = 0

    def poll(self, seconds: float) -> list[Reply]:
        self.polls += bool(self._replies)
        return super().poll(seconds) if not 0 < self.polls <= SILENT_POLLS else []

    def kill(self, worker: int, reason: str) -> None:
        self.killed.append((worker, self.dispatchers[0].scheduler._assignments[worker].twin is not None))


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("reports_progress", [False, True])
def test_who_is_killed(reports_progress: bool, is_late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"reports_progress": reports_progress, "killed": [], "dispatchers": []}
    kind: Any = type("Kind", (Silent,), settings)
    begin = dispatch.Dispatcher.__init__

    def note(self: dispatch.Dispatcher, *arguments: Any) -> None:
        begin(self, *arguments)
        kind.dispatchers.append(self)

    monkeypatch.setattr(dispatch.Dispatcher, "__init__", note)
    monkeypatch.setattr(manifest_workers, "LocalWorkers", kind)
    for name in (
        "HEARTBEAT_TIMEOUT_SECONDS",
        "HEARTBEAT_TIMEOUT_FACTOR",
        "FIRST_HEARTBEAT_TIMEOUT_SECONDS",
        "POLL_SECONDS",
    ):
        monkeypatch.setattr(scheduling, name, 0.0)
    monkeypatch.setattr(scheduling, "MIN_STRAGGLER_SECONDS", 0.0 if is_late else 1e9)
    monkeypatch.setattr(scheduling, "STRAGGLER_FACTOR", {"generation": 0.0, "episodes": 0.0})
    agilerl.train(
        "CartPole-v1", "DQN", population=2, steps=200, evo_steps=100, num_envs=2, eval_episodes=2, confirm_episodes=0,
        target_score=None, preset=False, out=None, verbose=False, seed=0, device="cpu", shards=2, workers=2, **SMALL,
    )  # fmt: skip
    was_done_elsewhere = {has_twin for _, has_twin in kind.killed}
    assert bool(was_done_elsewhere) is (reports_progress or is_late)
    assert reports_progress or False not in was_done_elsewhere
