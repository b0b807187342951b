"""Distributed training: the processes that train one population, and their collectives.

Every rank holds the same population and makes the same decisions. Rank-specific data (experience, gradients, episodes)
are combined by a collective; identical data are not sent. With a single process all functions here are no-ops.
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

from agilerl.core import foreign
from agilerl.core.rng import Purpose, seeds
from agilerl.errors import AgileRLError, ConfigError, NotAvailableYetError, warn_once

TIMEOUT_SECONDS = 600.0
"""How long a rank waits for the others; `AGILERL_RANKS_TIMEOUT` says otherwise."""


class RankError(AgileRLError, RuntimeError):
    """Another process of this run has ended, does not answer, or is out of sync with this one."""


class Ranks:
    """This process among those that train together. The base class is a single process: `ONE`.

    Every method is a collective unless documented otherwise: all ranks call it, in the same order. If a rank has ended
    or does not answer, all others raise `RankError`.

    Attributes:
        rank: number of this process, from 0. size: number of processes. is_main: whether it writes files.
    """

    rank, size = 0, 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    # -- no collectives ----------------------------------------------------------------------------------------------

    def seed(self, run_seed: int) -> int:
        """Return the run seed of this rank's streams (environments, exploration, sampling); rank 0 has the run's seed.

        Not a collective.
        """
        return run_seed if self.rank == 0 else int(seeds(run_seed, Purpose.RANK, 1, 0, self.rank)[0])

    def shares(self, count: int) -> list[int]:
        """Split `count` things over the ranks: as equally as possible, but at least one each. Not a collective."""
        each = [count * (rank + 1) // self.size - count * rank // self.size for rank in range(self.size)]
        return [max(1, share) for share in each]

    # -- tensors -----------------------------------------------------------------------------------------------------

    def mean_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor, in place, by its mean over all ranks, in one collective for all tensors.

        The tensors share dtype and device; all ranks get bit-identical results.
        """

    def mean(self, tensor: Tensor) -> Tensor:
        """Return the mean of a tensor over all ranks; the argument itself with a single rank."""
        if self.size == 1:
            return tensor
        result = tensor.detach().clone()
        self.mean_([result])
        return result

    # -- small numbers -----------------------------------------------------------------------------------------------

    def gather_rows(self, values: np.ndarray) -> np.ndarray:
        """Gather arrays [*shape] of all ranks as [size, *shape] float64; shapes must be equal."""
        return np.asarray(values, np.float64)[None]

    def sum(self, values: Any) -> np.ndarray:
        """Sum an array of numbers over all ranks."""
        total: np.ndarray = self.gather_rows(np.asarray(values)).sum(0)
        return total

    def average(self, values: object) -> np.ndarray:
        """Average an array of numbers over all ranks."""
        return self.sum(values) / self.size

    def least(self, values: object) -> np.ndarray:
        """Return the elementwise minimum over all ranks."""
        smallest: np.ndarray = self.gather_rows(np.asarray(values)).min(0)
        return smallest

    def any(self, flag: bool) -> bool:
        """Whether the flag is true on any rank."""
        return bool(flag) if self.size == 1 else bool(self.gather_rows(np.array(flag)).any())

    def all(self, flag: bool) -> bool:
        """Whether the flag is true on every rank."""
        return not self.any(not flag)

    # -- bytes -------------------------------------------------------------------------------------------------------

    def gather(self, data: bytes) -> list[bytes]:
        """Gather bytes of any length, in rank order."""
        return [data]

    def gather_plain(self, value: object) -> list[Any]:
        """Gather JSON values, in rank order."""
        return [value] if self.size == 1 else [json.loads(x) for x in self.gather(json.dumps(value).encode())]

    def broadcast(self, data: bytes) -> bytes:
        """Return the data of rank 0."""
        return data

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.any(False)

    def check_equal(self, data: bytes, what: str, fix: str = "report it") -> None:
        """Raise RankError on every rank unless `data` is identical on all; only a hash is sent."""
        if self.size == 1:
            return
        digests = self.gather(hashlib.sha256(data).digest())
        other = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if other:
            raise RankError(f"{what} of the ranks {other} are not those of rank 0. fix: {fix}.")


ONE = Ranks()


class ProcessRanks(Ranks):
    """Processes of one `torch.distributed` world, with separate process groups.

    Args:
        timeout: seconds to wait in each collective.
    """

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self._numbers: Any = None  # group for small numbers and bytes, on the CPU
        self._tensors: Any = None  # group for tensors on their device

    def join(self) -> None:
        """Create the groups."""
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
        local = torch.from_numpy(np.array(values, np.float64))
        gathered = [torch.empty_like(local) for _ in range(self.size)]
        self._do(lambda: torch.distributed.all_gather(gathered, local, group=self._numbers), "agreeing")
        return torch.stack(gathered).numpy()

    def gather(self, data: bytes) -> list[bytes]:
        lengths = self.gather_rows(np.array(len(data)))[:, ...].astype(int).tolist()
        local = torch.zeros(max(1, *lengths), dtype=torch.uint8)
        local[: len(data)] = _bytes(data)
        gathered = [torch.empty_like(local) for _ in range(self.size)]
        self._do(lambda: torch.distributed.all_gather(gathered, local, group=self._numbers), "gathering")
        return [part[:length].numpy().tobytes() for part, length in zip(gathered, lengths, strict=True)]

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
        """Leave the groups, so that other ranks stop waiting for this one. Not a collective."""
        for group in {
            id(process_group): process_group
            for process_group in (self._tensors, self._numbers)
            if process_group is not None
        }.values():
            with contextlib.suppress(Exception):
                torch.distributed.destroy_process_group(group)
        self._numbers = self._tensors = None


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


@contextlib.contextmanager
def joined(accelerator: foreign.Accelerator | None) -> Iterator[Ranks]:
    """Context manager: the ranks of an accelerator; `ONE` for None and for a single process.

    However the block ends on one rank, the others stop waiting for it: their next collective raises `RankError`.

    Raises:
        NotAvailableYetError: several processes outside of `torch.distributed` (XLA).
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
        ranks.barrier()  # no rank leaves while another still needs it
    finally:
        ranks.close()


def processes_of(accelerator: foreign.Accelerator | None) -> int:
    """Return the number of processes of an accelerator; 1 for None."""
    return foreign.num_processes(accelerator)


def _timeout() -> float:
    setting = os.environ.get("AGILERL_RANKS_TIMEOUT", str(TIMEOUT_SECONDS))
    try:
        seconds = float(setting)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"AGILERL_RANKS_TIMEOUT must be seconds above 0; got {setting!r}. fix: 600.")
    return seconds


# -- launcher configuration -------------------------------------------------------------------------------------------

_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


def check_alone() -> None:
    """Warn once if a launcher was asked for several processes of a run that trains in one."""
    asked = asked_for()
    if asked is None or asked[0] == 1:
        return
    text = (
        f"{asked[1]} says {asked[0]} processes, and agilerl.train runs in one: each of them trains a population of its "
        "own. fix: accelerator=Accelerator() in train_off_policy and the like, workers=N, or one process."
    )
    warn_once("ranks:launch", text, stacklevel=4)


def check_launch(accelerator: foreign.Accelerator | None) -> None:
    """Warn once if the launcher was asked for other processes than those that train together. Not a collective."""
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
    """Return (processes requested from the launcher, source of the number), or None if unknown. Not a collective."""
    for name in _SIZES:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name]), name
    try:  # `accelerate launch` tells a single process nothing: read its command line instead
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
