"""How an agent with a stochastic policy and a state value acts: distributions, hidden states, input statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.core.single_agent import RLAlgorithm
from agilerl.components.running import RunningMeanStd
from agilerl.engine.protocol import ModuleEngine, UpdateEngine, raw_output
from agilerl.errors import ShapeError
from agilerl.modules.base import EvolvableModule
from agilerl.networks.actors import StochasticActor, rescale_action
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.distributions import ActionDistribution, distribution_of
from agilerl.networks.shared import ValueView

HiddenStates = dict[str, Tensor]


class StochasticPolicyAgent(RLAlgorithm):
    """An agent that samples from its policy and knows what states are worth, with or without a memory.

    Attributes:
        actor, critic: the networks; with shared encoders the actor is a `SharedActorCritic`, the critic a view of it.
        recurrent, share_encoders: see `PPO`.
        observation_statistics: mean, var and count of the observations learned from, where they are normalised.
    """

    actor: EvolvableModule
    recurrent: bool
    share_encoders: bool
    bptt_sequence_type: str
    max_seq_len: int | None
    observation_statistics: dict[str, Any]
    _hidden: HiddenStates | None
    _playing: HiddenStates | None

    # --- networks --------------------------------------------------------------------------------------------------

    @property
    def networks(self) -> tuple[str, ...]:
        """Names of the networks: the policy's, and the critic's where it has an encoder of its own."""
        return ("actor",) if self.share_encoders else ("actor", "critic")

    def __getattr__(self, name: str) -> Any:
        if name == "critic" and self.__dict__.get("share_encoders"):
            return ValueView(self.__dict__["actor"])  # no network of its own: nothing to register, clone or save
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def _reading(self) -> list[EvolvableNetwork]:
        """The networks that read observations."""
        return [n for n in map(self.__dict__.get, self.networks) if isinstance(n, EvolvableNetwork)]

    def running_statistics(self) -> RunningMeanStd:
        """Those of the observations learned from so far."""
        statistics = RunningMeanStd(epsilon=1e-8)
        if self.observation_statistics:
            statistics.load_state({**self.observation_statistics, "epsilon": 1e-8})
        return statistics

    def take_statistics(self, statistics: RunningMeanStd) -> None:
        """Normalise observations by these from now on."""
        state = statistics.state()
        self.observation_statistics = {name: state[name] for name in ("mean", "var", "count")}
        for network in self._reading():
            network.set_observation_statistics(state["mean"], state["var"])

    def encoder_inputs(self, obs: Any) -> np.ndarray:
        """Observations [..., ...] as rows [B, I] of what the statistics are of."""
        with torch.no_grad():
            inputs = self.policy_network().encoder_input(obs)
        rows: np.ndarray = inputs.flatten(0, -2).double().cpu().numpy()
        return rows

    @property
    def distribution(self) -> ActionDistribution:
        """What the policy's raw output means."""
        actor = self.policy_module()
        return actor.distribution if isinstance(actor, StochasticActor) else distribution_of(self.action_space)

    def _raw(self, outputs: Tensor) -> Tensor:
        """The policy's raw output, of the first network's output [..., out]."""
        return outputs[..., :-1] if self.share_encoders else outputs

    # --- hidden states ---------------------------------------------------------------------------------------------

    @property
    def hidden_state_architecture(self) -> dict[str, tuple[int, int]]:
        """Key of each part of the hidden state -> (layers, units); empty for a feed-forward policy."""
        if not self.recurrent:
            return {}
        networks: dict[str, Any] = {name: getattr(self, name) for name in self.networks}
        return {
            f"{name}_{key}": shape
            for name, network in networks.items()
            for key, shape in network.hidden_state_architecture.items()
        }

    def get_initial_hidden_state(self, num_envs: int = 1) -> HiddenStates:
        """Zeros [layers, E, units] under every key of `hidden_state_architecture`: the start of an episode."""
        like = next(iter(self.policy_module().parameters())).detach()
        shapes = self.hidden_state_architecture.items()
        return {key: like.new_zeros(layers, num_envs, units) for key, (layers, units) in shapes}

    def carry_hidden_state(self, hidden_state: HiddenStates) -> HiddenStates:
        """Hidden states of running episodes, for the networks as the last architecture mutation left them."""
        found: HiddenStates = {}
        networks: dict[str, Any] = {name: getattr(self, name) for name in self.networks}
        for name, network in networks.items():
            (own,) = hidden_of(name, hidden_state)
            shapes = {key: (part.shape[0], part.shape[2]) for key, part in own.items()}
            changed = shapes != network.hidden_state_architecture
            kept = network.carry_hidden_state(own) if changed else own
            found |= {f"{name}_{key}": part for key, part in kept.items()}
        return found

    def follow_mutation(self) -> None:
        """Runs after every mutation: hidden states of running episodes follow networks that have changed."""
        if self._hidden is None:
            return
        shapes = {key: (part.shape[0], part.shape[2]) for key, part in self._hidden.items()}
        if shapes != self.hidden_state_architecture:
            self._hidden = self.carry_hidden_state(self._hidden)

    def sequence_limit(self, steps: int) -> int:
        """Most steps of a training sequence, in a rollout of `steps`."""
        encoder = getattr(self.actor, "encoder", None)
        limit = self.max_seq_len or getattr(encoder, "max_seq_len", None) or steps
        return min(int(limit), steps) if self.bptt_sequence_type != "maximum" else steps

    def recur(self, engine: UpdateEngine, obs: Any, hidden: HiddenStates) -> tuple[Tensor, Tensor, HiddenStates]:
        """One step of both networks: (raw output [..., E, out], values [..., E], next hidden states), as constants."""
        found: HiddenStates = {}
        outputs = []
        with torch.no_grad():
            for name in self.networks:
                output, state = engine.frozen(name)(obs, *hidden_of(name, hidden))
                outputs.append(output)
                found |= {f"{name}_{key}": part for key, part in state.items()}
        return outputs[0], outputs[-1][..., -1], found

    def begin_episodes(self) -> None:
        """All environments that this agent is evaluated in begin an episode."""
        self._playing = None

    # --- acting ----------------------------------------------------------------------------------------------------

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one action as it is stored."""
        space = self.action_space
        if isinstance(space, gym.spaces.Discrete):
            return ()
        return tuple(space.shape or (1,))

    def greedy(self, outputs: Tensor, mask: np.ndarray | None = None) -> np.ndarray:  # type: ignore[override]
        """The most probable actions [..., *action_shape]; of Box the mean (its tanh where squashed)."""
        return self._shaped(self.distribution.mode(self._raw(outputs), _legal(mask, outputs)))

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        """Standard normal numbers for Box, uniform ones for the discrete spaces, [*shape, ...]."""
        kind = self.distribution
        draw = rng.standard_normal if kind.is_continuous else rng.random
        return (draw((*shape, *kind.numbers_shape)),)

    def explore(
        self, outputs: Tensor, draws: tuple[np.ndarray, ...], epsilon: float = 0.0, mask: np.ndarray | None = None
    ) -> np.ndarray:
        """A sample of the policy [..., *action_shape]; `epsilon` has no meaning."""
        return self.sample(outputs, draws, mask)[0]

    def sample(
        self, outputs: Tensor, draws: tuple[np.ndarray, ...], mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(actions [..., *action_shape] to store, their log probabilities [...])."""
        kind, legal, outputs = self.distribution, _legal(mask, outputs), self._raw(outputs)
        action = kind.sample(outputs, torch.from_numpy(draws[0]).to(outputs), legal)
        log_prob: np.ndarray = kind.log_prob(outputs, action, legal).cpu().numpy()
        return self._shaped(action), log_prob

    def _shaped(self, action: Tensor) -> np.ndarray:
        array: np.ndarray = action.cpu().numpy()
        if isinstance(self.action_space, gym.spaces.Discrete):
            return array
        return array.reshape(*array.shape[:-1], *self.action_shape)

    def environment_action(self, action: np.ndarray) -> np.ndarray:
        """Stored actions [..., *action_shape] as the environment takes them: clipped, or scaled where squashed."""
        space = self.action_space
        if isinstance(space, gym.spaces.Box):
            if self.distribution.kind == "squashed":
                action = rescale_action(action, space.low, space.high)
            clipped: np.ndarray = np.clip(action, space.low, space.high).astype(space.dtype, copy=False)
            return clipped
        if isinstance(space, gym.spaces.MultiBinary):
            return action.astype(np.int8)
        if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
            numbered: np.ndarray = action + space.start
            return numbered
        return action

    def get_action(  # type: ignore[override]
        self, obs: Any, action_mask: Any = None, hidden_state: Any = None, *, training: bool | None = None
    ) -> tuple[Any, ...]:
        """(action, log probability, entropy, value) for observations; sampled while `training`, else greedy.

        A recurrent agent returns the next hidden state as a fifth.

        Args:
            obs: one observation or a batch [E, ...], numpy or torch.
            action_mask: [E, ΣA] or [ΣA], 1 = legal, for the discrete spaces.
            hidden_state: of a recurrent agent, key -> [layers, E, units]; None starts an episode.
            training: the agent's own mode where it is not given.

        Returns:
            numpy arrays [E, *action_shape], [E], [E], [E]. While training, Box actions are neither clipped nor scaled:
            see `environment_action`, which a training loop of your own calls. Otherwise they are clipped to the space,
            and scaled to it where squashed; their log probability is that of the action before.
        """
        outputs, value, state = self._run(obs, hidden_state)
        mask = None
        if action_mask is not None:
            mask = np.array(np.broadcast_to(np.asarray(action_mask, bool), self._raw(outputs).shape))
            if not mask.any(axis=-1).all():
                raise ShapeError(f"{self.algo}.get_action got an action_mask that allows no action in some row")
        kind, legal = self.distribution, _legal(mask, outputs)
        explores = self.training if training is None else training
        if explores:
            draws = self.draw_exploration(self._exploration, tuple(outputs.shape[:-1]))
            action, log_prob = self.sample(outputs, draws, mask)
        else:
            chosen = kind.mode(self._raw(outputs), legal)
            action, log_prob = self._shaped(chosen), kind.log_prob(self._raw(outputs), chosen, legal).cpu().numpy()
        entropy = -log_prob if kind.kind == "squashed" else kind.entropy(self._raw(outputs), legal).cpu().numpy()
        if not explores and isinstance(self.action_space, gym.spaces.Box):
            action = self.environment_action(action)
        found = (action, log_prob, entropy, value.cpu().numpy())
        return (*found, state) if self.recurrent else found

    def _run(self, obs: Any, hidden_state: Any = None) -> tuple[Tensor, Tensor, HiddenStates]:
        """Raw output [E, out], values [E] and next hidden states by the agent's own modules, as constants."""
        if not self.recurrent:
            with torch.no_grad():
                outputs = self.policy_output(obs)
                if self.share_encoders:
                    return outputs, outputs[..., -1], {}
                seen = self.network_inputs(self.critic, obs)
                return outputs, raw_output(self.critic)(seen)[..., -1], {}
        lanes = self.policy_network().preprocess(obs).shape[0]
        hidden = self.get_initial_hidden_state(lanes) if hidden_state is None else dict(hidden_state)
        return self.recur(ModuleEngine(self), obs, hidden)

    def _greedy(self, obs: Any, mask: np.ndarray | None = None) -> np.ndarray:
        outputs, _, self._playing = self._run(obs, self._playing)
        return self.environment_action(self.greedy(outputs, mask))


def hidden_of(name: str, hidden: Mapping[str, Tensor]) -> tuple[HiddenStates, ...]:
    """What a network takes beside observations: its own hidden state, where there is one."""
    own = {key.removeprefix(f"{name}_"): part for key, part in hidden.items() if key.startswith(f"{name}_")}
    return (own,) if own else ()


def _legal(mask: np.ndarray | None, like: Tensor) -> Tensor | None:
    return None if mask is None else torch.as_tensor(np.array(mask), device=like.device).bool()
