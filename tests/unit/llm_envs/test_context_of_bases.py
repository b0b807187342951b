"""What does not fit into a base's context is named before anything is learned from it."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
import torch

from agilerl.algorithms import DPO, GRPO, SFT
from agilerl.errors import ConfigError
from agilerl.language import tiny_tokenizer
from agilerl.language.base import BaseModel
from agilerl.language.collect.games import play
from agilerl.language.engines import SequentialAdapters
from agilerl.llm_envs import PreferenceGym, ReasoningGym, SFTGym, TokenObservationWrapper
from agilerl.training.train_llm import finetune_llm_preference, finetune_llm_reasoning, finetune_llm_sft
from tests.differential.language_reference import LORA

TOKENIZER = tiny_tokenizer("0123456789+=")


def base(kind: str, context: int) -> BaseModel:
    transformers = pytest.importorskip("transformers")
    special = {"vocab_size": len(TOKENIZER), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if kind == "gpt2":
            config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, n_positions=context, **special)
            return BaseModel(transformers.GPT2LMHeadModel(config), TOKENIZER)
        config = transformers.LlamaConfig(
            hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=context, **special,
        )  # fmt: skip
        return BaseModel(transformers.LlamaForCausalLM(config), TOKENIZER)


SHORT = {"prompt": "1+1=", "completion": "2", "chosen": "2", "rejected": "3"}


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize(
    ("algo", "column"), [(DPO, "chosen"), (DPO, "rejected"), (SFT, "completion")], ids=["chosen", "rejected", "sft"]
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_pairs_and_examples_that_are_too_long_are_named(kind: str, algo: Any, column: str, split: str) -> None:
    gym_class, train = (PreferenceGym, finetune_llm_preference) if algo is DPO else (SFTGym, finetune_llm_sft)
    population = algo.population(1, actor_network=base(kind, 32), lora_config=LORA, seed=0)
    fits = {**SHORT, column: "1" * 27}  # 4 of the prompt, 27 of the answer, its end
    for answer, message in (
        ("1" * 27, None),
        (
            "1" * 28,
            rf"item 1 of the split '{split}' has 33 tokens, 4 of its prompt and 29 of its answer, .*context of 32",
        ),
    ):
        rows = {"train": [SHORT, fits], "test": [{**SHORT, "prompt": "2+0="}, {**fits, "prompt": "3+9="}]}
        rows[split][1] = {**rows[split][1], column: answer}
        gym = gym_class(rows["train"], rows["test"], TOKENIZER, data_batch_size_per_gpu=2)
        if message is None:
            train(population, gym, max_steps=2, evaluation_interval=1, verbose=False, seed=0)
            continue
        with pytest.raises(ConfigError, match=message) as caught:
            train(population, gym, max_steps=2, evaluation_interval=1, verbose=False, seed=0)
        with pytest.raises(ConfigError, match=message):
            population[0].evaluate(split, gym)
        limit = int(re.findall(r"fix: max_context_length=(\d+)", str(caught.value))[0])
        gym = gym_class(rows["train"], rows["test"], TOKENIZER, 2, max_context_length=limit)
        with pytest.warns(match="1 of 2 rows"):
            train(population, gym, max_steps=2, evaluation_interval=1, verbose=False, seed=0)


def reasoning(lengths: list[int], **options: Any) -> ReasoningGym:
    rows = [{"question": str(10 ** (length - 1)), "answer": ""} for length in lengths]
    return ReasoningGym(rows, [{"question": "7", "answer": ""}], TOKENIZER, lambda c, a, q: 0.0, None, 2, **options)


LEFT_OUT = "fix: max_context_length=16 of the environment, which leaves longer prompts out"


@pytest.mark.parametrize(
    ("lengths", "written", "advice"),
    [
        ([4, 20], 16, f"{LEFT_OUT}, or max_output_tokens=12."),
        ([4, 20], 200, "fix: max_output_tokens=12."),
        ([4, 40], 16, f"{LEFT_OUT}."),
        ([4, 40], 200, "fix: max_context_length=4 of the environment and max_output_tokens=28."),
        ([40, 40], 200, "fix: a base with a longer context."),
    ],
)  # fmt: skip
def test_the_advice_for_long_completions_can_be_followed(lengths: list[int], written: int, advice: str) -> None:
    def agents(tokens: int) -> list[Any]:
        return GRPO.population(
            1, actor_network=base("gpt2", 32), lora_config=LORA, seed=0, max_output_tokens=tokens, group_size=2
        )

    gym = reasoning(lengths)
    gym._rows["test"] = [{"question": str(10 ** (min(lengths) - 1)), "answer": ""}]
    with pytest.raises(ConfigError, match="the base's context of 32") as caught:
        finetune_llm_reasoning(agents(written), gym, max_steps=2, evaluation_interval=1, verbose=False, seed=0)
    assert str(caught.value).endswith(advice)
    found = dict(re.findall(r"(max_\w+)=(\d+)", advice.split(", or ")[0]))
    if found:
        limit = int(found["max_context_length"]) if "max_context_length" in found else None
        own = agents(int(found.get("max_output_tokens", written)))[0]
        gym = reasoning(lengths, max_context_length=limit)
        with contextlib.nullcontext() if limit is None else pytest.warns(match="are left out"):
            own.check_context(gym)


class Counting:
    """A game that shows three tokens each turn and never ends."""

    def reset(self, seed: int | None = None) -> str:
        return "123"

    def step(self, text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "456", 1.0, False, False, {}


@pytest.mark.parametrize("limit", [None, 20, 500])
def test_a_game_ends_where_the_base_s_context_has_no_room_for_a_turn(limit: int | None) -> None:
    """Every turn begins where 4 tokens more fit, and the game goes on as long as one has room after the 3 shown."""
    agent = GRPO(actor_network=base("gpt2", 32), lora_config=LORA, seed=0, max_output_tokens=4, min_output_tokens=4)
    game = TokenObservationWrapper(Counting(), TOKENIZER, max_turns=50, max_model_len=limit, max_output_tokens=4)
    game.reset()
    play(SequentialAdapters(agent), [[game]], None)
    episode = game.episode()
    most = min(limit or 32, 32)
    starts = [int((episode.turns == turn).argmax()) for turn in range(len(episode.ends))]
    assert all(start + 4 <= most for start in starts)
    assert len(episode.tokens) + 3 + 4 > most
    assert episode.truncated
    long = GRPO(actor_network=base("gpt2", 32), lora_config=LORA, seed=0, max_output_tokens=30)
    game = TokenObservationWrapper(Counting(), TOKENIZER, max_turns=50)
    game.reset()
    with pytest.raises(ConfigError, match="the prompt has 3 tokens and a turn 30"):
        play(SequentialAdapters(long), [[game]], None)
