"""Files of algorithms of one's own: modules that read spaces by themselves, constructors with required arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import optim

from agilerl.algorithms.core import EvolvableAlgorithm, NetworkGroup, OptimizerWrapper, RLAlgorithm
from agilerl.errors import RunError
from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.multi_input import EvolvableMultiInput

PARTS = gym.spaces.Dict({"low": gym.spaces.Box(-1, 1, (3,), np.float32), "kind": gym.spaces.Discrete(4)})
OBS, CHOICE = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)


class Mixed(EvolvableAlgorithm):
    """Its only network reads a Dict space by itself."""

    def __init__(self, index: int = 0, width: int = 8, device: str = "cpu", accelerator: Any = None) -> None:
        super().__init__(index, device=device, accelerator=accelerator)
        self.lr, self.width = 1e-3, width
        self.net = EvolvableMultiInput(PARTS, 2, device=device, random_seed=3)
        self.optimizer = OptimizerWrapper(optim.Adam, self.net, self.lr)
        self.register_network_group(NetworkGroup(self.net, policy=True))


class Demanding(RLAlgorithm):
    """Its constructor has no defaults."""

    def __init__(self, observation_space: Any, action_space: Any, index: int, width: int, lr: float) -> None:
        super().__init__(observation_space, action_space, index)
        self.width, self.lr = width, lr
        self.net = EvolvableMLP(3, 2, hidden_size=[width])
        self.optimizer = OptimizerWrapper(optim.Adam, self.net, self.lr)
        self.register_network_group(NetworkGroup(self.net, policy=True))


class Secretive(Demanding):
    """It does not keep what its constructor needs."""

    def __init__(self, observation_space: Any, action_space: Any, index: int, secret: int) -> None:
        super().__init__(observation_space, action_space, index, 8, 1e-3)


def test_a_module_that_reads_spaces_by_itself_is_saved_and_loaded(tmp_path: Path) -> None:
    agent, path = Mixed(), tmp_path / "mixed.pt"
    agent.save_checkpoint(path)
    inputs = {"low": torch.ones(5, 3), "kind": torch.eye(4)[[0, 1, 2, 3, 0]]}
    for twin in (Mixed.load(path), Mixed(2)):
        twin.load_checkpoint(path)
        assert twin.net.spec() == agent.net.spec()
        torch.testing.assert_close(twin.net(inputs), agent.net(inputs), rtol=0, atol=0)
    again = Mixed(3)
    again.load_run_state(agent.run_state())
    torch.testing.assert_close(again.net(inputs), agent.net(inputs), rtol=0, atol=0)


def test_arguments_that_a_constructor_requires_are_read_from_the_file(tmp_path: Path) -> None:
    agent, path = Demanding(OBS, CHOICE, 7, 12, 3e-3), tmp_path / "demanding.pt"
    agent.save_checkpoint(path)
    loaded = Demanding.load(path)
    assert (loaded.index, loaded.width, loaded.lr, loaded.optimizer.lr) == (7, 12, 3e-3, 3e-3)
    assert (loaded.observation_space, loaded.action_space) == (OBS, CHOICE)
    torch.testing.assert_close(loaded.net(torch.ones(2, 3)), agent.net(torch.ones(2, 3)), rtol=0, atol=0)


def test_an_argument_that_no_file_holds_is_named(tmp_path: Path) -> None:
    Secretive(OBS, CHOICE, 1, 99).save_checkpoint(tmp_path / "secretive.pt")
    with pytest.raises(RunError, match=r"does not hold the secret. fix: make the agent, then load_checkpoint"):
        Secretive.load(tmp_path / "secretive.pt")
