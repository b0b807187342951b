"""Use replay as offline data: a memory's rows in episode order, and the replay saved by a run."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from agilerl.components.data import Transition
from agilerl.components.replay_buffer import MultiStepReplayBuffer, ReplayBuffer
from agilerl.core import tree as trees
from agilerl.core.checkpoint import decode_tree
from agilerl.core.hostile import malformed
from agilerl.data.replay_log import Chunk, ReplayLog
from agilerl.errors import AgileRLError, ConfigError, CorruptCheckpoint, RunError
from agilerl.runs.checkpoints import REST, Saved, generations, read_checkpoint
from agilerl.runs.names import is_run

MAX_KEY_BYTES = 256  # bytes of an observation for matching rows; longer ones are hashed


# -- a memory as arrays -----------------------------------------------------------------------------------------------


def rows_of_memory(memory: ReplayBuffer) -> dict[str, Any]:
    """Return {"obs", "action", "reward", "next_obs", "terminated", "ended", "obs_mask", "next_mask"} of a memory.

    A memory interleaves the steps of several lanes and does not store time limits. Rows are joined into episodes by
    matching the next observation of one with the observation of another, bit for bit; an episode ends at a row without
    a successor. Identical observations in several places (as in tabular environments) may join unrelated steps; each
    individual row is always as stored.

    Raises:
        ConfigError: rows of n-step or multi-agent transitions.
    """
    if isinstance(memory, MultiStepReplayBuffer):
        raise ConfigError(
            f"the rows of a {type(memory).__name__} are sums over {memory.n_step} steps, not single steps. "
            "fix: a ReplayBuffer (replay_buffer.n_step=1)."
        )
    if memory.is_of_teams:
        raise ConfigError("the memory holds transitions of several agents. fix: the memory of one agent.")
    if not len(memory):
        raise ConfigError("the memory is empty. fix: one that a run has filled.")
    rows = {name: _host(part) for name, part in memory.gather(memory.in_order()).items()}
    absent = [name for name in Transition.FIELDS if name not in rows]
    if absent:
        what, fields = f"the memory holds {', '.join(rows)}, and lacks {', '.join(absent)}", Transition.FIELDS
        raise ConfigError(f"{what}. fix: one filled with {', '.join(fields)}.")
    terminated = rows["done"].reshape(-1).astype(bool)
    order, ended = in_episodes(rows["obs"], rows["next_obs"], terminated)
    columns = {name: trees.take(rows[name], order) for name in ("obs", "action", "next_obs")}
    columns |= {"reward": rows["reward"].reshape(-1).astype(np.float64)[order], "terminated": terminated[order]}
    masks = {name: rows[name].astype(bool)[order] if name in rows else None for name in ("obs_mask", "next_mask")}
    return {**columns, **masks, "ended": ended}


def in_episodes(obs: trees.Tree, next_obs: trees.Tree, terminated: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (order, ended) [N]: rows sorted behind their predecessors, and flags of rows without a successor.

    Args:
        obs, next_obs: [N, ...] of rows, oldest first. terminated: [N] bool; terminal rows have no successor.
    """
    begins, ends = _keys(obs), _keys(next_obs)
    waiting: dict[bytes, deque[int]] = {}
    episodes: list[list[int]] = []
    for row, (begin, end, is_over) in enumerate(zip(begins, ends, terminated.tolist(), strict=True)):
        candidates = waiting.get(begin)
        if candidates:
            number = candidates.popleft()  # first in, first out
        else:
            number = len(episodes)
            episodes.append([])
        episodes[number].append(row)
        if not is_over:
            waiting.setdefault(end, deque()).append(number)
    order = np.array([row for episode in episodes for row in episode], np.int64)
    ended = np.zeros(len(order), bool)
    ended[np.cumsum([len(episode) for episode in episodes]) - 1] = True
    return order, ended


def _keys(obs: trees.Tree) -> list[bytes]:
    """Bytes of every observation, for comparison."""
    count = trees.count_rows(obs)
    parts = [np.ascontiguousarray(leaf).reshape(count, -1).view(np.uint8) for leaf in trees.leaves(obs)]
    whole = np.ascontiguousarray(np.concatenate(parts, axis=1))
    if whole.shape[1] <= MAX_KEY_BYTES:
        return [row.tobytes() for row in whole]
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in whole]


def _host(part: trees.Tree) -> Any:
    return trees.map_leaves(lambda leaf: leaf.cpu().numpy(), part)


# -- the memory of a run ----------------------------------------------------------------------------------------------


def replay_of_run(path: Path) -> tuple[ReplayBuffer, dict[str, Any]]:
    """Load the replay of a run directory from its newest complete checkpoint, with its metadata.

    No file is renamed or written, as the run may still be training.

    Returns:
        (memory, {"env_id", "algo", "seed", "generations"}). If the run changed rewards before storing them, also
        "reward_scale", by which to divide the stored ones, and "rewards", if that does not undo all changes.

    Raises:
        RunError: no run, no readable checkpoint, or damaged replay. ConfigError: the run keeps no replay, or has n-step
            or multi-agent replay.
    """
    saved = _newest(path)
    body = saved.body
    with malformed(saved.path):
        entries, settings = body["replay"], _settings(body)
        if not entries:
            raise ConfigError(_without_replay(path, settings))
        name = "memory" if "memory" in entries else next(iter(entries))
        state = decode_tree(saved.files[REST], str(saved.path / REST))["memories"][name]
        memory = _rebuilt(path / "replay" / name, state, [Chunk.of(entry) for entry in entries[name]])
        facts = {"env_id": body["run"].get("env_id") or None, "algo": settings.get("algo"), "seed": body["run"]["seed"]}
        facts |= _changed_rewards(body["run"].get("options") or {})
        return memory, {**{k: v for k, v in facts.items() if v is not None}, "generations": saved.number}


def _changed_rewards(options: Mapping[str, Any]) -> dict[str, Any]:
    """Describe how `options.LoopOptions.learned_reward` changed the stored rewards."""
    scale, floor = float(options.get("reward_scale", 1.0)), options.get("reward_floor")
    lost = [f"not below {floor:g}"] if floor is not None else []
    lost += ["their sign alone"] if options.get("clip_rewards") else []
    return {"reward_scale": None if scale == 1 else scale, "rewards": ", ".join(lost) or None}


def _newest(path: Path) -> Saved:
    """Load the newest complete checkpoint of a run."""
    folders, damaged = generations(path / "checkpoints"), []
    for folder in reversed(folders):
        try:
            return read_checkpoint(folder)
        except CorruptCheckpoint as error:
            damaged.append(str(error))
    if damaged:
        raise RunError(f"no checkpoint of {path} can be read ({damaged[0]}). fix: another run.")
    what = "has no checkpoint yet" if is_run(path) else "is not a run directory (no checkpoints)"
    raise RunError(f"{path} {what}. fix: runs/<env>/<algo>-<nnnn> of a run with a generation, or a file (.h5, .npz).")


def _settings(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return {"algo"}, and {"dataset"} for offline runs, for both ways of starting a run."""
    config = body.get("config", {})
    content = json.loads(config) if isinstance(config, str) else dict(config)
    algorithm = content.get("algorithm", {})
    algo = algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm
    return {"algo": algo or content.get("algo"), "dataset": (content.get("training") or {}).get("dataset")}


def _without_replay(path: Path, settings: Mapping[str, Any]) -> str:
    algo = settings.get("algo") or "its algorithm"
    if settings.get("dataset"):
        return f"{path} learned from {settings['dataset']} and keeps no replay. fix: dataset={settings['dataset']!r}."
    return f"{path} keeps no replay: {algo} does not learn from one. fix: a run of DQN, SAC or TD3, or a file."


def _rebuilt(folder: Path, state: Mapping[str, Any], chunks: list[Chunk]) -> ReplayBuffer:
    if "windows" in state:
        steps = state["windows"]["n_step"]
        raise ConfigError(f"{folder} holds sums over {steps} steps. fix: a run with replay_buffer.n_step=1.")
    memory, log = ReplayBuffer(int(state["max_size"]), seed=0), ReplayLog(folder)
    memory.load_state(state)
    try:
        for chunk in chunks:
            memory.load_changes(log.read(chunk))
    except (CorruptCheckpoint, AgileRLError) as error:
        raise RunError(f"the replay of the run is damaged: {error} fix: another run.") from error
    return memory
