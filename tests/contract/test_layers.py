"""Imports point one way: a module may import only from its own layer or from a lower one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "agilerl"

# Lower number = further down. Packages of equal number must not import each other, except within themselves.
LAYERS = {
    "errors": 0,
    "foreign": 0,
    "native": 1,
    "standalone": 0,
    "env_ids": 1,
    "host": 1,
    "files": 1,
    "hostile": 1,
    "safe_path": 1,
    "importing": 2,
    "moved": 1,
    "options": 1,
    "ranges": 1,
    "redaction": 1,
    "rng": 1,
    "signatures": 1,
    "spaces": 1,
    "threads": 1,
    "transfer": 1,
    "tree": 1,
    "typing": 1,
    "backward": 2,
    "checkpoint": 2,
    "envs": 2,
    "language": 2,
    "losses": 2,
    "modules": 2,
    "ranks": 2,
    "workers": 2,
    "components": 3,
    "llm_envs": 3,
    "networks": 3,
    "protocols": 3,
    "telemetry": 3,
    "testing": 3,
    "engine": 4,
    "hpo": 4,
    "rollouts": 4,
    "algorithms": 5,
    "config": 6,
    "runs": 7,
    "data": 8,
    "hub": 8,
    "report": 8,
    "sources": 9,
    "training": 10,
    "distributed": 11,
    "export": 11,
    "utils": 11,
    "vector": 11,
    "watch": 11,
    "wrappers": 11,
    "api": 12,
    "trainer": 13,
    "integrations": 13,
    "cli": 14,
}
# `agilerl/__init__.py` is the lazy facade over all of them and is checked by tests/contract/test_import.py.
EXEMPT = {"__init__", "__main__", "_version"}


def layer_of(path: Path) -> str:
    part = path.relative_to(PACKAGE).parts[0]
    return part.removesuffix(".py")


def imported_layers(path: Path) -> list[tuple[int, str]]:
    """(line, first package below agilerl) of every import in the file, also those inside functions."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                names = [f"agilerl.{layer_of(path)}"]
            elif node.module == "agilerl":
                names = [f"agilerl.{alias.name}" for alias in node.names]
            else:
                names = [node.module or ""]
        elif _is_import_module(node):
            names = [node.args[0].value]
        else:
            continue
        found += [(node.lineno, name.split(".")[1]) for name in names if name.startswith("agilerl.")]
    return found


def _is_import_module(node: ast.AST) -> bool:
    """`import_module("...")` of a name that is written out."""
    if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
        return False
    return "import_module" in (getattr(node.func, "attr", ""), getattr(node.func, "id", ""))


FILES = sorted(p for p in PACKAGE.rglob("*.py") if layer_of(p) not in EXEMPT)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    own = layer_of(path)
    assert own in LAYERS, f"{path} is in no layer: add it to LAYERS"
    for line, target in imported_layers(path):
        if target == own or target in EXEMPT:
            continue
        assert target in LAYERS, f"{path}:{line} imports agilerl.{target}, which is in no layer"
        assert LAYERS[target] < LAYERS[own], f"{path}:{line}: {own} must not import {target}"


def test_nothing_outside_algorithms_asks_which_algorithm_it_has() -> None:
    for path in FILES:
        if layer_of(path) == "algorithms":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                names = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
                assert not names & {"DQN", "PPO", "TD3", "DDPG", "SAC"}, f"{path}:{node.lineno}"
