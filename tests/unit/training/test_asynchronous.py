"""Asynchronous mode: the bits follow from the seed and the order of arrivals, which evolution.jsonl records."""

from __future__ import annotations

import functools
import hashlib
import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from inline_workers import InlineWorkers

import agilerl
from agilerl.core.checkpoint import encode_tree
from agilerl.errors import ConfigError, RunError
from agilerl.experimental import asynchronous
from agilerl.experimental.asynchronous import AsynchronousLoop
from agilerl.runs.records import RunRecords
from agilerl.telemetry.record import GenerationRecord
from agilerl.training.manifest import workers as manifest_workers
from agilerl.workers.executor import Reply

SMALL = {"network.latent_dim": 8, "network.encoder_config.hidden_size": [8], "network.head_config.hidden_size": [8]}
ASYNC: dict[str, Any] = {
    "population": 6, "steps": 160, "evo_steps": 40, "num_envs": 2, "eval_episodes": 2, "eval_steps": 60,
    "confirm_episodes": 2,
    "target_score": None, "preset": False, "verbose": False, "device": "cpu", "shards": 3, "mode": "async",
    "tournament_selection.tournament_size": 2, **SMALL,
}  # fmt: skip
REPLAY = {"algorithm.learn_step": 5, "batch_size": 8, "learning_delay": 0}
LEARNERS: dict[str, dict[str, Any]] = {
    # The ring goes around; the first members are not evolved, but may be parents in other shards.
    "DQN": {**REPLAY, "replay_buffer.max_size": 100, "evolve_from": 0.4},
    "prioritised": {**REPLAY, "replay_buffer.prioritized": True},
    "PPO": {"algorithm.learn_step": 20, "batch_size": 8, "update_epochs": 2, "normalize_rewards": True},
}
BOTH_SOURCES = ("DQN", "PPO")  # in the fast suite
OF_LEARNERS = pytest.mark.parametrize(
    "learner", [name if name in BOTH_SOURCES else pytest.param(name, marks=pytest.mark.thorough) for name in LEARNERS]
)


def train(learner: str = "DQN", seed: int = 0, **more: Any) -> agilerl.Run:
    settings = {"out": None, **ASYNC, **LEARNERS[learner], **more}
    return agilerl.train("CartPole-v1", "PPO" if learner == "PPO" else "DQN", seed=seed, **settings)


def digest(run: agilerl.Run) -> str:
    """Digest of all members and of what a run has recorded."""
    whole = hashlib.sha256()
    for agent in [*run.population, run.best]:
        whole.update(encode_tree(agent.run_state()))
    whole.update(repr((run.history, run.lineage)).encode())
    return whole.hexdigest()


class Shuffled(InlineWorkers):
    """Workers whose results come in a random order."""

    draws = random.Random(0)
    jobs = 0

    def submit(self, worker: int, job: bytes) -> None:
        Shuffled.jobs += 1
        super().submit(worker, job)

    def poll(self, seconds: float) -> list[Reply]:
        if not self._replies or self.draws.random() < 0.3:
            return []
        return self._replies.pop(self.draws.choice(list(self._replies)))


@pytest.fixture
def shuffled(monkeypatch: pytest.MonkeyPatch) -> type[Shuffled]:
    class Kind(Shuffled):
        draws = random.Random(7)

    monkeypatch.setattr(Shuffled, "jobs", 0)
    monkeypatch.setattr(manifest_workers, "LocalWorkers", Kind)
    return Kind


@pytest.fixture(scope="module")
def of_workers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], agilerl.Run]:
    """Return the run of a learner over three workers whose results come in a random order."""

    @functools.cache
    def of(learner: str) -> agilerl.Run:
        jobs = Shuffled.jobs
        run = train(learner, out=tmp_path_factory.mktemp(learner), workers=3)
        assert Shuffled.jobs >= jobs + 12
        return run

    return of


def arrivals(path: Path | None) -> list[int]:
    return RunRecords.read(path).arrivals


@pytest.mark.thorough
@OF_LEARNERS
@pytest.mark.usefixtures("shuffled")
def test_a_replay_of_the_order_has_the_same_bits(
    learner: str, of_workers: Callable[[str], agilerl.Run], tmp_path: Path
) -> None:
    first = of_workers(learner)
    assert first.result["updates"] > 100
    order = arrivals(first.path)
    assert order[:3] == [0, 1, 2]
    assert sorted(order) == [0] * 4 + [1] * 4 + [2] * 4
    assert order != [0, 1, 2] * 4, "the order is not the one of shards that take turns"
    others = train(learner, arrivals=first.path, workers=2, out=tmp_path)
    assert digest(others) == digest(first)
    if learner != "prioritised":  # collects as DQN does
        assert digest(train(learner, arrivals=first.path)) == digest(first), "without workers"
    if learner == "DQN":
        assert digest(train(learner)) != digest(first), "another order gives another run"
    assert first.path is not None
    assert others.path is not None
    texts = [(run.path / "evolution.jsonl").read_text() for run in (first, others) if run.path is not None]
    assert texts[0] == texts[1]


@pytest.mark.thorough
def test_lost_workers_change_the_order_at_most(shuffled: type[Shuffled], tmp_path: Path) -> None:
    class Dying(shuffled):  # type: ignore[valid-type,misc]
        def submit(self, worker: int, job: bytes) -> None:
            super().submit(worker, job)
            if Shuffled.jobs in (2, 5, 6, 11):
                self.kill(worker, "it was switched off")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_workers, "LocalWorkers", Dying)
        first = train(out=tmp_path, workers=2)
    assert Shuffled.jobs > 12
    assert digest(train(arrivals=first.path)) == digest(first)


def goes_on(last: int, record: GenerationRecord) -> bool:
    return record.generation < last


@pytest.mark.thorough
@OF_LEARNERS
@pytest.mark.usefixtures("shuffled")
def test_a_resumed_run_has_the_same_bits(
    learner: str, of_workers: Callable[[str], agilerl.Run], tmp_path: Path
) -> None:
    first = of_workers(learner)
    generations = len(first.history)
    for stop in (1, 8) if learner == "DQN" else (6,):
        last = stop - 1
        ended = train(learner, out=tmp_path, workers=3, arrivals=first.path, callbacks=[partial(goes_on, last)])
        assert len(ended.history) == stop < generations
        assert ended.path is not None
        resumed = agilerl.resume(ended.path, verbose=False)
        assert digest(resumed) == digest(first)
        assert (resumed.path / "evolution.jsonl").read_text() == (first.path / "evolution.jsonl").read_text()  # type: ignore[operator]


@pytest.mark.thorough
def test_no_shard_is_too_far_ahead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Shard 0 comes last whenever there is another one: the others wait for it."""

    class Slow(Shuffled):
        def poll(self, seconds: float) -> list[Reply]:
            several = [worker for worker in self._replies if worker != 0]
            return self._replies.pop(several[0]) if several else self._replies.pop(0, [])

    monkeypatch.setattr(manifest_workers, "LocalWorkers", Slow)
    for max_lag in (1, 2):
        run = train(out=tmp_path, workers=3, max_lag=max_lag)
        ended, furthest = [0, 0, 0], 0
        for shard in arrivals(run.path):
            furthest = max(furthest, ended[shard] - min(ended))
            ended[shard] += 1
        assert ended == [4, 4, 4]
        assert furthest == max_lag


@pytest.mark.thorough
def test_every_member_makes_its_steps_and_every_birth_has_an_id_of_its_own(tmp_path: Path) -> None:
    run = train(out=tmp_path, steps=200, **{"tournament_selection.tournament_size": 3})
    assert [agent.steps[-1] for agent in run.population] == [200] * 6
    assert run.result["env_steps_population"] == 1200
    assert run.result["generations"] == len(run.history) == 1 + 4 * 3
    assert len({birth.id for birth in run.lineage}) == len(run.lineage) > 20
    text = (run.path / "evolution.jsonl").read_text()  # type: ignore[operator]
    arrived = [line for line in map(json.loads, text.splitlines()) if line["kind"] == "arrival"]
    assert [(line["generation"], line["shard"], line["shard_generation"]) for line in arrived] == [
        (max(0, place - 2), place % 3, place // 3) for place in range(15)
    ]


class Watched(AsynchronousLoop):
    """Notes what selection sees, and what becomes of the best member of all."""

    kept: ClassVar[list[bool]] = []

    def _evolve_shards(self, shards: Any, number: int, members: Any) -> Any:
        best = max(self.population, key=lambda agent: agent.fitness[-1])
        slots = [slot for shard in shards for slot in self.slots[shard]]
        leads = best.index in [self.population[slot].index for slot in slots]
        assert all(len(agent.fitness) > 0 for agent in self.population)
        born = super()._evolve_shards(shards, number, members)
        if not self._is_spent() and born:
            stays = best.index in [self.ahead[slot].index for slot in slots]
            self.kept.append(stays)
            assert stays == leads or not self._has_budget(shards[0])
        return born


@pytest.mark.thorough
def test_the_best_of_all_stays_until_its_own_shard_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    Watched.kept = []
    monkeypatch.setattr(asynchronous, "AsynchronousLoop", Watched)
    train(steps=400)
    assert True in Watched.kept
    assert False in Watched.kept


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"shards": 1}, "training.shards=2"),
        ({"evolution.scheme": "race"}, "evolution.scheme=tournament"),
        ({"share": "all"}, "training.share=shard"),
        ({"elite_rescore_episodes": 4}, "training.elite_rescore_episodes=0"),
        ({"mode": "generations", "max_lag": 3}, "evolution.mode=async"),
    ],
)
def test_what_needs_a_whole_generation_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
        train(**settings)


@pytest.mark.thorough
def test_an_order_of_another_run_is_refused(tmp_path: Path) -> None:
    plain = train(out=tmp_path, mode="generations", share="all")
    with pytest.raises(ConfigError, match="asynchronous mode, in which"):
        train(arrivals=plain.path)
    one = train(out=tmp_path, shards=2)
    with pytest.raises(ConfigError, match="this run does not train"):
        train(mode="generations", share="all", arrivals=one.path)
    lines = (one.path / "evolution.jsonl").read_text()  # type: ignore[operator]
    (one.path / "evolution.jsonl").write_text(lines.replace('"shard": 1', '"shard": 2'))  # type: ignore[operator]
    with pytest.raises(RunError, match="shard 2 is next"):
        train(shards=2, arrivals=one.path)


@pytest.mark.thorough
def test_a_damaged_lineage_is_written_anew_with_its_arrivals(tmp_path: Path) -> None:
    run = train(out=tmp_path)
    whole = (run.path / "evolution.jsonl").read_text()
    (run.path / "evolution.jsonl").write_text(whole.replace('"shard": 2', '"shard": 1'))
    with pytest.warns(agilerl.AgileRLWarning, match=r"evolution\.jsonl was damaged"):
        agilerl.resume(run.path, verbose=False)
    assert (run.path / "evolution.jsonl").read_text() == whole


class Evaluated(AsynchronousLoop):
    """Plays the evaluation of each member that arrives again, by itself, from the round in which it was played."""

    fitness: ClassVar[list[tuple[float, float]]] = []

    def _fitness(self, slots: Any, tallies: Any, evaluations: Any) -> list[float]:
        fitness = super()._fitness(slots, tallies, evaluations)
        played, counted = dict(self.evaluation.played), self.evaluator.env_steps
        for shard, members in enumerate(self.slots):
            for slot in members if members[0] in slots else ():
                alone = self.evaluator.evaluate([self.population[slot]], self.ended[shard] - 1)
                self.fitness.append((fitness[slot], alone.fitness[0]))
                assert self.population[slot].fitness[-1] == fitness[slot]
        assert set(played) == {agent.index for agent in self.population}
        self.evaluator.env_steps = counted
        return fitness


def test_fitness_is_that_of_a_member_evaluated_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    Evaluated.fitness = []
    monkeypatch.setattr(asynchronous, "AsynchronousLoop", Evaluated)
    run = train()
    assert [here for here, _ in Evaluated.fitness] == [alone for _, alone in Evaluated.fitness]
    assert len(Evaluated.fitness) == 6 * 4
    assert len({here for here, _ in Evaluated.fitness}) > 6
    assert run.result["evaluation_env_steps"] > 0
