"""Hidden states of an agent with recurrent networks.

Keys are `<network>_<part>`, such as `actor_encoder_h`, or `shared_<part>` for one network with policy and value. A part
is [..., layers, E, units], with a leading member axis over rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agilerl.algorithms.base.rollouts import HiddenStates, hidden_of
from agilerl.engine.protocol import UpdateEngine
from agilerl.modules.lstm import EvolvableLSTM
from agilerl.modules.paths import resolve
from agilerl.networks.base import EvolvableNetwork

if TYPE_CHECKING:
    from agilerl.algorithms.ppo import PPO


def _key(agent: PPO, network: str, part: str) -> str:
    return f"{'shared' if agent.share_encoders else network}_{part}"


def hidden_state_architecture(agent: PPO) -> dict[str, tuple[int, int]]:
    """Key of each part of the hidden state -> (layers, units); empty for a feed-forward policy."""
    if not agent.recurrent:
        return {}
    each = [(name, resolve(agent, name).hidden_state_architecture) for name in agent.networks]
    return {_key(agent, name, part): shape for name, shapes in each for part, shape in shapes.items()}


def carried(agent: PPO, hidden: HiddenStates) -> HiddenStates:
    """Convert hidden states of running episodes to the networks' current architectures."""
    if _shapes(hidden) == agent.hidden_state_architecture:
        return hidden
    converted: HiddenStates = {}
    for name in agent.networks:
        network, (old,) = resolve(agent, name), hidden_of(name, hidden)
        state = old if _shapes(old) == network.hidden_state_architecture else network.carry_hidden_state(old)
        converted |= {_key(agent, name, part): value for part, value in state.items()}
    return converted


def _shapes(hidden: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    return {key: (part.shape[0], part.shape[2]) for key, part in hidden.items()}


def sequence_limit(agent: PPO, steps: int) -> int:
    """Return the longest training sequence in a rollout of `steps`."""
    encoder = agent.actor.encoder if isinstance(agent.actor, EvolvableNetwork) else None
    limit = agent.max_seq_len or (encoder.max_seq_len if isinstance(encoder, EvolvableLSTM) else None) or steps
    return min(int(limit), steps) if agent.bptt_sequence_type != "maximum" else steps


def recur(agent: PPO, engine: UpdateEngine, obs: Any, hidden: HiddenStates) -> tuple[Tensor, Tensor, HiddenStates]:
    """Run one step of both networks without gradients: (raw output [..., E, out], values [..., E], hidden states)."""
    states: HiddenStates = {}
    outputs = []
    with torch.no_grad():
        for name in agent.networks:
            frozen: Any = engine.frozen(name)
            output, state = frozen(obs, *hidden_of(name, hidden))
            outputs.append(output)
            states |= {_key(agent, name, part): value for part, value in state.items()}
    return outputs[0], outputs[-1][..., -1], states
