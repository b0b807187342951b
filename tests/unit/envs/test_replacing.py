"""An environment that fails now and then is replaced where it steps: in this process, and in worker processes alike."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from process_kinds import Plain
from sinks import Kept
from test_global_generators import Team

import agilerl
from agilerl.envs import healing
from agilerl.envs.healing import HealingLanes
from agilerl.envs.lanes import SyncLanes
from agilerl.envs.replacing import ReplacingLanes
from agilerl.envs.teams import TeamLanes
from agilerl.errors import EnvError
from agilerl.rollouts.evaluate import evaluate


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers inherit the classes of this module, whatever threads earlier tests have left."""
    for module in (healing,):
        monkeypatch.setattr(module, "start_method", lambda: "fork")


class Rare(Plain):
    """Fails in every `every`-th step of its process, and in that of `resets` too."""

    every, resets = 700, 0
    steps = begun = 0

    def reset(self, **options: Any) -> Any:
        Rare.begun += 1
        if Rare.begun == self.resets:
            raise RuntimeError("the map could not be loaded")
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        Rare.steps += 1
        if Rare.steps % self.every == 0:
            raise RuntimeError("connection lost")
        return super().step(action)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rare, "steps", 0)
    monkeypatch.setattr(Rare, "begun", 0)


def replacing(kind: Any, lanes: int = 3, max_restarts: int = 10) -> ReplacingLanes:
    return ReplacingLanes(partial(SyncLanes, [kind] * lanes), max_restarts)


def test_the_step_of_a_fault_is_no_transition_and_new_episodes_follow_from_the_seeds() -> None:
    lanes = replacing(type("Eighth", (Rare,), {"every": 8}))
    lanes.reset(np.array([1, 2, 3]))
    for _ in range(2):
        before = lanes.step(np.zeros(3, int)).obs
    batch = lanes.step(np.zeros(3, int), np.array([True, True, False]))  # the second lane fails, in step 8
    (fault,) = lanes.faults
    assert (batch.healed.tolist(), batch.mask.tolist()) == ([True] * 3, [False] * 3)
    assert (batch.truncated.tolist(), batch.terminated.any()) == ([True, True, False], False)
    assert batch.reward.tolist() == [0.0] * 3
    np.testing.assert_array_equal(batch.final_obs, before)
    assert batch.obs[:, 1].tolist() == [0.0] * 3
    assert "connection lost" in fault.traceback
    assert str(fault).startswith("lanes 0 to 2, seeds 1, 2, ... 1 more failed: Eighth, lane 1: step() raised")
    seeds = [int(np.random.SeedSequence(seed, spawn_key=(1,)).generate_state(1)[0] >> 1) for seed in (1, 2, 3)]
    np.testing.assert_array_equal(batch.obs, SyncLanes([Plain] * 3).reset(np.array(seeds))[0])
    assert lanes.step(np.zeros(3, int)).healed is None


def test_a_reset_that_fails_once_is_made_again() -> None:
    lanes = replacing(type("Second", (Rare,), {"resets": 2}))
    obs, _ = lanes.reset(np.array([1, 2, 3]))
    assert obs.shape == (3, 2)
    assert len(lanes.faults) == 1


def test_faults_in_steps_and_resets_one_after_another_count_one_by_one() -> None:
    """Of 32 lanes that fail in one of 700 steps, some lane fails in the step after a replacement in 1 of 22 cases."""

    class Twice(Plain):
        steps = resets = 0

        def reset(self, **options: Any) -> Any:
            Twice.resets += 1
            if Twice.resets == 3:
                raise RuntimeError("the map could not be loaded")
            return super().reset(**options)

        def step(self, action: Any) -> Any:
            Twice.steps += 1
            if Twice.steps in (3, 4):
                raise RuntimeError("connection lost")
            return super().step(action)

    lanes = replacing(Twice, 1)
    lanes.reset(np.array([1]))
    healed = [lanes.step(np.zeros(1, int)).healed is not None for _ in range(6)]
    assert healed == [False, False, True, True, False, False]
    assert len(lanes.faults) == 3, "two in steps, and one in the reset after the second"


def test_a_mistake_is_raised_at_once_and_a_frequent_fault_after_the_limit() -> None:
    mistaken = replacing(type("Always", (Rare,), {"every": 1}))
    mistaken.reset(np.array([1, 2, 3]))
    mistaken.step(np.zeros(3, int))
    with pytest.raises(EnvError, match=r"Always, lane 0: step\(\) raised RuntimeError: connection lost\. fix:"):
        mistaken.step(np.zeros(3, int))
    assert len(mistaken.faults) == 1, "the new environment failed at once"
    frequent = replacing(type("Often", (Rare,), {"every": 8}), max_restarts=2)
    frequent.reset(np.array([1, 2, 3]))
    steps = (frequent.step(np.zeros(3, int)) for _ in range(100))
    with pytest.raises(EnvError, match="connection lost") as caught:
        list(steps)
    assert len(frequent.faults) == 2
    assert caught.value.__notes__ == ["2 faults before this one were survived, which is max_restarts."]


def test_a_fault_before_a_reset_is_the_callers() -> None:
    with pytest.raises(EnvError, match="must be reset before"):
        replacing(Plain).step(np.zeros(3, int))


class RareTeam(Team):
    steps = 0

    def step(self, actions: Any) -> Any:
        RareTeam.steps += 1
        if RareTeam.steps == 4:
            raise RuntimeError("connection lost")
        return super().step(actions)


def test_no_agent_of_a_team_has_a_transition_in_the_step_of_a_fault() -> None:
    lanes = ReplacingLanes(partial(TeamLanes, [RareTeam] * 2), 10)
    lanes.reset(np.array([1, 2]))
    batches = [lanes.step(np.zeros((2, 2), np.float32)) for _ in range(3)]
    teams = [batch.team for batch in batches]
    assert [team.acted.tolist() for team in teams] == [[[True] * 2] * 2, [[False] * 2] * 2, [[True] * 2] * 2]
    assert [team.reward.sum() for team in teams] == [4.0, 0.0, 4.0]
    assert batches[1].truncated.all()


@pytest.mark.thorough
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_run_survives_a_rare_fault_wherever_its_lanes_step(num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on either side of 0.1 ms a step; also in the evaluation of what was trained. `max_restarts` 0: the error."""
    settings: dict[str, Any] = {
        "algorithm": "DQN", "environment": {"num_envs": 4, "num_workers": num_workers},
        "training": {"evo_steps": 400, "eval_episodes": 4, "target_score": None, "learning_delay": 10**6},
    }  # fmt: skip
    sink = Kept()
    run = agilerl.train(Rare, config=settings, population=2, steps=800, seed=1, out=None, verbose=False, sinks=[sink])
    faults = [line for line in sink.messages if line.startswith("environment replaced")]
    assert len(faults) == run.result["restarts"] >= 2
    assert all("connection lost" in line for line in faults)
    assert run.result["env_steps_member"] == 800
    monkeypatch.setattr(Rare, "steps", 690 if num_workers == 1 else 0)
    assert len(run.best.evaluate(episodes=4, seed=2).returns) == 4
    settings["environment"]["max_restarts"] = 0
    with pytest.raises(EnvError, match="connection lost"):
        agilerl.train(Rare, config=settings, population=2, steps=800, seed=1, out=None, verbose=False)


def test_an_evaluation_plays_an_interrupted_episode_again() -> None:
    """Five rewards of at most 1 for four lanes; the third step of all lanes is lost."""

    class Ones(Rare):
        every = 1000

        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, 1.0, *rest

    for lanes in (replacing(Ones, 4), HealingLanes([Ones] * 4, num_workers=1)):
        Rare.steps = 1000 - 12
        if isinstance(lanes, HealingLanes):
            lanes.start()
            Rare.steps = 0  # of the next worker
        actor = type("Zero", (), {"act_greedy": lambda self, obs, mask=None: np.zeros(obs.shape[:2], int)})()
        result = evaluate(actor, lanes, 1, 4, np.arange(4), 50)
        assert len(lanes.faults) == 1
        assert result.returns.tolist() == [[5.0] * 4]
        assert result.lengths.tolist() == [[5] * 4]
        lanes.close()
