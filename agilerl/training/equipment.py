"""With what a population trains: its learner and its lanes, chosen by the population and the environment alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from agilerl.engine.learner import Learner, choose_learner
from agilerl.envs.pool import EnvPoolLanes
from agilerl.envs.step import Lanes, VectorLanes, as_lanes
from agilerl.envs.swapped import ChannelsFirstLanes
from agilerl.errors import ConfigError
from agilerl.sources.episodes import CARRIED_NOTE
from agilerl.sources.options import LoopOptions
from agilerl.sources.source import Source
from agilerl.training.population import has_update


class Equipment:
    """The learner and the lanes of a population; `fit` chooses anew after the population has changed.

    Args:
        population: the agents. env: what `make_vect_envs` built is replicated, another environment is shared.
        source: where experience comes from. options: of the run.

    Attributes:
        lanes: those that members act in: of all of them in lockstep, else of one.
        num_envs: lanes of one member. lockstep: whether members act at the same time.
        learner_kind: "fused", "sequential", or "agents" where every agent brings its own `learn`.
        notes: the choices with their reasons.

    Raises:
        ConfigError: `carry_envs` where lanes are shared or cannot rest.
    """

    def __init__(self, population: Sequence[Any], env: Any, source: Source, options: LoopOptions) -> None:
        self.env, self.source, self.options = env, source, options
        self.num_envs = max(1, int(getattr(env, "num_envs", 1)))
        self.notes: list[str] = []
        self.is_replicable = callable(getattr(env, "replicate", None))
        self.learner_kind, reason = self._choose_learner(population)
        self.notes.append(f"learner: {self.learner_kind} ({reason})")
        self.lockstep = self._choose_lockstep()
        self.lanes = self._make_lanes(len(population))
        if options.carry_envs:
            self._check_carrying()
            self.notes.append(CARRIED_NOTE)

    def _choose_learner(self, population: Sequence[Any]) -> tuple[str, str]:
        own_loops = [a for a in population if not has_update(a)]
        if self.source.one_at_a_time:
            return "agents", self.source.one_at_a_time
        if own_loops:
            return "agents", f"agent {own_loops[0].index} brings its own learn()"
        self._learner_class, reason = choose_learner(population, self.options.learner)
        return self._learner_class.name, reason

    def _choose_lockstep(self) -> bool:
        if not self.options.lockstep:
            return False
        if self.learner_kind == "agents":
            alone = self.source.one_at_a_time or "an algorithm brings its own learn()"
            self.notes.append(f"one member trains at a time: {alone}")
            return False
        if not self.is_replicable:
            self.notes.append("one member trains at a time: only environments of make_vect_envs can be replicated")
            return False
        return True

    def _check_carrying(self) -> None:
        """ConfigError where episodes cannot go on over the end of a generation."""
        if not self.lockstep:
            reason = "lockstep=False" if not self.options.lockstep else self.notes[-1]
            raise ConfigError(
                "carry_envs=True needs lanes that no evaluation and no other member uses, so members that act at the "
                f"same time; here {reason}. fix: an environment of make_vect_envs with lockstep=True, or "
                "carry_envs=False."
            )
        inner = self.lanes.lanes if isinstance(self.lanes, ChannelsFirstLanes) else self.lanes
        if isinstance(inner, VectorLanes | EnvPoolLanes):
            raise ConfigError(
                "carry_envs=True needs lanes that can rest while other members' rollouts go on; those of "
                f"{inner.backend} all step together. fix: leave backend and should_async_vector out, or "
                "carry_envs=False."
            )

    def _make_lanes(self, members: int) -> Lanes:
        lanes: Lanes = self.env.replicate(members) if self.lockstep else as_lanes(self.env)
        return ChannelsFirstLanes(lanes) if self.options.swap_channels else lanes

    def fit(self, population: Sequence[Any]) -> str | None:
        """Choose for these members: their number, or what fits their networks, may have changed.

        Returns:
            What is to be said about it.
        """
        if self.lockstep and len(population) * self.num_envs != self.lanes.num_lanes:
            self.lanes.close()
            self.lanes = self._make_lanes(len(population))
        if self.learner_kind == "agents":
            return None
        chosen, reason = choose_learner(population, self.options.learner)
        if chosen is self._learner_class:
            return None
        self._learner_class, self.learner_kind = chosen, chosen.name  # a mutated network may not stack
        return f"learner: {chosen.name} ({reason})"

    @contextlib.contextmanager
    def adopted(self, agents: list[Any]) -> Iterator[Learner]:
        """A learner that holds the agents' tensors in rows until the block ends, also by an error."""
        learner = self._learner_class(agents)
        try:
            yield learner
        finally:
            learner.release()

    def close(self) -> None:
        """Close the replicas, which are the loop's own; an environment that was handed over stays open."""
        if self.is_replicable:
            self.lanes.close()
