"""Algorithms that learn from rewards of completions: generation, optimiser steps, the published methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.core.signatures import also_takes
from agilerl.errors import AlgorithmError, ShapeError
from agilerl.language.algorithms.base import LLMAlgorithm
from agilerl.language.algorithms.batches import TextBatch, permutations, without_silent_rows
from agilerl.language.algorithms.scoring import mean_reward
from agilerl.language.ends import is_end
from agilerl.language.engines import SequentialAdapters
from agilerl.language.generate import BACKENDS, RolloutBackend, Sampling, uniform_numbers
from agilerl.language.scoring import Texts
from agilerl.losses.completions import completion_weights, rewards_by_token
from agilerl.ranks import Ranks


class CompletionAlgorithm(LLMAlgorithm):
    """An algorithm that learns from rewards of its policy's completions.

    A subclass implements `arrange(engine, texts, rewards, rngs)`, which yields the optimiser steps of one iteration
    from texts [N, B·G, ...] and rewards [N, B, G], in an order drawn from one generator per member.
    """

    batch_size: int
    update_epochs: int
    group_size: int
    temperature: float
    max_output_tokens: int
    min_output_tokens: int
    top_k: int
    top_p: float
    _prompt_starts: tuple[Tensor, Tensor] | None = (
        None  # token ids [R, P + T] of `get_action`, start of each prompt [R]
    )

    def sampling(self, greedy: bool = False) -> Sampling:
        """Return the sampling options: stochastic in training, greedy in evaluation."""
        length = (self.max_output_tokens, self.min_output_tokens)
        return Sampling(*length, 0.0) if greedy else Sampling(*length, self.temperature, self.top_k, self.top_p)

    def backend(self) -> RolloutBackend:
        """Return the generation backend."""
        if self.rollout_backend == "vllm":
            from agilerl.language.vllm import VLLM  # optional dependency

            if self.base.writer is None:  # loading its copy of the base takes minutes
                self.base.writer = VLLM(self.base, self.vllm_config)
            writer: RolloutBackend = self.base.writer
            return writer
        backend: RolloutBackend = BACKENDS[self.rollout_backend]()
        return backend

    def get_action(  # type: ignore[override]  # prompts instead of observations
        self, obs: Sequence[Mapping[str, Any]], training: bool = True, repeat_prompts: bool = True
    ) -> tuple[list[Any], list[Any]]:
        """Generate completions of prompts: G sampled ones each in training, else one greedy completion.

        Args:
            repeat_prompts: False samples one completion of each prompt in training.
            obs: prompts, each with `input_ids` [1, P] and `attention_mask` [1, P], as returned by `ReasoningGym.reset`.

        Returns:
            (token ids [G, P + T] of each prompt, masks [G, P + T − 1]: whether the next token belongs to the
            completion).
        """
        engine, group = SequentialAdapters(self), self.group_size if training and repeat_prompts else 1
        tokens, attention = _stacked_prompts(obs, self.pad_token_id)
        how = self.sampling(greedy=not training)
        numbers = uniform_numbers([self.rng(self.learn_counter)], len(tokens) * group, how.max_tokens)
        with engine.acting("actor") as forward:
            texts = self.backend().write(
                self.base, forward, (tokens.to(self.base.device), attention.to(self.base.device)), group, [how],
                numbers.to(self.base.device) if training else None, [self.actor],
            )  # fmt: skip
        masks = torch.zeros(texts.tokens.shape[0], texts.tokens.shape[1] - 1, dtype=torch.bool)
        masks[:, texts.prompt - 1 :] = texts.completion_mask.cpu()
        if training:
            self._prompt_starts = texts.tokens, _first(texts.attention)
        return list(torch.split(texts.tokens, group)), list(torch.split(masks, group))

    @also_takes(turn_ids=None, sampling_logps=None)
    def learn(self, experiences: Mapping[str, Any] | Sequence[Any]) -> tuple[float, float]:
        """Perform all optimiser steps on (token ids, masks, rewards [B, G]) of `get_action` and an environment's
        `step`.

        Prompts of the last `get_action` begin where they began there, others at their first token other than padding.

        Returns:
            (mean loss, mean divergence from the reference policy).
        """
        texts, rewards = self._experience(experiences)
        engine = SequentialAdapters(self)
        results = []
        for batch in self.arrange(engine, texts, rewards, [self.rng(self.learn_counter)]):
            results.append(self.update(engine, batch))
        self.learn_counter += 1
        if not results:
            return 0.0, 0.0
        each = [(float(r.loss), 0.0 if r.kl is None else float(r.kl)) for r in results]
        return float(np.mean([x for x, _ in each])), float(np.mean([x for _, x in each]))

    def test(self, env: Any, swap_channels: bool = False, max_steps: int | None = None, loop: int = 1) -> float:
        """Return the mean reward of greedy completions on the environment's test split.

        The other arguments are ignored. The result is appended to `fitness`.
        """
        value = mean_reward([SequentialAdapters(self)], [self], [env], "test")[0]
        self.fitness.append(value)
        return value

    def counted(self, texts: Texts, mask_truncated: bool = False) -> Tensor:
        """Return [N, R]: 1 for completions to learn from, 0 for truncated ones if they are masked."""
        if not mask_truncated:
            return torch.ones(texts.tokens.shape[:2], device=texts.tokens.device)
        end = is_end(texts.tokens[..., texts.prompt :], self.base.end_ids) & texts.completion_mask
        return end.any(-1).float()

    def rows_of_step(self, engine: Any, rows: int) -> int:
        """Return the completions per optimiser step on this rank, of its `rows`; `batch_size` over all ranks."""
        share: int = -(-self.batch_size // engine.ranks.size)
        return min(share, rows)

    def minibatches(
        self, engine: Any, whole: TextBatch, rngs: Sequence[np.random.Generator], normalisation: str, always: bool
    ) -> Iterator[TextBatch]:
        """Yield optimiser steps of `batch_size` completions, shuffled separately per member, `update_epochs` times.

        Args:
            whole: all completions, [N, R, ...], with a weight [N, R] for each.
            always: whether completions without an advantage contribute a gradient (by a divergence, or a critic's
                loss). Otherwise they only count in the weights of the others and are skipped.
        """
        rows, ranks = whole.texts.tokens.shape[1], engine.ranks
        size, number = self.rows_of_step(engine, rows), 0
        for _ in range(self.update_epochs):
            order = permutations(rngs, rows).to(whole.texts.tokens.device)
            for first in range(0, rows, size):
                batch = whole.taken(order[:, first : first + size])
                assert batch.advantage is not None
                counts = batch.weight.to(batch.advantage.dtype)
                each = counts / counts.sum(1, keepdim=True).clamp_min(1)
                weight = completion_weights(batch.texts.completion_mask, each, normalisation, self.max_output_tokens)
                weight = of_all_ranks(weight, batch.texts.completion_mask, ranks, normalisation)
                signal = weight.sum(-1) > 0
                if not always:
                    signal &= (batch.advantage * weight).abs().sum(-1) > 0
                retained = without_silent_rows(replace(batch, weight=weight, number=number), signal, ranks)
                number += 1
                if retained is not None:
                    yield given(engine, retained)

    @torch.no_grad()
    def scored(self, engine: Any, network: Any, texts: Texts) -> Tensor:
        """Return a network's output at every completion token [N, R, T], in parts of `micro_batch_size`."""
        rows, size = texts.tokens.shape[1], self.micro_batch_size or texts.tokens.shape[1]
        parts = []
        for first in range(0, rows, size):
            part = engine.given(texts.rows(slice(first, first + size)))
            parts.append(engine.outer(network(part, engine.hp["temperature"])))
        return torch.cat(parts, 1)

    def _experience(self, experiences: Any) -> tuple[Texts, Tensor]:
        ids, masks, rewards = experiences
        dtype = next(self.actor.parameters()).dtype
        rewards = torch.as_tensor(np.asarray(rewards), dtype=dtype, device=self.base.device)
        width = max(x.shape[-1] for x in ids)
        rows, masked = [], []
        for row, mask in zip(ids, masks, strict=True):
            rows.append(torch.nn.functional.pad(row, (0, width - row.shape[-1]), value=self.pad_token_id))
            masked.append(torch.nn.functional.pad(mask, (0, width - row.shape[-1])))
        tokens, marks = torch.cat(rows), torch.cat(masked).bool().to(rows[0].device)
        if rewards.numel() != len(tokens):
            raise ShapeError(
                f"{self.algo}.learn got {rewards.numel()} rewards for {len(tokens)} completions. fix: rewards [B, G]."
            )
        prompt = int(marks.any(0).nonzero()[0]) + 1 if bool(marks.any()) else width - 1
        last = marks.long().cumsum(-1).argmax(-1) + 1
        place = torch.arange(width, device=tokens.device)
        start = _first(tokens != self.pad_token_id)  # of texts from elsewhere
        if self._prompt_starts is not None and torch.equal(tokens, self._prompt_starts[0].to(tokens.device)):
            start = self._prompt_starts[1].to(tokens.device)  # prompts may begin with the padding token
        attention = (place >= start.unsqueeze(-1)) & (place <= last.unsqueeze(-1))
        texts = Texts(tokens, attention, marks[:, prompt - 1 :])
        one = Texts(*(x.unsqueeze(0) for x in (texts.tokens, texts.attention, texts.completion_mask)))
        return one, rewards.view(1, -1, rewards.shape[-1])


def _first(marks: Tensor) -> Tensor:
    """Return the index of the first true entry [R] of marks [R, W]."""
    return marks.long().argmax(-1)


def token_rewards(rewards: Tensor, completion_mask: Tensor) -> Tensor:
    """Place rewards [N, B, G] at the last token of each completion [N, R, T]; token rewards are unchanged."""
    return rewards if rewards.shape == completion_mask.shape else rewards_by_token(rewards.flatten(1), completion_mask)


def of_all_ranks(weight: Tensor, completion_mask: Tensor, ranks: Ranks, normalisation: str) -> Tensor:
    """Return weights [N, R, T] such that the mean loss over ranks is the loss over the completions of all ranks.

    Tokens, or else completions, count equally: a rank with more of them counts for more.
    """
    if ranks.size == 1:
        return weight
    learned = completion_mask & (weight > 0)
    count = (learned if normalisation == "token" else learned.any(-1, keepdim=True)).sum((-2, -1)).double()
    share = count / ranks.mean(count).clamp_min(1e-12)
    return weight * share.to(weight).view(-1, 1, 1)


def given(engine: Any, batch: TextBatch) -> TextBatch:
    """Return a batch [N, ...] in the format that this engine's `update` takes."""
    fields = {
        name: engine.inner(value)
        for name in ("weight", "advantage", "old", "reference", "returns", "values")
        if (value := vars(batch)[name]) is not None
    }
    return TextBatch(engine.given(batch.texts), **fields, live=batch.live, number=batch.number)


def check_groups(algo: str, rewards: Tensor) -> None:
    """Raise AlgorithmError if rewards [..., B, G] have groups of one, whose advantages are always 0."""
    if rewards.shape[-1] < 2:
        raise AlgorithmError(
            f"{algo} compares completions of one prompt (games of one beginning), and each group has only one, from "
            "which nothing is learned. fix: group_size=4 (of games: SyncMultiTurnVecEnv(make, batch_size, 4))."
        )


def _stacked_prompts(prompts: Sequence[Mapping[str, Any]], pad: int) -> tuple[Tensor, Tensor]:
    """Stack published prompts to (tokens, attention) [B, P], left-padded with `pad` whatever their own padding."""
    tokens = [torch.as_tensor(p["input_ids"]).reshape(1, -1) for p in prompts]
    masks = [torch.as_tensor(p["attention_mask"]).reshape(1, -1).bool() for p in prompts]
    width = max(t.shape[-1] for t in tokens)
    wide = [torch.nn.functional.pad(t, (width - t.shape[-1], 0), value=pad) for t in tokens]
    marks = [torch.nn.functional.pad(m, (width - m.shape[-1], 0)) for m in masks]
    together = torch.cat(marks)
    return torch.cat(wide).masked_fill(~together, pad), together
