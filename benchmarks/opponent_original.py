"""Runs one set-up of `throughput_setups.py` with the original library, in the interpreter that has it.

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

from throughput_setups import BATCH, DELAY, LANES, MEMBERS, REPLAY, SETUPS, cpu_seconds, net_config, random_data


def count_updates(kind, counted):
    """Count the calls of `learn` of a class of agents, and note the CPU seconds before the first."""
    learn = kind.learn

    def counting(self, *given, **named):
        if not counted["updates"]:
            counted["filled"] = cpu_seconds()
        counted["updates"] += 1
        return learn(self, *given, **named)

    kind.learn = counting


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--setup", choices=list(SETUPS), default="dqn")
    parser.add_argument("--layer-norm", choices=["default", "on"], default="default")
    parser.add_argument("--sync", action="store_true", help="in-process environments instead of worker processes")
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
    from agilerl.components.replay_buffer import MultiStepReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
    from agilerl.hpo.mutation import Mutations
    from agilerl.hpo.tournament import TournamentSelection
    from agilerl.training.train_off_policy import train_off_policy
    from agilerl.training.train_offline import train_offline
    from agilerl.training.train_on_policy import train_on_policy
    from agilerl.utils.utils import create_population, make_vect_envs

    setup = SETUPS[args.setup]
    members = setup.get("members", MEMBERS)
    env = make_vect_envs(setup["env"], num_envs=LANES, should_async_vector=not args.sync)
    network = net_config(args.layer_norm == "on", setup.get("recurrent", False))
    network["encoder_config"].pop("max_seq_len", None)  # published there, but refused by this version
    pop = create_population(
        algo=setup["algo"],
        net_config=network,
        INIT_HP=setup["init_hp"],
        observation_space=env.single_observation_space,
        action_space=env.single_action_space,
        hp_config=HyperparameterConfig(
            **{name: RLParameter(min=1e-4, max=1e-2) for name in setup["mutable"]},
            batch_size=RLParameter(min=BATCH, max=BATCH, dtype=int),
        ),
        population_size=members,
        num_envs=LANES,
    )
    memories = {"memory": ReplayBuffer(max_size=REPLAY)}
    if setup.get("prioritised_n_step"):
        memories = {
            "memory": PrioritizedReplayBuffer(max_size=REPLAY),
            "n_step_memory": MultiStepReplayBuffer(max_size=REPLAY, n_step=3, gamma=0.99),
        }
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        wall, cpu = time.perf_counter(), cpu_seconds()
        train = train_on_policy if setup.get("on_policy") else train_off_policy
        counted = {"updates": 0, "filled": 0.0}
        if setup.get("on_policy"):
            memories = {}
        elif setup.get("offline"):
            train, memories["dataset"] = train_offline, random_data(setup["env"], args.seed)
            count_updates(type(pop[0]), counted)
            wall, cpu = time.perf_counter(), cpu_seconds()
        else:
            memories["learning_delay"] = DELAY
        train(
            env=env,
            env_name=setup["env"],
            algo=setup["algo"],
            pop=pop,
            **memories,
            max_steps=setup["generation"],
            evo_steps=setup["generation"],
            eval_loop=1,
            tournament=TournamentSelection(2, True, members),
            mutation=Mutations(0.4, 0.2, 0.2, 0.2, 0.0, 0.2, mutation_sd=0.1, rand_seed=1),
            verbose=False,
        )
        env.close()  # the workers' CPU seconds count once they have ended
        begun = cpu
        cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    if counted["updates"]:
        filled = counted["filled"] - begun
        found = {"env_steps": counted["updates"], "cpu_seconds": cpu - filled, "filling_cpu_seconds": filled}
        print(json.dumps({**found, "wall_seconds": wall}))
        return
    env_steps = sum(int(a.steps if isinstance(a.steps, int) else a.steps[-1]) for a in pop)
    print(json.dumps({"env_steps": env_steps, "cpu_seconds": cpu, "wall_seconds": wall}))


if __name__ == "__main__":
    main()
