"""Lanes of teams: who is there, how each agent's part of an episode ends, what was done, what is refused."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from scripted_team import WIDE, Frame, Scripted

from agilerl.algorithms.maddpg import MADDPG
from agilerl.collect.replay import SharedReplay
from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.envs.masks import ActionMasks
from agilerl.envs.protocol import AGENTS, PRESENT, STATE, StepBatch
from agilerl.envs.team import team_of
from agilerl.envs.teams import TeamLanes
from agilerl.errors import EnvError, ShapeError
from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
from agilerl.vector import SyncPettingZooVecEnv

BOTH = {"a": 1, "b": 2}


def play(env: Scripted, *actions: tuple[float, ...], **options: Any) -> tuple[TeamLanes, list[StepBatch]]:
    """One lane of the environment, reset and stepped."""
    lanes = TeamLanes([lambda: env], **options)
    lanes.reset(np.array([5]))
    return lanes, [lanes.step(np.array([action], np.float32)) for action in actions]


def seen(obs: Any, agent: str) -> list[float]:
    return [float(number) for number in obs[AGENTS][agent][0]]


def test_an_episode_of_two_agents_gives_their_rewards_one_by_one_and_summed() -> None:
    env = Scripted([Frame(BOTH), Frame({"a": 3, "b": 4}, {"a": 1.5, "b": -2.0})])
    lanes, (batch,) = play(env, (2, 1))
    assert env.seeds == [5]
    assert env.actions == [{"a": 2, "b": 1}]
    assert batch.team.reward.tolist() == [[1.5, -2.0]]
    assert batch.reward.tolist() == [-0.5]
    assert batch.team.acted.tolist() == [[True, True]]
    assert batch.team.defined is None
    assert not batch.terminated.any()
    assert not batch.truncated.any()
    assert seen(batch.obs, "b") == [4, 1]
    assert lanes.single_observation_space.contains({
        AGENTS: {"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)}, PRESENT: np.ones(2, np.int8)
    })  # fmt: skip
    lanes.close()
    assert not env.is_open


def test_an_agent_that_dies_is_absent_afterwards_and_the_other_one_goes_on() -> None:
    env = Scripted([
        Frame(BOTH), Frame({"a": 3, "b": 4}, {"a": -1.0}, ends=["a"]), Frame({"b": 5}, {"b": 1.0}),
        Frame({"b": 6}, ends=["b"]),
    ])  # fmt: skip
    _, (died, alone, over) = play(env, (0, 0), (1, 2), (1, 1))
    assert died.team.terminated.tolist() == [[True, False]]
    assert died.terminated.tolist() == [False]
    assert died.final_obs[PRESENT].tolist() == [[0, 1]]  # nothing is bootstrapped from
    assert died.obs[PRESENT].tolist() == [[0, 1]]
    assert env.actions[1] == {"b": 2}
    assert alone.team.acted.tolist() == [[False, True]]
    assert seen(alone.obs, "a") == [0, 0]
    assert over.terminated.tolist() == [True]
    assert over.truncated.tolist() == [False]
    assert over.obs[PRESENT].tolist() == [[1, 1]]  # the next episode has begun
    assert env.resets == 2
    assert env.seeds == [5, None]


def test_what_stands_for_an_absent_agent_is_of_its_space() -> None:
    card = spaces.Dict({"suit": spaces.Discrete(4, start=1), "two": spaces.MultiDiscrete([2, 3], start=[5, 6])})
    held = {"suit": 2, "two": np.array([6, 7])}
    env = Scripted(
        [Frame({"b": 1}), Frame({"a": held, "b": 1}), Frame({"b": 2}, agents=["a", "b"])], observed={"a": card}
    )
    lanes = TeamLanes([lambda: env])
    first = lanes.reset()[0]
    steps = [lanes.step(np.zeros((1, 2), np.float32)).obs for _ in range(2)]
    each = [(o[AGENTS]["a"]["suit"].tolist(), o[AGENTS]["a"]["two"].tolist()) for o in (first, *steps)]
    assert each == [([1], [[5, 6]]), ([2], [[6, 7]]), ([1], [[5, 6]])]
    assert [o[PRESENT][0, 0] for o in (first, *steps)] == [0, 1, 0]


def test_an_agent_that_is_cut_off_alone_shows_its_final_observation_and_is_absent_then() -> None:
    env = Scripted([Frame(BOTH), Frame({"a": 3, "b": 4}, cuts=["a"]), Frame({"b": 5})])
    _, (cut, alone) = play(env, (0, 0), (1, 1))
    assert cut.team.truncated.tolist() == [[True, False]]
    assert cut.truncated.tolist() == [False]
    assert cut.final_obs[PRESENT].tolist() == [[1, 1]]
    assert seen(cut.final_obs, "a") == [3, 1]
    assert cut.obs[PRESENT].tolist() == [[0, 1]]
    assert seen(cut.obs, "a") == [0, 0]
    assert seen(cut.obs, "b") == [4, 1]
    assert env.actions[1] == {"b": 1}
    assert alone.team.acted.tolist() == [[False, True]]


def test_agents_that_arrive_late_and_come_back_are_there_when_they_are_observed() -> None:
    env = Scripted([
        Frame({"a": 1}), Frame({"a": 2, "b": 3}), Frame({"a": 4}, agents=["a", "b"]), Frame({"a": 5, "b": 6}),
    ])  # fmt: skip
    _, batches = play(env, (0, 2), (0, 2), (0, 2))
    assert [batch.team.acted.tolist()[0] for batch in batches if batch.team] == [
        [True, False],
        [True, True],
        [True, False],
    ]
    assert [sorted(given) for given in env.actions] == [["a"], ["a", "b"], ["a"]]
    assert [batch.obs[PRESENT].tolist()[0] for batch in batches] == [[1, 1], [1, 0], [1, 1]]


def test_in_a_game_of_turns_the_agent_whose_turn_it_is_is_there_alone() -> None:
    turn = [{agent: {"active_agent": who} for agent in ("a", "b")} for who in ("a", "b")]
    env = Scripted(
        [Frame(BOTH, infos=turn[0]), Frame(BOTH, infos=turn[1]), Frame(BOTH, {"a": 1.0, "b": -1.0}, ends=["a", "b"])]
    )
    _, (first, second) = play(env, (1, 1), (2, 2))
    assert env.actions == [{"a": 1}, {"b": 2}]
    assert first.obs[PRESENT].tolist() == [[0, 1]]
    assert seen(first.obs, "a") == [1, 1]  # what it sees is kept, for critics
    assert second.team.reward.tolist() == [[1.0, -1.0]]  # that of a belongs to its last action
    assert second.team.acted.tolist() == [[False, True]]
    assert second.terminated.tolist() == [True]


def test_an_agent_that_vanishes_without_an_end_is_an_error_that_names_it() -> None:
    env = Scripted([Frame(BOTH), Frame({"a": 1})])
    with pytest.raises(
        EnvError, match=r"^Scripted, agent b, lane 0: step\(\) has taken the agent out of env.agents, nei"
    ):
        play(env, (0, 0))


def test_an_environment_without_agents_after_reset_is_an_error_that_names_reset() -> None:
    with pytest.raises(
        EnvError, match=r"^Scripted, lane 0: env.agents is empty after reset\(\).* fix: self.agents = list"
    ):
        play(Scripted([Frame({}, agents=[]), Frame(BOTH)]), (0, 0))


def test_an_environment_that_never_empties_its_agents_ends_when_all_of_them_have_ended() -> None:
    env = Scripted([Frame(BOTH), Frame({"a": 3, "b": 4}, ends=["a"], cuts=["b"], agents=["a", "b"])])
    _, (batch,) = play(env, (0, 0))
    assert batch.truncated.tolist() == [True]
    assert batch.terminated.tolist() == [False]
    assert env.resets == 2


def test_ended_lanes_rest_where_they_are_not_reset_and_resting_lanes_are_not_stepped() -> None:
    envs = [Scripted([Frame(BOTH), Frame({"a": 3, "b": 4}, ends=["a", "b"])]) for _ in range(2)]
    lanes = TeamLanes([partial(lambda i: envs[i], i) for i in range(2)], reset_ended=False)
    lanes.reset()
    batch = lanes.step(np.zeros((2, 2)), np.array([True, False]))
    assert batch.terminated.tolist() == [True, False]
    assert batch.mask.tolist() == [True, False]
    assert [env.resets for env in envs] == [1, 1]
    assert batch.obs[PRESENT].tolist() == [[0, 0], [1, 1]]
    assert seen(batch.final_obs, "a") == [3, 1]
    assert envs[1].actions == []


def cut_and_ended() -> SharedReplay:
    """What replay holds of an episode that a time limit cuts, and of one that terminates, after one step each."""
    frames = [[Frame(BOTH), Frame({"a": 3, "b": 4}, **{how: ["a", "b"]})] for how in ("cuts", "ends")]
    lanes = TeamLanes([partial(Scripted, each) for each in frames])
    replay = SharedReplay(ReplayBuffer(8))
    obs, _ = lanes.reset()
    batch = lanes.step(np.ones((2, 2)))
    replay.write(obs, np.ones((2, 2), np.float32), batch.reward, batch, ActionMasks(lanes.single_action_space))
    return replay


def test_error_15_a_cut_episode_bootstraps_from_its_final_observation_and_a_terminated_one_does_not() -> None:
    rows = cut_and_ended().memory.gather(np.arange(2))
    assert rows["done"].tolist() == [[0, 0], [1, 1]]
    assert rows["next_obs"][AGENTS]["a"].tolist() == [[3, 1], [3, 1]]  # not those of the next episode
    assert rows["next_obs"][AGENTS]["b"].tolist() == [[4, 1], [4, 1]]
    assert rows["next_obs"][PRESENT].tolist() == [[1, 1], [0, 0]]
    gamma, value = 0.9, rows["next_obs"][AGENTS]["a"][:, 0]  # a value that is the first number seen
    assert (gamma * (1 - rows["done"][:, 0]) * value).tolist() == pytest.approx([2.7, 0.0])


# -- masks and decisions of the environment ----------------------------------------------------------------------------


def test_masks_come_from_infos_and_end_with_the_episode() -> None:
    mask = {"b": {"action_mask": np.array([1, 0, 1], np.int8)}}
    last = {"b": {"action_mask": np.array([0, 0, 1], np.int8)}}
    env = Scripted([Frame(BOTH, infos=mask), Frame({"a": 3, "b": 4}, infos=last, cuts=["a", "b"])])
    lanes = TeamLanes([lambda: env])
    _, info = lanes.reset()
    assert info["action_mask"].tolist() == [[True, True, True, True, False, True]]
    batch = lanes.step(np.zeros((1, 2)))
    assert batch.info["final_action_mask"].tolist() == [[True, True, True, False, False, True]]
    assert batch.info["action_mask"].tolist() == [[True, True, True, True, False, True]]


def test_masks_of_board_games_come_from_their_observations() -> None:
    board = spaces.Dict({"observation": WIDE, "action_mask": spaces.Box(0, 1, (3,), np.int8)})
    shown = {"observation": np.array([1, 0], np.float32), "action_mask": np.array([0, 1, 1], np.int8)}
    env = Scripted([Frame({"a": shown, "b": 2})], observed={"a": board})
    lanes = TeamLanes([lambda: env])
    obs, info = lanes.reset()
    assert lanes.team.observation_spaces["a"] == WIDE
    assert seen(obs, "a") == [1, 0]
    assert info["action_mask"].tolist() == [[False, True, True, True, True, True]]


def test_masks_of_several_components_may_come_as_one_part_a_component() -> None:
    mask = {"a": {"action_mask": (np.array([1, 0]), np.array([0, 1, 1]))}}
    env = Scripted([Frame({"a": 1}, infos=mask)], agents=["a"], acted={"a": spaces.MultiDiscrete([2, 3])})
    _, info = TeamLanes([lambda: env]).reset()
    assert info["action_mask"].tolist() == [[True, False, False, True, True]]


@pytest.mark.parametrize("key", ["env_defined_actions", "env_defined_action"])
def test_what_the_environment_decides_is_done_and_is_what_is_told(key: str) -> None:
    env = Scripted([Frame(BOTH, infos={"b": {key: 2}}), Frame({"a": 3, "b": 4}), Frame({"a": 3, "b": 4})])
    lanes = TeamLanes([lambda: env])
    _, info = lanes.reset()
    np.testing.assert_array_equal(info["env_defined_actions"], [[np.nan, 2]])
    first, second = lanes.step(np.array([[1, 0]])), lanes.step(np.array([[1, 0]]))
    assert env.actions == [{"a": 1, "b": 2}, {"a": 1, "b": 0}]
    np.testing.assert_array_equal(first.team.defined, [[np.nan, 2]])
    assert second.team.defined is None


def test_what_was_really_done_is_what_is_stored() -> None:
    acted = {"a": spaces.Discrete(3, start=1), "b": spaces.Box(0, 4, (2,))}
    decided = {"a": {"env_defined_actions": 3}, "b": {"env_defined_actions": np.array([1.0, np.nan])}}
    frames = [Frame(BOTH, infos=decided), Frame(BOTH), Frame(BOTH, cuts=["a", "b"])]
    made: list[Scripted] = []

    def make() -> Scripted:
        made.append(Scripted(frames, acted=acted))
        return made[-1]

    env = SyncPettingZooVecEnv([make] * 2)
    observed = dict.fromkeys(acted, WIDE)
    team = MADDPG(observed, acted, seed=1, net_config={"latent_dim": 8}, batch_size=4, learn_step=100)
    memory = MultiAgentReplayBuffer(40, agent_ids=["a", "b"], action_spaces=acted)
    train_multi_agent_off_policy(
        env, "scripted", pop=[team], memory=memory, max_steps=40, evo_steps=40, verbose=False, seed=3
    )
    rows = memory.gather(np.arange(40))
    is_first = rows["obs"][AGENTS]["a"][:, 1] == 0
    assert int(is_first.sum()) == 20
    assert set(rows["action"][is_first, 0].tolist()) == {2}  # the choice 3 of 1, 2, 3, counted from 0
    assert set(rows["action"][is_first, 1].tolist()) == {-0.5}  # 1 of 0 .. 4
    assert len(set(rows["action"][is_first, 2].tolist())) > 10  # its own
    assert -0.5 not in rows["action"][~is_first, 1].tolist()
    given = [actions for one in made for actions in one.actions[::2]]
    assert all(actions["a"] == 3 and actions["b"][0] == 1 for actions in given)


# -- state, nested observations ----------------------------------------------------------------------------------------


def test_the_state_is_shown_where_it_is_asked_for_also_of_the_final_step() -> None:
    env = Scripted([Frame(BOTH), Frame({"a": 3, "b": 4}, cuts=["a", "b"])])
    lanes, (batch,) = play(env, (0, 0), with_state=True)
    assert lanes.single_observation_space[STATE].shape == (3,)  # type: ignore[index]
    resets = env.resets
    assert batch.final_obs[STATE].tolist() == [[1, resets - 1, 7]]
    assert batch.obs[STATE].tolist() == [[0, resets, 7]]


def test_a_state_that_there_is_not_is_a_named_error() -> None:
    class Stateless(Scripted):
        def state(self) -> np.ndarray:
            raise NotImplementedError

    with pytest.raises(EnvError, match=r"^Stateless has no state\(\), which with_state=True asks for. fix:"):
        TeamLanes([partial(Stateless, [Frame(BOTH)])], with_state=True)


def test_images_dicts_and_tuples_keep_their_parts_and_dtypes() -> None:
    observed = {
        "a": spaces.Box(0, 255, (4, 4, 3), np.uint8),
        "b": spaces.Dict({"at": spaces.Box(-1, 1, (2,)), "card": spaces.Discrete(3)}),
        "c": spaces.Tuple([spaces.Discrete(4), spaces.Box(-1, 1, (1,))]),
    }
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    first = {
        "a": image,
        "b": {"at": np.array([0.5, -0.5], np.float32), "card": 2},
        "c": (3, np.array([0.25], np.float32)),
    }
    env = Scripted([Frame(first), Frame({"b": first["b"]}, ends=["a"], agents=["b", "c"])], list(observed), observed)
    lanes = TeamLanes([lambda: env])
    obs, _ = lanes.reset()
    assert obs[AGENTS]["a"].dtype == np.uint8
    np.testing.assert_array_equal(obs[AGENTS]["a"][0], image)
    assert obs[AGENTS]["b"]["card"].tolist() == [2]
    assert obs[AGENTS]["c"][0].tolist() == [3]
    assert obs[AGENTS]["c"][1].tolist() == [[0.25]]
    batch = lanes.step(np.zeros((1, 3)))
    assert batch.obs[PRESENT].tolist() == [[0, 1, 0]]
    assert not batch.obs[AGENTS]["a"].any()
    assert batch.obs[AGENTS]["c"][0].tolist() == [0]


# -- what is refused ---------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Frame, str]] = {
    "shape": (Frame({"a": np.zeros(3, np.float32), "b": 1}), "gave an observation of shape (3,); expected (2,)"),
    "nan": (Frame({"a": np.array([np.nan, 0], np.float32), "b": 1}), "gave an observation that is not finite"),
    "reward": (Frame(BOTH, {"a": float("nan")}), "gave the reward nan"),
    "no number": (Frame(BOTH, {"a": "1"}), "gave the reward str '1'; expected a number"),
    "mask": (Frame(BOTH, infos={"a": {"action_mask": [1, 1]}}), "action_mask has 2 entries"),
    "no choice": (Frame(BOTH, infos={"a": {"action_mask": [0, 0, 0]}}), "action_mask allows no action"),
    "decision": (Frame(BOTH, infos={"a": {"env_defined_actions": [1, 1]}}), "env_defined_actions of 2 numbers"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_an_environment_must_not_give_names_environment_agent_and_lane(what: str) -> None:
    frame, message = WRONG[what]
    with pytest.raises(EnvError, match=rf"^Scripted, agent a, lane 0: (step\(\) )?{re.escape(message)}"):
        play(Scripted([Frame(BOTH), frame]), (0, 0))


def test_an_agent_that_nobody_knows_is_named_with_the_nearest_one() -> None:
    with pytest.raises(
        EnvError, match=r"^Scripted, lane 0: step\(\) gave observations of an unknown agent 'bb'. Did you"
    ):
        play(Scripted([Frame(BOTH), Frame({**BOTH, "bb": 1})]), (0, 0))


def test_an_environment_that_raises_is_named_with_its_lane() -> None:
    class Broken(Scripted):
        def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
            raise ValueError("lost")

    with pytest.raises(EnvError, match=r"^Broken, lane 0: step\(\) raised ValueError: lost"):
        play(Broken([Frame(BOTH)]), (0, 0))


def test_environments_whose_agents_take_turns_are_named_with_the_conversion() -> None:
    class Turns(Scripted):
        def agent_iter(self) -> Any:
            return iter(())

    with pytest.raises(EnvError, match=r"^Turns has agents that take turns .* fix: .*aec_to_parallel"):
        team_of(Turns([]))


def test_a_row_of_another_length_or_a_step_before_the_reset_is_refused() -> None:
    lanes = TeamLanes([partial(Scripted, [Frame(BOTH)])])
    with pytest.raises(EnvError, match="reset before the first step"):
        lanes.step(np.zeros((1, 2)))
    lanes.reset()
    with pytest.raises(ShapeError, match=r"expected \(1, 2\), got \(1, 3\)"):
        lanes.step(np.zeros((1, 3)))


def test_actions_by_agent_become_one_row_and_come_back_in_the_form_of_their_spaces() -> None:
    acted = {"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (2,)), "c": spaces.MultiDiscrete([2, 4])}
    team = team_of(Scripted([], list(acted), acted=acted))
    rows = team.join({"a": np.array([2, 1]), "b": np.array([[0.5, -1], [0, 1]]), "c": np.array([[1, 3], [0, 2]])})
    assert rows.tolist() == [[2, 0.5, -1, 1, 3], [1, 0, 1, 0, 2]]
    back = team.split(rows)
    assert back["a"].tolist() == [2, 1]
    assert back["b"].dtype == np.float32
    assert back["c"].tolist() == [[1, 3], [0, 2]]
    assert back["c"].dtype == np.int64


def test_the_final_observation_of_an_episode_without_masks_allows_everything() -> None:
    env = Scripted([Frame(BOTH), Frame(BOTH, cuts=["a", "b"])])
    lanes, _ = play(env)
    env.frames[0].infos = {"a": {"action_mask": [1, 0, 0]}}  # the first mask is that of the second episode
    batch = lanes.step(np.zeros((1, 2), np.float32))
    assert batch.info["action_mask"].tolist() == [[True, False, False, True, True, True]]
    assert batch.info["final_action_mask"].tolist() == [[True] * 6]


def test_after_a_reset_that_failed_lanes_must_be_reset_again() -> None:
    env = Scripted([Frame(BOTH), Frame(BOTH)])
    lanes, _ = play(env)
    env.frames[0] = Frame({"a": "lost"})
    with pytest.raises(EnvError, match="expected numbers"):
        lanes.reset()
    with pytest.raises(EnvError, match="must be reset before the first step"):
        lanes.step(np.zeros((1, 2), np.float32))
