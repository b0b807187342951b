"""Wordle as an environment for language policies: encoding, dynamics, scripted players, data sets.

A text is a row of token ids, padded with 0: `START`, then for each try five letters, and the same five letters
coloured. The policy generates five letters at a time; the environment appends the coloured ones. The reward is −1 for
each wrong guess and 0 for the right one (as in Snell et al. 2022, arXiv:2206.11871, section 6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding

from agilerl.core.ranges import Count, check
from agilerl.core.rng import Purpose, stream
from agilerl.envs.lanes import check_seeds
from agilerl.envs.protocol import StepBatch
from agilerl.errors import ConfigError, EnvError, unknown_choice

LETTERS = 5
ALPHABET = 26
GREY, YELLOW, GREEN = range(3)
PAD, START, FIRST_LETTER = range(3)
FIRST_COLOURED = FIRST_LETTER + ALPHABET  # 26 grey letters, 26 yellow ones, 26 green ones
VOCABULARY = FIRST_COLOURED + 3 * ALPHABET

_LIST = """
crane house light water plant stone bread cloud dream field glass heart juice knife lemon mouse night ocean paper
queen river sugar table uncle voice world youth zebra apple beach chair dance eagle flame grape honey image joint
kneel level money novel onion piano quiet radio salad tiger urban video whale yield angle brush candy depth earth
fruit giant horse ideal jelly karma label metal nurse olive pilot quick robot scale train unity vapor wheat blaze
abide actor adult agent alarm album alert alive alley alone amber anger ankle apron arena arrow aside asset audio
bacon badge baker basic basin batch begin being below bench berry birth black blade blame blank blast blend bless
blind block blood bloom board boost booth bound brain brake brand brave brick bride brief bring broad brook brown
build bunch cabin cable camel canal cargo carry catch cause chain chalk charm chart chase cheap check cheek cheer
chess chest chief child chill choir chord civic civil claim clash class clean clear clerk click cliff climb clock
close cloth coach coast color comet coral couch count court cover crack craft crash cream creek crime crisp cross
crowd crown crush curve cycle daily dairy delay diary dirty dozen draft drain drama dress drift drill drink drive
early eight elbow elder empty enemy enjoy enter equal error event every exact extra fable faith false fancy favor
feast fence fever fiber fifth fight final first flash fleet float flock floor flour fluid focus force forge forum
found frame fresh front frost funny ghost globe glory glove grace grade grain grand grant graph grass great green
greet grief group grove guard guess guest guide habit happy harsh hatch haven heavy hedge hello hobby hotel human
humor index inner input issue ivory jewel judge knock known large laser later laugh layer learn lease least leave
legal limit liver local logic loose lover lower loyal lucky lunch magic major maker maple march match mayor medal
mercy merit merry meter minor model moral motor mount mouth movie music nerve noble noise north occur offer often
opera orbit order other outer owner panel party pasta patch pause peace peach pearl pedal penny phase phone photo
"""
WORDS = tuple(_LIST.split())
"""Common five-letter words, each once: possible secrets, and guesses of the players."""


def encode(words: Any) -> np.ndarray:
    """Encode words as tokens [W, 5] int64."""
    return np.array([[FIRST_LETTER + ord(letter) - ord("a") for letter in word] for word in words], dtype=np.int64)


def text_of(tokens: Any) -> str:
    """Decode tokens [L]: "crane ..+-." is a guess and its colours, "." grey, "-" yellow, "+" green."""
    signs = [" ", ""] + [chr(ord("a") + i) for i in range(ALPHABET)] + [sign for sign in ".-+" for _ in range(ALPHABET)]
    text = "".join(signs[int(token)] for token in np.ravel(tokens)).strip()
    return " ".join(text[i : i + LETTERS] for i in range(0, len(text), LETTERS))


def coloured(letters: np.ndarray, shown: np.ndarray) -> np.ndarray:
    """Colour letters [..., 5] to tokens [..., 5]; other tokens become `START`."""
    is_letter = (letters >= FIRST_LETTER) & (letters < FIRST_COLOURED)
    return np.where(is_letter, FIRST_COLOURED + ALPHABET * shown + letters - FIRST_LETTER, START)


def colours(guess: np.ndarray, secret: np.ndarray) -> np.ndarray:
    """Return colours [..., 5] of guesses [..., 5]: GREEN in its place, YELLOW elsewhere in the word, else GREY.

    A letter of the secret colours at most one letter of the guess: those in their place first, the others from left to
    right.
    """
    guess, secret = np.broadcast_arrays(guess, secret)
    hit = guess == secret
    free = ~hit
    copies = ((guess[..., :, None] == secret[..., None, :]) & free[..., None, :]).sum(-1)  # for letter i of the guess
    same = (guess[..., :, None] == guess[..., None, :]) & free[..., None, :]
    before = (same & np.tri(LETTERS, k=-1, dtype=bool)).sum(-1)
    return np.where(hit, GREEN, np.where(free & (before < copies), YELLOW, GREY))


def check_size(words: int, tries: int) -> None:
    """Raise ConfigError for an invalid game size."""
    if isinstance(words, bool) or not isinstance(words, int) or not 2 <= words <= len(WORDS):
        raise ConfigError(f"words must be an integer from 2 to {len(WORDS)} (of the list); got {words!r}. fix: 64.")
    check("tries", tries, Count, 6, unit="guesses in a game")


def length_of(tries: int) -> int:
    """Return the number of tokens of the longest text."""
    return 1 + 2 * LETTERS * tries


class WordleLanes:
    """Vectorised `Wordle`.

    Every lane has the generator that the single environment would have for its seed.
    """

    backend = "wordle"

    def __init__(self, num_lanes: int, words: int = 64, tries: int = 6, *, reset_ended: bool = True) -> None:
        check_size(words, tries)
        self.num_lanes, self.words, self.tries, self.reset_ended = num_lanes, words, tries, reset_ended
        self.single_observation_space: Any = spaces.MultiDiscrete([VOCABULARY] * length_of(tries))
        self.single_action_space: Any = spaces.MultiDiscrete([FIRST_COLOURED] * LETTERS)
        self.max_episode_steps = tries
        self._list = encode(WORDS[:words])
        self._generators = [seeding.np_random()[0] for _ in range(num_lanes)]
        self._secret = np.full(num_lanes, -1)
        self._tokens = np.zeros((num_lanes, length_of(tries)), np.int64)
        self._tried = np.zeros(num_lanes, np.int64)

    def reset(self, seeds: np.ndarray | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        numbers = check_seeds(seeds, self.num_lanes)
        if numbers is not None:
            self._generators = [seeding.np_random(number)[0] for number in numbers]
        self.begin(np.array([int(rng.integers(self.words)) for rng in self._generators]))
        return self._tokens.copy(), {}

    def begin(self, secrets: np.ndarray) -> np.ndarray:
        """Start games with these secrets [L], by number; returns the texts [L, T]."""
        self._secret = np.array(secrets)
        self._tokens = np.zeros_like(self._tokens)
        self._tokens[:, 0], self._tried = START, np.zeros(self.num_lanes, np.int64)
        return self._tokens.copy()

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepBatch:
        """Make one guess [5] of tokens in every lane. EnvError: not reset, or wrong shape."""
        guess = np.asarray(actions)
        if (self._secret < 0).any():
            raise EnvError("lanes must be reset before the first step. fix: call reset() first.")
        if guess.shape != (self.num_lanes, LETTERS):
            raise EnvError(f"Wordle takes {LETTERS} tokens per lane: ({self.num_lanes}, {LETTERS}), got {guess.shape}.")
        mask = np.ones(self.num_lanes, bool) if active is None else np.array(active, dtype=bool)
        mask &= self._tried < self.tries
        shown = colours(guess, self._list[self._secret])
        right = (shown == GREEN).all(-1)
        tokens, lanes = self._tokens.copy(), np.flatnonzero(mask)
        place = 1 + 2 * LETTERS * self._tried[lanes, None] + np.arange(LETTERS)
        tokens[lanes[:, None], place] = guess[lanes]
        tokens[lanes[:, None], place + LETTERS] = coloured(guess[lanes], shown[lanes])
        self._tried += mask
        done = mask & (right | (self._tried >= self.tries))
        final, self._tokens = tokens, tokens.copy()
        self._tried[done] = self.tries  # finished games accept no guess
        if self.reset_ended:
            for lane in np.flatnonzero(done).tolist():
                self._secret[lane], self._tried[lane] = int(self._generators[lane].integers(self.words)), 0
                self._tokens[lane] = np.where(np.arange(tokens.shape[1]) == 0, START, PAD)
        reward = np.where(mask & ~right, -1.0, 0.0)
        return StepBatch(self._tokens.copy(), reward, done, np.zeros_like(done), final, mask, {})

    def close(self) -> None:
        pass


class Wordle(gym.Env[np.ndarray, np.ndarray]):
    """Find a five-letter word by guesses that are answered with colours.

    The observation is the text of the game so far, MultiDiscrete [1 + 10 · tries] of 106 tokens; an action is five
    tokens. A guess need not be in the word list. Reward −1 for each wrong guess, 0 for the right one; the game ends
    with it, or with the last try.

    Args:
        words: number of possible secrets, from the beginning of `WORDS`. tries: guesses per game.
    """

    def __init__(self, words: int = 64, tries: int = 6) -> None:
        self._lanes = WordleLanes(1, words, tries, reset_ended=False)
        self.words, self.tries = words, tries
        self.observation_space = self._lanes.single_observation_space
        self.action_space = self._lanes.single_action_space
        self.spec = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._lanes.begin(np.array([int(self.np_random.integers(self.words))]))[0], {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        batch = self._lanes.step(np.asarray(action)[None])
        return batch.final_obs[0], float(batch.reward[0]), bool(batch.terminated[0]), False, {}

    def make_lanes(self, num_lanes: int, *, reset_ended: bool = True) -> WordleLanes:
        """Create vectorised games, used by `make_vect_envs` instead of copies of this environment."""
        return WordleLanes(num_lanes, self.words, self.tries, reset_ended=reset_ended)


# --- players ---------------------------------------------------------------------------------------------------------

Player = Callable[[np.random.Generator, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(generator, patterns [W, W], guesses [G, k], their patterns [G, k]) -> next guesses [G], by number."""


@lru_cache(maxsize=8)
def patterns(words: int) -> np.ndarray:
    """Return [W, W]: the colours of every guess (row) for every secret, as one number."""
    vocabulary = encode(WORDS[:words])
    return colours(vocabulary[:, None], vocabulary[None, :]) @ 3 ** np.arange(LETTERS)


def _one_of(rng: np.random.Generator, allowed: np.ndarray) -> np.ndarray:
    """Sample one of the allowed words [G, W] in each game, uniformly."""
    chosen: np.ndarray = np.where(allowed, rng.random(allowed.shape), -1.0).argmax(-1)
    return chosen


def random_player(rng: np.random.Generator, table: np.ndarray, guesses: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """Guess any word."""
    return rng.integers(0, len(table), len(guesses))


def _consistent(table: np.ndarray, guesses: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """Return [G, W]: words consistent with the answers to these guesses [G, k]."""
    allowed: np.ndarray = (table[guesses] == colours[..., None]).all(1)
    return allowed


def last_player(rng: np.random.Generator, table: np.ndarray, guesses: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """Guess a word that agrees with the colours of the last guess, ignoring earlier ones."""
    return _one_of(rng, _consistent(table, guesses[:, -1:], colours[:, -1:]))


def consistent_player(
    rng: np.random.Generator, table: np.ndarray, guesses: np.ndarray, colours: np.ndarray
) -> np.ndarray:
    """Guess a word that agrees with all colours."""
    return _one_of(rng, _consistent(table, guesses, colours))


def informed_player(
    rng: np.random.Generator, table: np.ndarray, guesses: np.ndarray, colours: np.ndarray
) -> np.ndarray:
    """Guess, of the words that agree with all colours, one that leaves the fewest on average: a baseline that is not
    included in the data sets."""
    allowed, chosen = _consistent(table, guesses, colours), np.zeros(len(guesses), np.int64)
    for game, mask in enumerate(allowed):
        candidates = np.flatnonzero(mask)
        alike = [np.unique(table[guess, candidates], return_counts=True)[1] for guess in candidates.tolist()]
        chosen[game] = candidates[int(np.argmin([(count**2).sum() - (count == 1).any() for count in alike]))]
    return chosen


PLAYERS: dict[str, Player] = {"random": random_player, "last": last_player, "consistent": consistent_player}
"""Players of the data sets, from weak to strong."""
YARDSTICKS: dict[str, Player] = {**PLAYERS, "informed": informed_player}


def play(
    player: str, games: int, words: int = 64, tries: int = 6, seed: int = 0, secrets: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Play games with one player.

    Args:
        secrets: [G] the secrets, by number; sampled if not given.

    Returns:
        (guesses [G, T] by number, secrets [G], returns [G] float64). The right guess is repeated until the end.
    """
    check_size(words, tries)
    if player not in YARDSTICKS:
        raise ConfigError(unknown_choice("player", str(player), YARDSTICKS))
    rng, table = stream(seed, Purpose.ENVIRONMENT, member=list(YARDSTICKS).index(player)), patterns(words)
    hidden = rng.integers(0, words, games) if secrets is None else np.asarray(secrets)
    guesses = np.zeros((games, 0), np.int64)
    for _ in range(tries):
        new = YARDSTICKS[player](rng, table, guesses, table[guesses, hidden[:, None]])
        solved = (guesses == hidden[:, None]).any(1)
        guesses = np.concatenate((guesses, np.where(solved, hidden, new)[:, None]), 1)
    return guesses, hidden, -(guesses != hidden[:, None]).sum(1).astype(np.float64)


def wordle_data(
    games: int, words: int = 64, tries: int = 6, seed: int = 0, mixture: Mapping[str, float] | None = None
) -> dict[str, np.ndarray]:
    """Generate a data set of games of a mixture of players, one row per guess, for `train_offline` and files.

    Args:
        games: total number. seed: equal seeds give identical bytes.
        mixture: player -> fraction of the games; None: a third each.

    Returns:
        observations, next_observations [N, 1 + 10 · tries] uint8: the text before the guess and with its answer;
        actions [N, 5] uint8; rewards [N]; terminals [N] bool; game after game, in random order of players.
    """
    shares = dict(mixture or dict.fromkeys(PLAYERS, 1.0))
    unknown = [name for name in shares if name not in PLAYERS]
    if unknown or min([1.0, *shares.values()]) < 0 or not sum(shares.values()):
        raise ConfigError(
            unknown_choice("player", unknown[0], PLAYERS) if unknown else f"shares must not be negative; got {shares}."
        )
    total = sum(shares.values())
    rng = stream(seed, Purpose.ENVIRONMENT, member=len(YARDSTICKS))
    who = rng.choice(len(shares), games, p=[share / total for share in shares.values()])
    guesses, hidden = np.zeros((games, tries), np.int64), np.zeros(games, np.int64)
    for number, name in enumerate(shares):
        rows = np.flatnonzero(who == number)
        guesses[rows], hidden[rows], _ = play(name, len(rows), words, tries, seed)
    return _as_rows(guesses, hidden, words)


def _as_rows(guesses: np.ndarray, hidden: np.ndarray, words: int) -> dict[str, np.ndarray]:
    """Convert guesses [G, T] by number to rows of transitions, without those after the right one."""
    games, tries = guesses.shape
    vocabulary = encode(WORDS[:words])
    letters = vocabulary[guesses]
    answer = coloured(letters, colours(letters, vocabulary[hidden][:, None]))
    wrong = guesses != hidden[:, None]
    happened = np.concatenate((np.ones((games, 1), bool), np.logical_and.accumulate(wrong, 1)[:, :-1]), 1)
    whole = np.concatenate((letters, answer), 2).reshape(games, -1)
    text = np.concatenate((np.full((games, 1), START), whole), 1).astype(np.uint8)
    position, ends = np.arange(text.shape[1]), 1 + 2 * LETTERS * np.arange(tries + 1)
    shown = np.where(position < ends[:, None], text[:, None], PAD)  # [G, T + 1, L]
    last = np.ones_like(wrong)
    last[:, :-1] = ~happened[:, 1:]
    return {
        "observations": shown[:, :-1][happened],
        "actions": letters.astype(np.uint8)[happened],
        "rewards": np.where(wrong, -1.0, 0.0)[happened],
        "next_observations": shown[:, 1:][happened],
        "terminals": last[happened],
    }
