"""Acting in lanes that do not wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from agilerl.collect.acting import DRAWN_AHEAD, Acting
from agilerl.core import tree as trees
from agilerl.envs.protocol import begin_step, finish_step
from agilerl.envs.step import StepBatch


class AsynchronousActing(Acting):
    """Act in every lane as soon as its step has completed (`envs.ready.ReadyLanes`).

    A vector step is as many transitions as there are lanes, of whichever lanes: fast lanes make more of them.
    Exploration noise follows the steps of each lane, its rate follows vector steps. No step is in progress when a
    generation ends: only as many steps begin as are left. A step that was lost with its worker is made again.
    Where all lanes complete together, the results are those of `Acting` with the same options.

    Attributes:
        vector_steps: completed ones. transitions: of the last `finish`.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.vector_steps = self.transitions = self._counted = 0
        self._noise_ahead = min(DRAWN_AHEAD // 16, self._total)  # acts for which the noise of layers is drawn at once
        self._noises = StepDraws(self._draw, DRAWN_AHEAD, self._total, (len(self.agents), self.num_envs))
        self._completed = 0  # transitions of the current vector step
        self._begun = np.zeros(self.lanes.num_lanes, np.int64)  # steps begun in each lane
        self._in_progress = np.zeros(self.lanes.num_lanes, bool)
        self._sent: np.ndarray | None = None  # stored actions [L, ...] of the steps in progress

    def step(self) -> bool:
        """Begin steps in idle lanes, and wait for at least one of those in progress; False if there is none."""
        if not self.begin():
            return False
        self.finish()
        return True

    def begin(self) -> bool:
        """Begin steps in idle lanes; False if no step is in progress after that: the generation is over."""
        while (is_chosen := self._lanes_to_begin()).any():
            actions = self._act_in(is_chosen)
            if actions is None:
                break
            sound = self.watch.lanes  # acting may have shown that a member has diverged
            pending = begin_step(self.lanes, actions, is_chosen if sound is None else is_chosen & sound)
            is_new, action = pending.mask & ~self._in_progress, self._acted[0]
            self._sent = action.copy() if self._sent is None else self._sent
            self._sent[is_new] = action[is_new]
            self._begun += is_new
            self._pending, self._in_progress = pending, pending.mask.copy()
            if self._in_progress.any():
                break
        return bool(self._in_progress.any())

    def finish(self) -> None:
        """Wait until at least one step has completed, and store the transitions of all that have."""
        batch = finish_step(self.lanes, self._pending)
        assert self._sent is not None
        self._acted = self._sent, self._acted[1]  # masks of legal actions change with the observations alone
        self._in_progress &= ~(batch.mask if batch.healed is None else batch.mask | batch.healed)
        self.keep(batch)
        steps_made = batch.mask.reshape(-1, self.num_envs).sum(1).tolist()
        for tally, env_steps in zip(self.tallies, steps_made, strict=True):
            tally.env_steps += env_steps
        self.transitions = sum(steps_made)
        self._completed += self.transitions
        while self._completed >= self._num_acting > 0:
            self._completed -= self._num_acting
            self.vector_steps += 1
            self.epsilon = max(self.options.eps_end, self.epsilon * self.options.eps_decay)

    @property
    def _num_acting(self) -> int:
        """Number of lanes whose member has not diverged."""
        return self.lanes.num_lanes if self.watch.lanes is None else int(self.watch.lanes.sum())

    def _lanes_to_begin(self) -> np.ndarray:
        """Return idle lanes [L] bool in which a step begins; near the end of a generation those with fewest steps."""
        remaining = (
            (self._total - self.vector_steps) * self._num_acting - self._completed - int(self._in_progress.sum())
        )
        idle = np.flatnonzero(~self._in_progress if self.watch.lanes is None else self.watch.lanes & ~self._in_progress)
        chosen = np.zeros(self.lanes.num_lanes, bool)
        chosen[idle[np.argsort(self._begun[idle], kind="stable")][: max(0, remaining)]] = True
        return chosen

    def _act_in(self, chosen: np.ndarray) -> Any:
        """Return the environment's actions; only those of the lanes `chosen` [L] are meant. None: see `_act`."""
        draws = self._noises.of(self._begun, chosen)
        if self._is_noisy:
            now = self._made % self._noise_ahead
            self._noise = self._draw_noise(self._noise_ahead) if now == 0 else self._noise
            if self._noise is not None:
                self.learner.set_policy_noise(self._noise[now])
        self._made += 1
        return self._act(draws)


class StepDraws:
    """Noise of every step of every lane, drawn ahead: a function of the seed, the lane and its step.

    Args:
        draw: returns noise [count, N, E, ...] for further steps of all lanes.
        ahead: steps drawn at once. total: expected steps of a lane; more are drawn if they are needed.
        shape: (N, E), members and lanes of each.
    """

    def __init__(
        self, draw: Callable[[int], tuple[np.ndarray, ...]], ahead: int, total: int, shape: tuple[int, int]
    ) -> None:
        self._draw, self._ahead, self._total, self._shape = draw, ahead, total, shape
        self._begin = self._end = 0  # steps covered by the current draws
        self._draws: tuple[np.ndarray, ...] = ()

    def of(self, steps: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the noise [N, E, ...] of the steps [L], in the lanes `chosen` [L] bool; any noise in the others."""
        while steps[chosen].max() >= self._end:
            self._draw_ahead(int(steps.min()))
        at = np.minimum(steps, self._end - 1).reshape(self._shape) - self._begin
        member, lane = np.indices(self._shape)
        return tuple(part[at, member, lane] for part in self._draws)

    def _draw_ahead(self, first: int) -> None:
        """Draw noise for further steps, and drop that of the steps before `first`."""
        remaining = self._total - self._end
        drawn = self._draw(min(self._ahead, remaining if remaining > 0 else self._total))
        before = [part[first - self._begin :] for part in self._draws] or [part[:0] for part in drawn]
        self._draws = tuple(np.concatenate(parts) for parts in zip(before, drawn, strict=True))
        self._begin, self._end = first, first + len(self._draws[0])


class Row:
    """One vector step of a rollout, filled lane by lane; lanes without a step in it keep `obs` and are not transitions.

    Attributes:
        obs: [L, ...] before the step. mask: [L, W] legal actions, None for all.
        acted: of each group, as `OnPolicyGeneration._act` returns it.
        outcome: of the step.
    """

    def __init__(self, obs: Any, mask: np.ndarray | None, acted: list[Any]) -> None:
        self.obs, self.mask = trees.copy(obs), None if mask is None else mask.copy()
        self.acted = [(action.copy(), log_prob.copy(), *rest) for action, log_prob, *rest in acted]
        lanes = trees.count_rows(obs)
        flags = np.zeros((4, lanes), bool)
        self.outcome = StepBatch(
            trees.copy(obs), np.zeros(lanes), flags[0], flags[1], trees.copy(obs), flags[2], {}, healed=flags[3]
        )

    def begin(
        self, lanes: np.ndarray, obs: trees.Tree, mask: np.ndarray | None, acted: list[Any], of_groups: list[np.ndarray]
    ) -> None:
        """Write what the lanes [L] bool do in this step; `of_groups`: the rows of each group among them."""
        trees.put(self.obs, lanes, trees.take(obs, lanes))
        if mask is not None:
            self.mask = np.ones_like(mask) if self.mask is None else self.mask
            self.mask[lanes] = mask[lanes]
        for rows, mine, theirs in zip(of_groups, self.acted, acted, strict=True):
            for part, values in zip(mine[:2], theirs[:2], strict=True):
                part[rows] = values[rows]

    def finish(self, lanes: np.ndarray, batch: StepBatch) -> None:
        """Write the outcome of the step in the lanes [L] bool."""
        out = self.outcome
        for part, values in ((out.obs, batch.obs), (out.final_obs, batch.final_obs)):
            trees.put(part, lanes, trees.take(values, lanes))
        flags = [(out.terminated, batch.terminated), (out.truncated, batch.truncated), (out.mask, batch.mask)]
        flags += [] if batch.healed is None or out.healed is None else [(out.healed, batch.healed)]
        for part, values in ((out.reward, batch.reward), *flags):
            part[lanes] = values[lanes]
