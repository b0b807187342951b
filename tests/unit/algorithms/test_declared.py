"""What algorithms declare of their arguments, and what follows from it."""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.algorithms import CQL, available, find_algorithm
from agilerl.algorithms.base.declared import Hyperparameter, check_arguments, hp, hyperparameters
from agilerl.algorithms.teams.base import MultiAgentRLAlgorithm
from agilerl.config.schema import algorithm_model
from agilerl.core.checkpoint import digest_tree
from agilerl.errors import AgileRLError, AlgorithmError, ArgumentError
from agilerl.ranges import Count, Fraction, NonNegative, Positive, PositiveFraction


class Small:
    arguments_by_agent: ClassVar = frozenset()

    def __init__(
        self,
        lr: Annotated[Positive, hp(1e-2, "a test wants to see the difference")] = 1e-3,
        steps: Annotated[Count, hp()] = 4,
        noise: Annotated[float | np.ndarray, hp(values=NonNegative)] = 0.1,
        limit: Annotated[Fraction | None, hp()] = None,
        share: Annotated[PositiveFraction, hp()] = 0.5,
        kind: Annotated[str, hp(values=Literal["a", "b"])] = "a",
        lanes: Count = 1,
        name: str = "",
    ) -> None: ...


def test_one_line_says_both_defaults_and_the_reason() -> None:
    found = hyperparameters(Small)
    assert list(found) == ["lr", "steps", "noise", "limit", "share", "kind"]
    assert (found["lr"].published, found["lr"].manifest) == (1e-3, 1e-2)
    assert found["lr"].because == "a test wants to see the difference"
    assert (found["steps"].published, found["steps"].manifest) == (4, 4)


def test_another_default_without_a_reason_is_refused() -> None:
    with pytest.raises(TypeError, match="go together"):
        hp(1e-3)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"lr": 0.0}, "Small: lr must be above 0; got 0.0. fix: lr=0.001."),
    ({"lr": float("nan")}, "lr must be above 0"),
    ({"lr": "a"}, "lr must be above 0"),
    ({"steps": 0}, "steps must be an integer of at least 1; got 0. fix: steps=4."),
    ({"steps": 2.0}, "steps must be an integer of at least 1"),
    ({"steps": True}, "steps must be an integer of at least 1"),
    ({"noise": np.array([0.1, -0.1])}, "noise must be at least 0"),
    ({"limit": 1.5}, "limit must be in [0, 1]"),
    ({"share": 0.0}, "share must be in (0, 1]"),
    ({"lanes": 0}, "lanes must be an integer of at least 1"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[str(given) for given, _ in REFUSED])
def test_an_argument_outside_of_its_range_is_named_with_the_range_and_a_fix(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(AlgorithmError) as caught:
        check_arguments(Small, (), given)
    assert message in str(caught.value)


def test_arguments_within_their_ranges_pass() -> None:
    check_arguments(Small, (1, np.int64(3)), {"noise": np.zeros(2), "limit": None, "name": 3})
    with pytest.raises(TypeError, match="unexpected"):
        check_arguments(Small, (), {"momentum": 1})


UNKNOWN = {
    "batchsize": r"batchsize: did you mean batch_size\?",
    "learning_rate": r"learning_rate: did you mean (lr|lr_actor or lr_critic)\? fix: ",
    "learning_rat": r"learning_rat: did you mean (lr|lr_actor or lr_critic)\? fix: ",
    "xyzzy": r"xyzzy'; known: .*lr.*fix: leave it out",
}


@pytest.mark.parametrize("word", UNKNOWN)
@pytest.mark.parametrize("name", available())
def test_an_unknown_argument_is_named_with_the_nearest_one(name: str, word: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name} got an unexpected argument .*{UNKNOWN[word]}"):
        find_algorithm(name)(None, None, **{word: 1})


@pytest.mark.parametrize("name", available())
def test_too_many_arguments_are_named(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name} got too many positional arguments.*fix: arguments by name, of: "):
        find_algorithm(name)(*[None] * 99)


def test_several_unknown_arguments_are_one_error() -> None:
    with pytest.raises(ArgumentError) as caught:
        check_arguments(Small, (), {"stepz": 1, "learning_rate": 2, "lr": 1})
    assert str(caught.value) == (
        "Small got an unexpected argument 'stepz', 'learning_rate'. stepz: did you mean steps? "
        "learning_rate: did you mean lr? fix: that name."
    )


@pytest.mark.parametrize("name", available())
def test_manifests_take_their_keys_and_defaults_from_the_constructor(name: str) -> None:
    cls = find_algorithm(name)
    declared = hyperparameters(cls)
    assert algorithm_model(name)().model_dump() == {key: each.manifest for key, each in declared.items()}
    assert all(each.because for each in declared.values() if each.manifest != each.published)


SEEN, SHOWN = spaces.Box(-1, 1, (3,), np.float32), {a: spaces.Box(-1, 1, (3,), np.float32) for a in ("a_0", "b_0")}
TINY: dict[str, Any] = {"encoder_config": {"hidden_size": [4]}, "head_config": {"hidden_size": [4]}, "latent_dim": 4}


def other_values(each: Hyperparameter) -> list[Any]:
    """Values of an option other than the published one; numbers matter where None switches something off."""
    kinds = [each.values, *get_args(each.values)]
    if bool in kinds:
        return [not each.published]
    literals = [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    return [x for x in literals if x != each.published] + ([0.25, 4] if type(None) in kinds else [])


def made(algo: str, **options: Any) -> list[Any]:
    """Agents of every kind of actions that the algorithm takes with these options."""
    cls: Any = find_algorithm(algo)
    agents, config = [], TINY
    if options.get("recurrent", cls.always_recurrent):
        config = {**TINY, "encoder_config": {"hidden_state_size": 4}}
    for action in (spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)):
        is_team = issubclass(cls, MultiAgentRLAlgorithm)
        taken = (SHOWN, dict.fromkeys(SHOWN, action)) if is_team else (SEEN, action)
        with suppress(AgileRLError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            agents.append(cls(*taken, net_config=config, seed=1, **options))
    return agents


WITH_SPACES = [
    name for name in available() if not (find_algorithm(name).learns_language or find_algorithm(name).reads_texts)
]


@pytest.mark.parametrize("algo", WITH_SPACES)
def test_a_file_loads_whatever_option_was_switched(algo: str, tmp_path: Path) -> None:
    declared, tried = hyperparameters(find_algorithm(algo)), set()
    options = [(name, value) for name, each in declared.items() for value in other_values(each)]
    for name, value in options:
        for agent in made(algo, **{name: value}):
            tried.add(name)
            agent.save_checkpoint(tmp_path / "agent.pt")
            loaded = type(agent).load(tmp_path / "agent.pt")
            assert loaded.registry.signature() == agent.registry.signature(), (name, value)
            assert digest_tree(loaded.policy_state()) == digest_tree(agent.policy_state()), (name, value)
            assert vars(loaded).keys() == vars(agent).keys(), (name, value)
    refused = {"recurrent"} if find_algorithm(algo).always_recurrent else set()
    assert {name for name, _ in options} - tried == refused


def test_a_learned_weight_of_the_conservative_term_comes_back(tmp_path: Path) -> None:
    agent = CQL(SEEN, spaces.Box(-1, 1, (2,), np.float32), net_config=TINY, threshold=3.0, alpha=0.5)
    agent.save_checkpoint(tmp_path / "agent.pt")
    loaded = CQL.load(tmp_path / "agent.pt")
    assert (loaded.threshold, loaded.alpha) == (3.0, 0.5)
    assert torch.equal(*(next(each.multiplier.parameters()) for each in (loaded, agent)))
