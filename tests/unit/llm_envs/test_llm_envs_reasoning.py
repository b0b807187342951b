"""ReasoningGym: splits, the order of batches, prompts, rewards of completions, mistakes."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from agilerl.errors import AgileRLWarning, ConfigError, EnvError, RunError, ShapeError
from agilerl.language.tiny import CHAT_TEMPLATE, tiny_tokenizer
from agilerl.llm_envs import Prompt, ReasoningGym
from agilerl.llm_envs.data import rows_of_batch

pytest.importorskip("transformers")

TRAIN = [{"question": f"{i}+1=", "answer": str(i + 1)} for i in range(10)]
TEST = [{"question": f"{i}+2=", "answer": str(i + 2)} for i in range(5)]
REPORT = [{"question": f"{i}+3=", "answer": str(i + 3)} for i in range(3)]
TOKENIZER = tiny_tokenizer("0123456789+= {}\n", chat_template=None)


def exact(completion: str, answer: str, question: str) -> float:
    return float(completion == answer)


def gym_of(**changes: Any) -> ReasoningGym:
    options: dict[str, Any] = {
        "train_dataset": TRAIN,
        "test_dataset": TEST,
        "tokenizer": TOKENIZER,
        "reward_fn": exact,
        "data_batch_size_per_gpu": 4,
    }
    return ReasoningGym(**{**options, **changes})


# --- splits and batches ----------------------------------------------------------------------------------------------


def test_a_split_is_its_rows_in_order_with_their_tokens() -> None:
    gym = gym_of(report_dataset=REPORT)
    assert gym.splits == ("train", "test", "report")
    assert [prompt.question for prompt in gym.split("test")] == [row["question"] for row in TEST]
    first = gym.split("report")[0]
    assert first == Prompt(0, "0+3=", "3", tuple(TOKENIZER.encode("0+3=")), REPORT[0])
    assert gym.split("test") is gym.split("test")
    assert len(gym) == 10
    with gym.eval_mode():
        assert len(gym) == 5


def test_a_split_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no split 'report'\. fix: pass report_dataset="):
        gym_of().split("report")
    with pytest.raises(ConfigError, match=r"unknown split 'tain'\. Did you mean 'train'"):
        gym_of().split("tain")


def test_every_prompt_comes_once_in_an_epoch_and_epochs_differ() -> None:
    gym = gym_of()
    indices = [prompt.index for number in range(5) for prompt in gym.batch(number)]  # 20 of 10: two epochs
    assert sorted(indices[:10]) == sorted(indices[10:]) == list(range(10))
    assert indices[:10] != indices[10:]
    assert gym.num_batches == 3  # 4, 4, and half of the third


def test_the_sequence_of_batches_follows_from_the_seed() -> None:
    def indices(seed: int) -> list[int]:
        return [prompt.index for number in (7, 0, 3) for prompt in gym_of(seed=seed).batch(number)]

    assert indices(1) == indices(1)
    assert indices(1) != indices(2)


def test_shares_of_ranks_are_the_batch_of_one_process_that_is_as_large_as_all() -> None:
    whole, shared = gym_of(data_batch_size_per_gpu=6), gym_of(data_batch_size_per_gpu=2)
    for number in range(4):
        together = [prompt for rank in range(3) for prompt in shared.batch(number, rank, 3)]
        assert together == whole.batch(number)


def test_a_batch_larger_than_the_data_goes_through_it_again() -> None:
    rows = rows_of_batch(0, 25, 0, 1, 10, 42)
    assert Counter(Counter(rows).values()) == {2: 5, 3: 5}


def test_numbers_and_ranks_are_checked() -> None:
    with pytest.raises(ConfigError, match="number=-1"):
        gym_of().batch(-1)
    with pytest.raises(ConfigError, match="rank=2, size=2"):
        gym_of().batch(0, 2, 2)


def test_rows_of_other_kinds_and_columns_are_read() -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"problem": row["question"], "solution": int(row["answer"])} for row in TRAIN]

    class Rows:
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, number: int) -> dict[str, Any]:
            return rows[number]

    found = []
    for kind in (rows, Rows(), datasets.Dataset.from_list(rows)):
        gym = gym_of(
            train_dataset=kind, test_dataset=[{"problem": "", "solution": 0}], question_column="problem",
            answer_column="solution",
        )  # fmt: skip
        found.append(gym.batch(0))
    assert found[0] == found[1] == found[2]
    assert found[0][0].answer == int(TRAIN[found[0][0].index]["answer"])


# --- prompts ---------------------------------------------------------------------------------------------------------


def test_a_template_leaves_other_braces_and_those_of_the_question_alone() -> None:
    template = [{"role": "user", "content": 'say {"a": {question}} and \\frac{1}{2}'}]
    rows = [{"question": "{answer} {0}", "answer": "7"}]
    gym = gym_of(train_dataset=rows, conversation_template=template)
    assert gym.reset()[0]["text"] == 'say {"a": {answer} {0}} and \\frac{1}{2}'


def test_a_chat_template_renders_the_conversation_and_begins_the_answer() -> None:
    tokenizer = tiny_tokenizer("0123456789+=", chat_template=CHAT_TEMPLATE)
    template = [{"role": "system", "content": "add"}, {"role": "user", "content": "{question}"}]
    gym = gym_of(tokenizer=tokenizer, conversation_template=template)
    prompt = gym.split("train")[0]
    text = "<bos>system: add<eos><bos>user: 0+1=<eos><bos>assistant: "
    assert prompt.tokens == tuple(tokenizer.encode(text))
    assert Counter(prompt.tokens)[1] == 3  # each <bos> is one token, none is put before
    going_on = [*template, {"role": "assistant", "content": "it is "}]
    gym = gym_of(tokenizer=tokenizer, conversation_template=going_on)
    assert gym.reset()[0]["text"].endswith("<eos><bos>assistant: it is ")


def test_without_a_chat_template_contents_are_joined() -> None:
    template = [{"role": "system", "content": "0"}, {"role": "user", "content": "{question}"}]
    gym = gym_of(conversation_template=template)
    assert gym.split("train")[0].tokens == tuple(TOKENIZER.encode("0\n0+1="))


def test_prompts_longer_than_the_context_are_left_out_with_a_warning() -> None:
    rows = [{"question": "1+1=", "answer": "2"}, {"question": "10+10=", "answer": "20"}]
    gym = gym_of(train_dataset=rows, test_dataset=TEST, max_context_length=4)
    with pytest.warns(AgileRLWarning, match=r"1 of 2 rows of the split 'train' .* max_context_length=4 tokens"):
        assert [prompt.index for prompt in gym.split("train")] == [0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(gym.split("train")) == 1  # said once
    with pytest.raises(ConfigError, match=r"every one of the 2 rows .* they have 4 to 6\. fix: max_context_length=6"):
        gym_of(train_dataset=rows, max_context_length=3).split("train")


def test_a_tokenizer_that_frames_texts_begins_prompts_and_does_not_end_them() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = tiny_tokenizer("0123456789+=")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    assert tokenizer.encode("1") == [1, 5, 2] or tokenizer.encode("1")[::2] == [1, 2]
    prompt = gym_of(tokenizer=tokenizer).split("train")[0]
    bare = tokenizer.encode("0+1=", add_special_tokens=False)
    assert prompt.tokens == (1, *bare)


# --- rewards ---------------------------------------------------------------------------------------------------------


def test_scores_are_of_each_completion_of_each_prompt() -> None:
    gym = gym_of()
    scores = gym.score(gym.split("train")[:2], [["1", "2", ""], ["1", "2", "2"]])
    assert scores.rewards.tolist() == [[1, 0, 0], [0, 1, 1]]
    assert scores.rewards.dtype == np.float64
    assert not scores.failed.any()
    assert scores.faults == ()
    assert (gym.samples_scored, gym.samples_failed) == (6, 0)


def test_a_reward_function_with_a_parameter_entry_gets_the_row() -> None:
    seen = []

    def reward(completion: str, answer: Any, question: str, entry: Any) -> float:
        seen.append(entry)
        return 0.5

    gym = gym_of(reward_fn=reward)
    assert gym.score(gym.split("test")[3:4], [["x"]]).rewards.tolist() == [[0.5]]
    assert seen == [TEST[3]]


def test_groups_and_texts_are_checked() -> None:
    gym = gym_of()
    prompts = gym.split("train")[:2]
    for wrong in ([["1"]], [["1"], ["1", "2"]], [[], []]):
        with pytest.raises(ShapeError, match="one group of completions for each of 2 prompts"):
            gym.score(prompts, wrong)
    with pytest.raises(ShapeError, match="prompt 1, completion 0 must be text; got int"):
        gym.score(prompts, [["1"], [2]])  # type: ignore[list-item]


# --- reset and step --------------------------------------------------------------------------------------------------


def completed(prompts: list[dict[str, Any]], texts: list[list[str]], end: int = 2, pad: int = 0) -> list[torch.Tensor]:
    """What an agent returns: prompt as it was given, completion, one end of sequence, padding."""
    found = []
    for prompt, group in zip(prompts, texts, strict=True):
        said = [[*TOKENIZER.encode(text), end] for text in group]
        most = max(map(len, said))
        rows = [prompt["input_ids"][0].tolist() + row + [pad] * (most - len(row)) for row in said]
        found.append(torch.tensor(rows))
    return found


def test_prompts_are_padded_on_the_left_to_one_length() -> None:
    rows = [{"question": "1+1=", "answer": "2"}, {"question": "10+10=", "answer": "20"}]
    gym = gym_of(train_dataset=rows, data_batch_size_per_gpu=2)
    short, long = sorted(gym.reset(), key=lambda prompt: len(prompt["text"]))
    assert short["input_ids"].tolist() == [[0, 0, *TOKENIZER.encode("1+1=")]]
    assert short["attention_mask"].tolist() == [[0, 0, 1, 1, 1, 1]]
    assert (long["text"], long["attention_mask"].sum()) == ("10+10=", 6)


def test_a_step_scores_what_comes_after_the_prompts_up_to_the_first_end_of_sequence() -> None:
    gym = gym_of()
    prompts, current = gym.reset(), gym.batch(0)
    texts = [[prompt.answer, "0"] for prompt in current]
    following, rewards = gym.step(completed(prompts, texts))
    assert rewards.tolist() == [[1.0, 0.0]] * 4
    assert rewards.dtype == torch.float32
    assert gym.completions == texts
    assert [prompt["text"] for prompt in following] == [prompt.question for prompt in gym.batch(1)]
    rambling = [
        torch.cat([prompt["input_ids"], torch.tensor([[*TOKENIZER.encode(p.answer), 2, 5, 2, 9]])], 1)
        for prompt, p in zip(following, gym.batch(1), strict=True)
    ]
    assert gym.step(rambling)[1].tolist() == [[1.0]] * 4


def test_padding_that_is_the_end_of_sequence_changes_no_reward() -> None:
    same = tiny_tokenizer("0123456789+= {}\n")
    same.pad_token = "<eos>"
    gym = gym_of(tokenizer=same)
    rows = completed(gym.reset(), [[p.answer, p.answer + "1"] for p in gym.batch(0)], pad=2)
    assert gym.step(rows)[1].tolist() == [[1.0, 0.0]] * 4


def test_raw_completions_keep_special_tokens() -> None:
    gym = gym_of(return_raw_completions=True)
    rewards = gym.step(completed(gym.reset(), [[p.answer, "12345"] for p in gym.batch(0)]))[1]
    assert rewards[:, 0].tolist() == [1.0] * 4  # the reward function sees the text alone
    for prompt, (right, wrong) in zip(gym.batch(0), gym.completions, strict=True):
        padding = "<pad>" * (5 - len(prompt.answer))
        assert (right, wrong) == (f"{prompt.answer}<eos>{padding}", "12345<eos>")


def test_completions_without_the_padding_of_their_prompt_are_taken_and_others_refused() -> None:
    rows = [{"question": "1+1=", "answer": "2"}, {"question": "10+10=", "answer": "20"}]
    gym = gym_of(train_dataset=rows, data_batch_size_per_gpu=2)
    gym.reset()
    bare = [torch.tensor([[*p.tokens, *TOKENIZER.encode(p.answer), 2]]) for p in gym.batch(0)]
    with pytest.raises(ShapeError, match="do not begin with its"):
        gym.step(bare[::-1])
    with pytest.raises(ShapeError, match="completions of 2 prompts; got 1"):
        gym.step(bare[:1])
    with pytest.raises(ShapeError, match="whole numbers"):
        gym.step([row[0] for row in bare])
    assert gym.step(bare)[1].tolist() == [[1.0], [1.0]]


def test_evaluation_goes_through_the_test_split_and_training_goes_on_where_it_was() -> None:
    gym = gym_of(data_batch_size_per_gpu=3)
    gym.reset()
    with gym.eval_mode():
        shown = [gym.reset(), gym.reset(), gym.reset()]
    assert [[prompt["text"] for prompt in batch] for batch in shown] == [
        ["0+2=", "1+2=", "2+2="], ["3+2=", "4+2="], ["0+2=", "1+2=", "2+2="],
    ]  # fmt: skip
    following, _ = gym.step(completed(gym._published(gym.batch(0)), [["1"]] * 3))
    assert [prompt["text"] for prompt in following] == [prompt.question for prompt in gym.batch(1)]


def test_epochs_are_counted_and_the_sequence_begins_anew_when_asked() -> None:
    gym = gym_of()
    first = [prompt["text"] for prompt in gym.reset()]
    counts = [gym.num_epochs]
    for _ in range(4):
        gym.reset()
        counts.append(gym.num_epochs)
    assert counts == [0, 0, 1, 1, 2]  # 4, 8, 12, 16, 20 of 10
    assert [prompt["text"] for prompt in gym.reset(reset_dataloaders=True)] == first
    assert gym.num_epochs == 0


def test_a_step_before_a_reset_is_refused() -> None:
    with pytest.raises(EnvError, match="step comes after reset"):
        gym_of().step([])


def test_a_state_goes_on_where_it_was_taken() -> None:
    import json

    gym = gym_of()
    gym.reset()
    gym.step(completed(gym._published(gym.batch(0)), [["1"]] * 4))
    state = json.loads(json.dumps(gym.state()))
    again = gym_of()
    again.load_state(state)
    rows = completed(gym._published(gym.batch(1)), [[p.answer] for p in gym.batch(1)])
    (ours, reward), (theirs, other) = gym.step(rows), again.step(rows)
    assert [p["text"] for p in ours] == [p["text"] for p in theirs] == [p.question for p in gym.batch(2)]
    assert reward.tolist() == other.tolist() == [[1.0]] * 4
    assert (again.samples_scored, again.state()) == (8, gym.state())


def test_a_state_of_another_gym_is_refused() -> None:
    state = gym_of().state()
    with pytest.raises(RunError, match="seed=42, and here it is 1"):
        gym_of(seed=1).load_state(state)
    with pytest.raises(RunError, match="rows="):
        gym_of(report_dataset=REPORT).load_state(state)
    with pytest.raises(RunError, match="batches given"):
        gym_of().load_state({**state, "given": None})


def test_processes_get_their_shares() -> None:
    gyms = [
        gym_of(accelerator=SimpleNamespace(process_index=rank, num_processes=2), data_batch_size_per_gpu=2)
        for rank in (0, 1)
    ]
    shown = [prompt["text"] for gym in gyms for prompt in gym.reset()]
    assert shown == [prompt.question for prompt in gym_of().batch(0)]
    with gyms[0].eval_mode(), gyms[1].eval_mode():
        shown = [prompt["text"] for gym in gyms for prompt in gym.reset()]
    assert shown == ["0+2=", "1+2=", "2+2=", "3+2="]
    assert gyms[0].num_batches == 3


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward_fn": None}, "reward_fn must be a function"),
        ({"train_dataset": []}, "train_dataset has no rows"),
        ({"train_dataset": None}, "train_dataset is missing"),
        ({"test_dataset": None}, "test_dataset is missing"),
        ({"report_dataset": []}, "report_dataset has no rows"),
        ({"train_dataset": {"train": TRAIN}}, r"got a mapping \(dict\)\. fix: pass one of its splits, \['train'\]"),
        ({"train_dataset": iter(TRAIN)}, "must be a list of mappings"),
        ({"train_dataset": "train.json"}, "must be a list of mappings"),
        ({"train_dataset": ["1+1="]}, "row 0 of train_dataset must be a mapping"),
        ({"train_dataset": [{"questions": 1, "answer": 2}]}, r"no column 'question'\. Did you mean 'questions'\?"),
        ({"answer_column": "answers"}, r"no column 'answers'\. Did you mean 'answer'\?.*fix: answer_column='answer'"),
        (
            {"train_dataset": [*TRAIN, {"question": None, "answer": None}]},
            "row 10 of train_dataset: 'question' is None",
        ),
        ({"conversation_template": "{question}"}, "must be a list of messages; got str"),
        ({"conversation_template": [{"role": "user"}]}, "message 0 of a conversation: expected a mapping"),
        (
            {"conversation_template": [{"role": "user", "content": "{qestion}"}]},
            r"Did you mean {question} by {qestion}",
        ),
        ({"conversation_template": []}, "holds {question} nowhere"),
        ({"data_batch_size_per_gpu": 0}, "data_batch_size_per_gpu must be an integer of at least 1"),
        ({"max_context_length": 2.5}, "max_context_length must be an integer"),
        ({"seed": -1}, "seed must be an integer of at least 0"),
        ({"reward_timeout": 0}, r"reward_timeout must be above 0 \(seconds\)"),
        ({"tokenizer": "gpt2"}, "tokenizer must be one of transformers; got str"),
        ({"accelerator": 2}, "accelerator must be"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        gym_of(**changes)


def test_a_question_without_tokens_is_refused() -> None:
    with pytest.raises(EnvError, match="row 0 of 'train' has no tokens"):
        gym_of(train_dataset=[{"question": "", "answer": ""}]).split("train")


def test_roles_that_a_chat_template_refuses_are_named() -> None:
    tokenizer = tiny_tokenizer("01", chat_template="{{ raise_exception('only users') }}")
    gym = gym_of(tokenizer=tokenizer, conversation_template=[{"role": "judge", "content": "{question}"}])
    with pytest.raises(ConfigError, match=r"refuses a conversation of the roles \['judge'\].*only users"):
        gym.split("train")


def test_prompts_in_two_splits_are_warned_of() -> None:
    with pytest.warns(AgileRLWarning, match="2 prompts of the split 'test' are in 'train', too"):
        gym_of(test_dataset=[*TEST, *TRAIN[:2]])
    template = [{"role": "user", "content": "{question} {answer}"}]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the numbers to use are in the prompt: the same goal is another question
        gym_of(test_dataset=[{"question": "0+1=", "answer": "5"}], conversation_template=template)


def test_a_tokenizer_that_was_replaced_is_warned_of(tmp_path: Path) -> None:
    import transformers

    TOKENIZER.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}', encoding="utf-8")
    replaced = transformers.AutoTokenizer.from_pretrained(tmp_path)
    with pytest.warns(AgileRLWarning, match=r"does not do what the tokenizer\.json .* says"):
        gym_of(tokenizer=replaced)


# --- reasoning-gym ---------------------------------------------------------------------------------------------------


def from_task(**changes: Any) -> ReasoningGym:
    options: dict[str, Any] = {"train_size": 20, "test_size": 8, "report_size": 6, "seed": 3}
    return ReasoningGym.from_reasoning_gym("chain_sum", tiny_tokenizer("0123456789"), **{**options, **changes})


def test_a_task_of_the_package_has_disjoint_splits_and_scores_its_own_answers() -> None:
    pytest.importorskip("reasoning_gym")
    gym = from_task(config={"max_terms": 2, "max_digits": 2})
    questions = [{prompt.question for prompt in gym.split(name)} for name in gym.splits]
    assert [len(split) for split in questions] == [20, 8, 6]
    assert len(set.union(*questions)) == 34
    prompts = gym.split("test")
    scores = gym.score(prompts, [[f" {p.answer}\n", f"{p.answer}0", ""] for p in prompts])
    assert scores.rewards[:, 0].tolist() == [1.0] * 8
    assert (scores.rewards[:, 1] < 1).all()
    assert scores.rewards[:, 2].tolist() == [0.0] * 8


def test_more_training_questions_leave_what_is_measured_as_it_was() -> None:
    pytest.importorskip("reasoning_gym")
    few, many, other = from_task(), from_task(train_size=40), from_task(seed=4)

    def questions(gym: ReasoningGym, split: str) -> list[str]:
        return [prompt.question for prompt in gym.split(split)]

    assert questions(few, "report") == questions(many, "report") != questions(other, "report")
    assert questions(few, "test") == questions(many, "test")
    assert questions(few, "train") == questions(many, "train")[:20]


def test_exact_rewards_are_one_for_a_full_score_alone() -> None:
    pytest.importorskip("reasoning_gym")
    partly, exactly = (
        ReasoningGym.from_reasoning_gym(
            "spell_backward", tiny_tokenizer("a"), train_size=4, test_size=4, seed=0, exact=exact,
        )
        for exact in (False, True)
    )  # fmt: skip
    prompt = max(partly.split("test"), key=lambda prompt: len(prompt.answer))
    nearly = prompt.answer[:-1] + "#"
    share = partly.score([prompt], [[nearly, prompt.answer]]).rewards[0]
    assert 0 < share[0] < 1 == share[1]
    assert exactly.score([prompt], [[nearly, prompt.answer]]).rewards.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize(("task", "unreadable"), [("prime_factorization", "seven"), ("graph_color", "{")])
def test_what_a_task_cannot_read_scores_nothing_and_is_no_fault(task: str, unreadable: str) -> None:
    """The first raises for text without numbers; the second has no answer of its own, and judges by the row."""
    pytest.importorskip("reasoning_gym")
    gym = ReasoningGym.from_reasoning_gym(task, tiny_tokenizer("a"), train_size=2, test_size=2, seed=0)
    scores = gym.score(gym.split("test"), [[unreadable], [""]])
    assert scores.rewards.max() < 0.1  # graph_color gives 0.01 for trying
    assert not scores.failed.any()


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        ("chain_sums", {}, r"unknown task of reasoning-gym 'chain_sums'\. Did you mean 'chain_sum'"),
        ("chain_sum", {"config": {"terms": 2}}, "does not make 'chain_sum' with config="),
        ("chain_sum", {"test_size": 0}, "test_size must be an integer of at least 1"),
        ("chain_sum", {"train_size": 300, "config": {"max_terms": 2, "max_digits": 1}}, "distinct questions in"),
    ],
)
def test_tasks_that_cannot_be_made_are_named(task: str, changes: dict[str, Any], message: str) -> None:
    pytest.importorskip("reasoning_gym")
    options: dict[str, Any] = {"train_size": 2, "test_size": 2, "seed": 0, **changes}
    with pytest.raises(ConfigError, match=message):
        ReasoningGym.from_reasoning_gym(task, TOKENIZER, **options)
