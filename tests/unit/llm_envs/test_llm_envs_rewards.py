"""Reward functions that raise, hang, or answer with nonsense cost their samples, and are counted."""

from __future__ import annotations

import copy
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from agilerl.errors import EnvError
from agilerl.language.tiny import tiny_tokenizer
from agilerl.llm_envs import ReasoningGym, RewardError, rewards
from agilerl.llm_envs.rewards import WINDOW, RewardCaller

pytest.importorskip("transformers")

ROWS = [{"question": f"{i}=", "answer": str(i)} for i in range(4)]
TOKENIZER = tiny_tokenizer("0123456789=")
SHORT = 0.3  # seconds that a call may take where some are meant to hang


@pytest.fixture(params=["timer", "thread"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Calls in the main thread with a timer (the one of pytest-timeout is set aside), and in a thread."""
    if request.param == "thread":
        monkeypatch.setattr(rewards, "_alarm_is_free", lambda: False)
        yield "thread"
        return
    rest = signal.setitimer(signal.ITIMER_REAL, 0)
    handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    yield "timer"
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL  # as it was found
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, *rest)


def gym_of(reward: Callable[..., Any], **options: Any) -> ReasoningGym:
    return ReasoningGym(ROWS, [{"question": "9=", "answer": "9"}], TOKENIZER, reward, **options)


def scored(reward: Callable[..., Any], *texts: str, **options: Any) -> Any:
    gym = gym_of(reward, **options)
    return gym.score(gym.split("train")[:1], [list(texts)])


def forever() -> None:
    never = threading.Event()
    while True:
        never.wait(0.001)


def test_calls_run_in_the_thread_that_asks_while_the_timer_is_free(way: str) -> None:
    seen = []
    scored(lambda c, a, q: seen.append(threading.current_thread()) or 1.0, "a", "b")
    assert [thread is threading.main_thread() for thread in seen] == [way == "timer"] * 2
    assert seen[0] is seen[1]


def test_one_that_raises_costs_its_sample(way: str) -> None:
    def reward(completion: str, answer: str, question: str) -> float:
        if completion == "b":
            raise KeyError("no\nsuch thing")
        return 2.0

    scores = scored(reward, "a", "b", "c")
    assert scores.rewards.tolist() == [[2.0, 0.0, 2.0]]
    assert scores.failed.tolist() == [[False, True, False]]
    assert scores.faults == ("prompt 0, completion 1: KeyError: 'no\\nsuch thing'",)


def test_one_that_ends_the_program_does_not(way: str) -> None:
    assert scored(lambda c, a, q: exit(3), "a").faults == ("prompt 0, completion 0: SystemExit: 3",)


def test_one_that_hangs_is_cut_off_and_the_others_are_scored(way: str) -> None:
    def reward(completion: str, answer: str, question: str) -> float:
        if completion == "b":
            forever()
        return 1.0

    scores = scored(reward, "a", "b", "c", "d", reward_timeout=SHORT)
    assert scores.rewards.tolist() == [[1.0, 0.0, 1.0, 1.0]]
    assert scores.faults == ("prompt 0, completion 1: took longer than 0.3 s",)


def test_one_that_swallows_every_exception_is_cut_off(way: str) -> None:
    def reward(completion: str, answer: str, question: str) -> float:
        try:
            forever()
        except Exception:
            return 1.0
        return 1.0

    assert scored(reward, "a", reward_timeout=SHORT).failed.tolist() == [[True]]


def test_one_that_replaces_the_deadline_by_another_error_is_cut_off(way: str) -> None:
    def reward(completion: str, answer: str, question: str) -> float:
        try:
            forever()
        finally:
            raise RuntimeError("release unlocked lock")

    scores = scored(reward, "a", reward_timeout=SHORT)
    assert scores.faults == ("prompt 0, completion 0: took longer than 0.3 s",)


def test_one_that_swallows_what_the_deadline_causes_has_no_reward(way: str) -> None:
    def reward(completion: str, answer: str, question: str) -> float:
        try:
            forever()
        except BaseException:
            return 1.0
        return 1.0

    assert scored(reward, "a", reward_timeout=SHORT).failed.tolist() == [[True]]


def test_after_three_that_hang_the_rest_of_the_batch_is_not_called(way: str) -> None:
    called = []

    def reward(completion: str, answer: str, question: str) -> float:
        called.append(completion)
        if completion != "a":
            forever()
        return 1.0

    gym = gym_of(reward, reward_timeout=SHORT)
    prompts = gym.split("train")[:1]
    scores = gym.score(prompts, [["b", "a", "c", "d", "e", "a"]])
    assert called == ["b", "a", "c", "d"]
    assert scores.rewards.tolist() == [[0, 1, 0, 0, 0, 0]]
    assert scores.failed.tolist() == [[True, False, True, True, True, True]]
    assert "not called: 3 others" in scores.faults[3]
    assert gym.score(prompts, [["a", "a"]]).rewards.tolist() == [[1.0, 1.0]]  # the next batch is called again


def test_threads_that_cannot_be_ended_end_the_run_before_they_are_many() -> None:
    release = threading.Event()
    waiting = [threading.Thread(target=release.wait, daemon=True) for _ in range(9)]
    for thread in waiting:
        thread.start()
    gym = gym_of(lambda c, a, q: 1.0)
    prompts = gym.split("train")[:1]
    gym._caller._deadline._abandoned = waiting[:8]
    gym.score(prompts, [["a"]])
    gym._caller._deadline._abandoned = waiting
    with pytest.raises(RewardError, match="9 calls of a reward function or a game hang and cannot be ended"):
        gym.score(prompts, [["a"]])
    release.set()
    for thread in waiting:
        thread.join()
    gym.score(prompts, [["a"]])  # they have ended after all


@pytest.mark.parametrize(
    ("value", "expected", "fault"),
    [
        (True, 1.0, ""),
        (3, 3.0, ""),
        (np.float32(0.5), 0.5, ""),
        (np.array(0.25), 0.25, ""),
        (torch.tensor(2), 2.0, ""),
        (float("nan"), 0.0, "gave nan, which is not finite"),
        (torch.tensor(float("inf")), 0.0, "gave inf, which is not finite"),
        (10**400, 0.0, "gave a number that is too large"),
        ("1.0", 0.0, "gave str '1.0' instead of a number"),
        (None, 0.0, "gave NoneType None instead of a number"),
        ([1.0], 0.0, "gave list [1.0] instead of a number"),
        (1j, 0.0, "gave complex 1j instead of a number"),
    ],
)
def test_what_is_no_finite_number_is_a_fault(value: Any, expected: float, fault: str) -> None:
    scores = scored(lambda c, a, q: value, "a")
    assert scores.rewards.tolist() == [[expected]]
    assert scores.failed.tolist() == [[bool(fault)]]
    assert scores.faults == ((f"prompt 0, completion 0: {fault}",) if fault else ())


def test_a_batched_function_is_called_once_with_lists() -> None:
    calls = []

    def reward(completions: list[str], answers: list[str], questions: list[str]) -> np.ndarray:
        calls.append((completions, answers, questions))
        return np.array([float(c == a) for c, a in zip(completions, answers, strict=True)])

    gym = gym_of(reward, batched_reward=True)
    scores = gym.score(gym.split("train")[:2], [["0", "1"], ["0", "1"]])
    assert calls == [(["0", "1", "0", "1"], ["0", "0", "1", "1"], ["0=", "0=", "1=", "1="])]
    assert scores.rewards.tolist() == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("wrong", ["length", "raise", "hang", "type", "nan"])
def test_a_batched_function_that_fails_is_asked_sample_by_sample(wrong: str, way: str) -> None:
    def reward(completions: list[str], answers: list[str], questions: list[str]) -> Any:
        if "b" not in completions:
            return [1.0] * len(completions)
        if wrong == "raise":
            raise ValueError("b")
        if wrong == "hang":
            forever()
        if wrong == "nan":
            return [{"b": np.nan}.get(c, 1.0) for c in completions]
        return 1.0 if wrong == "type" else [1.0] * (len(completions) + 1)

    scores = scored(reward, "a", "b", "c", batched_reward=True, reward_timeout=SHORT)
    assert scores.rewards.tolist() == [[1.0, 0.0, 1.0]]
    assert scores.failed.tolist() == [[False, True, False]]
    fault = {
        "length": "ValueError: expected a list of 1 rewards, got 2 values",
        "raise": "ValueError: b",
        "hang": "took longer than 0.3 s",
        "type": "ValueError: expected a list of 1 rewards, got float",
        "nan": "gave nan, which is not finite",
    }[wrong]
    assert scores.faults == (f"prompt 0, completion 1: {fault}",)


def test_more_than_half_of_a_few_hundred_failing_is_an_error_that_shows_the_first() -> None:
    def reward(completion: str, answer: str, question: str) -> float:
        return 1 / int(completion)  # type: ignore[return-value]

    def run(bad: int, good: int) -> ReasoningGym:
        gym = gym_of(reward)
        gym.score(gym.split("train")[:1], [["0"] * bad + ["1"] * good])
        return gym

    half = run(WINDOW // 2, WINDOW // 2)
    assert (half.samples_scored, half.samples_failed) == (WINDOW, WINDOW // 2)
    assert run(WINDOW - 1, 0).samples_failed == WINDOW - 1  # too few yet
    message = r"failed for 129 of the last 256 completions; the first fault: prompt 0, completion 0: ZeroDivisionError"
    with pytest.raises(RewardError, match=message):
        run(WINDOW // 2 + 1, WINDOW // 2 - 1)
    assert issubclass(RewardError, EnvError)


def test_faults_are_a_few_lines_however_many_fail() -> None:
    assert len(scored(lambda c, a, q: None, *"abcdefgh").faults) == 4


def test_an_interrupt_of_the_user_is_not_a_fault() -> None:
    def reward(*arguments: Any) -> float:
        raise KeyboardInterrupt

    rest = signal.setitimer(signal.ITIMER_REAL, 0)
    handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with pytest.raises(KeyboardInterrupt):
        scored(reward, "a")
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, *rest)


def test_a_caller_whose_thread_has_begun_is_copied_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewards, "_alarm_is_free", lambda: False)
    caller = RewardCaller(abs, 1.0, batched=False)
    assert caller.score([(-2,)], ["a"])[0].tolist() == [2.0]
    for other in (copy.deepcopy(caller), pickle.loads(pickle.dumps(caller))):
        assert other.score([(-3,)], ["a"])[0].tolist() == [3.0]
        assert other.samples == 2


def test_threads_end_with_the_gym_that_they_work_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewards, "_alarm_is_free", lambda: False)
    caller = RewardCaller(abs, 1.0, batched=False)
    caller.score([(-2,)], ["a"])
    (thread,) = [thread for thread in threading.enumerate() if thread is caller._deadline._worker.thread]  # type: ignore[union-attr]
    del caller
    thread.join(timeout=60)
    assert not thread.is_alive()
