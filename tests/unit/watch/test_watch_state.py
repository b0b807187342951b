"""The run that the live view shows: read piece by piece, as the whole files say, whatever happens to them."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from agilerl.runs.names import LINEAGE, METRICS
from agilerl.runs.records import RunRecords
from agilerl.runs.steering import ACTIONS
from agilerl.runs.tail import Tail
from agilerl.telemetry.progress import MESSAGES, PROGRESS, ProgressSink
from agilerl.telemetry.record import GenerationRecord, MemberRecord, RunPlan
from agilerl.views.watch import state
from agilerl.views.watch.state import LogLine, Progress, RunFollower
from agilerl.views.watch.wire import birth_columns, change_text, facts_of, generation_columns
from tests.unit.synthetic_runs import birth, family, member, write_run

OPTIONS = {"max_steps": 10_000, "evo_steps": 1000, "evo_first": None, "target": 195.0}


# --- files that grow --------------------------------------------------------------------------------------------------


def test_a_tail_gives_new_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    tail = Tail(path)
    assert tail.read().lines == ()
    path.write_text("one\ntw")
    assert tail.read().lines == ("one",)
    with open(path, "a") as file:
        file.write("o\nthree\n")
    assert tail.read().lines == ("two", "three")
    assert tail.read() == type(tail.read())()


def test_a_file_that_was_cut_and_grew_beyond_its_old_length_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one\ntwo\n")
    tail = Tail(path)
    tail.read()
    path.write_text("one\n2\nthree\nfour\n")
    chunk = tail.read()
    assert (chunk.is_rewound, chunk.lines) == (True, ("one", "2", "three", "four"))
    os.truncate(path, 4)
    assert (tail.read().is_rewound, tail.read().lines) == (True, ())
    path.unlink()
    assert tail.read().is_rewound
    assert not tail.read().is_rewound, "said once"


def test_long_files_come_in_pieces_and_endless_lines_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("aa\nbb\n" + "x" * 20 + "\ncc\n")
    tail, lines, dropped = Tail(path, chunk_bytes=8), list[str](), 0
    has_more = True
    while has_more:
        chunk = tail.read()
        lines, dropped, has_more = [*lines, *chunk.lines], dropped + chunk.dropped, chunk.has_more
    assert (lines, dropped) == (["aa", "bb", "cc"], 1)


def test_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a\n")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    assert Tail(tmp_path / "link").read().lines == Tail(tmp_path / "pipe").read().lines == ()


# --- a run ------------------------------------------------------------------------------------------------------------


def columns(run: RunFollower) -> list[Any]:
    return [generation_columns(run, members) for members in run.generations]


@pytest.mark.parametrize("seed", range(4))
def test_any_pieces_give_what_the_whole_files_say(seed: int, tmp_path: Path) -> None:
    """Files of a finished run are copied in pieces that end anywhere; the records are those of the report."""
    source = family(tmp_path / "source", 5, 9, seed=seed)
    target, rng = tmp_path / "run", random.Random(seed)
    target.mkdir()
    for name in ("run.json", "config.yaml"):
        shutil.copy(source / name, target / name)
    data = {name: (source / name).read_bytes() for name in (LINEAGE, METRICS)}
    run, places = RunFollower(target), dict.fromkeys(data, 0)
    while any(places[name] < len(data[name]) for name in data):
        name = rng.choice([name for name in data if places[name] < len(data[name])])
        size = rng.randrange(1, 900)
        with open(target / name, "ab") as file:
            file.write(data[name][places[name] : places[name] + size])
        places[name] += size
        run.poll()
    records = RunRecords.read(source)
    assert run.generations == records.generations
    assert (run.births, run.ends, run.newborns) == (records.births, records.ends, records.newborns)
    assert run.winner == records.winner is not None
    assert (run.epoch, run.damage) == (0, [])
    again = RunFollower(source)
    again.poll()
    assert columns(again) == columns(run)


def test_the_best_member_is_that_of_the_report_with_confirmations_and_windows(tmp_path: Path) -> None:
    rows = [
        member(0, 0, 0, 10.0), member(0, 1, 1, 30.0), member(1, 1, 0, 20.0, confirmation=15.0, is_best=1),
        member(1, 2, 1, 18.0, parent=1, confirmation=15.0), member(2, 1, 0, 90.0), member(2, 2, 1, math.nan, parent=1),
    ]  # fmt: skip
    births = [birth(0, None, 0, "founder"), birth(1, None, 0, "founder"), birth(2, 1, 1, "none")]
    for window in (1, 2, 3):
        path = write_run(tmp_path / str(window), rows, births, status="interrupted")
        with open(path / "config.yaml", "a") as file:
            file.write(f"tournament_selection: {{eval_loop: {window}}}\n")
        run, records = RunFollower(path), RunRecords.read(path)
        run.poll()
        assert run.winner == records.winner is not None
        assert (run.winner.id, run.winner.generation) == (1, 1), "held-out scores come first"


def test_columns_details_and_births_by_hand(tmp_path: Path) -> None:
    rows = [
        member(0, 0, 0, 1.5, score=2.0, updates=7, loss=0.25, is_best=1, mutation="founder"),
        member(0, 1, 1, math.nan, score=""),
    ]
    births = [birth(0, None, 0, "founder"), birth(1, None, 0, "founder")]
    births += [birth(2, 0, 1, "rl_hp", "lr", before=0.001, after=0.0012), birth(3, 0, 1, "elite")]
    run = RunFollower(write_run(tmp_path / "run", rows, births))
    run.poll()
    ((first, second),) = run.generations
    columns = generation_columns(run, [first, second])
    assert (columns["number"], columns["best"], columns["confirmation"]) == (1, 0, None)
    assert columns["fitness"] == [1.5, None]
    assert (columns["env_steps"], first.env_steps, columns["seconds"]) == (4000, 1000, 60.0)
    assert (first.id, first.score, first.updates, first.loss, first.network) == (0, 2.0, 7, 0.25, "[64] 64 [64]")
    assert second.score is None
    assert birth_columns(run, run.births)["texts"] == ["", "", "lr 0.001 → 0.0012", ""]
    assert change_text(run.births[3]) == ""


def test_a_generation_that_is_read_half_is_completed_later(tmp_path: Path) -> None:
    rows = [member(0, slot, slot, float(slot)) for slot in range(4)]
    path = write_run(tmp_path / "run", rows, [])
    text = (path / METRICS).read_text()
    lines = text.splitlines(keepends=True)
    (path / METRICS).write_text("".join(lines[:3]) + lines[3][:5])
    run = RunFollower(path)
    run.poll()
    assert [[m.id for m in g] for g in run.generations] == [[0, 1]]
    (path / METRICS).write_text(text)
    run.poll()
    assert [[m.id for m in g] for g in run.generations] == [[0, 1, 2, 3]]
    assert run.epoch == 0


def test_damaged_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [member(0, 0, 0, 1.0), member(0, 1, 1, 2.0)], [birth(0, None, 0, "founder")])
    good = (path / METRICS).read_text().splitlines()[-1]
    with open(path / METRICS, "a") as file:
        file.write('nonsense\n"unclosed,1,2\n0,' + ",".join(good.split(",")[1:-1]) + "\n\0\0\0\n")
        file.write("9" * 5000 + good[1:] + "\n")  # more digits than `int` reads
        file.write(good.replace("0,1,1", "1,x,1", 1) + "\n" + good.replace("0,1,1", "1,7,1", 1) + "\n")
    with open(path / LINEAGE, "a") as file:
        file.write('{"id": 1,\n[1]\n{"id": "x", "generation": 0}\n' + json.dumps(birth(1, 0, 1, "none")) + "\n")
        file.write("[" * 100_000 + "\n")
    run = RunFollower(path)
    run.poll()
    assert [(g[0].generation, [m.id for m in g]) for g in run.generations] == [(0, [0, 1]), (1, [7])]
    assert [b.id for b in run.births] == [0, 1]
    assert [entry.file for entry in run.damage] == [LINEAGE] * 4 + [METRICS] * 6
    assert [entry.line for entry in run.damage] == [2, 3, 4, 6, *range(4, 10)]


def test_a_resume_that_cuts_the_files_back_is_read_anew(tmp_path: Path) -> None:
    path = family(tmp_path / "run", 3, 6)
    lines, births = (path / METRICS).read_text().splitlines(keepends=True), (path / LINEAGE).read_bytes()
    run = RunFollower(path)
    run.poll()
    assert len(run.generations) == 6
    (path / METRICS).write_text("".join(lines[:7]))  # a header, two generations of three
    (path / LINEAGE).write_bytes(births[: births.index(b"\n") + 1])
    run.poll()
    assert (run.epoch, len(run.generations), len(run.births)) == (1, 2, 1)


@pytest.mark.parametrize("status", ["running", "failed", "done"])
def test_a_result_of_before_a_resume_is_outdated(status: str, tmp_path: Path) -> None:
    """A resumed run keeps the earlier result in run.json until it ends; the page and the report leave it out."""
    path = write_run(tmp_path / "run", [member(0, 0, 0, 1.0)], [], status=status, returns=[1.0, 3.0])
    run = RunFollower(path)
    run.poll()
    has_result = status == "done"
    assert (run.test is not None, bool(facts_of(run)["test"])) == (has_result, has_result)
    assert (RunRecords.read(path).test is not None) == has_result


def test_a_run_that_vanishes_and_comes_back(tmp_path: Path) -> None:
    path = family(tmp_path / "run", 3, 4)
    run = RunFollower(path)
    run.poll()
    shutil.move(path, tmp_path / "away")
    run.poll()
    assert (run.status, run.is_gone, run.generations) == ("gone", True, [])
    shutil.move(tmp_path / "away", path)
    run.poll()
    assert (run.status, len(run.generations)) == ("done", 4)


@pytest.mark.parametrize("content", ["", "[]", '{"status": 3', "{}", '{"options": [], "result": 7, "notes": 1}'])
def test_damaged_facts_leave_a_page(content: str, tmp_path: Path) -> None:
    from agilerl.views.watch.wire import Cursor

    path = family(tmp_path / "run", 2, 2)
    (path / "run.json").write_text(content)
    (path / "config.yaml").write_text("a: [")
    run = RunFollower(path)
    run.poll()
    events = Cursor(run).advance({})
    assert [event.name for event in events] == ["reset", "run", "births", "generations", "members", "now"]
    assert all(event.encode() for event in events)


def test_times_of_damaged_facts_are_texts_as_the_page_expects(tmp_path: Path) -> None:
    path = family(tmp_path / "run", 2, 2)
    (path / "run.json").write_text('{"status": "done", "started": 7, "ended": ["x"]}')
    run = RunFollower(path)
    run.poll()
    assert (facts_of(run)["started"], facts_of(run)["ended"]) == ("7", "['x']")


# --- where the run is -------------------------------------------------------------------------------------------------


def running(path: Path, **more: Any) -> Path:
    """A run of two members that trains in this process, after two generations of 1000 steps in 60 s each."""
    rows = [member(n, m, m, 1.0, population_env_steps=2000 * (n + 1)) for n in (0, 1) for m in (0, 1)]
    births = [birth(0, None, 0, "founder"), birth(1, None, 0, "founder"), birth(2, 0, 2, "none")]
    write_run(path, rows, births, status="running", options=OPTIONS, population=2, **more)
    (path / "LOCK").write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "token": "a"}))
    return path


def test_progress_by_hand(tmp_path: Path) -> None:
    path = running(tmp_path / "run")
    content = {"generation": 2, "generations": 10, "max_env_steps": 10_000, "env_steps": 2250, "seconds": 135.0}
    (path / PROGRESS).write_text(json.dumps({**content, "time": 1000.0}))
    run = RunFollower(path)
    run.poll()
    assert run.progress(now=1000.5) == Progress(
        phase="training", generation=2, generations=10, env_steps=2250, max_env_steps=10_000,
        population_env_steps=4000 + 2 * 250, share=0.25,
        steps_per_second=2000 / 60, seconds=135.0, seconds_left=7750 * 0.06, training=(2,), going_on=1,
        idle_seconds=0.5,
    )  # fmt: skip
    (path / PROGRESS).write_text(json.dumps({**content, "time": 1002.0, "env_steps": 3000, "seconds": 140.0}))
    run.poll()
    late = run.progress(now=1012.0)
    assert (late.phase, late.share, late.idle_seconds) == ("evaluating", 1.0, 10.0)
    assert late.steps_per_second == 2 * 750 / 5


@pytest.mark.parametrize(("until", "left"), [(200.0, 65.0), (100.0, 0.0), (5000.0, 7750 * 0.06), (None, 7750 * 0.06)])
def test_the_time_that_is_left_is_that_of_the_nearer_limit(until: float | None, left: float, tmp_path: Path) -> None:
    path = running(tmp_path / "run")
    content = {"generation": 2, "generations": 10, "max_env_steps": 10_000, "env_steps": 2250, "seconds": 135.0}
    (path / PROGRESS).write_text(json.dumps({**content, "time": 1000.0, "time_limit": until}))
    run = RunFollower(path)
    run.poll()
    assert run.progress(now=1000.5).seconds_left == pytest.approx(left)


def test_before_its_first_generation_a_run_in_minutes_has_no_number_of_generations(tmp_path: Path) -> None:
    births = [birth(member, None, 0, "founder") for member in range(3)]
    path = write_run(tmp_path / "run", [], births, status="running", options=OPTIONS, population=3)
    (path / "LOCK").write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "token": "a"}))
    plan = RunPlan("A", "E", 3, 1, 10_000, 1000, 0, "cpu", "fused", "x", 1, time_limit=60.0)
    sink = ProgressSink(path)
    sink.start(plan, ())
    sink.progress(250, 5.0)
    run = RunFollower(path)
    run.poll()
    progress = run.progress()
    assert (progress.generations, progress.env_steps, progress.population_env_steps) == (None, 250, 750)
    assert (progress.steps_per_second, progress.seconds_left, progress.share) == (150.0, 55.0, 0.25)
    assert progress.training == (0, 1, 2)


def test_a_run_without_progress_is_known_by_its_generations(tmp_path: Path) -> None:
    run = RunFollower(running(tmp_path / "run"))
    run.poll()
    progress = run.progress()
    assert (progress.generations, progress.env_steps, progress.share) == (10, 2000, 0.0)
    assert progress.steps_per_second == 2000 / 60


def test_a_killed_run_is_interrupted(tmp_path: Path) -> None:
    path = running(tmp_path / "run")
    (path / "LOCK").write_text(json.dumps({"pid": 2**22 - 3, "host": socket.gethostname(), "token": "a"}))
    run = RunFollower(path)
    run.poll()
    assert (run.status, run.progress().phase, run.progress().training) == ("interrupted", "", ())


def test_events_of_steering_faults_and_messages_are_lines_of_the_log(tmp_path: Path) -> None:
    path = family(tmp_path / "run", 2, 1)
    steering = {
        "kind": "steering",
        "generation": 3,
        "request": "5-1",
        "action": "set",
        "member": 2,
        "name": "lr",
        "value": 0.01,
    }
    steering |= {"reason": "too slow", "author": "ann", "result": {"born": [7, 8]}}
    healed = birth(9, 1, 4, "healed", "member 3", after="loss is nan")
    arrival = {"kind": "arrival", "generation": 1, "shard": 0, "shard_generation": 1}
    with open(path / LINEAGE, "a") as file:
        file.writelines(json.dumps(event) + "\n" for event in (steering, healed, arrival))
    (path / MESSAGES).write_text('{"time": 5.0, "text": "a worker was lost"}\n{"text": 3}\n')
    run = RunFollower(path)
    run.poll()
    facts = {key: value for key, value in steering.items() if key not in ("kind", "generation", "request")}
    assert run.log == [
        LogLine("steering", "set member 2: lr 0.01 (because too slow) (by ann) → born 7, 8", 3, None, facts),
        LogLine("fault", "member 3 has diverged (loss is nan); member 9 is a copy of 1", 4),
        LogLine("message", "a worker was lost", None, 5.0),
    ]
    assert len(run.damage) == 1


def test_results_of_requests_in_words() -> None:
    assert state._outcome({"refused": "it has ended"}) == " → refused: it has ended"
    scores = {"3": {"mean": 12.5, "error": 1.0, "episodes": 20}, "7": None, "8": {"mean": None, "episodes": 4}}
    assert state._outcome({"scores": scores}) == (
        " → member 3: held-out 12.5 over 20 episodes; member 7: unknown; member 8: unknown"
    )
    assert state._outcome({"scores": {}}) == state._outcome({"scores": "x"}) == ""
    assert state._outcome({}) == state._outcome(None) == ""


def test_the_form_offers_the_actions_that_there_are() -> None:
    script = (Path(state.__file__).parent / "static" / "panels.js").read_text(encoding="utf-8")
    for action, meaning in ACTIONS.items():
        assert f'{action}: ["{meaning}"' in script, action


# --- progress.json and messages.jsonl ---------------------------------------------------------------------------------


def test_progress_is_written_once_a_second_and_at_the_end_of_a_generation(tmp_path: Path) -> None:
    clock = iter([0.0, 0.0, 0.9, 1.0, 1.0, 1.1])
    sink = ProgressSink(tmp_path, lambda: next(clock))
    sink.start(RunPlan("A", "E", 2, 1, 500, 100, 0, "cpu", "fused", "x", 1), ())

    def steps() -> Any:
        return json.loads((tmp_path / PROGRESS).read_text())["env_steps"]

    sink.progress(10, 1.0)
    assert steps() == 10
    sink.progress(20, 1.5)
    assert steps() == 10
    sink.progress(30, 2.0)
    assert steps() == 30
    only = MemberRecord(0, 0, None, 1.0, None, 100, 1, None, "None", {}, "x")
    sink.generation(GenerationRecord(0, 5, (only,), 100, 500, 200, 0, 1, 3.0))
    content = json.loads((tmp_path / PROGRESS).read_text())
    assert (content["generation"], content["generations"], content["env_steps"], content["seconds"]) == (1, 5, 100, 3.0)
    sink.message("one")
    sink.message("two")
    lines = [json.loads(line)["text"] for line in (tmp_path / MESSAGES).read_text().splitlines()]
    assert lines == ["one", "two"]
    assert {path.name for path in tmp_path.iterdir()} == {PROGRESS, MESSAGES}


def test_secrets_do_not_reach_the_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "abcdefgh12345678")
    ProgressSink(tmp_path).message("refused: abcdefgh12345678")
    assert "abcdefgh" not in (tmp_path / MESSAGES).read_text()


def test_members_of_shards_train_until_their_first_row(tmp_path: Path) -> None:
    """In asynchronous runs a member's first row comes generations after its birth."""
    path = running(tmp_path / "run")
    with open(path / "config.yaml", "a") as file:
        file.write("evolution: {mode: async}\n")
    run = RunFollower(path)
    run.poll()
    assert (run.progress().training, run.progress().going_on) == ((2,), 1)
    with open(path / LINEAGE, "a") as file:
        file.write(json.dumps(birth(3, 1, 2, "none")) + "\n")
    run.poll()
    assert run.progress().training == (2, 3)
    columns = (path / METRICS).read_text().splitlines()[0].split(",")
    row = member(2, 2, 0, 1.0, population_env_steps=6000)
    with open(path / METRICS, "a") as file:
        file.write(",".join(str(row.get(column, "")) for column in columns) + "\n")
    run.poll()
    assert run.progress().training == (3,), "2 has its row"
