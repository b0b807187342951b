"""Learning from transitions: sampled ones of either published dialect as a batch, and the update of one agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from agilerl import tree
from agilerl.algorithms.observations import as_tensor, column, sampled_observations
from agilerl.engine.batches import TransitionBatch, UpdateResult
from agilerl.engine.learner import learn_alone
from agilerl.engine.modules import soft_update
from agilerl.errors import ShapeError
from agilerl.tree import concatenate

if TYPE_CHECKING:
    from agilerl.algorithms.single_agent import RLAlgorithm

MASKS = ("next_mask", "obs_mask")
FIELDS = ("obs", "action", "reward", "next_obs", "done")
OLD_FIELDS = {"state": "obs", "next_state": "next_obs"}


def experience_fields(experiences: Any) -> dict[str, Any]:
    """Sampled transitions in either dialect as obs, action, reward, next_obs, done and what else was stored."""
    if isinstance(experiences, Mapping) or hasattr(experiences, "keys"):
        found = {OLD_FIELDS.get(str(k), str(k)): experiences[k] for k in experiences.keys()}  # noqa: SIM118
    elif isinstance(experiences, tuple | list) and len(experiences) >= len(FIELDS):
        found = dict(zip(FIELDS, experiences, strict=False))
    else:
        raise ShapeError(
            f"learn got experiences of type {type(experiences).__name__}; expected a TensorDict, a mapping or a tuple "
            f"with {', '.join(FIELDS)}. fix: agent.learn(memory.sample(agent.batch_size))"
        )
    missing = [name for name in FIELDS if name not in found]
    if missing:
        raise ShapeError(f"learn got experiences without {', '.join(missing)}; it has {', '.join(found)}.")
    return found


def learn(agent: RLAlgorithm, experiences: Any, n_experiences: Any, per: bool) -> Any:
    """One update of an agent that learns from replay; see `RLAlgorithm.learn_from`."""
    batch = agent.make_batch(experiences if n_experiences is None else _n_step(agent, experiences, n_experiences))
    result = agent.learn_batch(batch)
    if not per:
        return agent.report(result)
    priorities = None if result.priorities is None else result.priorities.detach().cpu().numpy()
    return agent.report(result), experience_fields(experiences).get("idxs"), priorities


def _n_step(agent: RLAlgorithm, experiences: Any, n_experiences: Any) -> dict[str, Any]:
    """The n-step transitions with the weights of the one-step ones."""
    first, later = experience_fields(experiences), experience_fields(n_experiences)
    if len(first["reward"]) != len(later["reward"]):
        raise ShapeError(
            f"{agent.algo}.learn got {len(first['reward'])} experiences and {len(later['reward'])} n_experiences. "
            "fix: n_step_memory.sample_from_indices(experiences['idxs'])."
        )
    if "discount" not in later:
        raise ShapeError(
            f"{agent.algo}.learn got n_experiences without discount, so how many steps they span is not known. "
            "fix: sample a MultiStepReplayBuffer, or give discount = gamma**k * (1 - done) [B]."
        )
    return later | ({"weights": first["weights"]} if "weights" in first else {})


def learn_batch(agent: RLAlgorithm, batch: Any, plain: bool = False) -> UpdateResult:
    """One update from a prepared batch [B, ...]; `plain` forces plain torch modules. No member axis results."""
    agent.remember_observations(batch.obs)
    return learn_alone(agent, batch, plain)


def make_batch(agent: RLAlgorithm, experiences: Any) -> TransitionBatch:
    """Sampled transitions as tensors on the agent's device.

    Args:
        experiences: obs, action, reward, next_obs, done, and where there are such entries `discount` [B] or
            [B, 1], γ^k · (1 − done) of transitions that span k steps (one step with the agent's own γ without
            it), `weights` [B] or [B, 1], the importance weights of prioritised replay, and `next_mask` [B, Σn].
    """
    given = experience_fields(experiences)
    dtype = next(iter(agent.policy_module().parameters())).dtype
    space, device, owner = agent.observation_space, agent.device, f"{agent.algo}.learn"
    obs, next_obs = (sampled_observations(space, given[k], device, owner) for k in ("obs", "next_obs"))
    count = tree.count_rows(obs)
    counts = [len(leaf) for leaf in tree.leaves((obs, next_obs))]
    if set(counts) != {count}:
        raise ShapeError(
            f"{owner} got different numbers of observations in obs and next_obs (or their parts): {counts}. "
            "fix: agent.learn(memory.sample(agent.batch_size))."
        )
    reward, done = (column(k, given[k], count, device, owner).to(dtype) for k in ("reward", "done"))
    action = as_tensor(given["action"], device, f"{owner} got actions", "numbers")
    weight = torch.full((count,), 1 / count, dtype=dtype, device=reward.device)
    extra = {k: column(k, given[k], count, device, owner) for k in ("weights", "discount") if k in given}
    if "weights" in extra:
        weight = weight * extra["weights"].to(dtype)
    discount = extra["discount"].to(dtype) if "discount" in extra else None
    next_mask, obs_mask = (_stored_mask(agent, given[k]) if k in given else None for k in MASKS)
    drawn = agent.draw_noise(agent._exploration, (1, count))
    return TransitionBatch(
        obs,
        agent.prepare_action(action, count),
        reward,
        next_obs,
        done,
        weight,
        next_mask,
        discount,
        obs_mask=obs_mask,
        noise={name: torch.as_tensor(x[0]).to(reward.device, dtype) for name, x in drawn.items()},
        number=agent.learn_counter + 1,
    )


def _stored_mask(agent: RLAlgorithm, given: Any) -> Tensor:
    """Masks as the environment gave them, one entry per choice of each component, as masks of combinations."""
    legal = agent.legal_choices(torch.as_tensor(given).numpy(force=True))
    return torch.from_numpy(legal).to(agent.device).bool()


def with_observations(experiences: Any, change: Any) -> dict[str, Any]:
    """Sampled transitions by name, with `change` applied to all observations."""
    fields = experience_fields(experiences)
    return {**fields, **{name: change(fields[name]) for name in ("obs", "next_obs")}}


def side_by_side(first: TransitionBatch, second: TransitionBatch) -> TransitionBatch:
    """Both batches as one, each with its own weights: their losses add."""
    joined: dict[str, Any] = {
        name: concatenate((value, getattr(second, name))) if getattr(second, name) is not None else None
        for name, value in vars(first).items()
        if isinstance(value, Tensor) or name in ("obs", "next_obs")  # nested for Dict and Tuple spaces
    }
    return replace(first, **joined)


# --- methods of agents with a policy and critics, which take them over by name ---------------------------------------


def critics_criterion(self: RLAlgorithm) -> nn.Module:
    """The critics' loss, which `update` writes out with row weights: their `criterion`."""
    return nn.MSELoss()


def track(self: Any, net: nn.Module, target: nn.Module) -> None:
    """One soft update of `target` towards `net` with `tau`."""
    soft_update(net, target, self.tau)


def actor_and_critic_loss(self: RLAlgorithm, result: UpdateResult) -> tuple[float | None, float]:
    """(actor loss, or None where the policy was not updated; critic loss), both before the update."""
    return None if result.actor_loss is None else float(result.actor_loss), float(result.loss)
