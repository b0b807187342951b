"""Agents with methods of their own are inspected once per generation, whatever its length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agilerl.collect.custom.calls import CALLS
from agilerl.collect.custom.member import CustomMember
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core import foreign
from agilerl.envs.vector import make_vect_envs
from agilerl.training.train_off_policy import train_off_policy


class Own:
    """Everything that a run reads or calls, and nothing else."""

    def __init__(self) -> None:
        self.index, self.algo, self.steps, self.batch_size = 0, "Own", [0], 8
        self.scores: list[float] = []
        self.fitness: list[float] = []

    def get_action(self, obs: Any, epsilon: float = 0.0) -> Any:
        return np.full(len(obs), epsilon < 0, np.int64)

    def learn(self, experiences: Any, **optional: Any) -> None:
        assert not optional

    def test(self, env: Any, swap_channels: bool = False, max_steps: int | None = None, loop: int = 1) -> float:
        self.fitness.append(0.0)
        return 0.0


@pytest.mark.thorough
def test_a_longer_generation_inspects_no_signature_more(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    original = foreign.takes

    def counted(agent: Any, method: str, name: str) -> bool:
        calls.append(name)
        return original(agent, method, name)

    monkeypatch.setattr(foreign, "takes", counted)
    numbers = []
    for steps in (20, 200):
        calls.clear()
        env = make_vect_envs("CartPole-v1", num_envs=2)
        train_off_policy(env, "CartPole-v1", None, [Own()], ReplayBuffer(300), max_steps=steps, evo_steps=steps,
                         verbose=False)  # fmt: skip
        env.close()
        numbers.append(len(calls))
    assert numbers == [4, 4], "two optional arguments each of get_action and learn"


def test_optional_arguments_are_those_of_the_table() -> None:
    member = CustomMember(Own())
    assert member.get_action_takes == {"epsilon"}
    assert member.learn_takes == set(CALLS["learn"].optional)
    taken = member.get_action(np.zeros((3, 4)), {}, np.ones((3, 2), bool), epsilon=0.5)
    assert taken.tolist() == [0, 0, 0]
    assert (member.acts_raw, member.records, member.learns_from_tuples) == (False, False, True)
    assert member.environment_action(taken) is taken
    assert member.draw_exploration(np.random.default_rng(0), (2, 3)) == ()
