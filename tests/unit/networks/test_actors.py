"""Policies, critics and Rainbow's network: bounds, inputs, round trips, parts, mutations of all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from agilerl.engine.parts import parts_of
from agilerl.errors import AgileRLWarning, AlgorithmError, ConfigError, ShapeError
from agilerl.hpo.architecture import ArchitectureOptions, attempt
from agilerl.hpo.effects import Probe, follow, output_of
from agilerl.modules.configs import MlpNetConfig
from agilerl.networks import (
    ContinuousQNetwork,
    DeterministicActor,
    QuantileCritic,
    QuantileQNetwork,
    RainbowQNetwork,
    StochasticActor,
    Temperature,
    ValueNetwork,
)

OBS = spaces.Box(-1, 1, (4,))
BOX = spaces.Box(np.array([-1.0, 0.0, 3.0], np.float32), np.array([1.0, 10.0, 4.0], np.float32))
UNEVEN = {"encoder_config": {"hidden_size": [24, 20]}, "head_config": {"hidden_size": [28]}, "latent_dim": 20}


def actions(count: int) -> Tensor:
    return torch.rand(count, 3, generator=torch.Generator().manual_seed(9), dtype=torch.float64) * 2 - 1


# name -> (how to make it, what it computes for observations)
NETWORKS: dict[str, tuple[Callable[[], Any], Callable[[Any, Tensor], Tensor]]] = {
    "value": (lambda: ValueNetwork(OBS, random_seed=1, **UNEVEN), lambda n, x: n(x)),
    "deterministic": (lambda: DeterministicActor(OBS, BOX, random_seed=1, **UNEVEN), lambda n, x: n(x)),
    "stochastic": (
        lambda: StochasticActor(OBS, BOX, random_seed=1, squash_output=True, **UNEVEN),
        lambda n, x: n.output(x),
    ),
    "choice": (lambda: StochasticActor(OBS, spaces.Discrete(3), random_seed=1, **UNEVEN), lambda n, x: n.output(x)),
    "critic": (
        lambda: ContinuousQNetwork(OBS, BOX, random_seed=1, **UNEVEN),
        lambda n, x: n(x, actions(len(x))),
    ),
    "quantiles": (
        lambda: QuantileQNetwork(OBS, spaces.Discrete(3), num_quantiles=5, random_seed=1, **UNEVEN),
        lambda n, x: n.output(x),
    ),
    "quantile critic": (
        lambda: QuantileCritic(OBS, BOX, num_quantiles=5, random_seed=1, **UNEVEN),
        lambda n, x: n(x, actions(len(x))),
    ),
    "rainbow": (
        lambda: RainbowQNetwork(OBS, spaces.Discrete(3), num_atoms=5, noisy=False, random_seed=1, **UNEVEN),
        lambda n, x: n.output(x).flatten(1),
    ),
    "noisy": (
        lambda: RainbowQNetwork(OBS, spaces.Discrete(3), num_atoms=5, random_seed=1, **UNEVEN).eval(),
        lambda n, x: n.output(x).flatten(1),
    ),
    "plain": (
        lambda: RainbowQNetwork(
            OBS, spaces.Discrete(3), noisy=False, dueling=False, distributional=False, random_seed=1, **UNEVEN
        ),
        lambda n, x: n.output(x),
    ),
}


def observations(count: int = 40) -> Tensor:
    return torch.rand(count, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1


# --- bounds of actions


def test_actions_are_mapped_to_unequal_and_asymmetric_bounds() -> None:
    raw = np.array([[-1, -1, -1], [1, 1, 1], [0, 0.5, -0.5], [2, 0, 0]], np.float64)
    got = DeterministicActor.rescale_action(raw, BOX.low, BOX.high)
    assert got.dtype == np.float32, "the dtype of the bounds"
    np.testing.assert_allclose(got, [[-1, 0, 3], [1, 10, 4], [0, 7.5, 3.25], [2, 5, 3.5]])  # 2: beyond the bound
    tensor = DeterministicActor.rescale_action(
        torch.as_tensor(raw), torch.as_tensor(BOX.low), torch.as_tensor(BOX.high)
    )
    assert tensor.dtype == torch.float32
    np.testing.assert_array_equal(tensor.numpy(), got)
    np.testing.assert_allclose(
        DeterministicActor.rescale_action(np.array([0.0, 0.25, 1.0]), BOX.low, BOX.high, "Sigmoid"), [-1, 2.5, 4]
    )


def test_infinite_bounds_leave_actions_as_they_are_and_the_widest_do_not_overflow() -> None:
    low, high = np.array([-np.inf, -1.0, -3.4e38], np.float32), np.array([np.inf, 3.0, 3.4e38], np.float32)
    np.testing.assert_allclose(DeterministicActor.rescale_action(np.array([7.0, 0.0, 0.5]), low, high), [7, 1, 1.7e38])


def test_the_output_range_of_an_activation_is_known_or_refused() -> None:
    assert DeterministicActor.get_output_bounds("Tanh") == (-1, 1)
    assert DeterministicActor.get_output_bounds("Softmax") == (0, 1)
    with pytest.raises(ValueError, match=r"unknown bounded output activation 'Tan'\. Did you mean 'Tanh'"):
        DeterministicActor.get_output_bounds("Tan")
    with pytest.raises(ConfigError, match="bounded output activation 'ReLU'"):
        DeterministicActor(OBS, BOX, head_config={"output_activation": "ReLU"})


def test_raw_actions_stay_in_the_range_of_the_output_activation() -> None:
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0)) * 50
    for name, low, high in (("Tanh", -1, 1), ("Sigmoid", 0, 1), (None, -1, 1)):
        actor = DeterministicActor(OBS, BOX, head_config={"output_activation": name}, random_seed=0)
        with torch.no_grad():
            actor.head_net.model.linear_output.weight.mul_(100)
        raw = actor(x)
        assert (raw.min() >= low) & (raw.max() <= high)
        assert raw.min() < low + 0.1, "all of the range is used"
        assert raw.max() > high - 0.1
    assert actor.head_net.output_activation == "Tanh"


def test_for_choices_a_deterministic_policy_gives_logits() -> None:
    actor = DeterministicActor(
        OBS, spaces.MultiDiscrete([2, 3]), head_config={"output_activation": "Tanh"}, random_seed=0
    )
    assert actor.output_activation == "GumbelSoftmax"
    assert (actor.action_low, actor.action_high) == (None, None)
    raw = actor(torch.randn(50, 4, generator=torch.Generator().manual_seed(0)) * 100)
    assert raw.shape == (50, 5)
    assert raw.abs().max() > 1, "nothing bounds them"


def test_action_spaces_without_a_policy_are_refused_by_name() -> None:
    with pytest.raises(AlgorithmError, match="infinite bounds in 1 of 2 components. fix: gymnasium.wrappers"):  # noqa: RUF043
        DeterministicActor(OBS, spaces.Box(np.array([-np.inf, 0]), np.array([1, 1])))
    with pytest.raises(AlgorithmError, match="needs bounded actions"):
        StochasticActor(OBS, spaces.Box(-np.inf, np.inf, (2,)), squash_output=True)
    with pytest.raises(
        AlgorithmError,
        match=r"^DeterministicActor takes Box or \(Multi\)Discrete; got MultiBinary\(3\)\. fix: PPO\.$",
    ):
        DeterministicActor(OBS, spaces.MultiBinary(3))
    with pytest.raises(ConfigError, match="squash_output=True is for Box actions"):
        StochasticActor(OBS, spaces.Discrete(3), squash_output=True)
    with pytest.raises(ConfigError, match="must be None"):
        StochasticActor(OBS, BOX, head_config={"output_activation": "Tanh"})
    for cls in (ContinuousQNetwork, RainbowQNetwork):
        with pytest.raises(AlgorithmError, match="MultiBinary"):
            cls(OBS, spaces.MultiBinary(3))


# --- running


def test_the_critic_takes_every_form_of_action() -> None:
    critic = ContinuousQNetwork(OBS, spaces.Discrete(3, start=1), random_seed=0)
    obs = observations(3).float()
    as_index, as_weights = critic(obs, np.array([1, 3, 2])), critic(obs, torch.eye(3)[[0, 2, 1]])
    assert torch.equal(as_index, as_weights)
    assert as_index.shape == (3, 1)
    matrix = ContinuousQNetwork(OBS, spaces.Box(-1, 1, (2, 3)), random_seed=0)
    given = torch.rand(5, 2, 3)
    assert torch.equal(matrix(observations(5).float(), given), matrix(observations(5).float(), given.flatten(1)))
    with pytest.raises(ShapeError, match=r"actions of shape \(3, 2\); its space is Box"):
        ContinuousQNetwork(OBS, BOX)(obs, np.zeros((3, 2)))


def test_the_critic_is_the_head_over_features_and_action() -> None:
    critic = ContinuousQNetwork(OBS, BOX, random_seed=0).double()
    x, a = observations(6), actions(6)
    expected = critic.head_net(torch.cat([critic.encoder(x), a], -1))
    assert torch.equal(critic(x, a), expected)
    stacked = critic(x.reshape(2, 3, 4), a.reshape(2, 3, 3))
    torch.testing.assert_close(stacked, expected.reshape(2, 3, 1))
    assert critic(x[0].numpy(), a[0].numpy()).shape == (1, 1)


def test_the_critic_turns_layer_norm_of_its_encoder_off() -> None:
    for config in ({"layer_norm": True}, MlpNetConfig(layer_norm=True)):
        with pytest.warns(
            AgileRLWarning, match="Layer normalization is not supported for the encoder of DDPG networks"
        ):
            critic = ContinuousQNetwork(OBS, BOX, encoder_config=config, head_config={"layer_norm": True})
        assert not critic.encoder.layer_norm
        assert critic.head_net.layer_norm


def test_a_stochastic_actor_samples_scores_and_masks() -> None:
    actor = StochasticActor(OBS, BOX, squash_output=True, random_seed=3)
    x = observations(500).float()
    action, log_prob, entropy = actor(x)
    assert (action.shape, log_prob.shape) == ((500, 3), (500,))
    torch.testing.assert_close(actor.action_log_prob(x, action), log_prob, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(entropy, -log_prob)
    assert BOX.contains(actor.scale_action(action).detach().numpy()[0])
    assert not torch.equal(actor(x)[0], action), "a new sample each time"
    assert torch.equal(StochasticActor(OBS, BOX, squash_output=True, random_seed=3)(x)[0], action), "its own generator"
    choice = StochasticActor(OBS, spaces.MultiDiscrete([2, 3]), random_seed=0)
    mask = np.array([0, 1, 1, 0, 0])
    action, log_prob, entropy = choice(x, np.broadcast_to(mask, (500, 5)))
    assert action.tolist() == [[1, 0]] * 500
    torch.testing.assert_close(log_prob, torch.zeros(500))
    torch.testing.assert_close(entropy, torch.zeros(500))


def test_the_initial_deviation_is_in_the_bias() -> None:
    actor = StochasticActor(OBS, BOX, log_std_init=-1.5, random_seed=0)
    assert actor.head_net.model.linear_output.bias.tolist() == [0, 0, 0, -1.5, -1.5, -1.5]


def test_the_duelling_streams_add_up_and_the_advantages_centre() -> None:
    net = RainbowQNetwork(OBS, spaces.Discrete(3), num_atoms=5, v_min=-1, v_max=3, noisy=False, random_seed=0).double()
    x = observations(6)
    features = net.encoder(x)
    advantage, value = net.head_net(features).reshape(6, 3, 5), net.value_net(features)
    logits = net.output(x)
    torch.testing.assert_close(logits, value[:, None] + advantage - advantage.mean(1, keepdim=True))
    torch.testing.assert_close(logits.mean(1), value)
    expected = (logits.softmax(-1) * torch.tensor([-1.0, 0, 1, 2, 3]).double()).sum(-1)
    torch.testing.assert_close(net(x), expected)


def test_a_support_can_be_given_and_bad_ones_are_refused() -> None:
    net = RainbowQNetwork(OBS, spaces.Discrete(2), support=torch.linspace(-2, 6, 9))
    assert (net.num_atoms, net.v_min, net.v_max) == (9, -2, 6)
    torch.testing.assert_close(net.support, torch.linspace(-2, 6, 9))
    for bad, words in (({"support": [0, 1, 3]}, "evenly spaced"), ({"num_atoms": 1}, "at least 2"),
                       ({"v_min": 3, "v_max": 3}, "v_min must lie below v_max")):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            RainbowQNetwork(OBS, spaces.Discrete(2), **bad)


def test_noise_is_drawn_on_demand_and_absent_in_evaluation() -> None:
    net, x = RainbowQNetwork(OBS, spaces.Discrete(2), random_seed=0), observations().float()
    first = net(x)
    assert torch.equal(net(x), first), "the same until it is drawn anew"
    net.reset_noise()
    assert not torch.equal(net(x), first)
    net.eval()
    quiet = net(x)
    net.reset_noise()
    assert torch.equal(net(x), quiet)


# --- as data and as rows


@pytest.mark.parametrize("name", NETWORKS)
def test_specs_and_clones_are_the_network(name: str) -> None:
    make, run = NETWORKS[name]
    net = make()
    again = type(net).from_spec(json.loads(json.dumps(net.spec())))
    again.load_state_dict(net.state_dict())
    twin = net.clone()
    for other in (again.train(net.training), twin):
        assert torch.equal(run(other.double(), observations()), run(net.double(), observations()))
    assert again.spec() == net.spec()
    assert {p.data_ptr() for p in twin.parameters()}.isdisjoint(p.data_ptr() for p in net.parameters())


@pytest.mark.parametrize("name", [n for n in NETWORKS if n != "noisy"])
def test_parts_hold_every_parameter_once_and_hooks_undo_them(name: str) -> None:
    net = NETWORKS[name][0]()
    parts = parts_of(net)
    assert parts is not None
    held = [p for part in parts.values() for layer in part.stack.parameters for p in layer]
    assert sorted(map(id, held)) == sorted(map(id, net.parameters()))
    net.encoder.register_forward_hook(lambda *_: None)
    assert parts_of(net) is None


def test_a_subclass_that_changes_the_output_is_left_to_itself() -> None:
    class Doubled(ContinuousQNetwork):
        def output(self, obs: Any, action: Any) -> Tensor:
            return 2 * super().output(obs, action)

    class Shifted(StochasticActor):
        def output(self, obs: Any) -> Tensor:
            return super().output(obs) + 1

    assert parts_of(Doubled(OBS, BOX)) is None
    assert parts_of(Shifted(OBS, BOX)) is None


def test_the_temperature_is_one_number_without_inputs() -> None:
    temperature = Temperature(0.5)
    assert temperature.alpha == pytest.approx(0.5)
    assert temperature(torch.empty(3, 4, 0)).shape == (3, 4, 1)
    assert temperature().item() == pytest.approx(np.log(0.5))
    assert temperature.mutation_methods == []
    with pytest.raises(ConfigError, match="must be above 0"):
        Temperature(0.0)


# --- mutations


@pytest.mark.parametrize("fresh", ["preserve", "random"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_mutation_of_every_network_applies_and_growth_keeps_the_function(name: str, fresh: str) -> None:
    make, run = NETWORKS[name]
    net, x = make().double(), observations()
    options = ArchitectureOptions(0.5, fresh=fresh, removal=True)
    before = run(net, x)
    for method in net.mutation_methods:
        if not net.can_apply(method):
            continue
        new, _ = attempt(net, method, options, Probe(x[::2], x[1::2]), {})
        assert new.last_mutation_attr == method
        after = run(new, x)
        assert after.shape == before.shape
        assert torch.isfinite(after).all()
        if fresh == "preserve" and "add_" in method:
            torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-9, msg=f"{method} changed the function")
        target = net.clone().requires_grad_(False)
        torch.testing.assert_close(run(follow(target, net, new), x), after)
        sizes = {n: tuple(p.shape) for n, p in new.named_parameters()}
        for parameter, transfer in new.last_transfer.items():
            assert transfer.shape == sizes[parameter], parameter
    torch.testing.assert_close(run(net, x), before, msg="the network itself is not touched")


@pytest.mark.parametrize("method", ["add_node", "remove_node", "add_layer"])
def test_the_value_stream_follows_the_head(method: str) -> None:
    config = {"head_config": {"hidden_size": [64, 64]}, "latent_dim": 20}
    net = RainbowQNetwork(OBS, spaces.Discrete(3), num_atoms=5, random_seed=1, **config)
    assert not any(m.startswith("value_net") for m in net.mutation_methods)
    net.apply_mutation(f"head_net.{method}")
    assert net.last_mutation_attr == f"head_net.{method}"
    assert net.value_net.hidden_size == net.head_net.hidden_size != [64, 64]
    changed = {n.split(".")[0] for n in net.last_transfer}
    assert changed == {"head_net", "value_net"}


@pytest.mark.parametrize("activation", ["Tanh", "ELU"])
def test_a_change_of_activation_is_refitted_in_both_streams(activation: str) -> None:
    x = observations(200)

    def changes(probe: Tensor | None) -> list[float]:
        """Relative change of the value and of the advantage stream."""
        net = RainbowQNetwork(OBS, spaces.Discrete(3), num_atoms=5, noisy=False, random_seed=1, **UNEVEN).double()
        with torch.no_grad():
            before = [stream(net.encoder(x)) for stream in (net.value_net, net.head_net)]
            net.probe(probe)
            net.change_activation(activation)
            net.probe(None)
            after = [stream(net.encoder(x)) for stream in (net.value_net, net.head_net)]
        assert {net.encoder.activation, net.head_net.activation, net.value_net.activation} == {activation}
        return [float((a - b).norm() / b.norm()) for a, b in zip(after, before, strict=True)]

    value, advantage = changes(x)
    assert max(value, advantage) < 0.25 * min(changes(None)), "without observations the weights stay as they are"
    assert 0.5 < value / advantage < 2, "one stream is refitted as well as the other"


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("atoms", [3, 9, 17, 33])
def test_a_new_number_of_atoms_interpolates_the_logits(atoms: int, noisy: bool) -> None:
    net = RainbowQNetwork(OBS, spaces.Discrete(3), num_atoms=9, v_min=-2, v_max=2, noisy=noisy, random_seed=1)
    net = net.double().eval()
    x = observations(5)
    old = net.output(x).detach().numpy()
    net.set_num_atoms(atoms)
    new = net.output(x).detach().numpy()
    assert new.shape == (5, 3, atoms)
    here, there = np.linspace(-2, 2, atoms), np.linspace(-2, 2, 9)
    expected = np.stack([[np.interp(here, there, row) for row in rows] for rows in old])
    np.testing.assert_allclose(new, expected, atol=1e-12)
    assert net.support.shape == (atoms,)
    sizes = {n: tuple(p.shape) for n, p in net.named_parameters()}
    assert all(transfer.shape == sizes[n] for n, transfer in net.last_transfer.items())


def test_a_new_noise_scale_scales_the_learned_noise_and_that_of_later_growth() -> None:
    net = RainbowQNetwork(OBS, spaces.Discrete(2), noise_std=0.5, random_seed=1, **UNEVEN)
    before = net.head_net.model.linear_0.weight_sigma.clone()
    net.set_noise_std(0.25)
    torch.testing.assert_close(net.head_net.model.linear_0.weight_sigma, before / 2)
    again = RainbowQNetwork.from_spec(net.spec())
    assert again.value_net.noise_std == 0.25
    with pytest.raises(ConfigError, match="noise_std must be above 0"):
        net.set_noise_std(0)


def test_mutations_judge_a_return_distribution_by_its_expected_values() -> None:
    net = RainbowQNetwork(OBS, spaces.Discrete(3), random_seed=0)
    x = observations().float()
    judged = output_of(net, x)
    assert judged.shape == (40, 3)
    torch.testing.assert_close(judged, net.eval()(x))
