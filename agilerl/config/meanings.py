"""What each key of a manifest means: texts read off the code, for the documentation and the JSON schema."""

from __future__ import annotations

import inspect
import re
from functools import lru_cache

from pydantic import BaseModel

from agilerl.algorithms import available, find_algorithm
from agilerl.core.options import LoopOptions, OffPolicyOptions

OTHER_NAMES = {"target": "target_score", "rescore_episodes": "elite_rescore_episodes"}
"""Options of the loop whose manifest key has another name."""
UNITS = {
    "learn_step": "environment steps", "batch_size": "rows", "action_ent_steps": "environment steps",
    "max_steps": "steps of one member", "evo_steps": "steps of one member", "evo_first": "steps of one member",
    "stop_after": "steps of one member", "eval_steps": "steps of one episode",
    "train_max_episode_steps": "steps of one episode", "learning_delay": "environment steps of all members",
    "random_steps": "environment steps of all members", "explore_hold": "vector steps", "max_size": "transitions",
    "n_step": "environment steps", "patience": "generations", "frequencies": "generations", "max_lag": "generations",
    "deadline_s": "seconds", "num_workers": "processes", "threads": "threads", "pop_size": "members",
    "fqe_updates": "updates", "max_seq_len": "steps", "update_epochs": "passes over a rollout",
    "stop_errors": "standard errors", "certainty": "standard errors",
}  # fmt: skip
_ENTRY = re.compile(r" ?(?:(?<=\. )|^)(?=[A-Za-z_]\w*(?:, \w+)*: )")


def unit_of(name: str) -> str | None:
    """Return the unit of a key, None for numbers without one."""
    if name in UNITS:
        return UNITS[name]
    return "episodes" if name.endswith("_episodes") else None


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return the meaning of the keys of a section: the comment behind or above it, or the text of the option."""
    texts: dict[str, str] = {}
    for cls in reversed([each for each in model.__mro__ if each.__module__ == model.__module__]):
        source = _source(cls)
        texts |= dict(re.findall(r"^    (\w+): .*?  # (.+)$", source, re.M))
        for comment, name in re.findall(r"((?:^    # .+\n)+)^    (\w+): ", source, re.M):
            texts[name] = " ".join(line.strip(" #") for line in comment.splitlines())
    for options in (LoopOptions, OffPolicyOptions):
        for name, meaning in _entries((options.__doc__ or "").split("Attributes:")[1]).items():
            texts.setdefault(OTHER_NAMES.get(name, name), meaning)
    return texts


def _source(cls: type) -> str:
    try:
        return inspect.getsource(cls)
    except OSError:  # an installation without sources
        return ""


@lru_cache(maxsize=64)
def arguments_of(algorithm: str) -> dict[str, str]:
    """Return the meaning of an algorithm's arguments: its docstring's, those of its bases and of the classes to which
    it refers (see `X`)."""
    texts: dict[str, str] = {}
    waiting, seen = [find_algorithm(algorithm)], set()
    while waiting:
        cls = waiting.pop(0)
        if cls in seen:
            continue
        seen.add(cls)
        doc = inspect.cleandoc(vars(cls).get("__doc__") or "")
        for name, meaning in _entries(_section(doc)).items():
            texts.setdefault(name, meaning)
        referred = [
            name for line in re.findall(r"See (.+?) for the other", doc) for name in re.findall(r"`(\w+)`", line)
        ]
        waiting += [find_algorithm(name) for name in referred if name in available()]
        waiting += [base for base in cls.__mro__[1:] if base.__module__.startswith("agilerl.")]
    return texts


def _section(doc: str) -> str:
    """Return the text under `Args:`."""
    _, _, rest = doc.partition("Args:\n")
    return re.split(r"\n(?=\S)", rest)[0]


def _entries(text: str) -> dict[str, str]:
    """Return name -> text of entries such as `a, b: meaning.`"""
    found: dict[str, str] = {}
    for entry in filter(None, _ENTRY.split(" ".join(text.split()))):
        names, _, meaning = entry.partition(": ")
        found |= dict.fromkeys(names.split(", "), meaning.strip())
    return found


def title_of(thing: object) -> str:
    """Return the first sentence of a docstring, on one line."""
    return " ".join(inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0].split())
