"""Requests to a running run: files in its directory, taken over between two generations."""

from __future__ import annotations

import getpass
import itertools
import json
import math
import os
import re
import time
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from agilerl.algorithms import find_algorithm
from agilerl.algorithms.base.declared import check_value
from agilerl.config import Manifest
from agilerl.core.files import write_atomic
from agilerl.core.hostile import MIB, read_json, read_text
from agilerl.errors import AgileRLError, AgileRLWarning, ConfigError, RunError, unknown_choice
from agilerl.runs.directory import RunDirectory
from agilerl.runs.names import LINEAGE, REQUESTS, run_command
from agilerl.runs.records import RunRecords
from agilerl.telemetry.files import lineage_line
from agilerl.telemetry.record import Steering

LOG = "taken.jsonl"
LOG_LIMIT = 64 * MIB
ACTIONS = {
    "set": "give a hyperparameter a value",
    "pin": "give a hyperparameter a value that mutation leaves alone, in descendants too",
    "unpin": "let mutation change a pinned hyperparameter again",
    "clone": "copy the member over the worst one",
    "remove": "end the member",
    "protect": "keep the member through selection",
    "unprotect": "let selection end a protected member again",
    "evaluate": "play held-out episodes with the member now",
    "stop": "end the run after this generation",
}
# Other words for an action: a run that stops saves its state first, so that it is also a pause.
OTHER_WORDS = {
    **dict.fromkeys(("pause", "halt", "end", "quit", "abort", "cancel"), "stop"),
    **dict.fromkeys(("kill", "delete", "drop"), "remove"), **dict.fromkeys(("copy", "duplicate"), "clone"),
    **dict.fromkeys(("test", "score"), "evaluate"), "change": "set", "freeze": "pin", "unfreeze": "unpin",
    "keep": "protect",
}  # fmt: skip
FOR_ONE = ("clone", "remove", "protect", "unprotect")
WITH_NAME = ("set", "pin", "unpin")
WITH_VALUE = ("set", "pin")
MAX_TEXT = 500  # characters of a reason or an author
ENDED = "the run had ended"  # why a late request is refused


@dataclass(frozen=True)
class Request:
    """A change to a running population that a person asks for.

    Attributes:
        action: a key of `ACTIONS`. member: its id; None: every member (`set`, `pin`, `unpin`, `evaluate`).
        name, value: of a hyperparameter. reason, author: free text, recorded with the change.
    Raises:
        ConfigError: an unknown action, one without its member, name or value, or an entry that it does not take.
    """

    action: str
    member: int | None = None
    name: str = ""
    value: Any = None
    reason: str = ""
    author: str = ""

    def __post_init__(self) -> None:
        action, member = self.action, self.member
        if not isinstance(action, str) or action not in ACTIONS:
            meant = OTHER_WORDS.get(str(action).lower())
            resumed = ", and `agilerl resume RUN` goes on" if meant == "stop" else ""
            fix = f"unknown action {action!r}. fix: {meant}{resumed}."
            raise ConfigError(fix if meant else unknown_choice("action", str(action), ACTIONS))
        if member is not None and (isinstance(member, bool) or not isinstance(member, int) or member < 0):
            raise ConfigError(f"member must be the id of a member; got {member!r}. fix: an id of metrics.csv.")
        if action in FOR_ONE and member is None:
            raise ConfigError(f"{action} is for one member. fix: {action} with member=ID.")
        if action == "stop" and member is not None:
            raise ConfigError("stop ends the whole run. fix: leave member out, or use remove.")
        for key, actions in (("name", WITH_NAME), ("value", WITH_VALUE)):
            has, takes = vars(self)[key] not in ("", None), action in actions
            if has != takes:
                what = f"needs a {key}" if takes else f"takes no {key}"
                raise ConfigError(f"{action} {what} of a hyperparameter. fix: set lr=1e-3, say.")
        value = self.value
        if isinstance(value, list | dict) or (isinstance(value, float) and not math.isfinite(value)):
            raise ConfigError(f"{self.name} must be a finite number; got {str(value)[:40]}. fix: a number.")
        for key in ("name", "reason", "author"):
            text = vars(self)[key]
            if not isinstance(text, str) or len(text) > MAX_TEXT:
                raise ConfigError(f"{key} must be a text of at most {MAX_TEXT} characters. fix: a shorter one.")

    @classmethod
    def from_dict(cls, content: object) -> Request:
        """Build a request from plain data; unknown keys are ConfigErrors."""
        names = ("action", "member", "name", "value", "reason", "author")
        if not isinstance(content, Mapping) or "action" not in content:
            raise ConfigError(f"a request has an action; got {content!r}. fix: action: {'|'.join(ACTIONS)}.")
        for key in content:
            if key not in names:
                raise ConfigError(unknown_choice("entry of a request", str(key), names))
        return cls(**content)


@dataclass(frozen=True)
class Taken:
    """A request that a run has taken over.

    Attributes:
        id: of the request, unique in its run. generation: the first one that trains with the change.
        refused: why it has no effect; empty if it may be carried out.
        ends: of `stop`: whether it ends the run. False in a replay of a run that was resumed after it: the replay
            repeats the final evaluation, skips selection as the run did, and continues.
    """

    id: str
    generation: int
    request: Request
    refused: str = ""
    ends: bool = True

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Taken:
        request, refused = Request.from_dict(content["request"]), str(content.get("refused", ""))
        return cls(str(content["id"]), int(content["generation"]), request, refused, bool(content.get("ends", True)))


def ask(run: str | os.PathLike[str], request: Request) -> Path:
    """Leave a request in the directory of a run; it is taken over when the current generation ends.

    Returns:
        The file, which disappears when the request is taken over.
    Raises:
        RunError: no run that still trains at the path. ConfigError: a run in asynchronous mode, an unknown member, or a
            hyperparameter that its members do not mutate. AlgorithmError: a value out of range.
    Warns:
        AgileRLWarning: a value outside of the run's range of mutation, which is accepted.
    """
    directory = RunDirectory.open(run)
    check_takes(directory, request)
    if request.name:  # others need no manifest, nor code that registers the algorithm in it
        manifest = directory.manifest()
        request = with_typed_value(manifest, request)
        if note := outside_range(manifest, request):
            warnings.warn(note, AgileRLWarning, stacklevel=2)
    content = {**asdict(request), "author": request.author or _user()}
    path = directory.path / REQUESTS / f"{time.time_ns():020d}-{os.getpid()}.json"
    try:
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, json.dumps(content, allow_nan=False) + "\n")
    except OSError as error:
        raise RunError(f"{path.parent} cannot be written ({error.strerror}). fix: its rights.") from error
    return path


def check_takes(directory: RunDirectory, request: Request) -> None:
    """Raise an error unless the run takes requests now, and has the member; see `ask`."""
    records = RunRecords(directory.path)
    while records.poll():
        pass
    if records.status != "running":
        raise RunError(
            f"{directory.path} does not train now (status: {records.status}), and nobody would take a request over. "
            f"fix: {run_command('resume', directory.path)}, and ask then."
        )
    if records.is_asynchronous:
        raise ConfigError(
            f"{directory.path} trains in asynchronous mode, in which there is no moment between two generations of all "
            "members. fix: evolution.mode=generations, for a run that is steered."
        )
    if request.member is not None:
        members = sorted(records.births_by_id)
        if request.member not in members:
            last = f"ids go up to {members[-1]}" if members else "its first generation has not ended"
            raise ConfigError(f"{directory.path} has no member {request.member}: {last}. fix: an id of metrics.csv.")


def with_typed_value(manifest: Manifest, request: Request) -> Request:
    """Return the request with its value in the type that the algorithm declares.

    Raises:
        ConfigError: a hyperparameter that members do not mutate, or a batch that the replay memory cannot hold.
        AlgorithmError: a value out of range.
    """
    if request.name:
        names = list(manifest.mutation.rl_hp_selection)
        if request.name not in names:
            raise ConfigError(unknown_choice("mutable hyperparameter of this run", request.name, names))
    if request.action not in WITH_VALUE:
        return request
    value = check_value(find_algorithm(manifest.algorithm.name), request.name, request.value)
    size = manifest.replay_buffer.max_size
    if request.name == "batch_size" and manifest.has_replay and value > size:
        raise ConfigError(
            f"batch_size={value} is more than the replay memory holds ({size} transitions), and nothing would be "
            f"learned. fix: batch_size={size}, or less."
        )
    return replace(request, value=value)


def outside_range(manifest: Manifest, request: Request) -> str:
    """Return a note if the value lies outside of the run's range of mutation; empty if not."""
    if request.action not in WITH_VALUE:
        return ""
    name, value, limits = request.name, request.value, manifest.mutation.rl_hp_selection[request.name]
    if limits.min <= value <= limits.max:
        return ""
    return (
        f"{name}={value:g} lies outside of the range of this run, {limits.min:g} to {limits.max:g} "
        f"(mutation.rl_hp_selection.{name}). It is asked for all the same; if every member diverges, the run ends."
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return ""


def pending(run: str | os.PathLike[str]) -> dict[str, Request]:
    """Return the requests that wait, by their id, oldest first; files that are not requests are left alone."""
    requests = {}
    for path in sorted((Path(run) / REQUESTS).glob("*.json")):
        try:
            requests[path.stem] = Request.from_dict(read_json(path))
        except (AgileRLError, OSError, ValueError, TypeError):
            continue
    return requests


def script_of(directory: RunDirectory) -> list[Taken]:
    """Return the requests that a run has taken over, for another one that repeats it.

    A `stop` ends the other run only if this one has no later generation.
    """
    records = RunRecords.read(directory.path)
    names, events = [f.name for f in fields(Request)], records.steering
    # that of the result, if rows of metrics.csv are lost
    last = max(len(records.generations), int(records.result.get("generations") or 0))
    script = []
    for event in events:
        request = Request(**{name: vars(event)[name] for name in names})
        ends = request.action != "stop" or event.generation >= last
        script.append(Taken(event.request, event.generation, request, event.result.get("refused", ""), ends))
    return script


def refuse_left_stop(directory: RunDirectory, generation: int) -> None:
    """Refuse each `stop` that waits in a run which has ended and is resumed after so many generations.

    It meant the run that has ended. Other requests stay, and so do all of a run that was interrupted.
    """
    try:
        status = directory.facts().get("status")
    except RunError:  # a damaged run.json says nothing
        return
    if status == "done":
        Inbox(directory.path).refuse(generation, ("stop",))


class Inbox:
    """Hands a run its requests, each at the end of a generation.

    A request is logged in the run directory before it takes effect, with its generation. A run that is resumed from an
    earlier checkpoint, or starts again, takes the logged ones over at the same generations: it ends with the same bits.
    Its id is the name of its file, with a number if an earlier one had that name.

    Args:
        folder: the run directory; None: no requests. script: requests of another run, which this one repeats.
    """

    def __init__(self, folder: Path | None, script: Iterable[Taken] = ()) -> None:
        self.folder = None if folder is None else folder / REQUESTS
        logged = [] if self.folder is None else _logged(self.folder / LOG)
        names = {taken.id for taken in logged}
        self.script = [*(taken for taken in script if taken.id not in names), *logged]
        self._refused: set[Path] = set()
        self._delete_logged([taken for taken in logged if taken.generation == logged[-1].generation])

    def take(self, generation: int) -> list[Taken]:
        """Return the requests that take effect before `generation`; new ones are logged, and their files deleted."""
        due = [taken for taken in self.script if taken.generation == generation]
        return [*due, *self._log(generation)]

    def refuse(self, generation: int, actions: Iterable[str] = tuple(ACTIONS)) -> None:
        """Log the requests that wait as refused, since the run has ended after so many generations."""
        self._log(generation, actions, ENDED)

    def refused(self, generation: int, recorded: Collection[str]) -> list[Taken]:
        """Return the refused requests of `generation` without those that are recorded, by id."""
        due = (taken for taken in self.script if taken.generation == generation)
        return [taken for taken in due if taken.refused and taken.id not in recorded]

    def append_to_lineage(self, events: Iterable[Steering]) -> None:
        """Append requests to evolution.jsonl, if the run writes it, between two generations."""
        path = None if self.folder is None else self.folder.parent / LINEAGE
        if path is not None and path.is_file():
            with open(path, "a", encoding="utf-8", newline="") as file:
                file.writelines(map(lineage_line, events))

    def _log(self, generation: int, actions: Iterable[str] = tuple(ACTIONS), refused: str = "") -> list[Taken]:
        """Log the requests that wait, delete their files, and return them."""
        fresh: dict[Path, Taken] = {}
        names = {taken.id for taken in self.script}
        for path, request in self._waiting():
            if request.action in actions:
                taken = self._taken(_unused(path.stem, names), generation, request)
                fresh[path] = replace(taken, refused=refused or taken.refused)
                names.add(taken.id)
        if fresh and self.folder is not None:
            lines = [json.dumps(asdict(taken), allow_nan=False) + "\n" for taken in fresh.values()]
            with open(self.folder / LOG, "a", encoding="utf-8") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
        for path, taken in fresh.items():
            self.script.append(taken)
            path.unlink(missing_ok=True)
        return list(fresh.values())

    def _waiting(self) -> list[tuple[Path, Request]]:
        if self.folder is None or not self.folder.is_dir():
            return []
        read = ((path, self._read(path)) for path in sorted(self.folder.glob("*.json")))
        return [(path, request) for path, request in read if request is not None]

    def _delete_logged(self, logged: Sequence[Taken]) -> None:
        """Delete files of the requests that were logged last: a kill may have come before their deletion."""
        if not logged:
            return
        for path, request in self._waiting():
            for taken in logged:
                is_its = taken.id == path.stem or re.fullmatch(re.escape(path.stem) + r"-\d+", taken.id)
                if is_its and self._taken(taken.id, taken.generation, request).request == taken.request:
                    path.unlink(missing_ok=True)

    def _taken(self, name: str, generation: int, request: Request) -> Taken:
        """Check a request as `ask` does: its file may have another author."""
        if self.folder is None or not request.name:
            return Taken(name, generation, request)
        try:
            manifest = RunDirectory(self.folder.parent).manifest()
            return Taken(name, generation, with_typed_value(manifest, request))
        except (AgileRLError, OSError, ValueError) as error:
            return Taken(name, generation, request, str(error))

    def _read(self, path: Path) -> Request | None:
        """Read a request; None, with one warning, for a file that is none."""
        try:
            return Request.from_dict(read_json(path))
        except (AgileRLError, OSError, ValueError, TypeError) as error:
            if path not in self._refused:
                self._refused.add(path)
                warnings.warn(f"{path} is no request ({error}) and is left there.", AgileRLWarning, stacklevel=4)
            return None


def _unused(name: str, names: Collection[str]) -> str:
    """Return the name of a request's file as its id, with a number if an earlier request has that id."""
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return name if name not in names else next(text for text in numbered if text not in names)


def _logged(path: Path) -> list[Taken]:
    """Return the log of requests; an incomplete last line, of a killed process, is cut: its request's file remains."""
    if not path.is_file():
        return []
    text = read_text(path, LOG_LIMIT)
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        write_atomic(path, whole)
    try:
        return [Taken.from_dict(json.loads(line)) for line in whole.splitlines()]
    except (AgileRLError, ValueError, TypeError, KeyError, AttributeError) as error:
        what = f"{path} is damaged ({error}), so that the run cannot repeat what was asked of it"
        raise RunError(f"{what}. fix: rename the file, if it may go on without.") from error
