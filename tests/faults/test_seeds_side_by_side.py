"""Seeds in several processes give the bits of runs alone, whoever is killed; nothing is lost or left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import command
import pytest
from faulty_runs import CASES, digest, train
from typer.testing import CliRunner

from agilerl.cli.main import app
from agilerl.runs.checkpoints import generations
from agilerl.runs.seed_group import SeedGroup

CASE = CASES["DQN-per-n-step"]
OPTIONS = {"env", "algo", "seed", "verbose"}
KEYS = {"population": "pop_size", "steps": "max_steps", "target": "target_score"}


def words(case: Mapping[str, Any], env_id: str = "CartPole-v1") -> list[str]:
    """The command line that trains three seeds of a case in two processes."""
    sets = [f"{KEYS.get(name, name)}={json.dumps(value)}" for name, value in case.items() if name not in OPTIONS]
    options = ["--algo", str(case["algo"]), "--seeds", "0-2", "--workers", "2", "--test-episodes", "2"]
    return ["train", env_id, *options, *(word for text in sets for word in ("--set", text))]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Digests of the same seeds, trained one by one in this process."""
    out = tmp_path_factory.mktemp("alone")
    return {seed: digest(train({**CASE, "seed": seed}, out / str(seed))) for seed in range(3)}


def group_in(folder: Path) -> SeedGroup | None:
    found = list(folder.glob("runs/*/*/group.json"))
    return SeedGroup.open(found[0].parent) if found else None


def wait_for(process: subprocess.Popen[str], folder: Path, least: int) -> SeedGroup:
    """The group, as soon as two of its runs have `least` checkpoints."""
    while process.poll() is None:
        group = group_in(folder)
        paths = [] if group is None else group.run_paths
        if group is not None and sum(len(generations(path / "checkpoints")) >= least for path in paths) >= 2:
            return group
        time.sleep(0.01)
    raise AssertionError(process.communicate()[1])


def pids_in(folder: Path) -> list[int]:
    """Processes that work in `folder`, but this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                is_there = (entry / "cwd").resolve() == folder.resolve()
                state = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            except OSError:
                continue
            found += [int(entry.name)] if is_there and state != "Z" else []
    return found


def workers_of(process: subprocess.Popen[str], folder: Path) -> list[int]:
    """Processes of the runs: those that hold a lock of one."""
    locked = []
    for pid in pids_in(folder):
        files = []
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                files.append(os.readlink(link))
            except OSError:
                continue
        if pid != process.pid and any(name.endswith("/LOCK") for name in files):
            locked.append(pid)
    return locked


def finished(folder: Path, *words: str) -> Any:
    process = command.start(folder, *words)
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def digests(group: SeedGroup) -> dict[int, str]:
    return {seed: digest(group.run_path(seed)) for seed in group.seeds}


@pytest.mark.slow
def test_seeds_side_by_side_equal_each_alone_and_are_compared(tmp_path: Path, alone: dict[int, str]) -> None:
    code, out, err = finished(tmp_path, *words(CASE))
    assert code == 0, err
    group = group_in(tmp_path)
    assert group is not None
    assert digests(group) == alone
    assert "IQM over seeds" in out
    assert (group.path / "compare.html").is_file()
    assert "begins" in out
    code, again, err = finished(tmp_path, "resume", str(group.path))
    assert code == 0, err
    assert "IQM over seeds" in again
    assert "begins" not in again


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes by /proc")
@pytest.mark.parametrize("victim", ["worker", pytest.param("command", marks=pytest.mark.slow)])
def test_a_kill_loses_nothing_and_leaves_nothing_behind(victim: str, tmp_path: Path, alone: dict[int, str]) -> None:
    process = command.start(tmp_path, *words(CASE))
    group = wait_for(process, tmp_path, 1)
    workers = workers_of(process, tmp_path)
    assert workers
    os.kill(workers[0] if victim == "worker" else process.pid, signal.SIGKILL)
    out, err = process.communicate(timeout=600)
    if victim == "worker":
        assert process.returncode == 0, err
        assert "after 1 lost process" in out
    else:
        until = time.monotonic() + 60
        while pids_in(tmp_path):
            assert time.monotonic() < until, "a process goes on without the command"
            time.sleep(0.05)
        code, _, err = finished(tmp_path, "resume", str(group.path))
        assert code == 0, err
    assert digests(group) == alone


def test_a_signal_stops_all_resumable(tmp_path: Path, alone: dict[int, str], monkeypatch: pytest.MonkeyPatch) -> None:
    process = command.start(tmp_path, *words(CASE))
    group = wait_for(process, tmp_path, 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    printed = next(line for line in out.splitlines() if line.startswith("resume  "))
    begun = {seed: json.loads((group.run_path(seed) / "run.json").read_text())["status"] for seed in (0, 1)}
    assert set(begun.values()) <= {"interrupted", "done"}
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, printed.split()[2:])
    assert done.exit_code == 0, done.output
    assert digests(group) == alone


BREAKS = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Breaks(CartPoleEnv):
    def reset(self, *, seed=None, options=None):
        import os
        if os.path.exists("broken"):
            raise RuntimeError("out of order")
        return super().reset(seed=seed, options=options)

gymnasium.register("Breaks-v0", entry_point=Breaks, max_episode_steps=20)
"""


@pytest.mark.slow
def test_a_seed_that_fails_is_named_and_the_others_end(tmp_path: Path) -> None:
    (tmp_path / "breaks.py").write_text(BREAKS, encoding="utf-8")
    process = command.start(tmp_path, *words(CASES["DQN"], "Breaks-v0"), "--import", "breaks.py")
    group = wait_for(process, tmp_path, 1)
    (tmp_path / "broken").touch()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 2, err
    assert "failed: " in err
    assert "out of order" in err
    (tmp_path / "broken").unlink()
    printed = next(line for line in err.splitlines() if line.startswith("after solving that  "))
    code, _, err = finished(tmp_path, *printed.removeprefix("after solving that  agilerl ").split())
    assert code == 0, err
    assert len(group.run_paths) == 3
