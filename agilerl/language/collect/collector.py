"""Collector of language policies: prompts with rewards, preference pairs, or examples.

One step is one prompt (pair, example) of one member. Batches are indexed by number, so the prompts that a member sees
in an iteration depend on the run only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from agilerl.algorithms.base.adapted import adapted
from agilerl.collect.collector import Collector, GenerationPlan, Seconds, Tally
from agilerl.collect.fitness import FitnessEvaluator, PopulationEvaluation
from agilerl.core import foreign
from agilerl.core.compatibility import OF_RUNS, RUN_DEFAULTS, enforce
from agilerl.core.options import LanguageOptions, LoopOptions
from agilerl.core.rng import Purpose, stream
from agilerl.engine.learner import not_a_result
from agilerl.engine.protocol import UpdateResult
from agilerl.errors import AlgorithmError, ConfigError, RunError, warn_once
from agilerl.language.collect.batches import (
    BatchSource,
    CompletionBatches,
    Engine,
    PreferenceBatches,
    Row,
    SFTBatches,
)
from agilerl.language.collect.games import GameBatches, Games
from agilerl.language.engines import choose_adapters, engines_for
from agilerl.language.tokenizer import fingerprint, is_tokenizer_of
from agilerl.llm_envs.by_id import make_language_env
from agilerl.llm_envs.prompts import Example, Pair, Prompt
from agilerl.ranks import Ranks

FITNESS = {
    "preferences": "beta times the margin of the chosen over the rejected completion, mean over the test split",
    "examples": "log-probability of a token of the completions, mean over the test split",
}
"""Fitness of collectors without rewards."""

ITEMS: dict[str, tuple[type, str]] = {
    "completions": (Prompt, "ReasoningGym"), "preferences": (Pair, "PreferenceGym"), "examples": (Example, "SFTGym"),
}  # fmt: skip
"""What each kind of experience is made from, and the gym that has it."""

GYMS = {
    "completions": "ReasoningGym(train_dataset, test_dataset, tokenizer, reward_fn)",
    "preferences": "PreferenceGym(train_dataset, test_dataset, tokenizer)",
    "examples": "SFTGym(train_dataset, test_dataset, tokenizer)",
}
"""Call that makes the gym of each kind of experience, for messages."""


class TextEvaluator(FitnessEvaluator):
    """Evaluate language policies on the test split of an environment.

    Args:
        feed: scores agents on a split. learner: of the options. ranks: processes whose fitness is averaged.
        check: called before; an exception it raises aborts the evaluation.
    """

    def __init__(
        self, env: Any, feed: BatchSource, learner: str, ranks: Ranks, check: Callable[[], None] | None
    ) -> None:
        super().__init__()
        self.env, self.feed, self.learner, self.ranks, self.check = env, feed, learner, ranks, check

    def evaluate(self, agents: Sequence[Any], number: int, episodes: int | None = None) -> PopulationEvaluation:
        env_steps, here = len(self.env.split("test")) * len(agents), self.judged_here
        self.env_steps += env_steps
        fitness = here(agents) if self.divider is None else self.divider.judge(agents, here)
        fitness = fitness if self.ranks.size == 1 else [float(x) for x in self.ranks.average(fitness)]
        return PopulationEvaluation(fitness, env_steps=env_steps)

    def judged_here(self, agents: Sequence[Any]) -> list[float]:
        """Fitness of agents, in this process."""
        if self.check is not None:
            self.check()
        engines, _, _ = engines_for(agents, self.learner)
        return self.feed.evaluate(engines, agents, [self.env] * len(agents), "test")


class LanguageCollector(Collector):
    """A `Collector` of prompts, pairs or examples.

    Args:
        envs: one environment shared by all members, each with separate batches; or one per slot.
        options: of the run; a step is a prompt.
    """

    def __init__(self, envs: Any, options: LanguageOptions) -> None:
        self.is_shared = not isinstance(envs, list | tuple)
        self.envs = [envs] if self.is_shared else list(envs)
        for env in self.envs:
            check_gym(env)
        self.options = options
        self.notes: list[str] = []
        self.seconds = Seconds()
        self.num_envs = len(self.envs[0].batch(0))
        self._faults: list[str] = []
        self._last_scores: list[float] = []

    @property
    def batch_size(self) -> int:
        """Prompts per member in an iteration, over all ranks."""
        return self.num_envs * self.ranks.size

    @classmethod
    def make(
        cls, env: Any, options: LoopOptions, replay: Callable[[], Any] | None = None, eval_env: object = None
    ) -> LanguageCollector:
        """Create the collector with the manifest options that apply to language policies."""
        return cls(env, LanguageOptions.of(vars(options)))

    @classmethod
    def make_envs(cls, name: str, tokenizer: foreign.Tokenizer, learns: str = "completions", **kwargs: Any) -> Any:
        """Create the environment of an id; see `llm_envs.by_id.make_language_env`."""
        return make_language_env(name, tokenizer, learns, **kwargs)

    @classmethod
    def spaces(cls, env: Any) -> tuple[None, None]:
        """None: prompts and completions are texts."""
        return None, None

    # -- fitted to a population --------------------------------------------------------------------------------------

    def open(
        self, population: Sequence[Any], run_seed: int, check: Callable[[], None] | None = None, shards: int = 1
    ) -> None:
        if not self.is_shared and len(self.envs) != len(population):
            raise ConfigError(f"{len(self.envs)} environments for {len(population)} members. fix: one each, or env=.")
        enforce(OF_RUNS, {"shards": shards, "ranks": self.ranks.size, "pop_size": len(population)}, RUN_DEFAULTS)
        self.run_seed, self.shards = run_seed, shards
        self._env_states = [[env.state() for env in self.envs] for _ in range(shards)]
        self._check_fit(population)
        self.learner, why = choose_adapters(population, self.options.learner)
        self.notes.append(f"learner: {self.learner} ({why})")
        if self.is_shared and len(population) > 1:
            self.notes.append("members share one environment: each learns from separate batches")
        if population[0].experience.name in FITNESS:
            self.notes.append(f"fitness: {FITNESS[population[0].experience.name]}")
        self.feed = self._feed(population[0])
        self.evaluator = TextEvaluator(self.envs[0], self.feed, self.options.learner, self.ranks, check)

    def _feed(self, lead: Any) -> BatchSource:
        if isinstance(self.envs[0], Games):
            return GameBatches()
        kinds: dict[str, Callable[[], BatchSource]] = {
            "completions": lambda: CompletionBatches(self._faults.append), "preferences": PreferenceBatches,
            "examples": SFTBatches,
        }  # fmt: skip
        return kinds[lead.experience.name]()

    def _check_fit(self, population: Sequence[Any]) -> None:
        for agent in population:
            if not adapted(agent).learns_language:
                raise AlgorithmError(
                    f"{type(agent).__name__} is no language algorithm. fix: create_population('GRPO')."
                )
            for env in self.envs:
                if not is_tokenizer_of(env.tokenizer, fingerprint(agent.base.tokenizer)):
                    raise ConfigError(
                        f"agent {agent.index}'s base and the environment have different tokenizers. "
                        "fix: the environment with agent.base.tokenizer."
                    )
            self._check_items(agent)
            self._check_context(agent)
            self._check_methods(agent)

    def _check_methods(self, agent: foreign.Agent) -> None:
        """Raise AlgorithmError for an overridden `learn`, warn about other methods that training does not call."""
        kind = type(agent)
        if foreign.overridden(kind, "update") is None and foreign.overridden(kind, "learn") is not None:
            raise AlgorithmError(
                f"{kind.__name__} overrides learn(), which training of language policies does not call. "
                "fix: override update(engine, batch)."
            )
        names = [name for name in ("get_action", "test") if foreign.overridden(kind, name)]
        if names:
            text = f"{kind.__name__} overrides {' and '.join(names)}, which training of language policies does not call"
            warn_once(text, f"{text}. fix: a reward in the environment, or agent.test(env) in a loop of your own.")

    def _check_items(self, agent: Any) -> None:
        """Raise ConfigError for a gym of another kind of experience."""
        kind, gym = ITEMS[agent.experience.name]
        for env in self.envs:
            item = None if isinstance(env, Games) else env.batch(0)[0]
            other = next((name for item_type, name in ITEMS.values() if isinstance(item, item_type)), None)
            if other is not None and not isinstance(item, kind):
                raise ConfigError(
                    f"{type(agent).__name__} {agent.experience.says}, which a {gym} has; got {type(env).__name__}. "
                    f"fix: env={gym}(...), or an algorithm that learns from the rows of {other}."
                )

    def _check_context(self, agent: Any) -> None:
        for env in self.envs:
            if not isinstance(env, Games):  # games are limited per turn: `TokenObservationWrapper.fit_into`
                agent.check_context(env)

    def fit(self, population: Sequence[Any]) -> str | None:
        name, why = choose_adapters(population, self.options.learner)
        changed = f"learner: {name} ({why})" if name != self.learner else None
        self.learner = name
        return changed

    def env_of(self, slot: int) -> Any:
        """Return the environment of a slot."""
        return self.envs[0 if self.is_shared else slot]

    # -- a generation ------------------------------------------------------------------------------------------------

    def steps_of_generation(self, evo_steps: int) -> int:
        return -(-evo_steps // self.batch_size) * self.batch_size

    def plan(self, population: Sequence[Any], number: int, env_steps_before: int) -> GenerationPlan:
        remaining = -(-(self.options.max_steps - env_steps_before) // self.batch_size)
        steps = self.steps_of_generation(self.options.generation_steps(env_steps_before, self.evaluated))
        iterations = max(1, min(steps // self.batch_size, remaining))
        return GenerationPlan(
            number, env_steps_before, iterations, len(population), self.options.max_steps, self.learner
        )

    def run_shard(
        self, plan: GenerationPlan, shard: int, agents: Sequence[Any], slots: Sequence[int]
    ) -> Generator[int, None, list[Tally]]:
        if self.shards > 1:
            self._load_envs(self._env_states[shard])
        tallies = [Tally() for _ in agents]
        rngs = [stream(self.ranks.seed(self.run_seed), Purpose.WRITING, plan.number, slot) for slot in slots]
        place_of = {id(agent): place for place, agent in enumerate(agents)}
        for agent in agents:
            agent.set_training_mode(True)
        engines, _, _ = engines_for(agents, self.options.learner, self.ranks)
        try:
            for index in range(plan.length):
                iteration = plan.begun // self.batch_size + index
                for agent in agents:
                    agent.progress = min(1.0, iteration * self.batch_size / self.options.max_steps)
                for engine in engines:
                    engine.refresh()
                    places = [place_of[id(agent)] for agent in engine.agents]
                    rows = [
                        Row(
                            self.env_of(slots[place]),
                            iteration * plan.members + slots[place] if self.is_shared else iteration,
                            rngs[place],
                            tallies[place],
                        )
                        for place in places
                    ]
                    self._iterate(engine, rows)
                for tally in tallies:
                    tally.env_steps += self.num_envs
                yield self.batch_size * len(agents)
                if self.ranks.all(all(tally.fault for tally in tallies)):
                    break
        finally:
            for engine in engines:
                engine.release()
        self._env_states[shard] = [env.state() for env in self.envs]
        return tallies

    def combined(self, tallies: Sequence[Tally]) -> list[Tally]:
        self._warn_of_equal_rewards(tallies)
        return super().combined(tallies)

    def _warn_of_equal_rewards(self, tallies: Sequence[Tally]) -> None:
        """Warn once if all members had the same mean reward in all iterations of a generation.

        A single member with one iteration per generation is compared with its previous generation.
        """
        scores = [score for tally in tallies for score in tally.scores]
        if len(scores) == 1:
            scores = [*self._last_scores[-1:], *scores]
        self._last_scores = scores
        if len(scores) > 1 and len(set(scores)) == 1:
            warn_once(
                "equal rewards",
                f"every iteration of every member had a mean reward of {scores[0]:g}: equal rewards teach nothing. "
                "fix: a base that earns one now and then, an easier task, or rewards for parts of it.",
            )

    def _iterate(self, engine: Engine, rows: Sequence[Row]) -> None:
        lead: Any = engine.agents[0]
        steps = 0
        for batch in self.feed.batches(engine, rows):
            result = lead.update(engine, batch)
            if not isinstance(result, UpdateResult):
                raise not_a_result(lead, result)
            steps += 1
            live = batch.live or (True,) * len(rows)
            losses, kls = (_each(x, len(rows)) for x in (result.loss, result.kl))
            for row, agent, goes, loss, kl in zip(rows, engine.agents, live, losses, kls, strict=True):
                if not goes:
                    continue
                row.tally.updates, row.tally.loss_sum = row.tally.updates + 1, row.tally.loss_sum + loss
                row.add(kl=kl)
                agent.learn_counter += 1
                if not np.isfinite(loss):
                    row.tally.fault = row.tally.fault or "its loss is not finite"
        for row, is_sound in zip(rows, engine.is_finite(), strict=True):
            row.add(iterations=1, silent_iterations=int(steps == 0))
            if not is_sound:
                row.tally.fault = row.tally.fault or "its weights are not finite"

    # -- for the records ---------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        base = {"learner": self.learner, "env_backend": "prompts", "num_envs": self.num_envs}
        return {**base, "lockstep": self.learner == "fused", "data": self._digest}

    def faults(self) -> list[str]:
        for line in self._faults:
            warn_once(f"reward:{line}", f"a reward was left out: {line}")
        self._faults.clear()
        return []

    @cached_property
    def _digest(self) -> str:
        """Digest of all prompts, which are constant during a run."""
        digest = hashlib.sha256()
        for env in self.envs:
            for name in env.splits:
                for item in env.split(name):
                    parts = [v for k, v in vars(item).items() if k != "entry"] if hasattr(item, "__dict__") else [item]
                    digest.update(repr((name, *parts)).encode())
        return digest.hexdigest()

    def shard_state(self, shard: int) -> dict[str, Any]:
        return {"envs": self._env_states[shard]}

    def load_shard_state(self, shard: int, state: Mapping[str, Any]) -> None:
        self._env_states[shard] = list(state["envs"])

    def state(self) -> dict[str, Any]:
        shards = {"shards": [self.shard_state(shard) for shard in range(self.shards)]} if self.shards > 1 else {}
        return {"data": self._digest, "envs": [env.state() for env in self.envs], **shards}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Raise RunError if the prompts differ from those the run started with."""
        if state["data"] != self._digest:
            raise RunError("the run learned from other prompts than these. fix: the same data sets and templates.")
        self._load_envs(state["envs"])
        for shard, of_shard in enumerate(state.get("shards", ())):
            self.load_shard_state(shard, of_shard)

    def _load_envs(self, states: Sequence[Any]) -> None:
        for env, env_state in zip(self.envs, states, strict=True):
            env.load_state(env_state)

    def close(self) -> None:
        """No-op."""


def check_gym(env: Any, experience: str | None = None) -> None:
    """Raise ConfigError for environments without batches by number.

    Args:
        experience: kind of experience that the agents learn from, a key of `GYMS`; None if unknown.
    """
    turns_count = experience in (None, "completions")
    if turns_count and hasattr(env, "group_size") and foreign.has_methods(env, "reset") and not hasattr(env, "split"):
        raise ConfigError(f"{type(env).__name__} is played turn by turn. fix: finetune_llm_multiturn(pop, env).")
    if not foreign.has_methods(env, "batch", "split"):
        expected = "ReasoningGym, PreferenceGym or SFTGym" if experience is None else ITEMS[experience][1]
        raise ConfigError(
            f"env must be a {expected}; got {type(env).__name__}. fix: env={GYMS[experience or 'completions']}."
        )


def _each(value: Tensor | None, members: int) -> list[float]:
    """Expand a tensor [N] or a scalar to one number per member."""
    return [0.0] * members if value is None else value.detach().reshape(-1).expand(members).tolist()
