"""Teams of a user's own, with the documented methods alone, in both training functions."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from team_games import Meeting

from agilerl.algorithms.ippo import IPPO
from agilerl.algorithms.maddpg import MADDPG
from agilerl.algorithms.teams import on_policy
from agilerl.components import MultiAgentReplayBuffer
from agilerl.errors import AlgorithmError, ConfigError
from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl.vector import SyncPettingZooVecEnv
from agilerl.wrappers.agent import RSNorm

IDS = Meeting.possible_agents
NAN = float("nan")


class Mine:
    """Callers choose what is legal and lowest, the mover does 0.5."""

    given: list[Any]
    infos: list[Any]

    def __init__(self, index: int = 0, learn_step: int = 12) -> None:
        self.index, self.agent_ids, self.learn_step, self.batch_size = index, IDS, learn_step, 4
        self.steps, self.scores, self.fitness, self.mut, self.algo = [0], [], [], None, "Mine"
        self.given, self.infos = [], []

    def get_action(self, obs: Any, infos: Any = None) -> Any:
        self.infos.append(infos)
        lanes = len(obs["mover_0"])
        action = {a: infos[a]["action_mask"].argmax(1) for a in IDS[:2]} | {"mover_0": np.full((lanes, 1), 0.5)}
        return action, *({a: np.full(lanes, x) for a in IDS} for x in (-1.0, 0.0, 2.0))

    def learn(self, experiences: Any) -> Any:
        self.given.append(experiences)
        return dict.fromkeys(IDS, 1.5)

    def test(
        self, env: Any, swap_channels: bool = False, max_steps: Any = None, loop: int = 1, sum_scores: bool = True
    ) -> Any:
        self.fitness.append(1.0)
        return 1.0 if sum_scores else np.array([1.0, 2.0, 3.0])

    def clone(self, index: int | None = None, wrap: bool = True) -> Any:
        twin = copy.copy(self)
        twin.index = self.index if index is None else index
        return twin


def train(pop: Any, **more: Any) -> Any:
    env = SyncPettingZooVecEnv([Meeting, Meeting])
    return train_multi_agent_on_policy(env, "Meeting", "Mine", pop, max_steps=24, evo_steps=24, verbose=False, **more)


def rows(entries: Any) -> list[list[float]]:
    """[T][E] of a list of steps."""
    return [np.asarray(x, float).ravel().tolist() for x in entries]


def test_a_team_of_ones_own_learns_from_its_rollouts() -> None:
    """Episodes of six steps: caller_1 is there in steps 1 to 3 and has ended with the fourth; all end with the last."""
    (team,), fitnesses = train([Mine()])
    assert fitnesses == [[1.0]]
    assert team.steps[-1] == 24
    assert team.scores == [6 + 8 + 3] * 4
    first, second = team.given
    observations, actions, log_probs, rewards, dones, values, next_obs, next_done, truncateds, finals = first
    assert {a: len(x) for a, x in observations.items()} == dict.fromkeys(IDS, 6)
    assert observations["mover_0"][0].shape == finals["mover_0"][5].shape == (2, 4)
    np.testing.assert_array_equal(rows(log_probs["caller_1"]), [[x, x] for x in (NAN, -1, -1, -1, NAN, NAN)])
    np.testing.assert_array_equal(rows(values["caller_1"]), [[x, x] for x in (NAN, 2, 2, 2, NAN, NAN)])
    assert rows(log_probs["mover_0"]) == [[-1, -1]] * 6
    assert rows(rewards["caller_1"]) == [[2, 2]] * 4 + [[0, 0]] * 2
    assert rows(rewards["mover_0"]) == rows(actions["mover_0"]) == [[0.5, 0.5]] * 6
    assert rows(dones["caller_1"]) == [[0, 0]] * 4 + [[1, 1]] + [[0, 0]]
    assert rows(dones["mover_0"]) == [[0, 0]] * 6
    assert {a: x.tolist() for a, x in next_done.items()} == {"caller_0": [1, 1], "caller_1": [1, 1], "mover_0": [1, 1]}
    assert not any(np.any(x) for own in truncateds.values() for x in own)
    assert set(next_obs) == set(IDS)
    assert rows(second[4]["mover_0"])[0] == [1, 1]  # the flag before its first step is that of the last one before
    legal = first.more["action_masks"]
    assert set(legal) == {"caller_0", "caller_1"}
    assert [x[0].astype(int).tolist() for x in legal["caller_0"][:3]] == [[1, 1, 1], [0, 1, 1], [1, 0, 1]]
    assert rows(actions["caller_0"])[:3] == [[0, 0], [1, 1], [0, 0]]
    assert team.infos[0]["caller_1"]["present"].tolist() == [False, False]


def test_an_agent_that_waits_at_the_end_of_a_rollout_has_no_flag_yet() -> None:
    (team,), _ = train([Mine(learn_step=2)])
    assert np.isnan(team.given[0][2]["caller_1"][0]).all()
    assert [x.tolist() for x in team.given[0][7].values()] == [[0, 0]] * 3  # it is there by then
    assert not np.isnan(team.given[4][7]["mover_0"]).any()
    assert np.isnan(team.given[4][7]["caller_1"]).all()  # gone for the rest of the episode


def test_scores_of_such_a_team_are_by_agent_where_asked_for() -> None:
    (team,), fitnesses = train([Mine()], sum_scores=False)
    assert fitnesses == [[[1.0, 2.0, 3.0]]]
    assert team.scores == [pytest.approx((6 + 8 + 3) / 3)] * 4


def test_a_test_that_gives_too_few_scores_is_named() -> None:
    class Brief(Mine):
        def test(self, *args: Any, **more: Any) -> Any:
            return np.array([1.0])

    with pytest.raises(
        ConfigError, match=r"Brief\.test\(sum_scores=False\) returned 1 numbers for the agents .*fix: one"
    ):
        train([Brief()], sum_scores=False)


def test_a_team_of_ones_own_learns_from_replay() -> None:
    memory = MultiAgentReplayBuffer(100, ["state", "action", "reward", "next_state", "done"], IDS)
    team = Mine(learn_step=2)
    env = SyncPettingZooVecEnv([Meeting, Meeting])
    (team,), fitnesses = train_multi_agent_off_policy(
        env, "Meeting", "Mine", [team], memory, max_steps=24, evo_steps=24, verbose=False
    )
    assert fitnesses == [[1.0]]
    assert len(team.given) == 11
    states, actions, reward, _, done = team.given[-1]
    assert set(states) == set(actions) == set(IDS)
    assert set(reward["mover_0"].flatten().tolist()) == {0.5}
    assert done["mover_0"].shape == (4, 1)


def test_a_get_action_that_gives_no_values_is_named() -> None:
    class Short(Mine):
        def get_action(self, obs: Any, infos: Any = None) -> Any:
            return super().get_action(obs, infos)[:2]

    with pytest.raises(ConfigError, match=r"Short\.get_action must return four dictionaries by agent: actions, log pr"):
        train([Short()])


def test_a_team_with_a_memory_and_a_learn_of_its_own_is_refused() -> None:
    class Own(IPPO):
        def learn(self, experiences: Any) -> Any:
            return super().learn(experiences)

    env = Meeting()
    spaces = [[space(a) for a in IDS] for space in (env.observation_space, env.action_space)]
    with pytest.raises(ConfigError, match=r"Own brings its own learn\(\) and has a memory.*fix: recurrent=False"):
        train([Own(*spaces, IDS, recurrent=True)])
    with pytest.raises(
        ConfigError, match=r"RSNorm\(IPPO\) brings its own .*recurrent=False, or IPPO without its wrapper"
    ):
        train([RSNorm(IPPO(*spaces, IDS, recurrent=True))])
    with pytest.raises(AlgorithmError, match="MADDPG learns from replay of several agents, not from rollouts"):
        train([MADDPG(*spaces, IDS)])


def test_masks_of_a_rollout_reach_a_team_in_a_wrapper(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[np.ndarray] = []
    original = on_policy.buffer_from_experiences

    def spy(*args: Any) -> Any:
        buffer = original(*args)
        stored.append(buffer.stored("legal"))
        return buffer

    monkeypatch.setattr(on_policy, "buffer_from_experiences", spy)
    env = Meeting()
    spaces = [[space(a) for a in IDS] for space in (env.observation_space, env.action_space)]
    train([RSNorm(IPPO(*spaces, IDS, learn_step=12))])
    # [T, L, W]: after its first step one of caller_0's three choices is illegal.
    assert stored[0][:3, 0, :3].sum(1).tolist() == [3, 2, 2]


def test_a_subclass_of_a_team_of_replay_may_learn_from_rollouts_in_its_own_way() -> None:
    class Own(MADDPG):
        gae_lambda = 0.95
        given: list[Any] = []  # noqa: RUF012

        def get_action(self, obs: Any, infos: Any = None, training: Any = None) -> Any:
            action = super().get_action(obs, infos, training)[0]
            return action, *({a: np.zeros(len(x)) for a, x in action.items()} for _ in range(3))

        def learn(self, experiences: Any) -> Any:
            self.given.append(experiences)
            return {"caller": 0.5}

    env = Meeting()
    spaces = [[space(a) for a in IDS] for space in (env.observation_space, env.action_space)]
    train([Own(*spaces, IDS, learn_step=12)])
    assert len(Own.given) == 2
    assert len(Own.given[0][0]["mover_0"]) == 6


def test_what_the_environment_decides_is_no_decision_of_the_agent() -> None:
    class Led(Meeting):
        def reset(self, seed: Any = None, options: Any = None) -> Any:
            seen, infos = super().reset(seed, options)
            return seen, infos | {"caller_0": {**infos["caller_0"], "env_defined_actions": 2}}

    env = SyncPettingZooVecEnv([Led, Led])
    (team,), _ = train_multi_agent_on_policy(env, "Led", "Mine", [Mine()], max_steps=12, evo_steps=12, verbose=False)
    np.testing.assert_array_equal(rows(team.given[0][2]["caller_0"]), [[NAN, NAN]] + [[-1, -1]] * 5)
    assert rows(team.given[0][2]["mover_0"]) == [[-1, -1]] * 6
    assert team.infos[0]["caller_0"]["env_defined_actions"].tolist() == [2, 2]
