"""Processes that train one population together: who they are, and what they say to each other.

Every rank holds the same population and makes the same decisions. What differs from rank to rank (experience,
gradients, episodes) becomes the same by a collective; what is the same already is not sent. Everything here does
nothing, and costs nothing, with one process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl import foreign
from agilerl.errors import AgileRLError, ConfigError, NotAvailableYetError, warn_once
from agilerl.rng import Purpose, seeds

TIMEOUT_SECONDS = 600.0
"""How long a rank waits for the others; `AGILERL_RANKS_TIMEOUT` says otherwise."""


class RankError(AgileRLError, RuntimeError):
    """Another process of this run has ended, does not answer, or no longer has what this one has."""


class Ranks:
    """This process among those that train together. As it is made here it is alone: `ONE`.

    Every method is a collective unless it says otherwise: all ranks call it, in the same order. A rank that has ended
    or gives no answer is a `RankError` on all others.

    Attributes:
        rank: number of this process, from 0. size: how many there are. is_main: whether it is the one that writes.
    """

    rank, size = 0, 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    # -- no collectives ----------------------------------------------------------------------------------------------

    def seed(self, run_seed: int) -> int:
        """The run seed of this rank's own streams (environments, exploration, sampling); that of rank 0 is the run's.

        No collective.
        """
        return run_seed if self.rank == 0 else int(seeds(run_seed, Purpose.RANK, 1, 0, self.rank)[0])

    def shares(self, count: int) -> list[int]:
        """How many of `count` things each rank takes: as equal as can be, but at least one each. No collective."""
        each = [count * (rank + 1) // self.size - count * rank // self.size for rank in range(self.size)]
        return [max(1, own) for own in each]

    # -- tensors -----------------------------------------------------------------------------------------------------

    def mean_(self, tensors: Sequence[Tensor]) -> None:
        """Each tensor becomes, in place, its mean over all ranks: one collective for all of them together.

        They have one dtype and one device; the ranks get equal bits.
        """

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean of a tensor over all ranks; the argument itself where there is one."""
        if self.size == 1:
            return tensor
        found = tensor.detach().clone()
        self.mean_([found])
        return found

    # -- small numbers -----------------------------------------------------------------------------------------------

    def gather_rows(self, values: np.ndarray) -> np.ndarray:
        """[*shape] of every rank as [size, *shape] float64; shapes are equal on all ranks."""
        return np.asarray(values, np.float64)[None]

    def sum(self, values: Any) -> np.ndarray:
        """Sums over all ranks of an array of numbers."""
        total: np.ndarray = self.gather_rows(np.asarray(values)).sum(0)
        return total

    def average(self, values: Any) -> np.ndarray:
        """Means over all ranks of an array of numbers."""
        return self.sum(values) / self.size

    def least(self, values: Any) -> np.ndarray:
        """The smallest over all ranks of each number."""
        smallest: np.ndarray = self.gather_rows(np.asarray(values)).min(0)
        return smallest

    def any(self, flag: bool) -> bool:
        """Whether it is true on any rank."""
        return bool(flag) if self.size == 1 else bool(self.gather_rows(np.array(flag)).any())

    def all(self, flag: bool) -> bool:
        """Whether it is true on every rank."""
        return not self.any(not flag)

    # -- bytes -------------------------------------------------------------------------------------------------------

    def gather(self, data: bytes) -> list[bytes]:
        """What each rank gave, in the order of ranks; of any lengths."""
        return [data]

    def gather_plain(self, value: Any) -> list[Any]:
        """As `gather`, of JSON values."""
        return [value] if self.size == 1 else [json.loads(x) for x in self.gather(json.dumps(value).encode())]

    def broadcast(self, data: bytes) -> bytes:
        """What rank 0 gave."""
        return data

    def barrier(self) -> None:
        """Wait for all."""
        self.any(False)

    def check_equal(self, data: bytes, what: str, fix: str = "report it") -> None:
        """RankError on every rank where `data` is not the same on all of them; a hash of it is sent."""
        if self.size == 1:
            return
        found = self.gather(hashlib.sha256(data).digest())
        other = [rank for rank, digest in enumerate(found) if digest != found[0]]
        if other:
            raise RankError(f"{what} of the ranks {other} are not those of rank 0. fix: {fix}.")


ONE = Ranks()


class ProcessRanks(Ranks):
    """Several processes of one `torch.distributed` world, with groups of their own.

    Args:
        timeout: seconds that each collective waits.
    """

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self._numbers: Any = None  # group for small numbers and bytes, on the CPU
        self._tensors: Any = None  # group for tensors where they are

    def join(self) -> None:
        """Make the groups."""
        dist, limit = torch.distributed, timedelta(seconds=self.timeout)

        def make() -> None:
            self._numbers = self._tensors = dist.new_group(timeout=limit, backend="gloo")
            if dist.get_backend() != "gloo":
                self._tensors = dist.new_group(timeout=limit, backend=dist.get_backend())

        self._do(make, "joining the others")

    def mean_(self, tensors: Sequence[Tensor]) -> None:
        if len(tensors) == 1 and tensors[0].is_contiguous():
            flat = tensors[0].view(-1)
        else:
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self._reduce(flat)
        flat /= self.size
        if len(tensors) == 1 and tensors[0].is_contiguous():
            return
        start = 0
        for tensor in tensors:
            tensor.copy_(flat[start : start + tensor.numel()].view(tensor.shape))
            start += tensor.numel()

    def _reduce(self, flat: Tensor) -> None:
        dist = torch.distributed
        self._do(lambda: dist.all_reduce(flat, group=self._tensors), "averaging gradients")

    def gather_rows(self, values: np.ndarray) -> np.ndarray:
        own = torch.from_numpy(np.array(values, np.float64))
        found = [torch.empty_like(own) for _ in range(self.size)]
        self._do(lambda: torch.distributed.all_gather(found, own, group=self._numbers), "agreeing")
        return torch.stack(found).numpy()

    def gather(self, data: bytes) -> list[bytes]:
        lengths = self.gather_rows(np.array(len(data)))[:, ...].astype(int).tolist()
        own = torch.zeros(max(1, *lengths), dtype=torch.uint8)
        own[: len(data)] = _bytes(data)
        found = [torch.empty_like(own) for _ in range(self.size)]
        self._do(lambda: torch.distributed.all_gather(found, own, group=self._numbers), "gathering")
        return [part[:length].numpy().tobytes() for part, length in zip(found, lengths, strict=True)]

    def broadcast(self, data: bytes) -> bytes:
        length = int(self.gather_rows(np.array(len(data)))[0])
        sent = _bytes(data) if self.rank == 0 else torch.empty(length, dtype=torch.uint8)
        if length:
            self._do(lambda: torch.distributed.broadcast(sent, 0, group=self._numbers), "taking over rank 0's state")
        return sent.numpy().tobytes()

    def _do(self, collective: Callable[[], Any], doing: str) -> None:
        try:
            collective()
        except RuntimeError as error:
            raise RankError(
                f"rank {self.rank} of {self.size} was {doing}, and another rank has ended or has given no answer for "
                f"{self.timeout:g} seconds. What went wrong stands in the output of the rank that failed first. fix: "
                "mend that, then start all ranks again (resume= goes on where the run was saved last); where a rank "
                "is only slow, AGILERL_RANKS_TIMEOUT=<seconds>."
            ) from error

    def close(self) -> None:
        """Leave the groups: whoever waits for this rank in one of them no longer does. No collective."""
        for group in {id(own): own for own in (self._tensors, self._numbers) if own is not None}.values():
            with contextlib.suppress(Exception):
                torch.distributed.destroy_process_group(group)
        self._numbers = self._tensors = None


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


@contextlib.contextmanager
def joined(accelerator: Any) -> Iterator[Ranks]:
    """The ranks of an accelerator as long as the block runs; `ONE` for None and for a single process.

    However the block ends on one rank, nobody waits for that rank any longer: the others' next collective is a
    `RankError`.

    Raises:
        NotAvailableYetError: several processes that are not of `torch.distributed` (XLA).
    """
    size = processes_of(accelerator)
    if size == 1:
        yield ONE
        return
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() == size):
        raise NotAvailableYetError(
            f"the accelerator has {size} processes, which train together over torch.distributed only. fix: start with "
            "`accelerate launch` or `python -m torch.distributed.run` on CPUs or CUDA devices."
        )
    ranks = ProcessRanks(dist.get_rank(), size, _timeout())
    try:
        ranks.join()
        yield ranks
        ranks.barrier()  # nobody leaves while somebody still needs it
    finally:
        ranks.close()


def processes_of(accelerator: Any) -> int:
    """How many processes an accelerator has; 1 for None."""
    return foreign.num_processes(accelerator)


def _timeout() -> float:
    given = os.environ.get("AGILERL_RANKS_TIMEOUT", str(TIMEOUT_SECONDS))
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"AGILERL_RANKS_TIMEOUT must be seconds above 0; got {given!r}. fix: 600.")
    return seconds


# -- what the launcher was asked for ----------------------------------------------------------------------------------

_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


def check_launch(accelerator: Any) -> None:
    """Warn once where the launcher was asked for other processes than those that train together. No collective."""
    processes, asked = processes_of(accelerator), asked_for()
    if asked is None or asked[0] == processes:
        return
    count, where = asked
    if accelerator is None and where in _SIZES:
        text = (
            f"{where} says {count} processes, and accelerator=None: each of them trains a population of its own, and "
            "they write over each other's files. fix: accelerator=Accelerator()."
        )
    else:
        text = (
            f"{where} says {count} processes, and {processes} {'runs' if processes == 1 else 'run'}: `accelerate launch"
            " --cpu` alone starts one, whatever is asked for. fix: ACCELERATE_USE_CPU=true python -m "
            f"torch.distributed.run --nproc_per_node {count} SCRIPT, or accelerate launch on as many devices."
        )
    warn_once("ranks:launch", text, stacklevel=4)


def asked_for() -> tuple[int, str] | None:
    """(processes that the launcher was asked for, where that is said); None where nothing says it. No collective."""
    for name in _SIZES:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name]), name
    try:  # `accelerate launch` tells its only process nothing: its own command line does, where the system shows it
        words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    return _said_by(words)


def _said_by(words: Sequence[str]) -> tuple[int, str] | None:
    if "launch" not in words or not any("accelerate" in word for word in words):
        return None
    for word, after in zip(words, [*words[1:], ""], strict=True):
        name, _, value = word.replace("_", "-").partition("=")
        count = value or after
        if name == "--num-processes" and count.isdigit():
            return int(count), "accelerate launch --num_processes"
    return None
