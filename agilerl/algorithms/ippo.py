"""Independent proximal policy optimisation (de Witt et al. 2020, arXiv:2011.09533)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch

from agilerl.algorithms.base.building import initial_std
from agilerl.algorithms.base.declared import hp
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.algorithms.base.rollouts import HiddenStates
from agilerl.algorithms.base.schedules import Schedule, check_schedules
from agilerl.algorithms.teams import actor_critics as team_actor_critics
from agilerl.algorithms.teams import recurrent as team_memory
from agilerl.algorithms.teams.names import Spaces
from agilerl.algorithms.teams.on_policy import TeamPPO, minibatch_stream
from agilerl.engine.rollouts import sequence_kind
from agilerl.networks.base import EvolvableNetwork
from agilerl.ranges import Count, Fraction, NonNegative, Positive


class IPPO(TeamPPO):
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
            `teams.recurrent`.
        bptt_sequence_type, max_seq_len: as of `PPO`, of windows of one lane's time; `batch_size` then counts windows.
        action_scaling, squash_output: as of `PPO`; actor_networks bring their own.

    The other arguments are `MultiAgentRLAlgorithm`'s.
    """

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
        self.bptt_sequence_type = sequence_kind(bptt_sequence_type)
        self._playing: HiddenStates | None = None  # of evaluation
        self.batch_size, self.lr, self.learn_step = int(batch_size), lr, int(learn_step)
        self.gamma, self.gae_lambda, self.mut, self.net_config = gamma, gae_lambda, mut, net_config
        self.lr_schedule, self.ent_schedule = check_schedules(lr_schedule, ent_schedule)
        self.action_std_init, self.clip_coef = initial_std(action_std_init, type(self).__name__), clip_coef
        self.ent_coef, self.vf_coef, self.max_grad_norm = ent_coef, vf_coef, max_grad_norm
        self.target_kl, self.update_epochs, self.num_envs = target_kl, int(update_epochs), int(num_envs)
        self.action_batch_size, self.clip_value_loss = action_batch_size, bool(clip_value_loss)
        self.progress = 0.0
        self._minibatches = minibatch_stream(self)
        units = {"action_scaling": action_scaling, "squash_output": squash_output}
        team_actor_critics.build(self, actor_networks, critic_networks, units)
        self.recurrent = team_memory.remembers(self)

    def make_value(self, group: str, seed: int, **more: Any) -> EvolvableNetwork:
        """V of what an agent of the group sees."""
        return team_actor_critics.make_network(self, group, self.observation_space[group], seed, 0, **more)

    def value_inputs(self, obs: Any, group: str, axis: int) -> tuple[Any, ...]:
        """What values of the agents of a group read: as rows [..., K·B, ...], what each of them sees."""
        return (team_actor_critics.own_rows(obs, self.grouped_agents[group], axis),)

    def observations_for(self, network: str, observations: Any) -> Any:
        """What of a team's observations [B, ...] a network reads: its agents', where they were there."""
        return super().observations_for(f"actors.{network.partition('.')[2]}", observations)
