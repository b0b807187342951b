"""Data sets of language models as environments: splits, order of batches, position."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np

from agilerl.core import foreign
from agilerl.core.ranges import Count, CountOrZero, check
from agilerl.core.rng import Purpose, stream
from agilerl.errors import AgileRLWarning, ConfigError, EnvError, RunError, nearest, unknown_choice
from agilerl.language.ends import end_ids, turn_end
from agilerl.language.tokenizer import eos_id, pad_id, warn_if_replaced

Item = TypeVar("Item")
SPLITS = ("train", "test", "report")


@lru_cache(maxsize=8)
def epoch_order(seed: int, epoch: int, rows: int) -> np.ndarray:
    """The order [rows] int64 of an epoch; equal arguments give equal orders. Read only."""
    order = stream(seed, Purpose.ENVIRONMENT, epoch).permutation(rows)
    order.flags.writeable = False
    return order


def rows_of_batch(number: int, batch_size: int, rank: int, size: int, rows: int, seed: int) -> list[int]:
    """Rows of one rank's batch in the endless sequence of epochs, each shuffled differently.

    The sequence is cut into batches of size·batch_size, and each of those into shares of the ranks: all ranks together
    see the same rows as one process with a batch `size` times as large. Every row comes once per epoch; a batch may
    span two epochs.
    """
    first = (number * size + rank) * batch_size
    places = (divmod(first + i, rows) for i in range(batch_size))
    return [int(epoch_order(seed, epoch, rows)[place]) for epoch, place in places]


class DataGym(ABC, Generic[Item]):
    """Base class of gyms over data sets.

    Attributes:
        tokenizer: as passed.
        end_ids: tokens that end a completion. turn_end: the one that ends an answer of a conversation.
        data_batch_size: items of a batch, per rank.
        max_context_length: maximum tokens of an item; longer ones are dropped.
        seed: of the order of training batches.
        rank, world_size: number of this process and of all processes of the accelerator.
    """

    def __init__(
        self,
        datasets: Mapping[str, Any],
        tokenizer: foreign.Tokenizer,
        columns: Mapping[str, str],
        data_batch_size_per_gpu: int,
        accelerator: foreign.Accelerator | None,
        max_context_length: int | None,
        seed: int,
    ) -> None:
        check("data_batch_size_per_gpu", data_batch_size_per_gpu, Count, 1)
        check("max_context_length", max_context_length, Count | None, None)
        check("seed", seed, CountOrZero, 0)
        if not callable(foreign.method(tokenizer, "encode")) or not hasattr(tokenizer, "eos_token_id"):
            raise ConfigError(
                f"tokenizer must be one of transformers; got {type(tokenizer).__name__}. "
                "fix: agilerl.language.load_tokenizer(folder)."
            )
        self.tokenizer = tokenizer
        self.pad_token_id, self.eos_token_id = pad_id(tokenizer), eos_id(tokenizer)
        self.end_ids, self.turn_end = end_ids(tokenizer), turn_end(tokenizer)
        warn_if_replaced(tokenizer)
        self.data_batch_size = int(data_batch_size_per_gpu)
        self.max_context_length = max_context_length
        self.seed = int(seed)
        self.rank, self.world_size = _ranks(accelerator)
        for name in ("train", "test"):
            if datasets[name] is None:
                raise ConfigError(f"{name}_dataset is missing. fix: pass rows with {', '.join(columns.values())}.")
        self._rows = {name: _rows(name, data, columns) for name, data in datasets.items() if data is not None}
        self._warn_of_overlaps()
        self._items: dict[str, list[Item]] = {}
        self._evaluating = False
        self._given = {"train": 0, "test": 0}  # batches that `reset` and `step` have returned

    # --- data -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _tokenised(self, rows: Sequence[Mapping[str, Any]], split: str) -> Iterator[tuple[Item, int]]:
        """(item, its number of tokens) of each row."""

    @abstractmethod
    def _key(self, row: Mapping[str, Any]) -> Hashable:
        """The part of a row shown to the model; splits that share it overlap."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The available splits among "train", "test" and "report"."""
        return tuple(name for name in SPLITS if name in self._rows)

    def split(self, name: str) -> Sequence[Item]:
        """All items of a split in the order of its data set, tokenised once.

        Raises:
            ConfigError: an unknown split, a malformed row, or all rows are too long.
        """
        if name not in self._rows:
            if name in SPLITS:
                raise ConfigError(f"there is no split {name!r}. fix: pass {name}_dataset=.")
            raise ConfigError(unknown_choice("split", name, self.splits))
        if name not in self._items:
            max_tokens = self.max_context_length
            tokenised = list(self._tokenised(self._rows[name], name))
            retained = [item for item, tokens in tokenised if max_tokens is None or tokens <= max_tokens]
            if not retained:
                longest, shortest = max(n for _, n in tokenised), min(n for _, n in tokenised)
                raise ConfigError(
                    f"every one of the {len(tokenised)} rows of the split {name!r} is longer than "
                    f"max_context_length={max_tokens} tokens: they have {shortest} to {longest}. "
                    f"fix: max_context_length={longest}."
                )
            if len(retained) < len(tokenised):
                warnings.warn(
                    f"{len(tokenised) - len(retained)} of {len(tokenised)} rows of the split {name!r} are longer than "
                    f"max_context_length={max_tokens} tokens and are left out.",
                    AgileRLWarning,
                    stacklevel=3,
                )
            self._items[name] = retained
        return self._items[name]

    def batch(self, number: int, rank: int = 0, size: int = 1) -> list[Item]:
        """The number-th training batch of an endless sequence; a pure function of its arguments.

        Args:
            number: from 0.
            rank, size: share of the batch, see `rows_of_batch`.

        Returns:
            `data_batch_size` items.
        """
        if number < 0 or not 0 <= rank < size:
            raise ConfigError(
                f"number must be at least 0 and rank in [0, size); got number={number}, rank={rank}, size={size}. "
                "fix: count batches from 0."
            )
        items = self.split("train")
        rows = rows_of_batch(number, self.data_batch_size, rank, size, len(items), self.seed)
        return [items[row] for row in rows]

    @property
    def num_batches(self) -> int:
        """Training batches per epoch over all ranks, rounded up."""
        return -(-len(self.split("train")) // (self.data_batch_size * self.world_size))

    def __len__(self) -> int:
        """Number of items of the training split; inside `eval_mode`, of the test split."""
        return len(self.split("test" if self._evaluating else "train"))

    # --- one batch after another ------------------------------------------------------------------------------------

    @property
    def num_epochs(self) -> int:
        """Number of completed training epochs of `reset` and `step`."""
        return self._given["train"] * self.data_batch_size * self.world_size // len(self.split("train"))

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        """Context in which `reset`, `step` and `len` use the test split; training batches continue afterwards."""
        before, self._evaluating = self._evaluating, True
        try:
            yield
        finally:
            self._evaluating = before

    def _next(self, again: bool) -> list[Item]:
        """The next batch of the current mode; `again` restarts, while evaluating only the test split."""
        mode = "test" if self._evaluating else "train"
        if again:
            self._given = {**self._given, "test": 0} if self._evaluating else {"train": 0, "test": 0}
        self._given[mode] += 1
        return self._current()

    def _current(self) -> list[Item]:
        mode = "test" if self._evaluating else "train"
        if not self._given[mode]:
            raise EnvError(f"step comes after reset: no batch of the split {mode!r} was handed out. fix: call reset().")
        number = self._given[mode] - 1
        if not self._evaluating:
            return self.batch(number, self.rank, self.world_size)
        items, size = self.split("test"), self.data_batch_size
        first = (number * self.world_size + self.rank) % -(-len(items) // size) * size  # no item twice in a batch
        return list(items[first : first + size])

    # --- position ---------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Position of `reset` and `step`, as plain data."""
        return {"given": dict(self._given), **self._identity()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`: same data, seed and batch size.

        Raises:
            RunError: the state of a gym with other data, seed or batch size, or malformed.
        """
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise RunError(
                    f"this state of a {type(self).__name__} was taken with {name}={state.get(name)!r}, and here it is "
                    f"{value!r}. fix: make the gym as it was."
                )
        try:
            batches = {mode: int(state["given"][mode]) for mode in self._given}
        except (KeyError, TypeError, ValueError):
            batches = {"train": -1}
        if min(batches.values()) < 0:
            raise RunError(
                f"a state of a {type(self).__name__} needs batches given in train and test; got {state!r:.200}."
            )
        self._given = batches

    def _identity(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "batch_size": self.data_batch_size,
            "world_size": self.world_size,
            "rows": {name: len(self._rows[name]) for name in self.splits},
        }

    def _warn_of_overlaps(self) -> None:
        split_of: dict[Hashable, str] = {}
        for name in self.splits:
            keys = {self._key(row) for row in self._rows[name]}
            shared: dict[str, int] = {}
            for key in keys:
                if key in split_of:
                    shared[split_of[key]] = shared.get(split_of[key], 0) + 1
            for other, count in shared.items():
                warnings.warn(
                    f"{count} prompts of the split {name!r} are in {other!r}, too: what is measured there is partly "
                    "memory. fix: take them out of one of the two.",
                    AgileRLWarning,
                    stacklevel=5,
                )
            split_of.update(dict.fromkeys(keys, name))


def _ranks(accelerator: foreign.Accelerator | None) -> tuple[int, int]:
    if accelerator is None:
        return 0, 1
    if not hasattr(accelerator, "process_index") or not hasattr(accelerator, "num_processes"):
        raise ConfigError(f"accelerator must be an Accelerator or None; got {type(accelerator).__name__}. fix: None.")
    return int(accelerator.process_index), int(accelerator.num_processes)


def _rows(name: str, data: object, columns: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """All rows of a data set, each with all columns.

    Args:
        name: of the split.
        data: the data set.
        columns: argument that names it -> column.
    """
    if isinstance(data, Mapping):
        fix = f"pass one of its splits, {sorted(map(str, data))[:4]}" if data else "pass a list of rows"
        raise ConfigError(f"{name}_dataset must be rows; got a mapping ({type(data).__name__}). fix: {fix}.")
    if isinstance(data, str) or not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise ConfigError(
            f"{name}_dataset must be a list of mappings, a datasets.Dataset, or what has a length and rows by number; "
            f'got {type(data).__name__}. fix: [{{"question": ..., "answer": ...}}, ...].'
        )
    if not len(data):
        raise ConfigError(f"{name}_dataset has no rows. fix: pass at least one.")
    return [_checked(name, number, data[number], columns) for number in range(len(data))]


def _checked(name: str, number: int, row: object, columns: Mapping[str, str]) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise ConfigError(
            f"row {number} of {name}_dataset must be a mapping from columns to values; got {type(row).__name__}. "
            f"fix: {{{', '.join(f'{column!r}: ...' for column in columns.values())}}}."
        )
    for argument, column in columns.items():
        if column not in row:
            close = nearest(column, map(str, row), limit=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ConfigError(
                f"row {number} of {name}_dataset has no column {column!r}.{hint} (there: {sorted(map(str, row))}). "
                f"fix: {argument}={(close[0] if close else '...')!r}."
            )
        if row[column] is None and argument != "answer_column":  # some tasks score by the row alone
            raise ConfigError(f"row {number} of {name}_dataset: {column!r} is None. fix: leave the row out.")
    return row
