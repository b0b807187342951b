"""The shape of the house: how deep an agent is, who knows which algorithm there is, and what a newcomer has to write.

Which room may import which is asked in `test_layers`.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from agilerl import algorithms
from agilerl.algorithms import available, find_algorithm
from agilerl.cli.main import app
from agilerl.config import Manifest

PACKAGE = Path(__file__).resolve().parents[2] / "agilerl"
KNOWING = (
    "algorithms/",
    "collect/",
    "language/algorithms/",
    "language/collect/",
)  # who may ask which algorithm, or which kind, it has to do with
KINDS = {"is_on_policy", "learner_kind", "experience", "combined_reward", "one_at_a_time"}


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """Every module of the package."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


@pytest.mark.parametrize("name", available())
def test_at_most_four_of_our_classes_are_above_an_algorithm(name: str) -> None:
    """Beside the way of acting outside of training, which agents share with wrappers (`Predicting`)."""
    own = [cls.__name__ for cls in find_algorithm(name).__mro__ if cls.__module__.split(".")[0] == "agilerl"]
    assert own[-1] == "Predicting"
    assert len(own[:-1]) <= 5 + (name == "TQC"), own  # which is an SAC with other critics


def is_bound_function(node: ast.stmt, functions: set[str]) -> bool:
    """Whether a statement of a class body makes a function that stands elsewhere a method."""
    value = node.value if isinstance(node, ast.Assign) else None
    if isinstance(value, ast.Call) and getattr(value.func, "id", "") in ("property", "staticmethod", "classmethod"):
        value = value.args[0] if value.args else None
    is_name = isinstance(value, ast.Name) and value.id in functions and value.id.islower()
    is_of_module = (
        isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.attr.islower()
        and value.value.id in functions
    )  # fmt: skip
    return is_name or is_of_module or isinstance(value, ast.Lambda)


def test_no_class_binds_a_function_that_stands_elsewhere(trees: dict[Path, ast.Module]) -> None:
    """Overriding then works as everywhere, and an editor finds what a method is."""
    for path, tree in trees.items():
        elsewhere = {
            alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
            for alias in node.names
        } | {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}  # fmt: skip
        for cls in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            bound = [ast.unparse(node) for node in cls.body if is_bound_function(node, elsewhere)]
            assert not bound, f"{path}, {cls.name}: {bound}"


# Who reads objects that are not ours: environments, agents, models, and what a decorator or an annotation carries.
READERS = (
    "core/foreign.py", "core/hostile.py", "algorithms/base/adapted.py", "algorithms/base/wrapped.py",
    "algorithms/base/optimizer.py", "networks/q_networks.py",
)  # fmt: skip
MOST_GETATTR = 140


def test_capabilities_are_declared_and_read_plainly(trees: dict[Path, ast.Module]) -> None:
    """`getattr` with a default guesses; the modules that read foreign objects say what holds without an answer."""
    count = 0
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr"):
                continue
            count += 1
            guesses = len(node.args) == 3 and isinstance(node.args[1], ast.Constant)
            is_reader = path.relative_to(PACKAGE).as_posix() in READERS
            assert is_reader or not guesses, f"{path}:{node.lineno} guesses {ast.unparse(node)}"
    assert count <= MOST_GETATTR


def test_algorithms_name_no_key_of_a_manifest(trees: dict[Path, ast.Module]) -> None:
    """What of a manifest an algorithm ignores stands in `config.ignored`, by what it learns from."""
    sections = {name: field.annotation for name, field in Manifest.model_fields.items()}
    keys = {f"{name}.{key}" for name, kind in sections.items() for key in getattr(kind, "model_fields", ())}
    assert len(keys) > 60
    for path in sorted((PACKAGE / "algorithms").rglob("*.py")):
        for node in ast.walk(trees[path]):
            named = isinstance(node, ast.Constant) and node.value in keys
            assert not named, f"{path}:{node.lineno} names {ast.unparse(node)}"


@pytest.fixture
def others(trees: dict[Path, ast.Module]) -> dict[Path, ast.Module]:
    return {path: tree for path, tree in trees.items() if not path.relative_to(PACKAGE).as_posix().startswith(KNOWING)}


def test_nobody_else_names_an_algorithm(others: dict[Path, ast.Module]) -> None:
    names = set(available())
    for path, tree in others.items():
        for node in ast.walk(tree):
            named = {getattr(node, "id", None), getattr(node, "attr", None)}
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named.add(node.value)
            if isinstance(node, ast.ImportFrom):
                named |= {alias.name for alias in node.names}
            assert not named & names, f"{path}:{getattr(node, 'lineno', 0)} knows {named & names}"


def test_nobody_else_asks_of_what_kind_an_algorithm_is(others: dict[Path, ast.Module]) -> None:
    for path, tree in others.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare | ast.If | ast.IfExp | ast.BoolOp):
                tested = [node.test] if isinstance(node, ast.If | ast.IfExp) else [node]
                asked = {n.attr for part in tested for n in ast.walk(part) if isinstance(n, ast.Attribute)}
                assert not asked & KINDS, f"{path}:{node.lineno} asks for {asked & KINDS}"


# --- an algorithm in one file ---------------------------------------------------------------------------------------

ONE_FILE = '''
from typing import Annotated, Any

import torch

from agilerl.algorithms import DQN, register
from agilerl.algorithms.base.declared import hp
from agilerl.ranges import Count, Fraction, Positive


@register
class Thrown(DQN):
    """DQN that believes its target values by a share alone."""

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *args: Any,
        batch_size: Annotated[Count, hp()] = 16,
        learn_step: Annotated[Count, hp()] = 4,
        lr: Annotated[Positive, hp()] = 1e-3,
        belief: Annotated[Fraction, hp()] = 0.5,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            observation_space, action_space, *args, batch_size=batch_size, learn_step=learn_step, lr=lr, **kwargs
        )
        self.belief = belief

    def update_hyperparameters(self) -> dict[str, float]:
        return {**super().update_hyperparameters(), "belief": self.belief}

    def update(self, engine: Any, batch: Any) -> Any:
        from dataclasses import replace

        return super().update(engine, replace(batch, reward=batch.reward * engine.hp["belief"]))
'''
SMALL = (
    "training.max_steps=800", "training.evo_steps=200", "training.pop_size=3", "training.eval_episodes=2",
    "training.eval_steps=20", "training.learning_delay=32", "training.confirm_episodes=0", "training.target_score=null",
    "network.latent_dim=16", "network.encoder_config.hidden_size=[16]", "network.head_config.hidden_size=[16]",
    "mutation.probabilities.arch_mut=0.3", "mutation.probabilities.rl_hp_mut=0.6",
    "mutation.rl_hp_selection={belief: {min: 0.1, max: 0.9}, batch_size: {min: 8, max: 32}}", "environment.num_envs=4",
)  # fmt: skip


@pytest.fixture(scope="module")
def own_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "thrown.py"
    path.write_text(ONE_FILE, encoding="utf-8")
    return path


def command(own_file: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "agilerl", *arguments, "--import", str(own_file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=own_file.parent,
    )


def output(own_file: Path, *arguments: str) -> str:
    """What the command prints, in this process, which does not know the file."""
    with pytest.MonkeyPatch.context() as fresh:
        fresh.setattr(algorithms, "_registered", {})
        fresh.delitem(sys.modules, own_file.stem, raising=False)
        done = CliRunner().invoke(app, [*arguments, "--import", str(own_file)])
        sys.modules.pop(own_file.stem, None)
    assert done.exit_code == 0, done.output
    return done.output


def train(own_file: Path, out: Path) -> list[str]:
    sets = [part for setting in SMALL for part in ("--set", setting)]
    return ["train", "CartPole-v1", "--algo", "thrown", "--out", str(out), "--test-episodes", "0", "-q", *sets]


def history(run: Path) -> list[Any]:
    lines = (run / "evolution.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_an_algorithm_in_one_file_trains_evolves_and_is_found_by_every_command(own_file: Path, tmp_path: Path) -> None:
    assert "Thrown" in output(own_file, "list", "algos")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    output(own_file, *train(own_file, whole))
    run = whole / "CartPole-v1" / "thrown-0001"
    assert any(birth["path"] == "belief" for birth in history(run))

    process = command(own_file, *train(own_file, killed))
    other = killed / "CartPole-v1" / "thrown-0001"
    deadline = time.monotonic() + 60
    while not (other / "checkpoints" / "gen-0000000002").is_dir() and time.monotonic() < deadline:
        assert process.poll() is None or (other / "checkpoints" / "gen-0000000002").is_dir()
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    output(own_file, "resume", str(other), "-q", "--test-episodes", "0")
    assert history(other) == history(run)
    ours, theirs = (load_file(folder / "best" / "policy.safetensors") for folder in (run, other))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(weights, theirs[name]) for name, weights in ours.items())

    assert "other actions" in output(own_file, "export", str(run), "--onnx")
    assert "Thrown on CartPole-v1" in output(own_file, "evaluate", str(run), "--episodes", "2")


def test_an_algorithm_in_one_file_makes_populations_and_speaks_for_itself(own_file: Path) -> None:
    from agilerl.core.importing import import_code
    from agilerl.errors import AlgorithmError
    from agilerl.utils.utils import create_population

    import_code([str(own_file)])
    observations, actions = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)
    agents = create_population("Thrown", None, {"BELIEF": 0.25}, observations, actions, population_size=2, seed=1)
    assert [agent.belief for agent in agents] == [0.25, 0.25]
    with pytest.raises(AlgorithmError, match=r"Thrown needs Discrete or MultiDiscrete actions; got Box"):
        find_algorithm("thrown")(observations, gym.spaces.Box(-1, 1, (2,), np.float32))
    with pytest.raises(AlgorithmError, match=r"belief must be in \[0, 1\]; got 2"):
        find_algorithm("thrown")(observations, actions, belief=2)
