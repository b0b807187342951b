"""Tasks of the published single-agent probe environments, in three observation forms.

Observations are integers, images [1, 3, 3] of one value, or dictionaries `discrete` and `box` of both, whose values are
independent; actions are Discrete, or Box in [0, 1]. This project's own tests use the probes of `testing.probes`.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from agilerl.errors import EnvError

SIDE = 3  # pixels
GAMMA = 0.99  # of `q_values` and `v_values`
State = tuple[int, int]  # values of `discrete` and `box`; equal except in dictionaries


class PublishedProbe(gymnasium.Env[Any, Any]):
    """Base class: one step from a random state; a subclass defines the reward.

    Attributes:
        num_values: number of integer and pixel values. num_choices: A, number of Discrete actions.
        width: W, components of Box actions; 0 for Discrete ones. form: "vector" (integers), "image" or "dict".
        states: [S] values of both keys. num_states: S. state: index of the current one.
        observations: [S] observation of each state.
        sample_obs: observation of each state, as a batch of one. sample_actions: an action [1, W] for each state.
        q_values, v_values: state values for γ = 0.99; with Discrete actions, q_values of every action.
        policy_values: optimal action in each state; None if all are equally good.
    """

    num_values: ClassVar[int] = 1
    num_choices: ClassVar[int] = 1
    width: ClassVar[int] = 0
    form: ClassVar[str] = "vector"

    def __init__(self) -> None:
        self.states = self._all_states()
        self.num_states = len(self.states)
        image = spaces.Box(0.0, float(self.num_values > 1), (1, SIDE, SIDE), np.float32)
        number = spaces.Discrete(self.num_values)
        forms = {"vector": number, "image": image, "dict": spaces.Dict(discrete=number, box=image)}
        self.observation_space = forms[self.form]
        self.action_space = (
            spaces.Box(0.0, 1.0, (self.width,), np.float32) if self.width else spaces.Discrete(self.num_choices)
        )
        self.observations = [self._show(state) for state in self.states]
        self.sample_obs = [self._batched(obs) for obs in self.observations]
        best = self.best_actions()
        self.policy_values: list[Any] = [None] * self.num_states if best is None else best.tolist()
        chosen = np.full((self.num_states, self.width), 0.5) if best is None or not self.width else best
        self.sample_actions = list(chosen[:, None].astype(np.float32)) if self.width else []
        self.q_values: list[list[float]] = self.expected_q(GAMMA).tolist()
        self.v_values: list[list[float]] = self.expected_q(GAMMA).max(axis=1, keepdims=True).tolist()
        self.state = 0

    def _all_states(self) -> list[State]:
        both = itertools.product(range(self.num_values), repeat=2)
        return [(number, pixel) for number, pixel in both if self.form == "dict" or number == pixel]

    def _show(self, state: State) -> Any:
        number, picture = state[0], np.full((1, SIDE, SIDE), state[1], np.float32)
        return {"vector": number, "image": picture, "dict": {"discrete": number, "box": picture}}[self.form]

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
        return self._show(self.states[self.state]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = self._reward(self.states[self.state], self._taken(action))
        self.state, is_over = self._follow(self.state)
        return self._show(self.states[self.state]), float(reward), is_over, False, {}

    # -- the task ----------------------------------------------------------------------------------------------------

    def _starts(self) -> int:
        """Number of start states."""
        return self.num_states

    def _follow(self, state: int) -> tuple[int, bool]:
        """Return (next state, terminated)."""
        return state, True

    def _reward(self, state: State, action: np.ndarray) -> float:
        raise NotImplementedError

    def best_actions(self) -> np.ndarray | None:
        """Return the best choices [S] or Box actions [S, W]; None if all are equally good."""
        return None

    # -- its values --------------------------------------------------------------------------------------------------

    def expected_q(self, gamma: float) -> np.ndarray:
        """Return the optimal values [S, A] of the choices; for Box actions [S, 1], of the best one."""
        states = range(self.num_states)
        if not self.width:
            choices = [np.full(self.num_states, choice) for choice in range(self.num_choices)]
            return np.stack([self.values_of(choice[:, None], gamma) for choice in choices], axis=1)
        best = self.best_actions()
        chosen = np.full((len(states), self.width), 0.5) if best is None else best
        return self.values_of(chosen, gamma)[:, None]

    def values_of(self, actions: np.ndarray, gamma: float) -> np.ndarray:
        """Return the value [S] of an action [S, W] (or [S, 1] choices) in each state, followed by optimal actions."""
        pairs = zip(self.states, actions, strict=True)
        return np.array([self._reward(state, action) for state, action in pairs], np.float64)


class _Constant(PublishedProbe):
    """One state, one step, reward 1 whatever the action. Q = 1. Fails: the value head, the loss, the optimiser."""

    def _reward(self, state: State, action: np.ndarray) -> float:
        return 1.0


class _ObsDependent(PublishedProbe):
    """One step; -1 for the value 0, 1 for the value 1; of dictionaries 1 if both keys agree. Fails: the input path."""

    num_values = 2

    def _reward(self, state: State, action: np.ndarray) -> float:
        is_good = state[0] == state[1] if self.form == "dict" else state[0] == 1
        return 1.0 if is_good else -1.0


class _Discounted(PublishedProbe):
    """Two steps, reward 0 then 1; of dictionaries the sum of both keys, 2. Q = γ, 1 or 2γ, 2.

    Fails: the discount, the next observation.
    """

    num_values = 2

    def _all_states(self) -> list[State]:
        return [(0, 0), (1, 1)]

    def _starts(self) -> int:
        return 1

    def _follow(self, state: int) -> tuple[int, bool]:
        return 1, state == 1

    def _reward(self, state: State, action: np.ndarray) -> float:
        return float(sum(state) if self.form == "dict" else state[0])

    def values_of(self, actions: np.ndarray, gamma: float) -> np.ndarray:
        last = super().values_of(actions, gamma)[1]
        return np.array([gamma * last, last])


class _FixedObsPolicy(PublishedProbe):
    """One state, one step; action 1 pays 1, action 0 pays -1. Box actions: -‖a - best‖², the best one is 1.

    Fails: which output is which action, the gradient of the policy.
    """

    num_choices = 2

    def _best(self, state: State) -> np.ndarray:
        return np.ones(max(self.width, 1), int)

    def _reward(self, state: State, action: np.ndarray) -> float:
        if self.width:
            return -float(((action - self._best(state)) ** 2).sum())
        return 1.0 if action[0] == self._best(state)[0] else -1.0

    def best_actions(self) -> np.ndarray | None:
        best = np.stack([self._best(state) for state in self.states])
        return best.astype(np.float64) if self.width else best[:, 0]


class _Policy(_FixedObsPolicy):
    """One step; the action of the state's value pays 1, any other -1; both keys of a dictionary have to agree with it.

    Box actions: -‖a - best‖²; of one component the value is best, of two (1, 0) for 0 and (0, 1) for 1. A dictionary
    has the value 1 if both keys are 1. Fails: the policy's use of its input.
    """

    num_values = 2

    def _best(self, state: State) -> np.ndarray:
        value = int(all(state))
        return np.array([1 - value, value] if self.width == 2 else [value])

    def _reward(self, state: State, action: np.ndarray) -> float:
        agrees = bool(self.width) or state[0] == state[1]
        return super()._reward(state, action) if agrees else -1.0


TASKS = {
    "ConstantReward": _Constant,
    "ObsDependentReward": _ObsDependent,
    "DiscountedReward": _Discounted,
    "FixedObsPolicy": _FixedObsPolicy,
    "Policy": _Policy,
}
FORMS = {"": "vector", "Image": "image", "Dict": "dict"}


def _probe(name: str, task: str, form: str, width: int) -> Any:
    inside = {"form": form, "width": width, "__doc__": TASKS[task].__doc__, "__module__": "agilerl.utils.probe_envs"}
    return type(name, (TASKS[task],), inside)


PROBES: dict[str, Any] = {
    name: _probe(name, task, form, 0 if not actions else 2 if task == "Policy" else 1)
    for task, actions, (shown, form) in itertools.product(TASKS, ("", "ContActions"), FORMS.items())
    for name in [f"{task}{actions}{shown}Env"]
}
"""The published classes by name: every task with both kinds of actions in every form."""
PROBES["PolicyContActionsImageEnvSimple"] = _probe("PolicyContActionsImageEnvSimple", "Policy", "image", 1)
