"""Base class of proximal policy optimisation, for single agents and for teams."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self, TypedDict, TypeVar, cast, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.algorithms.base.declared import Declared, hp
from agilerl.algorithms.base.observation_statistics import ALONE, ObservationStatistics, Readers, RunningStatistics
from agilerl.algorithms.base.policy_gradient import PolicyUnit, policy_gradient
from agilerl.algorithms.base.schedules import DEFAULT_TARGET_KL, AdaptiveRate, Schedule, scheduled
from agilerl.components.rollout_store import RolloutStore
from agilerl.core.ranges import Count, Fraction
from agilerl.core.rng import Purpose, seeds
from agilerl.core.tree import Tree, map_leaves
from agilerl.engine.learner import Learner, learner_of
from agilerl.engine.protocol import Draws, Mask, RolloutBatch, Trainable, UpdateEngine, UpdateResult
from agilerl.engine.rollouts import Rollout, learn_rollout, make_rollout
from agilerl.losses.actor_critic import clipped_value_loss
from agilerl.modules.lstm import EvolvableLSTM
from agilerl.networks.actors import SharedActorCritic, StochasticActor, ValueView
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.distributions import ActionDistribution

Constructor = TypeVar("Constructor", bound=Callable[..., None])
HiddenStates = dict[str, Tensor]  # key -> [..., layers, E, units]
COUNTS = ("batch_size", "learn_step", "update_epochs", "num_envs")
SHARED = (  # arguments of PPO and its teams
    *COUNTS, "lr", "gamma", "gae_lambda", "mut", "net_config", "clip_coef", "ent_coef", "vf_coef", "max_grad_norm",
    "target_kl", "normalize_images",
)  # fmt: skip


def unpacked(constructor: Constructor) -> Constructor:
    """Let a constructor's `**options: Unpack[...]` have defaults, and show them in its signature as keyword-only."""
    *parameters, last = inspect.signature(constructor).parameters.values()
    options = get_args(get_type_hints(constructor, include_extras=True)[last.name])[0]
    types, texts = get_type_hints(options, include_extras=True), options.__annotations__
    marks = {name: mark for name, hint in types.items() for mark in hint.__metadata__ if isinstance(mark, Declared)}
    defaults, keyword = {name: mark.published for name, mark in marks.items()}, inspect.Parameter.KEYWORD_ONLY
    keys = [
        inspect.Parameter(name, keyword, default=value, annotation=texts[name].__forward_arg__)
        for name, value in defaults.items()
    ]

    @wraps(constructor)
    def construct(*args: Any, **kwargs: Any) -> None:
        constructor(*args, **(defaults | kwargs))

    vars(construct)["__signature__"] = inspect.Signature([*parameters, *keys])
    construct.__annotations__ = constructor.__annotations__ | types
    return cast(Constructor, construct)


class OnPolicyOptions(TypedDict, total=False):
    """Keyword arguments of PPO and of teams that learn by it; see `PPO`."""

    normalize_observations: Annotated[bool, hp(published=False)]
    lr_schedule: Annotated[Literal["constant", "linear", "adaptive"], hp(published="constant")]
    clip_schedule: Annotated[Schedule, hp(published="constant")]
    ent_schedule: Annotated[Schedule, hp(published="constant")]
    clip_value_loss: Annotated[bool, hp(published=True)]
    noise_persistence: Annotated[Fraction, hp(published=0.0)]
    action_std_min: Annotated[Fraction, hp(published=0.0)]
    action_ent_steps: Annotated[Count | None, hp(published=None)]
    action_scaling: Annotated[Literal["bounds", "none"], hp(published="bounds")]
    squash_output: Annotated[bool, hp(published=False)]


class TeamOptions(OnPolicyOptions, total=False):
    """Keyword arguments of `IPPO` and `MAPPO`."""

    recurrent: Annotated[bool, hp(published=False)]
    bptt_sequence_type: Annotated[
        Any, hp(values=Literal["chunked", "maximum", "fifty_percent_overlap"], published="chunked")
    ]
    max_seq_len: Annotated[Count | None, hp(published=None)]


class IndependentOptions(TeamOptions, total=False):
    """Keyword arguments of `IPPO`."""

    share_encoders: Annotated[bool, hp(published=False)]


class OnPolicyAlgorithm(EvolvableAlgorithm):
    """Hyperparameters, minibatch stream and initial hidden states of proximal policy optimisation.

    A subclass implements sampling (`sample`), hidden states (`hidden_state_architecture`) and the update.
    """

    network_kinds: ClassVar[tuple[str, str]] = ("actor", "critic")
    seed: int
    share_encoders: bool = False
    recurrent: bool
    max_seq_len: int | None
    bptt_sequence_type: str
    action_std_init: float
    clip_value_loss: bool
    batch_size: int
    lr: float
    lr_schedule: str
    clip_schedule: str
    ent_schedule: str
    noise_persistence: float
    action_std_min: float
    gamma: float
    gae_lambda: float
    clip_coef: float
    ent_coef: float
    vf_coef: float
    max_grad_norm: float | None
    target_kl: float | None
    update_epochs: int
    learn_step: int
    num_envs: int
    normalize_observations: bool
    observation_statistics: ObservationStatistics
    learned_steps: int
    progress: float
    policy_network: Callable[..., EvolvableNetwork]
    policy_output: Callable[..., Tensor]
    greedy: Callable[..., np.ndarray]
    sample: Callable[..., tuple[np.ndarray, np.ndarray]]
    draw_exploration: Callable[[np.random.Generator, tuple[int, ...]], Draws]
    environment_action: Callable[[np.ndarray], Any]
    _minibatches: np.random.Generator
    _exploration: np.random.Generator
    _hidden: HiddenStates | None  # of `collect_rollouts_recurrent`
    _playing: HiddenStates | None  # of evaluation

    action_scaling, squash_output = PolicyUnit("action_scaling", "none"), PolicyUnit("squash_output", False)

    def _take(self, options: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Set keyword arguments and `SHARED` arguments as attributes, and return options of new policies."""
        units = {name: options[name] for name in ("action_scaling", "squash_output")}
        for name, value in {**{name: arguments[name] for name in SHARED}, **options}.items():
            if name not in units:
                setattr(self, name, int(value) if name in COUNTS else value)
        return units

    def _begin(self) -> None:
        """Reset progress, hidden states, noise and adapted rate, and seed the agent's stream of minibatches."""
        self._playing = None
        self.observation_statistics = ObservationStatistics()
        self.progress, self.learned_steps = 0.0, 0
        self._noise: np.ndarray | None = None  # of the last call of `get_action`
        self._found_rate: float | None = None  # `AdaptiveRate.found`
        self._minibatches = np.random.default_rng(seeds(self.seed, Purpose.REPLAY, 1, member=self.index))

    @property
    def networks(self) -> tuple[str, ...]:
        """Names of the networks, of teams without group: the policy, and the critic unless they share an encoder."""
        return self.network_kinds[:1] if self.share_encoders else self.network_kinds

    def __getattr__(self, name: str) -> Any:
        policy = self.__dict__.get(name.replace("critic", "actor", 1)) if name.startswith("critic") else None
        if isinstance(policy, SharedActorCritic):
            return ValueView(policy)  # not a separate network: nothing to register, clone or save
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @classmethod
    def policy_from_spec(cls, spec: Mapping[str, Any], device: str | torch.device) -> EvolvableNetwork:
        """Build the policy network that a saved `spec` describes, with fresh weights."""
        kind = SharedActorCritic if spec.get("class") == "SharedActorCritic" else StochasticActor
        return kind.from_spec(spec, device=device)

    def _policies(self) -> Sequence[nn.Module]:
        """Return the policies."""
        raise NotImplementedError

    def _sampling_actors(self) -> list[StochasticActor]:
        """Return the policies whose distributions are sampled, without custom modules."""
        return [actor for actor in self._policies() if isinstance(actor, StochasticActor)]

    # --- hyperparameters ----------------------------------------------------------------------------------------------

    def update_options(self) -> tuple[Any, ...]:
        sequences = self.bptt_sequence_type, self.max_seq_len, self.normalize_observations
        return self.share_encoders, self.clip_value_loss, *sequences, *self._kinds

    def update_hyperparameters(self) -> dict[str, float]:
        return {
            "lr": scheduled(self.lr, self.lr_schedule, self.progress),
            "clip_coef": scheduled(self.clip_coef, self.clip_schedule, self.progress),
            "ent_coef": self.entropy_weight,
            "vf_coef": self.vf_coef,
            "max_grad_norm": math.inf if self.max_grad_norm is None else self.max_grad_norm,
        }

    @property
    def entropy_weight(self) -> float:
        """`ent_coef` after `ent_schedule`, times min(1, `action_ent_steps` / `learned_steps`) for Box actions.

        The entropy of a Gaussian has no upper bound, and its gradient with respect to each log standard deviation is 1:
        a constant weight widens the policy indefinitely. For a categorical policy the gradient vanishes as the
        probabilities become equal. The weight decays as 1/t, like step sizes of stochastic approximation (Robbins and
        Monro 1951, A stochastic approximation method), so exploration comes first. `action_std_min` is a lower bound of
        the standard deviation.
        """
        weight = scheduled(self.ent_coef, self.ent_schedule, self.progress)
        if self.action_ent_steps is None or not any(kind.has_normal for kind in self._kinds):
            return weight
        return weight * min(1.0, self.action_ent_steps / max(1, self.learned_steps))

    @property
    def adapts_rate(self) -> bool:  # type: ignore[override]
        """Whether the learning rate follows the divergence of rollouts."""
        return self.lr_schedule == "adaptive"

    @property
    def _rate(self) -> AdaptiveRate:
        return AdaptiveRate(DEFAULT_TARGET_KL if self.target_kl is None else self.target_kl, self._found_rate)

    @property
    def divergence_limit(self) -> float:
        """Divergence at which a rollout's epochs end, with an adaptive learning rate."""
        return self._rate.limit

    def adapt_rate(self, divergence: float) -> None:
        """Adapt `lr` after a rollout with this mean divergence; see `AdaptiveRate`."""
        rate = self._rate
        after = rate.step(self.lr, divergence)
        if after != self.lr:
            self.lr = after
        self._found_rate = rate.found

    def hyperparameters(self) -> dict[str, float]:
        """Return the live attributes for the records, before any schedule."""
        names = ("lr", "clip_coef", "ent_coef", "vf_coef", "batch_size", "learn_step", "update_epochs", "gamma")
        return self._numbers(*dict.fromkeys([*names, *self.hp_config.names()]))

    def update_interval(self) -> int:
        """Return the vector steps of a rollout."""
        return -(-int(self.learn_step) // int(self.num_envs))

    # --- acting -------------------------------------------------------------------------------------------------------

    def explore(self, outputs: Tensor, draws: Draws, epsilon: float = 0.0, mask: Mask = None) -> np.ndarray:
        """Sample the policy's actions to store; `epsilon` is ignored."""
        return self.sample(outputs, draws, mask)[0]

    @property
    def _kinds(self) -> tuple[ActionDistribution, ...]:
        """The distributions of the actions, in order."""
        raise NotImplementedError

    def _draws(self, shape: tuple[int, ...]) -> Draws:
        """Draw the random numbers of one call; persistent noise continues from the last call with as many lanes."""
        draws = self.draw_exploration(self._exploration, shape)
        if self.noise_persistence:
            if self._noise is not None and self._noise.shape == draws[0].shape:
                draws = (self._persistent(np.stack((self._noise, draws[0])))[1],)
            self._noise = draws[0]
        return draws

    def _persistent(self, drawn: np.ndarray) -> np.ndarray:
        """Return random numbers [T, ..., R], the noise of Box actions with correlation `noise_persistence` over T."""
        rho, continuous = self.noise_persistence, [kind.is_continuous for kind in self._kinds]
        if rho and any(continuous):
            columns = np.repeat(continuous, [int(np.prod(kind.numbers_shape)) for kind in self._kinds])
            for last, noise in pairwise(drawn):
                noise[..., columns] = rho * last[..., columns] + math.sqrt(1 - rho * rho) * noise[..., columns]
        return drawn

    @property
    def _modules_engine(self) -> UpdateEngine:
        """The engine of the agent's modules, for `recur` and values outside of a generation."""
        engine: UpdateEngine = learner_of(cast(Trainable, self), plain=True).groups[0].engine
        return engine

    def _run(self, obs: Any, hidden_state: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor, HiddenStates]:
        """Return policy outputs [E, out], values and next hidden states of the agent's modules, detached."""
        raise NotImplementedError

    def _play(self, obs: Tree) -> Tensor:
        """Return policy outputs [E, out]; the hidden states of evaluation advance."""
        if self.recurrent:
            outputs, _, self._playing = self._run(obs, self._playing)
            return outputs
        with torch.no_grad():  # values are not needed
            return self.policy_output(obs)

    def _greedy(self, obs: Tree, mask: Mask = None) -> Any:
        return self.environment_action(self.greedy(self._play(obs), mask))

    def _sampled(self, rng: np.random.Generator, obs: Tree, mask: Mask = None) -> Any:
        outputs = self._play(obs)
        draws = self.draw_exploration(rng, tuple(outputs.shape[:-1]))
        return self.environment_action(self.explore(outputs, draws, 0.0, mask))

    # --- memory -------------------------------------------------------------------------------------------------------

    @property
    def is_recurrent(self) -> bool:  # type: ignore[override]
        """Whether any network is recurrent."""
        return bool(self.recurrent)

    @property
    def hidden_state_architecture(self) -> dict[str, tuple[int, int]]:
        """Key of each part of the hidden state -> (layers, units); empty for feed-forward networks."""
        raise NotImplementedError

    def get_initial_hidden_state(self, num_envs: int = 1) -> HiddenStates:
        """Return zeros [layers, E, units] for every key of `hidden_state_architecture`: the start of an episode."""
        like = next(iter(self.policy_module().parameters())).detach()
        shapes = self.hidden_state_architecture.items()
        return {key: like.new_zeros(layers, num_envs, units) for key, (layers, units) in shapes}

    def sequence_limit(self, steps: int) -> int:
        """Return the maximum length of a training sequence in a rollout of `steps`."""
        encoders = [actor.encoder for actor in self._policies() if isinstance(actor, EvolvableNetwork)]
        limits = [one.max_seq_len for one in encoders if isinstance(one, EvolvableLSTM) and one.max_seq_len]
        limit = self.max_seq_len or min(limits, default=steps)
        return min(int(limit), steps) if self.bptt_sequence_type != "maximum" else steps

    def begin_episodes(self) -> None:
        """Reset the hidden states of evaluation: all its environments begin an episode."""
        self._playing = None

    def recur(self, engine: UpdateEngine, obs: Any, hidden: HiddenStates) -> tuple[Tensor, Tensor, HiddenStates]:
        """Run one step of all networks: (outputs [..., E, *], values [..., E] or [..., E, M], next hidden states)."""
        raise NotImplementedError

    # --- statistics of observations -----------------------------------------------------------------------------------

    def _readers(self) -> Readers:
        """Return the networks that normalise observations."""
        raise NotImplementedError

    def _begin_normalising(self) -> None:
        """Enable normalisation if `normalize_observations`, or if loaded policies normalise."""
        statistics = ObservationStatistics.begin(self._readers(), self.normalize_observations)
        self.normalize_observations = statistics is not None
        self.observation_statistics = statistics or ObservationStatistics()

    def encoder_inputs(self, obs: Tree) -> dict[str, np.ndarray]:
        """Return observations [..., ...] as rows [B, I] of encoder inputs by group, which the statistics describe."""
        return {ALONE: ObservationStatistics.rows(self.policy_network(), obs)}

    def take_statistics(self, statistics: RunningStatistics) -> None:
        """Normalise observations by `statistics` from now on, if `normalize_observations`."""
        if self.normalize_observations:
            self.observation_statistics = ObservationStatistics.of(statistics)
            self.observation_statistics.normalise(self._readers())

    def _normalise_by(self, buffer: RolloutStore) -> None:
        """Update the statistics with a rollout's observations, if `normalize_observations`."""
        if self.normalize_observations:
            statistics = self.observation_statistics.running()
            statistics.add([self.encoder_inputs(buffer.stored("obs"))])
            self.take_statistics(statistics)

    # --- learning -----------------------------------------------------------------------------------------------------

    def rollout(self, learner: Learner, group: int, members: Sequence[Self], buffer: RolloutStore) -> Rollout:
        """Convert a full buffer of `members` to a rollout."""
        return make_rollout(learner, group, members, buffer, next(iter(self.policy_module().parameters())))

    def learn_buffer(self, buffer: RolloutStore) -> float:
        """Learn as in `learn` from a rollout buffer with only this agent's lanes; the buffer is unchanged."""
        is_first = not self.observation_statistics.count
        if is_first:  # the first rollout provides the statistics for learning from it
            self._normalise_by(buffer)
        learner = learner_of(cast(Trainable, self))
        rollout = self.rollout(learner, 0, [self], buffer)
        (report,) = learn_rollout(learner, 0, [self], rollout, [self._minibatches])
        learner.settle()
        self.remember_rollout(buffer, slice(None))
        if not is_first:
            self._normalise_by(buffer)
        return report.mean_loss

    def remember_rollout(self, buffer: RolloutStore, lanes: slice, most: int = 256) -> None:
        """Remember up to `most` observations of the agent's lanes, spread over the rollout."""

        def chosen(x: np.ndarray) -> Tensor:
            rows = torch.from_numpy(x[:, lanes]).flatten(0, 1)
            return rows[:: max(1, len(rows) // most)][:most].clone()

        self.remember_observations(map_leaves(chosen, buffer.stored("obs")))

    def make_buffer(self, steps: int, lanes: int, num_legal: int = 0) -> RolloutStore:
        """Create an empty store for rollouts of this agent, or of several such agents in lockstep."""
        raise NotImplementedError

    def _descend(
        self, engine: UpdateEngine, optimizer: str, kind: ActionDistribution, outputs: list[Tensor], batch: RolloutBatch
    ) -> UpdateResult:
        """Perform one step on L = L_clip + c_v L_v − c_e H (arXiv:1707.06347, eq. 9, as a loss).

        Args:
            outputs: of the policy and of the value, or of one network with the value in the last column.
        """
        is_shared, raw, hp = len(outputs) == 1, outputs[0].detach(), engine.hp
        if not kind.has_normal and "choice_ent_coef" in hp:
            hp = {**hp, "ent_coef": hp["choice_ent_coef"]}
        with torch.no_grad():
            clip, value = hp["clip_coef"] if self.clip_value_loss else None, outputs[-1][..., -1]
            value_loss, of_value = clipped_value_loss(value, batch.value, batch.returns, clip, batch.weight)
            of_value = (hp["vf_coef"] * of_value).unsqueeze(-1)
        raw = raw[..., :-1] if is_shared else raw
        actor_loss, entropy, kl, of_raw = policy_gradient(kind, raw, batch.action, batch, hp)
        grads = [torch.cat((of_raw, of_value), -1)] if is_shared else [of_raw, of_value]
        engine.descend_all(optimizer, outputs, grads, hp["max_grad_norm"], batch.live)
        value_weight, weight = (x.squeeze(-1) if x.dim() else x for x in (hp["vf_coef"], hp["ent_coef"]))
        return UpdateResult(actor_loss + value_weight * value_loss - weight * entropy, actor_loss, kl=kl)

    def learn_batch(self, batch: Any, plain: bool = False) -> UpdateResult:
        """Learn one minibatch with plain torch modules; see `learn` for whole rollouts."""
        result = learner_of(cast(Trainable, self), plain=True).learn(0, batch.map(lambda x: x.unsqueeze(0)))
        return result.map(lambda x: x[0])

    # --- copies and files ---------------------------------------------------------------------------------------------

    def clone(self, index: int | None = None, wrap: bool = True) -> Self:
        """Clone as every agent; a copy with another index draws minibatches from a separate stream."""
        twin = super().clone(index, wrap)
        if index is not None and index != self.index:
            stream_seeds = seeds(self.seed, Purpose.REPLAY, 1, generation=len(self.fitness), member=index)
            twin._minibatches = np.random.default_rng(stream_seeds)
        return twin

    def state(self) -> dict[str, Any]:
        """Return the state of every agent, with the minibatch stream."""
        return {**super().state(), "minibatches": self._minibatches.bit_generator.state}

    def load_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        """Restore the agent from `state`."""
        super().load_state(state, source)
        self.observation_statistics = ObservationStatistics(self.observation_statistics)
        if "minibatches" in state:
            self._minibatches.bit_generator.state = state["minibatches"]
