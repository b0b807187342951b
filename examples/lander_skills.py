"""Hierarchical policies: three skills of a lunar lander, and a policy that selects among them.

Each skill is PPO with a reward of its own. The selector is PPO in the environment's own reward, whose action lets a
skill act for 40 steps.

Run: python examples/lander_skills.py [--steps N]
Needs: pip install "agilerl[box2d]"
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import gymnasium as gym

import agilerl
from agilerl.wrappers.learning import Skill, SkillSelection

ENV = "LunarLander-v3"
X, Y, SPEED_X, SPEED_Y, ANGLE = range(5)  # of an observation


class Stabilise(Skill):
    """Neither move nor tilt."""

    def skill_reward(self, observation: Any, reward: Any, terminated: bool, truncated: bool, info: Any) -> Any:
        moves = observation[SPEED_X] ** 2 + observation[SPEED_Y] ** 2 + observation[ANGLE] ** 2
        return observation, -10.0 if terminated else 1.0 - float(moves), terminated, truncated, info


class Centre(Skill):
    """Be above the pad, upright."""

    def skill_reward(self, observation: Any, reward: Any, terminated: bool, truncated: bool, info: Any) -> Any:
        off = 4 * observation[X] ** 2 + observation[SPEED_Y] ** 2 + observation[ANGLE] ** 2
        return observation, -10.0 if terminated else 1.0 - float(off), terminated, truncated, info


class Land(Skill):
    """Come down to the pad slowly; the environment's own reward of a landing or a crash remains."""

    def skill_reward(self, observation: Any, reward: Any, terminated: bool, truncated: bool, info: Any) -> Any:
        if terminated:
            return observation, reward, terminated, truncated, info
        off = observation[X] ** 2 + observation[Y] ** 2 + max(0.0, -observation[SPEED_Y] - 0.5) ** 2
        return observation, -float(off + abs(observation[ANGLE])), terminated, truncated, info


def skilled(skill: type[Skill]) -> gym.Env[Any, Any]:
    """The lander with the reward of a skill, for 300 steps."""
    return skill(gym.make(ENV, max_episode_steps=300))


def main(steps: int = 200_000) -> None:
    agents = []
    for skill in (Stabilise, Centre, Land):
        run = agilerl.train(partial(skilled, skill), "PPO", steps=steps, population=2, seed=1)
        print(f"{skill.__name__}: {run.result['best_fitness']:.1f}")
        agents.append(run.best)

    def selection() -> gym.Env[Any, Any]:
        return SkillSelection(gym.make(ENV), agents, durations=40)

    run = agilerl.train(selection, "PPO", steps=max(256, steps // 20), population=2, seed=1, learn_step=256)
    print(run)
    print(run.best.evaluate(episodes=20))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200_000, help="of a member, for each skill")
    main(parser.parse_args().steps)
