"""What goes into an update and comes out of it, and the protocols between the engines and the algorithms.

`rows.rows_engine.RowsEngine` runs an update over the rows of a whole group of members; `modules.ModuleEngine` runs the
same update with one agent's own modules and optimisers. The second is the reference, and the path for what does not
stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from agilerl.ranks import Ranks
from agilerl.tree import map_leaves

Network = Callable[..., Tensor]
Draws = tuple[np.ndarray, ...]  # random numbers of exploration, each [..., E, ...]
Mask = np.ndarray | None  # [..., A], 1 = legal; None where everything is


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
        wants_priorities: whether replay is sampled by the priorities that the update reports.
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
    wants_priorities: bool = True

    def discounts(self, gamma: Tensor) -> Tensor:
        """`discount` [..., B]; where it was not stored, γ · (1 − terminated) for `gamma` [N, 1] or a scalar.

        Of teams [..., B, M].
        """
        if self.discount is not None:
            return self.discount
        return (gamma.unsqueeze(-1) if 0 < gamma.dim() < self.done.dim() else gamma) * (1 - self.done)

    def map(self, change: Callable[[Tensor], Tensor]) -> TransitionBatch:
        """The batch with `change` applied to every tensor that is there."""
        changed: dict[str, Any] = {k: change(v) for k, v in vars(self).items() if isinstance(v, Tensor)}
        changed |= {k: map_leaves(change, vars(self)[k]) for k in ("obs", "next_obs") if k not in changed}
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
        acted: of teams [..., B, M] bool, which of the agents decided in the row; None where all of them did. Of teams
            `log_prob`, `value`, `advantage` and `returns` are [..., B, M] too.
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
    acted: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> RolloutBatch:
        """The batch with `change` applied to every tensor that is there."""
        changed: dict[str, Any] = {k: change(v) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **changed | {k: map_leaves(change, vars(self)[k]) for k in ("obs", "hidden")})

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
        fields = (self.loss, self.actor_loss, self.priorities, self.kl)
        return UpdateResult(*[None if x is None else change(x) for x in fields])  # type: ignore[arg-type]  # loss: given


class UpdateEngine(Protocol):
    """What an update may use. Tensors carry a leading member axis [N, ...] over rows, none with plain modules.

    A network is called with what its `output` takes: the observations of the batch and, for action values, actions.

    Attributes:
        hp: name -> [N, 1] tensor, or a scalar tensor with plain modules.
        ranks: processes that train the same members; the gradients of a step are the mean of theirs. A loss that
            divides by a sum over its rows takes that sum over all of them (`ranks.mean`).
    """

    hp: Mapping[str, Tensor]
    ranks: Ranks

    def network(self, name: str) -> Network:
        """The evaluation network, differentiable in its parameters and inputs."""

    def through(self, name: str) -> Network:
        """The evaluation network with its parameters as constants: differentiable in its inputs alone."""

    def through_each(self, names: tuple[str, ...]) -> Callable[[Sequence[tuple[Any, ...]]], Tensor]:
        """Several evaluation networks with their parameters as constants, each of inputs of its own, stacked.

        It is given K tuples of inputs, and gives [K, ..., B, out].
        """

    def frozen(self, name: str) -> Network:
        """The evaluation network as a constant."""

    def target(self, name: str) -> Network:
        """The target network that shadows `name`, as a constant."""

    def frozen_and_target(self, name: str) -> Callable[..., tuple[Tensor, Tensor]]:
        """Both of the last two for the same inputs, in one pass where that is cheaper."""

    def networks(self, names: tuple[str, ...]) -> Network:
        """Several evaluation networks of the same inputs, differentiable, stacked: [K, ..., B, out]."""

    def targets(self, names: tuple[str, ...]) -> Network:
        """Their target networks, as constants: [K, ..., B, out]."""

    def forward(self, name: str, x: Any) -> tuple[Tensor, Any]:
        """One pass through the evaluation network for a loss that knows its own gradient: no autograd over rows.

        Returns:
            The outputs [..., B, out] as constants, and the pass itself, which `descend` takes back.
        """

    def descend(self, optimizer: str, ran: Any, grad: Tensor, max_norm: Tensor | None = None) -> None:
        """One step of `optimizer`, given the loss's gradient at the outputs of `ran`."""

    def descend_all(
        self,
        optimizer: str,
        outputs: Sequence[Tensor],
        grads: Sequence[Tensor],
        max_norm: Tensor | None = None,
        live: Sequence[bool] | None = None,
    ) -> None:
        """One step of `optimizer`, given the loss's gradients at outputs of `network`s.

        Gradients are clipped to `max_norm`, those of each network by themselves. Members that are not `live` [N] do
        not move at all.
        """

    def minimise(self, optimizer: str | tuple[str, ...], loss: Tensor, max_norm: Tensor | None = None) -> None:
        """One step of `optimizer` on `loss` ([N] or scalar) by autograd, gradients clipped to `max_norm` if given.

        Several optimisers take one step each, on `loss` [K, N] or [K]: entry k is what optimiser k minimises.
        """

    def track(self, name: str | tuple[str, ...], tau: Tensor) -> None:
        """Soft update of the target of `name`, or of several: θ⁻ ← τ·θ + (1 − τ)·θ⁻."""

    def set_noise(self, name: str, values: Tensor, target_values: Tensor | None = None) -> None:
        """Give the noisy layers of a network, and those of its target, the noise of this update.

        Args:
            values, target_values: [..., S] from `batch.noise`, as `modules.layers.layer_noise` drew it.
        """


class Trainable(Protocol):
    """What engines and learners ask of an agent; they know no algorithm.

    `update` runs once for a whole group of members: of the agent that it is called on it may read only what
    `update_options` names, which the members of a group have in common.
    """

    index: int
    learn_counter: int

    @property
    def registry(self) -> Any:
        """Network groups, optimisers and sources of encoders, see `algorithms.base.registry`."""

    @property
    def is_recurrent(self) -> bool:
        """Whether acting needs a hidden state; then there are `recur` and `get_initial_hidden_state`."""

    def update(self, engine: UpdateEngine, batch: Any) -> UpdateResult:
        """One update of every member in `engine`."""

    def update_hyperparameters(self) -> dict[str, float]:
        """The numbers that an update reads as tensors."""

    def update_options(self) -> tuple[Any, ...]:
        """Options that an update branches on."""

    def update_interval(self) -> int:
        """How often it learns, in environment steps (of rollouts: their length in vector steps)."""

    def evaluation_networks(self) -> dict[str, nn.Module]:
        """The evaluation network of every group, by attribute name."""

    def policy_module(self) -> Any:
        """The policy."""

    def reading(self) -> tuple[Any, ...]:
        """What of preparing observations is an option: members that share it can be given them in one call."""

    @property
    def row_input(self) -> Callable[[Any], Any]:
        """What prepares stored observations [N, ...] for networks over rows: as a tensor, or a tree of them."""

    def policy_program(self, network: Callable[[str], Network]) -> Network:
        """The policy's raw outputs [N, E, out] as a function of prepared observations, given what runs a network."""

    def policy_output(self, obs: Any, noisy: bool = False) -> Tensor:
        """Raw output of the policy's own modules for observations [E, ...]."""

    def follow_optimizers(self) -> None:
        """Take over what was done to the networks or the torch optimisers themselves."""

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """Greedy actions from policy outputs [..., out]."""

    def explore(self, outputs: Tensor, draws: Draws, epsilon: float, mask: Mask = None) -> np.ndarray:
        """Actions to store, from policy outputs [..., out]."""

    def environment_action(self, action: np.ndarray) -> np.ndarray:
        """Stored actions as the environment takes them."""

    def legal_choices(self, mask: np.ndarray) -> np.ndarray:
        """The environment's masks as masks of what the policy chooses among."""
