"""Bits and unbounded components for teams whose policies are distributions; a named error for those that are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from policy_files import alone
from small_envs import ParallelGame

from agilerl.algorithms import MADDPG, MATD3
from agilerl.algorithms.ippo import IPPO
from agilerl.algorithms.mappo import MAPPO
from agilerl.core.checkpoint import digest_tree
from agilerl.errors import AlgorithmError
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl.vector import SyncPettingZooVecEnv

NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 8}
IDS = ["coin_0", "dart_0"]
ACTED: dict[str, spaces.Space[Any]] = {
    "coin_0": spaces.MultiBinary(2), "dart_0": spaces.Box(-np.inf, np.inf, (1,), np.float32)
}  # fmt: skip
BOTH = pytest.mark.parametrize("cls", [IPPO, MAPPO])


class Fair(ParallelGame):
    """Two steps an episode. coin_0 gets 1 for each bit that repeats what it sees, dart_0 is 5 off its mark at first."""

    observed, acted, length = dict.fromkeys(IDS, spaces.Box(-1, 1, (2,))), ACTED, 2

    def observe(self) -> dict[str, np.ndarray]:
        self.bits = self.rng.integers(0, 2, 2)
        return dict.fromkeys(IDS, (2 * self.bits - 1).astype(np.float32))

    def rewards(self, actions: dict[str, Any]) -> dict[str, float]:
        coin, dart = actions["coin_0"], actions["dart_0"]
        assert (coin.shape, coin.dtype, dart.shape, dart.dtype) == ((2,), np.int8, (1,), np.float32)
        assert set(coin.tolist()) <= {0, 1}
        return {"coin_0": float((coin == self.bits).sum()), "dart_0": -abs(float(dart[0]) - 5.0)}


def population(cls: Any, size: int = 2, **more: Any) -> list[Any]:
    env = Fair()
    seen = {a: env.observation_space(a) for a in IDS}
    given = {"net_config": NET, "learn_step": 128, "batch_size": 32, "lr": 3e-3, **more}
    return [cls(seen, ACTED, index=i, seed=7 + i, **given) for i in range(size)]


def train(pop: list[Any], **more: Any) -> list[Any]:
    given = {"max_steps": 512, "evo_steps": 256, "verbose": False, "seed": 5, "tournament": None, "mutation": None}
    env = SyncPettingZooVecEnv([Fair] * 8)
    return train_multi_agent_on_policy(env, "Fair", pop=pop, **{**given, **more})[0]


@BOTH
def test_bits_are_bernoulli_and_open_components_normal_as_of_single_agents(cls: Any) -> None:
    (team,) = population(cls, 1)
    obs = {a: np.array([[0.3, -0.7], [1.0, 0.2]], np.float32) for a in IDS}
    actions, log_probs, entropies, _ = team.get_action(obs)
    outputs = {a: getattr(team, f"actors.{a[:-2]}").output(torch.from_numpy(obs[a])).detach() for a in IDS}
    coin = torch.distributions.Bernoulli(logits=outputs["coin_0"])
    mean, log_std = outputs["dart_0"].chunk(2, -1)
    dart = torch.distributions.Normal(mean, log_std.exp())
    given = {a: torch.as_tensor(actions[a], dtype=torch.float32) for a in IDS}
    for name, one in (("coin_0", coin), ("dart_0", dart)):
        np.testing.assert_allclose(log_probs[name], one.log_prob(given[name]).sum(-1), rtol=1e-5)
        np.testing.assert_allclose(entropies[name], one.entropy().sum(-1), rtol=1e-5)
    greedy = team.get_action(obs, training=False)[0]
    np.testing.assert_array_equal(greedy["coin_0"], (outputs["coin_0"] > 0).numpy())
    np.testing.assert_allclose(greedy["dart_0"], mean)
    far = team.environment_action(np.array([[1.0, 0.0, 123.0]], np.float32))
    assert far.tolist() == [[1.0, 0.0, 123.0]], "nothing is clipped where there are no bounds"
    random = team.random_action(np.random.default_rng(0), (500,))
    assert set(np.unique(np.rint(random[:, :2]))) == {0, 1}
    assert np.abs(random[:, 2]).max() <= 1


@BOTH
def test_bits_and_open_components_are_learned_alike_over_rows_and_alone(cls: Any) -> None:
    fused, by_itself = (train(population(cls), learner=kind) for kind in ("fused", "sequential"))
    before = population(cls)
    for one, other, first in zip(fused, by_itself, before, strict=True):
        for name, value in one.policy_state().items():
            torch.testing.assert_close(value, other.policy_state()[name], rtol=1e-3, atol=1e-5)
            assert not torch.equal(value, first.policy_state()[name])
    assert digest_tree(train(population(cls))[0].policy_state()) == digest_tree(fused[0].policy_state())


@pytest.mark.slow
def test_a_team_learns_bits_and_a_mark_far_away() -> None:
    (team,) = train(population(IPPO, 1, lr=1e-2, ent_coef=0.0), max_steps=24_000, evo_steps=24_000)
    row = team.test(SyncPettingZooVecEnv([Fair] * 20), sum_scores=False)
    assert row[0] == 4.0, "all bits of both steps"
    assert row[1] > -1.0, "from -10 of a policy that throws at 0"


@BOTH
def test_the_loader_of_the_best_policy_acts_without_bounds(cls: Any, tmp_path: Path) -> None:
    (team,) = train(population(cls, 1))
    obs = {a: np.random.default_rng(1).uniform(-1, 1, (40, 2)).astype(np.float32) for a in IDS}
    found, expected = alone(team, tmp_path).act(obs), team.get_action(obs, training=False)[0]
    for agent in IDS:
        np.testing.assert_allclose(found[agent].numpy(), expected[agent], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cls", [MADDPG, MATD3])
@pytest.mark.parametrize(
    ("agent", "says"),
    [
        ("coin_0", r"coin_0 takes Discrete, MultiDiscrete and Box actions; got MultiBinary\(2\). "
                   r"fix: MultiDiscrete\(\[2\] \* 2\), or IPPO or MAPPO"),
        ("dart_0", r"dart_0 needs bounded actions; .* infinite bounds in 1 of 1 components. fix: .*RescaleAction"),
    ],
)  # fmt: skip
def test_policies_that_are_no_distributions_name_what_they_cannot_do(cls: Any, agent: str, says: str) -> None:
    with pytest.raises(AlgorithmError, match=says):
        cls({agent: spaces.Box(-1, 1, (2,))}, {agent: ACTED[agent]})


def test_a_squashed_policy_needs_bounds() -> None:
    squashed = {"net_config": {**NET, "squash_output": True}}
    with pytest.raises(AlgorithmError, match=r"squash_output needs bounded actions.*fix: "):
        IPPO({"dart_0": spaces.Box(-1, 1, (2,))}, {"dart_0": ACTED["dart_0"]}, **squashed)
