"""Evolution: selection and mutation."""

from agilerl.hpo.mutation import MutationRecord, Mutations
from agilerl.hpo.operators import HyperparameterConfig, RLParameter
from agilerl.hpo.tournament import TournamentSelection

__all__ = ["HyperparameterConfig", "MutationRecord", "Mutations", "RLParameter", "TournamentSelection"]
