"""Wrappers around one agent: they change what it sees, and are selected, mutated, cloned and saved with it.

What is asked of an agent that may be wrapped is here too: which arguments it takes, and whose `learn` it is.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from gymnasium import spaces

from agilerl.algorithms import find_algorithm
from agilerl.algorithms.base import evaluation as playing
from agilerl.algorithms.base.transitions import present_of, with_observations
from agilerl.checkpoint import load_tree, save_tree
from agilerl.components.running import RunningMeanStd
from agilerl.engine.protocol import Mask
from agilerl.envs.observed_masks import parted, with_mask
from agilerl.envs.protocol import AGENTS, PRESENT
from agilerl.envs.step import StepBatch
from agilerl.envs.teams import TeamObservations
from agilerl.errors import ConfigError, NotAvailableYetError, RunError
from agilerl.telemetry.evaluation import Evaluation

ROWS_AT_ONCE = 8_192  # of a data set, whose statistics are taken
OWN = {"agent", "obs_rms", "norm_obs_keys", "epsilon", "_coming"}


class AgentWrapper:
    """An agent whose observations pass through `observe` first; everything else is the agent's.

    Attributes are read from and written to the agent. It trains wherever an agent does, one member at a time.
    """

    def __init__(self, agent: Any) -> None:
        self.agent = agent

    def __getattr__(self, name: str) -> Any:
        if name in OWN or name.startswith("__"):  # not set yet: while unpickling, say
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.agent, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.agent, name, getattr(value, "inner", value) if name == "rollout_buffer" else value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.agent!r})"

    def __str__(self) -> str:
        return f"{type(self).__name__} around {self.agent}"

    @property
    def unwrapped(self) -> Any:
        """The agent inside all wrappers."""
        return unwrapped(self.agent)

    def observe(self, obs: Any, count: bool = False) -> Any:
        """Observations as the agent is to see them; `count` tells that they are new experience.

        What `learn` gives the agent passes through here once more, so nothing that the agent has acted on since the
        last `learn` may look otherwise by then; see `learned`.
        """
        return obs

    def _shown(self, obs: Any, count: bool = False) -> Any:
        """`observe`; a mask of legal actions that stands beside what the agent reads stays beside it."""
        space = getattr(self.agent, "observation_space", None)  # an agent of the user's own need not have one
        rest, mask = parted(obs, space)
        seen = self.observe(rest, count=count)
        return seen if mask is None else with_mask(seen, mask, space)

    def learned(self) -> None:
        """The agent has learned: from here on `observe` may be another one. Nothing by default."""

    def get_action(self, obs: Any, *args: Any, **kwargs: Any) -> Any:
        """The agent's action, with every argument that its own `get_action` takes."""
        return self.agent.get_action(self._shown(obs, count=bool(self.agent.training)), *args, **kwargs)

    def act(self, obs: Any, mask: Any = None) -> Any:
        """The greedy action for an observation, or for a batch of them; see `evaluation.act`."""
        return playing.act(self, obs, mask)

    def predict(
        self, obs: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True, *, mask: Any = None
    ) -> tuple[Any, Any]:
        """(greedy action, hidden state), with the arguments of Stable-Baselines3; see `evaluation.predict`."""
        return playing.predict(self, obs, state, episode_start, deterministic, mask=mask)

    def _greedy(self, obs: Any, mask: Mask = None) -> Any:
        return self.agent._greedy(self.observe(obs), mask)

    def learn(self, *experiences: Any, **kwargs: Any) -> Any:
        """The agent's `learn`, from observations that passed through `observe`.

        Without experiences an agent with a rollout buffer learns from that; what it holds has passed already.

        Raises:
            ValueError: no experiences, for an agent that learns from replay.
        """
        if not experiences and not callable(getattr(self.unwrapped, "recorder", None)):
            raise ConfigError(f"{type(self).__name__}.learn needs experiences. fix: agent.learn(memory.sample(n)).")
        seen = [self._seen(part) for part in experiences]
        named = {k: self._seen(v) if k == "n_experiences" and v is not None else v for k, v in kwargs.items()}
        found = self.agent.learn(*seen, **named)
        self.learned()
        return found

    published_learn = learn

    def recorder(self, steps: int | None = None) -> Recording:
        """As the agent's, through this wrapper: what `collect_rollouts` acts and stores by."""
        return Recording(self, self.agent.recorder(steps))

    @property
    def rollout_buffer(self) -> Filling:
        """The agent's, for a loop of your own: what it adds passes through `observe`, as what `get_action` sees does.
        AttributeError for an agent without one."""
        return Filling(self, self.agent.rollout_buffer)

    def _seen(self, experiences: Any) -> Any:
        if not isinstance(experiences, tuple | list | Mapping) and not hasattr(experiences, "keys"):
            return experiences  # an option, not experiences
        change = getattr(self.agent, "with_observations", None)
        if change is not None:
            return change(experiences, self._shown)
        return with_observations(experiences, self._shown)

    def test(
        self,
        env: Any,
        swap_channels: bool = False,
        max_steps: int | None = None,
        loop: int = 1,
        *,
        vectorized: bool = True,
        callback: playing.Callback | None = None,
        by_agent: bool = False,
    ) -> Any:
        """Mean return of the first finished episode of each environment, averaged over `loop` rounds; greedy.

        The training mode is restored. The result is appended to `fitness`. See `RLAlgorithm.test`; `by_agent` gives the
        row of a team's agents [M], whose mean is appended.
        """
        return playing.run_test(
            self, env, swap_channels, max_steps, loop, vectorized=vectorized, callback=callback, by_agent=by_agent
        )

    def evaluate(
        self, episodes: int = 100, seed: int | None = None, env: Any = None, max_steps: int | None = None
    ) -> Evaluation:
        """Play whole episodes greedily and summarise their returns; see `RLAlgorithm.evaluate`."""
        return playing.evaluate(self, episodes, seed, env, max_steps)

    def clone(self, index: int | None = None, wrap: bool = True) -> Self:
        """An independent copy of wrapper and agent."""
        twin = copy.copy(self)
        twin.agent = self.agent.clone(index, wrap)
        twin.load_wrapper_state(self.wrapper_state())
        return twin

    def wrapper_state(self) -> dict[str, Any]:
        """What the wrapper itself has learned, as plain data."""
        return {}

    def load_wrapper_state(self, state: Mapping[str, Any]) -> None:
        """Put back what `wrapper_state()` returned."""

    def state(self) -> dict[str, Any]:
        """State of wrapper and agent."""
        return {"class": type(self).__name__, "wrapper": self.wrapper_state(), "agent": self.agent.state()}

    def run_state(self) -> dict[str, Any]:
        """As `state`, with everything else on which the rest of a run depends."""
        return {**self.state(), "agent": self.agent.run_state()}

    def load_run_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        """Become the wrapper and agent that `run_state` was taken from."""
        self.agent.load_run_state(state["agent"], source)
        self.load_wrapper_state(state["wrapper"])

    def save_checkpoint(self, path: str | Path) -> None:
        """Write wrapper and agent to one file."""
        save_tree(path, self.state())

    def load_checkpoint(self, path: str | Path) -> None:
        """Read a file of `save_checkpoint` in place."""
        tree = self._tree(path)
        self.agent.load_state(tree["agent"], str(path))
        self.load_wrapper_state(tree["wrapper"])

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "cpu", accelerator: Any = None) -> Self:
        """Wrapper and agent from a file of `save_checkpoint`."""
        tree = cls._tree(path)
        return cls._of(tree, find_algorithm(str(tree["agent"]["algo"])), path, device, accelerator)

    @classmethod
    def _of(cls, tree: Mapping[str, Any], kind: Any, path: Any, device: Any, accelerator: Any) -> Self:
        """Wrapper and agent, which is a `kind`, from what a file holds."""
        agent = kind._blank(tree["agent"], device, accelerator)
        agent.load_state(tree["agent"], str(path))
        wrapper = cls(agent)
        wrapper.load_wrapper_state(tree["wrapper"])
        return wrapper

    @classmethod
    def _tree(cls, path: str | Path) -> dict[str, Any]:
        tree: dict[str, Any] = load_tree(path)
        if tree.get("class") != cls.__name__:
            raise RunError(f"{path} holds a {tree.get('class')}, not a {cls.__name__}. fix: {tree.get('class')}.load.")
        return tree


class Filling:
    """The rollout buffer of a wrapped agent, filled by hand; everything but `add` is the buffer's."""

    def __init__(self, wrapper: AgentWrapper, inner: Any) -> None:
        self.wrapper, self.inner = wrapper, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def __len__(self) -> int:
        return len(self.inner)

    def add(self, obs: Any, *args: Any, next_obs: Any = None, **kwargs: Any) -> None:
        """As `RolloutBuffer.add`, of observations as the environment gives them; `next_obs` by its name."""
        after = None if next_obs is None else self.wrapper._shown(next_obs)
        self.inner.add(self.wrapper._shown(obs), *args, next_obs=after, **kwargs)


class Recording:
    """The recorder of a wrapped agent: observations pass through the wrapper on their way to it.

    Everything else is the recorder's: `buffer`, whose observations are those that the agent saw, `full`, `restart`,
    `chosen`.
    """

    def __init__(self, wrapper: AgentWrapper, inner: Any) -> None:
        self.wrapper, self.inner = wrapper, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def act(self, obs: Any, mask: Mask = None) -> Any:
        """Exploring actions for the environment, from observations [E, ...]."""
        return self.inner.act(self.wrapper.observe(obs, count=bool(self.wrapper.agent.training)), mask)

    def store(self, reward: np.ndarray, batch: StepBatch) -> None:
        """What the last `act` led to."""
        if batch.truncated.any():  # only then the final observations are read
            batch = replace(batch, final_obs=self.wrapper.observe(batch.final_obs))
        self.inner.store(reward, batch)

    def finish(self, obs: Any) -> None:
        """The rollout is complete; `obs` follows its last step."""
        self.inner.finish(self.wrapper.observe(obs))


class RSNorm(AgentWrapper):
    """Observations normalised by their running mean and standard deviation, which move while the agent trains.

    Replay keeps raw observations; they are normalised when they are learned from, by the statistics of that moment.
    An on-policy agent learns from what it has just done, so its policy must not change in between: what a rollout
    shows moves the statistics after `learn`, and a first rollout is seen as it is.

    Of a team `obs_rms` maps agents to statistics. Agents of one group share them, as they share a policy; rows of
    absent agents are not counted. Where an agent learns from a data set, its statistics are those of the whole set
    (`see_data`), unless it has some already.

    Args:
        agent: an agent or a team. epsilon: added to the variance.
        norm_obs_keys: the keys of a Dict space to normalise; None normalises every Box in the space.

    Raises:
        ConfigError: a key that the observation space does not have.
    """

    _coming: Any = None  # the statistics with the running rollout in them: those after `learn`

    def __init__(self, agent: Any, epsilon: float = 1e-4, norm_obs_keys: list[str] | None = None) -> None:
        super().__init__(agent)
        self.epsilon, self.norm_obs_keys = epsilon, norm_obs_keys
        if norm_obs_keys is not None:
            each = list(agent.observation_space.values()) if is_team(agent) else [agent.observation_space]
            known = list(dict.fromkeys(key for s in each if isinstance(s, spaces.Dict) for key in s.spaces))
            unknown = [key for key in norm_obs_keys if key not in known]
            if unknown:
                where = agent.observation_space
                raise ConfigError(f"norm_obs_keys {unknown} are not keys of {where}. fix: choose among {known}.")
        self.obs_rms = self._nothing_seen()

    def _nothing_seen(self) -> Any:
        """Statistics of no observation, in the shape of the space; of a team by agent."""
        if not is_team(self.agent):
            return self._statistics(self.agent.observation_space)
        by_group = {group: self._statistics(space) for group, space in self.agent.observation_space.items()}
        group_of = {agent: group for group, agents in self.agent.grouped_agents.items() for agent in agents}
        return {agent: by_group[group_of[agent]] for agent in self.agent.agent_ids}

    def _statistics(self, space: spaces.Space[Any]) -> Any:
        """Statistics in the shape of the space; None for what is not normalised."""
        if isinstance(space, spaces.Dict):
            kept = self.norm_obs_keys
            return {k: self._statistics(s) if kept is None or k in kept else None for k, s in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(self._statistics(part) for part in space.spaces)
        return RunningMeanStd(space.shape, self.epsilon) if isinstance(space, spaces.Box) else None

    def observe(self, obs: Any, count: bool = False) -> Any:
        """Normalised copies; rows [B, ...] or one observation."""
        if count and is_on_policy(self):
            if self._coming is None:
                self._coming = copy.deepcopy(self.obs_rms)
            self._take_in(self._coming, obs)
        elif count:
            self._take_in(self.obs_rms, obs)
        return _of_team(self.obs_rms, obs) if is_team(self.agent) else _normalised(self.obs_rms, obs)

    def _take_in(self, statistics: Any, obs: Any) -> None:
        """Count observations; of a team the rows of agents that are present."""
        if not is_team(self.agent):
            _count(statistics, obs)
            return
        rows, present = obs, present_of(obs) or {}
        if AGENTS in obs and PRESENT in obs:  # as lanes give them
            rows, there = obs[AGENTS], np.asarray(obs[PRESENT]).astype(bool)
            present = {agent: there[..., k] for k, agent in enumerate(self.agent.agent_ids)}
        for agent, part in statistics.items():
            if rows.get(agent) is not None:
                _count(part, rows[agent], present.get(agent))

    def see_data(self, memory: Any) -> None:
        """Take the statistics of all observations in `memory`, where nothing was seen before; then the agent's own."""
        if not any(part.count for part in _parts(self.obs_rms)):
            for start in range(0, len(memory), ROWS_AT_ONCE):
                rows = np.arange(start, min(start + ROWS_AT_ONCE, len(memory)))
                self._take_in(self.obs_rms, memory.sample_from_indices(rows)["obs"])
        self.agent.see_data(ObservedMemory(memory, self.observe))

    def learned(self) -> None:
        """What was seen since the last `learn` moves the statistics now."""
        if self._coming is not None:
            self.obs_rms, self._coming = self._coming, None

    def policy_spec(self) -> dict[str, Any]:
        """As the agent's, with the statistics: without them the policy is another one.
        Raises NotAvailableYetError for a team."""
        if is_team(self.agent):
            raise NotAvailableYetError(
                f"{self.agent.algo}: a policy file with normalised observations is not available in this version. "
                "fix: save_checkpoint, which keeps the statistics."
            )
        parts = self.wrapper_state()["statistics"]
        plain = [{k: np.asarray(part[k]).tolist() for k in ("mean", "var", "epsilon")} for part in parts]
        found = plain[0] if isinstance(self.obs_rms, RunningMeanStd) else {"parts": plain}
        return {**self.agent.policy_spec(), "normaliser": found}

    def wrapper_state(self) -> dict[str, Any]:
        return {"statistics": [part.state() for part in _parts(self.obs_rms)], "keys": self.norm_obs_keys}

    def load_wrapper_state(self, state: Mapping[str, Any]) -> None:
        self.norm_obs_keys = state["keys"]
        self.obs_rms, self._coming = self._nothing_seen(), None
        for part, saved in zip(_parts(self.obs_rms), state["statistics"], strict=True):
            part.load_state(saved)


class ObservedMemory:
    """A memory whose observations pass through a wrapper: what the agent inside sees of a data set."""

    def __init__(self, memory: Any, observe: Callable[[Any], Any]) -> None:
        self.memory, self.observe = memory, observe

    def __len__(self) -> int:
        return len(self.memory)

    def sample_from_indices(self, rows: np.ndarray) -> Any:
        """As the memory's, with normalised observations."""
        return with_observations(self.memory.sample_from_indices(rows), self.observe)


def wrapped_from(tree: Mapping[str, Any], kind: Any, path: Any, device: Any, accelerator: Any) -> AgentWrapper:
    """Wrapper and agent from a file of which `kind.load` found that it holds a wrapped agent.

    Raises:
        RunError: another algorithm's agent, or a wrapper of a class that is not there.
    """
    name, inner = str(tree["class"]), str(tree["agent"]["class"])
    if inner != kind.__name__:
        raise RunError(f"{path} holds a {name} of a {inner}, this is {kind.__name__}.load. fix: {inner}.load(path)")
    known, left = dict[str, type[AgentWrapper]](), [AgentWrapper]
    while left:
        found = left.pop()
        known[found.__name__] = found
        left += found.__subclasses__()
    if name not in known:
        raise RunError(f"{path} holds a {name}, which is not defined here. fix: import the module that defines it.")
    return known[name]._of(tree, kind, path, device, accelerator)


def _parts(statistics: Any) -> list[RunningMeanStd]:
    if isinstance(statistics, RunningMeanStd):
        return [statistics]
    inside = statistics.values() if isinstance(statistics, dict) else statistics or ()
    return [found for part in inside for found in _parts(part)]


def _pairs(statistics: Any, obs: Any) -> Any:
    """(key, statistics, observations) of the parts of a Dict or Tuple space."""
    if isinstance(statistics, dict):
        return [(key, part, obs[key]) for key, part in statistics.items()]
    if isinstance(obs, Mapping):  # sampled: replay names the parts of a tuple
        names = [f"tuple_obs_{i}" for i in range(len(statistics))]
        return [(name, part, obs[name]) for name, part in zip(names, statistics, strict=True)]
    return [(i, part, value) for i, (part, value) in enumerate(zip(statistics, obs, strict=True))]


def _count(statistics: Any, obs: Any, present: Any = None) -> None:
    """Take observations in; rows [E] bool that are not `present`, or not finite, are left out."""
    if isinstance(statistics, RunningMeanStd):
        rows = _array(obs).reshape(-1, *statistics.mean.shape)
        if present is not None:
            known = np.isfinite(rows.reshape(len(rows), -1)).all(1) if rows.dtype.kind == "f" else True
            rows = rows[np.asarray(_array(present), bool).reshape(-1) & known]
        statistics.update(rows)
    elif statistics is not None:
        for _, part, value in _pairs(statistics, obs):
            _count(part, value, present)


def _of_team(statistics: Mapping[str, Any], obs: Any) -> Any:
    """Observations by agent, normalised: as lanes give them, as vectors and memories do, or as plain mappings."""
    if AGENTS in obs and PRESENT in obs:
        return {**obs, AGENTS: _of_team(statistics, obs[AGENTS])}

    def by_agent(rows: Any) -> dict[str, Any]:
        known = {a: x for a, x in rows.items() if a in statistics and x is not None}
        return {**rows, **{a: _normalised(statistics[a], x) for a, x in known.items()}}

    if not isinstance(obs, TeamObservations):
        return by_agent(obs)
    final = None if obs.final is None else by_agent(obs.final)
    return TeamObservations(by_agent(obs), obs.present, final, obs.final_present, obs.acted, obs.state)


def _normalised(statistics: Any, obs: Any) -> Any:
    if statistics is None:
        return obs
    if isinstance(statistics, RunningMeanStd):
        scaled = statistics.normalise(_array(obs))
        return torch.from_numpy(scaled) if isinstance(obs, torch.Tensor) else scaled
    parts = {key: _normalised(part, value) for key, part, value in _pairs(statistics, obs)}
    return parts if isinstance(statistics, dict) or isinstance(obs, Mapping) else tuple(parts.values())


def _array(obs: Any) -> np.ndarray:
    return obs.detach().cpu().numpy() if isinstance(obs, torch.Tensor) else np.asarray(obs)


# --- questions to an agent, through its wrappers ---------------------------------------------------------------------


def unwrapped(agent: Any) -> Any:
    """The agent inside all wrappers; the agent itself where there is none."""
    return getattr(agent, "unwrapped", agent)


def is_team(agent: Any) -> bool:
    """Whether the agent, inside all wrappers, is a team."""
    return hasattr(unwrapped(agent), "agent_ids")


def takes(agent: Any, method: str, name: str) -> bool:
    """Whether `agent.method(..., name=...)` reaches somebody who takes the argument `name`.

    A method with `**kwargs` takes everything; that of a wrapper passes it on, so the agent inside decides.
    """
    parameters = inspect.signature(getattr(agent, method)).parameters
    if name in parameters:
        return True
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return False
    inner = unwrapped(agent)
    return True if inner is agent else takes(inner, method, name)


def brings_learn(agent: Any) -> bool:
    """Whether the agent, or a wrapper around it, has a `learn` other than the one this package publishes."""
    kind, inner = type(agent), unwrapped(agent)
    own = kind.learn is not getattr(kind, "published_learn", None)
    return own or (inner is not agent and brings_learn(inner))


def is_on_policy(agent: Any) -> bool:
    """Whether the agent learns from what it has just done alone; one of the user's own says so by `gae_lambda`."""
    inner = unwrapped(agent)
    declared = getattr(getattr(inner, "experience", None), "on_policy", False)
    return bool(declared or getattr(inner, "is_on_policy", False)) or hasattr(inner, "gae_lambda")
