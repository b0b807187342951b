"""A rollout as the tuple that a `learn` of the user's own takes: transitions alone, whatever the environment gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agilerl import tree as trees
from agilerl.algorithms.rollouts import RolloutExperiences
from agilerl.components.rollout_buffer import RolloutBuffer
from agilerl.envs.step import StepBatch


@dataclass
class Steps:
    """Vector steps of E lanes, as they came.

    Attributes:
        begins: [E] bool, lanes in which an episode begins with the first step.
        obs: [E, ...] what was acted on. reward: [E] as it is learned from. batch: what the environment gave.
        legal: [E, A] bool; None where the environment gave no mask. One of each for every step.
    """

    begins: np.ndarray
    obs: list[Any] = field(default_factory=list)
    reward: list[np.ndarray] = field(default_factory=list)
    batch: list[StepBatch] = field(default_factory=list)
    legal: list[np.ndarray | None] = field(default_factory=list)

    def add(self, obs: Any, reward: np.ndarray, batch: StepBatch, legal: np.ndarray | None) -> None:
        """One vector step."""
        self.obs.append(obs)
        self.reward.append(reward)
        self.batch.append(batch)
        self.legal.append(legal)


def experiences_of(
    steps: Steps, chosen: tuple[list[Any], list[Any], list[Any]], next_obs: Any, recorded: RolloutBuffer | None = None
) -> RolloutExperiences | None:
    """The rollout as the published tuple, with `truncateds` and `final_observations`.

    Rows that are no transitions (autoreset steps, steps of a lane that was replaced) are left out. A lane then has
    fewer rows than another one; all are cut to the shortest, and `next_obs` of a lane that was cut is what followed
    its last row. So entry t of the lists holds the t-th transition of every lane, and need not be of one moment.

    Args:
        chosen: actions, log probabilities and values of every step.
        next_obs: [E, ...] what follows the last step.
        recorded: the same steps in a buffer, for the hidden states and the values that a recurrent agent needs.

    Returns:
        None where a lane has no transition at all.
    """
    valid = np.stack([b.mask for b in steps.batch])  # [T, E]
    lanes = np.arange(valid.shape[1])
    count = int(valid.sum(0).min())
    if not count:
        return None
    rows = np.argsort(~valid, axis=0, kind="stable")[:count]  # [n, E] the first transitions of each lane, in order
    terminated, truncated = (np.stack([getattr(b, k) for b in steps.batch]) for k in ("terminated", "truncated"))
    # What follows a row that is no transition is not the outcome of the row before it: that one was cut off.
    before_gap = np.concatenate((~valid[1:], np.zeros((1, len(lanes)), bool)))
    truncated = truncated | (before_gap & ~terminated)
    ended = terminated | truncated

    def picked(entries: list[Any]) -> list[Any]:
        """Entry t: row rows[t, e] of lane e."""
        if valid.all():
            return entries
        return [_lanes_at(entries, moment) for moment in rows]

    def flags(values: np.ndarray) -> list[np.ndarray]:
        return list(values[rows, lanes])

    action, log_prob, value = chosen
    dones = flags(ended)
    first = np.where(rows[0] == 0, steps.begins, True)
    after = rows[-1] + 1
    more: dict[str, Any] = {}
    known = next((mask for mask in steps.legal if mask is not None), None)
    if known is not None:
        more["action_masks"] = picked([np.ones_like(known) if mask is None else mask for mask in steps.legal])
    if recorded is not None and recorded.hidden_state_architecture:
        more |= _memories(recorded, rows, after)
    return RolloutExperiences(
        (
            picked(steps.obs),
            picked(action),
            picked(log_prob),
            picked(steps.reward),
            [first, *dones[:-1]],
            picked(value),
            _lanes_at([*steps.obs, next_obs], after),
            dones[-1],
            flags(truncated),
            picked([b.final_obs for b in steps.batch]),
        ),
        more,
    )


def _lanes_at(entries: list[Any], moment: np.ndarray) -> Any:
    """Lane e of entry moment[e], [E, ...], nested as the entries are."""
    chosen: Any = None
    for t in np.unique(moment).tolist():
        there = entries[t]
        chosen = there if chosen is None else trees.choose(moment == t, there, chosen)
    return chosen


def _memories(recorded: RolloutBuffer, rows: np.ndarray, after: np.ndarray) -> Mapping[str, Any]:
    """Hidden states before each picked row, and the values that depend on them."""
    lanes = np.arange(rows.shape[1])
    hidden = [
        {key: np.moveaxis(part[moment, lanes], 1, 0) for key, part in recorded.stored("hidden").items()}
        for moment in rows
    ]
    assert recorded.last_value is not None
    following = np.concatenate(
        (recorded.stored("value"), recorded.last_value[None].astype(recorded.fields["value"].dtype))
    )
    final = following[1:].copy()
    for part in recorded.truncations:
        if part.value is not None:
            final[part.step, part.lanes] = part.value
    return {
        "hidden_states": hidden,
        "final_values": list(final[rows, lanes]),
        "last_values": following[after, lanes],
    }
