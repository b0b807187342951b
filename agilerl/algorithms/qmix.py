"""Cooperative Q-learning: VDN (Sunehag et al. 2017, arXiv:1706.05296), QMIX (Rashid et al. 2018, arXiv:1803.11485)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, optim

from agilerl.algorithms.base.declared import TEAM_VALUES, hp
from agilerl.algorithms.base.optimizer import OptimizerWrapper
from agilerl.algorithms.base.registry import HyperparameterConfig, NetworkGroup
from agilerl.algorithms.teams import networks as team_networks
from agilerl.algorithms.teams import policies as team_policies
from agilerl.algorithms.teams.base import MultiAgentRLAlgorithm
from agilerl.algorithms.teams.deterministic import config_of, fitting, outputs_of
from agilerl.algorithms.teams.evaluation import as_defined, masks_of, observed
from agilerl.algorithms.teams.names import Spaces, keep_ids
from agilerl.core.ranges import Count, Fraction, Positive, PositiveFraction, StepsPerUpdate
from agilerl.core.rng import Purpose, seeds
from agilerl.engine.protocol import Draws, Mask, Network, TransitionBatch, UpdateEngine, UpdateResult
from agilerl.envs.protocol import AGENTS, JOINT, LAST_ACTION, PRESENT, WAITING
from agilerl.errors import AlgorithmError
from agilerl.losses.actor_critic import bootstrap, weighted_squared_error
from agilerl.losses.td import take
from agilerl.modules.paths import resolve
from agilerl.networks.base import EvolvableNetwork, checked_arguments
from agilerl.networks.mixing import MixingNetwork
from agilerl.networks.q_networks import QNetwork


class VDN(MultiAgentRLAlgorithm):
    """Value decomposition: the value of a joint action is the sum of values that each read one agent's observation.

    y = r + γ Q_tot⁻(s', a'_1 … a'_M), a'_k = argmax Q_k(o'_k, ·);   L = mean (Q_tot(s, a_1 … a_M) − y)²

    r is the mean of all agents' rewards, so a reward that all of them receive is r itself, and the best policy is that
    of the summed returns. Each agent maximises its own values, which maximises Q_tot. Next actions are double
    Q-learning's (van Hasselt et al. 2016, arXiv:1509.06461). Agents of one group share a network. An absent agent
    counts with a value of 0, a waiting one (see `MADDPG`) with that of the action it holds.

    Args:
        action_spaces: Discrete, of every agent.
        hp_config: mutable hyperparameters: any numeric argument.
        net_config: `{"encoder_config": {..}, "head_config": {..}, "latent_dim": ..}` of all networks, or by group.
        batch_size: transitions per update. lr: learning rate of Adam, for all networks.
        learn_step: environment steps per update. gamma, tau: see `DQN`.
        actor_networks: Q-networks by group to use instead of building them.

    See `MultiAgentRLAlgorithm` for the other arguments.

    Raises:
        AlgorithmError: an agent whose actions are not Discrete.
    """

    experience = TEAM_VALUES
    learns_from_obs_mask = False
    actors = team_networks.by_group("actors")
    actor_targets = team_networks.by_group("actor_targets")

    def __init__(
        self,
        observation_spaces: Spaces,
        action_spaces: Spaces,
        agent_ids: Sequence[str] | None = None,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: dict[str, Any] | None = None,
        batch_size: Annotated[Count, hp(128, "joint actions make targets noisier")] = 32,
        lr: Annotated[Positive, hp(1e-3, "for small networks and few steps")] = 5e-4,
        learn_step: Annotated[StepsPerUpdate, hp(8, "an update costs as much as its environment steps")] = 4,
        gamma: Annotated[Fraction, hp()] = 0.99,
        tau: Annotated[PositiveFraction, hp()] = 0.01,
        mut: str | None = None,
        normalize_images: bool = True,
        actor_networks: Mapping[str, EvolvableNetwork] | None = None,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        torch_compiler: str | None = None,
        wrap: bool = True,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            observation_spaces, action_spaces, index, agent_ids, hp_config, device, accelerator, torch_compiler,
            normalize_images, seed=seed,
        )  # fmt: skip
        other = next((s for s in self.possible_action_spaces.values() if not isinstance(s, gym.spaces.Discrete)), None)
        if other is not None:
            raise AlgorithmError(f"{self.algo} needs Discrete actions; got {other}. fix: MADDPG, MATD3, IPPO or MAPPO.")
        self.batch_size, self.lr, self.learn_step, self.gamma, self.tau = batch_size, lr, learn_step, gamma, tau
        self.mut, self.net_config = mut, net_config
        user_networks = team_networks.networks_by_group(self, "actor_networks", actor_networks)
        drawn = seeds(self.seed, Purpose.INITIAL_WEIGHTS, 1 + len(self.grouped_agents), generation=2).tolist()
        for group, weight_seed in zip(self.grouped_agents, drawn[1:], strict=True):
            self._register(f"actors.{group}", user_networks.get(group) or self._make_policy(group, weight_seed))
        self._build_mixer(drawn[0])
        networks = [resolve(self, str(group.eval_network)) for group in self.registry.groups]
        self.optimizer = OptimizerWrapper(optim.Adam, networks, lr, lr_name="lr")

    def _make_policy(self, group: str, weight_seed: int) -> QNetwork:
        space = self.observation_space[group]
        arguments = checked_arguments(fitting(config_of(self, group), space), QNetwork)
        return QNetwork(space, self.action_space[group], device=self.device, random_seed=weight_seed, **arguments)

    def _build_mixer(self, weight_seed: int) -> None:
        """Build what mixes the agents' values: nothing here, they are summed."""

    def _register(self, name: str, network: EvolvableNetwork) -> None:
        """Assign a network as `name`, and its frozen target."""
        network.normalize_images = self.normalize_images
        kind, dot, group = name.partition(".")
        shadow = network.clone().requires_grad_(False)
        setattr(self, name, network)
        setattr(self, f"{kind.removesuffix('s')}_target{'s' if dot else ''}{dot}{group}", shadow)
        self.register_network_group(NetworkGroup(network, shadow, policy=bool(dot)))

    # --- learning -----------------------------------------------------------------------------------------------------

    def update_hyperparameters(self) -> dict[str, float]:
        return self._numbers("lr", "gamma", "tau")

    def mix(self, network: Callable[[str], Network], obs: Any, values: Tensor) -> Tensor:
        """Return Q_tot [..., B] = Σ_k Q_k of values [..., B, M] (arXiv:1706.05296, eq. 3).

        Args:
            network: network name -> function that runs it. obs: the team's observations.
        """
        return values.sum(-1)

    def update(self, engine: UpdateEngine, batch: TransitionBatch) -> UpdateResult:
        """Perform one Adam step on the squared TD error of Q_tot (arXiv:1803.11485, eq. 6 and 7), and one soft target
        update."""
        obs, later, axis = batch.obs, batch.next_obs, batch.reward.dim() - 2
        with torch.no_grad():
            discounts = batch.discounts(engine.hp["gamma"])
            discounts = discounts * _active(later).to(discounts)
            after = self.mix(engine.target, later, self._next_values(engine, batch, axis) * (discounts > 0))
            target = bootstrap(batch.reward.mean(-1), discounts.amax(-1), after)  # equal for all agents that go on
        outputs = dict[str, Tensor]()
        for group, agents in self.grouped_agents.items():
            outputs |= zip(agents, outputs_of(engine.network(f"actors.{group}"), obs, agents, axis), strict=True)
        values = torch.stack([take(outputs[a], self._choice(a, batch.action)) for a in self.agent_ids], -1)
        total = self.mix(engine.network, obs, values * _active(obs).to(values))
        loss, error = weighted_squared_error(total, target, batch.weight)
        engine.minimise("optimizer", loss)
        engine.track(tuple(str(group.eval_network) for group in self.registry.groups), engine.hp["tau"])
        return UpdateResult(loss.detach(), priorities=error.detach().abs())

    def _next_values(self, engine: UpdateEngine, batch: TransitionBatch, axis: int) -> Tensor:
        """Return the target values [..., B, M] of the actions that the agents' networks choose in the next step."""
        later, legal, by_agent = batch.next_obs, batch.next_mask, dict[str, Tensor]()
        for group, agents in self.grouped_agents.items():
            chooser, target = engine.frozen_and_target(f"actors.{group}")(team_policies.own_rows(later, agents, axis))
            if legal is not None:
                masks = torch.cat([legal[..., self.actions.masks[agent]] for agent in agents], axis)
                chooser = chooser.masked_fill(~masks, float("-inf"))
            choices = chooser.max(-1).indices.chunk(len(agents), axis)
            for agent, values, choice in zip(agents, target.chunk(len(agents), axis), choices, strict=True):
                if LAST_ACTION in later:
                    is_waiting = later[WAITING][..., self.agent_ids.index(agent)].bool()
                    choice = torch.where(is_waiting, self._choice(agent, later[LAST_ACTION]), choice)
                by_agent[agent] = take(values, choice)
        return torch.stack([by_agent[agent] for agent in self.agent_ids], -1)

    def _choice(self, agent: str, stored: Tensor) -> Tensor:
        """Return an agent's choice, int64 [...], in stored actions [..., M]."""
        return stored[..., self.actions.columns[agent].start].long()

    @property
    def row_input(self) -> Callable[[Any], Any]:
        read, device = team_policies.row_input(self.agent_policies(), self.device), self.device
        beside = (WAITING, LAST_ACTION)
        return lambda obs: read(obs) | {k: torch.as_tensor(obs[k], device=device) for k in beside if k in obs}

    # --- acting -------------------------------------------------------------------------------------------------------

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Draw (uniform numbers [*shape, M] that decide whether an agent explores, Gumbel noise [*shape, F])."""
        return rng.random((*shape, self.n_agents)), rng.gumbel(size=(*shape, self.actions.width))

    def explore(self, outputs: Tensor, draws: Draws, epsilon: float, mask: Mask = None) -> np.ndarray:
        """Select actions to store [..., A] ε-greedily: with probability ε, by agent, a uniformly random legal one."""
        explores, gumbel = draws
        scores = np.where(explores[..., self.actions.owners] < epsilon, gumbel, outputs.cpu().numpy())
        return self.actions.act(scores, None, None, mask)

    @keep_ids
    def get_action(
        self, obs: Mapping[str, Any], infos: Mapping[str, Any] | None = None, training: bool | None = None, *,
        epsilon: float = 0.0,
    ) -> Any:  # fmt: skip
        """Return (environment actions, their one-hot numbers), both by agent; ε-greedy in training, else greedy.

        See `MultiAgentRLAlgorithm.get_action`.
        """
        infos, (rows, lanes) = infos or {}, observed(self, obs)
        mask = masks_of(self, infos, lanes, obs)
        with torch.no_grad():
            outputs = self.policy_output(rows)
        stored = self.greedy(outputs, mask)
        if self.training if training is None else training:
            stored = self.explore(outputs, self.draw_exploration(self._exploration, (lanes,)), epsilon, mask)
        actions = self.team.split(self.environment_action(stored))
        features = self.actions.features(torch.tensor(stored))
        env_actions = {agent: as_defined(self, agent, actions[agent], infos.get(agent)) for agent in obs}
        return env_actions, {agent: features[:, self.actions.widths[agent]].numpy() for agent in obs}

    @classmethod
    def policy_from_spec(cls, spec: Mapping[str, Any], device: str | torch.device) -> EvolvableNetwork:
        return QNetwork.from_spec(spec, device=device)


def _active(obs: Any) -> Tensor:
    """Return the mask [..., B, M] of agents that are present or waiting."""
    mask: Tensor = obs[PRESENT] + obs[WAITING] if WAITING in obs else obs[PRESENT]
    return mask


class QMIX(VDN):
    """Monotonic value decomposition: a network mixes the agents' values, by non-negative weights given by the state.

    The state is the joint observation of all agents; see `MixingNetwork`. Q_tot increases in the value of every agent,
    so the best joint action is still the best one of each agent, but Q_tot need not be a sum.

    See `VDN` for the arguments.

    Attributes:
        mixing_size: hidden units of new mixing networks; a subclass may have another number.
        mixer, mixer_target: the mixing network, and its target.
    """

    mixing_size: ClassVar[int] = 32  # that of the paper
    mixer: MixingNetwork

    def _build_mixer(self, weight_seed: int) -> None:
        """Build the mixing network from the `net_config` of the first group."""
        config, space = dict(config_of(self, self.shared_agent_ids[0])), self.team.joint_space
        if isinstance(config.get("head_config"), Mapping):  # of the agents' networks alone
            config["head_config"] = {k: v for k, v in config["head_config"].items() if k != "output_activation"}
        arguments = checked_arguments(fitting(config, space), MixingNetwork) | {"mixing_size": self.mixing_size}
        mixer = MixingNetwork(space, self.n_agents, device=self.device, random_seed=weight_seed, **arguments)
        self._register("mixer", mixer)

    def mix(self, network: Callable[[str], Network], obs: Any, values: Tensor) -> Tensor:
        """Return Q_tot [..., B] of values [..., B, M] in the state of `obs` (arXiv:1803.11485, section 4)."""
        return network("mixer")(obs.get(JOINT, obs[AGENTS]), values)

    def agents_of(self, network: str) -> list[str]:
        return self.agent_ids if network == "mixer" else super().agents_of(network)

    @property
    def row_input(self) -> Callable[[Any], Any]:
        return team_networks.row_input(self.agent_policies(), self.mixer, self.device)
