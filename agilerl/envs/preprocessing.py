"""Preprocessing by name: what `make_vect_envs(..., preprocessing=)` wraps around every single environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from agilerl.errors import ConfigError, EnvError, unknown_name


@dataclass(frozen=True)
class Preprocessing:
    """Wrappers, and keywords that the environment itself must be made with."""

    wrap: Callable[[Any], Any]
    env_kwargs: dict[str, Any] = field(default_factory=dict)


def _atari(env: Any) -> Any:
    try:
        frames = AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84, grayscale_obs=True)
    except ImportError as error:
        raise EnvError(f'Atari preprocessing: {error} fix: pip install "agilerl[atari]"') from error
    return FrameStackObservation(frames, 4)


# "atari": up to 30 no-ops, the maximum of the last two of 4 repeated frames, grey 84 x 84, 4 frames stacked
# (Mnih et al. 2015, methods; Machado et al. 2018, arXiv:1709.06009, who leave life loss alone).
PREPROCESSING = {"atari": Preprocessing(_atari, {"frameskip": 1})}


def preprocessing(name: str) -> Preprocessing:
    """The entry of `name`.

    Raises:
        ConfigError: unknown; names the nearest one.
    """
    if name not in PREPROCESSING:
        raise ConfigError(unknown_name("preprocessing", str(name), PREPROCESSING))
    return PREPROCESSING[name]
