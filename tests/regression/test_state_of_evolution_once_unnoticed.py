"""What single faults in founders, screens, adoption and resumed runs would change; by hand, small."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from agilerl.algorithms import DQN
from agilerl.collect.fitness import MeanReturn
from agilerl.collect.off_policy import OffPolicyCollector
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.checkpoint import decode_tree, digest_tree, encode_tree
from agilerl.core.options import OffPolicyOptions
from agilerl.hpo import HyperparameterConfig, RLParameter
from agilerl.hpo.founders import spread_founders
from agilerl.hpo.screening import promising, screened
from agilerl.training.best import Candidate, Confirmation
from agilerl.training.loop import LoopSettings, TrainingLoop
from agilerl.training.manifest.adoption import Ancestors
from agilerl.training.state import SavableLoop
from agilerl.utils.utils import make_vect_envs

OBS, CHOICE = gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(2)
NET = {"latent_dim": 8, "encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}}


class Doubling(DQN):
    """Keeps a number that follows from a hyperparameter, which a hook computes after each change of it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.twice, self.calls = 2 * self.lr, 0
        self.register_mutation_hook("note_rate")

    def note_rate(self) -> None:
        self.twice, self.calls = 2 * self.lr, self.calls + 1


def agents(cls: Any = DQN, count: int = 3, seed: int = 0, **ranges: RLParameter) -> list[Any]:
    config = HyperparameterConfig(**(ranges or {"lr": RLParameter(1e-4, 1e-2)}))
    made: list[Any] = cls.population(count, OBS, CHOICE, seed=seed, hp_config=config, net_config=NET, lr=1e-3)
    return made


# -- founders ----------------------------------------------------------------------------------------------------------


def test_the_hook_of_a_founder_is_called_with_the_values_that_it_was_given() -> None:
    population = agents(Doubling)
    spread_founders(population, seed=3)
    assert len({agent.lr for agent in population}) == 3
    assert [agent.twice for agent in population] == [2 * agent.lr for agent in population]
    assert [agent.calls for agent in population] == [0, 1, 1], "the first keeps what is configured"


# -- screens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lowest", [5.0, -5.0, -1e9])
def test_who_is_not_evaluated_ranks_below_the_lowest_by_its_training_returns(lowest: float) -> None:
    """0 and 1 are evaluated; 2 and 5 train better than the lowest is worth, 3 worse, 4 has no episode yet."""
    scores = ([1.0], [2.0], [lowest + 100.0], [lowest - 3.0, lowest - 5.0], [], [lowest + 90.0])
    members = [SimpleNamespace(index=place, scores=own) for place, own in enumerate(scores)]
    found = {0: lowest + 1, 1: lowest}
    assert screened(members, found) == {2: lowest, 3: lowest - 104.0, 4: -math.inf, 5: lowest - 10.0}, "not equal"
    assert screened(members, {**found, 1: math.nan})[2] == lowest + 1, "a NaN is no lowest value"
    assert screened(members[2:5], {}) == {2: lowest + 100.0, 3: lowest - 4.0, 4: -math.inf}
    assert [member.index for member in promising(members, 1)] == [4], "it may be anything"


# -- adoption ----------------------------------------------------------------------------------------------------------


def test_the_ranges_of_a_new_run_are_its_own_and_its_agents_evolve_within_them() -> None:
    old = agents(lr=RLParameter(1e-4, 1e-2), gamma=RLParameter(0.9, 0.99))
    for place, agent in enumerate(old):
        agent.lr, agent.fitness = 5e-3, [float(place)]
    founders = agents(count=2, seed=5, lr=RLParameter(1e-3, 6e-3, grow_factor=1.1), tau=RLParameter(0.01, 0.1))
    asked = [founder.hp_config.copy() for founder in founders]
    adopted = Ancestors(old).adopt(founders)
    assert [agent.hp_config for agent in adopted] == asked
    assert [agent.lr for agent in adopted] == [5e-3, 5e-3]
    assert adopted[0].hp_config is not adopted[1].hp_config
    parameter = adopted[0].hp_config["lr"]
    parameter.value = adopted[0].lr
    drawn = {parameter.mutate(np.random.default_rng(seed)) for seed in range(20)}
    assert 1e-3 <= min(drawn) <= max(drawn) <= 6e-3
    assert all(agent.hp_config.names() == ["lr", "gamma"] for agent in old), "the old run keeps its own"


# -- the best agent of a resumed run -----------------------------------------------------------------------------------


def loop_of(population: list[Any]) -> TrainingLoop:
    options = OffPolicyOptions(max_steps=64, evo_steps=32, eval_episodes=1)
    env = make_vect_envs("CartPole-v1", num_envs=2)
    return TrainingLoop(population, OffPolicyCollector(env, ReplayBuffer(100), options), options, LoopSettings(seed=1))


def candidate(agent: Any, place: int) -> Candidate:
    return Candidate(agent.clone(index=10 + place), 10.0 * place, 0.5 * place, place)


@pytest.mark.parametrize(
    "case", ["kept alone", "kept is the fittest", "a fitter one", "proven", "proven, kept another"]
)
def test_a_resumed_run_has_the_best_agents_of_the_run(case: str) -> None:
    run = loop_of(agents())
    kept, fittest, proven = (candidate(agent, place) for place, agent in enumerate(run.population, 1))
    best = run.best
    best.kept = kept
    if case == "kept is the fittest":
        best.fittest = kept
    if case in ("a fitter one", "proven", "proven, kept another"):
        best.fittest = fittest
    if case == "proven":
        best.proven, best.confirmed = Confirmation(kept, 7.0, 0.25), 7.0
    if case == "proven, kept another":
        best.proven = Confirmation(proven, 7.0, 0.25)
    if case == "kept alone":
        best.confirmed, best.proven = 7.0, Confirmation(kept, 7.0, 0.25)
    saved = SavableLoop(run)
    trees = tuple(decode_tree(encode_tree(tree)) for tree in saved.trees())
    again = loop_of(agents(seed=9))
    SavableLoop(again).load(trees, saved.facts())  # type: ignore[arg-type]

    def told(one: Candidate | None) -> Any:
        return None if one is None else (digest_tree(one.agent.run_state()), one.fitness, one.error, one.generation)

    for name in ("kept", "fittest"):
        assert told(getattr(again.best, name)) == told(getattr(best, name)), name
    assert again.best.confirmed == best.confirmed
    assert (again.best.proven is None) == (best.proven is None)
    if best.proven is not None:
        now = again.best.proven
        assert now is not None
        assert (told(now.candidate), now.mean, now.error) == (told(best.proven.candidate), 7.0, 0.25)
        assert (now.candidate is again.best.kept) == (best.proven.candidate is best.kept)
    assert (again.best.fittest is again.best.kept) == (best.fittest is best.kept)
    assert again.best.has_rivals == best.has_rivals


def test_a_rival_of_before_a_stop_is_confirmed_after_it() -> None:
    """Without it a resumed run would end with the kept one, whatever the fittest would have shown."""
    run = loop_of(agents())
    kept, fittest, _ = (candidate(agent, place) for place, agent in enumerate(run.population, 1))
    run.best.kept, run.best.fittest = kept, fittest
    saved = SavableLoop(run)
    again = loop_of(agents(seed=9))
    SavableLoop(again).load(tuple(decode_tree(encode_tree(t)) for t in saved.trees()), saved.facts())  # type: ignore[arg-type]
    played: list[int] = []

    def play(agent: Any) -> MeanReturn:
        played.append(agent.index)
        return MeanReturn(float(agent.index))

    for best in (run.best, again.best):
        best.confirm(play)
        assert best.agent.index == 12
    assert played == [11, 12, 11, 12]
