"""Recurrent networks over images: sequences against steps and plain torch, mutations of both parts, whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation

import agilerl
from agilerl.algorithms import IPPO, PPO
from agilerl.errors import ConfigError
from agilerl.modules import CnnNetConfig, EvolvableCnnLstm, EvolvableLSTM, LstmNetConfig
from agilerl.networks.q_networks import QNetwork
from agilerl.testing.probes import RecallEnv
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import make_vect_envs
from tests.faults.faulty_runs import StopAfter, digest, resume

SIDE = 8
IMAGE = spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8)
LAYERS = {"channel_size": [16, 24], "kernel_size": [3, 3], "stride_size": [1, 1]}
MEMORY = {"hidden_state_size": 16, "min_hidden_state_size": 8, "num_layers": 2}
NET: dict[str, Any] = {
    "encoder_config": {**MEMORY, **LAYERS}, "head_config": {"hidden_size": [16]}, "latent_dim": 16
}  # fmt: skip
METHODS = ("add_channel", "remove_channel", "change_kernel")


def recall() -> gym.Env[Any, Any]:
    """`RecallEnv` as an image: its upper half shows the sign as black, grey or white, its lower half the last step."""

    def show(obs: np.ndarray) -> np.ndarray:
        rows = np.repeat([127.5 * (obs[0] + 1), 255 * obs[1]], SIDE // 2)
        return np.broadcast_to(rows[:, None, None], IMAGE.shape).astype(np.uint8)

    return TransformObservation(RecallEnv(3), show, IMAGE)


def images(*lead: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (*lead, *IMAGE.shape), np.uint8)


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_a_sequence_of_images_gives_what_its_steps_give(cell: str) -> None:
    net = QNetwork(IMAGE, spaces.Discrete(2), recurrent=True, random_seed=0, **NET | {
        "encoder_config": {**NET["encoder_config"], "cell": cell}
    }).double()  # fmt: skip
    assert isinstance(net.encoder, EvolvableCnnLstm)
    obs, hidden = images(3, 5), net.initialize_hidden_state(3)
    whole, last = net.output(obs.reshape(15, *IMAGE.shape), hidden)
    features, again = net.features_with_state(obs, hidden)
    torch.testing.assert_close(net.forward_head(features).flatten(0, 1), whole, rtol=1e-12, atol=1e-14)
    steps, state = [], hidden
    for t in range(5):
        out, state = net.output_with_state(obs[:, t], state)
        steps.append(out)
    torch.testing.assert_close(torch.stack(steps, 1).flatten(0, 1), whole, rtol=1e-12, atol=1e-14)
    for key, value in last.items():
        torch.testing.assert_close(value, state[key], rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(value, again[key], rtol=1e-12, atol=1e-14)
    plain: Any = getattr(torch.nn, cell)(64, 16, 2, batch_first=True).double()
    for k in range(2):
        for name, value in net.encoder.model[f"lstm_{k}"].named_parameters():
            getattr(plain, f"{name}_l{k}").data.copy_(value.data)
    seen = net.encoder.features(torch.as_tensor(obs).movedim(-1, -3).double() / 255)
    torch.testing.assert_close(net.forward_head(net.encoder.finish(plain(seen)[0])).flatten(0, 1), whole)


@pytest.mark.parametrize("method", ["encoder.add_node", *(f"encoder.features.{name}" for name in METHODS)])
def test_both_parts_mutate_and_the_function_stays(method: str) -> None:
    config = {**NET, "encoder_config": {**NET["encoder_config"], "cnn_config": {"min_channel_size": 8}}}
    net = QNetwork(IMAGE, spaces.Discrete(2), recurrent=True, random_seed=0, **config)
    assert method in net.mutation_methods
    obs, hidden = images(64), net.initialize_hidden_state(8)
    net.probe(obs)
    before = net.output(obs, hidden)[0]
    child = net.clone()
    child.probe(obs)
    child.apply_mutation(method)
    assert child.last_mutation_attr == method
    after = child.output(obs, child.carry_hidden_state(hidden))[0]
    # Growth is exact; a removal is refitted: without the fit these removals move the output by 0.1 and more.
    torch.testing.assert_close(after, before, rtol=0, atol=2e-2 if "remove" in method or "kernel" in method else 1e-6)
    copy = QNetwork.from_spec(child.spec())
    copy.load_state_dict(child.state_dict())
    assert torch.equal(copy.output(obs, child.carry_hidden_state(hidden))[0], after)
    assert torch.equal(net.output(obs, hidden)[0], before), "a clone shares no weights"
    child.change_activation("Tanh")
    assert child.encoder.features.activation == child.encoder.features.output_activation == child.activation == "Tanh"


def test_the_keys_of_both_parts_stand_side_by_side() -> None:
    for config in ({**LAYERS, "hidden_state_size": 32}, {"cnn_config": LAYERS, "hidden_state_size": 32}):
        net = QNetwork(IMAGE, spaces.Discrete(2), encoder_config=config, recurrent=True)
        assert net.encoder.short() == "cnn 16k3 24k3 lstm 32x1"
    typed = QNetwork(IMAGE, spaces.Discrete(2), encoder_config=CnnNetConfig([16], [3], [1]), recurrent=True)
    assert typed.encoder.short() == "cnn 16k3 lstm 128x1"
    assert QNetwork(IMAGE, spaces.Discrete(2), encoder_config=LstmNetConfig(32)).encoder.short().endswith("lstm 32x1")
    assert type(QNetwork(spaces.Box(0, 1, (3,)), spaces.Discrete(2), recurrent=True).encoder) is EvolvableLSTM
    with pytest.raises(ConfigError, match="'hidden_size' is not a known key"):
        QNetwork(IMAGE, spaces.Discrete(2), encoder_config={"hidden_size": 64}, recurrent=True)


@pytest.mark.thorough
def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path: Path) -> None:
    case: dict[str, Any] = {
        "env": recall, "algo": "PPO", "recurrent": True, "population": 3, "steps": 144, "evo_steps": 48, "num_envs": 4,
        "learn_step": 32, "update_epochs": 1, "batch_size": 4, "network.encoder": NET["encoder_config"],
        "network.latent_dim": 16, "arch_mut": 1.0, "no_mut": 0.0, "params_mut": 0.0, "rl_hp_mut": 0.0, "act_mut": 0.0,
        "eval_episodes": 2, "seed": 3, "verbose": False,
    }  # fmt: skip
    whole = agilerl.train(**case, out=tmp_path / "whole")
    assert any("encoder.features" in birth.path for birth in whole.lineage)
    part = agilerl.train(**case, out=tmp_path / "part", sinks=[StopAfter(1)])
    assert part.interrupted
    assert whole.path is not None
    assert part.path is not None
    resume(part.path, env=recall)
    assert digest(part.path) == digest(whole.path)


def test_a_loaded_agent_acts_like_the_saved_one(tmp_path: Path) -> None:
    agent = PPO(IMAGE, spaces.Discrete(2), recurrent=True, net_config=NET, seed=0)
    agent.actor.apply_mutation("encoder.features.add_channel")
    agent.save_checkpoint(tmp_path / "agent.pt")
    obs, hidden = images(3), agent.get_initial_hidden_state(3)
    for other in (PPO.load(tmp_path / "agent.pt"), agent.clone()):
        for name in agent.networks:
            network, copy = getattr(agent, name), getattr(other, name)
            state = network.initialize_hidden_state(3)
            assert torch.equal(copy.output(obs, state)[0], network.output(obs, state)[0])
        assert (other.get_action(obs, hidden_state=hidden, training=False)[0] ==
                agent.get_action(obs, hidden_state=hidden, training=False)[0]).all()  # fmt: skip


def test_agents_of_a_team_remember_images() -> None:
    team = IPPO({"a_0": IMAGE, "a_1": IMAGE}, dict.fromkeys(("a_0", "a_1"), spaces.Discrete(2)), recurrent=True, seed=0)
    hidden = team.get_initial_hidden_state(2)
    obs = {name: images(2) for name in ("a_0", "a_1")}
    *_, state = team.get_action(obs, hidden_state=hidden)
    assert any((value != 0).any() for value in state.values())


@pytest.mark.parametrize(
    "share", [pytest.param(True, marks=pytest.mark.thorough), pytest.param(False, marks=pytest.mark.slow)]
)
def test_a_policy_recalls_the_image_it_saw_first(share: bool) -> None:
    layers = {"channel_size": [16], "kernel_size": [4], "stride_size": [4], "num_features": 16}
    encoder = {"hidden_state_size": 16, "min_hidden_state_size": 8, **layers}
    env = make_vect_envs(make_env=recall, num_envs=8)
    pop = PPO.population(
        1, env.single_observation_space, env.single_action_space, seed=1, recurrent=True, share_encoders=share,
        net_config={**NET, "encoder_config": encoder}, batch_size=16, learn_step=128, lr=4e-3, gamma=1.0, ent_coef=0.01,
        update_epochs=4,
    )  # fmt: skip
    train_on_policy(env, "probe", pop=pop, max_steps=8_000, evo_steps=8_000, eval_steps=5, verbose=False, seed=2)
    env.close()
    env = make_vect_envs(make_env=recall, num_envs=32)
    assert pop[0].test(env) >= 0.95  # without a memory 0.5
    env.close()
