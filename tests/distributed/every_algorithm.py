"""Run by two processes: every algorithm trains a short run with evolution, in which each generation compares weights.

Usage: every_algorithm.py FOLDER
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from accelerate import Accelerator
from team_games import Meeting

from agilerl.algorithms import find_algorithm
from agilerl.components.replay_buffer import MultiStepReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.distributed import digest
from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl.training.train_off_policy import train_off_policy
from agilerl.training.train_offline import train_offline
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import make_vect_envs
from agilerl.vector import SyncPettingZooVecEnv

NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}
RECURRENT = {**NET, "encoder_config": {"hidden_state_size": 8}}


def given(**more: Any) -> dict[str, Any]:
    evolution = {
        "tournament": TournamentSelection(2, True, 3, 1, seed=1),
        "mutation": Mutations(0.1, 0.5, 0.3, 0.3, 0.0, 0.2, rand_seed=4),
    }
    return {"max_steps": 96, "evo_steps": 32, "eval_steps": 6, "seed": 5, "verbose": False, **evolution, **more}


def alone(accelerator: Any, algo: str, env_id: str, *, net: Any = NET, hp: Any = None, **more: Any) -> Any:
    """A run of agents for one agent."""
    env = make_vect_envs(env_id, num_envs=2, should_async_vector=False)
    kind, spaces = find_algorithm(algo), (env.single_observation_space, env.single_action_space)
    own = {"batch_size": 7, **(hp or {})}
    agents = [kind(*spaces, index=i, net_config=net, **own) for i in range(3)]
    settings = given(pop=agents, accelerator=accelerator, **more)
    if algo == "PPO":
        return train_on_policy(env, env_id, **settings)
    if kind.experience.name == "dataset":
        return train_offline(
            env, env_id, data(env), memory=ReplayBuffer(500), **{**settings, "max_steps": 30, "evo_steps": 10}
        )
    settings.setdefault("memory", ReplayBuffer(200))
    return train_off_policy(env, env_id, **settings)


def data(env: Any) -> dict[str, np.ndarray]:
    rng, rows, space = np.random.default_rng(0), 200, env.single_action_space
    box = isinstance(space, gym.spaces.Box)
    return {
        "observations": rng.normal(size=(rows, *env.single_observation_space.shape)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (rows, *space.shape)).astype(np.float32) if box else rng.integers(2, size=rows),
        "rewards": rng.normal(size=rows),
        "terminals": rng.random(rows) < 0.1,
    }


def team(accelerator: Any, algo: str, *, net: Any = NET, hp: Any = None, **more: Any) -> Any:
    """A run of teams."""
    env = SyncPettingZooVecEnv([Meeting, Meeting])
    one, kind = Meeting(), find_algorithm(algo)
    ids = list(one.possible_agents)
    each = [one.observation_space(a) for a in ids], [one.action_space(a) for a in ids]
    agents = [kind(*each, ids, index=i, net_config=net, batch_size=7, learn_step=16, **(hp or {})) for i in range(3)]
    settings = given(pop=agents, accelerator=accelerator, **more)
    if algo in ("IPPO", "MAPPO"):
        return train_multi_agent_on_policy(env, "Meeting", **settings)
    return train_multi_agent_off_policy(env, "Meeting", memory=ReplayBuffer(300), **settings)


def cases(accelerator: Any) -> dict[str, Callable[[], Any]]:
    pole, swing, step = "CartPole-v1", "Pendulum-v1", {"learn_step": 4}
    rollout = {"learn_step": 16, "update_epochs": 2, "target_kl": 0.01}
    both = lambda: {  # noqa: E731
        "memory": PrioritizedReplayBuffer(200),
        "n_step_memory": MultiStepReplayBuffer(200, n_step=3, gamma=0.99),
        "per": True,
        "n_step": True,
    }
    return {
        "DQN by priority, of n steps": lambda: alone(accelerator, "DQN", pole, hp=step, **both()),
        "QRDQN": lambda: alone(accelerator, "QRDQN", pole, hp={**step, "num_quantiles": 8}),
        "Rainbow": lambda: alone(accelerator, "RainbowDQN", pole, hp=step, **both()),
        "DDPG": lambda: alone(accelerator, "DDPG", swing, hp=step),
        "TD3": lambda: alone(accelerator, "TD3", swing, hp=step, carry_envs=True),
        "SAC": lambda: alone(accelerator, "SAC", swing, hp=step),
        "TQC": lambda: alone(accelerator, "TQC", swing, hp=step),
        "PPO": lambda: alone(accelerator, "PPO", swing, hp={**rollout, "normalize_observations": True}),
        "PPO sequential": lambda: alone(accelerator, "PPO", pole, hp=rollout, learner="sequential"),
        "PPO recurrent": lambda: alone(accelerator, "PPO", pole, net=RECURRENT, hp={**rollout, "recurrent": True}),
        "not in lockstep": lambda: alone(accelerator, "DQN", pole, hp=step, lockstep=False),
        "CQN": lambda: alone(accelerator, "CQN", pole),
        "CQN judged on data": lambda: alone(accelerator, "CQN", pole, fitness="fqe", fqe_updates=5),
        "IQL": lambda: alone(accelerator, "IQL", swing),
        "CQL": lambda: alone(accelerator, "CQL", swing),
        "TD3BC": lambda: alone(accelerator, "TD3BC", swing),
        "BC": lambda: alone(accelerator, "BC", pole),
        "MADDPG": lambda: team(accelerator, "MADDPG"),
        "MATD3": lambda: team(accelerator, "MATD3", sum_scores=False),
        "IPPO": lambda: team(accelerator, "IPPO"),
        "MAPPO": lambda: team(accelerator, "MAPPO", hp={"normalize_observations": True}),
        "MAPPO recurrent": lambda: team(accelerator, "MAPPO", net=RECURRENT, hp={"recurrent": True}),
    }


def main(folder: Path) -> None:
    accelerator = Accelerator()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for name, run in cases(accelerator).items():
        torch.manual_seed(accelerator.process_index)
        try:
            agents, history = run()
            kept = [getattr(agent, "value_statistics", None) for agent in agents]
            found[name] = {"digest": digest(agents), "history": np.asarray(history).tolist(), "statistics": kept}
        except Exception:  # said by the test
            found[name] = {"error": traceback.format_exc()}
    (folder / f"rank-{accelerator.process_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
