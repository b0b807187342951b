"""The terminal: a live table where one can be drawn, plain lines elsewhere, nothing when asked for silence."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from agilerl.telemetry.fanout import BaseSink
from agilerl.telemetry.live import LiveSink
from agilerl.telemetry.record import Birth, GenerationRecord, RunPlan, Sink
from agilerl.telemetry.text import generation_line, headline


class PlainSink(BaseSink):
    """One line per generation, without escape codes: for pipes, logs and continuous integration."""

    def __init__(self, stream: TextIO | None = None, path: str | None = None) -> None:
        self._stream = stream if stream is not None else sys.stdout
        self._path = path

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        """Print what is about to run, and any note on it."""
        self._print(headline(plan, self._path))
        for note in plan.notes:
            self._print(note)

    def generation(self, record: GenerationRecord) -> None:
        """Print the generation's line."""
        self._print(generation_line(record))

    def message(self, text: str) -> None:
        """Print the line."""
        self._print(text)


def can_draw(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a live table suits the stream: a terminal, and neither NO_COLOR nor CI is set."""
    if environment.get("NO_COLOR") or environment.get("CI") or environment.get("TERM") == "dumb":
        return False
    return bool(getattr(stream, "isatty", lambda: False)())


def console_sink(verbose: bool = True, stream: TextIO | None = None, path: str | None = None) -> Sink:
    """The sink for this terminal.

    Args:
        verbose: False gives a sink that prints nothing.
        stream: default standard output.
        path: of the run directory, shown in the first line.
    """
    if not verbose:
        return BaseSink()
    target = stream if stream is not None else sys.stdout
    return LiveSink(target, path) if can_draw(target) else PlainSink(target, path)
