"""Which encoder a `net_config` names, by one rule for every algorithm: memories, residual blocks, typed ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.algorithms import available, find_algorithm, is_team, with_memory
from agilerl.errors import ConfigError
from agilerl.hpo.mutation import Mutations
from agilerl.modules import EvolvableLSTM, EvolvableMLP, EvolvableSimBa
from agilerl.modules.configs import (
    CnnNetConfig,
    LstmNetConfig,
    MlpNetConfig,
    ResNetNetConfig,
    SimBaNetConfig,
)
from agilerl.networks import ContinuousQNetwork, DeterministicActor, QNetwork, StochasticActor
from agilerl.networks.base import EvolvableNetwork
from agilerl.utils.utils import create_population

OBS, CHOICE, BOX = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)
IMAGE, IDS = spaces.Box(0, 255, (3, 16, 16), np.uint8), ["a_0", "a_1", "b_0"]
TEAMS = [name for name in available() if is_team(name)]
SINGLE = [
    n for n in available() if n not in TEAMS and find_algorithm(n).action_spaces and not find_algorithm(n).reads_texts
    and n not in ("NeuralTS", "NeuralUCB", "RecurrentPPO")  # of contexts, and another name of PPO
]  # fmt: skip
KEEPING = {"PPO", "IPPO", "MAPPO"}
EVERY = pytest.mark.parametrize("algo", [*SINGLE, *TEAMS])
HEAD = {"head_config": {"hidden_size": [16]}, "latent_dim": 8}

MEMORIES: dict[str, dict[str, Any]] = {
    "typed": {"encoder_config": LstmNetConfig(hidden_state_size=32)},
    "keys": {"encoder_config": {"hidden_state_size": 32, "num_layers": 1}},
    "one key": {"encoder_config": {"num_layers": 1}},
    "class": {"encoder_cls": EvolvableLSTM},
    "name": {"encoder_cls": "EvolvableLSTM"},
    "switch": {"recurrent": True},
}
BLOCKS: dict[str, dict[str, Any]] = {
    "typed": {"encoder_config": SimBaNetConfig(hidden_size=16, num_blocks=1)},
    "switch": {"simba": True, "encoder_config": {"hidden_size": 16, "num_blocks": 1}},
    "switch and typed": {"simba": True, "encoder_config": SimBaNetConfig(hidden_size=16, num_blocks=1)},
    "name": {"encoder_cls": "EvolvableSimBa", "encoder_config": {"hidden_size": 16, "num_blocks": 1}},
    "class and typed": {
        "encoder_cls": EvolvableSimBa, "encoder_config": SimBaNetConfig(hidden_size=16, num_blocks=1),
    },
}  # fmt: skip


def action_space(algo: str) -> Any:
    return CHOICE if is_team(algo) or "Discrete" in find_algorithm(algo).action_spaces else BOX


def made(algo: str, net_config: Any, obs: Any = OBS, **more: Any) -> Any:
    cls, act = find_algorithm(algo), action_space(algo)
    if is_team(algo):
        return cls([obs] * 3, [act] * 3, agent_ids=IDS, net_config=net_config, seed=1, **more)
    return cls(obs, act, net_config=net_config, seed=1, **more)


def reading(agent: Any) -> list[EvolvableNetwork]:
    """Its networks that have an encoder of their own."""
    nets = agent.evaluation_networks().values()
    return [net for net in nets if isinstance(net, EvolvableNetwork) and net.encoder_source is None]


def weights(agent: Any) -> torch.Tensor:
    return torch.cat([x.detach().ravel() for net in reading(agent) for x in net.parameters()])


def acts_and_learns(algo: str, agent: Any) -> bool:
    """Act on a few observations and learn once: whether its weights are others, and numbers."""
    before = weights(agent).clone()
    act_and_learn(algo, agent)
    return bool(weights(agent).isfinite().all()) and not torch.equal(weights(agent), before)


def act_and_learn(algo: str, agent: Any) -> None:
    draw = np.random.default_rng(0)
    if is_team(algo):
        seen, later = ({a: draw.uniform(-1, 1, (8, 4)).astype(np.float32) for a in IDS} for _ in range(2))
        found = agent.get_action(seen)
        rewards, ends = {a: draw.normal(size=8) for a in IDS}, {a: np.zeros(8) for a in IDS}
        if algo in KEEPING:
            action, log_prob, _, value = found[:4]
            steps = [{a: [x[a]] for a in IDS} for x in (seen, action, log_prob, rewards, ends, value)]
            agent.learn((*steps, later, ends))
        else:
            agent.learn((seen, found[0], rewards, later, ends))
        return
    seen = draw.uniform(-1, 1, (4, 4)).astype(np.float32)
    if algo in (*KEEPING, "PQN"):
        for _ in range(agent.rollout_buffer.capacity):
            action, log_prob, _, value = agent.get_action(seen)
            agent.rollout_buffer.add(seen, action, draw.normal(size=4), np.zeros(4), value, log_prob)
        agent.rollout_buffer.compute_returns_and_advantages(agent.get_action(seen)[3], np.zeros(4))
        agent.learn()
    else:
        action = torch.as_tensor(agent.get_action(seen)).reshape(4, -1)
        column = torch.as_tensor(draw.normal(size=(4, 1)), dtype=torch.float32)
        rows = {"obs": torch.as_tensor(seen), "action": action, "reward": column, "next_obs": torch.as_tensor(seen)}
        agent.learn({**rows, "done": torch.zeros(4, 1)})


# --- memories ---------------------------------------------------------------------------------------------------------


def test_the_algorithms_that_keep_hidden_states_are_known() -> None:
    assert {*with_memory(False), *with_memory(True)} == KEEPING


@EVERY
@pytest.mark.parametrize("form", MEMORIES)
def test_a_recurrent_encoder_needs_an_algorithm_that_keeps_hidden_states(algo: str, form: str) -> None:
    able = "IPPO(recurrent=True) or MAPPO(recurrent=True)" if is_team(algo) else "PPO(recurrent=True)"
    fix = "recurrent=True" if algo in KEEPING else able
    with pytest.raises(ConfigError) as raised:
        made(algo, MEMORIES[form])
    said = str(raised.value)
    assert said.startswith(f"{algo}: net_config asks for a recurrent encoder")
    assert said.endswith(f"hidden state from step to step. fix: {fix}, or another encoder, such as MlpNetConfig.")


@pytest.mark.parametrize("algo", sorted(KEEPING))
@pytest.mark.parametrize("form", MEMORIES)
def test_with_recurrent_every_way_to_ask_gives_a_memory(algo: str, form: str) -> None:
    agent = made(algo, {**HEAD, **MEMORIES[form]}, recurrent=True)
    policies = [net for net in reading(agent) if isinstance(net, StochasticActor)]
    assert policies
    assert all(isinstance(net.encoder, EvolvableLSTM) for net in policies)
    seen = np.zeros((2, 4), np.float32)
    assert len(agent.get_action(dict.fromkeys(IDS, seen) if is_team(algo) else seen)) == 5


def test_a_recurrent_network_that_is_given_needs_one_too() -> None:
    with pytest.raises(ConfigError, match=r"DQN: actor_network asks .* fix: PPO\(recurrent=True\), or"):
        find_algorithm("DQN")(OBS, CHOICE, actor_network=QNetwork(OBS, CHOICE, recurrent=True))
    critic = ContinuousQNetwork(OBS, BOX, recurrent=True)
    with pytest.raises(ConfigError, match="DDPG: critic_network asks"):
        find_algorithm("DDPG")(
            OBS, BOX, actor_network=DeterministicActor(OBS, BOX), critic_network=critic, share_encoders=False
        )
    actor = DeterministicActor(OBS, CHOICE, recurrent=True)
    with pytest.raises(ConfigError, match=r"MADDPG: actor_networks asks .* fix: IPPO\(recurrent=True\) or MAPPO"):
        find_algorithm("MADDPG")([OBS] * 3, [CHOICE] * 3, agent_ids=IDS, actor_networks={"a": actor})
    policy = StochasticActor(OBS, CHOICE, recurrent=True, random_seed=1)
    assert find_algorithm("PPO")(OBS, CHOICE, actor_network=policy).recurrent, "a policy says itself what it is"


def test_switches_and_typed_configurations_do_not_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match=r"recurrent=True takes an EvolvableLSTM; got .* SimBaNetConfig\. fix: one"):
        made("PPO", {"encoder_config": SimBaNetConfig()}, recurrent=True)
    with pytest.raises(ConfigError, match=r"simba=True takes an EvolvableSimBa; got .* MlpNetConfig\. fix: one"):
        made("DQN", {"encoder_config": MlpNetConfig(), "simba": True})


# --- residual blocks --------------------------------------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize("form", BLOCKS)
def test_residual_blocks_are_taken_in_every_form(algo: str, form: str) -> None:
    options = {"learn_step": 8, "num_envs": 4} if algo in ("PPO", "PQN") else {}
    agent = made(algo, {**HEAD, **BLOCKS[form]}, **options)
    assert all(type(net.encoder) is EvolvableSimBa for net in reading(agent))
    assert form != "typed" or acts_and_learns(algo, agent)


@pytest.mark.parametrize("algo", TEAMS)
def test_teams_of_residual_blocks_are_mutated_copied_and_saved(algo: str, tmp_path: Path) -> None:
    agent = made(algo, {**HEAD, **BLOCKS["typed"]})
    Mutations(0, 1, 0.5, 0, 0, 0, rand_seed=1).mutation([agent])
    assert acts_and_learns(algo, agent)
    agent.save_checkpoint(tmp_path / "team.pt")
    for other in (agent.clone(), type(agent).load(tmp_path / "team.pt")):
        for one, two in zip(reading(agent), reading(other), strict=True):
            assert one.describe() == two.describe()
            assert all(torch.equal(x, y) for x, y in zip(one.parameters(), two.parameters(), strict=True))


def test_residual_blocks_read_parts_side_by_side() -> None:
    parts = spaces.Dict(a=OBS, b=spaces.Discrete(3), long=spaces.Box(-1, 1, (5000,), np.float32))
    assert QNetwork(parts, CHOICE, encoder_config=SimBaNetConfig()).encoder.num_inputs == 4 + 3 + 5000
    large = spaces.Dict(camera=spaces.Box(0, 255, (64, 64, 3), np.uint8))
    with pytest.raises(ConfigError, match=r"EvolvableSimBa reads the parts of Dict\(camera.*fix: images of at most 16"):
        QNetwork(large, CHOICE, simba=True)
    with pytest.raises(ConfigError, match=r"'num_blocks' is not a known key.* fix: simba=True, beside encoder_config"):
        QNetwork(OBS, CHOICE, encoder_config={"hidden_size": [16], "num_blocks": 1})


def test_critics_of_teams_take_an_encoder_that_is_named() -> None:
    team = made("MADDPG", {"encoder_cls": EvolvableMLP, "encoder_config": {"hidden_size": [16]}})
    assert all(type(net.encoder) is EvolvableMLP for net in reading(team))


# --- other typed configurations ---------------------------------------------------------------------------------------


@EVERY
def test_a_typed_configuration_in_place_of_the_mapping_is_named(algo: str) -> None:
    with pytest.raises(ConfigError) as raised:
        made(algo, MlpNetConfig(hidden_size=[16]))
    fix = "fix: net_config={'encoder_config': MlpNetConfig(...)}."
    assert (
        str(raised.value) == f"net_config must be a mapping; got MlpNetConfig, the configuration of one encoder. {fix}"
    )


def test_populations_and_parts_by_name_say_it_alike() -> None:
    message = r"must be a mapping; got MlpNetConfig, the configuration of one encoder\. fix: net_config=\{'encoder_con"
    with pytest.raises(ConfigError, match=message):
        create_population("DQN", OBS, CHOICE, MlpNetConfig(hidden_size=[16]), {})
    with pytest.raises(ConfigError, match=message):
        made("IPPO", {"a": MlpNetConfig(), "b": {}})


@EVERY
@pytest.mark.parametrize("config", [CnnNetConfig(), ResNetNetConfig(), {"block_type": "Conv2d"}], ids=repr)
def test_configurations_of_images_say_that_the_observations_are_vectors(algo: str, config: Any) -> None:
    with pytest.raises(ConfigError, match=r"got vectors, Box.* fix: encoder_config=MlpNetConfig\(.*vectors need dense"):
        made(algo, {"encoder_config": config})


def test_images_for_residual_blocks_are_named() -> None:
    with pytest.raises(ConfigError, match="EvolvableSimBa reads vectors; got images"):
        made("MADDPG", BLOCKS["typed"], IMAGE)


def test_critics_turn_layer_norm_off_and_keep_the_encoder() -> None:
    with pytest.warns(UserWarning, match="Layer normalization is not supported"):
        critic = ContinuousQNetwork(IMAGE, BOX, encoder_config=CnnNetConfig([8], [3], [2], layer_norm=True))
    assert (type(critic.encoder).__name__, critic.encoder.layer_norm) == ("EvolvableCNN", False)
    with pytest.warns(UserWarning, match="Layer normalization is not supported"):
        dense = ContinuousQNetwork(OBS, BOX, encoder_config={"hidden_size": [8], "output_layernorm": True})
    assert not dense.encoder.output_layernorm
