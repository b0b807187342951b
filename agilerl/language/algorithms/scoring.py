"""Evaluation of language policies: by greedy completions of a split, or by the likelihood of its texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from agilerl.errors import AlgorithmError
from agilerl.language.base import BaseModel
from agilerl.language.engines import SequentialAdapters
from agilerl.language.padding import pad_left
from agilerl.language.scoring import Texts
from agilerl.llm_envs.prompts import Example, Pair

Row = TypeVar("Row", Pair, Example)
AT_ONCE = 64
"""Prompts of one member that are answered, or scored, in one pass."""


def own_tokens(prompts: Sequence[Sequence[Any]], base: BaseModel) -> tuple[Tensor, Tensor]:
    """Return (tokens, attention) [N·B, P] of the prompts, member by member."""
    return pad_left([p.tokens for member_prompts in prompts for p in member_prompts], base.pad_id, base.device)


def written_texts(texts: Texts, base: BaseModel, members: int, group: int) -> list[list[list[str]]]:
    """Decode completions [N·B·G, ...]: by member, by prompt, for each of the group."""
    ids = texts.tokens[:, texts.prompt :].cpu().numpy()
    masks, ends = texts.completion_mask.cpu().numpy(), list(base.end_ids)
    rows = [row[mask & ~np.isin(row, ends)].tolist() for row, mask in zip(ids, masks, strict=True)]
    words = base.tokenizer.batch_decode(rows, skip_special_tokens=True)
    per = len(words) // members
    return [
        [words[i : i + group] for i in range(m * per, (m + 1) * per, group)]
        for m in range(members)
    ]  # fmt: skip


def completions_of(engine: Any, agents: Sequence[Any], prompts: Sequence[Sequence[Any]]) -> list[list[str]]:
    """Generate the greedy completion of every prompt, by member; prompts [N][B], equally many per member."""
    lead, base = agents[0], agents[0].base
    with engine.acting("actor") as forward:
        how = [agent.sampling(greedy=True) for agent in agents]
        texts = lead.backend().write(base, forward, own_tokens(prompts, base), 1, how, None, [a.actor for a in agents])
    return [[one[0] for one in completions] for completions in written_texts(texts, base, len(agents), 1)]


def rewards_of(engines: Sequence[Any], agents: Sequence[Any], envs: Sequence[Any], split: str) -> list[np.ndarray]:
    """Return by agent the reward of its greedy completion of every prompt of a split.

    Args:
        engines: result of `engines_for(agents)`, with the agents of each. envs: environment of each agent.
    """
    rewards: list[list[float]] = [[] for _ in agents]
    place = {id(agent): number for number, agent in enumerate(agents)}
    for engine in engines:
        rows = [place[id(agent)] for agent in engine.agents]
        splits = [envs[row].split(split) for row in rows]
        for first in range(0, len(splits[0]), AT_ONCE):
            prompts = [entries[first : first + AT_ONCE] for entries in splits]
            written = completions_of(engine, engine.agents, prompts)
            for row, entries, texts in zip(rows, prompts, written, strict=True):
                rewards[row] += envs[row].score(entries, [[text] for text in texts]).rewards[:, 0].tolist()
    return [np.asarray(entries) for entries in rewards]


def mean_reward(engines: Sequence[Any], agents: Sequence[Any], envs: Sequence[Any], split: str) -> list[float]:
    """Return the mean of `rewards_of` for each agent."""
    return [float(rewards.mean()) for rewards in rewards_of(engines, agents, envs, split)]


def flatten_turns(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], base: BaseModel) -> Texts:
    """Concatenate prompts with completions, without adding an end token: [R, P + T]."""
    pad = base.pad_id
    tokens, attention = pad_left(prompts, pad, base.device)
    length = max(len(c) for c in completions)
    after = torch.full((len(completions), length), pad, dtype=torch.long)
    mask = torch.zeros(after.shape, dtype=torch.bool)
    for row, completion in enumerate(completions):
        after[row, : len(completion)] = torch.tensor(list(completion))
        mask[row, : len(completion)] = True
    after, mask = after.to(base.device), mask.to(base.device)
    return Texts(torch.cat((tokens, after), -1), torch.cat((attention, mask), -1), mask)


def completion_rows(batch: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield (prompt, completion) of every row of a `PreferenceGym` or `SFTGym` batch, without padding."""
    names = ("prompt_lengths", f"{prefix}input_ids", f"{prefix}attention_mask")
    missing = [name for name in names if name not in batch]
    if missing:
        raise AlgorithmError(
            f"learn() got a batch without {', '.join(missing)}; it has {', '.join(map(str, batch)) or 'nothing'}. "
            "fix: what reset() or step() of a PreferenceGym (DPO) or an SFTGym (SFT) returned."
        )
    lengths, ids, attention = (torch.as_tensor(batch[name]).tolist() for name in names)
    for length, row, mask in zip(lengths, ids, attention, strict=True):
        tokens = tuple(token for token, is_there in zip(row, mask, strict=True) if is_there)
        yield tokens[:length], tokens[length:]


def _all_of(kind: type[Row], rows: Any, source: str) -> list[Row]:
    wrong = [row for row in rows if not isinstance(row, kind)] if isinstance(rows, list | tuple) else [rows]
    if wrong:
        fix = f"what reset() or step() of a {source} returned"
        raise AlgorithmError(f"learn() got {type(wrong[0]).__name__}. fix: {fix}.")
    return list(rows)


def pairs_of(experiences: Any) -> list[Pair]:
    """Return the pairs of a batch from `PreferenceGym.reset()` or `.step()`; a list of pairs is unchanged."""
    if not isinstance(experiences, Mapping):
        return _all_of(Pair, experiences, "PreferenceGym")
    both = zip(*(completion_rows(experiences, f"{name}_") for name in ("chosen", "rejected")), strict=True)
    return [Pair(index, prompt, chosen, rejected) for index, ((prompt, chosen), (_, rejected)) in enumerate(both)]


def examples_of(experiences: Any) -> list[Example]:
    """Return the examples of a batch from `SFTGym.reset()` or `.step()`; a list of examples is unchanged."""
    if not isinstance(experiences, Mapping):
        return _all_of(Example, experiences, "SFTGym")
    return [Example(index, *row) for index, row in enumerate(completion_rows(experiences))]


def pair_texts(pairs: Sequence[Sequence[Any]], base: BaseModel) -> Texts:
    """Convert pairs of each member [N][B] to texts [N, 2B, ...], alternating chosen and rejected."""
    prompts = [pair.prompt for member_pairs in pairs for pair in member_pairs for _ in range(2)]
    completions = [text for member_pairs in pairs for pair in member_pairs for text in (pair.chosen, pair.rejected)]
    return by_member(flatten_turns(prompts, completions, base), len(pairs))


def example_texts(examples: Sequence[Sequence[Any]], base: BaseModel) -> Texts:
    """Convert examples of each member [N][B] to texts [N, B, ...]."""
    flat = [example for member_examples in examples for example in member_examples]
    return by_member(flatten_turns([e.prompt for e in flat], [e.completion for e in flat], base), len(examples))


def by_member(texts: Texts, members: int) -> Texts:
    """Reshape texts [N·R, ...] to [N, R, ...]."""
    return Texts(*(x.view(members, -1, x.shape[-1]) for x in (texts.tokens, texts.attention, texts.completion_mask)))


@torch.no_grad()
def mean_margin(engines: Sequence[Any], agents: Sequence[Any], envs: Sequence[Any], split: str) -> list[float]:
    """Return β · (log-ratio of the chosen − that of the rejected completion), mean over a split's pairs, by agent."""
    return [float(margins.mean()) for margins in margins_by_pair(engines, agents, envs, split)]


@torch.no_grad()
def margins_by_pair(engines: Sequence[Any], agents: Sequence[Any], envs: Sequence[Any], split: str) -> list[np.ndarray]:
    """Return the margin of `mean_margin` for every pair; positive if the policy prefers the chosen completion."""

    def score(engine: Any, texts: Texts) -> Tensor:
        inputs = engine.given(texts)
        mask = inputs.completion_mask
        policy = engine.network("actor")(inputs).masked_fill(~mask, 0).sum(-1)
        reference = engine.target("actor")(inputs).masked_fill(~mask, 0).sum(-1)
        ratio = policy - reference
        margins: Tensor = engine.outer(engine.hp["beta"] * (ratio[..., 0::2] - ratio[..., 1::2]))
        return margins

    return _scored(engines, agents, envs, split, pair_texts, score)


def mean_likelihood(engines: Sequence[Any], agents: Sequence[Any], envs: Sequence[Any], split: str) -> list[float]:
    """Return the mean log-probability per completion token of a split, by agent."""
    scores = likelihoods(engines, agents, envs, split)
    return [float(agent_scores[:, 0].sum() / agent_scores[:, 1].sum()) for agent_scores in scores]


@torch.no_grad()
def likelihoods(engines: Sequence[Any], agents: Sequence[Any], envs: Sequence[Any], split: str) -> list[np.ndarray]:
    """Return [items, 2] by agent: log-probability and token count of each completion of a split."""

    def score(engine: Any, texts: Texts) -> Tensor:
        inputs = engine.given(texts)
        scores = engine.network("actor")(inputs).masked_fill(~inputs.completion_mask, 0).sum(-1)
        sums: Tensor = engine.outer(torch.stack((scores, inputs.completion_mask.sum(-1).to(scores)), -1))
        return sums

    return _scored(engines, agents, envs, split, example_texts, score)


def scores_by_item(agent: Any, env: Any, split: str) -> np.ndarray:
    """Return one agent's score on every item of a split; the mean is its fitness there.

    For examples: the log-probability of each completion divided by the mean token count of all completions.
    """
    engines, kind = [SequentialAdapters(agent)], agent.experience.name
    if kind == "examples":
        (sums,) = likelihoods(engines, [agent], [env], split)
        shares: np.ndarray = sums[:, 0] / sums[:, 1].mean()
        return shares
    judge = rewards_of if kind == "completions" else margins_by_pair
    return judge(engines, [agent], [env], split)[0]


def _scored(
    engines: Sequence[Any], agents: Sequence[Any], envs: Sequence[Any], split: str, lay_out: Any, score: Any
) -> list[np.ndarray]:
    """Return the `score` of every item of a split, by agent."""
    scores: list[list[np.ndarray]] = [[] for _ in agents]
    place = {id(agent): number for number, agent in enumerate(agents)}
    for engine in engines:
        rows = [place[id(agent)] for agent in engine.agents]
        splits = [envs[row].split(split) for row in rows]
        for first in range(0, len(splits[0]), AT_ONCE):
            texts = lay_out([entries[first : first + AT_ONCE] for entries in splits], agents[0].base)
            for row, values in zip(rows, score(engine, texts).cpu().double().numpy(), strict=True):
                scores[row].append(values)
    return [np.concatenate(entries) for entries in scores]
