"""The page `on_policy_training`, with the lines that its text lost filled in and small budgets (see BUDGET lines)."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces

import agilerl.errors

pytest.importorskip("Box2D", reason="LunarLander needs the box2d extra")


def test_the_population_and_the_training_function_of_the_page():
    from agilerl.utils.utils import (
        create_population,
        make_vect_envs,
        observation_space_channels_to_first,  # noqa: F401
    )

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    NET_CONFIG = {
        "encoder_config": {"hidden_size": [32, 32]}  # Actor head hidden size
    }
    INIT_HP = {
        "POP_SIZE": 6,  # Population size
        "BATCH_SIZE": 128,  # Batch size
        "LR": 1e-3,  # Learning rate
        "LEARN_STEP": 128,  # Learning frequency
        "GAMMA": 0.99,  # Discount factor
        "GAE_LAMBDA": 0.95,  # Lambda for general advantage estimation
        "ACTION_STD_INIT": 0.6,  # Initial action standard deviation
        "CLIP_COEF": 0.2,  # Surrogate clipping coefficient
        "ENT_COEF": 0.01,  # Entropy coefficient
        "VF_COEF": 0.5,  # Value function coefficient
        "MAX_GRAD_NORM": 0.5,  # Maximum norm for gradient clipping
        "TARGET_KL": None,  # Target KL divergence threshold
        "UPDATE_EPOCHS": 4,  # Number of policy update epochs
        # Swap image channels dimension from last to first [H, W, C] -> [C, H, W]
        "CHANNELS_LAST": False,
    }
    num_envs = 16
    env = make_vect_envs("LunarLander-v3", num_envs=num_envs)  # Create environment
    observation_space = env.single_observation_space
    action_space = env.single_action_space
    with warnings.catch_warnings():
        warnings.simplefilter("error", agilerl.errors.AgileRLWarning)  # every key of the page is known
        pop = create_population(
            algo="PPO",  # RL algorithm
            observation_space=observation_space,  # State dimension
            action_space=action_space,  # Action dimension
            net_config=NET_CONFIG,  # Network configuration
            INIT_HP=INIT_HP,  # Initial hyperparameters
            population_size=INIT_HP["POP_SIZE"],  # Population size
            num_envs=num_envs,  # Number of vectorized envs
            device=device,
        )

    from agilerl.hpo.mutation import Mutations
    from agilerl.hpo.tournament import TournamentSelection

    tournament = TournamentSelection(
        tournament_size=2, elitism=True, population_size=INIT_HP["POP_SIZE"], eval_loop=1
    )  # as the custom loop of the page has it
    mutations = Mutations(
        no_mutation=0.4,
        architecture=0.2,
        new_layer_prob=0.2,
        parameters=0.2,
        activation=0,
        rl_hp=0.2,
        mutation_sd=0.1,
        rand_seed=1,
        device=device,
    )

    from agilerl.training.train_on_policy import train_on_policy

    trained_pop, pop_fitnesses = train_on_policy(
        env=env,  # Gym-style environment
        env_name="LunarLander-v3",  # Environment name
        pop=pop,  # Population of agents
        max_steps=512,  # BUDGET: the page has 200000
        evo_steps=256,  # BUDGET: the page has 10000
        eval_steps=20,  # BUDGET: the page has None
        eval_loop=1,  # Number of evaluation episodes
        target=200.0,  # Target score for early stopping
        tournament=tournament,  # Tournament selection object
        mutation=mutations,  # Mutations object
        wb=False,  # BUDGET: the page has True, which needs an account
    )
    env.close()
    assert np.shape(pop_fitnesses) == (2, 6)
    assert all(agent.steps[-1] == 512 for agent in trained_pop)


def test_the_custom_loop_of_the_page(monkeypatch):
    from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
    from agilerl.hpo.mutation import Mutations
    from agilerl.hpo.tournament import TournamentSelection
    from agilerl.utils.utils import create_population, default_progress_bar, make_vect_envs

    monkeypatch.setattr(agilerl.errors, "_warned", set())  # the warning below comes once per process

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    NET_CONFIG = {
        "encoder_config": {
            "hidden_size": [32, 32],  # Encoder hidden size
            "activation": "ReLU",
        },
        "head_config": {
            "hidden_size": [32]  # Head hidden size
        },
    }
    INIT_HP = {
        "POP_SIZE": 6,  # Population size
        "BATCH_SIZE": 128,  # Batch size
        "LR": 1e-3,  # Learning rate
        "LEARN_STEP": 128,  # Learning frequency
        "GAMMA": 0.99,  # Discount factor
        "GAE_LAMBDA": 0.95,  # Lambda for general advantage estimation
        "ACTION_STD_INIT": 0.6,  # Initial action standard deviation
        "CLIP_COEF": 0.2,  # Surrogate clipping coefficient
        "ENT_COEF": 0.01,  # Entropy coefficient
        "VF_COEF": 0.5,  # Value function coefficient
        "MAX_GRAD_NORM": 0.5,  # Maximum norm for gradient clipping
        "TARGET_KL": None,  # Target KL divergence threshold
        "UPDATE_EPOCHS": 4,  # Number of policy update epochs
    }
    num_envs = 16
    env = make_vect_envs("LunarLander-v3", num_envs=num_envs)  # Create environment
    observation_space = env.single_observation_space
    action_space = env.single_action_space

    # RL hyperparameters configuration for mutation during training
    hp_config = HyperparameterConfig(
        lr=RLParameter(min=1e-4, max=1e-2),
        batch_size=RLParameter(min=8, max=1024),
        learn_step=RLParameter(min=64, max=1024),
    )
    pop = create_population(
        algo="PPO",  # RL algorithm
        observation_space=observation_space,  # State dimension
        action_space=action_space,  # Action dimension
        net_config=NET_CONFIG,  # Network configuration
        INIT_HP=INIT_HP,  # Initial hyperparameters
        hp_config=hp_config,  # Hyperparameters configuration
        population_size=INIT_HP["POP_SIZE"],  # Population size
        num_envs=num_envs,  # Number of vectorized envs
        device=device,
    )
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
        mutation_sd=0.1,  # Mutation strength # Network architecture
        rand_seed=1,  # Random seed
        device=device,
    )
    max_steps = 512  # BUDGET: the page has 200000
    evo_steps = 256  # BUDGET: the page has 10000
    eval_steps = 20  # BUDGET: the page has None
    eval_loop = 1  # Number of evaluation episodes

    total_steps = 0

    # TRAINING LOOP
    print("Training...")
    caught = []
    pbar = default_progress_bar(max_steps)
    while np.less([agent.steps[-1] for agent in pop], max_steps).all():
        pop_episode_scores = []
        for agent in pop:  # Loop through population
            agent.set_training_mode(True)
            obs, info = env.reset()  # Reset environment at start of episode
            scores = np.zeros(num_envs)
            completed_episode_scores = []
            steps = 0
            for _ in range(-(evo_steps // -agent.learn_step)):
                observations = []
                actions = []
                log_probs = []
                rewards = []
                dones = []
                values = []
                done = np.zeros(num_envs)
                learn_steps = 0
                for idx_step in range(-(agent.learn_step // -num_envs)):
                    # Get next action from agent
                    action, log_prob, _, value = agent.get_action(obs)

                    # Clip to action space
                    if isinstance(agent.action_space, spaces.Box):
                        if agent.actor.squash_output:
                            clipped_action = agent.actor.scale_action(action)
                        else:
                            clipped_action = np.clip(action, agent.action_space.low, agent.action_space.high)
                    else:
                        clipped_action = action

                    # Act in environment
                    next_obs, reward, terminated, truncated, info = env.step(clipped_action)
                    next_done = np.logical_or(terminated, truncated).astype(np.int8)
                    total_steps += num_envs
                    steps += num_envs
                    learn_steps += num_envs

                    observations.append(obs)
                    actions.append(action)
                    log_probs.append(log_prob)
                    rewards.append(reward)
                    dones.append(dones)
                    values.append(value)

                    obs = next_obs
                    done = next_done
                    scores += np.array(reward)
                    for idx, (d, t) in enumerate(zip(terminated, truncated)):
                        if d or t:
                            completed_episode_scores.append(scores[idx])
                            agent.scores.append(scores[idx])
                            scores[idx] = 0

                pbar.update(learn_steps // len(pop))

                experiences = (
                    observations,
                    actions,
                    log_probs,
                    rewards,
                    dones,
                    values,
                    next_obs,
                    next_done,
                )
                # Learn according to agent's RL algorithm
                with warnings.catch_warnings(record=True) as records:
                    warnings.simplefilter("always")
                    agent.learn(experiences)
                caught += [str(r.message) for r in records if issubclass(r.category, agilerl.errors.AgileRLWarning)]
            agent.steps[-1] += steps
            pop_episode_scores.append(completed_episode_scores)

        # Evaluate population
        fitnesses = [
            agent.test(
                env,
                max_steps=eval_steps,
                loop=eval_loop,
            )
            for agent in pop
        ]
        mean_scores = [
            (np.mean(episode_scores) if len(episode_scores) > 0 else "0 completed episodes")
            for episode_scores in pop_episode_scores
        ]
        pbar.write(
            f"--- Global steps {total_steps} ---\n"
            f"Steps: {[agent.steps[-1] for agent in pop]}\n"
            f"Scores: {mean_scores}\n"
            f"Fitnesses: {['%.2f' % fitness for fitness in fitnesses]}\n"
            f"5 fitness avgs: {['%.2f' % np.mean(agent.fitness[-5:]) for agent in pop]}\n"
        )

        # Tournament selection and population mutation
        elite, pop = tournament.select(pop)
        pop = mutations.mutation(pop)

        # Update step counter
        for agent in pop:
            agent.steps.append(agent.steps[-1])

    pbar.close()
    env.close()
    assert total_steps >= 2 * 6 * 256
    assert len(pop) == 6
    assert len(caught) == 1, "the list that holds itself is named once"
    assert "dones.append(done) in place of dones.append(dones)" in caught[0]
    assert done.shape == (num_envs,)


def test_the_recurrent_loop_of_the_page():
    from agilerl.hpo.mutation import Mutations
    from agilerl.hpo.tournament import TournamentSelection
    from agilerl.rollouts.on_policy import collect_rollouts_recurrent
    from agilerl.utils.utils import create_population, default_progress_bar, make_vect_envs

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    NET_CONFIG = {
        "encoder_config": {
            "hidden_state_size": 64,
            "num_layers": 1,
            "max_seq_len": 512,
        },
        "head_config": {
            "hidden_size": [64],
        },
    }
    INIT_HP = {
        "POP_SIZE": 6,  # Population size
        "BATCH_SIZE": 128,  # Batch size
        "LR": 1e-3,  # Learning rate
        "LEARN_STEP": 128,  # Learning frequency
        "GAMMA": 0.99,  # Discount factor
        "GAE_LAMBDA": 0.95,  # Lambda for general advantage estimation
        "ACTION_STD_INIT": 0.6,  # Initial action standard deviation
        "CLIP_COEF": 0.2,  # Surrogate clipping coefficient
        "ENT_COEF": 0.01,  # Entropy coefficient
        "VF_COEF": 0.5,  # Value function coefficient
        "MAX_GRAD_NORM": 0.5,  # Maximum norm for gradient clipping
        "RECURRENT": True,
        "USE_ROLLOUT_BUFFER": True,
        "TARGET_KL": None,  # Target KL divergence threshold
        "UPDATE_EPOCHS": 4,  # Number of policy update epochs
    }

    # Create environment
    num_envs = 16
    env = make_vect_envs("LunarLander-v3", num_envs=num_envs)
    observation_space = env.single_observation_space
    action_space = env.single_action_space

    # Create population
    pop = create_population(
        algo="PPO",  # RL algorithm
        observation_space=observation_space,  # State dimension
        action_space=action_space,  # Action dimension
        net_config=NET_CONFIG,  # Network configuration
        INIT_HP=INIT_HP,  # Initial hyperparameters
        population_size=INIT_HP["POP_SIZE"],  # Population size
        num_envs=num_envs,  # Number of vectorized envs
        device=device,
    )
    assert pop[0].sequence_limit(1000) == 512
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
        mutation_sd=0.1,  # Mutation strength # Network architecture
        rand_seed=1,  # Random seed
        device=device,
    )
    max_steps = 512  # BUDGET: the page has 200000
    evo_steps = 256  # BUDGET: the page has 10000
    eval_steps = 20  # BUDGET: the page has None
    eval_loop = 1  # Number of evaluation episodes
    required_score = 200.0  # not defined on the page

    total_steps = 0

    # TRAINING LOOP
    print("Training...")
    pbar = default_progress_bar(max_steps)
    while np.less([agent.steps[-1] for agent in pop], max_steps).all():
        pop_episode_scores = []
        for agent in pop:  # Loop through population
            steps = 0
            completed_episodes = []
            last_obs, last_done, last_scores, last_info = None, None, None, None
            for _ in range(-(evo_steps // -agent.learn_step)):
                # Collect rollouts and save in buffer
                episode_scores, last_obs, last_done, last_scores, last_info = collect_rollouts_recurrent(
                    agent,
                    env,
                    last_obs=last_obs,
                    last_done=last_done,
                    last_scores=last_scores,
                    last_info=last_info,
                )
                agent.learn()  # Learn from rollout buffer

                # Update step counter and scores
                total_steps += agent.learn_step
                steps += agent.learn_step
                agent.steps[-1] += agent.learn_step
                completed_episodes += episode_scores

            pop_episode_scores.append(
                np.mean(completed_episodes) if len(completed_episodes) > 0 else "0 completed episodes"
            )
            pbar.update(steps // len(pop))

        # Evaluate population
        fitnesses = [
            agent.test(
                env,
                max_steps=eval_steps,
                loop=eval_loop,
            )
            for agent in pop
        ]
        pbar.write(
            f"--- Global steps {total_steps} ---\n"
            f"Steps: {[agent.steps[-1] for agent in pop]}\n"
            f"Scores: {pop_episode_scores}\n"
            f"Fitnesses: {['%.2f' % fitness for fitness in fitnesses]}\n"
            f"5 fitness avgs: {['%.2f' % np.mean(agent.fitness[-5:]) for agent in pop]}\n"
        )

        if any(not isinstance(score, str) and score >= required_score for score in pop_episode_scores):
            print(f"\nAgent achieved required score {required_score}. Stopping training.")
            elite, _ = tournament.select(pop)
            break

        # Tournament selection and population mutation
        elite, pop = tournament.select(pop)
        pop = mutations.mutation(pop)

        # Update step counter
        for agent in pop:
            agent.steps.append(agent.steps[-1])

    pbar.close()
    env.close()
    assert total_steps == 2 * 6 * 256
    assert len(pop) == 6
    assert all(np.isfinite(agent.fitness[-1]) for agent in pop)
