"""Whatever agents are called, a team trains, mutates, is saved, loaded, continued and exported."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from policy_files import alone

import agilerl
from agilerl.algorithms import IPPO, MADDPG, MAPPO, MATD3
from agilerl.envs.limits import TimeLimitOfTeam
from agilerl.envs.team import team_of
from agilerl.envs.teams import TeamLanes
from agilerl.errors import EnvError
from agilerl.hpo.mutation import Mutations
from agilerl.modules.paths import resolve
from agilerl.vector import AsyncPettingZooVecEnv, SyncPettingZooVecEnv
from agilerl.views.export import file_part

OBS, ACTIONS = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(3)
NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}

IDS: dict[str, tuple[Any, Any]] = {
    "integers": (0, 1),
    "NumPy integers": (np.int64(0), np.int64(1)),
    "tuples": ((0, 1), (1, 0)),
    "mixed": (0, "a"),
    "none": (None, True),
    "dot": ("bot.0", "bot.1"),
    "one is in the other": ("bot", "bot.0"),
    "dots and group": ("a.b.c_0", "a.b.d_0"),
    "dots at the ends": (".a", "a."),
    "only dots": (".", ".."),
    "nothing": ("", "x"),
    "slash": ("a/b", "../c"),
    "spaces": ("a b", " "),
    "unicode": ("агент", "エージェント"),
    "dunder": ("__len__", "__class__"),
    "digits": ("0", "1"),
    "default": ("default", "joint"),
    "methods of mappings": ("keys", "items"),
    "parts of networks": ("encoder", "actor.encoder"),
    "attributes of agents": ("training", "lr"),
    "underscores": ("_", "__"),
    "new lines": ("a\nb", "c\0d"),
    "long": ("a" * 400, "b" * 400),
}


def environment(ids: Any) -> type:
    """Two agents with ids of their own, which are checked in every call; whose rewards say who acted how."""

    class Pair:
        metadata: dict[str, Any] = {"name": "pair_v0"}  # noqa: RUF012
        render_mode = None
        possible_agents = list(ids)  # noqa: RUF012

        def observation_space(self, agent: Any) -> Any:
            assert any(agent is known or agent == known for known in ids), agent
            assert not isinstance(agent, str) or agent in [known for known in ids if isinstance(known, str)]
            return OBS

        action_space = property(lambda self: lambda agent: self.observation_space(agent) and ACTIONS)

        def _seen(self) -> Any:
            return {agent: np.full(3, k + self.time / 10, np.float32) for k, agent in enumerate(ids)}

        def reset(self, seed: Any = None, options: Any = None) -> Any:
            self.time, self.agents = 0, list(ids)
            return self._seen(), {}

        def step(self, actions: Any) -> Any:
            assert set(actions) == set(ids)
            self.time += 1
            over = self.time >= 5
            self.agents = [] if over else list(ids)
            rewards = {agent: float(k + 1) for k, agent in enumerate(ids)}
            return self._seen(), rewards, dict.fromkeys(ids, over), dict.fromkeys(ids, False), {}

        def close(self) -> None:
            pass

    return Pair


def equal(one: Any, other: Any) -> bool:
    return all(np.array_equal(one[agent], other[agent]) for agent in one) and one.keys() == other.keys()


def observations(team: Any) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)
    return {agent: draw.normal(size=(40, 3)).astype(np.float32) for agent in team.agent_ids}


def greedy(team: Any) -> dict[str, np.ndarray]:
    return dict(team.get_action(observations(team), training=False)[0])


@pytest.mark.parametrize("kind", IDS)
def test_lanes_ask_by_the_environments_own_ids_and_know_agents_by_text(kind: str) -> None:
    ids = IDS[kind]
    lanes = TeamLanes([lambda: TimeLimitOfTeam(environment(ids)(), 4)] * 2)
    obs, _ = lanes.reset()
    assert list(lanes.team.agents) == [str(agent) for agent in ids]
    for agent, key in zip(lanes.team.agents, ids, strict=True):
        assert lanes.team.key_of(agent) is key
    np.testing.assert_array_equal(obs["agents"][str(ids[1])], np.full((2, 3), 1, np.float32))
    for step in range(1, 5):
        batch = lanes.step(np.zeros((2, 2)))
        assert batch.team.reward.tolist() == [[1.0, 2.0]] * 2
        assert batch.truncated.tolist() == [step == 4] * 2


@pytest.mark.parametrize("make", [SyncPettingZooVecEnv, AsyncPettingZooVecEnv])
@pytest.mark.parametrize("kind", ["integers", "tuples", "dot", "nothing"])
def test_vectors_take_actions_by_text_or_by_the_environments_ids(kind: str, make: Any) -> None:
    ids = IDS[kind]
    with make([environment(ids)] * 2) as vector:
        assert vector.single_action_space(ids[0]) == vector.single_action_space(str(ids[0])) == ACTIONS
        vector.reset()
        by_key = vector.step({agent: np.zeros(2, int) for agent in ids})
        by_text = vector.step({str(agent): np.zeros(2, int) for agent in ids})
    for rewards in (by_key[1], by_text[1]):
        assert {agent: values.tolist() for agent, values in rewards.items()} == {
            str(ids[0]): [1.0, 1.0], str(ids[1]): [2.0, 2.0]
        }  # fmt: skip


FILES = list(zip(IDS, itertools.cycle([MADDPG, IPPO, MATD3, MAPPO]), strict=False))
THOROUGH_FILES = [pytest.param(*case, marks=pytest.mark.thorough) for n, case in enumerate(FILES) if n % 3]


@pytest.mark.parametrize(("kind", "cls"), [*FILES[::3], *THOROUGH_FILES])
def test_a_team_mutates_and_is_read_back_from_a_file(kind: str, cls: Any, tmp_path: Path) -> None:
    ids = IDS[kind]
    team = cls(dict.fromkeys(ids, OBS), dict.fromkeys(ids, ACTIONS), net_config=NET, seed=1)
    assert team.agent_ids == [str(agent) for agent in ids]
    for number, chances in enumerate([(0, 1, 0.0, 0, 0, 0), (0, 1, 1.0, 0, 0, 0), (0, 0, 0, 1, 0, 0)]):
        mutations = Mutations(*chances, rand_seed=number)
        (team,) = mutations.mutation([team])
        assert mutations.last_births[0].kind != "none"
    before = greedy(team)
    assert any(len(np.unique(actions)) > 1 for actions in before.values()), "a constant policy tells nothing"
    team.save_checkpoint(tmp_path / "team.pt")
    assert equal(greedy(cls.load(tmp_path / "team.pt")), before)
    assert equal(greedy(team.clone()), before)
    found = alone(team, tmp_path).act(observations(team))
    assert all(np.array_equal(found[agent].numpy().reshape(-1), before[agent].reshape(-1)) for agent in found)


RUNS = [("dot", "MADDPG"), ("integers", "IPPO"), ("methods of mappings", "MADDPG")]
OTHER_RUNS = [(kind, algo) for kind in IDS for algo in ("MADDPG", "IPPO") if (kind, algo) not in RUNS]
OTHER_RUNS = OTHER_RUNS[:: 1 + len(OTHER_RUNS) // 8]
SLOW_RUNS = [pytest.param(*case, marks=pytest.mark.slow) for n, case in enumerate(OTHER_RUNS) if n % 3]


@pytest.mark.parametrize(("kind", "algo"), [*RUNS, *OTHER_RUNS[::3], *SLOW_RUNS])  # the whole file is thorough
def test_a_whole_run_is_trained_loaded_and_continued(kind: str, algo: str, tmp_path: Path) -> None:
    make = environment(IDS[kind])
    options: dict[str, Any] = {"evo_steps": 32, "eval_episodes": 1, "num_envs": 2, "verbose": False}
    options |= {"learn_step": 16} if algo in ("IPPO", "MAPPO") else {}
    run = agilerl.train(make, algo, population=3, steps=96, out=tmp_path, preset=False, **options)
    assert run.history[-1] == [15.0] * 3
    loaded = agilerl.load(run.path)
    assert equal(greedy(loaded.best), greedy(run.best))
    assert equal(greedy(loaded.population[0]), greedy(run.population[0]))
    assert agilerl.resume(run.path, steps=128, env=make, verbose=False).history[-1] == [15.0] * 3


@pytest.mark.thorough
def test_onnx_files_of_groups(tmp_path: Path) -> None:
    from agilerl.views.export import export_team

    ids = [0, "bot", "bot.0", "../c", "a" * 400]
    team = MADDPG(dict.fromkeys(ids, OBS), dict.fromkeys(ids, ACTIONS), net_config=NET, seed=1)
    reports = export_team(team, tmp_path / "policy.onnx", rows=50)
    assert {report.path.parent for report in reports.values()} == {tmp_path}
    assert len(list(tmp_path.iterdir())) == len(reports) == len(ids)
    assert all(report.different_actions == 0 for report in reports.values())


def test_names_of_files_are_those_of_groups_where_they_can_be() -> None:
    assert [file_part(name) for name in ("speaker", "bot.0", "агент", "a b")] == ["speaker", "bot.0", "агент", "a b"]
    assert file_part("a/b\\c\n%") == "a%2fb%5cc%0a%25"
    assert len(file_part("я" * 400).encode()) <= 150
    assert file_part("a" * 400) != file_part("a" * 399 + "b")


def test_paths_of_networks_find_names_with_dots() -> None:
    class Holder:
        pass

    holder, inner = Holder(), Holder()
    inner.net = "inner"  # type: ignore[attr-defined]
    holder.__dict__.update({"actors.bot.0": 1, "actors": {"bot.1": 2, "bot": {"1": 3}, "a": inner}, "plain": 4})
    assert resolve(holder, "actors.bot.0") == 1
    assert resolve(holder, "actors.bot.1") == 2, "the longest name that begins the path"
    assert resolve(holder, "actors.a.net") == "inner"
    assert resolve(holder, "plain") == 4
    with pytest.raises(KeyError):
        resolve(holder, "actors.none")
    with pytest.raises(AttributeError):
        resolve(holder, "nothing.of.it")


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        (
            [0, "0"],
            r"possible_agents \[0, '0'\] has an agent twice \(ids are compared as text\)\. fix: a unique id",
        ),
        ([], r"possible_agents is empty\. fix: a unique id for each agent\."),
        ("ab", r"possible_agents is str 'ab'; expected a list of ids\. fix: \['agent_0'\]\."),
        (None, r"possible_agents is None; expected a list of ids\. fix:"),
    ],
)
def test_ids_that_cannot_be_told_apart_are_named(ids: Any, says: str) -> None:
    class Odd:
        possible_agents = ids
        observation_space = action_space = reset = step = lambda self, *args: None

    with pytest.raises(EnvError, match=rf"Odd: {says}"):
        team_of(Odd())
