"""Evaluation: whole greedy episodes, with the same seeds for every member."""

# ruff: noqa: PT028 (test_agent is a published name, not a test)

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import VectorEnv

from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.core.ranges import Count, check
from agilerl.core.spaces import swap_channels as channels_first
from agilerl.core.tree import Tree
from agilerl.envs.limits import EpisodeLimit
from agilerl.envs.masks import ActionMasks
from agilerl.envs.observed_masks import follow_masks
from agilerl.envs.protocol import Lanes
from agilerl.envs.step import VectorLanes, as_lanes
from agilerl.errors import ConfigError, ShapeError
from agilerl.rollouts.episodes import EvaluationResult

# Standard errors behind the best member, beyond which more episodes seldom change the winner. With half a one, four
# episodes at a time choose as well as eight for every member, with three fifths of the episodes
# (docs/lab/evolution.md).
IN_QUESTION = 0.5


class Actor(Protocol):
    """A population that acts."""

    def act_greedy(self, obs: np.ndarray, mask: np.ndarray | None = None) -> Any:
        """Return actions [N, E, ...] for obs [N, E, ...] and mask [N, E, A] of legal actions or None; nested like the
        spaces."""


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
    in waves. A lane idles after its episode has ended. Create the lanes with `env.replicate(n, reset_ended=False)`, so
    that ended lanes are not reset needlessly.

    Args:
        actor: acts for all members at once. lanes: reset here; left in mid-episode. members: N.
        episodes: per member. seeds: [episodes], one per episode: common random numbers make members comparable.
        max_steps: transitions after which an episode is truncated; its return so far counts. None plays to the end.
        by_agent: return rewards separately by agent, for multi-agent environments.

    Raises:
        ConfigError: lanes not divisible by the members, or no episodes.
        ShapeError: not one seed per episode.
    """
    check("members", members, Count, 1)
    check("episodes", episodes, Count, 1)
    check("max_steps", max_steps, Count | None, None, unit="per episode")
    per_member, left_over = divmod(lanes.num_lanes, members)
    if left_over:
        count = f"{lanes.num_lanes} lanes"
        raise ConfigError(f"{count} cannot be divided among {members} members. fix: env.replicate({members}).")
    if np.shape(seeds) != (episodes,):
        raise ShapeError(f"seeds must have one integer per episode: expected ({episodes},), got {np.shape(seeds)}.")

    def act(obs: Tree, mask: np.ndarray | None) -> Any:
        grouped = None if mask is None else mask.reshape(members, -1, mask.shape[-1])
        actions = trees.map_leaves(np.asarray, actor.act_greedy(trees.reshape(obs, members, per_member), grouped))
        return trees.map_leaves(lambda x: x.reshape(lanes.num_lanes, *x.shape[2:]), actions)

    ending = foreign.method(actor, "end_episodes")

    def left(over: np.ndarray) -> None:
        ending(over.reshape(members, per_member, -1))  # type: ignore[misc]  # only called if given

    returns: list[np.ndarray] = []
    lengths = np.zeros((members, episodes), dtype=np.int64)
    cut = np.zeros((members, episodes), dtype=bool)
    for first in range(0, episodes, per_member):
        columns = np.arange(first, min(first + per_member, episodes))
        # Lanes without an episode in the last wave get a seed of no other, and idle from the start.
        wave = (seeds[first] + 1 + np.arange(per_member)) % 2**31
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
    """Return the sorted slots of members that may still be the best, given more episodes.

    Their returns lie below the best one's by at most `IN_QUESTION` standard errors of the differences, which are
    paired because all members play the same episodes. Staged evaluation is a race by this rule (Maron and Moore 1994,
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
    """Return returns and lengths [L] of the first episode in every active lane [L], zero in the others.

    The third result [L] marks episodes that were still running after `max_steps`.

    `begin` is called once, when the episodes begin: for recurrent policies. `ended` is called with the returns [k]
    of episodes that have ended, and the info of that vector step. `by_agent` gives returns [L, M] by agent. `left` is
    called with a mask [L, M] of the agents whose own episodes ended in a vector step, if there are any.
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
        if batch.healed is not None:  # a replaced environment plays the whole episode, with another seed
            over &= ~batch.healed
            returns[batch.healed], lengths[batch.healed] = 0, 0
        active &= ~over
        obs, info = batch.obs, batch.info
        vector_steps += 1
        if ended is not None and over.any():
            ended(returns[over], info)
    if ended is not None and active.any():  # truncated by `max_steps`
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
    """Implement `agent.test`: mean return of the first episode in every environment of `env`.

    The given environment itself is stepped, so its generators and wrappers apply.

    Args:
        act: observations [L, ...] and action masks [L, A] (or None) -> actions [L, ...].
        env: anything that `as_lanes` accepts, such as a vector environment or a single one.
        max_steps: vector steps after which every episode is truncated; its return so far counts. None: the
            environment's limit, else `envs.limits.DEFAULT_EPISODE_LIMIT`, with a warning if that truncates an episode.
        loop: number of repetitions; the mean over all is returned.
        swap_channels: images are [H, W, C] and `act` expects [C, H, W].
        seeds: [loop, L] for repeatable episodes; None continues the environments' own generators.
        begin: called whenever new episodes begin in all environments.
        ended: called with the returns [k] of episodes that have ended, and the info of that vector step.
        by_agent: return one mean per agent [M] instead of a single number.
        left: called with a mask [L, M] of the agents whose own episodes have ended.
        reads: observation space that `act` was built for: additional action masks in observations are applied. None
            leaves observations unchanged.
    """
    check("loop", loop, Count, 1, unit="evaluations averaged")
    lanes: Lanes = VectorLanes(env) if isinstance(env, VectorEnv) else as_lanes(env)
    lanes = lanes if reads is None else follow_masks(lanes, reads)
    limit = EpisodeLimit.of(env, max_steps)

    def act_here(obs: Tree, mask: np.ndarray | None) -> Any:
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


test_agent.__test__ = False  # type: ignore[attr-defined]  # the published name would be collected by pytest
