"""Networks without an encoder of their own: they read the features of another network, as constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agilerl.errors import AlgorithmError
from agilerl.modules.base import EvolvableModule, is_untouched
from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.spec import DenseStack
from agilerl.networks.parts import dense_stacks


class EncoderMismatchError(AlgorithmError, KeyError):
    """Networks that are to share an encoder have different ones."""

    def __str__(self) -> str:
        """The message as it is; a KeyError would show its quoted form."""
        return str(self.args[0])


class BorrowedEncoder(EvolvableModule):
    """What `EvolvableNetwork` does where its features come from another network, its lender.

    The lender's weights are none of this network's: not among its parameters, in its state or in its optimiser, and no
    gradient reaches them from here. Its architecture mutations are those of its own head.
    """

    encoder: Any
    head_net: EvolvableMLP
    latent_dim: int

    @property
    def lender(self) -> Any:
        """The network whose features are read; None for a network with an encoder of its own."""
        return self.__dict__.get("_lender")

    def borrow_encoder(self, lender: Any) -> None:
        """Read the features of `lender` from now on; an encoder of its own is given up."""
        self._modules.pop("encoder", None)
        self.__dict__["_lender"] = lender  # past torch, which would take the lender's weights for ours

    def check_same_encoder(self, lender: Any) -> None:
        """EncoderMismatchError where the features so far come from an encoder of another architecture."""
        mine, theirs = (architecture(network.encoder) for network in (self, lender))
        if mine != theirs:
            raise EncoderMismatchError(
                f"incompatible encoder architectures: {type(self).__name__} has {mine}, {type(lender).__name__} "
                f"{theirs}. fix: build both with the same encoder_config and latent_dim, or share_encoders=False."
            )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            lender = self.__dict__.get("_lender") if name == "encoder" else None
            return super().__getattr__(name) if lender is None else lender.encoder

    def not_owned(self) -> Sequence[Any]:
        """The lender is not copied with the network: the copy reads it too."""
        return () if self.lender is None else (self.lender,)

    @torch.no_grad()
    def lent_features(self, obs: Any) -> Tensor:
        """Features [..., latent_dim] of the lender for observations, as constants."""
        features: Tensor = self.lender.extract_features(obs)
        return features

    @property
    def takes_features(self) -> bool:
        """Whether `from_features` of the lender's features is what `output` gives."""
        writer: Any = next(cls for cls in type(self).__mro__ if "output" in vars(cls))
        return self.lender is not None and "from_features" in vars(writer) and is_untouched(self)

    def lent_depth(self) -> int | None:
        """How many layers of the lender's one dense stack are its encoder; None where it is no such stack."""
        stack = self.lender.encoder.dense_stack()
        parts = self.lender.dense_parts()
        return None if stack is None or parts is None or tuple(parts) != ("",) else len(stack.layers)

    def head_alone(self) -> dict[str, DenseStack] | None:
        """The dense parts of a network that borrows: its head; None where that, or the lender, is anything more."""
        if not self.takes_features or self.lent_depth() is None:
            return None
        return dense_stacks(self, {"head_net": self.head_net})


def stand_in(lender: Any) -> dict[str, Any]:
    """Constructor arguments for a network that will read `lender`: those of an encoder that is given up at once.

    It has no LayerNorm: critics would warn of one that they never have.
    """
    config = {k: v for k, v in lender.encoder.net_config.items() if k not in ("layer_norm", "output_layernorm")}
    return {"encoder_cls": type(lender.encoder), "encoder_config": config, "latent_dim": lender.latent_dim}


def architecture(encoder: Any) -> str:
    """What two encoders must have in common to stand for each other: class, activation, shapes of the weights."""
    shapes = {name: tuple(p.shape) for name, p in encoder.named_parameters()}
    return f"{type(encoder).__name__}({getattr(encoder, 'activation', None)}, {shapes})"
