"""Claim: what adding and sampling cost in each replay buffer, against a plain TensorDict. One JSON line each.

    python benchmarks/replay.py [--rounds 7]

Vectors: observation 8, discrete action, 16 lanes, capacity 100,000 and full, a lane ends every 200 steps. "add" is one
vector step (16 rows), "sample" is one draw of 128 rows for each of 4 members. The engine's side is `write`,
`sample_indices` and `gather` (and the weights, where there are priorities); the published side is `add` of a TensorDict
and four times `sample(128)`. The opponent keeps one preallocated TensorDict, writes rows by index and gathers them by
index, uniformly: it has no priorities and no windows, so the ratios of those buffers say what the two cost on top. It
builds its TensorDict in the timed part, as does the published side. Images: 4 x 84 x 84 bytes, capacity 2,000; bytes
that each side has allocated are compared as well. All sides are interleaved in one process, in CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from runner import facts, package_commit
from tensordict import TensorDict

from agilerl.components.replay_buffer import (
    MultiStepReplayBuffer,
    PrioritizedMultiStepReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)

LANES, MEMBERS, BATCH, POOL = 16, 4, 128, 64
BUFFERS: dict[str, Callable[[int], ReplayBuffer]] = {
    "uniform": lambda size: ReplayBuffer(size, seed=0),
    "prioritised": lambda size: PrioritizedReplayBuffer(size, seed=0),
    "n-step": lambda size: MultiStepReplayBuffer(size, n_step=3, seed=0),
    "prioritised n-step": lambda size: PrioritizedMultiStepReplayBuffer(size, n_step=3, seed=0),
}
Side = tuple[Callable[[int], Any], Callable[[int], Any]]  # add, sample


class PlainTensorDict:
    """A preallocated TensorDict with index writes and a gather."""

    def __init__(self, size: int) -> None:
        self.size, self.position, self.count = size, 0, 0
        self.storage: TensorDict | None = None

    def add(self, rows: TensorDict) -> None:
        if self.storage is None:
            self.storage = rows[:1].expand(self.size).clone().zero_()
        index = (self.position + torch.arange(len(rows))) % self.size
        self.storage[index] = rows
        self.position = (self.position + len(rows)) % self.size
        self.count = min(self.count + len(rows), self.size)

    def sample(self, count: int) -> TensorDict:
        assert self.storage is not None
        return self.storage[torch.randint(self.count, (count,))]


def steps(shape: tuple[int, ...], dtype: Any) -> list[dict[str, np.ndarray]]:
    """POOL vector steps in a row; the last is followed by the first."""
    rng = np.random.default_rng(0)
    obs = (rng.normal(size=(POOL, LANES, *shape)) * 50).astype(dtype)
    ends = rng.random((2, POOL, LANES)) < 1 / 400
    return [
        {
            "obs": obs[t],
            "action": rng.integers(4, size=LANES),
            "reward": rng.normal(size=LANES),
            "next_obs": obs[(t + 1) % POOL],
            "done": ends[0, t],
            "truncated": ends[1, t],
        }
        for t in range(POOL)
    ]


def tensordict(step: dict[str, np.ndarray]) -> TensorDict:
    fields = {name: torch.from_numpy(values) for name, values in step.items() if name != "truncated"}
    fields |= {name: fields[name].unsqueeze(-1) for name in ("action", "reward", "done")}
    return TensorDict(fields | {"reward": fields["reward"].float()}, batch_size=[LANES])


def engine(buffer: ReplayBuffer, pool: list[dict[str, np.ndarray]]) -> Side:
    rng = np.random.default_rng(1)

    def sample(_: int) -> None:
        indices = buffer.sample_indices(rng, (MEMBERS, BATCH))
        buffer.gather(indices)
        if isinstance(buffer, PrioritizedReplayBuffer):
            buffer.weights(indices, 0.4)

    return lambda t: buffer.write(**pool[t % POOL]), sample


def published(buffer: ReplayBuffer, pool: list[dict[str, np.ndarray]]) -> Side:
    return lambda t: buffer.add(tensordict(pool[t % POOL])), lambda _: [buffer.sample(BATCH) for _ in range(MEMBERS)]


def opponent(plain: PlainTensorDict, pool: list[dict[str, np.ndarray]]) -> Side:
    return lambda t: plain.add(tensordict(pool[t % POOL])), lambda _: [plain.sample(BATCH) for _ in range(MEMBERS)]


def cpu_per_call(function: Callable[[int], Any], calls: int) -> float:
    start = time.process_time()
    for k in range(calls):
        function(k)
    return (time.process_time() - start) / calls


def compare(what: str, pool: list[dict[str, np.ndarray]], size: int, rounds: int, calls: int) -> None:
    buffers = {f"{name}, {way}": make(size) for name, make in BUFFERS.items() for way in ("engine", "published")}
    plain = PlainTensorDict(size)
    sides = {"plain TensorDict": opponent(plain, pool)}
    for name, buffer in buffers.items():
        sides[name] = (engine if name.endswith("engine") else published)(buffer, pool)
    for add, sample in sides.values():  # full, and warm
        cpu_per_call(add, 3 * size // LANES // 2)
        cpu_per_call(sample, 3)
    assert plain.storage is not None
    assert all(buffer.is_full for buffer in buffers.values())
    for index, action in enumerate(("add", "sample")):
        raw: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, side in sides.items():
                raw[name].append(cpu_per_call(side[index], calls))
        base = raw["plain TensorDict"]
        ratios = {name: [x / y for x, y in zip(base, values, strict=True)] for name, values in raw.items()}
        emit(
            f"replay, {what}: {action}, CPU microseconds",
            median={name: round(median(values) * 1e6, 1) for name, values in raw.items()},
            times_as_fast={name: round(median(values), 2) for name, values in ratios.items()},
            spread={name: [round(min(values), 2), round(max(values), 2)] for name, values in ratios.items()},
            raw=raw,
        )
    allocated = {name: buffer.memory_bytes for name, buffer in buffers.items()}
    allocated["plain TensorDict"] = sum(value.nbytes for value in plain.storage.values())
    emit(f"replay, {what}: bytes per transition", bytes={n: round(b / size, 1) for n, b in allocated.items()})


def emit(claim: str, **values: Any) -> None:
    print(json.dumps({"claim": claim, **values, "commit": package_commit(), **facts()}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    compare("vectors", steps((8,), np.float32), 100_000, args.rounds, calls=200)
    compare("images", steps((4, 84, 84), np.uint8), 2_000, args.rounds, calls=15)


if __name__ == "__main__":
    main()
