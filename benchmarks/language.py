"""A small language model learns additions from rewards, on a CPU. One line a run in `results/language.jsonl`.

    python benchmarks/language.py --seeds 0-4            # what is missing
    python benchmarks/language.py --seeds 1000 --arms grpo
    python benchmarks/language.py --table

A Llama of three layers of 96 units is trained in process, all of its weights, on sums of two numbers below 100 until it
first answers 30 % of the test questions (every tenth update is tested): the start of a seed. From there, on adapters:

* grpo: rewards for right answers alone, one run with hand-tuned settings (tuned on seed 1000);
* sft: further supervised training on the same questions for as many CPU seconds as grpo took, settings tuned likewise;
* population: four members with learning rates spread evenly in their logarithm over two decades, evolved and halved:
  after the first generation two go on, the one with the highest rate of those that are not behind for certain
  (`Patient`) and a copy of it whose rate has mutated; after the second the fitter one alone, to which all steps are
  left. At most 1.5 times grpo's CPU seconds. The answer is the fittest one at the end.

Training, test and report questions are disjoint; a sum and the same sum with its terms exchanged count as two. Scores
are greedy accuracies on the 512 report questions, which choose nothing. CPU seconds are those of the process, with all
evaluations on the 256 test questions.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from runner import RESULTS, package_commit, read_lines, run_jobs, seed_range
from torch.nn import functional

from agilerl.algorithms.base.registry import HyperparameterConfig, RLParameter
from agilerl.algorithms.grpo import GRPO
from agilerl.algorithms.sft import SFT
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.language.algorithms.scoring import flatten_turns, rewards_of
from agilerl.language.base import BaseModel, load_base
from agilerl.language.engines import SequentialAdapters
from agilerl.language.generate import PrefixShared, Sampling
from agilerl.language.padding import pad_left, positions_of
from agilerl.language.tiny import tiny_tokenizer
from agilerl.llm_envs import ReasoningGym, SFTGym
from agilerl.training.train_llm import finetune_llm_reasoning, finetune_llm_sft

PATH = RESULTS / "language.jsonl"
STARTS = Path(os.environ.get("AGILERL_DATA", Path(__file__).parent / "data"))
LEVEL, BELOW, TEST, REPORT = 0.30, 100, 256, 512
LORA = {"r": 16, "lora_alpha": 32}
WRITING = {"variant": "dapo", "group_size": 8, "temperature": 0.5, "max_output_tokens": 4, "max_grad_norm": 1.0,
           "dynamic_sampling": 0}  # fmt: skip
GRPO_SETTINGS = {"lr": 1e-3, "lr_schedule": "linear", "prompts": 64, "iterations": 800}
SFT_SETTINGS = {"lr": 1e-3, "examples": 128}
POPULATION = {"lr": (1e-4, 1e-2), "lr_schedule": "linear", "prompts": 64, "iterations": 1100, "interval": 25,
              "share": 1.5, "members": {0: 4, 1: 2, 2: 1}}  # fmt: skip


def questions(seed: int) -> dict[str, list[dict[str, str]]]:
    """The splits of a seed."""
    order = np.random.default_rng(seed).permutation(BELOW * BELOW)
    rows = [{"question": f"{n // BELOW}+{n % BELOW}=", "answer": str(n // BELOW + n % BELOW)} for n in order.tolist()]
    return {"test": rows[:TEST], "report": rows[TEST : TEST + REPORT], "train": rows[TEST + REPORT :]}


def right(completion: str, answer: str, question: str) -> float:
    """1 for the right sum."""
    return float(completion == answer)


def start(seed: int) -> Path:
    """The folder of a model that answers about `LEVEL` of the test questions; made where it is not there yet."""
    folder = STARTS / f"additions-seed{seed}"
    if (folder / "start.json").exists():
        return folder
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer, splits, begun = tiny_tokenizer("0123456789+="), questions(seed), time.process_time()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=96, intermediate_size=288, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=64, pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, tie_word_embeddings=False,
    )  # fmt: skip
    model, rng = LlamaForCausalLM(config), np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    base = BaseModel(model, tokenizer)

    def encoded(text: str) -> list[int]:
        found: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return found

    prompts = [encoded(row["question"]) for row in splits["train"]]
    answers = [[*encoded(row["answer"]), tokenizer.eos_token_id] for row in splits["train"]]
    history: list[float] = []
    while not history or history[-1] < LEVEL:
        for step in range(10):
            for group in optimizer.param_groups:
                group["lr"] = 2e-3 * min(1, (10 * len(history) + step + 1) / 100)
            rows = rng.integers(0, len(prompts), 128).tolist()
            texts = flatten_turns([prompts[i] for i in rows], [answers[i] for i in rows], base)
            model.requires_grad_(True)
            logits = model(
                input_ids=texts.tokens, attention_mask=texts.attention.long(),
                position_ids=positions_of(texts.attention),
            ).logits[:, texts.prompt - 1 : -1]  # fmt: skip
            loss = functional.cross_entropy(logits[texts.said], texts.tokens[:, texts.prompt :][texts.said])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        given = pad_left([encoded(row["question"]) for row in splits["test"]], tokenizer.pad_token_id, "cpu")
        written = PrefixShared().write(base, base.plain, given, 1, [Sampling(max_tokens=4)], None)
        said = [tokenizer.decode(row, skip_special_tokens=True) for row in written.tokens[:, written.prompt :]]
        history.append(float(np.mean([a == row["answer"] for a, row in zip(said, splits["test"], strict=True)])))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    facts = {"history": history, "updates": 10 * len(history), "cpu_seconds": time.process_time() - begun}
    (folder / "start.json").write_text(json.dumps(facts), encoding="utf-8")
    return folder


def gym(base: BaseModel, seed: int, prompts: int) -> ReasoningGym:
    """The questions of a seed."""
    splits = questions(seed)
    return ReasoningGym(
        splits["train"], splits["test"], base.tokenizer, right, data_batch_size_per_gpu=prompts, seed=seed,
        report_dataset=splits["report"],
    )  # fmt: skip


def accuracy(agent: Any, env: ReasoningGym, split: str) -> float:
    """Share of a split's questions that the most probable completion answers."""
    return float(rewards_of([SequentialAdapters(agent)], [agent], [env], split)[0].mean())


class Clock:
    """A callback that notes CPU seconds and fitness, and stops a run once it has had its time."""

    def __init__(self, most: float | None = None) -> None:
        self.begun, self.most = time.process_time(), most
        self.history: list[list[float]] = []

    @property
    def spent(self) -> float:
        return time.process_time() - self.begun

    def __call__(self, record: Any) -> bool:
        rates = [float(member.hyperparameters["lr"]) for member in record.members]
        fitness = [round(float(member.fitness), 4) for member in record.members]
        self.history.append([round(self.spent, 1), *fitness, *rates])
        return self.most is None or self.spent < self.most


def run_grpo(base: BaseModel, seed: int, budget: float | None) -> tuple[Any, Clock, ReasoningGym]:
    own = GRPO_SETTINGS
    env, clock = gym(base, seed, int(own["prompts"])), Clock()
    agents = GRPO.population(
        1,
        seed=seed,
        actor_network=base,
        lora_config=LORA,
        lr=own["lr"],
        lr_schedule=own["lr_schedule"],
        batch_size=8 * int(own["prompts"]),
        **WRITING,
    )
    found = finetune_llm_reasoning(
        agents, env, max_steps=int(own["iterations"]) * int(own["prompts"]), evaluation_interval=25, verbose=False,
        seed=seed, callbacks=[clock],
    )  # fmt: skip
    return found[0], clock, env


def run_sft(base: BaseModel, seed: int, budget: float | None) -> tuple[Any, Clock, ReasoningGym]:
    splits, own, clock = questions(seed), SFT_SETTINGS, Clock(budget)
    env = SFTGym(
        splits["train"], splits["test"], base.tokenizer, data_batch_size_per_gpu=int(own["examples"]), seed=seed,
        prompt_column="question", completion_column="answer",
    )  # fmt: skip
    agents = SFT.population(
        1, seed=seed, actor_network=base, lora_config=LORA, lr=own["lr"], batch_size=int(own["examples"])
    )
    found = finetune_llm_sft(
        agents, env, max_steps=10**7, evaluation_interval=20, verbose=False, seed=seed, callbacks=[clock]
    )
    return found[0], clock, gym(base, seed, 32)


class Patient(TournamentSelection):
    """Among members that share no parent, the highest learning rate that is not behind for certain.

    What counts is the end of the run, and over few steps low rates look better than they are: Wu et al. 2018
    (arXiv:1803.02021) call it short-horizon bias. Behind for certain is a share of right answers that lies more than
    three standard errors of the difference below the best one's. Members of one family are told apart by fitness.
    """

    def select(self, population: Any) -> Any:
        if len(population) > 2:
            shares = np.array([self.fitness_of(agent) for agent in population])
            errors = np.sqrt(shares * (1 - shares) / TEST)
            behind = shares.max() - shares > 3 * np.hypot(errors, errors[shares.argmax()])
            able = [agent for agent, late in zip(population, behind.tolist(), strict=True) if not late]
            population = [max(able, key=lambda agent: agent.lr)]
        return super().select(population)


def run_population(base: BaseModel, seed: int, budget: float | None) -> tuple[Any, Clock, ReasoningGym]:
    own = POPULATION
    sizes: dict[int, int] = own["members"]  # type: ignore[assignment]
    members, prompts, (low, high) = sizes[0], int(own["prompts"]), own["lr"]  # type: ignore[call-overload, misc]
    assert budget is not None
    env, clock = gym(base, seed, prompts), Clock(own["share"] * budget * 0.97)  # type: ignore[operator]  # a generation is 3 % of it
    tournament = Patient(2, True, sizes[1], seed=seed)

    def halve(record: Any) -> None:
        tournament.population_size = sizes.get(record.generation + 2, tournament.population_size)

    limits = HyperparameterConfig(lr=RLParameter(min=low, max=high, shrink_factor=0.6, grow_factor=1.6))
    agents = GRPO.population(
        members, seed=seed, actor_network=base, lora_config=LORA, batch_size=8 * prompts, hp_config=limits,
        lr_schedule=own["lr_schedule"], **WRITING,
    )  # fmt: skip
    for agent, lr in zip(agents, np.geomspace(low, high, members), strict=True):
        agent.lr = float(lr)
    found = finetune_llm_reasoning(
        agents, env, max_steps=int(own["iterations"]) * prompts * members,  # type: ignore[call-overload]
        evaluation_interval=int(own["interval"]), verbose=False, seed=seed,  # type: ignore[call-overload]
        callbacks=[clock, halve], tournament=tournament,
        mutation=Mutations(0.0, 0, 0, 0, 0, 1.0, mutate_elite=False, rand_seed=seed),
    )  # fmt: skip
    return max(found, key=lambda agent: agent.fitness[-1]), clock, env


ARMS = {"grpo": run_grpo, "sft": run_sft, "population": run_population}


def job(key: dict[str, Any]) -> dict[str, Any]:
    """One run of one arm."""
    torch.set_num_threads(1)
    arm, seed = key["arm"], int(key["seed"])
    folder = start(seed)
    base = load_base(folder)
    budget = None
    if arm != "grpo":
        (line,) = [x for x in read_lines(PATH) if x["key"] == {**key, "arm": "grpo"}]
        budget = float(line["cpu_seconds"])
    before = GRPO(actor_network=base, seed=seed, lora_config=LORA, max_output_tokens=4)
    env = gym(base, seed, 32)
    known = {split: accuracy(before, env, split) for split in ("test", "report")}
    agent, clock, env = ARMS[arm](base, seed, budget)
    spent = clock.spent
    judge = agent if arm != "sft" else _as_writer(agent)
    return {
        "key": key, "commit": package_commit(), "start": known, "cpu_seconds": round(spent, 1),
        "start_facts": json.loads((folder / "start.json").read_text(encoding="utf-8")),
        "test": accuracy(judge, env, "test"), "report": accuracy(judge, env, "report"), "history": clock.history,
        "settings": {"lora": LORA, "writing": WRITING, "grpo": GRPO_SETTINGS, "sft": SFT_SETTINGS,
                     "population": POPULATION},
    }  # fmt: skip


def _as_writer(agent: Any) -> GRPO:
    """An agent that writes with another one's adapter."""
    return GRPO(actor_network=agent.actor, seed=0, max_output_tokens=4)


def table() -> None:
    """A line for each seed, all of them, as Markdown."""
    lines = read_lines(PATH)
    print("| seed | start | GRPO | CPU s | SFT, equal CPU s | population | CPU s |\n|---|---|---|---|---|---|---|")
    for seed in sorted({line["key"]["seed"] for line in lines}):
        own = {line["key"]["arm"]: line for line in lines if line["key"]["seed"] == seed}
        cells = [f"{own['grpo']['start']['report']:.3f}"]
        for arm, seconds in (("grpo", True), ("sft", False), ("population", True)):
            cells.append(f"{own[arm]['report']:.3f}" if arm in own else "")
            cells += [f"{own[arm]['cpu_seconds']:.0f}" if arm in own else ""] if seconds else []
        print("| " + " | ".join([str(seed), *cells]) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--arms", default="grpo,sft,population")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--job")
    asked = parser.parse_args()
    if asked.job:
        print(json.dumps(job(json.loads(asked.job)["key"])))
    elif asked.table:
        table()
    else:
        for arm in asked.arms.split(","):  # the others need to know how long grpo took
            jobs = [{"key": {"arm": arm, "seed": seed}} for seed in seed_range(asked.seeds)]
            run_jobs(str(Path(__file__)), PATH, jobs, asked.workers)


if __name__ == "__main__":
    sys.exit(main())
