"""What a member is, as data: the specs of its networks and its hyperparameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Value = int | float | str | bool | None


def canonical(data: Any) -> str:
    """JSON with sorted keys and no spaces: equal data gives equal text."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class Genome:
    """Frozen, hashable, JSON-able.

    Attributes:
        networks: (attribute name, canonical JSON of the network's `spec()`), sorted by name.
        hyperparameters: (attribute name, value), sorted by name.
    """

    networks: tuple[tuple[str, str], ...] = ()
    hyperparameters: tuple[tuple[str, Value], ...] = ()

    @classmethod
    def of(cls, networks: Mapping[str, Any], hyperparameters: Mapping[str, Value]) -> Genome:
        """From network specs (dicts) and hyperparameter values by attribute name."""
        specs = tuple(sorted((name, canonical(spec)) for name, spec in networks.items()))
        return cls(specs, tuple(sorted(hyperparameters.items(), key=lambda item: item[0])))

    def spec(self, name: str) -> Any:
        """The spec of network `name`, parsed."""
        return json.loads(dict(self.networks)[name])

    def to_json(self) -> str:
        """Canonical JSON text."""
        networks = {name: json.loads(spec) for name, spec in self.networks}
        return canonical({"networks": networks, "hyperparameters": dict(self.hyperparameters)})

    @classmethod
    def from_json(cls, text: str) -> Genome:
        """The inverse of `to_json`."""
        data = json.loads(text)
        return cls.of(data["networks"], data["hyperparameters"])
