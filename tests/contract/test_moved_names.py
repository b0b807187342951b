"""Names of earlier published versions: each works with one DeprecationWarning, or is an error that says the new one."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces

from agilerl.algorithms import DQN, MADDPG
from agilerl.components import ReplayBuffer
from agilerl.core.moved import MOVED, REPLACED
from agilerl.errors import AlgorithmError
from agilerl.utils.minari_utils import load_minari_dataset, minari_to_agile_buffer, minari_to_agile_dataset
from agilerl.wrappers.pettingzoo_wrappers import PettingZooAutoResetParallelWrapper

MOVES = [(module, name, new) for module, names in MOVED.items() for name, new in names.items()]
GONE = [(module, name, new) for module, names in REPLACED.items() for name, (new, _) in names.items()]


def at(place: str) -> Any:
    home, _, name = place.rpartition(".")
    return getattr(importlib.import_module(home), name)


@pytest.mark.parametrize(("module", "name", "new"), MOVES, ids=lambda x: x.rpartition(".")[2])
def test_a_moved_name_is_what_it_was_and_says_where_it_is(module: str, name: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"is now {new}") as caught:
        found = getattr(importlib.import_module(module), name)
    assert found is at(new)
    assert len(caught) == 1


@pytest.mark.parametrize(("module", "name", "new"), GONE, ids=lambda x: x.rpartition(".")[2])
def test_a_replaced_name_is_an_import_error_that_says_the_new_one(module: str, name: str, new: str) -> None:
    with pytest.raises(ImportError, match=f"is now {new}"):
        exec(f"from {module} import {name}")
    assert callable(at(new))


def test_modules_of_old_paths_have_no_other_names() -> None:
    for module in {**MOVED, **REPLACED}:
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = importlib.import_module(module).nothing


def test_other_names_of_earlier_versions() -> None:
    assert at("agilerl.wrappers.utils.RunningMeanStd") is at("agilerl.components.running.RunningMeanStd")
    with pytest.warns(DeprecationWarning, match="create_population"):
        make = at("agilerl.utils.utils.initialPopulation")
    with pytest.warns(DeprecationWarning, match="old interface"):
        population = make(algo="DQN", state_dim=(4,), action_dim=2, one_hot=False, net_config={}, INIT_HP={"LR": 0.5},
                          population_size=2)  # fmt: skip
    assert [agent.lr for agent in population] == [0.5, 0.5]
    assert population[0].observation_space.shape == (4,)


def test_sizes_in_place_of_spaces_are_named() -> None:
    with pytest.raises(AlgorithmError, match=r"state_dim is now observation_space, action_dim is now action_space"):
        DQN(state_dim=(4,), action_dim=2, one_hot=False)
    says = "MADDPG takes spaces in place of sizes: state_dims is now observation_spaces, "
    says += "action_dims is now action_spaces, one_hot is now observation_space (a Discrete is one-hot encoded), "
    with pytest.raises(
        AlgorithmError,
        match=re.escape(f"{says}n_agents is now agent_ids. fix: MADDPG(observation_spaces, action_spaces, ...)."),
    ):
        MADDPG(state_dims=[(4,)], action_dims=[2], one_hot=False, n_agents=1)


# --- wrapper of parallel environments --------------------------------------------------------------------------------


class Countdown:
    """Two agents; the first one is done after one step, the second one after two."""

    metadata: ClassVar[dict[str, Any]] = {"name": "countdown"}
    possible_agents: ClassVar[list[str]] = ["a", "b"]

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.time = self.episodes = 0
        self.unwrapped = self

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 9, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def state(self) -> int:
        return 10 * self.episodes + self.time

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.time, self.episodes, self.agents = 0, self.episodes + 1, ["a", "b"]
        return dict.fromkeys(self.agents, self.time), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self.time += 1
        there, self.agents = self.agents, ["b"] if self.time == 1 else []
        ended = {agent: agent == "a" or self.time == 2 for agent in there}
        return dict.fromkeys(there, self.time), dict.fromkeys(there, 1.0), ended, dict.fromkeys(there, False), {}


def test_a_parallel_environment_resets_once_all_agents_are_done() -> None:
    env = PettingZooAutoResetParallelWrapper(Countdown())
    obs, _ = env.reset(seed=1)
    assert (obs, env.agents, env.num_agents, env.max_num_agents) == ({"a": 0, "b": 0}, ["a", "b"], 2, 2)
    obs, _, terminated, _, _ = env.step({"a": 0, "b": 0})
    assert (obs, terminated, env.agents, env.state) == ({"a": 1, "b": 1}, {"a": True, "b": False}, ["b"], 11)
    obs, reward, terminated, _, _ = env.step({"b": 0})
    assert (reward, terminated) == ({"b": 1.0}, {"b": True})
    assert (obs, env.agents, env.state) == ({"a": 0, "b": 0}, ["a", "b"], 20)  # the next episode's first ones


# --- data sets of Minari ---------------------------------------------------------------------------------------------


class Store:
    """Two episodes of two steps, as Minari gives them; the second one was cut off."""

    def iterate_episodes(self) -> Iterator[Any]:
        for number, cut in enumerate((False, True)):
            yield SimpleNamespace(
                observations=np.arange(3, dtype=np.float32)[:, None] + 10 * number,
                actions=np.array([0, 1]),
                rewards=np.array([1.0, 2.0]),
                terminations=np.array([False, not cut]),
                truncations=np.array([False, cut]),
            )


class Process:
    """An accelerator whose main process goes first."""

    def __init__(self) -> None:
        self.entered = 0

    def main_process_first(self) -> Any:
        self.entered += 1
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *error: Any) -> None: ...


def test_minari_data_as_a_data_set_arrays_and_a_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    minari, asked = pytest.importorskip("minari"), []
    store = Store()
    monkeypatch.setattr(minari, "load_dataset", lambda name, download: asked.append((name, download)) or store)
    process = Process()
    assert load_minari_dataset("a/b-v0", process, remote=True) is store
    assert (asked, process.entered) == ([("a/b-v0", True)], 1)
    data = minari_to_agile_dataset("a/b-v0")
    assert data["observations"][:, 0].tolist() == [0, 1, 10, 11]
    assert data["next_observations"][:, 0].tolist() == [1, 2, 11, 12]
    assert data["terminals"].tolist() == [False, True, False, False]
    assert data["timeouts"].tolist() == [False, False, False, True]
    assert (data["actions"].tolist(), data["rewards"].tolist()) == ([0, 1, 0, 1], [1, 2, 1, 2])
    memory = minari_to_agile_buffer("a/b-v0", ReplayBuffer(max_size=10), process)
    rows = memory.gather(memory.in_order())
    assert (len(memory), process.entered) == (4, 2)
    assert rows["obs"][:, 0].tolist() == [0, 1, 10, 11]
    assert rows["done"].reshape(-1).tolist() == [0, 1, 0, 0]
    small = minari_to_agile_buffer("a/b-v0", ReplayBuffer(max_size=3))
    assert small.gather(small.in_order())["obs"][:, 0].tolist() == [1, 10, 11]
