"""Second half of learning from transitions: updates from rows of a replay buffer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from agilerl.algorithms.base.adapted import adapted
from agilerl.collect.collector import Shard
from agilerl.collect.divergence import Watch
from agilerl.collect.replay import SharedReplay
from agilerl.collect.rewards import RewardScale
from agilerl.components.prioritized import beta_schedule
from agilerl.core import tree as trees
from agilerl.core.options import OfflineOptions, OffPolicyOptions
from agilerl.core.ranges import StepsPerUpdate, check
from agilerl.core.rng import Purpose
from agilerl.core.transfer import to_device
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import TransitionBatches, UpdateResult
from agilerl.native.threads import deferring, finish


@dataclass(frozen=True)
class Schedule:
    """Update schedule of a member: `count` updates at every `interval`-th vector step.

    With E lanes: ⌊E / learn_step⌋ updates per vector step if learn_step <= E, else one every learn_step // E steps.
    A learn_step below 1 stands for several updates per environment step.
    """

    interval: int
    count: int

    @classmethod
    def of(cls, learn_step: float, num_envs: int) -> Schedule:
        check("learn_step", learn_step, StepsPerUpdate, 1)
        if learn_step > num_envs:
            return cls(int(learn_step // num_envs), 1)
        return cls(1, int(num_envs / learn_step + 1e-9))  # 1 / 0.1 is 10, although 0.1 is less than a tenth


class Plan:
    """Constants of a group of members during one generation.

    Attributes:
        number: index of the group in the learner. members: positions in the shard. lead: representative member.
        schedule: update schedule. sizes: batch sizes on this rank. needed: largest batch size on any rank, per member.
            largest: maximum of `needed`. divisors: batch size divided by the number of ranks. like: a parameter, for
            device and dtype.
        gammas: [N_g] discounts per step, None for an algorithm without one. gamma: the same as [N_g, 1].
        betas: [N_g] initial exponents of importance weights.
        learns_from_both: whether each row is learned from as a one-step and as an n-step transition.
        draws_noise: whether updates need random numbers.
        loss: sum [N_g] of all updates so far. weights: cached row weights of uniform replay, by batch sizes.
    """

    def __init__(self, number: int, learner: Learner, replay: SharedReplay, num_envs: int) -> None:
        ranks = learner.ranks
        self.number, self.members = number, list(learner.groups[number].members)
        agents: list[Any] = [learner.agents[i] for i in self.members]
        self.agents, self.lead = agents, agents[0]
        (self.schedule,) = {Schedule.of(agent.learn_step, num_envs) for agent in agents}
        shares = [ranks.shares(int(agent.batch_size)) for agent in agents]
        self.sizes, self.needed = (
            [member_shares[ranks.rank] for member_shares in shares],
            [max(member_shares) for member_shares in shares],
        )
        self.divisors = [sum(member_shares) / ranks.size for member_shares in shares]
        self.largest = max(self.needed)
        self.like = next(iter(self.lead.policy_module().parameters()))
        gammas = [agent.update_hyperparameters().get("gamma") for agent in agents]
        self.gammas = None if None in gammas else gammas
        self.gamma = None if None in gammas else self.to_device(torch.tensor(gammas, dtype=self.like.dtype)[:, None])
        self.betas = [float(adapted(agent).beta) for agent in agents]
        wants_both = self.lead.combined_reward
        self.learns_from_both = wants_both and replay.n_step_memory is not None
        self.draws_noise = any(agent.draw_noise(np.random.default_rng(0), (1, 1)) for agent in agents)
        self.loss: Tensor | None = None
        self.weights: dict[tuple[int, ...], Tensor] = {}

    def legal(self, mask: Tensor) -> Tensor:
        """Convert stored masks [..., Σn] to masks [..., A] over choices; those of Discrete stay on the device."""
        if isinstance(self.lead.action_space, spaces.Discrete):
            return mask.to(self.like.device).bool()
        return to_device(torch.from_numpy(self.lead.legal_choices(mask.numpy(force=True))), self.like.device).bool()

    def factors(self, rewards: RewardScale, dims: int) -> Tensor:
        """Return the members' reward factors, to multiply rewards [updates, N_g, B, ...] of `dims` dimensions."""
        factors = torch.from_numpy(rewards.factors[self.members])
        return self.to_device(factors).reshape(-1, *(1,) * (dims - 2))

    def to_device(self, values: Tensor) -> Tensor:
        """Move to the device and dtype of the parameters."""
        like = self.like
        return to_device(values, like.device, like.dtype) if like.is_cuda else values.to(like.device, like.dtype)


class Updates:
    """Sample batches, update the members, and write priorities back.

    Args:
        shard: the members and their random streams.
        watch: of exactly these members, held by its learner; on each rank, `num_envs` environment steps of a member are
            one vector step.
        rewards: scales of the stored rewards; None leaves them unchanged.
        are_choices: whether stored actions are integer choices of one agent. False for teams, whose rows also hold the
            components of Box actions.
        env_steps_at_once: environment steps per vector step over all ranks; by default the sum over ranks.
        schedule: of all members; by default that of each member's `learn_step`.
    """

    def __init__(
        self,
        shard: Shard,
        replay: SharedReplay,
        options: OffPolicyOptions | OfflineOptions,
        watch: Watch,
        rewards: RewardScale | None,
        are_choices: bool,
        env_steps_at_once: int | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        self.agents, self.learner, self.replay, self.options = shard.agents, watch.learner, replay, options
        self.watch, self.tallies, self.rewards = watch, watch.tallies, rewards
        self.are_choices, self._begun, self._rngs = are_choices, shard.begun, shard.streams(Purpose.REPLAY)
        self.ranks = shard.ranks
        self.at_once = watch.num_envs * self.ranks.size if env_steps_at_once is None else env_steps_at_once
        self.plans = [Plan(i, watch.learner, replay, self.at_once) for i in range(len(watch.learner.groups))]
        self.schedule = schedule
        for plan in self.plans:
            plan.schedule = schedule or plan.schedule
        self._is_filled = False
        self._updates = [0] * len(self.agents)
        self._last: dict[int, tuple[Any, int, int, int]] = {}  # last update by member, see `end`
        self._begun_calls: list[tuple[Plan, list[int], np.ndarray, list[UpdateResult]]] = []

    def begin(self, index: int) -> None:
        """Begin the updates due after vector step `index`, which kernels in C make in the background until `finish`.

        Until then neither weights nor replay may be read or written. In torch the updates are made here.
        """
        with deferring():
            self.learn(index, is_whole=False)

    def finish(self) -> None:
        """Finish the updates that `begin` has begun."""
        finish()
        self._conclude()

    def learn(self, index: int, is_whole: bool = True) -> None:
        """Run the updates due after vector step `index` of the generation; unless `is_whole`, only begin them."""
        counter, stored = self.replay.added(), len(self.replay.memory)
        if self.ranks.size > 1:
            counter, stored = self._held(counter, stored)
        if counter <= self.options.learning_delay:
            return
        sample = self.replay.memory.sample_indices
        for plan in self.plans:
            if index % plan.schedule.interval:
                continue
            in_step = len({self._updates[member] for member in plan.members}) == 1
            shifts = [plan.sizes] if in_step and stored >= plan.largest else self._shifts(plan, stored)
            group = self.learner.groups[plan.number]
            for number, sizes in enumerate(shifts):
                if number:
                    finish()
                indices = np.zeros((plan.schedule.count, len(sizes), max(sizes)), np.int64)
                for row, (member, size) in enumerate(zip(plan.members, sizes, strict=True)):
                    if size:
                        indices[:, row, :size] = sample(self._rngs[member], (plan.schedule.count, size))
                        self.tallies[member].updates += plan.schedule.count
                batches = self.batches(plan, sizes, indices, index)
                results = group.learn_each(batches, None if 0 not in sizes else [size > 0 for size in sizes])
                self._begun_calls.append((plan, sizes, indices, results))
        if is_whole:
            self._conclude()

    def _conclude(self) -> None:
        """Add up losses and write priorities of the calls that have been made."""
        errors: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for plan, sizes, indices, results in self._begun_calls:
            for result in results:
                plan.loss = result.loss if plan.loss is None else plan.loss + result.loss
            if self.replay.prioritized:
                errors |= self._priorities(plan, sizes, indices, results)
            if plan.loss is not None:
                self.watch.losses(plan.members, plan.loss)
        self._begun_calls.clear()
        if errors:
            self._reprioritise(errors)

    def _held(self, counter: int, stored: int) -> tuple[int, int]:
        """Return (transitions added so far, rows to sample from), equal on all ranks.

        The rank with the fewest rows decides whether members learn, until every rank holds enough for all updates.
        """
        if not self._is_filled:
            counter, stored = self.ranks.least([counter, stored]).astype(int).tolist()
            largest = max(plan.largest for plan in self.plans)
            self._is_filled = stored >= largest and counter * self.ranks.size > self.options.learning_delay
        return counter * self.ranks.size, stored

    def end(self) -> None:
        """End the generation: add losses to the tallies, and store the last observations for use by mutations."""
        self.watch.finish()
        for plan in self.plans:
            if plan.loss is not None:
                for member, value in zip(plan.members, plan.loss.tolist(), strict=True):
                    self.tallies[member].loss_sum += value
        for member, (rows, update, row, size) in self._last.items():
            parts = (trees.take(rows[name], (update, row, slice(size))) for name in ("obs", "action"))
            self.agents[member].remember_observations(*parts)

    def _shifts(self, plan: Plan, stored: int) -> list[list[int]]:
        """Return the batch sizes of a group's members for each call of `learn`; 0 for members not in that call.

        A member waits only until the memory holds its own batch. Members that started earlier have other update
        numbers, on which an algorithm may depend, so they are updated in separate calls.
        """
        groups = list(zip(plan.members, plan.sizes, plan.needed, strict=True))
        done = {self._updates[member] for member, _, needed in groups if stored >= needed}
        return [
            [size if stored >= needed and self._updates[member] == count else 0 for member, size, needed in groups]
            for count in sorted(done)
        ]

    def _priorities(
        self, plan: Plan, sizes: list[int], indices: np.ndarray, results: list[UpdateResult]
    ) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Return the rows and new priorities of the members of a call, if any."""
        priorities = [result.priorities for result in results if result.priorities is not None]
        if not priorities:
            return {}
        values = torch.stack(priorities).double().cpu().numpy()  # [updates, N_g, B], or 2B: see `learns_from_both`
        values = values.reshape(*values.shape[:2], -1, max(sizes)).sum(2)
        rows = [(row, member, sizes[row]) for row, member in enumerate(plan.members) if sizes[row]]
        return {member: (indices[:, row, :size], values[:, row, :size]) for row, member, size in rows}

    def _reprioritise(self, errors: dict[int, tuple[np.ndarray, np.ndarray]]) -> None:
        """Write priorities once per vector step, after all updates.

        The population order makes the result independent of the grouping. The last write to a row counts.
        """
        for member in sorted(errors):
            indices, values = errors[member]
            if self.watch.priorities(member, values):
                self.replay.memory.update_priorities(indices, values)

    def batches(self, plan: Plan, sizes: list[int], indices: np.ndarray, index: int) -> TransitionBatches:
        """Return batches of the rows `indices` [updates, N_g, B]; weights beyond a member's size are 0."""
        count, prepare = len(indices), self.learner.groups[plan.number].prepare
        if plan.learns_from_both:
            assert plan.gammas is not None
            rows = self.replay.gather_both(indices, plan.gammas)
        else:
            rows = self.replay.rows.gather(indices)
        if self.replay.prioritized:
            weight = self._priority_weights(plan, sizes, indices, index)
        else:
            cached = plan.weights.get(tuple(sizes))
            weight = self._plain_weights(plan, sizes) if cached is None else cached
        like = plan.like
        reward, done = (rows[name].to(like.device, like.dtype) for name in ("reward", "done"))
        fields: dict[str, Any] = {
            "action": rows["action"].long() if self.are_choices else rows["action"],
            "reward": reward if self.rewards is None else reward * plan.factors(self.rewards, reward.dim()),
            "done": done,
        }
        if "discount" in rows:  # of n-step transitions
            fields["discount"] = rows["discount"].to(like.device, like.dtype)
        elif plan.gamma is not None:  # for all updates at once
            gamma = plan.gamma if done.dim() == 3 else plan.gamma.unsqueeze(-1)  # [updates, N_g, B, M] of teams
            fields["discount"] = gamma * (1 - done)
        for name in ("next_mask", "obs_mask"):
            if name in rows:
                fields[name] = plan.legal(rows[name])
        noise = self._draw_noise(plan, sizes, count) if plan.draws_noise else {}
        fields |= self._observations(rows, prepare)
        number, last = 0, count - 1
        for row, (member, size) in enumerate(zip(plan.members, sizes, strict=True)):
            if size:
                self._updates[member] += count
                number = self._updates[member] - last
                self._last[member] = rows, last, row, size
        return TransitionBatches(fields, weight, noise, count, number, self.replay.prioritized)

    def _observations(self, rows: dict[str, Any], prepare: Callable[[Any], Any]) -> dict[str, Any]:
        """Return the inputs of the networks in sampled rows."""
        return {name: prepare(rows[name]) for name in ("obs", "next_obs")}

    def _plain_weights(self, plan: Plan, sizes: list[int]) -> Tensor:
        """Return [updates, N_g, B] weights for uniform replay: 1/B_i in the rows of member i, 0 beyond.

        With W ranks W/B_i, where B_i counts all ranks: the mean of their gradients then weights all rows equally.
        """
        weight = np.zeros((len(sizes), max(sizes)))
        for row, size in enumerate(sizes):
            weight[row, :size] = 1 / plan.divisors[row] if size else 0
        weights = _twice(plan, plan.to_device(torch.from_numpy(weight))).expand(plan.schedule.count, -1, -1)
        plan.weights[tuple(sizes)] = weights
        return weights

    def _priority_weights(self, plan: Plan, sizes: list[int], indices: np.ndarray, index: int) -> Tensor:
        """Return [updates, N_g, B]: 1/B_i times the importance weight in the rows of member i, 0 beyond."""
        weight = np.zeros(indices.shape)
        done = self._begun + (index + 1) * self.at_once  # includes this vector step, so that the last one has β = 1
        for row, (size, first, divisor) in enumerate(zip(sizes, plan.betas, plan.divisors, strict=True)):
            if size:
                beta = beta_schedule(first, done, self.options.max_steps)
                weight[:, row, :size] = self.replay.weights(indices[:, row, :size], beta) / divisor
        return _twice(plan, plan.to_device(torch.from_numpy(weight)))

    def _draw_noise(self, plan: Plan, sizes: list[int], count: int) -> dict[str, Tensor]:
        """Draw the updates' random numbers, name -> [count, N_g, K, ...], from one stream per member."""
        drawn = {
            row: plan.agents[row].draw_noise(self._rngs[member], (count, sizes[row]))
            for row, member in enumerate(plan.members)
            if sizes[row]
        }
        noise = {}
        for name, first in next(iter(drawn.values())).items():
            widest = max(parts[name].shape[1] for parts in drawn.values())
            stacked = np.zeros((count, len(sizes), widest, *first.shape[2:]))
            for row, parts in drawn.items():
                stacked[:, row, : parts[name].shape[1]] = parts[name]
            noise[name] = plan.to_device(torch.from_numpy(stacked))
        return noise


def _twice(plan: Plan, weight: Tensor) -> Tensor:
    """Repeat the weights if each row is learned from as two transitions."""
    return torch.cat((weight, weight), -1) if plan.learns_from_both else weight
