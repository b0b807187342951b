"""Epochs of PPO in C against the update in torch, in float64; and equal bits where nothing may make a difference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import gymnasium as gym
import pytest
import torch
from native_case import BOTH, FOUND
from policy_case import CASES, DISCRETE, OBS, SAMPLES, WIDE, member_of, members, plans, rollout
from torch import Tensor

from agilerl.algorithms import PPO
from agilerl.algorithms.base.declared import hyperparameters
from agilerl.engine.learner import Learner
from agilerl.engine.recipes import PolicyGradientRecipe, recipe_of
from agilerl.engine.rollouts import EpochPlan, Rollout
from agilerl.engine.rows.kernels import NATIVE, TORCH
from agilerl.engine.rows.native import NativeUpdates
from agilerl.native.library import ACTIVATIONS, Library

pytestmark = pytest.mark.skipif(FOUND is None, reason="no kernels were built for this machine")


def one_by_one(plan: EpochPlan) -> list[EpochPlan]:
    each = zip(plan.rows, plan.weight, plan.live, strict=True)
    return [EpochPlan(rows[None], weight[None], live[None]) for rows, weight, live in each]


def state_of(learner: Learner, results: list[Any]) -> list[Tensor]:
    (cohort,) = learner.groups[0].engine.cohorts
    reports = [torch.stack((result.loss, result.actor_loss, result.kl)) for result in results]
    rows = (cohort.value, cohort.first, cohort.second, *cohort.step.values())
    return [*[x.clone() for x in rows], torch.stack(reports)]


def in_torch(agents: list[PPO], of: Rollout, epochs: list[EpochPlan]) -> list[Tensor]:
    learner = Learner(agents, kernels=TORCH)
    assert len(learner.groups) == 1
    return state_of(learner, [learner.learn(0, batch, batch.live) for plan in epochs for batch in of.batches(plan)])


def in_c(agents: list[PPO], of: Rollout, epochs: list[EpochPlan], library: Any = None) -> list[Tensor]:
    learner = Learner(agents, kernels=BOTH)
    if library is not None:
        engine = learner.groups[0].engine
        engine._native = NativeUpdates(engine.cohorts, len(agents), BOTH.whole)
        engine._native.library = library
    results = []
    for plan in epochs:
        some = learner.learn_epoch(0, of, plan)
        assert some is not None
        results += some
    return state_of(learner, results)


def assert_close(one: list[Tensor], other: list[Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def assert_equal(one: list[Tensor], other: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("equal", [True, False], ids=["equal", "different"])
@pytest.mark.parametrize("case", CASES)
def test_sixty_minibatches_are_those_of_torch(case: str, equal: bool) -> None:
    space, masked, more = CASES[case]
    of, epochs = rollout(space, torch.float64, masked), plans(15)
    ours, theirs = (members(space, equal=equal, **more) for _ in range(2))
    mine = in_c(ours, of, epochs)
    assert len(mine[-1]) >= 60
    assert_close(mine, in_torch(theirs, of, epochs))
    assert [agent.learn_counter for agent in ours] == [agent.learn_counter for agent in theirs]


SWITCHES = [
    (option, value)
    for option, declared in hyperparameters(PPO).items()
    if not declared.is_number and option != "recurrent"  # which has other encoders
    for value in (get_args(declared.values) or (True, False)) if value != declared.published
]  # fmt: skip


@pytest.mark.parametrize(("option", "value"), SWITCHES)
def test_a_switch_is_one_of_the_kernel_or_keeps_it_out(option: str, value: Any) -> None:
    """A recipe that leaves out an option would train without it in C."""
    if recipe_of(members(WIDE, **{option: value})[0]) is None:
        return
    of, epochs = rollout(WIDE, torch.float64), plans(6)
    populations = [members(WIDE, **{option: value}) for _ in range(2)]
    assert_close(in_c(populations[0], of, epochs), in_torch(populations[1], of, epochs))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("norm", [False, True])
def test_activations_are_those_of_torch(activation: str, norm: bool) -> None:
    of, epochs, made = rollout(DISCRETE, torch.float64), plans(6), {"activation": activation, "norm": norm}
    assert_close(in_c(members(DISCRETE, **made), of, epochs), in_torch(members(DISCRETE, **made), of, epochs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", ["several masked choices", "wide normal"])
def test_members_together_are_members_alone_to_the_bit(case: str, dtype: torch.dtype) -> None:
    space, masked, more = CASES[case]
    of, epochs = rollout(space, dtype, masked), plans(4)
    together = in_c(members(space, dtype, equal=True, **more), of, epochs)
    for index in range(3):
        mine = [EpochPlan(p.rows[:, [index]], p.weight[:, [index]], p.live[:, [index]]) for p in epochs]
        alone = in_c([members(space, dtype, equal=True, **more)[index]], member_of(of, index), mine)
        for k in range(4):
            assert torch.equal(alone[k][0], together[k][index])
        assert torch.equal(alone[4][..., 0], together[4][..., index])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", ["several masked choices", "wide normal"])
def test_an_epoch_in_one_call_is_its_minibatches_to_the_bit(case: str, dtype: torch.dtype) -> None:
    space, masked, more = CASES[case]
    of, epochs = rollout(space, dtype, masked), plans(4)
    each = [part for plan in epochs for part in one_by_one(plan)]
    assert_equal(in_c(members(space, dtype, **more), of, epochs), in_c(members(space, dtype, **more), of, each))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", ["masked choice", "several choices", "normal"])
@pytest.mark.parametrize("activation", ["Tanh", "GELU"])
def test_vectors_of_every_width_give_the_same_bits(case: str, activation: str, dtype: torch.dtype) -> None:
    assert FOUND is not None
    if FOUND.vector != 512:
        pytest.skip("this processor has one width of vectors")
    space, masked, more = CASES[case]
    of, epochs, made = rollout(space, dtype, masked), plans(3), {**more, "activation": activation, "norm": True}
    narrow = in_c(members(space, dtype, **made), of, epochs, Library(FOUND.path, 256))
    assert_equal(in_c(members(space, dtype, **made), of, epochs), narrow)


@pytest.mark.parametrize("case", ["choice", "normal"])
def test_float32_is_as_near_to_float64_as_torch_is(case: str) -> None:
    space, masked, more = CASES[case]
    narrow, epochs = rollout(space, torch.float32, masked), plans(25)
    wide = replace(narrow, obs=narrow.obs.double(), numbers=narrow.numbers.double())
    agents = members(space, torch.float32, **more)
    for agent in agents:
        for network in (agent.actor, agent.critic):
            network.double()
        agent.reinit_optimizers()
    exact = in_torch(agents, wide, epochs)[0]
    errors = [(run(members(space, torch.float32, **more), narrow, epochs)[0] - exact).abs() for run in (in_c, in_torch)]
    assert errors[0].mean() < 1.5 * errors[1].mean()
    assert errors[0].max() < 3 * errors[1].max()


@pytest.mark.parametrize("case", ["choice", "normal"])
def test_a_nan_stays_in_its_member_and_shows(case: str) -> None:
    space, masked, more = CASES[case]
    of, epochs = rollout(space, torch.float32, masked), plans(2)
    agents = members(space, torch.float32, **more)
    with torch.no_grad():
        next(agents[1].actor.parameters())[0, 0] = torch.nan
    spoiled, clean = in_c(agents, of, epochs), in_c(members(space, torch.float32, **more), of, epochs)
    assert spoiled[4][0, :, 1].isnan().all()
    for row in (0, 2):
        assert torch.equal(spoiled[4][..., row], clean[4][..., row])
        assert all(torch.equal(a[row], b[row]) for a, b in zip(spoiled[:4], clean[:4], strict=True))


def test_what_c_has_no_kernel_for_is_left_to_torch() -> None:
    of, (plan,) = rollout(DISCRETE, torch.float64), plans(1)
    masks = torch.ones(3, SAMPLES, 5, dtype=torch.bool)
    others = [replace(of, action=of.action + 4), replace(of, action=of.action - 4), replace(of, legal=masks),
              replace(of, obs=of.obs[..., :7]), replace(of, numbers=of.numbers.float())]  # fmt: skip
    for some in others:
        assert Learner(members(DISCRETE), kernels=BOTH).learn_epoch(0, some, plan) is None
    assert Learner(members(DISCRETE), kernels=NATIVE).learn_epoch(0, of, plan) is None  # float64
    assert Learner(members(DISCRETE), kernels=TORCH).learn_epoch(0, of, plan) is None


@pytest.mark.parametrize("name", sorted(PolicyGradientRecipe.stands_for))
def test_an_algorithm_with_its_own_update_has_no_recipe(name: str) -> None:
    changed = type("Changed", (PPO,), {name: lambda self, *args: getattr(PPO, name)(self, *args)})
    recipes = [recipe_of(kind(OBS, DISCRETE)) for kind in (PPO, changed)]
    assert isinstance(recipes[0], PolicyGradientRecipe)
    assert recipes[1] is None


def test_a_method_that_was_replaced_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, update = PPO(OBS, DISCRETE), PPO.update
    assert recipe_of(agent) is not None
    monkeypatch.setattr(PPO, "update", lambda self, *args: update(self, *args))
    assert recipe_of(agent) is None


@pytest.mark.parametrize("space", [gym.spaces.MultiBinary(3), gym.spaces.Tuple((DISCRETE, WIDE))])
def test_other_actions_and_shared_encoders_have_no_recipe(space: Any) -> None:
    assert PPO(OBS, space).recipe() is None
    assert PPO(OBS, DISCRETE, share_encoders=True).recipe() is None
    assert PPO(OBS, WIDE, squash_output=True).recipe() is None
