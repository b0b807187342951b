"""Requests to a running run: files in its directory, taken over between two generations."""

from __future__ import annotations

import getpass
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agilerl.checkpoint import write_atomic
from agilerl.errors import ConfigError, RunError, unknown_choice
from agilerl.hostile import read_json

FOLDER = "requests"
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
FOR_ONE = ("clone", "remove", "protect", "unprotect")
WITH_NAME = ("set", "pin", "unpin")
WITH_VALUE = ("set", "pin")


@dataclass(frozen=True)
class Request:
    """A change to a running population that a person asks for.

    Attributes:
        action: a key of `ACTIONS`. member: its id; None: every member (`set`, `pin`, `unpin`, `evaluate`).
        name, value: of a hyperparameter. reason, author: free text, recorded with the change.
    Raises:
        ConfigError: an unknown action, or one without its member, name or value.
    """

    action: str
    member: int | None = None
    name: str = ""
    value: Any = None
    reason: str = ""
    author: str = ""

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ConfigError(unknown_choice("action", self.action, ACTIONS))
        if self.member is not None and (isinstance(self.member, bool) or not isinstance(self.member, int)):
            raise ConfigError(f"member must be an id; got {self.member!r}. fix: an id that `agilerl watch` shows.")
        if self.action in FOR_ONE and self.member is None:
            raise ConfigError(f"{self.action} is for one member. fix: {self.action} with --member ID.")
        if self.action in WITH_NAME and not self.name:
            raise ConfigError(f"{self.action} needs the name of a hyperparameter. fix: {self.action} lr, say.")
        if self.action in WITH_VALUE and self.value is None:
            raise ConfigError(f"{self.action} {self.name} needs a value. fix: {self.action} {self.name}=1e-3, say.")

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Request:
        """Build a request from plain data; unknown keys are ConfigErrors."""
        names = ("action", "member", "name", "value", "reason", "author")
        for key in content:
            if key not in names:
                raise ConfigError(unknown_choice("entry of a request", key, names))
        if "action" not in content:
            raise ConfigError(f"a request without an action. fix: one of {', '.join(ACTIONS)}.")
        return cls(**content)


def ask(run: str | os.PathLike[str], request: Request) -> Path:
    """Leave a request in the directory of a run; it is taken over when the current generation ends.

    Returns:
        The file, which disappears when the request is taken over.
    Raises:
        RunError: no run that still trains at the path.
    """
    folder = Path(run) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{time.time_ns():020d}-{os.getpid()}.json"
    content = {**asdict(request), "author": request.author or getpass.getuser()}
    write_atomic(path, json.dumps(content) + "\n")
    return path


def pending(run: str | os.PathLike[str]) -> dict[str, Request]:
    """Return the requests that wait, by their file's stem, oldest first; unreadable files are skipped."""
    requests = {}
    for path in sorted((Path(run) / FOLDER).glob("*.json")):
        try:
            requests[path.stem] = Request.from_dict(read_json(path))
        except (ConfigError, RunError, OSError, ValueError, TypeError):
            continue
    return requests
