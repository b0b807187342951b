"""Kernels run members on threads: a run has the same bits, and short calls stay on one thread."""

from __future__ import annotations

import multiprocessing
import threading
import time

import pytest
import torch

import agilerl
from agilerl.core import threads as core_threads
from agilerl.core.options import LoopOptions
from agilerl.envs.healing import start_method
from agilerl.native import library as native
from agilerl.native import threads as kernel_threading
from agilerl.native.library import THREAD_NAME, Call, Forward, Library, Rows, Threads
from agilerl.native.threads import Kernel, kernel_threads

FOUND = native.library()
pytestmark = pytest.mark.skipif(FOUND is None, reason="no kernels were built for this machine")


class Slow(Library):
    """Kernels whose calls only take time; notes which members ran in which thread."""

    threads: Threads

    def __init__(self) -> None:
        self.threads = Threads(2)
        self.ran: list[tuple[int, int, int]] = []

    def room(self, call: Call) -> int:
        return 1

    def run(self, call: Call, is_float64: bool) -> None:
        time.sleep(0.02)
        self.ran.append((call.rows.begin, call.rows.end, threading.get_ident()))


def kernel_threads_alive() -> int:
    return sum(thread.name.startswith(THREAD_NAME) for thread in threading.enumerate())


@pytest.mark.thorough
@pytest.mark.parametrize(("env_id", "algo"), [("CartPole-v1", "DQN"), ("CartPole-v1", "PPO"), ("Pendulum-v1", "SAC")])
def test_a_run_on_threads_has_the_bits_of_one(env_id: str, algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_threading, "MIN_SECONDS", 0.0)

    def weights(threads: int) -> list[torch.Tensor]:
        settings = {"num_envs": 4, "threads": threads, "eval_episodes": 2, "eval_steps": 50, "target": None}
        run = agilerl.train(env_id, algo, population=3, steps=512, evo_steps=256, out=None, verbose=False, **settings)
        return [p.detach() for agent in run.population for p in agent.actor.parameters()]

    used: set[int] = set()
    run_on = Kernel.run_on
    monkeypatch.setattr(Kernel, "run_on", lambda self, threads, count: (used.add(count), run_on(self, threads, count)))
    monkeypatch.setattr(LoopOptions, "torch_threads", 1)  # torch's own rounding depends on its threads
    one, several = weights(1), weights(3)
    assert max(used) == 3
    assert all(torch.equal(a, b) for a, b in zip(one, several, strict=True))
    assert kernel_threads_alive() == 0


@pytest.mark.parametrize(("min_seconds", "expected"), [(60.0, 1), (0.0, 2)])
def test_only_calls_that_take_long_enough_are_shared(
    min_seconds: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_threading, "MIN_SECONDS", min_seconds)
    slow = Slow()
    kernel = Kernel(slow, Forward(rows=Rows(begin=0, end=4, members=4)), torch.float32)
    for _ in range(2):
        kernel.run()
    assert [ran[:2] for ran in slow.ran] == [(0, 4)] * 2, "the first calls are timed on one thread"
    slow.ran.clear()
    kernel.run()
    assert sorted(ran[:2] for ran in slow.ran) == ([(0, 4)] if expected == 1 else [(n, n + 1) for n in range(4)])
    assert len({thread for *_, thread in slow.ran}) == expected
    slow.threads.close()


def test_an_error_in_a_thread_is_raised_after_all_have_ended() -> None:
    threads, ended = Threads(3), []

    def work(number: int) -> None:
        if number == 1:
            raise ZeroDivisionError
        time.sleep(0.05)
        ended.append(number)

    with pytest.raises(ZeroDivisionError):
        threads.run(work, 3)
    threads.close()
    assert sorted(ended) == [0, 2]


def test_the_setting_comes_back_and_threads_end() -> None:
    assert FOUND is not None
    with kernel_threads(3):
        assert FOUND.threads is not None
        FOUND.threads.run(lambda number: time.sleep(0.05), 3)
        assert kernel_threads_alive() > 0
        with kernel_threads(1):
            assert FOUND.threads is None
    assert FOUND.threads is None
    assert kernel_threads_alive() == 0


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_kernel_threads_do_not_keep_workers_from_being_forked() -> None:
    before = start_method()
    with kernel_threads(2):
        assert FOUND is not None
        assert FOUND.threads is not None
        FOUND.threads.run(lambda number: None, 2)
        assert start_method() == before


@pytest.mark.parametrize(
    ("asked", "processes", "expected"), [(None, 1, 8), ("", 1, 8), ("3", 1, 3), ("64", 1, 8), (None, 3, 2), ("1", 3, 1)]
)
def test_a_process_uses_its_share_of_the_cores(
    asked: str | None, processes: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_threads, "available_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert core_threads.usual_threads(processes) == expected
