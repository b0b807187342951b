"""An evaluation in stages is the evaluation in one piece: episode by episode the same seed, opponent and seat."""

from __future__ import annotations

import contextlib
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agilerl.collect import evaluator as evaluator_module
from agilerl.collect.evaluator import Evaluator
from agilerl.collect.teams import self_play as self_play_module
from agilerl.collect.teams.self_play import AgainstOpponents, Match
from agilerl.core.options import LoopOptions
from agilerl.language.algorithms import scoring as judging
from agilerl.rollouts.episodes import EvaluationResult

QUICK = settings(max_examples=60, deadline=None)
COUNTS = st.integers(2, 70)


class Members:
    """As many members as are asked to act; nothing is played."""

    def __init__(self, agents: Any) -> None:
        self.agents = list(agents)

    def begin_episodes(self) -> None:
        """Nothing to forget."""


def returns_of(seeds: Any) -> np.ndarray:
    """[episodes, 2] what both seats, or agents, get: it follows from the seed, and sums to zero."""
    first = np.sin(np.asarray(seeds, float))
    return np.stack([first, -first], 1)


class Table:
    """Stands for `rollouts.evaluate.evaluate`: notes who plays which episode, in waves of as many as lanes."""

    def __init__(self) -> None:
        self.played: list[tuple[Any, ...]] = []  # (number, seed) of each episode; of self-play also opponent and seat

    def evaluate(
        self, actor: Any, lanes: Any, members: int, episodes: int, seeds: Any, limit: Any, by_agent: bool
    ) -> EvaluationResult:
        at_once = lanes.num_lanes // members
        for first in range(0, episodes, at_once):
            wave = seeds[first : first + at_once].tolist()
            actor.begin_episodes()
            more: list[tuple[int, ...]] = [()] * len(wave)
            if isinstance(actor, Match):
                places, order = actor._places, np.argsort(actor._places.lanes)[: len(wave)]
                more = list(zip(places.who[order].tolist(), (1 - places.seats[order]).tolist(), strict=True))
            rows = zip(wave, more, strict=True)
            self.played += [(len(self.played) + k, seed, *own) for k, (seed, own) in enumerate(rows)]
        returns = np.repeat(returns_of(seeds)[None], members, 0)
        cut = np.zeros((members, episodes), bool)
        return EvaluationResult(returns if by_agent else returns[..., 0], cut.astype(int), 0, cut)


def judge(kind: str, table: Table, lanes: int, pool: int, **options: Any) -> Evaluator:
    """An evaluator of single agents, teams or games of two, of which `table` notes the episodes."""
    given_options = LoopOptions(**options)
    if kind == "self-play":
        made: Evaluator = AgainstOpponents(None, given_options, 3, sum_scores=False)
        made.opponents = SimpleNamespace(count=pool)  # type: ignore[attr-defined]
    else:
        made = Evaluator(None, given_options, 3, sum_scores=kind == "single agents")
    made._replicable = True
    made._lanes_for = lambda count, members, agent: SimpleNamespace(num_lanes=members * lanes, backend="table")  # type: ignore[method-assign,assignment,return-value]
    return made


KINDS = ("single agents", "teams", "self-play")
AGENTS = [SimpleNamespace(index=index) for index in range(3)]


@contextlib.contextmanager
def played_at(table: Table) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for module in (evaluator_module, self_play_module):
            patch.setattr(module, "evaluate", table.evaluate)
        yield


@pytest.mark.parametrize("kind", KINDS)
@given(episodes=COUNTS, stage=st.integers(2, 40), lanes=st.integers(1, 20), pool=st.integers(1, 16))
@example(episodes=64, stage=8, lanes=8, pool=16)
@example(episodes=7, stage=3, lanes=3, pool=16)
@example(episodes=64, stage=9, lanes=4, pool=5)
@QUICK
def test_stages_play_the_episodes_of_the_whole_evaluation(
    kind: str, episodes: int, stage: int, lanes: int, pool: int
) -> None:
    whole, parts = Table(), Table()
    with played_at(whole):
        one = judge(kind, whole, lanes, pool, eval_episodes=episodes)
        fitness = one.population(Members(AGENTS), 5)  # type: ignore[arg-type]
    with played_at(parts):
        two = judge(kind, parts, lanes, pool, eval_episodes=episodes, eval_screen=stage)
        staged = two.staged(lambda agents: contextlib.nullcontext(Members(agents)), AGENTS, 5)  # type: ignore[arg-type]
    assert [row[0] for row in whole.played] == list(range(episodes))
    assert parts.played == whole.played
    assert len({row[1] for row in whole.played}) == episodes, "no seed twice"
    assert staged == pytest.approx(fitness, abs=1e-12)
    for index, row in one.by_agent.items():
        assert two.by_agent[index] == pytest.approx(row, abs=1e-12), "also of agents, or seats"
    if kind == "self-play":
        pairs = Counter((opponent, seat) for _, _, opponent, seat in whole.played)
        met = min(pool, -(-episodes // 2))
        assert len({opponent for opponent, _ in pairs}) == met
        assert max(pairs.values()) - min(pairs.values()) <= 1, "each as often as the others, from both seats"


@pytest.mark.parametrize("kind", KINDS)
@given(
    counts=st.tuples(COUNTS, st.integers(0, 30), st.integers(0, 120)), lanes=st.integers(1, 20),
    pool=st.integers(1, 16), target=st.floats(-0.5, 0.5), errors=st.floats(0, 4),
)  # fmt: skip
@example(counts=(64, 8, 128), lanes=8, pool=16, target=-0.5, errors=4.0)
@QUICK
def test_a_confirmation_in_parts_plays_the_first_episodes_of_a_whole_one(
    kind: str, counts: tuple[int, int, int], lanes: int, pool: int, target: float, errors: float
) -> None:
    count, screen, most = counts
    parts, whole = Table(), Table()
    given_options = {"confirm_episodes": count, "confirm_screen": screen, "confirm_most": most}
    with played_at(parts):
        one = judge(kind, parts, lanes, pool, target=target, stop_errors=errors, **given_options)
        mean = one.held_out(Members(AGENTS[:1]), 2)  # type: ignore[arg-type]
    played = len(parts.played)
    with played_at(whole):
        two = judge(kind, whole, lanes, pool, target=None, **given_options)
        two.held_out(Members(AGENTS[:1]), 2, max(played, count))  # type: ignore[arg-type]
    assert [row[:2] for row in parts.played] == [row[:2] for row in whole.played[:played]]
    if played <= count or pool <= count // 2:  # what is added to fewer pairs than opponents goes round among those
        assert parts.played == whole.played[:played]
    seats = returns_of([row[1] for row in parts.played])
    own = [seats[k, row[3] if kind == "self-play" else 0] for k, row in enumerate(parts.played)]
    if kind != "teams":
        assert mean == pytest.approx(np.mean(own), abs=1e-12)


@given(questions=st.integers(1, 3 * judging.AT_ONCE), members=st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_a_language_policy_is_asked_every_question_of_a_split_once(questions: int, members: int) -> None:
    asked: list[list[int]] = [[] for _ in range(members)]
    agents = [SimpleNamespace(index=index) for index in range(members)]

    class Gym:
        def split(self, name: str) -> list[int]:
            assert name == "test"
            return list(range(questions))

        def score(self, prompts: list[int], texts: Any) -> Any:
            return SimpleNamespace(rewards=np.array(prompts, float)[:, None])

    def written(engine: Any, agents: Any, prompts: Any) -> list[list[str]]:
        for row, own in zip(asked, prompts, strict=True):
            row += own
        return [["" for _ in own] for own in prompts]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "completions_of", written)
        found = judging.mean_reward([SimpleNamespace(agents=agents)], agents, [Gym()] * members, "test")
    assert asked == [list(range(questions))] * members
    assert found == pytest.approx([(questions - 1) / 2] * members)
