"""Kill a run anywhere, go on, and get the same bits."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command
import faulty_runs
import pytest
from faulty_runs import (
    CASES,
    LUNAR_LANDER,
    OTHERS,
    SHORT,
    child,
    digest,
    fork,
    kill_self,
    resume,
    run_in,
    train,
    train_part,
)

from agilerl.core import files
from agilerl.data import replay_log
from agilerl.runs import checkpoints
from agilerl.training.store import RunStore

every_case = pytest.mark.parametrize("name", CASES)
EVERY = {**CASES, **OTHERS, **SHORT}


def short_and_long(short: int, long: int) -> list[Any]:
    """(case, number of faults): a few faults of one case, and many of every case among the slow tests."""
    marks = [pytest.mark.slow, pytest.mark.timeout(3600)]
    return [("DQN-per-n-step", short), *(pytest.param(name, long, marks=marks) for name in CASES)]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Digest of the run of a case that never stopped."""
    known: dict[str, str] = {}

    def of(name: str) -> str:
        if name not in known:
            known[name] = digest(train(EVERY[name], tmp_path_factory.mktemp("whole")))
        return known[name]

    return of


@pytest.mark.parametrize(
    ("name", "stop_after"),
    [
        ("DQN", 0),
        *(pytest.param(name, 3, marks=() if name == "DQN-per-n-step" else pytest.mark.slow) for name in CASES),
        *(pytest.param(name, 0, marks=pytest.mark.slow) for name in CASES if name != "DQN"),
        *(pytest.param(name, 2, marks=pytest.mark.slow) for name in OTHERS),
        *((name, 1) for name in SHORT),
    ],
)
def test_a_run_stopped_inside_a_generation_ends_as_if_it_had_not(
    name: str, stop_after: int, reference: Callable[[str], str], tmp_path: Path
) -> None:
    if stop_after == 0:  # nothing saved yet: there is no best agent to hand back
        with pytest.raises(KeyboardInterrupt):
            train_part(EVERY[name], tmp_path, stop_after)
        path = run_in(tmp_path)
        assert path is not None
    else:
        path = train_part(EVERY[name], tmp_path, stop_after)
    assert resume(path) == []
    assert digest(path) == reference(name)


def test_a_finished_run_is_continued_to_nothing_and_with_more_steps_to_more(tmp_path: Path) -> None:
    path = train(CASES["DQN"], tmp_path)
    before = digest(path)
    assert resume(path) == []
    assert digest(path) == before
    assert resume(path, steps=1280) == []  # a larger budget is no other run: nothing to warn of
    assert faulty_runs.newest(path).number == 8


def kill_at_random(table: str, name: str, out: Path, kills: int, whole: float, rng: random.Random) -> list[Path]:
    """Runs that were killed `kills` times in all, at random moments, and continued to their ends."""
    finished: list[Path] = []
    while kills or not finished or run_in(out / str(len(finished))) is not None:
        place = out / str(len(finished))
        path = run_in(place)
        process = child(table, name, place, path)
        if kills:
            time.sleep(rng.uniform(0, whole))
            process.kill()
            kills -= 1
        _, errors = process.communicate()
        assert process.returncode in (0, -9), errors
        if process.returncode == 0:
            path = run_in(place)
            assert path is not None
            finished.append(path)
            if not kills:
                return finished
    return finished


def seconds_of(table: str, name: str, out: Path) -> tuple[float, str]:
    """How long a whole run takes after its start, and its digest."""
    process = child(table, name, out, None)
    begun = time.monotonic()
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    path = run_in(out)
    assert path is not None
    return time.monotonic() - begun, digest(path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kills"), short_and_long(2, 50))
def test_killed_at_random_moments_every_run_ends_with_the_same_bits(name: str, kills: int, tmp_path: Path) -> None:
    whole, expected = seconds_of("CASES", name, tmp_path / "whole")
    finished = kill_at_random("CASES", name, tmp_path, kills, whole, random.Random(kills))
    assert [digest(path) for path in finished] == [expected] * len(finished)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", LUNAR_LANDER)
def test_lunar_lander_killed_three_times_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    rng = random.Random(0)
    for generation in (1, 3, 5):
        process = child("LUNAR_LANDER", name, tmp_path, run_in(tmp_path))
        path = command.wait_for_checkpoint(tmp_path, process, beyond=generation - 1)
        time.sleep(rng.uniform(0, 1))
        process.kill()
        process.communicate()
    assert resume(path) == []
    assert digest(path) == digest(train(LUNAR_LANDER[name], tmp_path / "whole"))


# -- the n-th step of saving -------------------------------------------------------------------------------------------

STEPS = ("fsync", "rename", "replace", "mkdir", "open", "unlink", "truncate", "ftruncate", "pwrite", "rmdir", "close")


class FailPoint:
    """Inside `RunStore.save` every call that touches the disk is a step, before it and half-way through a write; at
    the chosen one the process kills itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int | None) -> None:
        self.at, self.steps, self.inside = at, 0, False
        for name in STEPS:
            monkeypatch.setattr(f"os.{name}", self.before(getattr(__import__("os"), name)))
        save = RunStore.save

        def watched(store: RunStore, loop: Any) -> None:
            self.inside = True
            save(store, loop)
            self.step()
            self.inside = False

        monkeypatch.setattr(RunStore, "save", watched)
        whole = replay_log._write_all
        monkeypatch.setattr(replay_log, "_write_all", lambda file, data: self.halves(file, data, whole))
        for module in (files, checkpoints):
            monkeypatch.setattr(module, "write_synced", self.write_synced)

    def step(self) -> None:
        if self.inside:
            self.steps += 1
            if self.steps == self.at:
                kill_self()

    def before(self, call: Any) -> Any:
        def stepped(*args: Any, **kwargs: Any) -> Any:
            self.step()
            return call(*args, **kwargs)

        return stepped

    def halves(self, file: Any, data: bytes, whole: Any) -> None:
        whole(file, data[: len(data) // 2])
        self.step()
        whole(file, data[len(data) // 2 :])

    def write_synced(self, path: Path, data: bytes) -> None:
        import os

        with open(path, "xb", buffering=0) as file:
            self.step()
            self.halves(file, data, replay_log._write_all)
            os.fsync(file.fileno())


@pytest.mark.parametrize(("name", "count"), short_and_long(4, 80))
def test_killed_at_any_step_of_saving_a_run_ends_with_the_same_bits(
    name: str, count: int, reference: Callable[[str], str], tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        counting = FailPoint(patch, None)
        train(CASES[name], tmp_path / "counting")
    assert counting.steps > 80
    rng = random.Random(count)
    for at in sorted(rng.sample(range(1, counting.steps + 1), count)):
        out = tmp_path / str(at)

        def killed(at: int = at, out: Path = out) -> None:
            with pytest.MonkeyPatch.context() as patch:
                FailPoint(patch, at)
                train(CASES[name], out)

        assert fork(killed) == -9, f"step {at}"
        path = run_in(out)
        assert path is not None
        assert resume(path) == [], f"step {at}"
        assert digest(path) == reference(name), f"step {at}"
        left = [p.name for p in (path / "checkpoints").iterdir() if not p.name.startswith("gen-")]
        assert left == [], f"step {at}"
