"""The report of a run: what it says, what it draws, and that one file of bounded size is enough."""

from __future__ import annotations

import json
import re
import tomllib
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import pytest
from synthetic_runs import birth, family, member, write_run

from agilerl.errors import AgileRLWarning, RunError
from agilerl.telemetry.record import Birth
from agilerl.training.manifest import launch
from agilerl.views.hub_card import CardFacts, card
from agilerl.views.report import RunRecords, write_report
from agilerl.views.report.charts import Growth, architecture_charts, axes, fitness_chart, growth, hyperparameter_charts
from agilerl.views.report.compare import comparison, write_comparison
from agilerl.views.report.lineage import bands, mutation_text, overview, places, short_mutation
from agilerl.views.report.page import FILM_LIMIT, MARK, MARK_WITHIN, SIZE_LIMIT, command, render, tiles
from agilerl.views.report.plot import Scale, linear_ticks, spans_decades
from agilerl.views.report.score import scoreboard
from agilerl.views.report.text import tidy
from agilerl.views.watch.state import RunFollower
from agilerl.views.watch.wire import facts_of

# Two founders, 0 the fitter one. Generation 1: 0 lives on beside its unmutated copy 2 and its mutated child 3; 4 is a
# child of 1. Generation 2: 3 lives on beside its child 5; 6 has been born and not evaluated.
BIRTHS = [
    birth(0, None, 0, "founder"),
    birth(1, None, 0, "founder"),
    birth(2, 0, 1, "none"),
    birth(3, 0, 1, "rl_hp", "lr", before=1e-3, after=5e-4),
    birth(4, 1, 1, "architecture", "encoder.add_node", before="[64] 64 [64]", after="[96] 64 [64]"),
    birth(5, 3, 2, "rl_hp", "lr", before=5e-4, after=2.5e-4),
    birth(6, 5, 3, "parameters"),
]
ROWS = [
    member(0, 0, 0, 10.0, is_best=1),
    member(0, 1, 1, 5.0),
    member(1, 0, 0, 12.0, parent=""),
    member(1, 2, 1, 14.0, parent=0),
    member(1, 3, 2, 19.0, parent=0, is_best=1, **{"hp.lr": 5e-4}),
    member(1, 4, 3, 4.0, parent=1, network="[96] 64 [64]"),
    member(2, 3, 0, 30.0, parent=0, is_best=1, **{"hp.lr": 5e-4}),
    member(2, 5, 1, 28.0, parent=3, **{"hp.lr": 2.5e-4}),
]


@pytest.fixture
def small(tmp_path: Path) -> RunRecords:
    return RunRecords.read(write_run(tmp_path / "dqn-0001", ROWS, BIRTHS, returns=[190.0, 200.0, 210.0, 220.0]))


def test_the_winner_is_the_best_confirmed_member_and_else_the_fittest(tmp_path: Path, small: RunRecords) -> None:
    assert small.winner is not None
    assert (small.winner.id, small.winner.generation, small.winner_line) == (3, 2, (0, 3))
    confirmed = [row if row["generation"] != 1 else {**row, "confirmation": 18.0} for row in ROWS]
    run = RunRecords.read(write_run(tmp_path / "confirmed", confirmed, BIRTHS))
    assert run.winner is not None
    assert (run.winner.id, run.winner.generation) == (3, 1)


def test_the_winner_is_found_over_as_many_generations_as_the_run_selects_by(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r", ROWS, BIRTHS)
    with open(path / "config.yaml", "a") as file:
        file.write("tournament_selection: {eval_loop: 2}\n")
    run = RunRecords.read(path)
    # 3: (19 + 30) / 2 = 24.5 in generation 2; 5, its child: (19 + 28) / 2; 3 in generation 1: (10 + 19) / 2.
    assert run.winner is not None
    assert (run.winner.id, run.winner.generation) == (3, 2)
    swapped = [{**row, "fitness": 60.0} if (row["generation"], row["id"]) == (0, 0) else row for row in ROWS]
    path = write_run(tmp_path / "s", swapped, BIRTHS)
    with open(path / "config.yaml", "a") as file:
        file.write("tournament_selection: {eval_loop: 3}\n")
    run = RunRecords.read(path)
    assert run.winner is not None
    assert (run.winner.id, run.winner.generation) == (0, 0)  # 60, against (60 + 19) / 2 and (60 + 19 + 30) / 3


def test_mutations_are_scored_by_survival_and_against_unmutated_siblings(small: RunRecords) -> None:
    scores = {score.name: score for score in scoreboard(small)}
    lr, node, copied, noise = (scores[n] for n in ("lr", "encoder.add_node", "no mutation", "parameters"))
    # 3 is 6 better than the mean of its copy (14) and of its parent that lived on (12); 5 is 2 below 3 that lived on.
    assert (lr.tries, lr.judged, lr.survived, lr.compared) == (2, 1, 1, 2)
    assert lr.change == pytest.approx(((19 - 13) + (28 - 30)) / 2)
    assert (node.tries, node.judged, node.survived, node.change) == (1, 1, 0, None)  # 1 did not live on
    assert (copied.tries, copied.judged, copied.survived, copied.change) == (1, 1, 0, None)
    assert (noise.tries, noise.judged, noise.compared) == (1, 0, 0)


def test_members_stand_where_their_parents_stood_and_the_unborn_last(small: RunRecords) -> None:
    rows = [[(place.id, place.source) for place in column] for column in places(small)]
    assert rows == [
        [(0, None), (1, None)],
        [(0, (0, 0)), (2, (0, 0)), (3, (0, 0)), (4, (0, 1))],
        [(3, (1, 3)), (5, (1, 3))],
        [(6, (2, 5))],
    ]


def test_where_the_lineage_is_lost_the_parents_are_those_of_the_metrics(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r", ROWS, [])
    run = RunRecords.read(path)
    assert run.winner_line == (0, 3)
    assert [place.source for place in places(run)[2]] == [(1, 3), (1, 3)]


def test_no_edge_of_the_tree_crosses_another(tmp_path: Path) -> None:
    for before, column in pairwise(places(RunRecords.read(family(tmp_path / "r", 9, 12)))):
        rows = {(place.generation, place.id): place.row for place in before}
        sources = [rows[place.source] for place in column if place.source is not None]
        assert len(sources) == 9
        assert sources == sorted(sources)


def test_the_winners_path_goes_from_its_founder_to_it_and_no_further(small: RunRecords) -> None:
    (tree,) = bands(small)
    assert [node.title.split(",")[0] for node in tree.nodes if node.on_path] == [
        "#0", "#3 from #0 (generation 2): lr 1e-3 → 5e-4", "#3 from #0 (generation 2): lr 1e-3 → 5e-4",
    ]  # fmt: skip
    path = tree.strokes[-1]
    assert (path.style, path.d.count("M")) == ("path", 2)
    assert [node.style for node in tree.nodes if "winner" in node.style] == ["f7 winner"]
    assert sorted(word.text for word in tree.words) == ["+node", "lr ↓", "lr ↓", "noise"]


def test_a_long_tree_is_cut_into_rows_that_share_a_column(tmp_path: Path) -> None:
    run = RunRecords.read(family(tmp_path / "r", 3, 26))
    columns = [[tick.label for tick in tree.columns] for tree in bands(run, per_band=12)]
    assert columns == [[str(n) for n in range(1, 14)], [str(n) for n in range(13, 26)], ["25", "26"]]
    (whole,) = overview(run)
    assert len(whole.nodes) == 3 * 26
    long = overview(RunRecords.read(family(tmp_path / "long", 3, 126)))
    assert [len(tree.nodes) for tree in long] == [3 * 33, 3 * 33, 3 * 33, 3 * 30]  # 125 steps, at most 40 a row


def test_words_of_mutations() -> None:
    down = Birth(1, 0, 1, "rl_hp", "batch_size", 128, 102)
    assert (mutation_text(down), short_mutation(down)) == ("batch_size 128 → 102", "batch ↓")
    node = Birth(1, 0, 1, "architecture", "head_net.remove_layer", "[64, 64]", "[64]")
    assert (mutation_text(node), short_mutation(node)) == ("head_net.remove_layer [64, 64] → [64]", "−layer")
    healed = Birth(1, 0, 1, "healed", "member 4", None, "loss is nan")
    assert mutation_text(healed) == "healed member 4 - → loss is nan"
    both = {"lr": 0.002, "gamma": 0.98}
    steps = Birth(1, 0, 1, "rl_hp", "lr, gamma", both, {"lr": 0.0016, "gamma": 0.984})
    assert mutation_text(steps) == "lr 2e-3 → 1.6e-3, gamma 0.98 → 0.984"
    anew = Birth(1, 0, 1, "restart", "lr, gamma", both, {"lr": 0.0016, "gamma": 0.98})
    assert mutation_text(anew) == "restart (lr 2e-3 → 1.6e-3, gamma 0.98 → 0.98)"
    noise = Birth(1, 0, 1, "parameters", "normal", None, {"scale": 0.0390625})
    assert mutation_text(noise) == "parameters (scale 0.03906)"
    assert mutation_text(Birth(1, 0, 1, "none")) == "unchanged copy"
    assert mutation_text(Birth(0, None, 0, "founder", "runs/x, member 8")) == "founder runs/x, member 8"


def test_the_headline_says_score_target_time_and_both_kinds_of_steps(small: RunRecords) -> None:
    found = {tile.name: (tile.value, tile.more) for tile in tiles(small)}
    assert found["score of the best agent"][0] == "205"
    assert "4 fresh episodes" in found["score of the best agent"][1]
    assert found["target"] == ("195", "met by the mean")
    assert found["wall time"] == ("03:00", "ended at its target score")
    assert found["training steps"] == ("12k", "3k of 50k per member")
    assert found["evaluation steps"][0] == "21k"
    assert found["population"] == ("4 members", "3 generations, 7 births")


def test_a_run_that_is_going_on_has_a_report_of_what_is_there(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r", ROWS, BIRTHS, status="running", result=None)
    with open(path / "metrics.csv", "a") as file:
        file.write("3,7,0,,99")  # half of a line
    with open(path / "evolution.jsonl", "a") as file:
        file.write('{"id": 7, "par')
    run = RunRecords.read(path)
    assert (len(run.generations), len(run.births)) == (3, 7)
    assert {tile.name: tile.more for tile in tiles(run)}["wall time"] == "still running"
    page = render(run)
    assert "Population so far" in page
    assert "no final evaluation yet" in page


def test_a_run_that_has_just_begun_has_a_report_too(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r", [], BIRTHS[:2], status="running", result=None)
    assert "No generation has ended yet." in render(RunRecords.read(path))
    (path / "metrics.csv").unlink()
    (path / "evolution.jsonl").unlink()
    (path / "config.yaml").unlink()
    assert "Nothing is recorded yet." in write_report(path).read_text()


@pytest.mark.parametrize(("population", "generations", "births"), [(20, 21, 400), (4, 134, 403), (50, 40, 1961)])
def test_a_page_lists_every_birth_in_under_300_kb_without_a_network(
    tmp_path: Path, population: int, generations: int, births: int
) -> None:
    path = family(tmp_path / "r", population, generations)
    page = write_report(path).read_text()
    assert len(page.encode()) < SIZE_LIMIT
    assert not re.search(r"https?://|<script|<link|@import|url\(", page)
    listed = page.split("every birth of evolution.jsonl")[1].split("<h2>Settings")[0]
    ids = re.findall(r'^(?:<tr><td class="r">)?(\d+)(?:<td class="r">| ←|, )', listed, re.MULTILINE)
    assert [int(found) for found in ids] == list(range(births))


@pytest.mark.thorough
def test_a_page_that_cannot_list_every_birth_says_how_many_are_left_out(tmp_path: Path) -> None:
    page = write_report(family(tmp_path / "r", 150, 90)).read_text()
    assert len(page.encode()) < SIZE_LIMIT
    (left,) = re.findall(r"<p>(\d+) more stand in evolution.jsonl", page)
    assert int(left) + page.count(" = ") >= 150 + 89 * 149


def test_every_drawing_is_well_formed(tmp_path: Path, small: RunRecords) -> None:
    for run in (small, RunRecords.read(family(tmp_path / "r", 6, 20))):
        drawings = re.findall(r"<svg.*?</svg>", render(run), re.DOTALL)
        assert len(drawings) >= 4
        for drawing in drawings:
            ElementTree.fromstring(drawing)


def test_what_a_run_is_called_cannot_become_markup(tmp_path: Path) -> None:
    births = [birth(0, None, 0, "founder", "<img src=x onerror=alert(1)>")]
    path = write_run(tmp_path / "r", [member(0, 0, 0, 1.0, is_best=1, network="<b>")], births, env_id="<script>x")
    page = render(RunRecords.read(path))
    assert "<script" not in page
    assert "<img" not in page
    assert "<b>" not in page
    assert "&lt;script&gt;x" in page


def test_secrets_stay_out_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATOR_TOKEN", "correct-horse")
    path = write_run(tmp_path / "r", ROWS, BIRTHS, argv=["agilerl", "train", "--set", "key=correct-horse"])
    (path / "config.yaml").write_text("environment: {kwargs: {key: correct-horse}}\n")
    page = render(RunRecords.read(path))
    assert "correct-horse" not in page
    assert "key=***" in page


def test_charts_show_what_changed_and_name_what_did_not(small: RunRecords) -> None:
    plots, constant = hyperparameter_charts(small)
    assert [plot.title for plot in plots] == ["lr"]
    assert constant == [("batch_size", "64")]
    assert [mark.title for mark in plots[0].marks] == [
        "generation 1: lr 1e-3 (member 0)", "generation 2: lr 5e-4 (member 3)", "generation 3: lr 5e-4 (member 3)",
    ]  # fmt: skip
    sizes, same = architecture_charts(small)
    assert ([plot.title for plot in sizes], same) == (["units in all hidden layers"], "")
    fitness = fitness_chart(small)
    assert fitness is not None
    assert fitness.rule is not None
    assert fitness.rule.label == "target 195"
    assert fitness.marks[-1].title == "generation 3: best 30 (member 3), mean 29"


def test_charts_have_training_steps_seconds_and_generations_as_axes(small: RunRecords, tmp_path: Path) -> None:
    found = axes(small)
    assert [(axis.key, axis.name) for axis in found] == [
        ("steps", "training steps of all members"), ("seconds", "seconds"), ("generation", "generation"),
    ]  # fmt: skip
    assert [list(axis.at.values()) for axis in found] == [[4000, 8000, 12_000], [60, 120, 180], [1, 2, 3]]
    plots = [fitness_chart(small, axis=axis) for axis in found]
    assert [plot.xlabel for plot in plots if plot] == [axis.name for axis in found]
    assert [[tick.label for tick in plot.xticks][::5] for plot in plots if plot] == [
        ["4k", "9k"], ["60", "110", "160"], ["1"],
    ]  # fmt: skip
    # Equally spaced in all three here; with a generation that takes three times as long, in seconds alone they are not.
    rows = [{**row, "seconds": {0: 60.0, 1: 240.0, 2: 300.0}[row["generation"]]} for row in ROWS]
    slow = fitness_chart(run := RunRecords.read(write_run(tmp_path / "slow", rows, BIRTHS)), axis=axes(run)[1])
    assert slow is not None
    first, middle, last = (mark.x for mark in slow.marks)
    assert (middle - first) / (last - first) == pytest.approx(0.75)
    page = render(small)
    assert page.count('<input type="radio" name="axis"') == 3
    assert [page.count(f' by-{axis.key}"') for axis in found] == [3, 3, 3], "fitness, lr, units"
    assert page.count('id="by-steps" checked') == 1
    without = [{name: value for name, value in row.items() if name != "seconds"} for row in ROWS]
    old = RunRecords.read(write_run(tmp_path / "old", [{**row, "seconds": ""} for row in without], BIRTHS))
    assert [axis.key for axis in axes(old)] == ["generation"]
    assert "radio" not in render(old).partition("</style>")[2]


def test_values_that_differ_by_rounding_alone_are_not_drawn(tmp_path: Path) -> None:
    rows = [member(n, 0, 0, 1.0, **{"hp.lr": 1e-3 * (1 + n * 1e-9)}) for n in range(3)]
    plots, constant = hyperparameter_charts(RunRecords.read(write_run(tmp_path / "r", rows, BIRTHS[:1])))
    assert (plots, dict(constant)["lr"]) == ([], "1e-3")


@pytest.mark.parametrize(
    ("stopped", "words"),
    [
        ("target", "ended at its target score"), ("budget", "spent its budget"), ("plateau", "ended on a plateau"),
        ("minutes", "ended when its time was up"), ("request", "ended on request"), ("interrupted", "was interrupted"),
        ("callback Watch.on_best", "was ended by callback Watch.on_best"), (None, "has ended"),
    ],
)  # fmt: skip
def test_how_a_run_ended_is_said_in_the_same_words_everywhere(stopped: str | None, words: str, tmp_path: Path) -> None:
    path = write_run(tmp_path / "r", ROWS, BIRTHS)
    facts = json.loads((path / "run.json").read_text())
    facts["result"]["stopped"] = stopped
    (path / "run.json").write_text(json.dumps(facts))
    run = RunRecords.read(path)
    assert {tile.name: tile.more for tile in tiles(run)}["wall time"] == words
    assert f"the state of a run that {words}." in card(run, CardFacts("me/run"))
    follower = RunFollower(path)
    follower.poll()
    assert facts_of(follower)["stopped"] == (words if stopped else None)


def test_fitness_far_below_all_other_lies_below_the_axis_and_is_counted(tmp_path: Path) -> None:
    rows = [member(0, i, i, -5000.0 if i == 0 else 100.0 + i) for i in range(24)]
    plot = fitness_chart(RunRecords.read(write_run(tmp_path / "r", rows, [])))
    assert plot is not None
    assert plot.note == "1 value lies below the axis, the lowest at -5000."


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ("[64] 64 [64]", Growth(3, 192)),
        ("[64, 32] 48 [16, 16]", Growth(5, 176)),
        ("cnn 32k8 64k4 128 [64]", Growth(4, 288)),
        ("lstm 64x2 32 [16]", Growth(4, 176)),
        ("", Growth(0, 0)),
    ],
)
def test_sizes_are_read_from_the_short_form_of_a_network(network: str, expected: Growth) -> None:
    assert growth(network) == expected


def test_ticks_are_round_and_decades_make_an_axis_logarithmic() -> None:
    assert linear_ticks(0.0, 1.0, 5) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert linear_ticks(1.58e-3, 2.45e-3, 3) == [1.75e-3, 2e-3, 2.25e-3]
    assert linear_ticks(-173.0, 268.0, 5) == [-100.0, 0.0, 100.0, 200.0]
    assert [tick.label for tick in Scale(9e-5, 1.1e-2, 0, 1, log=True).ticks()] == ["1e-4", "1e-3", "0.01"]
    assert [tick.label for tick in Scale(1e-3, 1.2e-2, 0, 1, log=True).ticks()] == ["1e-3", "2e-3", "5e-3", "0.01"]
    assert spans_decades([1e-4, 1e-3])
    assert not spans_decades([1e-4, 9e-4])
    assert not spans_decades([0.0, 1.0])
    assert [tidy(v) for v in (0.00063, 0.99, 128.0, 231.74, float("nan"), None)] == [
        "6.3e-4", "0.99", "128", "231.7", "–", "–",
    ]  # fmt: skip


def test_the_command_is_what_was_typed_and_else_what_repeats_the_run(tmp_path: Path) -> None:
    typed = write_run(tmp_path / "a", ROWS, BIRTHS, argv=["/x/bin/agilerl", "train", "CartPole-v1", "--set", "a b=1"])
    assert command(RunRecords.read(typed)) == "agilerl train CartPole-v1 --set 'a b=1'"
    script = write_run(tmp_path / "b", ROWS, BIRTHS, argv=["my_script.py"])
    assert command(RunRecords.read(script)) == f"agilerl train --config {script / 'config.yaml'}"


def test_a_small_film_is_in_the_page_and_a_large_one_linked(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r", ROWS, BIRTHS)
    (path / "best").mkdir()
    (path / "best" / "rollout.webp").write_bytes(b"RIFF")
    assert 'src="data:image/webp;base64,UklGRg=="' in write_report(path).read_text()
    (path / "best" / "rollout.webp").write_bytes(bytes(FILM_LIMIT + 1))
    page = write_report(path).read_text()
    assert '<a href="best/rollout.webp">' in page
    assert "base64" not in page


def test_a_report_that_cannot_be_written_warns_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_run(tmp_path / "r", ROWS, BIRTHS)

    def fails(_: Path) -> Path:
        raise OSError("disk full")

    monkeypatch.setattr(launch, "write_report", fails)
    with pytest.warns(AgileRLWarning, match=r"could not be written \(OSError: disk full"):
        launch.report_on(path)
    monkeypatch.undo()
    launch.report_on(path)
    assert (path / "report.html").is_file()


def test_every_template_is_in_the_package() -> None:
    root = Path(__file__).resolve().parents[3]
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["agilerl"]
    packed = {path for pattern in patterns for path in (root / "agilerl").glob(pattern)}
    templates = {path for path in (root / "agilerl" / "views" / "report" / "templates").rglob("*") if path.is_file()}
    assert len(templates) == 5
    assert templates <= packed


def test_facts_that_nothing_can_be_made_of_are_one_named_error(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r", ROWS, BIRTHS, argv={"a": 1}, notes=3, versions=3)
    with pytest.raises(RunError, match="does not hold what it should"):
        write_report(path)


@pytest.mark.parametrize(
    "test",
    [
        "x",
        {"returns": [1.0], "mean": "x", "iqm": 1.0, "ci95": [0, 1]},
        {"returns": [1.0], "mean": 1.0, "iqm": 1.0, "ci95": 3},
        {"returns": [], "mean": 1.0, "iqm": 1.0, "ci95": [0, 1]},
    ],
    ids=str,
)
def test_a_final_evaluation_of_a_wrong_kind_is_none(tmp_path: Path, test: object) -> None:
    path = write_run(tmp_path / "r", ROWS, BIRTHS, result={"test": test}, parent="x", git={})
    assert RunRecords.read(path).test is None
    assert "no final evaluation yet" in write_report(path).read_text()
    path = write_run(tmp_path / "text", ROWS, BIRTHS, result="x")
    assert "no final evaluation yet" in write_report(path).read_text()


def test_a_report_replaces_pages_alone(tmp_path: Path) -> None:
    path = family(tmp_path / "r", 3, 4)
    metrics = (path / "metrics.csv").read_bytes()
    with pytest.raises(
        RunError, match=r"metrics\.csv is there already, and it is not a page .* fix: --out with another"
    ):
        write_report(path, path / "metrics.csv")
    assert (path / "metrics.csv").read_bytes() == metrics
    page, compared = tmp_path / "page.html", comparison([path])
    page.touch()  # an empty file, as of mktemp
    for _ in range(2):
        assert MARK in write_report(path, page).read_bytes()[:MARK_WITHIN]
        assert MARK in write_comparison(compared, page).read_bytes()[:MARK_WITHIN]
    mine = "<!DOCTYPE html>\n<title>Mine</title>\n<style>body{}</style>"
    page.write_text(mine)
    with pytest.raises(
        RunError, match=r"page\.html is there already, .* fix: --html with another file, or remove it\."
    ):
        write_comparison(compared, page)
    assert page.read_text() == mine


def test_damage_and_absence_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="there is no run at"):
        write_report(tmp_path / "nothing")
    path = write_run(tmp_path / "r", ROWS, BIRTHS)
    (path / "evolution.jsonl").write_text(json.dumps(["no", "birth"]) + "\n")
    with pytest.raises(RunError, match=r"line 1 of .*evolution\.jsonl is damaged"):
        write_report(path)
    path = write_run(tmp_path / "rows", ROWS, BIRTHS)
    with open(path / "metrics.csv", "a") as file:
        file.write("9,x\n")
    with pytest.raises(RunError, match=rf"line {len(ROWS) + 2} of .*metrics\.csv is damaged .* fix: `agilerl resume"):
        write_report(path)
