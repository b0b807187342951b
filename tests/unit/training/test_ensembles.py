"""Members that learn from one replay act together: the mean of their policies is evaluated, returned and deployed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import agilerl
from agilerl.algorithms import DQN, QRDQN, SAC, TD3, TQC, RainbowDQN
from agilerl.collect.evaluator import Evaluator
from agilerl.collect.off_policy import OffPolicyCollector
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.options import OffPolicyOptions
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.engine.rows.kernels import NATIVE, TORCH
from agilerl.errors import ConfigError, RunError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.screening import recent_returns
from agilerl.modules.mlp import EvolvableMLP
from agilerl.native.library import library
from agilerl.networks.actors import StochasticActor
from agilerl.networks.ensemble import ENSEMBLE, Ensemble
from agilerl.networks.q_networks import QNetwork
from agilerl.telemetry.record import BaseSink, RunPlan
from agilerl.training.loop import LoopSettings, TrainingLoop
from agilerl.training.population import ensemble_of
from agilerl.utils.utils import agent_from_policy, make_vect_envs
from agilerl.views.export import export_onnx
from agilerl.views.standalone.policy import PolicyError, policy_of

BOX, THREE = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(3)
TWO = gym.spaces.Box(-1, 1, (2,), np.float32)
QUANTILES = partial(QRDQN, num_quantiles=7)
OBS = np.random.default_rng(0).uniform(-1, 1, (200, 3)).astype(np.float32)
RUN: dict[str, Any] = {
    "population": 3, "num_envs": 2, "steps": 400, "evo_steps": 100, "eval_episodes": 2, "confirm_episodes": 4,
    "latent_dim": 8, "batch_size": 8, "learning_delay": 8, "learn_step": 4, "patience": None, "target_score": None,
    "restarts": False, "verbose": False, "seed": 5, "ensemble": True,
}  # fmt: skip


def constant(values: list[float]) -> DQN:
    """An agent whose action values are these, whatever it observes."""
    agent = DQN(BOX, THREE, seed=0)
    with torch.no_grad():
        for parameter in agent.actor.parameters():
            parameter.zero_()
        *_, bias = agent.actor.parameters()
        bias.copy_(torch.tensor(values))
    return agent


def members(cls: Any = DQN, actions: gym.Space[Any] = THREE, **options: Any) -> list[Any]:
    """Three agents of different widths."""
    layers = ([16], [8, 8], [32])
    return [
        cls(BOX, actions, index=i, seed=i, net_config={"encoder_config": {"hidden_size": hidden}, **options})
        for i, hidden in enumerate(layers)
    ]


def mean_of(agents: list[Any]) -> np.ndarray:
    with torch.no_grad():
        return np.mean([agent.policy_output(OBS).numpy() for agent in agents], axis=0)


def test_the_action_of_highest_mean_value_is_taken() -> None:
    """Means are 1, 2 and 5/3: the second action is nobody's best but one's."""
    agents = [constant(values) for values in ([3.0, 2.0, 0.0], [0.0, 2.5, 0.0], [0.0, 1.5, 5.0])]
    assert [int(agent.act(OBS[0])) for agent in agents] == [0, 1, 2]
    joint = ensemble_of(agents[0], agents)
    assert joint.policy_output(OBS[:1])[0].tolist() == pytest.approx([1.0, 2.0, 5 / 3])
    assert (joint.act(OBS) == 1).all()


def test_members_of_different_widths_act_together_and_stay_as_they_are() -> None:
    agents = members()
    before = [agent.policy_output(OBS).detach().clone() for agent in agents]
    joint = ensemble_of(agents[1], agents)
    np.testing.assert_allclose(joint.policy_output(OBS).detach().numpy(), mean_of(agents), rtol=1e-6)
    assert (joint.act(OBS) == mean_of(agents).argmax(1)).all()
    assert joint.index == agents[1].index
    for agent, output in zip(agents, before, strict=True):
        assert isinstance(agent.actor, QNetwork)
        assert torch.equal(agent.policy_output(OBS), output)
        agent.clone()  # with an optimiser of its own network
    twin, acted = joint.clone(), joint.act(OBS)
    with torch.no_grad():
        for agent in agents:
            for parameter in agent.actor.parameters():
                parameter.add_(torch.randn_like(parameter))
    assert (twin.act(OBS) == acted).all(), "a clone does not follow the members"


@pytest.mark.parametrize(("cls", "actions"), [(DQN, THREE), (QUANTILES, THREE), (SAC, TWO)])
def test_c_and_torch_agree_and_each_row_is_computed_by_itself(cls: Any, actions: gym.Space[Any]) -> None:
    agents = members(cls, actions)  # of one and of two layers, in two calls
    joint = ensemble_of(agents[0], agents)
    (in_torch,), (in_c,) = (Learner([joint], choose([joint]), kernels).groups for kernels in (TORCH, NATIVE))
    assert not in_torch.acts_by_row
    if library() is None:
        pytest.skip("no kernels in C")
    assert in_c.acts_by_row
    rows = in_c.greedy_outputs(OBS[None])
    torch.testing.assert_close(rows, in_torch.greedy_outputs(OBS[None]), rtol=1e-5, atol=1e-6)
    alone = [in_c.greedy_outputs(OBS[None, number : number + 1]) for number in range(20)]
    assert torch.equal(torch.cat(alone, 1), rows[:, :20])


def test_actors_act_by_their_mean_in_the_range_of_their_activation() -> None:
    actions = gym.spaces.Box(np.float32([2.0]), np.float32([4.0]))
    agents = members(TD3, actions, head_config={"hidden_size": [8], "output_activation": "Sigmoid"})
    joint = ensemble_of(agents[0], agents)
    np.testing.assert_allclose(joint.act(OBS), 2 + 2 * mean_of(agents), rtol=1e-5)


def test_an_ensemble_is_saved_and_loaded_like_an_agent(tmp_path: Path) -> None:
    agents = members()
    joint = ensemble_of(agents[0], agents).clone()
    joint.save_checkpoint(str(tmp_path / "joint.pt"))
    loaded = DQN.load(tmp_path / "joint.pt")
    assert isinstance(loaded.actor, Ensemble)
    assert torch.equal(loaded.policy_output(OBS), joint.policy_output(OBS))
    other = DQN(BOX, THREE, seed=9)
    other.load_run_state(joint.run_state())
    assert torch.equal(other.policy_output(OBS), joint.policy_output(OBS))
    other.load_run_state(agents[2].run_state())  # and back to one network
    assert isinstance(other.actor, QNetwork)
    assert torch.equal(other.policy_output(OBS), agents[2].policy_output(OBS))


@pytest.mark.parametrize(("cls", "actions"), [(DQN, THREE), (QUANTILES, THREE), (TD3, TWO), (SAC, TWO), (TQC, TWO)])
def test_an_ensemble_is_deployed_like_an_agent(cls: Any, actions: gym.Space[Any], tmp_path: Path) -> None:
    agents = members(cls, actions)
    joint = ensemble_of(agents[0], agents)
    plain = policy_of(joint.policy_spec(), joint.policy_state())
    np.testing.assert_allclose(plain.act(OBS), joint.act(OBS), atol=1e-6)
    again = agent_from_policy(joint.policy_spec(), joint.policy_state())
    np.testing.assert_allclose(again.act(OBS), joint.act(OBS), atol=1e-6)
    pytest.importorskip("onnxruntime")
    report = export_onnx(joint, tmp_path / "joint.onnx")
    assert report.largest_difference < 1e-5


def sharpened(agents: list[Any]) -> list[Any]:
    """The agents with larger weights, so that what comes after the last layer is far from linear."""
    with torch.no_grad():
        for agent in agents:
            for parameter in agent.actor.parameters():
                parameter.mul_(3)
    return agents


def test_means_of_squashed_distributions_are_deployed_like_an_agent() -> None:
    agents = sharpened(members(SAC, gym.spaces.Box(-1, 1, (2,), np.float32)))
    joint = ensemble_of(agents[0], agents)
    plain = policy_of(joint.policy_spec(), joint.policy_state())
    np.testing.assert_allclose(plain.act(OBS), joint.act(OBS), atol=1e-6)
    np.testing.assert_allclose(joint.act(OBS), np.tanh(mean_of(agents)[:, :2]), atol=1e-5)


def test_distributions_over_other_returns_are_averaged_by_their_expected_values(tmp_path: Path) -> None:
    """Mutation may change the atoms of a member, and the returns that they stand for."""
    supports: list[dict[str, Any]] = [{"num_atoms": 11, "v_max": 50.0}, {"v_min": -90.0}, {"v_max": 300.0}]
    agents = sharpened([RainbowDQN(BOX, THREE, index=n, seed=n, **options) for n, options in enumerate(supports)])
    joint = ensemble_of(agents[1], agents)
    with torch.no_grad():
        values = torch.stack([agent.actor.eval()(torch.from_numpy(OBS)) for agent in agents]).mean(0)
    np.testing.assert_allclose(joint.policy_output(OBS).detach(), values, rtol=1e-5)
    actions = values.argmax(1).numpy()
    assert len(np.unique(actions)) > 1
    assert (joint.act(OBS) == actions).all()
    assert int(joint.act(OBS[0])) == actions[0]
    joint.save_checkpoint(str(tmp_path / "joint.pt"))
    plain = policy_of(joint.policy_spec(), joint.policy_state())
    for one in (joint.clone(), RainbowDQN.load(tmp_path / "joint.pt"), plain):
        assert (np.asarray(one.act(OBS)) == actions).all()


def test_a_damaged_ensemble_is_told() -> None:
    agents = members()
    joint = ensemble_of(agents[0], agents)
    spec, weights = joint.policy_spec(), joint.policy_state()
    huge = {**agents[0].actor.spec(), "latent_dim": 10**9}
    for broken in (None, [], {"member_0": {}}, {"member_0": spec["network"]["members"]["member_1"]}):
        with pytest.raises(PolicyError):
            policy_of({**spec, "network": {"class": ENSEMBLE, "members": broken}}, weights)
    with pytest.raises(RunError, match="asks for layers"):
        agent_from_policy({**spec, "network": {"class": ENSEMBLE, "members": {"member_0": huge}}}, weights)


class Plan(BaseSink):
    """Keeps the notes of a run's start."""

    def start(self, plan: RunPlan, founders: Any) -> None:
        self.notes = "; ".join(plan.notes)


def trained(out: Path | None = None, **more: Any) -> Any:
    return agilerl.train("CartPole-v1", "DQN", preset=False, out=out, **{**RUN, **more})


def test_a_run_evaluates_and_returns_the_mean_of_its_members(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[Any]] = []

    def evaluate(self: Evaluator, agents: Any, number: int, episodes: int | None = None) -> Any:
        calls.append(list(agents))
        return whole(self, agents, number, episodes)

    whole = Evaluator.evaluate
    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    run = trained(evolution=False)
    assert [len(agents) for agents in calls] == [1] * 4
    joint, others = calls[-1][0], run.population
    assert [id(network) for network in joint.actor.members] == [id(agent.actor) for agent in others]
    returns = {agent.index: np.mean(recent_returns(agent)) for agent in others}
    assert joint.index == max(returns, key=lambda number: returns[number]), "in place of the best by training returns"
    assert isinstance(run.best.actor, Ensemble)
    assert len(run.best.actor.members) == 3
    assert "mean of 3 members' policies, whose leader has" in run.in_words()


def test_evaluation_costs_that_of_one_member() -> None:
    runs = {together: trained(confirm_episodes=0, ensemble=together) for together in (True, False)}
    steps = {together: run.result["evaluation_env_steps"] for together, run in runs.items()}
    assert 4 * 2 * 8 <= steps[True] < steps[False] / 2  # four generations of two episodes of at least eight steps


def test_a_population_of_one_needs_no_ensemble() -> None:
    assert isinstance(trained(population=1).best.actor, QNetwork)


def test_a_stopped_run_goes_on_to_the_same_ensemble(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole")

    def stop(record: Any) -> bool | None:
        return False if record.generation == 1 else None

    part = trained(tmp_path / "part", callbacks=[stop])
    assert part.result["generations"] == 2
    resumed = agilerl.resume(part.path)
    assert resumed.result["generations"] == whole.result["generations"] == 4
    states = whole.best.policy_state(), resumed.best.policy_state()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    loaded = agilerl.load(whole.path).best
    assert (loaded.act(OBS_OF_CARTPOLE) == whole.best.act(OBS_OF_CARTPOLE)).all()


OBS_OF_CARTPOLE = np.random.default_rng(1).normal(size=(100, 4)).astype(np.float32)


def test_algorithms_without_a_shared_replay_have_no_ensemble() -> None:
    with pytest.raises(ConfigError, match=r"training\.ensemble: means nothing to PPO, which learns from its own"):
        agilerl.train("CartPole-v1", "PPO", population=2, steps=64, out=None, verbose=False, ensemble=True)


def test_policies_without_a_mean_are_evaluated_one_by_one() -> None:
    kept = Plan()
    run = agilerl.train("Pendulum-v1", "SAC", out=None, share_encoders=True, sinks=[kept], **{**RUN, "steps": 200})
    assert isinstance(run.best.actor, StochasticActor)
    assert "no ensemble, the best by training returns is evaluated: critics read the features" in kept.notes


def test_an_ensemble_does_not_learn() -> None:
    with pytest.raises(ConfigError, match=r"agent \d+ acts by the mean of several policies"):
        agilerl.train("CartPole-v1", agents=[trained().best], steps=100, out=None, verbose=False)


@pytest.mark.parametrize(("cls", "actions"), [(DQN, THREE), (SAC, gym.spaces.Box(-1, 1, (2,), np.float32))])
def test_an_ensemble_outside_of_a_run_neither_learns_nor_changes_its_architecture(
    cls: Any, actions: gym.Space[Any]
) -> None:
    agents = members(cls, actions)
    joint = ensemble_of(agents[0], agents).clone()
    taken = np.stack([actions.sample() for _ in range(8)]).reshape(8, -1)
    batch = {"obs": OBS[:8], "action": taken, "reward": np.zeros(8), "next_obs": OBS[:8], "done": np.zeros(8)}
    with pytest.raises(ConfigError, match="agent 0 acts by the mean of several policies"):
        joint.learn(batch)
    output = joint.policy_output(OBS)
    mutations = Mutations(
        no_mutation=0, architecture=1, new_layer_prob=0.5, parameters=0, activation=0, rl_hp=0, mutate_elite=True
    )
    (mutated,) = mutations.mutation([joint])
    assert mutated.mut == "None"
    assert torch.equal(mutated.policy_output(OBS), output)
    assert agents[0].actor.mutation_methods, "members do"


def test_members_are_rescored_by_their_own_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The episodes of the ensemble say nothing of the member in whose place it played."""
    means: dict[int, float] = {}

    def rescore(self: Evaluator, agents: Any, number: int, episodes: int) -> list[float]:
        assert not any(isinstance(agent.actor, Ensemble) for agent in agents)
        means.update({agent.index: 1000.0 + agent.index for agent in agents})
        return [means[agent.index] for agent in agents]

    monkeypatch.setattr(Evaluator, "rescore", rescore)
    run = trained(elite_rescore_episodes=2, steps=200, confirm_episodes=0, evolve_from=0.0)
    first = [agent.fitness[0] for agent in run.population]  # of the parent, as it was selected
    assert set(first) & set(means.values())
    assert all(value in means.values() or value < 500 for value in first), "no mean with the episodes of the ensemble"


def test_a_setting_that_an_ensemble_replaces_is_told() -> None:
    notes = []
    for number in (None, 1, 2):
        kept = Plan()
        trained(sinks=[kept], steps=100, eval_members=number)
        notes.append("eval_members is ignored" in kept.notes)
    assert notes == [False, False, True]


class Own(DQN):
    def get_action(self, obs: Any, *args: Any, **options: Any) -> Any:
        return super().get_action(obs, *args, **options)


class Other(DQN):
    """Learns values that may mean something else."""


def notes_and_best(env_id: str, agents: Callable[..., list[Any]]) -> tuple[str, Any]:
    """The notes of a short run of these agents with an ensemble, and its best agent."""
    env = make_vect_envs(env_id, num_envs=2)
    options = OffPolicyOptions(max_steps=40, evo_steps=20, eval_episodes=2, ensemble=True)
    collector = OffPolicyCollector(env, ReplayBuffer(100), options)
    loop = TrainingLoop(
        agents(env.single_observation_space, env.single_action_space), collector, options, LoopSettings(seed=1)
    )
    return "; ".join(loop.notes), loop.run().best


def of_one_module(*spaces: Any, **options: Any) -> DQN:
    return DQN(*spaces, actor_network=EvolvableMLP(4, 2, [8]), **options)


@pytest.mark.parametrize(
    ("kinds", "why"),
    [
        ([of_one_module, of_one_module], "the policy is a EvolvableMLP"),
        ([DQN, of_one_module], "the policy is a EvolvableMLP"),
        ([Own, Own], "an agent brings its own learn(), get_action() or test()"),
        ([DQN, Own], "an agent brings its own learn(), get_action() or test()"),
        ([DQN, Other], "members differ in class or in the range of their actions (DQN, Other)"),
        ([Other, DQN], "members differ in class or in the range of their actions (Other, DQN)"),
    ],
)
def test_policies_without_a_common_mean_are_evaluated_one_by_one(kinds: list[Any], why: str) -> None:
    notes, best = notes_and_best("CartPole-v1", lambda *spaces: [k(*spaces, index=n) for n, k in enumerate(kinds)])
    assert f"no ensemble, the best by training returns is evaluated: {why}" in notes
    assert not isinstance(best.actor, Ensemble)


def test_actors_with_other_ranges_have_no_mean() -> None:
    def agents(*spaces: Any) -> list[Any]:
        heads = [{"hidden_size": [8], "output_activation": activation} for activation in ("Tanh", "Sigmoid")]
        return [TD3(*spaces, index=n, net_config={"head_config": head}) for n, head in enumerate(heads)]

    notes, best = notes_and_best("Pendulum-v1", agents)
    assert "members differ in class or in the range of their actions (TD3, TD3)" in notes
    assert not isinstance(best.actor, Ensemble)
