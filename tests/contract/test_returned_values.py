"""Whatever an environment returns is read right, or is an error that names it, the method, what was got and expected.

A matrix: {observation, reward, terminated, truncated, info} x {None, wrong shape, not finite, list, tensor, object
array, text, ...} x {single, bare object, vector, team, vector of teams}.
"""

from __future__ import annotations

from decimal import Decimal
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from agilerl.envs.adapters import VectorLanes
from agilerl.envs.step import as_lanes
from agilerl.envs.teams import TeamLanes
from agilerl.errors import EnvError
from agilerl.vector import SyncPettingZooVecEnv

OBS, ACTIONS = spaces.Box(-9, 9, (2,), np.float32), spaces.Discrete(2)
GOOD: dict[str, Any] = {
    "obs": np.ones(2, np.float32), "reward": 1.0, "terminated": False, "truncated": False, "info": {},
}  # fmt: skip
NAN, INF = float("nan"), float("inf")
WRONG = object()  # an EnvError is the right answer

# part -> name -> (what one environment gives, what is read of it)
CASES: dict[str, dict[str, tuple[Any, Any]]] = {
    "obs": {
        "None": (None, WRONG),
        "shape": (np.ones(3, np.float32), WRONG),
        "nan": (np.array([NAN, 1], np.float32), WRONG),
        "inf": (np.array([1, -INF], np.float32), WRONG),
        "list": ([1, 2.5], [1, 2.5]),
        "integers": (np.array([1, 2]), [1, 2]),
        "tensor": (torch.tensor([1.0, 2.5]), [1, 2.5]),
        "tensor with gradient": (torch.tensor([1.0, 2.5], requires_grad=True), [1, 2.5]),
        "bfloat16": (torch.tensor([1.0, 2.5], dtype=torch.bfloat16), [1, 2.5]),
        "objects": (np.array([1.0, None], dtype=object), WRONG),
        "text": ("1 2", WRONG),
        "complex": (np.array([1j, 2]), WRONG),
        "ragged": ([[1.0], [1.0, 2.0]], WRONG),
    },
    "reward": {
        "None": (None, WRONG),
        "shape": ([1.0, 2.0], WRONG),
        "nan": (NAN, WRONG),
        "inf": (-INF, WRONG),
        "list": ([2.5], 2.5),
        "array": (np.array(2.5), 2.5),
        "integer": (2, 2.0),
        "boolean": (True, 1.0),
        "tensor with gradient": (torch.tensor(2.5, requires_grad=True), 2.5),
        "tensor of one": (torch.tensor([2.5]), 2.5),
        "objects": (np.array([None], dtype=object), WRONG),
        "decimal": (Decimal("2.5"), WRONG),
        "text": ("2.5", WRONG),
        "ragged": ([[1.0], [1.0, 2.0]], WRONG),
    },
    "flag": {
        "None": (None, WRONG),
        "shape": ([True, False], WRONG),
        "nan": (NAN, WRONG),
        "two": (2, WRONG),
        "text": ("False", WRONG),
        "list": ([True], True),
        "numpy": (np.bool_(True), True),
        "one": (1, True),
        "zero": (0.0, False),
        "tensor": (torch.tensor(True), True),
        "tensor of one": (torch.tensor([False]), False),
        "objects": (np.array([None], dtype=object), WRONG),
    },
    "info": {
        "None": (None, {}),
        "mapping": (MappingProxyType({"x": 1}), {}),
        "list": ([1, 2, 3], WRONG),
        "array": (np.ones(2), WRONG),
        "tensor": (torch.ones(2), WRONG),
        "text": ("masks", WRONG),
        "number": (NAN, WRONG),
        "objects": (np.array([None, 1], dtype=object), WRONG),
    },
}
MATRIX = [
    (part, name, call)
    for part in ("obs", "reward", "terminated", "truncated", "info")
    for name in CASES["flag" if part in ("terminated", "truncated") else part]
    for call in (("reset", "step") if part in ("obs", "info") else ("step",))
]


class Single(gymnasium.Env[Any, Any]):
    """Gives `given` in the step, or in the reset, else what is right."""

    observation_space, action_space = OBS, ACTIONS

    def __init__(self, given: dict[str, Any], call: str) -> None:
        self.given, self.call = given, call

    def told(self, call: str) -> dict[str, Any]:
        return {**GOOD, **(self.given if call == self.call else {})}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        told = self.told("reset")
        return told["obs"], told["info"]

    def step(self, action: Any) -> Any:
        return tuple(self.told("step")[part] for part in GOOD)


class Bare:
    """As `Single`, of no class of Gymnasium."""

    observation_space, action_space = OBS, ACTIONS

    def __init__(self, given: dict[str, Any], call: str) -> None:
        self.inner = Single(given, call)

    def reset(self) -> Any:
        return self.inner.reset()

    def step(self, action: Any) -> Any:
        return self.inner.step(action)


class Vector(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Two environments; the second one gives what is asked for, as far as one array or list can hold both."""

    num_envs = 2
    single_observation_space, single_action_space = OBS, ACTIONS
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, given: dict[str, Any], call: str) -> None:
        self.inner = Single(given, call)

    def told(self, call: str) -> dict[str, Any]:
        told = self.inner.told(call)
        both = {part: self.both(GOOD[part], told[part]) for part in GOOD if part != "info"}
        return {**both, "info": told["info"]}

    @staticmethod
    def both(one: Any, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            first = torch.as_tensor(one, dtype=other.dtype).reshape(other.shape)
            return torch.stack([first, other])
        return [[one] if isinstance(other, list) and len(other) == 1 else one, other]

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        told = self.told("reset")
        return told["obs"], told["info"]

    def step(self, actions: Any) -> Any:
        return tuple(self.told("step")[part] for part in GOOD)


class Team:
    """Two agents; what is asked for is of the second one."""

    metadata: dict[str, Any] = {}  # noqa: RUF012
    render_mode = None
    possible_agents = ["a", "b"]  # noqa: RUF012

    def __init__(self, given: dict[str, Any], call: str) -> None:
        self.inner = Single(given, call)

    def observation_space(self, agent: str) -> Any:
        return OBS

    def action_space(self, agent: str) -> Any:
        return ACTIONS

    def told(self, call: str) -> dict[str, Any]:
        told = self.inner.told(call)
        return {part: {"a": GOOD[part], "b": told[part]} for part in GOOD}

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.agents = ["a", "b"]
        told = self.told("reset")
        return told["obs"], told["info"]

    def step(self, actions: Any) -> Any:
        return tuple(self.told("step")[part] for part in GOOD)

    def close(self) -> None:
        pass


def team_lanes(given: dict[str, Any], call: str) -> Any:
    return TeamLanes([lambda: Team(given, call)])


def team_vector(given: dict[str, Any], call: str) -> Any:
    return SyncPettingZooVecEnv([lambda: Team(given, call)] * 2).lanes


KINDS: dict[str, tuple[str, Any]] = {
    "single": ("Single, lane 0: ", lambda given, call: as_lanes(Single(given, call))),
    "bare": ("Bare, lane 0: ", lambda given, call: as_lanes(Bare(given, call))),
    "vector": ("test_returned_values.Vector", lambda given, call: VectorLanes(Vector(given, call))),
    "team": ("Team, ", team_lanes),
    "vector of teams": ("Team, ", team_vector),
}


def read(kind: str, lanes: Any, call: str) -> dict[str, Any]:
    """What the lanes make of the last row."""
    obs, info = lanes.reset()
    is_team = "team" in kind
    rows, batch = obs, None
    if call == "step":
        batch = lanes.step(np.zeros((lanes.num_lanes, 2) if is_team else lanes.num_lanes, np.int64))
        rows = batch.final_obs
    seen = rows["agents"]["b"][-1] if is_team else rows[-1]
    if batch is None:
        return {"obs": seen, "info": info}
    told = batch.team if is_team else batch
    last = (-1, -1) if is_team else -1
    flags = {name: bool(getattr(told, name)[last]) for name in ("terminated", "truncated")}
    return {"obs": seen, "reward": float(told.reward[last]), **flags, "info": batch.info}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("part", "name", "call"), MATRIX)
def test_what_is_returned_is_read_right_or_named(part: str, name: str, kind: str, call: str) -> None:
    value, expected = CASES["flag" if part in ("terminated", "truncated") else part][name]
    where, make = KINDS[kind]
    lanes = make({part: value}, call)
    if (part, name) == ("obs", "None") and "team" in kind:  # an agent that is not observed is absent
        obs, _ = lanes.reset()
        if call == "step":
            obs = lanes.step(np.zeros((lanes.num_lanes, 2))).obs
        assert obs["present"].tolist() == [[1, 0]] * lanes.num_lanes
        return
    if expected is WRONG:
        with pytest.raises(EnvError) as caught:
            read(kind, lanes, call)
        message = str(caught.value)
        assert message.startswith(where)
        assert f"{call}()" in message
        assert "; expected " in message or "not finite" in message or "no observation" in message
        assert message.count("fix: ") == 1
        assert len(message) < 600
        return
    got = read(kind, lanes, call)[part]
    if part == "obs":
        assert isinstance(got, np.ndarray)
        assert got.tolist() == expected
    else:
        assert got == (dict(value or {}) if part == "info" and kind == "vector" else expected)


PARTS = ("observations", "rewards", "terminations", "truncations", "infos")


@pytest.mark.parametrize("value", [None, [1, 2], np.ones(2), 1.0, "ab", torch.ones(2)], ids=repr)
@pytest.mark.parametrize("number", range(5))
def test_what_a_team_returns_by_agent_is_a_dictionary(number: int, value: Any) -> None:
    class Odd(Team):
        def step(self, actions: Any) -> Any:
            given = list(super().step(actions))
            given[number] = value
            return tuple(given)

    lanes = TeamLanes([lambda: Odd({}, "step")])
    lanes.reset()
    if number == 4 and value is None:
        assert lanes.step(np.zeros((1, 2))).reward.tolist() == [2.0]
        return
    with pytest.raises(
        EnvError, match=rf"^Odd, lane 0: step\(\) gave {PARTS[number]} = .*; expected a dictionary.*fix:"
    ):
        lanes.step(np.zeros((1, 2)))


# -- infos of vectors as a list, as SuperSuit and Stable-Baselines3 give them ------------------------------------------


class Listing(Vector):
    """Resets in the same step, which it does not declare; infos are a list of dictionaries (SuperSuit's form).

    Observations are [episode step, lane]; episodes have 3 and 4 steps; the actions legal next alternate.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
    lengths = np.array([3, 4])

    def __init__(self) -> None:
        super().__init__({}, "step")

    def seen(self) -> np.ndarray:
        return np.stack([self.time, np.arange(2)], 1).astype(np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.time = np.zeros(2, int)
        return self.seen(), [{"action_mask": np.array([1, 1])} for _ in range(2)]

    def step(self, actions: Any) -> Any:
        self.time += 1
        over, final = self.time == self.lengths, self.seen()
        infos: list[dict[str, Any]] = [{"action_mask": np.array([t % 2, 1])} for t in self.time]
        for lane in np.flatnonzero(over):
            infos[lane] = {"terminal_observation": final[lane], "action_mask": np.array([1, 1])}
        self.time[over] = 0
        return self.seen(), final[:, 0].astype(float), over, np.zeros(2, np.uint8), infos


def test_a_list_of_infos_is_read_with_final_observations_and_masks() -> None:
    lanes = as_lanes(Listing())
    _, info = lanes.reset()
    assert np.stack(list(info["action_mask"])).tolist() == [[1, 1], [1, 1]]
    for step in range(1, 13):
        batch = lanes.step(np.zeros(2, int))
        time = np.array([(step - 1) % 3 + 1, (step - 1) % 4 + 1])
        over = time == [3, 4]
        assert batch.mask.tolist() == [True, True], "it resets in the same step: every row is a transition"
        assert batch.final_obs.tolist() == [[time[0], 0], [time[1], 1]]
        assert batch.obs[:, 0].tolist() == np.where(over, 0, time).tolist()
        assert batch.reward.tolist() == time.tolist()
        assert batch.terminated.tolist() == over.tolist()
        assert list(batch.info["action_mask"][0]) == ([1, 1] if over[0] else [time[0] % 2, 1])


def test_a_list_of_infos_of_another_length_is_named() -> None:
    class Short(Listing):
        def step(self, actions: Any) -> Any:
            *rest, infos = super().step(actions)
            return *rest, infos[:1]

    lanes = as_lanes(Short())
    lanes.reset()
    with pytest.raises(EnvError, match=r"Short: step\(\) gave 1 infos; expected one for each of 2 environments\. fix:"):
        lanes.step(np.zeros(2, int))


@pytest.mark.parametrize("final", [np.ones(3), None, "end", np.ones((2, 2))], ids=repr)
def test_a_final_observation_of_another_form_is_named(final: Any) -> None:
    class Odd(Listing):
        def step(self, actions: Any) -> Any:
            *rest, infos = super().step(actions)
            for info in infos:
                info.update({"terminal_observation": final} if "terminal_observation" in info else {})
            return *rest, infos

    lanes = as_lanes(Odd())
    lanes.reset()
    for _ in range(2):
        lanes.step(np.zeros(2, int))
    with pytest.raises(EnvError, match=r"Odd: info\['terminal_observation'\] of environment 0, which has ended, is no"):
        lanes.step(np.zeros(2, int))
