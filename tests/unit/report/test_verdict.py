"""The verdict about a schedule: its numbers by hand, its sentence, and which runs it still needs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from synthetic_runs import birth, member, write_run
from typer.testing import CliRunner

from agilerl.cli import app
from agilerl.errors import ConfigError
from agilerl.report.verdict import Verdict
from agilerl.training.verdict import Arms

LOW, MIDDLE, HIGH = (10.0, 11.0, 12.0, 13.0, 14.0), (20.0, 21.0, 22.0, 23.0, 24.0), (30.0, 31.0, 32.0, 33.0, 34.0)


def verdict(schedule: tuple[float, ...], constants: tuple[float, ...], founder: tuple[float, ...]) -> Verdict:
    arms = {"schedule": schedule, "constants": constants, "founder": founder}
    return Verdict({arm: dict(enumerate(scores, 1)) for arm, scores in arms.items()}, 100, 4000)


def test_numbers_are_those_worked_by_hand() -> None:
    """(1, 3) against (2, 2) wins 2 of 4 pairs, against (3, 0) it wins 2.5: 1 > 0, 3 > 0, and a half for 3 = 3."""
    found = Verdict({"schedule": {1: 1.0, 2: 3.0}, "constants": {1: 2.0, 2: 2.0}, "founder": {1: 3.0, 2: 0.0}}, 5, 100)
    assert [chance.chance for chance in found.chances()] == [0.5, 0.625, 0.5]
    mean = found.summary("schedule")
    assert mean is not None
    assert (mean.mean, mean.ci95) == (2.0, (1.0, 3.0))
    assert found.sentence() == "Too few seeds for a verdict: each way needs 3, and has 2."


def test_intervals_are_bootstraps_over_the_seeds_of_both_ways() -> None:
    """Where one seed of three ways wins all pairs and the others none, resampling gives 0 to 1."""
    found = verdict((1.0, 1.0, 9.0), (5.0, 5.0, 5.0), (0.0, 0.0, 0.0))
    first, second, third = found.chances()
    assert first.chance == pytest.approx(1 / 3)
    assert first.ci95 == (0.0, 1.0)
    assert (second.chance, second.ci95, third.ci95) == (1.0, (1.0, 1.0), (1.0, 1.0))
    assert [chance.sign for chance in found.chances()] == [0, 1, 1]


@pytest.mark.parametrize(
    ("scores", "sentence"),
    [
        ((HIGH, MIDDLE, LOW), "The schedule carries the gain: it is better than its final constants, and better than"),
        (
            (MIDDLE, LOW, MIDDLE),
            "The schedule carries the gain: it is better than its final constants, though not clearly better",
        ),
        ((MIDDLE, MIDDLE, LOW), "The final constants carry the gain: .*, and the schedule adds nothing"),
        ((MIDDLE, HIGH, LOW), "The final constants carry the gain: .*, and the schedule is worse than them."),
        ((MIDDLE, (8.0, 11.0, 22.0, 23.0, 30.0), LOW), "do not tell whether it or its final constants carry"),
        ((MIDDLE, LOW, HIGH), "Neither carries a gain: the schedule and the final constants are worse than"),
        ((MIDDLE, (8.0, 11.0, 12.0, 36.0, 37.0), HIGH), "Neither carries a gain: the schedule is worse than"),
        ((LOW, LOW, MIDDLE), "Neither carries a gain: the schedule and the final constants are worse than"),
        ((MIDDLE, MIDDLE, MIDDLE), "Neither carries a gain that these seeds show over the founder's values."),
    ],
)
def test_one_sentence_says_what_carries_the_gain(scores: tuple[tuple[float, ...], ...], sentence: str) -> None:
    assert re.search(sentence, verdict(*scores).sentence()), verdict(*scores).sentence()


def test_lines_hold_scores_chances_and_the_sentence() -> None:
    lines = verdict(HIGH, MIDDLE, LOW).lines()
    assert lines[0].startswith("schedule   mean 32.0   95% CI 30.")
    assert lines[3] == "P(schedule better than constants) = 1.00   95% CI 1.00..1.00"
    assert len(lines) == 7
    some = Verdict({"schedule": {1: 1.0}}, 5, 10, (("founder", 1),)).lines()
    assert some[1] == "constants  no score yet"
    assert "no score yet: founder of seed 1" in some


def evolved(path: Path, seed: int = 0) -> Path:
    rows = [member(0, 0, 0, 1.0), member(1, 1, 0, 2.0, parent=0, **{"hp.lr": 0.002})]
    births = [birth(0, None, 0, "founder"), birth(1, 0, 1, "rl_hp", "lr", before=0.001, after=0.002)]
    return write_run(path, rows, births, lr=0.001, seed=seed)


def finished(path: Path, returns: list[float], status: str = "done") -> None:
    path.mkdir(parents=True)
    mean = float(np.mean(returns))
    test = {"mean": mean, "iqm": mean, "ci95": [mean, mean], "returns": returns}
    (path / "run.json").write_text(json.dumps({"status": status, "result": {"test": test}}))


def test_finished_seeds_are_not_run_again(tmp_path: Path) -> None:
    arms = Arms.of(evolved(tmp_path / "run"), [1, 2], episodes=2)
    assert list(arms.jobs("cpu")) == [
        "1 schedule", "1 constants", "1 founder", "2 schedule", "2 constants", "2 founder"
    ]  # fmt: skip
    finished(arms.run_path("schedule", 1), [3.0, 5.0])
    finished(arms.run_path("constants", 1), [3.0, 5.0, 7.0])  # of another number of episodes
    finished(arms.run_path("founder", 1), [3.0, 5.0], status="running")
    assert list(arms.jobs("cpu")) == ["1 constants", "1 founder", "2 schedule", "2 constants", "2 founder"]
    found = arms.write()
    assert found.scores == {"schedule": {1: 4.0}, "constants": {}, "founder": {}}
    written = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert written["arms"]["schedule"]["scores"] == {"1": 4.0}
    assert written["seeds"] == [1, 2]
    assert len(written["missing"]) == 5


def test_all_ways_have_one_agent_equal_steps_and_no_early_end(tmp_path: Path) -> None:
    arms = Arms.of(evolved(tmp_path / "run"), [1])
    jobs = arms.jobs("cpu")
    for job in jobs.values():
        training = job.manifest.training
        assert (training.pop_size, training.stop_after, training.target_score, training.seed) == (1, 2000, None, 1)
        assert job.manifest.algorithm.hyperparameters["lr"] == 0.001
    changes = {name: job.manifest.as_dict()["evolution"]["schedule"] for name, job in jobs.items()}
    assert [change["env_steps"] for change in changes["1 schedule"]] == [1000]
    assert [change["env_steps"] for change in changes["1 constants"]] == [0]
    assert changes["1 founder"] == []


def test_the_runs_own_seed_is_refused_and_left_out_by_default(tmp_path: Path) -> None:
    run = evolved(tmp_path / "run", seed=2)
    with pytest.raises(ConfigError, match=r"seed 2 is that of .*run.*fresh seeds. fix: --seeds 3-7"):
        Arms.of(run, [0, 1, 2, 3, 4])
    assert Arms.of(run).seeds == (0, 1, 3, 4, 5)
    result = CliRunner().invoke(app, ["schedule", str(run), "--verdict", "--seeds", "2"])
    assert result.exit_code == 2
    assert "seed 2 is that of" in result.output
    assert result.output.endswith("fix: --seeds 3.\n")


def test_runs_of_another_winner_are_not_mixed_in(tmp_path: Path) -> None:
    run = evolved(tmp_path / "run")
    arms = Arms.of(run, [1])
    finished(arms.run_path("schedule", 1), [1.0] * 100)
    arms.write()
    assert Arms.of(run, [1, 2]).verdict().scores["schedule"] == {1: 1.0}
    text = (run / "evolution.jsonl").read_text().replace("0.002", "0.003")
    (run / "evolution.jsonl").write_text(text)
    rows = (run / "metrics.csv").read_text().replace("0.002", "0.003")
    (run / "metrics.csv").write_text(rows)
    with pytest.raises(ConfigError, match=r"verdict holds runs with other settings.* fix: move .*verdict and"):
        Arms.of(run, [1])
