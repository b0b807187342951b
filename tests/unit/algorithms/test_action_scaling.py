"""Box actions of policies that learn from rollouts: in units of half of their range, whatever the bounds are."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from policy_files import alone
from small_envs import Episodes

import agilerl
from agilerl.algorithms import BC, CQL, DDPG, IPPO, IQL, MADDPG, MAPPO, MATD3, PPO, SAC, TD3, TD3BC
from agilerl.algorithms.base.declared import hyperparameters
from agilerl.api import build_manifest
from agilerl.config.convert import convert
from agilerl.errors import AgileRLError, AlgorithmError, ConfigError
from agilerl.networks.actors import SharedActorCritic, StochasticActor
from agilerl.networks.distributions import box_units, distribution_of
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import make_vect_envs

SEEN = spaces.Box(-1, 1, (3,), np.float32)
DENSE = {"hidden_size": [8], "min_mlp_nodes": 4}
NET = {"latent_dim": 8, "encoder_config": DENSE, "head_config": DENSE}
WIDE = spaces.Box(0, 1000, (1,), np.float32)
UNIT = spaces.Box(-1, 1, (2,), np.float32)
INTEGERS = spaces.Box(0, 255, (1,), np.uint8)
MIXED = spaces.Box(
    np.array([-1, 0, -np.inf, 2, 5], np.float32), np.array([1, 10, 3, np.inf, 5], np.float32), dtype=np.float32
)


def ppo(space: gym.Space[Any] = WIDE, **more: Any) -> Any:
    return PPO(SEEN, space, **{"net_config": NET, "seed": 1, **more})


# --- the rule, by hand ---


def test_a_policy_acts_in_units_of_half_of_the_range_and_open_components_in_their_own() -> None:
    kind = distribution_of(MIXED, scaled=True)
    # [-1, 1] as it is; [0, 10]: 5 ± 5; half open ones as they are; one action alone: around it.
    assert kind.centre == (0.0, 5.0, 0.0, 0.0, 5.0)
    assert kind.half == (1.0, 5.0, 1.0, 1.0, 1.0)
    raw = torch.tensor([[0.5, 0.4, -7.0, 9.0, 0.0, *[math.log(0.1)] * 5]], dtype=torch.float64)
    assert kind.mode(raw).tolist() == [[0.5, 7.0, -7.0, 9.0, 5.0]]
    numbers = torch.tensor([[1.0, -2.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    # 0.5 + 0.1; 5 + 5 (0.4 - 0.2); -7 + 0.1
    torch.testing.assert_close(kind.sample(raw, numbers), torch.tensor([[0.6, 6.0, -6.9, 9.0, 5.0]]).double())
    # Densities and entropies are those of the policy's own units: Σ −½ε² − log σ − ½ log 2π.
    expected = -0.5 * (1 + 4 + 1) - 5 * (math.log(0.1) + 0.5 * math.log(2 * math.pi))
    assert kind.log_prob(raw, kind.sample(raw, numbers)).item() == pytest.approx(expected, rel=1e-12)
    assert kind.entropy(raw).item() == pytest.approx(5 * (0.5 * math.log(2 * math.pi * math.e) + math.log(0.1)))


HUGE = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (UNIT, ((), ())),
        (spaces.Box(-np.inf, np.inf, (2,)), ((), ())),
        (spaces.Box(-HUGE, HUGE, (1,)), ((), ())),
        (spaces.Box(-np.inf, np.inf, (1,), np.int64), ((), ())),
        (spaces.Box(0, 100, (1,), np.int64), ((50.0,), (50.0,))),
        (spaces.Box(-1e30, 1e30, (1,)), ((0.0,), (float(np.float32(1e30)),))),
        (INTEGERS, ((127.5,), (127.5,))),
        (spaces.Box(0, 4, ()), ((2.0,), (2.0,))),
    ],
    ids=str,
)
def test_the_units_of_a_box(space: Any, expected: Any) -> None:
    assert box_units(space) == expected


def test_actions_within_one_keep_every_bit() -> None:
    assert distribution_of(UNIT, scaled=True) == distribution_of(UNIT)
    obs = np.random.default_rng(0).uniform(-1, 1, (64, 3)).astype(np.float32)
    for squash in (False, True):
        one, other = (
            ppo(UNIT, net_config={**NET, "squash_output": squash}, action_scaling=rule) for rule in ("bounds", "none")
        )
        for x, y in zip(one.get_action(obs), other.get_action(obs), strict=True):
            np.testing.assert_array_equal(x, y)
        assert one.policy_spec()["network"] == other.policy_spec()["network"], "nothing new in what is saved"


def test_the_least_deviation_is_a_share_of_half_of_the_range() -> None:
    agent = ppo(action_std_min=0.3)
    assert agent.distribution.least == pytest.approx(math.log(0.3))
    raw = torch.tensor([[0.0, -9.0]])
    # 500 + 500 · 0.3 · 1
    assert agent.distribution.sample(raw, torch.ones(1, 1)).item() == pytest.approx(650.0, rel=1e-5)
    assert ppo(action_std_min=0.3, action_scaling="none").distribution.least == pytest.approx(math.log(150.0))


# --- every algorithm with Box actions x ranges x kinds of number x shapes ---

RANGES = {
    "0..1000": (0, 1000, np.float32),
    "-100..100": (-100, 100, np.float32),
    "-0.01..0.01": (-0.01, 0.01, np.float32),
    "-1..1": (-1, 1, np.float32),
    "5..6": (5, 6, np.float64),
    "-3..1 half": (-3, 1, np.float16),
    "bytes": (0, 255, np.uint8),
    "-20..40 int": (-20, 40, np.int64),
}
SINGLE: dict[str, Callable[..., Any]] = {
    "PPO": PPO,
    "PPO recurrent": lambda *args, **more: PPO(
        *args, recurrent=True, **{**more, "net_config": {"latent_dim": 8, "encoder_config": {"hidden_state_size": 8}}}
    ),
    "SAC": SAC,
    "TD3": TD3,
    "DDPG": DDPG,
    "CQL": CQL,
    "IQL": IQL,
    "TD3BC": TD3BC,
    "BC": BC,
}
TEAMS: dict[str, Any] = {"IPPO": IPPO, "MAPPO": MAPPO, "MADDPG": MADDPG, "MATD3": MATD3}
WITH_NOISE = ("TD3", "DDPG", "TD3BC", "BC", "MADDPG", "MATD3")
SHAPES = [(), (1,), (2,), (2, 2)]
OBS = np.random.default_rng(3).uniform(-1, 1, (400, 3)).astype(np.float32)


def acted(name: str, space: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Greedy actions, exploring ones and random ones of a new agent, as its environment takes them."""
    rng = np.random.default_rng(0)
    if name in TEAMS:
        ids = ["one_0", "other_0"]
        team = TEAMS[name]([SEEN] * 2, [space, spaces.Discrete(3)], agent_ids=ids, net_config=NET, seed=1)
        seen = dict.fromkeys(ids, OBS)
        explored = team.get_action(seen, training=True)[0]
        if hasattr(team, "environment_actions"):
            explored = team.environment_actions(explored)
        drawn = team.team.split(team.environment_action(team.random_action(rng, (400,))))
        return team.get_action(seen, training=False)[0]["one_0"], explored["one_0"], drawn["one_0"]
    agent = SINGLE[name](SEEN, space, net_config=NET, seed=1)
    agent.set_training_mode(True)
    found = agent.get_action(OBS)
    stored = found[0] if isinstance(found, tuple) else found
    explored = agent.environment_action(stored) if name.startswith("PPO") or agent.acts_raw else stored
    return agent._greedy(OBS), explored, agent.environment_action(agent.random_action(rng, (400,)))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bounds", RANGES)
@pytest.mark.parametrize("name", [*SINGLE, *TEAMS])
def test_untrained_policies_act_around_the_middle_and_explore_the_whole_range(
    name: str, bounds: str, shape: tuple[int, ...]
) -> None:
    low, high, dtype = RANGES[bounds]
    space = spaces.Box(low, high, shape, dtype)
    width, middle = float(high) - low, (float(high) + low) / 2
    greedy, explored, drawn = acted(name, space)
    for what, actions in (("greedy", greedy), ("explored", explored), ("drawn", drawn)):
        assert (actions.shape, actions.dtype) == ((400, *shape), space.dtype), what
        assert all(space.contains(np.asarray(row, space.dtype)) for row in actions), what
        # Deterministic policies add noise of a tenth of half of the range, after random steps; BC adds none.
        least = {"greedy": 0.0, "explored": 0.06 if name in WITH_NOISE else 0.8, "drawn": 0.8}[what]
        assert np.ptp(actions.astype(np.float64)) >= least * width, what
    assert abs(greedy.astype(np.float64).mean() - middle) < 0.2 * width
    assert np.abs(greedy.astype(np.float64) - middle).max() < 0.5 * width, "not at an edge"
    if np.issubdtype(dtype, np.integer):
        assert len(np.unique(drawn)) > 20, "more than its lowest values"


# --- whose rule it is ---


def spec_without(agent: Any) -> dict[str, Any]:
    """The specification as a version without scaling wrote it."""
    return {k: v for k, v in agent.actor.spec().items() if k != "action_scaling"}


@pytest.mark.parametrize("shared", [False, True])
def test_a_specification_without_it_keeps_the_units_of_the_space(shared: bool) -> None:
    agent = ppo(share_encoders=shared)
    cls = SharedActorCritic if shared else StochasticActor
    assert agent.actor.spec()["action_scaling"] == "bounds"
    old = cls.from_spec(spec_without(agent))
    old.load_state_dict(agent.actor.state_dict())
    assert (old.action_scaling, "action_scaling" in old.spec()) == ("none", False)
    assert old.clone().action_scaling == "none"
    raw = torch.tensor([[0.25, 0.0]])
    assert old.distribution.mode(raw).tolist() == [[0.25]]
    assert cls.from_spec(agent.actor.spec()).distribution.mode(raw).tolist() == [[625.0]]


def test_an_agent_that_was_saved_without_it_keeps_its_rule_through_files_copies_and_mutations(tmp_path: Path) -> None:
    saved = ppo(INTEGERS, action_scaling="none")
    saved.save_checkpoint(tmp_path / "old.safetensors")  # as before: nothing in it says a rule
    obs = OBS[:5]
    for agent in (PPO.load(tmp_path / "old.safetensors"), ppo(INTEGERS), saved.clone(3)):
        if agent.action_scaling == "bounds":
            agent.load_checkpoint(tmp_path / "old.safetensors")
        assert agent.action_scaling == "none"
        np.testing.assert_array_equal(
            agent.get_action(obs, training=False)[0], saved.get_action(obs, training=False)[0]
        )
        assert agent.environment_action(np.array([[0.9], [300.0], [-4.0]])).tolist() == [[0], [255], [0]], "truncated"
        agent.actor.mutate("head_net.add_node") if hasattr(agent.actor, "mutate") else None
        assert agent.action_scaling == "none"
    new = ppo(INTEGERS)
    new.save_checkpoint(tmp_path / "new.safetensors")
    assert PPO.load(tmp_path / "new.safetensors").action_scaling == "bounds"
    assert new.environment_action(np.array([[0.9], [300.0], [-4.0]])).tolist() == [[1], [255], [0]], "rounded"


@pytest.mark.parametrize("cls", [IPPO, MAPPO])
def test_teams_keep_their_rule_too(cls: Any, tmp_path: Path) -> None:
    def team(**more: Any) -> Any:
        return cls([SEEN], [WIDE], agent_ids=["one_0"], net_config=NET, seed=1, **more)

    seen = {"one_0": OBS[:4]}
    old, new = team(action_scaling="none"), team()
    # As it was: the middle is in the bias, and deviations are in units of the space.
    assert old.actors["one"].head_net.model.get_submodule("linear_output").bias[0].item() == pytest.approx(500)
    assert new.actors["one"].head_net.model.get_submodule("linear_output").bias[0].item() == pytest.approx(0)
    for agent, rule in ((old, "none"), (new, "bounds")):
        agent.save_checkpoint(tmp_path / rule)
        for again in (cls.load(tmp_path / rule), agent.clone(2)):
            assert again.action_scaling == rule
            for x, y in zip(
                again.get_action(seen, training=False), agent.get_action(seen, training=False), strict=True
            ):
                np.testing.assert_array_equal(x["one_0"], y["one_0"])


def test_a_module_of_the_users_own_has_the_rule_of_its_agent() -> None:
    from agilerl.wrappers.make_evolvable import MakeEvolvable

    def made(rule: str) -> Any:
        torch.manual_seed(0)
        net = MakeEvolvable(
            torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)), torch.zeros(1, 3)
        )
        critic = MakeEvolvable(
            torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)), torch.zeros(1, 3)
        )
        return PPO(SEEN, WIDE, actor_network=net, critic_network=critic, action_scaling=rule, seed=1)

    new, old = made("bounds"), made("none")
    assert (new.action_scaling, old.action_scaling) == ("bounds", "none")
    np.testing.assert_allclose(
        new.get_action(OBS, training=False)[0],
        np.clip(500 + 500 * old.policy_output(OBS).detach().numpy()[:, :1], 0, 1000),
        rtol=1e-5,
    )  # fmt: skip
    state = old.state()
    state["attributes"] = {k: v for k, v in state["attributes"].items() if k != "action_scaling"}
    new.load_state(state)
    assert new.action_scaling == "none"


def test_members_of_one_population_may_have_other_units(tmp_path: Path) -> None:
    # As in a run of an earlier version that goes on, whose new founders have the new rule.
    taken: list[list[float]] = []

    class Noted(Dial):
        def __init__(self) -> None:
            self.own: list[float] = []
            taken.append(self.own)

        def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            self.own.append(float(action[0]))
            return super().step(action)

    vector = make_vect_envs(make_env=Noted, num_envs=2)
    taken.clear()
    pop = [ppo(action_scaling=rule, learn_step=64, num_envs=2, index=i) for i, rule in enumerate(("none", "bounds"))]
    given = {"max_steps": 64, "evo_steps": 64, "verbose": False, "seed": 3, "eval_steps": 4, "learner": "fused"}
    train_on_policy(vector, "Noted", pop=pop, tournament=None, mutation=None, **given)
    of_members = [np.array(own[:30]) for own in taken if len(own) >= 30]
    assert [own.max() < 5 for own in of_members] == [True, True, False, False]
    assert all(300 < own.mean() < 700 for own in of_members[2:])
    with pytest.raises(AlgorithmError, match=r"squash_output=True contradicts the actor_network.*fix: "):
        ppo(actor_network=pop[0].actor, squash_output=True)


def test_unknown_rules_and_other_units_of_a_trained_policy_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown action_scaling 'bound'.*Did you mean 'bounds'"):
        ppo(action_scaling="bound")
    agent = ppo()
    agent.action_scaling = "bounds"
    with pytest.raises(ConfigError, match=r"action_scaling='none' would change the units.*fix: leave it out"):
        agent.action_scaling = "none"
    with pytest.raises(AgileRLError, match="action_scaling"):
        build_manifest("CartPole-v1", "PPO", overrides={"action_scaling": "limits"})
    with pytest.raises(ConfigError, match=r"squash_output=True would change the units.*fix: leave it out"):
        agent.squash_output = True
    plain = build_manifest("CartPole-v1", "PPO")
    assert plain.algorithm.hyperparameters["action_scaling"] == "bounds"
    assert plain.hash() == build_manifest("CartPole-v1", "PPO", overrides={"action_scaling": "bounds"}).hash()
    assert plain.hash() != build_manifest("CartPole-v1", "PPO", overrides={"action_scaling": "none"}).hash()


@pytest.mark.parametrize("cls", [PPO, IPPO, MAPPO])
def test_a_manifest_may_say_that_actions_are_squashed(cls: Any) -> None:
    assert "squash_output" in hyperparameters(cls)
    assert hyperparameters(cls)["action_scaling"].manifest == "bounds"
    if cls is PPO:
        agent, other = ppo(squash_output=True), ppo(net_config={**NET, "squash_output": True})
        np.testing.assert_array_equal(agent.get_action(OBS)[0], other.get_action(OBS)[0])
        assert agent.squash_output
    else:
        spaces_of = [WIDE, spaces.Discrete(2)]
        team = cls([SEEN] * 2, spaces_of, agent_ids=["one_0", "other_0"], net_config=NET, seed=1, squash_output=True)
        assert [actor.squash_output for actor in team.actors.values()] == [True, False]
    converted = convert({"INIT_HP": {"ALGO": cls.__name__}, "NET_CONFIG": {"squash_output": True}}, "file")
    assert converted.content["algorithm"]["squash_output"] is True


# --- what leaves with a policy, and a loop of one's own ---


@pytest.mark.parametrize("rule", ["bounds", "none"])
@pytest.mark.parametrize("space", [WIDE, MIXED, INTEGERS, spaces.Box(-3, 9, (2, 2), np.int32)], ids=str)
def test_the_loader_of_the_best_policy_has_the_same_rule(space: Any, rule: str, tmp_path: Path) -> None:
    agent = ppo(space, action_scaling=rule)
    np.testing.assert_array_equal(alone(agent, tmp_path).act(OBS).numpy(), agent.get_action(OBS, training=False)[0])


class Dial(Episodes):
    """A dial from 0 to 1000 that is to stand at 700."""

    observation_space, action_space, length, is_cut = SEEN, WIDE, 10, True

    def reward(self, action: Any) -> float:
        return -abs(float(action[0]) - 700) / 1000


def test_ppo_finds_a_mark_far_from_zero() -> None:
    # Random play: E|x - 0.7| of 10 steps = 10 (0.7² + 0.3²) / 2 = -2.9; around 0 (as it was): -7.
    run = agilerl.train(Dial, "PPO", population=1, steps=4_096, out=None, verbose=False, seed=1, lr=3e-3)
    assert run.best.evaluate(episodes=2).mean > -0.5


def test_the_published_loop_clips_and_stores_what_get_action_gave() -> None:
    agent = ppo(num_envs=16, lr=3e-3, update_epochs=8, ent_coef=0.0, batch_size=64)
    rng = np.random.default_rng(0)
    for _ in range(20):
        obs = [rng.uniform(-1, 1, (16, 3)).astype(np.float32) for _ in range(8)]
        actions, log_probs, rewards, values = [], [], [], []
        for seen in obs:
            action, log_prob, _, value = agent.get_action(seen)
            clipped = np.clip(action, agent.action_space.low, agent.action_space.high)  # as published
            np.testing.assert_array_equal(clipped, agent.environment_action(action))
            actions.append(action)
            log_probs.append(log_prob)
            values.append(value)
            rewards.append(-np.abs(clipped[:, 0] - 700) / 1000)
        dones = [np.ones(16)] * 8
        agent.learn((obs, actions, log_probs, rewards, dones, values, obs[0], np.ones(16)))
    assert (
        np.abs(agent.get_action(OBS, training=False)[0] - 700).mean() < 60
    )  # 500 at the start; 5 to 13 with other draws
    log_prob, _, _ = agent.evaluate_actions(obs[-1], actions[-1])
    assert log_prob.shape == (16,)
