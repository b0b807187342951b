"""After a rollback a buffer is the one that was never written to: its state, its log, and all that it does later."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from goal_envs import WithGoals
from test_replay_pieces import Filling, contents, rebuilt

from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
from agilerl.components.replay_buffer import (
    MultiStepReplayBuffer,
    PrioritizedMultiStepReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from agilerl.components.rows import Mark
from agilerl.components.storage import FrameStore
from agilerl.core.checkpoint import digest_tree
from agilerl.data.replay_log import ReplayLog
from agilerl.envs.protocol import AGENTS, PRESENT
from agilerl.errors import RunError

pytestmark = pytest.mark.filterwarnings("ignore:masks of legal actions are not kept", "ignore:compute_reward gives")
SIZE = 23
KINDS: dict[str, Callable[[], Any]] = {
    "uniform": lambda: ReplayBuffer(SIZE, seed=0),
    "prioritised": lambda: PrioritizedReplayBuffer(SIZE, seed=0),
    "n-step": lambda: MultiStepReplayBuffer(SIZE, n_step=3, seed=0),
    "prioritised n-step": lambda: PrioritizedMultiStepReplayBuffer(SIZE, n_step=3, seed=0),
    "hindsight": lambda: WithGoals(SIZE),
    "team": lambda: MultiAgentReplayBuffer(SIZE, agent_ids=["a", "b"], seed=0),
}
OBSERVATIONS = ("vectors", "images", "both")


class World:
    """Calls of a buffer's methods that depend on a seed alone, and on the observations that the last one ended with."""

    def __init__(self, memory: Any, observations: str) -> None:
        self.memory, self.observations, self.last = memory, observations, None
        self.is_team = isinstance(memory, MultiAgentReplayBuffer)
        self.is_n_step = isinstance(memory, MultiStepReplayBuffer)

    def seen(self, rng: np.random.Generator, lanes: int) -> Any:
        vectors = rng.standard_normal((lanes, 5)).astype(np.float32)
        images = rng.integers(0, 256, (lanes, 2, 6, 6), dtype=np.uint8)
        seen = {"vectors": vectors, "images": images, "both": {"v": vectors, "i": images}}[self.observations]
        return {agent: copy.deepcopy(seen) for agent in "ab"} if self.is_team else seen

    def step(self, rng: np.random.Generator, lanes: int) -> dict[str, Any]:
        """Arguments of `write`; the observations continue those of the call before, unless by chance or the lanes."""
        obs = self.seen(rng, lanes)
        if self.last is not None and self.last[0] == lanes and rng.random() < 0.8:
            obs = self.last[1]
        after = self.seen(rng, lanes)
        self.last = (lanes, after)
        agents = (2,) if self.is_team else ()
        action = rng.standard_normal((lanes, 2)).astype(np.float32) if self.is_team else rng.integers(0, 4, lanes)
        done = rng.random((lanes, *agents)) < 0.15
        step = {"obs": obs, "action": action, "reward": rng.standard_normal((lanes, *agents))}
        return step | {"next_obs": after, "done": done}

    def write(self, rng: np.random.Generator) -> Any:
        lanes = int(rng.choice([3, 3, 3, 5]))
        step = self.step(rng, lanes)
        if self.is_team:
            present = {name: (rng.random((lanes, 2)) < 0.9).astype(np.int8) for name in ("obs", "next_obs")}
            step |= {name: {AGENTS: step[name], PRESENT: present[name]} for name in present}
        mask = rng.random(lanes) < 0.9 if rng.random() < 0.5 else None
        legal = rng.random((lanes, 4)) < 0.7  # kept if the first rows had them
        masks = {"next_mask": legal, "obs_mask": ~legal} if rng.random() < 0.5 else {}
        added = self.memory.write(**step, mask=mask, truncated=rng.random(lanes) < 0.1, **masks)
        return added, self.memory.last_one_step() if self.is_n_step else None

    def write_many(self, rng: np.random.Generator) -> Any:
        """More rows at once than the buffer holds."""
        return [self.write(rng) for _ in range(2)] if self.is_n_step else self.add(rng, lanes=SIZE + 4)

    def add(self, rng: np.random.Generator, lanes: int = 3) -> Any:
        step = self.step(rng, lanes)
        if self.is_team:
            for name in ("action", "reward", "done"):
                step[name] = {agent: step[name][:, [k]] for k, agent in enumerate("ab")}
        fields = [path[0] for path in self.memory.fields]
        if "next_mask" in fields and not self.is_team:
            step |= {"next_mask": np.ones((lanes, 4), bool), "obs_mask": np.ones((lanes, 4), bool)}
        elif "next_mask" in fields:
            return None
        out = self.memory.add(step)
        return None if out is None else out.to_dict()

    def interrupt(self, rng: np.random.Generator) -> Any:
        return self.memory.interrupt(None if rng.random() < 0.5 else np.array([1]))

    def update_priorities(self, rng: np.random.Generator) -> None:
        if len(self.memory) and isinstance(self.memory, PrioritizedReplayBuffer):
            rows = self.memory.sample_indices(rng, (6,))
            self.memory.update_priorities(rows, rng.random(6) * 3)

    def sample(self, rng: np.random.Generator) -> Any:
        return self.memory.sample(4).to_dict() if len(self.memory) else None

    def run(self, calls: list[tuple[str, int]]) -> list[str]:
        """Digests of what the calls return, and of the state after each."""
        return [digest_tree({"of": digests}) for digests in self.run_apart(calls)]

    def run_apart(self, calls: list[tuple[str, int]]) -> list[tuple[str, str]]:
        """The digest of what a call returns, and that of the state after it, call by call."""
        out = []
        for name, seed in calls:
            returned = getattr(self, name)(np.random.default_rng(seed))
            out.append((digest_tree({"returned": returned}), digest_tree(self.memory.state())))
        return out


METHODS = ["write"] * 6 + ["write_many", "add", "interrupt", "update_priorities", "update_priorities", "sample"]


def random_calls(rng: np.random.Generator, count: int) -> list[tuple[str, int]]:
    return [(str(rng.choice(METHODS)), int(rng.integers(2**31))) for _ in range(count)]


def everything(memory: Any, marks: list[Mark]) -> dict[str, Any]:
    """What shows the contents: state, pieces since each mark, layout, all places of the memory, size in bytes."""
    storage = memory.storage
    needs = memory.needs()
    return {
        "state": digest_tree(memory.state()),
        "state without rows": digest_tree(memory.state(rows=False)),
        "changes": [digest_tree(memory.changes(mark).tree()) for mark in [*marks, None]],
        "needs": (needs.log, needs.row, needs.epoch),
        "storage": None if storage is None else digest_tree(storage.to_dict()),
        "text": repr(memory),
        "one step": None
        if not isinstance(memory, MultiStepReplayBuffer)
        else digest_tree({"": memory.last_one_step()}),
    }


def restored(memory: Any) -> Any:
    kind = next(kind for kind in KINDS if type(KINDS[kind]()) is type(memory))
    other = KINDS[kind]()
    other.follow_seed(77)
    other.load_state(memory.state())
    return other


def frames_in_use(memory: Any) -> int:
    return 0 if memory.frames is None else int((memory.frames._references[1:] > 0).sum())


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda memory: pickle.loads(pickle.dumps(memory)), restored])
@pytest.mark.parametrize("calls", [0, 2, 30])
@pytest.mark.parametrize("observations", OBSERVATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_goes_on_to_the_bit_and_apart(kind: str, observations: str, calls: int, duplicate: Any) -> None:
    world, rng = World(KINDS[kind](), observations), np.random.default_rng(calls)
    world.run(random_calls(rng, calls))
    before = contents(world.memory) if len(world.memory) else None
    twin, last = World(duplicate(world.memory), observations), world.last
    further = random_calls(rng, 20)
    twin.last = last
    digests = [returned for returned, _ in twin.run_apart(further)]
    assert before is None or contents(world.memory) == before, "the original stays"
    assert [returned for returned, _ in world.run_apart(further)] == digests
    assert contents(world.memory) == contents(twin.memory)
    assert frames_in_use(world.memory) == frames_in_use(twin.memory)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("observations", OBSERVATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_calls_that_were_undone_leave_no_trace(kind: str, observations: str, seed: int) -> None:
    rng = np.random.default_rng([seed, len(kind), len(observations)])
    world, twin = World(KINDS[kind](), observations), World(KINDS[kind](), observations)
    marks: list[Mark] = []
    for round_ in range(4):
        calls = random_calls(rng, 0 if round_ == 0 and seed % 2 else int(rng.integers(0, 12)))
        if round_ == 3:
            calls += [("write", int(rng.integers(2**31))) for _ in range(12)]
        assert world.run(calls) == twin.run(calls)
        before, last = everything(world.memory, marks), world.last
        world.memory.savepoint()
        world.run(random_calls(rng, int(rng.integers(1, 25))))
        world.memory.rollback()
        world.last = last
        assert everything(world.memory, marks) == before
        assert everything(twin.memory, marks) == before
        marks.append(world.memory.mark())
        assert twin.memory.mark() == marks[-1]
    assert world.memory.counter > SIZE, "the ring wraps around"


@pytest.mark.parametrize("kind", KINDS)
def test_digests_of_the_property_test_see_what_is_not_undone(kind: str) -> None:
    world = World(KINDS[kind](), "both")
    world.run(random_calls(np.random.default_rng(0), 12))
    before = everything(world.memory, [])
    world.run([("write", 0)] * 3)
    after = everything(world.memory, [])
    assert {name for name in before if after[name] == before[name]} <= {"text", "one step"}


@pytest.mark.parametrize("observations", OBSERVATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_buffer_forgets_the_fields_of_rows_that_were_undone(kind: str, observations: str) -> None:
    memory = KINDS[kind]()
    before = everything(memory, [])
    memory.savepoint()
    World(memory, observations).run([("write", 0), ("write", 1), ("write_many", 2)])
    assert memory.initialized
    memory.rollback()
    assert not memory.initialized
    assert everything(memory, []) == before
    other = World(memory, "images" if observations == "vectors" else "vectors")
    twin = World(KINDS[kind](), other.observations)
    calls = [("write", seed) for seed in range(20)]
    assert other.run(calls) == twin.run(calls), "rows with other fields fit in"


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_savepoint_replaces_the_first(kind: str) -> None:
    world, twin = World(KINDS[kind](), "images"), World(KINDS[kind](), "images")
    calls = [random_calls(np.random.default_rng(seed), 9) for seed in range(3)]
    for each in (world, twin):
        each.run(calls[0])
    world.memory.savepoint()
    assert world.run(calls[1]) == twin.run(calls[1])
    world.memory.savepoint()
    world.run(calls[2])
    world.memory.rollback()
    assert everything(world.memory, []) == everything(twin.memory, [])
    with pytest.raises(RunError, match=r"rollback\(\) needs a savepoint"):
        world.memory.rollback()


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_a_buffer_can_be_rolled_back_too(kind: str) -> None:
    world = World(KINDS[kind](), "both")
    world.run(random_calls(np.random.default_rng(1), 9))
    before = everything(world.memory, [])
    world.memory.savepoint()
    world.run([("write", seed) for seed in range(5)])
    other = copy.deepcopy(world.memory)
    world.run([("write", seed) for seed in range(5, 9)])
    for memory in (other, world.memory):
        memory.rollback()
        assert everything(memory, []) == before


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_undone_is_refused_and_changes_nothing(kind: str) -> None:
    world = World(KINDS[kind](), "images")
    memory = world.memory
    world.run([("write", seed) for seed in range(5)])
    state, changes, before = memory.state(), memory.changes(), everything(memory, [])
    memory.savepoint()

    def resize() -> None:
        memory.size = 2

    calls: dict[str, Callable[[], Any]] = {
        r"clear\(\)": memory.clear,
        r"reserve\(\)": lambda: memory.reserve(2 * SIZE),
        r"load_state\(\)": lambda: memory.load_state(state),
        r"load_changes\(\)": lambda: memory.load_changes(changes),
        r"keep_rows\(\)": lambda: memory.keep_rows(np.arange(3)),
        "setting size": resize,
        r"mark\(\)": memory.mark,
    }
    for name, call in calls.items():
        with pytest.raises(RunError, match=rf"^{name} cannot be undone.*fix: call rollback"):
            call()
        assert everything(memory, []) == before
    memory.rollback()
    for call in calls.values():
        if call is not calls[r"reserve\(\)"]:
            call()


def test_a_rollback_of_a_buffer_without_a_savepoint_is_refused() -> None:
    with pytest.raises(RunError, match=r"rollback\(\) needs a savepoint.*fix: call savepoint"):
        ReplayBuffer(SIZE).rollback()
    with pytest.raises(RunError, match=r"priority_changes\(\) needs a savepoint"):
        PrioritizedReplayBuffer(SIZE).priority_changes()


def test_the_generator_of_sample_goes_back_also_where_it_was_replaced() -> None:
    memory, twin = ReplayBuffer(SIZE), ReplayBuffer(SIZE)
    for each in (memory, twin):
        each.follow_seed(3)
        World(each, "vectors").run([("write", 0), ("write", 1)])
    memory.savepoint()
    memory.sample(3)
    memory.follow_seed(4)
    memory.sample(5)
    memory.rollback()
    assert torch.equal(memory.sample(9)["obs"], twin.sample(9)["obs"])


@pytest.mark.thorough
def test_copies_are_made_of_rows_and_images_that_are_overwritten_once_each() -> None:
    memory = ReplayBuffer(1_000)
    world = World(memory, "images")
    world.run([("write", seed) for seed in range(350)])  # full
    memory.savepoint()
    assert isinstance(memory.frames, FrameStore)
    rows, images = memory._store.packed, memory.frames._main[()]
    used = memory.frames._used
    assert rows.copies == images.copies == []
    counter = memory.counter
    world.run([("write", seed) for seed in range(4)])
    assert int(rows.is_copied.sum()) == memory.counter - counter
    assert sum(len(contents) for _, contents in rows.copies) == memory.counter - counter
    assert 0 < sum(len(numbers) for numbers, _ in images.copies) <= 2 * (memory.counter - counter)
    world.run([("write", seed) for seed in range(800)])  # around the ring more than twice
    assert sum(len(contents) for _, contents in rows.copies) < memory.max_size + 5
    assert sum(len(numbers) for numbers, _ in images.copies) <= used


# -- with a log on disk ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("images", [False, True], ids=["vectors", "images"])
@pytest.mark.parametrize("kind", [name for name in KINDS if name not in ("team", "hindsight")])
def test_a_log_goes_on_appending_after_a_rollback(kind: str, images: bool, tmp_path: Path) -> None:
    memory, log = KINDS[kind](), ReplayLog(tmp_path / "a", roll_bytes=3000)
    filling = Filling(memory, images)
    for steps in (5, 3, 9):
        filling.steps(steps)
        log.append(memory)
        chunks, counter = len(log.chunks), memory.counter
        memory.savepoint()
        position = copy.deepcopy((filling.rng, filling.obs))
        filling.steps(11)  # more rows than the ring holds
        with pytest.raises(RunError, match="mark"):
            log.append(memory)
        memory.rollback()
        filling.rng, filling.obs = position
        assert memory.counter == counter
        log.append(memory)
        assert len(log.chunks) == chunks, "nothing to append"
    filling.steps(2)
    counter = log.chunks[-1].first + log.chunks[-1].count
    log.append(memory)
    assert log.chunks[-1].first == counter, "the same log, not a new one with all rows"
    assert log.chunks[-1].count == memory.counter - counter
    plain = Filling(KINDS[kind](), images)
    plain.steps(5 + 3 + 9 + 2)
    assert contents(plain.memory) == contents(memory)
    assert contents(rebuilt(KINDS[kind], memory, log, tmp_path / "a")) == contents(memory)


# -- priorities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["prioritised", "prioritised n-step"])
def test_priorities_of_rows_that_are_written_again_come_back(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = World(KINDS[kind](), str(rng.choice(OBSERVATIONS)))
    memory, methods = world.memory, ["write", "write", "update_priorities"]
    world.run([(str(rng.choice(methods)), s) for s in range(int(rng.integers(0, 25)))])
    counter, last = memory.counter, world.last
    memory.savepoint()
    calls = [(str(rng.choice(methods)), s) for s in range(100, 100 + int(rng.integers(1, 25)))]
    world.run(calls)
    changes, expected = memory.priority_changes(), memory.state()["priorities"]
    total, smallest = memory._sampler.sums.total, memory._sampler.minima.minimum
    in_memory = np.arange(memory.counter - len(memory), memory.counter)
    assert np.all(np.diff(changes["rows"]) > 0)
    assert np.isin(changes["rows"], in_memory).all()
    assert np.isin(in_memory[in_memory >= counter], changes["rows"]).all(), "all rows that were added"
    memory.rollback()
    before = memory.state()["priorities"]["scaled"]
    old = changes["rows"] < counter
    assert (before[memory._places(changes["rows"][old])].numpy() != changes["scaled"][old]).all(), (
        "older ones if changed"
    )
    world.last = last
    world.run([call for call in calls if call[0] == "write"])
    memory.apply_priorities(changes)
    after = memory.state()["priorities"]
    assert after["max_priority"] == expected["max_priority"]
    assert torch.equal(after["scaled"], expected["scaled"])
    assert (memory._sampler.sums.total, memory._sampler.minima.minimum) == (total, smallest)
    draws = [
        tree.sample_indices(np.random.default_rng(1), (50,)) for tree in (memory, copy.deepcopy(memory)) if len(memory)
    ]
    assert all(np.array_equal(draws[0], each) for each in draws)


def numbered(memory: Any, count: int) -> None:
    for number in range(count):
        row = np.array([float(number)])
        memory.write(row, np.zeros(1, np.int64), row, row, np.zeros(1, bool))


def test_changes_of_priorities_by_hand() -> None:
    memory = PrioritizedReplayBuffer(4, alpha=0.5)
    numbered(memory, 5)  # rows 1 to 4, row 4 in place 0
    memory.savepoint()
    memory.update_priorities([2, 1], [9.0, 1.0])  # rows 2 and 1, whose priority is 1 as before
    numbered(memory, 1)  # row 5 in place 1 instead of row 1, with the largest priority
    memory.update_priorities([0], [4.0])  # row 4
    changes = memory.priority_changes()
    np.testing.assert_array_equal(changes["rows"], [2, 4, 5])
    np.testing.assert_array_equal(changes["scaled"], [3.0, 2.0, 3.0])
    assert changes["max_priority"] == 9.0
    memory.rollback()
    assert memory.max_priority == 1.0
    np.testing.assert_array_equal(memory._sampler.sums[:], 1.0)
    memory.savepoint()
    assert len(memory.priority_changes()["rows"]) == 0
    numbered(memory, 1)  # instead of a row of the same priority
    np.testing.assert_array_equal(memory.priority_changes()["rows"], [5])
    memory.rollback()
    with pytest.raises(RunError, match="priorities up to row 5; 5 rows were added so far"):
        memory.apply_priorities(changes)
    np.testing.assert_array_equal(memory._sampler.sums[:], 1.0)
    numbered(memory, 2)  # rows 3 to 6: row 2 is gone
    memory.apply_priorities(changes)
    np.testing.assert_array_equal(memory._sampler.sums[memory.in_order()], [1.0, 2.0, 3.0, 1.0])
    assert memory._sampler.sums.total == 7.0
    assert memory._sampler.minima.minimum == 1.0
    assert memory.max_priority == 9.0
    memory.apply_priorities({"rows": changes["rows"][:0], "scaled": changes["scaled"][:0], "max_priority": 2.0})
    assert memory.max_priority == 9.0, "it only rises"
    memory.apply_priorities({"rows": np.array([6]), "scaled": np.array([5.0]), "max_priority": 25.0})
    np.testing.assert_array_equal(memory._sampler.sums[memory.in_order()], [1.0, 2.0, 3.0, 5.0])
    assert memory.max_priority == 25.0


def test_rows_of_shards_are_written_in_order_with_the_priorities_that_each_has_set() -> None:
    """Two shards from one state: the rows of the second one follow those of the first, and so do their numbers."""
    memory = PrioritizedReplayBuffer(20, alpha=1.0)
    numbered(memory, 6)
    changes = []
    for count, priority in ((3, 2.0), (4, 7.0)):
        memory.savepoint()
        numbered(memory, count)
        memory.update_priorities([1, len(memory) - 1], [priority, priority])
        changes.append(memory.priority_changes())
        memory.rollback()
    added = 0
    for count, each in zip((3, 4), changes, strict=True):
        numbered(memory, count)
        memory.apply_priorities({**each, "rows": np.where(each["rows"] >= 6, each["rows"] + added, each["rows"])})
        added += count
    np.testing.assert_array_equal(memory._sampler.sums[:13], [1, 7, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 7])
    assert memory.max_priority == 7.0
