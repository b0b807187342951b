"""Registration: names are paths, assigning does it, and a plain counter pays nothing for that."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from torch import nn, optim

from agilerl.algorithms.base.registry import resolve
from agilerl.algorithms.core import EvolvableAlgorithm, LLMAlgorithm, NetworkGroup
from agilerl.algorithms.core.optimizer_wrapper import OptimizerWrapper
from agilerl.errors import AlgorithmError
from agilerl.modules.mlp import EvolvableMLP


class Pair(EvolvableAlgorithm):
    """Two policies in one attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.lr = 1e-3
        self.actors = nn.ModuleDict({name: EvolvableMLP(2, 2, hidden_size=[4]) for name in ("speaker_0", "listener_0")})
        self.optimizer = OptimizerWrapper(optim.Adam, list(self.actors.values()), self.lr, lr_name="lr")
        for network in self.actors.values():
            self.register_network_group(NetworkGroup(network, policy=True))


def test_names_are_paths_to_what_an_attribute_holds() -> None:
    pair = Pair()
    assert pair.registry.policies == ("actors.speaker_0", "actors.listener_0")
    assert pair.registry.optimizers[0].networks == ["actors.speaker_0", "actors.listener_0"]
    assert resolve(pair, "actors.listener_0") is pair.actors["listener_0"]
    assert resolve(pair, "optimizer.lr") == 1e-3
    assert pair.policy_module() is pair.actors["speaker_0"]
    with pytest.raises((AttributeError, KeyError)):
        resolve(pair, "actors.nobody")


def calls_of(act: Any) -> int:
    """Python functions that are entered."""
    seen = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: seen.append(frame.f_code.co_name) if event == "call" else None)
    try:
        act()
    finally:
        sys.setprofile(before)
    return len([name for name in seen if name != "<lambda>" and name != "act"])


@pytest.mark.parametrize("value", [3, 0.5, "add_layer", None, [1], np.zeros(2)])
def test_a_plain_attribute_is_assigned_in_one_call(value: Any) -> None:
    pair = Pair()

    def act() -> None:
        pair.learn_counter = value  # type: ignore[attr-defined]

    assert calls_of(act) == 1
    assert pair.learn_counter is value  # type: ignore[attr-defined]


def test_a_learning_rate_still_reaches_its_optimiser() -> None:
    pair = Pair()
    pair.lr = 0.25
    assert [group["lr"] for group in pair.optimizer.optimizer.param_groups] == [0.25, 0.25]
    pair.lr = np.float32(0.5)
    assert pair.optimizer.lr == 0.5


def test_the_base_of_language_algorithms_says_what_it_stands_on() -> None:
    with pytest.raises(AlgorithmError, match=r"needs one base model.*got neither\. fix: model_name="):
        LLMAlgorithm()
