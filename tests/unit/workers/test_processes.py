"""Processes side by side: results, failures, deaths, signals, and no process that outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import worked_functions as work

from agilerl.core.threads import available_cores
from agilerl.workers.processes import RETRIES, Ended, Processes, count_of

pytestmark = pytest.mark.usefixtures("new_interpreters")
on_posix = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


def run(
    function: Any, arguments: Mapping[str, Any], count: int = 2, stop_signal: Callable[[], int | None] = lambda: None,
    **more: Any,
) -> tuple[dict[str, Ended], list[Any]]:  # fmt: skip
    heard: list[Any] = []
    note: Any = lambda key, content: heard.append((key, content))  # noqa: E731
    return Processes[str](function, count, **more).run(arguments, note, note, stop_signal), heard


def test_every_argument_gives_a_result_and_its_messages_come_first() -> None:
    ended, heard = run(work.double, {"a": 1, "b": 2, "c": 3})
    assert ended == {"a": Ended(2), "b": Ended(4), "c": Ended(6)}
    for key, number in (("a", 1), ("b", 2), ("c", 3)):
        own = [content for name, content in heard if name == key]
        assert own == [("has", number), Ended(2 * number)]


def test_no_argument_needs_no_process() -> None:
    assert run(work.double, {}) == ({}, [])


def test_a_failure_is_an_end_and_the_process_goes_on_with_the_next() -> None:
    ended, _ = run(work.fail, {"a": "ours", "b": "theirs", "c": "fine"}, count=1)
    assert ended["a"] == Ended(error="no. fix: yes.\nresume  it", is_user_error=True)
    assert ended["b"].error == "ValueError: bad"
    assert "worked_functions.py" in ended["b"].traceback
    assert ended["c"] == Ended("fine")


def test_an_error_of_the_listener_is_raised_and_no_process_goes_on() -> None:
    def closed(key: str, content: Any) -> None:
        raise BrokenPipeError

    processes = Processes[str](work.double, 1)
    with pytest.raises(BrokenPipeError):
        processes.run({"a": 1}, closed, closed, lambda: None)
    assert not processes._processes


def test_a_process_prepares_once() -> None:
    ended, _ = run(work.is_marked, {"a": 0, "b": 0}, count=1, prepare=work.prepare_marked)
    pids, marks = zip(*(end.value for end in ended.values()), strict=True)
    assert len(set(pids)) == 1
    assert marks == ("1", "1")
    assert "MARKED" not in os.environ


@on_posix
@pytest.mark.parametrize("deaths", [1, RETRIES, RETRIES + 1])
def test_a_dead_process_is_replaced_twice_at_most(deaths: int, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    ended, _ = run(work.die_first, {"a": (tmp_path, deaths), "b": (tmp_path / "b", 0)})
    assert ended["b"] == Ended(0)
    if deaths <= RETRIES:
        assert ended["a"] == Ended(deaths, losses=deaths)
    else:
        assert ended["a"] == Ended(error="its process was killed by SIGKILL", losses=RETRIES + 1)


@on_posix
def test_a_signal_stops_what_runs_and_begins_nothing_more(tmp_path: Path) -> None:
    """The signal follows the message: Python drops one that comes while it closes a file."""
    paths, heard = {name: tmp_path / name for name in "abc"}, list[Any]()
    ended = Processes[str](work.wait_long, 1).run(
        paths, lambda *message: heard.append(message), lambda *end: None, lambda: signal.SIGINT if heard else None
    )
    assert ended == {"a": Ended(error="interrupted")}
    assert heard == [("a", "waits")]
    assert not paths["b"].exists()


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux to end processes with their parent")
def test_no_process_outlives_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "import worked_functions as work\n"
        "from agilerl.workers.processes import Processes\n"
        "if __name__ == '__main__':\n"
        "    ignore = lambda key, content: None\n"
        "    Processes(work.wait_long, 1).run({'a': Path(sys.argv[2])}, ignore, ignore, lambda: None)\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code, encoding="utf-8")
    package = str(Path(work.__file__).parents[3])
    parent = subprocess.Popen(
        [sys.executable, str(script), str(Path(__file__).parent), str(path)],
        env={**os.environ, "PYTHONPATH": package},
    )
    while not path.is_file() or not path.read_text(encoding="utf-8"):
        assert parent.poll() is None
        time.sleep(0.05)
    child = int(path.read_text(encoding="utf-8"))
    parent.kill()
    parent.wait()
    until = time.monotonic() + 20
    while _is_running(child):
        assert time.monotonic() < until, "the process goes on without its parent"
        time.sleep(0.05)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_auto_is_a_process_per_core_and_never_more_than_arguments() -> None:
    assert count_of("auto", 1000) == available_cores()
    assert count_of("auto", 1) == 1
    assert count_of(7, 3) == 3
    assert count_of(2, 3) == 2


def test_a_process_executes_nothing_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even while `multiprocessing` starts it; the processes that it starts itself are as they were."""
    (tmp_path / "pickle.py").write_text("open('executed', 'w').close()\nraise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    ended, _ = run(work.environment, {"a": "PYTHONSAFEPATH"})
    assert ended == {"a": Ended(None)}
    assert not (tmp_path / "executed").exists()
    assert "PYTHONSAFEPATH" not in os.environ
