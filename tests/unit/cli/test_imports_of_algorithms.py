"""`--algo` with a file that does not register that algorithm."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from agilerl import algorithms
from agilerl.cli import app

MINE = """
from agilerl.algorithms import DQN, register

@register
class MyDQN(DQN):
    pass
"""


@pytest.mark.parametrize(("text", "registered"), [("x = 1\n", "no algorithm"), (MINE, "MyDQN alone")])
def test_an_import_that_does_not_register_the_algorithm_is_named_first(
    text: str, registered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(algorithms, "_registered", {})
    path = tmp_path / f"own_{len(text)}.py"
    path.write_text(text)
    result = CliRunner().invoke(app, ["train", "CartPole-v1", "--algo", "MyPO", "--import", str(path), "--dry-run"])
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert said.startswith(f"UnknownAlgorithmError: unknown algorithm 'MyPO': --import {path} registers {registered}.")
    assert f"fix: @register above its class in {path}, or " in said
