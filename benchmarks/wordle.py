"""Wordle from data: ILQL and BC_LM learn from games of three scripted players, and are compared with these.

Every learner gets the same games of a seed, the same network and the same number of updates, through `train_offline`
with a population of one and no evolution; the learning rate falls twice. A trained policy is deterministic, so it plays
one game for each word: what is reported is its mean exactly. Players are random, and play each word many times. One
line a run in `results/wordle.jsonl`; a second start runs what is missing.

    python benchmarks/wordle.py --seeds 0-2
    python benchmarks/wordle.py --table
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from runner import RESULTS, package_commit, read_lines, run_jobs, seed_range

from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.envs.simulators.wordle import PLAYERS, WORDS, YARDSTICKS, Wordle, WordleLanes, encode, play, wordle_data
from agilerl.training.train_offline import train_offline
from agilerl.utils.utils import create_population, make_vect_envs

PATH = RESULTS / "wordle.jsonl"
WORD_COUNT, TRIES, GAMES = 16, 3, 30_000
NET = {"n_layer": 1, "n_embd": 64, "n_head": 4, "dim_feedfwd": 256}
PHASES = ((3_600, 1.5e-3), (1_200, 3e-4), (1_200, 1e-4))  # updates, learning rate
EVERY = 200  # updates between evaluations
COMMON = {"BATCH_SIZE": 64}
OWN: dict[str, dict[str, Any]] = {
    "ILQL": {"TAU": 0.1, "EXPECTILE": 0.6, "ALPHA": 0.1, "INVERSE_TEMPERATURE": 4.0},
    "BC_LM": {},
}
PLAYS = 1_000  # of each word by each player


def exact_return(agent: Any) -> tuple[float, float]:
    """Mean return over all words, and the share of guesses that are words of the list."""
    lanes, active = WordleLanes(WORD_COUNT, WORD_COUNT, TRIES, reset_ended=False), np.ones(WORD_COUNT, bool)
    obs, total, legal, made = lanes.begin(np.arange(WORD_COUNT)), np.zeros(WORD_COUNT), 0, 0
    known = {tuple(word) for word in encode(WORDS[:WORD_COUNT]).tolist()}
    agent.set_training_mode(False)
    while active.any():
        guess = agent.get_action(obs)
        legal, made = legal + sum(tuple(g) in known for g in guess[active].tolist()), made + int(active.sum())
        batch = lanes.step(guess, active)
        total, obs = total + batch.reward, batch.obs
        active &= ~batch.terminated
    return float(total.mean()), legal / made


def players() -> dict[str, float]:
    """Mean returns over all words of the players, and of one that is not in the data and chooses by information."""
    every = np.tile(np.arange(WORD_COUNT), PLAYS)
    return {
        name: float(play(name, len(every), WORD_COUNT, TRIES, seed=10**6, secrets=every)[2].mean()) for name in PLAYERS
    } | {"informed": float(play("informed", WORD_COUNT, WORD_COUNT, TRIES, secrets=np.arange(WORD_COUNT))[2].mean())}


def job(key: dict[str, Any]) -> dict[str, Any]:
    """One run: what was learned, and what it is compared with."""
    torch.set_num_threads(1)
    algo, seed = key["algo"], key["seed"]
    env = make_vect_envs(make_env=partial(Wordle, WORD_COUNT, TRIES), num_envs=16)
    data = wordle_data(GAMES, WORD_COUNT, TRIES, seed)
    population = create_population(
        algo, NET, {**COMMON, **OWN[algo]}, env.single_observation_space, env.single_action_space, seed=seed
    )
    begun, memory, steps, history = time.process_time(), ReplayBuffer(GAMES), 0, []
    for updates, lr in PHASES:
        for agent in population:
            agent.lr = lr
        steps += updates
        population, fitnesses = train_offline(
            env, "Wordle", data if steps == updates else None, algo, population, memory, max_steps=steps,
            evo_steps=EVERY, eval_loop=1, verbose=False, seed=seed + steps,
        )  # fmt: skip
        history += [row[0] for row in fitnesses]
    spent = time.process_time() - begun
    found, legal = exact_return(population[0])
    return {
        "key": key, "mean_return": found, "legal_share": legal, "players": players(),
        "history": history, "cpu_seconds": round(spent, 1),
        "settings": {"words": WORD_COUNT, "tries": TRIES, "games": GAMES, "updates_and_lr": PHASES, "net": NET,
                     "hyperparameters": {**COMMON, **OWN[algo]}},
    }  # fmt: skip


def table() -> None:
    """A line for each seed of the last settings in the file, all of them, as Markdown."""
    lines = read_lines(PATH)
    last = [{**line["key"], "algo": "", "seed": 0} for line in lines[-1:]]
    lines = [line for line in lines if {**line["key"], "algo": "", "seed": 0} in last]
    print("| seed | ILQL | BC_LM | random | last | consistent | informed |\n|---|---|---|---|---|---|---|")
    for seed in sorted({line["key"]["seed"] for line in lines}):
        own = {line["key"]["algo"]: line for line in lines if line["key"]["seed"] == seed}
        scores = [f"{own[algo]['mean_return']:.3f}" if algo in own else "" for algo in OWN]
        known = next(iter(own.values()))["players"]
        print("| " + " | ".join([str(seed), *scores, *(f"{known[name]:.3f}" for name in YARDSTICKS)]) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-2")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--job")
    asked = parser.parse_args()
    if asked.job:
        print(json.dumps(job(json.loads(asked.job)["key"])))
    elif asked.table:
        table()
    else:
        base = {"commit": package_commit(), "updates_and_lr": [list(phase) for phase in PHASES]}
        jobs = [{"key": {**base, "algo": algo, "seed": seed}} for seed in seed_range(asked.seeds) for algo in OWN]
        run_jobs(str(Path(__file__)), PATH, jobs, asked.workers)


if __name__ == "__main__":
    sys.exit(main())
