"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347), feed-forward and recurrent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
import torch
from torch import optim

from agilerl.algorithms.checks import check_network
from agilerl.algorithms.core.optimizer_wrapper import OptimizerWrapper
from agilerl.algorithms.core.registry import HyperparameterConfig, NetworkGroup
from agilerl.algorithms.declared import ROLLOUTS, hp
from agilerl.algorithms.ppo_agent import PPOAgent
from agilerl.algorithms.ppo_policy import HiddenStates
from agilerl.components.rollout_buffer import RolloutBuffer
from agilerl.engine.sequences import KINDS
from agilerl.errors import AlgorithmError, ConfigError, NotAvailableYetError, unknown_name
from agilerl.modules.base import EvolvableModule
from agilerl.networks.actors import StochasticActor
from agilerl.networks.base import EvolvableNetwork, checked_arguments
from agilerl.networks.distributions import distribution_of
from agilerl.networks.shared import SharedActorCritic
from agilerl.networks.value_networks import ValueNetwork
from agilerl.ranges import Count, Fraction, NonNegative, Positive
from agilerl.rng import Purpose, seeds

POLICY_KEYS = ("squash_output", "log_std_init")  # of `net_config`, not for the critic
SCHEDULES = ("constant", "linear")
ADAM_EPS = 1e-5  # of the authors' released code (openai/baselines, ppo2/model.py)


class PPO(PPOAgent):
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
    experience = ROLLOUTS
    action_spaces = ("Box", "Discrete", "MultiBinary", "MultiDiscrete")

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: dict[str, Any] | None = None,
        batch_size: Annotated[Count, hp(128, "fewer steps of less noise from a rollout")] = 64,
        lr: Annotated[Positive, hp(1e-3, "for small networks and few steps")] = 1e-4,
        learn_step: Annotated[Count, hp(1024, "members of a population see less each")] = 2048,
        gamma: Annotated[Fraction, hp()] = 0.99,
        gae_lambda: Annotated[Fraction, hp()] = 0.95,
        mut: str | None = None,
        action_std_init: Annotated[Positive, hp()] = 0.6,
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
        lr_schedule: Annotated[str, hp(values=Literal["constant", "linear"])] = "constant",
        clip_schedule: Annotated[str, hp(values=Literal["constant", "linear"])] = "constant",
        clip_value_loss: Annotated[bool, hp()] = True,
        normalize_observations: Annotated[bool, hp()] = False,
    ) -> None:
        super().__init__(observation_space, action_space, index, hp_config, device, accelerator, seed=seed)
        try:
            distribution_of(action_space)
        except ConfigError as error:
            raise AlgorithmError(f"PPO: {error} fix: wrap the environment's actions.") from None
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


def _sequence_type(given: Any) -> str:
    """The kind of sequence by name; an enum member counts by its value."""
    name = str(getattr(given, "value", given)).lower()
    if name not in KINDS:
        raise ConfigError(unknown_name("bptt_sequence_type", name, KINDS))
    return name
