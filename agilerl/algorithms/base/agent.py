"""The base of every algorithm: live attributes that evolution mutates, and thin methods; the work is done beside it.

Registration is in `registry`, copies and files are in `copies`, evaluation is in `evaluation`.
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
from agilerl.algorithms.base import evaluation as playing
from agilerl.algorithms.base import registry as registering
from agilerl.algorithms.base.declared import Experience, check_arguments, check_mutable
from agilerl.algorithms.base.optimizer import OptimizerWrapper
from agilerl.algorithms.base.registry import HyperparameterConfig, MutationRegistry, NetworkGroup, assigned, resolve
from agilerl.checkpoint import load_tree, save_tree
from agilerl.errors import ConfigError
from agilerl.hpo.architecture import described
from agilerl.modules.base import EvolvableModule
from agilerl.spaces import short_form
from agilerl.telemetry.console import number
from agilerl.tree import map_leaves

# Nothing of these registers.
_PLAIN = frozenset({int, float, bool, str, NoneType, list, tuple, dict, np.ndarray, Tensor})


def check_device(device: str | torch.device) -> str | torch.device:
    """The device as given.

    Raises:
        ConfigError: it is a CUDA device and there is none.
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
        hp_config: mutable hyperparameters; the agent keeps its own copy. Each name must be a numeric attribute, each
            range lie within the declared one.
        device: where networks and batches live.
        accelerator: kept; what several processes do is decided by the `accelerator` of the training functions.
        torch_compiler: kept as an attribute; compilation is not used.
        name: algorithm name, the class name by default.

    Attributes:
        steps: environment steps so far, one entry a generation (the last one grows).
        scores: returns of finished training episodes. fitness: one entry per `test`.
        mut: what the last evolution did to this agent, None before the first.
        registry: what it has registered. Assigning does the registering, see `registry.assigned`.
        arguments_by_agent: numbers of the constructor that may be given by agent, as a mapping.
        experience: what it learns from; None for an algorithm that declares nothing.
        learns_language: whether its policy is an adapter on a language model.
        reads_texts: whether its network is a transformer over texts, in place of an encoder with a head.
        imitates: whether it clones behaviour, whatever its return: its own actions have nothing to teach it.
        shares_in_populations: whether critics share the encoder in populations of `create_population` by default.
        reads_alone: whether every network of a team reads the observations of its own agent only.
        trains_unwrapped: whether training functions train the agent inside it; True for some wrappers only.
        is_recurrent: whether acting needs a hidden state that goes through an episode.
        recurrent: whether it was constructed with recurrent encoders.
        learns_from_obs_mask: whether `update` reads which actions were legal in `obs`, so that replay keeps them; else
            only those of `next_obs` are kept.
        adapts_rate: whether `update` changes the learning rate.
        combined_reward: whether it learns from one-step and n-step transitions together and needs both memories.
        action_masks: whether it has trained with masks of legal actions.
        normalize_observations: whether its networks shift and scale observations.
        evaluated_in: the environment and step limit of `evaluate` (`evaluation.EvaluatedIn`); None if unknown.
        origin: the run and member that it was copied from; empty for an agent that began here.
        mutation_record: the last mutation (`hpo.effects.MutationRecord`); None before the first.
        observation_space, action_space: what it sees and does; None for an algorithm without spaces.
        action_ent_steps: environment steps after which the weight of entropy falls (PPO); None: it is constant.
        end_episodes: method of teams with a memory, which forget the episodes that are over [E, M]; None for others.
    """

    # Capabilities, declared with their defaults: callers read these and never ask which algorithm an agent is.
    arguments_by_agent: ClassVar[frozenset[str]] = frozenset()
    experience: ClassVar[Experience | None] = None
    learns_language: ClassVar[bool] = False
    reads_texts: ClassVar[bool] = False
    imitates: ClassVar[bool] = False
    shares_in_populations: ClassVar[bool] = False
    reads_alone: ClassVar[bool] = False
    trains_unwrapped: ClassVar[bool] = False
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
        self.device = check_device(device)
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
        """One line, as a list of agents shows it."""
        try:
            fitness = f", fitness {number(self.fitness[-1])}" if self.fitness else ""
            return f"{self.algo}(member {self.index}{fitness}, {self._settings()})"
        except AttributeError:  # while it is being made
            return object.__repr__(self)

    def __str__(self) -> str:
        """What it is, sees and does, how it is set, its networks, how it has done."""
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
        """Register networks for mutation; modules in `group` are replaced by their names."""
        registering.register_group(self, group)

    def check_registry(self) -> None:
        """Raise where the registration is incomplete.

        Raises:
            AttributeError: no group, no policy group, or a hyperparameter that is not a numeric attribute.
        """
        registering.check_registry(self)

    def link_encoders(self) -> None:
        """Let every network without an encoder read the features of its present encoder source."""
        registering.link_encoders(self)

    def numeric_attributes(self) -> dict[str, float]:
        """Public numeric attributes, counters apart: what `hp_config` may name."""
        return registering.numeric_attributes(self)

    def register_mutation_hook(self, hook: str) -> None:
        """Name a method that runs after each mutation of this agent."""
        self.registry.hooks.append(hook)

    def mutation_hook(self) -> None:
        """Run the registered hooks; called after every mutation."""
        for hook in self.registry.hooks:
            resolve(self, hook)()

    def follow_optimizers(self) -> None:
        """Take over what was done to the networks or the torch optimisers themselves: parameters, a learning rate."""
        for config in self.registry.optimizers:
            wrapper = config.wrapper(self)
            wrapper.follow()
            given = {float(group["lr"]) for group in wrapper.optimizer.param_groups}
            if len(given) == 1 and given != {float(wrapper.lr)}:
                setattr(self, config.lr, given.pop())

    def reinit_optimizers(self) -> None:
        """Fresh optimisers around the present networks: moments start at zero."""
        for config in self.registry.optimizers:
            old = config.wrapper(self)
            networks, lr = [resolve(self, name) for name in config.networks], config.rate(self)
            fresh = OptimizerWrapper(old.optimizer_cls, networks, lr, old.optimizer_kwargs, config.networks, config.lr)
            setattr(self, config.name, fresh)

    @property
    def hp_config(self) -> HyperparameterConfig:
        """The agent's own mutable hyperparameters."""
        return self.registry.hp_config

    def policy_module(self) -> EvolvableModule:
        """The (first) policy network. AttributeError without a policy group."""
        name = self.registry.policy()
        if name is None:
            raise AttributeError("No policy network has been registered")
        module: EvolvableModule = self.__dict__[name] if name in self.__dict__ else resolve(self, name)
        return module

    get_policy = policy_module

    def evaluation_networks(self) -> dict[str, nn.Module]:
        """The evaluation network of every group, by name."""
        return {str(group.eval_network): resolve(self, str(group.eval_network)) for group in self.registry.groups}

    def evolvable_attributes(self, networks_only: bool = False) -> dict[str, Any]:
        """Registered networks by name, and the optimisers too unless `networks_only`."""
        kinds: tuple[type, ...] = (EvolvableModule,) if networks_only else (EvolvableModule, OptimizerWrapper)
        return {k: v for k, v in self.__dict__.items() if isinstance(v, kinds)}

    @staticmethod
    def inspect_attributes(agent: EvolvableAlgorithm) -> dict[str, Any]:
        """Public attributes that are neither networks nor optimisers nor callables."""
        skip = (nn.Module, OptimizerWrapper, MutationRegistry)
        return {
            k: v
            for k, v in agent.__dict__.items()
            if not k.startswith("_") and not isinstance(v, skip) and not callable(v)
        }

    # --- what evolution and training read --------------------------------------------------------------------------

    def update_hyperparameters(self) -> dict[str, float]:
        """The numbers that an update reads as tensors; overridden by algorithms with an `update`."""
        return {config.lr: float(config.rate(self)) for config in self.registry.optimizers}

    def _numbers(self, *names: str) -> dict[str, float]:
        """The live attributes of these names."""
        return {name: getattr(self, name) for name in names}

    def hyperparameters(self) -> dict[str, float]:
        """What the records show: learning rates, update hyperparameters and everything in `hp_config`."""
        names = [*self.update_hyperparameters(), *self.registry.hp_config.names()]
        return self._numbers(*dict.fromkeys(names))

    def probe_observations(self, count: int = 256) -> Any:
        """Up to `count` observations that were seen lately, or None: what mutations measure their effect on.

        Returns:
            A tensor [B, ...]; nested dicts of them for Dict and Tuple spaces.
        """
        return None if self._observations is None else map_leaves(lambda x: x[:count], self._observations)

    def remember_observations(self, observations: Any) -> None:
        """Keep observations [B, ...] (nested for Dict and Tuple spaces) for `probe_observations`."""
        self._observations = map_leaves(lambda x: x.detach(), observations)

    def set_training_mode(self, training: bool) -> None:
        """Switch exploration and the networks' train/eval mode."""
        self.training = training
        for network in self.evolvable_attributes(networks_only=True).values():
            network.train(training)

    def get_action(self, obs: Any, *args: Any, **kwargs: Any) -> Any:
        """Actions for observations; a subclass implements it."""
        raise NotImplementedError(f"{type(self).__name__} must implement get_action(obs, ...) -> actions")

    def act(self, obs: Any, mask: Any = None) -> Any:
        """The greedy action for an observation, or for a batch of them; see `evaluation.act`."""
        return playing.act(self, obs, mask)

    def predict(
        self, obs: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True, *, mask: Any = None
    ) -> tuple[Any, Any]:
        """(greedy action, hidden state), with the arguments of Stable-Baselines3; see `evaluation.predict`."""
        return playing.predict(self, obs, state, episode_start, deterministic, mask=mask)

    def learn(self, experiences: Any) -> Any:
        """One update; a subclass implements it."""
        raise NotImplementedError(f"{type(self).__name__} must implement learn(experiences) -> loss")

    def test(self, env: Any, swap_channels: bool = False, max_steps: int | None = None, loop: int = 1) -> float:
        """Mean return of evaluation episodes; a subclass implements it."""
        raise NotImplementedError(f"{type(self).__name__} must implement test(env, max_steps=, loop=) -> float")

    def clean_up(self) -> None:
        """Release what the agent holds outside of its attributes: nothing here."""

    def wrap_models(self) -> None:
        """Nothing to wrap in one process."""

    def unwrap_models(self) -> None:
        """AttributeError without an accelerator."""
        if self.accelerator is None:
            raise AttributeError("No accelerator has been set")

    # --- copies and files ------------------------------------------------------------------------------------------

    def clone(self, index: int | None = None, wrap: bool = True) -> Self:
        """An independent copy: networks, optimiser moments, counters and every other attribute; nothing is shared.

        Args:
            index: id of the copy; the same as here by default.
            wrap: accepted for compatibility; there is nothing to wrap in one process.
        """
        return copies.clone(self, index)

    def state(self) -> dict[str, Any]:
        """Plain nested state: networks (spec and weights), optimisers, and every JSON-able or tensor attribute."""
        return copies.state(self)

    def load_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        """Put back what `state` returned; `source` is named in errors.

        Raises:
            RunError: the state of an agent with another registry, or of one with attributes that are methods here.
        """
        copies.load_state(self, state, source)

    def run_state(self) -> dict[str, Any]:
        """As `state`, with everything else on which the rest of a run depends: private attributes, generators,
        modes, the networks' own draws, objects that have `state` and `load_state`.

        See `unsaved_attributes` for what is in none of them.
        """
        return copies.run_state(self)

    def load_run_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        """Become the agent that `run_state` was taken from, to the bit."""
        copies.load_run_state(self, state, source)

    def unsaved_attributes(self) -> list[str]:
        """Attributes that neither a file nor a run keeps, because their kind has no plain form."""
        return copies.unsaved_attributes(self)

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled of an agent; its tensors own their storage from here on.

        Pickle writes whole storages: parameters and moments that are views of a row get one of their own.
        """
        return copies.pickled(self)

    def save_checkpoint(self, path: str | Path) -> None:
        """Write the agent to one file: safetensors with a JSON manifest in its header, atomically, no pickle."""
        save_tree(path, self.state())

    def load_checkpoint(self, path: str | Path) -> None:
        """Read a file of `save_checkpoint` in place. The live device wins.

        Raises:
            ValueError: the file belongs to an algorithm with another registry.
        """
        self.load_state(load_tree(path), str(path))

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "cpu", accelerator: Any = None) -> Self:
        """The agent in a file of `save_checkpoint`: architecture, hyperparameters and spaces are read from the file.

        A file of a wrapped agent gives the wrapped agent back, in its wrapper.

        Raises:
            RunError: no such file, a pickle, or the file of another class.
        """
        found: Self = copies.load(cls, path, device, accelerator)
        return found

    @classmethod
    def _blank(cls, state: Mapping[str, Any], device: str | torch.device, accelerator: Any) -> Self:
        """An agent that `load_state(state)` fills; overridden where the file does not hold what a constructor needs."""
        return cls(**copies.blank_arguments(cls, state, device, accelerator))

    def policy_spec(self) -> dict[str, Any]:
        """JSON-able description of the policy: algorithm, network with its spaces, hyperparameters."""
        return {"algo": self.algo, "network": self.policy_module().spec(), "hyperparameters": self.hyperparameters()}

    def policy_state(self) -> dict[str, Tensor]:
        """The policy's weights, contiguous copies."""
        weights = self.policy_module().state_dict()
        return {k: v.detach().clone(memory_format=torch.contiguous_format) for k, v in weights.items()}
