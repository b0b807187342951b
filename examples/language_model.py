"""A small language model learns to add from rewards alone: a base that is right now and then, then GRPO on adapters.

Run: python examples/language_model.py [--iterations N] [--out DIR]
Writes: DIR/base (config.json, model.safetensors, tokenizer.json) and DIR/adapter, which names DIR/base as its base.
Needs: pip install "agilerl[llm]"; no network, one core, about two minutes.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from agilerl.algorithms import GRPO
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.language import load_tokenizer, tiny_base, tiny_tokenizer
from agilerl.llm_envs import ReasoningGym
from agilerl.llm_envs.arithmetic import ALPHABET, addition, reward_fn
from agilerl.training.train_llm import finetune_llm_reasoning


def accuracy(model: Any, tokenizer: Any, rows: list[dict[str, str]]) -> float:
    """Share of questions that the most probable answer solves."""
    questions = tokenizer([row["question"] for row in rows], return_tensors="pt", padding=True, padding_side="left")
    written = model.generate(
        input_ids=questions["input_ids"], attention_mask=questions["attention_mask"], max_new_tokens=4, do_sample=False
    )
    said = tokenizer.batch_decode(written[:, questions["input_ids"].shape[1] :], skip_special_tokens=True)
    return sum(text == row["answer"] for text, row in zip(said, rows, strict=True)) / len(rows)


def pretrain(folder: Path, rows: list[dict[str, str]], test: list[dict[str, str]], enough: float = 0.3) -> float:
    """Teach all weights of the model in `folder` by copying until it is right in `enough` of the test questions."""
    tokenizer = load_tokenizer(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    texts = tokenizer(
        [f"{row['question']}{row['answer']}{tokenizer.eos_token}" for row in rows], return_tensors="pt", padding=True
    )
    tokens, there = texts["input_ids"], texts["attention_mask"]
    asked = torch.tensor([len(row["question"]) for row in rows])[:, None] > torch.arange(tokens.shape[1])
    labels = tokens.masked_fill(asked | (there == 0), -100)  # a token a character; questions are not learned
    draws = torch.Generator().manual_seed(0)
    for step in range(1, 1001):
        batch = torch.randint(len(rows), (128,), generator=draws)
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, step / 100)
        loss = model(input_ids=tokens[batch], attention_mask=there[batch], labels=labels[batch]).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0 and (found := accuracy(model, tokenizer, test)) >= enough:
            break
    model.save_pretrained(folder)
    return found


def main(iterations: int = 100, out: str = "additions", enough: float = 0.3) -> None:
    torch.set_num_threads(1)
    folder = Path(out).resolve()
    if (folder / "base").exists():
        raise SystemExit(f"{folder / 'base'} exists already. fix: --out with another folder.")
    # No sum is in two splits. Members are selected on the test questions; the report questions choose nothing.
    train, test, report = addition(digits=2, train_size=8192, test_size=256, report_size=512)
    base = tiny_base(folder / "base", tiny_tokenizer(ALPHABET), hidden_size=96, layers=3, context=128)
    print(f"base      test {pretrain(base, train, test, enough):.2f}")

    # Two members on one frozen base, each with an adapter of its own; evolution looks for their learning rate.
    population = GRPO.population(
        2, model_name=base, seed=0, variant="dapo", lr=7e-4, batch_size=256, group_size=8, temperature=0.5,
        max_grad_norm=1.0, max_output_tokens=4, lora_config={"r": 16, "lora_alpha": 32},
        hp_config=HyperparameterConfig(lr=RLParameter(min=1e-4, max=2e-3)),
    )  # fmt: skip
    gym = ReasoningGym(
        train, test, population[0].base.tokenizer, reward_fn, report_dataset=report, data_batch_size_per_gpu=32
    )
    population = finetune_llm_reasoning(
        population, gym, max_steps=iterations * 32 * len(population), evaluation_interval=20, seed=0,
        tournament=TournamentSelection(2, True, 2, seed=0), mutation=Mutations(0.5, 0, 0, 0, 0, 0.5, rand_seed=0),
    )  # fmt: skip
    best = max(population, key=lambda agent: agent.fitness[-1])
    print(f"learned   test {best.evaluate('test', gym).mean:.2f}   report: {best.evaluate('report', gym)}")
    best.save_pretrained(folder / "adapter")  # adapter_model.safetensors and adapter_config.json, as PEFT reads them
    print(f"saved     {folder / 'base'}, {folder / 'adapter'}")
    print(f"next      agilerl train arithmetic/addition-2 --model {shlex.quote(str(folder / 'base'))}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--out", default="additions", help="folder for base/ and adapter/")
    main(**vars(parser.parse_args()))
