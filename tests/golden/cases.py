"""The short seeded runs whose results are stored: environments of integers, agents in float64, and their digest.

Nothing but published names is imported, so that files can move inside the package without a change here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from agilerl.algorithms import DQN
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.components.replay_buffer import MultiStepReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl.training.train_off_policy import train_off_policy
from agilerl.training.train_offline import train_offline
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import create_population, make_vect_envs
from agilerl.vector import SyncPettingZooVecEnv
from agilerl.wrappers.agent import RSNorm

# --- environments: positions and speeds are integers, so that no processor's rounding moves an episode


class Track(gym.Env[np.ndarray, Any]):
    """Push a cart along a line of 64 cells to either end; its speed stays, within three cells a step."""

    observation_space: gym.Space[Any] = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space: gym.Space[Any] = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell, self.speed = int(self.np_random.integers(24, 41)), 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.speed = max(-3, min(3, self.speed + self._push(action)))
        self.cell = max(0, min(64, self.cell + self.speed))
        return self._see(), self.speed / 4, self.cell in (0, 64), False, {}

    def _push(self, action: Any) -> int:
        return int(action) - 1

    def _see(self) -> np.ndarray:
        return np.array([self.cell / 32 - 1, self.speed / 4], np.float32)


class Hills(Track):
    """`Track` with slopes: they push too, the middle is where the reward is, and the slope ahead can be seen."""

    observation_space = gym.spaces.Box(-2, 2, (4,), np.float32)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.speed = max(-3, min(3, self.speed + self._push(action) + self._slope()))
        self.cell = max(0, min(64, self.cell + self.speed))
        return self._see(), 1 - abs(self.cell - 32) / 16 + self.speed / 4, self.cell in (0, 64), False, {}

    def _slope(self) -> int:
        return (1, 0, -1, 0, -1, 1, 0)[self.cell % 7]

    def _see(self) -> np.ndarray:
        return np.array([self.cell / 16 - 2, self.speed / 2, 2 * self._slope(), self.cell % 5 - 2], np.float32)


class BoxHills(Hills):
    """`Hills` with two continuous actions: a push of up to two, rounded, and a brake."""

    action_space = gym.spaces.Box(np.array([-2, -1], np.float32), np.array([2, 1], np.float32))

    def _push(self, action: Any) -> int:
        push, brake = (float(x) for x in np.asarray(action, np.float64))
        return max(-2, min(2, round(4 * push))) - (self.speed > 0 and brake > 0.25)


class BlindHills(Hills):
    """`Hills` of which only cell and slope can be seen."""

    observation_space = gym.spaces.Box(-2, 2, (2,), np.float32)

    def _see(self) -> np.ndarray:
        return np.array([self.cell / 16 - 2, 2 * self._slope()], np.float32)


class SeenHills(Hills):
    """`Hills` as an image of 8 x 8 cells in two channels: where the cart is, and speed and slope."""

    observation_space = gym.spaces.Box(0, 255, (2, 8, 8), np.uint8)

    def _see(self) -> np.ndarray:
        image = np.zeros((2, 8, 8), np.uint8)
        image[0].flat[min(self.cell, 63)] = 255
        image[1, self.speed + 3, :4] = 128
        image[1, self._slope() + 1, 4:] = 64
        return image


class Couriers:
    """Two walkers on one line, and a caller who alone sees where they are to meet and calls a number. The second walker
    stands still, and is not there, every third step; walkers must not step past the ends."""

    metadata: dict[str, Any] = {"name": "couriers_v0"}  # noqa: RUF012
    render_mode = None
    possible_agents = ["walker_0", "walker_1", "caller_0"]  # noqa: RUF012

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Box(-2, 2, (3,) if agent.startswith("walker") else (2,), np.float32)

    def action_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Discrete(3) if agent.startswith("walker") else gym.spaces.Box(-2, 2, (1,), np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None or not hasattr(self, "rng"):
            self.rng = np.random.default_rng(seed)
        self.agents, self.age, self.called = list(self.possible_agents), 0, 0
        self.cells, self.goal = [int(n) for n in self.rng.integers(0, 9, 2)], int(self.rng.integers(0, 9))
        return self._see()

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, ...]:
        self.age += 1
        for k in (0, 1):
            if f"walker_{k}" in actions:
                self.cells[k] = max(0, min(8, self.cells[k] + int(actions[f"walker_{k}"]) - 1))
        self.called = max(-8, min(8, round(4 * float(np.ravel(actions["caller_0"])[0]))))
        rewards = {f"walker_{k}": 1 - abs(self.cells[k] - self.goal) / 4 for k in (0, 1)}
        rewards["caller_0"] = sum(rewards.values()) / 2 - abs(self.called) / 64
        met, late = all(cell == self.goal for cell in self.cells), self.age >= 12
        seen, infos = self._see()
        ends = [dict.fromkeys(self.agents, flag) for flag in (met, late and not met)]
        self.agents = [] if met or late else self.agents
        return seen, rewards, *ends, infos

    def _see(self) -> tuple[dict[str, Any], dict[str, Any]]:
        cells, called = [cell / 4 - 1 for cell in self.cells], self.called / 8
        seen = {f"walker_{k}": np.array([cells[k], cells[1 - k], called], np.float32) for k in (0, 1)}
        seen["caller_0"] = np.array([self.goal / 4 - 1, sum(cells) / 2], np.float32)
        infos = {f"walker_{k}": {"action_mask": [self.cells[k] > 0, True, self.cells[k] < 8]} for k in (0, 1)}
        if self.age % 3 == 2:
            del seen["walker_1"], infos["walker_1"]
        return seen, {**infos, "caller_0": {}}

    def close(self) -> None:
        """Nothing is held."""


class Numbers:
    """Three rounds: who calls the number by one higher than the other's last one wins a point from them."""

    metadata: dict[str, Any] = {"name": "numbers_v0"}  # noqa: RUF012
    render_mode = None
    possible_agents = ["player_0", "player_1"]  # noqa: RUF012

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Box(-1, 1, (3,), np.float32)

    def action_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Discrete(4)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None or not hasattr(self, "rng"):
            self.rng = np.random.default_rng(seed)
        self.agents, self.age = list(self.possible_agents), 0
        self.called = {agent: int(self.rng.integers(4)) for agent in self.agents}
        return self._see(), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, ...]:
        one, other = self.possible_agents
        wins = {a: int(actions[a]) == (self.called[b] + 1) % 4 for a, b in ((one, other), (other, one))}
        gain = float(wins[one]) - float(wins[other])
        self.called, self.age = {agent: int(actions[agent]) for agent in self.agents}, self.age + 1
        over = dict.fromkeys(self.agents, self.age == 3)
        ends = over, dict.fromkeys(self.agents, False)
        self.agents = [] if self.age == 3 else self.agents
        infos: dict[str, Any] = {agent: {} for agent in over}
        return self._see(), {one: gain, other: -gain}, *ends, infos

    def _see(self) -> dict[str, Any]:
        a, b = (self.called[agent] / 2 - 0.75 for agent in self.possible_agents)
        seen = {"player_0": [a, b, self.age / 4], "player_1": [b, a, self.age / 4]}
        return {agent: np.array(values, np.float32) for agent, values in seen.items()}

    def close(self) -> None:
        """Nothing is held."""


MADE_HERE = {cls.__name__: cls for cls in (Track, Hills, BoxHills, BlindHills, SeenHills, Couriers)}


# --- agents


class OwnLearner(DQN):
    """Brings its own `learn`: one-step Q-learning with the absolute error, and a count of its calls."""

    def learn(self, experiences: Any, *args: Any, **kwargs: Any) -> float:
        self.calls = getattr(self, "calls", 0) + 1
        columns = {k: torch.as_tensor(experiences[k]).double().flatten() for k in ("reward", "done")}
        action = torch.as_tensor(experiences["action"]).long().reshape(-1, 1)
        with torch.no_grad():
            later = self.actor_target(experiences["next_obs"]).max(-1).values
            target = columns["reward"] + self.gamma * (1 - columns["done"]) * later
        loss = (self.actor(experiences["obs"]).gather(1, action).squeeze(1) - target).abs().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.soft_update()
        return float(loss.detach())


DENSE = {"hidden_size": [16], "min_mlp_nodes": 4, "max_mlp_nodes": 64}
MLP = {"latent_dim": 16, "encoder_config": DENSE, "head_config": DENSE}
CNN = {
    "latent_dim": 8,
    "encoder_config": {
        "channel_size": [4], "kernel_size": [3], "stride_size": [2], "min_channel_size": 2, "max_channel_size": 8,
    },
    "head_config": {"hidden_size": [8], "min_mlp_nodes": 4, "max_mlp_nodes": 16},
}  # fmt: skip
LSTM = {
    "latent_dim": 8,
    "encoder_config": {"hidden_state_size": 8, "min_hidden_state_size": 4, "max_hidden_state_size": 16},
    "head_config": {"hidden_size": [8], "min_mlp_nodes": 4, "max_mlp_nodes": 16},
}
VALUES = {"batch_size": 32, "learn_step": 2, "lr": 1e-3, "tau": 0.01}
BATCHES = {"batch_size": 32, "lr": 1e-3}
PAIR = {"batch_size": 32, "learn_step": 4, "lr_actor": 1e-3, "lr_critic": 2e-3, "tau": 0.01}
ROLLOUT = {"batch_size": 32, "learn_step": 64, "lr": 1e-3, "update_epochs": 2}
RAINBOW = {**VALUES, "learn_step": 4, "num_atoms": 11, "v_min": -10.0, "v_max": 10.0, "n_step": 3}
SAC = {**PAIR, "lr_alpha": 1e-3}
# `cartpole-*` and `track-one-after-another` keep the network and the options with which their values were stored.
FIRST: dict[str, Any] = {
    "net": {"encoder_config": {"hidden_size": [16], "min_mlp_nodes": 4}, "head_config": {"hidden_size": [16]}},
    "hp": {**VALUES, "double": True},
    "steps": 400,
    "chances": (0.2, 0.3, 0.3, 0.2, 0.1, 0.3),
}
OFTEN = (0.05, 0.35, 0.3, 0.15, 0.2, 0.25)  # no mutation, architecture, new layer, parameters, activation, values
# `draws` seeds the mutations: with these numbers values, weights, layers, widths and activations change in each case.
CASES: dict[str, dict[str, Any]] = {
    "cartpole-fused-evolved": {**FIRST, "env": "CartPole-v1", "learner": "fused"},
    "cartpole-sequential-evolved": {**FIRST, "env": "CartPole-v1", "learner": "sequential"},
    "track-one-after-another": {**FIRST, "env": "Track", "lockstep": False, "evolution": False},
    "ddpg": {"algo": "DDPG", "env": "BoxHills", "hp": PAIR, "learner": "fused", "draws": 18},
    "td3": {"algo": "TD3", "env": "BoxHills", "hp": PAIR, "learner": "fused", "draws": 22},
    "sac-box": {"algo": "SAC", "env": "BoxHills", "hp": SAC, "learner": "fused", "draws": 5},
    "sac-discrete": {"algo": "SAC", "env": "Hills", "hp": SAC, "learner": "fused", "draws": 20},
    "rainbow-priorities-n-step": {
        "algo": "RainbowDQN", "env": "Hills", "hp": RAINBOW, "learner": "fused", "memory": "per beside n-step",
        "draws": 18,
    },
    "ppo-discrete": {"algo": "PPO", "env": "Hills", "hp": ROLLOUT, "learner": "fused", "draws": 9},
    "ppo-box-shared-encoders": {
        "algo": "PPO", "env": "BoxHills", "hp": {**ROLLOUT, "share_encoders": True}, "learner": "fused", "draws": 22,
    },
    "ppo-recurrent": {
        "algo": "PPO", "env": "BlindHills", "net": LSTM, "hp": {**ROLLOUT, "recurrent": True, "max_seq_len": 8},
        "draws": 5,
    },
    "dqn-images": {"env": "SeenHills", "net": CNN, "hp": {**VALUES, "learn_step": 8, "batch_size": 16}, "draws": 18},
    "dqn-carried-episodes": {"env": "Hills", "hp": VALUES, "learner": "fused", "carry_envs": True, "draws": 14},
    "dqn-n-step": {"env": "Hills", "hp": VALUES, "learner": "fused", "memory": "n-step", "draws": 1},
    "own-learn": {"algo": OwnLearner, "env": "Hills", "hp": {**VALUES, "learn_step": 8}, "draws": 18},
    "ippo": {"algo": "IPPO", "env": "Couriers", "hp": ROLLOUT, "learner": "fused", "draws": 2},
    "ippo-recurrent": {
        "algo": "IPPO", "env": "Couriers", "net": LSTM, "hp": {**ROLLOUT, "recurrent": True, "max_seq_len": 8},
        "learner": "fused", "draws": 3,
    },
    "mappo": {"algo": "MAPPO", "env": "Couriers", "hp": ROLLOUT, "learner": "fused", "draws": 2},
    "maddpg": {"algo": "MADDPG", "env": "Couriers", "hp": PAIR, "learner": "fused", "draws": 18},
    "matd3": {"algo": "MATD3", "env": "Couriers", "hp": PAIR, "learner": "fused", "draws": 22},
    "cqn": {"algo": "CQN", "env": "Hills", "hp": VALUES, "learner": "fused", "data": True, "draws": 18},
    "cqn-fitted": {
        "algo": "CQN", "env": "Hills", "hp": VALUES, "learner": "fused", "data": True, "fitness": "fqe", "draws": 18,
    },
    "cql": {"algo": "CQL", "env": "BoxHills", "hp": {**SAC, "num_samples": 2, "threshold": 1.0}, "learner": "fused",
            "data": True, "draws": 18},
    "iql": {"algo": "IQL", "env": "BoxHills", "hp": PAIR, "learner": "fused", "data": True, "draws": 18},
    "td3bc": {"algo": "TD3BC", "env": "BoxHills", "hp": {**PAIR, "normalize_observations": True}, "learner": "fused",
              "data": True, "draws": 18},
    "bc": {"algo": "BC", "env": "Hills", "hp": BATCHES, "learner": "fused", "data": True, "draws": 18},
    "rsnorm-dqn": {"env": "Hills", "hp": {**VALUES, "learn_step": 8}, "wrapper": RSNorm, "draws": 22},
}  # fmt: skip
LIMITS = {
    "lr": RLParameter(min=1e-4, max=1e-2),
    "lr_actor": RLParameter(min=1e-4, max=1e-2),
    "batch_size": RLParameter(min=8, max=64),
}


class NotedMutations(Mutations):
    """Keeps the labels of every generation."""

    def mutation(self, population: Any, pre_training_mut: bool = False) -> list[Any]:
        mutated = super().mutation(population, pre_training_mut)
        self.__dict__.setdefault("noted", []).append([str(agent.mut) for agent in mutated])
        return mutated


def founders(case: Mapping[str, Any], env: Any) -> list[Any]:
    """Three agents whose networks are in float64."""
    algo, hp = case.get("algo", "DQN"), case["hp"]
    limits = HyperparameterConfig(**{name: LIMITS[name] for name in LIMITS if name in hp})
    spaces = env.single_observation_space, env.single_action_space
    if case["env"] == "Couriers":
        team = env.team
        spaces = dict(team.observation_spaces), dict(team.action_spaces)
    if isinstance(algo, str):
        population = create_population(
            algo,
            case.get("net", MLP),
            None,
            *spaces,
            hp_config=limits,
            population_size=3,
            num_envs=env.num_envs,
            agent_wrapper=case.get("wrapper"),
            algo_kwargs=dict(hp),
            seed=11,
        )
    else:
        population = algo.population(3, *spaces, seed=11, hp_config=limits, net_config=case.get("net", MLP), **hp)
    for agent in population:
        for network in agent.evolvable_attributes(networks_only=True).values():
            network.double()
    return population


def memories(kind: str) -> dict[str, Any]:
    """Arguments of `train_off_policy` for a kind of replay."""
    size = 2_000
    # The seed matters where an agent is given batches of `sample`: other batches are drawn from the run's own stream.
    exact = {"dtype": torch.float64, "seed": 11}
    if kind == "per beside n-step":
        later = MultiStepReplayBuffer(size, n_step=3, gamma=0.99, **exact)
        return {"memory": PrioritizedReplayBuffer(size, **exact), "n_step_memory": later, "per": True,
                "n_step": True}  # fmt: skip
    if kind == "n-step":
        return {"memory": MultiStepReplayBuffer(size, n_step=3, gamma=0.99, **exact), "n_step": True}
    return {"memory": ReplayBuffer(max_size=size, **exact)}


def transitions(name: str) -> dict[str, np.ndarray]:
    """400 transitions of random actions, in episodes that are cut after 30; of a Box in eighths, which are exact."""
    env, rng = MADE_HERE[name](), np.random.default_rng(11)
    kept: dict[str, list[Any]] = {k: [] for k in ("observations", "actions", "rewards", "terminals", "timeouts")}
    kept["next_observations"] = []
    obs, age = env.reset(seed=11)[0], 0
    for _ in range(400):
        eighths = rng.integers([-16, -8], [17, 9]).astype(np.float32) / 8
        action = int(rng.integers(3)) if isinstance(env.action_space, gym.spaces.Discrete) else eighths
        later, reward, terminated, _, _ = env.step(action)
        age += 1
        for column, value in zip(kept, (obs, action, reward, terminated, age == 30, later), strict=True):
            kept[column].append(value)
        obs, age = (env.reset()[0], 0) if terminated or age == 30 else (later, age)
    return {column: np.array(values) for column, values in kept.items()}


def trained(case: Mapping[str, Any]) -> tuple[list[Any], list[list[float]], list[list[str]]]:
    """(the last generation, fitness by generation and member, labels of the mutations by generation and member)."""
    name, is_team = case["env"], case["env"] == "Couriers"
    if is_team:
        env: Any = SyncPettingZooVecEnv([Couriers] * 4)
    else:
        env = make_vect_envs(**({"make_env": MADE_HERE[name]} if name in MADE_HERE else {"env_name": name}), num_envs=4)
    population = founders(case, env)
    options: dict[str, Any] = {key: case[key] for key in ("learner", "lockstep", "carry_envs") if key in case}
    steps, chances = case.get("steps", 240), case.get("chances", OFTEN)
    options |= {"max_steps": steps, "evo_steps": steps // 4, "eval_steps": 60, "verbose": False, "seed": 11}
    mutation = NotedMutations(*chances, rand_seed=case.get("draws", 11))
    if case.get("evolution", True):
        options |= {"tournament": TournamentSelection(2, True, 3, seed=11), "mutation": mutation}
    if case.get("algo") in ("PPO", "IPPO", "MAPPO"):
        on_policy: Any = train_multi_agent_on_policy if is_team else train_on_policy
        last, fitness = on_policy(env, name, pop=population, **options)
    elif case.get("data"):
        fitted = case.get("fitness") == "fqe"
        options |= {"fitness": "fqe", "fqe_updates": 40} if fitted else {}
        last, fitness = train_offline(
            None if fitted else env, name, transitions(name), pop=population, **memories("uniform"), **options
        )
    else:
        replay = memories(case.get("memory", "uniform"))
        function: Any = train_multi_agent_off_policy if is_team else train_off_policy
        last, fitness = function(env, name, pop=population, learning_delay=64, **replay, **options)
    env.close()
    return last, fitness, mutation.__dict__.get("noted", [])


def curve(name: str) -> tuple[dict[str, Any], list[Any]]:
    """(what is stored of a case, the whole state of every agent)."""
    last, fitness, noted = trained(CASES[name])
    states = [agent.state() for agent in last]
    policies = [[getattr(agent, name) for name in agent.registry.policies] for agent in last]
    sums_of = [sum(p.detach().double().abs().sum() for net in own for p in net.parameters()) for own in policies]
    found = {
        "fitness": fitness,
        "labels": [str(agent.mut) for agent in last],
        "mutations": noted,
        "networks": [" | ".join(net.describe() for net in own) for own in policies],
        "weight_sums": [rounded(float(total)) for total in sums_of],
        "states": [digest(state) for state in states],
    }
    return found, states


# --- digests of plain trees


# Settings that other versions of torch leave out of an optimiser's state, or add to it.
OF_TORCH = {"capturable", "decoupled_weight_decay", "differentiable", "foreach", "fused", "maximize"}


def leaves(tree: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """(place, value) of every leaf; sequences of nothing but numbers are one leaf, an array."""
    if isinstance(tree, Mapping):
        for key in sorted((k for k in tree if k not in OF_TORCH), key=str):
            yield from leaves(tree[key], f"{place}/{key}")
    elif isinstance(tree, list | tuple) and tree and all(type(x) in (int, float) for x in tree):
        yield place, np.asarray(tree, np.float64)
    elif isinstance(tree, list | tuple) and tree:
        for number, value in enumerate(tree):
            yield from leaves(value, f"{place}/{number}")
    else:
        yield place, tree


def outline(tree: Any) -> list[str]:
    """One line per leaf: its place, its kind, and what is not a measured number."""
    lines = []
    for place, value in leaves(tree):
        if isinstance(value, torch.Tensor | np.ndarray):
            lines.append(f"{place} {value.dtype} {list(value.shape)}")
        elif isinstance(value, float):
            lines.append(f"{place} float")
        else:
            lines.append(f"{place} {value!r}")
    return lines


def weighed(value: Any) -> float:
    """A sum over a tensor without cancellation, which another order or another sign of its elements changes."""
    x = np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value, np.float64).ravel()
    if x.size == 0 or not np.isfinite(x).all():
        return float(x.size)
    return float((np.abs(x) * np.where(x < 0, 1, 2) * np.linspace(1, 2, x.size)).sum())


def sums(tree: Any) -> dict[str, float]:
    """`weighed` of every tensor, array and float, eight digits each."""
    found = {p: v for p, v in leaves(tree) if isinstance(v, torch.Tensor | np.ndarray | float)}
    return {place: rounded(weighed(value)) for place, value in found.items()}


def rounded(value: float) -> float:
    return float(f"{value:.8g}") if math.isfinite(value) else value


def digest(tree: Any) -> dict[str, Any]:
    """sha256 of the outline, and the sums in its order."""
    text = "\n".join(outline(tree))
    return {"outline": hashlib.sha256(text.encode()).hexdigest(), "sums": list(sums(tree).values())}
