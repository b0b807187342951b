"""Dict and Tuple actions: one distribution per part, masks per part, one flat row per action in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from policy_files import alone
from small_envs import Episodes, ParallelGame

import agilerl
from agilerl.algorithms import BC, CQL, DDPG, DQN, IPPO, MADDPG, MAPPO, MATD3, PPO, SAC, TD3, RainbowDQN
from agilerl.collect.determinism import probe_determinism
from agilerl.components.rollout_buffer import RolloutBuffer
from agilerl.core import tree as trees
from agilerl.core.spaces import mask_width
from agilerl.envs.team import as_action, as_columns
from agilerl.errors import AlgorithmError, ConfigError, ShapeError
from agilerl.networks.distributions import distribution_of
from agilerl.rollouts.on_policy import collect_rollouts
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import make_vect_envs
from agilerl.vector import SyncPettingZooVecEnv
from agilerl.views.export import export_onnx
from agilerl.views.standalone.policy import load

SEEN = spaces.Box(-1, 1, (2,), np.float32)
# Parts in the order of the Dict: gear, lamps (two parts), steer.
SPACE = spaces.Dict(
    {
        "gear": spaces.Discrete(3, start=-1),
        "lamps": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3], start=[0, 5]))),
        "steer": spaces.Box(0, 10, (2,), np.float32),
    }
)
DENSE = {"hidden_size": [16], "min_mlp_nodes": 4}
NET = {"latent_dim": 16, "encoder_config": DENSE, "head_config": DENSE}
LSTM = {"latent_dim": 16, "encoder_config": {"hidden_state_size": 16}, "head_config": DENSE}
WIDTH = 3 + 4 + 5  # of a mask: gear, two entries for each lamp, the choices


def ppo(space: gym.Space[Any] = SPACE, **more: Any) -> Any:
    return PPO(SEEN, space, **{"net_config": NET, "seed": 1, **more})


# --- the joint distribution, by hand ----------------------------------------------------------------------------------

LOGIT = math.log(3.0)  # of a bit: 1 in three of four cases


def raw_row() -> torch.Tensor:
    """Gear 1 : 2 : 1; bits of 3/4 and 1/2; choices 1 : 3 and 1 : 1 : 2; steer N(0.2, 0.5²), N(-0.4, 1)."""
    gear = [0.0, math.log(2.0), 0.0]
    bits = [LOGIT, 0.0]
    choices = [0.0, math.log(3.0), 0.0, 0.0, math.log(2.0)]
    steer = [0.2, -0.4, math.log(0.5), 0.0]
    return torch.tensor([gear + bits + choices + steer], dtype=torch.float64)


def test_log_probability_and_entropy_are_sums_over_the_parts() -> None:
    kind = distribution_of(SPACE, scaled=True)
    assert (kind.kind, kind.raw_size, kind.columns, kind.numbers_shape) == ("joint", 3 + 2 + 5 + 4, 1 + 2 + 2 + 2, (7,))
    assert kind.mask_width == mask_width(SPACE) == WIDTH
    # Gear 1 (1/2), bits 1 and 0 (3/4 · 1/2), choices 0 and 2 (1/4 · 1/2), steer one deviation up and at its mean:
    # 5 + 5 (0.2 + 0.5) = 8.5, 5 - 5 · 0.4 = 3.
    action = torch.tensor([[1.0, 1.0, 0.0, 0.0, 2.0, 8.5, 3.0]], dtype=torch.float64)
    half_log = 0.5 * math.log(2 * math.pi)
    expected = math.log(0.5 * 0.375 * 0.125) - 0.5 - math.log(0.5) - 2 * half_log
    assert kind.log_prob(raw_row(), action).item() == pytest.approx(expected, rel=1e-12)
    choices = 1.5 * math.log(2)  # of 1/4, 1/2, 1/4
    bit = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))  # also of the first choice, 1/4 and 3/4
    normal = 0.5 * math.log(2 * math.pi * math.e)
    entropy = choices + (bit + math.log(2)) + (bit + choices) + (normal + math.log(0.5)) + normal
    assert kind.entropy(raw_row()).item() == pytest.approx(entropy, rel=1e-12)
    assert kind.mode(raw_row()).tolist() == [[1.0, 1.0, 0.0, 1.0, 2.0, 6.0, 3.0]]


def test_masks_of_each_part_are_followed_and_forced_parts_tell_nothing() -> None:
    kind = distribution_of(SPACE, scaled=True)
    # Gear 2 alone; the first lamp must be off, the second one on; the first choice 0, of the second 0 or 1.
    mask = torch.tensor([[0, 0, 1, 1, 0, 0, 1, 1, 0, 1, 1, 0]], dtype=torch.bool)
    numbers = torch.tensor([[0.1, 0.99, 0.0, 0.99, 0.7, 0.0, 0.0]], dtype=torch.float64)
    action = kind.sample(raw_row(), numbers, mask)
    assert action.tolist() == [[2.0, 0.0, 1.0, 0.0, 1.0, 6.0, 3.0]]
    steer = -math.log(0.5) - math.log(2 * math.pi)
    assert kind.log_prob(raw_row(), action, mask).item() == pytest.approx(math.log(0.5) + steer, rel=1e-12)
    normal = math.log(2 * math.pi * math.e) + math.log(0.5)
    assert kind.entropy(raw_row(), mask).item() == pytest.approx(math.log(2) + normal, rel=1e-12)
    assert kind.mode(raw_row(), mask).tolist() == [[2.0, 0.0, 1.0, 0.0, 0.0, 6.0, 3.0]]
    raw = raw_row().requires_grad_()
    (kind.log_prob(raw, action, mask) + kind.entropy(raw, mask)).sum().backward()
    assert not raw.grad[0, :7].any(), "gear, lamps and the first choice are forced"
    assert raw.grad[0, 7:9].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forced_bits_have_log_probability_and_entropy_zero(dtype: torch.dtype) -> None:
    kind = distribution_of(spaces.MultiBinary(3))
    raw = torch.tensor([[5.0, -5.0, 0.5]], dtype=dtype)
    mask = torch.tensor([[1, 0, 0, 1, 1, 1]])  # off, on, free
    for action in ([[0.0, 1.0, 0.0]], [[0.0, 1.0, 1.0]]):
        free = torch.distributions.Bernoulli(logits=raw[0, 2]).log_prob(torch.tensor(action[0][2], dtype=dtype))
        assert kind.log_prob(raw, torch.tensor(action, dtype=dtype), mask).item() == pytest.approx(free.item())
    both = torch.tensor([[1, 0, 0, 1, 0, 1]])
    assert kind.log_prob(raw, torch.tensor([[0.0, 1.0, 1.0]], dtype=dtype), both).item() == 0.0
    assert kind.entropy(raw, both).item() == 0.0
    assert kind.log_prob(raw, torch.tensor([[1.0, 1.0, 1.0]], dtype=dtype), both).item() < -1e8
    numbers = torch.rand(500, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    drawn = kind.sample(raw.expand(500, 3), numbers, mask.expand(500, 6))
    assert drawn[:, :2].unique(dim=0).tolist() == [[0.0, 1.0]]
    assert drawn[:, 2].unique().tolist() == [0.0, 1.0]


# --- what the environment gets ----------------------------------------------------------------------------------------

NESTED = {
    "dict": SPACE,
    "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (), np.float64))),
    "deep": spaces.Tuple((spaces.Dict({"b": spaces.MultiBinary([2, 2]), "a": spaces.Box(0, 255, (2, 1), np.uint8)}),)),
    "one": spaces.Dict({"only": spaces.Discrete(4, start=2)}),
}


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("name", NESTED)
def test_actions_for_the_environment_are_nested_as_its_space(name: str, recurrent: bool) -> None:
    space = NESTED[name]
    agent = ppo(space, recurrent=recurrent, net_config=LSTM if recurrent else NET)
    obs = np.random.default_rng(0).uniform(-1, 1, (50, 2)).astype(np.float32)
    rows = agent.get_action(obs, training=True)[0]
    assert rows.shape == (50, agent.distribution.columns)
    drawn = agent.random_action(np.random.default_rng(0), (50,))
    greedy = agent.get_action(obs, training=False)[0]
    for actions in (agent.environment_action(rows), agent.environment_action(drawn), greedy, agent._greedy(obs)):
        each = [trees.map_leaves(lambda x, k=k: x[k, ...], actions) for k in range(50)]
        assert all(space.contains(action) for action in each)
        np.testing.assert_array_equal(
            as_columns(space, as_action(space, as_columns(space, actions))), as_columns(space, actions)
        )
    log_prob, entropy, value = agent.evaluate_actions(obs[:5], rows[:5])
    assert log_prob.shape == entropy.shape == value.shape == (5,)
    np.testing.assert_allclose(log_prob.detach(), agent.get_action(obs[:5])[1] * 0 + log_prob.detach().numpy())


class Lane(Episodes):
    """The observation's sign tells what is right in each part: a point for each, less the distance of steer."""

    observation_space, action_space, length, is_cut = SEEN, SPACE, 8, True
    masks = False

    def observe(self) -> np.ndarray:
        self.sign = int(self.np_random.integers(2))
        return np.array([2 * self.sign - 1, 1], np.float32)

    def info(self) -> dict[str, Any]:
        if not self.masks:
            return {}
        gear = (
            [1, 1, 0] if self.sign else [1, 1, 1]
        )  # the right one is illegal at sign 1; the first lamp is off, always
        return {"action_mask": np.array([*gear, 1, 0, 1, 1, 1, 1, 1, 1, 1], np.int8)}

    def reward(self, action: Any) -> float:
        assert self.action_space.contains(action), action
        lamps, choices = action["lamps"]
        if self.masks and ((self.sign and action["gear"] == 1) or lamps[0]):
            raise AssertionError(f"illegal: {action}")
        right = [action["gear"] == (1 if self.sign else -1)]
        right += [lamps[0] == self.sign, lamps[1] == 1 - self.sign]
        right += [choices[0] == self.sign, choices[1] == 5 + 2 * self.sign]
        return float(sum(right) - np.abs(action["steer"] - (7.0 if self.sign else 3.0)).mean())


class MaskedLane(Lane):
    masks = True


QUICK = {"lr": 2e-3, "batch_size": 128, "learn_step": 512, "update_epochs": 6, "ent_coef": 0.0, "gamma": 0.0}


def trained(env: Any, steps: int, **more: Any) -> Any:
    vector = make_vect_envs(make_env=env, num_envs=8)
    pop = [PPO(SEEN, SPACE, 0, **{"net_config": NET, "seed": 1, "num_envs": 8, **QUICK, **more})]
    given = {"max_steps": steps, "evo_steps": steps, "verbose": False, "seed": 3, "eval_steps": 8}
    return train_on_policy(vector, "Lane", pop=pop, tournament=None, mutation=None, **given)[0][0]


def check_learned(action: Any, masks: bool = False) -> None:
    """Greedy actions for sign 0 and sign 1."""
    lamps, choices = action["lamps"]
    assert action["gear"][0] == -1
    assert masks or action["gear"][1] == 1
    assert lamps.tolist() == [[0, 1], [0 if masks else 1, 0]]
    assert choices.tolist() == [[0, 5], [1, 7]]
    # Nearer to its own target than to the other one: how near depends on the rounding of a processor.
    np.testing.assert_allclose(action["steer"], [[3, 3], [7, 7]], atol=2.0)


SIGNS = np.array([[-1, 1], [1, 1]], np.float32)


def test_ppo_learns_every_part() -> None:
    agent = trained(Lane, 10_240)
    check_learned(agent.get_action(SIGNS, training=False)[0])
    assert agent.test(make_vect_envs(make_env=Lane, num_envs=4), max_steps=8) > 28.0, "of 8 · 5 points"


@pytest.mark.thorough
def test_masks_of_parts_are_followed_while_it_learns_and_plays() -> None:
    agent = trained(MaskedLane, 10_240)  # an illegal action raises
    mask = np.array([[1, 1, 1, 1, 0, *[1] * 7], [1, 1, 0, 1, 0, *[1] * 7]], np.int8)
    check_learned(agent.get_action(SIGNS, mask, training=False)[0], masks=True)
    agent.test(make_vect_envs(make_env=MaskedLane, num_envs=4), max_steps=8)
    assert agent.evaluate(4, env=MaskedLane(), max_steps=8).mean > 20
    with pytest.raises(ShapeError, match=r"action_mask has 3 entries.*: 12 entries, or one mask per part.*fix: "):
        agent.get_action(SIGNS, [1, 1, 1])
    with pytest.raises(ShapeError, match="allows no action for component 0"):
        agent.get_action(SIGNS, [0, 0, 0, *[1] * 9])


@pytest.mark.thorough
def test_recurrent_ppo_learns_every_part() -> None:
    agent = trained(Lane, 10_240, recurrent=True, net_config=LSTM, max_seq_len=8, batch_size=32)
    check_learned(agent.get_action(SIGNS, training=False)[0])


# --- evolution, files, other processes --------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_population_evolves_and_its_run_is_saved_loaded_resumed_and_exported(tmp_path: Path) -> None:
    more = {
        "population": 3,
        "evo_steps": 128,
        "num_envs": 2,
        "seed": 5,
        "eval_episodes": 2,
        "learn_step": 64,
        "batch_size": 32,
    }
    more |= {"no_mut": 0.0, "arch_mut": 0.4, "params_mut": 0.3, "act_mut": 0.1, "rl_hp_mut": 0.2, "restarts": False}
    more |= {"confirm_episodes": 2, "verbose": False, "target_score": None}
    whole = agilerl.train(Lane, "PPO", steps=512, out=tmp_path / "whole", **more)
    part = agilerl.train(Lane, "PPO", steps=256, out=tmp_path / "part", **more)
    assert part.path is not None
    resumed = agilerl.resume(part.path, steps=512, env=Lane, verbose=False)
    np.testing.assert_array_equal(resumed.history[:2], part.history)
    assert np.isfinite(resumed.history).all()
    assert len(resumed.history) == 4
    best = agilerl.load(whole.path).best
    obs = np.random.default_rng(1).uniform(-1, 1, (200, 2)).astype(np.float32)
    expected = best.get_action(obs, training=False)[0]
    plain = load(whole.path / "best").act(obs)
    for one, other in zip(trees.leaves(expected), trees.leaves(plain), strict=True):
        np.testing.assert_array_equal(one, other.numpy())
        assert one.dtype == other.numpy().dtype
    single = load(whole.path / "best").act(obs[0])
    assert SPACE.contains(trees.map_leaves(lambda x: x.numpy() if x.ndim else x.numpy()[()], single))


def test_fused_and_sequential_training_are_one() -> None:
    def run(learner: str) -> list[Any]:
        vector = make_vect_envs(make_env=Lane, num_envs=4, seed=2)
        pop = [PPO(SEEN, SPACE, i, **{"net_config": NET, "seed": i, "num_envs": 4, **QUICK}) for i in range(2)]
        for agent in pop:
            for name in agent.networks:
                getattr(agent, name).double()
        given = {"max_steps": 512, "evo_steps": 512, "verbose": False, "seed": 3, "eval_steps": 8}
        return train_on_policy(vector, "Lane", pop=pop, tournament=None, mutation=None, learner=learner, **given)[0]

    for one, other in zip(run("fused"), run("sequential"), strict=True):
        for name, value in one.policy_state().items():
            torch.testing.assert_close(value, other.policy_state()[name], rtol=1e-10, atol=1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize("masked", [False, True])
def test_a_policy_leaves_as_onnx_with_an_output_for_each_part(masked: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    agent = ppo()
    agent.action_masks = masked
    report = export_onnx(agent, tmp_path / "policy.onnx", rows=500)
    assert (report.largest_difference < 1e-4, report.different_actions) == (True, 0)
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"), providers=["CPUExecutionProvider"])
    names = ["action.gear", "action.lamps.0", "action.lamps.1", "action.steer"]
    assert [out.name for out in session.get_outputs()] == names


def test_the_loader_of_the_best_policy_follows_masks_of_parts(tmp_path: Path) -> None:
    agent = ppo()
    agent.action_masks = True
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1, 1, (300, 2)).astype(np.float32)
    mask = rng.random((300, WIDTH)) < 0.6
    for own in (slice(0, 3), slice(3, 5), slice(5, 7), slice(7, 9), slice(9, 12)):
        mask[np.arange(300), own.start + rng.integers(own.stop - own.start, size=300)] = True
    expected = agent.get_action(obs, mask, training=False)[0]
    for one, other in zip(trees.leaves(expected), trees.leaves(alone(agent, tmp_path).act(obs, mask)), strict=True):
        np.testing.assert_array_equal(one, other.numpy())


# --- a loop of one's own ----------------------------------------------------------------------------------------------


def test_a_loop_of_ones_own_stores_rows_and_steps_with_nested_actions() -> None:
    env = gym.vector.SyncVectorEnv([Lane] * 4)
    agent = ppo(num_envs=4, learn_step=64, batch_size=32)
    before = {k: v.clone() for k, v in agent.policy_state().items()}
    obs, _ = env.reset(seed=1)
    done = np.zeros(4)
    lists: tuple[list[Any], ...] = ([], [], [], [], [], [])
    buffer = RolloutBuffer(16, SEEN, SPACE, 4)
    for _ in range(16):
        action, log_prob, _, value = agent.get_action(obs)
        after, reward, terminated, truncated, _ = env.step(agent.environment_action(action))
        for own, x in zip(lists, (obs, action, log_prob, reward, done, value), strict=True):
            own.append(x)
        buffer.add(obs, action, reward, terminated | truncated, value, log_prob, after)
        obs, done = after, terminated | truncated
    agent.learn((*lists, obs, done))
    assert any(not torch.equal(v, before[k]) for k, v in agent.policy_state().items())
    assert buffer.get()["actions"].shape == (64, 7)
    agent.rollout_buffer = buffer
    agent.learn()
    wrong = [np.where(np.arange(7) == 0, 3.0, x) for x in lists[1]]  # gear 3 of 0..2
    with pytest.raises(ShapeError, match=r"none of Dict\(gear.*fix: store the rows"):
        agent.learn((lists[0], wrong, *lists[2:], obs, done))


# --- teams ------------------------------------------------------------------------------------------------------------


class Pair(ParallelGame):
    """An agent with hybrid actions and one with choices; both are paid for what they are told."""

    observed = dict.fromkeys(("mixed_0", "plain_0"), SEEN)
    acted: ClassVar = {"mixed_0": SPACE, "plain_0": spaces.Discrete(2)}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None or not hasattr(self, "lane"):
            self.lane = Lane()
        self.agents = list(self.possible_agents)
        obs, _ = self.lane.reset(seed=seed)
        return dict.fromkeys(self.agents, obs), self._infos()

    def _infos(self) -> dict[str, Any]:
        return {"mixed_0": {"action_mask": np.ones(12, int)}, "plain_0": {}}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, ...]:
        sign = self.lane.sign
        obs, reward, _, over, _ = self.lane.step(actions["mixed_0"])
        rewards = {"mixed_0": reward, "plain_0": float(actions["plain_0"] == sign)}
        ends = dict.fromkeys(self.agents, over)
        self.agents = [] if over else self.agents
        return dict.fromkeys(ends, obs), rewards, dict.fromkeys(ends, False), ends, self._infos()


IDS = ["mixed_0", "plain_0"]


def team(cls: Any, index: int = 0, **more: Any) -> Any:
    given = {"net_config": NET, "seed": 1 + index, "num_envs": 8, **QUICK, **more}
    return cls([SEEN] * 2, [SPACE, spaces.Discrete(2)], agent_ids=IDS, index=index, **given)


def train_teams(pop: list[Any], steps: int, **more: Any) -> list[Any]:
    env = SyncPettingZooVecEnv([Pair] * 8)
    given = {"max_steps": steps, "evo_steps": steps, "verbose": False, "seed": 3, "eval_steps": 8}
    return train_multi_agent_on_policy(env, "Pair", pop=pop, tournament=None, mutation=None, **given, **more)[0]


@pytest.mark.thorough
@pytest.mark.parametrize("cls", [pytest.param(IPPO, marks=pytest.mark.slow), MAPPO])
def test_teams_learn_every_part(cls: Any) -> None:
    (found,) = train_teams([team(cls, lr=2e-3)], 12_288)
    seen = dict.fromkeys(IDS, SIGNS)
    actions = found.get_action(seen, training=False)[0]
    check_learned(actions["mixed_0"])
    assert actions["plain_0"].tolist() == [0, 1]


@pytest.mark.parametrize("cls", [IPPO, MAPPO])
def test_teams_act_by_hand_are_saved_and_learn_alike_over_rows_and_alone(cls: Any, tmp_path: Path) -> None:
    one = team(cls)
    seen = dict.fromkeys(IDS, SIGNS)
    mask = {"mixed_0": {"action_mask": np.array([[0, 1, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0]] * 2)}}
    for _ in range(20):
        actions, log_probs, entropies, _ = one.get_action(seen, mask)
        given = one.environment_actions(actions)
        lamps, choices = given["mixed_0"]["lamps"]
        assert (given["mixed_0"]["gear"].tolist(), lamps.tolist(), choices.tolist()) == (
            [0, 0],
            [[0, 1]] * 2,
            [[1, 5]] * 2,
        )
    steer = distribution_of(SPACE["steer"], scaled=True)
    raw = one.actors["mixed"].output(torch.from_numpy(SIGNS))[:, 10:].detach()
    own = torch.from_numpy(actions["mixed_0"][:, 5:])
    np.testing.assert_allclose(log_probs["mixed_0"], steer.log_prob(raw, own), rtol=1e-5)  # the rest is forced
    np.testing.assert_allclose(entropies["mixed_0"], steer.entropy(raw), rtol=1e-5)
    one.save_checkpoint(tmp_path / "team")
    for again in (cls.load(tmp_path / "team"), one.clone(3)):
        expected, found = (x.get_action(seen, training=False)[0]["mixed_0"] for x in (one, again))
        for x, y in zip(trees.leaves(expected), trees.leaves(found), strict=True):
            np.testing.assert_array_equal(x, y)
    for x, y in zip(trees.leaves(expected), trees.leaves(alone(one, tmp_path).act(seen)["mixed_0"]), strict=True):
        np.testing.assert_array_equal(x, y.numpy())
    rows, by_itself = (train_teams(exact_teams(cls), 512, learner=kind) for kind in ("fused", "sequential"))
    for x, y, start in zip(rows, by_itself, exact_teams(cls), strict=True):
        for name, value in x.policy_state().items():
            torch.testing.assert_close(value, y.policy_state()[name], rtol=1e-10, atol=1e-10)
            assert not torch.equal(value, start.policy_state()[name])


def exact_teams(cls: Any) -> list[Any]:
    """Two teams whose networks are in float64."""
    pop = [team(cls, i) for i in range(2)]
    for one in pop:
        for network in one.evolvable_attributes(networks_only=True).values():
            network.double()
    return pop


def test_the_vector_of_teams_takes_nested_actions_and_rows() -> None:
    env = SyncPettingZooVecEnv([Pair] * 2)
    env.reset(seed=1)
    one = team(IPPO)
    actions = one.environment_actions(one.get_action(dict.fromkeys(IDS, SIGNS))[0])
    _, rewards, *_ = env.step(actions)
    assert rewards["mixed_0"].shape == (2,)
    env.step({**actions, "mixed_0": as_columns(SPACE, actions["mixed_0"])})


# --- who does not take them -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [DQN, RainbowDQN, DDPG, TD3, SAC, CQL, BC])
@pytest.mark.parametrize(
    "space", [SPACE, spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2)))], ids=["Dict", "Tuple"]
)
def test_other_algorithms_refuse_them_and_name_ppo(cls: Any, space: Any) -> None:
    with pytest.raises(AlgorithmError, match=rf"{cls.__name__} needs .* actions; got {type(space).__name__}.*PPO"):
        cls(SEEN, space, net_config=NET)


@pytest.mark.parametrize("cls", [MADDPG, MATD3])
def test_other_teams_refuse_them_and_name_ippo(cls: Any) -> None:
    with pytest.raises(AlgorithmError, match=r"mixed_0 takes .* actions; got Dict.*fix: IPPO or MAPPO \(PPO for one"):
        cls([SEEN] * 2, [SPACE, spaces.Discrete(2)], agent_ids=IDS, net_config=NET)


def test_parts_that_no_policy_has_are_named() -> None:
    with pytest.raises(AlgorithmError, match=r"PPO: actions must be .*got Text.*fix: "):
        ppo(spaces.Dict({"say": spaces.Text(3)}))
    with pytest.raises(AlgorithmError, match=r"Tuple\(\): there is nothing in it"):
        ppo(spaces.Tuple(()))
    with pytest.raises(ConfigError, match=r"squash_output=True is for Box actions.*fix: leave it out"):
        ppo(net_config={**NET, "squash_output": True})
    with pytest.raises(AlgorithmError, match="noise_persistence is of Box actions, and these are Dict"):
        ppo(noise_persistence=0.5)


# --- kinds of environment ---------------------------------------------------------------------------------------------


def test_the_probe_of_determinism_and_its_random_actions_take_every_kind() -> None:
    for space in (*NESTED.values(), spaces.MultiBinary(3), spaces.MultiDiscrete([2, 3]), spaces.Box(0, 9, (2, 2))):

        class Any_(gym.Env[np.ndarray, Any]):
            observation_space, action_space = SEEN, space

            def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
                super().reset(seed=seed)
                return np.zeros(2, np.float32), {}

            def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
                assert self.action_space.contains(action), action
                return np.zeros(2, np.float32), 0.0, False, False, {}

        probe = probe_determinism(make_vect_envs(make_env=Any_, num_envs=2), ppo(space), 0, 10**6)
        assert probe.is_deterministic, space


@pytest.mark.parametrize("kind", ["vector", "same step", "single", "healing"])
def test_every_kind_of_environment_gets_them(kind: str) -> None:
    made: dict[str, Any] = {
        "vector": lambda: gym.vector.SyncVectorEnv([Lane] * 2),
        "same step": lambda: gym.vector.SyncVectorEnv([Lane] * 2, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP),
        "single": Lane,
        "healing": lambda: make_vect_envs(make_env=Lane, num_envs=2, healing=True, num_workers=1),
    }
    env = made[kind]()
    agent = ppo(learn_step=32, num_envs=2, batch_size=16)
    given = {"max_steps": 64, "evo_steps": 64, "verbose": False, "seed": 3, "eval_steps": 8}
    (found,) = train_on_policy(env, "Lane", pop=[agent], tournament=None, mutation=None, **given)[0]
    assert found.steps[-1] == 64
    assert np.isfinite(found.test(env, max_steps=8))
    _, obs, _, _, _ = collect_rollouts(found, env, 4)
    assert obs is not None
    found.learn()
    env.close()
