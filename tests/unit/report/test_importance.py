"""Importance of hyperparameters and mutations, on populations whose truth is known."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_runs import birth, member, write_run
from typer.testing import CliRunner

from agilerl.cli import app
from agilerl.errors import ConfigError, RunError
from agilerl.runs.records import RunRecords
from agilerl.views.report import importance as module
from agilerl.views.report import write_report
from agilerl.views.report.importance import MIN_LIVES, effects_of, importance, lives_of, of_report, relative_ranks

Gain = Callable[[float, float, np.random.Generator], float]


def population(path: Path, gain: Gain, members: int = 12, generations: int = 10, seed: int = 0) -> Path:
    """Each member lives for one generation, with new values, and gains on a random member of the one before."""
    rng = np.random.default_rng(seed)
    rows, births, before = [], [], {}
    for generation in range(generations):
        after = {}
        for slot in range(members):
            id = generation * members + slot
            lr, batch = float(10 ** rng.uniform(-4, -2)), int(rng.integers(16, 256))
            parent = int(rng.choice(list(before))) if before else None
            after[id] = before.get(parent, 0.0) + gain(lr, batch, rng) if parent is not None else gain(lr, batch, rng)
            births.append(birth(id, parent, generation, "rl_hp" if before else "founder", "lr" if before else ""))
            more = {"hp.lr": lr, "hp.batch_size": batch, "parent": "" if parent is None else parent}
            rows.append(member(generation, id, slot, after[id], **more))
        before = after
    return write_run(path, rows, births)


def by_lr(lr: float, batch: float, rng: np.random.Generator) -> float:
    """Best at 1e-3, worse by the distance in decades; `batch` has no effect."""
    return float(-abs(np.log10(lr) + 3) + 0.2 * rng.normal())


def noise(lr: float, batch: float, rng: np.random.Generator) -> float:
    return float(rng.normal())


def test_the_one_that_decides_is_first_and_its_interval_is_apart(tmp_path: Path) -> None:
    found = importance([RunRecords.read(population(tmp_path / "run", by_lr, seed=1))], 40)
    first, second = found.hyperparameters
    assert (first.name, second.name) == ("lr", "batch_size")
    assert first.ci95[0] > second.ci95[1]
    assert (first.matters, second.matters) == (True, False)
    assert first.share + second.share == pytest.approx(1.0)
    assert 10**-3.6 < first.best[0] < 1e-3 < first.best[1] < 10**-2.4


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_silent(seed: int, tmp_path: Path) -> None:
    found = importance([RunRecords.read(population(tmp_path / "run", noise, seed=seed))], 40)
    assert found.hyperparameters == ()
    assert found.silence == "no hyperparameter stands out from chance in 120 lives"


def test_whole_runs_are_drawn_if_there_are_many(tmp_path: Path) -> None:
    """Six runs, each of one setting: half samples are of three runs, 20 combinations; lives alone would be 2**60."""
    drawn = {tuple(half) for half in module._half_samples([n // 10 for n in range(60)], 200, np.random.default_rng(0))}
    assert len(drawn) == 20
    assert {sum(half) for half in drawn} == {30}
    assert len({tuple(half) for half in module._half_samples([0] * 60, 50, np.random.default_rng(0))}) == 50


def test_too_little_data_is_silent_and_needs_no_optuna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    few = importance([RunRecords.read(population(tmp_path / "few", by_lr, members=4, generations=8))])
    assert few.silence == f"too little data: 32 lives with different hyperparameters; {MIN_LIVES} are needed"
    rows = [member(n, n, 0, float(n)) for n in range(3)]
    constant = importance([RunRecords.read(write_run(tmp_path / "none", rows, []))])
    assert constant.silence.startswith("too little data: none has 4 different values")
    assert (few.hyperparameters, few.mutations) == ((), ())


def test_gains_are_ranked_among_the_members_of_a_generation() -> None:
    assert relative_ranks([3.0, 1.0, 2.0]).tolist() == [1.0, 0.0, 0.5]
    assert relative_ranks([5.0, 5.0, 1.0]).tolist() == [0.75, 0.75, 0.0]


def test_lives_have_the_mean_rank_of_their_gains(tmp_path: Path) -> None:
    """Founders 0, 1, 2 have 1, 3, 2. Then 0 gains 9, and 3, a child of 1, gains 1; 4, a child of 2, diverges, and 5
    is not evaluated. In the last generation 6, the child of the diverged one, has no gain, and 0 and 3 gain alike."""
    rows = [
        member(0, 0, 0, 1.0), member(0, 1, 1, 3.0), member(0, 2, 2, 2.0),
        member(1, 0, 0, 10.0), member(1, 3, 1, 4.0, parent=1, **{"hp.lr": 0.002}),
        member(1, 4, 2, float("-inf"), parent=2, **{"hp.lr": 0.003}),
        member(1, 5, 3, float("nan"), parent=2, **{"hp.lr": 0.005}),
        member(2, 0, 0, 11.0), member(2, 3, 1, 5.0, parent=1, **{"hp.lr": 0.002}),
        member(2, 6, 2, 50.0, parent=4, **{"hp.lr": 0.004}),
    ]  # fmt: skip
    births = [*(birth(n, None, 0, "founder") for n in range(3)), birth(3, 1, 1, "rl_hp", "lr"), birth(4, 2, 1, "rl_hp")]
    births.append(birth(6, 4, 2, "rl_hp", "lr"))
    lives = lives_of(RunRecords.read(write_run(tmp_path / "run", rows, births)))
    assert [(life.values["lr"], life.gain) for life in lives] == [
        (0.001, 0.5), (0.001, 1.0), (0.001, 0.5), (0.002, 0.5), (0.003, 0.0)
    ]  # fmt: skip


def litters(path: Path, survivors: Callable[[int], str], generations: int = 30) -> Path:
    """In each generation a parent has a child by `lr` and an unmutated one; `survivors` says who is the next parent."""
    rows, births, parent = [member(0, 0, 0, 1.0)], [birth(0, None, 0, "founder")], 0
    for generation in range(1, generations):
        mutated, same = 2 * generation, 2 * generation + 1
        births += [birth(mutated, parent, generation, "rl_hp", "lr"), birth(same, parent, generation, "none")]
        rows += [member(generation, id, slot, 1.0, parent=parent) for slot, id in enumerate((mutated, same))]
        parent = mutated if survivors(generation) == "mutated" else same
    return write_run(path, rows, births)


def test_descendants_are_counted_against_those_of_unmutated_siblings(tmp_path: Path) -> None:
    """The mutated child always becomes the parent of both members that follow: 2 descendants against 0."""
    (effect,) = effects_of([RunRecords.read(litters(tmp_path / "run", lambda n: "mutated"))])
    assert (effect.name, effect.births) == ("lr", 28)  # the last litter has no later generation
    assert (effect.descendants, effect.siblings, effect.difference) == (2.0, 0.0, 2.0)
    assert (effect.ci95, effect.sign) == ((2.0, 2.0), 1)


def test_an_even_mutation_has_an_interval_around_zero(tmp_path: Path) -> None:
    (effect,) = effects_of([RunRecords.read(litters(tmp_path / "run", lambda n: ("mutated", "same")[n % 2]))])
    assert effect.difference == 0.0
    assert effect.ci95[0] < 0 < effect.ci95[1]
    assert effect.sign == 0


def test_a_parent_that_lives_on_is_a_sibling_without_its_mutated_children(tmp_path: Path) -> None:
    """Parent 0 lives on beside a mutated child, whose descendants are not the parent's."""
    rows, births = [member(0, 0, 0, 1.0)], [birth(0, None, 0, "founder")]
    for generation in range(1, 13):
        births.append(birth(generation, 0, generation, "architecture", "encoder.add_node"))
        rows += [member(generation, 0, 0, 1.0), member(generation, generation, 1, 1.0, parent=0)]
    (effect,) = effects_of([RunRecords.read(write_run(tmp_path / "run", rows, births))])
    # Two members later, both of the parent: itself and its child of that generation.
    assert (effect.name, effect.births, effect.descendants, effect.siblings) == ("encoder.add_node", 11, 0.0, 2.0)


def test_few_births_say_nothing(tmp_path: Path) -> None:
    assert effects_of([RunRecords.read(litters(tmp_path / "run", lambda n: "mutated", generations=8))]) == ()


@pytest.mark.thorough
def test_the_command_prints_both_tables_or_json(tmp_path: Path) -> None:
    run = str(population(tmp_path / "run", by_lr, seed=1))
    result = CliRunner().invoke(app, ["importance", run])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "hyperparameters: share of the importance for being in the better half of 120 lives of 1 run"
    assert lines[1].startswith("  lr ")
    assert lines[2].endswith("not told from chance")
    assert lines[3].startswith("mutations: too little data")
    facts: dict[str, Any] = json.loads(CliRunner().invoke(app, ["importance", run, "--json"]).output)
    assert [each["name"] for each in facts["hyperparameters"]] == ["lr", "batch_size"]


def test_a_damaged_lineage_is_named_with_the_command_that_restores_it(tmp_path: Path) -> None:
    run = population(tmp_path / "run", by_lr, members=4, generations=5)
    file = run / "evolution.jsonl"
    text = file.read_text()
    lines = text.splitlines(keepends=True)
    fix = f"fix: `agilerl resume {run}`, which restores it."
    file.write_text("".join(lines[:11]) + lines[11][:20])  # cut in the middle of the birth of member 11
    done = CliRunner().invoke(app, ["importance", str(run)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.endswith(f"lacks the birth of member 11. {fix}\n")
    file.write_text("".join([*lines[:5], "{spoilt\n", *lines[6:]]))
    done = CliRunner().invoke(app, ["importance", str(run)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"RunError: line 6 of {file} is damaged (")
    assert done.stderr.endswith(f"). {fix}\n")
    file.write_text(text)
    assert CliRunner().invoke(app, ["importance", str(run)]).exit_code == 0


def test_births_of_the_generation_that_ends_may_still_be_missing(tmp_path: Path) -> None:
    run = population(tmp_path / "run", by_lr, members=4, generations=5)
    lines = (run / "evolution.jsonl").read_text().splitlines(keepends=True)
    (run / "evolution.jsonl").write_text("".join(lines[:-2]))
    records = RunRecords.read(run)
    with pytest.raises(RunError, match="lacks the birth of member 18"):
        records.check_lineage()
    records.facts = {**records.facts, "status": "running"}
    records.check_lineage()


def test_without_optuna_the_command_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = population(tmp_path / "run", by_lr, members=2, generations=2)
    monkeypatch.setattr(module, "is_available", lambda: False)
    result = CliRunner().invoke(app, ["importance", str(run)])
    assert result.exit_code == 2
    assert 'needs Optuna. fix: pip install "agilerl[optuna]".' in result.output
    with pytest.raises(ConfigError, match="needs Optuna"):
        module.check_installed()


def test_a_report_has_the_part_only_with_optuna_and_something_to_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    telling, silent = population(tmp_path / "telling", by_lr), population(tmp_path / "silent", noise)
    assert "<h2>What mattered</h2>" in write_report(telling).read_text()
    assert "What mattered" not in write_report(silent).read_text()
    monkeypatch.setattr(module, "is_available", lambda: False)
    assert "What mattered" not in write_report(telling).read_text()
    assert of_report(RunRecords.read(telling)) is None
