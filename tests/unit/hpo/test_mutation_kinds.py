"""The table of mutation kinds: every reader follows a row, for kinds without a place in published signatures too."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest

from agilerl.config.schema import Probabilities
from agilerl.core.signatures import constructor_arguments
from agilerl.errors import MutationError
from agilerl.hpo import Mutations
from agilerl.hpo.effects import MutationRecord
from agilerl.hpo.kinds import KINDS, REPLAYED, Kind
from agilerl.telemetry.record import Birth
from agilerl.views.report.lineage import mutation_text, short_mutation
from agilerl.views.report.score import mutation_name


class Agent:
    index, lr = 0, 0.1


def halved(mutations: Mutations, agent: Any) -> MutationRecord:
    """Halve the learning rate, by a draw of the stream of mutations."""
    before, agent.lr = agent.lr, agent.lr / int(mutations.rng.integers(2, 3))
    return MutationRecord("halving", "lr", before, agent.lr, 0.0)


def test_rows_agree_with_the_manifest_and_the_published_arguments() -> None:
    assert {kind.key for kind in KINDS.values()} == set(Probabilities.model_fields) - {"new_layer"}
    published = {name: kind.argument for name, kind in KINDS.items() if kind.argument}
    assert set(published.values()) <= set(constructor_arguments(Mutations))
    assert list(Mutations(0.1, 0.2, 0.3, 0.4, 0.5, 0.6).weights) == list(published), "draws are in this order"
    assert list(KINDS)[: len(published)] == list(published)
    assert {"architecture", "activation", "rl_hp"} <= set(REPLAYED)
    for kind in KINDS.values():
        for path in filter(None, (kind.operator, kind.replay)):
            assert callable(resolve_name(path))


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch) -> Kind:
    kind = Kind("halving", "halving_mut", f"{__name__}:halved", label="half", short="half")
    monkeypatch.setitem(KINDS, "halving", kind)
    return kind


@pytest.mark.usefixtures("row")
def test_a_kind_of_one_row_is_drawn_labelled_and_refused_for_language() -> None:
    mutations = Mutations(0, 0, 0, 0, 0, 0, rand_seed=0)
    mutations.others = {"halving": 1.0}
    agent = Agent()
    mutations.mutation([agent])
    assert (agent.lr, vars(agent)["mut"], vars(agent)["mutation_record"].kind) == (0.05, "half", "halving")
    mutations.no_mut = 1.0
    drawn = [mutations._draw(mutations._options(False)).name for _ in range(64)]
    assert 16 < drawn.count("halving") < 48, "of equal weights"
    with pytest.raises(MutationError, match=r"frozen: halving mutations do not apply"):
        mutations.check_for_language()


@pytest.mark.usefixtures("row")
def test_it_is_shown_by_its_row() -> None:
    birth = Birth(1, 0, 1, "halving", "lr", 0.1, 0.05, 0.0, None)
    assert mutation_text(birth) == "halving lr 0.1 → 0.05"
    assert short_mutation(birth) == "half"
    assert mutation_name(birth) == "halving"
    assert short_mutation(Birth(1, 0, 1, "parameters", "normal", None, {"scale": 1.0}, 0.0, None)) == "noise"
    activation = Birth(1, 0, 1, "activation", "activation", "ReLU", "ELU")
    assert (mutation_text(activation), short_mutation(activation)) == ("activation ReLU → ELU", "activatio")


def test_weights_follow_the_attributes() -> None:
    mutations = Mutations(1, 0, 0, 0, 0, 0)
    mutations.rl_hp_mut = np.float64(2.0)
    assert mutations.weights["rl_hp"] == 2.0
