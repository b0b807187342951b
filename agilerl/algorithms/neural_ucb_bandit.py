"""Published import path of `NeuralUCB`."""

from agilerl.algorithms.neural_ucb import NeuralUCB

__all__ = ["NeuralUCB"]
