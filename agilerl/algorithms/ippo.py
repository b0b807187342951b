"""Independent proximal policy optimisation (de Witt et al. 2020, arXiv:2011.09533)."""

from __future__ import annotations

from typing import Any

from agilerl.algorithms.teams import actor_critics as team_actor_critics
from agilerl.algorithms.teams.on_policy import TeamPPO
from agilerl.networks.base import EvolvableNetwork


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

    def make_value(self, group: str, seed: int, **more: Any) -> EvolvableNetwork:
        """V of what an agent of the group sees."""
        return team_actor_critics.make_network(self, group, self.observation_space[group], seed, 0, **more)

    def value_inputs(self, obs: Any, group: str, axis: int) -> tuple[Any, ...]:
        """What values of the agents of a group read: as rows [..., K·B, ...], what each of them sees."""
        return (team_actor_critics.own_rows(obs, self.grouped_agents[group], axis),)

    def observations_for(self, network: str, observations: Any) -> Any:
        """What of a team's observations [B, ...] a network reads: its agents', where they were there."""
        return super().observations_for(f"actors.{network.partition('.')[2]}", observations)
