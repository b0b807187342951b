"""The notebooks of the documentation run from top to bottom, and end with the results that their text promises."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SECONDS = 240  # for a cell, on a loaded machine


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def variables(name: str, expressions: dict[str, str], folder: Path) -> dict[str, Any]:
    """Run a notebook in `folder`, and evaluate an expression per key in its kernel afterwards."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(FOLDER / name, as_version=4)
    values = ", ".join(f"{key!r}: {expression}" for key, expression in expressions.items())
    notebook.cells.append(nbformat.v4.new_code_cell(f"import json\nprint(json.dumps({{{values}}}))"))
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=resources).execute()
    (output,) = notebook.cells[-1].outputs
    return json.loads(output["text"])  # type: ignore[no-any-return]


@pytest.mark.thorough
def test_the_first_run_solves_its_environment_and_is_filmed(tmp_path: Path) -> None:
    values = variables(
        "first_run.ipynb",
        {
            "mean": "score.mean",
            "episodes": "len(score.returns)",
            "rows": "[len(frame), sum(len(row) for row in run.history)]",
            "action": "int(action)",
            "path": "str(run.path)",
            "same": "again.best.evaluate(episodes=3, seed=5).returns == run.best.evaluate(episodes=3, seed=5).returns",
        },
        tmp_path,
    )
    assert values["mean"] >= 450
    assert values["episodes"] == 20
    assert values["action"] in (0, 1)
    assert values["same"] is True
    assert values["rows"][0] == values["rows"][1] > 0
    run = tmp_path / values["path"]
    assert (run / "best" / "rollout.gif").read_bytes()[:6] == b"GIF89a"


@pytest.mark.thorough
def test_the_own_environment_is_learned_and_reported(tmp_path: Path) -> None:
    values = variables(
        "own_environment.ipynb",
        {
            "mean": "score.mean",
            "baseline": "baseline",
            "page": "str(page)",
            "generations": "[int(frame.generation.nunique()), len(run.history)]",
            "events": "len(births)",
        },
        tmp_path,
    )
    assert values["mean"] > values["baseline"] + 20
    assert "River" in (tmp_path / values["page"]).read_text(encoding="utf-8")
    assert values["generations"][0] == values["generations"][1] > 0
    assert values["events"] > 0


def test_there_are_two_notebooks() -> None:
    assert [path.name for path in NOTEBOOKS] == ["first_run.ipynb", "own_environment.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_outputs_are_stripped_and_links_lead_somewhere(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(codes) >= 5
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in codes)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    text = "\n".join(source(cell) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)#\s]+)", text)
    assert links
    assert all((path.parent / link).is_file() for link in links), links
