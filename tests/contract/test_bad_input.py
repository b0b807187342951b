"""Every mistake that newcomers make gives a named error with a fix, or one warning; none is silent."""

from __future__ import annotations

import csv
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import agilerl
from agilerl import errors
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.algorithms.dqn import DQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.errors import (
    AgileRLError,
    AgileRLWarning,
    AlgorithmError,
    ArgumentError,
    ConfigError,
    EnvError,
    NotAvailableYetError,
    RegistryError,
    RunError,
    ShapeError,
    UnknownAlgorithmError,
)
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import create_population, make_vect_envs

OBS, ACTIONS = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2)
NET = {"encoder_config": {"hidden_size": [8]}, "latent_dim": 8}


def population(algo: str = "DQN", **options: Any) -> list[Any]:
    return create_population(algo, **{"observation_space": OBS, "action_space": ACTIONS, "seed": 1, **options})


def learning_rate(name: str) -> HyperparameterConfig:
    return HyperparameterConfig(**{name: RLParameter(1e-4, 1e-2)})


def run(pop: Any = None, env: Any = None, memory: Any = 0, **options: Any) -> Any:
    made = make_vect_envs("CartPole-v1", num_envs=2) if env is None else env
    options = {"max_steps": 20, "evo_steps": 20, "eval_steps": 5, "verbose": False, "seed": 1, **options}
    memory = ReplayBuffer(100) if memory == 0 else memory
    return train_off_policy(made, "CartPole-v1", pop=population() if pop is None else pop, memory=memory, **options)


def batch(width: int) -> dict[str, torch.Tensor]:
    return {"obs": torch.zeros(3, width), "next_obs": torch.zeros(3, width), "reward": torch.zeros(3, 1),
            "action": torch.zeros(3, 1), "done": torch.zeros(3, 1)}  # fmt: skip


# (what the user did, the exact type, words in the message)
MISTAKES: dict[str, tuple[Callable[[], Any], type[AgileRLError], list[str]]] = {
    "unknown algorithm": (
        lambda: population("DQNN"),
        UnknownAlgorithmError,
        ["unknown algorithm 'DQNN'", "Did you mean 'DQN'"],
    ),
    "unknown algorithm to train": (
        lambda: agilerl.train("CartPole-v1", "DQNN", out=None),
        UnknownAlgorithmError,
        ["unknown algorithm 'DQNN'", "Did you mean 'DQN'"],
    ),
    "a bandit in an environment of one observation": (
        lambda: agilerl.train("CartPole-v1", "neural-ucb", out=None),
        AlgorithmError,
        ["shows Box(4,), and bandits read the contexts of all 2 arms", "fix: an id such as bandit/iris"],
    ),
    "unknown version of an environment": (
        lambda: make_vect_envs("CartPole-v9"),
        EnvError,
        ["CartPole", "v9", "`v0`, `v1`", "fix:"],
    ),
    "unknown environment": (lambda: make_vect_envs("Cartpole-v1"), EnvError, ["Did you mean 'CartPole-v1'", "fix:"]),
    "unknown environment to train": (
        lambda: agilerl.train("Cartpole-v1", out=None),
        EnvError,
        ["Cartpole", "CartPole", "fix:"],
    ),
    "neither name nor factory": (
        make_vect_envs,
        EnvError,
        ["Either env_name or make_env must be provided", "fix: make_vect_envs("],
    ),
    "encoder_config typo": (
        lambda: population(net_config={"encoder_config": {"hiden_size": [8]}}),
        ConfigError,
        ["encoder_config: 'hiden_size'", "Did you mean 'hidden_size'"],
    ),
    "head_config typo": (
        lambda: population(net_config={"head_config": {"hidden_sise": [8]}}),
        ConfigError,
        ["head_config: 'hidden_sise'", "Did you mean 'hidden_size'"],
    ),
    "encoder_conf": (
        lambda: population(net_config={"encoder_conf": {"hidden_size": [8]}}),
        ConfigError,
        ["net_config key 'encoder_conf'", "Did you mean 'encoder_config'"],
    ),
    "net_config that is none": (
        lambda: population(net_config=[8, 8]),
        ConfigError,
        ["net_config must be a mapping", "fix:"],
    ),
    "activation in another case": (
        lambda: population(net_config={"encoder_config": {"activation": "Relu"}}),
        ConfigError,
        ["unknown activation 'Relu'", "Did you mean 'ReLU'"],
    ),
    "unknown activation for mutation": (
        lambda: Mutations(0, 0, 0, 0, 1, 0, activation_selection=["Relu"]),
        ConfigError,
        ["unknown activation 'Relu'", "Did you mean 'ReLU'"],
    ),
    "DQN on Box actions": (
        lambda: population(action_space=OBS),
        AlgorithmError,
        [
            "DQN needs Discrete or MultiDiscrete actions; got Box",
            "fix: use an environment with Discrete or MultiDiscrete",
            "DDPG, PPO, SAC, TD3, TQC",
        ],
    ),
    "DQN on an environment with Box actions": (
        lambda: agilerl.train("Pendulum-v1", "DQN", out=None, verbose=False),
        AlgorithmError,
        [
            "Pendulum-v1: DQN needs Discrete or MultiDiscrete actions",
            "fix: use an environment with Discrete or MultiDiscrete",
        ],
    ),
    "a shape instead of a space": (
        lambda: DQN((4,), 2),  # type: ignore[arg-type]
        AlgorithmError,
        ["observation_space must be a gymnasium space; got tuple", "fix: pass env.single_observation_space"],
    ),
    "no spaces": (lambda: create_population("DQN"), ConfigError, ["observation_space and action_space", "fix:"]),
    "no environment": (lambda: run(env="CartPole-v1"), EnvError, ["reset() and step()", "got str", "fix: pass gymn"]),
    "memory=None": (lambda: run(memory=None), AlgorithmError, ["memory=None", "fix: ReplayBuffer(max_size=100_000)"]),
    "an empty population": (lambda: run([]), AlgorithmError, ["population is empty", "fix: create_population("]),
    "hp_config naming a missing attribute": (
        lambda: population(hp_config=learning_rate("learning_rate")),
        RegistryError,
        ["hp_config names 'learning_rate'", "fix: use one of", "'lr'"],
    ),
    "the same, on an agent made by hand": (
        lambda: run([DQN(OBS, ACTIONS, hp_config=learning_rate("learning_rate"))]),
        RegistryError,
        ["hp_config names 'learning_rate'", "fix: use one of", "'lr'"],
    ),
    "tournament for another population": (
        lambda: run(tournament=TournamentSelection(2, True, 6), mutation=Mutations(1, 0, 0, 0, 0, 0)),
        ConfigError,
        [
            "tournament.population_size is 6, but the population has 1",
            "fix: TournamentSelection(..., population_size=1)",
        ],
    ),
    "observations of another shape": (
        lambda: population()[0].get_action(np.zeros((2, 7))),
        ShapeError,
        ["shape (2, 7)", "built for (4,)", "fix:"],
    ),
    "a batch of another shape": (
        lambda: population()[0].learn(batch(7)),
        ShapeError,
        ["shape (3, 7)", "built for (4,)", "fix:"],
    ),
    "no batch": (lambda: population()[0].learn(None), ShapeError, ["NoneType", "fix: agent.learn(memory.sample("]),
    "agents for other observations": (
        lambda: run(population(observation_space=spaces.Box(-1, 1, (7,)))),
        ShapeError,
        ["built for the observation_space", "CartPole-v1 has", "fix: create_population("],
    ),
    "agents for other actions": (
        lambda: run(population(action_space=spaces.Discrete(3))),
        ShapeError,
        ["built for the action_space Discrete(3)", "CartPole-v1 has Discrete(2)", "fix: create_population("],
    ),
    "reading a torch pickle": (
        lambda: population()[0].load_checkpoint("pickle.pt"),
        RunError,
        ["pickle.pt is a pickle", "never reads pickles", "fix:"],
    ),
    "loading a torch pickle": (lambda: DQN.load("pickle.pt"), RunError, ["pickle.pt is a pickle", "fix:"]),
    "a checkpoint that is not there": (lambda: DQN.load("none.pt"), RunError, ["no checkpoint at none.pt", "fix:"]),
    "an unknown learner": (
        lambda: run(learner="fusd"),
        ConfigError,
        ["learner must be 'auto', 'fused' or 'sequential'; got 'fusd'", "fix: learner='fused'"],
    ),
    "steps below one": (
        lambda: run(evo_steps=0),
        ConfigError,
        ["evo_steps must be an integer of at least 1; got 0"],
    ),
    "INIT_HP out of range": (
        lambda: population(INIT_HP={"LR": -1.0}),
        AlgorithmError,
        ["lr must be above 0; got -1.0", "fix:"],
    ),
    "population of none": (lambda: population(population_size=0), ConfigError, ["population_size", "got 0"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_is_a_named_error_with_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"weights": torch.zeros(3)}, "pickle.pt")
    before = sorted(p.name for p in tmp_path.iterdir())
    do, kind, words = MISTAKES[name]
    with pytest.raises(AgileRLError) as caught:
        do()
    assert type(caught.value) is kind
    message = str(caught.value)
    for word in words:
        assert word in message
    assert len(message.splitlines()) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == before, "nothing was written"


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [(ConfigError, ValueError), (AlgorithmError, ValueError), (ArgumentError, TypeError),
     (EnvError, ValueError), (ShapeError, ValueError),
     (RunError, ValueError), (RegistryError, AttributeError), (NotAvailableYetError, NotImplementedError)],
)  # fmt: skip
def test_published_exception_types_still_catch_ours(kind: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(kind, AgileRLError)
    assert issubclass(kind, builtin)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("make", [
    lambda: population(device="cuda"), lambda: DQN(OBS, ACTIONS, device="cuda:0"),
    lambda: agilerl.train("CartPole-v1", device="cuda", out=None),
])  # fmt: skip
def test_cuda_without_a_gpu_names_the_fix(make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError, match=r"cuda.* needs .*CUDA.* fix: "):
        make()


@pytest.mark.parametrize("module", ["box2d", "mujoco"])
def test_a_missing_simulator_names_the_extra(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = f"gymnasium.envs.{module}"
    for name in [m for m in sys.modules if m.startswith(root)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "Box2D", None)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    env_id = {"box2d": "LunarLander-v3", "mujoco": "HalfCheetah-v5"}[module]
    with pytest.raises(EnvError) as caught:
        make_vect_envs(env_id, num_envs=2)
    assert env_id in str(caught.value)
    assert f'fix: pip install "agilerl[{module}]"' in str(caught.value)


# --- warnings, and what is simply accepted


def test_an_init_hp_typo_warns_with_the_nearest_key_and_changes_nothing() -> None:
    with pytest.warns(AgileRLWarning) as caught:
        (agent,) = population(INIT_HP={"LERANING_RATE": 0.5})
    (warning,) = caught
    assert "INIT_HP key 'LERANING_RATE' is not known" in str(warning.message)
    assert "Did you mean 'LEARNING_RATE'?" in str(warning.message)
    assert warning.filename == __file__
    assert agent.lr == 1e-4


def test_lower_case_keys_and_other_spellings_are_accepted_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for keys in (
            {"lr": 0.5, "batch_size": 7},
            {"LR": 0.5, "BATCH_SIZE": 7},
            {"learning_rate": 0.5, "Batch_Size": 7},
        ):
            (agent,) = population("d-q n", INIT_HP=keys)
            assert (agent.lr, agent.batch_size) == (0.5, 7)


def test_the_flat_net_config_is_accepted_with_one_deprecation_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_warned", set())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agents = [population(net_config={"arch": "mlp", "hidden_size": [24, 24]})[0] for _ in range(2)]
    assert [a.actor.encoder.hidden_size for a in agents] == [[24, 24]] * 2
    assert [w.category for w in caught] == [DeprecationWarning]


def test_a_single_environment_is_accepted_by_training_and_by_the_short_call() -> None:
    env = gym.make("CartPole-v1")
    _, fitness = run(env=env)
    assert np.shape(fitness) == (1, 1)
    result = agilerl.train(env, population=2, steps=100, out=None, verbose=False, **{"training.evo_steps": 50})
    assert len(result.history) == 2
    env.close()


def test_saving_into_a_missing_folder_makes_it(tmp_path: Path) -> None:
    (agent,) = population()
    agent.save_checkpoint(tmp_path / "a" / "b" / "agent.pt")
    assert DQN.load(tmp_path / "a" / "b" / "agent.pt").lr == agent.lr
    run(save_elite=True, elite_path=str(tmp_path / "c" / "elite.pt"))
    assert (tmp_path / "c" / "elite.pt").is_file()


# --- a run that fails in the middle


class Breaks(gym.Env[np.ndarray, int]):
    """CartPole's spaces; the process as a whole makes so many steps, then the simulator fails."""

    observation_space, action_space = OBS, ACTIONS
    left = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.time = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        Breaks.left -= 1
        if Breaks.left < 0:
            raise OSError("the simulator went away")
        self.time += 1
        return np.zeros(4, np.float32), 1.0, self.time >= 10, False, {}


@pytest.mark.parametrize("steps", [50, 600])
def test_a_run_that_fails_in_the_middle_keeps_its_files_and_says_failed(steps: int, tmp_path: Path) -> None:
    Breaks.left = steps
    settings = {"environment": {"name": "Breaks", "num_envs": 4}, "algorithm": "DQN",
                "training": {"evo_steps": 40, "eval_episodes": 4, "eval_members": None,
                             "target_score": None}}  # fmt: skip
    with pytest.raises(EnvError, match=r"Breaks, lane \d: step\(\) raised OSError: the simulator went away.*fix:"):
        agilerl.train(Breaks, config=settings, population=2, steps=4000, seed=1, out=tmp_path, verbose=False)
    (path,) = (tmp_path / "Breaks").iterdir()
    facts = json.loads((path / "run.json").read_text())
    assert facts["status"] == "failed"
    assert "raised OSError: the simulator went away" in facts["error"]
    assert facts["learner"] == "fused"
    births = [json.loads(line) for line in (path / "evolution.jsonl").read_text().splitlines()]
    assert [b["kind"] for b in births[:2]] == ["founder", "founder"]
    with open(path / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    # Random play takes 20 episodes of 10 steps; a generation 2 members * 40 steps, and 2 * 4 episodes to evaluate: 160
    # in all, more or less.
    assert len(rows) == (0 if steps == 50 else 2 * ((steps - 200) // 160))
    assert all(float(row["fitness"]) == 10.0 for row in rows)
    if steps == 600:
        kept = agilerl.load(path)
        assert kept.best.get_action(np.zeros(4, np.float32)).shape == (1,)
        assert kept.result == {}
    else:
        with pytest.raises(RunError, match=r"holds no policy \(status: failed\). fix:"):
            agilerl.load(path)
    assert not [p for p in path.rglob("*") if p.name.endswith(".tmp")]
