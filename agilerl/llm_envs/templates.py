"""Rendering of data set rows to prompts and tokens."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch

from agilerl.core import foreign
from agilerl.errors import ConfigError, nearest, warn_once

_PLACEHOLDER = re.compile(r"\{(question|answer)\}")
_CHUNK = 1024  # texts per call of the tokenizer

Messages = Sequence[Mapping[str, str]]


def check_template(template: object) -> tuple[dict[str, str], ...] | None:
    """The messages of a conversation template; None for None.

    Raises:
        ConfigError: not a list of {"role": ..., "content": ...}, or {question} is missing in all contents.
    """
    if template is None:
        return None
    if isinstance(template, str | Mapping) or not isinstance(template, Iterable):
        raise ConfigError(
            f"conversation_template must be a list of messages; got {type(template).__name__}. "
            'fix: [{"role": "user", "content": "{question}"}].'
        )
    messages = [{"role": message["role"], "content": message["content"]} for message in check_messages(template)]
    contents = " ".join(message["content"] for message in messages)
    if "{question}" not in contents:
        close = nearest("question", re.findall(r"\{\s*(\w+)\s*\}", contents), limit=1)
        hint = f" Did you mean {{question}} by {{{close[0]}}}?" if close else ""
        raise ConfigError(
            f"conversation_template holds {{question}} nowhere, so every prompt would be the same.{hint} "
            'fix: put {question} into the content of a message, as in {"role": "user", "content": "{question}"}.'
        )
    return tuple(messages)


def filled(text: str, question: str, answer: object) -> str:
    """`text` with {question} and {answer} replaced; other braces, and those in the question, are kept."""
    values = {"question": question, "answer": str(answer)}
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


def rendered(tokenizer: foreign.Tokenizer, messages: Messages) -> tuple[str, bool]:
    """(text of a conversation for the model to continue, whether the tokenizer adds its special tokens to it).

    A final message with the role "assistant" is continued; after any other one the model's turn begins. Without a chat
    template the contents are joined by newlines.

    Raises:
        ConfigError: the tokenizer's chat template rejects the conversation.
    """
    if not foreign.chat_template(tokenizer):
        return "\n".join(message["content"] for message in messages), True
    going_on = messages[-1]["role"] == "assistant"
    try:
        text = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=not going_on, continue_final_message=going_on
        )
    except Exception as error:  # a template is a program and may raise anything
        roles = [message["role"] for message in messages]
        raise ConfigError(
            f"the tokenizer's chat template refuses a conversation of the roles {roles}: "
            f"{type(error).__name__}: {' '.join(str(error).split())[:200]}. "
            "fix: use roles that the model knows, often 'user' and 'assistant' alone."
        ) from error
    return str(text), False


def prompt_text(
    tokenizer: foreign.Tokenizer, template: Messages | None, value: Any, answer: Any = ""
) -> tuple[str, bool]:
    """See `rendered`, for the value of a prompt column: text, or the messages of a conversation.

    Args:
        tokenizer: of transformers.
        template: messages with {question} in place of the text; None for the text alone.
        value: of the column. The template does not apply to messages.
        answer: for {answer} in the template.

    Raises:
        ConfigError: messages that are not mappings with role and content.
    """
    if is_conversation(value):
        return rendered(tokenizer, check_messages(value))
    if template is None:
        return str(value), True
    return rendered(tokenizer, [{**m, "content": filled(m["content"], str(value), answer)} for m in template])


def with_answers(
    tokenizer: foreign.Tokenizer, template: Messages | None, prompt: object, completions: Sequence[Any], where: str
) -> tuple[tuple[str, bool], list[str]]:
    """(prompt, see `rendered`; text of each answer) of a row with completions to one prompt.

    A completion is text, or messages whose last one is the answer. The messages before it are the conversation: they
    are rendered by the chat template, without conversation_template. A conversation that holds only the prompt is
    treated as the prompt.

    Args:
        template: messages with {question} in place of the prompt.
        prompt: text, or the messages that completions continue.
        where: names the row in errors.

    Raises:
        ConfigError: completions that answer different conversations, or a conversation without the prompt.
    """
    parts = [_split_answer(value, where) for value in completions]
    answers = [answer for _, answer in parts]
    conversations = [_conversation(prompt, before, where) for before, _ in parts]
    if any(other != conversations[0] for other in conversations):
        raise ConfigError(
            f"{where}: its completions answer different conversations: {_shown(conversations[0])} and "
            f"{_shown(next(other for other in conversations if other != conversations[0]))}. "
            "fix: the same messages before both answers."
        )
    if is_conversation(prompt) or not any(before for before, _ in parts):
        return prompt_text(tokenizer, template, conversations[0] if is_conversation(prompt) else prompt), answers
    if template is not None and len(conversations[0]) == 1:
        return prompt_text(tokenizer, template, prompt), answers
    if template is not None:
        warn_once(
            "conversation_template and conversations",
            f"{where}: its completion is a conversation of {len(conversations[0]) + 1} messages, which "
            "conversation_template does not change. "
            "fix: conversation_template=None, or the answer alone as the completion.",
        )
    return prompt_text(tokenizer, None, conversations[0]), answers


def _split_answer(value: object, where: str) -> tuple[list[dict[str, str]], str]:
    """(the messages before the answer, the answer)."""
    if not is_conversation(value):
        return [], str(value)
    messages = _plain_messages(value)
    if messages[-1]["role"] != "assistant":
        raise ConfigError(
            f"{where}: the last message of a completion must be the assistant's; got the role "
            f"{messages[-1]['role']!r}. fix: leave out what follows the answer."
        )
    return messages[:-1], messages[-1]["content"]


def _conversation(prompt: object, before: list[dict[str, str]], where: str) -> list[dict[str, str]]:
    """All messages before an answer; ConfigError if the prompt is not one of them."""
    messages = _plain_messages(prompt) if is_conversation(prompt) else [{"role": "user", "content": str(prompt)}]
    if not before:
        return messages
    if before[: len(messages)] == messages:
        return before
    if is_conversation(prompt) and before[0]["role"] == "assistant":  # goes on from the prompt
        return [*messages, *before]
    asked = [message["content"].strip() for message in before if message["role"] == "user"]
    if not is_conversation(prompt) and str(prompt).strip() in asked:
        return before
    raise ConfigError(
        f"{where}: the prompt {_shown(messages)} is not part of the conversation {_shown(before)} of its completion. "
        "fix: the first message of the user as the prompt, or the answer alone as the completion."
    )


def _plain_messages(value: Any) -> list[dict[str, str]]:
    return [{"role": message["role"], "content": message["content"]} for message in check_messages(value)]


def _shown(messages: Sequence[Mapping[str, str]]) -> str:
    texts = [f"{message['role']}: {message['content'][:30]!r}" for message in messages[:4]]
    return "[" + ", ".join([*texts, *(["..."] if len(messages) > 4 else [])]) + "]"


def is_conversation(value: object) -> bool:
    """Whether a column holds messages; a list of numbers is text, like any other value."""
    return isinstance(value, list | tuple) and any(isinstance(part, Mapping | str) for part in value)


def check_messages(messages: Iterable[Any]) -> list[Mapping[str, str]]:
    """The messages as a list; ConfigError unless each is a mapping with a text role and a text content."""
    checked = list(messages)
    for number, message in enumerate(checked):
        right = isinstance(message, Mapping) and isinstance(message.get("content"), str)
        if not right or not isinstance(message.get("role"), str):
            raise ConfigError(
                f"message {number} of a conversation: expected a mapping with 'role' and 'content', both text; "
                f'got {message!r:.200}. fix: {{"role": "user", "content": "..."}}.'
            )
    return checked


def completed(
    tokenizer: foreign.Tokenizer, texts: Iterable[tuple[str, bool]], turn_end: int, ends: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """Tokens of each completion, with one end token as the last.

    Args:
        texts: (completion, whether its prompt is plain text): after plain text a completion ends with the end of
            sequence `ends[0]`, in a conversation with `turn_end`.
        ends: all tokens that end a completion; trailing ones are replaced.
    """
    plain: list[bool] = []

    def noted() -> Iterator[tuple[str, bool]]:
        for text, is_plain in texts:
            plain.append(is_plain)
            yield text, False

    for number, tokens in enumerate(encoded(tokenizer, noted())):
        length = len(tokens)
        while length and tokens[length - 1] in ends:
            length -= 1
        yield (*tokens[:length], ends[0] if plain[number] else turn_end)


def encoded(tokenizer: foreign.Tokenizer, texts: Iterable[tuple[str, bool]]) -> Iterator[tuple[int, ...]]:
    """Tokens of each (text, whether special tokens are added), without padding, truncation, or an end of sequence
    appended by the tokenizer."""
    remaining = iter(texts)
    while chunk := list(islice(remaining, _CHUNK)):
        plain = _tokens(tokenizer, [text for text, _ in chunk], False)
        if not any(framed for _, framed in chunk):
            yield from plain
            continue
        for (_, framed), bare, full in zip(chunk, plain, _tokens(tokenizer, [t for t, _ in chunk], True), strict=True):
            appended = len(full) > len(bare) and full[-1] == tokenizer.eos_token_id != (bare or (None,))[-1]
            yield bare if not framed else full[:-1] if appended else full


def _tokens(tokenizer: foreign.Tokenizer, texts: list[str], special: bool) -> list[tuple[int, ...]]:
    token_ids = tokenizer(texts, add_special_tokens=special, padding=False, truncation=False, verbose=False)[
        "input_ids"
    ]
    return [tuple(map(int, ids)) for ids in token_ids]


def padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and attention mask, both [B, L] int64, right-padded to the longest row."""
    max_length = max(map(len, rows))
    tokens = torch.tensor([[*row, *[pad] * (max_length - len(row))] for row in rows])
    return tokens, torch.tensor([[1] * len(row) + [0] * (max_length - len(row)) for row in rows])


def prompt_tensors(prompts: Sequence[Sequence[int]], pad: int) -> list[dict[str, Any]]:
    """input_ids and attention_mask of each prompt, both [1, P] int64, left-padded to the longest prompt."""
    max_length = max(map(len, prompts))
    tensors = []
    for prompt in prompts:
        missing = max_length - len(prompt)
        tensors.append(
            {
                "input_ids": torch.tensor([[pad] * missing + list(prompt)]),
                "attention_mask": torch.tensor([[0] * missing + [1] * len(prompt)]),
            }
        )
    return tensors


def after_prompt(row: Sequence[int], prompt: Sequence[int], pads: Collection[int]) -> list[int] | None:
    """Tokens after the prompt in a row that begins with padding tokens and the prompt; None if it does not.

    pads: possible padding tokens: an agent may pad with another token than the environment's tokenizer.

    The first match counts.
    """
    wanted, length = list(prompt), len(prompt)
    for start in range(len(row) - length + 1):
        if list(row[start : start + length]) == wanted:
            return list(row[start + length :])
        if row[start] not in pads:
            return None
    return None
