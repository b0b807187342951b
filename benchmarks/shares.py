"""Where the CPU seconds of a population go: environment, acting, learning, evaluation, evolution.

python benchmarks/shares.py [--setup ppo] [--seed 0]
python benchmarks/shares.py --setup maddpg_speaker_listener

Clocks are put around the calls that do each of them, in the set-up of `throughput.py`; one JSON line, appended to
results/shares.jsonl. The environment's share is that of training alone; evaluation steps environments as well.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections import defaultdict
from typing import Any

from runner import RESULTS, append_line, facts, package_commit
from throughput import ALL, ours

from agilerl.collect.acting import Acting
from agilerl.collect.evaluator import Evaluator
from agilerl.collect.replay import SharedReplay
from agilerl.collect.rollouts import OnPolicyGeneration
from agilerl.collect.updates import Updates
from agilerl.engine.learner import Learner
from agilerl.envs.lanes import SyncLanes
from agilerl.envs.pool import EnvPoolLanes
from agilerl.envs.simulators.team_fast import ParticleLanes
from agilerl.envs.teams import TeamLanes
from agilerl.hpo.evolution import TournamentEvolution

PARTS: dict[str, list[tuple[type, str]]] = {
    "evaluation": [(Evaluator, "population")],
    "evolution": [(TournamentEvolution, "next")],
    "learning": [(OnPolicyGeneration, "_learn"), (Updates, "learn")],
    "acting": [(OnPolicyGeneration, "_act"), (Learner, "explore"), (Acting, "_draw_ahead")],
    "storing": [(SharedReplay, "write")],
    "environment": [(lanes, "step") for lanes in (SyncLanes, EnvPoolLanes, ParticleLanes, TeamLanes)],
}


class Clock:
    """CPU seconds by part; a part inside of another one counts for the outer one alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._is_running = False

    def around(self, part: str, owner: type, name: str) -> None:
        """Put a clock around a method."""
        method = getattr(owner, name)

        @functools.wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._is_running:
                return method(*args, **kwargs)
            self._is_running, begun = True, time.process_time()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds[part] += time.process_time() - begun
                self._is_running = False

        setattr(owner, name, timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setup", choices=list(ALL), default="ppo")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    clock = Clock()
    for part, methods in PARTS.items():
        for owner, name in methods:
            clock.around(part, owner, name)
    result = ours(ALL[args.setup], False, args.seed)
    total = result["cpu_seconds"]
    shares = {part: round(seconds / total, 3) for part, seconds in clock.seconds.items()}
    shares["rest"] = round(1 - sum(shares.values()), 3)
    line = {"claim": "shares of CPU seconds", "setup": args.setup, "shares": shares, **result, "seed": args.seed,
            "commit": package_commit(), **facts()}  # fmt: skip
    append_line(RESULTS / "shares.jsonl", line)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
