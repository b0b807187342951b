"""The published trainer over `agilerl.train`, and PPO with memory by its name."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import agilerl
from agilerl.algorithms import RecurrentPPO, find_algorithm
from agilerl.algorithms.base.declared import hyperparameters
from agilerl.config import preset_for
from agilerl.errors import AgileRLWarning, AlgorithmError, ConfigError, NotAvailableYetError

TRAINING = {"max_steps": 200, "evo_steps": 100, "pop_size": 2, "eval_episodes": 1, "eval_steps": 10}
QUIET: dict[str, Any] = {"verbose": False, "out": None, "confirm_episodes": 0}


@dataclasses.dataclass
class TrainingSpec:
    """Like the published one."""

    max_steps: int = 200
    population_size: int = 3
    evo_steps: int = 100
    target_score: float | None = None


class Model:
    """Like a model of pydantic."""

    def model_dump(self) -> dict[str, Any]:
        return {"tournament_size": 2, "elitism": True, "unset": None}


def test_a_name_and_sections_train(tmp_path: Path) -> None:
    trainer = agilerl.LocalTrainer(
        "dqn", "CartPole-v1", training=TrainingSpec(), selection_strategy=Model(), replay_buffer={"max_size": 500},
        mutation={"probabilities": {"no_mut": 1.0, "arch_mut": 0.0, "params_mut": 0.0, "rl_hp_mut": 0.0}},
    )  # fmt: skip
    assert trainer.run is None
    population, fitnesses = trainer.train(save_elite=True, elite_path=tmp_path / "elite.pt", seed=3, **QUIET)
    assert [len(population), *map(len, fitnesses)] == [3, 3, 3]
    manifest = trainer.run.manifest
    assert (manifest.training.seed, manifest.replay_buffer.max_size) == (3, 500)
    assert find_algorithm("DQN").load(tmp_path / "elite.pt").algo == "DQN"


def test_an_agent_is_copied_and_a_population_trains_on() -> None:
    env = gym.make("CartPole-v1")
    agent = find_algorithm("DQN")(env.observation_space, env.action_space, seed=0)
    trainer = agilerl.LocalTrainer(agent, "CartPole-v1", training=TRAINING)
    population, _ = trainer.train(**QUIET)
    assert len(population) == 2
    trainer = agilerl.LocalTrainer("DQN", "CartPole-v1", population, TRAINING)
    again, _ = trainer.train(**QUIET)
    assert len(again) == 2


def test_a_manifest_trains_as_a_mapping_or_a_file(tmp_path: Path) -> None:
    manifest = {"algorithm": {"name": "DQN"}, "environment": {"name": "CartPole-v1"}, "training": TRAINING}
    _, fitnesses = agilerl.LocalTrainer.from_manifest(manifest).train(**QUIET)
    path = tmp_path / "dqn.yaml"
    path.write_text(
        "algorithm: {name: DQN}\nenvironment: {name: CartPole-v1}\n"
        "training: {max_steps: 200, evo_steps: 100, pop_size: 2, eval_episodes: 1, eval_steps: 10}\n",
        encoding="utf-8",
    )
    assert agilerl.LocalTrainer.from_manifest(path).train(**QUIET)[1] == fitnesses
    sections = agilerl.LocalTrainer({"name": "DQN"}, {"name": "CartPole-v1"}, training=TRAINING)
    assert sections.train(**QUIET)[1] == fitnesses


def test_checkpoints_are_those_of_the_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agilerl.errors._warned", set())
    trainer = agilerl.LocalTrainer("DQN", "CartPole-v1", training=TRAINING)
    with pytest.raises(ConfigError, match=r"checkpoint=\) needs a run directory.*fix: out='runs'"):
        trainer.train(checkpoint=100, **QUIET)
    with pytest.warns(AgileRLWarning, match="checkpoint and checkpoint_path are ignored: the run directory in"):
        trainer.train(checkpoint=100, checkpoint_path="x.pt", **{**QUIET, "out": tmp_path})
    assert trainer.run.path is not None
    assert agilerl.resume(trainer.run.path, steps=300, verbose=False).result["env_steps_member"] == 300


@pytest.mark.parametrize(
    ("arguments", "switch"),
    [
        ({"elite_path": "elite.pt"}, "save_elite"),
        ({"wandb_api_key": "x"}, "wb"),
        ({"wandb_kwargs": {}}, "wb"),
        ({"tensorboard_log_dir": "logs"}, "tensorboard"),
    ],
    ids=str,
)
def test_an_argument_without_its_switch_is_ignored_with_a_warning(
    arguments: dict[str, Any], switch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agilerl.errors._warned", set())
    monkeypatch.chdir(tmp_path)
    trainer = agilerl.LocalTrainer("DQN", "CartPole-v1", training=TRAINING)
    (name,) = arguments
    fix = f"fix: {switch}=True, or leave {name} out."
    with pytest.warns(AgileRLWarning, match=re.escape(f"{name} is ignored without {switch}=True. {fix}")):
        trainer.train(**arguments, **QUIET)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"tournament": {}, "selection_strategy": {}}, "which are one"),
        ({"mutation": object()}, "mutation is an object of object; expected a section"),
        ({"algorithm": {"lr": 1e-3}}, "an algorithm without a name"),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        agilerl.LocalTrainer(**{"algorithm": "DQN", "environment": "CartPole-v1", **arguments})


def test_names_are_checked_at_once_and_accelerators_are_of_the_functions() -> None:
    with pytest.raises(AlgorithmError, match="Did you mean 'RecurrentPPO'"):
        agilerl.LocalTrainer("RecurentPPO", "CartPole-v1")
    with pytest.raises(NotAvailableYetError, match=r"accelerator"):
        agilerl.LocalTrainer("DQN", "CartPole-v1").train(accelerator=object())


@pytest.mark.parametrize("name", ["LocalTrainer", "local_trainer"])
def test_a_trainer_is_no_algorithm_and_the_error_imports_it(name: str) -> None:
    fix = r"LocalTrainer is no algorithm. fix: from agilerl.trainer import LocalTrainer\.$"
    with pytest.raises(AlgorithmError, match=fix):
        find_algorithm(name)


def test_the_published_path_says_the_new_one() -> None:
    from agilerl.training import trainer

    with pytest.warns(DeprecationWarning, match=r"agilerl.training.trainer.LocalTrainer is now agilerl.trainer"):
        assert trainer.LocalTrainer is agilerl.LocalTrainer


def test_recurrent_ppo_is_ppo_with_memory_under_its_own_name(tmp_path: Path) -> None:
    space, actions = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)
    agent = RecurrentPPO(space, actions, seed=0)
    usual = find_algorithm("PPO")(space, actions, seed=0, recurrent=True)
    assert (agent.recurrent, agent.learn_step, agent.algo) == (True, 8192, "RecurrentPPO")
    assert [p.shape for p in agent.actor.parameters()] == [p.shape for p in usual.actor.parameters()]
    assert hyperparameters(RecurrentPPO)["recurrent"].manifest is True
    agent.save_checkpoint(tmp_path / "agent")
    assert type(RecurrentPPO.load(tmp_path / "agent")) is RecurrentPPO
    assert preset_for("CartPole-v1", "recurrent-ppo").algorithm.hyperparameters["recurrent"] is True
    assert RecurrentPPO(space, actions, learn_step=64).learn_step == 64


def test_recurrent_ppo_without_a_memory_is_ppo(tmp_path: Path) -> None:
    space, actions = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)
    with pytest.raises(ConfigError, match=r"^RecurrentPPO is recurrent PPO; got recurrent=False. fix: PPO\."):
        RecurrentPPO(space, actions, recurrent=False)
    with pytest.raises(ConfigError, match=r"fix: PPO\."):
        agilerl.train("CartPole-v1", "RecurrentPPO", recurrent=False, out=tmp_path, verbose=False)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert not find_algorithm("PPO")(space, actions, recurrent=False).recurrent


def test_recurrent_ppo_trains_is_resumed_and_loaded(tmp_path: Path) -> None:
    small = {"network.encoder": {"hidden_state_size": 8, "num_layers": 1}, "network.latent_dim": 8, "learn_step": 64,
             "evo_steps": 128, "eval_episodes": 1, "eval_steps": 10, "update_epochs": 1}  # fmt: skip
    run = agilerl.train("CartPole-v1", "RecurrentPPO", population=2, steps=128, **QUIET | {"out": tmp_path}, **small)
    assert "recurrentppo" in run.path.name
    again = agilerl.resume(run.path, steps=256, verbose=False)
    assert len(again.history) == 2
    best = agilerl.load(run.path).best
    assert (best.algo, best.recurrent, type(best)) == ("RecurrentPPO", True, RecurrentPPO)
