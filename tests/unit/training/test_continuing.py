"""A new run from an old one's agents: what is kept, what is new, what is refused, and what the records say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import agilerl
from agilerl.algorithms import CQL, DQN, PPO
from agilerl.cli import app
from agilerl.collect.rollouts import OnPolicyCollector
from agilerl.errors import AgileRLWarning, AlgorithmError, ConfigError, RunError
from agilerl.training.manifest.adoption import Ancestors, ancestors_of, structure_of
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import create_population, make_vect_envs

SETTINGS: dict[str, Any] = {
    "evo_steps": 200, "eval_episodes": 2, "eval_steps": 20, "learning_delay": 32, "confirm_episodes": 0,
    "target_score": None, "latent_dim": 16, "num_envs": 4, "rl_hp_mut": 0.6,
    "network.encoder_config.hidden_size": [16], "network.head_config.hidden_size": [16],
}  # fmt: skip
VECTORS, CHOICES = gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(2)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> agilerl.Run:
    out = tmp_path_factory.mktemp("old")
    return agilerl.train("CartPole-v1", population=3, steps=400, seed=1, out=out, verbose=False, **SETTINGS)


def weights(agent: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in agent.actor.state_dict().items()}


def test_a_loaded_run_has_the_members_of_its_newest_checkpoint(old: agilerl.Run) -> None:
    loaded = agilerl.load(old.path)
    assert [agent.index for agent in loaded.population] == [agent.index for agent in old.population]
    for mine, theirs in zip(loaded.population, old.population, strict=True):
        assert mine.hyperparameters() == theirs.hyperparameters()
        assert mine.fitness == theirs.fitness
        ours, wanted = weights(mine), weights(theirs)
        assert ours.keys() == wanted.keys()
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in ours.items())


def test_without_a_whole_checkpoint_a_loaded_run_has_its_best_agent_alone(old: agilerl.Run, tmp_path: Path) -> None:
    assert old.path is not None
    path = tmp_path / "copy"
    shutil.copytree(old.path, path)
    for file in (path / "checkpoints").glob("*/population.safetensors"):
        file.write_bytes(b"damaged")
    names = sorted(entry.name for entry in (path / "checkpoints").iterdir())
    with pytest.warns(AgileRLWarning, match="no checkpoint can be read"):
        loaded = agilerl.load(path)
    assert loaded.population == [loaded.best]
    assert sorted(entry.name for entry in (path / "checkpoints").iterdir()) == names  # looking renames nothing
    shutil.rmtree(path / "checkpoints")
    assert len(agilerl.load(path).population) == 1


def test_a_copy_keeps_what_it_has_learned_and_is_a_founder_otherwise() -> None:
    agent = DQN(VECTORS, CHOICES, index=9, lr=3e-3, batch_size=8, seed=5)
    agent.fitness, agent.steps, agent.scores = [1.0, 2.0], [500], [3.0]
    rows = agent.actor.parameters()
    loss = sum((parameter**2).sum() for parameter in rows)
    loss.backward()  # type: ignore[union-attr]
    agent.optimizer.optimizer.step()
    founder = DQN(VECTORS, CHOICES, index=2, lr=1e-4, seed=7)
    exploration = founder._exploration.bit_generator.state
    (copy,) = Ancestors([agent], run="runs/x").adopt([founder])
    assert (copy.index, copy.seed, copy.steps, copy.fitness, copy.scores, copy.mut) == (2, 7, [0], [], [], None)
    assert (copy.lr, copy.batch_size, copy.origin) == (3e-3, 8, "runs/x, member 9")
    assert copy._exploration.bit_generator.state == exploration
    before = weights(agent)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(copy).items())
    (mine, *_), (theirs, *_) = (list(each.optimizer.optimizer.state.values()) for each in (copy, agent))
    assert torch.equal(mine["exp_avg"], theirs["exp_avg"])
    mine["exp_avg"].zero_()  # nothing is shared
    assert theirs["exp_avg"].abs().sum() > 0
    assert (agent.index, agent.steps) == (9, [500])


def test_named_hyperparameters_are_the_new_runs_and_reach_the_optimiser() -> None:
    agent = DQN(VECTORS, CHOICES, lr=3e-3, batch_size=8)
    (copy,) = Ancestors([agent], changed=("lr",)).adopt([DQN(VECTORS, CHOICES, lr=1e-4, batch_size=64)])
    assert (copy.lr, copy.batch_size) == (1e-4, 8)
    assert [group["lr"] for group in copy.optimizer.optimizer.param_groups] == [1e-4]


def test_more_agents_than_founders_are_the_fittest_and_fewer_go_round() -> None:
    agents = [DQN(VECTORS, CHOICES, index=index) for index in range(4)]
    for agent, fitness in zip(agents, (1.0, 9.0, float("nan"), 5.0), strict=True):
        agent.fitness = [fitness]

    def founders(count: int) -> list[DQN]:
        return [DQN(VECTORS, CHOICES, index=10 + slot) for slot in range(count)]

    assert [copy.origin[-1] for copy in Ancestors(agents).adopt(founders(2))] == ["1", "3"]
    assert [copy.origin[-1] for copy in Ancestors(agents[:2]).adopt(founders(3))] == ["0", "1", "0"]


def test_agents_that_do_not_fit_are_refused_by_name() -> None:
    agent = DQN(VECTORS, CHOICES)
    with pytest.raises(AlgorithmError, match=r"the agents are DQN, the new run trains PPO\. fix: algo='DQN'"):
        Ancestors([agent]).adopt([PPO(VECTORS, CHOICES)])
    wider = gym.spaces.Box(-1, 1, (6,), np.float32)
    with pytest.raises(AlgorithmError, match=r"built for the observation space Box.*\(4,\).*has Box.*\(6,\)"):
        Ancestors([agent]).adopt([DQN(wider, CHOICES)])
    with pytest.raises(AlgorithmError, match=r"action space Discrete\(2\); the environment has Discrete\(3\)"):
        Ancestors([agent]).adopt([DQN(VECTORS, gym.spaces.Discrete(3))])
    with pytest.raises(ConfigError, match=r"agents must be a run, the path of one, or a list of agents; got int"):
        ancestors_of(3)
    with pytest.raises(RunError, match="there are no agents to start from"):
        ancestors_of([])


def test_the_new_run_names_its_parent_and_every_founder_its_own(old: agilerl.Run, tmp_path: Path) -> None:
    run = agilerl.train(
        "CartPole-v1", agents=old.path, steps=200, lr=5e-4, out=tmp_path, verbose=False, evolution=False
    )
    facts = json.loads((run.path / "run.json").read_text())
    ids = [agent.index for agent in old.population]
    assert facts["parent"] == {"run": str(old.path), "members": ids}
    assert [birth.path for birth in run.lineage] == [f"{old.path}, member {index}" for index in ids]
    assert [agent.lr for agent in run.population] == [5e-4] * 3
    assert run.manifest.network == old.manifest.network
    assert run.result["env_steps_member"] == 200  # its own budget, from the start
    assert f"Begun with the agents of <b>{old.path}</b>" in (run.path / "report.html").read_text()


def test_a_list_of_agents_is_the_population_and_keeps_its_hyperparameters(tmp_path: Path) -> None:
    agents = [DQN(VECTORS, CHOICES, index=7, lr=3e-3, seed=1), DQN(VECTORS, CHOICES, index=8, lr=4e-3, seed=2)]
    run = agilerl.train("CartPole-v1", agents=agents, steps=200, evo_steps=200, eval_episodes=1, out=tmp_path,
                        verbose=False, evolution=False)  # fmt: skip
    assert [(agent.index, agent.lr) for agent in run.population] == [(0, 3e-3), (1, 4e-3)]
    parent = json.loads((run.path / "run.json").read_text())["parent"]
    assert parent == {"run": None, "members": [7, 8]}
    assert run.lineage[1].path == "agents that were handed over, member 8"
    assert "Begun with" in (run.path / "report.html").read_text()


def test_the_command_begins_a_new_run_and_leaves_the_old_one_as_it_is(old: agilerl.Run, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in old.path.rglob("*") if path.is_file()}
    sets = ["--set", "batch_size=16", "--set", "eps_start=0.1"]
    arguments = [
        "continue",
        str(old.path),
        "--steps",
        "200",
        *sets,
        "--out",
        str(tmp_path),
        "-q",
        "--test-episodes",
        "2",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    made = tmp_path / "CartPole-v1" / "dqn-0001"
    assert {member.batch_size for member in agilerl.load(made).population} <= {13, 16, 19}  # 16, or a mutation of it
    assert {path: path.read_bytes() for path in old.path.rglob("*") if path.is_file()} == before


def test_a_network_is_the_agents_own(old: agilerl.Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="network settings are not for agents"):
        agilerl.train("CartPole-v1", agents=old, latent_dim=32, out=tmp_path, verbose=False)
    with pytest.raises(AlgorithmError, match="the agents are DQN, the new run trains RainbowDQN"):
        agilerl.train("CartPole-v1", "RainbowDQN", agents=old.population, out=None, verbose=False)


def test_a_continued_run_is_resumed_from_its_own_checkpoint_or_not_at_all(old: agilerl.Run, tmp_path: Path) -> None:
    run = agilerl.train("CartPole-v1", agents=old, steps=200, out=tmp_path, verbose=False)
    again = agilerl.resume(run.path, steps=400, verbose=False)
    assert again.result["env_steps_member"] == 400
    assert json.loads((run.path / "run.json").read_text())["parent"]["run"] == str(old.path)
    shutil.rmtree(run.path / "checkpoints")
    with pytest.raises(RunError, match=r"began with the agents of .* fix: agilerl continue"):
        agilerl.resume(run.path, verbose=False)


def test_a_second_call_counts_on_from_the_steps_of_its_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generations of 32 steps; the third is the first one of another call, with 64 of 128 steps made."""
    env, seen, usual = make_vect_envs("CartPole-v1", num_envs=1), list[int](), OnPolicyCollector.run

    def run(source: Any, shard: Any, *more: Any) -> Any:
        seen.append(shard.begun)
        return usual(source, shard, *more)

    monkeypatch.setattr(OnPolicyCollector, "run", run)
    spaces = {"observation_space": env.single_observation_space, "action_space": env.single_action_space}
    population = create_population("PPO", None, {"LEARN_STEP": 32, "BATCH_SIZE": 16}, population_size=1, **spaces)
    for steps in (64, 128):
        more: dict[str, Any] = {"max_steps": steps, "evo_steps": 32, "eval_steps": 5, "verbose": False}
        population, _ = train_on_policy(env, "CartPole-v1", pop=population, **more)
    assert seen == [0, 32, 64, 96]


@pytest.mark.parametrize("threshold", [None, 5.0])
def test_what_decides_which_networks_exist_is_taken_over(threshold: float | None) -> None:
    agent = CQL(VECTORS, gym.spaces.Box(-1, 1, (1,), np.float32), threshold=threshold)
    assert structure_of(Ancestors([agent])) == {"algorithm.share_encoders": False, "algorithm.threshold": threshold}
