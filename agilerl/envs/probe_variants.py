"""The probes with other observations (images, dictionaries) and with continuous actions.

An image or dictionary probe has the states, rewards and values of the probe that it shows: what it adds is the path
from its observations to the value. A continuous probe knows the value of every state and the best action in it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from agilerl.envs.probe import ProbeEnv
from agilerl.errors import EnvError

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
        """[S, A] as of the probe that is shown."""
        return self.env.expected_q(gamma)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """As of the probe."""
        _, info = self.env.reset(**kwargs)
        return self.show(self.env.state), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As of the probe."""
        _, reward, terminated, truncated, info = self.env.step(action)
        return self.show(self.env.state), reward, terminated, truncated, info


class ImageProbe(ShownProbe):
    """States as uint8 images: row 2s of the picture is white, the rest black. Fails: scaling, axes, convolutions.

    Args:
        channels_last: [6, 6, 1] in place of [1, 6, 6].
    """

    def __init__(self, probe: ProbeEnv, channels_last: bool = False) -> None:
        self.shape = (SIDE, SIDE, 1) if channels_last else (1, SIDE, SIDE)
        super().__init__(probe)
        self.observation_space = spaces.Box(0, 255, self.shape, np.uint8)

    def show(self, state: int) -> np.ndarray:
        """[1, 6, 6] or [6, 6, 1] uint8."""
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


class FourStatesEnv(ProbeEnv):
    """Four start states, one step, its reward is (1, 0, -1, 0.5) by state. Q(s, a) = that. For `DictProbe`."""

    observations = np.eye(4, dtype=np.float32)
    rewards = np.array([1.0, 0.0, -1.0, 0.5])

    def _start(self) -> int:
        return int(self.np_random.integers(4))

    def _follow(self, action: int) -> tuple[int, float, bool, bool]:
        return self.state, float(self.rewards[self.state]), True, False

    def expected_q(self, gamma: float) -> np.ndarray:
        """The reward of the state, for every action."""
        return np.repeat(self.rewards[:, None], self.num_actions, axis=1)


class ContinuousProbe(ProbeEnv):
    """A probe with actions in a Box [1] from 2 to 6: neither centre nor width is that of the raw actions.

    Attributes:
        low, high: bounds of the action.
    """

    low: ClassVar[float] = 2.0
    high: ClassVar[float] = 6.0

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(self.low, self.high, (1,), np.float32)  # type: ignore[assignment]

    def expected_value(self, gamma: float) -> np.ndarray:
        """[S] value of each state under the best actions."""
        raise NotImplementedError

    def expected_q(self, gamma: float) -> np.ndarray:
        """[S, 1] the value of the best action."""
        return self.expected_value(gamma)[:, None]

    def best_actions(self) -> np.ndarray | None:
        """[S] the best action; None where all are equally good."""
        return None

    def _taken(self, action: Any) -> float:
        """The number in an action [1].

        Raises:
            EnvError: it lies outside of the space.
        """
        if not self.action_space.contains(np.asarray(action, np.float32)):
            raise EnvError(f"action {action} is outside of {self.action_space}. fix: environment_action(action).")
        return float(np.asarray(action)[0])


class ContinuousConstantEnv(ContinuousProbe):
    """One state, one step, reward 1 whatever the action."""

    observations = np.zeros((1, 1), dtype=np.float32)

    def _follow(self, action: float) -> tuple[int, float, bool, bool]:
        return 0, 1.0, True, False

    def expected_value(self, gamma: float) -> np.ndarray:
        """1."""
        return np.ones(1)


class ContinuousObsEnv(ContinuousProbe):
    """Two start states seen as -1 and 1; one step, its reward is what is seen."""

    observations = np.array([[-1.0], [1.0]], dtype=np.float32)

    def _start(self) -> int:
        return int(self.np_random.integers(2))

    def _follow(self, action: float) -> tuple[int, float, bool, bool]:
        return self.state, float(self.observations[self.state, 0]), True, False

    def expected_value(self, gamma: float) -> np.ndarray:
        """The observation."""
        return self.observations[:, 0].astype(np.float64)


class ContinuousDiscountedEnv(ContinuousProbe):
    """Two steps, reward 0 then 1. V = (γ, 1)."""

    observations = np.array([[0.0], [1.0]], dtype=np.float32)

    def _follow(self, action: float) -> tuple[int, float, bool, bool]:
        return 1, float(self.state == 1), self.state == 1, False

    def expected_value(self, gamma: float) -> np.ndarray:
        """γ in the first state, 1 in the second."""
        return np.array([gamma, 1.0])


class ContinuousPolicyEnv(ContinuousProbe):
    """Two start states; the reward is 1 − ((action − best) / 2)², the best action is 3 in one and 5 in the other.

    V = 1. Fails: the scale of the actions, their sign, the policy's use of its input, the gradient of the critic.
    """

    observations = np.array([[0.0], [1.0]], dtype=np.float32)
    best = np.array([3.0, 5.0])

    def _start(self) -> int:
        return int(self.np_random.integers(2))

    def _follow(self, action: float) -> tuple[int, float, bool, bool]:
        return self.state, 1.0 - ((action - self.best[self.state]) / 2) ** 2, True, False

    def expected_value(self, gamma: float) -> np.ndarray:
        """1 in both states."""
        return np.ones(2)

    def best_actions(self) -> np.ndarray:
        """(3, 5)."""
        return self.best.copy()


CONTINUOUS_PROBES: tuple[type[ContinuousProbe], ...] = (
    ContinuousConstantEnv,
    ContinuousObsEnv,
    ContinuousDiscountedEnv,
    ContinuousPolicyEnv,
)
