"""`agilerl watch` and `agilerl train --watch` as a user types them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from agilerl.cli import training
from agilerl.cli.main import app
from agilerl.errors import RunError
from agilerl.views.watch import child
from tests.unit.synthetic_runs import family

ROOT = Path(__file__).resolve().parents[3]
TINY = (
    "training.evo_steps=200", "training.pop_size=2", "training.eval_episodes=1", "training.eval_steps=20",
    "training.learning_delay=32", "training.confirm_episodes=0", "training.target_score=null",
)  # fmt: skip


@contextmanager
def command(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A command of this tree; it is killed if it does not end."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "agilerl", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def address(process: subprocess.Popen[str]) -> str:
    """The address that a command prints."""
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.fullmatch(r"watch  (http://127\.0\.0\.1:\d+/[\w-]{20,}/)\n", line):
            return match[1]
    raise AssertionError("no address")


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bool(answer.status == 200)
    except urllib.error.URLError:
        return False


def ends(url: str) -> bool:
    """Whether nothing answers at an address within some seconds."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if not is_up(url):
            return True
        time.sleep(0.1)
    return False


def test_watch_serves_until_ctrl_c_and_without_torch(tmp_path: Path) -> None:
    family(tmp_path / "CartPole-v1" / "dqn-0001", 2, 3)
    with command("watch", str(tmp_path), "--no-browser") as process:
        url = address(process)
        with urllib.request.urlopen(f"{url}events?run=CartPole-v1%2Fdqn-0001", timeout=10) as stream:
            assert stream.readline() == b"event: reset\n"
            maps = Path(f"/proc/{process.pid}/maps")
            assert not maps.exists() or "torch" not in maps.read_text()
            process.send_signal(signal.SIGINT)  # with an open stream
            assert process.wait(20) == 0
        assert process.stdout is not None
        assert process.stdout.read() == ""


def test_watch_names_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = CliRunner().invoke(app, ["watch", str(tmp_path / "no"), "--no-browser"])
    assert (missing.exit_code, "does not exist. fix: name a run" in missing.output) == (2, True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(app, ["watch", str(tmp_path), "--no-browser", "--port", port])
    assert result.exit_code == 2
    assert f"port {port} cannot be used" in result.output
    assert "fix: --port 0 takes a free one" in result.output
    monkeypatch.setattr(child, "NEEDED", ("starlette", "no_such_package"))
    for words in (["watch", str(tmp_path)], ["train", "CartPole-v1", "--watch", "--out", str(tmp_path / "out")]):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 2
        assert 'needs no_such_package. fix: pip install "agilerl[watch]"' in result.output
    assert not (tmp_path / "out").exists(), "said before anything is trained"


def train(out: Path, steps: int) -> tuple[str, ...]:
    sets = [word for setting in TINY for word in ("--set", setting)]
    words = ("train", "CartPole-v1", "--algo", "DQN", "--steps", str(steps), "--test-episodes", "0", "--watch")
    return *words, *sets, "--out", str(out)


def test_a_live_view_that_says_nothing_in_time_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An interpreter that waits for its input stands for a process that hangs while it imports."""
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(silent))
    monkeypatch.setattr(child, "STARTS_S", 0.2)
    error = pytest.raises(RunError, match=r"did not start within 0\.2 seconds\. fix: leave --watch out")
    with error, child.watched(tmp_path):
        pytest.fail("the training began without its view")


def test_a_live_view_executes_nothing_of_the_working_folder_but_its_imports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "csv.py").write_text("open('executed', 'w').close()")
    (tmp_path / "my_envs.py").write_text("")
    monkeypatch.chdir(tmp_path)
    lines: list[str] = []
    with child.watched(tmp_path, ["my_envs"], lines.append):
        assert len(lines) == 1
    assert not (tmp_path / "executed").exists()


def test_the_view_of_a_training_imports_the_module_of_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As named by --import, and before the colon of the id: films make the environment."""
    served: list[list[str]] = []
    monkeypatch.setattr(training, "watched", lambda out, imports, say: served.append(list(imports)) or nullcontext())
    monkeypatch.setattr(training, "_train_one", lambda options, plan, begun: None)
    words = ("train", "gymnasium:CartPole-v1", "--allow-code", "--watch", "--import", "math", "--out", str(tmp_path))
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, served) == (0, [["math", "gymnasium"]]), done.output


@pytest.mark.parametrize(("words", "stream"), [((), "stdout"), (("--json",), "stderr")])
def test_the_address_is_beside_the_json_of_a_training(
    words: tuple[str, ...], stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watched(out: Path, imports: Sequence[str], say: Callable[[str], None]) -> AbstractContextManager[None]:
        say("watch  http://127.0.0.1:1/token/")
        return nullcontext()

    monkeypatch.setattr(training, "watched", watched)
    monkeypatch.setattr(training, "_train_one", lambda options, plan, begun: None)
    done = CliRunner().invoke(app, ["train", "CartPole-v1", "--watch", "--out", str(tmp_path), *words])
    printed = {"stdout": done.stdout, "stderr": done.stderr}
    assert printed.pop(stream) == "watch  http://127.0.0.1:1/token/\n"
    assert [*printed.values()] == [""]


@pytest.mark.thorough
def test_train_watch_ends_with_the_training(tmp_path: Path) -> None:
    with command(*train(tmp_path, 600)) as process:
        url = address(process)
        assert is_up(url)
        assert process.wait(60) == 0
        assert ends(url)
    assert (tmp_path / "CartPole-v1" / "dqn-0001" / "progress.json").is_file()


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_train_watch_ends_with_ctrl_c_and_with_a_kill(number: signal.Signals, tmp_path: Path) -> None:
    with command(*train(tmp_path, 1_000_000)) as process:
        url = address(process)
        with urllib.request.urlopen(f"{url}events", timeout=10) as stream:
            while b'"focus":true' not in (line := stream.readline()):
                assert line, "the stream has ended"
        process.send_signal(number)
        process.wait(60)
        assert ends(url)
