"""Teams trained by the published function and by name: scores, records, going on, files, mistakes."""

from __future__ import annotations

import csv
import json
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sinks import Kept
from team_games import Meeting

import agilerl
from agilerl.algorithms import MADDPG, MATD3, MultiAgentRLAlgorithm, find_algorithm, register
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.components.replay_buffer import (
    MultiStepReplayBuffer,
    PrioritizedMultiStepReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from agilerl.config import preset_for
from agilerl.core.checkpoint import digest_tree
from agilerl.errors import AgileRLWarning, AlgorithmError, ConfigError, EnvError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
from agilerl.utils.utils import create_population
from agilerl.vector import SyncPettingZooVecEnv

IDS = Meeting.possible_agents
NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 8}
INIT_HP = {"BATCH_SIZE": 8, "LEARN_STEP": 8, "GAMMA": 0.9, "LR_ACTOR": 1e-3, "LR_CRITIC": 2e-3, "O_U_NOISE": False}
ALGOS = pytest.mark.parametrize("algo", ["MADDPG", "MATD3"])


def population(algo: str = "MADDPG", size: int = 3, **more: Any) -> list[Any]:
    env = Meeting()
    limits = HyperparameterConfig(lr_actor=RLParameter(1e-4, 1e-2), batch_size=RLParameter(4, 16, dtype=int))
    return create_population(
        algo, NET, INIT_HP, [env.observation_space(a) for a in IDS], [env.action_space(a) for a in IDS], limits,
        population_size=size, num_envs=2, seed=3, agent_ids=IDS, **more,
    )  # fmt: skip


def train(algo: str = "MADDPG", env: Any = None, memory: Any = None, pop: Any = None, **more: Any) -> tuple[Any, Any]:
    given = {"max_steps": 72, "evo_steps": 24, "learning_delay": 12, "verbose": False, "seed": 5, **more}
    given.setdefault("tournament", TournamentSelection(2, True, 3, 1, seed=5))
    given.setdefault("mutation", Mutations(0.2, 0.4, 0.2, 0.3, 0, 0.4, rand_seed=5))
    env = SyncPettingZooVecEnv([Meeting, Meeting]) if env is None else env
    memory = ReplayBuffer(500) if memory is None else memory
    return train_multi_agent_off_policy(env, "Meeting", algo, population(algo) if pop is None else pop, memory, **given)


def digest(pop: list[Any]) -> str:
    return digest_tree({"members": [agent.run_state() for agent in pop]})


@ALGOS
def test_teams_with_masks_absent_agents_and_several_spaces_train_and_evolve(algo: str) -> None:
    rows = Kept()
    pop, fitnesses = train(algo, sinks=[rows])
    assert [len(row) for row in fitnesses] == [3, 3, 3]
    assert [agent.steps[-1] for agent in pop] == [72, 72, 72]
    assert sum(member.updates for record in rows.records for member in record.members) > 0
    paths = {birth.path for record in rows.records for birth in record.births if birth.kind == "architecture"}
    assert paths
    assert all(path.startswith(("actors.caller.", "actors.mover.")) for path in paths), "the lineage names the policy"
    assert not rows.records[0].members[0].agents


@ALGOS
def test_scores_that_are_not_summed_are_rows_by_agent_and_selection_follows_their_mean(algo: str) -> None:
    rows = Kept()
    _, fitnesses = train(algo, sum_scores=False, sinks=[rows])
    _, summed = train(algo)
    assert np.shape(fitnesses) == (3, 3, 3)
    assert [row[:2] for row in fitnesses[0]] == [[6.0, 8.0]] * 3  # caller_1 leaves after four of six steps
    np.testing.assert_allclose(np.sum(fitnesses[0], -1), summed[0])
    for record, generation in zip(rows.records, fitnesses, strict=True):
        assert [member.fitness for member in record.members] == pytest.approx(np.mean(generation, -1).tolist())
        assert [list(member.agents) for member in record.members] == [IDS] * 3
        for member in record.members:
            assert member.agent_scores["caller_1"] == 8.0
            assert member.score == pytest.approx(np.mean(list(member.agent_scores.values())))


def test_a_test_gives_the_sum_or_a_row_and_appends_a_number() -> None:
    (team,) = population(size=1)
    env = SyncPettingZooVecEnv([Meeting, Meeting])
    row = team.test(env, sum_scores=False)
    assert row.tolist()[:2] == [6.0, 8.0]
    assert team.fitness == [pytest.approx(row.mean())]
    total = team.test(env, max_steps=3)
    assert total - team.test(Meeting(), max_steps=3) == pytest.approx(0, abs=12.0)
    assert isinstance(total, float)
    assert len(team.fitness) == 3
    assert team.training


def test_one_parallel_environment_trains_one_member_after_another() -> None:
    env = Meeting()
    pop, fitnesses = train(env=env)
    assert len(fitnesses) == 3
    assert [agent.steps[-1] for agent in pop] == [72, 72, 72]
    assert not env.closed


@pytest.mark.parametrize(
    "memory",
    [
        pytest.param(ReplayBuffer, marks=pytest.mark.slow),
        pytest.param(PrioritizedReplayBuffer, marks=pytest.mark.slow),
        partial(PrioritizedMultiStepReplayBuffer, gamma=0.9),
    ],
)
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(memory: Any, tmp_path: Path) -> None:
    whole, history = train(memory=memory(300), resume=tmp_path / "whole", sum_scores=False)
    stop = {"callbacks": [lambda record: record.generation < 1]}
    _, first = train(memory=memory(300), resume=tmp_path / "parts", sum_scores=False, **stop)
    assert len(first) == 2
    resumed, second = train(memory=memory(300), resume=tmp_path / "parts", sum_scores=False)
    assert second == history
    assert digest(resumed) == digest(whole)


def test_a_team_that_has_diverged_is_kept_out_and_replaced() -> None:
    pop, rows = population(), Kept()
    with torch.no_grad():
        next(iter(getattr(pop[1], "actors.mover").parameters())).fill_(float("nan"))
    last, fitnesses = train(pop=pop, sinks=[rows], sum_scores=False, max_steps=48, tournament=None, mutation=None)
    assert np.isnan(fitnesses[0][1]).all()
    assert rows.records[0].members[1].fitness == float("-inf")
    assert [(birth.kind, birth.path) for birth in rows.records[0].births] == [("healed", "member 1")]
    assert np.isfinite(fitnesses[1]).all()
    assert all(torch.isfinite(p).all() for p in getattr(last[1], "actors.mover").parameters())


def test_a_target_that_is_reached_stops_the_run() -> None:
    assert len(train(target=-1000.0)[1]) == 1


def test_priorities_follow_the_errors_of_teams() -> None:
    memory = PrioritizedReplayBuffer(300)
    train(memory=memory)
    found = memory.weights(np.arange(len(memory)), 1.0)
    assert len(np.unique(np.round(found, 6))) > 20


def test_a_team_learns_from_n_step_rows_with_each_agents_own_sum_and_end() -> None:
    memory = MultiStepReplayBuffer(300, n_step=3, gamma=0.5)
    with pytest.warns(AgileRLWarning, match=r"agents have gamma=0.9, their n-step memory has gamma=0.5"):
        train(memory=memory, pop=population(size=1), tournament=None, mutation=None)
    rows = memory.gather(np.arange(len(memory)))
    for name in ("reward", "discount", "done"):
        assert rows[name].shape[1:] == (3,)
    # Six steps an episode, 1 each for caller_0; caller_1 has 2 up to its end after four, and no part in the last two.
    each = {(r[0], d[0], r[1], d[1]) for r, d in zip(rows["reward"].tolist(), rows["discount"].tolist(), strict=True)}
    assert each == {
        (1.75, 0.125, 3.5, 0.125), (1.75, 0.125, 3.5, 0), (1.75, 0.125, 3, 0), (1.75, 0, 2, 0),
        (1.5, 0, 0, 0), (1, 0, 0, 0),
    }  # fmt: skip


@pytest.mark.parametrize("asked", [{"n_step": 3}, {"prioritized": True}, {"n_step": 2, "prioritized": True}])
def test_the_memory_of_a_team_is_that_of_the_manifest(asked: dict[str, Any]) -> None:
    run = agilerl.train(Meeting, out=None, **SHORT, **{f"replay_buffer.{k}": v for k, v in asked.items()})
    assert len(run.history) == 2
    assert run.manifest.replay_buffer.n_step == asked.get("n_step", 1)


def test_learned_rewards_are_those_of_each_agent() -> None:
    memory = ReplayBuffer(300)
    train(memory=memory, pop=population(size=1), tournament=None, mutation=None)
    rewards = memory.gather(np.arange(len(memory)))["reward"].numpy()
    assert rewards.shape[1] == 3
    assert set(np.unique(rewards[:, 0])) == {1.0}
    assert set(np.unique(rewards[:, 1])) == {0.0, 2.0}


def test_an_elite_and_checkpoints_are_files_of_whole_teams(tmp_path: Path) -> None:
    path = tmp_path / "elite.pt"
    pop, _ = train(save_elite=True, elite_path=str(path), checkpoint=36, checkpoint_path=str(tmp_path / "team"))
    elite = MADDPG.load(path)
    assert elite.agent_ids == IDS
    assert elite.possible_action_spaces == pop[0].possible_action_spaces
    assert len(list(tmp_path.glob("team_*_72.pt"))) == 3
    saved = MADDPG.load(tmp_path / "team_0_72.pt")
    obs, _ = Meeting().reset(seed=1)
    assert saved.get_action(obs, training=False)[0].keys() == obs.keys()


def test_a_team_saved_and_loaded_is_the_same_to_the_last_moment(tmp_path: Path) -> None:
    pop, _ = train()
    team = pop[0]
    team.save_checkpoint(tmp_path / "team.pt")
    other = MADDPG.load(tmp_path / "team.pt")
    assert digest_tree(other.state()) == digest_tree(team.state())
    twin = team.clone(index=9)
    assert digest_tree({**twin.state(), "attributes": 0, "exploration": 0}) == digest_tree(
        {**team.state(), "attributes": 0, "exploration": 0}
    )
    assert not {p.data_ptr() for n in twin.evolvable_attributes(True).values() for p in n.parameters()} & {
        p.data_ptr() for n in team.evolvable_attributes(True).values() for p in n.parameters()
    }


# --- by name --------------------------------------------------------------------------------------------------------

SHORT: dict[str, Any] = {
    "population": 2, "steps": 96, "evo_steps": 48, "eval_episodes": 2, "confirm_episodes": 0, "num_envs": 2,
    "batch_size": 8, "learning_delay": 8, "verbose": False, "device": "cpu",
}  # fmt: skip


def test_a_team_trains_evaluates_loads_and_goes_on_by_the_api(tmp_path: Path) -> None:
    run = agilerl.train(Meeting, out=tmp_path, **SHORT)
    assert run.manifest.algorithm.name == "MADDPG"
    rows = list(csv.DictReader((run.path / "metrics.csv").read_text().splitlines()))
    assert len(rows) == 4
    assert len(run.best.evaluate(episodes=3, seed=1).returns) == 3
    loaded = agilerl.load(run.path)
    obs, infos = Meeting().reset(seed=2)
    ours, theirs = (best.get_action(obs, infos, training=False) for best in (run.best, loaded.best))
    assert ours[0]["caller_0"].tolist() == theirs[0]["caller_0"].tolist()
    np.testing.assert_array_equal(ours[1]["mover_0"], theirs[1]["mover_0"])
    assert [digest_tree(a.state()) for a in loaded.population] == [digest_tree(a.state()) for a in run.population]
    again = agilerl.resume(run.path, steps=144, env=Meeting, verbose=False)
    assert again.history[:2] == run.history
    assert len(again.history) == 3
    assert {row["epsilon"] for row in rows} == {""}
    further = agilerl.train(Meeting, agents=run, out=None, **SHORT)
    assert [birth.path for birth in further.lineage[:2]] == [f"{run.path}, member {a.index}" for a in run.population]


def test_the_lineage_and_the_report_say_for_whom_a_mutation_was_drawn(tmp_path: Path) -> None:
    always = {"arch_mut": 1.0, "no_mut": 0.0, "rl_hp_mut": 0.0, "params_mut": 0.0, "evolve_from": 0.0}
    run = agilerl.train(Meeting, out=tmp_path, **SHORT | {"evo_steps": 24} | always)
    paths = {birth.path for birth in run.lineage if birth.kind == "architecture"}
    assert paths
    assert all(path.startswith(("actors.caller.", "actors.mover.")) for path in paths)
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert all(path in page for path in paths)


def test_the_loader_of_the_best_policy_acts_as_the_team(tmp_path: Path) -> None:
    from agilerl.views.standalone.policy import PolicyError, load

    run = agilerl.train(Meeting, "MATD3", out=tmp_path, **SHORT)
    team = load(run.path / "best")
    draw = np.random.default_rng(0)
    obs = {a: draw.uniform(-1, 1, (50, *Meeting().observation_space(a).shape)).astype(np.float32) for a in IDS}
    masks = {a: np.where(draw.random((50, 3)) < 0.5, True, [True, False, False]) for a in IDS[:2]}
    infos = {a: {"action_mask": mask} for a, mask in masks.items()}
    expected, _ = run.best.get_action(obs, infos, training=False)
    found = team.act(obs, masks)
    for agent in IDS:
        np.testing.assert_allclose(found[agent].numpy(), expected[agent], atol=1e-6)
    assert set(team.act({"mover_0": obs["mover_0"]}, {})) == {"mover_0"}
    with pytest.warns(UserWarning, match=r"trained with masks .* fix: policy.act\(obs, {agent: mask}\)") as caught:
        unmasked = team.act(obs)
    assert [Path(warning.filename) for warning in caught] == [Path(__file__)]
    for agent, actions in run.best.act(obs).items():
        np.testing.assert_allclose(unmasked[agent].numpy(), actions, atol=1e-6)
    named = team.act(obs, action_masks=masks)
    assert all(torch.equal(named[agent], found[agent]) for agent in IDS)
    with pytest.raises(PolicyError, match=r"unknown agent 'mover_1' \(known: caller_0"):
        team.act({"mover_1": obs["mover_0"]}, {})


@pytest.mark.parametrize("env_id", ["mpe2.simple_speaker_listener_v4", "mpe2.simple_spread_v3"])
def test_an_environment_is_named_by_its_module_and_has_a_preset(env_id: str, tmp_path: Path) -> None:
    pytest.importorskip("mpe2")
    run = agilerl.train(env_id, out=tmp_path, **SHORT)
    made_with = json.loads((run.path / "run.json").read_text())["versions"]
    assert {name: made_with[name] for name in ("mpe2", "pettingzoo")} == {
        name: metadata.version(name) for name in ("mpe2", "pettingzoo")
    }
    assert run.manifest.training.eval_episodes == 2
    assert run.manifest.environment.name == env_id
    assert run.manifest.training.evolve_from == preset_for(env_id).training.evolve_from > 0
    assert run.best.environment == {"id": env_id, "kwargs": {}}
    assert len(run.best.evaluate(episodes=2).returns) == 2


# --- an algorithm of the user's own ---------------------------------------------------------------------------------


def test_an_algorithm_of_several_agents_can_be_registered() -> None:
    @register
    class Bold(MATD3):
        """MATD3 under another name."""

    assert issubclass(Bold, MultiAgentRLAlgorithm)
    assert find_algorithm("bold") is Bold
    pop, fitnesses = train(pop=population("Bold"), tournament=None, mutation=None)
    assert pop[0].algo == "Bold"
    assert len(fitnesses) == 3


# --- mistakes -------------------------------------------------------------------------------------------------------


def boxes(**widths: int) -> dict[str, gym.Space[Any]]:
    return {agent: spaces.Box(-1, 1, (width,)) for agent, width in widths.items()}


def single(algo: str = "DQN") -> list[Any]:
    return create_population(algo, NET, {}, spaces.Box(-1, 1, (2,)), spaces.Discrete(2), population_size=3)


CHOICES = {"a_0": spaces.Discrete(2), "a_1": spaces.Discrete(2)}
MISTAKES: dict[str, tuple[Any, type[Exception], str]] = {
    "an environment of one agent": (
        lambda: train(env=gym.make("CartPole-v1")), EnvError, r"CartPoleEnv has one agent.*fix: .*mpe2",
    ),
    "no memory": (
        lambda: train_multi_agent_off_policy(Meeting(), "x", pop=population(), verbose=False),
        AlgorithmError, r"got memory=None.*fix: ReplayBuffer",
    ),
    "other agents than those of the environment": (
        lambda: train(pop=[MADDPG(boxes(a_0=2, a_1=2), CHOICES, index=i) for i in range(3)]),
        ConfigError, r"has the agents \['a_0', 'a_1'\], the environment has .*fix: agent_ids",
    ),
    "spaces that are neither a list nor a mapping": (
        lambda: MADDPG(spaces.Box(-1, 1, (2,)), CHOICES), TypeError, r"must be a list or dictionary.*fix: ",
    ),
    "lists without names": (
        lambda: MADDPG(list(boxes(a_0=2, a_1=2).values()), list(CHOICES.values())),
        AlgorithmError, r"need the agents' names. fix: agent_ids",
    ),
    "spaces of one agent for a population of teams": (
        lambda: create_population("MADDPG", NET, {}, spaces.Box(-1, 1, (2,)), spaces.Discrete(2)),
        TypeError, r"Observation spaces must be a list or dictionary.*fix: ",
    ),
    "no spaces for a population of teams": (
        lambda: create_population("MADDPG", NET), ConfigError, r"observation_space and action_space of all agents.*fix",
    ),
    "spaces of several agents for single ones": (
        lambda: create_population("DQN", NET, {}, boxes(a_0=2), {"a_0": CHOICES["a_0"]}),
        AlgorithmError, r"DQN trains one agent.*fix: algo='MADDPG'",
    ),
    "an unknown module": (
        lambda: agilerl.train("mpe2.simple_spead_v3", out=None), EnvError, r"unknown environment 'mpe2.*fix: mpe2",
    ),
    "exploration rates in a manifest": (
        lambda: agilerl.train(Meeting, out=None, eps_start=0.5),
        ConfigError, r"training.eps_start.*means nothing to MADDPG, which learns from replay of several agents",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_is_a_named_error_with_what_to_do(name: str) -> None:
    make, kind, says = MISTAKES[name]
    with pytest.raises(kind, match=says):
        make()


def test_an_agent_prints_its_groups_and_networks() -> None:
    text = str(population(size=1)[0])
    assert "group     caller (2 agents)  Box(2,) -> Discrete(3)" in text
    assert "network   actors.mover" in text


def test_torch_is_not_touched() -> None:
    before = torch.random.get_rng_state()
    train(max_steps=24)
    assert torch.equal(before, torch.random.get_rng_state())
