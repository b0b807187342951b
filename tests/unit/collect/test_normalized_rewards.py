"""`training.normalize_rewards`: a running scale of rewards, hand-worked and in both kinds of training."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from small_envs import Episodes, ParallelGame

import agilerl
from agilerl import errors
from agilerl.algorithms.dqn import DQN
from agilerl.algorithms.ppo import PPO
from agilerl.collect.collector import Shard
from agilerl.collect.off_policy import OffPolicyCollector
from agilerl.collect.rewards import RewardScale
from agilerl.collect.rollouts import OnPolicyGeneration
from agilerl.collect.updates import Updates
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.config import apply_sets, preset_for
from agilerl.core.options import LoopOptions, OffPolicyOptions
from agilerl.envs.step import StepBatch, SyncLanes, VectorLanes
from agilerl.errors import AgileRLWarning, ConfigError
from agilerl.training.loop import LoopSettings, TrainingLoop
from agilerl.utils.utils import make_vect_envs

SMALL: dict[str, Any] = {
    "population": 2, "steps": 400, "seed": 4, "evo_steps": 200, "num_envs": 2, "eval_episodes": 1, "batch_size": 16,
    "target_score": None, "verbose": False, "out": None, "normalize_rewards": True, "reward_scale": 1.0,
}  # fmt: skip


GAMMAS = (0.982, 0.99, 0.9925, 0.9975)


class Member:
    _reward_statistics: Any = None

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma


class Steady(Episodes):
    """A reward of 1 in every step, and a time limit of 50."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    length, is_cut = 50, True

    def __init__(self, is_box: bool = False) -> None:
        self.action_space: Any = gym.spaces.Box(-1, 1, (1,), np.float32) if is_box else gym.spaces.Discrete(2)

    def observe(self) -> np.ndarray:
        return np.full(1, self.age / 50, np.float32)


class SteadyPair(ParallelGame):
    """Two agents, each with a reward of 1 in every step, and a time limit of 50."""

    observed = dict.fromkeys(("a_0", "b_0"), gym.spaces.Box(-1, 1, (1,), np.float32))
    acted = dict.fromkeys(("a_0", "b_0"), gym.spaces.Discrete(2))
    length, is_cut = 50, True

    def observe(self) -> dict[str, Any]:
        return dict.fromkeys(self.observed, np.full(1, self.age / 50, np.float32))


def lone_factor(gamma: float, steps: int = 400) -> float:
    """1 / std of the discounted sums of rewards of 1 in episodes of 50 steps."""
    episode = np.cumsum(gamma ** np.arange(50))
    return float(1 / np.tile(episode, steps // 50).std())


def step(mask: list[bool], ended: list[bool]) -> StepBatch:
    lanes = len(mask)
    nothing = np.zeros((lanes, 1), np.float32)
    return StepBatch(
        obs=nothing, reward=np.zeros(lanes), terminated=np.array(ended), truncated=np.zeros(lanes, bool),
        final_obs=nothing, info={}, mask=np.array(mask),
    )  # fmt: skip


def test_the_factor_is_one_over_the_deviation_of_discounted_sums() -> None:
    """γ = 1/2 and rewards 1, 2, end, 3: sums 1, 2.5, 3 with variance 13/18."""
    scale = RewardScale([Member(0.5)], 1)
    assert scale.factors.tolist() == pytest.approx([1.0])
    for reward, ended in ((1.0, False), (2.0, True), (3.0, False)):
        scale.see(np.array([reward]), step([True], [ended]))
    assert scale.factors.tolist() == pytest.approx([(18 / 13) ** 0.5], rel=1e-7)


def test_members_have_their_own_discount_and_lanes_at_rest_do_not_count() -> None:
    """Sums of two lanes each: 1, 1, 1.9 and 1, 1 with γ = 0.9, where one rests; 1, 1, 1, 1.5, 1.75, 1 with γ = 1/2."""
    members = [Member(0.9), Member(0.5)]
    scale = RewardScale(members, 2)
    going_on = [False] * 4
    scale.see(np.ones(4), step([True] * 4, [False, True, True, False]))
    scale.see(np.array([1.0, 7.0, 1.0, 1.0]), step([True, False, True, True], going_on))
    scale.see(np.array([9.0, 1.0, 9.0, 1.0]), step([False, True, False, True], going_on))
    scale.see(np.full(4, 9.0), step([False] * 4, going_on))
    assert scale.count.tolist() == [4, 5]
    expected = [1 / np.std([1, 1, 1.9, 1]), 1 / np.std([1, 1, 1, 1.5, 1.75])]
    assert scale.factors.tolist() == pytest.approx(expected, rel=1e-7)
    scale.keep()
    assert members[1]._reward_statistics == pytest.approx(
        {"mean": 1.25, "var": np.var([1, 1, 1, 1.5, 1.75]), "count": 5, "gamma": 0.5}
    )
    assert RewardScale(members[1:], 2).factors.tolist() == scale.factors[1:].tolist()


def test_a_member_among_others_has_the_bits_of_a_lone_one() -> None:
    rng = np.random.default_rng(0)
    members = [Member(gamma) for gamma in GAMMAS]
    together, alone = RewardScale(members, 3), [RewardScale([member], 3) for member in members]
    for _ in range(100):
        rewards, mask, ended = rng.normal(size=12), rng.random(12) < rng.choice([0.7, 1.1]), rng.random(12) < 0.1
        together.see(rewards, step(mask.tolist(), ended.tolist()))
        for number, one in enumerate(alone):
            lanes = slice(3 * number, 3 * number + 3)
            one.see(rewards[lanes], step(mask[lanes].tolist(), ended[lanes].tolist()))
    assert together.factors.tolist() == [float(one.factors[0]) for one in alone]


def test_sums_of_an_earlier_discount_count_as_those_of_one_horizon() -> None:
    """Two lanes and γ = 3/4: 8 sums of mean 3 and variance 4; with 6 and 10 (8, 4) the variance is 80 / 10."""
    member, other = Member(0.75), Member(0.75)
    member._reward_statistics = {"mean": 3.0, "var": 4.0, "count": 1000, "gamma": 0.9}
    other._reward_statistics = {**member._reward_statistics, "gamma": 0.75}
    scale = RewardScale([member, other], 2)
    scale.see(np.array([6.0, 10.0, 6.0, 10.0]), step([True] * 4, [False] * 4))
    assert scale.count.tolist() == [10, 1002]
    assert scale.factors.tolist() == pytest.approx([8**-0.5, (4 + 25 * 2000 / 1002**2) ** -0.5], rel=1e-7)
    scale.keep()
    assert RewardScale([member], 2).count.tolist() == [10], "the discount has not changed since"


WAYS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "replay": ("DQN", Steady, {}),
    "replay of Box actions": ("TD3", functools.partial(Steady, is_box=True), {}),
    "rollouts": ("PPO", Steady, {"learn_step": 100}),
    "replay of teams": ("MADDPG", SteadyPair, {}),
    "rollouts of teams": ("MAPPO", SteadyPair, {"learn_step": 100}),
    "shards": ("PPO", Steady, {"learn_step": 100, "shards": 2}),
    "one after another": ("DQN", Steady, {"lockstep": False}),
}


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_every_member_has_the_factor_of_a_lone_agent_with_its_discount(way: str) -> None:
    """With rewards of 1 one scale for all was 6.2, 2.8, 2.1 and 0.7 times too small."""
    algo, make, more = WAYS[way]
    settings = {**SMALL, "population": 4, "evo_steps": 400, "preset": False, "evolution": False, **more}
    founders = agilerl.train(make, algo, **{**settings, "steps": 1}).population
    for agent, gamma in zip(founders, GAMMAS, strict=True):
        agent.gamma = gamma
    run = agilerl.train(make, algo, agents=founders, **settings)
    assert [member.gamma for member in run.population] == list(GAMMAS)
    factors = RewardScale(run.population, 1).factors.tolist()
    assert factors == pytest.approx([lone_factor(gamma) for gamma in GAMMAS], rel=1e-6)
    for founder, member in zip(founders, run.population, strict=True):
        (lone,) = agilerl.train(make, algo, agents=[founder], **{**settings, "population": 1, "shards": 1}).population
        assert (lone.gamma, lone._reward_statistics) == (member.gamma, member._reward_statistics)


def test_children_continue_the_statistics_of_their_parent_and_files_hold_them() -> None:
    """Of two members with sums 0, 2 and 0, 4, whose variances are 1 and 4."""
    agents = [DQN(Steady.observation_space, gym.spaces.Discrete(2), seed=k, gamma=0.5) for k in range(2)]
    scale = RewardScale(agents, 2)
    scale.see(np.array([0.0, 2.0, 0.0, 4.0]), step([True] * 4, [False] * 4))
    assert agents[1]._reward_statistics is None, "a generation that is not over has changed nothing"
    scale.keep()
    child, other = agents[1].clone(index=7), DQN(Steady.observation_space, gym.spaces.Discrete(2), seed=9)
    other.load_run_state(agents[0].run_state())
    factors = RewardScale([child, other], 1).factors.tolist()
    assert factors == pytest.approx([0.5, 1.0], rel=1e-7)
    again = RewardScale([child], 1)
    again.see(np.array([9.0]), step([True], [False]))
    again.keep()
    assert agents[1]._reward_statistics == {"mean": 2.0, "var": 4.0, "count": 2, "gamma": 0.5}, (
        "the parent's are its own"
    )


def test_a_state_of_one_scale_for_all_is_where_every_member_starts() -> None:
    """As runs of earlier versions hold it: a variance of 4 of 10 sums."""
    env = make_vect_envs("CartPole-v1", num_envs=2)
    source = OffPolicyCollector(
        env, ReplayBuffer(100), OffPolicyOptions(max_steps=40, evo_steps=20, normalize_rewards=True)
    )
    source.load_state({"epsilon": 0.5, "rewards": {"mean": 3.0, "var": 4.0, "count": 10}})
    agents = [DQN(env.single_observation_space, env.single_action_space, seed=k) for k in range(2)]
    agents[1]._reward_statistics = {"mean": 0.0, "var": 16.0, "count": 5}
    shard = Shard(agents, [0, 1], 1, 3, 20, 10, source.shared[0])
    scale = RewardScale.of(shard, 2)
    assert scale.factors.tolist() == pytest.approx([0.5, 0.25], rel=1e-7)
    assert scale.count.tolist() == [10, 5]
    env.close()


def test_the_unit_of_rewards_does_not_matter() -> None:
    rewards = np.random.default_rng(0).normal(size=(50, 3))
    scaled = []
    for unit in (1.0, 1e4):
        scale = RewardScale([Member(0.99)], 3)
        scaled.append([scale.see(unit * r, step([True] * 3, [False] * 3)) or unit * r * scale.factors for r in rewards])
    np.testing.assert_allclose(scaled[0], scaled[1], rtol=1e-6)


def test_replay_holds_rewards_as_they_are_and_learning_sees_them_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    batches = Updates.batches

    def record(self: Updates, plan: Any, sizes: Any, indices: np.ndarray, index: int) -> Any:
        made = batches(self, plan, sizes, indices, index)
        raw = self.replay.memory.gather(indices)["reward"]
        factors = self.rewards.factors[plan.members][:, None]
        pairs.append((raw.numpy(), made.fields["reward"].numpy(), factors))
        return made

    monkeypatch.setattr(Updates, "batches", record)
    run = agilerl.train("Pendulum-v1", "TD3", **SMALL, learning_delay=100, random_steps=100)
    assert pairs
    for raw, learned, factor in pairs:
        np.testing.assert_allclose(learned, raw * factor, rtol=1e-6)
    last = pairs[-1][2]
    assert ((last > 0.01) & (last < 0.2)).all(), "sums of Pendulum's costs vary by tens"
    assert min(raw.min() for raw, *_ in pairs) < -5
    assert run.best.fitness[-1] < -500, "fitness is in the environment's own unit"


Rollouts = list[tuple[np.ndarray, np.ndarray, np.ndarray]]


def rollouts_of(env_id: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Rollouts, Any]:
    """Of every rollout of a run (stored rewards, those that were learned from, factor of each lane), and the run."""
    seen: Rollouts = []
    stored: list[np.ndarray] = []
    learn, rollout = OnPolicyGeneration._learn, OnPolicyGeneration._rollout

    def before(self: OnPolicyGeneration, group: Any) -> None:
        stored.append(np.array(group.buffer.stored("reward")))
        learn(self, group)

    def record(self: OnPolicyGeneration, group: Any) -> Any:
        factors = np.repeat(self.rewards.factors[group.members], self.num_envs)
        seen.append((stored[-1], np.array(group.buffer.stored("reward")), factors))
        return rollout(self, group)

    monkeypatch.setattr(OnPolicyGeneration, "_learn", before)
    monkeypatch.setattr(OnPolicyGeneration, "_rollout", record)
    return seen, agilerl.train(env_id, "PPO", **{**SMALL, "learn_step": 200})


def test_rollouts_are_scaled_when_they_are_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, run = rollouts_of("Pendulum-v1", monkeypatch)
    assert len(seen) == 2
    for raw, learned, factor in seen:
        assert -17 < raw.min() < -5
        assert ((factor > 0.01) & (factor < 0.2)).all()
        np.testing.assert_allclose(learned, raw * factor, rtol=1e-12)
    assert run.best.fitness[-1] < -500


def test_the_first_steps_of_a_run_have_the_scale_of_their_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sums are 1 after one step of CartPole-v1: their deviation is 0, and 1 / sqrt(1e-8) of it is no scale."""
    seen, _ = rollouts_of("CartPole-v1", monkeypatch)
    raw, learned, factor = seen[0]
    assert (raw == 1.0).all()
    assert ((factor > 0.05) & (factor < 1.0)).all()
    assert factor[0] != factor[-1], "each of two members has a scale of its own"
    assert (learned == factor.astype(learned.dtype)).all()


def test_agents_with_their_own_learn_are_a_named_error() -> None:
    class Own(DQN):
        def learn(self, experiences: Any) -> float:
            return 0.0

    env = make_vect_envs("CartPole-v1", num_envs=2)
    agent = Own(env.single_observation_space, env.single_action_space)
    options = OffPolicyOptions(max_steps=40, evo_steps=20, normalize_rewards=True)
    loop = TrainingLoop([agent], OffPolicyCollector(env, ReplayBuffer(100), options), options, LoopSettings(seed=1))
    with pytest.raises(
        ConfigError, match=r"normalize_rewards is for .*; Own brings its own learn\. fix: .*TransformReward"
    ):
        loop.run()


@pytest.mark.parametrize("method", ["get_action", "learn"])
def test_the_scale_of_a_preset_gives_way_to_custom_methods_with_a_note(
    method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(PPO, method)(self, *args, **kwargs)

    kind: Any = type("Own", (PPO,), {method: called})
    options = {**SMALL, "population": 1, "steps": 200, "learn_step": 64, "verbose": True}
    del options["normalize_rewards"], options["reward_scale"]
    run = agilerl.train(Steady, kind, **options)
    assert run.manifest is not None
    assert not run.manifest.training.normalize_rewards
    assert f"normalize_rewards of the preset is left out: Own brings its own {method}()" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"normalize_rewards is for the algorithms of this package"):
        agilerl.train(Steady, kind, **options, normalize_rewards=True)
    assert preset_for("Steady", "PPO").training.normalize_rewards


def test_one_way_of_scaling_is_enough() -> None:
    with pytest.raises(
        ConfigError, match=r"normalize_rewards=True finds the scale of rewards by itself; got reward_scale=0.1"
    ):
        LoopOptions(normalize_rewards=True, reward_scale=0.1)
    with pytest.raises(ConfigError, match="got clip_rewards=True"):
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
