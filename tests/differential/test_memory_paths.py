"""DQN by each path of the memory in float64: from the environments' log to the weights, in plain torch.

The reference makes transitions, returns of several steps, priorities, draws and importance weights of its own; taken
from the run are the uniform numbers, and in which order the memory holds the transitions.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from agilerl.algorithms import DQN
from agilerl.components.replay_buffer import MultiStepReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs

LANES, BATCH, STEPS, FIRST, GAMMA, LR, TAU, N_STEP, ALPHA, BETA = 2, 6, 65, 14, 0.9, 2e-3, 0.05, 3, 0.6, 0.4
NET = {"encoder_config": {"hidden_size": [12]}, "head_config": {"hidden_size": [12]}, "latent_dim": 8}


@dataclass
class Step:
    obs: np.ndarray
    action: int
    reward: float
    later: np.ndarray
    terminated: bool
    truncated: bool


class Logged(gym.Env[np.ndarray, int]):
    """Episodes of one to nine steps, of which some end and some are cut; no two observations are alike."""

    observation_space = gym.spaces.Box(-10.0, 10.0, (3,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, lane: int, log: list[Step]) -> None:
        self.lane, self.log, self.shown = lane, log, 0
        self.rng = np.random.default_rng(lane)

    def _next(self) -> np.ndarray:
        self.shown += 1
        return np.array([(self.shown * 8 + self.lane) / 512, *self.rng.uniform(-1, 1, 2)], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.left, self.obs = int(self.rng.integers(1, 10)), self._next()
        return self.obs, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        before, self.obs, over = self.obs, self._next(), self.left == 0
        is_cut = over and self.shown % 2 == 0
        self.log.append(
            Step(before, int(action), float(self.rng.integers(-8, 9)) / 8, self.obs, over and not is_cut, is_cut)
        )
        return self.obs, self.log[-1].reward, over and not is_cut, is_cut, {}


@dataclass
class Draw:
    """One call of the memory: uniform numbers, the rows that it drew, first observations of all of its rows, and how
    many vector steps there had been."""

    numbers: np.ndarray
    rows: np.ndarray
    held: list[float]
    vector_steps: int


@dataclass
class Watch:
    draws: list[Draw] = field(default_factory=list)
    vector_steps: int = 0

    def count(self, memory: Any) -> None:
        """Count the vector steps that are written into the memory."""
        write = memory.write

        def counted(*row: Any, **more: Any) -> Any:
            self.vector_steps += 1
            return write(*row, **more)

        memory.write = counted

    def into(self, memory: Any) -> Any:
        """The memory, of which every draw is noted."""
        draw = memory.sample_indices

        def noted(rng: np.random.Generator, shape: Any) -> np.ndarray:
            twin = copy.deepcopy(rng)
            found: np.ndarray = draw(rng, shape)
            held = memory.gather(np.arange(len(memory)))["obs"][:, 0].tolist()
            self.draws.append(Draw(twin.random(shape), found, held, self.vector_steps))
            return found

        memory.sample_indices = noted
        return memory


Transition = tuple[np.ndarray, int, float, np.ndarray, float]


def transitions(lane: list[Step], steps: int) -> dict[float, Transition]:
    """By its first observation, (s, a, Σ γ^k r, s', γ^n or 0 where the episode ends within n steps)."""
    found = {}
    for t, first in enumerate(lane):
        total, last = 0.0, t
        for k, step in enumerate(lane[t : t + steps]):
            total, last = total + GAMMA**k * step.reward, t + k
            if step.terminated or step.truncated:
                break
        discount = 0.0 if lane[last].terminated else GAMMA ** (last - t + 1)
        found[float(first.obs[0])] = (first.obs, first.action, total, lane[last].later, discount)
    return found


class Priorities:
    """Proportional ones of Schaul et al. 2016, arXiv:1511.05952, equation 1 and section 3.4, by plain sums."""

    def __init__(self) -> None:
        self.scaled: dict[float, float] = {}
        self.largest = 1.0

    def draw(self, draw: Draw) -> np.ndarray:
        for key in draw.held:  # new rows are drawn like the most surprising one so far
            self.scaled.setdefault(key, self.largest**ALPHA)
        sums = np.cumsum([self.scaled[key] for key in draw.held])
        return np.searchsorted(sums, draw.numbers * sums[-1], side="right")

    def weights(self, keys: list[float], beta: float) -> torch.Tensor:
        return torch.tensor(
            [(min(self.scaled.values()) / self.scaled[key]) ** beta for key in keys], dtype=torch.float64
        )

    def update(self, keys: list[float], errors: torch.Tensor) -> None:
        for key, error in zip(keys, errors.tolist(), strict=True):
            self.scaled[key] = max(error, 1e-5) ** ALPHA
            self.largest = max(self.largest, error)


def plain(agent: DQN, log: list[list[Step]], draws: list[Draw], steps: int, by_priority: bool) -> None:
    """Mnih et al. 2015 with soft targets, on n-step returns (Sutton 1988) where `steps` is more than 1."""
    known: dict[float, Transition] = {}
    for lane in log:
        known |= transitions(lane, steps)
    optimizer, priorities = torch.optim.Adam(agent.actor.parameters(), lr=LR), Priorities()
    for draw in draws:
        rows = priorities.draw(draw)[0] if by_priority else draw.rows[0, :]
        rows = rows.reshape(-1)
        assert rows.tolist() == draw.rows.reshape(-1).tolist()
        keys = [draw.held[row] for row in rows]
        obs, action, reward, later, discount = (
            torch.tensor(np.array(x)) for x in zip(*(known[key] for key in keys), strict=True)
        )
        beta = BETA + (1 - BETA) * draw.vector_steps / STEPS  # 1 with the last step of the run
        weight = priorities.weights(keys, beta) if by_priority else torch.ones(BATCH).double()
        with torch.no_grad():
            y = reward + discount * agent.actor_target(later.double()).max(1).values
        error = agent.actor(obs.double())[torch.arange(BATCH), action] - y
        optimizer.zero_grad()
        (weight * error.square()).mean().backward()
        optimizer.step()
        if by_priority:
            priorities.update(keys, error.detach().abs())
        with torch.no_grad():
            for p, q in zip(agent.actor_target.parameters(), agent.actor.parameters(), strict=True):
                p.lerp_(q, TAU)


def memories(path: str) -> dict[str, Any]:
    size = {"max_size": 500, "dtype": torch.float64}
    several = MultiStepReplayBuffer(n_step=N_STEP, gamma=GAMMA, **size)
    if path == "n-step":
        return {"memory": several, "n_step": True}
    plain_one = PrioritizedReplayBuffer(alpha=ALPHA, **size) if "priority" in path else ReplayBuffer(**size)
    both = {"n_step_memory": several, "n_step": True} if path == "n-step by priority" else {}
    return {"memory": plain_one, "per": "priority" in path, **both}


@pytest.mark.parametrize("path", ["uniform", "n-step", "by priority", "n-step by priority"])
def test_a_run_ends_with_the_weights_that_its_environments_log_teaches(path: str) -> None:
    log: list[list[Step]] = []

    def make() -> Logged:
        log.append([])
        return Logged(len(log), log[-1])

    watch = Watch()
    env = make_vect_envs(make_env=make, num_envs=LANES, should_async_vector=False)
    space = Logged.observation_space, Logged.action_space
    agent = DQN(*space, net_config=NET, batch_size=BATCH, lr=LR, gamma=GAMMA, tau=TAU, learn_step=LANES, seed=1)
    for network in (agent.actor, agent.actor_target):
        network.double()
    agent.reinit_optimizers()
    twin = agent.clone()
    given = memories(path)
    watch.into(given["memory"])
    watch.count(given.get("n_step_memory", given["memory"]))
    train_off_policy(
        env, "Logged", pop=[agent], max_steps=LANES * STEPS, evo_steps=LANES * STEPS, eval_steps=1, seed=2,
        learning_delay=FIRST, verbose=False, **given,
    )  # fmt: skip
    assert len(watch.draws) >= 50
    plain(twin, log, watch.draws, N_STEP if "n-step" in path else 1, "priority" in path)
    for p, q in zip(agent.actor.parameters(), twin.actor.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-10)
