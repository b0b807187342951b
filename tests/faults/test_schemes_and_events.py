"""Every scheme of evolution x every event of a run: it ends well, its records fit together, and a run that was stopped
in each generation, or in every second one, becomes the same bits as one that never stopped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from faulty_runs import StopAfter
from scheme_runs import SCHEMES, check_records, diverging, resume, rows_of, scripted, state_of, train

import agilerl
from agilerl.collect.evaluator import Evaluator
from agilerl.collect.fitness import PopulationEvaluation
from agilerl.experimental import pb2
from agilerl.runs.records import RunRecords
from agilerl.training.manifest import build

# Two members of the first generation, one of the third and fourth: where copies of others stand by then.
DIVERGED = {0: (0, 2), 2: (1,), 3: (0,)}
ENDING = ("race", "halving")


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
    "restarts with other ranges": {
        "restarts": True, "target_score": 1e6, "patience": 2, "steps": 72,
        "restart_ranges": {"ent_coef": {"min": 1e-4, "max": 1e-2}, "gamma": {"min": 0.9, "max": 0.9999}},
    },
}  # fmt: skip
RESTARTS = ("restarts", "restarts with other ranges")
ONLY = {"restarts with other ranges": ("pb2",)}  # which these concern
# Fitness that makes the event happen: nothing is ever gained (training returns are 6 at most), the third generation
# reaches the target, nothing is gained after the second (twice).
SCRIPTS = {
    "restarts": lambda number, agent: 100.0,
    "target": lambda number, agent: number + 0.01 * (agent.index % 3),
    "plateau": lambda number, agent: min(number, 1) - 0.01 * (agent.index % 3),
    "restarts with other ranges": lambda number, agent: min(number, 1) + 0.01 * ((7 * agent.index + number) % 5),
}
MATRIX = [(scheme, event) for scheme in SCHEMES for event in EVENTS if scheme in ONLY.get(event, SCHEMES)]


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
    assert bool(restarted) == (event in RESTARTS)
    if event == "restarts with other ranges":
        assert {"lr", "gamma", "ent_coef"} <= {name for b in births if b.kind == "rl_hp" for name in b.path.split(", ")}
    counts = [len(row) for row in run.history]
    if scheme in ENDING and event in ("budget", "evolved last"):
        assert counts[-1] < counts[0]
        assert counts == sorted(counts, reverse=True)
    if scheme not in ENDING:
        assert set(counts) == {counts[0]}
    last = {int(row["id"]) for row in rows_of(run.path) if int(row["generation"]) == len(run.history) - 1}
    if event == "evolved last" and scheme not in ENDING:
        assert any(b.generation == len(run.history) and b.kind != "healed" for b in births), "the last are evolved too"
    if event not in ("evolved last", *RESTARTS) and not healed:
        assert {agent.index for agent in run.population} == last, "nobody is born who never trains"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_run_in_which_nobody_diverges_has_records_that_fit_together(scheme: str, tmp_path: Path) -> None:
    run = train(case_of(scheme, "budget"), tmp_path)
    check(run, scheme, "budget", diverged=False)


@pytest.mark.parametrize(("scheme", "event"), MATRIX)
def test_records_fit_together_and_a_run_stopped_again_and_again_becomes_the_same_bits(
    scheme: str, event: str, tmp_path: Path
) -> None:
    case = case_of(scheme, event)
    with situation(event, diverged=True):
        with mock.patch.object(pb2, "_bounds", wraps=pb2._bounds) as bounds:
            whole = train(case, tmp_path / "whole")
        if event in ONLY:
            widths = {call.args[0].shape[1] for call in bounds.call_args_list}  # hyperparameters, and the generation
            assert widths == {3, 4}
        check(whole, scheme, event, diverged=True)
        # A process over gains takes time to import and to fit; schemes and events have stops after 1 and after 2.
        every = 4 if event in ONLY else 1 + MATRIX.index((scheme, event)) % 2
        part, stops = train(case, tmp_path / "part", StopAfter(every)), 0
        while part.interrupted:
            part, stops = resume(part.path, StopAfter(every)), stops + 1
    assert stops == (len(whole.history) - 1) // every
    check(part, scheme, event, diverged=True)
    assert state_of(part.path) == state_of(whole.path)
    assert part.history == whole.history


@contextmanager
def rescoring(*means: float, played: int | None = None) -> Iterator[list[Any]]:
    """Members have fitness 4, 3, 2, 1, ... by slot, and the two fittest then these means; yields the evaluated."""
    evaluated: list[Any] = []

    def evaluate(self: Any, agents: Any, number: int, episodes: Any = None) -> PopulationEvaluation:
        evaluated.append(list(agents))
        counts = {} if played is None else {agent.index: played for agent in agents}
        return PopulationEvaluation([4.0 - slot for slot in range(len(agents))], played=counts)

    def rescore(self: Any, agents: Any, number: int, episodes: int) -> list[float]:
        return list(means)

    with mock.patch.multiple(Evaluator, evaluate=evaluate, rescore=rescore):
        yield evaluated


@pytest.mark.parametrize("scheme", ["tournament", "pbt", "pb2", "mf_pbt", "halving"])
def test_rescored_fitness_decides_in_every_scheme_that_compares_fitness(scheme: str, tmp_path: Path) -> None:
    """Of 2 episodes and 2 more, member 0 has 4 and -40, member 1 has 3 and 40: -18 and 21.5."""
    settings: dict[str, dict[str, Any]] = {
        "pbt": {"interval": 1}, "mf_pbt": {"frequencies": [1], "population": 4}, "tournament": {"tournament_size": 60},
    }  # fmt: skip
    case = {**SCHEMES[scheme], "elite_rescore_episodes": 2, "steps": 24, **settings.get(scheme, {})}
    with rescoring(-40.0, 40.0):
        run = train(case, tmp_path)
    assert run.history[0] == [4.0, 3.0, 2.0, 1.0], "records show the evaluation"
    if scheme == "halving":
        assert 0 not in {int(row["id"]) for row in rows_of(run.path) if row["generation"] == "2"}
        return
    born = [birth for birth in run.lineage if birth.generation == 1]
    assert born
    assert {(birth.parent, birth.parent_fitness) for birth in born} == {(1, 21.5)}


def test_rescored_episodes_count_as_many_as_were_played(tmp_path: Path) -> None:
    """Of 8 episodes a screen played 4: (4 * 4 + 8 * -2) / 12 = 0 and (4 * 3 + 8 * 6) / 12 = 5."""
    case = {**SCHEMES["pbt"], "interval": 1, "eval_episodes": 8, "elite_rescore_episodes": 8, "steps": 16}
    with rescoring(-2.0, 6.0, played=4):
        run = train(case, tmp_path)
    (birth,) = (birth for birth in run.lineage if birth.generation == 1)
    assert (birth.parent, birth.parent_fitness) == (1, 5.0)


def test_a_rescored_member_that_was_not_evaluated_has_the_mean_of_its_episodes(tmp_path: Path) -> None:
    case = {**SCHEMES["pbt"], "interval": 1, "eval_members": 1, "elite_rescore_episodes": 2, "steps": 16}
    with rescoring(-40.0, 40.0) as evaluated:
        run = train(case, tmp_path)
    (birth,) = (birth for birth in run.lineage if birth.generation == 1)
    assert birth.parent_fitness == 40.0, "no share of its training returns"
    assert [birth.parent] != [agent.index for agent in evaluated[0]]


class Asks:
    """Asks to remove a member once, after the second generation."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_generation(self, record: Any) -> None:
        if record.generation == 1:
            (run,) = (file.parent for file in self.path.rglob("run.json"))
            member = record.births[-1].id if record.births else record.members[-1].id
            agilerl.steer(run, "remove", member=member)


@pytest.mark.parametrize(("scheme", "ends"), [("tournament", False), ("mf_pbt", False), ("pbt", False), ("race", True)])
def test_a_removed_member_leaves_its_place_where_the_scheme_ends_members(
    scheme: str, ends: bool, tmp_path: Path
) -> None:
    case = {**case_of(scheme, "restarts"), "patience": 25, "certainty": 1e9 if ends else None}
    run = train(case, tmp_path, callbacks=[Asks(tmp_path)])
    counts = [len(row) for row in run.history]
    assert counts[:3] == [4, 4, 4]
    assert set(counts[3:]) == {3 if ends else 4}
    (event,) = RunRecords.read(run.path).steering
    assert len(event.result.get("born", ())) == (0 if ends else 1)
