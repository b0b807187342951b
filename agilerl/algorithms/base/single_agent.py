"""Single-agent algorithms: one policy, one observation space, one action space.

`transitions` converts the fields that a memory returns, `actions` action formats; `evaluation` plays episodes.
Subclasses may override any method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from agilerl.algorithms import wrong_actions
from agilerl.algorithms.base import transitions
from agilerl.algorithms.base.actions import (
    PlainActions,
    choices_of,
    legal_actions,
    legal_bits,
    raw_bounds,
    seen_with_mask,
    uniform_actions,
)
from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.algorithms.base.copies import space_or_none
from agilerl.algorithms.base.declared import TRANSITIONS, Experience
from agilerl.algorithms.base.registry import HyperparameterConfig, NetworkGroup, resolve
from agilerl.algorithms.base.transitions import (
    as_tensor,
    check_not_empty,
    check_observation_space,
    check_same_rows,
    column,
    experience_fields,
    module_inputs,
    sampled_observations,
)
from agilerl.core import foreign, tree
from agilerl.core.rng import Purpose, resolve_seed, seeds, stream
from agilerl.core.signatures import by_position_or_name, construct
from agilerl.core.spaces import MaskAsFeature, space_from_json
from agilerl.core.threads import one_thread
from agilerl.core.tree import Tree, map_leaves
from agilerl.engine.modules import as_input, raw_output
from agilerl.engine.protocol import Draws, Mask, TransitionBatch, UpdateResult
from agilerl.envs.masks import ActionMasks
from agilerl.envs.observed_masks import parted, without_mask
from agilerl.errors import AlgorithmError, ShapeError
from agilerl.modules.base import EvolvableModule
from agilerl.networks import ensemble
from agilerl.networks.base import EvolvableNetwork
from agilerl.telemetry.evaluation import Callback

if TYPE_CHECKING:
    from agilerl.components.uniform import ReplayBuffer


class Bound:
    """An action bound [*shape] in the dtype of a Box, None for other spaces; assignable by subclasses."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, agent: RLAlgorithm | None, owner: type) -> Any:
        if agent is None:
            return self
        return resolve(agent.action_space, self.name) if isinstance(agent.action_space, gym.spaces.Box) else None


class UpdateLoss:
    """The published attribute `criterion`: the loss that `update` computes with row weights, before other terms.

    Args:
        loss: creates that of an agent. Assigning another one raises AlgorithmError.
    """

    def __init__(self, loss: Callable[[Any], nn.Module] = lambda _: nn.MSELoss()) -> None:
        self.loss = loss

    def __get__(self, agent: RLAlgorithm | None, owner: type) -> Any:
        return self if agent is None else self.loss(agent)

    def __set__(self, agent: RLAlgorithm, value: object) -> None:
        raise AlgorithmError(
            f"{type(agent).__name__}.criterion is the loss that update computes, so that assigning "
            f"{type(value).__name__} changes nothing. fix: override update(engine, batch), or learn(experiences)."
        )


class RLAlgorithm(EvolvableAlgorithm):
    """Base class of algorithms with one policy in one observation space and one action space.

    `policy_class` is the network class used to rebuild a saved policy.

    Args:
        observation_space, action_space: spaces of a single environment, not of the vector environment. If a Dict has
            an "action_mask" that fits the actions, the mask is applied and the agent reads the rest, see
            `envs.observed_masks`.
        normalize_images: divide images with values from 0 to 255 by 255, in all networks; None leaves the choice to
            each network.
        seed: seed of the exploration and evaluation streams; None derives it from `torch.initial_seed()` and the index.

    See `EvolvableAlgorithm` for the other arguments.

    Attributes:
        environment: {"id", "kwargs"} of the training environment; None if unknown.
    """

    policy_class: type[EvolvableNetwork]
    actor: EvolvableModule
    normalize_images: bool
    net_config: Any
    share_encoders: bool
    environment: dict[str, Any] | None

    # --- additional capabilities, see `EvolvableAlgorithm` ----------------------------------------------------------

    action_spaces: tuple[str, ...] = ()
    """Supported kinds of action space, by class name."""
    experience: ClassVar[Experience] = TRANSITIONS
    """Kind of experience it learns from."""
    action_form: ClassVar[PlainActions] = PlainActions()
    """Conversion of stored actions to environment actions."""
    beta: float = 0.4
    """Initial importance-sampling exponent, with prioritised replay."""

    @property
    def is_recurrent(self) -> bool:  # type: ignore[override]
        """Whether acting needs a hidden state that is carried through an episode."""
        return bool(self.recurrent)

    @property
    def acts_raw(self) -> bool:
        """Whether `get_action` returns stored actions that `environment_action` must still convert."""
        return self.action_form.raw and self.training

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        device: str | torch.device = "cpu",
        accelerator: foreign.Accelerator | None = None,
        torch_compiler: str | None = None,
        normalize_images: bool | None = None,
        name: str | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(index, hp_config, device, accelerator, torch_compiler, name)
        if normalize_images is not None:
            self.normalize_images = bool(normalize_images)
        for what, space in (("observation_space", observation_space), ("action_space", action_space)):
            if not isinstance(space, gym.Space):
                raise AlgorithmError(
                    f"{self.algo}: {what} must be a gymnasium space; got {type(space).__name__}. "
                    f"fix: pass env.single_{what} (or env.{what})."
                )
        observation_space = without_mask(observation_space, action_space)
        check_observation_space(self.algo, observation_space)
        kinds = {kind.__name__ for kind in type(action_space).__mro__}
        if self.action_spaces and not kinds & set(self.action_spaces):
            raise wrong_actions(self.algo, self.action_spaces, action_space)
        check_not_empty(self.algo, "act in", action_space)
        self.observation_space: Any = observation_space
        self.action_space = action_space
        self.seed = resolve_seed(seed)
        if seed is None and index:  # depends on the index so that agents created one by one differ
            member_seeds = seeds(self.seed, Purpose.INITIAL_WEIGHTS, 1, generation=3, member=abs(int(index)))
            self.seed = int(member_seeds[0])
        self.environment = None
        self._exploration = stream(self.seed, Purpose.EXPLORATION, member=index)
        self.learn_counter = 0

    def register_network_group(self, group: NetworkGroup) -> None:
        """Register networks, and apply one `normalize_images` to the agent and all of its networks.

        Images are divided by 255 unless the algorithm, or one of the given networks, specifies otherwise.
        """
        super().register_network_group(group)
        if not hasattr(self, "normalize_images"):
            return
        networks = [resolve(self, name) for name in self.registry.all_registered()]
        reading = [network for network in networks if isinstance(network, EvolvableNetwork)]
        self.normalize_images = bool(self.normalize_images) and all(n.normalize_images for n in reading)
        for network in reading:
            network.normalize_images = self.normalize_images

    @classmethod
    def policy_from_spec(cls, spec: Mapping[str, Any], device: str | torch.device) -> Any:
        """Build the policy network that a saved `spec` describes, with fresh weights."""
        return ensemble.from_spec(spec, partial(cls.policy_class.from_spec, device=device))

    # --- acting ----------------------------------------------------------------------------------------------------

    @property
    def network_space(self) -> gym.Space[Any]:
        """Space that the networks read; that of the observations by default."""
        space: gym.Space[Any] = self.observation_space
        return space

    def policy_network(self) -> EvolvableNetwork:
        """Return the policy, for algorithms whose policy is a network over an observation space."""
        policy = self.policy_module()
        assert isinstance(policy, EvolvableNetwork)
        return policy

    def reading(self) -> tuple[Any, ...]:
        """See `engine.protocol.Trainable`. All networks preprocess like the policy."""
        return self.policy_network().reading()

    @property
    def row_input(self) -> Callable[[Any], Any]:
        """See `engine.protocol.Trainable`; that of the policy."""
        return self.policy_network().row_input

    def policy_program(self, network: Callable[[str], Any]) -> Any:
        """See `engine.protocol.Trainable`; the policy itself."""
        return network(str(self.registry.policy()))

    def policy_output(self, obs: Tree, noisy: bool = False) -> Tensor:
        """Return the raw policy output for observations [E, ...], nested like the space; input of `greedy` and
        `explore`.

        `noisy` keeps the noise of noisy layers, regardless of the network's mode.
        """
        policy = self.policy_module()
        if policy.training == noisy:  # switching walks over all modules, which costs as much as a small network's step
            return raw_output(policy)(self.network_inputs(policy, obs))
        policy.train(noisy)
        try:
            return raw_output(policy)(self.network_inputs(policy, obs))
        finally:
            policy.train(not noisy)

    def network_inputs(self, network: EvolvableModule, obs: Tree) -> Any:
        """Prepare observations for `network`: unchanged, or tensors [E, ...] for a user-defined module."""
        is_network = isinstance(network, EvolvableNetwork)
        return obs if is_network else module_inputs(self.observation_space, obs, f"{self.algo}.get_action")

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """Return greedy actions from policy outputs [..., out]; implemented by subclasses."""
        raise NotImplementedError("an algorithm with update() must implement greedy(outputs, mask) -> actions")

    greedy.is_missing = True  # type: ignore[attr-defined]

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Draw the random numbers for `explore`, each [*shape, ...]; `shape` is (vector steps, E), or (E,) for one
        call.

        Apply anything that depends on this agent's hyperparameters (such as the noise scale) here: `explore` is called
        once for all members.
        """
        raise NotImplementedError("an algorithm with update() must implement draw_exploration(rng, shape)")

    def explore(self, outputs: Tensor, draws: Draws, epsilon: float, mask: Mask = None) -> np.ndarray:
        """Return actions to store from raw policy outputs [..., out]; `environment_action` converts them."""
        raise NotImplementedError("an algorithm with update() must implement explore(outputs, draws, epsilon, mask)")

    def random_action(self, rng: np.random.Generator, shape: tuple[int, ...], mask: Mask = None) -> np.ndarray:
        """Sample uniform actions to store: [*shape] int64, or [*shape, A] between the raw bounds.

        `mask` [*shape, W], 1 = legal, applies to discrete and binary actions.
        """
        if isinstance(self.action_space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
            choices = choices_of(self)
            legal = None if mask is None else choices.legal(mask)
            return uniform_actions(rng.random(shape), choices.count, legal)
        size = (*shape, self.action_size)
        if isinstance(self.action_space, gym.spaces.MultiBinary):
            return legal_bits(rng.uniform(-1, 1, size=size) > 0, mask).astype(np.float32)
        return rng.uniform(*raw_bounds(self.policy_module()), size=size).astype(np.float32)

    def _act_raw(
        self, obs: Tree, training: bool | None, action_mask: np.ndarray | None, epsilon: float = 0.0
    ) -> np.ndarray:
        """Implement `get_action` for raw actions: exploring ones to store, or greedy ones for the environment."""
        obs, action_mask = seen_with_mask(self, obs, action_mask)
        with torch.no_grad():
            outputs = self.policy_output(obs)
        outputs = outputs.unsqueeze(0) if outputs.dim() == 1 else outputs
        mask = legal_actions(self, action_mask, len(outputs))
        if not (self.training if training is None else training):
            return self.environment_action(self.greedy(outputs, mask))
        draws = self.draw_exploration(self._exploration, outputs.shape[:-1])
        return self.explore(outputs, draws, epsilon, mask)

    def environment_action(self, action: np.ndarray) -> np.ndarray:
        """Convert stored actions [..., A] to the environment's format."""
        return self.action_form.environment(self, action)

    def legal_choices(self, mask: np.ndarray) -> np.ndarray:
        """Convert the environment's masks [..., Σn] to masks [..., A] over the policy's choices."""
        return self.action_form.legal(self, mask)

    action_low, action_high = Bound("low"), Bound("high")

    def preprocess_observation(self, observation: Tree) -> Any:
        """Convert observations to tensors [E, ...] on the agent's device; a single one becomes a batch of one.

        Floating-point numbers get the policy's dtype. Networks encode discrete observations and scale images
        themselves. Dict and Tuple spaces give nested dicts.
        """
        like = next(iter(self.policy_module().parameters()))
        rows = module_inputs(self.observation_space, observation, f"{self.algo}.preprocess_observation")
        return map_leaves(lambda x: as_input(x, like), rows)

    @property
    def action_size(self) -> int:
        """Number of components of a Box action."""
        return int(np.prod(self.action_space.shape or (1,)))

    # --- learning --------------------------------------------------------------------------------------------------

    def update_interval(self) -> float:
        """Steps between updates; equal for all members of a cohort."""
        return self.learn_step if hasattr(self, "learn_step") else 1

    def learn(self, experiences: Mapping[str, Any] | Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """Perform one update from sampled transitions.

        Args:
            experiences: result of `ReplayBuffer.sample` in either format: a TensorDict or mapping with the keys
                obs, action, reward, next_obs, done, or a tuple in that order. `done` means terminated.
            args, kwargs: further arguments of the algorithm's `learn_from`.

        Returns:
            Result of the algorithm's `learn_from`: the loss before the update, unless documented otherwise.
        """
        return self.learn_from(experiences, *args, **kwargs)

    # A subclass that overrides this `learn` cannot be run by an engine.
    published_learn = learn

    def learn_from(
        self, experiences: Mapping[str, Any] | Sequence[Any],
        n_experiences: Mapping[str, Any] | Sequence[Any] | None = None, per: bool = False,
    ) -> Any:  # fmt: skip
        """Implement `learn`; overridden by algorithms that publish further arguments or results.

        Override this instead of `learn`: learners treat an overridden `learn` as an algorithm that cannot run in the
        engine.

        Args:
            experiences: sampled transitions, see `make_batch`.
            n_experiences: n-step transitions of the same rows, with their `discount`; they replace the one-step ones.
                The weights are still those of `experiences`.
            per: also return new priorities.

        Returns:
            `report` of the update; with `per` (that, `idxs` of the experiences or None, new priorities [B]).

        Raises:
            ShapeError: `n_experiences` has other rows, or lacks the discount that encodes the number of steps.
        """
        learned = experiences
        if n_experiences is not None:
            one_step, learned = experience_fields(experiences), experience_fields(n_experiences)
            check_same_rows(self.algo, len(one_step["reward"]), len(learned["reward"]))
            if "discount" not in learned:
                raise ShapeError(
                    f"{self.algo}.learn got n_experiences without discount, so how many steps they span is not known. "
                    "fix: sample a MultiStepReplayBuffer, or give discount = gamma**k * (1 - done) [B]."
                )
            learned |= {"weights": one_step["weights"]} if "weights" in one_step else {}
        result = self.learn_batch(self.make_batch(learned))
        if not per:
            return self.report(result)
        priorities = None if result.priorities is None else result.priorities.detach().cpu().numpy()
        return self.report(result), experience_fields(experiences).get("idxs"), priorities

    def see_data(self, memory: ReplayBuffer) -> None:
        """Inspect the whole offline data set in `memory` before learning from it. No-op by default."""

    def arrange(self, dataset: object) -> Any:
        """Rearrange a data set of transitions into the rows that an update learns from; unchanged by default."""
        return dataset

    def report(self, result: UpdateResult) -> Any:
        """Return the result of `learn` for an update: the loss before it."""
        return float(result.loss.detach())

    def learn_batch(self, batch: Any, plain: bool = False) -> UpdateResult:
        """Perform one update from a prepared batch [B, ...]; `plain` forces plain torch modules. No member axis."""
        self.remember_observations(batch.obs, batch.action)
        from agilerl.engine.learner import learn_alone  # the engines, which a run chooses from

        return learn_alone(self, batch, plain)

    def make_batch(self, experiences: Mapping[str, Any] | Sequence[Any]) -> TransitionBatch:
        """Convert sampled transitions to tensors on the agent's device.

        Args:
            experiences: obs, action, reward, next_obs, done, and optionally `discount` [B] or [B, 1], which is
                γ^k · (1 − done) of transitions that span k steps (by default one step with the agent's γ), `weights`
                [B] or [B, 1], the importance weights of prioritised replay, and `next_mask` [B, Σn].
        """
        fields = experience_fields(experiences)
        dtype = next(iter(self.policy_module().parameters())).dtype
        space, device, owner = self.observation_space, self.device, f"{self.algo}.learn"
        for name, mask_name in (("obs", "obs_mask"), ("next_obs", "next_mask")):
            rest, mask = parted(fields[name], space)
            if mask is not None:  # the environment's mask, stored with the observations by a custom loop
                fields = {mask_name: self._masks_of(mask, fields["done"], owner), **fields, name: rest}
        obs, next_obs = (sampled_observations(space, fields[k], device, owner) for k in ("obs", "next_obs"))
        count = tree.count_rows(obs)
        counts = [len(leaf) for leaf in tree.leaves((obs, next_obs))]
        if set(counts) != {count}:
            raise ShapeError(
                f"{owner} got different numbers of observations in obs and next_obs (or their parts): {counts}. "
                "fix: agent.learn(memory.sample(agent.batch_size))."
            )
        reward, done = (column(k, fields[k], count, device, owner).to(dtype) for k in ("reward", "done"))
        action = as_tensor(fields["action"], device, f"{owner} got actions", "numbers")
        weight = torch.full((count,), 1 / count, dtype=dtype, device=reward.device)
        extra = {k: column(k, fields[k], count, device, owner) for k in ("weights", "discount") if k in fields}
        if "weights" in extra:
            weight = weight * extra["weights"].to(dtype)
        discount = extra["discount"].to(dtype) if "discount" in extra else None
        masks: dict[str, Any] = {}
        for name in (name for name in ("next_mask", "obs_mask") if name in fields):
            # component masks to joint masks
            legal = self.legal_choices(torch.as_tensor(fields[name]).numpy(force=True))
            masks[name] = torch.from_numpy(legal).to(self.device).bool()
        drawn = self.draw_noise(self._exploration, (1, count))
        return TransitionBatch(
            obs,
            self.prepare_action(action, count),
            reward,
            next_obs,
            done,
            weight,
            discount=discount,
            noise={name: torch.as_tensor(x[0]).to(reward.device, dtype) for name, x in drawn.items()},
            number=self.learn_counter + 1,
            **masks,
        )

    def _masks_of(self, mask: Tree, done: Tree, owner: str) -> np.ndarray:
        """Convert stored masks to [B, W] bool; at terminal states no action need be legal."""
        rows = tree.unbind(tree.map_leaves(lambda x: torch.as_tensor(x).numpy(force=True), mask))
        over = torch.as_tensor(done).numpy(force=True).astype(bool).reshape(-1)
        return ActionMasks(self.action_space, owner, ShapeError).rows(rows, is_over=over)

    def prepare_action(self, action: Tensor, count: int) -> Tensor:
        """Convert stored actions for the update: int64 [B] for discrete spaces."""
        return self.action_form.prepare(self, action, count)

    def with_observations(self, experiences: Mapping[str, Any] | Sequence[Any], change: Callable[[Any], Any]) -> Any:
        """Apply `change` to all observations in the argument of `learn`; used by observation wrappers."""
        return transitions.with_observations(experiences, change)

    # --- evaluation ------------------------------------------------------------------------------------------------

    def test(
        self,
        env: foreign.Env,
        swap_channels: bool = False,
        max_steps: int | None = None,
        loop: int = 1,
        *,
        vectorized: bool = True,
        callback: Callback | None = None,
    ) -> float:
        """Return the mean greedy return of the first finished episode per environment, averaged over `loop` rounds.

        The training mode is restored and the result is appended to `fitness`.

        Args:
            env: single or vector environment; it is reset, never closed.
            swap_channels: transpose observations from [H, W, C] to [C, H, W].
            max_steps: truncate episodes after this many steps and count the return so far; None runs to the end.
            loop: evaluation rounds.
            vectorized: published; inferred from the environment. False rejects a vector environment.
            callback: called at the end of every episode with its return and the info of that step (of all lanes).
        """
        from agilerl.algorithms.base.evaluation import run_test  # makes environments

        return float(run_test(self, env, swap_channels, max_steps, loop, vectorized=vectorized, callback=callback))

    def begin_episodes(self) -> None:
        """Start an episode in all evaluation environments; for recurrent agents."""

    def _greedy(self, obs: Tree, mask: Mask = None) -> np.ndarray:
        """Return greedy actions [E, ...] for the environment."""
        action: np.ndarray = self.get_action(obs, 0.0, mask)
        return action

    def _sampled(self, rng: np.random.Generator, obs: Tree, mask: Mask = None) -> Any:
        """Return sampled actions [E, ...] for the environment; the greedy ones of a policy without a distribution."""
        return self._greedy(obs, mask)

    def _drawn(self, rng: np.random.Generator, obs: Tree, mask: Mask = None) -> Any:
        """Implement `_sampled` by `explore`, for a stochastic policy."""
        with torch.no_grad():
            outputs = self.policy_output(obs)
        draws = self.draw_exploration(rng, tuple(outputs.shape[:-1]))
        return self.environment_action(self.explore(outputs, draws, 0.0, mask))

    # --- files, copies, populations ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        spaces = {
            "observation_space": space_or_none(self.observation_space),
            "action_space": space_or_none(self.action_space),
        }
        return {**super().state(), "spaces": spaces, "exploration": self._exploration.bit_generator.state}

    def load_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        super().load_state(state, source)
        saved = (state.get("spaces") or {}).get("observation_space")
        if saved is not None and isinstance(space := space_from_json(saved), MaskAsFeature):
            self.observation_space = space  # the networks read the mask as a feature
        if "exploration" in state:
            self._exploration.bit_generator.state = state["exploration"]

    def policy_spec(self) -> dict[str, Any]:
        """Return a JSON-able description of the policy, with its training environment."""
        return {**super().policy_spec(), "environment": self.environment} | (
            {"action_masks": True} if self.action_masks else {}
        )

    def clone(self, index: int | None = None, wrap: bool = True) -> Self:
        twin = super().clone(index, wrap)
        if index is not None and index != self.index:
            twin._exploration = stream(self.seed, Purpose.EXPLORATION, len(self.fitness), index)
        return twin

    @classmethod
    def population(
        cls,
        size: int,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        wrapper_cls: Any = None,
        wrapper_kwargs: dict[str, Any] | None = None,
        *,
        seed: int | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Create `size` agents with indices 0 .. size-1 and independent weights."""
        run_seed = resolve_seed(seed)
        member_seeds = seeds(run_seed, Purpose.INITIAL_WEIGHTS, size)
        spaces, named = by_position_or_name(cls, observation_space=observation_space, action_space=action_space)
        with one_thread():  # orthogonal initialisation rounds differently by thread count
            agents: list[Any] = [
                construct(cls, *spaces, index=i, seed=int(member_seeds[i]), **named, **kwargs) for i in range(size)
            ]
        return [wrapper_cls(a, **(wrapper_kwargs or {})) for a in agents] if wrapper_cls else agents
