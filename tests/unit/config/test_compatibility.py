"""The table of settings that need or exclude one another, row by row, and its reader."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from agilerl.config import manifest_from
from agilerl.config.compatibility import RULES
from agilerl.config.overrides import apply_overrides
from agilerl.config.schema import as_set, usual_settings
from agilerl.core.compatibility import OF_DATA, OF_RUNS, RUN_DEFAULTS, Rule, at_least, conflicts, enforce, only
from agilerl.core.options import LoopOptions, OfflineOptions
from agilerl.errors import ConfigError

USUAL = {"speed": 1, "wheels": 2, "engine": False}
CANDIDATES: tuple[Any, ...] = (
    None, False, 0, 1, True, 2, 3, 0.5, "async", "spread", "tournament", "race", "pbt", "halving", "mf_pbt", "training",
    "shard", "self", "fqe", (2, 4), {"lr": 1}, "rl_hp_selection",
)  # fmt: skip
FACTS = {
    "algorithm": "DQN", "says": "learns", "has_training_episodes": True, "reads_state": True, "changes_gamma": "",
    "some_range": "lr={min: 1, max: 2}", "algorithm.batch_size": 0,
}  # fmt: skip


def broken(rule: Rule, facts: dict[str, Any], usual: dict[str, Any]) -> list[str]:
    return [problem for _, problem in conflicts([rule], facts, usual, as_set)]


def test_a_row_says_what_needs_what_and_how_to_mend_it() -> None:
    rule = Rule(("speed",), {"wheels": at_least(4), "engine": only(True)})
    assert broken(rule, USUAL, USUAL) == [], "a default needs nothing"
    assert broken(rule, {**USUAL, "speed": 9}, USUAL) == [
        "speed=9 acts only with wheels=4 or more and engine=true; got wheels=2, engine=false. "
        "fix: wheels=4, engine=true, or leave speed out."
    ]
    assert broken(rule, {"speed": 9, "wheels": 6, "engine": False}, USUAL) == [
        "speed=9 acts only with engine=true; got engine=false. fix: engine=true, or leave speed out."
    ]
    assert broken(rule, {"speed": 9, "wheels": 6}, USUAL) == [], "not judged before all of its facts are known"


def test_a_row_can_say_why_with_facts_of_the_run_and_name_its_fix() -> None:
    rule = Rule(("speed", "engine"), {"road": only("dry")}, "slides on a {road} road", "wait", when=bool)
    assert broken(rule, {"speed": 0, "engine": True, "road": "wet"}, USUAL) == [
        "engine=true slides on a wet road. fix: wait, or leave engine out."
    ]
    assert broken(rule, {"speed": 0, "engine": True, "road": "dry"}, USUAL) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.settings[0]} needs {next(iter(rule.needs))}")
def test_each_row_of_a_manifest_is_broken_by_some_value_and_mended_by_its_fix(rule: Rule) -> None:
    usual = usual_settings()
    assert all(key in usual or key in FACTS for key in rule.settings)
    assert all(key in usual or key in FACTS for key in rule.needs)
    setting = rule.settings[0]
    value = next(value for value in CANDIDATES if rule.applies(setting, value, usual))
    needs = {key: values.beside({setting: value}) for key, values in rule.needs.items()}
    wrong = {key: next(x for x in CANDIDATES if x is not None and not v.accepts(x)) for key, v in needs.items()}
    (message,) = broken(rule, {**FACTS, **usual, setting: value, **wrong}, usual)
    assert message.startswith(setting)
    assert f"or leave {setting} out." in message or setting not in usual
    assert "{" not in message.replace("{min", "").replace("{lr", ""), "each fact that it names is filled in"
    right = {key: values.example if values.example is not None else {"lr": 1} for key, values in needs.items()}
    right = {key: value if needs[key].accepts(value) else None for key, value in right.items()}
    assert broken(rule, {**FACTS, **usual, setting: value, **right}, usual) == []


def test_rows_with_the_same_settings_and_needs_do_not_stand_twice() -> None:
    for one, other in itertools.combinations(RULES, 2):
        assert (one.settings, [*one.needs], one.when) != (other.settings, [*other.needs], other.when)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_step": 3, "mutation.rl_hp_selection.gamma": {"min": 0.9, "max": 0.99}}, "take gamma out of mutation.rl_h"),
        ({"with_state": True}, "environment.with_state=true shows env.state"),
    ],
)
def test_what_the_algorithm_decides_is_named_before_a_run_begins(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apply_overrides(manifest_from({"algorithm": {"name": "DQN"}}), settings)


@pytest.mark.parametrize("rule", OF_DATA, ids=lambda rule: rule.settings[0])
def test_options_of_data_are_judged_by_their_rows(rule: Rule) -> None:
    changed = {"normalize_rewards": True, "carry_envs": True, "held_out": 0.3}
    name = rule.settings[0]
    with pytest.raises(ConfigError, match=rf"^{name}=.* fix: .*leave {name} out\.$"):
        OfflineOptions(**{name: changed[name]})
    LoopOptions(**{name: changed[name]})


RUN: dict[str, Any] = {
    "algo": "DQN", "environment.asynchronous": False, "backend": "", "carries": True, "carry_envs": False,
    "is_recurrent": False, "learns_alone": "", "one_at_a_time": "", "other_memory": "", "plays_itself": False,
    "pop_size": 4, "ranks": 1, "shards": 1, "waits_for_lanes": "", "writes_alone": "",
}  # fmt: skip


@pytest.mark.parametrize("rule", OF_RUNS, ids=lambda rule: f"{rule.settings[0]} needs {', '.join(rule.needs)}")
def test_each_row_of_a_run_raises_its_error_with_a_fix(rule: Rule) -> None:
    usual = RUN_DEFAULTS
    enforce(OF_RUNS, RUN, usual)
    setting = rule.settings[0]
    bad = {"backend": "envpool", "carry_envs": True, "environment.asynchronous": True, "shards": 2, "ranks": 2}
    wrong = {key: "it does" if values.example == "" else not values.example for key, values in rule.needs.items()}
    wrong |= {key: 2 for key in ("ranks", "shards") if key in wrong} | ({"pop_size": 1} if "pop_size" in wrong else {})
    enforce([rule], {**RUN, setting: bad[setting]}, usual)
    with pytest.raises(rule.error, match=rf"^{setting}=.* fix: ") as caught:
        enforce([rule], {**RUN, setting: bad[setting], **wrong}, usual)
    assert "{" not in str(caught.value)
