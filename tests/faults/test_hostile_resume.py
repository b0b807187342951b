"""Checkpoints that somebody else has sealed, offered to `agilerl resume`: nothing runs, nothing hangs."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_hostile_files import DEEP, Touch, evil_module, sealed, torch_zip
from typer.testing import CliRunner

import agilerl
from agilerl.cli import app
from agilerl.core.checkpoint import decode_tree, encode_tree


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"training": {"evo_steps": 40, "eval_episodes": 1, "target_score": None}}
    out = tmp_path_factory.mktemp("runs")
    made = agilerl.train("CartPole-v1", config=settings, population=2, steps=80, seed=1, out=out, verbose=False)
    assert made.path is not None
    return made.path


def checkpoints(path: Path) -> list[Path]:
    found = sorted((path / "checkpoints").glob("gen-*"))
    assert found
    return found


def seal(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(f"{text}\n{hashlib.sha256(text.encode()).hexdigest()}\n")


def body_of(folder: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((folder / "manifest.json").read_text().split("\n")[0])
    return body


def with_body(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path, Path], None]:
    def apply(folder: Path, canary: Path) -> None:
        body = body_of(folder)
        change(body)
        seal(folder, json.dumps(body))

    return apply


def with_files(make: Callable[[bytes, Path], bytes]) -> Callable[[Path, Path], None]:
    """Every tensor file replaced, its size and checksum corrected."""

    def apply(folder: Path, canary: Path) -> None:
        body = body_of(folder)
        for name in body["files"]:
            data = make((folder / name).read_bytes(), canary)
            (folder / name).write_bytes(data)
            body["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        seal(folder, json.dumps(body))

    return apply


def with_trees(change: Callable[[dict[Any, Any]], Any]) -> Callable[[Path, Path], None]:
    def remade(data: bytes, canary: Path) -> bytes:
        tree = decode_tree(data)
        change(tree)
        return encode_tree(tree)

    return with_files(remade)


def special(kind: str) -> Callable[[Path, Path], None]:
    def apply(folder: Path, canary: Path) -> None:
        for name in body_of(folder)["files"]:
            (folder / name).unlink()
            if kind == "fifo":
                os.mkfifo(folder / name)
            else:
                (folder / name).symlink_to("/dev/zero")

    return apply


def every_value(node: Any, value: Any) -> None:
    """Replace all leaves of a nested dictionary."""
    for key, child in node.items():
        if isinstance(child, dict) and child:
            every_value(child, value)
        else:
            node[key] = value


KINDS: dict[str, Callable[[Path, Path], None]] = {
    "manifest nested deeply": lambda f, c: seal(f, "[" * DEEP + "]" * DEEP),
    "manifest is a list": lambda f, c: seal(f, "[1]"),
    "manifest is a pickle": lambda f, c: (f / "manifest.json").write_bytes(pickle.dumps(Touch(c))),
    "a file outside": with_body(lambda b: b["files"].update({"../../evil.safetensors": {"bytes": 1, "sha256": ""}})),
    "an absolute file": with_body(lambda b: b["files"].update({"/etc/passwd": {"bytes": 1, "sha256": ""}})),
    "a file of 4 TiB": with_body(lambda b: [f.update(bytes=2**42) for f in b["files"].values()]),
    "files that are words": with_body(lambda b: b.update(files={"a.safetensors": "os.system"})),
    "no files": with_body(lambda b: b.update(files={})),
    "every number a word": with_body(
        lambda b: [every_value(v, "os.system") for v in b.values() if isinstance(v, dict)]
    ),
    "pickles with the right checksums": with_files(lambda d, c: pickle.dumps(Touch(c))),
    "zips with the right checksums": with_files(lambda d, c: torch_zip(c)),
    "trees nested deeply": with_files(lambda d, c: sealed('["d",["a",' + '["l",' * DEEP + "1" + "]" * DEEP + "]]")),
    "empty trees": with_trees(lambda t: t.clear()),
    "trees of words": with_trees(lambda t: every_value(t, "os.system")),
    "trees of huge numbers": with_trees(lambda t: every_value(t, 2**62)),
    "pipes": special("fifo"),
    "links to a device": special("link"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_checkpoint_is_not_resumed(kind: str, run: Path, tmp_path: Path) -> None:
    path, canary = tmp_path / "run", tmp_path / "canary"
    shutil.copytree(run, path)
    for folder in checkpoints(path):
        KINDS[kind](folder, canary)
    began = time.monotonic()
    done = CliRunner().invoke(app, ["resume", str(path), "--steps", "120", "-q", "--test-episodes", "0"])
    assert time.monotonic() - began < 60
    assert not canary.exists()
    lines = done.stderr.strip().splitlines()
    errors = [line for line in lines if not line.startswith("warning:")]
    if done.exit_code == 0:  # what is noticed as damage is put aside, and the run begins again
        assert not errors
        assert any("no checkpoint is whole" in line for line in lines)
        assert json.loads((path / "run.json").read_text())["result"]["best_fitness"] is not None
    else:
        assert done.exit_code == 2, (done.exit_code, done.output[-600:], done.exception)
        assert len(errors) == 1, done.stderr[-600:]
        assert "Error" in errors[0] or "Checkpoint" in errors[0]


def test_resume_imports_nothing_by_an_environments_id(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, canary = tmp_path / "run", tmp_path / "canary"
    shutil.copytree(run, path)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(text.replace("CartPole-v1", evil_module(tmp_path, canary)))
    for folder in checkpoints(path):  # the checkpoint's own copy of the settings, too
        body = json.loads(json.dumps(body_of(folder)).replace("CartPole-v1", "evil_env:Evil-v0"))
        seal(folder, json.dumps(body))
    done = CliRunner().invoke(app, ["resume", str(path), "--steps", "120", "-q", "--test-episodes", "0"])
    assert done.exit_code == 2, done.output
    assert "importing runs code" in done.stderr
    assert not canary.exists()
