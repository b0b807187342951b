"""Evolution never leaves the ranges that algorithms declare, nor batches that a memory can hold: for all algorithms."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pydantic import TypeAdapter, ValidationError

import agilerl
from agilerl.algorithms import available, find_algorithm
from agilerl.algorithms.base.declared import check_mutable, hyperparameters
from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
from agilerl.components.replay_buffer import (
    MultiStepReplayBuffer,
    PrioritizedMultiStepReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from agilerl.config import manifest_from
from agilerl.core.signatures import constructor_arguments
from agilerl.errors import AgileRLWarning, AlgorithmError, ConfigError, RegistryError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.operators import HyperparameterConfig, RLParameter
from agilerl.training.manifest.tasks import task_of
from agilerl.training.published import limit_batches
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs

VALUES = (-2.0, -1.0, -1e-9, 0.0, 1e-9, 0.5, 1.0, 1.0 + 1e-9, 1.5, 2.0, 1e6)
NUMBERS = [(name, key) for name in available() for key, each in hyperparameters(find_algorithm(name)).items()
           if each.is_number]  # fmt: skip
FIXED = {
    ("SAC", "init_temperature"), ("CQL", "init_temperature"), ("RainbowDQN", "n_step"),
    ("TQC", "init_temperature"), ("TQC", "num_quantiles"), ("QRDQN", "num_quantiles"),
    *((name, "action_std_init") for name in ("PPO", "RecurrentPPO", "IPPO", "MAPPO")),
}  # fmt: skip
CASES = [case for case in NUMBERS if case not in FIXED]


def accepts(values: Any, value: float) -> bool:
    """Whether a manifest may name the value: pydantic reads the declaration."""
    try:
        TypeAdapter(values).validate_python(value)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize(("algo", "name"), CASES)
def test_a_range_is_refused_where_the_value_would_be(algo: str, name: str) -> None:
    cls = find_algorithm(algo)
    declared = hyperparameters(cls)[name].values
    is_whole = accepts(declared, 3) and not accepts(declared, 3.5)
    tried = 0
    for low, high in itertools.product(VALUES, VALUES):
        if low > high or (is_whole and not (low.is_integer() and high.is_integer())):
            continue
        fits, tried = accepts(declared, low) and accepts(declared, high), tried + 1
        if fits:
            check_mutable(cls, {name: RLParameter(low, high)})
        else:
            with pytest.raises(AlgorithmError, match=rf"{cls.__name__}: hp_config: the range of {name}: m"):
                check_mutable(cls, {name: RLParameter(low, high)})
    assert tried >= 15


@pytest.mark.parametrize("algo", available())
def test_a_name_that_no_algorithm_has_is_found_at_construction(algo: str) -> None:
    cls = find_algorithm(algo)
    known = next(name for name, each in hyperparameters(cls).items() if each.is_number)
    with pytest.raises(RegistryError, match=rf"hp_config names '{known}s', which is none .* Did you mean '{known}'\?"):
        check_mutable(cls, {f"{known}s": RLParameter(0.1, 0.2)})


@pytest.mark.parametrize(("algo", "name"), sorted(FIXED))
def test_a_number_that_is_read_only_by_the_constructor_is_refused(algo: str, name: str) -> None:
    ranges = {name: {"min": 1, "max": 2}}
    with pytest.raises(AlgorithmError, match=rf"hp_config: the range of {name}: mutations would have no .* fix: leave"):
        check_mutable(find_algorithm(algo), {name: RLParameter(1, 2)})
    for section, key in (("mutation", "rl_hp_selection"), ("evolution", "restart_ranges")):
        with pytest.raises(ConfigError, match=rf"{section}\.{key}\.{name}: mutations would have no effect, because"):
            manifest_from({"algorithm": {"name": algo}, section: {key: ranges}})
    assert name in constructor_arguments(find_algorithm(algo))


BUILDERS = ("base/building.py", "base/policy_value.py", "teams/policies.py")  # called by constructors alone


def reads(tree: ast.AST) -> set[str]:
    """Attributes that are read, and names that are read or followed by their text."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.add(node.attr)
        is_listed = isinstance(node, ast.Call) and ast.unparse(node.func) in ("self._numbers", "follow")
        if is_listed or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "names"):
            found |= {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
    return found


@cache
def reads_of_others() -> set[str]:
    """What sources, engines, and the functions beside the classes of algorithms read of agents."""
    package, found = Path(agilerl.__file__).parent, set[str]()
    for room in ("engine", "collect", "algorithms/base", "algorithms/teams", "language/algorithms"):
        for path in (package / room).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            is_other = room in ("engine", "collect")
            nodes = [node for node in tree.body if is_other or isinstance(node, ast.FunctionDef)]
            if not path.as_posix().endswith(BUILDERS):
                found |= set().union(*map(reads, nodes))
    return found


@cache
def reads_of(cls: type) -> set[str]:
    """What the methods of an algorithm read after its constructor."""
    found = set[str]()
    for parent in cls.__mro__:
        if parent.__module__.startswith("agilerl."):
            tree = ast.parse(textwrap.dedent(inspect.getsource(parent))).body[0]
            assert isinstance(tree, ast.ClassDef)
            for node in tree.body:
                is_constructor = isinstance(node, ast.FunctionDef) and node.name == "__init__"
                followed = [n for n in ast.walk(node) if isinstance(n, ast.Call) and ast.unparse(n.func) == "follow"]
                found |= set().union(*map(reads, followed)) if is_constructor else reads(node)
    return found


@pytest.mark.parametrize("algo", available())
def test_every_mutable_number_is_read_after_the_constructor(algo: str) -> None:
    cls = find_algorithm(algo)
    mutable = {name for other, name in CASES if other == algo}
    assert mutable - reads_of(cls) - reads_of_others() == set()


OBS, CHOICE = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)
TINY = {"net_config": {"latent_dim": 8, "encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}}}


@pytest.mark.parametrize("algo", ["DQN", "PPO", "CQN"])
def test_agents_check_their_ranges_when_they_are_made(algo: str) -> None:
    cls = find_algorithm(algo)
    with pytest.raises(AlgorithmError, match=r"the range of gamma: max must be in \[0, 1\]; got 1\.5\. fix: max=1\."):
        cls(OBS, CHOICE, hp_config=HyperparameterConfig(gamma=RLParameter(0.9, 1.5)), **TINY)
    with pytest.raises(RegistryError, match=r"hp_config names 'gama'.* Did you mean 'gamma'"):
        cls(OBS, CHOICE, hp_config=HyperparameterConfig(gama=RLParameter(0.9, 1.0)), **TINY)
    made = cls(OBS, CHOICE, hp_config=HyperparameterConfig(gamma=RLParameter(0.9, 1.0)), **TINY)
    assert made.hp_config.names() == ["gamma"]


def test_a_class_of_ones_own_may_make_any_attribute() -> None:
    class Curious(find_algorithm("DQN")):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.curiosity = 0.1

    class Bold(find_algorithm("DQN")):  # type: ignore[misc]
        boldness = 0.5

    Curious(OBS, CHOICE, hp_config=HyperparameterConfig(curiosity=RLParameter(0.0, 3.0)), **TINY).check_registry()
    Bold(OBS, CHOICE, hp_config=HyperparameterConfig(boldness=RLParameter(0.0, 3.0)), **TINY).check_registry()
    with pytest.raises(AlgorithmError, match="the range of gamma"):
        Curious(OBS, CHOICE, hp_config=HyperparameterConfig(gamma=RLParameter(-1.0, 1.0)), **TINY)


@pytest.mark.parametrize("section", ["mutation.rl_hp_selection", "evolution.restart_ranges"])
def test_manifests_refuse_ranges_by_their_key(section: str) -> None:
    first, second = section.split(".")
    with pytest.raises(ConfigError, match=rf"{section}\.tau: max must be in \(0, 1\]; got 3"):
        manifest_from({"algorithm": {"name": "DQN"}, first: {second: {"tau": {"min": 0.01, "max": 3}}}})


# -- batches and memories ----------------------------------------------------------------------------------------------

MEMORIES = {
    "uniform": lambda: {"memory": ReplayBuffer(100)},
    "prioritised": lambda: {"memory": PrioritizedReplayBuffer(100)},
    "n steps": lambda: {"memory": MultiStepReplayBuffer(100, n_step=3, gamma=0.99)},
    "n steps beside": lambda: {
        "memory": ReplayBuffer(100), "n_step_memory": MultiStepReplayBuffer(100, n_step=3, gamma=0.99)
    },
    "both": lambda: {"memory": PrioritizedMultiStepReplayBuffer(100, n_step=3, gamma=0.99)},
    "team": lambda: {"memory": MultiAgentReplayBuffer(100, agent_ids=["a", "b"])},
}  # fmt: skip


def dqn(batch_size: int = 8, high: float = 1024) -> Any:
    ranges = HyperparameterConfig(batch_size=RLParameter(8, high, grow_factor=4.0, dtype=int))
    return find_algorithm("DQN")(OBS, CHOICE, hp_config=ranges, batch_size=batch_size, **TINY)


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_range_of_batches_ends_at_the_size_of_the_memory(memory: str) -> None:
    asked, agents = {**MEMORIES[memory](), "mutation": None}, [dqn(), dqn()]
    with pytest.warns(AgileRLWarning, match="batch_size may mutate up to 1024 and the memory holds 100 transitions"):
        limit_batches("train_off_policy", agents, asked)
    assert [agent.hp_config["batch_size"].max for agent in agents] == [100, 100]
    rng = np.random.default_rng(0)
    for _ in range(8):
        parameter = agents[0].hp_config["batch_size"]
        parameter.value = agents[0].batch_size
        agents[0].batch_size = parameter.mutate(rng)
        assert 8 <= agents[0].batch_size <= 100
    with pytest.raises(ConfigError, match="agent 0 has batch_size=128 and its memory holds 100 transitions"):
        limit_batches("train_off_policy", [dqn(128)], asked)


def test_of_two_processes_each_holds_its_share(recwarn: pytest.WarningsRecorder) -> None:
    asked = {"memory": ReplayBuffer(100), "mutation": None}
    limit_batches("train_off_policy", [dqn(128, 200)], asked, ranks=2)
    limit_batches("train_offline", [dqn(128)], asked)  # drawn with replacement
    limit_batches("train_off_policy", [dqn(high=100)], asked)
    limit_batches("train_off_policy", [SimpleNamespace(index=0, batch_size=8)], {"memory": [], "mutation": None})
    assert not recwarn.list


def test_bounds_of_the_older_dialect_end_there_too() -> None:
    mutation = Mutations(0, 0, 0, 0, 0, 1.0, rl_hp_selection=["batch_size"], rand_seed=0)
    agent = find_algorithm("DQN")(OBS, CHOICE, batch_size=8, **TINY)
    with pytest.warns(AgileRLWarning, match="up to 1024"):
        limit_batches("train_off_policy", [agent], {"memory": ReplayBuffer(100), "mutation": mutation})
    assert mutation.selection.config_for(agent, None)["batch_size"].max == 100


def test_the_range_of_a_manifest_ends_there_too() -> None:
    given = {
        "algorithm": {"name": "DQN", "batch_size": 32}, "environment": {"name": "CartPole-v1"},
        "replay_buffer": {"max_size": 100},
        "mutation": {"rl_hp_selection": {"batch_size": {"min": 8, "max": 1024}}},
    }  # fmt: skip
    with pytest.warns(AgileRLWarning, match=r"mutation\.rl_hp_selection\.batch_size\.max is 1024 and the memory holds"):
        resolved = task_of(manifest_from(given)).resolve(None)
    assert resolved.mutation.rl_hp_selection["batch_size"].max == 100


# -- nothing left to do ------------------------------------------------------------------------------------------------


def trained(agents: list[Any], env: Any, **more: Any) -> Any:
    given = {"max_steps": 64, "evo_steps": 32, "eval_steps": 20, "verbose": False, "seed": 0}
    return train_off_policy(env, "CartPole-v1", "DQN", agents, ReplayBuffer(100), **{**given, **more})


def test_a_population_that_has_made_its_steps_says_so_and_keeps_its_fitness() -> None:
    env = make_vect_envs("CartPole-v1", num_envs=2)
    cls = find_algorithm("DQN")
    agents = cls.population(2, env.single_observation_space, env.single_action_space, seed=0, batch_size=8, **TINY)
    agents, fitness = trained(agents, env)
    with pytest.warns(
        AgileRLWarning, match=r"nothing was trained: all members have made their 64 env steps.*max_steps=128"
    ):
        same, again = trained(agents, env)
    assert again == fitness[-1:]
    assert [agent.steps[-1] for agent in same] == [64, 64]
    _, more = trained(agents, env, max_steps=128)
    assert len(more) == 2
    agents[0].steps[-1] = 500
    with pytest.warns(AgileRLWarning, match="nothing was trained: a member has made 500 env steps"):
        trained(agents, env, max_steps=400)
    env.close()


def test_a_resumed_run_that_has_made_its_steps_says_so(tmp_path: Any) -> None:
    given = {"population": 2, "steps": 64, "evo_steps": 32, "num_envs": 2, "learn_step": 16, "eval_episodes": 1}
    run = agilerl.train("CartPole-v1", "PPO", preset=False, out=tmp_path, verbose=False, target_score=None,
                        confirm_episodes=0, evolution=False, **given)  # fmt: skip
    notes: list[str] = []
    sink = SimpleNamespace(
        start=lambda plan, founders: notes.extend(plan.notes), progress=lambda *a: None, generation=lambda r: None,
        message=lambda t: None, close=lambda: None,
    )  # fmt: skip
    agilerl.resume(run.path, verbose=False, sinks=[sink])
    assert any("finished: it has used its budget (64 steps of one member); `agilerl resume" in note for note in notes)
