"""What stands for an agent that is not there, in observations, targets and losses; and mixed actions in replay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from scripted_team import Frame, Scripted
from team_games import Meeting

import agilerl
from agilerl.algorithms import MADDPG, MATD3
from agilerl.collect import acting
from agilerl.collect.teams.idle_agents import IdleAgents, ends_of_agents
from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
from agilerl.engine.protocol import TransitionBatch
from agilerl.envs.protocol import AGENTS, PRESENT, WAITING, StepBatch, TeamStep
from agilerl.envs.teams import TeamLanes
from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
from agilerl.vector import SyncPettingZooVecEnv

NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}
BOTH = pytest.mark.parametrize("cls", [MADDPG, MATD3])


def played(**ended: Any) -> tuple[Any, Any, Any]:
    """(vector step, the same as it is stored, the next one as it is stored) of two agents; one ends in the first."""
    frames = [Frame({"a": 5, "b": 6}), Frame({"a": 7, "b": 8}, **ended), Frame({"b": 9}, ends=["b"])]
    lanes = TeamLanes([lambda: Scripted(frames)], reset_ended=False)
    waiting, (obs, _) = IdleAgents(lanes.team), lanes.reset()
    first = lanes.step(np.zeros((1, 2)))
    stored = waiting.step(obs, np.zeros((1, 2)), first)
    second = lanes.step(np.zeros((1, 2)))
    return first, stored, waiting.step(first.obs, np.zeros((1, 2)), second)


def test_an_agent_that_terminates_is_absent_from_what_its_last_step_leads_to() -> None:
    """a: 5 -> (end). b: 6 -> 8 -> 9. What joint critics read of a is 5 once, and 0 from then on."""
    lanes_step, (obs, _, batch), (later, _, last) = played(ends=["a"])
    assert obs[AGENTS]["a"].tolist() == [[5, 0]]
    assert batch.final_obs[AGENTS]["a"].tolist() == later[AGENTS]["a"].tolist() == [[0, 0]]
    assert batch.final_obs[PRESENT].tolist() == later[PRESENT].tolist() == [[0, 1]]
    assert batch.final_obs[AGENTS]["b"].tolist() == later[AGENTS]["b"].tolist() == [[8, 1]]
    assert last.final_obs[AGENTS]["a"].tolist() == [[0, 0]]
    assert lanes_step.final_obs[AGENTS]["a"].tolist() == [[7, 1]]  # `final_observation` of infos


def test_an_agent_that_is_cut_is_there_once_more_for_its_own_value() -> None:
    _, (_, _, batch), (later, _, _) = played(cuts=["a"])
    assert batch.final_obs[AGENTS]["a"].tolist() == [[7, 1]]
    assert batch.final_obs[PRESENT].tolist() == [[1, 1]]
    assert later[AGENTS]["a"].tolist() == [[0, 0]]
    assert later[PRESENT].tolist() == [[0, 1]]


def test_the_lowest_choice_stands_for_an_absent_agent_that_sees_choices() -> None:
    observed: dict[str, Any] = {"a": spaces.MultiDiscrete([3, 3], start=[4, 1]), "b": spaces.Discrete(4, start=2)}
    frames = [
        Frame({"a": np.array([6, 3]), "b": np.int64(5)}),
        Frame({"a": np.array([5, 2]), "b": np.int64(4)}, ends=["a"]), Frame({"b": np.int64(3)}, ends=["b"]),
    ]  # fmt: skip
    lanes = TeamLanes([lambda: Scripted(frames, observed=observed)], reset_ended=False)
    waiting, (obs, _) = IdleAgents(lanes.team), lanes.reset()
    batch = lanes.step(np.zeros((1, 2)))
    stored = waiting.step(obs, np.zeros((1, 2)), batch)[2]
    assert stored.final_obs[AGENTS]["a"].tolist() == batch.obs[AGENTS]["a"].tolist() == [[4, 1]]
    assert stored.final_obs[AGENTS]["b"].tolist() == [4]


def test_an_agent_that_is_away_when_it_is_cut_has_ended_with_its_team() -> None:
    """a is cut while it is seen, b while it is away, c ends for good, and of d nothing is said, there or away."""
    agents = ("a", "b", "c", "d")

    def step(present: list[int], over: str) -> StepBatch:
        said = TeamStep(
            np.zeros((1, 4)), np.array([[False, False, True, False]]), np.array([[True, True, False, False]]),
            np.ones((1, 4), bool),
        )  # fmt: skip
        flags = {kind: np.array([kind == over]) for kind in ("terminated", "truncated")}
        final = {AGENTS: dict.fromkeys(agents, np.zeros((1, 2))), PRESENT: np.array([present])}
        return StepBatch(final, np.zeros(1), flags["terminated"], flags["truncated"], final, np.ones(1, bool), {}, said)

    assert [x.tolist() for x in ends_of_agents(step([1, 0, 0, 1], "truncated"))] == [
        [[False, True, True, False]], [[True, False, False, True]],
    ]  # fmt: skip
    assert [x.tolist() for x in ends_of_agents(step([1, 0, 0, 0], "truncated"))] == [
        [[False, True, True, True]], [[True, False, False, False]],
    ]  # fmt: skip
    assert [x.tolist() for x in ends_of_agents(step([1, 0, 0, 1], "terminated"))] == [
        [[False, True, True, True]], [[True, False, False, False]],
    ]  # fmt: skip
    assert [x.tolist() for x in ends_of_agents(step([1, 0, 0, 1], "no"))] == [
        [[False, True, True, False]], [[True, False, False, False]],
    ]  # fmt: skip


@BOTH
def test_policies_learn_only_from_rows_in_which_their_agent_decides(cls: Any) -> None:
    """b waits in every row: critics learn what it gets meanwhile, its policy learns nothing."""
    observed, acted = (
        {a: spaces.Box(-1, 1, (2,)) for a in "ab"},
        {"a": spaces.Box(-1, 1, (1,)), "b": spaces.Discrete(2)},
    )
    team = cls(observed, acted, net_config=NET, seed=1, **({"policy_freq": 1} if cls is MATD3 else {}))
    draw, rows = torch.Generator().manual_seed(0), 6
    seen = lambda: {a: torch.rand(rows, 2, generator=draw) for a in "ab"}  # noqa: E731
    present, waits = torch.tensor([[1, 0]] * rows), torch.tensor([[0, 1]] * rows)
    obs, following = ({AGENTS: seen(), PRESENT: present, WAITING: waits} for _ in range(2))
    following |= {"held": torch.zeros(rows, 2)}
    noise = {name: torch.rand(rows, 3, generator=draw) for name in ("gumbel", "smoothing")}
    batch = TransitionBatch(
        obs, torch.zeros(rows, 2), torch.ones(rows, 2), following, torch.zeros(rows, 2), torch.full((rows,), 1 / rows),
        noise=noise, number=1,
    )  # fmt: skip
    before = {name: [p.clone() for p in getattr(team, name).parameters()] for name in team.registry.all_registered()}
    team.learn_batch(batch)
    moved = {
        name: any(bool((p != q).any()) for p, q in zip(getattr(team, name).parameters(), kept, strict=True))
        for name, kept in before.items()
    }
    assert moved["actors.a"]
    assert not moved["actors.b"]
    assert all(moved[name] for name in moved if name.startswith(("critics.", "critics_1.", "critics_2.")))


@BOTH
def test_raw_actions_of_a_team_in_which_others_choose_reach_the_update_as_they_were_done(cls: Any) -> None:
    given: list[torch.Tensor] = []

    class Watched(cls):  # type: ignore[misc]
        def update(self, engine: Any, batch: Any) -> Any:
            given.append(batch.action[..., 2].clone())
            return super().update(engine, batch)

    env, ids = Meeting(), Meeting.possible_agents
    team = Watched([env.observation_space(a) for a in ids], [env.action_space(a) for a in ids], ids, net_config=NET,
                   batch_size=8, learn_step=2, seed=3)  # fmt: skip
    memory = MultiAgentReplayBuffer(200, agent_ids=ids)
    train_multi_agent_off_policy(
        SyncPettingZooVecEnv([Meeting, Meeting]), "Meeting", cls.__name__, [team], memory, max_steps=40, evo_steps=40,
        verbose=False, seed=1,
    )  # fmt: skip
    stored = {round(float(x), 6) for x in memory.gather(np.arange(len(memory)))["action"][:, 2]}
    learned = {round(float(x), 6) for x in torch.cat([x.flatten() for x in given])}
    assert len(learned) > 8
    assert learned <= stored
    assert any(0 < abs(x) < 1 for x in learned)


@pytest.mark.parametrize(("carried", "made"), [(True, 1), (False, 3)])
def test_what_waiting_agents_hold_lasts_as_long_as_their_episodes(
    carried: bool, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three generations."""
    idle = list[IdleAgents]()
    monkeypatch.setattr(acting, "IdleAgents", lambda team: idle.append(IdleAgents(team)) or idle[-1])
    agilerl.train(
        "mpe2.simple_spread_v3", "MADDPG", population=1, steps=60, num_envs=2, preset=False, out=None, verbose=False,
        **{"training.evo_steps": 20, "training.eval_episodes": 1, "training.confirm_episodes": 0,
           "training.carry_envs": carried, "training.target_score": None, "training.elite_rescore_episodes": 0},
    )  # fmt: skip
    assert len(idle) == made
