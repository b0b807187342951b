"""Runs one set-up of `throughput_teams.py` with the original library, in the interpreter that has it.

Called by `throughput.py --original PYTHON`; prints one JSON line. Uses only the documented calls.
"""

from __future__ import annotations

import argparse
import json
import os
import sysconfig
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path

from throughput_setups import DELAY, LANES, MEMBERS, REPLAY, cpu_seconds
from throughput_teams import NETWORK, TEAMS, parallel_env


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--setup", choices=list(TEAMS), required=True)
    parser.add_argument("--layer-norm", choices=["default"], default="default")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    import torch

    import agilerl

    found = Path(agilerl.__file__).resolve()
    if sysconfig.get_paths()["purelib"] not in str(found) or version("agilerl") != "2.58.0":
        raise SystemExit(f"this must run agilerl 2.58.0 of its own interpreter; found {version('agilerl')} at {found}")
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
    from agilerl.components.replay_buffer import ReplayBuffer  # of teams too, in this version
    from agilerl.hpo.mutation import Mutations
    from agilerl.hpo.tournament import TournamentSelection
    from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
    from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
    from agilerl.utils.utils import create_population, make_multi_agent_vect_envs

    setup = TEAMS[args.setup]
    env = make_multi_agent_vect_envs(parallel_env(setup), num_envs=LANES)
    agents = list(env.agents)
    pop = create_population(
        algo=setup["algo"],
        net_config=NETWORK,
        INIT_HP={**setup["init_hp"], "AGENT_IDS": agents},
        observation_space=[env.single_observation_space(agent) for agent in agents],
        action_space=[env.single_action_space(agent) for agent in agents],
        hp_config=HyperparameterConfig(**{name: RLParameter(min=1e-4, max=1e-2) for name in setup["mutable"]}),
        population_size=MEMBERS,
        num_envs=LANES,
    )
    options = {}
    train = train_multi_agent_on_policy
    if not setup["on_policy"]:
        train = train_multi_agent_off_policy
        options = {"memory": ReplayBuffer(max_size=REPLAY), "learning_delay": DELAY}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        wall, cpu = time.perf_counter(), cpu_seconds()
        train(
            env,
            setup["module"],
            setup["algo"],
            pop,
            **options,
            max_steps=setup["generation"],
            evo_steps=setup["generation"],
            eval_loop=1,
            tournament=TournamentSelection(2, True, MEMBERS),
            mutation=Mutations(0.4, 0.2, 0.2, 0.2, 0.0, 0.2, mutation_sd=0.1, rand_seed=1),
            verbose=False,
        )
        env.close()  # the workers' CPU seconds count once they have ended
        cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    env_steps = sum(int(a.steps if isinstance(a.steps, int) else a.steps[-1]) for a in pop)
    print(json.dumps({"env_steps": env_steps, "cpu_seconds": cpu, "wall_seconds": wall}))


if __name__ == "__main__":
    main()
