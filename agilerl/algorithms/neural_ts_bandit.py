"""Published import path of `NeuralTS`."""

from agilerl.algorithms.neural_ts import NeuralTS

__all__ = ["NeuralTS"]
