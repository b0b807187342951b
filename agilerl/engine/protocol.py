"""Inputs and outputs of updates, and the protocols between engines and algorithms.

`rows.rows_engine.RowsEngine` runs an update over the rows of a group of members; `modules.ModuleEngine` runs the same
update with one agent's modules and optimisers. The second is the reference, and the fallback for agents that cannot be
stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from agilerl.core import tree as trees
from agilerl.core.tree import Tree, map_leaves
from agilerl.engine.recipes import Recipe
from agilerl.ranks import Ranks

Network = Callable[..., Tensor]
Draws = tuple[np.ndarray, ...]  # random numbers of exploration, each [..., E, ...]
Mask = np.ndarray | None  # [..., A], 1 = legal; None if everything is legal


@dataclass(frozen=True)
class TransitionBatch:
    """Sampled transitions; every tensor may have a leading member axis.

    Attributes:
        obs, next_obs: [..., B, ...] inputs of the engine's networks: preprocessed [..., B, in] over rows, raw
            observations with modules, which preprocess them; nested dicts of tensors for Dict and Tuple spaces.
        action: [..., B] int64 (or [..., B, A] float).
        reward, done: [..., B]; `done` means terminated.
        weight: [..., B] in the first B_i rows of a member 1/B_i (times the importance weight under prioritised
            replay), 0 beyond.
        next_mask: [..., B, A] bool, legal actions in `next_obs`; None if all are legal.
        obs_mask: [..., B, A] bool, legal actions in `obs`, for algorithms with `learns_from_obs_mask`.
        wants_priorities: whether replay is sampled by the priorities that the update reports.
        discount: [..., B] factor of the value of `next_obs`: γ^k · (1 − terminated) after k steps; None if all
            transitions are one step (see `discounts`).
        noise: name -> [..., K, ...] numbers drawn by the algorithm's `draw_noise` for this update. K is B or defined by
            the algorithm; members with fewer numbers are padded with zeros.
        number: number of this update in its generation (among the agent's updates, if it learns alone).
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
        """Return `discount` [..., B], by default γ · (1 − terminated) for `gamma` [N, 1] or a scalar.

        [..., B, M] for teams.
        """
        if self.discount is not None:
            return self.discount
        return (gamma.unsqueeze(-1) if 0 < gamma.dim() < self.done.dim() else gamma) * (1 - self.done)

    def map(self, change: Callable[[Tensor], Tensor]) -> TransitionBatch:
        """Return the batch with `change` applied to every tensor."""
        changed: dict[str, Any] = {k: change(v) for k, v in vars(self).items() if isinstance(v, Tensor)}
        changed |= {k: map_leaves(change, vars(self)[k]) for k in ("obs", "next_obs") if k not in changed}
        return replace(self, **changed, noise={k: change(v) for k, v in self.noise.items()})

    def of_member(self, member: int) -> TransitionBatch:
        """Return the rows of one member, without the member axis."""
        return self.map(lambda x: x[member])


@dataclass(frozen=True)
class TransitionBatches:
    """Batches of U consecutive updates.

    Attributes:
        fields: name -> [U, ...], the attributes of `TransitionBatch` by name; nested dicts for Dict and Tuple spaces.
        weight: [U, ...]. noise: name -> [U, ...].
        count: U. number: of the first update in its generation. wants_priorities: see `TransitionBatch`.
    """

    fields: Mapping[str, Any]
    weight: Tensor
    noise: Mapping[str, Tensor]
    count: int
    number: int
    wants_priorities: bool

    def each(self) -> list[TransitionBatch]:
        """Return the batch of every update."""
        fields = {
            name: values.unbind() if isinstance(values, Tensor) else _unbound(values, self.count)
            for name, values in self.fields.items()
        }
        weight = self.weight.unbind()
        return [
            TransitionBatch(
                **{name: values[k] for name, values in fields.items()},
                weight=weight[k],
                noise={name: values[k] for name, values in self.noise.items()},
                number=self.number + k,
                wants_priorities=self.wants_priorities,
            )
            for k in range(self.count)
        ]

    def stacked(self) -> TransitionBatch:
        """Return one batch whose tensors have a leading axis of updates."""
        others = {name: value for name, value in vars(self).items() if name not in ("fields", "count")}
        return TransitionBatch(**self.fields, **others)


def _unbound(tree: Tree, count: int) -> list[Any]:
    """Unbind a tree with leaves [count, ...]; as `unbind`, but faster for the dict of dicts of a team."""
    if type(tree) is not dict:
        return trees.unbind(tree)
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    for key, part in tree.items():
        if isinstance(part, Tensor):
            parts: Sequence[Any] = part.unbind()
        elif type(part) is dict and all(isinstance(leaf, Tensor) for leaf in part.values()):
            inner = [leaf.unbind() for leaf in part.values()]
            parts = [dict(zip(part, row, strict=True)) for row in zip(*inner, strict=True)]
        else:
            parts = trees.unbind(part)
        for row, entry in zip(rows, parts, strict=True):
            row[key] = entry
    return rows


@dataclass(frozen=True)
class RolloutBatch:
    """Rows of rollouts; every tensor may have a leading member axis.

    Attributes:
        obs: [..., B, ...], inputs of the engine's networks.
        action: [..., B] int64, or [..., B, A].
        log_prob, value: [..., B] under the behaviour policy. advantage, returns: [..., B].
        weight: [..., B]: 1/B_i in the valid rows of a member, 0 elsewhere.
        legal: [..., B, A] bool, legal actions; None if all were legal.
        hidden: for recurrent policies, key -> [..., layers, S, units] at the start of S sequences; obs and all rows
            above are then [..., S·L, ...], sequence by sequence, and `length` is L.
        live: whether each member learns from this batch; None if all do. One entry with plain modules.
        length: L, steps of a sequence; 1 without recurrence.
        noise: [..., B, A] standard normal numbers of the actions whose density estimates the entropy of a squashed
            policy; None for policies whose entropy has a closed form.
        acted: [..., B, M] bool for teams, agents that decided in the row; None if all did. `log_prob`, `value`,
            `advantage` and `returns` of teams are [..., B, M] too.
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
        """Return the batch with `change` applied to every tensor."""
        changed: dict[str, Any] = {k: change(v) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **changed | {k: map_leaves(change, vars(self)[k]) for k in ("obs", "hidden")})

    def of_member(self, member: int) -> RolloutBatch:
        """Return the part of one member, without the member axis."""
        live = None if self.live is None else (self.live[member],)
        return replace(self.map(lambda x: x[member]), live=live)


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """Result of one update; [N] over rows, scalars with plain modules.

    Attributes:
        loss: of the value function, or the only loss.
        actor_loss: None if the policy was not updated.
        priorities: [..., B] new priorities of the sampled rows, for prioritised replay; None if unavailable.
        kl: divergence from the behaviour policy, for on-policy algorithms.
    """

    loss: Tensor
    actor_loss: Tensor | None = None
    priorities: Tensor | None = None
    kl: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> UpdateResult:
        """Return the result with `change` applied to every tensor."""
        fields = (self.loss, self.actor_loss, self.priorities, self.kl)
        return UpdateResult(*[None if x is None else change(x) for x in fields])  # type: ignore[arg-type]  # loss: given


class UpdateEngine(Protocol):
    """Interface for updates. Tensors have a leading member axis [N, ...] over rows, none with plain modules.

    A network takes the arguments of its `output`: the observations of the batch and, for action values, actions.

    Attributes:
        hp: name -> [N, 1] tensor, or a scalar tensor with plain modules.
        ranks: processes that train the same members; gradients are averaged over them. A loss that divides by a sum
            over its rows takes that sum over all ranks (`ranks.mean`).
    """

    hp: Mapping[str, Tensor]
    ranks: Ranks

    def network(self, name: str) -> Network:
        """Return the evaluation network, differentiable in its parameters and inputs."""

    def through(self, name: str) -> Network:
        """Return the evaluation network with constant parameters, differentiable in its inputs only."""

    def through_each(self, names: tuple[str, ...]) -> Callable[[Sequence[tuple[Any, ...]]], Tensor]:
        """Return several evaluation networks with constant parameters and separate inputs, stacked.

        The function maps K tuples of inputs to [K, ..., B, out].
        """

    def frozen(self, name: str) -> Network:
        """Return the evaluation network as a constant."""

    def target(self, name: str) -> Network:
        """Return the target network of `name`, as a constant."""

    def frozen_and_target(self, name: str) -> Callable[..., tuple[Tensor, Tensor]]:
        """Return `frozen` and `target` for the same inputs, in one pass if that is cheaper."""

    def networks(self, names: tuple[str, ...]) -> Network:
        """Return several differentiable evaluation networks of the same inputs, stacked: [K, ..., B, out]."""

    def targets(self, names: tuple[str, ...]) -> Network:
        """Return the target networks of `names`, as constants: [K, ..., B, out]."""

    def forward(self, name: str, x: Any) -> tuple[Tensor, Any]:
        """Run the evaluation network for a loss with a closed-form gradient, without autograd over rows.

        Returns:
            The outputs [..., B, out] as constants, and the pass, an argument of `descend`.
        """

    def descend(self, optimizer: str, ran: Any, grad: Tensor, max_norm: Tensor | None = None) -> None:
        """Make one step of `optimizer`, given the loss's gradient at the outputs of `ran`."""

    def descend_all(
        self,
        optimizer: str,
        outputs: Sequence[Tensor],
        grads: Sequence[Tensor],
        max_norm: Tensor | None = None,
        live: Sequence[bool] | None = None,
    ) -> None:
        """Make one step of `optimizer`, given the loss's gradients at outputs of `network`s.

        Gradients are clipped to `max_norm` per network. Members that are not `live` [N] are unchanged.
        """

    def minimise(self, optimizer: str | tuple[str, ...], loss: Tensor, max_norm: Tensor | None = None) -> None:
        """Make one step of `optimizer` on `loss` ([N] or scalar) by autograd, with gradients clipped to `max_norm`.

        Several optimisers make one step each on `loss` [K, N] or [K]: optimiser k minimises entry k.
        """

    def distance(self, name: str) -> Tensor:
        """Return Σ (θ − θ⁻)² between a network and its target, [N] or scalar, differentiable in θ."""

    def track(self, name: str | tuple[str, ...], tau: Tensor) -> None:
        """Soft-update the target of `name`, or of several: θ⁻ ← τ·θ + (1 − τ)·θ⁻."""

    def set_noise(self, name: str, values: Tensor, target_values: Tensor | None = None) -> None:
        """Set the noise of the noisy layers of a network and of its target for this update.

        Args:
            values, target_values: [..., S] from `batch.noise`, drawn by `modules.layers.layer_noise`.
        """


class Trainable(Protocol):
    """Agent interface for engines and learners, which are independent of the algorithm.

    `update` runs once for a group of members: it may read only those attributes of its agent that `update_options`
    contains, which are equal for all members of the group.
    """

    index: int
    learn_counter: int

    @property
    def registry(self) -> Any:
        """Network groups, optimisers and sources of encoders, see `algorithms.base.registry`."""

    @property
    def is_recurrent(self) -> bool:
        """Whether acting needs a hidden state; requires `recur` and `get_initial_hidden_state`."""

    def update(self, engine: UpdateEngine, batch: Any) -> UpdateResult:
        """Update every member in `engine` once."""

    def recipe(self) -> Recipe | None:
        """Return the update as data for a back end that runs whole updates; None if only `update` can run it.

        It must describe the `update` of the same class: a subclass that overrides one of them alone runs by `update`.
        """

    def update_hyperparameters(self) -> dict[str, float]:
        """Return the hyperparameters that an update reads as tensors."""

    def update_options(self) -> tuple[Any, ...]:
        """Return the options that an update branches on."""

    def update_interval(self) -> float:
        """Return the environment steps between updates (for rollouts: their length in vector steps)."""

    def evaluation_networks(self) -> dict[str, nn.Module]:
        """Return the evaluation network of every group, by attribute name."""

    def policy_module(self) -> Any:
        """Return the policy."""

    def reading(self) -> tuple[Any, ...]:
        """Return the preprocessing options of observations; members with equal ones can share a call."""

    @property
    def row_input(self) -> Callable[[Any], Any]:
        """Function that prepares stored observations [N, ...] for networks over rows: a tensor, or a tree of them."""

    def policy_program(self, network: Callable[[str], Network]) -> Network:
        """Return a function from prepared observations to raw policy outputs [N, E, out]; `network` runs networks."""

    def policy_output(self, obs: Any, noisy: bool = False) -> Tensor:
        """Return the raw output of the policy's modules for observations [E, ...]."""

    def follow_optimizers(self) -> None:
        """Adopt direct changes of the networks or the torch optimisers."""

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """Return greedy actions from policy outputs [..., out], each row by itself; see `Learner.acts_by_row`."""

    def explore(self, outputs: Tensor, draws: Draws, epsilon: float, mask: Mask = None) -> np.ndarray:
        """Return exploring actions in storage format from policy outputs [..., out]."""

    def environment_action(self, action: np.ndarray) -> np.ndarray:
        """Convert stored actions to the environment's format."""

    def legal_choices(self, mask: np.ndarray) -> np.ndarray:
        """Convert the environment's masks to masks of the policy's choices."""
