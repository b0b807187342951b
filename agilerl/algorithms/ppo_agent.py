"""PPO alone: it learns from a rollout buffer of its own or from the published tuple, and its copies and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np

from agilerl.algorithms.ppo_experiences import buffer_from_experiences, named_experiences
from agilerl.algorithms.ppo_solo import Recorder, remember
from agilerl.algorithms.ppo_update import PPOUpdate
from agilerl.components.rollout_buffer import RolloutBuffer
from agilerl.engine.learner import learner_of
from agilerl.engine.protocol import UpdateResult
from agilerl.engine.rollout_learning import learn_rollout, make_rollout
from agilerl.errors import ShapeError
from agilerl.rng import Purpose, seeds


class PPOAgent(PPOUpdate):
    """`PPO` without its constructor."""

    _rollout_buffer: RolloutBuffer | None
    _minibatches: np.random.Generator

    def learn_batch(self, batch: Any, plain: bool = False) -> UpdateResult:
        """One minibatch with plain torch modules; see `learn` for whole rollouts."""
        learner = learner_of(self, plain=True)
        result = learner.learn(0, batch.map(lambda x: x.unsqueeze(0)))
        return result.map(lambda x: x[0])

    def learn(self, experiences: Any = None, *args: Any, **kwargs: Any) -> float:
        """Learn from one rollout, in `update_epochs` passes of minibatches.

        Args:
            experiences: None reads the rollout buffer that `collect_rollouts` filled. Else the tuple (observations,
                actions, log_probs, rewards, dones, values, next_obs, next_done): six lists over time of [E, ...]
                arrays, then two arrays. `dones[t]` is the flag BEFORE step t, as `next_done` is that after the last.
                A flag counts as termination; see `ppo_experiences` for what tells truncation apart, and for how
                masks of legal actions and hidden states are given.

        Returns:
            Mean loss of the minibatches.

        Raises:
            ShapeError: an empty buffer, or lists that do not fit together.
        """
        if experiences is None:
            buffer = self._rollout_buffer
            if buffer is None or not buffer.position:
                raise ShapeError(
                    f"{self.algo}.learn() found an empty rollout buffer. "
                    "fix: collect_rollouts(agent, env) before it, or learn(experiences)."
                )
        else:
            buffer = buffer_from_experiences(self, experiences)
        loss = self.learn_buffer(buffer)
        if experiences is None:
            buffer.reset()
        return loss

    published_learn = learn

    def with_observations(self, experiences: Any, change: Callable[[Any], Any]) -> Any:
        """The published tuple, by name, with `change` applied to all observations."""
        fields = named_experiences(experiences)
        for name in ("observations", "final_observations"):
            if fields.get(name) is not None:
                fields[name] = [change(obs) for obs in fields[name]]
        return {**fields, "next_obs": change(fields["next_obs"])}

    def learn_buffer(self, buffer: RolloutBuffer) -> float:
        """As `learn`, from a rollout buffer with the lanes of this agent alone; it is left as it is."""
        like = next(iter(self.policy_module().parameters()))
        learner = learner_of(self)
        rollout = make_rollout(learner, 0, [self], buffer, like)
        (report,) = learn_rollout(learner, 0, [self], rollout, [self._minibatches])
        learner.settle()
        remember(self, buffer, slice(None))
        if self.normalize_observations:
            statistics = self.running_statistics()
            statistics.update(self.encoder_inputs(buffer.stored("obs")))
            self.take_statistics(statistics)
        return report.mean_loss

    @property
    def rollout_buffer(self) -> RolloutBuffer:
        """The agent's own buffer for `update_interval()` vector steps of `num_envs` lanes, made anew where these
        have changed since."""
        buffer, steps = self._rollout_buffer, self.update_interval()
        if buffer is None or (not buffer.position and (buffer.capacity, buffer.num_envs) != (steps, self.num_envs)):
            buffer = self._rollout_buffer = self.make_buffer(steps, self.num_envs)
        return buffer

    @rollout_buffer.setter
    def rollout_buffer(self, buffer: RolloutBuffer | None) -> None:
        self._rollout_buffer = buffer

    def make_buffer(self, steps: int, lanes: int, num_legal: int = 0) -> RolloutBuffer:
        """An empty buffer for rollouts of this policy."""
        shapes = self.hidden_state_architecture
        return RolloutBuffer(steps, lanes, self.observation_space, self.action_space, shapes, num_legal)

    def recorder(self, steps: int | None = None) -> Recorder:
        """What acts and fills this agent's rollout buffer, for one rollout of `steps` vector steps."""
        wanted = self.update_interval() if steps is None else int(steps)
        buffer = self.rollout_buffer
        if buffer.capacity != wanted or buffer.position:
            self._rollout_buffer = buffer = self.make_buffer(wanted, self.num_envs)
        return Recorder(self, buffer)

    def clone(self, index: int | None = None, wrap: bool = True) -> Self:
        kept, self._rollout_buffer = self._rollout_buffer, None  # what it holds is this agent's own experience
        try:
            twin = super().clone(index, wrap)
        finally:
            self._rollout_buffer = kept
        if index is not None and index != self.index:
            twin._minibatches = np.random.default_rng(
                seeds(self.seed, Purpose.REPLAY, 1, generation=len(self.fitness), member=index)
            )
        return twin

    # --- files -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {**super().state(), "minibatches": self._minibatches.bit_generator.state}

    def load_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        super().load_state(state, source)
        if "minibatches" in state:
            self._minibatches.bit_generator.state = state["minibatches"]
