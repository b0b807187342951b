"""Arrays of a data set under wrong names, under two names at once, and of different shapes in its episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agilerl
from agilerl.data.dataset import read_dataset
from agilerl.errors import AgileRLWarning, ConfigError, ShapeError

STEPS = 6


def steps(**more: Any) -> dict[str, Any]:
    return {
        "observations": np.arange(STEPS, dtype=np.float32)[:, None],
        "actions": np.zeros(STEPS, np.int64),
        "rewards": np.ones(STEPS),
        "terminals": np.zeros(STEPS, bool),
        **more,
    }


ROW = np.zeros((STEPS, 1), np.float32)
MISSPELT = {  # name -> the accepted name that is meant
    "timeout": "timeouts", "Timeouts": "timeouts", "truncation": "truncations", "next_observation": "next_observations",
    "next_state": "next_states", "nextobs": "next_obs", "action_mask": "action_masks",
    "next_action_mask": "next_action_masks", "observation": "observations", "termination": "terminations",
}  # fmt: skip


@pytest.mark.parametrize("form", ["mapping", "episodes", "npz", "h5"])
@pytest.mark.parametrize("name", MISSPELT)
def test_misspelt_arrays_are_named_with_the_nearest_name(name: str, form: str, tmp_path: Path) -> None:
    given: Any = steps(**{name: ROW})
    where = "episode 1" if form == "episodes" else "the data set"
    if form == "episodes":
        given = [steps(), given]
    elif form == "npz":
        np.savez(tmp_path / "data.npz", **given)
        given = tmp_path / "data.npz"
    elif form == "h5":
        with pytest.importorskip("h5py").File(tmp_path / "data.h5", "w") as file:
            for key, values in given.items():
                file[key] = values
        given = tmp_path / "data.h5"
    with pytest.raises(ConfigError) as error:
        read_dataset(given)
    assert f"{where}: unknown array {name!r}. Did you mean {MISSPELT[name]!r}?" in str(error.value)
    assert f"fix: {MISSPELT[name]} or " in str(error.value)


def test_unknown_arrays_without_a_similar_name_are_named() -> None:
    with pytest.raises(ConfigError, match=r"unknown array 'zzz'\. \(known: .*'infos/zzz'"):
        read_dataset(steps(zzz=ROW))


BESIDE = {
    "D4RL": {"infos/qpos": ROW, "infos/goal": ROW, "metadata/algorithm": np.array(b"SAC"), "metadata/iteration": 3},
    "D4RL, groups": {"infos": {"qpos": ROW, "timeout": ROW}, "metadata": {"policy": {"fc0": {"weight": ROW}}}},
    "Minari": {"infos": {}, "id": 3, "seed": 1, "options": None, "total_steps": 6},
    "d3rlpy": {"discrete_action": np.array(True), "episode_terminals": ROW, "version": "1.0"},
}


@pytest.mark.parametrize("kind", BESIDE)
def test_what_known_data_sets_hold_beside_their_steps_is_ignored(kind: str) -> None:
    plain = read_dataset(steps())
    for given in (steps(**BESIDE[kind]), [steps(**BESIDE[kind])]):
        assert read_dataset(given).obs.tolist() == plain.obs.tolist()


def test_the_simulator_states_of_robomimic_are_ignored() -> None:
    demo = {"obs": {"eef": ROW}, "next_obs": {"eef": ROW}, "states": np.ones((STEPS, 9))}
    demo |= {"actions": ROW, "rewards": np.ones(STEPS), "dones": np.zeros(STEPS)}
    assert read_dataset({"data": {"demo_0": demo, "demo_1": demo}}).obs["eef"].shape == (2 * STEPS, 1)


TWICE = {
    "terminals and dones": ({"dones": np.ones(STEPS, bool)}, "'terminals' and 'dones' are both names of the terminals"),
    "rewards and reward": ({"reward": np.zeros(STEPS)}, "'rewards' and 'reward' are both names of the rewards"),
    "observations and states": ({"states": ROW}, "'observations' and 'states' are both names of the observations"),
    "two widths": ({"obs": np.zeros((STEPS, 3))}, "'observations' and 'obs' are both names of the observations"),
    "timeouts and truncated": (
        {"timeouts": np.zeros(STEPS), "truncated": np.ones(STEPS)}, "'timeouts' and 'truncated' are both names of",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TWICE)
def test_two_names_of_one_array_with_different_values_are_named(case: str) -> None:
    more, message = TWICE[case]
    for given in (steps(**more), [steps(), steps(**more)]):
        with pytest.raises(ConfigError, match=rf"{message}.*their values differ\. fix: only one of them\."):
            read_dataset(given)


def test_two_names_of_one_array_with_the_same_values_are_read() -> None:
    same = steps(obs=np.arange(STEPS)[:, None], dones=np.zeros((STEPS, 1)), reward=np.ones((STEPS, 1)))
    assert read_dataset(same).obs.tolist() == read_dataset(steps()).obs.tolist()


UNLIKE = {
    "observations": (
        {"observations": np.zeros((STEPS, 3))},
        r"rows of shape \[3\], and .* observations with rows of shape \[1\]",
    ),
    "parts": (
        {"observations": {"a": ROW}},
        r"rows of shape \{'a': \[1\]\}, and .* observations with rows of shape \[1\]",
    ),
    "actions": ({"actions": ROW}, r"actions with rows of shape \[1\], and .* has actions with rows of shape \[\]"),
    "masks": (
        {"action_masks": np.ones((STEPS, 2))},
        r"action_masks with rows of shape \[2\], and .* has no action_masks",
    ),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_episodes_of_different_shapes_are_named(case: str) -> None:
    more, message = UNLIKE[case]
    with pytest.raises(ShapeError, match=f"episode 2 has .*{message}.* fix: the same arrays and shapes"):
        read_dataset([steps(), steps(), steps(**more)])
    with pytest.raises(ShapeError, match=f"episode_2 has .*{message}"):
        read_dataset({"episode_1": steps(), "episode_2": steps(**more)})


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32, np.uint64, np.int8])
def test_actions_may_be_integers_of_any_size(kind: Any) -> None:
    data = {**steps(), "observations": np.zeros((STEPS, 4), np.float32), "actions": np.ones(STEPS, kind)}
    run = agilerl.train(
        "CartPole-v1", "CQN", dataset=data, population=1, steps=5, batch_size=4, out=None, verbose=False
    )
    assert run.result["updates"] == 5


def test_data_of_fewer_rows_than_a_batch_are_named() -> None:
    data = {**steps(), "observations": np.zeros((STEPS, 4), np.float32)}
    says = r"batch_size=8 is more than the 5 rows of the data.*learn nothing\. fix: batch_size=5 or less"
    with pytest.warns(AgileRLWarning, match=says):
        agilerl.train("CartPole-v1", "CQN", dataset=data, population=1, steps=5, batch_size=8, out=None, verbose=False)


def test_masked_entries_are_named() -> None:
    rewards = np.ma.masked_array(np.ones(STEPS), mask=[0, 1, 0, 0, 0, 0])
    with pytest.raises(ShapeError, match=r"rewards have masked entries.*fix: leave those steps out"):
        read_dataset(steps(rewards=rewards))
    assert len(read_dataset(steps(rewards=np.ma.masked_array(np.ones(STEPS)))))
