"""Hyperparameter steps, configurations, genomes."""

from __future__ import annotations

import numpy as np
import pytest

from agilerl.hpo import HyperparameterConfig, RLParameter
from agilerl.hpo.operators import step


class Always:
    def __init__(self, index: int) -> None:
        self.index = index

    def choice(self, a: list, size: object = None, replace: bool = True, p: object = None) -> list:
        return [a[self.index]]


@pytest.mark.parametrize(
    ("value", "up", "down"), [(1, 2, 1), (2, 3, 1), (3, 4, 2), (4, 5, 3), (10, 12, 8), (64, 77, 51)]
)
def test_integers_move_by_at_least_one(value: int, up: int, down: int) -> None:
    assert step(value, 1, 100, 1.2, True) == up
    assert step(value, 1, 100, 0.8, True) == down
    assert type(step(value, 1, 100, 1.2, True)) is int


def test_every_small_integer_reaches_ten() -> None:
    for start in (1, 2, 3, 4):
        parameter = RLParameter(1, 10, dtype=int, value=start)
        visited = {parameter.mutate(Always(1)) for _ in range(9)}
        assert 10 in visited
        assert visited <= {*range(start + 1, 11)}  # at the limit the step goes the other way


def test_values_are_clipped_into_the_range() -> None:
    for start in (1e-9, 5.0):
        parameter = RLParameter(1e-4, 1e-2, value=start)
        assert 1e-4 <= parameter.mutate(np.random.default_rng(0)) <= 1e-2
    assert RLParameter(3, 3, dtype=int, value=3).mutate() == 3


def test_floats_take_the_published_factors() -> None:
    assert RLParameter(0, 1, value=0.5).mutate(Always(0)) == pytest.approx(0.4)
    assert RLParameter(0, 1, value=0.5).mutate(Always(1)) == pytest.approx(0.6)
    assert RLParameter(0, 1, 0.5, 2.0, value=0.1).mutate(Always(1)) == pytest.approx(0.2)


def test_a_value_of_zero_moves_by_a_share_of_its_range() -> None:
    """0.2 of a range of 0.1 upwards, whatever is drawn at its end; inside of a range in both directions."""
    for seed in range(20):
        parameter = RLParameter(0.0, 0.1, value=0.0)
        assert parameter.mutate(np.random.default_rng(seed)) == pytest.approx(0.02), seed
    moved = {RLParameter(-1.0, 3.0, value=0.0).mutate(np.random.default_rng(seed)) for seed in range(20)}
    assert sorted(moved) == pytest.approx([-0.8, 0.8])
    assert step(0.0, 1e-4, 1e-2, 1.2, False) == 1e-4, "outside of its range it moves to the nearer end"
    assert step(0.0, 0.0, 0.0, 1.2, False) == 0.0


def test_a_step_from_zero_draws_no_more_than_any_other() -> None:
    zero, other = np.random.default_rng(5), np.random.default_rng(5)
    RLParameter(0.0, 0.1, value=0.0).mutate(zero)
    RLParameter(0.0, 0.1, value=0.05).mutate(other)
    assert zero.bit_generator.state == other.bit_generator.state


def test_arrays_keep_shape_and_dtype_and_respect_limits_elementwise() -> None:
    value = np.array([[0.5, 0.95]], dtype=np.float32)
    new = RLParameter(0.1, 1.0, dtype=np.ndarray, value=value).mutate(Always(1))
    np.testing.assert_allclose(new, np.array([[0.6, 1.0]]), rtol=1e-6)
    assert new.dtype == np.float32
    mixed = step(np.array([0.0, 0.5], np.float32), 0.0, 1.0, 1.2, False)
    np.testing.assert_allclose(mixed, [0.2, 0.6], rtol=1e-6)
    assert mixed.dtype == np.float32


def test_unset_value_and_bad_ranges_are_errors() -> None:
    for kind in (ValueError, AssertionError):
        with pytest.raises(kind, match="Hyperparameter value is not set"):
            RLParameter(0, 1).mutate()
    with pytest.raises(ValueError, match="min must not exceed max"):
        RLParameter(2, 1)
    with pytest.raises(ValueError, match="shrink_factor"):
        RLParameter(0, 1, shrink_factor=1.5)
    with pytest.raises(TypeError, match="Expected RLParameter object"):
        HyperparameterConfig(lr=0.1)  # type: ignore[arg-type]


def test_configuration_behaves_like_a_mapping_and_copies_are_independent() -> None:
    one = HyperparameterConfig(lr=RLParameter(0, 1), tau=RLParameter(0, 2))
    two = HyperparameterConfig(tau=RLParameter(0, 2), lr=RLParameter(0, 1))
    assert one == two
    assert list(one) == one.names() == ["lr", "tau"]
    assert "lr" in one
    assert not HyperparameterConfig()
    copy = one.copy()
    copy["lr"].value = 3
    assert one["lr"].value is None
    assert one != copy
    drawn = {one.sample(np.random.default_rng(s))[0] for s in range(20)}
    assert drawn == {"lr", "tau"}
    with pytest.raises(KeyError, match="Did you mean 'tau'"):
        one["taw"]
