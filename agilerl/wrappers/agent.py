"""Published import path of the wrappers around agents and teams."""

from agilerl.algorithms.async_agents import AsyncAgentsWrapper
from agilerl.algorithms.wrapped import AgentWrapper, RSNorm

__all__ = ["AgentWrapper", "AsyncAgentsWrapper", "RSNorm"]
