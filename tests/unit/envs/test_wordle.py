"""Wordle: colours of repeated letters, games, lanes that equal the single environment, players, games as data."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from agilerl.data.dataset import read_dataset
from agilerl.envs.simulators.wordle import (
    FIRST_COLOURED,
    FIRST_LETTER,
    PLAYERS,
    START,
    VOCABULARY,
    WORDS,
    Wordle,
    WordleLanes,
    colours,
    encode,
    play,
    text_of,
    wordle_data,
)
from agilerl.errors import ConfigError, EnvError
from agilerl.utils.utils import make_vect_envs

SIGNS = ".-+"  # grey, yellow, green


def signs(guess: str, secret: str) -> str:
    return "".join(SIGNS[c] for c in colours(encode([guess])[0], encode([secret])[0]))


@pytest.mark.parametrize(
    ("guess", "secret", "expected"),
    [
        ("crane", "crane", "+++++"),
        ("light", "cloud", "-...."),  # an l that is elsewhere
        ("speed", "abide", "..-.-"),  # one e in the word: the first of the guess is yellow, the second is grey
        ("speed", "erase", "-.--."),  # two of them: both are yellow
        ("speed", "steal", "+.+.."),  # one, in its place: the other is grey
        ("speed", "crepe", ".-+-."),
        ("geese", "eagle", "--..+"),  # the last e is in its place, the first is yellow, the second has none left
        ("llama", "hello", "--..."),
        ("hello", "llama", "..--."),
        ("allow", "llama", "-+-.."),
        ("sassy", "glass", "--.+."),  # the s in its place takes one, the first takes the other
        ("mamma", "mummy", "+.++."),
    ],
)
def test_each_letter_of_the_word_colours_one_letter_of_the_guess(guess: str, secret: str, expected: str) -> None:
    assert signs(guess, secret) == expected


def test_colours_agree_with_a_count_letter_by_letter() -> None:
    rng = np.random.default_rng(0)
    guess, secret = rng.integers(0, 3, (2, 400, 5))  # three letters alone: many are there several times
    shown = colours(guess, secret)
    for g, s, c in zip(guess.tolist(), secret.tolist(), shown.tolist(), strict=True):
        left = [b for a, b in zip(g, s, strict=True) if a != b]
        expected = []
        for a, b in zip(g, s, strict=True):
            if a == b:
                expected.append(2)
            elif a in left:
                left.remove(a)
                expected.append(1)
            else:
                expected.append(0)
        assert c == expected


def test_words_are_words_of_five_letters_each_once() -> None:
    assert len(WORDS) == len(set(WORDS)) > 300
    assert all(len(word) == 5 and word.isascii() and word.isalpha() and word.islower() for word in WORDS)


def word(text: str) -> np.ndarray:
    return encode([text])[0]


def test_a_game_shows_the_text_so_far_and_costs_one_for_each_wrong_guess() -> None:
    env = Wordle(words=4, tries=3)  # crane house light water
    obs, _ = env.reset(seed=0)
    assert obs.tolist() == [START] + [0] * 30
    assert env.observation_space.contains(obs)
    secret = WORDS[int(env._lanes._secret[0])]
    wrong = next(w for w in WORDS if w not in WORDS[:4])
    obs, reward, terminated, truncated, _ = env.step(word(wrong))
    assert (reward, terminated, truncated) == (-1.0, False, False)
    assert text_of(obs) == f"{wrong} {signs(wrong, secret)}"
    assert obs[1:6].tolist() == word(wrong).tolist()
    assert (obs[6:11] >= FIRST_COLOURED).all()
    assert not obs[11:].any()
    obs, reward, terminated, _, _ = env.step(word(secret))
    assert (reward, terminated) == (0.0, True)
    assert text_of(obs) == f"{wrong} {signs(wrong, secret)} {secret} +++++"


def test_a_game_ends_with_the_last_try_and_what_is_no_word_is_answered_all_the_same() -> None:
    env = Wordle(words=4, tries=2)
    env.reset(seed=1)
    obs, reward, terminated, _, _ = env.step(np.array([START, 0, VOCABULARY - 1, FIRST_LETTER, FIRST_LETTER + 25]))
    assert (reward, terminated) == (-1.0, False)
    assert obs[6:9].tolist() == [START] * 3, "what is no letter has no colour"
    assert (obs[9:11] >= FIRST_COLOURED).all()
    *_, reward, terminated, _, _ = env.step(word("zebra"))
    assert (reward, terminated) == (-1.0, True)


def test_lanes_play_what_single_environments_play() -> None:
    env = make_vect_envs(make_env=partial(Wordle, words=6, tries=2), num_envs=3)
    lanes: Any = env.replicate(2)  # type: ignore[attr-defined]
    assert isinstance(lanes, WordleLanes)
    singles = [Wordle(words=6, tries=2) for _ in range(6)]
    seeds, rng = np.arange(6) + 40, np.random.default_rng(3)
    obs, _ = lanes.reset(seeds)
    shown = [single.reset(seed=int(seed))[0] for single, seed in zip(singles, seeds, strict=True)]
    ends = 0
    for _ in range(12):
        assert np.array_equal(obs, shown)
        guess = encode([WORDS[i] for i in rng.integers(0, 6, 6)])
        batch = lanes.step(guess)
        obs = batch.obs
        for lane, single in enumerate(singles):
            final, reward, terminated, _, _ = single.step(guess[lane])
            assert np.array_equal(batch.final_obs[lane], final)
            assert (batch.reward[lane], batch.terminated[lane]) == (reward, terminated)
            shown[lane] = single.reset()[0] if terminated else final
            ends += terminated
    assert ends > 12


def test_lanes_at_rest_and_games_that_are_over_stay_as_they_are() -> None:
    lanes = WordleLanes(3, words=4, tries=2, reset_ended=False)
    lanes.begin(np.array([0, 1, 2]))
    first = lanes.step(encode(["crane"] * 3), np.array([True, True, False]))
    assert first.mask.tolist() == [True, True, False]
    assert first.terminated.tolist() == [True, False, False]
    assert first.reward.tolist() == [0.0, -1.0, 0.0]
    second = lanes.step(encode(["house"] * 3))
    assert second.mask.tolist() == [False, True, True]
    assert text_of(second.obs[0]) == "crane +++++"
    assert text_of(second.obs[2]) == f"house {signs('house', 'light')}"


def test_wordle_is_made_by_its_id() -> None:
    env = make_vect_envs("Wordle-v0", num_envs=2, words=8, tries=3)
    assert env.single_observation_space.shape == (31,)
    assert isinstance(env.replicate(4), WordleLanes)  # type: ignore[attr-defined]
    obs, _ = env.reset(seed=1)
    assert obs.shape == (2, 31)


# --- players --------------------------------------------------------------------------------------------------------


def test_players_know_what_they_say_they_know() -> None:
    for name in PLAYERS:
        guesses, hidden, returns = play(name, 300, words=40, tries=5, seed=2)
        known = encode(WORDS[:40])
        last_agrees = all_agree = counted = 0
        for own, secret in zip(guesses.tolist(), hidden.tolist(), strict=True):
            made = own[: own.index(secret) + 1] if secret in own else own
            for k in range(1, len(made)):
                agrees = [
                    np.array_equal(colours(known[g], known[made[k]]), colours(known[g], known[secret]))
                    for g in made[:k]
                ]
                counted, last_agrees, all_agree = counted + 1, last_agrees + agrees[-1], all_agree + all(agrees)
        assert (all_agree == counted) is (name == "consistent")
        assert (last_agrees == counted) is (name != "random")
        wrong = [
            own.index(secret) if secret in own else len(own)
            for own, secret in zip(guesses.tolist(), hidden.tolist(), strict=True)
        ]
        assert returns.tolist() == [-float(count) for count in wrong]


def test_players_are_of_different_strength_and_the_weakest_is_as_good_as_chance() -> None:
    mean = {name: play(name, 20_000, words=40, tries=6, seed=3)[2].mean() for name in (*PLAYERS,)}
    assert mean["random"] < mean["last"] - 1 < mean["consistent"] - 1.1
    miss = 1 - 1 / 40
    assert mean["random"] == pytest.approx(-sum(miss**k for k in range(1, 7)), abs=0.03)
    everything = np.arange(40)
    best = play("informed", 40, words=40, tries=6, secrets=everything)[2].mean()
    assert best > mean["consistent"] + 0.1, "there is room above the best player of the data"


# --- data -----------------------------------------------------------------------------------------------------------


def test_data_are_games_row_by_row_and_the_seed_decides_every_byte() -> None:
    data, again, other = (wordle_data(40, words=12, tries=3, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(data[name], again[name]) for name in data)
    assert any(not np.array_equal(data[name], other[name]) for name in data)
    games = np.split(np.arange(len(data["rewards"])), np.flatnonzero(data["terminals"])[:-1] + 1)
    assert len(games) == 40
    for rows in games:
        env = Wordle(words=12, tries=3)
        obs, _ = env.reset()
        secret = next(
            k for k in range(12)
            if np.array_equal(replayed(env, k, data["actions"][rows])[-1], data["next_observations"][rows[-1]])
        )  # fmt: skip
        shown = replayed(env, secret, data["actions"][rows])
        assert np.array_equal(data["observations"][rows], [obs, *shown[:-1]])
        assert np.array_equal(data["next_observations"][rows], shown)
        assert data["rewards"][rows[:-1]].tolist() == [-1.0] * (len(rows) - 1)
    found = read_dataset(data)
    assert (len(found), found.left_out) == (len(data["rewards"]), 0)
    assert found.returns().min() == -3


def replayed(env: Wordle, secret: int, guesses: np.ndarray) -> list[np.ndarray]:
    env._lanes.begin(np.array([secret]))
    return [env.step(guess)[0] for guess in guesses]


def test_the_mixture_says_whose_games_they_are() -> None:
    best = read_dataset(wordle_data(3000, words=30, tries=5, mixture={"consistent": 1.0}, seed=4)).returns()
    mixed = read_dataset(wordle_data(3000, words=30, tries=5, mixture={"consistent": 1, "random": 3}, seed=4)).returns()
    strong, weak = (play(name, 20_000, words=30, tries=5, seed=9)[2].mean() for name in ("consistent", "random"))
    assert best.mean() == pytest.approx(strong, abs=0.06)
    assert mixed.mean() == pytest.approx((strong + 3 * weak) / 4, abs=0.12)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Wordle(words=1), ConfigError, "words must be an integer from 2 to"),
        (lambda: Wordle(tries=0), ConfigError, "tries must be an integer of at least 1"),
        (lambda: play("consistant", 3), ConfigError, "consistent"),
        (lambda: wordle_data(3, mixture={"lst": 1.0}), ConfigError, "last"),
        (lambda: wordle_data(3, mixture={"last": -1.0, "random": 2.0}), ConfigError, "must not be negative"),
        (lambda: WordleLanes(2).step(np.zeros((2, 5))), EnvError, "reset before the first step"),
        (lambda: Wordle().step(np.zeros(5)), EnvError, "reset"),
    ],
)
def test_mistakes_are_named(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_guess_of_another_length_is_named() -> None:
    env = Wordle()
    env.reset()
    with pytest.raises(EnvError, match=r"takes 5 tokens per lane: \(1, 5\), got \(1, 4\)"):
        env.step(np.zeros(4))
