"""Algorithm registry: lookup by name, with lazy imports."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from agilerl.errors import AlgorithmError, UnknownAlgorithmError, nearest

if TYPE_CHECKING:
    from gymnasium import Space

    from agilerl.algorithms.base.agent import EvolvableAlgorithm
    from agilerl.algorithms.base.single_agent import RLAlgorithm
    from agilerl.algorithms.bc import BC
    from agilerl.algorithms.bc_lm import BC_LM
    from agilerl.algorithms.cispo import CISPO
    from agilerl.algorithms.cql import CQL
    from agilerl.algorithms.cqn import CQN
    from agilerl.algorithms.ddpg import DDPG
    from agilerl.algorithms.dpo import DPO
    from agilerl.algorithms.dqn import DQN
    from agilerl.algorithms.grpo import GRPO
    from agilerl.algorithms.gspo import GSPO
    from agilerl.algorithms.ilql import ILQL
    from agilerl.algorithms.ippo import IPPO
    from agilerl.algorithms.iql import IQL
    from agilerl.algorithms.llm_ppo import LLMPPO
    from agilerl.algorithms.llm_reinforce import LLMREINFORCE
    from agilerl.algorithms.maddpg import MADDPG
    from agilerl.algorithms.mappo import MAPPO
    from agilerl.algorithms.matd3 import MATD3
    from agilerl.algorithms.neural_ts import NeuralTS
    from agilerl.algorithms.neural_ucb import NeuralUCB
    from agilerl.algorithms.ppo import PPO
    from agilerl.algorithms.qmix import QMIX, VDN
    from agilerl.algorithms.qr_dqn import QRDQN
    from agilerl.algorithms.rainbow import RainbowDQN
    from agilerl.algorithms.recurrent_ppo import RecurrentPPO
    from agilerl.algorithms.sac import SAC
    from agilerl.algorithms.sft import SFT
    from agilerl.algorithms.td3 import TD3
    from agilerl.algorithms.td3bc import TD3BC
    from agilerl.algorithms.teams.base import MultiAgentRLAlgorithm
    from agilerl.algorithms.tqc import TQC
    from agilerl.language.algorithms.base import LLMAlgorithm

__all__ = [
    "BC",
    "BC_LM",
    "CISPO",
    "CQL",
    "CQN",
    "DDPG",
    "DPO",
    "DQN",
    "GRPO",
    "GSPO",
    "ILQL",
    "IPPO",
    "IQL",
    "LLMPPO",
    "LLMREINFORCE",
    "MADDPG",
    "MAPPO",
    "MATD3",
    "PPO",
    "PQN",
    "QMIX",
    "QRDQN",
    "SAC",
    "SFT",
    "TD3",
    "TD3BC",
    "TQC",
    "VDN",
    "EvolvableAlgorithm",
    "LLMAlgorithm",
    "MultiAgentRLAlgorithm",
    "NeuralTS",
    "NeuralUCB",
    "RLAlgorithm",
    "RainbowDQN",
    "RecurrentPPO",
    "available",
    "canonical_name",
    "find_algorithm",
    "is_team",
    "name_of",
    "register",
    "wrong_actions",
]

_SHIPPED = {
    "BC": "agilerl.algorithms.bc",
    "BC_LM": "agilerl.algorithms.bc_lm",
    "CISPO": "agilerl.algorithms.cispo",
    "CQL": "agilerl.algorithms.cql",
    "CQN": "agilerl.algorithms.cqn",
    "DDPG": "agilerl.algorithms.ddpg",
    "DPO": "agilerl.algorithms.dpo",
    "DQN": "agilerl.algorithms.dqn",
    "GRPO": "agilerl.algorithms.grpo",
    "GSPO": "agilerl.algorithms.gspo",
    "ILQL": "agilerl.algorithms.ilql",
    "IPPO": "agilerl.algorithms.ippo",
    "IQL": "agilerl.algorithms.iql",
    "LLMPPO": "agilerl.algorithms.llm_ppo",
    "LLMREINFORCE": "agilerl.algorithms.llm_reinforce",
    "MADDPG": "agilerl.algorithms.maddpg",
    "MAPPO": "agilerl.algorithms.mappo",
    "MATD3": "agilerl.algorithms.matd3",
    "NeuralTS": "agilerl.algorithms.neural_ts",
    "NeuralUCB": "agilerl.algorithms.neural_ucb",
    "PPO": "agilerl.algorithms.ppo",
    "PQN": "agilerl.algorithms.pqn",
    "QMIX": "agilerl.algorithms.qmix",
    "QRDQN": "agilerl.algorithms.qr_dqn",
    "RainbowDQN": "agilerl.algorithms.rainbow",
    "RecurrentPPO": "agilerl.algorithms.recurrent_ppo",
    "SAC": "agilerl.algorithms.sac",
    "SFT": "agilerl.algorithms.sft",
    "TD3": "agilerl.algorithms.td3",
    "TD3BC": "agilerl.algorithms.td3bc",
    "VDN": "agilerl.algorithms.qmix",
    "TQC": "agilerl.algorithms.tqc",
}
WHEN = {
    "BC": "recorded actions of an expert; ignores rewards",
    "BC_LM": "recorded texts; ignores rewards",
    "CISPO": "texts with rewards: GRPO without clipped gradients",
    "CQL": "recorded data, Box actions, of mixed quality",
    "CQN": "recorded data, choices",
    "DDPG": "Box actions; TD3 is its successor",
    "DPO": "texts: pairs of a better and a worse answer",
    "DQN": "choices, where steps are dear",
    "GRPO": "texts with rewards; the default",
    "GSPO": "texts with rewards: GRPO with ratios of whole answers",
    "ILQL": "recorded texts with rewards",
    "IPPO": "teams and self-play: every agent learns alone",
    "IQL": "recorded data, Box actions, of mixed quality",
    "LLMPPO": "texts with rewards: a value network, for many turns",
    "LLMREINFORCE": "texts with rewards: the simplest update",
    "MADDPG": "teams, where steps are dear: critics see all agents",
    "MAPPO": "teams: values see all agents",
    "MATD3": "teams, where steps are dear: MADDPG with two critics",
    "NeuralTS": "bandits: explores by sampled values",
    "NeuralUCB": "bandits: explores by upper confidence bounds",
    "PPO": "any actions, where steps are cheap; the default without a preset",
    "PQN": "choices, where steps are cheap: Q-learning without replay",
    "QMIX": "cooperative teams with choices: mixed values of the agents",
    "QRDQN": "choices, where steps are dear: quantiles of the return",
    "RainbowDQN": "choices, where steps are dear: six improvements of DQN",
    "RecurrentPPO": "observations that hide what matters",
    "SAC": "Box actions or choices, where steps are dear",
    "SFT": "texts: examples of answers",
    "TD3": "Box actions, where steps are dear: deterministic policies",
    "TD3BC": "recorded data, Box actions; the simplest",
    "TQC": "Box actions, where steps are dear: SAC with quantiles of the return",
    "VDN": "cooperative teams with choices: summed values of the agents",
}
"""When to take which shipped algorithm; docs/choosing.md has the reasons."""
_BASES = {
    "EvolvableAlgorithm": "agilerl.algorithms.base.agent",
    "LLMAlgorithm": "agilerl.language.algorithms.base",
    "MultiAgentRLAlgorithm": "agilerl.algorithms.teams.base",
    "RLAlgorithm": "agilerl.algorithms.base.single_agent",
}
LANGUAGE = ("CISPO", "DPO", "GRPO", "GSPO", "LLMPPO", "LLMREINFORCE", "SFT")
"""Shipped algorithms that train a language model: no spaces, no step-wise environments."""
_TEAMS = ("IPPO", "MADDPG", "MAPPO", "MATD3", "QMIX", "VDN")  # shipped multi-agent algorithms
_TRAINERS = {"LocalTrainer": "agilerl.trainer"}  # published classes that are taken for algorithms
_OF_DATA = (("BC", "CQN"), ("BC", "CQL", "IQL", "TD3BC"), ("BC_LM", "ILQL"))  # for discrete actions, Box actions, texts
_registered: dict[str, type[RLAlgorithm] | type[MultiAgentRLAlgorithm]] = {}

DEFAULT_ALGORITHM, DEFAULT_FOR_BOX, DEFAULT_FOR_TEAMS, DEFAULT_FOR_LANGUAGE = "DQN", "SAC", "MADDPG", "GRPO"
"""Default algorithms for discrete actions, Box actions, several agents and language tasks."""
DEFAULT_UNTUNED = "PPO"
"""Default without tuning: it adapts its scales and its learning rate."""
DEFAULT_BY_GYM = {"ReasoningGym": DEFAULT_FOR_LANGUAGE, "PreferenceGym": "DPO", "SFTGym": "SFT"}
"""Default algorithm by the class of a gym of `agilerl.llm_envs`."""

Algorithm = TypeVar("Algorithm", bound=type)


def worth_a_try(name: str, is_box: bool) -> str:
    """Name alternatives to try where the algorithm `name` has not learned; `is_box`: whether actions are a Box."""
    of_data = _OF_DATA[1:] if is_box else (_OF_DATA[0], *_OF_DATA[2:])
    for alike in (_TEAMS, *of_data):
        if name in alike:
            return "one of " + ", ".join(other for other in alike if other != name)
    if name != DEFAULT_UNTUNED:
        return DEFAULT_UNTUNED
    return "SAC or TD3" if is_box else "DQN or RainbowDQN"


def shipped_in(name: str) -> str | None:
    """Return the module of a shipped algorithm, None for a registered one."""
    return None if name in _registered else _SHIPPED.get(name)


def _imported(places: Mapping[str, str], name: str) -> Any:
    """Import the class `name` from its module."""
    return vars(import_module(places[name]))[name]


def __getattr__(name: str) -> Any:
    if name not in _SHIPPED and name not in _BASES:
        raise AttributeError(f"module 'agilerl.algorithms' has no attribute {name!r}")
    return _imported({**_SHIPPED, **_BASES}, name)


def register(cls: Algorithm) -> Algorithm:
    """Register `cls` under its class name for manifests, the command line and checkpoints.

    Use it as a decorator. Registering a class again replaces the earlier one, so a module can be reloaded.

    Raises:
        AlgorithmError: the package has a class of that name, or `cls` derives from none of `RLAlgorithm`,
            `MultiAgentRLAlgorithm` and `LLMAlgorithm`.
    """
    name = cls.__name__
    bases = tuple(_imported(_BASES, base) for base in ("RLAlgorithm", "MultiAgentRLAlgorithm", "LLMAlgorithm"))
    if not issubclass(cls, bases):
        raise AlgorithmError(
            f"register got {name}, which does not derive from RLAlgorithm. fix: derive it (of several agents: from "
            "MultiAgentRLAlgorithm, of a language model: from LLMAlgorithm)."
        )
    if _plain(name) in map(_plain, _SHIPPED):
        raise AlgorithmError(f"register got {name}, a name of the package's own. fix: another name.")
    _registered[name] = cls
    return cls


def name_of(algo: object) -> Any:
    """Return the name of an algorithm class, registering it if necessary; names are returned unchanged.

    Raises:
        AlgorithmError: the class cannot be registered, see `register`.
    """
    if not isinstance(algo, type):
        return algo
    is_shipped = algo.__module__ in _SHIPPED.values() and algo.__name__ in _SHIPPED
    return algo.__name__ if is_shipped else register(algo).__name__


def available() -> list[str]:
    """Return the sorted names of all algorithms that can be trained."""
    return sorted({*_SHIPPED, *_registered})


def canonical_name(name: str) -> str:
    """Return the canonical spelling of a name; case, spaces, dashes and underscores are ignored.

    Raises:
        UnknownAlgorithmError: unknown name; the message suggests the nearest one.
    """
    names = available()
    for each in names:
        if _plain(each) == _plain(name):
            return each
    trainer = next((each for each in _TRAINERS if _plain(each) == _plain(name)), None)
    if trainer is not None:
        raise UnknownAlgorithmError(f"{trainer} is no algorithm. fix: from {_TRAINERS[trainer]} import {trainer}.")
    listed = ", ".join(names)
    close = nearest(name, names, limit=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise UnknownAlgorithmError(f"unknown algorithm {name!r}.{hint} (known: {listed}) fix: {(close or ['one'])[0]}.")


def is_team(name: str) -> bool:
    """Whether this is a multi-agent algorithm; shipped algorithms are not imported."""
    canonical = canonical_name(name)
    if canonical not in _registered:
        return canonical in _TEAMS
    return issubclass(_registered[canonical], import_module(_BASES["MultiAgentRLAlgorithm"]).MultiAgentRLAlgorithm)


def find_algorithm(name: str) -> Any:
    """Return the algorithm class; case, spaces, dashes and underscores in `name` are ignored.

    Raises:
        AlgorithmError: unknown name (the message suggests the nearest one), or a registered name without a class.
    """
    canonical = canonical_name(str(name))
    if canonical in _registered:
        return _registered[canonical]
    return _imported(_SHIPPED, canonical)


def wrong_actions(algo: str, needed: tuple[str, ...], space: Space[Any]) -> AlgorithmError:
    """Build the error for an unsupported action space: the required space, the actual one, and algorithms that fit.

    Args:
        needed: supported kinds of space, by class name.
    """
    kind = type(space).__name__
    data = algo in available() and learns_from_data(algo)
    taking = taking_actions(kind)
    fitting = [name for name in taking if learns_from_data(name) == data]
    none = f"; no algorithm of this version takes {kind} actions"
    if taking:
        how = "an environment" if data else "data"
        none = f"; of {kind} actions {', '.join(taking)} learns, from {how} alone"
    instead = f", or for {kind} actions one of: {', '.join(fitting)}" if fitting else none
    wanted = " or ".join(part for part in (", ".join(needed[:-1]), needed[-1]) if part)
    return AlgorithmError(
        f"{algo} needs {wanted} actions; got {space}. fix: use an environment with {wanted} actions{instead}."
    )


def taking_actions(kind: str) -> list[str]:
    """Names of the single-agent algorithms to suggest for an environment with this kind of action space.

    Those for texts or bandits alone, and other names of an algorithm, are left out.
    """
    names = [name for name in available() if not is_team(name) and kind in find_algorithm(name).action_spaces]
    classes = {name: find_algorithm(name) for name in names}
    return [
        name for name, cls in classes.items()
        if not (cls.reads_texts or cls.always_recurrent or cls.experience.name == "rounds")
    ]  # fmt: skip


def example_of(experience: str) -> str:
    """Name an algorithm that learns from this kind of experience, for a fix: the default one if it does."""
    classes = {name: find_algorithm(name) for name in available() if not find_algorithm(name).reads_texts}
    names = [name for name, cls in classes.items() if cls.experience.name == experience]
    return (
        DEFAULT_ALGORITHM if DEFAULT_ALGORITHM in names else min(names, key=lambda name: bool(classes[name].imitates))
    )


def offline_instead(name: str) -> str:
    """Name an algorithm that learns from data for each kind of action of an online one, for a fix; "" without one."""
    choices = []
    for kind in ("Discrete", "Box"):
        fitting = [
            other for other in available()
            if learns_from_data(other) and kind in find_algorithm(other).action_spaces
            and not find_algorithm(other).reads_texts
        ]  # fmt: skip
        if fitting and not is_team(name) and kind in find_algorithm(name).action_spaces:
            best = min(fitting, key=lambda other: bool(find_algorithm(other).imitates))
            choices.append(f"algo={best!r} for {kind} actions")
    return " or ".join(choices)


def with_memory(for_team: bool) -> list[str]:
    """Names of the multi-agent or single-agent algorithms that keep hidden states with `recurrent=True`."""
    return [
        name for name in available()
        if is_team(name) == for_team and takes_argument(find_algorithm(name), "recurrent")
        and not find_algorithm(name).always_recurrent
    ]  # fmt: skip


def takes_argument(cls: type, argument: str) -> bool:
    """Whether the constructor of an algorithm has this argument, or passes it on to that of its base class."""
    for constructor in (vars(kind)["__init__"] for kind in cls.__mro__ if "__init__" in vars(kind)):
        parameters = inspect.signature(constructor).parameters
        if argument in parameters:
            return True
        if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
            return False
    return False


def learns_from_data(name: str) -> bool:
    """Whether the algorithm is offline. Offline and online algorithms are not suggested for each other."""
    return not is_team(name) and bool(find_algorithm(name).experience.name == "dataset")


def _plain(name: str) -> str:
    return name.lower().replace(" ", "").replace("-", "").replace("_", "")
