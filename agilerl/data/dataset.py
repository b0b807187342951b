"""Data sets of transitions from files, mappings or episodes, as arrays.

Arrays of equal length hold consecutive steps: `observations`, `actions`, `rewards`, `terminals`, and optionally
`timeouts` (or `truncations`, `truncated`) and `next_observations`. The successor of a step is taken from
`next_observations`, or else is the next observation. Without `next_observations`, truncated steps and the last step
have no successor and are dropped, because nothing can be bootstrapped from it. Terminal steps need none. Environments
with illegal actions add `action_masks` and `next_action_masks` [N, A]. Other arrays are an error, except those that
D4RL, Minari and others store beside the steps (`BESIDE`).

Metadata (environment, policy, seed) is stored in the attributes of an HDF5 file, or as JSON in the array `about` of an
npz file; `data.recording` writes both. Arrays passed to a run are written by `data.handed`, together with the notes
of the first read (`READ`), so that the file is read identically.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np

from agilerl.components.uniform import ReplayBuffer
from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.data.memories import replay_of_run, rows_of_memory
from agilerl.errors import ConfigError, ShapeError, unknown_choice

NAMES = {
    "observations": ("observations", "obs", "states"),
    "actions": ("actions", "action"),
    "rewards": ("rewards", "reward"),
    "terminals": ("terminals", "terminations", "terminated", "dones", "done"),
    "timeouts": ("timeouts", "truncations", "truncated"),
    "next_observations": ("next_observations", "next_obs", "next_states"),
    "action_masks": ("action_masks",),
    "next_action_masks": ("next_action_masks",),
}
BESIDE = frozenset({  # ignored: what data sets store beside the steps, as an array, a group or flat keys "infos/qpos"
    "info", "infos", "metadata",  # D4RL, Minari
    "id", "seed", "options", "total_steps", "total_timesteps",  # Minari
    "env_infos", "agent_infos",  # rllab
    "discrete_action", "episode_terminals", "version",  # d3rlpy
    "index",  # NeoRL
    "about",  # see `ABOUT`
})  # fmt: skip
IN_MINARI = "minari:"  # prefix of Minari data set ids
MINARI = ("observations", "actions", "rewards", "terminations", "truncations")
NEEDED = ("observations", "actions", "rewards", "terminals")
WANTED = ("timeouts", "next_observations")  # without these, steps are dropped or ends are unknown
TABLES = {".csv": "read_csv", ".parquet": "read_parquet"}
SIMILAR = 0.6  # of 1: minimum similarity for suggesting an array in place of a missing one
ABOUT = "about"  # array of an npz file with its attributes
READ = "as_read"  # attribute with {"left_out", "missing", "is_stored"} of the data set when first read


@dataclass(frozen=True)
class Dataset:
    """Transitions [N, ...] of whole episodes, in order.

    Attributes:
        obs, next_obs: [N, ...] arrays, or dicts of them. action: [N, ...] in the environment's format.
        reward: [N] float64. terminated: [N] bool, terminal steps without a future value. ended: [N] bool, rows not
            followed by the next row.
        left_out: number of dropped steps without a successor.
        source: {"path", "bytes", "sha256"} of a file; only sha256 for arrays and memories; path and sha256 for a run.
        about: metadata, as JSON values: "env_id", "policy", "seed", ...; empty for arrays.
        missing: names of missing arrays among those for episode ends and successors.
        is_stored: whether actions are in an agent's storage format (raw in [-1, 1] for a Box, the index of a discrete
            action) instead of the environment's.
        obs_mask, next_mask: [N, A] bool, legal actions in obs and next_obs; None: all.
    """

    obs: Any
    action: np.ndarray
    reward: np.ndarray
    next_obs: Any
    terminated: np.ndarray
    ended: np.ndarray
    left_out: int
    source: Mapping[str, Any]
    about: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    is_stored: bool = False
    obs_mask: np.ndarray | None = None
    next_mask: np.ndarray | None = None

    @property
    def env_id(self) -> str | None:
        """Id of the environment that it was recorded in, if known."""
        env_id = self.about.get("env_id")
        return None if env_id is None else str(env_id)

    def __len__(self) -> int:
        return len(self.reward)

    def arrays(self) -> dict[str, Any]:
        """Rows under the array names of files, from which `read_dataset` creates the same rows."""
        arrays = {
            "observations": self.obs,
            "actions": self.action,
            "rewards": self.reward,
            "terminals": self.terminated,
            "timeouts": self.ended & ~self.terminated,
            "next_observations": self.next_obs,
        }
        masks = {"action_masks": self.obs_mask, "next_action_masks": self.next_mask}
        return arrays | {name: mask for name, mask in masks.items() if mask is not None}

    def returns(self) -> np.ndarray:
        """Undiscounted returns of the episodes [E], including a last episode that is incomplete."""
        if not len(self):
            return np.zeros(0)
        starts = np.concatenate(([0], np.flatnonzero(self.ended[:-1]) + 1))
        return np.asarray(np.add.reduceat(self.reward, starts))


def read_dataset(data: object) -> Dataset:
    """Read a data set as transitions.

    Args:
        data: a file (.h5, .hdf5, .npz); "minari:ID", a local Minari data set; the directory of a run that keeps its
            replay; an open HDF5 file or any mapping of arrays, also nested in one group or in one group per episode; a
            sequence of episodes, each a mapping; a `ReplayBuffer`; a `Dataset`.

    Raises:
        ConfigError: no such file, an unsupported format, or missing arrays. ShapeError: arrays of unequal length.
        RunError: the run has no readable replay.
    """
    if isinstance(data, Dataset):
        return data
    if isinstance(data, str) and data.startswith(IN_MINARI):
        return read_minari(data.removeprefix(IN_MINARI))
    if isinstance(data, str | Path):
        return _read_run(Path(data)) if Path(data).is_dir() else _read_file(Path(data))
    if isinstance(data, ReplayBuffer):
        return _of_memory(data, {}, {})
    if isinstance(data, Mapping):
        where = foreign.file_of(data)  # for an open HDF5 file
        return _of_mapping(data, _facts(Path(where)) if where and Path(where).is_file() else None)
    if isinstance(data, Iterable):
        episodes = list(data)
        if episodes and all(isinstance(episode, Mapping) for episode in episodes):
            return _joined([_arrays(e, f"episode {k}", is_episode=True) for k, e in enumerate(episodes)], None)
    raise ConfigError(
        f"a data set is a file (.h5, .hdf5, .npz), a run directory, a mapping of arrays, a list of episodes or a "
        f"ReplayBuffer; got {type(data).__name__}. fix: dataset='data.h5', or {{'observations': .., 'actions': .., "
        "'rewards': .., 'terminals': ..}."
    )


def open_minari(name: str, *, remote: bool = False) -> Any:
    """Open the `minari.MinariDataset` of this name; for arguments and errors see `read_minari`."""
    try:
        import minari
    except ImportError:
        raise ConfigError('a data set of Minari needs Minari. fix: pip install "agilerl[offline]"') from None
    try:
        return minari.load_dataset(name, download=remote)
    except Exception as error:  # network, storage or file errors: in each case there is no data set
        ways = "a network that reaches Minari's server" if remote else f"`minari download {name}`"
        raise ConfigError(f"the data set {name!r} cannot be loaded: {str(error).rstrip('.')}. fix: {ways}.") from error


def read_minari(name: str, *, remote: bool = False) -> Dataset:
    """Read a local Minari data set.

    Args:
        name: such as "D4RL/door/human-v2". remote: download it if it is not available locally.

    Raises:
        ConfigError: Minari is not installed, or the data set is neither available locally nor downloadable.
    """
    minari_data = open_minari(name, remote=remote)
    episodes = [{key: getattr(episode, key) for key in MINARI} for episode in minari_data.iterate_episodes()]
    data = read_dataset(episodes)
    env_id = foreign.recorded_id(minari_data)
    about = {"minari": name, **({} if env_id is None else {"env_id": env_id})}
    return replace(data, source={"minari": name, **data.source}, about=about)


def _read_run(path: Path) -> Dataset:
    """Read the replay of a run from its newest checkpoint, with the environment's original rewards."""
    memory, facts = replay_of_run(path)
    scale = facts.pop("reward_scale", 1.0)
    about = {"policy": "replay of a run", "run": "/".join(path.resolve().parts[-2:]), **facts}
    data = _of_memory(memory, {"path": str(path.resolve())}, about)
    return data if scale == 1 else replace(data, reward=data.reward / scale)


def _of_memory(memory: ReplayBuffer, source: Mapping[str, Any], about: Mapping[str, Any]) -> Dataset:
    rows = rows_of_memory(memory)
    whole = _joined([{**rows, "left_out": 0, "missing": ("timeouts",)}], None)
    return replace(whole, source={**source, **whole.source}, about=dict(about), is_stored=True)


def _read_file(path: Path) -> Dataset:
    if not path.is_file():
        raise ConfigError(
            f"there is no data set {path}. fix: an existing file (.h5, .hdf5, .npz); "
            "a run whose file has moved takes --set training.dataset=PATH."
        )
    if path.suffix == ".npz":
        try:
            with np.load(path, allow_pickle=False) as data:
                arrays = {name: data[name] for name in data.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            what = " ".join(str(error).split())
            raise ConfigError(f"{path} cannot be read as npz: {what}. fix: make the file again.") from error
        return _of_mapping(arrays, _facts(path))
    if path.suffix in TABLES:
        raise ConfigError(
            f"{path} is a table, and a data set is .h5, .hdf5 or .npz. fix: numpy.savez('{path.stem}.npz', "
            f"observations=.., actions=.., rewards=.., terminals=..) from pandas.{TABLES[path.suffix]}(...); "
            "docs/offline.md has the lines."
        )
    if path.suffix not in (".h5", ".hdf5"):
        raise ConfigError(f"{path} has an unsupported suffix. fix: .h5, .hdf5 or .npz, or the directory of a run.")
    try:
        import h5py
    except ImportError:
        raise ConfigError('HDF5 files need h5py. fix: pip install "agilerl[offline]"') from None
    try:
        with h5py.File(path, "r") as data:
            return _of_mapping(data, _facts(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read as HDF5: {error}. fix: make the file again.") from error


def _facts(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"path": str(path.resolve()), "bytes": path.stat().st_size, "sha256": digest}


def _of_mapping(data: Mapping[str, Any], source: Mapping[str, Any] | None) -> Dataset:
    """Read arrays, a group that holds them, or one group per episode; groups without steps are ignored."""
    about = _about(data)
    if _has(data, "actions"):
        read = about.pop(READ, None)
        dataset = replace(_joined([_arrays(data, "the data set", is_episode=False)], source), about=about)
        return _as_read(dataset, read) if isinstance(read, Mapping) else dataset
    groups = {name: group for name, group in data.items() if isinstance(group, Mapping) and _holds_steps(group)}
    if len(groups) == 1 and not _is_list_of_episodes(groups):
        dataset = _of_mapping(next(iter(groups.values())), source)
        return replace(dataset, about={**about, **dataset.about})
    if groups and all(_has(group, "actions") for group in groups.values()):
        names = sorted(groups, key=lambda name: (len(name), name))  # episode_2 before episode_10
        dataset = _joined([_arrays(groups[name], name, is_episode=True) for name in names], source)
        return replace(dataset, about=about)
    raise _missing("the data set", data, NEEDED)


def _as_read(data: Dataset, read: Mapping[str, Any]) -> Dataset:
    """Restore the notes of the first read of a data set's rows."""
    missing = read.get("missing")
    return replace(
        data,
        left_out=int(read.get("left_out") or 0),
        missing=tuple(map(str, missing)) if isinstance(missing, list) else (),
        is_stored=read.get("is_stored") is True,
    )


def _holds_steps(group: Mapping[str, Any]) -> bool:
    """Whether a group, or a group inside it, has actions (robomimic: data/demo_0, beside a group `mask`)."""
    return _has(group, "actions") or any(_holds_steps(part) for part in group.values() if isinstance(part, Mapping))


def _is_list_of_episodes(groups: Mapping[str, Any]) -> bool:
    """Whether a single group is named like an episode, such as "episode_0" or "demo_3"."""
    return all(_has(group, "actions") and re.search(r"\d$", name) for name, group in groups.items())


def _about(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of an HDF5 file, or the JSON attributes of an npz file."""
    if ABOUT in data:
        try:
            attributes = json.loads(str(np.asarray(data[ABOUT])))
        except ValueError:
            return {}
        return attributes if isinstance(attributes, dict) else {}
    return {str(name): _attribute(value) for name, value in foreign.hdf5_attributes(data).items()}


def _attribute(value: object) -> Any:
    """Convert an HDF5 attribute to a JSON value; `data.recording` writes mappings and lists as JSON strings."""
    value = value.decode(errors="replace") if isinstance(value, bytes) else value
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _has(data: Mapping[str, Any], name: str) -> bool:
    return any(alias in data for alias in NAMES[name])


def _missing(where: str, data: Mapping[str, Any], names: Sequence[str]) -> ConfigError:
    missing, held = [name for name in names if not _has(data, name)], sorted(map(str, data))
    meant = _meant(missing, held)
    message = f"{where} has no {_quoted(missing)}; it holds {', '.join(held) or 'nothing'}."
    renames = [f"rename {theirs!r} to {name!r}" for name, theirs in meant.items()]
    others = [name for name in missing if name not in meant]
    renames += [f"add {_quoted(others)}, one row for every step"] if others else []
    question = f" {'Is' if len(meant) == 1 else 'Are'} {_quoted(meant.values())} meant?" if meant else ""
    return ConfigError(f"{message}{question} fix: {', '.join(renames)}.")


def _meant(missing: Sequence[str], held: Sequence[str]) -> dict[str, str]:
    """Map missing names to arrays with a similar name; no array is used twice."""
    all_aliases = {alias for aliases in NAMES.values() for alias in aliases}
    pairs = [
        (max(SequenceMatcher(None, alias, other.lower()).ratio() for alias in NAMES[name]), name, other)
        for name in missing
        for other in held
        if other not in all_aliases
    ]
    matches: dict[str, str] = {}
    for ratio, name, other in sorted(pairs, reverse=True):
        if ratio >= SIMILAR and name not in matches and other not in matches.values():
            matches[name] = other
    return {name: matches[name] for name in missing if name in matches}


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _arrays(data: Mapping[str, Any], where: str, *, is_episode: bool) -> dict[str, Any]:
    """Return {"obs", "action", "reward", "next_obs", "terminated", "ended", "left_out"} of consecutive steps.

    is_episode: the steps are one whole episode, which may have one more observation than steps.
    """
    if not all(_has(data, name) for name in NEEDED):
        raise _missing(where, data, NEEDED)
    arrays = _named(data, where)
    reward = _column(arrays["rewards"], f"{where}: rewards").astype(np.float64)
    steps = len(reward)
    action = arrays["actions"]
    terminated = _flags(arrays["terminals"], f"{where}: terminals")
    cut = _flags(arrays.get("timeouts", np.zeros(steps, bool)), f"{where}: timeouts")
    lengths = {"actions": len(action), "terminals": len(terminated), "timeouts": len(cut)}
    obs, later = (trees.untuple(arrays.get(name)) for name in ("observations", "next_observations"))
    count = trees.count_rows(obs)
    lengths |= {"observations": count - (is_episode and count == steps + 1)}
    lengths |= {} if later is None else {"next_observations": trees.count_rows(later)}
    masks = {
        role: arrays.get(name) for role, name in (("obs_mask", "action_masks"), ("next_mask", "next_action_masks"))
    }
    lengths |= {name: len(mask) for name, mask in masks.items() if mask is not None}
    wrong = {name: length for name, length in lengths.items() if length != steps}
    if wrong:
        raise ShapeError(f"{where} has {steps} rewards, but {wrong}. fix: one row of each for every step.")
    ended = terminated | cut
    if is_episode and steps:
        ended[-1] = True
    keep = np.ones(steps, bool)
    if later is None and count == steps + 1:
        later = trees.map_leaves(lambda x: x[1:], obs)
    elif later is None:
        follows = ~ended
        follows[-1:] = False
        keep = follows | terminated
        index = np.where(follows, np.arange(steps) + 1, np.arange(steps))  # unused for terminal steps
        later = trees.map_leaves(lambda x: x[index], obs)
    obs = trees.map_leaves(lambda x: x[:steps][keep], obs)
    later = trees.map_leaves(lambda x: x[keep], later)
    ended = _ends_before(ended, keep)
    rest = {"reward": reward[keep], "terminated": terminated[keep], "ended": ended, "left_out": int((~keep).sum())}
    for role, mask in masks.items():
        if mask is not None and not np.isin(mask, (0, 1)).all():
            name = "action_masks" if role == "obs_mask" else "next_action_masks"
            raise ShapeError(f"{where}: {name} hold other numbers than 0 and 1. fix: 1 = legal and 0 = not.")
        rest[role] = None if mask is None else np.asarray(mask, bool)[keep]
    missing = [name for name in WANTED if name not in arrays and not (is_episode and name == "timeouts")]
    missing = [name for name in missing if not (name == "next_observations" and count == steps + 1)]
    return {"obs": obs, "next_obs": later, "action": action[keep], "missing": tuple(missing), "where": where, **rest}


def _named(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Load the arrays under their standard names.

    Raises:
        ConfigError: an unknown array, or two names of one array with different values.
    """
    accepted = [alias for aliases in NAMES.values() for alias in aliases]
    is_robomimic = isinstance(data.get("obs"), Mapping)  # its `states` are the simulator's
    for name in map(str, data):
        is_beside = name.split("/")[0] in BESIDE or (is_robomimic and name == "states")
        if name not in accepted and not is_beside:
            otherwise = f"leave it out, or name it 'infos/{name}' to have it ignored"
            raise ConfigError(f"{where}: {unknown_choice('array', name, accepted, otherwise)}")
    arrays: dict[str, Any] = {}
    for name, aliases in NAMES.items():
        present = [alias for alias in aliases if alias in data and not (is_robomimic and alias == "states")]
        values = [_array(data[alias], f"{where}: {alias}") for alias in present]
        for alias, value in zip(present[1:], values[1:], strict=True):
            if not _is_same(values[0], value):
                raise ConfigError(
                    f"{where}: {present[0]!r} and {alias!r} are both names of the {name}, and their values differ. "
                    "fix: only one of them."
                )
        if values:
            arrays[name] = values[0]
    return arrays


def _is_same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays, or trees of them, hold the same rows; [N] and [N, 1] are the same."""
    pair = [[leaf.reshape(len(leaf), -1) for leaf in trees.leaves(part)] for part in (one, other)]
    return len(pair[0]) == len(pair[1]) and all(map(np.array_equal, *pair))


def _ends_before(ended: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """`ended` of the rows that are kept: a row whose successor is dropped is the last one of its episode."""
    flags = ended.copy()
    flags[:-1] |= ~keep[1:]
    remaining: np.ndarray = flags[keep]
    return remaining


def _array(value: Any, where: str) -> Any:
    """Load a whole numeric array, or a dict or tuple of them.

    Raises:
        ShapeError: strings, complex numbers, objects, masked entries, or rows of unequal length; `where` is named in
            the message.
    """
    if isinstance(value, Mapping):
        return {str(name): _array(part, f"{where}, {name}") for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_array(part, f"{where}, {number}") for number, part in enumerate(value))
    if np.ma.is_masked(value):
        raise ShapeError(f"{where} have masked entries. fix: leave those steps out, or array.filled(0.0).")
    try:
        array = np.asarray(value[()] if hasattr(value, "id") else value)  # HDF5: a single read
        array = np.array(array.tolist()) if array.dtype == object else array
    except (TypeError, ValueError):
        raise ShapeError(f"{where} have rows of unequal length. fix: rows of one shape, one for each step.") from None
    if array.dtype.kind not in "biuf":
        kind = {"U": "texts", "S": "texts", "c": "complex numbers", "O": "objects"}.get(array.dtype.kind, "no numbers")
        raise ShapeError(f"{where} must be real numbers; got {kind} ({array.dtype}). fix: floats or integers.")
    if not array.ndim:
        raise ShapeError(f"{where} must be a row for every step; got one number. fix: an array [N, ...].")
    return array


def _column(value: Mapping[str, Any] | np.ndarray, where: str) -> np.ndarray:
    """Return one number per step [N], from [N] or [N, 1]."""
    if not isinstance(value, np.ndarray) or not value.ndim or any(length != 1 for length in value.shape[1:]):
        got = f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        raise ShapeError(f"{where} must be one number for each step, [N] or [N, 1]; got {got}. fix: one for each step.")
    return value.reshape(-1)


def _flags(value: np.ndarray, where: str) -> np.ndarray:
    """Return one boolean per step [N]."""
    column = _column(value, where)
    wrong = (column != 0) & (column != 1)
    if wrong.any():
        raise ShapeError(f"{where} must be 0 or 1; got {column[wrong][0]} in row {np.argmax(wrong)}. fix: booleans.")
    return column.astype(bool)


def _layout(rows: Any) -> Any:
    """Shape of one row, or a dict of them for nested rows."""
    if isinstance(rows, Mapping):
        return {name: _layout(rows[name]) for name in sorted(rows)}
    return list(rows.shape[1:])


def _check_alike(parts: Sequence[Mapping[str, Any]]) -> None:
    """Raise ShapeError for episodes whose rows differ in shape, or of which only some have masks."""
    roles = {"obs": "observations", "action": "actions", "obs_mask": "action_masks", "next_mask": "next_action_masks"}
    for role, name in roles.items():
        first, *layouts = [None if part[role] is None else _layout(part[role]) for part in parts]
        for part, layout in zip(parts[1:], layouts, strict=True):
            if layout != first:
                what, other = (f"no {name}" if x is None else f"{name} with rows of shape {x}" for x in (layout, first))
                raise ShapeError(
                    f"{part['where']} has {what}, and {parts[0]['where']} has {other}. "
                    "fix: the same arrays and shapes in all episodes."
                )


def _joined(parts: Sequence[Mapping[str, Any]], source: Mapping[str, Any] | None) -> Dataset:
    _check_alike(parts)
    names: tuple[str, ...] = ("obs", "action", "reward", "next_obs", "terminated", "ended")
    names += tuple(name for name in ("obs_mask", "next_mask") if parts[0][name] is not None)
    whole = {
        name: trees.map_leaves(lambda *x: np.concatenate(x), *(part[name] for part in parts)) if len(parts) > 1
        else parts[0][name]
        for name in names
    }  # fmt: skip
    left_out, missing = sum(part["left_out"] for part in parts), [name for part in parts for name in part["missing"]]
    if source is None:
        digest = hashlib.sha256()
        for leaf in trees.leaves(whole):
            digest.update(np.ascontiguousarray(leaf).tobytes())
        source = {"sha256": digest.hexdigest()}
    return Dataset(**whole, left_out=left_out, source=source, missing=tuple(dict.fromkeys(missing)))
