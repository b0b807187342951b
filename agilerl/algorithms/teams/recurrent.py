"""Hidden states of teams: one per agent, lane and recurrent network of the agent's group.

Keys are `<agent>:<kind>_<part>`, such as `wolf_0:actors_encoder_h`. A part is [..., layers, E, units], with a leading
member axis over rows. An agent's state is updated while the agent is present, unchanged while it is absent, and zero at
the start of its episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agilerl import tree
from agilerl.algorithms.base.rollouts import HiddenStates
from agilerl.algorithms.teams.actor_critics import own_rows
from agilerl.engine.protocol import UpdateEngine
from agilerl.envs.teams import PRESENT
from agilerl.errors import ShapeError
from agilerl.modules.lstm import EvolvableLSTM
from agilerl.modules.paths import resolve

if TYPE_CHECKING:
    from agilerl.algorithms.teams.on_policy import TeamPPO

NETWORKS = ("actors", "critics")


def remembers(team: TeamPPO) -> bool:
    """Whether any network of the team is recurrent."""
    return any(_parts(team, group) for group in team.grouped_agents)


def _parts(team: TeamPPO, group: str) -> list[tuple[str, str, tuple[int, int]]]:
    """Return (kind of network, part, (layers, units)) of all hidden states of an agent of the group."""
    networks = [(kind, resolve(team, f"{kind}.{group}")) for kind in NETWORKS]
    return [
        (kind, part, shape)
        for kind, network in networks
        if network.recurrent
        for part, shape in network.hidden_state_architecture.items()
    ]


def _key(agent: str, kind: str, part: str) -> str:
    return f"{agent}:{kind}_{part}"


def hidden_state_architecture(team: TeamPPO) -> dict[str, tuple[int, int]]:
    """Return key of each part of the hidden state -> (layers, units); empty for a feed-forward team."""
    return {
        _key(agent, kind, part): shape
        for group, agents in team.grouped_agents.items()
        for kind, part, shape in _parts(team, group)
        for agent in agents
    }


def sequence_limit(team: TeamPPO, steps: int) -> int:
    """Return the maximum length of a training sequence in a rollout of `steps`."""
    encoders = [resolve(team, f"actors.{group}").encoder for group in team.grouped_agents]
    limits = [e.max_seq_len for e in encoders if isinstance(e, EvolvableLSTM) and e.max_seq_len]
    limit = team.max_seq_len or (min(limits) if limits else steps)
    return min(int(limit), steps) if team.bptt_sequence_type != "maximum" else steps


def of_group(team: TeamPPO, group: str, hidden: Mapping[str, Tensor], axis: int = -2) -> HiddenStates:
    """Return the hidden states of a group's agents, concatenated along `axis`, with keys `<kind>_<part>`."""
    agents = team.grouped_agents[group]
    return {
        f"{kind}_{part}": torch.cat([hidden[_key(agent, kind, part)] for agent in agents], axis)
        for kind, part, _ in _parts(team, group)
    }


def forget(team: TeamPPO, hidden: Mapping[str, Tensor], over: Tensor) -> HiddenStates:
    """Return the hidden states with those of agents whose episodes ended, `over` [..., E, M], set to zero."""
    states: HiddenStates = {}
    for k, agent in enumerate(team.agent_ids):
        rows = over[..., k].unsqueeze(-2).unsqueeze(-1)
        for kind, part, _ in _parts(team, team.get_group_id(agent)):
            key = _key(agent, kind, part)
            states[key] = hidden[key].masked_fill(rows.to(hidden[key].device), 0)
    return states


def recur(
    team: TeamPPO, engine: UpdateEngine, obs: Any, hidden: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor, HiddenStates]:
    """Run one step of all networks: (outputs [..., E, F], raw values [..., E, M], next hidden states), detached.

    Hidden states of absent agents are unchanged.
    """
    obs = tree.map_leaves(lambda x: torch.as_tensor(x, device=team.device), obs)
    present, axis = obs[PRESENT].bool(), obs[PRESENT].dim() - 2
    by_kind: dict[str, dict[str, Tensor]] = {kind: {} for kind in NETWORKS}
    after: HiddenStates = {}
    with torch.no_grad():
        for group, agents in team.grouped_agents.items():
            joined = team.hidden_of_group(group, hidden)
            inputs = {"actors": (own_rows(obs, agents, axis),), "critics": team.value_inputs(obs, group, axis)}
            for kind in NETWORKS:
                kind_hidden = {k.partition("_")[2]: x for k, x in joined.items() if k.startswith(f"{kind}_")}
                run: Any = engine.frozen(f"{kind}.{group}")
                output, state = run(*inputs[kind], kind_hidden) if kind_hidden else (run(*inputs[kind]), {})
                by_kind[kind] |= dict(zip(agents, output.chunk(len(agents), axis), strict=True))
                for part, rows in state.items():
                    for agent, new in zip(agents, rows.chunk(len(agents), -2), strict=True):
                        key, there = _key(agent, kind, part), present[..., team.agent_ids.index(agent)]
                        after[key] = torch.where(there.unsqueeze(-2).unsqueeze(-1), new, hidden[key])
    outputs = torch.cat([by_kind["actors"][agent] for agent in team.agent_ids], -1)
    return outputs, torch.cat([by_kind["critics"][agent] for agent in team.agent_ids], -1), after


# --- acting -----------------------------------------------------------------------------------------------------------


def checked_hidden(team: TeamPPO, hidden: Any, lanes: int) -> HiddenStates:
    """Return the given hidden states, or zeros for None.

    Raises:
        ShapeError: hidden states for a feed-forward team, or with wrong keys or shapes.
    """
    shapes = team.hidden_state_architecture
    if hidden is None:
        return team.get_initial_hidden_state(lanes)
    if not shapes:
        raise ShapeError(f"{team.algo}.get_action got a hidden_state; this team has no memory. fix: recurrent=True.")
    expected = {key: (layers, lanes, units) for key, (layers, units) in shapes.items()}
    got = {key: tuple(part.shape) for key, part in dict(hidden).items()}
    wrong = next((key for key in {**expected, **got} if expected.get(key) != got.get(key)), None)
    if wrong is not None:
        raise ShapeError(
            f"{team.algo}.get_action got a hidden_state with {wrong!r} of shape {got.get(wrong)}; expected "
            f"{expected.get(wrong)}. fix: what the last get_action gave, or get_initial_hidden_state(num_envs)."
        )
    return dict(hidden)
