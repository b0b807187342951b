"""VDN and QMIX on games with known values: the two-step game of QMIX's authors, agents that wait, masks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from test_waiting_teams import GAMMA, Q_FIRST, Q_LAST, Shifts, fast_value, spaces_of

from agilerl.algorithms.qmix import QMIX, VDN
from agilerl.algorithms.teams.evaluation import observed
from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
from agilerl.vector import SyncPettingZooVecEnv

TWO = ("chooser", "other")  # each with a network of its own
NET: dict[str, Any] = {
    "encoder_config": {"hidden_size": [32]}, "head_config": {"hidden_size": [32]}, "latent_dim": 16,
}  # fmt: skip


def joint_values(team: Any, seen: dict[str, Any]) -> np.ndarray:
    """Q_tot of every joint action of two agents with two choices each, [2, 2], in one state."""
    rows, _ = observed(team, seen)
    rows = {**rows, "agents": {agent: torch.as_tensor(x) for agent, x in rows["agents"].items()}}
    with torch.no_grad():
        first, second = team.policy_output(rows)[0].view(2, 2)
        pairs = [torch.stack([first[a], second[b]]) for a, b in itertools.product(range(2), range(2))]
        totals = [team.mix(lambda name: getattr(team, name), rows, pair[None]) for pair in pairs]
    return torch.cat(totals).view(2, 2).numpy()


# --- two steps (arXiv:1803.11485, section 5) --------------------------------------------------------------------------

DISCOUNT = 0.99
PAYOFFS = {1: np.full((2, 2), 7.0), 2: np.array([[0.0, 1.0], [1.0, 8.0]])}  # of the states 2A and 2B
ADDITIVE = np.array([[-1.5, 2.5], [2.5, 6.5]])  # the sum of two functions nearest to the payoffs of 2B


def shown(state: int, count: int = 1) -> dict[str, np.ndarray]:
    return dict.fromkeys(TWO, np.repeat(np.eye(3, dtype=np.float32)[[state]], count, 0))


def transitions() -> dict[str, Any]:
    """Every joint action of every state once: `chooser` decides in state 0 which matrix is played next."""
    table = [(0, a, b, 0.0, 1 + a, 0.0) for a in range(2) for b in range(2)]
    table += [(s, a, b, PAYOFFS[s][a, b], 0, 1.0) for s in (1, 2) for a in range(2) for b in range(2)]
    states, first, second, rewards, following, ends = (np.array(column) for column in zip(*table, strict=True))
    eye = np.eye(3, dtype=np.float32)
    return {
        "obs": dict.fromkeys(TWO, eye[states]), "next_obs": dict.fromkeys(TWO, eye[following]),
        "action": {"chooser": first[:, None], "other": second[:, None]},
        "reward": dict.fromkeys(TWO, rewards[:, None].astype(np.float32)),
        "done": dict.fromkeys(TWO, ends[:, None].astype(np.float32)),
    }  # fmt: skip


def trained(cls: Any) -> Any:
    seen, done = spaces.Box(0, 1, (3,), np.float32), spaces.Discrete(2)
    team = cls(dict.fromkeys(TWO, seen), dict.fromkeys(TWO, done), seed=0,
               net_config=NET, lr=3e-3, tau=0.05, gamma=DISCOUNT)  # fmt: skip
    batch = team.make_batch(transitions())
    for number in range(1000):
        team.lr = 3e-3 if number < 700 else 3e-4
        team.learn_batch(batch)
    return team


def test_qmix_knows_both_games_and_plays_the_better_one() -> None:
    team = trained(QMIX)
    np.testing.assert_allclose(joint_values(team, shown(1)), PAYOFFS[1], atol=0.05)
    np.testing.assert_allclose(joint_values(team, shown(2)), PAYOFFS[2], atol=0.05)
    np.testing.assert_allclose(joint_values(team, shown(0)), DISCOUNT * np.array([[7, 7], [8, 8]]), atol=0.05)
    assert team.get_action(shown(0), training=False)[0]["chooser"].tolist() == [1]
    assert [x.tolist() for x in team.get_action(shown(2), training=False)[0].values()] == [[1], [1]]


def test_vdn_knows_the_nearest_sums_and_plays_the_safe_game() -> None:
    team = trained(VDN)
    np.testing.assert_allclose(joint_values(team, shown(1)), PAYOFFS[1], atol=0.05)
    np.testing.assert_allclose(joint_values(team, shown(2)), ADDITIVE, atol=0.05)
    np.testing.assert_allclose(joint_values(team, shown(0)), DISCOUNT * np.array([[7, 7], [6.5, 6.5]]), atol=0.05)
    assert team.get_action(shown(0), training=False)[0]["chooser"].tolist() == [0]


# --- agents that wait, and masks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [VDN, QMIX])
def test_values_of_a_team_know_what_waiting_brings(cls: Any) -> None:
    pop = cls.population(1, *spaces_of(), seed=1, net_config=NET, lr=3e-3, batch_size=64, learn_step=4, gamma=GAMMA,
                         tau=0.1)  # fmt: skip
    memory = MultiAgentReplayBuffer(2000, agent_ids=list(Shifts.possible_agents))
    (team,), _ = train_multi_agent_off_policy(
        SyncPettingZooVecEnv([Shifts] * 4), "shifts", pop=pop, memory=memory, max_steps=2400, evo_steps=2400,
        eval_steps=6, seed=2, verbose=False, learning_delay=100, eps_end=1.0,
    )  # fmt: skip
    for time, of_slow in ((0, Q_FIRST), (3, Q_LAST)):
        for values in joint_values(team, Shifts().show(time)):  # what `fast` does has no effect
            np.testing.assert_allclose(values, (fast_value(time) + of_slow) / 2, atol=0.06, err_msg=f"at {time}")
        assert team.get_action(Shifts().show(time), training=False)[0]["slow"].tolist() == [1]


@pytest.mark.parametrize("cls", [VDN, QMIX])
def test_values_that_no_legal_action_has_are_not_hoped_for(cls: Any) -> None:
    """One agent of two may not do, in the second step, what would pay 10."""
    seen, done = spaces.Box(0, 1, (2,), np.float32), spaces.Discrete(2)
    team = cls(dict.fromkeys(TWO, seen), dict.fromkeys(TWO, done), seed=0, net_config=NET, lr=3e-3, tau=0.05, gamma=0.5)
    rows = [(a, b) for a in range(2) for b in range(2)]
    states, eye = np.repeat([0, 1], 4), np.eye(2, dtype=np.float32)
    first, second = np.array(rows * 2).T
    pays = np.where(states == 1, 4.0 * second + 10 * first, 0)[:, None].astype(np.float32)
    legal = np.ones((8, 4), bool)
    legal[states == 0, 1] = False  # in the state after the first one
    batch = team.make_batch({
        "obs": dict.fromkeys(TWO, eye[states]), "next_obs": dict.fromkeys(TWO, eye[np.ones(8, int)]),
        "action": {"chooser": first[:, None], "other": second[:, None]}, "reward": dict.fromkeys(TWO, pays),
        "done": dict.fromkeys(TWO, (states == 1)[:, None].astype(np.float32)), "next_mask": legal,
    })  # fmt: skip
    for _ in range(600):
        team.learn_batch(batch)
    start = dict.fromkeys(TWO, eye[[0]])
    np.testing.assert_allclose(joint_values(team, start), np.full((2, 2), 0.5 * 4), atol=0.1)
