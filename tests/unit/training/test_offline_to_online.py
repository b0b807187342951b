"""From offline to online: `train_off_policy` goes on with the agents and the memory that `train_offline` leaves."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from agilerl.algorithms import BC, CQL, CQN, IQL, TD3BC
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.errors import AlgorithmError
from agilerl.training.train_off_policy import train_off_policy
from agilerl.training.train_offline import train_offline
from agilerl.utils.utils import make_vect_envs

NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}
ROWS, OFFLINE, ONLINE, LANES, MEMBERS = 60, 6, 16, 2, 2
OPTIONS: dict[str, dict[str, Any]] = {"CQL": {"num_samples": 2}, "TD3BC": {"normalize_observations": True}}


def learned_offline(cls: Any) -> tuple[Any, str, list[Any], ReplayBuffer]:
    """(environment, its id, agents after `OFFLINE` updates, the memory that holds the data)."""
    name = "CartPole-v1" if cls is CQN else "Pendulum-v1"
    env = make_vect_envs(name, num_envs=LANES)
    space, rng = env.single_action_space, np.random.default_rng(0)
    width = env.single_observation_space.shape[0]
    is_box = isinstance(space, gym.spaces.Box)
    data = {
        "observations": rng.normal(size=(ROWS, width)).astype(np.float32),
        "next_observations": rng.normal(size=(ROWS, width)).astype(np.float32),
        "actions": rng.uniform(-2, 2, (ROWS, 1)) if is_box else rng.integers(2, size=ROWS),
        "rewards": rng.normal(size=ROWS),
        "terminals": np.arange(ROWS) % 10 == 9,
    }
    own = {"batch_size": 8, "learn_step": 1, **OPTIONS.get(cls.__name__, {})}
    pop = cls.population(MEMBERS, env.single_observation_space, space, seed=1, net_config=NET, **own)
    memory = ReplayBuffer(1_000)
    train_offline(None, name, data, pop=pop, memory=memory, max_steps=OFFLINE, evo_steps=OFFLINE, held_out=0.5,
                  fqe_updates=1, verbose=False, seed=2)  # fmt: skip
    return env, name, pop, memory


def go_on(env: Any, name: str, pop: list[Any], memory: ReplayBuffer, **more: Any) -> list[Any]:
    trained, _ = train_off_policy(
        env, name, pop=pop, memory=memory, max_steps=OFFLINE + ONLINE, evo_steps=ONLINE, eval_steps=2, verbose=False,
        seed=3, **more,
    )  # fmt: skip
    return trained


def tensors(agents: list[Any]) -> list[torch.Tensor]:
    """Every weight, of targets too, and every moment and step count of every optimiser."""
    found = []
    for agent in agents:
        for name in sorted(agent.registry.all_registered()):
            found += [x.detach().clone() for x in getattr(agent, name).state_dict().values()]
        for config in agent.registry.optimizers:
            for state in getattr(agent, config.name).optimizer.state.values():
                found += [torch.as_tensor(value).clone() for value in state.values()]
    return found


def updates_of(agent: Any) -> float:
    """How many steps the optimiser of its critics, or of its only network, has made."""
    name = "critic_1_optimizer" if hasattr(agent, "critic_1_optimizer") else "optimizer"
    state = getattr(agent, name).optimizer.state
    return float(next(iter(state.values()))["step"])


@pytest.mark.parametrize("cls", [CQN, CQL, IQL, TD3BC])
def test_weights_moments_rows_and_steps_are_taken_over_and_learning_goes_on(cls: Any) -> None:
    env, name, pop, memory = learned_offline(cls)
    kept, learned = len(memory), tensors(pop)
    rows = memory.gather(np.arange(kept))
    assert kept == ROWS // 2
    waiting = go_on(env, name, [agent.clone() for agent in pop], memory, learning_delay=10**6)
    assert all(torch.equal(a, b) for a, b in zip(learned, tensors(waiting), strict=True))
    assert [agent.steps[-1] for agent in waiting] == [OFFLINE + ONLINE] * MEMBERS
    assert len(memory) == kept + MEMBERS * ONLINE
    again = memory.gather(np.arange(kept))
    assert all(torch.equal(rows[key], again[key]) for key in rows)

    assert [updates_of(agent) for agent in pop] == [OFFLINE] * MEMBERS
    trained = go_on(env, name, pop, memory)
    assert [updates_of(agent) for agent in trained] == [OFFLINE + ONLINE] * MEMBERS
    assert not all(torch.equal(a, b) for a, b in zip(learned, tensors(trained), strict=True))
    env.close()


def test_who_imitates_data_has_nothing_to_learn_from_itself() -> None:
    env, name, pop, memory = learned_offline(BC)
    with pytest.raises(AlgorithmError, match=r"BC learns from a data set, not from replay\. fix: train_offline"):
        go_on(env, name, pop, memory)
    env.close()
