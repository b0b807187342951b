"""What algorithms declare of their arguments, and what follows from it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest

from agilerl.algorithms import available, find_algorithm
from agilerl.algorithms.base.declared import check_arguments, hp, hyperparameters
from agilerl.config.schema import algorithm_model
from agilerl.errors import AlgorithmError, ArgumentError
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
