"""What the directory and the card of a run promise holds for every algorithm of the package: its policy loads and acts,
in plain PyTorch and ONNX too where that is written, and the run is reported, repeated and continued."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from typer.testing import CliRunner

import agilerl
from agilerl.algorithms import DQN, IPPO, LANGUAGE, PPO, NeuralUCB, available, is_team
from agilerl.cli import app
from agilerl.core import tree as trees
from agilerl.envs.simulators.wordle import wordle_data
from agilerl.errors import NotAvailableYetError
from agilerl.language.tiny import tiny_base, tiny_tokenizer
from agilerl.training.policy_files import write_best
from agilerl.views.export import greedy_actions, sample_observations
from agilerl.views.hub_push import bundle_of
from agilerl.views.standalone.policy import PolicyError, load

SMALL: dict[str, Any] = {
    "population": 2, "num_envs": 2, "eval_episodes": 1, "eval_steps": 20, "elite_rescore_episodes": 0, "batch_size": 8,
    "steps": 64, "evo_steps": 32, "seed": 3,
}  # fmt: skip
NET = {"network.latent_dim": 8, "network.head_config.hidden_size": [8]}
DENSE = {**NET, "network.encoder_config.hidden_size": [8]}
PROMPTS = {
    "env": "arithmetic/addition-2", "population": 2, "steps": 16, "evo_steps": 8, "lora_config": {"r": 2}, "seed": 3,
    "environment.kwargs": {"train_size": 24, "test_size": 6, "report_size": 5, "batch": 4},
}  # fmt: skip
WORDS = {"env": "Wordle-v0", "environment.kwargs": {"words": 6, "tries": 2}}
ROLLOUT = {"learn_step": 16, "update_epochs": 1}
TALKING = {**SMALL, **DENSE, "env": "mpe2.simple_speaker_listener_v4"}
RECURRENT = {**NET, "network.encoder": {"hidden_state_size": 8, "min_hidden_state_size": 8}, "max_seq_len": 8}
LATE = {"learning_delay": 16, "learn_step": 4}
SINGLE: dict[str, dict[str, Any]] = {
    **{key: {**DENSE, **LATE, "env": "CartPole-v1"} for key in ("DQN", "QRDQN", "RainbowDQN")},
    **{key: {**DENSE, **LATE, "env": "Pendulum-v1"} for key in ("DDPG", "TD3", "SAC", "TQC")},
    **{key: {**DENSE, "env": "CartPole-v1", "dataset": "CartPole-v1"} for key in ("BC", "CQN")},
    **{key: {**DENSE, "env": "Pendulum-v1", "dataset": "Pendulum-v1"} for key in ("CQL", "IQL", "TD3BC")},
    **{key: {**WORDS, "dataset": "words"} for key in ("BC_LM", "ILQL")},
    **{key: {**DENSE, "env": "bandit/iris", "learning_delay": 16} for key in ("NeuralTS", "NeuralUCB")},
    **{key: {**DENSE, **ROLLOUT, "env": "CartPole-v1"} for key in ("PPO", "PQN")},
    "RecurrentPPO": {**RECURRENT, **ROLLOUT, "env": "CartPole-v1"},
}
NOT_PLAIN = ("RecurrentPPO", "BC_LM", "ILQL")  # memories and texts


def every(*quick: str) -> Any:
    """One case for each algorithm of the package, trained once; the fast suite has a few."""
    cases = [pytest.param(name, marks=() if name in quick else pytest.mark.thorough) for name in available()]
    return pytest.mark.parametrize("trained", cases, indirect=True, scope="module")


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, agilerl.Run]:
    """(algorithm, a run of it that is only read)."""
    return request.param, train(request.param, tmp_path_factory.mktemp("trained"))


def data_of(name: str, folder: Path) -> Path:
    rng, width, file = np.random.default_rng(0), {"CartPole-v1": 4, "Pendulum-v1": 3}.get(name, 0), folder / "data.npz"
    if name == "words":
        np.savez(file, **wordle_data(20, words=6, tries=2, seed=1))
        return file
    np.savez(
        file,
        observations=rng.normal(size=(60, width)).astype(np.float32),
        next_observations=rng.normal(size=(60, width)).astype(np.float32),
        actions=rng.integers(2, size=60) if width == 4 else rng.uniform(-2, 2, (60, 1)),
        rewards=rng.normal(size=60),
        terminals=np.arange(60) % 20 == 19,
    )
    return file


def settings_of(algo: str, folder: Path) -> dict[str, Any]:
    if algo in LANGUAGE:
        model = tiny_base(folder / "base", tiny_tokenizer("0123456789+= "), hidden_size=8, layers=1, heads=2)
        return {**PROMPTS, "model": model, **({"group_size": 4} if algo in ("CISPO", "GRPO", "GSPO") else {})}
    if is_team(algo):
        return {**TALKING, **(ROLLOUT if algo in ("IPPO", "MAPPO") else LATE)}
    more = {**SMALL, **SINGLE[algo]}
    return more | ({"dataset": str(data_of(more["dataset"], folder))} if "dataset" in more else {})


def train(algo: str, folder: Path, **more: Any) -> agilerl.Run:
    options = {**settings_of(algo, folder), "verbose": False, **more}
    return agilerl.train(algo=algo, out=folder / "runs", **options)


def observations_of(agent: Any) -> Any:
    if not is_team(agent.algo):
        return sample_observations(agent.observation_space, 100, 0)
    return {name: sample_observations(agent.possible_observation_spaces[name], 100, 0) for name in agent.agent_ids}


def greedy(agent: Any, observations: Any) -> Any:
    return (
        agent.get_action(observations, training=False)[0]
        if is_team(agent.algo)
        else (greedy_actions(agent, observations))
    )


def assert_same_run(one: agilerl.Run, other: agilerl.Run) -> None:
    assert one.history == other.history
    for mine, theirs in zip(one.population, other.population, strict=True):
        state, expected = mine.policy_state(), theirs.policy_state()
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[name], expected[name]) for name in state)


@every("NeuralUCB", "RecurrentPPO")
def test_what_a_run_writes_acts_as_its_agent_and_the_card_promises_no_more(trained: tuple[str, agilerl.Run]) -> None:
    algo, run = trained
    assert run.path is not None
    if algo in LANGUAGE:
        assert not (run.path / "best" / "policy.py").exists()
        with pytest.raises(NotAvailableYetError, match="fix: `agilerl export"), bundle_of(run.path, "me/run"):
            pass
        return
    is_plain = algo not in NOT_PLAIN
    assert (run.path / "best" / "policy.py").exists() == is_plain
    with bundle_of(run.path, "me/run") as bundle:
        assert ("policy.py" in bundle.card) == ("best/policy.py" in bundle.names) == is_plain
    if not is_plain:
        with pytest.raises(PolicyError, match="not covered"):
            load(run.path / "best")
        return
    agent = agilerl.load(run.path, "cpu").best
    observations = observations_of(agent)
    plain, loaded, in_memory = (
        load(run.path / "best").act(observations),
        greedy(agent, observations),
        greedy(run.best, observations),
    )
    for actions, expected, first in zip(*map(trees.leaves, (plain, loaded, in_memory)), strict=True):
        np.testing.assert_allclose(actions.numpy(), expected, atol=1e-5)
        np.testing.assert_array_equal(first, expected)


@every("NeuralUCB")
def test_a_run_is_repeated_and_goes_on_to_the_same_weights(trained: tuple[str, agilerl.Run], tmp_path: Path) -> None:
    algo, run = trained
    assert run.path is not None
    assert_same_run(agilerl.replay(run.path, out=tmp_path / "again", verbose=False), run)
    stopped = train(algo, tmp_path, callbacks=[lambda record: record.generation > 0])
    assert stopped.path is not None
    assert_same_run(agilerl.resume(stopped.path, verbose=False), run)


@every("RecurrentPPO")
def test_every_command_reads_a_run(
    trained: tuple[str, agilerl.Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algo, run = trained
    monkeypatch.chdir(tmp_path)
    few = [] if run.best.learns_language else ["--episodes", "2"]
    for command, *options in (["report"], ["evaluate", *few], ["schedule"], ["compare"], ["optuna"]):
        answer = CliRunner().invoke(app, [command, str(run.path), *options])
        assert answer.exit_code == 0, answer.output
    exported = CliRunner().invoke(app, ["export", str(run.path)])
    if algo in NOT_PLAIN:
        assert exported.exit_code == 2
        assert "not covered" in exported.output
        assert "fix: agilerl.load(RUN).best acts." in exported.output
        return
    assert exported.exit_code == 0, exported.output
    if algo not in LANGUAGE:
        assert all("difference over 10000 observations: " in line for line in exported.output.splitlines()[1::2])


BOX, CHOICE = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(3)
LSTM = {"latent_dim": 8, "encoder_config": {"hidden_state_size": 8}, "head_config": {"hidden_size": [8]}}
UNCOVERED: dict[str, Callable[[], Any]] = {
    "recurrent": lambda: PPO(BOX, CHOICE, recurrent=True, net_config=LSTM),
    "recurrent team": lambda: IPPO({"a": BOX, "b": BOX}, {"a": CHOICE, "b": CHOICE}, recurrent=True, net_config=LSTM),
    "simba": lambda: DQN(BOX, CHOICE, net_config={"simba": True}),
}


@pytest.mark.parametrize("kind", UNCOVERED)
def test_a_policy_that_the_loader_does_not_cover_has_none(kind: str, tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "policy.py").write_text("of an earlier version")
    write_best(tmp_path, UNCOVERED[kind]())
    assert {file.name for file in (tmp_path / "best").iterdir()} == {"policy.json", "policy.safetensors"}


def test_a_bandit_takes_the_legal_arm_of_the_largest_output(tmp_path: Path) -> None:
    agent = NeuralUCB(spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3), net_config={"latent_dim": 2}, seed=0)
    with torch.no_grad():
        for parameter in agent.actor.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    write_best(tmp_path, agent)
    policy, contexts = load(tmp_path / "best"), np.random.default_rng(0).normal(size=(50, 3, 2)).astype(np.float32)
    mean = agent.actor(torch.from_numpy(contexts).flatten(0, 1))[..., 0].reshape(50, 3)
    assert mean.argmax(-1).unique().tolist() == [0, 1, 2]
    assert policy.act(contexts).tolist() == mean.argmax(-1).tolist()
    assert policy.act(contexts[0]).tolist() == mean[0].argmax().item()
    legal = np.array([[1, 0, 1]] * 50)
    assert (
        policy.act(contexts, legal).tolist()
        == mean.masked_fill(~torch.from_numpy(legal).bool(), -9e9).argmax(-1).tolist()
    )
    with pytest.raises(PolicyError, match=r"shape \[B, 3, 2\]; got \(50, 2\)"):
        policy(contexts[:, 0])
