"""Typed network configurations: values of the modules, mappings, and what counts as set."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from agilerl.algorithms import DQN, MADDPG, find_algorithm
from agilerl.core.signatures import constructor_arguments
from agilerl.errors import ConfigError
from agilerl.modules import EvolvableCNN, EvolvableLSTM, EvolvableMLP, EvolvableResNet, EvolvableSimBa
from agilerl.modules.configs import (
    CnnNetConfig,
    LstmNetConfig,
    MlpNetConfig,
    MultiInputNetConfig,
    NetConfig,
    ResNetNetConfig,
    SimBaNetConfig,
)
from agilerl.modules.multi_input import EvolvableMultiInput
from agilerl.networks.q_networks import QNetwork

MODULES = {
    MlpNetConfig: EvolvableMLP, CnnNetConfig: EvolvableCNN, ResNetNetConfig: EvolvableResNet,
    LstmNetConfig: EvolvableLSTM, SimBaNetConfig: EvolvableSimBa, MultiInputNetConfig: EvolvableMultiInput,
}  # fmt: skip
SIZES: dict[type, dict[str, Any]] = {
    EvolvableMLP: {"num_inputs": 3, "num_outputs": 2}, EvolvableSimBa: {"num_inputs": 3, "num_outputs": 2},
    EvolvableLSTM: {"input_size": 3, "num_outputs": 2}, EvolvableCNN: {"input_shape": (3, 16, 16), "num_outputs": 2},
    EvolvableResNet: {"input_shape": (3, 16, 16), "num_outputs": 2},
    EvolvableMultiInput: {
        "observation_space": gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (3,)), "b": gym.spaces.Discrete(2)}),
        "num_outputs": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", MODULES)
def test_a_configuration_has_the_defaults_of_its_module(kind: Any) -> None:
    config, taken = kind(), constructor_arguments(MODULES[kind])
    for name, value in asdict(config).items():
        default = taken[name].default
        if name not in ("hidden_size", "channel_size", "num_blocks", "output_vanish", "output_layernorm", "latent_dim"):
            assert value == default or (kind is MultiInputNetConfig and value is None), name


@pytest.mark.parametrize("kind", MODULES)
def test_a_module_takes_a_configuration_as_a_dictionary(kind: Any) -> None:
    cls = MODULES[kind]
    by_dict, by_set = (cls(**SIZES[cls], **options, random_seed=1) for options in (asdict(kind()), dict(kind())))
    for one, other in zip(by_dict.parameters(), by_set.parameters(), strict=True):
        assert torch.equal(one, other)


def test_fields_are_read_written_and_popped() -> None:
    config = MlpNetConfig(hidden_size=[8], activation="ELU")
    assert (config["activation"], config["layer_norm"], config.get("noisy"), config.get("nothing", 3)) == (
        "ELU",
        False,
        False,
        3,
    )
    assert dict(config) == {"hidden_size": [8], "activation": "ELU"}
    config["layer_norm"] = True
    assert config.layer_norm is True
    assert "layer_norm" in config
    assert config.pop("activation") == "ELU"
    assert config.activation == "ReLU"
    assert config.pop("nothing", None) is None
    with pytest.raises(KeyError, match="activation"):
        config["activaton"]
    with pytest.raises(ConfigError):
        config["activation"] = "Elu"


def test_a_configuration_is_made_of_a_mapping_and_an_unknown_key_is_named() -> None:
    assert MlpNetConfig.from_dict({"hidden_size": [8], "noisy": True}) == MlpNetConfig(hidden_size=[8], noisy=True)
    with pytest.raises(ConfigError, match="hidden_size"):
        MlpNetConfig.from_dict({"hidden_sizes": [8]})
    assert issubclass(MlpNetConfig, NetConfig)


def test_an_agent_is_the_same_from_a_configuration_and_from_its_dictionary() -> None:
    obs, act = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)
    config = MlpNetConfig(hidden_size=[8])
    plain, typed, as_dict = (
        DQN(obs, act, seed=1, net_config={"encoder_config": own, "head_config": own})
        for own in ({"hidden_size": [8]}, config, asdict(config))
    )
    for other in (typed, as_dict):
        for mine, theirs in zip(plain.actor.parameters(), other.actor.parameters(), strict=True):
            assert torch.equal(mine, theirs)
        assert other.actor.net_config.keys() == plain.actor.net_config.keys()


@pytest.mark.parametrize("algo", ["MADDPG", "MATD3", "IPPO", "MAPPO"])
def test_teams_with_images_take_a_typed_configuration_as_its_mapping(algo: str) -> None:
    image, choice = gym.spaces.Box(0, 255, (3, 16, 16), "uint8"), gym.spaces.Discrete(2)
    typed = CnnNetConfig(channel_size=[4], kernel_size=[3], stride_size=[2])
    made = [
        find_algorithm(algo)(
            [image] * 2, [choice] * 2, agent_ids=["a_0", "b_0"], seed=1, net_config={"encoder_config": x}
        )
        for x in (typed, dict(typed))
    ]
    described = [[net.describe() for net in team.evaluation_networks().values()] for team in made]
    assert described[0] == described[1]


@pytest.mark.parametrize("kernel", [3, (1, 3, 3)])
def test_volumes_of_depth_one_are_images(kernel: Any) -> None:
    """Published configurations of several agents: Conv3d over single images, with a sample of their input."""
    image = gym.spaces.Box(0, 255, (3, 16, 16), np.uint8)
    layers = {"channel_size": [8], "kernel_size": [kernel], "stride_size": [1], "block_type": "Conv3d"}
    for sample in ({}, {"sample_input": torch.zeros(1, 3, 2, 16, 16)}):
        for config in ({**layers, **sample}, CnnNetConfig(**layers, **sample)):
            encoder = QNetwork(image, gym.spaces.Discrete(2), encoder_config=config).encoder
            assert (encoder.block_type, encoder.kernel_size) == ("Conv2d", [3])
    spaces = [image] * 2, [gym.spaces.Discrete(2)] * 2
    team = MADDPG(*spaces, agent_ids=["a_0", "b_0"], net_config={"encoder_config": layers})
    obs = {agent: np.zeros((3, 16, 16), np.uint8) for agent in team.agent_ids}
    assert set(team.get_action(obs)[0]) == {"a_0", "b_0"}
