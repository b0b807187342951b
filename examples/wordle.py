"""Learn to play Wordle from the games of three players, without playing: ILQL, a population of two, on a CPU.

python examples/wordle.py
"""

from __future__ import annotations

from functools import partial

from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.envs.simulators.wordle import PLAYERS, Wordle, play, text_of, wordle_data
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_offline import train_offline
from agilerl.utils.utils import create_population, make_vect_envs

WORDS, TRIES = 16, 3


def main(games: int = 10_000, updates: int = 2_400) -> list[list[float]]:
    """Train, show a game, and return the fitness of every member in every generation."""
    env = make_vect_envs(make_env=partial(Wordle, WORDS, TRIES), num_envs=16)
    population = create_population(
        "ILQL",
        net_config={"n_layer": 2, "n_embd": 48, "n_head": 2, "dim_feedfwd": 128},
        INIT_HP={"LR": 1e-3, "TAU": 0.1, "BATCH_SIZE": 64},
        observation_space=env.single_observation_space,
        action_space=env.single_action_space,
        population_size=2,
        seed=1,
    )
    population, fitnesses = train_offline(
        env,
        "Wordle",
        wordle_data(games, WORDS, TRIES, seed=1),
        pop=population,
        memory=ReplayBuffer(max_size=games),
        max_steps=updates,
        evo_steps=updates // 8,
        eval_loop=2,
        tournament=TournamentSelection(2, True, 2),
        mutation=Mutations(0.5, 0.1, 0.2, 0.1, 0.0, 0.3, rand_seed=1),
        seed=1,
    )
    for name in PLAYERS:
        print(f"{name:<12}{play(name, 10_000, WORDS, TRIES, seed=2)[2].mean():.2f}")
    print(f"{'ILQL':<12}{max(fitnesses[-1]):.2f} on the games that fitness was measured on")
    agent, single = population[0], Wordle(WORDS, TRIES)
    obs, _ = single.reset(seed=3)
    agent.set_training_mode(False)
    ended = False
    while not ended:
        obs, _, ended, _, _ = single.step(agent.get_action(obs)[0])
    print(text_of(obs))
    return fitnesses


if __name__ == "__main__":
    main()
