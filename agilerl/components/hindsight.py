"""Hindsight replay: transitions of goal environments, relabelled with goals that their episode achieved later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from torch import Tensor

from agilerl.components.multi_step import CUTS, lane_flags
from agilerl.components.ring import Part, RowRing
from agilerl.components.rows import Path, Rows, host_array, plan
from agilerl.components.uniform import ROLES, ReplayBuffer
from agilerl.core import foreign
from agilerl.core.ranges import Count
from agilerl.core.tree import Tree
from agilerl.envs.generators import isolated
from agilerl.envs.vector import Replicable
from agilerl.errors import ConfigError, ShapeError, warn_once

ACHIEVED: Path = ("next_obs", "achieved_goal")
DESIRED: tuple[Path, ...] = (("obs", "desired_goal"), ("next_obs", "desired_goal"))
NEEDED = {("reward",), ("done",), ACHIEVED, *DESIRED}
AHEAD: Path = ("#ahead",)  # stored with each row: number of later rows of its episode, which follow it in memory
COMPARED_ROWS = 1_000  # first rows whose rewards are compared with computed ones
TOLERANCE = 1e-3  # between a stored reward and a computed one: goals are stored in float32


class GoalRewards:
    """Rewards and terminations of a goal environment as functions of two goals.

    Args:
        env: has `compute_reward(achieved_goal, desired_goal, info)` and optionally `compute_terminated`. Of a vector of
            this package one more environment is created; of other vectors the first environment is used.

    Raises:
        ConfigError: not a goal environment.
    """

    def __init__(self, env: foreign.Env) -> None:
        if isinstance(env, Replicable):
            with isolated():  # from the global generators
                env = env.factory()
        env = foreign.single(env)
        spaces = foreign.parts(foreign.observation_space(env)) or {}
        reward, self.terminated = (_function(env, f"compute_{name}") for name in ("reward", "terminated"))
        if reward is None or not {"achieved_goal", "desired_goal"} <= set(spaces):
            name = type(foreign.bare(env)).__name__
            raise ConfigError(
                "hindsight needs a goal environment: Dict observations with achieved_goal and desired_goal, and a "
                f"method compute_reward(achieved_goal, desired_goal, info); {name} is none. fix: leave hindsight out."
            )
        self.reward, self.dtype = reward, spaces["achieved_goal"].dtype

    def __deepcopy__(self, memo: object) -> GoalRewards:
        return self  # environments need not be copyable, and this one is never stepped

    def __call__(self, achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return rewards [n], and terminations [n] if the environment computes them, for goals [n, ...]."""
        goals = achieved.astype(self.dtype), desired.astype(self.dtype)
        return _of_rows(self.reward, *goals), None if self.terminated is None else _of_rows(self.terminated, *goals)


def _function(env: Any, name: str) -> Callable[..., Any] | None:
    """Return a method of an environment or of its outermost wrapper that has it; None if none has."""
    if isinstance(env, gymnasium.Env) and env.has_wrapper_attr(name):
        function: Callable[..., Any] = env.get_wrapper_attr(name)
        return function
    return foreign.method(foreign.bare(env), name)


def _of_rows(function: Callable[..., Any], achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    """Return the results [n] of one call, or of one call per row if the function returns one value for all."""
    values = np.asarray(function(achieved, desired, {}))
    if values.shape != (len(achieved),):
        values = np.array([function(*goals, {}) for goals in zip(achieved, desired, strict=True)])
    return np.asarray(values, np.float64).reshape(len(achieved))


class OpenEpisodes(Part):
    """Rows of the running episodes of all lanes, until they end.

    Attributes:
        lengths: [L] int64, steps of each. rows: [L, T, ...], fields of their steps; T grows.
    """

    name, label, settings = "episodes", "open episodes", ()
    follows_rows = False

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, num_lanes: int) -> None:
        """Begin an episode in each of `num_lanes` lanes."""
        self.lengths, self.rows = np.zeros(num_lanes, np.int64), Rows()

    def clear(self, ring: RowRing) -> None:
        self.begin(0)

    def keep(self, ring: RowRing, places: np.ndarray) -> None:
        self.begin(0)  # open episodes may hold images that are lost

    def push(self, rows: Rows, lanes: np.ndarray, dtype: torch.dtype) -> None:
        """Add one step in `lanes` [k], each at most once."""
        at = self.lengths[lanes]
        room = next(iter(self.rows.values())).shape[1] if self.rows else 0
        if at.max(initial=0) >= room:
            for field in plan(rows, dtype):
                shape = len(self.lengths), max(room, 16), *rows[field.path].shape[1:]
                empty = np.zeros(shape, field.host_dtype)
                self.rows[field.path] = np.concatenate([self.rows[field.path], empty], 1) if room else empty
        for path, values in rows.items():
            self.rows[path][lanes, at] = values
        self.lengths[lanes] += 1

    def take(self, lanes: np.ndarray) -> Rows:
        """Remove the episodes of `lanes` [k]; return their rows, one episode after another, with `AHEAD`."""
        counts = self.lengths[lanes]
        step = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = {path: values[np.repeat(lanes, counts), step] for path, values in self.rows.items()}
        self.lengths[lanes] = 0
        return rows | {AHEAD: np.repeat(counts, counts) - 1 - step}

    def state(self, ring: RowRing) -> dict[str, Any]:
        rows = {"/".join(path): torch.from_numpy(v[:, : self.lengths.max()].copy()) for path, v in self.rows.items()}
        return {"lengths": torch.from_numpy(self.lengths.copy()), "rows": rows if self.lengths.any() else {}}

    def load_state(self, ring: RowRing, state: Mapping[str, Any]) -> None:
        self.lengths = state["lengths"].cpu().numpy().copy()
        self.rows = {tuple(name.split("/")): values.cpu().numpy().copy() for name, values in state["rows"].items()}


class HindsightReplayBuffer(ReplayBuffer):
    """Hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495, algorithm 1 and section 4.5).

    A sampled row is relabelled with probability k / (k + 1): a goal that its episode achieved later replaces the
    desired goal in both observations, and the reward is that of the environment's `compute_reward` for it. The new goal
    is the achieved goal after a uniformly drawn step of the episode, from the row's own step to the last ("future"), or
    after the last step ("final"). Rows are stored as they were, and relabelled at sampling.

    Rows are stored when their episode ends, is truncated or interrupted, so that later rows of an episode follow in
    memory and are overwritten after it. Until then they cannot be sampled.

    `done` of a relabelled row is that of `compute_terminated`, if the environment has it, else as stored. The `info` of
    both methods is {}. They are called with arrays [n, ...] of goals and return [n]; if the result has another shape,
    they are called for each row.

    Row numbers of `sample_indices` also encode the goal: place + max_size * g, where g = 0 is the stored goal, and else
    g - 1 the number of steps after the row whose achieved goal is the new one.

    Args:
        max_size: transitions. env: goal environment, or a vector of them; see `GoalRewards`.
        strategy: which achieved goals replace the desired one. goals_per_step: k, relabelled rows for each other one.
        device, dtype, seed: see `ReplayBuffer`.

    Raises:
        ConfigError: not a goal environment, or an argument out of range.
    """

    _undone = (*ReplayBuffer._undone, "_episodes")

    def __init__(
        self,
        max_size: int,
        env: foreign.Env,
        strategy: Literal["future", "final"] = "future",
        goals_per_step: Count = 4,
        device: str | torch.device | None = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(max_size, device=device, dtype=dtype, seed=seed)
        self.strategy, self.goals_per_step, self.rewards = strategy, goals_per_step, GoalRewards(env)
        self._episodes = OpenEpisodes()
        self._parts.append(self._episodes)

    # -- in: whole episodes ------------------------------------------------------------------------------------------

    def _add_step(
        self, rows: Rows, mask: np.ndarray | None, truncated: np.ndarray | None, lanes: np.ndarray | None
    ) -> int:
        """Add one vector step to the open episodes, and store those that end; `lanes` must be None."""
        if lanes is not None:
            raise ShapeError("hindsight needs all lanes at once: lanes must be None. fix: write whole steps.")
        is_end, added = self._begin_step(rows, truncated)
        chosen = np.arange(len(is_end)) if mask is None else np.flatnonzero(mask)
        return added + self._push(self._interned(rows, mask), chosen, is_end[chosen])

    def add(self, data: Any, truncated: Tree | None = None) -> None:
        """Add one step of each lane (the rows of the batch) to the open episodes, and store those that end.

        Args:
            data: see `ReplayBuffer.add`. truncated: [L] bool, where a time limit ended the episode; alternatively a key
                `truncated` or `truncation` of the batch. Without it only `done` ends episodes.
        """
        rows = self._batch_rows(data, ROLES)
        self._check(rows, in_lanes=False)
        is_end, _ = self._begin_step(rows, truncated, *(rows.get((name,)) for name in CUTS))
        self._push(rows if self.frames is None else self.frames.intern_apart(rows), np.arange(len(is_end)), is_end)

    def interrupt(self, lanes: np.ndarray | None = None) -> int:
        """Store all open episodes, or those of `lanes` [k]: they do not continue. Returns the number of rows added."""
        lanes = np.arange(len(self._episodes.lengths)) if lanes is None else lanes
        if not self._episodes.lengths[lanes[lanes < len(self._episodes.lengths)]].any():
            return 0
        rows = self._episodes.take(lanes)
        added = self._append(rows)
        self._release(rows)
        if self.counter - added < COMPARED_ROWS:
            self._compare(self._gather(self.in_order()[-added:]))
        return added

    def _begin_step(self, rows: Rows, *cuts: Any) -> tuple[np.ndarray, int]:
        """Return which lanes end [L] and the rows added because the lanes before were another number of them.

        cuts: [L] bool, truncations; None for none.
        """
        count, added = len(rows["reward",]), 0
        flags = [("done", rows["done",]), *(("truncated", cut) for cut in cuts if cut is not None)]
        is_end = np.any([lane_flags(name, values, count) for name, values in flags], axis=0)
        if len(self._episodes.lengths) != count:
            added = self.interrupt()
            self._episodes.begin(count)
        return is_end, added

    def _push(self, rows: Rows, lanes: np.ndarray, is_end: np.ndarray) -> int:
        self._episodes.push(rows, lanes, self.dtype)
        is_full = self._episodes.lengths.sum() >= self.max_size  # episodes without an end are cut
        return self.interrupt(None if is_full else lanes[is_end])

    def _check(self, rows: Rows, in_lanes: bool) -> None:
        if absent := NEEDED - rows.keys():
            names = ", ".join(sorted("/".join(path) for path in absent))
            raise ShapeError(f"hindsight needs the fields {names}. fix: observations of a goal environment, as dicts.")
        super()._check(rows, in_lanes)

    def _compare(self, data: Mapping[Path, Tensor]) -> None:
        """Warn if the environment computes other rewards for stored rows than it gave."""
        reward, _ = self._results(data[ACHIEVED], data[DESIRED[0]])
        stored = data["reward",].reshape(-1).numpy(force=True)
        if not np.allclose(stored, reward, TOLERANCE, TOLERANCE):
            at = int(np.argmax(np.abs(stored - reward)))
            warn_once(
                "hindsight:rewards",
                f"compute_reward gives {reward[at]:g} for a step whose reward was {stored[at]:g}, so that relabelled "
                "rows have other rewards. fix: rewards that follow from the two goals alone, and no wrapper that "
                "changes rewards or goals.",
            )

    def keep_rows(self, rows: np.ndarray) -> None:
        super().keep_rows(rows)
        if self._store is not None and len(rows):
            place, last = np.arange(len(rows)), np.flatnonzero(np.diff(rows, append=rows[-1] + 2) != 1)
            together = last[np.searchsorted(last, place)] - place  # no gap in so many rows after this one
            block = self._store.own[AHEAD]
            block.put(place, np.minimum(block.take(place).numpy(force=True), together[:, None]))

    # -- out: with goals that were achieved --------------------------------------------------------------------------

    def sample_indices(self, rng: np.random.Generator, shape: int | tuple[int, ...]) -> np.ndarray:
        """Sample row numbers `shape` int64 with their goals; see the class. RunError if empty."""
        places = super().sample_indices(rng, shape)
        assert self._store is not None
        ahead = self._store.own[AHEAD].take(places).numpy(force=True)[..., 0]
        is_relabelled = rng.random(shape) * (self.goals_per_step + 1) < self.goals_per_step
        steps = rng.integers(0, ahead + 1) if self.strategy == "future" else ahead
        return np.asarray(places + self.max_size * np.where(is_relabelled, 1 + steps, 0))

    def _live_rows(self, indices: Any) -> np.ndarray:
        index = host_array(indices)
        super()._live_rows(index % self.max_size)
        return index

    def _gather(self, indices: np.ndarray | Tensor) -> dict[Path, Tensor]:
        goal_number, places = np.divmod(host_array(indices), self.max_size)
        data, is_relabelled = super()._gather(places), goal_number > 0
        if not is_relabelled.any():
            return data
        goal = super()._gather((places + goal_number - 1)[is_relabelled] % self.max_size)[ACHIEVED]
        chosen = torch.from_numpy(is_relabelled).to(self.device)
        reward, done = self._results(data[ACHIEVED][chosen], goal)
        replaced = dict.fromkeys(DESIRED, goal) | {("reward",): torch.from_numpy(reward)[:, None]}
        replaced |= {} if done is None else {("done",): torch.from_numpy(done)[:, None]}
        for path, values in replaced.items():
            data[path][chosen] = values.to(self.device, data[path].dtype)
        return data

    def _results(self, achieved: Tensor, desired: Tensor) -> tuple[np.ndarray, np.ndarray | None]:
        """Return rewards [n] and terminations [n], None if not computed, for stored goals [n, ...]."""
        field = self.fields[ACHIEVED]
        goals = (goal.to(field.dtype).numpy(force=True) for goal in (achieved, desired))
        return self.rewards(*(goal[:, 0] if field.is_scalar else goal for goal in goals))
