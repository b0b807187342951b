"""How long an episode of an environment can be, where it says so, and how long an evaluation lets it be where not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from agilerl import foreign
from agilerl.envs.lanes import name_of
from agilerl.envs.readable import is_minigrid
from agilerl.errors import warn_once

# Steps of an evaluation episode that nothing else limits; as many as Gymnasium's MuJoCo and Box2D environments have.
DEFAULT_EPISODE_LIMIT = 1_000


def time_limit(env: Any) -> int | None:
    """Steps after which Gymnasium, or MiniGrid itself, ends an episode of `env` (single, vector or lanes); None where
    nothing says."""
    if (single := foreign.single(env)) is not env:
        return time_limit(single)
    found = foreign.registered_limit(env)
    inner = env
    while isinstance(inner, gymnasium.Wrapper | gymnasium.vector.VectorWrapper):
        if isinstance(inner, gymnasium.wrappers.TimeLimit):
            return int(inner._max_episode_steps)
        inner = inner.env
    if inner is not env:
        found = found or time_limit(inner)
    elif is_minigrid(inner):  # its specification says nothing; that of BabyAI changes with every mission
        found = found or inner.max_steps
    return int(found) if isinstance(found, int | np.integer) and found > 0 else None


def ends_by_itself(env: Any) -> bool:
    """Whether the environment (single, vector or lanes) is known to end every episode, after steps that it decides
    episode by episode: MiniGrid's, where BabyAI counts by the mission."""
    return is_minigrid(foreign.single(env)) or str(foreign.registered_maker(env)).startswith("minigrid.")


@dataclass(frozen=True)
class EpisodeLimit:
    """How many steps an evaluation episode may have.

    Attributes:
        steps: after which it is cut as truncated, with its return so far. None: the environment ends it.
        is_assumed: whether neither the user nor the environment has said so.
        name: of the environment, for the warning.
    """

    steps: int | None
    is_assumed: bool
    name: str

    @classmethod
    def of(cls, env: Any, asked: int | None = None, training: int = 0, name: str | None = None) -> EpisodeLimit:
        """`asked`, else the environment's own limit, else the larger of `DEFAULT_EPISODE_LIMIT` and `training`.

        Args:
            asked: `training.eval_steps`. training: steps that one environment makes in a generation of training, which
                no training episode can exceed where episodes are cut there. It is the same in every generation, so that
                the fitness of one is comparable with that of another.
        """
        known = asked is not None or time_limit(env) is not None or ends_by_itself(env)
        called = name or str(foreign.own_id(env) or name_of(foreign.single(env)))
        return cls(asked if known else max(DEFAULT_EPISODE_LIMIT, training), not known, called)

    def say(self, lengths: np.ndarray, cut: np.ndarray) -> None:
        """Warn once of episodes that were cut where nobody has asked for it; both [..., episodes]."""
        if self.is_assumed and bool(cut.any()):
            warn_once(
                f"no time limit: {self.name}",
                f"{self.name} has no time limit: {int(cut.sum())} of {lengths.size} evaluation episodes were cut after "
                f"{self.steps} steps and count as truncated, with their return so far. "
                "fix: training.eval_steps=N (`agilerl evaluate --max-steps N`, agent.test(env, max_steps=N)), or "
                "gymnasium.wrappers.TimeLimit around the environment.",
                stacklevel=4,
            )
