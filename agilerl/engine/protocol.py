"""The protocols between the engines, the algorithms and whoever collects experience.

`rows.rows_engine.RowsEngine` runs an update over the rows of a whole group of members; `modules.ModuleEngine` runs the
same update with one agent's own modules and optimisers. The second is the reference, and the path for what does not
stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from agilerl.engine.batches import RolloutBatch, UpdateResult
from agilerl.engine.parts import Network


class UpdateEngine(Protocol):
    """What an update may use. Tensors carry a leading member axis [N, ...] over rows, none with plain modules.

    A network is called with what its `output` takes: the observations of the batch and, for action values, actions.

    Attributes:
        hp: name -> [N, 1] tensor, or a scalar tensor with plain modules.
    """

    hp: Mapping[str, Tensor]

    def network(self, name: str) -> Network:
        """The evaluation network, differentiable in its parameters and inputs."""

    def through(self, name: str) -> Network:
        """The evaluation network with its parameters as constants: differentiable in its inputs alone."""

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
            values, target_values: [..., S] from `batch.noise`, as `modules.noisy.layer_noise` drew it.
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
        """Network groups, optimisers and lenders, see `algorithms.core.registry`."""

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

    def policy_network(self) -> Any:
        """The policy, where it is an `EvolvableNetwork`."""

    def policy_output(self, obs: Any, noisy: bool = False) -> Tensor:
        """Raw output of the policy's own modules for observations [E, ...]."""

    def follow_optimizers(self) -> None:
        """Take over what was done to the networks or the torch optimisers themselves."""

    def greedy(self, outputs: Tensor, mask: np.ndarray | None = None) -> np.ndarray:
        """Greedy actions from policy outputs [..., out]."""

    def explore(
        self, outputs: Tensor, draws: tuple[np.ndarray, ...], epsilon: float, mask: np.ndarray | None = None
    ) -> np.ndarray:
        """Actions to store, from policy outputs [..., out]."""

    def environment_action(self, action: np.ndarray) -> np.ndarray:
        """Stored actions as the environment takes them."""

    def legal_choices(self, mask: np.ndarray) -> np.ndarray:
        """The environment's masks as masks of what the policy chooses among."""


class GroupLearner(Protocol):
    """Members that learn in one call, by the number of their group: what learning from a rollout needs."""

    def prepare(self, group: int, obs: Any) -> Any:
        """Stored observations [N, B, ...] as `values` and `learn` take them."""

    def values(self, group: int, obs: Any) -> Tensor:
        """State values [N, B] of prepared observations, as constants."""

    def learn(self, group: int, batch: RolloutBatch) -> UpdateResult:
        """One update of every live member on its own row of `batch` [N, B, ...]."""


class RolloutMember(Protocol):
    """What learning from a rollout reads of an agent."""

    gamma: float
    gae_lambda: float
    batch_size: int
    update_epochs: int
    target_kl: float | None
    bptt_sequence_type: str

    def sequence_limit(self, steps: int) -> int:
        """Most steps of a sequence in a rollout of so many."""

    def draw_entropy_noise(self, rng: np.random.Generator, rows: int) -> np.ndarray | None:
        """What one epoch over so many rows needs of random numbers, [rows, A]; None for nothing."""
