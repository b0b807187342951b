"""Configurations of the published library, of both generations of names, are translated; what is lost is said."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import agilerl
from agilerl import algorithms
from agilerl.cli import app
from agilerl.config import Manifest, load_manifest
from agilerl.config.convert import convert
from agilerl.config.keys import is_published
from agilerl.errors import AgileRLError, AgileRLWarning, ConfigError

OLDER = """
INIT_HP:
    ENV_NAME: CartPole-v1
    ALGO: DQN
    CHANNELS_LAST: false
    NUM_ENVS: 4
    BATCH_SIZE: 32
    LR: 6.3e-4
    MAX_STEPS: 400
    TARGET_SCORE: 200.
    MEMORY_SIZE: 5_000
    LEARN_STEP: 2
    TOURN_SIZE: 3
    ELITISM: false
    POP_SIZE: 2
    EVO_STEPS: 200
    EVAL_STEPS: 30
    EVAL_LOOP: 2
    EPS_DECAY: 0.99
    WANDB: true
MUTATION_PARAMS:
    NO_MUT: 0.4
    ARCH_MUT: 0.2
    NEW_LAYER: 0.3
    PARAMS_MUT: 0.1
    ACT_MUT: 0.25
    RL_HP_MUT: 0.2
    MUT_SD: 0.05
    RAND_SEED: 42
    MIN_LR: 0.0001
    MAX_LR: 0.01
    MIN_BATCH_SIZE: 8
    MAX_BATCH_SIZE: 64
NET_CONFIG:
    latent_dim: 16
    encoder_config: {hidden_size: [24], activation: Tanh}
    head_config: {hidden_size: [8], output_activation: null, output_vanish: true}
"""
NEWER = """
algorithm: {name: PPO, batch_size: 64, lr: 0.0003, learn_step: 512, target_kl: null, recurrent: true, cudagraphs: false}
environment: {name: MaskedCartPole-v1, num_envs: 4}
mutation:
    probabilities: {no_mut: 0.4, arch_mut: 0.0, new_layer: 0.0, params_mut: 0.2, act_mut: 0.0, rl_hp_mut: 0.2}
    rl_hp_selection: {lr: {min: 0.0001, max: 0.01}, learn_step: {min: 256, max: 8192}}
    mutation_sd: 0.1
    rand_seed: 42
    super_param_mut: true
    regrama_param_mut: false
network:
    latent_dim: 16
    encoder_config: {hidden_state_size: 24, num_layers: 1}
    head_config: {hidden_size: [16], activation: ReLU}
selection_strategy: {tournament_size: 2, elitism: true}
training: {max_steps: 1024, target_score: 500.0, pop_size: 2, evo_steps: 512, eval_steps: null, eval_loop: 1}
"""


def read(text: str, tmp_path: Path) -> tuple[Manifest, list[str]]:
    """The manifest, and what was said."""
    path = tmp_path / "published.yaml"
    path.write_text(text)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", AgileRLWarning)
        return load_manifest(path), [str(one.message) for one in said if one.category is AgileRLWarning]


def changed(text: str, section: str, **keys: Any) -> str:
    data = yaml.safe_load(text)
    data[section] |= keys
    return yaml.safe_dump(data, sort_keys=False)


def test_the_older_generation_means_here_what_it_meant(tmp_path: Path) -> None:
    made, said = read(OLDER, tmp_path)
    assert made.algorithm.hyperparameters == {
        "batch_size": 32, "lr": 6.3e-4, "learn_step": 2, "gamma": 0.99, "tau": 0.001, "double": False,
    }  # fmt: skip
    training = made.training
    assert (made.environment.name, made.environment.num_envs) == ("CartPole-v1", 4)
    assert (training.max_steps, training.pop_size, training.evo_steps, training.eval_steps) == (400, 2, 200, 30)
    assert training.eval_episodes == 8, "two rounds of one episode in each of four environments"
    assert (training.eps_start, training.eps_end, training.eps_decay) == (1.0, 0.1, 0.99)
    assert (training.learning_delay, training.target_score) == (0, 200.0)
    assert (training.evolve_from, training.elite_rescore_episodes, training.reward_floor) == (0.0, 0, None)
    assert made.replay_buffer.max_size == 5000
    selection = made.tournament_selection
    assert (selection.tournament_size, selection.elitism, selection.eval_loop) == (3, False, 2)
    chances = made.mutation.probabilities
    assert (chances.no_mut, chances.arch_mut, chances.new_layer) == (0.4, 0.2, 0.3)
    assert (chances.params_mut, chances.act_mut, chances.rl_hp_mut) == (0.1, 0.25, 0.2)
    assert made.mutation.mutation_sd == 0.05
    bounds = {name: (each.min, each.max) for name, each in made.mutation.rl_hp_selection.items()}
    assert bounds == {"lr": (0.0001, 0.01), "batch_size": (8, 64)}
    network = made.network
    assert (network.latent_dim, network.encoder_config.hidden_size, network.head_config.hidden_size) == (16, [24], [8])
    assert network.encoder_config.activation == "Tanh"
    assert said == [
        "published.yaml: no counterpart here: INIT_HP.WANDB (agilerl train --track), MUTATION_PARAMS.RAND_SEED "
        "(training.seed, 0 unless it is given, is the seed of every draw, those of mutations included)."
    ]


def test_the_newer_generation_has_our_sections_and_some_keys_of_its_own(tmp_path: Path) -> None:
    made, said = read(NEWER, tmp_path)
    values = made.algorithm.hyperparameters
    assert (made.algorithm.name, values["recurrent"], values["learn_step"], values["lr"]) == ("PPO", True, 512, 3e-4)
    assert values["update_epochs"] == 4, "the published default, where a preset of ours has another"
    assert made.network.encoder == {"hidden_state_size": 24, "num_layers": 1}
    assert made.network.head_config.hidden_size == [16]
    assert (made.training.max_steps, made.training.eval_episodes) == (1024, 4)
    assert said == [
        "published.yaml: no counterpart here: mutation.rand_seed (training.seed, 0 unless it is given, is the seed of "
        "every draw, those of mutations included), mutation.super_param_mut."
    ]


def test_one_learning_rate_means_both_of_an_actor_critic(tmp_path: Path) -> None:
    data = yaml.safe_load(OLDER)
    data["INIT_HP"] |= {"ALGO": "DDPG", "ENV_NAME": "Pendulum-v1", "O_U_NOISE": False, "LR_CRITIC": 2e-3}
    data["MUTATION_PARAMS"]["RL_HP_SELECTION"] = ["lr"]
    made, _ = read(yaml.safe_dump(data), tmp_path)
    values = made.algorithm.hyperparameters
    assert (values["lr_actor"], values["lr_critic"], values["O_U_noise"]) == (6.3e-4, 2e-3, False)
    assert set(made.mutation.rl_hp_selection) == {"lr_actor", "lr_critic"}


@pytest.mark.parametrize("order", [("LR", "LR_CRITIC"), ("LR_CRITIC", "LR")])
def test_the_learning_rate_that_is_named_counts_whatever_the_order(order: tuple[str, str]) -> None:
    rates = {"LR": 1e-4, "LR_CRITIC": 2e-3}
    given = {"ENV_NAME": "Pendulum-v1", "ALGO": "TD3", **{name: rates[name] for name in order}}
    algorithm = convert({"INIT_HP": given}).content["algorithm"]
    assert (algorithm["lr_actor"], algorithm["lr_critic"]) == (1e-4, 2e-3)


def test_rainbow_has_its_memory_and_its_support(tmp_path: Path) -> None:
    more = {"ALGO": "Rainbow DQN", "N_STEP": 4, "PER": True, "ALPHA": 0.5, "BETA": 0.3, "V_MIN": -200.0, "V_MAX": 200.0,
            "NUM_ATOMS": 31, "PRIOR_EPS": 1e-5}  # fmt: skip
    made, _ = read(changed(OLDER, "INIT_HP", **more), tmp_path)
    memory, values = made.replay_buffer, made.algorithm.hyperparameters
    assert (memory.n_step, memory.prioritized, memory.alpha) == (4, True, 0.5)
    assert [values[name] for name in ("n_step", "beta", "v_min", "v_max", "num_atoms")] == [4, 0.3, -200, 200, 31]


def test_images_and_dictionaries_have_the_keys_of_their_encoder(tmp_path: Path) -> None:
    for encoder in (
        {"channel_size": [32, 64], "kernel_size": [8, 4], "stride_size": [4, 2], "init_layers": True},
        {"latent_dim": 32, "mlp_config": {"hidden_size": [16]}},
    ):
        made, _ = read(changed(NEWER, "network", encoder_config={**encoder, "output_activation": None}), tmp_path)
        assert made.network.encoder == encoder


def test_the_oldest_form_of_a_network_is_flat(tmp_path: Path) -> None:
    data = yaml.safe_load(OLDER)
    data["NET_CONFIG"] = {
        "arch": "mlp",
        "hidden_size": [40, 40],
        "mlp_activation": "Tanh",
        "mlp_output_activation": None,
    }
    made, _ = read(yaml.safe_dump(data), tmp_path)
    assert made.network.encoder_config.hidden_size == [40, 40]
    assert made.network.encoder_config.activation == "Tanh"


def test_what_means_nothing_to_the_algorithm_is_said(tmp_path: Path) -> None:
    made, said = read(changed(OLDER, "INIT_HP", ALGO="PPO", V_MIN=0.0, EPISODES=100), tmp_path)
    assert made.algorithm.name == "PPO"
    (line,) = said
    named = re.findall(r"([A-Z_]+\.[A-Z_]+)", line)
    assert named == ["INIT_HP.WANDB", "INIT_HP.V_MIN", "INIT_HP.EPISODES", "MUTATION_PARAMS.RAND_SEED",
                     "INIT_HP.EPS_DECAY", "INIT_HP.MEMORY_SIZE"]  # fmt: skip


def test_an_exponent_of_priorities_without_priorities_is_dropped(tmp_path: Path) -> None:
    made, said = read(changed(OLDER, "INIT_HP", ALPHA=0.4, PER=False), tmp_path)
    assert made.replay_buffer.alpha == 0.6
    assert any("INIT_HP.ALPHA (it is of prioritized replay)" in line for line in said)
    made, _ = read(changed(OLDER, "INIT_HP", ALPHA=0.4, PER=True), tmp_path)
    assert made.replay_buffer.alpha == 0.4


def test_another_way_to_select_has_no_counterpart(tmp_path: Path) -> None:
    other = changed(NEWER, "selection_strategy", strategy="multi_frequency", n_losers=4)
    made, said = read(other, tmp_path)
    assert made.tournament_selection.tournament_size == 2
    assert any("selection_strategy.n_losers" in line for line in said)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed(OLDER, "INIT_HP", BATCHSIZE=3), "INIT_HP.BATCHSIZE is not a known key. Did you mean 'BATCH_SIZE'?"),
        (changed(OLDER, "MUTATION_PARAMS", ARCHMUT=3), "MUTATION_PARAMS.ARCHMUT is not a known key. Did you mean"),
        (changed(OLDER, "MUTATION_PARAMS", MIN_GAMMA=0.9), "MUTATION_PARAMS has one limit of gamma"),
        (changed(OLDER, "INIT_HP", ALGO="DQNN"), "unknown algorithm 'DQNN'. Did you mean 'DQN'?"),
        (changed(OLDER, "INIT_HP", LR=-1), "algorithm.lr must be"),
        (changed(OLDER, "NET_CONFIG", arch="lstm"), "a recurrent DQN is not there"),
        (OLDER.replace("ALGO: DQN", "GAMMA: 0.9"), "INIT_HP.ALGO is missing"),
        (OLDER.replace("ENV_NAME: CartPole-v1", "GAMMA: 0.9"), "INIT_HP.ENV_NAME is missing"),
        (changed(NEWER, "algorithm", learnstep=3), "algorithm.learnstep is not a known key. Did you mean"),
        ("INIT_HP: 3", "INIT_HP must be a section of keys; got 3"),
        (changed(OLDER, "INIT_HP", EVAL_LOOP="abc"), "INIT_HP.EVAL_LOOP must be a whole number; got 'abc'. fix: EVAL"),
        (changed(OLDER, "INIT_HP", NUM_ENVS="many"), "INIT_HP.NUM_ENVS must be a whole number; got 'many'"),
        (changed(OLDER, "MUTATION_PARAMS", RL_HP_SELECTION=3), "MUTATION_PARAMS.RL_HP_SELECTION must be a list of"),
        (changed(OLDER, "MUTATION_PARAMS", RL_HP_SELECTION="lr"), "got 'lr'. fix: RL_HP_SELECTION: [lr]"),
        (changed(OLDER, "NET_CONFIG", arch=["mlp"]), "network.arch=['mlp'] is not a known"),
        (changed(NEWER, "training", eval_loop=[2]), "training.eval_loop must be a whole number; got [2]"),
        (changed(NEWER, "environment", num_envs="many"), "environment.num_envs must be a whole number; got 'many'"),
        (changed(NEWER, "mutation", rl_hp_selection=["lr"]), "mutation.rl_hp_selection must be a section of keys; got"),
    ],
)  # fmt: skip
def test_mistakes_are_named_in_the_words_of_the_file(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(AgileRLError) as raised:
        read(text, tmp_path)
    assert message in str(raised.value)


def test_manifests_of_ours_are_not_taken_for_published_ones() -> None:
    assert not is_published(Manifest().as_dict())
    assert not is_published({"algorithm": "DQN", "environment": "CartPole-v1"})
    assert not is_published(["INIT_HP"])
    assert is_published({"init_hp": {}})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("training: {max_steps: 1000, eval_loop: 2}", "training.eval_loop is not a known key; eval_loop is one of the "
         "section tournament_selection. fix: tournament_selection.eval_loop."),
        ("replay_buffer: {memory_size: 5000}", "memory_size is not a known key. Did you mean 'max_size'?"),
        ("mutation: {rand_seed: 3}", "mutation.rand_seed is not a known key."),
    ],
)  # fmt: skip
def test_one_key_of_the_published_library_is_a_mistake_in_a_manifest(wrong: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        read(f"algorithm: DQN\nenvironment: CartPole-v1\n{wrong}\n", tmp_path)
    assert message in str(raised.value)


def test_the_smallest_published_files_are_still_translated() -> None:
    """Those of language models have no replay buffer and no network: two keys tell them."""
    assert is_published({"training": {"eval_loop": 1}, "mutation": {"rand_seed": 42}})
    assert is_published({"replay_buffer": {"memory_size": 10, "per": True}})


def test_the_command_line_converts_and_trains(tmp_path: Path) -> None:
    file, out = tmp_path / "dqn.yaml", tmp_path / "ours.yaml"
    file.write_text(OLDER)
    result = CliRunner().invoke(app, ["config", "convert", str(file), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "no counterpart here: INIT_HP.WANDB (agilerl train --track)" in result.output
    ours, said = read(out.read_text(), tmp_path)
    assert said == []
    assert ours.hash() == read(OLDER, tmp_path)[0].hash()
    again = CliRunner().invoke(app, ["config", "convert", str(file), "--out", str(out)])
    assert again.exit_code == 2
    assert "is there already" in again.output
    with pytest.warns(AgileRLWarning, match="no counterpart"):
        run = agilerl.train("CartPole-v1", config=file, out=None, verbose=False)
    assert run.result["generations"] == 2
    assert run.best.batch_size <= 64


def test_a_file_of_an_own_algorithm_is_converted_with_its_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(algorithms, "_registered", {})
    file, code, out = tmp_path / "dqn.yaml", tmp_path / "my_code.py", tmp_path / "ours.yaml"
    file.write_text(changed(OLDER, "INIT_HP", ALGO="MyDQN"))
    code.write_text("from agilerl.algorithms import DQN, register\n\n\n@register\nclass MyDQN(DQN):\n    pass\n")
    words = ["config", "convert", str(file), "--out", str(out)]
    assert "unknown algorithm 'MyDQN'" in CliRunner().invoke(app, words).output
    done = CliRunner().invoke(app, [*words, "--import", str(code)])
    assert done.exit_code == 0, done.output
    assert f"agilerl train --config {out} --import {code}" in done.output
    assert read(out.read_text(), tmp_path)[0].algorithm.name == "MyDQN"


def test_another_algorithm_cannot_be_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "dqn.yaml"
    file.write_text(OLDER)
    with pytest.raises(ConfigError, match=r"is a configuration of DQN, not of PPO\. fix: leave --algo out"):
        load_manifest(file, algo="PPO")
    with pytest.warns(AgileRLWarning, match="no counterpart"):
        assert load_manifest(file, env_id="Acrobot-v1").environment.name == "Acrobot-v1"
