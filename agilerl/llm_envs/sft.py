"""Prompts with target completions, for supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch

from agilerl.core import foreign
from agilerl.errors import ConfigError, EnvError
from agilerl.llm_envs.data import DataGym
from agilerl.llm_envs.prompts import Example
from agilerl.llm_envs.templates import check_template, completed, encoded, padded, with_answers


class SFTGym(DataGym[Example]):
    """Prompts with target completions.

    `split` and `batch` are pure functions, for training; `reset` and `step` return one batch after another, for custom
    loops.

    Args:
        train_dataset, test_dataset: rows as a list of mappings, a `datasets.Dataset`, or another sequence of rows.
        tokenizer: of transformers.
        data_batch_size_per_gpu: examples of a batch, per process.
        accelerator: of accelerate; each process gets a share of every batch.
        max_context_length: tokens of prompt and completion; longer examples are dropped, with a warning.
        seed: of the order of the training batches.
        report_dataset: a third split, for reported results.
        conversation_template: messages with {question} in place of the prompt; None: the prompt itself.
        prompt_column, completion_column: of the rows; text, or messages of a conversation, whose last one is the
            completion and the others the prompt. None: "prompt" and "completion" or "response", or "question" and
            "answer" if the rows have those.
        response_column: alias of completion_column.

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
        prompt_column: str | None = None,
        completion_column: str | None = None,
        response_column: str | None = None,
    ) -> None:
        if response_column is not None:
            if completion_column not in (None, response_column):
                raise ConfigError(
                    f"completion_column={completion_column!r} and response_column={response_column!r} are one "
                    "argument. fix: completion_column alone."
                )
            completion_column = response_column
        self.conversation_template = check_template(conversation_template)
        first = train_dataset[0] if isinstance(train_dataset, Sequence) and train_dataset else None
        if first is None and hasattr(train_dataset, "column_names"):  # datasets.Dataset
            first = dict.fromkeys(train_dataset.column_names)
        named = isinstance(first, Mapping) and {"question", "answer"} <= set(first) and "prompt" not in first
        self.prompt_column = prompt_column or ("question" if named else "prompt")
        responds = isinstance(first, Mapping) and "response" in first and "completion" not in first
        usual = "answer" if named else "response" if responds else "completion"
        self.completion_column = completion_column or usual
        super().__init__(
            {"train": train_dataset, "test": test_dataset, "report": report_dataset},
            tokenizer,
            {"prompt_column": self.prompt_column, "completion_column": self.completion_column},
            data_batch_size_per_gpu,
            accelerator,
            max_context_length,
            seed,
        )

    def reset(self, reset_dataloaders: bool = False) -> dict[str, Any]:
        """The next batch of examples.

        Args:
            reset_dataloaders: restart the sequence of batches; inside `eval_mode` only that of the test split.

        Returns:
            prompt_lengths [B]; input_ids and attention_mask [B, L], prompt and completion, padded on the right; prompt
            and completion: B texts.
        """
        return self._published(self._next(reset_dataloaders))

    def step(self, completions: object = None) -> dict[str, Any]:
        """The next batch of examples; nothing is scored here, so completions must be None."""
        if completions is not None:
            raise EnvError("examples are learned from as they are: step takes no completions. fix: step().")
        self._current()
        return self._published(self._next(False))

    def _published(self, examples: Sequence[Example]) -> dict[str, Any]:
        ids, mask = padded([(*each.prompt, *each.completion) for each in examples], self.pad_token_id)
        return {
            "prompt_lengths": torch.tensor([len(each.prompt) for each in examples]),
            "input_ids": ids,
            "attention_mask": mask,
            "prompt": [self.tokenizer.decode(each.prompt) for each in examples],
            "completion": [self.tokenizer.decode(each.completion[:-1]) for each in examples],
        }

    def _key(self, row: Mapping[str, Any]) -> Hashable:
        return str(row[self.prompt_column])

    def _tokenised(self, rows: Sequence[Mapping[str, Any]], split: str) -> Iterator[tuple[Example, int]]:
        texts = [
            with_answers(
                self.tokenizer, self.conversation_template, row[self.prompt_column], [row[self.completion_column]],
                f"row {number} of the split {split!r}",
            )
            for number, row in enumerate(rows)
        ]  # fmt: skip
        prompts = encoded(self.tokenizer, [prompt for prompt, _ in texts])
        answers = [(answer, plain) for (_, plain), (answer,) in texts]
        completions = completed(self.tokenizer, answers, self.turn_end, self.end_ids)
        for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            if not prompt:
                raise EnvError(f"row {index} of the split {split!r} has a prompt without tokens. fix: leave it out.")
            yield Example(index, prompt, completion), len(prompt) + len(completion)
