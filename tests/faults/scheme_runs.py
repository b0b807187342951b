"""Whole runs of each scheme of evolution that take a fraction of a second, what happens to them, and what must hold."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import torch
from faulty_runs import digest

import agilerl
from agilerl.collect.evaluator import Evaluator
from agilerl.collect.fitness import MeanReturn, PopulationEvaluation
from agilerl.training.dispatch import Dispatcher
from agilerl.training.manifest import launch


class Match(gymnasium.Env[Any, Any]):
    """Episodes of 3 to 6 steps; 1 for the action that the observation shows, which learning finds."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(3, 7))
        return self._show(), {}

    def _show(self) -> np.ndarray:
        self.shown = int(self.np_random.integers(2))
        return np.array([2 * self.shown - 1, self.left / 6], np.float32)

    def step(self, action: Any) -> Any:
        reward, self.left = float(int(action) == self.shown), self.left - 1
        return self._show(), reward, self.left == 0, False, {}


RANGES = {"lr": {"min": 1e-4, "max": 1e-2}, "gamma": {"min": 0.9, "max": 0.999}}
USUAL: dict[str, Any] = {
    "algo": "PPO", "preset": False, "population": 4, "steps": 32, "evo_steps": 8, "seed": 3, "num_envs": 2,
    "learn_step": 8, "batch_size": 4, "update_epochs": 1, "eval_episodes": 2, "confirm_episodes": 2,
    "target_score": None, "patience": None, "evolve_from": 0.0, "latent_dim": 8, "founders": "spread",
    "mutation.rl_hp_selection": RANGES,
    "network.encoder_config.hidden_size": [8], "network.head_config.hidden_size": [8],
}  # fmt: skip
SCHEMES: dict[str, dict[str, Any]] = {
    "tournament": {"mutation.probabilities.params_mut": 1.0, "mutation.mutate_elite": True},
    "race": {"scheme": "race", "certainty": 0.1, "survivors": 2},
    "halving": {"scheme": "halving"},
    "pb2": {"scheme": "pb2"},
    "mf_pbt": {"scheme": "mf_pbt", "frequencies": [1, 2], "population": 8},
    "pbt": {"scheme": "pbt", "interval": 2},
}
REPLAY = {"algo": "DQN", "learn_step": 2, "learning_delay": 32, "max_size": 200, "update_epochs": None}


def train(case: Mapping[str, Any], out: Path | None = None, *sinks: Any, **more: Any) -> Any:
    """A run of `USUAL` with the settings of `case`; no report is written."""
    given = {
        name: value
        for name, value in {**USUAL, **case}.items()
        if value is not None or name in ("target_score", "patience")
    }
    with mock.patch.object(launch, "write_report"):
        return agilerl.train(Match, out=out, verbose=False, sinks=sinks, **given, **more)


def resume(path: Path, *sinks: Any) -> Any:
    with mock.patch.object(launch, "write_report"):
        return agilerl.resume(path, env=Match, verbose=False, sinks=sinks)


def poison(agent: Any) -> None:
    with torch.no_grad():
        next(agent.policy_module().parameters()).view(-1)[0] = math.nan


@contextmanager
def diverging(when: Mapping[int, tuple[int, ...]]) -> Iterator[None]:
    """Members in the slots `when[generation]` diverge in that generation, as long as another one does not."""
    inner = Dispatcher.generation

    def generation(self: Any, population: Any, number: int, begun: int) -> Any:
        for slot in when.get(number, ()):
            if slot < len(population) - 1:
                poison(population[slot])
        return (yield from inner(self, population, number, begun))

    with mock.patch.object(Dispatcher, "generation", generation):
        yield


@contextmanager
def scripted(fitness: Callable[[int, Any], float]) -> Iterator[None]:
    """Members have `fitness(generation, agent)`, in evaluations as in confirmations."""

    def evaluate(self: Any, agents: Any, number: int, episodes: Any = None) -> PopulationEvaluation:
        return PopulationEvaluation([fitness(number, agent) for agent in agents])

    def confirm(self: Any, agent: Any, number: int, episodes: int | None = None) -> MeanReturn:
        return MeanReturn(fitness(number, agent), 0.0)

    with mock.patch.multiple(Evaluator, evaluate=evaluate, confirm=confirm):
        yield


def births_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "evolution.jsonl").read_text().splitlines()]


def rows_of(path: Path) -> list[dict[str, str]]:
    with (path / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def state_of(path: Path) -> tuple[str, list[dict[str, str]]]:
    """Everything that a run has become but its times."""
    timed = ("seconds", "steps_per_second", "time")
    return digest(path), [{k: v for k, v in row.items() if k not in timed} for row in rows_of(path)]


def check_records(run: Any) -> None:
    """What the files of a run say of its members fits together, and to what the run gives back."""
    births, rows = births_of(run.path), rows_of(run.path)
    ids = [birth["id"] for birth in births]
    assert len(set(ids)) == len(ids), f"an id twice: {ids}"
    born = {birth["id"]: birth for birth in births}
    for place, birth in enumerate(births):
        assert birth["parent"] is None if birth["kind"] == "founder" else birth["parent"] in ids[:place], birth
    generations = [[row for row in rows if int(row["generation"]) == n] for n in range(len(run.history))]
    assert sum(map(len, generations)) == len(rows)
    gone: set[int] = set()
    before: dict[int, int] = {}  # env steps of the members of the generation before
    total = 0
    for number, (members, fitness) in enumerate(zip(generations, run.history, strict=True)):
        present = [int(row["id"]) for row in members]
        assert len(set(present)) == len(present) == len(fitness)
        assert not gone & set(present), "who has gone does not come back"
        for row, value in zip(members, fitness, strict=True):
            birth = born[int(row["id"])]
            assert birth["generation"] <= number
            assert (row["parent"] or None) == (None if birth["parent"] is None else str(birth["parent"]))
            known = float(row["fitness"]) if row["fitness"] else -math.inf
            assert known == value or abs(known - value) < 1e-3, (row, value)
            begun = 0 if number == 0 else before.get(birth["id"], before.get(birth["parent"], max(before.values())))
            total += int(row["env_steps"]) - begun
        if number:
            late = [b["id"] for b in births if b["generation"] == number]
            assert set(present) <= set(before) | set(late), "who trains was there before, or was born"
            gone |= set(before) - set(present)
        before = {int(row["id"]): int(row["env_steps"]) for row in members}
    for birth in births:  # a healed member may give its place to another's child before it ever trains
        if birth["kind"] != "healed" and birth["generation"] < len(generations):
            assert str(birth["id"]) in {row["id"] for row in generations[birth["generation"]]}, birth
    assert total == run.result["env_steps_population"]
    for agent in run.population:
        assert agent.index in born
        assert all(bool(p.isfinite().all()) for p in agent.policy_module().parameters())
    last = {int(row["id"]) for row in generations[-1]}
    young = {birth["id"] for birth in births if birth["generation"] == len(generations)}
    assert {agent.index for agent in run.population} <= last | young
    assert [birth["id"] for birth in births] == [birth.id for birth in run.lineage]
    assert run.best is not None
    assert run.best.index == run.result["best_member"]
    in_best = {int(row["id"]) for row in generations[run.result["best_generation"]]}
    assert run.best.index in in_best
