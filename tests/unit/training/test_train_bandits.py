"""Populations of bandits: the published function, evolution, resuming, and `agilerl.train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from typer.testing import CliRunner

import agilerl
from agilerl.algorithms import DQN, NeuralUCB
from agilerl.cli.main import app
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.envs.bandit import rounds_of
from agilerl.errors import AlgorithmError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_bandits import train_bandits
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import create_population, make_vect_envs
from agilerl.wrappers.learning import BanditEnv

HP = {"BATCH_SIZE": 16, "LR": 1e-2, "GAMMA": 0.5, "LAMBDA": 2.0, "REG": 0.001, "LEARN_STEP": 2, "EPISODE_STEPS": 50}
NET = {"latent_dim": 8, "encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}}
SMALL = {
    "network.latent_dim": 8, "network.encoder_config.hidden_size": [16], "network.head_config.hidden_size": [16],
    "eval_episodes": 1, "evo_steps": 60, "learning_delay": 16, "num_envs": 2, "batch_size": 16,
}  # fmt: skip


def bandit() -> BanditEnv:
    x = np.random.default_rng(0).standard_normal((60, 2))
    return BanditEnv(x, (x[:, 0] > 0).astype(int))


def evolved(algo: str, folder: Path | None, max_steps: int, **more: Any) -> tuple[list[Any], list[list[float]]]:
    env = bandit()
    pop = create_population(algo, env.observation_space, env.action_space, NET, HP, population_size=3, seed=1)
    assert (pop[0].lamb, pop[0].gamma, pop[0].learn_step) == (2.0, 0.5, 2)
    return train_bandits(
        env, "halves", algo, pop, ReplayBuffer(max_size=300), INIT_HP=HP, max_steps=max_steps, episode_steps=50,
        evo_steps=100, eval_steps=40, tournament=TournamentSelection(2, True, 3, 1, seed=1),
        mutation=Mutations(0.2, 0.4, 0.5, 0.2, 0, 0.2, rand_seed=1), seed=2, verbose=False, resume=folder, **more,
    )  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("algo", ["NeuralUCB", "NeuralTS"])
def test_an_evolved_run_goes_on_bit_for_bit(algo: str, tmp_path: Path) -> None:
    whole, fitness = evolved(algo, tmp_path / "whole", 400)

    def stop(record: Any) -> bool:
        return record.generation < 1

    evolved(algo, tmp_path / "parts", 400, callbacks=[stop])
    parts, same = evolved(algo, tmp_path / "parts", 400)
    assert len(fitness) == 4
    assert fitness == same
    assert max(fitness[-1]) > 30
    assert any(agent.mut not in (None, "None") for agent in whole)
    for mine, theirs in zip(whole, parts, strict=True):
        assert mine.regret == theirs.regret
        assert len(mine.regret) == 5
        assert torch.equal(mine.sigma_inv, theirs.sigma_inv)
        for a, b in zip(mine.actor.parameters(), theirs.actor.parameters(), strict=True):
            assert torch.equal(a, b)


def test_a_mutant_learns_on_with_a_design_of_as_many_rows_as_it_has_chosen_arms() -> None:
    env, memory = bandit(), ReplayBuffer(max_size=300)
    pop = create_population("NeuralUCB", env.observation_space, env.action_space, NET, HP, population_size=2, seed=1)
    calls: list[int] = []

    class Noted(NeuralUCB):
        def rebuild_design(self, contexts: Any) -> None:
            calls.append(len(contexts))
            super().rebuild_design(contexts)

    options = {"evo_steps": 30, "eval_steps": 5, "verbose": False, "seed": 0}
    train_bandits(env, "halves", None, pop, memory, max_steps=30, **options)
    assert [agent.rounds for agent in pop] == [30, 30]
    assert len(memory) == 60, "of both"
    for agent in pop:
        agent.__class__ = Noted
        agent.forget_design()
    train_bandits(env, "halves", None, pop, memory, max_steps=60, **options)
    assert calls == [30, 30]
    assert [agent.rounds for agent in pop] == [60, 60]


def test_any_bandit_with_the_published_interface_trains() -> None:
    class Coin:
        arms, context_dim = 2, (3,)

        def reset(self) -> Any:
            return np.eye(2, 3)

        def step(self, k: int) -> tuple[Any, float]:
            return np.eye(2, 3), float(k == 1)

    pop = [NeuralUCB(spaces.Box(0, 1, (3,)), spaces.Discrete(2), net_config=NET, lr=1e-2, batch_size=8, seed=0)]
    trained, fitness = train_bandits(
        Coin(), "coin", None, pop, ReplayBuffer(max_size=100), max_steps=100, evo_steps=50, eval_steps=10,
        verbose=False, seed=0,
    )  # fmt: skip
    assert fitness[-1] == [10.0]
    assert trained[0].regret[-1] < 20


def test_other_algorithms_and_other_functions_are_named() -> None:
    env, memory = bandit(), ReplayBuffer(max_size=100)
    pop: list[Any] = [DQN(env.observation_space, env.action_space, seed=0)]
    with pytest.raises(
        AlgorithmError, match=r"DQN learns from replay, not from the rewards of chosen arms\. fix: train_off_policy"
    ):
        train_bandits(env, "halves", None, pop, memory, max_steps=10)
    vector = make_vect_envs(make_env=lambda: rounds_of(bandit()))
    pop = [NeuralUCB(env.observation_space, env.action_space, net_config=NET)]
    with pytest.raises(
        AlgorithmError, match=r"NeuralUCB learns from the rewards .*, not from replay\. fix: train_bandits"
    ):
        train_off_policy(vector, "halves", pop=pop, memory=memory, max_steps=10)


@pytest.mark.thorough
def test_the_facade_trains_on_an_object_and_the_command_on_an_id(tmp_path: Path) -> None:
    run = agilerl.train(
        bandit(), "NeuralTS", population=2, steps=120, out=tmp_path, verbose=False, eval_steps=20, **SMALL
    )
    assert run.manifest.environment.name == "BanditEnv"
    assert len(run.history) == 2
    assert run.best.regret[-1] < 60
    assert "rounds" in repr(run)
    assert run.path is not None
    again = agilerl.resume(run.path, steps=180, env=bandit(), verbose=False)
    assert len(again.history) == 3
    pytest.importorskip("sklearn")
    sets = [
        part for key, value in SMALL.items() for part in ("--set", f"{key if '.' in key else SECTION[key]}={value}")
    ]
    done = CliRunner().invoke(
        app, ["train", "bandit/iris", "--algo", "neural-ucb", "--steps", "60", "--population", "2", "-q",
              "--test-episodes", "2", "--out", str(tmp_path), *sets],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    (path,) = tmp_path.glob("bandit-iris/*")
    assert agilerl.load(path).best.algo == "NeuralUCB"


SECTION = {
    "eval_episodes": "training.eval_episodes", "evo_steps": "training.evo_steps", "batch_size": "algorithm.batch_size",
    "learning_delay": "training.learning_delay", "num_envs": "environment.num_envs",
}  # fmt: skip
