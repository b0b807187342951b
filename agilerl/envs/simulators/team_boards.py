"""PettingZoo board games vectorised in NumPy, equal to the originals step by step."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, ClassVar

import numpy as np
from gymnasium import Space, spaces

from agilerl.envs.lanes import check_seeds
from agilerl.envs.protocol import AGENTS, PRESENT, StepBatch, TeamStep
from agilerl.envs.team import Team
from agilerl.errors import EnvError


def lines_through(shape: tuple[int, int], length: int) -> np.ndarray:
    """Return [cells, lines, length]: the cells of every straight line through each cell, row by row; missing lines are
    padded with the cell number `cells`, which is never taken."""
    rows, columns = shape
    lines_by_cell: list[list[list[int]]] = [[] for _ in range(rows * columns)]
    for row, column, (down, right) in product(range(rows), range(columns), ((0, 1), (1, 0), (1, 1), (1, -1))):
        line = [(row + k * down, column + k * right) for k in range(length)]
        if all(0 <= r < rows and 0 <= c < columns for r, c in line):
            cells = [r * columns + c for r, c in line]
            for cell in cells:
                lines_by_cell[cell].append(cells)
    max_lines = max(map(len, lines_by_cell))
    padding = [rows * columns] * length
    return np.array([lines + [padding] * (max_lines - len(lines)) for lines in lines_by_cell])


class BoardLanes:
    """L two-player, turn-based games in which players take cells; a full line wins, a full board is a draw.

    Both players observe the board from their own side: own cells, the opponent's cells. Only the player to move is
    present. The winner gets 1 and the loser -1. As in PettingZoo's wrapper, an illegal action ends the game and costs
    its player 1; the opponent then gets nothing. The games are deterministic.

    A subclass implements `_cells` and `legal`.

    Args:
        num_lanes: L. reset_ended: see `SyncLanes`. with_state: these games have no `state()`.
    """

    backend: str
    env_id: str
    agents: ClassVar[tuple[str, str]]
    shape: ClassVar[tuple[int, int]]  # rows and columns
    choices: ClassVar[int]
    lines: ClassVar[np.ndarray]
    keywords: ClassVar[frozenset[str]] = frozenset()  # environment keywords supported by these lanes

    def __init__(self, num_lanes: int, *, reset_ended: bool = True, with_state: bool = False) -> None:
        if with_state:
            raise EnvError(f"{self.env_id} has no state(). fix: leave with_state out: players see the board.")
        self.num_lanes, self.reset_ended = num_lanes, reset_ended
        shown: Mapping[str, Space[Any]] = {a: spaces.Box(0, 1, (*self.shape, 2), np.int8) for a in self.agents}
        self.team = Team(self.agents, shown, {agent: spaces.Discrete(self.choices) for agent in self.agents})
        self.single_observation_space: Space[Any] = self.team.observation_space
        self.single_action_space: Space[Any] = self.team.action_space
        cells = self.shape[0] * self.shape[1]
        self._taken = np.zeros((num_lanes, cells + 1, 2), np.int8)  # by each player; the last cell is padding
        self._turn = np.zeros(num_lanes, np.int64)
        self._over = np.ones(num_lanes, bool)
        self._masks = np.ones((num_lanes, 2, self.choices), bool)
        self._is_begun = False

    def legal(self) -> np.ndarray:
        """Return [L, choices] bool: legal actions."""
        raise NotImplementedError

    def _cells(self, lanes: np.ndarray, choices: np.ndarray) -> np.ndarray:
        """Return the cells [k] taken by legal actions [k] in lanes [k]."""
        raise NotImplementedError

    def _begin(self, lanes: np.ndarray) -> None:
        """Start new games in the lanes [L] bool."""
        self._taken[lanes], self._turn[lanes], self._over[lanes] = 0, 0, False
        self._masks[lanes] = True  # all actions are legal on an empty board

    def _observe(self) -> Any:
        board = self._taken[:, :-1].reshape(self.num_lanes, *self.shape, 2)
        present = np.zeros((self.num_lanes, 2), np.int8)
        going = np.flatnonzero(~self._over)
        present[going, self._turn[going]] = 1
        views = {self.agents[0]: board.copy(), self.agents[1]: np.ascontiguousarray(board[..., ::-1])}
        return {AGENTS: views, PRESENT: present}

    def _legal_choices(self) -> np.ndarray:
        """Return [L, 2 * choices] bool, see `TeamLanes`; waiting players have no mask."""
        return self._masks.reshape(self.num_lanes, -1).copy()

    def reset(self, seeds: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]:
        check_seeds(seeds, self.num_lanes)
        self._begin(np.ones(self.num_lanes, bool))
        self._is_begun = True
        return self._observe(), {"action_mask": self._legal_choices()}

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepBatch:
        """Step the lanes; `actions` [L, 2] in the format of `Team.join`, of which the player to move is read."""
        mask = np.ones(self.num_lanes, bool) if active is None else np.array(active, bool)
        lanes = np.flatnonzero(mask)
        players = self._turn[lanes]
        chosen = self._check(np.asarray(actions), mask)[lanes, players]
        acted = np.zeros((self.num_lanes, 2), bool)
        acted[lanes, players] = True
        reward, over = np.zeros((self.num_lanes, 2)), np.zeros(self.num_lanes, bool)
        may = self.legal()[lanes, chosen]
        self._take(lanes[may], players[may], chosen[may], reward, over)
        reward[lanes[~may], players[~may]] = -1.0
        over[lanes[~may]] = True
        self._turn[lanes], self._over[lanes] = 1 - players, over[lanes]
        legal = self.legal()
        self._masks[lanes, players] = ~over[lanes, None]  # no legal actions for the player to move at the end
        self._masks[lanes, 1 - players] = np.where(over[lanes, None], True, legal[lanes])
        wrong = lanes[~may & (players == 0)]
        self._masks[wrong, 0] = legal[wrong]  # but PettingZoo asks the first player again after an illegal action
        final = self._observe()
        info: dict[str, Any] = {}
        if over.any():
            info["final_action_mask"] = self._legal_choices()
            if self.reset_ended:
                self._begin(over)
        info["action_mask"] = self._legal_choices()
        done, no = np.repeat(over[:, None], 2, 1), np.zeros((self.num_lanes, 2), bool)
        team = TeamStep(reward, done, no, acted)
        return StepBatch(self._observe(), reward.sum(1), over, no[:, 0].copy(), final, mask, info, team)

    def _check(self, actions: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return actions [L, 2] int64; raise for invalid ones."""
        if not self._is_begun:
            raise EnvError("lanes must be reset before the first step. fix: call reset() first.")
        if actions.shape != (self.num_lanes, self.team.width):
            raise self.team.wrong_rows(actions, self.num_lanes)
        if (self._over & mask).any():
            lane = int(np.argmax(self._over & mask))
            raise EnvError(f"{self.env_id}, lane {lane}: the game is over. fix: reset(), or let the lane rest.")
        choices: np.ndarray = np.rint(actions).astype(np.int64)
        moves = choices[np.arange(self.num_lanes), self._turn][mask]
        if ((moves < 0) | (moves >= self.choices)).any():
            raise EnvError(f"{self.env_id} takes choices below {self.choices}; got {moves.min()}..{moves.max()}.")
        return choices

    def _take(
        self, lanes: np.ndarray, players: np.ndarray, chosen: np.ndarray, reward: np.ndarray, over: np.ndarray
    ) -> None:
        """Apply legal moves [k] and write the results to `reward` [L, 2] and `over` [L]."""
        cells = self._cells(lanes, chosen)
        self._taken[lanes, cells, players] = 1
        along = self._taken[lanes[:, None, None], self.lines[cells], players[:, None, None]]
        wins = along.all(-1).any(-1)
        reward[lanes[wins], players[wins]], reward[lanes[wins], 1 - players[wins]] = 1.0, -1.0
        over[lanes] = wins | self._taken[lanes, :-1].any(-1).all(-1)

    @property
    def turn(self) -> np.ndarray:
        """Return [L] the number of the player to move."""
        return self._turn.copy()

    def wins_for(self, players: np.ndarray) -> np.ndarray:
        """Return [L, choices] bool: legal actions that would win immediately if it were the turn of `players` [L]."""
        legal, wins = self.legal(), np.zeros((self.num_lanes, self.choices), bool)
        for choice in range(self.choices):
            lanes = np.flatnonzero(legal[:, choice])
            cells = self._cells(lanes, np.full(len(lanes), choice))
            along = self._taken[lanes[:, None, None], self.lines[cells], players[lanes, None, None]]
            wins[lanes, choice] = (along.sum(-1) == self.lines.shape[-1] - 1).any(-1)
        return wins

    def close(self) -> None:
        pass


class ConnectFourLanes(BoardLanes):
    """connect_four_v3: discs fall down in one of seven columns; four in a line win."""

    backend, env_id = "connect_four", "pettingzoo.classic.connect_four_v3"
    agents, shape, choices = ("player_0", "player_1"), (6, 7), 7
    lines = lines_through((6, 7), 4)

    def legal(self) -> np.ndarray:
        return np.asarray(~self._taken[:, :7].any(-1))  # the highest row

    def _cells(self, lanes: np.ndarray, choices: np.ndarray) -> np.ndarray:
        discs = self._taken[lanes, :-1].any(-1).reshape(-1, 6, 7).sum(1)[np.arange(len(lanes)), choices]
        cells: np.ndarray = (5 - discs) * 7 + choices
        return cells


class TicTacToeLanes(BoardLanes):
    """tictactoe_v3: any free cell of nine; three in a line win."""

    backend, env_id = "tictactoe", "pettingzoo.classic.tictactoe_v3"
    agents, shape, choices = ("player_1", "player_2"), (3, 3), 9
    lines = lines_through((3, 3), 3)

    def legal(self) -> np.ndarray:
        return np.asarray(~self._taken[:, :-1].any(-1))

    def _cells(self, lanes: np.ndarray, choices: np.ndarray) -> np.ndarray:
        return choices


BOARDS: dict[str | None, type[BoardLanes]] = {lanes.env_id: lanes for lanes in (ConnectFourLanes, TicTacToeLanes)}
