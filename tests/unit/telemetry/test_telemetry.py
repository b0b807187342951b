"""Records arrive complete in files and on terminals, and a broken sink never reaches the training."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from agilerl import errors
from agilerl.config import preset_for
from agilerl.core.texts import count, number
from agilerl.errors import AgileRLWarning, ConfigError
from agilerl.telemetry.console import LiveSink, PlainSink, TqdmSink, clock, console_sink, pace, sparkline
from agilerl.telemetry.evaluation import Evaluation
from agilerl.telemetry.files import CsvSink, JsonlSink, lineage_line
from agilerl.telemetry.record import BaseSink, Birth, GenerationRecord, MemberRecord, RunPlan, Sinks
from agilerl.telemetry.trackers import TensorBoardSink, WandbSink

PLAN = RunPlan("DQN", "CartPole-v1", 2, 4, 1000, 500, 0, "cpu", "fused", "cartpole", 1, notes=("a note",))
FOUNDERS = [Birth(0, None, 0, "founder"), Birth(1, None, 0, "founder")]


def member(id: int, fitness: float, parent: int | None = None, **more: Any) -> MemberRecord:
    hyperparameters = more.pop("hyperparameters", {"lr": 6.3e-4, "batch_size": 64})
    values = {"score": 1.0, "env_steps": 500, "updates": 10, "loss": 0.1, "mutation": "lr", "network": "[64] 64 [64]"}
    return MemberRecord(id, id % 2, parent, fitness, hyperparameters=hyperparameters, **{**values, **more})


def record(generation: int, *members: MemberRecord, **more: Any) -> GenerationRecord:
    steps = 500 * generation
    return GenerationRecord(
        generation, 2, members, steps, 1000, 2 * steps, 160, 20 * generation, 4.0 * generation, epsilon=0.5, **more
    )


GENERATIONS = [
    record(1, member(0, 20.0), member(1, math.nan), births=(Birth(2, 0, 1, "rl_hp", "lr", 6.3e-4, np.float64(5e-4)),)),
    record(2, member(0, 30.0), member(2, 25.0, parent=0), confirmation=28.5),
]


def play(sink: Any) -> None:
    sink.start(PLAN, FOUNDERS)
    for generation in GENERATIONS:
        sink.progress(generation.env_steps - 100, generation.seconds)
        sink.generation(generation)
    sink.message("a message")
    sink.close()


def test_csv_holds_one_row_per_member_and_generation_under_one_header(tmp_path: Path) -> None:
    play(CsvSink(tmp_path / "metrics.csv"))
    with open(tmp_path / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["generation"], r["id"], r["fitness"]) for r in rows] == [
        ("1", "0", "20.0"), ("1", "1", "nan"), ("2", "0", "30.0"), ("2", "2", "25.0"),
    ]  # fmt: skip
    assert rows[0]["hp.lr"] == "0.00063"
    assert rows[3]["parent"] == "0"


def test_csv_rows_are_on_disk_after_each_generation_and_a_second_sink_appends(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    for generation in GENERATIONS:
        sink = CsvSink(path)
        sink.start(PLAN, FOUNDERS)
        sink.generation(generation)
        before = path.read_text()  # flushed, not only closed
        sink.close()
        assert path.read_text() == before
    assert path.read_text().count("generation,") == 1
    assert len(path.read_text().splitlines()) == 5


def test_jsonl_holds_every_birth_founders_first_as_strict_json(tmp_path: Path) -> None:
    play(JsonlSink(tmp_path / "evolution.jsonl"))
    births = [json.loads(line) for line in (tmp_path / "evolution.jsonl").read_text().splitlines()]
    assert [b["id"] for b in births] == [0, 1, 2]
    assert (births[2]["parent"], births[2]["before"], births[2]["after"]) == (0, 6.3e-4, 5e-4)


def test_jsonl_writes_a_number_that_is_not_finite_as_null(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "e.jsonl")
    sink.start(PLAN, [Birth(0, None, 0, "founder", parent_fitness=math.nan, before={"x": (np.int64(3), math.inf)})])
    sink.close()
    line = json.loads((tmp_path / "e.jsonl").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert line["parent_fitness"] is None
    assert line["before"] == {"x": [3, None]}


def test_a_birth_names_the_changes_of_other_networks_where_they_were_measured() -> None:
    """Lines of earlier runs have no `changes`, and equal those of births without any, byte by byte."""
    without, changed = Birth(1, 0, 1, "rl_hp", "lr", 1, 2, 0.0), Birth(1, 0, 1, "activation", changes={"critic": 0.25})
    earlier = json.loads(lineage_line(without))
    assert list(earlier) == [
        "id",
        "parent",
        "generation",
        "kind",
        "path",
        "before",
        "after",
        "change",
        "parent_fitness",
    ]
    assert Birth(**earlier) == without
    assert Birth(**json.loads(lineage_line(changed))) == changed


def test_plain_output_is_one_line_per_generation_without_escape_codes() -> None:
    stream = io.StringIO()
    play(PlainSink(stream, "runs/CartPole-v1/dqn-0001"))
    text = stream.getvalue()
    assert "\x1b" not in text
    assert "\r" not in text
    first, note, one, two, message = text.splitlines()
    assert first.startswith("DQN on CartPole-v1   2 members x 1k env steps   seed 0   cpu (1 thread)")
    assert (note, message) == ("a note", "a message")
    assert "best 20 (member 0)" in one  # NaN never wins, and is left out of the mean
    assert "mean 20" in one
    assert "1k/2k env steps (500/1k per member)   250 steps/s   elapsed 00:04   left 00:04" in one
    assert "held-out 28.5" in two


def test_the_live_table_shows_best_parent_and_the_trend_of_the_line() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=140, color_system=None)
    play(LiveSink(console=console))
    frames = console.file.getvalue()  # type: ignore[attr-defined]
    last = frames[frames.rindex("gen  3/2") :]
    rows = [line for line in last.splitlines() if "[64] 64 [64]" in line]
    assert "* best" in rows[0]
    assert rows[0].split()[:3] == ["0", "-", "30.0"]
    assert rows[1].split()[:3] == ["2", "0", "25.0"]
    assert "▁▅" in rows[1]  # it continues its parent's 20 with its own 25, on the scale 20..30
    assert "100%" in last


def test_a_child_that_was_not_mutated_shows_a_dash() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=140, color_system=None)
    sink = LiveSink(console=console)
    sink.start(PLAN, FOUNDERS)
    sink.generation(record(1, member(0, 20.0, mutation="None")))
    sink.close()
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "None" not in text
    assert re.search(r"\[64\] 64 \[64\]\s+-\s", text)


def test_another_width_clears_the_screen_and_prints_everything_anew() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    sink = LiveSink(console=console)
    sink.start(PLAN, FOUNDERS)
    sink.message("a word")
    sink.generation(GENERATIONS[0])
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[2J" not in text
    console.width = 70
    sink.generation(GENERATIONS[1])
    sink.close()
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("\x1b[2J\x1b[H") == 1
    screen = text[text.index("\x1b[2J") :]
    assert [screen.count(part) for part in ("DQN on CartPole-v1", "a note", "a word", "gen  2/2")] == [1, 1, 1, 0]
    assert "gen  3/2" in screen
    assert max(len(line) for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen).splitlines()) <= 70


WIDTHS = {
    140: "# parent fitness trend lr batch net last mutation",
    70: "# fitness trend lr net last mutation",
    48: "# fitness trend net",
    30: "# fitness net",
    20: "# fitness",
    10: "# fitness",
}


@pytest.mark.parametrize("width", WIDTHS)
def test_a_narrow_terminal_loses_columns_and_no_line_wraps(width: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    sink = LiveSink(console=console, path="runs/CartPole-v1/dqn-0001")
    sink.start(PLAN, FOUNDERS)
    for generation in GENERATIONS:
        sink.generation(generation)
    plain = Console(file=io.StringIO(), width=500, color_system=None)
    plain.print(sink._table(GENERATIONS[1]))
    header = plain.file.getvalue().splitlines()[0]  # type: ignore[attr-defined]
    assert " ".join(header.split()) == WIDTHS[width]
    narrow = Console(file=io.StringIO(), width=width, color_system=None)
    narrow.print(sink._table(GENERATIONS[1]))
    narrow.print(sink._progress_line(PLAN))
    lines = narrow.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 1 + 2 + 1
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(("limit", "share"), [(None, " 10%"), (100.0, " 30%"), (1000.0, " 10%")])
def test_the_bar_of_a_run_in_minutes_follows_the_nearer_limit(limit: float | None, share: str) -> None:
    sink = LiveSink(console=Console(file=io.StringIO(), width=200, color_system=None))
    plan = replace(PLAN, time_limit=limit)
    sink._steps, sink._seconds = plan.max_env_steps // 10, 30.0
    assert share in sink._progress_line(plan).plain


def test_the_live_table_says_what_a_mutation_changed() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=140, color_system=None)
    play(LiveSink(console=console))
    frames = console.file.getvalue()  # type: ignore[attr-defined]
    assert "lr 6.3e-4 -> 5e-4" in frames[frames.rindex("gen  3/2") :]


def test_a_pipe_gets_a_line_after_half_a_minute_without_one() -> None:
    stream, clock_ = io.StringIO(), [0.0]
    sink = PlainSink(stream, now=lambda: clock_[0])
    sink.start(PLAN, FOUNDERS)
    said = len(stream.getvalue().splitlines())
    for second in range(1, 100):
        clock_[0] = float(second)
        sink.progress(5 * second, float(second))
    lines = stream.getvalue().splitlines()[said:]
    assert [line.split("elapsed ")[1][:5] for line in lines] == ["00:30", "01:00", "01:30"]
    assert lines[0].startswith("...       300/2k env steps (150/1k per member)   10 steps/s")
    sink.generation(GENERATIONS[0])  # a line of its own: the silence begins anew
    clock_[0] = 128.0
    sink.progress(600, 128.0)
    assert len(stream.getvalue().splitlines()) == said + 4


def test_the_bar_leaves_a_pipe_alone_between_generations() -> None:
    stream = io.StringIO()
    sink = TqdmSink(stream)
    sink.start(PLAN, FOUNDERS)
    before = len(stream.getvalue())
    for steps in range(1, 500):
        sink.progress(steps, steps / 100)
    assert len(stream.getvalue()) == before
    sink.generation(GENERATIONS[0])
    assert "gen  2/2" in stream.getvalue()[before:]
    sink.close()


@pytest.mark.parametrize(
    ("returns", "text"),
    [
        ([0.0, 1.0] * 32, "64 episodes: mean 0.50, 95% CI 0.38..0.62"),
        ([500.0] * 4, "4 episodes: mean 500.0, 95% CI 500.0..500.0"),
        ([0.74] * 4, "4 episodes: mean 0.740, 95% CI 0.740..0.740"),
        ([100.0, 300.0] * 8, "16 episodes: mean 200.0, 95% CI 150.0..250.0"),
        ([0.0], "1 episodes: mean 0.0, 95% CI 0.0..0.0"),
    ],
)
def test_scores_have_the_digits_that_their_interval_leaves_a_meaning(returns: list[float], text: str) -> None:
    assert str(Evaluation.from_returns(returns)) == text


def test_the_console_is_live_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for name in ("NO_COLOR", "CI", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert isinstance(console_sink(True, Terminal()), LiveSink)
    assert isinstance(console_sink(True, io.StringIO()), PlainSink)
    assert type(console_sink(False, Terminal())) is BaseSink
    for name in ("NO_COLOR", "CI"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            assert isinstance(console_sink(True, Terminal()), PlainSink)


def test_the_bar_counts_steps_per_member_and_never_overflows() -> None:
    stream = io.StringIO()
    sink = TqdmSink(stream, table=False)
    sink.start(PLAN, FOUNDERS)
    positions = []
    for steps in (400, 300, 1000, 2048):
        sink.progress(steps, 1.0)
        positions.append((sink._bar.n, sink._bar.total))
    sink.close()
    assert positions == [(400, 1000), (400, 1000), (1000, 1000), (1000, 1000)]


def test_a_broken_sink_is_dropped_with_one_warning_and_the_others_go_on() -> None:
    errors._warned.clear()

    class Broken(BaseSink):
        calls = 0

        def generation(self, record: GenerationRecord) -> None:
            self.calls += 1
            raise OSError("disk full")

    broken, stream = Broken(), io.StringIO()
    with pytest.warns(AgileRLWarning, match=r"Broken failed \(OSError: disk full\)") as caught:
        play(Sinks([broken, PlainSink(stream)]))
    assert len(caught) == 1
    assert broken.calls == 1
    assert len(stream.getvalue().splitlines()) == 5


def test_a_user_error_before_the_first_step_is_raised() -> None:
    class Refuses(BaseSink):
        def start(self, plan: RunPlan, founders: Any) -> None:
            raise ConfigError("no")

    with pytest.raises(ConfigError):
        Sinks([Refuses()]).start(PLAN, FOUNDERS)


def test_wandb_that_is_missing_or_offline_warns_once_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Offline:
        @staticmethod
        def init(**_: Any) -> None:
            raise ConnectionError("no network")

    for module, reason in ((None, "not installed"), (Offline, "no network")):
        errors._warned.clear()
        monkeypatch.setitem(sys.modules, "wandb", module)
        with pytest.warns(AgileRLWarning, match=reason) as caught:
            [play(WandbSink()) for _ in range(2)]
        assert len(caught) == 1


def test_wandb_gets_the_numbers_over_environment_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Run:
        def log(self, values: dict[str, float], step: int) -> None:
            calls.append((step, values["population/best_fitness"]))

        def finish(self) -> None:
            calls.append("finished")

    class Online:
        @staticmethod
        def login(key: str) -> None:
            calls.append(key)

        @staticmethod
        def init(**arguments: Any) -> Run:
            calls.append((arguments["project"], arguments["group"], arguments["config"]["LR"]))
            return Run()

    monkeypatch.setitem(sys.modules, "wandb", Online)
    play(WandbSink(config={"LR": 1e-3}, api_key="k", group="g"))
    assert calls == ["k", ("agilerl", "g", 1e-3), (500, 20.0), (1000, 30.0), "finished"]


def test_tensorboard_holds_the_fitness_over_environment_steps(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    play(TensorBoardSink(tmp_path))
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    found = [(e.step, e.value) for e in events.Scalars("population/best_fitness")]
    assert found == [(500, 20.0), (1000, 30.0)]


def test_tensorboard_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r'fix: pip install "agilerl\[tensorboard\]"'):
        TensorBoardSink(tmp_path)


def test_evaluation_of_known_returns() -> None:
    found = Evaluation.from_returns([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 107.0])
    assert (found.mean, found.iqm) == (16.0, 3.5)  # the middle four are 2, 3, 4, 5
    assert found.std == pytest.approx(np.std(found.returns, ddof=1))
    assert found.ci95[0] < 16.0 < found.ci95[1]
    assert found == Evaluation.from_returns(list(found.returns))
    assert Evaluation.from_returns([3.0]).as_dict()["std"] is None
    with pytest.raises(ValueError, match="at least one episode"):
        Evaluation.from_returns([])


def test_the_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    intervals = [Evaluation.from_returns(rng.normal(0.0, 1.0, 100)).ci95 for _ in range(100)]
    covered = sum(low <= 0.0 <= high for low, high in intervals)
    assert 88 <= covered <= 100  # Binomial(100, 0.95) leaves this range with probability 0.004


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (950, "950"), (5900, "5.9k"), (280_000, "280k"), (1_200_000, "1.2M"), (999_999, "1M")]
)
def test_counts_are_short(value: float, text: str) -> None:
    assert count(value) == text


def test_numbers_and_times_are_short() -> None:
    assert [number(x) for x in (6.3e-4, 0.99, 128, None, 0.0)] == ["6.3e-4", "0.99", "128", "-", "0"]
    assert [clock(x) for x in (0, 232, 3725, math.inf)] == ["00:00", "03:52", "1:02:05", "--:--"]
    assert sparkline([0.0, math.nan, 5.0, 10.0], 0.0, 10.0) == "▁ ▅█"
    assert "left --:--" in pace(0, 0, 100, 4, 0.0)
    assert pace(700, 100, 300, 2, 7.0).startswith(
        "700/1.1k env steps (100/300 per member)   100 steps/s   elapsed 00:07"
    )


def test_the_progress_bar_names_the_seed_and_the_notes_first() -> None:
    stream = io.StringIO()
    sink = TqdmSink(stream)
    sink.start(PLAN, [])
    sink.close()
    lines = stream.getvalue().splitlines()
    assert f"seed {PLAN.seed}" in lines[0]
    assert lines[1 : 1 + len(PLAN.notes)] == list(PLAN.notes)


def test_a_step_of_learning_from_data_is_called_an_update() -> None:
    stream = io.StringIO()
    sink = PlainSink(stream)
    sink.start(replace(PLAN, steps="updates"), FOUNDERS)
    sink.generation(GENERATIONS[0])
    headline, *_, generation = stream.getvalue().splitlines()
    assert "2 members x 1k updates" in headline
    assert " updates (" in generation
    assert "env steps" not in stream.getvalue()
    assert preset_for("CartPole-v1", "CQN").steps == "updates"
    assert preset_for("CartPole-v1", "DQN").steps == "env steps"
