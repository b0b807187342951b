"""What else happens to a run: signals, a second process, a full disk, a broken logger."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import command
import gymnasium as gym
import numpy as np
import pytest
from faulty_runs import CASES, child, digest, fork, newest, resume, run_in, train, train_part

import agilerl
from agilerl.errors import AgileRLWarning, RunError
from agilerl.runs.checkpoints import generations
from agilerl.runs.lock import RunLock, is_abandoned
from agilerl.runs.signals import Stopped, StopSignals
from agilerl.telemetry.record import BaseSink

QUICK = ("--population", "2", "--set", "evo_steps=200", "--set", "eval_episodes=4", "--set", "target_score=null")
two_cases = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "DQN-per-n-step" else pytest.mark.slow) for n in CASES]
)


# -- signals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow), (signal.SIGINT, 130)]
)
def test_a_signal_ends_the_command_after_the_vector_step_with_the_command_to_go_on(
    number: int, code: int, tmp_path: Path
) -> None:
    process = command.start(tmp_path, "train", "CartPole-v1", "--steps", "200000", *QUICK)
    path = command.wait_for_checkpoint(tmp_path, process)
    process.send_signal(number)
    output, errors = process.communicate(timeout=600)
    assert process.returncode == code, errors
    assert output.splitlines()[-1] == f"resume  agilerl resume {path.relative_to(tmp_path)}"
    assert json.loads((path / "run.json").read_text())["status"] == "interrupted"
    if number == signal.SIGINT:
        return
    reached = newest(path).number
    again = command.start(tmp_path, "resume", str(path.relative_to(tmp_path)), "--test-episodes", "0")
    command.wait_for_checkpoint(tmp_path, again, beyond=reached)
    again.send_signal(number)
    assert again.wait(timeout=600) == code


def test_a_second_signal_ends_the_process_at_once() -> None:
    def work() -> None:
        with StopSignals() as signals:
            signals.check()  # the run has begun
            os.kill(os.getpid(), signal.SIGTERM)
            assert signals.received == signal.SIGTERM
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)

    assert fork(work) == -signal.SIGTERM


def test_the_handlers_that_were_there_come_back() -> None:
    before = [signal.getsignal(number) for number in StopSignals.SIGNALS]
    with StopSignals() as signals:
        signals.check()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Stopped, match="SIGINT"):
            signals.check()
    assert [signal.getsignal(number) for number in StopSignals.SIGNALS] == before


def test_a_script_that_gets_sigterm_ends_with_143_and_one_interrupted_is_told_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminate(BaseSink):
        def __init__(self, number: int) -> None:
            self.number = number

        def generation(self, record: Any) -> None:
            if record.generation == 1:
                os.kill(os.getpid(), self.number)

    with pytest.raises(SystemExit) as ended:
        train(CASES["DQN"], tmp_path / "term", Terminate(signal.SIGTERM))
    assert ended.value.code == 143
    path = train(CASES["DQN"], tmp_path / "int", Terminate(signal.SIGINT))
    assert f"stopped; agilerl.resume({str(path)!r}) goes on" in capsys.readouterr().err
    assert newest(path).number == 2
    resume(path)
    assert digest(path) == digest(train(CASES["DQN"], tmp_path / "whole"))


class Endless(gym.Env[np.ndarray, Any]):
    """Episodes of 15 steps, and without an end once `is_on`: then a signal comes in the 30th step of one.

    Training episodes are cut at 10 steps, so that is an evaluation.
    """

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    is_on = False
    steps_after = -1  # of all lanes, after the signal; -1 before it

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.see(), {}

    def see(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        if Endless.steps_after >= 0:
            Endless.steps_after += 1
        elif self.time == 30:
            Endless.steps_after = 0
            os.kill(os.getpid(), signal.SIGTERM)
        return self.see(), float(action), self.time >= 15 and not Endless.is_on, False, {}


class MakeEndless(BaseSink):
    def generation(self, record: Any) -> None:
        Endless.is_on = record.generation == 1


def test_a_signal_during_an_evaluation_ends_it_after_the_vector_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = {**CASES["DQN"], "env": Endless, "steps": 640, "train_max_episode_steps": 10}
    whole = digest(train(case, tmp_path / "whole"))
    monkeypatch.setattr(Endless, "is_on", False)
    monkeypatch.setattr(Endless, "steps_after", -1)
    with pytest.raises(SystemExit) as ended:
        train(case, tmp_path / "stopped", MakeEndless())
    assert ended.value.code == 143
    lanes = case["population"] * case["eval_episodes"]
    assert 0 <= Endless.steps_after < lanes, "the vector step in which it came was the last one"
    path = run_in(tmp_path / "stopped")
    assert path is not None
    assert (newest(path).number, json.loads((path / "run.json").read_text())["status"]) == (2, "interrupted")
    Endless.is_on = False
    assert resume(path, env=Endless) == []
    assert digest(path) == whole


def test_leftovers_of_a_kill_are_swept_and_a_lineage_that_lost_lines_is_written_anew(tmp_path: Path) -> None:
    path = train_part(CASES["DQN"], tmp_path, 4)
    (path / "best" / ".policy.json.77-abc.tmp").write_text("half")
    (path / "checkpoints" / ".trash-gen-0000000001-77").mkdir()
    lineage = path / "evolution.jsonl"
    lines = lineage.read_text().splitlines(keepends=True)
    lineage.write_text("".join(lines[:-2]) + lines[-1][:7])
    (note,) = resume(path)
    assert note.startswith("evolution.jsonl was damaged or missing; it was written anew from the checkpoint")
    assert not list(path.rglob("*.tmp")) + list(path.rglob(".trash-*"))
    assert digest(path) == digest(train(CASES["DQN"], tmp_path / "whole"))


# -- two processes -----------------------------------------------------------------------------------------------------


def test_a_second_run_in_the_directory_is_refused_with_the_holder_and_the_lock_dies_with_it(tmp_path: Path) -> None:
    process = child("CASES", "DQN", tmp_path, None)
    while run_in(tmp_path) is None:
        time.sleep(0.02)
    path = run_in(tmp_path)
    assert path is not None
    try:
        with pytest.raises(RunError, match=rf"is in use: process {process.pid} on \S+ trains there\. fix:"):
            agilerl.resume(path, verbose=False)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with RunLock(path):
        pass


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")
def test_a_run_is_abandoned_when_another_process_has_its_number(tmp_path: Path) -> None:
    """After a restart of the machine, or of a container, the same number is soon used again."""
    with RunLock(tmp_path):
        holder = json.loads((tmp_path / "LOCK").read_text())
        assert not is_abandoned(tmp_path)
        (tmp_path / "LOCK").write_text(json.dumps({**holder, "started": "1"}))
        assert is_abandoned(tmp_path)
        (tmp_path / "LOCK").write_text(json.dumps({key: holder[key] for key in ("pid", "host", "token")}))
        assert not is_abandoned(tmp_path), "a file of an earlier version"
        (tmp_path / "LOCK").write_text(json.dumps(holder))


def test_a_worker_that_hangs_does_not_hold_the_lock_of_a_killed_run(tmp_path: Path) -> None:
    def work() -> None:
        lock = RunLock(tmp_path / "kept")
        if os.fork() == 0:
            time.sleep(5)  # a worker of an environment, say
            os._exit(0)
        assert lock.token
        os.kill(os.getpid(), signal.SIGKILL)

    assert fork(work) == -signal.SIGKILL
    with RunLock(tmp_path / "kept"):
        pass


def test_a_writer_that_meets_a_foreign_token_stops(tmp_path: Path) -> None:
    class Thief(BaseSink):
        def generation(self, record: Any) -> None:
            if record.generation == 2:  # as on a file system whose locks do not hold
                lock = next(tmp_path.glob("*/*/LOCK"))
                lock.write_text(json.dumps({"pid": 1, "host": "elsewhere", "token": "another"}))

    with pytest.raises(RunError, match="was taken over by process 1 on elsewhere"):
        train(CASES["DQN"], tmp_path, Thief())
    path = run_in(tmp_path)
    assert path is not None
    assert newest(path).number == 2


# -- no room -----------------------------------------------------------------------------------------------------------


def warned_of(notes: list[str]) -> int:
    return sum("could not be saved" in note for note in notes)


@two_cases
def test_files_that_cannot_grow_cost_checkpoints_and_not_the_training(name: str, tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands for a disk that is full for a while: from the second generation to the fourth."""
    whole = digest(train(CASES[name], tmp_path / "whole"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Full(BaseSink):
        def generation(self, record: Any) -> None:
            limit = 2000 if 2 <= record.generation < 4 else soft
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))

    try:
        with pytest.warns(AgileRLWarning) as caught:
            path = train(CASES[name], tmp_path / "full", Full())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert warned_of([str(w.message) for w in caught]) == 2
    assert digest(path) == whole  # the next save wrote what the two had missed
    assert json.loads((path / "run.json").read_text())["failed_saves"] == 2
    left = [p.name for p in (path / "checkpoints").iterdir() if not p.name.startswith("gen-")]
    assert left == []
    assert (path / "evolution.jsonl").read_bytes() == next(tmp_path.glob("whole/*/*/evolution.jsonl")).read_bytes()


@pytest.mark.slow
def test_a_disk_that_stays_full_ends_the_run_with_its_checkpoints_whole(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Full(BaseSink):
        def generation(self, record: Any) -> None:
            if record.generation == 1:
                resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))

    try:
        with (
            pytest.warns(AgileRLWarning),
            pytest.raises(RunError, match=r"5 saves have failed\. fix: make room"),
        ):
            train({**CASES["DQN"], "steps": 2000}, tmp_path, Full())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    path = run_in(tmp_path)
    assert path is not None
    assert newest(path).number == 1
    whole = digest(train({**CASES["DQN"], "steps": 2000}, tmp_path / "whole"))
    resume(path)
    assert digest(path) == whole


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A file system of 4 MB, where this process may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.slow
def test_a_full_file_system_costs_checkpoints_and_not_the_training(small_disk: Path, tmp_path: Path) -> None:
    case = CASES["DQN"]
    whole = digest(train(case, tmp_path / "whole"))

    class Filler(BaseSink):
        def generation(self, record: Any) -> None:
            ballast = small_disk / "ballast"
            if record.generation == 2:
                free = shutil.disk_usage(small_disk).free
                with open(ballast, "wb") as file:
                    file.write(bytes(max(free - 4096, 0)))
            if record.generation == 4:
                ballast.unlink()

    with pytest.warns(AgileRLWarning) as caught:
        path = train(case, small_disk, Filler())
    assert warned_of([str(w.message) for w in caught]) == 2
    assert digest(path) == whole


# -- loggers -----------------------------------------------------------------------------------------------------------


def test_a_logger_that_fails_is_dropped_with_one_warning_and_counted(tmp_path: Path) -> None:
    class Broken(BaseSink):
        def generation(self, record: Any) -> None:
            if record.generation >= 2:
                raise ConnectionError("nobody listens")

    whole = digest(train(CASES["DQN"], tmp_path / "whole"))
    with pytest.warns(
        AgileRLWarning, match="Broken failed .ConnectionError: nobody listens. and gets no more"
    ) as caught:
        path = train(CASES["DQN"], tmp_path / "broken", Broken())
    assert len(caught) == 1
    assert digest(path) == whole
    facts = json.loads((path / "run.json").read_text())
    assert facts["lost_records"] == {"Broken": newest(path).number - 2}


# -- what stays --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [pytest.param("DQN", marks=pytest.mark.slow), "DQN-per-n-step"])
def test_the_last_checkpoints_and_the_best_ones_stay_and_segments_that_none_needs_go(name: str, tmp_path: Path) -> None:
    case = {**CASES[name], "steps": 2400, "max_size": 600, "seed": 5}
    path = train(case, tmp_path)
    saved = newest(path)
    kept = [int(p.name[4:]) for p in generations(path / "checkpoints")]
    last = list(range(saved.number - 2, saved.number + 1))
    assert kept[-3:] == last
    assert len(kept) <= 4
    rows = sum(entry["count"] for entry in saved.body["replay"]["memory"])
    assert 600 <= rows < 600 + 3 * 160 + 8  # a ring's worth, to whole chunks
    assert resume(path, steps=2560) == []  # a larger budget is nothing to warn of


def test_the_store_is_not_for_agents_that_cannot_be_saved() -> None:
    from agilerl.training.state import check_savable

    class Stranger:
        index = 7

    with pytest.raises(ValueError, match=r"agent 7 is a Stranger without run_state\(\)"):
        check_savable([Stranger()])
