"""Members that differ in every hyperparameter of an update: together, in torch and in C, each learns as if alone.

One small case for each kernel. Populations of three, of other widths, moments and counts of steps; several updates in
a call, one of each member resting, and delayed updates that do not begin with a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import gymnasium as gym
import numpy as np
import pytest
import torch

from agilerl.algorithms import BC, CQL, CQN, DDPG, DQN, IQL, QRDQN, SAC, TD3, TD3BC, TQC, NeuralUCB, RainbowDQN
from agilerl.algorithms.base.declared import hyperparameters
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import TransitionBatches
from agilerl.engine.recipes import recipe_of
from agilerl.engine.rows.kernels import TORCH
from tests.differential.apart import (
    TOLERANCE,
    assert_each_learns_as_alone,
    assert_together_as_alone,
    close,
    stacked,
    vary,
)
from tests.differential.native_case import BOTH, FOUND

KERNELS = [TORCH] if FOUND is None else [TORCH, BOTH]
OBS = gym.spaces.Box(-1, 1, (5,), np.float64)
BOX, CHOICE = gym.spaces.Box(np.float32([-2, 0]), np.float32([3, 1])), gym.spaces.Discrete(4)
DECAYED = torch.optim.AdamW, {"weight_decay": 0.1, "betas": (0.8, 0.95)}
UPDATES, ROWS, FIRST = 7, 6, 3  # `FIRST`: number of the first update


@dataclass(frozen=True)
class Case:
    """An algorithm and its options.

    Attributes:
        in_c: whether there is a kernel. masked: whether some choices are illegal. norm: whether layers are normalised.
        head: options of the head. optimizer: class and options of all optimisers, Adam by default.
    """

    kind: Callable[..., Any]
    space: gym.Space[Any]
    options: dict[str, Any] = field(default_factory=dict)
    in_c: bool = True
    masked: bool = False
    norm: bool = False
    head: dict[str, Any] = field(default_factory=dict)
    optimizer: tuple[Any, dict[str, Any]] | None = None


CASES = {
    "DQN": Case(DQN, CHOICE, masked=True),
    "DQN, double": Case(DQN, CHOICE, {"double": True}, norm=True, optimizer=DECAYED),
    "CQN": Case(CQN, CHOICE, {"double": True}, masked=True),
    "Rainbow": Case(RainbowDQN, CHOICE, {"num_atoms": 7, "v_min": -2.0, "v_max": 1.5, "prior_eps": 0.1}, in_c=False),
    "QRDQN": Case(QRDQN, CHOICE, {"num_quantiles": 5}, in_c=False, masked=True),
    "DDPG": Case(DDPG, BOX),
    "TD3": Case(TD3, BOX, {"policy_noise": 0.8}, norm=True),
    "TD3, shared": Case(TD3, BOX, {"policy_noise": 0.8, "policy_freq": 3, "share_encoders": True}),
    "TD3, from 0": Case(TD3, BOX, {"policy_noise": 0.8}, head={"output_activation": "Sigmoid"}),
    "SAC": Case(SAC, BOX, norm=True),
    "SAC, shared": Case(SAC, BOX, {"share_encoders": True}),
    "SAC, discrete": Case(SAC, CHOICE, masked=True),
    "TQC": Case(TQC, BOX, {"num_quantiles": 5}, in_c=False, norm=True),
    "CQL": Case(CQL, BOX, in_c=False),
    "IQL": Case(IQL, BOX, {"max_weight": 1.2}, in_c=False),
    "TD3BC": Case(TD3BC, BOX, {"policy_noise": 0.8}, in_c=False),
    "BC": Case(BC, BOX, in_c=False),
    "NeuralUCB": Case(NeuralUCB, CHOICE, in_c=False, head={"hidden_size": [8]}),
}


def members(case: Case) -> list[Any]:
    """Three agents in float64, with hidden widths of their own."""
    agents = []
    for index in range(3):
        in_encoder = case.norm and isinstance(case.space, gym.spaces.Discrete)  # critics of actions have none there
        config = {
            "latent_dim": 7,
            "encoder_config": {"hidden_size": [9 + 2 * index], "activation": "Tanh", "layer_norm": in_encoder},
            "head_config": {"hidden_size": [8 - index], "activation": "Tanh", "layer_norm": case.norm, **case.head},
        }
        space = gym.spaces.Box(-1, 1, (4, 5), np.float64) if case.kind is NeuralUCB else OBS  # a context for each arm
        agent = case.kind(space, case.space, index=index, seed=index, net_config=config, **case.options)
        for name in agent.registry.all_registered():
            getattr(agent, name).double()
        for entry in agent.registry.optimizers if case.optimizer is not None else ():
            wrapper = entry.wrapper(agent)
            wrapper.optimizer_cls, wrapper.optimizer_kwargs = case.optimizer
        agent.reinit_optimizers()
        agents.append(agent)
    return agents


def batches(case: Case, agents: list[Any]) -> TransitionBatches:
    """Transitions of unequal weights, with the algorithm's random numbers; the last rows of a member have weight 0."""
    rng = np.random.default_rng(5)
    shape = UPDATES, len(agents), ROWS
    normal = lambda *size: torch.from_numpy(rng.standard_normal((*shape, *size)))  # noqa: E731
    is_choice = isinstance(case.space, gym.spaces.Discrete)
    action = torch.from_numpy(rng.integers(0, 4, shape)) if is_choice else normal(2).tanh()
    fields = {
        "obs": normal(5), "action": action, "reward": normal(), "next_obs": normal(5),
        "done": torch.from_numpy(rng.random(shape) < 0.2).double(),
    }  # fmt: skip
    if case.masked:
        for name, always in (("obs_mask", action.unsqueeze(-1)), ("next_mask", 2)):
            fields[name] = torch.from_numpy(rng.random((*shape, 4)) < 0.5) | (torch.arange(4) == always)
    weight = torch.from_numpy(rng.random(shape) + 0.5) / ROWS
    weight[:, 1, ROWS // 2 :] = 0
    drawn = [agent.draw_noise(rng, (UPDATES, ROWS)) for agent in agents]
    noise = {name: stacked([part[name] for part in drawn]) for name in drawn[0]}
    return TransitionBatches(fields, weight, noise, UPDATES, FIRST, True)


@pytest.mark.parametrize("name", CASES)
def test_members_learn_together_what_each_learns_alone(name: str) -> None:
    case = CASES[name]
    agents = members(case)
    assert_each_learns_as_alone(agents, batches(case, agents), KERNELS if case.in_c else [TORCH])


def test_of_equal_values_the_first_action_is_taken() -> None:
    """All values of the network are 0 at first; those of its target are not."""
    case = CASES["DQN, double"]
    agents = members(case)
    for agent in agents:
        for parameter in list(agent.actor.parameters())[-2:]:
            parameter.data.zero_()
    assert_together_as_alone(agents, batches(case, agents), KERNELS)


@pytest.mark.parametrize("name", ["SAC", "SAC, shared"])
def test_two_critics_that_agree_have_half_of_the_gradient_each(name: str) -> None:
    case = CASES[name]
    agents = members(case)
    for agent in agents:
        for one, other in (("critic_1", "critic_2"), ("critic_target_1", "critic_target_2")):
            getattr(agent, other).load_state_dict(getattr(agent, one).state_dict())
    expected, _ = assert_together_as_alone(agents, batches(case, agents), KERNELS)
    assert torch.equal(expected["0 critic_1"], expected["0 critic_2"])


@pytest.mark.parametrize(("log_std", "tolerance"), [(9.0, TOLERANCE), (-21.0, 1e-7)])
def test_a_deviation_at_its_limit_has_no_gradient(log_std: float, tolerance: float) -> None:
    """e to the power of 2 and −20; means are near 0, where few digits cancel."""
    case = CASES["SAC, shared"]
    agents = members(case)
    for agent in agents:
        weight, bias = list(agent.actor.parameters())[-2:]
        weight.data[:2] *= 1e-9
        bias.data.copy_(torch.tensor([0.0, 0.0, log_std, log_std / 4]))
    assert_together_as_alone(agents, batches(case, agents), KERNELS, tolerance)


def test_outputs_of_many_rows_are_those_of_each_members_network() -> None:
    """More rows than one block of the kernel."""
    agents = members(CASES["DQN, double"])
    (group,) = Learner(agents, choose(agents, "fused"), kernels=KERNELS[-1]).groups
    obs = np.random.default_rng(0).standard_normal((3, 150, 5))
    outputs = group.greedy_outputs(obs)
    assert group.acts_by_row == (FOUND is not None)
    for member, agent in enumerate(agents):
        for rows in (slice(0, 64), slice(64, 128), slice(128, 150)):
            close(outputs[member, rows], agent.policy_output(obs[member, rows]).detach(), f"{member}, {rows}")


def switches() -> list[tuple[str, str, Any]]:
    """(case, option, value) of all options that are no numbers, of the algorithms that have a kernel."""
    return [
        (name, option, value)
        for name in ("DQN", "CQN", "DDPG", "TD3", "SAC", "SAC, discrete")
        for option, declared in hyperparameters(CASES[name].kind).items() if not declared.is_number
        for value in (get_args(declared.values) or (True, False)) if value != declared.published
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "option", "value"), switches())
def test_a_switch_is_one_of_the_kernel_or_keeps_it_out(name: str, option: str, value: Any) -> None:
    """A recipe that leaves out an option would train without it in C."""
    case = replace(CASES[name], options={**CASES[name].options, option: value})
    agents = members(case)
    vary(agents)
    is_in_c = all(recipe_of(agent) is not None for agent in agents)
    idle = "alpha_optimizer" if (option, value) == ("learn_temperature", False) else ""
    assert_together_as_alone(agents, batches(case, agents), KERNELS if is_in_c else [TORCH], idle=idle)
