"""Recurrent PPO on Dict and Tuple observations: an LSTM over their parts, laid side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from small_envs import Episodes

import agilerl
from agilerl.algorithms import IPPO, PPO
from agilerl.core import tree as trees
from agilerl.errors import ConfigError
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import make_vect_envs

PARTS = spaces.Dict(
    {
        "cue": spaces.Discrete(3),
        "rest": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.MultiBinary(2))),
    }
)
FLAT = spaces.Box(-1, 1, (3 + 2 + 2,), np.float32)
DENSE = {"hidden_size": [16], "min_mlp_nodes": 4}
NET = {"latent_dim": 16, "encoder_config": {"hidden_state_size": 16}, "head_config": DENSE}


def observations(count: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    box, bits = rng.uniform(-1, 1, (count, 2)).astype(np.float32), rng.integers(0, 2, (count, 2)).astype(np.int8)
    return {"cue": rng.integers(0, 3, count), "rest": (box, bits)}


def side_by_side(obs: dict[str, Any]) -> np.ndarray:
    box, bits = obs["rest"]
    return np.concatenate([np.eye(3)[obs["cue"]], box, bits], -1).astype(np.float32)


@pytest.mark.parametrize("shared", [False, True])
def test_the_lstm_reads_what_a_vector_of_all_parts_holds(shared: bool) -> None:
    nested, flat = (
        PPO(space, spaces.Discrete(3), net_config=NET, recurrent=True, share_encoders=shared, seed=1)
        for space in (PARTS, FLAT)
    )
    obs, hidden, other = observations(5), None, None
    for _ in range(3):  # the memory goes on alike, too
        *one, hidden = nested.get_action(obs, hidden_state=hidden, training=False)
        *two, other = flat.get_action(side_by_side(obs), hidden_state=other, training=False)
        for x, y in zip(one, two, strict=True):
            np.testing.assert_array_equal(x, y)
        for key, part in hidden.items():
            assert torch.equal(part, other[key])
    large = spaces.Dict({"camera": spaces.Box(0, 255, (64, 64, 3), np.uint8)})
    with pytest.raises(ConfigError, match=r"EvolvableLSTM reads the parts of Dict\(camera.*fix: images of at most 16"):
        PPO(large, spaces.Discrete(3), net_config=NET, recurrent=True)


class Recall(Episodes):
    """The cue of the first step is the right action of the last one, in which it cannot be seen."""

    observation_space, action_space, length = PARTS, spaces.Discrete(2), 3

    def observe(self) -> dict[str, Any]:
        self.cue = self.cue if self.age else int(self.np_random.integers(2))
        cue = 2 if self.age else self.cue
        return {"cue": cue, "rest": (np.array([self.age / 3, 0], np.float32), np.zeros(2, np.int8))}

    def reward(self, action: Any) -> float:
        return float(self.age == 3 and action == self.cue)


QUICK = {"lr": 1e-2, "batch_size": 16, "learn_step": 256, "update_epochs": 4, "ent_coef": 0.0, "max_seq_len": 8}


def members(count: int) -> list[Any]:
    return [
        PPO(PARTS, spaces.Discrete(2), i, net_config=NET, recurrent=True, num_envs=8, seed=i, **QUICK)
        for i in range(count)
    ]


def train(pop: list[Any], steps: int, **more: Any) -> list[Any]:
    given = {"max_steps": steps, "evo_steps": steps, "verbose": False, "seed": 3, "eval_steps": 8}
    env = make_vect_envs(make_env=Recall, num_envs=8)
    return train_on_policy(env, "Recall", pop=pop, tournament=None, mutation=None, **given, **more)[0]


@pytest.mark.thorough
def test_it_remembers_a_part() -> None:
    (agent,) = train(members(1), 8_192)
    assert agent.test(make_vect_envs(make_env=Recall, num_envs=20)) == 1.0  # 0.5 without a memory


@pytest.mark.thorough
def test_members_learn_alike_over_rows_and_alone() -> None:
    def run(learner: str) -> list[Any]:
        pop = members(2)
        for agent in pop:
            for name in agent.networks:
                getattr(agent, name).double()
        return train(pop, 512, learner=learner)

    for one, other in zip(run("fused"), run("sequential"), strict=True):
        for name, value in one.policy_state().items():
            torch.testing.assert_close(value, other.policy_state()[name], rtol=1e-9, atol=1e-10)


@pytest.mark.thorough
def test_a_run_by_manifest_is_loaded_and_a_team_remembers_its_parts_too(tmp_path: Any) -> None:
    more = {"population": 2, "steps": 256, "evo_steps": 128, "num_envs": 2, "eval_episodes": 2, "confirm_episodes": 2}
    more |= {"learn_step": 64, "batch_size": 8, "arch_mut": 0.6, "seed": 1, "verbose": False, "target_score": None}
    run = agilerl.train(Recall, "PPO", recurrent=True, out=tmp_path, **more)
    best = agilerl.load(run.path).best
    obs = observations(4)
    for x, y in zip(
        best.get_action(obs, training=False)[:3], run.best.get_action(obs, training=False)[:3], strict=True
    ):
        np.testing.assert_array_equal(x, y)
    team = IPPO([PARTS], [spaces.Discrete(2)], agent_ids=["one_0"], net_config=NET, recurrent=True, seed=1)
    found = team.get_action({"one_0": obs})
    assert len(found) == 5
    assert next(trees.leaves(found[4])).shape[1] == 4
