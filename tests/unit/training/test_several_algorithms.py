"""Members of several algorithms in one population, which learn from one replay memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import agilerl
from agilerl.algorithms import DDPG, DQN, QRDQN, SAC, TD3, TQC, RainbowDQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.errors import AlgorithmError, ConfigError
from agilerl.telemetry.record import BaseSink, RunPlan
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs

RUN: dict[str, Any] = {
    "population": 4, "num_envs": 2, "steps": 400, "evo_steps": 100, "eval_episodes": 2, "latent_dim": 8,
    "batch_size": 8, "learning_delay": 8, "random_steps": 8, "learn_step": 4, "patience": None, "target_score": None,
    "confirm_episodes": 2, "verbose": False, "seed": 5, "train_max_episode_steps": 50, "preset": False,
}  # fmt: skip


class Plans(BaseSink):
    plan: RunPlan

    def start(self, plan: RunPlan, founders: Any) -> None:
        self.plan = plan


def weights(agent: Any) -> list[torch.Tensor]:
    return [part for network in agent.evaluation_networks().values() for part in network.parameters()]


def same(one: list[Any], other: list[Any], **close: float) -> None:
    assert [type(agent) for agent in one] == [type(agent) for agent in other]
    for a, b in zip(one, other, strict=True):
        for x, y in zip(weights(a), weights(b), strict=True):
            torch.testing.assert_close(x, y, **(close or {"rtol": 0, "atol": 0}))


def mixed(**changes: Any) -> Any:
    return agilerl.train("Pendulum-v1", "SAC", **{**RUN, "algorithms": ["TD3", "DDPG"], **changes})


def test_founders_take_turns_and_learn_from_one_replay() -> None:
    run = mixed(evolution=False, steps=200)
    assert [type(agent) for agent in run.population] == [SAC, TD3, DDPG, SAC]
    assert {agent.batch_size for agent in run.population} == {8}  # keys that they share
    assert all(agent.learn_counter > 0 for agent in run.population)
    alone = agilerl.train("Pendulum-v1", "SAC", **{**RUN, "steps": 200}, evolution=False)
    for part, other in zip(weights(run.population[0]), weights(alone.population[0]), strict=True):
        assert part.shape == other.shape  # the lead is built as in a population of its own


def test_groups_of_one_class_learn_as_members_one_by_one() -> None:
    fused, alone = (mixed(evolution=False, steps=200, learner=learner) for learner in ("fused", "sequential"))
    same(fused.population, alone.population, rtol=1e-3, atol=1e-4)


def test_selection_copies_across_algorithms_and_a_killed_run_resumes_to_the_bit(tmp_path: Path) -> None:
    changes = {"evolution.scheme": "tournament", "rl_hp_mut": 1.0}
    whole = mixed(out=tmp_path / "whole", **changes)
    classes = {type(agent) for agent in whole.population}
    assert len(classes) < 3 or classes == {SAC, TD3, DDPG}

    class Stop:
        def on_generation(self, record: Any) -> bool | None:
            return False if record.generation == 2 else None

    stopped = mixed(out=tmp_path / "stopped", callbacks=[Stop()], **changes)
    resumed = agilerl.resume(stopped.path, verbose=False)
    same(resumed.population, whole.population)


@pytest.mark.parametrize(
    ("env", "lead", "others"),
    [("CartPole-v1", DQN, [RainbowDQN]), ("CartPole-v1", DQN, [QRDQN]), ("Pendulum-v1", SAC, [TQC, TD3])],
)
def test_every_member_of_a_mixed_population_learns(env: str, lead: Any, others: list[Any]) -> None:
    names = [cls.__name__ for cls in others]
    steps = {"random_steps": 8} if lead is SAC else {"random_steps": 0}
    run = agilerl.train(env, lead.__name__, **{**RUN, **steps, "algorithms": names, "steps": 200}, evolution=False)
    kinds = [lead, *others]
    assert [type(agent) for agent in run.population] == [kinds[i % len(kinds)] for i in range(4)]
    assert all(agent.learn_counter > 0 for agent in run.population)


@pytest.mark.parametrize(
    ("env", "lead", "other", "says"),
    [
        ("Pendulum-v1", "SAC", "PPO", "PPO learns from its own rollouts, so it shares no replay memory"),
        ("CartPole-v1", "PPO", "DQN", "PPO learns from its own rollouts, so it shares no replay memory"),
        ("CartPole-v1", "DQN", "SAC", "DQN and SAC store actions in different forms"),
        ("Pendulum-v1", "SAC", "TD33", "Did you mean 'TD3'"),
    ],
)
def test_algorithms_that_cannot_share_a_replay_are_refused(env: str, lead: str, other: str, says: str) -> None:
    with pytest.raises((ConfigError, AlgorithmError), match=says):
        agilerl.train(env, lead, algorithms=[other], steps=100, verbose=False)


def test_the_published_loop_takes_them_too() -> None:
    env = make_vect_envs("Pendulum-v1", num_envs=2)
    spaces = env.single_observation_space, env.single_action_space
    population = [cls(*spaces, index=i, seed=i, batch_size=8, learn_step=4) for i, cls in enumerate((SAC, TD3))]
    before = [[part.clone() for part in weights(agent)] for agent in population]
    members, _ = train_off_policy(
        env, "Pendulum-v1", "mixed", population, ReplayBuffer(1_000), max_steps=200, evo_steps=100, eval_loop=1,
        learning_delay=8, verbose=False,
    )  # fmt: skip
    assert [type(agent) for agent in members] == [SAC, TD3]
    for agent, old in zip(members, before, strict=True):
        assert any(not torch.equal(x, y) for x, y in zip(weights(agent), old, strict=True))
    env.close()


def test_an_ensemble_of_several_algorithms_is_evaluated_member_by_member() -> None:
    sink = Plans()
    run = mixed(evolution=False, steps=200, ensemble=True, sinks=[sink])
    assert "no ensemble, the best by training returns is evaluated" in "; ".join(sink.plan.notes)
    assert sink.plan.algo == "SAC, TD3, DDPG"
    assert np.isfinite(run.best.evaluate(episodes=1).mean)
