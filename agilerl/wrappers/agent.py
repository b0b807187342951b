"""Published import path of the wrappers around agents and teams."""

from agilerl.algorithms.base.async_agents import AsyncAgentsWrapper
from agilerl.algorithms.base.wrapped import AgentWrapper, RSNorm

__all__ = ["AgentWrapper", "AsyncAgentsWrapper", "RSNorm"]
