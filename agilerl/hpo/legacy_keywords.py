"""Keywords of the first published versions of `Mutations`, as a hyperparameter configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agilerl.hpo.operators import HyperparameterConfig, RLParameter

# Keyword stem -> attributes that an agent may have for it.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "lr": ("lr", "lr_actor", "lr_critic"),
    "learn_step": ("learn_step",),
    "batch_size": ("batch_size",),
}
BOUNDS: dict[str, tuple[float, float]] = {"lr": (1e-4, 1e-2), "learn_step": (1, 120), "batch_size": (8, 1024)}


@dataclass(frozen=True)
class Selection:
    """`rl_hp_selection` and the bounds that came with it.

    Attributes:
        names: what may change; None leaves the choice to each agent's `hp_config`.
        bounds: (min, max) by stem, used where the agent's `hp_config` has no entry.
    """

    names: tuple[str, ...] | None
    bounds: dict[str, tuple[float, float]]

    @classmethod
    def of(cls, names: Sequence[str] | None, **limits: float | None) -> Selection:
        """From the keywords min_lr, max_lr, min_learn_step, ... (None: the default of the first versions)."""
        bounds = {}
        for stem, (low, high) in BOUNDS.items():
            given = limits.get(f"min_{stem}"), limits.get(f"max_{stem}")
            bounds[stem] = (low if given[0] is None else given[0], high if given[1] is None else given[1])
        return cls(None if names is None else tuple(names), bounds)

    def config_for(self, agent: Any, own: HyperparameterConfig | None) -> HyperparameterConfig:
        """What may change on this agent: its own configuration, or the selected part of it, completed by defaults."""
        if self.names is None:
            return own if own is not None else HyperparameterConfig()
        chosen: dict[str, RLParameter] = {}
        for name in self.names:
            for attribute in ATTRIBUTES.get(name, (name,)):
                if own is not None and attribute in own:
                    chosen[attribute] = own[attribute]
                elif name in self.bounds and hasattr(agent, attribute):
                    low, high = self.bounds[name]
                    chosen[attribute] = RLParameter(low, high, dtype=float if name == "lr" else int)
        return HyperparameterConfig(**chosen)
