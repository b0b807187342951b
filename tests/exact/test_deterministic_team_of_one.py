"""MADDPG and MATD3 of one agent with the options of DDPG and TD3: the same weights and actions, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.algorithms import DDPG, MADDPG, MATD3, TD3
from agilerl.core.tree import map_leaves
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import TransitionBatches
from agilerl.engine.rows.kernels import NATIVE
from agilerl.envs.protocol import AGENTS, JOINT, PRESENT
from agilerl.errors import AlgorithmError
from agilerl.native.library import library
from agilerl.networks.q_networks import ContinuousQNetwork

OBS, BOX, NAME = spaces.Box(-1, 1, (3,)), spaces.Box(np.float32([-2, 0]), np.float32([3, 1])), "solo"
NET: dict[str, Any] = {
    "latent_dim": 8, "encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}
}  # fmt: skip
ARGUMENTS: dict[str, Any] = {"net_config": NET, "batch_size": 16, "lr_actor": 1e-2, "lr_critic": 1e-2, "seed": 1}
SHARED = {"gamma": 0.9, "tau": 0.05}
ROWS, UPDATES = 16, 6
PAIRS = [(DDPG, MADDPG), (TD3, MATD3)]
OF_PAIRS = pytest.mark.parametrize(("alone", "team"), PAIRS, ids=["maddpg", "matd3"])


def pair(alone: Any, team: Any, **options: Any) -> tuple[Any, Any]:
    """An agent and a team of one agent with equal weights in float64.

    The encoder of a team's critic has one more layer, of 32 units, which concatenates the agents' observations.
    """
    options = {**ARGUMENTS, **SHARED, **options}
    config = {**NET, "encoder_config": {"hidden_size": [8, 32]}}
    critics = [ContinuousQNetwork(OBS, BOX, random_seed=k, **config) for k in range(2)]
    given = {"critic_network": critics[0]} if alone is DDPG else {"critic_networks": critics}
    single = alone(OBS, BOX, **given, **options)
    policy_freq = {"policy_freq": options.pop("policy_freq", 1)} if team is MADDPG else {}
    group = team({NAME: OBS}, {NAME: BOX}, **options)
    vars(group).update(policy_freq)  # no argument of MADDPG
    for mine, theirs in zip(parameters(single), parameters(group), strict=True):
        theirs.data = mine.data.double().clone()
        mine.data = mine.data.double()
    return single, group


def parameters(agent: Any) -> list[torch.nn.Parameter]:
    """Of networks and their targets, layer by layer."""
    names = [name for group in agent.registry.groups for name in (group.eval_network, *group.shared_networks)]
    return [parameter for name in names for parameter in getattr(agent, name).parameters()]


def weights(agent: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in parameters(agent)])


def batches(n_step: bool = False, weighted: bool = False) -> TransitionBatches:
    """Transitions [U, B, ...] of the single agent."""
    draw = torch.Generator().manual_seed(3)

    def numbers(*size: int) -> torch.Tensor:
        return torch.rand(UPDATES, ROWS, *size, generator=draw, dtype=torch.float64) * 2 - 1

    done = (numbers() > 0.5).double()
    fields = {"obs": numbers(3), "action": numbers(2), "reward": numbers(), "next_obs": numbers(3), "done": done}
    steps = 1 + (numbers() > 0).double() if n_step else 1
    fields["discount"] = SHARED["gamma"] ** steps * (1 - done)
    weight = (numbers() + 1.5 if weighted else torch.ones(UPDATES, ROWS, dtype=torch.float64)) / ROWS
    return TransitionBatches(fields, weight, {"smoothing": 2 * numbers(2)}, UPDATES, 1, True)


def of_agent(whole: TransitionBatches, agent: Any) -> TransitionBatches:
    """The same transitions as the agent stores them, with the random numbers that it draws."""
    names, fields, noise = (
        set(agent.draw_noise(np.random.default_rng(0), (1, 1))),
        dict(whole.fields),
        dict(whole.noise),
    )
    if isinstance(agent, MADDPG | MATD3):
        for name in ("reward", "done", "discount"):
            fields[name] = fields[name].unsqueeze(-1)
        for name in ("obs", "next_obs"):
            present = torch.ones(UPDATES, ROWS, 1, dtype=torch.bool)
            fields[name] = {AGENTS: {NAME: fields[name]}, PRESENT: present}
        noise["gumbel"] = torch.zeros_like(noise["smoothing"])
    return replace(whole, fields=fields, noise={name: noise[name] for name in names})


def assert_equal_learning(single: Any, team: Any, whole: TransitionBatches, plain: bool) -> None:
    before = weights(single)
    mine, theirs = (
        [agent.learn_batch(batch, plain) for batch in of_agent(whole, agent).each()] for agent in (single, team)
    )
    for one, other in zip(mine, theirs, strict=True):
        assert (one.actor_loss is None) == (other.actor_loss is None)
        torch.testing.assert_close(
            [x for x in (other.loss, other.actor_loss, other.priorities) if x is not None],
            [x for x in (one.loss, one.actor_loss, one.priorities) if x is not None],
            rtol=0, atol=0,
        )  # fmt: skip
    assert torch.equal(weights(team), weights(single))
    assert (weights(single) - before).abs().max() > 1e-3


OPTIONS: list[dict[str, Any]] = [{"policy_freq": 1}, {"policy_freq": 2}, {"policy_freq": 3, "tau": 1.0}]
CASES = [(*same, options) for same in PAIRS for options in OPTIONS]
CASES.append((TD3, MATD3, {"policy_freq": 1, "policy_noise": 0.9, "noise_clip": 0.6}))


@pytest.mark.parametrize("plain", [True, False], ids=["modules", "rows"])
@pytest.mark.parametrize(("alone", "team", "options"), CASES)
def test_a_team_of_one_learns_what_the_agent_learns(alone: Any, team: Any, options: Any, plain: bool) -> None:
    assert_equal_learning(*pair(alone, team, **options), batches(), plain)


@pytest.mark.parametrize("replay", [{"n_step": True}, {"weighted": True}, {"n_step": True, "weighted": True}])
@OF_PAIRS
def test_n_step_and_prioritised_rows_are_those_of_the_agent(alone: Any, team: Any, replay: Any) -> None:
    assert_equal_learning(*pair(alone, team, policy_freq=1), batches(**replay), plain=False)


@pytest.mark.skipif(library() is None, reason="no kernels were built for this machine")
@pytest.mark.parametrize("policy_freq", [1, 2])
@OF_PAIRS
def test_kernels_in_c_learn_the_same(alone: Any, team: Any, policy_freq: int) -> None:
    agents = pair(alone, team, policy_freq=policy_freq)
    for agent in agents:
        whole = of_agent(batches(), agent)
        for name in ("obs", "next_obs") if agent is agents[1] else ():
            whole.fields[name][JOINT] = whole.fields[name][AGENTS][NAME]  # type: ignore[index]  # a mapping
        fields, noise = map_leaves(lambda x: x.unsqueeze(1), (dict(whole.fields), dict(whole.noise)))
        whole = replace(whole, fields=fields, noise=noise, weight=whole.weight.unsqueeze(1))
        learner = Learner([agent], kernels=replace(NATIVE, whole=(torch.float64,)))
        in_c = learner.groups[0].learn_whole(whole, None)
        assert (in_c is None) == (agent is agents[1] and alone is DDPG and policy_freq > 1)  # C moves all targets
        for batch in whole.each() if in_c is None else ():
            learner.groups[0].learn(batch, None)
        learner.settle()
    torch.testing.assert_close(weights(agents[1]), weights(agents[0]), rtol=1e-12, atol=1e-12)


NOISE: list[dict[str, Any]] = [
    {"O_U_noise": False},
    {"O_U_noise": False, "expl_noise": np.array([0.1, 0.4]), "mean_noise": 0.2},
    {"O_U_noise": True, "theta": 0.5, "dt": 0.1, "mean_noise": np.array([0.3, -0.3])},
]


@pytest.mark.parametrize("options", NOISE)
@OF_PAIRS
def test_a_team_of_one_explores_as_the_agent_does(alone: Any, team: Any, options: dict[str, Any]) -> None:
    single, group = pair(alone, team, vect_noise_dim=4, **options)
    outputs = torch.rand(4, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    for call, steps in enumerate(((4,), (5, 4), (4,))):  # one step, a plan of five, and after the reset of a lane
        mine, theirs = (agent.draw_exploration(np.random.default_rng(call), steps) for agent in (single, group))
        np.testing.assert_array_equal(theirs[0], mine[0])
        actions = [a.explore(outputs.expand(*steps, 2), d, 0.0) for a, d in ((single, mine), (group, theirs))]
        np.testing.assert_array_equal(actions[1], actions[0])
        environment = group.team.split(group.environment_action(actions[1]))[NAME]
        np.testing.assert_array_equal(environment, single.environment_action(actions[0]))
        single.reset_action_noise([1])
        group.reset_action_noise([1])
    np.testing.assert_array_equal(group.noise_state, single.noise_state)
    np.testing.assert_array_equal(group.greedy(outputs), single.greedy(outputs))


@OF_PAIRS
def test_both_say_which_loss_critics_minimise(alone: Any, team: Any) -> None:
    for agent in pair(alone, team):
        assert isinstance(agent.criterion, torch.nn.MSELoss)
        with pytest.raises(AlgorithmError, match="criterion is the loss that update computes"):
            agent.criterion = torch.nn.HuberLoss()
