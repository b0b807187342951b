"""Members that were replaced in the same pause in which they were born: they never trained, and have no row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import birth, member, write_run

from agilerl.cli.steering import overview
from agilerl.integrations.optuna_export import study_of
from agilerl.runs.newborns import Newborns, born_together, ended_by
from agilerl.runs.records import RunRecords
from agilerl.telemetry.record import Steering
from agilerl.views.report.charts import fitness_chart
from agilerl.views.report.compare import curve
from agilerl.views.report.importance import _compared, lives_of
from agilerl.views.report.lineage import overview as tree_of
from agilerl.views.report.lineage import places
from agilerl.views.report.schedule import schedule_of
from agilerl.views.report.score import scoreboard
from agilerl.views.watch.state import RunFollower
from agilerl.views.watch.wire import birth_columns

NODE = "[64] 64 [64]", "[96] 64 [64]"


def request(generation: int, action: str, member: int | None, **result: Any) -> dict[str, Any]:
    """A line of evolution.jsonl."""
    facts = {"name": "", "value": None, "reason": "it stalls", "author": "ada"}
    return {"generation": generation, "request": f"{action}-{generation}", "action": action, "member": member, **facts,
            "result": result, "kind": "steering"}  # fmt: skip


def steered(path: Path, *, births: int = 99, rows: int = 99, **facts: Any) -> Path:
    """Two members for three generations.

    Before generation 1, member 2 (lr of 0) is born and at once changed into 3 (batch size). Before generation 2, 4 (a
    node added to 3) is born and changed into 5 (lr), which wins.
    """
    events = [
        birth(0, None, 0, "founder"), birth(1, None, 0, "founder"),
        birth(2, 0, 1, "rl_hp", "lr", before=0.001, after=0.002),
        birth(3, 2, 1, "steered", "batch_size", before=64, after=32),
        request(1, "set", 0, born=[3]),
        birth(4, 3, 2, "architecture", "encoder.add_node", before=NODE[0], after=NODE[1]),
        birth(5, 4, 2, "steered", "lr", before=0.002, after=0.004),
        request(2, "set", 4, born=[5]),
    ]  # fmt: skip
    third = {"hp.lr": 0.002, "hp.batch_size": 32}
    table = [
        member(0, 0, 0, 1.0), member(0, 1, 1, 2.0),
        member(1, 1, 0, 3.0), member(1, 3, 1, 5.0, parent=2, **third),
        member(2, 3, 0, 6.0, parent=2, **third),
        member(2, 5, 1, 9.0, parent=4, network=NODE[1], **{**third, "hp.lr": 0.004}),
    ]  # fmt: skip
    return write_run(path, table[:rows], events[:births], lr=0.001, **facts)


def test_the_schedule_has_the_changes_of_both_at_the_step_of_the_nearest_ancestor_that_trained(tmp_path: Path) -> None:
    schedule = schedule_of(steered(tmp_path / "run"))
    assert [(change["env_steps"], change["path"], change["after"]) for change in schedule.changes] == [
        (1000, "lr", {"lr": 0.002}),
        (1000, "batch_size", {"batch_size": 32}),
        (2000, "encoder.add_node", NODE[1]),
        (2000, "lr", {"lr": 0.004}),
    ]
    assert (schedule.env_steps, schedule.adapted, schedule.not_repeated) == (3000, (), ())
    assert schedule.scheduled().evolution.schedule is not None


def test_a_founder_that_was_changed_at_once_begins_as_its_copy(tmp_path: Path) -> None:
    """Member 1 restarts after 1,000 steps, and becomes 2 before it has trained."""
    births = [
        birth(0, None, 0, "founder"),
        birth(1, None, 1, "founder", "restart"),
        birth(2, 1, 1, "steered", "lr", before=0.002, after=0.004),
    ]
    rows = [member(0, 0, 0, 1.0), member(1, 2, 0, 5.0, parent=1, **{"hp.lr": 0.004})]
    schedule = schedule_of(write_run(tmp_path / "run", rows, births, lr=0.001))
    assert (schedule.founder.hyperparameters["lr"], schedule.changes, schedule.env_steps) == (0.004, (), 1000)


def test_the_tree_connects_their_children_and_leaves_them_out(tmp_path: Path) -> None:
    run = RunRecords.read(steered(tmp_path / "run"))
    assert run.newborns == Newborns((), frozenset({2, 4}))
    assert [[(place.id, place.source) for place in column] for column in places(run)] == [
        [(0, None), (1, None)],
        [(3, (0, 0)), (1, (0, 1))],
        [(3, (1, 3)), (5, (1, 3))],
    ]
    (tree,) = tree_of(run)
    titles = [node.title for node in tree.nodes]
    assert "#5 from #3 (generation 3): encoder.add_node [64] 64 [64] → [96] 64 [64], lr 2e-3 → 4e-3" in titles[-1]
    chart = fitness_chart(run)
    assert chart is not None
    assert next(stroke.d for stroke in chart.strokes if stroke.style == "faint").count("M") == 4
    assert {score.name: score.tries for score in scoreboard(run)} == {"steered": 2}


def test_gains_are_over_the_nearest_ancestor_that_trained(tmp_path: Path) -> None:
    """In generation 1, member 1 gains 1 and 3 gains 4 on 0; in generation 2, 3 gains 1 and 5 gains 4 on 3."""
    lives = lives_of(RunRecords.read(steered(tmp_path / "run")))
    assert [life.gain for life in lives] == [0.0, 0.5, 0.5, 1.0]  # of 0, 1, 3 and 5


def test_trials_name_the_nearest_ancestor_that_trained(tmp_path: Path) -> None:
    trials = study_of(RunRecords.read(steered(tmp_path / "run"))).trials
    parents = {trial.attributes["member"]: trial.attributes.get("parent_trial") for trial in trials}
    assert parents == {0: None, 1: None, 3: 0, 5: 2}  # trials are numbered 0 to 3


def test_who_trains_now(tmp_path: Path) -> None:
    path = steered(tmp_path / "run", rows=4, status="running", result=None)
    assert RunRecords.read(path).newborns == Newborns((5,), frozenset({2, 4}))
    lines, facts = overview(path)
    (born,) = [line for line in lines if line.startswith("born")]
    assert born == "born   5 of 3  encoder.add_node [64] 64 [64] → [96] 64 [64], lr 2e-3 → 4e-3  (trains now)"
    assert [(each["id"], each["parent"]) for each in facts["born"]] == [(5, 3)]
    run = RunFollower(path)
    run.poll()
    assert (run.progress().training, run.progress().going_on) == ((5,), 1)
    assert birth_columns(run, run.births)["parents"] == [None, None, 0, 0, 3, 3]
    assert run.source(5) == 3


@pytest.mark.parametrize(
    ("events", "waiting"),
    [
        ([birth(7, 3, 2, "none"), birth(8, 3, 2, "steered"), request(2, "clone", 3, born=[8], instead_of=7)], (8,)),
        ([birth(7, 3, 2, "healed", "member 1"), birth(8, 3, 2, "steered"), request(2, "remove", 7, born=[8])], (8,)),
        ([birth(7, 3, 2, "none"), request(2, "remove", 7, refused="it is the only member")], (7,)),
        ([birth(7, 3, 2, "healed", "member 1"), birth(8, 3, 2, "rl_hp", "lr")], (8,)),
        ([birth(7, 3, 2, "healed", "member 1")], (7,)),
        ([birth(0, 1, 2, "none"), birth(8, 0, 2, "steered", "lr")], (8,)),
    ],
    ids=["copied over", "removed", "not removed", "healed and not selected", "healed", "member 0"],
)
def test_a_newborn_may_be_replaced_in_several_ways(
    events: list[dict[str, Any]], waiting: tuple[int, ...], tmp_path: Path
) -> None:
    before = [birth(1, None, 0, "founder"), birth(3, None, 0, "founder")]
    rows = [member(number, id, slot, 1.0) for number in (0, 1) for slot, id in enumerate((1, 3))]
    path = write_run(tmp_path / "run", rows, [*before, *events], status="running", result=None)
    assert RunRecords.read(path).newborns.waiting == waiting
    run = RunFollower(path)
    run.poll()
    assert run.progress().training == waiting


def test_births_of_generations_whose_rows_are_lost_are_neither(tmp_path: Path) -> None:
    births = [birth(0, None, 0, "founder"), birth(1, 0, 1, "none"), birth(2, 1, 2, "none")]
    path = write_run(tmp_path / "run", [member(2, 2, 0, 1.0)], births)
    assert RunRecords.read(path).newborns == Newborns()


def test_odd_lines_are_no_requests() -> None:
    for id, result in ((None, {}), (3, {"instead_of": "x"}), (None, None)):
        assert ended_by(Steering(1, "r", "remove", id, "", None, "", "", result)) is None  # type: ignore[arg-type]


def test_a_member_that_is_its_own_parent_ends_the_walk(tmp_path: Path) -> None:
    """A mutated elite of a published function keeps its id."""
    births = [birth(0, None, 0, "founder"), birth(0, 0, 1, "rl_hp", "lr"), birth(1, 0, 1, "none")]
    rows = [member(0, 0, 0, 1.0), member(1, 0, 0, 2.0), member(1, 1, 1, 2.0, parent=0)]
    run = RunRecords.read(write_run(tmp_path / "run", rows, births))
    assert len(born_together(run.births[1], run.births_by_id)) == 1
    assert run.source(1) == 0
    assert len(places(run)) == 2


# --- asynchronous runs: metrics.csv repeats the rows of shards that did not train -------------------------------------


def shards(path: Path, *, generations: int = 5, **facts: Any) -> Path:
    """Two shards of two members. Both arrive in generation 0, the first in 1 and 3, the second in 2 and 4."""
    births = [
        *(birth(id, None, 0, "founder") for id in range(4)),
        birth(4, 0, 1, "rl_hp", "lr"), birth(5, 0, 1, "none"),
        birth(6, 4, 2, "none"),
        birth(7, 4, 3, "rl_hp", "lr"), birth(8, 4, 3, "none"),
    ]  # fmt: skip
    table = [
        [(0, 1, 10), (1, 1, 4), (2, 1, 6), (3, 1, 8)],
        [(0, 2, 12), (4, 2, 15), (2, 1, 6), (3, 1, 8)],
        [(0, 2, 12), (4, 2, 15), (5, 2, 11), (3, 2, 9)],
        [(6, 3, 18), (4, 3, 17), (5, 2, 11), (3, 2, 9)],
        [(6, 3, 18), (4, 3, 17), (7, 3, 20), (8, 3, 16)],
    ]
    rows = [
        member(number, id, slot, float(fitness), env_steps=1000 * steps)
        for number, row in enumerate(table[:generations])
        for slot, (id, steps, fitness) in enumerate(row)
    ]
    write_run(path, rows, births, **facts)
    with open(path / "config.yaml", "a") as file:
        file.write("evolution: {mode: async}\n")
    return path


def test_rounds_are_the_generations_of_shards(tmp_path: Path) -> None:
    run = RunRecords.read(shards(tmp_path / "run"))
    assert [[m.id for m in members] for members in run.rounds] == [[0, 1, 2, 3], [0, 4, 5, 3], [6, 4, 7, 8]]
    assert [[m.generation for m in members] for members in run.rounds] == [[0] * 4, [1, 1, 2, 2], [3, 3, 4, 4]]


def test_asynchronous_births_are_scored_by_their_first_round(tmp_path: Path) -> None:
    """4 has 15, its sibling 5 has 11 and its parent 0 has 12; 7 has 20, its sibling 8 has 16, its parent 4 has 17."""
    copied, lr = scoreboard(RunRecords.read(shards(tmp_path / "run")))
    assert (lr.name, lr.tries, lr.judged, lr.survived, lr.compared) == ("lr", 2, 1, 1, 2)
    assert lr.change == (15 - 11.5 + 20 - 16.5) / 2
    assert (copied.name, copied.tries, copied.judged, copied.survived) == ("no mutation", 3, 1, 0)


def test_asynchronous_gains_are_ranked_among_the_members_of_a_round(tmp_path: Path) -> None:
    """Round 1: 0 gains 2, 4 gains 5 on 0, 5 gains 1 on 0, and 3 gains 1. Round 2: 6, 4, 7 and 8 gain 3, 2, 5 and 1."""
    lives = lives_of(RunRecords.read(shards(tmp_path / "run")))
    expected = [(1 + 2 / 3) / 2, 0, 1 / 3, (2 / 3 + 1 / 6) / 2, (1 + 1 / 3) / 2, 1 / 6, 2 / 3, 1, 0]  # of 0 to 8
    assert sorted(life.gain for life in lives) == pytest.approx(sorted(expected))


def test_asynchronous_descendants_are_counted_over_rounds_of_the_shard(tmp_path: Path) -> None:
    """All four members at the end descend from 4, and none from its parent 0, beside which it lived."""
    assert list(_compared(RunRecords.read(shards(tmp_path / "run")))) == [("lr", 4.0, 0.0)]


def test_asynchronous_newborns_have_edges_and_train_until_their_shard_arrives(tmp_path: Path) -> None:
    columns = places(RunRecords.read(shards(tmp_path / "done")))
    sources = {(place.generation, place.id): place.source for column in columns for place in column}
    assert (sources[2, 5], sources[3, 5], sources[4, 7]) == ((1, 0), (2, 5), (3, 4))
    assert not [place for column in columns[1:] for place in column if place.source is None]
    path = shards(tmp_path / "run", generations=4, status="running", result=None)
    assert RunRecords.read(path).newborns == Newborns((7, 8))
    run = RunFollower(path)
    run.poll()
    assert (run.progress().training, run.progress().going_on) == ((7, 8), 2)


def test_a_curve_has_one_point_for_the_same_steps(tmp_path: Path) -> None:
    """The second shard reaches 2,000 and 3,000 steps after the first one."""
    assert curve(RunRecords.read(shards(tmp_path / "run"))) == ([1000.0, 2000.0, 3000.0], [10.0, 15.0, 20.0])
