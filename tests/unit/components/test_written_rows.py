"""Rows that one copy of a buffer wrote reach all copies: the same rows at the same places, in every copy."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from test_savepoints import KINDS, OBSERVATIONS, World

from agilerl.components.prioritized import PrioritizedReplayBuffer
from agilerl.components.storage import FRAME, NEXT_FRAME
from agilerl.core.checkpoint import digest_tree

pytestmark = pytest.mark.filterwarnings("ignore:masks of legal actions are not kept", "ignore:compute_reward gives")
SEEDS = range(3)


def rows_in(memory: Any) -> list[tuple[Any, torch.Tensor]]:
    """All rows, oldest first, with images and priorities."""
    if not len(memory):
        return []
    places = memory.in_order()
    rows = sorted(memory._gather(places).items())
    leaves = (
        [("priority", torch.from_numpy(memory._sampler.sums[places]))]
        if isinstance(memory, PrioritizedReplayBuffer)
        else []
    )
    return [*rows, *leaves]


def equal(one: list[Any], other: list[Any]) -> bool:
    return [key for key, _ in one] == [key for key, _ in other] and all(
        torch.equal(a, b) for (_, a), (_, b) in zip(one, other, strict=True)
    )


def newest_of(rows: list[Any], added: int) -> list[Any]:
    """The last rows without masks, which the first copy that wrote has fixed for all."""
    return [(key, values[len(values) - added :]) for key, values in rows if key[0] not in ("next_mask", "obs_mask")]


def generation(memory: Any, observations: str, rng: np.random.Generator, calls: int) -> None:
    """Write as a shard does, which begins and ends without open windows."""
    world = World(memory, observations)
    memory.interrupt()
    for _ in range(calls):
        world.write(rng)
        world.update_priorities(rng)
    memory.interrupt()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("observations", OBSERVATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_written_rows_are_those_that_were_written(kind: str, observations: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    memory = KINDS[kind]()
    for calls in (0, 2, 3, 9, 1):  # empty at first, then full; nine calls are more than it holds
        generation(memory, observations, rng, calls)
        twin = copy.deepcopy(memory)
        memory.savepoint()
        generation(memory, observations, rng, calls)
        rows, counter, written = rows_in(memory), memory.counter, memory.written()
        memory.rollback()
        for each in (memory, twin):
            each.write_rows(written)
            assert each.counter == counter
            assert equal(rows_in(each), rows)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("observations", OBSERVATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_two_writers_leave_one_buffer_in_every_copy(kind: str, observations: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    copies = [KINDS[kind]() for _ in range(3)]
    for calls in (2, 3, 6, 1, 4):
        written = []
        for writer in copies[:2]:
            writer.savepoint()
            generation(writer, observations, rng, calls)
            written.append((rows_in(writer), writer.written()))
            writer.rollback()
        for each in copies:
            for _, part in written:
                each.write_rows(part)
        first, *others = [rows_in(each) for each in copies]
        assert all(equal(first, other) for other in others)
        assert len({digest_tree(each.state(rows=False) | {"rng": 0, "frames": 0}) for each in copies}) == 1
        added = min(written[1][1]["added"], copies[0].max_size)
        assert equal(*(newest_of(rows, added) for rows in (first, written[1][0])))
    reader = copies[2]
    if reader.frames is not None:  # it holds the images of its rows and no others
        numbers = [reader._store.own[path].tensor[: len(reader)].numpy().ravel() for path in (FRAME, NEXT_FRAME)]
        alive = np.flatnonzero(reader.frames._references[1:] > 0) + 1
        assert set(alive.tolist()) == set(np.concatenate(numbers).tolist()) - {0}
