"""Small published helpers and names, each with a value worked out by hand."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import agilerl
from agilerl.components.segment_tree import MinSegmentTree, SegmentTree, SumSegmentTree
from agilerl.errors import ConfigError
from agilerl.networks import QNetwork
from agilerl.utils.algo_utils import concatenate_spaces
from agilerl.utils.evolvable_networks import get_default_encoder_config
from agilerl.utils.utils import (
    _check_box2d_available,
    aggregate_metrics_across_gpus,
    consolidate_mutations,
    create_population,
    gather_tensor,
    get_env_defined_actions,
    init_wandb,
)

# --- flags -----------------------------------------------------------------------------------------------------------


def test_flags_of_optional_packages_say_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"HAS_LLM_DEPENDENCIES", "HAS_LIGER_KERNEL", "HAS_VLLM", "HAS_DEEPSPEED"} <= set(dir(agilerl))
    monkeypatch.setattr(agilerl, "find_spec", lambda name: None if name == "peft" else object())
    assert (agilerl.HAS_LLM_DEPENDENCIES, agilerl.HAS_VLLM) == (False, True)
    monkeypatch.setattr(agilerl, "find_spec", lambda name: object())
    assert agilerl.HAS_LLM_DEPENDENCIES is True


def test_environments_of_box2d_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from agilerl.utils import utils

    monkeypatch.setattr(utils, "find_spec", lambda name: None)
    _check_box2d_available("CartPole-v1")
    with pytest.raises(ImportError, match="needs Box2D"):
        _check_box2d_available("LunarLander-v2")
    monkeypatch.setattr(utils, "find_spec", lambda name: object())
    _check_box2d_available("LunarLander-v2")


def test_aliases_of_types_are_types() -> None:
    alias = importlib.import_module("agilerl.typing")
    assert isinstance(torch.device("cpu"), alias.DeviceType)
    assert isinstance("cpu", alias.DeviceType)
    assert isinstance(spaces.Discrete(2), alias.SupportedActionSpaces)
    assert not isinstance(spaces.Dict(a=spaces.Discrete(2)), alias.SupportedActionSpaces)
    assert isinstance(gym.make("CartPole-v1"), alias.GymEnvType)
    assert alias.ArrayDict == dict[str, np.ndarray]
    assert [name for name in alias.__all__ if not hasattr(alias, name)] == []
    assert importlib.import_module("agilerl.components").MultiAgentReplayBuffer is not None


# --- segment trees ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [1, 4, 5, 8])
def test_segment_trees_join_every_range_as_a_loop_does(capacity: int) -> None:
    values = np.random.default_rng(capacity).uniform(0, 3, capacity)
    total, least = SumSegmentTree(capacity), MinSegmentTree(capacity)
    # Digits side by side: associative, not commutative.
    words = SegmentTree(capacity, lambda a, b: float(f"{int(a) or ''}{int(b) or ''}" or 0), 0.0)
    for index, value in enumerate(values):
        total[index] = least[index] = value
        words[index] = index + 1
    assert total[capacity - 1] == values[-1]
    for start in range(capacity):
        for end in range(start + 1, capacity + 1):
            assert total.sum(start, end) == pytest.approx(values[start:end].sum())
            assert least.min(start, end) == values[start:end].min()
            assert words.operate(start, end) == int("".join(str(i + 1) for i in range(start, end)))
    assert total.sum() == pytest.approx(values.sum())
    if capacity > 1:
        assert total.sum(0, -1) == pytest.approx(values[:-1].sum())


def test_a_sum_tree_finds_the_owner_of_a_prefix_and_refuses_what_is_outside() -> None:
    tree = SumSegmentTree(4)
    for index, value in enumerate([1.0, 0.0, 2.0, 1.0]):
        tree[index] = value
    assert [tree.retrieve(x) for x in (0.0, 0.99, 1.0, 2.99, 3.0)] == [0, 0, 2, 2, 3]
    assert MinSegmentTree(4).min() == np.inf
    for call in (lambda: tree.retrieve(4.0), lambda: tree.sum(3, 2), lambda: tree.__setitem__(4, 1.0)):
        with pytest.raises(ConfigError):
            call()


# --- spaces and networks ---------------------------------------------------------------------------------------------


def test_spaces_side_by_side() -> None:
    box, wide = spaces.Box(-1, 1, (2,), np.float32), spaces.Box(0, 5, (3,), np.float32)
    joined = concatenate_spaces([box, wide])
    assert (joined.shape, joined.low.tolist(), joined.high.tolist()) == ((5,), [-1, -1, 0, 0, 0], [1, 1, 5, 5, 5])
    assert concatenate_spaces([spaces.Discrete(2), spaces.Discrete(3)]) == spaces.Discrete(5)
    image = spaces.Box(0, 255, (3, 8, 8), np.uint8)
    assert concatenate_spaces([image, image]) == image
    pair = spaces.Dict(a=box, b=spaces.MultiDiscrete([2, 3]))
    assert concatenate_spaces([pair, pair]) == spaces.Dict(
        a=spaces.Box(-1, 1, (4,), np.float32), b=spaces.MultiDiscrete([2, 3, 2, 3])
    )
    both = spaces.Tuple((spaces.MultiBinary(2), spaces.Discrete(2)))
    assert concatenate_spaces([both, both]) == spaces.Tuple((spaces.MultiBinary(4), spaces.Discrete(4)))
    with pytest.raises(ConfigError, match="of one kind"):
        concatenate_spaces([box, spaces.Discrete(2)])


@pytest.mark.parametrize(
    ("space", "options"),
    [
        (spaces.Box(-1, 1, (4,), np.float32), {}),
        (spaces.Box(-1, 1, (4,), np.float32), {"simba": True}),
        (spaces.Box(-1, 1, (4,), np.float32), {"recurrent": True}),
        (spaces.Box(0, 255, (3, 40, 40), np.uint8), {}),
        (spaces.Dict(a=spaces.Box(-1, 1, (4,), np.float32)), {}),
    ],
)
def test_the_default_encoder_is_the_one_without_a_configuration(space: Any, options: dict[str, bool]) -> None:
    config = get_default_encoder_config(space, layer_norm=False, **options)
    with_it = QNetwork(space, spaces.Discrete(2), encoder_config=config, random_seed=1, **options)
    without = QNetwork(space, spaces.Discrete(2), random_seed=1, **options)
    assert {k: tuple(v.shape) for k, v in with_it.state_dict().items()} == {
        k: tuple(v.shape) for k, v in without.state_dict().items()
    }
    assert type(with_it.encoder) is type(without.encoder)


def test_dense_encoders_have_layer_norm_by_default() -> None:
    assert get_default_encoder_config(spaces.Box(-1, 1, (4,), np.float32))["layer_norm"] is True


# --- infos, processes, trackers --------------------------------------------------------------------------------------


def test_actions_that_the_environment_chooses() -> None:
    info = {"a": {"env_defined_actions": np.array([1])}, "b": {}, "c": {"env_defined_action": 2}}
    found = get_env_defined_actions(info, ["a", "b", "c", "d"])
    assert found == {"a": np.array([1]), "b": None, "c": 2, "d": None}
    assert get_env_defined_actions({"a": {"action_mask": [1]}}, ["a"]) is None


class TwoProcesses:
    """An accelerator of two processes, the other of which has twice as much."""

    num_processes, device = 2, torch.device("cpu")

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor, 2 * tensor])


def test_metrics_of_several_processes() -> None:
    accelerator = TwoProcesses()
    assert gather_tensor(torch.tensor([1.0, 3.0]), accelerator).tolist() == [[1.0, 3.0], [2.0, 6.0]]
    assert aggregate_metrics_across_gpus(accelerator, torch.tensor([1.0, 3.0])) == 3.0
    assert aggregate_metrics_across_gpus(accelerator, 2) == 3.0
    assert aggregate_metrics_across_gpus(None, 2.0) == 2.0


def test_mutated_hyperparameters_become_those_of_process_0(monkeypatch: pytest.MonkeyPatch) -> None:
    from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter

    accelerate = pytest.importorskip("accelerate.utils")
    population = create_population(
        "DQN", observation_space=spaces.Box(-1, 1, (4,), np.float32), action_space=spaces.Discrete(2),
        population_size=2, hp_config=HyperparameterConfig(lr=RLParameter(min=1e-5, max=1e-1)),
    )  # fmt: skip
    consolidate_mutations(population)  # one process: nothing to send
    for agent in population:
        agent.accelerator = TwoProcesses()
    sent: list[Any] = []

    def broadcast(told: list[Any], from_process: int) -> list[Any]:
        sent.extend(told)
        return [("lr", {"lr": 0.5}), ("None", {"lr": 0.25})]

    monkeypatch.setattr(accelerate, "broadcast_object_list", broadcast)
    before = [(agent.mut, {"lr": agent.lr}) for agent in population]
    consolidate_mutations(population)
    assert sent == before
    assert [(agent.mut, agent.lr) for agent in population] == [("lr", 0.5), ("None", 0.25)]


def test_a_wandb_run_begins_in_the_main_process_and_hides_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []
    module = types.ModuleType("wandb")
    module.login = lambda **kwargs: calls.append(("login", kwargs))  # type: ignore[attr-defined]
    module.init = lambda **kwargs: calls.append(("init", kwargs))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    init_wandb("DQN", "CartPole-v1", {"LR": 0.1, "API_KEY": "abc"}, {"NO_MUT": 0.4}, "key", addl_args={"tags": ["x"]})
    assert [name for name, _ in calls] == ["login", "init"]
    assert calls[0][1] == {"key": "key"}
    started = calls[1][1]
    assert (started["project"], started["tags"]) == ("AgileRL", ["x"])
    assert started["name"].startswith("CartPole-v1-EvoHPO-DQN-")
    assert started["config"]["LR"], started["config"]["NO_MUT"] == (0.1, 0.4)
    assert "abc" not in str(started["config"])
    other = types.SimpleNamespace(is_main_process=False, wait_for_everyone=lambda: calls.append(("wait", {})))
    init_wandb("DQN", "CartPole-v1", accelerator=other)
    assert [name for name, _ in calls] == ["login", "init", "wait"]
