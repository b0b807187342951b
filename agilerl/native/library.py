"""The compiled kernels: found, checked and called through ctypes; see `kernels/population.h` for what they take."""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import POINTER, Array, Structure, byref, c_double, c_int64, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agilerl.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from agilerl.native.threads import Threads

ABI = 9
MAX_DEPTH = 12
ACTIVATIONS = (
    "Identity", "ReLU", "LeakyReLU", "ELU", "Tanh", "Sigmoid", "SiLU", "GELU", "Mish", "Softplus", "Softsign",
)  # fmt: skip
VARIABLE = "AGILERL_NATIVE"
CHOICES = ("0", "1", "256", "512")


class Layer(Structure):
    """One layer: real widths, activation, the columns of its parameters in a row, and the sizes of a convolution."""

    _fields_ = [
        (name, c_int64)
        for name in (
            "inputs", "outputs", "activation", "norm", "weight", "weight_row", "bias", "gain", "shift",
            "channels", "height", "width", "kernel_height", "kernel_width", "stride_height", "stride_width",
            "pad_height", "pad_width",
        )
    ]  # fmt: skip


class Member(Structure):
    """The network of one member."""

    _fields_ = [("depth", c_int64), ("layers", Layer * MAX_DEPTH)]


class Rows(Structure):
    """The rows of several members and their optimiser."""

    _fields_ = [
        *((name, c_int64) for name in ("begin", "end", "members", "stride")),
        *((name, c_void_p) for name in ("value", "target", "first", "second", "steps", "lr")),
        *((name, c_double) for name in ("beta1", "beta2", "eps", "decay")),
        ("decouples_decay", c_int64),
        ("room", c_void_p),
    ]


class Forward(Structure):
    """Arguments of the outputs of several members' networks."""

    _fields_ = [
        ("rows", Rows),
        ("batch", c_int64),
        ("member", POINTER(Member)),
        *((name, c_void_p) for name in ("obs", "outputs")),
    ]


class TemporalDifference(Structure):
    """Arguments of temporal-difference updates of several members."""

    _fields_ = [
        ("rows", Rows),
        *((name, c_int64) for name in ("updates", "batch", "inputs", "is_double")),
        ("member", POINTER(Member)),
        *((name, c_void_p) for name in (
            "tau", "conservative", "live", "obs", "next_obs", "reward", "discount", "weight", "action", "next_mask",
            "obs_mask", "loss", "error",
        )),
    ]  # fmt: skip


class PolicyGradient(Structure):
    """Arguments of the minibatches of one epoch of several members."""

    _fields_ = [
        ("rows", Rows),
        *((name, c_int64) for name in ("updates", "batch", "inputs", "samples", "components", "clips_value")),
        *((name, POINTER(Member)) for name in ("policy", "critic")),
        *((name, c_void_p) for name in (
            "clip", "entropy_share", "value_share", "max_norm", "sizes", "least", "obs", "action", "numbers", "weight",
            "choice", "sample", "legal", "live", "loss", "policy_loss", "divergence",
        )),
    ]  # fmt: skip


class ActorCritic(Structure):
    """Arguments of updates of deterministic actors and their critics."""

    _fields_ = [
        *((name, Rows) for name in ("rows", "critics")),
        *((name, c_int64) for name in (
            "updates", "batch", "inputs", "actions", "twins", "number", "policy_interval", "tracks_with_policy",
            "shared",
        )),
        *((name, POINTER(Member)) for name in ("actor", "encoder", "head")),
        *((name, c_double) for name in ("low", "high")),
        *((name, c_void_p) for name in (
            "tau", "noise", "limit", "live", "obs", "next_obs", "action", "smoothing", "reward", "discount", "weight",
            "loss", "actor_loss", "error",
        )),
    ]  # fmt: skip


class SoftActorCritic(Structure):
    """Arguments of updates of soft actor-critic."""

    _fields_ = [
        *((name, Rows) for name in ("rows", "critics", "temperature")),
        *((name, c_int64) for name in (
            "updates", "batch", "inputs", "actions", "choices", "shared", "log_alpha", "learns_temperature",
        )),
        *((name, POINTER(Member)) for name in ("actor", "encoder", "head")),
        *((name, c_void_p) for name in (
            "tau", "target_entropy", "live", "obs_mask", "next_mask", "choice", "obs", "next_obs", "action", "noise",
            "next_noise", "reward", "discount", "weight", "loss", "actor_loss", "error",
        )),
    ]  # fmt: skip


class TeamAgent(Structure):
    """One agent of a team: where its numbers lie, and what it sees."""

    _fields_ = [
        *((name, c_int64) for name in ("column", "start", "width", "legal", "components")),
        *((name, c_void_p) for name in ("sizes", "obs", "next_obs")),
    ]


class TeamGroup(Structure):
    """Agents that share networks, and these."""

    _fields_ = [
        ("count", c_int64),
        ("agents", c_void_p),
        ("actor", Rows),
        ("critic", Rows * 2),
        ("policy", POINTER(Member)),
        *((name, POINTER(Member) * 2) for name in ("encoder", "head")),
    ]


class TeamActorCritic(Structure):
    """Arguments of updates of teams with centralised critics."""

    _fields_ = [
        ("rows", Rows),
        *((name, c_int64) for name in (
            "members", "updates", "batch", "inputs", "features", "stored", "choices", "agents", "groups", "twins",
            "number", "policy_interval",
        )),
        ("agent", POINTER(TeamAgent)),
        ("group", POINTER(TeamGroup)),
        ("temperature", c_double),
        *((name, c_void_p) for name in (
            "tau", "noise", "limit", "live", "obs_mask", "next_mask", "joint", "next_joint", "action", "gumbel",
            "smoothing", "reward", "discount", "weight", "present", "next_present", "loss", "actor_loss", "error",
        )),
    ]  # fmt: skip


Call = Forward | TemporalDifference | PolicyGradient | ActorCritic | SoftActorCritic | TeamActorCritic
ENTRIES = {
    Forward: "population_forward",
    TemporalDifference: "population_td",
    PolicyGradient: "population_pg",
    ActorCritic: "population_ac",
    SoftActorCritic: "population_sac",
    TeamActorCritic: "population_team",
}


class Library:
    """The loaded kernels.

    Args:
        path: the shared library. vector: width of the vectors in bits.

    Attributes:
        threads: that calls may use beside the caller's (`native.threads.kernel_threads`); None for none.
        has_threads: whether it can start some (not on Windows).

    Raises:
        OSError: a file that is no library, or one of another version.
    """

    def __init__(self, path: Path, vector: int | None = None) -> None:
        self.path, self._library = path, ctypes.CDLL(str(path))
        self._library.population_abi.restype = self._library.population_vectors.restype = c_int64
        abi = self._library.population_abi()
        if abi != ABI:
            raise OSError(f"{path} has the interface {abi}; expected {ABI}")
        self._runs = {kind: self._function(name) for kind, name in ENTRIES.items()}
        self._rooms = {kind: self._function(f"{name}_room") for kind, name in ENTRIES.items()}
        widths = [width for width in (512, 256, 128) if self._library.population_vectors() & width]
        if vector is not None:
            widths = [width for width in widths if width == vector]
        if not widths:
            raise OSError(f"this processor has no vectors of {vector or 'AVX2, AVX-512 or NEON'}")
        self.vector = widths[0]
        self.has_threads = hasattr(self._library, "population_pool")
        self.threads: Threads | None = None

    def _function(self, name: str) -> Any:
        function = self._library[name]
        function.restype = c_int64
        return function

    def room(self, call: Call) -> int:
        """Return how many numbers `call.rows.room` must hold."""
        room = self._rooms[type(call)]
        return max(int(room(byref(call), c_int64(n))) for n in range(call.rows.begin, call.rows.end))

    def run(self, call: Call, is_float64: bool) -> None:
        """Run the call."""
        if self._runs[type(call)](byref(call), c_int64(self.vector), c_int64(is_float64)):
            raise RuntimeError(f"{self.path} has no kernels for vectors of {self.vector} bits")

    def start(self, threads: int) -> int | None:
        """Start threads in C (`kernels/pool.h`); return the address of their pool, None if there are none."""
        function = self._library.population_pool
        function.restype = c_void_p
        return function(c_int64(threads))  # type: ignore[no-any-return]  # of ctypes

    def begin(self, pool: int, call: Call, rooms: Array[c_void_p], is_float64: bool) -> None:
        """Begin a call that stays as it is until `finish`; rooms: of each thread of the pool, the caller first."""
        run, size = ctypes.cast(self._runs[type(call)], c_void_p), c_int64(ctypes.sizeof(call))
        begin = self._library.population_pool_begin
        begin(c_void_p(pool), run, byref(call), size, rooms, c_int64(self.vector), c_int64(is_float64))

    def finish(self, pool: int) -> None:
        """Take part in the calls of the pool until they are done."""
        self._library.population_pool_finish(c_void_p(pool))

    def end(self, pool: int) -> None:
        """End the threads of a pool."""
        self._library.population_pool_free(c_void_p(pool))


def wanted() -> str:
    """Return the value of AGILERL_NATIVE, "1" by default.

    Raises:
        ConfigError: another word.
    """
    word = os.environ.get(VARIABLE, "1")
    if word not in CHOICES:
        raise ConfigError(f"{VARIABLE}={word!r} is none of {', '.join(CHOICES)}. fix: {VARIABLE}=0 for torch alone.")
    return word


@functools.cache
def _load(word: str) -> Library | None:
    vector = int(word) if len(word) > 1 else None
    for path in sorted(Path(__file__).parent.glob("_population*")):
        if path.suffix in (".so", ".pyd", ".dylib", ".dll"):
            try:
                return Library(path, vector)
            except OSError:
                continue
    return None


def library() -> Library | None:
    """Return the kernels; None where there are none for this machine, or with AGILERL_NATIVE=0."""
    word = wanted()
    return None if word == "0" else _load(word)


def pointer(tensor: Tensor) -> int:
    """Return the address of a tensor's numbers."""
    return int(tensor.data_ptr())
