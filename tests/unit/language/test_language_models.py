"""The frozen base, its adapters, what they write and how probable they find it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agilerl.algorithms import find_algorithm
from agilerl.algorithms.grpo import VARIANTS
from agilerl.core.checkpoint import digest_tree
from agilerl.errors import AlgorithmError, ConfigError, RunError
from agilerl.language import scoring
from agilerl.language.base import load_base
from agilerl.language.engines import SequentialAdapters, StackedAdapters
from agilerl.language.generate import HuggingFace, PrefixShared, Sampling, choose, uniform_numbers
from agilerl.language.lora import stacked, stacked_delta
from agilerl.language.networks import AdapterNetwork, adapter_config
from agilerl.language.padding import pad_left, positions_of
from agilerl.language.scoring import Texts, first_end, hidden_states, log_probs
from agilerl.language.tiny import tiny_base
from tests.differential.language_reference import LORA, base, folder, make, prompts, written


def texts_of(rows: list[list[int]], length: int = 3) -> Texts:
    tokens, attention = pad_left(rows, base().tokenizer.pad_token_id, "cpu")
    said = torch.ones(len(rows), length, dtype=torch.bool)
    return Texts(tokens, attention, said)


def test_padding_on_the_left_changes_no_probability() -> None:
    """Padded and batched, against one text at a time, token by token with a cache."""
    agent, rows = make("GRPO", 0, torch.float32), [[*p, 5, 6, 7] for p in prompts()]
    with torch.no_grad(), agent.actor.running() as forward:
        texts = texts_of(rows)
        together = log_probs(hidden_states(forward, texts), base().head, texts.tokens[:, texts.prompt :])
        from transformers import DynamicCache

        for row, found in zip(rows, together, strict=True):
            cache, alone = DynamicCache(), []
            for t, token in enumerate(row[:-1]):
                ones = torch.ones(1, t + 1, dtype=torch.bool)
                hidden = forward(torch.tensor([[token]]), ones, torch.tensor([[t]]), cache)
                alone.append((hidden[0, -1] @ base().head.T).log_softmax(-1)[row[t + 1]])
            torch.testing.assert_close(found, torch.stack(alone[-3:]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [1, 40, 10**6])
def test_chunks_change_neither_probabilities_nor_gradients(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(5, 4, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    head = torch.randn(17, 8, generator=generator, dtype=torch.float64)
    tokens, rates = torch.randint(0, 17, (5, 4), generator=generator), torch.linspace(0.5, 2, 5, dtype=torch.float64)
    whole = ((hidden @ head.T) / rates.view(5, 1, 1)).log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    (wanted,) = torch.autograd.grad(whole.sin().sum(), hidden)
    monkeypatch.setattr(scoring, "CHUNK", size)
    found = log_probs(hidden, head, tokens, rates)
    torch.testing.assert_close(found, whole, atol=1e-12, rtol=0)
    torch.testing.assert_close(torch.autograd.grad(found.sin().sum(), hidden)[0], wanted, atol=1e-12, rtol=0)


def test_adapters_in_one_pass_are_those_of_peft_one_after_another() -> None:
    """Outputs with the adapters on: far from the base's, and each member's own."""
    agents = [make("GRPO", i, torch.float32) for i in range(3)]
    texts = texts_of([[*p, 5, 6, 7] for p in prompts()])
    with torch.no_grad():
        alone = [agent.actor(texts) for agent in agents]
        plain = log_probs(hidden_states(base().plain, texts), base().head, texts.tokens[:, texts.prompt :])
        engine = StackedAdapters(agents)
        three = Texts(*(x.expand(3, *x.shape) for x in (texts.tokens, texts.attention, texts.completion_mask)))
        together = engine.network("actor")(three)
    for number in range(3):
        torch.testing.assert_close(together[number], alone[number], atol=1e-5, rtol=0)
        assert (together[number] - plain).abs().max() > 0.1
    assert (together[0] - together[1]).abs().max() > 0.1


@pytest.mark.parametrize(
    "configs",
    [
        [LORA, {"r": 2, "use_dora": True}],
        [{"peft_type": "IA3", "target_modules": ["q_proj", "down_proj"], "feedforward_modules": ["down_proj"]}],
        [{"peft_type": "LOHA", "r": 2, "target_modules": ["q_proj"]}],
    ],
    ids=["lora", "ia3", "loha"],
)
def test_the_base_is_what_it_was_beside_any_number_of_adapters(configs: list[dict[str, Any]], tmp_path: Path) -> None:
    tiny_base(tmp_path, base().tokenizer, seed=5)
    own = load_base(tmp_path)
    texts, before = texts_of([[*p, 5, 6, 7] for p in prompts()]), own.sha256
    given = (texts.tokens, texts.attention, positions_of(texts.attention))
    with torch.no_grad():
        plain = own.plain(*given)
        for config in configs:
            network = AdapterNetwork(own, config, random_seed=1)
            for parameter in network.parameters():
                parameter.add_(0.1)
            with network.running() as forward:
                assert not torch.allclose(forward(*given), plain, atol=1e-3), "the adapter is on"
        assert torch.equal(own.plain(*given), plain)
    own._sha = None
    assert own.sha256 == before


def test_a_new_adapter_begins_at_zero_whatever_has_run_on_the_base_before() -> None:
    make("GRPO", 0, torch.float32).actor(texts_of([[*p, 5, 6, 7] for p in prompts()]))
    with torch.no_grad():
        make("GRPO", 1, torch.float32).actor(texts_of([[*p, 5, 6, 7] for p in prompts()]))
    fresh = AdapterNetwork(base(), LORA, random_seed=3)
    assert not any(value.any() for name, value in fresh.adapter().items() if "lora_B" in name)


def test_adapters_of_two_kinds_on_one_base_are_a_named_error(tmp_path: Path) -> None:
    tiny_base(tmp_path, base().tokenizer, seed=5)
    own = load_base(tmp_path)
    AdapterNetwork(own, LORA)
    with pytest.raises(ConfigError, match="Cannot combine adapters with different peft types"):
        AdapterNetwork(own, {"peft_type": "LOHA", "r": 2, "target_modules": ["q_proj"]})


def test_members_share_one_base_and_a_clone_copies_its_adapter_alone() -> None:
    agents = type(make("GRPO", 0)).population(4, model_name=folder(), seed=1, lora_config=LORA)
    assert len({id(agent.base) for agent in agents}) == 1
    assert load_base(folder()) is agents[0].base
    first, second = (next(iter(agent.actor.parameters())) for agent in agents[:2])
    assert not torch.equal(first, second), "members begin with draws of their own"
    twin = agents[0].clone(index=9)
    assert twin.base is agents[0].base
    assert digest_tree(twin.actor.state_dict()) == digest_tree(agents[0].actor.state_dict())
    texts = written(SequentialAdapters(twin), [twin])
    rewards = torch.rand(1, 6, twin.group_size, generator=torch.Generator().manual_seed(0))
    for batch in twin.arrange(SequentialAdapters(twin), texts, rewards, [np.random.default_rng(0)]):
        twin.update(SequentialAdapters(twin), batch)
    assert digest_tree(twin.actor.state_dict()) != digest_tree(agents[0].actor.state_dict())


@pytest.mark.parametrize(
    ("algo", "settings"),
    [("GRPO", {"variant": name}) for name in VARIANTS]
    + [("GSPO", {}), ("CISPO", {}), ("LLMREINFORCE", {"baseline": "rloo"})],
    ids=[*VARIANTS, "GSPO", "CISPO", "rloo"],
)
def test_groups_of_one_completion_are_named(algo: str, settings: dict[str, Any]) -> None:
    """Their advantages are always 0: at construction, and of groups of an environment or given by hand."""
    kind = find_algorithm(algo)
    with pytest.raises(AlgorithmError, match=rf"{algo}: .*group_size .*at least 2; got 1\. fix: group_size="):
        kind(model_name=folder(), lora_config=LORA, group_size=1, **settings)
    agent = kind(model_name=folder(), lora_config=LORA, group_size=2, **settings)
    engine = SequentialAdapters(agent)
    texts = written(engine, [agent])
    with pytest.raises(AlgorithmError, match=rf"{algo} compares completions .*only one.*fix: group_size=4"):
        list(agent.arrange(engine, texts, torch.rand(1, texts.tokens.shape[1], 1), [np.random.default_rng(0)]))


def test_a_single_completion_of_an_iteration_is_named() -> None:
    agent = find_algorithm("LLMREINFORCE")(model_name=folder(), lora_config=LORA, group_size=1)
    engine = SequentialAdapters(agent)
    texts = written(engine, [agent])
    one = Texts(texts.tokens[:, :1], texts.attention[:, :1], texts.completion_mask[:, :1])
    with pytest.raises(AlgorithmError, match=r"LLMREINFORCE: baseline='batch' compares .*single one.*fix: more"):
        list(agent.arrange(engine, one, torch.rand(1, 1, 1), [np.random.default_rng(0)]))
    assert list(agent.arrange(engine, texts, torch.rand(1, texts.tokens.shape[1], 1), [np.random.default_rng(0)]))


def test_writing_from_shared_prefixes_is_what_transformers_writes() -> None:
    agent, given = make("GRPO", 0, torch.float32), pad_left(prompts(), base().tokenizer.pad_token_id, "cpu")
    with SequentialAdapters(agent).acting("actor") as forward:
        own = PrefixShared().write(base(), forward, given, 1, [agent.sampling(greedy=True)], None)
        reference = HuggingFace().write(base(), forward, given, 1, [agent.sampling(greedy=True)], None)
    assert torch.equal(own.tokens, reference.tokens)
    assert torch.equal(own.completion_mask, reference.completion_mask)
    assert torch.equal(own.attention, reference.attention)


def test_completions_of_one_prompt_are_what_each_would_be_alone() -> None:
    """Also where rows that have ended drop out of the cache on the way."""
    agent = make("GRPO", 1, torch.float64, max_output_tokens=12)
    given, how = pad_left(prompts(), agent.pad_token_id, "cpu"), [agent.sampling()]
    numbers = uniform_numbers([np.random.default_rng(0)], len(prompts()) * 4, 12)
    with SequentialAdapters(agent).acting("actor") as forward:
        together = PrefixShared().write(agent.base, forward, given, 4, how, numbers)
        for row, prompt in enumerate(prompts()):
            one = pad_left([prompt], agent.pad_token_id, "cpu")
            for k in range(4):
                alone = PrefixShared().write(agent.base, forward, one, 1, how, numbers[4 * row + k].unsqueeze(0))
                assert torch.equal(alone.tokens[0, -12:], together.tokens[4 * row + k, -12:])
    lengths = together.completion_mask.sum(-1)
    assert lengths.min() < 6, "some end early"


def test_the_first_end_counts_also_where_padding_is_the_same_token() -> None:
    tokens = torch.tensor([[3, 2, 2, 2], [3, 4, 5, 2], [3, 4, 5, 6]])
    wanted = [[True, True, False, False], [True] * 4, [True] * 4]
    assert first_end(tokens, 2).tolist() == wanted


def test_tokens_are_drawn_by_their_probabilities() -> None:
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log().repeat(4, 1)
    numbers = torch.tensor([0.05, 0.29, 0.31, 0.99], dtype=torch.float64)
    assert choose(logits, [Sampling()], numbers, 0, 9, 1).tolist() == [0, 1, 2, 3]
    cold = Sampling(temperature=0.5)  # probabilities 1, 4, 9, 16 of 30
    assert choose(logits, [cold], numbers, 0, 9, 1).tolist() == [1, 2, 2, 3]
    assert choose(logits, [Sampling(top_k=2)], numbers, 0, 9, 1).tolist() == [2, 2, 2, 3]
    assert choose(logits, [Sampling(top_p=0.5)], numbers, 0, 9, 1).tolist() == [2, 2, 2, 3]
    assert choose(logits, [Sampling(min_tokens=2)], numbers, 1, 3, 1).tolist() == [0, 1, 1, 2]
    assert choose(logits, [Sampling(temperature=0.0)], numbers, 0, 9, 1).tolist() == [3, 3, 3, 3]


@pytest.mark.thorough
def test_a_saved_adapter_loads_in_plain_peft_in_another_process(tmp_path: Path) -> None:
    agent = make("GRPO", 0, torch.float32)
    agent.save_pretrained(tmp_path)
    texts = texts_of([[*p, 5, 6, 7] for p in prompts()])
    with torch.no_grad():
        wanted = agent.actor(texts)
    torch.save({"ids": texts.tokens, "mask": texts.attention.long()}, tmp_path / "in.pt")
    code = f"""
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({str(folder())!r}), {str(tmp_path)!r})
given = torch.load({str(tmp_path / "in.pt")!r})
positions = (given["mask"].cumsum(-1) - 1).clamp_min(0)
with torch.no_grad():
    logits = model(input_ids=given["ids"], attention_mask=given["mask"], position_ids=positions).logits
found = logits[:, -4:-1].log_softmax(-1).gather(-1, given["ids"][:, -3:, None])[..., 0]
torch.save(found, {str(tmp_path / "out.pt")!r})
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True)
    torch.testing.assert_close(torch.load(tmp_path / "out.pt"), wanted, atol=1e-4, rtol=0)


def test_a_checkpoint_holds_the_whole_agent_and_no_base(tmp_path: Path) -> None:
    agent = make("LLMPPO", 0, torch.float32)
    texts = written(SequentialAdapters(agent), [agent])
    rewards = torch.rand(1, 6, 4, generator=torch.Generator().manual_seed(0))
    for batch in agent.arrange(SequentialAdapters(agent), texts, rewards, [np.random.default_rng(0)]):
        agent.update(SequentialAdapters(agent), batch)
    agent.save_checkpoint(tmp_path / "agent")
    found = type(agent).load(tmp_path / "agent")
    assert digest_tree(found.run_state()) == digest_tree(agent.run_state())
    names = {path.name for path in (tmp_path / "agent").iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "agent.safetensors", "tokenizer.json"} <= names
    assert sum(path.stat().st_size for path in (tmp_path / "agent").iterdir()) < 600_000
    agent.save_checkpoint(tmp_path / "agent")  # in place of what is there
    assert [path.name for path in tmp_path.iterdir()] == ["agent"]


def test_hostile_adapters_are_refused_by_name(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    agent = make("GRPO", 0, torch.float32)
    with pytest.raises(RunError, match=r"no adapter_model\.safetensors"):
        agent.load_pretrained(tmp_path)
    agent.save_pretrained(tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    tensors = load_file(path)
    first = next(iter(tensors))
    save_file({**tensors, first: tensors[first] * float("nan")}, path)
    with pytest.raises(RunError, match="not finite"):
        agent.load_pretrained(tmp_path)
    save_file({name: value for name, value in tensors.items() if name != first}, path)
    with pytest.raises(RunError, match="another configuration or base: 1 parameters differ"):
        agent.load_pretrained(tmp_path)
    path.write_bytes(b"\x80\x04\x95pickle")
    with pytest.raises(RunError, match="not a safetensors file"):
        agent.load_pretrained(tmp_path)


def test_mistakes_are_named() -> None:
    from transformers import AutoModelForCausalLM

    cls = type(make("GRPO", 0))
    with pytest.raises(AlgorithmError, match=r"actor_network= .* or model_name= .*; got neither"):
        cls()
    with pytest.raises(AlgorithmError, match="got both"):
        cls(actor_network=base(), model_name=folder())
    with pytest.raises(TypeError, match="must be a causal language model; got Linear"):
        cls(actor_network=torch.nn.Linear(2, 2))
    with pytest.raises(AlgorithmError, match="a model needs its tokenizer"):
        cls(actor_network=AutoModelForCausalLM.from_pretrained(folder()))
    with pytest.raises(AlgorithmError, match=r"actor_network has adapters\. fix: the base model, and lora_config=\.$"):
        cls(actor_network=base().model)
    with pytest.raises(ConfigError, match="no causal language model could be loaded"):
        cls(model_name="/nowhere/at/all")
    with pytest.raises(AlgorithmError, match="unknown variant"):
        cls(actor_network=base(), variant="grpo2")
    with pytest.raises(ConfigError, match="min_tokens ≤ max_tokens"):
        cls(actor_network=base(), max_output_tokens=2, min_output_tokens=3)
    with pytest.raises(ConfigError, match="vllm is not installed"):
        make("GRPO", 0, rollout_backend="vllm").backend()
    with pytest.raises(ConfigError, match="PROMPT_TUNING is no part of layers"):
        AdapterNetwork(base(), {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 2})
    with pytest.raises(AlgorithmError, match="lr must be above 0"):
        cls(actor_network=base(), lr=0.0)


def test_a_configuration_of_peft_is_taken_as_it_is() -> None:
    from peft import LoraConfig

    found = adapter_config(LoraConfig(r=3, lora_alpha=9, target_modules=["q_proj"], use_rslora=True))
    assert (found["r"], found["lora_alpha"], found["target_modules"], found["use_rslora"]) == (3, 9, ["q_proj"], True)
    assert adapter_config() == {"peft_type": "LORA", "r": 16, "lora_alpha": 32, "target_modules": "all-linear"}
    network = AdapterNetwork(base(), found, random_seed=0)
    assert network.slot.scale == pytest.approx(9 / 3**0.5)
    assert network.stacks


def test_the_delta_of_several_members_is_each_ones_own() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 2, 5, generator=generator)
    a, b = torch.randn(3, 2, 5, generator=generator), torch.randn(3, 4, 2, generator=generator)
    found = stacked_delta(x, a, b, 0.5)
    for row in range(6):
        torch.testing.assert_close(found[row], 0.5 * x[row] @ a[row // 2].T @ b[row // 2].T)


def test_hooks_are_gone_after_a_pass() -> None:
    agent = make("GRPO", 0, torch.float32)
    values = {name: value.unsqueeze(0) for name, value in agent.actor.adapter().items()}
    with pytest.raises(ValueError, match="inside"), stacked(base(), agent.actor.slot, values):
        raise ValueError("inside")
    assert not any(module._forward_hooks for module in base().model.modules())


@pytest.mark.parametrize("members", [1, 2])
def test_prompts_that_rows_share_are_read_once_and_change_nothing(members: int) -> None:
    """Against every row by itself: outputs, and gradients in the adapters."""
    agents = [make("GRPO", i) for i in range(members)]
    engine = StackedAdapters(agents)
    texts = written(engine, agents)
    flat = texts.flat()
    shared = scoring.shared_prompts(flat, members)
    assert shared is not None
    rows, place = shared
    assert len(rows) == 6 * members, "six prompts, four completions of each"
    assert torch.equal(flat.tokens[rows][place][:, : flat.prompt], flat.tokens[:, : flat.prompt])
    found = []
    for share in (0.75, 0.0):
        scoring_share, scoring.SHARED = scoring.SHARED, share
        try:
            scores = engine.network("actor")(texts)
            (scores * texts.completion_mask).sin().sum().backward()
        finally:
            scoring.SHARED = scoring_share
        found.append((scores.detach(), [leaf.grad.clone() for leaf in engine._rows["actor"].leaves.values()]))
        engine._rows["actor"].gather_gradients()
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-12, rtol=0)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=0)
    assert scoring.shared_prompts(texts_of([[*p, 5, 6, 7] for p in prompts()]), 1) is None


def test_a_tokenizer_without_padding_pads_with_its_end_and_stays_as_it_is(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder())
    tokenizer.pad_token = None
    agent = type(make("GRPO", 0))(
        actor_network=AutoModelForCausalLM.from_pretrained(folder()), tokenizer=tokenizer, lora_config=LORA,
        group_size=4, batch_size=8, max_output_tokens=6, lr=1e-2,
    )  # fmt: skip
    assert agent.pad_token_id == tokenizer.eos_token_id
    texts = written(SequentialAdapters(agent), [agent])
    ends = (texts.tokens[..., texts.prompt :] == tokenizer.eos_token_id) & texts.completion_mask
    assert ends.sum(-1).max() == 1, "the first end counts, what pads behind it does not"
    rewards = torch.rand(1, 6, 4, generator=torch.Generator().manual_seed(0))
    for batch in agent.arrange(SequentialAdapters(agent), texts, rewards, [np.random.default_rng(0)]):
        assert np.isfinite(float(agent.update(SequentialAdapters(agent), batch).loss))
    assert tokenizer.pad_token is None
