"""Vectors of PettingZoo environments under their published name; see `agilerl.envs.team_vector`."""

from agilerl.envs.team_vector import PettingZooVecEnv, SyncPettingZooVecEnv

__all__ = ["PettingZooVecEnv", "SyncPettingZooVecEnv"]
