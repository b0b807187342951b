"""A run has its own number of torch threads: recorded, used again when it goes on, and never exchanged silently."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from command import wait_for_checkpoint
from faulty_runs import CASES, TWO_THREADS, StopAfter, child, digest, newest, resume, train
from test_resume_argument import on_policy_script, script

import agilerl
import agilerl.core.threads
from agilerl.core.options import LoopOptions
from agilerl.core.threads import fixed_threads
from agilerl.errors import AgileRLWarning, ConfigError, RunError
from agilerl.telemetry.record import BaseSink


class Threads(BaseSink):
    """The thread counts that were seen between vector steps."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def progress(self, env_steps: int, seconds: float) -> None:
        self.seen.add(torch.get_num_threads())


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    """The caller's own setting, which is that of no run here."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


class Convolutions(BaseSink):
    """The settings of cuDNN that were seen between vector steps: (deterministic, benchmark)."""

    def __init__(self) -> None:
        self.seen: set[tuple[bool, bool]] = set()

    def progress(self, env_steps: int, seconds: float) -> None:
        self.seen.add((torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark))


def test_convolutions_of_a_run_repeat_their_bits_and_the_callers_settings_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    seen = Convolutions()
    train(CASES["DQN"], tmp_path, seen)
    assert seen.seen == {(True, False)}
    assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == (False, True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", "wide"])
def test_a_run_with_two_threads_that_is_killed_and_stopped_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    seen = Threads()
    whole = train(TWO_THREADS[name], tmp_path / "whole", seen)
    assert (seen.seen, torch.get_num_threads()) == ({2}, 3)
    assert json.loads((whole / "run.json").read_text())["threads"] == 2
    process = child("TWO_THREADS", name, tmp_path / "killed", None)
    killed = wait_for_checkpoint(tmp_path / "killed", process)
    process.kill()
    process.communicate()
    again = Threads()
    agilerl.resume(killed, verbose=False, sinks=[again, StopAfter(1)])
    resume(killed, sinks=[again])
    assert again.seen == {2}
    assert digest(killed) == digest(whole)


def test_one_thread_is_the_default_and_leaves_hash_and_record_as_they_were(tmp_path: Path) -> None:
    seen = Threads()
    path = train(CASES["DQN"], tmp_path, seen)
    assert seen.seen == {1}
    assert newest(path).body["run"]["threads"] == 1
    assert "threads" not in newest(path).body["run"]["options"]


@pytest.mark.parametrize("start", [lambda *a, **k: script("uniform", *a, **k), on_policy_script])
def test_another_number_of_threads_on_resume_is_an_error_that_names_both(start: Any, tmp_path: Path) -> None:
    short = {"max_steps": 64, "evo_steps": 32}
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, StopAfter(1), threads=2, **short)
    with pytest.raises(RunError, match=r"made with threads 2, which is not what there is here .1.\. fix: threads=2\."):
        start(tmp_path, **short)
    seen = Threads()
    start(tmp_path, seen, threads=2, **short)
    assert seen.seen == {2}


def test_fewer_cores_than_threads_are_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agilerl.core.threads, "available_cores", lambda: 1)
    with pytest.warns(AgileRLWarning, match=r"7 threads share the 1 core of this machine: .* fix"), fixed_threads(7):
        assert torch.get_num_threads() == 7
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("count", [0, 1.5, True])
def test_no_number_of_threads_is_refused(count: Any) -> None:
    with pytest.raises(ConfigError, match="threads must be an integer of at least 1"):
        LoopOptions(threads=count)
