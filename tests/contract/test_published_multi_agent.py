"""A script in the published style for several agents, by the published names, with fewer steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mpe2")


@pytest.mark.parametrize("algo", ["MADDPG", "MATD3"])
def test_the_published_script_trains_a_population_of_teams(algo: str, tmp_path: Path) -> None:
    from mpe2 import simple_speaker_listener_v4

    from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
    from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
    from agilerl.hpo.mutation import Mutations
    from agilerl.hpo.tournament import TournamentSelection
    from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
    from agilerl.utils.utils import create_population
    from agilerl.vector import SyncPettingZooVecEnv

    NET_CONFIG: dict[str, Any] = {
        "latent_dim": 16, "encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]},
    }  # fmt: skip
    INIT_HP: dict[str, Any] = {
        "POPULATION_SIZE": 2, "ALGO": algo, "CHANNELS_LAST": False, "BATCH_SIZE": 32, "O_U_NOISE": True,
        "EXPL_NOISE": 0.1, "MEAN_NOISE": 0.0, "THETA": 0.15, "DT": 0.01, "LR_ACTOR": 1e-4, "LR_CRITIC": 1e-3,
        "GAMMA": 0.95, "MEMORY_SIZE": 1000, "LEARN_STEP": 50, "TAU": 0.01, "POLICY_FREQ": 2,
    }  # fmt: skip
    num_envs = 2
    env = SyncPettingZooVecEnv([lambda: simple_speaker_listener_v4.parallel_env(continuous_actions=True)] * num_envs)
    env.reset()
    observation_spaces = [env.single_observation_space(agent) for agent in env.agents]
    action_spaces = [env.single_action_space(agent) for agent in env.agents]
    INIT_HP["AGENT_IDS"] = env.agents
    hp_config = HyperparameterConfig(
        lr_actor=RLParameter(min=1e-4, max=1e-2),
        lr_critic=RLParameter(min=1e-4, max=1e-2),
        batch_size=RLParameter(min=8, max=512, dtype=int),
        learn_step=RLParameter(min=20, max=200, dtype=int, grow_factor=1.5, shrink_factor=0.75),
    )
    pop = create_population(
        algo=INIT_HP["ALGO"],
        observation_space=observation_spaces,
        action_space=action_spaces,
        net_config=NET_CONFIG,
        INIT_HP=INIT_HP,
        hp_config=hp_config,
        population_size=INIT_HP["POPULATION_SIZE"],
        num_envs=num_envs,
        device="cpu",
    )
    memory = MultiAgentReplayBuffer(
        INIT_HP["MEMORY_SIZE"],
        field_names=["state", "action", "reward", "next_state", "done"],
        agent_ids=INIT_HP["AGENT_IDS"],
        device="cpu",
    )
    tournament = TournamentSelection(tournament_size=2, elitism=True, population_size=2, eval_loop=1)
    mutations = Mutations(
        no_mutation=0.2, architecture=0.2, new_layer_prob=0.2, parameters=0.2, activation=0, rl_hp=0.2,
        mutation_sd=0.1, rand_seed=1, device="cpu",
    )  # fmt: skip
    trained, fitnesses = train_multi_agent_off_policy(
        env=env, env_name="simple_speaker_listener_v4", algo=INIT_HP["ALGO"], pop=pop, memory=memory, INIT_HP=INIT_HP,
        swap_channels=INIT_HP["CHANNELS_LAST"], max_steps=200, evo_steps=100, eval_steps=None, eval_loop=1,
        learning_delay=0, target=None, tournament=tournament, mutation=mutations, wb=False, verbose=False,
        save_elite=True, elite_path=str(tmp_path / "elite.pt"),
    )  # fmt: skip
    assert [len(row) for row in fitnesses] == [2, 2]
    assert trained[0].agent_ids == ["speaker_0", "listener_0"]
    states, actions, rewards, next_states, dones = memory.sample(16)
    assert [actions[agent].shape for agent in trained[0].agent_ids] == [(16, 3), (16, 5)]
    assert states.keys() == rewards.keys() == next_states.keys() == dones.keys() == set(trained[0].agent_ids)
    assert set(trained[0].learn((states, actions, rewards, next_states, dones))) == {"speaker", "listener"}
    assert trained[0].shared_agent_ids == ["speaker", "listener"]
    assert not trained[0].has_grouped_agents()
    elite = type(trained[0]).load(tmp_path / "elite.pt")

    # The loop of the documentation: act, step, by dictionaries.
    obs, info = env.reset(seed=1)
    scores = np.zeros(num_envs)
    for _ in range(25):
        action, raw_action = elite.get_action(obs, infos=info, training=False)
        assert raw_action["speaker_0"].shape == (num_envs, 3)
        obs, reward, termination, truncation, info = env.step(action)
        scores += sum(reward.values())
    assert np.isfinite(scores).all()
    assert all(truncation["speaker_0"])
    assert not any(termination["speaker_0"])
    env.close()
