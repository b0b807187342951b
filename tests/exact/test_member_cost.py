"""Costs of members against operations counted by hand, and selection by score for each of them."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from agilerl.algorithms import find_algorithm
from agilerl.errors import ConfigError
from agilerl.hpo.cost import PerCost, TournamentPerCost, forward_operations, per_cost
from agilerl.hpo.operators import HyperparameterConfig, RLParameter
from agilerl.hpo.pbt import MultipleFrequencies, TruncationSelection
from agilerl.modules.mlp import EvolvableMLP
from agilerl.networks.q_networks import QNetwork
from agilerl.telemetry.record import MemberRecord
from agilerl.training.member_cost import MemberCosts

RECORD = MemberRecord(0, 0, None, 0.0, 0.0, 0, 0, None, "founder", {}, "")
SEEN, TWO = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)
NARROW: dict[str, Any] = {
    "encoder_config": {"hidden_size": [4]}, "head_config": {"hidden_size": [4]}, "latent_dim": 9,
}  # fmt: skip
POLICY = 2 * (3 * 4 + 4 * 9 + 9 * 4 + 4 * 2)  # 184: a multiplication and an addition for each weight
VALUE = 2 * (3 * 4 + 4 * 9 + 9 * 4 + 4 * 1)  # 176


def made(name: str, seen: gym.Space[Any] = SEEN, **more: Any) -> Any:
    return find_algorithm(name)(seen, TWO, net_config=copy.deepcopy(NARROW), seed=1, **more)


# -- operations of networks --------------------------------------------------------------------------------------------


def test_dense_layers_count_two_operations_a_weight() -> None:
    assert forward_operations(made("DQN").actor, "actor") == POLICY == 184


def test_a_convolution_counts_two_operations_a_weight_and_place() -> None:
    """Images of 5 x 5 and one channel, two kernels of 3 x 3: 3 x 3 places, then 18 inputs to a latent vector of 9."""
    image = gym.spaces.Box(0, 255, (1, 5, 5), np.uint8)
    encoder = {"channel_size": [2], "kernel_size": [3], "stride_size": [1]}
    network = QNetwork(image, TWO, encoder_config=encoder, head_config={"hidden_size": [4]}, latent_dim=9)
    assert forward_operations(network, "actor") == 2 * (9 * 9 * 2) + 2 * (18 * 9) + 2 * (9 * 4 + 4 * 2)


def test_a_recurrent_layer_counts_its_four_gates() -> None:
    encoder = {"hidden_state_size": 16}
    network = QNetwork(
        SEEN, TWO, encoder_config=encoder, head_config={"hidden_size": [4]}, latent_dim=9, recurrent=True
    )
    gates = 2 * 4 * 16 * (3 + 16)
    assert forward_operations(network, "actor") == gates + 2 * (16 * 9) + 2 * (9 * 4 + 4 * 2)


def test_counting_changes_no_weight_mode_or_random_stream() -> None:
    agent = made("RainbowDQN")
    agent.actor.train()
    before, stream = copy.deepcopy(agent.actor.state_dict()), torch.get_rng_state()
    forward_operations(agent.actor, "actor")
    assert all(torch.equal(value, before[name]) for name, value in agent.actor.state_dict().items())
    assert agent.actor.training
    assert torch.equal(torch.get_rng_state(), stream)


def test_networks_that_cannot_be_counted_are_named() -> None:
    recurrent = made("DQN").actor
    recurrent.memory = nn.LSTM(3, 4)
    with pytest.raises(ConfigError, match=r"actor has a torch\.nn\.LSTM.*fix: evolution\.objective=score"):
        forward_operations(recurrent, "actor")
    with pytest.raises(ConfigError, match=r"critic is of class EvolvableMLP, not an EvolvableNetwork"):
        forward_operations(EvolvableMLP(3, 2, [4]), "critic")


# -- costs of members --------------------------------------------------------------------------------------------------


def test_rollouts_are_learned_from_in_every_epoch() -> None:
    """One pass of policy and value to act, three for each of three epochs: 360 * (1 + 9)."""
    assert MemberCosts(2).of(made("PPO", update_epochs=3)) == (POLICY + VALUE) * 10 == 3600


@pytest.mark.parametrize(("learn_step", "rows"), [(4, 4), (1, 16), (0.5, 32)])
def test_replay_is_learned_from_at_the_pace_of_updates(learn_step: float, rows: int) -> None:
    """Batches of 16 in two lanes: one at every second vector step, two or four at every one. A row costs three passes
    and one of the target."""
    cost = MemberCosts(2).of(made("DQN", batch_size=16, learn_step=learn_step))
    assert cost == POLICY + rows * (3 * POLICY + POLICY)


def test_a_step_offline_is_an_update_without_acting() -> None:
    assert MemberCosts().of(made("CQN", batch_size=16)) == 16 * 4 * POLICY


def test_a_temperature_costs_nothing() -> None:
    """SAC of two actions: critics read observations alone here, and the policy has no target."""
    agent = made("SAC", batch_size=1, learn_step=1)
    critics = forward_operations(agent.critic_1, "critic_1")
    policy = forward_operations(agent.actor, "actor")
    assert MemberCosts().of(agent) == policy + 3 * (policy + 2 * critics) + 2 * critics


def test_agents_that_share_a_network_count_each() -> None:
    seen, both = {"a_0": SEEN, "a_1": SEEN}, {"a_0": TWO, "a_1": TWO}
    team = find_algorithm("IPPO")(seen, both, net_config=copy.deepcopy(NARROW), update_epochs=3, seed=1)
    assert MemberCosts().of(team) == 2 * 3600


def test_a_larger_network_and_a_larger_batch_cost_more_after_a_change_too() -> None:
    costs, agent = MemberCosts(), made("DQN", batch_size=16, learn_step=1)
    first = costs.of(agent)
    agent.batch_size = 32
    assert costs.of(agent) == POLICY + 32 * 4 * POLICY
    agent.batch_size = 16
    agent.actor.apply_mutation("head_net.add_node")
    assert costs.of(agent) > first, "a change in place is another architecture"


def test_what_is_not_counted_is_refused_by_name_and_none_in_records() -> None:
    arms = gym.spaces.Box(-1, 1, (2, 3), np.float32)
    bandit = find_algorithm("NeuralUCB")(arms, TWO, seed=1)
    with pytest.raises(ConfigError, match=r"NeuralUCB, which learns from the rewards.*not counted\. fix: evolution\."):
        MemberCosts().of(bandit)
    assert MemberCosts().if_counted(bandit) is None
    assert MemberCosts().if_counted(SimpleNamespace(index=0)) is None, "an agent of a user that declares nothing"
    agent = made("PPO")
    del agent.update_epochs
    with pytest.raises(ConfigError, match=r"depend on update_epochs, which PPO lacks"):
        MemberCosts().of(agent)


# -- selection by score for its cost -----------------------------------------------------------------------------------


class Member:
    """What a scheme needs of an agent."""

    def __init__(self, index: int, fitness: list[float], cost: float) -> None:
        self.index, self.fitness, self.cost, self.mut, self.lr = index, fitness, cost, "None", 1e-3
        self.registry = SimpleNamespace(hp_config=HyperparameterConfig(lr=RLParameter(1e-4, 1e-2)))

    def clone(self, index: int | None = None, wrap: bool = True) -> Member:
        return Member(self.index if index is None else index, list(self.fitness), self.cost)

    def mutation_hook(self) -> None:
        pass


FITNESS, COSTS = [10.0, 40.0, math.nan, 28.0], [1.0, 10.0, 1.0, 2.0]


def members() -> list[Member]:
    return [Member(i, [f], c) for i, (f, c) in enumerate(zip(FITNESS, COSTS, strict=True))]


def records(population: list[Member]) -> list[MemberRecord]:
    return [replace(RECORD, id=member.index, fitness=member.fitness[-1]) for member in population]


def test_values_are_gains_over_the_lowest_member_for_each_operation() -> None:
    assert per_cost(FITNESS, COSTS) == pytest.approx([0.0, 3.0, math.nan, 9.0], nan_ok=True)
    assert per_cost([-math.inf, 4.0, 2.0], [1.0, 2.0, 1.0]) == [-math.inf, 1.0, 0.0]
    assert per_cost([math.nan, math.nan], [1.0, 1.0]) == pytest.approx([math.nan] * 2, nan_ok=True)


def test_truncation_copies_the_member_with_the_most_for_its_cost() -> None:
    """The diverged member, of slot 2, is the worst; 28 at a cost of 2 beats 40 at 10. Births name the score."""
    population = members()
    scheme = PerCost(TruncationSelection(1, False, "best", seed=0), lambda member: member.cost)
    after, births = scheme.next(population, records(population), 1)
    assert [member.index for member in after] == [0, 1, 4, 3]
    assert [(birth.parent, birth.parent_fitness) for birth in births] == [(3, 28.0)]
    plain, _ = TruncationSelection(1, False, "best", seed=0).next(population, records(population), 1)
    assert plain[2].fitness == [40.0]
    assert scheme.state() == {"seed": 0}
    scheme.load_state({"seed": 7})
    assert scheme.inner.state() == {"seed": 7}


def test_parts_at_several_frequencies_compare_values_of_all_members() -> None:
    population = members()
    scheme = PerCost(MultipleFrequencies([1], 4, seed=0), lambda member: member.cost)
    _, births = scheme.next(population, records(population), 1)
    assert [birth.parent for birth in births] == [3]


def test_a_tournament_and_its_elite_are_chosen_by_value() -> None:
    selection = TournamentPerCost(2, True, 4, 1, seed=0, cost=lambda member: member.cost)
    best, after = selection.select(members())
    assert (best.index, after[0].index) == (3, 3)
    assert 2 not in selection.parents, "a diverged member"
    score = TournamentPerCost(2, True, 4, 1, seed=0, cost=lambda member: 1.0)
    assert score.select(members())[0].index == 1, "equal costs leave the order of scores"
