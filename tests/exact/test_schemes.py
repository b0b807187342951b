"""Founders that are spread, rungs, races, screens and plateaus against hand-worked tables."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from agilerl.errors import ConfigError
from agilerl.experimental.pb2 import PopulationBandit
from agilerl.hpo.evolution import Evolution
from agilerl.hpo.founders import spread
from agilerl.hpo.operators import RLParameter
from agilerl.hpo.pbt import TruncationSelection
from agilerl.hpo.racing import Race, Restarts, SuccessiveHalving, rungs_of
from agilerl.hpo.screening import best_returns, has_plateaued, is_stuck, promising, screened, still_learns
from agilerl.telemetry.record import MemberRecord

RECORD = MemberRecord(0, 0, None, 0.0, 0.0, 0, 0, None, "founder", {}, "")


def member(index: int, *scores: float) -> Any:
    return SimpleNamespace(index=index, scores=list(scores))


def record(agent: Any, fitness: float, env_steps: int, score: float | None = None) -> MemberRecord:
    return replace(RECORD, id=agent.index, fitness=fitness, env_steps=env_steps, score=score)


# -- founders ----------------------------------------------------------------------------------------------------------


def test_every_part_of_a_range_has_one_founder() -> None:
    ranges = {
        "lr": RLParameter(1e-4, 1e-2),
        "gamma": RLParameter(0.9, 0.999),
        "batch_size": RLParameter(8, 64, dtype=int),
    }
    drawn = spread(ranges, 8, seed=3)
    places = {
        "lr": [4 * (math.log10(each["lr"]) + 4) for each in drawn],
        "gamma": [4 * (-math.log10(1 - each["gamma"]) - 1) for each in drawn],
        "batch_size": [each["batch_size"] for each in drawn],
    }
    for name in ("lr", "gamma"):  # two decades in eight parts
        assert sorted(math.floor(place + 1e-9) for place in places[name]) == list(range(8)), name
    assert all(isinstance(each["batch_size"], int) and 8 <= each["batch_size"] <= 64 for each in drawn)
    assert [each["lr"] for each in drawn] != sorted(each["lr"] for each in drawn), "parts are dealt out, not in order"
    assert spread(ranges, 8, seed=3) == drawn
    assert spread(ranges, 8, seed=4) != drawn


def test_the_learning_rates_of_a_founder_lie_at_the_same_share_of_their_ranges() -> None:
    alone = {"gamma": RLParameter(0.9, 0.999), "lr_actor": RLParameter(1e-4, 1e-2)}
    drawn = spread({**alone, "lr_critic": RLParameter(1e-3, 1e-1)}, 4, seed=3)
    assert [each["lr_critic"] for each in drawn] == pytest.approx([10 * each["lr_actor"] for each in drawn])
    assert [{name: each[name] for name in alone} for each in drawn] == spread(alone, 4, seed=3)


def test_a_range_that_begins_at_zero_is_spread_evenly() -> None:
    values = sorted(each["dropout"] for each in spread({"dropout": RLParameter(0.0, 0.8)}, 4, seed=0))
    assert [math.floor(value / 0.2) for value in values] == [0, 1, 2, 3]


# -- successive halving ------------------------------------------------------------------------------------------------


def test_rungs_share_the_budget_equally() -> None:
    """Eight members and 800 steps: four rungs of 200, which are 25, 50, 100 and 200 steps of one member."""
    assert rungs_of(8, 800) == [(4, 25), (2, 75), (1, 175)]
    assert rungs_of(6, 300, survivors=2) == [(3, 16), (2, 50)]
    assert rungs_of(4, 100, survivors=4) == []


def test_the_better_half_by_the_mean_since_the_last_rung_goes_on() -> None:
    members = [member(i) for i in range(4)]
    scheme = SuccessiveHalving(4, 120)  # rungs after 10 and 30 steps of one member
    first = [record(m, f, 5) for m, f in zip(members, (1.0, 9.0, 5.0, 2.0), strict=True)]
    assert scheme.next(members, first, 1) == (members, ())
    second = [record(m, f, 10) for m, f in zip(members, (9.0, 0.0, 5.5, 2.0), strict=True)]
    left, births = scheme.next(members, second, 2)
    assert [m.index for m in left] == [0, 2]  # means 5, 4.5, 5.25, 2
    assert births == ()
    third = [record(m, f, 30) for m, f in zip(left, (0.0, 1.0), strict=True)]
    assert [m.index for m in scheme.next(left, third, 3)[0]] == [2], "what was before the rung no longer counts"


def test_training_returns_can_judge_and_members_without_any_are_last() -> None:
    members = [member(i) for i in range(4)]
    scheme = SuccessiveHalving(4, 120, judge="training")
    rows = [record(m, f, 10, s) for m, f, s in zip(members, (9.0, 8.0, 7.0, 6.0), (None, 1.0, 3.0, 2.0), strict=True)]
    assert [m.index for m in scheme.next(members, rows, 1)[0]] == [2, 3]


def halved(rows: list[tuple[float, ...]], **settings: Any) -> list[int]:
    """Who is left of members with this fitness in one generation each; the rung is due in the last one."""
    members = [member(i) for i in range(len(rows[0]))]
    scheme, left = SuccessiveHalving(len(rows[0]), 1000, **settings), members
    due = scheme.rungs[0][1]
    for number, row in enumerate(rows, 1):
        steps = due if number == len(rows) else number
        left, _ = scheme.next(members, [record(m, f, steps, f) for m, f in zip(members, row, strict=True)], number)
    return [m.index for m in left]


@pytest.mark.parametrize("judge", ["evaluation", "training"])
def test_a_generation_without_a_finished_episode_does_not_decide_a_rung(judge: str) -> None:
    nothing = -math.inf
    assert halved([(1.0, nothing), (1.0, 500.0), (1.0, 500.0)], judge=judge) == [1]
    assert halved([(1.0, nothing), (1.0, 0.5)], judge=judge) == [0], "0.5 is the mean of what it has"
    assert halved([(nothing, -9.0), (nothing, -9.0)], judge=judge) == [1], "who has nothing is last"
    assert halved([(1.0, math.nan), (1.0, 2.0)], judge=judge) == [1]


def test_a_copy_in_the_place_of_a_diverged_member_does_not_count_for_what_that_had() -> None:
    members, scheme = [member(0), member(1)], SuccessiveHalving(2, 100)
    scheme.next(members, [record(m, f, 5) for m, f in zip(members, (9.0, 1.0), strict=True)], 1)
    rows = [record(members[0], -math.inf, 25), record(members[1], 1.0, 25)]
    assert [m.index for m in scheme.next([member(2), members[1]], rows, 2)[0]] == [1]


def test_more_survivors_than_founders_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"evolution\.survivors must not exceed the founders; got 3\. fix: 2"):
        SuccessiveHalving(2, 100, survivors=3)


def test_new_founders_have_rungs_of_their_own() -> None:
    members, scheme = [member(i) for i in range(4)], SuccessiveHalving(4, 120)
    scheme.begin_anew(1000)
    assert len(scheme.next(members, [record(m, 1.0, 1005) for m in members], 1)[0]) == 4
    assert len(scheme.next(members, [record(m, 1.0, 1010) for m in members], 2)[0]) == 2


def test_new_founders_share_what_is_left_of_the_budget() -> None:
    """Of 120 steps 60 are left for four founders: rungs of 20, which are 5 steps of one member and 10 of two."""
    scheme = SuccessiveHalving(4, 120)
    scheme.budget_left(90)
    assert scheme.rungs == rungs_of(4, 120) == [(2, 10), (1, 30)], "the first founders have the whole budget"
    scheme.begin_anew(1000)
    scheme.budget_left(60)
    scheme.budget_left(40)  # a generation later
    assert scheme.rungs == [(2, 5), (1, 15)]
    members = [member(i) for i in range(4)]
    assert len(scheme.next(members, [record(m, 1.0, 1004) for m in members], 1)[0]) == 4
    assert len(scheme.next(members, [record(m, 1.0, 1005) for m in members], 2)[0]) == 2
    again, more = SuccessiveHalving(4, 120), SuccessiveHalving(4, 240)
    for each in (again, more):
        each.load_state(scheme.state())
    assert again.rungs == scheme.rungs
    assert more.rungs == rungs_of(4, 180), "a run that goes on with twice the budget has more of it left"
    again.load_state({"seen": {}, "begun": 1000})
    assert again.rungs == rungs_of(4, 120), "as an earlier version did"
    half = SuccessiveHalving(4, 240, until=0.5)
    assert half.rungs == rungs_of(4, 120)
    half.begin_anew(10)
    half.budget_left(120)
    assert half.rungs == rungs_of(4, 60)


def test_restarts_tell_what_they_restart_how_much_is_left() -> None:
    halving = SuccessiveHalving(4, 120)
    scheme = Restarts(halving, lambda number: [], 2)
    scheme.inner.begin_anew(30)
    scheme.budget_left(60)
    assert halving.rungs == rungs_of(4, 60)


def test_halving_goes_on_from_its_state() -> None:
    members = [member(i) for i in range(4)]
    rows = [record(m, float(m.index), 5) for m in members]
    scheme, again = SuccessiveHalving(4, 120), SuccessiveHalving(4, 120)
    scheme.next(members, rows, 1)
    again.load_state(scheme.state())
    assert again.seen == {0: [0.0], 1: [1.0], 2: [2.0], 3: [3.0]}


# -- races -------------------------------------------------------------------------------------------------------------


def race(agents: list[Any], scheme: Race) -> list[int]:
    return [agent.index for agent in scheme.next(agents, [record(a, 0.0, 1) for a in agents], 1)[0]]


def test_who_is_behind_for_certain_in_two_generations_ends() -> None:
    """Standard errors of four returns: 1 ± 1 gives sqrt(4/3)/2 = 0.577, so a gap of 2 is 2.45 of both together, and one
    of 3 is 3.67."""
    leader, near, far = member(0, 3, 5, 3, 5), member(1, 1, 3, 1, 3), member(2, 0, 2, 0, 2)
    scheme = Race(certainty=3.0)
    assert race([leader, near, far], scheme) == [0, 1, 2]
    assert scheme.behind == {2: 1}
    assert race([leader, near, far], scheme) == [0, 1]
    assert race([leader, near], scheme) == [0, 1], "2.45 standard errors are no certainty"


def test_who_catches_up_begins_to_count_anew() -> None:
    leader, other = member(0, 3, 5, 3, 5), member(1, 0, 2, 0, 2)
    scheme = Race(certainty=3.0)
    race([leader, other], scheme)
    other.scores = [3.0, 5.0]
    race([leader, other], scheme)
    other.scores = [0.0, 2.0, 0.0, 2.0]
    assert race([leader, other], scheme) == [0, 1]
    assert race([leader, other], scheme) == [0]


def test_survivors_stay_whoever_leads_and_the_worst_go_first() -> None:
    agents = [member(i, *(10.0 * i + d for d in (-1, 1, -1, 1))) for i in range(4)]
    scheme = Race(survivors=3)
    race(agents, scheme)
    assert race(agents, scheme) == [1, 2, 3]


def test_members_without_finished_episodes_are_never_behind() -> None:
    scheme = Race()
    agents = [member(0, 3, 5, 3, 5), member(1), member(2, 1.0)]
    for _ in range(3):
        assert race(agents, scheme) == [0, 1, 2]
    assert race([member(0), member(1)], scheme) == [0, 1]


def test_a_race_goes_on_from_its_state() -> None:
    agents = [member(0, 3, 5, 3, 5), member(1, 0, 2, 0, 2)]
    scheme, again = Race(), Race()
    race(agents, scheme)
    again.load_state(scheme.state())
    assert race(agents, again) == [0]


def test_states_of_schemes_within_restarts_do_not_share_names() -> None:
    schemes: list[Evolution] = [Race(), SuccessiveHalving(4, 100, 2), TruncationSelection(1, 0), PopulationBandit(0)]
    for scheme in schemes:
        joined = Restarts(scheme, lambda number: [], 2).state()
        assert set(joined) - set(scheme.state()) == {"restart", "since", "highest"}


# -- who is evaluated --------------------------------------------------------------------------------------------------


def test_the_most_promising_are_evaluated_and_new_ones_first() -> None:
    agents = [member(0, 1.0), member(1, 9.0), member(2), member(3, 5.0, 7.0)]
    assert [a.index for a in promising(agents, 2)] == [1, 2]
    assert [a.index for a in promising(agents, 3)] == [1, 2, 3]
    assert promising(agents, None) == agents
    assert promising(agents, 7) == agents


def test_only_the_last_episodes_count() -> None:
    faded, rising = member(0, *[100.0] * 10, *[0.0] * 32), member(1, *[-100.0] * 10, *[1.0] * 32)
    assert [a.index for a in promising([faded, rising], 1)] == [1]


def test_who_is_not_evaluated_ranks_below_who_is() -> None:
    agents = [member(0, 4.0), member(1, 50.0), member(2, -3.0)]
    assert screened(agents, {1: 7.0}) == {0: 4.0, 2: -3.0}
    assert screened(agents, {1: 2.0}) == {0: 2.0, 2: -5.0}, "2 below its training returns, like the first"
    assert screened(agents, {1: 4.0}) == {0: 4.0, 2: -3.0}
    assert screened(agents, {0: 1.0, 1: 2.0, 2: 3.0}) == {}
    assert screened([*agents, member(3)], {1: math.nan}) == {0: 4.0, 2: -3.0, 3: -math.inf}


# -- plateaus ----------------------------------------------------------------------------------------------------------


def test_a_plateau_is_no_gain_over_the_patience() -> None:
    rising = [[float(i), -1.0] for i in range(12)]
    flat = rising + [[11.0, math.nan]] * 6
    assert not has_plateaued(rising, 4)
    assert not has_plateaued(flat[:14], 4), "the mean of three generations still rises"
    assert has_plateaued(flat, 4)
    assert not has_plateaued(flat, None)
    assert not has_plateaued(flat, 40)


def test_a_slight_gain_is_none_and_a_larger_one_is() -> None:
    rising = [[float(i)] for i in range(11)]
    assert has_plateaued(
        rising + [[10.05]] * 8, 5
    )  # smoothed 0 + 1 + 2 over 3 is 1: 9.05 gained, of which 2 % are 0.18
    assert not has_plateaued(rising + [[10.1]] * 3 + [[11.0]] * 5, 5)


def test_who_has_learned_nothing_goes_on() -> None:
    assert not has_plateaued([[-200.0]] * 50, 5)
    assert not has_plateaued([[-math.inf]] * 50, 5)
    assert has_plateaued([*[[-200.0]] * 50, *[[-110.0]] * 20], 5)


def test_returns_that_rise_are_learning() -> None:
    """Smoothed over three, of ten 0 to 9: 1 to 8, so 7 gained, of which 2 % are 0.14."""
    rising = [float(i) for i in range(10)]
    assert still_learns(rising, 5)
    assert not still_learns(rising, 8), "too few to say"
    assert not still_learns([*rising, *[9.0] * 7], 5)
    assert not still_learns([*rising, *[9.0] * 2, *[9.1] * 5], 5), "0.1 of 8.1"
    assert still_learns([*rising, *[9.0] * 2, *[9.3] * 5], 5), "0.3 of 8.3"


@pytest.mark.parametrize("nothing", [-math.inf, 3.0])
def test_who_has_no_returns_or_gains_nothing_does_not_learn(nothing: float) -> None:
    assert not still_learns([nothing] * 50, 5)
    assert still_learns([*[-math.inf] * 20, *[float(i) for i in range(10)]], 5), "the first ones come late"


def test_the_returns_of_a_generation_are_its_best_median() -> None:
    agents = [member(0, 1.0, 2.0, 900.0), member(1, 3.0, 4.0), member(2)]
    assert best_returns(agents) == 3.5
    assert best_returns([member(0)]) == -math.inf


# -- restarts ----------------------------------------------------------------------------------------------------------


def test_new_founders_begin_where_nothing_gets_better() -> None:
    """Patience of two: smoothed over three generations 0, 3, 6, 9, 9, 9: stuck with the sixth one."""
    asked: list[int] = []

    def found(number: int) -> list[Any]:
        asked.append(number)
        return [member(0), member(1)]

    scheme = Restarts(Race(), found, patience=2)
    agents = [member(3), member(7)]
    for generation, fitness in enumerate((0.0, 0.0, 0.0, 9.0, 9.0, 9.0, 9.0), 1):
        assert scheme.next(agents, [record(a, fitness, 100 * generation) for a in agents], generation)[0] == agents
    after, births = scheme.next(agents, [record(a, 9.0, 800) for a in agents], 8)
    assert asked == [1]
    assert [agent.index for agent in after] == [8, 9], "ids of their own"
    assert [agent.steps for agent in after] == [[800], [800]], "steps are counted on"
    assert [(b.id, b.parent, b.generation, b.kind, b.path) for b in births] == [
        (8, None, 8, "founder", "restart"),
        (9, None, 8, "founder", "restart"),
    ]
    assert scheme.history == []
    again = Restarts(Race(), found, patience=2)
    again.load_state(scheme.state())
    assert (again.number, again.highest, again.history) == (1, 7, [])


@pytest.mark.parametrize(
    ("inner", "shrinks"),
    [(Race(), True), (SuccessiveHalving(4, 100), True), (TruncationSelection(1, 0), False)],
)
def test_restarts_share_the_budget_but_members_end_only_where_the_scheme_ends_them(
    inner: Evolution, shrinks: bool
) -> None:
    restarts = Restarts(inner, lambda number: [], 2)
    assert (restarts.shares_budget, restarts.shrinks) == (True, shrinks)
    assert (inner.shares_budget, inner.shrinks) == (shrinks, shrinks)


def test_who_never_gains_anything_begins_anew_later() -> None:
    assert not is_stuck([[-200.0]] * 9, 5)
    assert is_stuck([[-200.0]] * 10, 5)
    assert not is_stuck([[-200.0]] * 9 + [[-150.0]], 5)


@pytest.mark.parametrize(
    ("returns", "restarts"),
    [((10.0, 10.0, 10.0), False), ((-20.0, -20.0, -20.0), True), ((-20.0, -20.0, 900.0), True), ((), True)],
    ids=["above fitness", "below", "one lucky episode", "none yet"],
)
def test_training_returns_that_rise_above_fitness_are_progress(returns: tuple[float, ...], restarts: bool) -> None:
    """Fitness 9 from the third generation on; the returns of one member rise by one a generation."""
    scheme = Restarts(Race(), lambda number: [member(0), member(1)], patience=2)
    for generation in range(1, 9):
        agents = [member(3, *(each + generation for each in returns)), member(7)]
        fitness = min(9.0, 3.0 * generation)
        records = [record(agents[0], fitness, 100 * generation), record(agents[1], 0.0, 100)]
        after, _ = scheme.next(agents, records, generation)
        if after != agents:
            break
    assert (scheme.number == 1) is restarts
