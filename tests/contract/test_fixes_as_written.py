"""Fixes in messages can be followed literally: they name arguments, gyms, ids and commands that exist there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import agilerl
from agilerl.algorithms import DQN, IPPO, find_algorithm
from agilerl.api import continue_training
from agilerl.collect.teams.self_play import SelfPlayCollector
from agilerl.core.env_ids import resolve_env_id
from agilerl.envs.team_vector import make_multi_agent_vect_envs
from agilerl.errors import AgileRLError, AlgorithmError, ConfigError, EnvError
from agilerl.rollouts.matches import outcomes
from agilerl.training import train_llm
from tests.differential.language_reference import base

THREE, FOUR = "pettingzoo.classic.tictactoe_v3", "pettingzoo.classic.connect_four_v3"
KEPT = (
    r"^a continued run keeps the algorithm of its agents, DQN; got algorithm\.name=PPO\. fix: leave it out, or train "
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run."""
    out = tmp_path_factory.mktemp("runs")
    agilerl.train("CartPole-v1", "DQN", steps=300, population=1, verbose=False, out=out)
    return next(out.glob("*/*"))


CONTINUED: dict[str, tuple[Callable[[Path], Any], type[AgileRLError], str]] = {
    "in Python": (
        lambda path: agilerl.train("CartPole-v1", agents=path, out=None, **{"algorithm.name": "PPO"}),  # type: ignore[arg-type]
        AlgorithmError,
        KEPT + r"new agents with agilerl\.train\('CartPole-v1', 'PPO'\)\.$",
    ),
    "in Python, with an object": (
        lambda path: agilerl.train(
            gym.make("CartPole-v1"),
            agents=path,
            out=None,
            **{"algorithm.name": "PPO"},  # type: ignore[arg-type]
        ),
        AlgorithmError,
        KEPT + r"new agents with agilerl\.train\(env, 'PPO'\)\.$",
    ),
    "in settings": (
        lambda path: continue_training(path, sets=["algorithm.name=PPO"], out=None),
        AlgorithmError,
        KEPT + r"new agents with `agilerl train CartPole-v1 --algo PPO`\.$",
    ),
}


@pytest.mark.parametrize("case", CONTINUED)
def test_a_continued_run_keeps_its_algorithm(case: str, run: Path) -> None:
    call, error, message = CONTINUED[case]
    with pytest.raises(error, match=message):
        call(run)


def test_the_algorithm_that_the_agents_have_may_be_named(run: Path) -> None:
    again = continue_training(run, steps=200, sets=["algorithm.name=DQN"], out=None, verbose=False)
    assert again.manifest.algorithm.name == "DQN"


def test_a_resumed_run_keeps_its_algorithm(run: Path) -> None:
    manifest = agilerl.load(run).manifest
    with pytest.raises(
        ConfigError, match=r"the run trains DQN; got PPO\. fix: leave it out, or a new run: `agilerl tr"
    ):
        agilerl.config.going_on(manifest, ["algorithm.name=PPO"])


GYMS = {
    "finetune_llm_preference": ("DPO", "PreferenceGym", ""),
    "finetune_llm_sft": ("SFT", "SFTGym", ""),
    "finetune_llm_reasoning": ("GRPO", "ReasoningGym", ", reward_fn"),
}


@pytest.mark.parametrize("function", GYMS)
@pytest.mark.parametrize("env", ["none", "an environment", "made environments", "no function"])
def test_training_functions_of_language_name_their_own_gym(function: str, env: str) -> None:
    algo, name, more = GYMS[function]
    agents = find_algorithm(algo).population(1, actor_network=base(), seed=0, lora_config={"r": 2})
    given: dict[str, Any] = {
        "none": {},
        "an environment": {"env": gym.make("CartPole-v1")},
        "made environments": {"env_fn": lambda: gym.make("CartPole-v1")},
        "no function": {"env_fn": 3},
    }[env]
    call = rf"{name}\(train_dataset, test_dataset, tokenizer{more}\)\.$"
    with pytest.raises(ConfigError, match=rf"fix: (env=|env_fn=lambda: ){call}"):
        vars(train_llm)[function](agents, verbose=False, **given)


@pytest.mark.parametrize("function", GYMS)
def test_an_empty_population_names_the_algorithm_of_the_function(function: str) -> None:
    with pytest.raises(AlgorithmError, match=rf"fix: {GYMS[function][0]}\.population\("):
        vars(train_llm)[function]([], env=object())


def test_games_are_named_by_the_function_that_plays_them() -> None:
    agents = find_algorithm("GRPO").population(1, actor_network=base(), seed=0, lora_config={"r": 2})
    with pytest.raises(ConfigError, match=r"got neither\. fix: env=SyncMultiTurnVecEnv\("):
        train_llm.finetune_llm_multiturn(agents)


def of_cartpole() -> DQN:
    env = gym.make("CartPole-v1")
    return DQN(env.observation_space, env.action_space, seed=0)


EPISODES = r"DQN\.evaluate: episodes must be an integer of at least 1; got {}\. fix: episodes=100\."
STEPS = (
    r"DQN\.evaluate: max_steps must be an integer of at least 1 or None \(steps per episode\); got {}\. "
    r"fix: max_steps=None\."
)
EVALUATED = {
    **{f"episodes={n!r}": ({"episodes": n}, EPISODES.format(repr(n))) for n in (0, -1, "a", 1.5, None, True)},
    **{f"max_steps={n!r}": ({"max_steps": n, "episodes": 1}, STEPS.format(repr(n))) for n in (0, -1, "a", True)},
}


@pytest.mark.parametrize("case", EVALUATED)
@pytest.mark.parametrize("place", ["of its own", "handed over"])
def test_numbers_of_an_evaluation_are_named(case: str, place: str) -> None:
    agent, (given, message) = of_cartpole(), EVALUATED[case]
    agent.environment = {"id": "CartPole-v1"}
    with pytest.raises(ConfigError, match=f"^{message}"):
        agent.evaluate(env=gym.make("CartPole-v1") if place == "handed over" else None, **given)


def of_game(game: str) -> IPPO:
    env = make_multi_agent_vect_envs(game, 1)
    return IPPO(*SelfPlayCollector.spaces(env), net_config={"latent_dim": 8}, seed=0)


@pytest.mark.parametrize(("trained", "played"), [(THREE, FOUR), (FOUR, THREE)])
def test_an_agent_of_another_game_is_named(trained: str, played: str) -> None:
    fix = rf"another game\. fix: run\.best of agilerl\.train\('{played}'\)\.$"
    with pytest.raises(ConfigError, match=rf"^outcomes: the agent was trained for player_\d, player_\d, and .*{fix}"):
        outcomes(of_game(trained), played, "random", 4, 0)


def test_an_agent_as_opponent_is_named_in_one_line() -> None:
    team = of_game(THREE)
    message = (
        r"^outcomes: player must be a name or a function of \(lanes, rng\); got an agent, IPPO\. fix: one of .*\.$"
    )
    with pytest.raises(ConfigError, match=message):
        outcomes(team, THREE, team, 4, 0)


@pytest.mark.parametrize("asked", ["NarrowPassage", "narrowpassage-v0", "NarrowPassage-v3", "NarowPassage"])
def test_a_misspelt_id_is_fixed_by_the_nearest_one(asked: str) -> None:
    gym.register("NarrowPassage-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv")
    try:
        with pytest.raises(
            EnvError, match=r"Did you mean 'NarrowPassage-v0'\? fix: NarrowPassage-v0, or another id of"
        ):
            resolve_env_id(asked)
    finally:
        del gym.registry["NarrowPassage-v0"]
