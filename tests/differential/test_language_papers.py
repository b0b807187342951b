"""Language algorithms from the seed of a run to the weights after 50 updates, against their papers in plain torch.

Runs of the published training functions, with two members that differ in everything that may differ. The reference
(`plain_language`, `plain_policies`) reads the prompts, pairs or examples of each batch and the reward function, draws
its own completions from the same uniform numbers and makes its own updates; its texts and its weights must be the
run's. The base is a decoder of two layers of 16 units in float64.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import plain_policies as plain
import pytest
import torch
from language_reference import with_exact_norms
from plain_language import Adapter, Decoder, Row

from agilerl.algorithms import find_algorithm
from agilerl.core.rng import Purpose, stream
from agilerl.language.base import BaseModel, load_base
from agilerl.language.tiny import tiny_base, tiny_tokenizer
from agilerl.llm_envs import PreferenceGym, ReasoningGym, SFTGym
from agilerl.training.train_llm import finetune_llm_preference, finetune_llm_reasoning, finetune_llm_sft

EXACT, AFTER_FIFTY = 1e-9, 1e-7  # rounding grows by half with every update of PPO: 1e-14 after ten, 4e-9 after fifty
SEED, BATCH, HEADS, LAYERS = 11, 4, 2, 2
LORA = {"r": 3, "lora_alpha": 6}
CHATS = [{"role": "user", "content": "{question}"}]
QUESTIONS = ["1+2=", "3+4=", "3=", "12+34=", "4+4+4=", "21+1=", "14=", "2+2+2+2=", "1=", "3+3+1=", "4=", "31+13="]


@lru_cache(maxsize=3)
def folder(chat: bool, pad_is_end: bool) -> Path:
    """A base; with `chat` its prompts hold an end of text after every message; padding may be the end of text."""
    made = Path(tempfile.mkdtemp(prefix="plain-base-"))
    template = "{% for m in messages %}{{ m['content'] }}<eos>{% endfor %}" if chat else None
    tokenizer = tiny_tokenizer("1234+=", chat_template=template)
    if pad_is_end:
        tokenizer.pad_token = tokenizer.eos_token
    tiny_base(made, tokenizer, hidden_size=16, layers=LAYERS, heads=HEADS)
    return made


@lru_cache(maxsize=3)
def base(chat: bool, pad_is_end: bool) -> BaseModel:
    return with_exact_norms(load_base(folder(chat, pad_is_end), dtype=torch.float64))


def reward(completion: str, answer: str, question: str) -> float:
    """Unlike for most completions; of some questions all are alike."""
    if question == "4+4+4=":
        return 0.5
    return 0.25 * len(completion) - 0.5 * completion.count("+") + sum(map(int, filter(str.isdigit, completion))) / 16


COMMON = {"max_grad_norm": 0.3, "weight_decay": 0.01, "lr_schedule": "linear"}
WRITES = {
    **COMMON, "batch_size": 6, "group_size": 3, "temperature": 0.8, "max_output_tokens": 6, "min_output_tokens": 0,
    "top_k": 0, "top_p": 1.0,
}  # fmt: skip
GRPO = {
    **WRITES, "update_epochs": 2, "lr": 5e-3, "beta": 0.05, "clip_coef": 0.04, "clip_coef_high": 0.04,
    "objective": "clip", "normalisation": "sequence", "adv_norm": "mean_std", "mask_truncated": False,
}  # fmt: skip
PPO = {
    **WRITES, "update_epochs": 2, "group_size": 2, "batch_size": 4, "lr_actor": 5e-3, "lr_critic": 8e-3, "beta": 0.1,
    "gamma": 0.9, "gae_lambda": 0.8, "clip_coef": 0.04, "vf_clip": None, "adv_norm": True, "granularity": "token",
}  # fmt: skip
REINFORCE = {**WRITES, "lr": 5e-3, "beta": 0.05, "gamma": 0.9, "baseline": "batch"}
DPO = {**COMMON, "batch_size": 3, "lr": 5e-3, "beta": 0.3, "nll_alpha": 0.0, "label_smoothing": 0.0}
SFT = {**COMMON, "batch_size": 3, "lr": 5e-3}

Case = tuple[str, dict[str, Any], dict[str, Any]]
CASES: dict[str, Case] = {
    "grpo": ("GRPO", GRPO, {}),
    "grpo, batches larger than what is written": ("GRPO", {**GRPO, "batch_size": 100, "update_epochs": 3}, {}),
    "grpo, cut completions masked": (
        "GRPO", {**GRPO, "mask_truncated": True, "beta": 0.0, "max_output_tokens": 9}, {"chat": True},
    ),
    "dapo": (
        "GRPO", {**GRPO, "normalisation": "token", "clip_coef_high": 0.08, "beta": 0.0, "mask_truncated": True},
        {"pad_is_end": True},
    ),
    "dr. grpo": ("GRPO", {**GRPO, "normalisation": "constant", "adv_norm": "mean_only", "top_k": 6, "top_p": 0.8}, {}),
    "gspo": ("GRPO", {**GRPO, "objective": "sequence", "clip_coef": 0.01, "clip_coef_high": 0.015}, {"chat": True}),
    "cispo": (
        "GRPO", {**GRPO, "objective": "cispo", "normalisation": "token", "clip_coef_high": 0.05, "beta": 0.0},
        {"chat": True, "pad_is_end": True},
    ),
    "ppo": ("LLMPPO", PPO, {}),
    "ppo, clipped values": (
        "LLMPPO", {**PPO, "vf_clip": 0.05, "adv_norm": False, "gamma": 1.0, "max_grad_norm": 0.0}, {"chat": True}
    ),
    "ppo, one epoch, no divergence": (
        "LLMPPO", {**PPO, "beta": 0.0, "update_epochs": 1, "min_output_tokens": 2}, {"pad_is_end": True}
    ),
    "ppo, a completion as one action": ("LLMPPO", {**PPO, "granularity": "turn", "vf_clip": 0.1}, {}),
    "reinforce": ("LLMREINFORCE", REINFORCE, {}),
    "reinforce, rloo": ("LLMREINFORCE", {**REINFORCE, "baseline": "rloo", "beta": 0.0}, {"chat": True}),
    "reinforce, no divergence": (
        "LLMREINFORCE", {**REINFORCE, "beta": 0.0, "top_p": 0.7, "temperature": 0.4}, {"pad_is_end": True}
    ),
    "dpo": ("DPO", DPO, {}),
    "dpo, nll and smoothing": ("DPO", {**DPO, "nll_alpha": 0.5, "label_smoothing": 0.1}, {"chat": True}),
    "sft": ("SFT", SFT, {}),
    "sft, chats": ("SFT", {**SFT, "max_grad_norm": 0.0}, {"chat": True, "pad_is_end": True}),
}  # fmt: skip
OTHER: dict[str, Callable[[Any], Any]] = {  # what the second member has in place of the first one's
    "lr": lambda x: 0.5 * x, "lr_actor": lambda x: 0.5 * x, "lr_critic": lambda x: 2 * x, "beta": lambda x: 2 * x,
    "clip_coef": lambda x: 0.5 * x, "clip_coef_high": lambda x: 1.5 * x, "gamma": lambda x: 0.9 * x,
    "gae_lambda": lambda x: 0.5 * x, "temperature": lambda x: 1.25 * x, "top_p": lambda x: max(0.5, x - 0.1),
    "label_smoothing": lambda x: 2 * x, "nll_alpha": lambda x: 3 * x,
}  # fmt: skip


def member(algo: str, options: dict[str, Any], index: int, where: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """An agent in float64 whose adapters say something from the start, and its options."""
    own = {key: OTHER[key](value) if index and key in OTHER else value for key, value in options.items()}
    agent: Any = find_algorithm(algo)(
        actor_network=base(**where), index=index, seed=index + 3, lora_config=LORA, **own,
        **({"dynamic_sampling": 0} if algo == "GRPO" else {}),
    )  # fmt: skip
    draw = torch.Generator().manual_seed(index)
    for name in agent.registry.all_registered():
        for key, parameter in getattr(agent, name).tensors().items():
            parameter.data = parameter.data.double()
            if "lora_B" in key or key == "value_head":
                parameter.data.normal_(std=0.3, generator=draw)
    for frozen, now in ((agent.reference, agent.actor),) if algo != "SFT" else ():
        for p, q in zip(frozen.parameters(), now.parameters(), strict=True):
            p.data.copy_(q.data)
    agent.follow_optimizers()
    return agent, own


def adapter(network: Any) -> Adapter:
    """By the names of PEFT."""
    return {name.replace("/", "."): value.detach().clone() for name, value in network.tensors().items()}


def environment(algo: str, chat: bool, pad_is_end: bool) -> Any:
    tokenizer = base(chat, pad_is_end).tokenizer
    if algo == "DPO":
        rows = [
            {"prompt": q, "chosen": "".join(map(str, range(1, 1 + len(q) % 4))), "rejected": q[:2] * (1 + k % 2)}
            for k, q in enumerate(QUESTIONS)
        ]
        return PreferenceGym(
            rows,
            [{**rows[0], "question" if algo not in ("DPO", "SFT") else "prompt": "22="}],
            tokenizer,
            BATCH,
            conversation_template=CHATS if chat else None,
        )
    if algo == "SFT":
        rows = [{"prompt": q, "completion": "+34121"[: 1 + k % 5]} for k, q in enumerate(QUESTIONS)]
        return SFTGym(
            rows,
            [{**rows[0], "question" if algo not in ("DPO", "SFT") else "prompt": "22="}],
            tokenizer,
            BATCH,
            conversation_template=CHATS if chat else None,
        )
    rows = [{"question": q, "answer": ""} for q in QUESTIONS]
    return ReasoningGym(
        rows,
        [{**rows[0], "question" if algo not in ("DPO", "SFT") else "prompt": "22="}],
        tokenizer,
        reward,
        CHATS if chat else None,
        BATCH,
    )


TRAIN = {"DPO": finetune_llm_preference, "SFT": finetune_llm_sft}


def steps_of_iteration(algo: str, o: dict[str, Any]) -> int:
    rows = BATCH * o.get("group_size", 1)
    return o.get("update_epochs", 1) * -(-rows // o["batch_size"])


def policies(algo: str, agent: Any, o: dict[str, Any]) -> dict[str, plain.Policy]:
    """The networks of an agent as they are now, to be trained by the reference."""
    found = {"actor": plain.Policy(adapter(agent.actor), o["lr_actor"] if algo == "LLMPPO" else o["lr"], o)}
    return {**found, "critic": plain.Policy(adapter(agent.critic), o["lr_critic"], o)} if algo == "LLMPPO" else found


def reference(
    algo: str, agent: Any, o: dict[str, Any], where: dict[str, Any], slot: int, iterations: int
) -> dict[str, plain.Policy]:
    """The networks of one member of two after `iterations`."""
    env, tokenizer = environment(algo, **where), base(**where).tokenizer
    decoder = Decoder(folder(**where), LAYERS, HEADS, LORA["lora_alpha"] / LORA["r"])
    networks = policies(algo, agent, o)
    rng, steps = stream(SEED, Purpose.WRITING, 0, slot), 0
    for iteration in range(iterations):
        items, progress = env.batch(2 * iteration + slot), iteration / iterations
        if algo == "DPO":
            pairs = [(Row.of(x.prompt, x.chosen), Row.of(x.prompt, x.rejected)) for x in items]
            steps += plain.dpo(decoder, networks["actor"], pairs, progress, o)
        elif algo == "SFT":
            rows = [Row.of(x.prompt, x.completion) for x in items]
            steps += plain.sft(decoder, networks["actor"], rows, progress, o)
        else:
            rows = written(decoder, networks["actor"], items, rng, o, tokenizer.eos_token_id)
            rewards = scored(rows, items, o["group_size"], tokenizer)
            steps += learn(algo, decoder, networks, rows, rewards, rng, progress, o)
    assert steps >= iterations * 0.3 * steps_of_iteration(algo, o)
    return networks


def written(
    decoder: Decoder, policy: plain.Policy, items: list[Any], rng: np.random.Generator, o: dict[str, Any], end: int
) -> list[Row]:
    """A group of completions of each prompt."""
    prompts = [x.tokens for x in items for _ in range(o["group_size"])]
    numbers = rng.random((len(prompts), o["max_output_tokens"]))
    how = {name: o[name] for name in ("temperature", "top_k", "top_p")}
    return decoder.write(policy.now, prompts, numbers, end, least=o["min_output_tokens"], **how)


def learn(
    algo: str, decoder: Decoder, networks: dict[str, plain.Policy], rows: list[Row], rewards: np.ndarray,
    rng: np.random.Generator, progress: float, o: dict[str, Any],
) -> int:  # fmt: skip
    """All updates of an iteration of an algorithm that writes; how many there were."""
    policy = networks["actor"]
    if algo == "LLMPPO":  # the reward of a completion is for its last token
        by_token = [[0.0] * (len(row.completion) - 1) + [r] for row, r in zip(rows, rewards.flatten(), strict=True)]
        return plain.ppo(decoder, policy, networks["critic"], rows, by_token, rng, progress, o)
    update = plain.grpo if algo == "GRPO" else plain.reinforce
    return update(decoder, policy, rows, rewards, rng, progress, o)


def scored(rows: list[Row], items: list[Any], group: int, tokenizer: Any) -> np.ndarray:
    """Rewards [B, G] of what stands before the end."""
    end = tokenizer.eos_token_id
    words = [
        tokenizer.decode([token for token in row.completion if token != end], skip_special_tokens=True) for row in rows
    ]
    found = [reward(word, "", items[k // group].question) for k, word in enumerate(words)]
    return np.reshape(found, (len(items), group))


WHOLE = ("grpo", "dapo", "ppo", "reinforce", "dpo", "sft")  # over fifty updates


@pytest.mark.parametrize(("case", "updates"), [*((case, 10) for case in CASES), *((case, 50) for case in WHOLE)])
def test_a_run_ends_with_the_weights_of_the_paper(case: str, updates: int) -> None:
    algo, options, where = CASES[case]
    where = {"chat": False, "pad_is_end": False, **where}
    made = [member(algo, options, index, where) for index in range(2)]
    agents = [agent for agent, _ in made]
    iterations = -(-updates // steps_of_iteration(algo, options))
    expected = [reference(algo, agent, own, where, slot, iterations) for slot, (agent, own) in enumerate(made)]
    TRAIN.get(algo, finetune_llm_reasoning)(
        agents, environment(algo, **where), max_steps=iterations * BATCH * 2, evaluation_interval=iterations,
        verbose=False, seed=SEED, learner="sequential" if updates == 50 else "fused",
    )  # fmt: skip
    for agent, networks in zip(agents, expected, strict=True):
        compare(agent, networks, AFTER_FIFTY if updates == 50 else EXACT)


def compare(agent: Any, networks: dict[str, plain.Policy], tolerance: float = EXACT) -> None:
    for name, network in networks.items():
        for key, value in adapter(getattr(agent, name)).items():
            torch.testing.assert_close(
                value, network.now[key], rtol=tolerance, atol=tolerance, msg=lambda m, k=key: f"{k}: {m}"
            )
            assert float((network.now[key] - network.first[key]).abs().max()) > 1e-3, "everything moves"


@pytest.mark.parametrize("algo", ["GRPO", "LLMPPO", "LLMREINFORCE"])
def test_the_published_loop_ends_with_the_weights_of_the_paper(algo: str) -> None:
    """`get_action`, `step` and `learn`: completions of several lengths are laid out anew, with their masks."""
    where = {"chat": True, "pad_is_end": True}
    agent, o = member(algo, CASES[{"GRPO": "grpo", "LLMPPO": "ppo", "LLMREINFORCE": "reinforce"}[algo]][1], 0, where)
    o |= {"lr_schedule": "constant"}
    env, tokenizer = environment(algo, **where), base(**where).tokenizer
    decoder = Decoder(folder(**where), LAYERS, HEADS, LORA["lora_alpha"] / LORA["r"])
    networks = policies(algo, agent, o)
    prompts = env.reset()
    for number in range(3):
        items = env.batch(number)
        rows = written(decoder, networks["actor"], items, agent.rng(number), o, tokenizer.eos_token_id)
        tokens, masks = agent.get_action(prompts)
        for k, (text, mask) in enumerate(zip(torch.cat(tokens), torch.cat(masks), strict=True)):
            assert text[1:][mask].tolist() == rows[k].completion
        # Without the columns that no completion of the prompt needs, as environments of one's own may hand them over.
        last = [int(mask.any(0).nonzero().max()) + 1 for mask in masks]
        prompts, rewards = env.step(tokens)
        tokens, masks = (
            [x[:, : n + extra] for x, n in zip(own, last, strict=True)] for own, extra in ((tokens, 1), (masks, 0))
        )
        agent.learn((tokens, masks, rewards))
        expected = scored(rows, items, o["group_size"], tokenizer)
        np.testing.assert_array_equal(rewards.numpy(), expected)
        learn(algo, decoder, networks, rows, expected, agent.rng(number), 0.0, o)
    compare(agent, networks)
