"""Published import path of the wrappers around one agent."""

from agilerl.algorithms.wrapped import AgentWrapper, RSNorm

__all__ = ["AgentWrapper", "RSNorm"]
