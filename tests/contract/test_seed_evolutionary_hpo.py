"""The page `evolutionary_hpo`, with what its text leaves out filled in: its blocks, and its custom algorithm in the loop."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
import torch.optim as optim

from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.modules.mlp import EvolvableMLP

device = "cpu"


def test_tournament_and_mutation_blocks():
    tournament = TournamentSelection(
        tournament_size=2,  # Tournament selection size
        elitism=True,  # Elitism in tournament selection
        population_size=6,  # Population size
        eval_loop=1,  # Evaluate using last N fitness scores
    )
    mutations = Mutations(
        no_mutation=0.4,  # No mutation
        architecture=0.2,  # Architecture mutation
        new_layer_prob=0.2,  # New layer mutation
        parameters=0.2,  # Network parameters mutation
        activation=0,  # Activation layer mutation
        rl_hp=0.2,  # RL hyperparameter mutation
        mutation_sd=0.1,  # Mutation strength
        rand_seed=1,  # Random seed
        device=device,
    )
    assert (tournament.population_size, mutations.mutation_sd) == (6, 0.1)


def test_hyperparameter_block():
    from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter

    # Need to use the algorithms attribute names in DQN 'lr', 'batch_size',
    # and 'learn_step' to register the hyperparameters
    hp_config = HyperparameterConfig(
        lr=RLParameter(min=1e-4, max=1e-2),
        batch_size=RLParameter(min=32, max=256),
        learn_step=RLParameter(min=1, max=10, grow_factor=1.5, shrink_factor=0.75),
    )
    assert hp_config["learn_step"].grow_factor == 1.5


from agilerl.algorithms.core.base import EvolvableAlgorithm
from agilerl.algorithms.core.optimizer_wrapper import OptimizerWrapper
from agilerl.algorithms.core.registry import HyperparameterConfig, NetworkGroup, RLParameter


class CustomAlgorithm(EvolvableAlgorithm):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)

        # Define the algorithm's attributes / networks
        self.lr = 1e-4
        self.actor = EvolvableMLP(4, 2, [32], random_seed=1)  # EvolvableModule instance
        self.critic = EvolvableMLP(4, 1, [32], random_seed=2)  # EvolvableModule instance

        # NOTE: We must pass the attributes containing
        # the mutable networks to the OptimizerWrapper
        self.optimizer = OptimizerWrapper(optim.Adam, networks=[self.actor, self.critic], lr=self.lr)


class ActorCritic(CustomAlgorithm):
    """The page's class with the network group it lacks, and a one-step actor-critic to train."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.batch_size = 32
        self.learn_step = 4
        self.register_network_group(NetworkGroup(eval_network=self.actor, policy=True))
        self.register_network_group(NetworkGroup(eval_network=self.critic))
        self.rng = np.random.default_rng(self.index)

    def get_action(self, obs):
        with torch.no_grad():
            p = self.actor(torch.as_tensor(obs)).softmax(-1).numpy()
        return (self.rng.random(len(p)) < p[:, 1]).astype(np.int64)

    def learn(self, experiences):
        obs, action, reward, next_obs, done = (experiences[k] for k in ("obs", "action", "reward", "next_obs", "done"))
        value = self.critic(obs)
        with torch.no_grad():
            target = reward + 0.99 * (1 - done.float()) * self.critic(next_obs)
        log_prob = self.actor(obs).log_softmax(-1).gather(1, action.long())
        loss = ((value - target) ** 2).mean() - (log_prob * (target - value).detach()).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def test(self, env, swap_channels=False, max_steps=None, loop=1):
        obs, _ = env.reset(seed=1)
        total = np.zeros(env.num_envs)
        for _ in range(20):
            obs, reward, *_ = env.step(self.get_action(obs))
            total += reward
        self.fitness.append(float(total.mean()))
        return self.fitness[-1]


def test_the_class_of_the_page_constructs_and_says_what_it_lacks():
    agent = CustomAlgorithm()
    assert agent.registry.optimizers[0].networks == ["actor", "critic"]
    assert agent.registry.optimizers[0].lr == "lr"
    with pytest.raises(AttributeError, match="No network groups have been registered"):
        agent.clone()


def test_the_custom_algorithm_trains_mutates_clones_and_saves(tmp_path):
    from agilerl.components.replay_buffer import ReplayBuffer
    from agilerl.training.train_off_policy import train_off_policy
    from agilerl.utils.utils import make_vect_envs

    hp_config = HyperparameterConfig(lr=RLParameter(min=1e-4, max=1e-2))
    pop = [ActorCritic(index=i, hp_config=hp_config) for i in range(4)]
    before = copy.deepcopy(pop[0].actor.state_dict())
    env = make_vect_envs("CartPole-v1", num_envs=4)
    trained, fitnesses = train_off_policy(
        env=env,
        env_name="CartPole-v1",
        pop=pop,
        memory=ReplayBuffer(max_size=1000),
        max_steps=400,
        evo_steps=100,
        tournament=TournamentSelection(2, True, 4),
        mutation=Mutations(0.2, 0.3, 0.5, 0.2, 0.1, 0.2, rand_seed=3),
        verbose=False,
        seed=5,
    )
    env.close()
    assert np.shape(fitnesses) == (4, 4)
    assert {a.mut for a in trained} != {"None"}, "nothing mutated: change rand_seed"
    assert any(
        p.shape != before[k].shape or not torch.equal(p, before[k]) for k, p in trained[0].actor.state_dict().items()
    )
    twin = trained[1].clone(index=9)
    assert twin.index == 9
    for mine, theirs in zip(trained[1].critic.parameters(), twin.critic.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.data_ptr() != theirs.data_ptr()
    trained[1].save_checkpoint(tmp_path / "agent.pt")
    fresh = ActorCritic(hp_config=hp_config)
    fresh.load_checkpoint(tmp_path / "agent.pt")
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    with torch.no_grad():
        assert torch.equal(fresh.actor(torch.as_tensor(obs)), trained[1].actor(torch.as_tensor(obs)))
    assert fresh.index == trained[1].index
    restored = pickle.loads(pickle.dumps(trained[1]))
    assert restored.optimizer.param_groups[0]["lr"] == trained[1].lr
