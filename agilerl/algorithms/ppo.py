"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347), feed-forward and recurrent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self, Unpack

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn, optim

from agilerl.algorithms.base import policy_value, rollouts
from agilerl.algorithms.base.actions import legal_actions, seen_with_mask
from agilerl.algorithms.base.declared import OF_WEIGHTS, ROLLOUTS, hp
from agilerl.algorithms.base.observation_statistics import ALONE, Readers
from agilerl.algorithms.base.on_policy import HiddenStates, OnPolicyAlgorithm, OnPolicyOptions, unpacked
from agilerl.algorithms.base.optimizer import OptimizerWrapper
from agilerl.algorithms.base.policy_actions import (
    as_drawn,
    in_environment,
    legal_tensor,
    log_prob_and_entropy,
    random_stored,
    stored,
    stored_shape,
)
from agilerl.algorithms.base.registry import HyperparameterConfig, NetworkGroup
from agilerl.algorithms.base.rollouts import hidden_of, output_of
from agilerl.algorithms.base.single_agent import RLAlgorithm
from agilerl.components.rollout_buffer import RolloutBuffer
from agilerl.components.rollout_store import RolloutStore
from agilerl.core.ranges import Count, Fraction, NonNegative, Positive
from agilerl.core.transfer import to_device
from agilerl.core.tree import Tree
from agilerl.engine.modules import raw_output
from agilerl.engine.protocol import Draws, Mask, RolloutBatch, UpdateEngine, UpdateResult
from agilerl.engine.recipes import PolicyGradientRecipe
from agilerl.engine.rollouts import sequence_kind
from agilerl.errors import ConfigError, NotAvailableYetError, ShapeError
from agilerl.modules.base import EvolvableModule
from agilerl.modules.paths import resolve
from agilerl.networks.actors import SharedActorCritic, StochasticActor
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.distributions import LOG_STD_MIN, ActionDistribution, Least, distribution_of, with_least


def _shapes(hidden: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    return {key: (part.shape[0], part.shape[2]) for key, part in hidden.items()}


class PPO(OnPolicyAlgorithm, RLAlgorithm):
    """Clipped policy gradient from rollouts.

    For Discrete, MultiDiscrete, MultiBinary and Box actions, and Dict and Tuple actions of these, with one distribution
    per part. Box actions are sampled from a normal distribution in units of half of their range (`action_scaling`).
    `environment_action` clips them to the bounds, and rounds integer actions. With `squash_output=True` they pass
    through tanh and are mapped to the bounds instead.

    Args:
        hp_config: mutable hyperparameters: any numeric argument but `action_std_init`.
        net_config: `{"encoder_config": {..}, "head_config": {..}, "latent_dim": ..}` of policy and critic.
        batch_size: rows per minibatch (sequences, if recurrent).
        learn_step: environment steps per rollout, rounded up to whole vector steps.
        gae_lambda: λ of the advantage estimate, in [0, 1].
        action_std_init: initial standard deviation of Box actions (not its logarithm), in units of `action_scaling`.
            0.0, the published default, is a logarithm and maps to 1.0.
        clip_coef: ε of the surrogate and of the value clip. ent_coef, vf_coef: weights of entropy and value loss.
        max_grad_norm: gradient-norm clip, for policy and critic each; None disables it.
        target_kl: stop the epochs of a rollout once the mean divergence exceeds it; None disables early stopping.
        update_epochs: passes over a rollout.
        actor_network, critic_network: networks to use instead of building them.
        share_encoders: use one encoder for policy and value.
        num_envs: lanes of the vector environment; set by training functions.
        use_rollout_buffer: accepted for compatibility; ignored: `learn()` always reads the buffer that
            `collect_rollouts` filled.
        rollout_buffer_config: not available yet.
        recurrent: recurrent encoders; see `max_seq_len`.
        bptt_sequence_type: how episodes are cut into sequences: "chunked", "maximum" or "fifty_percent_overlap".
        max_seq_len: maximum sequence length for backpropagation; None: that of the encoder configuration.
        lr_schedule, clip_schedule, ent_schedule: "constant", or "linear" to 0 over the budget of a training function.
            `lr_schedule` also accepts "adaptive" (`adapt_rate`): it aims at a divergence of `target_kl` (0.01 if
            None), and epochs end above twice that.
        clip_value_loss: clip the value loss.
        normalize_observations: normalise observations by their running mean and standard deviation, which are updated
            after each rollout (the first time before learning from it) and saved with the networks.
        action_std_min: minimum standard deviation of Box actions in training, as a fraction of half of their range (at
            most 7.4, the maximum of any policy); 0 disables it. It is independent of `action_std_init`.
        action_ent_steps: for Box actions: number of the agent's environment steps after which the entropy weight decays
            inversely with them (`entropy_weight`); None keeps it constant. It is constant for other actions.
        action_scaling: units of the policy's Box actions. "bounds": [-1, 1] is mapped to a component's range, low +
            (a + 1) / 2 · (high - low), so that an untrained policy acts around the middle; integer actions are rounded
            to the nearest. "none": units of the environment, around 0, as in agents saved by earlier versions; integer
            actions are truncated. Components without two finite bounds always use the latter. An actor_network has its
            own setting.
        squash_output: pass Box actions through tanh and map them to the bounds instead of clipping them; also a key of
            `net_config`.
        noise_persistence: ρ in [0, 1]: correlation of the noise of Box actions between consecutive steps of a lane
            (`draw_exploration`). 0: independent noise.

    See `DQN` for the other arguments.

    Attributes:
        progress: used fraction of the budget, for the schedules; set by training functions.
        learned_steps: environment steps of the rollouts learned from.
        observation_statistics: mean, var and count of the observations learned from, with `normalize_observations`.
    """

    policy_class: type[EvolvableNetwork] = StochasticActor
    later_hyperparameters = frozenset({"ent_schedule"})
    experience = ROLLOUTS
    action_spaces: tuple[str, ...] = ("Box", "Dict", "Discrete", "MultiBinary", "MultiDiscrete", "Tuple")

    @unpacked
    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: dict[str, Any] | None = None,
        batch_size: Annotated[Count, hp(128, "fewer steps of less noise from a rollout")] = 64,
        lr: Annotated[Positive, hp(1e-3, "for small networks and few steps")] = 1e-4,
        learn_step: Annotated[Count, hp(1024, "each member of a population has fewer steps")] = 2048,
        gamma: Annotated[Fraction, hp()] = 0.99,
        gae_lambda: Annotated[Fraction, hp()] = 0.95,
        mut: str | None = None,
        action_std_init: Annotated[NonNegative, hp(fixed=OF_WEIGHTS)] = 0.6,
        clip_coef: Annotated[Positive, hp()] = 0.2,
        ent_coef: Annotated[NonNegative, hp()] = 0.01,
        vf_coef: Annotated[NonNegative, hp()] = 0.5,
        max_grad_norm: Annotated[Positive | None, hp()] = 0.5,
        target_kl: Annotated[Positive | None, hp()] = None,
        normalize_images: bool = True,
        update_epochs: Annotated[Count, hp(10, "the paper's, for control")] = 4,
        actor_network: EvolvableModule | None = None,
        critic_network: EvolvableModule | None = None,
        share_encoders: Annotated[bool, hp()] = False,
        num_envs: Count = 1,
        use_rollout_buffer: bool = False,
        rollout_buffer_config: dict[str, Any] | None = None,
        recurrent: Annotated[bool, hp()] = False,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        wrap: bool = True,
        bptt_sequence_type: Annotated[
            Any, hp(values=Literal["chunked", "maximum", "fifty_percent_overlap"])
        ] = "chunked",
        max_seq_len: Annotated[Count | None, hp()] = None,
        *,
        seed: int | None = None,
        **options: Unpack[OnPolicyOptions],
    ) -> None:
        super().__init__(observation_space, action_space, index, hp_config, device, accelerator, seed=seed)
        if self.always_recurrent and not recurrent:
            raise ConfigError(f"{type(self).__name__} is recurrent PPO; got recurrent={recurrent}. fix: PPO.")
        units = self._take(options, locals())
        policy_value.check_policy(self, self.noise_persistence)
        self.bptt_sequence_type, self.max_seq_len = sequence_kind(bptt_sequence_type), max_seq_len
        self.action_std_init = policy_value.initial_std(action_std_init, type(self).__name__)
        self.share_encoders, self.use_rollout_buffer = bool(share_encoders), bool(use_rollout_buffer)
        if rollout_buffer_config:
            raise NotAvailableYetError(
                "PPO(rollout_buffer_config=) is not available in this version: the buffer follows from the agent's "
                "own arguments. fix: leave it out."
            )
        self.rollout_buffer_config, self.recurrent = rollout_buffer_config, bool(recurrent)
        self._begin()
        self._build(actor_network, critic_network, units)
        self._begin_normalising()
        self._register()

    # --- construction ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Reset what a run changes, the rollout buffer and hidden states too."""
        super()._begin()
        self._hidden = None
        self._least: tuple[float, Least] = 0.0, LOG_STD_MIN  # cache: (`action_std_min`, bound of log std)
        self._rollout_buffer: RolloutBuffer | None = None

    def _build(self, actor_network: Any, critic_network: Any, units: Mapping[str, Any]) -> None:
        """Build policy and value, or use the given ones; a given policy determines `recurrent` and `share_encoders`."""
        self.actor = policy_value.make_policy(self, actor_network, units, self.action_std_init)
        if not isinstance(self.actor, StochasticActor):
            self.__dict__["action_scaling"] = units["action_scaling"]
        if isinstance(self.actor, EvolvableNetwork):
            self.recurrent = bool(self.actor.recurrent)
        policy_value.check_sharing(self, self.actor, critic_network)
        self.share_encoders = isinstance(self.actor, SharedActorCritic)
        if not self.share_encoders:
            self.critic = policy_value.make_value(self, critic_network)

    def _register(self) -> None:
        """Create one optimiser for all networks, and register the networks for mutation."""
        networks = [resolve(self, name) for name in self.networks]
        self.optimizer = OptimizerWrapper(optim.Adam, networks, self.lr, {"eps": policy_value.ADAM_EPS}, lr_name="lr")
        self.register_network_group(NetworkGroup(self.actor, policy=True))
        if not self.share_encoders:
            self.register_network_group(NetworkGroup(self.critic))
        self.register_mutation_hook("_follow_mutation")

    def _readers(self) -> Readers:
        networks = map(self.__dict__.get, self.networks)
        return [(network, (ALONE,)) for network in networks if isinstance(network, EvolvableNetwork)]

    def _policies(self) -> Sequence[nn.Module]:
        return (self.__dict__["actor"],)

    @property
    def _kinds(self) -> tuple[ActionDistribution, ...]:
        return (self.distribution,)

    @property
    def distribution(self) -> ActionDistribution:
        """Action distribution that the policy's raw output parametrises."""
        actor = self.policy_module()
        if isinstance(actor, StochasticActor):
            kind = actor.distribution
        else:
            kind = distribution_of(self.action_space, scaled=self.action_scaling == "bounds")
        if not self.action_std_min or not kind.has_normal:
            return kind
        if not kind.is_continuous:
            return with_least(kind, self.action_space, self.action_std_min)
        if self._least[0] != self.action_std_min:
            self._least = self.action_std_min, with_least(kind, self.action_space, self.action_std_min).least
        return replace(kind, least=self._least[1])

    def _raw(self, outputs: Tensor) -> Tensor:
        """Return the policy's part of the first network's output [..., out]."""
        return outputs[..., :-1] if self.share_encoders else outputs

    # --- the update ---------------------------------------------------------------------------------------------------

    def recipe(self) -> PolicyGradientRecipe | None:
        kind = self.distribution
        is_known = type(kind) is ActionDistribution and kind.kind in PolicyGradientRecipe.KINDS
        if self.share_encoders or self.recurrent or not is_known:
            return None
        return PolicyGradientRecipe("actor", "critic", "optimizer", kind, self.clip_value_loss)

    def draw_entropy_noise(self, rng: np.random.Generator, rows: int) -> np.ndarray | None:
        """Draw standard normal numbers [rows, A] that estimate a squashed policy's entropy; None for others."""
        kind = self.distribution
        return rng.standard_normal((rows, *kind.numbers_shape)) if kind.kind == "squashed" else None

    def state_values(self, engine: UpdateEngine, obs: Any) -> Tensor:
        """Return V(s) [..., B] of prepared observations, detached."""
        with torch.no_grad():
            values: Tensor = engine.frozen(self.networks[-1])(obs)[..., -1]
        return values

    def update(self, engine: UpdateEngine, batch: RolloutBatch) -> UpdateResult:
        """Perform one step on a minibatch."""
        outputs = [output_of(engine.network(name)(batch.obs, *hidden_of(name, batch.hidden))) for name in self.networks]
        batch = replace(batch, action=as_drawn(self.action_space, batch.action))
        return self._descend(engine, "optimizer", self.distribution, outputs, batch)

    # --- learning from a rollout --------------------------------------------------------------------------------------

    def learn(self, experiences: Any = None, *args: Any, **kwargs: Any) -> float:
        """Learn from one rollout, in `update_epochs` passes of minibatches.

        Args:
            experiences: None reads the rollout buffer that `collect_rollouts` filled. Otherwise the tuple
                (observations, actions, log_probs, rewards, dones, values, next_obs, next_done): six lists over time of
                [E, ...] arrays, then two arrays. `dones[t]` is the flag BEFORE step t, `next_done` the one after the
                last. A flag counts as termination; see `rollouts.buffer_from_experiences` for truncation, action masks
                and hidden states.

        Returns:
            Mean loss of the minibatches.

        Raises:
            ShapeError: an empty buffer, or lists of different lengths.
        """
        if experiences is not None:
            return self.learn_buffer(rollouts.buffer_from_experiences(self, experiences))
        buffer = rollouts.checked_buffer(self._rollout_buffer, self.algo)
        gae_lambda = self.gae_lambda
        try:
            self.gae_lambda = gae_lambda if buffer.use_gae else 1.0
            loss = self.learn_buffer(buffer)
        finally:
            self.gae_lambda = gae_lambda
        buffer.reset()
        return loss

    published_learn = learn

    def with_observations(self, experiences: Any, change: Callable[[Any], Any]) -> Any:
        """Return the published tuple by name, with `change` applied to all observations."""
        return rollouts.with_observations(experiences, change)

    @property
    def rollout_buffer(self) -> RolloutBuffer:
        """The agent's buffer for `update_interval()` vector steps of `num_envs` lanes, with the agent's γ and λ.

        An empty buffer is recreated if these numbers have changed.
        """
        buffer, steps = self._rollout_buffer, self.update_interval()
        if buffer is None or (not buffer.position and (buffer.capacity, buffer.num_envs) != (steps, self.num_envs)):
            buffer = self._rollout_buffer = rollouts.empty_buffer(self, steps)
        buffer.gamma, buffer.gae_lambda = self.gamma, self.gae_lambda
        return buffer

    @rollout_buffer.setter
    def rollout_buffer(self, buffer: RolloutBuffer | None) -> None:
        self._rollout_buffer = buffer

    def make_buffer(self, steps: int, lanes: int, num_legal: int = 0) -> RolloutStore:
        shapes = self.hidden_state_architecture
        return RolloutStore(steps, lanes, self.observation_space, self.action_space, shapes, num_legal)

    def recorder(self, steps: int | None = None) -> rollouts.Recorder:
        """Return a recorder that acts and fills this agent's rollout buffer with `steps` vector steps."""
        wanted = self.update_interval() if steps is None else int(steps)
        buffer = self.rollout_buffer
        if buffer.capacity != wanted or buffer.position:
            self._rollout_buffer = buffer = rollouts.empty_buffer(self, wanted)
        return rollouts.Recorder(self, buffer)

    def clone(self, index: int | None = None, wrap: bool = True) -> Self:
        buffer, self._rollout_buffer = self._rollout_buffer, None  # its contents are not copied
        try:
            return super().clone(index, wrap)
        finally:
            self._rollout_buffer = buffer

    # --- hidden states ---------------------------------------------------------------------------------------------

    @property
    def hidden_state_architecture(self) -> dict[str, tuple[int, int]]:
        """Key of each part of the hidden state -> (layers, units); empty for a feed-forward policy.

        Keys are `<network>_<part>`, such as `actor_encoder_h`, or `shared_<part>` for one network with policy and
        value. A part is [..., layers, E, units], with a leading member axis over rows.
        """
        if not self.recurrent:
            return {}
        sizes = [(name, resolve(self, name).hidden_state_architecture) for name in self.networks]
        return {self._hidden_key(name, part): shape for name, shapes in sizes for part, shape in shapes.items()}

    def _hidden_key(self, network: str, part: str) -> str:
        return f"{'shared' if self.share_encoders else network}_{part}"

    def _follow_mutation(self) -> None:
        """Mutation hook: convert hidden states of running episodes to the networks' new architectures."""
        if self._hidden is not None:
            self._hidden = self._carried(self._hidden)

    def _carried(self, hidden: HiddenStates) -> HiddenStates:
        """Convert hidden states of running episodes to the networks' current architectures."""
        if _shapes(hidden) == self.hidden_state_architecture:
            return hidden
        converted: HiddenStates = {}
        for name in self.networks:
            network, (old,) = resolve(self, name), hidden_of(name, hidden)
            state = old if _shapes(old) == network.hidden_state_architecture else network.carry_hidden_state(old)
            converted |= {self._hidden_key(name, part): value for part, value in state.items()}
        return converted

    def recur(self, engine: UpdateEngine, obs: Any, hidden: HiddenStates) -> tuple[Tensor, Tensor, HiddenStates]:
        states: HiddenStates = {}
        outputs = []
        with torch.no_grad():
            for name in self.networks:
                frozen: Any = engine.frozen(name)
                output, state = frozen(obs, *hidden_of(name, hidden))
                outputs.append(output)
                states |= {self._hidden_key(name, part): value for part, value in state.items()}
        return outputs[0], outputs[-1][..., -1], states

    # --- acting ----------------------------------------------------------------------------------------------------

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of a stored action; see `stored_shape`."""
        return stored_shape(self.action_space)

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """Return the most probable actions [..., *action_shape]; for Box the mean (its tanh if squashed)."""
        chosen = self.distribution.mode(self._raw(outputs), legal_tensor(mask, outputs))
        return stored(self.action_space, chosen)

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Draw standard normal numbers for Box, uniform ones for discrete spaces, [*shape, ...].

        With `noise_persistence` ρ the noise of Box actions is ε_t = ρ ε_{t-1} + sqrt(1 - ρ²) ξ_t over vector steps,
        with independent ξ. Each ε_t is standard normal, and neighbours have correlation ρ, so a lane keeps its
        direction for 1 / (1 - ρ) steps. The update is unchanged: it uses the probability of each action separately
        (Hollenstein et al. 2024, "Colored Noise in PPO", arXiv:2312.11091, whose noise is defined by a power spectrum).
        """
        kind = self.distribution
        parts = kind.draw(rng.standard_normal, rng.random, tuple(shape))
        drawn: np.ndarray = parts[0] if len(parts) == 1 else np.concatenate(parts, -1)
        return (self._persistent(drawn) if len(shape) > 1 else drawn,)

    def sample(self, outputs: Tensor, draws: Draws, mask: Mask = None) -> tuple[np.ndarray, np.ndarray]:
        """Sample (actions [..., *action_shape] to store, their log probabilities [...])."""
        kind, legal, outputs = self.distribution, legal_tensor(mask, outputs), self._raw(outputs)
        numbers = torch.from_numpy(draws[0])
        numbers = to_device(numbers, outputs.device, outputs.dtype) if outputs.is_cuda else numbers.to(outputs)
        action = kind.sample(outputs, numbers, legal)
        log_prob: np.ndarray = kind.log_prob(outputs, action, legal).cpu().numpy()
        return stored(self.action_space, action), log_prob

    def random_action(self, rng: np.random.Generator, shape: tuple[int, ...], mask: Mask = None) -> np.ndarray:
        """Sample uniform legal actions to store, [*shape, *action_shape]."""
        if isinstance(self.action_space, gym.spaces.Discrete):
            return super().random_action(rng, shape, mask)
        action = random_stored(self.action_space, self.distribution, rng, shape, mask)
        return action.reshape(*shape, *self.action_shape)

    def environment_action(self, action: np.ndarray) -> Any:
        """Convert stored actions [..., *action_shape] to the environment's format.

        Box actions are clipped to the bounds, after rounding integer ones (`action_scaling`); squashed ones are scaled
        to the bounds. Discrete choices are offset by the lowest value of the space. Dict and Tuple actions are nested
        like the space, with leading axes in every part. Store actions unconverted, for `learn` and `evaluate_actions`.
        """
        space = self.action_space
        if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):  # does not need the distribution
            return action + space.start
        return in_environment(space, self.distribution, action)

    def get_action(
        self, obs: Any, action_mask: Any = None, hidden_state: Any = None, *, training: bool | None = None
    ) -> tuple[Any, ...]:
        """Return (action, log probability, entropy, value) for observations; sampled if `training`, else greedy.

        A recurrent agent also returns the next hidden state.

        Args:
            obs: one observation or a batch [E, ...], numpy or torch.
            action_mask: [E, W] or [W], 1 = legal, in any form of `envs.masks`: one entry per choice of Discrete and
                MultiDiscrete actions; for MultiBinary W is the number of bits (1 = the bit may be 1) or twice that
                (whether 0 is legal, whether 1 is); none for Box; concatenated parts for Dict and Tuple. A mask in the
                observations is applied as well.
            hidden_state: for a recurrent agent, key -> [layers, E, units]; None starts an episode.
            training: whether to sample; None: according to the agent's mode.

        Returns:
            numpy arrays [E, *action_shape], [E], [E], [E]. In training, Box actions are unclipped and in units of the
            space (in [-1, 1] if squashed), and Dict and Tuple actions are rows of numbers [E, K]. A custom loop stores
            them as returned and passes `environment_action(action)` to `env.step`. Otherwise actions are in the
            environment's format; their log probability is that of the action before conversion.
        """
        obs, action_mask = seen_with_mask(self, obs, action_mask)
        outputs, value, state = self._run(obs, hidden_state)
        mask = legal_actions(self, action_mask, len(outputs))
        kind, legal = self.distribution, legal_tensor(mask, outputs)
        explores = self.training if training is None else training
        if explores:
            action, log_prob = self.sample(outputs, self._draws(tuple(outputs.shape[:-1])), mask)
        else:
            chosen = kind.mode(self._raw(outputs), legal)
            action = stored(self.action_space, chosen)
            log_prob = kind.log_prob(self._raw(outputs), chosen, legal).cpu().numpy()
        entropy = -log_prob if kind.kind == "squashed" else kind.entropy(self._raw(outputs), legal).cpu().numpy()
        if not explores:
            action = self.environment_action(action)
        result = (action, log_prob, entropy, value.cpu().numpy())
        return (*result, state) if self.recurrent else result

    def evaluate_actions(
        self, obs: Any, actions: Any, hidden_state: Mapping[str, Tensor] | None = None, action_mask: Any = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (log probability [B], entropy [B], value [B]) of stored actions, differentiable in the networks.

        The entropy of squashed actions is estimated by their −log π.

        Args:
            obs: [B, ...] or one observation, numpy or torch.
            actions: [B, *action_shape] as returned by `get_action` in training.
            hidden_state: for a recurrent agent, key -> [layers, S, units] before S sequences of B / S steps each,
                concatenated in `obs`; None starts an episode in every row.
            action_mask: [B, W] or [W], see `get_action`.

        Raises:
            ShapeError: not one action per observation.
        """
        obs, action_mask = seen_with_mask(self, obs, action_mask, warns=False)
        if self.recurrent:
            rows = self.policy_network().preprocess(obs).shape[0]
            hidden = self.get_initial_hidden_state(rows) if hidden_state is None else hidden_state
            outputs = [resolve(self, n).output(obs, *hidden_of(n, hidden))[0] for n in self.networks]
        else:
            modules = [resolve(self, name) for name in self.networks]
            outputs = [raw_output(module)(self.network_inputs(module, obs)) for module in modules]
        raw, value = self._raw(outputs[0]), outputs[-1][..., -1]
        tensor = torch.as_tensor(actions, device=raw.device)
        if tensor.numel() != len(raw) * math.prod(self.action_shape):
            raise ShapeError(
                f"{self.algo}.evaluate_actions got actions of shape {tuple(tensor.shape)} for {len(raw)} observations; "
                f"expected {(len(raw), *self.action_shape)}. fix: what get_action returned for them."
            )
        kind = self.distribution
        action = as_drawn(self.action_space, tensor.reshape(len(raw), *self.action_shape))
        action = action.to(raw.dtype) if kind.is_continuous else action
        mask = None if action_mask is None else legal_tensor(legal_actions(self, action_mask, len(raw)), raw)
        return *log_prob_and_entropy(kind, raw, action, mask), value

    def _run(self, obs: Tree, hidden_state: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor, HiddenStates]:
        if not self.recurrent:
            with torch.no_grad():
                outputs = self.policy_output(obs)
                if self.share_encoders:
                    return outputs, outputs[..., -1], {}
                inputs = self.network_inputs(self.critic, obs)
                return outputs, raw_output(self.critic)(inputs)[..., -1], {}
        lanes = self.policy_network().preprocess(obs).shape[0]
        hidden = self.get_initial_hidden_state(lanes) if hidden_state is None else dict(hidden_state)
        return self.recur(self._modules_engine, obs, hidden)

    # --- files -----------------------------------------------------------------------------------------------------

    def load_run_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        super().load_run_state(state, source)
        if self._hidden is not None and self.share_encoders:  # keys of an earlier version
            entries = self._hidden.items()
            self._hidden = {key.replace("actor_", "shared_", 1): part for key, part in entries}

    def load_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        super().load_state(state, source)
        self._least = 0.0, LOG_STD_MIN
        if "action_scaling" not in state["attributes"]:  # saved before there was such an attribute
            self.__dict__.pop("action_scaling", None)
