"""Probe environments: each isolates one thing that a learner can get wrong, and knows the right Q values.

Their dynamics are deterministic; randomness is only in which start state an episode gets, from the environment's own
generator (`reset(seed=)`). There are those with vectors [O] float32 and Discrete actions, the same shown as images and
dictionaries (what these add is the path from the observations to the value), and those with continuous actions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from agilerl.errors import EnvError


class ProbeEnv(gymnasium.Env[np.ndarray, int]):
    """Base: S states, each with its observation; a subclass fills in the step and the answer.

    Attributes:
        observations: [S, O] float32, one row per state (without the state after the end).
        num_actions: A. num_starts: an episode begins in one of the first so many states.
        expected_q: gamma -> [S, A] the optimal Q values; NaN where the action is illegal.
    """

    observations: np.ndarray
    num_actions: ClassVar[int] = 2
    num_starts: ClassVar[int] = 1
    expected_q: Callable[..., np.ndarray]

    def __init__(self) -> None:
        width = self.observations.shape[1]
        self.observation_space = spaces.Box(-1.0, 2.0, (width,), np.float32)
        self.action_space: spaces.Discrete = spaces.Discrete(self.num_actions)  # type: ignore[assignment]
        self.state, self.time = 0, 0

    def _follow(self, action: Any) -> tuple[int, float, bool, bool]:
        """Next state, reward, terminated, truncated."""
        raise NotImplementedError

    def _taken(self, action: Any) -> Any:
        """The action as `_follow` takes it."""
        return int(action)

    def _info(self) -> dict[str, Any]:
        return {}

    def _obs(self) -> np.ndarray:
        return np.array(self.observations[self.state])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.state, self.time = int(self.np_random.integers(self.num_starts)) if self.num_starts > 1 else 0, 0
        return self._obs(), self._info()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        taken = self._taken(action)  # before anything has changed: it may refuse
        self.time += 1
        self.state, reward, terminated, truncated = self._follow(taken)
        return self._obs(), reward, terminated, truncated, self._info()


class OneStepProbe(ProbeEnv):
    """Base: one step from a random state; the `rewards` [S, A] are the Q values."""

    rewards: ClassVar[np.ndarray]

    def _follow(self, action: int) -> tuple[int, float, bool, bool]:
        return self.state, float(self.rewards[self.state, action]), True, False

    def expected_q(self, gamma: float) -> np.ndarray:
        return self.rewards.copy()


class ConstantRewardEnv(OneStepProbe):
    """One state, one step, reward 1 whatever the action. Q = 1. Fails: the value head, the loss, the optimiser."""

    observations = np.zeros((1, 1), dtype=np.float32)
    rewards = np.array([[1.0, 1.0]])


class ObsDependentRewardEnv(OneStepProbe):
    """Two start states seen as -1 and 1; one step, its reward is what is seen. Q(s, a) = s. Fails: the input path."""

    observations = np.array([[-1.0], [1.0]], dtype=np.float32)
    num_starts = 2
    rewards = np.array([[-1.0, -1.0], [1.0, 1.0]])


class DiscountedRewardEnv(ProbeEnv):
    """Two steps, reward 0 then 1. Q(s₀) = γ, Q(s₁) = 1. Fails: the discount, the target's next observation."""

    observations = np.array([[0.0], [1.0]], dtype=np.float32)

    def _follow(self, action: int) -> tuple[int, float, bool, bool]:
        return 1, float(self.state == 1), self.state == 1, False

    def expected_q(self, gamma: float) -> np.ndarray:
        return np.repeat([[gamma], [1.0]], self.num_actions, axis=1)


class ActionRewardEnv(OneStepProbe):
    """One state, one step; action 1 gives 1, action 0 gives -1. Q = (-1, 1). Fails: which output is which action."""

    observations = np.zeros((1, 1), dtype=np.float32)
    rewards = np.array([[-1.0, 1.0]])


class PolicyEnv(OneStepProbe):
    """Two start states; 1 for the action of the state's number, else -1. Fails: the policy's use of its input."""

    observations = np.array([[0.0], [1.0]], dtype=np.float32)
    num_starts = 2
    rewards = np.array([[1.0, -1.0], [-1.0, 1.0]])


class TruncatedEnv(ProbeEnv):
    """Reward 1 in every step, for ever, but the time limit cuts every episode. Q = 1 / (1 - γ).

    A learner that takes the cut for an end learns less: with `limit` 1 (steps until the truncation) it learns 1.
    """

    observations = np.zeros((1, 1), dtype=np.float32)

    def __init__(self, limit: int = 1) -> None:
        super().__init__()
        self.limit = limit

    def _follow(self, action: int) -> tuple[int, float, bool, bool]:
        return 0, 1.0, False, self.time >= self.limit

    def expected_q(self, gamma: float) -> np.ndarray:
        return np.full((1, self.num_actions), 1.0 / (1.0 - gamma))


class TwoStepCreditEnv(ProbeEnv):
    """The first action decides what the second step pays: 1 after action 1, 0 after action 0. Fails: the trace.

    Q(start) = (0, γ); Q(left) = 0; Q(right) = 1. The second action does not matter.
    """

    observations = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=np.float32)

    def _follow(self, action: int) -> tuple[int, float, bool, bool]:
        if self.state == 0:
            return 1 + action, 0.0, False, False
        return self.state, float(self.state == 2), True, False

    def expected_q(self, gamma: float) -> np.ndarray:
        """Rows: start, after action 0, after action 1."""
        return np.array([[0.0, gamma], [0.0, 0.0], [1.0, 1.0]])


class MaskedActionEnv(ProbeEnv):
    """Three actions, `info["action_mask"]` [3] int8 says which are legal; an illegal one is an error.

    Start: actions 0 and 1 are legal and lead on with reward 0 and 1. Then only action 2 is legal; it pays 1 and ends.
    Q(start) = (γ, 1 + γ, -); Q(second) = (-, -, 1). Fails: masks of the wrong lane or step, masks in exploration.
    """

    observations = np.array([[0.0], [1.0]], dtype=np.float32)
    num_actions = 3
    legal = np.array([[1, 1, 0], [0, 0, 1]], dtype=np.int8)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.legal[self.state].copy()}

    def _follow(self, action: int) -> tuple[int, float, bool, bool]:
        if not self.legal[self.state, action]:
            allowed = np.flatnonzero(self.legal[self.state]).tolist()
            raise EnvError(f"action {action} is illegal in state {self.state}: legal are {allowed}.")
        if self.state == 0:
            return 1, float(action), False, False
        return 1, 1.0, True, False

    def expected_q(self, gamma: float) -> np.ndarray:
        """Rows: start, second state; NaN for illegal actions."""
        return np.array([[gamma, 1.0 + gamma, np.nan], [np.nan, np.nan, 1.0]])


class FourStatesEnv(OneStepProbe):
    """Four start states, one step, its reward is (1, 0, -1, 0.5) by state. Q(s, a) = that. For `DictProbe`."""

    observations = np.eye(4, dtype=np.float32)
    num_starts = 4
    rewards = np.array([[1.0, 1.0], [0.0, 0.0], [-1.0, -1.0], [0.5, 0.5]])


class RecallEnv(gymnasium.Env[np.ndarray, int]):
    """A sign is shown in the first of `length` observations; the last action must name it (1 for +1, 0 for −1).

    Reward 1 for the right last action, else 0, and none before. With a memory the return is 1 and, undiscounted, every
    state is worth 1; without one the last observation tells nothing: 0.5. Fails: hidden states that are not carried
    from step to step, not reset between episodes, or not those that acted.

    Args:
        length: steps of an episode, at least 2.
    """

    def __init__(self, length: int = 3) -> None:
        self.length = length
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space: spaces.Discrete = spaces.Discrete(2)  # type: ignore[assignment]
        self.sign, self.time = 1, 0

    def _obs(self) -> np.ndarray:
        shown = self.sign if self.time == 0 else 0
        return np.array([shown, self.time == self.length - 1], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.sign, self.time = (1 if self.np_random.random() < 0.5 else -1), 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        is_last = self.time == self.length - 1
        reward = float(is_last and (int(action) == 1) == (self.sign == 1))
        self.time += 1
        return self._obs(), reward, is_last, False, {}


PROBES: tuple[type[ProbeEnv], ...] = (
    ConstantRewardEnv, ObsDependentRewardEnv, DiscountedRewardEnv, ActionRewardEnv, PolicyEnv, TruncatedEnv,
    TwoStepCreditEnv, MaskedActionEnv,
)  # fmt: skip


# -- shown as images and dictionaries --------------------------------------------------------------------------------

SIDE = 6  # pixels


class ShownProbe(gymnasium.Wrapper[Any, int, np.ndarray, int]):
    """A probe whose states are shown in another way; `observations[s]` is what state s looks like."""

    env: ProbeEnv

    def __init__(self, probe: ProbeEnv) -> None:
        super().__init__(probe)
        self.observations: list[Any] = [self.show(state) for state in range(len(probe.observations))]

    def show(self, state: int) -> Any:
        """The observation of a state."""
        raise NotImplementedError

    def expected_q(self, gamma: float) -> np.ndarray:
        return self.env.expected_q(gamma)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        _, info = self.env.reset(**kwargs)
        return self.show(self.env.state), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        _, reward, terminated, truncated, info = self.env.step(action)
        return self.show(self.env.state), reward, terminated, truncated, info


class ImageProbe(ShownProbe):
    """States as uint8 images: row 2s of the picture is white, the rest black. Fails: scaling, axes, convolutions.

    They are [1, 6, 6], with `channels_last` [6, 6, 1].
    """

    def __init__(self, probe: ProbeEnv, channels_last: bool = False) -> None:
        self.shape = (SIDE, SIDE, 1) if channels_last else (1, SIDE, SIDE)
        super().__init__(probe)
        self.observation_space = spaces.Box(0, 255, self.shape, np.uint8)

    def show(self, state: int) -> np.ndarray:
        picture = np.zeros((SIDE, SIDE), np.uint8)
        picture[2 * state] = 255
        return picture.reshape(self.shape)


class DictProbe(ShownProbe):
    """States in two parts of a nested Dict, neither of which tells them apart alone. Fails: a part that is lost.

    The image shows whether the number of the state is odd, the integer inside of the inner Tuple its half; the inner
    vector tells nothing.
    """

    def __init__(self, probe: ProbeEnv) -> None:
        super().__init__(probe)
        inner = spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (2,), np.float32)))
        self.observation_space = spaces.Dict(camera=spaces.Box(0, 255, (1, SIDE, SIDE), np.uint8), body=inner)

    def show(self, state: int) -> dict[str, Any]:
        """{"camera": [1, 6, 6] uint8, "body": (integer, [2] float32)}."""
        camera = np.full((1, SIDE, SIDE), 255 * (state % 2), np.uint8)
        return {"camera": camera, "body": (np.int64(state // 2), np.zeros(2, np.float32))}


# -- continuous actions ----------------------------------------------------------------------------------------------


class ContinuousProbe(ProbeEnv):
    """Base: one action component, between bounds that are uneven on purpose.

    An action that is not rescaled, or rescaled twice, misses its target. Beside a discrete probe in the list of bases
    this is that probe with actions that do not matter.

    Attributes:
        low, high: bounds of the action. best: [S, 1] the best action in each state, NaN where none is better.
    """

    best: ClassVar[np.ndarray]
    low: ClassVar[float] = -2.0
    high: ClassVar[float] = 6.0

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(self.low, self.high, (1,), np.float32)  # type: ignore[assignment]

    def expected_q(self, gamma: float, action: np.ndarray | None = None) -> np.ndarray:
        """[S, M] the optimal values of actions [M] in units of the environment; without them [S, 1], of the best."""
        return np.repeat(super().expected_q(gamma)[:, :1], 1 if action is None else len(action), axis=1)

    def _follow(self, action: Any) -> tuple[int, float, bool, bool]:
        return super()._follow(0)

    def expected_value(self, gamma: float) -> np.ndarray:
        """[S] value of each state under the best actions."""
        return np.asarray(self.expected_q(gamma)[:, 0])

    def best_actions(self) -> np.ndarray | None:
        """[S] the best action; None where all are equally good."""
        return None if np.isnan(self.best).any() else self.best[:, 0]

    def _taken(self, action: Any) -> float:
        """The number in an action [1]; EnvError if it lies outside of the space."""
        if not self.action_space.contains(np.asarray(action, np.float32)):
            raise EnvError(f"action {action} is outside of {self.action_space}. fix: environment_action(action).")
        return float(np.asarray(action)[0])


class TargetActionEnv(ContinuousProbe):
    """Two start states; one step; 1 − ((a − best) / 4)². Fails: the policy's gradient, its input, the rescaling."""

    observations = np.array([[-1.0], [1.0]], dtype=np.float32)
    num_starts = 2
    best = np.array([[0.0], [4.0]])  # raw -0.5 and 0.5
    width = 4  # distance at which the reward is 0

    def _follow(self, action: float) -> tuple[int, float, bool, bool]:
        return self.state, 1 - ((action - float(self.best[self.state, 0])) / self.width) ** 2, True, False

    def expected_q(self, gamma: float, action: np.ndarray | None = None) -> np.ndarray:
        return np.asarray(1 - (((self.best if action is None else action[None]) - self.best) / self.width) ** 2)


class DiscountedActionEnv(ContinuousProbe, DiscountedRewardEnv):
    """Two steps, reward 0 then 1, whatever is done. Q = γ, 1. Fails: the discount, the target's next observation."""

    best = np.full((2, 1), np.nan)


class TruncatedActionEnv(ContinuousProbe, TruncatedEnv):
    """Reward 1 for ever, cut after every step. Q = 1 / (1 − γ). Fails: the bootstrap through a time limit."""

    best = np.full((1, 1), np.nan)


class TwoStepActionEnv(ContinuousProbe):
    """The first action a pays in the second step: 1 − ((a − 4) / 4)². Q(start, a) = γ · that. Fails: the trace.

    What the first action was is what the second observation shows, so that its value can be learned.
    """

    observations = np.array([[-1.0]], dtype=np.float32)
    best = np.array([[4.0]])
    opening = 0.0  # the first action of the episode

    def _follow(self, action: float) -> tuple[int, float, bool, bool]:
        if self.time == 1:
            self.opening = action
            return 0, 0.0, False, False
        return 0, 1 - ((self.opening - 4) / 4) ** 2, True, False

    def _obs(self) -> np.ndarray:
        return np.array([(self.opening + 2) / 4], np.float32) if self.time == 1 else super()._obs()

    def expected_q(self, gamma: float, action: np.ndarray | None = None) -> np.ndarray:
        """Of the start alone."""
        return np.asarray(gamma * (1 - (((self.best if action is None else action[None]) - 4) / 4) ** 2))


# Bounds of 2 and 6: neither centre nor width is that of the raw actions.


class ContinuousConstantEnv(ContinuousProbe, ConstantRewardEnv):
    """One state, one step, reward 1 whatever the action."""

    low, best = 2.0, np.full((1, 1), np.nan)


class ContinuousObsEnv(ContinuousProbe, ObsDependentRewardEnv):
    """Two start states seen as -1 and 1; one step, its reward is what is seen."""

    low, best = 2.0, np.full((2, 1), np.nan)


class ContinuousDiscountedEnv(DiscountedActionEnv):
    """Two steps, reward 0 then 1. V = (γ, 1)."""

    low = 2.0


class ContinuousPolicyEnv(TargetActionEnv):
    """Two start states; the reward is 1 − ((action − best) / 2)², the best action is 3 in one and 5 in the other.

    V = 1. Fails: the scale of the actions, their sign, the policy's use of its input, the gradient of the critic.
    """

    observations = np.array([[0.0], [1.0]], dtype=np.float32)
    low, best, width = 2.0, np.array([[3.0], [5.0]]), 2


CONTINUOUS_PROBES = (ContinuousConstantEnv, ContinuousObsEnv, ContinuousDiscountedEnv, ContinuousPolicyEnv)


class ContinuousActionEnv(TargetActionEnv):
    """One state; the reward is 1 − ((action − 5) / 2)². V = 1. Fails: the scale of the actions, the policy's bias."""

    observations = np.zeros((1, 1), dtype=np.float32)
    num_starts = 1
    low, best, width = 2.0, np.array([[5.0]]), 2
