"""The page `offline_training`, with the lines that its text lost filled in and small budgets (see BUDGET lines)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tqdm import trange

h5py = pytest.importorskip("h5py")

ROWS = 600  # BUDGET: the page's file is larger


def write_random_cartpole(path: Path) -> None:
    """The page's data file: steps of random play in CartPole."""
    import gymnasium as gym

    env, rng = gym.make("CartPole-v1"), np.random.default_rng(0)
    columns: dict[str, list[object]] = {"observations": [], "actions": [], "rewards": [], "terminals": []}
    obs, _ = env.reset(seed=0)
    for _ in range(ROWS):
        action = int(rng.integers(2))
        later, reward, terminated, truncated, _ = env.step(action)
        for name, value in zip(columns, (obs, action, reward, terminated), strict=True):
            columns[name].append(value)
        obs = env.reset()[0] if terminated or truncated else later
    path.parent.mkdir(parents=True)
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            file[name] = np.array(values)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Every block of the page up to the training loop, in order, as one namespace."""
    folder = tmp_path_factory.mktemp("page")
    path = folder / "data/cartpole/cartpole_random_v1.1.0.h5"
    write_random_cartpole(path)

    from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
    from agilerl.utils.utils import create_population, make_vect_envs

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    NET_CONFIG = {
        "encoder_config": {"hidden_size": [32, 32], "activation": "ReLU"},  # Encoder config
        "head_config": {"hidden_size": [32]},  # Head hidden size
    }

    INIT_HP = {
        "DOUBLE": True,  # Use double Q-learning
        "BATCH_SIZE": 128,  # Batch size
        "LR": 1e-3,  # Learning rate
        "GAMMA": 0.99,  # Discount factor
        "LEARN_STEP": 1,  # Learning frequency
        "TAU": 1e-3,  # For soft update of target network parameters
        "POP_SIZE": 4,  # Population size
    }

    num_envs = 1
    env = make_vect_envs("CartPole-v1", num_envs=num_envs)  # Create environment
    dataset = h5py.File(path, "r")  # Load dataset

    observation_space = env.single_observation_space
    action_space = env.single_action_space

    # RL hyperparameter configuration for mutations
    hp_config = HyperparameterConfig(
        lr=RLParameter(min=1e-4, max=1e-2),
        batch_size=RLParameter(min=8, max=64),
        learn_step=RLParameter(min=1, max=120, grow_factor=1.5, shrink_factor=0.75),
    )

    pop = create_population(
        algo="CQN",  # Algorithm
        observation_space=observation_space,  # State dimension
        action_space=action_space,  # Action dimension
        net_config=NET_CONFIG,  # Network configuration
        INIT_HP=INIT_HP,  # Initial hyperparameters
        hp_config=hp_config,  # RL hyperparameters configuration
        population_size=INIT_HP["POP_SIZE"],  # Population size
        num_envs=num_envs,  # Number of vectorized envs
        device=device,
    )

    from agilerl.components.data import Transition
    from agilerl.components.replay_buffer import ReplayBuffer

    memory = ReplayBuffer(
        max_size=10000,  # Max replay buffer size
        device=device,
    )

    print("Filling replay buffer with dataset...")
    # Save transitions to replay buffer
    dataset_length = dataset["rewards"].shape[0]
    for i in trange(dataset_length - 1):
        state = dataset["observations"][i]
        next_obs = dataset["observations"][i + 1]
        action = dataset["actions"][i]
        reward = dataset["rewards"][i]
        done = bool(dataset["terminals"][i])

        transition = Transition(
            obs=state,
            action=action,
            reward=reward,
            next_obs=next_obs,
            done=done,
        )
        transition = transition.unsqueeze(0)  # Add vectorized dimension
        transition.batch_size = [1]

        # Save experience to replay buffer
        memory.add(transition.to_tensordict())

    from agilerl.hpo.mutation import Mutations
    from agilerl.hpo.tournament import TournamentSelection

    tournament = TournamentSelection(
        tournament_size=2,  # Tournament selection size
        elitism=True,  # Elitism in tournament selection
        population_size=INIT_HP["POP_SIZE"],  # Population size
        eval_loop=1,  # Evaluate using last N fitness scores
    )

    mutations = Mutations(
        no_mutation=0.4,  # No mutation
        architecture=0.2,  # Architecture mutation
        new_layer_prob=0.2,  # New layer mutation
        parameters=0.2,  # Network parameters mutation
        activation=0,  # Activation layer mutation
        rl_hp=0.2,  # Learning HP mutation
        mutation_sd=0.1,  # Mutation strength  # Network architecture
        rand_seed=1,  # Random seed
        device=device,
    )
    return dict(locals())


def test_the_training_function_of_the_page(page):
    from agilerl.training.train_offline import train_offline

    env, dataset, pop, memory = page["env"], page["dataset"], page["pop"], page["memory"]
    tournament, mutations = page["tournament"], page["mutations"]
    trained_pop, pop_fitnesses = train_offline(
        env=env,  # Gym-style environment
        env_name="CartPole-v1",  # Environment name
        dataset=dataset,  # Offline dataset
        pop=pop,  # Population of agents
        memory=memory,  # Replay buffer
        max_steps=64,  # BUDGET: the page has 500000
        evo_steps=32,  # BUDGET: the page has 10000
        eval_steps=None,  # Evaluation steps
        eval_loop=1,  # Number of evaluation episodes per agent
        target=500.0,  # BUDGET: the page has 200., which a run may reach
        tournament=tournament,  # Tournament selection object
        mutation=mutations,  # Mutations object
        wb=False,  # Weights and Biases tracking
    )
    assert len(trained_pop) == 4
    assert np.shape(pop_fitnesses) == (2, 4)
    assert all(agent.steps[-1] == 64 for agent in trained_pop)
    assert len(memory) == ROWS - 1  # of the data set alone: the last step has no successor


def test_the_custom_loop_of_the_page(page):
    env, pop, memory = page["env"], page["pop"], page["memory"]
    tournament, mutations = page["tournament"], page["mutations"]
    max_steps = 16  # BUDGET: the page has 200000
    eval_steps = None  # Evaluation steps per episode - go until done
    eval_loop = 1  # Number of evaluation episodes
    for agent in pop:
        agent.steps = [0]

    total_steps = 0

    # TRAINING LOOP
    print("Training...")
    pbar = trange(max_steps, unit="step")
    while np.less([agent.steps[-1] for agent in pop], max_steps).all():
        for agent in pop:  # Loop through population
            for _idx_step in range(max_steps):
                experiences = memory.sample(agent.batch_size)  # Sample replay buffer
                agent.learn(experiences)  # Learn according to agent's RL algorithm
            total_steps += max_steps
            agent.steps[-1] += max_steps

        # Evaluate population
        fitnesses = [
            agent.test(
                env,
                max_steps=eval_steps,
                loop=eval_loop,
            )
            for agent in pop
        ]

        print(f"--- Global Steps {total_steps} ---")
        print(f"Fitnesses: {['%.2f' % fitness for fitness in fitnesses]}")
        print(f"Steps {[agent.steps[-1] for agent in pop]}")
        print(f"5 fitness avgs: {['%.2f' % np.mean(agent.fitness[-5:]) for agent in pop]}")

        # Tournament selection and population mutation
        elite, pop = tournament.select(pop)
        pop = mutations.mutation(pop)

        # Update step counter
        for agent in pop:
            agent.steps.append(agent.steps[-1])

    pbar.close()
    env.close()
    assert total_steps == 4 * 16
    assert elite.fitness[-1] == max(fitnesses)
