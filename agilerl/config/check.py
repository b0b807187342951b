"""Check of a manifest file: every problem as data, for people and for programs that write configurations."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agilerl.algorithms import DEFAULT_ALGORITHM, find_algorithm
from agilerl.config.convert import convert
from agilerl.config.keys import is_published, located
from agilerl.config.load import (
    NO_ENVIRONMENT,
    environment_in,
    lacks_environment,
    load_manifest,
    merged,
    prepared,
    read_data,
    with_canonical_name,
    without_algorithm,
)
from agilerl.config.presets import check_names
from agilerl.config.problems import errors_of, errors_of_keys, is_rule, problem_of
from agilerl.core.ranges import describe
from agilerl.errors import AgileRLError, ConfigError


@dataclass(frozen=True)
class Problem:
    """One problem of a configuration.

    Attributes:
        path: dotted key, or "" for the whole file. message: what is wrong. expected: values of the key, or "".
        got: value in the file, as JSON holds it; None if the key is missing. fix: what to write.
    """

    path: str
    message: str
    expected: str = ""
    got: Any = None
    fix: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.message} fix: {self.fix}" if self.fix else self.message


def problems_of(path: str | Path, env_id: str | None = None) -> list[Problem]:
    """Return every problem of a manifest file; empty if a run would accept its settings.

    Types, ranges and names are all checked. Rules over several keys follow once these hold, with the preset's values
    of what the file leaves out. Whether the environment exists is not checked: making it runs code.

    Args:
        env_id: names an environment if the file does not.
    """
    source = Path(path).name
    try:
        data = read_data(path)
        if is_published(data):
            _load(path, env_id or _in_call(data))
            return []
        plain = prepared(data, source, env_id)
    except AgileRLError as error:
        return _of_error(error, source)
    problems = _of_keys(plain, source)
    if lacks_environment(plain):
        problems += _of_error(ConfigError(NO_ENVIRONMENT), source, "environment.name")
    if problems:
        return problems
    try:
        whole = merged(plain, source)
        algorithm = str(whole.get("algorithm", {}).get("name", DEFAULT_ALGORITHM))
        check_names(algorithm, str(environment_in(whole)))
    except AgileRLError as error:
        return _of_error(error, source)
    return _of_validation(errors_of(whole), algorithm)


def _in_call(data: Any) -> str | None:
    """Return a stand-in for the environment of a language algorithm, which published files do not name."""
    algorithm = find_algorithm(convert(data).content["algorithm"]["name"])
    return "text" if algorithm.learns_language else None


def _load(path: str | Path, env_id: str | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notes of a translation, which `config convert` shows
        load_manifest(path, env_id)


def _of_keys(plain: dict[str, Any], source: str) -> list[Problem]:
    """Return the problems of the keys, rules aside; keys of the algorithm are checked only if its name is valid."""
    problems: list[Problem] = []
    try:
        plain, algorithm = with_canonical_name(plain)
    except AgileRLError as error:
        problems = _of_error(error, source, "algorithm.name", plain["algorithm"]["name"])
        plain, algorithm = without_algorithm(plain), DEFAULT_ALGORITHM
    return problems + _of_validation(errors_of_keys(plain, algorithm), algorithm)


def _of_validation(errors: list[Any], algorithm: str) -> list[Problem]:
    problems: list[Problem] = []
    for error in errors:
        problem = _of_one(error, algorithm)
        problems += [problem] if problem not in problems else []
    return problems


def _of_one(error: Any, algorithm: str) -> Problem:
    message, _, fix = problem_of(error["type"], error["loc"], error, algorithm, {}).partition(" fix: ")
    path, field, _ = located(error["loc"], algorithm)
    of_rule = is_rule(error, algorithm)
    is_unknown = error["type"] == "extra_forbidden"
    return Problem(
        path=".".join(map(str, error["loc"])) if is_unknown else path,
        message=message,
        expected="" if field is None or of_rule or is_unknown else describe(field.annotation, field.metadata),
        got=None if error["type"] == "missing" or of_rule else _as_json(error["input"]),
        fix=fix,
    )


def _of_error(error: AgileRLError, source: str, path: str = "", got: object = None) -> list[Problem]:
    """Return a problem for each line of an error."""
    parts = [line.removeprefix(f"{source}: ").partition(" fix: ") for line in str(error).splitlines()]
    return [Problem(path, message, got=_as_json(got), fix=fix) for message, _, fix in parts]


def _as_json(value: object) -> Any:
    """Return the value if JSON holds it, else its text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _as_json(part) for key, part in value.items()}
    return [_as_json(part) for part in value] if isinstance(value, list | tuple) else str(value)
