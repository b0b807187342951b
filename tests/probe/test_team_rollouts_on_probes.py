"""IPPO and MAPPO on the probe environments of teams: values and actions are asserted against the stated answers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from agilerl.algorithms.ippo import IPPO
from agilerl.algorithms.mappo import MAPPO
from agilerl.envs.probe_teams import TEAM_PROBES, JointPolicyTeam, ObsDependentTeam, PolicyTeam, TruncatedTeam
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl.vector import SyncPettingZooVecEnv

NET: dict[str, Any] = {
    "encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 16,
}  # fmt: skip
GAMMA = 0.5
FAST = [
    (IPPO, partial(TruncatedTeam, limit=2)), (MAPPO, partial(TruncatedTeam, limit=2)), (IPPO, PolicyTeam),
    (MAPPO, JointPolicyTeam), (MAPPO, ObsDependentTeam),
]  # fmt: skip


def trained(cls: Any, make: Any, steps: int, net: dict[str, Any] = NET) -> Any:
    env = SyncPettingZooVecEnv([make] * 8)
    pop = cls.population(
        1, env.team.observation_spaces, env.team.action_spaces, seed=2, net_config=net, lr=1e-2, batch_size=64,
        learn_step=128, gamma=GAMMA, ent_coef=0.0, update_epochs=8, num_envs=8,
    )  # fmt: skip
    pop, _ = train_multi_agent_on_policy(
        env, "probe", pop=pop, max_steps=steps, evo_steps=steps, eval_steps=8, seed=3, verbose=False
    )
    return pop[0]


def check(team: Any, make: Any) -> None:
    env = make()
    values, best = env.expected_value(GAMMA), env.best_actions()
    team.set_training_mode(False)
    for number in range(len(env.signs)):
        action, _, _, value = team.get_action(env.show(number))
        for agent in env.possible_agents:
            assert value[agent][0] == pytest.approx(values[agent][number], abs=0.25), (agent, number)
            if best is not None:
                assert np.ravel(action[agent])[0] == best[agent][number], (agent, number)


@pytest.mark.parametrize(("cls", "make"), FAST, ids=str)
def test_values_and_actions_are_the_stated_ones(cls: Any, make: Any) -> None:
    check(trained(cls, make, 2048), make)


@pytest.mark.slow
@pytest.mark.parametrize("make", [*TEAM_PROBES, TruncatedTeam], ids=str)
def test_every_probe_of_choices_as_dict_observations(make: Any) -> None:
    one = partial(make, form="dict")
    check(trained(MAPPO, one, 4096, {"latent_dim": 16, "head_config": {"hidden_size": [16]}}), one)
