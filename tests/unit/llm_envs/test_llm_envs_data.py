"""PreferenceGym, SFTGym, and additions: completions end once, splits share nothing, batches follow from the seed."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest

from agilerl.errors import AgileRLWarning, ConfigError, EnvError, RunError
from agilerl.language.tiny import CHAT_TEMPLATE, tiny_tokenizer
from agilerl.llm_envs import Example, Pair, PreferenceGym, ReasoningGym, SFTGym
from agilerl.llm_envs.arithmetic import ALPHABET, addition, examples, pairs, reward_fn

pytest.importorskip("transformers")

TOKENIZER = tiny_tokenizer("0123456789+=x")
END = 2
PAIRS = [{"prompt": f"{i}+1=", "chosen": str(i + 1), "rejected": "x"} for i in range(10)]
TEST_PAIRS = [{"prompt": f"{i}+2=", "chosen": str(i + 2), "rejected": "xx"} for i in range(3)]


def tokens(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode(text))


# --- pairs -----------------------------------------------------------------------------------------------------------


def test_completions_of_a_pair_end_once() -> None:
    rows = [{"prompt": "1=", "chosen": "1<eos><eos>", "rejected": ""}]
    (pair,) = PreferenceGym(rows, TEST_PAIRS, TOKENIZER).split("train")
    assert pair == Pair(0, tokens("1="), (*tokens("1"), END), (END,))


def test_a_pair_is_as_long_as_its_prompt_and_its_longer_completion() -> None:
    rows = [
        {"prompt": "1=", "chosen": "1", "rejected": "11"},  # 2 + 3
        {"prompt": "1=", "chosen": "111", "rejected": "1"},  # 2 + 4
    ]
    gym = PreferenceGym(rows, TEST_PAIRS, TOKENIZER, max_context_length=5)
    with pytest.warns(AgileRLWarning, match="1 of 2 rows"):
        assert [pair.index for pair in gym.split("train")] == [0]


def test_pairs_are_handed_out_batch_by_batch_and_go_on_where_they_were() -> None:
    gym = PreferenceGym(PAIRS, TEST_PAIRS, TOKENIZER, data_batch_size_per_gpu=4, seed=1)
    first = gym.reset()
    expected = gym.batch(0)
    assert first["prompt"] == [PAIRS[pair.index]["prompt"] for pair in expected]
    assert first["prompt_lengths"].tolist() == [4] * 4
    longest = max(len(pair.chosen) for pair in expected)
    row = (*expected[0].prompt, *expected[0].chosen)
    assert first["chosen_input_ids"].shape == (4, 4 + longest)
    assert tuple(first["chosen_input_ids"][0, : len(row)].tolist()) == row
    assert first["chosen_attention_mask"].sum(1).tolist() == [4 + len(pair.chosen) for pair in expected]
    assert first["rejected"] == ["x"] * 4
    state = gym.state()
    again = PreferenceGym(PAIRS, TEST_PAIRS, TOKENIZER, data_batch_size_per_gpu=4, seed=1)
    again.load_state(state)
    assert again.step()["prompt"] == gym.step()["prompt"] == [PAIRS[pair.index]["prompt"] for pair in gym.batch(1)]
    with gym.eval_mode():
        assert gym.reset()["rejected"] == ["xx"] * 3
    with pytest.raises(EnvError, match="takes no completions"):
        gym.step([])
    with pytest.raises(RunError, match="seed=1"):
        PreferenceGym(PAIRS, TEST_PAIRS, TOKENIZER, data_batch_size_per_gpu=4).load_state(state)


def test_conversations_are_rendered_and_answered_by_their_last_message() -> None:
    tokenizer = tiny_tokenizer("0123456789+=x", chat_template=CHAT_TEMPLATE)
    asked = [{"role": "user", "content": "1+1="}]
    row = {
        "prompt": asked,
        "chosen": [*asked, {"role": "assistant", "content": "2"}],
        "rejected": [{"role": "assistant", "content": "3"}],
    }
    (pair,) = PreferenceGym([row], [{**row, "prompt": "2+2="}], tokenizer).split("train")
    assert pair.prompt == tuple(tokenizer.encode("<bos>user: 1+1=<eos><bos>assistant: "))
    assert (pair.chosen, pair.rejected) == ((*tokenizer.encode("2"), END), (*tokenizer.encode("3"), END))
    with pytest.raises(ConfigError, match="message 0 of a conversation"):
        PreferenceGym([{**row, "chosen": ["2"]}], [row | {"prompt": "0"}], tokenizer).split("train")


def test_pairs_that_teach_nothing_are_warned_of() -> None:
    rows = [*PAIRS, {"prompt": "9+9=", "chosen": "18", "rejected": "18"}]
    gym = PreferenceGym(rows, TEST_PAIRS, TOKENIZER)
    with pytest.warns(AgileRLWarning, match="1 of 11 pairs of the split 'train' have the same completion twice"):
        assert len(gym.split("train")) == 11


@pytest.mark.parametrize(
    ("train", "changes", "message"),
    [
        ([{"prompt": "1", "choosen": "1", "rejected": "2"}], {}, r"no column 'chosen'\. Did you mean 'choosen'\?"),
        (PAIRS, {"rejected_column": "worse"}, "no column 'worse'"),
        ([], {}, "train_dataset has no rows"),
        (None, {}, "train_dataset is missing"),
    ],
)
def test_mistakes_of_pairs_are_named(train: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PreferenceGym(train, TEST_PAIRS, TOKENIZER, **changes)


@pytest.mark.parametrize("gym", [PreferenceGym, SFTGym])
def test_a_prompt_without_tokens_is_refused(gym: Any) -> None:
    row = {"prompt": "", "chosen": "1", "rejected": "2", "completion": "1"}
    with pytest.raises(EnvError, match="row 0 of the split 'train' has a prompt without tokens"):
        gym([row], [{**row, "prompt": "1"}], TOKENIZER).split("train")


# --- examples --------------------------------------------------------------------------------------------------------


def test_examples_are_read_from_prompts_and_completions_or_questions_and_answers() -> None:
    train, test, report = addition(1, 2, 0)
    asked = SFTGym(train, test, TOKENIZER, report_dataset=report)
    prompted = SFTGym(examples(train), examples(test), TOKENIZER, report_dataset=examples(report))
    for split in ("train", "test", "report"):
        assert asked.split(split) == prompted.split(split)
    row = train[3]
    assert asked.split("train")[3] == Example(3, tokens(row["question"]), (*tokens(row["answer"]), END))


def test_examples_are_padded_on_the_right() -> None:
    rows = [{"question": "1=", "answer": "1"}, {"question": "11+11=", "answer": "22"}]
    batch = SFTGym(rows, TEST_PAIRS_AS_QUESTIONS, TOKENIZER, data_batch_size_per_gpu=2).reset()
    short, long = batch["prompt"].index("1="), batch["prompt"].index("11+11=")
    assert batch["input_ids"][short].tolist() == [*tokens("1=1"), END, 0, 0, 0, 0, 0]
    assert batch["attention_mask"][short].tolist() == [1, 1, 1, 1, 0, 0, 0, 0, 0]
    assert (batch["prompt_lengths"][long], batch["completion"][long]) == (6, "22")


TEST_PAIRS_AS_QUESTIONS = [{"question": row["prompt"], "answer": row["chosen"]} for row in TEST_PAIRS]


# --- additions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("digits", "terms"), [(1, 2), (1, 3), (2, 2), (3, 2), (9, 2)])
def test_no_sum_is_in_two_splits_whatever_the_order_of_its_terms(digits: int, terms: int) -> None:
    splits = addition(digits, terms, seed=1)
    keys = []
    for split in splits:
        assert len({row["question"] for row in split}) == len(split) > 0
        numbers = [[int(term) for term in row["question"].removesuffix("=").split("+")] for row in split]
        assert all(len(n) == terms and max(n) < 10**digits for n in numbers)
        assert [str(sum(n)) for n in numbers] == [row["answer"] for row in split]
        assert all(set(row["question"] + row["answer"]) <= set(ALPHABET) for row in split)
        keys.append({tuple(sorted(n)) for n in numbers})
    for one, other in itertools.combinations(keys, 2):
        assert not one & other


def test_additions_follow_from_the_seed_and_held_out_ones_do_not_change_with_training() -> None:
    assert addition(2, 2, 5) == addition(2, 2, 5) != addition(2, 2, 6)
    few, many = addition(3, 2, 5, train_size=10), addition(3, 2, 5, train_size=1000)
    assert few[1:] == many[1:]
    assert few[0] == many[0][:10]


def test_more_additions_than_there_are_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"give \d+ questions for train_size=100"):
        addition(1, 2, train_size=100)
    with pytest.raises(ConfigError, match="digits must be at least 1"):
        addition(0)
    with pytest.raises(ConfigError, match="at least one question"):
        addition(2, 2, test_size=0)


def test_the_reward_is_one_for_the_right_answer_alone() -> None:
    assert [reward_fn(text, "19", "12+7=") for text in ("19", " 19\n", "019", "19.", "1", "")] == [1, 1, 0, 0, 0, 0]


def test_rejected_answers_are_wrong_numbers_of_the_same_length() -> None:
    rows = addition(2, 2, 0)[0]
    made = pairs(rows, 3)
    assert made == pairs(rows, 3) != pairs(rows, 4)
    for row, pair in zip(rows, made, strict=True):
        assert (pair["prompt"], pair["chosen"]) == (row["question"], row["answer"])
        assert pair["rejected"] != pair["chosen"]
        assert len(str(int(pair["rejected"]))) == len(pair["chosen"])


def test_additions_go_into_all_gyms() -> None:
    train, test, report = addition(1, 2, 0)
    tokenizer = tiny_tokenizer(ALPHABET)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no overlap
        gym = ReasoningGym(train, test, tokenizer, reward_fn, report_dataset=report)
        PreferenceGym(pairs(train), pairs(test), tokenizer, report_dataset=pairs(report))
    prompts = gym.split("report")
    assert gym.score(prompts, [[prompt.answer] for prompt in prompts]).rewards.sum() == len(report)
