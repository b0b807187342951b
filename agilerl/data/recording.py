"""Record data sets: episodes of a policy as arrays in D4RL's layout, and the files that hold them."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from agilerl.algorithms.base.actions import uniform_actions
from agilerl.algorithms.base.adapted import adapted
from agilerl.algorithms.base.predict import greedy_of
from agilerl.core import tree as trees
from agilerl.core.files import write_atomic
from agilerl.core.rng import Purpose, seeds, stream
from agilerl.data.dataset import ABOUT
from agilerl.envs.limits import DEFAULT_EPISODE_LIMIT
from agilerl.envs.masks import ActionMasks
from agilerl.envs.observed_masks import follow_masks
from agilerl.envs.step import Lanes
from agilerl.errors import ConfigError, NotAvailableYetError
from agilerl.rollouts.evaluate import evaluate

Policy = Callable[[Any, np.ndarray | None], np.ndarray]
"""Observations [L, ...] and legal actions [L, A] or None -> actions [L, ...], as the environment takes them."""

LANES = 8  # parallel episodes
KINDS = (".h5", ".hdf5", ".npz")


# -- policies ---------------------------------------------------------------------------------------------------------


def random_policy(space: gym.Space[Any], rng: np.random.Generator) -> Policy:
    """Uniformly random legal actions; for a Box uniform within its bounds, or from `sample` if unbounded."""
    if isinstance(space, gym.spaces.Box) and not is_bounded(space):
        space.seed(int(rng.integers(2**31)))

    def act(obs: trees.Tree, mask: np.ndarray | None) -> np.ndarray:
        return _random(space, rng, trees.count_rows(obs), mask)

    return act


def is_bounded(space: gym.spaces.Box) -> bool:
    """Whether all bounds are finite."""
    return bool(np.isfinite(space.low).all() and np.isfinite(space.high).all())


def _random(space: gym.Space[Any], rng: np.random.Generator, count: int, mask: np.ndarray | None) -> np.ndarray:
    if isinstance(space, gym.spaces.Discrete):
        return np.asarray(space.start + uniform_actions(rng.random(count), int(space.n), mask))
    if isinstance(space, gym.spaces.MultiDiscrete):
        sizes, starts = space.nvec.ravel(), np.broadcast_to(space.start, space.nvec.shape).ravel()
        edges = np.concatenate(([0], np.cumsum(sizes)))
        parts = [
            start + uniform_actions(rng.random(count), int(n), None if mask is None else mask[:, a:b])
            for n, start, a, b in zip(sizes, starts, edges[:-1], edges[1:], strict=True)
        ]
        return np.stack(parts, axis=1).reshape(count, *space.nvec.shape).astype(space.dtype)
    if isinstance(space, gym.spaces.Box) and is_bounded(space):
        if np.issubdtype(space.dtype, np.integer):
            low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
            drawn = np.minimum(np.floor(rng.uniform(low, high + 1, size=(count, *space.shape))), high)
        else:
            drawn = rng.uniform(space.low, space.high, size=(count, *space.shape))
        return np.asarray(drawn.astype(space.dtype))
    if isinstance(space, gym.spaces.Box):
        return np.stack([space.sample() for _ in range(count)])
    raise NotAvailableYetError(f"no random actions for {space}. fix: Discrete, MultiDiscrete or Box actions.")


def noisy_policy(act: Policy, space: gym.Space[Any], noise: float, rng: np.random.Generator) -> Policy:
    """Add exploration to `act`; with 0, `act` is returned unchanged.

    Args:
        noise: for discrete actions, the probability of a uniformly random legal one (ε). For a Box, the standard
            deviation of Gaussian noise, in units of half the range; actions are clipped to the bounds.

    Raises:
        ConfigError: not a probability, or a Box without bounds.
    """
    if noise == 0:
        return act
    box = space if isinstance(space, gym.spaces.Box) else None
    if noise < 0 or (noise > 1 and box is None):
        raise ConfigError(f"noise must be in [0, 1] (share of random actions); got {noise:g}. fix: --noise 0.1.")
    if box is not None and not is_bounded(box):
        raise ConfigError(f"noise is measured by the bounds of actions, and {space} has none. fix: --noise 0.")

    def choose(obs: trees.Tree, mask: np.ndarray | None) -> np.ndarray:
        action = np.asarray(act(obs, mask))
        if box is None:
            replaced = rng.random(len(action)) < noise
            other = _random(space, rng, len(action), mask)
            return np.where(replaced.reshape(-1, *[1] * (action.ndim - 1)), other, action)
        scale = noise * (box.high - box.low) / 2
        moved = action + scale * rng.standard_normal(action.shape)
        return np.asarray(np.clip(moved, box.low, box.high).astype(box.dtype))

    return choose


def greedy_policy(agent: Any) -> Policy:
    """Return an agent's greedy policy.

    Raises:
        NotAvailableYetError: a recurrent agent, whose hidden state cannot be reset per lane.
    """
    if adapted(agent).is_recurrent:
        raise NotAvailableYetError(f"{agent.algo} with a memory cannot record data yet. fix: a policy without memory.")
    agent.set_training_mode(False)
    greedy = greedy_of(agent)

    def act(obs: trees.Tree, mask: np.ndarray | None) -> np.ndarray:
        return np.asarray(greedy(obs, mask))

    return act


# -- playing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recording:
    """Steps [N, ...] of consecutive episodes, with the array names of a data set."""

    arrays: dict[str, Any]
    cut: int
    """Episodes truncated because enough rows were recorded, or because they did not end."""

    def __len__(self) -> int:
        return len(self.arrays["rewards"])


def record(
    act: Policy, lanes: Lanes, rows: int, run_seed: int, part: int = 0, longest: int = DEFAULT_EPISODE_LIMIT
) -> Recording:
    """Play `rows` steps, concatenated lane by lane; only the last episode may be incomplete, without an end flag.

    A lane plays until it has its share of rows and its episode has ended, so that episodes are complete. Episodes
    without an end are cut after `longest` steps.

    Args:
        lanes: reset here from streams of (run_seed, part). part: index of the part of a data set.
        longest: maximum steps of an episode.
    """
    lanes = follow_masks(lanes)
    count, masks = lanes.num_lanes, ActionMasks(lanes.single_action_space, lanes.backend)
    share = -(-rows // count)
    obs, info = lanes.reset(seeds(run_seed, Purpose.ENVIRONMENT, count, part))
    columns: list[dict[str, Any]] = []
    valid: list[np.ndarray] = []
    going, steps = np.ones(count, bool), 0
    while going.any() and steps < share + longest:
        mask = masks.of(info, count)
        action = np.asarray(act(obs, mask))
        batch = lanes.step(action, going)
        steps += 1
        row = {"observations": trees.copy(obs), "actions": action, "rewards": batch.reward}
        row |= {"terminals": batch.terminated, "timeouts": batch.truncated, "next_observations": batch.final_obs}
        if mask is not None:
            after = masks.final(batch.info, count)
            row |= {"action_masks": mask, "next_action_masks": np.ones_like(mask) if after is None else after}
        columns.append(row)
        valid.append(batch.mask & going)
        if steps >= share:
            going = going & ~(batch.terminated | batch.truncated)
        obs, info = batch.obs, batch.info
    return _in_lanes(columns, np.array(valid), rows)


def _in_lanes(columns: Sequence[Mapping[str, Any]], valid: np.ndarray, rows: int) -> Recording:
    """Concatenate the kept steps of lanes [T, L] lane by lane, and return the first `rows` of them."""
    steps, lanes = np.nonzero(valid.T)[::-1]  # lane by lane
    arrays = {
        name: trees.map_leaves(lambda *x: np.stack(x)[steps, lanes][:rows], *(row[name] for row in columns))
        for name in columns[0]
    }
    terminated, cut = arrays["terminals"], np.array(arrays["timeouts"])
    last = np.flatnonzero(np.diff(lanes[:rows]))  # of each lane but the last
    open_ = last[~(terminated[last] | cut[last])]
    cut[open_] = True
    return Recording({**arrays, "timeouts": cut}, len(open_))


def joined(recordings: Sequence[Recording]) -> Recording:
    """Concatenate recordings; incomplete episodes are marked as cut."""
    cut = sum(one.cut for one in recordings)
    for one in recordings[:-1]:
        is_over = one.arrays["terminals"][-1] | one.arrays["timeouts"][-1]
        one.arrays["timeouts"][-1] |= not is_over
        cut += not is_over
    arrays = trees.map_leaves(lambda *x: np.concatenate(x), *(one.arrays for one in recordings))
    return Recording(arrays, int(cut))


def whole_returns(act: Policy, lanes: Lanes, episodes: int, run_seed: int, limit: int | None) -> np.ndarray:
    """Returns [episodes] of whole episodes, with the seeds of final tests, which are the same for every policy.

    Args:
        lanes: without automatic reset. limit: maximum steps of an episode.
    """
    start = seeds(run_seed, Purpose.FINAL_TEST, episodes)
    returns: np.ndarray = evaluate(_Alone(act), lanes, 1, episodes, start, limit).returns[0]
    return returns


class _Alone:
    """A single policy with the population interface of evaluations."""

    def __init__(self, act: Policy) -> None:
        self.act = act

    def act_greedy(self, obs: trees.Tree, mask: np.ndarray | None = None) -> np.ndarray:
        """obs [1, E, ...] -> actions [1, E, ...]."""
        return np.asarray(self.act(trees.take(obs, 0), None if mask is None else mask[0]))[None]


def exploration(run_seed: int, part: int = 0) -> np.random.Generator:
    """Stream of random actions for one part of a data set."""
    return stream(run_seed, Purpose.EXPLORATION, part)


# -- the file ---------------------------------------------------------------------------------------------------------


def check_target(path: Path) -> None:
    """Raise ConfigError if no data set can be written: existing file, unsupported format, missing dependency."""
    if path.suffix not in KINDS:
        raise ConfigError(f"{path} has an unsupported suffix. fix: a name that ends in {', '.join(KINDS)}.")
    if path.exists():
        raise ConfigError(f"{path} is there already. fix: another --out, or remove it.")
    if path.suffix != ".npz":
        try:
            import h5py  # noqa: F401
        except ImportError:
            raise ConfigError('HDF5 files need h5py. fix: pip install "agilerl[offline]", or --out FILE.npz') from None


def write_dataset(path: Path, arrays: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Write arrays (observations may be dicts of them) and their metadata atomically.

    Equal contents give identical files.

    Raises:
        ConfigError: see `check_target`; also for observations that the format cannot hold.
    """
    check_target(path)
    arrays = trees.untuple(dict(arrays))
    if path.suffix == ".npz":
        if any(isinstance(part, Mapping) for part in arrays.values()):
            raise ConfigError(f"{path} cannot hold observations of several parts. fix: --out FILE.h5.")
        write_atomic(path, _npz({**arrays, ABOUT: np.array(json.dumps(about))}))
        return
    import h5py

    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        _put(file, arrays)
        for name, value in about.items():
            file.attrs[name] = json.dumps(value) if isinstance(value, dict | list) else value
    write_atomic(path, buffer.getvalue())


def _npz(arrays: Mapping[str, Any]) -> bytes:
    """Like `numpy.savez_compressed`, without timestamps."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, value in arrays.items():
            part = io.BytesIO()
            np.lib.format.write_array(part, np.asarray(value), allow_pickle=False)
            file.writestr(zipfile.ZipInfo(f"{name}.npy"), part.getvalue(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _put(group: Any, arrays: Mapping[str, Any]) -> None:
    for name, value in arrays.items():
        if isinstance(value, Mapping):
            _put(group.create_group(name), value)
        else:
            group.create_dataset(name, data=value, compression="gzip", compression_opts=1, shuffle=True)
