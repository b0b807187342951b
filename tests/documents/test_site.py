"""The documentation builds without a network and without dead links; what is read off the code stands in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agilerl.algorithms import available, find_algorithm
from agilerl.algorithms.declared import hyperparameters
from agilerl.config.load import leaf_paths

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly: a dead link, a missing anchor or a page that no menu names fails."""
    out = tmp_path_factory.mktemp("site")
    environment = {
        **os.environ,
        "NO_MKDOCS_2_WARNING": "1",
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def page(site: Path, name: str) -> str:
    return (site / name / "index.html").read_text(encoding="utf-8")


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe)[^>]+src=\"(https?:[^\"]+)", text)
        fetched += re.findall(r"<link[^>]+rel=\"(?:stylesheet|preconnect|icon)\"[^>]+href=\"(https?:[^\"]+)", text)
        assert not fetched, f"{path.relative_to(site)}: {fetched}"


def test_pages_show_what_the_code_declares(site: Path) -> None:
    table = page(site, "hyperparameters")
    for algo in available():
        for name in hyperparameters(find_algorithm(algo)):
            assert f"<code>{name}</code>" in table, f"{algo}.{name}"
    keys = page(site, "manifest")
    for path in leaf_paths("DQN"):
        section, _, key = path.partition(".")
        assert section in ("algorithm", "format") or f"<code>{key}</code>" in keys, path
    assert "cut evaluation episodes there" in keys, "options carry their meaning"
    commands = page(site, "command_line")
    for command in ("train", "resume", "evaluate", "export", "list", "config convert", "data make", "data show"):
        assert f"agilerl {command}</code>" in commands, command
    assert "agilerl.train" in page(site, "api") or "train_off_policy" in page(site, "api")
    assert "<td>CartPole-v1, DQN</td>" in page(site, "algorithms/dqn")


def test_no_marker_is_left(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert not re.search(r"<!-- \w+: \w+ -->", path.read_text(encoding="utf-8")), path.name
