"""Odd input that used to pass without a word, or as an error of another library, is answered."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import agilerl
from agilerl.algorithms.base.declared import hp
from agilerl.algorithms.core.registry import RLParameter
from agilerl.algorithms.dqn import DQN
from agilerl.algorithms.maddpg import MADDPG
from agilerl.algorithms.td3 import TD3
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.envs.lanes import SyncLanes
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import AgileRLError, AgileRLWarning, AlgorithmError, ConfigError, EnvError, ShapeError
from agilerl.modules.cnn import EvolvableCNN
from agilerl.modules.layers import whole
from agilerl.ranges import Positive
from agilerl.telemetry.callbacks import Callbacks
from agilerl.training.train_off_policy import train_off_policy
from agilerl.wrappers.agent import RSNorm

OBS, ACTIONS = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2)


@pytest.mark.parametrize("make", [
    lambda env: make_vect_envs(make_env=lambda: env, num_envs=2),
    lambda env: make_vect_envs(make_env=lambda: gym.wrappers.TimeLimit(env, 9), num_envs=1).replicate(2),  # type: ignore[attr-defined]
    lambda env: SyncLanes([lambda: env] * 2),
])  # fmt: skip
def test_lanes_need_distinct_environments(make: Any) -> None:
    with pytest.raises(EnvError, match=r"the same object for several lanes.* fix: a function that constructs one"):
        make(gym.make("CartPole-v1"))


class Scored(DQN):
    """An agent with a `test` of its own, which scores the mean observation of a reset."""

    def test(self, env: Any, swap_channels: bool = False, max_steps: int | None = None, loop: int = 1) -> Any:
        return float(np.mean(env.reset(seed=1)[0])) if loop == 1 else super().test(env, max_steps=max_steps, loop=loop)


@pytest.mark.parametrize("make", [gym.make, make_vect_envs])
def test_a_wrapper_calls_the_test_of_the_agents_class_with_its_observations(make: Any) -> None:
    env, agent = make("CartPole-v1"), RSNorm(Scored(OBS, ACTIONS, seed=1))
    agent.obs_rms.update(np.array([[6.0] * 4, [8.0] * 4]))  # mean 7, standard deviation 1
    assert agent.test(env) == pytest.approx(-7, abs=0.1)
    assert agent.test(env, loop=2, max_steps=5) == 5.0


def short(**options: Any) -> Any:
    return agilerl.train(**{"steps": 64, "population": 1, "out": None, "verbose": False, **options})


@pytest.mark.parametrize(("options", "text"), [
    ({"env": "CartPole-v1", "env_id": "Acrobot-v1"}, "env='CartPole-v1' and env_id='Acrobot-v1' contradict"),
    ({"env": "CartPole-v1", "lr": 1e-3, "learning_rate": 1e-2}, "lr and learning_rate are both algorithm.lr. fix"),
    ({"config": {"algorithm": {"name": "DQN"}}}, "environment.name is missing. fix"),
    ({}, "no environment is named. fix"),
])  # fmt: skip
def test_settings_that_contradict_each_other_are_an_error(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        short(**options)


def test_a_configuration_alone_trains_in_its_environment() -> None:
    config = {"environment": {"name": "CartPole-v1"}, "algorithm": {"name": "DQN", "lr": 2e-3}}
    manifest = short(config=config, learning_rate=3e-3, **{"algorithm.lr": 3e-3}).manifest
    assert (manifest.environment.name, manifest.algorithm.lr) == ("CartPole-v1", 3e-3)


def test_a_misspelt_hook_of_a_callback_is_a_warning() -> None:
    class Log(agilerl.Callback):
        def on_generaton(self, record: Any) -> None: ...

        def on_episode(self, record: Any) -> None: ...

    with pytest.warns(AgileRLWarning, match=r"no run calls Log.on_generaton. fix: on_generation") as caught:
        Callbacks([Log()])
    assert len(caught) == 1


class Guess(DQN):
    """An agent whose actions are `guess`, one for each observation."""

    guess: Any = 0

    def get_action(self, obs: Any, epsilon: float = 0.0, action_mask: Any = None) -> Any:
        return None if self.guess is None else np.full(len(obs), self.guess)


class Typo(DQN):
    """An agent whose update names a network that is not there."""

    def update(self, engine: Any, batch: Any) -> Any:
        return engine.network("actr")


class Uncopied(DQN):
    """An agent whose copy is missing."""

    def clone(self, index: int | None = None, wrap: bool = True) -> Any:
        return None


@pytest.mark.parametrize(("kind", "error", "text"), [
    (type("Halves", (Guess,), {"guess": 0.5}), ShapeError, r"Halves.get_action returned .* fix: an array of int64"),
    (type("Nothing", (Guess,), {"guess": None}), ShapeError, r"Nothing.get_action returned None .* fix: an array of"),
    (Typo, AlgorithmError, r"unknown network 'actr'. Did you mean 'actor'\?.* fix: actor"),
    (Uncopied, AlgorithmError, r"Uncopied.clone returned None. fix: return the copy"),
])  # fmt: skip
def test_methods_of_an_agent_that_return_something_else_are_named(kind: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        short(env="CartPole-v1", algo=kind, batch_size=8, learning_delay=8, **{"training.eval_episodes": 1})


class Duck:
    """An agent of no class of the package."""

    algo, batch_size, index = "Duck", 8, 0

    def __init__(self, learn_step: Any = 1, actions: tuple[int, ...] = ()) -> None:
        self.learn_step, self.actions = learn_step, actions
        self.steps, self.scores, self.fitness = [0], list[float](), list[float]()

    def get_action(self, obs: Any) -> Any:
        return np.zeros((len(obs), *self.actions), int)

    def learn(self, experiences: Any) -> float:
        return 0.0

    def test(self, env: Any, swap_channels: bool = False, max_steps: Any = None, loop: int = 1) -> float:
        return 1.0


@pytest.mark.parametrize(("agent", "text"), [
    (Duck(learn_step=0), r"learn_step must be .* got 0. fix: learn_step=1"),
    (Duck(actions=(3,)), r"Duck.get_action returned .* fix: an array of int64, of shape \(2,\)"),
])  # fmt: skip
def test_an_agent_of_no_class_is_told_what_is_wrong(agent: Any, text: str) -> None:
    with pytest.raises(AgileRLError, match=text):
        train_off_policy(
            make_vect_envs("CartPole-v1", num_envs=2), "CartPole-v1", pop=[agent], memory=ReplayBuffer(100),
            max_steps=20, evo_steps=20, eval_steps=5, verbose=False,
        )  # fmt: skip


BOX = spaces.Box(-1, 1, (2,))


@pytest.mark.parametrize(("call", "text"), [
    (lambda team: team.get_action(np.zeros((2, 4))), r"MADDPG got ndarray for observations. fix: \{agent:"),
    (lambda team: team.learn(None), r"MADDPG.learn got experiences without states.* fix"),
    (lambda _: TD3(OBS, BOX, expl_noise=np.ones(5)), r"TD3: expl_noise has shape \(5,\), and an action 2 components"),
])  # fmt: skip
def test_arguments_of_another_form_are_named(call: Any, text: str) -> None:
    team = MADDPG([OBS, OBS], [ACTIONS, ACTIONS], agent_ids=["a", "b"], seed=1)
    with pytest.raises(AgileRLError, match=text):
        call(team)


class NoDefault(DQN):
    """An algorithm with a hyperparameter without a default."""

    def __init__(self, *args: Any, beta: Annotated[Positive, hp()], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class WrongDefault(DQN):
    """An algorithm whose default is out of its own range."""

    def __init__(self, *args: Any, beta: Annotated[Positive, hp()] = -1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


@pytest.mark.parametrize(("options", "text"), [
    ({"algo": NoDefault}, "NoDefault: beta is declared by hp() and has no default. fix: beta: Annotated"),
    ({"algo": WrongDefault}, "WrongDefault: beta must be above 0; got -1.0. fix: beta=1.0."),
    ({"config": {"environment": {"id": "CartPole-v1"}}}, "environment.id is not a known key. Did you mean 'name'?"),
])  # fmt: skip
def test_declarations_and_keys_are_answered_in_one_sentence(options: dict[str, Any], text: str) -> None:
    with pytest.raises(AgileRLError, match=re.escape(text)):
        short(env="CartPole-v1", **options)


@pytest.mark.parametrize("call", [
    lambda: DQN(OBS, ACTIONS, net_config={"encoder_config": {"hidden_size": 64}}),
    lambda: DQN(OBS, ACTIONS, net_config={"latent_dim": 0}),
    lambda: EvolvableCNN((3, 16, 16), 2, channel_size=[8, 8], kernel_size=[3], stride_size=[1, 1]),
    lambda: RLParameter(1.0, 0.1),
    lambda: whole(0, "size"),
    lambda: MADDPG([OBS], [ACTIONS], agent_ids=["a"]).get_group_id("b"),
])  # fmt: skip
def test_a_wrong_value_comes_with_a_fix(call: Any) -> None:
    with pytest.raises(AgileRLError, match=r" fix: .+\.$"):
        call()


def test_the_best_agent_of_a_run_says_that_it_normalises_observations(tmp_path: Path) -> None:
    options = {"learn_step": 32, "normalize_observations": True, "training.evo_steps": 64, "confirm_episodes": 0}
    run = short(env="CartPole-v1", algo="PPO", out=tmp_path, **{**options, "training.eval_episodes": 1})
    best, trained = agilerl.load(run.path).best, run.best
    assert best.normalize_observations
    for key in ("mean", "var"):
        np.testing.assert_allclose(best.observation_statistics[key], trained.observation_statistics[key], rtol=1e-5)


def test_the_examples_of_the_page_on_errors_print_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
    (code,), (output,) = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("python", "text"))
    exec(code, {})
    assert capsys.readouterr().out == output
