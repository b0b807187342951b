"""Documentation generated from the code: replaces `<!-- name: argument -->` in a page when the site is built."""

from __future__ import annotations

import inspect
import re
import types
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from agilerl.algorithms import find_algorithm
from agilerl.algorithms.base.declared import hyperparameters as declared
from agilerl.config.load import section_fields
from agilerl.config.schema import Algorithm, Manifest
from agilerl.options import LoopOptions, OffPolicyOptions
from agilerl.ranges import describe
from agilerl.training.manifest.build import OTHER_NAMES

BENCHMARKS = Path(__file__).with_name("benchmarks.md")
MARK = re.compile(r"<!-- (hyperparameters|measured|manifest|commands)(?:: ([^>]*?))? -->")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marks of a page; mkdocs calls this for every page."""
    makers = {"hyperparameters": hyperparameters, "measured": measured, "manifest": manifest, "commands": commands}
    return MARK.sub(lambda match: makers[match[1]](match[2] or ""), markdown)


def hyperparameters(algo: str) -> str:
    """Table of an algorithm's hyperparameters: range, both defaults, and the reason for a difference."""
    rows = [
        "| name | values | default of the class | default of manifests | why they differ |",
        "|---|---|---|---|---|",
    ]
    for name, each in declared(find_algorithm(algo)).items():
        fields = section_fields(Algorithm, algo)
        values = describe(fields[name].annotation, fields[name].metadata)
        rows.append(f"| `{name}` | {values} | `{each.published}` | `{each.manifest}` | {each.because} |")
    return "\n".join(rows)


def measured(name: str) -> str:
    """Rows of docs/benchmarks.md for an algorithm."""
    lines = BENCHMARKS.read_text(encoding="utf-8").splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith("| environment, algorithm |"))
    rows = [line for line in lines[start + 2 :] if line.startswith("| ")]
    matching = [line for line in rows if re.search(rf", {re.escape(name)} \|", line)]
    if not matching:
        raise ValueError(f"docs/benchmarks.md has no row of {name}")
    return "\n".join([*lines[start : start + 2], *matching])


def manifest(_: str) -> str:
    """Every key of a manifest, except those of the algorithms."""
    parts = []
    for name, section in Manifest.model_fields.items():
        kind = section.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not Algorithm:
            parts += [f"\n## `{name}`\n", (kind.__doc__ or "").strip(), "", *_keys(kind, "")]
    return "\n".join(parts)


def _keys(model: type[BaseModel], prefix: str) -> list[str]:
    rows = [] if prefix else ["| key | values | default | meaning |", "|---|---|---|---|"]
    meanings = _meanings(model)
    for name, field in model.model_fields.items():
        kind = field.annotation
        choices = get_args(kind) if isinstance(kind, types.UnionType) else (kind,)  # a section, or null
        section = next((each for each in choices if _is_section(each)), None)
        if section is not None:
            rows += _keys(section, f"{prefix}{name}.")
        else:
            default, values = field.get_default(call_default_factory=True), describe(kind, field.metadata)
            rows.append(f"| `{prefix}{name}` | {values} | `{default}` | {meanings.get(name, '')} |")
    return rows


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """Meaning of each key: the comment behind it, or the documentation of the loop option."""
    meanings: dict[str, str] = {}
    for cls in reversed([each for each in model.__mro__ if each.__module__ == model.__module__]):
        meanings |= dict(re.findall(r"^    (\w+): .*?  # (.+)$", inspect.getsource(cls), re.M))
    for options in (LoopOptions, OffPolicyOptions):
        text = " ".join((options.__doc__ or "").split("Attributes:")[1].split())
        entries = re.split(r" ?(?:(?<=\. )|^)(?=\w+(?:, \w+)*: )", text)
        for entry in filter(None, entries):
            names, _, meaning = entry.partition(": ")
            for name in names.split(", "):
                meanings.setdefault(OTHER_NAMES.get(name, name), meaning.strip())
    return meanings


def commands(_: str) -> str:
    """The text of `agilerl COMMAND --help` for every command."""
    import typer

    from agilerl.cli import app

    group: Any = typer.main.get_command(app)
    return "\n".join(_help(group, "agilerl"))


def _help(command: Any, path: str) -> list[str]:
    rows = []
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        if hasattr(inner, "commands"):
            rows += _help(inner, f"{path} {name}")
            continue
        rows += [f"\n## `{path} {name}`\n", (inner.help or "").strip(), "", "| argument | meaning |", "|---|---|"]
        for option in inner.params:
            flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
            is_option = option.param_type_name == "option"
            shown = flags if is_option else f"`{option.name.upper()}`"
            meaning = (getattr(option, "help", "") or "").replace("|", "\\|")
            rows.append(f"| {shown} | {meaning} |")
    return rows
