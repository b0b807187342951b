"""A run with a user's own scheme of evolution: recorded, stopped and resumed to the same bits."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from faulty_runs import StopAfter
from scheme_runs import resume, state_of, train
from typer.testing import CliRunner

from agilerl.cli.main import app

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_scheme.py"


def test_a_run_with_a_class_of_a_user_resumes_to_the_same_bits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    case = {"scheme": "own_scheme:CopyBest", "interval": 2, "steps": 40}
    whole = train(case, tmp_path / "whole")
    births = [birth for birth in whole.lineage if birth.kind != "founder"]
    assert [(birth.generation, birth.kind) for birth in births] == [(2, "none"), (4, "none")]
    recorded = yaml.safe_load((whole.path / "config.yaml").read_text())["evolution"]
    assert (recorded["scheme"], recorded["interval"]) == ("own_scheme:CopyBest", 2)
    part = train(case, tmp_path / "part", StopAfter(1))
    while part.interrupted:
        part = resume(part.path, StopAfter(1))
    assert state_of(part.path) == state_of(whole.path)


@pytest.mark.thorough
def test_the_command_imports_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "own_scheme", raising=False)
    words = ["train", "CartPole-v1", "--algo", "DQN", "--import", str(EXAMPLE), "--steps", "600", "--population", "2"]
    settings = ["--set", "evolution.scheme=own_scheme:CopyBest", "--set", "training.evo_steps=200"]
    shown = CliRunner().invoke(app, [*words, *settings, "-q", "--out", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    (births,) = tmp_path.rglob("evolution.jsonl")
    assert [json.loads(line)["kind"] for line in births.read_text().splitlines()] == ["founder"] * 2 + ["none"] * 2
    monkeypatch.delitem(sys.modules, "own_scheme")
