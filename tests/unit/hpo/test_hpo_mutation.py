"""Mutations of agents: labels, what is rebuilt, bounds, targets, optimisers, seeds. The agent is a small fake."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from agilerl.hpo import HyperparameterConfig, Mutations, RLParameter
from agilerl.hpo.effects import Probe, output_of, outputs_of, relative_change
from agilerl.hpo.mutation import MutationError
from agilerl.hpo.parameter_noise import mutable_weights
from agilerl.modules import DummyEvolvable
from agilerl.networks import QNetwork

BOX = spaces.Box(-np.inf, np.inf, (4,))
PARTS = ("no_mutation", "architecture", "parameters", "activation", "rl_hp")


class Adam:
    """An optimiser wrapper as the agents have it: rebinds parameters and carries moments."""

    def __init__(self, networks: dict[str, nn.Module], lr: float) -> None:
        self.rebuilds = 0
        self.bind(networks, lr)

    def bind(self, networks: dict[str, nn.Module], lr: float) -> None:
        self.networks = networks
        self.inner = torch.optim.Adam([p for n in networks.values() for p in n.parameters()], lr=lr)

    def rebuild(self, networks: dict[str, Any], transfers: dict[str, Any]) -> None:
        self.rebuilds += 1
        old = {(a, n): self.inner.state.get(p) for a, net in self.networks.items() for n, p in net.named_parameters()}
        self.bind(networks, self.inner.param_groups[0]["lr"])
        for attribute, net in networks.items():
            for name, p in net.named_parameters():
                state, transfer = old.get((attribute, name)), transfers.get(attribute, {}).get(name)
                fresh = {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                if state is not None and transfer is None:
                    assert state["exp_avg"].shape == p.shape, name
                    fresh = state
                elif state is not None and transfer is not None:
                    fresh["step"] = state["step"]
                    for key in ("exp_avg", "exp_avg_sq"):
                        fresh[key] = transfer.apply(state[key], fresh[key])
                self.inner.state[p] = fresh


class Agent:
    """A DQN-like agent: actor, target, a second value network, one optimiser."""

    algo = "DQN"

    def __init__(self, index: int = 0, seed: int = 0, **config: Any) -> None:
        self.index, self.mut, self.fitness, self.hooks = index, None, [0.0], 0
        config = {"encoder_config": {"hidden_size": [64, 64]}, "latent_dim": 48, **config}
        self.actor = QNetwork(BOX, spaces.Discrete(3), random_seed=seed, **config)
        self.actor_target = self.actor.clone().requires_grad_(False)
        self.critic = QNetwork(BOX, spaces.Discrete(1), random_seed=seed + 100, **config)
        self.lr, self.batch_size, self.learn_step = 1e-3, 64, 1
        self.optimizer = Adam({"actor": self.actor, "critic": self.critic}, self.lr)
        hp = HyperparameterConfig(lr=RLParameter(1e-4, 1e-2), learn_step=RLParameter(1, 8, dtype=int))
        groups = [
            SimpleNamespace(eval_network="actor", shared_networks=["actor_target"], policy=True),
            SimpleNamespace(eval_network="critic", shared_networks=None, policy=False),
        ]
        optimizers = [SimpleNamespace(name="optimizer", networks=["actor", "critic"], lr="lr")]
        self.registry = SimpleNamespace(groups=groups, optimizers=optimizers, hp_config=hp)
        self.seen: torch.Tensor | None = torch.randn(512, 4, generator=torch.Generator().manual_seed(seed))

    def probe_observations(self, count: int = 256) -> torch.Tensor | None:
        return None if self.seen is None else self.seen[:count]

    def mutation_hook(self) -> None:
        self.hooks += 1

    def learn(self, steps: int = 20) -> Agent:
        """Fit a simple function, so that weights, moments and target are those of a trained agent."""
        goal = torch.stack([self.seen.sum(1), self.seen[:, 0] * 2, self.seen[:, 1] ** 2], 1)
        for _ in range(steps):
            loss = (self.actor(self.seen) - goal).pow(2).mean() + self.critic(self.seen).pow(2).mean()
            self.optimizer.inner.zero_grad()
            loss.backward()
            self.optimizer.inner.step()
        return self


def only(kind: str, seed: int = 0, **options: Any) -> Mutations:
    weights = {name: float(name == kind) for name in PARTS}
    return Mutations(**weights, new_layer_prob=options.pop("new_layer_prob", 0.3), rand_seed=seed, **options)


def state(agent: Agent) -> dict[str, torch.Tensor]:
    nets = ("actor", "actor_target", "critic")
    return {f"{n}.{k}": v.clone() for n in nets for k, v in getattr(agent, n).state_dict().items()}


def unchanged(agent: Agent, before: dict[str, torch.Tensor]) -> bool:
    now = state(agent)
    return now.keys() == before.keys() and all(torch.equal(v, before[k]) for k, v in now.items())


def test_attributes_and_position_of_the_published_arguments() -> None:
    made = Mutations(0.4, 0.2, 0.25, 0.1, 0.05, 0.3, 0.5, ["ReLU", "Tanh"], False, 7, "cpu", None)
    names = ("no_mut", "architecture_mut", "new_layer_prob", "parameters_mut", "activation_mut", "rl_hp_mut")
    assert [getattr(made, n) for n in names] == [0.4, 0.2, 0.25, 0.1, 0.05, 0.3]
    assert (made.mutation_sd, made.activation_selection, made.mutate_elite) == (0.5, ["ReLU", "Tanh"], False)
    assert (made.device, made.accelerator) == ("cpu", None)


def test_bad_values_say_what_is_expected() -> None:
    for kind in (ValueError, AssertionError):
        with pytest.raises(kind, match="no_mutation must be at least 0"):
            Mutations(-1, 0, 0, 0, 0, 0)
        with pytest.raises(kind, match=r"new_layer_prob must be in \[0\.?0?, 1\.?0?\]"):
            Mutations(1, 0, 1.5, 0, 0, 0)
    with pytest.raises(ValueError, match="Did you mean 'ReLU'"):
        Mutations(1, 0, 0, 0, 0, 0, activation_selection=["Relu"])
    with pytest.raises(TypeError):
        Mutations(1, 0, 0, 0, 0, 0, nonsense=3)


def test_all_zero_probabilities_leave_the_population_as_it_is() -> None:
    population = [Agent(3), Agent(9)]
    before = [state(a) for a in population]
    actors = [a.actor for a in population]
    out = Mutations(0, 0, 0, 0, 0, 0).mutation(population)
    assert all(a is b for a, b in zip(out, population, strict=True))
    assert [a.index for a in out] == [3, 9]
    assert [a.mut for a in out] == ["None", "None"]
    assert all(a.actor is x and unchanged(a, b) and a.hooks == 0 for a, x, b in zip(out, actors, before, strict=True))


def test_pre_training_drops_no_mutation_and_the_elite_can_be_spared() -> None:
    weights = {"no_mutation": 1000, "architecture": 0, "parameters": 0, "activation": 0, "rl_hp": 1}
    population = [Agent(i) for i in range(4)]
    Mutations(**weights, new_layer_prob=0, rand_seed=0).mutation(population, pre_training_mut=True)
    assert all(a.mut in ("lr", "learn_step") for a in population)
    only("rl_hp", mutate_elite=False).mutation(population)
    assert population[0].mut == "None"
    assert population[1].mut != "None"


def test_operators_are_drawn_by_relative_probability() -> None:
    mutations = Mutations(6, 0, 0, 0, 0, 2, rand_seed=3)
    population = [SimpleNamespace(**vars(Agent())) for _ in range(2)] * 400
    mutations.mutation(population)
    share = sum(r.kind == "rl_hp" for r in mutations.last_births) / 800
    assert abs(share - 0.25) < 0.06  # four standard errors


def test_no_mutation_accepts_anything_and_a_foreign_object_is_an_error() -> None:
    thing = SimpleNamespace(mut="x")
    assert Mutations(1, 0, 0, 0, 0, 0).no_mutation(thing) is thing
    assert thing.mut == "None"
    with pytest.raises(MutationError, match="no registry"):
        Mutations(1, 0, 0, 0, 0, 0).architecture_mutate(thing)


class FirstChoice:
    def choice(self, a: list, size: object = None, replace: bool = True, p: object = None) -> list:
        return [a[0]]


def test_architecture_reaches_all_networks_by_the_same_method_and_width() -> None:
    for seed in range(12):
        agent = Agent(seed=seed).learn()
        only("architecture", seed).architecture_mutate(agent)
        if agent.mut == "None":
            continue
        assert agent.mut == agent.actor.last_mutation_attr == agent.critic.last_mutation_attr
        assert agent.actor.describe() == agent.critic.describe() == agent.actor_target.describe()
        assert agent.mutation_record.kind == "architecture"
        assert agent.mutation_record.after == agent.actor.describe() != agent.mutation_record.before
        assert agent.optimizer.rebuilds == 1 == agent.hooks
        agent.learn(2)


def test_replaced_generators_decide_the_method_and_the_networks_draws() -> None:
    class Ones:
        def choice(self, a: list, size: object = None, replace: bool = True, p: object = None) -> list:
            return [a[1]]

        def integers(self, low: int, high: int) -> int:
            return low + 1 if high - low > 1 else low

    agent = Agent()
    agent.actor.rng = agent.critic.rng = Ones()
    mutations = only("architecture")
    mutations.rng = FirstChoice()
    mutations.architecture_mutate(agent)
    assert agent.mut == "head_net.add_layer"
    assert isinstance(agent.actor.rng, Ones)
    assert agent.critic.last_mutation_attr == agent.mut


@pytest.mark.parametrize("method", ["head_net.add_layer", "head_net.add_node", "encoder.add_node", "add_latent_node"])
def test_growth_leaves_policy_and_target_functions_and_moves_moments(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent().learn()
    agent.actor_target.load_state_dict(Agent(seed=5).actor.state_dict())
    nets = ("actor", "actor_target", "critic")
    before = {n: getattr(agent, n)(agent.seen).detach() for n in nets}
    moments = {n: agent.optimizer.inner.state[p]["exp_avg"].clone() for n, p in agent.actor.named_parameters()}
    monkeypatch.setattr(QNetwork, "sample_mutation_method", lambda self, *a, **k: method)
    only("architecture").architecture_mutate(agent)
    assert agent.mut == method
    for name in nets:
        torch.testing.assert_close(getattr(agent, name)(agent.seen), before[name], atol=1e-4, rtol=1e-4)
    assert not any(p.requires_grad for p in agent.actor_target.parameters())
    assert agent.mutation_record.change < 1e-5
    live = agent.optimizer.inner.state
    for name, p in agent.actor.named_parameters():
        now, old = live[p]["exp_avg"], moments.get(name)
        if old is None:
            assert not now.any()
            continue
        block = tuple(slice(size) for size in old.shape)
        assert torch.equal(now[block], old)
        assert torch.count_nonzero(now) == torch.count_nonzero(old)
    assert {id(p) for g in agent.optimizer.inner.param_groups for p in g["params"]} == {
        id(p) for n in (agent.actor, agent.critic) for p in n.parameters()
    }


@pytest.mark.parametrize("method", ["head_net.remove_node", "encoder.remove_node", "remove_latent_node"])
@pytest.mark.parametrize("bound", [0.3, 0.02])
def test_removal_changes_a_trained_policy_by_at_most_the_bound_or_is_refused(
    method: str, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QNetwork, "sample_mutation_method", lambda self, *a, **k: method)
    done = 0
    for seed in range(4):
        agent = Agent(seed=seed).learn(40)
        before, saved, actor = agent.actor(agent.seen).detach(), state(agent), agent.actor
        only("architecture", seed, removal_bound=bound).architecture_mutate(agent)
        if agent.mut == "None":
            assert agent.actor is actor
            assert unchanged(agent, saved)
            assert agent.optimizer.rebuilds == agent.hooks == 0
            continue
        done += 1
        assert relative_change(output_of(agent.actor, agent.seen[1::2]), before[1::2]) <= bound
        assert agent.mutation_record.change <= bound
        torch.testing.assert_close(agent.actor_target(agent.seen), agent.actor(agent.seen))
        agent.learn(2)
    assert done == 4 if bound > 0.2 else done < 5


def test_removal_can_be_switched_off() -> None:
    mutations = only("architecture", removal=False, new_layer_prob=0.5)
    methods = {mutations.architecture_mutate(Agent(seed=s)).mut for s in range(20)}
    assert len(methods) > 2
    assert not any("remove" in m for m in methods)


def test_nothing_is_rebuilt_when_every_method_is_at_its_limit() -> None:
    tight = {"min_mlp_nodes": 32, "max_mlp_nodes": 33}
    agent = Agent(
        encoder_config={"hidden_size": [32], **tight},
        head_config={"hidden_size": [32], "max_hidden_layers": 1, **tight},
        latent_dim=8,
        max_latent_dim=12,
    )
    before = state(agent)
    only("architecture").mutation([agent])
    assert agent.mut == "None"
    assert unchanged(agent, before)
    assert agent.optimizer.rebuilds == 0


def test_same_seed_gives_the_same_architectures_and_weights() -> None:
    def run(seed: int) -> list[Agent]:
        population = [Agent(i, seed=i) for i in range(3)]
        mutations = Mutations(0.1, 0.6, 0.3, 0.2, 0.1, 0.2, rand_seed=seed)
        for _ in range(3):
            mutations.mutation(population)
        return population

    first, again, other = run(1), run(1), run(2)
    assert [a.actor.describe() for a in first] == [a.actor.describe() for a in again]
    assert [a.mut for a in first] == [a.mut for a in again]
    assert all(unchanged(a, state(b)) for a, b in zip(first, again, strict=True))
    assert [a.actor.describe() for a in first] != [a.actor.describe() for a in other]


def test_clones_of_one_parent_are_mutated_differently() -> None:
    parent = Agent()
    population = [copy.deepcopy(parent) for _ in range(6)]
    only("architecture", new_layer_prob=0).mutation(population)
    assert len({a.actor.describe() for a in population}) > 2


@pytest.mark.parametrize("seed", range(6))
def test_parameter_noise_is_bounded_keeps_moments_and_moves_the_target_along(seed: int) -> None:
    agent = Agent(seed=seed).learn()
    agent.actor_target.load_state_dict(Agent(seed=50).actor.state_dict())
    before, out, kept = state(agent), agent.actor(agent.seen[1::2]).detach(), agent.optimizer.inner.state
    only("parameters", seed, mutation_sd=0.5).parameter_mutation(agent)
    assert agent.mut == "param"
    change = relative_change(output_of(agent.actor, agent.seen[1::2]), out)
    assert 0 < change <= (0.05 if agent.mutation_record.path == "super" else 0.02) + 1e-6
    assert change == pytest.approx(agent.mutation_record.change, rel=1e-2)
    after = state(agent)
    assert agent.optimizer.rebuilds == 0
    assert agent.optimizer.inner.state is kept
    weights = mutable_weights(agent.actor)
    for name in (k.removeprefix("actor.") for k in before if k.startswith("actor.")):
        moved = after[f"actor.{name}"] - before[f"actor.{name}"]
        followed = after[f"actor_target.{name}"] - before[f"actor_target.{name}"]
        torch.testing.assert_close(moved, followed, atol=1e-6, rtol=0)
        assert (moved != 0).double().mean() <= (0.11 if name in weights else 0)
    assert all(torch.equal(after[k], before[k]) for k in before if k.startswith("critic."))


def test_noise_leaves_normalisation_alone_and_reaches_convolutions() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.LayerNorm([2, 4, 4]), nn.LSTM(4, 3), nn.Linear(3, 2))
    names = set(mutable_weights(net))
    assert names == {"0.weight", "2.weight_ih_l0", "2.weight_hh_l0", "3.weight"}


def test_published_noise_copies_the_policy_into_its_target() -> None:
    agent = Agent().learn()
    only("parameters", published=True).parameter_mutation(agent)
    assert torch.equal(agent.actor(agent.seen), agent.actor_target(agent.seen))


@pytest.mark.parametrize("algo", ["DQN", "PPO", "TD3"])
def test_activation_changes_everywhere_for_every_algorithm_and_keeps_moments(algo: str) -> None:
    agent = Agent().learn()
    agent.algo = algo
    seen = set()
    for seed in range(6):
        old = agent.actor.activation
        only("activation", seed).activation_mutation(agent)
        assert agent.mut == "act"
        assert agent.actor.activation != old
        seen.add(agent.actor.activation)
        for name in ("actor", "actor_target", "critic"):
            net = getattr(agent, name)
            assert {net.activation, net.head_net.activation, net.encoder.output_activation} == {agent.actor.activation}
    assert seen == {"ReLU", "ELU", "GELU"}
    assert agent.optimizer.rebuilds == 0
    assert all(p in agent.optimizer.inner.state for p in agent.actor.parameters())


def test_refit_undoes_most_of_what_an_activation_change_does() -> None:
    for seed in range(3):
        agent = Agent(seed=seed).learn(60)
        names = ("actor", "actor_target", "critic")
        plain = {n: getattr(agent, n).clone() for n in names}
        before = {n: getattr(agent, n)(agent.seen).detach() for n in names}
        only("activation", seed).activation_mutation(agent)
        for name in names:
            plain[name].change_activation(agent.actor.activation)
            raw = relative_change(output_of(plain[name], agent.seen), before[name])
            assert relative_change(output_of(getattr(agent, name), agent.seen), before[name]) < 0.6 * raw
        assert agent.actor.probe_inputs is None is agent.actor.head_net.probe_inputs


def test_a_module_without_activation_is_left_alone_with_a_warning() -> None:
    agent = Agent()
    agent.actor = DummyEvolvable(nn.Linear(4, 3))
    with pytest.warns(UserWarning, match="Activation mutations are not supported"):
        only("activation").activation_mutation(agent)
    assert agent.mut == "None"


def test_hyperparameters_start_from_the_live_attribute_and_agents_are_independent() -> None:
    shared = HyperparameterConfig(lr=RLParameter(1e-4, 1e-2))
    population = [Agent(i) for i in range(6)]
    for agent in population:
        agent.registry.hp_config = shared  # even if somebody shares one
    only("rl_hp").mutation(population)
    assert {round(a.lr, 6) for a in population} <= {0.0008, 0.0012}
    assert all(a.mut == "lr" for a in population)
    population[0].lr = 5e-3
    only("rl_hp").rl_hyperparam_mutation(population[0])
    assert round(population[0].lr, 6) in (0.004, 0.006)
    assert population[0].mutation_record.before == 5e-3
    assert population[0].optimizer.rebuilds == 0


def test_integer_attributes_stay_integers_and_grow_from_one() -> None:
    agent = Agent()
    agent.registry.hp_config = HyperparameterConfig(learn_step=RLParameter(1, 8))
    only("rl_hp").rl_hyperparam_mutation(agent)
    assert agent.learn_step == 2
    assert type(agent.learn_step) is int


def test_without_configuration_nothing_happens() -> None:
    agent = Agent()
    agent.registry.hp_config = None
    only("rl_hp").mutation([agent])
    assert agent.mut == "None"
    assert agent.hooks == 0


def test_old_dialect_defines_what_may_change() -> None:
    agent = Agent()
    agent.registry.hp_config = None
    mutations = Mutations(
        algo="DQN", no_mutation=0, architecture=0, new_layer_prob=0.2, parameters=0, activation=0, rl_hp=1,
        rl_hp_selection=["lr", "batch_size"], mutation_sd=0.1, arch="mlp", rand_seed=1, max_batch_size=70,
    )  # fmt: skip
    seen = set()
    for _ in range(30):
        mutations.rl_hyperparam_mutation(agent)
        seen.add(agent.mut)
        assert 1e-4 <= agent.lr <= 1e-2
        assert 8 <= agent.batch_size <= 70
    assert seen == {"lr", "batch_size"}


def test_wrapped_agents_go_in_and_come_out() -> None:
    wrapper = SimpleNamespace(agent=Agent())
    assert only("rl_hp").mutation([wrapper])[0] is wrapper
    assert wrapper.agent.mut in ("lr", "learn_step")


def test_without_seen_observations_the_space_is_sampled() -> None:
    agent = Agent()
    agent.seen = None
    only("parameters").parameter_mutation(agent)
    assert agent.mutation_record.change <= 0.05


def test_networks_with_further_inputs_are_not_measured_and_faults_of_others_are_raised() -> None:
    class Pair(nn.Module):
        def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
            return obs + action

    class Broken(nn.Module):
        def forward(self, obs: torch.Tensor) -> Any:
            raise TypeError("'NoneType' object is not iterable")

    probe = Probe(torch.ones(2, 4), torch.ones(2, 4))
    networks = {"actor": DummyEvolvable("cpu", nn.Identity()), "critic": DummyEvolvable("cpu", Pair())}
    assert list(outputs_of(networks, dict.fromkeys(networks, probe))) == ["actor"]
    with pytest.raises(TypeError, match="NoneType"):
        outputs_of({"actor": DummyEvolvable("cpu", Broken())}, {"actor": probe})
