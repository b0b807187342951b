"""Questions with a reward for each completion: any data set with a reward function, and the tasks of reasoning-gym."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any

import torch
from torch import Tensor

from agilerl.core import foreign
from agilerl.core.hostile import malformed
from agilerl.core.ranges import Count, CountOrZero, Positive, check
from agilerl.core.rng import Purpose, seeds
from agilerl.errors import ConfigError, EnvError, ShapeError, nearest
from agilerl.language import needs
from agilerl.language.tokenizer import special_ids
from agilerl.llm_envs.data import DataGym
from agilerl.llm_envs.prompts import Prompt, Scores
from agilerl.llm_envs.rewards import RewardCaller
from agilerl.llm_envs.templates import after_prompt, check_template, encoded, prompt_tensors, prompt_text


class ReasoningGym(DataGym[Prompt]):
    """Questions of a data set, with a reward function for completions.

    `split`, `batch` and `score` are pure functions, for training; `reset` and `step` return one batch after another,
    for custom loops.

    Args:
        train_dataset, test_dataset: rows as a list of mappings, a `datasets.Dataset`, or another sequence of rows.
        tokenizer: of transformers; without a padding token it pads with its end of sequence, which may be its padding,
            too.
        reward_fn: called as reward_fn(completion, answer, question); returns a finite number. A parameter named `entry`
            receives the whole row. A failure affects its sample only: see `score`.
        conversation_template: messages {"role", "content"} with {question} and {answer} in them, rendered by the
            tokenizer's chat template if it has one; other braces are kept. None: the question itself.
        data_batch_size_per_gpu: prompts of a batch, per process.
        accelerator: of accelerate; each process gets a share of every batch.
        return_raw_completions: `completions` keeps special tokens, as generated, and the tokens after the first end of
            sequence.
        max_context_length: tokens; longer prompts are dropped, with a warning and their number.
        seed: of the order of the training batches.
        report_dataset: a third split, for reported results.
        reward_timeout: seconds that one call of the reward function may take.
        question_column, answer_column: of the rows.
        batched_reward: the function is called once per batch with lists, reward_fn(completions, answers, questions),
            and returns a list of the same length.

    Attributes:
        completions: of the last `step`, as text: B lists of G.

    Raises:
        ConfigError: a data set without rows, missing columns, a template without {question}, no reward function,
            numbers out of range.
    """

    def __init__(
        self,
        train_dataset: Any,
        test_dataset: object,
        tokenizer: foreign.Tokenizer,
        reward_fn: Callable[..., Any],
        conversation_template: object = None,
        data_batch_size_per_gpu: int = 8,
        accelerator: foreign.Accelerator | None = None,
        return_raw_completions: bool = False,
        max_context_length: int | None = None,
        seed: int = 42,
        *,
        report_dataset: object = None,
        reward_timeout: float = 10.0,
        question_column: str = "question",
        answer_column: str = "answer",
        batched_reward: bool = False,
    ) -> None:
        if not callable(reward_fn):
            raise ConfigError(
                f"reward_fn must be a function of (completion, answer, question); got {type(reward_fn).__name__}. "
                "fix: lambda completion, answer, question: float(completion.strip() == answer)."
            )
        check("reward_timeout", reward_timeout, Positive, 10.0, unit="seconds")
        self.reward_fn = reward_fn
        self.conversation_template = check_template(conversation_template)
        self.return_raw_completions = bool(return_raw_completions)
        self.question_column, self.answer_column = question_column, answer_column
        self._takes_entry = _has_parameter(reward_fn, "entry")
        self._caller = RewardCaller(self._call_reward, float(reward_timeout), batched=batched_reward)
        self.completions: list[list[str]] = []
        super().__init__(
            {"train": train_dataset, "test": test_dataset, "report": report_dataset},
            tokenizer,
            {"question_column": question_column, "answer_column": answer_column},
            data_batch_size_per_gpu,
            accelerator,
            max_context_length,
            seed,
        )

    @classmethod
    def from_reasoning_gym(
        cls,
        task: str,
        tokenizer: foreign.Tokenizer,
        *,
        train_size: int,
        test_size: int,
        report_size: int = 0,
        seed: int = 42,
        config: Mapping[str, Any] | None = None,
        exact: bool = False,
        extract: Callable[[str], str | None] = str.strip,
        **options: Any,
    ) -> ReasoningGym:
        """A task of the package reasoning-gym, such as "chain_sum".

        A completion that the task cannot parse scores 0. No question is in two splits. The report split is drawn first,
        then test, then training, so that the number of training questions does not affect the other splits.

        Args:
            task: of reasoning_gym.factory.DATASETS.
            tokenizer: as in the constructor.
            train_size, test_size, report_size: distinct questions of each split.
            seed: of the questions and of the order of batches.
            config: settings of the task, such as {"max_terms": 3}.
            exact: a reward of 1 for a full score and 0 for anything less; many tasks give partial scores.
            extract: maps a completion to the answer that is scored; None or "" scores 0.
            **options: of the constructor.

        Raises:
            ConfigError: an unknown task or setting, or fewer distinct questions than requested.
        """
        package = needs("reasoning_gym", "ReasoningGym.from_reasoning_gym")
        tasks = needs("reasoning_gym.factory").DATASETS
        if task not in tasks:
            close, *others = nearest(task, tasks) or [""]
            hint = f" Did you mean {close!r}?" if close else ""
            also = f" ({', '.join(map(repr, others))} are near, too.)" if others else ""
            raise ConfigError(
                f"unknown task of reasoning-gym {task!r}.{hint}{also} "
                f"fix: one of the {len(tasks)} names of reasoning_gym.factory.DATASETS."
            )
        wanted = {"report": report_size, "test": test_size, "train": train_size}
        check("train_size", train_size, Count, 1)
        check("test_size", test_size, Count, 1)
        check("report_size", report_size, CountOrZero, 0)
        total = sum(wanted.values())
        draws = 10 * total + 1000
        # reasoning-gym seeds rows with seed + row: neighbouring seeds would share nearly all questions.
        first = int(seeds(seed, Purpose.ENVIRONMENT, 1)[0])
        try:
            data = package.create_dataset(task, **{**(config or {}), "seed": first, "size": draws})
        except Exception as error:  # settings are checked by assertions, types not at all
            raise ConfigError(
                f"reasoning-gym does not make {task!r} with config={dict(config or {})}: "
                f"{type(error).__name__}: {' '.join(str(error).split())[:200]}. fix: see the task's configuration."
            ) from error
        by_question: dict[str, dict[str, Any]] = {}
        for row in range(draws):
            entry = data[row]
            by_question.setdefault(str(entry["question"]), entry)
            if len(by_question) == total:
                break
        if len(by_question) < total:
            raise ConfigError(
                f"{task!r} has {len(by_question)} distinct questions in {draws} draws with "
                f"config={dict(config or {})}; {total} are asked for. "
                "fix: smaller splits, or a config with more questions."
            )
        entries = iter(by_question.values())
        split = {name: list(islice(entries, count)) for name, count in wanted.items()}

        def reward(completion: str, answer: object, question: str, entry: Mapping[str, Any]) -> float:
            answer_text = extract(completion)
            try:
                score = float(data.score_answer(answer_text, entry)) if answer_text else 0.0
            except Exception:  # several tasks raise for an answer that they cannot parse
                return 0.0
            return float(score >= 1.0) if exact else score

        report = split["report"] or None
        return cls(split["train"], split["test"], tokenizer, reward, seed=seed, report_dataset=report, **options)

    # --- pure functions ---------------------------------------------------------------------------------------------

    def score(self, prompts: Sequence[Prompt], completions: Sequence[Sequence[str]]) -> Scores:
        """Rewards of G completions for each of B prompts.

        A call that raises, takes longer than `reward_timeout`, or returns no finite number affects its sample only: its
        reward is 0, it is marked in `failed`, counted in `samples_failed` and described. After three timeouts in one
        batch, the rest of that batch fails without being called. See `Deadline` for timeouts and their limits.

        Args:
            prompts: B of them.
            completions: B groups of G texts.

        Raises:
            ShapeError: not one group for each prompt, groups of different sizes, or a completion that is not text.
            RewardError: more than half of the last few hundred samples failed.
        """
        sizes = sorted({len(group) for group in completions})
        if len(completions) != len(prompts) or len(sizes) != 1 or sizes[0] < 1:
            raise ShapeError(
                f"score needs one group of completions for each of {len(prompts)} prompts, all equally large; got "
                f"{len(completions)} groups of {sizes}. fix: the same number of completions for every prompt."
            )
        samples, names = [], []
        for prompt, group in zip(prompts, completions, strict=True):
            for number, completion in enumerate(group):
                if not isinstance(completion, str):
                    raise ShapeError(
                        f"prompt {prompt.index}, completion {number} must be text; got {type(completion).__name__}. "
                        "fix: decode it first."
                    )
                samples.append((completion, prompt.answer, prompt.question, prompt.entry))
                names.append(f"prompt {prompt.index}, completion {number}")
        rewards, failed, faults = self._caller.score(samples, names)
        shape = (len(prompts), sizes[0])
        return Scores(rewards.reshape(shape), failed.reshape(shape), tuple(faults))

    @property
    def samples_scored(self) -> int:
        """Number of scored completions so far."""
        return self._caller.samples

    @property
    def samples_failed(self) -> int:
        """Number of those for which the reward function failed."""
        return self._caller.failures

    def _call_reward(self, completion: object, answer: object, question: object, entry: Mapping[str, Any]) -> Any:
        if self._takes_entry:
            return self.reward_fn(completion, answer, question, entry=entry)
        return self.reward_fn(completion, answer, question)

    # --- one batch after another ------------------------------------------------------------------------------------

    def reset(self, reset_dataloaders: bool = False) -> list[dict[str, Any]]:
        """The next batch of prompts.

        Args:
            reset_dataloaders: restart the sequence of batches; inside `eval_mode` only that of the test split.

        Returns:
            B mappings: input_ids [1, P] int64, attention_mask [1, P] int64, padded on the left to the longest of them;
            text, the rendered prompt.
        """
        return self._published(self._next(reset_dataloaders))

    def step(self, completions: Sequence[Any]) -> tuple[list[dict[str, Any]], torch.Tensor]:
        """Score the completions of the last prompts and return the next ones.

        Args:
            completions: for each of B prompts a tensor [G, P + T] of tokens that begin with the prompt returned by
                `reset` (with or without its padding); a completion ends at its first end of sequence.

        Returns:
            The next prompts, and the rewards [B, G] float32.

        Raises:
            ShapeError: not one tensor for each prompt, or tokens that do not begin with it.
        """
        prompts = self._current()
        if len(completions) != len(prompts):
            raise ShapeError(
                f"step needs completions of {len(prompts)} prompts; got {len(completions)}. "
                "fix: one tensor [completions, tokens] for each prompt of the last batch."
            )
        groups = [self._without_prompt(prompt, group) for prompt, group in zip(prompts, completions, strict=True)]
        texts = [[self._text(tokens, raw=False) for tokens in group] for group in groups]
        raw = self.return_raw_completions
        self.completions = [[self._text(tokens, raw=True) for tokens in group] for group in groups] if raw else texts
        rewards = torch.as_tensor(self.score(prompts, texts).rewards, dtype=torch.float32)
        return self._published(self._next(False)), rewards

    def _without_prompt(self, prompt: Prompt, group: Tensor) -> list[list[int]]:
        tokens = torch.as_tensor(group)
        if tokens.ndim != 2 or tokens.is_floating_point():
            raise ShapeError(
                f"completions of a prompt must be whole numbers [completions, tokens]; got {tokens.dtype} of shape "
                f"{tuple(tokens.shape)}. fix: pass what get_action returned."
            )
        pads = {self.pad_token_id, *special_ids(self.tokenizer)}
        rows = [after_prompt(row, prompt.tokens, pads) for row in tokens.tolist()]
        completions = [row for row in rows if row is not None]
        if len(completions) < len(rows):
            raise ShapeError(
                f"the completions of prompt {prompt.index} do not begin with its {len(prompt.tokens)} tokens. "
                "fix: pass prompt and completion together, in the order of the last batch."
            )
        return completions

    def _text(self, tokens: list[int], raw: bool) -> str:
        if not raw:
            tokens = list(takewhile(lambda token: token not in self.end_ids, tokens))
        return str(self.tokenizer.decode(tokens, skip_special_tokens=not raw, clean_up_tokenization_spaces=False))

    def _published(self, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        tensors = prompt_tensors([prompt.tokens for prompt in prompts], self.pad_token_id)
        texts = [self._text_of(prompt.entry)[0] for prompt in prompts]
        return [{**inputs, "text": text} for inputs, text in zip(tensors, texts, strict=True)]

    def state(self) -> dict[str, Any]:
        """Position of `reset` and `step`, and the number of failed rewards, as plain data."""
        return {**super().state(), "rewards": self._caller.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; RunError for other data, another seed or another batch size."""
        super().load_state(state)
        with malformed("the state of a ReasoningGym"):
            self._caller.load_state(state["rewards"])

    # --- data -------------------------------------------------------------------------------------------------------

    def _text_of(self, row: Mapping[str, Any]) -> tuple[str, bool]:
        question, answer = row[self.question_column], row[self.answer_column]
        return prompt_text(self.tokenizer, self.conversation_template, question, answer)

    def _key(self, row: Mapping[str, Any]) -> Hashable:
        shows = any("{answer}" in message["content"] for message in self.conversation_template or ())
        question = str(row[self.question_column])
        return (question, str(row[self.answer_column])) if shows else question

    def _tokenised(self, rows: Sequence[Mapping[str, Any]], split: str) -> Iterator[tuple[Prompt, int]]:
        questions = [str(row[self.question_column]) for row in rows]
        answers = [row[self.answer_column] for row in rows]
        for index, tokens in enumerate(encoded(self.tokenizer, map(self._text_of, rows))):
            if not tokens:
                raise EnvError(f"row {index} of {split!r} has no tokens: {questions[index]!r}. fix: leave it out.")
            yield Prompt(index, questions[index], answers[index], tokens, rows[index]), len(tokens)


def _has_parameter(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):  # built-in functions may have no signature
        return False
