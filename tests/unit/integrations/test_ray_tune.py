"""A population as a trial of Ray Tune: without Ray an error that names the fix, with it the bits of `agilerl.train`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import agilerl
from agilerl.errors import ConfigError, RunError

NAME = "agilerl.integrations.ray_tune"
SMALL = {
    "env": "CartPole-v1", "algo": "DQN", "population": 2, "steps": 900, "seed": 3, "evo_steps": 300, "num_envs": 4,
    "eval_episodes": 2, "confirm_episodes": 4, "learning_delay": 64, "device": "cpu",
}  # fmt: skip


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Later imports read the module anew."""
    sys.modules.pop(NAME, None)
    yield
    sys.modules.pop(NAME, None)


@pytest.mark.usefixtures("forgotten")
def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'needs Ray Tune .*fix: pip install "agilerl\[ray\]"'):
        importlib.import_module(NAME)


@pytest.mark.usefixtures("forgotten")
def test_an_old_ray_is_named_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    old, tune = ModuleType("ray"), ModuleType("ray.tune")
    old.__version__, old.tune = "2.51.2", tune
    monkeypatch.setitem(sys.modules, "ray", old)
    monkeypatch.setitem(sys.modules, "ray.tune", tune)
    with pytest.raises(ConfigError, match=r"needs Ray 2\.52 or newer; got 2\.51\.2\. fix: pip install"):
        importlib.import_module(NAME)


@pytest.fixture
def trainable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class; trials without a session write into `tmp_path`."""
    pytest.importorskip("ray.tune")
    module = importlib.import_module(NAME)
    monkeypatch.setattr(module.Trainable, "logdir", str(tmp_path / "trial"))
    return module.Trainable


def policy_and_births(run: str | Path) -> tuple[bytes, str]:
    return (Path(run) / "best" / "policy.safetensors").read_bytes(), (Path(run) / "evolution.jsonl").read_text()


def test_a_restored_trial_has_the_bits_of_one_run(trainable: Any, tmp_path: Path) -> None:
    whole = agilerl.train(**SMALL, out=tmp_path / "whole", verbose=False)
    first = trainable(dict(SMALL))
    result = first.step()
    assert (result["generation"], result["env_steps"], result["done"]) == (1, 600, False)
    assert result["fitness"] == max(whole.history[0])
    first.save_checkpoint(checkpoint := str(tmp_path / "checkpoint"))
    first.step()  # the trial goes on, its checkpoint does not

    second = trainable(dict(SMALL) | {"generations_per_step": 2})
    second.load_checkpoint(checkpoint)
    result = second.step()
    assert (result["generation"], result["env_steps"], result["done"]) == (3, 1800, True)
    assert result["evaluation_env_steps"] == whole.result["evaluation_env_steps"]
    assert whole.path is not None
    assert policy_and_births(result["path"]) == policy_and_births(whole.path)
    assert result["path"] != first.step()["path"]


def test_a_checkpoint_holds_no_pickle(trainable: Any, tmp_path: Path) -> None:
    trial = trainable(dict(SMALL) | {"steps": 300})
    trial.step()
    trial.save_checkpoint(str(tmp_path / "checkpoint"))
    kinds = {path.suffix for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()}
    assert ".safetensors" in kinds
    assert not kinds & {".pkl", ".pickle", ".pt", ".pth"}


def test_a_target_ends_the_trial(trainable: Any) -> None:
    result = trainable(dict(SMALL) | {"target": 1.0, "confirm_episodes": 0, "stop_margin": 0}).step()
    assert (result["generation"], result["done"]) == (1, True)


def test_a_checkpoint_before_the_first_step_starts_anew(trainable: Any, tmp_path: Path) -> None:
    trainable(dict(SMALL)).save_checkpoint(folder := str(tmp_path))
    restored = trainable(dict(SMALL))
    restored.load_checkpoint(folder)
    assert restored.step()["generation"] == 1


def test_settings_that_change_at_a_checkpoint_are_an_error(trainable: Any, tmp_path: Path) -> None:
    """As with Tune's PBT: a resumed run follows its own record, and the new values would be ignored."""
    trainable(dict(SMALL) | {"lr": 1e-3}).save_checkpoint(str(tmp_path))
    with pytest.raises(RunError, match=r"other settings \(lr\)"):
        trainable(dict(SMALL) | {"lr": 2e-3}).load_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("minutes", 3, r"sets minutes itself"),
        ("out", "runs", r"sets out itself"),
        ("generations_per_step", 0, r"at least 1; got 0"),
    ],
)
def test_mistakes_are_named_before_training(trainable: Any, key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trainable(dict(SMALL) | {key: value})


@pytest.mark.thorough
def test_two_trials_of_tune_and_one_restored_from_its_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    tune = pytest.importorskip("ray.tune")
    trainable = importlib.import_module(NAME).Trainable
    monkeypatch.setenv("RAY_CHDIR_TO_TRIAL_DIR", "0")
    ray.init(address="local", num_cpus=2, include_dashboard=False)
    try:
        space = SMALL | {"seed": tune.grid_search([3, 4])}

        def run(**stop: int) -> tune.RunConfig:
            checkpoints = tune.CheckpointConfig(checkpoint_frequency=1)
            return tune.RunConfig(name="two", storage_path=str(tmp_path), stop=stop, checkpoint_config=checkpoints)

        fitness = tune.TuneConfig(metric="fitness", mode="max")
        half = tune.Tuner(trainable, param_space=space, tune_config=fitness, run_config=run(generation=2)).fit()
        assert [result.metrics["generation"] for result in half] == [2, 2]
        assert not half.errors

        one = agilerl.train(**SMALL, out=tmp_path / "whole", verbose=False)
        [saved] = [result.checkpoint for result in half if result.config["seed"] == 3]
        trial = trainable(dict(SMALL))
        trial.restore(saved)
        result = trial.step()
        assert result["done"]
        assert one.path is not None
        assert policy_and_births(result["path"]) == policy_and_births(one.path)
    finally:
        ray.shutdown()
