"""Arrays as the data set of `agilerl.train`: kept as a file, trained from as by their path, found again."""

import json
import shutil
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest

import agilerl
from agilerl.api import continue_training
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.data.dataset import read_dataset
from agilerl.data.handed import HandedData
from agilerl.errors import ConfigError, ShapeError

ROWS = 60
SMALL = {"population": 2, "steps": 8, "evo_steps": 4, "eval_episodes": 1, "confirm_episodes": 0, "verbose": False}


def arrays(rows: int = ROWS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "obs": rng.uniform(-1, 1, (rows, 4)).astype(np.float32),
        "actions": rng.integers(0, 2, rows),
        "rewards": rng.normal(size=rows),
        "terminals": np.arange(rows) % 20 == 19,
        "timeouts": np.arange(rows) % 20 == 9,
    }


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


def test_arrays_train_as_their_file_does_and_are_kept(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **arrays())
    of_file = agilerl.train("CartPole-v1", "CQN", dataset=tmp_path / "data.npz", out=None, **SMALL)
    run = agilerl.train("CartPole-v1", "CQN", dataset=arrays(), out=tmp_path / "runs", **SMALL)
    assert run.history == of_file.history
    assert run.manifest.training.dataset == str(run.path / "dataset.h5")
    notes = notes_of(run.path)
    assert "data set: steps without a successor, left out: 3" in notes
    assert not list((tmp_path / "tmp").iterdir())
    again = agilerl.train("CartPole-v1", "CQN", config={"training": {"dataset": arrays()}}, out=None, **SMALL)
    assert again.history == run.history
    assert again.manifest.training.dataset is None  # its file is gone


def notes_of(path: Path) -> list[str]:
    return list(json.loads((path / "run.json").read_text())["notes"])


def test_a_run_with_arrays_goes_on_and_may_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = agilerl.train("CartPole-v1", "CQN", dataset=arrays(), **SMALL)
    whole = agilerl.train("CartPole-v1", "CQN", dataset=arrays(), out=None, **{**SMALL, "steps": 16})
    shutil.move("runs", "moved")
    moved = Path("moved", *run.path.parts[1:])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        longer = agilerl.resume(moved, steps=16, verbose=False)
    assert longer.history == whole.history
    assert longer.manifest.training.dataset == str(moved / "dataset.h5")
    child = continue_training(moved, steps=4, out="runs", verbose=False)
    assert child.manifest.training.dataset == str(moved / "dataset.h5")
    with pytest.raises(ConfigError, match=r"keeps no replay. fix: dataset='moved/.*dataset.h5'"):
        read_dataset(moved)


def test_a_file_of_the_users_is_never_taken(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **arrays())
    config = {"training": {"dataset": arrays(40)}}
    run = agilerl.train(
        "CartPole-v1", "CQN", dataset=tmp_path / "data.npz", config=config, out=tmp_path / "runs", **SMALL
    )
    assert (tmp_path / "data.npz").is_file()
    assert not (run.path / "dataset.h5").exists()


def memory() -> ReplayBuffer:
    data, kept = read_dataset(arrays()), ReplayBuffer(max_size=100, seed=0)
    kept.write(data.obs, data.action, data.reward, data.next_obs, data.terminated)
    return kept


FORMS = {
    "arrays": arrays,
    "lists": lambda: {name: part.tolist() for name, part in arrays().items()},
    "episodes": lambda: [arrays(10), arrays(15)],
    "group": lambda: {"data": arrays()},
    "parts": lambda: {**arrays(), "obs": {"a": arrays()["obs"], "b": np.zeros((ROWS, 2))}},
    "masks": lambda: {**arrays(), "action_masks": np.ones((ROWS, 2), bool), "next_action_masks": np.ones((ROWS, 2))},
    "memory": memory,
    "read": lambda: read_dataset(arrays()),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_file_of_every_form_is_read_as_the_form(form: str) -> None:
    given = read_dataset(FORMS[form]())
    with HandedData() as data:
        path = data.file_of(FORMS[form]())
        kept = read_dataset(path)
        assert data.holds(path)
    assert not Path(str(path)).exists()
    same = ("left_out", "missing", "is_stored")
    assert [getattr(kept, name) for name in same] == [getattr(given, name) for name in same]
    assert {k: v for k, v in kept.about.items() if k != "action_space"} == dict(given.about)
    ours, theirs = kept.arrays(), given.arrays()
    np.testing.assert_equal(ours, theirs)


WRONG = [
    (
        {"actions": [[1], [1, 2]] * 30},
        ShapeError,
        r"the data set: actions have rows of unequal length.*fix: rows of one shape",
    ),
    ({"actions": np.array(["left"] * ROWS)}, ShapeError, r"actions must be real numbers; got texts \(<U4"),
    ({"rewards": 3.0}, ShapeError, r"rewards must be a row for every step; got one number"),
    ({"rewards": np.ones(3)}, ShapeError, r"has 3 rewards, but .*fix: one row of each for every step"),
    ({"obs": np.zeros((ROWS, 3))}, ShapeError, r"observations are \[3\]; CQN was built for \[4\]"),
    ({"actions": np.full(ROWS, 7)}, ShapeError, "the data set has"),
    ({name: part[:0] for name, part in arrays().items()}, ConfigError, "holds no transition"),
]


@pytest.mark.parametrize(("wrong", "kind", "text"), WRONG, ids=[text[:20] for *_, text in WRONG])
def test_wrong_arrays_are_named_and_leave_nothing(wrong: dict, kind: type, text: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=text) as error:
        agilerl.train("CartPole-v1", "CQN", dataset={**arrays(), **wrong}, out=tmp_path / "runs", **SMALL)
    assert len(str(error.value)) < 500
    assert not list((tmp_path / "runs").glob("*"))
    assert not list((tmp_path / "tmp").iterdir())
