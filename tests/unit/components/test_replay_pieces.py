"""A buffer put together again from the pieces of a log is the buffer, and draws what it would have drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agilerl.components.replay_buffer import (
    MultiStepReplayBuffer,
    PrioritizedMultiStepReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from agilerl.core.checkpoint import decode_tree, digest_tree, encode_tree
from agilerl.data.replay_log import Chunk, ReplayLog, rebuild_memories

LANES, SIZE = 3, 40
KINDS: dict[str, Callable[[], Any]] = {
    "uniform": lambda: ReplayBuffer(SIZE, seed=0),
    "prioritised": lambda: PrioritizedReplayBuffer(SIZE, seed=0),
    "n-step": lambda: MultiStepReplayBuffer(SIZE, n_step=3, seed=0),
    "prioritised n-step": lambda: PrioritizedMultiStepReplayBuffer(SIZE, n_step=3, seed=0),
}


def observations(rng: np.random.Generator, images: bool) -> np.ndarray:
    if images:
        return rng.integers(0, 256, (LANES, 2, 8, 8), dtype=np.uint8)
    return rng.standard_normal((LANES, 5)).astype(np.float32)


class Filling:
    """Steps of three lanes into a buffer, priorities changed on the way; equal seeds give equal contents."""

    def __init__(self, memory: Any, images: bool, seed: int = 0) -> None:
        self.memory, self.images, self.rng = memory, images, np.random.default_rng(seed)
        self.obs = observations(self.rng, images)

    def steps(self, count: int) -> None:
        for _ in range(count):
            rng, after = self.rng, observations(self.rng, self.images)
            done = rng.random(LANES) < 0.1
            self.memory.write(self.obs, rng.integers(0, 4, LANES), rng.standard_normal(LANES), after, done)
            if len(self.memory) and hasattr(self.memory, "update_priorities"):
                rows = self.memory.sample_indices(rng, (4,))
                self.memory.update_priorities(rows, rng.random(4) * 3)
            self.obs = np.where(done.reshape(-1, *[1] * (after.ndim - 1)), observations(rng, self.images), after)


def through_file(tree: dict[str, Any]) -> dict[str, Any]:
    return decode_tree(encode_tree(tree))


def rebuilt(kind: Callable[[], Any], memory: Any, log: ReplayLog, folder: Path) -> Any:
    """A new buffer from the state without rows and from the log in the folder."""
    twin = kind()
    state, chunks = through_file(memory.state(rows=False)), [Chunk.of(entry) for entry in log.entries()]
    assert rebuild_memories({"m": twin}, {"m": state}, {"m": ReplayLog(folder)}, {"m": chunks}, strict=True) == []
    return twin


def contents(memory: Any) -> str:
    """Digest of all that comes out of a buffer: rows, priorities, counters; images by value."""
    state = memory.state()
    rows = memory.gather(np.arange(len(memory)))
    kept = {name: state.get(name) for name in ("counter", "size", "position", "priorities", "rng")}
    if state["frames"] is None:  # windows hold images by number
        kept["windows"] = state.get("windows")
    return digest_tree({"rows": rows, **kept})


@pytest.mark.parametrize("images", [False, True], ids=["vectors", "images"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_buffer_comes_back_from_its_log_and_goes_on_as_the_one_that_never_stopped(
    kind: str, images: bool, tmp_path: Path
) -> None:
    memory, log = KINDS[kind](), ReplayLog(tmp_path / "a", roll_bytes=3000)
    filling = Filling(memory, images)
    for steps in (4, 0, 7, 9, 6, 3):  # 87 rows through a ring of 40, in pieces of 0 to 27
        filling.steps(steps)
        log.append(memory)
        state = through_file(memory.state(rows=False))
        chunks = [Chunk.of(entry) for entry in log.entries()]
        twin, twin_log = KINDS[kind](), ReplayLog(tmp_path / "a", roll_bytes=3000)
        assert rebuild_memories({"m": twin}, {"m": state}, {"m": twin_log}, {"m": chunks}, strict=True) == []
        assert contents(twin) == contents(memory)
    assert chunks[0].first > 0, "chunks that hold no row of the ring any more are forgotten"
    assert len({chunk.file for chunk in chunks}) > 1, "segments roll"
    after = Filling(twin, images)
    after.rng.bit_generator.state, after.obs = filling.rng.bit_generator.state, filling.obs
    for each in (filling, after):
        each.steps(8)
    assert contents(twin) == contents(memory)
    twin_log.append(twin)
    assert twin_log.chunks[-1].count == twin.counter - state["counter"], "only what is new is appended"
    draws = memory.sample_indices(np.random.default_rng(2), (5,))
    again = rebuilt(KINDS[kind], twin, twin_log, tmp_path / "a")
    assert contents(again) == contents(memory)
    np.testing.assert_array_equal(again.sample_indices(np.random.default_rng(2), (5,)), draws)


def damaged(folder: Path, chunk: Chunk) -> None:
    path = folder / chunk.file
    data = bytearray(path.read_bytes())
    data[chunk.offset + 40 + chunk.size // 2] ^= 16
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("images", [False, True], ids=["vectors", "images"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_damaged_chunk_are_lost_and_the_others_go_on_in_their_order(
    kind: str, images: bool, tmp_path: Path
) -> None:
    memory, log = KINDS[kind](), ReplayLog(tmp_path)
    filling = Filling(memory, images)
    for steps in (5, 5, 5):
        filling.steps(steps)
        memory.interrupt()
        log.append(memory)
    state, chunks = through_file(memory.state(rows=False)), list(log.chunks)
    damaged(tmp_path, chunks[1])
    before = {name: value.clone() for name, value in memory.gather(np.arange(len(memory))).items()}
    position = state["position"]
    priorities = memory._live_leaves() if hasattr(memory, "_live_leaves") else None
    twin, twin_log = KINDS[kind](), ReplayLog(tmp_path)
    notes = rebuild_memories({"m": twin}, {"m": state}, {"m": twin_log}, {"m": chunks}, strict=False)
    assert notes[0].startswith("15 rows of the replay in")
    assert len(twin) < len(memory)
    assert notes[-1] == f"replay 'm' goes on with {len(twin)} of its {len(memory)} rows."
    rows = np.arange(memory.counter - len(memory), memory.counter)
    is_lost = (rows >= chunks[1].first) & (rows < chunks[1].first + chunks[1].count)
    left = rows[~is_lost]
    if images:  # a row after the damage may begin with an image that was placed before
        assert len(left) - LANES <= len(twin) <= len(left)
        left = left[-len(twin) :] if len(twin) == len(left) else None
    if left is not None:
        places = (position - memory.counter + left) % SIZE
        for name, values in twin.gather(np.arange(len(twin))).items():
            assert torch.equal(values, before[name][places]), name
        if priorities is not None:
            np.testing.assert_array_equal(twin._live_leaves(), priorities[places])
    assert twin.counter == memory.counter
    more = Filling(twin, images, seed=9)
    more.steps(20)  # over the end of the ring: places, references and trees hold
    assert len(twin) == SIZE
    twin_log.append(twin)
    assert contents(rebuilt(KINDS[kind], twin, twin_log, tmp_path)) == contents(twin)


def test_buffers_that_are_filled_together_lose_the_same_rows(tmp_path: Path) -> None:
    steps, singles = MultiStepReplayBuffer(SIZE, n_step=3, seed=0), PrioritizedReplayBuffer(SIZE, seed=0)
    logs = {name: ReplayLog(tmp_path / name) for name in ("n", "one")}
    filling = Filling(steps, images=False)
    for _ in range(3):
        for _ in range(4):
            filling.steps(1)
            rows = steps.last_one_step()
            if rows is not None:
                singles.write(**rows)
        steps.interrupt()
        rows = steps.last_one_step()
        singles.write(**rows)
        logs["n"].append(steps)
        logs["one"].append(singles)
    memories = {"n": steps, "one": singles}
    states = {name: through_file(memory.state(rows=False)) for name, memory in memories.items()}
    chunks = {name: list(log.chunks) for name, log in logs.items()}
    damaged(tmp_path / "n", chunks["n"][0])
    twins = {"n": MultiStepReplayBuffer(SIZE, n_step=3, seed=0), "one": PrioritizedReplayBuffer(SIZE, seed=0)}
    fresh = {name: ReplayLog(tmp_path / name) for name in logs}
    rebuild_memories(twins, states, fresh, chunks, strict=False)
    assert len(twins["n"]) == len(twins["one"]) == len(steps) - chunks["n"][0].count
    first, second = (twin.gather(np.arange(len(twin))) for twin in twins.values())
    assert torch.equal(first["obs"], second["obs"])
    assert torch.equal(first["action"], second["action"])


def test_clearing_a_buffer_starts_its_log_anew(tmp_path: Path) -> None:
    memory, log = ReplayBuffer(SIZE, seed=0), ReplayLog(tmp_path)
    Filling(memory, images=False).steps(5)
    log.append(memory)
    memory.clear()
    Filling(memory, images=False, seed=3).steps(6)
    log.append(memory)
    assert [(chunk.first, chunk.count) for chunk in log.chunks] == [(0, 18)]


def test_a_failed_append_leaves_the_segment_as_it_was_and_the_next_one_writes_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agilerl.data import replay_log

    memory, log = ReplayBuffer(SIZE, seed=0), ReplayLog(tmp_path)
    filling = Filling(memory, images=False)
    filling.steps(2)
    log.append(memory)
    size = (tmp_path / "seg-00000001.bin").stat().st_size

    def full(file: Any, data: bytes) -> None:
        file.write(data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(replay_log, "_write_all", full)
        filling.steps(3)
        with pytest.raises(OSError, match="No space"):
            log.append(memory)
    assert (tmp_path / "seg-00000001.bin").stat().st_size == size
    filling.steps(1)
    log.append(memory)
    assert [(chunk.first, chunk.count) for chunk in log.chunks] == [(0, 6), (6, 12)]
