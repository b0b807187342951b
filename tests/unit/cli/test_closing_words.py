"""The paragraph that closes a run: what was found, what won, what to try next."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import agilerl
from agilerl.algorithms import worth_a_try
from agilerl.cli.main import app
from agilerl.telemetry.evaluation import Baseline, Evaluation
from agilerl.telemetry.record import Birth
from agilerl.views.report.summary import Ended, in_words

LINE = (
    Birth(0, None, 0, "founder"),
    Birth(4, 0, 1, "rl_hp", "lr", 1e-3, 8e-4),
    Birth(5, 4, 2, "architecture", "encoder.add_node"),
    Birth(6, 0, 2, "rl_hp", "lr", 1e-3, 2e-3),
)
ENDED = Ended(
    algo="PPO",
    env="Hills-v0",
    steps="env steps",
    go_on="agilerl resume runs/Hills-v0/ppo-0001 --steps 40000",
    target=100.0,
    score=120.0,
    stopped="target",
    made=64_000,
    history=[[0.0, 10.0], [50.0, 40.0], [90.0, 80.0], [120.0, 100.0]],
    lineage=LINE,
    members=2,
    best=5,
    together=1,
    values={"lr": 8e-4, "gamma": 0.998, "tau": 0.01},
    ranges={"lr": (1e-4, 1e-2), "gamma": (0.9, 0.998)},
    others="DQN or RainbowDQN",
    seed=4,
)


def test_a_target_that_was_reached() -> None:
    assert in_words(ENDED) == (
        "PPO on Hills-v0 reached its target of 100: a mean return of 120, in 64k env steps of all members together. "
        "The best agent has lr 8e-4, gamma 0.998, after 1 change of hyperparameters and 1 of its network. gamma stands "
        "at the edge of its range: widen it. Next: another seed (--seed 5) shows whether it was luck."
    )


def test_a_run_that_was_still_getting_better_says_how_to_go_on() -> None:
    said = in_words(replace(ENDED, score=70.0, stopped="budget"))
    assert "did not reach its target of 100: a mean return of 70" in said
    assert said.endswith("It was still getting better. Next: agilerl resume runs/Hills-v0/ppo-0001 --steps 40000.")
    assert in_words(replace(ENDED, score=70.0, stopped="budget", go_on="more steps")).endswith("Next: more steps.")


def test_a_stop_at_the_target_that_fresh_episodes_do_not_bear_out() -> None:
    assert "stopped at its target of 100, but fresh episodes give a mean return of 97" in in_words(
        replace(ENDED, score=97.0)
    )


def test_a_score_that_chose_its_agent_is_said_to_have_done_so() -> None:
    said = in_words(replace(ENDED, target=None, stopped="callback", score=0.625, is_fitness=True))
    assert said.startswith(
        "PPO on Hills-v0 came to a fitness of 0.625, which also chose the agent, so that fresh episodes may give less, "
        "in 64k env steps of all members together."
    )
    assert (
        "of 100: a fitness of 70, which also chose the agent, so that fresh episodes may give less, in 64k"
        in in_words(replace(ENDED, score=70.0, stopped="budget", is_fitness=True))
    )


def test_what_learned_nothing_is_told_what_else_there_is() -> None:
    run = replace(ENDED, score=-200.0, stopped="budget", history=[[-200.0]] * 8)
    assert in_words(run).endswith(
        "It scores no more than the first generation did. Next, if that is not the most there is: another "
        "algorithm (DQN or RainbowDQN), or look whether rewards differ."
    )
    assert worth_a_try("PPO", is_box=True) == "SAC or TD3"
    assert worth_a_try("PPO", is_box=False) == "DQN or RainbowDQN"
    assert worth_a_try("SAC", is_box=True) == "PPO"
    assert worth_a_try("MAPPO", is_box=False) == "one of IPPO, MADDPG, MATD3, QMIX, VDN"
    assert worth_a_try("BC", is_box=False) == "one of CQN", "what learns in environments learns from no data"
    assert worth_a_try("BC", is_box=True) == "one of CQL, IQL, TD3BC"
    assert worth_a_try("ILQL", is_box=False) == "one of BC_LM"


def test_one_generation_is_no_reason_for_another_algorithm() -> None:
    short = replace(ENDED, score=-200.0, stopped="budget", history=[[-200.0, -210.0]])
    go_on = "Next: agilerl resume runs/Hills-v0/ppo-0001 --steps 40000."
    assert in_words(short).endswith(f"One generation says little of what can be learned. {go_on}")
    two = replace(short, history=[[-200.0], [-200.0]])
    assert in_words(two).endswith(f"2 generations say little of what can be learned. {go_on}")


def test_a_plateau_without_a_target() -> None:
    flat = [[0.0], [50.0], *[[60.0]] * 8]
    said = in_words(replace(ENDED, target=None, stopped="plateau", score=60.0, history=flat, ranges={}, best=0))
    assert said == (
        "PPO on Hills-v0 came to a mean return of 60 in 64k env steps of all members together and had stopped getting "
        "better. Its best fitness has stayed at about 60 for 8 generations, which may be the most there is. Next, if "
        "it is not: another algorithm (DQN or RainbowDQN), a larger network (--set network.latent_dim=128), or a "
        "larger population."
    )


def test_data_that_are_too_few_for_a_batch_are_named() -> None:
    assert in_words(replace(ENDED, score=1.0, steps="updates", updates=0)).endswith(
        "No update was made, so nothing was learned. Next: more data, or a smaller batch_size."
    )


# --- language policies -----------------------------------------------------------------------------------------------

PROMPTS = "prompts of the report split"
ANSWERS = replace(
    ENDED, algo="GRPO", env="reasoning/sums", steps="prompts", target=None, score=0.75, stopped="budget", ranges={},
    best=0, measure="reward", before=Evaluation.from_returns([0.0, 0.5, 0.0, 0.5], PROMPTS),
    together=1,
    after=Evaluation.from_returns([0.5, 1.0, 0.5, 1.0], PROMPTS),
)  # fmt: skip


def test_a_language_run_says_its_score_before_and_after_and_what_next() -> None:
    go_on = "Next: agilerl resume runs/Hills-v0/ppo-0001 --steps 40000."
    assert in_words(ANSWERS) == (
        "GRPO on reasoning/sums came to a mean reward of 0.75 over 4 prompts of the report split (before training "
        f"0.25), in 64k prompts of all members together. {go_on}"
    )
    worse = replace(ANSWERS, before=ANSWERS.after, after=ANSWERS.before)
    assert "(before training 0.75: worse than that)" in in_words(worse)
    assert in_words(worse).endswith("Next: a smaller learning rate.")
    same = replace(ANSWERS, after=ANSWERS.before)
    assert "0.25: no clear change)" in in_words(same)
    assert in_words(same).endswith(f"{go_on[:-1]}, or a higher learning rate.")
    assert in_words(replace(ANSWERS, target=0.5)).startswith("GRPO on reasoning/sums reached its target of 0.5: a mean")
    chosen = in_words(replace(ANSWERS, before=None, after=None, measure="preference margin"))
    assert "a mean preference margin of 0.75 on the test split, which also chose the agent, in 64k" in chosen


def test_a_language_run_without_an_update_is_told_why() -> None:
    silent = in_words(replace(ANSWERS, after=ANSWERS.before, updates=0))
    assert silent.endswith("Next: a base that earns a reward now and then, an easier task, or rewards for parts of it.")
    silent = in_words(replace(ANSWERS, measure="preference margin", unchanged=True, updates=9))
    assert silent.endswith("Next: a higher learning rate.")


# --- beside random play -----------------------------------------------------------------------------------------------

COIN = Baseline(Evaluation.from_returns([0.0, 1.0] * 10))  # mean 0.5, standard error 0.1147
NOTHING = Baseline(Evaluation.from_returns([0.0] * 20))


@pytest.mark.parametrize(
    ("mean", "error", "verdict"),
    [
        (0.53, 0.0, "no better"),
        (0.72, 0.0, "no better"),  # 0.22 + 2 x 0.1147 is less than the deviation, 0.513
        (0.74, 0.0, "better"),
        (0.74, 0.1, "unclear"),  # 0.24 + 2 x 0.152
        (0.26, 0.0, "worse"),
        (0.28, 0.0, "no better"),
        (0.5, 0.0, "no better"),
    ],
)
def test_a_score_is_above_random_play_by_more_than_two_standard_errors(mean: float, error: float, verdict: str) -> None:
    assert COIN.score is not None
    assert COIN.score.error == pytest.approx(0.11471, abs=1e-5)  # sqrt(0.25 * 20 / 19) / sqrt(20)
    assert COIN.verdict(mean, error) == verdict
    assert Baseline(skipped="no environment").verdict(mean) is None


@pytest.mark.parametrize(
    ("random", "returns", "verdict"),
    [
        ([-878.0, -202.0], [-4.7] * 10, "better"),  # 2 of 66 arrangements: 0.03
        ([-878.0, -202.0], [-900.0] * 10, "worse"),
        ([-878.0, -202.0], [-4.7] * 6, "unclear"),  # 2 of 28 arrangements: 0.07
        ([-878.0, -202.0], [*[-4.7] * 9, -300.0], "unclear"),  # not apart
        ([0.0] * 20, [1.0, 1.0], "better"),  # 2 of 231
        ([0.0], [1.0], "unclear"),
        ([0.0, 10.0] * 3, [4.0, 9.0] * 3, "unclear"),  # 6.5 beside 5: noise of 5.0 beside a deviation of 5.5
    ],
)
def test_a_comparison_is_only_as_sure_as_its_sample(random: list[float], returns: list[float], verdict: str) -> None:
    score = Evaluation.from_returns(returns)
    assert Baseline(Evaluation.from_returns(random)).verdict(score.mean, score.error, returns) == verdict


def test_too_few_episodes_to_compare_give_no_advice_to_change_the_algorithm() -> None:
    few = Baseline(Evaluation.from_returns([-878.0, -202.0]))
    rising = [[-592.0], [-300.0], [-100.0], [-60.0], [-5.0]]
    run = replace(ENDED, target=None, score=-4.7, error=1.0, stopped="minutes", random_play=few, history=rising)
    words = in_words(replace(run, after=Evaluation.from_returns([-4.7] * 6)))
    assert "a mean return of -4.7 (random play -540 in 2 episodes: too few to compare) in 64k" in words
    assert words.endswith("It was still getting better. Next: agilerl resume runs/Hills-v0/ppo-0001 --steps 40000.")
    assert "(random play -540) in 64k" in in_words(replace(run, after=Evaluation.from_returns([-4.7] * 10)))


def test_what_plays_no_better_than_at_random_is_told_so() -> None:
    run = replace(ENDED, score=0.53, error=0.05, stopped="budget", random_play=COIN, history=[[0.4], [0.9], [0.6]])
    said = in_words(run)
    assert "a mean return of 0.53 (random play 0.5: nothing was learned), in 64k" in said
    assert said.endswith(
        "Next: another algorithm (DQN or RainbowDQN), agilerl resume runs/Hills-v0/ppo-0001 --steps 40000, or look "
        "whether rewards differ."
    )
    assert "0.2 (random play 0.5: worse than that)" in in_words(replace(run, score=0.2))
    reached = in_words(replace(run, target=0.5))
    assert "reached its target of 0.5: a mean return of 0.53 (random play 0.5: it reaches the target too)" in reached


def test_a_lucky_first_generation_does_not_hide_what_was_learned() -> None:
    """PPO on CartPole-v1 (seed 0): eight episodes of generation 0 were all played to the end by luck."""
    random = Baseline(Evaluation.from_returns([22.0] * 20))
    history = [[500.0, 120.0], [372.9, 200.0], [459.8, 300.0]]
    run = replace(ENDED, target=475.0, score=464.0, stopped="budget", random_play=random, history=history)
    said = in_words(run)
    assert "a mean return of 464 (random play 22)" in said
    assert said.endswith("It was still getting better. Next: agilerl resume runs/Hills-v0/ppo-0001 --steps 40000.")
    assert "no more than" not in in_words(replace(run, random_play=None)), "nor where random play is unknown"


@pytest.mark.parametrize("stopped", ["budget", "plateau"])
def test_a_flat_top_is_not_called_a_failure(stopped: str) -> None:
    history = [[0.1], [0.5], [0.96], [0.965], [0.96], [0.965]]
    run = replace(ENDED, target=None, score=0.965, stopped=stopped, random_play=NOTHING, history=history)
    said = in_words(run)
    assert "Its best fitness has stayed at about 0.965 for 4 generations, which may be the most there is." in said
    assert "look whether rewards differ" not in said


def test_self_play_and_games_of_zero_sum_have_words_of_their_own() -> None:
    run = replace(ENDED, target=None, score=0.0, stopped="budget", history=[[0.0]] * 6)
    said = in_words(replace(run, is_self_play=True))
    assert "the first generation" not in said
    assert "Fitness in self-play compares members of one generation and need not rise." in said
    zero_sum = in_words(replace(run, random_play=replace(NOTHING, is_zero_sum=True)))
    assert '--opponents self (opponents="self") with IPPO or MAPPO.' in zero_sum
    assert "another algorithm" not in zero_sum


def test_what_kept_a_run_from_learning_is_said() -> None:
    assert "No update was made, so nothing was learned. Next: a smaller learn_step" in in_words(
        replace(ENDED, updates=0)
    )
    assert "No update" not in in_words(replace(ENDED, updates=1))
    assert "Once a member diverged and was replaced" in in_words(replace(ENDED, diverged=1))
    assert "3 times a member diverged and was replaced: a smaller lr may" in in_words(replace(ENDED, diverged=3))


def test_a_baseline_survives_its_record() -> None:
    for one in (COIN, replace(COIN, is_zero_sum=True), Baseline(skipped="no environment")):
        assert Baseline.from_dict(json.loads(json.dumps(one.as_dict()))) == one
    for damaged in (None, 3, [], {}, {"returns": []}, {"returns": ["x"]}):
        assert Baseline.from_dict(damaged) is None
    assert str(COIN) == "random play: mean 0.50, 95% CI 0.30..0.70 over 20 episodes"
    assert str(Baseline(skipped="why")) == "random play: not measured (why)"


def test_a_run_of_its_own_can_be_put_in_words_and_the_command_does(tmp_path: Path) -> None:
    small = {"steps": 512, "population": 2, "num_envs": 4, "learn_step": 64, "evo_steps": 256, "eval_episodes": 2}
    run = agilerl.train("CartPole-v1", "PPO", preset=False, seed=1, out=None, verbose=False, **small)
    assert run.in_words().startswith("PPO on CartPole-v1 did not reach its target of 475: a mean return of ")
    sets = [part for name, value in small.items() for part in ("--set", f"{name}={value}")][4:]
    command = ["train", "CartPole-v1", "--no-preset", "--steps", "512", "--population", "2", "--seed", "1", *sets]
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path), "--test-episodes", "2", "--quiet"])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1].startswith("PPO on CartPole-v1 did not reach its target of 475")


def test_a_score_at_its_target_has_reached_it() -> None:
    words = in_words(replace(ENDED, score=100.0, target=100.0))
    assert "reached its target of 100" in words
    assert "did not reach" not in words
