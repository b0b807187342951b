"""Statistics of a data set: rows, episodes, returns, coverage of actions and observations, missing arrays."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from agilerl.core.tree import Tree
from agilerl.data.dataset import Dataset

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
NAMES = ("least", "25%", "median", "75%", "most")
FIRST = ("env_id", "policy", "algo", "seed", "noise", "scores")  # metadata shown first, in this order
ELSEWHERE = (
    "versions",
    "command",
    "rows",
    "rewards",
    "observation_space",
    "action_space",
)  # shown separately, or in JSON
SHOWN = 32  # maximum number of choices or components to print
EDGE = 1e-3  # distance from the ends of a component's range that counts as at the end, relative to the range


def describe(data: Dataset) -> dict[str, Any]:
    """Describe a data set as JSON values.

    Returns:
        rows, left_out; episodes: count, terminated, cut, open (incomplete at the end of the data); returns, lengths:
        mean and quantiles of whole episodes, without an open one; rewards; actions: the share of each choice, or the
        range of each component; observations: the range of each component, by part; missing; about; source.
    """
    lengths, returns, ends = episodes(data)
    is_whole = ends != "open"
    return {
        "rows": len(data),
        "left_out": data.left_out,
        "episodes": {
            "count": len(ends),
            **{name: int((ends == name).sum()) for name in ("terminated", "cut", "open")},
        },
        "returns": spread(returns[is_whole]),
        "lengths": spread(lengths[is_whole]),
        "rewards": spread(data.reward),
        "actions": _actions(np.asarray(data.action), data),
        "observations": dict(_observations("", data.obs)),
        "missing": list(data.missing),
        "about": dict(data.about),
        "source": dict(data.source),
    }


def episodes(data: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (lengths [E], returns [E], ends [E]: "terminated", "cut" or "open") of the episodes, in order."""
    if not len(data):
        return np.zeros(0, np.int64), np.zeros(0), np.zeros(0, "<U10")
    last = np.flatnonzero(data.ended)
    last = last if len(last) and last[-1] == len(data) - 1 else np.append(last, len(data) - 1)
    ends = np.where(data.terminated[last], "terminated", np.where(data.ended[last], "cut", "open"))
    return np.diff(last, prepend=-1), data.returns(), ends


def spread(values: np.ndarray) -> dict[str, float] | None:
    """Mean and quantiles; None for an empty array."""
    values = np.asarray(values, np.float64)
    if not len(values):
        return None
    quantiles = dict(zip(NAMES, (float(q) for q in np.quantile(values, QUANTILES)), strict=True))
    return {"mean": float(values.mean()), **quantiles}


def _actions(action: np.ndarray, data: Dataset) -> dict[str, Any]:
    """Shares of discrete actions, per component; ranges of continuous ones."""
    columns = action.reshape(len(action), -1) if len(action) else action.reshape(0, 1)
    if action.dtype.kind not in "iub":
        return {"kind": "numbers", "components": _components(columns), "raw": data.is_stored}
    by_component = []
    for column in columns.T[:SHOWN]:
        choices, counts = np.unique(column, return_counts=True)
        shares = counts / max(1, len(column))
        pairs = sorted(zip(choices.tolist(), shares.tolist(), strict=True), key=lambda pair: -pair[1])[:SHOWN]
        by_component.append({str(choice): float(share) for choice, share in sorted(pairs)})
    return {"kind": "choices", "shares": by_component, "components": columns.shape[1]}


def _observations(name: str, obs: Tree) -> Iterator[tuple[str, Any]]:
    if isinstance(obs, Mapping):
        for key, part in obs.items():
            yield from _observations(f"{name}/{key}" if name else str(key), part)
    else:
        values = np.asarray(obs)
        flat = values.reshape(len(values), -1) if len(values) else values.reshape(0, 1)
        facts: dict[str, Any] = {"shape": list(values.shape[1:]), "dtype": str(values.dtype)}
        if flat.shape[1] <= SHOWN:
            facts["components"] = _components(flat)
        else:
            facts["all"] = _components(flat.reshape(-1, 1))[0]
        yield name or "obs", facts


def _components(columns: np.ndarray) -> list[dict[str, float]]:
    """Range, mean and standard deviation of every column [N, C], and the shares of values at the ends of its range."""
    components = []
    for column in np.asarray(columns, np.float64).T[:SHOWN]:
        if not len(column):
            continue
        least, most = float(column.min()), float(column.max())
        edge = EDGE * (most - least)
        ends = {"at_least": float((column <= least + edge).mean()), "at_most": float((column >= most - edge).mean())}
        components.append(
            {"least": least, "most": most, "mean": float(column.mean()), "std": float(column.std()), **ends}
        )
    return components


# -- as lines ---------------------------------------------------------------------------------------------------------


def lines(facts: Mapping[str, Any], name: str) -> Iterator[str]:
    """Format `describe` as text."""
    ends, about = facts["episodes"], facts["about"]
    yield f"{name}   {facts['rows']:,} rows, {ends['count']:,} episodes"
    keys = [key for key in FIRST if key in about] + [key for key in about if key not in (*FIRST, *ELSEWHERE)]
    yield f"from      {'; '.join(f'{key} {_short(about[key])}' for key in keys) if keys else 'not recorded'}"
    if "command" in about:
        again = Path(name).with_stem(f"{Path(name).stem}-again")  # the existing file is not overwritten
        yield f"command   {about['command']} --out {shlex.quote(str(again))}"
    yield (
        f"ends      {ends['terminated']:,} terminated, {ends['cut']:,} cut off"
        + (f", {ends['open']} incomplete at the end" if ends["open"] else "")
    )
    for key in ("returns", "lengths"):
        stats = facts[key]
        if stats is None:
            yield f"{key:<10}no whole episode"
            continue
        yield f"{key:<10}" + "   ".join(f"{name} {stats[name]:.4g}" for name in ("mean", *NAMES))
    yield from _action_lines(facts["actions"])
    for part, stats in facts["observations"].items():
        yield f"observed  {part}: {stats['dtype']} {stats['shape']}"
        yield from _component_lines(stats.get("components", [stats["all"]] if "all" in stats else []))
    lost = [f"steps without a successor, left out: {facts['left_out']}"] if facts["left_out"] else []
    lost += [f"no {name}" for name in facts["missing"]]
    lost += [f"rewards: {about['rewards']}"] if "rewards" in about else []
    yield f"missing   {'; '.join(lost) if lost else 'nothing'}"
    if "sha256" in facts["source"]:
        yield f"sha256    {facts['source']['sha256']}"


def _action_lines(actions: Mapping[str, Any]) -> Iterator[str]:
    if actions["kind"] == "choices":
        for shares in actions["shares"]:
            yield "actions   " + "   ".join(f"{choice}: {share:.1%}" for choice, share in shares.items())
        return
    yield "actions   numbers" + (" in [-1, 1], as agents store them" if actions["raw"] else "")
    yield from _component_lines(actions["components"])


def _component_lines(components: list[dict[str, float]]) -> Iterator[str]:
    for number, c in enumerate(components):
        constant = "   never changes" if c["least"] == c["most"] else ""
        yield (
            f"  {number:>3}     {c['least']:>10.4g} .. {c['most']:<10.4g} mean {c['mean']:>9.4g}   std {c['std']:>9.4g}"
            f"   at its ends {c['at_least']:.1%}, {c['at_most']:.1%}{constant}"
        )


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_short(part)}" for key, part in value.items())
    if isinstance(value, float):
        return f"{value:g}"
    return " ".join(str(value).split())
