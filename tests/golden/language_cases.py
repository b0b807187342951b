"""Short seeded runs of language algorithms whose results are stored.

Bases and networks are in float64, so that another machine's rounding stays far below the tolerance. Nothing but
published names is imported, so that files can move inside the package without a change here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from cases import NotedMutations, digest, rounded
from structure import sha256_of, structure

from agilerl.algorithms import find_algorithm
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.envs.simulators.wordle import Wordle, wordle_data
from agilerl.hpo.tournament import TournamentSelection
from agilerl.language.base import load_base
from agilerl.language.tiny import tiny_base, tiny_tokenizer
from agilerl.llm_envs import PreferenceGym, ReasoningGym, SFTGym
from agilerl.training.train_llm import finetune_llm_preference, finetune_llm_reasoning, finetune_llm_sft
from agilerl.training.train_offline import train_offline
from agilerl.utils.utils import make_vect_envs

SUMS = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(5) for b in range(5)]
WRITING = {"max_output_tokens": 4, "temperature": 0.9}
LIMITS = {"lr": RLParameter(min=1e-4, max=1e-1), "lr_actor": RLParameter(min=1e-4, max=1e-1),
          "batch_size": RLParameter(min=4, max=16)}  # fmt: skip
COMPLETIONS: dict[str, dict[str, Any]] = {
    "grpo": {"algo": "GRPO", "hp": {**WRITING, "lr": 3e-2, "group_size": 4, "beta": 0.02, "update_epochs": 2}},
    "gspo": {"algo": "GSPO", "hp": {**WRITING, "lr": 3e-2, "group_size": 4}},
    "cispo": {"algo": "CISPO", "hp": {**WRITING, "lr": 3e-2, "group_size": 4, "lr_schedule": "linear"}},
    "llm-ppo": {"algo": "LLMPPO", "hp": {**WRITING, "lr_actor": 3e-2, "lr_critic": 2e-2, "update_epochs": 2}},
    "llm-reinforce": {"algo": "LLMREINFORCE", "hp": {**WRITING, "lr": 3e-2, "beta": 0.02}},
    "dpo": {"algo": "DPO", "hp": {"lr": 1e-2, "beta": 0.2, "nll_alpha": 0.3}},
    "sft": {"algo": "SFT", "hp": {"lr": 3e-2}},
}
TOKENS: dict[str, dict[str, Any]] = {
    "ilql": {"algo": "ILQL", "hp": {"lr": 1e-3, "batch_size": 8, "alpha": 0.1}},
    "bc-lm": {"algo": "BC_LM", "hp": {"lr": 1e-3, "batch_size": 8}},
}
LANGUAGE = {**COMPLETIONS, **TOKENS}
DECODER = {"n_layer": 1, "n_embd": 16, "n_head": 2, "dim_feedfwd": 32}


def reward(completion: str, answer: str, question: str) -> float:
    """An eighth for every character that stands in the answer, and less for each other one."""
    return sum(0.125 if c in answer else -0.0625 for c in completion)


def environment(algo: str, tokenizer: Any) -> Any:
    train, test = SUMS[:20], SUMS[20:]
    if algo == "DPO":
        pairs = [
            {"prompt": s["question"], "chosen": s["answer"], "rejected": s["answer"] + str(k % 7)}
            for k, s in enumerate(SUMS)
        ]
        return PreferenceGym(pairs[:20], pairs[20:], tokenizer, data_batch_size_per_gpu=4)
    if algo == "SFT":
        rows = [{"prompt": s["question"], "completion": s["answer"]} for s in SUMS]
        return SFTGym(rows[:20], rows[20:], tokenizer, data_batch_size_per_gpu=4)
    return ReasoningGym(train, test, tokenizer, reward, data_batch_size_per_gpu=4)


def doubled(agent: Any) -> Any:
    """The agent with networks in float64."""
    for network in agent.evolvable_attributes(networks_only=True).values():
        network.double()
    return agent


def ranges(hp: Mapping[str, Any]) -> HyperparameterConfig:
    return HyperparameterConfig(**{name: LIMITS[name] for name in LIMITS if name in hp})


def completion_run(case: Mapping[str, Any], folder: Path) -> tuple[list[Any], list[list[str]]]:
    """Three members of a language policy through three generations."""
    tiny_base(folder / "base", tiny_tokenizer("0123456789+= "), hidden_size=16, layers=2, heads=2)
    base = load_base(folder / "base", dtype=torch.float64)
    algo, hp = case["algo"], {"batch_size": 8, **case["hp"]}
    population = find_algorithm(algo).population(
        3, actor_network=base, seed=3, lora_config={"r": 2, "lora_alpha": 4}, hp_config=ranges(hp), **hp
    )
    for agent in population:
        for name in agent.registry.all_registered():
            for parameter in getattr(agent, name).parameters():
                parameter.data = parameter.data.double()
        agent.follow_optimizers()
    mutation = NotedMutations(0.2, 0, 0, 0, 0, 0.8, rand_seed=1)
    functions: dict[str, Any] = {"DPO": finetune_llm_preference, "SFT": finetune_llm_sft}
    last = functions.get(algo, finetune_llm_reasoning)(
        population, environment(algo, base.tokenizer), max_steps=6 * 4 * 3, evo_steps=2, evaluation_interval=2,
        tournament=TournamentSelection(2, True, 3, seed=1), mutation=mutation, verbose=False, seed=5,
        resume=folder / "run",
    )  # fmt: skip
    return last, mutation.__dict__.get("noted", [])


def token_run(case: Mapping[str, Any], folder: Path) -> tuple[list[Any], list[list[str]]]:
    """Three members of a policy of tokens through three generations of a data set."""
    env = make_vect_envs(make_env=lambda: Wordle(words=6, tries=2), num_envs=2)
    spaces = env.single_observation_space, env.single_action_space
    hp = case["hp"]
    population = find_algorithm(case["algo"]).population(
        3, *spaces, seed=3, net_config=DECODER, hp_config=ranges(hp), **hp
    )
    mutation = NotedMutations(0.1, 0.3, 0.2, 0.2, 0, 0.4, rand_seed=2)
    last, _ = train_offline(
        env, "Wordle", wordle_data(60, words=6, tries=2, seed=1), pop=[doubled(agent) for agent in population],
        memory=ReplayBuffer(max_size=500, dtype=torch.float64, seed=11), max_steps=90, evo_steps=30, eval_steps=20,
        tournament=TournamentSelection(2, True, 3, seed=11), mutation=mutation, verbose=False, seed=11,
        resume=folder / "run",
    )  # fmt: skip
    env.close()
    return last, mutation.__dict__.get("noted", [])


def without_paths(tree: Any) -> Any:
    """The tree without the places of bases, which other machines have elsewhere."""
    if not isinstance(tree, Mapping):
        return tree
    return {key: None if key == "source" else without_paths(value) for key, value in tree.items()}


def language_curve(name: str, folder: Path) -> tuple[dict[str, Any], list[Any]]:
    """(what is stored of a case, the whole state of every agent); the run is saved in `folder`/run."""
    last, noted = (token_run if name in TOKENS else completion_run)(LANGUAGE[name], folder)
    states = [without_paths(agent.run_state()) for agent in last]
    found = {
        "fitness": [[rounded(float(value)) for value in agent.fitness] for agent in last],
        "labels": [str(agent.mut) for agent in last],
        "mutations": noted,
        "states": [digest(state) for state in states],
        "structure": sha256_of(structure(folder / "run")),
    }
    return found, states
