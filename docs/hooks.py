"""Documentation generated from the code: replaces `<!-- name: argument -->` in a page when the site is built.

The built site also has every page as Markdown beside it (`speed.md`), a list of them
(`llms.txt`) and all of them in one file (`llms-full.txt`), for programs that read documentation.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel

from agilerl.algorithms import find_algorithm
from agilerl.algorithms.base.declared import hyperparameters as declared
from agilerl.config.keys import section_fields
from agilerl.config.meanings import meanings as meanings_of
from agilerl.config.schema import Algorithm, Manifest
from agilerl.core.ranges import describe

BENCHMARKS = Path(__file__).with_name("benchmarks.md")
MARK = re.compile(r"<!-- (hyperparameters|measured|manifest|commands)(?:: ([^>]*?))? -->")


REFERENCE = re.compile(r"^::: ([\w.]+)\n(?:    options: (\{.*\})\n)?", re.M)
_pages: dict[str, tuple[str, str]] = {}  # path below docs -> (title, Markdown) of the pages of this build


def on_page_markdown(markdown: str, page: Any = None, **_: Any) -> str:
    """Replace the marks of a page; mkdocs calls this for every page."""
    makers = {"hyperparameters": hyperparameters, "measured": measured, "manifest": manifest, "commands": commands}
    text = MARK.sub(lambda match: makers[match[1]](match[2] or ""), markdown)
    if page is not None:
        _pages[page.file.src_uri] = (str(page.title), text)
    return text


def on_nav(nav: Any, **_: Any) -> Any:
    """Remember the menu; mkdocs calls this once, before the pages."""
    _pages.clear()
    _menu[:] = nav.items
    return nav


def on_post_build(config: Any, **_: Any) -> None:
    """Write the Markdown of every page, and the lists; mkdocs calls this at the end."""
    site, texts = Path(config["site_dir"]), {name: with_reference(text) for name, (_, text) in _pages.items()}
    for name, text in texts.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (site / "llms.txt").write_text(listed(config["site_name"], config["site_description"], _menu), encoding="utf-8")
    whole = "\n\n".join(f"<!-- {name} -->\n\n{texts[name].strip()}" for name in in_order(_menu))
    (site / "llms-full.txt").write_text(f"{whole}\n", encoding="utf-8")


_menu: list[Any] = []


def in_order(items: Iterable[Any]) -> list[str]:
    """Paths of the pages below entries of the menu, in its order."""
    return [name for each in items for name in (in_order(each.children) if each.children else [each.file.src_uri])]


def listed(name: str, description: str, items: Iterable[Any]) -> str:
    """The list of llms.txt: a heading for each section of the menu, a line for each page."""
    lines, loose = (
        [f"# {name}", "", f"> {description}", "", "All pages in one file: [llms-full.txt](llms-full.txt)"],
        [],
    )
    for item in items:
        if not item.children:
            loose.append(_line(item.file.src_uri))
            continue
        lines += ["", f"## {item.title}", "", *(_line(path) for path in in_order([item]))]
    return "\n".join([*lines[:5], "", *loose, *lines[5:], ""])


def _line(path: str) -> str:
    title, text = _pages[path]
    return f"- [{title}]({path}): {first_sentence(text) or title}"


def first_sentence(markdown: str) -> str:
    """The first sentence of a page: of its first paragraph of plain text."""
    for paragraph in re.split(r"\n\s*\n", re.sub(r"```.*?```", "", markdown, flags=re.S)):
        text = " ".join(paragraph.split())
        if text and not text.startswith(("#", "<", "|", "!", "*", "-", ">", ":::", "[!")):
            return re.split(r"(?<=[.:])\s", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text))[0].rstrip(":")
    return ""


def with_reference(markdown: str) -> str:
    """Replace the directives of the reference (`::: module`) by signatures and docstrings."""
    return REFERENCE.sub(
        lambda match: "\n".join(_documented(match[1], yaml.safe_load(match[2] or "{}"))) + "\n", markdown
    )


def _documented(path: str, options: Mapping[str, Any]) -> list[str]:
    module, _, name = path.rpartition(".")
    members = options.get("members") or []
    try:
        owner: Any = import_module(path)
    except ModuleNotFoundError:
        owner = vars(import_module(module))[name]
        lines = _entry(name, owner)
        return [*lines, *(line for member in members for line in _entry(f"{name}.{member}", getattr(owner, member)))]
    names = members or [each for each in vars(owner) if re.search("|".join(options.get("filters", ["^$"])), each)]
    return [line for each in names for line in _entry(each, getattr(owner, each))]


def _entry(name: str, thing: Any) -> list[str]:
    try:
        shown = name + re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(thing)))  # annotations are texts
    except (TypeError, ValueError):
        shown = name
    return [f"### `{shown}`", "", inspect.cleandoc(thing.__doc__ or ""), ""]


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
    meanings = meanings_of(model)
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
