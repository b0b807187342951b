"""Single environments in a form that networks can read: texts become word counts, vague spaces are made precise.

Applied wherever single environments enter (`envs.lanes`, `envs.vector`); most are unchanged.
"""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import Env, spaces

from agilerl.core import foreign
from agilerl.core.spaces import MaskAsFeature, count_words, holds_text, without_texts
from agilerl.core.tree import Tree
from agilerl.envs.masks import MASK, gives_masks


class CountedTexts(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Convert an environment's texts to word counts, see `spaces.counts_of`."""

    def __init__(self, env: Env[Any, Any]) -> None:
        super().__init__(env)
        self._given = env.observation_space
        self.observation_space = without_texts(self._given)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a new episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        return count_words(self._given, obs), info

    def step(self, action: Tree) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Perform one step."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return count_words(self._given, obs), reward, terminated, truncated, info


class _Declared(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An unchanged environment with a more precise observation space."""

    def __init__(self, env: Env[Any, Any], space: gymnasium.Space[Any]) -> None:
        super().__init__(env)
        self.observation_space = space


class _FreshAction(gymnasium.Wrapper[Any, Any, Any, Any]):
    """MinAtar with the last action cleared: its sticky actions would carry it over to the next episode."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a new episode."""
        self.unwrapped.game.last_action = 0  # type: ignore[attr-defined]
        return self.env.reset(seed=None if seed is None else seed % 2**32, options=options)


def readable(env: Any) -> Any:
    """Return `env`, or a wrapper that makes it readable; idempotent.

    * Texts, alone or in a Dict or Tuple, become `spaces.WordCounts`.
    * MiniGrid declares its picture as bytes, but it contains classes (object, colour, state): the space becomes a
      MultiDiscrete of them. The values are unchanged. Pictures of MiniGrid's or the user's wrappers, and those of
      environments that declare their own space, are left as declared.
    * A mask in observations that is one of other actions, inside a wrapper, becomes an ordinary part of them.
    * MinAtar's games clear the last action at a reset, so that a seed determines the whole episode.
    """
    if not isinstance(env, gymnasium.Env) or _is_seen(env):
        return env
    if _is_a(env, "minatar.gym", "BaseEnv"):
        env = _FreshAction(env)
    if is_minigrid(env):
        env = _classes_of_minigrid(env)
    if _has_inner_mask(env):
        env = _Declared(env, MaskAsFeature(env.observation_space.spaces))
    return CountedTexts(env) if holds_text(foreign.observation_space(env)) else env


def _has_inner_mask(env: Any) -> bool:
    """Whether a mask in observations belongs to the inner actions of a wrapper that changes the action space."""
    if not isinstance(foreign.observation_space(env), spaces.Dict) or MASK not in env.observation_space.spaces:
        return False
    outer = env
    while not gives_masks(env) and env.observation_space is env.env.observation_space:
        env = env.env
    return outer.action_space is not env.action_space


def _is_seen(env: foreign.Env) -> bool:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, CountedTexts | _Declared | _FreshAction):
            return True
        env = env.env
    return False


def _is_a(env: foreign.Env, module: str, name: str) -> bool:
    return any((cls.__module__, cls.__name__) == (module, name) for cls in type(env.unwrapped).__mro__)


def is_minigrid(env: foreign.Env | None) -> bool:
    """Whether this is a MiniGrid environment, including BabyAI and the user's subclasses."""
    return isinstance(env, gymnasium.Env) and _is_a(env, "minigrid.minigrid_env", "MiniGridEnv")


def _classes_of_minigrid(env: Any) -> Any:
    space, inner = env.observation_space, env.unwrapped.observation_space
    is_own = space is inner and isinstance(space, spaces.Dict)
    image = space.spaces.get("image") if is_own else None
    if not isinstance(image, spaces.Box) or len(image.shape) != 3 or image.shape[-1] != 3:
        return env
    from minigrid.core import constants  # installed, as it created the environment

    tables = (constants.OBJECT_TO_IDX, constants.COLOR_TO_IDX, constants.STATE_TO_IDX)
    classes = np.broadcast_to([max(table.values()) + 1 for table in tables], image.shape)
    exact = spaces.MultiDiscrete(classes.astype(image.dtype), dtype=image.dtype.type)
    return _Declared(env, spaces.Dict({**space.spaces, "image": exact}))
