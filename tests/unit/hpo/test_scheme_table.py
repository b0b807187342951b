"""The table of schemes says what the classes are; a user's own class is constructed by the same rule."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agilerl.config import apply_sets, manifest_from
from agilerl.config.experimental import experimental_in
from agilerl.core.signatures import constructor_arguments
from agilerl.errors import AgileRLError, ConfigError
from agilerl.hpo.evolution import Evolution, TournamentEvolution, evolution_of
from agilerl.hpo.racing import Race
from agilerl.hpo.schemes import READERS, SCHEMES, Scheme, scheme_of

PACKAGE = Path(__file__).parents[3] / "agilerl"
OF_RUNS = {"seed": 3, "members": 8, "budget": 100}  # arguments for every scheme, beside the keys that it reads
KEYS = {"survivors": 1, "certainty": 3.0, "judge": "training", "until": 0.5, "interval": 2, "frequencies": (1, 2)}
PARTS = {"tournament": object(), "mutation": object(), "keeps_elite_id": False}


@pytest.mark.parametrize("row", SCHEMES.values(), ids=SCHEMES)
def test_a_row_says_what_its_class_reads_and_does(row: Scheme) -> None:
    scheme = evolution_of(row, {**OF_RUNS, **KEYS, **PARTS})
    takes = set(constructor_arguments(type(scheme)))
    assert takes & KEYS.keys() == set(row.reads)
    assert (takes >= PARTS.keys()) == row.mutates
    assert scheme.shrinks == row.ends_members
    assert row.path.startswith("agilerl.experimental.") <= bool(row.evidence)


def test_keys_have_their_values_and_readers() -> None:
    race = evolution_of(SCHEMES["race"], {**OF_RUNS, **KEYS, "survivors": 4})
    assert isinstance(race, Race)
    assert (race.survivors, race.certainty) == (4, 3.0)
    assert READERS["survivors"][:2] == ["halving", "race"]
    assert "pbt" in READERS["interval"]
    assert set(READERS) == set(KEYS)


def test_the_core_imports_experimental_parts_by_their_path_alone() -> None:
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        imports = [line for line in path.read_text(encoding="utf-8").splitlines() if " agilerl.experimental" in line]
        if imports and not name.startswith("experimental/"):
            assert (name, [line[:4] for line in imports]) == ("training/loop.py", ["    "]), "for type checking"


class Mine(TournamentEvolution):
    """Takes selection and mutation as its base does, and a key."""

    def __init__(self, tournament: Any, mutation: Any, interval: int) -> None:
        super().__init__(tournament, mutation)
        self.interval = interval


class Greedy(Race):
    """Requires what no manifest has."""

    def __init__(self, greed: float, seed: int) -> None:
        super().__init__()


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("my_schemes")
    vars(module).update(Mine=Mine, Greedy=Greedy, Other=dict, Base=Evolution)
    monkeypatch.setitem(sys.modules, "my_schemes", module)


@pytest.mark.usefixtures("own")
def test_a_class_of_a_user_takes_keys_and_parts_by_name() -> None:
    scheme = evolution_of(scheme_of("my_schemes:Mine"), {**OF_RUNS, **KEYS, **PARTS})
    assert isinstance(scheme, Mine)
    assert (scheme.interval, scheme.tournament) == (2, PARTS["tournament"])


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("my_schemes:Missing", "has no attribute 'Missing'"),
        ("no_such_module:Mine", "No module named 'no_such_module'"),
        ("my_schemes:Other", "it is <class 'dict'>"),
        ("my_schemes:Greedy", "its constructor requires greed"),
    ],
)
def test_one_error_says_why_a_class_is_no_scheme(name: str, reason: str) -> None:
    message = rf"{name} \(evolution\.scheme\) must name a subclass of .*; .*{reason}\. fix: evolution\.scheme="
    with pytest.raises(ConfigError, match=message):
        evolution_of(scheme_of(name), {**OF_RUNS, **KEYS})


def test_a_manifest_takes_the_path_of_a_class_and_the_keys_of_any_scheme() -> None:
    plain = manifest_from({"algorithm": {"name": "PPO"}})
    own = apply_sets(plain, ["evolution.scheme=a.b:Mine", "evolution.interval=3", "mutation.mutation_sd=0.2"])
    assert (own.evolution.scheme, own.evolution.interval, own.mutation.mutation_sd) == ("a.b:Mine", 3, 0.2)
    assert experimental_in(own) == []
    assert manifest_from(own.as_dict()).hash() == own.hash() != plain.hash()
    assert apply_sets(own, ["mutation.mutate_elite=true"]).evolution.scheme == "a.b:Mine", "it may mutate"
    with pytest.raises(AgileRLError, match=r"one of 'tournament', .* or 'module:Class'; got 'rase'\. fix: evol"):
        apply_sets(plain, ["evolution.scheme=rase"])
