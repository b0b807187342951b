"""Options of runs that teams have in common with single agents: the scale of rewards, time limits of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_team import Frame, Scripted
from team_games import Meeting

import agilerl
from agilerl.collect.rewards import RewardScale
from agilerl.collect.updates import Updates
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.checkpoint import digest_tree
from agilerl.envs.limits import TimeLimitOfTeam
from agilerl.envs.protocol import AGENTS, PRESENT, StepBatch, TeamStep
from agilerl.envs.teams import TeamLanes
from agilerl.errors import EnvError
from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
from agilerl.utils.utils import create_population, make_multi_agent_vect_envs

IDS = Meeting.possible_agents
SHORT: dict[str, Any] = {
    "population": 2, "steps": 96, "evo_steps": 48, "eval_episodes": 2, "confirm_episodes": 0, "num_envs": 2,
    "batch_size": 8, "learning_delay": 8, "verbose": False, "device": "cpu", "seed": 4,
}  # fmt: skip


class Member:
    gamma, _reward_statistics = 0.5, None


def step(acted: list[int], ended: list[int], over: bool = False, mask: bool = True) -> StepBatch:
    """Of one lane with the agents a and b."""
    flags = np.array([ended], bool)
    team = TeamStep(np.zeros((1, 2)), flags, np.zeros((1, 2), bool), np.array([acted], bool))
    return StepBatch(
        np.zeros(1), np.zeros(1), np.array([over]), np.zeros(1, bool), np.zeros(1), np.array([mask]), {}, team
    )


def test_rewards_of_teams_are_scaled_by_the_sums_of_each_agent() -> None:
    """γ = 1/2. a: 1, 2.5 (its end), then nothing of it counts. b waits once: 4, (2 + 2 = 4), 2 + 8 = 10; a rest."""
    scale = RewardScale([Member()], 1)
    scale.see(np.array([[1.0, 4.0]]), step([1, 1], [0, 0]))
    scale.see(np.array([[2.0, 2.0]]), step([1, 0], [1, 0]))
    scale.see(np.array([[0.0, 8.0]]), step([0, 1], [0, 0]))
    scale.see(np.array([[9.0, 9.0]]), step([1, 1], [0, 0], mask=False))
    assert scale.count.tolist() == [4]
    assert scale.factors[0] == pytest.approx(np.std([1, 2.5, 4, 10]) ** -1, rel=1e-7)
    scale.see(np.array([[0.0, 0.0]]), step([0, 1], [0, 1], over=True))  # 5, and the next episode begins with nothing
    scale.see(np.array([[3.0, 3.0]]), step([1, 1], [0, 0]))
    assert scale.factors[0] == pytest.approx(np.std([1, 2.5, 4, 10, 5, 3, 3]) ** -1, rel=1e-7)


def test_agents_whose_rewards_cancel_have_a_scale() -> None:
    scale = RewardScale([Member()], 1)
    for reward in (1.0, -1.0, 1.0):
        scale.see(np.array([[reward, -reward]]), step([1, 1], [1, 1], over=True))
    assert scale.factors[0] == pytest.approx(1.0)


def test_replay_keeps_rewards_as_they_are_and_teams_learn_from_scaled_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[tuple[np.ndarray, float]] = []
    batches = Updates.batches

    def noted(self: Updates, *given: Any) -> Any:
        made = batches(self, *given)
        raw = self.replay.rows.gather(given[2])["reward"].numpy()
        (plan, *_), factors = given, self.rewards.factors
        np.testing.assert_allclose(made.fields["reward"], raw * factors[plan.members][:, None, None], rtol=1e-6)
        seen.append((raw, float(factors[0])))
        return made

    monkeypatch.setattr(Updates, "batches", noted)
    run = agilerl.train(Meeting, out=tmp_path, normalize_rewards=True, reward_scale=1.0, **SHORT)
    assert {1.0, 2.0} <= set(np.unique(np.concatenate([raw[..., :2].ravel() for raw, _ in seen])))
    assert len({factor for _, factor in seen}) > 5
    assert all(0.1 < factor < 1.5 for _, factor in seen[-5:])
    assert run.path is not None
    again = agilerl.resume(run.path, steps=144, env=Meeting, verbose=False)
    whole = agilerl.train(Meeting, out=None, normalize_rewards=True, reward_scale=1.0, **{**SHORT, "steps": 144})
    assert again.history[:2] == run.history == whole.history[:2]


def test_a_time_limit_truncates_those_who_go_on_and_no_one_else() -> None:
    frames = [Frame({"a": 1, "b": 2}), Frame({"a": 3, "b": 4}), Frame({"a": 5, "b": 6}, ends=["a"])]
    lanes = TeamLanes([lambda: TimeLimitOfTeam(Scripted([*frames, Frame({"b": 7})]), 2)])
    assert lanes.name == "scripted_v0" or lanes.name == "Scripted"
    lanes.reset()
    choice = np.zeros((1, 2), np.float32)
    first, last = lanes.step(choice), lanes.step(choice)
    assert not (first.terminated | first.truncated | first.team.truncated.any()).any()
    assert last.team.terminated.tolist() == [[True, False]]
    assert last.team.truncated.tolist() == [[False, True]]
    assert (last.terminated.tolist(), last.truncated.tolist()) == ([False], [True])
    assert last.final_obs[PRESENT].tolist() == [[0, 1]], "b is there after its last step: it bootstraps"
    assert last.final_obs[AGENTS]["b"].tolist() == [[6, 2]]
    assert last.obs[AGENTS]["b"].tolist() == [[2, 0]], "the next episode"
    assert not lanes.step(choice).truncated.any()
    with pytest.raises(EnvError, match=r"max_episode_steps must be an integer of at least 1 .*; got 0. fix: "):
        make_multi_agent_vect_envs(Meeting, max_episode_steps=0)


@pytest.mark.parametrize("in_workers", [False, True])
def test_a_vector_has_the_limit_and_its_copies_stay_what_they_are(in_workers: bool) -> None:
    with make_multi_agent_vect_envs(Meeting, 2, should_async_vector=in_workers, max_episode_steps=3) as env:
        obs, _ = env.reset(seed=1)
        assert env.max_episode_steps == 3
        env.set_attr("length", [5, 2])
        assert env.get_attr("length") == (5, 2)
        action = {a: np.zeros((2, *(env.single_action_space(a).shape or ()))) for a in IDS}
        ends = [env.step(action)[2:4] for _ in range(3)]
        assert [[bool(flags["mover_0"][k]) for flags in step] for step in ends for k in (0, 1)] == [
            [False, False], [False, False], [False, False], [True, False], [False, True], [False, False]
        ]  # fmt: skip
        assert obs.keys() == set(IDS)


@pytest.mark.parametrize("continuous_actions", [False, True])
def test_lanes_of_arrays_have_the_same_limit(continuous_actions: bool) -> None:
    pytest.importorskip("mpe2")
    name = "mpe2.simple_speaker_listener_v4"
    vector = make_multi_agent_vect_envs(name, 2, max_episode_steps=4, continuous_actions=continuous_actions)
    fast, slow = vector.replicate(1), TeamLanes(vector.env_fns)
    assert fast.backend != slow.backend
    draw, seeds = np.random.default_rng(0), np.array([3, 5])
    np.testing.assert_equal(fast.reset(seeds)[0], slow.reset(seeds)[0])
    width = 8 if continuous_actions else 2
    for time in range(1, 10):
        action = draw.random((2, width)) if continuous_actions else draw.integers(0, 3, (2, width))
        ours, theirs = fast.step(action.astype(np.float32)), slow.step(action.astype(np.float32))
        assert ours.truncated.tolist() == theirs.truncated.tolist() == [time % 4 == 0] * 2
        np.testing.assert_equal(ours.final_obs, theirs.final_obs)


def test_what_training_cuts_off_is_no_end_and_evaluation_goes_to_the_end() -> None:
    env = make_multi_agent_vect_envs(Meeting, 2, max_episode_steps=3)
    population = create_population(
        "MADDPG", {}, {"BATCH_SIZE": 8}, [Meeting().observation_space(a) for a in IDS],
        [Meeting().action_space(a) for a in IDS], agent_ids=IDS, population_size=1, num_envs=2, seed=3,
    )  # fmt: skip
    memory = ReplayBuffer(300)
    train_multi_agent_off_policy(
        env, "Meeting", "MADDPG", population, memory, max_steps=24, evo_steps=24, verbose=False, seed=5
    )
    rows = memory.gather(np.arange(len(memory)))
    assert len(rows["done"]) == 24
    assert not rows["done"].any()
    last = rows["next_obs"][PRESENT].numpy()
    assert last[:, [0, 2]].all()
    run = agilerl.train(Meeting, out=None, train_max_episode_steps=3, **SHORT)
    alone = agilerl.train(Meeting, out=None, **SHORT)
    found, expected = (digest_tree({"x": one.best.policy_state()}) for one in (run, alone))
    assert found != expected
    assert run.manifest.training.train_max_episode_steps == 3
    returns = run.best.evaluate(env=Meeting(), episodes=2).returns
    assert all(abs(total - 14) <= 12 for total in returns), "6 for caller_0, 8 for caller_1, at most 2 a step else"
