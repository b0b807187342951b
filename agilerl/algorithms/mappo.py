"""Multi-agent proximal policy optimisation (Yu et al. 2022, arXiv:2103.01955)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
import torch

from agilerl import tree
from agilerl.algorithms.base.building import initial_std
from agilerl.algorithms.base.declared import hp
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.algorithms.base.rollouts import HiddenStates
from agilerl.algorithms.base.schedules import Schedule, check_schedules
from agilerl.algorithms.base.transitions import check_not_empty
from agilerl.algorithms.teams import actor_critics as team_actor_critics
from agilerl.algorithms.teams import recurrent as team_memory
from agilerl.algorithms.teams.names import Spaces
from agilerl.algorithms.teams.on_policy import TeamPPO, minibatch_stream
from agilerl.components.running import RunningMeanStd
from agilerl.engine.rollouts import sequence_kind
from agilerl.envs.teams import AGENTS, JOINT, PRESENT, STATE, TeamObservations
from agilerl.errors import ShapeError
from agilerl.networks.base import EvolvableNetwork
from agilerl.ranges import Count, Fraction, NonNegative, Positive
from agilerl.spaces import nested, space_from_json, space_to_json

MIN_RETURN_STD = 1e-2  # returns that hardly differ are no reason to magnify rounding


class MAPPO(TeamPPO):
    """PPO of every agent with a value that reads what all of them see, or the state of the environment.

    A value that several agents share is told which of them asks. It learns returns in units of their running deviation
    from their running mean (section 5.1 of the paper). Who is not there shows zeros, and its rows count for nothing.
    Policies are as of `IPPO`.

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
        recurrent: recurrent encoders (LSTM) of the policies; each agent remembers its own episode.
            Values have no memory: what all agents see, or the state, tells more than an agent's memory of its own.
        bptt_sequence_type, max_seq_len: as of `PPO`, of windows of one lane's time; `batch_size` then counts windows.
        action_scaling, squash_output: as of `PPO`; actor_networks bring their own.
        state_space: of the environment's `state()`, where values read `obs["state"]` in place of all observations.
        normalize_values: False lets values be returns as they are.

    The other arguments are `MultiAgentRLAlgorithm`'s.

    Attributes:
        value_statistics: mean, var and count of the returns learned from, by group.
    """

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
        state_space: gym.Space[Any] | None = None,
        normalize_values: Annotated[bool, hp()] = True,
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
        if state_space is not None:
            check_not_empty(f"{self.algo}, state_space", "read", state_space)
        self.state_space, self.normalize_values = state_space, bool(normalize_values)
        self.value_statistics: dict[str, dict[str, float]] = {}
        units = {"action_scaling": action_scaling, "squash_output": squash_output}
        team_actor_critics.build(self, actor_networks, critic_networks, units)
        self.recurrent = team_memory.remembers(self)

    def make_value(self, group: str, seed: int, **more: Any) -> EvolvableNetwork:
        """V of what all agents see, told which one of the group asks where there are several; without a memory."""
        more["recurrent"] = False
        space: gym.Space[Any] = self.team.joint_space if self.state_space is None else self.state_space
        count = len(self.grouped_agents[group])
        return team_actor_critics.make_network(self, group, space, seed, count if count > 1 else 0, **more)

    def value_inputs(self, obs: Any, group: str, axis: int) -> tuple[Any, ...]:
        """What values of the agents of a group read: as rows [..., K·B, ...], what all see; where there are several,
        who of them asks, too."""
        count = len(self.grouped_agents[group])
        joint = obs[JOINT] if JOINT in obs else self._joint(obs)
        if count == 1:
            return (joint,)
        lead, like = obs[PRESENT].shape[:-1], next(iter(self.critics[group].parameters()))
        told = torch.eye(count, dtype=like.dtype, device=like.device)
        who = torch.cat([row.expand(*lead, count) for row in told], axis)
        return tree.map_leaves(lambda x: torch.cat([x] * count, axis), joint), who

    def _joint(self, obs: Any) -> Any:
        """What values read of a team's observations."""
        return obs[AGENTS] if self.state_space is None else obs[STATE]

    def value_scale(self) -> tuple[np.ndarray, np.ndarray]:
        """(mean, deviation) [M]: what critics give, times the one and plus the other, are values."""
        usual = {"mean": 0.0, "var": 1.0}
        each = [self.value_statistics.get(self.get_group_id(agent), usual) for agent in self.agent_ids]
        mean, variance = (np.array([own[name] for own in each]) for name in ("mean", "var"))
        return mean, np.maximum(np.sqrt(variance), MIN_RETURN_STD) if self.value_statistics else np.sqrt(variance)

    def see_returns(self, returns: np.ndarray, counts: np.ndarray) -> None:
        """Take the returns [rows, M] of those who count into the values' scale."""
        for group, own in zip(self.grouped_agents, self.groups_of_agents, strict=True):
            rows = returns[:, own][counts[:, own]]
            if not self.normalize_values or not np.isfinite(rows).all():  # of a team that has diverged
                continue
            seen = RunningMeanStd()
            if group in self.value_statistics:
                seen.load_state({**self.value_statistics[group], "epsilon": seen.epsilon})
            seen.update(rows)
            values = {"mean": float(seen.mean), "var": float(seen.var), "count": seen.count}
            self.value_statistics = {**self.value_statistics, group: values}

    def joint_network(self) -> EvolvableNetwork:
        network: EvolvableNetwork = self.critics[self.shared_agent_ids[0]]
        return network

    def observations_for(self, network: str, observations: Any) -> Any:
        """What of a team's observations [B, ...] a network reads: its agents', or what all see."""
        is_value = network.partition(".")[0] == "critics"
        return self._joint(observations) if is_value else super().observations_for(network, observations)

    def observed(self, obs: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """As of every team; what the environment's state is stands under "state", where values read it.

        Raises:
            ShapeError: there is none.
        """
        if self.state_space is None:
            return super().observed(obs)  # type: ignore[arg-type]
        beside = obs.state if isinstance(obs, TeamObservations) else None  # as vectors show it
        shown = obs.get(STATE, beside)
        if shown is None:
            raise ShapeError(
                f"{self.algo}(state_space=) reads the environment's state, and none was given. "
                'fix: {**observations, "state": env.state()}.'
            )
        rows: Any = {a: own for a, own in obs.items() if a != STATE}
        rows = TeamObservations(rows, obs.present) if isinstance(obs, TeamObservations) else rows
        seen, lanes = super().observed(rows)  # type: ignore[arg-type]
        shape = nested(self.state_space)
        state = tree.map_leaves(lambda s, x: np.asarray(x).reshape(lanes, *(s.shape or ())), shape, shown)
        return {**seen, STATE: state}, lanes

    @property
    def row_input(self) -> Callable[[Any], Any]:
        joint = self.joint_network().row_input
        return team_actor_critics.row_input(self, lambda obs: {JOINT: joint(self._joint(obs))})

    def state(self) -> dict[str, Any]:
        own = {} if self.state_space is None else {"state_space": space_to_json(self.state_space)}
        return {**super().state(), **own}

    def load_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        super().load_state(state, source)
        if "state_space" in state:
            self.state_space = space_from_json(state["state_space"])
