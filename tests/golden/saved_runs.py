"""Tiny runs that are saved, and agents that are: what the tests of checkpoints and of older runs write and read.

Nothing but published names is imported, so that files can move inside the package without a change here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from cases import BoxHills, Couriers, Hills, Numbers, transitions

import agilerl
from agilerl.algorithms import DDPG, DQN, PPO, SAC, TD3, RainbowDQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.training.train_off_policy import train_off_policy
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import create_population, make_vect_envs
from agilerl.wrappers.agent import RSNorm

SMALL: dict[str, Any] = {
    "env": "CartPole-v1", "population": 2, "steps": 96, "evo_steps": 32, "num_envs": 2, "seed": 5, "eval_episodes": 2,
    "eval_steps": 20, "elite_rescore_episodes": 0, "target_score": None, "batch_size": 8,
    "no_mut": 0.1, "arch_mut": 0.3, "params_mut": 0.3, "rl_hp_mut": 0.3, "act_mut": 0.1,
    "network.latent_dim": 4, "network.min_latent_dim": 4, "network.max_latent_dim": 8,
    "network.encoder_config.hidden_size": [4], "network.head_config.hidden_size": [4],
    "network.encoder_config.min_mlp_nodes": 4, "network.head_config.min_mlp_nodes": 4,
    "network.encoder_config.max_mlp_nodes": 8, "network.head_config.max_mlp_nodes": 8,
    "network.encoder_config.max_hidden_layers": 2, "network.head_config.max_hidden_layers": 2,
}  # fmt: skip
# What general presets say beside it, so that these runs do not change with them.
SMALL |= {
    "evolution.founders": "equal",
    "restarts": False,
    "eval_members": None,
    "eval_screen": 0,
    "evo_first": None,
    "patience": None,
    "confirm_screen": 0,
    "confirm_most": 0,
    "stop_errors": 0.0,
    "evolve_from": 0.1,
    "normalize_rewards": False,
    "scale_observations": False,
}
OLD = {
    "DQN": {"explore_hold": 1, "lr": 1e-3, "gamma": 0.99},
    "PPO": {"lr_schedule": "constant", "target_kl": None, "normalize_observations": False, "lr": 5e-4},
}
RANGES = {
    "DQN": {"lr": {"min": 1e-4, "max": 1e-2}, "batch_size": {"min": 32, "max": 256}},
    "PPO": {"lr": {"min": 2e-4, "max": 5e-3}, "batch_size": {"min": 32, "max": 512}},
    "TD3": {
        "lr_actor": {"min": 1e-4, "max": 5e-3}, "lr_critic": {"min": 1e-4, "max": 5e-3},
        "batch_size": {"min": 32, "max": 256},
    },
}  # fmt: skip
OLD = {name: {**OLD.get(name, {}), "mutation.rl_hp_selection": ranges} for name, ranges in RANGES.items()}
REPLAY = {**SMALL, "learn_step": 4, "learning_delay": 16, "max_size": 128}
BOX = {**REPLAY, "env": "Pendulum-v1"}
LEARNED = {**SMALL, "dataset": "data.npz"}  # under the folder of the run
ROLLOUT = {**SMALL, "learn_step": 32, "update_epochs": 2}
SCHEMES = {  # they have no mutation of a tournament
    **{key: value for key, value in {**ROLLOUT, **OLD["PPO"]}.items() if not key.endswith("_mut")},
    "population": 4, "evolve_from": 0.0, "evolution.founders": "spread",
}  # fmt: skip
LSTM = {"hidden_state_size": 4, "min_hidden_state_size": 4, "max_hidden_state_size": 8}
RUNS: dict[str, dict[str, Any]] = {
    "DQN": {**REPLAY, **OLD["DQN"], "algo": "DQN"},
    "RainbowDQN-per-n-step": {
        **REPLAY, "algo": "RainbowDQN", "prioritized": True, "replay_buffer.n_step": 3, "algorithm.n_step": 3,
        "num_atoms": 5, "v_max": 20.0,
    },
    "TD3": {**BOX, **OLD["TD3"], "random_steps": 2000, "algo": "TD3"},
    "SAC": {**BOX, **OLD["TD3"], "random_steps": 2000, "algo": "SAC"},
    "PPO": {**ROLLOUT, **OLD["PPO"], "algo": "PPO"},
    "PPO-recurrent": {
        **ROLLOUT, **OLD["PPO"], "algo": "PPO", "recurrent": True, "network.encoder": LSTM, "max_seq_len": 8,
    },
    "IPPO": {**ROLLOUT, "env": "Couriers", "algo": "IPPO"},
    "IPPO-recurrent": {
        **ROLLOUT, "env": "Couriers", "algo": "IPPO", "recurrent": True, "network.encoder": LSTM, "max_seq_len": 8,
    },
    "MAPPO": {**ROLLOUT, "env": "Couriers", "algo": "MAPPO"},
    "IPPO-self-play": {**ROLLOUT, "env": "Numbers", "algo": "IPPO", "opponents": "self"},
    **{f"PPO-{scheme}": {**SCHEMES, "algo": "PPO", "scheme": scheme} for scheme in ("race", "halving", "pb2")},
    "PPO-mf_pbt": {**SCHEMES, "algo": "PPO", "scheme": "mf_pbt", "frequencies": [1, 2], "population": 8},
    "CQN": {**LEARNED, "algo": "CQN", "fitness": "fqe", "fqe_updates": 10},
    "IQL": {**LEARNED, "env": "Pendulum-v1", "algo": "IQL"},
}  # fmt: skip


MADE = {"CartPole-v1": Hills, "Pendulum-v1": BoxHills, "Couriers": Couriers, "Numbers": Numbers}


def with_data(case: dict[str, Any], out: Path) -> dict[str, Any]:
    """The case with its data set, where it has one, written under `out`."""
    if "dataset" not in case:
        return case
    file = out / case["dataset"]
    np.savez(file, **transitions(MADE[case["env"]].__name__))
    return {**case, "dataset": str(file)}


def saved_run(name: str, out: Path, **changes: Any) -> agilerl.Run:
    """The run `name`, saved under `out`, in an environment of integers, so that every machine selects alike."""
    case = with_data({**RUNS[name], **changes}, out)
    return agilerl.train(**{**case, "env": MADE[case["env"]]}, out=out, verbose=False)


def saved_run_by_id(name: str, out: Path, **changes: Any) -> agilerl.Run:
    """The same in an environment that is made by its id, so that nothing but the files is needed to go on."""
    return agilerl.train(**with_data({**RUNS[name], **changes}, out), out=out, verbose=False)


AGENTS: dict[str, tuple[type[Any], str, str]] = {  # class of the agent, class that loads it, environment
    "DDPG": (DDPG, "DDPG", "Pendulum-v1"),
    "DQN": (DQN, "DQN", "CartPole-v1"),
    "PPO": (PPO, "PPO", "CartPole-v1"),
    "PPO-box": (PPO, "PPO", "Pendulum-v1"),
    "PPO-recurrent": (PPO, "PPO", "CartPole-v1"),
    "RSNorm-DQN": (DQN, "RSNorm", "CartPole-v1"),
    "RainbowDQN": (RainbowDQN, "RainbowDQN", "CartPole-v1"),
    "SAC": (SAC, "SAC", "Pendulum-v1"),
    "SAC-discrete": (SAC, "SAC", "CartPole-v1"),
    "TD3": (TD3, "TD3", "Pendulum-v1"),
}
LOADERS: dict[str, Any] = {c.__name__: c for c in (DDPG, DQN, PPO, RSNorm, RainbowDQN, SAC, TD3)}


def trained_agent(name: str) -> Any:
    """A tiny agent after one generation of 64 steps, so that its optimisers have moments."""
    cls, loader, env_id = AGENTS[name]
    env = make_vect_envs(env_id, num_envs=2)
    encoder = LSTM if name == "PPO-recurrent" else {"hidden_size": [4], "min_mlp_nodes": 4}
    extra = {
        "RainbowDQN": {"num_atoms": 5, "v_min": -1.0, "v_max": 1.0},
        "PPO-recurrent": {"recurrent": True, "max_seq_len": 8},
    }
    (agent,) = create_population(
        cls.__name__,
        {
            "latent_dim": 4,
            "min_latent_dim": 4,
            "encoder_config": encoder,
            "head_config": {"hidden_size": [4], "min_mlp_nodes": 4},
        },
        {"BATCH_SIZE": 8, "LEARN_STEP": 32 if cls is PPO else 4},
        env.single_observation_space,
        env.single_action_space,
        seed=5,
        num_envs=2,
        algo_kwargs=extra.get(name),
    )
    population = [RSNorm(agent) if loader == "RSNorm" else agent]
    options: dict[str, Any] = {"max_steps": 64, "evo_steps": 64, "eval_steps": 20, "verbose": False, "seed": 5}
    if cls is PPO:
        (trained,), _ = train_on_policy(env, env_id, pop=population, **options)
    else:
        (trained,), _ = train_off_policy(env, env_id, pop=population, memory=ReplayBuffer(max_size=128), **options)
    env.close()
    return trained


def greedy_actions(agent: Any, obs: np.ndarray) -> np.ndarray:
    """What the agent does for observations [B, ...] without exploration, through its published method."""
    agent.set_training_mode(False)
    found = agent.get_action(obs)
    return np.asarray(found[0] if isinstance(found, tuple) else found)


def observations(env_id: str, count: int = 16) -> np.ndarray:
    """Observations [count, O] float32 with numbers that have a short decimal form."""
    width = {"CartPole-v1": 4, "Pendulum-v1": 3}[env_id]
    drawn = np.random.default_rng(0).integers(-16, 17, (count, width))
    return (drawn / 16).astype(np.float32)


def weight_sums(agent: Any) -> dict[str, float]:
    """Sum of the magnitudes of every tensor of the policy."""
    return {name: float(tensor.double().abs().sum()) for name, tensor in agent.policy_state().items()}
