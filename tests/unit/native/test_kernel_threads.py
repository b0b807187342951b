"""Kernels run members on threads, and in the background, with the same bits; short calls stay where they are."""

from __future__ import annotations

import contextlib
import multiprocessing

import pytest
import torch

import agilerl
from agilerl.core import threads as core_threads
from agilerl.core.options import LoopOptions
from agilerl.envs.healing import start_method
from agilerl.native import library as native
from agilerl.native import threads as kernel_threading
from agilerl.native.library import Forward, Layer, Library, Member, Rows, pointer
from agilerl.native.threads import Kernel, Threads, deferring, finish, kernel_threads

FOUND = native.library()
pytestmark = pytest.mark.skipif(FOUND is None or not FOUND.has_threads, reason="no kernels with threads here")


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of members of the calls that threads were given, however short these are."""
    calls: list[int] = []
    begin = Threads.begin

    def counting(self: Threads, kernel: Kernel) -> None:
        calls.append(kernel.call.rows.end - kernel.call.rows.begin)
        begin(self, kernel)

    monkeypatch.setattr(Threads, "begin", counting)
    monkeypatch.setattr(kernel_threading, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(kernel_threading, "MIN_SECONDS_BESIDE", 0.0)
    return calls


class Identity:
    """Networks of one layer, without kernel, that add the number of their member to the first input."""

    def __init__(self, members: int) -> None:
        assert FOUND is not None
        self.value = torch.arange(members, dtype=torch.float32).repeat_interleave(2).reshape(members, 2).contiguous()
        self.value[:, 0] = 1
        layer = Layer(inputs=1, outputs=1, weight=0, weight_row=1, bias=1, norm=0)
        self.described = (Member * members)(*(Member(1, (Layer * native.MAX_DEPTH)(layer)) for _ in range(members)))
        self.obs, self.outputs = torch.ones(members, 1, 1), torch.zeros(members, 1, 1)
        rows = Rows(begin=0, end=members, members=members, stride=2, value=pointer(self.value))
        call = Forward(rows=rows, batch=1, member=self.described)
        call.obs, call.outputs = pointer(self.obs), pointer(self.outputs)
        self.kernel = Kernel(FOUND, call, torch.float32)
        for _ in range(kernel_threading.TRIALS):
            self.kernel.run()
        self.outputs.zero_()

    @property
    def is_done(self) -> bool:
        return bool((self.outputs.flatten() == 1 + torch.arange(len(self.outputs))).all())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("env_id", "algo", "overlap"),
    [("CartPole-v1", "DQN", False), ("CartPole-v1", "PPO", None), ("Pendulum-v1", "SAC", False),
     ("CartPole-v1", "DQN", True), ("Pendulum-v1", "DDPG", True), ("Pendulum-v1", "TD3", True)],
)  # fmt: skip
def test_a_run_on_threads_has_the_bits_of_one(
    env_id: str, algo: str, overlap: bool | None, begun: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def weights(threads: int) -> list[torch.Tensor]:
        settings = {"num_envs": 4, "threads": threads, "eval_episodes": 2, "eval_steps": 50, "target": None}
        settings |= {} if overlap is None else {"overlap": overlap}
        run = agilerl.train(env_id, algo, population=3, steps=512, evo_steps=256, out=None, verbose=False, **settings)
        return [p.detach() for agent in run.population for p in agent.actor.parameters()]

    monkeypatch.setattr(LoopOptions, "torch_threads", 1)  # torch's own rounding depends on its threads
    one = weights(1)
    assert begun == []
    several = weights(3)
    assert max(begun) == 3
    assert all(torch.equal(a, b) for a, b in zip(one, several, strict=True))


@pytest.mark.parametrize(("least", "expected"), [(60.0, []), (0.0, [4])])
def test_only_calls_that_take_long_enough_are_shared(
    least: float, expected: list[int], begun: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_threading, "MIN_SECONDS", least)
    networks = Identity(4)
    with kernel_threads(2):
        networks.kernel.run()
    assert networks.is_done
    assert begun == expected


def test_calls_in_the_background_are_done_when_they_are_finished(begun: list[int]) -> None:
    many = [Identity(1 + number % 5) for number in range(70)]  # more calls than the pool holds at a time
    with kernel_threads(3):
        with deferring():
            for networks in many:
                networks.kernel.run()
        finish()
        assert all(networks.is_done for networks in many)
        for networks in many[:5]:
            networks.outputs.zero_()
            networks.kernel.run()  # not in the background: one member runs here, several at once
            assert networks.is_done
    assert begun == [1 + number % 5 for number in range(70)] + [2, 3, 4, 5]


def test_an_exception_waits_for_the_calls_in_the_background(begun: list[int]) -> None:
    networks = Identity(5)
    with kernel_threads(2):
        with contextlib.suppress(ZeroDivisionError), deferring():
            networks.kernel.run()
            raise ZeroDivisionError
        assert networks.is_done
        networks.outputs.zero_()
        networks.kernel.run()
        assert networks.is_done, "calls are no longer deferred"


def test_without_threads_calls_are_done_at_once() -> None:
    networks = Identity(2)
    with deferring():
        networks.kernel.run()
        assert networks.is_done
    finish()


def test_the_setting_comes_back(begun: list[int]) -> None:
    assert FOUND is not None
    with kernel_threads(3):
        assert FOUND.threads is not None
        assert FOUND.threads.count == 3
        with kernel_threads(1):
            assert FOUND.threads is None
    assert FOUND.threads is None


def test_a_system_without_threads_runs_calls_here(begun: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Library, "start", lambda self, threads: None)
    networks = Identity(3)
    with kernel_threads(4):
        networks.kernel.run()
    assert networks.is_done
    assert begun == []


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_a_forked_process_computes_without_the_threads_of_its_parent(begun: list[int]) -> None:
    before = start_method()
    networks = Identity(4)
    with kernel_threads(2):
        networks.kernel.run()
        networks.outputs.zero_()
        assert start_method() == before
        context = multiprocessing.get_context("fork")
        child = context.Process(target=lambda: exit(0 if (networks.kernel.run(), networks.is_done)[1] else 1))
        child.start()
        child.join(30)
        assert child.exitcode == 0


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
