"""Data sets: what follows on what, where episodes end, which steps have no successor, and what a set may look like."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.algorithms import find_algorithm
from agilerl.collect.offline import OfflineCollector, fill
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.options import OfflineOptions
from agilerl.core.spaces import mask_width
from agilerl.data.dataset import read_dataset, read_minari
from agilerl.envs.simulators.wordle import Wordle, wordle_data
from agilerl.errors import ConfigError, ReplayError, ShapeError


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


REWARDS: dict[str, tuple[Any, str]] = {
    "texts": (np.array(["1.0"] * 6), r"the data set: rewards must be real numbers; got texts \(<U3\)"),
    "bytes": (np.array([b"1"] * 6), r"rewards must be real numbers; got texts"),
    "complex": (np.ones(6, complex), r"got complex numbers \(complex128\)"),
    "objects": (np.array([object()] * 6), r"got objects \(object\)"),
    "None": ([1.0, None, 1.0, 1.0, 1.0, 1.0], r"got objects \(object\)"),
    "dates": (np.zeros(6, "datetime64[s]"), r"got no numbers \(datetime64\[s\]\)"),
    "unequal rows": ([[1.0], [1.0, 2.0], [1.0], [1.0], [1.0], [1.0]], "rewards have rows of unequal length"),
    "two columns": (np.ones((6, 2)), r"rewards must be one number for each step, \[N\] or \[N, 1\]; got .*\(6, 2\)"),
    "one number": (np.float64(1), r"rewards must be a row for every step; got one number"),
    "a mapping": ({"a": np.ones(6)}, "rewards must be one number for each step.*got a dict"),
}


@pytest.mark.parametrize("case", REWARDS)
def test_rewards_that_are_no_numbers_are_named(case: str) -> None:
    value, message = REWARDS[case]
    with pytest.raises(ShapeError, match=f"{message}.*fix: "):
        read_dataset(steps(rewards=value))
    with pytest.raises(ShapeError, match=f"episode 1.*{message.removeprefix('the data set: ')}.*fix: "):
        read_dataset([steps(), steps(rewards=value)])


@pytest.mark.parametrize("name", ["observations", "actions", "terminals", "timeouts", "action_masks"])
@pytest.mark.parametrize("case", ["texts", "complex", "objects", "unequal rows"])
def test_other_arrays_that_are_no_numbers_are_named(name: str, case: str) -> None:
    value = REWARDS[case][0]
    with pytest.raises(ShapeError, match=rf"the data set: {name} (must be real numbers; got|have rows of unequal)"):
        read_dataset(steps(**{name: value}))
    if name == "observations":
        with pytest.raises(ShapeError, match=r"the data set: observations, a (must be real numbers; got|have rows of)"):
            read_dataset(steps(observations={"a": value}))


@pytest.mark.parametrize("name", ["terminals", "timeouts"])
@pytest.mark.parametrize("value", [2, -1, np.nan, 0.5])
def test_ends_are_truth_values(name: str, value: float) -> None:
    with pytest.raises(ShapeError, match=rf"{name} must be 0 or 1; got {value}.* in row 3\. fix: booleans"):
        read_dataset(steps(**{name: np.array([0, 0, 0, value, 0, 0])}))


def test_numbers_in_arrays_of_objects_are_numbers() -> None:
    given = steps(rewards=np.array([1, 2.0, True, 4, 5, 6], object))
    assert read_dataset(given).reward.tolist() == [1.0, 2.0, 1.0, 5.0]


@pytest.mark.parametrize("algo", ["BC", "BC_LM", "CQL", "CQN", "ILQL", "IQL", "TD3BC"])
def test_every_offline_algorithm_names_rewards_that_are_not_finite(algo: str) -> None:
    kind: Any = find_algorithm(algo)
    if kind.reads_texts:
        env, given = Wordle(words=6, tries=2), wordle_data(6, words=6, tries=2, seed=1)
        agent = kind(env.observation_space, env.action_space)
    else:
        box, space = spaces.Box(-1, 1, (1,)), spaces.Discrete(2) if algo == "CQN" else spaces.Box(-1, 1, (1,))
        agent = kind(box, space)
        zero = np.zeros((6, 1), np.float32)
        given = steps(observations=zero, next_observations=zero, actions=np.zeros((6, *space.shape), space.dtype))
    given["rewards"] = np.array(given["rewards"], float)
    given["rewards"][2] = np.nan
    with pytest.raises(ReplayError, match=r"the data set's rewards are not finite in 1 of .*row \d first.*fix: "):
        fill(ReplayBuffer(10), read_dataset(given), agent, OfflineOptions(max_steps=1, evo_steps=1))


# --- masks in observations --------------------------------------------------------------------------------------------

CHOICES: dict[str, Any] = {"Discrete": spaces.Discrete(3), "MultiDiscrete": spaces.MultiDiscrete([2, 3])}
OF_CHOICES = [(algo, kind) for algo in ("BC", "CQN") for kind in CHOICES if kind in find_algorithm(algo).action_spaces]
OFFLINE = OfflineOptions(max_steps=1, evo_steps=1)


def masked_steps(space: Any, *, in_observations: bool, later: bool = True) -> dict[str, Any]:
    """Six steps whose masks allow what was done, beside the observations or in arrays."""
    width, rng = mask_width(space), np.random.default_rng(0)
    masks, following = rng.random((2, 6, width)) < 0.5
    masks[:, :: 2 if width > 3 else 1] = masks[:, -1:] = True
    following[:, :: 2 if width > 3 else 1] = following[:, -1:] = True
    following[1] = False  # a terminal step has no action after it
    seen, shown = rng.normal(size=(2, 6, 2)).astype(np.float32)
    given = steps(observations=seen, actions=np.zeros((6, *space.shape), np.int64))
    if later:
        given["next_observations"] = shown
    if not in_observations:
        following[1] = True
        return {**given, "action_masks": masks, **({"next_action_masks": following} if later else {})}
    given["observations"] = {"observation": seen, "action_mask": masks.astype(np.int8)}
    if later:
        given["next_observations"] = {"observation": shown, "action_mask": following.astype(np.int8)}
    return given


def filled(algo: str, space: Any, given: Any) -> ReplayBuffer:
    memory = ReplayBuffer(10)
    fill(memory, read_dataset(given), find_algorithm(algo)(spaces.Box(-9, 9, (2,)), space), OFFLINE)
    return memory


@pytest.mark.parametrize(("algo", "kind"), OF_CHOICES)
def test_masks_in_observations_are_read_as_masks(algo: str, kind: str) -> None:
    space = CHOICES[kind]
    inside, beside = (filled(algo, space, masked_steps(space, in_observations=way)) for way in (True, False))
    one, other = (memory.gather(memory.in_order()) for memory in (inside, beside))
    assert "next_mask" in one.keys() and set(one.keys()) == set(other.keys())  # noqa: PT018, SIM118
    for name in other.keys():  # noqa: SIM118
        assert torch.equal(one[name], other[name]), name


@pytest.mark.parametrize(("algo", "kind"), OF_CHOICES)
def test_masks_of_components_on_disk_are_read_too(algo: str, kind: str, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    space, given = CHOICES[kind], masked_steps(CHOICES[kind], in_observations=True, later=False)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        for name, part in given.items():
            if not isinstance(part, dict):
                file[name] = part
                continue
            file[f"{name}/observation"] = part["observation"]
            if kind == "Discrete":
                file[f"{name}/action_mask"] = part["action_mask"]
            else:
                file[f"{name}/action_mask/0"] = part["action_mask"][:, :2]
                file[f"{name}/action_mask/1"] = part["action_mask"][:, 2:]
    one, other = (filled(algo, space, way) for way in (tmp_path / "data.h5", given))
    for name, values in other.gather(other.in_order()).items():
        assert torch.equal(one.gather(one.in_order())[name], values), name


@pytest.mark.parametrize(("algo", "kind"), OF_CHOICES)
def test_agents_learn_from_data_with_masks_in_observations(algo: str, kind: str) -> None:
    space = CHOICES[kind]
    masked = spaces.Dict(observation=spaces.Box(-9, 9, (2,)), action_mask=spaces.MultiBinary(mask_width(space)))
    agent: Any = find_algorithm(algo)(masked, space, batch_size=4, seed=1)
    options = OfflineOptions(max_steps=4, evo_steps=4, fitness="fqe", held_out=0.4)
    source = OfflineCollector(None, ReplayBuffer(10), options, read_dataset(masked_steps(space, in_observations=True)))
    source.open([agent], 1)
    assert isinstance(source.memory.gather(source.memory.in_order())["obs"], torch.Tensor)


@pytest.mark.parametrize("algo", ["BC", "CQL", "IQL", "TD3BC"])
def test_masks_for_actions_without_choices_are_named(algo: str) -> None:
    given = masked_steps(CHOICES["Discrete"], in_observations=True)
    given["actions"] = np.zeros((6, 1), np.float32)
    with pytest.raises(ShapeError, match=r"the data set.*part 'action_mask' of observations.*none, since Box.*fix: "):
        filled(algo, spaces.Box(-1, 1, (1,)), given)


@pytest.mark.parametrize(("algo", "kind"), OF_CHOICES)
def test_masks_that_do_not_fit_are_named(algo: str, kind: str) -> None:
    given = masked_steps(CHOICES[kind], in_observations=True)
    given["observations"]["action_mask"] = given["observations"]["action_mask"][:, 1:]
    with pytest.raises(ShapeError, match=r"the data set, row 0: the part 'action_mask' of observations has .*fix: "):
        filled(algo, CHOICES[kind], given)


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
    with pytest.raises(ConfigError, match="fix: `minari download none/such-v0`"):
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
