"""A run's folder belongs to one process, and every file in it is whole at any moment."""

from __future__ import annotations

import json
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from agilerl.config import preset_for
from agilerl.errors import RunError
from agilerl.runs.directory import RunDirectory
from agilerl.telemetry.record import Birth, RunPlan
from agilerl.training.policy_files import load_policy, write_policy


def _create(out: str) -> str:
    return str(RunDirectory.create(out, "CartPole-v1", "DQN").path)


def test_numbers_count_up_and_odd_ids_stay_inside_the_folder(tmp_path: Path) -> None:
    assert [Path(_create(str(tmp_path))).name for _ in range(3)] == ["dqn-0001", "dqn-0002", "dqn-0003"]
    assert RunDirectory.create(tmp_path, "ALE/Pong-v5", "DQN").path == tmp_path / "ALE-Pong-v5" / "dqn-0001"
    assert RunDirectory.create(tmp_path, "../evil", "DQN").path.parent.parent == tmp_path


def test_two_processes_never_share_a_directory(tmp_path: Path) -> None:
    with get_context("fork").Pool(4) as pool:
        paths = pool.map(_create, [str(tmp_path)] * 40, chunksize=1)
    assert len(set(paths)) == 40


def test_a_folder_that_cannot_be_made_is_a_run_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot make a run directory in .*file.*fix: --out"):
        RunDirectory.create(tmp_path / "file", "CartPole-v1", "DQN")


def test_run_json_follows_the_run_and_config_is_rerunnable(tmp_path: Path) -> None:
    manifest = preset_for("CartPole-v1")
    run = RunDirectory.create(tmp_path, "CartPole-v1", "DQN")
    run.begin(manifest, argv=["agilerl", "train"], device="cpu")
    facts = json.loads((run.path / "run.json").read_text())
    assert (facts["status"], facts["seed"], facts["argv"]) == ("running", 0, ["agilerl", "train"])
    assert {"python", "torch", "numpy", "gymnasium"} <= set(facts["versions"])
    assert run.manifest() == manifest
    plan = RunPlan("DQN", "CartPole-v1", 4, 4, 100, 50, 0, "cpu", "fused", "cartpole", 1)
    for sink in run.sinks():
        sink.start(plan, [Birth(0, None, 0, "founder")])
        sink.close()
    run.finish("done", result={"seconds": 1.0})
    run.update(result={"test": 3})
    facts = run.facts()
    assert (facts["status"], facts["learner"], facts["env_backend"]) == ("done", "fused", "cartpole")
    assert facts["result"] == {"seconds": 1.0, "test": 3}


def test_the_best_policy_comes_back_and_plain_safetensors_reads_it(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    run = RunDirectory.create(tmp_path, "CartPole-v1", "DQN")
    spec = {"algo": "DQN", "observation": {"low": [float("-inf")], "high": [1.5]}}
    state = {"encoder.0.weight": torch.arange(4.0).reshape(2, 2)}
    write_policy(run.path / "best", spec, state)
    back_spec, back_state = load_policy(run)
    assert back_spec == spec
    assert torch.equal(back_state["encoder.0.weight"], state["encoder.0.weight"])
    plain = load_file(run.path / "best" / "policy.safetensors")
    assert torch.equal(plain["policy.encoder.0.weight"], state["encoder.0.weight"])
    assert json.loads((run.path / "best" / "policy.json").read_text())["algo"] == "DQN"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"there is no run at .*nothing.*fix:"):
        RunDirectory.open(tmp_path / "nothing")
    with pytest.raises(RunError, match=r"is not a run directory \(no run\.json\)"):
        RunDirectory.open(tmp_path)
    run = RunDirectory.create(tmp_path, "CartPole-v1", "DQN")
    run.begin(preset_for("CartPole-v1"))
    with pytest.raises(RunError, match=r"holds no policy \(status: running\)"):
        load_policy(RunDirectory.open(run.path))
    (run.path / "run.json").write_text("{")
    with pytest.raises(RunError, match=r"run\.json cannot be read"):
        RunDirectory.open(run.path).facts()
