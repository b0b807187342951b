"""Files of algorithms of one's own: modules that read spaces by themselves, constructors with required arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import optim

from agilerl.algorithms import DQN, IPPO, PPO, TD3
from agilerl.algorithms.base.copies import plain_spec
from agilerl.algorithms.core import EvolvableAlgorithm, NetworkGroup, OptimizerWrapper, RLAlgorithm
from agilerl.core.checkpoint import save_tree
from agilerl.errors import RunError
from agilerl.modules.base import DummyEvolvable, EvolvableModule, EvolvableWrapper, ModuleDict
from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.multi_input import EvolvableMultiInput
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.q_networks import QNetwork
from agilerl.wrappers.agent import RSNorm

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


class Around(EvolvableModule):
    """Its constructor takes a module (evolvable or not), a class and a function."""

    def __init__(
        self, inner: Any, final: type = torch.nn.Tanh, scale: Any = torch.neg, device: str = "cpu",
        random_seed: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(device, random_seed)
        self.inner, self.scale, self.final = inner, scale, final()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(self.final(self.inner(x)))


class Within(EvolvableNetwork):
    """A network over an encoder and a module of the script."""

    def __init__(self, observation_space: Any, extra: Any, encoder_config: Any = None) -> None:
        super().__init__(observation_space, encoder_config=encoder_config, latent_dim=8)
        self.extra = extra
        self.build_network_head()

    def build_network_head(self, net_config: Any = None) -> None:
        self.head_net = self.create_mlp(8, 2, "head", net_config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head_net(self.extract_features(x)) + self.extra(x)


def filled_later() -> ModuleDict:
    networks = ModuleDict()
    networks["a_0"], networks["b_0"] = EvolvableMLP(3, 2, [40]), Around(EvolvableMLP(3, 2, [40]))
    return networks


WITH_MODULES = {
    "of a mapping": lambda: ModuleDict({"a_0": EvolvableMLP(3, 2, [40]), "b_0": DummyEvolvable(torch.nn.Linear(3, 2))}),
    "filled later": filled_later,
    "wrapped": lambda: EvolvableWrapper(EvolvableMLP(3, 2, [40])),
    "of one's own": lambda: Around(EvolvableMLP(3, 2, [40])),
    "of torch": lambda: Around(torch.nn.Linear(3, 2)),
    "nested": lambda: ModuleDict({"a_0": Around(Around(EvolvableMLP(3, 2, [40])))}),
    "beside an encoder": lambda: Within(OBS, EvolvableMLP(3, 2, [40])),
    "networks": lambda: ModuleDict({"a_0": QNetwork(OBS, CHOICE, latent_dim=8)}),
}


class Holder(RLAlgorithm):
    """Its network holds modules that were arguments of its constructor."""

    def __init__(
        self, observation_space: Any, action_space: Any, index: int = 0, case: str = "", **kwargs: Any
    ) -> None:
        super().__init__(observation_space, action_space, index, **kwargs)
        self.lr, self.case = 1e-3, case
        self.net = WITH_MODULES[case]()
        self.optimizer = OptimizerWrapper(optim.Adam, self.net, self.lr)
        self.register_network_group(NetworkGroup(self.net, policy=True))

    structure = ("case",)


@pytest.mark.parametrize("case", WITH_MODULES)
def test_modules_handed_to_a_constructor_are_saved_and_loaded(case: str, tmp_path: Path) -> None:
    agent, path = Holder(OBS, CHOICE, case=case), tmp_path / "holder.pt"
    methods = [name for name in agent.net.mutation_methods if name.endswith("add_node")]
    for name in methods[:1]:  # the file holds another architecture than a new agent has
        agent.net.apply_mutation(name, numb_new_nodes=16)
    twin = agent.clone()
    twin.save_checkpoint(path)
    assert json.loads(json.dumps(plain_spec(twin.net.spec()))) == plain_spec(agent.net.spec())
    other = Holder(OBS, CHOICE, case=case)
    other.load_checkpoint(path)
    x = torch.linspace(-1, 1, 6).reshape(2, 3)
    for loaded in (other, Holder.load(path)):
        for mine, theirs in zip(outputs(agent.net, x), outputs(loaded.net, x), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def outputs(net: Any, x: torch.Tensor) -> list[torch.Tensor]:
    return [part(x) for part in (net.values() if isinstance(net, ModuleDict) else [net])]


def test_sizes_of_a_module_in_an_argument_are_checked_before_it_is_built(tmp_path: Path) -> None:
    agent, path = Holder(OBS, CHOICE, case="nested"), tmp_path / "huge.pt"
    state = agent.state()
    state["networks"]["net"]["spec"]["modules"]["a_0"]["inner"]["inner"]["hidden_size"] = [10**6, 10**6]
    save_tree(path, state)
    with pytest.raises(RunError, match="asks for layers of"):
        agent.load_checkpoint(path)


PLANE, IDS = gym.spaces.Box(-1, 1, (2,)), ["a_0", "a_1"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda k: PPO(PLANE, gym.spaces.Discrete(k)), r"action_space Discrete\(1\); this PPO has Discrete\(2\)"),
        (
            lambda k: PPO(gym.spaces.Box(-1, 1, (k,)), gym.spaces.Discrete(2)),
            "holds an agent with observation_space Box",
        ),
        (lambda k: TD3(PLANE, gym.spaces.Box(-k, k, (1,))), r"Box\(-1.0, 1.0, .*; this TD3 has Box\(-2.0, 2.0"),
        (lambda k: RSNorm(DQN(PLANE, gym.spaces.Discrete(k))), r"action_space Discrete\(1\); this DQN has"),
        (lambda k: IPPO([PLANE] * k, [PLANE] * k, IDS[:k]), r"Dict\('a_0': .*; this IPPO has Dict\('a_0': .*'a_1'"),
        (lambda k: IPPO([PLANE] * 2, [gym.spaces.Discrete(k)] * 2, IDS), r"action_spaces Dict.*; this IPPO has Dict"),
    ],
    ids=["choices", "width", "bounds", "wrapped", "agents", "team"],
)
def test_a_checkpoint_of_other_spaces_is_refused_and_both_are_named(make: Any, text: str, tmp_path: Path) -> None:
    path, other = tmp_path / "agent.pt", make(2)
    make(1).save_checkpoint(path)
    with pytest.raises(RunError, match=text):
        other.load_checkpoint(path)
    other.save_checkpoint(path)
    make(2).load_checkpoint(path)


def test_bounds_of_observations_may_differ_between_checkpoint_and_agent(tmp_path: Path) -> None:
    PPO(gym.spaces.Box(-2, 2, (2,)), gym.spaces.Discrete(2)).save_checkpoint(tmp_path / "agent.pt")
    PPO(PLANE, gym.spaces.Discrete(2)).load_checkpoint(tmp_path / "agent.pt")
