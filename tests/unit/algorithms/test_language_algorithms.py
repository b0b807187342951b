"""ILQL and BC_LM: what is stored of a data set, populations that learn and evolve, resumed runs, files, writing on."""

from __future__ import annotations

import runpy
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import agilerl
from agilerl.algorithms import BC_LM, DQN, ILQL, IQL
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.collect.offline import fill
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.options import OfflineOptions
from agilerl.data.dataset import read_dataset
from agilerl.envs.simulators.wordle import Wordle, wordle_data
from agilerl.errors import AlgorithmError, ConfigError, NotAvailableYetError, RunError, ShapeError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.networks.language import TokenNetwork
from agilerl.training.train_offline import train_offline
from agilerl.utils.utils import agent_from_policy, create_population, make_vect_envs
from agilerl.views.export import plain_policy

BOTH = pytest.mark.parametrize("algo", ["ILQL", "BC_LM"])
KINDS: dict[str, Any] = {"ILQL": ILQL, "BC_LM": BC_LM}
NET = {"n_layer": 1, "n_embd": 16, "n_head": 2, "dim_feedfwd": 32}
OPTIONS = OfflineOptions(max_steps=1, evo_steps=1)
SEEN, SAID = gym.spaces.MultiDiscrete([6] * 7), gym.spaces.MultiDiscrete([5] * 2)
LIMITS: dict[str, dict[str, tuple[float, float]]] = {
    "ILQL": {"inverse_temperature": (0.5, 16), "expectile": (0.5, 0.95), "alpha": (0.01, 1), "lr": (1e-4, 1e-2)},
    "BC_LM": {"lr": (1e-4, 1e-2), "batch_size": (4, 16)},
}


def games(words: int = 6, tries: int = 2, count: int = 60, seed: int = 1) -> dict[str, np.ndarray]:
    return wordle_data(count, words=words, tries=tries, seed=seed)


def make(algo: str, **options: Any) -> Any:
    env = Wordle(words=6, tries=2)
    return KINDS[algo](env.observation_space, env.action_space, **{"net_config": NET, "seed": 3, **options})


def weights(agent: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in agent.actor.parameters()])


# --- what is stored -------------------------------------------------------------------------------------------------


def small_data(**changes: Any) -> dict[str, np.ndarray]:
    """Two episodes: three tokens said two at a time with answers between them; and one that a time limit cut off."""
    texts = np.array([
        [1, 0, 0, 0, 0, 0, 0],
        [1, 2, 3, 5, 0, 0, 0],
        [1, 2, 3, 5, 4, 2, 5],
        [1, 5, 0, 0, 0, 0, 0],
        [1, 5, 3, 3, 0, 0, 0],
    ])  # fmt: skip
    found = {
        "observations": texts[[0, 1, 3]],
        "next_observations": texts[[1, 2, 4]],
        "actions": np.array([[2, 3], [4, 2], [3, 3]]),
        "rewards": np.array([-1.0, 0.5, -2.0]),
        "terminals": np.array([False, True, False]),
        "timeouts": np.array([False, False, True]),
    }
    return {**found, **changes}


@BOTH
def test_transitions_are_laid_together_to_whole_texts(algo: str) -> None:
    agent = KINDS[algo](SEEN, SAID, net_config=NET)
    memory = ReplayBuffer(max_size=10)
    assert fill(memory, read_dataset(small_data()), agent, OPTIONS) == []
    rows = memory.gather(np.arange(2))
    assert rows["obs"].tolist() == [[1, 2, 3, 5, 4, 2, 5], [1, 5, 3, 3, 0, 0, 0]]
    assert rows["action"].tolist() == [[0, 1, 1, 0, 1, 1, 0], [0, 0, 1, 1, 0, 0, 0]]
    assert rows["reward"].tolist() == [[0, 0, -1, 0, 0, 0.5, 0], [0, 0, 0, -2, 0, 0, 0]]
    assert rows["done"].tolist() == [[0, 0, 0, 0, 0, 1, 0], [0] * 7], "a text that was cut off does not end"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": np.array([[2, 3], [4, 4], [3, 3]])}, "1 of 3 texts do not continue with their action, .* row 1"),
        ({"actions": np.array([[2, 3, 0]] * 3)}, r"actions of \[3\] tokens; ILQL was built for 2"),
        ({"actions": np.array([[2, 3], [4, 2], [5, 3]])}, r"actions with tokens that are no integers in 0\.\.4"),
        ({"observations": np.ones((3, 5)), "next_observations": np.ones((3, 5))}, r"texts of \[5\] tokens"),
        ({"next_observations": small_data()["observations"]}, "3 of 3 texts do not continue"),
        ({"observations": small_data()["observations"] * 7}, r"texts with tokens that are no integers in 0\.\.5"),
    ],
)
def test_data_that_are_no_texts_are_named_and_nothing_is_stored(changes: dict[str, Any], message: str) -> None:
    agent, memory = ILQL(SEEN, SAID, net_config=NET), ReplayBuffer(max_size=10)
    with pytest.raises(ShapeError, match=message):
        fill(memory, read_dataset(small_data(**changes)), agent, OPTIONS)
    assert len(memory) == 0


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ILQL(gym.spaces.Box(-1, 1, (3,)), SAID), AlgorithmError, "reads texts and generates tokens"),
        (lambda: ILQL(SEEN, gym.spaces.Discrete(3)), AlgorithmError, "ILQL needs MultiDiscrete actions"),
        (lambda: BC_LM(SAID, SEEN), AlgorithmError, "reads texts and generates tokens"),
        (lambda: BC_LM(SEEN, gym.spaces.MultiDiscrete([5, 6])), AlgorithmError, "reads texts and generates tokens"),
        (lambda: ILQL(SEEN, SAID, net_config={"n_layers": 3}), ConfigError, "n_layer"),
        (lambda: ILQL(SEEN, SAID, net_config={"vocab_size": 3}), ConfigError, "vocab_size"),
        (lambda: ILQL(SEEN, SAID, expectile=1.5), AlgorithmError, "expectile must be in"),
        (lambda: ILQL(SEEN, SAID, actor_network=TokenNetwork(SEEN, SAID)), TypeError, "with_values=True"),
        (lambda: BC_LM(SEEN, SAID).get_action(np.ones((2, 6))), ShapeError, r"expected \[E, 7\]"),
        (lambda: BC_LM(SEEN, SAID).get_action(np.zeros((2, 7))), ShapeError, "do not begin with padding"),
        (lambda: BC_LM(SEEN, SAID).get_action(np.ones((2, 7)), action_mask=np.ones(10)), NotAvailableYetError, "masks"),
        (lambda: BC_LM(SEEN, SAID).learn((np.ones((3, 7)),) * 4 + (np.ones(3),)), ShapeError, r"done of shape \(3,\)"),
    ],
)
def test_mistakes_are_named(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call()


# --- writing on -----------------------------------------------------------------------------------------------------


@BOTH
def test_the_policy_says_the_most_probable_tokens_one_after_the_other(algo: str) -> None:
    agent = make(algo)
    agent.set_training_mode(False)
    obs = games()["observations"][:7]
    with torch.no_grad():
        for text, said in zip(obs, agent.get_action(obs), strict=True):
            known = torch.as_tensor(text[text > 0].astype(np.int64))[None]
            for token in said.tolist():
                scores = agent.token_scores(agent.actor(known)[:, -1])
                scores[:, 0] = -torch.inf
                assert int(scores.argmax()) == token
                known = torch.cat((known, torch.tensor([[token]])), 1)
    assert agent.get_action(obs[0]).tolist() == agent.get_action(obs)[:1].tolist()
    assert np.array_equal(agent.greedy(agent.policy_output(obs)), agent.get_action(obs))


def test_while_training_tokens_are_drawn_as_often_as_the_policy_says() -> None:
    agent = make("ILQL", inverse_temperature=3.0)
    start = np.zeros((6000, 21), np.int64)
    start[:, 0] = 1
    with torch.no_grad():
        scores = agent.token_scores(agent.actor(torch.ones(1, 1, dtype=torch.int64))[0, -1])
    scores[0] = -torch.inf
    share = np.bincount(agent.get_action(start)[:, 0], minlength=28) / len(start)
    assert share == pytest.approx(scores.softmax(-1).numpy(), abs=0.025)
    assert share[0] == 0


def test_without_values_the_policy_is_the_cloned_one_and_with_them_it_follows_the_lower_of_both() -> None:
    agent = make("ILQL", inverse_temperature=0.0)
    outputs = torch.randn(4, 3 * 28 + 1)
    logits, first, second, state = outputs.split([28, 28, 28, 1], -1)
    torch.testing.assert_close(agent.token_scores(outputs), logits.log_softmax(-1))
    agent.inverse_temperature = 2.0
    expected = logits.log_softmax(-1) + 2 * (torch.minimum(first, second) - state)
    torch.testing.assert_close(agent.token_scores(outputs), expected)


# --- populations ----------------------------------------------------------------------------------------------------


def train(algo: str, **more: Any) -> tuple[list[Any], list[list[float]]]:
    env = make_vect_envs(make_env=partial(Wordle, words=6, tries=2), num_envs=4)
    config = HyperparameterConfig(
        **{name: RLParameter(min=low, max=high) for name, (low, high) in LIMITS[algo].items()}
    )
    population = create_population(
        algo, NET, {"BATCH_SIZE": 8, "LR": 3e-3}, env.single_observation_space, env.single_action_space, config,
        population_size=3, seed=1,
    )  # fmt: skip
    given: dict[str, Any] = {
        "pop": population, "memory": ReplayBuffer(10), "max_steps": 24, "evo_steps": 8, "verbose": False, "seed": 5,
        "tournament": TournamentSelection(2, True, 3, 1, seed=4),
        "mutation": Mutations(0, 0.5, 0.4, 0.3, 0.2, 0.4, rand_seed=3), **more,
    }  # fmt: skip
    return train_offline(env, "Wordle", games(), algo, **given)


@BOTH
def test_a_population_learns_from_games_and_evolves_by_every_kind_of_mutation(algo: str) -> None:
    population, fitnesses = train(algo)
    assert np.shape(fitnesses) == (3, 3)
    assert all(-2 <= fitness <= 0 for row in fitnesses for fitness in row)
    assert {agent.steps[-1] for agent in population} == {24}
    mutated = {agent.mut for seed in range(3) for agent in train(algo, mutation=mutations(seed))[0]}
    assert {"param", "act"} <= mutated
    assert any(str(name).startswith("gpt.") for name in mutated), mutated
    assert mutated & set(LIMITS[algo])


def mutations(seed: int) -> Mutations:
    return Mutations(0, 0.4, 0.5, 0.3, 0.3, 0.4, rand_seed=seed)


@BOTH
@pytest.mark.parametrize("method", ["gpt.add_layer", "gpt.add_node"])
def test_growth_leaves_policy_and_target_as_they_were_and_keeps_moments(algo: str, method: str) -> None:
    agent, memory = make(algo, batch_size=8), ReplayBuffer(max_size=10)
    fill(memory, read_dataset(games()), agent, OPTIONS)
    for _ in range(3):
        agent.learn(memory.sample(8))
    text = torch.as_tensor(games()["next_observations"].astype(np.int64))
    names = ("actor", "actor_target") if algo == "ILQL" else ("actor",)
    before = {name: getattr(agent, name)(text).detach() for name in names}
    moments = [state["exp_avg"].abs().sum() for state in agent.optimizer.state_dict()["state"].values()]
    only = Mutations(0, 1, 1.0 if method == "gpt.add_layer" else 0.0, 0, 0, 0, rand_seed=1, removal=False)
    only.architecture_mutate(agent)
    assert agent.mut == method
    for name in names:
        torch.testing.assert_close(getattr(agent, name)(text), before[name], atol=1e-6, rtol=0)
    after = [state["exp_avg"].abs().sum() for state in agent.optimizer.state_dict()["state"].values()]
    assert float(sum(after)) == pytest.approx(float(sum(moments)), rel=1e-5)
    agent.learn(memory.sample(8))
    assert not torch.equal(agent.actor(text), before["actor"])


def test_members_learn_one_after_another_and_the_run_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    train("ILQL", verbose=True, max_steps=8)
    said = capsys.readouterr().err
    assert "learner: sequential" in said
    assert "TokenNetwork" in said
    assert "FlattenObservation" not in said, "which is no way out for a text"
    with pytest.raises(ConfigError, match="learner='fused' is not possible"):
        train("ILQL", learner="fused")


@pytest.mark.filterwarnings("ignore:the run goes on with other settings")
@BOTH
def test_a_stopped_and_resumed_run_is_the_run_that_never_stopped(algo: str, tmp_path: Path) -> None:
    whole, fitnesses = train(algo, resume=tmp_path / "whole", max_steps=24)
    train(algo, resume=tmp_path / "part", max_steps=16)
    resumed, again = train(algo, resume=tmp_path / "part", max_steps=24)
    assert all(torch.equal(weights(a), weights(b)) for a, b in zip(whole, resumed, strict=True))
    assert fitnesses == again


def test_a_text_is_short_in_print_and_is_no_substitute_for_other_observations() -> None:
    text = str(make("ILQL"))
    assert "MultiDiscrete([106] * 21) -> MultiDiscrete([28 28 28 28 28])" in text
    with pytest.raises(AlgorithmError, match="for MultiDiscrete actions one of: CQN"):
        IQL(gym.spaces.Box(-1, 1, (2,)), SAID)


@pytest.mark.parametrize("changes", [{"n_embd": 10**6, "n_head": 1}, {"n_layer": 10**6}, {"dim_feedfwd": -1}])
def test_a_file_that_asks_for_a_transformer_far_larger_than_its_weights_is_refused(changes: dict[str, int]) -> None:
    agent = make("BC_LM")
    spec = agent.policy_spec()
    spec["network"]["gpt_config"] |= changes
    with pytest.raises(RunError, match="fix: do not use this file"):
        agent_from_policy(spec, agent.policy_state())


@BOTH
def test_agents_made_without_a_seed_follow_torchs_and_differ_by_their_index(algo: str) -> None:
    torch.manual_seed(7)
    three, again = ([make(algo, index=i, seed=None) for i in range(3)] for _ in range(2))
    assert all(torch.equal(weights(one), weights(other)) for one, other in zip(three, again, strict=True))
    assert not any(torch.equal(weights(three[i]), weights(three[j])) for i in range(3) for j in range(i))


# --- copies and files -----------------------------------------------------------------------------------------------


@BOTH
def test_clones_and_files_are_the_same_agent(algo: str, tmp_path: Path) -> None:
    agent, memory = make(algo, batch_size=8), ReplayBuffer(max_size=10)
    fill(memory, read_dataset(games()), agent, OPTIONS)
    agent.actor.apply_mutation("gpt.add_node", 16)
    agent.reinit_optimizers()
    if algo == "ILQL":
        agent.actor_target = agent.actor.clone()
    agent.learn(memory.sample(8))
    agent.save_checkpoint(tmp_path / "agent.pt")
    again, twin = KINDS[algo].load(tmp_path / "agent.pt"), agent.clone()
    rows = memory.sample(8)
    losses = [each.learn(rows) for each in (agent, again, twin)]
    assert losses[0] == losses[1] == losses[2]
    assert torch.equal(weights(agent), weights(again))
    assert torch.equal(weights(agent), weights(twin))
    assert again.actor.describe() == "1x(16, 48)"
    acting = agent_from_policy(agent.policy_spec(), agent.policy_state())
    obs = games()["observations"][:20]
    agent.set_training_mode(False)
    assert np.array_equal(acting.get_action(obs), agent.get_action(obs))


@BOTH
def test_an_agent_is_evaluated_in_games(algo: str) -> None:
    agent = make(algo)
    env = make_vect_envs(make_env=partial(Wordle, words=6, tries=2), num_envs=4)
    found = agent.evaluate(episodes=12, seed=1, env=env)
    assert -2 <= found.mean <= 0
    assert agent.test(env) == agent.fitness[-1]


def test_other_algorithms_take_data_as_they_are() -> None:
    agent = DQN(gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2))
    data = object()
    assert agent.arrange(data) is data


# --- by manifest ----------------------------------------------------------------------------------------------------


def test_a_run_by_name_learns_from_a_file_with_the_transformer_that_its_manifest_describes(tmp_path: Path) -> None:
    path = tmp_path / "games.npz"
    np.savez(path, **wordle_data(30, words=6, tries=2))
    short: dict[str, Any] = {"evo_steps": 2, "eval_episodes": 2, "confirm_episodes": 0, "num_envs": 2, "batch_size": 4}
    config = {"environment": {"kwargs": {"words": 6, "tries": 2}}, "network": {"encoder": NET}}
    given: dict[str, Any] = {"config": config, "steps": 2, "population": 2, "verbose": False, "dataset": str(path)}
    run = agilerl.train("Wordle-v0", "ILQL", out=tmp_path, **given, **short)
    assert run.best.actor.describe() == "1x(16, 32)"
    again = agilerl.load(run.path).best
    obs = games()["observations"][:5]
    run.best.set_training_mode(False)
    assert np.array_equal(again.get_action(obs), run.best.get_action(obs))
    with pytest.raises(NotAvailableYetError, match="ILQL cannot be exported: policies of class TokenNetwork"):
        plain_policy(run.best)
    with pytest.raises(ConfigError, match=r"network.latent_dim is of an encoder .* fix: network.encoder"):
        agilerl.train("Wordle-v0", "ILQL", out=None, latent_dim=32, **given, **short)


@pytest.mark.slow
def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).resolve().parents[3] / "examples" / "wordle.py"
    found = runpy.run_path(str(path), run_name="example")["main"](games=40, updates=8)
    assert np.shape(found) == (8, 2)
    assert "consistent" in capsys.readouterr().out
