"""Worker side of the scheduler: trains shards and plays blocks of evaluation episodes with a separate collector."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from agilerl.collect.collector import Collector, Tally
from agilerl.collect.divergence import is_finite
from agilerl.collect.fitness import FitnessEvaluator, PopulationEvaluation
from agilerl.core.checkpoint import decode_tree, encode_tree
from agilerl.core.threads import fixed_threads, repeatable_convolutions
from agilerl.training.dispatch import TEMPORARY_KEY
from agilerl.training.population import evaluation_mode

Report = Callable[[int], None]


class ShardServer:
    """Runs the jobs of `training.dispatch.Dispatcher`.

    Args:
        collector: not opened. founders: templates of the members; their states are ignored. seed, shards: of the run.
    """

    def __init__(self, collector: Collector, founders: Sequence[Any], seed: int, shards: int) -> None:
        self.collector = collector
        self._report: Report = _unheard
        collector.open(founders, seed, self._alive, shards)
        self._template, *self._spare = founders
        self._generation = -1
        self._written: dict[int, Any] = {}  # rows of each shard's last generation that ran here
        self._members: dict[str, Any] = {}  # by key, as trained

    def __call__(self, job: bytes, report: Report) -> bytes:
        """Run one job; `report` is called with environment steps, or 0 as a heartbeat."""
        self._report = report
        asked, start = pickle.loads(job), time.process_time()  # of the run, over a pipe that nobody else has
        if asked["plan"].number != self._generation:
            self._generation = asked["plan"].number
            self._release(list(self._members))
        threads = self.collector.options.torch_threads
        with fixed_threads(threads), self.collector.kernel_threads(threads), repeatable_convolutions():
            self.collector.follow(asked["plan"])
            do = {
                "generation": self._train, "round": self._round, "episodes": self._play, "judgement": self._judge,
            }  # fmt: skip
            result = do[asked["kind"]](asked)
        result |= {"faults": self.collector.faults(), "cpu_seconds": time.process_time() - start}
        return pickle.dumps(result, protocol=5)

    def _alive(self) -> None:
        self._report(0)

    def _train(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        agents, result = self._run(asked)
        for slot, agent in zip(asked["slots"], agents, strict=True):
            self._members[f"{asked['plan'].number}:{slot}"] = agent
        return result

    def _round(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        agents, result = self._run(asked)
        result |= evaluated(self.collector.evaluator, agents, result["tallies"], asked["plan"].number)
        self._spare += agents
        return result

    def _run(self, asked: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Train the members of a shard; returns them and the result."""
        collector, shard, slots = self.collector, asked["shard"], asked["slots"]
        agents = [self._made(state) for state in asked["members"]]
        collector.load_shard_state(shard, asked["state"])
        if "memories" in asked["memory"]:
            for name, state in asked["memory"]["memories"].items():
                collector.memories_of(shard)[name].load_state(state)
        elif "written" in asked["memory"]:
            for writer, rows in asked["memory"]["written"].items():
                collector.write(writer, self._written[writer] if rows is None else rows)
        steps = collector.run_shard(asked["plan"], shard, agents, slots)
        while True:
            try:
                self._report(next(steps))
            except StopIteration as end:
                tallies = end.value
                break
        written = self._written[shard] = collector.take_written(shard)
        return agents, {
            "members": [encode_tree(agent.run_state()) for agent in agents],
            "state": collector.shard_state(shard),
            "tallies": tallies,
            "written": written,
            "number": asked["plan"].number,
        }

    def _play(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        evaluator: Any = self.collector.evaluator  # that plays episodes
        agents = self._asked_for(asked)
        with evaluation_mode(agents), evaluator.adopts(agents) as learner:
            result = evaluator.play(learner, asked["episodes"])
        self._release([key for key in self._members if key.startswith(TEMPORARY_KEY)])
        return {"result": asdict(result)}

    def _judge(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        evaluator: Any = self.collector.evaluator  # of language policies
        agents = self._asked_for(asked)
        with evaluation_mode(agents):
            fitness = evaluator.judged_here(agents)
        self._release([key for key in self._members if key.startswith(TEMPORARY_KEY)])
        return {"result": {"fitness": fitness}}

    def _asked_for(self, asked: Mapping[str, Any]) -> list[Any]:
        """Return the agents of an evaluation; the job has the states of agents that this worker lacks."""
        for key, state in asked["states"].items():
            self._members[key] = self._made(state)
        return [self._members[key] for key in asked["members"]]

    def _made(self, state: bytes) -> Any:
        """Return an agent with this state."""
        tree = decode_tree(state, "a member")
        agent = self._spare.pop() if self._spare else self._template.clone()
        agent.load_run_state(tree)
        return agent

    def _release(self, keys: Sequence[str]) -> None:
        self._spare += [self._members.pop(key) for key in keys]


def _unheard(env_steps: int) -> None:
    """Report nothing, while there is no job."""


def evaluated(
    evaluator: FitnessEvaluator, agents: Sequence[Any], tallies: Sequence[Tally], number: int
) -> dict[str, Any]:
    """Evaluate the members of a shard that have not diverged.

    Returns:
        "evaluation", a `PopulationEvaluation` as plain data with fitness by member id, and the "seconds" it took.
    """
    start, before = time.perf_counter(), evaluator.env_steps
    finite = [agent for agent, tally in zip(agents, tallies, strict=True) if tally.fault is None and is_finite(agent)]
    with evaluation_mode(finite):
        one = evaluator.evaluate(finite, number) if finite else PopulationEvaluation([])
    evaluator.env_steps = before  # counted where the result is taken
    plain = {
        **vars(one),
        **{name: dict(vars(one)[name]) for name in ("errors", "played", "by_agent")},
        "fitness": {agent.index: value for agent, value in zip(finite, one.fitness, strict=True)},
        "screened_out": sorted(one.screened_out),
    }
    return {"evaluation": plain, "seconds": time.perf_counter() - start}
