"""Off-policy loop utilities: episode scores, action holding, exploration noise per lane."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agilerl.envs.protocol import StepBatch
from agilerl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Finished:
    """Episodes that ended in one vector step: their lanes, returns (float64) and lengths, all [k]; for several agents
    also the returns by agent [k, M]."""

    lanes: np.ndarray
    returns: np.ndarray
    lengths: np.ndarray
    by_agent: np.ndarray | None = None


class EpisodeTracker:
    """Track returns and lengths of the running episodes of L lanes.

    Attributes:
        returns: [L] float64 of the running episodes so far. lengths: [L] int64. by_agent: [L, M] returns by agent for
            multi-agent environments, else None.
        scores: returns of all completed episodes, lane by lane, in the order in which they ended.
    """

    def __init__(self, num_lanes: int) -> None:
        self.num_lanes = num_lanes
        self.restart()

    def restart(self) -> None:
        """Discard the running episodes (after a reset of the lanes) and the scores."""
        self.returns = np.zeros(self.num_lanes)
        self.lengths = np.zeros(self.num_lanes, dtype=np.int64)
        self.by_agent: np.ndarray | None = None
        self.scores: list[list[float]] = [[] for _ in range(self.num_lanes)]

    def update(self, batch: StepBatch) -> Finished:
        """Count one vector step; rows with mask False are skipped. Ended lanes restart at zero.

        An episode that ended without a transition (its environment was replaced) is discarded: it has no return.
        """
        self.returns += np.where(batch.mask, batch.reward, 0.0)
        self.lengths += batch.mask
        ended = batch.terminated | batch.truncated
        lanes = np.flatnonzero(ended & batch.mask)
        rows = None
        if batch.team is not None:
            gained = np.where(batch.mask[:, None], batch.team.reward, 0.0)
            self.by_agent = gained if self.by_agent is None else self.by_agent + gained
            rows = self.by_agent[lanes]
            self.by_agent[ended] = 0.0
        finished = Finished(lanes, self.returns[lanes], self.lengths[lanes], rows)
        for lane, score in zip(lanes.tolist(), finished.returns.tolist(), strict=True):
            self.scores[lane].append(score)
        self.returns[ended] = 0.0
        self.lengths[ended] = 0
        return finished

    def completed(self, first: int = 0, last: int | None = None) -> list[float]:
        """Return scores of the lanes first, ..., last - 1 (for example of one member), lane by lane."""
        return [score for lane in self.scores[first:last] for score in lane]


def hold_actions(rng: np.random.Generator, draws: np.ndarray, longest: int) -> np.ndarray:
    """Hold draws over time: each lane is cut into segments, and a segment repeats its first draw.

    Segment lengths are uniform on 1 .. `longest`. With ε-greedy draws a random action then lasts for a whole segment,
    which carries exploration further than independent steps do (Dabney et al. 2021, arXiv:2006.01782, section 3, with
    a bounded uniform duration instead of their zeta distribution); the fraction of random steps stays ε.

    Args:
        draws: [T, E, ...] independent draws. longest: 1 returns `draws` unchanged.
    """
    if longest <= 1:
        return draws
    steps, lanes = draws.shape[:2]
    lengths = rng.integers(1, longest + 1, size=(steps, lanes))
    ends = np.cumsum(lengths, axis=0)  # segment k of a lane covers the steps ends[k - 1] .. ends[k] - 1
    first = np.empty((steps, lanes), np.int64)
    for lane in range(lanes):
        piece = np.searchsorted(ends[:, lane], np.arange(steps), side="right")
        first[:, lane] = np.where(piece > 0, ends[np.maximum(piece - 1, 0), lane], 0)
    return draws[first, np.arange(lanes)]


def scale_noise_per_lane(draws: tuple[np.ndarray, ...], least: float) -> tuple[np.ndarray, ...]:
    """Scale noise [T, E, A] linearly over lanes: times `least` in the first one, times 1 in the last one.

    Lanes with little noise show the policy's own performance, the others explore around it, and all feed one replay
    buffer (Horgan et al. 2018, arXiv:1803.00933, equation 1, there over the actors' ε and in equal ratios).
    """
    if least == 1:
        return draws
    return tuple(part * np.linspace(least, 1, part.shape[1])[:, None] for part in draws)


def calculate_vectorized_scores(
    rewards: np.ndarray, terminations: np.ndarray, include_unterminated: bool = False, only_first_episode: bool = True
) -> list[float]:
    """Return episode returns from recorded steps, in a flat list, environment by environment.

    Args:
        rewards: [E, T]. terminations: [E, T], non-zero at the last step of an episode.
        include_unterminated: also count rewards after an environment's last end. An environment without any end always
            counts with all its rewards.
        only_first_episode: one number per environment.
    """
    rewards, ends = np.asarray(rewards, dtype=np.float64), np.asarray(terminations).astype(bool)
    if rewards.ndim != 2 or rewards.shape != ends.shape:
        raise ConfigError(f"rewards and terminations must both be [envs, steps]; got {rewards.shape}, {ends.shape}.")
    scores: list[float] = []
    for reward, end in zip(rewards, ends, strict=True):
        parts = np.split(reward, np.flatnonzero(end) + 1)  # the last part follows the last end
        rest = parts.pop()
        if not parts or (include_unterminated and len(rest)):
            parts.append(rest)
        scores += [float(part.sum()) for part in (parts[:1] if only_first_episode else parts)]
    return scores
