"""Measures of the package's structure that only fall: a change may lower a limit and never raise one."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "agilerl"
# Measure -> limit. A limit more than `SLACK` above its measure is out of date.
LIMITS = {
    "lines of the package": 91_500,
    "files of more than 600 lines": 8,
    "lines loaded by agilerl.algorithms.dqn": 15_450,
    "lines loaded by agilerl.training.loop": 26_300,
    "imports of the package inside functions": 9,
    "imports of the package by a string": 32,
    "methods that forward self": 4,
    "names without content": 263,
}
SLACK = 0.02
# Modules that functions import, and what the others do without until then.
LATE = {
    "agilerl.algorithms.base.evaluation": "environments, which an agent needs for `test` and `evaluate` alone",
    "agilerl.algorithms.base.wrapped": "wrappers, which `load` needs for the file of a wrapped agent",
    "agilerl.config.convert": "files of the published library, which no run writes",
    "agilerl.core.host": "torch, which a worker imports with its first job",
    "agilerl.core.threads": "torch, as above",
    "agilerl.engine.learner": "engines, which an agent needs for its own `learn` alone",
    "agilerl.language.vllm": "an optional package",
    "agilerl.modules.activations": "torch, which manifests without network settings do without",
    "agilerl.modules.configs": "torch, as above",
    "agilerl.views.report.film": "drawing, which may set variables of the process",
}
MAX_FILE_LINES = 600
OBJECT_PATH = re.compile(r"agilerl(\.\w+)+:[\w.]+")
# Words that say nothing of a value's content, and bounds that are neither MAX_ nor MIN_.
EMPTY_NAMES = {
    "found", "own", "given", "known", "kept", "made", "said", "each", "seen", "more", "ended", "left", "begun",
    "there", "gone", "anew",
}  # fmt: skip
EMPTY_BOUNDS = ("MOST_", "LEAST_", "LONGEST_", "FEWEST_", "MANY_")
IMPORTED_LINES = """
import importlib, os, pathlib, sys
import gymnasium, torch
for module in sys.argv[1:]:
    if os.fork() == 0:
        importlib.import_module(module)
        files = {str(m.__file__) for n, m in list(sys.modules.items()) if n.split(".")[0] == "agilerl"}
        print(sum(pathlib.Path(f).read_text().count("\\n") for f in files if f.endswith(".py")), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""


def lines_of(path: Path) -> int:
    return path.read_text().count("\n")


def lines_loaded_by(*modules: str) -> list[int]:
    """Lines of the package's files that each import loads, in copies of one new process."""
    command = [sys.executable, "-c", IMPORTED_LINES, *modules]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [int(line) for line in output.split()]


def is_ours(node: ast.AST) -> bool:
    """Whether a statement imports modules of the package."""
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] == "agilerl"
    return isinstance(node, ast.Import) and any(name.name.split(".")[0] == "agilerl" for name in node.names)


def inner_imports(nodes: list[ast.AST]) -> set[int]:
    """Lines inside functions that import modules of the package, other than those of `LATE`."""
    spans = [
        (node.lineno, node.end_lineno or 0)
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    imports = [node.lineno for node in nodes if is_ours(node) and getattr(node, "module", "") not in LATE]  # type: ignore[attr-defined]
    return {line for line in imports if any(first < line <= last for first, last in spans)}


def name_of(function: ast.expr) -> str:
    """Return `a.b` as it is written, without what is before a call or an index."""
    if isinstance(function, ast.Attribute):
        return f"{name_of(function.value)}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def imports_by_string(nodes: list[ast.AST]) -> int:
    """Names of our modules that are written as text: of `import_module`, of `later`, and "module:name" in tables."""
    paths = [node for node in nodes if isinstance(node, ast.Constant) and OBJECT_PATH.fullmatch(str(node.value))]
    calls = [
        node for node in nodes if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)
    ]
    imports = [
        call for call in calls
        if name_of(call.func) == "later"
        or (name_of(call.func).endswith("import_module") and str(call.args[0].value).startswith("agilerl"))  # type: ignore[attr-defined]
    ]  # fmt: skip
    return len(paths) + len(imports)


def forwarding_methods(nodes: list[ast.AST]) -> list[str]:
    """Methods whose whole body is a call of a function of ours, outside of the class, with `self` first."""
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) and not is_ours(node)]
    others = {"self", "super", "object", *((name.asname or name.name) for node in imports for name in node.names)}
    methods = []
    for group in (node for node in nodes if isinstance(node, ast.ClassDef)):
        for method in (node for node in group.body if isinstance(node, ast.FunctionDef)):
            body = method.body[1:] if ast.get_docstring(method) is not None else method.body
            call = getattr(body[0], "value", None) if len(body) == 1 else None
            call = call.value if isinstance(call, ast.YieldFrom) else call
            if isinstance(call, ast.Call) and call.args and name_of(call.args[0]) == "self":
                called = name_of(call.func)
                if called and not called[0].isupper() and called.split(".")[0] not in others:
                    methods.append(f"{group.name}.{method.name}")
    return methods


def empty_names(nodes: list[ast.AST]) -> list[str]:
    """Names of values that say nothing of their content, one for each place that binds them."""
    stored = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    names = [*stored, *(node.arg for node in nodes if isinstance(node, ast.arg))]
    return [name for name in names if name in EMPTY_NAMES or name.lstrip("_").startswith(EMPTY_BOUNDS)]


def measures() -> dict[str, int]:
    paths = sorted(PACKAGE.rglob("*.py"))
    agent, loop = lines_loaded_by("agilerl.algorithms.dqn", "agilerl.training.loop")
    lines, files = [lines_of(path) for path in paths], [list(ast.walk(ast.parse(path.read_text()))) for path in paths]
    return {
        "lines of the package": sum(lines),
        "files of more than 600 lines": sum(number > MAX_FILE_LINES for number in lines),
        "lines loaded by agilerl.algorithms.dqn": agent,
        "lines loaded by agilerl.training.loop": loop,
        "imports of the package inside functions": sum(len(inner_imports(nodes)) for nodes in files),
        "imports of the package by a string": sum(imports_by_string(nodes) for nodes in files),
        "methods that forward self": sum(len(forwarding_methods(nodes)) for nodes in files),
        "names without content": sum(len(empty_names(nodes)) for nodes in files),
    }


def test_the_structure_only_gets_simpler() -> None:
    wrong = []
    for name, measure in measures().items():
        limit = LIMITS[name]
        if measure > limit:
            wrong.append(f"{name}: {measure}, at most {limit}. What was added can replace something.")
        if measure < limit - max(1, SLACK * limit):
            wrong.append(f"{name}: {measure}. Lower the limit of {limit} to it.")
    assert not wrong, "\n".join(wrong)


def test_what_is_measured_by_hand() -> None:
    code = (
        "from agilerl import a\nfrom copy import copy\nMOST_A = 1\n"
        "class B:\n"
        "    def c(self, own):\n        'Text.'\n        return f(self, own)\n"
        "    def d(self):\n        import agilerl.x\n        import os\n        return self.f(self)\n"
        "    def e(self):\n        return C(self)\n"
        "    def g(self):\n        yield from m.f(self)\n"
        "    def i(self):\n        return copy(self)\n"
        "    def j(self):\n        from agilerl.language.vllm import VLLM\n"
        "def h():\n    left = import_module('agilerl.y')\n    return left, import_module(left)\n"
        "more = later('x', 'y'), 'agilerl.x:Y.z'\n"
    )
    nodes = list(ast.walk(ast.parse(code)))
    assert inner_imports(nodes) == {9}
    assert imports_by_string(nodes) == 3
    assert forwarding_methods(nodes) == ["B.c", "B.g"]
    assert sorted(empty_names(nodes)) == ["MOST_A", "left", "more", "own"]
