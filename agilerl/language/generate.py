"""Generation: each prompt is processed once, and its completions share the cached keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from agilerl.errors import ConfigError
from agilerl.language import needs
from agilerl.language.base import BaseModel, Forward
from agilerl.language.ends import is_end
from agilerl.language.padding import positions_of
from agilerl.language.scoring import Texts, first_end


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters.

    Attributes:
        max_tokens: of a completion. min_tokens: minimum number before an end of text.
        temperature: 0 is greedy.
        top_k, top_p: restrict sampling to the most probable tokens; 0 and 1: no restriction, which matches the
            probabilities that a policy is trained with.
    """

    max_tokens: int = 64
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or not 0 <= self.min_tokens <= self.max_tokens:
            raise ConfigError(
                f"completions have 0 ≤ min_tokens ≤ max_tokens, and at least one token; got {self.min_tokens} and "
                f"{self.max_tokens}. fix: max_output_tokens=64."
            )
        if self.temperature < 0 or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ConfigError(
                f"sampling needs temperature ≥ 0, top_k ≥ 0 and 0 < top_p ≤ 1; got {self.temperature}, {self.top_k} "
                f"and {self.top_p}. fix: temperature=1.0, top_k=0, top_p=1.0."
            )


class RolloutBackend(Protocol):
    """Back end that generates completions."""

    name: str

    def write(
        self, base: BaseModel, forward: Forward, prompts: tuple[Tensor, Tensor], group: int, how: Sequence[Sampling],
        numbers: Tensor | None, adapters: Sequence[Any] = (),
    ) -> Texts:  # fmt: skip
        """Generate G completions for every prompt.

        Args:
            forward: forward pass of the decoder, for all members.
            prompts: (tokens, attention) [N·B, P], padded on the left, grouped by member.
            how: sampling of each of the N members; they generate together, so that all share one `max_tokens`.
            numbers: [N·B·G, T] uniform in [0, 1), for sampling; None is greedy.
            adapters: the members' networks, for back ends that run in a separate process.

        Returns:
            Texts [N·B·G, P + T]; the completions of a prompt are consecutive.
        """


class PrefixShared:
    """Process each prompt once and repeat its keys and values for its G completions; finished rows are dropped."""

    name = "prefix-shared"

    @torch.no_grad()
    def write(
        self, base: BaseModel, forward: Forward, prompts: tuple[Tensor, Tensor], group: int, how: Sequence[Sampling],
        numbers: Tensor | None, adapters: Sequence[Any] = (),
    ) -> Texts:  # fmt: skip
        tokens, attention = prompts
        ends, pad = base.end_ids, base.pad_id
        cache = needs("transformers").DynamicCache()
        hidden = forward(tokens, attention, positions_of(attention), cache)[:, -1]
        if group > 1:
            cache.batch_repeat_interleave(group)
            hidden, tokens, attention = (x.repeat_interleave(group, 0) for x in (hidden, tokens, attention))
        rows, length = tokens.shape[0], how[0].max_tokens
        written = torch.full((rows, length), pad, dtype=torch.long, device=tokens.device)
        going = torch.ones(rows, dtype=torch.bool, device=tokens.device)
        at = torch.arange(rows, device=tokens.device)  # output row of each row in the cache
        position = attention.long().sum(-1, keepdim=True)
        for step in range(length):
            drawn = None if numbers is None else numbers[at, step]
            chosen = choose(base.logits(hidden), how, drawn, step, ends, len(how))
            chosen = torch.where(going[at], chosen, torch.full_like(chosen, pad))
            written[at, step] = chosen
            going[at] &= ~is_end(chosen, ends)
            if step == length - 1 or not bool(going.any()):
                break
            retained = _still(going[at], len(how))
            if retained is not None:
                cache.batch_select_indices(retained)
                at, chosen, attention, position = (
                    at[retained],
                    chosen[retained],
                    attention[retained],
                    position[retained],
                )
            attention = torch.cat((attention, torch.ones_like(attention[:, :1])), -1)
            hidden = forward(chosen.unsqueeze(-1), attention, position, cache)[:, -1]
            position = position + 1
        completion_mask = first_end(written, ends)
        whole = prompts[1].repeat_interleave(group, 0)
        return Texts(torch.cat((tokens, written), -1), torch.cat((whole, completion_mask), -1), completion_mask)


def _still(going: Tensor, members: int) -> Tensor | None:
    """Unfinished rows, equally many per member; None if dropping the others saves less than a quarter."""
    by_member = going.view(members, -1)
    max_rows = int(by_member.sum(1).max())
    if max_rows > 0.75 * by_member.shape[1]:
        return None
    order = torch.argsort(~by_member, dim=1, stable=True)[:, :max_rows].sort(1).values
    first = torch.arange(members, device=going.device).unsqueeze(1) * by_member.shape[1]
    return (order + first).flatten()


def choose(
    logits: Tensor, how: Sequence[Sampling], numbers: Tensor | None, step: int, ends: int | Sequence[int], members: int
) -> Tensor:
    """The next token [R] of every row, from logits [R, V], grouped by member.

    A token is the first whose cumulative probability exceeds the row's uniform number, so that a sample depends only on
    the member's numbers and logits.
    """
    scores = logits.double() if numbers is not None else logits.clone()
    rows = scores.view(members, -1, scores.shape[-1])  # a view: the loop writes into `scores`
    for member, sampling in enumerate(how):
        if step < sampling.min_tokens:
            rows[member, :, [ends] if isinstance(ends, int) else list(ends)] = -torch.inf
        if numbers is not None and sampling.temperature > 0:
            rows[member] /= sampling.temperature
            _keep_top(rows[member], sampling)
    if numbers is None:
        return scores.argmax(-1)
    shares = scores.softmax(-1).cumsum(-1)
    drawn = (shares <= numbers.unsqueeze(-1).to(shares) * shares[:, -1:]).sum(-1).clamp_max(scores.shape[-1] - 1)
    greedy = torch.tensor([sampling.temperature == 0 for sampling in how], device=logits.device)
    if bool(greedy.any()):
        return torch.where(greedy.repeat_interleave(rows.shape[1]), scores.argmax(-1), drawn)
    return drawn


def _keep_top(scores: Tensor, how: Sampling) -> None:
    """Set the scores outside top-k and top-p to −inf, in place."""
    if 0 < how.top_k < scores.shape[-1]:
        threshold = scores.topk(how.top_k, -1).values[..., -1:]
        scores.masked_fill_(scores < threshold, -torch.inf)
    if how.top_p < 1:
        ordered, index = scores.sort(-1, descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        out = torch.zeros_like(before, dtype=torch.bool).scatter_(-1, index, before >= how.top_p)
        scores.masked_fill_(out, -torch.inf)


class HuggingFace:
    """Reference back end: `generate` of transformers, with repeated prompts. It draws from torch's generator."""

    name = "hf"

    @torch.no_grad()
    def write(
        self, base: BaseModel, forward: Forward, prompts: tuple[Tensor, Tensor], group: int, how: Sequence[Sampling],
        numbers: Tensor | None, adapters: Sequence[Any] = (),
    ) -> Texts:  # fmt: skip
        if len(how) != 1:
            raise ConfigError("the back end 'hf' writes for one member at a time. fix: learner='sequential'.")
        sampling, (tokens, attention) = how[0], prompts
        is_drawn = numbers is not None and sampling.temperature > 0
        drawing = (
            {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p} if is_drawn else {}
        )
        ends, pad = list(base.end_ids), base.pad_id
        seed = 0 if numbers is None else int(numbers[0, 0].item() * 2**31)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            out = base.model.generate(
                input_ids=tokens, attention_mask=attention.long(), do_sample=is_drawn, num_return_sequences=group,
                max_new_tokens=sampling.max_tokens, min_new_tokens=sampling.min_tokens or None, eos_token_id=ends,
                pad_token_id=pad, **drawing,
            )  # fmt: skip
        written = torch.full((len(out), sampling.max_tokens), pad, dtype=torch.long, device=out.device)
        completions = out[:, tokens.shape[1] :]
        written[:, : completions.shape[1]] = completions
        completion_mask = first_end(written, ends)
        attention = attention.repeat_interleave(group, 0)
        tokens = tokens.repeat_interleave(group, 0)
        return Texts(torch.cat((tokens, written), -1), torch.cat((attention, completion_mask), -1), completion_mask)


BACKENDS: dict[str, Any] = {"prefix-shared": PrefixShared, "hf": HuggingFace}


def uniform_numbers(rngs: Sequence[np.random.Generator], rows: int, length: int) -> Tensor:
    """[N·rows, T] uniform in [0, 1), each member's from its own random stream."""
    return torch.from_numpy(np.concatenate([rng.random((rows, length)) for rng in rngs]))
