"""Normalisation of environment results at the package boundary: number of values, infos, flags, tensors.

Single, vector and multi-agent environments share these functions. Invalid results raise an `EnvError` with the
environment, the method, the expected and the actual value.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agilerl.core.tree import Tree
from agilerl.errors import EnvError

HEALED = "agilerl.healed"  # key in infos of our vectors: [L] bool, lanes whose worker was replaced
MARKS = ("healed", "final_action_mask")  # keys set by lanes, which an environment may use too
FINAL = ("final_obs", "final_observation", "terminal_observation")  # in Gymnasium 1, in older versions, in SuperSuit

HEAL = "fix: correct the environment, or make_vect_envs(..., healing=True) to replace an environment that fails."
_NEW_RESET, _NEW_STEP = "(observation, info)", "(observation, reward, terminated, truncated, info)"
_SHIMMY = "shimmy.openai_gym_compatibility.GymV21CompatibilityV0(env=env) around an environment of OpenAI Gym"
_OF_TEAMS = "(observations, infos)", "(observations, rewards, terminations, truncations, infos)"


def short(value: object) -> str:
    """Format a value for messages: its type and the beginning of its text."""
    text = " ".join(repr(value).split())
    return "None" if value is None else f"{type(value).__name__} {text[:80]}{'...' if len(text) > 80 else ''}"


def plain(value: Any) -> Any:
    """Convert a PyTorch tensor to a detached array on the CPU; other values are unchanged."""
    torch = sys.modules.get("torch")  # already imported if the environment returns tensors
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def numbers(value: object) -> np.ndarray | None:
    """Return `value` as an array of real numbers or booleans; None if it is not numeric."""
    try:
        array = np.asarray(plain(value))
    except (ValueError, TypeError, RuntimeError):  # ragged rows, objects that cannot become arrays
        return None
    return array if array.dtype.kind in "biuf" else None


def is_flag(value: np.ndarray | None) -> bool:
    """Whether every entry is a boolean, or 0 or 1."""
    return value is not None and (value.dtype.kind == "b" or bool(np.isin(value, (0, 1)).all()))


# -- how many values -------------------------------------------------------------------------------------------------


def reset_values(result: object, where: str, *, is_team: bool = False, is_vector: bool = False) -> tuple[Any, Any]:
    """Return (observation, info) of a `reset()`.

    Args:
        where: environment name, for messages. is_team: it has PettingZoo's parallel interface. is_vector: infos
            may be a list, one for each environment.

    Raises:
        EnvError: only an observation, as in Gym before 0.26, or anything else.
    """
    if isinstance(result, tuple | list) and len(result) == 2 and _is_info(result[1], is_vector):
        return result[0], result[1]
    expected = _OF_TEAMS[0] if is_team else _NEW_RESET
    if isinstance(result, tuple) and len(result) == 2:
        got = f"{short(result[1])} in place of {'infos' if is_team else 'info'}"
        raise EnvError(f"{where}: reset() returned {got}; expected {expected}. fix: return {_example(is_team)}.")
    if isinstance(result, tuple):
        got = f"a tuple of {len(result)} values"
    elif result is None:
        got = "None"
    elif is_team:
        got = "observations alone (the interface of PettingZoo before infos were returned)"
    else:
        got = "an observation alone (the interface of Gym before 0.26)"
    fix = f"return {_example(is_team)}"
    fix += "" if is_team or is_vector or result is None or isinstance(result, tuple) else f", or {_SHIMMY}"
    raise EnvError(f"{where}: reset() returned {got}; expected {expected}. fix: {fix}.")


def _example(is_team: bool) -> str:
    return "observations, {agent: {} for agent in self.agents}" if is_team else "observation, {}"


def _is_info(value: object, is_vector: bool) -> bool:
    return value is None or isinstance(value, Mapping) or (is_vector and isinstance(value, list | tuple))


def step_values(result: object, where: str, *, is_team: bool = False, is_vector: bool = False) -> Sequence[Any]:
    """Return the five values of a `step()`; for the arguments see `reset_values`.

    Raises:
        EnvError: four values, as in Gym before 0.26 and PettingZoo before 1.22, or anything else.
    """
    if isinstance(result, tuple | list) and len(result) == 5:
        return result
    expected = _OF_TEAMS[1] if is_team else _NEW_STEP
    count = len(result) if isinstance(result, tuple | list) else 0
    got = f"{count} values" if count else short(result)
    fix = f"return {expected[1:-1]}"
    if count == 4:
        old = "PettingZoo with one dict of dones" if is_team else "Gym before 0.26"
        got = f"4 values (the interface of {old})"
        fix += "" if is_team or is_vector else f", or {_SHIMMY}"
    raise EnvError(f"{where}: step() returned {got}; expected {expected}. fix: {fix}.")


def unpacking_hint(error: BaseException, call: str) -> str:
    """Explain what a failed call should have returned, if a wrapper around it could not unpack the result; else ""."""
    text = str(error)
    if isinstance(error, ValueError) and "values to unpack" in text:
        if call == "step()" and "expected 5" in text:
            return f" A step must return {_NEW_STEP}: fewer is the interface of Gym before 0.26."
        if call == "reset()" and "expected 2" in text:
            return f" A reset must return {_NEW_RESET}: an observation alone is the interface of Gym before 0.26."
    if isinstance(error, TypeError) and call == "reset()" and "unexpected keyword argument" in text:
        return " Gymnasium's interface is reset(self, *, seed=None, options=None), which returns (observation, info)."
    return ""


# -- infos -----------------------------------------------------------------------------------------------------------


def as_info(info: object, where: str, call: str, key: str = "info") -> Mapping[str, Any]:
    """Return an info as a mapping; None becomes empty.

    Raises:
        EnvError: not a mapping.
    """
    if info is None:
        return {}
    if isinstance(info, Mapping):
        return info
    text = f"{where}: {call} gave {key} = {short(info)}; expected a dictionary"
    raise EnvError(f"{text}. fix: {{'action_mask': mask}} where it is a mask, else {{}}.")


def as_vector_info(info: object, count: int, where: str, call: str) -> dict[str, Any]:
    """Convert the info of a vector environment to Gymnasium's format, without the keys that lanes set themselves.

    A list of dictionaries, one for each of `count` environments, becomes one dictionary of object arrays [L], with a
    mask `_key` for each key.

    Raises:
        EnvError: neither a mapping nor such a list.
    """
    if isinstance(info, list | tuple):
        if len(info) != count:
            raise EnvError(
                f"{where}: {call} gave {len(info)} infos; expected one for each of {count} environments. "
                "fix: a dictionary of arrays, as gymnasium.vector.VectorEnv gives it."
            )
        info = _stacked([as_info(row, where, call, f"infos[{lane}]") for lane, row in enumerate(info)])
    info = as_info(info, where, call)
    if type(info) is dict and not any(key in info for key in MARKS):
        return info
    return {key: value for key, value in info.items() if key not in MARKS}


def _stacked(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    stacked: dict[str, Any] = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        values, present = np.full(len(rows), None, dtype=object), np.array([key in row for row in rows])
        for lane in np.flatnonzero(present).tolist():
            values[lane] = rows[lane][key]
        stacked[key], stacked[f"_{key}"] = values, present
    return stacked


def final_key(info: Mapping[str, Any]) -> str | None:
    """Return the key of a vector's info that holds final observations; None without one."""
    return next((key for key in FINAL if key in info), None)


def by_agent(values: Tree, what: str, where: str, call: str) -> Mapping[Any, Any]:
    """Return a multi-agent result as a mapping by agent.

    Raises:
        EnvError: not a mapping.
    """
    if isinstance(values, Mapping):
        return values
    text = f"{where}: {call} gave {what} = {short(values)}; expected a dictionary by agent"
    raise EnvError(f"{text}. fix: {{agent: ... for agent in self.agents}}.")
