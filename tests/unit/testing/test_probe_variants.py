"""Probes shown as images and dictionaries, and continuous probes: what they say is what they do."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from agilerl.errors import EnvError
from tests.probe.environments import (
    CONTINUOUS_PROBES,
    ContinuousDiscountedEnv,
    ContinuousPolicyEnv,
    ContinuousProbe,
    DictProbe,
    DiscountedRewardEnv,
    FourStatesEnv,
    ImageProbe,
    TwoStepCreditEnv,
)

GAMMA = 0.9


@pytest.mark.parametrize(
    "make",
    [
        lambda: ImageProbe(TwoStepCreditEnv()),
        lambda: ImageProbe(TwoStepCreditEnv(), channels_last=True),
        lambda: DictProbe(FourStatesEnv()),
        *CONTINUOUS_PROBES,
    ],
)
def test_they_are_gymnasium_environments(make: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on the size of images and the range of actions
        check_env(make(), skip_render_check=True)


def test_states_look_different_from_one_another_and_no_part_of_a_dictionary_tells_them_apart() -> None:
    for last in (False, True):
        images = ImageProbe(TwoStepCreditEnv(), channels_last=last).observations
        assert len({image.tobytes() for image in images}) == 3
        assert all(image.sum() == 6 * 255 for image in images)
    shown = DictProbe(FourStatesEnv()).observations
    cameras, numbers = ([f(o) for o in shown] for f in (lambda o: int(o["camera"].max()), lambda o: int(o["body"][0])))
    assert cameras == [0, 255, 0, 255]
    assert numbers == [0, 0, 1, 1]


def test_an_episode_by_hand() -> None:
    env = ImageProbe(DiscountedRewardEnv())
    obs, _ = env.reset(seed=0)
    assert obs[0, 0].tolist() == [255] * 6
    obs, reward, terminated, truncated, _ = env.step(0)
    assert (obs[0, 2].tolist(), obs[0, 0].max(), reward, terminated, truncated) == ([255] * 6, 0, 0.0, False, False)
    assert env.step(1)[1:4] == (1.0, True, False)
    np.testing.assert_array_equal(env.expected_q(GAMMA), [[GAMMA, GAMMA], [1, 1]])


@pytest.mark.parametrize("make", CONTINUOUS_PROBES)
def test_the_value_of_each_state_is_the_best_return_over_a_grid_of_actions(make: type[ContinuousProbe]) -> None:
    env, best = make(), {}
    for action in np.linspace(2, 6, 41):
        for seed in range(6):
            env.reset(seed=seed)
            start, total, factor, ended = env.state, 0.0, 1.0, False
            while not ended:
                _, reward, ended, _, _ = env.step(np.array([action], np.float32))
                total, factor = total + factor * reward, factor * GAMMA
            if start not in best or total > best[start][0]:
                best[start] = (total, action)
    for state, (value, action) in best.items():
        assert value == pytest.approx(env.expected_value(GAMMA)[state])
        known = env.best_actions()
        assert known is None or action == pytest.approx(known[state])
    assert set(best) == ({0} if make is ContinuousDiscountedEnv else set(range(len(env.observations))))


def test_raw_actions_are_refused() -> None:
    env = ContinuousPolicyEnv()
    env.reset(seed=0)
    with pytest.raises(EnvError, match="outside"):
        env.step(np.array([0.0], np.float32))
