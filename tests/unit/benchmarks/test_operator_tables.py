"""What becomes of mutations, of benchmarks/operators.py, against a family tree by hand."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def operators(benchmark_module: Any) -> Any:
    return benchmark_module("operators")


def birth(index: int, parent: int | None, generation: int, kind: str) -> dict[str, Any]:
    return {"id": index, "parent": parent, "generation": generation, "kind": kind, "path": ""}


LINE = {
    # Generation 0: founders 0 and 1. Then 0 lives on, 2 is its clone, 3 its mutated one, 4 a mutated one of 1.
    "births": [
        birth(0, None, 0, "founder"), birth(1, None, 0, "founder"), birth(2, 0, 1, "none"), birth(3, 0, 1, "rl_hp"),
        birth(4, 1, 1, "rl_hp"), birth(5, 3, 2, "none"), birth(6, 0, 2, "none"),
    ],
    "fitness": [
        {"0": 1.0, "1": 1.0},
        {"0": 4.0, "2": 6.0, "3": 9.0, "4": 2.0},
        {"0": 3.0, "5": 8.0, "6": 5.0},
        {"5": 9.0, "6": 5.0},
    ],
}  # fmt: skip


def test_a_mutation_is_compared_with_clones_of_its_parent_and_with_it(operators: Any) -> None:
    """One generation later 3 has 9, its sibling 2 and their parent 5 on average: + 4. Three later its clone 5 has 9, of
    the others only 6 lives, a clone of 0: + 4. The other one, 4, has no sibling, and no descendants then."""
    found = operators.outcomes(LINE)
    assert found["rl_hp"] == [{1: (True, 4.0), 3: (True, 4.0)}, {1: (True, None), 3: (False, None)}]
    assert found["none"][0] == {1: (True, 6.0 - 4.0), 3: (False, None)}
    assert set(found) == {"rl_hp", "none"}


def test_rows_count_what_survives_in_shares_of_the_span(operators: Any) -> None:
    span = operators.PAIRS["CartPole-v1:DQN"].target - operators.PAIRS["CartPole-v1:DQN"].random
    (row,) = [row for row in operators.rows({"CartPole-v1:DQN": [LINE]}) if row["kind"] == "rl_hp"]
    assert (row["tries"], row["runs"]) == (2, 1)
    assert (row["after 1"]["survive"], row["after 3"]["survive"], row["after 5"]["survive"]) == (1.0, 0.5, None)
    assert row["after 1"]["gain"] == pytest.approx(4.0 / span, abs=5e-4)
    assert (row["after 1"]["compared"], row["after 1"]["error"]) == (1, None)


def test_architecture_mutations_are_told_apart(operators: Any) -> None:
    assert operators.kind_of("architecture", "encoder.add_node") == "add node"
    assert operators.kind_of("architecture", "head_net.remove_layer") == "remove layer"
    assert operators.kind_of("architecture", "add_latent_node") == "add latent"
    assert operators.kind_of("parameters", "") == "parameters"
