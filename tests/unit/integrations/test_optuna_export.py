"""A run as a study of Optuna: which member is which trial, with numbers worked out by hand."""

from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from synthetic_runs import birth, family, member, write_run
from typer.testing import CliRunner

from agilerl.cli.main import app
from agilerl.errors import ConfigError, RunError
from agilerl.integrations import optuna_export
from agilerl.integrations.optuna_export import (
    Range,
    export_runs,
    shown,
    states_of,
    storage_url,
    study_name,
    study_of,
)
from agilerl.runs.records import RunRecords

optuna = pytest.importorskip("optuna")

SETTINGS = {
    "algorithm": {"name": "DQN", "lr": 0.002, "batch_size": 64},
    "environment": {"name": "CartPole-v1"},
    "mutation": {
        "rl_hp_selection": {"lr": {"min": 2e-4, "max": 1e-2}, "batch_size": {"min": 32, "max": 256}},
    },
    "training": {"seed": 3},
}


def small_run(path: Path, status: str = "done", **facts: Any) -> Path:
    """Three slots, three generations.

    0: founder, ended by selection after generation 0. 1: founder, the winner, dropped after generation 1.
    2: founder, diverges in generation 1. 3: child of 1 by lr. 4: copy of 1 in place of 2. 5: child of 3, never scored.
    """
    rows = [
        member(0, 0, 0, 10.0, **{"hp.lr": 0.002}),
        member(0, 1, 1, 20.0, **{"hp.lr": 0.002}),
        member(0, 2, 2, 15.0, **{"hp.lr": 0.002}),
        member(1, 1, 1, 90.0, is_best=1, **{"hp.lr": 0.002}),
        member(1, 2, 2, -math.inf, **{"hp.lr": 0.002}),
        member(1, 3, 0, 40.0, parent=1, mutation="lr", **{"hp.lr": 0.05, "hp.batch_size": 48}),
        member(2, 3, 0, 50.0, parent=1, mutation="lr", **{"hp.lr": 0.04, "hp.batch_size": 48}),
        member(2, 4, 2, 70.0, parent=1, mutation="healed", **{"hp.lr": 0.002}),
        member(2, 5, 1, math.nan, parent=3, mutation="None", **{"hp.lr": 0.05, "hp.batch_size": 48}),
    ]
    births = [
        birth(0, None, 0, "founder"), birth(1, None, 0, "founder"), birth(2, None, 0, "founder"),
        birth(3, 1, 1, "rl_hp", "lr", before=0.002, after=0.05),
        birth(4, 1, 2, "healed", "member 2", after="loss is not finite"), birth(5, 3, 2, "none"),
    ]  # fmt: skip
    result = {"best_member": 1, "best_generation": 1, "stopped": "budget"}
    result["test"] = {"mean": 88.0, "iqm": 88.0, "ci95": [80.0, 95.0], "returns": [88.0]}  # type: ignore[assignment]
    facts = {"started": "2026-11-28T00:00:00Z", "result": result, "seed": 3, "manifest_hash": "abc", **facts}
    write_run(path, rows, births, status=status, **facts)
    (path / "config.yaml").write_text(yaml.safe_dump(SETTINGS), encoding="utf-8")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return small_run(tmp_path / "CartPole-v1" / "dqn-0001")


def study_in(out: Path, name: str = "CartPole-v1/dqn-0001") -> Any:
    return optuna.load_study(study_name=name, storage=f"sqlite:///{out}")


def test_members_are_trials_and_generations_intermediate_values(run: Path, tmp_path: Path) -> None:
    (exported,) = export_runs([run], tmp_path / "study.db")
    study = study_in(tmp_path / "study.db")
    assert study.direction.name == "MAXIMIZE"
    trials = study.trials
    assert [trial.state.name for trial in trials] == ["PRUNED", "COMPLETE", "FAIL", "COMPLETE", "COMPLETE", "PRUNED"]
    assert [trial.value for trial in trials] == [10.0, 90.0, None, 50.0, 70.0, None]
    assert [trial.intermediate_values for trial in trials] == [
        {1000: 10.0}, {1000: 20.0, 2000: 90.0}, {1000: 15.0}, {2000: 40.0, 3000: 50.0}, {3000: 70.0}, {},
    ]  # fmt: skip
    assert trials[3].params == {"lr": 0.04, "batch_size": 48}
    assert study.best_trial.number == study.user_attrs["winner_trial"] == 1
    assert states_of(exported) == "3 complete, 2 pruned, 1 fail"


def test_ranges_are_those_of_mutation_widened_to_the_values_of_members(run: Path, tmp_path: Path) -> None:
    assert study_of(RunRecords.read(run)).ranges == {
        "batch_size": Range(32, 256, is_integer=True, is_log=True),
        "lr": Range(2e-4, 0.05, is_integer=False, is_log=True),  # member 5 has 0.05; the maximum of mutation is 0.01
    }
    export_runs([run], tmp_path / "study.db")
    for trial in study_in(tmp_path / "study.db").trials:
        assert trial.distributions == {
            "lr": optuna.distributions.FloatDistribution(2e-4, 0.05, log=True),
            "batch_size": optuna.distributions.IntDistribution(32, 256, log=True),
        }


@pytest.mark.parametrize(
    ("name", "limits", "value", "expected"),
    [
        ("lr", {"min": 0, "max": 1}, 0.5, Range(0.0, 1.0, False, False)),  # no logarithm of 0
        ("gamma", {"min": 0.9, "max": 0.99}, 0.95, Range(0.9, 0.99, False, False)),  # the scale of 1 - gamma
        ("learn_step", {"min": 0.5, "max": 4}, 1, Range(0.5, 4.0, False, True)),  # fractions below 1
        ("learn_step", {"min": 1, "max": 4}, 1, Range(1.0, 4.0, True, True)),
    ],
)
def test_scales_of_ranges(tmp_path: Path, name: str, limits: dict[str, float], value: float, expected: Range) -> None:
    import csv

    path = family(tmp_path / "run", 2, 1)
    settings = {"algorithm": {"name": "DQN", name: value}, "mutation": {"rl_hp_selection": {name: limits}}}
    (path / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    with open(path / "metrics.csv", newline="") as file:
        rows = [{**row, f"hp.{name}": value} for row in csv.DictReader(file)]
    with open(path / "metrics.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert study_of(RunRecords.read(path)).ranges == {name: expected}


def test_attributes_tell_where_a_trial_comes_from(run: Path, tmp_path: Path) -> None:
    export_runs([run], tmp_path / "study.db")
    study = study_in(tmp_path / "study.db")
    attributes = study.trials[3].user_attrs
    expected = {
        "member": 3, "parent": 1, "parent_trial": 1, "mutation": "lr", "network": "[64] 64 [64]", "changed": "lr",
        "before": 0.002, "after": 0.05, "first_generation": 1, "last_generation": 2, "is_winner": False,
    }  # fmt: skip
    assert {name: attributes[name] for name in expected} == expected
    assert study.trials[1].user_attrs["is_winner"] is True
    assert study.user_attrs == {
        "algo": "DQN", "env_id": "CartPole-v1", "seed": 3, "status": "done", "manifest_hash": "abc", "winner_trial": 1,
        "test_mean": 88.0, "test_ci95": [80.0, 95.0],
    }  # fmt: skip


def test_trials_have_the_times_of_their_generations(run: Path, tmp_path: Path) -> None:
    export_runs([run], tmp_path / "study.db")
    begun = datetime.fromisoformat("2026-11-28T00:00:00+00:00").astimezone().replace(tzinfo=None)
    trial = study_in(tmp_path / "study.db").trials[3]  # of generations 1 and 2, which end after 120 and 180 seconds
    assert (trial.datetime_start - begun).total_seconds() == 60
    assert (trial.datetime_complete - begun).total_seconds() == 180


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_the_last_generation_of_an_unfinished_run_is_running(status: str, tmp_path: Path) -> None:
    path = small_run(tmp_path / "CartPole-v1" / "dqn-0001", status=status)
    export_runs([path], tmp_path / "study.db")
    trials = study_in(tmp_path / "study.db").trials
    assert [t.state.name for t in trials] == ["PRUNED", "PRUNED", "FAIL", "RUNNING", "RUNNING", "RUNNING"]
    assert [t.datetime_complete is None for t in trials] == [False, False, False, True, True, True]


def test_several_runs_are_several_studies_and_none_is_overwritten(run: Path, tmp_path: Path) -> None:
    other, out = small_run(tmp_path / "CartPole-v1" / "dqn-0002"), tmp_path / "study.db"
    export_runs([run], out)
    with pytest.raises(ConfigError, match=r"study\.db has the study CartPole-v1/dqn-0001 already\. fix: replace=True"):
        export_runs([other, run], out)
    assert optuna.get_all_study_names(f"sqlite:///{out}") == ["CartPole-v1/dqn-0001"]
    export_runs([other, run], out, replace=True)
    assert sorted(optuna.get_all_study_names(f"sqlite:///{out}")) == ["CartPole-v1/dqn-0001", "CartPole-v1/dqn-0002"]
    assert len(study_in(out).trials) == 6


def test_a_group_of_seeds_is_its_runs(tmp_path: Path) -> None:
    from agilerl.config import preset_for
    from agilerl.runs.seed_group import SeedGroup

    settings = {"device": "cpu", "evolution": True, "tensorboard": False, "track": False, "imports": []}
    group = SeedGroup.create(preset_for("CartPole-v1"), [0, 1], tmp_path, test_episodes=0, **settings)
    for seed in (0, 1):
        small_run(group.run_path(seed))
    names = [study.name for study in export_runs([group.path], tmp_path / "study.db")]
    assert names == ["CartPole-v1/dqn-seeds-0001/seed-0", "CartPole-v1/dqn-seeds-0001/seed-1"]


def test_runs_of_one_name_are_an_error(run: Path, tmp_path: Path) -> None:
    other = small_run(tmp_path / "elsewhere" / "CartPole-v1" / "dqn-0001")
    with pytest.raises(ConfigError, match=r"two of the runs would be the study CartPole-v1/dqn-0001"):
        export_runs([run, other], tmp_path / "study.db")
    assert not (tmp_path / "study.db").exists()


def test_a_file_that_is_no_database_is_left_as_it_is(run: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("these are my notes, and no database\n" * 100)
    with pytest.raises(ConfigError, match=r"the storage .*notes\.txt cannot be used \(DatabaseError: .* fix: "):
        export_runs([run], tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text().startswith("these are my notes")


def test_passwords_of_databases_are_not_shown(run: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        export_runs([run], "nosuchdb://me:hunter2secret@localhost/optuna")
    assert "hunter2secret" not in str(caught.value)
    assert shown("mysql://me:hunter2secret@h/x") == "mysql://me:***@h/x"
    assert shown("mysql://me:p@ss/word@h/x") == "mysql://me:***@h/x"
    assert storage_url("mysql://h/x") == "mysql://h/x"
    assert storage_url("/a/b.db") == "sqlite:////a/b.db"


@pytest.mark.parametrize("before", [0, 175, 180, 185])  # the message is cut at 200 characters
def test_a_password_is_hidden_before_a_long_message_is_cut(before: int) -> None:
    url = "mysql://me:hunter2secret@h/x"

    class Optuna:
        exceptions = type("exceptions", (), {"StorageInternalError": KeyError})

        class storages:
            @staticmethod
            def RDBStorage(url: str) -> Any:
                raise RuntimeError(f"{'x' * before} {url}")

    with pytest.raises(ConfigError, match="cannot be used") as caught, optuna_export._storage(Optuna, url):
        pass
    assert "hunter" not in str(caught.value)


def test_a_run_without_a_generation_and_a_damaged_one_are_named(tmp_path: Path, run: Path) -> None:
    empty = write_run(tmp_path / "empty", [], [])
    with pytest.raises(RunError, match="has no generation yet"):
        export_runs([empty], tmp_path / "study.db")
    (run / "config.yaml").write_text("mutation: {rl_hp_selection: {lr: {low: 1}}}")
    with pytest.raises(RunError, match="does not hold what it should"):
        export_runs([run], tmp_path / "study.db")


def test_without_optuna_the_extra_is_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r'fix: pip install "agilerl\[optuna\]"'):
        export_runs([run], tmp_path / "study.db")


def test_names_of_studies(tmp_path: Path) -> None:
    assert study_name(Path("/data/runs/CartPole-v1/dqn-0001")) == "CartPole-v1/dqn-0001"
    assert study_name(Path("/run")) == "run"


def test_the_command_writes_and_says_how_to_look(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["optuna", str(run), "--out", "study.db"])
    assert done.exit_code == 0, done.output
    assert done.output == (
        "study  CartPole-v1/dqn-0001: 6 trials (3 complete, 2 pruned, 1 fail)\n"
        "open  optuna-dashboard sqlite:///study.db\n"
    )
    done = CliRunner().invoke(app, ["optuna", str(run), "--out", "study.db"])
    assert done.exit_code == 2
    assert "fix: --replace, or --out FILE." in done.output


def test_the_command_prints_its_studies_as_json(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["optuna", str(run), "--out", "study.db", "--json"])
    assert done.exit_code == 0, done.output
    states = {"complete": 3, "pruned": 2, "fail": 1}
    assert json.loads(done.stdout) == {
        "command": "optuna",
        "studies": [{"name": "CartPole-v1/dqn-0001", "trials": 6, "states": states}],
        "url": "sqlite:///study.db",
    }
    again = CliRunner().invoke(app, ["optuna", str(run), "--out", "study.db", "--json"])
    assert again.exit_code == 2
    assert json.loads(again.stdout)["error"]["type"] == "ConfigError"
