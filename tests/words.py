"""Show that nothing but words changed between two commits.

    python tests/words.py main~1 main
    python tests/words.py main~1 main --messages

Compared is the syntax tree of every Python file without docstrings and comments; with --messages also without the text
of strings that hold a space, which are sentences for people and not keys. Exit status 1 where code differs.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from pathlib import Path

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


def code_of(source: str, *, without_messages: bool = False) -> str:
    """The syntax tree of a file as text, without its docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, WITH_DOCSTRINGS) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    if without_messages:
        tree = Messages().visit(tree)
    return ast.dump(tree, indent=1)


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout


def differing(before: str, after: str, *, without_messages: bool = False) -> list[str]:
    """Python files whose code is not the same in both commits."""
    changed = git("diff", "--no-renames", "--name-status", before, after, "--", "*.py").splitlines()
    found = []
    for line in changed:
        status, name = line.split("\t")
        if status != "M" or len({
            code_of(git("show", f"{commit}:{name}"), without_messages=without_messages) for commit in (before, after)
        }) == 2:  # fmt: skip
            found.append(name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Show that nothing but words changed between two commits.")
    parser.add_argument("before")
    parser.add_argument("after", nargs="?", default="HEAD")
    parser.add_argument("--messages", action="store_true", help="sentences in strings may differ too")
    asked = parser.parse_args()
    found = differing(asked.before, asked.after, without_messages=asked.messages)
    print("\n".join(f"code differs: {name}" for name in found) or "words alone differ")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
