"""Arguments of the wrong type, out of range or with a misspelt name: one mechanism for constructors and functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from agilerl.algorithms import DQN, IPPO, PPO
from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
from agilerl.components.prioritized import PrioritizedReplayBuffer
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.arguments import checked
from agilerl.errors import ArgumentError, ConfigError, ShapeError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.operators import RLParameter
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import create_population

BOX, DISCRETE = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)
SPACES = {"observation_space": BOX, "action_space": DISCRETE}


def dqn(**arguments: Any) -> DQN:
    return DQN(BOX, DISCRETE, **arguments)


ODD: list[tuple[Callable[[], Any], str]] = [
    (lambda: dqn(double=2), r"DQN: double must be True or False; got 2\. fix: double=False\."),
    (lambda: dqn(double="False"), r"DQN: double must be True or False; got 'False'\. fix: double=False\."),
    (lambda: PPO(BOX, DISCRETE, recurrent="False"), r"PPO: recurrent must be True or False; got 'False'\. fix: "),
    (lambda: TournamentSelection(2, "False", 4), r"elitism must be True or False; got 'False'\. fix: elitism=True"),
    (lambda: Mutations(1, 1, 1, 1, 1, 1, mutate_elite="False"), r"mutate_elite must be True or False; got 'False'"),
    (lambda: TournamentSelection(0, True, 4), r"tournament_size must be an integer of at least 1; got 0\. fix: "),
    (lambda: Mutations(-1, 1, 1, 1, 1, 1), r"no_mutation must be at least 0; got -1\. fix: no_mutation=1\.0\."),
    (lambda: create_population("DQN", population_size=0), r"population_size must be an integer .*got 0\. fix: pop"),
    (lambda: dqn(index="a"), r"DQN: index must be an integer; got 'a'\. fix: index=0\."),
    (lambda: dqn(lr=[1e-3]), r"DQN: lr must be above 0; got \[0\.001\]\. fix: lr=0\.0001\."),
    (lambda: dqn(device="gpu"), r"device must be one of PyTorch's, .*got 'gpu'\. fix: device='cpu'\."),
    (lambda: ReplayBuffer(9, "gpu"), r"device must be one of PyTorch's, .*got 'gpu'\. fix: device='cpu'\."),
    (lambda: PPO(BOX, DISCRETE, lr_schedule="linaer"), r"'linaer'\. Did you mean 'linear'\?.* fix: linear\."),
    (lambda: dqn(hp_config={"lr": 1e-3}), r"RLParameter object for 'lr'; got float\. fix: lr=RLParameter\("),
    (lambda: train(eval_loop=0), r"train_off_policy: eval_loop must be .*got 0\. fix: eval_loop=1\."),
    (
        lambda: IPPO([BOX] * 2, [DISCRETE] * 2, agent_ids=["a", "a"]),
        r"IPPO: agent_ids name the same one twice: a\. fix",
    ),
    (lambda: MultiAgentReplayBuffer(9, None, ["a", "a"]), r"agent_ids name the same one twice: a\. fix: "),
    (lambda: MultiAgentReplayBuffer(9, ["x", "x"], ["a"]), r"field_names name the same one twice: x\. fix: "),
    (lambda: ReplayBuffer(9, field_names=["state", "state"]), r"field_names name the same one twice: obs\. fix: "),
]


def train(**arguments: Any) -> Any:
    return train_off_policy(None, "none", "DQN", [], ReplayBuffer(9), **arguments)


@pytest.mark.parametrize(("call", "message"), ODD)
def test_an_argument_that_does_not_fit_is_named_with_a_fix(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: ReplayBuffer(9, devise="cpu"), "devise: did you mean device?"),
        (lambda: PrioritizedReplayBuffer(9, alpah=0.6), "alpah: did you mean alpha?"),
        (lambda: TournamentSelection(2, True, 4, evalloop=1), "evalloop: did you mean eval_loop?"),
        (lambda: Mutations(1, 1, 1, 1, 1, 1, mutation_std=1), "mutation_std: did you mean mutation_sd?"),
        (lambda: train(evo_stps=3), "evo_stps: did you mean evo_steps?"),
        (lambda: create_population("DQN", popsize=3), "popsize: did you mean population_size?"),
    ],
)
def test_an_unknown_argument_has_a_suggestion(call: Callable[[], Any], hint: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        call()
    assert hint in str(caught.value)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("double", [0, 1, np.int64(1), np.bool_(False)])
def test_zero_and_one_are_booleans(double: Any) -> None:
    assert dqn(double=double).double == bool(double)


def test_ranges_of_hyperparameters_may_be_a_mapping() -> None:
    assert dqn(hp_config={"lr": RLParameter(min=1e-4, max=1e-2)}).hp_config.names() == ["lr"]


def test_a_checked_function_keeps_its_signature_and_takes_what_it_took() -> None:
    @checked
    def area(width: int, height: int = 2, *, is_round: bool = False) -> float:
        return width * height * (0.25 if is_round else 1.0)

    assert area(3) == 6
    assert area(2, np.int64(4), is_round=np.bool_(True)) == 2
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        area()
    with pytest.raises(ConfigError, match=r"area: width must be an integer; got 'a'\. fix: width=1\."):
        area("a")


def rows(**others: Any) -> dict[str, Any]:
    values = {"obs": np.zeros((1, 3), np.uint8), "action": np.array([1]), "reward": np.array([0.0], np.float32)}
    return {**values, "next_obs": np.zeros((1, 3), np.uint8), "done": np.array([False]), **others}


@pytest.mark.parametrize("odd", [{"action": np.array([1.5])}, {"obs": np.full((1, 3), 300)}, {"obs": -np.ones((1, 3))}])
def test_rows_that_the_first_dtype_cannot_hold_are_refused(odd: dict[str, Any]) -> None:
    memory = ReplayBuffer(9)
    memory.add(rows())
    with pytest.raises(ShapeError, match=r"as in its first rows; got .* fix: \w+64 from the first rows on\."):
        memory.add(rows(**odd))
    memory.add(rows(action=np.array([2.0]), obs=np.full((1, 3), 255), done=np.array([1.0])))
    assert len(memory) == 2, "whole numbers in range lose nothing"


def test_an_observation_of_none_is_named() -> None:
    with pytest.raises(ShapeError, match=r"'obs' needs a leading batch axis; got None\. fix: an array of numbers\."):
        ReplayBuffer(9).add(rows(obs=None))
