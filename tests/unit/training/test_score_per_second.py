"""Runs that select by score per second: which member stays, what records hold, and refusals before training."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import agilerl
from agilerl.config import apply_sets, manifest_from
from agilerl.errors import ConfigError
from agilerl.hpo.cost import per_cost
from agilerl.training.manifest.build import without_effect

RANGES = "mutation.rl_hp_selection.batch_size={min: 8, max: 256}"
SMALL: dict[str, Any] = {
    "preset": False, "scheme": "tournament", "population": 4, "steps": 96, "evo_steps": 32, "seed": 5,
    "num_envs": 2, "learning_delay": 16,
    "learn_step": 4, "eval_episodes": 2, "confirm_episodes": 2, "target_score": None, "evolve_from": 0.0,
    "latent_dim": 9, "founders": "spread", "mutation.rl_hp_selection": {"batch_size": {"min": 8, "max": 256}},
    "network.encoder_config.hidden_size": [8], "network.head_config.hidden_size": [8], "verbose": False,
}  # fmt: skip


def rows_of(run: Any) -> list[list[dict[str, str]]]:
    with (run.path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [[row for row in rows if int(row["generation"]) == n] for n in range(len(run.history))]


def test_the_elite_is_the_member_with_the_most_score_for_its_cost_and_the_best_agent_that_of_the_score(
    tmp_path: Path,
) -> None:
    run = agilerl.train("CartPole-v1", "DQN", out=tmp_path, **{"evolution.objective": "score_per_second"}, **SMALL)
    generations = rows_of(run)
    for before, after in pairwise(generations):
        fitness, costs = ([float(row[name]) for row in before] for name in ("fitness", "operations_per_step"))
        values = per_cost(fitness, costs)
        assert int(after[0]["id"]) == int(before[values.index(max(values))]["id"])
        marked = [row["is_best"] for row in before].index("1")
        assert fitness[marked] == max(fitness), "records mark the best score"
    costs = [float(row["operations_per_step"]) for row in generations[0]]
    assert len(set(costs)) == 4, "batch sizes are spread"
    policy = 2 * (4 * 8 + 8 * 9 + 9 * 8 + 8 * 2)
    batches = [int(row["hp.batch_size"]) for row in generations[0]]
    assert costs == [policy + batch / 4 * 4 * policy for batch in batches]


def test_agents_that_are_not_counted_have_no_column(tmp_path: Path) -> None:
    run = agilerl.train("CartPole-v1", "DQN", out=tmp_path, **SMALL)
    assert "operations_per_step" in rows_of(run)[0][0]
    bandit = agilerl.train(
        "bandit/iris", "NeuralUCB", out=tmp_path, preset=False, population=2, steps=8, evo_steps=8,
        verbose=False,
    )  # fmt: skip
    assert "operations_per_step" not in rows_of(bandit)[0][0]


@pytest.mark.parametrize(
    ("algorithm", "settings", "reason", "fix"),
    [
        *(
            ("PPO", [f"evolution.scheme={scheme}", *more], rf"evolution\.scheme={scheme} compares", "evolution.scheme=")
            for scheme, more in {"race": [], "halving": [], "pb2": [RANGES], "ipbt": [RANGES]}.items()
        ),
        ("PPO", ["evolution.scheme=pbt", RANGES, "evolution.parents=random"], "random selects nobody", "evolution.obj"),
        ("PPO", ["evolution.mode=async", "training.shards=2"], r"async selects while others train", "evolution.obj"),
        ("CQN", ["training.fitness=fqe"], r"training\.fitness=fqe is no score", "evolution.objective=score"),
        ("NeuralUCB", [], "operations of NeuralUCB, which learns from the rewards", "evolution.objective=score"),
        ("GRPO", [], "operations of GRPO, which learns from rewards of what it writes", "evolution.objective=score"),
        ("ILQL", [], "operations of ILQL, which learns from a data set", "evolution.objective=score"),
        (
            "PPO",
            ["training.pop_size=1", "evolution.schedule=[{env_steps: 5, kind: rl_hp, after: {lr: 0.1}}]"],
            "the evolution of one agent",
            "evolution.objective=score",
        ),
    ],
)
def test_where_it_means_nothing_it_is_refused_by_name(
    algorithm: str, settings: list[str], reason: str, fix: str
) -> None:
    plain = manifest_from({"algorithm": {"name": algorithm}})
    with pytest.raises(ConfigError, match=rf"objective=score_per_second.*{reason}.*fix: .*{fix}"):
        apply_sets(plain, ["evolution.objective=score_per_second", *settings])
    assert apply_sets(plain, settings).evolution.objective == "score"


@pytest.mark.parametrize("scheme", ["tournament", "pbt", "mf_pbt"])
def test_schemes_that_select_by_it(scheme: str) -> None:
    settings = [f"evolution.scheme={scheme}", RANGES, "evolution.objective=score_per_second"]
    manifest = apply_sets(manifest_from({"algorithm": {"name": "PPO"}}), settings)
    assert manifest.evolution.objective == "score_per_second"
    usual = apply_sets(manifest, ["evolution.objective=score"])
    assert usual.hash() != manifest.hash()


@pytest.mark.parametrize(
    ("settings", "evolution", "note"),
    [
        ([], False, []),
        ([RANGES, "evolution.scheme=pbt"], True, []),
        (["evolution.objective=score_per_second"], True, []),
        (["evolution.scheme=race", "training.pop_size=1"], True, []),
        (
            ["evolution.objective=score_per_second", "mutation.reset_dormant=0.1"], False,
            ["no effect without evolution: evolution.objective=score_per_second, mutation.reset_dormant=0.1"],
        ),
        (
            [RANGES, "evolution.scheme=ipbt", "mutation.reset_dormant=0.1", "training.pop_size=1"], True,
            ["no effect on a population of one member: evolution.scheme=ipbt"],
        ),
        (
            [RANGES, "evolution.scheme=race", "evolution.survivors=2", "evolution.then=pbt", "pop_size=1"], True,
            ["no effect on a population of one member: evolution.then=pbt"],
        ),
        (
            ["evolution.scheme=race", "evolution.survivors=4"], True,
            ["no effect on a population of 4 members: evolution.survivors=4 ends none of them"],
        ),
        ([RANGES, "evolution.scheme=race", "evolution.survivors=4", "evolution.then=pbt"], True, []),
        (
            ["evolution.scheme=race", "training.elite_rescore_episodes=2"], True,
            [
                "no effect on selection by evolution.scheme=race, which compares training returns: "
                "training.elite_rescore_episodes=2"
            ],
        ),
        (
            ["evolution.scheme=halving", "evolution.judge=training", "training.elite_rescore_episodes=2"], True,
            [
                "no effect on selection by evolution.judge=training, which compares training returns: "
                "training.elite_rescore_episodes=2"
            ],
        ),
        (["evolution.scheme=halving", "training.elite_rescore_episodes=2"], True, []),
    ],
)  # fmt: skip
def test_settings_without_effect_are_named(settings: list[str], evolution: bool, note: list[str]) -> None:
    assert without_effect(apply_sets(manifest_from({"algorithm": {"name": "PPO"}}), settings), evolution) == note
