"""What goes into an update and comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from agilerl.tree import map_leaves


@dataclass(frozen=True)
class TransitionBatch:
    """Sampled transitions; every tensor may carry a leading member axis.

    Attributes:
        obs, next_obs: [..., B, ...] as the engine's networks take them: preprocessed [..., B, in] over rows, plain
            observations with modules (a module preprocesses by itself): nested dicts of tensors for Dict and Tuple
            spaces.
        action: [..., B] int64 (or [..., B, A] float).
        reward, done: [..., B]; `done` means terminated.
        weight: [..., B] in the first B_i rows of a member 1/B_i (times the importance weight under prioritised
            replay), 0 beyond.
        next_mask: [..., B, A] bool, the actions that are legal in `next_obs`; None where all are.
        obs_mask: [..., B, A] bool, those that were in `obs`, for algorithms with `learns_from_obs_mask`.
        discount: [..., B] what the value of `next_obs` counts: γ^k · (1 − terminated) after k steps; None where every
            transition is one step (see `discounts`).
        noise: name -> [..., K, ...] numbers that `draw_noise` of the algorithm drew for this update; K is B, or what
            the algorithm asked for, and then a member with fewer than the others has zeros at the end.
        number: of this update in its generation (of the agent's updates, when it learns alone).
    """

    obs: Any
    action: Tensor
    reward: Tensor
    next_obs: Any
    done: Tensor
    weight: Tensor
    next_mask: Tensor | None = None
    discount: Tensor | None = None
    noise: Mapping[str, Tensor] = field(default_factory=dict)
    number: int = 0
    obs_mask: Tensor | None = None

    def discounts(self, gamma: Tensor) -> Tensor:
        """`discount` [..., B]; where it was not stored, γ · (1 − terminated) for `gamma` [N, 1] or a scalar."""
        return gamma * (1 - self.done) if self.discount is None else self.discount

    def map(self, change: Callable[[Tensor], Tensor]) -> TransitionBatch:
        """The batch with `change` applied to every tensor that is there."""
        changed: dict[str, Any] = {k: change(v) for k, v in vars(self).items() if isinstance(v, Tensor)}
        changed |= {k: map_leaves(change, getattr(self, k)) for k in ("obs", "next_obs") if k not in changed}
        return replace(self, **changed, noise={k: change(v) for k, v in self.noise.items()})

    def of_member(self, member: int) -> TransitionBatch:
        """The rows of one member, without the member axis."""
        return self.map(lambda x: x[member])


@dataclass(frozen=True)
class RolloutBatch:
    """Rows of rollouts; every tensor may carry a leading member axis.

    Attributes:
        obs: [..., B, ...], prepared as the engine's networks take it.
        action: [..., B] int64, or [..., B, A].
        log_prob, value: [..., B] under the policy that acted. advantage, returns: [..., B].
        weight: [..., B]: 1/B_i in the rows of a member that count, 0 elsewhere.
        legal: [..., B, A] bool, actions that were legal; None where all were.
        hidden: of recurrent policies, key -> [..., layers, S, units] at the start of S sequences; obs and every row
            above are then [..., S·L, ...], sequence by sequence, and `length` is L.
        live: per member whether it learns from this batch; None where all do. With plain modules one entry.
        length: L, steps of a sequence; 1 without recurrence.
        noise: [..., B, A] standard normal numbers of the actions whose density estimates the entropy of a squashed
            policy; None for others, whose entropy has a closed form.
    """

    obs: Any
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor
    weight: Tensor
    legal: Tensor | None = None
    hidden: Mapping[str, Tensor] = field(default_factory=dict)
    live: tuple[bool, ...] | None = None
    length: int = 1
    noise: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> RolloutBatch:
        """The batch with `change` applied to every tensor that is there."""
        changed: dict[str, Any] = {k: change(v) for k, v in vars(self).items() if isinstance(v, Tensor)}
        changed["obs"] = map_leaves(change, self.obs)
        changed["hidden"] = {key: change(part) for key, part in self.hidden.items()}
        return replace(self, **changed)

    def of_member(self, member: int) -> RolloutBatch:
        """The part of one member, without the member axis."""
        live = None if self.live is None else (self.live[member],)
        return replace(self.map(lambda x: x[member]), live=live)


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What one update reports; [N] over rows, scalars with plain modules.

    Attributes:
        loss: of the value function (the only one where there is only one).
        actor_loss: None where the policy was not updated.
        priorities: [..., B] new priorities of the sampled rows, for prioritised replay; None where none are known.
        kl: divergence from the policy that acted, of on-policy algorithms.
    """

    loss: Tensor
    actor_loss: Tensor | None = None
    priorities: Tensor | None = None
    kl: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> UpdateResult:
        """The result with `change` applied to every tensor that is there."""
        given = (self.loss, self.actor_loss, self.priorities, self.kl)
        return UpdateResult(*[None if x is None else change(x) for x in given])  # type: ignore[arg-type]  # loss: given
