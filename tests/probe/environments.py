"""Probe environments of the tests alone: further tasks, and other forms of those in `agilerl.testing`.

Discrete probes are shown as images and dictionaries, continuous ones have one action component, and teams other spaces.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from agilerl.errors import ConfigError, EnvError
from agilerl.testing import team_probes as tasks
from agilerl.testing.probes import (
    END,
    ConstantRewardEnv,
    DiscountedRewardEnv,
    ObsDependentRewardEnv,
    PolicyEnv,
    ProbeEnv,
    rows,
)
from agilerl.testing.team_probes import FIRST as FIRST
from agilerl.testing.team_probes import PAIRS, TeamProbe
from agilerl.testing.team_probes import SECOND as SECOND


class ActionRewardEnv(ProbeEnv):
    """One state, one step; action 1 gives 1, action 0 gives -1. Q = (-1, 1). Fails: which output is which action."""

    observations, rewards = rows(0), np.array([[-1.0, 1.0]])


class TruncatedEnv(ProbeEnv):
    """Reward 1 in every step without an end, but the time limit truncates every episode. Q = 1 / (1 - γ).

    A learner that treats truncation as termination learns less: 1 with `limit` 1 (steps until the truncation).
    """

    observations, rewards, following = rows(0), np.array([[1.0, 1.0]]), 0

    def __init__(self, limit: int = 1) -> None:
        super().__init__()
        self.limit = limit

    def expected_q(self, gamma: float) -> np.ndarray:
        return np.full((1, self.num_actions), 1.0 / (1.0 - gamma))


class TwoStepCreditEnv(ProbeEnv):
    """The first action determines the reward of the second step: 1 after action 1, 0 after action 0. Fails: the trace.

    Q(start) = (0, γ); Q(left) = 0; Q(right) = 1. The second action has no effect.
    """

    observations, rewards = rows([0, 0], [1, 0], [0, 1]), np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    following = ((1, 2), (END, END), (END, END))


class CoinEnv(ProbeEnv):
    """One state, one step; the reward is 1 in every other episode and -1 in between. Q = 0. Fails: quantiles.

    The quantile Huber loss with κ = 1 has its minimum at 2 − 1/τ for a level τ ≥ 1/2: between 0 and 1 the target 1 has
    the slope τ(1 − θ), and the target −1, further away than κ, 1 − τ. Below 1/2 it is the negative of that at 1 − τ.
    """

    observations, rewards = rows(0), np.zeros((1, 2))
    episodes = 0

    def _reward(self, state: int, action: np.ndarray) -> float:
        self.episodes += 1
        return 1.0 if self.episodes % 2 else -1.0

    @staticmethod
    def expected_quantiles(levels: np.ndarray) -> np.ndarray:
        """Return the minimum [K] of the loss for levels [K]."""
        distance = np.maximum(levels, 1 - levels)
        return np.asarray(np.sign(levels - 0.5) * (2 - 1 / distance))


class MaskedActionEnv(ProbeEnv):
    """Three actions with legal ones in `info["action_mask"]` [3] int8; an illegal action raises an error.

    In the start state actions 0 and 1 are legal, with rewards 0 and 1. Then only action 2 is legal, with reward 1 and
    the end. Q(start) = (γ, 1 + γ, -); Q(second) = (-, -, 1). Fails: masks of the wrong lane or step, masks in
    exploration.
    """

    observations, rewards = rows(0, 1), np.array([[0.0, 1.0, np.nan], [np.nan, np.nan, 1.0]])
    following = ((1,), (END,))

    def _info(self) -> dict[str, Any]:
        return {"action_mask": (~np.isnan(self.rewards[self.state])).astype(np.int8)}

    def _taken(self, action: Any) -> np.ndarray:
        taken, legal = super()._taken(action), np.flatnonzero(~np.isnan(self.rewards[self.state])).tolist()
        if taken[0] not in legal:
            raise EnvError(f"action {action} is illegal in state {self.state}: legal are {legal}.")
        return taken


class FourStatesEnv(ProbeEnv):
    """Four start states, one step with reward (1, 0, -1, 0.5) by state, which is Q(s, a). For `DictProbe`."""

    observations, num_starts = rows(*np.eye(4)), 4
    rewards = np.array([[1.0, 1.0], [0.0, 0.0], [-1.0, -1.0], [0.5, 0.5]])


PROBES: tuple[type[ProbeEnv], ...] = (
    ConstantRewardEnv, ObsDependentRewardEnv, DiscountedRewardEnv, ActionRewardEnv, PolicyEnv, TruncatedEnv,
    TwoStepCreditEnv, MaskedActionEnv,
)  # fmt: skip


# -- shown as images and dictionaries --------------------------------------------------------------------------------

SIDE = 6  # pixels


class ShownProbe(gymnasium.ObservationWrapper[Any, Any, Any]):
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

    def observation(self, observation: Any) -> Any:
        return self.show(self.env.state)


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
        low, high: bounds of the action.
    """

    low: ClassVar[float] = -2.0
    high: ClassVar[float] = 6.0
    width = 1

    def __init__(self) -> None:
        super().__init__()
        self.best = np.broadcast_to(self.best, (len(self.observations), 1))

    def _spaces(self) -> tuple[Any, Any]:
        observations = spaces.Box(-1.0, 2.0, self.observations.shape[1:], np.float32)
        return observations, spaces.Box(self.low, self.high, (1,), np.float32)

    def expected_q(self, gamma: float, action: np.ndarray | None = None) -> np.ndarray:
        """Return optimal values [S, M] of actions [M] in environment units; [S, 1] of the best ones by default."""
        if np.isnan(self.best).any():
            return np.repeat(super().expected_q(gamma), 1 if action is None else len(action), axis=1)
        return np.asarray(1 - (((self.best if action is None else action[None]) - self.best) / self.spread) ** 2)

    def expected_value(self, gamma: float) -> np.ndarray:
        """Return the value [S] of each state under the best actions."""
        return np.asarray(self.expected_q(gamma)[:, 0])

    def best_actions(self) -> np.ndarray | None:
        """Return the best actions [S]; None if all are equally good."""
        return None if np.isnan(self.best).any() else self.best[:, 0]


class TargetActionEnv(ContinuousProbe):
    """Two start states; one step; 1 − ((a − best) / 4)². Fails: the policy's gradient, its input, the rescaling."""

    observations, num_starts = rows(-1, 1), 2
    best, spread = np.array([[0.0], [4.0]]), 4.0  # raw -0.5 and 0.5


class DiscountedActionEnv(ContinuousProbe, DiscountedRewardEnv):
    """Two steps, reward 0 then 1 for every action. Q = γ, 1. Fails: the discount, the target's next observation."""


class ContinuousCoinEnv(ContinuousProbe, CoinEnv):
    """One step; the reward is 1 in every other episode and -1 in between, for every action. Fails: quantiles."""


class TruncatedActionEnv(ContinuousProbe, TruncatedEnv):
    """Reward 1 without an end, truncated after every step. Q = 1 / (1 − γ). Fails: the bootstrap at a time limit."""


class TwoStepActionEnv(ContinuousProbe):
    """The first action a is rewarded in the second step, by 1 − ((a − 4) / 4)². Q(start, a) is γ times that.

    The second observation shows the first action, so that its value can be learned. Fails: the trace.
    """

    observations, best, spread = rows(-1), np.array([[4.0]]), 4.0
    opening = np.zeros(1)  # the first action of the episode

    def _follow(self, action: np.ndarray) -> tuple[int, float, bool]:
        if self.time == 1:
            self.opening = action
        return 0, 0.0 if self.time == 1 else self._reward(0, self.opening), self.time > 1

    def _obs(self) -> np.ndarray:
        return ((self.opening + 2) / 4).astype(np.float32) if self.time == 1 else super()._obs()

    def expected_q(self, gamma: float, action: np.ndarray | None = None) -> np.ndarray:
        """Return the values of the start state only."""
        return np.asarray(gamma * super().expected_q(gamma, action))


# Bounds of 2 and 6: neither centre nor width equals that of the raw actions.


class ContinuousConstantEnv(ContinuousProbe, ConstantRewardEnv):
    """One state, one step, reward 1 for every action."""

    low = 2.0


class ContinuousObsEnv(ContinuousProbe, ObsDependentRewardEnv):
    """Two start states observed as -1 and 1; one step with that reward."""

    low = 2.0


class ContinuousDiscountedEnv(DiscountedActionEnv):
    """Two steps, reward 0 then 1. V = (γ, 1)."""

    low = 2.0


class ContinuousPolicyEnv(TargetActionEnv):
    """Two start states; the reward is 1 − ((action − best) / 2)², the best action is 3 in one and 5 in the other.

    V = 1. Fails: the scale of the actions, their sign, the policy's use of its input, the gradient of the critic.
    """

    observations = rows(0, 1)
    low, best, spread = 2.0, np.array([[3.0], [5.0]]), 2.0


CONTINUOUS_PROBES = (ContinuousConstantEnv, ContinuousObsEnv, ContinuousDiscountedEnv, ContinuousPolicyEnv)

# -- teams -------------------------------------------------------------------------------------------------------------

TEAM_FORMS = ("vector", "image", "dict")
LOW, HIGH = 2.0, 6.0  # bounds of Box actions: neither centre nor width equals that of raw actions
WIDTH = 2.0  # distance from the best action at which a term of the reward is 0


class OtherForms(TeamProbe):
    """A task with "vector" [1] float32, "image" [1, 6, 6] uint8, or "dict" of an uninformative image and an integer.

    Box actions are in [2, 6]. As in PettingZoo, there is no agent after an episode.
    """

    components = 1

    def _observations(self) -> dict[str, Any]:
        image = spaces.Box(0, 255, (1, SIDE, SIDE), np.uint8)
        vector = spaces.Box(-1.0, 1.0, (1,), np.float32)
        return {"vector": vector, "image": image, "dict": spaces.Dict(camera=image, card=spaces.Discrete(2))}

    def _actions(self) -> Any:
        return spaces.Box(LOW, HIGH, (1,), np.float32) if self.is_continuous else spaces.Discrete(2)

    def _form(self, sign: int) -> Any:
        picture = np.zeros((1, SIDE, SIDE), np.uint8)
        if self.form == "image":
            picture[:, 3 * sign : 3 * sign + 2] = 255
        forms = {"vector": np.array([2 * sign - 1], np.float32), "image": picture}
        return forms.get(self.form, {"camera": picture, "card": np.int64(sign)})

    def _term(self, action: np.ndarray, best: Any) -> np.ndarray:
        """Return 1 for the best action and less for others: 0 for the other choice, or 1 - (distance / 2)^2."""
        return np.asarray(1 - ((action - best) / WIDTH) ** 2 if self.is_continuous else action == best, float)

    def _good(self, sign: Any) -> Any:
        """Return the action that matches a sign: 0 and 1, or 3 and 5 of 2 .. 6."""
        return 3.0 + 2.0 * np.asarray(sign) if self.is_continuous else np.asarray(sign)

    def step(self, action: Any) -> Any:
        result = super().step(action)
        self.agents = [] if any(result[2].values()) or any(result[3].values()) else self.agents
        return result


class ConstantTeam(OtherForms, tasks.ConstantTeam):
    pass


class ObsDependentTeam(OtherForms, tasks.ObsDependentTeam):
    pass


class DiscountedTeam(OtherForms, tasks.DiscountedTeam):
    pass


class FixedObsPolicyTeam(OtherForms, tasks.FixedObsPolicyTeam):
    pass


class PolicyTeam(OtherForms, tasks.PolicyTeam):
    pass


class JointPolicyTeam(OtherForms, tasks.JointPolicyTeam):
    pass


class TruncatedTeam(OtherForms):
    """Rewards 1 and 2 in every step without an end, but the time limit truncates every episode.

    V = 1 / (1 - γ) and twice that. A learner that treats truncation as termination learns 1 and 2.

    Args:
        limit: steps until the truncation. others: see `TeamProbe`.
    """

    payoff, following = np.array([[1.0, 2.0]]), (0,)

    def __init__(self, form: str = "vector", continuous: bool = False, limit: int = 1) -> None:
        super().__init__(form, continuous)
        self.limit = limit


class MemoryTeam(OtherForms):
    """Three steps; one sign per agent is shown in the first step only.

    In the last step the first agent is rewarded for the action of its sign, the second for the other. V = (γ², γ, 1).
    Fails: the memory. Without memory the signs are unknown in the last step, and at best half of V is reached.
    """

    signs, num_starts, following = np.tile(PAIRS, (3, 1)), 4, (*range(4, 12), *[END] * 4)
    targets = signs ^ [0, 1]

    def __init__(self, form: str = "vector", continuous: bool = False) -> None:
        if form != "vector":
            raise ConfigError(f"MemoryTeam shows vectors, which a memory can read; got form={form!r}. fix: 'vector'.")
        super().__init__(form, continuous)

    def show(self, number: int) -> dict[str, Any]:
        shown = super().show(number)
        return shown if number < self.num_starts else {agent: np.zeros_like(x) for agent, x in shown.items()}

    def rewards(self, number: int, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        one, two = super().rewards(number, first, second)
        return (one, two) if self._next(number) == END else (np.zeros_like(one), np.zeros_like(two))


TEAM_PROBES: tuple[type[OtherForms], ...] = (
    ConstantTeam, ObsDependentTeam, DiscountedTeam, TruncatedTeam, FixedObsPolicyTeam, PolicyTeam, JointPolicyTeam
)  # fmt: skip
