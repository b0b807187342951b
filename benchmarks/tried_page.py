"""Tables of docs/lab/evolution.md: choice of the best member, effects of mutations, and every development run."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from evolution_page import WORDS, in_seconds
from operators_page import choice_rows, operator_rows
from runner import RESULTS, read_lines

# Arms of development that have gone, or meant something else then.
ONCE = {
    "norm": "scales of observations and rewards that are found, fixed population",
    "norm-race": "the same, race of eight, rates that follow the divergence",
    "norm-race-4": "the same with four members: what became ours",
    "adaptive-race": "race of eight, rates that follow the divergence",
    "adaptive-halving": "successive halving of eight, rates that follow the divergence",
    "halving-training": "successive halving of eight by training returns",
    "widths-32-128": "founders of 32 to 128 units, drawn",
    "widths-32-64": "founders of 32 to 64 units, drawn",
    "rate-sqrt": "rates that move by the square root of aim / divergence, fourfold at most, as all down to epochs-5",
    "rate-sqrt-two": "two members",
    "rate-sqrt-one": "one member",
    "rate-sqrt-4096": "generations of 4,096 steps",
    "rate-sqrt-2048-early": "generations of 2,048 steps, race from the first on",
    "kl-0.04-two": "divergence of 0.04 aimed at, two members",
    "kl-0.04-4096": "divergence of 0.04, generations of 4,096 steps",
    "kl-0.04-4096-two": "the same, two members",
    "kl-0.1-4096-two": "divergence of 0.1, generations of 4,096 steps, two members",
    "constant-two": "constant rate of 0.001, minibatches of 128, two members, short generations",
    "constant-two-tenth": "the same with rewards times 0.1 in place of a running scale",
    "staged-best": "short generations, all by two episodes and the best by six more",
    "staged-best-two": "the same, two members",
    "staged-best-two-128": "the same, two members, minibatches of 128",
    "half-pace-two": "the same, two members, generations that grow by half",
    "wide-staged-best": "the same with random search's draws, constant rates and a race",
    "wide-staged-best-two": "the same, two members",
    "random-short": "random search with short generations",
    "staged": "short generations, contested members by six more, rates that begin apart: what became ours",
    "staged-two": "the same, two members",
    "staged-two-narrow-rates": "the same, two members, rates that begin alike",
    "epochs-5": "five epochs",
    "epochs-5-kl-0.02": "five epochs, divergence of 0.02",
    "epochs-5-kl-0.03": "five epochs, divergence of 0.03",
    "race-from-0.01": "race from a hundredth of the budget on",
    "race-from-0": "race from the first generation on: what became ours",
    "spread-kl": "divergences aimed at that differ between members",
    "screen-4": "four episodes decide who plays the others",
    "spread-kl-screen-4": "both",
    "dqn-staged": "evaluation in two stages in place of training returns",
    "dqn-staged-short": "the same with short generations",
    "dqn-stages-of-4": "short generations, four episodes at a time, half a standard error: what became the preset",
    "stages-of-4": "four episodes at a time, half a standard error: what became ours",
}


def development_rows() -> list[str]:
    """Every run on the way here, in the order of the commits."""
    lines = read_lines(RESULTS / "evolution-development.jsonl")
    rows = [
        "### Development runs",
        "",
        "| environment, algorithm | start | arm | commit | CPU seconds to the target | thousands of steps |",
        "|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        key = line["key"]
        groups[key["pair"], key["start"], key["arm"], key["commit"]].append(line)
    for (pair, start, name, commit), runs_of in groups.items():
        arm = f"{name}: {ONCE[name]}" if name in ONCE else name
        found = [line["reached"] for line in runs_of]
        seconds = ", ".join(in_seconds(each["cpu_seconds"]) if each else "not reached" for each in found)
        steps = ", ".join(f"{each['env_steps'] / 1000:.0f}" if each else "-" for each in found)
        rows.append(
            f"| {pair.replace(':', ', ')} | {WORDS.get(start, start)} | {arm} | {commit} | {seconds} | {steps} |"
        )
    return [] if not lines else [
        *rows, "",
        "Every development run of `evolution.py` on seeds 1000 to 1003, including the worse arms. `+` marks",
        "uncommitted changes. Times of commits before 6ee94d8 are rounded up to twelfths of a budget.", "",
    ]  # fmt: skip


def rows() -> list[str]:
    return ["", *choice_rows(), *operator_rows(), *development_rows()]
