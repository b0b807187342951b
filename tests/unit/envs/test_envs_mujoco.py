"""MuJoCo lanes against Gymnasium's single environments, bit for bit."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from agilerl.envs.copies import HELPER
from agilerl.envs.healing import HealingLanes, start_method
from agilerl.envs.lanes import SyncLanes
from agilerl.envs.protocol import Lanes, StepBatch
from agilerl.envs.simulators import mujoco
from agilerl.envs.simulators.mujoco import TASKS, MujocoLanes, step_lanes
from agilerl.envs.vector import keep_log_out, make_vect_envs
from agilerl.errors import EnvError, ShapeError
from agilerl.native.library import library
from agilerl.native.threads import kernel_threads
from agilerl.training.manifest.step_cost import measure

pytest.importorskip("mujoco")
pytestmark = pytest.mark.filterwarnings("ignore:.*Hopper-v4 is out of date:DeprecationWarning", "ignore:MuJoCo")

LIMIT = 45  # steps of an episode, so that both kinds of end occur in short tests
TERMINATING = {"Ant-v5", "Hopper-v5", "Humanoid-v5", "InvertedDoublePendulum-v5", "InvertedPendulum-v5", "Walker2d-v5"}
FALLING = {"Humanoid-v5", "InvertedDoublePendulum-v5", "InvertedPendulum-v5"}  # before the limit, with these actions


def make_env(env_id: str, **kwargs: Any) -> Any:
    env = gymnasium.make(env_id, disable_env_checker=True, **kwargs)
    keep_log_out()
    return env


def maker(env_id: str, **kwargs: Any) -> Callable[[], Any]:
    return partial(make_env, env_id, **kwargs)


def pair(env_id: str, num_lanes: int, **options: Any) -> tuple[Lanes, Lanes]:
    """Return (fast lanes, Gymnasium's environments one after another) with the same seeds' first observations."""
    factories = [maker(env_id, max_episode_steps=LIMIT)] * num_lanes
    ours, theirs = step_lanes(factories, **options), SyncLanes(factories, **options)
    assert type(ours) is MujocoLanes
    return ours, theirs


def actions_for(lanes: Lanes, rng: np.random.Generator) -> np.ndarray:
    """Draw actions [L, A] float32: within the bounds, small, none and far beyond the bounds, by lane."""
    space: Any = lanes.single_action_space
    scales = np.array([1.0, 0.3, 0.0, 5.0])[np.arange(lanes.num_lanes) % 4, None]
    draws = rng.uniform(-1.0, 1.0, (lanes.num_lanes, *space.shape)) * space.high * scales
    return draws.astype(np.float32)


def assert_equal(ours: StepBatch, theirs: StepBatch, note: str) -> None:
    for name in ("obs", "final_obs", "reward", "terminated", "truncated", "mask"):
        one, other = getattr(ours, name), getattr(theirs, name)
        assert one.dtype == other.dtype, name
        assert one.tobytes() == other.tobytes(), f"{name} at {note}: {one} {other}"
    assert (ours.info, ours.team, ours.healed) == (theirs.info, theirs.team, theirs.healed) == ({}, None, None)


def reset_equal(ours: Lanes, theirs: Lanes, seeds: np.ndarray | None) -> None:
    assert ours.reset(seeds)[0].tobytes() == theirs.reset(seeds)[0].tobytes()


@pytest.mark.parametrize(("env_id", "num_lanes", "dtype"), [(name, 6, np.float32) for name in TASKS] + [
    ("Ant-v5", 1, np.float64), ("Hopper-v5", 1, np.float64), ("Walker2d-v5", 13, np.float64),
])  # fmt: skip
def test_lanes_equal_gymnasium_bit_for_bit_over_resets_ends_and_rests(env_id: str, num_lanes: int, dtype: Any) -> None:
    ours, theirs = pair(env_id, num_lanes)
    rng, ends = np.random.default_rng(3), np.zeros(2, dtype=int)
    for episode, seeds in enumerate((np.arange(num_lanes) + 20, None, np.arange(num_lanes) + 2**40)):
        reset_equal(ours, theirs, seeds)
        for step in range(2 * LIMIT + 5):
            active = rng.random(num_lanes) < 0.8 if step % 3 == 0 else None
            actions = actions_for(ours, rng).astype(dtype)
            batch = ours.step(actions, active)
            assert_equal(batch, theirs.step(actions, active), f"{episode}, {step}")
            ends += batch.terminated.sum(), batch.truncated.sum()
    assert ends.any()
    if num_lanes == 6:
        assert (ends[0] > 0) == (env_id in TERMINATING)
        assert (ends[1] > 0) == (env_id not in FALLING)


def test_ended_lanes_rest_until_the_next_reset() -> None:
    ours, theirs = pair("Hopper-v5", 5, reset_ended=False)
    for seed in (0, 40):
        reset_equal(ours, theirs, np.arange(5) + seed)
        rng, active = np.random.default_rng(seed), np.ones(5, dtype=bool)
        while active.any():
            actions = actions_for(ours, rng)
            batch = ours.step(actions, active)
            assert_equal(batch, theirs.step(actions, active), f"{seed}")
            active &= ~(batch.terminated | batch.truncated)
        assert_equal(ours.step(actions, active), theirs.step(actions, active), "all rest")


def test_whole_episodes_of_a_plain_id_equal_those_of_single_environments() -> None:
    vector: Any = make_vect_envs("HalfCheetah-v5", num_envs=1)
    ours = vector.replicate(2)
    assert type(ours) is MujocoLanes
    theirs = SyncLanes([maker("HalfCheetah-v5")] * 2)
    reset_equal(ours, theirs, np.arange(2))
    rng, truncated = np.random.default_rng(0), 0
    for step in range(1010):
        actions = actions_for(ours, rng)
        batch = ours.step(actions)
        assert_equal(batch, theirs.step(actions), f"{step}")
        truncated += int(batch.truncated.sum())
    assert truncated == 2  # after 1,000 steps
    vector.close()


@pytest.mark.parametrize("env_id", TASKS)
def test_states_that_play_seldom_reaches_have_equal_outcomes(env_id: str) -> None:
    ours, theirs = pair(env_id, 6, reset_ended=False)
    for lanes in (ours, theirs):
        assert isinstance(lanes, SyncLanes)
        lanes.reset(np.arange(6))
        rng = np.random.default_rng(1)
        for lane, speed in enumerate((1.0, 20.0, 99.0, 101.0, 130.0, 160.0)):
            single = lanes.envs[lane].unwrapped
            qpos = single.init_qpos + rng.uniform(-0.15, 0.15, single.model.nq)
            single.set_state(qpos, rng.choice((-speed, 0.1, speed), single.model.nv, p=(0.1, 0.8, 0.1)))
    actions = actions_for(ours, np.random.default_rng(2))
    assert_equal(ours.step(actions), theirs.step(actions), "a state put into the simulation")


def test_a_hopper_with_a_state_beyond_100_is_over() -> None:
    ours, theirs = pair("Hopper-v5", 2, reset_ended=False)
    for lanes in (ours, theirs):
        assert isinstance(lanes, SyncLanes)
        lanes.reset(np.arange(2))
        for lane, speed in enumerate((10.0, 150.0)):
            single = lanes.envs[lane].unwrapped
            single.set_state(single.init_qpos, np.array([speed, 0, 0, 0, 0, 0]))
    still = np.zeros((2, 3), np.float32)
    batch = ours.step(still)
    assert_equal(batch, theirs.step(still), "fast")
    assert batch.terminated.tolist() == [False, True]
    assert batch.obs[:, 5].max() == 10  # clipped


# float16 and lists go through the environments' own step, columns in Fortran's order do not
FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "float16": lambda x: x.astype(np.float16), "list": lambda x: x.tolist(), "integers": lambda x: x.astype(np.int64),
    "column by column": np.asfortranarray, "every second row": lambda x: np.repeat(x, 2, axis=0)[::2],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_actions_in_other_forms_give_the_same_results(form: str) -> None:
    ours, theirs = pair("Ant-v5", 3)
    reset_equal(ours, theirs, np.arange(3))
    rng = np.random.default_rng(0)
    for step in range(LIMIT + 3):  # forms alternate with plain arrays within an episode
        actions = actions_for(ours, rng)
        other = FORMS[form](actions) if step % 2 else actions
        assert_equal(ours.step(other), theirs.step(other), f"{step}")


@pytest.mark.parametrize("actions", [
    np.zeros((2, 2), np.float32), np.zeros(2, np.float32), np.zeros((3, 3), np.float32),
    np.array([[0, 0, 0], [0, np.nan, 0]], np.float32), np.array([[0, 0, 0], [np.inf, 0, 0]], np.float32),
    np.array([["a", "b", "c"]] * 2), None,
], ids=["width", "one axis", "rows", "nan", "infinite", "texts", "none"])  # fmt: skip
def test_wrong_actions_are_reported_as_by_single_environments(actions: Any) -> None:
    messages = []
    for lanes in pair("Hopper-v5", 2):
        lanes.reset(np.arange(2))
        with pytest.raises((EnvError, ShapeError, TypeError)) as caught:
            lanes.step(actions)
        messages.append((type(caught.value), str(caught.value)))
    assert messages[0] == messages[1]


def test_a_failing_simulation_names_the_lane() -> None:
    lanes = step_lanes([maker("Hopper-v5")] * 3)
    assert isinstance(lanes, MujocoLanes)
    with pytest.raises(EnvError, match="reset"):
        lanes.step(np.zeros((3, 3), np.float32))
    lanes.reset(np.arange(3))
    calls = []

    def fail(model: Any, data: Any, steps: int) -> None:
        calls.append(steps)
        if len(calls) == 2:
            raise RuntimeError("stack overflow")

    lanes._step_simulation = fail
    with pytest.raises(EnvError, match=r"^Hopper-v5, lane 1: step\(\) raised RuntimeError: stack overflow\."):
        lanes.step(np.zeros((3, 3), np.float32))


def test_lanes_that_continue_without_a_reset_report_what_single_environments_do() -> None:
    messages = []
    for lanes in pair("Hopper-v5", 1):
        assert isinstance(lanes, SyncLanes)
        lanes.resume(np.zeros((1, 11)))
        with pytest.raises(EnvError, match="ResetNeeded") as caught:
            lanes.step(np.zeros((1, 3), np.float32))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


# -- where they are used ----------------------------------------------------------------------------------------------


def kind_of(**options: Any) -> type:
    vector: Any = make_vect_envs(num_envs=2, **options)
    lanes = vector.replicate(1)
    lanes.close()
    vector.close()
    return type(lanes)


def test_only_environments_as_registered_are_stepped_together(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kind_of(env_name="Hopper-v5") is MujocoLanes
    assert kind_of(env_name="Hopper-v5", max_episode_steps=7) is SyncLanes
    assert kind_of(env_name="Hopper-v5", ctrl_cost_weight=0.5) is SyncLanes
    assert kind_of(env_name="Hopper-v5", render_mode="rgb_array") is SyncLanes
    assert kind_of(env_name="Hopper-v5", extra_wrappers=[gymnasium.wrappers.ClipAction]) is SyncLanes
    assert kind_of(env_name="Hopper-v4") is SyncLanes
    assert kind_of(env_name="CartPole-v1", sutton_barto_reward=False) is SyncLanes
    assert kind_of(make_env=maker("Hopper-v5")) is SyncLanes  # it may have changed masses
    monkeypatch.setattr(mujoco.gymnasium, "__version__", "1.5.0")
    assert kind_of(env_name="Hopper-v5") is SyncLanes


def test_replaced_code_is_stepped_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from gymnasium.envs.mujoco.hopper_v5 import HopperEnv

    class OtherHopper(HopperEnv):
        pass

    spec = gymnasium.spec("Hopper-v5")
    with monkeypatch.context() as patched:
        patched.setattr(spec, "entry_point", OtherHopper)
        assert kind_of(env_name="Hopper-v5") is SyncLanes
    assert kind_of(env_name="Hopper-v5") is MujocoLanes
    monkeypatch.setattr(HopperEnv, "_get_rew", lambda self, speed, action: (0.0, {}))
    assert kind_of(env_name="Hopper-v5") is SyncLanes


def test_other_environments_are_stepped_one_after_another() -> None:
    assert type(step_lanes([maker("Hopper-v5"), maker("Walker2d-v5")])) is SyncLanes
    assert type(step_lanes([lambda: gymnasium.make("Hopper-v5").unwrapped])) is SyncLanes
    assert type(step_lanes([maker("Hopper-v5", max_episode_steps=-1)])) is SyncLanes
    assert type(step_lanes([maker("Hopper-v5", reset_noise_scale=0.1)])) is SyncLanes
    assert type(step_lanes([maker("CartPole-v1")])) is SyncLanes
    with pytest.raises(EnvError, match="at least one environment factory"):
        step_lanes([])


def test_worker_processes_give_the_same_results() -> None:
    vector: Any = make_vect_envs("Hopper-v5", 3, healing=True, num_workers=2)
    workers, theirs = vector.replicate(1), SyncLanes([maker("Hopper-v5")] * 3)
    assert isinstance(workers, HealingLanes)
    assert workers.build is step_lanes
    try:
        reset_equal(workers, theirs, np.arange(3))
        rng = np.random.default_rng(0)
        for step in range(30):
            actions = actions_for(theirs, rng)
            assert_equal(workers.step(actions), theirs.step(actions), f"{step}")
    finally:
        workers.close()
        vector.close()
    assert HealingLanes([maker("Hopper-v5")]).build is SyncLanes


@pytest.mark.skipif(library() is None, reason="threads are those of the kernels")
def test_threads_simulate_lanes_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also few lanes, and after an error in the part of a helper, which leaves no simulation running."""
    all_threads, others = threading.enumerate, set(threading.enumerate())  # which earlier tests may have left
    monkeypatch.setattr(threading, "enumerate", lambda: [thread for thread in all_threads() if thread not in others])
    ours, theirs = pair("Hopper-v5", 7)
    rng = np.random.default_rng(5)
    reset_equal(ours, theirs, np.arange(7))
    with kernel_threads(3):
        for step in range(40):
            active = rng.random(7) < 0.6 if step % 2 else None
            actions = actions_for(ours, rng)
            assert_equal(ours.step(actions, active), theirs.step(actions, active), f"{step}")
        names = [thread.name for thread in threading.enumerate()]
        assert sum(name.startswith(HELPER) for name in names) == 2
        assert start_method() == "fork", "they hold no lock"
        ours._simulations[1] = (None, None, ours._simulations[1][2])
        with pytest.raises(EnvError, match=r"Hopper-v5, lane 1: step\(\) raised TypeError"):
            ours.step(actions_for(ours, rng))
        ours.close()
    assert not any(thread.name.startswith(HELPER) for thread in threading.enumerate())


def test_the_cost_of_a_step_is_measured() -> None:
    vector: Any = make_vect_envs("InvertedPendulum-v5")
    cost = measure(vector)
    assert cost.steps >= 64
    assert cost.in_a_row > 0
    vector.close()


@pytest.mark.thorough
def test_mujoco_is_not_imported_for_other_environments() -> None:
    code = (
        "import sys, agilerl.envs.simulators.mujoco as m\n"
        "from agilerl.envs.vector import keep_log_out, make_vect_envs\n"
        "make_vect_envs('CartPole-v1', sutton_barto_reward=False).replicate(1)\n"
        "assert len(m.TASKS) == 11 and 'mujoco' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
