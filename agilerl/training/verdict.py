"""Train fresh seeds by the schedule of a run's winner, by its final constants and by the founder's values."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agilerl.config import Manifest, apply_overrides
from agilerl.errors import ConfigError
from agilerl.hostile import read_json
from agilerl.report.records import closing_test
from agilerl.report.schedule import WinnerSchedule, schedule_of
from agilerl.report.verdict import ARMS, FILE, Verdict
from agilerl.runs.directory import RunDirectory
from agilerl.runs.signals import StopSignals
from agilerl.training.manifest.device import choose_device, count_gpus, device_of
from agilerl.training.seeds import SeedJob, train_seed
from agilerl.workers.processes import Ended, Processes, count_of

FOLDER = "verdict"
DEFAULT_SEEDS = 5


@dataclass(frozen=True)
class Arms:
    """Runs of a verdict, in RUN/verdict/<arm>/seed-<n>.

    Attributes:
        path: of the evolved run. manifests: by arm, without seeds. seeds: of each arm. episodes: of each score.
    """

    path: Path
    manifests: Mapping[str, Manifest]
    seeds: tuple[int, ...]
    episodes: int
    env_steps: int

    @classmethod
    def of(cls, path: str | Path, seeds: Sequence[int] | None = None, episodes: int = 100) -> Arms:
        """Return the runs that a verdict about the run at `path` needs.

        seeds: None takes the first five that are not the run's own.

        Raises:
            ConfigError: the run's own seed, other settings than those of an earlier verdict, or an environment that was
                passed as an object. RunError: see `report.schedule.schedule_of`.
        """
        folder, schedule = Path(path), schedule_of(path)
        if RunDirectory.open(path).facts().get("env_given"):
            raise ConfigError(
                f"{path} was trained in an environment that was handed over, which a command cannot make. "
                "fix: agilerl.train(env, schedule=FILE) in Python, with that environment."
            )
        run_seed = int(schedule.source["seed"])
        if seeds is None:
            seeds = [seed for seed in range(DEFAULT_SEEDS + 1) if seed != run_seed][:DEFAULT_SEEDS]
        if run_seed in seeds:
            first, last = run_seed + 1, run_seed + len(seeds)
            raise ConfigError(
                f"seed {run_seed} is that of {path}, whose winner was chosen by it: a verdict needs fresh seeds. "
                f"fix: --seeds {first}{'' if last == first else f'-{last}'}."
            )
        arms = cls(folder, _manifests(schedule), tuple(seeds), episodes, schedule.env_steps)
        arms.check_earlier()
        return arms

    def run_path(self, arm: str, seed: int) -> Path:
        """The run directory of a seed."""
        return self.path / FOLDER / arm / f"seed-{seed}"

    def hashes(self) -> dict[str, str]:
        """Hash of each arm's settings."""
        return {arm: manifest.hash() for arm, manifest in self.manifests.items()}

    def check_earlier(self) -> None:
        """Raise ConfigError if the runs that exist were trained with other settings."""
        file = self.path / FILE
        if not file.is_file() or not (self.path / FOLDER).is_dir():
            return
        if read_json(file).get("manifests") != self.hashes():
            raise ConfigError(
                f"{self.path / FOLDER} holds runs with other settings: the run has another winner since. "
                f"fix: move {self.path / FOLDER} and {file} away."
            )

    def verdict(self) -> Verdict:
        """Return the verdict by the runs that have a score over `episodes` episodes."""
        scores: dict[str, dict[int, float]] = {arm: {} for arm in ARMS}
        missing = []
        for arm, seed in ((arm, seed) for arm in ARMS for seed in self.seeds):
            score = self._score(arm, seed)
            if score is None:
                missing.append((arm, seed))
            else:
                scores[arm][seed] = score
        return Verdict(scores, self.episodes, self.env_steps, tuple(missing))

    def _score(self, arm: str, seed: int) -> float | None:
        file = self.run_path(arm, seed) / "run.json"
        facts = read_json(file) if file.is_file() else {}
        test = closing_test(facts.get("result") or {}) if facts.get("status") == "done" else None
        return None if test is None or len(test["returns"]) != self.episodes else float(test["mean"])

    def write(self) -> Verdict:
        """Write RUN/verdict.json; return what it holds."""
        verdict = self.verdict()
        verdict.write(self.path, seeds=list(self.seeds), manifests=self.hashes())
        return verdict

    def jobs(self, device: str = "auto", imports: Sequence[str] = ()) -> dict[str, SeedJob]:
        """Return the runs without a score, by their names; all ways of a seed before the next seed."""
        chosen, gpus = choose_device(device, self.manifests["schedule"]).name, count_gpus()
        jobs: dict[str, SeedJob] = {}
        for seed in self.seeds:
            for arm in ARMS:
                if self._score(arm, seed) is None:
                    jobs[f"{seed} {arm}"] = SeedJob(
                        self.run_path(arm, seed),
                        apply_overrides(self.manifests[arm], {"training.seed": seed}, "--seeds"),
                        device=device_of(len(jobs), chosen, gpus),
                        imports=tuple(imports),
                        argv=tuple(sys.argv),
                        test_episodes=self.episodes,
                    )
        return jobs


@dataclass(frozen=True)
class ArmsResult:
    """How the runs ended.

    Attributes:
        verdict: by what has a score. ends: by name, of the runs that were trained now. signal: that stopped them.
    """

    verdict: Verdict
    ends: Mapping[str, Ended]
    signal: int | None

    @property
    def failed(self) -> dict[str, Ended]:
        """The runs that ended with an error."""
        return {} if self.signal is not None else {name: end for name, end in self.ends.items() if end.error}


def train_arms(
    arms: Arms,
    workers: int | str,
    table: Any,
    prepare: Callable[[], None] | None = None,
    *,
    device: str = "auto",
    imports: Sequence[str] = (),
) -> ArmsResult:
    """Train what is left in `workers` processes, "auto" for one per core, and write verdict.json after each run.

    Args:
        table: shows the runs; see `telemetry.side_by_side`. prepare: imports a user's code in every process.
    """
    jobs = arms.jobs(device, imports)
    processes = Processes[str](train_seed, count_of(workers, max(1, len(jobs))), prepare)
    arms.write()

    def ended(name: str, end: Ended) -> None:
        table.ended(name, end)
        arms.write()

    with StopSignals() as signals, contextlib.closing(table):
        table.start({name: job.path for name, job in jobs.items()}, processes.count)
        signals.is_running = True  # a signal is passed on to the processes
        ends = processes.run(jobs, table.message, ended, lambda: signals.received, table.draw)
    return ArmsResult(arms.write(), ends, signals.received)


def _manifests(schedule: WinnerSchedule) -> dict[str, Manifest]:
    """Return the settings of each arm: one agent, the whole budget, whatever it scores on the way."""
    of_arms = {"schedule": schedule.scheduled(), "constants": schedule.constants(), "founder": schedule.unchanged()}
    return {
        arm: apply_overrides(manifest, {"training.target_score": None, "training.seed": 0}, "verdict")
        for arm, manifest in of_arms.items()
    }
