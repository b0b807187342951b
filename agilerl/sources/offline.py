"""Experience from a data set: what `train_offline` puts into the loop. A step is one update of one member."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from agilerl import tree as trees
from agilerl.algorithms.single_agent import RLAlgorithm
from agilerl.components.replay_buffer import MultiStepReplayBuffer, ReplayBuffer
from agilerl.engine.learner import Learner
from agilerl.envs.step import Lanes, as_lanes
from agilerl.errors import ConfigError, RunError, ShapeError
from agilerl.options import LoopOptions, OfflineOptions
from agilerl.rng import Purpose
from agilerl.sources.dataset import Dataset, read_dataset
from agilerl.sources.lanes import LaneSource
from agilerl.sources.replay import SharedReplay
from agilerl.sources.source import Shard, ShardResult, Shared, Steps, Tally
from agilerl.sources.updates import Schedule, Updates
from agilerl.sources.watch import Watch, is_sound

MOST_AT_ONCE = 32  # updates whose rows are fetched together


class OfflineSource(LaneSource[OfflineOptions]):
    """Members learn from the rows of one memory, which hold a data set; the environment is for evaluations alone.

    Args:
        env: to evaluate in. memory: what is sampled from; filled by `open` where there is a data set.
        dataset: of `read_dataset`; None: the memory holds the data already.
    """

    def __init__(
        self, env: Any, memory: Any, options: OfflineOptions, dataset: Dataset | None = None, eval_env: Any = None
    ) -> None:
        super().__init__(env, options, Shared(), eval_env)
        self.num_envs = 1  # a step is an update
        self.memory, self.dataset = memory, dataset
        self._loaded: Mapping[str, Any] = {} if dataset is None else dataset.source

    @classmethod
    def make(cls, env: Any, options: LoopOptions, replay: Callable[[], Any], eval_env: Any = None) -> OfflineSource:
        """With the data set that the options name, in the memory that `replay` makes."""
        if options.dataset is None:
            raise ConfigError("the algorithm learns from a data set, and none is named. fix: dataset='data.h5'.")
        data = read_dataset(options.dataset)
        return cls(env, replay(), OfflineOptions.of(vars(options)), data, eval_env)

    @property
    def epsilon(self) -> float | None:
        return None

    def open(
        self, population: Sequence[Any], run_seed: int, check: Callable[[], None] | None = None, shards: int = 1
    ) -> None:
        super().open(population, run_seed, check, shards)
        if self.dataset is not None:
            self.notes += fill(self.memory, self.dataset, population[0], self.options)
        if not len(self.memory):
            raise ConfigError("there is nothing to learn from: the memory is empty. fix: dataset='data.h5'.")
        for agent in population:
            agent.see_data(self.memory)

    def _choose_lockstep(self) -> bool:
        return not self.alone and self.learner != "agents"

    def _make_lanes(self, members: int) -> Lanes:
        return as_lanes(self.env)

    def fit(self, population: Sequence[Any]) -> str | None:
        before = self.lockstep
        self.lockstep = False  # nothing is stepped, so the number of members needs no other lanes
        try:
            return super().fit(population)
        finally:
            self.lockstep = before

    def run(self, shard: Shard, lanes: Lanes, learner: Learner) -> Steps:
        """One generation of a shard: as many updates of every member as it has steps."""
        for agent in shard.agents:
            agent.set_training_mode(True)
        together = max(k for k in range(1, MOST_AT_ONCE + 1) if shard.vector_steps % k == 0)
        watch = Watch(learner, [Tally() for _ in shard.agents], 1)
        updates = Updates(shard, SharedReplay(self.memory), self.options, watch, None, has_masks=False)
        for plan in updates.plans:
            plan.schedule = Schedule(1, together)
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

    def run_own(self, shard: Shard, lanes: Lanes) -> Steps:
        """One generation of one agent that brings its own `learn`: it is given what `sample` returns."""
        (agent,), (slot,), tally = shard.agents, shard.slots, Tally()
        (rng,) = shard.streams(Purpose.REPLAY)
        if callable(getattr(agent, "set_training_mode", None)):
            agent.set_training_mode(True)
        for _ in range(shard.vector_steps):
            rows = self.memory.sample_indices(rng, int(agent.batch_size))
            loss = agent.learn(self.memory.sample_from_indices(rows))
            tally.loss_sum += float(np.ravel(loss)[0]) if loss is not None else 0.0
            tally.updates, tally.env_steps = tally.updates + 1, tally.env_steps + 1
            if not (np.isfinite(tally.loss_sum) and is_sound(agent)):
                tally.fault = "its loss or its weights are not finite"
                break
            yield 1
        return ShardResult({slot: tally}, shard.shared)

    # -- for the records ---------------------------------------------------------------------------------------------

    def memories(self) -> Mapping[str, Any]:
        """None: a run says which data it learned from, and keeps no copy of them."""
        return {}

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "num_envs": max(1, int(getattr(self.env, "num_envs", 1))), "dataset": self._facts()}

    def _facts(self) -> dict[str, Any]:
        return {**self._loaded, "rows": len(self.memory)}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "dataset": {key: value for key, value in self._facts().items() if key != "path"}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """RunError where these are not the data that the run began with."""
        super().load_state(state)
        known, own = state["dataset"], self.state()["dataset"]
        if known != own:
            raise RunError(
                f"the run learned from other data: {_short(known)}; these are {_short(own)}. fix: the same data set."
            )


def _short(facts: Mapping[str, Any]) -> str:
    return f"{facts['rows']} rows" + (f", sha256 {facts['sha256'][:12]}" if "sha256" in facts else "")


def fill(memory: Any, dataset: Dataset, agent: RLAlgorithm, options: OfflineOptions) -> list[str]:
    """Put a data set into a memory, which grows where it is too small; what is to be said of it.

    Raises:
        ConfigError: a memory that cannot take it. ShapeError: observations or actions of other spaces.
    """
    if not isinstance(memory, ReplayBuffer) or isinstance(memory, MultiStepReplayBuffer):
        raise ConfigError(
            f"data sets fill a ReplayBuffer or a PrioritizedReplayBuffer; got {type(memory).__name__}. "
            "fix: memory=ReplayBuffer(max_size=100_000)."
        )
    dataset = agent.arrange(dataset)
    said, rows = [], len(dataset)
    if not rows:
        raise ConfigError("the data set holds no transition. fix: steps with what follows on them.")
    if dataset.left_out:
        said.append(f"data set: steps without a successor, left out: {dataset.left_out}")
    if len(memory):
        said.append(f"the memory held {len(memory)} rows; it now holds the data set's {rows} transitions")
    if memory.max_size < rows:
        said.append(f"the memory grew from {memory.max_size} to {rows} rows, to hold the whole data set")
    memory.clear()
    memory.reserve(rows)
    obs, later = (_observed(agent, x, options) for x in (dataset.obs, dataset.next_obs))
    stored, outside = agent.action_form.stored(agent, dataset.action)
    if outside:
        said.append(f"data set: actions of {outside} of {rows} rows lie outside of the bounds, and are clipped to them")
    action = agent.action_form.prepare(agent, torch.from_numpy(np.ascontiguousarray(stored)), rows).numpy()
    reward = options.learned_reward(dataset.reward) if options.changes_rewards else dataset.reward
    memory.write(obs, action, reward, later, dataset.terminated)
    return said


def _observed(agent: Any, obs: Any, options: OfflineOptions) -> Any:
    """Observations [N, ...] of the agent's space; ShapeError where their shapes are others."""
    space = agent.observation_space
    wanted, shape = getattr(space, "shape", None), getattr(obs, "shape", None)
    if options.swap_channels and shape is not None and len(shape) == 4:
        obs = np.moveaxis(obs, -1, 1)
        shape = obs.shape
    if wanted is not None and shape is not None and tuple(shape[1:]) != tuple(wanted):
        raise ShapeError(
            f"the data set's observations are {list(shape[1:])}; {agent.algo} was built for {list(wanted)}. "
            "fix: agents for the spaces that the data come from."
        )
    return trees.map_leaves(lambda x: x.astype(np.float32) if x.dtype == np.float64 else x, obs)
