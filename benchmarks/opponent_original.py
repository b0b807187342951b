"""Runs the seed's DQN set-up with the original library, in the interpreter that has it; prints one JSON line.

Called by `throughput.py --original PYTHON`. Uses only the documented calls.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layer-norm", choices=["default", "on"], default="default")
    parser.add_argument("--generations", type=int, default=1)
    parser.add_argument("--sync", action="store_true", help="in-process environments instead of worker processes")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
    from agilerl.components.replay_buffer import ReplayBuffer
    from agilerl.hpo.mutation import Mutations
    from agilerl.hpo.tournament import TournamentSelection
    from agilerl.training.train_off_policy import train_off_policy
    from agilerl.utils.utils import create_population, make_vect_envs

    env = make_vect_envs("LunarLander-v3", num_envs=16, should_async_vector=not args.sync)
    encoder, head = {"hidden_size": [32, 32]}, {"hidden_size": [32]}
    if args.layer_norm == "on":
        encoder["layer_norm"] = head["layer_norm"] = True
    pop = create_population(
        algo="DQN",
        net_config={"latent_dim": 64, "encoder_config": encoder, "head_config": head},
        INIT_HP={"DOUBLE": True, "BATCH_SIZE": 128, "LR": 1e-3, "GAMMA": 0.99, "LEARN_STEP": 1, "TAU": 1e-3},
        observation_space=env.single_observation_space,
        action_space=env.single_action_space,
        hp_config=HyperparameterConfig(
            lr=RLParameter(min=1e-4, max=1e-2), batch_size=RLParameter(min=128, max=128, dtype=int)
        ),
        population_size=4,
        num_envs=16,
    )
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        wall, cpu = time.perf_counter(), cpu_seconds()
        train_off_policy(
            env=env,
            env_name="LunarLander-v3",
            algo="DQN",
            pop=pop,
            memory=ReplayBuffer(max_size=10_000),
            max_steps=10_000 * args.generations,
            evo_steps=10_000,
            eval_loop=1,
            learning_delay=1000,
            tournament=TournamentSelection(2, True, 4),
            mutation=Mutations(0.4, 0.2, 0.2, 0.2, 0.0, 0.2, mutation_sd=0.1, rand_seed=1),
            verbose=False,
        )
        env.close()  # the workers' CPU seconds count once they have ended
        cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    env_steps = sum(int(a.steps if isinstance(a.steps, int) else a.steps[-1]) for a in pop)
    print(json.dumps({"env_steps": env_steps, "cpu_seconds": cpu, "wall_seconds": wall}))


def cpu_seconds() -> float:
    """Of this process and of its ended children."""
    mine, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    main()
