"""Runs are resumed with the kernels that they were made with."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch

import agilerl
from agilerl.algorithms import CQN, DQN
from agilerl.engine.recipes import TDRecipe, recipe_of
from agilerl.engine.rows.native import kernels_named
from agilerl.errors import AgileRLWarning, RunError
from agilerl.native.library import library

needs_c = pytest.mark.skipif(library() is None, reason="no kernels were built for this machine")
SHORT: dict[str, Any] = {
    "population": 2, "evo_steps": 400, "seed": 5, "verbose": False, "training.eval_episodes": 1,
    "training.confirm_episodes": 0, "training.learning_delay": 100, "training.target_score": None,
}  # fmt: skip


def weights(run: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for agent in run.population for p in agent.actor.parameters()]


def trained(out: Path, steps: int) -> Any:
    return agilerl.train("CartPole-v1", "DQN", steps=steps, out=out, **SHORT)


def assert_equal(one: Any, other: Any) -> None:
    assert all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


@needs_c
def test_a_run_of_c_is_refused_where_c_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(tmp_path, 800)
    monkeypatch.setenv("AGILERL_NATIVE", "0")
    with pytest.raises(RunError, match=r"made with kernels in C \('native-\d+'\).*fix: allow_other_kernels=True"):
        agilerl.resume(run.path, steps=1200, verbose=False)
    with pytest.warns(AgileRLWarning, match=r"continues with other kernels \(native-\d+ -> torch\)"):
        assert agilerl.resume(run.path, steps=1200, verbose=False, allow_other_kernels=True).best is not None


@needs_c
def test_a_refused_resume_changes_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(tmp_path, 800)
    before = (run.path / "run.json").read_text()
    monkeypatch.setenv("AGILERL_NATIVE", "0")
    with pytest.raises(RunError, match="made with kernels in C"):
        agilerl.resume(run.path, steps=1200, verbose=False)
    assert (run.path / "run.json").read_text() == before


def test_a_loaded_agent_plays_the_episodes_of_the_trained_one(tmp_path: Path) -> None:
    run = trained(tmp_path, 800)
    first, second = agilerl.load(run.path).best, agilerl.load(run.path).best
    assert first.seed == second.seed == run.best.seed
    assert first.evaluate(episodes=3).returns == run.best.evaluate(episodes=3).returns


@needs_c
def test_kernels_of_another_version_are_refused() -> None:
    with pytest.raises(
        RunError, match=r"the kernels 'native-0'; this version .* 'native-\d+'.*fix: allow_other_kernels"
    ):
        kernels_named("native-0")


@pytest.mark.thorough
@needs_c
def test_a_run_of_torch_goes_on_in_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGILERL_NATIVE", "0")
    path = trained(tmp_path / "run", 800).path
    copy = shutil.copytree(path, tmp_path / "copy")
    resumed = agilerl.resume(path, steps=1600, verbose=False)
    monkeypatch.setenv("AGILERL_NATIVE", "1")
    assert_equal(agilerl.resume(copy, steps=1600, verbose=False), resumed)


@needs_c
def test_c_and_torch_learn_the_same_up_to_rounding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trained(tmp_path / "c", 400)
    monkeypatch.setenv("AGILERL_NATIVE", "0")
    second = trained(tmp_path / "torch", 400)
    pairs = list(zip(weights(first), weights(second), strict=True))
    assert any(not torch.equal(a, b) for a, b in pairs), "C did run"
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_a_subclass_that_overrides_the_update_has_no_recipe() -> None:
    class Own(DQN):
        def update(self, engine: Any, batch: Any) -> Any:
            return super().update(engine, batch)

    class Both(Own):
        def recipe(self) -> TDRecipe:
            return TDRecipe("actor", "optimizer", is_double=True)

    class Later(DQN):
        pass

    env = gym.make("CartPole-v1")
    spaces = env.observation_space, env.action_space
    assert recipe_of(Own(*spaces)) is None
    assert recipe_of(CQN(*spaces)) == TDRecipe("actor", "optimizer", conservative="alpha")
    assert recipe_of(Both(*spaces)) == TDRecipe("actor", "optimizer", is_double=True)
    assert recipe_of(Later(*spaces, double=True)) == TDRecipe("actor", "optimizer", is_double=True)
