"""Output of the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agilerl.algorithms import find_algorithm
from agilerl.api import Run
from agilerl.core.texts import count, number
from agilerl.runs.directory import RunDirectory
from agilerl.runs.lock import status_of
from agilerl.runs.names import way_on
from agilerl.telemetry.console import clock
from agilerl.telemetry.evaluation import Evaluation
from agilerl.views.report.page import REPORT
from agilerl.views.report.summary import measure_of


def closing_lines(run: Run, evaluation: Evaluation | None) -> list[str]:
    """Score, cost, path, report, and how to load the run (or how to resume a stopped one)."""
    result = run.result
    measure = measure_of(find_algorithm(run.manifest.algorithm.name))
    of = f" ({measure}, test split)" if measure else ""
    score = f"best {number(result.get('best_fitness'))}{of}" + (f"  ({evaluation})" if evaluation else "")
    seconds, steps = float(result["seconds"]), int(result["env_steps_population"])
    rate = count(steps / seconds) if seconds > 0 else "-"
    cost = f"{count(steps)} {run.manifest.steps} ({count(result['env_steps_member'])} per member)"
    unit = run.manifest.steps.removeprefix("env ")
    evaluated = count(result.get("evaluation_env_steps") or 0)
    is_there = run.path is not None and (run.path / REPORT).is_file()
    lines = [
        f"{'stopped' if run.interrupted else 'done'}  {score}",
        f"cost  {cost}, {evaluated} for evaluation   {clock(seconds)}   {rate} {unit}/s   stop: {result['stopped']}",
        f"path  {run.path}",
    ]
    if run.failed_saves and not run.is_saved:
        lines.append("saved  best/ alone: no checkpoint could be written, so that this run cannot be resumed")
    elif run.failed_saves:
        lines.append(f"saved  {run.failed_saves} of its checkpoints could not be written")
    if is_there and run.path is not None:
        lines.append(f"report  {run.path / REPORT}")
    if run.interrupted and run.path is not None:
        return [*lines, f"resume  {run.command('resume')}"]
    return [*lines, f"load  agilerl.load({json.dumps(str(run.path), ensure_ascii=False)})"]


def closing_facts(run: Run, evaluation: Evaluation | None) -> dict[str, Any]:
    """The same as data: where the run is, how it ended, its score and its cost."""
    status = "interrupted" if run.interrupted else "done"
    way = run.command("resume") if run.interrupted and run.path is not None else None
    return {
        "path": None if run.path is None else str(run.path),
        "status": status,
        "env_id": run.manifest.environment.name,
        "algo": run.manifest.algorithm.name,
        "seed": run.manifest.training.seed,
        "target": run.manifest.training.target_score,
        "evaluation": None if evaluation is None else evaluation.as_dict(),
        "random_play": None if run.random_play is None else run.random_play.as_dict(),
        "result": run.result,
        "failed_saves": run.failed_saves,
        "resume": way,
    }


def unfinished_line(path: Path) -> str | None:
    """A note that a run is unfinished, with the command that resumes it; None for a finished run."""
    facts = RunDirectory.open(path).facts()
    status = status_of(path, facts)
    if status == "done":
        return None
    if status == "running":
        return f"note: {path} is not finished, it still trains. This scores its best agent so far."
    return f"note: {path} is not finished ({status}). This scores its best agent so far. fix: {way_on(path, facts)}"


def evaluation_lines(run: Run, evaluation: Evaluation) -> list[str]:
    """The score as a small table."""
    low, high = evaluation.ci95
    digits = ".2f" if measure_of(find_algorithm(run.manifest.algorithm.name)) is None else ".4g"  # margins are small
    target = run.manifest.training.target_score
    rows = [
        f"{run.manifest.algorithm.name} on {run.manifest.environment.name}   {len(evaluation.returns)} {evaluation.of}",
        f"mean    {evaluation.mean:10{digits}}   95% CI {low:{digits}}..{high:{digits}}",
        f"iqm     {evaluation.iqm:10{digits}}",
        f"std     {evaluation.std:10{digits}}   min {min(evaluation.returns):{digits}}   "
        f"max {max(evaluation.returns):{digits}}",
    ]
    if target is not None:
        rows.append(f"target  {target:10.2f}   {'reached' if evaluation.mean >= target else 'not reached'} by the mean")
    if run.random_play is not None and run.random_play.score is not None:
        verdict = run.random_play.verdict(evaluation.mean, evaluation.error, evaluation.returns)
        rows.append(f"random  {run.random_play.score.mean:10.2f}   {BESIDE[verdict]}")
    return rows


BESIDE = {"better": "the agent is better", "no better": "the agent is no better", "worse": "the agent is worse",
          "unclear": "too few episodes to compare", None: ""}  # fmt: skip
