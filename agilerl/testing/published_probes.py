"""Tasks of the published single-agent probe environments, in three observation forms.

Observations are integers, images [1, 3, 3] of one value, or dictionaries `discrete` and `box` of both; actions are
Discrete, or Box in [0, 1]. This project's own tests use the probes of `agilerl.testing.probes`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from agilerl.errors import EnvError

SIDE = 3  # pixels
WIDTH = 0.5  # distance from the best action at which its term of the reward is 0
GAMMA = 0.99  # of `q_values` and `v_values`


class PublishedProbe(gymnasium.Env[Any, Any]):
    """Base class: one step from a random state; a subclass defines the reward.

    Attributes:
        num_states: S. num_choices: A, of Discrete actions. width: W, components of Box actions; 0 for Discrete ones.
        form: "vector" (integers), "image" or "dict".
        observations: [S] observation of each state.
        sample_obs: observation of each state, as a batch of one. sample_actions: an action [1, W] for each state.
        q_values, v_values: their values for γ = 0.99; for Discrete actions of every action.
        policy_values: the best action in each state; None if all are equally good.
    """

    num_states: ClassVar[int] = 1
    num_choices: ClassVar[int] = 1
    width: ClassVar[int] = 0
    form: ClassVar[str] = "vector"

    def __init__(self) -> None:
        image = spaces.Box(0.0, float(self.num_states > 1), (1, SIDE, SIDE), np.float32)
        number = spaces.Discrete(self.num_states)
        forms = {"vector": number, "image": image, "dict": spaces.Dict(discrete=number, box=image)}
        self.observation_space = forms[self.form]
        self.action_space = (
            spaces.Box(0.0, 1.0, (self.width,), np.float32) if self.width else spaces.Discrete(self.num_choices)
        )
        self.observations = [self._show(state) for state in range(self.num_states)]
        self.sample_obs = [self._batched(obs) for obs in self.observations]
        best = self.best_actions()
        self.policy_values: list[Any] = [None] * self.num_states if best is None else best.tolist()
        chosen = np.full((self.num_states, self.width), 0.5) if best is None or not self.width else best
        self.sample_actions = list(chosen[:, None].astype(np.float32)) if self.width else []
        self.q_values: list[list[float]] = self.expected_q(GAMMA).tolist()
        self.v_values: list[list[float]] = self.expected_q(GAMMA).max(axis=1, keepdims=True).tolist()
        self.state = 0

    def _show(self, state: int) -> Any:
        picture = np.full((1, SIDE, SIDE), state, np.float32)
        return {"vector": state, "image": picture, "dict": {"discrete": state, "box": picture}}[self.form]

    def _batched(self, obs: Any) -> Any:
        if isinstance(obs, dict):
            return {key: self._batched(part) for key, part in obs.items()}
        return np.array([[obs]]) if isinstance(obs, int) else obs[None]

    def _taken(self, action: Any) -> np.ndarray:
        """A discrete action [1], or a Box action [W], from a number, a row, or a batch of one row."""
        kind = np.float32 if self.width else np.int64
        flat = np.asarray(action).reshape(-1).astype(kind)
        if len(flat) != (self.width or 1) or not self.action_space.contains(flat if self.width else flat[0]):
            raise EnvError(
                f"{type(self).__name__}: action {action} is outside of {self.action_space}. "
                "fix: agent.environment_action(action), of one environment."
            )
        return flat

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        super().reset(seed=seed)
        self.state = int(self.np_random.integers(self._starts())) if self._starts() > 1 else 0
        return self._show(self.state), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = self._reward(self.state, self._taken(action))
        self.state, is_over = self._follow(self.state)
        return self._show(self.state), float(reward), is_over, False, {}

    # -- the task ----------------------------------------------------------------------------------------------------

    def _starts(self) -> int:
        """Number of start states."""
        return self.num_states

    def _follow(self, state: int) -> tuple[int, bool]:
        """Next state, terminated."""
        return state, True

    def _reward(self, state: int, action: np.ndarray) -> float:
        raise NotImplementedError

    def best_actions(self) -> np.ndarray | None:
        """[S] best choices, or [S, W] best Box actions; None if all are equally good."""
        return None

    # -- its values --------------------------------------------------------------------------------------------------

    def expected_q(self, gamma: float) -> np.ndarray:
        """[S, A] optimal values of the choices; for Box actions [S, 1], of the best one."""
        states = range(self.num_states)
        if not self.width:
            choices = [np.full(self.num_states, choice) for choice in range(self.num_choices)]
            return np.stack([self.values_of(choice[:, None], gamma) for choice in choices], axis=1)
        best = self.best_actions()
        chosen = np.full((len(states), self.width), 0.5) if best is None else best
        return self.values_of(chosen, gamma)[:, None]

    def values_of(self, actions: np.ndarray, gamma: float) -> np.ndarray:
        """[S] value of an action [S, W] (or [S, 1] choices) in each state, followed by optimal actions."""
        return np.array([self._reward(state, action) for state, action in enumerate(actions)], np.float64)


class _Constant(PublishedProbe):
    """One state, one step, reward 1 whatever the action. Q = 1. Fails: the value head, the loss, the optimiser."""

    def _reward(self, state: int, action: np.ndarray) -> float:
        return 1.0


class _ObsDependent(PublishedProbe):
    """Two start states, one step; -1 in state 0 and 1 in state 1. Fails: the input path."""

    num_states = 2

    def _reward(self, state: int, action: np.ndarray) -> float:
        return 2.0 * state - 1.0


class _Discounted(PublishedProbe):
    """Two steps, reward 0 then 1. Q = γ, 1. Fails: the discount, the next observation."""

    num_states = 2

    def _starts(self) -> int:
        return 1

    def _follow(self, state: int) -> tuple[int, bool]:
        return 1, state == 1

    def _reward(self, state: int, action: np.ndarray) -> float:
        return float(state)

    def values_of(self, actions: np.ndarray, gamma: float) -> np.ndarray:
        return np.array([gamma, 1.0])


class _FixedObsPolicy(PublishedProbe):
    """One state, one step; action 1 pays 1, action 0 pays -1. Box actions: 1 - ((a - 0.75) / 0.5)².

    Fails: which output is which action, the gradient of the policy.
    """

    num_choices = 2

    def _best(self, state: int) -> Any:
        return 1 if not self.width else np.full(self.width, 0.75)

    def _reward(self, state: int, action: np.ndarray) -> float:
        best = self._best(state)
        if self.width:
            return float(1 - (((action - best) / WIDTH) ** 2).mean())
        return 1.0 if action[0] == best else -1.0

    def best_actions(self) -> np.ndarray | None:
        return np.stack([np.asarray(self._best(state)) for state in range(self.num_states)])


class _Policy(_FixedObsPolicy):
    """Two start states; 1 for the action of the state's number, else -1.

    Box actions: 1 - ((a - best) / 0.5)², the mean over components; best is 0.25 in state 0 and 0.75 in state 1, and
    the other way round in the second component. Fails: the policy's use of its input.
    """

    num_states = 2

    def _best(self, state: int) -> Any:
        return state if not self.width else np.where((np.arange(self.width) + state) % 2, 0.75, 0.25)


def probe(name: str, task: type[PublishedProbe], form: str, width: int = 0) -> Any:
    """The published class of a task in one form; `width`: components of Box actions, 0 for Discrete ones."""
    inside = {"form": form, "width": width, "__doc__": task.__doc__, "__module__": "agilerl.utils.probe_envs"}
    return type(name, (task,), inside)


TASKS = {
    "ConstantReward": _Constant,
    "ObsDependentReward": _ObsDependent,
    "DiscountedReward": _Discounted,
    "FixedObsPolicy": _FixedObsPolicy,
    "Policy": _Policy,
}
