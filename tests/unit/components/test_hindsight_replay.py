"""Hindsight replay against episodes worked by hand, and against a loop over lanes and steps."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from goal_envs import EndingEnv, GoalEnv, RowByRowEnv, WithGoals
from gymnasium import spaces
from tensordict import TensorDict
from test_replay_pieces import Filling

from agilerl import errors
from agilerl.components.replay_buffer import HindsightReplayBuffer, ReplayBuffer
from agilerl.components.storage import FRAME, NEXT_FRAME
from agilerl.core.checkpoint import decode_tree, digest_tree, encode_tree
from agilerl.data.replay_log import Chunk, ReplayLog, rebuild_memories
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import AgileRLWarning, ConfigError, RunError, ShapeError

LANES = 3


def observation(state: Any, achieved: Any, goal: Any) -> dict[str, np.ndarray]:
    values = {"observation": state, "achieved_goal": achieved, "desired_goal": goal}
    return {name: np.array(value, np.float64).reshape(len(state), -1) for name, value in values.items()}


def push(buffer: HindsightReplayBuffer, state: Any, goal: Any, done: Any = 0, cut: Any = 0, mask: Any = None) -> int:
    """One step of every lane from position `state` to the next number; achieved are the positions themselves."""
    state, goal = np.array(state, float), np.array(goal, float)
    after = state + 1
    flags = [np.broadcast_to(np.array(flag, bool), state.shape) for flag in (done, cut)]
    reward = -(np.abs(after - goal) > 0.5).astype(float)
    obs, next_obs = observation(state, state, goal), observation(after, after, goal)
    mask = None if mask is None else np.array(mask, bool)
    return buffer.write(obs, np.zeros(len(state), int), reward, next_obs, flags[0], mask, truncated=flags[1])


def walk(buffer: HindsightReplayBuffer, start: float, steps: int, goal: float, done: bool = False) -> None:
    """One lane from `start`, until it terminates (`done`) or is truncated."""
    for step in range(steps):
        is_last = step == steps - 1
        push(buffer, [start + step], [goal], is_last and done, is_last and not done)


def column(rows: Any, role: str, name: str) -> np.ndarray:
    return np.asarray(rows[role][name])[..., 0]


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_the_goals_and_rewards_of_an_episode_of_five_steps() -> None:
    # Positions 0 1 2 3 4 5 and the goal 9, which is never reached: every stored reward is -1. Step t leads to t + 1,
    # so that the goals achieved from step t on are t + 1 .. 5, and the first of them is reached by the step itself.
    buffer = HindsightReplayBuffer(20, GoalEnv(), dtype=torch.float64)
    walk(buffer, 0, 5, goal=9)
    assert len(buffer) == 5
    step, goals = np.nonzero(np.tril(np.ones((5, 5))).T)  # (0, 0) .. (0, 4), (1, 1) ..: row, step of the goal
    rows = buffer.gather(step + 20 * (1 + goals - step))
    assert column(rows, "obs", "desired_goal").tolist() == [1, 2, 3, 4, 5, 2, 3, 4, 5, 3, 4, 5, 4, 5, 5]
    assert column(rows, "next_obs", "desired_goal").tolist() == column(rows, "obs", "desired_goal").tolist()
    assert rows["reward"].tolist() == [0, -1, -1, -1, -1, 0, -1, -1, -1, 0, -1, -1, 0, -1, 0]
    assert column(rows, "obs", "observation").tolist() == step.tolist()  # all else is as stored
    assert column(rows, "next_obs", "achieved_goal").tolist() == (step + 1).tolist()
    assert not rows["done"].any()

    stored = buffer.gather(np.arange(5))
    assert column(stored, "obs", "desired_goal").tolist() == [9] * 5
    assert stored["reward"].tolist() == [-1] * 5


def test_each_strategy_draws_the_goals_that_are_possible_and_no_others() -> None:
    drawn = {}
    for strategy in ("future", "final"):
        buffer = HindsightReplayBuffer(20, GoalEnv(), strategy, seed=0)  # type: ignore[arg-type]
        walk(buffer, 0, 5, goal=9)
        indices = buffer.sample_indices(np.random.default_rng(0), (4000,))
        rows = buffer.gather(indices)
        pairs = np.stack([column(rows, "obs", "observation"), column(rows, "obs", "desired_goal")], 1).astype(int)
        drawn[strategy] = {tuple(pair) for pair in pairs.tolist()}
        is_new = indices >= 20
        assert abs(is_new.mean() - 0.8) < 5 * np.sqrt(0.16 / 4000)  # k = 4: 4 of 5
        if strategy == "future":  # uniform over what is possible: of step 0 a fifth for each goal
            goals = pairs[is_new & (pairs[:, 0] == 0), 1]
            shares = np.bincount(goals, minlength=6)[1:] / len(goals)
            assert np.abs(shares - 0.2).max() < 5 * np.sqrt(0.16 / len(goals))
    own = {(step, 9) for step in range(5)}
    assert drawn["final"] == own | {(step, 5) for step in range(5)}
    assert drawn["future"] == own | {(step, goal) for step in range(5) for goal in range(step + 1, 6)}


@pytest.mark.parametrize("goals_per_step", [1, 9])
def test_one_of_k_plus_one_rows_keeps_its_goal(goals_per_step: int) -> None:
    buffer = HindsightReplayBuffer(20, GoalEnv(), goals_per_step=goals_per_step)
    walk(buffer, 0, 5, goal=9)
    indices = buffer.sample_indices(np.random.default_rng(0), (4000,))
    share = goals_per_step / (goals_per_step + 1)
    assert abs((indices >= 20).mean() - share) < 5 * np.sqrt(share * (1 - share) / 4000)


def test_members_draw_goals_from_their_own_streams() -> None:
    """What one of them draws depends neither on the generator of `sample` nor on the draws of the others."""
    buffer = HindsightReplayBuffer(20, GoalEnv(), seed=0)
    walk(buffer, 0, 5, goal=9)
    before = buffer._draws.state(buffer)
    alone = buffer.sample_indices(np.random.default_rng(3), (4, 16))
    buffer.sample_indices(np.random.default_rng(4), (4, 16))
    buffer.gather(alone)
    np.testing.assert_array_equal(buffer.sample_indices(np.random.default_rng(3), (4, 16)), alone)
    assert (buffer.sample_indices(np.random.default_rng(4), (4, 16)) != alone).any()
    assert buffer._draws.state(buffer) == before


def test_rewards_are_computed_in_one_call() -> None:
    env = GoalEnv()
    buffer = HindsightReplayBuffer(20, env)
    walk(buffer, 0, 5, goal=9)
    env.calls.clear()
    indices = buffer.sample_indices(np.random.default_rng(0), (2, 3, 16))
    buffer.gather(indices)
    assert env.calls == [(indices >= 20).sum()]


@pytest.mark.parametrize("make", [EndingEnv, RowByRowEnv])
def test_terminations_are_recomputed_if_the_environment_can(make: type[GoalEnv]) -> None:
    buffer = HindsightReplayBuffer(20, make())
    walk(buffer, 0, 3, goal=3, done=True)
    assert buffer.gather(np.arange(3))["done"].tolist() == [0, 0, 1]
    rows = buffer.gather(np.array([1, 1, 2]) + 20 * np.array([1, 2, 1]))  # goals 2, 3, 3
    assert rows["done"].tolist() == [1, 0, 1]
    assert rows["reward"].tolist() == [0, -1, 0]


def test_without_compute_terminated_ends_are_as_stored() -> None:
    buffer = HindsightReplayBuffer(20, GoalEnv())
    walk(buffer, 0, 3, goal=3, done=True)
    rows = buffer.gather(np.arange(3) + 20)
    assert rows["reward"].tolist() == [0, 0, 0]
    assert rows["done"].tolist() == [0, 0, 1]


def test_a_truncated_step_bootstraps_and_a_terminated_one_does_not() -> None:
    buffer = HindsightReplayBuffer(20, GoalEnv())
    walk(buffer, 0, 2, goal=9)
    walk(buffer, 5, 2, goal=7, done=True)
    assert buffer.gather(np.arange(4))["done"].tolist() == [0, 0, 0, 1]
    final = HindsightReplayBuffer(20, GoalEnv(), "final", goals_per_step=10**6)
    walk(final, 0, 2, goal=9)
    walk(final, 5, 2, goal=7, done=True)
    rows = final.gather(final.sample_indices(np.random.default_rng(0), (50,)))
    state, goal = column(rows, "obs", "observation"), column(rows, "obs", "desired_goal")
    assert goal.tolist() == np.where(state < 5, 2, 7).tolist()  # an end of either kind ends the episode's goals


# -- lanes -----------------------------------------------------------------------------------------------------------


def test_rows_are_stored_when_the_episode_of_their_lane_ends() -> None:
    buffer = HindsightReplayBuffer(20, GoalEnv())
    assert push(buffer, [0, 50], [9, 99]) == 0
    assert not len(buffer)
    assert push(buffer, [1, 51], [9, 99], cut=[0, 1]) == 2
    assert push(buffer, [2, 60], [9, 99], mask=[1, 0]) == 0  # the reset step of lane 1 is no transition
    assert push(buffer, [3, 60], [9, 99]) == 0
    assert push(buffer, [4, 61], [9, 99], cut=[1, 0]) == 5
    assert column(buffer.gather(np.arange(7)), "obs", "observation").tolist() == [50, 51, 0, 1, 2, 3, 4]
    assert buffer.interrupt(np.array([0])) == 0
    assert buffer.interrupt(np.array([1])) == 2
    assert buffer.interrupt() == 0
    assert column(buffer.gather(np.arange(7, 9)), "obs", "observation").tolist() == [60, 61]


def test_a_call_with_other_lanes_ends_the_episodes_before() -> None:
    buffer = HindsightReplayBuffer(20, GoalEnv())
    push(buffer, [0, 50], [9, 99])
    assert push(buffer, [70, 71, 72], [9, 9, 9], cut=1) == 2 + 3
    assert column(buffer.gather(np.arange(5)), "obs", "observation").tolist() == [0, 50, 70, 71, 72]


def test_an_episode_without_end_is_cut_where_the_memory_is_full() -> None:
    buffer = HindsightReplayBuffer(6, GoalEnv())
    for step in range(8):
        push(buffer, [step, 50 + step], [9, 99])
    assert len(buffer) == 6
    assert buffer.counter == 12
    assert column(buffer.gather(np.arange(6)), "obs", "observation").tolist() == [3, 4, 5, 53, 54, 55]


class World:
    """Random episodes in several lanes whose achieved goals are unique numbers; goals are looked up by number."""

    def __init__(self, memory: HindsightReplayBuffer, seed: int) -> None:
        self.memory, self.rng = memory, np.random.default_rng(seed)
        self.episode_of: dict[float, tuple[int, int]] = {}  # achieved goal -> (episode, step)
        self.episode, self.step = np.arange(LANES), np.zeros(LANES, int)
        self.number, self.episodes = 0, LANES

    def write(self) -> None:
        state = np.zeros((2, LANES))
        mask = self.rng.random(LANES) < 0.9
        for lane in np.flatnonzero(mask):
            self.number += 1
            state[:, lane] = self.number - 0.5, self.number
            self.episode_of[self.number] = self.episode[lane], self.step[lane]
        done, cut = self.rng.random((2, LANES)) < 0.1
        goal = np.full(LANES, -5.0)
        obs, next_obs = (observation(row, row, goal) for row in state)
        reward = -np.ones(LANES)
        self.memory.write(obs, np.zeros(LANES, int), reward, next_obs, done, mask, truncated=cut)
        self.step[mask] += 1
        for lane in np.flatnonzero(mask & (done | cut)):
            self.episode[lane], self.step[lane] = self.episodes, 0
            self.episodes += 1

    def interrupt(self) -> None:
        self.memory.interrupt()
        self.episode, self.step = self.episodes + np.arange(LANES), np.zeros(LANES, int)
        self.episodes += LANES

    def check(self, count: int = 200) -> int:
        """Assert that relabelled goals were achieved later in the episode of their row; return how many there are."""
        memory = self.memory
        indices = memory.sample_indices(self.rng, (count,))
        rows = memory.gather(indices)
        own, goal = column(rows, "next_obs", "achieved_goal"), column(rows, "obs", "desired_goal")
        assert column(rows, "next_obs", "desired_goal").tolist() == goal.tolist()
        is_new, steps = indices >= memory.max_size, set(self.episode_of.values())
        assert (goal[~is_new] == -5).all()
        for achieved, wanted, reward in zip(own[is_new], goal[is_new], rows["reward"][is_new], strict=True):
            (episode, step), (of_goal, later) = self.episode_of[achieved], self.episode_of[wanted]
            assert episode == of_goal
            assert step <= later
            assert reward == (0 if step == later else -1)
            if memory.strategy == "final":
                assert (episode, later + 1) not in steps
        return int(is_new.sum())


@pytest.mark.parametrize("strategy", ["future", "final"])
@pytest.mark.parametrize("seed", range(3))
def test_every_relabelled_goal_was_achieved_later_in_the_same_episode(seed: int, strategy: Any) -> None:
    memory = HindsightReplayBuffer(61, GoalEnv(), strategy)  # a prime: the ring wraps around within episodes
    world, relabelled = World(memory, seed), 0
    for call in range(120):
        world.write()
        if call % 50 == 49:
            world.interrupt()
        if len(memory):
            relabelled += world.check()
    assert memory.counter > 3 * 61
    assert relabelled > 10_000


@pytest.mark.parametrize("seed", range(3))
def test_goals_of_rows_that_survive_a_damaged_log(seed: int) -> None:
    memory = HindsightReplayBuffer(61, GoalEnv())
    world = World(memory, seed)
    for _ in range(60):
        world.write()
    oldest = memory.counter - len(memory)
    rows = oldest + np.flatnonzero(world.rng.random(len(memory)) < 0.6)
    memory.keep_rows(rows)
    assert len(memory) == len(rows)
    world.interrupt()
    assert world.check(2000) > 1000
    for _ in range(60):  # and what is written afterwards
        world.write()
        if len(memory):
            world.check(50)


# -- state -----------------------------------------------------------------------------------------------------------


def test_a_restored_buffer_draws_what_the_saved_one_does_in_the_middle_of_episodes() -> None:
    memory, twin = (HindsightReplayBuffer(61, GoalEnv(), seed=3) for _ in range(2))
    world = World(memory, 0)
    for _ in range(37):
        world.write()
    assert memory._episodes.lengths.any()
    memory.sample(5)
    twin.load_state(memory.state())
    other = copy.copy(world)
    other.memory, other.rng = twin, copy.deepcopy(world.rng)
    other.episode, other.step = world.episode.copy(), world.step.copy()
    for _ in range(40):
        world.write()
        other.write()
        one, two = (each.sample(16, return_idx=True) for each in (memory, twin))
        assert torch.equal(one["idxs"], two["idxs"])
        assert torch.equal(one["obs", "desired_goal"], two["obs", "desired_goal"])
        assert torch.equal(one["reward"], two["reward"])


@pytest.mark.parametrize("images", [False, True], ids=["vectors", "images"])
@pytest.mark.filterwarnings("ignore:compute_reward gives")
def test_a_buffer_comes_back_from_its_log_and_goes_on(images: bool, tmp_path: Path) -> None:
    memory, log = WithGoals(40), ReplayLog(tmp_path, roll_bytes=3000)
    filling = Filling(memory, images)
    for steps in (9, 8, 7, 9, 6):  # episodes are open each time
        filling.steps(steps)
        log.append(memory)
        assert memory._episodes.lengths.any()
        twin = WithGoals(40)
        state, chunks = (decode_tree(encode_tree(memory.state(rows=False))), [Chunk.of(e) for e in log.entries()])
        assert not rebuild_memories({"m": twin}, {"m": state}, {"m": ReplayLog(tmp_path)}, {"m": chunks}, strict=True)
        after = Filling(twin, images)
        after.rng, after.obs = copy.deepcopy((filling.rng, filling.obs))
        before = copy.deepcopy((filling.rng, filling.obs, memory))
        for each in (filling, after):
            each.steps(8)
        draws = [each.sample(32, return_idx=True).to_dict() for each in (memory, twin)]
        assert digest_tree(draws[0]) == digest_tree(draws[1])
        assert (draws[0]["idxs"] >= 40).any()
        filling.rng, filling.obs, memory = before
        filling.memory = memory
    assert memory.counter > 2 * 40


def test_the_state_of_another_kind_of_buffer_is_refused() -> None:
    with pytest.raises(RunError, match="no open episodes"):
        HindsightReplayBuffer(61, GoalEnv()).load_state(ReplayBuffer(61).state())


# -- the published interface -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "truncated", "truncation"])
def test_add_and_sample_as_published(key: str | None) -> None:
    buffer = HindsightReplayBuffer(20, GoalEnv(), seed=0)
    for step in range(5):
        obs, after = (observation([s, 50 + s], [s, 50 + s], [9, 99]) for s in (step, step + 1))
        cut = np.array([step == 4, step == 2])
        batch = TensorDict(
            {"state": obs, "action": np.zeros((2, 1)), "reward": -np.ones((2, 1)), "next_state": after,
             "terminated": np.zeros((2, 1)), **({} if key is None else {key: cut})},
            batch_size=[2],
        )  # fmt: skip
        buffer.add(batch, **({"truncated": cut} if key is None else {}))
    assert len(buffer) == 5 + 3
    batch = buffer.sample(64, return_idx=True)
    goal, state = batch["state", "desired_goal"][:, 0], batch["state", "observation"][:, 0]
    assert batch["next_state", "desired_goal"][:, 0].tolist() == goal.tolist()
    last = torch.where(state < 50, 5, 53)
    is_new = batch["idxs"] >= 20
    assert ((goal > state) & (goal <= last))[is_new].all()
    assert 30 < is_new.sum() < 64
    again = buffer.sample_from_indices(batch["idxs"])
    assert torch.equal(again["state", "desired_goal"], batch["state", "desired_goal"])
    assert torch.equal(again["reward"], batch["reward"])


def test_images_as_observations_are_stored_once_and_released() -> None:
    space = spaces.Box(0, 255, (1, 8, 8), np.uint8)
    env = GoalEnv()
    env.observation_space = spaces.Dict({**env.observation_space.spaces, "observation": space})
    buffer, rng = HindsightReplayBuffer(30, env), np.random.default_rng(0)
    image = rng.integers(0, 256, (2, 1, 8, 8), dtype=np.uint8)
    for step in range(40):
        after, place = rng.integers(0, 256, (2, 1, 8, 8), dtype=np.uint8), np.full((2, 1), float(step))
        obs = {"observation": image, "achieved_goal": place, "desired_goal": place - 9}
        later = {"observation": after, "achieved_goal": place + 1, "desired_goal": place - 9}
        cut = rng.random(2) < 0.2
        buffer.write(obs, np.zeros(2, int), -np.ones(2), later, np.zeros(2, bool), truncated=cut)
        image = after
    buffer.interrupt()
    assert buffer.frames is not None
    numbers = [buffer._store.own[path].tensor[: len(buffer)] for path in (FRAME, NEXT_FRAME)]  # type: ignore[union-attr]
    assert (buffer.frames._references[1:] > 0).sum() <= len(torch.unique(torch.cat(numbers))) + 2  # and of the lanes
    rows = buffer.gather(buffer.sample_indices(rng, (64,)))
    assert rows["obs"]["observation"].shape == (64, 1, 8, 8)
    assert (column(rows, "obs", "desired_goal") > column(rows, "obs", "achieved_goal")).any()


def test_goals_of_integers_keep_their_type() -> None:
    calls = []

    class Bits(GoalEnv):
        def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
            calls.append((achieved_goal.dtype, desired_goal.dtype, achieved_goal.shape))
            return -np.any(achieved_goal != desired_goal, axis=-1).astype(float)

    buffer = HindsightReplayBuffer(20, Bits(space=spaces.MultiBinary(3)))
    bits = np.array([[0, 1, 1]], np.int8)
    obs = dict.fromkeys(("observation", "achieved_goal"), bits) | {"desired_goal": 1 - bits}
    for cut in (False, True):
        buffer.write(obs, np.zeros(1, int), -np.ones(1), obs, np.zeros(1, bool), truncated=np.array([cut]))
    rows = buffer.gather(np.array([21, 40]))
    assert calls[-1] == (np.int8, np.int8, (2, 3))
    assert rows["obs"]["desired_goal"].tolist() == [[0, 1, 1]] * 2
    assert rows["reward"].tolist() == [0, 0]


# -- environments ----------------------------------------------------------------------------------------------------


def test_the_outermost_wrapper_with_the_method_computes_rewards() -> None:
    class Scaled(gymnasium.Wrapper[Any, Any, Any, Any]):
        def compute_reward(self, *args: Any) -> Any:
            return 10 * self.env.compute_reward(*args)  # type: ignore[attr-defined]

    wrapped = gymnasium.wrappers.TimeLimit(Scaled(GoalEnv()), 5)
    assert HindsightReplayBuffer(20, wrapped).rewards(np.zeros((2, 1)), np.array([[0], [3]]))[0].tolist() == [0, -10]


def test_a_vector_gives_an_environment_of_its_own() -> None:
    env = make_vect_envs(make_env=GoalEnv, num_envs=2)
    buffer = HindsightReplayBuffer(20, env)
    assert buffer.rewards(np.zeros((1, 1)), np.zeros((1, 1)))[0].tolist() == [0]
    assert all(not single.unwrapped.calls for single in env.envs)
    env.close()
    plain = gymnasium.vector.SyncVectorEnv([GoalEnv])
    assert HindsightReplayBuffer(20, plain).rewards(np.zeros((1, 1)), np.ones((1, 1)))[0].tolist() == [-1]


def test_copies_of_a_buffer_share_the_environment() -> None:
    env = GoalEnv()
    env.handle = (each for each in ())  # type: ignore[attr-defined]  # cannot be copied
    buffer = HindsightReplayBuffer(20, env)
    walk(buffer, 0, 5, goal=9)
    twin = copy.deepcopy(buffer)
    assert twin.gather(np.array([20]))["reward"].tolist() == [0]


def test_other_environments_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs a goal environment.*CartPoleEnv is none"):
        HindsightReplayBuffer(20, gymnasium.make("CartPole-v1"))
    env = GoalEnv()
    env.observation_space = spaces.Dict({"observation": spaces.Discrete(2)})
    with pytest.raises(ConfigError, match="achieved_goal"):
        HindsightReplayBuffer(20, env)


def test_other_observations_are_refused() -> None:
    buffer = HindsightReplayBuffer(20, GoalEnv())
    flat = np.zeros((2, 3))
    with pytest.raises(ShapeError, match="next_obs/achieved_goal"):
        buffer.write(flat, np.zeros(2, int), np.zeros(2), flat, np.zeros(2, bool))


@pytest.mark.parametrize("argument", [{"strategy": "episode"}, {"goals_per_step": 0}])
def test_arguments_out_of_range(argument: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(argument))):
        HindsightReplayBuffer(20, GoalEnv(), **argument)


def test_other_rewards_than_computed_ones_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_warned", set())

    class Costly(GoalEnv):
        """An action costs 0.1, which goals do not show."""

    buffer = HindsightReplayBuffer(20, Costly())
    obs, after = (observation([s], [s], [9]) for s in (0, 1))
    with pytest.warns(AgileRLWarning, match=r"compute_reward gives -1 for a step whose reward was -1\.1"):
        buffer.write(obs, np.zeros(1, int), np.array([-1.1]), after, np.zeros(1, bool), truncated=np.ones(1, bool))


def test_steps_of_single_lanes_are_refused() -> None:
    buffer = HindsightReplayBuffer(20, GoalEnv())
    obs = observation([0], [0], [9])
    with pytest.raises(ShapeError, match="lanes must be None"):
        buffer.write(obs, np.zeros(1, int), np.zeros(1), obs, np.zeros(1, bool), lanes=np.zeros(1, np.int64))
