"""What a run keeps of an agent: everything that its next generation depends on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from agilerl.core.checkpoint import decode_tree, digest_tree, encode_tree
from agilerl.core.rng import restored_generator
from agilerl.hpo.mutation import Mutations
from agilerl.modules.base import MutationType
from agilerl.training.state import check_savable
from agilerl.utils.utils import create_population, make_vect_envs


class Counter:
    """A part of an agent with a state of its own."""

    def __init__(self) -> None:
        self.count = 0

    def state(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def agent(seed: int = 0) -> Any:
    env = make_vect_envs("CartPole-v1", num_envs=2)
    (made,) = create_population(
        "DQN", {"latent_dim": 16}, {"BATCH_SIZE": 8}, observation_space=env.single_observation_space,
        action_space=env.single_action_space, population_size=1, seed=seed,
    )  # fmt: skip
    made.counter, made._own = Counter(), np.random.default_rng(seed)
    made._torch = torch.Generator()
    return made


def through_file(tree: dict[str, Any]) -> dict[str, Any]:
    return decode_tree(encode_tree(tree))


def test_everything_of_an_agent_comes_back_and_draws_on() -> None:
    source, twin = agent(), agent(seed=9)
    source.remember_observations(torch.rand(6, 4))
    Mutations(0, 1, 0.5, 0, 0, 0, rand_seed=2).mutation([source])
    source.counter.count, source._note = 5, {"seen": [1.5, float("nan")]}
    source.actor.disable_mutations(MutationType.LAYER)
    source.set_training_mode(False)
    source._own.random(3)
    source._torch.manual_seed(11)
    twin.load_run_state(through_file(source.run_state()))
    assert digest_tree(twin.run_state()) == digest_tree(source.run_state())
    assert twin.counter.count == 5
    assert twin.mutation_record == source.mutation_record
    assert not twin.actor.training
    assert twin.actor.layer_mutation_methods == []
    assert twin._own.random() == source._own.random()
    assert torch.equal(torch.rand(2, generator=twin._torch), torch.rand(2, generator=source._torch))
    assert torch.equal(twin.probe_observations(), source.probe_observations())
    for network in (twin.actor, source.actor):
        assert network.encoder.rng is network.rng, "parts of a network share one generator, before and after"
    assert twin.actor.rng.integers(2**62) == source.actor.rng.integers(2**62)
    both = [Mutations(0, 1, 0.5, 0, 0, 0, rand_seed=3).mutation([each])[0] for each in (source, twin)]
    assert digest_tree(both[0].run_state()) == digest_tree(both[1].run_state())


def test_the_state_of_a_run_shares_nothing_with_the_agent() -> None:
    source, twin = agent(), agent(seed=9)
    state = through_file(source.run_state())
    twin.load_run_state(state)
    with torch.no_grad():
        for parameter in twin.actor.parameters():
            parameter.add_(1)
    other = agent(seed=4)
    other.load_run_state(state)
    assert digest_tree(other.run_state()) == digest_tree(source.run_state())


def test_what_no_run_keeps_is_named() -> None:
    source = agent()
    source.helper = {1, 2}
    assert source.unsaved_attributes() == ["helper (set)"]
    (note,) = check_savable([source, source])
    assert note.startswith("DQN.helper (set) is not saved")


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_any_numpy_generator_goes_on_where_it_was(kind: Any) -> None:
    rng = np.random.Generator(kind(3))
    rng.random(5)
    twin = restored_generator(through_file({"rng": rng.bit_generator.state})["rng"])
    assert twin.random() == rng.random()
    with pytest.raises(ValueError, match="unknown bit generator 'Dice'"):
        restored_generator({"bit_generator": "Dice"})


def test_mutation_draws_on_after_a_resume() -> None:
    mutation, twin = (Mutations(1, 1, 0.5, 1, 1, 1, rand_seed=seed) for seed in (1, 2))
    mutation.mutation([agent()])
    twin.load_state(through_file(mutation.state()))
    after = [each.mutation([agent(seed=5)])[0].run_state() for each in (mutation, twin)]
    assert digest_tree(after[0]) == digest_tree(after[1])
