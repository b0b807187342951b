"""One generation of an on-policy agent that trains by itself: its own `learn`, or a collecting function of the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from agilerl.envs.step import VectorLanes, as_lanes
from agilerl.rollouts.off_policy import EpisodeTracker
from agilerl.training.options import LoopOptions
from agilerl.training.source import MemberTally, Segment


class RolloutLoop:
    """Collects whole rollouts and lets the agent learn from each.

    Args:
        collect: `collect(agent, env, n_steps)`, after which the agent's `learn()` reads its rollout buffer; None steps
            the lanes here and calls `learn` with the published tuple.
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

    def run(self) -> MemberTally:
        """All rollouts of the generation."""
        if callable(getattr(self.agent, "set_training_mode", None)):
            self.agent.set_training_mode(True)
        if self.collect is None:
            step = self._with_lanes()
        else:
            self._seed()
            step = self._with_function
        for _ in range(self.rollouts):
            loss = step()
            self.tally.updates += 1
            if isinstance(loss, int | float):
                self.tally.loss_sum += float(loss)
            self.tally.env_steps += self.length * self.lanes.num_lanes
            self.segment.progress(self.length * self.lanes.num_lanes)
        return self.tally

    _carried: tuple[Any, ...] = ()

    def _seed(self) -> None:
        """The user's function resets the environment itself, without a seed: its generators start from ours."""
        lanes = VectorLanes(self.env) if isinstance(self.env, VectorEnv) else as_lanes(self.env)
        lanes.reset(self.segment.lane_seeds())

    def _with_function(self) -> Any:
        """One rollout by the user's function, which may carry on from what it returned the last time."""
        assert self.collect is not None
        names = ("last_obs", "last_done", "last_scores", "last_info")
        carried = dict(zip(names, self._carried, strict=False))
        found = self.collect(self.agent, self.env, self.length, **carried)
        if isinstance(found, tuple) and len(found) == 5:
            scores, *self._carried = found  # type: ignore[assignment]
            self.tally.scores += [float(s) for s in scores]
        return self.agent.learn()

    def _with_lanes(self) -> Callable[[], Any]:
        self.obs, _ = self.lanes.reset(self.segment.lane_seeds())
        self.done = np.zeros(self.lanes.num_lanes, bool)
        self._tracker = EpisodeTracker(self.lanes.num_lanes)
        return self._by_tuple

    def _by_tuple(self) -> Any:
        """One rollout, given to `learn` as the published tuple with what tells truncation apart."""
        lists: list[list[Any]] = [[] for _ in range(8)]
        for _ in range(self.length):
            action, log_prob, _, value = self.agent.get_action(self.obs)[:4]
            convert = getattr(self.agent, "environment_action", None)
            batch = self.lanes.step(action if convert is None else convert(action))
            reward = self.options.learned_reward(batch.reward)
            row = (self.obs, action, log_prob, reward, self.done, value, batch.truncated, batch.final_obs)
            for column, entry in zip(lists, row, strict=True):
                column.append(entry)
            self.tally.scores += self._tracker.update(batch).returns.tolist()
            self.obs, self.done = batch.obs, batch.terminated | batch.truncated
        return self.agent.learn((*lists[:6], self.obs, self.done, *lists[6:]))
