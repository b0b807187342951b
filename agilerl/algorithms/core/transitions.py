"""How an agent learns from transitions: what `update` is given, and the published `learn` around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl import tree
from agilerl.algorithms.core.experience_fields import experience_fields
from agilerl.algorithms.core.in_rows import InRows
from agilerl.algorithms.core.observations import as_tensor, check_discrete_actions, column, sampled_observations
from agilerl.engine.batches import TransitionBatch, UpdateResult
from agilerl.engine.learner import learn_alone
from agilerl.engine.protocol import UpdateEngine
from agilerl.errors import ShapeError

MASKS = ("next_mask", "obs_mask")


class LearnsFromTransitions(InRows):
    """An agent whose `update` runs in an engine: over its row where it has one, with its own modules elsewhere."""

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    learn_counter: int
    _exploration: np.random.Generator

    def update_options(self) -> tuple[Any, ...]:
        """Options that `update` branches on; members of one cohort have them in common."""
        return ()

    def update_interval(self) -> int:
        """How often this agent learns; members of one cohort have it in common."""
        return int(getattr(self, "learn_step", 1))

    def update(self, engine: UpdateEngine, batch: TransitionBatch) -> UpdateResult:
        """One update of every member in `engine`; of this agent only the options above may be read."""
        raise NotImplementedError(f"{type(self).__name__} must implement update(engine, batch) or learn(experiences)")

    update.is_missing = True  # type: ignore[attr-defined]  # how the engine tells an algorithm with `learn` alone

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Random numbers that updates need, name -> [updates, K, ...]; `shape` is (updates, B). None by default.

        K is B for numbers of the batch's rows, anything else for numbers of another kind (`modules.noisy`).
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
        batch = self.make_batch(experiences if n_experiences is None else self._n_step(experiences, n_experiences))
        result = self.learn_batch(batch)
        if not per:
            return self.report(result)
        priorities = None if result.priorities is None else result.priorities.detach().cpu().numpy()
        return self.report(result), experience_fields(experiences).get("idxs"), priorities

    def report(self, result: UpdateResult) -> Any:
        """What `learn` returns of an update: the loss before it."""
        return float(result.loss.detach())

    def _n_step(self, experiences: Any, n_experiences: Any) -> dict[str, Any]:
        """The n-step transitions with the weights of the one-step ones."""
        first, later = experience_fields(experiences), experience_fields(n_experiences)
        if len(first["reward"]) != len(later["reward"]):
            raise ShapeError(
                f"{self.algo}.learn got {len(first['reward'])} experiences and {len(later['reward'])} n_experiences. "
                "fix: n_step_memory.sample_from_indices(experiences['idxs'])."
            )
        if "discount" not in later:
            raise ShapeError(
                f"{self.algo}.learn got n_experiences without discount, so how many steps they span is not known. "
                "fix: sample a MultiStepReplayBuffer, or give discount = gamma**k * (1 - done) [B]."
            )
        return later | ({"weights": first["weights"]} if "weights" in first else {})

    def learn_batch(self, batch: TransitionBatch, plain: bool = False) -> UpdateResult:
        """One update from a prepared batch [B, ...]; `plain` forces plain torch modules. No member axis results."""
        self.remember_observations(batch.obs)
        return learn_alone(self, batch, plain)  # type: ignore[arg-type]

    def make_batch(self, experiences: Any) -> TransitionBatch:
        """Sampled transitions as tensors on this agent's device.

        Args:
            experiences: obs, action, reward, next_obs, done, and where there are such entries `discount` [B] or
                [B, 1], γ^k · (1 − done) of transitions that span k steps (one step with the agent's own γ without
                it), `weights` [B] or [B, 1], the importance weights of prioritised replay, and `next_mask` [B, Σn].
        """
        given = experience_fields(experiences)
        dtype = next(iter(self.policy_module().parameters())).dtype
        space, owner = self.observation_space, f"{self.algo}.learn"
        obs, next_obs = (sampled_observations(space, given[k], self.device, owner) for k in ("obs", "next_obs"))
        count = tree.count_rows(obs)
        counts = [len(leaf) for leaf in tree.leaves((obs, next_obs))]
        if set(counts) != {count}:
            raise ShapeError(
                f"{owner} got different numbers of observations in obs and next_obs (or their parts): {counts}. "
                "fix: agent.learn(memory.sample(agent.batch_size))."
            )
        reward, done = (column(k, given[k], count, self.device, owner).to(dtype) for k in ("reward", "done"))
        action = as_tensor(given["action"], self.device, f"{owner} got actions", "numbers")
        weight = torch.full((count,), 1 / count, dtype=dtype, device=reward.device)
        extra = {k: column(k, given[k], count, self.device, owner) for k in ("weights", "discount") if k in given}
        if "weights" in extra:
            weight = weight * extra["weights"].to(dtype)
        discount = extra["discount"].to(dtype) if "discount" in extra else None
        next_mask, obs_mask = (self._stored_mask(given[k]) if k in given else None for k in MASKS)
        drawn = self.draw_noise(self._exploration, (1, count))
        return TransitionBatch(
            obs,
            self.prepare_action(action, count),
            reward,
            next_obs,
            done,
            weight,
            next_mask,
            discount,
            obs_mask=obs_mask,
            noise={name: torch.as_tensor(x[0]).to(reward.device, dtype) for name, x in drawn.items()},
            number=self.learn_counter + 1,
        )

    def _stored_mask(self, given: Any) -> Tensor:
        """Masks as the environment gave them, one entry per choice of each component, as masks of combinations."""
        legal = self.legal_choices(torch.as_tensor(given).numpy(force=True))
        return torch.from_numpy(legal).to(self.device).bool()

    def with_observations(self, experiences: Any, change: Callable[[Any], Any]) -> Any:
        """What `learn` takes, with `change` applied to all observations: for wrappers that alter what agents see."""
        fields = experience_fields(experiences)
        return {**fields, **{name: change(fields[name]) for name in ("obs", "next_obs")}}

    def legal_choices(self, mask: np.ndarray) -> np.ndarray:
        """The environment's masks [..., Σn] as masks [..., A] of what the policy chooses among; the same by default."""
        return mask

    def prepare_action(self, action: Tensor, count: int) -> Tensor:
        """Stored actions as the update wants them: int64 [B] for discrete spaces."""
        if isinstance(self.action_space, gym.spaces.Discrete):
            check_discrete_actions(action, int(self.action_space.n), f"{self.algo}.learn")
        return column("actions", action, count, action.device, f"{self.algo}.learn").long()
