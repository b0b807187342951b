"""Settings that a run was resumed with, by the generation after which they changed, in run.json."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from agilerl.errors import ConfigError, RunError
from agilerl.runs.directory import RunDirectory


def changes_in(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the changes of a run.json, each with `generation` and `settings`; without damaged ones."""
    recorded = facts.get("changed")
    return [
        change for change in (recorded if isinstance(recorded, list) else ())
        if isinstance(change, dict) and isinstance(change.get("generation"), int)
        and isinstance(change.get("settings"), dict)
    ]  # fmt: skip


def pending_settings(directory: RunDirectory, generation: int) -> dict[str, Any]:
    """Return the settings of an earlier resume that was stopped before it saved a generation; none after an error."""
    with contextlib.suppress(RunError):
        facts = directory.facts()
        if facts.get("status") != "failed":
            later = [change for change in changes_in(facts) if change["generation"] >= generation]
            return {key: value for change in later for key, value in change["settings"].items()}
    return {}


def has_ended_early(directory: RunDirectory) -> bool:
    """Whether time was up in the run, whose last generation was then a shorter one."""
    with contextlib.suppress(ConfigError, RunError, OSError, ValueError):
        return directory.manifest().training.stop_after is not None
    return False


def record_changes(directory: RunDirectory, settings: Mapping[str, Any], generation: int) -> None:
    """Record the settings that change after a generation, which a replay refuses and `pending_settings` keeps."""
    earlier = changes_in(directory.facts())
    lasting = [change for change in earlier if change["generation"] < generation]
    if settings and generation:
        lasting.append({"generation": generation, "settings": dict(settings)})
    if lasting != earlier:
        directory.update(changed=lasting)
