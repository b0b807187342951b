"""Acting in lanes that do not wait for each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from agilerl.envs.protocol import begin_step, finish_step
from agilerl.rollouts.step_draws import StepDraws
from agilerl.sources.acting import DRAWN_AHEAD, Acting


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
        self._keep(batch)
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
