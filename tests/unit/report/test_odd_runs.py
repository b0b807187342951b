"""Records, pages and films of runs that are large, half written, slow, or oddly named."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from synthetic_runs import birth, family, member, write_run

from agilerl.integrations.optuna_export import study_name, study_of
from agilerl.views.report import RunRecords, write_report
from agilerl.views.report.film import DEFAULT_FPS, Film, _write_pillow, frame_rate
from agilerl.views.report.page import SIZE_LIMIT
from agilerl.views.watch.folder import find_run, runs_in


def test_an_incomplete_last_row_is_not_read(tmp_path: Path) -> None:
    """The row breaks off within its seconds, and then within the number of its generation."""
    path = write_run(tmp_path / "r", [member(n, id, id, 10.0 * n + id) for n in (0, 1) for id in (0, 1)], [])
    text = (path / "metrics.csv").read_text()
    for cut in (text.rstrip("\n")[:-3], text + "1"):
        (path / "metrics.csv").write_text(cut)
        whole = [[0.0, 1.0], [10.0]] if len(cut) < len(text) else [[0.0, 1.0], [10.0, 11.0]]
        assert RunRecords.read(path).history == whole
        assert study_of(RunRecords.read(path)).trials[0].ended == 120.0


@pytest.mark.thorough
def test_a_page_of_a_large_population_shows_its_fittest_members(tmp_path: Path) -> None:
    """2,000 members in two generations: 300 rows fit, and the page says how many it leaves out."""
    rows = [
        member(number, id, id, float(id % 997), is_best=id == 996, network=f"[{64 + id % 40}] 64 [64]",
               **{"hp.lr": 1e-3 + id * 1e-6})
        for number in (0, 1) for id in range(2000)
    ]  # fmt: skip
    births = [birth(id, None, 0, "founder") for id in range(2000)]
    page = write_report(write_run(tmp_path / "r", rows, births)).read_text()
    assert len(page.encode()) < SIZE_LIMIT
    table = page.split("<h2>Final population")[1].split("<h2>Births")[0]
    (left,) = re.findall(r"<p>(\d+) more, which are less fit, stand in metrics.csv", table)
    assert table.count("<tr") - 1 + int(left) == 2000
    assert '<td class="r">996</td>' in table


def test_a_tree_that_no_page_can_hold_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agilerl.views.report.page.SIZE_LIMIT", 40_000)
    page = write_report(family(tmp_path / "r", 40, 40)).read_text()
    assert "The tree has too many members for this page" in page
    assert "Family tree" not in page
    assert "How the winner came to be" in page


@pytest.mark.parametrize(
    ("render_fps", "expected"),
    [(50, 50.0), (0.5, 0.5), (0.001, 0.1), (0, DEFAULT_FPS), (-3, DEFAULT_FPS), (None, DEFAULT_FPS),
     ("fast", DEFAULT_FPS), (float("inf"), DEFAULT_FPS), (float("nan"), DEFAULT_FPS)],
)  # fmt: skip
def test_frame_rates(render_fps: Any, expected: float) -> None:
    assert frame_rate(render_fps) == expected


@pytest.mark.parametrize("kind", ["gif", "webp"])
def test_a_film_may_show_a_picture_for_seconds(kind: str, tmp_path: Path) -> None:
    frames = [np.full((8, 8, 3), value, np.uint8) for value in (0, 255)]
    _write_pillow(Image, tmp_path / f"f.{kind}", Film(frames, frame_rate(0.5), (1.0,), False), kind)
    with Image.open(tmp_path / f"f.{kind}") as film:
        assert film.n_frames == 2
        film.seek(1)
        film.load()
        assert film.info["duration"] == 2000


@pytest.mark.skipif(os.name == "nt" or os.uname().sysname == "Darwin", reason="file names are Unicode there")
def test_a_folder_whose_name_is_not_utf_8_has_a_page_and_a_key(tmp_path: Path) -> None:
    rows, births = [member(0, 0, 0, 1.0)], [birth(0, None, 0, "founder")]
    path = write_run(tmp_path / os.fsdecode(b"caf\xe9"), rows, births)
    assert "caf?" in write_report(path).read_text()
    (entry,) = runs_in(tmp_path)
    assert entry.key == "caf\\udce9"
    assert find_run(tmp_path, entry.key) == path
    assert study_name(path).endswith("/caf\\udce9")
