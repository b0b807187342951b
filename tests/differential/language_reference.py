"""Tiny language models, populations on them, and experience, for the tests of language algorithms."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agilerl.algorithms import find_algorithm
from agilerl.language.algorithms.scoring import by_member
from agilerl.language.base import BaseModel, load_base
from agilerl.language.generate import PrefixShared, uniform_numbers
from agilerl.language.padding import pad_left
from agilerl.language.scoring import Texts
from agilerl.language.tiny import tiny_base, tiny_tokenizer

LORA = {"r": 4, "lora_alpha": 8}
WRITERS = {
    "GRPO": {"group_size": 4, "batch_size": 8, "max_output_tokens": 6, "update_epochs": 2, "beta": 0.1},
    "LLMREINFORCE": {"group_size": 4, "batch_size": 8, "max_output_tokens": 6, "beta": 0.1, "gamma": 0.9},
    "LLMPPO": {"group_size": 4, "batch_size": 8, "max_output_tokens": 6, "update_epochs": 2, "gae_lambda": 0.9},
}


@lru_cache(maxsize=1)
def folder() -> Path:
    """A folder with a model of two layers of 64 units and a tokenizer of 13 characters."""
    made = Path(tempfile.mkdtemp(prefix="tiny-base-"))
    tiny_base(made, tiny_tokenizer("0123456789+= "))
    return made


@lru_cache(maxsize=4)
def base(dtype: torch.dtype = torch.float32) -> BaseModel:
    """The model of `folder`, one a dtype."""
    found = load_base(folder(), dtype=dtype)
    return with_exact_norms(found) if dtype == torch.float64 else found


def with_exact_norms(found: BaseModel) -> BaseModel:
    """A base whose norms and rotary positions are computed in its own dtype: transformers computes them in float32."""
    for module in found.model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = partial(_exact_norm, module)
        if type(module).__name__.endswith("RotaryEmbedding"):
            module.forward = partial(_exact_rotation, found.model.config)
    return found


def _exact_norm(module: Any, x: torch.Tensor) -> torch.Tensor:
    scaled: torch.Tensor = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + module.variance_epsilon)
    return module.weight * scaled


def _exact_rotation(config: Any, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    angle = position_ids.unsqueeze(-1) * config.rope_parameters["rope_theta"] ** -half
    both = torch.cat((angle, angle), -1)
    return both.cos().to(x.dtype), both.sin().to(x.dtype)


def make(algo: str, index: int, dtype: torch.dtype = torch.float64, **arguments: Any) -> Any:
    """An agent whose adapters, the frozen ones too, say something: B is not 0."""
    agent: Any = find_algorithm(algo)(
        actor_network=base(dtype), index=index, seed=index, lora_config=LORA,
        **{**WRITERS.get(algo, {}), **arguments},
    )  # fmt: skip
    generator = torch.Generator().manual_seed(index)
    for name in agent.registry.all_registered():
        for key, parameter in getattr(agent, name).tensors().items():
            parameter.data = parameter.data.to(dtype)
            if "lora_B" in key or key == "value_head":
                parameter.data.normal_(std=0.2, generator=generator)
    agent.follow_optimizers()
    return agent


def prompts() -> list[list[int]]:
    """Six prompts of unequal length."""
    tokenizer = base().tokenizer
    return [
        tokenizer.encode(text, add_special_tokens=False) for text in ("1+2=", "3+4=", "5+6=", "12+34=", "9=", "7+7+7=")
    ]


def written(engine: Any, agents: list[Any], seed: int = 0) -> Texts:
    """Completions [N, 6·G, ...] that the members draw."""
    lead, rows = agents[0], prompts()
    rngs = [np.random.default_rng((seed, agent.index)) for agent in agents]
    numbers = uniform_numbers(rngs, len(rows) * lead.group_size, lead.max_output_tokens)
    given = pad_left(rows * len(agents), lead.pad_token_id, "cpu")
    with engine.acting("actor") as forward:
        how = [agent.sampling() for agent in agents]
        return by_member(PrefixShared().write(lead.base, forward, given, lead.group_size, how, numbers), len(agents))


def member(texts: Texts, number: int) -> Texts:
    """The texts [1, R, ...] of one member."""
    return Texts(*(x[number : number + 1] for x in (texts.tokens, texts.attention, texts.completion_mask)))


@dataclass(frozen=True)
class Sample:
    """A pair or an example, as environments hand them out."""

    prompt: tuple[int, ...]
    chosen: tuple[int, ...] = ()
    rejected: tuple[int, ...] = ()
    completion: tuple[int, ...] = ()


def samples(members: int) -> list[list[Sample]]:
    """Pairs and examples of every member: for each prompt two answers of one to four digits."""
    end, rng = base().tokenizer.eos_token_id, np.random.default_rng(3)

    def sample(prompt: list[int]) -> Sample:
        a, b = ((*tuple(int(x) for x in rng.integers(3, 13, rng.integers(1, 5))), end) for _ in range(2))
        return Sample(tuple(prompt), a, b, a)

    return [[sample(prompt) for prompt in prompts()] for _ in range(members)]


def moved(one: Any, other: Any) -> float:
    """The largest difference of any weight."""
    names = one.registry.all_registered()
    each = [zip(getattr(one, n).parameters(), getattr(other, n).parameters(), strict=True) for n in names]
    return max(float((p.detach() - q.detach()).abs().max()) for pairs in each for p, q in pairs)


def compare(agents: list[Any], twins: list[Any]) -> float:
    """The largest difference of any weight and any moment."""
    worst = 0.0
    for one, other in zip(agents, twins, strict=True):
        worst = max(worst, moved(one, other))
        for config in one.registry.optimizers:
            left, right = (getattr(agent, config.name).state_dict()["state"] for agent in (one, other))
            assert left.keys() == right.keys()
            for key in left:
                assert float(left[key]["step"]) == float(right[key]["step"])
                worst = max(worst, float((left[key]["exp_avg"] - right[key]["exp_avg"]).abs().max()))
    return worst
