"""Collect and learn: one generation of experience, in lockstep or one member after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl import tree as trees
from agilerl.components.prioritized import beta_schedule
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import TransitionBatch
from agilerl.envs.step import StepBatch, action_mask
from agilerl.rng import Purpose
from agilerl.rollouts.off_policy import graded, held
from agilerl.sources.episodes import lanes_of
from agilerl.sources.options import OffPolicyOptions
from agilerl.sources.replay import SharedReplay
from agilerl.sources.rewards import RewardScale
from agilerl.sources.source import MemberTally, Segment
from agilerl.sources.watch import Watch
from agilerl.spaces import mask_width
from agilerl.tree import map_leaves, unbind

DRAWN_AHEAD = 4096  # vector steps of exploration drawn at once


@dataclass(frozen=True)
class Schedule:
    """When a member learns: `count` updates at every `interval`-th vector step.

    With E lanes: E // learn_step updates each vector step if learn_step <= E, else one each learn_step // E of them.
    """

    interval: int
    count: int

    @classmethod
    def of(cls, learn_step: int, num_envs: int) -> Schedule:
        if learn_step > num_envs:
            return cls(learn_step // num_envs, 1)
        return cls(1, num_envs // learn_step)


class Generation:
    """One generation's collecting and learning of some members on their lanes.

    Args:
        segment: the members, their lanes and streams. learner: adopted learner of exactly these members.
        memory: shared replay. options: of the run.
        epsilon: exploration rate of the first vector step.
    """

    def __init__(
        self,
        segment: Segment,
        learner: Learner,
        memory: SharedReplay,
        options: OffPolicyOptions,
        epsilon: float,
        rewards: RewardScale | None = None,
    ) -> None:
        self.segment, self.learner, self.memory, self.options = segment, learner, memory, options
        self.agents, self.lanes, self.num_envs = segment.agents, segment.lanes, segment.num_envs
        self.rewards = rewards
        if rewards is not None:
            rewards.begin(self.agents, self.num_envs)
        self.epsilon = epsilon
        self.tallies = [MemberTally() for _ in self.agents]
        self.watch = Watch(learner, self.tallies)
        self.mask_width = mask_width(self.lanes.single_action_space)
        self._replay = segment.streams(Purpose.REPLAY)
        self._explore = segment.streams(Purpose.EXPLORATION)
        running = segment.episodes.begin(self.lanes, segment.lane_seeds)
        if running.is_new:
            memory.interrupt()
        self.obs, self.info, self._tracker = running.obs, running.info, running.tracker
        self._plans = self._plan_updates()
        self._loss: list[Tensor | None] = [None] * len(learner.groups)
        self._updates = [0] * len(self.agents)

    def _plan_updates(self) -> list[tuple[int, list[int], Schedule]]:
        """(group, its members, schedule); a group's members have their schedule in common."""
        plans = []
        for index, group in enumerate(self.learner.groups):
            kinds = {Schedule.of(int(self.agents[i].learn_step), self.num_envs) for i in group.members}
            assert len(kinds) == 1
            plans.append((index, group.members, kinds.pop()))
        return plans

    def run(self) -> float:
        """Make the segment's vector steps; returns the exploration rate of the next one."""
        vector_steps = self.segment.vector_steps
        is_noisy = self.agents[0].draw_acting_noise(np.random.default_rng(0), 1) is not None
        ahead = DRAWN_AHEAD // 16 if is_noisy else DRAWN_AHEAD  # a layer's noise takes much more memory than a draw
        for start in range(0, vector_steps, ahead):
            count = min(ahead, vector_steps - start)
            draws, noise = self._draw(count), self._draw_acting_noise(count)
            for t in range(count):
                if noise is not None:
                    self.learner.set_policy_noise(noise[t])
                self.watch.weights()
                if self.watch.any_sound:
                    self._step(start + t, tuple(d[t] for d in draws))
        self._end_episodes()
        for index, members, _ in self._plans:
            total = self._loss[index]
            if total is not None:
                for member, value in zip(members, total.tolist(), strict=True):
                    self.tallies[member].loss_sum += value
        return self.epsilon

    def _end_episodes(self) -> None:
        """Windows of n steps end with the generation, or go on with the episodes; never those of a member at rest."""
        if not self.segment.episodes.carry:
            self.memory.interrupt()
            return
        if not self.watch.all_sound:
            self.memory.interrupt(lanes_of(np.flatnonzero(~self.watch.sound).tolist(), self.num_envs))
        self.segment.episodes.keep(self.lanes, self.obs, self.info, self._tracker)

    def _draw(self, count: int) -> tuple[np.ndarray, ...]:
        """Exploration draws [count, N, E, ...] for the coming vector steps, each member from its own stream."""
        each = [self._draw_member(a, r, count) for a, r in zip(self.agents, self._explore, strict=True)]
        return tuple(np.stack(parts, axis=1) for parts in zip(*each, strict=True))

    def _draw_acting_noise(self, count: int) -> np.ndarray | None:
        """Noise of the policies' noisy layers [count, N, S] for the coming vector steps; None without such layers."""
        each = [a.draw_acting_noise(r, count) for a, r in zip(self.agents, self._explore, strict=True)]
        found = [part for part in each if part is not None]
        if len(found) < len(each):
            return None
        noise = np.zeros((count, len(found), max(part.shape[1] for part in found)))
        for row, part in enumerate(found):
            noise[:, row, : part.shape[1]] = part
        return noise

    def _draw_member(self, agent: Any, rng: np.random.Generator, count: int) -> list[np.ndarray]:
        draws = graded(agent.draw_exploration(rng, (count, self.num_envs)), self.options.explore_least)
        if self.options.explore_hold == 1:
            return list(draws)
        first = held(rng, np.broadcast_to(np.arange(count)[:, None], (count, self.num_envs)), self.options.explore_hold)
        return [part[first, np.arange(self.num_envs)] for part in draws]

    def _step(self, index: int, draws: tuple[np.ndarray, ...]) -> None:
        shape = (len(self.agents), self.num_envs)
        obs = trees.reshape(self.obs, *shape)
        mask = action_mask(self.info, self.lanes.num_lanes, self.mask_width) if self.info else None
        if mask is not None:
            mask = mask.reshape(*shape, -1)
        if self.memory.counter < self.options.random_steps:
            masks = [None] * len(self.agents) if mask is None else mask
            each = zip(self.agents, self._explore, masks, strict=True)
            action = np.stack([agent.random_action(rng, (self.num_envs,), legal) for agent, rng, legal in each])
        else:
            action = self.learner.explore(obs, draws, self.epsilon, mask)
        action = self.watch.actions(action)
        self.epsilon = max(self.options.eps_end, self.epsilon * self.options.eps_decay)
        flat = action.reshape(-1, *action.shape[2:])
        batch = self.lanes.step(self.agents[0].environment_action(flat), self.watch.lanes(self.num_envs))
        legal = mask.reshape(len(flat), -1) if mask is not None and self.agents[0].learns_from_obs_mask else None
        self._store(self.obs, flat, batch, legal)
        self.obs, self.info = batch.obs, batch.info
        self._learn(index)
        self.segment.progress(self.lanes.num_lanes)

    def _store(self, obs: Any, action: np.ndarray, batch: StepBatch, obs_mask: np.ndarray | None) -> None:
        reward = self.options.learned_reward(batch.reward)
        if self.rewards is not None:  # stored as they are, and scaled as they are learned from
            self.rewards.see(reward, batch)
        self.memory.write(obs, action, reward, batch, self.mask_width, obs_mask)
        finished = self._tracker.update(batch)
        for lane, score in zip(finished.lanes.tolist(), finished.returns.tolist(), strict=True):
            self.tallies[lane // self.num_envs].scores.append(score)
        for tally in self.tallies:
            tally.env_steps += self.num_envs if tally.fault is None else 0

    def _learn(self, index: int) -> None:
        if self.memory.counter <= self.options.learning_delay:
            return
        errors: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for group, members, schedule in self._plans:
            if index % schedule.interval:
                continue
            for sizes in self._shifts(members):
                errors |= self._learn_together(group, members, sizes, schedule.count, index)
            total = self._loss[group]
            if total is not None:
                self.watch.losses(members, total)
        self._reprioritise(errors)

    def _shifts(self, members: list[int]) -> list[list[int]]:
        """Who of a group learns in one call: per call the batch sizes of its members, 0 for one that has no part in it.

        A member waits until the memory holds its own batch, not for the members beside it. Where some have begun
        before others their updates have other numbers, which what an algorithm does may depend on: they learn apart.
        """
        sizes = [int(self.agents[i].batch_size) for i in members]
        ready = [member for member, size in zip(members, sizes, strict=True) if len(self.memory) >= size]
        return [
            [size if i in ready and self._updates[i] == done else 0 for i, size in zip(members, sizes, strict=True)]
            for done in sorted({self._updates[i] for i in ready})
        ]

    def _learn_together(
        self, group: int, members: list[int], sizes: list[int], count: int, index: int
    ) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """`count` updates of the members whose size is not 0; their rows and new priorities, where there are any."""
        live = [size > 0 for size in sizes]
        taking_part = [(row, member, sizes[row]) for row, member in enumerate(members) if live[row]]
        indices = np.zeros((count, len(members), max(sizes)), np.int64)
        for row, member, size in taking_part:
            indices[:, row, :size] = self.memory.sample_indices(self._replay[member], (count, size))
        batches = self._batches(group, members, sizes, indices, index)
        results = [self.learner.learn(group, batch, None if all(live) else live) for batch in batches]
        for result in results:
            before = self._loss[group]
            self._loss[group] = result.loss if before is None else before + result.loss
        for _, member, _ in taking_part:
            self.tallies[member].updates += count
        found = [result.priorities for result in results if result.priorities is not None]
        if not (self.memory.prioritized and found):
            return {}
        values = torch.stack(found).double().cpu().numpy()  # [updates, N_g, B], or 2B: see `_learns_from_both`
        values = values.reshape(*values.shape[:2], -1, max(sizes)).sum(2)
        return {member: (indices[:, row, :size], values[:, row, :size]) for row, member, size in taking_part}

    def _reprioritise(self, errors: dict[int, tuple[np.ndarray, np.ndarray]]) -> None:
        """Once per vector step, after all updates and in population order, so that it does not matter how members are
        grouped; where a row was learned from more than once, the last one counts."""
        for member in sorted(errors):
            indices, values = errors[member]
            if self.watch.priorities(member, values):
                self.memory.update_priorities(indices, values)

    def _weights(
        self, members: list[int], sizes: list[int], indices: np.ndarray, index: int, like: Tensor
    ) -> list[Tensor]:
        """[N_g, B] for every update: 1/B_i in member i's own rows, times the importance weight, 0 beyond.

        A size of 0 is that of a member that takes no part.
        """
        weight = np.zeros(indices.shape if self.memory.prioritized else indices.shape[1:])
        for row, (member, size) in enumerate(zip(members, sizes, strict=True)):
            if not size:
                continue
            if not self.memory.prioritized:
                weight[row, :size] = 1 / size
                continue
            done = (
                self.segment.begun + (index + 1) * self.num_envs
            )  # with this vector step, so that the last one has β = 1
            beta = beta_schedule(float(getattr(self.agents[member], "beta", 0.4)), done, self.options.max_steps)
            weight[:, row, :size] = self.memory.weights(indices[:, row, :size], beta) / size
        made = torch.from_numpy(weight).to(like.device, like.dtype)
        return list(made) if self.memory.prioritized else [made] * len(indices)

    def _batches(
        self, group: int, members: list[int], sizes: list[int], indices: np.ndarray, index: int
    ) -> list[TransitionBatch]:
        """Batches [N_g, B, ...] from rows `indices` [updates, N_g, B]; beyond a member's own size the weight is 0."""
        count = len(indices)
        gammas = [self.agents[i].update_hyperparameters().get("gamma") for i in members]
        both = self._learns_from_both(members)
        rows = self.memory.gather_both(indices, gammas) if both else self.memory.gather(indices)
        like = next(iter(self.agents[members[0]].policy_module().parameters()))
        weight = self._weights(members, sizes, indices, index, like)
        weight = [torch.cat((part, part), -1) for part in weight] if both else weight
        reward, done = (x.to(like.device, like.dtype) for x in (rows["reward"], rows["done"]))
        reward = reward if self.rewards is None else reward * self.rewards.factor
        stacked: dict[str, Any] = {
            "obs": self.learner.prepare(group, rows["obs"]),
            "action": rows["action"].long() if self.mask_width else rows["action"],
            "reward": reward,
            "next_obs": self.learner.prepare(group, rows["next_obs"]),
            "done": done,
        }
        if "discount" in rows:  # of n-step transitions
            stacked["discount"] = rows["discount"].to(like.device, like.dtype)
        elif None not in gammas:  # for all updates at once
            stacked["discount"] = torch.tensor(gammas, dtype=like.dtype, device=like.device).unsqueeze(1) * (1 - done)
        for name in ("next_mask", "obs_mask"):
            if name in rows:
                legal = self.agents[members[0]].legal_choices(rows[name].numpy(force=True))
                stacked[name] = torch.from_numpy(legal).to(like.device).bool()
        noise = self._draw_noise(members, sizes, count, like)
        last = count - 1
        taking_part = [(row, member) for row, member in enumerate(members) if sizes[row]]
        for row, member in taking_part:
            self.agents[member].remember_observations(_seen(rows["obs"], last, row, sizes[row]))
            self._updates[member] += count
        number = self._updates[taking_part[0][1]] - last
        each = {name: unbind(values) for name, values in stacked.items()}
        return [
            TransitionBatch(
                **{name: values[k] for name, values in each.items()},
                weight=weight[k],
                noise={name: values[k] for name, values in noise.items()},
                number=number + k,
            )
            for k in range(count)
        ]

    def _learns_from_both(self, members: list[int]) -> bool:
        """Whether these members learn from each row as a one-step and as an n-step transition, together."""
        wanted = getattr(self.agents[members[0]], "combined_reward", False)
        return bool(wanted) and self.memory.n_step_memory is not None

    def _draw_noise(self, members: list[int], sizes: list[int], count: int, like: Tensor) -> dict[str, Tensor]:
        """What the updates need of random numbers, name -> [count, N_g, K, ...], each member from its own stream."""
        drawn = {
            row: self.agents[i].draw_noise(self._replay[i], (count, size))
            for row, (i, size) in enumerate(zip(members, sizes, strict=True))
            if size
        }
        noise = {}
        for name, first in next(iter(drawn.values())).items():
            widest = max(parts[name].shape[1] for parts in drawn.values())
            stacked = np.zeros((count, len(members), widest, *first.shape[2:]))
            for row, parts in drawn.items():
                stacked[:, row, : parts[name].shape[1]] = parts[name]
            noise[name] = torch.from_numpy(stacked).to(like.device, like.dtype)
        return noise


def _seen(obs: Any, update: int, member: int, size: int) -> Any:
    """The first `size` observations of one member in one update, from those [updates, N_g, B, ...] of all."""
    return map_leaves(lambda x: x[update, member, :size], obs)
