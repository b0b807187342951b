"""Texts of other libraries' warnings are shown once in a run."""

from __future__ import annotations

import warnings

import gymnasium as gym
import numpy as np
from small_envs import Episodes

import agilerl
from agilerl.errors import AgileRLWarning, others_warn_once


class Float64Bounds(Episodes):
    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(np.full(2, -np.pi), np.full(2, np.pi), dtype=np.float32)


def test_a_warning_of_gymnasium_is_shown_once_in_a_run() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agilerl.train(
            Float64Bounds, "PPO", population=1, steps=32, evo_steps=32, learn_step=32, num_envs=2, eval_episodes=1,
            out=None, verbose=False,
        )  # fmt: skip
    shown = [str(w.message) for w in caught if "Box low's precision" in str(w.message)]
    assert len(shown) == 1, "ten environments"


def test_our_warnings_are_shown_each_time_and_nothing_stays_replaced() -> None:
    before = warnings.showwarning
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with others_warn_once():
            for category in (UserWarning, AgileRLWarning) * 2:
                warnings.warn("text", category, stacklevel=1)
    assert [w.category for w in caught] == [UserWarning, AgileRLWarning, AgileRLWarning]
    assert warnings.showwarning is before
