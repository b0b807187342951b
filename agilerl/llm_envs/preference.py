"""Preference pairs: prompts with a chosen and a rejected completion."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch

from agilerl.core import foreign
from agilerl.errors import AgileRLWarning, EnvError
from agilerl.llm_envs.data import DataGym
from agilerl.llm_envs.prompts import Pair
from agilerl.llm_envs.templates import check_template, completed, encoded, padded, with_answers


class PreferenceGym(DataGym[Pair]):
    """Prompts with a chosen and a rejected completion.

    `split` and `batch` are pure functions, for training; `reset` and `step` return one batch after another, for custom
    loops.

    Args:
        train_dataset, test_dataset: rows as a list of mappings, a `datasets.Dataset`, or another sequence of rows.
        tokenizer: of transformers.
        data_batch_size_per_gpu: pairs of a batch, per process.
        accelerator: of accelerate; each process gets a share of every batch.
        max_context_length: tokens of prompt and longer completion; longer pairs are dropped, with a warning.
        seed: of the order of the training batches.
        report_dataset: a third split, for reported results.
        conversation_template: messages with {question} in place of the prompt; None: the prompt itself.
        prompt_column, chosen_column, rejected_column: of the rows; text, or messages of a conversation. The last
            message of chosen and rejected is the completion; the messages before it, equal in both, are the prompt,
            which the chat template renders.

    Raises:
        ConfigError: a data set without rows, missing columns, numbers out of range.
    """

    def __init__(
        self,
        train_dataset: Any,
        test_dataset: object,
        tokenizer: foreign.Tokenizer,
        data_batch_size_per_gpu: int = 8,
        accelerator: foreign.Accelerator | None = None,
        max_context_length: int | None = None,
        seed: int = 42,
        *,
        report_dataset: object = None,
        conversation_template: object = None,
        prompt_column: str = "prompt",
        chosen_column: str = "chosen",
        rejected_column: str = "rejected",
    ) -> None:
        self.conversation_template = check_template(conversation_template)
        self.prompt_column, self.chosen_column, self.rejected_column = prompt_column, chosen_column, rejected_column
        super().__init__(
            {"train": train_dataset, "test": test_dataset, "report": report_dataset},
            tokenizer,
            {
                "prompt_column": prompt_column,
                "chosen_column": chosen_column,
                "rejected_column": rejected_column,
            },
            data_batch_size_per_gpu,
            accelerator,
            max_context_length,
            seed,
        )

    def reset(self, reset_dataloaders: bool = False) -> dict[str, Any]:
        """The next batch of pairs.

        Args:
            reset_dataloaders: restart the sequence of batches; inside `eval_mode` only that of the test split.

        Returns:
            prompt_lengths [B]; chosen_input_ids and chosen_attention_mask [B, C], prompt and completion, padded on the
            right; rejected_input_ids and rejected_attention_mask [B, R] likewise; prompt, chosen, rejected: B texts.
        """
        return self._published(self._next(reset_dataloaders))

    def step(self, completions: object = None) -> dict[str, Any]:
        """The next batch of pairs; nothing is scored here, so completions must be None."""
        if completions is not None:
            raise EnvError("pairs are learned from as they are: step takes no completions. fix: step().")
        self._current()
        return self._published(self._next(False))

    def _published(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        decode = self.tokenizer.decode
        batch: dict[str, Any] = {
            "prompt_lengths": torch.tensor([len(pair.prompt) for pair in pairs]),
            "prompt": [decode(pair.prompt) for pair in pairs],
        }
        for name in ("chosen", "rejected"):
            completions = [getattr(pair, name) for pair in pairs]
            rows = [(*pair.prompt, *tokens) for pair, tokens in zip(pairs, completions, strict=True)]
            batch[f"{name}_input_ids"], batch[f"{name}_attention_mask"] = padded(rows, self.pad_token_id)
            batch[name] = [decode(tokens[:-1]) for tokens in completions]
        return batch

    def _key(self, row: Mapping[str, Any]) -> Hashable:
        return str(row[self.prompt_column])

    def _tokenised(self, rows: Sequence[Mapping[str, Any]], split: str) -> Iterator[tuple[Pair, int]]:
        texts = [
            with_answers(
                self.tokenizer, self.conversation_template, row[self.prompt_column],
                [row[self.chosen_column], row[self.rejected_column]], f"row {number} of the split {split!r}",
            )
            for number, row in enumerate(rows)
        ]  # fmt: skip
        prompts = encoded(self.tokenizer, [prompt for prompt, _ in texts])
        chosen, rejected = (
            completed(self.tokenizer, [(both[which], plain) for (_, plain), both in texts], self.turn_end, self.end_ids)
            for which in (0, 1)
        )
        same = 0
        for index, pair in enumerate(zip(prompts, chosen, rejected, strict=True)):
            prompt, better, worse = pair
            if not prompt:
                raise EnvError(f"row {index} of the split {split!r} has a prompt without tokens. fix: leave it out.")
            same += better == worse
            yield Pair(index, prompt, better, worse), len(prompt) + max(len(better), len(worse))
        if same:
            warnings.warn(
                f"{same} of {len(rows)} pairs of the split {split!r} have the same completion twice, "
                "and teach nothing. fix: leave them out.",
                AgileRLWarning,
                stacklevel=4,
            )
