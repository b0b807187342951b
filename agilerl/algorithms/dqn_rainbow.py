"""Published import path of `RainbowDQN`."""

from agilerl.algorithms.rainbow import RainbowDQN

__all__ = ["RainbowDQN"]
