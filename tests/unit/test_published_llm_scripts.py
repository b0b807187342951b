"""Lines of published language scripts: what they pass is taken with its meaning, or said once to have none here."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agilerl.algorithms import GRPO
from agilerl.language import load_tokenizer
from agilerl.llm_envs import ReasoningGym
from agilerl.training.train_llm import finetune_llm_reasoning
from tests.differential.language_reference import LORA, base, folder

ROWS = [{"question": question, "answer": "7"} for question in ("1+2=", "34+5=", "6=", "77+8=")]


def reward(completion: str, answer: str, question: str) -> float:
    return float(len(completion))


def gym(tokenizer: Any) -> ReasoningGym:
    return ReasoningGym(ROWS, [{"question": "9=", "answer": "9"}], tokenizer, reward, data_batch_size_per_gpu=4)


def test_padding_with_the_end_of_sequence_changes_nothing() -> None:
    """`tokenizer.pad_token = tokenizer.eos_token`, for the environment alone and for both."""
    results = []
    for pad in (None, "<eos>"):
        tokenizer = load_tokenizer(folder())
        if pad is not None:
            tokenizer.pad_token = pad
        agent = GRPO(
            actor_network=base(), lora_config=LORA, seed=0, group_size=4, max_output_tokens=5, batch_size=8, lr=1e-2
        )
        env = gym(tokenizer)
        prompts = env.reset()
        ids, masks = agent.get_action(prompts)
        prompts, rewards = env.step(ids)
        loss = agent.learn((ids, masks, rewards))
        ids, _ = agent.get_action(prompts)
        trained = finetune_llm_reasoning([agent], gym(tokenizer), max_steps=4, verbose=False, seed=0)
        results.append((rewards, loss, torch.cat([x.flatten() for x in ids]), trained[0].fitness))
    (rewards, loss, ids, fitness), (same_rewards, same_loss, same_ids, same_fitness) = results
    assert torch.equal(rewards, same_rewards)
    assert loss == same_loss
    assert torch.equal(ids, same_ids)
    assert fitness == same_fitness
