"""benchmarks/fuzz_kernels.py: nothing is found in the kernels, and faults that are put into calls are."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from agilerl.native import library as native
from agilerl.native.library import Call, Forward, Library, TemporalDifference
from agilerl.native.threads import Kernel, Threads

pytestmark = pytest.mark.skipif(native.library() is None, reason="no kernels were built for this machine")
SHAPES = range(48)


@pytest.fixture
def fuzz(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("fuzz_kernels")


class FaultyLibrary(Library):
    """Kernels after whose calls a fault happens."""

    def __init__(self, library: Library, fault: Callable[[Any, int], None]) -> None:
        super().__init__(library.path, library.vector)
        self._fault = fault

    def run(self, call: Call, is_float64: bool) -> None:
        """Run the call, and the fault."""
        super().run(call, is_float64)
        self._fault(call, 8 if is_float64 else 4)


def flip(address: int) -> None:
    """Flip the lowest bit of a byte."""
    ctypes.c_uint8.from_address(address).value ^= 1


def after_outputs(call: Any, size: int) -> None:
    if isinstance(call, Forward):
        network = call.member[0]
        outputs = network.layers[network.depth - 1].outputs
        flip(call.outputs + call.rows.members * call.batch * outputs * size)


def before_outputs(call: Any, size: int) -> None:
    if isinstance(call, Forward):
        flip(call.outputs - 1)


def in_observations(call: Any, size: int) -> None:
    if isinstance(call, Forward):
        flip(call.obs)


def in_parameters(call: Any, size: int) -> None:
    if isinstance(call, TemporalDifference):
        flip(call.rows.value + call.member[0].layers[0].weight * size)


def in_outputs_of_several(call: Any, size: int) -> None:
    if isinstance(call, Forward) and call.rows.end - call.rows.begin > 1:
        flip(call.outputs)


def not_finite(call: Any, size: int) -> None:
    if isinstance(call, Forward):
        ctypes.memset(call.outputs, 0xFF, size)


def findings(fuzz: ModuleType, libraries: list[Library]) -> set[str]:
    """Return what is found, without the buffers that it is found in."""
    found = fuzz.fuzz(fuzz.Fuzzer(libraries), 0, SHAPES, lambda number: None)["findings"]
    return {one["finding"].split(":")[0] for one in found}


def test_nothing_is_found_in_every_kind_of_call(fuzz: ModuleType) -> None:
    begun: list[int] = []
    line = fuzz.fuzz(fuzz.Fuzzer(fuzz.installed()), 0, range(150), begun.append)
    assert line["findings"] == []
    assert len(line["counts"]) == 8
    assert (line["shapes"], begun) == (150, list(range(150)))


def test_members_on_threads_have_the_bits_of_one_thread(fuzz: ModuleType) -> None:
    class OnThreads(Library):
        """Runs the members of every call on threads."""

        def run(self, call: Call, is_float64: bool) -> None:
            """Run the call."""
            members, dtype = call.rows.end - call.rows.begin, torch.float64 if is_float64 else torch.float32
            used.add(min(8, members))
            threads.begin(Kernel(plain, call, dtype))
            threads.finish()

    plain, used = fuzz.installed()[0], set[int]()
    threads = Threads(plain, 8)
    libraries = [OnThreads(plain.path, plain.vector), plain]
    line = fuzz.fuzz(fuzz.Fuzzer(libraries), 0, range(150), lambda number: None)
    threads.close()
    assert (line["findings"], len(line["counts"])) == ([], 8)
    assert used >= {1, 2, 3}


@pytest.mark.parametrize(
    ("fault", "finding"),
    [(after_outputs, "canary"), (before_outputs, "canary"), (in_observations, "input"), (in_parameters, "bits"),
     (in_outputs_of_several, "bits"), (not_finite, "not finite, or a number beside the parameters")],
)  # fmt: skip
def test_a_fault_is_found(fuzz: ModuleType, fault: Callable[[Any, int], None], finding: str) -> None:
    faulty, sound = (fuzz.installed()[k] for k in (0, -1))
    assert findings(fuzz, [FaultyLibrary(faulty, fault), sound]) == {finding}


def test_a_width_that_there_is_not_is_found(fuzz: ModuleType) -> None:
    library = fuzz.installed()[0]
    library.vector = 64
    assert findings(fuzz, [library]) == {"status"}


def test_too_little_room_is_found(fuzz: ModuleType) -> None:
    class Narrow(Library):
        """Says less than calls need."""

        def room(self, call: Call) -> int:
            """Return too little."""
            return super().room(call) // 2

    narrow = Narrow(fuzz.installed()[0].path, fuzz.installed()[0].vector)
    assert "canary" in findings(fuzz, [narrow])


def test_outputs_that_are_wrong_at_every_width_are_found(fuzz: ModuleType) -> None:
    def fault(call: Any, size: int) -> None:
        if isinstance(call, Forward):
            number = (ctypes.c_double if size == 8 else ctypes.c_float).from_address(call.outputs)
            number.value += 1 + abs(number.value)

    numbers = fuzz.pools()
    drawn = ((n, fuzz.draw(numbers, 0, n)) for n in range(0, 10_000, 50))
    shape = next(n for n, one in drawn if one.kind is Forward and one.members == 1 and not one.is_spoiled)
    libraries = [FaultyLibrary(library, fault) for library in fuzz.installed()]
    found = fuzz.fuzz(fuzz.Fuzzer(libraries), 0, range(shape, shape + 1), lambda number: None)["findings"]
    assert [(one["number"], one["finding"].split(":")[0]) for one in found] == [(shape, "reference")]


def test_a_shape_depends_on_its_seed_and_number_alone(fuzz: ModuleType) -> None:
    numbers = fuzz.pools()
    one, again, other = (fuzz.draw(numbers, *key) for key in ((3, 5), (3, 5), (4, 5)))
    assert one.settings == again.settings
    assert all(np.array_equal(array, again.fields[name][0], equal_nan=True) for name, (array, _) in one.fields.items())
    assert {name: x.shape for name, (x, _) in one.fields.items()} != {
        name: x.shape for name, (x, _) in other.fields.items()
    }
    drawn = [fuzz.draw(numbers, 0, number) for number in range(300)]
    assert (
        len({str((shape.label, sorted((k, x.shape) for k, (x, _) in shape.fields.items()))) for shape in drawn}) > 290
    )
    assert min(Counter(shape.members for shape in drawn).values()) > 10


def test_small_shapes_are_small_but_for_some(fuzz: ModuleType) -> None:
    numbers = fuzz.pools()
    batches = [fuzz.draw(numbers, 0, number, is_small=True).settings["batch"] for number in range(300)]
    assert 0 < sum(batch > 17 for batch in batches) < 30
