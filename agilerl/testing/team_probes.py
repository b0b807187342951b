"""Probe environments for teams: each isolates one failure mode of a multi-agent learner and knows the correct values.

As in `testing.probes`, the dynamics are deterministic and only the start state is random. They have PettingZoo's
parallel interface, with vectors, images or dictionaries as observations and Discrete or Box actions. The two agents are
in different groups and have different rewards, so that swapped rewards are detected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import Space, spaces
from gymnasium.utils import seeding

from agilerl.errors import ConfigError, EnvError

FORMS = ("vector", "image", "dict")
SIDE = 6  # pixels of an image
LOW, HIGH = 2.0, 6.0  # bounds of Box actions: neither centre nor width equals that of raw actions
WIDTH = 2.0  # distance from the best action at which a term of the reward is 0
FIRST, SECOND = "agent_0", "other_agent_0"


class TeamProbe:
    """Base class: every agent observes a sign in each state; a subclass implements dynamics and expected values.

    Args:
        form: "vector" [1] float32, "image" [1, 6, 6] uint8, or "dict" of an uninformative image and an integer.
        continuous: Box(2, 6, (1,)) actions instead of Discrete(2).

    Attributes:
        possible_agents: both agents. signs: [S, 2] sign observed by each agent in each state, 0 or 1.
        num_starts: number of start states, the first ones.
    """

    possible_agents: ClassVar[list[str]] = [FIRST, SECOND]
    metadata: ClassVar[dict[str, Any]] = {"name": "team_probe_v0", "is_parallelizable": True}
    signs: ClassVar[np.ndarray] = np.zeros((1, 2), np.int64)
    num_starts: ClassVar[int] = 1
    render_mode = None

    def __init__(self, form: str = "vector", continuous: bool = False) -> None:
        if form not in FORMS:
            raise ConfigError(f"form must be one of {', '.join(FORMS)}; got {form!r}. fix: 'vector'.")
        self.form, self.is_continuous = form, continuous
        self.agents: list[str] = []
        self.state_number, self.time = 0, 0
        self._rng = seeding.np_random()[0]
        self._acted: Space[Any] = spaces.Box(LOW, HIGH, (1,), np.float32) if continuous else spaces.Discrete(2)
        image = spaces.Box(0, 255, (1, SIDE, SIDE), np.uint8)
        forms: dict[str, Space[Any]] = {
            "vector": spaces.Box(-1.0, 1.0, (1,), np.float32),
            "image": image,
            "dict": spaces.Dict(camera=image, card=spaces.Discrete(2)),
        }
        self._observed = forms[form]

    def observation_space(self, agent: str) -> Space[Any]:
        return self._observed

    def action_space(self, agent: str) -> Space[Any]:
        return self._acted

    def show(self, number: int) -> dict[str, Any]:
        """Return both agents' observations of a state."""
        return {a: self._form(int(sign)) for a, sign in zip(self.possible_agents, self.signs[number], strict=True)}

    def _form(self, sign: int) -> Any:
        if self.form == "vector":
            return np.array([2 * sign - 1], np.float32)
        picture = np.zeros((1, SIDE, SIDE), np.uint8)
        if self.form == "image":
            picture[:, 3 * sign : 3 * sign + 2] = 255
            return picture
        return {"camera": picture, "card": np.int64(sign)}

    def state(self) -> np.ndarray:
        """Return the number of the state [1] float32."""
        return np.array([self.state_number], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self._rng = seeding.np_random(seed)[0]
        self.agents, self.time = list(self.possible_agents), 0
        self.state_number = int(self._rng.integers(self.num_starts)) if self.num_starts > 1 else 0
        return self.show(self.state_number), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        taken = [self._taken(agent, actions) for agent in self.possible_agents]
        self.time += 1
        rewards = self.rewards(self.state_number, np.array(taken[0]), np.array(taken[1]))
        self.state_number, terminated, truncated = self._follow(self.state_number)
        if terminated or truncated:
            self.agents = []
        agents = self.possible_agents
        return (
            self.show(self.state_number), {a: float(r) for a, r in zip(agents, rewards, strict=True)},
            dict.fromkeys(agents, terminated), dict.fromkeys(agents, truncated), {agent: {} for agent in agents},
        )  # fmt: skip

    def _taken(self, agent: str, actions: Mapping[str, Any]) -> Any:
        """Return an agent's action as a number, or as an array [W] of several components."""
        if agent not in actions:
            raise EnvError(f"{type(self).__name__}: {agent} has no action. fix: an action for every agent.")
        action = np.asarray(actions[agent], np.float32 if self.is_continuous else np.int64)
        if not self._acted.contains(action if self.is_continuous else np.int64(action)):
            raise EnvError(f"{type(self).__name__}: {agent} takes {self._acted}; got {actions[agent]}.")
        return float(action.reshape(-1)[0])

    def _follow(self, number: int) -> tuple[int, bool, bool]:
        """Return (next state, terminated, truncated)."""
        return number, True, False

    def rewards(self, number: int, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return both agents' rewards [...] for actions [...] in a state."""
        raise NotImplementedError

    def best_actions(self) -> dict[str, np.ndarray] | None:
        """Return agent -> [S] best actions, for the agent and the team alike; None if actions have no effect."""
        return None

    def expected_q(self, number: int, first: Any, second: Any, gamma: float) -> dict[str, np.ndarray]:
        """Return agent -> optimal value [...] of joint actions [...] in a state."""
        return dict(zip(self.possible_agents, self.rewards(number, np.asarray(first), np.asarray(second)), strict=True))

    def expected_value(self, gamma: float) -> dict[str, np.ndarray]:
        """Return agent -> value [S] of each state under the best actions."""
        best = self.best_actions() or {agent: np.full(len(self.signs), LOW) for agent in self.possible_agents}
        each = [
            self.expected_q(number, best[FIRST][number], best[SECOND][number], gamma)
            for number in range(len(self.signs))
        ]
        return {agent: np.array([float(values[agent]) for values in each]) for agent in self.possible_agents}

    def _term(self, action: np.ndarray, best: Any) -> np.ndarray:
        """Return 1 for the best action and less for others: 0 for the other choice, or 1 - (distance / 2)^2."""
        if self.is_continuous:
            return np.asarray(1 - ((action - best) / WIDTH) ** 2)
        return np.asarray(action == best, float)

    def _good(self, sign: Any) -> Any:
        """Return the action that matches a sign: 0 and 1, or 3 and 5 of 2 .. 6."""
        return 3.0 + 2.0 * np.asarray(sign) if self.is_continuous else np.asarray(sign)

    def close(self) -> None:
        pass


def _flat(value: float, like: np.ndarray) -> np.ndarray:
    return np.full(np.shape(like), value)


class ConstantTeam(TeamProbe):
    """One state, one step; rewards 1 and -2 for all actions. V = 1, -2. Fails: critics, the assignment of rewards."""

    def rewards(self, number: int, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _flat(1.0, first), _flat(-2.0, second)


class ObsDependentTeam(TeamProbe):
    """Each agent observes a separate sign, -1 or 1; one step with that reward, twice that for the second agent.

    V = own sign, or twice that. Fails: the input path of critics, the order of agents in it.
    """

    signs = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    num_starts = 4

    def rewards(self, number: int, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        one, two = 2 * self.signs[number] - 1
        return _flat(one, first), _flat(2 * two, second)


class DiscountedTeam(TeamProbe):
    """Two steps; rewards 0 and 0, then 1 and 2. V = (γ, 1) and (2γ, 2). Fails: the discount, the next observations."""

    signs = np.array([[0, 0], [1, 1]])

    def _follow(self, number: int) -> tuple[int, bool, bool]:
        return 1, number == 1, False

    def rewards(self, number: int, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _flat(float(number), first), _flat(2.0 * number, second)

    def expected_q(self, number: int, first: Any, second: Any, gamma: float) -> dict[str, np.ndarray]:
        worth = gamma if number == 0 else 1.0
        return {FIRST: _flat(worth, first), SECOND: _flat(2 * worth, second)}


class TruncatedTeam(TeamProbe):
    """Rewards 1 and 2 in every step without an end, but the time limit truncates every episode.

    V = 1 / (1 - γ) and twice that. A learner that treats truncation as termination learns 1 and 2.

    Args:
        limit: steps until the truncation. others: see `TeamProbe`.
    """

    def __init__(self, form: str = "vector", continuous: bool = False, limit: int = 1) -> None:
        super().__init__(form, continuous)
        self.limit = limit

    def _follow(self, number: int) -> tuple[int, bool, bool]:
        return 0, False, self.time >= self.limit

    def rewards(self, number: int, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _flat(1.0, first), _flat(2.0, second)

    def expected_q(self, number: int, first: Any, second: Any, gamma: float) -> dict[str, np.ndarray]:
        return {FIRST: _flat(1 / (1 - gamma), first), SECOND: _flat(2 / (1 - gamma), second)}


class FixedObsPolicyTeam(TeamProbe):
    """One state, one step; the first agent is rewarded for the action of sign 1, the second for that of sign 0.

    V = 1. Fails: the mapping of outputs to actions, the assignment of gradients to policies.
    """

    def rewards(self, number: int, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._term(first, self._good(1)), self._term(second, self._good(0))

    def best_actions(self) -> dict[str, np.ndarray]:
        return {FIRST: np.array([self._good(1)]), SECOND: np.array([self._good(0)])}


class PolicyTeam(TeamProbe):
    """Each agent observes a separate sign; the first is rewarded for the action of its sign, the second for the other.

    V = 1. Fails: the policies' use of their own inputs.
    """

    signs = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    num_starts = 4

    def rewards(self, number: int, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        one, two = self.signs[number]
        return self._term(first, self._good(one)), self._term(second, self._good(1 - two))

    def best_actions(self) -> dict[str, np.ndarray]:
        return {FIRST: self._good(self.signs[:, 0]), SECOND: self._good(1 - self.signs[:, 1])}


class JointPolicyTeam(TeamProbe):
    """Both agents observe one sign and share a reward for their joint action; a critic needs the other agent's action.

    Let a be the first agent's term for the action of the sign and b the second one's for the other action, 1 at best:
    r = a + b + a·b / 2; V = 2.5. The best action of one agent does not depend on the other's, so that it can be learned
    from any policy's actions; its value does depend on it.
    """

    signs = np.array([[0, 0], [1, 1]])
    num_starts = 2

    def rewards(self, number: int, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sign = self.signs[number, 0]
        one, two = self._term(first, self._good(sign)), self._term(second, self._good(1 - sign))
        both = np.asarray(one + two + one * two / 2)
        return both, both

    def best_actions(self) -> dict[str, np.ndarray]:
        sign = self.signs[:, 0]
        return {FIRST: self._good(sign), SECOND: self._good(1 - sign)}


class MemoryTeam(TeamProbe):
    """Three steps; one sign per agent is shown in the first step only.

    In the last step the first agent is rewarded for the action of its sign, the second for the other. V = (γ², γ, 1).
    Fails: the memory. Without memory the signs are unknown in the last step, and at best half of V is reached.
    """

    signs = np.tile([[0, 0], [0, 1], [1, 0], [1, 1]], (3, 1))
    num_starts = 4

    def __init__(self, form: str = "vector", continuous: bool = False) -> None:
        if form != "vector":
            raise ConfigError(f"MemoryTeam shows vectors, which a memory can read; got form={form!r}. fix: 'vector'.")
        super().__init__(form, continuous)

    def show(self, number: int) -> dict[str, Any]:
        seen = super().show(number)
        return seen if number < self.num_starts else {agent: np.zeros_like(x) for agent, x in seen.items()}

    def _follow(self, number: int) -> tuple[int, bool, bool]:
        is_last = number >= 2 * self.num_starts
        return (number if is_last else number + self.num_starts), is_last, False

    def rewards(self, number: int, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if number < 2 * self.num_starts:
            return _flat(0.0, first), _flat(0.0, second)
        one, two = self.signs[number]
        return self._term(first, self._good(one)), self._term(second, self._good(1 - two))

    def best_actions(self) -> dict[str, np.ndarray]:
        return {FIRST: self._good(self.signs[:, 0]), SECOND: self._good(1 - self.signs[:, 1])}

    def expected_q(self, number: int, first: Any, second: Any, gamma: float) -> dict[str, np.ndarray]:
        worth = gamma ** (2 - number // self.num_starts)
        if number < 2 * self.num_starts:
            return {agent: _flat(worth, first) for agent in self.possible_agents}
        return super().expected_q(number, first, second, gamma)


TEAM_PROBES: tuple[type[TeamProbe], ...] = (
    ConstantTeam, ObsDependentTeam, DiscountedTeam, TruncatedTeam, FixedObsPolicyTeam, PolicyTeam, JointPolicyTeam
)  # fmt: skip
