"""`agilerl config check`: every problem of a file, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agilerl.cli import app
from agilerl.config import preset_for


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
        "path": "training.pop_size", "message": "training.pop_size must be an integer of at least 1; got 0.",
        "expected": "an integer of at least 1", "got": 0, "fix": "training.pop_size=4.",
    }  # fmt: skip
    assert problems["algorithm.lr"]["expected"] == "above 0"
    assert problems["algorithm.batch_siz"]["fix"] == "batch_size."
    assert problems["algorithm.batch_siz"]["got"] == 4
    assert problems["mutation.rl_hp_selection.lr.max"]["got"] is None
    done = CliRunner().invoke(app, ["config", "check", str(tmp_path / "run.yaml")])
    assert done.exit_code == 2
    assert len(done.stdout.splitlines()) == 5
    assert "training.pop_size must be an integer of at least 1; got 0. fix: training.pop_size=4." in done.stdout


CASES = {
    "an unknown algorithm": (
        "environment: CartPole-v1\nalgorithm: DQM\ntraining: {pop_size: 0}\n", ["algorithm.name", "training.pop_size"]
    ),
    "an unknown algorithm, and what its preset may satisfy": (
        "environment: CartPole-v1\nalgorithm: DQM\ntraining: {eps_start: 0.05}\n", ["algorithm.name"]
    ),
    "a list and a mapping in place of a number": (
        "environment: CartPole-v1\ntraining: {pop_size: [1, 2], max_steps: {a: 1}}\n",
        ["training.max_steps", "training.pop_size"],
    ),
    "items of a list": (
        "environment: CartPole-v1\n"
        "evolution: {widths: [1], schedule: [5, {kind: foo}, {env_steps: 1, kind: rl_hp, x: 1}]}\n",
        ["evolution.widths", "evolution.schedule[0]", "evolution.schedule[1].env_steps", "evolution.schedule[1].kind",
         "evolution.schedule.2.x"],
    ),
    "an alias in a section that is none": (
        "environment: CartPole-v1\nalgorithm: 5\nlearning_rate: 0.1\n", ["algorithm", "learning_rate"]
    ),
    "questions for an algorithm with actions": ("environment: reasoning/chain_sum\nalgorithm: PPO\n", [""]),
    "several agents for an algorithm of one": ("environment: mpe2.simple_adversary_v3\nalgorithm: PPO\n", [""]),
    "one agent for an algorithm of several": ("environment: FrozenLake-v1\nalgorithm: MADDPG\n", [""]),
    "a rule over two keys": ("environment: CartPole-v1\ntraining: {eps_start: 0.1, eps_end: 0.2}\n", [""]),
    "asynchronous mode alone": ("environment: CartPole-v1\nevolution: {mode: async}\n", [""]),
    "a row of a run": ("environment: CartPole-v1\ntraining: {carry_envs: true, shards: 2}\n", [""]),
    "a row of a run with the preset": ("environment: CartPole-v1\ntraining: {shards: 90}\n", [""]),
    "a row of loops": ("environment: CartPole-v1\ntraining: {eval_screen: 1}\n", [""]),
    "a row of data": ("environment: CartPole-v1\nalgorithm: CQL\ntraining: {normalize_rewards: true}\n", [""]),
    "a batch above the memory": (
        "environment: CartPole-v1\nalgorithm: DQN\nreplay_buffer: {max_size: 16}\n", [""]
    ),
    "a rule with the preset": (
        "environment: CartPole-v1\nevolution: {scheme: race}\nmutation: {probabilities: {no_mut: 3}}\n", [""]
    ),
    "no environment": ("algorithm: DQN\n", ["environment.name"]),
    "no environment whose preset may satisfy a rule": ("training: {eps_start: 0.05}\n", ["environment.name"]),
    "no environment, and a key": ("training: {pop_size: 0}\n", ["training.pop_size", "environment.name"]),
    "no YAML": ("a: [1\n", [""]),
    "a list": ("- 1\n", [""]),
    "one key twice": ("training: {pop_size: 2}\ntraining: {pop_size: 3}\n", [""]),
    "a setting of AgileRL 2": ("INIT_HP: {ENV_NAME: CartPole-v1, ALGO: Nothing}\n", [""]),
    "two settings of AgileRL 2": ("INIT_HP: {ENV_NAME: CartPole-v1, ALGO: DQN, POP_SIZE: x, LR: -1}\n", ["", ""]),
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
        assert "\n" not in each["message"] + each["fix"]


def test_a_complete_manifest_without_an_algorithm_is_one_of_the_default(tmp_path: Path) -> None:
    content = preset_for("CartPole-v1", "DQN").as_dict()
    del content["algorithm"]["name"]
    assert check(tmp_path, json.dumps(content))[0] == 0


def test_keys_of_an_algorithm_are_those_of_the_presets(tmp_path: Path) -> None:
    """The environment alone names the algorithm: of a language environment GRPO."""
    text = "environment: arithmetic/addition-2\nalgorithm: {model_name: folder, lr: 0.001}\n"
    assert check(tmp_path, text)[0] == 0
    _, facts = check(tmp_path, "environment: arithmetic/addition-2\nalgorithm: {tau: 0.1}\n")
    assert [each["path"] for each in facts["problems"]] == ["algorithm.tau"]


def test_a_missing_file_is_a_problem(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["config", "check", str(tmp_path / "none.yaml"), "--json"])
    (problem,) = json.loads(done.stdout)["problems"]
    assert done.exit_code == 2
    assert problem["message"].startswith("there is no configuration file")
