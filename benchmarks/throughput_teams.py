"""One generation of a population of teams, for `throughput.py`: this package's side. The set-ups are `TEAMS` below.

Population 4, 16 environments, the published network (64, latent 64, head 64) and the published defaults of each class
(batch 64, an update every 5 steps; IPPO as the set-up says), one generation, 16 evaluation episodes a member,
tournament and mutation.
"""

from __future__ import annotations

import importlib
from typing import Any

from throughput_setups import DELAY, LANES, MEMBERS, REPLAY, cpu_seconds

REPLAYED = {
    "BATCH_SIZE": 64, "LR_ACTOR": 1e-3, "LR_CRITIC": 1e-3, "GAMMA": 0.95, "TAU": 0.01, "LEARN_STEP": 5,
    "POLICY_FREQ": 2, "O_U_NOISE": True, "EXPL_NOISE": 0.1, "MEAN_NOISE": 0.0, "THETA": 0.15, "DT": 0.01,
}  # fmt: skip
ROLLED_OUT = {
    "BATCH_SIZE": 128, "LR": 1e-3, "LEARN_STEP": 128, "GAMMA": 0.99, "GAE_LAMBDA": 0.95, "CLIP_COEF": 0.2,
    "ENT_COEF": 0.01, "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5, "UPDATE_EPOCHS": 4,
}  # fmt: skip
NETWORK = {"latent_dim": 64, "encoder_config": {"hidden_size": [64]}, "head_config": {"hidden_size": [64]}}
SPEAKER, SPREAD = "simple_speaker_listener_v4", "simple_spread_v3"


def _setup(algo: str, env: str, init_hp: dict[str, Any], mutable: list[str]) -> dict[str, Any]:
    return {
        "algo": algo, "env": f"mpe2.{env}", "module": env, "init_hp": init_hp, "mutable": mutable,
        "generation": 8_000, "team": True, "on_policy": algo == "IPPO", "rows": [("defaults", False)],
    }  # fmt: skip


RATES = ["lr_actor", "lr_critic"]
TEAMS = {
    "maddpg_speaker_listener": _setup("MADDPG", SPEAKER, REPLAYED, RATES),
    "matd3_speaker_listener": _setup("MATD3", SPEAKER, REPLAYED, RATES),
    "ippo_speaker_listener": _setup("IPPO", SPEAKER, ROLLED_OUT, ["lr"]),
    "maddpg_spread": _setup("MADDPG", SPREAD, REPLAYED, RATES),
    "matd3_spread": _setup("MATD3", SPREAD, REPLAYED, RATES),
    "ippo_spread": _setup("IPPO", SPREAD, ROLLED_OUT, ["lr"]),
}


def parallel_env(setup: dict[str, Any]) -> Any:
    """What makes one of the set-up's environments."""
    return importlib.import_module(f"mpe2.{setup['module']}").parallel_env


def ours(setup: dict[str, Any], seed: int) -> dict[str, Any]:
    """One generation with this package, through its published training function."""
    from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
    from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
    from agilerl.hpo.mutation import Mutations
    from agilerl.hpo.tournament import TournamentSelection
    from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
    from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
    from agilerl.utils.utils import create_population, make_multi_agent_vect_envs

    env = make_multi_agent_vect_envs(f"mpe2.{setup['module']}", num_envs=LANES)
    population = create_population(
        algo=setup["algo"],
        net_config=NETWORK,
        INIT_HP={**setup["init_hp"], "AGENT_IDS": list(env.possible_agents)},
        observation_space=[env.single_observation_space(agent) for agent in env.possible_agents],
        action_space=[env.single_action_space(agent) for agent in env.possible_agents],
        hp_config=HyperparameterConfig(**{name: RLParameter(min=1e-4, max=1e-2) for name in setup["mutable"]}),
        population_size=MEMBERS,
        num_envs=LANES,
        seed=seed,
    )
    options: dict[str, Any] = {}
    train: Any = train_multi_agent_on_policy
    if not setup["on_policy"]:
        train = train_multi_agent_off_policy
        options = {
            "memory": MultiAgentReplayBuffer(max_size=REPLAY, agent_ids=list(env.possible_agents)),
            "learning_delay": DELAY,
        }
    before = cpu_seconds()
    trained, _ = train(
        env,
        setup["module"],
        setup["algo"],
        population,
        **options,
        max_steps=setup["generation"],
        evo_steps=setup["generation"],
        eval_loop=1,
        tournament=TournamentSelection(2, True, MEMBERS, seed=seed),
        mutation=Mutations(0.4, 0.2, 0.2, 0.2, 0.0, 0.2, mutation_sd=0.1, rand_seed=seed),
        verbose=False,
        seed=seed,
    )
    env.close()
    return {"env_steps": sum(agent.steps[-1] for agent in trained), "cpu_seconds": cpu_seconds() - before}
