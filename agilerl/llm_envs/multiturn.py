"""Text games as token sequences: single and vectorised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from agilerl.core import foreign
from agilerl.core.ranges import Count, check
from agilerl.core.rng import Purpose, stream
from agilerl.errors import ConfigError, EnvError, NotAvailableYetError, ShapeError
from agilerl.language import tokenizer as tokens_of
from agilerl.language.ends import end_ids, turn_end
from agilerl.llm_envs.games import Player, TextGame
from agilerl.llm_envs.prompts import Turns
from agilerl.llm_envs.rewards import MAX_FAULTS, WINDOW, Deadline, RewardError, TookTooLongError, number_of
from agilerl.llm_envs.templates import after_prompt, encoded, prompt_tensors, rendered

_ASKED, _SAID = "question", "answer"  # placeholders, to get the tokens between two messages


class TokenObservationWrapper:
    """A text game in tokens: each prompt is the whole conversation so far.

    Completions are kept as sampled; nothing is tokenised twice. With a chat template, the game's texts are user
    messages and the model's texts assistant messages.

    A step of the game that raises, takes longer than `step_timeout`, or is malformed ends the episode: it is truncated
    with a reward of 0, `failed` in `Turns`, and described in info["fault"].

    Args:
        env: the game.
        tokenizer: of transformers.
        max_turns: of an episode; longer ones are truncated.
        pad_id: padding token of prompts; None: the tokenizer's.
        apply_chat_template: False: texts are concatenated, as they also are without a template.
        max_model_len: context of the model, in tokens; an episode without room for the next turn is truncated.
        max_output_tokens: reserved for a turn; None: 1.
        enable_sliding_window: not available yet.
        step_timeout: seconds that a step of the game may take; None: no limit.

    Attributes:
        conversation: texts of game and model in turn.
        end_ids: tokens that end a turn. end_id: the one that ends an answer in the chat template.
    """

    def __init__(
        self,
        env: TextGame,
        tokenizer: foreign.Tokenizer,
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
        check("max_turns", max_turns, Count | None, 1)
        check("max_model_len", max_model_len, Count | None, None)
        check("max_output_tokens", max_output_tokens, Count | None, None)
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
            ConfigError: the first prompt does not fit into `max_model_len`.
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

    def step(self, full_completion: object) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Answer the last prompt: (next prompt, reward, terminated, truncated, info).

        Args:
            full_completion: tokens [1, P + T] or [P + T] that begin with the prompt, with or without left padding. The
                turn ends at its first end of sequence.

        Raises:
            EnvError: the episode is over.
            ShapeError: it does not begin with the prompt, or the completion is empty.
        """
        tokens = torch.as_tensor(full_completion)
        if tokens.is_floating_point() or tokens.ndim not in (1, 2) or (tokens.ndim == 2 and tokens.shape[0] != 1):
            raise ShapeError(
                f"a completion must be whole numbers [1, tokens]; got {tokens.dtype} of shape {tuple(tokens.shape)}. "
                "fix: pass what get_action returned, one row for each game."
            )
        pads = {self.pad_id, *tokens_of.special_ids(self.tokenizer)}
        completion = after_prompt(tokens.flatten().tolist(), self._tokens, pads)
        if completion is None:
            raise ShapeError(
                f"the completion does not begin with the {len(self._tokens)} tokens of the prompt. "
                "fix: pass prompt and completion together, in the order of the last prompts."
            )
        return self.say(completion)

    def fit_into(self, end_ids: Sequence[int], context: int | None, max_output_tokens: int) -> None:
        """Adapt to a base: its end tokens and its context.

        Args:
            end_ids: tokens that end a turn, in addition to the tokenizer's.
            context: maximum length in tokens; None: no limit. max_output_tokens: of a turn.

        Raises:
            ConfigError: the first prompt leaves no room for a turn.
        """
        self.end_ids = tuple(dict.fromkeys((*self.end_ids, *end_ids)))
        self._limit = None if context is None else context - max_output_tokens
        if self._is_full(0) and not self.is_over:
            raise ConfigError(
                f"the prompt has {len(self._tokens)} tokens and a turn {max_output_tokens}, which do not fit into the "
                f"base's context of {context}. fix: a smaller max_output_tokens, or a base with a longer context."
            )

    def _is_full(self, following: int) -> bool:
        """Whether there is no room for a turn after `following` more tokens."""
        length = len(self._tokens) + following
        too_long = self.max_model_len is not None and length + self.room > self.max_model_len
        return too_long or (self._limit is not None and length > self._limit)

    def say(self, completion: Sequence[int]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """See `step`, with the tokens of the completion only."""
        if self.is_over:
            raise EnvError("the episode is over. fix: call reset().")
        tokens = [int(token) for token in completion]
        end = next((place for place, token in enumerate(tokens) if token in self.end_ids), None)
        if end is not None:
            tokens = tokens[: end + 1]
        else:
            while tokens and tokens[-1] == self.pad_id:  # truncated at the maximum length
                tokens.pop()
        if not tokens:
            raise ShapeError("a turn must have at least one token; got none. fix: at least an end of sequence.")
        text = str(self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))
        shown, reward, terminated, truncated, info = self._play(text)
        self.conversation += [text, shown]
        self._tokens += tokens
        self._turns += [self._count] * len(tokens)
        self._rewards += [0.0] * (len(tokens) - 1) + [reward]
        self._count += 1
        if not terminated and not truncated:
            following = self._between(shown, ended=tokens[-1] in self.end_ids)
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
        """Tokens between the model's last turn and its next one.

        Args:
            shown: next text of the game.
            ended: whether the last turn already has its end of sequence.
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
        """All tokens so far, in the form of `reset`."""
        (tensors,) = prompt_tensors([self._tokens], self.pad_id)
        return {**tensors, "text": self.tokenizer.decode(self._tokens, skip_special_tokens=False)}

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
            Tokens [1, L] int64; completion mask [1, L − 1] bool and turn ids [1, L − 1] int64 (−1 outside of turns),
            both from the second token on; rewards [turns] float32.
        """
        episode = self.episode()
        return (
            torch.from_numpy(episode.tokens)[None],
            torch.from_numpy(episode.completion_mask)[None, 1:],
            torch.from_numpy(episode.turns)[None, 1:],
            torch.from_numpy(episode.turn_rewards).float(),
        )

    def close(self) -> None:
        """Close the game, if it has a `close` method."""
        close = foreign.method(self.env, "close")
        if callable(close):
            close()


class SyncMultiTurnVecEnv:
    """Several games in this process; those of a group start from equal states, so that their returns are comparable.

    A failed game (see `TokenObservationWrapper`) is replaced by a new one at the next `reset`.

    Args:
        env_factory: makes one `TokenObservationWrapper`.
        batch_size: groups B.
        group_size: games of a group G; game i belongs to group i // G.
        env_config: keyword arguments for the factory.

    Attributes:
        envs: the B·G games.
        episodes_played, episodes_failed: over all resets.
        faults: of the last episodes, one line each, at most a few.
    """

    def __init__(
        self,
        env_factory: Callable[..., TokenObservationWrapper],
        batch_size: int,
        group_size: int = 1,
        env_config: Mapping[str, Any] | None = None,
    ) -> None:
        check("batch_size", batch_size, Count, 1)
        check("group_size", group_size, Count, 1)
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
        """The unfinished games; prompts and completions are in this order."""
        return [number for number, env in enumerate(self.envs) if not env.is_over]

    def reset(self, seed: int | None = None) -> list[dict[str, Any]]:
        """Reset all games and return their prompts.

        Args:
            seed: group i begins with seed + i; None: each game continues its random stream.

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
        """Answer the prompts of the active games.

        Args:
            completions: one for each of `active`, in this order: tokens [1, P + T] that begin with the prompt.

        Returns:
            The prompts of the games that are still active; and for the N answered games rewards [N] float64, terminated
            [N] bool, truncated [N] bool, and N infos.

        Raises:
            ShapeError: not one completion for each active game.
            RewardError: more than half of the last few hundred episodes failed.
        """
        return self._stepped([(env, env.step) for env in self._answered(completions)], completions)

    def say(
        self, completions: Sequence[Sequence[int]]
    ) -> tuple[list[dict[str, Any]], np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """See `step`, with the tokens of the completions only."""
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
        results = [step(completion) for (_, step), completion in zip(steps, completions, strict=True)]
        infos = [info for *_, info in results]
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
        rewards = np.array([reward for _, reward, *_ in results], dtype=np.float64)
        terminated = np.array([ended for _, _, ended, _, _ in results], dtype=bool)
        truncated = np.array([cut for *_, cut, _ in results], dtype=bool)
        return self.prompts(), rewards, terminated, truncated, infos

    def prompts(self) -> list[dict[str, Any]]:
        """The prompts of the active games, in the form of `reset`."""
        envs = [self.envs[number] for number in self.active]
        tensors = prompt_tensors([env.tokens for env in envs], envs[0].pad_id) if envs else []
        return [{**prompt, "text": env.prompt()["text"]} for env, prompt in zip(envs, tensors, strict=True)]

    def episodes(self) -> list[Turns]:
        """The B·G episodes so far."""
        return [env.episode() for env in self.envs]

    def play(self, player: Player, seed: int) -> list[Turns]:
        """Play all games to their ends with a player of texts: B·G episodes."""
        random = stream(seed, Purpose.EXPLORATION)
        self.reset(seed)
        while self.active:
            envs = [self.envs[number] for number in self.active]
            texts = [player(env.conversation, random) for env in envs]
            completions = [
                env.tokenizer.encode(text, add_special_tokens=False) for env, text in zip(envs, texts, strict=True)
            ]
            self.say([[*tokens, env.end_id] for env, tokens in zip(envs, completions, strict=True)])
        return self.episodes()

    def close(self) -> None:
        """Close all games."""
        for env in self.envs:
            env.close()
