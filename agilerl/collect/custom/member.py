"""Adaptor of agents with methods of their own to the interface of members and learners of ordinary collectors.

Agents are called through the published interface (`calls.CALLS`): `get_action(obs, ...)`, and `learn(experiences, ...)`
with the contents of their memory or rollout. Nothing else is required of them, so they train one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from torch import Tensor

from agilerl.algorithms.base.adapted import adapted
from agilerl.algorithms.base.predict import checked_actions, environment_actions
from agilerl.algorithms.base.single_agent import RLAlgorithm
from agilerl.algorithms.base.wrapped import overrides, overrides_learn, unwrapped
from agilerl.algorithms.teams.base import MultiAgentRLAlgorithm
from agilerl.collect.custom.calls import CALLS, check_calls
from agilerl.collect.divergence import is_finite
from agilerl.core import foreign
from agilerl.engine.choose import no_engine_reason
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import Draws
from agilerl.envs.step import Lanes
from agilerl.envs.team import Team
from agilerl.errors import ConfigError, warn_once
from agilerl.ranks import ONE

CALLED_BY_LEARN = ("learn_from", "learn_batch", "make_batch", "report", "learn_buffer")
NOT_CALLED = (
    "evaluate_actions", "soft_update", "action_noise", "reset_action_noise", "preprocess_observation", "policy_output",
    "act", "predict", "criterion",
)  # fmt: skip
"""Published methods that no training function calls; `CALLED_BY_LEARN` by `learn` alone."""


class CustomMember:
    """One agent, wrapped or not, inspected once; everything else is read from it (see `algorithms.base.adapted`).

    Args:
        team: of the environment; None for one agent.

    Attributes:
        records: whether it can record rollouts (`recorder`, as in PPO) and acts by no other method.
        learns_from_tuples: whether its `learn` is called with the published tuple of a rollout.
    """

    def __init__(self, agent: Any, team: Team | None = None) -> None:
        self.agent, self.team, self._view = agent, team, adapted(agent)
        inner, is_team = unwrapped(agent), team is not None
        self.kind, self.is_wrapped = type(inner).__name__, inner is not agent
        self.get_action_takes = CALLS["get_action"].accepted(agent, "get_action", is_team)
        self.learn_takes = CALLS["learn"].accepted(agent, "learn", is_team)
        self.records = not is_team and foreign.has_methods(inner, "recorder") and overrides(agent, "get_action") is None
        self.learns_from_tuples = not self.records or overrides_learn(agent)
        self.evaluation_networks = self._view.evaluation_networks
        self._random = foreign.method(agent, "random_action")
        self._convert = foreign.method(agent, "environment_action")
        self._join = foreign.method(agent, "environment_actions")  # of IPPO and MAPPO, whose actions are sampled
        self.layout = inner.actions if is_team and self.acts_raw and hasattr(inner, "actions") else None
        self._is_algorithm = isinstance(inner, RLAlgorithm)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_view"], name)

    @property
    def acts_raw(self) -> bool:
        """Whether `get_action` returns stored actions, which may depend on the mode."""
        return self._convert is not None and bool(self._view.acts_raw)

    def get_action(self, obs: Any, info: dict[str, Any], mask: np.ndarray | None, epsilon: float | None = None) -> Any:
        """Call `get_action` with the published arguments that it takes."""
        named: dict[str, Any] = {"epsilon": epsilon, "action_mask": mask}
        if self.team is not None:
            named = {"infos": self.team.infos(obs, info, mask)} if self.get_action_takes else {}
            obs = self.team.by_agent(obs)
        named = {key: value for key, value in named.items() if value is not None and key in self.get_action_takes}
        return self.agent.get_action(obs, **named)

    def explore(
        self, obs: Any, info: dict[str, Any], epsilon: float, mask: np.ndarray | None, lanes: Lanes
    ) -> np.ndarray:
        """Return exploring actions [L, ...] in storage format; `mask` [L, A] marks the legal ones."""
        action = self.get_action(obs, info, mask, epsilon)
        action = action[0] if isinstance(action, tuple) else action
        if self.team is not None:
            row = self.team.join_decided(action)
            return row if self.layout is None else self.layout.stored(row)
        if isinstance(action, Tensor):
            action = action.detach().cpu().numpy()
        space = lanes.single_action_space
        if space is None:  # duck-typed environment: any action format, one row per lane
            return np.asarray(action).reshape(lanes.num_lanes, *np.shape(action)[1:])
        if self.acts_raw:  # the shape is defined by the algorithm
            return np.asarray(action)
        if self._is_algorithm:
            return np.asarray(environment_actions(self.agent, action, lanes.num_lanes))
        return np.asarray(checked_actions(self.agent, action, lanes.num_lanes, space))

    def environment_action(self, action: np.ndarray) -> Any:
        """Convert stored actions to the environment's format."""
        return self._convert(action) if self.acts_raw and self._convert is not None else action

    def rollout_action(self, action: Any) -> Any:
        """Convert actions of `get_action` in a rollout to the environment's format."""
        if self.team is not None:
            return self.team.join_decided(action if self._join is None else self._join(action))
        return action if self._convert is None else self._convert(action)

    def random_action(self, rng: np.random.Generator, shape: tuple[int, ...], mask: np.ndarray | None) -> np.ndarray:
        """Return uniformly random legal actions in storage format."""
        assert self._random is not None
        random: np.ndarray = self._random(rng, shape, mask)
        return random if self.acts_raw or self._convert is None else self._convert(random)

    def check(self, random_steps: int, needed: Sequence[str]) -> None:
        """Check the methods of learning from transitions.

        Args:
            needed: arguments of `learn` that the memories require.

        Raises:
            ConfigError: no `random_action` for random steps, or a `learn` without a needed argument.
        """
        if random_steps and self._random is None:
            raise ConfigError(
                f"random_steps={random_steps} needs agents with random_action(rng, shape, mask); {self.kind} has none. "
                "fix: random_steps=0, or write the method."
            )
        check_calls(self.agent, "learn")
        for name in needed:
            if name not in self.learn_takes:
                raise ConfigError(
                    f"{self.kind}.learn takes no argument {name!r}, which this memory requires. "
                    "fix: learn(experiences, n_experiences=None, per=False), which with per=True returns (loss, idxs, "
                    "priorities); or train from a plain ReplayBuffer."
                )

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Return no numbers: `get_action` draws its own."""
        return ()

    def draw_acting_noise(self, rng: np.random.Generator, count: int) -> None:
        """Return None: see `draw_exploration`."""


class CustomLearner(Learner):
    """Learner whose members run their own `learn`; no tensors are adopted.

    Attributes:
        members: the agents, adapted.
    """

    name: Literal["agents"] = "agents"

    def __init__(self, agents: Sequence[Any], team: Team | None = None) -> None:
        self.agents, self.groups, self.ranks = list(agents), [], ONE
        self.members = [CustomMember(agent, team) for agent in agents]

    def is_finite(self) -> np.ndarray:
        return np.array([is_finite(member) for member in self.members])


def trains_by_learn(agent: Any) -> bool:
    """Whether no engine can run this agent's update, neither on stacked rows nor on its modules."""
    return not isinstance(agent, RLAlgorithm | MultiAgentRLAlgorithm) or no_engine_reason(agent) is not None


def reason_to_run_alone(agent: Any, acts: bool = True) -> str | None:
    """Return why an agent trains by its own methods, one member at a time; None if an engine can run it.

    Args:
        acts: whether members act in training, so that an overridden `get_action` is called.
    """
    if trains_by_learn(agent):
        return "brings its own learn()"
    return "brings its own get_action()" if acts and overrides(agent, "get_action") else None


def warn_of_uncalled(agent: Any, learner: str) -> None:
    """Warn about published methods that a subclass overrides and that training does not call."""
    if overrides(agent, "update", "learn"):
        return
    names = NOT_CALLED if learner == CustomLearner.name else (*NOT_CALLED, *CALLED_BY_LEARN)
    overridden = [name for name in names if overrides(agent, name)]
    if overridden:
        kind = type(unwrapped(agent)).__name__
        warn_once(
            f"{kind} overrides {overridden}",
            f"{kind} overrides {', '.join(overridden)}, which training does not call. fix: override "
            "update(engine, batch), or learn(experiences), by which members then train one after another.",
        )
