"""Runs, agent files and manifests that an earlier version wrote: this one goes on with them, loads and reads them.

`written_at_<commit>.zip` is what `write_archive.py` left at that commit; it never changes. What it holds beside the
files (`expected.json`) was computed by the version that wrote them.
"""

from __future__ import annotations

import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from saved_runs import LOADERS, greedy_actions, observations, weight_sums

import agilerl
from agilerl.api import build_manifest
from agilerl.errors import AgileRLWarning

ARCHIVES = sorted(Path(__file__).parent.glob("written_at_*.zip"))


def as_answered_now(agent: Any, known: dict[str, Any]) -> np.ndarray:
    """The stored actions; agents with raw ones answered with these then, and now as the environment takes them."""
    stored = np.array(known["actions"])
    is_raw = isinstance(agent.action_space, gym.spaces.Box) and hasattr(agent, "acts_raw") and agent.algo != "PPO"
    return agent.environment_action(stored) if is_raw else stored


def expected_of(archive: Path) -> dict[str, Any]:
    with zipfile.ZipFile(archive) as file:
        found: dict[str, Any] = json.loads(file.read("expected.json"))
    return found


def parts(kind: str) -> Any:
    """One case per archive and entry of its `expected.json`."""
    return pytest.mark.parametrize(
        ("archive", "name"),
        [pytest.param(a, n, id=f"{a.stem}-{n}") for a in ARCHIVES for n in expected_of(a)[kind]],
    )


def unpacked(archive: Path, prefix: str, target: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        file.extractall(target, [n for n in file.namelist() if n.startswith(prefix)])


def test_there_are_older_files_of_every_algorithm() -> None:
    assert ARCHIVES
    found = [expected_of(archive) for archive in ARCHIVES]
    assert {entry["class"] for archive in found for entry in archive["agents"].values()} == set(LOADERS)
    assert {"DQN", "TD3", "PPO", "RainbowDQN-per-n-step"} <= {name for archive in found for name in archive["runs"]}


@parts("runs")
def test_a_run_of_an_earlier_version_goes_on_and_ends_well(archive: Path, name: str, tmp_path: Path) -> None:
    known = expected_of(archive)["runs"][name]
    unpacked(archive, known["path"] + "/", tmp_path)
    path = tmp_path / known["path"]
    loaded = agilerl.load(path)
    assert loaded.history == known["history"]
    assert loaded.manifest.hash() == known["hash"]
    assert loaded.result["env_steps_member"] == known["steps"][0]
    actions = greedy_actions(loaded.best, observations(known["env"]))
    np.testing.assert_allclose(actions, as_answered_now(loaded.best, known), rtol=1e-4, atol=1e-6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = agilerl.resume(path, steps=known["steps"][0] * 2, verbose=False)
    said = [str(w.message) for w in caught if issubclass(w.category, AgileRLWarning)]
    # A new budget is said, and so are other versions of packages; damage would be said too.
    assert [text for text in said if "other settings" not in text and "other versions" not in text] == []
    assert run.history[: known["generations"]] == known["history"]
    assert len(run.history) == known["generations"] + 2
    assert [int(agent.steps[-1]) for agent in run.population] == [2 * steps for steps in known["steps"]]
    assert np.isfinite(run.history).all()
    assert not run.interrupted
    assert json.loads((path / "run.json").read_text(encoding="utf-8"))["status"] == "done"
    assert {p.name for p in path.rglob("bad-*")} == set()


@parts("agents")
def test_an_agent_of_an_earlier_version_acts_as_it_did(archive: Path, name: str, tmp_path: Path) -> None:
    known = expected_of(archive)["agents"][name]
    unpacked(archive, f"agents/{name}.pt", tmp_path)
    agent = LOADERS[known["class"]].load(tmp_path / "agents" / f"{name}.pt")
    assert weight_sums(agent) == pytest.approx(known["weights"], rel=1e-9)
    actions = greedy_actions(agent, observations(known["env"]))
    np.testing.assert_allclose(actions, as_answered_now(agent, known), rtol=1e-4, atol=1e-6)
    agent.load_checkpoint(tmp_path / "agents" / f"{name}.pt")
    np.testing.assert_array_equal(greedy_actions(agent, observations(known["env"])), actions)


@parts("manifests")
def test_a_manifest_of_an_earlier_version_has_the_hash_that_it_had(archive: Path, name: str, tmp_path: Path) -> None:
    unpacked(archive, f"manifests/{name}", tmp_path)
    found = build_manifest(None, config=tmp_path / "manifests" / name)
    assert found.hash() == expected_of(archive)["manifests"][name]
