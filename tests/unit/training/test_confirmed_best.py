"""The best agent of a run that reaches no target is confirmed, by episodes that chose nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from sinks import Kept
from small_envs import Episodes

import agilerl
from agilerl.collect.evaluator import Evaluator
from agilerl.collect.fitness import MeanReturn, PopulationEvaluation
from agilerl.core.options import OffPolicyOptions
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.ranks import Ranks
from agilerl.runs.directory import RunDirectory
from agilerl.runs.records import RunRecords
from agilerl.training import loop
from agilerl.training.best import BestAgent
from agilerl.utils.utils import create_population, make_vect_envs


class Lottery(Episodes):
    """One step, whose reward is drawn: 8 or -8, whatever the agent does. The best of a few is 8, the mean is 0."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def observe(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 1).astype(np.float32)

    def reward(self, action: Any) -> float:
        return 8.0 if self.np_random.random() < 0.5 else -8.0


RUN: dict[str, Any] = {
    "algo": "DQN", "population": 3, "num_envs": 2, "steps": 800, "training.evo_steps": 100, "eval_episodes": 2,
    "elite_rescore_episodes": 0, "latent_dim": 8, "batch_size": 8, "learning_delay": 8, "learn_step": 50,
    "verbose": False, "confirm_episodes": 64, "eval_members": None,
}  # fmt: skip


def confirmed_of(sink: Kept) -> list[float | None]:
    return [record.confirmation for record in sink.records]


def steps_of(sink: Kept) -> list[int]:
    """Steps of evaluation up to each generation."""
    return [record.evaluation_env_steps for record in sink.records]


@pytest.mark.thorough
def test_the_best_of_noise_is_confirmed_in_the_last_generations_and_counted() -> None:
    records = Kept()
    run = agilerl.train(Lottery, out=None, sinks=[records], **RUN)
    assert max(map(max, run.history)) == 8.0  # what "best" said once
    assert [value is None for value in confirmed_of(records)] == [True] * 5 + [False] * 3
    confirmed = run.result["confirmed"]
    assert run.result["best_fitness"] == confirmed
    assert confirmed >= max(value for value in confirmed_of(records) if value is not None)
    assert abs(confirmed) < 8 * 3 / 64**0.5 + 1  # three standard errors, and the best of five
    played = np.diff([0, *steps_of(records)]).tolist()  # an episode has one step: 3 members x 2, then 64 a candidate
    assert played == [6] * 5 + [6 + 3 * 64, 6 + 64, 6 + 64]


@pytest.mark.parametrize(("budget", "episodes"), [(800, 64), (160, 19), (16, 2)])
def test_the_confirmation_costs_a_fifth_of_the_training_at_most(budget: int, episodes: int) -> None:
    records = Kept()
    agilerl.train(Lottery, out=None, sinks=[records], **{**RUN, "steps": budget, "training.evo_steps": budget})
    assert steps_of(records) == [6 + episodes]  # share 0.2 x 3 members x budget / 5 candidates, at least eval_episodes


def test_the_report_shows_the_agent_that_the_run_has_kept(tmp_path: Path) -> None:
    run = agilerl.train(Lottery, out=tmp_path / "run", **{**RUN, "confirm_episodes": 0})
    records = RunRecords.read(run.path)
    kept = (run.result["best_member"], run.result["best_generation"])
    assert (records.winner.id, records.winner.generation) == kept
    assert records.winner.fitness == run.result["best_fitness"]
    assert kept[0] == run.best.index
    # A run that has been resumed and goes on has the result of before in its record: the highest fitness is shown.
    RunDirectory(run.path).update(status="running", result={"env_steps_population": 1})
    going_on = RunRecords.read(run.path)
    assert going_on.winner.fitness == max(member.fitness for row in records.generations for member in row)
    assert going_on.env_steps == records.env_steps


class Sure(Lottery):
    """Every episode is worth 8."""

    def reward(self, action: Any) -> float:
        return 8.0


def test_of_equally_fit_members_the_one_that_was_evaluated_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "promising", lambda members, count: members[1:2])
    run = agilerl.train(Sure, out=None, **RUN, target_score=8.0)
    assert run.history == [[8.0] * 3]
    assert run.result["best_member"] == 1


@pytest.mark.thorough
def test_a_run_that_misses_its_target_confirms_its_best_in_the_last_generations() -> None:
    records = Kept()
    run = agilerl.train(Lottery, out=None, sinks=[records], **RUN, target_score=1e6, confirm_screen=4)
    assert [value is None for value in confirmed_of(records)] == [True] * 5 + [False] * 3
    assert run.result["best_fitness"] == run.result["confirmed"]
    played = np.diff([0, *steps_of(records)]).tolist()
    # The steady one, the fittest and a leader; hopeless ones too play on, since they are compared here.
    assert played == [6] * 5 + [6 + 3 * 64, 6 + 64, 6 + 64]
    assert run.result["stopped"] == "budget"


class Member:
    """An agent that knows its training returns and can be copied."""

    def __init__(self, name: str, *scores: float) -> None:
        self.name, self.scores = name, list(scores)

    def clone(self) -> Member:
        return Member(self.name, *self.scores)


def test_of_equally_fit_agents_the_one_with_higher_training_returns_is_kept() -> None:
    heard: list[str] = []
    best = BestAgent(lambda agent: heard.append(agent.name))
    for generation, (agent, fitness) in enumerate(
        [
            (Member("lucky", 246.0, 250.0), 500.0),
            (Member("without episodes"), 500.0),
            (Member("less trained", 240.0), 500.0),
            (Member("steady", 480.0, 500.0), 500.0),
            (Member("less fit", 500.0), 499.0),
        ]
    ):
        best.offer(agent, fitness, None, generation)
    assert heard == ["lucky", "steady"]
    assert (best.agent.name, best.kept.fitness, best.kept.generation) == ("steady", 500.0, 3)
    best.offer(Member("confirmed", 100.0), 450.0, MeanReturn(470.0), 5)
    best.offer(Member("unconfirmed", 500.0), 450.0, None, 6)
    assert best.agent.name == "confirmed"


@pytest.mark.parametrize(
    ("fitness", "error", "score", "is_kept"),
    [
        (-160.0, 15.0, -150.0, True),  # 40 lower, two errors of the difference are 50: training decides
        (-160.0, 15.0, -870.0, False),
        (-160.0, 5.0, -150.0, True),  # two errors are 41
        (-171.0, 15.0, -150.0, False),  # 51 lower: fitness decides
        (-100.0, 5.0, -870.0, False),  # 20 higher, not told apart, and trained worse
        (-60.0, 5.0, -870.0, True),  # 60 higher
    ],
)
def test_agents_that_evaluations_cannot_tell_apart_are_told_apart_by_training_returns(
    fitness: float, error: float, score: float, is_kept: bool
) -> None:
    best = BestAgent()
    best.offer(Member("lucky", -862.0), -120.0, None, 0, error=20.0)
    best.offer(Member("other", score), fitness, None, 1, error)
    assert best.agent.name == ("other" if is_kept else "lucky")
    assert (best.kept.fitness, best.kept.error) == ((fitness, error) if is_kept else (-120.0, 20.0))


def names(best: BestAgent) -> tuple[str | None, str | None]:
    return tuple(None if one is None else one.agent.name for one in (best.kept, best.fittest))  # type: ignore[return-value]


def test_many_small_steps_down_do_not_add_up() -> None:
    best = BestAgent()
    for generation in range(10):  # each 30 lower and better trained; two errors of a difference are 57
        best.offer(Member(str(generation), float(generation)), 300.0 - 30 * generation, None, generation, error=20.0)
    assert names(best) == ("1", "0")
    best.offer(Member("less trained", -5.0), 330.0, None, 10, error=20.0)  # above 270 by more than two errors
    assert names(best) == ("less trained", "less trained")
    best.offer(Member("lucky", -9.0), 370.0, None, 11, error=20.0)  # not told apart from 330, so that one stays
    best.offer(Member("lower", 9.0), 300.0, None, 12, error=20.0)  # nor is 300, but it is from 370
    assert names(best) == ("less trained", "lucky")
    best.offer(Member("as lucky, better trained", -1.0), 370.0, None, 13, error=20.0)
    assert names(best) == ("as lucky, better trained", "as lucky, better trained")
    best.forget()
    best.offer(Member("anew", 0.0), -10.0, None, 14)
    assert names(best) == ("anew", "anew")


@pytest.mark.parametrize(
    ("worth", "names_played", "kept"),
    [
        ({"steady": 0.5, "fittest": 0.9}, ["steady", "fittest"], "fittest"),
        ({"steady": 0.9, "fittest": 0.5}, ["steady", "fittest"], "steady"),
        ({"steady": 0.9, "fittest": 0.9}, ["steady", "fittest"], "steady"),
    ],
)
def test_a_confirmation_decides_between_the_steady_one_and_the_fittest(
    worth: dict[str, float], names_played: list[str], kept: str
) -> None:
    """As on MiniGrid-DoorKey-5x5-v0: 0.7 with an error of 0.15 and better trained is not told from 0.96."""
    heard: list[str] = []
    best = BestAgent(lambda agent: heard.append(agent.name))
    best.offer(Member("fittest", 0.92), 0.96, None, 0, error=0.003)
    best.offer(Member("steady", 0.96), 0.7, None, 1, error=0.15)
    played: list[str] = []

    def play(agent: Member) -> MeanReturn:
        played.append(agent.name)
        return MeanReturn(worth[agent.name])

    best.confirm(play)
    assert played == names_played
    assert (names(best), best.confirmed) == ((kept, None), worth[kept])
    assert heard == ["fittest", "steady"] + ["fittest"] * (kept == "fittest")
    best.offer(Member("later", 0.99), 0.99, None, 2)
    assert names(best) == (kept, "later"), "a fitness beats no confirmation, but may ask for another one"
    best.offer(Member("less fit", 0.99), 0.89, None, 3)
    assert names(best) == (kept, "later")


def test_who_is_fitter_after_a_target_was_missed_is_kept_and_who_missed_it_is_not_forgotten() -> None:
    """As on Reacher-v5, whose target is -3.75: once -2.6 of eight episodes had become -7 in twenty, -4 was refused for
    ever after."""
    heard: list[str] = []
    best = BestAgent(lambda agent: heard.append(agent.name))
    best.offer(Member("early", -9.0), -8.0, None, 0, error=1.0)
    best.offer(Member("lucky", -9.0), -2.6, MeanReturn(-7.0, 0.6), 1, error=1.2)
    assert (names(best), best.confirmed) == (("lucky", None), -7.0)
    best.offer(Member("not told apart", -5.0), -5.0, None, 2, error=1.0)  # two errors of the difference are 2.3
    assert (names(best), best.confirmed) == (("lucky", "not told apart"), -7.0)
    best.offer(Member("fitter", -5.0), -4.0, None, 3, error=1.0)
    assert (names(best), best.confirmed) == (("fitter", "fitter"), None)
    best.offer(Member("missed it too", -5.0), -3.0, MeanReturn(-7.5, 0.6), 4, error=1.0)
    assert names(best) == ("fitter", "fitter"), "less than was confirmed before"
    assert heard == ["early", "lucky", "fitter"]
    best.confirm(lambda agent: MeanReturn({"fitter": -7.1}[agent.name]))
    assert (names(best), best.confirmed) == (("lucky", None), -7.0)
    assert heard[3:] == ["lucky"]
    best.confirm(lambda agent: MeanReturn({"lucky": -7.2}[agent.name]), anew=True)
    assert best.confirmed == -7.2


def test_without_episodes_to_confirm_by_the_steady_one_stays() -> None:
    best = BestAgent()
    best.confirm(lambda agent: MeanReturn(1.0))  # nobody is there
    best.offer(Member("fittest", 0.92), 0.96, None, 0, error=0.003)
    best.offer(Member("steady", 0.96), 0.7, None, 1, error=0.15)
    best.confirm(lambda agent: None)
    assert (names(best), best.confirmed) == (("steady", "fittest"), None)


def test_the_errors_of_a_generation_are_known_by_member() -> None:
    env = make_vect_envs(num_envs=2, make_env=Lottery)
    spaces = {"observation_space": Lottery.observation_space, "action_space": Lottery.action_space}
    agents = create_population("DQN", population_size=2, **spaces, seed=0)
    evaluator = Evaluator(env, OffPolicyOptions(eval_episodes=16), seed=0)
    learner = Learner(agents, choose(agents, "sequential"))
    first, second = evaluator.population(learner, 0)
    assert first == second  # the same seeds for all
    share = (first + 8) / 16  # of 16 episodes give 8, the others -8: variance 256 share (1 - share)
    error = (256 * share * (1 - share) / 15) ** 0.5
    assert 0 < share < 1
    assert evaluator.errors == pytest.approx({agent.index: error for agent in agents})
    env.close()


class Scripted(Evaluator):
    """Episodes whose returns are known, in the order of their seeds."""

    def __init__(self, returns: list[float], **options: Any) -> None:
        super().__init__(None, OffPolicyOptions(**options), seed=0)
        self.script, self.played = returns, list[int]()

    def _run(self, learner: Any, episode_seeds: np.ndarray) -> list[float]:
        begin = sum(self.played)
        self.played.append(len(episode_seeds))
        self.returns = np.array(self.script[begin : begin + len(episode_seeds)], float)[None]
        return [float(self.returns.mean())]


@pytest.mark.parametrize(
    ("returns", "most", "played"),
    [
        ([0, 8, 0, 8, 8, 8, 8, 8], 0, [4]),  # nothing follows unless it is asked for
        ([0, 8, 0, 8, 8, 8, 8, 8], 8, [4, 4]),  # 4 reaches 3.5, by less than two errors of 2.3
        ([0, 8, 0, 8, 0, 0, 0, 0, 8, 8], 10, [4, 4]),  # after eight it does no more
        ([6, 8, 6, 8, 0, 0, 0, 0], 8, [4]),  # 7 is above 3.5 by more than two errors of 0.58
        ([0, 8, 0, 0, 8, 8, 8, 8], 8, [4]),  # below the target nothing follows
        ([0, 8, 0, 8, 0, 8, 0, 8, 0, 8], 10, [4, 4]),  # two more can hardly raise 4 to the 6.2 that ten need
        ([0, 8, 8, 8, 4, 4, 8, 4, 8, 8], 10, [4, 4, 2]),  # 5.5 is below the 5.6 of eight, above the 5.4 of ten
    ],
)
def test_episodes_follow_while_the_mean_is_above_the_target_by_less_than_its_errors(
    returns: list[float], most: int, played: list[int]
) -> None:
    evaluator = Scripted(returns, target=3.5, stop_errors=2.0, confirm_episodes=4, confirm_most=most)
    mean = evaluator.held_out(None, 0)
    assert evaluator.played == played
    assert mean == pytest.approx(np.mean(returns[: sum(played)]))
    assert evaluator.error == pytest.approx(np.std(returns[: sum(played)], ddof=1) / sum(played) ** 0.5)


@pytest.mark.parametrize(("batch", "first"), [(0, 12), (32, 25), (8, 7)])
def test_a_hopeless_confirmation_ends_after_a_batch(batch: int, first: int) -> None:
    options: dict[str, Any] = {"target": 3.5, "confirm_episodes": 50, "confirm_screen": batch, "confirm_most": 150}
    hopeless = Scripted([0, 0.5] * 75, **options)
    hopeless.held_out(None, 0)
    assert hopeless.played == [first]  # 50 episodes in equal batches of at most 16, 32, 8


TRIES: dict[str, Any] = {**RUN, "population": 4, "steps": 1_600, "training.evo_steps": 100, "confirm_episodes": 64}


def confirmations_of(path: Path) -> list[tuple[str, str, str]]:
    """(generation, mean, number of episodes) of the confirmations, in metrics.csv."""
    rows = [line.split(",") for line in (path / "metrics.csv").read_text().splitlines()]
    names = ("generation", "confirmation", "confirmation_episodes")
    found = [tuple(row[rows[0].index(name)] for name in names) for row in rows[1:]]
    return [(number, mean, count) for number, mean, count in dict.fromkeys(found) if mean]


@pytest.mark.thorough
def test_a_confirmation_of_a_barely_missed_target_ends_early_and_a_far_exceeded_one_is_confirmed(
    tmp_path: Path,
) -> None:
    missed = agilerl.train(Lottery, out=tmp_path / "missed", **TRIES, target_score=3.0)
    tried = [int(count) for _, _, count in confirmations_of(missed.path)]
    assert set(tried) <= {16, 32, 48, 64}  # in batches of 16
    assert len(tried) > 4
    assert sum(tried) < 0.7 * 64 * len(tried)
    assert missed.result["stopped"] == "budget"
    recorded = json.loads((missed.path / "run.json").read_text())["result"]
    assert (recorded["confirmations"], recorded["confirmation_episodes"]) == (len(tried), sum(tried))
    reached = agilerl.train(Lottery, out=None, **TRIES, target_score=-6.0)
    assert reached.result["stopped"] == "target"
    assert (reached.result["confirmations"], reached.result["confirmation_episodes"]) == (1, 64)


STOPPED: dict[str, dict[str, Any]] = {
    "without a target": RUN,
    # Fitness of four episodes reaches 4 at times, the mean of 64 others never does.
    "a target that was missed": {**RUN, "eval_episodes": 4, "target_score": 4.0, "seed": 7},
    "several tries": {**TRIES, "target_score": 3.0},
}
ENDS = [("without a target", 3), ("several tries", 2)]
SLOW_ENDS = [("without a target", 6), ("several tries", 6), ("a target that was missed", 4)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("case", "stop_after"),
    [
        *ENDS,
        ("a target that was missed", 2),
        *(pytest.param(*end, marks=pytest.mark.slow) for end in SLOW_ENDS),
    ],
)
def test_a_stopped_run_confirms_the_same_best_to_the_bit(case: str, stop_after: int, tmp_path: Path) -> None:
    run, records = STOPPED[case], Kept()
    whole = agilerl.train(Lottery, out=tmp_path / "whole", sinks=[records], **run)
    if case == "a target that was missed":
        assert any(value is not None for value in confirmed_of(records)[:stop_after]), "missed before it is stopped"
    part = agilerl.train(Lottery, out=tmp_path / "part", sinks=[Kept(stop_after)], **run)
    assert part.interrupted
    resumed = agilerl.resume(part.path, env=Lottery, verbose=False)
    assert {k: v for k, v in resumed.result.items() if "seconds" not in k} == {
        k: v for k, v in whole.result.items() if "seconds" not in k
    }
    assert resumed.history == whole.history
    assert confirmations_of(part.path) == confirmations_of(whole.path)
    for name, weight in whole.best.policy_state().items():
        assert torch.equal(weight, resumed.best.policy_state()[name]), name
    files = [path / "best/policy.safetensors" for path in (whole.path, part.path)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert json.loads((part.path / "run.json").read_text())["result"]["confirmed"] == whole.result["confirmed"]


def candidate_of(
    means: list[float], errors: list[float], target: float, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> list[int]:
    """Slots of the members whose confirmation is tried in a run of one generation with this evaluation."""
    slots: list[int] = []

    def evaluate(self: Any, agents: Any, number: int, episodes: Any = None) -> PopulationEvaluation:
        names = [agent.index for agent in agents]
        return PopulationEvaluation(
            means, dict(zip(names, errors, strict=True)), dict.fromkeys(names, options.get("played", 16))
        )

    def confirm(self: Any, agent: Any, number: int, episodes: int | None = None) -> MeanReturn:
        if episodes is None:
            slots.append(agent.index)
        return MeanReturn(-100.0, 1.0, 16)

    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    monkeypatch.setattr(Evaluator, "confirm", confirm)
    settings = {**RUN, "population": len(means), "steps": 100, "target_score": target}
    agilerl.train(Lottery, out=None, **{**settings, "confirm_episodes": options.get("confirm_episodes", 64)})
    return slots


def test_a_confirmation_is_played_only_if_the_shrunken_mean_nearly_reaches_the_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 210 is shrunk to 204, with a standard error of 17.9 (`tests/unit/hpo/test_shrinkage.py`): up to 212.9.
    means, errors = [190.0, 210.0, 170.0, 150.0], [20.0] * 4
    assert candidate_of(means, errors, 210.0, monkeypatch) == [1]
    assert candidate_of(means, errors, 211.0, monkeypatch) == []  # no mean reaches it
    means = [105.0, 110.0, 100.0, 85.0]  # shrunk to the common mean of 100, as if all were equal
    assert candidate_of(means, errors, 101.0, monkeypatch) == []
    assert candidate_of(means, [0.1] * 4, 101.0, monkeypatch) == [1]
    assert candidate_of(means, errors, 100.0, monkeypatch) == [1]
    assert candidate_of(means[:3], errors[:3], 105.0, monkeypatch) == [1]  # three are not shrunk


def test_without_held_out_episodes_a_run_stops_at_the_highest_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(self: Any, agents: Any, number: int, episodes: Any = None) -> PopulationEvaluation:
        names = [agent.index for agent in agents]
        return PopulationEvaluation([105.0, 110.0, 100.0, 85.0], dict.fromkeys(names, 20.0), dict.fromkeys(names, 16))

    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    settings = {**RUN, "population": 4, "steps": 200, "target_score": 101.0, "confirm_episodes": 0}
    run = agilerl.train(Lottery, out=None, **settings)
    assert (run.result["stopped"], run.result["best_member"], len(run.history)) == ("target", 1, 1)


class TwoRanks(Ranks):
    """This process, and another one that plays as many episodes."""

    size = 2


class SharedScript(Scripted):
    """Each call plays half of the episodes here; `returns` are those of both ranks."""

    def _run(self, learner: Any, episode_seeds: np.ndarray) -> list[float]:
        fitness = super()._run(learner, episode_seeds)
        self.returns = np.repeat(self.returns, 2, axis=1)  # the other rank's are the same
        return fitness


def test_ranks_share_a_batch_and_decide_by_the_episodes_of_all() -> None:
    options: dict[str, Any] = {"target": 3.5, "confirm_episodes": 100, "confirm_screen": 16, "confirm_most": 300}
    hopeless = SharedScript([0, 0.5] * 150, **options)
    hopeless.ranks = TwoRanks()
    hopeless.held_out(None, 0)
    assert hopeless.played == [7]  # 50 for each rank in seven batches, of 14 to 16 episodes together
    reached = SharedScript([6, 8] * 150, **options)
    reached.ranks = TwoRanks()
    assert reached.held_out(None, 0) == pytest.approx(7.0)
    assert sum(reached.played) == 50
    assert reached.error == pytest.approx(np.std([6, 8] * 50, ddof=1) / 10)
