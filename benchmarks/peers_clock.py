"""When a run of an opponent is tested, when it ends, what it has used, and the seeds of its tests.

Standard library only: the opponents' environments have nothing of ours, and ours has nothing of theirs.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping
from typing import Any

# Episodes of a test: more than the checkpoints of a run never overlap. Second tests begin at SECOND, the last one of a
# run is FINAL; an arm's own evaluations, which are counted, draw theirs from EVALUATION on.
SECOND, FINAL, EVALUATION = 1000, 999, 5_000_000
Player = Callable[[list[int]], float]


def test_seeds(seed: int, checkpoint: int, episodes: int) -> list[int]:
    """Of the episodes that test checkpoint number `checkpoint` of a run."""
    first = 10_000_000 * (seed + 1) + 1000 * checkpoint
    return list(range(first, first + episodes))


class EvaluationSeeds:
    """Fresh seeds for the evaluations by which an arm chooses; none of them is one of a test."""

    def __init__(self, seed: int) -> None:
        self.following = 10_000_000 * (seed + 1) + EVALUATION

    def draw(self, episodes: int) -> list[int]:
        first, self.following = self.following, self.following + episodes
        return list(range(first, self.following))


def own_cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class TreeCpu:
    """CPU seconds of a tree of processes, also of those that have ended.

    Args:
        snapshot: gives for every living process, by (id, time of creation), its own CPU seconds and those of its ended
            children that it has waited for.

    A process that has ended counts with what it had when it was last seen. What it used after that is known where its
    parent lives and has waited for it: the larger of both sums counts.
    """

    def __init__(self, snapshot: Callable[[], Mapping[tuple[int, float], tuple[float, float]]]) -> None:
        self.snapshot, self.last_seen, self.highest = snapshot, dict[tuple[int, float], float](), 0.0

    def __call__(self) -> float:
        living = self.snapshot()
        self.last_seen |= {process: own for process, (own, _) in living.items()}
        waited = sum(own + ended for own, ended in living.values())
        self.highest = max(self.highest, waited, sum(self.last_seen.values()))
        return self.highest


class CheckpointClock:
    """Says by which budgets a checkpoint is due, and when all budgets are used up. None: no such budget."""

    def __init__(self, cpu_budget: float | None, step_budget: float | None, checkpoints: int) -> None:
        given = {"cpu": cpu_budget, "steps": step_budget}
        self.budgets = {by: budget for by, budget in given.items() if budget is not None}
        if not self.budgets or min(self.budgets.values()) <= 0:
            raise ValueError(f"a run needs a positive cpu_budget or step_budget; got {cpu_budget}, {step_budget}")
        self.checkpoints, self.passed = checkpoints, dict.fromkeys(self.budgets, 0)

    def due(self, cpu_seconds: float, env_steps: int) -> list[str]:
        """The budgets of which a part has ended since the last call: "cpu", "steps"."""
        used, found = {"cpu": cpu_seconds, "steps": env_steps}, []
        for by, budget in self.budgets.items():
            part = min(self.checkpoints, int(used[by] * self.checkpoints / budget))
            if part > self.passed[by]:
                self.passed[by] = part
                found.append(by)
        return found

    def shares(self, cpu_seconds: float, env_steps: int) -> list[float]:
        """Of each budget, what is used; above 1 where it is used up."""
        used = {"cpu": cpu_seconds, "steps": env_steps}
        return [used[by] / budget for by, budget in self.budgets.items()]

    def is_over(self, cpu_seconds: float, env_steps: int) -> bool:
        return min(self.shares(cpu_seconds, env_steps)) >= 1


class Watch:
    """Follows one run: counts, tests what it would return at each checkpoint, and says when it ends.

    Args:
        job: as in `opponent_peers.py`.
        cpu_seconds: a meter; what it shows now is the run's zero.

    Whoever trains counts `training_env_steps` and `evaluation_env_steps`, and calls `look` as often as it can.
    """

    def __init__(self, job: Mapping[str, Any], cpu_seconds: Callable[[], float] = own_cpu_seconds) -> None:
        self.job, self.meter = job, cpu_seconds
        self.clock = CheckpointClock(job["cpu_budget"], job["step_budget"], job["checkpoints"])
        self.training_env_steps = self.evaluation_env_steps = 0
        self.curve: list[dict[str, Any]] = []
        self.reached: dict[str, Any] | None = None
        self.over = False
        self.begun, self.not_counted = cpu_seconds(), 0.0

    @property
    def cpu_seconds(self) -> float:
        return self.meter() - self.begun - self.not_counted

    @property
    def env_steps(self) -> int:
        return self.training_env_steps + self.evaluation_env_steps

    @property
    def share(self) -> float:
        """Of the budget that is used up first: 0 at the beginning, 1 from where it is used up."""
        return min(1.0, max(self.clock.shares(self.cpu_seconds, self.env_steps)))

    def used(self) -> dict[str, Any]:
        return {
            "cpu_seconds": round(self.cpu_seconds, 2),
            "env_steps": self.env_steps,
            "training_env_steps": self.training_env_steps,
            "evaluation_env_steps": self.evaluation_env_steps,
        }

    def look(self, player: Callable[[], Player]) -> bool:
        """Test `player()`, what the run would return now, if a checkpoint is due. True: the run ends here."""
        cpu_seconds, env_steps = self.cpu_seconds, self.env_steps
        due = self.clock.due(cpu_seconds, env_steps)
        if due:
            used, play = self.used(), player()
            score = self.test(play, len(self.curve))
            self.curve += [{**used, "score": score, "by": by} for by in due]
            target = self.job["target"]
            if target is not None and score >= target:
                second = self.test(play, SECOND + len(self.curve))
                if second >= target:
                    self.reached = {**used, "score": score, "second_score": second}
        self.over = self.reached is not None or self.clock.is_over(cpu_seconds, env_steps)
        return self.over

    def test(self, play: Player, number: int) -> float:
        """Mean return of fresh episodes. Neither its CPU seconds, all of this process, nor its steps are counted."""
        begun = time.process_time()
        score = round(float(play(test_seeds(self.job["seed"], number, self.job["test_episodes"]))), 2)
        self.not_counted += time.process_time() - begun
        return score

    def line(self, player: Callable[[], Player], settings: Mapping[str, Any]) -> dict[str, Any]:
        """The result line of a run that has ended, all but the versions."""
        used = self.used()
        score = self.reached["second_score"] if self.reached else self.test(player(), FINAL)
        return {
            "key": self.job.get("key"),
            "curve": self.curve,
            "final": {"score": score, "cpu_seconds": used["cpu_seconds"], "env_steps": used["env_steps"]},
            "reached": self.reached,
            **used,
            "settings": {k: round(v, 8) if isinstance(v, float) else v for k, v in settings.items()},
        }
