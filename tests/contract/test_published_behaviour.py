"""Published behaviour of constructors, buffers and training functions that scripts rely on; see docs/migrating.md."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl import errors
from agilerl.algorithms import CQN, DQN, IPPO, MAPPO, PPO
from agilerl.algorithms.core import RLAlgorithm
from agilerl.components import ReplayBuffer, RolloutBuffer
from agilerl.components.data import to_tensordict, to_torch_tensor
from agilerl.errors import AgileRLWarning, AlgorithmError, ConfigError
from agilerl.modules.cnn import EvolvableCNN
from agilerl.modules.custom_components import GumbelSoftmax
from agilerl.modules.mlp import EvolvableMLP
from agilerl.training.train_offline import train_offline
from agilerl.utils.evolvable_networks import get_activation
from agilerl.utils.utils import make_vect_envs

VECTOR, BOX = spaces.Box(-1, 1, (4,), np.float32), spaces.Box(-1, 1, (2,), np.float32)


# --- the deviation of untrained policies -----------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [PPO, IPPO, MAPPO])
def test_a_deviation_of_zero_is_the_published_logarithm(cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_warned", set())
    team = {} if cls is PPO else {"agent_ids": ["a"]}
    given: tuple[Any, Any] = (VECTOR, BOX) if cls is PPO else ([VECTOR], [BOX])
    with pytest.warns(AgileRLWarning, match=rf"{cls.__name__}\(action_std_init=0.0\).*deviation is 1.0"):
        zero = cls(*given, action_std_init=0.0, seed=1, **team)
    one = cls(*given, action_std_init=1.0, seed=1, **team)
    assert zero.action_std_init == 1.0
    policies = [agent.actor if cls is PPO else next(iter(agent.actors.values())) for agent in (zero, one)]
    for name, weights in policies[0].state_dict().items():
        assert torch.equal(weights, policies[1].state_dict()[name])
    with pytest.raises(AlgorithmError, match="action_std_init must be"):
        cls(*given, action_std_init=-1.0, **team)


# --- data ------------------------------------------------------------------------------------------------------------


def test_a_dtype_is_the_second_argument_of_conversions() -> None:
    data = {"a": np.arange(3), "b": (np.uint8(1), 2.5)}
    kept = to_tensordict(data)
    assert (kept["a"].dtype, kept["b"]["tuple_obs_1"].dtype) == (torch.int64, torch.float32)
    single = to_tensordict(data, torch.float32)
    assert {leaf.dtype for leaf in (single["a"], *single["b"].values())} == {torch.float32}
    assert single["a"].tolist() == [0, 1, 2]
    assert to_tensordict({"a": np.zeros((3, 2))}, dtype=torch.float64, batch_size=[3])["a"].dtype == torch.float64
    assert to_torch_tensor(np.arange(3), torch.int64).dtype == torch.int64
    assert to_torch_tensor(np.arange(3), device="meta").device.type == "meta"
    for call in (lambda: to_tensordict(data, [3]), lambda: to_torch_tensor(data, "cpu")):
        with pytest.raises(ConfigError, match=r"must be a torch.dtype; got"):
            call()


def test_action_masks_go_through_a_rollout_buffer() -> None:
    masks = np.array([[[1, 0, 1], [1, 1, 1]], [[0, 0, 1], [1, 1, 0]]])
    buffer = RolloutBuffer(3, VECTOR, spaces.Discrete(3), 2)
    for step in range(3):
        row = (np.zeros((2, 4)), np.array([2, 0]), np.zeros(2), np.zeros(2), np.zeros(2), np.zeros(2))
        if step < 2:
            buffer.add(*row, None, None, None, None, masks[step])  # positional, as published
        else:
            buffer.add(*row)
    stored = buffer.get()["action_masks"]
    assert stored.tolist() == [*masks.reshape(4, 3).astype(bool).tolist(), [True] * 3, [True] * 3]
    assert buffer.get_tensor_batch()["action_masks"].dtype == torch.bool
    plain = RolloutBuffer(1, VECTOR, spaces.Discrete(3), 1)
    plain.add(np.zeros(4), 1, 0.0, False, 0.0, 0.0)
    assert "action_masks" not in plain.get()


# --- networks --------------------------------------------------------------------------------------------------------


def test_a_sample_input_gives_convolutions_in_space_their_depth() -> None:
    images = torch.rand(2, 3, 5, 8, 8, generator=torch.Generator().manual_seed(0))
    net = EvolvableCNN((3, 8, 8), 4, [8], [3], [1], sample_input=images[:1], block_type="Conv3d", random_seed=1)
    whole = EvolvableCNN((3, 5, 8, 8), 4, [8], [[5, 3, 3]], [1], block_type="Conv3d", random_seed=1)
    assert torch.equal(net(images), whole(images))
    two = EvolvableCNN((3, 8, 8), 4, [8, 8], [3, 3], [1, 1], images[:1, :, :2], block_type="Conv3d")  # two agents
    assert (two.kernel_size, two.clone().kernel_size) == ([[2, 3, 3], [1, 3, 3]],) * 2
    assert net(images).shape == (2, 4)
    assert torch.equal(net.clone()(images), net(images))
    flat = EvolvableCNN((3, 8, 8), 4, [8], [3], [1], images[:1, :, 0], random_seed=1)
    assert torch.equal(flat(images[:, :, 0]), EvolvableCNN((3, 8, 8), 4, [8], [3], [1], random_seed=1)(images[:, :, 0]))


def test_gumbel_softmax_is_a_layer_of_networks_of_your_own() -> None:
    assert isinstance(get_activation("GumbelSoftmax"), GumbelSoftmax)
    assert get_activation("GumbelSoftmax")(torch.zeros(3, 4)).sum(-1).tolist() == pytest.approx([1, 1, 1])
    with pytest.raises(ConfigError, match=r"draws noise in every pass.*fix: 'Softmax'"):
        EvolvableMLP(4, 3, [8], output_activation="GumbelSoftmax")


# --- algorithms of one's own -----------------------------------------------------------------------------------------


class Plain(RLAlgorithm):
    """An algorithm whose constructor hands everything on by position, as published."""

    def __init__(self, observation_space: Any, action_space: Any, normalize: bool | None = True) -> None:
        super().__init__(observation_space, action_space, 3, None, "cpu", None, None, normalize, "Plain One")


def test_normalize_images_is_an_argument_of_the_base() -> None:
    assert [Plain(VECTOR, BOX, given).normalize_images for given in (True, False)] == [True, False]
    agent = Plain(VECTOR, BOX, None)
    assert (agent.algo, agent.index, hasattr(agent, "normalize_images")) == ("Plain One", 3, False)


class Foreign:
    """An agent that is no subclass of ours."""

    index = 0

    def learn(self, experiences: Any) -> float:
        return 0.0


def test_offline_training_names_an_agent_that_is_no_subclass() -> None:
    env = make_vect_envs("CartPole-v1", num_envs=1, should_async_vector=False)
    data = {"observations": np.zeros((5, 4), np.float32), "actions": np.zeros(5, int), "rewards": np.zeros(5),
            "terminals": np.zeros(5, bool), "next_observations": np.zeros((5, 4), np.float32)}  # fmt: skip
    good = CQN(env.single_observation_space, env.single_action_space)
    with pytest.raises(
        AlgorithmError, match=r"train_offline: Foreign lacks get_action, .*fix: add them, or class Foreign"
    ):
        train_offline(env, "CartPole-v1", data, "CQN", [good, Foreign()], ReplayBuffer(max_size=100), verbose=False)
    env.close()


def test_a_device_is_kept_as_it_was_given() -> None:
    """Published: a string or a torch.device, kept as well."""
    assert DQN(VECTOR, spaces.Discrete(2), device="cpu").device == "cpu"
    assert DQN(VECTOR, spaces.Discrete(2), device=torch.device("cpu")).device == torch.device("cpu")
    assert DQN(VECTOR, spaces.Discrete(2), device="cpu", accelerator=object()).device == torch.device("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isclose(PPO(VECTOR, BOX).action_std_init, 0.6)


def test_graphs_of_cuda_are_off() -> None:
    assert [DQN(VECTOR, spaces.Discrete(2), cudagraphs=on).capturable for on in (False, True)] == [False, False]
