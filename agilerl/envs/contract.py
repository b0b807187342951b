"""What an environment must return, checked where it enters the package: by row in this process, by batch elsewhere."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from agilerl.errors import EnvError
from agilerl.tree import leaves

HEAL = "fix: correct the environment, or make_vect_envs(..., healing=True) to replace an environment that fails."
_NUMBERS = (float, int, np.floating, np.integer, np.bool_)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of an observation: its place, its shape, its dtype (None where any number will do)."""

    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None


class Contract:
    """What single observations, rewards and flags of one environment must look like.

    Observations may come as lists, in another width of the same kind of number (float64 for float32) or as integers for
    floating-point; anything that would lose information, or that is not finite, is an error.

    Args:
        space: of one observation; None where the environment does not tell, then `like` says.
        name: of the environment, for messages.
        like: a batch [L, ...] of first observations, for environments without a space.
    """

    def __init__(self, space: Space[Any] | None, name: str, like: Any = None) -> None:
        self.name = name
        self._tree = _tree(space, like, ())
        self._leaves = list(leaves(self._tree))
        self._plain = self._tree if isinstance(self._tree, Leaf) else None

    def error(self, lane: int, what: str, call: str = "step()") -> EnvError:
        """An error that says environment, lane and what was got."""
        return EnvError(f"{self.name}, lane {lane}: {call} {what}. {HEAL}")

    def row(self, obs: Any, lane: int, call: str = "step()") -> Any:
        """One observation as arrays of the right shape and dtype; finite numbers are checked by batch, see `finite`.

        Raises:
            EnvError: None, another shape, another kind of number, missing parts.
        """
        plain = self._plain
        if plain is not None and type(obs) is np.ndarray and obs.dtype == plain.dtype and obs.shape == plain.shape:
            return obs
        return self._row(self._tree, obs, lane, call, ())

    def _row(self, node: Any, obs: Any, lane: int, call: str, path: tuple[Any, ...]) -> Any:
        if isinstance(node, Leaf):
            return self._array(node, obs, lane, call)
        keys = node if isinstance(node, dict) else range(len(node))
        found = {}
        for key in keys:
            try:
                part = obs[key]
            except (KeyError, IndexError, TypeError):
                missing = "/".join(map(str, (*path, key)))
                raise self.error(
                    lane, f"gave an observation without its part {missing!r}: {short(obs)}", call
                ) from None
            found[key] = self._row(node[key], part, lane, call, (*path, key))
        return found if isinstance(node, dict) else tuple(found.values())

    def _array(self, leaf: Leaf, value: Any, lane: int, call: str) -> np.ndarray:
        part = f", part {'/'.join(map(str, leaf.path))!r}," if leaf.path else ""
        try:
            given = np.asarray(value)
        except ValueError:  # rows of unequal length
            given = np.asarray(None)
        if given.dtype.kind not in "biufc":
            raise self.error(lane, f"gave an observation{part} of {short(value)}; expected numbers", call)
        if given.shape != leaf.shape:
            raise self.error(lane, f"gave an observation{part} of shape {given.shape}; expected {leaf.shape}", call)
        dtype = leaf.dtype
        if dtype is None or given.dtype == dtype:
            return given
        whole = given.dtype.kind in "biu" and dtype.kind in "biu"  # the values decide
        fits = whole or np.can_cast(given.dtype, dtype, "same_kind")
        converted = given.astype(dtype) if fits else given
        if not fits or (whole and not np.array_equal(converted, given)):
            raise self.error(lane, f"gave an observation{part} of {given.dtype}; expected {dtype}", call)
        return converted

    def reward(self, value: Any, lane: int) -> float:
        """The reward as a plain number (an array of one number counts as that number).

        Raises:
            EnvError: it is none.
        """
        if not isinstance(value, _NUMBERS):
            array = np.asarray(value)
            if array.dtype.kind not in "biuf" or array.size != 1:
                raise self.error(lane, f"gave the reward {short(value)}; expected a number")
            value = array.reshape(-1)[0]
        return float(value)

    def finite(self, batch: Any, rows: np.ndarray | None = None, call: str = "step()") -> None:
        """Every number of the observations [L, ...] is finite, in the rows `rows` [L] bool or in all of them.

        Raises:
            EnvError: with the first lane where one is not.
        """
        for leaf in self._leaves:
            part = batch
            for key in leaf.path:
                part = part[key]
            if part.dtype.kind not in "fc" or math.isfinite(_square(part)) or np.isfinite(part).all():
                continue
            bad = ~np.isfinite(part.reshape(len(part), -1)).all(axis=1)
            bad = bad if rows is None else bad & rows
            if bad.any():
                lane = int(np.argmax(bad))
                raise self.error(lane, f"gave an observation that is not finite: {short(part[lane])}", call)

    def finite_rewards(self, reward: np.ndarray, rows: np.ndarray | None = None) -> None:
        """Every reward [L] is finite, in the rows `rows` [L] bool or in all of them.

        Raises:
            EnvError: with the first lane where one is not.
        """
        if math.isfinite(_square(reward)):
            return
        finite = np.isfinite(reward)
        bad = ~finite if rows is None else ~finite & rows
        if bad.any():
            lane = int(np.argmax(bad))
            raise self.error(lane, f"gave the reward {reward[lane]}; expected a finite number")


def _square(values: np.ndarray) -> float:
    """Sum of squares: not finite if a value is not (or if it overflows), and cheaper than looking at each."""
    flat = values.reshape(-1)
    return float(np.vdot(flat, flat).real)


def name_of(env: Any) -> str:
    """What an environment is called: its registered id, else its class."""
    spec = getattr(env, "spec", None)
    inner = getattr(env, "unwrapped", None) or env
    return str(getattr(spec, "id", None) or type(inner).__name__)


def is_signal(error: BaseException) -> bool:
    """Whether a handler has raised this to end the run (exit code 128 + number): no fault of the environment."""
    return isinstance(error, SystemExit) and isinstance(error.code, int) and 128 < error.code < 160


def raised(error: BaseException) -> str:
    """What a call raised, for a message."""
    text = " ".join(str(error).split())
    return f"raised {type(error).__name__}{f': {text[:300]}' if text else ''}"


def short(value: Any) -> str:
    """A value in a message: its type and the beginning of its text."""
    text = " ".join(repr(value).split())
    return "None" if value is None else f"{type(value).__name__} {text[:80]}{'...' if len(text) > 80 else ''}"


def _tree(space: Space[Any] | None, like: Any, path: tuple[Any, ...]) -> Any:
    """Leaves, nested as the space is; without one, as the batch `like` is."""
    if isinstance(space, spaces.Dict):
        return {key: _tree(sub, None, (*path, key)) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_tree(sub, None, (*path, i)) for i, sub in enumerate(space.spaces))
    if space is not None:
        return Leaf(path, tuple(space.shape or ()), None if space.dtype is None else np.dtype(space.dtype))
    if isinstance(like, dict):
        return {key: _tree(None, part, (*path, key)) for key, part in like.items()}
    if isinstance(like, tuple):
        return tuple(_tree(None, part, (*path, i)) for i, part in enumerate(like))
    return Leaf(path, like.shape[1:], like.dtype)
