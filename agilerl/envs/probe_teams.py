"""Probe environments for teams: each isolates one thing that a multi-agent learner can get wrong, and knows the answer.

As in `envs.probe`, dynamics are deterministic and randomness is only in which start state an episode gets. They are
parallel environments of PettingZoo's form, shown as vectors, images or dictionaries, with Discrete or Box actions. The
two agents are of different groups, and what they get differs, so that nobody's reward can pass for another's.
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
LOW, HIGH = 2.0, 6.0  # bounds of Box actions: neither centre nor width is that of the raw ones
WIDTH = 2.0  # distance from the best action at which a term of the reward is 0
FIRST, SECOND = "agent_0", "other_agent_0"


class TeamProbe:
    """Base: states, in each of which every agent sees a sign; a subclass fills in the step and the answers.

    Args:
        form: "vector" [1] float32, "image" [1, 6, 6] uint8, or "dict" of an image that tells nothing and an integer.
        continuous: Box(2, 6, (1,)) actions instead of Discrete(2).

    Attributes:
        possible_agents: both agents. signs: [S, 2] what each of them sees in each state, 0 or 1.
        num_starts: an episode begins in one of the first so many states.
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
        """What both agents see in a state."""
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
        """The number of the state [1] float32."""
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

    def _taken(self, agent: str, actions: Mapping[str, Any]) -> float:
        if agent not in actions:
            raise EnvError(f"{type(self).__name__}: {agent} has no action. fix: an action for every agent.")
        action = np.asarray(actions[agent], np.float32 if self.is_continuous else np.int64)
        if not self._acted.contains(action if self.is_continuous else np.int64(action)):
            raise EnvError(f"{type(self).__name__}: {agent} takes {self._acted}; got {actions[agent]}.")
        return float(action.reshape(-1)[0])

    def _follow(self, number: int) -> tuple[int, bool, bool]:
        """Next state, terminated, truncated."""
        return number, True, False

    def rewards(self, number: int, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What both agents get for actions [...] in a state: [...] each."""
        raise NotImplementedError

    def best_actions(self) -> dict[str, np.ndarray] | None:
        """agent -> [S] best actions, of one agent and of the team; None where actions do not matter."""
        return None

    def expected_q(self, number: int, first: Any, second: Any, gamma: float) -> dict[str, np.ndarray]:
        """agent -> optimal value [...] of joint actions [...] in a state."""
        return dict(zip(self.possible_agents, self.rewards(number, np.asarray(first), np.asarray(second)), strict=True))

    def expected_value(self, gamma: float) -> dict[str, np.ndarray]:
        """agent -> [S] value of each state where all do what is best."""
        best = self.best_actions() or {agent: np.full(len(self.signs), LOW) for agent in self.possible_agents}
        each = [
            self.expected_q(number, best[FIRST][number], best[SECOND][number], gamma)
            for number in range(len(self.signs))
        ]
        return {agent: np.array([float(values[agent]) for values in each]) for agent in self.possible_agents}

    def _term(self, action: np.ndarray, best: Any) -> np.ndarray:
        """1 for the best action and less for others: 0 for the other choice, or 1 - (distance / 2)^2."""
        if self.is_continuous:
            return np.asarray(1 - ((action - best) / WIDTH) ** 2)
        return np.asarray(action == best, float)

    def _good(self, sign: Any) -> Any:
        """The action that goes with a sign: 0 and 1, or 3 and 5 of 2 .. 6."""
        return 3.0 + 2.0 * np.asarray(sign) if self.is_continuous else np.asarray(sign)

    def close(self) -> None:
        pass


def _flat(value: float, like: np.ndarray) -> np.ndarray:
    return np.full(np.shape(like), value)


class ConstantTeam(TeamProbe):
    """One state, one step; rewards 1 and -2 whatever is done. V = 1, -2. Fails: critics, whose reward is whose."""

    def rewards(self, number: int, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _flat(1.0, first), _flat(-2.0, second)


class ObsDependentTeam(TeamProbe):
    """Each sees a sign of its own, -1 or 1; one step, its reward is what it sees, of the second one twice that.

    V = own sign. Fails: the input path of critics, the order of agents in it.
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
    """Rewards 1 and 2 in every step, for ever, but the time limit cuts every episode. V = 1 / (1 - γ), twice that.

    A learner that takes the cut for an end learns 1 and 2.

    Args:
        limit: steps until the truncation. others: as of `TeamProbe`.
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
    """One state, one step; the first one is paid for the action of sign 1, the second one for that of sign 0.

    V = 1. Fails: which output is which action, whose gradient goes into whose policy.
    """

    def rewards(self, number: int, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._term(first, self._good(1)), self._term(second, self._good(0))

    def best_actions(self) -> dict[str, np.ndarray]:
        return {FIRST: np.array([self._good(1)]), SECOND: np.array([self._good(0)])}


class PolicyTeam(TeamProbe):
    """Each sees a sign of its own; the first one is paid for the action of its sign, the second one for the other one.

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
    """Both see one sign and get the same for what they do together; a critic must know what the other one has done.

    With a and b the terms of the first one for the action of the sign and of the second one for the other action, 1 at
    best: r = a + b + a·b / 2; V = 2.5. What is best for one does not depend on what the other one does, so that it is
    learned from actions of any policy too; what it is worth does.
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
    """Three steps; signs, one for each agent, are shown in the first one alone, and nothing after it. In the last step
    the first agent is paid for the action of its sign, the second one for the other one.

    V = (γ², γ, 1). Fails: the memory. Without one nothing tells the signs apart when it counts: half of it is the best.
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
