"""Mistakes with several agents, each by every way that leads to it: which error, in which words, with which fix."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

import agilerl
from agilerl.algorithms import MADDPG, MATD3
from agilerl.algorithms.ippo import IPPO
from agilerl.algorithms.mappo import MAPPO
from agilerl.cli.main import app
from agilerl.cli.probing import environment
from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.envs.teams import TeamLanes
from agilerl.errors import AlgorithmError, ConfigError, EnvError, ShapeError
from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl.training.train_off_policy import train_off_policy
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import create_population, make_multi_agent_vect_envs
from agilerl.vector import AsyncPettingZooVecEnv, SyncPettingZooVecEnv

IDS = ["scout_0", "scout_1", "base_0"]
SEEN = {agent: spaces.Box(-1, 1, (2,)) for agent in IDS}
DONE = {"scout_0": spaces.Discrete(3), "scout_1": spaces.Discrete(3), "base_0": spaces.Box(-1, 1, (1,))}
SHORT: dict[str, Any] = {
    "population": 2, "steps": 32, "evo_steps": 32, "num_envs": 2, "eval_episodes": 1, "out": None, "verbose": False,
}  # fmt: skip
EVERY = (MADDPG, MATD3, IPPO, MAPPO)
ROW = np.zeros(2, np.float32)


class Camp:
    """Episodes of four steps."""

    metadata: dict[str, Any] = {"name": "camp_v0"}  # noqa: RUF012
    render_mode = None
    possible_agents = IDS
    mask: Any = None

    def observation_space(self, agent: str) -> Any:
        return SEEN[agent]

    def action_space(self, agent: str) -> Any:
        return DONE[agent]

    def _shown(self) -> tuple[dict[str, Any], dict[str, Any]]:
        infos: dict[str, Any] = {agent: {} for agent in IDS}
        if self.mask is not None:
            infos["scout_0"]["action_mask"] = self.mask
        return {agent: np.zeros(self.observation_space(agent).shape, np.float32) for agent in IDS}, infos

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.age, self.agents = 0, list(IDS)
        return self._shown()

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        self.age += 1
        ends = dict.fromkeys(IDS, self.age == 4)
        self.agents = [] if self.age == 4 else list(IDS)
        seen, infos = self._shown()
        return seen, dict.fromkeys(IDS, 0.0), ends, dict.fromkeys(IDS, False), infos

    def close(self) -> None:
        pass


class Uneven(Camp):
    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-1, 1, (3,)) if agent == "scout_1" else SEEN[agent]


class Short(Camp):
    mask = (1, 0)


class Stuck(Camp):
    mask = (0, 0, 0)


class InTurns(Camp):
    """As PettingZoo's AEC interface."""

    def agent_iter(self, max_iter: int = 2**63) -> Any:
        raise NotImplementedError


def team(cls: Any = MADDPG, **more: Any) -> Any:
    return cls(SEEN, DONE, seed=1, **more)


def two(cls: Any = MADDPG) -> list[Any]:
    return [cls(SEEN, DONE, index=i, seed=i) for i in range(2)]


def off(env: Any, pop: list[Any] | None = None) -> Any:
    pop = two() if pop is None else pop
    return train_multi_agent_off_policy(env, "x", pop=pop, memory=ReplayBuffer(99), verbose=False, max_steps=32)


def on(env: Any, pop: list[Any] | None = None) -> Any:
    return train_multi_agent_on_policy(env, "x", pop=two(IPPO) if pop is None else pop, verbose=False, max_steps=32)


TURNS = (
    r"^camp_v0 has agents that take turns \(PettingZoo's AEC interface\); teams act at the same time\. fix: "
    r"pettingzoo\.utils\.conversions\.aec_to_parallel\(env\), or turn_based_aec_to_parallel of a game of turns\.$"
)
InTurns.__name__ = InTurns.__qualname__ = "raw_env"  # as those of PettingZoo are called


@pytest.mark.parametrize(
    "make",
    [
        lambda: agilerl.train(InTurns(), **SHORT),
        lambda: agilerl.train(InTurns(), "MAPPO", **SHORT),
        lambda: agilerl.train(InTurns, "MADDPG", **SHORT),
        lambda: make_multi_agent_vect_envs(InTurns(), 2),
        lambda: make_multi_agent_vect_envs(InTurns, 2),
        lambda: SyncPettingZooVecEnv([InTurns]),
        lambda: AsyncPettingZooVecEnv([InTurns]),
        lambda: TeamLanes([InTurns]),
        lambda: off(InTurns()),
        lambda: on(InTurns()),
        lambda: team().test(InTurns()),
        lambda: team(MAPPO).evaluate(env=InTurns()),
    ],
)
def test_an_environment_whose_agents_take_turns_as_it_is(make: Callable[[], Any]) -> None:
    with pytest.raises(EnvError, match=TURNS):
        make()


def test_a_game_of_pettingzoo_as_it_is() -> None:
    classic = pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    with pytest.raises(EnvError, match=TURNS.replace("camp_v0", "tictactoe_v3")):
        agilerl.train(classic.env(), **SHORT)


UNEVEN = (
    r"scout_0 and scout_1 are the group 'scout', which has one set of networks, but observe different spaces: "
    r"Box\(-1\.0, 1\.0, \(2,\), float32\) and Box\(-1\.0, 1\.0, \(3,\), float32\)\. "
    r"fix: names that differ before the last underscore\.$"
)


@pytest.mark.parametrize(
    "make",
    [
        *(partial(cls, {**SEEN, "scout_1": spaces.Box(-1, 1, (3,))}, DONE) for cls in EVERY),
        lambda: create_population("MAPPO", {}, {}, {**SEEN, "scout_1": spaces.Box(-1, 1, (3,))}, DONE),
        lambda: agilerl.train(Uneven, "MADDPG", **SHORT),
    ],
)
def test_agents_of_a_group_that_see_different_things(make: Callable[[], Any]) -> None:
    with pytest.raises(AlgorithmError, match=UNEVEN):
        make()


def test_agents_of_a_group_that_do_different_things() -> None:
    with pytest.raises(AlgorithmError, match=r"but act in different spaces: Discrete\(3\) and Discrete\(4\)\. fix: "):
        MATD3(SEEN, {**DONE, "scout_1": spaces.Discrete(4)})


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        *(
            (partial(team, cls, net_config={"scout": {}, "bass_0": {}}), ConfigError,
             rf"^{cls.__name__}: net_config has parts by name, and unknown agent 'bass_0'\. Did you mean 'base_0'\?")
            for cls in EVERY
        ),
        (lambda: team(net_config={"scout": {}}), ConfigError, r"none for 'base'\. fix: add it\."),
        (lambda: team(actor_networks={"skout": None}), ConfigError,
         r"^MADDPG, actor_networks: unknown group 'skout'\. Did you mean 'scout'\?"),
        (lambda: team(MATD3, critic_networks=({}, {"bas": None})), ConfigError,
         r"^MATD3, critic_networks: unknown group 'bas'\. Did you mean 'base'\?"),
        (lambda: MADDPG(SEEN, DONE, agent_ids=["scout_0", "scout_2", "base_0"]), AlgorithmError,
         r"observation spaces are of \['base_0', 'scout_0', 'scout_1'\]; the agents are .*'scout_2'.* fix: \{agent: "),
        (lambda: team().get_action({"scout_9": ROW}), ShapeError, r"unknown agent 'scout_9'\. Did you mean 'scout_"),
        (lambda: team().get_action({"scout_0": ROW}, {"scout_9": {"action_mask": [1, 1, 1]}}), ShapeError,
         r"action masks: unknown agent 'scout_9'\. Did you mean 'scout_"),
        (lambda: team().get_group_id("skout_0"), ConfigError, r"unknown agent 'skout_0'\. Did you mean 'scout_0'"),
        (lambda: SyncPettingZooVecEnv([Camp]).step({"scout_9": [0]}), ConfigError, r"unknown agent 'scout_9'"),
        (lambda: train_multi_agent_off_policy(Camp(), "x", pop=two(), verbose=False,
                                              memory=MultiAgentReplayBuffer(9, agent_ids=["scout_0", "base_0"])),
         ConfigError, r"the memory is of the agents \['scout_0', 'base_0'\], the environment has .* fix: .*agent_ids="),
    ],
)  # fmt: skip
def test_an_agent_that_there_is_not(make: Callable[[], Any], kind: Any, says: str) -> None:
    with pytest.raises(kind, match=says):
        make()


WRONG = (
    r"^{}, agent scout_0, row 0: action_mask has 2 entries .*; expected for Discrete\(3\): 3 entries, .*\. fix: .*\.$"
)
ENV_WRONG = (
    r"agent scout_0, lane 0: action_mask has 2 entries \(shape \(2,\)\); expected for Discrete\(3\): 3 entries, "
    r"one per action, 1 = legal and 0 = not\. fix: .*\.$"
)


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        *(
            (lambda cls=cls: team(cls).get_action({"scout_0": ROW}, {"scout_0": {"action_mask": [1, 0]}}),
             ShapeError, WRONG.format(cls.__name__))
            for cls in EVERY
        ),
        (lambda: team().get_action({"base_0": ROW}, {"base_0": {"action_mask": [1, 0]}}), ShapeError,
         r"MADDPG: a mask of base_0, whose Box\(-1\.0, 1\.0, \(1,\), float32\) is not discrete\. fix: leave it out\.$"),
        (lambda: TeamLanes([Short]).reset(), EnvError, ENV_WRONG),
        (lambda: agilerl.train(Short, "MADDPG", **SHORT), EnvError, ENV_WRONG),
        (lambda: agilerl.train(Short, "MAPPO", **SHORT), EnvError, ENV_WRONG),
        (lambda: TeamLanes([Stuck]).reset(), EnvError,
         r"agent scout_0, lane 0: action_mask allows no action; .* fix: observe the agent when it can act"),
    ],
)  # fmt: skip
def test_a_mask_of_the_wrong_length(make: Callable[[], Any], kind: Any, says: str) -> None:
    with pytest.raises(kind, match=says):
        make()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: train_off_policy(Camp(), "x", pop=two(), memory=ReplayBuffer(9), verbose=False),
         r"^MADDPG trains several agents\. fix: train_multi_agent_off_policy\(env, \.\.\.\)\.$"),
        (lambda: train_off_policy(Camp(), "x", pop=two(MATD3), memory=ReplayBuffer(9), verbose=False),
         r"^MATD3 trains several agents\. fix: train_multi_agent_off_policy\(env, \.\.\.\)\.$"),
        (lambda: train_on_policy(Camp(), "x", pop=two(MAPPO), verbose=False),
         r"^MAPPO trains several agents\. fix: train_multi_agent_on_policy\(env, \.\.\.\)\.$"),
        (lambda: off(Camp(), two(IPPO)),
         r"^IPPO learns from its own .*, not from .*\. fix: train_multi_agent_on_policy\(.*\), or algo='MADDPG'\.$"),
        (lambda: on(Camp(), two()),
         r"^MADDPG learns from replay .*, not from .*\. fix: train_multi_agent_off_policy\(.*, or algo='IPPO'\.$"),
    ],
)  # fmt: skip
def test_a_training_function_of_another_kind(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(AlgorithmError, match=says):
        make()


MISSING = 'mpe2.simple_spread_v3: mpe2 is not installed. fix: pip install "agilerl[marl]"'


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "mpe2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mpe2", None)
    for make in (
        lambda: agilerl.train("mpe2.simple_spread_v3", **SHORT),
        lambda: agilerl.train("mpe2.simple_spread_v3", "IPPO", **SHORT),
        lambda: make_multi_agent_vect_envs("mpe2.simple_spread_v3"),
    ):
        with pytest.raises(EnvError) as caught:
            make()
        assert str(caught.value) == MISSING
    done = CliRunner().invoke(app, ["train", "mpe2.simple_spread_v3"])
    assert done.exit_code == 2
    assert done.output.strip() == f"EnvError: {MISSING}"
    (said,) = environment("mpe2.simple_spread_v3")
    assert (said.text, said.fix) == ("mpe2 is not installed.", 'pip install "agilerl[marl]"')


def test_the_doctor_steps_an_environment_of_several_agents() -> None:
    pytest.importorskip("mpe2")
    found = list(environment("mpe2.simple_speaker_listener_v4", steps=60))
    assert found[0].text == "2 agents: speaker_0 Box(3,) -> Discrete(3), listener_0 Box(11,) -> Discrete(5)"
    assert found[1].text.startswith("60 random ones, ")
    assert found[1].text.endswith(" a second, 2 episodes ended")
    assert found[2].text == "IPPO, MADDPG, MAPPO, MATD3, QMIX, VDN take these actions"
