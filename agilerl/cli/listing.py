"""Output of `agilerl list`: algorithms, environments, presets, runs."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from agilerl.algorithms import WHEN, available, shipped_in
from agilerl.cli.as_json import print_json
from agilerl.cli.commands import later
from agilerl.cli.errors import user_errors
from agilerl.cli.options import AsJson, Debug, Imports, examples
from agilerl.core import foreign
from agilerl.core.env_ids import FAMILIES, SHIPPED, TEAM_PACKAGES
from agilerl.core.hostile import read_json
from agilerl.core.texts import count
from agilerl.errors import AgileRLError, ConfigError, unknown_choice
from agilerl.runs.lock import status_of
from agilerl.runs.names import RUN, is_group, way_on

LISTS = ("algos", "envs", "presets", "runs")
# Gymnasium's module of an environment -> (the package it needs, our extra that installs it).
NEEDS = {"box2d": ("Box2D", "box2d"), "mujoco": ("mujoco", "mujoco"), "ale_py": ("ale_py", "atari")}
OTHER_ENGINES = ("phys2d/", "tabular/", "GymV")


presets, presets_like, score_text, hyperparameters_of = (
    later("lookup", name) for name in ("presets", "presets_like", "score_text", "hyperparameters_of")
)
app = typer.Typer(rich_markup_mode=None)


@dataclass(frozen=True)
class Entry:
    """A name with notes, as a line (`width` characters for the name) and as JSON values."""

    name: str
    notes: tuple[str, ...] = ()
    width: int = 35
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name:<{self.width - 1}} {'   '.join(self.notes)}".rstrip()

    def as_dict(self) -> dict[str, Any]:
        """The facts, or the notes of the line without any."""
        return {"name": self.name, **(self.facts or {"notes": list(self.notes)})}


def listing(what: str, out: Path = Path("runs")) -> list[str]:
    """One line per algorithm, environment, preset or run under `out`."""
    if what == "runs":
        return list(runs(out))
    return [str(entry) for entry in _named(what)]


def entries(what: str, out: Path = Path("runs")) -> list[dict[str, Any]]:
    """The same as JSON values, one for each line."""
    if what == "runs":
        return [entry.as_dict() for entry in _runs_in(out)] if out.is_dir() else []
    return [entry.as_dict() for entry in _named(what)]


def _named(what: str) -> Iterator[Entry]:
    makers = {"algos": algorithms, "envs": environments, "presets": presets}
    if what not in makers:
        raise ConfigError(unknown_choice("list", what, LISTS))
    return makers[what]()


def algorithms() -> Iterator[Entry]:
    """Names with what they are for, and on a second line their hyperparameters."""
    for name in available():
        names, when = _hyperparameters(name), WHEN.get(name, "registered by an imported module")
        notes = (f"{when}\n{'':14}{', '.join(names)}",)
        yield Entry(name, notes, 14, {"when": when, "hyperparameters": names})


def _hyperparameters(name: str) -> list[str]:
    """See `declared.hyperparameters`; for shipped algorithms read from the source: an import would load torch, 2 s."""
    module = shipped_in(name)
    source = None if module is None else _source(module)
    if source is None:
        return list(hyperparameters_of(name))
    return [argument for argument, is_declared in _arguments(name, source).items() if is_declared]


def _source(module: str) -> ast.Module | None:
    """The syntax tree of a module; None without a source file."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return None
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def _arguments(name: str, source: ast.Module) -> dict[str, bool]:
    """Arguments of a class's constructor -> whether they are declared; for a class without one, those of its parent."""
    cls, source = _class(name, source)
    constructors = [node for node in cls.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    if not constructors:
        return _arguments(next(base.id for base in cls.bases if isinstance(base, ast.Name)), source)
    arguments = constructors[0].args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    options = arguments.kwarg and arguments.kwarg.annotation
    keys = (
        _keys(options.slice.id, source)
        if isinstance(options, ast.Subscript) and isinstance(options.slice, ast.Name)
        else {}
    )
    return {argument.arg: _is_declared(argument.annotation) for argument in named} | keys


def _keys(name: str, source: ast.Module) -> dict[str, bool]:
    """Keys of a TypedDict -> whether they are declared, those of its parent first."""
    cls, source = _class(name, source)
    parent = next(base.id for base in cls.bases if isinstance(base, ast.Name))
    inherited = {} if parent == "TypedDict" else _keys(parent, source)
    keys = [node for node in cls.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
    return inherited | {ast.unparse(node.target): _is_declared(node.annotation) for node in keys}


def _class(name: str, source: ast.Module) -> tuple[ast.ClassDef, ast.Module]:
    """A class that a module defines or imports by name, and the module that defines it."""
    for node in source.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node, source
    imports = [node for node in source.body if isinstance(node, ast.ImportFrom)]
    home = _source(next(str(node.module) for node in imports if name in [alias.name for alias in node.names]))
    assert home is not None
    return _class(name, home)


def _is_declared(annotation: ast.expr | None) -> bool:
    """Whether an annotation is `Annotated[..., hp(...)]`."""
    calls = [] if annotation is None else [node for node in ast.walk(annotation) if isinstance(node, ast.Call)]
    return any(isinstance(call.func, ast.Name) and call.func.id == "hp" for call in calls)


def environments() -> Iterator[Entry]:
    """Environment ids, with missing requirements and retired versions marked."""
    import gymnasium

    shipped = set(presets_like(""))
    specs = {name: spec for name, spec in gymnasium.registry.items() if not name.startswith(OTHER_ENGINES)}
    newest: dict[str, int] = {}
    for name in specs:
        base, version = _version(name)
        newest[base] = max(version, newest.get(base, -1))
    for name in sorted({*specs, *SHIPPED}):
        notes = ["preset"] if name in shipped else []
        base, version = _version(name)
        if name in specs:
            entry = specs[name].entry_point
            notes += _obstacles(entry, version < newest[base])
        yield Entry(name, tuple(notes))
    yield from families(specs)
    yield from team_environments(shipped)
    yield from questions()


def families(registered: Collection[str]) -> Iterator[Entry]:
    """Id prefixes of packages that are imported on demand. Nothing is imported here."""
    for family in FAMILIES:
        if any(name.startswith(family.starts) for name in registered):
            continue  # listed one by one
        package = family.module.partition(".")[0]
        needed = [] if importlib.util.find_spec(package) else [f'needs: pip install "agilerl[{family.extra}]"']
        for start in family.starts:
            example = [f"as {family.example}"] if family.example.startswith(start) else []
            yield Entry(f"{start}*", (*example, *needed))


def questions() -> Iterator[Entry]:
    """Id patterns of language environments, which are too many for a list."""
    needed = [] if importlib.util.find_spec("peft") else ['needs: pip install "agilerl[llm]"']
    for name in ("arithmetic/addition-<digits>", "reasoning/<task of reasoning-gym>"):
        yield Entry(name, ("language models", *needed))


def team_environments(shipped: Collection[str] = ()) -> Iterator[Entry]:
    """Ids of multi-agent environments: modules of the supported packages, with missing requirements.

    Nothing is imported: modules are located, and their imports read from the source.
    """

    for package in TEAM_PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            yield Entry(f"{package}.*", ("several agents", 'needs: pip install "agilerl[marl]"'))
            continue
        root = Path(next(iter(spec.submodule_search_locations)))
        for path in sorted({*root.glob("*_v[0-9]*.py"), *root.glob("*/*_v[0-9]*.py")}):
            name = ".".join(path.relative_to(root.parent).with_suffix("").parts)
            if re.search(r"_v\d+$", name):
                needed = sorted(_absent(path, root, set()))
                notes = ["several agents", *(["preset"] if name in shipped else [])]
                notes += [f"needs the package {' and '.join(needed)}"] if needed else []
                yield Entry(name, tuple(notes))


def _absent(path: Path, root: Path, visited: set[Path]) -> set[str]:
    """Missing packages that a module of the package at `root` imports, directly or through its other modules."""
    if path in visited or not path.is_file():
        return set()
    visited.add(path)
    missing: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:  # top level only: required imports
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            first, *inside = name.split(".")
            if first != root.name:
                missing |= {first} if first and importlib.util.find_spec(first) is None else set()
            elif inside:
                base = root.joinpath(*inside)
                missing |= _absent(base.with_suffix(".py"), root, visited) | _absent(
                    base / "__init__.py", root, visited
                )
    return missing


def _obstacles(entry_point: object, is_older: bool) -> list[str]:
    """Why an environment cannot be made here, or a note that a newer version exists."""
    if not isinstance(entry_point, str):  # Gymnasium keeps retired ids with a function that raises
        is_retired = foreign.module_of(entry_point).startswith("gymnasium.")
        return ["retired"] if is_retired else []
    module = entry_point.partition(":")[0]
    for part, (package, extra) in NEEDS.items():
        if part in module and importlib.util.find_spec(package) is None:
            return [f'needs: pip install "agilerl[{extra}]"']
    root = module.partition(".")[0]
    if root and importlib.util.find_spec(root) is None:
        return [f"needs the package {root}"]
    return ["older version"] if is_older else []


def _version(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.*)-v(\d+)", name)
    return (match[1], int(match[2])) if match else (name, 0)


@dataclass(frozen=True)
class ListedRun:
    """A run directory as a line of the list; `trouble` describes damage."""

    path: Path
    facts: dict[str, Any]
    trouble: str = ""

    @property
    def status(self) -> str:
        return status_of(self.path, self.facts)

    def as_dict(self) -> dict[str, Any]:
        """The run as JSON values."""
        if self.trouble:
            return {"path": str(self.path), "status": "damaged", "trouble": self.trouble}
        result, status = self.facts.get("result") or {}, self.status
        names = {name: self.facts.get(name) for name in ("env_id", "algo", "seed")}
        numbers = {
            name: result.get(name) for name in ("env_steps_population", "env_steps_member", "best_fitness", "test")
        }
        way = way_on(self.path, self.facts) if status == "interrupted" else None
        return {"path": str(self.path), "status": status, **names, **numbers, "resume": way}

    def cells(self) -> tuple[str, ...]:
        """env, algorithm, seed, status, steps, score, path."""
        if self.trouble:
            return (self.path.parent.name, "?", "?", "damaged", "-", self.trouble, str(self.path))
        result = self.facts.get("result") or {}
        return (
            str(self.facts.get("env_id", "?")),
            str(self.facts.get("algo", "?")),
            str(self.facts.get("seed", "?")),
            self.status,
            _steps(result),
            score_text(result),
            str(self.path),
        )


def _runs_in(out: Path) -> list[ListedRun]:
    """Every run under `out`, by environment, algorithm and number; those of seeds one by one."""
    folders = [path for path in sorted(out.glob("*/*")) if path.is_dir() and re.search(r"-\d{4,}$", path.name)]
    groups = {
        path: sorted(
            (run for run in path.iterdir() if re.fullmatch(r"seed-\d+", run.name)), key=lambda run: int(run.name[5:])
        )
        for path in folders
        if is_group(path)
    }
    return [_read_entry(path) for folder in folders for path in groups.get(folder, [folder])]


def runs(out: Path) -> Iterator[str]:
    """Every run under `out` as a line; damaged ones are named as such."""
    if not out.is_dir():
        yield f"no runs yet: the folder {out} does not exist"
        return
    entries = _runs_in(out)
    if not entries:
        yield f"no runs in {out}"
        return
    header = ("env", "algo", "seed", "status", "steps", "score", "path")
    rows = [header, *(run.cells() for run in entries)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header) - 1)]
    for row in rows:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        yield "   ".join([*padded, row[-1]])
    yield from (f"resume   {way_on(run.path, run.facts)}" for run in entries if run.status == "interrupted")


def _read_entry(path: Path) -> ListedRun:
    try:
        facts = read_json(path / RUN)
    except FileNotFoundError:
        return ListedRun(path, {}, "no run.json")
    except (AgileRLError, OSError, json.JSONDecodeError):
        return ListedRun(path, {}, "run.json cannot be read")
    well_formed = isinstance(facts, dict) and isinstance(facts.get("result") or {}, dict)
    return ListedRun(path, facts) if well_formed else ListedRun(path, {}, "run.json holds something else")


def _steps(result: dict[str, Any]) -> str:

    steps = result.get("env_steps_population")
    return count(steps) if isinstance(steps, int | float) else "-"


def lists(incomplete: str) -> list[str]:
    """Names that can be listed, for shell completion."""
    return [name for name in LISTS if name.startswith(incomplete)]


@app.command(name="list", epilog=examples("agilerl list algos", "agilerl list envs", "agilerl list runs --out runs"))
def list_command(
    what: Annotated[
        str, typer.Argument(metavar="WHAT", autocompletion=lists, help="algos, envs, presets or runs.")
    ] = "presets",
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the runs.")] = Path("runs"),
    imports: Imports = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List algorithms, environments, presets or runs."""
    with user_errors(debug, imports):
        if as_json:
            print_json("list", what=what, entries=entries(what, out))
            return
        for line in listing(what, out):
            typer.echo(line)
