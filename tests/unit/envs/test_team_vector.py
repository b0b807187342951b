"""Vectors of teams by their published names: in this process and in workers, the same numbers; nothing is lost."""

from __future__ import annotations

import importlib
import multiprocessing
import time
from functools import partial
from typing import Any

import mpe2.simple_spread_v3
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from scripted_team import WIDE, Frame, Scripted
from small_envs import ParallelGame

from agilerl.envs.protocol import AGENTS, PRESENT, TeamObservations
from agilerl.envs.step import as_lanes
from agilerl.envs.teams import TeamLanes
from agilerl.errors import ConfigError, EnvError
from agilerl.utils.utils import make_multi_agent_vect_envs
from agilerl.vector import AsyncPettingZooVecEnv, PettingZooVecEnv, SyncPettingZooVecEnv
from agilerl.vector.pz_async_vec_env import get_placeholder_value

BOTH = {"a": 1, "b": 2}
FRAMES = [
    Frame(BOTH, infos={"b": {"action_mask": [1, 1, 0]}}), Frame({"a": 3, "b": 4}, {"a": 1.0, "b": 0.5}, ends=["a"]),
    Frame({"b": 6}, {"b": 2.0}, cuts=["b"]),
]  # fmt: skip


def vector(kind: Any, make: Any, count: int = 2, **options: Any) -> PettingZooVecEnv:
    made: PettingZooVecEnv = kind([make] * count, **options)
    return made


def spread(kind: Any) -> list[Any]:
    """What 30 steps of two copies of simple_spread show."""
    draw, shown = np.random.default_rng(0), []
    with vector(kind, partial(mpe2.simple_spread_v3.parallel_env, max_cycles=7)) as env:
        obs, infos = env.reset(seed=11)
        shown.append((obs, infos))
        for _ in range(30):
            shown.append(env.step({agent: draw.integers(5, size=2) for agent in env.agents}))
    return shown


def test_workers_show_to_the_bit_what_this_process_shows() -> None:
    for one, other in zip(spread(SyncPettingZooVecEnv), spread(AsyncPettingZooVecEnv), strict=True):
        np.testing.assert_equal(one, other)


@pytest.mark.parametrize("kind", [SyncPettingZooVecEnv, AsyncPettingZooVecEnv])
def test_a_vector_says_of_every_agent_what_it_saw_got_and_how_it_ended(kind: Any) -> None:
    with vector(kind, partial(Scripted, FRAMES)) as env:
        obs, infos = env.reset(seed=3)
        assert list(infos) == ["a", "b"]
        assert obs["a"].tolist() == [[1, 0], [1, 0]]
        assert infos["b"]["action_mask"].tolist() == [[True, True, False]] * 2
        obs, reward, terminated, truncated, infos = env.step({"a": [0, 1], "b": np.array([1, 0])})
        assert reward["b"].tolist() == [0.5, 0.5]
        assert reward["b"].dtype == float
        assert terminated["a"].tolist() == [True, True]
        assert terminated["a"].dtype == bool
        assert infos["a"]["present"].tolist() == [False, False]
        obs, reward, terminated, truncated, infos = env.step({"b": [1, 1]})
        assert reward["a"].tolist() == [0, 0]
        assert truncated["b"].tolist() == [True, True]
        assert obs["b"].tolist() == [[2, 0], [2, 0]]  # of the next episode
        assert infos["b"]["final_observation"].tolist() == [[6, 2], [6, 2]]
        assert infos["b"]["_final_observation"].tolist() == [True, True]
        assert isinstance(obs, TeamObservations)
        assert obs.final["b"].tolist() == [[6, 2], [6, 2]]
        assert obs.acted["a"].tolist() == [False, False]


@pytest.mark.parametrize("kind", [SyncPettingZooVecEnv, AsyncPettingZooVecEnv])
def test_copies_can_be_asked_and_changed(kind: Any) -> None:
    with vector(kind, partial(Scripted, FRAMES), 3) as env:
        assert env.num_envs == 3
        assert env.get_attr("resets") == (0, 0, 0)
        env.reset(seed=[5, 6, 7])
        assert env.get_attr("seeds") == ([5], [6], [7])
        env.set_attr("mark", [1, 2, 3])
        env.set_attr("same", "x")
        assert env.get_attr("mark") == (1, 2, 3)
        assert env.get_attr("same") == ("x", "x", "x")
        assert [state.tolist() for state in env.call("state")] == [[0, 1, 7]] * 3
        with pytest.raises(ConfigError, match=r"set_attr\('mark'\): 2 values for 3 copies"):
            env.set_attr("mark", [1, 2])
        assert env.single_action_space("a") == spaces.Discrete(3)
        assert env.action_space("a") == spaces.MultiDiscrete([3, 3, 3]), "as published: of all copies"
        assert env.single_observation_space("b") == WIDE
        assert env.observation_space("b").shape == (3, *WIDE.shape)
        assert env.num_agents == len(env.agents) == len(env.possible_agents)
        with pytest.raises(ConfigError, match="unknown agent 'c'"):
            env.single_action_space("c")


def test_workers_are_one_for_each_copy_and_are_gone_after_close() -> None:
    env = AsyncPettingZooVecEnv([partial(Scripted, FRAMES)] * 3)
    processes = env.processes
    assert len(processes) == 3
    assert all(process.is_alive() for process in processes)
    with pytest.raises(EnvError, match=r"^Scripted: nothing\(\) failed: .*AttributeError|no attribute 'nothing'"):
        env.call("nothing")
    assert env.call("state")[0].tolist() == [0, 0, 7]  # the workers have outlived it
    env.close()
    assert not env.lanes.workers[0].process
    env.close()


def test_images_dicts_and_tuples_come_through_shared_memory() -> None:
    observed = {
        "a": spaces.Box(0, 255, (3, 8, 8), np.uint8),
        "b": spaces.Dict({"at": spaces.Box(-1, 1, (2,)), "card": spaces.Discrete(3)}),
        "c": spaces.Tuple([spaces.Discrete(4), spaces.Box(-1, 1, (1,))]),
    }
    image = np.arange(192, dtype=np.uint8).reshape(3, 8, 8)
    first = {
        "a": image, "b": {"at": np.array([0.5, -0.5], np.float32), "card": 2}, "c": (3, np.array([0.25], np.float32)),
    }  # fmt: skip
    with vector(AsyncPettingZooVecEnv, partial(Scripted, [Frame(first)], list(observed), observed)) as env:
        obs, _ = env.reset()
        assert obs["a"].dtype == np.uint8
        np.testing.assert_array_equal(obs["a"], [image, image])
        assert obs["b"]["card"].tolist() == [2, 2]
        assert obs["c"][0].tolist() == [3, 3]
        assert obs["c"][1].tolist() == [[0.25], [0.25]]


@pytest.mark.parametrize("kind", [SyncPettingZooVecEnv, AsyncPettingZooVecEnv])
def test_what_the_environment_decides_and_its_state_reach_the_lanes(kind: Any) -> None:
    frames = [Frame(BOTH, infos={"b": {"env_defined_actions": 2}}), Frame(BOTH), Frame(BOTH)]
    with vector(kind, partial(Scripted, frames), with_state=True) as env:
        _, infos = env.reset()
        assert infos["b"]["env_defined_actions"].tolist() == [2, 2]
        assert "env_defined_actions" not in infos["a"]
        seen = env.step({"a": [1, 1], "b": [0, 0]})[0]
        assert seen.state[:, [0, 2]].tolist() == [[1, 7], [1, 7]]
        assert env.get_attr("actions") == ([{"a": 1, "b": 2}], [{"a": 1, "b": 2}])
        lanes = env.replicate(1)
        obs, _ = lanes.reset()
        assert obs["state"].shape == (2, 3)
        batch = lanes.step(np.zeros((2, 2)))
        np.testing.assert_array_equal(batch.team.defined, [[np.nan, 2], [np.nan, 2]])
        lanes.close()


def test_actions_that_do_not_fit_are_named() -> None:
    with vector(SyncPettingZooVecEnv, partial(Scripted, FRAMES)) as env:
        env.reset()
        with pytest.raises(ConfigError, match=r"unknown agent 'aa'. Did you mean 'a'"):
            env.step({"aa": [0, 0]})
        with pytest.raises(
            ConfigError, match=r"actions of a: expected one of Discrete\(3\) for each of 2 environments"
        ):
            env.step({"a": [0], "b": [0, 0]})
        with pytest.raises(ConfigError, match=r"b has no action. fix:"):
            env.step({"a": [0, 0]})


# -- made by name, and as lanes ----------------------------------------------------------------------------------------


def test_environments_are_made_by_name_by_module_and_by_function_with_keywords() -> None:
    given = ("mpe2.simple_spread_v3", mpe2.simple_spread_v3, mpe2.simple_spread_v3.parallel_env)
    for each in given:
        with make_multi_agent_vect_envs(each, num_envs=2, N=2, seed=4) as env:
            assert isinstance(env, SyncPettingZooVecEnv)
            assert env.agents == ["agent_0", "agent_1"]
            first, _ = env.reset()
            again, _ = env.reset()
        with make_multi_agent_vect_envs(each, num_envs=2, N=2, seed=4) as env:
            np.testing.assert_equal(dict(env.reset()[0]), dict(first))
        assert (first["agent_0"] != again["agent_0"]).any()
        assert (first["agent_0"][0] != first["agent_0"][1]).any()
    with make_multi_agent_vect_envs(Scripted, 3, frames=FRAMES, should_async_vector=True) as env:
        assert isinstance(env, AsyncPettingZooVecEnv)
        assert env.reset()[0]["a"].shape == (3, 2)


def test_a_game_of_turns_is_converted_by_name() -> None:
    pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    with make_multi_agent_vect_envs("pettingzoo.classic.tictactoe_v3", 2) as env:
        obs, infos = env.reset(seed=0)
        assert isinstance(obs, TeamObservations)
        assert obs["player_1"].shape == (2, 3, 3, 2)
        assert obs.present["player_1"].tolist() == [True, True]
        assert obs.present["player_2"].tolist() == [False, False]
        for one, two in ((0, 3), (1, 4)):
            env.step({"player_1": [one, one]})
            obs, _, _, _, infos = env.step({"player_2": [two, two]})
        assert infos["player_1"]["action_mask"][0].tolist() == [
            False,
            False,
            True,
            False,
            False,
            True,
            True,
            True,
            True,
        ]
        _, reward, terminated, _, _ = env.step({"player_1": [2, 2]})
        assert reward["player_1"].tolist() == [1, 1]
        assert reward["player_2"].tolist() == [-1, -1]
        assert terminated["player_2"].tolist() == [True, True]


def test_what_is_no_environment_of_several_agents_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvError, match=r"unknown environment 'mpe2.simple_spraed_v3'. fix: mpe2.simple_spread_v3"):
        make_multi_agent_vect_envs("mpe2.simple_spraed_v3")
    with pytest.raises(EnvError, match="'CartPole-v1' is not the id of an environment of several agents"):
        make_multi_agent_vect_envs("CartPole-v1")
    with pytest.raises(EnvError, match=r"needs a factory, .* got an Scripted object"):
        make_multi_agent_vect_envs(Scripted(FRAMES))
    with pytest.raises(EnvError, match=r"has agents that take turns .* fix: .*aec_to_parallel"):
        make_multi_agent_vect_envs(mpe2.simple_spread_v3.env)
    with pytest.raises(EnvError, match=r"has agents that take turns .* fix: .*aec_to_parallel"):
        make_multi_agent_vect_envs(mpe2.simple_spread_v3.env())
    with pytest.raises(EnvError, match="num_envs must be an integer of at least 1"):
        make_multi_agent_vect_envs(mpe2.simple_spread_v3, 0)
    for options in ({"healing": True}, {"num_workers": 1}, {"deadline_s": 1.0}, {"max_restarts": 1}):
        with pytest.raises(EnvError, match="needs worker processes"):
            make_multi_agent_vect_envs(mpe2.simple_spread_v3, should_async_vector=False, **options)

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(EnvError, match=r'mpe2 is not installed. fix: pip install "agilerl\[marl\]"'):
        make_multi_agent_vect_envs("mpe2.simple_spread_v3")


def test_a_team_a_vector_of_teams_and_lanes_of_teams_are_lanes() -> None:
    env = mpe2.simple_spread_v3.parallel_env(max_cycles=3)
    lanes = as_lanes(env)
    assert isinstance(lanes, TeamLanes)
    assert as_lanes(lanes) is lanes
    obs: Any = lanes.reset(np.array([1]))[0]
    assert obs[AGENTS]["agent_1"].shape == (1, 18)
    assert obs[PRESENT].tolist() == [[1, 1, 1]]
    assert as_lanes(SyncPettingZooVecEnv([partial(Scripted, FRAMES)] * 3)).num_lanes == 3
    with pytest.raises(EnvError, match="has agents that take turns"):
        as_lanes(mpe2.simple_spread_v3.env())


@pytest.mark.parametrize("kind", [SyncPettingZooVecEnv, AsyncPettingZooVecEnv])
def test_a_step_that_is_begun_and_waited_for_is_the_step(kind: Any) -> None:
    with vector(kind, partial(Scripted, FRAMES), 2) as one, vector(kind, partial(Scripted, FRAMES), 2) as other:
        one.reset_async(seed=[5, 6])
        seen, _ = one.reset_wait()
        expected, _ = other.reset(seed=[5, 6])
        assert seen.keys() == expected.keys()
        for _ in range(6):
            who = [agent for agent in one.agents if one.observations.present[agent].any()]  # type: ignore[attr-defined]
            actions = {agent: one.action_space(agent).sample() for agent in who}
            one.step_async(actions)
            begun, made = one.step_wait(), other.step(actions)
            for got, wanted in zip(begun[:4], made[:4], strict=True):
                for agent in wanted:
                    np.testing.assert_equal(got[agent], wanted[agent])
        one.call_async("state")
        np.testing.assert_equal(one.call_wait(), other.call("state"))


@pytest.mark.parametrize("kind", [SyncPettingZooVecEnv, AsyncPettingZooVecEnv])
def test_calls_that_overlap_or_were_not_begun_are_refused(kind: Any) -> None:
    with vector(kind, partial(Scripted, FRAMES), 2) as env:
        with pytest.raises(NoAsyncCallError, match=r"step_wait: no step was begun\. fix: step_async"):
            env.step_wait()
        obs, _ = env.reset()
        env.step_async({agent: env.action_space(agent).sample() for agent in env.agents if obs.present[agent].any()})
        begin: list[Any] = [
            lambda: env.step_async({}), lambda: env.reset(), env.reset_async, lambda: env.call("state"),
            lambda: env.call_async("state"), lambda: env.set_attr("mark", 1), lambda: env.get_attr("mark"), env.render,
        ]  # fmt: skip
        for call in begin:
            with pytest.raises(AlreadyPendingCallError, match=r"a step was not waited for\. fix: step_wait\(\)"):
                call()
        with pytest.raises(NoAsyncCallError):
            env.reset_wait()
        assert len(env.step_wait()) == 5


class Slow(ParallelGame):
    """One agent, whose steps take a fifth of a second."""

    observed, acted, length = {"a": spaces.Box(0, 1, (1,))}, {"a": spaces.Discrete(2)}, None

    def rewards(self, actions: Any) -> dict[str, float]:
        time.sleep(0.2)
        return {"a": 2.0}


def test_workers_step_while_this_process_does_something_else() -> None:
    with AsyncPettingZooVecEnv([Slow]) as env:
        env.reset()
        begun = time.monotonic()
        env.step_async({"a": [1]})
        assert time.monotonic() - begun < 0.15, "the step itself takes 0.2 s"
        with pytest.raises(multiprocessing.TimeoutError, match=r"no answer after 0\.01 s\. fix: step_wait\(\) again"):
            env.step_wait(timeout=0.01)
        _, rewards, *_ = env.step_wait(timeout=20)
        assert rewards["a"].tolist() == [2.0]


@pytest.mark.parametrize("kind", [SyncPettingZooVecEnv, AsyncPettingZooVecEnv])
def test_actions_of_one_environment_may_lack_its_axis_and_lists_go_by_environment(kind: Any) -> None:
    with kind([Slow]) as env:
        env.reset()
        for actions in ({"a": 1}, {"a": [1]}, {"a": np.array(1)}, [{"a": 1}], [[1]]):
            assert env.step(actions)[1]["a"].tolist() == [2.0]
        with pytest.raises(
            ConfigError, match=r"a list with an entry for each of 1 environments; got list \[\[1\], \[1\]\]"
        ):
            env.step([[1], [1]])


def test_placeholders_are_nan_nested_as_the_space_is() -> None:
    nested = spaces.Dict(
        {"x": spaces.Box(-1, 1, (2,)), "y": spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (1,))])}
    )
    for name in ("reward", "terminated", "truncated"):
        assert np.isnan(get_placeholder_value("a", name))
    assert get_placeholder_value("a", "info") == {}
    assert get_placeholder_value("a", "observation") is None
    assert get_placeholder_value("a", "anything", {"a": nested}) is None
    found = get_placeholder_value("a", "observation", {"a": nested})
    np.testing.assert_equal(found, {"x": np.full(2, np.nan), "y": (np.array(np.nan), np.full(1, np.nan))})
