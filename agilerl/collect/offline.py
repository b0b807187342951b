"""Offline collector: the experience behind `train_offline`. One step is one gradient update of one member."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from agilerl.algorithms.base.adapted import adapted
from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.algorithms.base.declared import hyperparameters
from agilerl.algorithms.base.single_agent import RLAlgorithm
from agilerl.algorithms.base.wrapped import unwrapped
from agilerl.collect.collector import Shard, ShardResult, Shared, Steps, Tally
from agilerl.collect.custom.member import CustomLearner
from agilerl.collect.custom.transitions import CustomOfflineUpdates
from agilerl.collect.divergence import Watch, check_interval
from agilerl.collect.fitness import FitnessEvaluator
from agilerl.collect.fitted import FittedEvaluator, NoLanes, hold_out, unjudged
from agilerl.collect.lanes import LaneCollector
from agilerl.collect.replay import SharedReplay
from agilerl.collect.updates import Schedule, Updates
from agilerl.components.replay_buffer import HindsightReplayBuffer, MultiStepReplayBuffer, ReplayBuffer
from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.core.options import LoopOptions, OfflineOptions
from agilerl.core.spaces import mask_width
from agilerl.data.dataset import Dataset, read_dataset
from agilerl.engine.learner import Learner
from agilerl.envs.lanes import name_of
from agilerl.envs.masks import MASK, ActionMasks
from agilerl.envs.observed_masks import by_row, parted
from agilerl.envs.step import Lanes, as_lanes
from agilerl.errors import ConfigError, ReplayError, RunError, ShapeError, warn_once

MAX_UPDATES_AT_ONCE = 32  # updates whose rows are fetched in one call


class OfflineCollector(LaneCollector[OfflineOptions]):
    """Members learn from a data set held in one memory; the environment is used for evaluation only.

    Args:
        env: evaluation environment; None (or unused) with the fitness of `collect.fitted`.
        memory: buffer to sample from; filled by `open` if there is a data set.
        dataset: from `read_dataset`; None if the memory already holds the data.
    """

    acts = False
    waits_for_lanes = "it learns from a data set, and steps no environment in training"
    steps_add_up = False  # one update counts once, however many ranks share its rows

    def __init__(
        self, env: foreign.Env, memory: Any, options: OfflineOptions, dataset: Dataset | None = None,
        eval_env: foreign.Env | None = None,
    ) -> None:  # fmt: skip
        super().__init__(env, options, Shared(), eval_env)
        self.num_envs = 1  # one step is one update
        self.probed = None if self._is_fitted else env
        self.memory, self.dataset = memory, dataset
        self._fitted: FittedEvaluator | None = None
        self._loaded: Mapping[str, Any] = {} if dataset is None else dataset.source

    @classmethod
    def make(
        cls, env: foreign.Env, options: LoopOptions, replay: Callable[[], Any], eval_env: foreign.Env | None = None
    ) -> OfflineCollector:
        """Create the collector with the data set named in the options and a memory from `replay`."""
        if options.dataset is None:
            raise ConfigError("the algorithm learns from a data set, and none is named. fix: dataset='data.h5'.")
        data = read_dataset(options.dataset)
        return cls(env, replay(), OfflineOptions.of(vars(options)), data, eval_env)

    def open(
        self, population: Sequence[Any], run_seed: int, check: Callable[[], None] | None = None, shards: int = 1
    ) -> None:
        warn_of_learn_step(population)
        if self.dataset is not None:
            self.dataset = without_masks(self.dataset, population[0])
            check_environment(self.dataset, self.env, population[0])
        self._learned = self.dataset
        super().open(population, run_seed, check, shards)
        if self._learned is not None:
            self.notes += fill(self.memory, self._learned, population[0], self.options)
        if not len(self.memory):
            raise ConfigError("there is nothing to learn from: the memory is empty. fix: dataset='data.h5'.")
        sizes = [int(agent.batch_size) for agent in population]
        text = (
            f"batch_size={max(sizes)} is more than the {len(self.memory)} rows of the data, so that members of "
            f"this size learn nothing. fix: batch_size={len(self.memory)} or less."
        )
        if max(sizes) > len(self.memory):
            warn_once(text, text)
        for agent in population:
            agent.see_data(self.memory)

    def _choose_lockstep(self) -> bool:
        return not self.alone and self.learner != "agents"

    def _make_lanes(self, members: int) -> Lanes:
        return NoLanes() if self._is_fitted else as_lanes(self.env)

    @property
    def _is_fitted(self) -> bool:
        return str(self.options.fitness) == "fqe"

    def _make_evaluator(self, population: Sequence[Any], check: Callable[[], None] | None) -> FitnessEvaluator:
        if not self._is_fitted:
            return super()._make_evaluator(population, check)
        for agent in population:
            adapted_agent = adapted(agent)
            if self._tests or adapted_agent.is_recurrent or adapted_agent.reads_texts:
                raise unjudged(agent)
        if self.dataset is None:
            raise ConfigError(
                "fitness='fqe' holds whole episodes out, and a memory does not say where they end. fix: dataset=..., "
                "or an environment to evaluate in."
            )
        self._learned, held = hold_out(self.dataset, self.options.held_out, self.run_seed)
        rows = ReplayBuffer(max_size=len(held), device=self.memory.device, dtype=self.memory.dtype)
        fill(rows, held, population[0], replace(self.options, reward_floor=None, clip_rewards=False, reward_scale=1.0))
        self._fitted = FittedEvaluator(held, rows, self.options, self.run_seed, check)
        self.notes.append(self._fitted.described(len(self.dataset)))
        return self._fitted

    def fit(self, population: Sequence[Any]) -> str | None:
        before = self.lockstep
        self.lockstep = False  # no environment is stepped, so lanes do not depend on the number of members
        try:
            return super().fit(population)
        finally:
            self.lockstep = before

    def run(self, shard: Shard, lanes: Lanes, learner: Learner) -> Steps:
        """Run one generation of a shard: one update of every member per step."""
        for agent in shard.agents:
            agent.set_training_mode(True)
        together = max(k for k in range(1, MAX_UPDATES_AT_ONCE + 1) if shard.vector_steps % k == 0)
        is_custom = learner.name == CustomLearner.name
        interval = 1 if is_custom else check_interval(learner.groups[0].device)
        watch = Watch(learner, [Tally() for _ in shard.agents], 1, interval)
        updates = (CustomOfflineUpdates if is_custom else Updates)(
            shard, SharedReplay(self.memory), self.options, watch, None, are_choices=False, env_steps_at_once=together,
            schedule=Schedule(1, together),
        )  # fmt: skip
        for index in range(shard.vector_steps // together):
            watch.weights()
            if not watch.any_sound:
                break
            updates.learn(index)
            for tally in watch.tallies:
                tally.env_steps += together
            yield together * len(shard.agents)
        updates.end()
        return ShardResult(dict(zip(shard.slots, watch.tallies, strict=True)), shard.shared)

    # -- for the records ---------------------------------------------------------------------------------------------

    def memories(self) -> Mapping[str, Any]:
        """Empty: a run records which data it used and keeps no copy."""
        return {}

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "num_envs": foreign.num_envs(self.env), "dataset": self._facts()}

    def _facts(self) -> dict[str, Any]:
        held = {} if self._fitted is None else {"held_out": self._fitted.facts()}
        return {**self._loaded, "rows": len(self.memory), **held}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "dataset": {key: value for key, value in self._facts().items() if key != "path"}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Raise RunError if the data differ from those the run started with."""
        super().load_state(state)
        recorded, current = state["dataset"], self.state()["dataset"]
        if recorded != current:
            raise RunError(f"the run learned from {_short(recorded)}; these are {_short(current)}. fix: the same data.")


def _short(facts: Mapping[str, Any]) -> str:
    return f"{facts['rows']} rows" + (f", sha256 {facts['sha256'][:12]}" if "sha256" in facts else "")


def fill(memory: ReplayBuffer, dataset: Dataset, agent: RLAlgorithm, options: OfflineOptions) -> list[str]:
    """Load a data set into a memory, growing it if necessary; return notes for the log.

    Raises:
        ConfigError: unsupported memory. ShapeError: observations or actions do not match the spaces. ReplayError:
            non-finite values.
    """
    if not isinstance(memory, ReplayBuffer) or isinstance(memory, MultiStepReplayBuffer | HindsightReplayBuffer):
        raise ConfigError(
            f"data sets fill a ReplayBuffer or a PrioritizedReplayBuffer; got {type(memory).__name__}. "
            "fix: memory=ReplayBuffer(max_size=100_000)."
        )
    dataset = agent.arrange(without_masks(dataset, agent))
    notes, rows = [], len(dataset)
    if not rows:
        raise ConfigError("the data set holds no transition. fix: steps with their successors.")
    if dataset.left_out:
        notes.append(f"data set: steps without a successor, left out: {dataset.left_out}")
    if {"timeouts", "next_observations"} <= set(dataset.missing):
        notes.append(
            "data set: no timeouts and no next_observations: where an episode was cut, its last step leads into the "
            "next episode. fix: an array timeouts, True where an episode was cut off"
        )
    if len(memory):
        notes.append(f"the memory held {len(memory)} rows; it now holds the data set's {rows} transitions")
    if memory.max_size < rows:
        notes.append(f"the memory grew from {memory.max_size} to {rows} rows, to hold the whole data set")
    memory.clear()
    memory.reserve(rows)
    _check_masks(dataset, agent)
    obs, later = (_observed(agent, x, options) for x in (dataset.obs, dataset.next_obs))
    _check_finite({"observations": obs, "rewards": dataset.reward, "next_observations": later})
    action = _stored(agent, dataset)
    reward = options.learned_reward(dataset.reward) if options.changes_rewards else dataset.reward
    masks = {"obs_mask": dataset.obs_mask if agent.learns_from_obs_mask else None, "next_mask": dataset.next_mask}
    memory.write(obs, action, reward, later, dataset.terminated, **masks)
    return notes


def _check_masks(dataset: Dataset, agent: RLAlgorithm) -> None:
    """Raise ShapeError for masks that do not fit the actions, or that allow none where the agent acts."""
    width, goes_on = mask_width(agent.action_space), ~dataset.terminated
    everywhere = np.ones(len(dataset), bool)
    masks = {"action_masks": (dataset.obs_mask, everywhere), "next_action_masks": (dataset.next_mask, goes_on)}
    for name, (mask, acts) in masks.items():
        if mask is None:
            continue
        rows = np.asarray(mask)
        if rows.reshape(len(rows), -1).shape[1] != width:
            raise ShapeError(
                f"{name} have the shape {rows.shape}; expected {(len(rows), width)} for {agent.action_space}, 1 = "
                "legal and 0 = not. fix: one entry for each choice, or leave the masks out."
            )
        blocked = acts & ~rows.reshape(len(rows), -1).astype(bool).any(1)
        if blocked.any():
            raise ShapeError(
                f"{name} allow no action in row {int(np.argmax(blocked))} ({int(blocked.sum())} rows in all). "
                "fix: at least one 1 where the episode goes on."
            )


def without_masks(dataset: Dataset, agent: EvolvableAlgorithm) -> Dataset:
    """Move masks of legal actions from observations to the data set's mask fields, as this agent reads them.

    Mask arrays of the data set take precedence.

    Raises:
        ShapeError: the masks do not match the action space, or the actions are not discrete.
    """
    space = agent.observation_space
    masks: dict[str, Any] = {}
    for part, role in (("obs", "obs_mask"), ("next_obs", "next_mask")):
        rest, mask = parted(vars(dataset)[part], space)
        if mask is None:
            continue
        masks[part] = rest
        if isinstance(mask, Mapping) and not isinstance(agent.action_space, gym.spaces.Dict):
            mask = tuple(mask.values())  # of a Tuple: one part per component
        if vars(dataset)[role] is None:
            reader = ActionMasks(agent.action_space, "the data set", ShapeError)
            is_over = dataset.terminated if part == "next_obs" else None
            what = f"the part {MASK!r} of {'next_' if part == 'next_obs' else ''}observations"
            masks[role] = reader.of_caller(by_row(mask), len(dataset), what, is_over)
    return replace(dataset, **masks) if masks else dataset


def _stored(agent: RLAlgorithm, dataset: Dataset) -> np.ndarray:
    """Convert the data set's actions to the memory's format; ShapeError if they do not match the action space."""
    form, action, rows = agent.action_form, dataset.action, len(dataset)
    action = action.astype(np.int64) if action.dtype.kind in "bu" else action  # torch knows few unsigned types
    is_box = isinstance(agent.action_space, gym.spaces.Box)
    if not is_box:
        _check_finite({"actions": action})
    if dataset.is_stored and not is_box:
        action = form.environment(agent, action)  # choice indices, to environment actions, which are checked below
    if not dataset.is_stored:
        action, outside = form.stored(agent, action)
        if outside:
            raise ShapeError(
                f"the data set's actions of {outside} of {rows} rows lie outside of {agent.action_space}. "
                "fix: the actions that the environment took: np.clip(actions, low, high) where it clips them itself."
            )
    try:
        return form.prepare(agent, torch.from_numpy(np.ascontiguousarray(action)), rows).numpy()
    except ShapeError as error:
        message = str(error).replace(f"{agent.algo}.learn got", "the data set has").partition(" fix:")[0]
        raise ShapeError(f"{message} fix: data of {agent.action_space}, as its environment takes actions.") from None


def _check_finite(parts: Mapping[str, Any]) -> None:
    """Raise ReplayError for NaN or Inf: one such row would corrupt every member that samples it."""
    for name, part in parts.items():
        for leaf in trees.leaves(part):
            values = np.asarray(leaf)
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
                raise ReplayError(
                    f"the data set's {name} are not finite in {int(bad.sum())} of {len(bad)} rows, row "
                    f"{int(np.argmax(bad))} first. fix: leave out their episodes."
                )


def check_environment(dataset: Dataset, env: foreign.Env | None, agent: RLAlgorithm) -> None:
    """Raise ConfigError if the data set was recorded in a different environment from the training one.

    Compares environment ids, if available, and the kind of actions; data sets without this information pass.
    """
    recorded, single = dataset.env_id, foreign.single(env)
    env_id = foreign.own_id(env) or (None if foreign.spec(single) is None else name_of(single))
    if recorded is not None and env_id is not None and recorded != env_id:
        raise ConfigError(
            f"the data set was recorded in {recorded}, and the environment is {env_id}. fix: data of {env_id} "
            f"(agilerl data make {env_id} --policy random --out {env_id.replace('/', '-')}.h5), or train on {recorded}."
        )
    kind = str(dataset.about.get("action_space", "")).partition("(")[0]
    if kind and kind != type(agent.action_space).__name__:
        raise ConfigError(
            f"the data set was recorded with actions of {dataset.about['action_space']}; {agent.algo} was built for "
            f"{agent.action_space}. fix: data of the same environment, made with the same keywords."
        )


def warn_of_learn_step(population: Sequence[Any]) -> None:
    """Warn once that `learn_step` is ignored offline, if it was set or mutates."""
    agents = [unwrapped(agent) for agent in population]
    declared = hyperparameters(type(agents[0])).get("learn_step") if isinstance(agents[0], RLAlgorithm) else None
    if declared is None:
        return
    values = sorted({int(agent.learn_step) for agent in agents} - {1, int(declared.published), int(declared.manifest)})
    is_mutated = any("learn_step" in agent.hp_config.names() for agent in agents)
    settings = [f"learn_step={', '.join(map(str, values))}"] if values else []
    settings += ["learn_step in hp_config (mutation.rl_hp_selection)"] if is_mutated else []
    if settings:
        warn_once(
            "learn_step of data",
            f"{' and '.join(settings)}: ignored offline, where every step of {agents[0].algo} is one gradient update"
            f"{': some mutations change nothing' if is_mutated else ''}. "
            "fix: leave learn_step out.",
        )


def _observed(agent: EvolvableAlgorithm, obs: np.ndarray, options: OfflineOptions) -> Any:
    """Convert observations [N, ...] to the agent's space; ShapeError if shapes do not match."""
    space = agent.observation_space
    wanted, shape = foreign.shape(space), foreign.shape(obs)
    if options.swap_channels and shape is not None and len(shape) == 4:
        obs = np.moveaxis(obs, -1, 1)
        shape = obs.shape
    if wanted is not None and shape is not None and tuple(shape[1:]) != tuple(wanted):
        raise ShapeError(
            f"the data set's observations are {list(shape[1:])}; {agent.algo} was built for {list(wanted)}. "
            "fix: agents for the spaces that the data come from."
        )
    return trees.map_leaves(lambda x: x.astype(np.float32) if x.dtype == np.float64 else x, obs)
