"""Published import path of the evolvable base class, its containers and the mutation decorator."""

from agilerl.modules.checks import as_widths, is_untouched
from agilerl.modules.containers import EvolvableWrapper, ModuleDict
from agilerl.modules.dummy import DummyEvolvable
from agilerl.modules.evolvable import EvolvableModule, Fresh
from agilerl.modules.mutations import MutationType, Refused, first, mutation

__all__ = [
    "DummyEvolvable",
    "EvolvableModule",
    "EvolvableWrapper",
    "Fresh",
    "ModuleDict",
    "MutationType",
    "Refused",
    "as_widths",
    "first",
    "is_untouched",
    "mutation",
]
