"""From a row of a data set to the text that a model reads, and to its tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from agilerl.errors import ConfigError, nearest

_PLACEHOLDER = re.compile(r"\{(question|answer)\}")
_CHUNK = 1024  # texts that the tokenizer is given at once

Messages = Sequence[Mapping[str, str]]


def check_template(template: Any) -> tuple[dict[str, str], ...] | None:
    """The messages of a conversation template as they will be rendered, None for none.

    Raises:
        ConfigError: it is no list of {"role": ..., "content": ...}, or {question} is in none of its contents.
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


def filled(text: str, question: str, answer: Any) -> str:
    """`text` with {question} and {answer} replaced; other braces, and those of the question itself, stay."""
    values = {"question": question, "answer": str(answer)}
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


def rendered(tokenizer: Any, messages: Messages) -> tuple[str, bool]:
    """(text of a conversation for the model to go on with, whether the tokenizer adds its special tokens to it).

    A last message of the role "assistant" is gone on with; after any other one the model's turn begins. Without a chat
    template the contents are joined by newlines.

    Raises:
        ConfigError: the tokenizer's chat template refuses the conversation.
    """
    if not getattr(tokenizer, "chat_template", None):
        return "\n".join(message["content"] for message in messages), True
    going_on = messages[-1]["role"] == "assistant"
    try:
        text = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=not going_on, continue_final_message=going_on
        )
    except Exception as error:  # the template is a program of its author's, and raises what it likes
        roles = [message["role"] for message in messages]
        raise ConfigError(
            f"the tokenizer's chat template refuses a conversation of the roles {roles}: "
            f"{type(error).__name__}: {' '.join(str(error).split())[:200]}. "
            "fix: use roles that the model knows, often 'user' and 'assistant' alone."
        ) from error
    return str(text), False


def prompt_text(tokenizer: Any, template: Messages | None, value: Any, answer: Any = "") -> tuple[str, bool]:
    """As `rendered`, of what a column for prompts holds: text, or the messages of a conversation.

    Args:
        tokenizer: of transformers.
        template: messages with {question} for where the text goes; None for the text alone.
        value: of the column. Messages are a conversation of their own, which no template changes.
        answer: for {answer} in the template.

    Raises:
        ConfigError: messages that are no mappings with role and content.
    """
    if is_conversation(value):
        return rendered(tokenizer, check_messages(value))
    if template is None:
        return str(value), True
    return rendered(tokenizer, [{**m, "content": filled(m["content"], str(value), answer)} for m in template])


def completion_text(value: Any) -> str:
    """What a column for completions holds: text, or messages of which the last one is the completion."""
    return check_messages(value)[-1]["content"] if is_conversation(value) else str(value)


def is_conversation(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value)


def check_messages(messages: Iterable[Any]) -> list[Mapping[str, str]]:
    """The messages, each a mapping with a role and a content that are text; else ConfigError."""
    found = list(messages)
    for number, message in enumerate(found):
        right = isinstance(message, Mapping) and isinstance(message.get("content"), str)
        if not right or not isinstance(message.get("role"), str):
            raise ConfigError(
                f"message {number} of a conversation: expected a mapping with 'role' and 'content', both text; "
                f'got {message!r:.200}. fix: {{"role": "user", "content": "..."}}.'
            )
    return found


def completed(tokenizer: Any, texts: Iterable[str], end: int) -> Iterator[tuple[int, ...]]:
    """Tokens of each completion, with one end of sequence as the last."""
    for tokens in encoded(tokenizer, ((text, False) for text in texts)):
        said = len(tokens)
        while said and tokens[said - 1] == end:
            said -= 1
        yield (*tokens[:said], end)


def encoded(tokenizer: Any, texts: Iterable[tuple[str, bool]]) -> Iterator[tuple[int, ...]]:
    """Tokens of each (text, whether special tokens are added), without padding, truncation, or an end of sequence that
    the tokenizer appends of its own."""
    remaining = iter(texts)
    while chunk := list(islice(remaining, _CHUNK)):
        plain = _tokens(tokenizer, [text for text, _ in chunk], False)
        if not any(framed for _, framed in chunk):
            yield from plain
            continue
        for (_, framed), bare, full in zip(chunk, plain, _tokens(tokenizer, [t for t, _ in chunk], True), strict=True):
            appended = len(full) > len(bare) and full[-1] == tokenizer.eos_token_id != (bare or (None,))[-1]
            yield bare if not framed else full[:-1] if appended else full


def _tokens(tokenizer: Any, texts: list[str], special: bool) -> list[tuple[int, ...]]:
    found = tokenizer(texts, add_special_tokens=special, padding=False, truncation=False, verbose=False)["input_ids"]
    return [tuple(map(int, ids)) for ids in found]
