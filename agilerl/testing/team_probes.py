"""Published probe environments for teams: each isolates one failure mode and knows the correct values.

As in `testing.probes`, the dynamics are deterministic tables and only the start state is random. They have PettingZoo's
parallel interface, with callable mappings as spaces. The two agents are in different groups and have different rewards,
so that swapped rewards are detected. `PUBLISHED` has every task with both kinds of actions in every form, by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import Space, spaces
from gymnasium.utils import seeding

from agilerl.errors import ConfigError, EnvError
from agilerl.testing.probes import END, FORMS, published_forms, published_spaces

FIRST, SECOND = "agent_0", "other_agent_0"
PAIRS = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])  # signs of both agents


class SpacesByAgent(dict[str, Space[Any]]):
    """Spaces as a mapping by agent that is callable too: `spaces[agent]` and `spaces(agent)`."""

    def __call__(self, agent: str) -> Space[Any]:
        return self[agent]


class TeamProbe:
    """Base class: every agent observes a sign in each state; a subclass has the tables.

    Args:
        form: of observations, see `published_forms`. continuous: Box(0, 1) actions instead of Discrete(2). With one
            component, 0 corresponds to sign 0 and 1 to sign 1; with two, (1, 0) and (0, 1).

    Attributes:
        possible_agents, agents: both agents, also after an episode.
        components: of Box actions. width: components of an action.
        signs: [S, 2] sign observed by each agent in each state, 0 or 1.
        targets: [S, 2] sign whose action is best for each agent, see `_term`; None: actions have no effect.
        payoff: [S, 2] rewards that do not depend on actions.
        following: [S] next states; `END` terminates the episode.
        num_starts: number of start states, the first ones. limit: steps until a truncation; None: no truncation.
        observation_space, action_space: mappings by agent, and callable.
    """

    possible_agents: ClassVar[list[str]] = [FIRST, SECOND]
    metadata: ClassVar[dict[str, Any]] = {"name": "team_probe_v0", "is_parallelizable": True}
    signs: ClassVar[np.ndarray] = np.zeros((1, 2), np.int64)
    targets: ClassVar[np.ndarray | None] = None
    payoff: ClassVar[np.ndarray]
    following: ClassVar[Any] = None
    num_starts: ClassVar[int] = 1
    components: ClassVar[int] = 1
    limit: int | None = None
    render_mode = None

    def __init__(self, form: str = "vector", continuous: bool = False) -> None:
        if form not in FORMS.values():
            raise ConfigError(f"form must be one of {', '.join(FORMS.values())}; got {form!r}. fix: 'vector'.")
        self.form, self.is_continuous = form, continuous
        self.width = self.components if continuous else 1
        self.agents = list(self.possible_agents)
        self.state_number, self.time = 0, 0
        self._rng = seeding.np_random()[0]
        self._acted = self._actions()
        self.observation_space = SpacesByAgent(dict.fromkeys(self.agents, self._observations()[form]))
        self.action_space = SpacesByAgent(dict.fromkeys(self.agents, self._acted))

    @property
    def num_agents(self) -> int:
        return len(self.agents)

    @property
    def max_num_agents(self) -> int:
        return len(self.possible_agents)

    def _observations(self) -> dict[str, Any]:
        return published_spaces(int(self.signs.max()) + 1)

    def _actions(self) -> Space[Any]:
        return spaces.Box(0.0, 1.0, (self.width,), np.float32) if self.is_continuous else spaces.Discrete(2)

    def show(self, number: int) -> dict[str, Any]:
        """Return both agents' observations of a state."""
        return {a: self._form(int(sign)) for a, sign in zip(self.possible_agents, self.signs[number], strict=True)}

    def _form(self, sign: int) -> Any:
        return published_forms(sign, sign)[self.form]

    def state(self) -> np.ndarray:
        """Return the number of the state [1] float32."""
        return np.array([self.state_number], np.float32)

    def reset(self, seed: int | None = None, options: object = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self._rng = seeding.np_random(seed)[0]
        self.agents, self.time = list(self.possible_agents), 0
        self.state_number = int(self._rng.integers(self.num_starts)) if self.num_starts > 1 else 0
        return self.show(self.state_number), {agent: {} for agent in self.agents}

    def step(self, action: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        first, second = (np.array(self._taken(agent, action)) for agent in self.possible_agents)
        self.time += 1
        rewards, following = self.rewards(self.state_number, first, second), self._next(self.state_number)
        terminated, truncated = following == END, self.limit is not None and self.time >= self.limit
        self.state_number = self.state_number if terminated else following
        agents = self.possible_agents
        return (
            self.show(self.state_number), {a: float(r) for a, r in zip(agents, rewards, strict=True)},
            dict.fromkeys(agents, terminated), dict.fromkeys(agents, truncated), {agent: {} for agent in agents},
        )  # fmt: skip

    def _taken(self, agent: str, actions: Mapping[str, Any]) -> Any:
        """An action from a number, a row, or a batch of one row; an array [W] if it has several components."""
        if agent not in actions:
            raise EnvError(f"{type(self).__name__}: {agent} has no action. fix: an action for every agent.")
        flat = np.asarray(actions[agent]).reshape(-1).astype(np.float32 if self.is_continuous else np.int64)
        if len(flat) != self.width or not self._acted.contains(flat if self.is_continuous else flat[0]):
            raise EnvError(f"{type(self).__name__}: {agent} takes {self._acted}; got {actions[agent]}.")
        return flat if self.width > 1 else float(flat[0])

    def _next(self, number: int) -> int:
        return END if self.following is None else int(self.following[number])

    def rewards(self, number: int, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return both agents' rewards [...] for actions [...] in a state."""
        if self.targets is None:
            one, two = self.payoff[number]
            return np.full(np.shape(first), float(one)), np.full(np.shape(second), float(two))
        one, two = self._good(self.targets[number])
        return self._term(first, one), self._term(second, two)

    def best_actions(self) -> dict[str, np.ndarray] | None:
        """Return agent -> [S] best actions, for the agent and the team alike; None if actions have no effect."""
        if self.targets is None:
            return None
        return dict(zip(self.possible_agents, np.moveaxis(self._good(self.targets), 1, 0), strict=True))

    def expected_q(self, number: int, first: object, second: object, gamma: float) -> dict[str, np.ndarray]:
        """Return agent -> optimal value [...] of joint actions [...] in a state."""
        following, rewards = self._next(number), self.rewards(number, np.asarray(first), np.asarray(second))
        q = dict(zip(self.possible_agents, rewards, strict=True))
        if following == END:
            return q
        if following == number:  # the same rewards without an end
            return {agent: reward / (1 - gamma) for agent, reward in q.items()}
        return {agent: reward + gamma * self._value(following, gamma)[agent] for agent, reward in q.items()}

    def _value(self, number: int, gamma: float) -> dict[str, np.ndarray]:
        best = self.best_actions() or {agent: np.zeros(len(self.signs)) for agent in self.possible_agents}
        return self.expected_q(number, best[FIRST][number], best[SECOND][number], gamma)

    def expected_value(self, gamma: float) -> dict[str, np.ndarray]:
        """Return agent -> value [S] of each state under the best actions."""
        values = [self._value(number, gamma) for number in range(len(self.signs))]
        return {agent: np.array([float(value[agent]) for value in values]) for agent in self.possible_agents}

    def _term(self, action: np.ndarray, best: object) -> np.ndarray:
        """Return the reward of an action: 1 or 0 for choices, minus the squared distance from the best Box action."""
        if not self.is_continuous:
            return np.asarray(action == best, float)
        cost = (action - best) ** 2
        return -np.asarray(cost.sum(-1) if self.width > 1 else cost, float)

    def _good(self, sign: object) -> Any:
        """Return the action that matches a sign."""
        if self.width > 1:
            return np.stack([1.0 - np.asarray(sign), np.asarray(sign, float)], -1)
        return np.asarray(sign, float) if self.is_continuous else np.asarray(sign)

    def close(self) -> None:
        pass


class ConstantTeam(TeamProbe):
    """One state, one step; rewards 1 and -2 for all actions. V = 1, -2. Fails: critics, the assignment of rewards."""

    payoff = np.array([[1.0, -2.0]])


class ObsDependentTeam(TeamProbe):
    """Each agent observes a separate sign, -1 or 1; one step with that reward, twice that for the second agent.

    V = own sign, or twice that. Fails: the input path of critics, the order of agents in it.
    """

    signs, num_starts, payoff = PAIRS, 4, (2 * PAIRS - 1) * [1, 2]


class DiscountedTeam(TeamProbe):
    """Two steps; rewards 0 and 0, then 1 and 2. V = (γ, 1) and (2γ, 2). Fails: the discount, the next observations."""

    signs, payoff, following = np.array([[0, 0], [1, 1]]), np.array([[0, 0], [1, 2]]), (1, END)


class FixedObsPolicyTeam(TeamProbe):
    """One state, one step; the first agent is rewarded for the action of sign 1, the second for that of sign 0.

    V = 1. Fails: the mapping of outputs to actions, the assignment of gradients to policies.
    """

    targets = np.array([[1, 0]])


class PolicyTeam(TeamProbe):
    """Each agent observes a separate sign; the first is rewarded for the action of its sign, the second for the other.

    V = 1. Fails: the policies' use of their own inputs.
    """

    signs, num_starts, targets, components = PAIRS, 4, PAIRS ^ [0, 1], 2


class JointPolicyTeam(TeamProbe):
    """Both agents observe one sign and share a reward for their joint action; a critic needs the other agent's action.

    Let a be the first agent's term for the action of the sign and b the second one's for the other action, 1 at best:
    r = a + b + a·b / 2; V = 2.5. The best action of one agent does not depend on the other's, so that it can be learned
    from any policy's actions; its value does depend on it.
    """

    signs, num_starts, targets = np.array([[0, 0], [1, 1]]), 2, np.array([[0, 1], [1, 0]])
    components = 2

    def rewards(self, number: int, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        one, two = super().rewards(number, first, second)
        both = np.asarray(one + two + one * two / 2)
        return both, both


TASKS = {
    "ConstantReward": ConstantTeam,
    "ObsDependentReward": ObsDependentTeam,
    "DiscountedReward": DiscountedTeam,
    "FixedObsPolicy": FixedObsPolicyTeam,
    "Policy": PolicyTeam,
    "MultiPolicy": JointPolicyTeam,
}


def _published(name: str, task: str, form: str, continuous: bool) -> Any:
    def __init__(self: Any) -> None:
        TeamProbe.__init__(self, form, continuous)

    inside = {"__init__": __init__, "__doc__": TASKS[task].__doc__, "__module__": "agilerl.utils.probe_envs_ma"}
    return type(name, (TASKS[task],), inside)


PUBLISHED: dict[str, Any] = {
    name: _published(name, task, form, bool(actions))
    for task, actions, (shown, form) in itertools.product(TASKS, ("", "ContActions"), FORMS.items())
    for name in [f"{task}{actions}{shown}Env"]
}
"""The published classes by name: every task with both kinds of actions in every form."""
