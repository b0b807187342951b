"""Lines of published language scripts: what they pass is taken with its meaning, or said once to have none here."""

from __future__ import annotations

import logging
import sys
import types
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agilerl import errors, llm_envs
from agilerl.algorithms import GRPO, find_algorithm
from agilerl.algorithms.base.declared import hyperparameters
from agilerl.errors import AgileRLWarning, AlgorithmError, ConfigError
from agilerl.language import load_tokenizer
from agilerl.language.vllm import VLLMConfig
from agilerl.llm_envs import PreferenceGym, ReasoningGym, SFTGym
from agilerl.training.train_llm import finetune_llm_preference, finetune_llm_reasoning, finetune_llm_sft
from agilerl.utils import algo_utils, llm_utils
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


@pytest.mark.parametrize("algo", ["GRPO", "LLMREINFORCE", "LLMPPO"])
def test_prompts_that_begin_with_the_padding_token_are_learned_from_as_they_were_read(algo: str) -> None:
    agent = make(algo)
    pad = agent.pad_token_id
    prompts = [
        {"input_ids": torch.tensor([ids]), "attention_mask": torch.tensor([mask])}
        for ids, mask in (([pad, pad, 5], [0, 1, 1]), ([4], [1]))
    ]
    ids, masks = agent.get_action(prompts)
    agent.get_action(prompts, training=False)  # an evaluation in between changes nothing
    texts, _ = agent._experience((ids, masks, np.zeros((2, 2))))
    # Two completions of each: the first prompt is its padding token and 5, the second 4 alone.
    assert texts.attention[0, :, :3].tolist() == [[False, True, True]] * 2 + [[False, False, True]] * 2
    assert torch.equal(texts.attention[0, :, 3:], texts.completion_mask[0])
    others, _ = agent._experience((ids[::-1], masks[::-1], np.zeros((2, 2))))
    assert others.attention[0, :, :3].tolist() == [[False, False, True]] * 4, "texts of another order are not known"


PAIRS = [{"prompt": row["question"], "chosen": "7", "rejected": "3"} for row in ROWS]
EXAMPLES = [{"prompt": row["question"], "response": "7"} for row in ROWS]


def make(algo: str, **arguments: Any) -> Any:
    writes = {"group_size": 2, "max_output_tokens": 5} if algo not in ("DPO", "SFT") else {}
    return find_algorithm(algo)(
        actor_network=base(), lora_config=LORA, seed=0, lr_schedule="constant", **writes, **arguments
    )


ALGORITHMS = ("GRPO", "LLMPPO", "LLMREINFORCE", "DPO", "SFT")


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_published_arguments_are_taken_with_their_meaning(algo: str) -> None:
    agent = make(algo, micro_batch_size_per_gpu=2, max_model_len=24, use_vllm=False)
    assert agent.micro_batch_size == 2
    assert (agent.context, agent.clone().context, make(algo).context) == (24, 24, 256)
    assert make(algo, max_model_len=4000).context == 256, "no more than the base reads"
    assert make(algo).__dict__.keys() == make(algo, vllm_config=None, micro_batch_size_per_gpu=None).__dict__.keys()
    with pytest.raises(AlgorithmError, match="micro_batch_size=3 and micro_batch_size_per_gpu=2 are one argument"):
        make(algo, micro_batch_size=3, micro_batch_size_per_gpu=2)
    for name in ("max_model_len", "micro_batch_size_per_gpu"):
        with pytest.raises(AlgorithmError, match=f"{name} must be an integer of at least 1 or None; got 0"):
            make(algo, **{name: 0})


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("name", ["gradient_checkpointing", "use_liger_loss", "vllm_config"])
def test_what_means_nothing_is_said_once(algo: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_warned", set())
    value = VLLMConfig() if name == "vllm_config" else True
    with pytest.warns(AgileRLWarning, match=f"{algo}: {name} changes nothing here: "):
        make(algo, **{name: value})
    with warnings.catch_warnings():
        warnings.simplefilter("error", AgileRLWarning)
        make(algo, **{name: value})


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_vllm_writes_where_it_is_asked_for(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_warned", set())
    if algo in ("DPO", "SFT"):
        with pytest.warns(AgileRLWarning, match=f"{algo}: use_vllm changes nothing here: it writes no completions"):
            make(algo, use_vllm=True)
        return
    made: list[dict[str, Any]] = []
    package = types.ModuleType("vllm")
    package.LLM = lambda **arguments: made.append(arguments)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", package)
    monkeypatch.setattr(base(), "writer", None)
    config = VLLMConfig(tensor_parallel_size=2, max_num_seqs=16)
    agent = make(algo, use_vllm=True, vllm_config=config)
    assert agent.backend().name == "vllm"
    (arguments,) = made
    assert (arguments["tensor_parallel_size"], arguments["max_num_seqs"]) == (2, 16)
    assert (arguments["gpu_memory_utilization"], arguments["model"]) == (0.3, str(folder()))
    with pytest.raises(ConfigError, match=r"unknown field of vllm_config 'max_seqs'\. Did you mean 'max_num_seqs'\?"):
        make(algo, vllm_config={"max_seqs": 3})
    with pytest.raises(ConfigError, match="vllm_config is a VLLMConfig or mapping; got int"):
        make(algo, vllm_config=3)


@pytest.mark.parametrize("algo", ["DPO", "SFT"])
def test_update_epochs_are_passes_over_each_batch(algo: str) -> None:
    """Two passes of one call are two calls: the adapters are the same."""
    kind: Any = PreferenceGym if algo == "DPO" else SFTGym
    rows = PAIRS if algo == "DPO" else EXAMPLES
    env = kind(rows, [{**rows[0], "prompt": "9="}], base().tokenizer, data_batch_size_per_gpu=4)
    twice, again = make(algo, lr=1e-2, update_epochs=2, batch_size=2), make(algo, lr=1e-2, batch_size=2)
    twice.learn(env.batch(0))
    for _ in range(2):
        again.learn(env.batch(0))
    for name, value in twice.actor.adapter().items():
        assert torch.equal(value, again.actor.adapter()[name])
    function = finetune_llm_preference if algo == "DPO" else finetune_llm_sft
    for epochs in (1, 2):
        agents = [make(algo, lr=1e-2, batch_size=4, update_epochs=epochs)]
        (agent,) = function(agents, env, max_steps=8, verbose=False, seed=0)
        assert agent.learn_counter == 2 * epochs


def test_prompts_and_completions_longer_than_max_model_len_are_named() -> None:
    with pytest.raises(
        ConfigError, match="a prompt of 5 tokens and a completion of 5 do not fit into the max_model_len of 8"
    ):
        finetune_llm_reasoning(
            [make("GRPO", max_model_len=8)], gym(base().tokenizer), max_steps=4, verbose=False, seed=0
        )


def test_the_column_of_responses_is_that_of_completions() -> None:
    tokenizer = base().tokenizer
    rows, test = EXAMPLES, [{"prompt": "9=", "response": "9", "text": "8"}]
    (example,) = SFTGym(
        test, [{"prompt": "8=", "response": "1", "text": "2"}], tokenizer, response_column="text"
    ).split("train")
    assert tokenizer.decode(example.completion[:-1]) == "8"
    found = SFTGym(rows, test, tokenizer).split("test")[0]
    assert tokenizer.decode(found.completion[:-1]) == "9", "response is found where there is no completion"
    with pytest.raises(ConfigError, match="completion_column='a' and response_column='b' are one argument"):
        SFTGym(rows, test, tokenizer, completion_column="a", response_column="b")


def test_published_helpers_are_where_scripts_import_them_from(monkeypatch: pytest.MonkeyPatch) -> None:
    assert algo_utils.VLLMConfig is llm_utils.VLLMConfig is VLLMConfig
    assert llm_utils.ReasoningGym is ReasoningGym
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(errors, "_warned", set())
    assert llm_utils.create_llm_accelerator() is None
    with pytest.warns(AgileRLWarning, match="deepspeed_plugin changes nothing here"):
        llm_utils.create_llm_accelerator(deepspeed_plugin=object())
    logger = logging.getLogger("transformers")
    before = logger.level
    try:
        llm_utils.suppress_verbose_logging()
        assert not logger.isEnabledFor(logging.WARNING)
        assert logger.isEnabledFor(logging.ERROR)
    finally:
        for name in llm_utils.VERBOSE:
            logging.getLogger(name).setLevel(before if name == "transformers" else logging.NOTSET)


@pytest.mark.parametrize("algo", ["GRPO", "SFT"])
def test_responses_of_the_base_and_of_the_agent_are_shown_side_by_side(
    algo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    agent, tokenizer = make(algo), load_tokenizer(folder())
    samples = llm_utils.sample_eval_prompts(SFTGym(EXAMPLES, EXAMPLES[:1], tokenizer), n=3)
    assert samples == [(EXAMPLES[0]["prompt"], EXAMPLES[0]["response"], None)]
    with torch.no_grad():
        for parameter in agent.actor.parameters():  # an adapter that changes every logit
            parameter.add_(0.5)
    tokens = torch.tensor([tokenizer(samples[0][0])["input_ids"]])
    expected = []
    for running in (None, agent.actor.running()):  # the reference: `generate` of transformers
        with torch.no_grad(), running or nullcontext():
            out = agent.base.model.generate(tokens, max_new_tokens=6, do_sample=False, pad_token_id=agent.pad_token_id)
        expected.append(tokenizer.decode(out[0, tokens.shape[1] :], skip_special_tokens=True))
    assert expected[0] != expected[1]
    llm_utils.compare_responses(agent, tokenizer, samples, max_new_tokens=6)
    headed = [f"PROMPT\n{samples[0][0]}\n", f"CHOSEN\n{samples[0][1]}\n"]
    headed += [f"{name}\n{text}\n" for name, text in zip(("BASE MODEL", "FINE-TUNED MODEL"), expected, strict=True)]
    assert capsys.readouterr().out == "\n".join(headed) + "\n"
    llm_utils.compare_responses(agent, tokenizer, samples, 6, do_sample=True, show_base_model=False)
    assert "BASE MODEL" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["ReasoningGym", "PreferenceGym", "SFTGym"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_dictionary_of_splits_asks_for_one_of_them(name: str, split: str) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"ReasoningGym": ROWS, "PreferenceGym": PAIRS, "SFTGym": EXAMPLES}[name]
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)})
    given = [splits, rows] if split == "train" else [rows, splits]
    more = [reward] if name == "ReasoningGym" else []
    with pytest.raises(ConfigError, match=rf"{split}_dataset must be rows.*fix: pass one of its splits, \['train'\]"):
        getattr(llm_envs, name)(*given, base().tokenizer, *more)


@pytest.mark.parametrize("name", ["GSPO", "CISPO"])
def test_variants_of_grpo_are_algorithms_by_their_published_names(name: str) -> None:
    cls, variant = find_algorithm(name.lower()), name.lower()
    agent, usual = make(name), make("GRPO", variant=variant)
    options = ("objective", "normalisation", "adv_norm", "beta", "clip_coef", "clip_coef_high", "dynamic_sampling")
    assert {o: getattr(agent, o) for o in options} == {o: getattr(usual, o) for o in options}
    assert agent.objective != make("GRPO").objective
    assert (agent.algo, agent.variant, cls.__name__) == (name, variant, name)
    assert hyperparameters(cls)["variant"].published == variant
    assert hyperparameters(cls).keys() == hyperparameters(GRPO).keys()
    assert make(name, clip_coef=0.1).clip_coef == 0.1
    with pytest.raises(AlgorithmError, match=f"{name}: batch_size must be an integer of at least 1"):
        make(name, batch_size=0)
    for each in (agent, usual):
        finetune_llm_reasoning([each], gym(base().tokenizer), max_steps=8, verbose=False, seed=0)
    for key, value in agent.actor.adapter().items():
        assert torch.equal(value, usual.actor.adapter()[key])


def test_a_variant_by_its_name_is_saved_and_loaded(tmp_path: Path) -> None:
    agent = find_algorithm("GSPO")(model_name=folder(), lora_config=LORA, seed=0, clip_coef=0.01)
    agent.save_checkpoint(tmp_path / "agent")
    again = type(agent).load(tmp_path / "agent")
    assert (again.algo, again.variant, again.clip_coef, again.objective) == ("GSPO", "gspo", 0.01, "sequence")
