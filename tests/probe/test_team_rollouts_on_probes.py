"""IPPO and MAPPO on the probe environments of teams: values and actions are asserted against the stated answers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from agilerl.algorithms.ippo import IPPO
from agilerl.algorithms.mappo import MAPPO
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl.vector import SyncPettingZooVecEnv
from tests.probe.environments import (
    TEAM_PROBES,
    JointPolicyTeam,
    MemoryTeam,
    ObsDependentTeam,
    PolicyTeam,
    TruncatedTeam,
)

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


# --- memory -----------------------------------------------------------------------------------------------------------

MEMORY = {"encoder_config": {"hidden_state_size": 8}, "head_config": {"hidden_size": [16]}, "latent_dim": 8}


def remembering(cls: Any, recurrent: bool) -> tuple[Any, float]:
    """(a team trained where signs are to be remembered, mean return of its greedy policies)."""
    env = SyncPettingZooVecEnv([MemoryTeam] * 16)
    pop = cls.population(
        1, env.team.observation_spaces, env.team.action_spaces, seed=2, net_config=MEMORY if recurrent else NET,
        recurrent=recurrent, lr=1e-2, batch_size=32 if recurrent else 96, learn_step=192, gamma=GAMMA, ent_coef=0.0,
        update_epochs=6, num_envs=16,
    )  # fmt: skip
    pop, _ = train_multi_agent_on_policy(
        env, "probe", pop=pop, max_steps=4096, evo_steps=4096, eval_steps=3, seed=3, verbose=False
    )
    return pop[0], pop[0].evaluate(32, seed=5, env=SyncPettingZooVecEnv([MemoryTeam] * 4)).mean


@pytest.mark.parametrize("cls", [IPPO, pytest.param(MAPPO, marks=pytest.mark.slow)])
def test_a_team_with_a_memory_acts_on_what_it_saw_at_first(cls: Any) -> None:
    team, mean = remembering(cls, True)
    assert mean == 2.0, "both agents, in every episode"
    env, team.training = MemoryTeam(), False
    # MAPPO's value has no memory: it cannot tell the second step from the third, whose values are gamma and 1.
    worth = [GAMMA**2, GAMMA, 1.0] if cls is IPPO else [GAMMA**2, (GAMMA + 1) / 2, (GAMMA + 1) / 2]
    for start in range(env.num_starts):
        hidden = None
        for time in range(3):
            number = start + env.num_starts * time
            action, _, _, value, hidden = team.get_action(env.show(number), hidden_state=hidden)
            for agent in env.possible_agents:
                assert value[agent][0] == pytest.approx(worth[time], abs=0.1), (agent, number)
        assert all(action[a][0] == best[number] for a, best in env.best_actions().items())


@pytest.mark.parametrize("cls", [IPPO, pytest.param(MAPPO, marks=pytest.mark.slow)])
def test_a_team_without_a_memory_is_right_in_half_of_the_episodes(cls: Any) -> None:
    team, mean = remembering(cls, False)
    assert mean < 1.5
    env = MemoryTeam()
    chosen = [team.get_action(env.show(2 * env.num_starts + k), training=False)[0] for k in range(env.num_starts)]
    assert len({tuple(int(action[a][0]) for a in team.agent_ids) for action in chosen}) == 1, "whatever the signs were"
