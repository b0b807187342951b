"""Probe environments: each isolates one failure mode of a learner and knows the correct Q values.

The dynamics are deterministic; only the start state is random, from the environment's own generator (`reset(seed=)`).
There are probes with vectors [O] float32 and Discrete actions, the same probes shown as images and dictionaries (which
add the path from observations to values), and probes with continuous actions. "Fails" names the parts whose bugs a
probe detects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from agilerl.errors import EnvError


class ProbeEnv(gymnasium.Env[np.ndarray, int]):
    """Base class: S states with one observation each; a subclass implements the dynamics and the expected values.

    Attributes:
        observations: [S, O] float32, one row per state (without the terminal state).
        num_actions: A. num_starts: number of start states, the first ones.
        expected_q: gamma -> [S, A] optimal Q values; NaN for illegal actions.
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
        """Return (next state, reward, terminated, truncated)."""
        raise NotImplementedError

    def _taken(self, action: Any) -> Any:
        """Convert an action for `_follow`."""
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
        taken = self._taken(action)  # before the state changes: invalid actions raise
        self.time += 1
        self.state, reward, terminated, truncated = self._follow(taken)
        return self._obs(), reward, terminated, truncated, self._info()


class OneStepProbe(ProbeEnv):
    """Base class: one step from a random state; `rewards` [S, A] are the Q values."""

    rewards: ClassVar[np.ndarray]

    def _follow(self, action: int) -> tuple[int, float, bool, bool]:
        return self.state, float(self.rewards[self.state, action]), True, False

    def expected_q(self, gamma: float) -> np.ndarray:
        return self.rewards.copy()


class ConstantRewardEnv(OneStepProbe):
    """One state, one step, reward 1 for every action. Q = 1. Fails: the value head, the loss, the optimiser."""

    observations = np.zeros((1, 1), dtype=np.float32)
    rewards = np.array([[1.0, 1.0]])


class ObsDependentRewardEnv(OneStepProbe):
    """Two start states observed as -1 and 1; one step with that reward. Q(s, a) = s. Fails: the input path."""

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
    """Reward 1 in every step without an end, but the time limit truncates every episode. Q = 1 / (1 - γ).

    A learner that treats truncation as termination learns less: 1 with `limit` 1 (steps until the truncation).
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
    """The first action determines the reward of the second step: 1 after action 1, 0 after action 0. Fails: the trace.

    Q(start) = (0, γ); Q(left) = 0; Q(right) = 1. The second action has no effect.
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
    """Three actions with legal ones in `info["action_mask"]` [3] int8; an illegal action raises an error.

    In the start state actions 0 and 1 are legal, with rewards 0 and 1. Then only action 2 is legal, with reward 1 and
    the end. Q(start) = (γ, 1 + γ, -); Q(second) = (-, -, 1). Fails: masks of the wrong lane or step, masks in
    exploration.
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
    """Four start states, one step with reward (1, 0, -1, 0.5) by state, which is Q(s, a). For `DictProbe`."""

    observations = np.eye(4, dtype=np.float32)
    num_starts = 4
    rewards = np.array([[1.0, 1.0], [0.0, 0.0], [-1.0, -1.0], [0.5, 0.5]])


class RecallEnv(gymnasium.Env[np.ndarray, int]):
    """A sign is shown in the first of `length` observations; the last action must match it (1 for +1, 0 for −1).

    Reward 1 for the right last action, else 0, and none before. With memory the return is 1, and every undiscounted
    state value is 1; without memory the last observation is uninformative: 0.5. Fails: hidden states that are not
    carried from step to step, not reset between episodes, or not those used for acting.

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
    """A probe with another kind of observation; `observations[s]` is the observation of state s."""

    env: ProbeEnv

    def __init__(self, probe: ProbeEnv) -> None:
        super().__init__(probe)
        self.observations: list[Any] = [self.show(state) for state in range(len(probe.observations))]

    def show(self, state: int) -> Any:
        """Return the observation of a state."""
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
    """States as uint8 images [1, 6, 6], or [6, 6, 1] with `channels_last`: row 2s is white, the rest black.

    Fails: scaling, axes, convolutions.
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
    """States in two parts of a nested Dict, neither of which identifies them alone. Fails: a part that is lost.

    The image shows whether the state number is odd, the integer in the inner Tuple is half of it; the inner vector is
    uninformative.
    """

    def __init__(self, probe: ProbeEnv) -> None:
        super().__init__(probe)
        inner = spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (2,), np.float32)))
        self.observation_space = spaces.Dict(camera=spaces.Box(0, 255, (1, SIDE, SIDE), np.uint8), body=inner)

    def show(self, state: int) -> dict[str, Any]:
        """Return {"camera": [1, 6, 6] uint8, "body": (integer, [2] float32)}."""
        camera = np.full((1, SIDE, SIDE), 255 * (state % 2), np.uint8)
        return {"camera": camera, "body": (np.int64(state // 2), np.zeros(2, np.float32))}


# -- continuous actions ----------------------------------------------------------------------------------------------


class ContinuousProbe(ProbeEnv):
    """Base class: one action component with bounds that are asymmetric on purpose.

    An action that is not rescaled, or rescaled twice, misses its target. As a mixin of a discrete probe it turns that
    probe into one with continuous actions without effect.

    Attributes:
        low, high: bounds of the action. best: [S, 1] best action in each state, NaN if all are equally good.
    """

    best: ClassVar[np.ndarray]
    low: ClassVar[float] = -2.0
    high: ClassVar[float] = 6.0

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(self.low, self.high, (1,), np.float32)  # type: ignore[assignment]

    def expected_q(self, gamma: float, action: np.ndarray | None = None) -> np.ndarray:
        """Return optimal values [S, M] of actions [M] in environment units; [S, 1] of the best ones by default."""
        return np.repeat(super().expected_q(gamma)[:, :1], 1 if action is None else len(action), axis=1)

    def _follow(self, action: Any) -> tuple[int, float, bool, bool]:
        return super()._follow(0)

    def expected_value(self, gamma: float) -> np.ndarray:
        """Return the value [S] of each state under the best actions."""
        return np.asarray(self.expected_q(gamma)[:, 0])

    def best_actions(self) -> np.ndarray | None:
        """Return the best actions [S]; None if all are equally good."""
        return None if np.isnan(self.best).any() else self.best[:, 0]

    def _taken(self, action: Any) -> float:
        """Return an action [1] as a number; EnvError if it lies outside of the space."""
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
    """Two steps, reward 0 then 1 for every action. Q = γ, 1. Fails: the discount, the target's next observation."""

    best = np.full((2, 1), np.nan)


class TruncatedActionEnv(ContinuousProbe, TruncatedEnv):
    """Reward 1 without an end, truncated after every step. Q = 1 / (1 − γ). Fails: the bootstrap at a time limit."""

    best = np.full((1, 1), np.nan)


class TwoStepActionEnv(ContinuousProbe):
    """The first action a is rewarded in the second step, by 1 − ((a − 4) / 4)². Q(start, a) is γ times that.

    The second observation shows the first action, so that its value can be learned. Fails: the trace.
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
        """Return the values of the start state only."""
        return np.asarray(gamma * (1 - (((self.best if action is None else action[None]) - 4) / 4) ** 2))


# Bounds of 2 and 6: neither centre nor width equals that of the raw actions.


class ContinuousConstantEnv(ContinuousProbe, ConstantRewardEnv):
    """One state, one step, reward 1 for every action."""

    low, best = 2.0, np.full((1, 1), np.nan)


class ContinuousObsEnv(ContinuousProbe, ObsDependentRewardEnv):
    """Two start states observed as -1 and 1; one step with that reward."""

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
