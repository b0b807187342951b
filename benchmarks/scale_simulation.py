"""Simulate one population on up to 1,000 workers: a discrete-event simulation driven by measured costs.

    python benchmarks/scale_simulation.py [--seeds 0-4] [--workers 1 2 10 100 1000] > results/scale_simulation.jsonl
    python benchmarks/scale_simulation.py --table results/scale_simulation.jsonl
    python benchmarks/scale_simulation.py --check FILE

Modes, of a population that is cut into shards:

* "sync": one shard a worker. A generation is training, exchange of replay rows, evaluation, and evolution and saving in
  the driver, with a barrier after each.
* "sync, copies": two shards a worker; a shard that takes longer than 1.5 times the median of the generation before is
  run a second time on an idle worker, and the first result counts.
* "async": two shards a worker; a shard that was evaluated is evolved against the last known fitness of the others and
  goes on, at most `max_lag` generations ahead of the slowest one.

Every mode gives shards to workers that are ready. The driver is one resource: sending, receiving, evolving and saving
wait for each other. `evolve_in`: "driver", or "workers": mutation and encoding of a shard's members run in its worker.

One JSON line per setting and seed: `efficiency` is useful shard seconds / (workers x wall seconds), where useful are
those on a worker of median speed, with one shard a worker, each generation of a shard counted once; `speedup` beside
one process; `idle_share` of the workers' time, without computing; `wasted_share`, computing lost with a worker or done
twice; `driver_share`, of the wall in which the driver is busy; `generations_per_hour`; `megabytes` moved in each.

`--check FILE` predicts real runs from what one process takes, prints the relative errors, and exits with 1 beyond 15 %.
FILE holds one JSON line per setting, all seconds of wall, medians over generations:

    workload                          a key of WORKLOADS; gives bytes, rows, and the fixed share of training
    workers, shards, members          of the run that was measured; 2 shards on 2 workers, say
    share                             "all" or "shard"; default "all"
    link                              a key of LINKS; default "pipes"
    generation_seconds                from the first shard that is sent until all rows are exchanged, no evaluation
    evaluation_seconds                from the first unit that is sent to the last result
    one_process_generation_seconds    of the same members with shards=1 in one process, no evaluation
    one_process_evaluation_seconds    of the same members and episodes in one process
    one_shard_generation_seconds      optional: of ONE of the shards alone in one process; replaces the fixed share
    slowdown                          optional: seconds of a process with all workers busy / alone; default 1
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from runner import facts, package_commit, read_lines, seed_range

TOLERANCE = 0.15
STRAGGLER = 1.5  # times the median
MAX_MEMBERS = 4096
Event = tuple[float, int, str, Any]


@dataclass(frozen=True)
class Workload:
    """Costs of a generation, in seconds of one core.

    Attributes:
        fixed_seconds: of training any shard. train_seconds, evaluation_seconds: more for each member.
        state_bytes: of a member. rows, row_bytes: new transitions of a member. memory_rows: of the replay memory.
    """

    fixed_seconds: float
    train_seconds: float
    evaluation_seconds: float
    state_bytes: float = 0.0
    rows: int = 0
    row_bytes: float = 0.0
    memory_rows: int = 0
    source: str = ""

    def shard_seconds(self, members: int) -> float:
        """Training of one shard."""
        return self.fixed_seconds + members * self.train_seconds


@dataclass(frozen=True)
class Link:
    """Between driver and workers.

    Attributes:
        call_seconds, serial_rate: the driver's own time per message, and bytes per second through it.
        latency_seconds, rate: on the way; receivers do not wait for each other.
        rows_pass_driver: whether exchanged rows pass the driver, once for each worker.
    """

    call_seconds: float = 0.0
    serial_rate: float = np.inf
    latency_seconds: float = 0.0
    rate: float = np.inf
    rows_pass_driver: bool = False
    source: str = ""


@dataclass(frozen=True)
class Driver:
    """Serial work between generations: per member, of a save, and of the log of replay in bytes per second."""

    evolve_seconds: float = 0.0
    encode_seconds: float = 0.0
    save_seconds: float = 0.0
    log_rate: float = np.inf
    source: str = ""


@dataclass(frozen=True)
class Fleet:
    """Speeds and failures of workers.

    Attributes:
        sigma: of the lognormal slowdown of a worker, with median 1. slow_share, slow_factor: of slower ones.
        work_sigma: of the lognormal work of a shard, which differs between generations (episodes).
        failures_per_hour: of a worker. notice_seconds: until a loss is known. replace_seconds: until another is ready.
        slowdowns: given ones, by worker, instead of drawn ones.
    """

    sigma: float = 0.0
    slow_share: float = 0.0
    slow_factor: float = 3.0
    work_sigma: float = 0.0
    failures_per_hour: float = 0.0
    notice_seconds: float = 0.0
    replace_seconds: float = 0.0
    slowdowns: tuple[float, ...] = ()
    source: str = ""

    def slowdown(self, worker: int, rng: np.random.Generator) -> float:
        """Seconds on this worker / seconds on one of median speed."""
        if self.slowdowns:
            return self.slowdowns[worker]
        slow = self.slow_factor if rng.random() < self.slow_share else 1.0
        return slow * float(np.exp(self.sigma * rng.standard_normal()))

    def next_failure(self, now: float, rng: np.random.Generator) -> float:
        return now + rng.exponential(3600 / self.failures_per_hour) if self.failures_per_hour else np.inf


WORKLOADS = {
    "LunarLander-v3 DQN": Workload(
        0.97, 1.14, 0.93, 169e3, 5_000, 76, 100_000, source="results/scale_costs.jsonl; evaluation: of 8 members"
    ),
    "LunarLander-v3 PPO": Workload(
        0.47, 0.44, 0.42, 257e3, source="results/scale_costs.jsonl; evaluation: of 8 members"
    ),
    "simulator of 50 ms a step, PPO": Workload(
        0.47, 256.0, 160.0, 257e3, source="5,120 steps and 16 episodes of 200 steps one after another; else as PPO"
    ),
}
LINKS = {
    "pipes": Link(5e-5, 565e6, 0.0, 565e6, True, source="results/scale_costs.jsonl: empty, and 8 MB, CPU seconds"),
    "ray": Link(1.25e-3, 64e6, 5e-3, 545e6, source=(
        "Ray 2.60 on localhost: an empty generation over 4 actors takes 5.0 ms, with 80 KB in and out of each 15.1 ms; "
        "1, 8 and 32 MB to another node take 7, 19 and 63 ms"
    )),
    "ray-references": Link(1.25e-3, 545e6, 5e-3, 545e6, source=(
        "as ray, assuming that the driver passes members on as fast as nodes receive them"
    )),
}  # fmt: skip
DRIVER = Driver(3.1e-3, 9.5e-3, 0.023, 90e6, source=(
    "results/scale_costs.jsonl, means of DQN and PPO; rows: results/checkpoint.jsonl, 760 kB in 8.4 ms"
))  # fmt: skip
FLEETS = {
    "equal": Fleet(source="no variation"),
    "mixed": Fleet(0.1, 0.02, 3.0, 0.1, 0.05, 1.8, 25.0, source=(
        "assumed, but for the noticing of a lost node and the start of one (Ray 2.60: 1.8 s, 15 to 25 s)"
    )),
}  # fmt: skip


@dataclass(frozen=True)
class Mode:
    """Shards of each worker, whether stragglers run twice, and whether all wait for each other."""

    shards_per_worker: int
    copies_stragglers: bool
    has_barriers: bool


MODES = {"sync": Mode(1, False, True), "sync, copies": Mode(2, True, True), "async": Mode(2, False, False)}


@dataclass(frozen=True)
class Plan:
    """What is simulated; `shards`: 0 for those of the mode."""

    workers: int
    members: int
    mode: str
    generations: int = 20
    share: str = "all"
    evolve_in: str = "driver"
    max_lag: int = 2
    shards: int = 0

    @property
    def sizes(self) -> list[int]:
        """Members of each shard."""
        count = min(self.members, self.shards or MODES[self.mode].shards_per_worker * self.workers)
        return [len(part) for part in np.array_split(np.arange(self.members), count)]


@dataclass
class Task:
    """One generation of a shard, or its evaluation; `seconds`: on a worker of median speed."""

    shard: int
    kind: str
    seconds: float
    bytes_in: float
    bytes_out: float
    copies: int = 0
    done: bool = False


@dataclass
class Attempt:
    """A task on a worker."""

    task: Task
    worker: int
    begun: float
    computing: float
    ends: float


@dataclass
class Worker:
    """`received`: bytes of what the cluster has published by now."""

    slowdown: float
    fails_at: float
    received: float = 0.0


@dataclass
class Cluster:
    """The driver and its workers: tasks go in, the first result of each comes out."""

    count: int
    link: Link
    fleet: Fleet
    rng: np.random.Generator
    copies_stragglers: bool = False
    ring_bytes: float = 0.0  # of replay: all that a new worker must receive
    published: float = 0.0  # bytes of rows that each worker receives before its next task
    driver_free: float = 0.0
    driver_busy: float = 0.0
    computed: float = 0.0
    wasted: float = 0.0
    moved: float = 0.0
    workers: list[Worker] = field(default_factory=list)
    idle: deque[int] = field(default_factory=deque)
    waiting: deque[Task] = field(default_factory=deque)
    late: deque[Task] = field(default_factory=deque)
    finished: deque[Task] = field(default_factory=deque)
    durations: dict[str, list[float]] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    order: Iterable[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        for worker in range(self.count):
            self.workers.append(Worker(self.fleet.slowdown(worker, self.rng), self.fleet.next_failure(0.0, self.rng)))
            self.idle.append(worker)

    def drive(self, seconds: float, at: float = 0.0) -> float:
        """Occupy the driver for `seconds`, not before `at`; return when that ends."""
        self.driver_free = max(at, self.driver_free) + seconds
        self.driver_busy += seconds
        return self.driver_free

    def submit(self, tasks: Iterable[Task]) -> None:
        """Queue tasks from now on, in order."""
        self.waiting.extend(tasks)
        self._dispatch(self.driver_free)

    def next_done(self) -> Task:
        """Wait for the next task with a first result."""
        while not self.finished:
            at, _, kind, what = heapq.heappop(self.events)
            if kind == "result":
                self._receive(at, what)
            elif kind == "lost":
                self._lose(at, what)
            elif kind == "ready":
                self.idle.append(what)
            elif kind == "late" and not what.task.done and what.task.copies == 1:
                self.late.append(what.task)
            self._dispatch(at)
        return self.finished.popleft()

    def close_phase(self) -> None:
        """Take the limits of stragglers from the tasks since the last call."""
        self.limits = {**self.limits, **{kind: STRAGGLER * median(d) for kind, d in self.durations.items()}}
        self.durations.clear()

    def exchange(self, size: float) -> None:
        """Let every worker receive `size` bytes, before anything else goes on."""
        self.moved += size * self.count
        if self.link.rows_pass_driver:
            self.drive(self.count * (self.link.call_seconds + size / self.link.serial_rate))
        else:
            self.driver_free += self.link.latency_seconds + size / self.link.rate

    def _push(self, at: float, kind: str, what: Any) -> None:
        heapq.heappush(self.events, (at, next(self.order), kind, what))  # type: ignore[call-overload]

    def _dispatch(self, now: float) -> None:
        while self.idle:
            while self.late and (self.late[0].done or self.late[0].copies > 1):
                self.late.popleft()
            if not self.waiting and not self.late:
                return
            worker = self.idle.popleft()
            if self.workers[worker].fails_at <= max(now, self.driver_free):  # it has failed while it was idle
                self._replace(worker, self.workers[worker].fails_at + self.fleet.notice_seconds, now)
                continue
            self._start(self.waiting.popleft() if self.waiting else self.late.popleft(), worker, now)

    def _start(self, task: Task, number: int, now: float) -> None:
        worker, link = self.workers[number], self.link
        sent = self.drive(link.call_seconds + task.bytes_in / link.serial_rate, now)
        size = task.bytes_in + min(self.published - worker.received, self.ring_bytes)
        begun = sent + link.latency_seconds + size / link.rate
        self.moved += size
        worker.received = self.published
        task.copies += 1
        computing = task.seconds * worker.slowdown
        attempt = Attempt(task, number, sent, computing, begun + computing)
        if worker.fails_at < attempt.ends:
            attempt.computing = max(0.0, worker.fails_at - begun)
            self._push(max(worker.fails_at, sent) + self.fleet.notice_seconds, "lost", attempt)
            return
        self._push(attempt.ends + link.latency_seconds + task.bytes_out / link.rate, "result", attempt)
        if self.copies_stragglers and task.copies == 1 and task.kind in self.limits:
            self._push(sent + self.limits[task.kind], "late", attempt)

    def _receive(self, at: float, attempt: Attempt) -> None:
        task = attempt.task
        self.drive(self.link.call_seconds + task.bytes_out / self.link.serial_rate, at)
        self.moved += task.bytes_out
        self.computed += attempt.computing
        if task.done:  # the other copy was first
            self.wasted += attempt.computing
        else:
            task.done = True
            self.finished.append(task)
            self.durations.setdefault(task.kind, []).append(at - attempt.begun)
        self.idle.append(attempt.worker)

    def _lose(self, at: float, attempt: Attempt) -> None:
        self.computed += attempt.computing
        self.wasted += attempt.computing
        attempt.task.copies -= 1
        if not attempt.task.done and not attempt.task.copies:
            self.waiting.appendleft(attempt.task)
        self._replace(attempt.worker, at, at)

    def _replace(self, number: int, noticed: float, now: float) -> None:
        ready = noticed + self.fleet.replace_seconds
        fails_at = self.fleet.next_failure(ready, self.rng)
        self.workers[number] = Worker(self.fleet.slowdown(number, self.rng), fails_at, self.published - self.ring_bytes)
        self._push(max(ready, now), "ready", number)


def simulate(plan: Plan, work: Workload, link: Link, driver: Driver, fleet: Fleet, seed: int = 0) -> dict[str, Any]:
    """Simulate all generations of a run; returns the measures of the module's docstring, and `tasks`, by kind."""
    rng, sizes = np.random.default_rng(seed), plan.sizes
    mode = MODES[plan.mode]
    rows = min(plan.members * work.rows, work.memory_rows) * work.row_bytes if plan.share == "all" else 0.0
    logged = rows if plan.share == "all" else sum(min(n * work.rows, work.memory_rows) * work.row_bytes for n in sizes)
    ring = work.memory_rows * work.row_bytes
    cluster = Cluster(plan.workers, link, fleet, rng, mode.copies_stragglers, ring)
    is_spread = plan.evolve_in == "workers"
    per_member = 0.0 if is_spread else driver.evolve_seconds
    saving = (
        driver.save_seconds + logged / driver.log_rate + (0.0 if is_spread else plan.members * driver.encode_seconds)
    )
    own = driver.evolve_seconds + driver.encode_seconds if is_spread else 0.0

    def task(shard: int, kind: str) -> Task:
        size, state = sizes[shard], sizes[shard] * work.state_bytes
        training = work.shard_seconds(size) + size * own if kind != "evaluate" else 0.0
        evaluating = size * work.evaluation_seconds if kind != "train" else 0.0
        variation = float(np.exp(fleet.work_sigma * rng.standard_normal()))
        new_rows = min(size * work.rows, work.memory_rows) * work.row_bytes if kind != "evaluate" else 0.0
        return Task(shard, kind, (training + evaluating) * variation, state, (kind != "evaluate") * state + new_rows)

    hours = (work.shard_seconds(sizes[0]) + sizes[0] * work.evaluation_seconds) / 3600
    if hours * fleet.failures_per_hour > 2:
        raise ValueError(f"a shard takes {hours:.1f} h, and a worker fails {fleet.failures_per_hour:g} times an hour.")
    done, phases = 0, {"train": 0.0, "evaluate": 0.0}
    if mode.has_barriers:
        for _ in range(plan.generations):
            for kind in phases:
                begun = cluster.driver_free
                cluster.submit([task(shard, kind) for shard in range(len(sizes))])
                done += sum(cluster.next_done().kind == "train" for _ in sizes)
                cluster.close_phase()
                if kind == "train" and rows:
                    cluster.exchange(rows)
                phases[kind] += (cluster.driver_free - begun) / plan.generations
            cluster.drive(saving + plan.members * per_member)
    else:
        done = _run_without_barriers(plan, cluster, sizes, task, per_member, saving, rows)
    once = min(plan.workers, plan.members) * work.fixed_seconds
    once += plan.members * (work.train_seconds + work.evaluation_seconds)
    wall = cluster.driver_free
    alone = work.shard_seconds(plan.members) + plan.members * work.evaluation_seconds + driver.save_seconds
    alone += plan.members * (driver.evolve_seconds + driver.encode_seconds) + logged / driver.log_rate
    capacity, fraction = plan.workers * wall, done / len(sizes)
    return {
        "efficiency": fraction * once / capacity,
        "speedup": fraction * alone / wall,
        "idle_share": 1 - cluster.computed / capacity,
        "wasted_share": cluster.wasted / capacity,
        "driver_share": cluster.driver_busy / wall,
        "generations_per_hour": 3600 * fraction / wall,
        "megabytes": cluster.moved / fraction / 1e6,
        "shard_generations": done,
        **{f"{kind}_seconds": seconds for kind, seconds in phases.items() if mode.has_barriers},
    }


def _run_without_barriers(
    plan: Plan, cluster: Cluster, sizes: Sequence[int], task: Any, per_member: float, saving: float, rows: float
) -> int:
    """Run each shard as far as `max_lag` allows; returns the number of finished generations of shards."""
    reached, counts, slowest = [0] * len(sizes), [0] * (plan.generations + 1), 0
    counts[0] = len(sizes)
    held: list[int] = []
    cluster.submit([task(shard, "both") for shard in range(len(sizes))])
    for done in range(1, len(sizes) * plan.generations + 1):
        shard = cluster.next_done().shard
        cluster.drive(sizes[shard] * per_member + (saving if done % len(sizes) == 0 else 0.0))
        cluster.published += rows / len(sizes)
        counts[reached[shard]] -= 1
        reached[shard] += 1
        counts[reached[shard]] += 1
        while slowest < plan.generations and not counts[slowest]:
            slowest += 1
        held.append(shard)
        going_on = [s for s in held if reached[s] < plan.generations and reached[s] - slowest <= plan.max_lag]
        held = [s for s in held if reached[s] < plan.generations and s not in going_on]
        cluster.submit([task(s, "both") for s in sorted(going_on, key=lambda s: (reached[s], s))])
    return done


def check(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Predictions of real runs and their relative errors; fields: see the module's docstring."""
    found = []
    for line in lines:
        plan = Plan(line["workers"], line["members"], "sync", 1, line.get("share", "all"), shards=line["shards"])
        work, whole = WORKLOADS[line["workload"]], line["one_process_generation_seconds"]
        fixed = whole * work.fixed_seconds / work.shard_seconds(plan.members)
        if "one_shard_generation_seconds" in line and len(plan.sizes) > 1:
            per_member = (whole - line["one_shard_generation_seconds"]) / (plan.members - plan.sizes[0])
            fixed = max(0.0, whole - plan.members * per_member)
        slowdown = line.get("slowdown", 1.0)
        work = replace(
            work, fixed_seconds=fixed, train_seconds=(whole - fixed) / plan.members,
            evaluation_seconds=line["one_process_evaluation_seconds"] / plan.members,
        )  # fmt: skip
        fleet = Fleet(slowdowns=(slowdown,) * plan.workers)
        result = simulate(plan, work, LINKS[line.get("link", "pipes")], Driver(), fleet)
        predicted = {"generation": result["train_seconds"], "evaluation": result["evaluate_seconds"]}
        found.append({
            **{name: line[name] for name in ("workload", "workers", "shards", "members")},
            **{f"predicted_{name}_seconds": seconds for name, seconds in predicted.items()},
            **{
                f"{name}_error": seconds / line[f"{name}_seconds"] - 1 if line[f"{name}_seconds"] else 0.0
                for name, seconds in predicted.items()
            },
        })  # fmt: skip
    return found


def exit_code(found: Iterable[dict[str, Any]]) -> int:
    """1 if a prediction is off by more than TOLERANCE."""
    return int(any(abs(one[f"{name}_error"]) > TOLERANCE for one in found for name in ("generation", "evaluation")))


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Medians over seeds, as markdown; "*": evolved in the workers, and efficiency by mode."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in lines:
        key = line["key"]
        groups.setdefault((key["workload"], key["workers"], key["members"]), []).append(line)

    def value(of: list[dict[str, Any]], name: str, **key: str) -> float:
        return median(line[name] for line in of if all(line["key"][k] == v for k, v in key.items()))

    places = "driver", "workers"
    heads = [f"{mode}{'*' * (place == 'workers')}" for place in places for mode in MODES]
    heads += ["driver busy (async)", "generations/h (async*)", "MB moved (sync), all", "shard"]
    text = [f"| workload | workers | members | {' | '.join(heads)} |", "|---|" + "---|" * (len(heads) + 2)]
    for (workload, workers, members), of in groups.items():
        cells = [f"{value(of, 'efficiency', mode=m, evolve_in=p, share='all'):.2f}" for p in places for m in MODES]
        cells.append(f"{value(of, 'driver_share', mode='async', evolve_in='driver', share='all'):.2f}")
        cells.append(f"{value(of, 'generations_per_hour', mode='async', evolve_in='workers', share='all'):,.3g}")
        shares = ("all", "shard") if WORKLOADS[workload].rows else ("all",)
        cells += [f"{value(of, 'megabytes', mode='sync', evolve_in='driver', share=share):,.0f}" for share in shares]
        text.append(f"| {workload} | {workers:,} | {members:,} | {' | '.join(cells)} |{' |' * (len(shares) == 1)}")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=seed_range, default=seed_range("0-4"), help="0-4 if not given")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 10, 100, 1000])
    parser.add_argument("--each", type=int, nargs="+", default=[4], help="members of a worker, 4,096 in all at most")
    parser.add_argument("--fleet", choices=list(FLEETS), default="mixed")
    parser.add_argument("--link", choices=list(LINKS), default="ray")
    parser.add_argument("--generations", type=int, default=20)
    parser.add_argument("--table", type=Path, help="print the lines of a file as a table, simulate nothing")
    parser.add_argument("--check", type=Path, help="compare with real runs; see above")
    args = parser.parse_args()
    if args.table is not None:
        print(table(read_lines(args.table)))
        return
    if args.check is not None:
        found = check(read_lines(args.check))
        print("\n".join(map(json.dumps, found)))
        sys.exit(exit_code(found))
    about = {"commit": package_commit(), **facts()}
    sizes = sorted({(workers, min(MAX_MEMBERS, each * workers)) for workers in args.workers for each in args.each})
    for workload, (workers, members) in itertools.product(WORKLOADS, sizes):
        shares = ("all", "shard") if WORKLOADS[workload].rows else ("all",)
        for share, place, mode, seed in itertools.product(shares, ("driver", "workers"), MODES, args.seeds):
            plan = Plan(workers, members, mode, args.generations, share, place)
            result = simulate(plan, WORKLOADS[workload], LINKS[args.link], DRIVER, FLEETS[args.fleet], seed)
            key = {
                "workload": workload, "share": share, "evolve_in": place, "mode": mode, "workers": workers,
                "members": plan.members, "link": args.link, "fleet": args.fleet, "generations": plan.generations,
                "seed": seed,
            }  # fmt: skip
            rounded = {name: float(f"{value:.4g}") for name, value in result.items()}
            print(json.dumps({"key": key, **rounded, **about}), flush=True)


if __name__ == "__main__":
    main()
