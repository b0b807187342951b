"""Evolutionary hyperparameter optimisation for reinforcement learning.

    import agilerl
    run = agilerl.train("LunarLander-v3")
    run.best.evaluate(episodes=100)

Imports are lazy.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agilerl.api import Evaluation, Run, load, replay, resume, steer, train
    from agilerl.errors import AgileRLError, AgileRLWarning
    from agilerl.telemetry.callbacks import Callback
    from agilerl.trainer import LocalTrainer

__version__ = "0.1.0"
__all__ = [
    "AgileRLError", "AgileRLWarning", "Callback", "Evaluation", "LocalTrainer", "Run", "__version__",
    "load", "replay", "resume", "steer", "train",
]  # fmt: skip

_HOME = dict.fromkeys(("train", "load", "replay", "resume", "steer", "Run", "Evaluation"), "agilerl.api")
_HOME |= dict.fromkeys(("AgileRLError", "AgileRLWarning"), "agilerl.errors")
_HOME["LocalTrainer"] = "agilerl.trainer"
_HOME["Callback"] = "agilerl.telemetry.callbacks"
# Published flags -> packages that must be installed; located, not imported.
_NEEDS = {
    "HAS_LLM_DEPENDENCIES": ("transformers", "peft", "accelerate", "safetensors", "tokenizers", "datasets"),
    "HAS_LIGER_KERNEL": ("liger_kernel",),
    "HAS_VLLM": ("vllm",),
    "HAS_DEEPSPEED": ("deepspeed",),
}


def __getattr__(name: str) -> Any:
    if name in _NEEDS:
        return all(find_spec(package) is not None for package in _NEEDS[name])
    if name not in _HOME:
        raise AttributeError(f"module 'agilerl' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value  # cached for the next access
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_NEEDS})
