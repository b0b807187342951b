"""Requests to a running run: what is accepted, and that each is handed over once, at its generation."""

from __future__ import annotations

import getpass
import json
import os
import socket
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agilerl import algorithms
from agilerl.api import build_manifest, steer
from agilerl.cli import app
from agilerl.errors import AgileRLWarning, AlgorithmError, ConfigError, RunError
from agilerl.runs.directory import RunDirectory
from agilerl.runs.names import REQUESTS
from agilerl.runs.records import RunRecords
from agilerl.runs.steering import LOG, Inbox, Request, Taken, ask, pending, refuse_left_stop, script_of
from agilerl.telemetry.files import lineage_line
from agilerl.telemetry.record import Birth, Steering

RANGES = {"lr": {"min": 1e-4, "max": 1e-2}, "batch_size": {"min": 8, "max": 256}}


def running_run(path: Path, **settings: Any) -> Path:
    """A run directory whose process is this one, with members 0 and 1."""
    settings = {"mutation.rl_hp_selection": RANGES, "replay_buffer.max_size": 10_000, **settings}
    manifest = build_manifest("CartPole-v1", "DQN", preset=False, population=2, overrides=settings)
    directory = RunDirectory.create_at(path / "run")
    directory.begin(manifest)
    (directory.path / "LOCK").write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "token": "x"}))
    lines = [lineage_line(Birth(member, None, 0, "founder")) for member in (0, 1)]
    (directory.path / "evolution.jsonl").write_text("".join(lines))
    return directory.path


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"action": "sett"}, "fix: set"),
        ({"action": "pause"}, "unknown action 'pause'. fix: stop, and `agilerl resume RUN` goes on."),
        ({"action": "Quit"}, "fix: stop, and"),
        ({"action": "kill", "member": 1}, "unknown action 'kill'. fix: remove."),
        ({"action": "freeze", "name": "lr", "value": 1}, "fix: pin."),
        ({"action": 3}, "unknown action"),
        ({}, "has an action"),
        ([], "has an action"),
        ({"action": "stop", "memberr": 1}, "fix: member"),
        ({"action": "stop", "member": 1}, "the whole run"),
        ({"action": "clone"}, "for one member"),
        ({"action": "protect", "member": "2"}, "id of a member"),
        ({"action": "protect", "member": True}, "id of a member"),
        ({"action": "set", "name": "lr"}, "needs a value"),
        ({"action": "set", "value": 1}, "needs a name"),
        ({"action": "unpin", "name": "lr", "value": 1}, "takes no value"),
        ({"action": "remove", "member": 1, "name": "lr"}, "takes no name"),
        ({"action": "stop", "reason": "x" * 501}, "at most 500"),
        ({"action": "set", "name": "lr", "value": float("nan")}, "lr must be a finite number; got nan"),
        ({"action": "set", "name": "lr", "value": [1]}, "lr must be a finite number"),
    ],
)
def test_a_malformed_request_is_named(content: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Request.from_dict(content)


def test_a_request_is_a_file_with_its_author(tmp_path: Path) -> None:
    run = running_run(tmp_path)
    first = ask(run, Request("set", 1, "lr", 1e-3, "too slow", "ada"))
    second = steer(run, "evaluate")
    assert [first, second] == sorted((run / REQUESTS).glob("*.json"))
    assert next(iter(pending(run).values())) == Request("set", 1, "lr", 1e-3, "too slow", "ada")
    assert json.loads(second.read_text())["author"] != ""


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        (Request("set", 1, "lrr", 1e-3), ConfigError, "fix: lr"),
        (Request("set", 1, "lr", -1.0), AlgorithmError, "above 0"),
        (Request("set", None, "batch_size", 12.5), AlgorithmError, "integer"),
        (Request("set", None, "lr", "fast"), AlgorithmError, "lr must be"),
        (Request("set", None, "batch_size", 10_001), ConfigError, r"holds \(10000 .*fix: batch_size=10000"),
        (Request("clone", 7), ConfigError, "ids go up to 1"),
    ],
)
def test_a_request_that_cannot_be_carried_out_is_refused_at_once(
    tmp_path: Path, request_: Request, error: type, words: str
) -> None:
    run = running_run(tmp_path)
    with pytest.raises(error, match=words):
        ask(run, request_)
    assert pending(run) == {}


def test_a_value_has_the_type_of_its_hyperparameter(tmp_path: Path) -> None:
    run = running_run(tmp_path)
    ask(run, Request("set", None, "batch_size", 1e2))
    (request,) = pending(run).values()
    assert (request.value, type(request.value)) == (100, int)


@pytest.mark.parametrize(("value", "is_noted"), [(1e-4, False), (1e-2, False), (9e-5, True), (1e9, True)])
def test_a_value_outside_of_the_range_of_mutation_is_accepted_with_a_note(
    tmp_path: Path, value: float, is_noted: bool
) -> None:
    run = running_run(tmp_path)
    done = CliRunner().invoke(app, ["steer", str(run), "set", f"lr={value}"])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("asked  ")
    note = f"warning: lr={value:g} lies outside of the range of this run, 0.0001 to 0.01 (mutation.rl_hp_selection.lr)"
    assert done.stderr.startswith(note) if is_noted else done.stderr == ""
    assert [request.value for request in pending(run).values()] == [value]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ask(run, Request("unpin", None, "lr"))


def test_a_run_that_does_not_train_takes_no_request(tmp_path: Path) -> None:
    run = running_run(tmp_path)
    (run / "LOCK").write_text(json.dumps({"pid": 2**22 + 1, "host": socket.gethostname(), "token": "x"}))
    with pytest.raises(RunError, match=r"status: interrupted.*fix: .*resume"):
        steer(run, "stop")
    RunDirectory(run).finish("done")
    with pytest.raises(RunError, match="status: done"):
        steer(run, "stop")
    with pytest.raises(RunError, match="no run"):
        steer(tmp_path / "nowhere", "stop")


def test_asynchronous_runs_are_not_steered(tmp_path: Path) -> None:
    run = running_run(tmp_path, **{"evolution.mode": "async", "training.shards": 2})
    with pytest.raises(ConfigError, match="asynchronous mode"):
        steer(run, "stop")


def test_a_run_of_an_own_algorithm_is_steered_with_its_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests without a hyperparameter need no import."""
    monkeypatch.setattr(algorithms, "_registered", {})
    code = tmp_path / "steered_code.py"
    code.write_text("from agilerl.algorithms import DQN, register\n\n\n@register\nclass MyDQN(DQN):\n    pass\n")
    run = running_run(tmp_path)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("name: DQN", "name: MyDQN"))
    for words in (["stop"], ["evaluate"], ["protect", "--member", "1"], []):
        done = CliRunner().invoke(app, ["steer", str(run), *words])
        assert done.exit_code == 0, done.output
    words = ["steer", str(run), "set", "lr=1e-3"]
    assert "unknown algorithm 'MyDQN'" in CliRunner().invoke(app, words).output
    done = CliRunner().invoke(app, [*words, "--import", str(code)])
    assert done.exit_code == 0, done.output
    assert [request.action for request in pending(run).values()] == ["stop", "evaluate", "protect", "set"]


def test_a_request_is_handed_over_once_and_logged_with_its_generation(tmp_path: Path) -> None:
    run = running_run(tmp_path)
    path = steer(run, "protect", member=1)
    inbox = Inbox(run)
    (taken,) = inbox.take(3)
    assert (taken.id, taken.generation, taken.request.member) == (path.stem, 3, 1)
    assert not path.exists()
    assert inbox.take(4) == []
    logged = (run / REQUESTS / LOG).read_text()
    assert Taken.from_dict(json.loads(logged)) == taken


def test_a_run_that_goes_back_takes_logged_requests_at_their_generations(tmp_path: Path) -> None:
    """After a kill the run may begin before a request that was handed over; its file is gone, the log remains."""
    run = running_run(tmp_path)
    steer(run, "protect", member=1)
    (taken,) = Inbox(run).take(3)
    later = steer(run, "stop")
    resumed = Inbox(run)
    assert resumed.take(2)[0].id == later.stem  # a new request comes earlier than the logged one
    assert resumed.take(3) == [taken]


def test_a_kill_between_the_log_and_the_deletion_hands_a_request_over_once(tmp_path: Path) -> None:
    run = running_run(tmp_path)
    path = steer(run, "protect", member=1)
    content = path.read_text()
    Inbox(run).take(3)
    path.write_text(content)
    resumed = Inbox(run)
    assert len(resumed.take(3)) == 1
    assert not path.exists()


def test_a_kill_while_the_log_is_written_loses_no_request(tmp_path: Path) -> None:
    run = running_run(tmp_path)
    first = steer(run, "protect", member=1)
    content = first.read_text()
    Inbox(run).take(3)
    log = run / REQUESTS / LOG
    log.write_text(log.read_text()[:-9])  # the line is incomplete, and the file was not deleted yet
    first.write_text(content)
    resumed = Inbox(run)
    assert [taken.id for taken in resumed.take(5)] == [first.stem]
    assert [taken.generation for taken in Inbox(run).script] == [5]


def leave(run: Path, file: str, **content: Any) -> Path:
    """A request by another program, which names its file itself."""
    path = run / REQUESTS / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def test_a_file_name_that_was_used_before_is_another_request(tmp_path: Path) -> None:
    run, ids = running_run(tmp_path), []
    inbox = Inbox(run)
    for generation, value in ((2, 1e-3), (6, 5e-4), (9, 1e-3)):
        leave(run, "lr.json", action="set", name="lr", value=value)
        ids += [(taken.id, taken.request.value) for taken in inbox.take(generation)]
    assert ids == [("lr", 1e-3), ("lr-2", 5e-4), ("lr-3", 1e-3)]
    assert list((run / REQUESTS).glob("*.json")) == []
    resumed = Inbox(run)
    assert [[taken.id for taken in resumed.take(at)] for at in (2, 6, 9)] == [["lr"], ["lr-2"], ["lr-3"]]


def test_an_id_of_a_waiting_file_is_not_used_for_another_one(tmp_path: Path) -> None:
    run = running_run(tmp_path)
    leave(run, "lr.json", action="stop")
    inbox = Inbox(run)
    inbox.take(2)
    leave(run, "lr.json", action="evaluate")
    leave(run, "lr-2.json", action="protect", member=1)
    assert [(taken.id, taken.request.action) for taken in inbox.take(3)] == [("lr-2", "protect"), ("lr-3", "evaluate")]


def test_a_kill_before_the_deletion_of_a_file_with_a_used_name_hands_its_request_over_once(tmp_path: Path) -> None:
    run = running_run(tmp_path)
    inbox = Inbox(run)
    leave(run, "lr.json", action="set", name="lr", value=1e-3)
    inbox.take(2)
    leave(run, "lr.json", action="set", name="lr", value="5e-4")
    inbox.take(6)
    path = leave(run, "lr.json", action="set", name="lr", value="5e-4")
    resumed = Inbox(run)
    assert not path.exists()
    assert [taken.id for taken in resumed.take(6)] == ["lr-2"]


def test_a_request_that_has_the_name_of_another_ones_and_waits_at_the_start_is_taken(tmp_path: Path) -> None:
    run = running_run(tmp_path)
    leave(run, "lr.json", action="set", name="lr", value=1e-3)
    Inbox(run).take(2)
    leave(run, "lr.json", action="set", name="lr", value=2e-3)
    assert [(taken.id, taken.request.value) for taken in Inbox(run).take(3)] == [("lr-2", 2e-3)]


def test_a_replay_takes_a_request_of_its_person_with_the_name_of_a_repeated_one(tmp_path: Path) -> None:
    run = running_run(tmp_path)
    inbox = Inbox(run, [Taken("lr", 2, Request("protect", 1))])
    leave(run, "lr.json", action="protect", member=1)
    assert [taken.id for taken in inbox.take(2)] == ["lr", "lr-2"]


def test_requests_that_come_after_the_end_are_logged_as_refused(tmp_path: Path) -> None:
    run = running_run(tmp_path)
    steer(run, "protect", member=1)
    inbox = Inbox(run)
    (taken,) = inbox.take(3)
    late = steer(run, "stop")
    inbox.refuse(3)
    assert pending(run) == {}
    expected = [Taken(late.stem, 3, Request("stop", author=getpass.getuser()), "the run had ended")]
    assert inbox.refused(3, {taken.id}) == Inbox(run).refused(3, set()) == expected
    assert inbox.refused(3, {late.stem}) == inbox.refused(2, set()) == []


@pytest.mark.parametrize(("status", "left"), [("done", ["evaluate"]), ("interrupted", ["evaluate", "stop"])])
def test_a_stop_that_waits_in_an_ended_run_is_refused_and_one_of_an_interrupted_run_is_kept(
    tmp_path: Path, status: str, left: list[str]
) -> None:
    run = running_run(tmp_path)
    steer(run, "evaluate")
    steer(run, "stop")
    RunDirectory(run).finish(status)
    refuse_left_stop(RunDirectory(run), 4)
    assert [request.action for request in pending(run).values()] == left
    refused = [(taken.request.action, taken.generation) for taken in Inbox(run).refused(4, set())]
    assert refused == ([("stop", 4)] if status == "done" else [])


def test_a_damaged_log_is_an_error(tmp_path: Path) -> None:
    run = running_run(tmp_path)
    (run / REQUESTS).mkdir()
    (run / REQUESTS / LOG).write_text('{"id": "a"}\n')
    with pytest.raises(RunError, match=r"taken.jsonl is damaged.*fix: rename"):
        Inbox(run)


def test_a_file_that_is_no_request_is_named_once_and_left(tmp_path: Path) -> None:
    run = running_run(tmp_path)
    (run / REQUESTS).mkdir()
    strange = run / REQUESTS / "1.json"
    strange.write_text("[]")
    inbox = Inbox(run)
    with pytest.warns(AgileRLWarning, match="is no request") as caught:
        assert inbox.take(1) == inbox.take(2) == []
    assert len(caught) == 1
    assert strange.exists()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"action": "set", "name": "lr", "value": "x"}', "lr must be"),
        ('{"action": "set", "name": "lr", "value": -3}', "above 0"),
        ('{"action": "set", "name": "batch_size", "value": 10001}', "the replay memory holds"),
        ('{"action": "pin", "name": "index", "value": 0}', "unknown mutable hyperparameter"),
    ],
)
def test_a_request_by_other_means_is_checked_as_well(tmp_path: Path, content: str, why: str) -> None:
    run = running_run(tmp_path)
    (run / REQUESTS).mkdir()
    (run / REQUESTS / "1.json").write_text(content)
    (taken,) = Inbox(run).take(3)
    assert why in taken.refused
    assert not (run / REQUESTS / "1.json").exists()
    assert Inbox(run).script == [taken]  # a resumed run refuses it as well


@pytest.mark.filterwarnings("ignore:.*is no request")
def test_a_value_that_is_no_number_is_no_request_and_ends_no_run(tmp_path: Path) -> None:
    run = running_run(tmp_path)
    (run / REQUESTS).mkdir()
    (run / REQUESTS / "1.json").write_text('{"action": "set", "name": "lr", "value": NaN}')
    assert Inbox(run).take(3) == []
    assert not (run / REQUESTS / LOG).exists()


def test_the_script_of_a_run_are_its_recorded_requests(tmp_path: Path) -> None:
    run = running_run(tmp_path)
    event = Steering(2, "id-1", "pin", None, "lr", 1e-3, "why", "ada", {"born": [4]})
    with open(run / "evolution.jsonl", "a") as file:
        file.write(lineage_line(event))
    directory = RunDirectory(run)
    records = RunRecords.read(directory.path)
    assert records.steering == [event]
    assert [birth.id for birth in records.births] == [0, 1]
    assert script_of(directory) == [Taken("id-1", 2, Request("pin", None, "lr", 1e-3, "why", "ada"))]
    inbox = Inbox(None, script_of(directory))
    assert [len(inbox.take(generation)) for generation in (1, 2, 3)] == [0, 1, 0]


@pytest.mark.parametrize(("generations", "ends"), [(1, True), (2, True), (3, False)])
def test_a_stop_ends_a_replay_only_if_it_has_ended_the_run(tmp_path: Path, generations: int, ends: bool) -> None:
    run = running_run(tmp_path)
    with open(run / "evolution.jsonl", "a") as file:
        file.write(lineage_line(Steering(2, "id-1", "stop", None, "", None, "", "ada", {})))
    rows = "".join(f"{generation},0,0,,1.0,,,1\n" for generation in range(generations))
    (run / "metrics.csv").write_text(f"generation,id,slot,parent,fitness,mutation,network,is_best\n{rows}")
    assert script_of(RunDirectory(run)) == [Taken("id-1", 2, Request("stop", author="ada"), ends=ends)]
    (run / "metrics.csv").unlink()
    RunDirectory(run).finish("done", result={"generations": generations})
    assert script_of(RunDirectory(run))[0].ends == ends
    assert Taken.from_dict(json.loads(json.dumps(asdict(Taken("a", 2, Request("stop"), ends=ends))))).ends == ends
