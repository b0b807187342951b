"""Bandits of labelled data: contexts, rewards, seeds, and what is refused."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from agilerl.core.env_ids import resolve_env_id
from agilerl.envs.argument import Factory, environment_argument
from agilerl.envs.bandit import BanditEnv, BanditRounds, disjoint, is_bandit, labelled, rounds_of
from agilerl.errors import EnvError
from agilerl.wrappers import learning

FEATURES, TARGETS = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), ["b", "a", "b"]


def test_each_arm_sees_the_features_in_a_block_of_its_own() -> None:
    assert disjoint(np.array([1.0, 2.0]), 2).tolist() == [[1, 2, 0, 0], [0, 0, 1, 2]]


def test_the_published_interface_pays_for_the_class_of_the_last_context() -> None:
    env = learning.BanditEnv(FEATURES, TARGETS, seed=0)
    assert (env.arms, env.context_dim, env.observation_space.shape) == (2, (4,), (2, 4))
    contexts, classes = env.reset(), {1.0: 0, 3.0: 1, 5.0: 0}  # "b" is seen first, so that it is arm 0
    for k in range(40):
        right = classes[float(contexts[0, 0])]
        contexts, reward = env.step(k % 2)
        assert reward == float(right == k % 2)
        assert contexts.shape == (2, 4)
        assert contexts.dtype == np.float32
    with pytest.raises(EnvError, match=r"arms 0 to 1; got 2"):
        env.step(2)


def test_a_seed_repeats_the_contexts_of_rounds_and_lanes_draw_their_own() -> None:
    bandit = BanditEnv(FEATURES, TARGETS)

    def contexts(env: gym.Env[Any, Any], seed: int) -> list[Any]:
        return [env.reset(seed=seed)[0].tolist(), *(env.step(0)[0].tolist() for _ in range(20))]

    one, other = rounds_of(bandit), rounds_of(bandit)
    assert contexts(one, 1) == contexts(other, 1) != contexts(other, 2)


def test_the_rounds_of_a_subclass_pay_its_rewards() -> None:
    class Halved(BanditEnv):
        def step(self, k: int) -> tuple[np.ndarray, float]:
            contexts, reward = super().step(k)
            return contexts, reward / 2 - 1

    bandit = Halved(FEATURES, TARGETS, seed=0)
    factory = environment_argument(bandit)
    for env in (rounds_of(bandit), factory()):
        env.reset(seed=0)
        rewards = {float(env.step(0)[1]) for _ in range(30)}
        assert rewards == {-1.0, -0.5}
    assert rounds_of(bandit).unwrapped.bandit._x is bandit._x, "the data is shared"


def test_rounds_end_by_their_limit_alone() -> None:
    env = rounds_of(BanditEnv(FEATURES, TARGETS), 3)
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]


class Coin:
    """A bandit of a user, without features."""

    arms, context_dim = 2, (3,)

    def reset(self) -> Any:
        return np.zeros((2, 3))

    def step(self, k: int) -> tuple[Any, float]:
        return np.ones((2, 3)), 0.25


def test_an_environment_argument_may_be_a_bandit() -> None:
    factory = environment_argument(BanditEnv(FEATURES, TARGETS))
    assert isinstance(factory, Factory)
    assert factory.makes == "BanditEnv"
    assert isinstance(factory().unwrapped, BanditRounds)
    own = environment_argument(Coin())
    assert own.step(1)[1] == 0.25 if own.reset() else False
    assert own.observation_space.shape == (2, 3)
    assert is_bandit(Coin())
    assert not is_bandit(Coin)
    assert not is_bandit(own)


@pytest.mark.parametrize(
    ("features", "targets", "says"),
    [
        ([[1.0], [2.0]], [0], r"2 rows of features and 1 targets"),
        ([[1.0], [2.0]], [7, 7], r"one class"),
        ([1.0, 2.0], [0, 1], r"shape \(2,\); expected finite numbers \[n, d\]"),
        ([[np.nan], [1.0]], [0, 1], r"finite"),
        ([["x"], ["y"]], [0, 1], r"not numbers"),
        ([[1.0]], [], r"no targets"),
        ([[1.0], [2.0], [3.0]], [0.0, np.nan, 1.0], r"1 missing targets, from row 1"),
        ([[1.0], [2.0]], ["a", None], r"1 missing targets, from row 1"),
        ([[1.0], [2.0]], np.array(["a", 1], dtype=object), r"types that cannot be compared"),
    ],
)
def test_data_that_make_no_bandit(features: Any, targets: Any, says: str) -> None:
    with pytest.raises(EnvError, match=says):
        BanditEnv(features, targets)


def test_ids_name_data_sets_with_mean_0_and_deviation_1() -> None:
    pytest.importorskip("sklearn")
    features, targets = labelled("wine")
    assert features.shape == (178, 13)
    assert np.allclose(features.mean(0), 0, atol=1e-5)
    assert np.allclose(features.std(0), 1, atol=1e-5)
    assert set(targets) == {0, 1, 2}
    env = gym.make(resolve_env_id("bandit/breast_cancer"))
    assert env.observation_space.shape == (2, 60)
    assert env.spec.max_episode_steps == 100
    with pytest.raises(EnvError, match=r"data set of bandits 'wines'.*wine"):
        labelled("wines")


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(EnvError, match=r'bandit/iris: scikit-learn is missing. fix: pip install "agilerl\[bandit\]"'):
        labelled("iris")
