"""Loaded runs, agents of other runs, overridden acting and its exports: what was silently different."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import agilerl
from agilerl.algorithms import CQN, DQN, IPPO, MADDPG, PPO, SAC
from agilerl.algorithms.core.base import RLAlgorithm
from agilerl.algorithms.core.registry import NetworkGroup
from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import AgileRLWarning, AlgorithmError, ConfigError, NotAvailableYetError, RunError, ShapeError
from agilerl.modules.configs import MlpNetConfig
from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl.training.train_off_policy import train_off_policy
from agilerl.training.train_offline import train_offline
from agilerl.utils.utils import create_population
from agilerl.vector import SyncPettingZooVecEnv
from agilerl.views.export import plain_policy
from agilerl.wrappers.agent import RSNorm

SHORT: dict[str, Any] = {
    "population": 2, "verbose": False, "training.eval_episodes": 1, "training.confirm_episodes": 0,
}  # fmt: skip


class Counted(gym.Env[Any, Any]):
    """Ten steps; action 2 costs 1."""

    observation_space: Any = gym.spaces.Box(-1, 1, (3,))
    action_space: Any = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.np_random.uniform(-1, 1, 3).astype("f4"), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.time += 1
        return self.np_random.uniform(-1, 1, 3).astype("f4"), -float(np.sum(action) == 2), False, self.time >= 10, {}


OPTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("CartPole-v1", "DQN", {"double": False}),
    ("CartPole-v1", "RainbowDQN", {"num_atoms": 11, "noise_std": 0.25}),
    ("CartPole-v1", "PPO", {"target_kl": 0.5, "clip_value_loss": False}),
    ("Pendulum-v1", "SAC", {"learn_temperature": False}),
    ("Pendulum-v1", "TD3", {"policy_freq": 5, "expl_noise": 0.3}),
    ("Pendulum-v1", "DDPG", {"expl_noise": 0.3}),
    ("mpe2.simple_speaker_listener_v4", "MADDPG", {"expl_noise": 0.3}),
    ("mpe2.simple_speaker_listener_v4", "IPPO", {"target_kl": 0.5}),
]


@pytest.mark.parametrize(("env", "algo", "options"), OPTIONS, ids=[algo for _, algo, _ in OPTIONS])
def test_a_loaded_policy_has_the_options_of_its_run(
    env: str, algo: str, options: dict[str, Any], tmp_path: Path
) -> None:
    run: Any = agilerl.train(env, algo, steps=200, evo_steps=100, out=tmp_path, **SHORT, **options)
    best = agilerl.load(run.path).best
    for name in options:
        np.testing.assert_equal(getattr(best, name), getattr(run.best, name))


@pytest.mark.parametrize("algo", ["TD3", "DDPG", "SAC", "PPO"])
@pytest.mark.parametrize("shared", [False, True])
def test_agents_of_either_structure_start_a_run(algo: str, shared: bool) -> None:
    env = gym.make("Pendulum-v1")
    agents = create_population(
        algo, observation_space=env.observation_space, action_space=env.action_space, population_size=2,
        algo_kwargs={"share_encoders": shared}, seed=1,
    )  # fmt: skip
    run: Any = agilerl.train("Pendulum-v1", agents=agents, steps=100, out=None, **SHORT)
    assert all(agent.share_encoders is shared for agent in run.population)


class Unregistered(DQN):
    pass


def test_agents_of_a_class_of_ones_own_start_a_run_and_wrapped_ones_are_named() -> None:
    env = gym.make("CartPole-v1")
    spaces = env.observation_space, env.action_space
    run: Any = agilerl.train("CartPole-v1", agents=[Unregistered(*spaces)], steps=100, out=None, **SHORT)
    assert all(type(agent) is Unregistered for agent in run.population)
    with pytest.raises(ConfigError, match=r"agents= takes agents without wrappers; got RSNorm\(DQN.* fix: agents="):
        agilerl.train("CartPole-v1", agents=[RSNorm(DQN(*spaces))], steps=100, out=None, **SHORT)


class ByGetAction(DQN):
    def get_action(self, obs: Any, *args: Any, **kwargs: Any) -> Any:
        return np.full((len(np.atleast_2d(obs)), 1), 2.0)


class ByGreedy(PPO):
    def _greedy(self, obs: Any, mask: Any = None) -> Any:
        return np.full(len(np.atleast_2d(obs)), 2)


@pytest.mark.parametrize("cls", [ByGetAction, ByGreedy])
def test_selection_sees_what_is_overridden_and_no_file_acts_otherwise(cls: Any, tmp_path: Path) -> None:
    run: Any = agilerl.train(Counted, cls, steps=400, evo_steps=200, out=tmp_path, **SHORT)
    assert all(set(agent.fitness) == {-10.0} for agent in run.population)
    assert run.best.evaluate(episodes=2).mean == -10
    assert run.best.act(np.zeros(3, "f4")) == 2
    assert (run.path / "best" / "policy.safetensors").exists()
    assert not (run.path / "best" / "policy.py").exists()
    with pytest.raises(NotAvailableYetError, match=rf"{cls.__name__} overrides .*which a policy file does not contain"):
        plain_policy(run.best)


class Beyond(SAC):
    def get_action(self, obs: Any, *args: Any, **kwargs: Any) -> Any:
        return np.full((len(np.atleast_2d(obs)), 1), 3.0, np.float32)


class BoxCounted(Counted):
    action_space = gym.spaces.Box(-1, 1, (1,))


def test_actions_beyond_the_bounds_are_clipped_in_evaluations_as_in_training() -> None:
    agilerl.train(BoxCounted, Beyond, steps=200, evo_steps=200, out=None, **SHORT)  # the environment asserts


@pytest.mark.parametrize("result", [0, None, "left"])
def test_a_get_action_that_gives_no_action_for_each_lane_is_named(result: Any) -> None:
    cls = type("Odd", (DQN,), {"get_action": lambda self, obs, *args, **kwargs: result})
    with pytest.raises(ShapeError, match=r"Odd\.get_action returned .* for \d+ observations; expected one action of"):
        agilerl.train(Counted, cls, steps=200, out=None, **SHORT)


def test_a_test_that_gives_no_number_is_named() -> None:
    cls = type("Odd", (DQN,), {"test": lambda self, *args, **kwargs: [1.0, 2.0]})
    with pytest.raises(ConfigError, match=r"Odd\.test returned list \[1\.0, 2\.0\]; expected the mean return"):
        agilerl.train(Counted, cls, steps=200, out=None, **SHORT)


def test_an_overridden_act_is_named() -> None:
    cls = type("Acts", (DQN,), {"act": lambda self, obs, mask=None: np.int64(2)})
    with pytest.warns(AgileRLWarning, match="Acts overrides act, which training does not call"):
        agilerl.train(Counted, cls, steps=200, out=None, **SHORT)


class Texts(Counted):
    observation_space = gym.spaces.Text(8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return "left", {}

    def step(self, action: Any) -> Any:
        return "right", *super().step(action)[1:]


@pytest.mark.parametrize("algo", ["DQN", "PPO"])
def test_one_text_gives_one_action(algo: str) -> None:
    best = agilerl.train(Texts, algo, steps=200, out=None, **SHORT).best
    assert Texts.action_space.contains(best.act("left"))
    assert Texts.action_space.contains(best.predict("left")[0])
    assert best.act(["left", "right", "left"]).shape == (3,)


class Bare(RLAlgorithm):
    """Nothing but `get_action` and `learn`, with as few arguments as they need."""

    def __init__(self, observation_space: Any, action_space: Any, **more: Any) -> None:
        more.pop("net_config", None)
        super().__init__(observation_space, action_space, **more)
        inner = DQN(observation_space, action_space, seed=0)
        self.lr, self.batch_size, self.learn_step = 1e-3, 16, 8
        self.actor = inner.actor
        self.optimizer = type(inner.optimizer)(inner.optimizer.optimizer_cls, networks=[self.actor], lr=self.lr)
        self.register_network_group(NetworkGroup(eval_network=self.actor, policy=True))

    def get_action(self, obs: Any) -> Any:
        return np.zeros(len(obs), np.int64)

    def learn(self, experiences: Any) -> float:
        return 0.0


def test_a_get_action_of_few_arguments_acts_and_a_run_without_its_policy_class_is_loaded(tmp_path: Path) -> None:
    run: Any = agilerl.train(Counted, Bare, steps=200, out=tmp_path, **SHORT)
    assert run.best.evaluate(episodes=1, env=Counted()).mean == 0
    loaded = agilerl.load(run.path)
    assert type(loaded.best) is Bare
    assert len(loaded.population) == len(run.population)
    for name, weights in run.best.policy_state().items():
        assert (loaded.best.policy_state()[name] == weights).all()
    assert loaded.best.evaluate(episodes=1, env=Counted()).mean == 0
    assert type(agilerl.train(Counted, agents=run.path, steps=200, out=None, **SHORT).best) is Bare
    shutil.rmtree(run.path / "checkpoints")
    with pytest.raises(NotAvailableYetError, match=r"Bare does not name the class of its policy.*fix: policy_class"):
        agilerl.load(run.path)


def test_metrics_that_are_gone_are_named(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    run: Any = agilerl.train(Counted, "DQN", steps=200, out=tmp_path, **SHORT)
    for spoil in (lambda path: path.write_text(""), lambda path: path.unlink()):
        spoil(run.path / "metrics.csv")
        with pytest.raises(RunError, match=r"metrics\.csv cannot be read .* fix: run\.history"):
            agilerl.load(run.path).frame()


def test_a_typed_configuration_is_taken_by_train_and_net_config_is_explained() -> None:
    run: Any = agilerl.train(Counted, "DQN", steps=100, out=None, encoder=MlpNetConfig(hidden_size=[24]), **SHORT)
    assert run.manifest.network.encoder["hidden_size"] == [24]
    with pytest.raises(ConfigError, match=r"net_config is an argument of algorithm classes\. fix: its parts"):
        agilerl.train(Counted, "DQN", steps=100, out=None, net_config={}, **SHORT)


def test_the_seed_of_a_run_decides_what_wrapped_agents_sample() -> None:
    def weights(torch_seed: int) -> list[torch.Tensor]:
        torch.manual_seed(torch_seed)
        env = make_vect_envs("CartPole-v1", num_envs=2)
        agents = DQN.population(
            2, env.single_observation_space, env.single_action_space, RSNorm, seed=1, batch_size=8, learn_step=4
        )
        budget: dict[str, Any] = {"max_steps": 200, "evo_steps": 100, "eval_steps": 20, "verbose": False, "seed": 5}
        train_off_policy(env, "CartPole-v1", "DQN", agents, ReplayBuffer(500), **budget)
        return [p.detach().clone() for agent in agents for p in agent.agent.actor.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(weights(1), weights(2), strict=True))


BODY = gym.spaces.Box(-1, 1, (3,))


class Pair:
    """Two agents, five steps; remembers the actions."""

    metadata: dict[str, Any] = {"name": "pair"}  # noqa: RUF012
    render_mode = None
    possible_agents = ["x_0", "x_1"]  # noqa: RUF012

    def __init__(self, actions: Any) -> None:
        self.actions = actions

    def observation_space(self, agent: str) -> Any:
        return BODY

    def action_space(self, agent: str) -> Any:
        return self.actions

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.agents, self.time = list(self.possible_agents), 0
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self.time += 1
        over, agents = self.time >= 5, list(self.agents)
        self.agents = [] if over else agents
        flags = dict.fromkeys(agents, False), dict.fromkeys(agents, over)
        return self._seen(), dict.fromkeys(agents, 1.0), *flags, {agent: {} for agent in agents}

    def _seen(self) -> Any:
        return {agent: np.zeros(3, np.float32) for agent in self.possible_agents}

    def close(self) -> None:
        """Nothing is held."""


OTHERS = [
    (gym.spaces.Discrete(3, start=1), gym.spaces.Discrete(3)),
    (gym.spaces.Discrete(4), gym.spaces.Discrete(3)),
    (gym.spaces.Box(-5, 5, (2,)), gym.spaces.Box(-1, 1, (2,))),
]


@pytest.mark.parametrize(("built", "given"), OTHERS)
@pytest.mark.parametrize("cls", [IPPO, MADDPG])
def test_a_team_of_other_spaces_is_named(cls: Any, built: Any, given: Any) -> None:
    env: Any = SyncPettingZooVecEnv([lambda: Pair(given)] * 2)
    team = cls([BODY] * 2, [built] * 2, agent_ids=list(Pair.possible_agents))
    train: Any = train_multi_agent_on_policy if cls is IPPO else train_multi_agent_off_policy
    fields = ["state", "action", "reward", "next_state", "done"]
    more = {} if cls is IPPO else {"memory": MultiAgentReplayBuffer(500, fields, list(Pair.possible_agents))}
    with pytest.raises(ConfigError, match=r"team 0 was built for the action space .* of x_0; the environment has"):
        train(env, "pair", pop=[team], max_steps=64, evo_steps=32, verbose=False, **more)


def test_an_agent_of_other_bounds_and_an_agent_given_twice_are_named() -> None:
    env, other = make_vect_envs(make_env=BoxCounted, num_envs=2), gym.spaces.Box(-5, 5, (1,))
    budget: dict[str, Any] = {"max_steps": 40, "evo_steps": 20, "verbose": False}
    with pytest.raises(ShapeError, match="agent 0 was built for the action_space"):
        train_off_policy(env, "x", "SAC", [SAC(Counted.observation_space, other)], ReplayBuffer(100), **budget)
    agent = SAC(Counted.observation_space, BoxCounted.action_space)
    with pytest.raises(AlgorithmError, match=r"holds one agent twice.* fix: agent\.clone\(index\)"):
        train_off_policy(env, "x", "SAC", [agent, agent], ReplayBuffer(100), **budget)


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (np.ones((40, 3)), "have the shape"),
        (np.ones(40), "have the shape"),
        (np.full((40, 4), 0.5), "hold other numbers than 0 and 1"),
        (np.zeros((40, 4)), "allow no action in row 0"),
    ],
)
@pytest.mark.parametrize("name", ["action_masks", "next_action_masks"])
def test_masks_of_a_data_set_are_looked_at(name: str, mask: Any, says: str) -> None:
    data = {
        "observations": np.zeros((40, 3), np.float32), "actions": np.zeros(40, int), "rewards": np.ones(40),
        "terminals": np.arange(40) % 10 == 9, "action_masks": np.ones((40, 4)), "next_action_masks": np.ones((40, 4)),
    }  # fmt: skip
    agents = CQN.population(1, Counted.observation_space, Counted.action_space, seed=1)
    env = make_vect_envs(make_env=Counted, num_envs=1)
    with pytest.raises(ShapeError, match=rf"{name} .*{says}"):
        train_offline(env, "x", {**data, name: mask}, "CQN", agents, ReplayBuffer(100), max_steps=8, verbose=False)
