"""VDN and QMIX as agents: acting, exploration, evolution, copies, files, exports, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import agilerl
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.algorithms.qmix import QMIX, VDN
from agilerl.core.checkpoint import digest_tree
from agilerl.errors import AlgorithmError, ConfigError
from agilerl.hpo.mutation import Mutations
from agilerl.networks.mixing import MixingNetwork
from agilerl.views.export import export_team
from agilerl.views.standalone.policy import TeamPolicy

KINDS = ("no_mutation", "architecture", "parameters", "activation", "rl_hp")
SEEN = {
    "mover_0": spaces.Box(-1, 1, (3,)), "mover_1": spaces.Box(-1, 1, (3,)),
    "eye_0": spaces.Dict({"camera": spaces.Box(0, 255, (1, 20, 20), np.uint8), "at": spaces.Box(-1, 1, (2,))}),
}  # fmt: skip
DONE = {"mover_0": spaces.Discrete(3, start=-1), "mover_1": spaces.Discrete(3, start=-1), "eye_0": spaces.Discrete(2)}
BOTH = pytest.mark.parametrize("cls", [VDN, QMIX])
SHORT: dict[str, Any] = {"population": 2, "steps": 240, "evo_steps": 120, "verbose": False, "seed": 3}
FEW = {"training": {"learning_delay": 0, "eval_episodes": 2}, "algorithm": {"batch_size": 32}}


def sampled(seed: int, count: int = 6) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    seen: dict[str, Any] = {a: draw.uniform(-1, 1, (count, 3)).astype(np.float32) for a in ("mover_0", "mover_1")}
    camera = draw.integers(0, 256, (count, 1, 20, 20)).astype(np.uint8)
    return seen | {"eye_0": {"camera": camera, "at": draw.uniform(-1, 1, (count, 2)).astype(np.float32)}}


def experiences(count: int = 6) -> tuple[Any, ...]:
    draw = np.random.default_rng(9)
    actions = {agent: draw.integers(space.n, size=(count, 1)) + space.start for agent, space in DONE.items()}
    rewards = {agent: draw.normal(size=(count, 1)).astype(np.float32) for agent in DONE}
    return sampled(1, count), actions, rewards, sampled(2, count), {agent: np.zeros((count, 1)) for agent in DONE}


def team(cls: Any, **more: Any) -> Any:
    return cls(SEEN, DONE, seed=1, net_config={"latent_dim": 16, "head_config": {"hidden_size": [32]}}, **more)


def weights(agent: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for n in agent.evaluation_networks().values() for p in n.parameters()])


@BOTH
def test_images_and_dictionaries_are_learned_from_and_agents_act_by_their_own_values(cls: Any) -> None:
    agent, seen = team(cls), sampled(0)
    before = weights(agent).clone()
    loss = agent.learn(experiences())
    assert np.isfinite(loss["mover"][1])
    assert loss["mover"][0] is None
    assert not torch.equal(weights(agent), before)
    actions, raw = agent.get_action(seen, training=False)
    for name in SEEN:
        values = agent.actors[name](seen[name]).detach().numpy()
        assert actions[name].tolist() == (values.argmax(-1) + DONE[name].start).tolist()
        assert raw[name].tolist() == np.eye(DONE[name].n)[values.argmax(-1)].tolist()
    alone, _ = agent.get_action({"mover_1": seen["mover_1"]}, training=False)
    assert alone["mover_1"].tolist() == actions["mover_1"].tolist(), "others need not be there"


@BOTH
def test_exploration_is_uniform_over_legal_actions_and_by_agent(cls: Any) -> None:
    agent, lanes = team(cls), 4000
    seen = {name: np.zeros((lanes, 3), np.float32) for name in ("mover_0", "mover_1")}
    infos = {"mover_0": {"action_mask": np.array([1, 0, 1])}}
    acted, raw = agent.get_action(seen, infos, training=True, epsilon=1.0)
    counts = [np.bincount(acted[name] + 1, minlength=3) / lanes for name in seen]
    np.testing.assert_allclose(counts, [[0.5, 0, 0.5], [1 / 3] * 3], atol=0.03)
    assert (raw["mover_0"].argmax(-1) - 1 == acted["mover_0"]).all()
    greedy, _ = agent.get_action(seen, infos, training=False, epsilon=1.0)
    assert len(set(greedy["mover_0"].tolist())) == 1, "epsilon is of training"
    half, _ = agent.get_action(seen, infos, training=True, epsilon=0.5)
    differs = {name: half[name] != greedy[name] for name in seen}
    assert differs["mover_0"].mean() == pytest.approx(0.5 / 2, abs=0.03)
    assert differs["mover_1"].mean() == pytest.approx(0.5 * 2 / 3, abs=0.03)
    both = (differs["mover_0"] & differs["mover_1"]).mean()
    assert both == pytest.approx(differs["mover_0"].mean() * differs["mover_1"].mean(), abs=0.02), "independent"


@BOTH
@pytest.mark.parametrize(
    ("kind", "seed"), [(k, s) for k in KINDS[1:] for s in ((0, 1, 2) if k == "architecture" else (0,))]
)
def test_every_mutation_leaves_a_team_that_learns_and_targets_that_follow(cls: Any, kind: str, seed: int) -> None:
    agent = team(cls, hp_config=HyperparameterConfig(lr=RLParameter(1e-4, 1e-2)))
    agent.learn(experiences())
    probabilities = {name: float(name == kind) for name in KINDS}
    (mutant,) = Mutations(**probabilities, new_layer_prob=0.5, rand_seed=seed).mutation([agent.clone(1)])
    assert mutant.mut not in (None, "None")
    assert (mutant.lr != agent.lr) == (kind == "rl_hp")
    for name, network in mutant.evaluation_networks().items():
        shadow = getattr(mutant, name.replace("actors", "actor_targets").replace("mixer", "mixer_target"))
        assert [p.shape for p in network.parameters()] == [p.shape for p in shadow.parameters()]
    moments = mutant.optimizer.optimizer.state
    assert all(
        moments[p]["exp_avg"].shape == p.shape for n in mutant.evaluation_networks().values() for p in n.parameters()
    )
    before = weights(mutant).clone()
    mutant.learn(experiences())
    assert torch.isfinite(weights(mutant)).all()
    assert not torch.equal(weights(mutant), before)


@BOTH
def test_a_team_from_a_file_acts_and_goes_on_to_the_bit(cls: Any, tmp_path: Path) -> None:
    agent = team(cls)
    agent.learn(experiences())
    agent.save_checkpoint(tmp_path / "team")
    loaded, twin = cls.load(tmp_path / "team"), agent.clone()
    for other in (loaded, twin):
        assert torch.equal(weights(other), weights(agent))
    for each in (agent, loaded, twin):
        each.learn(experiences())
    for other in (loaded, twin):
        assert torch.equal(weights(other), weights(agent))
        chosen = [each.get_action(sampled(3), epsilon=0.5)[0] for each in (agent.clone(), other)]
        assert all(chosen[0][name].tolist() == chosen[1][name].tolist() for name in SEEN), "the same stream"
    if cls is QMIX:
        targets = [torch.cat([p.flatten() for p in each.mixer_target.parameters()]) for each in (agent, loaded)]
        assert torch.equal(*targets)


@BOTH
def test_a_policy_of_a_run_acts_without_the_package_as_the_team(cls: Any, tmp_path: Path) -> None:
    run = agilerl.train("mpe2.simple_spread_v3", cls.__name__, out=tmp_path / "run", config=FEW, **SHORT)
    best = run.best
    spec, state = best.policy_spec(), best.policy_state()
    seen = {a: np.random.default_rng(k).normal(size=(5, 18)).astype(np.float32) for k, a in enumerate(best.agent_ids)}
    expected = best.get_action(seen, training=False)[0]
    found, again = TeamPolicy(spec, state).act(seen), cls.from_policy(spec, state).get_action(seen, training=False)[0]
    for name, actions in expected.items():
        assert actions.tolist() == found[name].tolist() == again[name].tolist()


@BOTH
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(cls: Any, tmp_path: Path) -> None:
    """Members that evolve and learn from prioritised n-step replay."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    config = {**FEW, "replay_buffer": {"prioritized": True, "n_step": 3}}
    options: dict[str, Any] = {"config": config, **SHORT}
    whole = agilerl.train("mpe2.simple_spread_v3", cls.__name__, out=tmp_path / "whole", **options)
    agilerl.train("mpe2.simple_spread_v3", cls.__name__, out=tmp_path / "parts", callbacks=[stop], **options)
    parts = agilerl.resume(next((tmp_path / "parts").rglob("run.json")).parent, verbose=False)
    states = [digest_tree({"members": [agent.run_state() for agent in run.population]}) for run in (whole, parts)]
    assert states[0] == states[1]
    assert [agent.steps[-1] for agent in parts.population] == [240, 240]


@BOTH
@pytest.mark.slow
def test_onnx_acts_as_the_team(cls: Any, tmp_path: Path) -> None:
    agent = team(cls)
    agent.set_training_mode(False)
    reports = export_team(agent, tmp_path / "policy.onnx", rows=200)
    assert {group: report.different_actions for group, report in reports.items()} == {"mover": 0, "eye": 0}


def test_runs_explore_by_epsilon_and_record_it(tmp_path: Path) -> None:
    rates: list[Any] = []
    config = {**FEW, "training": {**FEW["training"], "eps_start": 0.8, "eps_end": 0.2, "eps_decay": 0.9}}
    run = agilerl.train(
        "mpe2.simple_spread_v3", "VDN", config=config, callbacks=[lambda r, *_: rates.append(r.epsilon)], **SHORT
    )
    assert run.best.algo == "VDN"
    assert rates
    assert rates[-1] == pytest.approx(0.2)
    with pytest.raises(ConfigError, match="eps_end: means nothing to MADDPG"):
        agilerl.train("mpe2.simple_spread_v3", "MADDPG", config={"training": {"eps_end": 0.2}}, **SHORT)


@BOTH
def test_other_actions_are_refused_by_name(cls: Any) -> None:
    with pytest.raises(AlgorithmError, match=f"{cls.__name__} needs Discrete actions; got Box.*fix: MADDPG"):
        cls({"a_0": SEEN["mover_0"]}, {"a_0": spaces.Box(-1, 1, (2,))})
    with pytest.raises(AlgorithmError, match="got MultiDiscrete"):
        cls({"a_0": SEEN["mover_0"]}, {"a_0": spaces.MultiDiscrete([2, 2])})


def test_the_mixing_network_is_described_and_rebuilt() -> None:
    network = MixingNetwork(spaces.Box(-1, 1, (4,)), 3, mixing_size=7, random_seed=2, latent_dim=16)
    again = MixingNetwork.from_spec(network.spec())
    again.load_state_dict(network.state_dict())
    obs, values = torch.randn(5, 4), torch.randn(5, 3)
    assert torch.equal(network(obs, values), again(obs, values))
    assert again.mixing_size == 7
    assert network.effect_output(obs).shape == (5, 7 * 5 + 1)
