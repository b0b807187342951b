"""The answers of the probe environments for teams are what brute force finds, through lanes of teams."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from agilerl.algorithms.maddpg import MADDPG
from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
from agilerl.envs.protocol import AGENTS
from agilerl.envs.teams import TeamLanes
from agilerl.errors import ConfigError, EnvError
from agilerl.utils import probe_envs_ma
from tests.probe.environments import FIRST, HIGH, LOW, SECOND, TEAM_FORMS, TEAM_PROBES, TruncatedTeam

GAMMA = 0.9
SLOWER = ("ConstantReward", "ObsDependentReward", "DiscountedReward", "Policy", "MultiPolicy")
CASES = [*TEAM_PROBES, partial(TruncatedTeam, limit=3)]


def key(env: Any, seen: dict[str, Any]) -> int:
    """The state in which both agents see this."""
    for number in range(len(env.signs)):
        shown = env.show(number)
        if all(np.array_equal(leaf(shown[agent]), leaf(seen[agent])) for agent in shown):
            return number
    raise AssertionError(seen)


def leaf(seen: Any) -> Any:
    return seen["card"] if isinstance(seen, dict) else seen


@pytest.mark.parametrize("form", TEAM_FORMS)
@pytest.mark.parametrize("make", CASES, ids=str)
def test_joint_q_learning_finds_the_stated_values_and_policies(make: Any, form: str) -> None:
    env, draw = make(form=form), np.random.default_rng(0)
    lanes = TeamLanes([partial(make, form=form)] * 4)
    q = np.zeros((len(env.signs), 2, 2, 2))  # [state, first action, second action, agent]; step size 1 is exact here
    obs: Any = lanes.reset(np.arange(4))[0]
    for _ in range(300):
        actions = draw.integers(2, size=(4, 2))
        batch = lanes.step(actions.astype(np.float32))
        assert batch.team is not None
        for lane in range(4):
            then = {agent: rows_of(batch.final_obs[AGENTS][agent], lane) for agent in (FIRST, SECOND)}
            now = {agent: rows_of(obs[AGENTS][agent], lane) for agent in (FIRST, SECOND)}
            future = q[key(env, then)].reshape(4, 2).max(0)  # both do what is best; where they share it, together
            goes_on = GAMMA * ~batch.team.terminated[lane]
            q[(key(env, now), *actions[lane])] = batch.team.reward[lane] + goes_on * future
        obs = batch.obs
    first, second = np.meshgrid([0, 1], [0, 1], indexing="ij")
    for number in range(len(env.signs)):
        stated = env.expected_q(number, first, second, GAMMA)
        for k, agent in enumerate((FIRST, SECOND)):
            np.testing.assert_allclose(q[number, ..., k], stated[agent], atol=1e-10)
    value = env.expected_value(GAMMA)
    best = env.best_actions()
    for k, agent in enumerate((FIRST, SECOND)):
        np.testing.assert_allclose(value[agent], q[..., k].max((1, 2)), atol=1e-10)
        if best is not None:
            found = [np.unravel_index(q[s].sum(-1).argmax(), (2, 2))[k] for s in range(len(env.signs))]
            assert best[agent].tolist() == found


def rows_of(rows: Any, lane: int) -> Any:
    return {name: part[lane] for name, part in rows.items()} if isinstance(rows, dict) else rows[lane]


@pytest.mark.parametrize("make", TEAM_PROBES, ids=str)
def test_of_box_actions_no_joint_action_is_better_than_the_stated_one(make: Any) -> None:
    env = make(continuous=True)
    grid = np.linspace(LOW, HIGH, 41)
    first, second = np.meshgrid(grid, grid, indexing="ij")
    best, value = env.best_actions(), env.expected_value(GAMMA)
    for number in range(len(env.signs)):
        q = env.expected_q(number, first, second, GAMMA)
        for k, agent in enumerate((FIRST, SECOND)):
            assert q[agent].max() == pytest.approx(value[agent][number])
            if best is not None:
                at = np.unravel_index((q[FIRST] + q[SECOND]).argmax(), q[agent].shape)[k]
                assert grid[at] == pytest.approx(best[agent][number])
        env.reset()
        env.state_number = number
        _, rewards, *_ = env.step({FIRST: np.array([2.5], np.float32), SECOND: np.array([4.0], np.float32)})
        assert list(rewards.values()) == pytest.approx([float(r) for r in env.rewards(number, 2.5, 4.0)])


def test_each_agent_of_the_probes_gets_another_reward_so_that_they_cannot_pass_for_one_another() -> None:
    for make in TEAM_PROBES[:4]:
        value = make().expected_value(GAMMA)
        assert not np.allclose(value[FIRST], value[SECOND])
    assert TruncatedTeam().expected_value(0.99)[SECOND] == pytest.approx(200.0)


def test_published_names_make_the_probes_in_all_their_forms() -> None:
    names = [name for name in probe_envs_ma.__all__ if name.endswith("Env")]
    assert len(names) == 6 * 6
    for name in names:
        env = getattr(probe_envs_ma, name)()
        assert env.form == ("image" if "Image" in name else "dict" if "Dict" in name else "vector")
        assert env.is_continuous == ("ContActions" in name)
        obs, info = env.reset(seed=1)
        assert info == {FIRST: {}, SECOND: {}}
        assert all(env.observation_space(agent).contains(seen) for agent, seen in obs.items())


def test_wrong_forms_and_actions_are_named() -> None:
    make = TEAM_PROBES[0]
    with pytest.raises(ConfigError, match="form must be one of vector, image, dict; got 'sound'"):
        make(form="sound")
    env = make(continuous=True)
    env.reset()
    with pytest.raises(EnvError, match=r"other_agent_0 has no action"):
        env.step({FIRST: np.array([3.0])})
    with pytest.raises(EnvError, match=r"agent_0 takes Box\(2.0, 6.0"):
        env.step({FIRST: np.array([1.0]), SECOND: np.array([3.0])})


@pytest.mark.parametrize(
    "name", ["FixedObsPolicyEnv", *(pytest.param(f"{kind}Env", marks=pytest.mark.slow) for kind in SLOWER)]
)
def test_a_team_that_learns_a_probe_passes_its_check_and_one_that_has_not_learned_does_not(name: str) -> None:
    config = {"latent_dim": 16, "encoder_config": {"hidden_size": [32]}, "head_config": {"hidden_size": [32]}}
    arguments = {"net_config": config, "seed": 3, "gamma": 0.9, "tau": 0.1, "lr_actor": 2e-3, "lr_critic": 5e-3}
    for updates in (150 if name == "FixedObsPolicyEnv" else 400, 0):
        env = getattr(probe_envs_ma, name)()
        memory = MultiAgentReplayBuffer(
            600, ["obs", "action", "reward", "next_obs", "done"], env.possible_agents, seed=1
        )
        run = partial(
            probe_envs_ma.check_policy_q_learning_with_probe_env,
            env, MADDPG, {**arguments, "batch_size": 64}, memory, updates,
        )  # fmt: skip
        if updates:
            assert run().agent_ids == [FIRST, SECOND]
        else:
            with pytest.raises(AssertionError, match=r"^state 0: (critics\..* the value is|.* the best action is)"):
                run()
