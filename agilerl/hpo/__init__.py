"""Evolution: selection and mutation. Published names are imported at their first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agilerl.hpo.mutation import MutationRecord, Mutations
    from agilerl.hpo.operators import HyperparameterConfig, RLParameter
    from agilerl.hpo.tournament import TournamentSelection

__all__ = ["HyperparameterConfig", "MutationRecord", "Mutations", "RLParameter", "TournamentSelection"]
_ROOMS = ("operators", "mutation", "mutation", "operators", "tournament")  # of these names


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'agilerl.hpo' has no attribute {name!r}")
    return getattr(import_module(f"agilerl.hpo.{_ROOMS[__all__.index(name)]}"), name)
