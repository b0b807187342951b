"""Networks: spaces, shapes, errors, round trips."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.core.spaces import space_from_json, space_to_json
from agilerl.errors import ConfigError, ShapeError
from agilerl.modules import (
    CnnNetConfig,
    EvolvableCNN,
    EvolvableMLP,
    EvolvableModule,
    EvolvableResNet,
    EvolvableSimBa,
    MlpNetConfig,
)
from agilerl.networks import ContinuousQNetwork, EvolvableNetwork, QNetwork
from agilerl.networks.observations import sample_batch

BOX = spaces.Box(-np.inf, np.inf, (4,))
TWO = spaces.Discrete(2)
SPACES = [
    BOX,
    spaces.Box(-1, 1, ()),
    spaces.Box(np.array([-1, -2.5]), np.array([0.1, np.inf]), dtype=np.float64),
    spaces.Box(0, 255, (3,), dtype=np.uint8),
    spaces.Discrete(5, start=2),
    spaces.MultiDiscrete([2, 3, 4]),
    spaces.MultiBinary(3),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_every_space_works_alone_batched_and_with_two_leading_axes(space: spaces.Space) -> None:
    net = QNetwork(space, TWO, random_seed=0)
    obs = sample_batch(space, 6, np.random.default_rng(0))
    assert all(
        space.contains(np.asarray(o, space.dtype) if space.shape or space is SPACES[1] else o) for o in obs.numpy()
    )
    batch = net(obs)
    assert batch.shape == (6, 2)
    assert net(obs[0].numpy()).shape == (1, 2)
    torch.testing.assert_close(net(obs[2].numpy())[0], batch[2])
    torch.testing.assert_close(net(obs.reshape(2, 3, *space.shape).numpy()), batch.reshape(2, 3, 2))
    assert space_from_json(json.loads(json.dumps(space_to_json(space)))) == space


def test_discrete_observations_become_one_hot_from_their_start() -> None:
    net = QNetwork(spaces.Discrete(3, start=2), TWO, random_seed=0)
    assert net.preprocess(np.array([2, 4])).tolist() == [[1, 0, 0], [0, 0, 1]]
    net = QNetwork(spaces.MultiDiscrete([2, 3]), TWO, random_seed=0)
    assert net.preprocess([1, 2]).tolist() == [[0, 1, 0, 0, 1]]


def test_wrong_shape_is_named() -> None:
    with pytest.raises(ShapeError, match=r"QNetwork got observations of shape \(2, 7\); it was built for \(4,\)"):
        QNetwork(BOX, TWO)(np.zeros((2, 7)))


def test_configuration_errors_say_what_to_write() -> None:
    with pytest.raises(
        ConfigError, match=r"encoder_config: 'hiden_size' is not a known key\. Did you mean 'hidden_size'"
    ):
        QNetwork(BOX, TWO, encoder_config={"hiden_size": [8]})
    with pytest.raises(ConfigError, match="head_config: 'num_outputs'"):
        QNetwork(BOX, TWO, head_config={"num_outputs": 3})
    with pytest.raises(ValueError, match="Action space must be either Discrete or MultiDiscrete"):
        QNetwork(BOX, spaces.Box(-1, 1, (2,)))
    with pytest.raises(ConfigError, match="simba=True and recurrent=True exclude each other"):
        QNetwork(BOX, TWO, simba=True, recurrent=True)
    with pytest.raises(TypeError, match="EvolvableModule"):
        QNetwork(BOX, TWO, encoder_cls=torch.nn.Linear)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="head_net"):
        EvolvableNetwork(BOX)(np.zeros(4))


def test_surface_of_mutations() -> None:
    net = QNetwork(BOX, TWO)
    assert net.mutation_methods == [
        "head_net.add_layer", "head_net.remove_layer", "add_latent_node", "remove_latent_node",
        "encoder.add_node", "encoder.remove_node", "head_net.add_node", "head_net.remove_node",
    ]  # fmt: skip
    assert net.modules() == {"encoder": net.encoder, "head_net": net.head_net}


def test_no_method_is_a_no_op_on_a_two_layer_head() -> None:
    class IndexOne:
        def __init__(self) -> None:
            self.draws = np.random.default_rng(0)

        def choice(self, a: list, size: object = None, replace: bool = True, p: object = None) -> list:
            return [a[1]]

        def integers(self, low: int, high: int) -> int:
            return int(self.draws.integers(low, high))

    net = QNetwork(BOX, TWO, head_config={"hidden_size": [64, 64]}, random_seed=0)
    for name in net.mutation_methods:
        twin = net.clone()
        twin.rng = IndexOne()
        twin.apply_mutation(name)
        assert twin.last_mutation_attr == name
        old, new = net.state_dict(), twin.state_dict()
        assert set(old) != set(new) or any(old[k].shape != new[k].shape for k in old)


def test_spec_round_trip_after_mutations_and_activation_change() -> None:
    net = QNetwork(BOX, TWO, None, {"hidden_size": (32, 48), "activation": "Tanh"}, MlpNetConfig([40]),
                   latent_dim=24, random_seed=0)  # fmt: skip
    assert net.describe() == "[32, 48] 24 [40]"
    net.add_latent_node(16)
    net.apply_mutation("encoder.add_node", 0, 16)
    net.apply_mutation("head_net.add_layer")
    net.change_activation("GELU")
    assert net.activation == "GELU" == net.head_net.activation == net.encoder.output_activation
    twin = QNetwork.from_spec(json.loads(json.dumps(net.spec())), random_seed=1)
    assert twin.describe() == "[48, 48] 40 [40, 40]"
    assert twin.spec() == net.spec()
    twin.load_state_dict(net.state_dict())
    x = torch.randn(5, 4)
    torch.testing.assert_close(twin(x), net(x))
    built = QNetwork(**net.init_dict)
    assert built.spec() == net.spec()


def test_latent_limits_are_strict() -> None:
    net = QNetwork(BOX, TWO, latent_dim=16, random_seed=0)
    assert not net.can_apply("remove_latent_node")
    assert net.remove_latent_node() == {"numb_new_nodes": 0}
    assert net.add_latent_node(112) == {"numb_new_nodes": 0}
    assert net.add_latent_node(8) == {"numb_new_nodes": 8}
    assert net.latent_dim == 24 == net.encoder.num_outputs == net.head_net.num_inputs


def test_dense_stack_joins_encoder_and_head() -> None:
    net = QNetwork(BOX, TWO, encoder_config={"hidden_size": [32], "layer_norm": True}, random_seed=0)
    stack = net.dense_stack()
    assert stack is not None
    assert [(layer.out_features, layer.activation, layer.layer_norm) for layer in stack.layers] == [
        (32, "ReLU", True), (64, "ReLU", True), (64, "ReLU", False), (2, None, False),
    ]  # fmt: skip
    net.head_net.register_forward_hook(lambda *a: None)
    assert net.dense_stack() is None


def test_an_encoder_of_your_own_has_no_latent_mutations() -> None:
    class Plain(EvolvableModule):
        def __init__(self, num_inputs: int, num_outputs: int, device: str = "cpu", random_seed: int | None = None):
            super().__init__(device, random_seed)
            self.line = torch.nn.Linear(num_inputs, num_outputs)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.line(x)

    net = QNetwork(BOX, TWO, encoder_cls=Plain)
    assert "add_latent_node" not in net.mutation_methods
    assert net(np.zeros(4)).shape == (1, 2)
    with pytest.raises(ConfigError, match="fix: encoder_cls="):
        QNetwork.from_spec(net.spec())
    assert QNetwork.from_spec(net.spec(), encoder_cls=Plain).latent_dim == 64


def test_a_net_config_as_a_dictionary_leaves_unset_options_at_their_defaults() -> None:
    head = dataclasses.asdict(MlpNetConfig((40,)))
    typed = QNetwork(BOX, TWO, encoder_config=MlpNetConfig((48,)), head_config=MlpNetConfig((40,)), random_seed=0)
    net = QNetwork(BOX, TWO, encoder_config=dataclasses.asdict(MlpNetConfig((48,))), head_config=head, random_seed=0)
    assert net.spec() == typed.spec()
    assert net.head_net.activation == "ReLU"
    image, config = spaces.Box(0, 255, (3, 16, 16), np.uint8), CnnNetConfig((16,), kernel_size=3)
    typed, net = (QNetwork(image, TWO, encoder_config=c, random_seed=0) for c in (config, dataclasses.asdict(config)))
    assert net.spec() == typed.spec()
    assert net.encoder.block_type == "Conv2d"
    # A dictionary of one's own says None where it means it: no activation between the layers.
    assert QNetwork(BOX, TWO, head_config={"hidden_size": [40], "activation": None}).head_net.activation is None


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (EvolvableMLP(4, 3, [32], random_seed=0), (4,)),
        (EvolvableSimBa(4, 3, 32, random_seed=0), (4,)),
        (EvolvableCNN((3, 8, 8), 3, [16], random_seed=0), (3, 8, 8)),
        (EvolvableResNet((3, 8, 8), 3, 16, random_seed=0), (3, 8, 8)),
    ],
    ids=["mlp", "simba", "cnn", "resnet"],
)
def test_one_input_without_a_batch_axis_gives_a_batch_of_one(module: EvolvableModule, shape: tuple[int, ...]) -> None:
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    one = module(x[0])
    assert one.shape == (1, 3)
    torch.testing.assert_close(one, module(x[:1]), rtol=0, atol=0)
    assert module(x[None]).shape == (1, 2, 3)


def test_a_column_of_discrete_observations_is_a_batch_of_them() -> None:
    net = QNetwork(spaces.Discrete(5, start=1), TWO, random_seed=0)
    numbers = torch.tensor([1, 4, 5])
    column = net(numbers[:, None])
    assert column.shape == (3, 2)
    torch.testing.assert_close(column, net(numbers), rtol=0, atol=0)
    assert net(numbers[:, None].numpy()).shape == (3, 2)
    assert net(numbers.reshape(1, 3)).shape == (1, 3, 2)


def test_a_critics_head_is_probed_with_the_actions_that_were_taken() -> None:
    """Two observations and their actions 3 and 7: each action is paired with both features, in turn, four times."""
    critic = ContinuousQNetwork(spaces.Box(-9, 9, (2,)), spaces.Box(-9, 9, (1,)), latent_dim=9, random_seed=0)
    obs, actions = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[3.0], [7.0]])
    critic.probe(obs, actions)
    inputs = critic.head_net.probe_inputs
    assert torch.equal(inputs[:, :9], critic.extract_features(obs).detach().repeat(4, 1))
    assert inputs[:, 9].tolist() == [3, 7, 7, 3, 3, 7, 7, 3]
    critic.probe(obs, torch.stack([actions, actions + 1]))  # two agents share it
    assert critic.head_net.probe_inputs[:, 9].tolist() == [3, 7, 4, 8, 7, 3, 8, 4, 3, 7, 4, 8, 7, 3, 8, 4]
    critic.probe(obs)
    assert critic.head_net.probe_inputs[:, 9].abs().max() <= 1, "uniform ones, as none are known"
    critic.probe(None)
    assert critic.head_net.probe_inputs is None
