"""Acting with a stochastic policy: the published `get_action` and `evaluate_actions`, on the agent's own modules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.actions import legal_actions, seen_with_mask
from agilerl.algorithms.base.policy_actions import legal_tensor, log_prob_and_entropy, stored
from agilerl.algorithms.base.rollouts import hidden_of
from agilerl.engine.modules import raw_output
from agilerl.engine.protocol import Draws
from agilerl.errors import ShapeError
from agilerl.modules.paths import resolve

if TYPE_CHECKING:
    from agilerl.algorithms.ppo import PPO


def persistent(last: np.ndarray, fresh: np.ndarray, persistence: float) -> np.ndarray:
    """Return standard normal noise whose correlation with the noise of the last step is `persistence`."""
    noise: np.ndarray = persistence * last + math.sqrt(1 - persistence * persistence) * fresh
    return noise


def get_action(
    agent: PPO, obs: Any, action_mask: Any = None, hidden_state: Any = None, training: bool | None = None
) -> tuple[Any, ...]:
    """See `PPO.get_action`."""
    obs, action_mask = seen_with_mask(agent, obs, action_mask)
    outputs, value, state = agent._run(obs, hidden_state)
    mask = legal_actions(agent, action_mask, len(outputs))
    kind, legal = agent.distribution, legal_tensor(mask, outputs)
    explores = agent.training if training is None else training
    if explores:
        action, log_prob = agent.sample(outputs, _draws(agent, tuple(outputs.shape[:-1])), mask)
    else:
        chosen = kind.mode(agent._raw(outputs), legal)
        action = stored(agent.action_space, chosen)
        log_prob = kind.log_prob(agent._raw(outputs), chosen, legal).cpu().numpy()
    entropy = -log_prob if kind.kind == "squashed" else kind.entropy(agent._raw(outputs), legal).cpu().numpy()
    if not explores:
        action = agent.environment_action(action)
    result = (action, log_prob, entropy, value.cpu().numpy())
    return (*result, state) if agent.recurrent else result


def _draws(agent: PPO, shape: tuple[int, ...]) -> Draws:
    """Draw the random numbers of one call; persistent noise continues from the last call with as many lanes."""
    draws = agent.draw_exploration(agent._exploration, shape)
    if agent.noise_persistence and agent.distribution.is_continuous:
        if agent._noise is not None and agent._noise.shape == draws[0].shape:
            draws = (persistent(agent._noise, draws[0], agent.noise_persistence),)
        agent._noise = draws[0]
    return draws


def evaluate_actions(
    agent: PPO, obs: Any, actions: Any, hidden_state: Mapping[str, Tensor] | None, action_mask: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """See `PPO.evaluate_actions`."""
    obs, action_mask = seen_with_mask(agent, obs, action_mask, warns=False)
    if agent.recurrent:
        rows = agent.policy_network().preprocess(obs).shape[0]
        hidden = agent.get_initial_hidden_state(rows) if hidden_state is None else hidden_state
        each = [resolve(agent, n).output(obs, *hidden_of(n, hidden))[0] for n in agent.networks]
    else:
        modules = [resolve(agent, name) for name in agent.networks]
        each = [raw_output(module)(agent.network_inputs(module, obs)) for module in modules]
    raw, value = agent._raw(each[0]), each[-1][..., -1]
    tensor = torch.as_tensor(actions, device=raw.device)
    if tensor.numel() != len(raw) * math.prod(agent.action_shape):
        raise ShapeError(
            f"{agent.algo}.evaluate_actions got actions of shape {tuple(tensor.shape)} for {len(raw)} observations; "
            f"expected {(len(raw), *agent.action_shape)}. fix: what get_action returned for them."
        )
    kind = agent.distribution
    action = agent._row(tensor.reshape(len(raw), *agent.action_shape))
    action = action.to(raw.dtype) if kind.is_continuous else action
    mask = None if action_mask is None else legal_tensor(legal_actions(agent, action_mask, len(raw)), raw)
    return *log_prob_and_entropy(kind, raw, action, mask), value
