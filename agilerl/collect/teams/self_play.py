"""Two-player self-play: members learn against themselves and against past policies of the population.

In every second lane of a member, one seat is played by a frozen policy of the pool, and only rows of the other seat are
learned from; seats alternate over these lanes. In the other lanes the member plays both seats and learns from both. The
pool starts with a player that is uniform over the legal actions; the fittest member of each generation joins it.

Games are zero-sum, so a member's fitness is the mean return of its seat (win 1, draw 0, loss -1 in a board game)
against the current pool: the same opponents for all members, each played from both seats. This fitness ranks the
members of one generation. Unlike other returns it does not grow over generations, because the opponents improve too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.collect.collector import GenerationPlan, Shard, Steps
from agilerl.collect.evaluator import Evaluator
from agilerl.collect.fitness import PopulationEvaluation
from agilerl.collect.rollouts import Group
from agilerl.collect.teams.rollouts import TeamGeneration, TeamRolloutCollector
from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.core.options import LoopOptions
from agilerl.core.rng import Purpose
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import Draws, Mask
from agilerl.engine.rollouts import Rollout
from agilerl.engine.team_rollouts import packed
from agilerl.envs.protocol import PRESENT
from agilerl.envs.step import Lanes, StepBatch
from agilerl.errors import ConfigError, EnvError, NotAvailableYetError
from agilerl.rollouts.episodes import Episodes, EvaluationResult
from agilerl.rollouts.evaluate import evaluate

POOL_SIZE = 16  # opponents in the pool, including the random player
SEATS = 2
# Past policies only act, so their critics are built as small as possible.
UNUSED = {"encoder_config": {"hidden_size": [1], "min_mlp_nodes": 1}, "head_config": {"hidden_size": [1]}}


@dataclass(frozen=True)
class Opponent:
    """A frozen policy.

    Attributes:
        generation: number of generations it was trained for. member: its id; None for the random player, whose weights
            are zero.
        spec, weights: output of `policy_spec` and `policy_state`.
    """

    generation: int
    member: int | None
    spec: Mapping[str, Any]
    weights: Mapping[str, Tensor]

    @classmethod
    def of(cls, team: Any, generation: int) -> Opponent:
        """Copy a team's policies."""
        weights = {name: value.cpu() for name, value in team.policy_state().items()}
        return cls(generation, team.index, {**team.policy_spec(), "hyperparameters": {}}, weights)

    @classmethod
    def at_random(cls, team: foreign.Agent) -> Opponent:
        """Random player with the team's architecture: zero logits, so uniform over the legal actions."""
        opponent = cls.of(team, 0)
        return replace(
            opponent, member=None, weights={name: torch.zeros_like(x) for name, x in opponent.weights.items()}
        )

    def state(self) -> dict[str, Any]:
        """Return plain data and tensors."""
        return {"generation": self.generation, "member": self.member, "spec": self.spec, "weights": dict(self.weights)}

    def team(self, like: Any) -> Any:
        """Build a team of the class of `like` that plays this policy."""
        spec = {**self.spec, "hyperparameters": {"net_config": UNUSED}}
        return type(like).from_policy(spec, self.weights, like.device)


@dataclass(frozen=True)
class Pool:
    """Pool of opponents: the random player first, then past members, oldest first."""

    opponents: tuple[Opponent, ...]

    def joined(self, newcomer: Opponent, most: int = POOL_SIZE) -> Pool:
        """Return the pool with `newcomer` added.

        If the pool is full, the opponent with the closest neighbours is removed (of ties the oldest), so that the rest
        stays spread over all generations. The first and the newest are never removed.
        """
        everyone = [*self.opponents, newcomer]
        if len(everyone) > most:
            times = [one.generation for one in everyone]
            gaps = [after - before for before, after in zip(times, times[2:], strict=False)]
            del everyone[1 + int(np.argmin(gaps))]
        return Pool(tuple(everyone))


@dataclass(frozen=True)
class Places:
    """Seating: one entry for each of P lanes with an opponent.

    Attributes:
        lanes: [P] lane numbers. who: [P] opponent numbers in the pool. seats: [P] the opponents' seats.
    """

    lanes: np.ndarray
    who: np.ndarray
    seats: np.ndarray

    @classmethod
    def sorted(cls, lanes: np.ndarray, who: np.ndarray, seats: np.ndarray) -> Places:
        """Sort the entries by opponent."""
        order = np.argsort(who, kind="stable")
        return cls(lanes[order], who[order], seats[order])


class Opponents:
    """Policies of the pool, acting together; batched if they can be stacked.

    Args:
        pool: the opponents. like: a team with the class and device to use.
    """

    def __init__(self, pool: Pool, like: trees.Tree) -> None:
        teams = [one.team(like) for one in pool.opponents]
        for team in teams:
            team.set_training_mode(False)
        self.count, self._learner = len(teams), Learner(teams, choose(teams))
        self._columns = [list(range(columns.stop)[columns]) for columns in teams[0].actions.columns.values()]
        self._environment_action = teams[0].environment_action

    def act(self, action: np.ndarray, obs: Any, mask: Mask, places: Places, draws: Draws) -> None:
        """Write sampled actions into `action` [L, A] at the opponents' places, for agents present in the observation.

        Args:
            obs, mask: of all lanes, [L, ...]. draws: [L, ...] each, see the teams' `draw_exploration`.
        """
        present = obs[PRESENT][places.lanes, places.seats].astype(bool)
        if not present.any():
            return
        lanes, who, seats = places.lanes[present], places.who[present], places.seats[present]
        counts = np.bincount(who, minlength=self.count)
        place = np.arange(len(who)) - np.repeat(np.cumsum(counts) - counts, counts)
        grid = np.zeros((self.count, int(counts.max())), np.int64)  # lanes by opponent, padded with lane 0
        grid[who, place] = lanes
        rows, legal = trees.take(obs, grid), None if mask is None else mask[grid]
        chosen = self._learner.explore(rows, tuple(part[grid] for part in draws), 0.0, legal)
        taken = self._environment_action(chosen[who, place])
        for seat, columns in enumerate(self._columns):
            rows_of_seat = np.flatnonzero(seats == seat)
            action[np.ix_(lanes[rows_of_seat], columns)] = taken[np.ix_(rows_of_seat, columns)]


class SelfPlayGeneration(TeamGeneration):
    """`TeamGeneration` with opponents in every second lane. Scores are returns of the member's seat in those lanes."""

    def __init__(
        self, shard: Shard, lanes: Lanes, learner: Learner, options: LoopOptions, opponents: Opponents
    ) -> None:
        super().__init__(shard, lanes, learner, options)
        self._opponents = opponents
        self._against = shard.streams(Purpose.OPPONENTS)
        seats = [self._seat(rng, slot) for slot, rng in enumerate(self._against)]
        self._places = Places.sorted(*(np.concatenate(parts) for parts in zip(*seats, strict=True)))
        self._learns = np.ones((lanes.num_lanes, SEATS), bool)
        self._learns[self._places.lanes, self._places.seats] = False
        self._opponents_draws: tuple[np.ndarray, ...] = ()
        self._won: list[list[float]] = [[] for _ in self.agents]

    def _seat(self, rng: np.random.Generator, member: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (lanes, opponents, opponents' seats) of one member; opponents are equally frequent up to a remainder.

        The pattern shifts with every generation, so that both seats are covered even with few lanes.
        """
        turn = np.arange(self.num_envs) + self.shard.number
        lanes = np.flatnonzero(turn % 2)
        rounds = -(-len(lanes) // self._opponents.count)
        who = np.concatenate([rng.permutation(self._opponents.count) for _ in range(rounds)] or [np.zeros(0, int)])
        return lanes + member * self.num_envs, who[: len(lanes)], turn[lanes] // 2 % SEATS

    def run(self) -> Steps:
        result = yield from super().run()
        for tally, scores in zip(self.tallies, self._won, strict=True):
            check_zero_sum(np.array(tally.by_agent), self.lanes)
            tally.scores, tally.by_agent = scores, []
        return result

    def act(self, obs: trees.Tree, mask: np.ndarray | None) -> np.ndarray:
        action: np.ndarray = super().act(obs, mask)
        draws = tuple(part[self._index - self._begin].reshape(len(action), -1) for part in self._opponents_draws)
        self._opponents.act(action, obs, mask, self._places, draws)
        return action

    def store(self, reward: np.ndarray, batch: StepBatch) -> None:
        before = [len(tally.by_agent) for tally in self.tallies]
        super().store(reward, batch)
        lanes = np.flatnonzero((batch.terminated | batch.truncated) & batch.mask)
        rows = [row for tally, start in zip(self.tallies, before, strict=True) for row in tally.by_agent[start:]]
        for lane, row in zip(lanes.tolist(), rows, strict=True):
            if not self._learns[lane].all():
                self._won[lane // self.num_envs].append(row[int(np.argmax(self._learns[lane]))])

    def _rollout(self, group: Group) -> Rollout:
        rollout = super()._rollout(group)
        return packed(rollout, group.lead) if group.lead.reads_alone and not group.is_recurrent else rollout

    def _by_agent(self, batch: StepBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Like the base class, with actions of opponents marked as not decided."""
        reward, terminated, cut, decided = super()._by_agent(batch)
        return reward, terminated, cut, decided & self._learns

    def _draw_ahead(self) -> None:
        super()._draw_ahead()
        shape = (self._end - self._begin, self.num_envs)
        member_draws = [
            agent.draw_exploration(rng, shape) for agent, rng in zip(self.agents, self._against, strict=True)
        ]
        self._opponents_draws = tuple(np.stack(parts, axis=1) for parts in zip(*member_draws, strict=True))


class Match:
    """Greedy members at one seat against sampling opponents at the other; an actor for `rollouts.evaluate`.

    Two consecutive episodes are the two seats of one member against one opponent. The pairs are spread over the whole
    pool. The opponent of an episode depends only on the episode's number within the evaluation, not on the stages.
    Opponents and their draws are the same for every member.

    Args:
        members: acts for N of them. opponents: of the generation. lanes: E per member.
        episodes: their seeds also seed the opponents' draws.
    """

    def __init__(self, members: Any, opponents: Opponents, lanes: int, episodes: Episodes) -> None:
        self.members, self.opponents, self.num_envs = members, opponents, lanes
        self._planned, self._next = episodes.planned, episodes.first
        self._rng = np.random.default_rng(np.random.SeedSequence(episodes.seeds.tolist()))
        self._lead = members.agents[0]

    @staticmethod
    def seats(numbers: np.ndarray) -> np.ndarray:
        """Members' seats [episodes] in the episodes of these numbers."""
        return numbers % SEATS

    @staticmethod
    def opponents_of(numbers: np.ndarray, planned: int, count: int) -> np.ndarray:
        """Opponent [episodes], out of `count`, in the episodes of these numbers.

        Opponents take turns if there is a pair of episodes for each; otherwise as many as there are pairs, evenly
        spread.
        """
        pairs, pair = -(-planned // SEATS), numbers // SEATS
        return (pair if pairs >= count else pair * count // pairs) % count

    def begin_episodes(self) -> None:
        """Start the next wave of episodes; see `rollouts.evaluate.evaluate`."""
        self.members.begin_episodes()
        episode = self._next + np.arange(self.num_envs)
        self._next += self.num_envs
        who = self.opponents_of(episode, self._planned, self.opponents.count)
        lanes = np.arange(len(self.members.agents) * self.num_envs)
        times = len(self.members.agents)
        self._places = Places.sorted(lanes, np.tile(who, times), np.tile(1 - episode % SEATS, times))

    def act_greedy(self, obs: Any, mask: Mask = None) -> np.ndarray:
        """See `Learner.act_greedy`: obs [N, E, ...], mask [N, E, W] -> [N, E, A]."""
        members = len(self.members.agents)
        action: np.ndarray = np.array(self.members.act_greedy(obs, mask))
        flat = action.reshape(-1, action.shape[-1])
        drawn = self._lead.draw_exploration(self._rng, (self.num_envs,))
        draws = tuple(np.tile(part, (members, *[1] * (part.ndim - 1))) for part in drawn)
        legal = None if mask is None else np.asarray(mask).reshape(len(flat), -1)
        self.opponents.act(
            flat, trees.map_leaves(lambda x: x.reshape(-1, *x.shape[2:]), obs), legal, self._places, draws
        )
        return flat.reshape(action.shape)


class AgainstOpponents(Evaluator):
    """Evaluate members of two-player games: fitness is the mean return of the member's seat against the current pool.

    Attributes:
        opponents: of the generation. by_agent: if scores are not summed, the mean return from each seat.
        newcomer: policy that joins the pool in the next generation; None if it has joined.
    """

    is_relative = True
    episodes_are_independent = False  # the opponents' actions are drawn for all lanes of a block
    opponents: Opponents
    newcomer: Opponent | None = None

    def evaluate(self, agents: Sequence[Any], number: int, episodes: int | None = None) -> PopulationEvaluation:
        evaluation = super().evaluate(agents, number, episodes)
        if evaluation.fitness:
            self.newcomer = Opponent.of(agents[int(np.argmax(evaluation.fitness))], number + 1)
        return evaluation

    def _play(self, learner: Learner, lanes: Lanes, episodes: Episodes) -> EvaluationResult:
        members, count = len(learner.agents), len(episodes)
        match = Match(learner, self.opponents, lanes.num_lanes // members, episodes)
        result = evaluate(match, lanes, members, count, episodes.seeds, self.limit.steps, by_agent=True)
        check_zero_sum(result.returns[~result.cut], lanes)
        return result

    def _each(self, result: EvaluationResult, episodes: Episodes) -> np.ndarray:
        """Returns [N, episodes] of the members' seats."""
        return result.returns[:, np.arange(len(episodes)), Match.seats(episodes.numbers)]

    def _rows(self, result: EvaluationResult, episodes: Episodes) -> np.ndarray:
        returns, seats = self._each(result, episodes), Match.seats(episodes.numbers)
        return np.stack([returns[:, seats == seat].mean(1) if (seats == seat).any() else np.zeros(len(returns))
                         for seat in range(SEATS)], 1)  # fmt: skip

    def _share_before(self, episodes: Episodes) -> np.ndarray:
        before = np.bincount(Match.seats(np.arange(episodes.first)), minlength=SEATS)
        stage = np.bincount(Match.seats(episodes.numbers), minlength=SEATS)
        share: np.ndarray = before / np.maximum(1, before + stage)
        return share

    def _fitness(self, result: EvaluationResult, episodes: Episodes) -> list[float]:
        return [float(np.mean(row)) for row in self._each(result, episodes)]


class SelfPlayCollector(TeamRolloutCollector):
    """`TeamRolloutCollector` for zero-sum games of two agents of one group; see the module docstring.

    Attributes:
        pool: of this generation.
    """

    evaluating = AgainstOpponents
    evaluator: AgainstOpponents

    def open(
        self, population: Sequence[Any], run_seed: int, check: Callable[[], None] | None = None, shards: int = 1
    ) -> None:
        for team in population:
            check_team(team)
        if self.options.target is not None:
            raise ConfigError(
                "opponents='self' measures fitness against opponents that improve, too, so that it has no target; got "
                f"target={self.options.target:g}. fix: target=None (training.target_score=null), or opponents=None."
            )
        if self.ranks.size > 1:
            raise NotAvailableYetError("opponents='self' trains in one process. fix: opponents=None, or one process.")
        super().open(population, run_seed, check, shards)
        self._like = population[0]
        self.notes.append(
            f"opponents: in every second lane one of at most {POOL_SIZE - 1} of the population's past, or the random "
            "player; fitness is the mean return against all of these"
        )
        self._sit_down(Pool((Opponent.at_random(population[0]),)))

    def _sit_down(self, pool: Pool) -> None:
        self.pool, self.evaluator.opponents = pool, Opponents(pool, self._like)
        names = ["random" if one.member is None else f"{one.generation}:{one.member}" for one in pool.opponents]
        self.evaluator.opponents_of = names

    @property
    def generations(self) -> Any:
        return partial(SelfPlayGeneration, opponents=self.evaluator.opponents)

    def run(self, shard: Shard, lanes: Lanes, learner: Learner) -> Steps:
        """Like the base class; scores are those of the members' seats, summed or not."""
        result: Steps = self.generations(shard, lanes, learner, self.options).run()
        return result

    def plan(self, population: Sequence[Any], number: int, env_steps_before: int) -> GenerationPlan:
        if self.evaluator.newcomer is not None:
            pool, self.evaluator.newcomer = self.pool.joined(self.evaluator.newcomer), None
            self._sit_down(pool)
        pool_states = [one.state() for one in self.pool.opponents]
        return replace(super().plan(population, number, env_steps_before), common={"pool": pool_states})

    def follow(self, plan: GenerationPlan) -> None:
        super().follow(plan)
        self._sit_down(Pool(tuple(Opponent(**one) for one in plan.common["pool"])))

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "opponents": "self"}

    def state(self) -> dict[str, Any]:
        newcomer = None if self.evaluator.newcomer is None else self.evaluator.newcomer.state()
        return {**super().state(), "pool": [one.state() for one in self.pool.opponents], "newcomer": newcomer}

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self.evaluator.newcomer = None if state["newcomer"] is None else Opponent(**state["newcomer"])
        self._sit_down(Pool(tuple(Opponent(**one) for one in state["pool"])))


def check_team(team: Any) -> None:
    """Raise ConfigError for a team that cannot play both seats of a two-player game."""
    groups = dict(team.grouped_agents)
    if len(team.agent_ids) != SEATS or len(groups) != 1:
        raise ConfigError(
            f"opponents='self' is for two agents of one group, which share a policy; team {team.index} has "
            f"{len(team.agent_ids)} agents in the groups {groups}. fix: agents called player_0 and player_1, with "
            "the same spaces; or opponents=None."
        )
    if team.is_recurrent:
        raise NotAvailableYetError("opponents='self' with recurrent policies is not built yet. fix: recurrent=False.")


def check_zero_sum(returns: np.ndarray, lanes: Lanes) -> None:
    """Raise EnvError if the returns [..., 2] of an episode do not sum to zero."""
    sums = returns.reshape(-1, SEATS).sum(-1)
    if len(sums) and np.abs(sums).max() > 1e-6 * max(1.0, float(np.abs(returns).max())):
        row = returns.reshape(-1, SEATS)[int(np.abs(sums).argmax())].tolist()
        raise EnvError(
            f"opponents='self' is for games whose returns sum to zero; an episode of {lanes.backend} gave {row}. fix: "
            "opponents=None, or rewards of which one agent's gain is the other one's loss."
        )
