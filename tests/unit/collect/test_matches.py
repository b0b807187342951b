"""Players of board games that do not learn, and matches against them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agilerl.algorithms.ippo import IPPO
from agilerl.collect.teams.self_play import SelfPlayCollector
from agilerl.envs.simulators.team_boards import ConnectFourLanes, TicTacToeLanes
from agilerl.errors import ConfigError
from agilerl.rollouts.matches import lookahead, outcomes, uniform
from agilerl.utils.utils import make_multi_agent_vect_envs

FOUR, THREE = "pettingzoo.classic.connect_four_v3", "pettingzoo.classic.tictactoe_v3"


def after(lanes: Any, moves: list[int]) -> Any:
    """All lanes after these moves."""
    lanes.reset()
    for move in moves:
        lanes.step(np.full((lanes.num_lanes, 2), move))
    return lanes


def test_the_lookahead_player_wins_else_blocks_else_takes_any_legal_choice() -> None:
    rng = np.random.default_rng(0)
    # Both have three in a column: to win comes before to block.
    assert set(lookahead(after(ConnectFourLanes(50), [2, 5, 2, 5, 2, 5]), rng)) == {2}
    assert set(lookahead(after(ConnectFourLanes(50), [2, 5, 2, 5, 2]), rng)) == {2}, "the first one threatens"
    # Three in the lowest row with a gap: 0, 1, 3; the second player must take 2.
    assert set(lookahead(after(ConnectFourLanes(50), [0, 0, 1, 1, 3]), rng)) == {2}
    # In the second row 2 is above an empty cell: neither wins there yet, so anything goes.
    assert set(lookahead(after(ConnectFourLanes(400), []), rng)) == set(range(7))
    # A column that is full is not legal.
    full = after(ConnectFourLanes(400), [0, 0, 0, 0, 0, 0])
    assert set(uniform(full, rng)) == set(lookahead(full, rng)) == set(range(1, 7))
    # Two ways to lose: either is blocked.
    found = np.bincount(lookahead(after(TicTacToeLanes(400), [0, 1, 8, 5, 6]), rng), minlength=9)
    assert sorted(np.flatnonzero(found).tolist()) == [3, 4, 7], "0-3-6, 0-4-8 and 6-7-8"
    assert found[[3, 4, 7]].min() > 90


@pytest.mark.parametrize("env_id", [FOUR, THREE])
def test_what_wins_at_once_is_what_the_game_calls_a_win(env_id: str) -> None:
    kind = ConnectFourLanes if env_id == FOUR else TicTacToeLanes
    rng, found = np.random.default_rng(1), 0
    lanes, twin = kind(64, reset_ended=False), kind(64, reset_ended=False)
    lanes.reset()
    twin.reset()
    going = np.ones(64, bool)
    while going.any():
        wins, choice = lanes.wins_for(lanes.turn), uniform(lanes, rng)
        mover = lanes.turn
        batch = lanes.step(np.repeat(choice[:, None], 2, 1), going)
        has_won = batch.team.reward[np.arange(64), mover] == 1
        np.testing.assert_array_equal(has_won[going], wins[np.arange(64), choice][going])
        found += int(has_won.sum())
        going &= ~batch.terminated
    assert found > 10


class Scripted:
    """A team that plays as a player of ours does; it is not told whose turn it is."""

    def __init__(self, choice: int) -> None:
        self.choice = choice

    def get_action(self, obs: Any, infos: Any, training: bool) -> tuple[dict[str, np.ndarray]]:
        assert not training
        masks = {agent: info["action_mask"] for agent, info in infos.items()}
        return ({a: np.where(m[:, self.choice], self.choice, m.argmax(1)) for a, m in masks.items()},)


def test_games_are_played_from_both_seats_and_counted_from_the_teams() -> None:
    def first_free(lanes: Any, rng: np.random.Generator) -> np.ndarray:
        return lanes.legal().argmax(1)

    # Whoever begins has four in its own column first.
    assert outcomes(Scripted(6), FOUR, first_free, 6, 0).tolist() == [1.0, -1.0] * 3
    both = outcomes(Scripted(0), FOUR, "random", 400, 0)
    assert set(both) <= {-1.0, 0.0, 1.0}
    assert (both == 1).mean() > 0.5, "a column that nobody blocks"
    assert outcomes(Scripted(0), FOUR, "lookahead", 400, 0).mean() < -0.5
    np.testing.assert_array_equal(both, outcomes(Scripted(0), FOUR, "random", 400, 0))
    with pytest.raises(ConfigError, match=r"unknown player 'randm'. Did you mean 'random'"):
        outcomes(Scripted(0), FOUR, "randm", 2, 0)
    with pytest.raises(ConfigError, match=r"unknown board game 'chess_v6'"):
        outcomes(Scripted(0), "chess_v6", "random", 2, 0)


def test_a_team_of_ours_can_be_asked() -> None:
    env = make_multi_agent_vect_envs(THREE, 1)
    net = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}
    team = IPPO(*SelfPlayCollector.spaces(env), net_config=net, seed=0)
    found = outcomes(team, THREE, "random", 50, 3)
    assert found.shape == (50,)
    assert 0 < (found == 1).mean() < 1
