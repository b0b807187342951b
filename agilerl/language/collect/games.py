"""Multi-turn text games, with the interface that language collectors expect of prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.core.rng import Purpose, seeds
from agilerl.errors import ConfigError
from agilerl.language.algorithms.batches import TextBatch
from agilerl.language.base import BaseModel
from agilerl.language.collect.batches import Row, replacements, resampled
from agilerl.language.engines import SequentialAdapters, StackedAdapters
from agilerl.language.padding import pad_left
from agilerl.language.scoring import Texts

Engine = SequentialAdapters | StackedAdapters
Played = tuple[list[list[Any]], Tensor]  # episodes [N][B·G], returns [N, B, G]


class Games:
    """Games of a `SyncMultiTurnVecEnv`, started from seeds; the environment interface for language collectors.

    Args:
        env: its factory creates the games; an iteration has `batch_size` starting states, each played `group_size`
            times.
        seed: of all starting states. test, report: number of starting states held out for fitness and for the report.
    """

    def __init__(self, env: Any, seed: int, test: int, report: int) -> None:
        self.env, self.seed = env, seed
        self.group_size, self.batch_size = int(env.group_size), int(env.batch_size)
        self._counts = {"test": test, "report": report}
        self.tokenizer = env.envs[0].tokenizer
        self.played = 0

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the held-out splits."""
        return tuple(name for name, count in self._counts.items() if count)

    num_batches = 1

    def split(self, name: str) -> list[int]:
        """Seeds of a split."""
        purpose = {"test": Purpose.EVALUATION, "report": Purpose.CONFIRMATION}[name]
        split_seeds: list[int] = seeds(self.seed, purpose, self._counts[name]).tolist()
        return split_seeds

    def batch(self, number: int, rank: int = 0, size: int = 1) -> list[int]:
        """Seeds of the `number`-th iteration; different on each rank."""
        batch_seeds: list[int] = seeds(self.seed, Purpose.ENVIRONMENT, self.batch_size * size, number).tolist()
        return batch_seeds[rank * self.batch_size : (rank + 1) * self.batch_size]

    def begun(self, beginnings: Sequence[int], group: int) -> list[Any]:
        """Create new games, `group` per starting state."""
        games = [self.env._env_factory(**self.env._env_config) for _ in range(len(beginnings) * group)]
        for number, game in enumerate(games):
            game.reset(seed=int(beginnings[number // group]))
        return games

    def state(self) -> dict[str, Any]:
        """Identify the games: seed and split sizes."""
        return {"seed": self.seed, **self._counts}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Raise ConfigError if the games differ."""
        if dict(state) != self.state():
            raise ConfigError(f"the run played games of {dict(state)}; these are of {self.state()}. fix: the same.")


class GameBatches:
    """Whole games, with the reward of each turn at its last token."""

    def batches(self, engine: Engine, rows: Sequence[Row]) -> Iterator[TextBatch]:
        """Run one iteration: every member plays its games to the end and learns from all of its turns.

        Groups of equal returns are replaced by games from further starting states, see `dynamic_sampling`.
        """
        lead: Any = engine.agents[0]
        played = self._played(engine, rows)
        episodes, returns = resampled(engine, rows, played, self._played, _filled) if lead.compares_groups else played
        for row, member_returns in zip(rows, returns, strict=True):
            row.tally.scores.append(float(member_returns.flatten().numpy().mean()))
        texts, rewards = flatten_turns(episodes, lead.base)
        if lead.compares_groups:
            rewards = returns.float().to(rewards.device)
        yield from lead.arrange(engine, texts, rewards, [row.rng for row in rows])

    def _played(self, engine: Engine, rows: Sequence[Row]) -> Played:
        """Play the games of one batch; return (episodes [N][B·G], returns [N, B, G])."""
        games = [row.env.begun(row.batch(engine.ranks), row.env.group_size) for row in rows]
        play(engine, games, [row.rng for row in rows])
        episodes = [[game.episode() for game in member_games] for member_games in games]
        for row, member_episodes in zip(rows, episodes, strict=True):
            turns = sum(len(episode.ends) for episode in member_episodes)
            row.add(
                games=len(member_episodes), turns=turns, failed_games=sum(episode.failed for episode in member_episodes)
            )
        returns = np.array([[episode.rewards.sum() for episode in member_episodes] for member_episodes in episodes])
        return episodes, torch.from_numpy(returns).view(len(rows), -1, rows[0].env.group_size)

    def evaluate(
        self, engines: Sequence[Engine], agents: Sequence[Any], envs: Sequence[Any], split: str
    ) -> list[float]:
        """Mean return of games played with greedy decoding."""
        fitness = [0.0] * len(agents)
        place = {id(agent): number for number, agent in enumerate(agents)}
        for engine in engines:
            numbers = [place[id(agent)] for agent in engine.agents]
            games = [envs[n].begun(envs[n].split(split), 1) for n in numbers]
            play(engine, games, None)
            for n, member_games in zip(numbers, games, strict=True):
                fitness[n] = float(np.mean([game.episode().rewards.sum() for game in member_games]))
        return fitness


def _filled(batch: Played, spare: Played) -> Played:
    """Replace groups of equal returns in `batch` by groups of `spare` with unequal ones, per member and in order."""
    (episodes, returns), (others, theirs) = batch, spare
    group = returns.shape[-1]
    for member, to, since in replacements(returns, theirs):
        returns[member, to] = theirs[member, since]
        episodes[member][to * group : (to + 1) * group] = others[member][since * group : (since + 1) * group]
    return episodes, returns


def play(engine: Engine, games: Sequence[Sequence[Any]], rngs: Sequence[np.random.Generator] | None) -> None:
    """Play the games [N][R] of every member to the end, batching all unfinished ones.

    rngs: one stream per member for sampling its tokens; None decodes greedily.
    """
    lead: Any = engine.agents[0]
    base, backend = lead.base, lead.backend()
    how = [agent.sampling(greedy=rngs is None) for agent in engine.agents]
    length = how[0].max_tokens
    for member_games in games:
        for game in member_games:
            game.fit_into(base.end_ids, lead.context, length)
    while True:
        unfinished = [[game for game in member_games if not game.is_over] for member_games in games]
        max_games = max(len(member_games) for member_games in unfinished)
        if not max_games:
            return
        # Members with fewer unfinished games are padded with another member's prompt; that output is discarded.
        other = next(game for member_games in unfinished for game in member_games).tokens
        prompts = (
            [game.tokens for member_games in unfinished for game in member_games]
            if len(unfinished) == 1
            else [
                tokens
                for member_games in unfinished
                for tokens in (*(game.tokens for game in member_games), *[other] * (max_games - len(member_games)))
            ]
        )
        numbers = None
        if rngs is not None:
            drawn = np.zeros((len(unfinished), max_games, length))
            for member, (rng, member_games) in enumerate(zip(rngs, unfinished, strict=True)):
                drawn[member, : len(member_games)] = rng.random((len(member_games), length))
            numbers = torch.from_numpy(drawn.reshape(-1, length)).to(base.device)
        inputs = pad_left(prompts, base.pad_id, base.device)
        with engine.acting("actor") as forward:
            texts = backend.write(base, forward, inputs, 1, how, numbers, [agent.actor for agent in engine.agents])
        completion_mask, written = texts.completion_mask.cpu(), texts.tokens[:, texts.prompt :].cpu()
        for member, member_games in enumerate(unfinished):
            for number, game in enumerate(member_games):
                row = member * max_games + number
                turn = written[row][completion_mask[row]].tolist()
                spoken = any(token != base.pad_id for token in turn)
                game.say(turn if spoken else [game.end_id])  # replace pure padding by an end token


def flatten_turns(episodes: Sequence[Sequence[Any]], base: BaseModel) -> tuple[Texts, Tensor]:
    """Convert episodes [N][R] to (texts [N, R, P + T], rewards [N, R, T] at the last token of each turn).

    Tokens before the first turn are the prompt. Later observations are part of the context and masked from the loss.
    """
    flat = [episode for member_episodes in episodes for episode in member_episodes]
    starts = [int(episode.completion_mask.argmax()) for episode in flat]
    prompt = max(starts)
    after = max(len(episode.tokens) - start for episode, start in zip(flat, starts, strict=True))
    tokens = torch.full((len(flat), prompt + after), base.pad_id, dtype=torch.long)
    attention, completion_mask = (
        torch.zeros(tokens.shape, dtype=torch.bool),
        torch.zeros(len(flat), after, dtype=torch.bool),
    )
    rewards = torch.zeros(len(flat), after)
    for row, (episode, start) in enumerate(zip(flat, starts, strict=True)):
        first, count = prompt - start, len(episode.tokens)
        tokens[row, first : first + count] = torch.from_numpy(episode.tokens)
        attention[row, first : first + count] = True
        completion_mask[row, : count - start] = torch.from_numpy(episode.completion_mask[start:])
        rewards[row, : count - start] = torch.from_numpy(episode.rewards[start:]).float()
    shape, device = (len(episodes), -1), base.device
    texts = Texts(*(x.view(*shape, x.shape[-1]).to(device) for x in (tokens, attention, completion_mask)))
    return texts, rewards.view(*shape, after).to(device)
