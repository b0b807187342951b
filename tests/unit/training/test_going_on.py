"""Going on past a target, with other settings, from a folder that cannot be written; modules in the current folder."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import agilerl
from agilerl.api import build_manifest
from agilerl.cli.main import app
from agilerl.config import apply_overrides, dump_yaml, going_on, load_manifest, manifest_from
from agilerl.errors import AgileRLError, AgileRLWarning, ConfigError, RunError
from agilerl.runs.directory import RunDirectory, changes_in
from agilerl.training.loop import TrainingLoop
from agilerl.training.manifest.launch import resume_training

SHORT: dict[str, Any] = {
    "population": 1, "num_envs": 1, "training.evo_steps": 8, "eval_episodes": 1, "confirm_episodes": 0, "steps": 24,
    "elite_rescore_episodes": 0, "latent_dim": 8, "eval_steps": 4, "verbose": False,
}  # fmt: skip


def command(*arguments: Any) -> Any:
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_a_run_goes_on_past_its_target_and_its_configuration_is_no_damage(tmp_path: Path) -> None:
    run = agilerl.train("CartPole-v1", "DQN", out=tmp_path, target_score=1.0, **SHORT)
    assert (run.result["stopped"], run.result["env_steps_member"]) == ("target", 8)
    more = ("-q", "--test-episodes", 0)
    still = command("resume", run.path, "--steps", 32, "--test-episodes", 0)
    way_on = f"`agilerl resume {run.path} --set training.target_score=null` goes on"
    assert f"finished: it has reached its target of 1; {way_on}" in still.output
    again = command("resume", run.path, *more)
    assert "damaged" not in again.output
    on = command("resume", run.path, "--steps", 32, "--target", 1000, *more)
    assert "stop: budget" in on.output
    assert "damaged" not in on.output
    facts = load_manifest(run.path / "config.yaml").training
    assert (facts.target_score, facts.max_steps) == (1000.0, 32)
    none = command("resume", run.path, "--steps", 40, "--set", "training.target_score=null", *more)
    assert "(40 per member)" in none.output


def test_what_the_agents_were_made_with_is_not_changed_by_going_on() -> None:
    base = build_manifest("CartPole-v1", "DQN")
    assert going_on(base, ["training.eval_episodes=3"]).training.eval_episodes == 3
    ranges = "mutation.rl_hp_selection={lr: {min: 0.5, max: 0.9}}"  # members keep those that they were made with
    for setting in ("training.pop_size=9", "algorithm.lr=0.1", "network.latent_dim=9", "training.seed=4", ranges):
        with pytest.raises(ConfigError, match=r"resume --set cannot change .*fix: a key of training, mutation, tourn"):
            going_on(base, [setting])


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_rights_is_one_line(tmp_path: Path) -> None:
    run = agilerl.train("CartPole-v1", "DQN", out=tmp_path, **SHORT)
    run.path.chmod(0o500)
    result = command("resume", run.path)
    run.path.chmod(0o700)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1


def test_errors_of_the_system_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = agilerl.train("CartPole-v1", "DQN", out=tmp_path, **SHORT)

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device", str(run.path))

    with monkeypatch.context() as patched:
        patched.setattr("agilerl.runs.directory.write_atomic", full)
        patched.setattr("agilerl.training.manifest.launch.write_atomic", full)
        result = command("resume", run.path, "--steps", 32)
        assert result.exit_code == 2
        assert result.stderr.splitlines()[-1].endswith(
            "No space left on device. fix: make room, or check the rights there."
        )
    (run.path / "LOCK").unlink()
    (run.path / "LOCK").mkdir()
    with pytest.raises(
        AgileRLError, match=r"cannot be written \(Is a directory\), .* fix: its rights, or a copy of it"
    ):
        agilerl.resume(run.path)


def test_modules_of_the_current_folder_are_found_when_code_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    (tmp_path / "envs_of_mine.py").write_text(
        "import gymnasium as gym\n"
        "gym.register('FromHere-v0', entry_point='gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=9)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    result = command("train", "envs_of_mine:FromHere-v0", "--allow-code", "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert "# PPO on FromHere-v0" in result.stdout
    assert str(tmp_path) not in sys.path
    absent = command("train", "not_here:FromHere-v0", "--allow-code", "--dry-run")
    assert "or set PYTHONPATH." in absent.stderr


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("stepz", "Did you mean 'max_steps'?"),
        ("buffer_size", "Did you mean 'max_size'?"),
        ("learning_starts", "Did you mean 'learning_delay'?"),
        ("epsilon", "Did you mean 'eps_start' or 'eps_end'?"),
        ("pop_sise", "Did you mean 'pop_size'?"),
    ],
)
def test_the_nearest_name_is_the_nearest_in_meaning(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is not a known key") as caught:
        build_manifest("CartPole-v1", "DQN", overrides={name: 3})
    assert meant in str(caught.value)


def test_a_file_with_five_mistakes_reports_all() -> None:
    data = {
        "algorithm": "DQNN", "environment": {"num_env": 3}, "training": {"popsize": 4, "max_steps": -1},
        "network": {"encoder_config": {"channel_size": [3]}},
    }  # fmt: skip
    with pytest.raises(AgileRLError) as caught:
        manifest_from(data, "typo.yaml")
    said = str(caught.value)
    for part in ("DQNN", "num_env", "popsize", "max_steps must be", "image keys belong in network.encoder"):
        assert part in said, said


def test_the_test_of_an_agent_that_trains_on_is_dropped(tmp_path: Path) -> None:
    run = agilerl.train("CartPole-v1", "DQN", out=tmp_path, **SHORT)
    directory = RunDirectory(run.path)
    test = {"mean": 1.0, "iqm": 1.0, "ci95": [1.0, 1.0], "returns": [1.0], "episodes": 1}
    directory.update(result={"test": test})
    agilerl.resume(run.path, verbose=False)
    assert directory.facts()["result"]["test"] == test, "it has not trained"
    resumed = agilerl.resume(run.path, steps=32, verbose=False)
    assert directory.facts()["result"]["test"] is None
    assert "95% CI" not in repr(resumed)


def test_a_run_that_has_made_its_steps_makes_no_more(tmp_path: Path) -> None:
    """`stop_after` ends it at 24 of 64 steps; another budget goes on."""
    limits = {"training.max_steps": 64, "training.stop_after": 24}
    run = agilerl.train("CartPole-v1", "DQN", out=tmp_path, **{**SHORT, "steps": None, **limits})
    counts = ("generations", "env_steps_member", "stopped")
    ended = [run.result[name] for name in counts]
    assert ended == [3, 24, "minutes"]
    again = command("resume", run.path, "--test-episodes", 0)
    assert "finished: it has made its 24 steps; " in again.output
    assert f"agilerl resume {run.path} --set training.stop_after=null" in again.output
    assert [agilerl.load(run.path).result[name] for name in counts] == ended
    assert agilerl.resume(run.path, steps=48, verbose=False).result["env_steps_member"] == 48


def test_a_scale_of_rewards_may_begin_in_a_resumed_run(tmp_path: Path) -> None:
    run = agilerl.train("CartPole-v1", "DQN", out=tmp_path, **SHORT)
    with pytest.warns(AgileRLWarning, match="normalize_rewards False -> True"):
        resume_training(run.path, steps=32, settings=["training.normalize_rewards=true"], verbose=False)
    assert load_manifest(run.path / "config.yaml").training.normalize_rewards


def test_a_run_that_went_on_with_other_settings_is_not_replayed(tmp_path: Path) -> None:
    run = agilerl.train("CartPole-v1", "DQN", out=tmp_path, **SHORT)
    assert run.path is not None
    resume_training(run.path, verbose=False)
    agilerl.replay(run.path, out=None, verbose=False)
    agilerl.resume(run.path, steps=32, verbose=False)
    with pytest.warns(AgileRLWarning, match="will not equal one that never stopped"):
        resume_training(run.path, steps=40, settings=["training.eps_decay=0.5"], verbose=False)
    said = (
        r"resumed with other settings \(training.max_steps after generation 3; training.max_steps, training.eps_decay "
        r"after generation 4\).* fix: `agilerl train --config"
    )
    with pytest.raises(RunError, match=said):
        agilerl.replay(run.path, out=None, verbose=False)


@pytest.mark.parametrize(("error", "steps"), [(KeyboardInterrupt, 40), (ZeroDivisionError, 24)])
def test_settings_of_a_resume_that_is_interrupted_at_once_are_kept(
    error: type[BaseException], steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one that failed are not: they may be why."""
    run = agilerl.train("CartPole-v1", "DQN", out=tmp_path, **SHORT)
    assert run.path is not None

    def stop(loop: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "_generation", stop)
        with contextlib.suppress(error):
            agilerl.resume(run.path, steps=40, verbose=False)
    assert agilerl.resume(run.path, verbose=False).result["env_steps_member"] == steps


def test_a_run_whose_time_was_up_and_that_goes_on_is_not_replayed(tmp_path: Path) -> None:
    """Its last generation before was a shorter one."""
    run = agilerl.train("CartPole-v1", "DQN", out=tmp_path, **SHORT)
    timed = apply_overrides(load_manifest(run.path / "config.yaml"), {"training.stop_after": 24})
    (run.path / "config.yaml").write_text(dump_yaml(timed), encoding="utf-8")  # as a run in minutes writes it
    agilerl.resume(run.path, verbose=False)
    with pytest.raises(RunError, match=r"other settings \(training.stop_after after generation 3\)"):
        agilerl.replay(run.path, out=None, verbose=False)


def test_damaged_changes_in_a_record_are_none() -> None:
    whole = {"generation": 3, "settings": {"training.max_steps": 9}}
    for damaged in (None, 7, "x", {}, [None, 7, {}, {"generation": "3", "settings": {}}, {"generation": 3}]):
        assert changes_in({"changed": damaged}) == []
    assert changes_in({"changed": [{"generation": 3, "settings": 1}, whole]}) == [whole]
