"""Every observation and action space from the environment to replay, update, evolution and file and back."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.components.replay_buffer import MultiStepReplayBuffer, PrioritizedMultiStepReplayBuffer, ReplayBuffer
from agilerl.core.tree import leaves
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.modules.configs import MlpNetConfig
from agilerl.telemetry.record import BaseSink, RunPlan
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import create_population, make_vect_envs
from agilerl.wrappers.agent import RSNorm

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
CHW, HWC = spaces.Box(0, 255, (1, 8, 8), np.uint8), spaces.Box(0, 255, (8, 8, 1), np.uint8)
INNER = spaces.Dict(place=VECTOR, picture=HWC, height=spaces.Box(-1, 1, (), np.float32))
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "number": spaces.Box(-1, 1, (), np.float32),
    "vector": VECTOR,
    "unbounded": spaces.Box(-np.inf, np.inf, (3,), np.float64),
    "matrix": spaces.Box(-1, 1, (2, 2), np.float32),
    "image": CHW,
    "image, channels last": HWC,
    "image of floats": spaces.Box(0, 1, (1, 8, 8), np.float32),
    "image of floats, channels last": spaces.Box(0, 1, (8, 8, 1), np.float32),
    "discrete": spaces.Discrete(3),
    "discrete from 2": spaces.Discrete(3, start=2),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-binary": spaces.MultiBinary([2, 2]),
    "dict": spaces.Dict(a=VECTOR, b=spaces.Discrete(3)),
    "tuple": spaces.Tuple((VECTOR, spaces.MultiDiscrete([2, 2]))),
    "nested": spaces.Dict(camera=CHW, rest=spaces.Tuple((spaces.MultiBinary(2), INNER))),
}
CHOICE = spaces.Discrete(3)
BOX = spaces.Box(np.array([-2, 0], np.float32), np.array([1, 5], np.float32))
MATRIX_ACTION = spaces.Box(-3, 4, (2, 2), np.float32)
NESTED = ["image, channels last", "multi-discrete", "nested"]
CASES = [
    *(("DQN", name, CHOICE) for name in OBSERVATIONS),
    *(("RainbowDQN", name, CHOICE) for name in NESTED),
    *(("SAC", name, CHOICE) for name in ("dict", "image")),
    *(("SAC", name, BOX) for name in ("tuple", "discrete", "image of floats")),
    *(("TD3", name, BOX) for name in ("number", "nested")),
    *(("DDPG", name, MATRIX_ACTION) for name in ("matrix", "image, channels last", "dict")),
]
STEPS = 5  # of an episode, each with reward 1


class Sampled(gym.Env[Any, Any]):
    """Observations drawn from their space; every action must lie in its own. With `masked` one is illegal, in turn."""

    def __init__(self, observations: spaces.Space[Any], actions: spaces.Space[Any], masked: bool = False) -> None:
        self.observation_space, self.action_space = copy.deepcopy(observations), actions
        self.masked, self.time = masked, 0

    def _info(self) -> dict[str, Any]:
        return {"action_mask": (np.arange(3) != self.time % 3).astype(np.int8)} if self.masked else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.observation_space.seed(seed)
        self.time = 0
        return self.observation_space.sample(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        taken = action if self.action_space.shape else int(action)
        assert self.action_space.contains(taken), f"{action} is not in {self.action_space}"
        assert not self.masked or action != self.time % 3, "an illegal action"
        self.time += 1
        return self.observation_space.sample(), 1.0, self.time == STEPS, False, self._info()


def environment(observations: spaces.Space[Any], actions: spaces.Space[Any], masked: bool = False) -> Any:
    return make_vect_envs(make_env=lambda: Sampled(observations, actions, masked), num_envs=2)


def population(algo: str, env: Any, net: Any = None, **options: Any) -> list[Any]:
    rate = "lr" if algo in ("DQN", "RainbowDQN") else "lr_actor"
    config = HyperparameterConfig(**{rate: RLParameter(1e-4, 1e-2), "batch_size": RLParameter(4, 16, dtype=int)})
    return create_population(
        algo,
        net or {"latent_dim": 16, "head_config": {"hidden_size": [16]}},
        {"BATCH_SIZE": 8, "LEARN_STEP": 2, "NUM_ATOMS": 5},
        env.single_observation_space,
        env.single_action_space,
        config,
        population_size=2,
        num_envs=2,
        seed=1,
        **options,
    )


class Plans(BaseSink):
    def __init__(self) -> None:
        self.plans: list[RunPlan] = []

    def start(self, plan: RunPlan, founders: Any) -> None:
        self.plans.append(plan)


def train(pop: list[Any], env: Any, memory: Any, generations: int = 2, **options: Any) -> tuple[list[Any], Any]:
    settings = {"max_steps": 20 * generations, "evo_steps": 20, "verbose": False, "seed": 1, **options}
    return train_off_policy(env, "sampled", pop=pop, memory=memory, **settings)


def batch_of(memory: ReplayBuffer, size: int = 6) -> Any:
    return memory.sample_from_indices(np.arange(size))


def check_finite(agent: Any) -> None:
    for network in agent.evaluation_networks().values():
        assert all(bool(torch.isfinite(p).all()) for p in network.parameters())


# Fast is at least one case of each algorithm, and of images, parts, vectors, numbers and matrices one each.
FAST = (("DQN", "nested"), ("DQN", "discrete"), ("RainbowDQN", "multi-discrete"), ("SAC", "tuple"), ("TD3", "number"),
        ("DDPG", "matrix"), ("DDPG", "image, channels last"))  # fmt: skip


@pytest.mark.parametrize(
    ("algo", "name", "actions"),
    [pytest.param(a, n, x, id=f"{a}-{n}", marks=() if (a, n) in FAST else pytest.mark.slow) for a, n, x in CASES],
)
def test_a_population_trains_evolves_and_survives_files(algo: str, name: str, actions: Any, tmp_path: Path) -> None:
    env, memory, sink = environment(OBSERVATIONS[name], actions), ReplayBuffer(100), Plans()
    tournament = TournamentSelection(2, True, 2, seed=0)
    mutation = Mutations(0, 1, 0.5, 1, 1, 1, rand_seed=0)
    pop, fitness = train(population(algo, env), env, memory, tournament=tournament, mutation=mutation, sinks=[sink])
    assert fitness == [[STEPS, STEPS]] * 2
    assert memory.counter == 2 * 40
    (note,) = [n for n in sink.plans[0].notes if n.startswith("learner:")]
    fuses = name != "nested"
    if fuses:
        assert note == "learner: fused (every network consists of dense layers or small convolutions)"
    else:
        begin = r"learner: sequential \(agent 0 does not stack: its network actor "
        assert re.match(begin + r"\(EvolvableMultiInput\) is not a plain stack .*FlattenObservation", note), note
    # Every kind of mutation; each leaves an agent that learns. Some draws of an architecture are beyond the bound.
    kinds = {"architecture": (0, 1, 0.3, 0, 0, 0), "param": (0, 0, 0, 1, 0, 0), "act": (0, 0, 0, 0, 1, 0),
             "rl_hp": (0, 0, 0, 0, 0, 1)}  # fmt: skip
    for kind, chances in kinds.items():
        draws = (Mutations(*chances, rand_seed=seed).mutation([pop[0].clone(10)])[0] for seed in range(10))
        child = next((drawn for drawn in draws if drawn.mut != "None"), None)
        assert child is not None, f"no {kind} mutation could be applied"
        child.learn(batch_of(memory))
        check_finite(child)
    obs, _ = env.reset(seed=3)
    expected = pop[1]._greedy(obs)
    pop[1].save_checkpoint(tmp_path / "agent.pt")
    for twin in (
        pop[1].clone(7),
        pickle.loads(pickle.dumps(pop[1])),
        type(pop[1]).load(tmp_path / "agent.pt"),
    ):
        np.testing.assert_array_equal(twin._greedy(obs), expected)
        twin.learn(batch_of(memory))
        check_finite(twin)
    env.close()


@pytest.mark.parametrize("algo", ["DQN", "RainbowDQN", "SAC"])
@pytest.mark.parametrize("name", ["nested", "discrete"])
def test_masks_hold_on_every_observation_space(algo: str, name: str) -> None:
    """The environment asserts that no illegal action is taken."""
    env, memory = environment(OBSERVATIONS[name], CHOICE, masked=True), ReplayBuffer(100)
    _, fitness = train(population(algo, env), env, memory, 1, eps_start=0.5)
    assert fitness == [[STEPS, STEPS]]
    masks = memory.gather(np.arange(len(memory)))["next_mask"]
    assert masks.shape == (40, 3)
    assert masks.sum(-1).tolist() == [2] * 40
    env.close()


# --- the same numbers, whatever way observations take

PARTS = spaces.Dict(
    a=spaces.Box(-1, 1, (2,), np.float64),
    b=spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (), np.float64))),
)
FLAT = spaces.Box(-1, 1, (6,), np.float64)  # the same laid side by side
NET: dict[str, Any] = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}


def dense() -> dict[str, Any]:
    return {**NET, "encoder_config": MlpNetConfig(hidden_size=[8])}


def transitions(size: int = 12) -> tuple[dict[str, Any], dict[str, Any]]:
    """A batch with nested observations and the same with flat ones; numbers that float32 holds exactly."""
    rng = np.random.default_rng(0)
    exact = lambda x: x.astype(np.float32).astype(np.float64)  # noqa: E731
    nested, flat = {}, {}
    for name in ("obs", "next_obs"):
        a, choice, height = (
            exact(rng.uniform(-1, 1, (size, 2))),
            rng.integers(3, size=size),
            exact(rng.uniform(-1, 1, size)),
        )
        nested[name] = {"a": a, "b": (choice, height)}
        flat[name] = np.concatenate([a, np.eye(3)[choice], height[:, None]], 1)
    rest = {
        "action": rng.integers(3, size=size),
        "reward": exact(rng.normal(size=size)),
        "done": rng.random(size) < 0.3,
    }
    return {**nested, **rest}, {**flat, **rest}


def agent_for(algo: str, space: Any, action: Any, net: Any, **options: Any) -> Any:
    (agent,) = create_population(
        algo, net, {"NUM_ATOMS": 5}, space, action, seed=3, algo_kwargs={"normalize_images": True, **options}
    )
    for network in agent.evolvable_attributes(networks_only=True).values():
        network.double()
    return agent


def weights(agent: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for n in agent.evaluation_networks().values() for p in n.parameters()])


@pytest.mark.parametrize(("algo", "options"), [("DQN", {}), ("DQN", {"double": True}), ("RainbowDQN", {}),
                                               ("SAC", {})])  # fmt: skip
@pytest.mark.parametrize("dialect", ["mapping", "TensorDict", "field_names"])
def test_learning_from_parts_is_learning_from_them_side_by_side(
    algo: str, options: dict[str, Any], dialect: str
) -> None:
    nested, flat = transitions()
    one, other = agent_for(algo, PARTS, CHOICE, dense(), **options), agent_for(algo, FLAT, CHOICE, NET, **options)
    if dialect == "mapping":
        experiences: Any = nested
    elif dialect == "TensorDict":
        memory = ReplayBuffer(20, dtype=torch.float64)
        memory.add(nested)
        experiences = memory.sample_from_indices(np.arange(12))
    else:
        names = ["state", "action", "reward", "next_state", "done"]
        memory = ReplayBuffer(20, dtype=torch.float64, field_names=names)
        fields = [nested[k] for k in ("obs", "action", "reward", "next_obs", "done")]
        memory.save_to_memory(*fields, is_vectorised=True)
        experiences = memory.sample_from_indices(np.arange(12))
        assert isinstance(experiences, tuple)
    for _ in range(20):
        one.learn(experiences)
        other.learn(flat)
    torch.testing.assert_close(weights(one), weights(other), rtol=1e-10, atol=1e-12)


class Nested(gym.Env[Any, Any]):
    """The parts, or the same laid side by side; observation and reward depend on the actions."""

    action_space = CHOICE

    def __init__(self, flat: bool) -> None:
        self.flat, self.observation_space = flat, FLAT if flat else PARTS

    def _obs(self) -> Any:
        a, choice, height = self.state[:2], int(3 * abs(self.state[2])) % 3, self.state[3]
        if self.flat:
            return np.concatenate([a, np.eye(3)[choice], [height]])
        return {"a": a.copy(), "b": (np.int64(choice), np.array(height))}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state, self.time = self.np_random.uniform(-1, 1, 4), 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        self.state = np.sin(self.state * 3 + int(action) + np.arange(4))
        return self._obs(), float(self.state.sum()), self.time == 7, False, {}


@pytest.mark.parametrize("learner", ["fused", "sequential"])
@pytest.mark.parametrize("algo", ["DQN", pytest.param("SAC", marks=pytest.mark.slow)])
def test_a_population_on_parts_trains_as_one_on_them_side_by_side(algo: str, learner: str) -> None:
    """In lockstep: acting, exploring, storing, learning and evaluating, in float64."""
    results = []
    for space, net, flat in ((PARTS, dense(), False), (FLAT, NET, True)):
        env = make_vect_envs(make_env=lambda flat=flat: Nested(flat), num_envs=2)
        pop = create_population(algo, net, {"BATCH_SIZE": 8, "LEARN_STEP": 2}, space, CHOICE, population_size=2, seed=3)
        for agent in pop:
            for network in agent.evolvable_attributes(networks_only=True).values():
                network.double()
        memory = ReplayBuffer(500, dtype=torch.float64)
        pop, fitness = train(pop, env, memory, 3, learner=learner)
        results.append((torch.cat([weights(a) for a in pop]), fitness))
        env.close()
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-9)


@pytest.mark.thorough
def test_images_are_turned_and_scaled_alike_wherever_the_channels_are() -> None:
    """One network on [C, H, W], the other on [H, W, C] with `swap_channels` or without: the same weights."""
    shape = (6, 6, 3)
    last, first = spaces.Box(0, 255, shape, np.uint8), spaces.Box(0, 255, (3, 6, 6), np.uint8)

    class Frames(Sampled):
        def __init__(self, channels_last: bool) -> None:
            super().__init__(last, CHOICE)
            self.channels_last = channels_last
            self.observation_space = last if channels_last else first
            self.source = copy.deepcopy(last)

        def _frame(self) -> np.ndarray:
            frame = self.source.sample()
            return frame if self.channels_last else np.moveaxis(frame, -1, 0)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            if seed is not None:
                self.source.seed(seed)
            self.time = 0
            return self._frame(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.time += 1
            return self._frame(), float(action), self.time == STEPS, False, {}

    found = []
    for channels_last, built_for, swap in ((False, first, False), (True, last, False), (True, first, True),
                                           (True, last, True)):  # fmt: skip
        env = make_vect_envs(make_env=lambda c=channels_last: Frames(c), num_envs=2)
        net = {"encoder_config": {"channel_size": [4], "kernel_size": [3], "stride_size": [1]}, "latent_dim": 16}
        pop = create_population("DQN", net, {"BATCH_SIZE": 8, "LEARN_STEP": 2}, built_for, CHOICE, population_size=2,
                                seed=3)  # fmt: skip
        for agent in pop:
            agent.actor.double()
            agent.actor_target.double()
        pop, fitness = train(pop, env, ReplayBuffer(100, dtype=torch.float64), 2, swap_channels=swap)
        assert pop[0].test(env, swap_channels=swap, loop=2) >= 0
        found.append((torch.cat([weights(a) for a in pop]), fitness))
        env.close()
    for other, fitness in found[1:]:
        torch.testing.assert_close(other, found[0][0], rtol=0, atol=1e-12)
        assert fitness == found[0][1]


# --- the rest of the way


def test_acting_for_all_members_is_acting_for_each() -> None:
    env = environment(OBSERVATIONS["nested"], BOX)
    pop = population("TD3", env)
    sample = [env.reset(seed=i)[0] for i in range(2)]
    joined = {"camera": np.stack([o["camera"] for o in sample]), "rest": (
        np.stack([o["rest"][0] for o in sample]),
        {k: np.stack([o["rest"][1][k] for o in sample]) for k in ("place", "picture", "height")},
    )}  # fmt: skip
    actions = Learner(pop, choose(pop, "sequential")).act_greedy(joined)
    for i, agent in enumerate(pop):
        np.testing.assert_allclose(actions[i], agent._greedy(sample[i]), rtol=1e-6)
    assert pop[0].evaluate(episodes=3, env=env).mean == STEPS
    env.close()


@pytest.mark.parametrize("make", [lambda: MultiStepReplayBuffer(100, 3, 0.99),
                                  lambda: PrioritizedMultiStepReplayBuffer(100, n_step=3, gamma=0.99)])  # fmt: skip
def test_rainbow_learns_from_nested_n_step_replay(make: Any) -> None:
    env, memory = environment(OBSERVATIONS["nested"], CHOICE), make()
    pop, _ = train(population("RainbowDQN", env), env, memory, 1, n_step=True, per="Prio" in type(memory).__name__)
    check_finite(pop[0])
    env.close()


def test_rainbow_adds_one_step_losses_of_nested_observations() -> None:
    """The joint loss of both batches is the sum of theirs."""
    nested, flat = transitions()
    one = agent_for("RainbowDQN", PARTS, CHOICE, dense(), combined_reward=True, noisy=False)
    other = agent_for("RainbowDQN", FLAT, CHOICE, NET, combined_reward=True, noisy=False)
    for _ in range(5):
        loss, *_ = one.learn(nested, n_experiences=nested)
        expected, *_ = other.learn(flat, n_experiences=flat)
        assert loss == pytest.approx(expected, rel=1e-10)


def test_probe_observations_are_those_that_were_learned_from() -> None:
    nested, _ = transitions()
    agent = agent_for("DQN", PARTS, CHOICE, dense())
    agent.learn(nested)
    seen = agent.probe_observations(5)
    np.testing.assert_array_equal(seen["a"], nested["obs"]["a"][:5])
    np.testing.assert_array_equal(seen["b"]["tuple_obs_0"], nested["obs"]["b"][0][:5])
    assert [len(leaf) for leaf in leaves(seen)] == [5, 5, 5]


def test_normalize_images_reaches_every_network_and_its_files(tmp_path: Path) -> None:
    env = environment(CHW, BOX)
    images = env.reset(seed=1)[0]
    for wanted in (True, False):
        (agent,) = create_population("TD3", None, None, CHW, BOX, seed=1, algo_kwargs={"normalize_images": wanted})
        networks = agent.evolvable_attributes(networks_only=True)
        assert {n.normalize_images for n in networks.values()} == {wanted}
        assert float(agent.actor.preprocess(images).max()) == pytest.approx(images.max() / (255 if wanted else 1))
        agent.save_checkpoint(tmp_path / "agent.pt")
        loaded = type(agent).load(tmp_path / "agent.pt")
        assert loaded.normalize_images is wanted
        assert {n.normalize_images for n in loaded.evolvable_attributes(networks_only=True).values()} == {wanted}
        np.testing.assert_array_equal(loaded._greedy(images), agent._greedy(images))
    given = agent.actor.clone()
    (other,) = create_population("TD3", None, None, CHW, BOX, actor_network=given, seed=1)
    assert {n.normalize_images for n in other.evolvable_attributes(networks_only=True).values()} == {False}
    assert other.normalize_images is False
    env.close()


@pytest.mark.parametrize(("algo", "actions"), [("DQN", CHOICE), ("TD3", BOX), ("DDPG", MATRIX_ACTION)])
def test_wrapped_agents_train_on_nested_observations(algo: str, actions: Any) -> None:
    """One at a time, by `get_action` and `learn`; the environment asserts that actions lie in its space."""
    space = spaces.Tuple((VECTOR, spaces.Dict(x=VECTOR, n=spaces.Discrete(2))))
    env, memory = environment(space, actions), ReplayBuffer(100)
    pop, fitness = train(population(algo, env, agent_wrapper=RSNorm), env, memory, 1)
    assert fitness == [[STEPS, STEPS]]
    assert [agent.obs_rms[0].count for agent in pop] == [20, 20]
    stored = memory.gather(np.arange(len(memory)))["action"]
    assert stored.shape == ((40,) if algo == "DQN" else (40, int(np.prod(actions.shape))))
    assert algo == "DQN" or float(stored.abs().max()) <= 1, "raw actions are stored"
    env.close()


# --- continuous actions: what is stored is raw, what the environment gets is at its bounds


def place(space: spaces.Box, action: np.ndarray) -> float:
    """0 at the lowest action, the number of its components at the highest."""
    low, high, taken = (np.asarray(x, np.float64) for x in (space.low, space.high, action))
    return float(((taken - low) / np.maximum(high - low, 1e-9)).sum())


class Judge(gym.Env[np.ndarray, np.ndarray]):
    """The reward says where in the space, in which it must lie, the action is."""

    observation_space = VECTOR

    def __init__(self, actions: spaces.Box) -> None:
        self.action_space = actions

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.time = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(np.asarray(action)), f"{action} is not in {self.action_space}"
        self.time += 1
        return np.zeros(3, np.float32), place(self.action_space, action), self.time == STEPS, False, {}


BOXES = {
    "unequal": BOX,
    "matrix": MATRIX_ACTION,
    "far from 0": spaces.Box(100, 101, (1,), np.float64),
    "widest": spaces.Box(-3e38, 3e38, (2,), np.float32),
    "a point": spaces.Box(1, 1, (2,), np.float32),
    "integers": spaces.Box(0, 9, (2,), np.int64),
}


@pytest.mark.parametrize("algo", ["DDPG", "TD3", "SAC"])
@pytest.mark.parametrize("name", BOXES)
def test_every_path_gives_the_environment_actions_at_its_bounds(algo: str, name: str) -> None:
    space = BOXES[name]
    env, memory = make_vect_envs(make_env=lambda: Judge(space), num_envs=2), ReplayBuffer(100)
    pop, fitness = train(population(algo, env), env, memory, 1)
    raw = memory.gather(np.arange(len(memory)))["action"]
    assert raw.shape == (40, int(np.prod(space.shape)))
    assert bool((raw.abs() <= 1).all())
    obs = np.zeros((2, 3), np.float32)
    for agent, score in zip(pop, fitness[0], strict=True):
        quiet = agent.get_action(obs, training=False)
        expected = STEPS * place(space, quiet[0])
        assert score == pytest.approx(expected, rel=1e-5)
        assert agent.test(env) == pytest.approx(expected, rel=1e-5)
        assert agent.evaluate(episodes=2, env=env).mean == pytest.approx(expected, rel=1e-5)
        assert agent.evaluate(episodes=2, env=Judge(space)).mean == pytest.approx(expected, rel=1e-5)
    env.close()


@pytest.mark.parametrize("algo", ["DDPG", "TD3", "SAC"])
def test_a_loop_of_the_users_own_stores_raw_actions_and_rescales_them(algo: str) -> None:
    env, memory = make_vect_envs(make_env=lambda: Judge(BOX), num_envs=2), ReplayBuffer(100)
    agent = population(algo, env)[0]
    obs, _ = env.reset(seed=1)
    for _ in range(10):
        action = agent.get_action(obs)
        assert action.shape == (2, 2)
        assert np.abs(action).max() <= 1
        after, reward, terminated, _, _ = env.step(agent.environment_action(action))
        memory.add({"obs": obs, "action": action, "reward": reward, "next_obs": after, "done": terminated})
        obs = after
    agent.learn(memory.sample(agent.batch_size))
    check_finite(agent)
    env.close()
