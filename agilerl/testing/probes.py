"""Probe environments: each isolates one failure mode of a learner and knows the correct Q values.

A probe is a table of rewards and next states; only the start state is random, from the environment's own generator
(`reset(seed=)`). Tables are shown as vectors, images or dictionaries (which add the path from observations to values)
and taken with Discrete or continuous actions. "Fails" names the parts whose bugs a probe detects. The published probes
(`PUBLISHED`, by name) are the product of their tasks, forms of observations and kinds of actions.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from agilerl.core.tree import Tree
from agilerl.errors import EnvError

END = -1  # in tables of next states


class ProbeEnv(gymnasium.Env[Any, Any]):
    """Base class: S states with one observation each, [O] float32, and tables of a subclass.

    Attributes:
        observations: [S, O] float32, one row per state (without the terminal state).
        rewards: [S, A] of each Discrete action; NaN for illegal ones. With Box actions, rewards that ignore the action.
        following: next state, by state and action ([S, A], [S, 1] or one for all); `END` terminates the episode.
        num_starts: number of start states, the first ones. limit: steps until a truncation; None: no truncation.
        best: [S, W] best Box action in each state, NaN if all are equally good.
        peak: reward of the best action. spread: distance from it that costs 1.
        width: W, components of Box actions; 0 for Discrete ones.
    """

    observations: Any
    rewards: Any
    following: Any = END
    num_starts: int = 1
    limit: int | None = None
    best: Any = np.nan
    peak: float = 1.0
    spread: float = 1.0
    width: ClassVar[int] = 0

    def __init__(self) -> None:
        self.observation_space, self.action_space = self._spaces()
        self._following = np.broadcast_to(self.following, (len(self.observations), self.num_actions))
        self.state, self.time = 0, 0

    def _spaces(self) -> tuple[Any, Any]:
        return spaces.Box(-1.0, 2.0, self.observations.shape[1:], np.float32), spaces.Discrete(self.num_actions)

    @property
    def num_actions(self) -> int:
        """Number A of Discrete actions; 1 for Box actions."""
        return 1 if self.width else int(self.rewards.shape[1])

    def expected_q(self, gamma: float) -> np.ndarray:
        """Return the optimal Q values [S, A]; NaN for illegal actions."""
        q = rewards = self.rewards[:, : self.num_actions]
        values = np.zeros(len(rewards) + 1)  # the last one: END
        for _ in rewards:  # an episode has at most S steps
            q = rewards + gamma * values[self._following]
            values[:-1] = np.nanmax(q, axis=1)
        return np.array(q)

    def _taken(self, action: Tree) -> np.ndarray:
        """A Discrete action [1] or a Box action [W], from a number, a row, or a batch of one row."""
        flat = np.asarray(action).reshape(-1).astype(np.float32 if self.width else np.int64)
        if len(flat) != max(self.width, 1) or not self.action_space.contains(flat if self.width else flat[0]):
            raise EnvError(
                f"{type(self).__name__}: action {action} is outside of {self.action_space}. "
                "fix: agent.environment_action(action), of one environment."
            )
        return flat.astype(np.float64) if self.width else flat

    def _reward(self, state: int, action: np.ndarray) -> float:
        if not self.width:
            return float(self.rewards[state, action[0]])
        if np.isnan(self.best).any():
            return float(self.rewards[state, 0])
        return self.peak - float((((action - self.best[state]) / self.spread) ** 2).sum())

    def _follow(self, action: np.ndarray) -> tuple[int, float, bool]:
        """Return (next state, reward, terminated)."""
        following = int(self._following[self.state, 0 if self.width else action[0]])
        return (self.state if following == END else following), self._reward(self.state, action), following == END

    def _info(self) -> dict[str, Any]:
        return {}

    def _obs(self) -> Any:
        return np.array(self.observations[self.state])

    def reset(self, seed: int | None = None, options: object = None) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        super().reset(seed=seed)
        self.state, self.time = int(self.np_random.integers(self.num_starts)) if self.num_starts > 1 else 0, 0
        return self._obs(), self._info()

    def step(self, action: Tree) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        taken = self._taken(action)  # before the state changes: invalid actions raise
        self.time += 1
        self.state, reward, terminated = self._follow(taken)
        return self._obs(), reward, terminated, self.limit is not None and self.time >= self.limit, self._info()


def rows(*rows: Any) -> np.ndarray:
    """Observations [S, O]."""
    return np.array(rows, np.float32).reshape(len(rows), -1)


class ConstantRewardEnv(ProbeEnv):
    """One state, one step, reward 1 for every action. Q = 1. Fails: the value head, the loss, the optimiser."""

    observations, rewards = rows(0), np.array([[1.0, 1.0]])


class ObsDependentRewardEnv(ProbeEnv):
    """Two start states observed as -1 and 1; one step with that reward. Q(s, a) = s. Fails: the input path."""

    observations, rewards, num_starts = rows(-1, 1), np.array([[-1.0, -1.0], [1.0, 1.0]]), 2


class DiscountedRewardEnv(ProbeEnv):
    """Two steps, reward 0 then 1. Q(s₀) = γ, Q(s₁) = 1. Fails: the discount, the target's next observation."""

    observations, rewards, following = rows(0, 1), np.array([[0.0, 0.0], [1.0, 1.0]]), ((1,), (END,))


class PolicyEnv(ProbeEnv):
    """Two start states; 1 for the action of the state's number, else -1. Fails: the policy's use of its input."""

    observations, rewards, num_starts = rows(0, 1), np.array([[1.0, -1.0], [-1.0, 1.0]]), 2


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

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.sign, self.time = (1 if self.np_random.random() < 0.5 else -1), 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        is_last = self.time == self.length - 1
        reward = float(is_last and (int(action) == 1) == (self.sign == 1))
        self.time += 1
        return self._obs(), reward, is_last, False, {}


# -- published ---------------------------------------------------------------------------------------------------------

GAMMA = 0.99  # of `q_values` and `v_values`
FORMS = {"": "vector", "Image": "image", "Dict": "dict"}


def published_spaces(count: int) -> dict[str, Any]:
    """Published observation spaces of `count` values, by form."""
    number, image = spaces.Discrete(count), spaces.Box(0.0, float(count > 1), (1, 3, 3), np.float32)
    return {"vector": number, "image": image, "dict": spaces.Dict(discrete=number, box=image)}


def published_forms(number: int, pixel: int) -> dict[str, Any]:
    """A published observation by form: an integer, an image [1, 3, 3] of one value, or a dictionary of both."""
    image = np.full((1, 3, 3), pixel, np.float32)
    return {"vector": number, "image": image, "dict": {"discrete": number, "box": image}}


class PublishedProbe(ProbeEnv):
    """Base class: one step from a random state; a subclass has the rewards, or the best choice.

    The reward is 1 for the best choice and -1 for others; with Box actions, in [0, 1], it is -‖a - best‖².

    Attributes:
        num_values: number of integer and pixel values; those of dictionaries are independent.
        form: of observations, see `published_forms`. width: W, components of Box actions; 0 for Discrete ones.
        states: [S] values of both keys, equal except in dictionaries. num_states: S. state: index of the current one.
        observations: [S] observation of each state.
        sample_obs: observation of each state, as a batch of one. sample_actions: an action [1, W] for each state.
        q_values, v_values: state values for γ = 0.99; with Discrete actions, q_values of every action.
        policy_values: optimal action in each state; None if all are equally good.
    """

    num_values: ClassVar[int] = 1
    width: ClassVar[int] = 0
    form: ClassVar[str] = "vector"
    peak = 0.0

    def __init__(self) -> None:
        both = itertools.product(range(self.num_values), repeat=2)
        self.states = [(x, y) for x, y in both if x == y or (self.form == "dict" and self.following == END)]
        self.num_states = len(self.states)
        self.num_starts = self.num_states if self.following == END else 1
        self.rewards = np.array([self._rewards(*state) for state in self.states], np.float64)
        values = [self._best(*state) for state in self.states]
        self.best = np.array([[1 - value, value][-self.width :] for value in values], np.float64)
        self.observations = [published_forms(*state)[self.form] for state in self.states]
        super().__init__()
        self.sample_obs = [self._batched(obs) for obs in self.observations]
        best = self.best_actions()
        self.policy_values: list[Any] = [None] * self.num_states if best is None else best.tolist()
        self.sample_actions = list(self._chosen()[:, None].astype(np.float32)) if self.width else []
        self.q_values: list[list[float]] = self.expected_q(GAMMA).tolist()
        self.v_values: list[list[float]] = self.expected_q(GAMMA).max(axis=1, keepdims=True).tolist()

    def _spaces(self) -> tuple[Any, Any]:
        acted = spaces.Box(0.0, 1.0, (self.width,), np.float32) if self.width else spaces.Discrete(self.num_actions)
        return published_spaces(self.num_values)[self.form], acted

    def _obs(self) -> Any:
        return published_forms(*self.states[self.state])[self.form]

    def _batched(self, obs: Any) -> Any:
        if isinstance(obs, dict):
            return {key: self._batched(part) for key, part in obs.items()}
        return np.array([[obs]]) if isinstance(obs, int) else obs[None]

    def _rewards(self, number: int, pixel: int) -> list[float]:
        """Return the rewards of the choices in a state."""
        return [1.0 if number == pixel and choice == self._best(number, pixel) else -1.0 for choice in (0, 1)]

    def _best(self, number: int, pixel: int) -> float:
        """Return the best choice in a state; NaN if all are equally good."""
        return np.nan

    def best_actions(self) -> np.ndarray | None:
        """Return the best choices [S] or Box actions [S, W]; None if all are equally good."""
        if np.isnan(self.best).any():
            return None
        return np.asarray(self.best if self.width else self.best[:, -1].astype(int))

    def _chosen(self) -> np.ndarray:
        """Return optimal Box actions [S, W], in the centre if all are."""
        return np.where(np.isnan(self.best), 0.5, self.best)

    def expected_q(self, gamma: float) -> np.ndarray:
        """Return the optimal values [S, A] of the choices; for Box actions [S, 1], of the best one."""
        return self.values_of(self._chosen(), gamma)[:, None] if self.width else super().expected_q(gamma)

    def values_of(self, actions: np.ndarray, gamma: float) -> np.ndarray:
        """Return the value [S] of an action [S, W] (or [S, 1] choices) in each state, followed by optimal actions."""
        rewards = np.array([self._reward(state, action) for state, action in enumerate(actions)])
        later = np.append(super().expected_q(gamma).max(axis=1), 0.0)
        return np.asarray(rewards + gamma * later[self._following[:, 0]])


class _Constant(PublishedProbe):
    """One state, one step, reward 1 whatever the action. Q = 1. Fails: the value head, the loss, the optimiser."""

    def _rewards(self, number: int, pixel: int) -> list[float]:
        return [1.0]


class _ObsDependent(PublishedProbe):
    """One step; -1 for the value 0, 1 for the value 1; of dictionaries 1 if both keys agree. Fails: the input path."""

    num_values = 2

    def _rewards(self, number: int, pixel: int) -> list[float]:
        return [1.0 if (number == pixel if self.form == "dict" else number) else -1.0]


class _Discounted(PublishedProbe):
    """Two steps, reward 0 then 1; of dictionaries the sum of both keys, 2. Q = γ, 1 or 2γ, 2.

    Fails: the discount, the next observation.
    """

    num_values, following = 2, ((1,), (END,))

    def _rewards(self, number: int, pixel: int) -> list[float]:
        return [number + pixel if self.form == "dict" else number]


class _FixedObsPolicy(PublishedProbe):
    """One state, one step; action 1 pays 1, action 0 pays -1. Box actions: -‖a - best‖², the best one is 1.

    Fails: which output is which action, the gradient of the policy.
    """

    def _best(self, number: int, pixel: int) -> int:
        return 1


class _Policy(PublishedProbe):
    """One step; the action of the state's value pays 1, any other -1; both keys of a dictionary have to agree with it.

    Box actions: -‖a - best‖²; of one component the value is best, of two (1, 0) for 0 and (0, 1) for 1. A dictionary
    has the value 1 if both keys are 1. Fails: the policy's use of its input.
    """

    num_values = 2

    def _best(self, number: int, pixel: int) -> int:
        return number * pixel


TASKS = {
    "ConstantReward": _Constant,
    "ObsDependentReward": _ObsDependent,
    "DiscountedReward": _Discounted,
    "FixedObsPolicy": _FixedObsPolicy,
    "Policy": _Policy,
}


def _published(name: str, task: str, form: str, width: int) -> Any:
    inside = {"form": form, "width": width, "__doc__": TASKS[task].__doc__, "__module__": "agilerl.utils.probe_envs"}
    return type(name, (TASKS[task],), inside)


PUBLISHED: dict[str, Any] = {
    name: _published(name, task, form, 0 if not actions else 2 if task == "Policy" else 1)
    for task, actions, (shown, form) in itertools.product(TASKS, ("", "ContActions"), FORMS.items())
    for name in [f"{task}{actions}{shown}Env"]
}
"""The published classes by name: every task with both kinds of actions in every form."""
PUBLISHED["PolicyContActionsImageEnvSimple"] = _published("PolicyContActionsImageEnvSimple", "Policy", "image", 1)
