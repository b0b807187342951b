"""Batches of one engine in one iteration: completions with rewards, preference pairs, or SFT examples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from agilerl.collect.collector import Tally
from agilerl.language.algorithms.batches import TextBatch
from agilerl.language.algorithms.scoring import (
    by_member,
    example_texts,
    margins_by_pair,
    mean_likelihood,
    own_tokens,
    pair_texts,
    rewards_of,
    written_texts,
)
from agilerl.language.base import BaseModel
from agilerl.language.ends import is_end
from agilerl.language.engines import SequentialAdapters, StackedAdapters
from agilerl.language.generate import uniform_numbers
from agilerl.language.scoring import Texts
from agilerl.ranks import Ranks

Engine = SequentialAdapters | StackedAdapters
Drawn = TypeVar("Drawn", bound=tuple[Any, Tensor])
FURTHER = 1 << 32
"""How far on in the endless sequence of batches dynamic sampling takes replacements of silent groups."""


class BatchSource(Protocol):
    """Training batches and evaluation for the members of one engine."""

    def batches(self, engine: Engine, rows: Sequence[Row]) -> Iterator[TextBatch]:
        """Yield the optimiser steps of one iteration; statistics are added to the rows' tallies."""

    def evaluate(
        self, engines: Sequence[Engine], agents: Sequence[Any], envs: Sequence[Any], split: str
    ) -> list[float]:
        """Return the fitness of each agent on a split."""


@dataclass
class Row:
    """One member in one iteration.

    Attributes:
        env: its environment. number: batch number. rng: random stream. tally: of its generation.
    """

    env: Any
    number: int
    rng: np.random.Generator
    tally: Tally
    items: list[Any] = field(default_factory=list)

    def batch(self, ranks: Ranks) -> list[Any]:
        """Return this rank's share of the batch."""
        batch: list[Any] = self.env.batch(self.number, ranks.rank, ranks.size)
        return batch

    def add(self, **numbers: float) -> None:
        """Add to the sums in the tally's details."""
        for name, value in numbers.items():
            self.tally.details[name] = self.tally.details.get(name, 0.0) + float(value)


class CompletionBatches:
    """Completions of prompts, with their rewards from the environment."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def batches(self, engine: Engine, rows: Sequence[Row]) -> Iterator[TextBatch]:
        lead: Any = engine.agents[0]
        fill = partial(_filled, pad=lead.pad_token_id)
        texts, rewards = resampled(engine, rows, self._written(engine, rows), self._written, fill)
        for row, member_rewards in zip(rows, rewards, strict=True):
            row.tally.scores.append(float(member_rewards.mean()))
            row.add(groups=len(member_rewards), silent_groups=int(are_silent(member_rewards).sum()))
        yield from lead.arrange(engine, texts, rewards, [row.rng for row in rows])

    def _written(self, engine: Engine, rows: Sequence[Row]) -> tuple[Texts, Tensor]:
        """Generate completions; return (texts [N, B·G, ...], rewards [N, B, G])."""
        agents, lead = engine.agents, engine.agents[0]
        group, base = lead.group_size, lead.base
        for row in rows:
            row.items = row.batch(engine.ranks)
        prompts = [row.items for row in rows]
        how = [agent.sampling() for agent in agents]
        numbers = uniform_numbers([row.rng for row in rows], len(prompts[0]) * group, how[0].max_tokens)
        with engine.acting("actor") as forward:
            flat = lead.backend().write(
                base, forward, own_tokens(prompts, base), group, how, numbers.to(base.device), [a.actor for a in agents]
            )
        rewards = []
        words = written_texts(flat, base, len(agents), group)
        for row, member_prompts, answers in zip(rows, prompts, words, strict=True):
            scores = row.env.score(member_prompts, answers)
            rewards.append(scores.rewards)
            row.add(failed_rewards=int(scores.failed.sum()), completions=scores.rewards.size)
            for line in scores.faults:
                self._say(line)
        texts = by_member(flat, len(agents))
        has_ended = is_end(texts.tokens[..., texts.prompt :], base.end_ids) & texts.completion_mask
        for row, completion_mask, end in zip(rows, texts.completion_mask, has_ended.any(-1), strict=True):
            row.add(completion_tokens=int(completion_mask.sum()), truncated=int((~end).sum()))
        return texts, torch.from_numpy(np.stack(rewards)).to(base.device, next(iter(engine.hp.values())).dtype)

    def evaluate(
        self, engines: Sequence[Engine], agents: Sequence[Any], envs: Sequence[Any], split: str
    ) -> list[float]:
        return [float(member_rewards.mean()) for member_rewards in rewards_of(engines, agents, envs, split)]


def are_silent(rewards: Tensor) -> Tensor:
    """Return [...] bool: groups of equal rewards [..., G], from whose comparison nothing is learned."""
    return (rewards == rewards[..., :1]).all(-1)


def resampled(
    engine: Engine,
    rows: Sequence[Row],
    batch: Drawn,
    draw: Callable[[Engine, Sequence[Row]], Drawn],
    fill: Callable[[Drawn, Drawn], Drawn],
) -> Drawn:
    """Replace silent groups of a batch by groups of further batches, at most `dynamic_sampling` times.

    Every rank goes on while any has silent groups.

    Args:
        batch: what `draw` returned for `rows`; its last part are the rewards [N, B, G].
        fill: replaces silent groups of its first batch by groups of its second.
    """
    lead: Any = engine.agents[0]
    for extra in range(lead.dynamic_sampling if hasattr(lead, "dynamic_sampling") else 0):
        if not engine.ranks.any(bool(are_silent(batch[1]).any())):
            break
        further = [Row(row.env, row.number + FURTHER * (extra + 1), row.rng, row.tally) for row in rows]
        batch = fill(batch, draw(engine, further))
    return batch


def replacements(rewards: Tensor, others: Tensor) -> list[tuple[int, int, int]]:
    """Return (member, silent group in `rewards`, group in `others` with unequal rewards), in order."""
    pairs = []
    for member, (silent, unequal) in enumerate(zip(are_silent(rewards), ~are_silent(others), strict=True)):
        numbers = (groups.nonzero().flatten().tolist() for groups in (silent, unequal))
        pairs += [(member, to, since) for to, since in zip(*numbers, strict=False)]
    return pairs


def _filled(batch: tuple[Texts, Tensor], spare: tuple[Texts, Tensor], pad: int) -> tuple[Texts, Tensor]:
    """Replace groups of equal rewards in `batch` by groups of `spare` with unequal ones, per member and in order."""
    (texts, rewards), (others, theirs) = batch, spare
    group = rewards.shape[-1]
    width = max(texts.prompt, others.prompt)
    texts, others = _widened(texts, width, pad), _widened(others, width, pad)
    parts = [x.clone() for x in (texts.tokens, texts.attention, texts.completion_mask)]
    rewards = rewards.clone()
    for member, to, since in replacements(rewards, theirs):
        rewards[member, to] = theirs[member, since]
        for part, other in zip(parts, (others.tokens, others.attention, others.completion_mask), strict=True):
            part[member, to * group : (to + 1) * group] = other[member, since * group : (since + 1) * group]
    return Texts(*parts), rewards


def _widened(texts: Texts, prompt: int, pad: int) -> Texts:
    """Pad prompts on the left to `prompt` tokens."""
    padding = prompt - texts.prompt
    if not padding:
        return texts
    wide = torch.nn.functional.pad
    return Texts(
        wide(texts.tokens, (padding, 0), value=pad), wide(texts.attention, (padding, 0)), texts.completion_mask
    )


class GivenTexts(ABC):
    """Base class of batches of texts that the environment provides; nothing is generated."""

    @abstractmethod
    def texts(self, batches: Sequence[Any], base: BaseModel) -> Texts:
        """Tokenise the batches of all members."""

    def batches(self, engine: Engine, rows: Sequence[Row]) -> Iterator[TextBatch]:
        lead: Any = engine.agents[0]
        texts = self.texts([row.batch(engine.ranks) for row in rows], lead.base)
        yield from lead.passes(engine, texts, None, [row.rng for row in rows])


class PreferenceBatches(GivenTexts):
    """Pairs of a chosen and a rejected completion."""

    def texts(self, batches: Sequence[Any], base: BaseModel) -> Texts:
        return pair_texts(batches, base)

    def evaluate(
        self, engines: Sequence[Engine], agents: Sequence[Any], envs: Sequence[Any], split: str
    ) -> list[float]:
        return [float(margins.mean()) for margins in margins_by_pair(engines, agents, envs, split)]


class SFTBatches(GivenTexts):
    """Prompts with target completions."""

    def texts(self, batches: Sequence[Any], base: BaseModel) -> Texts:
        return example_texts(batches, base)

    def evaluate(
        self, engines: Sequence[Engine], agents: Sequence[Any], envs: Sequence[Any], split: str
    ) -> list[float]:
        return mean_likelihood(engines, agents, envs, split)
