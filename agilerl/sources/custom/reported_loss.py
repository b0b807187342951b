"""Parse the loss returned by an agent's custom `learn`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def reported_loss(result: Any) -> float | None:
    """Return the loss to record from the output of `learn`; None if it reports none.

    Args:
        result: None, a number, a one-element tensor or array, (actor loss or None, critic loss), of which the last
            that is not None is used, or a mapping of these by group, which is averaged.
    """
    if isinstance(result, Mapping):
        losses = [loss for value in result.values() if (loss := reported_loss(value)) is not None]
        return float(np.mean(losses)) if losses else None
    if isinstance(result, tuple | list):
        losses = [loss for value in result if (loss := reported_loss(value)) is not None]
        return losses[-1] if losses else None
    if isinstance(result, torch.Tensor):
        result = result.detach().cpu().numpy()
    if result is None or isinstance(result, str | bytes) or np.size(result) != 1:
        return None
    return float(np.ravel(result)[0])
