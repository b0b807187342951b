"""Probe environments: each isolates one thing that a learner can get wrong, and knows the right Q values.

All of them have observations [O] float32, a Discrete action space and deterministic dynamics; randomness is only in
which start state an episode gets, from the environment's own generator (`reset(seed=)`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from agilerl.errors import EnvError


class ProbeEnv(gymnasium.Env[np.ndarray, int]):
    """Base: S states, each with its observation; a subclass fills in the start, the step and the answer.

    Attributes:
        observations: [S, O] float32, one row per state (without the state after the end).
        num_actions: A.
        expected_q: gamma -> [S, A] the optimal Q values; NaN where the action is illegal.
    """

    observations: np.ndarray
    num_actions: ClassVar[int] = 2
    expected_q: Callable[..., np.ndarray]

    def __init__(self) -> None:
        width = self.observations.shape[1]
        self.observation_space = spaces.Box(-1.0, 2.0, (width,), np.float32)
        self.action_space: spaces.Discrete = spaces.Discrete(self.num_actions)  # type: ignore[assignment]
        self.state = 0
        self.time = 0

    def _start(self) -> int:
        """The state in which an episode begins."""
        return 0

    def _follow(self, action: Any) -> tuple[int, float, bool, bool]:
        """Next state, reward, terminated, truncated."""
        raise NotImplementedError

    def _info(self) -> dict[str, Any]:
        return {}

    def _obs(self) -> np.ndarray:
        return np.array(self.observations[self.state])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """As in Gymnasium."""
        super().reset(seed=seed)
        self.state, self.time = self._start(), 0
        return self._obs(), self._info()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """As in Gymnasium."""
        taken = self._taken(action)
        self.time += 1
        self.state, reward, terminated, truncated = self._follow(taken)
        return self._obs(), reward, terminated, truncated, self._info()

    def _taken(self, action: Any) -> Any:
        """The action as `_follow` takes it."""
        return int(action)


class ConstantRewardEnv(ProbeEnv):
    """One state, one step, reward 1 whatever the action. Q = 1. Fails: the value head, the loss, the optimiser."""

    observations = np.zeros((1, 1), dtype=np.float32)

    def _follow(self, action: int) -> tuple[int, float, bool, bool]:
        return 0, 1.0, True, False

    def expected_q(self, gamma: float) -> np.ndarray:
        """1 everywhere: the episode ends after the reward."""
        return np.ones((1, self.num_actions))


class ObsDependentRewardEnv(ProbeEnv):
    """Two start states seen as -1 and 1; one step, its reward is what is seen. Q(s, a) = s. Fails: the input path."""

    observations = np.array([[-1.0], [1.0]], dtype=np.float32)

    def _start(self) -> int:
        return int(self.np_random.integers(2))

    def _follow(self, action: int) -> tuple[int, float, bool, bool]:
        return self.state, float(self.observations[self.state, 0]), True, False

    def expected_q(self, gamma: float) -> np.ndarray:
        """The observation, for every action."""
        return np.repeat(self.observations.astype(np.float64), self.num_actions, axis=1)


class DiscountedRewardEnv(ProbeEnv):
    """Two steps, reward 0 then 1. Q(s₀) = γ, Q(s₁) = 1. Fails: the discount, the target's next observation."""

    observations = np.array([[0.0], [1.0]], dtype=np.float32)

    def _follow(self, action: int) -> tuple[int, float, bool, bool]:
        return 1, float(self.state == 1), self.state == 1, False

    def expected_q(self, gamma: float) -> np.ndarray:
        """γ in the first state, 1 in the second."""
        return np.repeat([[gamma], [1.0]], self.num_actions, axis=1)


class ActionRewardEnv(ProbeEnv):
    """One state, one step; action 1 gives 1, action 0 gives -1. Q = (-1, 1). Fails: which output is which action."""

    observations = np.zeros((1, 1), dtype=np.float32)

    def _follow(self, action: int) -> tuple[int, float, bool, bool]:
        return 0, 1.0 if action == 1 else -1.0, True, False

    def expected_q(self, gamma: float) -> np.ndarray:
        """-1 for action 0 and 1 for action 1."""
        return np.array([[-1.0, 1.0]])


class PolicyEnv(ProbeEnv):
    """Two start states; 1 for the action of the state's number, else -1. Fails: the policy's use of its input."""

    observations = np.array([[0.0], [1.0]], dtype=np.float32)

    def _start(self) -> int:
        return int(self.np_random.integers(2))

    def _follow(self, action: int) -> tuple[int, float, bool, bool]:
        return self.state, 1.0 if action == self.state else -1.0, True, False

    def expected_q(self, gamma: float) -> np.ndarray:
        """1 on the diagonal, -1 beside it."""
        return np.array([[1.0, -1.0], [-1.0, 1.0]])


class TruncatedEnv(ProbeEnv):
    """Reward 1 in every step, for ever, but the time limit cuts every episode. Q = 1 / (1 - γ).

    A learner that takes the cut for an end learns less: with limit 1 it learns 1.

    Args:
        limit: steps until the episode is truncated.
    """

    observations = np.zeros((1, 1), dtype=np.float32)

    def __init__(self, limit: int = 1) -> None:
        super().__init__()
        self.limit = limit

    def _follow(self, action: int) -> tuple[int, float, bool, bool]:
        return 0, 1.0, False, self.time >= self.limit

    def expected_q(self, gamma: float) -> np.ndarray:
        """The geometric series 1 + γ + γ² + ..."""
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

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """As in Gymnasium."""
        super().reset(seed=seed)
        self.sign, self.time = (1 if self.np_random.random() < 0.5 else -1), 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """As in Gymnasium."""
        is_last = self.time == self.length - 1
        reward = float(is_last and (int(action) == 1) == (self.sign == 1))
        self.time += 1
        return self._obs(), reward, is_last, False, {}


PROBES: tuple[type[ProbeEnv], ...] = (
    ConstantRewardEnv,
    ObsDependentRewardEnv,
    DiscountedRewardEnv,
    ActionRewardEnv,
    PolicyEnv,
    TruncatedEnv,
    TwoStepCreditEnv,
    MaskedActionEnv,
)
