"""`agilerl train --seeds`: what the options take, and what they refuse."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from agilerl.cli import app, training
from agilerl.cli.listing import listing
from agilerl.cli.seeds import chosen_seed, seeds_in, workers_in
from agilerl.config import going_on, manifest_from
from agilerl.errors import AgileRLError, RunError
from agilerl.runs.directory import RunDirectory
from agilerl.runs.names import GROUP, is_group
from agilerl.runs.seed_group import SeedGroup, with_groups
from agilerl.telemetry.record import RunPlan
from agilerl.telemetry.side_by_side import SideBySide
from agilerl.training.manifest.device import device_of
from agilerl.training.seeds import jobs_of, resumed
from agilerl.workers.processes import Ended

SETTINGS = {
    "device": "cpu", "evolution": True, "tensorboard": False, "track": False, "imports": [], "test_episodes": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("3", [3]), ("0-3", [0, 1, 2, 3]), ("7,0-2", [7, 0, 1, 2]), (" 1 - 2 , 5", [1, 2, 5]), ("4-4", [4])],
)
def test_seeds_are_ranges_and_numbers_in_order(text: str, seeds: list[int]) -> None:
    assert seeds_in(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "3-1", "-1", "0-9,", "1.5"])
def test_other_texts_are_refused_with_the_fix(text: str) -> None:
    with pytest.raises(AgileRLError, match=r"--seeds takes ranges and numbers; got .* fix: --seeds 0-9, or"):
        seeds_in(text)


@pytest.mark.parametrize("text", ["0-99999999", "99999999999999999999"])
def test_too_many_or_too_large_seeds_are_refused(text: str) -> None:
    with pytest.raises(AgileRLError, match=r"at most 10,000 numbers below 2\*\*63; got .* fix: --seeds 0-9"):
        seeds_in(text)


def test_a_seed_that_stands_twice_is_named() -> None:
    with pytest.raises(AgileRLError, match=r"names seed 2 twice. fix: name every seed once"):
        seeds_in("0-2,2")


def test_a_job_of_an_array_gets_its_seed() -> None:
    assert [chosen_seed([5, 7], i) for i in range(2)] == [5, 7]
    for index in (-1, 2):
        with pytest.raises(
            AgileRLError, match=rf"^--array-index {index} is none of the seeds\. fix: an array of jobs 0-1\.$"
        ):
            chosen_seed([5, 7], index)


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", ""])
def test_workers_are_a_number_from_one_on(text: str) -> None:
    with pytest.raises(AgileRLError, match=r"a number of processes from 1 on; got .* fix: --workers auto"):
        workers_in(text)


def test_workers_are_a_number_auto_or_left_out() -> None:
    assert [workers_in(text) for text in ("3", "auto", None)] == [3, "auto", None]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--seeds", "0-1", "--seed", "3"], "--seed (or --set seed) and --seeds both name seeds"),
        (["--seeds", "0-1", "--set", "training.seed=3"], "--seed (or --set seed) and --seeds both name seeds"),
        (["--array-index", "0"], "--array-index chooses one of --seeds"),
        (["--seeds", "0-1", "--array-index", "2"], "--array-index 2 is none of the seeds. fix: an array of jobs 0-1."),
        (["--seeds", "0-1", "--workers", "0"], "--workers takes a number of processes"),
        (["--workers", "two"], "--workers takes a number of processes"),
        (["--seeds", "0-1", "--device", "none"], "unknown device 'none'"),
        (["--seeds", "0-1", "--set", "pop_size=x"], "pop_size"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(words: list[str], told: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", "CartPole-v1", "--out", str(tmp_path / "runs"), *words])
    assert result.exit_code == 2
    assert told in result.stderr
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_names_the_seeds() -> None:
    result = CliRunner().invoke(app, ["train", "CartPole-v1", "--seeds", "0-2", "--dry-run"])
    assert "# in place of training.seed: 3 seeds, 0-2, each a run of its own" in result.output
    one = CliRunner().invoke(app, ["train", "CartPole-v1", "--seeds", "4-6", "--array-index", "1", "--dry-run"])
    assert "seed 5" in one.output
    assert "in place of" not in one.output


@pytest.fixture
def group(tmp_path: Path) -> SeedGroup:
    manifest = manifest_from({"environment": {"name": "CartPole-v1"}, "algorithm": {"name": "DQN"}})
    return SeedGroup.create(manifest, [4, 2], tmp_path / "runs", **SETTINGS)


def test_a_group_is_read_as_written_and_the_next_has_the_next_number(group: SeedGroup, tmp_path: Path) -> None:
    assert group.path == tmp_path / "runs" / "CartPole-v1" / "dqn-seeds-0001"
    assert SeedGroup.open(group.path) == group
    assert SeedGroup.create(group.manifest(), [1], tmp_path / "runs", **SETTINGS).path.name == "dqn-seeds-0002"


def test_a_damaged_group_is_an_error_with_a_way_out(group: SeedGroup) -> None:
    whole = json.loads((group.path / GROUP).read_text(encoding="utf-8"))
    damaged = [
        {"seeds": 3}, {"seeds": ["a"], "settings": {}}, {**whole, "seeds": []}, {**whole, "settings": {}},
        {**whole, "settings": {**whole["settings"], "device": 7}},
    ]  # fmt: skip
    for text in ("{", "[]", *map(json.dumps, damaged)):
        (group.path / GROUP).write_text(text, encoding="utf-8")
        with pytest.raises(RunError, match=r"group.json cannot be read .* fix: resume its runs one by one"):
            SeedGroup.open(group.path)


def test_what_is_left_of_a_group(group: SeedGroup) -> None:
    assert {seed: job.manifest.training.seed for seed, job in jobs_of(group).items()} == {4: 4, 2: 2}
    run = group.run_path(4)
    run.mkdir()
    facts = {"status": "done", "result": {}}
    test = {"mean": 1.0, "iqm": 1.0, "ci95": [0.0, 2.0], "returns": [1.0], "episodes": 1}
    for result, seeds in (({}, [4, 2]), ({"test": test}, [2])):
        (run / "run.json").write_text(json.dumps({**facts, "result": result}), encoding="utf-8")
        assert list(jobs_of(group)) == seeds
    changed = jobs_of(group, {"steps": 1234, "settings": ["training.target_score=5"]})
    assert list(changed) == [4, 2]
    assert changed[2].manifest.training.max_steps == 1234
    assert changed[2].manifest.training.target_score == 5


def test_a_test_and_sinks_that_are_asked_for_reach_runs_that_have_begun_and_those_that_have_not(
    group: SeedGroup,
) -> None:
    run = group.run_path(4)
    run.mkdir()
    test = {"mean": 1.0, "iqm": 1.0, "ci95": [0.0, 2.0], "returns": [1.0], "episodes": 1}
    (run / "run.json").write_text(json.dumps({"status": "done", "result": {"test": test}}), encoding="utf-8")
    jobs = jobs_of(group, {"test_episodes": 7, "tensorboard": False, "track": ""})
    assert list(jobs) == [4, 2]
    for job in jobs.values():
        assert (job.request.test_episodes, job.request.tensorboard, job.request.track) == (7, False, "")
        assert job.changes == {"test_episodes": 7, "tensorboard": False, "track": ""}, "as resume_training takes them"


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], {}),
        (["--cut-envs"], {"carry_envs": False}),
        (["--carry-envs", "--no-tensorboard"], {"carry_envs": True, "tensorboard": False}),
        (["--no-track", "--restart"], {"track": "", "restart": True}),
        (["--test-episodes", "100"], {"test_episodes": 100}),
        (["--test-episodes", "9", "--target", "5"], {"test_episodes": 9, "settings": ("training.target_score=5.0",)}),
        (["--steps", "0"], {"steps": 0}),
    ],
)
def test_every_option_that_is_typed_reaches_the_runs_of_a_group(
    words: list[str], options: dict[str, Any], group: SeedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[dict[str, Any]] = []
    monkeypatch.setattr(training, "train_side_by_side", lambda *arguments: passed.append(arguments[4]))
    result = CliRunner().invoke(app, ["resume", str(group.path), *words])
    assert (result.exit_code, passed) == (0, [options]), result.output


def test_a_budget_of_no_steps_is_refused_for_a_group(group: SeedGroup) -> None:
    result = CliRunner().invoke(app, ["resume", str(group.path), "--steps", "0"])
    assert (result.exit_code, "max_steps must be an integer of at least 1; got 0" in result.stderr) == (2, True)


def test_code_that_a_group_names_is_imported_only_if_asked(tmp_path: Path) -> None:
    manifest = manifest_from({"environment": {"name": "CartPole-v1"}, "algorithm": {"name": "DQN"}})
    code = tmp_path / "code.py"
    code.write_text("raise SystemExit('imported')\n", encoding="utf-8")
    group = SeedGroup.create(manifest, [1, 2], tmp_path, **{**SETTINGS, "imports": [str(code)]})
    result = CliRunner().invoke(app, ["resume", str(group.path)])
    assert result.exit_code == 2
    assert f"was made with --import {code}. fix: repeat --import {code}." in result.stderr


@pytest.mark.parametrize("verb", ["evaluate", "report", "record"])
def test_commands_of_one_run_name_the_runs_of_a_group(verb: str, group: SeedGroup) -> None:
    result = CliRunner().invoke(app, [verb, str(group.path)])
    assert result.exit_code == 2
    assert f"holds runs of several seeds. fix: name one of them, {group.path}/seed-<n>." in result.stderr


def test_a_group_stands_for_its_runs(group: SeedGroup, tmp_path: Path) -> None:
    run = group.run_path(2)
    run.mkdir()
    (run / "run.json").write_text("{}", encoding="utf-8")
    assert is_group(group.path)
    assert with_groups(["other", group.path]) == ["other", run]
    (group.path / "seed-of-mine").mkdir()
    lines = listing("runs", tmp_path / "runs")
    assert any(line.endswith(str(run)) for line in lines)
    assert not any("seed-of-mine" in line for line in lines)


def test_gpus_are_shared_out() -> None:
    assert [device_of(i, "cuda", 2) for i in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert device_of(1, "cuda:0", 2) == "cuda:0"
    assert device_of(1, "cpu", 2) == "cpu"
    assert device_of(1, "cuda", 1) == "cuda"


PLAN = RunPlan("DQN", "CartPole-v1", 4, 8, 1000, 100, 3, "cpu", "fused", "sync", 1)


def test_lines_tell_the_start_and_the_end_of_every_seed(tmp_path: Path) -> None:
    stream = io.StringIO()
    table = SideBySide(stream=stream)
    table.start({3: tmp_path / "seed-3", 5: tmp_path / "seed-5"}, 2)
    table.message(3, ("start", PLAN))
    table.message(3, ("progress", 500, 2.0))
    table.ended(3, Ended({"stopped": "target", "mean": 480.0}, losses=1))
    table.ended(5, Ended(error="no. fix: yes.", is_user_error=True))
    table.close()
    assert stream.getvalue().splitlines() == [
        f"2 seeds in 2 processes   {tmp_path}",
        "seed 3   begins   DQN on CartPole-v1, cpu",
        "seed 3   target   500 steps of a member   00:02   test mean 480   after 1 lost process",
        "seed 5   failed   no.",
    ]


@pytest.mark.parametrize(("limit", "left"), [(None, "03:00"), (50.0, "00:30"), (900.0, "03:00")])
def test_the_time_left_of_a_seed_is_that_of_the_nearer_limit(limit: float | None, left: str, tmp_path: Path) -> None:
    table = SideBySide(verbose=False)
    table.start({3: tmp_path / "seed-3"}, 1)
    assert table._rows[3].cells()[-1] == "-"
    table.message(3, ("start", replace(PLAN, max_env_steps=1000, time_limit=limit)))
    table.message(3, ("progress", 100, 20.0))
    assert table._rows[3].cells()[-1] == left


def test_a_terminal_gets_a_table_of_those_that_fit(tmp_path: Path) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    table = SideBySide(stream=stream)
    table._console.height, table._console.width = 8, 120
    table.start({seed: tmp_path / f"seed-{seed}" for seed in range(20)}, 2)
    table.message(19, ("start", PLAN))
    table.message(19, ("progress", 500, 2.0))
    best = SimpleNamespace(fitness=321.0)
    record = SimpleNamespace(env_steps=500, max_env_steps=1000, seconds=2.0, generation=4, best=best)
    table.message(19, ("generation", record))
    table.draw()
    table.close()
    shown = stream.getvalue()
    assert "left at most" in shown
    assert "500/1k" in shown
    assert "321" in shown
    assert shown.count("waits") <= 3 * 4  # each of at most three tables has four rows


def test_nothing_is_shown_if_quiet(tmp_path: Path) -> None:
    stream = io.StringIO()
    table = SideBySide(verbose=False, stream=stream)
    table.start({3: tmp_path / "seed-3"}, 1)
    table.message(3, ("start", PLAN))
    table.ended(3, Ended({"stopped": "target", "mean": None}))
    table.close()
    assert stream.getvalue() == ""


def test_runs_that_a_resumed_group_had_not_reached_go_on_with_its_changes(group: SeedGroup) -> None:
    """Both runs are done with the first budget; the group is resumed with another, and stopped in the first run."""
    test = {"mean": 1.0, "iqm": 1.0, "ci95": [0.0, 2.0], "returns": [1.0], "episodes": 1}
    for seed in group.seeds:
        directory = RunDirectory(group.run_path(seed))
        directory.path.mkdir()
        directory.begin(group.manifest())
        directory.finish("done", result={"test": test})
    assert jobs_of(group) == {}
    changes = {"steps": 1234, "settings": ["training.target_score=5"]}
    resumed(group, changes)
    group = SeedGroup.open(group.path)
    assert group.manifest().training.max_steps == 1234
    lasting = ["training.max_steps=1234", "training.target_score=5"]
    assert [dict(job.changes) for job in jobs_of(group).values()] == [{"settings": lasting}] * 2
    again = jobs_of(group, {"steps": 3000, "restart": True})
    assert dict(again[2].changes) == {"restart": True, "settings": [*lasting, "training.max_steps=3000"]}
    assert going_on(group.manifest(), again[2].changes["settings"]).training.max_steps == 3000
    first = RunDirectory(group.run_path(4))
    first.begin(group.manifest())
    first.finish("done", result={"test": test})
    assert {seed: dict(job.changes) for seed, job in jobs_of(group).items()} == {2: {"settings": lasting}}
