"""Capabilities are declared by every algorithm, and an agent of the user's own has their defaults in a view."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import pytest

from agilerl.algorithms import available, find_algorithm
from agilerl.algorithms.base.adapted import CAPABILITIES, DEFAULTS, AdaptedAgent, adapted
from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.algorithms.base.wrapped import AgentWrapper, RSNorm
from agilerl.algorithms.dqn import DQN

BOX, TWO = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)


class Duck:
    """What the published functions need of an agent, and no base class."""

    learn_step, reads_alone = 2, True

    def __init__(self) -> None:
        self.index, self.training = 3, True

    def hyperparameters(self) -> dict[str, float]:
        return {"lr": 0.1}

    @property
    def batch_size(self) -> int:
        return 4


def test_a_view_has_the_agents_own_values_and_the_defaults_of_the_others() -> None:
    view = adapted(Duck())
    assert isinstance(view, AdaptedAgent)
    assert (view.index, view.learn_step, view.batch_size, view.hyperparameters()) == (3, 2, 4, {"lr": 0.1})
    assert view.reads_alone
    for name in set(DEFAULTS) - {"learn_step", "batch_size", "hyperparameters", "reads_alone"}:
        assert getattr(view, name) == DEFAULTS[name], name
    assert (view.evaluation_networks(), view.unsaved_attributes(), view.set_training_mode(False)) == ({}, [], None)
    assert not hasattr(view, "agent_ids")
    with pytest.raises(AttributeError, match="'Duck' object has no attribute 'actor'"):
        _ = view.actor


def test_a_view_is_for_reading() -> None:
    duck = Duck()
    view = adapted(duck)
    with pytest.raises(AttributeError, match=r"is a read view\. fix: assign index to the agent itself"):
        view.index = 4
    duck.index = 5
    assert (view.index, view.unwrapped) == (5, duck)
    assert adapted(view) is view
    assert copy.deepcopy(view).index == copy.copy(view).index == 5


def test_a_wrapper_around_an_agent_of_the_users_own_has_the_defaults_too() -> None:
    duck = Duck()
    view = adapted(AgentWrapper(duck))
    assert (view.learn_step, view.gamma, view.learns_language) == (2, 0.99, False)
    assert view.unwrapped is duck


def test_our_agents_say_it_themselves_in_their_wrappers_too() -> None:
    agent = DQN(BOX, TWO)
    agent.origin = "runs/x"
    for view in (adapted(agent), adapted(RSNorm(agent))):
        assert (view.origin, view.is_recurrent, view.experience) == ("runs/x", False, DQN.experience)
        assert (view.batch_size, view.beta) == (agent.batch_size, 0.4), "DQN has no beta"


@pytest.mark.parametrize("name", available())
def test_every_algorithm_declares_every_capability(name: str) -> None:
    cls: Any = find_algorithm(name)
    assert issubclass(cls, EvolvableAlgorithm)
    assert all(hasattr(cls, capability) for capability in CAPABILITIES)


def test_declared_capabilities_are_in_no_file() -> None:
    agent = DQN(BOX, TWO)
    assert not set(CAPABILITIES) & set(vars(agent))
    assert not set(CAPABILITIES) & set(agent.inspect_attributes(agent))
    assert not set(CAPABILITIES) & set(agent.state()["attributes"])
