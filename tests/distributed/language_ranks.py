"""What two ranks do with language policies; `base` in their folder is a tiny model. See `test_language_ranks`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agilerl.algorithms import find_algorithm
from agilerl.core.checkpoint import digest_tree
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.language.algorithms.scoring import by_member, example_texts, own_tokens, pair_texts
from agilerl.language.base import load_base
from agilerl.language.engines import engines_for
from agilerl.language.generate import PrefixShared, uniform_numbers
from agilerl.language.scoring import Texts
from agilerl.llm_envs import PreferenceGym, ReasoningGym, SFTGym
from agilerl.ranks import ONE, Ranks, joined
from agilerl.training.train_llm import finetune_llm_preference, finetune_llm_reasoning
from tests.differential.language_reference import with_exact_norms

SUMS = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(8) for b in range(8)]
PAIRS = [{"prompt": s["question"], "chosen": "7", "rejected": s["answer"]} for s in SUMS if s["answer"] != "7"]
WRITES = {"group_size": 4, "max_output_tokens": 5, "batch_size": 32, "max_grad_norm": 0.5}
STEPS: dict[str, Any] = {"batch_size": 8, "update_epochs": 2, "clip_coef": 0.05}  # eight steps of 32 completions
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "GRPO": ("GRPO", {"variant": "dapo", "dynamic_sampling": 0}),
    "GRPO sequence": ("GRPO", {"beta": 0.1}),
    "GRPO steps": ("GRPO", {**STEPS, "beta": 0.1}),
    "GRPO epochs over all at once": ("GRPO", {**STEPS, "batch_size": 32}),
    "GRPO cut completions masked": ("GRPO", {**STEPS, "beta": 0.1, "mask_truncated": True}),
    "GRPO cut completions masked, constant": ("GRPO", {**STEPS, "variant": "dr_grpo", "mask_truncated": True}),
    "GSPO steps": ("GRPO", {**STEPS, "variant": "gspo"}),
    "CISPO steps": ("GRPO", {**STEPS, "variant": "cispo", "clip_coef_high": 0.02}),
    "LLMREINFORCE": ("LLMREINFORCE", {"batch_size": 8}),
    "LLMREINFORCE rloo": ("LLMREINFORCE", {"batch_size": 8, "baseline": "rloo", "beta": 0.0}),
    "LLMPPO": ("LLMPPO", {**STEPS, "lr_actor": 1e-2, "lr_critic": 1e-2}),
    "LLMPPO turns": ("LLMPPO", {**STEPS, "granularity": "turn", "vf_clip": 0.05}),
    "DPO": ("DPO", {"batch_size": 4, "nll_alpha": 0.5}),
    "SFT": ("SFT", {"batch_size": 4}),
}
BATCH_ROWS = {"DPO": 8, "SFT": 4}
RATES = {"LLMPPO": {"lr_actor": 1e-2, "lr_critic": 1e-2}}


class Merged:
    """For one process, the orders in which two ranks learn from their halves: batch by batch that of both."""

    def __init__(self, seed: int, batch_size: int) -> None:
        self.rngs, self.size = [np.random.default_rng((seed, rank)) for rank in range(2)], batch_size // 2

    def permutation(self, rows: int) -> np.ndarray:
        own = [rank * rows // 2 + rng.permutation(rows // 2) for rank, rng in enumerate(self.rngs)]
        firsts = range(0, rows // 2, self.size)
        return np.concatenate([part[first : first + self.size] for first in firsts for part in own])


def half(texts: Texts, ranks: Ranks, batch_rows: int | None) -> Texts:
    """One half of all rows; with `batch_rows` of every batch of so many, where batches follow the order of rows."""
    rows = texts.tokens.shape[1]
    place = torch.arange(rows) % (batch_rows or rows) * ranks.size // (batch_rows or rows)
    return texts.rows(torch.arange(rows)[place == ranks.rank])


def made(base: Any, algo: str, settings: dict[str, Any]) -> list[Any]:
    """Two members in float64, whose adapters say something."""
    usual = WRITES if algo not in ("DPO", "SFT") else {"max_grad_norm": 0.5}
    rates = RATES.get(algo, {"lr": 1e-2})
    agents = find_algorithm(algo).population(
        2, actor_network=base, seed=4, lora_config={"r": 4, "lora_alpha": 8}, **{**usual, **rates, **settings}
    )
    for agent in agents:
        for each in agent.registry.all_registered():
            for number, (key, p) in enumerate(getattr(agent, each).tensors().items()):
                p.data = p.data.double()
                if "lora_B" in key or key == "value_head":
                    generator = torch.Generator().manual_seed(number + agent.index)
                    p.data.normal_(std=0.2, generator=generator)
        agent.follow_optimizers()
    return agents


def texts_of(algo: str, agents: list[Any], base: Any) -> Texts:
    """32 completions of each member, or 16 pairs, or 32 examples, of several lengths."""
    if algo == "DPO":
        gym: Any = PreferenceGym(PAIRS[:40], PAIRS[40:], base.tokenizer, 16)
        return pair_texts([gym.batch(number) for number in range(2)], base)
    if algo == "SFT":
        rows = [{"prompt": s["question"], "completion": s["answer"]} for s in SUMS]
        gym = SFTGym(rows[:48], rows[48:], base.tokenizer, 32)
        return example_texts([gym.batch(number) for number in range(2)], base)
    (engine, *_), _, _ = engines_for(agents, "fused")
    env = ReasoningGym(SUMS[:40], SUMS[40:], base.tokenizer, len, data_batch_size_per_gpu=8)
    numbers = uniform_numbers([np.random.default_rng(s) for s in range(2)], 32, agents[0].max_output_tokens)
    with engine.acting("actor") as forward:
        how = [agent.sampling() for agent in agents]
        prompts = own_tokens([env.batch(0)] * 2, base)
        return by_member(PrefixShared().write(base, forward, prompts, 4, how, numbers), 2)


def gradients(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """How far an iteration of several steps on halves of what was written ends from one on the whole."""
    base, found = with_exact_norms(load_base(folder / "base", dtype=torch.float64)), {}
    for name, (algo, settings) in CASES.items():
        whole = made(base, algo, settings)
        texts = texts_of(algo, whole, base)
        rewards = torch.from_numpy(np.random.default_rng(9).integers(0, 3, (2, 8, 4)).astype(float))
        merged = [Merged(number, whole[0].batch_size) for number in range(2)]
        steps = train(whole, texts, rewards, "fused", ONE, merged)
        for learner in ("fused", "sequential"):
            parts = made(base, algo, settings)
            own = rewards.view(2, ranks.size, -1, 4)[:, ranks.rank]
            rngs = [np.random.default_rng((number, ranks.rank)) for number in range(2)]
            train(parts, half(texts, ranks, BATCH_ROWS.get(algo)), own, learner, ranks, rngs)
            found[f"{name} {learner}"] = max(differences(whole, parts))
        found[f"{name} moved"] = min(differences(whole, made(base, algo, settings)))
        found[f"{name} steps"] = steps
    return found


def differences(agents: list[Any], others: list[Any]) -> list[float]:
    """The largest difference of any weight of each network that learns, of each member."""
    found = []
    for a, b in zip(agents, others, strict=True):
        for name in a.evaluation_networks():
            pairs = zip(getattr(a, name).parameters(), getattr(b, name).parameters(), strict=True)
            found.append(max(float((p - q).detach().abs().max()) for p, q in pairs))
    return found


def train(agents: list[Any], texts: Texts, rewards: torch.Tensor, learner: str, ranks: Ranks, rngs: list[Any]) -> int:
    """One iteration; how many optimiser steps the first engine made."""
    engines, _, _ = engines_for(agents, learner, ranks)
    steps = 0
    for engine in engines:
        rows = [agents.index(agent) for agent in engine.agents]
        own = Texts(*(x[rows] for x in (texts.tokens, texts.attention, texts.completion_mask)))
        lead = engine.agents[0]
        for batch in lead.arrange(engine, own, rewards[rows], [rngs[row] for row in rows]):
            lead.update(engine, batch)
            steps += engine is engines[0]
        engine.release()
    return steps


def runs(accelerator: Any, folder: Path) -> dict[str, Any]:
    """Whole runs with selection and mutation, saved and gone on with."""
    seen: list[str] = []

    def reward(completion: str, answer: str, question: str) -> float:
        seen.append(question)
        return completion.count("7") / 5

    def population(algo: str) -> list[Any]:
        from agilerl.algorithms.base.registry import HyperparameterConfig, RLParameter

        more = WRITES if algo == "GRPO" else {"batch_size": 8}
        limits = HyperparameterConfig(lr=RLParameter(min=1e-4, max=1e-1))
        found: list[Any] = find_algorithm(algo).population(
            2,
            model_name=folder / "base",
            seed=4,
            lora_config={"r": 4, "lora_alpha": 8},
            lr=5e-3,
            hp_config=limits,
            **more,
        )
        return found

    def run(algo: str, stop: int | None = None, resume: Path | None = None) -> list[str]:
        agents = population(algo)
        tokenizer = agents[0].base.tokenizer
        if algo == "GRPO":
            env: Any = ReasoningGym(SUMS[:48], SUMS[48:], tokenizer, reward, data_batch_size_per_gpu=4)
        else:
            env = PreferenceGym(PAIRS[:40], PAIRS[40:], tokenizer, data_batch_size_per_gpu=4)
        function = finetune_llm_reasoning if algo == "GRPO" else finetune_llm_preference
        hook = (lambda record: record.generation + 1 < stop) if stop else (lambda record: True)
        found = function(
            agents, env, max_steps=8 * 2 * 6, evaluation_interval=2, verbose=False, seed=5, accelerator=accelerator,
            tournament=TournamentSelection(2, True, 2, seed=1), resume=resume, callbacks=[hook],
            mutation=Mutations(0.3, 0, 0, 0, 0, 0.7, rand_seed=1),
        )  # fmt: skip
        return [digest_tree({k: v for k, v in agent.state().items() if k != "attributes"}) for agent in found]

    found: dict[str, Any] = {"GRPO": run("GRPO"), "asked": sorted(set(seen)), "DPO": run("DPO")}
    run("GRPO", stop=1, resume=folder / "run")
    found["resumed"] = run("GRPO", resume=folder / "run")
    return found


def main(folder: Path) -> None:
    from accelerate import Accelerator  # here, so that tests can read this file without it

    accelerator = Accelerator()
    torch.set_num_threads(1)
    with joined(accelerator) as ranks:
        found: dict[str, Any] = {"gradients": gradients(ranks, folder)}
    found["runs"] = runs(accelerator, folder)
    (folder / f"rank-{accelerator.process_index}.json").write_text(json.dumps(found))
