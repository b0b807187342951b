"""Imports point one way: a module may import only from its own layer or from a lower one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "agilerl"

# Lower number = further down. Packages of equal number must not import each other, except within themselves.
# A room within a package stands in the layer of its longest name here.
LAYERS = {
    "core": 1,
    "errors": 0,
    "native": 1,
    "ranges": 2,
    "typing": 1,
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
    "collect": 9,
    "training": 10,
    "views": 8,
    "views.standalone": 0,
    "views.watch": 11,
    "views.export": 11,
    "views.hub_card": 12,
    "views.hub_push": 13,
    "utils": 11,
    "vector": 11,
    "wrappers": 11,
    "api": 12,
    "trainer": 13,
    "integrations": 13,
    "cli": 14,
}
# Language runs through the layers: each of these rooms belongs to the one that it extends.
SLICE = {
    "language.algorithms": "algorithms",
    "language.engines": "engine",
    "language.networks": "networks",
    "language.collect": "collect",
    "language.task": "training",
    "experimental": "hpo",
    "experimental.asynchronous": "training",
    "experimental.rounds": "training",
}
# `agilerl/__init__.py` is the lazy facade over all of them and is checked by tests/contract/test_import.py.
EXEMPT = {"__init__", "__main__", "_version"}
ALGORITHMS = {"DQN", "PPO", "TD3", "DDPG", "SAC"}


def layer_of(path: Path) -> str:
    return room_of(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))


def room_of(module: str) -> str:
    """The longest name of LAYERS that a module belongs to; its first part below the package without one."""
    parts = module.split(".")[1:]
    names = [".".join(parts[: count + 1]) for count in range(len(parts))]
    name = next((name for name in reversed(names) if name in LAYERS or name in SLICE), parts[0])
    return SLICE.get(name, name)


def imported_layers(path: Path) -> list[tuple[int, str]]:
    """(line, room) of every import of the package in the file, also those inside functions."""
    imports = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif _is_import_module(node):
            names = [node.args[0].value]
        else:
            continue
        imports += [(node.lineno, room_of(name)) for name in names if name.startswith("agilerl.")]
    return imports


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
        text = path.read_text(encoding="utf-8")
        if layer_of(path).endswith("algorithms") or not any(name in text for name in ALGORITHMS):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                names = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
                assert not names & ALGORITHMS, f"{path}:{node.lineno}"


# What learns text, and the places where a user's names and the table of algorithms meet it.
MEETS_LANGUAGE = {
    "algorithms/__init__", "algorithms/core/__init__", "algorithms/bc_lm", "algorithms/dpo", "algorithms/grpo",
    "algorithms/ilql", "algorithms/llm_ppo", "algorithms/llm_reinforce", "algorithms/sft", "api", "cli/probing",
    "training/manifest/tasks", "training/train_llm", "utils/algo_utils", "utils/llm_utils",
}  # fmt: skip


def test_language_models_stand_beside_the_core() -> None:
    for path in FILES:
        name = path.relative_to(PACKAGE).with_suffix("").as_posix()
        if name.startswith(("language/", "llm_envs/")) or name in MEETS_LANGUAGE:
            continue
        text = path.read_text(encoding="utf-8")
        assert " agilerl.language" not in text, path
