"""Run by two processes: each check writes what its rank has seen, and `test_two_ranks` compares them.

Usage: two_ranks.py FOLDER
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms import DQN, PPO, TD3
from agilerl.algorithms.core import EvolvableAlgorithm
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.engine.choose import choose
from agilerl.engine.learner import Group, Learner
from agilerl.engine.protocol import TransitionBatch
from agilerl.engine.rollouts import learn_rollout, make_rollout
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.ranks import ONE, ProcessRanks, Ranks, joined
from agilerl.training import loop as training_loop
from agilerl.training.distributed import digest
from agilerl.training.train_off_policy import train_off_policy
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import make_vect_envs

OBS = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
CHOICE = gym.spaces.Discrete(2)
BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float64)
NET = {
    "encoder_config": {"hidden_size": [8], "activation": "Tanh"},
    "head_config": {"hidden_size": [8]},
    "latent_dim": 6,
}
MEMBERS, ROWS, TARGET_KL = 2, 12, 0.03
STATISTICS = "observation_statistics"


class Tagged(gym.Env[np.ndarray, Any]):
    """Eight steps of noise; observations begin with the rank that made them, and so does each step's reward."""

    def __init__(self, rank: int, box: bool = False) -> None:
        self.observation_space = gym.spaces.Box(-10.0, 10.0, (3,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32) if box else CHOICE
        self.rank, self.steps = rank, 0

    def _seen(self) -> np.ndarray:
        return np.array([self.rank, *self.np_random.uniform(-1, 1, 2)], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._seen(), float(self.rank), self.steps == 8, False, {}


# -- gradients --------------------------------------------------------------------------------------------------------


def made(kind: Any, space: gym.Space, **more: Any) -> list[Any]:
    agents = [kind(OBS, space, index=i, net_config=NET, seed=i, **more) for i in range(MEMBERS)]
    for agent in agents:
        for name in agent.registry.all_registered():
            getattr(agent, name).double()
    return agents


def transition_batches(space: gym.Space, noise: bool) -> Iterator[TransitionBatch]:
    """Five batches [N, B, ...] of weight 1/B; the same on every rank."""
    draw = torch.Generator().manual_seed(7)
    for number in range(1, 6):
        new = lambda *shape: torch.randn(*shape, generator=draw, dtype=torch.float64)  # noqa: E731
        shape = (MEMBERS, ROWS)
        action = new(*shape, 2).tanh() if isinstance(space, gym.spaces.Box) else new(*shape).gt(0).long()
        weight = torch.full(shape, 1 / ROWS, dtype=torch.float64)
        end = (torch.rand(*shape, generator=draw) < 0.2).double()
        more = {"smoothing": new(*shape, 2)} if noise else {}
        yield TransitionBatch(
            new(*shape, 3), action, new(*shape), new(*shape, 3), end, weight, noise=more, number=number
        )


def learn_transitions(agents: list[Any], how: str, space: gym.Space, noise: bool, ranks: Ranks) -> list[Tensor]:
    learner = Learner(agents, choose(agents, how), ranks=ranks)
    own = slice(ranks.rank * ROWS // ranks.size, (ranks.rank + 1) * ROWS // ranks.size)
    for batch in transition_batches(space, noise):
        part = replace(batch.map(lambda x: x[:, own]), weight=batch.weight[:, own] * ranks.size)
        for number, group in enumerate(learner.groups):
            learner.learn(number, part.map(lambda x, rows=group.members: x[rows]))
    learner.release()
    return weights_of(agents)


def learn_rollouts(agents: list[Any], how: str, ranks: Ranks) -> tuple[list[Tensor], list[int]]:
    """Two rollouts of 6 steps in 4 lanes for each member, of which each rank has its half; rows that are no
    transitions stand in one half alone. (weights, epochs that each member began)."""
    learner, rng, steps, lanes = Learner(agents, choose(agents, how), ranks=ranks), np.random.default_rng(3), 6, 4
    like = next(agents[0].actor.parameters())
    begun = []
    for _ in range(2):
        shape = (steps, MEMBERS, lanes)
        obs, last = rng.standard_normal((*shape, 3)), rng.standard_normal((MEMBERS, lanes, 3))
        action, reward = rng.integers(0, 2, shape), rng.standard_normal(shape)
        end, valid = rng.random(shape) < 0.2, np.ones(shape, bool)
        valid[2, :, 0] = valid[4, 1, 1] = False
        log_prob = np.log(rng.uniform(0.3, 0.7, shape))
        for number, group in enumerate(learner.groups):
            rows, members = group.members, [agents[i] for i in group.members]
            flat = partial(half, rows=rows, ranks=ranks)
            buffer = members[0].make_buffer(steps, len(rows) * lanes // ranks.size)
            for t in range(steps):
                step = (obs[t], action[t], reward[t], end[t], np.zeros_like(end[t]), log_prob[t])
                buffer.add(*map(flat, step), final_obs=flat(obs[t]), valid=flat(valid[t]))
            buffer.last_obs = flat(last)
            rollout = make_rollout(learner, number, members, buffer, like)
            rngs = [np.random.default_rng(i) for i in rows]
            reports = learn_rollout(learner, number, members, rollout, rngs)
            begun += [report.epochs for report in reports]
    learner.release()
    return weights_of(agents), begun


def half(x: np.ndarray, rows: list[int], ranks: Ranks) -> np.ndarray:
    """This rank's part [R·E, ...] of the lanes of some members, of [N, E, ...]."""
    lanes = x.shape[1]
    own = x[rows][:, ranks.rank * lanes // ranks.size : (ranks.rank + 1) * lanes // ranks.size]
    return np.ascontiguousarray(own).reshape(-1, *x.shape[2:])


def weights_of(agents: Sequence[Any]) -> list[Tensor]:
    names = agents[0].registry.all_registered()
    return [p.detach().clone() for agent in agents for name in names for p in getattr(agent, name).parameters()]


def gradients(ranks: Ranks) -> dict[str, Any]:
    """Two ranks with half of every batch, and this process alone with all of it."""
    found: dict[str, Any] = {}
    for how in ("fused", "sequential"):
        for kind, space, noise in ((DQN, CHOICE, False), (TD3, BOX, True)):
            each = [learn_transitions(made(kind, space), how, space, noise, who) for who in (ranks, ONE)]
            found[f"{kind.__name__} {how}"] = difference(*each)
        (shared, epochs), (alone, expected) = (learn_rollouts(learners(), how, who) for who in (ranks, ONE))
        found[f"PPO {how}"] = difference(shared, alone)
        found[f"PPO {how} epochs"] = [epochs, expected]
    before = weights_of(made(DQN, CHOICE))
    found["moved"] = difference(before, learn_transitions(made(DQN, CHOICE), "fused", CHOICE, False, ONE))
    return found


def learners() -> list[PPO]:
    """Members that learn from whole rollouts in up to six epochs; the second one stops early."""
    agents = made(PPO, CHOICE, lr=3e-3, batch_size=1000, update_epochs=6, learn_step=24, max_grad_norm=0.5)
    agents[1].target_kl = TARGET_KL
    return agents


def difference(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))


# -- runs -------------------------------------------------------------------------------------------------------------


class Run:
    """What a rank sees of a run: a digest of every generation, kinds of births, tags of the rows learned from."""

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self.digests: list[str] = []
        self.tags: set[float] = set()
        self.minibatches = 0

    def __call__(self, algo: str, *, tagged: bool = True, stop_after: int | None = None, **more: Any) -> dict[str, Any]:
        rank = self.accelerator.process_index
        box = algo == "TD3"
        env = make_vect_envs(make_env=lambda: Tagged(rank, box), num_envs=2, should_async_vector=False)
        torch.manual_seed(rank)  # ranks begin with other weights, and take over those of rank 0
        agents = population(algo, env, more.pop("hp", {}))
        evolution = {
            "tournament": TournamentSelection(2, True, len(agents), 1, seed=1),
            "mutation": more.pop("mutation", Mutations(0.1, 0.6, 0.3, 0.2, 0.0, 0.1, rand_seed=4)),
        }
        settings: dict[str, Any] = {"max_steps": 96, "evo_steps": 32, "seed": 5, "verbose": False, **evolution, **more}
        if stop_after is not None:
            settings["callbacks"] = [lambda record: record.generation + 1 < stop_after]
        train: Callable[..., Any] = train_on_policy
        if algo != "PPO":
            train, settings["memory"] = train_off_policy, ReplayBuffer(max_size=200)
        self.digests, self.tags, self.minibatches = [], set(), 0
        agents, history = train(env, "Tagged", pop=agents, accelerator=self.accelerator, **settings)
        return {
            "digests": self.digests,
            "history": history,
            "steps": [agent.steps[-1] for agent in agents],
            "networks": [str(agent.policy_module().describe()) for agent in agents],
            "mut": [str(agent.mut) for agent in agents],
            "tags": sorted(self.tags),
            "minibatches": self.minibatches,
            "statistics": {name: np.asarray(x).tolist() for name, x in getattr(agents[0], STATISTICS, {}).items()},
        }

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Digests and tags are noted inside."""
        check, learn, learn_each = training_loop.check_alike, Learner.learn, Group.learn_each

        def noted(population: Sequence[Any], ranks: Ranks, generation: int) -> None:
            self.digests.append(digest(population))
            check(population, ranks, generation)

        def tagged(learner: Learner, group: int, batch: Any, live: Any = None) -> Any:
            obs = torch.as_tensor(batch.obs)
            self.minibatches += 1
            self.tags |= set(obs[..., 0].flatten().tolist())
            return learn(learner, group, batch, live)

        def tagged_each(group: Group, batches: Any, live: Any = None) -> Any:
            self.minibatches += batches.count
            self.tags |= set(torch.as_tensor(batches.fields["obs"])[..., 0].flatten().tolist())
            return learn_each(group, batches, live)

        training_loop.check_alike, Learner.learn = noted, tagged  # type: ignore[assignment,method-assign]
        Group.learn_each = tagged_each  # type: ignore[method-assign]
        try:
            yield
        finally:
            training_loop.check_alike, Learner.learn = check, learn  # type: ignore[method-assign]
            Group.learn_each = learn_each  # type: ignore[method-assign]


def population(algo: str, env: Any, hp: dict[str, Any]) -> list[Any]:
    spaces = env.single_observation_space, env.single_action_space
    known: dict[str, Any] = {
        "DQN": {"batch_size": 8, "learn_step": 4},
        "TD3": {"batch_size": 8, "learn_step": 4},
        "PPO": {"batch_size": 8, "learn_step": 16, "update_epochs": 2},
    }[algo]
    kind: Any = {"DQN": DQN, "PPO": PPO, "TD3": TD3}[algo]
    return [kind(*spaces, index=i, net_config=NET, **{**known, **hp}) for i in range(3)]


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any, when: bool) -> Iterator[None]:
    """`owner.name` is `value` inside, on the ranks where `when` holds."""
    before = getattr(owner, name)
    if when:
        setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def error_of(call: Callable[[], Any]) -> dict[str, Any]:
    start = time.monotonic()
    try:
        call()
    except Exception as error:  # whatever it is, the test says what it must be
        return {"kind": type(error).__name__, "said": str(error), "seconds": time.monotonic() - start}
    return {"kind": "none"}


def decisions(run: Run) -> dict[str, Any]:
    """What one rank alone sees; the other must do the same about it."""
    rank = run.accelerator.process_index
    learn, found = Learner.learn, {}

    def divergent(learner: Learner, group: int, batch: Any, live: Any = None) -> Any:
        result = learn(learner, group, batch, live)
        return replace(result, kl=result.kl + 100)

    learn_each = Group.learn_each

    def broken(group: Group, batches: Any, live: Any = None) -> Any:
        results = learn_each(group, batches, live)
        results[0].loss[0] = float("nan")
        return results

    hp = {"target_kl": 1.0, "update_epochs": 5}
    no_mutation = Mutations(1, 0, 0, 0, 0, 0, rand_seed=4)
    with replaced(Learner, "learn", divergent, rank == 1):
        found["kl"] = run("PPO", hp=hp, mutation=no_mutation, max_steps=64)
    with replaced(Group, "learn_each", broken, rank == 1):
        found["loss"] = run("DQN", mutation=no_mutation, max_steps=64)
    lost = lambda *args: np.full((3, 2, 2), np.nan, np.float32)  # noqa: E731
    with replaced(Learner, "explore", lost, rank == 1):
        found["all actions"] = error_of(lambda: run("TD3"))
    fewer = lambda memory: max(0, memory._size - 6)  # noqa: E731  # as where environments were replaced
    with replaced(ReplayBuffer, "__len__", fewer, rank == 1):
        found["fewer rows"] = run("DQN", max_steps=32)["minibatches"]
    found["as many rows"] = run("DQN", max_steps=32)["minibatches"]
    # An episode of rank 0 returns 0, one of rank 1 returns 8: their mean is 4.
    found["target of one rank"] = run("DQN", target=7.0, max_steps=64)["history"]
    found["target of both"] = run("DQN", target=4.0)["history"]
    found["callback"] = run("DQN", stop_after=2)["history"]
    found["no kl"] = run("PPO", hp={**hp, "target_kl": None}, mutation=no_mutation, max_steps=64)
    return found


def saved(run: Run, folder: Path) -> dict[str, Any]:
    """Runs that stop and go on."""
    rank, found = run.accelerator.process_index, {}
    found["whole"] = run("DQN", resume=folder / "whole")["digests"]
    found["first half"] = run("DQN", resume=folder / "halves", stop_after=2)["digests"]
    found["second half"] = run("DQN", resume=folder / "halves")["digests"]
    scaled = {"hp": {"normalize_observations": True}, "resume": folder / "rollouts", "max_steps": 64}
    found["rollouts"] = run("PPO", stop_after=1, **scaled)["digests"] + run("PPO", **scaled)["digests"]
    found["refused"] = error_of(lambda: run("DQN", resume=folder / "halves", seed=6))
    run("DQN", resume=folder / "uneven", stop_after=2)
    if rank == 1:  # as if it had been killed before it could save what rank 0 has saved
        newest = max((folder / "uneven" / "rank-1" / "checkpoints").glob("gen-*"))
        newest.rename(folder / "uneven" / newest.name)
    run.accelerator.wait_for_everyone()
    found["uneven"] = run("DQN", resume=folder / "uneven")["digests"]
    return found


def failures(run: Run) -> dict[str, Any]:
    """One rank raises; the other must not wait for it."""
    rank, found = run.accelerator.process_index, {}

    def broken(*args: Any) -> Any:
        raise ValueError("of this rank alone")

    with replaced(Group, "learn_each", broken, rank == 1):
        found["while learning"] = error_of(lambda: run("DQN"))
    with replaced(EvolvableAlgorithm, "remember_observations", broken, rank == 0):
        found["rank 0"] = error_of(lambda: run("PPO"))
    found["other arguments"] = error_of(lambda: run("DQN", max_steps=96 + 32 * rank))
    mean = ProcessRanks.mean_

    def strays(ranks: Any, tensors: Any) -> None:
        mean(ranks, tensors)
        tensors[0].add_(rank)

    with replaced(ProcessRanks, "mean_", strays, True):
        found["other weights"] = error_of(lambda: run("DQN"))
    found["afterwards"] = run("DQN")["digests"]
    return found


def main(folder: Path) -> None:
    from accelerate import Accelerator  # here, so that tests can read this file without it

    accelerator = Accelerator()
    torch.set_num_threads(1)
    run = Run(accelerator)
    with joined(accelerator) as ranks:
        found: dict[str, Any] = {"gradients": gradients(ranks)}
    with run.watched():
        found["runs"] = {algo: run(algo) for algo in ("DQN", "PPO", "TD3")}
        found["runs"]["sequential"] = run("DQN", learner="sequential")
        found["scaled"] = run("PPO", hp={"normalize_observations": True}, max_steps=64)
        found["decisions"] = decisions(run)
        found["saved"] = saved(run, folder)
        found["failures"] = failures(run)
    (folder / f"rank-{accelerator.process_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
