"""Settings that need or exclude one another: rows of a table, and their one reader.

The rows here are those of options (`core.options`) and of runs, whose facts are known once agents and lanes are there
(`sources.lanes.LaneCollector.facts_of_run`); those of manifests are in `config.compatibility`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agilerl.errors import AgileRLError, ConfigError, NotAvailableYetError


@dataclass(frozen=True)
class Values:
    """Values that a setting may have beside another one.

    Attributes:
        accepts: whether a value is one of them. example: one of them, for the fix. others: a text that continues it.
        minimum: key of the fact that is their lower bound instead.
    """

    accepts: Callable[[Any], bool] = bool
    example: Any = None
    others: str = ""
    minimum: str = ""

    def beside(self, facts: Mapping[str, Any]) -> Values:
        """Return them for these facts."""
        return at_least(facts[self.minimum]) if self.minimum else self


def only(value: object) -> Values:
    """Accept one value."""
    return Values(lambda x: bool(x == value), value)


def at_least(low: float) -> Values:
    """Accept numbers from `low` on."""
    return Values(lambda x: bool(x >= low), low, " or more")


@dataclass(frozen=True)
class Rule:
    """A row: where one of the settings differs from its default, the needs must hold.

    Attributes:
        settings: their keys. needs: key of another setting, or name of another fact -> its values.
        when: values of the settings for which the row applies; None: all but the default.
        because: continues the sentence that the settings begin, with names of facts in braces; None: they act only
            with the needs. fix: before the advice to leave the settings out; None: needs that are settings.
        error: that a broken row raises in a run. yields: keys whose values of a preset give way.
    """

    settings: tuple[str, ...]
    needs: Mapping[str, Values]
    because: str | None = None
    fix: str | None = None
    when: Callable[[Any], bool] | None = None
    error: type[AgileRLError] = ConfigError
    yields: tuple[str, ...] = ()

    def applies(self, key: str, value: object, usual: Mapping[str, Any]) -> bool:
        """Whether a setting's value is one that the row is about."""
        return bool(value != usual[key]) if self.when is None else self.when(value)


def conflicts(
    rules: Iterable[Rule], facts: Mapping[str, Any], usual: Mapping[str, Any], spelled: Callable[[str, Any], str]
) -> Iterator[tuple[Rule, str]]:
    """Yield each row that is broken, with its message. A row with an unknown fact is not judged.

    Args:
        facts: settings by key, and other facts of the run by name. usual: defaults of the settings.
        spelled: returns `key=value` as a user types it.
    """
    for rule in rules:
        if not {*rule.settings, *rule.needs} <= facts.keys():
            continue
        names = [key for key in rule.settings if rule.applies(key, facts[key], usual)]
        needs = {key: values.beside(facts) for key, values in rule.needs.items()}
        broken = [key for key, values in needs.items() if not values.accepts(facts[key])]
        if not names or not broken:
            continue
        wanted = {key: spelled(key, needs[key].example) for key in broken if key in usual}
        because = rule.because and rule.because.format_map(facts)
        if because is None:
            texts = " and ".join(f"{text}{needs[key].others}" for key, text in wanted.items())
            because = f"act{'s' if len(names) == 1 else ''} only with {texts}"
        got = ", ".join(spelled(key, facts[key]) for key in wanted) if rule.fix is None else ""
        fixes = [", ".join(wanted.values()) if rule.fix is None else rule.fix.format_map(facts)]
        typed = [spelled(key, None).partition("=")[0] for key in names if key in usual]
        fixes += [f"leave {', '.join(typed)} out"] if typed else []
        settings = ", ".join(spelled(key, facts[key]) for key in names)
        yield rule, f"{settings} {because}{got and f'; got {got}'}. fix: {', or '.join(filter(None, fixes))}."


def enforce(rules: Iterable[Rule], facts: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    """Raise the error of the first row that is broken; keys without a section are spelled as keywords of Python."""

    def spelled(key: str, value: object) -> str:
        return f"{key}={json.dumps(value) if '.' in key else repr(value)}"

    for rule, problem in conflicts(rules, facts, usual, spelled):
        raise rule.error(problem)


OF_LOOPS = (
    Rule(
        ("normalize_rewards",), {"clip_rewards": only(False), "reward_scale": only(1.0)},
        "finds the scale of rewards by itself",
    ),
    Rule(
        ("eval_screen",), {"eval_screen": Values(lambda episodes: episodes != 1)},
        "is one episode per round, which has no standard error", "eval_screen=2",
    ),
)  # fmt: skip
OF_EXPLORATION = (Rule(("eps_end",), {"eps_start": Values(minimum="eps_end")}, "must be at most eps_start"),)
OF_DATA = (
    Rule(("normalize_rewards",), {"normalize_rewards": only(False)}, "follows rewards as they come", "reward_scale"),
    Rule(("carry_envs",), {"carry_envs": only(False)}, "is for training in environments", ""),
    Rule(("held_out", "fqe_gamma", "fqe_updates"), {"fitness": only("fqe")}),
)
"""Rows of training from data."""


def _several(name: str, needs: Mapping[str, Values], because: str, fix: str | None, error: Any = ConfigError) -> Rule:
    """A row of a number that is above 1."""
    return Rule((name,), needs, because, fix, when=lambda count: bool(count > 1), error=error)


def _waiting(needs: Mapping[str, Values], because: str) -> Rule:
    """A row of lanes that do not wait for each other."""
    text = f"(lanes that do not wait for each other) is not available for this run yet: {because}"
    fix = "environment.asynchronous=false"
    return Rule(("environment.asynchronous",), needs, text, fix, when=bool, error=NotAvailableYetError)


OF_RUNS = (
    _several("shards", {"pop_size": Values(minimum="shards")}, "needs a member for each shard", None),
    Rule(
        ("carry_envs",), {"shards": only(1)},
        "continues episodes in lanes that stay where they are, and a shard may run in another process each generation",
    ),
    Rule(
        ("carry_envs",), {"one_at_a_time": only("")},
        "needs lanes that no evaluation and no other member uses, and here one member trains at a time: "
        "{one_at_a_time}", "an environment of make_vect_envs with lockstep=True",
    ),
    Rule(
        ("carry_envs",), {"carries": only(True)},
        "is for algorithms of one agent: episodes of teams restart with each generation", "",
    ),
    Rule(
        ("backend",), {"plays_itself": only(False)},
        "steps the lanes of the training loops, and an agent of this run brings its own learn(), get_action() or "
        "test(), which step Gymnasium's environments", "backend='gymnasium' (environment.backend)",
        when=lambda backend: bool(backend == "envpool"),
    ),
    _several(
        "shards", {"other_memory": only("")}, "exchanges the rows of replay buffers, and not those of {other_memory}",
        "ReplayBuffer, or shards=1 (training.shards)",
    ),
    _several(
        "shards", {"writes_alone": only("")},
        "puts the rows of all shards into one replay buffer, and here {writes_alone}, so that it writes rows by itself",
        "shards=1 (training.shards)",
    ),
    _several(
        "shards", {"ranks": only(1)},
        "cuts a population for workers, and here {ranks} processes train all of it together",
        "shards=1, or one process with --workers",
    ),
    _several(
        "ranks", {"learns_alone": only("")},
        "train together where the engines run the updates, and here {learns_alone}, so that its gradients would never "
        "meet", "override update(engine, batch) in place of learn(), leave collect_rollouts_fn out, or start one "
        "process", NotAvailableYetError,
    ),
    _several(
        "ranks", {"plays_itself": only(False)},
        "share the episodes of an evaluation, and here an agent brings its own test(), which plays all of them",
        "leave test() and get_action() as they are, or start one process", NotAvailableYetError,
    ),
    _waiting({"waits_for_lanes": only("")}, "{algo}: {waits_for_lanes}"),
    _waiting({"is_recurrent": only(False)}, "hidden states of recurrent policies advance in all lanes at once"),
    _waiting({"one_at_a_time": only("")}, "one member trains at a time ({one_at_a_time})"),
    _waiting({"carry_envs": only(False)}, "training.carry_envs=true"),
    _waiting({"shards": only(1)}, "training.shards={shards}"),
    _waiting({"ranks": only(1)}, "{ranks} processes that train together"),
)  # fmt: skip
"""Rows of runs."""
RUN_DEFAULTS: Mapping[str, Any] = {"carry_envs": False, "shards": 1, "ranks": 1, "pop_size": 1}
