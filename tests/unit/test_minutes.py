"""A budget in minutes: as many steps as fit at the measured speed, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import agilerl
from agilerl.api import build_manifest
from agilerl.cli.main import app
from agilerl.errors import ConfigError
from agilerl.training import measured

SMALL: dict[str, Any] = {"num_envs": 4, "learn_step": 64, "evo_steps": 256, "population": 2}


def manifest(**more: Any) -> Any:
    settings = {name: value for name, value in SMALL.items() if name != "population"}
    return build_manifest("CartPole-v1", "PPO", preset=False, population=2, overrides={**settings, **more})


def test_the_budget_is_what_fits_at_the_measured_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by 4 s a look: a trial generation of 2 x 512 steps takes 4 s, so 256 steps a second. In 10
    minutes, with a quarter for evaluation, that is 122,880 steps, 61,440 of each member, 240 generations."""
    looks = iter(range(0, 4000, 4))
    monkeypatch.setattr(measured.time, "perf_counter", lambda: float(next(looks)))
    monkeypatch.setattr(measured, "run_manifest", pretended)
    assert measured.steps_in(manifest(), None, "cpu", 10.0) == (61_440, 256.0, 10.0)
    assert measured.steps_in(manifest(), None, "cpu", 0.01)[0] == 5 * 256, "five generations at least"


def pretended(trial: Any, env: Any, *, callbacks: Any, **rest: Any) -> None:
    """Two generations of a trial, as the callbacks hear of them."""
    assert (trial.training.max_steps, trial.training.evo_steps) == (1024, 512)
    assert trial.training.target_score is None
    for made in (1024, 2048):
        callbacks[0](type("Record", (), {"population_env_steps": made}))


def test_a_run_with_minutes_records_steps_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = agilerl.train("CartPole-v1", "PPO", preset=False, minutes=1e-4, seed=2, out=tmp_path, **SMALL)
    assert run.manifest.training.max_steps == 5 * 256
    said = capsys.readouterr().out
    assert "minutes: 1.3k steps of each member, at " in said
    assert agilerl.load(run.path).manifest.training.max_steps == 5 * 256


@pytest.mark.parametrize(("minutes", "said"), [(0, "must be above 0"), (float("nan"), "must be above 0")])
def test_no_minutes_at_all_are_a_mistake(minutes: float, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        agilerl.train("CartPole-v1", "PPO", preset=False, minutes=minutes, out=None, verbose=False)


def test_two_budgets_are_a_mistake() -> None:
    with pytest.raises(ConfigError, match="steps and minutes are both budgets"):
        agilerl.train("CartPole-v1", minutes=1, steps=100, out=None)
    done = CliRunner().invoke(app, ["train", "CartPole-v1", "--minutes", "1", "--steps", "100"])
    assert (done.exit_code, "both budgets" in done.output) == (2, True)


def test_a_dry_run_says_that_the_budget_is_measured() -> None:
    said = "# in place of training.max_steps: what fits into {} minutes, measured when it begins"
    untuned, tuned, asked = (
        CliRunner().invoke(app, ["train", *words, "--dry-run"]).output
        for words in (["FrozenLake-v1"], ["CartPole-v1"], ["CartPole-v1", "--minutes", "3"])
    )
    assert said.format(10) in untuned
    assert "minutes" not in tuned
    assert said.format(3) in asked
    assert "minutes" not in CliRunner().invoke(app, ["train", "FrozenLake-v1", "--steps", "100", "--dry-run"]).output
