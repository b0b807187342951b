"""The schedule of a winner, from the files of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from synthetic_runs import birth, member, write_run
from typer.testing import CliRunner

import agilerl
from agilerl.cli import app
from agilerl.config import Manifest, load_manifest, manifest_from
from agilerl.errors import ConfigError, RunError
from agilerl.hpo.schedule import Change as Changed
from agilerl.hpo.schedule import candidates
from agilerl.views.report.schedule import schedule_manifest, schedule_of

GREW = "[64] 64 [64]", "[96] 64 [64]"


def line(path: Path, **facts: Any) -> Path:
    """Four generations of two members. The winner's line is 0, 2 (lr), 3 (node), 5 (noise); 1 and 4 are others."""
    births = [
        birth(0, None, 0, "founder"),
        birth(1, None, 0, "founder"),
        birth(2, 0, 1, "rl_hp", "lr", before=0.001, after=0.0012),
        birth(3, 2, 2, "architecture", "encoder.add_node", before=GREW[0], after=GREW[1], change=0.0),
        birth(4, 1, 2, "rl_hp", "batch_size", before=64, after=77),
        birth(5, 3, 3, "parameters", "normal", after={"scale": 0.5}),
    ]
    wide = {"network": GREW[1]}
    rows = [
        member(0, 0, 0, 10.0), member(0, 1, 1, 9.0),
        member(1, 2, 0, 12.0, parent=0, **{"hp.lr": 0.0012}), member(1, 1, 1, 9.0),
        member(2, 3, 0, 14.0, parent=2, **{"hp.lr": 0.0012}, **wide),
        member(2, 4, 1, 8.0, parent=1, **{"hp.batch_size": 77}),
        member(3, 5, 0, 20.0, parent=3, is_best=1, **{"hp.lr": 0.0012}, **wide),
        member(3, 4, 1, 8.0, parent=1, **{"hp.batch_size": 77}),
    ]  # fmt: skip
    return write_run(path, rows, births, lr=0.001, **facts)


CHANGES = [
    {"env_steps": 1000, "kind": "rl_hp", "path": "lr", "before": {"lr": 0.001}, "after": {"lr": 0.0012}},
    {"env_steps": 2000, "kind": "architecture", "path": "encoder.add_node", "before": GREW[0], "after": GREW[1]},
]


def test_the_winners_line_is_exported_exactly(tmp_path: Path) -> None:
    found = schedule_of(line(tmp_path / "run", seed=7))
    assert [dict(change) for change in found.changes] == CHANGES
    assert [(e["env_steps"], e["kind"], e["after"]) for e in found.not_repeated] == [
        (3000, "parameters", {"scale": 0.5})
    ]
    assert found.founder.as_dict() == {"hyperparameters": {"batch_size": 64, "lr": 0.001}, "network": GREW[0]}
    assert found.final.as_dict() == {"hyperparameters": {"batch_size": 64, "lr": 0.0012}, "network": GREW[1]}
    assert (found.env_steps, found.adapted) == (4000, ())
    assert (found.source["member"], found.source["generation"], found.source["seed"]) == (5, 3, 7)


def test_the_file_alone_is_enough(tmp_path: Path) -> None:
    found = schedule_of(line(tmp_path / "run"))
    file = found.write(tmp_path / "deep" / "schedule.yaml")
    assert yaml.safe_load(file.read_text()) == json.loads(json.dumps(found.as_dict()))
    manifest = schedule_manifest(file)
    assert manifest == found.scheduled()
    assert manifest.environment.name == "CartPole-v1"
    assert (manifest.training.pop_size, manifest.training.max_steps, manifest.training.stop_after) == (1, 50000, 4000)
    assert manifest.as_dict()["evolution"]["schedule"] == CHANGES
    assert not [path for path in file.parent.iterdir() if path != file]


def test_budgets_move_no_change(tmp_path: Path) -> None:
    file = schedule_of(line(tmp_path / "run")).write(tmp_path / "s.yaml")
    for steps, budget in ((1500, (50000, 1500)), (60000, (60000, None))):
        manifest = schedule_manifest(file, steps)
        assert (manifest.training.max_steps, manifest.training.stop_after) == budget
        assert manifest.as_dict()["evolution"]["schedule"] == CHANGES


def test_a_value_without_a_birth_is_a_change_too(tmp_path: Path) -> None:
    """Member 0 stays for six generations, and its lr is set by hand after the fourth."""
    rows = [member(n, 0, 0, 10.0 + n, **{"hp.lr": 0.001 if n < 4 else 0.005}) for n in range(6)]
    found = schedule_of(write_run(tmp_path / "run", rows, [birth(0, None, 0, "founder")], lr=0.001))
    assert [(c["env_steps"], c["after"]) for c in found.changes] == [(4000, {"lr": 0.005})]


def test_values_that_a_user_has_set_are_changes(tmp_path: Path) -> None:
    """One value is in its birth; of several, the birth has the names alone, and metrics.csv the values."""
    births = [
        birth(0, None, 0, "founder"),
        birth(1, 0, 1, "steered", "lr", before=0.001, after=0.004),
        birth(2, 1, 2, "steered", "lr, batch_size", before={"lr": 0.004, "batch_size": 64}),
    ]
    rows = [
        member(0, 0, 0, 1.0),
        member(1, 1, 0, 2.0, parent=0, **{"hp.lr": 0.004}),
        member(2, 2, 0, 3.0, parent=1, **{"hp.lr": 0.002, "hp.batch_size": 32}),
    ]
    found = schedule_of(write_run(tmp_path / "run", rows, births, lr=0.001))
    assert [(change["env_steps"], change["kind"], change["after"]) for change in found.changes] == [
        (1000, "rl_hp", {"lr": 0.004}), (2000, "rl_hp", {"lr": 0.002, "batch_size": 32})
    ]  # fmt: skip
    assert (found.not_repeated, found.adapted) == ((), ())


def test_a_value_that_moves_all_the_time_is_left_to_the_algorithm(tmp_path: Path) -> None:
    rows = [member(n, 0, 0, 10.0 + n, **{"hp.lr": 0.001 / (n + 2)}) for n in range(6)]
    found = schedule_of(write_run(tmp_path / "run", rows, [birth(0, None, 0, "founder")], lr=0.001))
    assert (found.changes, found.adapted) == ((), ("lr",))
    assert found.founder.hyperparameters["lr"] == found.manifest.algorithm.hyperparameters["lr"] == 0.001


def test_steps_count_from_a_restart(tmp_path: Path) -> None:
    """Member 1 is founded after 2,000 steps, and its child 2 wins."""
    births = [
        birth(0, None, 0, "founder"),
        birth(1, None, 2, "founder", "restart"),
        birth(2, 1, 3, "rl_hp", "batch_size", before=32, after=38),
    ]
    rows = [
        member(0, 0, 0, 1.0),
        member(1, 0, 0, 1.0),
        member(2, 1, 0, 2.0, **{"hp.batch_size": 32, "hp.lr": 0.01}),
        member(3, 2, 0, 3.0, parent=1, **{"hp.batch_size": 38, "hp.lr": 0.01}),
    ]
    found = schedule_of(write_run(tmp_path / "run", rows, births))
    assert [(c["env_steps"], c["after"]) for c in found.changes] == [(1000, {"batch_size": 38})]
    assert found.env_steps == 2000
    assert (found.manifest.algorithm.hyperparameters["batch_size"], found.manifest.algorithm.lr) == (32, 0.01)


def test_what_a_run_lacks_is_named(tmp_path: Path) -> None:
    empty = write_run(tmp_path / "empty", [], [birth(0, None, 0, "founder")], status="running")
    with pytest.raises(RunError, match="has no winner yet"):
        schedule_of(empty)
    other = line(tmp_path / "continued", parent={"run": "elsewhere", "members": {}})
    with pytest.raises(RunError, match=r"began with the trained agents of another run.* fix: the schedule of that run"):
        schedule_of(other)
    lost = line(tmp_path / "lost")
    text = (lost / "evolution.jsonl").read_text().splitlines(keepends=True)
    (lost / "evolution.jsonl").write_text("".join(text[:2] + text[3:]))
    with pytest.raises(RunError, match=r"evolution.jsonl of .* lacks the birth of member 2"):
        schedule_of(lost)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("algorithm: {name: DQN}", r"is no schedule: expected format, changes and manifest"),
        ("[1, 2]", r"is no schedule"),
        ("{format: 9, changes: [], manifest: {}}", r"has format 9; expected 1"),
        ("{format: 1, changes: {}, manifest: {}}", r"manifest must be sections and changes a list"),
        ("{format: 1, changes: [], manifest: {}, chnges: []}", r"unknown key of a schedule 'chnges'.*fix: changes"),
    ],
)
def test_other_files_are_refused_with_the_fix(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(content)
    with pytest.raises(ConfigError, match=message):
        schedule_manifest(tmp_path / "s.yaml")


def test_a_missing_file_is_named_with_the_command_that_writes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no schedule .*s.yaml. fix: `agilerl schedule RUN --out s.yaml`"):
        schedule_manifest(tmp_path / "s.yaml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([CHANGES[1], CHANGES[0]], r"must be in the order of their env_steps"),
        ([{**CHANGES[0], "after": 0.0012}], r"`after` of a change of hyperparameters holds their values by name"),
        ([{**CHANGES[0], "after": {"lrr": 0.1}}], r"after 1000 steps: lrr is not a hyperparameter of DQN.*'lr'"),
        ([{**CHANGES[0], "after": {"lr": -1}}], r"after 1000 steps: DQN: lr must be above 0; got -1"),
        ([{**CHANGES[0], "after": {"lr": float("nan")}}], r"lr must be above 0; got nan"),
        ([{**CHANGES[0], "after": {"batch_size": 10.5}}], r"batch_size must be an integer"),
        ([{**CHANGES[0], "after": {"batch_size": float("inf")}}], r"batch_size must be an integer"),
        ([{**CHANGES[0], "after": {"lr": [0.1, -1]}}], r"after 1000 steps: DQN: lr must be above 0; got -1"),
        ([{**CHANGES[0], "after": {"lr": None}}], r"after 1000 steps: DQN: lr must be above 0; got None"),
        (
            [{**CHANGES[0], "after": {"double": "maybe"}}],
            r"after 1000 steps: DQN: double must be true or false; got 'maybe'. fix: after={double: false}",
        ),
        (
            [{**CHANGES[1], "kind": "activation", "path": "activation", "after": "Foo"}],
            r"after 2000 steps: unknown activation 'Foo'.*fix: a known one",
        ),
        ([{**CHANGES[1], "kind": "activation", "after": "Relu"}], r"unknown activation 'Relu'.*fix: ReLU"),
        ([{**CHANGES[1], "kind": "activation", "after": None}], r"unknown activation 'None'"),
        ([{**CHANGES[1], "kind": "activation", "after": "Softmax"}], r"'Softmax' is for outputs"),
        ([{**CHANGES[1], "path": ""}], r"`path` of an architecture change names its method"),
        ([{**CHANGES[1], "kind": "parameters"}], r"evolution.schedule\[0\].kind must be"),
        ([{**CHANGES[1], "when": 3}], r"evolution.schedule.*when"),
    ],
)
def test_malformed_changes_are_named(changes: list[dict[str, Any]], message: str) -> None:
    settings = {"algorithm": "DQN", "training": {"pop_size": 1}, "evolution": {"schedule": changes}}
    with pytest.raises(ConfigError, match=message):
        manifest_from(settings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {**CHANGES[1], "path": "encoder.add_nodes"},
            r"after 2000 steps: unknown architecture method 'encoder.add_nodes'.*fix: encoder.add_node\.",
        ),
        (
            {**CHANGES[0], "after": {"lr": [0.1, 0.2]}},
            r"after 1000 steps: lr is one number; got \[0.1, 0.2\]. fix: as many as the agent has",
        ),
    ],
)
def test_changes_that_the_agent_cannot_make_are_named_before_training(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    settings = {"algorithm": "DQN", "training": {"pop_size": 1}, "evolution": {"schedule": [change]}}
    with pytest.raises(ConfigError, match=message):
        agilerl.train("CartPole-v1", config=settings, out=tmp_path, verbose=False)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [], "no files of a run that never was"


def test_a_batch_beyond_the_memory_is_named_wherever_the_schedule_has_it() -> None:
    def plan(batch: int) -> Manifest:
        changes = [{**CHANGES[0], "after": {"batch_size": batch}}]
        return manifest_from(
            {
                "algorithm": {"name": "DQN", "batch_size": 32},
                "training": {"pop_size": 1},
                "replay_buffer": {"max_size": 64},
                "evolution": {"schedule": changes},
            }
        )

    plan(64)
    with pytest.raises(ConfigError, match=r"algorithm\.batch_size=65 is more .*got replay_buffer\.max_size=64\. fix: "):
        plan(65)


def test_a_schedule_is_part_of_the_hash_and_others_keep_theirs() -> None:
    usual = manifest_from({"training": {"pop_size": 1}})
    hashes = [
        manifest_from({"training": {"pop_size": 1}, "evolution": {"schedule": schedule}}).hash()
        for schedule in (None, [], CHANGES)
    ]
    assert hashes[0] == usual.hash()
    assert len(set(hashes)) == 3
    assert "schedule" not in usual.as_dict()["evolution"]


def test_recorded_networks_tell_the_arguments_of_their_method() -> None:
    grown = Changed(0, "architecture", "encoder.add_node", "[64, 64] 32 [64]", "[64, 96] 32 [64]")
    assert {"hidden_layer": 1, "numb_new_nodes": 32} in list(candidates(grown))
    kernel = Changed(0, "architecture", "encoder.change_kernel", "cnn 32k8 32k4 64 [64]", "cnn 32k8 32k6 64 [64]")
    assert {"hidden_layer": 1, "kernel_size": 6} in list(candidates(kernel))
    assert list(candidates(Changed(0, "architecture", "encoder.add_layer", "[64] 32 [64]", "[64, 64] 32 [64]"))) == []


def test_the_command_prints_and_writes(tmp_path: Path) -> None:
    run, file = line(tmp_path / "run"), tmp_path / "s.yaml"
    result = CliRunner().invoke(app, ["schedule", str(run), "--out", str(file)])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        f"schedule  {file}",
        "winner: member 5 of generation 4, DQN on CartPole-v1, seed 0; 4k steps along its line",
        "       0  founder  batch_size 64  lr 1e-3  [64] 64 [64]",
        "      1k  lr 1e-3 → 1.2e-3",
        "      2k  encoder.add_node  [64] 64 [64] → [96] 64 [64]",
        "      3k  parameters normal  (not repeated)",
        "      4k  winner  batch_size 64  lr 1.2e-3  [96] 64 [64]",
    ]
    as_json = CliRunner().invoke(app, ["schedule", str(run), "--json"])
    assert (json.loads(as_json.output)["command"], json.loads(as_json.output)["changes"]) == ("schedule", CHANGES)
    planned = CliRunner().invoke(app, ["train", "--schedule", str(file), "--dry-run", "--seed", "4"])
    assert planned.exit_code == 0, planned.output
    (tmp_path / "plan.yaml").write_text(planned.output)
    plan = load_manifest(tmp_path / "plan.yaml")
    assert (plan.training.seed, plan.as_dict()["evolution"]["schedule"]) == (4, CHANGES)


def test_a_file_with_another_content_is_not_replaced(tmp_path: Path) -> None:
    run, file = line(tmp_path / "run"), tmp_path / "s.yaml"
    words = ["schedule", str(run), "--out", str(file)]
    assert [CliRunner().invoke(app, words).exit_code for _ in range(2)] == [0, 0], "the same content is no loss"
    file.write_text(file.read_text() + "# mine\n")
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{file} is there already. fix: another --out, or remove it." in done.stderr
    assert file.read_text().endswith("# mine\n")
