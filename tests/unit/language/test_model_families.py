"""Families of causal language models: logits, texts and gradients are those of transformers, or the base is refused."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from agilerl.algorithms import GRPO
from agilerl.errors import ConfigError
from agilerl.language import tiny_tokenizer
from agilerl.language.base import BaseModel
from agilerl.language.engines import SequentialAdapters, StackedAdapters, choose_adapters, why_not_stacked
from agilerl.language.generate import HuggingFace, PrefixShared, Sampling
from agilerl.language.padding import pad_left, positions_of
from agilerl.language.scoring import Texts

SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
NEOX = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
GEMMA = {**LLAMA, "head_dim": 8}

COMPUTED: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", LLAMA),
    "Phi": ("PhiForCausalLM", LLAMA),
    "GPTJ": ("GPTJForCausalLM", {**GPT2, "rotary_dim": 4}),
    "GPT2": ("GPT2LMHeadModel", GPT2),
    "Mixtral": ("MixtralForCausalLM", {**LLAMA, "num_local_experts": 2}),
    "CodeGen": ("CodeGenForCausalLM", {**GPT2, "n_head": 4, "rotary_dim": 4, "n_ctx": 64}),
    "Qwen2": ("Qwen2ForCausalLM", LLAMA),
    "Qwen3": ("Qwen3ForCausalLM", GEMMA),
    "Qwen2 tied": ("Qwen2ForCausalLM", {**LLAMA, "tie_word_embeddings": True}),
    "Mistral": ("MistralForCausalLM", {**LLAMA, "sliding_window": 8}),
    "Gemma": ("GemmaForCausalLM", GEMMA),
    "Gemma2 without a cap": ("Gemma2ForCausalLM", {**GEMMA, "final_logit_softcapping": None}),
    "Gemma3": ("Gemma3ForCausalLM", GEMMA),
    "Phi3": ("Phi3ForCausalLM", LLAMA),
    "GPTNeoX": ("GPTNeoXForCausalLM", NEOX),
    "GPTNeo": ("GPTNeoForCausalLM", {
        "hidden_size": 16, "num_layers": 2, "num_heads": 2, "attention_types": [[["global"], 2]],
        "max_position_embeddings": 64,
    }),
    "GPTBigCode": ("GPTBigCodeForCausalLM", GPT2),
    "OPT": ("OPTForCausalLM", {
        "hidden_size": 16, "ffn_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "max_position_embeddings": 64, "word_embed_proj_dim": 8,
    }),
    "Bloom": ("BloomForCausalLM", {"hidden_size": 16, "n_layer": 2, "n_head": 2}),
    "Falcon": ("FalconForCausalLM", {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}),
    "Granite with a scale of 1": ("GraniteForCausalLM", {**LLAMA, "logits_scaling": 1.0}),
    "Cohere with a scale of 1": ("CohereForCausalLM", {**LLAMA, "logit_scale": 1.0}),
    "StableLm": ("StableLmForCausalLM", LLAMA),
    "Olmo": ("OlmoForCausalLM", LLAMA),
    "Olmo2": ("Olmo2ForCausalLM", LLAMA),
    "Starcoder2": ("Starcoder2ForCausalLM", LLAMA),
    "Mpt": ("MptForCausalLM", {"d_model": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 64}),
    "Nemotron": ("NemotronForCausalLM", LLAMA),
    "Persimmon": ("PersimmonForCausalLM", LLAMA),
    "Glm": ("GlmForCausalLM", GEMMA),
    "SmolLM3": ("SmolLM3ForCausalLM", LLAMA),
    "Helium": ("HeliumForCausalLM", GEMMA),
    "BioGpt": ("BioGptForCausalLM", NEOX),
    "XGLM": ("XGLMForCausalLM", {
        "d_model": 16, "ffn_dim": 32, "num_layers": 2, "attention_heads": 2, "max_position_embeddings": 64
    }),
}  # fmt: skip
FAST = ("Llama", "Phi", "GPTJ", "CodeGen", "GPT2", "Mixtral", "Gemma3")
MAMBA = {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "Gemma2": ("Gemma2ForCausalLM", GEMMA, r"scales its logits \(final_logit_softcapping\)"),
    "Granite": ("GraniteForCausalLM", {**LLAMA, "logits_scaling": 8.0}, r"scales its logits \(logits_scaling\)"),
    "Cohere": ("CohereForCausalLM", LLAMA, r"scales its logits \(logit_scale\)"),
    "Cohere2": ("Cohere2ForCausalLM", LLAMA, r"scales its logits \(logit_scale\)"),
    "FalconH1": ("FalconH1ForCausalLM", {
        **LLAMA, "mamba_d_ssm": 16, "mamba_n_heads": 2, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1,
        "lm_head_multiplier": 2.0,
    }, r"scales its logits \(lm_head_multiplier\)"),
    "RecurrentGemma": ("RecurrentGemmaForCausalLM", {
        **LLAMA, "num_hidden_layers": 3, "lru_width": 16, "attention_window_size": 8
    }, r"scales its logits \(logits_soft_cap\)"),
    "xLSTM": ("xLSTMForCausalLM", {"hidden_size": 16, "num_hidden_layers": 2, "num_heads": 2}, "output_logit_soft_cap"),
    "Jamba": ("JambaForCausalLM", {
        **LLAMA, "num_hidden_layers": 8, "num_experts": 2, "use_mamba_kernels": False, "mamba_d_state": 4,
        "mamba_dt_rank": 4,
    }, "cannot be run as a base"),
    "Mamba": ("MambaForCausalLM", MAMBA, "cannot be run as a base"),
    "Mamba2": ("Mamba2ForCausalLM", {**MAMBA, "num_heads": 4, "head_dim": 8, "n_groups": 1}, "through a cache"),
    "Rwkv": ("RwkvForCausalLM", {**MAMBA, "context_length": 64}, "padded on the left"),
    "GPT": ("OpenAIGPTLMHeadModel", GPT2, "cannot be run as a base"),
}  # fmt: skip


@lru_cache(maxsize=1)
def tokenizer() -> Any:
    return tiny_tokenizer("0123456789+=")


def build(name: str, settings: dict[str, Any], spread: float | None = 0.3) -> Any:
    """A random model; weights of standard deviation `spread`, biases of the output layer of 2."""
    transformers = pytest.importorskip("transformers")
    cls = getattr(transformers, name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = cls(cls.config_class(vocab_size=len(tokenizer()), **SPECIAL, **settings)).eval()
        if spread is not None:
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.data.normal_(0, spread)
        bias = getattr(model.get_output_embeddings(), "bias", None)
        if bias is not None:
            bias.data.normal_(0, 2)
    return model


def families(names: tuple[str, ...]) -> list[Any]:
    """Parameters of all families of a table; those that are not in `names` are thorough."""
    return [pytest.param(name, marks=() if name in names else pytest.mark.thorough) for name in COMPUTED]


TEXTS = ("12+7=19", "3=", "450+9=1")


def completions() -> Texts:
    rows = [tokenizer().encode(text, add_special_tokens=False) for text in TEXTS]
    said = [[5, 9, 2], [11, 4, 7], [6, 6, 3]]
    tokens, attention = pad_left([[*row, *own] for row, own in zip(rows, said, strict=True)], 0, "cpu")
    return Texts(tokens, attention, torch.ones(3, 3, dtype=torch.bool))


@torch.no_grad()
def own_logits(model: Any, text: list[int]) -> Tensor:
    """[L, V] of transformers, of one text alone."""
    found: Tensor = model(input_ids=torch.tensor([text]), use_cache=False).logits[0]
    return found


@pytest.mark.parametrize("name", families(FAST))
def test_logits_and_texts_are_those_of_transformers(name: str) -> None:
    model = build(*COMPUTED[name])
    base = BaseModel(model, tokenizer())
    rows = [tokenizer().encode(text, add_special_tokens=False) for text in TEXTS]
    tokens, attention = pad_left(rows, 0, "cpu")
    with torch.no_grad():
        found = base.logits(base.plain(tokens, attention, positions_of(attention)))
    for row, text in zip(found, rows, strict=True):
        torch.testing.assert_close(row[-len(text) :], own_logits(model, text), atol=1e-5, rtol=1e-5)
    greedy = [Sampling(max_tokens=8, temperature=0.0)]
    ours = PrefixShared().write(base, base.plain, (tokens, attention), 2, greedy, None)
    theirs = HuggingFace().write(base, base.plain, (tokens, attention), 1, greedy, None)
    assert torch.equal(ours.tokens[::2], theirs.tokens)
    assert torch.equal(ours.tokens[1::2], theirs.tokens)


@pytest.mark.parametrize("name", families(FAST))
def test_log_probabilities_and_gradients_are_those_of_peft(name: str) -> None:
    """Of an adapter on every linear layer, one member after another and, where it stacks, all at once."""
    peft = pytest.importorskip("peft")
    model = build(*COMPUTED[name])
    reference, texts = copy.deepcopy(model), completions()
    agents = GRPO.population(
        2, actor_network=BaseModel(model, tokenizer()), lora_config={"r": 2, "lora_alpha": 4}, seed=0
    )
    agent = agents[1]
    generator = torch.Generator().manual_seed(1)
    for own in agents:
        for key, parameter in own.actor.tensors().items():
            if "lora_B" in key:
                parameter.data.normal_(0, 0.2, generator=generator)

    config = peft.get_peft_config({**agent.actor.config, "task_type": "CAUSAL_LM"})
    theirs = peft.get_peft_model(reference, config).eval()
    peft.set_peft_model_state_dict(theirs, {k: v.detach().clone() for k, v in agent.actor.adapter().items()})
    wanted = []
    for tokens, attention in zip(texts.tokens, texts.attention, strict=True):
        text = tokens[attention].unsqueeze(0)
        shares = theirs(input_ids=text, use_cache=False).logits.log_softmax(-1)[0, -4:-1]
        wanted.append(shares.gather(-1, text[0, -3:].unsqueeze(-1)).squeeze(-1))
    expected = torch.stack(wanted)
    expected.sin().sum().backward()
    slopes = {k.replace(".default", ""): p.grad for k, p in theirs.named_parameters() if "lora_" in k}

    alone = SequentialAdapters(agent)
    scores = alone.network("actor")(texts)
    scores.sin().sum().backward()
    found = {key: parameter.grad for key, parameter in agent.actor.adapter().items()}
    check(scores, found, expected, slopes)
    if why_not_stacked(agents) is None:
        together = StackedAdapters(agents)
        scores = together.network("actor")(Texts(*(x.expand(2, *x.shape) for x in vars(texts).values())))
        scores.sin().sum().backward()
        check(scores[1], {k: leaf.grad[1] for k, leaf in together._rows["actor"].adapter().items()}, expected, slopes)


def check(scores: Tensor, found: dict[str, Any], expected: Tensor, slopes: dict[str, Any]) -> None:
    """Log-probabilities [R, T] and gradients by saved name, against those of PEFT."""
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)
    assert found.keys() == slopes.keys()
    for key, slope in found.items():
        torch.testing.assert_close(slope, slopes[key], atol=1e-5, rtol=1e-4, msg=lambda m, key=key: f"{key}: {m}")


def test_adapters_on_fused_experts_of_a_mixture_learn_one_member_after_another() -> None:
    base = BaseModel(build(*COMPUTED["Mixtral"]), tokenizer())
    agents = GRPO.population(2, actor_network=base, lora_config={"r": 4, "lora_alpha": 8}, seed=0)
    assert choose_adapters(agents, "auto") == ("sequential", "agent 0's actor is more than plain LoRA")
    with pytest.raises(ConfigError, match="learner='fused' is not possible: agent 0's actor is more than plain LoRA"):
        choose_adapters(agents, "fused")
    on_attention = GRPO.population(
        2, actor_network=BaseModel(build(*COMPUTED["Mixtral"]), tokenizer()), seed=0,
        lora_config={"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    )  # fmt: skip
    assert choose_adapters(on_attention, "auto")[0] == "fused"


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_computed_otherwise_is_refused_by_name(name: str) -> None:
    cls, settings, reason = REFUSED[name]
    with pytest.raises(ConfigError, match=reason) as caught:
        BaseModel(build(cls, settings), tokenizer(), "some/model")
    assert cls in str(caught.value)
    assert "some/model" in str(caught.value)
    assert "fix: " in str(caught.value)


@pytest.mark.parametrize("name", ["Gemma2", "RecurrentGemma"])
def test_a_cap_is_found_though_the_logits_of_the_text_are_far_below_it(name: str) -> None:
    cls, settings, reason = REFUSED[name]
    model = build(cls, settings, spread=None)
    assert own_logits(model, [5, 6, 7, 8]).abs().max() < 1
    with pytest.raises(ConfigError, match=reason):
        BaseModel(model, tokenizer())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["Llama", "Phi", "Mixtral", "GPT2"])
def test_rounding_in_half_precision_refuses_nobody(name: str, dtype: torch.dtype) -> None:
    BaseModel(build(*COMPUTED[name]).to(dtype), tokenizer())


def test_a_model_without_an_output_layer_is_a_named_error() -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.LlamaModel(transformers.LlamaConfig(vocab_size=len(tokenizer()), **SPECIAL, **LLAMA))
    with pytest.raises(ConfigError, match="no output layer"):
        BaseModel(model, tokenizer())
