"""Images are kept once: the same transitions come out as from a buffer that keeps both, in half of the memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from agilerl.components.data import Transition
from agilerl.components.replay_buffer import MultiStepReplayBuffer, ReplayBuffer
from agilerl.components.storage import Block

SHAPE = (3, 5, 5)
FRAME_BYTES = 75


class Stream:
    """L lanes of images with episodes that end at random, in the manner of either autoreset mode."""

    def __init__(self, lanes: int, seed: int, end: float = 0.15, next_step: bool = False) -> None:
        self.rng, self.lanes, self.end, self.next_step = np.random.default_rng(seed), lanes, end, next_step
        self.obs, self.is_reset = self.images(lanes), np.zeros(lanes, bool)
        self.count = 0

    def images(self, count: int) -> np.ndarray:
        return self.rng.integers(0, 256, (count, *SHAPE), dtype=np.uint8)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        while True:
            yield self.step()

    def step(self) -> dict[str, np.ndarray]:
        """Arguments of `write` for one vector step; with NEXT_STEP the row after an end is the reset's, and masked."""
        next_obs = self.images(self.lanes)
        mask = ~self.is_reset
        ended = (self.rng.random(self.lanes) < self.end) & mask
        done = ended & (self.rng.random(self.lanes) < 0.5)
        number = self.count + np.arange(self.lanes)
        self.count += self.lanes
        out = {"obs": self.obs, "action": number % 4, "reward": number.astype(float), "next_obs": next_obs}
        out |= {"done": done, "mask": mask, "truncated": ended & ~done}
        if self.next_step:
            self.obs, self.is_reset = next_obs.copy(), ended
        else:
            self.obs = np.where(ended[:, None, None, None], self.images(self.lanes), next_obs)
        return out


class Ring:
    """The reference: a list of transitions, each with both of its images."""

    def __init__(self, max_size: int) -> None:
        self.rows: list[Any] = [None] * max_size
        self.position = 0

    def write(self, step: dict[str, np.ndarray]) -> None:
        for lane in np.flatnonzero(step["mask"]):
            self.rows[self.position] = {name: step[name][lane] for name in Transition.FIELDS}
            self.position = (self.position + 1) % len(self.rows)

    def check(self, buffer: ReplayBuffer) -> None:
        data = buffer.gather(np.arange(len(buffer)))
        rows = [row for row in self.rows if row is not None]
        assert len(rows) == len(buffer)
        for name in Transition.FIELDS:
            expected = np.stack([row[name] for row in rows])
            np.testing.assert_array_equal(data[name].cpu().numpy().astype(expected.dtype), expected, err_msg=name)


def live_frames(buffer: ReplayBuffer) -> int:
    frames = buffer.frames
    return int((frames._references[1:] > 0).sum())


@pytest.mark.parametrize("next_step", [False, True])
@pytest.mark.parametrize("max_size", [1, 7, 50, 64])
def test_the_same_transitions_come_out_as_went_in(max_size: int, next_step: bool, device: str) -> None:
    stream, reference = Stream(4, max_size, next_step=next_step), Ring(max_size)
    buffer = ReplayBuffer(max_size, device)
    for step, _ in zip(stream, range(60), strict=False):
        assert buffer.write(**step) == step["mask"].sum()
        reference.write(step)
        reference.check(buffer)
    assert buffer.gather(np.zeros((2, 3), np.int64))["next_obs"].shape == (2, 3, *SHAPE)
    assert buffer.gather(np.zeros((2, 3), np.int64))["next_obs"].dtype == torch.uint8


def test_other_lanes_resets_and_single_rows_are_no_continuation() -> None:
    buffer, reference = ReplayBuffer(40), Ring(40)

    def both(step: dict[str, np.ndarray]) -> None:
        buffer.write(**step)
        reference.write(step)

    for seed, lanes in enumerate([3, 3, 5, 3, 1, 3]):  # each stream starts anew, some with as many lanes as before
        stream = Stream(lanes, seed)
        for step, _ in zip(stream, range(4), strict=False):
            both(step)
        step = stream.step() | {"mask": np.ones(lanes, bool)}
        buffer.add({name: step[name] for name in Transition.FIELDS})
        reference.write(step)
        both(stream.step())
        reference.check(buffer)
    nothing = Stream(3, 9).step() | {"mask": np.zeros(3, bool)}
    assert buffer.write(**nothing) == 0
    many = Stream(90, 10).step()
    both(many)  # more than fit
    reference.check(buffer)


def test_an_image_in_a_dict_observation_is_kept_once_and_the_vector_beside_it_stays_packed() -> None:
    buffer, stream = ReplayBuffer(20), Stream(2, 0, end=0.3)
    rng = np.random.default_rng(5)
    speeds, taken = rng.normal(size=(31, 2, 3)).astype(np.float32), []
    for t in range(30):
        step = stream.step()
        taken.append(step["obs"])
        obs, next_obs = ({"image": step[n], "speed": speeds[t + i]} for i, n in enumerate(("obs", "next_obs")))
        buffer.write(**(step | {"obs": obs, "next_obs": next_obs}))
    data = buffer.gather(np.arange(20))
    np.testing.assert_array_equal(data["obs"]["image"], np.concatenate(taken[20:]))
    np.testing.assert_array_equal(data["next_obs"]["speed"], speeds[21:31].reshape(20, 3))
    assert set(buffer.frames.fields) == {("image",)}  # type: ignore[union-attr]
    sample = buffer.sample(6)
    assert sample["next_obs", "image"].dtype == torch.uint8
    assert buffer.storage["obs", "image"].shape == (20, *SHAPE)


def test_images_of_floats_are_kept_once_in_the_buffers_dtype_and_vectors_stay_packed() -> None:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(9, 2, 1, 6, 6))
    buffer = ReplayBuffer(100, dtype=torch.float32)
    for t in range(8):
        buffer.write(images[t], np.zeros(2, int), np.zeros(2), images[t + 1], np.zeros(2, bool))
    np.testing.assert_array_equal(
        buffer.gather(np.arange(16))["next_obs"], images[1:].reshape(16, 1, 6, 6).astype("f4")
    )
    assert live_frames(buffer) == 9 * 2
    vectors = ReplayBuffer(10)
    vectors.write(np.zeros((2, 500)), np.zeros(2, int), np.zeros(2), np.ones((2, 500)), np.zeros(2, bool))
    assert vectors.frames is None


def test_memory_is_one_frame_per_transition_and_one_more_per_episode() -> None:
    # 4 lanes, every episode 25 steps: 100 rows hold 100 frames, and the last s' of each of 4 episodes.
    buffer, stream = ReplayBuffer(100), Stream(4, 0, end=0.0)
    for t in range(100):
        if t % 25 == 0:
            stream.obs = stream.images(4)
        buffer.write(**stream.step())
    assert live_frames(buffer) == 100 + 4
    packed = 3 * 4  # action, reward, done as float32
    frames, rest = divmod(buffer.memory_bytes - 100 * (packed + 16), FRAME_BYTES)
    # Room for the 101 frames of the main store (frame 0 is nothing), and aside the 4 last ones and 8 under way at most,
    # half as many again because the side store grows by half.
    assert rest == 0
    assert 105 <= frames <= 101 + 1.5 * 12
    twice = ReplayBuffer(100)
    twice.add({name: stream.step()[name] for name in Transition.FIELDS})
    assert twice.memory_bytes == 100 * (packed + 2 * FRAME_BYTES)


def test_rows_that_come_lane_by_lane_in_any_number_are_kept_once_too() -> None:
    # What an n-step buffer hands on: two or no steps of a lane in one call, here of lanes that end one after another.
    stream, buffer, reference = Stream(4, 2, end=0.0), ReplayBuffer(60), Ring(60)
    steps = [stream.step() for _ in range(20)]
    taken = [0, 0, 0, 0]
    rng = np.random.default_rng(0)
    while min(taken) < 19:
        counts = [min(int(c), 20 - t) for c, t in zip(rng.integers(0, 3, 4), taken, strict=True)]
        order = [(taken[lane] + rank, lane) for rank in range(2) for lane in range(4) if rank < counts[lane]]
        taken = [t + c for t, c in zip(taken, counts, strict=True)]
        if not order:
            continue
        rows = {name: np.stack([steps[t][name][lane] for t, lane in order]) for name in Transition.FIELDS}
        buffer.write(**rows, lanes=np.array([lane for _, lane in order]))
        reference.write({**rows, "mask": np.ones(len(order), bool)})
        reference.check(buffer)
    assert live_frames(buffer) <= 60 + 4


def test_one_step_memory_beside_an_n_step_one_keeps_images_once() -> None:
    # Without the lanes every end would cost the frames of all lanes: those of the rows that moved up.
    stream, n_step, one_step = Stream(8, 0, end=0.03), MultiStepReplayBuffer(400, n_step=3), ReplayBuffer(400)
    for step, _ in zip(stream, range(300), strict=False):
        n_step.write(**step)
        rows = n_step.last_one_step()
        if rows is not None:
            one_step.write(**rows)
    data = one_step.gather(np.arange(400))
    distinct = {image.tobytes() for name in ("obs", "next_obs") for image in data[name].numpy()}
    assert live_frames(one_step) == len(distinct)
    assert len(distinct) < 1.15 * 400


def test_one_step_episodes_need_two_frames_each_and_frames_are_used_again() -> None:
    buffer, stream = ReplayBuffer(30), Stream(3, 0, end=1.0)
    for _ in range(30):
        buffer.write(**stream.step())
    assert live_frames(buffer) == 60
    size = buffer.memory_bytes
    for _ in range(300):
        buffer.write(**stream.step())
    assert live_frames(buffer) == 60
    assert buffer.memory_bytes == size
    for _ in range(100):  # episodes that do not end: back to one frame per row and lane
        stream.end = 0.0
        buffer.write(**stream.step())
    assert live_frames(buffer) == 30 + 3
    assert buffer.memory_bytes == size


def test_frames_in_tensors_are_the_frames_in_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other devices keep rows in tensors alone; the same code runs on tensors of the host.
    monkeypatch.setattr(Block, "_bind", lambda block: setattr(block, "view", None))
    stream, buffer, reference = Stream(4, 0, end=0.4), ReplayBuffer(30), Ring(30)
    for step, t in zip(stream, range(40), strict=False):
        buffer.write(**step)
        reference.write(step)
        reference.check(buffer)
        if t == 20:
            state, buffer = buffer.state(), ReplayBuffer(30)
            buffer.load_state(state)
    assert buffer.frames is not None
    assert all(block.view is None for block in buffer._blocks)
