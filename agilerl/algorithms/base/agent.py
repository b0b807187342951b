"""Base class of all algorithms: attributes that evolution mutates, copies and files.

See `registry` for registration, `predict` for acting outside of training.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Self, cast

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from agilerl.algorithms.base.copies import (
    clone_optimizer,
    is_part,
    is_plain,
    is_stateful,
    load_module_state,
    module_state,
    on_device,
    plain_spec,
    read_spec,
    saved_hp_config,
    with_keys,
)
from agilerl.algorithms.base.declared import STRUCTURE, Experience, check_arguments, check_mutable
from agilerl.algorithms.base.optimizer import OptimizerWrapper
from agilerl.algorithms.base.predict import Predicting
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
from agilerl.core import foreign
from agilerl.core.checkpoint import load_tree
from agilerl.core.hostile import malformed
from agilerl.core.rng import restored_generator
from agilerl.core.signatures import construct_without_repeats, constructor_arguments, taken_by, takes_any_name
from agilerl.core.spaces import MaskAsFeature, actions_differ, differ, short_form, space_from_json
from agilerl.core.texts import as_dict, number
from agilerl.core.transfer import as_device
from agilerl.core.tree import Tree, map_leaves
from agilerl.engine.protocol import UpdateResult
from agilerl.engine.recipes import Recipe
from agilerl.errors import AlgorithmError, ConfigError, RegistryError, RunError, ShapeError
from agilerl.hpo.effects import MutationRecord, reads_actions
from agilerl.modules.base import EvolvableModule
from agilerl.modules.copying import copy_value
from agilerl.networks import ensemble
from agilerl.networks.specs import check_sizes

CACHES = ("_learner",)  # rows and engines: never copied, compared or saved
ELSEWHERE = (*CACHES, "accelerator")  # rebuilt, or not owned by the agent
FIXED = (nn.Module, OptimizerWrapper, MutationRegistry, gym.Space, torch.device, torch.dtype)  # created by the script
LIMITS = ("min", "max", "shrink_factor", "grow_factor")
# Attributes of these types need no registration.
_PLAIN = frozenset({int, float, bool, str, NoneType, list, tuple, dict, np.ndarray, Tensor})


def check_device(device: str | torch.device) -> str | torch.device:
    """Return `device` unchanged; ConfigError for a CUDA device where none is available."""
    if as_device(device).type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={str(device)!r} needs CUDA, and PyTorch finds no device. fix: device='cpu'.")
    return device


class EvolvableAlgorithm(Predicting):
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
        later_hyperparameters: arguments that hashes of manifests ignore at their defaults.
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
    later_hyperparameters: ClassVar[frozenset[str]] = frozenset()
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
    _reward_statistics: Any = None  # of `collect.rewards.RewardScale`, if rewards are scaled
    _taken: Tensor | None = None  # actions in the recent observations, for critics that read them
    _predictions: np.random.Generator | None = None  # of `predict(deterministic=False)`
    registry: MutationRegistry

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        check_arguments(cls, args, kwargs)
        object.__setattr__(self, "registry", MutationRegistry())
        return self

    def __setattr__(self, name: str, value: object) -> None:
        if type(value) in _PLAIN and name not in self.registry.watched:
            object.__setattr__(self, name, value)
        else:
            assigned(self, name, value)

    def __init__(
        self,
        index: int = 0,
        hp_config: HyperparameterConfig | Mapping[str, Any] | None = None,
        device: str | torch.device = "cpu",
        accelerator: foreign.Accelerator | None = None,
        torch_compiler: str | None = None,
        name: str | None = None,
    ) -> None:
        hp_config = HyperparameterConfig(**hp_config) if isinstance(hp_config, Mapping) else hp_config
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
            describe = foreign.method(network, "describe")
            size = sum(parameter.numel() for parameter in network.parameters())
            yield f"network   {name} {'' if describe is None else f'{describe()} '}({size:,} parameters)"
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
        self.registry.groups.append(group.named(self))

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

    def update_options(self) -> tuple[Any, ...]:
        """Options that `update` branches on; equal for all members of a cohort."""
        return ()

    def recipe(self) -> Recipe | None:
        """See `engine.protocol.Trainable`; None by default."""
        return None

    def update(self, engine: Any, batch: Any) -> UpdateResult:
        """Perform one update of every member in `engine`; only the options above may be read from this agent.

        Args:
            batch: a `TransitionBatch`, or the algorithm's own kind of batch.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement update(engine, batch) or learn(experiences)")

    update.is_missing = True  # type: ignore[attr-defined]  # marks algorithms that implement only `learn`

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Draw the random numbers for updates, name -> [updates, K, ...]; `shape` is (updates, B). None by default.

        K is B for numbers per row of the batch, and differs for other numbers (`modules.layers`).
        """
        return {}

    def draw_acting_noise(self, rng: np.random.Generator, count: int) -> np.ndarray | None:
        """Draw noise of the policy's noisy layers for `count` vector steps [count, S]; None without noisy layers."""
        return None

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

    def remember_observations(self, observations: Tree, actions: Tensor | None = None) -> None:
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

    def learn(self, experiences: Mapping[str, Any] | Sequence[Any]) -> Any:
        """Perform one update; implemented by subclasses."""
        raise NotImplementedError(f"{type(self).__name__} must implement learn(experiences) -> loss")

    learn.is_missing = True  # type: ignore[attr-defined]

    def test(self, env: foreign.Env, swap_channels: bool = False, max_steps: int | None = None, loop: int = 1) -> float:
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
        self.check_registry()
        twin = object.__new__(type(self))
        accelerator = self.__dict__.get("accelerator")
        memo: dict[int, Any] = {id(accelerator): accelerator}
        for name, value in self.__dict__.items():
            if name not in CACHES and isinstance(value, EvolvableModule):
                memo[id(value)] = twin.__dict__[name] = value.clone()
        for name, value in self.__dict__.items():
            if name in twin.__dict__ or name in CACHES:
                continue
            is_optimizer = isinstance(value, OptimizerWrapper)
            copied = clone_optimizer(value, partial(resolve, twin)) if is_optimizer else copy_value(value, memo)
            twin.__dict__[name] = copied
        twin.link_encoders()
        if index is not None:
            twin.index = index
        return twin

    def state(self) -> dict[str, Any]:
        """Return plain nested state: networks (spec and weights), optimisers, every JSON-able or tensor attribute."""
        self.check_registry()
        networks = self.evolvable_attributes(networks_only=True)
        return {
            "algo": self.algo,
            "class": type(self).__name__,
            "registry": repr(self.registry.signature()),
            "networks": {
                k: {"spec": plain_spec(v.spec()), "weights": {n: t.detach() for n, t in v.state_dict().items()}}
                for k, v in networks.items()
            },
            "optimizers": {o.name: with_keys(o.wrapper(self).state_dict(), str) for o in self.registry.optimizers},
            "hp_config": {
                name: {k: vars(parameter)[k] for k in LIMITS} | {"dtype": parameter.dtype.__name__}
                for name, parameter in self.hp_config.items()
            },
            "attributes": {k: v for k, v in self.inspect_attributes(self).items() if is_plain(v)},
        }

    def _check_spaces(self, state: Mapping[str, Any], source: str) -> None:
        """Raise RunError if `state` has other spaces, unless its policy reads the mask as a feature."""
        for name, saved in (state.get("spaces") or {}).items():
            if saved is None or None in saved.values():
                continue
            by_agent = getattr(self, f"possible_{name}", None)  # of a team
            needed = getattr(self, name) if by_agent is None else gym.spaces.Dict(by_agent)
            built = space_from_json(saved if by_agent is None else {"type": "Dict", "spaces": saved})
            is_other = actions_differ if name.startswith("action") else differ
            if not isinstance(built, MaskAsFeature) and is_other(built, needed):
                text = f"{source} holds an agent with {name} {built}; this {type(self).__name__} has {needed}"
                raise RunError(f"{text}. fix: {state['class']}.load(path), which takes the spaces of the file.")

    def load_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        """Restore the result of `state`; `source` is named in errors.

        Raises:
            RunError: the state has another registry, other spaces, or attributes that are methods of this agent.
        """
        with malformed(source):
            check_sizes(state["networks"], source)
            if state["registry"] != repr(self.registry.signature()):
                raise RunError(
                    f"Loaded registry does not match the algorithm's registry: {source} holds a {state['class']}, "
                    f"this is a {type(self).__name__}. fix: {state['class']}.load(path)"
                )
            self._check_spaces(state, source)
            device = self.device
            for name, value in state["attributes"].items():
                if name.startswith("__") or callable(getattr(type(self), name, None)):
                    raise RunError(f"{source} would replace {type(self).__name__}.{name}. fix: do not use this file.")
                if name != "device":
                    object.__setattr__(self, name, value)
            for name, network in state["networks"].items():
                before = resolve(self, name)
                is_alike = plain_spec(before.spec()) == network["spec"]  # then nothing has to be built
                spec, build = read_spec(network["spec"]), partial(before.rebuilt, device=device)
                loaded = before if is_alike else ensemble.from_spec(spec, build)
                loaded.to(next(w.dtype for w in network["weights"].values() if w.is_floating_point()))
                loaded.load_state_dict(network["weights"])
                loaded.requires_grad_(any(p.requires_grad for p in before.parameters())).train(before.training)
                object.__setattr__(self, name, loaded)
            self.link_encoders()
            if not self.hp_config:
                self.registry.hp_config = saved_hp_config(state.get("hp_config", {}))
            self.reinit_optimizers()
            for name, optimizer in state["optimizers"].items():
                resolve(self, name).load_state_dict(with_keys(optimizer, int))

    def run_state(self) -> dict[str, Any]:
        """Return `state` plus everything else needed to resume a run: private attributes, generators, modes, the
        networks' random state, objects with `state` and `load_state`.

        See `unsaved_attributes` for what is not saved.
        """
        others = {name: value for name, value in self.__dict__.items() if name not in ELSEWHERE}
        networks = self.evolvable_attributes(networks_only=True)
        record = others.get("mutation_record")
        values = None
        if isinstance(record, MutationRecord):
            values = as_dict(record)
            values |= {} if is_plain(values) else {"before": str(record.before), "after": str(record.after)}
        private = {
            "attributes": {k: v for k, v in others.items() if k.startswith("_") and is_plain(v)},
            "generators": {k: v.bit_generator.state for k, v in others.items() if isinstance(v, np.random.Generator)},
            "torch_generators": {k: v.get_state() for k, v in others.items() if isinstance(v, torch.Generator)},
            "parts": {k: v.state() for k, v in others.items() if is_stateful(v)},
            "mutation_record": values,
            "modules": {name: module_state(network) for name, network in networks.items()},
        }
        return {**self.state(), "private": private}

    def load_run_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        """Restore the result of `run_state`, bit for bit."""
        if state.get("hp_config"):
            self.registry.hp_config = saved_hp_config(state["hp_config"])
        self.load_state(state, source)
        private = state["private"]
        for name, value in private["attributes"].items():
            object.__setattr__(self, name, on_device(value, self.device))
        for name, value in private["generators"].items():
            object.__setattr__(self, name, restored_generator(value))
        for name, value in private["torch_generators"].items():
            resolve(self, name).set_state(value)
        for name, value in private["parts"].items():
            resolve(self, name).load_state(value)
        self.__dict__.pop("mutation_record", None)  # belongs to the agent that this one was created from
        if private["mutation_record"] is not None:
            object.__setattr__(self, "mutation_record", MutationRecord(**private["mutation_record"]))
        for name, value in private["modules"].items():
            load_module_state(resolve(self, name), value)

    def unsaved_attributes(self) -> list[str]:
        """Return the attributes saved by neither checkpoints nor runs, because their type has no plain form."""
        networks, types = self.evolvable_attributes(networks_only=True), (*FIXED, np.random.Generator, torch.Generator)
        return [
            f"{name} ({type(value).__name__})"
            for name, value in self.__dict__.items()
            if name not in (*ELSEWHERE, "mutation_record", *networks)
            and not (is_plain(value) or isinstance(value, types) or is_stateful(value) or callable(value))
        ]

    def __getstate__(self) -> dict[str, Any]:
        """Return the pickled state; afterwards the agent's tensors own their storage.

        Pickle writes whole storages, so parameters and moments that are views of a row are copied first.
        """
        for network in self.evolvable_attributes(networks_only=True).values():
            for tensor in (*network.parameters(), *network.buffers()):
                if is_part(tensor):
                    tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)
        for config in self.registry.optimizers:
            for state in config.wrapper(self).optimizer.state.values():
                state.update({k: v.clone() for k, v in state.items() if isinstance(v, Tensor) and is_part(v)})
        return {name: value for name, value in self.__dict__.items() if name not in CACHES}

    @classmethod
    def load(
        cls, path: str | Path, device: str | torch.device = "cpu", accelerator: foreign.Accelerator | None = None
    ) -> Self:
        """Load an agent from a file of `save_checkpoint`, including architecture, hyperparameters and spaces.

        A wrapped agent is loaded with its wrapper.

        Raises:
            RunError: missing file, a pickle, or a file of another class.
        """
        tree = load_tree(path)
        with malformed(path):
            if "wrapper" in tree:
                from agilerl.algorithms.base.wrapped import wrapped_from  # of agents around this one

                return cast(Self, wrapped_from(tree, cls, path, device, accelerator))
            if tree["class"] != cls.__name__:
                raise RunError(
                    f"Loaded registry does not match the algorithm's registry: {path} holds a {tree['class']}, "
                    f"this is {cls.__name__}.load. fix: {tree['class']}.load(path)"
                )
            check_sizes(tree["networks"], str(path))
            try:
                agent = cls._blank(tree, device, accelerator)
            except TypeError as error:  # raised by the constructor, not by the file
                reason = str(error).partition("; known: ")[0]
                raise AlgorithmError(
                    f"{cls.__name__}.load cannot make a {cls.__name__}: {reason}. fix: let its constructor take that "
                    "argument (and hand it on), or make the agent and then agent.load_checkpoint(path)."
                ) from error
            agent.load_state(tree, str(path))
        return agent

    @classmethod
    def _blank(
        cls, state: Mapping[str, Any], device: str | torch.device, accelerator: foreign.Accelerator | None
    ) -> Self:
        """Create an agent for `load_state(state)`; overridden if the file lacks required constructor arguments."""
        agent: Self = construct_without_repeats(cls, (), cls._blank_arguments(state, device, accelerator))
        return agent

    @classmethod
    def _blank_arguments(
        cls, saved: Mapping[str, Any], device: str | torch.device, accelerator: foreign.Accelerator | None
    ) -> dict[str, Any]:
        """Return constructor arguments of `cls` for an agent that `load_state(saved)` then fills.

        Spaces, and required arguments that are attributes of the agent, come from the file. Of the optional arguments
        only those of `cls.structure` are read, because they decide which networks exist. Arguments that only a base
        class requires are left out if the file lacks them: the constructor of `cls` may set them.

        Raises:
            RunError: the file lacks a required argument.
        """
        parameters = constructor_arguments(cls)
        own: Any = cls.__init__
        rest = takes_any_name(parameters)
        spaces, attributes = saved.get("spaces", {}), saved["attributes"]
        arguments = taken_by(cls, {"device": device, "accelerator": accelerator})
        needed = [
            k for k, p in parameters.items() if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        ]
        for name in dict.fromkeys((*needed, *(spaces if rest else [k for k in spaces if k in parameters]))):
            if name in spaces and spaces[name] is not None:
                arguments[name] = space_from_json(spaces[name])
            elif name in attributes:
                arguments[name] = attributes[name]
            elif name not in arguments and name in inspect.signature(own).parameters:
                raise RunError(f"the file does not hold the {name}. fix: make the agent, then load_checkpoint(path).")
        structure = [name for name in cls.structure if name in parameters and name in attributes]
        return arguments | {name: attributes[name] for name in structure}

    def policy_spec(self) -> dict[str, Any]:
        """Return a JSON-able description of the policy: algorithm, network with its spaces, hyperparameters."""
        return {"algo": self.algo, "network": self.policy_module().spec(), "hyperparameters": self.hyperparameters()}

    def policy_state(self) -> dict[str, Tensor]:
        """Return contiguous copies of the policy's weights."""
        weights = self.policy_module().state_dict()
        return {k: v.detach().clone(memory_format=torch.contiguous_format) for k, v in weights.items()}
