"""Results do not depend on how many threads torch would use, and the caller's setting comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import agilerl
from agilerl.core.threads import one_thread


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(count: int) -> tuple[list[list[float]], list[torch.Tensor], tuple[float, ...]]:
    """History, weights and evaluation of a short run, started with `count` threads."""
    torch.set_num_threads(count)
    found = agilerl.train("CartPole-v1", seed=0, steps=2000, out=None, verbose=False)
    scores = found.best.evaluate(episodes=4, seed=1).returns
    assert torch.get_num_threads() == count, "the caller's thread count was not given back"
    return found.history, [p.detach() for agent in found.population for p in agent.actor.parameters()], scores


@pytest.mark.slow
def test_a_run_is_the_same_whatever_the_thread_count() -> None:
    (history, weights, scores), (other_history, other_weights, other_scores) = run(1), run(2)
    assert history == other_history
    assert scores == other_scores
    assert all(torch.equal(a, b) for a, b in zip(weights, other_weights, strict=True))


def fail_with_one_thread() -> None:
    with one_thread():
        assert torch.get_num_threads() == 1
        raise ZeroDivisionError


def test_the_setting_comes_back_after_an_error() -> None:
    torch.set_num_threads(2)
    with pytest.raises(ZeroDivisionError):
        fail_with_one_thread()
    assert torch.get_num_threads() == 2
