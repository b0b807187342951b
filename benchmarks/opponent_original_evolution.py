"""Runs one job of `evolution.py` with agilerl 2.58.0's published evolution, in an environment of its own.

    python3.11 -m venv /path/to/original
    /path/to/original/bin/pip install agilerl==2.58.0 peft transformers accelerate "gymnasium[box2d,mujoco]"
    /path/to/original/bin/python benchmarks/opponent_original_evolution.py --job '{"arm": "agilerl-2.58.0", ...}'

The job and the line are those of `opponent_peers.py`; `lr_factor` multiplies the class's default learning rates. Only
documented calls are used: a population of four (six for PPO), 16 environments stepped in this process, tournaments of
two with elitism, and the published probabilities of mutation. Learning rates, batch size and `learn_step` mutate. It
has no SAC. What is tested is a clone of the elite of the last selection, before the first one of the first member, by
the agents' own `test`; the seeds of its lanes are set from outside.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import os
import sys
import tempfile
import warnings
from importlib.metadata import version
from typing import Any

from peers_clock import Player, Watch

os.environ["OMP_NUM_THREADS"] = "1"
LANES, EVO_STEPS, REPLAY = 16, 10_000, 100_000


class Finished(Exception):
    """The budgets are used up, or the target is reached."""


class Run:
    """One population, watched at every vector step."""

    def __init__(self, job: dict[str, Any]) -> None:
        import gymnasium

        from agilerl import algorithms
        from agilerl.utils.utils import make_vect_envs

        if job["algo"] not in ("DQN", "PPO", "TD3"):
            raise SystemExit(f"agilerl 2.58.0 has no {job['algo']}; fix: one of DQN, PPO, TD3")
        self.job, self.watch, self.testing = job, Watch(job), False
        self.kind = getattr(algorithms, job["algo"])
        run, test = self, self.kind.test

        class Counted(gymnasium.vector.VectorWrapper):  # type: ignore[misc]
            def step(self, actions: Any) -> Any:
                found = super().step(actions)
                if run.testing:
                    run.watch.evaluation_env_steps += LANES
                else:
                    run.watch.training_env_steps += LANES
                if run.watch.look(run.player):
                    raise Finished
                return found

        def counted_test(agent: Any, *given: Any, **named: Any) -> Any:
            before, run.testing = run.testing, True
            try:
                return test(agent, *given, **named)
            finally:
                run.testing = before

        self.kind.test, self.plain_test = counted_test, test
        self.env = Counted(make_vect_envs(job["env"], num_envs=LANES, should_async_vector=False))
        self.members = 6 if job["algo"] == "PPO" else 4
        self.population = self.founders()
        self.elite: Any = None

    def founders(self) -> list[Any]:
        from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter

        start, defaults = self.job["start"], inspect.signature(self.kind.__init__).parameters
        rates = [name for name in ("lr", "lr_actor", "lr_critic") if name in defaults]
        given = {name: start["lr_factor"] * defaults[name].default for name in rates}
        given |= {name: start[name] for name in ("gamma", "batch_size") if start.get(name) is not None}
        if start.get("width") is not None:
            layers = {"hidden_size": [start["width"]], "min_mlp_nodes": min(8, start["width"])}
            given["net_config"] = {"latent_dim": start["width"], "encoder_config": layers, "head_config": layers}
        low, high = start["lr_range"]
        learn_steps = (256, 8192) if self.job["algo"] == "PPO" else (1, 10)
        mutable = {name: RLParameter(min=min(low, given[name]), max=max(high, given[name])) for name in rates}
        mutable |= {
            "batch_size": RLParameter(min=min(32, given.get("batch_size", 32)), max=256, dtype=int),
            "learn_step": RLParameter(
                min=learn_steps[0], max=learn_steps[1], grow_factor=1.5, shrink_factor=0.75, dtype=int
            ),
        }
        if self.job["algo"] == "PPO":
            given["num_envs"] = LANES
        if self.job["algo"] == "TD3":
            given["vect_noise_dim"] = LANES
        return list(
            self.kind.population(
                self.members,
                self.env.single_observation_space,
                self.env.single_action_space,
                hp_config=HyperparameterConfig(**mutable),
                **given,
            )
        )

    def player(self) -> Player:
        """Of the fittest agent."""
        agent = (self.population[0] if self.elite is None else self.elite).clone()
        return lambda seeds: self.play(agent, seeds)

    def play(self, agent: Any, seeds: list[int]) -> float:
        """Mean return of the first episode of as many lanes as there are seeds."""
        import gymnasium

        class Seeded(gymnasium.vector.VectorWrapper):  # type: ignore[misc]
            def reset(self, **_: Any) -> Any:
                return super().reset(seed=seeds)

        env = Seeded(gymnasium.make_vec(self.job["env"], num_envs=len(seeds), vectorization_mode="sync"))
        try:
            return float(self.plain_test(agent, env, loop=1))
        finally:
            env.close()

    def train(self) -> None:
        from agilerl.components.replay_buffer import ReplayBuffer
        from agilerl.hpo.mutation import Mutations
        from agilerl.hpo.tournament import TournamentSelection
        from agilerl.training.train_off_policy import train_off_policy
        from agilerl.training.train_on_policy import train_on_policy

        run = self

        class Following(TournamentSelection):  # type: ignore[misc]
            def select(self, population: Any) -> Any:
                found = super().select(population)
                run.elite = found[0].clone()
                return found

        on_policy = self.job["algo"] == "PPO"
        memory = {} if on_policy else {"memory": ReplayBuffer(max_size=REPLAY)}
        with contextlib.suppress(Finished):
            (train_on_policy if on_policy else train_off_policy)(
                env=self.env,
                env_name=self.job["env"],
                algo=self.job["algo"],
                pop=self.population,
                **memory,
                max_steps=10**12,
                evo_steps=EVO_STEPS,
                eval_loop=1,
                tournament=Following(2, True, self.members),
                mutation=Mutations(0.4, 0.2, 0.2, 0.2, 0.0, 0.2, mutation_sd=0.1, rand_seed=self.job["seed"]),
                verbose=False,
            )

    def line(self) -> dict[str, Any]:
        best = self.population[0] if self.elite is None else self.elite
        names = ("lr", "lr_actor", "lr_critic", "gamma", "batch_size", "learn_step")
        found = {name: getattr(best, name) for name in names if hasattr(best, name)}
        plain = {name: value.item() if hasattr(value, "item") else value for name, value in found.items()}
        return self.watch.line(self.player, plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", required=True)
    job = json.loads(parser.parse_args().job)
    warnings.simplefilter("ignore")
    import numpy as np
    import torch
    import torch._dynamo  # optimisers load it in their first step: an import, which does not count

    if version("agilerl") != "2.58.0":
        raise SystemExit(f"this must run agilerl 2.58.0; found {version('agilerl')}")
    torch.set_num_threads(1)
    torch.manual_seed(job["seed"])
    np.random.seed(job["seed"])  # it draws from the global generator
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run = Run(job)
        run.train()
        line = run.line()
        os.chdir(os.path.dirname(folder))
    versions = {name: version(name) for name in ("agilerl", "torch", "gymnasium", "numpy")}
    print(json.dumps({**line, "versions": versions}))


if __name__ == "__main__":
    main()
