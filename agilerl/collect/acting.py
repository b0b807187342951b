"""First half of learning from transitions: members act in their lanes and store transitions."""

from __future__ import annotations

from typing import Any

import numpy as np

from agilerl.collect.collector import Running, Shard, keep_finished, lanes_of, trained_with_masks
from agilerl.collect.divergence import Watch
from agilerl.collect.replay import SharedReplay
from agilerl.collect.rewards import RewardScale
from agilerl.collect.teams.idle_agents import IdleAgents
from agilerl.core import tree as trees
from agilerl.core.options import OffPolicyOptions
from agilerl.core.rng import Purpose
from agilerl.envs.masks import MASK, ActionMasks
from agilerl.envs.protocol import begin_step, finish_step
from agilerl.envs.step import Lanes, StepBatch
from agilerl.rollouts.off_policy import hold_actions, scale_noise_per_lane

DRAWN_AHEAD = 4096  # vector steps of exploration drawn at once


class Acting:
    """Step the lanes of a shard's members with exploration, and write transitions to the replay buffer.

    Args:
        shard: the members, with their exploration rate and running episodes.
        lanes: len(shard.agents) * E lanes; member i owns lanes [i·E, (i+1)·E).
        watch: of exactly these members; its learner acts for them.
        rewards: updated with every reward; rewards are stored unscaled.

    Attributes:
        epsilon: exploration rate of the next vector step.
        num_envs: lanes of one member.
    """

    def __init__(
        self,
        shard: Shard,
        lanes: Lanes,
        replay: SharedReplay,
        options: OffPolicyOptions,
        watch: Watch,
        rewards: RewardScale | None,
    ) -> None:
        self.agents, self.lanes, self.learner, self.replay = shard.agents, lanes, watch.learner, replay
        self.options, self.watch, self.tallies, self.rewards = options, watch, watch.tallies, rewards
        assert shard.shared.epsilon is not None
        self.epsilon = shard.shared.epsilon
        self.num_envs, self.ranks = watch.num_envs, shard.ranks
        self._counted = self.num_envs  # environment steps of each member in a vector step
        self._masks = ActionMasks(lanes.single_action_space, lanes.backend)
        self._rngs = shard.streams(Purpose.EXPLORATION)
        self._running = Running.begin(shard, lanes)
        if self._running.is_new:
            replay.interrupt()
        self.obs, self.info, self._tracker = self._running.obs, self._running.info, self._running.tracker
        self._lead = self.agents[0]
        self._stores_masks = any(agent.learns_from_obs_mask for agent in self.agents)
        self._is_noisy = any(agent.draw_acting_noise(np.random.default_rng(0), 1) is not None for agent in self.agents)
        self._waiting: IdleAgents | None = self._running.waiting  # for teams
        self._total, self._made = shard.vector_steps, 0
        self._begin = self._end = 0  # vector steps covered by the current draws
        self._draws: tuple[np.ndarray, ...] = ()
        self._noise: np.ndarray | None = None
        self._acted: tuple[np.ndarray, np.ndarray | None] = (np.empty(0), None)
        self._pending: Any = None

    def step(self) -> bool:
        """Make one vector step; False, without a step, if all members have diverged."""
        actions = self._act()
        if actions is None:
            return False
        self.keep(self.lanes.step(actions, self.watch.lanes))
        return True

    def begin(self) -> bool:
        """Begin a vector step; False, without a step, if all members have diverged."""
        actions = self._act()
        if actions is None:
            return False
        self._pending = begin_step(self.lanes, actions, self.watch.lanes)
        return True

    def wait(self) -> StepBatch:
        """Return the results of the vector step that `begin` has begun, for `keep`."""
        return finish_step(self.lanes, self._pending)

    def _act(self, draws: tuple[np.ndarray, ...] | None = None) -> Any:
        """Return the environment's actions of the next step; None if all members have diverged.

        Args:
            draws: exploration noise [N, E, ...] of each lane's step. None: that of the next vector step of all lanes,
                which counts for the exploration rate.
        """
        index, watch, is_vector_step = self._made, self.watch, draws is None
        if draws is None:
            if index == self._end:
                self._draw_ahead()
            self._made += 1
            if self._noise is not None:
                self.learner.set_policy_noise(self._noise[index - self._begin])
            draws = tuple(part[index - self._begin] for part in self._draws)
        watch.weights()
        if not watch.any_sound:
            return None
        obs, info, shape = self.obs, self.info, (len(self.agents), self.num_envs)
        rows = obs.reshape(*shape, *obs.shape[1:]) if isinstance(obs, np.ndarray) else _by_member(obs, shape)
        mask = self._masks.of(info, self.lanes.num_lanes) if info else None
        legal = None if mask is None else mask.reshape(*shape, -1)
        if self.replay.added() * self.ranks.size < self.options.random_steps:
            action = self._random(legal)
        else:
            action = self._explored(rows, draws, legal)
        action = watch.actions(action)
        if not watch.any_sound:
            return None
        if is_vector_step:
            self.epsilon = max(self.options.eps_end, self.epsilon * self.options.eps_decay)
        flat = action.reshape(-1, *action.shape[2:])
        self._acted = flat, mask
        return self._lead.environment_action(flat)

    def _explored(self, rows: trees.Tree, draws: tuple[np.ndarray, ...], legal: np.ndarray | None) -> np.ndarray:
        """Return exploring actions in storage format [N, E, ...] for observations [N, E, ...]."""
        return self.learner.explore(rows, draws, self.epsilon, legal)

    def _stored(self, obs: trees.Tree, action: np.ndarray, batch: StepBatch) -> tuple[Any, np.ndarray, StepBatch]:
        """Return what replay stores of a vector step [L, ...]; of waiting agents of a team their last action."""
        if batch.team is None:
            return obs, action, batch
        self._waiting = self._waiting or IdleAgents(self._lead.team)
        return self._waiting.step(obs, action, batch)

    def keep(self, batch: StepBatch) -> None:
        """Store the transitions of a vector step."""
        obs, (flat, mask) = self.obs, self._acted
        if batch.team is not None and batch.team.defined is not None:  # the environment replaced actions
            defined = self._lead.actions.stored(batch.team.defined)
            flat = np.where(np.isnan(defined), flat, defined)
        reward = batch.reward if batch.team is None else batch.team.reward
        reward = self.options.learned_reward(reward) if self.options.changes_rewards else reward
        if self.rewards is not None:  # stored unscaled, and scaled when sampled
            self.rewards.see(reward, batch)
        stored = self._stored(obs, flat, batch)
        self.replay.write(*stored[:2], reward, stored[2], self._masks, mask if self._stores_masks else None)
        finished = self._tracker.update(batch)
        if len(finished.lanes):
            keep_finished(self.tallies, finished, self.num_envs)
        for tally in self.tallies:
            tally.env_steps += self._counted if tally.fault is None else 0
        self.obs, self.info = batch.obs, batch.info

    def end(self) -> Running | None:
        """End the generation; return the running episodes if they continue in the next one.

        Open n-step windows are cut or continue with the episodes; those of a diverged member are always cut.
        """
        if MASK in self.info:
            trained_with_masks(self.agents)
        if not self.options.carry_envs:
            self.replay.interrupt()
            return None
        if not self.watch.all_sound:
            self.replay.interrupt(lanes_of(np.flatnonzero(~self.watch.is_finite).tolist(), self.num_envs))
        return self._running.going_on(self.obs, self.info, waiting=self._waiting)

    def _random(self, legal: np.ndarray | None) -> np.ndarray:
        """Uniformly random legal actions [N, E, ...]."""
        masks = [None] * len(self.agents) if legal is None else legal
        members = zip(self.agents, self._rngs, masks, strict=True)
        return np.stack([agent.random_action(rng, (self.num_envs,), mask) for agent, rng, mask in members])

    def _draw_ahead(self) -> None:
        """Draw exploration noise [count, N, E, ...] for the next vector steps, from one stream per member."""
        ahead = DRAWN_AHEAD // 16 if self._is_noisy else DRAWN_AHEAD  # noise of layers takes much more memory
        self._begin, self._end = self._end, min(self._end + ahead, self._total)
        count = self._end - self._begin
        self._draws = self._draw(count)
        self._noise = self._draw_noise(count)

    def _draw(self, count: int) -> tuple[np.ndarray, ...]:
        """Draw exploration noise [count, N, E, ...], from one stream per member."""
        member_draws = [
            self._draw_member(agent, rng, count) for agent, rng in zip(self.agents, self._rngs, strict=True)
        ]
        most = max(member_draws, key=len)  # members of other algorithms may need fewer
        member_draws = [[*draws, *map(np.zeros_like, most[len(draws) :])] for draws in member_draws]
        return tuple(np.stack(parts, axis=1) for parts in zip(*member_draws, strict=True))

    def _draw_member(self, agent: Any, rng: np.random.Generator, count: int) -> list[np.ndarray]:
        draws = scale_noise_per_lane(agent.draw_exploration(rng, (count, self.num_envs)), self.options.explore_least)
        if self.options.explore_hold == 1:
            return list(draws)
        first = hold_actions(
            rng, np.broadcast_to(np.arange(count)[:, None], (count, self.num_envs)), self.options.explore_hold
        )
        return [part[first, np.arange(self.num_envs)] for part in draws]

    def _draw_noise(self, count: int) -> np.ndarray | None:
        """Draw noise [count, N, S] of noisy policy layers for the next vector steps; None without such layers."""
        member_draws = [agent.draw_acting_noise(rng, count) for agent, rng in zip(self.agents, self._rngs, strict=True)]
        noises = [part for part in member_draws if part is not None]
        if not noises:
            return None
        noise = np.zeros((count, len(member_draws), max(part.shape[1] for part in noises)))
        for row, part in enumerate(member_draws):
            if part is not None:
                noise[:, row, : part.shape[1]] = part
        return noise


def _by_member(obs: trees.Tree, shape: tuple[int, int]) -> Any:
    """Reshape leaves [N·E, ...] to [N, E, ...]; faster than `tree.reshape` for the dict of dicts of a team."""
    if type(obs) is not dict:
        return trees.reshape(obs, *shape)
    rows: dict[str, Any] = {}
    for key, part in obs.items():
        if type(part) is np.ndarray:
            rows[key] = part.reshape(*shape, *part.shape[1:])
        elif type(part) is dict and all(type(leaf) is np.ndarray for leaf in part.values()):
            rows[key] = {name: leaf.reshape(*shape, *leaf.shape[1:]) for name, leaf in part.items()}
        else:
            rows[key] = trees.reshape(part, *shape)
    return rows
