"""Independent proximal policy optimisation (de Witt et al. 2020, arXiv:2011.09533)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Self

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms import team_playing, team_rollouts
from agilerl.algorithms.declared import TEAM_ROLLOUTS, hp
from agilerl.algorithms.multi_agent import MultiAgentRLAlgorithm, Named, Spaces
from agilerl.algorithms.registry import HyperparameterConfig
from agilerl.envs.teams import AGENTS, PRESENT
from agilerl.networks.actors import StochasticActor
from agilerl.networks.base import EvolvableNetwork
from agilerl.ranges import Count, Fraction, NonNegative, Positive
from agilerl.rng import Purpose, seeds


class IPPO(MultiAgentRLAlgorithm):
    """PPO of every agent by itself: its policy and its value read what it sees, and nothing else.

    Agents of one group share both networks, and learn from the rows of all of them. Rows in which an agent was not
    there, or did not decide, count for nothing; see `losses.returns.gae_of_agents` for what its advantages are then.
    Box actions are clipped to the bounds for the environment alone; with `net_config={"squash_output": True}` they pass
    through tanh.

    Args:
        hp_config: mutable hyperparameters: any numeric argument.
        net_config: `{"encoder_config": {..}, "head_config": {..}, "latent_dim": ..}` of all networks, or by group.
        batch_size: rows of one minibatch; a row is a step of one lane, with all agents.
        lr: learning rate of Adam, of policy and value of each group.
        learn_step: environment steps of a rollout, rounded up to whole vector steps.
        gamma, gae_lambda, action_std_init, clip_coef, ent_coef, vf_coef, max_grad_norm, target_kl, update_epochs,
            clip_value_loss: as of `PPO`; `target_kl` is of the group that moved most.
        actor_networks, critic_networks: networks by group to use instead of building them.
        action_batch_size: most lanes that one pass of `get_action` takes; None takes all.
        num_envs: lanes of the vector environment; training sets it to those of its environment.
        recurrent: not built yet.

    The other arguments are `MultiAgentRLAlgorithm`'s.
    """

    experience = TEAM_ROLLOUTS

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
        action_std_init: Annotated[Positive, hp()] = 0.6,
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
        recurrent: bool = False,
        clip_value_loss: Annotated[bool, hp()] = True,
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
        team_rollouts.refuse_memory(self, recurrent)
        self.batch_size, self.lr, self.learn_step = int(batch_size), lr, int(learn_step)
        self.gamma, self.gae_lambda, self.mut, self.net_config = gamma, gae_lambda, mut, net_config
        self.action_std_init, self.clip_coef = action_std_init, clip_coef
        self.ent_coef, self.vf_coef, self.max_grad_norm = ent_coef, vf_coef, max_grad_norm
        self.target_kl, self.update_epochs, self.num_envs = target_kl, int(update_epochs), int(num_envs)
        self.action_batch_size, self.clip_value_loss = action_batch_size, bool(clip_value_loss)
        self.progress = 0.0
        self._minibatches = np.random.default_rng(seeds(self.seed, Purpose.REPLAY, 1, member=index))
        team_rollouts.build(self, actor_networks, critic_networks)

    def make_value(self, group: str, seed: int, **more: Any) -> EvolvableNetwork:
        """V of what an agent of the group sees."""
        return team_rollouts.make_network(self, group, self.observation_space[group], seed, 0, **more)

    def judged(self, critic: Any, obs: Any, group: str, axis: int) -> Tensor:
        """Values [..., K·B, 1] of the agents of a group."""
        values: Tensor = critic(team_rollouts.own_rows(obs, self.grouped_agents[group], axis))
        return values

    def value_scale(self) -> tuple[np.ndarray, np.ndarray]:
        """(mean, deviation) [M] of what critics give: values themselves."""
        return np.zeros(self.n_agents), np.ones(self.n_agents)

    def see_returns(self, returns: np.ndarray, counts: np.ndarray) -> None:
        """The values' scale does not follow them."""

    def observations_for(self, network: str, observations: Any) -> Any:
        """What of a team's observations [B, ...] a network reads: its agents', where they were there."""
        return super().observations_for(f"actors.{network.partition('.')[2]}", observations)

    @property
    def row_input(self) -> Callable[[Any], Any]:
        readers = {agent: getattr(self, f"actors.{self.get_group_id(agent)}").row_input for agent in self.agent_ids}

        def prepare(obs: Any) -> dict[str, Any]:
            present = torch.as_tensor(obs[PRESENT], device=self.device)
            return {AGENTS: {a: read(obs[AGENTS][a]) for a, read in readers.items()}, PRESENT: present}

        return prepare

    actors = property(lambda self: Named(self, "actors"))
    critics = property(lambda self: Named(self, "critics"))
    optimizers = property(lambda self: Named(self, "optimizers"))
    policies = property(team_rollouts.policies_of)

    @property
    def groups_of_agents(self) -> list[list[int]]:
        """Numbers of the agents of each group."""
        return [[self.agent_ids.index(agent) for agent in own] for own in self.grouped_agents.values()]

    observed = team_playing.observed

    # --- acting -------------------------------------------------------------------------------------------------------

    draw_exploration = team_rollouts.draw_exploration
    sample = team_rollouts.sample
    explore = team_rollouts.explore
    greedy = team_rollouts.greedy
    random_action = team_rollouts.random_action
    environment_action = team_rollouts.environment_action
    environment_actions = team_rollouts.environment_actions
    get_action = team_rollouts.get_action  # type: ignore[assignment]  # four dicts

    @staticmethod
    def presence(obs: Any) -> Any:
        """[..., M] who is there, of a team's observations [..., ...]."""
        return obs[PRESENT]

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

    @classmethod
    def policy_from_spec(cls, spec: Mapping[str, Any], device: str | torch.device) -> EvolvableNetwork:
        """The policy network that a saved `spec` describes, with fresh weights."""
        return StochasticActor.from_spec(spec, device=device)

    def clone(self, index: int | None = None, wrap: bool = True) -> Self:
        twin = super().clone(index, wrap)
        if index is not None and index != self.index:
            own = seeds(self.seed, Purpose.REPLAY, 1, generation=len(self.fitness), member=index)
            twin._minibatches = np.random.default_rng(own)
        return twin

    def state(self) -> dict[str, Any]:
        return {**super().state(), "minibatches": self._minibatches.bit_generator.state}

    def load_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        super().load_state(state, source)
        if "minibatches" in state:
            self._minibatches.bit_generator.state = state["minibatches"]
