"""Settings that need or exclude one another: rows of a table, and their one reader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Values:
    """Values that a setting may have beside another one.

    Attributes:
        accepts: whether a value is one of them. example: one of them, for the fix. others: a text that continues it.
    """

    accepts: Callable[[Any], bool]
    example: Any
    others: str = ""


def only(value: Any) -> Values:
    """Accept one value."""
    return Values(lambda x: bool(x == value), value)


def at_least(low: int) -> Values:
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
    """

    settings: tuple[str, ...]
    needs: Mapping[str, Values]
    because: str | None = None
    fix: str | None = None
    when: Callable[[Any], bool] | None = None

    def applies(self, key: str, value: Any, usual: Mapping[str, Any]) -> bool:
        """Whether a setting's value is one that the row is about."""
        return bool(value != usual[key]) if self.when is None else self.when(value)


def conflicts(
    rules: Iterable[Rule], facts: Mapping[str, Any], usual: Mapping[str, Any], spelled: Callable[[str, Any], str]
) -> Iterator[str]:
    """Yield a message for each row that is broken. A row with an unknown fact is not judged.

    Args:
        facts: settings by key, and other facts of the run by name. usual: defaults of the settings.
        spelled: returns `key=value` as a user types it.
    """
    for rule in rules:
        if not {*rule.settings, *rule.needs} <= facts.keys():
            continue
        names = [key for key in rule.settings if rule.applies(key, facts[key], usual)]
        broken = [key for key, values in rule.needs.items() if not values.accepts(facts[key])]
        if not names or not broken:
            continue
        wanted = {key: spelled(key, rule.needs[key].example) for key in broken if key in usual}
        because = rule.because and rule.because.format_map(facts)
        if because is None:
            needs = " and ".join(f"{text}{rule.needs[key].others}" for key, text in wanted.items())
            because = f"act{'s' if len(names) == 1 else ''} only with {needs}"
        got = ", ".join(spelled(key, facts[key]) for key in wanted) if rule.fix is None else ""
        fixes = [", ".join(wanted.values()) if rule.fix is None else rule.fix.format_map(facts)]
        fixes.append(f"leave {', '.join(spelled(key, None).partition('=')[0] for key in names)} out")
        settings = ", ".join(spelled(key, facts[key]) for key in names)
        yield f"{settings} {because}{got and f'; got {got}'}. fix: {', or '.join(filter(None, fixes))}."
