"""Vectors of environments with several agents, by their published names."""

from agilerl.envs.team_vector import AsyncPettingZooVecEnv, PettingZooVecEnv, SyncPettingZooVecEnv

__all__ = ["AsyncPettingZooVecEnv", "PettingZooVecEnv", "SyncPettingZooVecEnv"]
