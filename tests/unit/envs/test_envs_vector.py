"""Making, replicating and wrapping vector environments."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest

import agilerl.errors
from agilerl.envs.masks import ActionMasks
from agilerl.envs.simulators.classic import CartPoleLanes
from agilerl.envs.step import SyncLanes, VectorLanes, as_lanes
from agilerl.envs.vector import make_vect_envs, resolve_id
from agilerl.errors import EnvError, ShapeError


def test_neither_name_nor_factory_is_an_error() -> None:
    with pytest.raises(ValueError, match="Either env_name or make_env must be provided"):
        make_vect_envs()


@pytest.mark.parametrize("num_envs", [0, -1, 1.5, True, "2"])
def test_the_number_of_environments_is_checked(num_envs: Any) -> None:
    with pytest.raises(EnvError, match=r"num_envs must be an integer of at least 1 .* got .* fix: num_envs=1"):
        make_vect_envs("CartPole-v1", num_envs)


def test_a_withdrawn_version_becomes_the_newest_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agilerl.errors, "_warned", set())
    with pytest.warns(UserWarning, match=r"LunarLander-v2 has been withdrawn.*LunarLander-v3"):
        assert resolve_id("LunarLander-v2") == "LunarLander-v3"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_id("LunarLander-v2") == "LunarLander-v3"


@pytest.mark.parametrize("name", ["Cartpole-v1", "CartPole-v9", "NoSuchThing-v0"])
def test_an_unknown_id_keeps_gymnasiums_message(name: str) -> None:
    with pytest.raises(EnvError, match=r"doesn't exist|versioned environments|not found") as caught:
        make_vect_envs(name)
    assert isinstance(caught.value.__cause__, gymnasium.error.Error)


def test_a_missing_dependency_names_the_extra() -> None:
    def make() -> Any:
        raise gymnasium.error.DependencyNotInstalled("Box2D is not installed, run `pip install swig`")

    with pytest.raises(EnvError, match=r'pip install "agilerl\[box2d\]"'):
        make_vect_envs(make_env=make)


def test_an_id_whose_import_fails_names_it_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(**keywords: Any) -> Any:
        raise ImportError("no module of that simulator")

    spec = gymnasium.envs.registration.EnvSpec("NeedsMore-v0", entry_point=entry)
    monkeypatch.setitem(gymnasium.registry, "NeedsMore-v0", spec)
    with pytest.raises(EnvError, match=r"NeedsMore-v0 needs .*no module of that simulator.* fix: install"):
        make_vect_envs("NeedsMore-v0")
    with pytest.raises(ImportError, match="no module"):  # a factory is the caller's own code: its error is shown whole
        make_vect_envs(make_env=entry)


def test_atari_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)  # as if it were not installed
    with pytest.raises(EnvError, match=r'pip install "agilerl\[atari\]"'):
        make_vect_envs("ALE/Pong-v5")


def test_the_seed_makes_the_first_reset_repeatable_and_the_lanes_different() -> None:
    first, second = (make_vect_envs("CartPole-v1", num_envs=3, seed=5) for _ in range(2))
    obs, _ = first.reset()
    np.testing.assert_array_equal(obs, second.reset()[0])
    assert len(np.unique(obs[:, 0])) == 3
    assert not np.array_equal(obs, first.reset()[0])


def test_keywords_and_wrappers_reach_every_environment_and_replica() -> None:
    def halve(env: Any) -> Any:
        return gymnasium.wrappers.TransformReward(env, lambda reward: reward / 2)

    env = make_vect_envs("CartPole-v1", 2, extra_wrappers=[halve], sutton_barto_reward=False)
    env.reset(seed=0)
    np.testing.assert_array_equal(env.step(np.zeros(2, dtype=np.int64))[1], [0.5, 0.5])
    lanes = env.replicate(3)
    assert isinstance(lanes, SyncLanes)
    assert lanes.num_lanes == 6
    lanes.reset()
    np.testing.assert_array_equal(lanes.step(np.zeros(6, dtype=np.int64)).reward, np.full(6, 0.5))


def test_plain_cartpole_gets_its_fast_lanes() -> None:
    env = make_vect_envs("CartPole-v1", 2)
    assert env.env_id == "CartPole-v1"
    assert env.spec.id == "CartPole-v1"
    assert isinstance(as_lanes(env), CartPoleLanes)
    assert env.replicate(4).num_lanes == 8


def test_workers_take_a_seed_of_numpy_as_a_number() -> None:
    vector = make_vect_envs("CartPole-v1", 2, healing=True, num_workers=1)
    starts = [vector.reset(seed=seed)[0] for seed in (3, np.int64(3), [3, 4])]
    vector.close()
    np.testing.assert_array_equal(starts[1], starts[0])
    np.testing.assert_array_equal(starts[2], starts[0])


def test_a_lanes_episodes_depend_on_its_own_seed_and_actions_alone() -> None:
    """Lane 1 sees the same observations whatever its neighbours' seeds and actions, over many episodes."""

    def run(seeds: list[int], other_action: int, make: Any) -> np.ndarray:
        lanes = make()
        seen = [lanes.reset(np.array(seeds))[0][1]]
        rng = np.random.default_rng(0)
        for _ in range(150):
            actions = np.array([other_action, rng.integers(2), other_action])
            seen.append(lanes.step(actions).obs[1])
        return np.stack(seen)

    for make in (lambda: CartPoleLanes(3), lambda: SyncLanes([lambda: gymnasium.make("CartPole-v1")] * 3)):
        np.testing.assert_array_equal(run([1, 2, 3], 0, make), run([8, 2, 9], 1, make))


def test_wrong_actions_and_seeds_are_refused() -> None:
    lanes = CartPoleLanes(2)
    with pytest.raises(EnvError, match="reset"):
        lanes.step(np.zeros(2, dtype=int))
    with pytest.raises(ShapeError, match=r"expected shape \(2,\), got \(3,\)"):
        lanes.reset(np.arange(3))
    lanes.reset()
    with pytest.raises(EnvError, match=r"0\.\.1 per lane.*values 0\.\.2"):
        lanes.step(np.array([0, 2]))


def test_lanes_that_do_not_reset_keep_the_final_observation() -> None:
    for lanes in (
        CartPoleLanes(2, reset_ended=False),
        SyncLanes([lambda: gymnasium.make("CartPole-v1")] * 2, reset_ended=False),
    ):
        lanes.reset(np.arange(2))
        active = np.ones(2, dtype=bool)
        final = np.zeros((2, 4), dtype=np.float32)
        while active.any():
            batch = lanes.step(np.zeros(2, dtype=int), active)
            ended = batch.terminated | batch.truncated
            final[ended] = batch.final_obs[ended]
            active &= ~ended
        np.testing.assert_array_equal(batch.obs, final)


class DictEnv(gymnasium.Env[Any, Any]):
    """Ends after two steps; both parts of the observation hold the time."""

    observation_space = gymnasium.spaces.Dict(
        {"image": gymnasium.spaces.Box(0, 255, (2, 2, 1), np.uint8), "count": gymnasium.spaces.Discrete(9)}
    )
    action_space = gymnasium.spaces.Box(-1, 1, (2,))
    time = 0

    def _obs(self) -> Any:
        return {"image": np.full((2, 2, 1), self.time, np.uint8), "count": self.time}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.time = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        assert action.shape == (2,)
        self.time += 1
        return self._obs(), float(action[0]), self.time == 2, False, {}


@pytest.mark.parametrize("mode", ["single", "SameStep", "Disabled"])
def test_dict_observations_keep_their_parts_dtypes_and_final_values(mode: str) -> None:
    env: Any = DictEnv() if mode == "single" else gymnasium.vector.SyncVectorEnv([DictEnv] * 2, autoreset_mode=mode)
    lanes = as_lanes(env)
    actions = np.ones((lanes.num_lanes, 2), dtype=np.float32)
    assert lanes.reset()[0]["image"].dtype == np.uint8
    lanes.step(actions)
    batch: Any = lanes.step(actions)
    assert batch.terminated.all()
    for key in ("count", "image"):
        assert (batch.final_obs[key] == 2).all()
        assert (batch.obs[key] == 0).all()


def test_environments_with_little_more_than_reset_and_step_are_taken() -> None:
    class Lengths:
        """Single, but everything has length one."""

        def reset(self) -> Any:
            return np.zeros(3), {}

        def step(self, action: Any) -> Any:
            return np.ones(3), np.array([2.0]), np.array([1]), np.array([0]), {}

    class OnlyNumEnvs:
        num_envs = 2

        def reset(self) -> Any:
            return np.zeros((2, 3)), {}

        def step(self, action: Any) -> Any:
            return np.ones((2, 3)), np.array([1, 2]), np.array([1, 0]), np.array([0, 0]), {}

    single, vector = as_lanes(Lengths()), as_lanes(OnlyNumEnvs())
    assert single.reset()[0].shape == (1, 3)
    batch = single.step(np.zeros(1, dtype=int))
    assert batch.terminated.tolist() == [True]
    assert batch.reward.tolist() == [2.0]
    assert isinstance(vector, VectorLanes)
    vector.reset()
    assert vector.step(np.zeros(2, dtype=int)).mask.tolist() == [True, True]
    assert vector.step(np.zeros(2, dtype=int)).mask.tolist() == [False, True]


def test_a_loose_environment_may_observe_a_dict_and_a_tuple() -> None:
    class Loose:
        def reset(self) -> Any:
            return {"a": (np.zeros(2), 1), "b": 0.5}, {}

        def step(self, action: Any) -> Any:
            return {"a": (np.ones(2), 2), "b": 1.5}, 1.0, False, True, {}

    lanes = as_lanes(Loose())
    lanes.reset()
    batch: Any = lanes.step(np.zeros(1, dtype=int))
    assert batch.final_obs["a"][0].tolist() == [[1.0, 1.0]]
    assert batch.final_obs["a"][1].tolist() == [2]
    assert batch.obs["b"].tolist() == [0.5]


def test_wrapped_vector_environments_keep_their_mode_and_their_seeds() -> None:
    """The same wrapper around each mode: the same episodes."""
    seen = []
    for mode in ("NextStep", "SameStep", "Disabled"):
        inner = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, autoreset_mode=mode)
        lanes = as_lanes(gymnasium.wrappers.vector.RecordEpisodeStatistics(inner))
        lanes.reset(np.array([4, 5]))
        rows: list[list[bytes]] = [[], []]
        while min(map(len, rows)) < 60:
            batch = lanes.step(np.ones(2, dtype=int))
            for lane in np.flatnonzero(batch.mask):
                rows[lane].append(batch.final_obs[lane].tobytes())
        seen.append([lane[:60] for lane in rows])
    assert seen[0] == seen[1] == seen[2]


def test_vector_environments_get_the_seeds_that_they_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agilerl.errors, "_warned", set())
    seeds = np.array([7, 7])
    per_lane = as_lanes(gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2))
    obs, _ = per_lane.reset(seeds)
    np.testing.assert_array_equal(obs[0], obs[1])
    one_seed = as_lanes(gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point"))
    np.testing.assert_array_equal(one_seed.reset(seeds)[0], one_seed.reset(seeds)[0])

    class Unseeded:
        num_envs = 2

        def reset(self) -> Any:
            return np.zeros((2, 3)), {}

        def step(self, action: Any) -> Any:
            raise NotImplementedError

    lanes = as_lanes(Unseeded())
    with pytest.warns(UserWarning, match=r"Unseeded.reset\(\) takes no seed"):
        lanes.reset(seeds)


def test_observations_stay_what_they_were_when_the_environment_reuses_its_memory() -> None:
    env = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, copy=False)
    lanes = as_lanes(env)
    first, _ = lanes.reset(np.array([1, 2]))
    before = first.copy()
    second = lanes.step(np.ones(2, dtype=int)).obs
    kept = second.copy()
    lanes.step(np.ones(2, dtype=int))
    np.testing.assert_array_equal(first, before)
    np.testing.assert_array_equal(second, kept)


def test_something_that_is_no_environment_is_named() -> None:
    with pytest.raises(EnvError, match=r"got str.*fix"):
        as_lanes("CartPole-v1")


def test_action_masks_in_every_form_gymnasium_gives() -> None:
    reader = ActionMasks(gymnasium.spaces.Discrete(3))
    assert reader.of({}, 2) is None
    stacked = {"action_mask": np.array([[1, 0, 1], [0, 0, 0]], dtype=np.int8), "_action_mask": np.array([True, False])}
    np.testing.assert_array_equal(reader.of(stacked, 2), [[1, 0, 1], [1, 1, 1]])
    objects = np.full(2, None, dtype=object)
    objects[1] = np.array([0, 1, 0])
    np.testing.assert_array_equal(reader.of({"action_mask": objects}, 2), [[1, 1, 1], [0, 1, 0]])
    np.testing.assert_array_equal(reader.of({"action_mask": np.array([0, 1, 0])}, 1), [[0, 1, 0]])
    with pytest.raises(EnvError, match="one mask per lane; expected 2 of 3 entries"):
        reader.of({"action_mask": np.ones((3, 3))}, 2)
    with pytest.raises(EnvError, match=r"lane 0: .*has 2 entries.*expected for Discrete\(3\): 3 entries"):
        reader.of({"action_mask": np.ones((2, 2))}, 2)


def test_worker_processes_only_when_asked_for() -> None:
    env = make_vect_envs("CartPole-v1", 2, should_async_vector=True, seed=1)
    try:
        assert isinstance(env, gymnasium.vector.AsyncVectorEnv)
        lanes = as_lanes(env)
        here = SyncLanes([lambda: gymnasium.make("CartPole-v1")] * 2)
        obs, _ = lanes.reset(np.array([3, 4]))
        np.testing.assert_array_equal(obs, here.reset(np.array([3, 4]))[0])
        for _ in range(30):
            there, local = lanes.step(np.ones(2, dtype=int)), here.step(np.ones(2, dtype=int))
            np.testing.assert_array_equal(there.obs, local.obs)
            np.testing.assert_array_equal(there.final_obs, local.final_obs)
        lanes.close()
    finally:
        env.close()
