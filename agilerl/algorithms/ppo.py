"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347), feed-forward and recurrent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Self

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, optim

from agilerl.algorithms.checks import check_count, check_discount, check_network, check_not_negative, check_positive
from agilerl.algorithms.core.optimizer_wrapper import OptimizerWrapper
from agilerl.algorithms.core.registry import HyperparameterConfig, NetworkGroup
from agilerl.algorithms.core.update import ModuleEngine, UpdateEngine, UpdateResult
from agilerl.algorithms.ppo_experiences import buffer_from_experiences, named_experiences
from agilerl.algorithms.ppo_learning import learn_rollout, make_rollout
from agilerl.algorithms.ppo_policy import HiddenStates, StochasticPolicyAgent, hidden_of
from agilerl.algorithms.ppo_solo import Recorder, SoloLearner
from agilerl.components.rollout_batch import RolloutBatch
from agilerl.components.rollout_buffer import RolloutBuffer
from agilerl.components.sequences import KINDS
from agilerl.errors import AlgorithmError, ConfigError, NotAvailableYetError, ShapeError, unknown_name
from agilerl.losses.policy import approximate_kl, categorical_gradient, clipped_surrogate, clipped_value_loss
from agilerl.modules.base import EvolvableModule
from agilerl.networks.actors import StochasticActor
from agilerl.networks.base import EvolvableNetwork, checked_arguments
from agilerl.networks.distributions import distribution_of, masked_logits
from agilerl.networks.shared import SharedActorCritic
from agilerl.networks.value_networks import ValueNetwork
from agilerl.rng import Purpose, seeds

POLICY_KEYS = ("squash_output", "log_std_init")  # of `net_config`, not for the critic
SCHEDULES = ("constant", "linear")
ADAM_EPS = 1e-5  # of the authors' released code (openai/baselines, ppo2/model.py)


class PPO(StochasticPolicyAgent):
    """Clipped policy gradient from rollouts, for Discrete, MultiDiscrete, MultiBinary and Box actions.

    Box actions are drawn from a normal distribution and clipped to the bounds for the environment alone; with
    `net_config={"squash_output": True}` they pass through tanh, and `actor.scale_action` maps them to the bounds.

    Args:
        observation_space, action_space: of one environment.
        index: unique id within the population.
        hp_config: mutable hyperparameters: any numeric argument below.
        net_config: `{"encoder_config": {..}, "head_config": {..}, "latent_dim": ..}` of policy and critic.
        batch_size: rows of one minibatch (sequences, if recurrent).
        lr: learning rate of Adam. learn_step: environment steps of a rollout, rounded up to whole vector steps.
        gamma: discount per step, in [0, 1]. gae_lambda: λ of the advantage estimate, in [0, 1].
        mut: label of the last mutation.
        action_std_init: standard deviation of Box actions that the untrained policy gives (not its logarithm).
        clip_coef: ε of the surrogate and of the value clip. ent_coef, vf_coef: weights of entropy and value loss.
        max_grad_norm: largest gradient norm, of policy and critic each; None does not clip.
        target_kl: stop the epochs of a rollout once the mean divergence exceeds it; None never does.
        normalize_images: divide images by 255.
        update_epochs: passes over a rollout.
        actor_network, critic_network: networks to use instead of building them.
        share_encoders: one encoder for policy and value.
        num_envs: lanes of the vector environment; training sets it to those of its environment.
        use_rollout_buffer: accepted for compatibility; `learn()` reads the buffer that `collect_rollouts` filled either
            way.
        rollout_buffer_config: not carried out yet.
        recurrent: recurrent encoders; see `max_seq_len`.
        device: where networks and batches live. accelerator: one process only. wrap: accepted, changes nothing.
        bptt_sequence_type: "chunked", "maximum" or "fifty_percent_overlap": how episodes are cut into sequences.
        max_seq_len: longest sequence that gradients flow through; None takes that of the encoder configuration.
        seed: of weights, exploration and evaluation; None follows `torch.initial_seed()`.
        lr_schedule, clip_schedule: "constant", or "linear" to 0 over the budget of a training function.
        clip_value_loss: False leaves the value loss unclipped.
        normalize_observations: shift and scale observations by their running mean and deviation, which move after each
            rollout and are saved with the networks.

    Attributes:
        progress: share of the budget that is used up, for the schedules; training functions set it.
        observation_statistics: mean, var and count of the observations learned from, with `normalize_observations`.
    """

    policy_class = StochasticActor
    is_on_policy = True

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: dict[str, Any] | None = None,
        batch_size: int = 64,
        lr: float = 1e-4,
        learn_step: int = 2048,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        mut: str | None = None,
        action_std_init: float = 0.6,
        clip_coef: float = 0.2,
        ent_coef: float = 0.01,
        vf_coef: float = 0.5,
        max_grad_norm: float | None = 0.5,
        target_kl: float | None = None,
        normalize_images: bool = True,
        update_epochs: int = 4,
        actor_network: EvolvableModule | None = None,
        critic_network: EvolvableModule | None = None,
        share_encoders: bool = False,
        num_envs: int = 1,
        use_rollout_buffer: bool = False,
        rollout_buffer_config: dict[str, Any] | None = None,
        recurrent: bool = False,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        wrap: bool = True,
        bptt_sequence_type: Any = "chunked",
        max_seq_len: int | None = None,
        *,
        seed: int | None = None,
        lr_schedule: str = "constant",
        clip_schedule: str = "constant",
        clip_value_loss: bool = True,
        normalize_observations: bool = False,
    ) -> None:
        super().__init__(observation_space, action_space, index, hp_config, device, accelerator, seed=seed)
        try:
            distribution_of(action_space)
        except ConfigError as error:
            raise AlgorithmError(f"PPO: {error} fix: wrap the environment's actions.") from None
        check_count("PPO", batch_size=batch_size, learn_step=learn_step, update_epochs=update_epochs, num_envs=num_envs)
        check_positive("PPO", lr=lr, clip_coef=clip_coef, action_std_init=action_std_init)
        check_not_negative("PPO", ent_coef=ent_coef, vf_coef=vf_coef)
        for name, limit in (("max_grad_norm", max_grad_norm), ("target_kl", target_kl)):
            if limit is not None:
                check_positive("PPO", **{name: limit})
        check_discount("PPO", gamma, 1.0)
        if not 0 <= gae_lambda <= 1:
            raise AlgorithmError(f"PPO: gae_lambda must be in [0, 1]; got {gae_lambda!r}. fix: 0.95.")
        for schedule in (lr_schedule, clip_schedule):
            if schedule not in SCHEDULES:
                raise ConfigError(unknown_name("schedule", str(schedule), SCHEDULES))
        self.batch_size, self.lr, self.learn_step = int(batch_size), lr, int(learn_step)
        self.gamma, self.gae_lambda, self.mut = gamma, gae_lambda, mut
        self.action_std_init, self.clip_coef, self.ent_coef, self.vf_coef = (
            action_std_init,
            clip_coef,
            ent_coef,
            vf_coef,
        )
        self.max_grad_norm, self.target_kl, self.update_epochs = max_grad_norm, target_kl, int(update_epochs)
        self.normalize_images, self.net_config, self.share_encoders = normalize_images, net_config, bool(share_encoders)
        self.num_envs, self.use_rollout_buffer = int(num_envs), bool(use_rollout_buffer)
        if rollout_buffer_config:
            raise NotAvailableYetError(
                "PPO(rollout_buffer_config=) is not carried out by this version: the buffer follows from the agent's "
                "own arguments. fix: leave it out."
            )
        self.rollout_buffer_config, self.recurrent = rollout_buffer_config, bool(recurrent)
        self.bptt_sequence_type, self.max_seq_len = _sequence_type(bptt_sequence_type), max_seq_len
        if max_seq_len is not None:
            check_count("PPO", max_seq_len=max_seq_len)
        self._hidden: HiddenStates | None = None  # of `collect_rollouts_recurrent`
        self._playing: HiddenStates | None = None  # of evaluation
        self.lr_schedule, self.clip_schedule, self.clip_value_loss = lr_schedule, clip_schedule, bool(clip_value_loss)
        self.progress = 0.0
        self._minibatches = np.random.default_rng(seeds(self.seed, Purpose.REPLAY, 1, member=index))
        self._rollout_buffer: RolloutBuffer | None = None
        self.actor = self._make_actor(actor_network)
        self.recurrent = bool(getattr(self.actor, "recurrent", self.recurrent))
        if isinstance(self.actor, SharedActorCritic):
            self.share_encoders = True
            if critic_network is not None:
                raise AlgorithmError(
                    "PPO: with shared encoders the actor_network holds the value. fix: no critic_network."
                )
        elif self.share_encoders:
            raise AlgorithmError(
                "PPO: share_encoders=True needs a SharedActorCritic as actor_network; or leave it out."
            )
        else:
            self.critic = self._make_critic(critic_network)
        self.normalize_observations = bool(normalize_observations)
        self.observation_statistics: dict[str, Any] = {}
        if self.normalize_observations:
            for network in self._reading():
                network.normalize_observations = True
        elif isinstance(self.actor, EvolvableNetwork) and self.actor.normalize_observations:  # a saved one: as it is
            for network in self._reading()[1:]:
                network.normalize_observations = True
                for name in ("obs_mean", "obs_scale"):
                    network.get_buffer(name).copy_(self.actor.get_buffer(name))
        self.optimizer = OptimizerWrapper(
            optim.Adam,
            [getattr(self, name) for name in self.networks],
            lr=self.lr,
            optimizer_kwargs={"eps": ADAM_EPS},
            lr_name="lr",
        )
        self.register_network_group(NetworkGroup(self.actor, policy=True))
        if not self.share_encoders:
            self.register_network_group(NetworkGroup(self.critic))
        self.register_mutation_hook("follow_mutation")

    # --- construction ----------------------------------------------------------------------------------------------

    def _make_actor(self, given: Any) -> EvolvableModule:
        if given is not None:
            return check_network("actor_network", given)
        arguments = checked_arguments(self.net_config, StochasticActor)
        if isinstance(self.action_space, gym.spaces.Box):
            arguments.setdefault("log_std_init", math.log(self.action_std_init))
        if self.recurrent:
            arguments["recurrent"] = True
        cls = SharedActorCritic if self.share_encoders else StochasticActor
        return cls(self.observation_space, self.action_space, device=self.device, random_seed=self.seed, **arguments)

    @classmethod
    def policy_from_spec(cls, spec: Mapping[str, Any], device: str | torch.device) -> EvolvableNetwork:
        kind = SharedActorCritic if spec.get("class") == "SharedActorCritic" else StochasticActor
        return kind.from_spec(spec, device=device)

    def _make_critic(self, given: Any) -> EvolvableModule:
        if given is not None:
            return check_network("critic_network", given)
        config = {k: v for k, v in dict(self.net_config or {}).items() if k not in POLICY_KEYS}
        arguments = checked_arguments(config, ValueNetwork)
        if isinstance(self.actor, EvolvableNetwork):
            arguments["scale_observations"] = self.actor.scale_observations
        if self.recurrent:
            arguments["recurrent"] = True
        own = int(seeds(self.seed, Purpose.INITIAL_WEIGHTS, 1, generation=2)[-1])
        return ValueNetwork(self.observation_space, device=self.device, random_seed=own, **arguments)

    # --- learning --------------------------------------------------------------------------------------------------

    def _scheduled(self, value: float, schedule: str) -> float:
        return value * max(0.0, 1 - self.progress) if schedule == "linear" else value

    def update_hyperparameters(self) -> dict[str, float]:
        return {
            "lr": self._scheduled(self.lr, self.lr_schedule),
            "clip_coef": self._scheduled(self.clip_coef, self.clip_schedule),
            "ent_coef": self.ent_coef,
            "vf_coef": self.vf_coef,
            "max_grad_norm": math.inf if self.max_grad_norm is None else self.max_grad_norm,
        }

    def hyperparameters(self) -> dict[str, float]:
        """What the records show: the live attributes, before any schedule."""
        names = ("lr", "clip_coef", "ent_coef", "vf_coef", "batch_size", "learn_step", "update_epochs", "gamma")
        return {name: getattr(self, name) for name in dict.fromkeys([*names, *self.hp_config.names()])}

    def update_options(self) -> tuple[Any, ...]:
        return (
            self.share_encoders,
            self.distribution.kind,
            self.clip_value_loss,
            self.bptt_sequence_type,
            self.max_seq_len,
        )

    def update_interval(self) -> int:
        """Vector steps of a rollout."""
        return -(-self.learn_step // self.num_envs)

    def state_values(self, engine: UpdateEngine, obs: Any) -> Tensor:
        """V(s) [..., B] of prepared observations, as constants."""
        with torch.no_grad():
            values: Tensor = engine.frozen(self.networks[-1])(obs)[..., -1]
        return values

    def update(self, engine: UpdateEngine, batch: RolloutBatch) -> UpdateResult:  # type: ignore[override]
        """One minibatch: L = L_clip + c_v L_v − c_e H (arXiv:1707.06347, eq. 9, as a loss)."""
        hp, weight = engine.hp, batch.weight
        outputs = [_output(engine.network(name)(batch.obs, *hidden_of(name, batch.hidden))) for name in self.networks]
        with torch.no_grad():
            clip = hp["clip_coef"] if self.clip_value_loss else None
            value = outputs[-1][..., -1]
            value_loss, of_value = clipped_value_loss(value, batch.value, batch.returns, clip, weight)
            of_value = (hp["vf_coef"] * of_value).unsqueeze(-1)
        actor_loss, entropy, kl, of_raw = self._policy_gradient(self._raw(outputs[0].detach()), batch, hp)
        grads = [torch.cat((of_raw, of_value), -1)] if self.share_encoders else [of_raw, of_value]
        engine.descend_all("optimizer", outputs, grads, hp["max_grad_norm"], batch.live)
        flat = {name: hp[name].squeeze(-1) if hp[name].dim() else hp[name] for name in ("vf_coef", "ent_coef")}
        loss = actor_loss + flat["vf_coef"] * value_loss - flat["ent_coef"] * entropy
        return UpdateResult(loss, actor_loss, kl=kl)

    def _policy_gradient(
        self, raw: Tensor, batch: RolloutBatch, hp: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(surrogate loss, mean entropy, divergence, each [...]; gradient of surrogate − c_e H at `raw`)."""
        kind, weight = self.distribution, batch.weight
        of_entropy = -hp["ent_coef"] * weight
        if kind.kind == "categorical":
            logits = masked_logits(raw, batch.legal)
            log_probabilities = logits.log_softmax(-1)
            log_prob = log_probabilities.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
            entropy = -(log_probabilities.exp() * log_probabilities).sum(-1)
            loss, slope = clipped_surrogate(log_prob, batch.log_prob, batch.advantage, hp["clip_coef"], weight)
            gradient = categorical_gradient(logits, batch.action, slope, of_entropy)
            if batch.legal is not None:
                gradient = gradient.masked_fill(~batch.legal, 0)
        else:
            leaf = raw.requires_grad_()
            with torch.enable_grad():
                log_prob = kind.log_prob(leaf, batch.action, batch.legal)
                # A squashed normal has no entropy in closed form: −log π of the stored actions estimates it.
                entropy = -log_prob if kind.kind == "squashed" else kind.entropy(leaf, batch.legal)
            with torch.no_grad():
                loss, slope = clipped_surrogate(log_prob, batch.log_prob, batch.advantage, hp["clip_coef"], weight)
            (gradient,) = torch.autograd.grad((log_prob, entropy), leaf, (slope, of_entropy))
            log_prob, entropy = log_prob.detach(), entropy.detach()
        divergence = approximate_kl(log_prob, batch.log_prob, weight)
        return loss, (weight * entropy).sum(-1), divergence, gradient

    def learn_batch(self, batch: Any, plain: bool = False) -> UpdateResult:
        """One minibatch with plain torch modules; see `learn` for whole rollouts."""
        self.learn_counter += 1
        return self.update(ModuleEngine(self), batch)

    def learn(self, experiences: Any = None, *args: Any, **kwargs: Any) -> float:
        """Learn from one rollout, in `update_epochs` passes of minibatches.

        Args:
            experiences: None reads the rollout buffer that `collect_rollouts` filled. Else the tuple (observations,
                actions, log_probs, rewards, dones, values, next_obs, next_done): six lists over time of [E, ...]
                arrays, then two arrays. `dones[t]` is the flag BEFORE step t, as `next_done` is that after the last.
                A flag counts as termination; see `ppo_experiences` for what tells truncation apart.

        Returns:
            Mean loss of the minibatches.

        Raises:
            ShapeError: an empty buffer, or lists that do not fit together.
        """
        if experiences is None:
            buffer = self._rollout_buffer
            if buffer is None or not buffer.position:
                raise ShapeError(
                    f"{self.algo}.learn() found an empty rollout buffer. "
                    "fix: collect_rollouts(agent, env) before it, or learn(experiences)."
                )
        else:
            buffer = buffer_from_experiences(self, experiences)
        loss = self.learn_buffer(buffer)
        if experiences is None:
            buffer.reset()
        return loss

    published_learn = learn

    def with_observations(self, experiences: Any, change: Callable[[Any], Any]) -> Any:
        """The published tuple, by name, with `change` applied to all observations."""
        fields = named_experiences(experiences)
        for name in ("observations", "final_observations"):
            if fields.get(name) is not None:
                fields[name] = [change(obs) for obs in fields[name]]
        return {**fields, "next_obs": change(fields["next_obs"])}

    def learn_buffer(self, buffer: RolloutBuffer) -> float:
        """As `learn`, from a rollout buffer with the lanes of this agent alone; it is left as it is."""
        like = next(iter(self.policy_module().parameters()))
        learner = SoloLearner(self)
        rollout = make_rollout(learner, 0, [self], buffer, like)
        (report,) = learn_rollout(learner, 0, [self], rollout, [self._minibatches])
        learner.finish(buffer)
        if self.normalize_observations:
            statistics = self.running_statistics()
            statistics.update(self.encoder_inputs(buffer.stored("obs")))
            self.take_statistics(statistics)
        return report.mean_loss

    @property
    def rollout_buffer(self) -> RolloutBuffer:
        """The agent's own buffer for `update_interval()` vector steps of `num_envs` lanes, made anew where these
        have changed since."""
        buffer, steps = self._rollout_buffer, self.update_interval()
        if buffer is None or (not buffer.position and (buffer.capacity, buffer.num_envs) != (steps, self.num_envs)):
            buffer = self._rollout_buffer = self.make_buffer(steps, self.num_envs)
        return buffer

    @rollout_buffer.setter
    def rollout_buffer(self, buffer: RolloutBuffer | None) -> None:
        self._rollout_buffer = buffer

    def make_buffer(self, steps: int, lanes: int, num_legal: int = 0) -> RolloutBuffer:
        """An empty buffer for rollouts of this policy."""
        shapes = self.hidden_state_architecture
        return RolloutBuffer(steps, lanes, self.observation_space, self.action_space, shapes, num_legal)

    def recorder(self, steps: int | None = None) -> Recorder:
        """What acts and fills this agent's rollout buffer, for one rollout of `steps` vector steps."""
        wanted = self.update_interval() if steps is None else int(steps)
        buffer = self.rollout_buffer
        if buffer.capacity != wanted or buffer.position:
            self._rollout_buffer = buffer = self.make_buffer(wanted, self.num_envs)
        return Recorder(self, buffer)

    def clone(self, index: int | None = None, wrap: bool = True) -> Self:
        kept, self._rollout_buffer = self._rollout_buffer, None  # what it holds is this agent's own experience
        try:
            twin = super().clone(index, wrap)
        finally:
            self._rollout_buffer = kept
        if index is not None and index != self.index:
            twin._minibatches = np.random.default_rng(
                seeds(self.seed, Purpose.REPLAY, 1, generation=len(self.fitness), member=index)
            )
        return twin

    # --- files -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {**super().state(), "minibatches": self._minibatches.bit_generator.state}

    def load_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        super().load_state(state, source)
        if "minibatches" in state:
            self._minibatches.bit_generator.state = state["minibatches"]


def _output(found: Any) -> Tensor:
    """The output of a network that may return its hidden state too."""
    output: Tensor = found[0] if isinstance(found, tuple) else found
    return output


def _sequence_type(given: Any) -> str:
    """The kind of sequence by name; an enum member counts by its value."""
    name = str(getattr(given, "value", given)).lower()
    if name not in KINDS:
        raise ConfigError(unknown_name("bptt_sequence_type", name, KINDS))
    return name
