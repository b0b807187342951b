"""What a run returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agilerl.telemetry.record import Birth


@dataclass
class EvolveResult:
    """What a run returns.

    Attributes:
        population: the agents after the last generation (after evolution if one followed).
        best: an independent copy of the best agent: the one with the best confirmation, else the best fitness.
        history: `history[generation][member]` fitness.
        births: every birth, founders first.
        env_steps_member, env_steps_population: training steps of the furthest member, and of all members.
        evaluation_env_steps: steps of all evaluations, confirmations included.
        confirmed: mean of the confirmation that `best` has, None without one.
        stopped: "target" or "budget".
        restarts: workers of self-healing environments that were replaced, those of evaluations included.
        quarantined: members that had diverged at the end of a generation and were kept out of selection.
    """

    population: list[Any]
    best: Any
    history: list[list[float]] = field(default_factory=list)
    births: list[Birth] = field(default_factory=list)
    generations: int = 0
    env_steps_member: int = 0
    env_steps_population: int = 0
    evaluation_env_steps: int = 0
    updates: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    confirmed: float | None = None
    stopped: str = "budget"
    restarts: int = 0
    quarantined: int = 0
