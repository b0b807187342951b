"""Evolution: selection and mutation. Published names are imported at their first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agilerl.hpo.mutation import MutationRecord, Mutations
    from agilerl.hpo.operators import HyperparameterConfig, RLParameter
    from agilerl.hpo.tournament import TournamentSelection

__all__ = ["HyperparameterConfig", "MutationRecord", "Mutations", "RLParameter", "TournamentSelection"]
_HOME = {
    **dict.fromkeys(("MutationRecord", "Mutations"), "agilerl.hpo.mutation"),
    **dict.fromkeys(("HyperparameterConfig", "RLParameter"), "agilerl.hpo.operators"),
    "TournamentSelection": "agilerl.hpo.tournament",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'agilerl.hpo' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
