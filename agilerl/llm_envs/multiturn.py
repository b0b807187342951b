"""Games in words as sequences of tokens: one of them, and several that are played at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from agilerl import foreign
from agilerl.errors import ConfigError, EnvError, NotAvailableYetError, ShapeError
from agilerl.language import tokenizer as tokens_of
from agilerl.language.ends import end_ids, turn_end
from agilerl.llm_envs.games import Player, TextGame
from agilerl.llm_envs.prompts import Turns
from agilerl.llm_envs.rewards import MAX_FAULTS, WINDOW, Deadline, RewardError, TookTooLongError, number_of
from agilerl.llm_envs.templates import encoded, rendered
from agilerl.llm_envs.tokens import after_prompt, prompt_tensors
from agilerl.rng import Purpose, stream

_ASKED, _SAID = "question", "answer"  # stand for any texts where only what lies between two messages is wanted


class TokenObservationWrapper:
    """A game whose texts are tokens: each prompt is everything that was shown and said so far.

    What the model said stays as it was sampled; nothing is tokenised twice. Where the tokenizer has a chat template,
    what is shown are the user's messages and what is said the assistant's.

    A step of the game that raises, takes longer than `step_timeout`, or is no step ends the episode: it is truncated
    with a reward of 0, `failed` in `Turns`, and described in info["fault"].

    Args:
        env: the game.
        tokenizer: of transformers.
        max_turns: of an episode; one that goes on is truncated.
        pad_id: token that pads prompts; None: the tokenizer's.
        apply_chat_template: False: texts are joined as they are, as they also are without a template.
        max_model_len: tokens that the model can read; an episode in which the next turn has no room is truncated.
        max_output_tokens: that are needed for a turn; None: 1.
        enable_sliding_window: not available yet.
        step_timeout: seconds that a step of the game may take; None: as long as it takes.

    Attributes:
        conversation: texts, shown and said in turn.
        end_ids: tokens that end a turn. end_id: the one of them that the chat template ends an answer with.
    """

    def __init__(
        self,
        env: TextGame,
        tokenizer: Any,
        max_turns: int,
        pad_id: int | None = None,
        apply_chat_template: bool = True,
        max_model_len: int | None = None,
        max_output_tokens: int | None = None,
        enable_sliding_window: bool = False,
        *,
        step_timeout: float | None = None,
    ) -> None:
        if enable_sliding_window:
            raise NotAvailableYetError(
                "enable_sliding_window is not available yet: an episode is one sequence from its first token on. "
                "fix: a larger max_model_len, or fewer max_turns."
            )
        for name, value in (
            ("max_turns", max_turns),
            ("max_model_len", max_model_len),
            ("max_output_tokens", max_output_tokens),
        ):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name} must be a whole number of at least 1; got {value!r}. fix: 1.")
        tokens_of.warn_if_replaced(tokenizer)
        self.env = env
        self.tokenizer = tokenizer
        self.max_turns = max_turns
        self.pad_id = tokens_of.pad_id(tokenizer) if pad_id is None else int(pad_id)
        self.eos_id = tokens_of.eos_id(tokenizer)
        self.uses_template = bool(apply_chat_template and foreign.chat_template(tokenizer))
        self.end_ids = end_ids(tokenizer)
        self.end_id = turn_end(tokenizer) if self.uses_template else self.eos_id
        self.max_model_len = max_model_len
        self.room = max_output_tokens or 1
        self.conversation: list[str] = []
        self.is_over = True
        self._deadline = Deadline(step_timeout)
        self._limit: int | None = None
        self._clear()

    def _clear(self) -> None:
        self._tokens: list[int] = []
        self._turns: list[int] = []
        self._rewards: list[float] = []
        self._count = 0
        self._ended = {"terminated": False, "truncated": False, "failed": False}

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode: (prompt, info).

        The prompt is a mapping: input_ids [1, P] int64, attention_mask [1, P] int64, text.

        Raises:
            EnvError: the game shows no text.
            ConfigError: it shows more than `max_model_len` leaves room for.
        """
        self._clear()
        shown = self.env.reset(seed=seed)
        text, info = shown if isinstance(shown, tuple) and len(shown) == 2 else (shown, {})
        if not isinstance(text, str):
            raise EnvError(f"reset of {type(self.env).__name__} must give text; got {type(text).__name__}. fix: a str.")
        self.conversation = [text]
        begin = rendered(self.tokenizer, [{"role": "user", "content": text}]) if self.uses_template else (text, True)
        tokens = next(encoded(self.tokenizer, [begin]))
        if not tokens:
            raise EnvError(f"reset of {type(self.env).__name__} shows no text, so nothing can be gone on with.")
        if self.max_model_len is not None and len(tokens) + self.room > self.max_model_len:
            raise ConfigError(
                f"the first prompt has {len(tokens)} tokens and a turn needs {self.room}, which is more than "
                f"max_model_len={self.max_model_len}. fix: max_model_len={len(tokens) + self.room} at least."
            )
        self._show(tokens)
        self.is_over = False
        return self.prompt(), dict(info)

    def step(self, full_completion: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Answer the last prompt: (next prompt, reward, terminated, truncated, info).

        Args:
            full_completion: tokens [1, P + T] or [P + T] that begin with the prompt, padded on the left or not. The
                turn ends at its first end of sequence.

        Raises:
            EnvError: the episode is over.
            ShapeError: it does not begin with the prompt, or nothing follows it.
        """
        tokens = torch.as_tensor(full_completion)
        if tokens.is_floating_point() or tokens.ndim not in (1, 2) or (tokens.ndim == 2 and tokens.shape[0] != 1):
            raise ShapeError(
                f"a completion must be whole numbers [1, tokens]; got {tokens.dtype} of shape {tuple(tokens.shape)}. "
                "fix: pass what get_action returned, one row for each game."
            )
        pads = {self.pad_id, *tokens_of.special_ids(self.tokenizer)}
        said = after_prompt(tokens.flatten().tolist(), self._tokens, pads)
        if said is None:
            raise ShapeError(
                f"the completion does not begin with the {len(self._tokens)} tokens of the prompt. "
                "fix: pass prompt and completion together, in the order of the last prompts."
            )
        return self.say(said)

    def fit_into(self, end_ids: Sequence[int], context: int | None, max_output_tokens: int) -> None:
        """Play with what a base knows: the tokens that end its turns, and its context.

        Args:
            end_ids: tokens that end a turn, beside those that the tokenizer knows of.
            context: tokens that it can read; None: any number. max_output_tokens: that it may write in a turn.

        Raises:
            ConfigError: what is shown first leaves no room for a turn.
        """
        self.end_ids = tuple(dict.fromkeys((*self.end_ids, *end_ids)))
        self._limit = None if context is None else context - max_output_tokens
        if self._is_full(0) and not self.is_over:
            raise ConfigError(
                f"the prompt has {len(self._tokens)} tokens and a turn {max_output_tokens}, which do not fit into the "
                f"base's context of {context}. fix: a smaller max_output_tokens, or a base with a longer context."
            )

    def _is_full(self, following: int) -> bool:
        """Whether a turn has no room after `following` tokens more."""
        length = len(self._tokens) + following
        too_long = self.max_model_len is not None and length + self.room > self.max_model_len
        return too_long or (self._limit is not None and length > self._limit)

    def say(self, completion: Sequence[int]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """As `step`, with the tokens of the completion alone."""
        if self.is_over:
            raise EnvError("the episode is over. fix: call reset().")
        said = [int(token) for token in completion]
        end = next((place for place, token in enumerate(said) if token in self.end_ids), None)
        if end is not None:
            said = said[: end + 1]
        else:
            while said and said[-1] == self.pad_id:  # cut off at its length
                said.pop()
        if not said:
            raise ShapeError("a turn must have at least one token; got none. fix: at least an end of sequence.")
        text = str(self.tokenizer.decode(said, skip_special_tokens=True, clean_up_tokenization_spaces=False))
        shown, reward, terminated, truncated, info = self._play(text)
        self.conversation += [text, shown]
        self._tokens += said
        self._turns += [self._count] * len(said)
        self._rewards += [0.0] * (len(said) - 1) + [reward]
        self._count += 1
        if not terminated and not truncated:
            following = self._between(shown, ended=said[-1] in self.end_ids)
            full = self._is_full(len(following))
            if self._count >= self.max_turns or full:
                truncated, info = True, {**info, "truncated_by": "context" if full else "turns"}
            else:
                self._show(following)
        self.is_over = terminated or truncated
        self._ended = {"terminated": terminated, "truncated": truncated, "failed": "fault" in info}
        return self.prompt(), reward, terminated, truncated, info

    def _play(self, text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        try:
            answer = self._deadline.call(self.env.step, text)
            if not isinstance(answer, tuple) or len(answer) != 5:
                fault = "a step must be (text, reward, terminated, truncated, info)"
            else:
                shown, value, terminated, truncated, info = answer
                reward, fault = number_of(value)
                if not isinstance(shown, str):
                    fault = f"shows {type(shown).__name__} instead of text"
                if reward is not None and not fault:
                    return shown, reward, bool(terminated), bool(truncated), dict(info or {})
        except TookTooLongError:
            fault = f"took longer than {self._deadline.seconds:g} s"
        except (Exception, SystemExit) as error:
            fault = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        self._deadline.check()
        return "", 0.0, False, True, {"fault": f"{type(self.env).__name__}, turn {self._count}: {fault}"}

    def _show(self, tokens: Sequence[int]) -> None:
        self._tokens += tokens
        self._turns += [-1] * len(tokens)
        self._rewards += [0.0] * len(tokens)

    def _between(self, shown: str, ended: bool) -> tuple[int, ...]:
        """Tokens from the end of what was said to where the model speaks again.

        Args:
            shown: what the game shows next.
            ended: what was said has its end of sequence already.
        """
        if not self.uses_template:
            return next(encoded(self.tokenizer, [(shown, False)]))
        before = [{"role": "user", "content": _ASKED}, {"role": "assistant", "content": _SAID}]
        start, _ = rendered(self.tokenizer, before)
        whole, _ = rendered(self.tokenizer, [*before, {"role": "user", "content": shown}])
        if not whole.startswith(start):
            raise ConfigError(
                "the tokenizer's chat template changes a message once another one follows, so that a conversation "
                "cannot be gone on with. fix: apply_chat_template=False."
            )
        tokens = next(encoded(self.tokenizer, [(whole[len(start) :], False)]))
        return tokens[1:] if ended and tokens and tokens[0] in self.end_ids else tokens

    def prompt(self) -> dict[str, Any]:
        """All tokens so far, as `reset` gives them."""
        (found,) = prompt_tensors([self._tokens], self.pad_id)
        return {**found, "text": self.tokenizer.decode(self._tokens, skip_special_tokens=False)}

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens so far, without padding."""
        return tuple(self._tokens)

    def episode(self) -> Turns:
        """The episode so far."""
        turns = np.array(self._turns, dtype=np.int64)
        rewards = np.array(self._rewards, dtype=np.float64)
        return Turns(np.array(self._tokens, dtype=np.int64), turns >= 0, turns, rewards, **self._ended)

    def get_episode_data(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The episode in its published form.

        Returns:
            Tokens [1, L] int64; which of those from the second on were said [1, L − 1] bool, and in which turn
            [1, L − 1] int64, −1 where none was; rewards [turns] float32.
        """
        found = self.episode()
        return (
            torch.from_numpy(found.tokens)[None],
            torch.from_numpy(found.completion_mask)[None, 1:],
            torch.from_numpy(found.turns)[None, 1:],
            torch.from_numpy(found.turn_rewards).float(),
        )

    def close(self) -> None:
        """Close the game, where it can be closed."""
        close = foreign.method(self.env, "close")
        if callable(close):
            close()


class SyncMultiTurnVecEnv:
    """Several games at once, in this process; those of a group begin alike, so that their outcomes can be compared.

    A game that has failed (see `TokenObservationWrapper`) is replaced by a new one at the next `reset`.

    Args:
        env_factory: makes one `TokenObservationWrapper`.
        batch_size: groups B.
        group_size: games of a group G; game i belongs to group i // G.
        env_config: keyword arguments for the factory.

    Attributes:
        envs: the B·G games.
        episodes_played, episodes_failed: over all resets.
        faults: one line each, of the last episodes, at most a few.
    """

    def __init__(
        self,
        env_factory: Callable[..., TokenObservationWrapper],
        batch_size: int,
        group_size: int = 1,
        env_config: Mapping[str, Any] | None = None,
    ) -> None:
        if batch_size < 1 or group_size < 1:
            raise ConfigError(
                f"batch_size and group_size must be at least 1; got {batch_size} and {group_size}. fix: 1."
            )
        self._env_factory, self._env_config = env_factory, dict(env_config or {})
        self.batch_size, self.group_size = batch_size, group_size
        self.envs = [env_factory(**self._env_config) for _ in range(batch_size * group_size)]
        for env in self.envs:
            if not isinstance(env, TokenObservationWrapper):
                raise ConfigError(
                    f"env_factory must make a TokenObservationWrapper; got {type(env).__name__}. "
                    "fix: lambda: TokenObservationWrapper(game, tokenizer, max_turns)."
                )
        self.episodes_played = self.episodes_failed = 0
        self.faults: tuple[str, ...] = ()
        self._window = [0, 0]

    @property
    def active(self) -> list[int]:
        """The games that go on; prompts and completions are theirs, in this order."""
        return [number for number, env in enumerate(self.envs) if not env.is_over]

    def reset(self, seed: int | None = None) -> list[dict[str, Any]]:
        """Begin all games anew: their prompts.

        Args:
            seed: group i begins with seed + i; None: each game goes on with its own random numbers.

        Returns:
            Mappings: input_ids [1, P] int64, attention_mask [1, P] int64, padded on the left to the longest; text.
        """
        self.faults = ()
        for number, env in enumerate(self.envs):
            if env.episode().failed:
                self.envs[number] = self._env_factory(**self._env_config)
            self.envs[number].reset(seed=None if seed is None else seed + number // self.group_size)
        return self.prompts()

    def step(
        self, completions: Sequence[Any]
    ) -> tuple[list[dict[str, Any]], np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Answer the prompts of the games that go on.

        Args:
            completions: one for each of `active`, in this order: tokens [1, P + T] that begin with the prompt.

        Returns:
            The prompts of the games that still go on; and for those that were answered rewards [N] float64, terminated
            [N] bool, truncated [N] bool, and N infos.

        Raises:
            ShapeError: not one completion for each game.
            RewardError: more than half of the last few hundred episodes failed.
        """
        return self._stepped([(env, env.step) for env in self._answered(completions)], completions)

    def say(
        self, completions: Sequence[Sequence[int]]
    ) -> tuple[list[dict[str, Any]], np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """As `step`, with the tokens of the completions alone."""
        return self._stepped([(env, env.say) for env in self._answered(completions)], completions)

    def _answered(self, completions: Sequence[Any]) -> list[TokenObservationWrapper]:
        envs = [self.envs[number] for number in self.active]
        if len(completions) != len(envs):
            raise ShapeError(
                f"step needs one completion for each of the {len(envs)} games that go on; got {len(completions)}. "
                "fix: leave out those that are over (env.active says which go on)."
            )
        return envs

    def _stepped(
        self, steps: Sequence[tuple[TokenObservationWrapper, Callable[[Any], Any]]], completions: Sequence[Any]
    ) -> tuple[list[dict[str, Any]], np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        found = [step(completion) for (_, step), completion in zip(steps, completions, strict=True)]
        infos = [info for *_, info in found]
        new = [info["fault"] for info in infos if "fault" in info]
        over = sum(env.is_over for env, _ in steps)
        self.faults = (*self.faults, *new)[:MAX_FAULTS]
        self.episodes_played += over
        self.episodes_failed += len(new)
        self._window = [self._window[0] + over, self._window[1] + len(new)]
        seen, failed = self._window
        if seen >= WINDOW:
            self._window = [0, 0]
            if 2 * failed > seen:
                raise RewardError(
                    f"the game failed in {failed} of the last {seen} episodes; the first fault of this one: "
                    f"{self.faults[0] if self.faults else 'none'}. fix: step(text) must give "
                    "(text, reward, terminated, truncated, info)."
                )
        rewards = np.array([reward for _, reward, *_ in found], dtype=np.float64)
        terminated = np.array([ended for _, _, ended, _, _ in found], dtype=bool)
        truncated = np.array([cut for *_, cut, _ in found], dtype=bool)
        return self.prompts(), rewards, terminated, truncated, infos

    def prompts(self) -> list[dict[str, Any]]:
        """Of the games that go on, as `reset` gives them."""
        envs = [self.envs[number] for number in self.active]
        tensors = prompt_tensors([env.tokens for env in envs], envs[0].pad_id) if envs else []
        return [{**found, "text": env.prompt()["text"]} for env, found in zip(envs, tensors, strict=True)]

    def episodes(self) -> list[Turns]:
        """All games as they stand, B·G of them."""
        return [env.episode() for env in self.envs]

    def play(self, player: Player, seed: int) -> list[Turns]:
        """All games by a player who reads and says text, to their ends: B·G episodes."""
        random = stream(seed, Purpose.EXPLORATION)
        self.reset(seed)
        while self.active:
            envs = [self.envs[number] for number in self.active]
            texts = [player(env.conversation, random) for env in envs]
            said = [env.tokenizer.encode(text, add_special_tokens=False) for env, text in zip(envs, texts, strict=True)]
            self.say([[*tokens, env.end_id] for env, tokens in zip(envs, said, strict=True)])
        return self.episodes()

    def close(self) -> None:
        """Close all games."""
        for env in self.envs:
            env.close()
