"""Single-agent algorithms: one policy in one observation space and one action space.

The methods are thin: `transitions` learns, `actions` knows the form of actions, `evaluation` evaluates.
A subclass may override any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms import wrong_actions
from agilerl.algorithms.base import evaluation as playing
from agilerl.algorithms.base import transitions
from agilerl.algorithms.base.actions import PlainActions, random_actions
from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.algorithms.base.copies import space_or_none
from agilerl.algorithms.base.declared import TRANSITIONS, Experience
from agilerl.algorithms.base.registry import HyperparameterConfig, NetworkGroup, resolve
from agilerl.algorithms.base.transitions import check_not_empty, check_observation_space, module_inputs
from agilerl.engine.modules import as_input, raw_output
from agilerl.engine.protocol import Draws, Mask, TransitionBatch, UpdateEngine, UpdateResult
from agilerl.envs.observed_masks import without_mask
from agilerl.errors import AlgorithmError
from agilerl.modules.base import EvolvableModule
from agilerl.networks.base import EvolvableNetwork
from agilerl.rng import Purpose, resolve_seed, seeds, stream
from agilerl.spaces import MaskAsFeature, space_from_json
from agilerl.telemetry.evaluation import Evaluation
from agilerl.threads import one_thread
from agilerl.tree import map_leaves


class Bound:
    """A bound of the actions [*shape] in the dtype of a Box, None for other spaces; a subclass may assign its own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, agent: RLAlgorithm | None, owner: type) -> Any:
        if agent is None:
            return self
        return resolve(agent.action_space, self.name) if isinstance(agent.action_space, gym.spaces.Box) else None


class RLAlgorithm(EvolvableAlgorithm):
    """An algorithm for one policy in one observation space and one action space.

    `policy_class` is the network class of the policy, by which a saved one is made again.

    Args:
        observation_space, action_space: of one environment, not of the vector. Of a Dict with an "action_mask" that
            fits the actions the mask is followed, and the rest is what the agent reads, see `envs.observed_masks`.
        normalize_images: divide images with values from 0 to 255 by 255, in all of its networks; None leaves that to
            each network.
        seed: of this agent's exploration and evaluation streams; None follows `torch.initial_seed()` and the index.

    The other arguments are `EvolvableAlgorithm`'s.

    Attributes:
        environment: {"id", "kwargs"} of the environment that it was trained in; None where that is not known.
    """

    policy_class: type[EvolvableNetwork]
    actor: EvolvableModule
    normalize_images: bool
    net_config: Any
    share_encoders: bool
    environment: dict[str, Any] | None

    # --- capabilities beside those of `EvolvableAlgorithm` ----------------------------------------------------------

    action_spaces: tuple[str, ...] = ()
    """Kinds of action space that it takes, by class name."""
    experience: ClassVar[Experience] = TRANSITIONS
    """What it learns from."""
    action_form: ClassVar[PlainActions] = PlainActions()
    """How stored actions become those of the environment."""
    beta: float = 0.4
    """Exponent of the importance weights at the start, under prioritised replay."""

    @property
    def is_recurrent(self) -> bool:  # type: ignore[override]
        """Whether acting needs more than the observation: a hidden state that goes through an episode."""
        return bool(self.recurrent)

    @property
    def acts_raw(self) -> bool:
        """Whether `get_action` gives what is stored, so that `environment_action` is still to come."""
        return self.action_form.raw and self.training

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
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
        if seed is None and index:  # follows torch's and the index: agents made one by one are not twins
            own = seeds(self.seed, Purpose.INITIAL_WEIGHTS, 1, generation=3, member=abs(int(index)))
            self.seed = int(own[0])
        self.environment = None
        self._exploration = stream(self.seed, Purpose.EXPLORATION, member=index)
        self.learn_counter = 0

    def register_network_group(self, group: NetworkGroup) -> None:
        """Register, and `normalize_images` becomes one thing for the agent and all of its networks.

        Images are divided by 255 unless the algorithm, or a network that it was given, says otherwise.
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
    def policy_from_spec(cls, spec: Mapping[str, Any], device: str | torch.device) -> EvolvableNetwork:
        """The policy network that a saved `spec` describes, with fresh weights."""
        return cls.policy_class.from_spec(spec, device=device)

    # --- acting ----------------------------------------------------------------------------------------------------

    def policy_network(self) -> EvolvableNetwork:
        """The policy, for algorithms whose policy is a network over an observation space."""
        policy = self.policy_module()
        assert isinstance(policy, EvolvableNetwork)
        return policy

    def reading(self) -> tuple[Any, ...]:
        """As of `engine.protocol.Trainable`: that of the policy, whose way of reading all networks have."""
        return self.policy_network().reading()

    @property
    def row_input(self) -> Callable[[Any], Any]:
        """As of `engine.protocol.Trainable`: that of the policy."""
        return self.policy_network().row_input

    def policy_program(self, network: Callable[[str], Any]) -> Any:
        """As of `engine.protocol.Trainable`: the policy itself."""
        return network(str(self.registry.policy()))

    def policy_output(self, obs: Any, noisy: bool = False) -> Tensor:
        """Raw output of the policy for observations [E, ...], nested as the space is: what `greedy` and `explore` take.

        `noisy` keeps the noise of noisy layers, whatever mode the network is in.
        """
        policy = self.policy_module()
        if policy.training == noisy:  # a walk over all its modules costs as much as a small network's step
            return raw_output(policy)(self.network_inputs(policy, obs))
        policy.train(noisy)
        try:
            return raw_output(policy)(self.network_inputs(policy, obs))
        finally:
            policy.train(not noisy)

    def network_inputs(self, network: EvolvableModule, obs: Any) -> Any:
        """Observations as `network` is given them: as they are, or tensors [E, ...] for a module of the user's own."""
        known = isinstance(network, EvolvableNetwork)
        return obs if known else module_inputs(self.observation_space, obs, f"{self.algo}.get_action")

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """Greedy actions from policy outputs [..., out]; a subclass implements it."""
        raise NotImplementedError("an algorithm with update() must implement greedy(outputs, mask) -> actions")

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Random numbers for `explore`, each [*shape, ...]; `shape` is (vector steps, E), or (E,) for one call.

        What depends on this agent's own hyperparameters (the scale of its noise, say) is applied here: `explore` is
        called once for all members.
        """
        raise NotImplementedError("an algorithm with update() must implement draw_exploration(rng, shape)")

    def draw_acting_noise(self, rng: np.random.Generator, count: int) -> np.ndarray | None:
        """Noise of the policy's noisy layers for `count` vector steps [count, S]; None for a policy without any."""
        return None

    def explore(self, outputs: Tensor, draws: Draws, epsilon: float, mask: Mask = None) -> np.ndarray:
        """Actions to store, from raw policy outputs [..., out]; see `environment_action` for those to take."""
        raise NotImplementedError("an algorithm with update() must implement explore(outputs, draws, epsilon, mask)")

    def random_action(self, rng: np.random.Generator, shape: tuple[int, ...], mask: Mask = None) -> np.ndarray:
        """Uniformly random actions to store, [*shape] int64 or [*shape, A] in [-1, 1]; see `actions.random_actions`."""
        return random_actions(self, rng, shape, mask)

    def environment_action(self, action: np.ndarray) -> np.ndarray:
        """Stored actions [..., A] as the environment takes them."""
        return self.action_form.environment(self, action)

    def legal_choices(self, mask: np.ndarray) -> np.ndarray:
        """The environment's masks [..., Σn] as masks [..., A] of what the policy chooses among."""
        return self.action_form.legal(self, mask)

    action_low, action_high = Bound("low"), Bound("high")

    def preprocess_observation(self, obs: Any) -> Any:
        """Observations as tensors [E, ...] on the agent's device, as every network takes them; one gets a batch of one.

        Numbers with a point have the policy's dtype. Networks encode what is discrete and scale images by themselves,
        so that nothing of that is done here. Nested dicts for Dict and Tuple spaces.
        """
        like = next(iter(self.policy_module().parameters()))
        rows = module_inputs(self.observation_space, obs, f"{self.algo}.preprocess_observation")
        return map_leaves(lambda x: as_input(x, like), rows)

    @property
    def action_size(self) -> int:
        """Components of an action of a Box."""
        return int(np.prod(self.action_space.shape or (1,)))

    # --- learning --------------------------------------------------------------------------------------------------

    def update_options(self) -> tuple[Any, ...]:
        """Options that `update` branches on; members of one cohort have them in common."""
        return ()

    def update_interval(self) -> int:
        """How often this agent learns; members of one cohort have it in common."""
        return int(self.learn_step) if hasattr(self, "learn_step") else 1

    def update(self, engine: UpdateEngine, batch: Any) -> UpdateResult:
        """One update of every member in `engine`; of this agent only the options above may be read.

        Args:
            batch: a `TransitionBatch`, or what the algorithm learns from instead.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement update(engine, batch) or learn(experiences)")

    update.is_missing = True  # type: ignore[attr-defined]  # how the engine tells an algorithm with `learn` alone

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Random numbers that updates need, name -> [updates, K, ...]; `shape` is (updates, B). None by default.

        K is B for numbers of the batch's rows, anything else for numbers of another kind (`modules.layers`).
        """
        return {}

    def learn(self, experiences: Any, *args: Any, **kwargs: Any) -> Any:
        """One update from sampled transitions.

        Args:
            experiences: what `ReplayBuffer.sample` returns in either dialect: a TensorDict or mapping with the keys
                obs, action, reward, next_obs, done, or a tuple in that order. `done` means terminated.
            args, kwargs: what `learn_from` of the algorithm takes beside them.

        Returns:
            What `learn_from` of the algorithm returns: the loss before the update, where nothing else is said.
        """
        return self.learn_from(experiences, *args, **kwargs)

    # The `learn` of this package: a subclass whose own differs from it brings an algorithm that no engine runs.
    published_learn = learn

    def learn_from(self, experiences: Any, n_experiences: Any = None, per: bool = False) -> Any:
        """What `learn` does; an algorithm that publishes further arguments or results overrides it.

        `learn` itself stays: the learners take an overridden one for an algorithm that does not run in the engine.

        Args:
            experiences: sampled transitions, as `make_batch` takes them.
            n_experiences: n-step transitions of the same rows, with their `discount`: what is learned from in place
                of the one-step ones. The weights stay those of `experiences`.
            per: also return new priorities.

        Returns:
            `report` of the update; with `per` (that, `idxs` of the experiences or None, new priorities [B]).

        Raises:
            ShapeError: `n_experiences` of other rows, or without the discount that says how many steps they span.
        """
        return transitions.learn(self, experiences, n_experiences, per)

    def see_data(self, memory: Any) -> None:
        """Take what it needs of a whole data set, that is in `memory`, before it learns from it. Nothing by default."""

    def arrange(self, dataset: Any) -> Any:
        """A data set of transitions as one whose rows are what an update learns from: the same one by default."""
        return dataset

    def report(self, result: UpdateResult) -> Any:
        """What `learn` returns of an update: the loss before it."""
        return float(result.loss.detach())

    def learn_batch(self, batch: Any, plain: bool = False) -> UpdateResult:
        """One update from a prepared batch [B, ...]; `plain` forces plain torch modules. No member axis results."""
        return transitions.learn_batch(self, batch, plain)

    def make_batch(self, experiences: Any) -> TransitionBatch:
        """Sampled transitions as tensors on the agent's device; see `transitions.make_batch`."""
        return transitions.make_batch(self, experiences)

    def prepare_action(self, action: Tensor, count: int) -> Tensor:
        """Stored actions as the update wants them: int64 [B] for discrete spaces."""
        return self.action_form.prepare(self, action, count)

    def with_observations(self, experiences: Any, change: Callable[[Any], Any]) -> Any:
        """What `learn` takes, with `change` applied to all observations: for wrappers that alter what agents see."""
        return transitions.with_observations(experiences, change)

    # --- evaluation ------------------------------------------------------------------------------------------------

    def test(
        self,
        env: Any,
        swap_channels: bool = False,
        max_steps: int | None = None,
        loop: int = 1,
        *,
        vectorized: bool = True,
        callback: playing.Callback | None = None,
    ) -> float:
        """Mean return of the first finished episode of each environment, averaged over `loop` rounds; greedy.

        The training mode is restored. The result is appended to `fitness`.

        Args:
            env: single or vector environment; it is reset, never closed.
            swap_channels: observations are [H, W, C] and turned to [C, H, W].
            max_steps: cut episodes there and count the return so far; None runs to the end.
            loop: evaluation rounds.
            vectorized: published; it follows from the environment. False refuses a vector environment.
            callback: called at the end of every episode with its return and the info of that step (of all lanes).
        """
        more: dict[str, Any] = {"vectorized": vectorized, "callback": callback}
        return float(playing.run_test(self, env, swap_channels, max_steps, loop, **more))

    def evaluate(
        self, episodes: int = 100, seed: int | None = None, env: Any = None, max_steps: int | None = None
    ) -> Evaluation:
        """Play whole episodes greedily and summarise their returns; neither `fitness` nor training is touched.

        Args:
            episodes: how many. seed: of the episodes; None takes the agent's own final-test stream, so that two calls
                play the same episodes.
            env: anything that trains; None makes the environment that the agent was trained in.
            max_steps: cut episodes there, as truncated, and count the return so far. None: as in training, which
                follows `training.eval_steps`, else the environment's own limit, else one that is said when it cuts an
                episode.

        Raises:
            EnvError: no environment is given and none is known.
        """
        return playing.evaluate(self, episodes, seed, env, max_steps)

    def begin_episodes(self) -> None:
        """All environments that this agent is evaluated in begin an episode; for agents with a memory."""

    def _greedy(self, obs: Any, mask: Mask = None) -> np.ndarray:
        """Greedy actions [E, ...] for the environment."""
        action: np.ndarray = self.get_action(obs, 0.0, mask)
        return action

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
            self.observation_space = space  # its networks read the mask as a feature
        if "exploration" in state:
            self._exploration.bit_generator.state = state["exploration"]

    def policy_spec(self) -> dict[str, Any]:
        """JSON-able description of the policy, with the environment that it was trained in."""
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
        """`size` agents with indices 0 .. size-1, each with weights of its own."""
        run_seed = resolve_seed(seed)
        own = seeds(run_seed, Purpose.INITIAL_WEIGHTS, size)
        with one_thread():  # initial weights come out of a matrix factorisation, which rounds by thread count
            agents: list[Any] = [
                cls(observation_space, action_space, index=i, seed=int(own[i]), **kwargs) for i in range(size)
            ]
        return [wrapper_cls(a, **(wrapper_kwargs or {})) for a in agents] if wrapper_cls else agents
