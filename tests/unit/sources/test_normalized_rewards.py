"""`training.normalize_rewards`: a running scale of rewards, hand-worked and in both kinds of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import agilerl
from agilerl import errors
from agilerl.algorithms.dqn import DQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.config import apply_sets, preset_for
from agilerl.envs.step import StepBatch, SyncLanes, VectorLanes
from agilerl.errors import AgileRLWarning, ConfigError
from agilerl.options import LoopOptions, OffPolicyOptions
from agilerl.sources.off_policy import OffPolicySource
from agilerl.sources.rewards import RewardScale
from agilerl.sources.rollouts import OnPolicyGeneration
from agilerl.sources.updates import Updates
from agilerl.training.loop import TrainingLoop
from agilerl.utils.utils import make_vect_envs

SMALL: dict[str, Any] = {
    "population": 2, "steps": 400, "seed": 4, "evo_steps": 200, "num_envs": 2, "eval_episodes": 1, "batch_size": 16,
    "target_score": None, "verbose": False, "out": None, "normalize_rewards": True, "reward_scale": 1.0,
}  # fmt: skip


class Member:
    def __init__(self, gamma: float) -> None:
        self.gamma = gamma


def step(mask: list[bool], ended: list[bool]) -> StepBatch:
    lanes = len(mask)
    nothing = np.zeros((lanes, 1), np.float32)
    return StepBatch(
        obs=nothing, reward=np.zeros(lanes), terminated=np.array(ended), truncated=np.zeros(lanes, bool),
        final_obs=nothing, info={}, mask=np.array(mask),
    )  # fmt: skip


def test_the_factor_is_one_over_the_deviation_of_discounted_sums() -> None:
    """γ = 1/2 and rewards 1, 2, end, 3: sums 1, 2.5, 3 with variance 13/18."""
    scale = RewardScale()
    scale.begin([Member(0.5)], 1)
    assert scale.factor == pytest.approx(1.0)
    for reward, ended in ((1.0, False), (2.0, True), (3.0, False)):
        scale.see(np.array([reward]), step([True], [ended]))
    assert scale.factor == pytest.approx((18 / 13) ** 0.5, rel=1e-7)


def test_members_have_their_own_discount_and_lanes_at_rest_do_not_count() -> None:
    """Sums 1, 1; then 1.5 with γ = 1/2 while the other lane rests; then 1 and 1.75: variance 0.105 of five sums."""
    scale = RewardScale()
    scale.begin([Member(0.9), Member(0.5)], 1)
    scale.see(np.array([1.0, 1.0]), step([True, True], [True, False]))
    scale.see(np.array([7.0, 1.0]), step([False, True], [False, False]))
    scale.see(np.array([1.0, 1.0]), step([True, True], [False, False]))
    assert scale.statistics.count == 5
    assert scale.factor == pytest.approx(np.array([1, 1, 1.5, 1, 1.75]).std() ** -1, rel=1e-7)


def test_the_unit_of_rewards_does_not_matter() -> None:
    rewards = np.random.default_rng(0).normal(size=(50, 3))
    scaled = []
    for unit in (1.0, 1e4):
        scale = RewardScale()
        scale.begin([Member(0.99)], 3)
        scaled.append([scale.see(unit * r, step([True] * 3, [False] * 3)) or unit * r * scale.factor for r in rewards])
    np.testing.assert_allclose(scaled[0], scaled[1], rtol=1e-6)


def test_replay_holds_rewards_as_they_are_and_learning_sees_them_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: list[tuple[np.ndarray, np.ndarray, float]] = []
    batches = Updates.batches

    def record(self: Updates, plan: Any, sizes: Any, indices: np.ndarray, index: int) -> Any:
        made = batches(self, plan, sizes, indices, index)
        assert self.rewards is not None
        raw = self.replay.memory.gather(indices)["reward"]
        pairs.append((raw.numpy(), made.fields["reward"].numpy(), self.rewards.factor))
        return made

    monkeypatch.setattr(Updates, "batches", record)
    run = agilerl.train("Pendulum-v1", "TD3", **SMALL, learning_delay=100, random_steps=100)
    assert pairs
    for raw, learned, factor in pairs:
        np.testing.assert_allclose(learned, raw * factor, rtol=1e-6)
    last = pairs[-1][2]
    assert 0.01 < last < 0.2, "sums of Pendulum's costs vary by tens"
    assert min(raw.min() for raw, *_ in pairs) < -5
    assert run.best.fitness[-1] < -500, "fitness is in the environment's own unit"


def rollouts_of(env_id: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[tuple[np.ndarray, np.ndarray, float]], Any]:
    """Of every rollout of a run (stored rewards, those that were learned from, factor), and the run."""
    seen: list[tuple[np.ndarray, np.ndarray, float]] = []
    stored: list[np.ndarray] = []
    learn, rollout = OnPolicyGeneration._learn, OnPolicyGeneration._rollout

    def before(self: OnPolicyGeneration, group: Any) -> None:
        stored.append(np.array(group.buffer.stored("reward")))
        learn(self, group)

    def record(self: OnPolicyGeneration, group: Any) -> Any:
        assert self.rewards is not None
        seen.append((stored[-1], np.array(group.buffer.stored("reward")), self.rewards.factor))
        return rollout(self, group)

    monkeypatch.setattr(OnPolicyGeneration, "_learn", before)
    monkeypatch.setattr(OnPolicyGeneration, "_rollout", record)
    return seen, agilerl.train(env_id, "PPO", **{**SMALL, "learn_step": 200})


def test_rollouts_are_scaled_when_they_are_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, run = rollouts_of("Pendulum-v1", monkeypatch)
    assert len(seen) == 2
    for raw, learned, factor in seen:
        assert -17 < raw.min() < -5
        assert 0.01 < factor < 0.2
        np.testing.assert_allclose(learned, raw * factor, rtol=1e-12)
    assert run.best.fitness[-1] < -500


def test_the_first_steps_of_a_run_have_the_scale_of_their_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sums are 1 after one step of CartPole-v1: their deviation is 0, and 1 / sqrt(1e-8) of it is no scale."""
    seen, _ = rollouts_of("CartPole-v1", monkeypatch)
    raw, learned, factor = seen[0]
    assert (raw == 1.0).all()
    assert 0.05 < factor < 1.0
    assert learned.min() == learned.max() == factor


def test_agents_with_their_own_learn_are_a_named_error() -> None:
    class Own(DQN):
        def learn(self, experiences: Any) -> float:
            return 0.0

    env = make_vect_envs("CartPole-v1", num_envs=2)
    agent = Own(env.single_observation_space, env.single_action_space)
    options = OffPolicyOptions(max_steps=40, evo_steps=20, normalize_rewards=True)
    loop = TrainingLoop([agent], OffPolicySource(env, ReplayBuffer(100), options), options, seed=1)
    with pytest.raises(
        ConfigError, match=r"normalize_rewards is for .*; Own brings its own learn\. fix: .*TransformReward"
    ):
        loop.run()


def test_one_way_of_scaling_is_enough() -> None:
    with pytest.raises(
        ConfigError, match=r"normalize_rewards finds the scale of rewards by itself; got reward_scale=0.1"
    ):
        LoopOptions(normalize_rewards=True, reward_scale=0.1)
    with pytest.raises(ConfigError, match="got clip_rewards too"):
        LoopOptions(normalize_rewards=True, clip_rewards=True)


def test_a_manifest_that_does_not_use_it_keeps_its_hash() -> None:
    manifest = preset_for("CartPole-v1")
    assert apply_sets(manifest, ["normalize_rewards=false"]).hash() == manifest.hash()
    assert apply_sets(manifest, ["normalize_rewards=true"]).hash() != manifest.hash()


def wrapped_lanes() -> SyncLanes:
    return SyncLanes([lambda: gym.wrappers.NormalizeReward(gym.make("CartPole-v1"))])


def wrapped_vector() -> VectorLanes:
    return VectorLanes(gym.wrappers.vector.NormalizeObservation(gym.make_vec("CartPole-v1", 2)))


@pytest.mark.parametrize(
    ("make", "fix"), [(wrapped_lanes, "fix: normalize_rewards=true"), (wrapped_vector, r"fix: RSNorm\(agent\)")]
)
def test_statistics_that_nobody_saves_are_said_once(
    make: Callable[[], Any], fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "_warned", set())
    with pytest.warns(AgileRLWarning, match=f"no checkpoint and no saved policy holds them. {fix}") as caught:
        made = [make() for _ in range(2)]
    assert len(caught) == 1
    assert len(made) == 2
