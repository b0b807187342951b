"""Published import path of the evolvable base class, its containers and the mutation decorator."""

from agilerl.modules.dummy import DummyEvolvable
from agilerl.modules.evolvable import (
    EvolvableModule,
    EvolvableWrapper,
    Fresh,
    ModuleDict,
    MutationType,
    Refused,
    first,
    is_untouched,
    mutation,
)

__all__ = [
    "DummyEvolvable",
    "EvolvableModule",
    "EvolvableWrapper",
    "Fresh",
    "ModuleDict",
    "MutationType",
    "Refused",
    "first",
    "is_untouched",
    "mutation",
]
