"""`agilerl data make` and `data show`, and what `agilerl train --dataset` refuses: as one types it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import agilerl
from agilerl import errors
from agilerl.cli import app
from agilerl.data.dataset import read_dataset

SETS = ("training.evo_steps=10", "training.eval_episodes=1", "training.eval_steps=5", "training.confirm_episodes=0",
        "training.pop_size=2", "training.target_score=null")  # fmt: skip


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


def train(dataset: Path, out: Path, *more: str, env_id: str = "CartPole-v1", code: int = 0) -> str:
    sets = [word for setting in SETS for word in ("--set", setting)]
    named = ["--algo", "CQN", "--dataset", str(dataset), "--out", str(out), "--steps", "10", "--test-episodes", "0"]
    return run("train", env_id, *named, "-q", *sets, *more, code=code)


@pytest.fixture
def random_rows(tmp_path: Path) -> Path:
    path = tmp_path / "random.npz"
    run("data", "make", "CartPole-v1", "--policy", "random", "--rows", "400", "--seed", "3", "--out", str(path))
    return path


def test_a_set_is_made_and_described(tmp_path: Path) -> None:
    path = tmp_path / "random.h5"
    pytest.importorskip("h5py")
    said = run("data", "make", "CartPole-v1", "--policy", "random", "--rows", "400", "--seed", "3", "--out", str(path))
    assert "400 rows" in said
    assert "command   agilerl data make CartPole-v1 --policy random --rows 400 --seed 3 --out " in said
    assert f" --out {tmp_path / 'random-again.h5'}\n" in said
    assert "missing   nothing" in said
    shown = run("data", "show", str(path))
    assert shown == said
    found = json.loads(run("data", "show", str(path), "--json"))
    assert found["rows"] == 400
    assert found["about"]["env_id"] == "CartPole-v1"
    assert found["returns"]["mean"] == pytest.approx(read_dataset(path).returns()[:-1].mean())


def test_the_same_command_makes_the_same_file(tmp_path: Path, random_rows: Path) -> None:
    again = tmp_path / "again.npz"
    run("data", "make", "CartPole-v1", "--policy", "random", "--rows", "400", "--seed", "3", "--out", str(again))
    assert again.read_bytes() == random_rows.read_bytes()


def test_the_best_policy_of_a_run_is_recorded(tmp_path: Path, random_rows: Path) -> None:
    train(random_rows, tmp_path / "runs")
    trained = tmp_path / "runs/CartPole-v1/cqn-0001"
    path = tmp_path / "own.npz"
    run("data", "make", "CartPole-v1", "--policy", str(trained), "--rows", "50", "--noise", "0.5", "--out", str(path))
    data = read_dataset(path)
    assert data.about["policy"] == "best of CartPole-v1/cqn-0001"
    assert data.about["noise"] == 0.5
    best = agilerl.load(trained).best
    assert 0.5 < np.mean(best._greedy(data.obs) == data.action) < 1  # half of them at random, and half of those alike
    said = run("data", "make", "Acrobot-v1", "--policy", str(trained), "--rows", "5", "--out", "x.h5", code=2)
    assert "was trained in CartPole-v1, and the data set is to be of Acrobot-v1" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("CartPole-v1", "--policy", "expret", "--rows", "5", "--out", "new.h5"), "Did you mean 'expert'?"),
        (
            ("CartPole-v1", "--policy", "random", "--rows", "0", "--out", "new.h5"),
            "rows must be an integer of at least 1",
        ),
        (("CartPole-v1", "--policy", "random", "--rows", "5", "--out", "new.csv"), "ends in .h5, .hdf5, .npz"),
        (("Cartpole-v1", "--policy", "random", "--rows", "5", "--out", "new.h5"), "Did you mean 'CartPole-v1'?"),
        (("mpe2.simple_spread_v3", "--policy", "random", "--rows", "5", "--out", "new.h5"), "several agents"),
        (("CartPole-v1", "--policy", ".", "--rows", "5", "--algo", "DQN", "--out", "new.h5"), "needs none"),
    ],
    ids=["policy", "rows", "kind", "environment", "agents", "settings"],
)
def test_mistakes_are_named_and_leave_nothing(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in run("data", "make", *arguments, code=2)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_kept(random_rows: Path) -> None:
    before = random_rows.read_bytes()
    said = run("data", "make", "CartPole-v1", "--policy", "random", "--rows", "5", "--out", str(random_rows), code=2)
    assert "is there already. fix: another --out, or remove it." in said
    assert random_rows.read_bytes() == before


def test_resume_refuses_another_file_and_goes_on_with_the_same_one(tmp_path: Path, random_rows: Path) -> None:
    train(random_rows, tmp_path / "runs")
    trained, kept = tmp_path / "runs/CartPole-v1/cqn-0001", tmp_path / "kept.npz"
    shutil.move(random_rows, kept)
    assert "there is no data set" in run("resume", str(trained), "--steps", "20", "-q", code=2)
    run("data", "make", "CartPole-v1", "--policy", "random", "--rows", "400", "--seed", "4", "--out", str(random_rows))
    said = run("resume", str(trained), "--steps", "20", "-q", code=2)
    assert "the run learned from 400 rows" in said
    assert "fix: the same data." in said
    elsewhere = ("--set", f"training.dataset={kept}", "--test-episodes", "0", "-q")
    assert "20 per member" in run("resume", str(trained), "--steps", "20", *elsewhere)


def test_a_set_of_another_environment_trains_nothing(tmp_path: Path, random_rows: Path) -> None:
    said = train(random_rows, tmp_path / "runs", env_id="Acrobot-v1", code=2)
    assert "recorded in CartPole-v1, and the environment is Acrobot-v1" in said
    assert not list((tmp_path / "runs").glob("*/*"))


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("algorithm.learn_step=4",), "learn_step=4: ignored offline"),
        (("mutation.rl_hp_selection={learn_step: {min: 1, max: 9}}",), "learn_step in hp_config"),
        ((), None),
    ],
    ids=["given", "mutated", "neither"],
)
def test_a_learn_step_of_data_is_warned_of(
    sets: tuple[str, ...], said: str | None, tmp_path: Path, random_rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "_warned", set())
    output = train(random_rows, tmp_path / "runs", *(word for setting in sets for word in ("--set", setting)))
    if said is None:
        assert "warning" not in output
    else:
        assert output.count(said) == 1
        assert "fix: leave learn_step out." in output


def test_files_that_are_no_data_are_named(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    for name in ("text.h5", "text.npz"):
        (tmp_path / name).write_text("no data", encoding="utf-8")
        assert f"{name} cannot be read as" in run("data", "show", str(tmp_path / name), code=2)
    np.savez(tmp_path / "other.npz", observation=np.zeros(3), reward=np.zeros(3))
    said = run("data", "show", str(tmp_path / "other.npz"), code=2)
    assert (
        "Is 'observation' meant? fix: rename 'observation' to 'observations', add 'actions', 'terminals', one row"
        in said
    )
