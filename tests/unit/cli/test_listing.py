"""`agilerl list`: what can be named, what can be made here, and the runs that there are."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic_runs import member, write_run

from agilerl.algorithms import available, find_algorithm
from agilerl.algorithms.base.declared import hyperparameters
from agilerl.cli import listing
from agilerl.errors import ConfigError


@pytest.mark.parametrize("name", available())
def test_hyperparameters_read_from_the_source_are_those_that_are_declared(name: str) -> None:
    assert listing._hyperparameters(name) == list(hyperparameters(find_algorithm(name)))


def test_the_list_of_algorithms_needs_no_torch() -> None:
    code = "import sys\nfrom agilerl.cli.listing import listing\nlisting('algos')\nprint('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_each_preset_is_set_apart_from_its_algorithm() -> None:
    lines = [line.split() for line in listing.listing("presets")]
    assert ["pettingzoo.classic.connect_four_v3", "IPPO"] in [words[:2] for words in lines]


@pytest.mark.thorough
def test_environments_say_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "NEEDS", {"classic_control": ("no_such_module", "box2d")})
    lines = dict(line.split(None, 1) for line in listing.listing("envs") if len(line.split()) > 1)
    assert lines["CartPole-v1"] == 'preset   needs: pip install "agilerl[box2d]"'
    assert lines["Ant-v2"] == "retired"
    assert lines["MaskedCartPole-v1"] == "preset"
    monkeypatch.undo()
    assert dict(line.partition(" ")[::2] for line in listing.listing("envs"))["CartPole-v0"].strip() == "older version"


def test_environments_of_several_agents_are_listed_with_what_they_need(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mpe2" / "duel").mkdir(parents=True)
    for name, text in {
        "__init__": "import nothing_of_the_kind", "_utils": "", "duel_v2": "from mpe2.duel.duel import env\nimport sys",
        "duel/duel": "import json\nimport no_such_engine\nfrom mpe2 import _utils", "duel/__init__": "",
        "simple_spread_v3": "from numpy import array\ntry:\n    import not_needed\nexcept ImportError:\n    pass",
    }.items():  # fmt: skip
        (tmp_path / "mpe2" / f"{name}.py").write_text(text)
    real = importlib.util.find_spec
    spec = importlib.util.spec_from_file_location("mpe2", tmp_path / "mpe2" / "__init__.py",
                                                  submodule_search_locations=[str(tmp_path / "mpe2")])  # fmt: skip
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: {"mpe2": spec, "pettingzoo": None}.get(name) or (
            None if name in ("pettingzoo", "mpe2") else real(name))
    )  # fmt: skip
    lines = [line.split(None, 1) for line in listing.listing("envs")]
    found = {name: words for name, words in lines_of(lines) if "." in name}
    assert found == {
        "mpe2.duel_v2": "several agents   needs the package no_such_engine",
        "mpe2.simple_spread_v3": "several agents   preset",
        "pettingzoo.*": 'several agents   needs: pip install "agilerl[marl]"',
    }
    assert "mpe2.duel_v2" not in sys.modules


def lines_of(lines: list[list[str]]) -> list[tuple[str, str]]:
    return [(line[0], line[1] if len(line) > 1 else "") for line in lines]


@pytest.mark.thorough
def test_installed_environments_of_several_agents_are_listed() -> None:
    pytest.importorskip("mpe2")
    found = {line.split()[0]: line for line in listing.listing("envs")}
    assert "several agents   preset" in found["mpe2.simple_speaker_listener_v4"]
    assert found["pettingzoo.classic.connect_four_v3"].split(None, 1)[1] == "several agents   preset"
    assert found["pettingzoo.classic.rps_v2"].split(None, 1)[1] == "several agents"


def test_runs_are_listed_in_order_and_damaged_ones_named(tmp_path: Path) -> None:
    rows = [member(0, 0, 0, 12.5)]
    write_run(tmp_path / "CartPole-v1" / "dqn-0002", rows, [], seed=7, returns=[0.65, 0.82, 0.75])
    going = write_run(tmp_path / "CartPole-v1" / "dqn-0001", rows, [], status="running")
    (going / "LOCK").write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "token": ""}))
    (tmp_path / "Acrobot-v1" / "ppo-0001").mkdir(parents=True)
    (tmp_path / "Acrobot-v1" / "ppo-0002").mkdir()
    (tmp_path / "Acrobot-v1" / "ppo-0002" / "run.json").write_text("{")
    header, *lines = [line.split() for line in listing.listing("runs", tmp_path)]
    assert header == ["env", "algo", "seed", "status", "steps", "score", "path"]
    assert [(line[0], line[3], line[-1][-8:]) for line in lines] == [
        ("Acrobot-v1", "damaged", "ppo-0001"),
        ("Acrobot-v1", "damaged", "ppo-0002"),
        ("CartPole-v1", "running", "dqn-0001"),
        ("CartPole-v1", "done", "dqn-0002"),
    ]
    assert "no run.json" in " ".join(lines[0])
    assert lines[2][5:7] == ["fitness", "12.5"]
    assert lines[3][2:7] == ["7", "done", "-", "0.74", "(0.65..0.82)"]


def test_a_run_whose_process_is_gone_was_interrupted(tmp_path: Path) -> None:
    path = write_run(tmp_path / "CartPole-v1" / "dqn-0001", [member(0, 0, 0, 1.0)], [], status="running")
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    (path / "LOCK").write_text(json.dumps({"pid": process.pid, "host": socket.gethostname(), "token": ""}))
    lines = listing.listing("runs", tmp_path)
    assert "interrupted" in lines[1]
    assert lines[2:] == [f"resume   agilerl resume {path}"]
    (path / "LOCK").write_text(json.dumps({"pid": process.pid, "host": "another", "token": ""}))
    assert "running" in listing.listing("runs", tmp_path)[1]


def test_an_unknown_list_and_an_absent_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'runs'"):
        listing.listing("run")
    missing = tmp_path / "nothing"
    assert listing.listing("runs", missing) == [f"no runs yet: the folder {missing} does not exist"]
    assert listing.listing("runs", tmp_path) == [f"no runs in {tmp_path}"]
