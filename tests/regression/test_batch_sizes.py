"""Members of one group whose batches differ in size: each learns as soon as the memory holds its own batch."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from agilerl.algorithms import DDPG, DQN, QRDQN, SAC, TD3, TQC, RainbowDQN
from agilerl.components.replay_buffer import PrioritizedReplayBuffer, ReplayBuffer
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import TransitionBatch
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs

NET = {"encoder_config": {"hidden_size": [12]}, "head_config": {"hidden_size": [12]}, "latent_dim": 8}
SIZES = (64, 16)  # the larger one leads the group
CASES: dict[str, tuple[type, str, dict[str, Any]]] = {
    "DQN": (DQN, "CartPole-v1", {}),
    "QRDQN": (QRDQN, "CartPole-v1", {"num_quantiles": 8}),
    "RainbowDQN": (RainbowDQN, "CartPole-v1", {"v_min": 0.0, "v_max": 50.0}),
    "DDPG": (DDPG, "Pendulum-v1", {"policy_freq": 2}),
    "TD3": (TD3, "Pendulum-v1", {"policy_freq": 3}),
    "SAC": (SAC, "Pendulum-v1", {}),
    "TQC": (TQC, "Pendulum-v1", {"num_quantiles": 6}),
}


def state(agents: list[Any]) -> dict[str, torch.Tensor]:
    """Every parameter, buffer and moment by name."""
    found: dict[str, torch.Tensor] = {}
    for agent in agents:
        for name in sorted(agent.registry.all_registered()):
            found |= {f"{agent.index} {name} {k}": v.clone() for k, v in getattr(agent, name).state_dict().items()}
        for entry in agent.registry.optimizers:
            states = getattr(agent, entry.name).state_dict()["state"]
            found |= {f"{agent.index} {entry.name} {i} {k}": v for i, s in states.items() for k, v in s.items()}
    return found


def population(algo: str) -> list[Any]:
    cls, name, options = CASES[algo]
    env = make_vect_envs(name, num_envs=4)
    pop = cls.population(2, env.single_observation_space, env.single_action_space, seed=3, net_config=NET,
                         learn_step=2, **options)  # fmt: skip
    for agent, size in zip(pop, SIZES, strict=True):
        agent.batch_size = size
        for network in agent.registry.all_registered():
            getattr(agent, network).double()
    return pop


def trained(algo: str, learner: str, memory: Any, **options: Any) -> tuple[list[Any], Any]:
    env = make_vect_envs(CASES[algo][1], num_envs=4)
    pop, _ = train_off_policy(
        env, CASES[algo][1], pop=population(algo), memory=memory, learner=learner, max_steps=100, evo_steps=100,
        eval_steps=5, verbose=False, seed=1, **options,
    )  # fmt: skip
    return pop, memory


@pytest.mark.parametrize("algo", CASES)
def test_a_member_does_not_wait_for_the_larger_batch_beside_it(algo: str) -> None:
    one, other = (trained(algo, how, ReplayBuffer(2_000, dtype=torch.float64))[0] for how in ("fused", "sequential"))
    counts = [agent.learn_counter for agent in one]
    assert counts == [agent.learn_counter for agent in other]
    # Two members with four lanes each write 8 rows a vector step: 16 are there at the 2nd of 25, 64 at the 8th.
    assert counts == [2 * 18, 2 * 24]
    first, second = state(one), state(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


def test_priorities_are_the_same_where_a_member_begins_before_the_other() -> None:
    made = {how: trained("DQN", how, PrioritizedReplayBuffer(2_000, dtype=torch.float64), per=True)
            for how in ("fused", "sequential")}  # fmt: skip
    rows = np.arange(200)
    one, other = (memory.weights(rows, 1.0) for _, memory in made.values())
    np.testing.assert_allclose(one, other, rtol=1e-9)
    assert len(np.unique(one)) > 20


@pytest.mark.parametrize("algo", CASES)
def test_a_member_that_takes_no_part_in_an_update_stays_as_it_is_to_the_bit(algo: str) -> None:
    agents = population(algo)
    learner = Learner(agents, choose(agents, "fused"))
    (group,) = learner.groups
    draw = torch.Generator().manual_seed(0)
    width = int(np.prod(agents[0].observation_space.shape))
    is_box = isinstance(agents[0].action_space, gym.spaces.Box)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(2, *shape, generator=draw, dtype=torch.float64)

    def batch(number: int) -> TransitionBatch:
        drawn = [a.draw_noise(np.random.default_rng(number), (1, 8)) for a in agents]
        noise = {name: torch.from_numpy(np.stack([d[name][0] for d in drawn])) for name in drawn[0]}
        action = normal(8, 1).tanh() if is_box else torch.zeros(2, 8, dtype=torch.long)
        rows = (normal(8, width), action, normal(8), normal(8, width), torch.zeros(2, 8).double())
        return TransitionBatch(*rows, weight=torch.full((2, 8), 1 / 8).double(), noise=noise, number=number)

    for number in (1, 2, 3):
        learner.learn(0, batch(number))
    before = {name: value.clone() for name, value in state(agents).items()}
    steps = [cohort.step for cohort in group.engine.cohorts]
    taken = [{name: step.clone() for name, step in own.items()} for own in steps]
    for number in (4, 5, 6):
        learner.learn(0, batch(number), [False, True])
    after = state(agents)
    assert [a.learn_counter for a in agents] == [3, 6]
    for name, value in before.items():
        if name.startswith("0 "):
            assert torch.equal(value, after[name]), name
    moved = {
        name.split()[1] for name, value in before.items() if name[0] == "1" and not torch.equal(value, after[name])
    }
    assert moved >= set(agents[1].registry.all_registered())
    for own, earlier in zip(steps, taken, strict=True):
        for name, step in own.items():
            gained = (step - earlier[name]).reshape(-1, 2)  # network by network, then member by member
            assert gained[:, 0].tolist() == [0] * len(gained)
            assert (gained[:, 1] > 0).all()
    learner.release()
