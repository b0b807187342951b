"""Independent proximal policy optimisation (de Witt et al. 2020, arXiv:2011.09533)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch

from agilerl.algorithms.base.building import initial_std
from agilerl.algorithms.base.declared import TEAM_ROLLOUTS, hp
from agilerl.algorithms.base.policy_gradient import PolicyUnit
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.algorithms.base.rollouts import HiddenStates
from agilerl.algorithms.base.schedules import Schedule, check_schedules
from agilerl.algorithms.teams import acting as team_acting
from agilerl.algorithms.teams import actor_critics as team_actor_critics
from agilerl.algorithms.teams import evaluation as team_playing
from agilerl.algorithms.teams import on_policy as team_rollouts
from agilerl.algorithms.teams import recurrent as team_memory
from agilerl.algorithms.teams.base import MultiAgentRLAlgorithm, Spaces
from agilerl.algorithms.teams.networks import by_group
from agilerl.networks.base import EvolvableNetwork
from agilerl.ranges import Count, Fraction, NonNegative, Positive


class IPPO(MultiAgentRLAlgorithm):
    """PPO of every agent by itself: its policy and its value read what it sees, and nothing else.

    Agents of one group share both networks, and learn from the rows of all of them. Rows in which an agent was not
    there, or did not decide, count for nothing; see `losses.returns.gae_of_agents` for what its advantages are then.
    Box actions are in units of half of their range (`action_scaling`) and clipped to the bounds for the environment
    alone; with `net_config={"squash_output": True}` they pass through tanh. Dict and Tuple actions have one
    distribution per part.

    Args:
        hp_config: mutable hyperparameters: any numeric argument.
        net_config: `{"encoder_config": {..}, "head_config": {..}, "latent_dim": ..}` of all networks, or by group.
        batch_size: rows of one minibatch; a row is a step of one lane, with all agents (a window of it, if recurrent).
        lr: learning rate of Adam, of policy and value of each group.
        learn_step: environment steps of a rollout, rounded up to whole vector steps.
        gamma, gae_lambda, action_std_init, clip_coef, ent_coef, vf_coef, max_grad_norm, target_kl, update_epochs,
            clip_value_loss: as of `PPO`; `target_kl` is of the group that moved most.
        actor_networks, critic_networks: networks by group to use instead of building them.
        action_batch_size: most lanes that one pass of `get_action` takes; None takes all.
        num_envs: lanes of the vector environment; training sets it to those of its environment.
        recurrent: recurrent encoders (LSTM) of policies and values; each agent remembers its own episode, see
            `team_memory`.
        bptt_sequence_type, max_seq_len: as of `PPO`, of windows of one lane's time; `batch_size` then counts windows.
        action_scaling, squash_output: as of `PPO`; actor_networks bring their own.

    The other arguments are `MultiAgentRLAlgorithm`'s.
    """

    policies_are_distributions = True
    experience = TEAM_ROLLOUTS
    reads_alone = True  # networks read what their own agent sees, and nothing else

    def __init__(
        self,
        observation_spaces: Spaces,
        action_spaces: Spaces,
        agent_ids: Sequence[str] | None = None,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: dict[str, Any] | None = None,
        batch_size: Annotated[Count, hp(128, "fewer steps of less noise from a rollout")] = 64,
        lr: Annotated[Positive, hp(1e-3, "for small networks and few steps")] = 1e-4,
        learn_step: Annotated[Count, hp(1024, "members of a population see less each")] = 2048,
        gamma: Annotated[Fraction, hp()] = 0.99,
        gae_lambda: Annotated[Fraction, hp()] = 0.95,
        mut: str | None = None,
        action_std_init: Annotated[NonNegative, hp()] = 0.6,
        clip_coef: Annotated[Positive, hp()] = 0.2,
        ent_coef: Annotated[NonNegative, hp()] = 0.01,
        vf_coef: Annotated[NonNegative, hp()] = 0.5,
        max_grad_norm: Annotated[Positive | None, hp()] = 0.5,
        target_kl: Annotated[Positive | None, hp()] = None,
        normalize_images: bool = True,
        update_epochs: Annotated[Count, hp(10, "the paper's, for control")] = 4,
        actor_networks: Mapping[str, EvolvableNetwork] | None = None,
        critic_networks: Mapping[str, EvolvableNetwork] | None = None,
        action_batch_size: Count | None = None,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        torch_compiler: str | None = None,
        wrap: bool = True,
        *,
        num_envs: Count = 1,
        recurrent: Annotated[bool, hp()] = False,
        bptt_sequence_type: Annotated[
            Any, hp(values=Literal["chunked", "maximum", "fifty_percent_overlap"])
        ] = "chunked",
        max_seq_len: Annotated[Count | None, hp()] = None,
        clip_value_loss: Annotated[bool, hp()] = True,
        lr_schedule: Annotated[Schedule, hp()] = "constant",
        ent_schedule: Annotated[Schedule, hp()] = "constant",
        action_scaling: Annotated[str, hp(values=Literal["bounds", "none"])] = "bounds",
        squash_output: Annotated[bool, hp()] = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            observation_spaces,
            action_spaces,
            index,
            agent_ids,
            hp_config,
            device,
            accelerator,
            torch_compiler,
            normalize_images,
            seed=seed,
        )
        self.recurrent, self.max_seq_len = bool(recurrent), max_seq_len
        self.bptt_sequence_type = team_memory.check_kind(bptt_sequence_type)
        self._playing: HiddenStates | None = None  # of evaluation
        self.batch_size, self.lr, self.learn_step = int(batch_size), lr, int(learn_step)
        self.gamma, self.gae_lambda, self.mut, self.net_config = gamma, gae_lambda, mut, net_config
        self.lr_schedule, self.ent_schedule = check_schedules(lr_schedule, ent_schedule)
        self.action_std_init, self.clip_coef = initial_std(action_std_init, type(self).__name__), clip_coef
        self.ent_coef, self.vf_coef, self.max_grad_norm = ent_coef, vf_coef, max_grad_norm
        self.target_kl, self.update_epochs, self.num_envs = target_kl, int(update_epochs), int(num_envs)
        self.action_batch_size, self.clip_value_loss = action_batch_size, bool(clip_value_loss)
        self.progress = 0.0
        self._minibatches = team_rollouts.minibatch_stream(self)
        units = {"action_scaling": action_scaling, "squash_output": squash_output}
        team_actor_critics.build(self, actor_networks, critic_networks, units)
        self.recurrent = team_memory.remembers(self)

    def make_value(self, group: str, seed: int, **more: Any) -> EvolvableNetwork:
        """V of what an agent of the group sees."""
        return team_actor_critics.make_network(self, group, self.observation_space[group], seed, 0, **more)

    def value_inputs(self, obs: Any, group: str, axis: int) -> tuple[Any, ...]:
        """What values of the agents of a group read: as rows [..., K·B, ...], what each of them sees."""
        return (team_actor_critics.own_rows(obs, self.grouped_agents[group], axis),)

    def value_scale(self) -> tuple[np.ndarray, np.ndarray]:
        """(mean, deviation) [M] of what critics give: values themselves."""
        return np.zeros(self.n_agents), np.ones(self.n_agents)

    def see_returns(self, returns: np.ndarray, counts: np.ndarray) -> None:
        """The values' scale does not follow them."""

    def observations_for(self, network: str, observations: Any) -> Any:
        """What of a team's observations [B, ...] a network reads: its agents', where they were there."""
        return super().observations_for(f"actors.{network.partition('.')[2]}", observations)

    row_input = property(team_actor_critics.row_input)

    action_scaling, squash_output = PolicyUnit("action_scaling", "none"), PolicyUnit("squash_output", False)

    def sampling_actors(self) -> list[Any]:
        return list(self.actors.values())

    actors = by_group("actors")
    critics = by_group("critics")
    optimizers = by_group("optimizers")
    policies = property(team_actor_critics.policies_of)
    groups_of_agents = property(team_actor_critics.groups_of_agents)
    presence = staticmethod(team_actor_critics.presence)

    # --- acting -------------------------------------------------------------------------------------------------------

    draw_exploration = team_acting.draw_exploration
    sample = team_acting.sample
    explore = team_acting.explore
    greedy = team_acting.greedy
    random_action = team_acting.random_action
    environment_action = team_acting.environment_action
    environment_actions = team_acting.environment_actions
    observed = team_playing.observed
    get_action = team_acting.get_action  # type: ignore[assignment]  # four dicts

    # --- memory -------------------------------------------------------------------------------------------------------

    is_recurrent = property(lambda self: self.recurrent)  # type: ignore[assignment]
    hidden_state_architecture = property(team_memory.hidden_state_architecture)
    get_initial_hidden_state = team_memory.get_initial_hidden_state
    hidden_of_group = team_memory.of_group
    sequence_limit = team_memory.sequence_limit
    recur = team_memory.recur
    forget = team_memory.forget
    begin_episodes = team_memory.begin_episodes
    end_episodes = team_memory.end_episodes
    _greedy = team_acting.greedy_in_lanes
    group_rows = team_rollouts.group_rows

    # --- learning -----------------------------------------------------------------------------------------------------

    update = team_rollouts.update
    state_values = team_rollouts.state_values
    update_hyperparameters = team_rollouts.update_hyperparameters
    hyperparameters = team_rollouts.hyperparameters
    update_options = team_rollouts.update_options
    update_interval = team_rollouts.update_interval
    draw_entropy_noise = team_rollouts.draw_entropy_noise
    make_buffer = team_rollouts.make_buffer
    learn = published_learn = team_rollouts.learn
    learn_buffer = team_rollouts.learn_buffer
    learn_batch = team_rollouts.learn_batch  # type: ignore[assignment]  # of a rollout

    # --- copies and files ---------------------------------------------------------------------------------------------

    policy_from_spec: Any = classmethod(team_rollouts.policy_from_spec)
    clone = team_rollouts.clone
    state = team_rollouts.state
    load_state = team_rollouts.load_state
