"""Build a run from a manifest: environments, population, replay, selection, mutation and the training loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pkgutil import resolve_name
from typing import Any

import gymnasium as gym

from agilerl.algorithms import find_algorithm
from agilerl.algorithms.base.evaluation import EvaluatedIn
from agilerl.components.replay_buffer import (
    HindsightReplayBuffer,
    MultiStepReplayBuffer,
    PrioritizedMultiStepReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from agilerl.config import Manifest, preset_for
from agilerl.config.experimental import MODE, experimental_in
from agilerl.config.meanings import OTHER_NAMES
from agilerl.config.overrides import within_widths
from agilerl.config.presets import model_of_presets
from agilerl.core import foreign
from agilerl.core.options import OffPolicyOptions
from agilerl.core.rng import Purpose, seeds
from agilerl.errors import AgileRLError, ConfigError, warn_once
from agilerl.hpo.evolution import Evolution, evolution_of
from agilerl.hpo.founders import spread_founders
from agilerl.hpo.kinds import KINDS
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.racing import Restarts
from agilerl.hpo.schedule import Change, Schedule, begin_with
from agilerl.hpo.schemes import READERS, scheme_of
from agilerl.hpo.tournament import TournamentSelection
from agilerl.runs.directory import RunDirectory
from agilerl.telemetry.evaluation import Baseline, Evaluation
from agilerl.training.loop import LoopSettings, TrainingLoop
from agilerl.training.manifest.adoption import Ancestors
from agilerl.training.manifest.setup import Setup
from agilerl.training.manifest.task import Task
from agilerl.training.manifest.tasks import task_of
from agilerl.training.policy_files import write_best
from agilerl.training.population import set_lanes
from agilerl.training.random_play import random_play
from agilerl.training.result import EvolveResult
from agilerl.training.store import RunStore
from agilerl.workers.executor import Executor


def run_manifest(
    setup: Setup,
    run_directory: RunDirectory | None = None,
    store: RunStore | None = None,
    check: Callable[[], None] | None = None,
    executor: Executor | None = None,
    is_trial: bool = False,
) -> EvolveResult:
    """Train according to a manifest and a request.

    Args:
        run_directory: receives each new best policy.
        store: saves the run after every generation, and restores an earlier save.
        check: called between vector steps; raising KeyboardInterrupt ends the run.
        executor: workers that take part.
        is_trial: do not measure the score of uniformly random play first; otherwise it is, unless run.json has it.

    Returns:
        The result; `stopped` is "interrupted" after Ctrl-C.
    """
    manifest, device, seed = setup.manifest, setup.device, setup.manifest.training.seed
    env, evolution, ancestors = setup.request.env, setup.request.evolution, setup.request.ancestors
    task = task_of(manifest)
    train_env, eval_env = task.environments(env, device)
    new_founders = partial(make_founders, manifest, env, train_env, device)
    restarted = partial(make_founders, of_restarts(manifest), env, train_env, device)
    population = new_founders(seed, ancestors)
    space = population[0].action_space  # of teams by group
    spaces = space.values() if isinstance(space, dict) else (space,)
    if manifest.training.explore_least < 1 and not any(isinstance(one, gym.spaces.Box) for one in spaces):
        raise ConfigError(
            f"training.explore_least scales the noise of Box actions; {manifest.environment.name} has "
            f"{space}. fix: explore_least=1."
        )
    options = make_options(manifest)
    loop_of: Callable[..., TrainingLoop] = TrainingLoop
    if manifest.evolution.mode not in MODE.usual:
        loop_of = partial(resolve_name(MODE.path), max_lag=manifest.evolution.max_lag, order=setup.arrivals)
    loop = loop_of(
        population,
        task.collector.make(train_env, options, lambda: make_replay(manifest, device, train_env), eval_env),
        options,
        settings=LoopSettings(
            seed=seed,
            env_id=manifest.environment.name,
            request=setup.request,
            evolution=make_evolution(manifest, seed, device, None if ancestors else restarted) if evolution else None,
            on_best=None if run_directory is None else partial(_save_best, run_directory),
            store=store,
            check=check,
            deadline=setup.deadline,
            executor=executor,
        ),
    )
    loop.notes += without_effect(manifest, evolution)
    algo, is_scaled = manifest.algorithm.name, manifest.training.normalize_rewards
    method = None if is_scaled else foreign.overridden(find_algorithm(algo), "learn", "get_action")
    if method and preset_for(manifest.environment.name, model_of_presets(algo)).training.normalize_rewards:
        loop.notes.append(f"normalize_rewards of the preset is left out: {algo} brings its own {method}()")
    if evolution and (settings := experimental_in(manifest)):
        loop.notes.append(f"experimental, without a measured gain: {', '.join(settings)}")
    try:
        if not is_trial:
            baseline = loop.result.random_play = _baseline(task, run_directory, loop, eval_env, check)
            loop.result.before = before = _before(task, run_directory, loop.population[0], train_env)
            loop.notes += task.notes_of(baseline, before)
        result = loop.run()
        if result.best is not None:
            result.test = task.final_score(result.best, train_env)
        return result
    except KeyboardInterrupt:
        if loop.result.best is None:
            raise
        return loop.result
    finally:
        for created_env in {id(e): e for e in (train_env, eval_env) if e is not env}.values():
            foreign.close(created_env)


def without_effect(manifest: Manifest, evolution: bool) -> list[str]:
    """Return a note of settings that have no effect in this run; none for those that presets contain."""
    if not evolution:
        return []
    scheme = scheme_of(manifest.evolution.scheme)
    members, survivors = manifest.training.pop_size, manifest.evolution.survivors
    if members == 1 and scheme.only_hyperparameters:
        return [f"no effect on a population of one member: evolution.scheme={scheme.name}"]
    notes = []
    if scheme.ends_members and 1 < members <= survivors:
        notes = [f"no effect on a population of {members} members: evolution.survivors={survivors} ends none of them"]
    by_returns = [f"scheme={scheme.name}"] if scheme.by_returns else []
    by_returns += ["judge=training"] if manifest.evolution.judge == "training" else []
    rescored = manifest.training.elite_rescore_episodes
    if rescored and by_returns:
        notes.append(
            f"no effect on selection by evolution.{by_returns[0]}, which compares training returns: "
            f"training.elite_rescore_episodes={rescored}"
        )
    return notes


def _baseline(
    task: Task, run_directory: RunDirectory | None, loop: TrainingLoop, env: foreign.EnvLike, check: Any
) -> Baseline:
    """Score of random play, or the reason why it is not measured; a resumed run reads it from run.json."""
    recorded = None if run_directory is None else Baseline.from_dict(run_directory.facts().get("random_play"))
    if recorded is not None:
        return recorded
    if task.no_random_play:
        return Baseline(skipped=task.no_random_play)
    members = len(loop.population)
    try:
        seed, deadline = task.manifest.training.seed, loop.pace.deadline
        return random_play(env, loop.population[0], loop.options, members, seed, check, deadline)
    except AgileRLError as error:  # training will raise it too, and keeps what has been written
        return Baseline(skipped=f"the environment failed: {str(error).partition(' fix:')[0].rstrip('.')}")


def _before(
    task: Task, run_directory: RunDirectory | None, founder: foreign.Agent, env: foreign.EnvLike
) -> Evaluation | None:
    """Score of a founder before training; a resumed run reads it from run.json."""
    recorded = None if run_directory is None else Evaluation.from_dict(run_directory.facts().get("before"))
    return task.score_before(founder, env) if recorded is None else recorded


def make_founders(
    manifest: Manifest, env: foreign.EnvLike, train_env: foreign.Env, device: str, seed: int,
    ancestors: Ancestors | None = None,
) -> list[Any]:  # fmt: skip
    """Create the initial members of a run or a restart; copies of the ancestors, if any.

    Args:
        env: passed by the user, None if created from its id. train_env: training environment.
    """
    population = task_of(manifest).population(train_env, seed, device)
    if ancestors is None and manifest.evolution.widths is not None:
        bounded = within_widths(manifest, *manifest.evolution.widths)
        if bounded != manifest:
            population = [*population[:1], *task_of(bounded).population(train_env, seed, device)[1:]]
    if ancestors is not None:
        population = ancestors.adopt(population)
    elif manifest.evolution.founders == "spread":
        spread_founders(population, seed)
    if manifest.evolution.schedule:
        begin_with(population[0], scheduled(manifest), seed)
    set_lanes(population, foreign.num_envs(train_env))
    for agent in population:  # lets evaluate() recreate the environment; None for one passed by the user
        name, kwargs = manifest.environment.name, dict(manifest.environment.kwargs)
        agent.environment = {"id": name, "kwargs": kwargs} if env is None else None
        agent.evaluated_in = EvaluatedIn.of(manifest, env)
    return population


def scheduled(manifest: Manifest) -> list[Change]:
    """Changes of the schedule in a manifest; none without one."""
    return [Change(**vars(change)) for change in manifest.evolution.schedule or ()]


def of_restarts(manifest: Manifest) -> Manifest:
    """Manifest for the founders of a restart: ranges are those of mutation, updated by `evolution.restart_ranges`."""
    ranges = {**manifest.mutation.rl_hp_selection, **manifest.evolution.restart_ranges}
    mutation = manifest.mutation.model_copy(update={"rl_hp_selection": ranges})
    return manifest.model_copy(update={"mutation": mutation})


def _save_best(run_directory: RunDirectory, agent: foreign.Agent) -> None:
    try:
        write_best(run_directory.path, agent)
    except OSError as error:  # a full disk must not end training: the best agent is also in the checkpoints
        warn_once("save-best", f"the best policy could not be written to {run_directory.path} ({error}).")


def make_replay(manifest: Manifest, device: str, env: Any) -> ReplayBuffer:
    """Create the population's replay memory; `env`: training environment, whose rewards hindsight computes."""
    asked = manifest.replay_buffer
    size, n_step = asked.max_size, asked.n_step
    gamma = float(manifest.algorithm.hyperparameters.get("gamma", 0.99))
    settings: dict[str, Any] = {"device": device, "seed": manifest.training.seed}
    settings |= {"alpha": asked.alpha} if asked.prioritized else {}
    if asked.hindsight is not None:
        return HindsightReplayBuffer(size, env, asked.hindsight, asked.goals_per_step, **settings)
    if n_step == 1:
        return (PrioritizedReplayBuffer if asked.prioritized else ReplayBuffer)(size, **settings)
    kind = PrioritizedMultiStepReplayBuffer if asked.prioritized else MultiStepReplayBuffer
    return kind(size, n_step=n_step, gamma=gamma, **settings)


def make_evolution(
    manifest: Manifest, seed: int, device: str, make_restarted: Callable[[int], list[Any]] | None = None
) -> Evolution:
    """Create selection and mutation from the manifest.

    make_restarted: creates founders from a seed, for restarts. Restarts also need a target and patience.
    """
    asked, training, scheme = manifest.evolution, manifest.training, _scheme(manifest, seed, device)
    if not asked.restarts or make_restarted is None or training.target_score is None or training.patience is None:
        return scheme

    def anew(number: int) -> list[Any]:
        return make_restarted(int(seeds(seed, Purpose.FOUNDERS, 1, generation=number)[0]))

    return Restarts(scheme, anew, training.patience)


def _scheme(manifest: Manifest, seed: int, device: str) -> Evolution:
    asked, training = manifest.evolution, manifest.training
    if asked.schedule is not None:
        return Schedule(scheduled(manifest), seed)
    chances, selection = vars(manifest.mutation.probabilities), manifest.tournament_selection
    tournament = TournamentSelection(
        selection.tournament_size, selection.elitism, training.pop_size, selection.eval_loop, seed=seed
    )
    mutation = Mutations(
        **{kind.argument: chances[kind.key] for kind in KINDS.values() if kind.argument},
        new_layer_prob=chances["new_layer"],
        mutation_sd=manifest.mutation.mutation_sd,
        mutate_elite=manifest.mutation.mutate_elite,
        rand_seed=seed,
        device=device,
    )
    mutation.others = {kind.name: chances[kind.key] for kind in KINDS.values() if not kind.argument}
    arguments = {
        "seed": seed, "members": training.pop_size, "budget": training.max_steps * training.pop_size,
        "tournament": tournament, "mutation": mutation, "keeps_elite_id": False,
        **{key: vars(asked)[key] for key in READERS},
    }  # fmt: skip
    return evolution_of(scheme_of(asked.scheme), arguments)


def make_options(manifest: Manifest) -> OffPolicyOptions:
    """Build the loop's options from the training section."""
    training = manifest.training
    renamed = {name: vars(training)[other] for name, other in OTHER_NAMES.items()}
    return OffPolicyOptions.of(training.__dict__, fitness_window=manifest.tournament_selection.eval_loop, **renamed)
