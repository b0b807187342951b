"""IQL, TD3BC, BC and CQL: what is stored of a data set, populations that learn and evolve, clones, files, limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from agilerl.algorithms import BC, CQL, IQL, TD3BC, find_algorithm
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.collect.offline import fill
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.options import OfflineOptions
from agilerl.data.dataset import read_dataset
from agilerl.errors import AlgorithmError, ShapeError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.modules.mlp import EvolvableMLP
from agilerl.training.train_offline import train_offline
from agilerl.utils.utils import make_vect_envs

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)
UNEVEN = gym.spaces.Box(
    np.array([-1.0, 0.0, 2.0]), np.array([2.0, 5.0, 2.0]), dtype=np.float64
)  # the last has one value
NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 8}
OPTIONS = OfflineOptions(max_steps=1, evo_steps=1)
CONTINUOUS = {"IQL": IQL, "TD3BC": TD3BC, "BC": BC, "CQL": CQL}
LIMITS: dict[str, dict[str, tuple[float, float]]] = {
    "IQL": {"expectile": (0.5, 0.95), "inverse_temperature": (0.5, 10.0), "lr_critic": (1e-4, 1e-2)},
    "TD3BC": {"alpha": (0.5, 10.0), "lr_actor": (1e-4, 1e-2)},
    "BC": {"lr": (1e-4, 1e-2), "batch_size": (8, 64)},
    "CQL": {"alpha": (0.1, 10.0), "lr_actor": (1e-4, 1e-2)},
}


# --- what is stored -------------------------------------------------------------------------------------------------


def data(action: np.ndarray) -> Any:
    count, rng = len(action), np.random.default_rng(0)
    return read_dataset(
        {
            "observations": rng.normal(size=(count, 3)),
            "next_observations": rng.normal(size=(count, 3)),
            "actions": action,
            "rewards": np.arange(count, dtype=float),
            "terminals": np.zeros(count, bool),
        }
    )


def test_actions_of_a_data_set_are_stored_raw_and_come_back_at_the_bounds() -> None:
    agent = TD3BC(OBS, UNEVEN, net_config=NET)
    action = np.array([[-1.0, 0.0, 2.0], [2.0, 5.0, 2.0], [0.5, 1.0, 2.0]])
    memory = ReplayBuffer(max_size=10)
    assert fill(memory, data(action), agent, OPTIONS) == []
    stored = memory.sample_from_indices(np.arange(3))["action"].numpy()
    assert stored == pytest.approx(np.array([[-1, -1, 0], [1, 1, 0], [0, -0.6, 0]]), abs=1e-6)
    assert agent.environment_action(stored) == pytest.approx(action, abs=1e-6)


def test_actions_outside_of_the_bounds_are_refused_by_more_than_rounding() -> None:
    agent = IQL(OBS, UNEVEN, net_config=NET)
    action = np.array([[-1.0, 0.0, 2.0], [2.0 + 1e-7, 5.0, 2.0], [9.0, -3.0, 2.0]])
    memory = ReplayBuffer(max_size=10)
    with pytest.raises(ShapeError, match=r"actions of 1 of 3 rows lie outside of Box.* fix: .*np.clip\(actions"):
        fill(memory, data(action), agent, OPTIONS)
    assert fill(memory, data(action[:2]), agent, OPTIONS) == []
    stored = memory.sample_from_indices(np.arange(2))["action"].numpy()
    assert stored.tolist() == [[-1, -1, 0], [1, 1, 0]]


def test_the_range_of_raw_actions_is_that_of_the_policy() -> None:
    agent = BC(OBS, UNEVEN, net_config={**NET, "head_config": {"hidden_size": [16], "output_activation": "Sigmoid"}})
    stored, outside = agent.action_form.stored(agent, np.array([[-1.0, 5.0, 2.0], [0.5, 2.5, 2.0]]))
    assert stored == pytest.approx(np.array([[0, 1, 0.5], [0.5, 0.5, 0.5]]), abs=1e-6)
    assert outside == 0


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.zeros((4, 2)), r"actions of shape \[2\]; CQL was built for \[3\]"),
        (np.array([[0.0, np.nan, 2.0]] * 2), r"^2 of 2 actions are not finite\. fix: finite ones\.$"),
    ],
    ids=["shape", "not finite"],
)
def test_actions_of_another_space_are_a_named_error(action: np.ndarray, message: str) -> None:
    agent = CQL(OBS, UNEVEN, net_config=NET)
    with pytest.raises(ShapeError, match=message):
        fill(ReplayBuffer(max_size=10), data(action), agent, OPTIONS)


def test_choices_are_stored_as_they_are() -> None:
    agent = BC(OBS, gym.spaces.Discrete(3), net_config=NET)
    memory = ReplayBuffer(max_size=10)
    assert fill(memory, data(np.array([2, 0, 1])), agent, OPTIONS) == []
    assert memory.sample_from_indices(np.arange(3))["action"].flatten().tolist() == [2, 0, 1]
    with pytest.raises(ShapeError, match="expected integers from 0 to 2"):
        fill(memory, data(np.array([3, 0, 1])), agent, OPTIONS)


# --- populations ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pendulum() -> dict[str, np.ndarray]:
    """300 steps of random actions."""
    env, rng = gym.make("Pendulum-v1"), np.random.default_rng(1)
    rows: dict[str, list[Any]] = {name: [] for name in ("observations", "actions", "rewards", "terminals", "timeouts")}
    obs, _ = env.reset(seed=1)
    for _ in range(300):
        action = rng.uniform(-2, 2, 1).astype(np.float32)
        later, reward, ended, cut, _ = env.step(action)
        for name, value in zip(rows, (obs, action, reward, ended, cut), strict=True):
            rows[name].append(value)
        obs = env.reset()[0] if ended or cut else later
    return {name: np.array(values) for name, values in rows.items()}


def weights(agent: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in agent.actor.parameters()])


@pytest.mark.parametrize("algo", CONTINUOUS)
def test_a_population_learns_from_data_and_evolves_by_every_kind_of_mutation(
    algo: str, pendulum: dict[str, np.ndarray], tmp_path: Path
) -> None:
    env = make_vect_envs("Pendulum-v1", num_envs=2)
    config = HyperparameterConfig(
        **{name: RLParameter(min=low, max=high) for name, (low, high) in LIMITS[algo].items()}
    )
    pop = find_algorithm(algo).population(
        4, env.single_observation_space, env.single_action_space, seed=3, net_config=NET, batch_size=16,
        hp_config=config, **({"num_samples": 2} if algo == "CQL" else {}),
    )  # fmt: skip
    before = [weights(agent) for agent in pop]
    pop, fitnesses = train_offline(
        env, "Pendulum-v1", pendulum, algo, pop, ReplayBuffer(max_size=10), max_steps=24, evo_steps=8, eval_steps=5,
        tournament=TournamentSelection(2, True, 4, 1, seed=4), verbose=False, seed=5,
        mutation=Mutations(0, 0.4, 0.3, 0.3, 0.2, 0.4, rand_seed=2),
    )  # fmt: skip
    assert np.shape(fitnesses) == (3, 4)
    assert {agent.steps[-1] for agent in pop} == {24}
    assert len({agent.mut for agent in pop} - {None, "None"}) > 1, "mutations of more than one kind"
    for agent in pop:
        assert not any(weights(agent).shape == w.shape and torch.equal(weights(agent), w) for w in before)
        assert all(torch.isfinite(p).all() for name in agent.evaluation_networks().values() for p in name.parameters())
    agent = pop[0]
    obs = np.array(pendulum["observations"][:5])
    agent.set_training_mode(False)
    action = agent.get_action(obs)
    assert action.shape == (5, 1)
    assert (np.abs(action) <= 2).all()
    twin = agent.clone(7)
    assert np.array_equal(twin.get_action(obs), action)
    agent.save_checkpoint(tmp_path / "agent.pt")
    loaded = find_algorithm(algo).load(tmp_path / "agent.pt")
    assert np.array_equal(loaded.get_action(obs, training=False), action)
    rows = ReplayBuffer(max_size=10)
    fill(rows, read_dataset(pendulum), loaded, OPTIONS)
    same = rows.sample_from_indices(np.arange(16))
    agent._exploration, twin._exploration, loaded._exploration = (np.random.default_rng(1) for _ in range(3))
    agent.learn(same), twin.learn(same), loaded.learn(same)
    assert torch.equal(weights(agent), weights(twin)), "moments and other networks go along"
    assert torch.equal(weights(agent), weights(loaded))
    env.close()


# --- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ["IQL", "TD3BC", "CQL"])
def test_choices_are_not_for_algorithms_of_box_actions(algo: str) -> None:
    with pytest.raises(AlgorithmError, match=rf"{algo} needs Box actions; got Discrete\(2\).*CQN"):
        find_algorithm(algo)(OBS, gym.spaces.Discrete(2))


@pytest.mark.parametrize("algo", CONTINUOUS)
def test_bounds_without_end_are_refused(algo: str) -> None:
    with pytest.raises(AlgorithmError, match=f"{algo} needs bounded actions"):
        find_algorithm(algo)(OBS, gym.spaces.Box(-np.inf, np.inf, (2,), np.float32))


def test_a_learned_weight_starts_above_nothing() -> None:
    with pytest.raises(AlgorithmError, match=r"CQL: a learned alpha starts above 0; got alpha=0"):
        CQL(OBS, UNEVEN, alpha=0, threshold=1.0)
    with pytest.raises(AlgorithmError, match="alpha is learned where there is a threshold"):
        CQL(OBS, UNEVEN, threshold=1.0, hp_config=HyperparameterConfig(alpha=RLParameter(min=0.1, max=10.0)))
    assert CQL(OBS, UNEVEN, net_config=NET, alpha=2.0, threshold=1.0).multiplier.alpha == pytest.approx(2.0)


def test_the_critics_and_the_value_can_read_the_features_of_the_policy() -> None:
    agent = IQL(OBS, UNEVEN, net_config=NET, share_encoders=True)
    assert agent.critic_1.encoder_source is agent.value.encoder_source is agent.actor
    twin = agent.clone()
    assert twin.value.encoder_source is twin.actor


# --- observations by mean and deviation of the data -----------------------------------------------------------------


def test_td3bc_reads_observations_in_units_of_the_data_and_takes_them_along(
    pendulum: dict[str, np.ndarray], tmp_path: Path
) -> None:
    env = make_vect_envs("Pendulum-v1", num_envs=1)
    pop = TD3BC.population(
        2, env.single_observation_space, env.single_action_space, seed=3, net_config=NET, batch_size=16,
        normalize_observations=True,
    )  # fmt: skip
    memory = ReplayBuffer(max_size=10)
    pop, _ = train_offline(
        env, "Pendulum-v1", pendulum, pop=pop, memory=memory, max_steps=8, evo_steps=4, eval_steps=5, verbose=False,
        tournament=TournamentSelection(2, True, 2, 1, seed=4), mutation=Mutations(0, 1, 0.5, 0, 0, 0, rand_seed=2),
        seed=5,
    )  # fmt: skip
    seen = pendulum["observations"][:-1]  # the last step of all, and the one that was cut, have no successor
    seen = seen[~pendulum["timeouts"][:-1]].astype(np.float64)
    assert len(seen) == len(memory)
    obs = np.array([[0.5, -0.5, 3.0]], np.float32)
    for agent in pop:
        for name in agent.registry.all_registered():
            network = getattr(agent, name)
            read = network.preprocess(obs).numpy()
            assert read == pytest.approx((obs - seen.mean(0)) / (seen.std(0) + 1e-3), abs=2e-3), name
    agent = pop[0]
    agent.save_checkpoint(tmp_path / "agent.pt")
    loaded = TD3BC.load(tmp_path / "agent.pt")
    for name in agent.registry.all_registered():
        assert torch.equal(getattr(loaded, name).preprocess(obs), getattr(agent, name).preprocess(obs)), name
    assert np.array_equal(loaded.get_action(obs, training=False), agent.get_action(obs, training=False))
    env.close()


def test_learners_agree_where_observations_are_normalised(pendulum: dict[str, np.ndarray]) -> None:
    found = []
    for learner in ("fused", "sequential"):
        env = make_vect_envs("Pendulum-v1", num_envs=1)
        pop = TD3BC.population(
            2, env.single_observation_space, env.single_action_space, seed=3, net_config=NET, batch_size=16,
            normalize_observations=True,
        )  # fmt: skip
        pop, _ = train_offline(
            env, "Pendulum-v1", pendulum, pop=pop, memory=ReplayBuffer(max_size=10), max_steps=10, evo_steps=10,
            eval_steps=1, verbose=False, seed=5, learner=learner,
        )  # fmt: skip
        found.append(torch.cat([weights(agent) for agent in pop]))
        env.close()
    assert torch.allclose(*found, atol=1e-5)


def test_what_cannot_be_normalised_is_a_named_error() -> None:
    with pytest.raises(AlgorithmError, match=r"TD3BC\(normalize_observations=True\): actor is a EvolvableMLP"):
        TD3BC(OBS, UNEVEN, net_config=NET, normalize_observations=True, actor_network=EvolvableMLP(3, 3, [8]))


def test_algorithms_that_act_and_those_that_learn_from_data_are_not_named_for_one_another() -> None:
    with pytest.raises(AlgorithmError, match=r"one of: DDPG, PPO, SAC, TD3, TQC\.$"):
        find_algorithm("DQN")(OBS, UNEVEN)
    with pytest.raises(AlgorithmError, match=r"one of: BC, CQL, IQL, TD3BC\.$"):
        find_algorithm("CQN")(OBS, UNEVEN)


def test_critics_read_as_a_policy_that_is_given_and_normalises() -> None:
    first = TD3BC(OBS, UNEVEN, net_config=NET, normalize_observations=True)
    first.actor.set_observation_statistics(np.full(3, 0.5), np.full(3, 4.0), 0.0)
    agent = TD3BC(OBS, UNEVEN, net_config=NET, actor_network=first.actor.clone())
    obs = np.array([[0.5, 2.5, -1.5]], np.float32)
    for name in agent.registry.all_registered():
        assert getattr(agent, name).preprocess(obs).tolist() == [[0, 1, -1]], name


# --- every kind of observation --------------------------------------------------------------------------------------

OBSERVATIONS = {
    "image": gym.spaces.Box(0, 255, (3, 12, 12), np.uint8),
    "discrete": gym.spaces.Discrete(4),
    "dict": gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (2,), np.float32), "b": gym.spaces.Discrete(3)}),
}


@pytest.mark.parametrize("kind", OBSERVATIONS)
@pytest.mark.parametrize("algo", CONTINUOUS)
def test_every_kind_of_observation_is_learned_from_alike_by_rows_and_by_modules(algo: str, kind: str) -> None:
    space = OBSERVATIONS[kind]
    space.seed(1)
    more: dict[str, Any] = {"num_samples": 2} if algo == "CQL" else {}
    agent = find_algorithm(algo)(space, gym.spaces.Box(-1, 1, (2,), np.float32), seed=1, batch_size=4, **more)
    rows = [[space.sample() for _ in range(4)] for _ in range(2)]
    stack = {True: lambda x: {k: np.stack([r[k] for r in x]) for k in x[0]}, False: np.stack}[kind == "dict"]
    obs, later = (stack(x) for x in rows)
    taken = np.random.default_rng(1).uniform(-1, 1, (4, 2)).astype(np.float32)
    given = {"obs": obs, "action": taken, "reward": np.ones(4), "next_obs": later, "done": np.zeros(4)}
    twin, before = agent.clone(), weights(agent)
    for number in (1, 2):
        batch = replace(agent.make_batch(given), number=number)
        one, other = agent.learn_batch(batch), twin.learn_batch(batch, True)
        assert float(one.loss) == pytest.approx(float(other.loss), rel=1e-4)
    assert torch.allclose(weights(agent), weights(twin), atol=1e-5)
    assert not torch.equal(weights(agent), before)
