"""Networks as data: their constructor arguments, their specification, their short form for tables."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Self

import torch

from agilerl.errors import ConfigError
from agilerl.modules.mlp import EvolvableMLP
from agilerl.networks.borrowed import BorrowedEncoder, stand_in
from agilerl.networks.encoders import ENCODERS, encoder_named
from agilerl.networks.spaces import space_from_json, space_to_json

# Options that are attributes of every network, whether its class takes them as arguments or not.
OPTIONS: dict[str, Any] = {"normalize_images": True, "encoder_name": "encoder", "normalize_observations": False}
BORROWED = "of the lender"  # stands for the encoder in the spec of a network that has none


class AsData(BorrowedEncoder):
    """What `EvolvableNetwork` says about itself, and how it is made again from that."""

    encoder: Any

    def get_init_dict(self) -> dict[str, Any]:
        """Constructor arguments of this network as it is now."""
        configs = {"encoder_config": self.encoder.net_config}
        if "head_net" in self._modules:
            configs["head_config"] = self.head_net.net_config
        arguments = super().get_init_dict()
        return arguments | {k: v for k, v in configs.items() if k in arguments}

    def spec(self) -> dict[str, Any]:
        """Architecture as JSON-able data; `from_spec` makes a network of it (with fresh weights)."""
        data = self.get_init_dict()
        if self.lender is not None:
            data.pop("encoder_config")
        for name in ("device", "random_seed", "encoder_cls"):
            data.pop(name, None)
        for name in ("observation_space", "action_space"):
            data[name] = None if data.get(name) is None else space_to_json(data[name])
        kind = type(self.encoder)
        if self.lender is not None:
            data["encoder_cls"] = BORROWED
        elif kind is not EvolvableMLP:
            known = ENCODERS.get(kind.__name__) is kind
            data["encoder_cls"] = kind.__name__ if known else f"{kind.__module__}.{kind.__qualname__}"
        for name, usual in OPTIONS.items():  # a subclass need not take them as arguments
            data[name] = getattr(self, name)
            if data[name] == usual:
                del data[name]
        return {"class": type(self).__name__, **data}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], **arguments: Any) -> Self:
        """A network with the architecture of `spec`.

        Args:
            spec: what `spec()` returned, straight or through JSON.
            arguments: `device`, `random_seed`, and `encoder_cls` where the encoder is a class of your own.
        """
        data = dict(spec)
        if data.pop("class", cls.__name__) != cls.__name__:
            raise ConfigError(f"this is the spec of a {spec['class']}, not of a {cls.__name__}")
        encoder = data.pop("encoder_cls", None)
        if encoder == BORROWED and "encoder_cls" not in arguments:
            raise ConfigError(
                f"this {cls.__name__} reads the features of another network, which the spec does not hold. "
                "fix: network.rebuilt(spec, device) of one that reads it, or load the whole agent."
            )
        if encoder is not None and "encoder_cls" not in arguments:
            if encoder not in ENCODERS:
                raise ConfigError(f"the encoder is a {encoder}: pass encoder_cls=")
            arguments["encoder_cls"] = encoder_named(encoder)
        for name in ("observation_space", "action_space"):
            if data.get(name) is not None:
                data[name] = space_from_json(data[name])
            elif name in data:
                del data[name]
        taken = inspect.signature(cls).parameters
        later = {name: data.pop(name) for name in OPTIONS if name in data and name not in taken}
        network = cls(**{**data, **arguments})
        for name, value in later.items():
            setattr(network, name, value)
        return network

    def rebuilt(self, spec: Mapping[str, Any], device: str | torch.device) -> Self:
        """As `from_spec`, with this network's own encoder class where the spec names that one, or with its lender."""
        kind = type(self.encoder)
        if self.lender is not None and spec.get("encoder_cls") == BORROWED:
            encoder = {**stand_in(self.lender), "latent_dim": spec["latent_dim"]}
            made = type(self).from_spec(spec, device=device, **encoder)
            made.borrow_encoder(self.lender)
            return made
        own = spec.get("encoder_cls") == f"{kind.__module__}.{kind.__qualname__}"
        return type(self).from_spec(spec, device=device, **({"encoder_cls": kind} if own else {}))

    def describe(self) -> str:
        """Short form for tables, e.g. "[64, 64] 64 [32]": encoder, latent width, head."""
        return " ".join(str(part) for part in self._short())

    def _short(self) -> Iterable[Any]:
        yield self.encoder.short()
        yield self.latent_dim
        if "head_net" in self._modules:
            yield self.head_net.hidden_size
