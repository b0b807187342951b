"""Observations of several parts: how they are prepared, how they are read, and how such networks evolve."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict

from agilerl.core.spaces import space_from_json, space_to_json
from agilerl.errors import ConfigError, NotAvailableYetError, ShapeError
from agilerl.modules import (
    CnnNetConfig,
    EvolvableCNN,
    EvolvableMLP,
    EvolvableModule,
    EvolvableMultiInput,
    MlpNetConfig,
    MultiInputNetConfig,
    ResNetNetConfig,
)
from agilerl.networks import QNetwork
from agilerl.networks.observations import sample_batch

TWO = spaces.Discrete(2)
IMAGE = spaces.Box(0, 255, (10, 9, 3), dtype=np.uint8)
SPACE = spaces.Dict(
    image=IMAGE,
    speed=spaces.Box(-1, 1, (3,)),
    gear=spaces.Discrete(4, start=1),
    pair=spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3]))),
)
CONFIG: dict[str, Any] = {"cnn_config": {"channel_size": [16]}, "mlp_config": {"hidden_size": [48]}}


def observation(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "image": rng.integers(0, 256, IMAGE.shape, dtype=np.uint8),
        "speed": rng.standard_normal(3).astype(np.float32),
        "gear": int(rng.integers(1, 5)),
        "pair": (rng.integers(0, 2, 2), rng.integers(0, 2, 2)),
    }


def stacked(rows: list[dict[str, Any]]) -> dict[str, Any]:
    pair = tuple(np.stack([row["pair"][i] for row in rows]) for i in range(2))
    return {**{key: np.stack([row[key] for row in rows]) for key in ("image", "speed", "gear")}, "pair": pair}


def network(**arguments: Any) -> QNetwork:
    return QNetwork(SPACE, TWO, encoder_config={**CONFIG, **arguments}, random_seed=0).double()


def test_every_part_is_prepared_as_it_would_be_alone() -> None:
    net, row = network(), observation(np.random.default_rng(0))
    x = net.preprocess({**row, "gear": 3, "pair": (np.array([1, 0]), np.array([1, 2]))})
    assert sorted(x) == ["gear", "image", "pair", "speed"]
    assert x["gear"].tolist() == [[0, 0, 1, 0]]
    assert x["pair"]["tuple_obs_0"].tolist() == [[1, 0]]
    assert x["pair"]["tuple_obs_1"].tolist() == [[0, 1, 0, 0, 1]]
    assert x["image"].shape == (1, 3, 10, 9)
    torch.testing.assert_close(x["image"][0, 1, 2, 3], torch.tensor(row["image"][2, 3, 1] / 255, dtype=torch.float64))
    torch.testing.assert_close(x["speed"][0], torch.as_tensor(row["speed"]).double())


def test_one_a_batch_a_tensordict_and_two_leading_axes_agree() -> None:
    net, rng = network(), np.random.default_rng(1)
    rows = [observation(rng) for _ in range(6)]
    batch = stacked(rows)
    expected = net(batch)
    assert expected.shape == (6, 2)
    torch.testing.assert_close(net(rows[4]), expected[4:5])
    pair = {f"tuple_obs_{i}": part for i, part in enumerate(batch["pair"])}
    replayed = TensorDict({**batch, "pair": pair}, batch_size=[6])
    torch.testing.assert_close(net(replayed), expected)
    columns = {**batch, "gear": batch["gear"][:, None]}  # as replay stores numbers
    torch.testing.assert_close(net(columns), expected)
    deep = {**{k: batch[k].reshape(2, 3, *batch[k].shape[1:]) for k in ("image", "speed", "gear")},
            "pair": tuple(part.reshape(2, 3, 2) for part in batch["pair"])}  # fmt: skip
    torch.testing.assert_close(net(deep), expected.reshape(2, 3, 2))


def test_wrong_parts_are_named() -> None:
    net, row = network(), observation(np.random.default_rng(0))
    with pytest.raises(ShapeError, match=r"without \['speed'\]"):
        net({k: v for k, v in row.items() if k != "speed"})
    with pytest.raises(ShapeError, match="part 'speed', got observations of shape"):
        net({**row, "speed": np.zeros(4)})
    with pytest.raises(ShapeError, match="part 'pair', got observations of type ndarray"):
        net({**row, "pair": np.zeros(4)})
    with pytest.raises(ShapeError, match="different leading axes"):
        net({**stacked([row] * 2), "speed": np.zeros((3, 3))})
    text = spaces.Dict(a=spaces.Text(3))
    with pytest.raises(NotAvailableYetError, match="Text"):
        QNetwork(text, TWO)


def test_the_kind_of_each_part_and_their_mutations() -> None:
    net = network()
    feature_net = net.encoder.feature_net
    kinds = {key: type(part) for key, part in feature_net.items()}
    assert kinds == {"gear": EvolvableMLP, "image": EvolvableCNN, "pair": EvolvableMultiInput, "speed": EvolvableMLP}
    assert feature_net["gear"].num_inputs == 4
    assert feature_net["image"].input_shape == (3, 10, 9)
    methods = [m.removeprefix("encoder.") for m in net.mutation_methods if m.startswith("encoder.")]
    assert {"add_latent_node", "feature_net.image.add_channel", "feature_net.speed.remove_node",
            "feature_net.pair.feature_net.tuple_obs_1.add_node"} <= set(methods)  # fmt: skip
    assert not [m for m in methods if "layer" in m]
    alone = EvolvableMultiInput(net.encoder.observation_space, 5)
    assert "feature_net.image.add_layer" in alone.layer_mutation_methods


def test_output_is_one_dense_layer_over_the_parts() -> None:
    net = EvolvableMultiInput(spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Box(-1, 1, (3,))), 4, random_seed=0)
    x = {"a": torch.randn(5, 2), "b": torch.randn(5, 3)}
    features = torch.cat([net.feature_net["a"](x["a"]), net.feature_net["b"](x["b"])], dim=-1)
    linear = net.model["linear_output"]
    torch.testing.assert_close(net(x), features @ linear.weight.T + linear.bias)


def test_vectors_can_share_one_network() -> None:
    net = network(vector_space_mlp=True)
    assert set(net.encoder.feature_net.keys()) == {"image", "pair"}
    assert net.encoder.vector_mlp.num_inputs == 4 + 3
    assert "encoder.vector_mlp.add_node" in net.mutation_methods
    batch = stacked([observation(np.random.default_rng(s)) for s in range(5)])
    before = net(batch).detach()
    net.apply_mutation("encoder.vector_mlp.add_node", 0, 16)
    net.apply_mutation("encoder.add_latent_node", 16)
    torch.testing.assert_close(net(batch), before, atol=1e-12, rtol=1e-12)
    only = QNetwork(spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(3)), TWO,
                    encoder_config={"vector_space_mlp": True})  # fmt: skip
    assert only({"a": 1, "b": 2}).shape == (1, 2)


def test_growth_of_any_part_is_exact_and_its_transfer_is_named_from_the_top() -> None:
    net = network()
    batch = stacked([observation(np.random.default_rng(s)) for s in range(5)])
    before = net(batch).detach()
    for name, arguments in (
        ("encoder.feature_net.image.add_channel", (0, 8)), ("encoder.feature_net.speed.add_node", (0, 16)),
        ("encoder.feature_net.pair.add_latent_node", (8,)), ("encoder.add_latent_node", (32,)),
        ("add_latent_node", (8,)),
        ("encoder.feature_net.pair.feature_net.tuple_obs_0.add_node", (0, 16)),
    ):  # fmt: skip
        net.apply_mutation(name, *arguments)
        assert net.last_mutation_attr == name
        parameters = dict(net.named_parameters())
        assert all(t.shape == tuple(parameters[n].shape) for n, t in net.last_transfer.items())
        torch.testing.assert_close(net(batch), before, atol=1e-12, rtol=1e-12)
    assert net.encoder.latent_dim == 64
    net.apply_mutation("encoder.add_latent_node", 16)
    assert "encoder.feature_net.pair.model.linear_output.weight" in net.last_transfer


def test_removing_features_takes_the_least_important_of_every_part_and_refits() -> None:
    batches = [stacked([observation(np.random.default_rng(s + 100 * k)) for s in range(100)]) for k in range(2)]
    net = network()
    before, errors = net(batches[0]).detach(), []
    for probe in (batches[1], None):
        twin = net.clone()
        twin.probe(probe)
        twin.apply_mutation("encoder.remove_latent_node", 8)
        assert twin.encoder.latent_dim == 24
        errors.append(float((twin(batches[0]) - before).detach().norm()))
        index = twin.last_transfer["encoder.model.linear_output.weight"].index[1]
        assert len(index) == 4 * 24
        assert sorted(set(index // 32)) == [0, 1, 2, 3]
    assert errors[0] < 0.7 * errors[1]


def test_spec_round_trip_after_mutations() -> None:
    net = network(vector_space_mlp=True)
    net.apply_mutation("encoder.feature_net.image.add_channel", 0, 8)
    net.apply_mutation("encoder.vector_mlp.add_node", 0, 16)
    net.apply_mutation("encoder.feature_net.pair.vector_mlp.remove_node", 0, 8)
    net.apply_mutation("encoder.add_latent_node", 8)
    net.change_activation("ELU")
    twin = QNetwork.from_spec(json.loads(json.dumps(net.spec())), random_seed=1).double()
    assert twin.spec() == net.spec()
    assert (
        twin.describe()
        == net.describe()
        == ("multi 40 (image: cnn 24k3, pair: multi 32 (vector_mlp: [40]), vector_mlp: [64]) 64 [64]")
    )
    twin.load_state_dict(net.state_dict())
    batch = stacked([observation(np.random.default_rng(s)) for s in range(3)])
    torch.testing.assert_close(twin(batch), net(batch))
    assert space_from_json(json.loads(json.dumps(space_to_json(SPACE)))) == SPACE


def test_made_up_observations_have_rows() -> None:
    batch = sample_batch(SPACE, 8, np.random.default_rng(0))
    assert len(batch[::2]) == 4
    assert batch["image"].dtype == torch.uint8
    net = network()
    assert net(batch[1::2]).shape == (4, 2)
    net.probe(batch[::2])
    net.apply_mutation("encoder.feature_net.speed.remove_node", 0, 8)
    assert net.last_refit


def test_keys_that_cannot_name_a_module() -> None:
    names = ("a.b", "a_b", "training", "keys", "vector_mlp", "")
    space = spaces.Dict({name: spaces.Box(-1, 1, (2,)) for name in names})
    net = QNetwork(space, TWO, random_seed=0)
    assert len(net.encoder.feature_net) == 6
    x = {name: np.full(2, i, np.float32) for i, name in enumerate(names)}
    assert net(x).shape == (1, 2)
    assert QNetwork.from_spec(json.loads(json.dumps(net.spec()))).spec() == net.spec()


def test_configurations_are_checked() -> None:
    typed = MultiInputNetConfig(16, cnn_config=CnnNetConfig([16]), mlp_config=MlpNetConfig([24]))
    net = QNetwork(SPACE, TWO, encoder_config=typed, random_seed=0)
    assert net.encoder.feature_net["speed"].hidden_size == [24]
    with pytest.raises(ConfigError, match="Did you mean 'channel_size'"):
        QNetwork(SPACE, TWO, encoder_config={"cnn_config": {"chanel_size": [3]}})
    with pytest.raises(ConfigError, match="Did you mean 'speed'"):
        QNetwork(SPACE, TWO, encoder_config={"init_dicts": {"sped": {}}})
    with pytest.raises(ConfigError, match="EvolvableResNet cannot read Dict"):
        QNetwork(SPACE, TWO, encoder_config=ResNetNetConfig())
    with pytest.raises(ConfigError, match="EvolvableMultiInput cannot read Box"):
        QNetwork(spaces.Box(-1, 1, (2,)), TWO, encoder_config=MultiInputNetConfig())
    flat = QNetwork(SPACE, TWO, encoder_config=MlpNetConfig([32]), random_seed=0)
    assert flat.encoder.num_inputs == 270 + 3 + 4 + 2 + 5
    assert flat(observation(np.random.default_rng(0))).shape == (1, 2)


class Own(EvolvableModule):
    """A user's encoder for whatever it is given."""

    def __init__(self, num_outputs: int, device: str = "cpu", random_seed: int | None = None, **sizes: Any) -> None:
        super().__init__(device, random_seed)
        self.sizes = sizes
        self.line = torch.nn.LazyLinear(num_outputs)

    def forward(self, x: Any) -> torch.Tensor:
        return self.line(x)


class OwnNested(EvolvableModule):
    def __init__(self, observation_space: Any, num_outputs: int, device: str = "cpu", random_seed: int | None = None):
        super().__init__(device, random_seed)
        self.observation_space = observation_space
        self.line = torch.nn.Linear(3, num_outputs)

    def forward(self, x: Any) -> torch.Tensor:
        return self.line(x["speed"])


class OwnImage(EvolvableModule):
    def __init__(self, input_shape: Any, num_outputs: int, device: str = "cpu", random_seed: int | None = None):
        super().__init__(device, random_seed)
        self.input_shape = input_shape
        self.line = torch.nn.Linear(int(np.prod(input_shape)), num_outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert tuple(x.shape[1:]) == tuple(self.input_shape)
        return self.line(x.flatten(1))


@pytest.mark.parametrize(
    "space", [IMAGE, SPACE, spaces.Discrete(3), spaces.Box(-1, 1, (2, 3)), spaces.Tuple((IMAGE, spaces.Discrete(2)))]
)
def test_an_encoder_of_your_own_reads_every_space_as_a_vector(space: spaces.Space) -> None:
    net = QNetwork(space, TWO, encoder_cls=Own, random_seed=0)
    width = spaces.flatdim(space)
    assert net.encoder.sizes == {"num_inputs": width}
    assert net.preprocess(sample_batch(space, 4, np.random.default_rng(0))).shape == (4, width)
    assert net(sample_batch(space, 4, np.random.default_rng(0))).shape == (4, 2)


def test_an_encoder_of_your_own_may_ask_for_images_or_parts() -> None:
    net = QNetwork(SPACE, TWO, encoder_cls=OwnNested, random_seed=0)
    assert net.encoder.observation_space["image"].shape == (3, 10, 9)
    assert net(observation(np.random.default_rng(0))).shape == (1, 2)
    net = QNetwork(IMAGE, TWO, encoder_cls=OwnImage, random_seed=0)
    assert net(sample_batch(IMAGE, 4, np.random.default_rng(0))).shape == (4, 2)
