"""DQN: acting, batches, targets by hand, soft updates, what the constructor refuses, networks of the user's own."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.algorithms.dqn import DQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.engine.choose import Reason, bind
from agilerl.engine.parts import MemberBinding
from agilerl.errors import AlgorithmError, ConfigError, ShapeError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.modules.activations import ACTIVATIONS
from agilerl.modules.base import EvolvableModule, MutationType, mutation
from agilerl.modules.mlp import EvolvableMLP
from agilerl.networks.q_networks import QNetwork
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = gym.spaces.Discrete(4)
NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 12}


def agent(**options: Any) -> DQN:
    return DQN(OBS, ACTIONS, **{"seed": 1, "net_config": NET, **options})


def force(dqn: DQN, values: list[float], network: str = "actor") -> None:
    """Make the network answer `values` whatever it sees."""
    with torch.no_grad():
        for parameter in getattr(dqn, network).parameters():
            parameter.zero_()
        getattr(dqn, network).head_net.model.linear_output.bias.copy_(torch.tensor(values))


# --- acting


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, np.ndarray.tolist])
def test_one_observation_and_a_batch_give_a_row_of_integers_each(kind: Any) -> None:
    dqn = agent()
    force(dqn, [0.0, 3.0, 1.0, 2.0])
    one = dqn.get_action(kind(np.zeros(3, np.float32)))
    assert (one.shape, one.dtype, one.tolist()) == ((1,), np.int64, [1])
    assert one[0].is_integer()
    many = dqn.get_action(kind(np.zeros((5, 3), np.float32)), 0.0)
    assert many.tolist() == [1] * 5


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_masks_hold_for_greedy_and_for_random_actions(epsilon: float) -> None:
    dqn = agent()
    force(dqn, [9.0, 3.0, 1.0, 2.0])
    rows = np.array([[0, 0, 1, 1], [0, 1, 0, 0], [1, 1, 1, 1]])
    chosen = np.array([dqn.get_action(np.zeros((3, 3)), epsilon, rows) for _ in range(300)])
    if epsilon == 0:
        assert (chosen == [3, 1, 0]).all()
    for lane in range(3):
        assert set(np.unique(chosen[:, lane])) == (set(np.flatnonzero(rows[lane])) if epsilon else {[3, 1, 0][lane]}), (
            "every legal action, and no other"
        )
    for mask in (rows[0], rows[0].astype(bool), rows[:1], [0, 0, 1, 1]):
        seen = {int(dqn.get_action(np.zeros(3), epsilon, mask)[0]) for _ in range(100)}
        assert seen == ({2, 3} if epsilon else {3})
    shared = dqn.get_action(np.zeros((5, 3)), 0.0, action_mask=rows[1])
    assert shared.tolist() == [1] * 5, "one mask for all rows"


def test_a_mask_without_any_legal_action_is_refused() -> None:
    with pytest.raises(ShapeError, match="allows no action"):
        agent().get_action(np.zeros((2, 3)), 0.0, np.array([[1, 0, 0, 0], [0, 0, 0, 0]]))


def test_epsilon_is_a_probability_of_every_row_and_random_actions_are_uniform() -> None:
    dqn = agent()
    force(dqn, [0.0, 0.0, 5.0, 0.0])
    for epsilon in (0.0, 0.3, 1.0):
        drawn = np.concatenate([dqn.get_action(np.zeros((100, 3)), epsilon) for _ in range(100)])
        share = np.bincount(drawn, minlength=4) / len(drawn)
        expected = np.full(4, epsilon / 4) + (1 - epsilon) * np.eye(4)[2]
        # 10,000 draws: three standard deviations of a share are at most 3 sqrt(0.25 / 10000) = 0.015; seeded.
        np.testing.assert_allclose(share, expected, atol=0.015 if epsilon else 0)
    rows = np.array([dqn.get_action(np.zeros((8, 3)), 0.5) for _ in range(200)]) != 2
    # Independent rows: a correlation over 200 draws has the standard deviation 1 / sqrt(200) = 0.07; three of them.
    assert abs(np.corrcoef(rows[:, 0], rows[:, 1])[0, 1]) < 0.21


def test_exploration_is_reproducible_and_apart_from_global_generators() -> None:
    one, other = agent(), agent()
    np.random.seed(0)
    first = [one.get_action(np.zeros((20, 3)), 0.7).tolist() for _ in range(5)]
    np.random.seed(1)
    torch.manual_seed(5)
    assert [other.get_action(np.zeros((20, 3)), 0.7).tolist() for _ in range(5)] == first
    sibling = one.clone(index=7)
    assert [sibling.get_action(np.zeros((20, 3)), 0.7).tolist() for _ in range(5)] != first


def test_unknown_keywords_of_get_action_are_refused() -> None:
    with pytest.raises(TypeError, match="epsilom"):
        agent().get_action(np.zeros(3), epsilom=0.1)


def test_discrete_observations_are_one_hot() -> None:
    dqn = DQN(gym.spaces.Discrete(5, start=2), ACTIONS, net_config=NET, seed=1)
    inputs = dqn.actor.preprocess(np.array([2, 6, 4]))
    assert inputs.tolist() == np.eye(5)[[0, 4, 2]].tolist()
    q = dqn.actor(np.arange(2, 7)).detach().numpy()
    assert (dqn.get_action(np.arange(2, 7)) == q.argmax(1)).all()
    assert dqn.get_action(3).tolist() == [q[1].argmax()]
    # The table is learned entry by entry: with gamma 0 the value of the state and action seen is pulled to its reward.
    dqn.gamma, dqn.lr = 0.0, 0.05
    for _ in range(200):
        dqn.learn({"obs": torch.tensor([[2], [5]]), "action": torch.tensor([[0], [3]]), "reward": torch.ones(2, 1),
                   "next_obs": torch.tensor([[3], [2]]), "done": torch.zeros(2, 1)})  # fmt: skip
    q = dqn.actor(np.arange(2, 7)).detach()
    torch.testing.assert_close(q[[0, 3], [0, 3]], torch.ones(2), atol=0.02, rtol=0)


# --- learning


def transitions(size: int = 6, seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(size, 3, generator=g),
        "action": torch.randint(0, 4, (size,), generator=g),
        "reward": torch.randn(size, generator=g),
        "next_obs": torch.randn(size, 3, generator=g),
        "done": (torch.rand(size, generator=g) < 0.3).float(),
    }


def test_every_form_of_a_batch_gives_the_same_update() -> None:
    given = transitions()
    columns = {k: v if v.dim() == 2 else v[:, None] for k, v in given.items()}
    memory = ReplayBuffer(max_size=6)
    memory.add(columns)
    stored = memory.storage
    forms: list[Any] = [
        given,
        columns,
        tuple(columns.values()),
        list(given.values()),
        {"state": given["obs"], "next_state": given["next_obs"], **{k: given[k] for k in ("action", "reward", "done")}},
        {k: v.numpy() for k, v in columns.items()},
        {**columns, "action": columns["action"].float(), "done": columns["done"].bool()},
        stored,
    ]
    ends = []
    for form in forms:
        dqn = agent()
        ends.append((dqn.learn(form), torch.cat([p.flatten() for p in dqn.actor.parameters()]).tolist()))
        assert isinstance(ends[-1][0], float)
    assert all(end == ends[0] for end in ends)


def test_networks_and_optimiser_are_the_same_objects_after_learning() -> None:
    dqn = agent()
    before = (dqn.actor, dqn.actor_target, dqn.optimizer, dqn.optimizer.optimizer)
    dqn.learn(transitions())
    assert all(a is b for a, b in zip(before, (dqn.actor, dqn.actor_target, dqn.optimizer, dqn.optimizer.optimizer),
                                      strict=True))  # fmt: skip


@pytest.mark.parametrize("plain", [False, True])
def test_targets_by_hand(plain: bool) -> None:
    # Online values (1, 4, 2, 3), target network (10, 20, 40, 30), gamma 0.5, reward 6. DQN: 6 + 0.5 * 40 = 26.
    # Double: the online network selects action 1, valued 20: 6 + 0.5 * 20 = 16. Terminated: 6.
    # Loss on action 3 (value 3): the mean of (26 - 3)^2 and (6 - 3)^2, or of 13^2 and 3^2.
    batch = {"obs": torch.zeros(2, 3), "action": torch.tensor([3, 3]), "reward": torch.tensor([6.0, 6.0]),
             "next_obs": torch.zeros(2, 3), "done": torch.tensor([0.0, 1.0])}  # fmt: skip
    for double, expected in ((False, (23.0**2 + 9) / 2), (True, (13.0**2 + 9) / 2)):
        dqn = agent(gamma=0.5, double=double, tau=0.25, lr=0.1)
        force(dqn, [1.0, 4.0, 2.0, 3.0])
        force(dqn, [10.0, 20.0, 40.0, 30.0], "actor_target")
        assert float(dqn.learn_batch(dqn.make_batch(batch), plain=plain).loss.detach()) == expected
        # All inputs of the output layer are 0: only the bias of action 3 has a gradient, and Adam's first step is lr.
        bias = dqn.actor.head_net.model.linear_output.bias
        torch.testing.assert_close(bias.detach(), torch.tensor([1.0, 4.0, 2.0, 3.1]))
        target = dqn.actor_target.head_net.model.linear_output.bias
        expected_target = torch.tensor([0.75 * 10 + 0.25, 0.75 * 20 + 1, 0.75 * 40 + 0.5, 0.75 * 30 + 0.25 * 3.1])
        torch.testing.assert_close(target, expected_target)


def test_soft_update_moves_the_target_by_tau() -> None:
    dqn = agent(tau=0.3)
    force(dqn, [1.0, 2.0, 3.0, 4.0])
    force(dqn, [11.0, 12.0, 13.0, 14.0], "actor_target")
    dqn.soft_update()
    torch.testing.assert_close(dqn.actor_target.head_net.model.linear_output.bias, torch.tensor([8.0, 9.0, 10.0, 11.0]))
    assert dqn.actor.head_net.model.linear_output.bias.tolist() == [1, 2, 3, 4]
    dqn.tau = 1.0
    dqn.soft_update()
    for p, q in zip(dqn.actor.parameters(), dqn.actor_target.parameters(), strict=True):
        assert torch.equal(p, q)


def test_the_target_starts_as_a_copy_and_is_never_trained_by_gradient() -> None:
    dqn = agent(tau=1e-3)
    assert not any(p.requires_grad for p in dqn.actor_target.parameters())
    for p, q in zip(dqn.actor.parameters(), dqn.actor_target.parameters(), strict=True):
        assert torch.equal(p, q)
        assert p.data_ptr() != q.data_ptr()
    assert {id(p) for g in dqn.optimizer.param_groups for p in g["params"]} == {id(p) for p in dqn.actor.parameters()}


# --- construction


def test_published_attributes_and_defaults() -> None:
    dqn = DQN(OBS, ACTIONS)
    fresh = {"mut": None, "index": 0, "scores": [], "fitness": [], "steps": [0], "device": "cpu", "accelerator": None,
             "algo": "DQN", "batch_size": 64, "lr": 1e-4, "learn_step": 5, "gamma": 0.99, "tau": 1e-3, "double": False,
             "training": True, "observation_space": OBS, "action_space": ACTIONS}  # fmt: skip
    assert {name: getattr(dqn, name) for name in fresh} == fresh
    assert isinstance(dqn.criterion, nn.MSELoss)
    assert type(dqn.optimizer.optimizer) is torch.optim.Adam
    assert dqn.registry.policy() == "actor"
    assert dqn.registry.groups[0].shared_networks == ["actor_target"]
    assert set(dqn.evolvable_attributes(networks_only=True)) == {"actor", "actor_target"}
    dqn.clean_up()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"batch_size": 0}, AlgorithmError, "batch_size must be an integer of at least 1; got 0"),
        ({"batch_size": 2.5}, AlgorithmError, "batch_size"),
        ({"batch_size": True}, AlgorithmError, "batch_size"),
        ({"learn_step": -1}, AlgorithmError, "learn_step"),
        ({"lr": 0.0}, AlgorithmError, "lr must be above 0"),
        ({"lr": float("nan")}, AlgorithmError, "lr must be above 0"),
        ({"gamma": 1.01}, AlgorithmError, r"gamma must be in \[0, 1\]"),
        ({"tau": 0.0}, AlgorithmError, r"tau must be in \(0, 1\]"),
        ({"actor_network": "mlp"}, TypeError, "'actor_network' must be an EvolvableModule; got str"),
        ({"actor_network": nn.Linear(3, 4)}, TypeError, "'actor_network' must be an EvolvableModule; got Linear"),
        ({"net_config": {"encoder_config": {"hiden_size": [4]}}}, ConfigError, "Did you mean 'hidden_size'"),
    ],
    ids=str,
)
def test_bad_values_are_named(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        agent(**options)


# --- networks of the user's own


class Sinus(EvolvableModule):
    """An encoder with a forward of its own: it does not stack, but it evolves."""

    def __init__(self, num_inputs: int, num_outputs: int, width: int = 8, device: str = "cpu",
                 random_seed: int | None = None) -> None:  # fmt: skip
        super().__init__(device, random_seed)
        self.num_inputs, self.num_outputs, self.width = num_inputs, num_outputs, width
        self.recreate_network()

    def recreate_network(self, **kwargs: Any) -> None:
        old = dict(self.named_parameters())
        self.first = nn.Linear(self.num_inputs, self.width)
        self.second = nn.Linear(self.width, self.num_outputs)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name in old:
                    block = tuple(slice(0, min(a, b)) for a, b in zip(parameter.shape, old[name].shape, strict=True))
                    parameter[block] = old[name][block]

    def forward(self, x: Any) -> Tensor:
        return self.second(torch.sin(self.first(torch.as_tensor(x))))

    @mutation(MutationType.NODE)
    def widen(self, numb_new_nodes: int | None = None) -> dict[str, int]:
        count = 4 if numb_new_nodes is None else numb_new_nodes
        self.width += count
        return {"numb_new_nodes": count}


class OwnNetwork(Sinus):
    """A whole Q-network without encoder and head."""

    def forward(self, x: Any) -> Tensor:
        x = torch.as_tensor(x, dtype=torch.float32)
        return super().forward(x if x.dim() > 1 else x[None])


@pytest.mark.parametrize("kind", ["encoder_cls", "actor_network", "evolvable mlp"])
def test_a_network_that_does_not_stack_trains_sequentially_and_evolves(kind: str) -> None:
    space, actions = gym.spaces.Box(-10, 10, (4,), np.float32), gym.spaces.Discrete(2)
    options: dict[str, Any] = {
        "encoder_cls": {"net_config": {"encoder_cls": Sinus, "latent_dim": 8}},
        "actor_network": {"actor_network": OwnNetwork(4, 2, random_seed=1)},
        "evolvable mlp": {"actor_network": EvolvableMLP(4, 2, [16], random_seed=1)},
    }[kind]
    config = HyperparameterConfig(lr=RLParameter(1e-4, 1e-1))
    pop = [
        DQN(space, actions, index=i, hp_config=config, batch_size=8, learn_step=2, lr=1e-2, seed=i, **options).clone()
        for i in range(4)
    ]
    assert all(bind(a) is Reason.NOT_DENSE for a in pop)
    assert pop[0].get_action(np.zeros(4, np.float32)).shape == (1,)
    first = [p.detach().clone() for p in pop[0].actor.parameters()]
    plans: list[Any] = []
    sink = type("Sink", (), {
        "start": lambda self, plan, founders: plans.append(plan), "progress": lambda *a: None,
        "generation": lambda *a: None, "message": lambda *a: None, "close": lambda *a: None,
    })()  # fmt: skip
    env = make_vect_envs("CartPole-v1", num_envs=4)
    trained, fitness = train_off_policy(
        env, "CartPole-v1", pop=pop, memory=ReplayBuffer(500), max_steps=160, evo_steps=40, eval_steps=20,
        tournament=TournamentSelection(2, True, 4, seed=1), mutation=Mutations(0, 1, 0.2, 0, 0, 0, rand_seed=2),
        verbose=False, seed=1, sinks=[sink],
    )  # fmt: skip
    env.close()
    assert plans[0].learner == "sequential"
    assert any("does not stack" in note for note in plans[0].notes)
    assert np.shape(fitness) == (4, 4)
    assert any(not torch.equal(p, q) for p, q in zip(pop[0].actor.parameters(), first, strict=True)), "it learned"
    assert {a.mut for a in trained} & {"widen", "encoder.widen", "add_node", "add_layer", "remove_node"}, [
        a.mut for a in trained
    ]
    for dqn in trained:
        assert [p.shape for p in dqn.actor.parameters()] == [p.shape for p in dqn.actor_target.parameters()]
        live = {id(p) for p in dqn.actor.parameters()}
        assert {id(p) for g in dqn.optimizer.param_groups for p in g["params"]} == live


def test_a_q_network_given_from_outside_is_used_as_it_is() -> None:
    network = QNetwork(OBS, ACTIONS, random_seed=9, **NET)
    dqn = DQN(OBS, ACTIONS, actor_network=network)
    assert dqn.actor is network
    assert isinstance(bind(dqn), MemberBinding)


@pytest.mark.parametrize("name", [*ACTIVATIONS])
def test_every_activation_learns_on_the_rows_or_on_its_modules_as_plain_torch_does(name: str) -> None:
    hidden = name if ACTIVATIONS[name].pointwise else "ReLU"
    net = {
        "encoder_config": {"hidden_size": [8], "activation": hidden},
        "head_config": {"hidden_size": [8], "activation": hidden, "output_activation": name},
    }
    box = gym.spaces.Box(-1, 1, (3,), np.float64)
    one, other = (DQN(box, gym.spaces.Discrete(2), net_config=net, lr=1e-2, seed=3) for _ in range(2))
    for agent in (one, other):
        agent.actor.double()
        agent.actor_target.double()
    rng = np.random.default_rng(0)
    for _ in range(20):
        batch = {
            "obs": rng.normal(size=(16, 3)),
            "action": rng.integers(2, size=16),
            "reward": rng.normal(size=16),
            "next_obs": rng.normal(size=(16, 3)),
            "done": rng.random(16) < 0.2,
        }
        one.learn(batch)
        other.learn_batch(other.make_batch(batch), plain=True)
    for mine, plain in zip(one.actor.parameters(), other.actor.parameters(), strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-10, atol=1e-10)


def test_a_greedy_choice_of_ones_own_is_the_one_that_exploration_falls_back_to() -> None:
    class Least(DQN):
        """It takes the action of least value."""

        def greedy(self, outputs: torch.Tensor, mask: np.ndarray | None = None) -> np.ndarray:
            return super().greedy(-outputs, mask)

    agent, values = (
        Least(gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2), seed=1),
        torch.tensor([[1.0, 2.0], [5.0, 3.0]]),
    )
    draws = (np.array([0.5, 0.5]), np.array([0.0, 0.0]))
    np.testing.assert_array_equal(agent.explore(values, draws, 0.0), [0, 1])
    np.testing.assert_array_equal(agent.greedy(values, np.array([[0, 1], [1, 1]])), [1, 1])
