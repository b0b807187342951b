"""The loss that an agent's own `learn` reports, whatever form it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def reported_loss(result: Any) -> float | None:
    """The number to record of what `learn` returned; None where it reports none.

    Args:
        result: None, a number, a tensor or array of one element, (actor loss or None, critic loss), of which the
            last that is not None counts, or one of these by group, of which the mean counts.
    """
    if isinstance(result, Mapping):
        each = [loss for value in result.values() if (loss := reported_loss(value)) is not None]
        return float(np.mean(each)) if each else None
    if isinstance(result, tuple | list):
        each = [loss for value in result if (loss := reported_loss(value)) is not None]
        return each[-1] if each else None
    if isinstance(result, torch.Tensor):
        result = result.detach().cpu().numpy()
    if result is None or isinstance(result, str | bytes) or np.size(result) != 1:
        return None
    return float(np.ravel(result)[0])
