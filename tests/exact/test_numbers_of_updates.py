"""Which updates a run makes: how many at which vector step, their numbers, and who takes part in each."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from agilerl.algorithms import DQN, PPO, SAC, TD3, RainbowDQN
from agilerl.collect.off_policy import OffPolicyCollector
from agilerl.collect.updates import Schedule
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.options import OffPolicyOptions
from agilerl.engine.learner import Learner, RowsGroup
from agilerl.envs.vector import make_vect_envs

NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}


@pytest.mark.parametrize(
    ("learn_step", "num_envs", "interval", "count"),
    [(1, 1, 1, 1), (4, 1, 4, 1), (4, 2, 2, 1), (5, 2, 2, 1), (2, 8, 1, 4), (3, 8, 1, 2), (0.5, 1, 1, 2),
     *((1 / n, 1, 1, n) for n in range(2, 130)), (0.1, 3, 1, 30)],
)  # fmt: skip
def test_updates_by_steps_and_lanes(learn_step: float, num_envs: int, interval: int, count: int) -> None:
    assert Schedule.of(learn_step, num_envs) == Schedule(interval, count)


def test_members_count_their_own_updates_from_the_first_that_has_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lanes each, in one replay of four rows a step; two updates a step. The second member's batch needs 17 rows.

    Delayed updates of an algorithm depend on the number: that of the first update of a call, which both members share.
    """
    calls: list[tuple[int, int, list[bool]]] = []
    whole = RowsGroup.learn_each

    def noted(self: RowsGroup, batches: Any, live: Any = None) -> Any:
        calls.append((batches.number, batches.count, [True, True] if live is None else list(live)))
        assert [batch.number for batch in batches.each()] == [batches.number, batches.number + 1]
        weight = batches.weight.sum(-1)
        sums = [1.0 if takes_part else 0.0 for takes_part in calls[-1][2]]
        np.testing.assert_allclose(weight, [sums, sums], rtol=1e-6)
        return whole(self, batches, live)

    monkeypatch.setattr(RowsGroup, "learn_each", noted)
    env = make_vect_envs("Pendulum-v1", num_envs=2)
    spaces = env.single_observation_space, env.single_action_space
    agents = [
        TD3(*spaces, index=k, seed=k, net_config=NET, learn_step=1, batch_size=size) for k, size in enumerate((5, 17))
    ]
    source = OffPolicyCollector(env, ReplayBuffer(100), OffPolicyOptions(max_steps=12, evo_steps=12, learning_delay=3))
    source.open(agents, 0)
    steps = source.run_shard(source.plan(agents, 0, 0), 0, agents, [0, 1])
    assert list(steps) == [4] * 6
    first, second = [True, False], [False, True]
    assert calls == [
        (1, 2, first), (3, 2, first), (5, 2, first),  # at 8, 12 and 16 rows
        (1, 2, second), (7, 2, first), (3, 2, second), (9, 2, first),
    ]  # fmt: skip
    assert [agent.learn_counter for agent in agents] == [10, 4]
    env.close()


OBS, CHOICE, BOX = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (2,))


@pytest.mark.parametrize(
    ("kind", "space", "options"),
    [
        (DQN, CHOICE, {"double": True}),
        (DQN, CHOICE, {"learn_step": 3}),
        (RainbowDQN, CHOICE, {"distributional": False}),
        (RainbowDQN, CHOICE, {"double": False}),
        (TD3, BOX, {"policy_freq": 3}),
        (SAC, BOX, {"learn_temperature": False}),
        (PPO, CHOICE, {"clip_value_loss": False}),
    ],
)
def test_members_of_other_options_learn_apart(kind: Any, space: gym.Space[Any], options: dict[str, Any]) -> None:
    """An update is that of its first member, for all of its group."""
    agents = [kind(OBS, space, index=k, net_config=NET, seed=k, **(options if k == 1 else {})) for k in range(3)]
    groups = [group.members for group in Learner(agents).groups]
    assert sorted(groups) == [[0, 2], [1]]
