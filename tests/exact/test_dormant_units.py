"""Resets of dormant units, against hand-worked tables."""

from __future__ import annotations

import copy
import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agilerl.algorithms import DQN, PPO, SAC, TD3, RainbowDQN
from agilerl.experimental.dormant import (
    DormantResets,
    Resets,
    is_dormant,
    planned_resets,
    reset_dormant_units,
    unit_scores,
)
from agilerl.hpo import effects
from agilerl.modules.cnn import EvolvableCNN
from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.simba import EvolvableSimBa
from agilerl.networks.q_networks import QNetwork

VECTOR, CHOICES, BOX = gym.spaces.Box(-3, 3, (3,)), gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (2,))
NETWORK = {"latent_dim": 10, "encoder_config": {"hidden_size": [12]}, "head_config": {"hidden_size": [14]}}


def seen(count: int = 64, width: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


# -- scores ------------------------------------------------------------------------------------------------------------


def test_a_score_is_a_units_mean_size_over_that_of_its_layer() -> None:
    """Two observations of three units: sizes 2, 0 and 1, whose mean is 1."""
    scores = unit_scores(torch.tensor([[1.0, 0.0, 2.0], [-3.0, 0.0, 0.0]]))
    assert scores.tolist() == [2.0, 0.0, 1.0]
    assert is_dormant(scores, 0.0).tolist() == [False, True, False]
    assert is_dormant(scores, 0.99).tolist() == [False, True, False]
    assert unit_scores(torch.tensor([[4.0, 0.1, 1.9]])).tolist() == pytest.approx([2.0, 0.05, 0.95])


def test_the_score_of_a_channel_is_over_pixels_too() -> None:
    """Two channels of two pixels: means 2 and 6 of sizes 1 and 3, and 4 and 8; 4 and 12 over their mean."""
    maps = torch.tensor([[[[1.0, -3.0]], [[4.0, 8.0]]]])
    assert unit_scores(maps, axis=1).tolist() == [0.5, 1.5]


def test_a_layer_that_answers_nothing_is_dormant_and_nan_is_not() -> None:
    assert unit_scores(torch.zeros(4, 3)).tolist() == [0.0] * 3
    assert not is_dormant(unit_scores(torch.tensor([[1.0, math.nan]])), 0.9).any()


# -- one network by hand -----------------------------------------------------------------------------------------------


def small(**options: Any) -> EvolvableMLP:
    return EvolvableMLP(2, 1, [3], min_mlp_nodes=1, random_seed=0, **options).double()


def set_weights(network: Any, **values: Any) -> None:
    with torch.no_grad():
        for name, value in values.items():
            layer, _, parameter = name.rpartition("_")
            network.model.get_submodule(layer).get_parameter(parameter).copy_(torch.tensor(value))


def apply(network: Any, observations: Tensor, threshold: float, seed: int = 0) -> Resets | None:
    plan = planned_resets(
        {"it": network}, {"it": effects.Probe(observations, observations)}, threshold, np.random.default_rng(seed)
    )
    if plan:
        plan["it"].apply(dict(network.named_parameters()))
    return plan.get("it")


def test_a_dead_unit_gets_fresh_rows_and_no_column() -> None:
    """Activations of the observation (1, 2): relu(1), relu(-1 - 2), relu(2): only the second is dead.

    Its row of the first layer is new with bias 0, its column of the second layer is 0, everything else stays, and so
    does the output 2 * 1 + 4 * 2 + 0.5."""
    network = small()
    first, second = [[1.0, 0.0], [-1.0, -1.0], [0.0, 1.0]], [[2.0, 3.0, 4.0]]
    set_weights(network, linear_0_weight=first, linear_0_bias=[0.0, -0.5, 0.0])
    set_weights(network, linear_output_weight=second, linear_output_bias=[0.5])
    observation = torch.tensor([[1.0, 2.0]]).double()
    assert network(observation).item() == 10.5
    resets = apply(network, observation, 0.0)
    assert resets is not None
    assert resets.count == 1
    weight, bias = network.model.linear_0.weight, network.model.linear_0.bias
    assert weight[[0, 2]].tolist() == [first[0], first[2]]
    assert weight[1].norm().item() == pytest.approx(math.sqrt(2)), "one orthogonal row with gain sqrt(2)"
    assert bias.tolist() == [0.0, 0.0, 0.0]
    assert network.model.linear_output.weight.tolist() == [[2.0, 0.0, 4.0]]
    assert network(observation).item() == 10.5
    masks = {name: mask.nonzero().tolist() for name, mask in resets.masks(dict(network.named_parameters())).items()}
    assert masks == {
        "model.linear_0.weight": [[1, 0], [1, 1]],
        "model.linear_0.bias": [[1]],
        "model.linear_output.weight": [[0, 1]],
    }


def test_a_weak_unit_takes_its_contribution_along() -> None:
    """Activations 1, 0.1 and 1.9 have scores 1, 0.1 and 1.9: below 0.2 the second is reset, and 3 * 0.1 is lost."""
    network = small()
    set_weights(network, linear_0_weight=[[1.0, 0.0], [0.1, 0.0], [0.0, 1.9]], linear_0_bias=[0.0] * 3)
    set_weights(network, linear_output_weight=[[2.0, 3.0, 4.0]], linear_output_bias=[0.0])
    observation = torch.tensor([[1.0, 1.0]]).double()
    before = network(observation).item()
    assert apply(network, observation, 0.09) is None
    assert network(observation).item() == before
    apply(network, observation, 0.2)
    assert before - network(observation).item() == pytest.approx(0.3)


def test_two_dead_layers_in_a_row_can_learn_again() -> None:
    """A row that is drawn anew keeps its fresh columns: with zeros from a reset unit it would never get a gradient."""
    network = EvolvableMLP(2, 1, [4, 4], min_mlp_nodes=1, random_seed=0).double()
    for label in ("0", "1"):
        set_weights(network, **{f"linear_{label}_bias": [-100.0] * 4})
    observations = seen(32, 2).double()
    before = network(observations)
    resets = apply(network, observations, 0.0)
    assert resets is not None
    assert resets.count == 8
    assert torch.equal(network(observations), before), "an output of the bias alone"
    assert bool((network.features(2, observations).abs().mean(0) > 0).all())
    ((network(observations) - observations[:, :1]) ** 2).mean().backward()
    assert bool((network.model.linear_output.weight.grad != 0).all())


def test_units_under_layer_norm_keep_their_incoming_weights() -> None:
    """Inputs are (x1, x2, x1 + x2) before LayerNorm; weight 0 and bias -1 have switched the second unit off.

    It gets weight 1 and bias -median of its normalised input, so that it answers half of the observations; every other
    unit, whose mean and variance it has a part in, answers as before."""
    network = small(layer_norm=True)
    set_weights(network, linear_0_weight=[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], linear_0_bias=[0.0] * 3)
    set_weights(network, norm_0_weight=[1.0, 0.0, 1.0], norm_0_bias=[0.2, -1.0, 0.1])
    observations = seen(33, 2).double()
    before, others = network(observations), network.features(1, observations)[:, [0, 2]]
    resets = apply(network, observations, 0.0)
    assert resets is not None
    assert set(resets.rows) == {"model.norm_0.weight", "model.norm_0.bias"}
    assert torch.equal(network(observations), before)
    features = network.features(1, observations)
    assert torch.equal(features[:, [0, 2]], others)
    written = torch.stack((observations[:, 0], observations[:, 1], observations.sum(1)), -1)
    normal = (written - written.mean(1, keepdim=True)) / (written.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    assert network.model.norm_0.weight.tolist() == [1.0, 1.0, 1.0]
    assert network.model.norm_0.bias[1].item() == pytest.approx(-normal[:, 1].median().item())
    assert int((features[:, 1] > 0).sum()) == 16, "those above the median of 33"


def test_a_channel_is_reset_with_every_pixel_that_is_read() -> None:
    """Two convolutions of 3 and 2 channels on 3 x 3 pixels; the last one has 2 x 2 pixels, four columns a channel."""
    network = EvolvableCNN((1, 4, 4), 2, [3, 2], [2, 2], [1, 1], min_channel_size=1, random_seed=0).double()
    set_weights(network, conv_0_bias=[0.0, -100.0, 0.0], conv_1_bias=[0.0, -100.0])
    images = torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        network.model.conv_1.weight[0].abs_()
        network.model.conv_0.weight[[0, 2]] = network.model.conv_0.weight[[0, 2]].abs()
    before = network(images)
    old = network.model.linear_output.weight.detach().clone()
    resets = apply(network, images, 0.0)
    assert resets is not None
    assert resets.count == 2
    assert torch.equal(network(images), before)
    assert network.model.conv_0.bias.tolist() == [0.0] * 3
    assert not network.model.conv_1.weight[0, 1].any(), "what reads the reset channel"
    assert network.model.conv_1.weight[1, 1].any(), "a fresh row"
    weight = network.model.linear_output.weight
    assert torch.equal(weight[:, :4], old[:, :4])
    assert not weight[:, 4:].any()


def test_units_inside_a_block_are_reset_and_its_trunk_is_not() -> None:
    network = EvolvableSimBa(3, 2, hidden_size=4, num_blocks=2, scale_factor=2, random_seed=0).double()
    with torch.no_grad():
        network.model.block_1_linear_0.weight[3] = 0
        network.model.block_1_linear_0.bias[3] = -1
        network.model.block_0_linear_0.bias.fill_(5)
        network.model.block_1_linear_0.bias[[0, 1, 2, 4, 5, 6, 7]] = 5
    observations = seen().double()
    before = network(observations)
    resets = apply(network, observations, 0.0)
    assert resets is not None
    assert set(resets.rows) == {"model.block_1_linear_0.weight", "model.block_1_linear_0.bias"}
    assert set(resets.columns) == {"model.block_1_linear_1.weight"}
    assert torch.equal(network(observations), before)
    assert not network.model.block_1_linear_1.weight[:, 3].any()


def test_noisy_units_lose_the_noise_that_they_feed() -> None:
    network = small(noisy=True)
    set_weights(network, linear_0_bias=[5.0, -100.0, 5.0])
    resets = apply(network, seen(64, 2).double(), 0.0)
    assert resets is not None
    assert network.model.linear_output.weight_sigma[0, 1].item() == 0
    assert network.model.linear_0.weight_sigma[1].tolist() == pytest.approx([0.5 / math.sqrt(2)] * 2)


# -- agents ------------------------------------------------------------------------------------------------------------


def agent_of(kind: Any, **more: Any) -> Any:
    actions = CHOICES if kind in (DQN, PPO, RainbowDQN) else BOX
    agent = kind(VECTOR, actions, net_config=copy.deepcopy(NETWORK), seed=1, **more)
    agent.remember_observations(seen())
    return agent


def kill(network: Any) -> None:
    """Switch two units of each layer off, in encoder, features and head."""
    with torch.no_grad():
        for path, part in network.named_modules():
            if isinstance(part, EvolvableMLP):
                labels = ["0", "output"] if path == "encoder" else ["0"]
                for label in labels:
                    part.model.get_submodule(f"linear_{label}").weight[:2] = 0
                    part.model.get_submodule(f"linear_{label}").bias[:2] = -1


def outputs(agent: Any) -> dict[str, Tensor]:
    """Outputs of all networks, targets too; critics read some action."""
    found = {}
    actions = torch.linspace(-1, 1, 128).reshape(64, 2)
    for name, network in effects.networks_of(agent, shared=True).items():
        if any(isinstance(part, EvolvableMLP) for _, part in network.named_modules()):
            network.eval()
            with torch.no_grad():
                found[name] = network.output(seen(), actions) if network.num_beside else network.output(seen())
    return found


KINDS = {
    "DQN": (DQN, {}, 6), "RainbowDQN": (RainbowDQN, {}, 8), "PPO": (PPO, {"share_encoders": False}, 12),
    "PPO-shared": (PPO, {"share_encoders": True}, 8), "TD3": (TD3, {"share_encoders": False}, 18),
    "TD3-shared": (TD3, {"share_encoders": True}, 10), "SAC": (SAC, {"share_encoders": False}, 18),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_no_network_of_an_agent_changes_its_answers(name: str) -> None:
    kind, options, count = KINDS[name]
    agent = agent_of(kind, **options)
    for network in effects.networks_of(agent, shared=True).values():
        kill(network)
    before = outputs(agent)
    assert reset_dormant_units(agent, 0.0, np.random.default_rng(0)) >= count
    after = outputs(agent)
    assert before.keys() == after.keys()
    for network, values in before.items():
        assert torch.allclose(after[network], values, atol=1e-6), network
    assert reset_dormant_units(agent, 0.0, np.random.default_rng(1)) < count, "the units answer again"


def test_targets_get_the_same_entries() -> None:
    """A target whose units are alive loses what they contributed, and has the network's fresh rows."""
    agent = agent_of(DQN)
    kill(agent.actor)
    old = agent.actor_target.encoder.model.linear_0.weight.detach().clone()
    reset_dormant_units(agent, 0.0, np.random.default_rng(0))
    weight = agent.actor_target.encoder.model.linear_0.weight
    assert torch.equal(weight[:2], agent.actor.encoder.model.linear_0.weight[:2])
    assert torch.equal(weight[4:], old[4:])
    assert not agent.actor_target.encoder.model.linear_output.weight[2:, :2].any()
    assert not any(p.requires_grad for p in agent.actor_target.parameters())


def test_moments_of_reset_entries_start_anew() -> None:
    """First moments are 0; second moments are the mean over the rest of their tensor. The others keep theirs."""
    agent = agent_of(DQN)
    wrapper = agent.optimizer
    for _ in range(3):
        agent.actor.output(seen()).square().mean().backward()
        wrapper.step()
        wrapper.zero_grad()
    kill(agent.actor)
    layer = agent.actor.encoder.model.linear_0
    state = wrapper.optimizer.state[layer.weight]
    before = {key: value.clone() for key, value in state.items()}
    reset_dormant_units(agent, 0.0, np.random.default_rng(0))
    after = agent.optimizer.optimizer.state[agent.actor.encoder.model.linear_0.weight]
    assert not after["exp_avg"][:2].any()
    reset = after["exp_avg"].eq(0).all(1)
    assert torch.equal(after["exp_avg"][~reset], before["exp_avg"][~reset])
    mean = before["exp_avg_sq"][~reset].mean()
    assert float(mean) > 0
    assert torch.allclose(after["exp_avg_sq"][reset], mean.expand(int(reset.sum()), 3), atol=0)
    assert torch.equal(after["exp_avg_sq"][~reset], before["exp_avg_sq"][~reset])
    assert torch.equal(after["step"], before["step"])
    reader = agent.optimizer.optimizer.state[agent.actor.encoder.model.linear_output.weight]
    assert not reader["exp_avg"][:, :2].any()


def test_a_network_with_readers_of_its_own_keeps_its_features() -> None:
    """A head that nobody knows may read them: only units inside the known parts are reset."""

    class Wider(QNetwork):
        def __init__(self) -> None:
            super().__init__(VECTOR, CHOICES, **copy.deepcopy(NETWORK))
            self.more = nn.Linear(10, 2)

        def output(self, obs: Any, hidden_state: Any = None) -> Tensor:
            features = self.extract_features(obs)
            return self.head_net(features) + self.more(features)

    agent = agent_of(DQN, actor_network=Wider())
    kill(agent.actor)
    before = agent.actor.output(seen())
    reset_dormant_units(agent, 0.0, np.random.default_rng(0))
    assert torch.allclose(agent.actor.output(seen()), before, atol=1e-6)
    assert agent.actor.encoder.model.linear_output.bias[:2].tolist() == [-1.0, -1.0]


def test_without_recent_observations_nobody_is_reset() -> None:
    agent = agent_of(DQN)
    kill(agent.actor)
    agent._observations = None
    before = copy.deepcopy(agent.actor.state_dict())
    assert reset_dormant_units(agent, 0.5, np.random.default_rng(0)) == 0
    assert all(torch.equal(value, before[name]) for name, value in agent.actor.state_dict().items())


def test_draws_depend_on_seed_generation_and_slot_alone() -> None:
    def fresh(seed: int, generation: int, slots: list[int] | None, position: int) -> Tensor:
        members = [agent_of(DQN, index=7 + k) for k in range(2)]
        for member in members:
            kill(member.actor)
        DormantResets(0.0, seed).apply(members, generation, slots)
        weight: Tensor = members[position].actor.encoder.model.linear_0.weight[:2]
        return weight

    first = fresh(0, 1, None, 1)
    assert torch.equal(first, fresh(0, 1, [5, 1], 1))
    others = [fresh(0, 1, None, 0), fresh(1, 1, None, 1), fresh(0, 2, None, 1)]
    assert not any(torch.equal(first, other) for other in others)


def test_counters_are_saved_and_belong_to_members() -> None:
    members = [agent_of(DQN, index=index) for index in (4, 9)]
    kill(members[1].actor)
    resets = DormantResets(0.0, 0)
    assert resets.details_of(members[0]) == {"reset_units": 0}
    resets.apply(members, 1)
    assert resets.counts[9] >= 6 > resets.counts[4]
    again = DormantResets(0.0, 0)
    again.load_state(resets.state())
    assert again.counts == resets.counts
    resets.apply(members[:1], 2, [0])
    assert set(resets.counts) == {4, 9}, "a part of a population"
    resets.apply(members[:1], 3)
    assert set(resets.counts) == {4}


# -- what it is for ----------------------------------------------------------------------------------------------------


def fitted(network: EvolvableMLP, steps: int) -> float:
    """Loss of a regression on a curve after some steps of Adam."""
    x = torch.linspace(-2, 2, 64).double().unsqueeze(1)
    y = torch.sin(2 * x)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((network(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
    return loss.item()


def test_dead_units_learn_after_a_reset_and_not_without() -> None:
    """All but one of 16 units are dead: one unit fits a bent line, the reset network the curve."""
    losses = {}
    for threshold in (None, 0.0):
        network = EvolvableMLP(1, 1, [16], min_mlp_nodes=1, random_seed=3, output_vanish=False).double()
        set_weights(network, linear_0_bias=[0.0, *[-1e3] * 15])
        if threshold is not None:
            resets = apply(network, torch.linspace(-2, 2, 64).double().unsqueeze(1), threshold)
            assert resets is not None
            assert resets.count == 15
        losses[threshold] = fitted(network, 400)
        dead = network.features(1, torch.linspace(-2, 2, 64).double().unsqueeze(1)).abs().sum(0).eq(0)
        assert int(dead.sum()) == (15 if threshold is None else 0)
    assert losses[0.0] < 0.1 * losses[None]
