"""Short seeded runs against stored curves. `make golden-update` rewrites them; the commit says what changed and why.

The runs are in float64 and a few hundred updates long, so that another machine's rounding stays far below the
tolerance; a change of any formula, draw or order does not. `Track` computes with integers: the sine and cosine of
MountainCar-v0 have other last bits on another processor, which grew to 4e-5 of the weights.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import create_population, make_vect_envs

STORED = Path(__file__).with_name("curves.json")
CASES = {
    "cartpole-fused-evolved": {"env": "CartPole-v1", "learner": "fused", "evolution": True},
    "cartpole-sequential-evolved": {"env": "CartPole-v1", "learner": "sequential", "evolution": True},
    "track-one-after-another": {"env": "Track", "lockstep": False, "evolution": False},
}


class Track(gym.Env[np.ndarray, np.int64]):
    """Push a cart along a line of 64 cells to either end; its speed stays, within three cells a step."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell, self.speed = int(self.np_random.integers(24, 41)), 0
        return self._see(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.speed = max(-3, min(3, self.speed + int(action) - 1))
        self.cell = max(0, min(64, self.cell + self.speed))
        return self._see(), self.speed / 4, self.cell in (0, 64), False, {}

    def _see(self) -> np.ndarray:
        return np.array([self.cell / 32 - 1, self.speed / 4], np.float32)


def curve(env: str, evolution: bool, **options: Any) -> dict[str, Any]:
    """Fitness of every member and generation, and a checksum of the final weights."""
    vector = make_vect_envs(make_env=Track, num_envs=4) if env == "Track" else make_vect_envs(env, num_envs=4)
    population = create_population(
        "DQN",
        {"encoder_config": {"hidden_size": [16], "min_mlp_nodes": 4}, "head_config": {"hidden_size": [16]}},
        {"BATCH_SIZE": 32, "LEARN_STEP": 2, "LR": 1e-3, "TAU": 0.01, "DOUBLE": True},
        vector.single_observation_space,
        vector.single_action_space,
        hp_config=HyperparameterConfig(lr=RLParameter(min=1e-4, max=1e-2), batch_size=RLParameter(min=8, max=64)),
        population_size=3,
        seed=11,
    )
    for agent in population:
        agent.actor.double()
        agent.actor_target.double()
    evolve = {
        "tournament": TournamentSelection(2, True, 3, seed=11),
        "mutation": Mutations(0.2, 0.3, 0.3, 0.2, 0.1, 0.3, rand_seed=11),
    }
    trained, fitness = train_off_policy(
        vector,
        env,
        pop=population,
        memory=ReplayBuffer(max_size=2_000, dtype=torch.float64),
        max_steps=400,
        evo_steps=100,
        eval_steps=60,
        learning_delay=64,
        verbose=False,
        seed=11,
        **(evolve if evolution else {}),
        **options,
    )
    vector.close()
    return {
        "fitness": fitness,
        "labels": [str(agent.mut) for agent in trained],
        "networks": [agent.actor.describe() for agent in trained],
        "weight_sums": [float(sum(p.double().abs().sum() for p in agent.actor.parameters())) for agent in trained],
    }


@pytest.mark.parametrize("name", CASES)
def test_curve_is_the_stored_one(name: str) -> None:
    found = curve(**CASES[name])
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.is_file() else {}
    if os.environ.get("AGILERL_GOLDEN_UPDATE"):
        stored[name] = {**found, "torch": torch.__version__}
        STORED.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        return
    expected = stored[name]
    assert found["labels"] == expected["labels"]
    assert found["networks"] == expected["networks"]
    assert found["fitness"] == [pytest.approx(row, rel=1e-6) for row in expected["fitness"]]
    assert found["weight_sums"] == pytest.approx(expected["weight_sums"], rel=1e-6)
