"""The lanes of mpe2's environments that are NumPy over all lanes equal mpe2's own in every bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agilerl.core.spaces import differ
from agilerl.envs.protocol import AGENTS, PRESENT
from agilerl.envs.simulators.team_fast import FAST_TEAMS
from agilerl.envs.step import as_lanes
from agilerl.envs.team_vector import team_module
from agilerl.envs.teams import TeamLanes
from agilerl.errors import EnvError, ShapeError
from agilerl.utils.utils import make_multi_agent_vect_envs

IDS = sorted(str(env_id) for env_id in FAST_TEAMS if str(env_id).startswith("mpe2"))
LANES = 6


def pair(env_id: str, continuous: bool, lanes: int = LANES, **options: Any) -> tuple[Any, TeamLanes]:
    """The fast lanes and mpe2's environments."""
    module = team_module(env_id)
    factory = [lambda: module.parallel_env(continuous_actions=continuous)] * lanes
    return FAST_TEAMS[env_id](lanes, continuous_actions=continuous, **options), TeamLanes(factory, **options)


def chosen(team: Any, draw: np.random.Generator, continuous: bool) -> np.ndarray:
    if continuous:
        width = sum(part.stop - part.start for part in team.columns.values())
        return draw.uniform(0, 1, (LANES, width)).astype(np.float32)
    return np.stack([draw.integers(space.n, size=LANES) for space in team.action_spaces.values()], 1).astype(np.float32)


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("env_id", IDS)
def test_every_bit_of_observations_rewards_and_ends_is_that_of_mpe2(env_id: str, continuous: bool) -> None:
    fast, slow = pair(env_id, continuous, with_state=True)
    draw = np.random.default_rng(7)
    seeds = np.arange(LANES) + 100
    np.testing.assert_equal(fast.reset(seeds), slow.reset(seeds))
    touches = 0
    for step in range(160):  # six episodes, then a lane that rests
        actions = chosen(slow.team, draw, continuous)
        active = None if step < 150 else draw.random(LANES) < 0.5
        one, other = fast.step(actions, active), slow.step(actions, active)
        np.testing.assert_equal(one.obs, other.obs)
        np.testing.assert_equal(one.final_obs, other.final_obs)
        for name in ("reward", "terminated", "truncated", "mask"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        for name in ("reward", "terminated", "truncated", "acted"):
            np.testing.assert_array_equal(getattr(one.team, name), getattr(other.team, name))
        touches += int((np.ptp(other.team.reward, axis=1) > 0).sum())
        assert one.truncated.any() == ((step + 1) % 25 == 0 and step < 150)
    assert (touches > 0) == ("spread" in env_id)  # agents have run into one another


def assert_same_spaces(fast: Any, slow: TeamLanes) -> None:
    assert fast.team.agents == slow.team.agents
    assert not differ(fast.single_observation_space, slow.single_observation_space)
    assert not differ(fast.single_action_space, slow.single_action_space)
    one, other = fast.reset()[0], slow.reset()[0]
    assert list(one[AGENTS]) == list(other[AGENTS])
    assert {a: x.dtype for a, x in one[AGENTS].items()} == {a: x.dtype for a, x in other[AGENTS].items()}
    assert one[PRESENT].dtype == other[PRESENT].dtype


@pytest.mark.parametrize("env_id", IDS)
def test_dtypes_and_spaces_are_those_of_mpe2(env_id: str) -> None:
    for continuous in (False, True):
        assert_same_spaces(*pair(env_id, continuous, lanes=1))


def test_an_ended_lane_may_be_left_as_it_is_and_episodes_go_on_with_each_lanes_generator() -> None:
    fast, slow = pair("mpe2.simple_spread_v3", False, reset_ended=False)
    for lanes in (fast, slow):
        lanes.reset(np.arange(LANES))
        for _ in range(25):
            batch = lanes.step(np.ones((LANES, 3)))
        assert batch.truncated.all()
        np.testing.assert_equal(batch.obs, batch.final_obs)
    np.testing.assert_equal(fast.reset(), slow.reset())


def test_what_a_step_has_shown_is_the_callers() -> None:
    fast, slow = pair("mpe2.simple_speaker_listener_v4", False)
    for lanes in (fast, slow):
        lanes.reset(np.arange(LANES))
    for _ in range(3):
        one, other = (lanes.step(np.full((LANES, 2), 2.0)) for lanes in (fast, slow))
        np.testing.assert_equal(one.obs, other.obs)
        one.obs[AGENTS]["listener_0"][:] = 9
        assert one.final_obs[AGENTS]["listener_0"].max() < 9


def test_plain_ids_take_the_fast_lanes_and_other_keywords_mpe2() -> None:
    for keywords, kind in (({}, "spread"), ({"continuous_actions": True}, "spread"), ({"max_cycles": 9}, "teams")):
        env = make_multi_agent_vect_envs("mpe2.simple_spread_v3", 3, **keywords)  # type: ignore[arg-type]
        lanes = env.replicate(2)
        assert (lanes.backend, lanes.num_lanes) == (kind, 6)
        assert as_lanes(env).backend == kind
        assert env.lanes.backend == "teams"


def test_rows_and_choices_that_do_not_fit_are_named() -> None:
    lanes = FAST_TEAMS["mpe2.simple_spread_v3"](2)
    with pytest.raises(EnvError, match="reset before the first step"):
        lanes.step(np.zeros((2, 3)))
    lanes.reset()
    with pytest.raises(ShapeError, match=r"expected \(2, 3\), got \(2, 2\)"):
        lanes.step(np.zeros((2, 2)))
    with pytest.raises(EnvError, match=r"takes choices below \(5, 5, 5\); got 0..5"):
        lanes.step(np.array([[0, 0, 0], [0, 0, 5]]))
