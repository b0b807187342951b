"""Budgets are kept: the last generation is as long as what is left, PPO's to whole rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sinks import Kept
from typer.testing import CliRunner

import agilerl
from agilerl.cli.main import app

SMALL: dict[str, Any] = {
    "population": 2, "num_envs": 4, "eval_episodes": 1, "elite_rescore_episodes": 0, "confirm_episodes": 0,
    "out": None, "verbose": False, "latent_dim": 8, "batch_size": 8, "eval_steps": 5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "evo_steps", "per_generation"),
    [(100, 1000, [100]), (100, 40, [40, 80, 100]), (102, 40, [40, 80, 104]), (80, 40, [40, 80]), (3, 40, [4])],
)
def test_a_budget_is_kept_to_whole_vector_steps(steps: int, evo_steps: int, per_generation: list[int]) -> None:
    run = agilerl.train("CartPole-v1", "DQN", steps=steps, **{"training.evo_steps": evo_steps}, **SMALL)
    assert run.result["env_steps_member"] == per_generation[-1]
    assert run.result["env_steps_population"] == 2 * per_generation[-1]
    assert run.population[0].steps[:-1] == per_generation


@pytest.mark.parametrize(("steps", "made"), [(100, 128), (128, 128), (150, 192), (320, 320)])
def test_ppo_ends_with_the_first_whole_rollout_that_reaches_the_budget(steps: int, made: int) -> None:
    said = Kept()
    more: dict[str, Any] = {"learn_step": 64, "update_epochs": 1, "training.evo_steps": 128}
    run = agilerl.train("CartPole-v1", "PPO", steps=steps, sinks=[said], **more, **SMALL)
    assert run.result["env_steps_member"] == made
    notes = [note for note in said.plan.notes if "whole rollouts of 64 steps" in note]
    assert notes == ([] if steps == made else [
        f"a member learns from whole rollouts of 64 steps: the budget of {steps} steps ends at {made} or later"
    ])  # fmt: skip


def test_total_timesteps_is_taken_with_a_warning(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", "CartPole-v1", "--total-timesteps", "500", "--dry-run"])
    assert "max_steps: 500" in result.stdout
    assert "warning: --total-timesteps 500 is taken as --steps 500: the steps of ONE member" in result.stderr
    both = CliRunner().invoke(app, ["train", "CartPole-v1", "--total-timesteps", "500", "--steps", "5"])
    assert both.exit_code == 2
