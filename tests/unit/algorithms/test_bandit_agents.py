"""Neural bandits by themselves: acting, learning, files, mutations, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import agilerl
from agilerl.algorithms import NeuralTS, NeuralUCB, find_algorithm
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.errors import AlgorithmError, ConfigError, ShapeError
from agilerl.hpo.mutation import Mutations
from agilerl.modules.mlp import EvolvableMLP
from agilerl.networks.bandits import RewardNetwork
from agilerl.wrappers.learning import BanditEnv

NET = {"latent_dim": 8, "encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}}
CONTEXT, ARMS = spaces.Box(-3, 3, (6,)), spaces.Discrete(3)


def make(cls: Any = NeuralUCB, **more: Any) -> Any:
    return cls(CONTEXT, ARMS, net_config=NET, seed=0, **more)


def bandit(seed: int = 0) -> BanditEnv:
    """Three classes by the larger of two features, and whether both are negative."""
    x = np.random.default_rng(0).standard_normal((80, 2))
    return BanditEnv(x, np.where((x < 0).all(1), 2, x.argmax(1)), seed=seed)


def played(agent: Any, rounds: int) -> list[float]:
    """The published loop: choose, store the context of the chosen arm, learn."""
    env, memory, rewards = bandit(), ReplayBuffer(max_size=1_000, seed=0), []
    contexts = env.reset()
    for _ in range(rounds):
        arm = agent.get_action(contexts)
        later, reward = env.step(arm)
        memory.add({"obs": contexts[arm][None], "reward": np.array([reward], np.float32)})
        if len(memory) >= agent.batch_size:
            agent.learn(memory.sample(agent.batch_size))
        contexts = later
        rewards.append(reward)
    return rewards


@pytest.mark.parametrize("name", ["neural ucb", "NeuralTS"])
def test_the_published_loop_learns(name: str) -> None:
    agent = make(find_algorithm(name), lr=1e-2, batch_size=16, gamma=0.3)
    rewards = played(agent, 240)
    assert np.mean(rewards[-60:]) > 0.75 > np.mean(rewards[:40])
    assert agent.rounds == 240
    assert agent.test(bandit(1), max_steps=50) > 37
    assert agent.fitness == [agent.fitness[0]]
    assert agent.evaluate(2, env=bandit(2), max_steps=50).mean > 37


def test_acting_takes_one_round_or_many_and_explores_in_training_alone() -> None:
    agent, contexts = make(), bandit().reset()
    assert isinstance(agent.get_action(contexts), int)
    assert agent.get_action(np.stack([contexts] * 4)).shape == (4,)
    before = agent.sigma_inv.clone()
    assert agent.rounds == 5
    assert agent.get_action(contexts, training=False) == agent.act(contexts)
    agent.set_training_mode(False)
    agent.get_action(contexts)
    assert torch.equal(agent.sigma_inv, before)
    assert agent.get_action(contexts, action_mask=np.array([0, 0, 1])) == 2


def test_contexts_of_one_arm_or_of_all_are_the_same_space() -> None:
    both = [NeuralUCB(space, ARMS, net_config=NET, seed=0) for space in (CONTEXT, spaces.Box(-3, 3, (3, 6)))]
    assert both[0].observation_space == both[1].observation_space
    contexts = bandit().reset()
    assert both[0].get_action(contexts) == both[1].get_action(contexts)


def test_the_space_of_one_context_covers_the_bounds_of_every_arm() -> None:
    low, high = np.array([[0, 0], [-2, 1]], np.float32), np.array([[1, 1], [0, 5]], np.float32)
    agent = NeuralUCB(spaces.Box(low, high), spaces.Discrete(2), net_config=NET, seed=0)
    assert agent.network_space == spaces.Box(np.array([-2, 0], np.float32), np.array([1, 5], np.float32))


def test_images_are_contexts_too() -> None:
    agent = NeuralUCB(spaces.Box(0, 255, (1, 8, 8), np.uint8), ARMS, seed=0)
    images = np.random.default_rng(0).integers(0, 256, (3, 1, 8, 8)).astype(np.uint8)
    assert agent.get_action(images) in (0, 1, 2)
    agent.learn({"obs": images, "reward": np.ones(3, np.float32)})


@pytest.mark.parametrize("cls", [NeuralUCB, NeuralTS])
def test_a_file_and_a_copy_choose_alike(cls: Any, tmp_path: Path) -> None:
    agent = make(cls, batch_size=8)
    played(agent, 20)
    agent.save_checkpoint(tmp_path / "agent")
    again, copy = cls.load(tmp_path / "agent"), agent.clone()
    contexts = np.stack([bandit(k).reset() for k in range(10)])
    chosen = agent.get_action(contexts).tolist()
    for twin in (again, copy):
        assert twin.rounds == 20
        assert twin.get_action(contexts).tolist() == chosen
        assert torch.allclose(twin.sigma_inv, agent.sigma_inv, atol=1e-6)
    assert type(again).__name__ == again.algo == cls.__name__


def test_a_mutation_starts_the_design_anew_and_rows_rebuild_it_by_the_new_gradients() -> None:
    agent = make(batch_size=8, lamb=2.0)
    played(agent, 12)
    mutation = Mutations(0, 1.0, 0, 0, 0, 0, rand_seed=3)
    mutant = mutation.mutation([agent])[0]
    size = mutant.actor.head_net.hidden_size[-1] + 1
    assert mutant.is_design_stale
    assert torch.allclose(mutant.sigma_inv, torch.eye(size).double() / 2)
    contexts = torch.from_numpy(np.stack([bandit(k).reset()[0] for k in range(5)]))
    mutant.rebuild_design(contexts)
    hidden = mutant.actor(contexts)[:, 1:].double()
    rows = torch.cat((hidden, torch.ones(5, 1).double()), 1) / (size - 1) ** 0.5
    inverse = torch.linalg.inv(2 * torch.eye(size).double() + rows.T @ rows)
    assert torch.allclose(mutant.sigma_inv, inverse, atol=1e-6)
    assert not mutant.is_design_stale
    assert mutant.get_action(bandit().reset()) in (0, 1, 2)


def test_every_number_can_mutate() -> None:
    names = ("gamma", "lamb", "reg", "lr", "batch_size", "learn_step")
    limits = {name: RLParameter(min=1, max=64, dtype=int) for name in names[4:]}
    limits |= {name: RLParameter(min=1e-5, max=10) for name in names[:4]}
    agent = make(hp_config=HyperparameterConfig(**limits))
    assert set(agent.hyperparameters()) == set(names)


def test_published_names_of_rounds_are_understood() -> None:
    agent, x, reward = make(), np.zeros((4, 6), np.float32), np.ones(4, np.float32)
    losses = [
        make().learn(given) for given in ({"context": x, "reward": reward}, (x, reward), {"obs": x, "reward": reward})
    ]
    assert losses == [1.0] * 3
    with pytest.raises(ShapeError, match=r"NeuralUCB.learn got \['action'\]; expected obs, the context"):
        agent.learn({"action": x})
    with pytest.raises(ShapeError, match=r"contexts of shape \(1, 2, 6\)"):
        agent.get_action(np.zeros((1, 2, 6)))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"lamb": 0.0}, AlgorithmError, r"lamb must be above 0"),
        ({"learn_step": 0}, AlgorithmError, r"learn_step"),
        ({"lambd": 1.0}, TypeError, r"unexpected argument 'lambd'.*did you mean lamb"),
        ({"actor_network": torch.nn.Linear(6, 1)}, TypeError, r"an EvolvableModule with one output.*fix"),
        ({"actor_network": EvolvableMLP(6, 2, [8])}, TypeError, r"an EvolvableModule with one output.*fix"),
        (
            {"net_config": {"head_config": {"hidden_size": [8], "output_activation": "Tanh"}}},
            ConfigError,
            r"one linear",
        ),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        NeuralUCB(CONTEXT, ARMS, **{"net_config": NET, **arguments})


@pytest.mark.parametrize(
    ("space", "arms", "says"),
    [
        (spaces.MultiBinary(4), ARMS, r"reads contexts of one arm or of all 3"),
        (spaces.Box(0, 1, ()), ARMS, r"reads contexts of one arm"),
        (spaces.Box(0, 1, (2, 6)), ARMS, r"contexts of one arm or of all 3: .*got Box\(0.0, 1.0, \(2, 6\)"),
        (spaces.Dict({"a": CONTEXT, "b": spaces.MultiBinary(2)}), ARMS, r"got Dict"),
        (CONTEXT, spaces.Box(-1, 1, (2,)), r"needs Discrete actions"),
    ],
)
def test_spaces_that_do_not_fit(space: Any, arms: Any, says: str) -> None:
    with pytest.raises(AlgorithmError, match=says):
        NeuralUCB(space, arms)


@pytest.mark.parametrize("cls", [NeuralUCB, NeuralTS])
def test_an_evolvable_module_of_the_script_learns_and_evolves(cls: Any, tmp_path: Path) -> None:
    agent = cls(CONTEXT, ARMS, actor_network=EvolvableMLP(6, 1, [32]), lr=1e-2, batch_size=16, gamma=0.3, seed=0)
    x = np.linspace(-1, 1, 18).reshape(3, 6).astype(np.float32)
    value, hidden = agent.policy_output(x[None])[0].split((1, 32), -1)
    layers = agent.actor.wrapped.model  # the last linear layer of what it reads is the value
    torch.testing.assert_close(value, hidden @ layers.linear_output.weight.T + layers.linear_output.bias)
    played(agent, 150)
    assert agent.test(bandit(1), max_steps=50) > 37
    agent.actor.apply_mutation("add_node", numb_new_nodes=16)
    agent.mutation_hook()
    assert agent.sigma_inv.shape == (49, 49)
    agent.save_checkpoint(tmp_path / "bandit.pt")
    other = cls(CONTEXT, ARMS, actor_network=EvolvableMLP(6, 1, [32]))
    other.load_checkpoint(tmp_path / "bandit.pt")
    torch.testing.assert_close(other.policy_output(x[None]), agent.policy_output(x[None]), rtol=0, atol=0)
    with pytest.raises(ConfigError, match=r"spec of a RewardModule.*fix: make the agent with its network"):
        cls.load(tmp_path / "bandit.pt")


class Keyed(gym.Env[Any, Any]):
    """Contexts of three arms in a Dict: the arm that pays has the key 0."""

    observation_space = spaces.Dict({"low": spaces.Box(-1, 1, (3, 2)), "key": spaces.MultiDiscrete([3] * 3)})
    action_space = ARMS

    def _shown(self) -> Any:
        self.first = int(self.np_random.integers(3))
        return {"low": np.zeros((3, 2), np.float32), "key": (self.first + np.arange(3)) % 3}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._shown(), {}

    def step(self, action: Any) -> Any:
        reward = float((self.first + action) % 3 == 0)
        return self._shown(), reward, False, False, {}


@pytest.mark.thorough
def test_contexts_may_be_mappings() -> None:
    one = spaces.Dict({"low": spaces.Box(-1, 1, (2,)), "key": spaces.Discrete(3)})
    agents = [NeuralUCB(space, ARMS, seed=0) for space in (one, Keyed.observation_space)]
    assert agents[0].observation_space == agents[1].observation_space == Keyed.observation_space
    assert agents[0].network_space == one
    settings = {"algorithm.lr": 1e-2, "algorithm.gamma": 0.3, "algorithm.batch_size": 16}
    env = gym.wrappers.TimeLimit(Keyed(), 50)
    run = agilerl.train(
        env, "NeuralUCB", population=2, steps=300, evo_steps=100, out=None, verbose=False, seed=0, **settings
    )
    assert run.best.test(env, max_steps=50) == 50


def test_the_network_starts_at_zero_and_shows_what_its_last_layer_reads() -> None:
    network = RewardNetwork(CONTEXT, **NET, random_seed=0)
    outputs = network(np.ones((5, 6), np.float32))
    assert outputs.shape == (5, 9)
    assert (outputs[:, 0] == 0).all()
    assert (outputs[:, 1:] != 0).any()
    assert network.effect_output(np.ones((5, 6), np.float32)).shape == (5, 1)
    parts = network.dense_parts()
    assert [len(stack.layers) for stack in parts.values()] == [3, 1]


def test_bandits_are_suggested_for_no_environment() -> None:
    with pytest.raises(AlgorithmError, match="needs Box actions") as caught:
        find_algorithm("TD3")(spaces.Box(-1, 1, (2,)), ARMS)
    assert "Neural" not in str(caught.value)
    assert "RecurrentPPO" not in str(caught.value)
