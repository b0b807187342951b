"""The keys of a manifest's algorithm section, as the algorithm's own class declares them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

from agilerl.algorithms import find_algorithm
from agilerl.algorithms.declared import hyperparameters


def algorithm_model(name: str) -> type[BaseModel]:
    """A pydantic model of the algorithm's keys (without `name`)."""
    cls: Any = find_algorithm(name)
    return _model_of(cls)


@lru_cache(maxsize=64)
def _model_of(cls: Any) -> type[BaseModel]:
    fields: dict[str, Any] = {name: (each.values, each.manifest) for name, each in hyperparameters(cls).items()}
    return create_model(f"{cls.__name__}Keys", __config__=ConfigDict(extra="forbid"), **fields)
