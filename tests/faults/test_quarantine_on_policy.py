"""A PPO member that diverges: the others end as without it, and a copy of the fittest takes its place."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from agilerl.algorithms import PPO
from agilerl.collect.rollouts import OnPolicyCollector
from agilerl.core.options import LoopOptions
from agilerl.envs.vector import make_vect_envs
from agilerl.runs.request import RunRequest
from agilerl.telemetry.record import BaseSink
from agilerl.training.loop import LoopSettings, TrainingLoop

OBS = gym.spaces.Box(-10, 10, (3,), np.float32)
ACTIONS: dict[str, gym.Space[Any]] = {
    "Discrete": gym.spaces.Discrete(3),
    "MultiDiscrete": gym.spaces.MultiDiscrete([2, 3]),
    "MultiBinary": gym.spaces.MultiBinary(2),
    "Box": gym.spaces.Box(-1, 1, (2,), np.float32),
}


class Walk(gym.Env[np.ndarray, Any]):
    """Takes any action of its space and refuses what is none."""

    observation_space = OBS

    def __init__(self, action_space: gym.Space[Any]) -> None:
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.at = 0, self.np_random.normal(size=3).astype(np.float32)
        return self.at, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        flat = np.asarray(action, np.float64).ravel()
        assert np.isfinite(flat).all()
        self.time += 1
        self.at = np.clip(self.at + 0.1 * self.np_random.normal(size=3) + 0.1 * flat.sum(), -10, 10).astype(np.float32)
        return self.at, float(-abs(self.at[0])), False, self.time == 12, {}


class Said(BaseSink):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)


def trained(
    actions: gym.Space[Any], poisoned: bool, recurrent: bool, learner: str, normalise: bool
) -> tuple[list[PPO], TrainingLoop, list[str]]:
    """Three members after one generation; the second one begins with a weight that is no number."""
    encoder = {"hidden_state_size": 16} if recurrent else {"hidden_size": [16]}
    net = {"latent_dim": 16, "encoder_config": encoder, "head_config": {"hidden_size": [16]}}
    options: dict[str, Any] = {"recurrent": True, "use_rollout_buffer": True} if recurrent else {}
    agents = [
        PPO(OBS, actions, index=i, seed=i, net_config=net, learn_step=32, batch_size=16, update_epochs=2,
            normalize_observations=normalise, **options)
        for i in range(3)
    ]  # fmt: skip
    if poisoned:
        with torch.no_grad():
            next(agents[1].policy_module().parameters()).view(-1)[3] = math.nan
    env = make_vect_envs(make_env=lambda: Walk(actions), num_envs=2)
    asked = LoopOptions(max_steps=64, evo_steps=64, eval_episodes=2, learner=learner)
    said = Said()
    before = list(agents)
    loop = TrainingLoop(
        agents, OnPolicyCollector(env, asked), asked, LoopSettings(seed=4, request=RunRequest(sinks=[said]))
    )
    loop.run()
    env.close()
    return before, loop, said.lines


def bits(agent: PPO) -> list[torch.Tensor]:
    return [v for name in sorted(agent.registry.all_registered()) for v in getattr(agent, name).state_dict().values()]


@pytest.mark.parametrize("recurrent", [False, True], ids=["feed-forward", "recurrent"])
@pytest.mark.parametrize("kind", ACTIONS)
def test_the_others_end_as_without_it(kind: str, recurrent: bool) -> None:
    """Bit for bit. Recurrent ones to rounding: its resting lanes give sequences of other lengths, so that products over
    all members have another shape."""
    with_it, loop, said = trained(ACTIONS[kind], True, recurrent, "fused", False)
    without, _, _ = trained(ACTIONS[kind], False, recurrent, "fused", False)
    for slot in (0, 2):
        for one, other in zip(bits(with_it[slot]), bits(without[slot]), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5 if recurrent else 0)
    assert loop.result.history[0][1] == -math.inf
    assert loop.population[1] is not with_it[1]
    assert all(torch.isfinite(v).all() for v in bits(loop.population[1]))
    assert [b.kind for b in loop.result.births[3:]] == ["healed"]
    assert any("member 1 has diverged" in line for line in said)


@pytest.mark.parametrize("learner", ["fused", "sequential"])
def test_shared_statistics_take_nothing_from_it(learner: str) -> None:
    _, loop, _ = trained(ACTIONS["Discrete"], True, False, learner, True)
    sound = [agent.observation_statistics for agent in loop.population]
    assert {s.count for s in sound} == {64 * 2}
    assert all(np.isfinite(s["mean"]).all() and np.isfinite(s["var"]).all() for s in sound)
