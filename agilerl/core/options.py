"""Options of a training run, as data. Steps are environment steps of ONE member unless stated otherwise.

Every option, its default and its meaning is defined here once. The published functions and the training section of a
manifest use these names; they define only names or defaults that were published differently.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any, ClassVar, Literal, Self, get_type_hints

import numpy as np

from agilerl.core.compatibility import OF_DATA, OF_EXPLORATION, OF_LOOPS, Rule, enforce
from agilerl.core.ranges import (
    AnyNumber,
    Count,
    CountOrZero,
    Fraction,
    InnerFraction,
    NonNegative,
    Number,
    Positive,
    PositiveFraction,
    check,
)


@cache
def _declared(options: Any) -> dict[str, tuple[Any, Any]]:
    """Return option -> (its annotated type, its default)."""
    hints = get_type_hints(options, include_extras=True)
    return {field.name: (hints[field.name], field.default) for field in fields(options)}


@dataclass(frozen=True)
class LoopOptions:
    """Options of the training loop, independent of the kind of experience.

    Attributes:
        max_steps: environment steps per member, rounded to whole vector steps (on-policy: rollouts).
        evo_steps: steps per member between evaluations (a generation).
        evo_first: steps of the first generation; each later one lasts as long as all earlier ones together, up to
            `evo_steps`; None: constant length.
        eval_steps: truncate evaluation episodes after this many steps; None: the environment's own limit, or if it has
            none a generation's vector steps, at least 1,000 (`envs.limits.EpisodeLimit`).
        eval_episodes: evaluation episodes per member and generation.
        eval_members: number of members evaluated per generation, those with the highest training returns (see
            `hpo.screening`); None: all.
        ensemble: whether the mean of all members' policies (`networks.ensemble`) is evaluated in place of
            `eval_members`, may reach the target and is the result. Members are ranked by their training returns.
        eval_screen: evaluation episodes per round; after each round, members significantly behind the leader
            (`rollouts.evaluate.contested`) are dropped, and evaluation stops once the leader is clear; that of a
            single member, once it is unlikely to reach the target. 0: all episodes.
        eval_share: bound on the steps of evaluations, as a fraction of the training steps of all members. Where
            episodes are long, an evaluation has fewer of them, then fewer members (`hpo.screening.affordable`); a
            generation lasts at least the steps of its last evaluation divided by this. Confirmations count too, and
            those at the end of the run have a fifth of the training steps beside it. None: no bound.
        target: stop after the first generation whose best fitness (mean of the last `fitness_window`) reaches it.
        stop_after: end the run once a member has made this many steps, with the confirmations of a last generation,
            which it shortens; whatever follows fractions of the budget still follows `max_steps`. Recorded by a run
            whose time was up, so that its configuration repeats it. None: at `max_steps`.
        patience: early stopping of a run without a target, after this many generations without improvement of fitness
            or training returns, once anything has been learned (`hpo.stopping`); None: never.
        fitness_window: number of evaluations averaged for stopping.
        confirm_episodes: fresh episodes that must also reach `target + stop_margin` before the run stops; 0: none. The
            candidate is the member with the highest mean return, shrunken towards the population's
            (`hpo.shrinkage`). If the target is not reached, at most this many confirm the best agents of the last
            generations.
        confirm_screen: maximum number of confirmation episodes per batch. After each one a confirmation ends if it can
            hardly succeed any more (`rollouts.confirmation`). 0: 16 per batch.
        confirm_most: maximum number of confirmation episodes if their mean exceeds the target by less than
            `stop_errors`; more are played until that is decided. 0: no further episodes.
        stop_errors: additional margin, in standard errors of these episodes; it is added to `stop_margin`.
        evolve_from: fraction of the budget before which there is no selection or mutation.
        evolve_last: whether the last generation is evolved too, as published; its children never train.
        rescore_episodes: extra episodes for the two fittest before selection.
        reward_floor: lower bound of training rewards; None: no bound.
        reward_scale: factor on training rewards; scores and fitness are never scaled.
        clip_rewards: learn from the sign of a reward (Mnih et al. 2015, methods), times `reward_scale`.
        normalize_rewards: divide rewards by a running scale, see `collect.rewards`; replaces the last two.
        lockstep: whether members act at the same time on replicas of the environment.
        carry_envs: episodes continue across generations, in the lanes of each slot, whichever member acts there next. A
            resumed run restarts them, so it equals an uninterrupted one only statistically. Needs lockstep.
        shards: parts that the population is cut into, by slot; a generation of each can run in a process of its own.
            Part of a run's identity: members of a shard learn together, and see the replayed experience and the
            statistics of other shards one generation later. The number of processes makes no difference.
        learner: "auto", "fused" or "sequential".
        threads: intra-op threads of torch during the whole run, on whose number rounding depends, and of the kernels in
            C, which run members on them with the same bits. None: one for torch, and every core for the kernels.
        swap_channels: images are [H, W, C].
        opponents: of a two-player game: "self" trains against a pool of the population's past
            (`collect.teams.self_play`); None: against itself only.
        dataset: the file of transitions, or the run whose replay, members learn from; for offline algorithms.
        fitness: selection criterion of offline algorithms: "returns" of episodes in the environment, or "fqe", values
            by fitted Q evaluation on held-out data, without environment steps (`collect.fitted`).
        held_out: for "fqe", the fraction of the data set's episodes held out for evaluation.
        fqe_gamma: discount of these values, the same for all members. fqe_updates: updates per evaluation, in a
            generation.
        checkpoint: save the population each time a member has made this many more steps; None: never.
    """

    max_steps: Count = 1_000_000
    evo_steps: Count = 10_000
    evo_first: Count | None = None
    eval_steps: Count | None = None
    eval_episodes: Count = 16
    eval_members: Count | None = None
    ensemble: bool = False
    eval_screen: CountOrZero = 0
    eval_share: Positive | None = None
    target: AnyNumber | None = None
    stop_after: Count | None = None
    patience: Count | None = None
    fitness_window: Count = 1
    confirm_episodes: CountOrZero = 0
    confirm_screen: CountOrZero = 0
    confirm_most: CountOrZero = 0
    stop_margin: NonNegative = 0.0
    stop_errors: NonNegative = 0.0
    evolve_from: Fraction = 0.0
    evolve_last: bool = False
    rescore_episodes: CountOrZero = 0
    reward_floor: Number | None = None
    reward_scale: Positive = 1.0
    clip_rewards: bool = False
    normalize_rewards: bool = False
    lockstep: bool = True
    carry_envs: bool = False
    shards: Count = 1
    learner: Literal["auto", "fused", "sequential"] = "auto"
    threads: Count | None = None
    swap_channels: bool = False
    opponents: Literal["self"] | None = None
    dataset: str | None = None
    fitness: Literal["returns", "fqe"] = "returns"
    held_out: InnerFraction = 0.2
    fqe_gamma: InnerFraction = 0.99
    fqe_updates: Count = 3_000
    checkpoint: Count | None = None
    checkpoint_path: str | None = None
    overwrite_checkpoints: bool = False
    rules: ClassVar[tuple[Rule, ...]] = OF_LOOPS

    def __post_init__(self) -> None:
        kind: Any = type(self)
        declared = _declared(kind)
        for name, (values, usual) in declared.items():
            check(name, vars(self)[name], values, usual)
        defaults = {name: usual for name, (_, usual) in declared.items()}
        enforce(self.rules, vars(self), defaults)

    @classmethod
    def of(cls, given: Mapping[str, Any], **more: Any) -> Self:
        """Select the options from `given`, ignoring other keys; `more` takes precedence."""
        return cls(**{**{f.name: given[f.name] for f in fields(cls) if f.name in given}, **more})

    def generation_steps(self, begun: int, evaluated: float = 0.0) -> int:
        """Return the steps per member of the generation that starts after `begun` steps.

        evaluated: steps per member of the preceding evaluation.
        """
        steps = self.evo_steps if self.evo_first is None else min(self.evo_steps, max(self.evo_first, begun))
        steps = steps if self.eval_share is None else max(steps, math.ceil(evaluated / self.eval_share))
        return steps if self.stop_after is None else max(1, min(steps, self.stop_after - begun))

    def generations(self, rounded: Callable[[int], int] = int) -> int:
        """Return the number of generations in `max_steps`, an upper bound if `eval_share` extends some; `rounded`: to
        whole vector steps, rollouts or batches."""
        begun = count = 0
        usual = rounded(self.evo_steps)
        while begun < self.max_steps and (steps := rounded(self.generation_steps(begun))) < usual:
            begun, count = begun + steps, count + 1
        return count + max(0, -(-(self.max_steps - begun) // usual))

    @cached_property
    def changes_rewards(self) -> bool:
        """Whether training rewards differ from the environment's."""
        return self.reward_floor is not None or self.clip_rewards or self.reward_scale != 1.0

    def learned_reward(self, reward: np.ndarray) -> np.ndarray:
        """Return the training rewards."""
        reward = reward if self.reward_floor is None else np.maximum(reward, self.reward_floor)
        reward = np.sign(reward) if self.clip_rewards else reward
        return reward if self.reward_scale == 1.0 else reward * self.reward_scale

    @property
    def torch_threads(self) -> int:
        """Intra-op threads of torch."""
        return self.threads or 1

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-able dict, for `run.json`."""
        return {f.name: vars(self)[f.name] for f in fields(self)}


@dataclass(frozen=True)
class OffPolicyOptions(LoopOptions):
    """Options of off-policy training, in addition to those of the loop.

    Attributes:
        learning_delay: steps of the whole population stored before learning starts.
        random_steps: initial steps of the whole population with uniformly random actions.
        eps_start, eps_end, eps_decay: exploration, multiplied by `eps_decay` every vector step.
        explore_hold: maximum time, in vector steps, for which a random action is held; 1 draws anew each step.
        explore_least: noise of a member's first lane relative to its last one, evenly spaced between; 1: equal noise.
        share: "all": after each generation the rows of all shards are in everybody's replay; "shard": each shard has a
            replay buffer of its own.
        overlap: updates run while the lanes step. Those that are due after a vector step run during the next one, so
            that actions come from weights one vector step older; the results do not depend on how long a step takes.
    """

    learning_delay: CountOrZero = 0
    random_steps: CountOrZero = 0
    eps_start: Fraction = 1.0
    eps_end: Fraction = 0.1
    eps_decay: PositiveFraction = 0.995
    explore_hold: Count = 1
    explore_least: Fraction = 1.0
    share: Literal["all", "shard"] = "all"
    overlap: bool = False
    rules = (*OF_LOOPS, *OF_EXPLORATION)


@dataclass(frozen=True)
class OfflineOptions(LoopOptions):
    """Options of offline training: those of the loop. A step is one update of one member."""

    learning_delay: ClassVar[int] = 0  # the data exist before the first step
    rules = (*OF_LOOPS, *OF_DATA)


@dataclass(frozen=True)
class LanguageOptions(LoopOptions):
    """Options of training language policies: those of the loop. A step is one prompt, pair or example of one member.

    Attributes:
        evolve_every: generations between evolutions.
    """

    evolve_every: Count = 1
