"""Objects that are not ours answer with defaults where an attribute is missing, None or of another kind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agilerl.cli.options import whole
from agilerl.core import foreign


@pytest.mark.parametrize(
    ("given", "count"), [({}, 1), ({"num_envs": None}, 1), ({"num_envs": 0}, 1), ({"num_envs": np.int64(3)}, 3)]
)
def test_a_vector_says_how_many_environments_it_has(given: dict[str, Any], count: int) -> None:
    assert foreign.num_envs(SimpleNamespace(**given)) == count


def test_attributes_of_another_kind_say_nothing() -> None:
    odd = SimpleNamespace(envs=3, metadata="human", close=None, unwrapped=None, spec=None)
    assert (foreign.copies(odd), foreign.metadata(odd), foreign.env_id(odd)) == ([], {}, None)
    assert foreign.bare(odd) is foreign.single(odd) is odd
    foreign.close(odd)
    assert foreign.metadata(SimpleNamespace(metadata={"name": "a"})) == {"name": "a"}


@pytest.mark.parametrize("number", [2**53 + 1, 99999999999999999, 12])
def test_whole_numbers_of_the_command_line_are_exact(number: int) -> None:
    assert whole(str(number)) == number
    assert whole("1e5") == 100_000
