"""What two ranks do: each algorithm for teams, on halves of its batches and rollouts and on the whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from halves import difference, doubled
from merged import Merged
from torch import Tensor

from agilerl.algorithms import find_algorithm
from agilerl.core.tree import map_leaves
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import TransitionBatch
from agilerl.engine.rollouts import learn_rollout
from agilerl.engine.team_rollouts import make_team_rollout
from agilerl.envs.protocol import AGENTS, LAST_ACTION, PRESENT, WAITING
from agilerl.ranks import ONE, Ranks, joined

OBS: dict[str, Any] = {
    "speaker_0": spaces.Box(-1, 1, (3,), np.float64),
    "agent_0": spaces.Box(-1, 1, (4,), np.float64),
    "agent_1": spaces.Box(-1, 1, (4,), np.float64),
    "mover_0": spaces.Box(-1, 1, (2,), np.float64),
}
ACTIONS: dict[str, Any] = {
    "speaker_0": spaces.Discrete(3, start=1),
    "agent_0": spaces.MultiDiscrete([2, 3]),
    "agent_1": spaces.MultiDiscrete([2, 3]),
    "mover_0": spaces.Box(-2, 2, (2,)),
}
AGENT_COUNT, CHOICES = len(OBS), (3, 2, 3, 2, 3)
MEMBERS, ROWS, UPDATES = 2, 12, 4
STEPS, LANES, ROLLOUTS, BATCH = 6, 4, 2, 5
NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}
MEMORY = {**NET, "encoder_config": {"hidden_state_size": 6, "num_layers": 1}}
EPOCHS = {
    "lr": 1e-2,
    "batch_size": BATCH,
    "update_epochs": 3,
    "clip_coef": 0.05,
    "max_grad_norm": 0.3,
    "target_kl": 1e9,
}


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        absent: ranks in whose rows agents are absent. waiting: whether absent agents may hold their last action.
        batch_size: of rollouts; it divides the number of samples of both ranks together.
    """

    algo: str
    options: dict[str, Any] = field(default_factory=dict)
    absent: tuple[int, ...] = (0, 1)
    waiting: bool = False
    batch_size: int = BATCH


OFF_POLICY = {
    "MADDPG": Case("MADDPG"),
    "MADDPG waiting": Case("MADDPG", waiting=True),
    "MATD3 waiting": Case("MATD3", waiting=True),
}
ON_POLICY = {
    "IPPO": Case("IPPO"),
    "IPPO all present": Case("IPPO", absent=(), batch_size=8),
    "IPPO absent on one rank": Case("IPPO", absent=(1,)),
    "IPPO recurrent": Case("IPPO", {"recurrent": True, "max_seq_len": 3}),
    "MAPPO": Case("MAPPO"),
    "MAPPO recurrent": Case("MAPPO", {"recurrent": True, "max_seq_len": 3}),
}


def teams(case: Case) -> list[Any]:
    kind, more = find_algorithm(case.algo), dict(case.options)
    if case.algo in ("IPPO", "MAPPO"):
        more = {**EPOCHS, **more, "batch_size": case.batch_size}
    net = MEMORY if case.options.get("recurrent") else NET
    return doubled([kind(OBS, ACTIONS, index=i, seed=i, net_config=net, **more) for i in range(MEMBERS)])


def weights(agents: list[Any]) -> list[Tensor]:
    names = agents[0].registry.all_registered()
    return [p.detach().clone() for agent in agents for name in names for p in getattr(agent, name).parameters()]


def observations(rng: np.random.Generator, there: np.ndarray) -> dict[str, Any]:
    """Zeros stand for an absent agent."""
    shape = there.shape[:-1]
    seen = {a: rng.uniform(-1, 1, (*shape, *OBS[a].shape)) * there[..., [k]] for k, a in enumerate(OBS)}
    return {AGENTS: seen, PRESENT: there.astype(np.int8)}


def actions(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    choices = [rng.integers(0, n, shape) for n in CHOICES]
    return np.concatenate((np.stack(choices, -1), rng.uniform(-1, 1, (*shape, 2))), -1)


def legal_choices(rng: np.random.Generator, taken: np.ndarray) -> np.ndarray:
    """Masks in which the actions taken are legal."""
    chosen = [np.eye(n, dtype=bool)[taken[..., k].astype(int)] for k, n in enumerate(CHOICES)]
    return np.concatenate(chosen, -1) | (rng.random((*taken.shape[:-1], sum(CHOICES))) < 0.5)


# --- from replay ------------------------------------------------------------------------------------------------------


def batches(case: Case, agents: list[Any]) -> Iterator[TransitionBatch]:
    """The same on every rank, with importance weights of mean 1/B."""
    rng, shape = np.random.default_rng(7), (MEMBERS, ROWS)
    for number in range(1, UPDATES + 1):
        shown = []
        for _ in range(2):
            there = rng.random((*shape, AGENT_COUNT)) < [0.8, 0.6, 0.6, 0.2]
            for rank in {0, 1} - set(case.absent):
                there[:, rank * ROWS // 2 : (rank + 1) * ROWS // 2] = True
            shown.append(observations(rng, there))
            if case.waiting:
                waits = (rng.random(there.shape) < 0.5) & ~there
                shown[-1] |= {WAITING: waits.astype(np.int8), LAST_ACTION: actions(rng, shape)}
        obs, later = (map_leaves(torch.from_numpy, x) for x in shown)
        noise = [agents[0].draw_noise(rng, (1, ROWS)) for _ in agents]
        numbers = [rng.standard_normal((*shape, AGENT_COUNT)), (rng.random((*shape, AGENT_COUNT)) < 0.2).astype(float)]
        reward, done = (torch.from_numpy(x) for x in numbers)
        taken = actions(rng, shape)
        masks = [torch.from_numpy(legal_choices(rng, taken)) for _ in range(2)]
        yield TransitionBatch(
            obs, torch.from_numpy(taken), reward, later, done,
            torch.from_numpy(rng.uniform(0.5, 1.5, shape) / ROWS), number=number, obs_mask=masks[0], next_mask=masks[1],
            noise={name: torch.from_numpy(np.concatenate([own[name] for own in noise])).double() for name in noise[0]},
        )  # fmt: skip


def replayed(case: Case, how: str, ranks: Ranks) -> list[Tensor]:
    """All weights after learning from this rank's part of every batch."""
    agents = teams(case)
    learner = Learner(agents, choose(agents, how), ranks=ranks)
    own = slice(ranks.rank * ROWS // ranks.size, (ranks.rank + 1) * ROWS // ranks.size)
    for batch in batches(case, agents):
        cut = batch.map(lambda x: x[:, own])
        part = replace(cut, weight=cut.weight * ranks.size)
        for number, group in enumerate(learner.groups):
            given = part.map(lambda x, rows=group.members: x[rows])
            learner.learn(number, replace(given, obs=group.prepare(given.obs), next_obs=group.prepare(given.next_obs)))
    learner.release()
    return weights(agents)


# --- from rollouts ----------------------------------------------------------------------------------------------------


def rollout_data(case: Case, agents: list[Any], rng: np.random.Generator) -> list[dict[str, Any]]:
    """T steps of [N, E, ...], and what followed the last one; 20 rows, or 10 windows, in which an agent decided.

    Without absent agents all 24 rows count. `mover_0` decides in few rows: some minibatches have none of its group.
    """
    shape = (STEPS, MEMBERS, LANES)
    acted = rng.random((*shape, AGENT_COUNT)) < [1, 0.5, 0.5, 0.15]
    over = np.zeros((*shape, AGENT_COUNT), bool)
    if case.options.get("recurrent"):  # ends of all agents: 3, 3, 2 and 2 windows of at most 3 steps
        over[0, :, 0] = over[[1, 2], :, 1] = over[2, :, 2] = True
    else:
        over = (rng.random((*shape, AGENT_COUNT)) < 0.2) & acted
        if case.absent:
            nobody = [(0, 0), (1, 0), (4, 1), (3, 2)] if len(case.absent) == 2 else [(0, 2), (1, 2), (4, 3), (3, 3)]
            for t, lane in nobody:
                acted[t, :, lane] = over[t, :, lane] = False
    for rank in {0, 1} - set(case.absent):
        acted[:, :, rank * LANES // 2 : (rank + 1) * LANES // 2] = True
    there = acted | (rng.random(acted.shape) < [1, 0.2, 0.2, 0.2])
    cut = over & (rng.random(over.shape) < 0.5)
    steps = []
    for t in range(STEPS + 1):
        now = min(t, STEPS - 1)
        numbers = {name: rng.standard_normal((*shape[1:], AGENT_COUNT)) for name in ("reward", "value", "final_value")}
        hidden = {
            key: rng.uniform(-0.5, 0.5, (*shape[1:], *sizes))
            for key, sizes in agents[0].hidden_state_architecture.items()
        }
        taken = actions(rng, shape[1:])
        steps.append({
            "obs": observations(rng, there[now]), "action": taken,
            "legal": legal_choices(rng, taken), "terminated": over[now] & ~cut[now], "truncated": cut[now],
            "log_prob": np.log(rng.uniform(0.2, 0.7, (*shape[1:], AGENT_COUNT))), "valid": acted[now],
            "final_obs": observations(rng, np.ones_like(there[now])), "hidden": hidden, **numbers,
        })  # fmt: skip
    return steps


def rolled(case: Case, how: str, ranks: Ranks) -> list[Tensor]:
    """All weights, divergences and scales of values after two rollouts of this rank's lanes, each in three epochs."""
    agents = teams(case)
    learner, rng = Learner(agents, choose(agents, how), ranks=ranks), np.random.default_rng(3)
    like, recurrent = next(agents[0].policy_module().parameters()), agents[0].is_recurrent
    half, lanes, divergences = LANES // 2, LANES // ranks.size, []
    own = slice(ranks.rank * lanes, (ranks.rank + 1) * lanes)
    for number in range(ROLLOUTS):
        data = rollout_data(case, agents, rng)
        for place, group in enumerate(learner.groups):
            members = [agents[i] for i in group.members]
            flat = lambda x, rows=group.members: x[rows][:, own].reshape(-1, *x.shape[2:])  # noqa: E731
            buffer = members[0].make_buffer(STEPS, len(members) * lanes, sum(CHOICES))
            *steps, last = [map_leaves(flat, step) for step in data]
            for step in steps:
                hidden = {key: np.moveaxis(x, 0, 1) for key, x in step.pop("hidden").items()}
                if not recurrent:
                    del step["value"], step["final_value"]
                buffer.add(**step, hidden=hidden or None)
            buffer.last_obs = last["obs"]
            buffer.last_value = last["value"] if recurrent else None
            rollout = make_team_rollout(learner, place, members, buffer, like)
            rngs: list[Any] = []
            for k, i in enumerate(group.members):
                if ranks.size > 1:
                    rngs.append(np.random.default_rng((10 * number + i, ranks.rank)))
                    continue
                lane = rollout.windows[k][:, 0] if recurrent else np.arange(STEPS * LANES) % LANES
                rngs.append(Merged(10 * number + i, case.batch_size, lane // half))
            reports = learn_rollout(learner, place, members, rollout, rngs)
            assert all(report.epochs == EPOCHS["update_epochs"] for report in reports)
            assert ranks.size > 1 or all(report.updates >= 4 for report in reports)
            divergences += [report.kl for report in reports]
    learner.release()
    scales = [torch.from_numpy(np.stack(agent.value_scale())) for agent in agents]
    return [*weights(agents), torch.tensor(divergences, dtype=torch.float64), *scales]


# --- both -------------------------------------------------------------------------------------------------------------


def compare(ranks: Ranks, case: Case) -> dict[str, float]:
    """The largest difference of halves and the whole, over rows and member by member, and how far the whole moved."""
    learned = rolled if case.algo in ("IPPO", "MAPPO") else replayed
    whole, before = learned(case, "fused", ONE), weights(teams(case))
    differences = {how: difference(whole, learned(case, how, ranks)) for how in ("fused", "sequential")}
    return {**differences, "moved": difference(whole[: len(before)], before)}


def main(folder: Path) -> None:
    from accelerate import Accelerator  # here, so that tests can read this file without it

    accelerator = Accelerator()
    torch.set_num_threads(1)
    with joined(accelerator) as ranks:
        results = {name: compare(ranks, case) for name, case in {**OFF_POLICY, **ON_POLICY}.items()}
    (folder / f"rank-{accelerator.process_index}.json").write_text(json.dumps(results))
