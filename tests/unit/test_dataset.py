"""Data sets: what follows on what, where episodes end, which steps have no successor, and what a set may look like."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agilerl.errors import ConfigError, ShapeError
from agilerl.sources.dataset import read_dataset, read_minari


def steps(**more: Any) -> dict[str, np.ndarray]:
    """Six steps: an end after the second, a cut after the fourth, and the data stop after the sixth."""
    return {
        "observations": np.arange(6, dtype=np.float32)[:, None],
        "actions": np.array([0, 1, 0, 1, 0, 1]),
        "rewards": np.arange(1.0, 7.0),
        "terminals": np.array([0, 1, 0, 0, 0, 0], bool),
        "timeouts": np.array([0, 0, 0, 1, 0, 0], bool),
        **more,
    }


def test_a_step_without_a_successor_is_left_out_unless_it_is_terminal() -> None:
    data = read_dataset(steps())
    assert data.obs[:, 0].tolist() == [0, 1, 2, 4]  # the cut one and the last one have nothing to bootstrap from
    assert data.next_obs[[0, 2, 3], 0].tolist() == [1, 3, 5]
    assert data.terminated.tolist() == [False, True, False, False]
    assert data.left_out == 2


def test_rows_of_different_episodes_never_follow_on_one_another() -> None:
    data = read_dataset(steps())
    assert data.ended.tolist() == [False, True, True, True]
    assert data.returns().tolist() == [3.0, 3.0, 5.0]


def test_given_successors_keep_every_step() -> None:
    later = np.array([[1], [9], [3], [8], [5], [7]], np.float32)
    data = read_dataset(steps(next_observations=later))
    assert len(data) == 6
    assert data.left_out == 0
    assert data.next_obs[:, 0].tolist() == [1, 9, 3, 8, 5, 7]


def test_without_timeouts_the_data_are_one_episode_after_another() -> None:
    given = steps()
    del given["timeouts"]
    data = read_dataset(given)
    assert data.obs[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert data.left_out == 1


def test_episodes_bring_their_last_observation() -> None:
    one = {"observations": np.arange(3.0)[:, None], "actions": [0, 1], "rewards": [1, 2], "terminations": [0, 0]}
    two = {"observations": np.arange(7.0, 9)[:, None], "actions": [1], "rewards": [5], "terminations": [1]}
    data = read_dataset([one, two])
    assert data.next_obs[:, 0].tolist() == [1, 2, 8]
    assert data.ended.tolist() == [False, True, True]
    assert data.left_out == 0


@pytest.mark.parametrize("kind", ["npz", "h5", "nested", "episodes"])
def test_files_of_every_kind_hold_the_same(kind: str, tmp_path: Path) -> None:
    h5py, given = pytest.importorskip("h5py"), steps()
    path = tmp_path / ("data.npz" if kind == "npz" else "data.h5")
    if kind == "npz":
        np.savez(path, **given)
    else:
        parts = (slice(0, 2), slice(2, 4), slice(4, 6)) if kind == "episodes" else (slice(None),)
        with h5py.File(path, "w") as file:
            for number, part in enumerate(parts):
                group = file if kind == "h5" else file.create_group(f"group_{number}")
                for name, values in given.items():
                    group[name] = values[part]
    data, known = read_dataset(path), read_dataset(given)
    for name in ("obs", "action", "reward", "next_obs", "terminated", "ended"):
        assert np.array_equal(getattr(data, name), getattr(known, name)), name
    assert data.source["bytes"] == path.stat().st_size
    assert len(data.source["sha256"]) == 64


def test_the_hash_of_arrays_is_that_of_their_contents() -> None:
    first, same = read_dataset(steps()), read_dataset(steps())
    other = read_dataset(steps(rewards=np.zeros(6)))
    assert first.source == same.source != other.source


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        ("nowhere.h5", ConfigError, "there is no data set nowhere.h5"),
        (3, ConfigError, "got int. fix: dataset="),
        (
            {k: v for k, v in steps().items() if k != "rewards"},
            ConfigError,
            "has no 'rewards'; it holds .*fix: add 'rewards', one row",
        ),
        (steps(rewards=np.zeros(5)), ShapeError, "has 5 rewards, but"),
        (steps(actions=np.zeros(4)), ShapeError, "{'actions': 4}"),
    ],
    ids=["no file", "no data", "no rewards", "rewards", "actions"],
)
def test_what_is_no_data_set_is_a_named_error(data: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said.replace("(", r"\(").replace("{", r"\{").replace("}", r"\}")):
        read_dataset(data)


def test_a_data_set_of_minari_has_what_was_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")

    class Store:
        """Two episodes, as Minari gives them: one observation more than steps."""

        def iterate_episodes(self) -> Iterator[Any]:
            for number, cut in enumerate((False, True)):
                yield SimpleNamespace(
                    observations=np.arange(3.0)[:, None] + 10 * number,
                    actions=np.array([0, 1]),
                    rewards=np.array([1.0, 2.0]),
                    terminations=np.array([False, not cut]),
                    truncations=np.array([False, cut]),
                )

    monkeypatch.setattr(minari, "load_dataset", lambda name, download: Store())
    data = read_minari("cartpole/tiny-v0")
    assert data.next_obs[:, 0].tolist() == [1, 2, 11, 12]  # what a time limit cut off bootstraps from its last one
    assert data.terminated.tolist() == [False, True, False, False]
    assert data.ended.tolist() == [False, True, False, True]
    assert data.source["minari"] == "cartpole/tiny-v0"


def test_a_data_set_of_minari_that_is_not_here_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="fix: minari download none/such-v0, or remote=True"):
        read_minari("none/such-v0")


def test_observations_in_tuples_are_named_as_replay_names_them() -> None:
    pair = (np.arange(6), np.arange(12.0).reshape(6, 2))
    data = read_dataset(steps(observations=pair))
    assert data.obs["tuple_obs_0"].tolist() == [0, 1, 2, 4]
    assert data.next_obs["tuple_obs_1"][0].tolist() == [2.0, 3.0]
    episode = {**steps(), "observations": pair}
    del episode["timeouts"]
    assert read_dataset([episode, episode]).obs["tuple_obs_1"].shape == (10, 2)


@pytest.mark.parametrize("count", [1, 3])
def test_groups_without_steps_are_ignored_and_episodes_lie_at_any_depth(count: int) -> None:
    """robomimic's layout: data/demo_i, and the names of episodes for training and testing in mask."""
    one = {
        "obs": {"eef": np.arange(3.0)[:, None]},
        "actions": np.zeros((3, 2)),
        "rewards": np.ones(3),
        "dones": [0, 0, 1],
    }
    data = {"data": {f"demo_{k}": one for k in range(count)}, "mask": {"train": np.array([b"demo_0"])}}
    read = read_dataset(data)
    assert len(read) == 3 * count
    assert read.obs["eef"].shape == (3 * count, 1)
    assert read.returns().tolist() == [3.0] * count


def test_a_lone_group_without_actions_is_named() -> None:
    with pytest.raises(ConfigError, match="has no 'observations', 'actions', 'rewards', 'terminals'; it holds"):
        read_dataset({"mask": {"train": np.zeros(2)}, "data": {"demo_0": {"obs": np.zeros(3)}}})


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (
            ("obs", "act", "rew", "done"),
            "the data set has no 'actions', 'rewards'; it holds act, done, obs, rew, timeouts. Are 'act', 'rew' meant? "
            "fix: rename 'act' to 'actions', rename 'rew' to 'rewards'.",
        ),
        (("Observation", "actions", "reward", "dones"), "Is 'Observation' meant? fix: rename 'Observation' to 'obser"),
        (("obs", "u", "rew", "done"), "fix: rename 'rew' to 'rewards', add 'actions', one row for every step."),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_arrays_of_other_names_are_asked_to_be_renamed(names: tuple[str, ...], told: str) -> None:
    given = dict(zip((*names, "timeouts"), steps().values(), strict=True))
    with pytest.raises(ConfigError) as error:
        read_dataset(given)
    assert told in str(error.value)


@pytest.mark.parametrize(("name", "reader"), [("log.csv", "read_csv"), ("log.parquet", "read_parquet")])
def test_a_table_is_told_how_it_is_converted(name: str, reader: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ConfigError, match=rf"is a table.* fix: numpy.savez\('log.npz', .*pandas.{reader}"):
        read_dataset(tmp_path / name)
