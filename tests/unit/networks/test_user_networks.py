"""Networks that hold the user's own code: files, copies, evolution; and channel mutations that step down."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from agilerl.algorithms import DQN, TD3
from agilerl.errors import ConfigError
from agilerl.hpo import architecture
from agilerl.hpo.architecture import ArchitectureOptions, bounded
from agilerl.hpo.effects import Probe
from agilerl.hpo.mutation import Mutations
from agilerl.modules.base import EvolvableModule
from agilerl.modules.dummy import DummyEvolvable
from agilerl.networks.observations import sample_batch
from agilerl.networks.q_networks import QNetwork

VECTOR, CHOICE, BOX = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2), spaces.Box(-1, 1, (2,), np.float32)


class Sines(EvolvableModule):
    """An encoder of the user's own: sines of a linear map."""

    def __init__(
        self, num_inputs: int, num_outputs: int, frequency: float = 1.0, device: Any = "cpu", random_seed: Any = None
    ) -> None:
        super().__init__(device, random_seed)
        self.num_inputs, self.num_outputs, self.frequency = num_inputs, num_outputs, frequency
        self.linear = nn.Linear(num_inputs, num_outputs).to(device)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.frequency * self.linear(x))


def batch(action: Any, count: int = 8) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    obs, next_obs = rng.uniform(-1, 1, (2, count, 3)).astype(np.float32)
    return {
        "obs": obs,
        "action": action,
        "reward": rng.normal(size=count),
        "next_obs": next_obs,
        "done": np.zeros(count),
    }


OBS = np.random.default_rng(1).uniform(-1, 1, (5, 3)).astype(np.float32)


def with_encoder() -> DQN:
    return DQN(VECTOR, CHOICE, net_config={"encoder_cls": Sines, "encoder_config": {"frequency": 3.0}}, seed=1)


def with_module(seed: int = 1) -> DQN:
    torch.manual_seed(seed)
    network = DummyEvolvable(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)))
    return DQN(VECTOR, CHOICE, actor_network=network, seed=1)


@pytest.mark.parametrize("make", [with_encoder, with_module])
def test_an_agent_reads_its_own_file_back(make: Any, tmp_path: Path) -> None:
    agent = make()
    for _ in range(3):
        agent.learn(batch(np.zeros(8, int)))
    agent.save_checkpoint(tmp_path / "agent.pt")
    other = make() if make is with_encoder else with_module(seed=2)
    other.learn(batch(np.ones(8, int)))
    other.load_checkpoint(tmp_path / "agent.pt")
    for twin in (other, agent.clone(4), pickle.loads(pickle.dumps(agent))):
        with torch.no_grad():
            assert torch.equal(twin.actor(torch.from_numpy(OBS)), agent.actor(torch.from_numpy(OBS)))
    state, read = agent.optimizer.optimizer.state_dict()["state"], other.optimizer.optimizer.state_dict()["state"]
    assert all(torch.equal(state[k]["exp_avg"], read[k]["exp_avg"]) for k in state)
    expected = agent.clone()
    for one in (other, expected):
        one.learn(batch(np.ones(8, int)))
    for p, q in zip(other.actor.parameters(), expected.actor.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_a_file_does_not_bring_code_with_it(tmp_path: Path) -> None:
    with_encoder().save_checkpoint(tmp_path / "agent.pt")
    with pytest.raises(ConfigError, match=r"the encoder is a .*Sines.* encoder_cls="):
        DQN.load(tmp_path / "agent.pt")


def test_evolution_keeps_the_users_encoder() -> None:
    for seed in range(8):
        (agent,) = Mutations(0, 1, 0.5, 1, 0, 0, rand_seed=seed).mutation([with_encoder()])
        assert type(agent.actor.encoder) is Sines
        assert agent.actor.encoder.frequency == 3.0
        assert "encoder" not in str(agent.mut)
        agent.learn(batch(np.zeros(8, int)))


def test_critics_are_rebuilt_with_the_same_encoder(tmp_path: Path) -> None:
    agent = TD3(VECTOR, BOX, net_config={"encoder_cls": Sines}, seed=1)
    agent.save_checkpoint(tmp_path / "agent.pt")
    other = TD3(VECTOR, BOX, net_config={"encoder_cls": Sines}, seed=2)
    other.load_checkpoint(tmp_path / "agent.pt")
    action = torch.zeros(5, 2)
    with torch.no_grad():
        assert torch.equal(other.critic_1(OBS, action), agent.critic_1(OBS, action))


# --- a mutation beyond the bound is tried with half of its channels

IMAGE = spaces.Box(0, 255, (1, 8, 8), np.uint8)


@pytest.mark.parametrize(("method", "amount"), [("encoder.remove_channel", "numb_new_channels"),
                                                ("head_net.remove_node", "numb_new_nodes")])  # fmt: skip
def test_removals_beyond_the_bound_are_halved(method: str, amount: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = {"channel_size": [48], "kernel_size": [3], "stride_size": [1], "min_channel_size": 8}
    policy = QNetwork(IMAGE, CHOICE, encoder_config=net, head_config={"hidden_size": [96], "min_mlp_nodes": 8},
                      random_seed=1)  # fmt: skip
    tried: list[int] = []
    attempt = architecture.attempt

    def spy(*args: Any) -> Any:
        copy, result = attempt(*args)
        tried.append(result[amount])
        return copy, result

    monkeypatch.setattr(architecture, "attempt", spy)
    drawn = sample_batch(IMAGE, 64, np.random.default_rng(0))
    probes, group = {"actor": Probe(drawn[::2], drawn[1::2])}, SimpleNamespace(eval_network="actor", policy=True)
    agent = SimpleNamespace(actor=policy, registry=SimpleNamespace(groups=[group]))
    assert bounded(agent, group, method, ArchitectureOptions(0.0, bound=0.0, agreement=1.0), probes) is None
    assert tried[0] in (8, 16, 32, 64)
    assert tried == [tried[0] // 2**k for k in range(len(tried))]
    assert tried[-1] == 4
    tried.clear()
    found = bounded(agent, group, method, ArchitectureOptions(0.0, bound=1e9, agreement=0.0), probes)
    assert found is not None
    assert len(tried) == 1
