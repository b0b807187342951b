"""`share_encoders=True` of DDPG, TD3 and SAC: one encoder, the policy's, whatever happens to the agent."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agilerl.algorithms import DDPG, SAC, TD3
from agilerl.core.checkpoint import load_tree, save_tree
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.errors import AgileRLWarning, AlgorithmError, ConfigError, RegistryError
from agilerl.hpo.effects import output_of, relative_change
from agilerl.hpo.mutation import Mutations
from agilerl.modules.dummy import DummyEvolvable
from agilerl.networks import ContinuousQNetwork, DeterministicActor, QNetwork
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.observations import sample_batch
from agilerl.utils.utils import create_population

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
NESTED = gym.spaces.Dict(camera=IMAGE, speed=OBS)
BOX = gym.spaces.Box(-1, 2, (2,), np.float32)
CHOICE = gym.spaces.Discrete(4)
NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 24}
KINDS: list[tuple[Any, Any]] = [(DDPG, BOX), (TD3, BOX), (SAC, BOX), (SAC, CHOICE)]
EVERY = pytest.mark.parametrize(("cls", "space"), KINDS, ids=["DDPG", "TD3", "SAC", "SAC-discrete"])


def agent(cls: Any, space: Any = BOX, obs: Any = OBS, **options: Any) -> Any:
    net = NET if obs is OBS else {"head_config": {"hidden_size": [16]}, "latent_dim": 24}
    return cls(obs, space, **{"seed": 1, "net_config": net, "share_encoders": True, **options})


def transitions(a: Any, seed: int = 0, size: int = 32) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    box = isinstance(a.action_space, gym.spaces.Box)
    obs = sample_batch(a.observation_space, size, rng)
    return {
        "obs": obs,
        "action": rng.uniform(-1, 1, (size, 2)).astype(np.float32) if box else rng.integers(4, size=size),
        "reward": (obs if a.observation_space is OBS else rng.standard_normal((size, 3))).sum(-1) + 1,
        "next_obs": sample_batch(a.observation_space, size, rng),
        "done": rng.random(size) < 0.3,
    }


def learnt(a: Any, updates: int = 30, size: int = 32) -> Any:
    """The agent after some updates, targets away from their networks."""
    for k in range(updates):
        a.learn(transitions(a, k, size))
    return a


def critics(a: Any, targets: bool = True) -> list[str]:
    return [name for name in a.registry.encoder_sources if targets or "target" not in name]


def judge(a: Any, name: str, obs: Any) -> Tensor:
    """What a critic says, on actions that are the same for every caller."""
    network = getattr(a, name)
    if not isinstance(network, ContinuousQNetwork):
        return output_of(network, obs)
    action = np.random.default_rng(3).uniform(-1, 1, (len(obs), 2)).astype(np.float32)
    with torch.no_grad():
        return network(obs, action)


def storages(a: Any) -> set[int]:
    """Where the parameters lie."""
    networks = a.evolvable_attributes(networks_only=True).values()
    return {p.data_ptr() for network in networks for p in network.parameters() if p.numel()}


def moments(a: Any) -> dict[tuple[str, str], Tensor]:
    return {
        (config.networks[0], name): getattr(a, config.name).optimizer.state[p]["exp_avg"].clone()
        for config in a.registry.optimizers
        for name, p in getattr(a, config.networks[0]).named_parameters()
    }


def assert_shares(a: Any) -> None:
    """The encoder exists once: critics have none, every parameter has one optimiser, readers follow their lenders."""
    owned = [p for o in a.registry.optimizers for g in getattr(a, o.name).optimizer.param_groups for p in g["params"]]
    assert len({id(p) for p in owned}) == len(owned)
    networks = a.evolvable_attributes(networks_only=True)
    every = [p for network in networks.values() for p in network.parameters()]
    assert len({id(p) for p in every}) == len(every)
    assert {id(p) for p in owned} == {id(p) for p in every if p.requires_grad}
    for name, encoder_source in a.registry.encoder_sources.items():
        reader = networks[name]
        assert reader.encoder_source is networks[encoder_source]
        assert reader.encoder is networks[encoder_source].encoder
        assert not any(key.startswith("encoder") for key in reader.state_dict())
        assert reader.latent_dim == networks[encoder_source].latent_dim
        assert {k.split(".")[0] for k in reader.mutation_methods} == {"head_net"}


# --- one encoder


@EVERY
def test_the_encoder_exists_once_and_belongs_to_the_policy(cls: Any, space: Any) -> None:
    a = agent(cls, space)
    assert_shares(a)
    encoder_sources = {"actor"} if cls is SAC else {"actor", "actor_target"}
    assert set(a.registry.encoder_sources.values()) == encoder_sources
    assert a.registry.all_registered() >= set(a.registry.encoder_sources)
    apart = agent(cls, space, share_encoders=False)
    assert a.policy_spec()["network"] == apart.policy_spec()["network"]
    assert all(torch.equal(x, apart.policy_state()[k]) for k, x in a.policy_state().items())
    specs, specs_apart = (
        {name: network.spec() for name, network in one.evaluation_networks().items()} for one in (a, apart)
    )
    assert specs != specs_apart
    assert choose([a]).name == "fused"


@EVERY
def test_a_critic_reads_features_as_constants(cls: Any, space: Any) -> None:
    a = agent(cls, space)
    obs = sample_batch(OBS, 5, np.random.default_rng(0))
    for name in critics(a):
        critic = getattr(a, name).requires_grad_(True)
        action = torch.zeros(5, 2)
        value = critic(obs, action) if space is BOX else critic(obs)
        encoder_source = getattr(a, a.registry.encoder_sources[name])
        features = encoder_source.encoder(encoder_source.preprocess(obs)).detach()
        expected = critic.head_net(torch.cat([features, action], -1) if space is BOX else features)
        torch.testing.assert_close(value, expected, rtol=0, atol=0)
        value.sum().backward()
        assert all(p.grad is None for p in encoder_source.parameters())
        assert all(p.grad is not None for p in critic.parameters())


def test_the_policys_loss_trains_the_encoder_and_the_critics_does_not() -> None:
    a = agent(DDPG, policy_freq=2)
    before = copy.deepcopy(a.actor.encoder.state_dict())
    a.learn(transitions(a))
    assert all(torch.equal(v, before[k]) for k, v in a.actor.encoder.state_dict().items())
    a.learn(transitions(a))
    assert not any(torch.equal(v, before[k]) for k, v in a.actor.encoder.state_dict().items() if "weight" in k)


# --- other observations


@pytest.mark.parametrize("obs", [IMAGE, NESTED], ids=["image", "dict"])
@pytest.mark.parametrize("learner", [None, "sequential"], ids=["alone", "sequential"])
def test_images_and_dicts_learn_as_written_out(obs: Any, learner: Any) -> None:
    a = agent(DDPG, BOX, obs, policy_freq=1)
    for name in ("actor", "actor_target", "critic", "critic_target"):
        getattr(a, name).double()
    twin = a.clone()
    assert choose([a]).name == ("fused" if obs is IMAGE else "sequential")
    actor_adam = torch.optim.Adam(twin.actor.parameters(), lr=a.lr_actor)
    critic_adam = torch.optim.Adam(twin.critic.head_net.parameters(), lr=a.lr_critic)

    def q(critic: Any, encoder_source: Any, seen: Any, action: Tensor) -> Tensor:
        return critic.head_net(torch.cat([encoder_source.extract_features(seen).detach(), action], -1))[:, 0]

    for k in range(4):
        batch = a.make_batch(transitions(a, k, 8))
        if learner is None:
            a.learn_batch(batch)
        else:
            Learner([a], choose([a], learner)).learn(0, batch.map(lambda x: x[None]))
        with torch.no_grad():
            value = q(twin.critic_target, twin.actor_target, batch.next_obs, twin.actor_target(batch.next_obs))
            target = batch.reward + a.gamma * (1 - batch.done) * value
        critic_adam.zero_grad()
        nn.functional.mse_loss(q(twin.critic, twin.actor, batch.obs, batch.action), target).backward()
        critic_adam.step()
        actor_adam.zero_grad()
        (-q(twin.critic, twin.actor, batch.obs, twin.actor(batch.obs)).mean()).backward()
        actor_adam.step()
        with torch.no_grad():
            for net, shadow in ((twin.actor, twin.actor_target), (twin.critic.head_net, twin.critic_target.head_net)):
                for p, s in zip(net.parameters(), shadow.parameters(), strict=True):
                    s.copy_(a.tau * p + (1 - a.tau) * s)
    for name in ("actor", "actor_target", "critic", "critic_target"):
        for mine, theirs in zip(getattr(a, name).parameters(), getattr(twin, name).parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_an_update_reads_each_encoder_as_few_times_as_it_can() -> None:
    calls = {}
    for share in (False, True):
        a = agent(SAC, BOX, IMAGE, share_encoders=share)
        a.learn(transitions(a, 0, 4))
        passes = []
        encoders = {id(n.encoder): n.encoder for n in a.evolvable_attributes(True).values() if hasattr(n, "encoder")}
        for encoder in encoders.values():
            encoder.register_forward_hook(lambda *_, seen=passes: seen.append(1))
        a.learn(transitions(a, 1, 4))
        calls[share] = len(passes)
    # The policy's own two passes, and the features of obs and next_obs; apart: two targets, two values, two judges.
    assert calls == {False: 8, True: 4}


# --- mutations


METHODS = ("head_net.add_layer", "head_net.add_node", "encoder.add_node", "add_latent_node")


@pytest.mark.parametrize("method", METHODS)
@EVERY
def test_growth_leaves_every_function_and_moves_moments(
    cls: Any, space: Any, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = learnt(agent(cls, space))
    obs = sample_batch(OBS, 50, np.random.default_rng(9))
    names = ["actor", *critics(a)]
    before, held = {n: judge(a, n, obs) for n in names}, moments(a)
    monkeypatch.setattr(EvolvableNetwork, "sample_mutation_method", lambda self, *args, **kwargs: method)
    Mutations(0, 1, 0.3, 0, 0, 0, rand_seed=2).mutation([a])
    assert a.mut == method
    assert_shares(a)
    for name in names:
        torch.testing.assert_close(judge(a, name, obs), before[name], rtol=1e-4, atol=1e-4)
    for key, now in moments(a).items():
        old = held.get(key)
        assert torch.count_nonzero(now) == (0 if old is None else torch.count_nonzero(old)), key
        if old is not None and "head_net.model.linear_0" not in key[1]:  # there actions stand after the features
            assert torch.equal(now[tuple(slice(size) for size in old.shape)], old)
    if method == "add_latent_node" and space is BOX:
        key = (critics(a)[0], "head_net.model.linear_0.weight")
        assert torch.equal(moments(a)[key][:, -2:], held[key][:, -2:]), "the actions' columns stay the last ones"
    a.learn(transitions(a))


@pytest.mark.parametrize("method", ["remove_latent_node", "encoder.remove_node", "head_net.remove_node"])
@EVERY
def test_removal_is_the_mutation_of_policy_and_critics(
    cls: Any, space: Any, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = {**NET, "encoder_config": {"hidden_size": [64], "min_mlp_nodes": 8},
           "head_config": {"hidden_size": [64], "min_mlp_nodes": 8}, "latent_dim": 32}  # fmt: skip
    a = learnt(agent(cls, space, net_config=net), 40, 512)
    obs = a.probe_observations()
    before = {n: judge(a, n, obs) for n in critics(a, targets=False)}
    monkeypatch.setattr(EvolvableNetwork, "sample_mutation_method", lambda self, *args, **kwargs: method)
    Mutations(0, 1, 0.3, 0, 0, 0, rand_seed=2, removal_bound=0.5).mutation([a])
    assert a.mut == method
    assert_shares(a)
    for name, value in before.items():
        assert relative_change(judge(a, name, obs), value) < 0.5
        target = name.replace("critic", "critic_target") if cls is DDPG else name.replace("critic_", "critic_target_")
        equal = torch.equal(judge(a, target, obs), judge(a, name, obs))
        # A target policy that became a copy of the policy would not fit to a target critic that lags behind.
        assert equal if cls is not SAC or method != "encoder.remove_node" else not equal
    a.learn(transitions(a))


@EVERY
def test_an_activation_changes_in_the_encoder_once_and_the_critics_are_refitted(cls: Any, space: Any) -> None:
    a = learnt(agent(cls, space), 40, 512)
    obs, plain = a.probe_observations(), a.clone()
    before = {n: judge(a, n, obs) for n in ["actor", *critics(a)]}
    Mutations(0, 0, 0, 0, 1, 0, rand_seed=3).mutation([a])
    Mutations(0, 0, 0, 0, 1, 0, rand_seed=3, published=True).mutation([plain])
    assert a.actor.activation == plain.actor.activation != "ReLU"
    assert_shares(a)
    for name, value in before.items():
        raw = relative_change(judge(plain, name, obs), value)
        assert relative_change(judge(a, name, obs), value) < 0.7 * raw, name
    a.learn(transitions(a))


def test_parameter_noise_moves_what_critics_read_too() -> None:
    a = learnt(agent(TD3))
    obs = a.probe_observations()
    before = judge(a, "critic_1", obs)
    heads = copy.deepcopy(a.critic_1.state_dict())
    Mutations(0, 0, 0, 1, 0, 0, rand_seed=3).mutation([a])
    assert all(torch.equal(v, heads[k]) for k, v in a.critic_1.state_dict().items())
    assert 0 < relative_change(judge(a, "critic_1", obs), before) < 0.5
    assert_shares(a)


# --- copies and files


@EVERY
def test_copies_and_files_share_within_and_nothing_without(cls: Any, space: Any, tmp_path: Path) -> None:
    a = learnt(agent(cls, space), 5)
    Mutations(0, 1, 0.3, 0, 0, 0, rand_seed=2).mutation([a])
    a.learn(transitions(a))
    obs = sample_batch(OBS, 7, np.random.default_rng(1))
    a.save_checkpoint(tmp_path / "a.pt")
    save_tree(tmp_path / "run.pt", a.run_state())
    resumed, loaded = agent(cls, space, seed=8), agent(cls, space, seed=9)
    resumed.load_run_state(load_tree(tmp_path / "run.pt"))
    loaded.load_checkpoint(tmp_path / "a.pt")
    copies = [
        a.clone(4),
        copy.deepcopy(a),
        pickle.loads(pickle.dumps(a)),
        cls.load(tmp_path / "a.pt"),
        loaded,
        resumed,
    ]
    for twin in copies:
        assert_shares(twin)
        for name in ("actor", *critics(a)):
            torch.testing.assert_close(judge(twin, name, obs), judge(a, name, obs), rtol=0, atol=0)
        assert not storages(a) & storages(twin)
    for made in (a, resumed):
        made.learn(transitions(made, 3))
    for name in ("actor", *critics(a)):
        torch.testing.assert_close(judge(resumed, name, obs), judge(a, name, obs), rtol=0, atol=0)
    with pytest.raises(ValueError, match="registry does not match"):
        agent(cls, space, share_encoders=False).load_checkpoint(tmp_path / "a.pt")


def test_members_of_a_population_act_and_learn_after_every_assignment() -> None:
    a, b = learnt(agent(TD3), 2), learnt(agent(TD3, seed=2), 2)
    a.actor = b.actor.clone()
    assert_shares(a)
    assert a.critic_1.encoder_source is a.actor
    obs = sample_batch(OBS, 7, np.random.default_rng(1))
    a.critic_1 = ContinuousQNetwork(OBS, BOX, **NET)
    assert_shares(a)
    with pytest.raises(KeyError, match="incompatible encoder architectures"):
        a.critic_2 = ContinuousQNetwork(OBS, BOX, latent_dim=9)
    with pytest.raises(RegistryError, match=r"TD3\.critic_2 reads the features of actor; a Linear cannot"):
        a.critic_2 = nn.Linear(3, 1)
    assert_shares(a)
    a.learn(transitions(a))
    b.critic_1 = a.critic_1.clone()  # of another agent: it reads this one's policy from now on
    torch.testing.assert_close(
        judge(b, "critic_1", obs),
        b.critic_1.from_features(b.actor.extract_features(obs), np.random.default_rng(3).uniform(-1, 1, (7, 2))),
    )
    b.learn(transitions(b))


def test_the_spec_of_a_critic_leaves_the_encoder_to_the_policy() -> None:
    a = agent(TD3)
    spec = a.critic_1.spec()
    assert "encoder_config" not in spec
    with pytest.raises(ConfigError, match=r"^this ContinuousQNetwork reads the features of another network, .* fix: "):
        ContinuousQNetwork.from_spec(spec)
    again = a.critic_1.rebuilt(spec, "cpu")
    assert again.encoder_source is a.actor
    assert again.state_dict().keys() == a.critic_1.state_dict().keys()


# --- networks that are given


def test_given_networks_give_up_encoders_of_the_same_architecture() -> None:
    actor = DeterministicActor(OBS, BOX, **NET)
    twins = [ContinuousQNetwork(OBS, BOX, random_seed=k, **NET) for k in range(2)]
    a = TD3(OBS, BOX, actor_network=actor, critic_networks=twins, share_encoders=True)
    assert [a.critic_1, a.critic_2] == twins
    assert_shares(a)
    alone = TD3(OBS, BOX, actor_network=DeterministicActor(OBS, BOX, latent_dim=17), share_encoders=True)
    assert alone.critic_2.latent_dim == 17
    normed = {**NET, "encoder_config": {"hidden_size": [16], "layer_norm": True}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_shares(agent(TD3, net_config=normed))


BAD: list[dict[str, Any]] = [
    {**NET, "latent_dim": 9},
    {**NET, "encoder_config": {"hidden_size": [16, 16]}},
    {**NET, "encoder_config": {"hidden_size": [16], "activation": "Tanh"}},
]


@pytest.mark.parametrize("config", BAD, ids=["latent", "depth", "activation"])
def test_other_encoders_are_refused_by_name(config: dict[str, Any]) -> None:
    for cls, critic in ((DDPG, "critic_network"), (SAC, "critic_networks")):
        given: Any = ContinuousQNetwork(OBS, BOX, **config)
        given = given if cls is DDPG else [given, given.clone()]
        with pytest.raises(KeyError, match=r"^incompatible encoder architectures.*fix: build both") as caught:
            agent(cls, **{critic: given})
        assert isinstance(caught.value, AlgorithmError)
    with pytest.raises(KeyError, match="incompatible encoder architectures"):
        agent(SAC, CHOICE, critic_networks=[QNetwork(OBS, CHOICE, **config) for _ in range(2)])


class Plain(DummyEvolvable):
    """A policy that is no `EvolvableNetwork`."""


def test_without_an_encoder_sharing_is_disabled_with_a_warning() -> None:
    policy = DummyEvolvable(nn.Sequential(nn.Linear(3, 2), nn.Tanh()))
    with pytest.warns(UserWarning, match="^Encoder sharing is disabled: actor of DDPG is not an EvolvableNetwork"):
        a = DDPG(OBS, BOX, actor_network=policy, share_encoders=True)
    assert a.share_encoders is False
    assert isinstance(a.critic._modules["encoder"], nn.Module)
    a.learn(transitions(a))


def test_a_critic_that_reads_a_policy_is_no_critic_by_itself() -> None:
    given = agent(DDPG).critic
    with pytest.raises(AlgorithmError, match="critic_network reads another network's features"):
        DDPG(OBS, BOX, critic_network=given)


# --- the factory


def test_the_factory_shares_as_published_unless_networks_are_given() -> None:
    shared = {algo: create_population(algo, NET, None, OBS, BOX)[0].share_encoders for algo in ("DDPG", "TD3", "SAC")}
    assert shared == {"DDPG": True, "TD3": True, "SAC": False}
    (a,) = create_population("TD3", NET, {"SHARE_ENCODERS": False}, OBS, BOX)
    assert not a.share_encoders
    (a,) = create_population("SAC", NET, {"share_encoders": True}, OBS, BOX)
    assert_shares(a)
    (a,) = create_population("TD3", NET, None, OBS, BOX, algo_kwargs={"share_encoders": False})
    assert not a.share_encoders
    critic = ContinuousQNetwork(OBS, BOX, latent_dim=11)
    assert not create_population("TD3", NET, None, OBS, BOX, critic_network=critic)[0].share_encoders
    pop = create_population(
        "TD3", None, {"SHARE_ENCODERS": True}, OBS, BOX, actor_network=DeterministicActor(OBS, BOX, **NET),
        critic_network=ContinuousQNetwork(OBS, BOX, **NET), population_size=2,
    )  # fmt: skip
    for a in pop:
        assert_shares(a)
    assert pop[0].critic_1.encoder_source is not pop[1].critic_1.encoder_source


def test_ppo_files_of_shared_encoders_are_loaded_by_their_class(tmp_path: Path) -> None:
    from agilerl.algorithms import PPO

    ppo = PPO(OBS, CHOICE, share_encoders=True, net_config=NET, seed=1)
    ppo.save_checkpoint(tmp_path / "ppo.pt")
    assert PPO.load(tmp_path / "ppo.pt").share_encoders is True
    assert issubclass(AgileRLWarning, UserWarning)
