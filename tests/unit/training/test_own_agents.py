"""Agents that subclass nothing, and tournaments and mutations of one's own: what they lack is named."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from agilerl.algorithms import DQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import AlgorithmError, ConfigError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_off_policy import train_off_policy
from agilerl.training.train_on_policy import train_on_policy
from agilerl.wrappers.agent import AgentWrapper, RSNorm


class Own:
    """Everything that a run reads or calls, and nothing else."""

    def __init__(self, index: int = 0, without: str = "") -> None:
        self.index, self.algo, self.steps, self.batch_size = index, "Own", [0], 8
        self.scores: list[float] = []
        self.fitness: list[float] = []
        self.learned = 0
        if without in vars(self):
            delattr(self, without)

    def get_action(self, obs: Any) -> Any:
        return np.zeros(len(obs), np.int64)

    def learn(self, experiences: Any) -> float:
        self.learned += 1
        return 0.5

    def test(self, env: Any, swap_channels: bool = False, max_steps: int | None = None, loop: int = 1) -> float:
        self.fitness.append(float(self.index))
        return self.fitness[-1]

    def clone(self, index: int | None = None, wrap: bool = True) -> Own:
        twin = copy.deepcopy(self)
        twin.index = self.index if index is None else index
        return twin


EVOLUTION: dict[str, Any] = {
    "tournament": TournamentSelection(2, True, 2), "mutation": Mutations(1, 0, 0, 0, 0, 0, rand_seed=0),
}  # fmt: skip


def trained(agents: list[Any] | None = None, **more: Any) -> tuple[list[Any], list[list[float]]]:
    env = make_vect_envs("CartPole-v1", num_envs=2)
    agents = [Own(0), Own(1)] if agents is None else agents
    budget: dict[str, Any] = {"max_steps": 80, "evo_steps": 40, "verbose": False}
    return train_off_policy(env, "CartPole-v1", None, agents, ReplayBuffer(max_size=200), **budget, **more)


@pytest.mark.parametrize("name", ["index", "steps", "scores", "fitness", "algo"])
def test_an_attribute_that_an_agent_lacks_is_named(name: str) -> None:
    with pytest.raises(AlgorithmError, match=name) as caught:
        trained([Own(0, without=name), Own(1, without=name)])
    assert "Own lacks" in str(caught.value)
    assert "fix: add it" in str(caught.value)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("test", {}), ("clone", EVOLUTION), ("save_checkpoint", {"checkpoint": 40}),
        ("save_checkpoint", {"save_elite": True}),
    ],
)  # fmt: skip
def test_a_method_that_a_run_calls_is_named_before_it_begins(method: str, options: dict[str, Any]) -> None:
    def lacking(self: Any) -> Any:
        raise AttributeError(method)

    kind: Any = type("Lacking", (Own,), {method: property(lacking)})
    with pytest.raises(
        AlgorithmError, match=rf"train_off_policy: Lacking lacks {method}, .*fix: add it, or class Lack"
    ):
        trained([kind(0), kind(1)], **options)


def test_wrappers_are_for_agents_of_the_package() -> None:
    with pytest.raises(AlgorithmError, match=r"RSNorm needs agents with an observation_space; Own has none\. fix: "):
        RSNorm(Own())
    with pytest.raises(AlgorithmError, match=r"AgentWrapper\(Own\): a wrapped agent .* fix: class Own\(Evolvable"):
        trained([AgentWrapper(Own(0)), AgentWrapper(Own(1))])


def test_four_results_are_asked_of_an_agent_that_learns_on_policy() -> None:
    env = make_vect_envs("CartPole-v1", num_envs=2)
    with pytest.raises(ConfigError, match=r"Own\.get_action must return actions, log probabilities, entropies, values"):
        train_on_policy(env, "CartPole-v1", pop=[Own()], max_steps=80, evo_steps=40, verbose=False)


def of_type(base: type, method: str, result: Any) -> Any:
    return type("Mine", (base,), {method: lambda self, population, *args: result(population)})


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (lambda population: None, "it returned None"),
        (lambda population: population[:1], "1 entries"),
        (lambda population: [1, 2], "2 entries"),
        (lambda population: "ab", "'ab'"),
    ],
)
def test_a_mutation_that_gives_no_population_is_named(result: Any, told: str) -> None:
    env = make_vect_envs("CartPole-v1", num_envs=2)
    agents = DQN.population(2, env.single_observation_space, env.single_action_space, seed=1, batch_size=8)
    mutation = of_type(Mutations, "mutation", result)(1, 0, 0, 0, 0, 0)
    with pytest.raises(ConfigError, match=r"Mine\.mutation\(population\) must return a list of 2 agents") as caught:
        trained(agents, tournament=EVOLUTION["tournament"], mutation=mutation)
    assert told in str(caught.value)


@pytest.mark.parametrize("result", [lambda population: None, lambda population: list(population)])
def test_a_tournament_that_gives_no_elite_is_named(result: Any) -> None:
    tournament = of_type(TournamentSelection, "select", result)(2, True, 2)
    with pytest.raises(ConfigError, match=r"Mine\.select\(population\) must return \(elite, agents\)"):
        trained(tournament=tournament, mutation=EVOLUTION["mutation"])
