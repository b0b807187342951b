"""Arguments of the published training functions that are of the wrong type or do not go together."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import agilerl
from agilerl import errors
from agilerl.algorithms import DQN, find_algorithm
from agilerl.components.replay_buffer import MultiStepReplayBuffer, ReplayBuffer
from agilerl.errors import AgileRLWarning, AlgorithmError, ConfigError
from agilerl.experimental.mf_pbt import MultipleFrequencies
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.llm_envs import PreferenceGym, ReasoningGym, SFTGym
from agilerl.training.published import FUNCTION_OF, KINDS
from agilerl.training.train_llm import finetune_llm_preference, finetune_llm_reasoning, finetune_llm_sft
from agilerl.training.train_off_policy import train_off_policy
from agilerl.training.train_offline import train_offline
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import make_vect_envs
from tests.differential.language_reference import base

VECTOR, CHOICE, BOX = spaces.Box(-1, 1, (4,)), spaces.Discrete(2), spaces.Box(-1, 1, (1,))
BUDGET = {"max_steps": 32, "evo_steps": 16, "eval_steps": 5, "verbose": False, "seed": 1}
DATA = {
    "observations": np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32),
    "actions": np.arange(64) % 2, "rewards": np.ones(64), "terminals": np.arange(64) % 8 == 7,
}  # fmt: skip


def population(*names: str, indices: tuple[int, ...] = (0, 1, 2)) -> list[Any]:
    kinds: list[Any] = [find_algorithm(name) for name in names]
    on_policy = {"num_envs": 2, "learn_step": 16, "batch_size": 8}
    return [
        kind(
            VECTOR,
            CHOICE if kind.__name__ in ("DQN", "RainbowDQN", "CQN", "BC", "PPO") else BOX,
            index=index,
            seed=index + 1,
            **(on_policy if kind.__name__ == "PPO" else {}),
        )
        for index, kind in zip(indices, kinds, strict=False)
    ]


def offline(pop: Any, **more: Any) -> Any:
    env = make_vect_envs("CartPole-v1", num_envs=2)
    return train_offline(env, "CartPole-v1", DATA, pop=pop, memory=ReplayBuffer(100), **{**BUDGET, **more})


def off_policy(pop: Any, **more: Any) -> Any:
    env = make_vect_envs("CartPole-v1", num_envs=2)
    return train_off_policy(env, "CartPole-v1", None, pop, ReplayBuffer(100), **{**BUDGET, **more})


def on_policy(pop: Any, **more: Any) -> Any:
    env = make_vect_envs("CartPole-v1", num_envs=2)
    return train_on_policy(env, "CartPole-v1", None, pop, **{**BUDGET, **more})


# -- populations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("train", "what"), [(offline, "a data set"), (off_policy, "replay")])
@pytest.mark.parametrize("names", [("PPO",), ("CQN", "PPO")])
def test_agents_that_learn_from_rollouts_alone_are_named(train: Any, what: str, names: tuple[str, ...]) -> None:
    with pytest.raises(AlgorithmError, match=f"PPO learns from its own rollouts, not from {what}.* fix: train_on_pol"):
        train(population(*names))


@pytest.mark.parametrize(
    ("train", "names"),
    [
        (offline, ("DQN", "RainbowDQN")), (offline, ("RainbowDQN", "DQN")), (offline, ("CQN", "DQN")),
        (off_policy, ("CQN", "DQN")), (off_policy, ("DQN", "CQN", "DQN")),
    ],
)  # fmt: skip
def test_members_of_several_classes_are_named(train: Any, names: tuple[str, ...]) -> None:
    kinds = ", ".join(dict.fromkeys(names))
    with pytest.raises(AlgorithmError, match=rf"members of several classes \({kinds}\).* fix: one population"):
        train(population(*names))


@pytest.mark.parametrize(("train", "name"), [(offline, "CQN"), (off_policy, "DQN"), (on_policy, "PPO")])
def test_agents_with_one_index_keep_their_own_fitness(train: Any, name: str) -> None:
    """The fitness of the last one was that of all: `[DQN(...) for _ in range(3)]` evolved at random."""
    apart, _ = train(population(name, name, name))
    with pytest.warns(AgileRLWarning, match=r"several agents have the same index \(0, 0, 0\).* fix: index=k"):
        same, history = train(_with_index_0(population(name, name, name)))
    assert [agent.index for agent in same] == [0, 1, 2]
    assert [agent.fitness for agent in same] == [agent.fitness for agent in apart]
    assert list(history[-1]) == [agent.fitness[-1] for agent in apart]


def _with_index_0(agents: list[Any]) -> list[Any]:
    for agent in agents:
        agent.index = 0
    return agents


@pytest.mark.parametrize(
    ("function", "algo"),
    [
        (function, kind.example)
        for function, needs in KINDS.items()
        for kind in KINDS.values()
        if kind.learns_from not in (needs.learns_from, *needs.accepts) or kind.are_teams != needs.are_teams
    ],
)
def test_agents_that_learn_from_something_else_are_sent_to_their_function(function: str, algo: str) -> None:
    team = [VECTOR] * 2, [CHOICE if algo == "IPPO" else BOX] * 2, ["a_0", "b_0"]
    cls: Any = find_algorithm(algo)
    agent = (
        cls(*team) if algo in ("MADDPG", "IPPO") else cls(VECTOR, CHOICE if "Discrete" in cls.action_spaces else BOX)
    )
    train = getattr(import_module(f"agilerl.training.{function}"), function)
    fix = FUNCTION_OF[agent.experience.name]
    with pytest.raises(AlgorithmError, match=rf"{algo} .*\. fix: {fix}\(env, \.\.\.\)"):
        train(make_vect_envs("CartPole-v1"), "CartPole-v1", pop=[agent])


# -- arguments that all functions have ---------------------------------------------------------------------------------

TEXTS = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(4) for b in range(4)]
PAIRS = [{"prompt": row["question"], "chosen": "7", "rejected": row["answer"]} for row in TEXTS if row["answer"] != "7"]


def gym(kind: str) -> Any:
    tokenizer = base().tokenizer
    if kind == "preference":
        return PreferenceGym(PAIRS[:8], PAIRS[8:], tokenizer, data_batch_size_per_gpu=4)
    if kind == "sft":
        return SFTGym(TEXTS[:8], TEXTS[8:], tokenizer, prompt_column="question", completion_column="answer",
                      data_batch_size_per_gpu=4)  # fmt: skip
    return ReasoningGym(TEXTS[:8], TEXTS[8:], tokenizer, lambda text, *_: float(len(text)), data_batch_size_per_gpu=4)


def writers(algo: str, count: int = 1) -> list[Any]:
    writes = {"max_output_tokens": 4, "group_size": 2, "batch_size": 8} if algo not in ("DPO", "SFT") else {}
    found: list[Any] = find_algorithm(algo).population(
        count, actor_network=base(), seed=3, lora_config={"r": 4}, **writes
    )
    return found


def reasoning(pop: Any = None, **more: Any) -> Any:
    given = {"pop": writers("GRPO") if pop is None else pop, "env": gym("reasoning"), "max_steps": 4, "verbose": False}
    return finetune_llm_reasoning(**{**given, **more})


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "offline": lambda **more: offline(**{"pop": population("CQN"), **more}),
    "off-policy": lambda **more: off_policy(**{"pop": population("DQN"), **more}),
    "on-policy": lambda **more: on_policy(**{"pop": population("PPO"), **more}),
    "language": reasoning,
}
WRONG_TYPES = {
    "pop": (3, "a list"), "callbacks": (3, "a list"), "sinks": (3, "a list"), "resume": (5, "a path"),
    "elite_path": (5, "a path"), "tournament": (3, r"an object with select\(\)"),
    "mutation": (3, r"an object with mutation\(\)"),
}  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", WRONG_TYPES)
def test_arguments_of_the_wrong_type_are_named(name: str, function: str) -> None:
    value, expected = WRONG_TYPES[name]
    with pytest.raises(ConfigError, match=rf"\w+: {name} must be {expected}; got {value}\. fix: {name}="):
        FUNCTIONS[function](**{name: value})


@pytest.mark.parametrize("function", FUNCTIONS)
def test_callbacks_none_and_texts_are_named(function: str) -> None:
    for value in (None, "a"):
        with pytest.raises(ConfigError, match=r"callbacks must be a list; got .*fix: callbacks=\[\.\.\.\]"):
            FUNCTIONS[function](callbacks=value)


@pytest.mark.parametrize("function", ["offline", "off-policy", "on-policy"])
@pytest.mark.parametrize("value", ["a", float("nan"), True], ids=str)
def test_a_target_that_is_no_number_is_named(value: Any, function: str) -> None:
    with pytest.raises(ConfigError, match=r"target must be a number .*; got .*fix: target=None"):
        FUNCTIONS[function](target=value)


@pytest.mark.parametrize("name", ["held_out", "fqe_gamma"])
@pytest.mark.parametrize("value", [None, "a", 0, 1, 2, -1, float("nan"), True], ids=str)
def test_fractions_of_offline_evaluation_are_named(value: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name} must be in \(0, 1\); got .*fix: {name}=0\.\d+"):
        offline(population("CQN"), fitness="fqe", **{name: value})


# -- language ----------------------------------------------------------------------------------------------------------

COUNTS = ("max_steps", "evo_steps", "evaluation_interval", "checkpoint_steps")


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", ["a", 0, -1, 2.5, True], ids=str)
def test_counts_of_language_training_are_named(value: Any, name: str) -> None:
    or_none = "" if name == "evaluation_interval" else " or None"
    with pytest.raises(
        ConfigError, match=rf"reasoning: {name} must be an integer of at least 1{or_none}; got .*fix: {name}=1"
    ):
        reasoning(**{name: value})


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("num_epochs", ["a", 0, -1, True], "num_epochs must be above 0 or None"),
        ("num_epochs", [float("inf")], "num_epochs must be finite or None"),
        ("max_reward", ["a", float("nan"), True], "max_reward must be a number or None"),
        ("evaluation_interval", [None], "evaluation_interval must be an integer"),
    ],
)
def test_numbers_of_language_training_are_named(name: str, values: list[Any], message: str) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=f"finetune_llm_reasoning: {message}.*fix: {name}="):
            reasoning(**{name: value})


def test_env_fn_is_a_function() -> None:
    with pytest.raises(ConfigError, match=r"env_fn must be a function; got 3\. fix: env_fn=lambda"):
        reasoning(env=None, env_fn=3)


OF_GYMS: dict[str, tuple[Any, str, str]] = {
    "reasoning": (finetune_llm_reasoning, "GRPO", "ReasoningGym"),
    "preference": (finetune_llm_preference, "DPO", "PreferenceGym"),
    "sft": (finetune_llm_sft, "SFT", "SFTGym"),
}


@pytest.mark.parametrize("way", ["env", "env_fn"])
@pytest.mark.parametrize(("wanted", "given"), [(a, b) for a in OF_GYMS for b in OF_GYMS if a != b])
def test_the_gym_of_another_function_is_named(wanted: str, given: str, way: str) -> None:
    function, algo, right = OF_GYMS[wanted]
    env = gym(given)
    arguments = {"env": env} if way == "env" else {"env_fn": lambda: env}
    message = rf"{algo} learns from .*, which a {right} has; got {OF_GYMS[given][2]}\. fix: env={right}\("
    with pytest.raises(ConfigError, match=message):
        function(writers(algo), max_steps=4, verbose=False, **arguments)


def test_language_agents_of_several_classes_are_named() -> None:
    with pytest.raises(AlgorithmError, match=r"several classes \(GRPO, LLMREINFORCE\)"):
        reasoning(writers("GRPO") + writers("LLMREINFORCE"))


# -- evolution ---------------------------------------------------------------------------------------------------------


def test_parts_without_a_frequency_are_named() -> None:
    with pytest.raises(ConfigError, match=r"evolution\.frequencies must name one or more.*; got none\. fix: "):
        MultipleFrequencies([], 8, 0)
    more: dict[str, Any] = {"evolution.scheme": "mf_pbt", "evolution.frequencies": []}
    with pytest.raises(ConfigError, match=r"evolution\.frequencies must name one or more"):
        agilerl.train("CartPole-v1", "DQN", population=8, steps=100, verbose=False, out=None, **more)


def test_settings_of_evolution_are_keywords() -> None:
    """A dictionary was taken for True, and its settings ignored."""
    with pytest.raises(ConfigError, match=r"evolution must be True or False; got .*fix: .*evolution\.scheme"):
        agilerl.train("CartPole-v1", "DQN", evolution={"scheme": "halving"}, out=None)  # type: ignore[arg-type]


def test_both_mutation_and_tournament_are_still_taken() -> None:
    evolved = {"tournament": TournamentSelection(2, True, 2, 1), "mutation": Mutations(0.5, 0.2, 0, 0.3, 0, 0.2)}
    trained, _ = off_policy(population("DQN", "DQN"), **evolved)
    assert len(trained) == 2


def test_warnings_of_arguments_name_the_line_of_the_call() -> None:
    errors._warned.discard("no-tournament")
    pop = [DQN(VECTOR, CHOICE, gamma=0.9, batch_size=8) for _ in range(2)]
    arguments = {"mutation": Mutations(1, 0, 0, 0, 0, 0), "elite_path": "elite", "n_step": True, **BUDGET}
    env, memory = make_vect_envs("CartPole-v1", num_envs=2), MultiStepReplayBuffer(100, gamma=0.99)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train_off_policy(env, "CartPole-v1", pop=pop, memory=memory, **arguments)
    texts = ("gamma=0.9", "the same index", "'elite_path' has been defined", "without a tournament")
    assert all(any(text in str(warning.message) for warning in caught) for text in texts)
    assert {warning.filename for warning in caught} == {__file__}
