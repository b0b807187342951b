"""What environments give as networks read it: texts as counts, MiniGrid's pictures as classes, known packages by id."""

from __future__ import annotations

import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import agilerl
from agilerl.algorithms import DQN, PPO, SAC, RainbowDQN
from agilerl.core import env_ids
from agilerl.core import spaces as ours
from agilerl.core.spaces import BUCKETS, WordCounts, counts_of, is_small, space_from_json, space_to_json, without_texts
from agilerl.engine.choose import choose
from agilerl.envs.limits import EpisodeLimit, time_limit
from agilerl.envs.readable import CountedTexts, readable
from agilerl.envs.step import as_lanes
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import AlgorithmError, EnvError
from agilerl.runs.directory import RunDirectory
from agilerl.views.export import plain_policy

ORDERS = ("Go left.", "go right!")


class Ordered(gym.Env[Any, Any]):
    """Three orders an episode, in words; following one gives 1."""

    action_space = spaces.Discrete(2)

    def __init__(self, alone: bool = False) -> None:
        order = spaces.Text(40)
        grid = spaces.Box(0, 255, (4, 4, 3), np.uint8)
        parts = spaces.Tuple([order, spaces.Dict({"grid": grid, "time": spaces.Discrete(4)})])
        self.alone, self.observation_space = alone, order if alone else parts

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._observe(), {}

    def _observe(self) -> Any:
        self.order = int(self.np_random.integers(2))
        text = ORDERS[self.order]
        return text if self.alone else (text, {"grid": np.full((4, 4, 3), self.time, np.uint8), "time": self.time})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, self.time = float(int(action) == self.order), self.time + 1
        return self._observe(), reward, self.time == 3, False, {}


class Alone(Ordered):
    def __init__(self) -> None:
        super().__init__(alone=True)


def test_every_word_and_every_pair_of_neighbours_counts_in_two_buckets() -> None:
    expected = np.zeros(BUCKETS, int)
    for term in ("pick", "up", "pick", "pick up", "up pick"):
        number = zlib.crc32(term.encode())
        expected[number % 128] += 1
        expected[(number >> 16) % 128] += 1
    found = counts_of("Pick up, PICK")
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(counts_of([["", "pick up pick"]]), [[0 * expected, expected]])
    assert counts_of("a " * 99).max() == 15
    assert (counts_of("the ball next to the box") != counts_of("the box next to the ball")).any(), "order is heard"
    assert WordCounts().contains(found)


def test_spaces_with_texts_are_remembered_as_such() -> None:
    space = without_texts(Ordered().observation_space)
    assert space == spaces.Tuple([WordCounts(), spaces.Dict(Ordered().observation_space[1].spaces)])
    again = space_from_json(space_to_json(space))
    assert again == space
    assert isinstance(again[0], WordCounts)
    assert ours.short_form(space[0]) == "text as counts(128)"
    box = spaces.Box(-1, 1, (2,))
    assert without_texts(box) is box
    with pytest.raises(AlgorithmError, match=r"Text space .*those of make_vect_envs are read, as counts of words"):
        DQN(spaces.Text(3), spaces.Discrete(2))


def test_numbers_pass_untouched_and_nothing_is_wrapped_twice() -> None:
    plain = gym.make("CartPole-v1")
    assert readable(plain) is plain
    counted = readable(Ordered())
    assert isinstance(counted, CountedTexts)
    assert readable(counted) is counted
    assert readable(gym.wrappers.TimeLimit(counted, 2)).env is counted


VECTORS = {
    "lanes": lambda: make_vect_envs(make_env=Ordered, num_envs=2),
    "healing": lambda: make_vect_envs(make_env=Ordered, num_envs=2, healing=True, num_workers=1),
    "one process each": lambda: make_vect_envs(make_env=Ordered, num_envs=2, should_async_vector=True),
    "another's, next step": lambda: SyncVectorEnv([Ordered] * 2, autoreset_mode=AutoresetMode.NEXT_STEP),
    "another's, same step": lambda: SyncVectorEnv([Ordered] * 2, autoreset_mode=AutoresetMode.SAME_STEP),
}


@pytest.mark.parametrize("name", VECTORS)
def test_every_kind_of_lanes_gives_counts(name: str) -> None:
    vector: Any = VECTORS[name]()
    lanes: Any = as_lanes(vector)
    try:
        assert lanes.single_observation_space == without_texts(Ordered().observation_space)
        told = {counts_of(order).tobytes() for order in ORDERS}
        obs, _ = lanes.reset(np.arange(2))
        seen = set()
        for step in range(6):
            assert obs[0].shape == (2, BUCKETS)
            seen |= {row.tobytes() for row in obs[0]}
            batch = lanes.step(np.zeros(2, np.int64))
            if step == 2:
                assert batch.terminated.all()
                assert batch.final_obs[1]["time"].tolist() == [3, 3]
                assert {row.tobytes() for row in batch.final_obs[0]} <= told
            obs = batch.obs
        assert seen == told
    finally:
        lanes.close()
        vector.close()


@pytest.mark.parametrize("make", [Ordered, Alone], ids=["a part", "alone"])
def test_a_saved_policy_obeys_orders_as_the_environment_gives_them(make: Any, tmp_path: Path) -> None:
    run = agilerl.train(
        make, "PPO", population=2, num_envs=4, steps=2048, learn_step=128, batch_size=64, lr=3e-3, eval_episodes=5,
        seed=0, out=tmp_path, verbose=False, **{"training.evo_steps": 1024},
    )  # fmt: skip
    assert RunDirectory.open(run.path).facts()["learner"] == "fused"
    loaded = agilerl.load(run.path)
    assert loaded.best.evaluate(episodes=10, env=make()).mean == 3.0  # a random one has 1.5
    policy, env = plain_policy(loaded.best), make()
    for seed in range(8):
        obs, _ = env.reset(seed=seed)
        assert int(policy.act(obs)) == env.order
        with torch.no_grad():
            assert int(np.asarray(loaded.best.get_action(obs, training=False)[0]).item()) == env.order
    if make is Alone:
        assert policy.act(list(ORDERS)).tolist() == [0, 1]


def test_ids_of_known_packages_import_them_and_say_how_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env_ids.family_of("CartPole-v1") is None
    for family in env_ids.FAMILIES:
        assert env_ids.family_of(family.example) is family
        monkeypatch.setitem(sys.modules, family.module, None)
        monkeypatch.setattr(gym.envs.registration, "registry", {})
        monkeypatch.setattr(gym, "registry", {})
        with pytest.raises(EnvError, match=rf"{family.example}: .* fix: pip install \"agilerl\[{family.extra}\]\""):
            env_ids.resolve_env_id(family.example)


def test_nothing_is_imported_for_other_ids() -> None:
    code = (
        "import sys; from agilerl.core.env_ids import resolve_env_id; resolve_env_id('CartPole-v1'); "
        "print({'minigrid', 'minatar', 'ale_py'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_minigrid_is_read_as_classes_and_ends_its_own_episodes() -> None:
    pytest.importorskip("minigrid")
    env = make_vect_envs("MiniGrid-Empty-5x5-v0", num_envs=2)
    space = env.single_observation_space
    np.testing.assert_array_equal(space["image"].nvec, np.broadcast_to([11, 6, 3], (7, 7, 3)))
    assert isinstance(space["mission"], WordCounts)
    assert (ours.flat_size(space), is_small(space), time_limit(env)) == (4 + 980 + 128, True, 100)
    given, _ = gym.make("MiniGrid-Empty-5x5-v0").reset(seed=3)
    found, _ = env.replicate(1).reset(np.array([3, 4]))
    np.testing.assert_array_equal(found["image"][0], given["image"])
    np.testing.assert_array_equal(found["mission"][0], counts_of("get to the green goal square"))
    from minigrid.wrappers import RGBImgPartialObsWrapper

    pixels = readable(RGBImgPartialObsWrapper(gym.make("MiniGrid-Empty-5x5-v0")))
    assert pixels.observation_space["image"] == spaces.Box(0, 255, (56, 56, 3), np.uint8)
    with pytest.raises(EnvError, match="Did you mean 'MiniGrid-Empty-5x5-v0'"):
        env_ids.resolve_env_id("MiniGrid-Emty-5x5-v0")
    assert env_ids.resolve_env_id("BabyAI-GoToLocal-v0") == "BabyAI-GoToLocal-v0"


@pytest.mark.parametrize("kind", [{}, {"healing": True, "num_workers": 1}, {"should_async_vector": True}], ids=str)
def test_babyai_decides_how_long_an_episode_is_on_every_kind_of_lanes(kind: dict[str, Any]) -> None:
    pytest.importorskip("minigrid")
    vector: Any = make_vect_envs("BabyAI-GoToLocal-v0", num_envs=1, **kind)
    lanes = vector.replicate(1)
    try:
        assert EpisodeLimit.of(vector) == EpisodeLimit(None, False, "BabyAI-GoToLocal-v0")
        obs, _ = lanes.reset(np.array([1]))
        assert (obs["image"].shape, obs["mission"].shape) == ((1, 7, 7, 3), (1, BUCKETS))
        assert not lanes.step(np.array([0])).truncated.any()
    finally:
        lanes.close()
        vector.close()


def test_a_seed_decides_the_whole_episode_of_minatar() -> None:
    pytest.importorskip("minatar")
    lanes = as_lanes(make_vect_envs("MinAtar/Breakout-v1", num_envs=1))
    played = []
    for before in (0, 1):  # the action that the episode before ended with
        lanes.reset(np.array([5]))
        for _ in range(3):
            lanes.step(np.array([before]))
        lanes.reset(np.array([2**40 + 7]))
        played.append([lanes.step(np.array([2])).obs.tobytes() for _ in range(20)])
    assert played[0] == played[1]


def test_minigrid_trains_in_rows_and_acts_on_what_it_gives(tmp_path: Path) -> None:
    pytest.importorskip("minigrid")
    run = agilerl.train("MiniGrid-Empty-5x5-v0", "PPO", population=2, num_envs=2, steps=128, learn_step=64, seed=0,
                        eval_episodes=2, out=tmp_path, verbose=False, **{"training.evo_steps": 64})  # fmt: skip
    assert RunDirectory.open(run.path).facts()["learner"] == "fused"
    loaded, env = agilerl.load(run.path), gym.make("MiniGrid-Empty-5x5-v0")
    policy = plain_policy(loaded.best)
    obs, _ = env.reset(seed=1)
    assert int(policy.act(obs)) in range(7)
    batch = SyncVectorEnv([lambda: env] * 3).reset(seed=1)[0]
    numbers, _ = as_lanes(make_vect_envs("MiniGrid-Empty-5x5-v0", num_envs=3)).reset(np.arange(1, 4))
    before = loaded.best.actor
    with torch.no_grad():
        assert torch.equal(before.preprocess(batch)[:, -BUCKETS:], before.preprocess(numbers)[:, -BUCKETS:])
        expected = before.preprocess(numbers)
    torch.testing.assert_close(policy.prepare(numbers), expected)
    assert isinstance(loaded.best, PPO)


TABLES = ("Blackjack-v1", "FrozenLake-v1", "Taxi-v4", "CliffWalking-v1")


@pytest.mark.parametrize("env_id", TABLES)
def test_discrete_observations_are_read_in_rows_by_every_algorithm(env_id: str) -> None:
    env = gym.make(env_id)
    net = {"encoder_config": {"hidden_size": [8]}}  # as manifests have it
    for algo in (DQN, RainbowDQN, PPO, SAC):
        agents = [algo(env.observation_space, env.action_space, net_config=net, seed=i) for i in range(2)]
        assert choose(agents).name == "fused", (env_id, algo.__name__)
