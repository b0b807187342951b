"""What DDPG, TD3 and SAC share: actions of a Box, critics beside the policy, and how both are acted with."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn, optim

from agilerl.algorithms.checks import check_network, legal_actions
from agilerl.algorithms.core.optimizer_wrapper import OptimizerWrapper
from agilerl.algorithms.core.registry import NetworkGroup
from agilerl.algorithms.core.single_agent import RLAlgorithm
from agilerl.algorithms.noise import gaussian, ornstein_uhlenbeck
from agilerl.engine.protocol import UpdateResult, soft_update
from agilerl.errors import AgileRLWarning, AlgorithmError, ShapeError
from agilerl.modules.base import EvolvableModule
from agilerl.networks.actors import DeterministicActor, get_output_bounds, rescale_action
from agilerl.networks.base import EvolvableNetwork, checked_arguments
from agilerl.networks.specs import stand_in
from agilerl.rng import Purpose, seeds


class ActorCritic(RLAlgorithm):
    """An off-policy algorithm with a policy, critics and their targets.

    Stored actions are raw: in the range of the policy's output, [-1, 1] by default. `environment_action` maps them to
    the bounds of the space, also in a training loop of your own, which stores `action = agent.get_action(obs)` and
    calls `env.step(agent.environment_action(action))`. Outside of training `get_action` has done so already.
    """

    action_spaces: tuple[str, ...] = ("Box",)

    actor: EvolvableModule
    net_config: Any
    tau: float
    share_encoders: bool

    @property
    def output_activation(self) -> str:
        """The activation in whose range raw actions are."""
        return "Tanh"

    # --- construction ----------------------------------------------------------------------------------------------

    def _network(
        self, cls: type[EvolvableNetwork], given: Any, name: str, number: int, drop: tuple[str, ...] = (), **more: Any
    ) -> EvolvableModule:
        """The network that is given, or one of `cls` after `net_config` with weights of its own.

        Args:
            number: 0 for the policy; others give other weights. drop: keys of the head that are not for `cls`.
            more: constructor arguments of `cls` beside those of `net_config`.
        """
        policy = self.__dict__.get("actor")
        scaled = policy.scale_observations if isinstance(policy, EvolvableNetwork) else None
        if given is not None:
            if isinstance(given, EvolvableNetwork) and scaled not in (None, given.scale_observations):
                raise AlgorithmError(
                    f"{self.algo}: {name} has scale_observations={given.scale_observations}, the actor {scaled}; over "
                    "rows both get the same inputs. fix: build them with the same value."
                )
            if isinstance(given, EvolvableNetwork) and given.lender is not None and not self.share_encoders:
                raise AlgorithmError(
                    f"{self.algo}: {name} reads the features of another network. fix: share_encoders=True."
                )
            return check_network(name, given)
        own = self.seed if number == 0 else int(seeds(self.seed, Purpose.INITIAL_WEIGHTS, number, generation=2)[-1])
        config = _without_head_keys(self.net_config, drop)
        arguments = checked_arguments(config, cls) | ({} if scaled is None else {"scale_observations": scaled})
        if isinstance(policy, EvolvableNetwork) and self.share_encoders:
            more |= {**stand_in(policy), "simba": False, "recurrent": False}
        made = cls(
            self.observation_space,
            action_space=self.action_space,
            device=self.device,
            random_seed=own,
            **{**arguments, **more},
        )
        if isinstance(policy, EvolvableNetwork) and self.share_encoders:
            made.borrow_encoder(policy)
        return made

    def _twin_critics(
        self, cls: type[EvolvableNetwork], given: Any, drop: tuple[str, ...]
    ) -> tuple[EvolvableModule, EvolvableModule]:
        """Two critics with weights of their own: those given, or of `cls`."""
        pair = [None, None] if given is None else list(given)
        if len(pair) != 2:
            raise AlgorithmError(
                f"{self.algo}: critic_networks must hold two critics; got {len(pair)}. fix: [critic, critic.clone()]."
            )
        first, second = (self._network(cls, network, "critic_networks", i + 1, drop) for i, network in enumerate(pair))
        return first, second

    def _share_encoders(self, *critics: str) -> None:
        """Let the critics, where it is asked for, read the policy's features instead of having encoders of their own.

        Raises:
            KeyError: a critic that was given has an encoder of another architecture than the policy.
        """
        others = [name for name in ("actor", *critics) if not isinstance(getattr(self, name), EvolvableNetwork)]
        if self.share_encoders and others:
            warnings.warn(
                f"Encoder sharing is disabled: {', '.join(others)} of {self.algo} is no EvolvableNetwork. "
                "fix: share_encoders=False, or networks with an encoder.",
                AgileRLWarning,
                stacklevel=4,
            )
            self.share_encoders = False
        for name in critics if self.share_encoders else ():
            critic = getattr(self, name)
            if critic.lender is not self.actor:
                critic.check_same_encoder(self.actor)
            critic.borrow_encoder(self.actor)
            self.registry.lenders[name] = "actor"

    def _register(self, name: str, target: str | None, optimizer: str, lr: str, policy: bool = False) -> None:
        """Give the network `name` a frozen target and an Adam optimiser, and register all of them."""
        network = getattr(self, name)
        shadow = None
        if target is not None:
            shadow = network.clone()
            shadow.requires_grad_(False)
            setattr(self, target, shadow)
            if name in self.registry.lenders:
                lender = self.registry.lenders[name]
                shared = next(g.shared_networks for g in self.registry.groups if g.eval_network == lender)
                self.registry.lenders[target] = shared[0] if shared else lender
                self.link_encoders()
        setattr(self, optimizer, OptimizerWrapper(optim.Adam, network, getattr(self, lr), lr_name=lr))
        self.register_network_group(NetworkGroup(network, shadow, policy=policy))

    @property
    def criterion(self) -> nn.Module:
        """The critics' loss, which `update` writes out with row weights."""
        return nn.MSELoss()

    def soft_update(self, net: nn.Module, target: nn.Module) -> None:
        """One soft update of `target` towards `net` with `tau`."""
        soft_update(net, target, self.tau)

    @property
    def acts_raw(self) -> bool:  # type: ignore[override]
        """While it trains, `get_action` gives what is stored."""
        return self.training

    # --- actions ---------------------------------------------------------------------------------------------------

    @property
    def action_size(self) -> int:
        """Components of an action of the Box."""
        return int(np.prod(self.action_space.shape or (1,)))

    def prepare_action(self, action: Tensor, count: int) -> Tensor:
        """Stored raw actions [B, A] in the policy's dtype; int64 [B] for discrete spaces."""
        if isinstance(self.action_space, gym.spaces.Discrete):
            return super().prepare_action(action, count)
        if action.numel() != count * self.action_size:
            raise ShapeError(
                f"{self.algo}.learn got actions of shape {tuple(action.shape)} for {count} transitions of "
                f"{self.action_size} components. fix: store what get_action returned."
            )
        return action.reshape(count, self.action_size).to(next(self.policy_module().parameters()).dtype)

    def environment_action(self, action: np.ndarray) -> np.ndarray:
        """Raw actions [..., A] at the bounds and in the shape of the space."""
        space = self.action_space
        if not isinstance(space, gym.spaces.Box):
            return action
        low, high = space.low.ravel(), space.high.ravel()
        scaled = np.clip(rescale_action(action, low, high, self.output_activation), low, high)
        shaped: np.ndarray = scaled.reshape(*action.shape[:-1], *space.shape)
        return shaped

    def get_action(
        self, obs: Any, training: bool | None = None, action_mask: np.ndarray | None = None, *, epsilon: float = 0.0
    ) -> np.ndarray:
        """Exploring actions to store while `training`, otherwise greedy ones as the environment takes them.

        Args:
            obs: one observation or a batch [E, ...], numpy or torch.
            training: the agent's own mode where it is not given.
            action_mask: [E, A] or [A], 1 = legal, for Discrete actions.
            epsilon: not used; policies of this kind explore by noise or by sampling.

        Returns:
            While training raw actions [E, A] (see `environment_action`), else [E, *shape] within the bounds of the
            space; int64 [E] for Discrete actions.
        """
        with torch.no_grad():
            outputs = self.policy_output(obs)
        outputs = outputs.unsqueeze(0) if outputs.dim() == 1 else outputs
        mask = legal_actions(f"{self.algo}.get_action", action_mask, (len(outputs), outputs.shape[-1]))
        if not (self.training if training is None else training):
            return self.environment_action(self.greedy(outputs, mask))
        return self.explore(outputs, self.draw_exploration(self._exploration, outputs.shape[:-1]), epsilon, mask)

    def _greedy(self, obs: Any, mask: np.ndarray | None = None) -> np.ndarray:
        return self.get_action(obs, False, mask)

    def report(self, result: UpdateResult) -> Any:
        """(actor loss, or None where the policy was not updated; critic loss), both before the update."""
        actor_loss = None if result.actor_loss is None else float(result.actor_loss)
        return actor_loss, float(result.loss)


class DeterministicActorCritic(ActorCritic):
    """A deterministic policy that explores by noise on its raw actions.

    The noise of a lane is a path of its own that goes on from call to call, over ends of episodes too unless
    `reset_action_noise` is called. Departs from arXiv:1509.02971, algorithm 1, which begins a new path with each
    episode: noise is drawn ahead for many vector steps, when it is not known yet where episodes end.
    """

    policy_class = DeterministicActor
    shares_in_populations = True
    """Whether critics share the encoder in populations of `create_population`, where nothing says otherwise."""

    O_U_noise: bool
    expl_noise: float | np.ndarray
    mean_noise: float | np.ndarray
    theta: float
    dt: float
    vect_noise_dim: int
    noise_state: np.ndarray

    @property
    def output_activation(self) -> str:
        """The activation in whose range raw actions are: the policy's own."""
        actor = self.policy_module()
        return actor.output_activation if isinstance(actor, DeterministicActor) else "Tanh"

    @property
    def raw_bounds(self) -> tuple[float, float]:
        """Lowest and highest raw action."""
        return get_output_bounds(self.output_activation)

    def _paths(self, rng: np.random.Generator, steps: int, lanes: int) -> np.ndarray:
        """Noise [T, E, A] for the coming vector steps."""
        numbers = rng.standard_normal((steps, lanes, self.action_size))
        if not self.O_U_noise:
            return gaussian(numbers, self.mean_noise, self.expl_noise)
        state = np.asarray(self.noise_state)
        if len(state) != lanes:
            state = np.zeros((lanes, self.action_size))
        path = ornstein_uhlenbeck(state, numbers, self.mean_noise, self.theta, self.expl_noise, self.dt)
        self.noise_state = path[-1].copy()
        return path

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        """Noise [*shape, A] in units of raw actions; `shape` is (vector steps, E) or (E,)."""
        steps = int(np.prod(shape[:-1], dtype=int))
        return (self._paths(rng, steps, shape[-1]).reshape(*shape, self.action_size),)

    def action_noise(self, action: Any) -> np.ndarray:
        """The noise of one vector step for actions [E, A]: [E, A] float32."""
        lanes = int(np.asarray(np.shape(action)[:-1], int).prod())
        noise: np.ndarray = self._paths(self._exploration, 1, lanes)[0].reshape(np.shape(action)).astype(np.float32)
        return noise

    def reset_action_noise(self, indices: Any) -> None:
        """Begin a new path in the lanes `indices`: their Ornstein-Uhlenbeck state becomes 0."""
        state = np.array(self.noise_state)
        state[np.asarray(indices, dtype=int)] = 0
        self.noise_state = state

    def greedy(self, outputs: Tensor, mask: np.ndarray | None = None) -> np.ndarray:  # type: ignore[override]
        """The policy's own raw actions [..., A]."""
        action: np.ndarray = outputs.cpu().numpy()
        return action

    def explore(
        self, outputs: Tensor, draws: tuple[np.ndarray, ...], epsilon: float, mask: np.ndarray | None = None
    ) -> np.ndarray:
        """Raw actions plus noise, within the raw bounds; outputs and draws[0] [..., A]; `epsilon` has no meaning."""
        action: np.ndarray = outputs.cpu().numpy()
        low, high = self.raw_bounds
        noisy: np.ndarray = np.clip(action + draws[0], low, high).astype(action.dtype)
        return noisy


def _without_head_keys(config: Any, drop: tuple[str, ...]) -> Any:
    """`net_config` without some keys of its head: a critic has no output activation, and no squashed output."""
    if not isinstance(config, Mapping):
        return config
    kept = {k: v for k, v in config.items() if k not in drop}
    head = kept.get("head_config")
    if dataclasses.is_dataclass(head) and not isinstance(head, type):
        head = {k: v for k, v in dataclasses.asdict(head).items() if v is not None}
    if isinstance(head, Mapping):
        kept["head_config"] = {k: v for k, v in head.items() if k not in drop}
    return kept
