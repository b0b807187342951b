"""Generations that begin short and double; evaluations in which some episodes decide who plays the others."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_envs import Episodes

import agilerl
from agilerl.algorithms import DQN
from agilerl.collect.evaluator import Evaluator
from agilerl.collect.off_policy import OffPolicyCollector
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.options import LanguageOptions, LoopOptions, OffPolicyOptions
from agilerl.errors import ConfigError
from agilerl.ranks import ONE
from agilerl.rollouts.evaluate import contested
from agilerl.telemetry.record import BaseSink
from agilerl.training.loop import LoopSettings, TrainingLoop
from agilerl.utils.utils import make_vect_envs

SMALL: dict[str, Any] = {
    "num_envs": 2, "learn_step": 32, "update_epochs": 1, "latent_dim": 8, "eval_episodes": 6, "confirm_episodes": 0,
    "restarts": False, "target_score": None, "patience": None, "evolve_from": 0.0, "verbose": False,
}  # fmt: skip


# --- the pace


@pytest.mark.parametrize(
    ("first", "lengths"), [(None, [8, 8, 8]), (1, [1, 1, 2, 4, 8, 8]), (3, [3, 3, 6, 8]), (8, [8, 8]), (100, [8, 8])]
)
def test_generations_double_until_they_last_evo_steps(first: int | None, lengths: list[int]) -> None:
    options, begun = LoopOptions(evo_steps=8, evo_first=first), 0
    for length in lengths:
        assert options.generation_steps(begun) == length
        begun += length


@pytest.mark.parametrize(
    ("steps", "first", "count"),
    [(24, None, 3), (25, None, 4), (24, 8, 3), (20, 3, 4), (24, 3, 5), (3, 3, 1), (4, 3, 2), (1, None, 1)],
)  # from 3 on: 3, 3, 6, then 8 each
def test_the_generations_of_a_budget_are_counted(steps: int, first: int | None, count: int) -> None:
    assert LoopOptions(max_steps=steps, evo_steps=8, evo_first=first).generations() == count


def test_generations_are_counted_as_they_are_rounded() -> None:
    options = LoopOptions(max_steps=24, evo_steps=8, evo_first=3)
    assert options.generations(lambda steps: -(-steps // 4) * 4) == 4  # 4, 4, 8, 8


@pytest.mark.parametrize(
    ("evo_steps", "more", "is_noted"),
    [
        (16, {}, True),
        (498, {}, True),
        (500, {}, False),
        (16, {"carry_envs": True}, False),
        (16, {"eval_share": 0.5}, False),
    ],
)
def test_generations_of_less_than_half_an_episode_are_noted(
    evo_steps: int, more: dict[str, Any], is_noted: bool
) -> None:
    """CartPole-v1 ends after 500 steps: in two environments half of that is a generation of 500 steps."""
    options = OffPolicyOptions(evo_steps=evo_steps, max_steps=1000, **more)
    env = make_vect_envs("CartPole-v1", num_envs=2)
    source = OffPolicyCollector(env, ReplayBuffer(64), options)
    source.open([DQN(env.single_observation_space, env.single_action_space, index=0)], run_seed=0)
    notes = [note for note in source.notes if "begins anew with each generation" in note]
    assert bool(notes) == is_noted
    if is_noted:
        assert f"the first {evo_steps // 2} of up to 500 steps" in notes[0]
        assert "training.evo_steps=1000" in notes[0]
    env.close()


def test_a_run_has_the_generations_that_its_options_say() -> None:
    steps: list[int] = []
    counts: set[int] = set()
    run = agilerl.train(
        "CartPole-v1", "PPO", preset=False, population=2, steps=448, evo_steps=128, evo_first=32, out=None,
        callbacks=[lambda record: steps.append(record.env_steps), lambda record: counts.add(record.generations)],
        **SMALL,
    )  # fmt: skip
    assert steps == [32, 64, 128, 256, 384, 448]
    assert counts == {6}
    assert run.result["env_steps_population"] <= 2 * 448


@pytest.mark.parametrize(
    ("share", "evaluated", "steps"),
    [(None, 100, 8), (0.5, 0, 8), (0.5, 4, 8), (0.5, 4.5, 9), (0.5, 40, 80), (2.0, 40, 20)],
)
def test_a_generation_pays_for_the_evaluation_before_it(share: float | None, evaluated: float, steps: int) -> None:
    assert LoopOptions(evo_steps=8, eval_share=share).generation_steps(100, evaluated) == steps


@pytest.mark.parametrize("share", [0, -1.0, float("inf"), float("nan")])
def test_a_share_is_above_zero(share: float) -> None:
    with pytest.raises(ConfigError, match="eval_share"):
        LoopOptions(eval_share=share)


class Forty(Episodes):
    """Episodes of forty steps."""

    length = 40


def test_long_episodes_make_evaluations_short_and_generations_long() -> None:
    """Six of forty steps are 240 of each member. Within half of the training steps there is room for two episodes of
    one member, 80 steps: 40 of each member, so that generations are 80 steps, 3 rollouts of 32."""
    for share, lengths in ((None, list(range(32, 1025, 32))), (0.5, [32, *range(128, 993, 96), 1024])):
        steps: list[int] = []
        evaluated: list[int] = []
        run = agilerl.train(
            Forty, "PPO", preset=False, population=2, steps=1024, evo_steps=32, out=None, evolution=False,
            eval_share=share, eval_screen=0, **SMALL,
            callbacks=[_Noted(steps, evaluated)],
        )  # fmt: skip
        assert steps == lengths
        assert run.result["evaluation_env_steps"] == evaluated[-1]
        if share is None:
            assert evaluated[-1] == 240 * 2 * len(steps)
        else:
            assert evaluated[:10] == list(range(80, 801, 80))
            assert evaluated[-1] == 1040, "at most half of 2,048 training steps, and less than one evaluation more"


class _Noted:
    """Steps and evaluation steps of every generation."""

    def __init__(self, steps: list[int], evaluated: list[int]) -> None:
        self.steps, self.evaluated = steps, evaluated

    def on_generation(self, record: Any) -> None:
        self.steps.append(record.env_steps)
        self.evaluated.append(record.evaluation_env_steps)


# --- the stages


@pytest.mark.parametrize(
    ("returns", "kept"),
    [
        ([[10, 10], [0, 0], [9, 9]], [0]),  # without spread the best alone
        ([[10, 10], [10, 10]], [0, 1]),  # nothing tells them apart
        ([[10, 0], [8, 1]], [0, 1]),  # differences 2 and -1: 0.5 behind, error 1.5
        ([[10, 0], [8, 0]], [0]),  # differences 2 and 0: 1 behind, error 1
        ([[10, 0], [8, 0.7]], [0, 1]),  # 2 and -0.7: 0.65 behind, error 1.35, half of it 0.675
        ([[10, 0], [8, 0.6]], [0]),  # 2 and -0.6: 0.7 behind, half of the error 0.65
        ([[10, 0], [8, -2.2]], [0]),  # 2 and 2.2: 2.1 behind, error 0.1
        ([[10, 0], [9, -3]], [0]),  # 1 and 3: 2 behind, error 1
        ([[0, 0, 3], [3, 0, 0], [1, 1, 1]], [0, 1, 2]),
        ([[np.nan, 1], [2, 2]], [1]),  # who has diverged is not in question
        ([[np.nan, np.nan], [np.nan, np.nan]], [0, 1]),
    ],
)
def test_who_is_within_half_a_standard_error_of_the_paired_differences_goes_on(returns: Any, kept: list[int]) -> None:
    assert contested(np.array(returns, float)) == kept


class Scripted(Episodes):
    """Episodes of one step that are worth `action`: member by member, since policies differ."""

    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def observe(self) -> np.ndarray:
        return np.ones(2, np.float32)

    def reward(self, action: Any) -> float:
        return float(np.asarray(action).reshape(-1)[0])


def scripted(screen: int, **more: Any) -> Any:
    return agilerl.train(
        Scripted, "PPO", preset=False, steps=64, evo_steps=64, out=None, evolution=False, seed=3,
        **{"population": 4, "eval_screen": screen, "eval_members": None, "normalize_rewards": False, **SMALL, **more},
    )  # fmt: skip


def test_only_those_who_may_be_the_best_play_all_episodes_and_fitness_ranks_as_before() -> None:
    whole, staged = scripted(0), scripted(2)
    assert whole.result["evaluation_env_steps"] == 4 * 6
    assert staged.result["evaluation_env_steps"] == 4 * 2  # one is the best, and every episode says so
    assert staged.history == [[pytest.approx(value) for value in whole.history[0]]]
    assert staged.result["best_member"] == whole.result["best_member"] == int(np.argmax(whole.history[0]))


class Member:
    def __init__(self, index: int) -> None:
        self.index = index


class Played(Evaluator):
    """Returns that are given, [N, episodes], in place of episodes."""

    def __init__(self, returns: list[list[float]], **options: Any) -> None:
        self.options = LoopOptions(**options)
        self.seed, self.given, self.begun = 0, np.array(returns), np.zeros(len(returns), int)
        self.ranks = ONE
        self.by_agent, self.errors = {}, {}

    def _share(self, count: int) -> int:
        return count

    def _run(self, learner: Any, episode_seeds: np.ndarray) -> list[float]:
        slots = [agent.index - 5 for agent in learner.agents]
        begin, end = self.begun[slots[0]], self.begun[slots[0]] + len(episode_seeds)
        self.returns, self.begun[slots] = self.given[slots, begin:end], end
        means = self.returns.mean(1).tolist()
        self.by_agent |= {slot + 5: [mean, 2 * mean] for slot, mean in zip(slots, means, strict=True)}
        return means

    @contextlib.contextmanager
    def adopted(self, agents: Any) -> Any:
        self.agents = agents
        yield self

    def found(self) -> list[float]:
        return self.staged(self.adopted, [Member(5 + slot) for slot in range(len(self.given))], 0)


def test_nobody_who_has_ended_counts_for_more_than_who_has_gone_on() -> None:
    """2 and 3 lead after two episodes and are worth less after six; 0 and 1, behind by then, do not overtake them."""
    returns = [[3.0] * 6, [4.0] * 6, [9.0, 9.0, *[1.0] * 4], [8.0, 10.0, 0.0, 2.0, 1.0, 2.0]]
    played = Played(returns, eval_episodes=6, eval_screen=2)
    lead = [(18 + 4) / 6, (18 + 5) / 6]
    assert played.found() == pytest.approx([3.0, lead[0], *lead])
    assert played.begun.tolist() == [2, 2, 6, 6]
    assert played.screened_out == {5, 6}
    assert played.errors[7] == pytest.approx(np.std(returns[2], ddof=1) / np.sqrt(6))
    assert played.by_agent[8] == pytest.approx([lead[1], 2 * lead[1]])
    assert played.by_agent[5] == [3.0, 6.0]


def test_members_end_after_each_stage_and_the_last_one_alone_plays_no_more() -> None:
    returns = [[5.0, 6.0, 1.0, 1.0, 1.0, 1.0], [6.0, 5.0, 7.0, 7.0, 0.0, 0.0], [0.0] * 6]
    played = Played(returns, eval_episodes=6, eval_screen=2)
    assert played.found() == pytest.approx([3.25, 6.25, 0.0])
    assert played.begun.tolist() == [4, 4, 2]
    assert played.screened_out == {5, 7}


@pytest.mark.parametrize(
    ("returns", "target", "played"),
    [
        # Student's t at 0.95 with 1, 3 and 5 degrees of freedom is 6.31, 2.35 and 2.02, s is 1.41, 1.15 and 1.10, so
        # the mean of eight is unlikely to be higher than 10 + t s sqrt(1/n - 1/8) = 15.5, 11.0 and 10.5.
        ([9.0, 11.0] * 4, 16.0, 2),
        ([9.0, 11.0] * 4, 12.0, 4),
        ([9.0, 11.0] * 4, 10.6, 6),
        ([9.0, 11.0] * 4, 10.2, 8),
        ([9.0, 11.0] * 4, 9.0, 8),  # reached
    ],
)
def test_a_single_member_plays_until_it_is_unlikely_to_reach_the_target(
    returns: list[float], target: float, played: int
) -> None:
    evaluator = Played([returns], eval_episodes=8, eval_screen=2, target=target)
    assert evaluator.found() == pytest.approx([np.mean(returns[:played])])
    assert evaluator.played == {5: played}
    assert evaluator.screened_out == frozenset()


def test_without_a_target_a_single_member_plays_all_episodes() -> None:
    assert scripted(2, population=1).result["evaluation_env_steps"] == 6
    assert scripted(2, population=1, target_score=1e6).result["evaluation_env_steps"] == 2


def test_agents_that_learn_by_themselves_say_that_there_are_no_stages() -> None:
    class Own(DQN):
        def learn(self, experiences: Any) -> float:
            return 0.0

    env = make_vect_envs("CartPole-v1", num_envs=2)
    agents = [Own(env.single_observation_space, env.single_action_space, index=n) for n in range(2)]
    options = OffPolicyOptions(max_steps=40, evo_steps=20, eval_episodes=4, eval_screen=2, eval_share=0.5)
    loop = TrainingLoop(agents, OffPolicyCollector(env, ReplayBuffer(100), options), options, LoopSettings(seed=1))
    for option in ("eval_screen", "eval_share"):
        assert any(f"{option} is ignored" in note for note in loop.notes)
    assert len(loop.run().history[0]) == 2


def test_one_episode_is_no_stage_and_language_policies_have_no_episodes() -> None:
    with pytest.raises(ConfigError, match="eval_screen=1"):
        LoopOptions(eval_screen=1)
    with pytest.raises(ConfigError, match="evo_first"):
        LoopOptions(evo_first=0)
    for option in ("eval_screen", "eval_share"):
        with pytest.raises(ConfigError, match=rf"training\.{option}"):
            agilerl.train("arithmetic/addition-2", preset=False, out=None, **{option: 2})
    assert LanguageOptions(evo_steps=8, evo_first=2).generation_steps(2) == 2


@pytest.mark.parametrize("share", [None, 1.0])
def test_a_run_that_was_stopped_between_short_generations_goes_on_to_the_same_bits(
    tmp_path: Path, share: float | None
) -> None:
    class Stop(BaseSink):
        def progress(self, env_steps: int, seconds: float) -> None:
            if env_steps > 96:
                raise KeyboardInterrupt

    given: dict[str, Any] = {
        "preset": False,
        "population": 3,
        "steps": 384,
        "evo_steps": 128,
        "evo_first": 32,
        "seed": 2,
    }
    given |= {
        "eval_screen": 2,
        "eval_share": share,
        "eval_members": None,
        "scheme": "race",
        "founders": "spread",
        **SMALL,
    }
    whole = agilerl.train("CartPole-v1", "PPO", out=tmp_path / "whole", **given)
    part = agilerl.train("CartPole-v1", "PPO", out=tmp_path / "part", sinks=[Stop()], **given)
    assert part.interrupted
    resumed = agilerl.resume(part.path, verbose=False)
    assert resumed.history == whole.history
    assert resumed.result["evaluation_env_steps"] == whole.result["evaluation_env_steps"]
    for name, weight in whole.best.policy_state().items():
        assert torch.equal(weight, resumed.best.policy_state()[name]), name
