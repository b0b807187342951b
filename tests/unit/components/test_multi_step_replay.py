"""n-step replay against tables worked by hand and against a loop over lanes and steps."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from agilerl.components.data import Transition
from agilerl.components.replay_buffer import (
    MultiStepReplayBuffer,
    PrioritizedMultiStepReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from agilerl.components.storage import FRAME, NEXT_FRAME
from agilerl.errors import ConfigError, RunError, ShapeError

Step = dict[str, np.ndarray]


def table(buffer: ReplayBuffer) -> list[tuple[float, ...]]:
    """(obs, reward, next_obs, done, discount) of every row, in the order of the memory."""
    data = buffer.gather(np.arange(len(buffer)))
    columns = [data["obs"][:, 0], data["reward"], data["next_obs"][:, 0], data["done"], data["discount"]]
    return [tuple(row) for row in torch.stack([column.double() for column in columns], dim=1).tolist()]


def push(buffer: ReplayBuffer, obs: Any, reward: Any, next_obs: Any, done: Any, cut: Any, mask: Any = None) -> int:
    def column(values: Any) -> np.ndarray:
        return np.array(values, np.float64)[:, None]

    flags = [np.array(flag, bool) for flag in (done, cut)]
    mask = None if mask is None else np.array(mask, bool)
    action = np.arange(len(obs))
    return buffer.write(column(obs), action, np.array(reward), column(next_obs), flags[0], mask, truncated=flags[1])


def test_windows_by_hand_with_different_ends_in_each_lane() -> None:
    # n = 3, gamma = 1/2. Lane 0: states 0 1 2 3 | 10 11 12, rewards 1 2 4 | 8 16, terminated after the third step.
    # Lane 1: states 50 51 52 53 54 55, rewards 1 each, truncated after the second step, where a new episode begins
    # at 60.
    buffer = MultiStepReplayBuffer(20, n_step=3, gamma=0.5, dtype=torch.float64)
    assert push(buffer, [0, 50], [1, 1], [1, 51], [0, 0], [0, 0]) == 0
    assert not len(buffer)
    assert push(buffer, [1, 51], [2, 1], [2, 52], [0, 0], [0, 1]) == 2
    lane_1 = [(50, 1 + 0.5, 52, 0, 0.25), (51, 1, 52, 0, 0.5)]
    assert table(buffer) == lane_1
    assert push(buffer, [2, 60], [4, 1], [3, 61], [1, 0], [0, 0]) == 3
    lane_0 = [(0, 1 + 2 / 2 + 4 / 4, 3, 1, 0), (1, 2 + 4 / 2, 3, 1, 0), (2, 4, 3, 1, 0)]
    assert table(buffer) == lane_1 + lane_0
    assert push(buffer, [10, 61], [8, 1], [11, 62], [0, 0], [0, 0]) == 0
    assert push(buffer, [11, 62], [16, 1], [12, 63], [0, 0], [0, 0]) == 1
    assert table(buffer)[5:] == [(60, 1.75, 63, 0, 0.125)]
    assert push(buffer, [12, 63], [0, 1], [13, 64], [0, 1], [1, 1]) == 3 + 3
    # The oldest windows first, of one age by lane; terminated and truncated at once is terminated.
    assert table(buffer)[6:] == [
        (10, 8 + 8, 13, 0, 0.125),
        (61, 1.75, 64, 1, 0),
        (11, 16, 13, 0, 0.25),
        (62, 1.5, 64, 1, 0),
        (12, 0, 13, 0, 0.5),
        (63, 1, 64, 1, 0),
    ]
    assert buffer.counter == 12


def test_a_return_never_crosses_a_terminal_step() -> None:
    # Rewards 1, 10, 100 with gamma 1: the first step is terminal, so its row is 1 and not 111, done, and its
    # next observation is its own.
    buffer = MultiStepReplayBuffer(10, n_step=3, gamma=1.0)
    push(buffer, [0], [1], [1], [1], [0])
    push(buffer, [5], [10], [6], [0], [0])
    push(buffer, [6], [100], [7], [0], [0])
    assert table(buffer) == [(0, 1, 1, 1, 0)]
    push(buffer, [7], [1000], [8], [0], [0])
    assert table(buffer)[1:] == [(5, 1110, 8, 0, 1)]


def test_interrupt_ends_every_window_with_a_bootstrap_and_other_lanes_interrupt_by_themselves() -> None:
    buffer = MultiStepReplayBuffer(20, n_step=3, gamma=0.5)
    assert buffer.interrupt() == 0
    push(buffer, [0, 10], [1, 2], [1, 11], [0, 0], [0, 0])
    push(buffer, [1, 11], [4, 8], [2, 12], [0, 0], [0, 0])
    assert buffer.interrupt() == 4
    rows = [(0, 3, 2, 0, 0.25), (10, 6, 12, 0, 0.25), (1, 4, 2, 0, 0.5), (11, 8, 12, 0, 0.5)]
    assert table(buffer) == rows
    one_step = buffer.last_one_step()
    assert one_step["next_obs"][:, 0].tolist() == [1, 11, 2, 12]
    assert one_step["reward"].tolist() == [1, 2, 4, 8]
    assert buffer.interrupt() == 0
    assert buffer.last_one_step() is None
    push(buffer, [30, 40], [1, 1], [31, 41], [0, 0], [0, 0])
    assert push(buffer, [70], [5], [71], [1], [0]) == 3  # one lane where there were two
    assert table(buffer)[4:] == [(30, 1, 31, 0, 0.5), (40, 1, 41, 0, 0.5), (70, 5, 71, 1, 0)]
    one_step = buffer.last_one_step()
    assert one_step["obs"][:, 0].tolist() == [30, 40, 70]
    assert ReplayBuffer(4).interrupt() == 0


def test_rows_without_a_transition_are_in_no_window_and_end_none() -> None:
    # NEXT_STEP autoreset: after the end at state 1 the row 1 -> 20 is the reset, and its flags say nothing.
    buffer = MultiStepReplayBuffer(20, n_step=2, gamma=0.5)
    push(buffer, [0, 10], [1, 1], [1, 11], [1, 0], [0, 0], [1, 1])
    push(buffer, [1, 11], [9, 1], [20, 12], [1, 0], [1, 0], [0, 1])
    push(buffer, [20, 12], [2, 1], [21, 13], [0, 0], [0, 0], [1, 1])
    push(buffer, [21, 12], [9, 9], [99, 99], [1, 1], [1, 1], [0, 0])  # all lanes rest
    push(buffer, [21, 13], [4, 1], [22, 14], [0, 0], [0, 0], [1, 1])
    expected = [(0, 1, 1, 1, 0), (10, 1.5, 12, 0, 0.25), (11, 1.5, 13, 0, 0.25)]
    assert table(buffer) == [*expected, (20, 4, 22, 0, 0.25), (12, 1.5, 14, 0, 0.25)]


class Loop:
    """The reference: one list per lane, one Python loop per window. Keeps n-step rows and their 1-step transitions."""

    def __init__(self, n_step: int, gamma: float) -> None:
        self.n_step, self.gamma, self.pending = n_step, gamma, []  # type: ignore[var-annotated]
        self.rows: list[dict[str, Any]] = []
        self.one_step: list[dict[str, Any]] = []

    def write(self, step: Step) -> None:
        lanes = len(step["reward"])
        if len(self.pending) != lanes:
            self.interrupt()
            self.pending = [[] for _ in range(lanes)]
        counts = [0] * lanes
        for lane in range(lanes):
            if not step["mask"][lane]:
                continue
            self.pending[lane].append({name: step[name][lane] for name in Transition.FIELDS})
            ended = step["done"][lane] or step["truncated"][lane]
            counts[lane] = len(self.pending[lane]) if ended else int(len(self.pending[lane]) == self.n_step)
        self.close(counts)

    def interrupt(self) -> None:
        self.close([len(steps) for steps in self.pending])

    def close(self, counts: list[int]) -> None:
        for rank in range(self.n_step):
            for steps, count in zip(self.pending, counts, strict=True):
                if rank >= count:
                    continue
                window, total = steps[rank:], 0.0
                for j, one in enumerate(window):
                    total += self.gamma**j * float(one["reward"])
                last = window[-1]
                discount = 0.0 if last["done"] else self.gamma ** len(window)
                ends = {"next_obs": last["next_obs"], "done": last["done"]}
                self.rows.append({**window[0], **ends, "reward": total, "discount": discount})
                self.one_step.append(window[0])
        for steps, count in zip(self.pending, counts, strict=True):
            del steps[:count]


def random_steps(rng: np.random.Generator, count: int, lanes: int, shape: tuple[int, ...]) -> list[Step]:
    steps, obs = [], draw(rng, lanes, shape)
    for _ in range(count):
        next_obs = draw(rng, lanes, shape)
        mask = rng.random(lanes) < 0.9
        done, cut = (rng.random((2, lanes)) < 0.12) & mask
        step = {"obs": obs, "action": rng.integers(5, size=lanes), "reward": rng.normal(size=lanes)}
        steps.append(step | {"next_obs": next_obs, "done": done, "truncated": cut, "mask": mask})
        begins = (done | cut).reshape(-1, *[1] * len(shape))
        obs = np.where(begins, draw(rng, lanes, shape), next_obs)
    return steps


def draw(rng: np.random.Generator, lanes: int, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) == 1:
        return rng.normal(size=(lanes, *shape))
    return rng.integers(0, 256, (lanes, *shape), dtype=np.uint8)


def assert_rows(buffer: ReplayBuffer, expected: list[dict[str, Any]], names: tuple[str, ...]) -> None:
    """The memory holds `expected` at the places of a ring."""
    size = min(len(expected), buffer.max_size)
    assert (len(buffer), buffer.counter) == (size, len(expected))
    if not size:
        return
    kept: list[Any] = [None] * size
    for i in range(len(expected) - size, len(expected)):
        kept[i % buffer.max_size] = expected[i]
    data = buffer.gather(np.arange(size))
    for name in names:
        column = np.stack([row[name] for row in kept]).astype(data[name].cpu().numpy().dtype)
        # Only the sums are rounded: n terms, each to half a unit in the last place.
        np.testing.assert_allclose(data[name].cpu().numpy(), column, rtol=0, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("shape", [(3,), (1, 9, 9)], ids=["vectors", "images"])
@pytest.mark.parametrize(("n_step", "max_size"), [(1, 50), (2, 7), (3, 64), (5, 500), (6, 3)])
def test_any_lanes_ends_masks_and_interrupts_give_what_a_loop_gives(
    n_step: int, max_size: int, shape: tuple[int, ...], device: str
) -> None:
    rng = np.random.default_rng(n_step)
    buffer = MultiStepReplayBuffer(max_size, n_step, 0.9, device, torch.float64)
    pair, reference = PrioritizedReplayBuffer(max_size, device=device, dtype=torch.float64), Loop(n_step, 0.9)
    for lanes in (1, 4, 3, 3, 16):
        steps = random_steps(rng, 25, lanes, shape)
        for i, step in enumerate(steps):
            before = len(reference.rows)
            reference.write(step)
            assert buffer.write(**step) == len(reference.rows) - before
            one_step = buffer.last_one_step()
            if one_step is not None:
                pair.write(**one_step)
            assert_rows(buffer, reference.rows, (*Transition.FIELDS, "discount"))
            if i == 20:
                reference.interrupt()
                buffer.interrupt()
                one_step = buffer.last_one_step()
                if one_step is not None:
                    pair.write(**one_step)
        assert_rows(buffer, reference.rows, (*Transition.FIELDS, "discount"))
        assert_rows(pair, reference.one_step, Transition.FIELDS)
        if len(buffer):
            indices = pair.sample_indices(rng, (2, 5))
            first, second = pair.gather(indices), buffer.gather(indices)
            assert torch.equal(first["obs"], second["obs"])
            assert torch.equal(first["action"], second["action"])
            assert second["discount"].shape == (2, 5)


def test_steps_may_come_by_write_and_by_add_in_turn() -> None:
    rng = np.random.default_rng(1)
    buffer, reference = MultiStepReplayBuffer(40, 3, 0.9, dtype=torch.float64), Loop(3, 0.9)
    for t, step in enumerate(random_steps(rng, 60, 3, (1, 9, 9))):
        step["mask"] = np.ones(3, bool)
        reference.write(step)
        if t % 3 == 0:
            buffer.write(**step)
        else:
            buffer.add({name: step[name] for name in Transition.FIELDS}, truncated=step["truncated"])
        assert_rows(buffer, reference.rows, (*Transition.FIELDS, "discount"))
    frames = buffer.frames
    counted = np.concatenate([frames._lane_frame, *(v[..., -1].ravel() for v in frame_numbers(buffer))])
    np.testing.assert_array_equal(frames._references[1:], np.bincount(counted, minlength=len(frames._references))[1:])


def frame_numbers(buffer: MultiStepReplayBuffer) -> list[np.ndarray]:
    """Whatever holds a reference: the rows, and the steps in the rings of the lanes."""
    rows = [buffer._store.own[path].tensor.numpy() for path in (FRAME, NEXT_FRAME)]
    return rows + [buffer._steps.windows.rows[path][..., None] for path in (FRAME, NEXT_FRAME)]


def test_images_of_windows_are_kept_once_too() -> None:
    rng = np.random.default_rng(0)
    buffer = MultiStepReplayBuffer(60, n_step=3)
    frames = rng.integers(0, 256, (41, 3, 2, 8, 8), dtype=np.uint8)
    no = np.zeros(3, bool)
    for t in range(40):
        buffer.write(frames[t], np.zeros(3, int), np.zeros(3), frames[t + 1], no)
    data = buffer.gather(np.arange(60))
    # 38 windows a lane; row i of 60 places belongs to start time 18 + (i - 54) // 3 where i >= 54, ...
    starts = [(i if i >= 54 else i + 60) // 3 for i in range(60)]
    lanes = [i % 3 for i in range(60)]
    np.testing.assert_array_equal(data["obs"], frames[starts, lanes])
    np.testing.assert_array_equal(data["next_obs"], frames[[t + 3 for t in starts], lanes])
    assert data["obs"].dtype == torch.uint8
    live = int((buffer.frames._references[1:] > 0).sum())  # type: ignore[union-attr]
    # Starts 18 to 37 need the frames 18 to 40 of 3 lanes; the ring of steps holds 37 to 40, which are among them.
    assert live == 3 * 23
    room = buffer.memory_bytes - 60 * (4 * 4 + 16)  # action, reward, done, discount; two frame numbers
    assert room % 128 == 0
    assert room <= 128 * (61 + 1.5 * (3 * (3 + 1 + 2)))


def test_legal_actions_of_the_last_step_come_out() -> None:
    buffer = MultiStepReplayBuffer(10, n_step=2)
    for t in range(3):
        legal = np.array([[t == 0, t == 1, t == 2]])
        zero = np.zeros((1, 2))
        buffer.write(zero, np.zeros(1, int), np.zeros(1), zero, np.zeros(1, bool), next_mask=legal)
    assert buffer.gather(np.arange(2))["next_mask"].tolist() == [[0, 1, 0], [0, 0, 1]]
    one_step = buffer.last_one_step()
    assert one_step["next_mask"].tolist() == [[False, True, False]]


def transition(t: int, lanes: int = 2, **flags: Any) -> dict[str, torch.Tensor]:
    obs = torch.arange(lanes)[:, None] * 100.0 + t + torch.zeros(lanes, 3)
    flags = {name: torch.tensor(flag) for name, flag in flags.items()}
    return {
        "state": obs,
        "action": torch.full((lanes, 1), t),
        "reward": torch.full((lanes,), float(t)),
        "next_state": obs + 1,
        "done": torch.zeros(lanes, dtype=torch.bool),
        **flags,
    }


def test_published_dialect_returns_the_matching_one_step_transitions() -> None:
    n_step_memory = MultiStepReplayBuffer(max_size=100, n_step=3, gamma=0.5, device="cpu")
    memory = PrioritizedReplayBuffer(max_size=100, alpha=0.6)
    assert isinstance(n_step_memory.n_step_buffer, deque)
    for t in range(8):
        one_step = n_step_memory.add(TensorDict(transition(t), batch_size=[2]))
        assert len(n_step_memory.n_step_buffer) == min(t + 1, 3)
        if t < 2:
            assert one_step is None
            continue
        assert isinstance(one_step, TensorDict)
        assert set(one_step.keys()) == {"state", "action", "reward", "next_state", "done"}
        assert one_step["reward"][:, 0].tolist() == [t - 2.0] * 2
        assert torch.equal(one_step["next_state"], transition(t - 2)["next_state"])
        assert (one_step["done"].dtype, one_step["action"].dtype) == (torch.bool, torch.int64)
        memory.add(one_step)
    assert n_step_memory.n_step_buffer.maxlen == 3
    assert [int(step["action"][0]) for step in n_step_memory.n_step_buffer] == [5, 6, 7]
    assert len(memory) == len(n_step_memory) == 12
    batch = memory.sample(64, 0.4)
    n_batch = n_step_memory.sample_from_indices(batch["idxs"])
    assert torch.equal(n_batch["state"], batch["state"])
    assert torch.equal(n_batch["next_state"], batch["state"] + 3)
    # r + (r + 1) / 2 + (r + 2) / 4
    assert torch.equal(n_batch["reward"], batch["reward"] * 1.75 + 1.0)
    assert torch.equal(n_batch["discount"], torch.full((64, 1), 0.125))
    assert torch.equal(n_step_memory.sample_from_indices(batch["idxs"][:, None])["state"], n_batch["state"])
    assert n_step_memory.sample(200).batch_size == torch.Size([200])  # more than there are rows
    with pytest.raises(ShapeError, match=r"must be in 0\.\.11"):
        n_step_memory.sample_from_indices(torch.tensor([12]))


@pytest.mark.parametrize("name", ["done", "terminated", "termination"])
def test_the_done_key_is_found_and_ends_the_lane_it_belongs_to(name: str) -> None:
    buffer = MultiStepReplayBuffer(max_size=10, n_step=3, gamma=0.5)
    batch = transition(4)
    del batch["done"]
    one_step = buffer.add(batch | {name: torch.tensor([False, True])})
    assert one_step[name].tolist() == [[True]]
    assert one_step["state"][0, 0] == 104
    assert buffer.sample(1)[name].item()
    assert buffer.sample(1)["discount"].item() == 0.0


def test_own_names_for_the_keys() -> None:
    buffer = MultiStepReplayBuffer(10, 2, 0.5, reward_key="r", done_key="over", ns_key="then")
    for t in range(2):
        one_step = buffer.add({"obs": torch.tensor([[t]]), "r": torch.tensor([2.0]), "then": torch.tensor([[t + 1]]),
                               "over": torch.tensor([False])})  # fmt: skip
    assert set(one_step.keys()) == {"obs", "r", "then", "over"}
    sample = buffer.sample(1)
    assert (sample["r"].item(), sample["then"].item(), sample["obs"].item()) == (3.0, 2, 0)
    obs = torch.zeros(1, 1)
    with pytest.raises(
        ShapeError, match=r"need a field 'reward'; got \['obs', 'over', 'then'\]\. fix: pass reward_key"
    ):
        buffer.add({"obs": obs, "then": obs, "over": obs})
    with pytest.raises(
        ShapeError, match="done_key='over': expected a field of that name and none that is called 'done'"
    ):
        MultiStepReplayBuffer(10, done_key="over").add({"reward": obs, "next_obs": obs, "over": obs, "done": obs})
    with pytest.raises(ShapeError, match="done_key='over': expected a field of that name"):
        MultiStepReplayBuffer(10, done_key="over").add({"reward": obs, "next_obs": obs, "done": obs})


@pytest.mark.parametrize("as_key", [None, "truncated", "truncation"])
def test_a_truncation_may_be_an_argument_or_a_key_of_the_batch(as_key: str | None) -> None:
    buffer = MultiStepReplayBuffer(max_size=10, n_step=3, gamma=0.5)
    flag, no = torch.tensor([True, False]), torch.tensor([False, False])
    keys = [{} if as_key is None else {as_key: value} for value in (no, flag)]
    buffer.add(transition(1) | keys[0])
    one_step = buffer.add(transition(2) | keys[1], **({"truncated": flag} if as_key is None else {}))
    assert one_step["state"][:, 0].tolist() == [1.0, 2.0]
    rows = buffer.gather(np.arange(2))
    assert rows["reward"].tolist() == [2.0, 2.0]
    assert rows["discount"].tolist() == [0.25, 0.5]
    assert rows["next_obs"][:, 0].tolist() == [3.0, 3.0]
    if as_key is not None:
        assert buffer.sample_from_indices([0, 1])[as_key].tolist() == [[True], [True]]
        assert one_step[as_key].tolist() == [[False], [True]]


def test_dict_observations_pass_through_windows() -> None:
    buffer = MultiStepReplayBuffer(max_size=10, n_step=2, gamma=1.0)
    for t in range(3):
        obs = {"a": torch.full((1, 2), float(t)), "b": (torch.full((1, 1), t), torch.full((1, 2, 6, 6), t).byte())}
        then = {"a": obs["a"] + 1, "b": tuple(part + 1 for part in obs["b"])}
        one_step = buffer.add(
            Transition(obs, torch.zeros(1, 1), torch.ones(1, 1), then, torch.zeros(1, 1), batch_size=[1])
        )
    assert one_step["next_obs", "b", "tuple_obs_1"].dtype == torch.uint8
    assert one_step["next_obs", "b", "tuple_obs_0"].item() == 2
    data = buffer.gather(np.arange(2))
    assert data["next_obs"]["a"].tolist() == [[2.0, 2.0], [3.0, 3.0]]
    assert data["obs"]["b"]["tuple_obs_1"].unique().tolist() == [0, 1]
    assert data["reward"].tolist() == [2.0, 2.0]


def test_the_state_of_another_kind_is_refused() -> None:
    buffer = MultiStepReplayBuffer(4, n_step=3, gamma=0.9)
    for other, what in (
        (MultiStepReplayBuffer(4, 2, 0.9), "n_step 3"),
        (MultiStepReplayBuffer(4, 3, 0.8), "gamma 0.9"),
    ):
        with pytest.raises(RunError, match=what):
            other.load_state(buffer.state())
    with pytest.raises(RunError, match="no n-step windows"):
        buffer.load_state(ReplayBuffer(4).state())


def test_prioritised_n_step_rows_in_one_buffer() -> None:
    buffer = PrioritizedMultiStepReplayBuffer(6, n_step=2, gamma=0.5, alpha=1.0, seed=0)
    for t in range(4):
        push(buffer, [t, 10 + t], [1, 2], [t + 1, 11 + t], [0, t == 2], [0, 0])
    assert table(buffer) == [
        (0, 1.5, 2, 0, 0.25),
        (10, 3, 12, 0, 0.25),
        (1, 1.5, 3, 0, 0.25),
        (11, 3, 13, 1, 0),
        (12, 2, 13, 1, 0),
        (2, 1.5, 4, 0, 0.25),
    ]
    buffer.update_priorities(np.arange(6), [1.0, 2.0, 4.0, 8.0, 1.0, 1.0])
    assert buffer.weights(np.arange(6), 1.0).tolist() == [1.0, 0.5, 0.25, 0.125, 1.0, 1.0]
    push(buffer, [4, 14], [1, 1], [5, 15], [0, 0], [0, 0])
    assert buffer.max_priority == 8.0
    assert table(buffer)[:2] == [(3, 1.5, 5, 0, 0.25), (13, 2.5, 15, 0, 0.25)]  # in the places of the two oldest rows
    assert buffer.weights(np.arange(6), 1.0).tolist() == [0.125, 0.125, 0.25, 0.125, 1.0, 1.0]
    batch = buffer.sample(16, 0.4)
    assert batch["discount"].shape == batch["weights"].shape == (16, 1)
    buffer.clear()
    assert push(buffer, [0], [1], [1], [0], [0]) == 0  # the old windows are gone


def test_clear_forgets_open_windows() -> None:
    buffer = MultiStepReplayBuffer(6, n_step=2)
    push(buffer, [0], [1], [1], [0], [0])
    buffer.clear()
    assert push(buffer, [7], [1], [8], [0], [0]) == 0
    assert buffer.interrupt() == 1
    assert table(buffer)[0][0] == 7
    assert len(buffer.n_step_buffer) == 0


def test_mistakes_are_named() -> None:
    for n_step in (0, 2.5, True):
        with pytest.raises(ConfigError, match="n_step must be an integer of at least 1"):
            MultiStepReplayBuffer(4, n_step)  # type: ignore[arg-type]
    for gamma in (-0.1, 1.1, np.nan):
        with pytest.raises(ConfigError, match="gamma must be in"):
            MultiStepReplayBuffer(4, 3, gamma)
    buffer = MultiStepReplayBuffer(4, 1)
    with pytest.raises(RunError, match="empty"):
        buffer.sample(1)
    zero, one = np.zeros((2, 3)), np.zeros(2)
    with pytest.raises(ShapeError, match="truncated needs one value per lane"):
        buffer.write(zero, one, one, zero, one, truncated=np.zeros(3, bool))
    with pytest.raises(ShapeError, match="one reward each"):
        buffer.write(zero, one, zero, zero, one)
    with pytest.raises(ShapeError, match="'discount' is reserved"):
        buffer.add({"obs": zero, "reward": one, "next_obs": zero, "done": one, "discount": one})
