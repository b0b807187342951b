"""A sink that keeps what it hears."""

from __future__ import annotations

from typing import Any

from agilerl.telemetry.record import BaseSink


class Kept(BaseSink):
    """Keeps the plan, the founders, the records and the messages of a run.

    Args:
        stop_after: generations after which the run is interrupted like by Ctrl-C.
    """

    def __init__(self, stop_after: int | None = None) -> None:
        self.plan: Any = None
        self.records: list[Any] = []
        self.messages: list[str] = []
        self.stop_after = stop_after

    def start(self, plan: Any, founders: Any) -> None:
        self.plan = plan

    def progress(self, env_steps: int, seconds: float) -> None:
        if self.stop_after == len(self.records):
            raise KeyboardInterrupt

    def generation(self, record: Any) -> None:
        self.records.append(record)

    def message(self, text: str) -> None:
        self.messages.append(text)
