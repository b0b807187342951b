"""One sink that is many, and that keeps a broken one away from the training."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence

from agilerl.errors import AgileRLError, warn_once
from agilerl.redaction import redact
from agilerl.telemetry.record import Birth, GenerationRecord, RunPlan, Sink


class BaseSink:
    """A sink that does nothing: override what you need."""

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        """Called once, before the first environment step."""

    def progress(self, env_steps: int, seconds: float) -> None:
        """Called now and then inside a generation."""

    def generation(self, record: GenerationRecord) -> None:
        """Called after each generation."""

    def message(self, text: str) -> None:
        """One line that the user should see."""

    def close(self) -> None:
        """Called once, also after an error."""


class Sinks(BaseSink):
    """Hands every call to each sink in turn.

    A sink that raises is closed, dropped and warned about once; the training goes on. The exception is a user
    error in `start` (`AgileRLError`), which is raised: nothing has been trained yet.

    Attributes:
        lost: name of each dropped sink -> generations that it did not get.
    """

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self.sinks: list[Sink] = list(sinks)
        self.lost: dict[str, int] = {}

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        """Start each sink."""
        self._each(lambda sink: sink.start(plan, founders), raise_user_errors=True)

    def progress(self, env_steps: int, seconds: float) -> None:
        """Pass the progress on."""
        self._each(lambda sink: sink.progress(env_steps, seconds))

    def generation(self, record: GenerationRecord) -> None:
        """Pass the generation on."""
        for name in self.lost:
            self.lost[name] += 1
        self._each(lambda sink: sink.generation(record), lost=1)

    def message(self, text: str) -> None:
        """Pass the line on."""
        self._each(lambda sink: sink.message(text))

    def close(self) -> None:
        """Close each sink that is left, once."""
        self._each(lambda sink: sink.close())
        self.sinks = []

    def _each(self, call: Callable[[Sink], None], raise_user_errors: bool = False, lost: int = 0) -> None:
        for sink in list(self.sinks):
            try:
                call(sink)
            except Exception as error:  # whatever a tracker may raise must not end the training
                if raise_user_errors and isinstance(error, AgileRLError):
                    raise
                self._drop(sink, error, lost)

    def _drop(self, sink: Sink, error: Exception, lost: int) -> None:
        self.sinks.remove(sink)
        self.lost[type(sink).__name__] = self.lost.get(type(sink).__name__, 0) + lost
        with contextlib.suppress(Exception):
            sink.close()
        name = type(sink).__name__
        warn_once(
            f"sink:{name}:{type(error).__name__}",
            f"{name} failed ({type(error).__name__}: {redact(str(error))}) and gets no more records; "
            "the training goes on.",
            stacklevel=5,
        )
