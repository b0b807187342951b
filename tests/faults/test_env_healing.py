"""Workers that die, raise, hang or lie are replaced; nothing of it reaches replay, no process is left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from faulty import MODES, Faulty, tokens
from faulty_runs import StopAfter

import agilerl
from agilerl.algorithms import DQN
from agilerl.components.replay_buffer import MultiStepReplayBuffer, ReplayBuffer
from agilerl.envs.adapters import VectorLanes
from agilerl.envs.healing import HealingLanes
from agilerl.envs.lanes import SyncLanes
from agilerl.envs.step import as_lanes
from agilerl.envs.vector import HealingVectEnv, make_vect_envs
from agilerl.errors import EnvError
from agilerl.telemetry.record import BaseSink
from agilerl.training.train_off_policy import train_off_policy

SPACE, ACTIONS = Faulty.observation_space, Faulty.action_space
IN_PROCESS = [mode for mode in MODES if mode not in ("kill", "hang")]  # those two are the run's own death and hang


class Messages(BaseSink):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)


class FaultAfter(BaseSink):
    """Has one more environment fail after the first generation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def generation(self, record: Any) -> None:
        if record.generation == 0:
            (self.folder / "more").touch()


def population(count: int = 2) -> list[Any]:
    return DQN.population(count, SPACE, ACTIONS, seed=1, net_config={"latent_dim": 8}, batch_size=16, learn_step=4)


def train(env: Any, memory: Any, sink: Any = None, n_step: bool = False) -> list[Any]:
    agents, _ = train_off_policy(
        env, "Faulty", pop=population(), memory=memory, max_steps=240, evo_steps=120, verbose=False, seed=3,
        sinks=[sink] if sink else [], n_step=n_step,
    )  # fmt: skip
    return agents


def assert_finite(memory: Any) -> None:
    assert len(memory) > 0
    for values in memory.gather(np.arange(len(memory))).values():
        assert torch.isfinite(values.double()).all()


def assert_no_child_left() -> None:
    """Neither a living worker nor a zombie: the test process has no children but its own helpers."""
    assert not multiprocessing.active_children()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (OSError, IndexError):
                continue
            assert not (int(fields[1]) == os.getpid() and fields[0] == "Z"), f"{entry.name} is a zombie"


@pytest.mark.parametrize("mode", IN_PROCESS)
def test_in_process_every_fault_is_a_named_error_and_replay_stays_finite(mode: str, tmp_path: Path) -> None:
    env = make_vect_envs(num_envs=4, make_env=partial(Faulty, mode, tokens(tmp_path / "t", 1), at=5))
    memory = ReplayBuffer(1000)
    with pytest.raises(EnvError, match=r"^Faulty, lane \d: step\(\) .*fix: .*healing=True") as caught:
        train(env, memory)
    got = {"raise": "ValueError: the simulator lost its mind", "exit": "SystemExit", "nan": "nan", "inf": "inf",
           "none": "of None", "shape": r"(1, 3)", "dtype": "'a'", "string": "'1.0'",
           "memory": "MemoryError"}[mode]  # fmt: skip
    assert got in str(caught.value)
    assert_finite(memory)


@pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(143)])
@pytest.mark.parametrize("make", [lambda f: SyncLanes([f]), lambda f: VectorLanes(gymnasium.vector.SyncVectorEnv([f]))])
def test_a_signal_that_arrives_while_an_environment_steps_is_no_fault_of_it(end: BaseException, make: Any) -> None:
    class Interrupted(Faulty):
        def step(self, action: Any) -> Any:
            raise end

    lanes = make(Interrupted)
    lanes.reset(np.array([1]))
    with pytest.raises(type(end)):
        lanes.step(np.zeros(1, int))


@pytest.mark.parametrize("mode", MODES)
def test_healing_environments_end_the_run_well(mode: str, tmp_path: Path) -> None:
    env = make_vect_envs(
        num_envs=4, make_env=partial(Faulty, mode, tokens(tmp_path / "t", 2), at=5), healing=True, num_workers=2,
        deadline_s=1.0,
    )  # fmt: skip
    memory, sink = ReplayBuffer(1000), Messages()
    began = time.monotonic()
    agents = train(env, memory, sink)
    assert [agent.steps[-1] for agent in agents] == [240, 240]
    assert_finite(memory)
    replaced = [line for line in sink.lines if line.startswith("environment replaced")]
    assert len(replaced) in (1, 2)  # two faults; numbers are looked at after all lanes of a worker have stepped
    # Two members make 480 steps; each replacement costs the four lanes of its worker one row.
    assert len(memory) == 480 - 4 * len(replaced)
    kind = {"kill": "died: its process ended with exit code -9", "hang": "hung: no answer after 1 s"}.get(
        mode, "failed"
    )
    assert all(kind in line and "seeds" in line for line in replaced)
    assert time.monotonic() - began < 60  # two deadlines of 1 s and two starts; a hang would last an hour
    env.close()
    assert_no_child_left()


def test_lanes_in_workers_play_what_lanes_in_this_process_play() -> None:
    def play(lanes: Any) -> list[Any]:
        seen: list[Any] = [lanes.reset(np.arange(5))[0]]
        rng = np.random.default_rng(0)
        for t in range(300):
            active = None if t % 3 else np.arange(5) != t % 5
            batch = lanes.step(rng.integers(0, 2, 5), active)
            seen += [batch.obs, batch.final_obs, batch.reward, batch.terminated, batch.truncated, batch.mask]
        lanes.close()
        return seen

    make = partial(gymnasium.make, "CartPole-v1")
    known = play(SyncLanes([make] * 5))
    for workers, takes_part in ((1, False), (1, True), (2, False), (2, True), (3, True), (5, True)):
        lanes = HealingLanes([make] * 5, num_workers=workers, takes_part=takes_part)
        for mine, theirs in zip(play(lanes), known, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert_no_child_left()


@pytest.mark.parametrize("takes_part", [False, True])
def test_the_step_of_a_fault_is_no_transition_and_other_workers_do_not_notice(takes_part: bool, tmp_path: Path) -> None:
    folder = tokens(tmp_path / "t", 0)
    lanes = HealingLanes([partial(Faulty, "raise", folder, at=5)] * 4, num_workers=2, takes_part=takes_part)
    lanes.reset(np.arange(4))
    for _ in range(4):
        batch = lanes.step(np.zeros(4, int))
    before, first_seeds = batch.obs.copy(), lanes.workers[0].seeds
    (folder / "0").touch()
    batch = lanes.step(np.zeros(4, int))
    (fault,) = lanes.faults
    hurt = np.isin(np.arange(4), range(fault.lanes[0], fault.lanes[1] + 1))
    np.testing.assert_array_equal(batch.info["healed"], hurt)
    np.testing.assert_array_equal(batch.mask, ~hurt)
    np.testing.assert_array_equal(batch.truncated, hurt)
    assert not batch.terminated.any()
    np.testing.assert_array_equal(batch.final_obs[hurt], before[hurt])
    np.testing.assert_array_equal(batch.obs[:, 1], np.where(hurt, 0, np.float32(5 / 12)))  # new episodes
    np.testing.assert_array_equal(batch.reward, ~hurt * 1.0)
    assert "ValueError: the simulator lost its mind" in fault.traceback
    assert lanes.workers[fault.worker].seeds != (first_seeds if fault.worker == 0 else None)
    again = lanes.step(np.zeros(4, int))
    assert "healed" not in again.info
    assert again.mask.all()
    lanes.close()
    assert_no_child_left()


def test_the_same_fault_gives_the_same_new_episodes(tmp_path: Path) -> None:
    def run(name: str) -> np.ndarray:
        lanes = HealingLanes([partial(Faulty, "kill", tokens(tmp_path / name, 2), at=5)] * 2, num_workers=1)
        lanes.reset(np.array([4, 5]))
        seen = [lanes.step(np.zeros(2, int)).obs for _ in range(20)]
        assert lanes.restarts == 2
        lanes.close()
        return np.stack(seen)

    np.testing.assert_array_equal(run("a"), run("b"))


def test_too_many_faults_stop_the_run_with_everything_that_is_known(tmp_path: Path) -> None:
    env = make_vect_envs(
        num_envs=2, make_env=partial(Faulty, "raise", tokens(tmp_path / "t", 99), at=2), healing=True, max_restarts=3,
        num_workers=1,
    )  # fmt: skip
    memory = ReplayBuffer(100)
    with pytest.raises(
        EnvError,
        match=r"(?s)Faulty: worker 0 \(lanes 0 to 3, seeds \d+, \d+, \.\.\. 2 more\) failed: .* lost its mind\. "
        r"Its .*replaced 3 times.*\nseeds of its lanes: \((\d+, ){3}\d+\)\n",
    ) as caught:
        train(env, memory)
    assert 'raise ValueError("the simulator lost its mind")' in str(caught.value)  # the worker's own traceback
    assert "fix:" in str(caught.value)
    assert_finite(memory)
    assert_no_child_left()


def test_windows_of_n_steps_do_not_reach_over_a_fault(tmp_path: Path) -> None:
    """In an undisturbed episode the reward is 1 a step, so a window's reward tells how many steps it has."""
    env = make_vect_envs(
        num_envs=2, make_env=partial(Faulty, "raise", tokens(tmp_path / "t", 3), at=5), healing=True, num_workers=1
    )
    memory = MultiStepReplayBuffer(1000, n_step=3, gamma=1.0)
    train(env, memory, n_step=True)
    rows = memory.gather(np.arange(len(memory)))
    place, start = rows["obs"][:, 0], rows["obs"][:, 1] * 12
    torch.testing.assert_close(rows["next_obs"][:, 0], place)  # one episode has one place
    steps = rows["next_obs"][:, 1] * 12 - start
    torch.testing.assert_close(steps, rows["reward"], atol=1e-5, rtol=0)
    assert (steps[(start + 3 > 4.5) & (start < 3.5)] < 2.5).any()  # windows that a fault before step 5 cut short


def test_a_users_own_loop_sees_a_next_step_environment(tmp_path: Path) -> None:
    env = make_vect_envs(num_envs=2, make_env=partial(Faulty, "raise", tokens(tmp_path / "t", 1), at=4), healing=True)
    plain = make_vect_envs(num_envs=2, make_env=Faulty)
    obs, _ = env.reset(seed=3)
    np.testing.assert_array_equal(obs, plain.reset(seed=3)[0])
    healed = 0
    for _ in range(40):
        obs, reward, terminated, truncated, info = env.step(np.zeros(2, int))
        assert env.observation_space.contains(obs)
        healed += int(np.sum(info.get("healed", 0)))
        assert not (terminated & truncated).any()
        assert (reward[truncated] == 0).all()  # the only cut here is a fault
    assert healed >= 1
    env.close()


def test_a_fault_beside_a_reset_step_gives_the_start_of_the_new_environment(tmp_path: Path) -> None:
    """The worker fails in lane 1 at the step in which lane 0 shows the start of its next episode."""
    folder = tokens(tmp_path / "t", 0)
    env: Any = make_vect_envs(num_envs=2, make_env=partial(Faulty, "raise", folder, at=12), healing=True, num_workers=1)
    env.reset(seed=3)
    env.lanes.step(np.zeros(2, int), np.array([True, False]))  # lane 0 ends a step earlier than lane 1
    for _ in range(11):
        env.step(np.zeros(2, int))
    (folder / "0").touch()
    obs, _, _, truncated, info = env.step(np.zeros(2, int))
    assert (info["healed"].tolist(), truncated.tolist()) == ([True, True], [False, True])
    after = env.step(np.zeros(2, int))[0]
    np.testing.assert_array_equal(obs[:, 0], after[:, 0], "one episode has one place")
    np.testing.assert_allclose((obs[:, 1] * 12, after[:, 1] * 12), ([0, 0], [1, 1]), atol=1e-6)
    env.close()


def test_a_replaced_environment_without_masks_does_not_inherit_those_before_the_fault(tmp_path: Path) -> None:
    class MaskInSteps(Faulty):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], {"action_mask": [True, False]}

    lanes = HealingLanes([partial(MaskInSteps, "raise", tokens(tmp_path / "t", 1), at=3), MaskInSteps], num_workers=2)
    lanes.reset(np.arange(2))
    masks = [lanes.step(np.zeros(2, int)).info["action_mask"].tolist() for _ in range(3)]
    lanes.close()
    assert masks == [[[True, False]] * 2, [[True, False]] * 2, [[True, True], [True, False]]]


def test_vector_lanes_over_a_healing_environment_mask_the_fault(tmp_path: Path) -> None:
    env = make_vect_envs(
        num_envs=2, make_env=partial(Faulty, "raise", tokens(tmp_path / "t", 1), at=4), healing=True, num_workers=1
    )
    lanes = VectorLanes(env)
    lanes.reset(np.array([1, 2]))
    batches = [lanes.step(np.zeros(2, int)) for _ in range(4)]
    assert not batches[3].mask.any()
    assert batches[3].truncated.all()
    env.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"healing": True, "backend": "envpool"}, "brings its own worker processes"),
        ({"healing": True, "should_async_vector": True}, "brings its own worker processes"),
        ({"num_workers": 2, "backend": "envpool"}, "brings its own worker processes"),
        ({"healing": True, "num_workers": 0}, "num_workers must be an integer of at least 1 or None"),
        ({"healing": True, "deadline_s": 0.0}, "deadline_s must be above 0"),
        ({"healing": True, "max_restarts": -1}, "max_restarts must be an integer of at least 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        make_vect_envs("CartPole-v1", 2, **options)


@pytest.mark.parametrize(
    ("options", "max_restarts", "num_workers"),
    [
        ({"num_workers": 2}, 0, 2),
        ({"deadline_s": 5.0}, 0, None),
        ({"max_restarts": 3}, 3, None),
        ({"asynchronous": True}, 10, None),
        ({"healing": True, "num_workers": 1}, 10, 1),
    ],
)
def test_an_option_of_worker_processes_brings_them(
    options: dict[str, Any], max_restarts: int, num_workers: int | None
) -> None:
    """Failures are survived with `healing` and its own options only."""
    env: Any = make_vect_envs(make_env=Faulty, num_envs=2, **options)
    assert isinstance(env, HealingVectEnv)
    assert (env.options["max_restarts"], env.options["num_workers"]) == (max_restarts, num_workers)
    env.close()


def test_closing_lanes_leaves_nothing_and_they_can_begin_again() -> None:
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        lanes = HealingLanes([Faulty] * 4, num_workers=2)
        lanes.reset(np.arange(4))
        lanes.step(np.zeros(4, int))
        lanes.close()
        lanes.reset(np.arange(4))
        lanes.close()
    assert_no_child_left()
    del lanes
    assert len(os.listdir("/proc/self/fd")) <= files + 4  # what multiprocessing keeps for itself


def test_a_manifest_can_ask_for_healing(tmp_path: Path) -> None:
    settings = {
        "algorithm": "DQN",
        "environment": {"name": "Faulty", "num_envs": 2, "healing": True, "num_workers": 1, "deadline_s": 5},
        "training": {"evo_steps": 40, "eval_episodes": 2, "target_score": None, "learning_delay": 0},
    }
    folder = tokens(tmp_path / "t", 3)  # three are killed in random play, before the run
    run = agilerl.train(
        partial(Faulty, "kill", folder, at=3), config=settings, population=2, steps=80, seed=1,
        out=tmp_path / "runs", verbose=False, sinks=[FaultAfter(folder)],
    )  # fmt: skip
    assert run.result["env_steps_member"] == 80
    assert run.manifest.environment.healing
    assert run.path is not None
    result = json.loads((run.path / "run.json").read_text())["result"]
    assert (result["restarts"], result["quarantined"]) == (1, 0)
    assert_no_child_left()


def test_what_was_replaced_before_a_stop_is_still_counted_after_it(tmp_path: Path) -> None:
    settings = {
        "algorithm": "DQN",
        "environment": {"name": "Faulty", "num_envs": 2, "healing": True, "num_workers": 1},
        "training": {"evo_steps": 40, "eval_episodes": 2, "target_score": None, "learning_delay": 0},
    }
    folder = tokens(tmp_path / "t", 0)
    env = partial(Faulty, "raise", folder, at=3)
    run = agilerl.train(
        env, config=settings, population=2, steps=120, seed=1, out=tmp_path / "runs", verbose=False,
        sinks=[FaultAfter(folder), StopAfter(2)],
    )  # fmt: skip
    assert run.path is not None
    assert (run.interrupted, run.result["restarts"]) == (True, 1)
    again = agilerl.resume(run.path, env=env, verbose=False)
    assert (again.result["generations"], again.result["restarts"]) == (3, 1)
    assert_no_child_left()


def test_replicas_come_from_the_healing_environment() -> None:
    env = make_vect_envs("CartPole-v1", 2, healing=True, num_workers=1)
    assert isinstance(as_lanes(env), HealingLanes)
    assert env.replicate(3).num_lanes == 6
    env.close()


def test_processes_that_inherit_nothing_get_what_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With threads or CUDA workers are not forked: closures and registered environments travel with the job."""
    monkeypatch.setattr(agilerl.envs.healing, "start_method", lambda: "forkserver")
    folder = tokens(tmp_path / "t", 1)

    class Local(gymnasium.Wrapper[Any, Any, Any, Any]):
        left = 3

        def step(self, action: Any) -> Any:
            if self.left == 0:
                for token in folder.iterdir():
                    token.unlink()
                    os._exit(9)
            self.left -= 1
            return super().step(action)

    gymnasium.register("OnlyHere-v0", entry_point="gymnasium.envs.classic_control.cartpole:CartPoleEnv")
    try:
        env = make_vect_envs("OnlyHere-v0", 2, extra_wrappers=[Local], healing=True, num_workers=1)
        env.reset(seed=1)
        infos = [env.step(np.zeros(2, int))[-1] for _ in range(6)]
    finally:
        del gymnasium.registry["OnlyHere-v0"]
    assert [("healed" in info) for info in infos] == [False, False, False, True, False, False]
    assert "exit code 9" in env.lanes.faults[0].message
    env.close()
    assert_no_child_left()


def test_a_process_with_threads_is_not_forked() -> None:
    import threading

    from agilerl.envs.healing import start_method

    gate = threading.Event()
    other = threading.Thread(target=gate.wait)
    other.start()
    assert start_method() != "fork"
    gate.set()
    other.join()
