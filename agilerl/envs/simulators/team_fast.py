"""Two mpe2 environments vectorised in NumPy, bit-identical to the originals.

The particles are damped points of mass 1 driven by forces, in steps of 0.1 s. Observations are differences of
positions; messages arrive one step later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import Space, spaces
from gymnasium.utils import seeding

from agilerl.envs.lanes import check_seeds
from agilerl.envs.protocol import AGENTS, PRESENT, STATE, StepBatch, TeamStep
from agilerl.envs.simulators.team_boards import BOARDS
from agilerl.envs.team import Team
from agilerl.errors import EnvError

SECONDS, KEPT_SPEED, SENSITIVITY = 0.1, 1 - 0.25, 5.0
MOVES = SENSITIVITY * np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], np.float64)  # force of each action


class ParticleLanes:
    """L multi-agent environments with array states: implements seeds, time limit, resets, idling and checks.

    A subclass implements `_draw` (a lane's initial state), `_move` (the dynamics), `_show` and the spaces. Each lane
    has the generator that the environment would have for its seed.

    Args:
        num_lanes: L. reset_ended: see `SyncLanes`. continuous_actions: see mpe2. with_state: see `TeamLanes`.
    """

    backend: str
    env_id: str
    agents: ClassVar[tuple[str, ...]]
    seen: ClassVar[tuple[int, ...]]  # size of each agent's observation
    choices: ClassVar[tuple[int, ...]]
    keywords: ClassVar[frozenset[str]] = frozenset({"continuous_actions"})  # supported environment keywords
    limit = 25

    def __init__(
        self,
        num_lanes: int,
        *,
        reset_ended: bool = True,
        continuous_actions: bool = False,
        with_state: bool = False,
    ) -> None:
        self.num_lanes, self.reset_ended = num_lanes, reset_ended
        self.is_continuous, self.with_state = continuous_actions, with_state
        infinite = np.float32(np.inf)
        observed = {a: spaces.Box(-infinite, infinite, (n,)) for a, n in zip(self.agents, self.seen, strict=True)}
        acted: dict[str, Space[Any]] = {
            agent: spaces.Box(0, 1, (n,)) if continuous_actions else spaces.Discrete(n)
            for agent, n in zip(self.agents, self.choices, strict=True)
        }
        state = spaces.Box(-infinite, infinite, (sum(self.seen),)) if with_state else None
        self.team = Team(self.agents, observed, acted, state)
        self.single_observation_space: Space[Any] = self.team.observation_space
        self.single_action_space: Space[Any] = self.team.action_space
        self._generators = [seeding.np_random()[0] for _ in range(num_lanes)]
        self._state: dict[str, np.ndarray] = {}
        self._elapsed = np.zeros(num_lanes, np.int64)

    def _draw(self, rng: np.random.Generator) -> dict[str, Any]:
        """Sample the initial state of one lane as the environment does."""
        raise NotImplementedError

    def _move(self, state: Mapping[str, np.ndarray], actions: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return (states after one step, rewards [L, M] float64)."""
        raise NotImplementedError

    def _show(self, state: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return each agent's observations [L, O] float32."""
        raise NotImplementedError

    def _observe(self, state: Mapping[str, np.ndarray]) -> Any:
        views = self._show(state)
        shown = dict(zip(self.agents, views, strict=True))
        obs: dict[str, Any] = {
            AGENTS: {agent: shown[agent] for agent in sorted(shown)},
            PRESENT: np.ones((len(views[0]), len(views)), np.int8),
        }
        return {**obs, STATE: np.concatenate(views, 1)} if self.with_state else obs

    def reset(self, seeds: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]:
        numbers = check_seeds(seeds, self.num_lanes)
        if numbers is not None:
            self._generators = [seeding.np_random(number)[0] for number in numbers]
        starts = [self._draw(rng) for rng in self._generators]
        self._state = {name: np.stack([start[name] for start in starts]) for name in starts[0]}
        self._elapsed = np.zeros(self.num_lanes, np.int64)
        return self._observe(self._state), {}

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepBatch:
        """Step the lanes; `actions` [L, A] in the format of `Team.join`."""
        if not self._state:
            raise EnvError("lanes must be reset before the first step. fix: call reset() first.")
        actions = self._check(np.asarray(actions))
        lanes, count = self.num_lanes, len(self.agents)
        mask = np.ones(lanes, bool) if active is None else np.array(active, bool)
        state, reward = self._move(self._state, actions)
        if not mask.all():
            state = {name: _choose(mask, values, self._state[name]) for name, values in state.items()}
            reward = np.where(mask[:, None], reward, 0.0)
        self._elapsed += mask
        over = (self._elapsed >= self.limit) & mask
        final = self._observe(state)
        if self.reset_ended and over.any():
            state = {name: values.copy() for name, values in state.items()}
            for lane in np.flatnonzero(over).tolist():
                for name, value in self._draw(self._generators[lane]).items():
                    state[name][lane] = value
            self._elapsed[over] = 0
            obs = self._observe(state)
        else:
            obs = _copied(final)
        self._state = state
        terminated = np.zeros((lanes, count), bool)
        team = TeamStep(reward, terminated, np.repeat(over[:, None], count, 1), np.repeat(mask[:, None], count, 1))
        return StepBatch(obs, reward.sum(1), np.zeros(lanes, bool), over, final, mask, {}, team)

    def _check(self, actions: np.ndarray) -> np.ndarray:
        """Return discrete actions [L, M] int64, or components [L, A] float32."""
        if actions.shape != (self.num_lanes, self.team.width):
            raise self.team.wrong_rows(actions, self.num_lanes)
        if self.is_continuous:
            if not np.isfinite(actions).all():
                raise EnvError(f"{self.env_id} takes finite actions; got {actions.min()}..{actions.max()}.")
            return np.clip(actions.astype(np.float32), np.float32(0), np.float32(1))
        choices: np.ndarray = np.rint(actions).astype(np.int64)
        if choices.min() < 0 or (choices >= self.choices).any():
            raise EnvError(f"{self.env_id} takes choices below {self.choices}; got {choices.min()}..{choices.max()}.")
        return choices

    def _force(self, actions: np.ndarray, columns: slice) -> np.ndarray:
        """Return the force [L, 2] of one agent from its action in `columns`."""
        action = actions[:, columns]
        if not self.is_continuous:
            return np.asarray(MOVES[action[:, 0]])
        return np.stack([action[:, 2] - action[:, 1], action[:, 4] - action[:, 3]], 1).astype(np.float64) * SENSITIVITY

    def close(self) -> None:
        pass


def _choose(mask: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.where(mask.reshape(-1, *(1,) * (one.ndim - 1)), one, other)


def _copied(obs: dict[str, Any]) -> Any:
    copies = {name: part.copy() for name, part in obs.items() if name != AGENTS}
    return {AGENTS: {agent: rows.copy() for agent, rows in obs[AGENTS].items()}, **copies}


def _squared(differences: np.ndarray) -> np.ndarray:
    """Return squared lengths [...] of [..., 2]."""
    squares = np.square(differences)
    return np.asarray(squares[..., 0] + squares[..., 1])


def _glide(position: np.ndarray, speed: np.ndarray, force: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return position and speed after one semi-implicit step, in mpe2's order: position first, then speed."""
    return position + speed * SECONDS, speed * KEPT_SPEED + force * SECONDS


class SpeakerListenerLanes(ParticleLanes):
    """simple_speaker_listener_v4: one agent sees the goal and speaks, the other one moves and hears.

    State: position and speed of the listener, landmarks, goal, last message. Both get minus the squared distance from
    the listener to the goal.
    """

    backend, env_id = "speaker_listener", "mpe2.simple_speaker_listener_v4"
    agents, seen, choices = ("speaker_0", "listener_0"), (3, 11), (3, 5)
    COLORS = np.array([[0.65, 0.15, 0.15], [0.15, 0.65, 0.15], [0.15, 0.15, 0.65]])

    def _draw(self, rng: np.random.Generator) -> dict[str, Any]:
        goal = int(rng.integers(3))
        places = rng.uniform(-1, 1, (5, 2))  # speaker, listener, landmarks
        return {"at": places[1], "speed": np.zeros(2), "marks": places[2:], "goal": goal, "said": np.zeros(3)}

    def _move(self, state: Mapping[str, np.ndarray], actions: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        first = self.choices[0] if self.is_continuous else 1
        at, speed = _glide(state["at"], state["speed"], self._force(actions, slice(first, None)))
        message = actions[:, :3].astype(np.float64) if self.is_continuous else np.eye(3)[actions[:, 0]]
        goal = state["marks"][np.arange(len(at)), state["goal"]]
        return {**state, "at": at, "speed": speed, "said": message}, np.repeat(-_squared(at - goal)[:, None], 2, 1)

    def _show(self, state: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        count = len(state["at"])
        heard = np.empty((count, 11), np.float32)
        heard[:, :2], heard[:, 8:] = state["speed"], state["said"]
        heard[:, 2:8] = (state["marks"] - state["at"][:, None]).reshape(count, 6)
        return [self.COLORS[state["goal"]].astype(np.float32), heard]


class SpreadLanes(ParticleLanes):
    """simple_spread_v3: three agents cover three landmarks and avoid collisions.

    State: positions and speeds of the agents, landmarks. Each gets half of minus the distances from the landmarks to
    the nearest agents, and half a point less for each agent that it touches.
    """

    backend, env_id = "spread", "mpe2.simple_spread_v3"
    agents, seen, choices = ("agent_0", "agent_1", "agent_2"), (18, 18, 18), (5, 5, 5)
    OTHERS = np.array([[1, 2], [0, 2], [0, 1]])
    ONE, TWO = np.array([0, 0, 1]), np.array([1, 2, 2])  # the pairs, in the order of their collision forces
    OF_PAIR = np.array([[1.0, 1, 0], [1, 0, 1], [0, 1, 1]])  # membership of agents in pairs
    TOUCH, MARGIN, CONTACT = 0.15 + 0.15, 1e-3, 1e2

    def _draw(self, rng: np.random.Generator) -> dict[str, Any]:
        places = rng.uniform(-1, 1, (6, 2))  # agents, landmarks
        return {"at": places[:3], "speed": np.zeros((3, 2)), "marks": places[3:]}

    def _move(self, state: Mapping[str, np.ndarray], actions: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        at = state["at"]
        if self.is_continuous:
            control = np.stack([self._force(actions, slice(5 * k, 5 * k + 5)) for k in range(3)], 1)
        else:
            control = MOVES[actions]
        apart = at[:, self.ONE] - at[:, self.TWO]
        distance = np.sqrt(_squared(apart))
        depth = np.logaddexp(0, -(distance - self.TOUCH) / self.MARGIN) * self.MARGIN
        push = self.CONTACT * apart / distance[..., None] * depth[..., None]
        first, second, third = push[:, 0], push[:, 1], push[:, 2]
        force = np.stack(
            [second + (first + control[:, 0]), third + (-first + control[:, 1]), -third + (-second + control[:, 2])], 1
        )  # summed pair by pair, for the same rounding
        at, speed = _glide(at, state["speed"], force)
        near = np.sqrt(_squared(at[:, :, None] - state["marks"][:, None])).min(1)
        shared = -near[:, 0] - near[:, 1] - near[:, 2]
        touch = np.sqrt(_squared(at[:, self.ONE] - at[:, self.TWO])) < self.TOUCH
        alone = -(touch.astype(np.float64) @ self.OF_PAIR)
        return {**state, "at": at, "speed": speed}, shared[:, None] * (1 - 0.5) + alone * 0.5

    def _show(self, state: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        at, count = state["at"], len(state["at"])
        rows = np.zeros((count, 3, 18), np.float32)
        rows[..., :2], rows[..., 2:4] = state["speed"], at
        rows[..., 4:10] = (state["marks"][:, None] - at[:, :, None]).reshape(count, 3, 6)
        rows[..., 10:14] = (at[:, self.OTHERS] - at[:, :, None]).reshape(count, 3, 4)
        return [np.ascontiguousarray(rows[:, k]) for k in range(3)]


# Ids with a vectorised implementation; tests/unit/envs/test_team_fast.py and test_team_boards.py cover this table.
FAST_TEAMS: dict[str | None, Any] = {
    **{lanes.env_id: lanes for lanes in (SpeakerListenerLanes, SpreadLanes)},
    **BOARDS,
}
