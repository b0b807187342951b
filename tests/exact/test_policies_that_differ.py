"""Members of PPO that differ in every hyperparameter learn together, in torch and in C, what each learns alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.engine.rollouts import EpochPlan, Rollout
from agilerl.engine.rows.kernels import TORCH
from tests.differential.apart import SHRINK, assert_same_state, close, moved, vary
from tests.differential.native_case import BOTH, FOUND
from tests.differential.off_policy_case import state
from tests.differential.policy_case import CASES, member_of, members, plans, rollout

# case of `policy_case` -> further options, with which every hyperparameter counts
CHOSEN: dict[str, dict[str, Any]] = {
    "several masked choices": {"norm": True},
    "masked choice": {"clip_value_loss": False},
    "wide normals": {"activation": "Tanh", "action_std_min": 0.4, "action_scaling": "none"},
    "normal in other units": {},
}
ALWAYS = {"max_grad_norm": 0.3, "ent_coef": 0.1, "vf_coef": 0.7}


def alone(agent: Any, member: int, of: Rollout, epochs: list[EpochPlan]) -> list[Any]:
    """Train one member with its modules and torch's optimiser; results of its minibatches."""
    learner = Learner([agent], choose([agent], "sequential"))
    results = []
    for plan in epochs:
        part = EpochPlan(*(x[:, [member]] for x in (plan.rows, plan.weight, plan.live)))
        for live, batch in zip(part.live[:, 0], member_of(of, member).batches(part), strict=True):
            results.append(learner.learn(0, batch) if live else None)
    learner.release()
    return results


def assert_together_as_alone(agents: list[Any], of: Rollout, epochs: list[EpochPlan]) -> dict[str, Tensor]:
    """Minibatches of all members are those of each alone, in torch and in C; returns the state after them."""
    references = [agent.clone() for agent in agents]
    minibatches = [alone(agent, member, of, epochs) for member, agent in enumerate(references)]
    expected = state(references)
    for kernels in [TORCH] if FOUND is None else [TORCH, BOTH]:
        together = [agent.clone() for agent in agents]
        learner, results = Learner(together, choose(together, "fused"), kernels=kernels), []
        assert len(learner.groups) == 1
        for plan in epochs:
            in_c = learner.learn_epoch(0, of, plan)
            assert (in_c is not None) == bool(kernels.whole)
            results += in_c or [learner.learn(0, batch) for batch in of.batches(plan)]
        learner.release()
        for number, one in enumerate(results):
            for member, reference in enumerate(reports[number] for reports in minibatches):
                for name in ("loss", "actor_loss", "kl") if reference is not None else ():
                    mine, theirs = getattr(one, name)[member], getattr(reference, name)[0]
                    close(mine, theirs, f"{kernels.name}: {name} of minibatch {number}, member {member}")
        assert_same_state(together, expected, kernels.name)
    return expected


@pytest.mark.parametrize("case", CHOSEN)
def test_minibatches_together_are_those_of_each_alone(case: str) -> None:
    space, masked, options = CASES[case]
    agents = members(space, **{**options, **ALWAYS, **CHOSEN[case]})
    names, epochs = vary(agents), plans(3)
    of = rollout(space, torch.float64, masked)
    for member, agent in enumerate(agents):  # other moments and counts of steps
        alone(agent, member, of, plans(member + 1))
    expected = assert_together_as_alone(agents, of, epochs)
    for name in names:
        other = agents[2].clone()
        setattr(other, name, getattr(other, name) * SHRINK)
        alone(other, 2, of, epochs)
        assert moved(other, expected, 2) > 1e-8, f"{name} makes no difference to these minibatches"


def test_deviations_at_their_limits_and_ratios_out_of_bounds() -> None:
    """Deviations of e to the power of 2 and −20 have no gradient; a log ratio beyond 20 counts as 20."""
    space, masked, options = CASES["normal"]
    agents, of = members(space, **options), rollout(space, torch.float64, masked)
    for agent in agents:
        weight, bias = list(agent.actor.parameters())[-2:]
        weight.data[3:] *= 1e-3
        bias.data[3:] = torch.tensor([3.0, 1.0, -1.0])
    of.numbers[:, ::7, 0] -= 40
    assert_together_as_alone(agents, of, plans(2))


def test_each_component_has_the_least_deviation_of_its_own_range() -> None:
    """Of ranges 7 and 1 those are 1.4 and 0.2; policies begin between, at 0.6."""
    space, masked, _ = CASES["wide normals"]
    agents = members(space, action_scaling="none", action_std_min=0.4)
    for agent in agents:
        list(agent.actor.parameters())[-1].data[2:] = math.log(0.6)
    expected = assert_together_as_alone(agents, rollout(space, torch.float64, masked), plans(2))
    bias = expected["0 actor"][-2:]
    assert bias[0] == math.log(0.6), "held: no gradient"
    assert bias[1] != math.log(0.6)
