"""The schedule of a run's winner: its founder, each change with its step, and a file that one agent trains by."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agilerl.config import Manifest, apply_overrides, manifest_from
from agilerl.config.overrides import within_widths
from agilerl.config.schema import Evolution, Probabilities, Training
from agilerl.config.yaml_text import LARGEST_YAML, parse_yaml
from agilerl.core.files import write_atomic
from agilerl.core.hostile import read_text
from agilerl.core.texts import count
from agilerl.errors import ConfigError, RunError, unknown_choice
from agilerl.hpo.kinds import REPLAYED
from agilerl.runs.directory import RunDirectory
from agilerl.runs.names import CONFIG, run_command
from agilerl.runs.records import Member, RunRecords, lacks_birth
from agilerl.telemetry.record import Birth
from agilerl.views.report.text import compact

FORMAT = 1
KEYS = (
    "format", "source", "env_steps", "founder", "changes", "final", "adapted", "not_repeated", "manifest",
)  # fmt: skip
STEERED = "steered"  # births whose values a user has set
OF_POPULATIONS = (
    "pop_size", "eval_members", "ensemble", "evolve_from", "patience", "shards", "share", "elite_rescore_episodes",
)  # fmt: skip
"""Settings of the training section that one agent does without."""

HEAD = """\
# The schedule of the winner of an evolved run. One agent trains by it, with any seed:
#   agilerl train --schedule {name} --seed 1
# changes: what the winner's line became, after so many environment steps of one member. The agent trains by them and
# by `manifest`; source, env_steps, founder and final describe them, and nothing reads those.
# adapted: hyperparameters that the algorithm moves by itself, so that `final` has other values than a repetition.
# Not repeated: noise on weights (`parameters` in not_repeated), copies of members that had diverged, and the
# experience of the other members, which a population with a replay memory shares.
"""


@dataclass(frozen=True)
class State:
    """Hyperparameters by name, and the policy's network in short form."""

    hyperparameters: Mapping[str, float]
    network: str

    def as_dict(self) -> dict[str, Any]:
        return {"hyperparameters": dict(self.hyperparameters), "network": self.network}


@dataclass(frozen=True)
class WinnerSchedule:
    """What the winner's line was at each step.

    Attributes:
        env_steps: of one member, from its founder to the winner.
        founder, final: state of the founder, and of the winner.
        changes: each with `env_steps`, `kind`, `path`, `before` and `after`; see `hpo.schedule.Change`.
        adapted: hyperparameters that the algorithm itself moves while it trains; the schedule leaves them to it.
        not_repeated: births of other kinds on the line, in the same form.
        manifest: settings of one agent that begins as the founder, without changes.
        source: facts of the run: environment, algorithm, seed, the winner's id and generation.
    """

    env_steps: int
    founder: State
    final: State
    changes: tuple[Mapping[str, Any], ...]
    adapted: tuple[str, ...]
    not_repeated: tuple[Mapping[str, Any], ...]
    manifest: Manifest
    source: Mapping[str, Any]

    def lines(self) -> list[str]:
        """The schedule in words, one change a line."""
        source = self.source
        lines = [
            f"winner: member {source['member']} of generation {source['generation'] + 1}, {source['algo']} on "
            f"{source['env_id']}, seed {source['seed']}; {count(self.env_steps)} steps along its line",
            f"{'0':>8}  founder  {_in_short(self.founder)}",
        ]
        events = sorted([*self.changes, *self.not_repeated], key=lambda event: event["env_steps"])
        lines += [f"{count(event['env_steps']):>8}  {_words(event)}" for event in events]
        lines.append(f"{count(self.env_steps):>8}  winner  {_in_short(self.final)}")
        return lines + ([f"moved by {source['algo']} itself: {', '.join(self.adapted)}"] if self.adapted else [])

    def as_dict(self) -> dict[str, Any]:
        """Plain data, in the order of the file."""
        return {
            "format": FORMAT,
            "source": dict(self.source),
            "env_steps": self.env_steps,
            "founder": self.founder.as_dict(),
            "changes": [dict(change) for change in self.changes],
            "final": self.final.as_dict(),
            "adapted": list(self.adapted),
            "not_repeated": [dict(event) for event in self.not_repeated],
            "manifest": self.manifest.as_dict(),
        }

    def text(self, name: str) -> str:
        """The YAML of a file of this name."""
        body = yaml.safe_dump(self.as_dict(), sort_keys=False, default_flow_style=None, width=120)
        return f"{HEAD.format(name=name)}{body}"

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the schedule as YAML, atomically.

        Raises:
            RunError: the file cannot be written.
        """
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(target, self.text(target.name))
        except OSError as error:
            raise RunError(f"no schedule can be written to {target} ({error.strerror}). fix: --out FILE.") from error
        return target

    def scheduled(self) -> Manifest:
        """Settings of one agent that trains by the schedule."""
        return with_changes(self.manifest, self.changes)


def with_changes(manifest: Manifest, changes: Iterable[Mapping[str, Any]]) -> Manifest:
    """Return the manifest with a schedule of these changes."""
    content = manifest.as_dict()
    content["evolution"] = {**content["evolution"], "schedule": [dict(change) for change in changes]}
    return manifest_from(content, "schedule")


def schedule_manifest(path: str | os.PathLike[str], steps: int | None = None) -> Manifest:
    """Read the settings of one agent from a file of `WinnerSchedule.write`.

    Args:
        steps: a budget in place of the recorded one; the changes keep their steps.

    Raises:
        ConfigError: no such file, or no schedule.
    """
    source = Path(path)
    if not source.is_file():
        raise ConfigError(f"there is no schedule {source}. fix: `agilerl schedule RUN --out {source.name}` writes one.")
    try:
        text = read_text(source, 4 * LARGEST_YAML)
    except RunError as error:
        raise ConfigError(str(error)) from None
    content = parse_yaml(text, source.name)
    if not isinstance(content, Mapping) or not {"format", "changes", "manifest"} <= set(content):
        raise ConfigError(
            f"{source.name} is no schedule: expected format, changes and manifest. "
            "fix: a file of `agilerl schedule RUN --out FILE`; --config takes manifests."
        )
    if content["format"] != FORMAT:
        raise ConfigError(f"{source.name} has format {content['format']!r}; expected {FORMAT}. fix: write it again.")
    for key in content:
        if key not in KEYS:
            raise ConfigError(f"{source.name}: {unknown_choice('key of a schedule', str(key), KEYS)}")
    settings, changes = content["manifest"], content["changes"]
    if not isinstance(settings, Mapping) or not isinstance(changes, Sequence) or isinstance(changes, str):
        raise ConfigError(f"{source.name}: manifest must be sections and changes a list. fix: write the file anew.")
    evolution = settings.get("evolution") or {}
    merged = {**settings, "evolution": {**(evolution if isinstance(evolution, Mapping) else {}), "schedule": changes}}
    manifest = manifest_from(merged, source.name)
    return manifest if steps is None else with_budget(manifest, steps)


def with_budget(manifest: Manifest, steps: int) -> Manifest:
    """Return the manifest with a budget of `steps`; what follows fractions of the budget stays, unless it is longer."""
    longest = manifest.training.max_steps
    if steps < longest:
        return apply_overrides(manifest, {"training.stop_after": steps}, "schedule")
    return apply_overrides(manifest, {"training.max_steps": steps}, "schedule")


def schedule_of(path: str | os.PathLike[str]) -> WinnerSchedule:
    """Return the schedule of the winner of the run at `path`.

    Raises:
        RunError: no run there, no evaluated member yet, or a run that began with the agents of another one.
    """
    directory, run = RunDirectory.open(path), RunRecords.read(path)
    if run.winner is None:
        raise RunError(f"{path} has no winner yet: no generation was evaluated. fix: another run.")
    if run.facts.get("parent") is not None:
        raise RunError(
            f"{path} began with the trained agents of another run, and a schedule begins with an untrained one. "
            "fix: the schedule of that run."
        )
    manifest = directory.with_own_data(directory.manifest(), run.facts)
    if manifest.evolution.schedule is not None:
        raise RunError(
            f"{path} was trained by a schedule itself. fix: `agilerl train --config {Path(path) / CONFIG}` "
            "with another seed."
        )
    return _Walk(run, manifest).schedule()


class _Walk:
    """The winner's line, from its founder on."""

    def __init__(self, run: RunRecords, manifest: Manifest) -> None:
        assert run.winner is not None
        self.run, self.manifest, self.winner = run, manifest, run.winner
        self.line = run.winner_line
        self.rows = {(m.id, m.generation): m for generation in run.generations for m in generation}
        missing = [member for member in self.line if member not in run.births_by_id]
        if missing:
            raise lacks_birth(run.path, missing[0])
        births = [run.births_by_id[member] for member in self.line]
        while len(births) > 1 and births[1].generation == births[0].generation:  # a founder that was changed at once
            births.pop(0)
        self.births = births
        self.adapted = _adapted(run)

    def schedule(self) -> WinnerSchedule:
        founder_row, start = self._first_row(), self._start()
        settings = self.manifest.algorithm.hyperparameters
        begun = {name: settings[name] for name in self.adapted if name in settings}
        founder = State(self._typed({**founder_row.hyperparameters, **begun}), founder_row.network)
        values: dict[str, Any] = dict(founder.hyperparameters)
        changes: list[dict[str, Any]] = []
        others: list[dict[str, Any]] = []
        for birth, following in zip(self.births, [*self.births[1:], None], strict=True):
            if birth is not self.births[0]:
                event = {"env_steps": self._steps_before(birth) - start, **_event(birth)}
                if event["kind"] in REPLAYED:
                    changes.append(event)
                    values |= event["after"] if event["kind"] == "rl_hp" else {}
                elif birth.kind not in ("none", "elite", STEERED):  # several steered values are in metrics.csv alone
                    others.append(event)
            last = self.winner.generation if following is None else following.generation - 1
            changes += self._unborn(birth, last, values, start)
        final = State(self._typed(self.winner.hyperparameters), self.winner.network)
        steps = self.winner.env_steps - start
        facts = {"env_id": self.run.env_id, "algo": self.run.algo, "seed": self.manifest.training.seed}
        facts |= {"member": self.winner.id, "generation": self.winner.generation, "manifest": self.manifest.hash()}
        manifest = _of_one_agent(self._founders_manifest(founder), steps)
        return WinnerSchedule(steps, founder, final, tuple(changes), self.adapted, tuple(others), manifest, facts)

    def _first_row(self) -> Member:
        founder = self.births[0]
        row = self.rows.get((founder.id, founder.generation))
        if row is None:
            raise RunError(
                f"metrics.csv of {self.run.path} lacks the first generation of member {founder.id}, the winner's "
                f"founder. fix: `{run_command('resume', self.run.path)}`, which restores it where it can."
            )
        return row

    def _start(self) -> int:
        """Steps of a member before the founder: above 0 for a restart."""
        generation = self.births[0].generation
        return max((m.env_steps for m in self.rows.values() if m.generation < generation), default=0)

    def _steps_before(self, birth: Birth) -> int:
        """Steps of the parent when the member was born; of the nearest ancestor that had trained by then."""
        source = self.run.source(birth.id)
        rows = [m for m in self.rows.values() if m.id == source and m.generation < birth.generation]
        if not rows:
            raise RunError(
                f"metrics.csv of {self.run.path} lacks member {source}, a parent of the winner's line. "
                f"fix: `{run_command('resume', self.run.path)}`, which restores it where it can."
            )
        return max(rows, key=lambda row: row.generation).env_steps

    def _unborn(self, birth: Birth, last: int, values: dict[str, Any], start: int) -> list[dict[str, Any]]:
        """Changes of hyperparameters that no birth records, such as values set by hand, up to generation `last`."""
        changes = []
        steps = None
        for generation in range(birth.generation, last + 1):
            row = self.rows.get((birth.id, generation))
            if row is None:
                continue
            typed = self._typed(row.hyperparameters)
            left = {name: value for name, value in typed.items() if name in values and name not in self.adapted}
            moved = {name: value for name, value in left.items() if values[name] != value}
            if moved:
                at = (start if birth is self.births[0] else self._steps_before(birth)) if steps is None else steps
                before = {name: values[name] for name in moved}
                changes.append(_change(at - start, "rl_hp", ", ".join(moved), before, moved))
                values |= moved
            steps = row.env_steps
        return changes

    def _typed(self, values: Mapping[str, float]) -> dict[str, Any]:
        """Return values of metrics.csv, whole numbers as such where the settings have whole numbers."""
        settings = self.manifest.algorithm.hyperparameters
        return {name: _like(value, settings.get(name)) for name, value in values.items()}

    def _founders_manifest(self, founder: State) -> Manifest:
        """Return the manifest with the founder's hyperparameters and layers."""
        manifest, widths = self.manifest, self.manifest.evolution.widths
        first = next(b for b in self.run.births if b.kind == "founder" and b.generation == self.births[0].generation)
        if widths is not None and first.id != self.line[0]:  # all founders but the first
            manifest = within_widths(manifest, *widths)
        settings = manifest.algorithm.hyperparameters
        changed = {
            f"algorithm.{name}": value
            for name, value in founder.hyperparameters.items()
            if name in settings and settings[name] != value
        }
        return apply_overrides(manifest, changed, "the founder")


def _adapted(run: RunRecords) -> tuple[str, ...]:
    """Return the hyperparameters that the algorithm moves: they differ without a birth in over a fifth of cases."""
    moved: dict[str, list[bool]] = {}
    before: dict[int, Member] = {}
    for generation in run.generations:
        for member in generation:
            births, id = run.line_of_birth(member.id), run.source(member.id)
            source = before.get(member.id) or (None if id is None or not births else before.get(id))
            if source is None:
                continue
            changed = [birth.path for birth in births if birth.kind in ("rl_hp", STEERED)]
            mutated = ", ".join(changed).split(", ") if member.id not in before else []
            for name, value in member.hyperparameters.items():
                if name not in mutated and name in source.hyperparameters:
                    moved.setdefault(name, []).append(value != source.hyperparameters[name])
        before = {member.id: member for member in generation}
    return tuple(sorted(name for name, changes in moved.items() if 5 * sum(changes) > len(changes)))


def _of_one_agent(manifest: Manifest, steps: int) -> Manifest:
    """Return the settings of one agent without selection and mutation, with a budget of `steps`."""
    training = manifest.training.model_copy(
        update={**{name: Training.model_fields[name].default for name in OF_POPULATIONS}, "pop_size": 1}
    )
    longest = max(training.max_steps, steps)
    training = training.model_copy(update={"max_steps": longest, "stop_after": steps if steps < longest else None})
    mutation = manifest.mutation.model_copy(update={"probabilities": Probabilities()})
    changed = {"training": training, "mutation": mutation, "evolution": Evolution()}
    return manifest_from(manifest.model_copy(update=changed).as_dict(), "schedule")


def _event(birth: Birth) -> dict[str, Any]:
    """Return a birth's mutation, hyperparameters by name; a value that was set is one like another."""
    kind, before, after = birth.kind, birth.before, birth.after
    if kind == STEERED and birth.path and after is not None:
        kind = "rl_hp"
    if kind == "rl_hp" and not isinstance(after, Mapping):
        before, after = {birth.path: before}, {birth.path: after}
    return {
        key: value for key, value in _change(0, birth.kind, birth.path, before, after).items() if key != "env_steps"
    }


def _change(env_steps: int, kind: str, path: str, before: object, after: object) -> dict[str, Any]:
    return {"env_steps": env_steps, "kind": kind, "path": path, "before": before, "after": after}


def _like(value: float, setting: object) -> Any:
    is_whole = isinstance(setting, int) and not isinstance(setting, bool)
    return int(value) if is_whole and math.isfinite(value) and value == int(value) else value


def _in_short(state: State) -> str:
    return "  ".join([*(f"{name} {compact(value)}" for name, value in state.hyperparameters.items()), state.network])


def _words(event: Mapping[str, Any]) -> str:
    """One change: "lr 1e-3 → 8e-4", "encoder.add_node [64] 64 [64] → [96] 64 [64]"."""
    before, after, kind = event["before"], event["after"], event["kind"]
    if kind == "rl_hp":
        return ", ".join(f"{name} {compact(before[name])} → {compact(value)}" for name, value in after.items())
    if kind in REPLAYED:
        return f"{event['path']}  {compact(before)} → {compact(after)}"
    return f"{kind} {event['path']}".strip() + "  (not repeated)"
