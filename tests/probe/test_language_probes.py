"""Language probes: a tiny model earns the scores that are known, and says the best completions."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from agilerl.algorithms import find_algorithm
from agilerl.errors import AgileRLWarning, ConfigError
from agilerl.language.base import load_base
from agilerl.language.tiny import tiny_base, tiny_tokenizer
from agilerl.llm_envs import ReasoningGym
from agilerl.testing import LANGUAGE_PROBES, LanguageProbe, language_probe
from agilerl.training.train_llm import finetune_llm_reasoning

UPDATES = 20


def trained(algo: str, probe: LanguageProbe, folder: Path) -> tuple[Any, ReasoningGym, dict[str, torch.Tensor]]:
    """(agent after `UPDATES` batches, its gym, its adapter before)."""
    tiny_base(folder, tiny_tokenizer(probe.alphabet), hidden_size=32, layers=1, heads=2, seed=1)
    base = load_base(folder)
    agent = find_algorithm(algo)(
        actor_network=base, lora_config={"r": 8, "lora_alpha": 16}, seed=0, group_size=8, batch_size=32, lr=3e-2,
        beta=0.0, max_output_tokens=probe.tokens, min_output_tokens=probe.tokens,
    )  # fmt: skip
    before = {name: value.clone() for name, value in agent.actor.adapter().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AgileRLWarning)  # prompts in both splits; equal rewards
        gym = ReasoningGym(**probe.gym(base.tokenizer))
        count = len(gym.split("train"))
        (agent,) = finetune_llm_reasoning(
            [agent], gym, max_steps=UPDATES * count, evaluation_interval=UPDATES, verbose=False, seed=0
        )
    return agent, gym, before


def completions(agent: Any, gym: ReasoningGym) -> dict[str, str]:
    """Question -> greedy completion."""
    prompts = gym.reset(reset_dataloaders=True)
    ids, _ = agent.get_action(prompts, training=False)
    gym.step(ids)
    return {prompt["text"]: texts[0] for prompt, texts in zip(prompts, gym.completions, strict=True)}


@pytest.mark.parametrize("name", ["token", "prompt", "credit"])
@pytest.mark.parametrize("algo", ["GRPO", "GSPO", "CISPO", "LLMREINFORCE"])
def test_the_best_completions_are_learned(algo: str, name: str, tmp_path: Path) -> None:
    probe = language_probe(name)
    agent, gym, _ = trained(algo, probe, tmp_path)
    said = completions(agent, gym)
    assert said.keys() == set(probe.questions)
    probe.check(said.__getitem__)
    assert probe.score(said.__getitem__) == agent.test(gym) == probe.best_score == 1.0


@pytest.mark.parametrize("algo", ["GRPO", "LLMREINFORCE"])
def test_equal_rewards_change_no_weight(algo: str, tmp_path: Path) -> None:
    agent, gym, before = trained(algo, language_probe("constant"), tmp_path)
    assert agent.test(gym) == 1.0
    for name, value in agent.actor.adapter().items():
        assert torch.equal(value, before[name])


def test_scores_of_uniform_letters_are_as_stated() -> None:
    for probe in LANGUAGE_PROBES.values():
        texts = ["a", "b", "c", "d"]
        if probe.tokens == 2:
            texts = [first + second for first in texts for second in texts]
        scores = [probe.score(lambda question, text=text: text) for text in texts]
        assert sum(scores) / len(scores) == probe.uniform_score


def test_a_wrong_completion_names_the_parts_that_fail() -> None:
    with pytest.raises(AssertionError, match=r"prompt: '1' -> 'a', not 'b': the way from prompts"):
        language_probe("prompt").check(lambda question: "a")
    with pytest.raises(ConfigError, match=r"language probe 'promt'.*prompt"):
        language_probe("promt")
