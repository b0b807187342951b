"""DDPG, TD3, SAC and RainbowDQN as agents: acting, learning, spaces, noise, hyperparameters, files, evolution."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from agilerl.algorithms import DDPG, SAC, TD3, RainbowDQN, find_algorithm
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.errors import AlgorithmError, ConfigError, ShapeError
from agilerl.hpo.mutation import Mutations
from agilerl.modules.layers import noise_size
from agilerl.networks import ContinuousQNetwork, DeterministicActor, RainbowQNetwork
from agilerl.utils.utils import agent_from_policy, create_population

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)
BOX = gym.spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
CHOICE = gym.spaces.Discrete(4)
NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 12}
KINDS: list[tuple[Any, Any]] = [(DDPG, BOX), (TD3, BOX), (SAC, BOX), (SAC, CHOICE), (RainbowDQN, CHOICE)]
IDS = ["DDPG", "TD3", "SAC", "SAC-discrete", "RainbowDQN"]


def agent(cls: Any, space: Any = BOX, **options: Any) -> Any:
    return cls(OBS, space, **{"seed": 1, "net_config": NET, **options})


def transitions(space: Any, size: int = 6) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    box = isinstance(space, gym.spaces.Box)
    return {
        "obs": torch.randn(size, 3, generator=g),
        "action": torch.rand(size, 2, generator=g) * 2 - 1 if box else torch.randint(0, 4, (size, 1), generator=g),
        "reward": torch.randn(size, 1, generator=g),
        "next_obs": torch.randn(size, 3, generator=g),
        "done": (torch.rand(size, 1, generator=g) < 0.3).float(),
    }


# --- acting


@pytest.mark.parametrize(("cls", "space"), KINDS, ids=IDS)
def test_actions_have_a_row_per_observation_and_the_environment_gets_what_its_space_holds(cls: Any, space: Any) -> None:
    a = agent(cls, space)
    width = (2,) if space is BOX else ()
    for obs, count in ((np.zeros(3, np.float32), 1), (torch.zeros(5, 3), 5)):
        for training in (True, False, None):
            action = a.get_action(obs, training=training)
            assert action.shape == (count, *width)
            assert action.dtype == (np.float32 if width else np.int64)
            taken = action if training is False and space is BOX else a.environment_action(action)
            assert all(space.contains(x if width else int(x)) for x in taken)
    assert a.get_action(np.zeros(3)).shape[0] == 1


@pytest.mark.parametrize(("cls", "space"), KINDS, ids=IDS)
def test_exploring_differs_and_evaluation_does_not(cls: Any, space: Any) -> None:
    a, obs = agent(cls, space), np.random.default_rng(0).standard_normal((300, 3)).astype(np.float32)
    quiet = a.get_action(obs, training=False)
    np.testing.assert_array_equal(a.get_action(obs, training=False), quiet)
    np.testing.assert_array_equal(a.get_action(obs, training=True).shape, quiet.shape)
    assert not np.array_equal(a.get_action(obs, training=True), a.get_action(obs, training=True))
    assert a.actor.training, "the mode is left as it was"
    a.set_training_mode(False)
    np.testing.assert_array_equal(a.get_action(obs), quiet)
    np.testing.assert_array_equal(a._greedy(obs), quiet)


def test_raw_actions_reach_unequal_bounds() -> None:
    a = agent(TD3)
    np.testing.assert_allclose(
        a.environment_action(np.array([[-1.0, -1], [1, 1], [0, 0.5]])), [[-1, 0], [2, 10], [0.5, 7.5]]
    )
    matrix = agent(TD3, gym.spaces.Box(-2, 2, (2, 2), np.float32))
    assert matrix.environment_action(np.zeros((5, 3, 4))).shape == (5, 3, 2, 2)


@pytest.mark.parametrize("cls", [RainbowDQN, SAC])
def test_masked_actions_are_never_taken(cls: Any) -> None:
    mask = np.array([[0, 1, 1, 0], [0, 0, 0, 1], [1, 1, 1, 1]])
    for options in ({}, {"noisy": False}) if cls is RainbowDQN else ({},):
        a = agent(cls, CHOICE, **options)
        for training in (True, False):
            for _ in range(60):
                action = a.get_action(np.zeros((3, 3)), action_mask=mask, training=training, epsilon=0.5)
                assert mask[np.arange(3), action].all()
        assert a.get_action(np.zeros(3), action_mask=mask[1]).tolist() == [3]
        with pytest.raises(ShapeError, match="allows no action"):
            a.get_action(np.zeros(3), action_mask=np.zeros(4))


def test_rainbow_without_noisy_layers_explores_by_epsilon() -> None:
    a = agent(RainbowDQN, CHOICE, noisy=False)
    obs = np.zeros((4000, 3), np.float32)
    greedy = a.get_action(obs)[0]
    share = (a.get_action(obs, epsilon=0.4) == greedy).mean()
    assert share == pytest.approx(0.6 + 0.4 / 4, abs=0.03), "four standard deviations of 0.0072"


def test_every_update_has_noise_of_its_own_for_policy_and_target_in_each_member() -> None:
    a, b = (agent(RainbowDQN, CHOICE, index=i) for i in range(2))
    seen = []
    for member in (a, b):
        drawn = member.draw_noise(np.random.default_rng(member.index), (3, 16))
        assert {x.shape for x in drawn.values()} == {(3, noise_size(member.actor))}
        seen += [row for x in drawn.values() for row in x]
    assert len({row.tobytes() for row in seen}) == len(seen) == 12
    quiet = agent(RainbowDQN, CHOICE, noisy=False)
    assert quiet.draw_noise(np.random.default_rng(0), (3, 16)) == {}


# --- noise


@pytest.mark.parametrize("cls", [DDPG, TD3])
def test_a_path_goes_on_from_call_to_call_and_begins_anew_where_it_is_told(cls: Any) -> None:
    a = agent(cls, vect_noise_dim=3, theta=0.0, dt=1.0, expl_noise=0.1, O_U_noise=True)
    first = a.action_noise(np.zeros((3, 2)))
    second = a.action_noise(np.zeros((3, 2)))
    np.testing.assert_allclose(a.noise_state, second, rtol=1e-6)  # θ = 0: a random walk, so the steps are what is new
    # (0.1 √1 per step): the second contains the first
    reference = np.random.Generator(type(a._exploration.bit_generator)())
    reference.bit_generator.state = agent(cls)._exploration.bit_generator.state
    steps = 0.1 * reference.standard_normal((2, 3, 2))
    np.testing.assert_allclose(first, steps[0], rtol=1e-5)
    np.testing.assert_allclose(second, steps[0] + steps[1], rtol=1e-5)
    a.reset_action_noise([0, 2])
    assert a.noise_state[[0, 2]].tolist() == [[0, 0], [0, 0]]
    np.testing.assert_allclose(a.noise_state[1], second[1], rtol=1e-6)


def test_drawing_ahead_gives_the_path_that_single_steps_give() -> None:
    ahead, stepwise = agent(TD3), agent(TD3)
    (path,) = ahead.draw_exploration(np.random.default_rng(4), (50, 2))
    rng = np.random.default_rng(4)
    single = np.concatenate([stepwise.draw_exploration(rng, (2,))[0][None] for _ in range(50)])
    np.testing.assert_allclose(path, single, rtol=1e-12)
    np.testing.assert_array_equal(ahead.noise_state, path[-1])


def test_gaussian_noise_is_clipped_to_the_raw_bounds() -> None:
    a = agent(DDPG, O_U_noise=False, expl_noise=np.array([0.0, 5.0]))
    raw = torch.zeros(200, 2)
    action = a.explore(raw, a.draw_exploration(np.random.default_rng(0), (200,)), 0.0)
    assert (action[:, 0] == 0).all(), "a deviation per component"
    assert set(np.abs(action[:, 1]).round(6)[np.abs(action[:, 1]) >= 1]) == {1.0}


@pytest.mark.parametrize("cls", [DDPG, TD3])
@pytest.mark.parametrize(("activation", "low"), [("Sigmoid", 0), ("Softmax", 0), ("Softsign", -1), ("Tanh", -1)])
def test_random_actions_fill_the_range_of_the_policy(cls: Any, activation: str, low: int) -> None:
    a = agent(cls, net_config={**NET, "head_config": {"hidden_size": [16], "output_activation": activation}})
    drawn = a.random_action(np.random.default_rng(0), (400,))
    np.testing.assert_array_equal(drawn, np.random.default_rng(0).uniform(low, 1, (400, 2)).astype(np.float32))
    acted = a.environment_action(drawn)
    at_bounds = ((acted == BOX.low) | (acted == BOX.high)).mean()
    assert at_bounds == 0, "a Sigmoid used to send every second one to the lower bound"


# --- learning


@pytest.mark.parametrize(("cls", "space"), KINDS[:4], ids=IDS[:4])
def test_learn_returns_actor_and_critic_loss(cls: Any, space: Any) -> None:
    a = agent(cls, space)
    losses = [a.learn(transitions(space)) for _ in range(4)]
    skipped = [actor is None for actor, _ in losses]
    assert skipped == ([True, False] * 2 if cls in (DDPG, TD3) else [False] * 4)
    assert all(isinstance(critic, float) and critic >= 0 for _, critic in losses)
    with pytest.raises(TypeError, match="experience_n"):
        a.learn(transitions(space), experience_n=None)


def test_a_wrong_number_of_action_components_is_named() -> None:
    with pytest.raises(ShapeError, match=r"actions of shape \(6, 2\) for 6 transitions of 4 components"):
        agent(TD3, gym.spaces.Box(-1, 1, (4,))).learn(transitions(BOX))


def test_rainbow_returns_loss_indices_and_priorities_and_weighs_rows() -> None:
    made = transitions(CHOICE) | {
        "weights": torch.tensor([[1.0], [0], [0], [0], [0], [0]]),
        "idxs": torch.arange(6)[:, None],
    }
    a = agent(RainbowDQN, CHOICE, noisy=False, v_min=-3, v_max=3, prior_eps=0.5)
    loss, indices, priorities = a.clone().learn(made, per=True)
    assert torch.equal(indices, made["idxs"])
    assert priorities.shape == (6,)
    assert (priorities > 0.5).all()
    assert loss == pytest.approx((priorities[0] - 0.5) / 6, rel=1e-5), "the other rows have weight 0"
    plain, _, none = a.clone().learn(made)
    assert none is None
    assert plain == pytest.approx(float((priorities - 0.5).mean()), rel=1e-5)
    with pytest.raises(ShapeError, match=r"no weights. fix: sample a PrioritizedReplayBuffer"):
        a.learn(transitions(CHOICE), per=True)


def test_rainbow_learns_from_n_steps_with_their_discount_and_from_both_where_asked() -> None:
    one, several = transitions(CHOICE), transitions(CHOICE)
    several["reward"] = several["reward"] + 1
    base = {"noisy": False, "v_min": -3, "v_max": 3, "n_step": 3, "gamma": 0.9}
    losses = {}
    for name, options in {"n": {}, "both": {"combined_reward": True}}.items():
        losses[name] = agent(RainbowDQN, CHOICE, **base, **options).learn(one, several)[0]
    losses["1"] = agent(RainbowDQN, CHOICE, **base).learn(one)[0]
    by_hand = agent(RainbowDQN, CHOICE, **base | {"gamma": 0.9**3}).learn(several)[0]
    stored = agent(RainbowDQN, CHOICE, **base).learn(several | {"discount": 0.9**3 * (1 - several["done"])})[0]
    assert losses["n"] == pytest.approx(by_hand, rel=1e-6)
    assert losses["n"] == pytest.approx(stored, rel=1e-6)
    assert losses["both"] == pytest.approx(losses["1"] + losses["n"], rel=1e-5)
    with pytest.raises(ShapeError, match="got 6 experiences and 4 n_experiences"):
        agent(RainbowDQN, CHOICE, **base).learn(one, transitions(CHOICE, 4))


# --- hyperparameters


def test_rainbow_follows_its_hyperparameters_into_the_networks() -> None:
    a = agent(RainbowDQN, CHOICE, num_atoms=11, v_min=-1, v_max=1)
    for _ in range(3):
        a.learn(transitions(CHOICE))
    moments = a.optimizer.optimizer.state[a.actor.head_net.model.linear_0.weight]["exp_avg"].clone()
    target_before = a.actor_target.value_net.model.linear_output.bias.clone()
    a.num_atoms = 21
    assert a.actor(np.zeros(3)).shape == (1, 4)
    assert a.actor.output(np.zeros(3)).shape == a.actor_target.output(np.zeros(3)).shape == (1, 4, 21)
    torch.testing.assert_close(a.actor_target.value_net.model.linear_output.bias[::2], target_before)
    assert not any(p.requires_grad for p in a.actor_target.parameters())
    torch.testing.assert_close(a.optimizer.optimizer.state[a.actor.head_net.model.linear_0.weight]["exp_avg"], moments)
    a.v_min, a.v_max, a.noise_std = -5.0, 3.0, 0.1
    assert (a.actor.v_min, a.actor_target.v_max, a.actor.noise_std) == (-5, 3, 0.1)
    a.learn(transitions(CHOICE))
    a.v_min = 4.0
    with pytest.raises(ConfigError, match="v_min must lie below v_max"):
        a.learn(transitions(CHOICE))


NUMBERS: dict[str, tuple[Any, Any, list[str]]] = {
    "DDPG": (DDPG, BOX, ["lr_actor", "lr_critic", "gamma", "tau", "policy_freq", "expl_noise", "theta", "dt"]),
    "TD3": (TD3, BOX, ["lr_actor", "policy_freq", "expl_noise", "policy_noise", "noise_clip", "learn_step", "tau"]),
    "SAC": (SAC, BOX, ["lr_actor", "lr_critic", "lr_alpha", "target_entropy", "gamma", "tau", "batch_size"]),
    "RainbowDQN": (RainbowDQN, CHOICE, ["lr", "num_atoms", "v_max", "noise_std", "beta", "prior_eps"]),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_can_be_mutated_and_learning_goes_on(name: str) -> None:
    cls, space, names = NUMBERS[name]
    for hyperparameter in names:
        a = agent(cls, space)
        value = getattr(a, hyperparameter)
        kind = type(value)
        ends = sorted((value / 4, value * 4))
        a.registry.hp_config = HyperparameterConfig(**{hyperparameter: RLParameter(*ends, dtype=kind)})
        a.learn(transitions(space))
        Mutations(0, 0, 0, 0, 0, 1, rand_seed=2).rl_hyperparam_mutation(a)
        assert a.mut == hyperparameter
        assert type(getattr(a, hyperparameter)) is kind
        assert getattr(a, hyperparameter) != value
        a.learn(transitions(space))
        a.get_action(np.zeros(3))


# --- construction


BAD: list[tuple[Any, Any, dict[str, Any], str]] = [
    (TD3, BOX, {"policy_freq": 0}, "TD3: policy_freq must be an integer of at least 1; got 0"),
    (TD3, BOX, {"batch_size": 2.5}, "batch_size must be an integer"),
    (TD3, BOX, {"lr_actor": 0}, "lr_actor must be above 0"),
    (DDPG, BOX, {"expl_noise": -1}, "expl_noise must be at least 0"),
    (DDPG, BOX, {"gamma": 1.5}, r"gamma must be in \[0, 1\]"),
    (SAC, BOX, {"tau": 0}, r"tau must be in \(0, 1\]"),
    (SAC, BOX, {"init_temperature": -1}, "init_temperature must be above 0"),
    (SAC, BOX, {"critic_networks": [1]}, "must hold two critics; got 1"),
    (RainbowDQN, CHOICE, {"num_atoms": 1}, "num_atoms must be an integer of at least 2"),
    (RainbowDQN, CHOICE, {"v_min": 5, "v_max": 1}, "v_min must lie below v_max"),
    (TD3, BOX, {"net_config": {"latent": 3}}, "Did you mean 'latent_dim'"),
]


@pytest.mark.parametrize(("cls", "space", "options", "words"), BAD, ids=[str(list(b[2])) + b[0].__name__ for b in BAD])
def test_bad_values_are_refused_by_name(cls: Any, space: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        agent(cls, space, **options)


@pytest.mark.parametrize(("cls", "space"), KINDS[:4], ids=IDS[:4])
def test_foreign_networks_are_refused(cls: Any, space: Any) -> None:
    with pytest.raises(TypeError, match="'actor_network' must be an EvolvableModule; got str"):
        agent(cls, space, actor_network="mlp")


def test_given_networks_are_used_and_an_actor_alone_gets_critics() -> None:
    actor = DeterministicActor(OBS, BOX, latent_dim=9)
    critics = [ContinuousQNetwork(OBS, BOX, random_seed=i) for i in range(2)]
    a = TD3(OBS, BOX, actor_network=actor, critic_networks=critics)
    assert (a.actor, a.critic_1, a.critic_2) == (actor, *critics)
    assert isinstance(TD3(OBS, BOX, actor_network=actor).critic_2, ContinuousQNetwork)
    net = RainbowQNetwork(OBS, CHOICE, num_atoms=7, v_min=-2, v_max=2, dueling=False)
    rainbow = RainbowDQN(OBS, CHOICE, actor_network=net)
    assert (rainbow.num_atoms, rainbow.v_max, rainbow.dueling) == (7, 2, False), "the network says what it is"
    twins = agent(TD3)
    assert not torch.equal(twins.critic_1.head_net.model.linear_0.weight, twins.critic_2.head_net.model.linear_0.weight)
    config = {"head_config": {"hidden_size": [8], "output_activation": "Sigmoid"}}
    a = TD3(OBS, BOX, net_config=config)
    assert (a.raw_bounds, a.critic_1.head_net.output_activation) == ((0, 1), None)


def test_critics_see_observations_as_the_policy_does() -> None:
    actor = DeterministicActor(OBS, BOX, scale_observations=True)
    assert TD3(OBS, BOX, actor_network=actor).critic_2.scale_observations
    with pytest.raises(AlgorithmError, match="critic_network has scale_observations=False, the actor True"):
        DDPG(OBS, BOX, actor_network=actor, critic_network=ContinuousQNetwork(OBS, BOX))


INIT_HP = {
    "BATCH_SIZE": 32, "LR_ACTOR": 2e-4, "LR_CRITIC": 2e-3, "GAMMA": 0.95, "TAU": 0.02, "POLICY_FREQ": 3,
    "O_U_NOISE": False, "EXPL_NOISE": 0.3, "MEAN_NOISE": 0.1, "THETA": 0.2, "DT": 0.05, "LEARN_STEP": 2,
    "SHARE_ENCODERS": False, "LR": 3e-3, "NUM_ATOMS": 21, "BETA": 0.5, "PRIOR_EPS": 1e-5, "N_STEP": 5,
    "MEMORY_SIZE": 100, "PER": True,
}  # fmt: skip


@pytest.mark.filterwarnings("error")
def test_the_factory_takes_published_names_and_keys() -> None:
    for name, cls, space in (
        ("td3", TD3, BOX),
        ("DDPG", DDPG, BOX),
        ("SAC", SAC, BOX),
        ("Rainbow DQN", RainbowDQN, CHOICE),
    ):
        assert find_algorithm(name) is cls
        pop = create_population(name, NET, INIT_HP, OBS, space, population_size=2, num_envs=4, seed=1)
        assert [type(a) for a in pop] == [cls] * 2
        assert {(a.batch_size, a.gamma, a.tau, a.learn_step) for a in pop} == {(32, 0.95, 0.02, 2)}
        if cls in (TD3, DDPG):
            got = [pop[0].policy_freq, pop[0].O_U_noise, pop[0].expl_noise, pop[0].mean_noise, pop[0].theta, pop[0].dt]
            assert got == [3, False, 0.3, 0.1, 0.2, 0.05]
            assert pop[0].noise_state.shape == (4, 2)
        if cls is RainbowDQN:
            a = pop[0]
            assert (a.num_atoms, a.beta, a.prior_eps, a.n_step, a.lr) == (21, 0.5, 1e-5, 5, 3e-3)
            assert (a.v_min, a.v_max) == (-100, 100), "the factory's own defaults"
        else:
            assert (pop[0].lr_actor, pop[0].lr_critic) == (2e-4, 2e-3)


def test_the_factory_hands_critics_over() -> None:
    critic = ContinuousQNetwork(OBS, BOX, latent_dim=11)
    pop = create_population("TD3", NET, None, OBS, BOX, critic_network=critic, population_size=2)
    assert [n.latent_dim for a in pop for n in (a.critic_1, a.critic_2)] == [11] * 4
    assert len({id(n) for a in pop for n in (a.critic_1, a.critic_2)}) == 4
    with pytest.raises(ConfigError, match="DQN has no critic"):
        create_population("DQN", NET, None, OBS, CHOICE, critic_network=critic)


# --- copies, files, training


def everything(a: Any) -> dict[str, Tensor]:
    found = {f"{n}.{k}": v for n in a.registry.all_registered() for k, v in getattr(a, n).state_dict().items()}
    for config in a.registry.optimizers:
        for key, values in getattr(a, config.name).state_dict()["state"].items():
            found |= {f"{config.name}.{key}.{k}": v for k, v in values.items()}
    return found


@pytest.mark.parametrize(("cls", "space"), KINDS, ids=IDS)
def test_clones_pickles_and_files_are_the_agent_and_share_nothing(cls: Any, space: Any, tmp_path: Path) -> None:
    a = agent(cls, space, gamma=0.9)
    for _ in range(3):
        a.learn(transitions(space))
    a.get_action(np.zeros((2, 3)))
    a.save_checkpoint(tmp_path / "a.pt")
    copies = [a.clone(), pickle.loads(pickle.dumps(a)), cls.load(tmp_path / "a.pt")]
    for copy in copies:
        assert copy.gamma == 0.9
        mine, theirs = everything(a), everything(copy)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[k], theirs[k]) for k in mine)
        if cls in (DDPG, TD3):
            np.testing.assert_array_equal(np.asarray(copy.noise_state), a.noise_state)
        copy.learn(transitions(space))
        assert all(torch.equal(mine[k], v) for k, v in everything(a).items()), "the original stays"
    again = agent_from_policy(a.policy_spec(), a.policy_state())
    np.testing.assert_allclose(again._greedy(np.ones((4, 3))), a._greedy(np.ones((4, 3))), rtol=1e-5)
