"""Board games against fixed players: the strength of a trained agent on an absolute scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space

from agilerl.core import foreign
from agilerl.core.ranges import Count, CountOrZero, check
from agilerl.envs.protocol import AGENTS
from agilerl.envs.simulators.team_boards import BOARDS, BoardLanes
from agilerl.errors import ConfigError, unknown_choice

Player = Callable[[BoardLanes, np.random.Generator], np.ndarray]
"""Returns the choice [L] of the player to move in each lane."""


def uniform(lanes: BoardLanes, rng: np.random.Generator) -> np.ndarray:
    """Choose a legal action uniformly at random."""
    return among(lanes.legal(), rng)


def lookahead(lanes: BoardLanes, rng: np.random.Generator) -> np.ndarray:
    """Choose an immediately winning action, else one that blocks the opponent's win, else any legal one; ties are
    broken uniformly at random."""
    wins, threats = lanes.wins_for(lanes.turn), lanes.wins_for(1 - lanes.turn)
    best = np.where(wins.any(1, keepdims=True), wins, np.where(threats.any(1, keepdims=True), threats, lanes.legal()))
    return among(best, rng)


def among(choices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Choose one of the actions [L, A] bool in each lane; 0 if there is none."""
    drawn: np.ndarray = np.where(choices, rng.random(choices.shape), -1.0).argmax(1)
    return drawn


PLAYERS: dict[str, Player] = {"random": uniform, "lookahead": lookahead}


def outcomes(team: Any, env_id: str, player: str | Player, games: int, seed: int) -> np.ndarray:
    """Return the results [games] of a multi-agent algorithm playing greedily: 1 for a win, 0 a draw, -1 a loss.

    It plays first in even games and second in odd games.

    Args:
        env_id: a game of `envs.team_boards.BOARDS`. player: the opponent; a name of `PLAYERS`, or a function.
        seed: seed of the opponent's random choices.

    Raises:
        ConfigError: an unknown game or player, fewer than one game, or an agent that plays alone.
    """
    if env_id not in BOARDS:
        raise ConfigError(unknown_choice("board game", str(env_id), [str(name) for name in BOARDS]))
    if not callable(player) and not isinstance(player, str) and foreign.has_methods(player, "get_action"):
        raise ConfigError(
            f"outcomes: player must be a name or a function of (lanes, rng); got an agent, {type(player).__name__}. "
            f"fix: one of {', '.join(map(repr, PLAYERS))}, or a function."
        )
    if not callable(player) and player not in list(PLAYERS):
        raise ConfigError(unknown_choice("player", str(player), PLAYERS, "a function"))
    check("outcomes: games", games, Count, 50)
    check("outcomes: seed", seed, CountOrZero, 0)
    if not foreign.has_methods(team, "get_action") or isinstance(foreign.action_space(team), Space):
        raise ConfigError(f"outcomes: team must be several agents; got {type(team).__name__}. fix: run.best of a team.")
    choose = PLAYERS[player] if isinstance(player, str) else player
    lanes, rng = BOARDS[env_id](games, reset_ended=False), np.random.default_rng(seed)
    trained = dict(foreign.attributes(team, ("agent_ids",))).get("agent_ids")  # optional for a user's agent
    if trained is not None and set(trained) != set(lanes.agents):
        raise ConfigError(
            f"outcomes: the agent was trained for {', '.join(map(str, trained))}, and {env_id} is played by "
            f"{', '.join(lanes.agents)}: another game. fix: run.best of agilerl.train({env_id!r})."
        )
    every, seats, won = np.arange(games), np.arange(games) % 2, np.zeros(games)
    obs, info = lanes.reset()
    going = np.ones(games, bool)
    while going.any():
        masks = info["action_mask"].reshape(games, 2, -1)
        infos = {agent: {"action_mask": masks[:, k]} for k, agent in enumerate(lanes.agents)}
        actions = team.get_action(obs[AGENTS], infos, training=False)[0]
        chosen = np.stack([actions[agent] for agent in lanes.agents], 1)
        other = lanes.turn != seats
        chosen[other, lanes.turn[other]] = choose(lanes, rng)[other]
        batch = lanes.step(chosen, going)
        assert batch.team is not None
        won += batch.team.reward[every, seats]
        going &= ~batch.terminated
        obs, info = batch.obs, batch.info
    return won
