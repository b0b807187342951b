"""Whole runs on data in float64: from the data's log to the weights after 50 updates, in plain torch.

Taken from the run are the rows that were drawn and the numbers of TD3BC's smoothing; what they mean is read from the
data as they were given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from off_policy_case import BOX, OBS, net_config
from test_offline import plain_bc, plain_iql, plain_td3bc

from agilerl.algorithms import BC, IQL, TD3BC
from agilerl.collect.offline import OfflineCollector
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.options import OfflineOptions
from agilerl.data.dataset import read_dataset
from agilerl.engine.protocol import TransitionBatch
from agilerl.training.loop import LoopSettings, TrainingLoop
from agilerl.utils.utils import make_vect_envs

ROWS, UPDATES, BATCH = 60, 50, 7


class Short(gym.Env[np.ndarray, np.ndarray]):
    """Episodes of one step, for the evaluation that a run ends with."""

    observation_space, action_space = OBS, BOX

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(5), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(5), 0.0, True, False, {}


@dataclass
class Log:
    rows: list[np.ndarray] = field(default_factory=list)
    noise: list[np.ndarray] = field(default_factory=list)


class Watched(ReplayBuffer):
    """A memory that notes which rows were drawn."""

    log: Log

    def sample_indices(self, rng: np.random.Generator, shape: Any) -> np.ndarray:
        found = super().sample_indices(rng, shape)
        self.log.rows += list(found)
        return found


def data() -> dict[str, np.ndarray]:
    """Numbers that float32 holds exactly, in the units of the environment; every fifth step ends, others are cut."""
    rng = np.random.default_rng(4)
    obs, later = (rng.normal(size=(ROWS, 5)).astype(np.float32).astype(float) for _ in range(2))
    return {
        "observations": obs, "next_observations": later, "rewards": rng.integers(-20, 21, ROWS) / 8,
        "actions": BOX.low + (BOX.high - BOX.low) * rng.integers(0, 65, (ROWS, 2)) / 64,
        "terminals": np.arange(ROWS) % 5 == 4, "timeouts": np.arange(ROWS) % 7 == 2,
    }  # fmt: skip


def read(log: Log, learned: Any) -> list[TransitionBatch]:
    """The batches of the run, from the data: actions in [-1, 1] over their range, rewards as `learned` says."""
    given, made = data(), []
    middle, half = (BOX.high + BOX.low) / 2, (BOX.high - BOX.low) / 2
    for k, rows in enumerate(log.rows):
        fields = (
            given["observations"][rows], (given["actions"][rows] - middle) / half, learned(given["rewards"][rows]),
            given["next_observations"][rows], given["terminals"][rows].astype(float), np.full(BATCH, 1 / BATCH),
        )  # fmt: skip
        noise = {"smoothing": torch.from_numpy(log.noise[k])} if log.noise else {}
        made.append(TransitionBatch(*map(torch.from_numpy, fields), noise=noise, number=k + 1))
    return made


OPTIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "as they are": ({}, lambda r: r),
    "scaled": ({"reward_scale": 0.25}, lambda r: 0.25 * r),
    "signs": ({"clip_rewards": True}, np.sign),
}
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "TD3BC": (TD3BC, plain_td3bc, {"lr_actor": 1e-3, "lr_critic": 2e-3, "tau": 0.05, "gamma": 0.9}),
    "IQL": (IQL, plain_iql, {"lr_actor": 1e-3, "lr_critic": 2e-3, "tau": 0.05, "gamma": 0.9, "expectile": 0.8}),
    "BC": (BC, plain_bc, {"lr": 1e-3}),
}


@pytest.mark.parametrize("rewards", OPTIONS)
@pytest.mark.parametrize("algo", ["TD3BC", "IQL"])
def test_a_run_on_data_ends_with_the_weights_of_the_paper(algo: str, rewards: str) -> None:
    check(algo, *OPTIONS[rewards])


def test_behaviour_cloning_on_data_ends_with_the_weights_of_plain_torch() -> None:
    check("BC", *OPTIONS["as they are"])


def check(algo: str, options: dict[str, Any], learned: Any) -> None:
    kind, plain, hyper = KINDS[algo]
    agent = kind(OBS, BOX, net_config=net_config(0), batch_size=BATCH, seed=1, **hyper)
    for name in agent.registry.all_registered():
        getattr(agent, name).double()
    agent.reinit_optimizers()
    twin, log = agent.clone(), Log()
    memory = Watched(max_size=ROWS, dtype=torch.float64)
    memory.log = log
    draw = agent.draw_noise

    def noted(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = draw(rng, shape)
        if shape[1] == BATCH and found:
            log.noise += list(found["smoothing"])
        return found

    agent.draw_noise = noted
    env = make_vect_envs(make_env=Short, num_envs=1, should_async_vector=False)
    asked = OfflineOptions(max_steps=UPDATES, evo_steps=UPDATES, eval_steps=1, **options)
    source = OfflineCollector(env, memory, asked, read_dataset(data()))
    TrainingLoop([agent], source, asked, LoopSettings(seed=3)).run()
    assert len(log.rows) == UPDATES
    plain(twin, read(log, learned))
    for name in agent.registry.all_registered():
        for p, q in zip(getattr(agent, name).parameters(), getattr(twin, name).parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")
