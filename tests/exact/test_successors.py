"""Schemes that replace members by copies of others, against hand-worked tables."""

from __future__ import annotations

import copy
import math
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agilerl.errors import ConfigError
from agilerl.experimental.mf_pbt import MultipleFrequencies
from agilerl.experimental.pb2 import PopulationBandit, Trial, process_over, propose
from agilerl.hpo.evolution import evolution_of
from agilerl.hpo.founders import share_at, value_at
from agilerl.hpo.operators import HyperparameterConfig, RLParameter
from agilerl.hpo.pbt import TruncationSelection, perturbed
from agilerl.hpo.schemes import SCHEMES
from agilerl.telemetry.record import MemberRecord

RECORD = MemberRecord(0, 0, None, 0.0, 0.0, 0, 0, None, "founder", {}, "")
RATE = {"lr": RLParameter(1e-4, 1e-2)}


class Member:
    """What a scheme needs of an agent; `weights` say whose copy it is."""

    def __init__(self, index: int, lr: float, weights: str | None = None) -> None:
        self.index, self.lr, self.weights = index, lr, weights or f"w{index}"
        self.fitness: list[float] = []
        self.registry = SimpleNamespace(hp_config=HyperparameterConfig(**copy.deepcopy(RATE)))
        self.hooks = 0
        self.mut = "None"

    def clone(self, index: int) -> Member:
        child = Member(index, self.lr, self.weights)
        child.fitness = list(self.fitness)
        return child

    def mutation_hook(self) -> None:
        self.hooks += 1


def records(members: list[Member], fitness: list[float]) -> list[MemberRecord]:
    for member, value in zip(members, fitness, strict=True):
        member.fitness.append(value)
    return [replace(RECORD, id=m.index, fitness=f) for m, f in zip(members, fitness, strict=True)]


# -- places in a range -------------------------------------------------------------------------------------------------


def test_a_share_of_a_range_is_one_on_its_scale() -> None:
    """Two decades: the middle is 1e-3. Discounts: 0.9 to 0.999 are horizons of 10 to 1,000, the middle is 100."""
    gamma = RLParameter(0.9, 0.999)
    assert value_at("lr", RATE["lr"], 0.5) == pytest.approx(1e-3)
    assert share_at("lr", RATE["lr"], 1e-3) == pytest.approx(0.5)
    assert share_at("gamma", gamma, 0.99) == pytest.approx(0.5)
    assert share_at("dropout", RLParameter(0.0, 0.8), 0.2) == pytest.approx(0.25)
    assert share_at("lr", RATE["lr"], 1.0) == pytest.approx(1.0), "outside: the nearer end"
    assert share_at("lr", RLParameter(1e-3, 1e-3), 1e-3) == 0.0


# -- the bandit's model ------------------------------------------------------------------------------------------------


def test_the_kernel_is_near_in_hyperparameters_times_near_in_time() -> None:
    """Length 0.5 and decay 20: exp(-0.3 ** 2 / 0.5) * exp(-4 / 20) = 0.8353 * 0.8187 = 0.6839. The noise is not part of
    what two different trials share."""
    kernel = process_over(1).kernel
    assert kernel(np.array([[0.2, 1.0]]), np.array([[0.5, 5.0]])).item() == pytest.approx(0.6839, abs=1e-4)


def trials_of(gain: Any, generation: int, places: Any = None) -> list[Trial]:
    places = np.linspace(0.0, 1.0, 11) if places is None else places
    return [Trial({"lr": value_at("lr", RATE["lr"], float(x))}, generation, float(gain(x))) for x in places]


def test_the_proposal_is_where_gains_are_highest() -> None:
    for top in (0.2, 0.8):
        known = trials_of(lambda x, top=top: -((x - top) ** 2), 1) + trials_of(lambda x, top=top: -((x - top) ** 2), 2)
        values = propose(known, [], 3, RATE, np.random.default_rng(0))
        assert share_at("lr", RATE["lr"], values["lr"]) == pytest.approx(top, abs=0.1)


def test_late_trials_count_more_than_early_ones() -> None:
    early = [trial for generation in range(5) for trial in trials_of(lambda x: -x, generation)]
    late = [trial for generation in range(60, 65) for trial in trials_of(lambda x: x, generation)]
    values = propose(early + late, [], 65, RATE, np.random.default_rng(0))
    assert share_at("lr", RATE["lr"], values["lr"]) > 0.8


def test_proposals_of_one_generation_are_kept_apart() -> None:
    """What was tried in the middle gained and lost alike: one goes to an end, the next one to the other."""
    known = [Trial({"lr": 1e-3}, 1, gain) for gain in (-1.0, 1.0)] * 8
    first = share_at("lr", RATE["lr"], float(propose(known, [], 1, RATE, np.random.default_rng(1))["lr"]))
    again = share_at("lr", RATE["lr"], float(propose(known, [(first,)], 1, RATE, np.random.default_rng(1))["lr"]))
    assert min(first, again) < 0.1
    assert max(first, again) > 0.9


def test_without_two_different_gains_the_proposal_is_random_within_the_range() -> None:
    drawn = {propose(t, [], 1, RATE, np.random.default_rng(s))["lr"] for t in ([], trials_of(lambda x: 1.0, 0))
             for s in range(4)}  # fmt: skip
    assert len(drawn) == 4, "both cases are the first of equal draws"
    assert all(1e-4 <= value <= 1e-2 for value in drawn)


def test_trials_count_where_their_values_lie_in_the_present_range() -> None:
    """Gains are highest at 1e-3: the middle of two decades, and three quarters of a range that ends at 2.15e-3."""
    known = [
        trial for generation in (1, 2) for trial in trials_of(lambda x: -((x - 0.5) ** 2), generation)
    ]  # values of 1e-4 to 1e-2
    narrow = {"lr": RLParameter(1e-4, 10 ** (-8 / 3))}
    for ranges, share in ((RATE, 0.5), (narrow, 0.75)):
        value = propose(known, [], 3, ranges, np.random.default_rng(0))["lr"]
        assert share_at("lr", ranges["lr"], value) == pytest.approx(share, abs=0.1)
        assert 7e-4 < value < 1.4e-3


def test_trials_without_a_value_of_each_hyperparameter_are_left_out() -> None:
    """A restart adds `ent_coef`: its trials decide alone, and before there are two the proposal is random."""
    old = trials_of(lambda x: -x, 1) + trials_of(lambda x: -x, 2)
    both = {**RATE, "ent_coef": RLParameter(1e-4, 1e-2)}
    drawn = [propose(known, [], 3, both, np.random.default_rng(1)) for known in (old, [])]
    assert drawn[0] == drawn[1]
    recent = [Trial({**trial.values, "ent_coef": 1e-3}, 3, -trial.gain) for trial in trials_of(lambda x: -x, 3)]
    values = propose(old + recent, [], 4, both, np.random.default_rng(0))
    assert share_at("lr", RATE["lr"], values["lr"]) > 0.8, "gains of the others rise with the rate"


# -- the bandit's population -------------------------------------------------------------------------------------------


def test_the_worst_quarter_becomes_copies_of_the_best_and_gains_are_remembered() -> None:
    members = [Member(i, 1e-3) for i in range(8)]
    scheme = PopulationBandit(seed=0)
    after, births = scheme.next(members, records(members, [5, 1, 9, 4, 0, 8, 3, 2]), 1)
    assert scheme.trials == [], "the first fitness is no gain"
    assert [m.weights for m in after[:1] + after[2:4] + after[5:]] == ["w0", "w2", "w3", "w5", "w6", "w7"]
    assert {after[1].weights, after[4].weights} <= {"w2", "w5"}
    assert [after[4].index, after[1].index] == [8, 9], "the worst first"
    assert [(b.id, b.parent, b.kind, b.path) for b in births] == [
        (8, int(after[4].weights[1:]), "rl_hp", "lr"), (9, int(after[1].weights[1:]), "rl_hp", "lr")
    ]  # fmt: skip
    assert births[0].before == {"lr": 1e-3}
    assert births[0].after == {"lr": after[4].lr}
    assert births[0].parent_fitness in (9, 8)
    assert [m.hooks for m in after] == [0, 1, 0, 0, 1, 0, 0, 0]
    again, _ = scheme.next(after, records(after, [6, 10, 9, 4, 9, 8, 3, 2]), 2)
    gains = [trial.gain for trial in scheme.trials]
    of = {2: 9.0, 5: 8.0}  # what a copy's parent had
    assert gains == [1, 10 - of[int(after[1].weights[1:])], 0, 0, 9 - of[int(after[4].weights[1:])], 0, 0, 0]
    assert again[1].weights == after[1].weights


def test_the_bandit_goes_on_from_its_state() -> None:
    def part(scheme: PopulationBandit, members: list[Member], generation: int) -> list[Member]:
        return scheme.next(
            members, records(members, [math.sin(7 * m.index + generation) for m in members]), generation
        )[0]

    members = [Member(i, 1e-4 * (i + 1)) for i in range(4)]
    scheme = PopulationBandit(seed=5)
    for generation in (1, 2, 3):
        members = part(scheme, members, generation)
    again = PopulationBandit(seed=0)
    again.load_state(scheme.state())
    twins = copy.deepcopy(members)
    assert [m.lr for m in part(scheme, members, 4)] == [m.lr for m in part(again, twins, 4)]


def test_a_healed_member_is_the_worst_and_its_place_tells_the_bandit_no_gain() -> None:
    """Member 1 has diverged: its record says so under the id that it had, its place has a copy of the fittest, 4."""
    members = [Member(i, 1e-3) for i in range(4)]
    scheme = PopulationBandit(seed=0)
    scheme.next(members, records(members, [1.0, 4.0, 3.0, 2.0]), 1)  # 0 is replaced by 4, a copy of 1
    rows = records(members, [5.0, -math.inf, 6.0, 9.0])
    members[1] = members[3].clone(index=5)
    members[1].fitness[-1] = -math.inf
    after, births = scheme.next(members, rows, 2)
    assert [member.index for member in after] == [0, 6, 2, 3]
    assert after[1].weights == "w3"
    assert [(birth.id, birth.parent, birth.parent_fitness) for birth in births] == [(6, 3, 9.0)]
    assert [trial.gain for trial in scheme.trials] == [3.0, 7.0], "of 2 and 3, which were there before"
    assert scheme.before == {0: 5.0, 6: 9.0, 2: 6.0, 3: 9.0}


def test_a_bandit_without_ranges_is_a_mistake() -> None:
    lone = Member(0, 1e-3)
    lone.registry = SimpleNamespace(hp_config=HyperparameterConfig())
    with pytest.raises(ConfigError, match=r"pb2 chooses hyperparameters\. fix: ranges in mutation\.rl_hp_selection"):
        PopulationBandit(0).next([lone], records([lone], [0.0]), 1)


# -- several frequencies -----------------------------------------------------------------------------------------------


def evolve(fitness: list[float], generation: int, frequencies: tuple[int, ...] = (1, 4)) -> list[Member]:
    """Members 0 to 3 evolve every generation, 4 to 7 every fourth one; member i has the rate (i + 1) / 1,000."""
    members = [Member(i, (i + 1) / 1000) for i in range(8)]
    return MultipleFrequencies(frequencies, 8, seed=0).next(members, records(members, fitness), generation)[0]


def test_parts_evolve_at_their_own_paces() -> None:
    """Ranked 0, 1, 2, 3 each: 3 becomes a copy of 0 with a rate one step off; the third is better than any other."""
    fitness = [8.0, 7.0, 6.0, 1.0, 5.0, 4.0, 3.0, 2.0]
    after = evolve(fitness, 1)
    assert [m.weights for m in after] == ["w0", "w1", "w2", "w0", "w4", "w5", "w6", "w7"]
    assert after[3].lr in (pytest.approx(0.0008), pytest.approx(0.0012))
    assert [m.index for m in after] == [0, 1, 2, 8, 4, 5, 6, 7]
    whole = evolve(fitness, 4)
    assert [m.weights for m in whole] == ["w0", "w1", "w2", "w0", "w4", "w5", "w0", "w4"]


def test_migrants_of_slower_parts_bring_their_hyperparameters_and_those_of_faster_ones_do_not() -> None:
    """Generation 4: member 2 gives way to 4, from the slower part, whose rate it takes; generation 4 of the other case:
    member 6 gives way to 0, from the faster part, and takes the rate of 4, the best of its own."""
    slower = evolve([4.0, 3.0, 2.0, 1.0, 8.0, 7.0, 6.0, 5.0], 1)
    assert (slower[2].weights, slower[2].lr) == ("w4", 0.005)
    faster = evolve([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 4)
    assert (faster[6].weights, faster[6].lr) == ("w0", 0.005)
    assert (faster[2].weights, faster[2].lr) == ("w2", 0.003), "no better one elsewhere"


def test_a_migrant_that_is_not_needed_goes_to_the_next_who_is_worse() -> None:
    """Two parts of eight: of the third quarter 4 and 5 (fitness 12 and 2) only 5 is worse than the best other (9)."""
    members = [Member(i, 1e-3) for i in range(16)]
    fitness = [16.0, 15.0, 14.0, 13.0, 12.0, 2.0, 1.0, 0.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.5]
    after, births = MultipleFrequencies((1, 99), 16, seed=0).next(members, records(members, fitness), 1)
    assert [m.weights for m in after[:8]] == ["w0", "w1", "w2", "w3", "w4", "w8", "w0", "w1"]
    assert [(b.parent, b.kind, b.path) for b in births] == [(8, "none", ""), (0, "rl_hp", "lr"), (1, "rl_hp", "lr")]


def test_members_that_make_no_quarters_are_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"expected a multiple of 8 members, got 6\. fix: training\.pop_size=8"):
        MultipleFrequencies((1, 10), 6, seed=0)


def test_a_member_without_a_number_is_the_worst() -> None:
    after = evolve([math.nan, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 1)
    assert [m.weights for m in after[:4]] == ["w1", "w1", "w2", "w3"]
    assert after[0].index == 8


# -- truncation selection ----------------------------------------------------------------------------------------------


def truncation(interval: int = 1) -> TruncationSelection:
    return TruncationSelection(interval, seed=0)


def test_truncation_replaces_the_worst_quarter_one_step_away_from_the_best() -> None:
    members = [Member(i, 1e-3) for i in range(8)]
    after, births = truncation().next(members, records(members, [5, 1, 9, 4, math.nan, 8, 3, 2]), 1)
    assert [m.weights for m in after[:1] + after[2:4] + after[5:]] == ["w0", "w2", "w3", "w5", "w6", "w7"]
    assert {after[1].weights, after[4].weights} <= {"w2", "w5"}
    assert {after[1].lr, after[4].lr} <= {8e-4, 1.2e-3}
    assert [(birth.id, birth.kind, birth.path) for birth in births] == [(8, "rl_hp", "lr"), (9, "rl_hp", "lr")]


def test_truncation_waits_for_its_interval() -> None:
    members = [Member(i, 1e-3) for i in range(4)]
    scheme = truncation(interval=3)
    reached = [len(scheme.next(members, records(members, [3, 1, 2, 0]), number)[1]) for number in range(1, 7)]
    assert reached == [0, 0, 1, 0, 0, 1]


def test_a_discount_moves_by_its_horizon() -> None:
    """0.99 is a horizon of 100 steps: one step is 83 or 125, and the range ends at 1,000."""
    member = Member(0, 1e-3)
    member.registry = SimpleNamespace(hp_config=HyperparameterConfig(gamma=RLParameter(0.9, 0.999)))
    member.gamma = 0.99
    moved = {round(perturbed(member, np.random.default_rng(seed))["gamma"], 6) for seed in range(8)}
    assert moved == {0.988, 0.992}
    member.registry.hp_config["gamma"].max = 1.0
    member.gamma = 1.0
    assert perturbed(member, np.random.default_rng(0))["gamma"] == 0.9, "a range with an endless horizon has no scale"
    member.registry.hp_config["gamma"].max = 0.999
    member.gamma = 0.999
    assert perturbed(member, np.random.default_rng(0))["gamma"] == pytest.approx(0.9988), "reversed at the end"


def test_the_scheme_that_lacks_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "agilerl.experimental.pb2")
    with pytest.raises(ConfigError, match=r"pb2 \(evolution\.scheme\): sklearn is not installed\. fix: .*bandit"):
        evolution_of(SCHEMES["pb2"], {"seed": 0})


@pytest.mark.parametrize(
    ("frequencies", "expected"),
    # Part 1 is the receiver; its best member has a rate of 40, the migrant, the best of part 0, one of 1.
    [((2, 1), 1.0), ((1, 1), 40.0), ((1, 2), 40.0)],
    ids=["rarer", "equal", "more often"],
)
def test_a_migrant_keeps_its_numbers_only_if_its_part_evolves_less_often(
    frequencies: tuple[int, int], expected: float
) -> None:
    """Parts of four: the third of a part is replaced by the best of the other one, if that is fitter."""
    members = [Member(index, lr) for index, lr in enumerate([1.0, 2.0, 3.0, 4.0, 40.0, 50.0, 60.0, 70.0])]
    fitness = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0]
    scheme = MultipleFrequencies(frequencies, 8, seed=0)
    after, births = scheme.next(members, records(members, fitness), 2)
    assert after[6].weights == "w0", "network of the migrant"
    assert after[6].lr == expected
    assert [agent.weights for agent in after[4:6]] == ["w4", "w5"]
    assert after[7].weights == "w4"
    assert [birth.parent for birth in births if birth.id == after[6].index] == [0]
