"""Processes that a run starts by itself change no bit, whatever of its process an environment uses."""

from __future__ import annotations

import importlib.util
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from process_kinds import KINDS, OneShot

import agilerl
from agilerl.training.manifest import workers as manifest_workers
from agilerl.workers.local import LocalWorkers
from tests.faults.faulty_runs import StopAfter

SMALL: dict[str, Any] = {
    "algorithm": "DQN",
    "environment": {"num_envs": 2},
    "training": {"evo_steps": 20, "eval_episodes": 2, "target_score": None, "learning_delay": 10},
    "network": {"latent_dim": 8},
}
# Settings of each place where environments step; `shards` changes the result, so that those runs are compared apart.
PLACES: dict[str, dict[str, Any]] = {
    "this process": {},
    "lane workers": {"num_workers": 2},
    "evaluation workers": {"workers": 2},
    "population workers": {"workers": 2, "shards": 2},
    "ray": {"workers": 2, "ray": "local"},
}


class ReadyWorkers(LocalWorkers):
    """Workers for which a run waits at its start, so that a short one gives them work."""

    jobs = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        while len(self.idle()) < self.count:
            self.poll(0.1)

    def submit(self, worker: int, job: bytes) -> None:
        ReadyWorkers.jobs += 1
        super().submit(worker, job)


def train(
    kind: str, out: Path | None, *, workers: int = 1, shards: int = 1, ray: str | None = None, **more: Any
) -> Any:
    """Train two generations of two members; one member with as many workers as lanes where a process can do no more."""
    options = dict(more)
    sinks, num_workers = options.pop("sinks", []), options.pop("num_workers", None)
    settings = {**SMALL, "environment": {**SMALL["environment"], "num_workers": num_workers}}
    members = 1 if kind == "one-shot" else 2
    return agilerl.train(
        KINDS[kind], config=settings, population=members, steps=40, seed=3, out=out, verbose=False, sinks=sinks,
        workers=workers, shards=shards, **({"ray": ray} if ray else {}),
    )  # fmt: skip


def bits(run: Any) -> Any:
    """Fitness of all generations, and the weights of the best agent."""
    return run.history, {name: tensor.tolist() for name, tensor in run.best.actor.state_dict().items()}


@pytest.fixture(scope="module")
def alone() -> Any:
    """`alone(kind, shards)`: the bits of a run in one process."""
    known: dict[Any, Any] = {}

    def of(kind: str, shards: int = 1) -> Any:
        if (kind, shards) not in known:
            known[kind, shards] = bits(train(kind, None, shards=shards))
        return known[kind, shards]

    return of


def _cells() -> list[Any]:
    fast = {("global generators", "lane workers"), ("child process", "lane workers"), ("port", "lane workers"),
            ("one-shot", "lane workers"), ("child process", "this process")}  # fmt: skip
    return [
        pytest.param(kind, place, marks=() if (kind, place) in fast else pytest.mark.thorough, id=f"{kind}, {place}")
        for kind in KINDS
        for place in PLACES
        if kind != "one-shot" or place == "lane workers"
    ]


@pytest.mark.parametrize(("kind", "place"), _cells())
def test_where_environments_step_changes_no_bit(
    kind: str, place: str, alone: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is stopped in its second generation and resumed, and an evaluation of what it has trained; and no
    global generator of this process is changed."""
    if place == "ray" and importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    monkeypatch.setattr(manifest_workers, "LocalWorkers", ReadyWorkers)
    monkeypatch.setattr(ReadyWorkers, "jobs", 0)
    monkeypatch.setattr(KINDS["open file"], "count", 1000 * os.getpid())  # other processes count from 0
    settings, before = PLACES[place], repr((np.random.get_state(), random.getstate(), torch.get_rng_state().tolist()))
    if place == "evaluation workers":
        run = train(kind, tmp_path, **settings)
    else:
        part = train(kind, tmp_path, **settings, sinks=[StopAfter(1)])
        assert part.interrupted
        run = agilerl.resume(part.path, env=KINDS[kind], verbose=False)
    assert (ReadyWorkers.jobs > 0) == (place in ("evaluation workers", "population workers"))
    assert run.result["restarts"] == 0
    if kind == "one-shot":
        assert not OneShot.made, "made in this process"
        whole = train(kind, None, **settings)
        assert bits(run) == bits(whole)
    else:
        assert bits(run) == alone(kind, settings.get("shards", 1))
    scores = [run.best.evaluate(episodes=2, seed=1).returns for _ in range(2)]
    assert len(scores[0]) == 2
    assert repr((np.random.get_state(), random.getstate(), torch.get_rng_state().tolist())) == before
    assert scores[0] == scores[1]
