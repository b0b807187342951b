"""The board games that are NumPy over all lanes are PettingZoo's own, step for step; `moves` plays legal choices."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from test_team_fast import assert_same_spaces

from agilerl.envs.protocol import PRESENT
from agilerl.envs.simulators.team_boards import BOARDS, ConnectFourLanes, TicTacToeLanes, lines_through
from agilerl.envs.step import as_lanes
from agilerl.envs.team_ids import maker_of, team_module
from agilerl.envs.teams import TeamLanes
from agilerl.errors import EnvError, ShapeError
from agilerl.utils.utils import make_multi_agent_vect_envs

IDS = sorted(str(env_id) for env_id in BOARDS)
LANES = 8


def pair(env_id: str, lanes: int = LANES, **options: Any) -> tuple[Any, TeamLanes]:
    """The fast lanes and PettingZoo's environments behind its own conversion."""
    return BOARDS[env_id](lanes, **options), TeamLanes([maker_of(team_module(env_id))] * lanes, **options)


def moves(info: dict[str, Any], choices: int, draw: np.random.Generator, illegal: float = 0.0) -> np.ndarray:
    """Random choices [L, 2], legal ones but for a share of them."""
    masks = info["action_mask"].reshape(LANES, 2, choices)
    scores = draw.random(masks.shape) + np.where(masks, 1.0, 0.0)
    chosen = scores.argmax(-1)
    return np.where(draw.random(chosen.shape) < illegal, draw.integers(choices, size=chosen.shape), chosen)


@pytest.mark.parametrize("illegal", [0.0, 0.1])
@pytest.mark.parametrize("env_id", IDS)
def test_random_games_are_pettingzoos_own_step_for_step(env_id: str, illegal: float) -> None:
    fast, slow = pair(env_id)
    draw, ends = np.random.default_rng(3), {"won": 0, "drawn": 0, "lost by an illegal choice": 0}
    one, other = fast.reset(np.arange(LANES)), slow.reset(np.arange(LANES))
    np.testing.assert_equal(one, other)
    info = one[1]
    for _ in range(150 if "four" in env_id else 60):
        actions, active = moves(info, fast.choices, draw, illegal), draw.random(LANES) < 0.9
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PettingZoo warns of illegal choices
            one, other = fast.step(actions, active), slow.step(actions, active)
        for name in ("obs", "final_obs", "info", "reward", "terminated", "truncated", "mask"):
            np.testing.assert_equal(getattr(one, name), getattr(other, name), err_msg=name)
        for name in ("reward", "terminated", "truncated", "acted", "defined"):
            np.testing.assert_equal(getattr(one.team, name), getattr(other.team, name), err_msg=name)
        rows, info = one.team.reward[one.terminated], one.info
        ends["won"] += int((rows.sum(1) == 0).sum() - (rows == 0).all(1).sum())
        ends["drawn"] += int((rows == 0).all(1).sum())
        ends["lost by an illegal choice"] += int((rows.sum(1) < 0).sum())
    assert ends["won"] > 5
    assert (ends["drawn"] > 0) or "four" in env_id
    assert (ends["lost by an illegal choice"] > 0) == (illegal > 0)


def test_a_full_board_without_a_line_is_a_draw() -> None:
    # Columns filled in this order leave no four in a line.
    order = [0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 2, 3, 2, 3, 3, 2, 3, 2, 2, 3, 2, 3, 4, 5, 4, 5, 5, 4, 5, 4, 4, 5, 4, 5]
    fast, slow = pair("pettingzoo.classic.connect_four_v3", 1)
    for lanes in (fast, slow):
        lanes.reset()
        for choice in [*order, 6, 6, 6, 6, 6, 6]:
            batch = lanes.step(np.full((1, 2), choice))
            assert batch.team.reward.tolist() == [[0.0, 0.0]]
        assert batch.terminated.tolist() == [True]


@pytest.mark.parametrize("env_id", IDS)
def test_an_ended_game_stays_as_it_is_where_it_is_not_reset(env_id: str) -> None:
    fast, slow = pair(env_id, reset_ended=False)
    draw, active, info = np.random.default_rng(1), np.ones(LANES, bool), fast.reset()[1]
    np.testing.assert_equal(info, slow.reset()[1])
    while active.any():
        actions = moves(info, fast.choices, draw)
        one, other = fast.step(actions, active), slow.step(actions, active)
        np.testing.assert_equal(one.obs, other.obs)
        np.testing.assert_equal(one.info, other.info)
        active, info = active & ~one.terminated, one.info
    assert not one.obs[PRESENT].any()
    with pytest.raises(EnvError, match="lane 0: the game is over"):
        fast.step(np.zeros((LANES, 2)))
    np.testing.assert_equal(fast.reset(), slow.reset())


@pytest.mark.parametrize("env_id", IDS)
def test_dtypes_and_spaces_are_pettingzoos(env_id: str) -> None:
    assert_same_spaces(*pair(env_id, 1))


def test_every_line_of_the_games_is_known() -> None:
    for shape, length, count in (((6, 7), 4, 69), ((3, 3), 3, 8)):
        cells = shape[0] * shape[1]
        found = {tuple(line) for own in lines_through(shape, length).tolist() for line in own} - {(cells,) * length}
        assert len(found) == count
    assert ConnectFourLanes.lines.shape == (42, 13, 4)
    assert TicTacToeLanes.lines.shape == (9, 4, 3)


@pytest.mark.parametrize("env_id", IDS)
def test_ids_of_games_of_turns_are_converted_and_take_the_fast_lanes(env_id: str) -> None:
    env = make_multi_agent_vect_envs(env_id, 3)
    assert env.replicate(2).backend == as_lanes(env).backend == BOARDS[env_id].backend
    assert env.lanes.backend == "teams"
    assert make_multi_agent_vect_envs(env_id, 2, render_mode="rgb_array").replicate(1).backend == "teams"


def test_what_does_not_fit_is_named() -> None:
    lanes = ConnectFourLanes(2)
    with pytest.raises(EnvError, match="reset before the first step"):
        lanes.step(np.zeros((2, 2)))
    lanes.reset()
    with pytest.raises(ShapeError, match=r"expected \(2, 2\), got \(2, 3\)"):
        lanes.step(np.zeros((2, 3)))
    with pytest.raises(EnvError, match=r"takes choices below 7; got 0..7"):
        lanes.step(np.array([[0, 0], [7, 0]]))
    lanes.step(np.array([[0, 9], [0, 9]]))  # who waits is not asked
    with pytest.raises(EnvError, match=r"has no state\(\)"):
        ConnectFourLanes(2, with_state=True)
