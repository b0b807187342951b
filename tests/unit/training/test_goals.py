"""Runs with hindsight: equal in every way of training, resumed to the bit, and refused where it means nothing."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from inline_workers import InlineWorkers

import agilerl
from agilerl import errors
from agilerl.algorithms import DQN
from agilerl.collect.offline import fill
from agilerl.components.replay_buffer import HindsightReplayBuffer
from agilerl.config.load import manifest_from
from agilerl.core.checkpoint import encode_tree
from agilerl.core.options import OfflineOptions
from agilerl.data.dataset import read_dataset
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import AgileRLError, ConfigError
from agilerl.training.manifest import workers as manifest_workers
from agilerl.training.manifest.launch import resume_training
from agilerl.training.train_off_policy import train_off_policy
from tests.probe.goals import BitFlip, PointGoal

SMALL: dict[str, Any] = {
    "num_envs": 3, "eval_episodes": 3, "confirm_episodes": 3, "target_score": None, "batch_size": 16, "preset": False,
    "learning_delay": 40, "network.latent_dim": 8, "network.encoder_config.hidden_size": [8],
    "network.head_config.hidden_size": [8], "replay_buffer.max_size": 250, "replay_buffer.hindsight": "future",
    "evo_steps": 90, "steps": 270, "population": 2, "seed": 1, "verbose": False, "out": None,
}  # fmt: skip
Bits = partial(BitFlip, 4)


class Unstepped(PointGoal):
    """Counts the steps of each environment that has computed rewards for several goals at once."""

    judges: list[Unstepped] = []  # noqa: RUF012

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        if np.ndim(achieved_goal) > 1 and self not in self.judges:
            self.judges.append(self)
        return super().compute_terminated(achieved_goal, desired_goal, info)


def trained(env: Any = Bits, algo: str = "DQN", **settings: Any) -> agilerl.Run:
    return agilerl.train(env, algo, **{**SMALL, **settings})


def digest(run: agilerl.Run) -> str:
    """Of every member's whole state, the fitness of all generations and the lineage."""
    total = hashlib.sha256(repr((run.history, run.lineage)).encode())
    for agent in run.population:
        total.update(encode_tree(agent.run_state()))
    return total.hexdigest()


# -- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ["SAC", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("DDPG", "TD3"))])
def test_continuous_actions(algo: str) -> None:
    run = trained(PointGoal, algo)
    assert run.result["updates"] > 0
    assert digest(trained(PointGoal, algo)) == digest(run)
    assert digest(trained(PointGoal, algo, **{"replay_buffer.hindsight": None})) != digest(run)


def test_the_environment_that_computes_rewards_is_never_stepped() -> None:
    Unstepped.judges.clear()
    trained(Unstepped, "SAC")
    (judge,) = Unstepped.judges
    assert not hasattr(judge, "at")


@pytest.mark.parametrize("setting", [{"replay_buffer.goals_per_step": 1}, {"replay_buffer.hindsight": "final"}])
def test_settings_make_a_difference(setting: dict[str, Any]) -> None:
    assert digest(trained(**setting)) != digest(trained())


def test_members_learn_the_same_in_rows_and_one_by_one() -> None:
    agents = [trained(learner=learner).population for learner in ("fused", "sequential")]
    for one, other in zip(*agents, strict=True):
        for p, q in zip(one.actor.parameters(), other.actor.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


def test_members_in_turn_have_one_result_too() -> None:
    assert digest(trained(lockstep=False)) == digest(trained(lockstep=False))


@pytest.mark.parametrize("case", ["lanes", pytest.param("lanes, healing", marks=pytest.mark.thorough)])
def test_lanes_in_worker_processes_are_no_different(case: str) -> None:
    apart = {"environment.num_workers": 2, "environment.healing": case != "lanes"}
    assert digest(trained(**apart)) == digest(trained())


@pytest.mark.thorough
def test_lanes_that_do_not_wait() -> None:
    run = trained(**{"environment.healing": True, "environment.asynchronous": True, "environment.num_workers": 2})
    assert run.result["updates"] > 0


@pytest.mark.parametrize("share", ["all", "shard"])
def test_shards_in_workers_have_one_result(share: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_workers, "LocalWorkers", InlineWorkers)
    assert digest(trained(shards=2, share=share, workers=2)) == digest(trained(shards=2, share=share))


@pytest.mark.parametrize("env", [Bits, pytest.param(PointGoal, marks=pytest.mark.thorough)])
def test_a_stopped_run_goes_on_to_the_bit(env: Any, tmp_path: Path) -> None:
    algo = "DQN" if env is Bits else "SAC"
    whole = trained(env, algo)
    half = trained(env, algo, out=tmp_path, callbacks=[lambda record: False])
    assert half.path is not None
    assert half.result["generations"] == 1
    assert digest(resume_training(half.path, env=env, verbose=False)) == digest(whole)


@pytest.mark.thorough
def test_episodes_that_continue_across_generations(tmp_path: Path) -> None:
    run = trained(PointGoal, "SAC", carry_envs=True, evo_steps=30, out=tmp_path, callbacks=[lambda record: False])
    assert run.path is not None
    resumed = resume_training(run.path, env=PointGoal, verbose=False)
    assert resumed.result["updates"] > 0


@pytest.mark.parametrize(
    "algo", ["DQN", "SAC", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("TD3", "DDPG"))]
)
def test_general_presets_train_on_goals_as_they_are(algo: str) -> None:
    run = agilerl.train(
        Bits if algo == "DQN" else PointGoal, algo, steps=600, population=2, out=None, verbose=False, seed=0,
        learning_delay=200, num_envs=4, evo_steps=300, hindsight="future", random_steps=0,
    )  # fmt: skip
    assert type(run.best.actor.encoder).__name__ == "EvolvableMLP"  # all three parts side by side
    assert run.result["updates"] > 0


def test_the_memory_of_a_loop_of_ones_own_has_the_rows_as_they_were() -> None:
    env = make_vect_envs(make_env=Bits, num_envs=2)
    pop = DQN.population(2, env.single_observation_space, env.single_action_space, seed=0, batch_size=16)
    memory = HindsightReplayBuffer(500, env)
    train_off_policy(env, "bits", pop=pop, memory=memory, max_steps=200, evo_steps=100, verbose=False, seed=0)
    env.close()
    assert memory.counter == len(memory) == 400  # every step, also of episodes that a generation cuts
    rows = memory.gather(np.arange(400))
    first, after = rows["obs"], rows["next_obs"]
    is_there = (after["achieved_goal"] == first["desired_goal"]).all(-1)
    assert torch.equal(rows["reward"], torch.where(is_there, 0.0, -1.0))
    assert torch.equal(rows["done"].bool(), is_there)
    data = read_dataset(memory)
    assert len(data) == 400
    with pytest.raises(ConfigError, match="data sets fill a ReplayBuffer"):
        fill(memory, data, pop[0], OfflineOptions())


def test_the_replay_of_a_run_is_a_data_set_of_what_happened(tmp_path: Path) -> None:
    data = read_dataset(trained(out=tmp_path).path)
    assert len(data) == 250
    is_there = (data.next_obs["achieved_goal"] == data.obs["desired_goal"]).all(-1)
    np.testing.assert_array_equal(data.reward, np.where(is_there, 0.0, -1.0))


# -- refused ---------------------------------------------------------------------------------------------------------


def test_an_environment_without_goals() -> None:
    with pytest.raises(ConfigError, match=r"hindsight needs a goal environment.*CartPoleEnv is none\. fix: leave"):
        trained("CartPole-v1")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm.name": "PPO"}, r"replay_buffer: means nothing to PPO, which learns from its own rollouts"),
        ({"algorithm.name": "CQL"}, r"replay_buffer\.hindsight: means nothing to CQL"),
        ({"algorithm.name": "NeuralUCB"}, r"replay_buffer\.hindsight: means nothing to NeuralUCB"),
        ({"algorithm.name": "MADDPG"}, r"replay_buffer\.hindsight: means nothing to MADDPG"),
        (
            {"replay_buffer.n_step": 3},
            r"hindsight=future acts only with replay_buffer\.n_step=1; got replay_buffer\.n_step=3\. fix: ",
        ),
        ({"replay_buffer.prioritized": True}, r"fix: replay_buffer\.prioritized=false"),
        ({"training.reward_scale": 0.1}, r"fix: training\.reward_scale=1"),
        ({"training.clip_rewards": True}, r"fix: training\.clip_rewards=false"),
        ({"training.reward_floor": -1.0}, r"fix: training\.reward_floor=null"),
        ({"replay_buffer.hindsight": "episode"}, r"hindsight.*future.*final"),
        ({"replay_buffer.goals_per_step": 0}, "goals_per_step"),
    ],
)
def test_settings_that_exclude_hindsight(settings: dict[str, Any], message: str) -> None:
    content: dict[str, Any] = {"algorithm": {"name": "DQN"}, "replay_buffer": {"hindsight": "future"}}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        content.setdefault(section, {})[name] = value
    with pytest.raises(AgileRLError, match=message):
        manifest_from(content)


def test_goals_per_step_acts_only_with_hindsight() -> None:
    with pytest.raises(AgileRLError, match=r"goals_per_step=8 acts only with replay_buffer\.hindsight=future"):
        manifest_from({"algorithm": {"name": "DQN"}, "replay_buffer": {"goals_per_step": 8}})


def test_manifests_without_hindsight_keep_their_hash() -> None:
    plain = manifest_from({"algorithm": {"name": "DQN"}})
    assert manifest_from({"algorithm": {"name": "DQN"}, "replay_buffer": {"hindsight": None}}).hash() == plain.hash()
    with_goals = manifest_from({"algorithm": {"name": "DQN"}, "replay_buffer": {"hindsight": "final"}})
    assert with_goals.hash() != plain.hash()


def test_a_wrapper_that_scales_rewards_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_warned", set())
    make = lambda: gym.wrappers.TransformReward(BitFlip(4), lambda reward: reward / 10)  # noqa: E731
    with pytest.warns(UserWarning, match="compute_reward gives -1 for a step whose reward was -0.1"):
        trained(make)
