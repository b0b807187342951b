"""A run directory of another user: whether its process is gone."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agilerl.runs import lock
from agilerl.runs.lock import RunLock, is_abandoned


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose LOCK names this process, which the kernel says is another user's."""

    def denied(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", denied)
    RunLock(tmp_path).release()
    return tmp_path


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_reused_number_of_another_user_is_noticed(foreign: Path) -> None:
    assert not is_abandoned(foreign)
    holder = json.loads((foreign / "LOCK").read_text())
    (foreign / "LOCK").write_text(json.dumps({**holder, "started": "1"}))
    assert is_abandoned(foreign)


def test_without_proc_a_process_of_another_user_counts_as_alive(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_stat", lambda pid: None)
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "token": "x", "started": "1"}
    (foreign / "LOCK").write_text(json.dumps(holder))
    assert not is_abandoned(foreign)


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o000, 0o644)])
def test_others_may_read_the_lock_where_the_umask_lets_them(umask: int, mode: int, tmp_path: Path) -> None:
    """In a process of its own, as the umask is one for all threads."""
    code = f"import os, pathlib; os.umask({umask}); from agilerl.runs.lock import RunLock; RunLock(pathlib.Path('.'))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": ROOT})
    assert stat.S_IMODE((tmp_path / "LOCK").stat().st_mode) == mode


ROOT = str(Path(__file__).resolve().parents[3])
