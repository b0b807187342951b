"""Single-agent algorithms: spaces, batches, and the choice between the row engine and plain modules."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms import wrong_actions
from agilerl.algorithms.core.experience_fields import experience_fields
from agilerl.algorithms.core.observations import check_observation_space, module_inputs
from agilerl.algorithms.core.registry import HyperparameterConfig, NetworkGroup
from agilerl.algorithms.core.transitions import LearnsFromTransitions
from agilerl.algorithms.declared import TRANSITIONS, Experience
from agilerl.engine.protocol import raw_output
from agilerl.errors import AlgorithmError, NotAvailableYetError, RunError
from agilerl.modules.base import EvolvableModule
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.joint_actions import JointActions
from agilerl.rng import Purpose, resolve_seed, seeds, stream
from agilerl.rollouts.off_policy import uniform_actions
from agilerl.spaces import space_from_json, space_to_json
from agilerl.threads import one_thread

__all__ = ["RLAlgorithm", "experience_fields"]


class RLAlgorithm(LearnsFromTransitions):
    """An algorithm for one policy in one observation space and one action space.

    `policy_class` is the network class of the policy, by which a saved one is made again.

    Args:
        observation_space, action_space: of one environment, not of the vector.
        seed: of this agent's exploration and evaluation streams; None follows `torch.initial_seed()` and the index.

    The other arguments are `EvolvableAlgorithm`'s.
    """

    policy_class: type[EvolvableNetwork]
    normalize_images: bool
    action_spaces: tuple[str, ...] = ()
    """Kinds of action space that it takes, by class name."""
    experience: ClassVar[Experience] = TRANSITIONS
    """What it learns from."""

    @property
    def is_recurrent(self) -> bool:
        """Whether acting needs more than the observation: a hidden state that goes through an episode."""
        return bool(getattr(self, "recurrent", False))

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        torch_compiler: str | None = None,
        name: str | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(index, hp_config, device, accelerator, torch_compiler, name)
        for what, space in (("observation_space", observation_space), ("action_space", action_space)):
            if not isinstance(space, gym.Space):
                raise AlgorithmError(
                    f"{self.algo}: {what} must be a gymnasium space; got {type(space).__name__}. "
                    f"fix: pass env.single_{what} (or env.{what})."
                )
        check_observation_space(self.algo, observation_space)
        kinds = {kind.__name__ for kind in type(action_space).__mro__}
        if self.action_spaces and not kinds & set(self.action_spaces):
            raise wrong_actions(self.algo, self.action_spaces, action_space)
        self.observation_space = observation_space
        self.action_space = action_space
        self.seed = _own_seed(seed, index)
        self.environment = None
        self._exploration = stream(self.seed, Purpose.EXPLORATION, member=index)
        self.learn_counter = 0

    def register_network_group(self, group: NetworkGroup) -> None:
        """As of the base. `normalize_images` becomes one thing for the agent and all of its networks.

        Images are divided by 255 unless the algorithm, or a network that it was given, says otherwise.
        """
        super().register_network_group(group)
        if not hasattr(self, "normalize_images"):
            return
        networks = [getattr(self, name) for name in self.registry.all_registered()]
        reading = [network for network in networks if isinstance(network, EvolvableNetwork)]
        self.normalize_images = bool(self.normalize_images) and all(n.normalize_images for n in reading)
        for network in reading:
            network.normalize_images = self.normalize_images

    @classmethod
    def policy_from_spec(cls, spec: Mapping[str, Any], device: str | torch.device) -> EvolvableNetwork:
        """The policy network that a saved `spec` describes, with fresh weights."""
        return cls.policy_class.from_spec(spec, device=device)

    # --- population engine ---------------------------------------------------------------------------------------

    def policy_output(self, obs: Any, noisy: bool = False) -> Tensor:
        """Raw output of the policy for observations [E, ...], nested as the space is: what `greedy` and `explore` take.

        `noisy` keeps the noise of noisy layers, whatever mode the network is in.
        """
        policy = self.policy_module()
        before = policy.training
        policy.train(noisy)
        try:
            return raw_output(policy)(self.network_inputs(policy, obs))
        finally:
            policy.train(before)

    def network_inputs(self, network: EvolvableModule, obs: Any) -> Any:
        """Observations as `network` is given them: as they are, or tensors [E, ...] for a module of the user's own."""
        known = isinstance(network, EvolvableNetwork)
        return obs if known else module_inputs(self.observation_space, obs, f"{self.algo}.get_action")

    @staticmethod
    def greedy(outputs: Tensor, mask: np.ndarray | None = None) -> np.ndarray:
        """Greedy actions from policy outputs [..., out]; a subclass implements it."""
        raise NotImplementedError("an algorithm with update() must implement greedy(outputs, mask) -> actions")

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        """Random numbers for `explore`, each [*shape, ...]; `shape` is (vector steps, E), or (E,) for one call.

        What depends on this agent's own hyperparameters (the scale of its noise, say) is applied here: `explore` is
        called once for all members.
        """
        raise NotImplementedError("an algorithm with update() must implement draw_exploration(rng, shape)")

    def draw_acting_noise(self, rng: np.random.Generator, count: int) -> np.ndarray | None:
        """Noise of the policy's noisy layers for `count` vector steps [count, S]; None for a policy without any."""
        return None

    def explore(
        self, outputs: Tensor, draws: tuple[np.ndarray, ...], epsilon: float, mask: np.ndarray | None = None
    ) -> np.ndarray:
        """Actions to store, from raw policy outputs [..., out]; see `environment_action` for those to take."""
        raise NotImplementedError("an algorithm with update() must implement explore(outputs, draws, epsilon, mask)")

    def random_action(
        self, rng: np.random.Generator, shape: tuple[int, ...], mask: np.ndarray | None = None
    ) -> np.ndarray:
        """Uniformly random actions to store, [*shape] int64 or [*shape, A] in [-1, 1].

        `mask` [*shape, Σn], 1 = legal, is for Discrete and MultiDiscrete actions.
        """
        space = self.action_space
        if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
            choices = JointActions.of(space, self.algo)
            legal = None if mask is None else choices.legal(mask)
            return uniform_actions(rng.random(shape), choices.count, legal)
        return rng.uniform(-1, 1, size=(*shape, *(space.shape or ()))).astype(np.float32)

    acts_raw = False
    """Whether `get_action` gives what is stored, so that `environment_action` is still to come."""

    learns_from_obs_mask = False
    """Whether `update` reads which actions were legal in `obs`, so that replay keeps it; else in `next_obs` alone."""

    def environment_action(self, action: np.ndarray) -> np.ndarray:
        """Stored actions [..., A] as the environment takes them; the same by default."""
        return action

    # --- files, copies, populations ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        spaces = {name: _space(getattr(self, name)) for name in ("observation_space", "action_space")}
        return {**super().state(), "spaces": spaces, "exploration": self._exploration.bit_generator.state}

    def load_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        super().load_state(state, source)
        if "exploration" in state:
            self._exploration.bit_generator.state = state["exploration"]

    @classmethod
    def _blank(cls, state: Mapping[str, Any], device: str | torch.device, accelerator: Any) -> Self:
        unknown = [name for name, space in state["spaces"].items() if space is None]
        if unknown:
            raise RunError(f"the file does not hold the {unknown[0]}. fix: make the agent, then load_checkpoint(path).")
        arguments: dict[str, Any] = {name: space_from_json(space) for name, space in state["spaces"].items()}
        if "share_encoders" in inspect.signature(cls).parameters:  # it decides which networks there are
            arguments["share_encoders"] = bool(state["attributes"].get("share_encoders", False))
        return cls(**arguments, device=device, accelerator=accelerator)

    def policy_spec(self) -> dict[str, Any]:
        """JSON-able description of the policy, with the environment that it was trained in."""
        return {**super().policy_spec(), "environment": self.environment}

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
        """`size` agents with indices 0 .. size-1, each with weights of its own."""
        run_seed = resolve_seed(seed)
        own = seeds(run_seed, Purpose.INITIAL_WEIGHTS, size)
        with one_thread():  # initial weights come out of a matrix factorisation, which rounds by thread count
            agents: list[Any] = [
                cls(observation_space, action_space, index=i, seed=int(own[i]), **kwargs) for i in range(size)
            ]
        return [wrapper_cls(a, **(wrapper_kwargs or {})) for a in agents] if wrapper_cls else agents


def _own_seed(seed: int | None, index: int) -> int:
    """The seed as given, else one that follows torch's and the index: agents made one by one are no twins."""
    if seed is not None or not index:
        return resolve_seed(seed)
    return int(seeds(resolve_seed(None), Purpose.INITIAL_WEIGHTS, 1, generation=3, member=abs(int(index)))[0])


def _space(space: gym.Space[Any]) -> dict[str, Any] | None:
    """The space as JSON, None for a kind that cannot be described yet."""
    try:
        return space_to_json(space)
    except NotAvailableYetError:
        return None
