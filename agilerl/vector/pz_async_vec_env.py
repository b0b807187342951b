"""Vectors of PettingZoo environments in worker processes, under their published name."""

from __future__ import annotations

from agilerl.envs.team_vector import AsyncPettingZooVecEnv

__all__ = ["AsyncPettingZooVecEnv"]
