"""The manifest's sections: types, ranges, defaults and the meaning of each key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core import InitErrorDetails

from agilerl.algorithms import (
    DEFAULT_ALGORITHM,
    available,
    canonical_name,
    find_algorithm,
    learns_from_data,
    offline_instead,
)
from agilerl.algorithms.base.declared import check_value, hyperparameters, outside, why_not_together
from agilerl.config.compatibility import OF_TRAINING, RULES
from agilerl.config.ignored import ignored_by
from agilerl.core.compatibility import OF_DATA, conflicts
from agilerl.core.options import OffPolicyOptions
from agilerl.core.ranges import (
    Count,
    CountOrZero,
    Fraction,
    InnerFraction,
    NonNegative,
    Number,
    Positive,
    PositiveFraction,
    describe,
)
from agilerl.core.signatures import constructor_arguments
from agilerl.errors import AlgorithmError, ConfigError, nearest
from agilerl.hpo.kinds import KINDS, REPLAYED
from agilerl.hpo.schemes import PATH, SCHEMES


def algorithm_model(name: str) -> type[BaseModel]:
    """A pydantic model of the algorithm's keys (without `name`)."""
    cls: Any = find_algorithm(name)
    return _model_of(cls)


@lru_cache(maxsize=64)
def _model_of(cls: Any) -> type[BaseModel]:
    fields: dict[str, Any] = {name: (each.values, each.manifest) for name, each in hyperparameters(cls).items()}
    return create_model(f"{cls.__name__}Keys", __config__=ConfigDict(extra="forbid"), **fields)


# Keys of the first format by section, which always count in hashes; a key of a later version counts only with another
# value than its default. All keys of algorithms but `LATER_HYPERPARAMETERS` are first ones.
_FIRST = {
    "environment": "name num_envs kwargs healing num_workers deadline_s max_restarts",
    "network": "latent_dim min_latent_dim max_latent_dim scale_observations simba encoder encoder_config head_config",
    "training": "max_steps pop_size evo_steps eval_steps eval_episodes learning_delay random_steps eps_start eps_end "
    "eps_decay explore_hold target_score seed train_max_episode_steps evolve_from confirm_episodes stop_margin "
    "reward_scale clip_rewards lockstep learner elite_rescore_episodes",
    "mutation": "probabilities rl_hp_selection mutation_sd mutate_elite",
    "probabilities": " ".join(["new_layer", *(kind.key for kind in KINDS.values() if kind.argument)]),
    "tournament_selection": "tournament_size elitism eval_loop",
    "replay_buffer": "max_size n_step prioritized alpha",
    "evolution": "founders widths scheme survivors restarts certainty until judge frequencies schedule",
}
FIRST_KEYS = {section: frozenset(keys.split()) for section, keys in _FIRST.items()}
LATER_HYPERPARAMETERS = {"noise_persistence", "action_std_min", "action_ent_steps", "squash_output", "action_scaling"}
DEFAULT_OPTIONS = OffPolicyOptions()
if TYPE_CHECKING:
    ReplayedKind = str
    SchemeName = str
else:
    ReplayedKind = Literal[REPLAYED]
    SchemeName = (
        Literal[tuple(SCHEMES)] | Annotated[str, StringConstraints(pattern=PATH), Field(description="'module:Class'")]
    )
HiddenSizes = Annotated[list[Count], Field(max_length=16)]
Widths = Annotated[tuple[Count, Count], AfterValidator(lambda pair: tuple(sorted(pair)))]


class Section(BaseModel):
    """A part of the manifest: immutable; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Algorithm(Section):
    """The algorithm and its hyperparameters; the keys other than `name` are those the algorithm declares.

    They are attributes (`manifest.algorithm.lr`) and a dictionary (`manifest.algorithm.hyperparameters`).
    """

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())
    name: str = DEFAULT_ALGORITHM

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        name = canonical_name(str(data.get("name", DEFAULT_ALGORITHM)))
        values = algorithm_model(name)(**{k: v for k, v in data.items() if k != "name"})
        return {"name": name, **values.model_dump()}

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The algorithm's keys without its name, defaults filled in."""
        return dict(self.model_extra or {})


class Environment(Section):
    """The environment; `num_envs` lanes are stepped together for each member."""

    name: str = "CartPole-v1"
    num_envs: Count = 8
    kwargs: dict[str, Any] = {}
    backend: Literal["gymnasium", "envpool", "auto"] = "gymnasium"  # auto: EnvPool where installed and faster
    healing: bool = False  # worker processes, so that crashes and hangs of environments are survived too
    num_workers: Count | None = None  # processes, this one included without healing; null: 1, with healing one per core
    deadline_s: Positive = 60.0  # worker processes: seconds after which a step counts as hung
    max_restarts: CountOrZero = 10  # replacements of environments that fail, after which the run stops
    asynchronous: bool = False  # worker processes: slow lanes do not hold up others; results depend on timing
    with_state: bool = False  # multi-agent: critics read env.state() instead of the joint observations

    @property
    def of_workers(self) -> dict[str, Any]:
        """Options of `make_vect_envs` for lanes that step in worker processes; empty for this process."""
        several = (self.num_workers or 1) > 1 and self.backend == "gymnasium"  # EnvPool has threads of its own
        if not (self.healing or several or self.asynchronous):
            return {}
        options: dict[str, Any] = {"num_workers": self.num_workers, "deadline_s": self.deadline_s}
        if self.healing or self.asynchronous:  # else this process is one of them, and replaces what raises
            options |= {"healing": True, "max_restarts": self.max_restarts}
        return options


class Encoder(Section):
    """Dense layers from the observation to the latent vector."""

    hidden_size: HiddenSizes = [64]
    activation: str = "ReLU"
    layer_norm: bool = False
    min_hidden_layers: Count = 1
    max_hidden_layers: Count = 3
    min_mlp_nodes: Count = 16
    max_mlp_nodes: Count = 500


class Head(Encoder):
    """Dense layers from the latent vector to the output."""

    output_activation: str | None = None


class Network(Section):
    """Encoder, latent vector, head: the founders' architecture and the bounds of its mutation."""

    latent_dim: Count = 64  # width between encoder and head
    min_latent_dim: Count = 8  # exclusive limit of mutations
    max_latent_dim: Count = 128  # exclusive limit of mutations
    scale_observations: bool = False  # features with finite bounds are mapped to [-1, 1]
    simba: bool = False  # residual blocks with LayerNorm instead of plain dense layers
    encoder: dict[str, Any] | None = None  # keys of the encoder for images, Dict and Tuple spaces, or of SimBa
    encoder_config: Encoder | None = Encoder()  # the encoder for vectors; null if `encoder` describes another one
    head_config: Head = Head()


class Training(Section):
    """Budget, exploration, evaluation and stopping; see the options of the same names in `agilerl.core.options`.

    Literal numbers are published defaults of manifests that differ from those of the options.
    """

    max_steps: Count = 200_000
    pop_size: Count = 4  # members of the population
    evo_steps: Count = DEFAULT_OPTIONS.evo_steps
    evo_first: Count | None = DEFAULT_OPTIONS.evo_first  # generations that double until they last evo_steps
    eval_steps: Count | None = DEFAULT_OPTIONS.eval_steps
    eval_episodes: Count = 8
    eval_members: Count | None = DEFAULT_OPTIONS.eval_members  # the most promising by training returns; null: all
    ensemble: bool = DEFAULT_OPTIONS.ensemble  # evaluate and return the mean of all members' policies
    eval_screen: CountOrZero = DEFAULT_OPTIONS.eval_screen
    eval_share: Positive | None = DEFAULT_OPTIONS.eval_share  # generations last as long as their evaluation costs
    learning_delay: CountOrZero = 1000
    random_steps: CountOrZero = DEFAULT_OPTIONS.random_steps
    eps_start: Fraction = DEFAULT_OPTIONS.eps_start
    eps_end: Fraction = DEFAULT_OPTIONS.eps_end
    eps_decay: PositiveFraction = DEFAULT_OPTIONS.eps_decay
    explore_hold: Count = DEFAULT_OPTIONS.explore_hold
    explore_least: Fraction = DEFAULT_OPTIONS.explore_least
    target_score: Number | None = DEFAULT_OPTIONS.target
    stop_after: Count | None = DEFAULT_OPTIONS.stop_after  # steps of a run with a budget in minutes whose time was up
    patience: Count | None = DEFAULT_OPTIONS.patience  # without a target: generations without improvement
    seed: CountOrZero = 0  # of every random stream
    train_max_episode_steps: Count | None = None  # truncates TRAINING episodes, with bootstrap
    evolve_from: Fraction = DEFAULT_OPTIONS.evolve_from
    confirm_episodes: CountOrZero = 100
    confirm_screen: CountOrZero = DEFAULT_OPTIONS.confirm_screen
    confirm_most: CountOrZero = DEFAULT_OPTIONS.confirm_most
    stop_margin: NonNegative = DEFAULT_OPTIONS.stop_margin
    stop_errors: NonNegative = DEFAULT_OPTIONS.stop_errors
    reward_floor: Number | None = DEFAULT_OPTIONS.reward_floor
    reward_scale: Positive = DEFAULT_OPTIONS.reward_scale
    clip_rewards: bool = DEFAULT_OPTIONS.clip_rewards
    normalize_rewards: bool = DEFAULT_OPTIONS.normalize_rewards
    lockstep: bool = DEFAULT_OPTIONS.lockstep
    carry_envs: bool = DEFAULT_OPTIONS.carry_envs
    shards: Count = DEFAULT_OPTIONS.shards  # parts of the population that can train in processes of their own
    share: Literal["all", "shard"] = DEFAULT_OPTIONS.share  # whether all shards learn from all replayed rows
    overlap: bool = DEFAULT_OPTIONS.overlap  # off-policy: updates run while the lanes step, one vector step later
    learner: Literal["auto", "fused", "sequential"] = DEFAULT_OPTIONS.learner
    threads: Count | None = DEFAULT_OPTIONS.threads
    opponents: Literal["self"] | None = DEFAULT_OPTIONS.opponents
    dataset: str | None = DEFAULT_OPTIONS.dataset
    fitness: Literal["returns", "fqe"] = DEFAULT_OPTIONS.fitness
    held_out: InnerFraction = DEFAULT_OPTIONS.held_out
    fqe_gamma: InnerFraction = DEFAULT_OPTIONS.fqe_gamma
    fqe_updates: Count = DEFAULT_OPTIONS.fqe_updates
    elite_rescore_episodes: CountOrZero = DEFAULT_OPTIONS.rescore_episodes


class Probabilities(Section):
    """Relative weights of the mutation kinds; `new_layer` is the share of architecture mutations that add a layer."""

    no_mut: NonNegative = 0.4
    arch_mut: NonNegative = 0.2
    new_layer: Fraction = 0.2
    params_mut: NonNegative = 0.2
    act_mut: NonNegative = 0.0
    rl_hp_mut: NonNegative = 0.2

    @model_validator(mode="after")
    def _check_sum(self) -> Probabilities:
        weights = {name: weight for name, weight in vars(self).items() if name != "new_layer"}
        if sum(weights.values()) <= 0:
            raise ValueError(f"at least one of {', '.join(weights)} must be > 0. fix: no_mut=1.")
        return self


class HyperparameterRange(Section):
    """Bounds of one mutable hyperparameter and the factors of one mutation."""

    min: Number
    max: Number
    shrink_factor: Positive = 0.8
    grow_factor: Positive = 1.2

    @model_validator(mode="after")
    def _check_order(self) -> HyperparameterRange:
        if self.min > self.max:
            raise ValueError(f"min must be <= max ({self.max}); got {self.min}. fix: min={self.max}.")
        return self


class Mutation(Section):
    """Mutations: kinds, probabilities and strength."""

    probabilities: Probabilities = Probabilities()
    rl_hp_selection: dict[str, HyperparameterRange] = {}  # hyperparameters that mutate, with their ranges
    mutation_sd: NonNegative = 0.1  # of noise on weights, relative to them
    mutate_elite: bool = False  # whether the best member mutates too


class TournamentSelection(Section):
    """Selection of the survivors of a generation."""

    tournament_size: Count = 2  # members drawn, of which the fittest survives
    elitism: bool = True  # the best member survives unchanged
    eval_loop: Count = 1  # fitness is the mean of a member's last `eval_loop` evaluations


class ScheduledChange(Section):
    """A change of the one agent that a schedule trains; see `hpo.schedule.Change`."""

    env_steps: CountOrZero
    kind: ReplayedKind
    path: str = ""
    before: Any = None
    after: Any = None


class Evolution(Section):
    """Initial population and evolution scheme."""

    founders: Literal["equal", "spread"] = "equal"  # spread: all but the first draw from the mutation ranges
    widths: Widths | None = None  # spread: bounds of the layer widths of all but the first
    algorithms: list[str] = []  # of further founders, which take turns with algorithm.name and share its replay
    # halving, race: early stopping of half of the members at each rung, or of those significantly behind; the others:
    # copies of the best replace the worst, with hyperparameters one step away (pbt), from a bandit (pb2, extra
    # "bandit"), or in subpopulations at several frequencies (mf_pbt)
    scheme: SchemeName = "tournament"
    interval: Count = 1  # pbt: generations between two selections
    survivors: Count = 1  # halving, race: members left at the end
    restarts: bool = False  # new founders on a plateau of training.patience generations below the target
    restart_ranges: dict[str, HyperparameterRange] = {}  # ranges for those, beside the mutation ranges
    certainty: Positive = 3.0  # race: standard errors behind the leader at which a member is stopped
    until: PositiveFraction = 1.0  # halving: share of the budget divided among its rungs; survivors use the rest
    judge: Literal["evaluation", "training"] = "evaluation"  # halving: the returns that rank the members
    frequencies: tuple[Count, ...] = (1, 10)  # mf_pbt: generations between two evolutions, one per subpopulation
    # async: shards do not wait for each other; each is selected from the last known state of all, at most `max_lag`
    # generations ahead of the slowest
    mode: Literal["generations", "async"] = "generations"
    max_lag: Count = 2
    schedule: list[ScheduledChange] | None = None  # changes of one agent, in place of selection and mutation


def _wrong_value(algorithm: str, name: str, value: object) -> str:
    """Return what is wrong with a scheduled value of a hyperparameter; empty if nothing is.

    A list holds one number for each action, which `hpo.schedule.check` compares with the agent's.
    """
    cls, declared = find_algorithm(algorithm), hyperparameters(find_algorithm(algorithm))[name]
    if declared.is_number and value is not None:
        try:
            for number in value if isinstance(value, list) else [value]:
                check_value(cls, name, number)
        except AlgorithmError as error:
            return str(error)
        return ""
    try:
        algorithm_model(algorithm)(**{name: value})
    except ValidationError:
        usual = str(declared.published).lower() if isinstance(declared.published, bool) else declared.published
        return f"{algorithm}: {name} must be {describe(declared.values)}; got {value!r}. fix: {name}={usual}."
    return ""


def _change_problems(algorithm: str, change: ScheduledChange) -> Iterator[str]:
    """Yield what is wrong with one change of a schedule."""
    where = f"evolution.schedule: after {change.env_steps} steps"
    if change.kind == "activation":
        from agilerl.modules.activations import activation  # torch, which other manifests do without

        try:
            activation(str(change.after), hidden=True)
        except ConfigError as error:
            yield f"{where}: {error}"
    elif change.kind == "architecture" and not change.path:
        yield f"{where}: `path` of an architecture change names its method; got none. fix: path=encoder.add_node, say."
    elif change.kind == "rl_hp" and not (isinstance(change.after, dict) and change.after):
        yield (
            f"{where}: `after` of a change of hyperparameters holds their values by name; got {change.after!r}. "
            "fix: after={lr: 0.001}, say."
        )
    elif change.kind == "rl_hp":
        declared = hyperparameters(find_algorithm(algorithm))
        for name, value in change.after.items():
            if name not in declared:
                yield f"{where}: {no_hyperparameter(name, algorithm, [*declared])}"
            elif wrong := _wrong_value(algorithm, name, value):
                what, _, fix = wrong.partition(f" fix: {name}=")
                yield f"{where}: {what} fix: after={{{name}: {fix.rstrip('.')}}}." if fix else f"{where}: {wrong}"


class ReplayBuffer(Section):
    """Off-policy memory, in transitions."""

    max_size: Count = 100_000  # transitions kept
    n_step: Count = 1  # steps whose rewards a transition sums, discounted by the algorithm's gamma
    prioritized: bool = False  # sample by priority, the TD error
    alpha: Fraction = 0.6  # exponent of the priorities
    hindsight: Literal["future", "final"] | None = None  # learn from goals that an episode achieved later, or last
    goals_per_step: Count = 4  # hindsight: relabelled transitions for each one with its own goal


class Manifest(Section):
    """Every setting of a run. Equal manifests have equal `hash()`."""

    algorithm: Algorithm = Field(default_factory=Algorithm)
    environment: Environment = Environment()
    network: Network = Network()
    training: Training = Training()
    mutation: Mutation = Mutation()
    tournament_selection: TournamentSelection = TournamentSelection()
    replay_buffer: ReplayBuffer = ReplayBuffer()
    evolution: Evolution = Evolution()
    format: Literal[1] = 1

    @model_validator(mode="after")
    def _check_rules(self) -> Manifest:
        """Raise every problem between keys at once."""
        rules = (
            self._mutable_name_problems, self._schedule_problems, self._experience_problems, self._conflicts,
            self._algorithm_problems,
        )  # fmt: skip
        problems = [ValueError(problem) for rule in rules for problem in rule()]
        if problems:
            details: list[InitErrorDetails] = [
                {"type": "value_error", "ctx": {"error": problem}, "input": None} for problem in problems
            ]
            raise ValidationError.from_exception_data("Manifest", details)
        return self

    def _mutable_name_problems(self) -> Iterator[str]:
        declared = hyperparameters(find_algorithm(self.algorithm.name))
        empty = {name for name, each in declared.items() if not each.is_number}  # null, or not a number
        values = self.algorithm.hyperparameters.items()
        mutable = [k for k, v in values if not isinstance(v, bool | str | dict) and not (v is None and k in empty)]
        named = {f"mutation.rl_hp_selection.{name}": name for name in self.mutation.rl_hp_selection}
        named |= {f"evolution.restart_ranges.{name}": name for name in self.evolution.restart_ranges}
        for path, name in named.items():
            if name not in mutable:
                yield no_hyperparameter(path, self.algorithm.name, mutable)
                continue
            limits = self.mutation.rl_hp_selection if path.startswith("mutation.") else self.evolution.restart_ranges
            if (wrong := outside(declared[name].values, limits[name])) is not None:
                yield f"{path}: {wrong}"

    def _conflicts(self) -> Iterator[str]:
        """Yield the rows of `config.compatibility` that the settings break."""
        facts, usual = self._facts(), usual_settings()
        if not self.has_replay:  # its settings are problems by themselves
            facts = {k: v for k, v in facts.items() if not k.startswith(("replay_buffer", "training.share"))}
        defaults = {key: usual[f"training.{key}"] for key in Training.model_fields}
        rules = (*OF_TRAINING, *(OF_DATA if learns_from_data(self.algorithm.name) else ()))
        spelled: Any = lambda k, v: as_set(f"training.{k}" if k in defaults else k, v)  # noqa: E731
        of_training = conflicts(rules, facts | vars(self.training), defaults, spelled)
        yield from (problem for _, problem in (*conflicts(RULES, facts, usual, as_set), *of_training))
        founders, survivors = self.training.pop_size, self.evolution.survivors
        if self.evolution.scheme == "halving" and survivors > founders:
            yield (
                f"evolution.survivors={survivors} of halving must not exceed the founders; got training.pop_size="
                f"{founders}. fix: training.pop_size={survivors}, or evolution.survivors={founders}."
            )

    def _schedule_problems(self) -> Iterator[str]:
        changes = self.evolution.schedule or []
        if [change.env_steps for change in changes] != sorted(change.env_steps for change in changes):
            yield "evolution.schedule: changes must be in the order of their env_steps. fix: sort them."
        for change in changes:
            yield from _change_problems(self.algorithm.name, change)

    def _algorithm_problems(self) -> Iterator[str]:
        for name in self.evolution.algorithms:
            try:
                if why := why_not_together(find_algorithm(self.algorithm.name), find_algorithm(name)):
                    fix = " or ".join(partners(self.algorithm.name)) or "leave it out"
                    yield f"evolution.algorithms: {why} fix: {fix}."
            except AlgorithmError as error:
                yield f"evolution.algorithms: {error}"

    def of_algorithm(self, name: str) -> Manifest:
        """Return the manifest of founders of another algorithm, with the keys and ranges that both declare."""
        declared = hyperparameters(find_algorithm(name))
        common = {key: value for key, value in self.algorithm.hyperparameters.items() if key in declared}
        ranges, later = (
            {key: limits for key, limits in section.items() if key in declared}
            for section in (self.mutation.rl_hp_selection, self.evolution.restart_ranges)
        )
        update = {
            "algorithm": Algorithm(name=name, **common),
            "mutation": self.mutation.model_copy(update={"rl_hp_selection": ranges}),
            "evolution": self.evolution.model_copy(update={"restart_ranges": later}),
        }
        return self.model_copy(update=update)

    def _facts(self) -> dict[str, Any]:
        """The facts that rows of `config.compatibility` name."""
        cls = find_algorithm(self.algorithm.name)
        values, changes = self.algorithm.hyperparameters, self.evolution.schedule or ()
        batches = [x.get("batch_size") for x in (values, *(c.after for c in changes)) if isinstance(x, dict)]
        rates = (name for name, each in hyperparameters(cls).items() if each.is_number and name.startswith("lr"))
        some_range = f"{next(rates, '')}={{min: 1e-4, max: 1e-2}}".removeprefix("=") or "batch_size={min: 16, max: 256}"
        changing = {
            "mutation.rl_hp_selection": self.mutation.rl_hp_selection,
            "evolution.restart_ranges": self.evolution.restart_ranges,
            "evolution.schedule": [name for change in changes for name in change.path.split(", ")],
        }
        return {
            "algo": self.algorithm.name,
            "algorithm": self.algorithm.name,
            "says": cls.experience.says,
            "has_training_episodes": cls.experience.has_training_episodes,
            "reads_state": "state_space" in constructor_arguments(cls),
            "changes_gamma": next((key for key, names in changing.items() if "gamma" in names), ""),
            "some_range": f"mutation.rl_hp_selection.{some_range}",
            "is_recurrent": bool(values.get("recurrent")),
            "algorithm.batch_size": max((rows for rows in batches if isinstance(rows, int)), default=0),
            **({} if self.training.lockstep else {"one_at_a_time": "lockstep=False"}),
            **{key: value_at(self, key) for key in usual_settings()},
        }

    def _experience_problems(self) -> Iterator[str]:
        experience = find_algorithm(self.algorithm.name).experience
        changed = [key for key in ignored_by(experience.name) if _differs(self, key)]
        if changed:
            keys = ", ".join(changed)
            other = offline_instead(self.algorithm.name) if "training.dataset" in changed else ""
            fix = f"to learn from data, {other}; or leave {keys} out" if other else f"leave {keys} out"
            yield f"{keys}: means nothing to {self.algorithm.name}, which {experience.says}. fix: {fix}."

    @property
    def has_replay(self) -> bool:
        """Whether the algorithm learns from the section `replay_buffer`."""
        return has_replay(self.algorithm.name)

    @property
    def steps(self) -> str:
        """The unit of its budget, as messages name it."""
        steps: str = find_algorithm(self.algorithm.name).experience.steps
        return steps

    def as_dict(self) -> dict[str, Any]:
        """Plain nested dictionaries of JSON values; `evolution.schedule` only if there is one."""
        content = self.model_dump(mode="json")
        if content["evolution"]["schedule"] is None:
            del content["evolution"]["schedule"]
        return content

    def hash(self) -> str:
        """16 hexadecimal digits of a SHA-256 over the canonical JSON; independent of key order and of the process.

        Keys of later versions count only if they differ from their defaults (`FIRST_KEYS`): a manifest that does not
        use them keeps its earlier hash.
        """
        content, usual = self.as_dict(), Manifest().model_dump(mode="json")
        if self.training.threads == 1:  # the default of earlier versions, with the same bits
            content["training"]["threads"] = None
        sections = {name: (content[name], usual[name]) for name in FIRST_KEYS if name in content}
        sections["probabilities"] = content["mutation"]["probabilities"], usual["mutation"]["probabilities"]
        for name, (values, defaults) in sections.items():
            for key in values.keys() - FIRST_KEYS[name]:
                if values[key] == defaults[key]:
                    del values[key]
        declared = hyperparameters(algorithm := find_algorithm(self.algorithm.name))
        for key in (LATER_HYPERPARAMETERS | algorithm.later_hyperparameters) & content["algorithm"].keys():
            if content["algorithm"][key] == declared[key].manifest:
                del content["algorithm"][key]
        if self.evolution == Evolution():
            del content["evolution"]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def partners(algorithm: str) -> list[str]:
    """Names of the other algorithms whose members can learn from one replay memory with those of `algorithm`."""
    cls = find_algorithm(algorithm)
    return [name for name in available() if name != algorithm and not why_not_together(cls, find_algorithm(name))]


def has_replay(algorithm: str) -> bool:
    """Whether an algorithm learns from the section `replay_buffer`."""
    experience = find_algorithm(algorithm).experience
    return "replay_buffer" not in ignored_by(experience.name)


def no_hyperparameter(path: str, algorithm: str, known: list[str]) -> str:
    """A message for a range, at the dotted `path`, that names no numeric hyperparameter of the algorithm."""
    close = nearest(path.rpartition(".")[2], known, limit=1)
    hint, fix = (f" Did you mean {close[0]!r}?", close[0]) if close else ("", "leave it out")
    return f"{path} is not a hyperparameter of {algorithm}.{hint} (known: {', '.join(known)}) fix: {fix}."


def _differs(manifest: Manifest, key: str) -> bool:
    """Whether a section, or a key of one ("training.eps_end"), differs from its default."""
    section, _, name = key.partition(".")
    values, defaults = vars(manifest)[section], Manifest.model_fields[section].default
    return bool(vars(values)[name] != vars(defaults)[name] if name else values != defaults)


@cache
def usual_settings() -> dict[str, Any]:
    """Defaults of all keys but those of the algorithm ("training.eps_end")."""
    sections = {
        name: field.default for name, field in Manifest.model_fields.items() if isinstance(field.default, Section)
    }
    return {f"{name}.{key}": value for name, section in sections.items() for key, value in vars(section).items()}


def value_at(manifest: Manifest, key: str) -> Any:
    """Value of a key of a section ("training.eps_end")."""
    section, _, name = key.partition(".")
    return vars(vars(manifest)[section])[name]


def as_set(key: str, value: object) -> str:
    """A setting as it is typed after --set; only the key of a section, and of a list."""
    if isinstance(value, BaseModel | dict | list | tuple):
        return key
    return f"{key}={value if isinstance(value, str) else json.dumps(value)}"
