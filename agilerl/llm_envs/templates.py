"""From a row of a data set to the text that a model reads, and to its tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from agilerl import foreign
from agilerl.errors import ConfigError, nearest, warn_once

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
    if not foreign.chat_template(tokenizer):
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


def with_answers(
    tokenizer: Any, template: Messages | None, prompt: Any, completions: Sequence[Any], where: str
) -> tuple[tuple[str, bool], list[str]]:
    """(prompt as of `rendered`, text of each answer) of a row with completions to one prompt.

    A completion is text, or messages of which the last one is the answer. Messages before it are the conversation that
    is answered: they are rendered by the chat template, and no conversation_template changes them. One that holds the
    prompt alone is the prompt.

    Args:
        template: messages with {question} for where the prompt goes.
        prompt: text, or the messages that completions go on from.
        where: names the row in errors.

    Raises:
        ConfigError: completions that answer different conversations, or one that the prompt is not part of.
    """
    parts = [_split_answer(value, where) for value in completions]
    answers = [answer for _, answer in parts]
    found = [_conversation(prompt, before, where) for before, _ in parts]
    if any(other != found[0] for other in found):
        raise ConfigError(
            f"{where}: its completions answer different conversations: {_shown(found[0])} and "
            f"{_shown(next(other for other in found if other != found[0]))}. "
            "fix: the same messages before both answers."
        )
    if is_conversation(prompt) or not any(before for before, _ in parts):
        return prompt_text(tokenizer, template, found[0] if is_conversation(prompt) else prompt), answers
    if template is not None and len(found[0]) == 1:
        return prompt_text(tokenizer, template, prompt), answers
    if template is not None:
        warn_once(
            "conversation_template and conversations",
            f"{where}: its completion is a conversation of {len(found[0]) + 1} messages, which conversation_template "
            "does not change. fix: conversation_template=None, or the answer alone as the completion.",
        )
    return prompt_text(tokenizer, None, found[0]), answers


def _split_answer(value: Any, where: str) -> tuple[list[dict[str, str]], str]:
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


def _conversation(prompt: Any, before: list[dict[str, str]], where: str) -> list[dict[str, str]]:
    """All messages before an answer; ConfigError where the prompt is not one of them."""
    given = _plain_messages(prompt) if is_conversation(prompt) else [{"role": "user", "content": str(prompt)}]
    if not before:
        return given
    if before[: len(given)] == given:
        return before
    if is_conversation(prompt) and before[0]["role"] == "assistant":  # goes on from the prompt
        return [*given, *before]
    asked = [message["content"].strip() for message in before if message["role"] == "user"]
    if not is_conversation(prompt) and str(prompt).strip() in asked:
        return before
    raise ConfigError(
        f"{where}: the prompt {_shown(given)} is not part of the conversation {_shown(before)} of its completion. "
        "fix: the first message of the user as the prompt, or the answer alone as the completion."
    )


def _plain_messages(value: Any) -> list[dict[str, str]]:
    return [{"role": message["role"], "content": message["content"]} for message in check_messages(value)]


def _shown(messages: Sequence[Mapping[str, str]]) -> str:
    texts = [f"{message['role']}: {message['content'][:30]!r}" for message in messages[:4]]
    return "[" + ", ".join([*texts, *(["..."] if len(messages) > 4 else [])]) + "]"


def is_conversation(value: Any) -> bool:
    """Whether a column holds messages; a list of numbers is text as any other value."""
    return isinstance(value, list | tuple) and any(isinstance(part, Mapping | str) for part in value)


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


def completed(
    tokenizer: Any, texts: Iterable[tuple[str, bool]], turn_end: int, ends: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """Tokens of each completion, with one token that ends it as the last.

    Args:
        texts: (completion, whether its prompt is plain text): such a text ends with the end of sequence `ends[0]`, an
            answer in a conversation with `turn_end`.
        ends: all tokens that end a completion; those that a text has at its end are replaced.
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
