"""Progress within a generation, and messages, as files: what `agilerl watch` reads beside the records."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agilerl.core.redaction import redact
from agilerl.telemetry.record import BaseSink, Birth, GenerationRecord, RunPlan

PROGRESS, MESSAGES = "progress.json", "messages.jsonl"
SECONDS_BETWEEN = 1.0


class ProgressSink(BaseSink):
    """Replaces progress.json at most once a second, and appends a line to messages.jsonl for every message.

    progress.json holds `env_steps` and `max_env_steps` of one member, `generation` (the number of ended ones),
    `generations` (expected), `seconds` of the run, `time` (Unix), and of a run in minutes `time_limit` (the seconds at
    which they are up). It is not flushed to disk: only its newest content matters.
    """

    def __init__(self, folder: str | os.PathLike[str], now: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._now, self._written = Path(folder), now, float("-inf")
        self._content: dict[str, Any] = {}

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        self._content = {"generation": 0, "generations": None, "max_env_steps": plan.max_env_steps}
        self._content |= {} if plan.time_limit is None else {"time_limit": plan.time_limit}

    def progress(self, env_steps: int, seconds: float) -> None:
        if self._now() - self._written >= SECONDS_BETWEEN:
            self._write(env_steps, seconds)

    def generation(self, record: GenerationRecord) -> None:
        """Write at once: the generation has ended."""
        self._content |= {
            "generation": record.generation + 1, "generations": record.generations,
            "max_env_steps": record.max_env_steps,
        }  # fmt: skip
        self._write(record.env_steps, record.seconds)

    def message(self, text: str) -> None:
        line = json.dumps({"time": round(time.time(), 3), "text": redact(text)})
        with open(self._folder / MESSAGES, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _write(self, env_steps: int, seconds: float) -> None:
        self._written = self._now()
        content = {**self._content, "env_steps": env_steps, "seconds": round(seconds, 3), "time": round(time.time(), 3)}
        temporary = self._folder / f".{PROGRESS}.tmp"
        temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
        os.replace(temporary, self._folder / PROGRESS)
