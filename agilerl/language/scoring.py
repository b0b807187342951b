"""Hidden states and log-probabilities of completion tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from agilerl.language import needs
from agilerl.language.base import Forward
from agilerl.language.ends import is_end
from agilerl.language.padding import positions_of

CHUNK = 1 << 22
"""Maximum number of logits (rows times vocabulary) in memory: 16 MB in float32, and as much for their gradient."""


@dataclass(frozen=True)
class Texts:
    """Prompts, left-padded to P tokens, with completions, right-padded to T.

    Attributes:
        tokens: [..., R, P + T] int64. attention: [..., R, P + T] bool, false at padding.
        completion_mask: [..., R, T] bool: the tokens chosen by the policy, up to and including the first end of text,
            without an environment's answers.
    """

    tokens: Tensor
    attention: Tensor
    completion_mask: Tensor

    @property
    def prompt(self) -> int:
        """P, the padded length of a prompt."""
        return self.tokens.shape[-1] - self.completion_mask.shape[-1]

    def rows(self, index: Any) -> Texts:
        """Select rows of every member."""
        return Texts(*(part[..., index, :] for part in (self.tokens, self.attention, self.completion_mask)))

    def flat(self) -> Texts:
        """Flatten members: [N·R, ...]."""
        return Texts(*(part.flatten(0, -2) for part in (self.tokens, self.attention, self.completion_mask)))

    def trimmed(self) -> Texts:
        """Remove columns that are padding in every row."""
        used = self.attention.flatten(0, -2).any(0)
        first = int(used.nonzero()[0])
        last = max(int(used.nonzero()[-1]) + 1, self.prompt + 1)
        completion_mask = self.completion_mask[..., : last - self.prompt]
        return Texts(self.tokens[..., first:last], self.attention[..., first:last], completion_mask)

    def to(self, device: torch.device | str) -> Texts:
        """Move to a device."""
        return replace(self, **{name: part.to(device) for name, part in vars(self).items()})


def first_end(tokens: Tensor, ends: int | Sequence[int]) -> Tensor:
    """[..., T] bool: completion tokens up to and including the first end token.

    The end counts, even if padding has the same token id; later tokens do not.
    """
    there = is_end(tokens, ends).long()
    return (there.cumsum(-1) - there) == 0


def hidden_states(forward: Forward, texts: Texts, members: int = 1) -> Tensor:
    """Last hidden states [N·R, T, H] before each completion token.

    Prompts shared by several rows are processed once: their keys and values, gradients included, serve all of them.
    Results differ by rounding only; most of the work is saved if prompts are long compared with completions.

    Args:
        texts: [N·R, P + T], grouped by member. members: N.
    """
    shared = shared_prompts(texts, members)
    tokens, attention, positions = texts.tokens[:, :-1], texts.attention[:, :-1], positions_of(texts.attention)[:, :-1]
    if shared is None:
        return forward(tokens, attention, positions)[:, texts.prompt - 1 :]
    rows, place = shared
    cache, prompt = needs("transformers").DynamicCache(), texts.prompt
    last = forward(tokens[rows, :prompt], attention[rows, :prompt], positions[rows, :prompt], cache)[:, -1:][place]
    if tokens.shape[1] == prompt:
        return last
    cache.batch_select_indices(place)
    return torch.cat((last, forward(tokens[:, prompt:], attention, positions[:, prompt:], cache)), 1)


SHARED = 0.75
"""Prompts are processed separately if they are at most this share of the rows."""


def shared_prompts(texts: Texts, members: int) -> tuple[Tensor, Tensor] | None:
    """(rows [N·U] with every prompt of each member once, index [N·R] of each row's prompt among them).

    None if too few prompts are repeated. All members have U prompts; one with fewer repeats its first prompt.
    """
    key = (texts.tokens[:, : texts.prompt] * 2 + texts.attention[:, : texts.prompt]).view(members, -1, texts.prompt)
    each = [torch.unique(ids, dim=0, return_inverse=True)[1] for ids in key]
    max_prompts = max(int(ids.max()) + 1 for ids in each)
    count = key.shape[1]
    if max_prompts > SHARED * count:
        return None
    rows = torch.zeros(members, max_prompts, dtype=torch.long, device=key.device)
    for member, ids in enumerate(each):
        rows[member, ids] = torch.arange(count, device=key.device)  # any row with the prompt
    first = torch.arange(members, device=key.device).unsqueeze(1)
    place = torch.stack(each) + first * max_prompts
    return (rows + first * count).flatten(), place.flatten()


def log_probs(
    hidden: Tensor, head: Tensor, tokens: Tensor, temperature: Tensor | float = 1.0, bias: Tensor | None = None
) -> Tensor:
    """log softmax((W h + b) / τ)[token] [R, T] in float32 (float64 if the weights are), of tokens [R, T].

    Chunked: logits of a chunk are recomputed for its gradient, so that R·T·V numbers are never in memory at once.

    Args:
        hidden: [R, T, H] last hidden states. head, bias: W [V, H] and b [V] of the output layer; None: b = 0.
        temperature: a scalar, or [R], one per row.
    """
    kind = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    flat, chosen = hidden.reshape(-1, hidden.shape[-1]), tokens.reshape(-1)
    rates = torch.as_tensor(temperature, dtype=kind, device=hidden.device)
    each = rates.reshape(-1, 1).expand(tokens.shape[0], tokens.shape[1]).reshape(-1)
    size = max(1, CHUNK // head.shape[0])
    if len(flat) <= size:
        return _log_prob(flat, head, chosen, each, bias).view_as(tokens)
    parts = []
    for k in range(0, len(flat), size):
        part = (flat[k : k + size], head, chosen[k : k + size], each[k : k + size], bias)
        again = torch.is_grad_enabled() and flat.requires_grad
        parts.append(checkpoint(_log_prob, *part, use_reentrant=False) if again else _log_prob(*part))
    return torch.cat(parts).view_as(tokens)


def _log_prob(hidden: Tensor, head: Tensor, tokens: Tensor, temperature: Tensor, bias: Tensor | None) -> Tensor:
    product = hidden @ head.T
    product = product if bias is None else product + bias
    logits = product.to(temperature.dtype) / temperature.unsqueeze(-1)
    return logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)
