"""Shared implementation of the published training functions: argument checks, sinks, the run and its elite."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import gymnasium as gym

from agilerl.algorithms.base.adapted import (
    adapted,
    declares_on_policy,
    kind_of_experience,
    needs_both_memories,
)
from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.algorithms.base.wrapped import AgentWrapper, is_team, unwrapped
from agilerl.collect.collector import Collector
from agilerl.collect.custom.learn import trains_by_learn
from agilerl.collect.teams.transitions import team_in
from agilerl.components.replay_buffer import MultiStepReplayBuffer, ReplayBuffer
from agilerl.core import foreign
from agilerl.core.env_ids import check_lookup
from agilerl.core.files import with_suffix
from agilerl.core.foreign import SPACES
from agilerl.core.options import LoopOptions
from agilerl.core.rng import resolve_seed
from agilerl.core.spaces import actions_differ, differ, observation_space_channels_to_first
from agilerl.envs.observed_masks import without_mask
from agilerl.errors import AgileRLWarning, AlgorithmError, ConfigError, ShapeError, warn_once
from agilerl.hpo.evolution import TournamentEvolution
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.ranks import Ranks, check_launch, joined
from agilerl.runs.request import RunRequest
from agilerl.telemetry.console import bar_sink
from agilerl.telemetry.record import Sink
from agilerl.telemetry.trackers import WandbSink
from agilerl.training.distributed import check_same_request, check_shares, folder_of, sync_resume
from agilerl.training.loop import LoopSettings, TrainingLoop
from agilerl.training.result import EvolveResult
from agilerl.training.store import RunStore, store_in

Options = TypeVar("Options", bound=LoopOptions)
BANDITS = "rounds"  # the experience of bandits


class Request:
    """Arguments of a published training function.

    Attributes:
        function: its name, for messages. asked: its arguments by name. population: its agents.
        num_envs: lanes of its environment.
    """

    def __init__(self, function: str, asked: Mapping[str, Any]) -> None:
        self.function, self.asked = function, asked
        check_kinds(function, asked)
        check_lookup(asked["env"])
        agents = list(asked["pop"] or [])  # wrappers without effect on training are restored at the end
        for agent in agents:
            _check_nesting(agent)
        self._wrapper = next((type(a) for a in agents if adapted(a).trains_unwrapped), None)
        self.population = [a.agent if adapted(a).trains_unwrapped else a for a in agents]
        self.num_envs = foreign.num_envs(asked["env"])

    @property
    def name(self) -> str:
        """Name of the algorithm, for records and files."""
        return self.asked["algo"] or str(self.population[0].algo)

    def check(self) -> None:
        """Check that the arguments are compatible; warns about ineffective ones.

        Raises:
            ShapeError: agents built for other spaces. ConfigError: a tournament for another population size.
        """
        asked = self.asked
        self._check_agents()
        check_launch(asked["accelerator"])
        _check_spaces(self.population, asked["env"], asked["env_name"], asked["swap_channels"])
        unused = []
        if not asked["save_elite"] and asked["elite_path"] is not None:
            unused.append("'save_elite' set to False but 'elite_path' has been defined, elite will not "
                          "be saved unless 'save_elite' is set to True.")  # fmt: skip
        if asked["checkpoint"] is None and asked["checkpoint_path"] is not None:
            unused.append("'checkpoint' set to None but 'checkpoint_path' has been defined, checkpoint will not "
                          "be saved unless 'checkpoint' is defined.")  # fmt: skip
        for text in unused:
            warnings.warn(text, AgileRLWarning, stacklevel=3)
        _check_evolution(self.population, asked["tournament"], asked["mutation"])

    def _check_agents(self) -> None:
        """Raise AlgorithmError for agents that lack something that this run reads or calls."""
        if len({id(agent) for agent in self.population}) < len(self.population):
            raise AlgorithmError(
                f"{self.function}: the population holds one agent twice, which would then learn twice as often. "
                "fix: agent.clone(index) for each further member, or create_population."
            )
        asked, needed = self.asked, ["index", "steps", "scores", "fitness", "algo", "test"]
        needed += ["clone"] if isinstance(asked["tournament"], TournamentSelection) else []
        needed += ["save_checkpoint"] if asked["save_elite"] or asked["checkpoint"] is not None else []
        for agent in self.population:
            inner, kind = unwrapped(agent), type(unwrapped(agent)).__name__
            if isinstance(inner, EvolvableAlgorithm):
                continue
            if isinstance(agent, AgentWrapper):
                raise AlgorithmError(
                    f"{type(agent).__name__}({kind}): a wrapped agent is trained and saved as an EvolvableAlgorithm, "
                    f"and {kind} is none. fix: class {kind}(EvolvableAlgorithm), or an agent without the wrapper."
                )
            missing = [name for name in needed if not hasattr(agent, name)]
            if missing:
                raise AlgorithmError(
                    f"{self.function}: {kind} lacks {', '.join(missing)}, which this run needs of its agents. "
                    f"fix: add {'it' if len(missing) == 1 else 'them'}, or class {kind}(EvolvableAlgorithm)."
                )
        check_members(self.function, self.population)

    def options(self, kind: type[Options]) -> Options:
        """Build the options from the arguments; an evaluation round here is one episode per environment."""
        base, rounds = self.asked["checkpoint_path"], self.asked["eval_loop"]
        if self.asked["checkpoint"] is not None and base is None:
            base = f"{self.asked['env_name']}-EvoHPO-{self.name}-{datetime.now():%m%d%Y%H%M%S}"
        evaluation = {"eval_episodes": self.num_envs * rounds, "fitness_window": rounds}
        return kind.of(self.asked, **evaluation, evolve_last=True, checkpoint_path=base)

    def run(self, collector: Collector, options: LoopOptions) -> tuple[list[Any], list[list[Any]]]:
        """Train, save the elite if requested, and return (population, fitnesses)."""
        asked = self.asked
        with joined(asked["accelerator"]) as ranks:
            if ranks.size > 1:
                check_same_request(self._compared(options), ranks)
                check_shares(self.population, ranks)
            with store_in(folder_of(asked["resume"], ranks), algo=self.name) as store:
                result = self._train(collector, options, ranks, store)
            rare = bool(collector.memories()) and result.updates <= len(self.population) * result.generations
            if result.generations and (not result.updates or result.unchanged or rare):
                _warn_unchanged(self.function, result, rare)
            if asked["save_elite"] and ranks.is_main:  # before any rank returns, so that all of them can read it
                elite_path = asked["elite_path"] or f"{asked['env_name']}-elite_{self.name}"
                result.best.save_checkpoint(with_suffix(elite_path))
        history: list[list[Any]] = result.by_agent or result.history or [list(map(_last_fitness, result.population))]
        trained = result.population
        return trained if self._wrapper is None else [self._wrapper(agent) for agent in trained], history

    def _train(self, collector: Collector, options: LoopOptions, ranks: Ranks, store: RunStore | None) -> EvolveResult:
        asked, seed = self.asked, self.asked["seed"]
        sync_resume(store, ranks)
        run_seed = resolve_seed(seed)
        run_seed = run_seed if store is None or seed is not None else store.seed(run_seed)
        limit_batches(self.function, self.population, asked, ranks.size)
        request = RunRequest(sinks=self._sinks(), callbacks=asked["callbacks"]) if ranks.is_main else RunRequest()
        settings = LoopSettings(
            seed=ranks.gather_plain(run_seed)[0],
            env_id=asked["env_name"],
            request=request,
            evolution=TournamentEvolution(asked["tournament"], asked["mutation"]),
            store=store,
            ranks=ranks,
        )
        return TrainingLoop(self.population, collector, options, settings).run()

    def _compared(self, options: LoopOptions) -> dict[str, Any]:
        """Arguments that must be equal on all ranks."""
        same = {name: value for name, value in options.as_dict().items() if name != "checkpoint_path"}
        same |= {"function": self.function, "env_name": self.asked["env_name"], "num_envs": self.num_envs}
        kinds = {name: type(self.asked[name]).__name__ for name in ("tournament", "mutation")}
        return {**same, **kinds, "resume": self.asked["resume"] is not None}

    def _sinks(self) -> list[Sink]:
        """The caller's sinks, and those implied by `verbose` and `wb`."""
        asked = self.asked
        chosen: list[Sink] = list(asked["sinks"])
        if asked["verbose"]:
            chosen.append(bar_sink())
        if asked["wb"]:
            config = {**(asked["INIT_HP"] or {}), **(asked["MUT_P"] or {})}
            options = asked["wandb_kwargs"] or {}
            chosen.append(WandbSink(api_key=asked["wandb_api_key"], config=config, **options))
        return chosen


def _warn_unchanged(function: str, result: EvolveResult, rare: bool) -> None:
    finding, learned, fix = "no weight has changed", "nothing", "a higher learning rate"
    if not result.updates or rare:
        fix = "more steps, or a smaller learn_step, learning_delay or batch_size"
        finding = "no update was made"
    if result.updates and rare:  # a generation starts with an update, whatever its learn_step
        finding, learned = f"only {result.updates} updates of all members were made", "next to nothing"
    text = f"{function}: {finding} in {result.generations} generations, so {learned} was learned. fix: {fix}."
    warnings.warn(text, AgileRLWarning, stacklevel=4)


def _last_fitness(agent: Any) -> float:
    """Fitness of the last evaluation, from earlier training; NaN if there is none."""
    return float(agent.fitness[-1]) if agent.fitness else math.nan


def _check_spaces(pop: list[Any], env: Any, env_name: str, swap_channels: bool) -> None:
    """Check that agents with a registry are complete and match the spaces of `env`."""
    for agent in pop:
        if isinstance(agent, EvolvableAlgorithm):
            agent.check_registry()
        for name, ask in SPACES:
            built, env_space = ask(agent), ask(env, "single_" if hasattr(env, "num_envs") else "")
            if not (isinstance(built, gym.Space) and isinstance(env_space, gym.Space)):
                continue
            read = env_space if name == "action_space" else without_mask(env_space, foreign.action_space(agent))
            turned = [observation_space_channels_to_first(read)] if swap_channels else []
            is_other = actions_differ if name == "action_space" else differ
            if all(is_other(built, space) for space in (env_space, read, *turned)):
                raise ShapeError(
                    f"agent {agent.index} was built for the {name} {built}; {env_name} has {env_space}. "
                    f"fix: create_population(..., {name}=env.single_{name})."
                )


def _check_evolution(pop: list[Any], tournament: Any, mutation: Any) -> None:
    if tournament is not None and mutation is None:
        warn_once("no-mutation", "a tournament without a mutation does nothing. fix: pass mutation=Mutations(...).")
    if mutation is not None and tournament is None:
        text = "a mutation without a tournament does nothing. fix: pass tournament=TournamentSelection(...)."
        warn_once("no-tournament", text)
    size = tournament.population_size if isinstance(tournament, TournamentSelection) else len(pop)
    if size != len(pop):
        raise ConfigError(
            f"tournament.population_size is {size}, but the population has {len(pop)} agents. "
            f"fix: TournamentSelection(..., population_size={len(pop)})."
        )


def check_transitions(
    population: Sequence[Any], memory: Any, n_step_memory: Any, *, n_step: bool, per: bool | None, is_mutated: bool
) -> None:
    """Check that the arguments, the memories and the agents agree on n-step returns and prioritized replay.

    Args:
        n_step, per: whether n-step transitions and prioritized sampling are requested; None: decided by the memory.
        is_mutated: whether hyperparameters of the population mutate.
    """
    _check_kinds(n_step, per, n_step_memory, memory)
    if n_step_memory is None and any(map(needs_both_memories, population)):
        raise ConfigError(
            "combined_reward=True learns from one-step and n-step transitions together, and needs both. fix: "
            "n_step=True, n_step_memory=MultiStepReplayBuffer(...) beside the memory; or combined_reward=False."
        )
    _check_methods(population, "off-policy", "create_population(algo='DQN', ..., population_size=4)")
    for agent in population:
        if adapted(agent).imitates:
            raise AlgorithmError(
                f"{type(agent).__name__} imitates a data set and learns nothing from rewards, so its own "
                "transitions teach it nothing new. fix: train_offline, or an algorithm that learns values."
            )
    if memory is None:
        raise AlgorithmError(
            "off-policy training needs a replay buffer; got memory=None. fix: ReplayBuffer(max_size=100_000)"
        )
    for agent in population:
        if not hasattr(agent, "batch_size"):
            raise AlgorithmError(
                f"{type(agent).__name__} has no batch_size, so it is not an off-policy algorithm. fix: algo='DQN'"
            )
    _check_memory(population, memory)
    rows = memory if n_step_memory is None else n_step_memory
    if isinstance(rows, MultiStepReplayBuffer):
        _warn_of_discounts(population, rows, is_mutated)


def limit_batches(function: str, population: Sequence[Any], asked: Mapping[str, Any], ranks: int = 1) -> None:
    """Limit batch sizes to the capacity of the replay memory.

    A member does not learn until the memory holds a full batch. Mutation ranges are cut at the memory's size, with a
    warning.

    Args:
        asked: arguments of the function, by name. ranks: processes, each with a memory and its share of a batch.

    Raises:
        ConfigError: a batch size above the capacity.
    """
    memories = [asked.get(name) for name in ("memory", "n_step_memory")]
    sizes = [memory.max_size for memory in memories if isinstance(memory, ReplayBuffer)]
    if function == "train_offline" or not sizes:  # sampled with replacement, from existing data
        return
    most, agents = min(sizes) * ranks, [unwrapped(agent) for agent in population]
    fix = f"a memory with a larger max_size, or batch_size={most}"
    for agent in agents:
        if agent.batch_size > most:
            raise ConfigError(
                f"{function}: agent {agent.index} has batch_size={agent.batch_size} and its memory holds {most} "
                f"transitions, so it would never learn. fix: {fix}."
            )
    limits = [agent.hp_config["batch_size"] for agent in agents
              if isinstance(agent, EvolvableAlgorithm) and "batch_size" in agent.hp_config]  # fmt: skip
    highest = max((parameter.max for parameter in limits), default=0)
    if isinstance(asked["mutation"], Mutations):
        highest = max(highest, asked["mutation"].selection.highest("batch_size"))
        asked["mutation"].selection = asked["mutation"].selection.within("batch_size", most)
    for parameter in limits:
        parameter.min, parameter.max = min(parameter.min, most), min(parameter.max, most)
    if highest > most:
        warnings.warn(
            f"{function}: batch_size may mutate up to {highest:g} and the memory holds {most} transitions; the range "
            f"ends at {most}. fix: {fix.replace('batch_size=', 'a range of batch_size up to ')}.",
            AgileRLWarning,
            stacklevel=4,
        )


def _check_nesting(agent: Any) -> None:
    """Raise AlgorithmError for a wrapper that must be the outermost one, inside another wrapper."""
    inner = agent.agent if isinstance(agent, AgentWrapper) else None
    while isinstance(inner, AgentWrapper):
        if inner.trains_unwrapped:
            outer, kind = type(agent).__name__, type(inner).__name__
            raise AlgorithmError(
                f"{outer}({kind}(agent)): {kind} must be the outermost wrapper in training. "
                f"fix: {kind}({outer}(agent))."
            )
        inner = inner.agent


def check_kinds(function: str, asked: Mapping[str, Any]) -> None:
    """Raise ConfigError for arguments of the wrong type that published training functions have in common."""
    wanted: dict[str, str] = {}
    for name in ("pop", "sinks", "callbacks"):
        value = asked[name]
        if (value is not None or name != "pop") and (not isinstance(value, Iterable) or isinstance(value, str)):
            wanted[name] = f"a list; fix: {name}=[...]."
    for name in ("resume", "elite_path", "checkpoint_path"):
        if not isinstance(asked.get(name), str | os.PathLike | None):
            wanted[name] = f"a path; fix: {name}='runs/mine'."
    for name, call, fix in (
        ("tournament", "select", "TournamentSelection(2, True, population_size)"),
        ("mutation", "mutation", "Mutations(...)"),
    ):
        if asked[name] is not None and not foreign.has_methods(asked[name], call):
            wanted[name] = f"an object with {call}(); fix: {name}={fix}."
    for name, what in wanted.items():
        expected, _, fix = what.partition("; ")
        raise ConfigError(f"{function}: {name} must be {expected}; got {asked[name]!r}. {fix}")


def check_members(function: str, population: Sequence[Any]) -> None:
    """Check that members are of one class, unless they learn by methods of their own; number them if indices repeat.

    Raises:
        AlgorithmError: several classes, which cannot act and learn in one pass.
    """
    kinds = list(dict.fromkeys(type(unwrapped(agent)) for agent in population))
    alone = [agent for agent in population if trains_by_learn(agent) and not adapted(agent).learns_language]
    if len(kinds) > 1 and not alone:
        names = ", ".join(kind.__name__ for kind in kinds)
        raise AlgorithmError(
            f"{function}: the population has members of several classes ({names}); they must be of one, since they act "
            f"and learn together. fix: one population, and one call, for each of them."
        )
    indices = [agent.index for agent in population]
    if len(set(indices)) < len(indices):  # fitness and lineage are kept by index
        warnings.warn(
            f"{function}: several agents have the same index ({', '.join(map(str, indices))}); they are numbered from "
            f"0. fix: index=k for the k-th agent, or create_population.",
            AgileRLWarning,
            stacklevel=5,
        )
        for index, agent in enumerate(population):
            unwrapped(agent).index = index


def check_teams(population: Sequence[Any], env: Any, *, are_teams: bool) -> None:
    """Raise AlgorithmError for teams in a single-agent function, or vice versa."""
    for agent in population:
        if is_team(agent) != are_teams:
            name = type(unwrapped(agent)).__name__
            kind = "on_policy" if declares_on_policy(agent) else "off_policy"
            raise AlgorithmError(
                f"{name} trains {'one agent' if are_teams else 'several agents'}. "
                f"fix: {'train_' if are_teams else 'train_multi_agent_'}{kind}(env, ...)."
            )
    if are_teams:
        team_in(env)


def check_learns_from(what: str, population: Sequence[Any], fix: str) -> None:
    """Raise AlgorithmError for agents that only learn on-policy, unless by a `learn` of their own."""
    for agent in population:
        inner = unwrapped(agent)
        if kind_of_experience(inner)[0] == BANDITS:
            raise AlgorithmError(
                f"{type(inner).__name__} is a bandit without transitions. fix: train_bandits(env, ...)."
            )
        if declares_on_policy(inner) and not (isinstance(inner, EvolvableAlgorithm) and trains_by_learn(inner)):
            raise AlgorithmError(f"{type(inner).__name__} learns from its own rollouts, not from {what}. fix: {fix}.")


def check_bandits(population: Sequence[Any]) -> None:
    """Raise AlgorithmError for a population that is empty, or not of bandits."""
    _check_methods(population, "bandit", "pop=create_population(algo='neuralucb', ..., population_size=4)")
    for agent in population:
        if kind_of_experience(unwrapped(agent))[0] != BANDITS:
            name = type(unwrapped(agent)).__name__
            raise AlgorithmError(f"{name} is no bandit. fix: the training function of {name}, or algo='neuralucb'.")


def check_rollouts(population: Sequence[Any]) -> None:
    """Raise AlgorithmError for a population that cannot train on-policy."""
    _check_methods(population, "on-policy", "pop=create_population(algo='PPO', ..., population_size=4)")
    for agent in population:
        if not hasattr(agent, "gae_lambda") and foreign.has_methods(agent, "make_batch"):
            fix = (
                "train_multi_agent_off_policy, or algo='MAPPO'" if is_team(agent) else "train_off_policy, or algo='PPO'"
            )
            raise AlgorithmError(f"{type(agent).__name__} learns from replay, not from rollouts. fix: {fix}.")


def _check_methods(population: Sequence[Any], training: str, fix: str) -> None:
    if not population:
        raise AlgorithmError(f"the population is empty. fix: {fix}")
    for agent in population:
        for name in ("get_action", "learn"):
            if not foreign.has_methods(agent, name):
                raise AlgorithmError(f"agent {agent!r} has no {name}(); {training} training calls it.")


def _check_kinds(n_step: bool, per: bool | None, n_step_memory: Any, memory: Any) -> None:
    prioritized = foreign.has_methods(memory, "update_priorities")
    multi_step = n_step_memory is not None or isinstance(memory, MultiStepReplayBuffer)
    if per is None:
        per = prioritized
        n_step = multi_step
    if per != prioritized and memory is not None:
        kind = type(memory).__name__
        fix = "memory=PrioritizedReplayBuffer(...)" if per else "per=True, or memory=ReplayBuffer(...)"
        raise ConfigError(f"train_off_policy got per={per} and a {kind}. fix: {fix}.")
    if n_step != multi_step:
        memory_kind = "an n-step memory" if multi_step else "no n-step memory"
        fix = "n_step_memory=MultiStepReplayBuffer(...)" if n_step else "n_step=True, or leave n_step_memory out"
        raise ConfigError(f"train_off_policy got n_step={n_step} and {memory_kind}. fix: {fix}.")


def _check_memory(population: Sequence[Any], memory: Any) -> None:
    """Raise AlgorithmError for a custom memory without the methods required to train these agents."""
    if isinstance(memory, ReplayBuffer):
        return
    needed = ["__len__"]
    if any(trains_by_learn(agent) for agent in population):
        needed += ["sample", "write" if hasattr(memory, "write") else "save_to_memory"]
    else:
        needed += ["write", "sample_indices", "gather", "counter"]
    missing = [name for name in needed if not hasattr(memory, name)]
    if missing:
        raise AlgorithmError(
            f"the memory is a {type(memory).__name__} without {', '.join(missing)}; off-policy training stores and "
            f"samples by {', '.join(needed)}. fix: ReplayBuffer(max_size=100_000). (Agents with a custom learn() "
            "take any memory with save_to_memory(obs, action, reward, next_obs, done, is_vectorised=True), sample(n) "
            "and len().)"
        )


def _warn_of_discounts(population: Sequence[Any], memory: Any, is_mutated: bool) -> None:
    """Warn if an agent's gamma has no effect because n-step rewards were summed with the memory's gamma.

    Args:
        memory: the n-step memory. is_mutated: whether hyperparameters of the population mutate.
    """
    texts = []
    others = sorted({float(a.gamma) for a in population if hasattr(a, "gamma")} - {memory.gamma})
    if others:
        gammas = ", ".join(f"{gamma:g}" for gamma in others)
        other_way = f"MultiStepReplayBuffer(..., gamma={gammas}), or " if len(others) == 1 else ""
        texts.append(
            f"agents have gamma={gammas}, their n-step memory has gamma={memory.gamma:g}: n-step rewards are summed as "
            f"they are stored, so agents learn with the memory's. fix: {other_way}agents with gamma={memory.gamma:g}."
        )
    if is_mutated and any("gamma" in a.hp_config.names() for a in population if hasattr(a, "hp_config")):
        texts.append(
            f"gamma is in hp_config, but n-step rewards are summed as they are stored, with the memory's "
            f"gamma={memory.gamma:g}: a mutated gamma has no effect. fix: leave gamma out of hp_config, or train "
            "without n-step memory."
        )
    for text in texts:
        warnings.warn(text, AgileRLWarning, stacklevel=4)
