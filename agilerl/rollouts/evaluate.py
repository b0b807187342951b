"""Evaluation: whole episodes, greedily, with the same seeds for every member."""

# ruff: noqa: PT028 (test_agent is a published name, not a test)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import VectorEnv

from agilerl import foreign
from agilerl import tree as trees
from agilerl.envs.limits import EpisodeLimit
from agilerl.envs.masks import ActionMasks
from agilerl.envs.observed_masks import follow_masks
from agilerl.envs.protocol import Lanes
from agilerl.envs.step import VectorLanes, as_lanes
from agilerl.errors import ConfigError, ShapeError
from agilerl.spaces import swap_channels as channels_first

# Standard errors behind the best, from which on more episodes seldom change who that is: by half a one, four episodes
# at a time choose as well as eight of everybody do, with three fifths as many (docs/lab/evolution.md).
IN_QUESTION = 0.5


class Actor(Protocol):
    """A population that acts."""

    def act_greedy(self, obs: np.ndarray, mask: np.ndarray | None = None) -> Any:
        """obs [N, E, ...], mask [N, E, A] of legal actions or None -> actions [N, E, ...]; nested as spaces are."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """What every member scored.

    Attributes:
        returns: [N, episodes] float64, undiscounted; column i of every member was played with the same seed. Of teams
            agent by agent [N, episodes, M], where that was asked for.
        lengths: [N, episodes] int64, transitions. env_steps: transitions in all.
        cut: [N, episodes] bool, whether the episode was cut at `max_steps`: truncated, and no end of the environment's.
    """

    returns: np.ndarray
    lengths: np.ndarray
    env_steps: int
    cut: np.ndarray


def evaluate(
    actor: Actor,
    lanes: Lanes,
    members: int,
    episodes: int,
    seeds: np.ndarray,
    max_steps: int | None = None,
    *,
    by_agent: bool = False,
) -> EvaluationResult:
    """Play `episodes` episodes with every member, all members at once.

    Lane m * E + e belongs to member m, where E = lanes.num_lanes // members; with E < episodes the episodes are played
    in waves. A lane rests when its episode has ended. Make the lanes with `env.replicate(n, reset_ended=False)`, so
    that ended lanes are not reset for nothing.

    Args:
        actor: acts for all members at once. lanes: reset here, and left in the middle of things. members: N.
        episodes: per member. seeds: [episodes] one per episode: common random numbers make members comparable.
        max_steps: transitions after which an episode is cut; its return so far counts. None plays to the end.
        by_agent: count the rewards of a team's agents one by one.

    Raises:
        ConfigError: lanes that cannot be divided among the members, or no episode.
        ShapeError: not one seed per episode.
    """
    if members < 1 or episodes < 1:
        raise ConfigError(f"members and episodes must be positive; got {members} and {episodes}. fix: use 1.")
    if max_steps is not None and max_steps < 1:
        raise ConfigError(f"max_steps must be a positive integer (steps per episode) or None; got {max_steps}.")
    per_member, left_over = divmod(lanes.num_lanes, members)
    if left_over:
        count = f"{lanes.num_lanes} lanes"
        raise ConfigError(f"{count} cannot be divided among {members} members. fix: env.replicate({members}).")
    if np.shape(seeds) != (episodes,):
        raise ShapeError(f"seeds must have one integer per episode: expected ({episodes},), got {np.shape(seeds)}.")

    def act(obs: Any, mask: np.ndarray | None) -> Any:
        grouped = None if mask is None else mask.reshape(members, -1, mask.shape[-1])
        actions = trees.map_leaves(np.asarray, actor.act_greedy(trees.reshape(obs, members, per_member), grouped))
        return trees.map_leaves(lambda x: x.reshape(lanes.num_lanes, *x.shape[2:]), actions)

    ending = foreign.method(actor, "end_episodes")

    def left(over: np.ndarray) -> None:
        ending(over.reshape(members, per_member, -1))  # type: ignore[misc]  # only called where there is one

    returns: list[np.ndarray] = []
    lengths = np.zeros((members, episodes), dtype=np.int64)
    cut = np.zeros((members, episodes), dtype=bool)
    for first in range(0, episodes, per_member):
        columns = np.arange(first, min(first + per_member, episodes))
        # Lanes without an episode in the last wave get its first seed and rest from the start.
        wave = np.full(per_member, seeds[first])
        wave[: len(columns)] = seeds[columns]
        plays = np.tile(np.arange(per_member) < len(columns), members)
        begin = foreign.method(actor, "begin_episodes")
        scores, steps, going = first_episodes(
            act,
            lanes,
            np.tile(wave, members),
            plays,
            max_steps,
            begin,
            by_agent=by_agent,
            left=left if ending else None,
        )
        returns.append(scores.reshape(members, per_member, *scores.shape[1:])[:, : len(columns)])
        lengths[:, columns] = steps.reshape(members, per_member)[:, : len(columns)]
        cut[:, columns] = going.reshape(members, per_member)[:, : len(columns)]
    return EvaluationResult(np.concatenate(returns, 1), lengths, int(lengths.sum()), cut)


def contested(returns: np.ndarray) -> list[int]:
    """Slots of the members of which more episodes may show that they are the best, in their order.

    Those whose returns lie below the best one's by at most `IN_QUESTION` standard errors of the differences, which are
    paired: the episodes are the same for all. Evaluation in stages is a race by that rule (Maron and Moore 1994,
    "Hoeffding races").

    Args:
        returns: [N, episodes], at least two episodes.
    """
    means = returns.mean(1)
    if np.isnan(means).all():
        return list(range(len(means)))
    gaps = returns[int(np.nanargmax(means))] - returns
    errors = gaps.std(1, ddof=1) / np.sqrt(returns.shape[1])
    return np.flatnonzero(gaps.mean(1) <= IN_QUESTION * errors).tolist()


def first_episodes(
    act: Callable[[Any, np.ndarray | None], Any],
    lanes: Lanes,
    seeds: np.ndarray | None,
    active: np.ndarray,
    max_steps: int | None,
    begin: Callable[[], None] | None = None,
    ended: Callable[[np.ndarray, Any], None] | None = None,
    by_agent: bool = False,
    left: Callable[[np.ndarray], None] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns and lengths [L] of the first episode in every lane that is active [L]; the others stay at zero.

    The third [L] says which of them were still going on when `max_steps` were over.

    `begin` is called once, when the episodes begin: for policies with a memory. `ended` is called with the returns [k]
    of episodes that have ended, and the info of that vector step. `by_agent` gives returns [L, M] of a team's agents.
    `left` is called with the agents of teams [L, M] whose own episodes ended in a vector step, where any did.
    """
    if begin is not None:
        begin()
    masks = ActionMasks(lanes.single_action_space, lanes.backend)
    obs, info = lanes.reset(seeds)
    active = active.copy()
    returns, lengths = np.zeros(lanes.num_lanes), np.zeros(lanes.num_lanes, dtype=np.int64)
    vector_steps = 0
    while active.any() and (max_steps is None or vector_steps < max_steps):
        batch = lanes.step(act(obs, masks.of(info, lanes.num_lanes)), active)
        counted = batch.mask & active
        reward = batch.reward
        if by_agent and batch.team is not None:
            reward = batch.team.reward
            returns = returns if returns.ndim == 2 else np.zeros(reward.shape)
        if left is not None and batch.team is not None:
            over_by_agent = batch.team.terminated | batch.team.truncated
            if over_by_agent.any():
                left(over_by_agent)
        returns[counted] += reward[counted]
        lengths += counted
        over = active & (batch.terminated | batch.truncated)
        active &= ~over
        obs, info = batch.obs, batch.info
        vector_steps += 1
        if ended is not None and over.any():
            ended(returns[over], info)
    if ended is not None and active.any():  # cut off by `max_steps`
        ended(returns[active], info)
    return returns, lengths, active


def test_agent(
    act: Callable[[Any, np.ndarray | None], Any],
    env: Any,
    max_steps: int | None = None,
    loop: int = 1,
    swap_channels: bool = False,
    seeds: np.ndarray | None = None,
    begin: Callable[[], None] | None = None,
    ended: Callable[[np.ndarray, Any], None] | None = None,
    by_agent: bool = False,
    left: Callable[[np.ndarray], None] | None = None,
    reads: Any = None,
) -> Any:
    """The published meaning of `agent.test`: mean return of the first episode in every environment of `env`.

    The environment that is given is the one that is stepped, so that its own generators and wrappers count.

    Args:
        act: observations [L, ...] and legal actions [L, A] (or None) -> actions [L, ...].
        env: anything that `as_lanes` takes, such as a vector environment or a single one.
        max_steps: vector steps after which every episode is cut; its return so far counts. None: as long as the
            environment says, else `envs.limits.LEAST`, with a warning where that cuts one.
        loop: how often; the mean over all is returned.
        swap_channels: images are [H, W, C] and `act` wants [C, H, W].
        seeds: [loop, L] for repeatable episodes; None goes on with the environments' own generators.
        begin: called whenever new episodes begin in all environments.
        ended: called with the returns [k] of episodes that have ended, and the info of that vector step.
        by_agent: return one mean for each agent of a team [M] in place of the number.
        left: called with the agents of teams [L, M] whose own episodes have ended.
        reads: the observation space that `act` was built for: masks in observations beside it are followed. None leaves
            observations as they are.
    """
    if loop < 1:
        raise ConfigError(f"loop must be a positive integer (evaluations averaged); got {loop}. fix: use 1.")
    lanes: Lanes = VectorLanes(env) if isinstance(env, VectorEnv) else as_lanes(env)
    lanes = lanes if reads is None else follow_masks(lanes, reads)
    limit = EpisodeLimit.of(env, max_steps)

    def act_here(obs: Any, mask: np.ndarray | None) -> Any:
        return act(channels_first(obs, lanes.single_observation_space) if swap_channels else obs, mask)

    everywhere = np.ones(lanes.num_lanes, dtype=bool)
    means = []
    for i in range(loop):
        chosen = None if seeds is None else np.asarray(seeds)[i]
        returns, lengths, cut = first_episodes(
            act_here, lanes, chosen, everywhere, limit.steps, begin, ended, by_agent, left
        )
        limit.say(lengths, cut)
        means.append(returns.mean(0))
    mean = np.mean(means, axis=0)
    return mean if by_agent else float(mean)


test_agent.__test__ = False  # type: ignore[attr-defined]  # pytest would take the published name for a test
