"""Every token that ends a completion ends it everywhere, and data teach the one that the chat template has."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agilerl.algorithms import GRPO
from agilerl.collect.collector import Tally
from agilerl.errors import AgileRLWarning, ConfigError
from agilerl.language import load_tokenizer, tiny_base, tiny_tokenizer
from agilerl.language.algorithms.scoring import rewards_of
from agilerl.language.base import BaseModel, load_base
from agilerl.language.collect.batches import CompletionBatches, Row
from agilerl.language.collect.games import play
from agilerl.language.ends import end_ids, turn_end
from agilerl.language.engines import SequentialAdapters
from agilerl.language.generate import HuggingFace, PrefixShared, Sampling, choose
from agilerl.language.padding import pad_left
from agilerl.language.scoring import first_end
from agilerl.llm_envs import (
    GuessNumber,
    PreferenceGym,
    ReasoningGym,
    SFTGym,
    SyncMultiTurnVecEnv,
    TokenObservationWrapper,
)
from tests.differential.language_reference import LORA

EOS = 2
TURN = "{% for m in messages %}<bos>{{ m['role'] }}: {{ m['content'] }}<turn>{% endfor %}"
TEMPLATE = TURN + "{% if add_generation_prompt %}<bos>assistant: {% endif %}"


def tokenizer_with_turns(template: str | None = TEMPLATE) -> Any:
    """Characters, and the special token <turn> by which the chat template ends a message."""
    found = tiny_tokenizer("0123456789+=?<>-", chat_template=template or TEMPLATE)
    found.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    found.chat_template = template
    return found


def saved(folder: Path, tokenizer: Any, ends: Any) -> tuple[BaseModel, int]:
    """A base that always says the last token of its vocabulary, whose generation_config has `ends`."""
    tiny_base(folder, tokenizer, hidden_size=16, layers=1, heads=2)
    file = folder / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": ends}))
    base, last = load_base(folder), len(tokenizer) - 1
    base.model.get_output_embeddings().weight.data.zero_()
    base.model.get_output_embeddings().register_parameter("bias", None)
    bias = torch.zeros(len(tokenizer))
    bias[last] = 50.0
    base.model.get_output_embeddings().bias = torch.nn.Parameter(bias, requires_grad=False)
    return base, last


def agent_on(base: BaseModel, **arguments: Any) -> Any:
    usual = {"group_size": 2, "max_output_tokens": 6}
    return GRPO(actor_network=base, lora_config=LORA, seed=0, **{**usual, **arguments})


@pytest.mark.parametrize(
    ("template", "ends"),
    [(None, "list"), (TEMPLATE, None), (TEMPLATE, "list"), (None, "number")],
    ids=["generation_config", "chat template", "both", "one number"],
)
def test_a_second_end_ends_completions_in_every_place(tmp_path: Path, template: str | None, ends: Any) -> None:
    tokenizer = tokenizer_with_turns(template)
    last = len(tokenizer) - 1
    base, _ = saved(tmp_path, tokenizer, {"list": [EOS, last], "number": last, None: EOS}[ends])
    assert base.end_ids == (EOS, last)
    assert base.end_id == EOS
    given = pad_left([tokenizer.encode(text) for text in ("1+1=", "2=")], base.pad_id, "cpu")

    for backend in (PrefixShared(), HuggingFace()):
        texts = backend.write(base, base.plain, given, 1, [Sampling(6, temperature=0.0)], None)
        assert texts.completion_mask.sum(-1).tolist() == [1, 1]
        assert (texts.tokens[:, texts.prompt] == last).all()
    minimum = PrefixShared().write(base, base.plain, given, 1, [Sampling(6, 2, 0.0)], None)
    assert minimum.completion_mask.sum(-1).tolist() == [3, 3], "two other tokens, then the end"

    agent = agent_on(base)
    gym = ReasoningGym(
        [{"question": q, "answer": ""} for q in ("1+1=", "2=", "3=")],
        [{"question": "4=", "answer": ""}],
        load_tokenizer(tmp_path),
        lambda completion, answer, question: float(completion == answer),
        data_batch_size_per_gpu=2,
    )
    tokens, masks = agent.get_action(gym.reset())
    _, rewards = gym.step(tokens)
    assert rewards.tolist() == [[1.0, 1.0]] * 2, "the reward reads the text before the end"
    assert [mask.sum().item() for mask in masks] == [2, 2]
    assert rewards_of([SequentialAdapters(agent)], [agent], [gym], "test")[0].tolist() == [1.0]
    one = type(texts)(*(x.unsqueeze(0) for x in vars(texts).values()))
    assert agent.counted(one, mask_truncated=True).tolist() == [[1.0, 1.0]]


def test_records_count_no_completion_as_cut_off(tmp_path: Path) -> None:
    tokenizer = tokenizer_with_turns()
    base, _ = saved(tmp_path, tokenizer, EOS)
    agent = agent_on(base)
    rows = [{"question": "1+1=", "answer": "2"}]
    gym = ReasoningGym(
        rows, [{"question": "2=", "answer": "2"}], tokenizer, lambda c, a, q: 0.0, data_batch_size_per_gpu=1
    )
    row = Row(gym, 0, np.random.default_rng(0), Tally())
    list(CompletionBatches(lambda line: None).batches(SequentialAdapters(agent), [row]))
    assert row.tally.details["truncated"] == 0
    assert row.tally.details["completion_tokens"] == 2


def test_both_ends_are_tokens_that_a_minimum_length_forbids() -> None:
    logits = torch.tensor([[0.0, 5.0, 4.0, 1.0]])
    assert choose(logits, [Sampling(4, 1, 0.0)], None, 0, (1, 2), 1).tolist() == [3]
    assert choose(logits, [Sampling(4, 1, 0.0)], None, 1, (1, 2), 1).tolist() == [1]
    assert first_end(torch.tensor([[5, 2, 1, 5], [5, 1, 2, 5], [5, 5, 5, 5]]), (1, 2)).tolist() == [
        [True, True, False, False], [True, True, False, False], [True] * 4,
    ]  # fmt: skip


CHAT = [{"role": "user", "content": "{question}"}]


@pytest.mark.parametrize("written", ["8", "8<turn>", "8<eos>", "8<turn><eos>"])
def test_data_teach_the_end_of_a_turn_where_the_chat_template_renders_them(written: str) -> None:
    tokenizer = tokenizer_with_turns()
    turn = tokenizer.convert_tokens_to_ids("<turn>")
    digits = tuple(tokenizer.encode("8"))
    rows = [{"prompt": "1+7=", "completion": written, "chosen": written, "rejected": "9"}]
    test = [{"prompt": "2+7=", "completion": "9", "chosen": "9", "rejected": "8"}]
    for template, end in ((CHAT, turn), (None, EOS)):
        (example,) = SFTGym(rows, test, tokenizer, conversation_template=template).split("train")
        (pair,) = PreferenceGym(rows, test, tokenizer, conversation_template=template).split("train")
        assert example.completion == pair.chosen == (*digits, end)
        assert pair.rejected == (*tokenizer.encode("9"), end)


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (TEMPLATE, "<turn>"),
        ("{% for m in messages %}{{ m['content'] }}<eos>{% endfor %}", "<eos>"),
        ("{% for m in messages %}{{ m['content'] }} <turn>0{% endfor %}", "<turn>"),
        ("{% for m in messages %}{{ m['content'] }}0{% endfor %}", "<eos>"),
        ("{{ raise_exception('no') }}", "<eos>"),
        ("{% for m in messages %}{{ m['content'] }}~<turn>{% endfor %}", "<turn>"),
        (None, "<eos>"),
    ],
    ids=["turn", "eos", "after a space", "none", "refuses", "after an unknown character", "no template"],
)
def test_the_end_of_a_turn_is_the_first_special_token_behind_an_answer(template: str | None, end: str) -> None:
    tokenizer = tokenizer_with_turns(template)
    assert turn_end(tokenizer) == tokenizer.convert_tokens_to_ids(end)


def test_a_single_number_that_is_a_letter_ends_nothing_and_is_said(tmp_path: Path) -> None:
    """The default of a model's class beside a tokenizer of one's own; a list is meant."""
    tokenizer = tiny_tokenizer("0123456789+=")
    letter = tokenizer.convert_tokens_to_ids("7")
    with pytest.warns(AgileRLWarning, match=r"eos_token_id=\d+ is the token '7'"):
        assert end_ids(tokenizer, {"eos_token_id": letter}) == (EOS,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert end_ids(tokenizer, {"eos_token_id": [EOS, letter, 999]}) == (EOS, letter)
        assert end_ids(tokenizer, {"eos_token_id": 999}) == end_ids(tokenizer, {"eos_token_id": None}) == (EOS,)


def test_a_turn_that_ends_with_the_template_s_token_is_not_ended_twice() -> None:
    tokenizer = tokenizer_with_turns()
    game = TokenObservationWrapper(GuessNumber(highest=15, tries=3), tokenizer, max_turns=3)
    game.reset(seed=0)
    turn = tokenizer.convert_tokens_to_ids("<turn>")
    assert game.end_id == turn
    before = len(game.tokens)
    game.say([*tokenizer.encode("3"), turn, EOS])
    told = game.conversation[-1]
    assert tokenizer.decode(game.tokens[before:]) == f"3<turn><bos>user: {told}<turn><bos>assistant: "
    assert game.episode().completion_mask[before:].tolist()[:3] == [True, True, False]


def test_a_game_reads_a_turn_before_any_end_that_the_base_knows(tmp_path: Path) -> None:
    """Also one that the tokenizer knows nothing of: a base made in memory."""
    tokenizer = tokenizer_with_turns(None)
    base = saved(tmp_path, tokenizer, [EOS, len(tokenizer) - 1])[0]
    tokenizer.name_or_path = ""
    said: list[str] = []

    class Game:
        def reset(self, seed: int | None = None) -> str:
            return "?"

        def step(self, text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            said.append(text)
            return "0", 0.0, len(said) == 2, False, {}

    env = SyncMultiTurnVecEnv(lambda: TokenObservationWrapper(Game(), tokenizer, max_turns=2), batch_size=1)
    env.reset(0)
    play(SequentialAdapters(agent_on(base)), [env.envs], None)
    assert said == ["", ""]
    assert env.episodes()[0].completion_mask.sum() == 2


# --- conversations ---------------------------------------------------------------------------------------------------


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


LONG = [user("1+1="), assistant("2"), user("5+5=")]


@pytest.mark.parametrize("prompt", ["1+1=", "5+5=", [user("1+1=")], LONG], ids=["first", "last", "message", "all"])
def test_whole_conversations_are_answered_from_all_that_comes_before(prompt: Any) -> None:
    tokenizer = tokenizer_with_turns()
    turn = tokenizer.convert_tokens_to_ids("<turn>")
    row = {"prompt": prompt, "chosen": [*LONG, assistant("10")], "rejected": [*LONG, assistant("11")]}
    test = {"prompt": "9=", "chosen": "9", "rejected": "8", "completion": "9"}
    (pair,) = PreferenceGym([row], [test], tokenizer).split("train")
    (example,) = SFTGym([{**row, "completion": row["chosen"]}], [test], tokenizer).split("train")
    shown = "<bos>user: 1+1=<turn><bos>assistant: 2<turn><bos>user: 5+5=<turn><bos>assistant: "
    assert tokenizer.decode(pair.prompt) == tokenizer.decode(example.prompt) == shown
    assert pair.chosen == example.completion == (*tokenizer.encode("10"), turn)
    assert pair.rejected == (*tokenizer.encode("11"), turn)


def test_a_conversation_of_one_question_takes_the_template_and_without_one_its_own_form() -> None:
    tokenizer = tokenizer_with_turns()
    row = {"prompt": "1+1=", "chosen": [user("1+1="), assistant("2")], "rejected": [user("1+1="), assistant("3")]}
    test = [{"prompt": "9=", "chosen": "9", "rejected": "8"}]
    for template, shown in ((None, "1+1="), ([user("0{question}")], "01+1=")):
        (pair,) = PreferenceGym([row], test, tokenizer, conversation_template=template).split("train")
        assert tokenizer.decode(pair.prompt) == f"<bos>user: {shown}<turn><bos>assistant: "
    plain = tiny_tokenizer("0123456789+=")
    (pair,) = PreferenceGym([row], test, plain).split("train")
    assert plain.decode(pair.prompt) == "1+1="


def test_turns_that_go_on_from_the_prompt_are_part_of_it() -> None:
    tokenizer = tokenizer_with_turns()
    later = [assistant("2"), user("5+5=")]
    row = {"prompt": [user("1+1=")], "completion": [*later, assistant("10")]}
    (example,) = SFTGym([row], [{"prompt": "9=", "completion": "9"}], tokenizer).split("train")
    shown = "<bos>user: 1+1=<turn><bos>assistant: 2<turn><bos>user: 5+5=<turn><bos>assistant: "
    assert tokenizer.decode(example.prompt) == shown


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"prompt": "7+7="},
            r"row 0 of the split 'train': the prompt \[user: '7\+7='\] is not part of the conversation",
        ),
        ({"prompt": [user("7+7=")]}, "is not part of the conversation"),
        ({"rejected": [user("2+2="), assistant("3")]}, "is not part of the conversation"),
        ({"rejected": [user("1+1="), assistant("11")]}, "answer different conversations"),
        ({"rejected": "11"}, "answer different conversations"),
        ({"chosen": [*LONG, assistant("10"), user("?")]}, "the last message of a completion must be the assistant's"),
    ],
    ids=["prompt", "messages", "other start", "shorter", "text", "question"],
)
def test_conversations_that_do_not_go_together_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    row = {"prompt": "1+1=", "chosen": [*LONG, assistant("10")], "rejected": [*LONG, assistant("11")], **change}
    gym = PreferenceGym([row], [{"prompt": "9=", "chosen": "9", "rejected": "8"}], tokenizer_with_turns())
    with pytest.raises(ConfigError, match=message):
        gym.split("train")


def test_a_list_of_numbers_is_a_question() -> None:
    tokenizer = tiny_tokenizer("0123456789,[] sort")
    rows = [{"question": [3, 1, 2], "answer": [1, 2, 3]}]
    gym = ReasoningGym(rows, [{"question": [[1, 2], [3, 4]], "answer": 10}], tokenizer, lambda c, a, q: 0.0)
    assert tokenizer.decode(gym.split("train")[0].tokens) == "[3, 1, 2]"
    assert tokenizer.decode(gym.split("test")[0].tokens) == "[[1, 2], [3, 4]]"
    assert gym.split("train")[0].answer == [1, 2, 3]
    (example,) = SFTGym(rows, [{"question": "1", "answer": "2"}], tokenizer).split("train")
    assert tokenizer.decode(example.completion[:-1]) == "[1, 2, 3]"
    with pytest.raises(ConfigError, match="message 0 of a conversation"):
        ReasoningGym([{"question": ["3"], "answer": 3}], rows, tokenizer, lambda c, a, q: 0.0).split("train")
