"""Run by two processes: language policies. Each rank writes what it has seen, `test_language_ranks` compares them.

Usage: language_ranks.py FOLDER, which holds a tiny model in FOLDER/base.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agilerl.algorithms import find_algorithm
from agilerl.algorithms.judging import by_member, own_tokens
from agilerl.checkpoint import digest_tree
from agilerl.engine.adapters import engines_for
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.language.base import load_base
from agilerl.language.generate import PrefixShared, uniform_numbers
from agilerl.language.scoring import Texts
from agilerl.llm_envs import PreferenceGym, ReasoningGym
from agilerl.ranks import ONE, Ranks, joined
from agilerl.training.train_llm import finetune_llm_preference, finetune_llm_reasoning
from tests.differential.language_reference import with_exact_norms

SUMS = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(8) for b in range(8)]
PAIRS = [{"prompt": s["question"], "chosen": "7", "rejected": s["answer"]} for s in SUMS if s["answer"] != "7"]
WRITES = {"group_size": 4, "max_output_tokens": 5, "batch_size": 32, "max_grad_norm": 0.5}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "GRPO": ("GRPO", {"lr": 1e-2, "variant": "dapo", "dynamic_sampling": 0}),
    "GRPO sequence": ("GRPO", {"lr": 1e-2, "beta": 0.1}),
    "LLMREINFORCE": ("LLMREINFORCE", {"lr": 1e-2}),
    "LLMPPO": ("LLMPPO", {"lr_actor": 1e-2, "lr_critic": 1e-2}),
}


def half(texts: Texts, rank: int, size: int) -> Texts:
    rows = texts.tokens.shape[1] // size
    return texts.rows(slice(rank * rows, (rank + 1) * rows))


def gradients(ranks: Ranks, folder: Path) -> dict[str, float]:
    """How far an iteration on halves of what was written ends from one on the whole."""
    base, found = with_exact_norms(load_base(folder / "base", dtype=torch.float64)), {}
    for name, (algo, settings) in CASES.items():
        for learner in ("fused", "sequential"):

            def made(algo: str = algo, settings: dict[str, Any] = settings) -> list[Any]:
                agents = find_algorithm(algo).population(
                    2, actor_network=base, seed=4, lora_config={"r": 4, "lora_alpha": 8}, **{**WRITES, **settings}
                )
                for agent in agents:
                    for each in agent.registry.all_registered():
                        for number, (key, p) in enumerate(getattr(agent, each).tensors().items()):
                            p.data = p.data.double()
                            if "lora_B" in key:
                                generator = torch.Generator().manual_seed(number + agent.index)
                                p.data.normal_(std=0.2, generator=generator)
                    agent.follow_optimizers()
                return agents

            whole, parts = made(), made()
            (engine, *_), _, _ = engines_for(whole, "fused")
            env = ReasoningGym(SUMS[:40], SUMS[40:], base.tokenizer, len, data_batch_size_per_gpu=8)
            prompts = [env.batch(0)] * 2
            numbers = uniform_numbers([np.random.default_rng(s) for s in range(2)], 32, 5)
            with engine.acting("actor") as forward:
                how = [agent.sampling() for agent in whole]
                texts = by_member(PrefixShared().write(base, forward, own_tokens(prompts, base), 4, how, numbers), 2)
            rewards = torch.from_numpy(np.random.default_rng(9).integers(0, 3, (2, 8, 4)).astype(float))
            train(whole, texts, rewards, "fused", ONE)
            own = rewards.view(2, ranks.size, -1, 4)[:, ranks.rank]
            train(parts, half(texts, ranks.rank, ranks.size), own, learner, ranks)
            found[f"{name} {learner}"] = max(differences(whole, parts))
            found[f"{name} {learner} moved"] = min(differences(whole, made()))
    return found


def differences(agents: list[Any], others: list[Any]) -> list[float]:
    """The largest difference of any weight of each member."""
    pairs = [zip(a.actor.parameters(), b.actor.parameters(), strict=True) for a, b in zip(agents, others, strict=True)]
    return [max(float((p - q).detach().abs().max()) for p, q in pair) for pair in pairs]


def train(agents: list[Any], texts: Texts, rewards: torch.Tensor, learner: str, ranks: Ranks) -> None:
    engines, _, _ = engines_for(agents, learner, ranks)
    for engine in engines:
        rows = [agents.index(agent) for agent in engine.agents]
        own = Texts(*(x[rows] for x in (texts.tokens, texts.attention, texts.said)))
        lead = engine.agents[0]
        for batch in lead.arrange(engine, own, rewards[rows], [np.random.default_rng(0) for _ in rows]):
            lead.update(engine, batch)
        engine.release()


def runs(accelerator: Any, folder: Path) -> dict[str, Any]:
    """Whole runs with selection and mutation, saved and gone on with."""
    seen: list[str] = []

    def reward(completion: str, answer: str, question: str) -> float:
        seen.append(question)
        return completion.count("7") / 5

    def population(algo: str) -> list[Any]:
        from agilerl.algorithms.registry import HyperparameterConfig, RLParameter

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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
