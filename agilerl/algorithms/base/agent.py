"""Base class of all algorithms: attributes that evolution mutates, and thin methods that delegate.

See `registry` for registration, `copies` for cloning and checkpoints, `evaluation` for evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from agilerl.algorithms.base import copies
from agilerl.algorithms.base import predict as predicting
from agilerl.algorithms.base import registry as registering
from agilerl.algorithms.base.declared import STRUCTURE, Experience, check_arguments, check_mutable
from agilerl.algorithms.base.optimizer import OptimizerWrapper
from agilerl.algorithms.base.registry import (
    _COUNTERS,
    HyperparameterConfig,
    MutationRegistry,
    NetworkGroup,
    OptimizerConfig,
    assigned,
    is_number,
    resolve,
)
from agilerl.checkpoint import load_tree, save_tree
from agilerl.errors import ConfigError, RegistryError, ShapeError
from agilerl.hpo.architecture import described
from agilerl.hpo.effects import reads_actions
from agilerl.modules.base import EvolvableModule
from agilerl.signatures import construct_without_repeats, constructor_arguments
from agilerl.spaces import short_form
from agilerl.telemetry.console import number
from agilerl.tree import map_leaves

# Attributes of these types need no registration.
_PLAIN = frozenset({int, float, bool, str, NoneType, list, tuple, dict, np.ndarray, Tensor})


def check_device(device: str | torch.device) -> str | torch.device:
    """Return `device` unchanged.

    Raises:
        ConfigError: a CUDA device was requested, but none is available.
    """
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"device={str(device)!r} needs CUDA, and this PyTorch finds no CUDA device. fix: device='cpu'."
        )
    return device


class EvolvableAlgorithm:
    """An agent that can be cloned, mutated, saved and trained alone or in a population.

    A subclass sets its hyperparameters, `EvolvableModule` networks and `OptimizerWrapper`s as attributes in
    `__init__` and registers its networks with `register_network_group`; one group has `policy=True`.

    Args:
        index: unique id within the population.
        hp_config: mutable hyperparameters; copied. Each name must be a numeric attribute, and each range must lie
            within the declared one.
        device: device of the networks and batches; kept as a `torch.device` beside an accelerator.
        accelerator: stored only; the `accelerator` of the training functions controls distributed training.
        torch_compiler: stored only; compilation is not used.
        name: algorithm name, the class name by default.

    Attributes:
        steps: environment steps so far, one entry per generation (the last one grows).
        scores: returns of finished training episodes. fitness: one entry per `test`.
        mut: last mutation applied to this agent, None before the first.
        registry: registered networks, optimisers and hyperparameters. Assignment registers, see `registry.assigned`.
        arguments_by_agent: numeric constructor arguments that also accept a mapping by agent.
        structure: constructor arguments that decide which networks exist; each is also an attribute.
        experience: experience the algorithm learns from; None if it declares none.
        learns_language: whether the policy is an adapter on a language model.
        reads_texts: whether the network is a transformer over texts instead of an encoder with a head.
        imitates: whether it clones behaviour regardless of return, so that its own actions are no training data.
        shares_in_populations: whether critics share the encoder by default in populations of `create_population`.
        reads_alone: whether every network of a multi-agent algorithm reads only its own agent's observations.
        trains_unwrapped: whether training functions train the wrapped agent directly; True for some wrappers only.
        is_recurrent: whether acting needs a hidden state that is carried through an episode.
        recurrent: whether it was constructed with recurrent encoders.
        always_recurrent: whether recurrent encoders are its default, as the name of a variant.
        learns_from_obs_mask: whether `update` reads the action masks of `obs`, so that replay stores them; otherwise
            only those of `next_obs` are stored.
        adapts_rate: whether `update` changes the learning rate.
        combined_reward: whether it learns from paired one-step and n-step transitions and needs both buffers.
        action_masks: whether it has trained with action masks.
        normalize_observations: whether its networks normalise observations.
        evaluated_in: environment and step limit of `evaluate` (`evaluation.EvaluatedIn`); None if unknown.
        origin: run and member it was copied from; empty for an agent created here.
        mutation_record: last mutation (`hpo.effects.MutationRecord`); None before the first.
        observation_space, action_space: spaces of the agent; None for an algorithm without spaces.
        action_ent_steps: environment steps after which the entropy weight decays (PPO); None keeps it constant.
        end_episodes: method of recurrent multi-agent algorithms that resets the memory of finished episodes [E, M];
            None for others.
    """

    # Capability flags with their defaults: callers read these instead of checking for specific algorithms.
    arguments_by_agent: ClassVar[frozenset[str]] = frozenset()
    structure: ClassVar[frozenset[str]] = STRUCTURE
    experience: ClassVar[Experience | None] = None
    learns_language: ClassVar[bool] = False
    reads_texts: ClassVar[bool] = False
    imitates: ClassVar[bool] = False
    shares_in_populations: ClassVar[bool] = False
    reads_alone: ClassVar[bool] = False
    trains_unwrapped: ClassVar[bool] = False
    always_recurrent: ClassVar[bool] = False
    is_recurrent: bool = False
    recurrent: bool = False
    learns_from_obs_mask: bool = False
    adapts_rate: bool = False
    combined_reward: bool = False
    action_masks: bool = False
    normalize_observations: bool = False
    evaluated_in: Any = None
    origin: str = ""
    mutation_record: Any = None
    observation_space: Any = None
    action_space: Any = None
    action_ent_steps: int | None = None
    end_episodes: Any = None
    _reward_statistics: Any = None  # of `sources.rewards.RewardScale`, if rewards are scaled
    _taken: Tensor | None = None  # actions in the recent observations, for critics that read them
    _predictions: np.random.Generator | None = None  # of `predict(deterministic=False)`
    registry: MutationRegistry

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        check_arguments(cls, args, kwargs)
        object.__setattr__(self, "registry", MutationRegistry())
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        if type(value) in _PLAIN and name not in self.registry.watched:
            object.__setattr__(self, name, value)
        else:
            assigned(self, name, value)

    def __init__(
        self,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        torch_compiler: str | None = None,
        name: str | None = None,
    ) -> None:
        check_mutable(type(self), hp_config.config if hp_config is not None else {})
        self.registry.hp_config = hp_config.copy() if hp_config is not None else HyperparameterConfig()
        self.index = index
        self.algo = name or type(self).__name__
        self.device = check_device(device) if accelerator is None else torch.device(device)
        self.accelerator = accelerator
        self.torch_compiler = torch_compiler
        self.mut: str | None = None
        self.steps: list[int] = [0]
        self.scores: list[float] = []
        self.fitness: list[float] = []
        self.training = True
        self._observations: Any = None

    # --- printing --------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        """One-line summary, for lists of agents."""
        try:
            fitness = f", fitness {number(self.fitness[-1])}" if self.fitness else ""
            return f"{self.algo}(member {self.index}{fitness}, {self._settings()})"
        except AttributeError:  # during construction
            return object.__repr__(self)

    def __str__(self) -> str:
        """Summary of spaces, hyperparameters, networks and fitness."""
        try:
            return "\n".join(self._described())
        except AttributeError:
            return repr(self)

    def _described(self) -> Iterator[str]:
        yield f"{self.algo}, member {self.index}, on {self.device}"
        yield from self._described_spaces()
        yield f"settings  {self._settings()}"
        for name, network in self.evaluation_networks().items():
            form = described(network)
            size = sum(parameter.numel() for parameter in network.parameters())
            yield f"network   {name} {'' if form is None else f'{form} '}({size:,} parameters)"
        if self.fitness:
            best = number(max(self.fitness))
            yield f"fitness   {number(self.fitness[-1])}, best {best} of {len(self.fitness)} evaluations"
        yield f"trained   {self.steps[-1]:,} env steps"

    def _described_spaces(self) -> Iterator[str]:
        if self.observation_space is not None and self.action_space is not None:
            yield f"spaces    {short_form(self.observation_space)} -> {short_form(self.action_space)}"

    def _settings(self) -> str:
        return ", ".join(f"{name} {number(value)}" for name, value in self.hyperparameters().items())

    # --- registration ----------------------------------------------------------------------------------------------

    def register_network_group(self, group: NetworkGroup) -> None:
        """Register networks for mutation; modules in `group` are replaced by their attribute names."""
        registering.register_group(self, group)

    def check_registry(self) -> None:
        """Check that the registration is complete.

        Raises:
            AttributeError: no group, no policy group, or a hyperparameter that is not a numeric attribute.
        """
        if not self.registry.groups:
            raise RegistryError(
                "No network groups have been registered in the algorithms __init__ method. fix: "
                "self.register_network_group(NetworkGroup(eval_network=self.actor, policy=True))"
            )
        if self.registry.policy() is None:
            raise RegistryError("No network group has been registered as a policy. fix: NetworkGroup(..., policy=True)")
        for name in self.registry.hp_config.names():
            value = getattr(self, name, None)
            if not (is_number(value) or isinstance(value, np.ndarray)):
                raise RegistryError(
                    f"hp_config names {name!r}, which is not a numeric attribute of {type(self).__name__}. "
                    f"fix: use one of {sorted(self.numeric_attributes())}"
                )

    def link_encoders(self) -> None:
        """Connect every network without an encoder to the features of its current encoder source."""
        for reader, encoder_source in self.registry.encoder_sources.items():
            resolve(self, reader).share_encoder(resolve(self, encoder_source))

    def numeric_attributes(self) -> dict[str, float]:
        """Return public numeric attributes except counters: the valid names of `hp_config`."""
        attributes = self.__dict__.items()
        return {k: v for k, v in attributes if is_number(v) and not k.startswith("_") and k not in _COUNTERS}

    def register_mutation_hook(self, hook: str) -> None:
        """Register a method, by name, to run after each mutation of this agent."""
        self.registry.hooks.append(hook)

    def mutation_hook(self) -> None:
        """Run the registered hooks; called after every mutation."""
        for hook in self.registry.hooks:
            resolve(self, hook)()

    def follow_optimizers(self) -> None:
        """Sync with direct changes to the networks or torch optimisers: replaced parameters, a new learning rate."""
        for config in self.registry.optimizers:
            wrapper = config.wrapper(self)
            wrapper.follow()
            rates = {float(group["lr"]) for group in wrapper.optimizer.param_groups}
            if len(rates) == 1 and rates != {float(wrapper.lr)}:
                setattr(self, config.lr, rates.pop())

    def reinit_optimizers(self, optimizer: OptimizerConfig | None = None) -> None:
        """Create fresh optimisers for the current networks (`optimizer`: only this one); moments start at zero."""
        for config in self.registry.optimizers if optimizer is None else [optimizer]:
            old = config.wrapper(self)
            networks, lr = [resolve(self, name) for name in config.networks], config.rate(self)
            fresh = OptimizerWrapper(old.optimizer_cls, networks, lr, old.optimizer_kwargs, config.networks, config.lr)
            setattr(self, config.name, fresh)

    @property
    def hp_config(self) -> HyperparameterConfig:
        """Mutable hyperparameters of this agent."""
        return self.registry.hp_config

    def policy_module(self) -> EvolvableModule:
        """Return the (first) policy network; AttributeError without a policy group."""
        name = self.registry.policy()
        if name is None:
            raise AttributeError("No policy network has been registered")
        module: EvolvableModule = self.__dict__[name] if name in self.__dict__ else resolve(self, name)
        return module

    get_policy = policy_module

    def evaluation_networks(self) -> dict[str, nn.Module]:
        """Return the evaluation network of every group, by name."""
        return {str(group.eval_network): resolve(self, str(group.eval_network)) for group in self.registry.groups}

    def evolvable_attributes(self, networks_only: bool = False) -> dict[str, Any]:
        """Return registered networks by name, and the optimisers unless `networks_only`."""
        kinds: tuple[type, ...] = (EvolvableModule,) if networks_only else (EvolvableModule, OptimizerWrapper)
        return {k: v for k, v in self.__dict__.items() if isinstance(v, kinds)}

    @staticmethod
    def inspect_attributes(agent: EvolvableAlgorithm, input_args_only: bool = False) -> dict[str, Any]:
        """Return public attributes that are neither networks, optimisers nor callables.
        input_args_only: only arguments of the constructor."""
        skip = (nn.Module, OptimizerWrapper, MutationRegistry)
        names = constructor_arguments(type(agent)) if input_args_only else agent.__dict__
        return {
            k: v
            for k, v in agent.__dict__.items()
            if k in names and not k.startswith("_") and not isinstance(v, skip) and not callable(v)
        }

    # --- interface for evolution and training ----------------------------------------------------------------------

    def update_hyperparameters(self) -> dict[str, float]:
        """Return the numbers that an update reads as tensors; overridden by algorithms with an `update`."""
        return {config.lr: float(config.rate(self)) for config in self.registry.optimizers}

    def _numbers(self, *names: str) -> dict[str, float]:
        """Return the current values of these attributes."""
        return {name: getattr(self, name) for name in names}

    def hyperparameters(self) -> dict[str, float]:
        """Return the hyperparameters shown in records: learning rates, update hyperparameters, all of `hp_config`."""
        names = [*self.update_hyperparameters(), *self.registry.hp_config.names()]
        return self._numbers(*dict.fromkeys(names))

    def probe_observations(self, count: int = 256) -> Any:
        """Return up to `count` recent observations, or None; used to measure the effect of mutations.

        Returns:
            A tensor [B, ...]; nested dicts of them for Dict and Tuple spaces.
        """
        return None if self._observations is None else map_leaves(lambda x: x[:count], self._observations)

    def probe_actions(self, network: str, count: int = 256) -> Tensor | None:
        """Return what a critic reads beside `probe_observations`: [B, A], or [K, B, A] for K agents that share it.
        None before actions are stored, or if it reads something else."""
        try:
            actions = self.taken_actions(count)
            return None if actions is None else resolve(self, network).prepare_action(actions)
        except ShapeError:
            return None

    def taken_actions(self, count: int = 256) -> Tensor | None:
        """Return the actions [B, ...] in `probe_observations`, as learned from; None unless a network reads actions."""
        return None if self._taken is None else self._taken[:count]

    def remember_observations(self, observations: Any, actions: Tensor | None = None) -> None:
        """Store observations [B, ...] (nested for Dict and Tuple spaces) for `probe_observations`, and the actions
        [B, ...] taken in them for `probe_actions`, if a network reads actions."""
        self._observations = map_leaves(lambda x: x.detach(), observations)
        if any(reads_actions(network) for network in self.evaluation_networks().values()):
            self._taken = None if actions is None else actions.detach()

    def set_training_mode(self, training: bool) -> None:
        """Set exploration and the networks' train/eval mode."""
        self.training = training
        for network in self.evolvable_attributes(networks_only=True).values():
            network.train(training)

    def get_action(self, obs: Any, *args: Any, **kwargs: Any) -> Any:
        """Select actions for observations; implemented by subclasses."""
        raise NotImplementedError(f"{type(self).__name__} must implement get_action(obs, ...) -> actions")

    get_action.is_missing = True  # type: ignore[attr-defined]

    def act(self, obs: Any, mask: Any = None, **unknown: Any) -> Any:
        """Return the greedy action for an observation or a batch; see `predict.act`."""
        return predicting.act(self, obs, mask, **unknown)

    def predict(
        self, obs: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True, *, mask: Any = None
    ) -> tuple[Any, Any]:
        """Return (action, hidden state), as Stable-Baselines3's `predict`; see `predict.predict`."""
        return predicting.predict(self, obs, state, episode_start, deterministic, mask=mask)

    def learn(self, experiences: Any) -> Any:
        """Perform one update; implemented by subclasses."""
        raise NotImplementedError(f"{type(self).__name__} must implement learn(experiences) -> loss")

    learn.is_missing = True  # type: ignore[attr-defined]

    def test(self, env: Any, swap_channels: bool = False, max_steps: int | None = None, loop: int = 1) -> float:
        """Return the mean return of evaluation episodes; implemented by subclasses."""
        raise NotImplementedError(f"{type(self).__name__} must implement test(env, max_steps=, loop=) -> float")

    test.is_missing = True  # type: ignore[attr-defined]

    def clean_up(self) -> None:
        """Release resources held outside the agent's attributes; a no-op here."""

    def wrap_models(self) -> None:
        """No-op in a single process."""

    def unwrap_models(self) -> None:
        """Raise AttributeError without an accelerator."""
        if self.accelerator is None:
            raise AttributeError("No accelerator has been set")

    # --- copies and files ------------------------------------------------------------------------------------------

    def clone(self, index: int | None = None, wrap: bool = True) -> Self:
        """Return an independent copy of networks, optimiser moments, counters and all other attributes.

        Args:
            index: id of the copy; unchanged by default.
            wrap: accepted for compatibility; ignored in a single process.
        """
        return copies.clone(self, index)

    def state(self) -> dict[str, Any]:
        """Return plain nested state: networks (spec and weights), optimisers, every JSON-able or tensor attribute."""
        return copies.state(self)

    def load_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        """Restore the result of `state`; `source` is named in errors.

        Raises:
            RunError: the state has another registry, or contains attributes that are methods of this agent.
        """
        copies.load_state(self, state, source)

    def run_state(self) -> dict[str, Any]:
        """Return `state` plus everything else needed to resume a run: private attributes, generators, modes, the
        networks' random state, objects with `state` and `load_state`.

        See `unsaved_attributes` for what is not saved.
        """
        return copies.run_state(self)

    def load_run_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        """Restore the result of `run_state`, bit for bit."""
        copies.load_run_state(self, state, source)

    def unsaved_attributes(self) -> list[str]:
        """Return the attributes saved by neither checkpoints nor runs, because their type has no plain form."""
        return copies.unsaved_attributes(self)

    def __getstate__(self) -> dict[str, Any]:
        """Return the pickled state; afterwards the agent's tensors own their storage.

        Pickle writes whole storages, so parameters and moments that are views of a row are copied first.
        """
        return copies.pickled(self)

    def save_checkpoint(self, path: str | Path) -> None:
        """Save the agent atomically to one file: safetensors with a JSON manifest in its header, no pickle."""
        save_tree(path, self.state())

    def load_checkpoint(self, path: str | Path) -> None:
        """Load a file of `save_checkpoint` in place. The agent stays on its device.

        Raises:
            ValueError: the file belongs to an algorithm with another registry.
        """
        self.load_state(load_tree(path), str(path))

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "cpu", accelerator: Any = None) -> Self:
        """Load an agent from a file of `save_checkpoint`, including architecture, hyperparameters and spaces.

        A wrapped agent is loaded with its wrapper.

        Raises:
            RunError: missing file, a pickle, or a file of another class.
        """
        agent: Self = copies.load(cls, path, device, accelerator)
        return agent

    @classmethod
    def _blank(cls, state: Mapping[str, Any], device: str | torch.device, accelerator: Any) -> Self:
        """Create an agent for `load_state(state)`; overridden if the file lacks required constructor arguments."""
        agent: Self = construct_without_repeats(cls, (), copies.blank_arguments(cls, state, device, accelerator))
        return agent

    def policy_spec(self) -> dict[str, Any]:
        """Return a JSON-able description of the policy: algorithm, network with its spaces, hyperparameters."""
        return {"algo": self.algo, "network": self.policy_module().spec(), "hyperparameters": self.hyperparameters()}

    def policy_state(self) -> dict[str, Tensor]:
        """Return contiguous copies of the policy's weights."""
        weights = self.policy_module().state_dict()
        return {k: v.detach().clone(memory_format=torch.contiguous_format) for k, v in weights.items()}
