"""Short seeded runs against stored curves. `make golden-update` rewrites them; the commit says what changed and why.

The runs are in float64 and some hundred updates long, so that another machine's rounding stays far below the
tolerance; a change of any formula, draw or order does not. The environments compute with integers: the sine and cosine
of MountainCar-v0 have other last bits on another processor, which grew to 4e-5 of the weights.

Compared are the fitness of every member and generation, the label of every mutation, the networks, and of every agent
at the end its whole state: the places, kinds and shapes of its entries exactly, the numbers in them by their sums.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases import CASES, MADE_HERE, curve, outline, sums
from stored import IS_UPDATE, read, write

STORED = Path(__file__).with_name("curves.json")


@pytest.mark.filterwarnings("ignore:Activation mutations are not supported")
@pytest.mark.parametrize("name", CASES)
def test_curve_is_the_stored_one(name: str) -> None:
    found, states = curve(name)
    if IS_UPDATE:
        write(STORED, name, found, CASES)
        return
    expected = read(STORED)[name]
    # The sine of CartPole-v1 moves the last bits of observations, which shows in moments before it does in weights.
    tolerance = 1e-6 if CASES[name]["env"] in MADE_HERE else 1e-3
    assert found["mutations"] == expected["mutations"]
    assert found["labels"] == expected["labels"]
    assert found["networks"] == expected["networks"]
    assert found["fitness"] == [pytest.approx(row, rel=1e-6) for row in expected["fitness"]]
    assert found["weight_sums"] == pytest.approx(expected["weight_sums"], rel=1e-6)
    for state, now, before in zip(states, found["states"], expected["states"], strict=True):
        assert now["outline"] == before["outline"], "\n".join(["its entries are now:", *outline(state)])
        stored = dict(zip(sums(state), before["sums"], strict=True))
        assert sums(state) == pytest.approx(stored, rel=tolerance, abs=1e-9)


def kinds(births: list[list[str]]) -> set[str]:
    """Kinds of mutation among the labels: of values, weights, activation, layers, widths."""
    labels = [label for generation in births for label in generation]
    signs = {"value": ("lr", "batch_size"), "param": ("param",), "act": ("act",), "layer": ("layer",),
             "width": ("node", "channel")}  # fmt: skip
    return {kind for kind, words in signs.items() if any(word in label for word in words for label in labels)}


def test_every_kind_of_mutation_happens_and_in_most_cases_four_before_the_last_generation() -> None:
    births = {name: stored["mutations"] for name, stored in read(STORED).items()}
    assert set(births) == set(CASES)
    assert set.union(*(kinds(noted) for noted in births.values())) == {"value", "param", "act", "layer", "width"}
    rich = [name for name, noted in births.items() if len(kinds(noted[:-1])) >= 4]
    assert len(rich) >= len(CASES) / 2


def test_a_digest_sees_keys_shapes_kinds_signs_and_order() -> None:
    tree: dict[str, Any] = {"a": [1.0, -2.0], "b": {"c": 3, "d": "x"}}
    assert outline(tree) == ["/a float64 [2]", "/b/c 3", "/b/d 'x'"]
    assert outline({**tree, "a": torch.tensor([1.0, -2.0])}) != outline(tree)
    # Positive elements count twice, and the last of a tensor twice as much as its first: 1·2·1 + 2·1·2 = 6.
    assert sums(tree) == {"/a": 6.0}
    assert sums({"a": [-1.0, 2.0]}) == {"/a": 9.0}
    assert sums({"a": [-2.0, 1.5]}) == {"/a": 8.0}
