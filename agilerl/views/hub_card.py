"""The model card of a run on the Hub: its metadata, score, hyperparameters and how to load it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from agilerl.core.texts import count
from agilerl.runs.records import RunRecords
from agilerl.telemetry.console import clock, how_it_ended
from agilerl.telemetry.evaluation import interval
from agilerl.views.report.text import tidy

TASK, METRIC = "reinforcement-learning", "mean_reward"
MAX_ROWS = 20  # of the table of hyperparameters


@dataclass(frozen=True)
class CardFacts:
    """Facts of a card that are not in the records of a run.

    Attributes:
        repo: "user/name". licence: an identifier such as "mit"; None if the user names none.
        film: file name in best/, None without. imports: names of the user's modules that a reader needs as well.
        has_loader: whether policy.py is there. steps: unit of a step.
    """

    repo: str
    licence: str | None = None
    film: str | None = None
    imports: Sequence[str] = ()
    has_loader: bool = True
    steps: str = "env steps"


def card(run: RunRecords, facts: CardFacts) -> str:
    """README.md of the repository: YAML metadata as the Hub reads it, then text."""
    parts = [
        _metadata(run, facts),
        f"# {run.algo} on {run.env_id}",
        _summary(run, facts),
        *([f"![An episode of the agent](best/{facts.film})"] if facts.film else []),
        "## Score",
        "\n".join(_scores(run)),
        "## Load it",
        "\n\n".join(_loading(run, facts)),
        "## Hyperparameters",
        "\n".join(_hyperparameters(run)),
        "## Training",
        "\n".join(_training(run, facts)),
    ]
    return "\n\n".join(parts) + "\n"


def metadata(run: RunRecords, licence: str | None = None) -> dict[str, Any]:
    """The card's metadata in the Hub's format; the score is that of the final evaluation, omitted without one."""
    content: dict[str, Any] = {} if licence is None else {"license": licence}
    content |= {"library_name": "agilerl", "pipeline_tag": TASK, "tags": [TASK, run.algo, run.env_id]}
    if run.test is not None:
        metric = {"type": METRIC, "value": mean_reward(run.test), "name": METRIC, "verified": False}
        result = {
            "task": {"type": TASK, "name": TASK},
            "dataset": {"name": run.env_id, "type": run.env_id},
            "metrics": [metric],
        }
        content["model-index"] = [{"name": run.algo, "results": [result]}]
    return content


def mean_reward(test: Mapping[str, Any]) -> str:
    """ "mean +/- std" of a final evaluation; only the mean for a single episode."""
    std = test.get("std")
    return f"{test['mean']:.2f}" + (f" +/- {std:.2f}" if isinstance(std, int | float) else "")


def _metadata(run: RunRecords, facts: CardFacts) -> str:
    text = yaml.safe_dump(metadata(run, facts.licence), sort_keys=False, allow_unicode=True)
    return f"---\n{text}---"


def _summary(run: RunRecords, facts: CardFacts) -> str:
    members, env = run.facts.get("population"), run.setting("environment.kwargs") or {}
    kwargs = f" ({', '.join(f'{name}={value}' for name, value in env.items())})" if env else ""
    population = "a population"
    if isinstance(members, int):
        population += f" of {members} {'member' if members == 1 else 'members'}"
    evolved = "whose hyperparameters and networks evolved while it trained"
    if run.facts.get("evolution") is False:
        evolved = "without evolution"
    return (
        f"The best agent of {population}, {evolved}: {run.algo} in {run.env_id}{kwargs}, trained with agilerl. "
        f"It is the state of a run that {_ended(run)}."
    )


def _ended(run: RunRecords) -> str:
    stopped = run.result.get("stopped")
    return how_it_ended(stopped) if run.status == "done" else f"is not finished ({run.status})"


def _scores(run: RunRecords) -> Iterator[str]:
    if run.test is None:
        yield "The run has no final evaluation: this agent was never scored on held-out episodes."
        return
    yield "| | mean return | 95 % interval | episodes |"
    yield "|---|---|---|---|"
    mean, low, high = interval(run.test["mean"], *run.test["ci95"])
    yield f"| this agent | {mean} | {low} to {high} | {len(run.test['returns'])} |"
    score = None if run.random_play is None else run.random_play.score
    if score is not None:
        mean, low, high = interval(score.mean, *score.ci95)
        yield f"| random play | {mean} | {low} to {high} | {len(score.returns)} |"
    yield ""
    yield (
        "Returns of whole held-out episodes, played greedily after training; intervals are bootstrap intervals of the "
        "mean."
    )


def _loading(run: RunRecords, facts: CardFacts) -> Iterator[str]:
    needs_env = bool(run.facts.get("env_given"))
    yield "\n".join([
        "```python",
        "import agilerl",
        f'run = agilerl.load("hf://{facts.repo}")',
        f"print(run.best.evaluate({'env=env, ' if needs_env else ''}episodes=100))",
        "```",
    ])  # fmt: skip
    if needs_env:
        yield "The run was trained in an environment object; `env` is one of the same kind."
    elif not facts.imports:
        yield f"On the command line: `agilerl evaluate hf://{facts.repo}`."
    if facts.imports:
        names = " and ".join(f"`{name}`" for name in facts.imports)
        yield f"It needs code that is not part of this repository: {names}, imported first (`--import`)."
    if facts.has_loader:
        yield "`best/policy.py` loads the policy in plain PyTorch, without agilerl."


def _hyperparameters(run: RunRecords) -> Iterator[str]:
    """The winner's values, and those of its ancestors before, wherever one changed."""
    schedule = winner_schedule(run)
    names = sorted({name for _, _, values in schedule for name in values})
    if not names:
        yield "They are in `config.yaml`."
        return
    yield "Of the best agent and its ancestors; a row wherever one changed."
    yield ""
    yield f"| generation | env steps | {' | '.join(names)} |"
    yield f"|---|---|{'---|' * len(names)}"
    for generation, env_steps, values in schedule[-MAX_ROWS:]:
        cells = (tidy(values[name]) if name in values else "" for name in names)
        yield f"| {generation} | {env_steps} | {' | '.join(cells)} |"
    if len(schedule) > MAX_ROWS:
        yield ""
        yield f"The {len(schedule) - MAX_ROWS} rows before are in `metrics.csv`."
    if run.winner is not None:
        yield ""
        yield f"Its network is `{run.winner.network}` (encoder, latent, head)."


def winner_schedule(run: RunRecords) -> list[tuple[int, int, Mapping[str, float]]]:
    """(generation from 1, env steps at its end, hyperparameters) of the winner's line, wherever they changed."""
    rows: list[tuple[int, int, Mapping[str, float]]] = []
    for member in run.winner_rows:
        if not rows or rows[-1][2] != member.hyperparameters:
            rows.append((member.number, member.env_steps, member.hyperparameters))
    return rows


def _training(run: RunRecords, facts: CardFacts) -> Iterator[str]:
    versions = run.facts.get("versions") or {}
    evaluated = count(run.evaluation_env_steps)
    yield f"- {count(run.env_steps)} {facts.steps} of all members together, {evaluated} to evaluate"
    yield f"- {len(run.generations)} generations, seed {run.facts.get('seed')}, {clock(run.seconds)}"
    if versions:
        yield f"- {', '.join(f'{name} {version}' for name, version in versions.items())}"
    yield "- settings: `config.yaml`; `agilerl train --config config.yaml` repeats the run"
    yield "- lineage: `evolution.jsonl` has every birth, `metrics.csv` every member and generation, `report.html` both"
