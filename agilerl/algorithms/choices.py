"""What algorithms that value every choice share: actions as numbers, in replay and at the network's outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.checks import legal_actions
from agilerl.algorithms.core.observations import check_discrete_actions
from agilerl.algorithms.core.single_agent import RLAlgorithm
from agilerl.errors import ShapeError
from agilerl.networks.joint_actions import JointActions


class ChoiceAlgorithm(RLAlgorithm):
    """An algorithm for Discrete and MultiDiscrete actions with one output per combination.

    Replay holds the number of a combination; `get_action` and `learn` speak of the space's own actions.
    """

    action_spaces = ("Discrete", "MultiDiscrete")

    @property
    def choices(self) -> JointActions:
        """How the actions of the space are numbered."""
        return JointActions.of(self.action_space, self.algo)

    def _check_actions(self) -> None:
        """AlgorithmError for an action space with too many combinations."""
        _ = self.choices

    def environment_action(self, action: np.ndarray) -> np.ndarray:
        """Numbers [...] as actions [..., *shape] of the space."""
        return self.choices.decode(action)

    def legal_choices(self, mask: np.ndarray) -> np.ndarray:
        """Masks [..., Σn] of the components as masks of the combinations."""
        return self.choices.legal(mask)

    def prepare_action(self, action: Tensor, count: int) -> Tensor:
        """Actions of the space [B, *shape] as numbers [B] int64."""
        choices, owner = self.choices, f"{self.algo}.learn"
        wanted = (count, *choices.shape)
        if choices.shape and action.numel() != int(np.prod(wanted)):
            raise ShapeError(
                f"{owner} got actions of shape {tuple(action.shape)}; expected {wanted}. "
                "fix: store what get_action returned."
            )
        if not choices.shape:
            number = super().prepare_action(action - choices.start[0], count)
        else:
            parts = action.reshape(wanted).cpu().numpy()
            low, high = np.array(choices.start), np.array(choices.start) + np.array(choices.sizes)
            flat = parts.reshape(count, -1)
            if ((flat < low) | (flat >= high) | (flat != np.floor(flat))).any():
                raise ShapeError(
                    f"{owner} got actions outside of {self.action_space}. fix: store what get_action returned."
                )
            number = torch.from_numpy(choices.encode(parts)).to(action.device)
        check_discrete_actions(number, choices.count, owner)
        return number

    def _legal(self, mask: Any, lanes: int) -> np.ndarray | None:
        """A caller's mask [Σn] or [E, Σn] as [E, A]; None stays None."""
        legal = legal_actions(f"{self.algo}.get_action", mask, (lanes, sum(self.choices.sizes)))
        return None if legal is None else self.choices.legal(legal)
