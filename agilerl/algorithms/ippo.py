"""Independent proximal policy optimisation (de Witt et al. 2020, arXiv:2011.09533)."""

from __future__ import annotations

from typing import Any

from agilerl.algorithms.teams.on_policy import TeamPPO
from agilerl.core.tree import Tree


class IPPO(TeamPPO):
    """Independent PPO: the policy and value of each agent read only its own observation.

    Agents of one group share both networks and learn from each other's rows. Rows in which an agent was absent or did
    not decide are ignored; see `losses.returns.gae_of_agents` for the advantages. Box actions are in units of half of
    their range (`action_scaling`), and clipped to the bounds only for the environment; with
    `net_config={"squash_output": True}` they pass through tanh. Dict and Tuple actions have one distribution per part.

    Args:
        hp_config: mutable hyperparameters: any numeric argument but `action_std_init`.
        net_config: `{"encoder_config": {..}, "head_config": {..}, "latent_dim": ..}` of all networks, or by group.
        batch_size: rows per minibatch; a row is one step of a lane with all agents (a window of steps, if recurrent).
        lr: learning rate of Adam, for policy and value of each group.
        learn_step: environment steps per rollout, rounded up to whole vector steps.
        gamma, gae_lambda, action_std_init, clip_coef, ent_coef, vf_coef, max_grad_norm, target_kl, update_epochs,
            lr_schedule, clip_schedule, ent_schedule, clip_value_loss, action_std_min: see `PPO`; `target_kl` and
            "adaptive" rates follow the maximum over groups.
        normalize_observations: see `PPO`; each group of agents has its own statistics, of its present agents.
        action_ent_steps, noise_persistence: see `PPO`; only for agents with Box actions.
        actor_networks, critic_networks: networks by group to use instead of building them.
        action_batch_size: maximum lanes per pass of `get_action`; None: all.
        num_envs: lanes of the vector environment; set by training functions.
        recurrent: recurrent encoders (LSTM) of policies and values, with a hidden state per agent and episode, see
            `hidden_state_architecture`.
        bptt_sequence_type, max_seq_len: see `PPO`; sequences are windows of one lane, which `batch_size` then counts.
        action_scaling, squash_output: see `PPO`; actor_networks have their own settings.
        share_encoders: use one encoder for policy and value of each group.

    See `MultiAgentRLAlgorithm` for the other arguments.
    """

    reads_alone = True  # networks read only their own agent's observation

    def observations_for(self, network: str, observations: Tree) -> Any:
        """Return the part of a team's observations [B, ...] that a network reads: rows of its present agents."""
        return super().observations_for(f"actors.{network.partition('.')[2]}", observations)
