"""Arms and tables of `benchmarks/long.py`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agilerl.telemetry.record import Birth

BREAKOUT = "MinAtar/Breakout-v1:PPO"


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import long

    for task, good in {"Walker2d-v5:PPO": 3000.0, "Hopper-v5:PPO": 3000.0, BREAKOUT: 20.0}.items():
        monkeypatch.setitem(long.TASKS, task, replace(long.TASKS[task], good=good))
    return long


@pytest.mark.parametrize(
    "task",
    [
        "Walker2d-v5:PPO",
        "MinAtar/Breakout-v1:DQN",
        "BipedalWalker-v3:SAC",
        "pettingzoo.classic.connect_four_v3:IPPO",
    ],
)
def test_arms_differ_in_what_their_names_say(long: Any, task: str) -> None:
    about = long.TASKS[task]
    ways = {arm: way for arm, way in long.ARMS.items() if long.named_for(arm, task) == arm and way.only is None}
    made = {arm: long.settings(about, way, 1000) for arm, way in ways.items()}
    assert made["single"].training.pop_size == made["default"].training.pop_size == 1
    rate = "lr_actor" if about.algo == "SAC" else "lr"
    drawn = {arm: json.dumps(manifest.algorithm.hyperparameters[rate]) for arm, manifest in made.items()}
    assert len({lr for arm, lr in drawn.items() if ways[arm].drawn}) == 1, "one draw of the first founder for all"
    assert drawn["seeds"] == drawn["default"] != drawn["random"]
    assert made["seeds"].evolution.founders == "equal"
    assert (made["command-one"].training.pop_size, made["command-fixed"].training.pop_size) == (1, 4)
    assert (made["race"].evolution.survivors, made["race-4"].evolution.survivors) == (1, 4)
    assert made["pbt-33"].evolution.interval == 33
    assert made["tournament-frozen"].mutation.probabilities.rl_hp_mut == 0.0
    plain = made["random"].algorithm.hyperparameters
    if about.algo == "PPO":
        assert (plain["lr_schedule"], plain["target_kl"], plain["normalize_observations"]) == ("constant", None, False)
        assert made["rule"].algorithm.hyperparameters["lr_schedule"] == "adaptive"
    assert len(made["random"].mutation.rl_hp_selection) + 1 >= 6, "and the width"


def test_games_are_tested_by_the_share_won_against_a_player(long: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four games two are won, one is drawn and one is lost: 0.5. Their time does not count."""
    import agilerl.rollouts.matches as matches

    asked: list[Any] = []
    monkeypatch.setattr(matches, "outcomes", lambda *given: asked.append(given) or np.array([1, 0, -1, 1]))
    job = long.job_of("pettingzoo.classic.connect_four_v3:IPPO", "random", 1000, 4)
    measurer = long.MatchMeasurer({**job, "test_episodes": 4}, None)
    measurer.best = "the best"
    assert measurer.play(1) == 0.5
    assert asked[0][:4] == ("the best", "pettingzoo.classic.connect_four_v3", "lookahead", 4)
    assert measurer.not_counted > 0


def test_a_summary_compares_arms_by_seed(long: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Shares of random play (2) to 3,000: pbt-10 is above random in three of four pairs of each seed.

    One agent makes 48 steps in 10 CPU seconds, each of 16 members 12 / 16 in the same time: they cost 64 times one.
    """
    monkeypatch.setattr(long, "RESULTS", tmp_path)
    task = "Walker2d-v5:PPO"
    scores = {"random": (2.0, 1501.0), "pbt-10": (1501.0, 3000.0), "race": (2.0, 2.0), "default": (2.0, 2.0)}
    with open(long.path_of(task), "w", encoding="utf-8") as file:
        for arm, values in scores.items():
            for seed, score in zip((1000, 1001), values, strict=True):
                alone = arm == "default"
                key = {"task": task, "arm": arm, "members": 1 if alone else 16, "cpu_budget": 400.0, "seed": seed,
                       "commit": "x"}  # fmt: skip
                line = {"key": key, "final": score, "curve": [{"score": 2.0}, {"score": score}], "cpu_seconds": 10.0,
                        "env_steps": 99, "training_env_steps": 48 if alone else 12, "generations": 3}  # fmt: skip
                file.write(json.dumps(line) + "\n")
    random, pbt, race, default = long.summary(task, 16, [1000, 1001])
    assert (random["arm"], random["iqm"], pbt["iqm"]) == ("random", 0.25, 0.75)
    assert (random["anytime"], pbt["anytime"]) == (0.125, 0.375)
    assert pbt["better"]["value"] == pytest.approx(7 / 8, abs=1e-3), "ties count as a half"
    assert pbt["us_per_step"] == pytest.approx(1e7 / 12, rel=1e-3)
    assert (random["cost"], pbt["cost"], default["cost"]) == (64.0, 64.0, 1.0)
    assert "cost" not in race, "its members end"
    compared_with = [long.one_agent_of(arm, task) for arm in ("random", "rule", "command-fixed", "command-one")]
    assert compared_with == ["default", "rule-default", "command-one", "command-one"], "equal in environments and rules"


def test_the_page_shows_seeds_of_claims_apart_from_those_of_development(
    long: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import long_page

    monkeypatch.setattr(long, "RESULTS", tmp_path)
    task = "Hopper-v5:PPO"
    with open(long.path_of(task), "w", encoding="utf-8") as file:
        for seed, score in ((0, 13.0), (1000, 3000.0)):
            key = {"task": task, "arm": "random", "members": 16, "cpu_budget": 400.0, "seed": seed, "commit": "x"}
            line = {"key": key, "final": score, "curve": [{"score": score}], "cpu_seconds": 10.0,
                    "env_steps": 1_200_000, "training_env_steps": 10, "generations": 3}  # fmt: skip
            file.write(json.dumps(line) + "\n")
    first_table = next(place for place, row in enumerate(long_page.rows()) if row.startswith("**"))
    shown = [row for row in long_page.rows()[first_table:] if row.startswith(("| random", "**"))]
    assert "seeds of claims" in shown[0]
    assert shown[1] == "| random | 13 | 0.00 |  | 0 %, 0 %, 0 % | 0.00 | 3 | 1.2 million |  |"
    assert "a first look" in shown[2]
    assert shown[3] == "| random | 3000 | 1.00 |  | 100 %, 100 %, 100 % | 1.00 | 3 | 1.2 million |  |"


def test_jobs_are_those_without_a_line_of_any_commit(
    long: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(long, "RESULTS", tmp_path)
    key = {"task": BREAKOUT, "arm": "random", "members": 16, "cpu_budget": 400.0, "seed": 0, "commit": "x"}
    long.path_of(BREAKOUT).write_text(json.dumps({"key": key}) + "\n", encoding="utf-8")

    def asked(missing: bool) -> list[tuple[int, str]]:
        jobs = long.jobs_of(BREAKOUT, ["random", "rule-default"], [0, 1], 16, None, missing)
        return [(job["key"]["seed"], job["key"]["arm"]) for job in jobs]

    every = [(0, "random"), (0, "rule-default"), (1, "random"), (1, "rule-default")]
    assert (asked(False), asked(True)) == (every, every[1:])
    game = "pettingzoo.classic.connect_four_v3:IPPO"
    jobs = long.jobs_of(game, ["rule", "random", "rule-race", "command"], [0], 4, None, False)
    assert [job["key"]["arm"] for job in jobs] == ["random", "race", "command"], "rules are of PPO"
    assert (long.baseline_of("command", game), long.baseline_of("command", BREAKOUT)) == ("random", "rule")


def winner_of_two_changes(long: Any) -> dict[str, Any]:
    """A line of an arm whose winner's line has two changes of the learning rate, after 10 and 20 generations of 4,096
    steps: by a birth of several values, and by one of a tournament."""
    births = [
        Birth(0, None, 0, "founder"),
        Birth(1, None, 0, "founder"),
        Birth(2, 1, 10, "rl_hp", "lr", {"lr": 1e-3}, {"lr": 8e-4}),
        Birth(3, 0, 10, "rl_hp", "lr", {"lr": 5e-3}, {"lr": 4e-3}),
        Birth(4, 2, 20, "rl_hp", "lr", 8e-4, 6.4e-4),
    ]
    winner = SimpleNamespace(index=4, hyperparameters=lambda: {"lr": 6.4e-4, "gamma": 0.98, "action_space": "Box"})
    key = {"task": BREAKOUT, "arm": "pbt-10", "members": 16, "cpu_budget": 400.0, "seed": 3, "commit": "x"}
    return {
        "key": key,
        "generations": 30,
        "final": 12.0,
        "winner": long.winners_line(births, winner, [4096 * i for i in range(1, 31)]),
    }


def test_a_replay_has_the_winners_changes_at_their_steps_or_its_final_values(long: Any) -> None:
    import long_replays

    line = winner_of_two_changes(long)
    assert line["winner"]["founder"] == 1
    constants, schedule = (long_replays.job_of(line, way)["config"] for way in long_replays.ways_of(line))
    assert (constants["algorithm"]["lr"], schedule["algorithm"]["lr"]) == (6.4e-4, 1e-3)
    of_restart = {**line, "key": {**line["key"], "arm": "command"}, "winner": {**line["winner"], "changes": []}}
    of_restart["winner"]["hyperparameters"] = {"gamma": 0.999, "noise_persistence": 0.8}
    alone = long_replays.job_of(of_restart, "constants")["config"]["algorithm"]
    assert (alone["gamma"], alone["noise_persistence"]) == (0.999, 0.8), "founders of a restart differ in more"
    assert constants["algorithm"]["gamma"] == schedule["algorithm"]["gamma"] == 0.98
    assert (constants["training"]["pop_size"], constants["training"]["max_steps"]) == (1, 30 * 4096)
    changes = [(change["env_steps"], change["after"]) for change in schedule["evolution"]["schedule"]]
    assert changes == [(10 * 4096, {"lr": 8e-4}), (20 * 4096, {"lr": 6.4e-4})]
    assert constants["evolution"].get("schedule") is None
    unchanged = {**line, "winner": {**line["winner"], "changes": []}}
    assert long_replays.ways_of(unchanged) == ("constants",)


def test_what_a_replay_keeps_is_its_part_of_the_gain_over_random_search(
    long: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Scores of random search, winner and replay 5, 13 and 11: three quarters of the gain."""
    import long_replays

    monkeypatch.setattr(long, "RESULTS", tmp_path)
    monkeypatch.setattr(long_replays, "PATH", tmp_path / "replays.jsonl")
    line = winner_of_two_changes(long)
    lines = [line, {**line, "key": {**line["key"], "arm": "random"}, "final": 5.0}]
    lines[0] = {**line, "final": 13.0}
    long.path_of(BREAKOUT).write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    replay = {"key": {**line["key"], "way": "constants", "seed": 503}, "final": 11.0}
    long_replays.PATH.write_text(json.dumps(replay) + "\n", encoding="utf-8")
    (row,) = long_replays.summary()
    assert (row["replays"], row["winners"], row["random"], row["seeds"]) == ([11.0], [13.0], [5.0], [3])
    assert row["kept"] == 0.75


def test_a_replay_of_four_members_is_compared_with_random_search_of_sixteen(
    long: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import long_page
    import long_replays

    monkeypatch.setattr(long, "RESULTS", tmp_path)
    monkeypatch.setattr(long_replays, "PATH", tmp_path / "replays.jsonl")
    key = {"task": BREAKOUT, "cpu_budget": 400.0, "seed": 3}
    lines = [
        {"key": {**key, "arm": "rule", "members": 16}, "final": 5.0},
        {"key": {**key, "arm": "command", "members": 4}, "final": 13.0},
    ]
    long.path_of(BREAKOUT).write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    replay = {"key": {**key, "arm": "command", "members": 4, "way": "constants", "seed": 503}, "final": 9.0}
    long_replays.PATH.write_text(json.dumps(replay) + "\n", encoding="utf-8")
    assert long_page.replay_rows()[2:] == [f"| {BREAKOUT} | command | constants | 9 | 13 | 5 | 50 % |"]


def test_the_bar_compares_pairs_of_arms_on_seeds_of_claims(
    long: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command is above random search in all four pairs; above its founders in one, with a tie."""
    import long_page

    monkeypatch.setattr(long, "RESULTS", tmp_path)
    rest = {"curve": [{"score": 5.0}], "cpu_seconds": 1.0, "env_steps": 1, "training_env_steps": 1, "generations": 1}
    scores = {"rule": (16, (3.0, 4.0)), "command": (4, (5.0, 9.0)), "command-fixed": (4, (5.0, 9.5))}
    lines = [
        {"key": {"task": BREAKOUT, "arm": arm, "members": members, "cpu_budget": 400.0, "seed": seed},
         "final": score, **rest}
        for arm, (members, of_seeds) in scores.items() for seed, score in enumerate(of_seeds)
    ]  # fmt: skip
    assert long_page.bar_rows() == [], "there is no line yet"
    long.path_of(BREAKOUT).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    head, _, *table = long_page.bar_rows()
    assert head == f"| arm | over | {BREAKOUT} | all |"
    assert table[0] == "| command | rule | 1.00 (1.00 to 1.00); 2 seeds | 1.00 (1.00 to 1.00); 2 seeds |"
    assert table[1].startswith("| command | command-fixed | 0.38 (")
    assert table[2].startswith("| command-fixed | rule | 1.00 (")
    assert len(table) == 3


def test_the_verdict_has_a_row_for_each_arm_and_a_column_for_each_task(
    long: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two seeds of claims: race above random search in three of four pairs; a development seed in italics."""
    import long_page

    monkeypatch.setattr(long, "RESULTS", tmp_path)
    rest = {"curve": [{"score": 5.0}], "cpu_seconds": 1.0, "env_steps": 1, "training_env_steps": 1, "generations": 1}
    runs = [("random", 0, 5.0), ("random", 1, 10.0), ("race", 0, 7.0), ("race", 1, 15.0), ("pbt-10", 1000, 0.5)]
    lines = [
        {
            "key": {"task": BREAKOUT, "arm": arm, "members": 16, "cpu_budget": 400.0, "seed": seed},
            "final": score,
            **rest,
        }
        for arm, seed, score in runs
    ]
    long.path_of(BREAKOUT).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    head, _, *table = long_page.verdict_rows()
    assert head == f"| arm | {BREAKOUT} |"
    assert [row.split(" | ")[0] for row in table] == ["| random", "| race", "| pbt-10"]
    assert table[0] == "| random | 0.36; 2 seeds |"  # shares of 0.231 and 0.487
    assert table[1].startswith("| race | 0.54, 0.75 (0.00 to 1.00); 2 seeds |")
    assert table[2] == "| pbt-10 | *0.00; 1 seed* |"
