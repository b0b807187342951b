"""Games in words: what the number game answers, who plays it best, and episodes as sequences of tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from agilerl.errors import ConfigError, EnvError, NotAvailableYetError, ShapeError
from agilerl.language.tiny import CHAT_TEMPLATE, tiny_tokenizer
from agilerl.llm_envs import (
    Example,
    GuessNumber,
    RewardError,
    SyncMultiTurnVecEnv,
    TextGame,
    TokenObservationWrapper,
)
from agilerl.llm_envs.games import PLAYERS, bisecting, bounds

pytest.importorskip("transformers")

TOKENIZER = tiny_tokenizer(GuessNumber.alphabet + " .")
PAD, END = 0, 2


def tokens(text: str) -> list[int]:
    return [int(token) for token in TOKENIZER.encode(text)]


def game_of(number: int, **changes: Any) -> GuessNumber:
    """A game in which that number is to be found."""
    game = GuessNumber(**{"highest": 15, "tries": 5, **changes})
    for seed in range(1000):
        game.reset(seed)
        if game._number == number:
            return game
    raise AssertionError(number)


# --- the game --------------------------------------------------------------------------------------------------------


def test_a_guess_is_told_on_which_side_the_number_lies() -> None:
    game = game_of(7, cost=0.25)
    assert game.step("3") == (">", -0.25, False, False, {})
    assert game.step(" 12\n") == ("<", -0.25, False, False, {})
    assert game.step("7") == ("=", 1.0, True, False, {"number": 7})
    with pytest.raises(EnvError, match="over"):
        game.step("7")


@pytest.mark.parametrize("nonsense", ["", "seven", "16", "-1", "7.0", "٧", "9" * 5000, "3 4"])
def test_what_is_no_number_in_the_range_is_a_guess_all_the_same(nonsense: str) -> None:
    game = game_of(7, tries=2)
    assert game.step(nonsense) == ("?", -0.1, False, False, {})
    assert game.step(nonsense) == ("?", -0.1, True, False, {"number": 7})


def test_games_follow_from_their_seed_and_differ_without_one() -> None:
    def numbers(seed: int | None, count: int) -> list[int]:
        game, found = GuessNumber(10**6), []
        for _ in range(count):
            assert game.reset(seed) == "0-1000000?"
            found.append(game._number)
        return found

    assert numbers(3, 1) * 2 == numbers(3, 2) != numbers(4, 2)
    game = GuessNumber(10**6)
    game.reset(3)
    drawn = [game._number, *(game.reset() and game._number for _ in range(3))]
    assert len(set(drawn)) == 4


def test_sizes_of_games_are_checked() -> None:
    count = "must be an integer of at least 1; got 0"
    for name, value, message in (
        ("highest", 0, count),
        ("tries", 0, count),
        ("cost", 1.0, r"must be in \[0, 1\); got"),
    ):
        with pytest.raises(ConfigError, match=f"^{name} {message}"):
            GuessNumber(**{name: value})


def test_bounds_are_what_a_conversation_leaves() -> None:
    assert bounds(["0-15?"]) == (0, 15)
    assert bounds(["0-15?", "3", ">", "x", "?", "12", "<", "2", ">"]) == (4, 11)


@cache
def best(numbers: int, tries: int, cost: float) -> float:
    """The greatest sum of returns over all numbers that are left, by trying every guess."""
    if not numbers or not tries:
        return 0.0
    rest = [best(k, tries - 1, cost) + best(numbers - 1 - k, tries - 1, cost) for k in range(numbers)]
    return 1.0 - cost * (numbers - 1) + max(rest)


@pytest.mark.parametrize(("highest", "tries"), [(15, 5), (15, 3), (9, 4), (30, 5)])
def test_no_player_does_better_than_the_one_who_bisects(highest: int, tries: int) -> None:
    total = 0.0
    for number in range(highest + 1):
        game, shown, over = game_of(number, highest=highest, tries=tries), [f"0-{highest}?"], False
        while not over:
            said = bisecting(shown, np.random.default_rng(0))
            text, reward, over, _, _ = game.step(said)
            shown += [said, text]
            total += reward
    assert total == pytest.approx(best(highest + 1, tries, 0.1), abs=1e-9)


def test_players_are_ranked_as_they_are_named() -> None:
    env = SyncMultiTurnVecEnv(lambda: TokenObservationWrapper(GuessNumber(), TOKENIZER, 5), 64)
    means = [np.mean([e.rewards.sum() for e in env.play(player, 5)]) for player in PLAYERS.values()]
    assert list(PLAYERS) == ["bisecting", "listening", "guessing"]
    assert means[0] > means[1] > means[2]


# --- one game as tokens ----------------------------------------------------------------------------------------------


def wrapped(number: int = 7, **changes: Any) -> TokenObservationWrapper:
    env = TokenObservationWrapper(game_of(number), TOKENIZER, **{"max_turns": 5, **changes})
    seed = next(s for s in range(1000) if env.env.reset(s) and env.env._number == number)  # type: ignore[attr-defined]
    env.reset(seed)
    return env


def test_an_episode_is_what_was_shown_and_said_in_turn() -> None:
    env = wrapped()
    prompt, reward, terminated, truncated, info = env.say([*tokens("12"), END])
    assert (reward, terminated, truncated, info) == (-0.1, False, False, {})
    assert prompt["input_ids"].tolist() == [[*tokens("0-15?12"), END, *tokens("<")]]
    assert prompt["attention_mask"].tolist() == [[1] * 9]
    assert prompt["text"] == "0-15?12<eos><"
    _, reward, terminated, truncated, info = env.say([*tokens("7"), END, 5, 5])  # what follows the end is nothing
    assert (reward, terminated, truncated, info) == (1.0, True, False, {"number": 7})
    episode = env.episode()
    assert episode.tokens.tolist() == [*tokens("0-15?12"), END, *tokens("<7"), END]
    assert episode.completion_mask.tolist() == [False] * 5 + [True] * 3 + [False] + [True] * 2
    assert episode.turns.tolist() == [-1] * 5 + [0] * 3 + [-1] + [1] * 2
    assert episode.rewards.tolist() == [0] * 7 + [-0.1] + [0] * 2 + [1]
    assert episode.ends.tolist() == [7, 10]
    assert episode.turn_rewards.tolist() == [-0.1, 1.0]
    assert (episode.terminated, episode.truncated, episode.failed) == (True, False, False)
    assert env.conversation == ["0-15?", "12", "<", "7", "="]
    assert episode.examples() == [
        Example(0, tuple(tokens("0-15?")), (*tokens("12"), END)),
        Example(1, (*tokens("0-15?12"), END, *tokens("<")), (*tokens("7"), END)),
    ]
    with pytest.raises(EnvError, match="the episode is over"):
        env.say([END])


def test_the_published_form_of_an_episode_is_about_the_tokens_from_the_second_on() -> None:
    env = wrapped()
    env.say([*tokens("12"), END])
    env.say([*tokens("7"), END])
    ids, said, turns, rewards = env.get_episode_data()
    episode = env.episode()
    assert ids.tolist() == [episode.tokens.tolist()]
    assert said.tolist() == [episode.completion_mask[1:].tolist()]
    assert turns.tolist() == [episode.turns[1:].tolist()]
    assert rewards.tolist() == pytest.approx([-0.1, 1.0])


def test_two_turns_with_nothing_shown_between_them_stay_two() -> None:
    class Silent(GuessNumber):
        def step(self, text: str) -> Any:
            return ("", *super().step(text)[1:])

    env = TokenObservationWrapper(Silent(), TOKENIZER, 3)
    env.reset(0)
    env.say([5])
    env.say([6])
    assert env.episode().ends.tolist() == [5, 6]


def test_a_completion_begins_with_its_prompt_padded_or_not() -> None:
    for padding in ([], [PAD], [PAD] * 4):
        env = wrapped()
        row = [*padding, *env.tokens, *tokens("7"), END, PAD]
        assert env.step(torch.tensor([row]))[1] == 1.0
    env = wrapped()
    with pytest.raises(ShapeError, match="does not begin with the 5 tokens"):
        env.step(torch.tensor([[5, *env.tokens, END]]))
    with pytest.raises(ShapeError, match="at least one token"):
        env.step(torch.tensor([list(env.tokens)]))
    for wrong in (torch.zeros(1, 9), torch.zeros(2, 9, dtype=torch.int64)):
        with pytest.raises(ShapeError, match="whole numbers"):
            env.step(wrong)


def test_a_turn_that_was_cut_off_at_its_length_has_no_end_and_no_padding() -> None:
    env = wrapped()
    env.say([*tokens("12"), PAD, PAD])
    assert env.tokens == tuple(tokens("0-15?12<"))


def test_episodes_are_truncated_at_the_last_turn_and_for_want_of_context() -> None:
    env = wrapped(max_turns=2)
    assert env.say([*tokens("1"), END])[3] is False
    assert env.say([*tokens("1"), END])[2:] == (False, True, {"truncated_by": "turns"})
    env = wrapped(max_model_len=11, max_output_tokens=3)  # 5 + 2 + 1, and 3 for the next turn
    assert env.say([*tokens("1"), END])[3] is False
    env = wrapped(max_model_len=10, max_output_tokens=3)
    assert env.say([*tokens("1"), END])[2:] == (False, True, {"truncated_by": "context"})
    assert env.episode().truncated
    env = wrapped(max_model_len=10, max_output_tokens=3)
    assert env.say([*tokens("7"), END])[2:4] == (True, False)  # the end of the game needs no room
    with pytest.raises(ConfigError, match=r"first prompt has 5 tokens .* fix: max_model_len=8"):
        wrapped(max_model_len=7, max_output_tokens=3)


def test_a_chat_template_frames_every_message_and_no_token_twice() -> None:
    tokenizer = tiny_tokenizer(GuessNumber.alphabet, chat_template=CHAT_TEMPLATE)
    encode = tokenizer.encode
    env = TokenObservationWrapper(game_of(7), tokenizer, 5)
    env.env.reset = lambda seed=None: "0-15?"  # type: ignore[method-assign]
    env.reset()
    env.env._number, env.env._guesses = 7, 0  # type: ignore[attr-defined]
    begin = "<bos>user: 0-15?<eos><bos>assistant: "
    assert env.tokens == tuple(encode(begin))
    env.say(encode("3<eos>"))
    assert env.prompt()["text"] == begin + "3<eos><bos>user: ><eos><bos>assistant: "
    env.say(encode("9"))  # cut off: the end is the template's, and is not learned from
    assert env.prompt()["text"].endswith("9<eos><bos>user: <<eos><bos>assistant: ")
    episode = env.episode()
    assert [tokenizer.decode(episode.tokens[episode.turns == turn]) for turn in (0, 1)] == ["3<eos>", "9"]
    plain = TokenObservationWrapper(GuessNumber(), tokenizer, 5, apply_chat_template=False)
    assert plain.reset(0)[0]["text"] == "0-15?"


def test_a_chat_template_that_changes_what_was_said_is_refused() -> None:
    forgetful = "{% if messages|length > 2 %}...{% endif %}{{ messages[-1]['content'] }}"
    env = TokenObservationWrapper(GuessNumber(), tiny_tokenizer("a?", chat_template=forgetful), 5)
    env.reset(0)
    with pytest.raises(ConfigError, match="changes a message once another one follows"):
        env.say([END])


def test_padding_that_is_the_end_of_sequence_makes_no_difference() -> None:
    same = tiny_tokenizer(GuessNumber.alphabet + " .")
    same.pad_token = "<eos>"
    env = TokenObservationWrapper(game_of(7), same, 5)
    env.reset(0)
    row = [END, END, *env.tokens, *tokens("16"), END, END, END]
    env.step([row])
    assert env.tokens == (*tokens("0-15?16"), END, *tokens("?"))


def test_options_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(NotAvailableYetError, match="enable_sliding_window"):
        TokenObservationWrapper(GuessNumber(), TOKENIZER, 5, enable_sliding_window=True)
    with pytest.raises(ConfigError, match="max_turns must be an integer of at least 1"):
        TokenObservationWrapper(GuessNumber(), TOKENIZER, 0)


# --- games that misbehave --------------------------------------------------------------------------------------------


class Faulty:
    """Answers its first turn as it should, the second one as it is told."""

    def __init__(self, second: Callable[[], Any]) -> None:
        self.second = second
        self.turn = 0

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self.turn = 0
        return "0", {"seed": seed}

    def step(self, text: str) -> Any:
        self.turn += 1
        return ("1", 0.5, False, False, {}) if self.turn == 1 else self.second()


def hang() -> None:
    import threading

    while True:
        threading.Event().wait(0.001)


@pytest.mark.parametrize(
    ("second", "fault"),
    [
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: ("1", 1.0, True), "a step must be (text, reward, terminated, truncated, info)"),
        (lambda: (1, 1.0, True, False, {}), "shows int instead of text"),
        (lambda: ("1", float("nan"), True, False, {}), "gave nan, which is not finite"),
        (lambda: ("1", "1", True, False, {}), "gave str '1' instead of a number"),
        (hang, "took longer than 0.2 s"),
    ],
)
def test_a_game_that_fails_ends_its_episode_and_keeps_what_was_before(second: Any, fault: str) -> None:
    env = TokenObservationWrapper(Faulty(second), TOKENIZER, 5, step_timeout=0.2 if second is hang else None)
    assert env.reset(3)[1] == {"seed": 3}
    env.say([5])
    _, reward, terminated, truncated, info = env.say([6])
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info == {"fault": f"Faulty, turn 1: {fault}"}
    assert env.episode().failed
    assert env.episode().turn_rewards.tolist() == [0.5, 0.0]


def test_a_game_that_shows_nothing_to_begin_with_is_refused() -> None:
    for shown, message in ((3, "must give text; got int"), ("", "shows no text")):
        env = TokenObservationWrapper(Faulty(hang), TOKENIZER, 5)
        env.env.reset = lambda seed=None, shown=shown: shown  # type: ignore[method-assign,misc]
        with pytest.raises(EnvError, match=message):
            env.reset()


def test_failed_games_are_counted_and_replaced_and_too_many_end_the_run() -> None:
    made = []

    def make(name: str) -> TokenObservationWrapper:
        made.append(name)
        return TokenObservationWrapper(Faulty(lambda: {}["x"]), TOKENIZER, 5)

    env = SyncMultiTurnVecEnv(make, 32, 4, {"name": "a"})
    env.reset(0)
    env.say([[5]] * 128)
    env.say([[5]] * 128)
    assert (env.episodes_played, env.episodes_failed, env.active) == (128, 128, [])
    assert env.faults == ("Faulty, turn 1: KeyError: 'x'",) * 4
    assert len(made) == 128
    env.reset(1)
    assert made == ["a"] * 256
    env.say([[5]] * 128)
    with pytest.raises(RewardError, match="the game failed in 256 of the last 256 episodes"):
        env.say([[5]] * 128)


# --- several games ---------------------------------------------------------------------------------------------------


def vector(batch: int, group: int = 1, **changes: Any) -> SyncMultiTurnVecEnv:
    def make() -> TokenObservationWrapper:
        return TokenObservationWrapper(GuessNumber(), TOKENIZER, **{"max_turns": 5, **changes})

    return SyncMultiTurnVecEnv(make, batch, group)


def numbers_of(env: SyncMultiTurnVecEnv) -> list[int]:
    return [each.env._number for each in env.envs]  # type: ignore[attr-defined]


def test_games_of_a_group_begin_alike() -> None:
    env = vector(3, 2)
    env.reset(10)
    numbers = numbers_of(env)
    assert numbers[::2] == numbers[1::2]
    alone = vector(1)
    for group in range(3):
        alone.reset(10 + group)
        assert numbers_of(alone) == [numbers[2 * group]]
    env.reset(10)
    assert numbers_of(env) == numbers


def test_only_games_that_go_on_are_prompted_and_answered() -> None:
    env = vector(3)
    prompts = env.reset(0)
    numbers = numbers_of(env)
    texts = [str(numbers[0]), "16", "x"]
    full = [
        torch.cat([p["input_ids"], torch.tensor([[*tokens(t), END]])], 1) for p, t in zip(prompts, texts, strict=True)
    ]
    prompts, rewards, terminated, truncated, infos = env.step(full)
    assert rewards.tolist() == [1.0, -0.1, -0.1]
    assert terminated.tolist() == [True, False, False]
    assert truncated.tolist() == [False, False, False]
    assert [bool(info) for info in infos] == [True, False, False]
    assert env.active == [1, 2]
    assert [prompt["input_ids"].shape[1] for prompt in prompts] == [9, 9]  # the shorter one is padded on the left
    assert prompts[1]["attention_mask"].tolist() == [[0, *[1] * 8]]
    with pytest.raises(ShapeError, match="each of the 2 games that go on; got 3"):
        env.step(full)
    _, rewards, *_ = env.step([torch.cat([p["input_ids"], torch.tensor([[5, END]])], 1) for p in prompts])
    assert rewards.shape == (2,)
    assert [len(episode.turn_rewards) for episode in env.episodes()] == [1, 2, 2]


def test_equal_seeds_are_played_alike() -> None:
    first, again, other = (vector(4, 2).play(PLAYERS["listening"], seed) for seed in (1, 1, 2))
    assert [e.tokens.tolist() for e in first] == [e.tokens.tolist() for e in again]
    assert [e.tokens.tolist() for e in first] != [e.tokens.tolist() for e in other]


def test_what_makes_no_games_is_refused() -> None:
    with pytest.raises(ConfigError, match="must make a TokenObservationWrapper; got GuessNumber"):
        SyncMultiTurnVecEnv(GuessNumber, 2)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="batch_size must be an integer of at least 1; got 0"):
        vector(0)


def test_games_are_closed_where_they_can_be() -> None:
    closed = []

    class Closing(GuessNumber):
        def close(self) -> None:
            closed.append(1)

    env = SyncMultiTurnVecEnv(lambda: TokenObservationWrapper(Closing(), TOKENIZER, 5), 2)
    env.close()
    vector(1).close()
    assert closed == [1, 1]


def test_the_number_game_is_a_text_game() -> None:
    game: TextGame = GuessNumber()
    assert game.reset(0) == "0-15?"
