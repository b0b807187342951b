"""Vector steps of a rollout that are filled lane by lane."""

from __future__ import annotations

from typing import Any

import numpy as np

from agilerl.core import tree as trees
from agilerl.envs.step import StepBatch


class Row:
    """One vector step of a rollout, filled lane by lane; lanes without a step in it keep `obs` and are not transitions.

    Attributes:
        obs: [L, ...] before the step. mask: [L, W] legal actions, None for all.
        acted: of each group, as `OnPolicyGeneration._act` returns it.
        outcome: of the step.
    """

    def __init__(self, obs: Any, mask: np.ndarray | None, acted: list[Any]) -> None:
        self.obs, self.mask = trees.copy(obs), None if mask is None else mask.copy()
        self.acted = [(action.copy(), log_prob.copy(), *rest) for action, log_prob, *rest in acted]
        lanes = trees.count_rows(obs)
        flags = np.zeros((4, lanes), bool)
        self.outcome = StepBatch(
            trees.copy(obs), np.zeros(lanes), flags[0], flags[1], trees.copy(obs), flags[2], {}, healed=flags[3]
        )

    def begin(
        self, lanes: np.ndarray, obs: Any, mask: np.ndarray | None, acted: list[Any], of_groups: list[np.ndarray]
    ) -> None:
        """Write what the lanes [L] bool do in this step; `of_groups`: the rows of each group among them."""
        trees.put(self.obs, lanes, trees.take(obs, lanes))
        if mask is not None:
            self.mask = np.ones_like(mask) if self.mask is None else self.mask
            self.mask[lanes] = mask[lanes]
        for rows, mine, theirs in zip(of_groups, self.acted, acted, strict=True):
            for part, values in zip(mine[:2], theirs[:2], strict=True):
                part[rows] = values[rows]

    def finish(self, lanes: np.ndarray, batch: StepBatch) -> None:
        """Write the outcome of the step in the lanes [L] bool."""
        out = self.outcome
        for part, values in ((out.obs, batch.obs), (out.final_obs, batch.final_obs)):
            trees.put(part, lanes, trees.take(values, lanes))
        flags = [(out.terminated, batch.terminated), (out.truncated, batch.truncated), (out.mask, batch.mask)]
        flags += [] if batch.healed is None or out.healed is None else [(out.healed, batch.healed)]
        for part, values in ((out.reward, batch.reward), *flags):
            part[lanes] = values[lanes]
