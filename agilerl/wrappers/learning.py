"""Published import path of `BanditEnv`, and skills: environments with a custom reward, and selection among skills."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from agilerl.envs.bandit import BanditEnv
from agilerl.envs.masks import MASK
from agilerl.errors import EnvError

__all__ = ["BanditEnv", "Skill", "SkillSelection"]


class Skill(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """An environment whose reward teaches one skill; a subclass overrides `skill_reward`.

    Args:
        env: a Gymnasium environment.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)

    def step(self, action: Any) -> Any:
        """Step the environment and pass what it returns through `skill_reward`."""
        return self.skill_reward(*self.env.step(action))

    def skill_reward(
        self, observation: Any, reward: Any, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> Any:
        """Return (observation, reward, terminated, truncated, info) for learning the skill; unchanged here.

        The training loop resets an episode that ends here: do not call `self.env.reset()`.
        """
        return observation, reward, terminated, truncated, info


class SkillSelection(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose actions are trained skills, for a policy that selects among them.

    Action k hands the environment to agent k for `durations[k]` steps, or until the episode ends; the reward is the sum
    of the environment's own (options with a fixed duration: Sutton, Precup and Singh 1999, doi:10.1016/S0004-3702(99)
    00052-1, section 2).

    Args:
        env: a Gymnasium environment without a skill's reward.
        agents: of this package, or anything with `act(observation) -> action`; they do not learn.
        durations: environment steps of each, or one number for all.
    """

    def __init__(self, env: gym.Env[Any, Any], agents: Any, durations: Any = 40) -> None:
        super().__init__(env)
        self.agents = list(agents)
        is_one = np.ndim(durations) == 0
        self.durations = [int(durations)] * len(self.agents) if is_one else [*map(int, durations)]
        if not self.agents or len(self.durations) != len(self.agents) or min(self.durations) < 1:
            raise EnvError(
                f"SkillSelection got {len(self.agents)} agents and durations {self.durations}; expected a positive "
                "number of steps for each. fix: SkillSelection(env, [agent, agent], durations=40)."
            )
        self.action_space = gym.spaces.Discrete(len(self.agents))
        self._observation: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environment."""
        self._observation, info = self.env.reset(seed=seed, options=options)
        return self._observation, _without_mask(info)

    def step(self, action: Any) -> Any:
        """Let a skill act; `info["option_steps"]` is the number of its environment steps.

        Raises:
            EnvError: no such skill.
        """
        number = int(action)
        if not 0 <= number < len(self.agents):
            raise EnvError(f"SkillSelection has skills 0 to {len(self.agents) - 1}; got {action!r}. fix: one of them.")
        total, steps, ends, cuts, info = 0.0, 0, False, False, dict[str, Any]()
        while steps < self.durations[number] and not (ends or cuts):
            chosen = self.agents[number].act(self._observation)
            self._observation, reward, ends, cuts, info = self.env.step(chosen)
            total, steps = total + float(reward), steps + 1
        return self._observation, total, ends, cuts, {**_without_mask(info), "option_steps": steps}


def _without_mask(info: dict[str, Any]) -> dict[str, Any]:
    """Return an info without the mask of the environment's actions, which says nothing of skills."""
    return {key: value for key, value in info.items() if key != MASK}
