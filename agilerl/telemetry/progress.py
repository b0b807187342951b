"""The progress bar of the `train_*` functions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TextIO

from tqdm import tqdm

from agilerl.telemetry.fanout import BaseSink
from agilerl.telemetry.record import Birth, GenerationRecord, RunPlan
from agilerl.telemetry.text import generation_line, headline, number


class TqdmSink(BaseSink):
    """A bar over the environment steps of one member. It never runs past its total."""

    def __init__(self, stream: TextIO | None = None, table: bool = True) -> None:
        """`table=False` leaves out the line that is printed above the bar after each generation."""
        self._stream = stream
        self._table = table
        self._bar: Any = None

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        """Print what is about to run (its seed above all) and any note on it; open the bar."""
        for line in (headline(plan, None), *plan.notes):
            tqdm.write(line, file=self._stream if self._stream is not None else sys.stderr)
        self._bar = tqdm(
            total=plan.max_env_steps,
            unit="step",
            unit_scale=True,
            file=self._stream,
            desc=f"{plan.algo} on {plan.env_id}, {plan.population} members, steps per member",
            dynamic_ncols=True,
        )

    def progress(self, env_steps: int, seconds: float) -> None:
        """Move the bar to `env_steps` per member."""
        if self._bar is not None:
            self._bar.update(max(min(env_steps, self._bar.total) - self._bar.n, 0))

    def generation(self, record: GenerationRecord) -> None:
        """Move the bar, name the best fitness, print the generation's line above."""
        self.progress(record.env_steps, record.seconds)
        if self._bar is not None:
            self._bar.set_postfix_str(f"best {number(record.best.fitness)}", refresh=False)
            if self._table:
                self._bar.write(generation_line(record), file=self._stream)

    def message(self, text: str) -> None:
        """Print a line above the bar."""
        if self._bar is not None:
            self._bar.write(text, file=self._stream)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
