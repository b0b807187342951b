"""A generation as a function of a shard, and options that are said once."""

from __future__ import annotations

import copy
from dataclasses import FrozenInstanceError, fields
from typing import Any

import numpy as np
import pytest
import torch

from agilerl.algorithms import available, find_algorithm
from agilerl.collect import COLLECTORS, collector_for
from agilerl.collect.bandit import BanditCollector
from agilerl.collect.collector import Shard, ShardResult, Shared
from agilerl.collect.off_policy import OffPolicyCollector
from agilerl.collect.offline import OfflineCollector
from agilerl.collect.rollouts import OnPolicyCollector
from agilerl.collect.teams.rollouts import TeamRolloutCollector
from agilerl.collect.teams.transitions import TeamTransitions
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.config import preset_for
from agilerl.config.schema import Training
from agilerl.core.options import LoopOptions, OffPolicyOptions
from agilerl.errors import ConfigError
from agilerl.language.collect.collector import LanguageCollector
from agilerl.training.dispatch import Dispatcher
from agilerl.training.manifest.build import OTHER_NAMES, make_options
from agilerl.training.scheduling import Scheduler
from agilerl.utils.utils import create_population, make_vect_envs
from agilerl.workers.executor import NoWorkers

NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 16}


def opened(algo: str, **options: Any) -> tuple[Any, list[Any], Any]:
    """(source, its two members, environment)."""
    env = make_vect_envs("CartPole-v1", num_envs=2)
    kwargs = {"learn_step": 8, "batch_size": 8}
    agents = create_population(
        algo, NET, None, env.single_observation_space, env.single_action_space, population_size=2, num_envs=2, seed=3,
        algo_kwargs=kwargs,
    )  # fmt: skip
    common = {"max_steps": 200, "evo_steps": 80, "eval_episodes": 2}
    source: Any
    if algo == "DQN":
        source = OffPolicyCollector(env, ReplayBuffer(500), OffPolicyOptions(**common, learning_delay=16, **options))
    else:
        source = OnPolicyCollector(env, LoopOptions(**common, **options))
    source.open(agents, 7)
    return source, agents, env


def bits(agents: list[Any]) -> list[np.ndarray]:
    return [p.detach().numpy().copy() for agent in agents for p in agent.policy_module().parameters()]


def ended(steps: Any) -> tuple[int, Any]:
    """(environment steps, what comes at the end)."""
    made = 0
    while True:
        try:
            made += next(steps)
        except StopIteration as end:
            return made, end.value


def shard_of(agents: list[Any], source: Any) -> Shard:
    shared = Shared(source.epsilon, source.shared[0].rewards, source.statistics(agents), None, source.memories())
    return Shard(agents, [0, 1], 7, 0, 0, 40, shared)


@pytest.mark.parametrize("algo", ["DQN", "PPO"])
def test_equal_shards_give_equal_results_and_the_source_is_left_as_it_was(algo: str) -> None:
    source, agents, env = opened(algo, normalize_rewards=True)
    shard = shard_of(agents, source)
    memories, twins = copy.deepcopy((dict(shard.shared.memories), agents))
    before = source.shared[0]
    results: list[ShardResult] = []
    for members, kept in ((agents, shard.shared.memories), (twins, memories)):
        own = Shard(members, [0, 1], 7, 0, 0, 40, Shared(source.epsilon, source.shared[0].rewards, None, None, kept))
        with source.adopted(members) as learner:
            made, result = ended(source.run(own, source.lanes, learner))
        assert made == 2 * 80
        results.append(result)
    one, other = results
    assert source.shared[0] is before
    assert one.tallies == other.tallies
    assert sorted(one.tallies) == [0, 1]
    assert [tally.env_steps for tally in one.tallies.values()] == [80, 80]
    assert one.shared.epsilon == other.shared.epsilon
    assert [agent._reward_statistics["count"] for agent in agents] == [80, 80]
    assert [agent._reward_statistics for agent in agents] == [twin._reward_statistics for twin in twins]
    for a, b in zip(bits(agents), bits(twins), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(FrozenInstanceError):
        shard.number = 1  # type: ignore[misc]
    source.close()
    env.close()


def test_the_rate_of_exploration_moves_on_with_the_result_alone() -> None:
    source, agents, env = opened("DQN", eps_start=1.0, eps_end=0.0, eps_decay=0.5)
    steps = Dispatcher(source, Scheduler(NoWorkers(), 0, print)).generation(agents, 0, 0)
    next(steps)
    assert source.epsilon == 1.0
    made, tallies = ended(steps)
    assert (made, [tally.env_steps for tally in tallies]) == (2 * 80 - 4, [80, 80])
    assert source.epsilon == 0.5**40
    source.close()
    env.close()


def test_a_generation_that_is_not_ended_gives_members_what_they_have_learned() -> None:
    source, agents, env = opened("DQN")
    before = bits(agents)
    steps = Dispatcher(source, Scheduler(NoWorkers(), 0, print)).generation(agents, 0, 0)
    for _ in range(30):
        next(steps)
    steps.close()
    assert any((a != b).any() for a, b in zip(before, bits(agents), strict=True))
    with torch.no_grad():  # and what they are given now is theirs
        for parameter in agents[0].policy_module().parameters():
            parameter.zero_()
    assert all((part == 0).all() for part in bits(agents[:1]))
    assert any((part != 0).any() for part in bits(agents[1:]))
    source.close()
    env.close()


def test_more_shards_than_members_are_a_named_error() -> None:
    source, agents, env = opened("DQN")
    source.close()
    with pytest.raises(ConfigError, match=r"shards=3 needs a member .*got pop_size=2\. fix: pop_size=3, or"):
        source.open(agents, 7, shards=3)
    env.close()


def test_every_algorithm_has_a_collector() -> None:
    found = {
        find_algorithm(name).experience.name: collector_for(find_algorithm(name).experience) for name in available()
    }
    assert found == {
        "dataset": OfflineCollector, "transitions": OffPolicyCollector, "rollouts": OnPolicyCollector,
        "team_transitions": TeamTransitions, "team_values": TeamTransitions, "team_rollouts": TeamRolloutCollector,
        "completions": LanguageCollector, "preferences": LanguageCollector,
        "examples": LanguageCollector, "rounds": BanditCollector,
    }  # fmt: skip
    assert found.keys() == COLLECTORS.keys()


def test_every_key_of_the_training_section_reaches_an_option() -> None:
    elsewhere = {"pop_size", "seed", "train_max_episode_steps"}  # read where populations and environments are made
    options = {field.name for field in fields(OffPolicyOptions)}
    assert set(Training.model_fields) - set(OTHER_NAMES.values()) - elsewhere <= options
    manifest = preset_for("LunarLander-v3")
    made = make_options(manifest)
    assert made.target == manifest.training.target_score
    assert made.rescore_episodes == manifest.training.elite_rescore_episodes
    assert made.fitness_window == manifest.tournament_selection.eval_loop
    assert (made.max_steps, made.eps_decay) == (manifest.training.max_steps, manifest.training.eps_decay)


def test_a_generation_of_rollouts_has_whole_ones_of_the_longest() -> None:
    """Rollouts of 8 and 24 steps of a member: 80 steps are rounded up to 96."""
    source, agents, env = opened("PPO")
    assert [source.steps_of_generation(steps) for steps in (1, 80, 83)] == [8, 80, 88]
    agents[1].learn_step = 24
    plan = source.plan(agents, 1, 80)
    assert [source.steps_of_generation(steps) for steps in (1, 80, 96)] == [24, 96, 96]
    assert plan.length == 40, "each member rounds by itself"
    env.close()
