"""What the published training functions have in common: checks, receivers of records, the run and its elite."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import gymnasium as gym

from agilerl.algorithms.agent import EvolvableAlgorithm
from agilerl.errors import AgileRLWarning, ConfigError, NotAvailableYetError, ShapeError, warn_once
from agilerl.options import LoopOptions
from agilerl.rng import resolve_seed
from agilerl.runs.store import store_in
from agilerl.sources.source import Source
from agilerl.spaces import differ, observation_space_channels_to_first
from agilerl.telemetry.progress import TqdmSink
from agilerl.telemetry.record import Sink
from agilerl.telemetry.trackers import WandbSink
from agilerl.training.evolution import TournamentEvolution
from agilerl.training.loop import TrainingLoop

Options = TypeVar("Options", bound=LoopOptions)


@dataclass(frozen=True)
class Request:
    """What a published function was asked for.

    Attributes:
        function: its name, for messages. asked: its arguments by name. population: its agents.
    """

    function: str
    asked: Mapping[str, Any]
    population: list[Any]

    @classmethod
    def of(cls, function: str, asked: Mapping[str, Any]) -> Request:
        """From all arguments by name."""
        return cls(function, asked, list(asked["pop"] or []))

    @property
    def num_envs(self) -> int:
        """Lanes of the environment."""
        return max(1, int(getattr(self.asked["env"], "num_envs", 1)))

    @property
    def name(self) -> str:
        """Name of the algorithm, for records and files."""
        return self.asked["algo"] or str(self.population[0].algo)

    def check(self) -> None:
        """Errors and warnings about arguments that do not go together.

        Raises:
            NotAvailableYetError: more than one process. ShapeError: agents built for other spaces.
            ConfigError: a tournament for another population size.
        """
        asked = self.asked
        refuse_processes(self.function, asked["accelerator"])
        _check_spaces(self.population, asked["env"], asked["env_name"], asked["swap_channels"])
        _warn_unused_paths(asked["save_elite"], asked["elite_path"], asked["checkpoint"], asked["checkpoint_path"])
        _check_evolution(self.population, asked["tournament"], asked["mutation"])

    def options(self, kind: type[Options]) -> Options:
        """The options among the arguments; evaluations are rounds here, of one episode per environment each."""
        base, rounds = self.asked["checkpoint_path"], self.asked["eval_loop"]
        if self.asked["checkpoint"] is not None and base is None:
            base = f"{self.asked['env_name']}-EvoHPO-{self.name}-{datetime.now():%m%d%Y%H%M%S}"
        return kind.of(
            self.asked,
            eval_episodes=self.num_envs * rounds,
            fitness_window=rounds,
            evolve_last=True,
            checkpoint_path=base,
        )

    def run(self, source: Source, options: LoopOptions) -> tuple[list[Any], list[list[float]]]:
        """Train, save the elite where that was asked for, and give back (population, fitnesses)."""
        asked, seed = self.asked, self.asked["seed"]
        run_seed = resolve_seed(seed)
        with store_in(asked["resume"], algo=self.name) as store:
            loop = TrainingLoop(
                self.population,
                source,
                options,
                seed=run_seed if store is None or seed is not None else store.seed(run_seed),
                evolution=TournamentEvolution(asked["tournament"], asked["mutation"]),
                sinks=self._sinks(),
                env_id=asked["env_name"],
                store=store,
            )
            result = loop.run()
        if asked["save_elite"]:
            result.best.save_checkpoint(asked["elite_path"] or f"{asked['env_name']}-elite_{self.name}.pt")
        return result.population, result.history

    def _sinks(self) -> list[Sink]:
        """The caller's receivers of records, and those that `verbose` and `wb` ask for."""
        asked = self.asked
        chosen: list[Sink] = list(asked["sinks"])
        if asked["verbose"]:
            chosen.append(TqdmSink())
        if asked["wb"]:
            config = {**(asked["INIT_HP"] or {}), **(asked["MUT_P"] or {})}
            more = asked["wandb_kwargs"] or {}
            chosen.append(WandbSink(api_key=asked["wandb_api_key"], config=config, **more))
        return chosen


def refuse_processes(function: str, accelerator: Any) -> None:
    if accelerator is not None and int(getattr(accelerator, "num_processes", 1)) > 1:
        raise NotAvailableYetError(
            f"{function} runs in one process; the accelerator has {accelerator.num_processes}. fix: start one process."
        )


def _warn_unused_paths(
    save_elite: bool, elite_path: str | None, checkpoint: int | None, checkpoint_path: str | None
) -> None:
    if not save_elite and elite_path is not None:
        warnings.warn(
            "'save_elite' set to False but 'elite_path' has been defined, elite will not "
            "be saved unless 'save_elite' is set to True.",
            AgileRLWarning,
            stacklevel=4,
        )
    if checkpoint is None and checkpoint_path is not None:
        warnings.warn(
            "'checkpoint' set to None but 'checkpoint_path' has been defined, checkpoint will not "
            "be saved unless 'checkpoint' is defined.",
            AgileRLWarning,
            stacklevel=4,
        )


def _check_spaces(pop: list[Any], env: Any, env_name: str, swap_channels: bool) -> None:
    """Agents that register anything are complete, and were built for what `env` gives and takes."""
    for agent in pop:
        if isinstance(agent, EvolvableAlgorithm):
            agent.check_registry()
        for name in ("observation_space", "action_space"):
            built = getattr(agent, name, None)
            given = getattr(env, f"single_{name}" if hasattr(env, "num_envs") else name, None)
            if not (isinstance(built, gym.Space) and isinstance(given, gym.Space)):
                continue
            turned = [observation_space_channels_to_first(given)] if swap_channels else []
            if all(differ(built, space) for space in (given, *turned)):
                raise ShapeError(
                    f"agent {agent.index} was built for the {name} {built}; {env_name} has {given}. "
                    f"fix: create_population(..., {name}=env.single_{name})."
                )


def _check_evolution(pop: list[Any], tournament: Any, mutation: Any) -> None:
    if tournament is not None and mutation is None:
        warn_once("no-mutation", "a tournament without a mutation does nothing. fix: pass mutation=Mutations(...).")
    if mutation is not None and tournament is None:
        warn_once(
            "no-tournament",
            "a mutation without a tournament does nothing. fix: pass tournament=TournamentSelection(...).",
        )
    size = getattr(tournament, "population_size", len(pop))
    if size != len(pop):
        raise ConfigError(
            f"tournament.population_size is {size}, but the population has {len(pop)} agents. "
            f"fix: TournamentSelection(..., population_size={len(pop)})."
        )
