"""One generation of an on-policy agent that trains by itself: its own `learn`, a wrapper, or a collecting function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from agilerl.algorithms.wrapped import brings_learn, takes, unwrapped
from agilerl.envs.step import StepBatch, VectorLanes, action_mask, as_lanes
from agilerl.rollouts.off_policy import EpisodeTracker
from agilerl.sources.options import LoopOptions
from agilerl.sources.rollout_tuple import Steps, experiences_of
from agilerl.sources.source import MemberTally, Segment
from agilerl.spaces import mask_width


class RolloutLoop:
    """Collects whole rollouts and lets the agent learn from each.

    An agent that can record rollouts (`recorder`, as PPO has) acts through that: with masks of legal actions, and with
    its hidden state, which starts at zero where an episode begins. It then learns from its rollout buffer, unless it
    has a `learn` of its own, which is called with the published tuple. Other agents act by `get_action`.

    Args:
        collect: `collect(agent, env, n_steps)`, after which the agent's `learn()` reads its rollout buffer; None steps
            the lanes here.
    """

    def __init__(
        self, segment: Segment, options: LoopOptions, collect: Callable[..., Any] | None = None, env: Any = None
    ) -> None:
        (self.agent,) = segment.agents
        self.segment, self.lanes, self.options = segment, segment.lanes, options
        self.collect, self.env = collect, env
        self.tally = MemberTally()
        lanes = self.lanes.num_lanes
        steps = getattr(self.agent, "learn_step", 128)
        self.length = -(-int(steps) // lanes)
        self.rollouts = -(-segment.vector_steps // self.length)
        self._records = callable(getattr(unwrapped(self.agent), "recorder", None))
        self._own_learn = not self._records or brings_learn(self.agent)
        self._takes_mask = takes(self.agent, "get_action", "action_mask")
        self._mask_width = mask_width(self.lanes.single_action_space)

    def run(self) -> MemberTally:
        """All rollouts of the generation."""
        if callable(getattr(self.agent, "set_training_mode", None)):
            self.agent.set_training_mode(True)
        if hasattr(self.agent, "num_envs"):
            self.agent.num_envs = self.lanes.num_lanes
        if isinstance(getattr(self.agent, "progress", None), int | float):  # schedules over the run
            self.agent.progress = min(1.0, self.segment.begun / self.options.max_steps)
        if self.collect is None:
            step = self._with_lanes()
        else:
            self._seed()
            step = self._with_function
        for _ in range(self.rollouts):
            step()
            self.tally.env_steps += self.length * self.lanes.num_lanes
            self.segment.progress(self.length * self.lanes.num_lanes)
        return self.tally

    def _learn(self, *experiences: Any) -> None:
        loss = self.agent.learn(*experiences)
        self.tally.updates += 1
        if isinstance(loss, int | float):
            self.tally.loss_sum += float(loss)

    _carried: tuple[Any, ...] = ()

    def _seed(self) -> None:
        """The user's function resets the environment itself, without a seed: its generators start from ours."""
        lanes = VectorLanes(self.env) if isinstance(self.env, VectorEnv) else as_lanes(self.env)
        lanes.reset(self.segment.lane_seeds())

    def _with_function(self) -> None:
        """One rollout by the user's function, which may carry on from what it returned the last time."""
        assert self.collect is not None
        names = ("last_obs", "last_done", "last_scores", "last_info")
        carried = dict(zip(names, self._carried, strict=False))
        found = self.collect(self.agent, self.env, self.length, **carried)
        if isinstance(found, tuple) and len(found) == 5:
            scores, *self._carried = found  # type: ignore[assignment]
            self.tally.scores += [float(s) for s in scores]
        self._learn()

    def _with_lanes(self) -> Callable[[], None]:
        self.obs, self.info = self.lanes.reset(self.segment.lane_seeds())
        self._begins = np.zeros(self.lanes.num_lanes, bool)  # as published, the first flags of all are not set
        self._is_new = True
        self._tracker = EpisodeTracker(self.lanes.num_lanes)
        return self._rollout

    def _rollout(self) -> None:
        """One rollout, and what the agent's `learn` makes of it."""
        recorder = self.agent.recorder(self.length) if self._records else None
        actor = GetAction(self.agent) if recorder is None else recorder
        if self._is_new:
            actor.restart()
            self._is_new = False
        steps = Steps(self._begins)
        for _ in range(self.length):
            mask = self._mask()
            batch = self.lanes.step(actor.act(self.obs, mask))
            reward = self.options.learned_reward(batch.reward)
            actor.store(reward, batch)
            if self._own_learn:
                steps.add(self.obs, reward, batch, mask)
            self.tally.scores += self._tracker.update(batch).returns.tolist()
            self.obs, self.info = batch.obs, batch.info
            self._begins = batch.terminated | batch.truncated | ~batch.mask
        actor.finish(self.obs)
        if not self._own_learn:
            self._learn()
            return
        experiences = experiences_of(steps, actor.chosen(), self.obs, None if recorder is None else recorder.buffer)
        if recorder is not None:
            recorder.buffer.reset()
        if experiences is not None:
            self._learn(experiences)

    def _mask(self) -> np.ndarray | None:
        if not (self.info and self._mask_width and self._takes_mask):
            return None
        return action_mask(self.info, self.lanes.num_lanes, self._mask_width)


class GetAction:
    """Acts by `get_action` for an agent that cannot record, with the methods of a recorder."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self._convert = getattr(agent, "environment_action", None)
        self._chosen: list[list[Any]] = [[], [], []]

    def restart(self) -> None:
        """Such an agent has no memory that this loop knows of."""

    def act(self, obs: Any, mask: np.ndarray | None) -> Any:
        """Actions for the environment, from observations [E, ...]."""
        action, log_prob, _, value = self.agent.get_action(obs, **({} if mask is None else {"action_mask": mask}))[:4]
        for column, entry in zip(self._chosen, (action, log_prob, value), strict=True):
            column.append(entry)
        return action if self._convert is None else self._convert(action)

    def store(self, reward: np.ndarray, batch: StepBatch) -> None:
        """Nothing to add."""

    def finish(self, obs: Any) -> None:
        """Nothing to add."""

    def chosen(self) -> tuple[list[Any], list[Any], list[Any]]:
        """(actions, log probabilities, values), [E, ...] for every step."""
        action, log_prob, value = self._chosen
        return action, log_prob, value
