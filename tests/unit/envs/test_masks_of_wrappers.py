"""A mask belongs to the action space that it was made for: wrappers that change the space translate it or drop it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import agilerl
from agilerl.envs.adapters import VectorLanes
from agilerl.envs.lanes import SyncLanes
from agilerl.envs.observed_masks import holds_mask
from agilerl.envs.vector import make_vect_envs
from agilerl.wrappers.learning import SkillSelection

LEGAL = np.array([1, 0, 1, 0], np.int8)


class Masked(gym.Env[Any, Any]):
    """Four actions of which 0 and 2 are legal, said in one of three ways; an illegal action raises an error."""

    action_space: Any = spaces.Discrete(4)

    def __init__(self, where: str = "info") -> None:
        box = spaces.Box(0.0, 1.0, (2,), np.float32)
        self.where = where
        self.observation_space = (
            spaces.Dict({"observation": box, "action_mask": spaces.MultiBinary(4)}) if where == "observation" else box
        )
        if where == "method":
            self.action_masks = lambda: LEGAL

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        obs = np.full(2, self.time / 20, np.float32)
        whole = {"observation": obs, "action_mask": LEGAL.copy()} if self.where == "observation" else obs
        return whole, {"action_mask": LEGAL.copy()} if self.where == "info" else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self._seen()

    def step(self, action: Any) -> Any:
        assert LEGAL[int(action)], f"{action} is illegal"
        self.time += 1
        obs, info = self._seen()
        return obs, float(action), False, self.time >= 20, info


def skill(action: int) -> Any:
    return type("Constant", (), {"act": lambda self, obs: action})()


def skills(env: Any, count: int = 4) -> Any:
    return SkillSelection(env, [skill(2 * (k % 2)) for k in range(count)], durations=1)


class Reversed(gym.ActionWrapper[Any, Any, Any]):
    """Six actions from 1 on, which stand for 3, 2, 1, 0, 3, 2."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.action_space = spaces.Discrete(6, start=1)

    def action(self, action: Any) -> Any:
        return (4 - int(action)) % 4


class Pairs(gym.Wrapper[Any, Any, Any, Any]):
    """Two actions with a mask of their own."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.action_space = spaces.Discrete(2)

    def reset(self, **options: Any) -> Any:
        return self.env.reset(**options)[0], {"action_mask": np.array([0, 1], np.int8)}

    def step(self, action: Any) -> Any:
        *result, _ = self.env.step(2 * int(action))
        return *result, {"action_mask": np.array([0, 1], np.int8)}


DROPPED = [True, True, True, True]
WRAPPERS: dict[str, tuple[Callable[[Any], Any], list[bool]]] = {
    "none": (lambda env: env, [True, False, True, False]),
    "another reward": (
        lambda env: gym.wrappers.TransformReward(env, lambda reward: reward),
        [True, False, True, False],
    ),
    "skills": (skills, DROPPED),
    "two skills": (partial(skills, count=2), DROPPED[:2]),
    "a map of actions": (
        lambda env: gym.wrappers.TransformAction(env, lambda action: 3 - action, spaces.Discrete(4)),
        [False, True, False, True],
    ),
    "sticky actions": (lambda env: gym.wrappers.StickyAction(env, 0.0), [True, False, True, False]),
    "fewer actions": (
        lambda env: gym.wrappers.TransformAction(env, lambda action: 3 - action, spaces.Discrete(2)),
        [False, True],
    ),
    "own action wrapper": (Reversed, [False, True, False, True, False, True]),
    "own mask": (Pairs, [False, True]),
    "skills over a map": (lambda env: skills(Reversed(env)), DROPPED),
    "a map over skills": (
        lambda env: gym.wrappers.TransformAction(skills(env), lambda action: 3 - action, spaces.Discrete(3)),
        DROPPED[:3],
    ),
}


def masks_of(info: dict[str, Any], count: int) -> list[bool]:
    mask = info.get("action_mask")
    return [True] * count if mask is None else np.asarray(mask)[0].astype(bool).tolist()


@pytest.mark.parametrize("where", ["info", "method"])
@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("kind", ["lanes", "vector"])
def test_a_mask_is_one_of_the_outermost_actions(name: str, where: str, kind: str) -> None:
    wrap, expected = WRAPPERS[name]
    if name == "own mask" and where == "method":
        pytest.skip("a mask in the info comes first")

    def make() -> Any:
        return wrap(Masked(where))

    lanes: Any = SyncLanes([make]) if kind == "lanes" else VectorLanes(gym.vector.SyncVectorEnv([make]))
    first = int(np.flatnonzero(expected)[0]) + int(make().action_space.start)
    _, info = lanes.reset(np.array([3]))
    assert masks_of(info, len(expected)) == expected
    batch = lanes.step(np.array([first]))
    assert masks_of(batch.info, len(expected)) == expected
    lanes.close()


@pytest.mark.parametrize("where", ["info", "method", "observation"])
def test_a_policy_chooses_among_all_skills_of_a_masked_environment(where: str) -> None:
    chosen = set()

    class Noted(SkillSelection):
        def step(self, action: Any) -> Any:
            chosen.add(int(action))
            return super().step(action)

    def make() -> Any:
        return Noted(Masked(where), [skill(2 * (k % 2)) for k in range(4)], durations=1)

    settings = {"environment": {"num_envs": 2}, "training": {"evo_steps": 100, "eval_episodes": 1}}
    agilerl.train(make, "DQN", config=settings, population=1, steps=200, seed=0, out=None, verbose=False)
    assert chosen == {0, 1, 2, 3}


def test_a_mask_in_observations_of_other_actions_is_a_part_of_them() -> None:
    for wrap, is_own in ((lambda env: env, True), (skills, False), (Reversed, False)):
        with closing(make_vect_envs(make_env=lambda wrap=wrap: wrap(Masked("observation")))) as env:
            space = env.single_observation_space
        assert holds_mask(space, env.single_action_space) is is_own
