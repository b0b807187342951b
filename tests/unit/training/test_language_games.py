"""Games of several turns: how they are played and laid out, and that policies learn them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agilerl.algorithms import find_algorithm
from agilerl.collect.collector import Tally
from agilerl.errors import ConfigError
from agilerl.language.base import load_base
from agilerl.language.collect import games as text_games
from agilerl.language.collect.batches import FURTHER, Row
from agilerl.language.collect.games import GameBatches, Games, flatten_turns, play
from agilerl.language.engines import SequentialAdapters, StackedAdapters
from agilerl.language.tiny import tiny_base, tiny_tokenizer
from agilerl.llm_envs import GuessNumber, SyncMultiTurnVecEnv, TokenObservationWrapper
from agilerl.llm_envs.games import bounds
from agilerl.ranks import ONE
from agilerl.training.train_llm import finetune_llm_multiturn, finetune_llm_reasoning


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("game-base")
    tiny_base(folder, tiny_tokenizer(GuessNumber.alphabet), hidden_size=32)
    return load_base(folder, dtype=torch.float64)


def games(base: Any, highest: int = 3, batch: int = 8, group: int = 2) -> SyncMultiTurnVecEnv:
    def make() -> TokenObservationWrapper:
        return TokenObservationWrapper(GuessNumber(highest, tries=3), base.tokenizer, max_turns=3)

    return SyncMultiTurnVecEnv(make, batch, group)


def population(algo: str, base: Any, size: int = 2, **more: Any) -> list[Any]:
    settings = {"max_output_tokens": 2, "group_size": 2, "batch_size": 16, "beta": 0.0, "max_grad_norm": 1.0, **more}
    found: list[Any] = find_algorithm(algo).population(
        size, actor_network=base, seed=1, lora_config={"r": 8, "lora_alpha": 16}, **settings
    )
    return found


def test_what_a_conversation_leaves_is_between_its_answers() -> None:
    assert bounds(["0-15?"]) == (0, 15)
    assert bounds(["0-15?", "7", ">", "12", "<"]) == (8, 11)
    assert bounds(["0-15?", "7", ">", "3", ">", "x", "?"]) == (8, 15)


def test_an_episode_is_laid_out_with_what_was_said_and_where_each_reward_stands(base: Any) -> None:
    (game,) = games(base, highest=7, batch=1, group=1).envs
    game.reset(seed=5)
    tokenizer, number = base.tokenizer, game.env._number
    wrong = [n for n in range(8) if n != number][:1]
    for guess in (*wrong, number):
        game.say([*tokenizer.encode(str(guess), add_special_tokens=False), tokenizer.eos_token_id])
    texts, rewards = flatten_turns([[game.episode()]], base)
    prompt = len(tokenizer.encode("0-7?"))
    assert texts.prompt == prompt
    assert texts.completion_mask[0, 0].tolist() == [True, True, False, True, True], (
        "what the game answers is not learned"
    )
    np.testing.assert_allclose(rewards[0, 0], [0, -0.1, 0, 0, 1.0], atol=1e-6)
    assert texts.attention.all()


def test_members_at_once_play_the_games_that_each_plays_alone(base: Any) -> None:
    agents = population("LLMREINFORCE", base, 3, temperature=2.0)
    source = Games(games(base), 3, 4, 0)

    def played(engine: Any, members: list[int]) -> list[list[tuple[int, ...]]]:
        own = [source.begun(source.batch(number), 2) for number in members]
        play(engine, own, [np.random.default_rng(number) for number in members])
        return [[game.tokens for game in one] for one in own]

    together = played(StackedAdapters(agents), [0, 1, 2])
    alone = [played(SequentialAdapters(agent), [number])[0] for number, agent in enumerate(agents)]
    assert together == alone
    assert len({len(game) for own in together for game in own}) > 1, "games of different lengths"


class Fixed:
    """Collector engine that only says how many ranks there are."""

    def __init__(self, lead: Any) -> None:
        self.agents, self.ranks = [lead], ONE


@pytest.mark.parametrize(("rounds", "played"), [(0, 4), (1, 8), (3, 12)])
def test_groups_of_equal_returns_are_replaced_by_games_from_further_starts(
    base: Any, rounds: int, played: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two starts of two games. Returns of batch 7: both groups equal; of the first further batch: the second unequal; of
    # the second: both unequal, of which the first replaces the group that is still silent.
    returns = {7: [[1, 1], [0, 0]], FURTHER + 7: [[1, 1], [0, 1]], 2 * FURTHER + 7: [[2, 0], [3, 0]]}
    source, asked, (agent,) = Games(games(base, batch=2), 3, 4, 0), list[int](), population("GRPO", base, 1)

    class Played:
        def __init__(self, total: float, start: int) -> None:
            self.ends, self.failed, self.rewards, self.start = [0], False, np.array([total, 0.0]), start

        def episode(self) -> Any:
            return self

    class Told:
        group_size = 2

        def batch(self, number: int, rank: int, size: int) -> list[int]:
            asked.append(number)
            return source.batch(number, rank, size)

        def begun(self, starts: list[int], group: int) -> list[Any]:
            return [Played(total, s) for s, own in zip(starts, returns[asked[-1]], strict=True) for total in own]

    laid, learned = list[Any](), list[Any]()
    monkeypatch.setattr(text_games, "play", lambda *_: None)
    monkeypatch.setattr(text_games, "flatten_turns", lambda rows, _: (laid.extend(rows[0]), torch.zeros(1)))
    monkeypatch.setattr(agent, "arrange", lambda engine, texts, rewards, rngs: learned.append(rewards) or iter(()))
    agent.dynamic_sampling = rounds
    tally = Tally()
    assert list(GameBatches().batches(Fixed(agent), [Row(Told(), 7, np.random.default_rng(0), tally)])) == []
    expected = {0: [[1, 1], [0, 0]], 1: [[0, 1], [0, 0]], 3: [[0, 1], [2, 0]]}[rounds]
    assert learned[0].tolist() == [expected]
    assert [game.rewards[0] for game in laid] == np.ravel(expected).tolist()
    starts = {n: source.batch(n) for n in returns}
    of_groups = {0: starts[7], 1: [starts[FURTHER + 7][1], starts[7][1]],
                 3: [starts[FURTHER + 7][1], starts[2 * FURTHER + 7][0]]}[rounds]  # fmt: skip
    assert [game.start for game in laid] == [start for start in of_groups for _ in range(2)]
    assert (tally.details["games"], tally.scores) == (played, [np.mean(expected)])
    assert len({start for own in starts.values() for start in own}) == 6


def test_an_algorithm_that_compares_no_groups_plays_no_further_games(base: Any) -> None:
    (agent,) = population("LLMREINFORCE", base, 1)
    agent.dynamic_sampling = 3
    row = Row(Games(games(base, batch=1), 3, 4, 0), 0, np.random.default_rng(0), Tally())
    list(GameBatches().batches(SequentialAdapters(agent), [row]))
    assert row.tally.details["games"] == 2


class Echo:
    """Two turns: it shows a digit, and half a point is given for each that is said after it."""

    def reset(self, seed: int | None = None) -> str:
        self.shown = "1"
        return self.shown

    def step(self, text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        reward, over = text.count(self.shown) / 2, self.shown == "2"
        self.shown = "2"
        return self.shown, reward, over, False, {}


@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("LLMREINFORCE", {"lr": 1e-2}),
        ("LLMPPO", {"lr_actor": 1e-2, "lr_critic": 1e-2, "granularity": "turn"}),
        pytest.param("GRPO", {"lr": 1e-2, "variant": "dapo", "dynamic_sampling": 0}, marks=pytest.mark.slow),
    ],
    ids=["LLMREINFORCE", "LLMPPO", "GRPO"],
)
def test_what_is_said_in_a_turn_follows_what_was_shown_in_it(base: Any, algo: str, settings: dict[str, Any]) -> None:
    """ "11" and then "22" give 2; the same in both turns 1; anything at random about 0.1."""
    agents = population(algo, base, 1, group_size=8, batch_size=64, **settings)
    env = SyncMultiTurnVecEnv(lambda: TokenObservationWrapper(Echo(), base.tokenizer, max_turns=2), 8, 8)
    (found,) = finetune_llm_multiturn(
        agents, env, max_steps=8 * 60, evaluation_interval=10, max_reward=2, verbose=False, seed=2, test_games=4
    )
    assert found.fitness[-1] > 1.4


def test_a_run_without_a_seed_of_its_own_goes_on_with_the_games_that_it_began_with(base: Any, tmp_path: Path) -> None:
    """Its seed is then that of the process, which another process has not: the folder keeps it."""

    def run(max_steps: int, process: int) -> list[Any]:
        torch.manual_seed(process)
        agents = population("LLMREINFORCE", base, 2, group_size=2, batch_size=8)
        return finetune_llm_multiturn(
            agents,
            games(base),
            max_steps=max_steps,
            evaluation_interval=1,
            verbose=False,
            test_games=4,
            resume=tmp_path,
        )

    before = run(32, 1)
    after = run(64, 2)
    assert [agent.fitness[: len(old.fitness)] for agent, old in zip(after, before, strict=True)] == [
        agent.fitness for agent in before
    ]
    assert all(len(agent.fitness) == 4 for agent in after)


def test_mistakes_are_named(base: Any) -> None:
    agents = population("LLMPPO", base, 1)
    with pytest.raises(ConfigError, match=r"played turn by turn\. fix: finetune_llm_multiturn"):
        finetune_llm_reasoning(agents, games(base))
    with pytest.raises(
        ConfigError, match=r"^env must be a SyncMultiTurnVecEnv; got GuessNumber\. fix: SyncMultiTurnVecEnv"
    ):
        finetune_llm_multiturn(agents, GuessNumber())
