"""Experimental settings are named at the start of a run and in the documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

import agilerl
from agilerl.config import apply_sets, manifest_from, preset_for, preset_names
from agilerl.config.experimental import EXPERIMENTAL, experimental_in
from agilerl.telemetry.record import BaseSink, Birth, RunPlan

PAGE = Path(__file__).parents[3] / "docs" / "evolution.md"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (["evolution.scheme=race", "evolution.survivors=2"], []),
        (["evolution.scheme=pb2"], ["evolution.scheme=pb2"]),
        (["evolution.scheme=pbt"], ["evolution.scheme=pbt"]),
    ],
)
def test_settings_that_are_experimental(settings: list[str], named: list[str]) -> None:
    plain = manifest_from({"algorithm": {"name": "PPO"}, "mutation": {"rl_hp_selection": {"lr": {"min": 1, "max": 2}}}})
    assert experimental_in(apply_sets(plain, settings)) == named


def test_no_preset_is_experimental() -> None:
    general = [preset_for("Any-v0", algo, general=True) for algo in ("PPO", "DQN", "SAC", "TD3")]
    assert [
        experimental_in(preset) for preset in (*map(preset_for, preset_names()), *general) if experimental_in(preset)
    ] == []


class Notes(BaseSink):
    """Keeps the notes of a run's start."""

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        self.notes = [note for note in plan.notes if note.startswith("experimental")]


@pytest.mark.parametrize("evolution", [True, False])
def test_a_run_says_so_unless_it_does_not_evolve(evolution: bool) -> None:
    sink = Notes()
    agilerl.train(
        "CartPole-v1", "DQN", population=2, steps=256, evolution=evolution, verbose=False, out=None,
        config={"evolution": {"scheme": "pbt"}}, sinks=[sink],
    )  # fmt: skip
    assert sink.notes == (["experimental, without a measured gain: evolution.scheme=pbt"] if evolution else [])


def test_the_page_lists_them() -> None:
    section = PAGE.read_text(encoding="utf-8").split("### Experimental")[1].split("\n\n")[2]
    rows = [re.split(r" \| ", row.strip("| ")) for row in section.splitlines()[2:]]

    def shown(value: object) -> str:
        return f"`{value}`" if isinstance(value, str) else json.dumps(value)

    expected = [[f"`{e.key}`", ", ".join(map(shown, e.usual)), e.evidence] for e in EXPERIMENTAL]
    assert rows == expected
