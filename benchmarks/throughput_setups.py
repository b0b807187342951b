"""The set-ups of `throughput.py`, as data: both libraries and the plain loop read them. Standard library only."""

from __future__ import annotations

import os
import resource
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
MEMBERS, LANES, BATCH, REPLAY, DELAY = 4, 16, 128, 10_000, 1_000
DATA_ROWS = 10_000
NETWORK = {"encoder": [32, 32], "latent": 64, "head": [32]}
COMMON = {"BATCH_SIZE": BATCH, "GAMMA": 0.99, "LEARN_STEP": 1}
ACTOR_CRITIC = {**COMMON, "LR_ACTOR": 1e-4, "LR_CRITIC": 1e-3, "TAU": 5e-3, "POLICY_FREQ": 2, "O_U_NOISE": True}

PPO = {
    "BATCH_SIZE": 128, "LR": 1e-3, "LEARN_STEP": 128, "GAMMA": 0.99, "GAE_LAMBDA": 0.95, "CLIP_COEF": 0.2,
    "ENT_COEF": 0.01, "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5, "UPDATE_EPOCHS": 4,
}  # fmt: skip

# members: 4 where nothing is said. on_policy: rollouts of the members' own instead of replay.
# generation: environment steps of one member. rows: LayerNorm on in both libraries or each with its own default.
SETUPS: dict[str, dict[str, Any]] = {
    "dqn": {
        "algo": "DQN",
        "env": "LunarLander-v3",
        "generation": 10_000,
        "init_hp": {**COMMON, "DOUBLE": True, "LR": 1e-3, "TAU": 1e-3},
        "mutable": ["lr"],
        "rows": [("defaults", False), ("layer_norm", True)],
    },
    "td3": {
        "algo": "TD3",
        "env": "Pendulum-v1",
        "generation": 4_000,
        "init_hp": ACTOR_CRITIC,
        "mutable": ["lr_actor", "lr_critic"],
        "rows": [("defaults", False)],
    },
    "ddpg": {
        "algo": "DDPG",
        "env": "Pendulum-v1",
        "generation": 4_000,
        "init_hp": {**ACTOR_CRITIC, "TAU": 1e-3},
        "mutable": ["lr_actor", "lr_critic"],
        "rows": [("defaults", False)],
    },
    "sac": {
        "algo": "SAC",
        "env": "Pendulum-v1",
        "generation": 4_000,
        "init_hp": {**COMMON, "LR_ACTOR": 1e-3, "LR_CRITIC": 1e-3, "LR_ALPHA": 1e-3, "TAU": 5e-3},
        "mutable": ["lr_actor", "lr_critic"],
        "rows": [("defaults", False)],
    },
    "rainbow": {
        "algo": "Rainbow DQN",
        "env": "LunarLander-v3",
        "generation": 4_000,
        "init_hp": {**COMMON, "LR": 1e-3, "TAU": 1e-3, "V_MIN": -200, "V_MAX": 200, "NUM_ATOMS": 51, "N_STEP": 3},
        "mutable": ["lr"],
        "rows": [("defaults", False)],
        "prioritised_n_step": True,
    },
    "ppo": {
        "algo": "PPO",
        "env": "LunarLander-v3",
        "generation": 10_000,
        "members": 6,
        "on_policy": True,
        "init_hp": PPO,
        "mutable": ["lr"],
        "rows": [("defaults", False)],
    },
    "ppo_recurrent": {
        "algo": "PPO",
        "env": "LunarLander-v3",
        "generation": 10_000,
        "members": 6,
        "on_policy": True,
        "recurrent": True,
        "init_hp": {**PPO, "RECURRENT": True, "USE_ROLLOUT_BUFFER": True},
        "mutable": ["lr"],
        "rows": [("defaults", False)],
    },
}
SETUPS["dqn_mutated"] = {**SETUPS["dqn"], "generations": 2, "rows": [("defaults", False)]}
# From data: a step is an update. `DATA_ROWS` rows of random actions.
SETUPS["cqn"] = {
    "algo": "CQN",
    "env": "CartPole-v1",
    "generation": 1_000,
    "init_hp": {**COMMON, "DOUBLE": True, "LR": 1e-3, "TAU": 1e-3},
    "mutable": ["lr"],
    "rows": [("defaults", False)],
    "offline": True,
}
# The same on EnvPool's lanes; the other side has Gymnasium's environments, which it was made for.
SETUPS["ppo_envpool"] = {**SETUPS["ppo"], "backend": "envpool"}


def random_data(env_id: str, seed: int) -> dict[str, Any]:
    """Random actions in the environment, as arrays of the names that both libraries read."""
    import gymnasium
    import numpy as np

    env, rng = gymnasium.make(env_id), np.random.default_rng(seed)
    kept: dict[str, list[Any]] = {"observations": [], "actions": [], "rewards": [], "terminals": []}
    obs, _ = env.reset(seed=seed)
    for _ in range(DATA_ROWS):
        action = int(rng.integers(env.action_space.n))
        later, reward, terminated, truncated, _ = env.step(action)
        for column, value in zip(kept, (obs, action, reward, terminated or truncated), strict=True):
            kept[column].append(value)
        obs = env.reset()[0] if terminated or truncated else later
    return {column: np.array(values) for column, values in kept.items()}


def net_config(layer_norm: bool, recurrent: bool = False) -> dict[str, Any]:
    """The published network configuration; LayerNorm is named only where it is asked for."""
    if recurrent:
        encoder = {"hidden_state_size": 64, "num_layers": 1, "max_seq_len": 512}
        return {"encoder_config": encoder, "head_config": {"hidden_size": [64]}}
    extra = {"layer_norm": True} if layer_norm else {}
    return {
        "latent_dim": NETWORK["latent"],
        "encoder_config": {"hidden_size": NETWORK["encoder"], **extra},
        "head_config": {"hidden_size": NETWORK["head"], **extra},
    }


def cpu_seconds() -> float:
    """Of this process and of its ended children."""
    mine, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + children.ru_utime + children.ru_stime
