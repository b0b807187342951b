"""`agilerl config check`: every problem of a file, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agilerl.cli import app


def check(tmp_path: Path, text: str, *more: str) -> tuple[int, dict[str, Any]]:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    done = CliRunner().invoke(app, ["config", "check", str(path), "--json", *more])
    (line,) = done.stdout.splitlines()
    return done.exit_code, json.loads(line)


def test_a_good_file(tmp_path: Path) -> None:
    text = "environment: CartPole-v1\nalgorithm: {name: ppo, lr: 1e-3}\n"
    code, facts = check(tmp_path, text)
    assert (code, facts["ok"], facts["problems"]) == (0, True, [])
    assert facts["command"] == "config check"
    done = CliRunner().invoke(app, ["config", "check", str(tmp_path / "run.yaml")])
    assert (done.exit_code, done.stdout) == (0, f"ok  {tmp_path / 'run.yaml'}\n")
    assert check(tmp_path, "algorithm: PPO\n", "--env", "CartPole-v1")[0] == 0


def test_all_problems_at_once_as_data(tmp_path: Path) -> None:
    text = (
        "environment: CartPole-v1\nalgorithm: {name: DQN, lr: -1, batch_siz: 4}\n"
        "training: {pop_size: 0, share: some}\nmutation: {rl_hp_selection: {lr: {min: 1}}}\n"
    )
    code, facts = check(tmp_path, text)
    problems = {each["path"]: each for each in facts["problems"]}
    assert code == 2
    assert not facts["ok"]
    assert set(problems) == {
        "algorithm.lr", "algorithm.batch_siz", "training.pop_size", "training.share", "mutation.rl_hp_selection.lr.max",
    }  # fmt: skip
    assert problems["training.pop_size"] == {
        "path": "training.pop_size", "message": "training.pop_size must be a whole number >= 1; got 0.",
        "expected": "a whole number >= 1", "got": 0, "fix": "training.pop_size=4.",
    }  # fmt: skip
    assert problems["algorithm.lr"]["expected"] == "a number > 0"
    assert problems["algorithm.batch_siz"]["fix"] == "batch_size."
    assert problems["algorithm.batch_siz"]["got"] == 4
    assert problems["mutation.rl_hp_selection.lr.max"]["got"] is None
    done = CliRunner().invoke(app, ["config", "check", str(tmp_path / "run.yaml")])
    assert done.exit_code == 2
    assert len(done.stdout.splitlines()) == 5
    assert "training.pop_size must be a whole number >= 1; got 0. fix: training.pop_size=4." in done.stdout


CASES = {
    "an unknown algorithm": ("algorithm: DQM\ntraining: {pop_size: 0}\n", ["algorithm.name", "training.pop_size"]),
    "a rule over two keys": ("environment: CartPole-v1\ntraining: {eps_start: 0.1, eps_end: 0.2}\n", ["training"]),
    "a rule with the preset": (
        "environment: CartPole-v1\nevolution: {scheme: race}\nmutation: {probabilities: {no_mut: 3}}\n", [""]
    ),
    "no environment": ("algorithm: DQN\n", [""]),
    "no YAML": ("a: [1\n", [""]),
    "a list": ("- 1\n", [""]),
    "one key twice": ("training: {pop_size: 2}\ntraining: {pop_size: 3}\n", [""]),
    "a setting of AgileRL 2": ("INIT_HP: {ENV_NAME: CartPole-v1, ALGO: Nothing}\n", [""]),
}  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
def test_other_problems_have_a_message_and_a_fix(kind: str, tmp_path: Path) -> None:
    text, paths = CASES[kind]
    code, facts = check(tmp_path, text)
    assert code == 2
    assert [each["path"] for each in facts["problems"]] == paths
    for each in facts["problems"]:
        assert each["message"]
        assert each["fix"], each


def test_a_missing_file_is_a_problem(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["config", "check", str(tmp_path / "none.yaml"), "--json"])
    (problem,) = json.loads(done.stdout)["problems"]
    assert done.exit_code == 2
    assert problem["message"].startswith("there is no configuration file")
