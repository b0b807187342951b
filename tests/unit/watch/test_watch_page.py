"""The page of the live view in headless Chromium: what it shows, that it follows, and that its console stays empty."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from synthetic_runs import birth, family, write_run

import agilerl.views.watch
from agilerl.runs.records import RunRecords
from agilerl.telemetry.progress import PROGRESS
from agilerl.views.watch.folder import RunList, find_group
from agilerl.views.watch.seeds import Seeds
from agilerl.views.watch.state import RunFollower
from agilerl.views.watch.wire import Cursor, entry_facts, plain
from tests.unit.watch.test_watch_server import TOKEN, serving

STATIC = Path(agilerl.views.watch.__file__).parent / "static"
STUB = Path(__file__).with_name("page_stub.mjs")


def by_node(script: str) -> Any:
    """What a script prints as JSON, run by Node.js over the stub of the page; the test is skipped without it."""
    if (node := shutil.which("node")) is None:
        pytest.skip("no Node.js here")
    names = {"stub": STUB, **{name: STATIC / f"{name}.js" for name in ("store", "panels", "charts", "lineage")}}
    script = "".join(f"const {k} = await import({json.dumps(path.as_uri())});" for k, path in names.items()) + script
    done = subprocess.run([node, "--input-type=module", "-"], input=script, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture
def frames(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    """`benchmarks/watch_frames.py`, which drives the browser; the test is skipped without one."""
    if os.name == "nt":
        pytest.skip("the browser is driven over pipes of POSIX")
    module = benchmark_module("watch_frames")
    if module.browser() is None:
        pytest.skip("no Chromium here")
    return module


@pytest.fixture
def page(frames: ModuleType) -> Iterator[Any]:
    chromium = frames.Chromium()
    yield chromium
    chromium.close()


def test_the_winner_is_compared_by_its_numbers() -> None:
    """An object in a text is "[object Object]", whichever member it is, and a chart would not be drawn again."""
    script = (Path(agilerl.views.watch.__file__).parent / "static" / "main.js").read_text()
    assert "winner?.id}.${run.now.winner?.generation}" in script
    assert not re.search(r"\$\{[\w.?]*winner\}", script)


def test_quantiles_are_interpolated() -> None:
    """By Node.js where it is installed: the median of an even number of members lies between two of them."""
    if (node := shutil.which("node")) is None:
        pytest.skip("no Node.js here")
    script = (Path(agilerl.views.watch.__file__).parent / "static" / "store.js").read_text()
    cases = [
        [[10, 20], 0.5],
        [[0, 10, 100, 200], 0.5],
        [[1, 2, 9], 0.5],
        [[0, 10], 0.9],
        [[3, 4], 1],
        [[7], 0.1],
        [[], 0.5],
    ]
    script += f"\nconsole.log(JSON.stringify({cases}.map(([values, share]) => quantile(values, share))));\n"
    done = subprocess.run([node, "--input-type=module", "-"], input=script, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [15, 55, 2, 9, 4, 7, None]


def test_the_page_shows_the_first_generation_while_it_trains(tmp_path: Path) -> None:
    """Steps, share and time left, and the founders in the lineage."""
    births = [birth(member, None, 0, "founder") for member in range(3)]
    options = {"max_steps": 10_000, "evo_steps": 1000, "evo_first": None, "target": 200.0}
    path = write_run(tmp_path / "run", [], births, status="running", population=3, options=options)
    (path / "LOCK").write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "token": "a"}))
    content = {"generation": 0, "generations": None, "max_env_steps": 10_000, "env_steps": 400, "seconds": 8.0}
    (path / PROGRESS).write_text(json.dumps({**content, "time": time.time()}))
    run = RunFollower(path)
    run.poll()
    load = {"cpu": None, "memory": None, "run_memory": None, "cores": 2}
    events = [(event.name, plain(event.data)) for event in Cursor(run).advance({"load": load})]
    shown = by_node(f"""
        const {{ drawn, node, tiles }} = stub;
        const run = new store.Run();
        for (const [name, data] of {json.dumps(events)}) {{
          if (name === "run") run.facts = data;
          if (name === "births") run.addBirths(data);
          if (name === "now") run.now = data;
        }}
        panels.tiles(run);
        panels.training(run);
        new lineage.Lineage(node("lineage"), run, node("range"), () => {{}}).draw();
        console.log(JSON.stringify({{ tiles: tiles(), training: node("training").textContent, arcs: drawn.arcs }}));
    """)
    assert shown["tiles"]["generation"] == ["1 of 10", "training, 40 %"]
    assert shown["tiles"]["training steps"] == ["1.2k", "0 for evaluation"]
    assert shown["tiles"]["speed"] == ["150 steps/s", "400 of 10k per member"]
    assert shown["tiles"]["time left at most"] == ["03:12", "elapsed 00:08"]  # 9,600 steps at 50 a second
    assert shown["tiles"]["best so far, fitness"] == ["–", "the first generation has not ended yet"]
    assert shown["training"] == "Training now: new: 0, 1, 2."
    assert shown["arcs"] == 3, "a circle for each founder"


def test_curves_of_seeds_are_overlaid_with_mean_and_deviation() -> None:
    curves = [[[10, 30], [0.0, 4.0]], [[20, 30, 40], [4.0, 6.0, 8.0]], [[], []]]
    found = by_node(f"console.log(JSON.stringify(store.overlay({json.dumps(curves)})));")
    assert found["steps"] == [10, 20, 30, 40]
    assert found["series"] == [[0, 2, 4, None], [None, 4, 6, 8]]
    assert found["mean"] == [None, 3, 5, None]
    assert found["deviation"] == [None, pytest.approx(2**0.5), pytest.approx(2**0.5), None]
    assert by_node("console.log(JSON.stringify(store.overlay([[[5], [1]]])));") == {
        "steps": [5], "series": [[1]], "mean": [1], "deviation": [0],
    }  # fmt: skip


def test_the_list_has_one_row_for_a_group_and_the_group_one_for_each_seed_and_their_mean(tmp_path: Path) -> None:
    family(tmp_path / "CartPole-v1" / "dqn-0001", 2, 2)
    folder = tmp_path / "CartPole-v1" / "dqn-seeds-0001"
    for seed, score in ((2, 10.0), (10, 14.0)):
        family(folder / f"seed-{seed}", 2, 3)
        facts = json.loads((folder / f"seed-{seed}" / "run.json").read_text())
        facts |= {"seed": seed, "result": {"test": {"mean": score}}, "started": f"2026-01-01T00:00:{seed:02}Z"}
        (folder / f"seed-{seed}" / "run.json").write_text(json.dumps(facts))
    (folder / "group.json").write_text("{}")
    runs = plain(entry_facts(RunList(tmp_path).read()))
    group = find_group(tmp_path, "CartPole-v1/dqn-seeds-0001")
    assert group == folder
    assert find_group(tmp_path, "CartPole-v1") is None
    seeds = plain(Seeds(tmp_path, group).read())
    assert [run["key"] for run in seeds["runs"]] == [f"CartPole-v1/dqn-seeds-0001/seed-{n}" for n in (2, 10)]
    assert [run["curve"][0] for run in seeds["runs"]] == [[1000, 2000, 3000]] * 2
    best = [float(max(m.fitness for m in g)) for g in RunRecords.read(folder / "seed-2").generations]
    assert seeds["runs"][0]["curve"][1] == pytest.approx(best, rel=1e-5)

    def shown(content: Any, group: str | None) -> tuple[str, list[list[str]]]:
        """The title and the cells of the table."""
        title, cells = by_node(f"""
            panels.list({json.dumps(content)}, {json.dumps(group)});
            const [head, body] = stub.node("runs").children;
            const rows = [head.children[0] ?? head, ...body.children].map((row) => row.children.map(stub.textOf));
            console.log(JSON.stringify([stub.textOf(stub.node("list-title")), rows]));
        """)
        return title, cells

    title, (head, *rows) = shown({"root": "r", "exists": True, "omitted": 0, "runs": runs}, None)
    assert (title, head[:4]) == ("Runs", ["run", "environment", "algorithm", "seed"])
    together = [row for row in rows if row[0] == "CartPole-v1/dqn-seeds-0001"]
    assert [row[1:6] for row in together] == [["CartPole-v1", "DQN", "2 seeds", "2 done", "12 ± 2.828"]]
    assert len(rows) == 2, "and the run that is in no group"
    title, (head, *rows) = shown(seeds, "CartPole-v1/dqn-seeds-0001")
    assert title == "DQN on CartPole-v1, 2 seeds"
    assert head[:4] == ["seed", "status", "generation", "steps of a member"]
    assert [row[:4] for row in rows] == [
        ["2", "done", "3", "3k"],
        ["10", "done", "3", "3k"],
        ["mean", "2 done", "", ""],
    ]
    assert [row[5] for row in rows] == ["10", "14", "12 ± 2.828"]


def text(page: Any, selector: str) -> str:
    return str(page.value(f"document.querySelector({selector!r}).textContent"))


def test_the_page_follows_a_run_and_steers_it(frames: ModuleType, page: Any, tmp_path: Path) -> None:
    run = frames.Grown(tmp_path / "LunarLander-v3" / "dqn-0001", 4, 40)
    run.grow(9)
    with serving(tmp_path) as (client, _):
        page.open(f"http://127.0.0.1:{client.port}/{TOKEN}/")
        page.wait_for("document.querySelectorAll('#runs tbody tr').length === 1")
        assert "running" in text(page, "#runs tbody")
        page.value("document.querySelector('#runs a').click()")
        page.wait_for("document.querySelectorAll('#members tbody tr').length === 4")
        page.wait_for(
            "document.querySelector('#fitness canvas') && document.querySelector('#lineage-legend').textContent"
        )
        assert text(page, "#title") == "DQN on LunarLander-v3"
        assert text(page, "#status") == "running"
        assert "10 of 40" in text(page, "#tiles")
        assert "held-out" in text(page, "#log")
        assert "Training now: new: " in text(page, "#training")
        run.say("a worker was lost")
        run.grow(2)
        page.wait_for("window.page.run.generations.length === 11")
        page.wait_for("document.querySelector('#members-note').textContent.includes('after generation 11')")
        page.wait_for("document.querySelector('#log').textContent.includes('a worker was lost')")
        pixels = "document.querySelector('#lineage canvas').getContext('2d').getImageData(0, 0, 400, 60).data"
        assert page.value(f"{pixels}.some((value) => value)"), "the tree is drawn"

        alive = page.value("window.page.run.generations.at(-1).ids[0]")
        filled = {"action": "set", "member": alive, "name": "lr", "value": "1e-3", "reason": "<b>why</b>"}
        for name, value in filled.items():
            page.value(f"document.querySelector('#steer').elements['{name}'].value = {json.dumps(value)}")
        page.value("document.querySelector('#steer').requestSubmit()")
        page.wait_for("document.querySelector('#pending').textContent.includes('waits: set')")
        assert "<b>why</b>" in text(page, "#pending"), "text is no markup"
        (request,) = (run.path / "requests").iterdir()
        content = json.loads(request.read_text())
        assert (content["member"], content["name"], content["value"]) == (alive, "lr", 0.001)
        assert page.problems == []

        page.value("document.querySelector('#steer').elements.member.value = '9999999'")
        page.value("document.querySelector('#steer').requestSubmit()")
        page.wait_for("document.querySelector('#answer').textContent.includes('not in the population')")
        assert len(page.problems) == 1, page.problems
        assert "400" in page.problems.pop()

        facts = json.loads((run.path / "run.json").read_text())
        (run.path / "run.json").write_text(json.dumps({**facts, "status": "failed", "error": "out of <memory>"}))
        page.wait_for("document.querySelector('#note').textContent.includes('out of <memory>')")
        assert page.value("document.querySelector('#steer button').disabled")
        for width, dark in ((420, False), (1280, True)):
            page.look(width, 900, dark)
            page.wait_for(f"document.documentElement.clientWidth === {width}")
            assert page.value("document.documentElement.scrollWidth") <= width, "nothing is wider than the page"
        assert page.problems == []


def test_a_resume_that_cuts_the_run_back_is_shown(frames: ModuleType, page: Any, tmp_path: Path) -> None:
    path = tmp_path / "LunarLander-v3" / "dqn-0001"
    frames.Grown(path, 3, 40).grow(6)
    with serving(path) as (client, _):
        page.open(f"http://127.0.0.1:{client.port}/{TOKEN}/")
        page.wait_for("window.page && window.page.run.generations.length === 6")  # the only run opens by itself
        lines = (path / "metrics.csv").read_text().splitlines(keepends=True)
        (path / "metrics.csv").write_text("".join(lines[:7]))
        page.wait_for("window.page.run.generations.length === 2")
        page.wait_for("document.querySelector('#members-note').textContent.includes('after generation 1')")
        assert page.value("document.querySelector('#back').hidden")
        assert page.problems == []
