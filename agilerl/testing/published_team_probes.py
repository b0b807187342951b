"""Tasks of the published multi-agent probe environments: callable mappings as spaces, Box actions in [0, 1]."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from agilerl.errors import EnvError
from agilerl.testing.published_probes import FORMS, SIDE
from agilerl.testing.team_probes import (
    ConstantTeam,
    DiscountedTeam,
    FixedObsPolicyTeam,
    JointPolicyTeam,
    ObsDependentTeam,
    PolicyTeam,
    TeamProbe,
)


class SpacesByAgent(dict[str, Space[Any]]):
    """Spaces as a mapping by agent that is callable too: `spaces[agent]` and `spaces(agent)`."""

    def __call__(self, agent: str) -> Space[Any]:
        return self[agent]


class PublishedTeam(TeamProbe):
    """Base class: a task of `testing.team_probes` with published spaces.

    Observations are integers, images [1, 3, 3] of one value, or dictionaries `discrete` and `box` of both; actions are
    Discrete(2) or Box(0, 1, (1,)), where 0 corresponds to sign 0 and 1 to sign 1, and a term of the reward is minus the
    squared distance from the best one. In tasks whose best action follows from the observation, Box actions have two
    components, where (1, 0) corresponds to sign 0 and (0, 1) to sign 1.

    Attributes:
        width: components of a Box action.
        agents: both agents at all times, as published.
        observation_space, action_space: mappings by agent, and callable.
    """

    def __init__(self, form: str = "vector", continuous: bool = False) -> None:
        super().__init__(form, continuous)
        count = int(self.signs.max()) + 1
        image, number = spaces.Box(0.0, float(count > 1), (1, SIDE, SIDE), np.float32), spaces.Discrete(count)
        forms: dict[str, Space[Any]] = {
            "vector": number, "image": image, "dict": spaces.Dict(discrete=number, box=image),
        }  # fmt: skip
        self._observed = forms[form]
        self.width = 2 if continuous and isinstance(self, PolicyTeam | JointPolicyTeam) else 1
        self._acted = spaces.Box(0.0, 1.0, (self.width,), np.float32) if continuous else spaces.Discrete(2)
        self.agents = list(self.possible_agents)
        agents = self.possible_agents
        observed, acted = dict.fromkeys(agents, self._observed), dict.fromkeys(agents, self._acted)
        self.observation_space = SpacesByAgent(observed)  # type: ignore[method-assign]
        self.action_space = SpacesByAgent(acted)  # type: ignore[method-assign]

    @property
    def num_agents(self) -> int:
        return len(self.agents)

    @property
    def max_num_agents(self) -> int:
        return len(self.possible_agents)

    def step(self, action: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        result = super().step(action)
        self.agents = list(self.possible_agents)
        return result

    def _form(self, sign: int) -> Any:
        picture = np.full((1, SIDE, SIDE), sign, np.float32)
        return {"vector": sign, "image": picture, "dict": {"discrete": sign, "box": picture}}[self.form]

    def _taken(self, agent: str, actions: Mapping[str, Any]) -> Any:
        if agent not in actions:
            raise EnvError(f"{type(self).__name__}: {agent} has no action. fix: an action for every agent.")
        flat = np.asarray(actions[agent]).reshape(-1).astype(np.float32 if self.is_continuous else np.int64)
        if len(flat) != self.width or not self._acted.contains(flat if self.is_continuous else flat[0]):
            raise EnvError(f"{type(self).__name__}: {agent} takes {self._acted}; got {actions[agent]}.")
        return flat if self.width > 1 else float(flat[0])

    def _term(self, action: np.ndarray, best: Any) -> np.ndarray:
        cost = (action - best) ** 2
        return (
            -np.asarray(cost.sum(-1) if self.width > 1 else cost) if self.is_continuous else super()._term(action, best)
        )

    def _good(self, sign: Any) -> Any:
        number = np.asarray(sign, float if self.is_continuous else None)
        return np.stack([1 - number, number], -1) if self.width > 1 else number


TASKS = {
    "ConstantReward": ConstantTeam,
    "ObsDependentReward": ObsDependentTeam,
    "DiscountedReward": DiscountedTeam,
    "FixedObsPolicy": FixedObsPolicyTeam,
    "Policy": PolicyTeam,
    "MultiPolicy": JointPolicyTeam,
}


def _probe(name: str, task: str, form: str, continuous: bool) -> Any:
    def __init__(self: Any) -> None:
        PublishedTeam.__init__(self, form, continuous)

    inside = {"__init__": __init__, "__doc__": TASKS[task].__doc__, "__module__": "agilerl.utils.probe_envs_ma"}
    return type(name, (PublishedTeam, TASKS[task]), inside)


PROBES: dict[str, Any] = {
    name: _probe(name, task, form, bool(actions))
    for task, actions, (shown, form) in itertools.product(TASKS, ("", "ContActions"), FORMS.items())
    for name in [f"{task}{actions}{shown}Env"]
}
"""The published classes by name: every task with both kinds of actions in every form."""
