"""Handle of a run: its agents, its records, and methods to inspect them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymnasium import spaces

from agilerl.algorithms import find_algorithm, worth_a_try
from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.config import Manifest
from agilerl.core import foreign
from agilerl.core.texts import count
from agilerl.errors import ConfigError, RunError
from agilerl.hpo.schemes import scheme_of
from agilerl.networks.ensemble import Ensemble
from agilerl.runs.directory import RunDirectory
from agilerl.runs.names import METRICS, command
from agilerl.runs.records import Member, final_evaluation
from agilerl.telemetry.console import clock
from agilerl.telemetry.evaluation import Baseline, Evaluation, interval
from agilerl.telemetry.record import Birth
from agilerl.telemetry.time_spent import TimeSpent
from agilerl.views.report import RunRecords, write_report
from agilerl.views.report.page import fitness_svg
from agilerl.views.report.summary import Ended, in_words, measure_of
from agilerl.views.report.text import tidy


@dataclass(frozen=True, repr=False)
class Run:
    """A finished, interrupted or loaded run.

    Attributes:
        best: the best agent (None if the run ended before it had one).
        population: all agents of the last generation; for a loaded run, those of its newest checkpoint, or only the
            best without one.
        history: fitness by generation, then member.
        lineage: every birth, founders first.
        path: the run directory, None if nothing was written.
        result: facts of the run: stopped, generations, env_steps_member, env_steps_population, seconds, ...
        manifest: the resolved configuration.
        interrupted: whether it was stopped before its end; continue with `agilerl resume`. signal: the signal received.
        random_play: score of uniformly random play; None in runs of earlier versions.
        before: for a language policy, its score on the report split before training; None if unknown.
        time: where the time went since the run was started or resumed; None if unknown.
        closing_episodes: for how many held-out episodes a budget in minutes has time left; None without one.
        imports: user modules imported on the command line. env_given: whether the environment was passed as an object
            without an id. failed_saves: generations whose checkpoint could not be written.
    """

    best: Any
    population: list[Any]
    history: list[list[float]]
    lineage: list[Birth]
    path: Path | None
    result: dict[str, Any]
    manifest: Manifest
    interrupted: bool = False
    signal: int | None = None
    random_play: Baseline | None = None
    imports: tuple[str, ...] = ()
    env_given: bool = False
    failed_saves: int = 0
    before: Evaluation | None = None
    time: TimeSpent | None = None
    closing_episodes: int | None = None

    def __repr__(self) -> str:
        """Four lines: name, scores, cost, and path."""
        name, env = self.manifest.algorithm.name, self.manifest.environment.name
        state = "interrupted" if self.interrupted else f"ended by {self.result.get('stopped', '?')}"
        steps, evaluated = self.result.get("env_steps_population"), self.result.get("evaluation_env_steps")
        cost = (
            f"{count(steps or 0)} {self.manifest.steps} ({count(self.result.get('env_steps_member') or 0)} per member)"
        )
        return "\n".join([
            f"{name} on {env}   {state}   {_many(len(self.population), 'member')}, "
            f"{_many(len(self.history), 'generation')}, "
            f"seed {self.manifest.training.seed}",
            f"best   {self._score()}",
            f"cost   {cost}, {count(evaluated or 0)} for evaluation   {clock(self.result.get('seconds') or 0.0)}",
            f"path   {self.path if self.path is not None else 'nothing was written (out=None)'}",
        ])  # fmt: skip

    def in_words(self) -> str:
        """One-paragraph summary: the outcome, the best hyperparameters, and what to try next."""
        test, training = final_evaluation(self._facts()), self.manifest.training
        scores = (self.result.get(name) for name in ("confirmed", "best_fitness"))
        score = test["mean"] if test is not None else next((value for value in scores if value is not None), None)
        manifest, measure = self.manifest, measure_of(find_algorithm(self.manifest.algorithm.name))
        ranges = {**manifest.mutation.rl_hp_selection, **manifest.evolution.restart_ranges}
        acts = find_algorithm(manifest.algorithm.name).experience.has_training_episodes
        return in_words(
            Ended(
                algo=self.manifest.algorithm.name,
                env=self.manifest.environment.name,
                steps=self.manifest.steps,
                go_on=self._go_on(),
                target=training.target_score,
                score=score,
                is_fitness=test is None and self.result.get("confirmed") is None,
                stopped=str(self.result.get("stopped")),
                made=int(self.result.get("env_steps_population") or 0),
                history=self.history,
                lineage=self.lineage,
                members=training.pop_size,
                best=None if self.best is None else self.best.index,
                together=_size_of_ensemble(self.best),
                values={} if self.best is None else self.best.hyperparameters(),
                ranges={name: (limits.min, limits.max) for name, limits in ranges.items()},
                seed=training.seed,
                error=0.0 if test is None else Evaluation.from_returns(test["returns"]).error,
                random_play=self.random_play,
                is_self_play=training.opponents is not None,
                updates=self.result.get("updates"),
                unchanged=bool(self.result.get("unchanged")),
                diverged=int(self.result.get("quarantined") or 0),
                from_replay=manifest.has_replay and acts,
                measure=measure,
                before=self.before,
                after=Evaluation.from_dict(test),
                time=self._time_in_words(),
                others=worth_a_try(
                    self.manifest.algorithm.name, isinstance(foreign.action_space(self.best), spaces.Box)
                ),
            )
        )

    def _time_in_words(self) -> str:
        return "" if self.time is None else self.time.in_words(bool(self.manifest.environment.of_workers))

    def command(self, verb: str, *arguments: str) -> str:
        """Return `agilerl VERB RUN ...`, quoted for a shell, with the imports of the run.

        Raises:
            RunError: the run has no directory.
        """
        return command(verb, self._folder("command"), *arguments, imports=self.imports)

    @property
    def is_saved(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self.path is not None and any((self.path / "checkpoints").glob("gen-*"))

    def _go_on(self) -> str:
        """Command that trains for twice the budget, or for twice the actual steps if whole rollouts exceeded it."""
        if self.path is None or not self.is_saved:
            return "more steps"
        training = self.manifest.training
        done = int(self.result.get("env_steps_member") or 0)
        is_shared = scheme_of(self.manifest.evolution.scheme).ends_members
        trained = -(-int(self.result.get("env_steps_population") or 0) // training.pop_size) if is_shared else done
        steps = 2 * max(training.max_steps, trained)
        if self.env_given:
            return f"agilerl.resume({str(self.path)!r}, steps={steps}, env=env)"
        resume_command = self.command("resume", "--steps", str(steps))
        if is_shared and done > training.max_steps:
            resume_command += f" ({count(steps * training.pop_size)} of all members together)"
        return resume_command

    def _score(self) -> str:
        test, best = final_evaluation(self._facts()), f"fitness {tidy(self.result.get('best_fitness'))}"
        if test is None:
            return f"{best}   (no final evaluation; run.best.evaluate() makes one)"
        mean, low, high = interval(test["mean"], *test["ci95"])
        many = f"{len(test['returns'])} {test.get('of', 'fresh episodes')}"
        return f"mean {mean}, 95% CI {low}..{high} over {many}   ({best} in the run)"

    def _facts(self) -> dict[str, Any]:
        """Result as in run.json; a final test made after the run is only there."""
        if self.path is None:
            return self.result
        try:
            return dict(RunDirectory(self.path).facts().get("result") or {})
        except RunError:
            return self.result

    def _repr_html_(self) -> str:
        """Notebook representation: the same facts, and fitness by generation."""
        return fitness_svg(self._records(), str(self))

    def _records(self) -> RunRecords:
        """In-memory records for a chart of fitness."""
        generations = [
            [Member(number, at, at, None, fitness, 0, "", "", fitness == max(row)) for at, fitness in enumerate(row)]
            for number, row in enumerate(self.history)
        ]
        return RunRecords.of(self.manifest.as_dict(), generations, self.lineage)

    def report(self, out: str | os.PathLike[str] | None = None) -> Path:
        """Write the run as one HTML page, by default to `report.html` in its directory; return its path.

        Raises:
            RunError: the run has no directory, or its files are damaged.
        """
        return write_report(self._folder("report"), out)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Plot fitness by generation as a matplotlib figure; saved to `path`, in the format of its suffix.

        Raises:
            ConfigError: matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise ConfigError('run.plot() needs matplotlib. fix: pip install "agilerl[plots]"') from None
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        generations = range(len(self.history))
        for number, row in enumerate(self.history):
            axes.plot([number] * len(row), row, ".", color="0.7", markersize=4)
        best = [max((f for f in row if f == f), default=float("nan")) for row in self.history]
        axes.plot(generations, best, color="#0b57d0", linewidth=2, label="best of each generation")
        target = self.manifest.training.target_score
        if target is not None:
            axes.axhline(target, color="#b3261e", linestyle="--", linewidth=1, label=f"target {tidy(target)}")
        axes.set(xlabel="generation", ylabel="fitness (mean return)")
        axes.set_title(f"{self.manifest.algorithm.name} on {self.manifest.environment.name}")
        axes.legend(loc="best", frameon=False)
        if path is not None:
            figure.savefig(path)
        return figure

    def frame(self) -> Any:
        """Return metrics.csv as a pandas frame: one row per member and generation, hyperparameters in `hp.<name>`.

        Raises:
            ConfigError: pandas is not installed. RunError: no directory, or no readable metrics.csv.
        """
        try:
            import pandas
        except ImportError:
            raise ConfigError("run.frame() needs pandas. fix: pip install pandas") from None
        path = self._folder("frame") / METRICS
        try:
            return pandas.read_csv(path)
        except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors
            reason = " ".join(str(error).split())
            raise RunError(f"{path} cannot be read ({reason}). fix: run.history, or the run's report.html.") from error

    def record(
        self,
        out: str | os.PathLike[str] | None = None,
        *,
        format: str | None = None,
        episodes: int = 1,
        seed: int | None = None,
        env: foreign.EnvLike = None,
    ) -> Path:
        """Film the best agent, by default into `best/rollout.webp` of the run; see `agilerl.views.report.film.record`.

        Args:
            env: required if the run's environment was passed as an object: a similar one with render_mode="rgb_array".
        """
        from agilerl.views.report.film import record  # may set process variables for headless drawing

        if self.best is None:
            raise RunError("the run has no best agent to film. fix: train on.")
        if self.best.learns_language:
            raise RunError("a language policy cannot be filmed. fix: run.best.evaluate().")
        environment = self.manifest.environment
        if env is None and self.best.environment is None:
            raise RunError(
                f"the run was trained in an environment that was handed over ({environment.name}). "
                'fix: run.record(env=...), made with render_mode="rgb_array".'
            )
        target = out if out is not None or self.path is None else self.path / "best" / f"rollout.{format or 'webp'}"
        if target is None:
            target = f"rollout.{format or 'webp'}"
        kwargs = dict(environment.kwargs)
        return record(
            self.best, environment.name, target, kwargs=kwargs, env=env, format=format, episodes=episodes, seed=seed
        )

    def _folder(self, what: str) -> Path:
        if self.path is None:
            raise RunError(f"run.{what}() reads the run's directory, and out=None wrote none. fix: train with out=DIR.")
        return self.path


def _size_of_ensemble(agent: Any) -> int:
    policy = agent.policy_module() if isinstance(agent, EvolvableAlgorithm) else None
    return len(policy.members) if isinstance(policy, Ensemble) else 1


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
