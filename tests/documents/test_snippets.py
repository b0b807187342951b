"""Every snippet of the documentation runs, with smaller budgets: Python page by page, `agilerl` line by line.

Blocks of a page share their names, as a reader would type them one after another. A block whose title names another
library is compiled only, and so is one whose title needs a library that is missing; `text` blocks are output, or what
this suite cannot run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from agilerl.algorithms import find_algorithm
from agilerl.config import Manifest, apply_overrides
from agilerl.config.ignored import ignored_by
from agilerl.training.loop import TrainingLoop
from agilerl.training.manifest import launch

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.M | re.S)
OTHERS = ("Stable-Baselines3", "CleanRL", "AgileRL 2")
NEEDS = re.compile(r'title="needs (\w+)"')
SHELL = ("python -m venv", "pip ", "git ", "cd ", "#", "for ", "make ", "bash ")  # shown to be typed, not run here
MAX_STEPS = 200  # of a member


def blocks(page: Path) -> list[tuple[str, str, int]]:
    """(info string, code without indent, line) of every fenced block."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        indent, info, code = match.groups()
        line = text[: match.start()].count("\n") + 1
        found.append((info.strip(), "".join(row.removeprefix(indent) for row in code.splitlines(True)), line))
    return found


def smaller(manifest: Manifest) -> Manifest:
    """The same run with a smaller budget; rollouts stay whole."""
    experience, training = find_algorithm(manifest.algorithm.name).experience, manifest.training
    most = {"max_steps": MAX_STEPS, "evo_steps": MAX_STEPS // 2, "eval_episodes": 1, "eval_steps": 100,
            "confirm_episodes": 1, "elite_rescore_episodes": 0, "learning_delay": 0}  # fmt: skip
    paths = [f"training.{key}" for key in most if (value := getattr(training, key)) is None or value > most[key]]
    changes = {path: most[path.partition(".")[2]] for path in paths if path not in ignored_by(experience.name)}
    if experience.on_policy:
        changes["algorithm.learn_step"] = min(MAX_STEPS // 2, int(manifest.algorithm.hyperparameters["learn_step"]))
    return apply_overrides(manifest, changes)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Runs are cut to `MAX_STEPS`, written below a folder of their own; examples are found as from the root."""
    train, init = launch.run_training, TrainingLoop.__init__

    def shorter(self: Any, population: Any, source: Any, options: Any, settings: Any) -> None:
        from dataclasses import replace

        steps = min(options.max_steps, 2 * MAX_STEPS)
        cut = replace(options, max_steps=steps, evo_steps=min(options.evo_steps, steps))
        init(self, population, source, cut, settings)

    monkeypatch.setattr(
        "agilerl.api.run_training", lambda manifest, *asked, **more: train(smaller(manifest), *asked, **more)
    )
    monkeypatch.setattr(TrainingLoop, "__init__", shorter)
    monkeypatch.setattr("agilerl.cli.training.TEST_EPISODES", 4)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with torch.random.fork_rng():
        yield


def pages_with(kind: str) -> list[Any]:
    return [
        pytest.param(p, id=str(p.relative_to(ROOT)))
        for p in PAGES
        if any(i.split(" ")[0] == kind for i, *_ in blocks(p))
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("page", pages_with("python"))
def test_python_snippets_run(page: Path, small: None, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "__snippet__"}
    for info, code, line in blocks(page):
        if not info.startswith("python"):
            continue
        # As many lines before it as in the page, so that a traceback points there.
        compiled = compile("\n" * line + code, str(page), "exec")
        is_missing = any(find_spec(name) is None for name in NEEDS.findall(info))
        if not is_missing and not any(other in info for other in OTHERS):
            exec(compiled, names)


@pytest.mark.parametrize("page", pages_with("bash"))
def test_commands_run(page: Path, small: None) -> None:
    from agilerl.cli import app

    for info, code, line in blocks(page):
        for command in code.splitlines() if info == "bash" else ():
            words = command.split("  #")[0].rpartition("&& ")[2] if "agilerl " in command else command
            if words.startswith("agilerl "):
                if "LunarLander" in words:
                    pytest.importorskip("Box2D")
                result = CliRunner().invoke(app, shlex.split(words)[1:])
                assert result.exit_code == 0, f"{page.name}:{line}: {words}\n{result.output}"
            else:
                assert words.strip() == "" or words.startswith(SHELL), f"{page.name}:{line}: {words}"


def test_blocks_are_found() -> None:
    assert sum(info.startswith("python") for page in PAGES for info, *_ in blocks(page)) >= 20
    text = "```python\nx = 1\n```\n\n    ```bash\n    y\n    ```\n"
    assert [match.groups() for match in BLOCK.finditer(text)] == [
        ("", "python", "x = 1\n"), ("    ", "bash", "    y\n"),
    ]  # fmt: skip
