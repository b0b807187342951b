"""Every scheme of evolution x every event of a run: it ends well, its records fit together, and a run that was stopped
in each generation becomes the same bits as one that never stopped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from scheme_runs import SCHEMES, check_records, diverging, resume, rows_of, scripted, state_of, train

from agilerl.telemetry.record import BaseSink
from agilerl.training.manifest import build

# Two members of the first generation, one of the third and fourth: where copies of others stand by then.
DIVERGED = {0: (0, 2), 2: (1,), 3: (0,)}
ENDING = ("race", "race-pbt", "halving")


@contextmanager
def evolving_last() -> Iterator[None]:
    """The last generation is evolved too, as in the published functions."""
    inner = build.make_options
    with mock.patch.object(build, "make_options", lambda manifest: replace(inner(manifest), evolve_last=True)):
        yield


EVENTS: dict[str, dict[str, Any]] = {
    "budget": {},
    "evolved last": {},
    "screens": {"eval_episodes": 4, "eval_screen": 2, "eval_members": 2, "elite_rescore_episodes": 2},
    "restarts": {"restarts": True, "target_score": 1e6, "patience": 1, "steps": 40},
    "target": {"target_score": 2.0},
    "plateau": {"patience": 1, "steps": 96},
}
# Fitness that makes the event happen: nothing is ever gained (training returns are 6 at most), the third generation
# reaches the target, nothing is gained after the second.
SCRIPTS = {
    "restarts": lambda number, agent: 100.0,
    "target": lambda number, agent: number + 0.01 * (agent.index % 3),
    "plateau": lambda number, agent: min(number, 1) - 0.01 * (agent.index % 3),
}
MATRIX = [(scheme, event) for scheme in SCHEMES for event in EVENTS]


@contextmanager
def situation(event: str, diverged: bool) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(diverging(DIVERGED if diverged else {}))
        if event == "evolved last":
            stack.enter_context(evolving_last())
        if event in SCRIPTS:
            stack.enter_context(scripted(SCRIPTS[event]))
        yield


def case_of(scheme: str, event: str) -> dict[str, Any]:
    alone = {"frequencies": [1], "population": 4} if scheme == "mf_pbt" and event != "budget" else {}
    return {**SCHEMES[scheme], **EVENTS[event], **alone}


def check(run: Any, scheme: str, event: str, diverged: bool) -> None:
    """What this event does to a run of this scheme has happened, and nothing else."""
    check_records(run)
    births = [birth for birth in run.lineage if birth.generation]
    healed = [birth for birth in births if birth.kind == "healed"]
    assert bool(healed) == diverged == bool(run.result["quarantined"])
    assert all(math.isfinite(birth.parent_fitness) for birth in healed)
    assert run.result["stopped"] == {"target": "target", "plateau": "plateau"}.get(event, "budget")
    restarted = [birth for birth in births if (birth.kind, birth.path) == ("founder", "restart")]
    assert bool(restarted) == (event == "restarts")
    counts = [len(row) for row in run.history]
    if scheme in ENDING and event in ("budget", "evolved last"):
        assert counts[-1] < counts[0]
        assert counts == sorted(counts, reverse=True)
    if scheme not in ENDING:
        assert set(counts) == {counts[0]}
    last = {int(row["id"]) for row in rows_of(run.path) if int(row["generation"]) == len(run.history) - 1}
    if event == "evolved last" and scheme not in ENDING:
        assert any(b.generation == len(run.history) and b.kind != "healed" for b in births), "the last are evolved too"
    if event not in ("evolved last", "restarts") and not healed:
        assert {agent.index for agent in run.population} == last, "nobody is born who never trains"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_run_in_which_nobody_diverges_has_records_that_fit_together(scheme: str, tmp_path: Path) -> None:
    run = train(case_of(scheme, "budget"), tmp_path)
    check(run, scheme, "budget", diverged=False)


class Stop(BaseSink):
    """Ends a run in the middle of the second of its generations."""

    def __init__(self) -> None:
        self.ended = 0

    def generation(self, record: Any) -> None:
        self.ended += 1

    def progress(self, env_steps: int, seconds: float) -> None:
        if self.ended:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("scheme", "event"), MATRIX)
def test_records_fit_together_and_a_run_stopped_in_each_generation_becomes_the_same_bits(
    scheme: str, event: str, tmp_path: Path
) -> None:
    case = case_of(scheme, event)
    with situation(event, diverged=True):
        whole = train(case, tmp_path / "whole")
        check(whole, scheme, event, diverged=True)
        part, stops = train(case, tmp_path / "part", Stop()), 0
        while part.interrupted:
            part, stops = resume(part.path, Stop()), stops + 1
    assert stops == len(whole.history) - 1
    check(part, scheme, event, diverged=True)
    assert state_of(part.path) == state_of(whole.path)
    assert part.history == whole.history
