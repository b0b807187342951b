"""Workers on Ray: one result for any number of them, on one node and two, with actors and nodes that die.

`run_of_shards` counts what the workers have done, so that no run passes because this process did everything.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import agilerl
from agilerl.core.checkpoint import encode_tree
from agilerl.training.manifest import workers as manifest_workers
from agilerl.workers.cluster import ClusterWorkers

ray = pytest.importorskip("ray")
pytest.importorskip("ray.cluster_utils")

SMALL = {"network.latent_dim": 8, "network.encoder_config.hidden_size": [8], "network.head_config.hidden_size": [8]}
SHORT = {
    "env": "CartPole-v1", "population": 4, "num_envs": 4, "eval_episodes": 4, "target_score": None, "preset": False,
    "confirm_episodes": 4, "out": None, "verbose": False, "seed": 3, "device": "cpu", "shards": 2, **SMALL,
    "network.encoder_config.min_mlp_nodes": 4, "network.head_config.min_mlp_nodes": 4,
    "mutation.probabilities.arch_mut": 0.6, "mutation.probabilities.no_mut": 0.1,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "n-step, prioritised": {
        **SHORT, "algo": "RainbowDQN", "steps": 600, "evo_steps": 200, "batch_size": 16, "learning_delay": 64,
        "replay_buffer.max_size": 700, "replay_buffer.n_step": 3, "replay_buffer.prioritized": True,
        "mutation.rl_hp_selection": {"lr": {"min": 1e-4, "max": 1e-2}},
    },
    "ppo": {**SHORT, "algo": "PPO", "steps": 768, "evo_steps": 256, "learn_step": 128, "normalize_rewards": True},
}  # fmt: skip


def digest(run: agilerl.Run) -> str:
    """Of every member's whole state, the fitness of all generations and the lineage."""
    total = hashlib.sha256(repr((run.history, run.lineage)).encode())
    for agent in run.population:
        total.update(encode_tree(agent.run_state()))
    return total.hexdigest()


class Patient(ClusterWorkers):
    """Actors that are all there before training starts; `at` is called when the job of that number is handed out."""

    made: list[Patient]
    at: dict[int, Callable[[Patient, int], None]]

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.jobs, self.lost, count = 0, 0, self.alive
        self.made.append(self)
        while len(self.idle()) < count:
            assert not self.poll(1.0)

    def submit(self, worker: int, job: bytes) -> None:
        super().submit(worker, job)
        self.jobs += 1
        if self.jobs in self.at:
            self.at[self.jobs](self, worker)

    def poll(self, seconds: float) -> Any:
        replies = super().poll(seconds)
        self.lost += sum(reply.kind == "lost" for reply in replies)
        return replies


@pytest.fixture
def run_of_shards(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, Patient]]:
    """case, workers, address, what happens at jobs -> digest of the run, and its workers."""

    def train(case: str, workers: int, address: str = "auto", at: Any = None, **more: Any) -> tuple[str, Patient]:
        kind = type("Kind", (Patient,), {"made": [], "at": at or {}})
        monkeypatch.setattr(manifest_workers, "ClusterWorkers", kind)
        run = agilerl.train(**{**CASES[case], **more}, workers=workers, ray=address)
        return digest(run), kind.made[0]

    return train


@pytest.fixture(scope="module")
def alone() -> Callable[[str], str]:
    """case -> digest of its run without workers."""
    known: dict[str, str] = {}

    def of(case: str) -> str:
        if case not in known:
            known[case] = digest(agilerl.train(**CASES[case]))
        return known[case]

    return of


def die(workers: Patient, worker: int) -> None:
    os.kill(workers._actors[worker].process, signal.SIGKILL)


@pytest.mark.thorough
def test_an_actor_of_a_local_ray_dies_and_the_bits_stay(run_of_shards: Any, alone: Any) -> None:
    """The run starts a Ray of its own, which asks for a token, and ends it."""
    assert not ray.is_initialized()
    handler = signal.getsignal(signal.SIGTERM)
    was, workers = run_of_shards("n-step, prioritised", 3, "local", {3: die})
    assert (was, workers.lost) == (alone("n-step, prioritised"), 1)
    assert workers.jobs > 6
    assert not ray.is_initialized()
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of two nodes, both on this machine, that this process is connected to."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    cluster.add_node(num_cpus=2)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_the_number_of_actors_makes_no_difference(
    case: str, workers: int, cluster: Any, run_of_shards: Any, alone: Any
) -> None:
    was, workers_there = run_of_shards(case, workers)
    assert (was, workers_there.lost) == (alone(case), 0)
    assert workers_there.jobs >= 3
    assert ray.is_initialized()  # the connection is not the run's


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_actors_die(case: str, cluster: Any, run_of_shards: Any, alone: Any) -> None:
    was, workers = run_of_shards(case, 3, at={1: die, 4: die})
    assert (was, workers.lost) == (alone(case), 2)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_node_dies(case: str, cluster: Any, run_of_shards: Any, alone: Any) -> None:
    node = cluster.add_node(num_cpus=2)

    def end(workers: Patient, worker: int) -> None:
        cluster.remove_node(node, allow_graceful=False)

    was, workers = run_of_shards(case, 6, at={3: end})
    assert was == alone(case)
    assert workers.lost >= 1
