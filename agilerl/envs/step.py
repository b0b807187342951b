"""Conversion of any environment to lanes: the entry point of environments into the package."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from agilerl.core import foreign
from agilerl.core.env_ids import check_lookup
from agilerl.envs.adapters import LooseEnv, VectorLanes
from agilerl.envs.lanes import SyncLanes
from agilerl.envs.protocol import Lanes, StepBatch
from agilerl.envs.team import is_parallel, team_of
from agilerl.envs.teams import TeamLanes
from agilerl.envs.vector import Replicable
from agilerl.errors import EnvError

__all__ = ["Lanes", "StepBatch", "SyncLanes", "VectorLanes", "as_lanes"]


def as_lanes(env: Any) -> Lanes:
    """Return any kind of `env` as lanes.

    * vector environments of `make_vect_envs`, `make_multi_agent_vect_envs` and others of `agilerl.vector`: new, fast
      lanes from the factory (the given environment is unused);
    * a single parallel environment of PettingZoo: one multi-agent lane;
    * a Gymnasium vector environment in any autoreset mode, or an object with `num_envs`, `reset` and `step`;
    * a single Gymnasium environment, or an object with `reset` and `step` that may return arrays of length 1: one lane;
    * lanes: unchanged.

    Raises:
        EnvError: it lacks `reset` and `step`, is a class, or is turn-based (PettingZoo's AEC interface).
    """
    if isinstance(env, type):
        raise EnvError(f"{env.__name__} is a class, and no environment of it has been made. fix: {env.__name__}(...).")
    check_lookup(env)
    if isinstance(env, Replicable):
        return env.replicate(1)
    if hasattr(env, "num_lanes"):
        lanes: Lanes = env
        return lanes
    if hasattr(env, "agent_iter"):
        team_of(env)  # its error names the conversion
    if is_parallel(env):
        return TeamLanes([lambda: env])
    if not foreign.has_methods(env, "reset", "step"):
        raise EnvError(
            f"an environment must have reset() and step() as in Gymnasium; got {type(env).__name__}. "
            'fix: pass gymnasium.make("CartPole-v1") or agilerl.utils.utils.make_vect_envs("CartPole-v1", num_envs=8).'
        )
    if isinstance(env, VectorEnv) or (hasattr(env, "num_envs") and not isinstance(env, gymnasium.Env)):
        return VectorLanes(env)
    single = env if isinstance(env, gymnasium.Env) else LooseEnv(env)
    return SyncLanes([lambda: single])
