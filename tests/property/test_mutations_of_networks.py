"""Every mutation method x every evaluation network x every algorithm keeps the function, on replayed rows."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from mpe2 import simple_spread_v3

from agilerl import algorithms
from agilerl.algorithms.base.declared import DATASET
from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.hpo import effects
from agilerl.hpo.architecture import ArchitectureOptions, mutate_architecture
from agilerl.hpo.mutation import Mutations
from agilerl.networks.value_networks import Temperature
from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl.training.train_off_policy import train_off_policy
from agilerl.training.train_offline import train_offline
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import make_vect_envs
from agilerl.vector import SyncPettingZooVecEnv

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
import cases

DENSE = {"hidden_size": [48, 48], "min_mlp_nodes": 8}
NET = {"latent_dim": 32, "encoder_config": DENSE, "head_config": DENSE}
MEMORY = {
    "latent_dim": 32,
    "encoder_config": {"hidden_state_size": 32, "min_hidden_state_size": 8},
    "head_config": DENSE,
}
OF_PARTS = {"latent_dim": 32, "head_config": DENSE}
PAIR = {"batch_size": 128, "learn_step": 2, "lr_actor": 1e-3, "lr_critic": 1e-3}
VALUES = {"batch_size": 128, "learn_step": 2, "lr": 1e-3}
ROLLOUT = {"batch_size": 64, "learn_step": 256, "update_epochs": 4}


class PartsOfPendulum(gym.ObservationWrapper[Any, Any, Any]):
    """Pendulum-v1 of which angle and speed are two parts."""

    def __init__(self) -> None:
        super().__init__(gym.make("Pendulum-v1"))
        angle, speed = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Box(-8, 8, (1,), np.float32)
        self.observation_space = gym.spaces.Dict(angle=angle, speed=speed)

    def observation(self, observation: Any) -> Any:
        return {"angle": observation[:2], "speed": observation[2:]}


class SeenBoxHills(cases.SeenHills):
    """`SeenHills` with two continuous actions."""

    action_space, _push = cases.BoxHills.action_space, cases.BoxHills._push


OWN = {"BlindHills": cases.BlindHills, "SeenBoxHills": SeenBoxHills, "PartsOfPendulum": PartsOfPendulum}
TEAMS = {
    "Couriers": cases.Couriers, "spread": lambda: simple_spread_v3.parallel_env(continuous_actions=True),
    "spread of choices": simple_spread_v3.parallel_env,
}  # fmt: skip
# name: algorithm, environment, constructor arguments
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "TD3": ("TD3", "Pendulum-v1", PAIR),
    "DDPG": ("DDPG", "Pendulum-v1", PAIR),
    "SAC": ("SAC", "Pendulum-v1", PAIR),
    "SAC discrete": ("SAC", "CartPole-v1", PAIR),
    "SAC shared": ("SAC", "Pendulum-v1", {**PAIR, "share_encoders": True}),
    "TQC": ("TQC", "Pendulum-v1", PAIR),
    "TD3 parts": ("TD3", "PartsOfPendulum", {**PAIR, "net_config": OF_PARTS}),
    "DDPG images": ("DDPG", "SeenBoxHills", {**PAIR, "net_config": {**cases.CNN, **OF_PARTS}}),
    "DQN": ("DQN", "CartPole-v1", VALUES),
    "QRDQN": ("QRDQN", "CartPole-v1", {**VALUES, "num_quantiles": 8}),
    "RainbowDQN": ("RainbowDQN", "CartPole-v1", {**VALUES, "v_max": 100.0}),
    "CQN": ("CQN", "CartPole-v1", VALUES),
    "CQL": ("CQL", "Pendulum-v1", {**PAIR, "num_samples": 2}),
    "IQL": ("IQL", "Pendulum-v1", PAIR),
    "TD3BC": ("TD3BC", "Pendulum-v1", PAIR),
    "BC": ("BC", "Pendulum-v1", {"batch_size": 128, "lr": 1e-3}),
    "PPO": ("PPO", "Pendulum-v1", ROLLOUT),
    "PPO shared": ("PPO", "CartPole-v1", {**ROLLOUT, "share_encoders": True}),
    "PPO discrete": ("PPO", "CartPole-v1", {**ROLLOUT, "share_encoders": False}),
    "PQN": ("PQN", "CartPole-v1", ROLLOUT),
    "RecurrentPPO": ("RecurrentPPO", "BlindHills", {**ROLLOUT, "net_config": MEMORY}),
    "IPPO": ("IPPO", "Couriers", ROLLOUT),
    "IPPO shared": ("IPPO", "Couriers", {**ROLLOUT, "share_encoders": True}),
    "MAPPO": ("MAPPO", "Couriers", ROLLOUT),
    "MADDPG": ("MADDPG", "Couriers", PAIR),
    "MADDPG spread": ("MADDPG", "spread", PAIR),
    "MATD3": ("MATD3", "spread", PAIR),
    "VDN": ("VDN", "spread of choices", VALUES),
    "QMIX": ("QMIX", "spread of choices", VALUES),
}
FAST = ("TD3", "MADDPG spread")


def test_every_algorithm_has_a_case() -> None:
    """Language policies have no rows of vectors, and bandits one network, whose table is test_mutations_table.py."""
    of_texts = {*algorithms.LANGUAGE, "BC_LM", "ILQL"}
    shipped = {name for name in algorithms._SHIPPED if name not in of_texts and not name.startswith("Neural")}
    assert {algo for algo, _, _ in CASES.values()} == shipped


@functools.cache
def trained(name: str) -> tuple[Any, Any]:
    """An agent after 1,024 steps, and (observations, actions or None) that it has not been measured on."""
    algo, world, options = CASES[name]
    cls: Any = algorithms.find_algorithm(algo)
    is_team = world in TEAMS
    if is_team:
        env: Any = SyncPettingZooVecEnv([TEAMS[world]] * 4)
        spaces: Any = dict(env.team.observation_spaces), dict(env.team.action_spaces)
    else:
        env = make_vect_envs(**({"make_env": OWN[world]} if world in OWN else {"env_name": world}), num_envs=4)
        spaces = env.single_observation_space, env.single_action_space
    agent = cls(*spaces, **{"net_config": NET, "seed": 5, **options})
    run = {"max_steps": 1_024, "evo_steps": 1_024, "eval_steps": 10, "seed": 3, "verbose": False}
    if cls.experience.on_policy:
        train: Any = train_multi_agent_on_policy if is_team else train_on_policy
        (agent,), _ = train(env, world, pop=[agent], **run)
        (later,), _ = train(env, world, pop=[agent.clone()], **{**run, "max_steps": 2_048})
        return agent, (later.probe_observations(512), None)
    memory: Any = ReplayBuffer(max_size=5_000, seed=7)
    if is_team:
        memory = MultiAgentReplayBuffer(5_000, None, agent_ids=env.team.agents, seed=7)
        (agent,), _ = train_multi_agent_off_policy(env, world, pop=[agent], memory=memory, **run)
    elif cls.experience is DATASET:
        (agent,), _ = train_offline(env, world, random_play(env), pop=[agent], memory=memory, **run)
    else:
        (agent,), _ = train_off_policy(env, world, pop=[agent], memory=memory, **run)
    env.close()
    batch = agent.make_batch(memory.sample(500))
    return agent, (batch.obs, batch.action)


def random_play(env: Any) -> dict[str, np.ndarray]:
    """2,000 transitions of random actions in four lanes."""
    kept: dict[str, list[Any]] = {k: [] for k in ("observations", "actions", "rewards", "terminals")}
    kept["next_observations"] = []
    env.action_space.seed(0)
    obs = env.reset(seed=0)[0]
    for _ in range(500):
        action = env.action_space.sample()
        later, reward, ended, cut, _ = env.step(action)
        row = obs, action, reward, ended | cut, later
        for column, value in zip(kept, row, strict=True):
            kept[column].extend(value)
        obs = later
    return {name: np.array(values) for name, values in kept.items()}


def outputs(agent: Any, rows: tuple[Any, Any]) -> dict[str, torch.Tensor]:
    """Of every evaluation network, critics next to the actions that were taken."""
    shown, found = agent.clone(), {}
    shown.remember_observations(*rows)
    for name, network in effects.networks_of(agent).items():
        if isinstance(network, Temperature):
            continue
        obs = agent.observations_for(name, rows[0]) if isinstance(agent, effects.Apart) else rows[0]
        actions = shown.probe_actions(name, 10_000) if network.num_beside else None
        with torch.no_grad(), effects.evaluating(network):
            found[name] = effects.output_of(network, obs) if actions is None else network(obs, actions.flatten(0, -2))
    return found


def mutated(agent: Any, rows: tuple[Any, Any], policy: str, method: str) -> tuple[Any, dict[str, float]]:
    """(record, relative change of every network's outputs on the rows) of one mutation of a copy."""
    twin = agent.clone()
    of = {group.eval_network: group for group in effects.policy_groups(twin)}[policy]
    effects.networks_of(twin)[policy].__dict__["sample_mutation_method"] = lambda *_, **__: method
    rng = np.random.default_rng(1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(effects, "drawn_policy", lambda *_: of)
        record = mutate_architecture(twin, ArchitectureOptions(0.5), rng, rng)
    before, after = outputs(agent, rows), outputs(twin, rows)
    return record, effects.changes(before, after)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FAST else pytest.mark.thorough) for n in CASES])
def test_mutations_keep_every_network(name: str) -> None:
    """Growth is exact (ReLU, no LayerNorm); what is removed changes policies by 10 % and values by 5 % at most.

    Both are bounded on half of a batch, and measured here on other rows, of which Couriers has rarer ones.
    """
    agent, rows = trained(name)
    applied, values = 0, 0.075 if CASES[name][1] == "Couriers" else 0.05
    for group in effects.policy_groups(agent):
        policies = {other.eval_network for other in effects.policy_groups(agent)}
        for method in effects.networks_of(agent)[group.eval_network].mutation_methods:
            record, changed = mutated(agent, rows, group.eval_network, method)
            if record.kind == "none":
                continue
            others = set(changed) - {group.eval_network}
            assert set(record.changes or ()) == others, "the record names every network"
            assert record.change is not None
            is_growth = method.rpartition(".")[2].startswith("add_")
            applied += not is_growth
            for network, change in changed.items():
                limit = 1e-4 if is_growth else 0.15 if network in policies else values
                assert change <= limit, (method, network, changed)
    assert applied, "no removal was small enough"


@pytest.mark.parametrize(
    ("name", "kind"), [("TD3", "activation"), ("SAC shared", "activation"), ("SAC shared", "parameters")]
)
def test_other_mutations_name_the_networks_that_they_change(name: str, kind: str) -> None:
    """Of noise these are the critics that read the policy's features."""
    agent, _ = trained(name)
    twin, kinds = agent.clone(), ("no_mutation", "architecture", "new_layer_prob", "parameters", "activation", "rl_hp")
    Mutations(**{k: float(k == kind) for k in kinds}, rand_seed=1).mutation([twin])
    assert set(twin.mutation_record.changes) == {"critic_1", "critic_2"}
    assert all(0 < change < 1 for change in twin.mutation_record.changes.values())
