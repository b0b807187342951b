"""Evolution: selection and mutation. Imports are lazy."""

from typing import TYPE_CHECKING

from agilerl.core.lazy import attributes

if TYPE_CHECKING:
    from agilerl.hpo.mutation import MutationRecord, Mutations
    from agilerl.hpo.operators import HyperparameterConfig, RLParameter
    from agilerl.hpo.tournament import TournamentSelection

__all__ = ["HyperparameterConfig", "MutationRecord", "Mutations", "RLParameter", "TournamentSelection"]
_HOMES = {
    "mutation": "MutationRecord Mutations",
    "operators": "HyperparameterConfig RLParameter",
    "tournament": "TournamentSelection",
}
__getattr__, __dir__ = attributes(__name__, _HOMES)
