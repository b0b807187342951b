"""Environments of older interfaces, of undeclared autoreset modes, and infos that look like the library's own marks."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import agilerl
from agilerl import errors
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.envs.adapters import VectorLanes
from agilerl.envs.step import as_lanes
from agilerl.envs.teams import TeamLanes
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import AgileRLWarning, EnvError
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import create_population

OBS, ACTIONS = spaces.Box(0, 100, (1,), np.float32), spaces.Discrete(2)
SHIMMY = "shimmy.openai_gym_compatibility.GymV21CompatibilityV0(env=env)"


@pytest.fixture(autouse=True)
def nothing_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_warned", set())


# -- older interfaces --------------------------------------------------------------------------------------------------


class Old(gymnasium.Env[Any, Any]):
    """The interface of Gym before 0.26, in a class of Gymnasium; `part` says what of it is old."""

    observation_space, action_space = OBS, ACTIONS

    def __init__(self, part: str = "reset") -> None:
        self.part = part

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32) if self.part == "reset" else (np.zeros(1, np.float32), {})

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 1.0, False, {}


class OldBare:
    """The same, of no class of Gymnasium."""

    observation_space, action_space = OBS, ACTIONS

    def reset(self) -> Any:
        return np.zeros(1, np.float32)

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 1.0, False, {}


class OldVector(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """As Stable-Baselines3's VecEnv: observations alone, and one array of dones."""

    num_envs = 2
    single_observation_space, single_action_space = OBS, ACTIONS

    def __init__(self, part: str = "reset") -> None:
        self.part = part

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((2, 1), np.float32) if self.part == "reset" else (np.zeros((2, 1), np.float32), [{}, {}])

    def step(self, actions: Any) -> Any:
        return np.zeros((2, 1), np.float32), np.ones(2), np.zeros(2, bool), [{}, {}]


class OldTeam:
    """PettingZoo's interface with observations alone from reset, or one dictionary of dones from step."""

    metadata: dict[str, Any] = {}  # noqa: RUF012
    possible_agents = ["a", "b"]  # noqa: RUF012

    def __init__(self, part: str = "reset") -> None:
        self.part = part

    def observation_space(self, agent: str) -> Any:
        return OBS

    def action_space(self, agent: str) -> Any:
        return ACTIONS

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.agents = ["a", "b"]
        seen = {agent: np.zeros(1, np.float32) for agent in self.agents}
        return seen if self.part == "reset" else (seen, {})

    def step(self, actions: Any) -> Any:
        each = dict.fromkeys("ab", False)
        return {agent: np.zeros(1, np.float32) for agent in "ab"}, dict.fromkeys("ab", 1.0), each, {}

    def close(self) -> None:
        pass


def run_a_step(lanes: Any, action: Any) -> None:
    lanes.reset()
    lanes.step(action)


ONE_RESET = "reset() returned an observation alone (the interface of Gym before 0.26); expected (observation, info)."
ONE_STEP = (
    "step() returned 4 values (the interface of Gym before 0.26); expected (observation, reward, terminated, "
    "truncated, info)."
)
TEAM_RESET = "returned observations alone (the interface of PettingZoo before infos were returned); expected "


@pytest.mark.parametrize(
    ("make", "action", "says", "fix"),
    [
        (lambda: as_lanes(Old()), np.zeros(1, int), f"Old, lane 0: {ONE_RESET}", SHIMMY),
        (lambda: as_lanes(Old("step")), np.zeros(1, int), f"Old, lane 0: {ONE_STEP}", SHIMMY),
        (lambda: as_lanes(OldBare()), np.zeros(1, int), f"OldBare, lane 0: {ONE_RESET}", SHIMMY),
        (lambda: make_vect_envs(make_env=Old).replicate(1), np.zeros(1, int), f"lane 0: {ONE_RESET}", SHIMMY),
        (lambda: VectorLanes(OldVector()), np.zeros(2, int), f"OldVector: {ONE_RESET}", "fix: return observation, {}."),
        (lambda: VectorLanes(OldVector("step")), np.zeros(2, int), f"OldVector: {ONE_STEP}", "fix: return obs"),
        (lambda: TeamLanes([OldTeam]), np.zeros((1, 2)), f"OldTeam, lane 0: reset() {TEAM_RESET}(observations, infos).",
         "fix: return observations, {agent: {} for agent in self.agents}."),
        (lambda: TeamLanes([lambda: OldTeam("step")]), np.zeros((1, 2)),
         "OldTeam, lane 0: step() returned 4 values (the interface of PettingZoo with one dict of dones); expected",
         "fix: return observations, rewards, terminations, truncations, infos."),
    ],
)  # fmt: skip
def test_an_older_interface_is_named_with_what_to_return(make: Any, action: Any, says: str, fix: str) -> None:
    with pytest.raises(EnvError) as caught:
        run_a_step(make(), action)
    assert says in str(caught.value)
    assert fix in str(caught.value)


def test_gymnasiums_wrappers_around_an_older_interface() -> None:
    """The time limit unpacks five values before the lanes see any."""
    with pytest.raises(
        EnvError, match=r"step\(\) raised ValueError: .*A step must return \(observation, reward, termin"
    ):
        run_a_step(as_lanes(gymnasium.wrappers.TimeLimit(Old("step"), 9)), np.zeros(1, int))


def test_a_reset_of_gymnasium_that_takes_no_seed() -> None:
    class Unseeded(Old):
        def reset(self) -> Any:  # type: ignore[override]
            return np.zeros(1, np.float32)

    with pytest.raises(
        EnvError, match=r"reset\(\) raised TypeError: .*'seed'. Gymnasium's interface is reset\(self, \*, s"
    ):
        as_lanes(Unseeded()).reset(np.zeros(1, int))


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (None, r"reset\(\) returned None; expected \(observation, info\)\. fix: return observation, \{\}\."),
        ((np.zeros(1), {}, 1), r"reset\(\) returned a tuple of 3 values; expected \(observation, info\)\. fix:"),
        ((np.zeros(1), 7), r"reset\(\) returned int 7 in place of info; expected \(observation, info\)\. fix:"),
    ],
)
def test_other_values_of_a_reset(result: Any, says: str) -> None:
    class Odd(Old):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return result

    with pytest.raises(EnvError, match=says):
        as_lanes(Odd()).reset()


# -- a living agent lacks a reward or an end ---------------------------------------------------------------------------


class Leaky(OldTeam):
    """Steps of both agents, in which "b" lacks `lacking`; "b" is observed where `is_seen`."""

    def __init__(self, lacking: str, is_seen: bool = True, everybody: bool = False) -> None:
        super().__init__("step")
        self.lacking, self.is_seen, self.everybody = lacking, is_seen, everybody

    def step(self, actions: Any) -> Any:
        def of(name: str, value: Any) -> dict[str, Any]:
            more = {"__all__": True} if self.everybody and name == "terminations" else {}
            return {**{agent: value for agent in "ab" if (agent, name) != ("b", self.lacking)}, **more}

        seen = {agent: np.zeros(1, np.float32) for agent in ("ab" if self.is_seen else "a")}
        self.agents = [] if self.everybody else ["a", "b"]
        return seen, of("rewards", 1.5), of("terminations", False), of("truncations", False), {}


@pytest.mark.parametrize("lacking", ["rewards", "terminations", "truncations"])
def test_an_agent_that_acts_and_is_observed_has_a_reward_and_both_flags(lacking: str) -> None:
    lanes = TeamLanes([lambda: Leaky(lacking)])
    lanes.reset()
    with pytest.raises(
        EnvError, match=rf"Leaky, agent b, lane 0: step\(\) gave {lacking} without 'b', which acted; exp"
    ):
        lanes.step(np.zeros((1, 2)))


@pytest.mark.parametrize("lacking", ["rewards", "terminations", "truncations"])
def test_an_agent_that_waits_unobserved_may_lack_them(lacking: str) -> None:
    lanes = TeamLanes([lambda: Leaky(lacking, is_seen=False)])
    lanes.reset()
    batch = lanes.step(np.zeros((1, 2)))
    assert batch.team is not None
    assert batch.team.reward.tolist() == [[1.5, 0.0 if lacking == "rewards" else 1.5]]
    assert batch.obs["present"].tolist() == [[1, 0]]


@pytest.mark.parametrize("lacking", ["terminations", "truncations"])
def test_all_stands_for_the_flags_of_those_that_are_left_out(lacking: str) -> None:
    lanes = TeamLanes([lambda: Leaky(lacking, everybody=lacking == "terminations")])
    lanes.reset()
    if lacking == "truncations":
        with pytest.raises(EnvError, match="gave truncations without 'b'"):
            lanes.step(np.zeros((1, 2)))
        return
    with pytest.raises(EnvError, match=r"agent a, lane 0: step\(\) has taken the agent out of env\.agents"):
        lanes.step(np.zeros((1, 2)))  # its own entry says False, and it is gone


def test_an_environment_that_ends_everybody_by_all_alone() -> None:
    class Together(OldTeam):
        def step(self, actions: Any) -> Any:
            self.agents = []
            seen = {agent: np.zeros(1, np.float32) for agent in "ab"}
            return seen, dict.fromkeys("ab", 1.0), {"__all__": True}, {"__all__": False}, {}

    lanes = TeamLanes([lambda: Together("step")])
    lanes.reset()
    batch = lanes.step(np.zeros((1, 2)))
    assert batch.team is not None
    assert batch.team.terminated.tolist() == [[True, True]]
    assert batch.terminated.tolist() == [True]
    assert not batch.truncated.any()


# -- autoreset modes that nobody declares ------------------------------------------------------------------------------


class Clocks(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Three clocks that show the time and end at 5, reset in the same step; rewards are the time, or 0."""

    num_envs = 3
    single_observation_space, single_action_space = OBS, ACTIONS
    metadata: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, pays: bool = True) -> None:
        self.pays = pays

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.time = np.zeros(3, int)
        return self.time[:, None].astype(np.float32), {}

    def step(self, actions: Any) -> Any:
        self.time += 1
        reward, over = self.time * float(self.pays), self.time >= 5
        self.time[over] = 0
        return self.time[:, None].astype(np.float32), reward, np.zeros(3, bool), over, {}


SAME = (
    r"Clocks resets in the same step as an episode ends, which it does not declare: .*fix: metadata = \{'autoreset_mode"
)
GUESS = (
    r"Clocks does not declare metadata\['autoreset_mode'\] and gives no info\['final_obs'\]: it is taken as NEXT_STEP"
)


def train_on(env: Any) -> ReplayBuffer:
    memory = ReplayBuffer(1000)
    pop = create_population("DQN", observation_space=OBS, action_space=ACTIONS, population_size=1, seed=1)
    options = {"max_steps": 120, "evo_steps": 120, "eval_steps": 5, "verbose": False, "seed": 1}
    train_off_policy(env, "x", pop=pop, memory=memory, **options)
    return memory


def test_a_reset_in_the_same_step_that_nobody_declares_is_noticed() -> None:
    with pytest.warns(AgileRLWarning, match=GUESS), pytest.raises(EnvError, match=SAME):
        train_on(Clocks())


def test_where_it_cannot_be_noticed_the_guess_is_said_once() -> None:
    lanes = VectorLanes(Clocks(pays=False))
    lanes.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(20):
            lanes.step(np.zeros(3, int))
    (said,) = caught
    assert "does not declare metadata['autoreset_mode']" in str(said.message)
    assert "fix: metadata = {'autoreset_mode': gymnasium.vector.AutoresetMode.NEXT_STEP}" in str(said.message)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_nothing_is_said_of_a_declared_mode(mode: AutoresetMode) -> None:
    class Clock(gymnasium.Env[Any, Any]):
        observation_space, action_space = OBS, ACTIONS

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.time = 0
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            self.time += 1
            return np.full(1, self.time, np.float32), 1.0, self.time >= 5, False, {}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lanes = VectorLanes(SyncVectorEnv([Clock] * 2, autoreset_mode=mode))
        lanes.reset()
        for _ in range(12):
            lanes.step(np.zeros(2, int))


# -- infos of the user's own under names that the library uses ---------------------------------------------------------

NAMES = (
    "healed",
    "final_action_mask",
    "final_info",
    "final_obs",
    "final_observation",
    "present",
    "active_agent",
    "terminal_observation",
)


class Named(gymnasium.Env[Any, Any]):
    """A clock of five steps whose infos have a true value under one name."""

    observation_space, action_space = OBS, ACTIONS

    def __init__(self, name: str = "healed", value: Any = 1.0) -> None:
        self.name, self.value = name, value

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return np.full(1, self.time, np.float32), 1.0, self.time >= 5, False, {self.name: self.value}


WAYS: dict[str, Any] = {
    "single": lambda make: make(),
    "make_vect_envs": lambda make: make_vect_envs(make_env=make, num_envs=4),
    "healing": lambda make: make_vect_envs(make_env=make, num_envs=4, healing=True),
    "next step": lambda make: SyncVectorEnv([make] * 4),
    "disabled": lambda make: SyncVectorEnv([make] * 4, autoreset_mode=AutoresetMode.DISABLED),
}


@pytest.mark.parametrize("value", [1.0, True, np.array([1, 0])], ids=repr)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", [way for way in WAYS if way != "healing"])
def test_an_info_of_the_users_own_is_no_mark(way: str, name: str, value: Any) -> None:
    lanes = as_lanes(WAYS[way](lambda: Named(name, value)))
    lanes.reset()
    rewards, ends = np.zeros(lanes.num_lanes), 0
    for _ in range(12):
        batch = lanes.step(np.zeros(lanes.num_lanes, int))
        rewards += batch.reward
        ends += int((batch.terminated & batch.mask).sum())
        assert batch.healed is None
        assert not batch.truncated.any()
    steps_lost = 2 if way == "next step" else 0  # the reset steps after two episodes
    assert rewards.tolist() == [12 - steps_lost] * lanes.num_lanes
    assert ends == 2 * lanes.num_lanes


@pytest.mark.parametrize("way", ["single", "make_vect_envs", "next step", "disabled"])
def test_training_with_healed_in_the_infos_keeps_every_step(way: str) -> None:
    env = WAYS[way](Named)
    lanes = getattr(env, "num_envs", 1)
    steps = 120
    memory = train_on(env)
    resets = (steps // lanes) // 6 * lanes if way == "next step" else 0
    assert len(memory) == steps - resets


def test_a_run_with_healed_in_the_infos_plays_whole_episodes() -> None:
    run = agilerl.train(Named, "DQN", population=1, steps=100, evo_steps=100, out=None, verbose=False, num_envs=2)
    assert run.history == [[5.0]]


# -- spaces as methods -------------------------------------------------------------------------------------------------


class ByMethod:
    """A vector environment of no class of Gymnasium whose spaces are methods."""

    num_envs, metadata, render_mode, spec = 2, {"autoreset_mode": AutoresetMode.NEXT_STEP}, None, None

    def single_observation_space(self) -> Any:
        return OBS

    def single_action_space(self) -> Any:
        return ACTIONS

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((2, 1), np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros((2, 1), np.float32), np.ones(2), np.zeros(2, bool), np.ones(2, bool), {}

    def close(self) -> None: ...


def test_spaces_of_a_vector_may_be_methods() -> None:
    lanes = VectorLanes(ByMethod())
    assert (lanes.single_observation_space, lanes.single_action_space) == (OBS, ACTIONS)
    pop = create_population("DQN", observation_space=OBS, action_space=ACTIONS, population_size=1, num_envs=2)
    assert pop[0].test(ByMethod(), max_steps=5) == 1.0
