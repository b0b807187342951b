"""Show that nothing but words changed between two commits.

    python tests/words.py main~1 main
    python tests/words.py main~1 main --messages --names

Compared is the syntax tree of every Python file without docstrings and comments; with --messages also without the text
of strings that hold a space, which are sentences for people and not keys; with --names without the names of local
variables and of arguments of private functions. Exit status 1 where code differs.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WITH_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Messages(ast.NodeTransformer):
    """Empties the text of every string that holds a space, in f-strings too."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant("") if isinstance(node.value, str) and " " in node.value else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """The values that are shown, in any order: another sentence may name them in another one."""
        shown = sorted(ast.dump(part) for part in node.values if isinstance(part, ast.FormattedValue))
        return ast.Constant("\n".join(shown))


class Names(ast.NodeTransformer):
    """Numbers the local names of each outermost function in the order in which they stand.

    Arguments of public functions keep their names. A local that takes the name of something else is a difference.
    """

    def visit_FunctionDef(self, node: Any) -> Any:
        """Rename in the whole function; nested ones share the numbers."""
        keeps = not node.name.startswith("_") or node.name.startswith("__")
        public = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)} if keeps else set()
        known = dict[str, str]()
        for part in ast.walk(node):
            bound = []
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store | ast.Del):
                bound = [part.id]
            elif isinstance(part, ast.arg):
                bound = [part.arg]
            elif isinstance(part, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and part.name:
                bound = [part.name]
            elif isinstance(part, ast.Global):
                public |= set(part.names)
            known |= {name: name for name in bound}
        names = {name for name in known if name not in public}
        numbers: dict[str, str] = {}
        for part in _in_order(node):
            for field in ("id", "arg", "name"):
                name = vars(part).get(field)
                is_name = not isinstance(part, ast.keyword | ast.FunctionDef | ast.alias)
                if is_name and isinstance(name, str) and name in names:
                    setattr(part, field, numbers.setdefault(name, f"{len(numbers)}"))
            if isinstance(part, ast.Nonlocal):
                part.names = [numbers.get(name, name) for name in part.names]
        return node

    visit_AsyncFunctionDef = visit_FunctionDef


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree as they stand in it, depth first."""
    yield node
    for part in ast.iter_child_nodes(node):
        yield from _in_order(part)


def code_of(source: str, *, without_messages: bool = False, without_names: bool = False) -> str:
    """The syntax tree of a file as text, without its docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, WITH_DOCSTRINGS) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    if without_names:  # before values shown in messages become text
        tree = Names().visit(tree)
    if without_messages:
        tree = Messages().visit(tree)
    return ast.dump(tree, indent=1)


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout


def differing(before: str, after: str, **without: bool) -> list[str]:
    """Python files whose code is not the same in both commits."""
    changed = git("diff", "--no-renames", "--name-status", before, after, "--", "*.py").splitlines()
    found = []
    for line in changed:
        status, name = line.split("\t")
        if status != "M" or len({
            code_of(git("show", f"{commit}:{name}"), **without) for commit in (before, after)
        }) == 2:  # fmt: skip
            found.append(name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Show that nothing but words changed between two commits.")
    parser.add_argument("before")
    parser.add_argument("after", nargs="?", default="HEAD")
    parser.add_argument("--messages", action="store_true", help="sentences in strings may differ too")
    parser.add_argument("--names", action="store_true", help="local variables may have other names")
    asked = parser.parse_args()
    found = differing(asked.before, asked.after, without_messages=asked.messages, without_names=asked.names)
    print("\n".join(f"code differs: {name}" for name in found) or "words alone differ")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
