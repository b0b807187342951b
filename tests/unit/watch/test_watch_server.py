"""The server of the live view: who may ask, what it answers, and that it ends at once."""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from uvicorn import Config

from agilerl import algorithms
from agilerl.errors import ConfigError, RunError
from agilerl.runs import records
from agilerl.runs.steering import Request, pending
from agilerl.views.watch import film, server
from agilerl.views.watch import folder as folders
from agilerl.views.watch.film import Film, Studio
from agilerl.views.watch.folder import RunList, find_run, root_of, runs_in
from agilerl.views.watch.machine import Load, Machine
from agilerl.views.watch.server import App, Watch, bind
from agilerl.views.watch.state import RunFollower
from agilerl.views.watch.wire import Cursor, Event, plain
from tests.unit.synthetic_runs import birth, family, member, write_run

TOKEN = "t0ken"


class Client:
    """Requests to a server on this machine."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, headers: Any = None
    ) -> tuple[int, bytes, dict[str, str]]:
        """(status, content, headers) of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        content = answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
        connection.close()
        return content

    def post(self, path: str, content: Any, **headers: str) -> tuple[int, Any]:
        """(status, JSON) of a request with JSON."""
        sent = {"Content-Type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
        status, answer, _ = self.ask(path, "POST", json.dumps(content).encode(), sent)
        return status, json.loads(answer)

    @contextmanager
    def events(self, path: str, last_id: str = "") -> Iterator[Callable[[], tuple[str, Any, str]]]:
        """A stream; call the value for the next (event, data, id)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("GET", path, headers={"Last-Event-ID": last_id} if last_id else {})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        assert answer.getheader("content-type", "").startswith("text/event-stream")

        def read() -> tuple[str, Any, str]:
            parts: dict[str, str] = {}
            while (line := answer.readline().decode().rstrip("\n")) or not parts:
                name, _, text = line.partition(": ")
                parts[name] = text
            return parts["event"], json.loads(parts["data"]), parts.get("id", "")

        yield read
        connection.close()


@contextmanager
def serving(root: Path, pid: int | None = None, imports: tuple[str, ...] = ()) -> Iterator[tuple[Client, App]]:
    app = App(Watch(root, TOKEN, pid, imports))
    with bind(0) as listener:
        own = server._Server(Config(app.asgi, log_level="critical", lifespan="off"), app)
        thread = threading.Thread(target=own.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield Client(listener.getsockname()[1]), app
        finally:
            own.end()
            thread.join(10)
            app.studio.close()
            assert not thread.is_alive()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    family(tmp_path / "runs" / "CartPole-v1" / "dqn-0001", 3, 4, started="2026-11-28T08:00:00Z")
    return tmp_path / "runs"


KEY = "CartPole-v1%2Fdqn-0001"


def train_here(run: Path) -> Path:
    """Make a run one that trains in this process."""
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "status": "running"}))
    (run / "LOCK").write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "token": "a"}))
    return run


# --- who may ask ------------------------------------------------------------------------------------------------------


def test_every_route_requires_the_token(root: Path) -> None:
    with serving(root) as (client, _):
        routes = ["/", "/static/main.js", "/events", f"/events?run={KEY}", f"/film?run={KEY}", "/steer", "/nothing"]
        for route in routes:
            for prefix in ("", "/wrong", f"/{TOKEN}x", f"/{TOKEN[:-1]}", f"/static/{TOKEN}", "//"):
                status, text, _ = client.ask(prefix + route)
                assert (status, b"token" in text) == (403, True), prefix + route
        assert client.ask("/steer", "POST", b"{}")[0] == 403
        assert client.ask("/film", "POST", b"{}")[0] == 403
        assert client.ask(f"/{TOKEN}/")[0] == 200


HEADERS: list[tuple[dict[str, str], int]] = [
    ({}, 200),
    ({"Host": "localhost:1"}, 200),
    ({"Host": "127.0.0.1"}, 200),
    ({"Host": "evil.example"}, 403),
    ({"Host": "127.0.0.1.evil.example:80"}, 403),
    ({"Host": "localhost.evil.example"}, 403),
    ({"Host": "[::1]:80"}, 403),
    ({"Host": ""}, 403),
    ({"Host": "localhost:1", "Origin": "http://localhost:1"}, 200),
    ({"Origin": "http://localhost:1"}, 403),  # a page of another server on this machine
    ({"Host": "localhost:1", "Origin": "https://localhost:1"}, 403),
    ({"Origin": "https://evil.example"}, 403),
    ({"Origin": "null"}, 403),
]


def test_other_hosts_and_sites_are_refused(root: Path) -> None:
    with serving(root) as (client, _):
        for headers, status in HEADERS:
            assert client.ask(f"/{TOKEN}/", headers=headers)[0] == status, headers


def test_answers_forbid_other_sources_and_referrers(root: Path) -> None:
    with serving(root) as (client, _):
        for path in (f"/{TOKEN}/", f"/{TOKEN}/static/main.js", "/"):
            headers = client.ask(path)[2]
            assert headers["content-security-policy"].startswith("default-src 'none'"), path
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["x-content-type-options"] == "nosniff"
        assert client.ask(f"/{TOKEN}")[2]["location"] == f"/{TOKEN}/"


def test_no_path_leads_out_of_the_folder(root: Path) -> None:
    (root.parent / "secret").write_text("secret")
    family(root.parent / "outside", 2, 2)
    (root / "CartPole-v1" / "link-0001").symlink_to(root.parent / "outside")
    names = ["../server.py", "..%2fserver.py", "%2e%2e/server.py", "/etc/passwd", "vendor/../main.js", ""]
    keys = ["../outside", "..%2Foutside", "CartPole-v1%2Flink-0001", "%2Fetc", "CartPole-v1", "", "."]
    with serving(root) as (client, _):
        for name in names:
            assert client.ask(f"/{TOKEN}/static/{name}")[0] in (403, 404), name
        for key in keys:
            assert client.ask(f"/{TOKEN}/events?run={key}")[0] == 404, key
            assert client.ask(f"/{TOKEN}/film?run={key}")[0] == 404, key
            assert client.post(f"/{TOKEN}/steer?run={key}", {"action": "stop"})[0] == 404, key


def test_every_static_file_is_served_and_named() -> None:
    folder = Path(server.__file__).parent / "static"
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files == {*server.STATIC, "index.html"}


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_page_gets_everything_then_what_is_new(root: Path) -> None:
    run = train_here(root / "CartPole-v1" / "dqn-0001")
    with serving(root) as (client, _), client.events(f"/{TOKEN}/events?run={KEY}") as read:
        events = [read() for _ in range(6)]
        assert [name for name, _, _ in events] == ["reset", "run", "births", "generations", "members", "now"]
        assert events[1][1]["status"] == "running"
        generations = events[3][1]["list"]
        assert [each["number"] for each in generations] == [1, 2, 3, 4]
        assert generations[0]["ids"] == [0, 1, 2]
        assert generations[0]["hp"] == {"batch_size": 64.0, "lr": 0.001}, "equal values are one number"
        assert events[5][1]["complete"]
        with open(run / "metrics.csv", "a") as file:
            last = (run / "metrics.csv").read_text().splitlines()[-1]
            file.write("4," + last.split(",", 1)[1] + "\n")
        names: dict[str, Any] = {}
        while "generations" not in names:
            name, data, place = read()
            names[name] = data
        assert [each["number"] for each in names["generations"]["list"]] == [5], "the new one alone"
    with serving(root) as (client, _):
        with client.events(f"/{TOKEN}/events?run={KEY}") as read:
            places = [read()[2] for _ in range(6)]
        with client.events(f"/{TOKEN}/events?run={KEY}", last_id=places[-1]) as read:
            assert "generations" not in [read()[0] for _ in range(3)], "a lost connection goes on"
        with client.events(f"/{TOKEN}/events?run={KEY}", last_id=place) as read:
            assert read()[0] == "reset", "another server begins anew"


def test_a_group_of_seeds_is_a_stream_of_its_runs_with_their_curves(tmp_path: Path) -> None:
    folder = tmp_path / "CartPole-v1" / "dqn-seeds-0001"
    for seed in (0, 1):
        family(folder / f"seed-{seed}", 2, 3)
    (folder / "group.json").write_text("{}")
    with serving(tmp_path) as (client, _):
        with client.events(f"/{TOKEN}/events?group=CartPole-v1%2Fdqn-seeds-0001") as read:
            name, content, _ = read()
            assert (name, len(content["runs"])) == ("runs", 2)
            assert [run["curve"][0] for run in content["runs"]] == [[1000, 2000, 3000]] * 2
            key = content["runs"][1]["key"]
        with client.events(f"/{TOKEN}/events?run={quote(key)}") as read:
            assert read()[0] == "reset", "its rows lead to the runs"
        with client.events(f"/{TOKEN}/events") as read:
            assert {run["group"] for run in read()[1]["runs"]} == {"CartPole-v1/dqn-seeds-0001"}
        for group in ("CartPole-v1", "../x", "", "."):
            assert client.ask(f"/{TOKEN}/events?group={quote(group)}")[0] == 404, group
    with serving(folder) as (client, _), client.events(f"/{TOKEN}/events?group=.") as read:
        assert len(read()[1]["runs"]) == 2, "the group itself is watched"


def test_the_cursor_sends_a_completed_generation_again_and_long_runs_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agilerl.views.watch.wire.MEMBERS_PER_EVENT", 3)
    path = family(tmp_path / "run", 2, 5)
    text = (path / "metrics.csv").read_text()
    (path / "metrics.csv").write_text("".join(text.splitlines(keepends=True)[:-1]))
    run = RunFollower(path)
    run.poll()
    cursor, numbers = Cursor(run), list[list[int]]()

    def sent() -> list[list[int]]:
        events = [event for event in cursor.advance({}) if event.name == "generations"]
        return [[each["number"] for each in event.data["list"]] for event in events]

    while not cursor.is_complete:
        numbers += sent()
    assert numbers == [[1, 2], [3, 4], [5]]
    assert sent() == []
    (path / "metrics.csv").write_text(text)
    run.poll()
    assert sent() == [[5]]


def test_events_are_written_as_the_protocol_asks() -> None:
    event = Event("now", {"a": float("nan"), "b": [1, "x\ny"], "c": {2: Path("p")}}, "7")
    assert event.encode() == b'event: now\nid: 7\ndata: {"a":null,"b":[1,"x\\ny"],"c":{"2":"p"}}\n\n'
    assert plain((True, None, float("inf"))) == [True, None, None]


def test_a_list_follows_a_folder_that_gets_its_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SECONDS_BETWEEN_LISTS", 0.05)
    with serving(tmp_path) as (client, _), client.events(f"/{TOKEN}/events") as read:
        assert read()[1] == {"root": str(tmp_path), "exists": True, "runs": [], "omitted": 0}
        train_here(family(tmp_path / "CartPole-v1" / "dqn-0001", 2, 2))
        while not (data := read()[1]).get("runs"):
            pass
        (run,) = data["runs"]
        assert (run["key"], run["status"], run["focus"]) == ("CartPole-v1/dqn-0001", "running", False)


def test_a_stream_survives_a_kill_and_the_end_of_the_directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SECONDS_BETWEEN_LOOKS", 0.05)
    run = train_here(root / "CartPole-v1" / "dqn-0001")
    with serving(root) as (client, _), client.events(f"/{TOKEN}/events?run={KEY}") as read:

        def status() -> str:
            while (event := read())[0] != "run":
                pass
            return str(event[1]["status"])

        assert status() == "running"
        (run / "LOCK").write_text(json.dumps({"pid": 2**22 - 3, "host": socket.gethostname(), "token": "a"}))
        assert status() == "interrupted"
        run.rename(root / "away")
        assert status() == "gone"
        (root / "away").rename(run)
        assert status() == "interrupted"


def test_the_end_of_the_server_ends_streams_at_once(root: Path) -> None:
    with serving(root) as (client, app), client.events(f"/{TOKEN}/events") as read:
        read()
        begun = time.monotonic()
        app.closing.set()
    assert time.monotonic() - begun < 8, "no stream holds the server"


# --- the list ---------------------------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first_without_links_or_depths(tmp_path: Path) -> None:
    births, rows = [birth(0, None, 0, "founder")], [member(0, 0, 0, 1.0)]
    for name, started in (
        ("A/x-0001", "2026-01-01"),
        ("B/y-0001", "2026-03-01"),
        ("A/x-seeds-0001/seed-3", "2026-02-01"),
    ):
        write_run(tmp_path / name, rows, births, started=started)
    write_run(tmp_path / "a/b/c/d/e", rows, births)
    write_run(tmp_path / ".hidden/x-0001", rows, births)
    write_run(tmp_path / "A/x-0001/inside", rows, births)
    (tmp_path / "A/x-0002").mkdir()
    (tmp_path / "A/x-0002/run.json").write_text("{")
    (tmp_path / "loop").symlink_to(tmp_path)
    entries = runs_in(tmp_path)
    assert [entry.key for entry in entries] == ["B/y-0001", "A/x-seeds-0001/seed-3", "A/x-0001", "A/x-0002"]
    assert [entry.status for entry in entries] == ["done", "done", "done", "damaged"]
    assert find_run(tmp_path, "A/x-0001") == tmp_path / "A/x-0001"
    assert find_run(tmp_path / "A/x-0001", ".") == tmp_path / "A/x-0001"
    assert find_run(tmp_path, "A/../A/x-0001") is None


def test_a_long_list_has_the_newest_runs_and_counts_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    births, rows = [birth(0, None, 0, "founder")], [member(0, 0, 0, 1.0)]
    for number in range(4):
        run = write_run(tmp_path / f"x-{number}", rows, births, started=f"2026-01-0{number + 1}")
        for file in run.iterdir():
            os.utime(file, (1000 + number, 1000 + number))
    monkeypatch.setattr(folders, "MAX_RUNS", 3)
    runs = RunList(tmp_path)
    assert ([entry.key for entry in runs.read()], runs.omitted) == (["x-3", "x-2", "x-1"], 1)
    assert find_run(tmp_path, "x-0") == tmp_path / "x-0", "its page opens by its address"
    monkeypatch.setattr(folders, "MAX_FOLDERS", 2)
    assert len(runs.read()) == 1, "the root and one run"


def test_a_list_parses_a_record_again_only_if_it_has_changed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[Path] = []
    read = records.read_json

    def noted(path: Path) -> Any:
        parsed.append(path.parent)
        return read(path)

    monkeypatch.setattr(records, "read_json", noted)
    run, runs = root / "CartPole-v1" / "dqn-0001", RunList(root)
    assert [entry.status for entry in runs.read() + runs.read()] == ["done", "done"]
    assert parsed == [run]
    train_here(run)
    assert [entry.status for entry in runs.read()] == ["running"]
    (run / "LOCK").write_text(json.dumps({"pid": 2**22 - 3, "host": socket.gethostname(), "token": "a"}))
    assert [entry.status for entry in runs.read()] == ["interrupted"], "the lock is read each time"
    assert parsed == [run, run]


def test_the_run_of_a_process_has_the_focus(root: Path) -> None:
    train_here(root / "CartPole-v1" / "dqn-0001")
    assert [entry.focus for entry in runs_in(root, os.getpid())] == [True]
    assert [entry.focus for entry in runs_in(root, os.getpid() + 1)] == [False]


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no does not exist. fix: name a run"):
        root_of(tmp_path / "no")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is not a folder"):
        root_of(tmp_path / "file")
    assert root_of(tmp_path / "no", may_be_missing=True) == tmp_path / "no"


# --- steering ---------------------------------------------------------------------------------------------------------


def test_a_request_is_left_in_the_run_and_shown_until_it_is_taken(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SECONDS_BETWEEN_LOOKS", 0.05)
    run = train_here(root / "CartPole-v1" / "dqn-0001")
    newest = RunFollower(run)
    newest.poll()
    alive = newest.generations[-1][0].id
    content = {"action": "set", "member": alive, "name": "lr", "value": 0.01, "reason": "why not", "author": "ann"}
    with serving(root) as (client, _):
        status, answer = client.post(f"/{TOKEN}/steer?run={KEY}", content)
        assert status == 200
        assert pending(run) == {answer["request"]: Request("set", alive, "lr", 0.01, "why not", "ann")}
        with client.events(f"/{TOKEN}/events?run={KEY}") as read:
            while (event := read())[0] != "now":
                pass
            assert event[1]["pending"] == [{"key": answer["request"], **content}]
            (run / "requests" / f"{answer['request']}.json").unlink()
            while (event := read())[0] != "now" or event[1]["pending"]:
                pass


WRONG: list[tuple[Any, str]] = [
    ({"action": "sett", "name": "lr", "value": 1}, "unknown action 'sett'"),
    ({"action": "set", "name": "lr"}, "needs a value"),
    ({"action": "set", "value": 1}, "needs a name"),
    ({"action": "clone"}, "is for one member"),
    ({"action": "set", "name": "lr", "value": -1}, "lr must be"),
    ({"action": "stop", "member": "1; rm"}, "member must be the id"),
    ({"action": "remove", "member": 999}, "member 999 is not in the population"),
    ({"action": "set", "name": "lrr", "value": 1}, "unknown mutable hyperparameter of this run 'lrr'"),
    ({"action": "stop", "path": "/"}, "unknown entry of a request 'path'"),
    ({}, "a request has an action"),
    ([1], "a request is an object"),
]


def test_a_wrong_request_is_a_message(root: Path) -> None:
    run = train_here(root / "CartPole-v1" / "dqn-0001")
    with serving(root) as (client, _):
        for content, message in WRONG:
            status, answer = client.post(f"/{TOKEN}/steer?run={KEY}", content)
            assert status == 400, content
            assert message in answer["error"]
            assert "fix: " in answer["error"]
    assert not (run / "requests").exists()


def test_a_request_of_an_own_algorithm_imports_its_code(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(algorithms, "_registered", {})
    code = tmp_path / "watched_code.py"
    code.write_text("from agilerl.algorithms import DQN, register\n\n\n@register\nclass OwnDQN(DQN):\n    pass\n")
    run = train_here(root / "CartPole-v1" / "dqn-0001")
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("name: DQN", "name: OwnDQN"))
    content = {"action": "set", "name": "lr", "value": 0.01}
    with serving(root) as (client, _):
        status, answer = client.post(f"/{TOKEN}/steer?run={KEY}", content)
        assert (status, "unknown algorithm 'OwnDQN'" in answer["error"]) == (400, True)
        assert client.post(f"/{TOKEN}/steer?run={KEY}", {"action": "stop"})[0] == 200
    with serving(root, imports=(str(code),)) as (client, _):
        assert client.post(f"/{TOKEN}/steer?run={KEY}", content)[0] == 200
    with serving(root, imports=(str(tmp_path / "no.py"),)) as (client, _):
        status, answer = client.post(f"/{TOKEN}/steer?run={KEY}", content)
        assert (status, "no.py: cannot be imported" in answer["error"]) == (400, True)


def test_requests_that_are_no_json_or_too_long_are_refused(root: Path) -> None:
    train_here(root / "CartPole-v1" / "dqn-0001")
    path, kind = f"/{TOKEN}/steer?run={KEY}", {"Content-Type": "application/json"}
    with serving(root) as (client, _):
        assert client.ask(path, "POST", b"{", kind)[0] == 400
        assert client.ask(path, "POST", b'{"action": "stop"}', {"Content-Type": "text/plain"})[0] == 400
        assert client.ask(path, "POST", b" " * 70_000, kind)[0] == 400
        assert client.ask(path, "GET")[0] == 405


def test_a_run_that_does_not_train_takes_no_requests(root: Path) -> None:
    with serving(root) as (client, _):
        status, answer = client.post(f"/{TOKEN}/steer?run={KEY}", {"action": "stop"})
        assert (status, "does not train now (status: done)" in answer["error"]) == (400, True)


# --- followers --------------------------------------------------------------------------------------------------------


def test_two_followers_of_one_run_are_both_read(root: Path) -> None:
    """A page keeps its follower when others take its place in memory; a second page of the run gets another one."""
    run, runs = root / "CartPole-v1" / "dqn-0001", server.Runs(root)
    first, second = RunFollower(run), RunFollower(run)
    runs.look(first)
    runs.look(second)
    assert len(first.generations) == len(second.generations) > 0
    assert not runs.look(first), "just read"
    place = Cursor(first).advance({})[-1].id
    assert Cursor(second, place).advance({})[0].name == "reset", "ids of another follower are not continued"
    for last_id in ("x/²..1.1", f"{place.rpartition('/')[0]}/{'9' * 5000}.0.0.0"):
        assert Cursor(first, last_id).advance({})[0].name == "reset"


# --- films ------------------------------------------------------------------------------------------------------------


def script(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record films by a script in place of `agilerl record`; its argument is the file."""
    (tmp_path / "film.py").write_text(text)
    command = lambda self, run, target: [sys.executable, str(tmp_path / "film.py"), str(target)]  # noqa: E731
    monkeypatch.setattr(Studio, "command", command)


def ended(client: Client, app: App, run: Path) -> Film:
    until = time.monotonic() + 20
    while app.studio.film(run).state == "recording" and time.monotonic() < until:
        time.sleep(0.02)
    return app.studio.film(run)


def test_a_film_is_recorded_and_served(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "import sys; open(sys.argv[1], 'wb').write(b'RIFF')", monkeypatch)
    run = root / "CartPole-v1" / "dqn-0001"
    with serving(root) as (client, app):
        assert client.ask(f"/{TOKEN}/film?run={KEY}")[0] == 404
        status, answer = client.post(f"/{TOKEN}/film?run={KEY}", {})
        assert (status, answer["state"], answer["version"]) == (200, "recording", "")
        assert ended(client, app, run).state == "ready"
        status, content, headers = client.ask(f"/{TOKEN}/film?run={KEY}&version=1")
        assert (status, content, headers["content-type"]) == (200, b"RIFF", "image/webp")
    assert not (run / "best").exists(), "the run stays as it is"


def test_a_film_of_the_run_is_shown_without_recording(root: Path) -> None:
    run = root / "CartPole-v1" / "dqn-0001"
    (run / "best").mkdir()
    (run / "best" / "rollout.webp").write_bytes(b"RIFFrun")
    with serving(root) as (client, app):
        assert app.studio.film(run).state == "ready"
        assert client.ask(f"/{TOKEN}/film?run={KEY}")[1] == b"RIFFrun"


def test_a_recorder_that_fails_or_hangs_is_a_message(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = root / "CartPole-v1" / "dqn-0001"
    script(tmp_path, "import sys; sys.exit('EnvError: no display. fix: one')", monkeypatch)
    with serving(root) as (client, app):
        client.post(f"/{TOKEN}/film?run={KEY}", {})
        assert ended(client, app, run) == Film("failed", "EnvError: no display. fix: one")
    script(tmp_path, "import time; time.sleep(60)", monkeypatch)
    studio = Studio(max_seconds=0.0)
    studio.record(run)
    assert studio.film(run) == Film("failed", "took more than 0 s")
    studio.close()


def test_a_recorder_that_writes_much_is_not_stopped_by_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe that nobody reads holds 64 KiB on Linux."""
    text = "import sys; sys.stderr.write('warning\\n' * 100_000); open(sys.argv[1], 'wb').write(b'RIFF')"
    script(tmp_path, text, monkeypatch)
    run = root / "CartPole-v1" / "dqn-0001"
    with serving(root) as (client, app):
        for version in ("1", "2"):
            client.post(f"/{TOKEN}/film?run={KEY}", {})
            assert ended(client, app, run) == Film("ready", "an episode of the best agent", version)
        folder = Path(app.studio._folder.name)
        assert [path.name for path in folder.iterdir()] == ["2.webp"], "earlier films and error streams are deleted"


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_the_end_of_a_recorder_ends_the_processes_that_it_has_started(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid) + "\\n")
time.sleep(60)
"""
    script(tmp_path, code, monkeypatch)
    studio = Studio()
    studio.record(root / "CartPole-v1" / "dqn-0001")
    until = time.monotonic() + 20
    while not (tmp_path / "pid").is_file() or not (tmp_path / "pid").read_text().endswith("\n"):
        assert time.monotonic() < until
        time.sleep(0.02)
    worker = int((tmp_path / "pid").read_text())
    studio.close()
    while is_alive(worker):
        assert time.monotonic() < until
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_recorder_is_that_of_the_command_line(tmp_path: Path) -> None:
    studio = Studio(["my envs.py"])
    command = studio.command(Path("run"), Path("out.webp"))
    studio.close()
    assert command[1:] == ["-P", "-m", "agilerl", "record", "run", "--out", "out.webp", "--import", "my envs.py"]
    assert film.IN_RUN.as_posix() == "best/rollout.webp"


@pytest.mark.thorough
def test_a_recorder_executes_nothing_of_the_working_folder_but_its_imports(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of the standard library that the command imports, and one that the user names."""
    (tmp_path / "csv.py").write_text("open('executed', 'w').close()")
    (tmp_path / "my_envs.py").write_text("open('imported', 'w').close()")
    monkeypatch.chdir(tmp_path)
    with serving(root) as (client, app):
        app.studio = Studio(["my_envs"])
        client.post(f"/{TOKEN}/film?run={KEY}", {})
        assert ended(client, app, root / "CartPole-v1" / "dqn-0001").state == "failed", "it has no policy"
    assert not (tmp_path / "executed").exists()
    assert (tmp_path / "imported").exists()


# --- the machine ------------------------------------------------------------------------------------------------------


def test_load_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    (tmp_path / "meminfo").write_text("MemTotal: 8000 kB\nMemFree: 100 kB\nMemAvailable: 6000 kB\n")

    def write(idle: int, busy: int, ticks: int) -> None:
        (tmp_path / "stat").write_text(f"cpu {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 1 1 1\n")
        for pid, parent, own in ((7, 1, ticks), (8, 7, 0), (9, 1, 500)):
            (tmp_path / str(pid)).mkdir(exist_ok=True)
            rest = " ".join(["0"] * 9 + [str(own), "0"] + ["0"] * 8 + ["2"])
            (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b) S {parent} {rest} 0\n")

    machine = Machine(tmp_path)
    write(idle=100, busy=50, ticks=10)
    assert machine.look(7).cpu is None
    write(idle=160, busy=90, ticks=30)
    page = os.sysconf("SC_PAGE_SIZE")
    assert machine.look(7) == Load(0.4, 4, 2000 * 1024, 8000 * 1024, 20 / 100 * 4, 4 * page, 2)
    assert Machine(tmp_path / "none").look(7) == Load(cores=4)


# --- ports ------------------------------------------------------------------------------------------------------------


def test_a_taken_port_is_named() -> None:
    with bind(0) as first:
        port = first.getsockname()[1]
        assert first.getsockname()[0] == "127.0.0.1"
        with pytest.raises(ConfigError, match=rf"port {port} cannot be used .* fix: --port 0 takes a free one"):
            bind(port)
    with pytest.raises(ConfigError, match="--port must be 0 to 65535; got 70000"):
        bind(70_000)
