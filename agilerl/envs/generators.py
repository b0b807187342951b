"""Global random generators of NumPy, `random` and PyTorch, with separate states for each lane.

Environments should draw from `self.np_random`. With a process-wide generator, episodes would depend on the other lanes
of the process, and forked processes would repeat each other's draws.
"""

from __future__ import annotations

import contextlib
import errno
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.random import mtrand

from agilerl.core import foreign
from agilerl.core.rng import Purpose
from agilerl.errors import EnvError

WATCHED_STEPS = 128  # vector steps in which all generators are exchanged, to detect those that environments draw from
MAX_ATTEMPTS, MAX_ATTEMPT_SECONDS = 1_000, 10.0  # for the port or file of another environment to become free
TAKEN = {errno.EADDRINUSE, errno.EEXIST, errno.EAGAIN}
T = TypeVar("T")


class Generator(NamedTuple):
    """One global generator: derives a state from a sequence, reads and sets the current one, and compares two."""

    fresh: Callable[[np.random.SeedSequence], Any]
    take: Callable[[], Any]
    put: Callable[[Any], Any]
    fingerprint: Callable[[Any], Any]


GENERATORS = {
    # The state is the bit generator: exchanging it takes 0.4 us, reading and writing its numbers 70.
    "numpy": Generator(
        np.random.MT19937, mtrand.get_bit_generator, mtrand.set_bit_generator,
        lambda bits: [x if isinstance(x, int) else x.tobytes() for x in bits.state["state"].values()],
    ),
    "random": Generator(
        lambda sequence: random.Random(sequence.generate_state(4).tobytes()).getstate(),
        random.getstate, random.setstate, lambda state: state,
    ),
    "torch": Generator(
        lambda sequence: torch.Generator().manual_seed(int(sequence.generate_state(1)[0])).get_state(),
        torch.default_generator.get_state, torch.default_generator.set_state, lambda state: state.numpy().tobytes(),
    ),
}  # fmt: skip


@contextlib.contextmanager
def preserved(names: Iterable[str] = GENERATORS) -> Iterator[None]:
    """Restore the global generators on exit; code inside must exchange them before it draws."""
    states = {name: GENERATORS[name].take() for name in names}
    cached = np.random.get_state(legacy=False) if "numpy" in states else {}  # an exchange drops cached normals
    try:
        yield
    finally:
        _put(states)
        if cached.get("has_gauss"):
            np.random.set_state(cached)


def reseed(sequence: np.random.SeedSequence) -> None:
    """Exchange the global generators for ones with this seed."""
    _put({name: generator.fresh(sequence) for name, generator in GENERATORS.items()})


@contextlib.contextmanager
def isolated(seed: int = 0) -> Iterator[None]:
    """Run code of an environment with separate global generators that start from this seed."""
    with preserved():
        reseed(_sequence(seed))
        yield


def _put(states: dict[str, Any]) -> None:
    for name, state in states.items():
        GENERATORS[name].put(state)


def _sequence(seed: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(abs(seed), spawn_key=(int(Purpose.GLOBAL_GENERATORS),))


def _drawn(states: dict[str, Any], seed: int) -> list[str]:
    """Return the generators whose states differ from those of the seed."""
    fresh = {name: GENERATORS[name].fresh(_sequence(seed)) for name in states}
    marks = {name: GENERATORS[name].fingerprint for name in states}
    return [name for name, mark in marks.items() if mark(states[name]) != mark(fresh[name])]


class LaneGenerators:
    """States of the global generators for each lane of one process; the process keeps a separate state.

    Once it has a seed, a lane draws from states derived from the latest one: the same for any number of processes, and
    in every repetition. After `WATCHED_STEPS` vector steps only the generators that some lane has drawn from are
    exchanged; for most environments none, at no cost. Later draws are detected in resets with seeds, which are
    repeated.

    Args:
        lanes: number of lanes. may_draw: False for environments that are known not to use the global generators.

    Attributes:
        are_exchanged: whether calls of environments must go through `call`.
    """

    def __init__(self, lanes: int, may_draw: bool = True) -> None:
        self._seeds: list[int] = []
        self._states: list[dict[str, Any]] = [{} for _ in range(lanes)]
        self._names: set[str] = set(GENERATORS if may_draw else ())  # that are exchanged
        self._drawn: set[str] = set()
        self._may_draw, self._unwatched = may_draw, WATCHED_STEPS
        self.are_exchanged = False

    def reset(self, seeds: list[int] | None, reset: Callable[[], T]) -> T:
        """Reset all lanes by `reset`, with states of these seeds; None continues with the present states."""
        if seeds is None or not self._may_draw:
            return self._exchanging(reset)
        if self._unwatched:
            self._note_draws()
        while True:
            self._seeds, self.are_exchanged = seeds, bool(self._names)
            self._states = [{name: GENERATORS[name].fresh(_sequence(seed)) for name in self._names} for seed in seeds]
            with isolated(seeds[0]):
                result = reset()
                others = {name: GENERATORS[name].take() for name in GENERATORS if name not in self._names}
                drawn = _drawn(others, seeds[0])
            if not drawn:
                return result
            self._names.update(drawn)

    def step(self, step: Callable[[], T]) -> T:
        """Step all lanes by `step`."""
        result = self._exchanging(step)
        if self._unwatched and self.are_exchanged:
            self._unwatched -= 1
            if not self._unwatched:
                self.end_watch()
        return result

    def end_watch(self) -> None:
        """From now on, exchange only the generators that some lane has drawn from."""
        if self.are_exchanged:
            self._note_draws()
            self._names, self._unwatched = self._drawn, 0
            self._states = [{name: states[name] for name in self._names} for states in self._states]
            self.are_exchanged = bool(self._names)

    def wrapped(self, functions: list[Callable[..., Any]]) -> list[Callable[..., Any]]:
        """Wrap functions of all lanes' environments in `call`."""
        return [partial(self.call, *pair) for pair in enumerate(functions)] if self.are_exchanged else functions

    def call(self, lane: int, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a function of the lane's environment; from within `reset` or `step`."""
        if not self.are_exchanged:
            return function(*args, **kwargs)
        states = self._states[lane]
        _put(states)
        try:
            return function(*args, **kwargs)
        finally:
            for name in states:
                states[name] = GENERATORS[name].take()

    def _exchanging(self, function: Callable[[], T]) -> T:
        if not self.are_exchanged:
            return function()
        with preserved(self._names):
            return function()

    def _note_draws(self) -> None:
        """Note the generators whose states have changed since the lanes got their seeds."""
        for seed, states in zip(self._seeds, self._states, strict=False):
            self._drawn.update(_drawn({name: states[name] for name in states if name not in self._drawn}, seed))


# -- construction ------------------------------------------------------------------------------------------------------


class Construction(NamedTuple):
    """Seed of the global generators while environments are constructed.

    Attributes:
        seed: of the run; None disables seeding. is_training: whether lanes have different draws. In evaluations they
            are equal, since any process may play any episode.
        first: number of the first lane that is constructed. replacement: number of replacements so far.
    """

    seed: int | None = None
    is_training: bool = True
    first: int = 0
    replacement: int = 0

    def seed_lane(self, lane: int) -> None:
        """Seed the global generators for a lane, counted from the first one."""
        if self.seed is not None:
            number = 1 + self.first + lane if self.is_training else 0
            key = (Purpose.GLOBAL_GENERATORS, number, self.replacement)
            reseed(np.random.SeedSequence(self.seed, spawn_key=key))


UNSEEDED = Construction()
CONSTRUCTION: ContextVar[Construction] = ContextVar("CONSTRUCTION", default=UNSEEDED)


@contextlib.contextmanager
def constructing(construction: Construction) -> Iterator[None]:
    """Construct environments with this seed."""
    token = CONSTRUCTION.set(construction)
    try:
        yield
    finally:
        CONSTRUCTION.reset(token)


def construct(factories: Sequence[Callable[[], Any]]) -> list[Any]:
    """Call the factories, each with the seed of `constructing` and its lane; see `check_distinct`."""
    construction, envs = CONSTRUCTION.get(), list[Any]()
    with contextlib.ExitStack() as stack, preserved(GENERATORS if construction.seed is not None else ()):
        for lane, factory in enumerate(factories):
            construction.seed_lane(lane)
            envs.append(_attempt(factory))
            stack.callback(foreign.close, envs[-1])
        stack.pop_all()
    check_distinct(envs)
    return envs


def check_distinct(envs: Sequence[Any]) -> None:
    """Raise EnvError if two environments, inside their wrappers, are the same object."""
    if len({id(foreign.bare(env)) for env in envs}) < len(envs):
        raise EnvError(
            f"the factory of {type(foreign.bare(envs[0])).__name__} returned the same object for several lanes, which "
            "would share their episodes. fix: a function that constructs one at every call."
        )


def _attempt(factory: Callable[[], Any]) -> Any:
    """Call a factory; retry while its port or file is in use, since classes count ports separately in each process."""
    end, attempts = time.monotonic() + MAX_ATTEMPT_SECONDS, 0
    while True:
        attempts += 1
        try:
            return factory()
        except Exception as error:
            causes = error, error.__cause__, error.__context__
            is_taken = any(isinstance(cause, OSError) and cause.errno in TAKEN for cause in causes)
            if not is_taken or attempts == MAX_ATTEMPTS or time.monotonic() > end:
                raise
