"""What the commands print."""

from __future__ import annotations

from agilerl.algorithms import NOT_YET, available, find_algorithm
from agilerl.algorithms.declared import hyperparameters
from agilerl.api import Run
from agilerl.config import preset_for, preset_names
from agilerl.errors import ConfigError, unknown_name, warn_once
from agilerl.runs.directory import RunDirectory
from agilerl.telemetry import Evaluation
from agilerl.telemetry.console import clock, count, number


def score_best(run: Run, episodes: int) -> Evaluation | None:
    """Score the best agent on fresh episodes and note the result in run.json."""
    if run.best is None or episodes < 1:
        return None
    evaluation: Evaluation = run.best.evaluate(episodes=episodes)
    if run.path is not None:
        try:
            RunDirectory(run.path).update(result={"test": evaluation.as_dict()})
        except OSError as error:  # the score is there to be printed all the same
            warn_once("score", f"the score could not be written to {run.path} ({error.strerror}).")
    return evaluation


def closing_lines(run: Run, evaluation: Evaluation | None) -> list[str]:
    """Four lines: the score, the cost, the place, how to load it (or, of a stopped run, how to go on)."""
    result = run.result
    score = f"best {number(result.get('best_fitness'))}" + (f"  ({evaluation})" if evaluation else "")
    seconds, steps = float(result["seconds"]), int(result["env_steps_population"])
    rate = count(steps / seconds) if seconds > 0 else "-"
    return [
        f"{'stopped' if run.interrupted else 'done'}  {score}",
        f"cost  {count(steps)} env steps ({count(result['env_steps_member'])} per member)   "
        f"{clock(seconds)}   {rate} steps/s   stop: {result['stopped']}",
        f"path  {run.path}",
        f"resume  agilerl resume {run.path}" if run.interrupted else f'load  agilerl.load("{run.path}")',
    ]


def evaluation_lines(run: Run, evaluation: Evaluation) -> list[str]:
    """The score as a small table."""
    low, high = evaluation.ci95
    target = run.manifest.training.target_score
    rows = [
        f"{run.manifest.algorithm.name} on {run.manifest.environment.name}   {len(evaluation.returns)} episodes",
        f"mean    {evaluation.mean:10.2f}   95% CI {low:.2f}..{high:.2f}",
        f"iqm     {evaluation.iqm:10.2f}",
        f"std     {evaluation.std:10.2f}   min {min(evaluation.returns):.2f}   max {max(evaluation.returns):.2f}",
    ]
    if target is not None:
        rows.append(f"target  {target:10.2f}   {'reached' if evaluation.mean >= target else 'not reached'} by the mean")
    return rows


def listing(what: str) -> list[str]:
    """One line per algorithm, environment or preset."""
    makers = {"algos": _algorithms, "envs": _environments, "presets": _presets}
    if what not in makers:
        raise ConfigError(unknown_name("list", what, makers))
    return makers[what]()


def _algorithms() -> list[str]:
    lines = [f"{name:<14}{', '.join(hyperparameters(find_algorithm(name)))}" for name in available()]
    return [*lines, *(f"{name:<14}not in this version yet" for name in NOT_YET)]


def _presets() -> list[str]:
    lines = []
    for name in preset_names():
        preset = preset_for(name)
        training = preset.training
        budget = f"{training.pop_size} members x {count(training.max_steps)} env steps"
        lines.append(f"{name:<26}{preset.algorithm.name:<12}{budget}   target {number(training.target_score)}")
    return lines


def _environments() -> list[str]:
    import gymnasium

    presets = set(preset_names())
    known = sorted(k for k in gymnasium.registry if not k.startswith(("phys2d/", "tabular/", "GymV")))
    return [f"{name}{'   preset' if name in presets else ''}" for name in known]
