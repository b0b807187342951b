"""Shared implementation of the published training functions: argument checks, sinks, the run and its elite."""

from __future__ import annotations

import inspect
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import gymnasium as gym

from agilerl.algorithms import example_of
from agilerl.algorithms.base.adapted import adapted, kind_of_experience
from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.algorithms.base.declared import why_not_together
from agilerl.algorithms.base.single_agent import RLAlgorithm
from agilerl.algorithms.base.wrapped import AgentWrapper, is_team, unwrapped
from agilerl.collect.collector import Collector
from agilerl.collect.custom.member import trains_by_learn
from agilerl.collect.teams.transitions import team_in
from agilerl.components.replay_buffer import MultiStepReplayBuffer, ReplayBuffer
from agilerl.core import foreign
from agilerl.core.env_ids import check_lookup
from agilerl.core.files import with_suffix
from agilerl.core.foreign import SPACES
from agilerl.core.options import LoopOptions, OfflineOptions, OffPolicyOptions
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
from agilerl.telemetry.files import CsvSink
from agilerl.telemetry.record import Sink
from agilerl.telemetry.trackers import WandbSink
from agilerl.training.distributed import check_same_request, check_shares, folder_of, sync_resume
from agilerl.training.loop import LoopSettings, TrainingLoop
from agilerl.training.population import set_lanes
from agilerl.training.result import EvolveResult
from agilerl.training.store import store_in

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Kind:
    """Needs of a published training function.

    Attributes:
        learns_from: `Experience.name` of what its algorithms learn from.
        accepts: experience of other agents that it trains; None: agents that declare none, with a custom `learn`.
        collects: its experience, for messages. options: class of its options.
    """

    learns_from: str
    accepts: tuple[str | None, ...]
    collects: str
    options: type[LoopOptions]

    @property
    def are_teams(self) -> bool:
        return self.learns_from.startswith("team_")

    @property
    def example(self) -> str:
        """Name of one of its algorithms, for messages."""
        return example_of(self.learns_from)


REPLAY = (None, "transitions", "team_transitions", "team_values", "dataset")
KINDS = {
    "train_off_policy": Kind("transitions", REPLAY, "replay", OffPolicyOptions),
    "train_multi_agent_off_policy": Kind("team_transitions", REPLAY, "replay", OffPolicyOptions),
    "train_bandits": Kind("rounds", (), "the rewards of chosen arms", OffPolicyOptions),
    "train_on_policy": Kind("rollouts", (None,), "rollouts", LoopOptions),
    "train_multi_agent_on_policy": Kind("team_rollouts", (None,), "rollouts", LoopOptions),
    "train_offline": Kind("dataset", REPLAY, "a data set", OfflineOptions),
}
FUNCTION_OF = {kind.learns_from: function for function, kind in KINDS.items()}


def _is_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike | None)


# Arguments of all functions: whether a value is valid, the expectation in words, and an example.
TYPES: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    "pop": (lambda value: value is None or _is_list(value), "a list", "[...]"),
    "sinks": (_is_list, "a list", "[...]"),
    "callbacks": (_is_list, "a list", "[...]"),
    "resume": (_is_path, "a path", "'runs/mine'"),
    "elite_path": (_is_path, "a path", "'runs/mine'"),
    "checkpoint_path": (_is_path, "a path", "'runs/mine'"),
    "tournament": (lambda value: value is None or foreign.has_methods(value, "select"), "an object with select()",
                   "TournamentSelection(2, True, population_size)"),
    "mutation": (lambda value: value is None or foreign.has_methods(value, "mutation"), "an object with mutation()",
                 "Mutations(...)"),
}  # fmt: skip


def completed(other: Callable[..., Any]) -> Callable[[Function], Function]:
    """Decorator: complete a docstring by the entries of `other` for the same arguments, its returns and its errors."""
    _, *shared = re.split(r"\n\n(?=\w+:\n)", inspect.cleandoc(other.__doc__ or ""))

    def complete(function: Function) -> Function:
        if function.__doc__ is None:  # python -OO
            return function
        summary, *sections = re.split(r"\n\n(?=\w+:\n)", inspect.cleandoc(function.__doc__))
        texts = {text.partition(":")[0]: text for text in sections}
        arguments = texts.setdefault("Args", "Args:")
        documented = set(re.findall(r"(\w+)(?=(?:, \w+)*: )", arguments))
        for text in shared:
            texts.setdefault(text.partition(":")[0], text)
        for entry in re.split(r"\n    (?=\w)", shared[0])[1:]:
            names = entry.partition(":")[0].split(", ")
            if not documented.intersection(names) and names[0] in inspect.signature(function).parameters:
                texts["Args"] += f"\n    {entry}"
        function.__doc__ = "\n\n".join([summary, *(texts[name] for name in ("Args", "Returns", "Raises"))]) + "\n"
        return function

    return complete


class Request:
    """Arguments of a published training function.

    Attributes:
        function: its name, for messages. kind: its needs. asked: its arguments by name. population: its agents.
        num_envs: lanes of its environment.
    """

    def __init__(self, function: str, asked: Mapping[str, Any]) -> None:
        self.function, self.kind, self.asked = function, KINDS[function], dict(asked)
        check_types(function, asked)
        check_lookup(asked["env"])
        agents = list(asked["pop"] or [])  # wrappers without effect on training are restored at the end
        for agent in agents:
            _check_nesting(agent)
        self._wrapper = next((type(a) for a in agents if adapted(a).trains_unwrapped), None)
        self.population = [a.agent if adapted(a).trains_unwrapped else a for a in agents]
        self.num_envs = foreign.num_envs(asked["env"])
        self._check()

    @property
    def name(self) -> str:
        """Name of the algorithm, for records and files."""
        return self.asked["algo"] or str(self.population[0].algo)

    def _check(self) -> None:
        """Check that the arguments are compatible; warns about ineffective ones."""
        asked = self.asked
        self._check_agents()
        if self.kind.are_teams:
            team_in(asked["env"])
        if "memory" in asked:
            self._check_memory()
        check_members(self.function, self.population)
        check_launch(asked["accelerator"])
        _check_spaces(self.population, asked["env"], asked["env_name"], asked["swap_channels"])
        for name, path, file, on in (
            ("save_elite", "elite_path", "elite", "set to True"),
            ("checkpoint", "checkpoint_path", "checkpoint", "defined"),
        ):
            if not asked[name] and asked[path] is not None:
                text = f"'{name}' set to {asked[name]} but '{path}' has been defined, {file} will not be saved unless "
                warnings.warn(f"{text}'{name}' is {on}.", AgileRLWarning, stacklevel=5)
        _check_evolution(self.population, asked)

    def _check_agents(self) -> None:
        """Raise AlgorithmError for agents that lack something that this run reads or calls, or learn otherwise."""
        function, kind, asked = self.function, self.kind, self.asked
        if not self.population:
            raise AlgorithmError(f"{function}: the population is empty. fix: create_population({kind.example!r}, ...).")
        if len({id(agent) for agent in self.population}) < len(self.population):
            raise AlgorithmError(
                f"{function}: the population holds one agent twice, which would then learn twice as often. "
                "fix: agent.clone(index) for each further member, or create_population."
            )
        needed = ["get_action", "learn", "index", "steps", "scores", "fitness", "algo", "test"]
        needed += ["batch_size"] if kind.options is OffPolicyOptions else []
        needed += ["clone"] if isinstance(asked["tournament"], TournamentSelection) else []
        needed += ["save_checkpoint"] if asked["save_elite"] or asked["checkpoint"] is not None else []
        for agent in self.population:
            inner, name = unwrapped(agent), type(unwrapped(agent)).__name__
            missing = [attribute for attribute in needed if not hasattr(agent, attribute)]
            if isinstance(agent, AgentWrapper) and not isinstance(inner, EvolvableAlgorithm):
                raise AlgorithmError(
                    f"{type(agent).__name__}({name}): a wrapped agent must subclass EvolvableAlgorithm. "
                    f"fix: class {name}(EvolvableAlgorithm), or an agent without the wrapper."
                )
            if missing:
                raise AlgorithmError(
                    f"{function}: {name} lacks {', '.join(missing)}, which this run needs of its agents. "
                    f"fix: add {'it' if len(missing) == 1 else 'them'}, or class {name}(EvolvableAlgorithm)."
                )
            experience, learns = kind_of_experience(inner)
            learns = learns if experience is not None else "learns by its own methods"
            usual = "train_multi_agent_off_policy" if is_team(agent) else "train_off_policy"
            fix = f"{FUNCTION_OF.get(experience or '', usual)}(env, ...)"
            if is_team(agent) != kind.are_teams:
                raise AlgorithmError(f"{name} trains {('several agents', 'one agent')[kind.are_teams]}. fix: {fix}.")
            has_custom_learn = isinstance(inner, EvolvableAlgorithm) and trains_by_learn(inner)
            accepted = experience in kind.accepts or (has_custom_learn and bool(kind.accepts))
            if kind.collects == "rollouts" and not hasattr(agent, "gae_lambda"):
                accepted &= not foreign.has_methods(agent, "make_batch")
            accepted |= experience == kind.learns_from
            accepted &= kind.collects != "replay" or not adapted(inner).imitates
            if not accepted or (kind.learns_from == "dataset" and not isinstance(inner, RLAlgorithm)):
                raise AlgorithmError(
                    f"{name} {learns}, not from {kind.collects}. fix: {fix}, or algo={kind.example!r}."
                )

    def _check_memory(self) -> None:
        """Check that arguments, memories and agents agree on n-step returns and prioritised replay."""
        asked, agents, memory = self.asked, self.population, self.asked["memory"]
        n_step_memory = asked.get("n_step_memory")
        if memory is None:
            raise AlgorithmError(f"{self.function}: got memory=None. fix: ReplayBuffer(max_size=100_000).")
        if self.kind.options is not OffPolicyOptions:
            return
        if "per" in asked:
            _check_replay(memory, n_step_memory, n_step=asked["n_step"], per=asked["per"])
        needs_both = any(adapted(agent).combined_reward for agent in agents)
        if needs_both and n_step_memory is None:
            raise ConfigError(
                "combined_reward=True learns from one-step and n-step transitions together, and needs both. fix: "
                "n_step=True, n_step_memory=MultiStepReplayBuffer(...) beside the memory; or combined_reward=False."
            )
        if not isinstance(memory, ReplayBuffer):
            _check_methods(memory, any(map(trains_by_learn, agents)))
        rows = memory if n_step_memory is None else n_step_memory
        if isinstance(rows, MultiStepReplayBuffer):
            _warn_of_discounts(agents, rows, asked["tournament"] is not None and asked["mutation"] is not None)

    def options(self) -> Any:
        """Build the options from the arguments; an evaluation round here is one episode per environment."""
        base, rounds = self.asked["checkpoint_path"], self.asked["eval_loop"]
        if self.asked["checkpoint"] is not None and base is None:
            base = f"{self.asked['env_name']}-EvoHPO-{self.name}-{datetime.now():%m%d%Y%H%M%S}"
        evaluation = {"eval_episodes": self.num_envs * rounds, "fitness_window": rounds}
        return self.kind.options.of(self.asked, **evaluation, evolve_last=True, checkpoint_path=base)

    def run(self, make_collector: Callable[[Any], Collector]) -> tuple[list[Any], list[list[Any]]]:
        """Train on the collector of these options, save the elite if requested, and return (population, fitnesses)."""
        asked, options, population = self.asked, self.options(), self.population
        if self.kind.collects == "rollouts":
            set_lanes(population, self.num_envs)
        collector = make_collector(options)
        with joined(asked["accelerator"]) as ranks:
            kinds = {name: type(asked[name]).__name__ for name in ("tournament", "mutation")}
            names = {"function": self.function, "env_name": asked["env_name"], "num_envs": self.num_envs}
            compare(ranks, population, options, **names, **kinds, resume=asked["resume"] is not None)
            limit_batches(self.function, population, asked, ranks.size)
            evolution = TournamentEvolution(asked["tournament"], asked["mutation"])
            result = train_population(
                population, asked, ranks, self.name, lambda seed: (collector, options, asked["env_name"], evolution)
            )
            rare = bool(collector.memories()) and result.updates <= len(population) * result.generations
            if result.generations and (not result.updates or result.unchanged or rare):
                _warn_unchanged(self.function, result, rare)
            if asked["save_elite"] and ranks.is_main:  # before any rank returns, so that all of them can read it
                elite_path = asked["elite_path"] or f"{asked['env_name']}-elite_{self.name}"
                result.best.save_checkpoint(with_suffix(elite_path))
        history: list[list[Any]] = result.by_agent or result.history or [list(map(_last_fitness, result.population))]
        trained = result.population
        return trained if self._wrapper is None else [self._wrapper(agent) for agent in trained], history


def compare(ranks: Ranks, population: Sequence[Any], options: LoopOptions, **others: Any) -> None:
    """Check that all ranks have the same options and other arguments, and enough rows of each batch."""
    if ranks.size > 1:
        same = {name: value for name, value in options.as_dict().items() if name != "checkpoint_path"}
        check_same_request({**same, **others}, ranks)
        check_shares(population, ranks)


def train_population(
    population: list[Any],
    asked: Mapping[str, Any],
    ranks: Ranks,
    algo: str,
    build: Callable[[int], tuple[Collector, LoopOptions, str, TournamentEvolution]],
) -> EvolveResult:
    """Train with the collector, options, name and evolution that `build` returns for the seed of the run."""
    with store_in(folder_of(asked["resume"], ranks), algo=algo) as store:
        sync_resume(store, ranks)
        run_seed = resolve_seed(asked["seed"])
        run_seed = run_seed if store is None or asked["seed"] is not None else store.seed(run_seed)
        seed = ranks.gather_plain(run_seed)[0]
        collector, options, env_id, evolution = build(seed)
        settings = LoopSettings(
            seed=seed,
            env_id=env_id,
            request=RunRequest(sinks=sinks_of(asked), callbacks=asked["callbacks"]) if ranks.is_main else RunRequest(),
            evolution=evolution,
            store=store,
            ranks=ranks,
        )
        return TrainingLoop(population, collector, options, settings).run()


def sinks_of(asked: Mapping[str, Any]) -> list[Sink]:
    """The caller's sinks, and those implied by `verbose`, `log_csv` and `wb`."""
    chosen: list[Sink] = [*asked["sinks"], *([bar_sink()] if asked["verbose"] else [])]
    if asked.get("log_csv"):
        chosen.append(CsvSink(Path(asked["elite_path"] or ".") / "metrics.csv"))
    if asked["wb"]:
        config = {
            key: value for name in ("INIT_HP", "MUT_P", "init_hp") for key, value in (asked.get(name) or {}).items()
        }
        named = {"project": "wandb_project", "entity": "wandb_entity", "name": "wandb_run_name"}
        options = {key: asked[name] for key, name in named.items() if asked.get(name) is not None}
        options |= asked.get("wandb_kwargs") or {}
        chosen.append(WandbSink(config=config, api_key=asked["wandb_api_key"], **options))
    return chosen


def _warn_unchanged(function: str, result: EvolveResult, rare: bool) -> None:
    finding, learned, fix = "no weight has changed", "nothing", "a higher learning rate"
    if not result.updates or rare:
        fix = "more steps, or a smaller learn_step, learning_delay or batch_size"
        finding = "no update was made"
    if result.updates and rare:  # a generation starts with an update, whatever its learn_step
        finding, learned = f"only {result.updates} updates of all members were made", "next to nothing"
    text = f"{function}: {finding} in {result.generations} generations, so {learned} was learned. fix: {fix}."
    warnings.warn(text, AgileRLWarning, stacklevel=5)


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


def _check_evolution(pop: list[Any], asked: Mapping[str, Any]) -> None:
    tournament, examples = asked["tournament"], {"tournament": "TournamentSelection(...)", "mutation": "Mutations(...)"}
    for name, other in (("tournament", "mutation"), ("mutation", "tournament")):
        if asked[name] is not None and asked[other] is None:
            fix = f"pass {other}={examples[other]}"
            warn_once(f"no-{other}", f"a {name} without a {other} does nothing. fix: {fix}.", stacklevel=7)
    size = tournament.population_size if isinstance(tournament, TournamentSelection) else len(pop)
    if size != len(pop):
        raise ConfigError(
            f"tournament.population_size is {size}, but the population has {len(pop)} agents. "
            f"fix: TournamentSelection(..., population_size={len(pop)})."
        )


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
            stacklevel=5,
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


def check_types(function: str, asked: Mapping[str, Any]) -> None:
    """Raise ConfigError for an argument of the wrong type; see `TYPES`."""
    for name, (is_valid, expected, example) in TYPES.items():
        if name in asked and not is_valid(asked[name]):
            raise ConfigError(f"{function}: {name} must be {expected}; got {asked[name]!r}. fix: {name}={example}.")


def check_members(function: str, population: Sequence[Any]) -> None:
    """Check that members of several classes learn from one replay or by methods of their own; number repeated indices.

    Raises:
        AlgorithmError: several classes, which cannot act and learn in one pass.
    """
    kinds = list(dict.fromkeys(type(unwrapped(agent)) for agent in population))
    alone = [agent for agent in population if trains_by_learn(agent) and not adapted(agent).learns_language]
    why = next(filter(None, (why_not_together(kinds[0], kind) for kind in kinds[1:])), "")
    if len(kinds) > 1 and function != "train_off_policy":
        why = why or "members act and learn in one pass."
    if why and not alone:
        names = ", ".join(kind.__name__ for kind in kinds)
        raise AlgorithmError(
            f"{function}: the population has members of several classes ({names}): {why} "
            "fix: one population, and one call, for each of them."
        )
    indices = [agent.index for agent in population]
    if len(set(indices)) < len(indices):  # fitness and lineage are kept by index
        warnings.warn(
            f"{function}: several agents have the same index ({', '.join(map(str, indices))}); they are numbered from "
            f"0. fix: index=k for the k-th agent, or create_population.",
            AgileRLWarning,
            stacklevel=6,
        )
        for index, agent in enumerate(population):
            unwrapped(agent).index = index


def _check_replay(memory: Any, n_step_memory: Any, *, n_step: bool, per: bool) -> None:
    """Raise ConfigError if the flags of `train_off_policy` contradict its memories."""
    multi_step = n_step_memory is not None or isinstance(memory, MultiStepReplayBuffer)
    if per != foreign.has_methods(memory, "update_priorities"):
        fix = "memory=PrioritizedReplayBuffer(...)" if per else "per=True, or memory=ReplayBuffer(...)"
        raise ConfigError(f"train_off_policy got per={per} and a {type(memory).__name__}. fix: {fix}.")
    if n_step != multi_step:
        memory_kind = "an n-step memory" if multi_step else "no n-step memory"
        fix = "n_step=True" if multi_step else "n_step_memory=MultiStepReplayBuffer(...), or n_step=False"
        raise ConfigError(f"train_off_policy got n_step={n_step} and {memory_kind}. fix: {fix}.")


def _check_methods(memory: Any, has_custom_learn: bool) -> None:
    """Raise AlgorithmError for a custom memory without the methods required to train these agents."""
    needed = ["__len__", "write", "sample_indices", "gather", "counter"]
    if has_custom_learn:
        needed = ["__len__", "sample", "write" if hasattr(memory, "write") else "save_to_memory"]
    missing = [name for name in needed if not hasattr(memory, name)]
    if missing:
        raise AlgorithmError(
            f"the memory is a {type(memory).__name__} without {', '.join(missing)}. fix: ReplayBuffer(max_size=100_000)"
            "; agents with a custom learn() take any memory with save_to_memory(obs, action, reward, next_obs, done, "
            "is_vectorised=True), sample(n) and len()."
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
        warnings.warn(text, AgileRLWarning, stacklevel=7)
