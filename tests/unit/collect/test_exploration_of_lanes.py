"""`explore_least` and `reward_floor`: what lanes explore with, and what is learned from their rewards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import agilerl
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.config import apply_sets, preset_for
from agilerl.core.options import OffPolicyOptions
from agilerl.errors import ConfigError
from agilerl.rollouts.off_policy import scale_noise_per_lane


def test_noise_grows_from_the_first_lane_to_the_last() -> None:
    draws = np.ones((2, 4, 3))
    (noise,) = scale_noise_per_lane((draws,), 0.1)
    assert noise.shape == (2, 4, 3)
    np.testing.assert_allclose(noise[1, :, 2], [0.1, 0.4, 0.7, 1.0])
    assert scale_noise_per_lane((draws,), 1.0)[0] is draws, "as it was, bit for bit"


@pytest.mark.parametrize(
    ("env", "algo", "kwargs"),
    [("Pendulum-v1", "TD3", {}), ("mpe2.simple_spread_v3", "MATD3", {"continuous_actions": True})],
)
def test_quiet_lanes_act_as_the_policy_does(
    env: str, algo: str, kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two lanes the first one is greedy, the second one is not: seen in the actions that are stored."""
    stored: list[np.ndarray] = []
    write = ReplayBuffer.write

    def record(self: ReplayBuffer, obs: object, action: np.ndarray, *rest: Any, **named: Any) -> int:
        stored.append(np.array(action))
        return write(self, obs, action, *rest, **named)

    monkeypatch.setattr(ReplayBuffer, "write", record)
    settings = {"population": 1, "steps": 80, "num_envs": 2, "evo_steps": 80, "random_steps": 0, "learning_delay": 1000}
    agilerl.train(
        env, algo, **settings, kwargs=kwargs, expl_noise=0.9, explore_least=0.0, out=None, verbose=False, seed=1,
        eval_episodes=1, target_score=None,
    )  # fmt: skip
    steps = np.array(stored)[:, :, 0]
    spread = np.abs(np.diff(steps, axis=0)).mean(axis=0)
    assert spread[0] < 0.1 < 0.3 < spread[1]


def test_it_needs_box_actions() -> None:
    with pytest.raises(
        ConfigError, match=r"explore_least scales the noise of Box actions; CartPole-v1 has Discrete\(2\)"
    ):
        agilerl.train("CartPole-v1", "DQN", explore_least=0.5, steps=50, out=None, verbose=False)
    with pytest.raises(ConfigError, match="explore_least"):
        apply_sets(preset_for("Pendulum-v1"), ["explore_least=1.5"])


def test_a_floor_under_rewards_comes_before_their_scale() -> None:
    options = OffPolicyOptions(reward_floor=-20.0, reward_scale=0.05)
    np.testing.assert_allclose(options.learned_reward(np.array([-100.0, -20.0, -3.0, 100.0])), [-1.0, -1.0, -0.15, 5.0])
    signs = OffPolicyOptions(reward_floor=-20.0, clip_rewards=True).learned_reward(np.array([-100.0, 0.0, 7.0]))
    np.testing.assert_array_equal(signs, [-1.0, 0.0, 1.0])


def test_a_manifest_that_does_not_use_it_keeps_its_hash() -> None:
    manifest = preset_for("Pendulum-v1")
    assert apply_sets(manifest, ["explore_least=1.0"]).hash() == manifest.hash()
    assert apply_sets(manifest, ["explore_least=0.5"]).hash() != manifest.hash()
