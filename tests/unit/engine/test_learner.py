"""How a population is divided among engines, and the learner that an agent alone keeps."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from agilerl.algorithms.dqn import DQN
from agilerl.engine.choose import Reason, bind, choose, no_engine_reason
from agilerl.engine.learner import Learner, learner_of
from agilerl.engine.parts import GROUP_WEIGHTS, MemberBinding, PartKind, PartName, by_size, parts_of
from agilerl.engine.protocol import TransitionBatch
from agilerl.engine.rows.kernels import TORCH
from agilerl.errors import ConfigError
from agilerl.networks.q_networks import QNetwork

OBS, ACTIONS = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)
NET: dict[str, Any] = {"latent_dim": 8, "encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}}


def agent(cls: type[DQN] = DQN, index: int = 0) -> DQN:
    return cls(OBS, ACTIONS, index=index, net_config=NET, seed=index)


def transitions(seed: int = 0, rows: int = 6) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    obs, next_obs = (rng.uniform(-1, 1, (rows, 3)).astype(np.float32) for _ in range(2))
    return obs, rng.integers(2, size=rows), rng.normal(size=rows), next_obs, np.zeros(rows)


class CustomLearn(DQN):
    def learn(self, experiences: Any) -> float:
        return float(self.learn_batch(self.make_batch(experiences)).loss)


def test_a_population_is_fused_only_if_every_member_stacks() -> None:
    one, other, own = agent(), agent(index=1), agent(CustomLearn, 2)
    hooked = agent(index=3)
    hooked.actor.register_forward_hook(lambda *_: None)
    assert isinstance(bind(one), MemberBinding)
    assert bind(hooked) is Reason.NOT_DENSE
    assert no_engine_reason(own) is Reason.CUSTOM_LEARN
    assert [choose(pop).name for pop in ([one, other], [one, hooked], [one, own])] == ["fused", "sequential", "agents"]
    assert choose([one, hooked]).reason == (
        "agent 3 does not stack: its network actor (EvolvableMLP) is not a plain stack of dense layers, so members "
        "learn one after another, which is slower"
    )
    slow = agent(index=4)
    slow.optimizer.optimizer = torch.optim.Rprop(slow.actor.parameters(), lr=1e-3)
    assert choose([one, slow]).reason == (
        "agent 4 does not stack: its optimiser optimizer is Rprop, which has no rule for all members at once, so "
        "members learn one after another, which is slower"
    )
    assert choose([one], "sequential").reason == "asked for"
    with pytest.raises(ConfigError, match="agent 3 does not stack"):
        choose([one, hooked], "fused")


def test_a_choice_holds_the_agents_that_it_was_made_for() -> None:
    pop = [agent(), agent(index=1)]
    with pytest.raises(ValueError, match="choice is for 2 agents; got 1"):
        Learner(pop[:1], choose(pop))
    with pytest.raises(ValueError, match="agent 1 has new optimisers"):
        Learner(pop[::-1], choose(pop))
    made = choose(pop)
    pop[0].reinit_optimizers()
    with pytest.raises(ValueError, match="agent 0 has new optimisers"):
        Learner(pop, made)


def test_parts_say_their_kind() -> None:
    noisy = QNetwork(OBS, ACTIONS, head_config={"hidden_size": [8], "noisy": True})
    recurrent = QNetwork(OBS, ACTIONS, recurrent=True, encoder_config={"hidden_state_size": 8, "num_layers": 2})
    parts = parts_of(recurrent)
    assert parts is not None
    assert {name for name, part in parts.items() if part.kind is PartKind.CELL} == {"hh_0", "hh_1"}
    assert [part.kind for part in (parts_of(noisy) or {}).values()] == [PartKind.NOISY]
    assert {p.name for p in bind(agent()).parts} == {PartName("actor")}  # type: ignore[union-attr]


def test_an_agent_alone_keeps_its_learner_until_something_else_moves_it() -> None:
    dqn = agent()
    dqn.learn(transitions())
    kept = learner_of(dqn)
    dqn.learn(transitions(1))
    assert learner_of(dqn) is kept
    assert kept.name == "fused"
    steps = {float(state["step"]) for state in dqn.optimizer.optimizer.state.values()}
    assert steps == {2.0}, "torch's own counters follow"
    dqn.learn_batch(dqn.make_batch(transitions(2)), plain=True)
    assert learner_of(dqn) is not kept, "torch's optimiser made a step of its own"
    assert learner_of(dqn, plain=True).name == "sequential"


def test_what_an_agent_keeps_does_not_keep_the_agent() -> None:
    dqn = agent()
    dqn.learn(transitions())
    dqn.learn_batch(dqn.make_batch(transitions()), plain=True)
    for twin in (dqn.clone(), copy.deepcopy(dqn), pickle.loads(pickle.dumps(dqn))):
        assert "_learner" not in vars(twin)
    gone = [weakref.ref(dqn), weakref.ref(learner_of(dqn).groups[0].engine)]
    gc.disable()
    try:
        del dqn, twin
        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()


def test_kernels_are_those_that_were_handed_in() -> None:
    calls: list[str] = []

    def counted(name: str) -> Any:
        def run(*args: Any) -> Any:
            calls.append(name)
            return getattr(TORCH, name)(*args)

        return run

    own = replace(TORCH, name="counted", **{name: counted(name) for name in ("forward", "backward", "step", "track")})
    pop = [agent(), agent(index=1)]
    learner = Learner(pop, choose(pop), kernels=own)
    batches = [a.make_batch(transitions(i)) for i, a in enumerate(pop)]
    one, other = (b.map(lambda x: x) for b in batches)
    joined = replace(
        one, **{k: torch.stack((getattr(one, k), getattr(other, k)))
                for k in ("obs", "action", "reward", "next_obs", "done", "weight")},
    )  # fmt: skip
    learner.learn(0, joined)
    learner.release()
    assert learner.kernels.name == "counted"
    assert calls == ["forward", "forward", "backward", "step", "track"]
    alone = agent(index=1)
    alone.learn_batch(batches[1])
    for p, q in zip(pop[1].actor.parameters(), alone.actor.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def wide(units: int, index: int) -> DQN:
    net = {
        "latent_dim": 8,
        "encoder_config": {"hidden_size": [units], "max_mlp_nodes": 20_000},
        "head_config": NET["head_config"],
    }
    return DQN(OBS, ACTIONS, index, net_config=net, seed=index)


def test_members_are_cut_into_groups_where_padding_costs_more_than_a_group() -> None:
    """Of u units the layers 3 -> u -> 8 have 11·u weights, the rest 80: a narrow member beside one of v units is padded
    by 11·(v - u). Two groups cost `GROUP_WEIGHTS` more than one.
    """
    just, more = GROUP_WEIGHTS // 11, GROUP_WEIGHTS // 11 + 1

    def groups(*units: int) -> list[list[int]]:
        return by_size(
            [bound for agent in map(wide, units, range(len(units))) if isinstance(bound := bind(agent), MemberBinding)]
        )

    assert groups(8, 8, 8) == [[0, 1, 2]]
    assert groups(8, 8 + just) == [[0, 1]]
    assert groups(8, 8 + more) == [[0], [1]]
    assert groups(8 + more, 8, 8, 8 + more) == [[0, 3], [1, 2]]
    assert groups(8, 8 + just // 2 + 1, 8) == [[0, 2], [1]], "two narrow members waste twice as much"
    assert groups(8, 8 + more, 8 + 2 * more) == [[0], [1], [2]]


def test_groups_by_size_learn_what_one_group_learns() -> None:
    pops = [[wide(units, i).clone() for i, units in enumerate((8, 1400, 8))] for _ in range(2)]
    for agent in (one for pop in pops for one in pop):
        for name in agent.registry.all_registered():
            getattr(agent, name).double()
    cut, alone = Learner(pops[0], choose(pops[0])), [Learner([one], choose([one])) for one in pops[1]]
    assert [group.members for group in cut.groups] == [[0, 2], [1]]
    rng = np.random.default_rng(0)
    for _ in range(5):
        obs, next_obs = (torch.from_numpy(rng.uniform(-1, 1, (3, 6, 3))) for _ in range(2))
        reward, weight = torch.from_numpy(rng.normal(size=(3, 6))), torch.full((3, 6), 1 / 6, dtype=torch.float64)
        action = torch.from_numpy(rng.integers(2, size=(3, 6)))
        batch = TransitionBatch(obs, action, reward, next_obs, torch.zeros(3, 6, dtype=torch.float64), weight)
        for number, group in enumerate(cut.groups):
            cut.learn(number, batch.map(lambda x, rows=group.members: x[rows]))
        for member, learner in enumerate(alone):
            learner.learn(0, batch.map(lambda x, m=member: x[[m]]))
    for learner in (cut, *alone):
        learner.release()
    for one, other in zip(*pops, strict=True):
        for p, q in zip(one.actor.parameters(), other.actor.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)
