"""Types of third-party objects, for annotations; only type checkers load this module, through `core.foreign`."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

if TYPE_CHECKING:
    from pettingzoo import AECEnv, ParallelEnv  # type: ignore[import-untyped]  # has no types

    # An environment, and what a run takes as one (see `envs.argument`).
    Env: TypeAlias = gym.Env[Any, Any] | VectorEnv[Any, Any, Any] | ParallelEnv
    EnvLike: TypeAlias = Env | AECEnv | EnvSpec | ModuleType | Callable[..., Any] | str | None


class Accelerator(Protocol):
    """Attributes of `accelerate.Accelerator`, which may be missing."""

    @property
    def num_processes(self) -> int: ...
    @property
    def process_index(self) -> int: ...


class Tokenizer(Protocol):
    """Attributes of `transformers.PreTrainedTokenizerBase` that this package reads."""

    name_or_path: Any
    bos_token: Any
    eos_token: Any
    eos_token_id: Any
    pad_token_id: Any
    unk_token_id: Any
    bos_token_id: Any
    all_special_ids: Any
    added_tokens_decoder: Any
    chat_template: Any
    encode: Callable[..., Any]
    decode: Callable[..., Any]
    batch_decode: Callable[..., Any]
    apply_chat_template: Callable[..., Any]
    save_pretrained: Callable[..., Any]

    def __len__(self) -> int: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


class Agent(Protocol):
    """Attributes of an agent, wrapped or not, that this package reads without `algorithms.base.adapted`."""

    index: int
    algo: str
    fitness: list[float]
    steps: list[int]
    mut: Any
    registry: Any

    def clone(self, index: int | None = None, wrap: bool = True) -> Any: ...
