"""Base class of team collectors, and the multi-agent off-policy collector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agilerl.algorithms.base.adapted import kind_of_experience
from agilerl.algorithms.base.declared import TEAM_VALUES
from agilerl.algorithms.base.wrapped import is_team, unwrapped
from agilerl.algorithms.teams.base import MultiAgentRLAlgorithm
from agilerl.collect.collector import Shard, ShardResult, Steps
from agilerl.collect.custom.transitions import CustomTeamUpdates
from agilerl.collect.lanes import LaneCollector
from agilerl.collect.off_policy import OffPolicyCollector
from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
from agilerl.core import foreign
from agilerl.core.options import OffPolicyOptions
from agilerl.core.spaces import actions_differ, differ
from agilerl.engine.learner import Learner
from agilerl.envs.step import Lanes
from agilerl.envs.team import Team, team_of
from agilerl.envs.team_vector import make_multi_agent_vect_envs
from agilerl.errors import ConfigError, EnvError

NEEDED = ("write", "sample_indices", "gather")  # of a memory


class OfTeams(LaneCollector[Any]):
    """Base class of team collectors: multi-agent environments and per-agent fitness.

    Attributes:
        sum_scores: a team's return is the sum of its agents' returns. False: fitness is their mean, and `by_agent`
            holds each of them.
        is_epsilon_greedy: whether the teams explore by an exploration rate.
    """

    is_epsilon_greedy = False
    waits_for_lanes = "environments of several agents step together"

    @staticmethod
    def make_envs(name: str | None, num_envs: int = 1, *, make_env: object = None, **options: Any) -> Any:
        """Create copies of a multi-agent environment from an id or a factory."""
        return make_multi_agent_vect_envs(name if make_env is None else make_env, num_envs, **options)

    @staticmethod
    def spaces(env: foreign.Env) -> tuple[Any, Any]:
        """Return ({agent: observation space}, {agent: action space})."""
        team = team_in(env)
        return dict(team.observation_spaces), dict(team.action_spaces)

    def open(
        self, population: Sequence[Any], run_seed: int, check: Callable[[], None] | None = None, shards: int = 1
    ) -> None:
        super().open(population, run_seed, check, shards)
        self.is_epsilon_greedy = all(kind_of_experience(agent)[0] == TEAM_VALUES.name for agent in population)
        for agent in population:
            self._check(agent)

    @property
    def team(self) -> Team:  # type: ignore[override]
        return team_in(self.env)

    @property
    def epsilon(self) -> float | None:
        """Exploration rate; None for teams that sample discrete actions and add noise to continuous ones."""
        return self.shared[0].epsilon if self.is_epsilon_greedy else None

    def run(self, shard: Shard, lanes: Lanes, learner: Learner) -> Steps:
        result = yield from super().run(shard, lanes, learner)
        return self._scored(result)

    def _scored(self, result: ShardResult) -> ShardResult:
        """Replace scores by the mean over agents if they are not summed."""
        for tally in result.tallies.values() if not self.sum_scores else ():
            tally.scores = [sum(row) / len(row) for row in tally.by_agent]
        return result

    def _check(self, agent: Any) -> None:
        """Raise ConfigError if the agents of a team differ from those of the environment."""
        team, agent_ids = team_in(self.env), agent.agent_ids if is_team(agent) else None
        if agent_ids is not None and list(agent_ids) != list(team.agents):
            raise ConfigError(
                f"team {agent.index} has the agents {list(agent_ids)}, the environment has {list(team.agents)}. "
                "fix: agent_ids=env.possible_agents, in this order."
            )
        inner = unwrapped(agent)
        if not isinstance(inner, MultiAgentRLAlgorithm):
            return
        for name in team.agents:
            for what, is_other in (("observation", differ), ("action", actions_differ)):
                built, space = vars(inner)[f"possible_{what}_spaces"][name], vars(team)[f"{what}_spaces"][name]
                if is_other(built, space):
                    raise ConfigError(
                        f"team {agent.index} was built for the {what} space {built} of {name}; the environment has "
                        f"{space}. fix: the spaces of the environment, env.{what}_space({name!r})."
                    )


class TeamTransitions(OfTeams, OffPolicyCollector):
    """Teams store transitions in one shared replay buffer and learn from samples of it.

    Args:
        sum_scores: see `OfTeams`.
    """

    custom_updating = CustomTeamUpdates

    def __init__(
        self,
        env: foreign.Env,
        memory: Any,
        options: OffPolicyOptions,
        n_step_memory: Any = None,
        eval_env: foreign.Env | None = None,
        *,
        sum_scores: bool = True,
    ) -> None:
        super().__init__(env, memory, options, n_step_memory, eval_env)
        self.sum_scores = sum_scores
        missing = [name for name in NEEDED if not foreign.has_methods(memory, name)]
        if missing:
            raise ConfigError(
                f"the memory is a {type(memory).__name__} without {', '.join(missing)}, which teams store and sample "
                "by. fix: MultiAgentReplayBuffer(memory_size, field_names, agent_ids)."
            )
        if isinstance(memory, MultiAgentReplayBuffer):
            _check_agents(memory, team_in(env))
            memory.set_action_spaces(team_in(env).action_spaces)

    @classmethod
    def make(
        cls, env: foreign.Env, options: OffPolicyOptions, replay: Callable[[], Any], eval_env: foreign.Env | None = None
    ) -> TeamTransitions:
        """Create the collector with a memory from `replay`."""
        return cls(env, replay(), options, eval_env=eval_env)


def _check_agents(memory: MultiAgentReplayBuffer, team: Team) -> None:
    """Raise ConfigError if the memory's agents differ from the environment's, or its fields are unknown."""
    if memory.has_own_fields:
        raise ConfigError(
            f"the memory has the fields {memory.field_names}, which training functions do not support. "
            'fix: field_names=["state", "action", "reward", "next_state", "done"].'
        )
    if list(memory.agent_ids) != list(team.agents):
        raise ConfigError(
            f"the memory is of the agents {memory.agent_ids}, the environment has {list(team.agents)}. "
            "fix: MultiAgentReplayBuffer(..., agent_ids=env.possible_agents), in this order."
        )


def team_in(env: foreign.Env) -> Team:
    """Return the team of an environment, a vector or its lanes; EnvError for a single-agent environment."""
    team = foreign.team(env)
    if isinstance(team, Team):
        return team
    if foreign.possible_agents(env) is not None or hasattr(env, "agent_iter"):
        return team_of(env)
    name = type(foreign.bare(env)).__name__
    raise EnvError(
        f"{name} has one agent, and the algorithm trains several. fix: an environment of PettingZoo's parallel "
        "interface, such as 'mpe2.simple_speaker_listener_v4', or an algorithm for one agent."
    )
