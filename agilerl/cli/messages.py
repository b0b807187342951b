"""Messages on the command line: fixes in options instead of Python's keyword arguments, and usage errors with a fix."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from agilerl.cli.as_json import print_error
from agilerl.cli.commands import COMMANDS, LazyCommands, later
from agilerl.core.redaction import redact

# The base class of usage errors: Typer has vendored Click since 0.2x.
UsageError: Any = typer.BadParameter.__base__
WORDS = "agilerl.words"  # key of the words of the command line, in the context's meta
is_setting = later("lookup", "is_setting")
_command: ContextVar[typer.Context | None] = ContextVar("command", default=None)
# Manifest keys with a dedicated option.
OPTION_KEYS = {
    "--steps": "training.max_steps",
    "--population": "training.pop_size",
    "--seed": "training.seed",
    "--opponents": "training.opponents",
    "--dataset": "training.dataset",
    "--model": "algorithm.model_name",
    "--target": "training.target_score",
    "--num-envs": "environment.num_envs",
    "--env-kwargs": "environment.kwargs",
}
# Parts of a fix that are left unchanged (calls, commands in backticks, parentheses, settings), or key=value.
_PARTS = re.compile(
    r"`[^`]*`|[\w.]*\((?:[^()]|\([^()]*\))*\)|--(?:set|env-kwargs) \S+"
    r"""|(?<![\w.'"=/-])(?P<key>[A-Za-z_][\w.]*)=(?P<value>'[^']*'|"[^"]*"|\[[^]]*]|[^\s'"\[{(,;=]+)(?![(\w])"""
)
_HEALING_CALL = "make_vect_envs(..., healing=True)"
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


def remember_command(context: typer.Context, value: bool) -> bool:
    """Option callback, shared by every command, that makes it the current one for messages."""
    _command.set(context)
    return value


def command_as_json() -> str | None:
    """The name of the current command if it was called with `--json`, else None."""
    context = _command.get()
    if context is None or not context.params.get("as_json"):
        return None
    return _name_of(context)


def _name_of(context: typer.Context) -> str:
    """The name of a command, after that of its program."""
    return context.command_path.partition(" ")[2]


def on_command_line(message: str) -> str:
    """Rewrite the fixes of a library message in options of the command.

    `dataset='data.h5'` becomes `--dataset data.h5`. Settings without a dedicated option become `--set KEY=VALUE`, if
    the command has it. A message without a fix gets one; a message of several problems has a line for each.
    """
    context = _command.get()
    if context is None:
        return message
    if "fix: " not in message:
        return f"{message.rstrip()} fix: {_fix_of(message, context)}."
    return "\n".join(_in_options(line, context) for line in message.split("\n"))


def _in_options(line: str, context: typer.Context) -> str:
    """A line with its fix in options; unchanged if it is of a configuration file, which options do not mend."""
    file = context.params.get("config")
    if file and line.startswith(f"{Path(file).name}: "):
        return line
    what, mark, fix = line.partition("fix: ")
    return f"{what}{mark}{_PARTS.sub(lambda part: _part(part, context), fix)}"


def _fix_of(message: str, context: typer.Context) -> str:
    """The name that a message without a fix suggests, else the help of the command."""
    close = re.search(r"Did you mean '([^']+)'", message)
    if close:
        return close[1]
    return "one of the known names" if "(known: " in message else f"`{context.command_path} -h` says what it takes"


def _part(part: re.Match[str], context: typer.Context) -> str:
    """A part of a fix in command line syntax."""
    key, value = part["key"], part["value"]
    if key is None:
        takes_any = context.info_name in ("train", "continue")  # resume cannot change the environment
        return "--set environment.healing=true" if part[0] == _HEALING_CALL and takes_any else part[0]
    end = "." if value.endswith(".") else ""
    value = value.removesuffix(".").strip("'\"")
    names = {option.name: option for option in context.command.params if option.opts[0].startswith("-")}
    keys = {path: names.get(option[2:].replace("-", "_")) for option, path in OPTION_KEYS.items()}
    keys |= {path.rpartition(".")[2]: option for path, option in keys.items()}
    option: Any = names.get(key) or keys.get(key)
    if option is not None and value in ("True", "False") and option.is_flag:
        opts = option.opts if value == "True" else option.secondary_opts
        return f"{opts[-1]}{end}" if opts else f"leave {option.opts[-1]} out{end}"
    if option is not None:
        name = max(option.opts, key=len)
        return f"leave {name} out{end}" if value == "None" else f"{name} {shlex.quote(value)}{end}"
    if "settings" in names and is_setting(key):
        return f"--set {shlex.quote(f'{key}={_CONSTANTS.get(value, value)}')}{end}"
    return part[0]


class Commands(TyperGroup):
    """Command group whose usage errors end with a fix, and are printed as JSON too if the command has `--json`.

    The commands are those of the table `COMMANDS`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": LazyCommands()})

    def list_commands(self, ctx: Any) -> list[str]:
        """Override the base method, which loads all commands."""
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Override the base method, which loads all commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Override the base method, which loads all commands."""
        lines: dict[str, Any] = {name: TyperCommand(name, help=text) for name, (_, text) in COMMANDS.items()}
        menu = TyperGroup(name=self.name, params=self.params, commands=lines)
        context = typer.Context(menu, info_name=ctx.info_name, help_option_names=ctx.help_option_names)
        completed: list[Any] = menu.shell_complete(context, incomplete)
        return completed

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Extend the base method: keep the words, since a usage error may come before `--json` is parsed."""
        ctx.meta[WORDS] = list(args)
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def make_context(self, *args: Any, **settings: Any) -> Any:
        """Extend the base method: usage errors get a fix."""
        with _usage_errors():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Extend the base method: usage errors get a fix."""
        with _usage_errors():
            return super().invoke(ctx)


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        text = " ".join(error.format_message().split())
        if error.ctx is None or text.startswith("Usage: "):  # no command at all: the help is shown
            raise
        if "fix: " not in text:
            text = f"{text}{'' if text.endswith(('.', '?')) else '.'} fix: {_usage(error)}."
        takes_json = any(option.name == "as_json" for option in error.ctx.command.params)
        if takes_json and "--json" in error.ctx.meta[WORDS]:
            print_error(_name_of(error.ctx), UsageError.__name__, redact(text))
        raise UsageError(text, error.ctx) from None


def _usage(error: Any) -> str:
    """The correct usage for a command line that could not be parsed."""
    context, parameter = error.ctx, error.param if isinstance(error, typer.BadParameter) else None
    command, parameters = context.command_path, context.command.params
    if parameter is not None and parameter.opts[0].startswith("-"):
        return f"{parameter.opts[-1]} {parameter.metavar}"
    if parameter is not None:
        return f"`{command} {parameter.metavar or parameter.name}`"
    environment = [option for option in parameters if option.name == "env_id" and option.opts[0].startswith("-")]
    if environment and type(error) is UsageError:  # an argument too many, where an environment is named by an option
        return f"`{command} {environment[0].opts[0]} {environment[0].metavar}`"
    return f"`{command} -h` lists {'the commands' if isinstance(context.command, TyperGroup) else 'what it takes'}"
