"""One generation of an agent that brings its own `learn`: custom and duck-typed algorithms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.wrapped import takes, unwrapped
from agilerl.components.prioritized import beta_schedule
from agilerl.envs.step import StepBatch, action_mask
from agilerl.errors import ConfigError
from agilerl.rng import Purpose
from agilerl.rollouts.off_policy import EpisodeTracker
from agilerl.sources.collect import Schedule
from agilerl.sources.options import OffPolicyOptions
from agilerl.sources.replay import SharedReplay
from agilerl.sources.source import MemberTally, Segment
from agilerl.sources.watch import is_sound
from agilerl.spaces import mask_width
from agilerl.tree import map_leaves


class AgentLoop:
    """One generation of one agent that brings its own `get_action` and `learn`: custom and duck-typed algorithms."""

    def __init__(self, segment: Segment, replay: SharedReplay, options: OffPolicyOptions, epsilon: float) -> None:
        (self.agent,) = segment.agents
        if options.random_steps and not callable(getattr(self.agent, "random_action", None)):
            raise ConfigError(
                f"random_steps={options.random_steps} needs agents with random_action(rng, shape, mask); "
                f"{type(self.agent).__name__} has none. fix: random_steps=0, or write the method."
            )
        agent, lanes = self.agent, segment.lanes
        self.segment, self.lanes, self.replay, self.options = segment, lanes, replay, options
        self.memory, self.epsilon = replay.memory, epsilon
        self.tally = MemberTally()
        (self._rng,) = segment.streams(Purpose.EXPLORATION)
        replay.interrupt()
        self.obs, self.info = lanes.reset(segment.lane_seeds())
        if callable(getattr(agent, "set_training_mode", None)):
            agent.set_training_mode(True)  # first: outside of training an agent answers with other actions
        self._check_learn()
        self._takes_epsilon, self._takes_mask = (takes(agent, "get_action", k) for k in ("epsilon", "action_mask"))
        acts_raw = getattr(agent, "acts_raw", True)  # stored actions may be raw ones
        self._environment_action = getattr(agent, "environment_action", None) if acts_raw else None
        self._tracker = EpisodeTracker(lanes.num_lanes)
        self._schedule = Schedule.of(int(getattr(agent, "learn_step", 1)), lanes.num_lanes)

    def _check_learn(self) -> None:
        """ConfigError where `learn` cannot take what the memories give."""
        needed = {"per": self.replay.prioritized, "n_experiences": self.replay.n_step_memory is not None}
        for name, is_needed in needed.items():
            if is_needed and not takes(self.agent, "learn", name):
                kind = type(unwrapped(self.agent)).__name__
                full = "learn(experiences, n_experiences=None, per=False)"
                raise ConfigError(
                    f"{kind}.learn takes no argument {name!r}, with which it gets what this memory holds. fix: {full}, "
                    "which with per=True returns (loss, idxs, priorities); or train from a plain ReplayBuffer."
                )

    def run(self) -> float:
        """Make the segment's vector steps; returns the exploration rate of the next one."""
        for index in range(self.segment.vector_steps):
            if not is_sound(self.agent):
                self.tally.fault = "its weights are not finite"
            if self.tally.fault is None:
                self._step(index)
        return self.epsilon

    def _obs_mask(self) -> np.ndarray | None:
        """[L, A] the actions that are legal now, for an agent that learns from it."""
        count = mask_width(self.lanes.single_action_space)
        if not (getattr(self.agent, "learns_from_obs_mask", False) and self.info and count):
            return None
        return action_mask(self.info, self.lanes.num_lanes, count)

    def _act(self) -> np.ndarray:
        arguments: dict[str, Any] = {"epsilon": self.epsilon} if self._takes_epsilon else {}
        count = mask_width(self.lanes.single_action_space)
        mask = action_mask(self.info, self.lanes.num_lanes, count) if self.info and count else None
        if mask is not None and self._takes_mask:
            arguments["action_mask"] = mask
        if self._stored() < self.options.random_steps:
            random: np.ndarray = self.agent.random_action(self._rng, (self.lanes.num_lanes,), mask)
            if self._environment_action is None and callable(getattr(self.agent, "environment_action", None)):
                random = self.agent.environment_action(random)  # as get_action of this agent gives it
            return random
        action = self.agent.get_action(self.obs, **arguments)
        if isinstance(action, Tensor):
            action = action.detach().cpu().numpy()
        space = self.lanes.single_action_space
        if space is None:  # a duck-typed environment: whatever the agent answers, one row per lane
            return np.asarray(action).reshape(self.lanes.num_lanes, *np.shape(action)[1:])
        if self._environment_action is not None:  # raw: its shape is the algorithm's own
            return np.asarray(action)
        return np.asarray(action).reshape(self.lanes.num_lanes, *(space.shape or ()))

    def _step(self, index: int) -> None:
        action, legal = self._act(), self._obs_mask()
        if action.dtype.kind == "f" and not np.isfinite(action).all():
            self.tally.fault = "its actions are not finite"
            return
        self.epsilon = max(self.options.eps_end, self.epsilon * self.options.eps_decay)
        batch = self.lanes.step(action if self._environment_action is None else self._environment_action(action))
        reward = self.options.learned_reward(batch.reward)
        if callable(getattr(self.memory, "write", None)):
            self.replay.write(self.obs, action, reward, batch, mask_width(self.lanes.single_action_space), legal)
        else:
            self._store_elsewhere(action, reward, batch)
        self.tally.scores += self._tracker.update(batch).returns.tolist()
        self.obs, self.info = batch.obs, batch.info
        self.tally.env_steps += self.lanes.num_lanes
        if self._stored() > self.options.learning_delay and index % self._schedule.interval == 0:
            self._learn(index)
        self.segment.progress(self.lanes.num_lanes)

    def _stored(self) -> int:
        """Transitions ever added; of a memory that does not count them, those it holds."""
        return int(getattr(self.memory, "counter", len(self.memory)))

    def _store_elsewhere(self, action: np.ndarray, reward: np.ndarray, batch: StepBatch) -> None:
        keep = batch.mask
        fields = (self.obs, action, reward, batch.final_obs, batch.terminated)
        self.memory.save_to_memory(*(map_leaves(lambda x: np.asarray(x)[keep], f) for f in fields), is_vectorised=True)

    def _learn(self, index: int) -> None:
        size = int(getattr(self.agent, "batch_size", 64))
        if len(self.memory) < size:
            return
        for _ in range(self._schedule.count):
            loss = self._learn_once(size, index)
            self.tally.updates += 1
            if isinstance(loss, int | float):
                self.tally.loss_sum += float(loss)
                if not math.isfinite(loss):
                    self.tally.fault = "its loss is not finite"
                    return

    def _learn_once(self, size: int, index: int) -> Any:
        """One `learn`, called as published for what the memory is; returns what it reports as its loss."""
        n_step_memory = self.replay.n_step_memory
        if not self.replay.prioritized and n_step_memory is None:
            return self.agent.learn(self.memory.sample(size))
        if not self.replay.prioritized:
            experiences = self.memory.sample(size, return_idx=True)
            return self.agent.learn(experiences, n_experiences=n_step_memory.sample_from_indices(experiences["idxs"]))
        done = self.segment.begun + (index + 1) * self.lanes.num_lanes
        beta = beta_schedule(float(getattr(self.agent, "beta", 0.4)), done, self.options.max_steps)
        experiences = self.memory.sample(size, beta)
        extra = {}
        if n_step_memory is not None:
            extra["n_experiences"] = n_step_memory.sample_from_indices(experiences["idxs"])
        loss, indices, priorities = self.agent.learn(experiences, per=True, **extra)
        if not bool(torch.as_tensor(priorities).isfinite().all()):
            return math.nan  # such priorities would poison every member that samples by them
        self.memory.update_priorities(indices, priorities)
        return loss
