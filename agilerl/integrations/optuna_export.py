"""Runs as studies of Optuna: each member is a trial, each of its generations an intermediate value.

    from agilerl.integrations.optuna_export import export_runs

    export_runs(["runs/CartPole-v1/dqn-0001"], "study.db")

The studies are records for its plots and dashboard; evolution does not read them. Optuna is imported on the first call.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from agilerl.core.hostile import malformed
from agilerl.core.redaction import redact, without_secrets
from agilerl.errors import ConfigError, RunError
from agilerl.hpo.scales import DECAYS, has_scale
from agilerl.runs.names import is_group
from agilerl.runs.records import Member, RunRecords
from agilerl.runs.seed_group import with_groups
from agilerl.telemetry.files import jsonable

COMPLETE, PRUNED, FAIL, RUNNING = STATES = ("COMPLETE", "PRUNED", "FAIL", "RUNNING")
RANGES = ("mutation.rl_hp_selection", "evolution.restart_ranges")


@dataclass(frozen=True)
class Range:
    """Values of a hyperparameter in a run: those of its mutation, widened to the ones that members had.

    Attributes:
        low, high: inclusive. is_integer: whether all values are whole. is_log: whether the range is geometric.
    """

    low: float
    high: float
    is_integer: bool
    is_log: bool


@dataclass(frozen=True)
class MemberTrial:
    """One member as a trial.

    Attributes:
        state: COMPLETE (the winner, and the last generation of a finished run), PRUNED (ended by selection, or never
            evaluated), FAIL (diverged) or RUNNING (the last generation of an unfinished run).
        value: last fitness; None for FAIL, RUNNING, and members that were never evaluated.
        params: of the hyperparameters with a range, in the last generation.
        intermediate: env steps of the member -> fitness. begun, ended: seconds of the run.
        attributes: id, parent, mutation, network, generations, hyperparameters without a range.
    """

    state: str
    value: float | None
    params: Mapping[str, float | int]
    intermediate: Mapping[int, float]
    begun: float
    ended: float
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExportedStudy:
    """One run as a study: `name`, the ranges of its params, its trials in the order of member ids, its attributes."""

    name: str
    ranges: Mapping[str, Range]
    trials: tuple[MemberTrial, ...]
    attributes: Mapping[str, Any]
    begun: datetime


def states_of(study: ExportedStudy) -> str:
    """Number of trials in each state, such as "3 complete, 10 pruned"."""
    return ", ".join(f"{number} {state}" for state, number in count_states(study).items())


def count_states(study: ExportedStudy) -> dict[str, int]:
    """Number of trials in each state that occurs, such as {"complete": 3, "pruned": 10}."""
    counts = Counter(trial.state for trial in study.trials)
    return {state.lower(): counts[state] for state in STATES if counts[state]}


def export_runs(
    paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str], replace: bool = False
) -> list[ExportedStudy]:
    """Write runs as studies, one each, named by the last folders of their paths; a group of seeds is its runs.

    Args:
        paths: of the runs, which may still train. out: an SQLite file, or the URL of a database.
        replace: replace studies of the same names; otherwise they are an error.

    Raises:
        ConfigError: Optuna is not installed, the storage cannot be opened, or it has such a study already.
        RunError: no run at a path, or damaged files.
    """
    optuna = _optuna()
    studies = [study_of(RunRecords.read(path)) for path in with_groups(list(paths))]
    twice = [name for name, count in Counter(study.name for study in studies).items() if count > 1]
    if twice:
        raise ConfigError(f"two of the runs would be the study {twice[0]}. fix: export them to different files.")
    with _quiet(optuna), _storage(optuna, out) as storage:
        before = {summary.study_name for summary in optuna.get_all_study_summaries(storage, include_best_trial=False)}
        there = [study.name for study in studies if study.name in before]
        if there and not replace:
            raise ConfigError(f"{shown(out)} has the study {there[0]} already. fix: replace=True, or out=FILE.")
        trials = [[_frozen(optuna, study, trial) for trial in study.trials] for study in studies]
        for study, each in zip(studies, trials, strict=True):  # nothing is deleted before all can be written
            if study.name in before:
                optuna.delete_study(study_name=study.name, storage=storage)
            _write(optuna, storage, study, each)
    return studies


def study_of(run: RunRecords) -> ExportedStudy:
    """The study of a run.

    Raises:
        RunError: malformed files, or no generation yet.
    """
    with malformed(run.path):
        if not run.generations:
            raise RunError(f"{run.path} has no generation yet. fix: export it later.")
        ranges, ids, states = ranges_of(run), sorted(run.rows), _states(run)
        trials = tuple(_trial(run, run.rows[id], states[id], ranges, ids) for id in ids)
        return ExportedStudy(study_name(run.path), ranges, trials, _study_attributes(run, ids), _begun(run))


def study_name(path: Path) -> str:
    """`<env>/<algo>-<nnnn>`: the last two folders of a run's path; three for one of a group of seeds.

    Bytes that are not UTF-8, which a database does not take, are "\\udce9".
    """
    whole = Path(os.path.abspath(path))
    name = "/".join(whole.parts[1:][-3 if is_group(whole.parent) else -2 :])
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def ranges_of(run: RunRecords) -> dict[str, Range]:
    """The range of each hyperparameter that evolution may change.

    Founders may start outside of the range of mutation, and a schedule may leave it: the range covers their values.
    It is geometric where founders are spread over its logarithm, but for those with the scale of 1 - x (`DECAYS`).
    """
    limits: dict[str, Any] = {}
    for section in RANGES:
        limits |= dict(run.setting(section) or {})
    ranges = {}
    for name, each in sorted(limits.items()):
        values = [of[-1].hyperparameters[name] for of in run.rows.values() if name in of[-1].hyperparameters]
        values = [value for value in values if math.isfinite(value)]
        if not values:
            continue
        low, high = min([float(each["min"]), *values]), max([float(each["max"]), *values])
        configured = run.setting(f"algorithm.{name}")
        is_integer = isinstance(configured, int) and all(float(value).is_integer() for value in (low, high, *values))
        ranges[name] = Range(low, high, is_integer, name not in DECAYS and has_scale(name, low, high))
    return ranges


def _states(run: RunRecords) -> dict[int, str]:
    """The state of each member's trial."""
    healed = (re.fullmatch(r"member (\d+)", birth.path) for birth in run.births if birth.kind == "healed")
    diverged = {int(match[1]) for match in healed if match is not None}
    last, is_done = {member.id for member in run.last}, run.status == "done"
    states = {}
    for id, of in run.rows.items():
        is_scored = any(math.isfinite(member.fitness) for member in of)
        if id in diverged:
            states[id] = FAIL
        elif id in last and not is_done:
            states[id] = RUNNING
        elif is_scored and (id in last or (is_done and run.winner is not None and id == run.winner.id)):
            states[id] = COMPLETE
        else:
            states[id] = PRUNED
    return states


def _trial(
    run: RunRecords,
    rows: Sequence[Member],
    state: str,
    ranges: Mapping[str, Range],
    ids: Sequence[int],
) -> MemberTrial:
    last, parent = rows[-1], run.source(rows[-1].id)
    scored = {member.env_steps: member.fitness for member in rows if math.isfinite(member.fitness)}
    value = next((m.fitness for m in reversed(rows) if math.isfinite(m.fitness)), None)
    params = {name: last.hyperparameters[name] for name in ranges if name in last.hyperparameters}
    attributes = {
        "member": last.id, "parent": parent, "mutation": last.mutation, "network": last.network, "slot": last.slot,
        "first_generation": rows[0].generation, "last_generation": last.generation, "env_steps": last.env_steps,
        "is_winner": run.winner is not None and run.winner.id == last.id,
        **{f"hp.{name}": number for name, number in last.hyperparameters.items() if name not in params},
    }  # fmt: skip
    if parent in ids:
        attributes["parent_trial"] = ids.index(parent)
    birth = run.births_by_id.get(last.id)
    if birth is not None and birth.path:
        attributes |= {"changed": birth.path, "before": birth.before, "after": birth.after}
    return MemberTrial(
        state=state,
        value=None if state in (FAIL, RUNNING) else value,
        params={name: int(value) if ranges[name].is_integer else value for name, value in params.items()},
        intermediate=scored,
        begun=run.ends.get(rows[0].generation - 1, (0, 0.0))[1],
        ended=run.ends.get(last.generation, (0, 0.0))[1],
        attributes=attributes,
    )


def _study_attributes(run: RunRecords, ids: Sequence[int]) -> dict[str, Any]:
    facts = {"algo": run.algo, "env_id": run.env_id, "seed": run.facts.get("seed"), "status": run.status}
    facts |= {"manifest_hash": run.facts.get("manifest_hash")}
    if run.winner is not None:
        facts["winner_trial"] = ids.index(run.winner.id)
    if run.test is not None:
        facts |= {"test_mean": run.test["mean"], "test_ci95": run.test["ci95"]}
    if run.random_play is not None and run.random_play.score is not None:
        facts["random_play_mean"] = run.random_play.score.mean
    return facts


def _begun(run: RunRecords) -> datetime:
    """When the run was started, in local time without a zone, as Optuna has it; 1970 for runs that do not say so."""
    started = run.facts.get("started")
    if not isinstance(started, str):
        return datetime.fromtimestamp(0)
    return datetime.fromisoformat(started).astimezone().replace(tzinfo=None)


def _optuna() -> Any:
    try:
        return import_module("optuna")
    except ImportError as error:
        raise ConfigError(f'Optuna cannot be imported ({error}). fix: pip install "agilerl[optuna]"') from None


@contextlib.contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Silence Optuna's own lines about every study."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)


def storage_url(out: str | os.PathLike[str]) -> str:
    """The URL of a database: as it is, or of an SQLite file."""
    text = os.fspath(out)
    return text if "://" in text else f"sqlite:///{os.path.abspath(text)}"


def shown(out: str | os.PathLike[str]) -> str:
    """`out` without a password, for messages; a password may hold "@" and "/"."""
    return redact(re.sub(r"(://[^:/@\s]*):\S*@", r"\1:***@", os.fspath(out)))


@contextlib.contextmanager
def _storage(optuna: Any, out: str | os.PathLike[str]) -> Iterator[Any]:
    """Open the storage; a ConfigError in place of the database's errors."""
    url = storage_url(out)
    errors = import_module("sqlalchemy.exc")
    try:
        if "://" not in os.fspath(out):
            Path(out).parent.mkdir(parents=True, exist_ok=True)
        storage = optuna.storages.RDBStorage(url)
        try:
            yield storage
        finally:
            storage.engine.dispose()
    except (errors.SQLAlchemyError, optuna.exceptions.StorageInternalError, ImportError, RuntimeError) as error:
        # Hide the password before the text is cut: half of a URL is not recognised.
        reason = shown(" ".join(str(error).split()).replace(url, shown(out)))[:200]
        raise ConfigError(
            f"the storage {shown(out)} cannot be used ({type(error).__name__}: {reason}). "
            "fix: another file with out=FILE, or the URL of a database that Optuna has made."
        ) from None


def _write(optuna: Any, storage: Any, study: ExportedStudy, trials: Sequence[Any]) -> None:
    """Write a study; none is left if that fails."""
    written = optuna.create_study(study_name=study.name, storage=storage, direction="maximize")
    try:
        for name, value in without_secrets(jsonable(study.attributes)).items():
            written.set_user_attr(name, value)
        written.add_trials(trials)
    except BaseException:
        optuna.delete_study(study_name=study.name, storage=storage)
        raise


def _frozen(optuna: Any, study: ExportedStudy, trial: MemberTrial) -> Any:
    kinds = optuna.distributions
    distributions: dict[str, Any] = {}
    for name in trial.params:
        each = study.ranges[name]
        if each.is_integer:
            is_log = each.is_log and each.low >= 1
            distributions[name] = kinds.IntDistribution(int(each.low), int(each.high), log=is_log)
        else:
            distributions[name] = kinds.FloatDistribution(each.low, each.high, log=each.is_log)
    frozen = optuna.trial.create_trial(
        state=optuna.trial.TrialState[trial.state],
        value=trial.value,
        params=dict(trial.params),
        distributions=distributions,
        user_attrs=without_secrets(jsonable(trial.attributes)),
        intermediate_values=dict(trial.intermediate),
    )
    frozen.datetime_start = study.begun + timedelta(seconds=trial.begun)
    if trial.state != RUNNING:
        frozen.datetime_complete = study.begun + timedelta(seconds=trial.ended)
    return frozen
