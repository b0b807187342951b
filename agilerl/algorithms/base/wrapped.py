"""Agent wrappers: they change an agent's observations, and are selected, mutated, cloned and saved with it.

Also contains helpers for agents that may be wrapped: which arguments they accept, and which `learn` they use.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from gymnasium import spaces

from agilerl.algorithms import find_algorithm
from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.algorithms.base.evaluation import run_test
from agilerl.algorithms.base.predict import Predicting, greedy_of, sampled_of
from agilerl.algorithms.base.transitions import with_observations
from agilerl.components.running import RunningMeanStd
from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.core.checkpoint import load_tree
from agilerl.engine.protocol import Mask
from agilerl.envs.observed_masks import parted, with_mask
from agilerl.envs.protocol import AGENTS, PRESENT, SeenByTeam, StepBatch, TeamObservations
from agilerl.errors import AlgorithmError, ConfigError, NotAvailableYetError, RunError, warn_once
from agilerl.telemetry.evaluation import Callback

ROWS_AT_ONCE = 8_192  # rows per chunk when computing the statistics of a data set
Statistics = Any  # RunningMeanStd, None for a part that is not normalised, or a dict or tuple of these
TEST_DEFAULTS = {
    "swap_channels": False, "max_steps": None, "loop": 1, "vectorized": True, "callback": None, "by_agent": False,
}  # fmt: skip
OWN = {"agent", "obs_rms", "norm_obs_keys", "epsilon", "_coming", "_is_team", "_is_on_policy"}


class AgentWrapper(Predicting):
    """An agent whose observations first pass through `observe`; everything else is delegated to the agent.

    Attributes are read from and written to the agent. It trains wherever an agent does, one member at a time.
    """

    trains_unwrapped = False  # of the wrapper itself, whatever the wrapped agent declares

    def __init__(self, agent: Any) -> None:
        self.agent = agent

    def __getattr__(self, name: str) -> Any:
        if name in OWN or name.startswith("__"):  # not set yet, e.g. while unpickling
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
        """Transform observations for the agent; `count` marks them as new experience.

        Experience passed to `learn` is transformed again, so the transform must not change between acting and the next
        `learn`; see `learned`.
        """
        return obs

    def _shown(self, obs: Any, count: bool = False) -> Any:
        """Apply `observe`, but leave an action mask in the observations unchanged."""
        space = getattr(self.agent, "observation_space", None)  # optional for a user's agent
        rest, mask = parted(obs, space)
        seen = self.observe(rest, count=count)
        return seen if mask is None else with_mask(seen, mask, space)

    def learned(self) -> None:
        """Hook after `learn`; `observe` may change from here on. No-op by default."""

    def get_action(self, obs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the agent's action; all arguments of the agent's `get_action` are accepted."""
        return self.agent.get_action(self._shown(obs, count=bool(self.agent.training)), *args, **kwargs)

    def _greedy(self, obs: Any, mask: Mask = None) -> Any:
        return greedy_of(self.agent)(self.observe(obs), mask)

    def _sampled(self, rng: np.random.Generator, obs: Any, mask: Mask = None) -> Any:
        return sampled_of(self.agent, rng)(self.observe(obs), mask)

    def learn(self, *experiences: Any, **kwargs: Any) -> Any:
        """Call the agent's `learn` with observations transformed by `observe`.

        Without experiences, an agent with a rollout buffer learns from the buffer, which holds transformed
        observations.

        Raises:
            ValueError: no experiences for an agent that learns from replay.
        """
        if not experiences and not callable(getattr(self.unwrapped, "recorder", None)):
            raise ConfigError(f"{type(self).__name__}.learn needs experiences. fix: agent.learn(memory.sample(n)).")
        seen = [self._seen(part) for part in experiences]
        named = {k: self._seen(v) if k == "n_experiences" and v is not None else v for k, v in kwargs.items()}
        result = self.agent.learn(*seen, **named)
        self.learned()
        return result

    published_learn = learn

    def recorder(self, steps: int | None = None) -> Recording:
        """Return a recorder that applies this wrapper, for acting and storing in `collect_rollouts`."""
        return Recording(self, self.agent.recorder(steps))

    @property
    def rollout_buffer(self) -> Filling:
        """The agent's rollout buffer, for custom training loops. `observe` is applied to added observations, as in
        `get_action`. AttributeError for an agent without one."""
        return Filling(self, self.agent.rollout_buffer)

    def _seen(self, experiences: Any) -> Any:
        if not isinstance(experiences, tuple | list | Mapping) and not hasattr(experiences, "keys"):
            return experiences  # an option, not experiences
        return getattr(self.agent, "with_observations", with_observations)(experiences, self._shown)

    def test(
        self,
        env: Any,
        swap_channels: bool = False,
        max_steps: int | None = None,
        loop: int = 1,
        *,
        vectorized: bool = True,
        callback: Callback | None = None,
        by_agent: bool = False,
    ) -> Any:
        """Return the mean greedy return of the first finished episode per environment, averaged over `loop` rounds.

        The training mode is restored and the result is appended to `fitness`. See `RLAlgorithm.test`. With `by_agent`
        the returns of each agent [M] are returned, and their mean is appended. A `test` of one agent's
        own class gets an environment whose observations are transformed.
        """
        options: dict[str, Any] = {"swap_channels": swap_channels, "max_steps": max_steps, "loop": loop}
        options |= {"vectorized": vectorized, "callback": callback, "by_agent": by_agent}
        own_test = overrides(self.agent, "test")
        if own_test and is_team(self):
            name = type(self.unwrapped).__name__
            text = f"{type(self).__name__} scores by its own episodes, not by {name}.test. fix: no wrapper, or its own."
            warn_once(f"test of {name}", text)
        elif own_test:
            changed = {name: value for name, value in options.items() if value != TEST_DEFAULTS[name]}
            return self.agent.test(Observed(self, env), **changed)
        return run_test(self, env, **options)

    def clone(self, index: int | None = None, wrap: bool = True) -> Self:
        """Return an independent copy of wrapper and agent."""
        twin = copy.copy(self)
        twin.agent = self.agent.clone(index, wrap)
        twin.load_wrapper_state(self.wrapper_state())
        return twin

    def wrapper_state(self) -> dict[str, Any]:
        """Return the wrapper's learned state as plain data."""
        return {}

    def load_wrapper_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `wrapper_state()`."""

    def state(self) -> dict[str, Any]:
        """Return the state of wrapper and agent."""
        return {"class": type(self).__name__, "wrapper": self.wrapper_state(), "agent": self.agent.state()}

    def run_state(self) -> dict[str, Any]:
        """Return `state` plus everything else needed to resume a run."""
        return {**self.state(), "agent": self.agent.run_state()}

    def load_run_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        """Restore the result of `run_state`."""
        self.agent.load_run_state(state["agent"], source)
        self.load_wrapper_state(state["wrapper"])

    def load_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        """Restore the result of `state`; `source` is named in errors.

        Raises:
            RunError: the state of an agent with other wrappers.
        """
        if state.get("class") != type(self).__name__ or "wrapper" not in state:
            raise RunError(f"{source} holds {described(state)}, not {described(self.state())}. fix: the same wrappers.")
        self.agent.load_state(state["agent"], source)
        self.load_wrapper_state(state["wrapper"])

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "cpu", accelerator: Any = None) -> Self:
        """Load wrapper and agent from a file of `save_checkpoint`."""
        tree: dict[str, Any] = load_tree(path)
        if tree.get("class") != cls.__name__:
            raise RunError(f"{path} holds a {tree.get('class')}, not a {cls.__name__}. fix: {tree.get('class')}.load.")
        return cls._of(tree, find_algorithm(str(_innermost(tree)["algo"])), path, device, accelerator)

    @classmethod
    def _of(cls, tree: Mapping[str, Any], kind: type[EvolvableAlgorithm], path: str | Path, *place: Any) -> Self:
        """Build wrapper and agent (of class `kind`) from the contents of a file, on `place` (device, accelerator).

        Raises:
            AlgorithmError: the constructor of the wrapper needs more than the agent.
        """
        if "wrapper" in tree["agent"]:
            agent: Any = _class_named(tree["agent"], path)._of(tree["agent"], kind, path, *place)
        else:
            agent = kind._blank(tree["agent"], *place)
            agent.load_state(tree["agent"], str(path))
        try:
            wrapper = cls(agent)
        except TypeError as error:  # raised by the constructor, not by the file
            raise AlgorithmError(
                f"{cls.__name__} cannot be created from an agent alone: {error}. fix: defaults for other arguments, "
                "or create wrapper and agent, then wrapper.load_checkpoint(path)."
            ) from error
        wrapper.load_wrapper_state(tree["wrapper"])
        return wrapper


class Around:
    """Part of a wrapped agent; everything that a subclass does not define is that of the part."""

    def __init__(self, wrapper: AgentWrapper, inner: Any) -> None:
        self.wrapper, self.inner = wrapper, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def __len__(self) -> int:
        return len(self.inner)


class Filling(Around):
    """The rollout buffer of a wrapped agent, filled manually."""

    def add(self, obs: Any, *args: Any, next_obs: Any = None, **kwargs: Any) -> None:
        """See `RolloutBuffer.add`. Takes the environment's observations; `next_obs` is keyword-only."""
        after = None if next_obs is None else self.wrapper._shown(next_obs)
        self.inner.add(self.wrapper._shown(obs), *args, next_obs=after, **kwargs)


class Recording(Around):
    """Recorder of a wrapped agent; its `buffer` holds transformed observations."""

    def act(self, obs: Any, mask: Mask = None) -> Any:
        """Return exploring actions for the environment from observations [E, ...]."""
        return self.inner.act(self.wrapper.observe(obs, count=bool(self.wrapper.agent.training)), mask)

    def store(self, reward: np.ndarray, batch: StepBatch) -> None:
        """Store the result of the last `act`."""
        if batch.truncated.any():  # final observations are only read in this case
            batch = replace(batch, final_obs=self.wrapper.observe(batch.final_obs))
        self.inner.store(reward, batch)

    def finish(self, obs: Any) -> None:
        """Complete the rollout; `obs` follows its last step."""
        self.inner.finish(self.wrapper.observe(obs))


class Observed(Around):
    """The wrapped agent's view of an environment."""

    def reset(self, *args: Any, **options: Any) -> Any:
        obs, *rest = self.inner.reset(*args, **options)
        return self.wrapper._shown(obs), *rest

    def step(self, actions: Any) -> Any:
        obs, *rest = self.inner.step(actions)
        return self.wrapper._shown(obs), *rest


class ObservedMemory(Around):
    """The wrapped agent's view of a data set."""

    def sample_from_indices(self, rows: np.ndarray) -> Any:
        """Sample rows from the memory, with transformed observations."""
        return with_observations(self.inner.sample_from_indices(rows), self.wrapper.observe)


class RSNorm(AgentWrapper):
    """Normalise observations by their running mean and standard deviation, updated during training.

    Replay buffers store raw observations, which are normalised with the current statistics when sampled. An on-policy
    agent's policy must not change between acting and learning, so a rollout updates the statistics only after `learn`.
    The first rollout is not normalised.

    For several agents `obs_rms` maps agents to statistics. Agents of one group share them, as they share a policy; rows
    of absent agents are not counted. In offline training the statistics are computed over the whole data set
    (`see_data`), unless some exist already.

    Args:
        agent: single-agent or multi-agent algorithm. epsilon: added to the variance.
        norm_obs_keys: keys of a Dict space to normalise; None normalises every Box in the space.

    Raises:
        ConfigError: a key is missing from the observation space.
    """

    _coming: Any = None  # statistics including the current rollout, used after `learn`

    def __init__(self, agent: Any, epsilon: float = 1e-4, norm_obs_keys: list[str] | None = None) -> None:
        super().__init__(agent)
        self.epsilon, self.norm_obs_keys, self._is_team = epsilon, norm_obs_keys, is_team(agent)
        self._is_on_policy = is_on_policy(agent)
        if not self._is_team and foreign.observation_space(unwrapped(agent)) is None:
            raise AlgorithmError(
                f"RSNorm needs agents with an observation_space; {type(unwrapped(agent)).__name__} has none. "
                "fix: agent.observation_space = env.single_observation_space."
            )
        if norm_obs_keys is not None:
            spaces_of_agents = agent.observation_space.values() if self._is_team else [agent.observation_space]
            keys = list(dict.fromkeys(k for s in spaces_of_agents if isinstance(s, spaces.Dict) for k in s.spaces))
            unknown = [key for key in norm_obs_keys if key not in keys]
            if unknown:
                raise ConfigError(
                    f"norm_obs_keys {unknown} are not keys of {agent.observation_space}. fix: choose among {keys}."
                )
        self.obs_rms = self._new_statistics()

    def _new_statistics(self) -> Any:
        """Create empty statistics in the shape of the space; for several agents by agent."""
        if not self._is_team:
            return self._statistics(self.agent.observation_space)
        by_group = {group: self._statistics(space) for group, space in self.agent.observation_space.items()}
        group_of = {agent: group for group, agents in self.agent.grouped_agents.items() for agent in agents}
        return {agent: by_group[group_of[agent]] for agent in self.agent.agent_ids}

    def _statistics(self, space: spaces.Space[Any]) -> Statistics:
        """Create statistics in the shape of the space; None for parts that are not normalised."""
        if isinstance(space, spaces.Dict):
            keys = self.norm_obs_keys
            return {k: self._statistics(s) if keys is None or k in keys else None for k, s in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(self._statistics(part) for part in space.spaces)
        return RunningMeanStd(space.shape, self.epsilon) if isinstance(space, spaces.Box) else None

    def _parts(self) -> list[RunningMeanStd]:
        """Return the statistics of all normalised parts."""
        return [part for part in trees.leaves(self.obs_rms) if part is not None]

    def observe(self, obs: Any, count: bool = False) -> Any:
        """Return normalised copies of rows [B, ...] or one observation."""
        if count and self._is_on_policy:
            if self._coming is None:
                self._coming = copy.deepcopy(self.obs_rms)
            self._take_in(self._coming, obs)
        elif count:
            self._take_in(self.obs_rms, obs)
        return _of_team(self.obs_rms, obs) if self._is_team else _normalised(self.obs_rms, obs)

    def _take_in(self, statistics: Any, obs: Any) -> None:
        """Count observations; for several agents only rows of present agents."""
        if not self._is_team:
            _count(statistics, obs)
            return
        rows, present = obs, SeenByTeam.of(obs).present or {}
        if AGENTS in obs and PRESENT in obs:  # vectorised environment format
            rows, there = obs[AGENTS], np.asarray(obs[PRESENT]).astype(bool)
            present = {agent: there[..., k] for k, agent in enumerate(self.agent.agent_ids)}
        for agent, part in statistics.items():
            if rows.get(agent) is not None:
                _count(part, rows[agent], present.get(agent))

    def see_data(self, memory: Any) -> None:
        """Compute statistics over all observations in `memory` unless some exist; then call the agent's `see_data`."""
        if not any(part.count for part in self._parts()):
            for start in range(0, len(memory), ROWS_AT_ONCE):
                rows = np.arange(start, min(start + ROWS_AT_ONCE, len(memory)))
                self._take_in(self.obs_rms, memory.sample_from_indices(rows)["obs"])
        self.agent.see_data(ObservedMemory(self, memory))

    def learned(self) -> None:
        """Update the statistics with observations since the last `learn`."""
        if self._coming is not None:
            self.obs_rms, self._coming = self._coming, None

    def policy_spec(self) -> dict[str, Any]:
        """Return the agent's `policy_spec` with the statistics, which are part of the policy.
        Raises NotAvailableYetError for several agents."""
        if self._is_team:
            raise NotAvailableYetError(
                f"{self.agent.algo}: a policy file with normalised observations is not available in this version. "
                "fix: save_checkpoint, which keeps the statistics."
            )
        parts = self.wrapper_state()["statistics"]
        plain = [{k: np.asarray(part[k]).tolist() for k in ("mean", "var", "epsilon")} for part in parts]
        normaliser = plain[0] if isinstance(self.obs_rms, RunningMeanStd) else {"parts": plain}
        return {**self.agent.policy_spec(), "normaliser": normaliser}

    def wrapper_state(self) -> dict[str, Any]:
        return {"statistics": [part.state() for part in self._parts()], "keys": self.norm_obs_keys}

    def load_wrapper_state(self, state: Mapping[str, Any]) -> None:
        self.norm_obs_keys = state["keys"]
        self.obs_rms, self._coming = self._new_statistics(), None
        for part, saved in zip(self._parts(), state["statistics"], strict=True):
            part.load_state(saved)


def wrapped_from(
    tree: Mapping[str, Any], kind: type[EvolvableAlgorithm], path: str | Path, *place: Any
) -> AgentWrapper:
    """Load wrapper and agent from a file in which `kind.load` found a wrapped agent.

    Raises:
        RunError: an agent of another algorithm, or an unknown wrapper class.
    """
    inner = str(_innermost(tree)["class"])
    if inner != kind.__name__:
        actual = described(tree)
        raise RunError(f"{path} holds a {actual}, this is {kind.__name__}.load. fix: {inner}.load(path)")
    return _class_named(tree, path)._of(tree, kind, path, *place)


def described(tree: Mapping[str, Any]) -> str:
    """Return the classes of the wrappers and the agent in a state, outermost first."""
    inside = f"({described(tree['agent'])})" if "wrapper" in tree else ""
    return f"{tree.get('class')}{inside}"


def _innermost(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the agent's part of the state of a wrapped agent."""
    return _innermost(tree["agent"]) if "wrapper" in tree else tree


def _class_named(tree: Mapping[str, Any], path: str | Path) -> type[AgentWrapper]:
    """Return the wrapper class that a state names."""
    name = str(tree["class"])
    kinds = [AgentWrapper]
    for kind in kinds:
        kinds += kind.__subclasses__()
    classes = {kind.__name__: kind for kind in kinds}
    if name not in classes:
        raise RunError(f"{path} holds a {name}, which is not defined here. fix: import the module that defines it.")
    return classes[name]


def _mapped(change: Callable[[RunningMeanStd, Any], Any], statistics: Statistics, obs: Any) -> Any:
    """Apply `change` to every part of observations that has statistics; the other parts are unchanged."""
    if isinstance(statistics, tuple) and isinstance(obs, Mapping):  # replay names the parts of a tuple
        statistics = trees.untuple(statistics)
    if isinstance(statistics, dict):
        return {key: _mapped(change, part, obs[key]) for key, part in statistics.items()}
    if isinstance(statistics, tuple):
        return tuple(_mapped(change, *pair) for pair in zip(statistics, obs, strict=True))
    return obs if statistics is None else change(statistics, obs)


def _count(statistics: Statistics, obs: Any, present: Any = None) -> None:
    """Count observations; rows [E] bool that are not `present`, or not finite, are skipped."""

    def count(running: RunningMeanStd, values: Any) -> None:
        rows = _array(values).reshape(-1, *running.mean.shape)
        if present is not None:
            is_finite = np.isfinite(rows.reshape(len(rows), -1)).all(1) if rows.dtype.kind == "f" else True
            rows = rows[np.asarray(_array(present), bool).reshape(-1) & is_finite]
        running.update(rows)

    _mapped(count, statistics, obs)


def _normalised(statistics: Statistics, obs: Any) -> Any:
    def normalise(running: RunningMeanStd, values: Any) -> Any:
        scaled = running.normalise(_array(values))
        return torch.from_numpy(scaled) if isinstance(values, torch.Tensor) else scaled

    return _mapped(normalise, statistics, obs)


def _of_team(statistics: Mapping[str, Statistics], obs: Any) -> Any:
    """Normalise observations by agent, in the format of lanes, of vectors and memories, or of plain mappings."""
    if AGENTS in obs and PRESENT in obs:
        return {**obs, AGENTS: _of_team(statistics, obs[AGENTS])}

    def by_agent(rows: Any) -> dict[str, Any]:
        return {a: x if x is None else _normalised(statistics.get(a), x) for a, x in rows.items()}

    if not isinstance(obs, TeamObservations):
        return by_agent(obs)
    final = None if obs.final is None else by_agent(obs.final)
    return TeamObservations(by_agent(obs), obs.present, final, obs.final_present, obs.acted, obs.state)


def _array(obs: Any) -> np.ndarray:
    return obs.numpy(force=True) if isinstance(obs, torch.Tensor) else np.asarray(obs)


# --- queries through wrappers ----------------------------------------------------------------------------------------


unwrapped = foreign.bare
"""The agent inside all wrappers, or the agent itself."""


def name_with_wrappers(agent: Any) -> str:
    """Return the class name of an agent inside those of its wrappers: "RSNorm(IPPO)"."""
    name = type(agent).__name__
    return f"{name}({name_with_wrappers(agent.agent)})" if isinstance(agent, AgentWrapper) else name


def is_team(agent: Any) -> bool:
    """Whether the agent inside all wrappers is a multi-agent algorithm."""
    return hasattr(unwrapped(agent), "agent_ids")


def overrides(agent: Any, *names: str) -> str | None:
    """Return the first of these methods that the class of the agent, or of a wrapper around it, overrides."""
    name = foreign.overridden(type(agent), *names)
    return overrides(agent.agent, *names) if name is None and isinstance(agent, AgentWrapper) else name


def overrides_learn(agent: Any) -> bool:
    """Whether the agent, or a wrapper around it, overrides the `learn` of this package."""
    kind, inner = type(agent), unwrapped(agent)
    overridden = kind.learn is not getattr(kind, "published_learn", None)
    return overridden or (inner is not agent and overrides_learn(inner))


def is_on_policy(agent: Any) -> bool:
    """Whether the agent is on-policy; a user's agent is if it has `gae_lambda`."""
    inner = unwrapped(agent)
    declared = getattr(getattr(inner, "experience", None), "on_policy", False)
    return bool(declared or getattr(inner, "is_on_policy", False)) or hasattr(inner, "gae_lambda")
