"""The training functions with `resume=folder`: a script that is killed and run again ends as if it had run once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from faulty_runs import CASES, StopAfter, newest, train

import agilerl
from agilerl.algorithms import DQN
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.components.replay_buffer import MultiStepReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from agilerl.core.checkpoint import digest_tree
from agilerl.errors import AgileRLWarning, MutationError, RunError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.rollouts.on_policy import collect_rollouts
from agilerl.training.train_off_policy import train_off_policy
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import create_population, make_vect_envs
from agilerl.wrappers.agent import RSNorm

NETWORK = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}}


class Pictures(gym.Env[np.ndarray, np.int64]):
    """A bright pixel that moves left or right on a dark line of an image; it is to stay in the middle."""

    observation_space = gym.spaces.Box(0, 255, (1, 10, 10), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.age = int(self.np_random.integers(10)), 0
        return self.see(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.at, self.age = int(np.clip(self.at + 2 * int(action) - 1, 0, 9)), self.age + 1
        return self.see(), -abs(self.at - 4.5), False, self.age >= 12, {}

    def see(self) -> np.ndarray:
        image = np.zeros((1, 10, 10), np.uint8)
        image[0, self.age % 10, self.at] = 255
        return image


class OwnLearner(DQN):
    """Brings its own `learn`, so that it trains by itself, outside of the row engine."""

    def learn(self, experiences: Any, *args: Any, **kwargs: Any) -> Any:
        self.seen = getattr(self, "seen", 0) + 1
        return super().learn_from(experiences)


def population(env: Any, network: dict[str, Any] | None = None, wrap: Any = None, kind: str = "DQN") -> list[Any]:
    limits = HyperparameterConfig(lr=RLParameter(1e-4, 1e-2), batch_size=RLParameter(8, 64, dtype=int))
    agents = create_population(
        kind,
        network or NETWORK,
        {"BATCH_SIZE": 16, "LEARN_STEP": 4},
        observation_space=env.single_observation_space,
        action_space=env.single_action_space,
        population_size=3,
        hp_config=limits,
        seed=3,
    )
    return [wrap(agent) for agent in agents] if wrap else agents


def own(env: Any) -> list[Any]:
    spaces = env.single_observation_space, env.single_action_space
    return [OwnLearner(*spaces, index=i, batch_size=16, learn_step=4, net_config=NETWORK, seed=i) for i in range(3)]


def cart_pole() -> Any:
    return make_vect_envs("CartPole-v1", num_envs=4)


def pictures() -> Any:
    return make_vect_envs(make_env=Pictures, num_envs=4)


CNN = {
    "encoder_config": {"channel_size": [4], "kernel_size": [3], "stride_size": [2]},
    "head_config": {"hidden_size": [8]},
}
# name -> (environment, population, memory, n-step memory, further arguments)
SCRIPTS: dict[str, tuple[Callable[[], Any], Callable[[Any], list[Any]], Callable[[], Any], Any, dict[str, Any]]] = {
    "uniform": (cart_pole, population, lambda: ReplayBuffer(500), None, {}),
    "one after another": (cart_pole, population, lambda: ReplayBuffer(500), None, {"lockstep": False}),
    "plain torch": (cart_pole, population, lambda: ReplayBuffer(500), None, {"learner": "sequential"}),
    "prioritised beside n-step": (
        cart_pole, population, lambda: PrioritizedReplayBuffer(500), lambda: MultiStepReplayBuffer(500, n_step=3),
        {"per": True, "n_step": True},
    ),
    "images kept once": (pictures, lambda env: population(env, CNN), lambda: ReplayBuffer(400), None, {}),
    "normalised": (cart_pole, lambda env: population(env, wrap=RSNorm), lambda: ReplayBuffer(500), None, {}),
    "an algorithm with a learn of its own": (cart_pole, own, lambda: ReplayBuffer(500), None, {}),
}  # fmt: skip


def script(name: str, folder: Path, *sinks: Any, **changes: Any) -> tuple[str, Any]:
    """The whole script; (digest of all that it ends with, its fitness history)."""
    make_env, make_population, make_memory, make_n_step, options = SCRIPTS[name]
    env, memory, n_step = make_env(), make_memory(), make_n_step and make_n_step()
    settings = {"max_steps": 384, "evo_steps": 96, "verbose": False, "seed": 5, "learning_delay": 60}
    agents, history = train_off_policy(
        env,
        "Script",
        pop=make_population(env),
        memory=memory,
        n_step_memory=n_step,
        tournament=TournamentSelection(2, True, 3, 1, seed=1),
        mutation=Mutations(0.1, 0.3, 0.2, 0.3, 0.1, 0.3, rand_seed=1),
        sinks=sinks,
        resume=folder,
        **{**settings, **options, **changes},
    )
    rows = {name: m.gather(np.arange(len(m))) for name, m in (("memory", memory), ("n", n_step)) if m is not None}
    return digest_tree({"agents": [agent.run_state() for agent in agents], "rows": rows, "history": history}), history


FAST = ("uniform", "prioritised beside n-step", "images kept once")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in SCRIPTS]
)
def test_a_script_that_is_stopped_twice_ends_as_one_that_never_was(name: str, tmp_path: Path) -> None:
    whole, history = script(name, tmp_path / "whole")
    for generations in (1, 1):
        with pytest.raises(KeyboardInterrupt):
            script(name, tmp_path / "stopped", StopAfter(generations))
    assert newest(tmp_path / "stopped").number == 2
    assert script(name, tmp_path / "stopped") == (whole, history)
    assert script(name, tmp_path / "stopped") == (whole, history), "a finished script only restores"


def on_policy_script(folder: Path, *sinks: Any, **changes: Any) -> tuple[str, Any]:
    """As `script`, with rollouts in place of a replay."""
    env = cart_pole()
    limits = HyperparameterConfig(lr=RLParameter(1e-4, 1e-2), batch_size=RLParameter(8, 64, dtype=int))
    agents = create_population(
        "PPO", NETWORK, {"BATCH_SIZE": 16, "LEARN_STEP": 32}, observation_space=env.single_observation_space,
        action_space=env.single_action_space, population_size=3, num_envs=4, hp_config=limits, seed=3,
    )  # fmt: skip
    agents, history = train_on_policy(
        env,
        "Script",
        pop=agents,
        tournament=TournamentSelection(2, True, 3, 1, seed=1),
        mutation=Mutations(0.1, 0.3, 0.2, 0.3, 0.1, 0.3, rand_seed=1),
        verbose=False,
        seed=5,
        sinks=sinks,
        resume=folder,
        **{"max_steps": 384, "evo_steps": 96, **changes},
    )
    return digest_tree({"agents": [agent.run_state() for agent in agents], "history": history}), history


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"learner": "sequential"}, marks=pytest.mark.slow),
        pytest.param({"collect_rollouts_fn": collect_rollouts}, marks=pytest.mark.slow),
    ],
)
def test_an_on_policy_script_that_is_stopped_twice_ends_as_one_that_never_was(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    whole = on_policy_script(tmp_path / "whole", **changes)
    for generations in (1, 1):
        with pytest.raises(KeyboardInterrupt):
            on_policy_script(tmp_path / "stopped", StopAfter(generations), **changes)
    assert newest(tmp_path / "stopped").number == 2
    assert on_policy_script(tmp_path / "stopped", **changes) == whole


def test_what_does_not_fit_the_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        script("uniform", tmp_path, StopAfter(1))
    with pytest.raises(RunError, match=r"was trained with seed 5; got 6\. fix: seed=5"):
        script("uniform", tmp_path, seed=6)
    with pytest.raises(RunError, match=r"learner 'fused', which is not what there is here .'sequential'"):
        script("uniform", tmp_path, learner="sequential")
    with pytest.warns(AgileRLWarning, match=r"other settings .eps_decay 0.995 -> 0.9.; it will not equal"):
        script("uniform", tmp_path, eps_decay=0.9)


def test_a_folder_of_the_other_kind_is_refused_both_ways(tmp_path: Path) -> None:
    script("uniform", tmp_path / "script", max_steps=96)
    with pytest.raises(RunError, match=r"was written by a script that calls train_off_policy\(resume=\.\.\.\)"):
        agilerl.resume(tmp_path / "script")
    path = train(CASES["DQN"], tmp_path)
    with pytest.raises(RunError, match="is a run of `agilerl train`"):
        script("uniform", path)


def test_without_a_seed_the_run_keeps_its_own(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        script("uniform", tmp_path, StopAfter(1), seed=None)
    torch.manual_seed(int(torch.initial_seed() % 1000) + 1)
    script("uniform", tmp_path, seed=None)
    seeds = {
        json.loads((p / "manifest.json").read_text().split("\n")[0])["run"]["seed"] for p in tmp_path.glob("c*/gen-*")
    }
    assert len(seeds) == 1


def test_a_generator_without_a_state_is_refused_before_the_training(tmp_path: Path) -> None:
    class First:
        def choice(self, options: Any, **rest: Any) -> Any:
            return options[0]

    mutation = Mutations(1, 0, 0, 0, 0, 0, rand_seed=1)
    mutation.rng = First()
    with pytest.raises(MutationError, match=r"mutation.rng is a First, whose state cannot be saved. fix:"):
        mutation.state()
    mutation.rng = np.random.default_rng(4)
    twin = Mutations(1, 0, 0, 0, 0, 0, rand_seed=2)
    twin.load_state(mutation.state())
    assert twin.rng.random() == mutation.rng.random()


def test_what_an_agent_cannot_save_is_said(tmp_path: Path) -> None:
    class Odd:
        pass

    env = cart_pole()
    agents = population(env)
    agents[0].helper = Odd()
    with pytest.warns(AgileRLWarning, match=r"DQN\.helper \(Odd\) is not saved: .* fix: plain data"):
        train_off_policy(
            env, "Script", pop=agents, memory=ReplayBuffer(500), max_steps=40, evo_steps=40, verbose=False, seed=1,
            resume=tmp_path,
        )  # fmt: skip


def test_checkpoint_and_elite_files_are_written_beside_a_resumable_run(tmp_path: Path) -> None:
    script("uniform", tmp_path / "run", checkpoint=96, checkpoint_path=str(tmp_path / "agents"), save_elite=True,
           elite_path=str(tmp_path / "elite.pt"))  # fmt: skip
    assert len(list(tmp_path.glob("agents_0_*.pt"))) == 4
    assert DQN.load(tmp_path / "elite.pt").algo == "DQN"
