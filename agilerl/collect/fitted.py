"""Fitness without an environment: batched fitted Q evaluation of all members on held-out data.

See `docs/offline_evaluation.md` for its accuracy and failure modes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.adapted import adapted
from agilerl.algorithms.base.building import build, register_network
from agilerl.algorithms.base.single_agent import RLAlgorithm
from agilerl.collect.fitness import FitnessEvaluator, PopulationEvaluation
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.core.options import LoopOptions
from agilerl.core.rng import Purpose, seeds, stream
from agilerl.core.tree import Tree, map_leaves
from agilerl.data.dataset import Dataset
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import Network, UpdateEngine, UpdateResult
from agilerl.errors import AlgorithmError, ConfigError, EnvError
from agilerl.losses.actor_critic import weighted_squared_error
from agilerl.losses.fitted import centre_and_scale, centred_reward, discounted_returns, fitted_target, value_bounds
from agilerl.losses.td import take
from agilerl.modules.base import EvolvableModule
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.q_networks import ContinuousQNetwork, QNetwork

NETWORK: dict[str, Any] = {
    "encoder_config": {"hidden_size": [64]},
    "latent_dim": 32,
    "head_config": {"hidden_size": [64]},
}
LR, TAU, BATCH = 1e-3, 0.05, 256
TOGETHER = 25  # updates whose rows are fetched in one call
AT_ONCE = 4_096  # rows per policy forward pass
EPSILON = 1e-6  # added to the variance of observations
SPLIT = 1  # stream key of the data split; 0 is the key of a generation's rows


# --- held-out data ---------------------------------------------------------------------------------------------------


def hold_out(data: Dataset, share: float, run_seed: int) -> tuple[Dataset, Dataset]:
    """Split into (training data, held-out data) by whole random episodes; deterministic given the run seed.

    Args:
        share: fraction of the episodes to hold out; at least one and never all.

    Raises:
        ConfigError: fewer than two episodes.
    """
    done = np.asarray(data.ended).copy()
    done[-1:] = True
    episode = np.concatenate(([0], np.cumsum(done)[:-1])) if len(done) else np.zeros(0, int)
    count = int(done.sum())
    if count < 2:
        raise ConfigError(
            f"fitness='fqe' holds whole episodes out, and the data set has {count}. fix: data that say where episodes "
            "end (terminals, timeouts), or an environment to evaluate in."
        )
    chosen = stream(run_seed, Purpose.FITTED_EVALUATION, member=SPLIT).permutation(count)
    out = np.zeros(count, bool)
    out[chosen[: min(count - 1, max(1, round(share * count)))]] = True
    held = out[episode]
    return _part(data, ~held), _part(data, held)


def _part(data: Dataset, rows: np.ndarray) -> Dataset:
    """Select rows of a data set by mask [N]."""
    obs, later = (trees.take(x, rows) for x in (data.obs, data.next_obs))
    names = ("action", "reward", "terminated", "ended", "obs_mask", "next_mask")
    fields = {name: vars(data)[name][rows] for name in names if vars(data)[name] is not None}
    return replace(data, obs=obs, next_obs=later, **fields)


def unjudged(agent: foreign.Agent) -> AlgorithmError:
    """Error for an agent whose policy cannot be evaluated from single observations by the engine."""
    adapted_agent = adapted(agent)
    reason = (
        "writes texts token by token" if adapted_agent.reads_texts else "brings its own learn(), get_action() or test()"
    )
    reason = "is recurrent" if adapted_agent.is_recurrent else reason
    return AlgorithmError(
        f"fitness='fqe' judges policies of single observations in the engine, and {type(agent).__name__} {reason}. "
        "fix: an environment to evaluate in."
    )


# --- evaluator --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PolicyRows:
    """Held-out rows with the policy's next actions; every tensor has a leading member axis before the rows.

    Attributes:
        obs, next_obs: [..., B, ...] network inputs. action: [..., B] int64 or [..., B, A] raw, from the data.
            next_action: the same, chosen by the policy in `next_obs`.
        reward, discount, weight: [..., B].
    """

    obs: Any
    action: Tensor
    reward: Tensor
    next_obs: Any
    next_action: Tensor
    discount: Tensor
    weight: Tensor

    def of_member(self, member: int) -> PolicyRows:
        """Rows of one member, without the member axis."""
        return PolicyRows(**{name: map_leaves(lambda x: x[member], value) for name, value in vars(self).items()})


class FittedQ(RLAlgorithm):
    """Q-function of a fixed policy, by fitted Q evaluation (Le et al. 2019, arXiv:1903.08738, algorithm 3).

    The paper's regressions are replaced by Adam steps, and its previous iterate by a soft target.

    Args:
        low, high: bounds of targets. statistics: mean and variance [I] of vector observations, else None.
    """

    policy_class = QNetwork

    critic: EvolvableModule
    critic_target: EvolvableModule

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        index: int = 0,
        device: str | torch.device = "cpu",
        *,
        low: float,
        high: float,
        statistics: tuple[np.ndarray, np.ndarray] | None = None,
        dtype: torch.dtype = torch.float32,
        seed: int,
    ) -> None:
        super().__init__(observation_space, action_space, index, device=device, seed=seed)
        self.lr, self.tau, self.low, self.high = LR, TAU, low, high
        self.net_config = None if statistics is None else NETWORK
        kind = ContinuousQNetwork if isinstance(action_space, gym.spaces.Box) else QNetwork
        network = build(self, kind, None, "critic", 0).to(dtype)
        if statistics is not None and isinstance(network, EvolvableNetwork):
            network.normalize_observations = True
            network.set_observation_statistics(*statistics, EPSILON)
        self.critic = network
        register_network(self, "critic", "critic_target", "optimizer", "lr", policy=True)

    def update_hyperparameters(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in ("lr", "tau", "low", "high")}

    def update(self, engine: UpdateEngine, batch: PolicyRows) -> UpdateResult:
        """One Adam step of mean (y − Q(s, a))², one soft target update."""
        hp = engine.hp
        with torch.no_grad():
            later = self._value(engine.target("critic"), batch.next_obs, batch.next_action)
            target = fitted_target(batch.reward, batch.discount, later, hp["low"], hp["high"])
        value = self._value(engine.network("critic"), batch.obs, batch.action)
        loss, _ = weighted_squared_error(value, target, batch.weight)
        engine.minimise("optimizer", loss)
        engine.track("critic", hp["tau"])
        return UpdateResult(loss.detach())

    def state_values(self, engine: UpdateEngine, rows: Mapping[str, Any]) -> Tensor:
        """Q⁻(s, a) [..., B] of rows {"obs", "action"}."""
        with torch.no_grad():
            return self._value(engine.target("critic"), rows["obs"], rows["action"])

    def _value(self, network: Network, obs: Tree, action: Tensor) -> Tensor:
        if isinstance(self.action_space, gym.spaces.Box):
            return network(obs, action).squeeze(-1)
        return take(network(obs), action)


class FittedEvaluator(FitnessEvaluator):
    """Evaluate members on held-out rows, without playing; the offline counterpart of `collect.evaluator.Evaluator`.

    A member's fitness is the mean of Q(s₀, π(s₀)) over the first observations of the held-out episodes: a discounted
    value in the reward units of the data. All members start from the same weights and see the same rows in the same
    order, so differences come from their policies alone. Nothing is carried over between generations.

    Args:
        held: the held-out rows. rows: the same rows in the agents' storage format. seed: run seed.
        check: called between updates; an exception it raises aborts the evaluation.
    """

    is_return = False

    def __init__(
        self,
        held: Dataset,
        rows: ReplayBuffer,
        options: LoopOptions,
        seed: int,
        check: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self.rows, self.options, self.seed, self.check = rows, options, seed, check or (lambda: None)
        gamma, reward = options.fqe_gamma, np.asarray(held.reward, np.float64)
        done = np.asarray(held.ended)
        self._masks = {"obs": held.obs_mask, "next_obs": held.next_mask}
        self.firsts = np.concatenate(([0], np.flatnonzero(done[:-1]) + 1))
        self.mean, self.scale = centre_and_scale(discounted_returns(reward, done, gamma))
        discount = gamma * (1.0 - np.asarray(held.terminated, np.float64))
        self._reward = torch.from_numpy(centred_reward(reward, discount, self.mean, self.scale))
        self._discount = torch.from_numpy(discount)
        self._bounds = [(bound - self.mean) / self.scale for bound in value_bounds(reward, gamma)]
        is_vector = isinstance(held.obs, np.ndarray) and held.obs.ndim == 2 and held.obs.dtype.kind == "f"
        self._statistics = (held.obs.mean(0, np.float64), held.obs.var(0, np.float64)) if is_vector else None

    def described(self, rows: int) -> str:
        """Note for the log, for a data set with this many rows."""
        gamma, episodes = self.options.fqe_gamma, len(self.firsts)
        return (
            f"fitness: values by fitted Q evaluation, discounted by {gamma:g} (a reward of 1 in every step for ever is "
            f"{1 / (1 - gamma):g}), on {episodes} held-out episodes, {len(self.rows)} of {rows} transitions; no "
            "episode is played, so eval_episodes, eval_screen, eval_share, eval_steps, confirm_episodes, "
            "rescore_episodes and a target, which is a return, are ignored"
        )

    def facts(self) -> dict[str, Any]:
        """Facts about the held-out data, for records and checkpoints."""
        return {"share": self.options.held_out, "episodes": len(self.firsts), "rows": len(self.rows)}

    def evaluate(self, agents: Sequence[Any], number: int, episodes: int | None = None) -> PopulationEvaluation:
        with self.adopts(agents) as learner:
            return PopulationEvaluation(self.population(learner, number))

    def population(self, learner: Learner, generation: int) -> list[float]:
        """Return the estimated value of every member."""
        agents: list[Any] = learner.agents
        lead, like = agents[0], next(iter(agents[0].policy_module().parameters()))
        network_seed = int(seeds(self.seed, Purpose.FITTED_EVALUATION, 1, generation)[0])
        judges = [
            FittedQ(
                lead.observation_space,
                lead.action_space,
                n,
                lead.device,
                low=self._bounds[0],
                high=self._bounds[1],
                statistics=self._statistics,
                dtype=like.dtype,
                seed=network_seed,
            )
            for n in range(len(agents))
        ]
        wanted = "sequential" if self.options.learner == "sequential" else "auto"
        judging = Learner(judges, choose(judges, wanted), learner.kernels)
        every = np.arange(len(self.rows))
        later = self._policies(learner, every, "next_obs")
        for chosen in self._draws(generation):
            self.check()
            for number in range(len(judging.groups)):
                for batch in self._batches(judging, number, chosen, later):
                    judging.learn(number, batch)
        return self._values(judging, self._policies(learner, self.firsts, "obs"))

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _draws(self, generation: int) -> Iterator[np.ndarray]:
        """Yield row indices [K, B] of the updates, K at a time."""
        rng, remaining = stream(self.seed, Purpose.FITTED_EVALUATION, generation), self.options.fqe_updates
        while remaining > 0:
            count = min(TOGETHER, remaining)
            yield rng.integers(len(self.rows), size=(count, BATCH))
            remaining -= count

    def _batches(self, judging: Learner, number: int, chosen: np.ndarray, later: Tensor) -> Iterator[PolicyRows]:
        """Yield a group's batches for the updates of rows `chosen` [K, B]; `later` [N, R, ...] is from `_policies`."""
        group, data = judging.groups[number], self.rows.gather(chosen)
        like = next(iter(group.lead.critic.parameters()))
        members, device = group.members, like.device
        obs, next_obs = (judging.prepare(number, data[name]) for name in ("obs", "next_obs"))
        where = torch.from_numpy(chosen)
        reward, discount = (x[where].to(device, like.dtype) for x in (self._reward, self._discount))
        action, next_action = _as_input(data["action"], like), _as_input(later[members][:, where], like)
        weight = torch.full((len(members), BATCH), 1 / BATCH, dtype=like.dtype, device=device)
        for k in range(len(chosen)):
            yield PolicyRows(
                obs=_for_all(obs, k, len(members)),
                action=_for_all(action, k, len(members)),
                reward=_for_all(reward, k, len(members)),
                next_obs=_for_all(next_obs, k, len(members)),
                next_action=next_action[:, k],
                discount=_for_all(discount, k, len(members)),
                weight=weight,
            )

    def _policies(self, learner: Learner, rows: np.ndarray, name: str) -> Tensor:
        """Greedy actions of every member in the observations `name` of some rows: [N, R] int64, or [N, R, A] raw."""
        parts, masks = [], self._masks[name]
        for start in range(0, len(rows), AT_ONCE):
            obs = self.rows.gather(rows[start : start + AT_ONCE])[name]
            legal = None if masks is None else learner.agents[0].legal_choices(masks[rows[start : start + AT_ONCE]])
            chosen: list[Any] = [None] * len(learner.agents)
            for group in learner.groups:
                count = len(group.members)
                expanded = map_leaves(lambda x: x.unsqueeze(0).expand(count, *x.shape), obs)  # noqa: B023
                for member, actions in zip(
                    group.members, group.lead.greedy(group.outputs(expanded), legal), strict=True
                ):
                    chosen[member] = torch.from_numpy(np.asarray(actions))
            parts.append(torch.stack(chosen))
        return torch.cat(parts, 1)

    def _values(self, judging: Learner, first_action: Tensor) -> list[float]:
        """μ + σ · mean Q⁻ over the first observations, for every member."""
        fitness = [0.0] * len(judging.agents)
        data = self.rows.gather(self.firsts)["obs"]
        for number, group in enumerate(judging.groups):
            count = len(group.members)
            prepared = judging.prepare(number, map_leaves(lambda x: x.unsqueeze(0), data))
            obs = _for_all(prepared, 0, count)
            like = next(iter(group.lead.critic.parameters()))
            values = group.values({"obs": obs, "action": _as_input(first_action[group.members], like)})
            for member, value in zip(group.members, values.double().mean(-1).tolist(), strict=True):
                fitness[member] = self.mean + self.scale * value
        return fitness


def _as_input(action: Tensor, like: Tensor) -> Tensor:
    """Move actions to the network's device; raw ones are cast to its dtype."""
    return action.to(like.device, like.dtype if action.is_floating_point() else torch.int64)


def _for_all(tree: Tree, k: int, members: int) -> Any:
    """Expand entry `k` of a tree [K, ...] to every member [N, ...], as views."""
    return map_leaves(lambda x: x[k].unsqueeze(0).expand(members, *x.shape[1:]), tree)


class NoLanes:
    """Placeholder for lanes when no environment is stepped."""

    num_lanes, backend = 1, "none"
    single_observation_space: gym.Space[Any] = gym.spaces.Discrete(1)
    single_action_space: gym.Space[Any] = gym.spaces.Discrete(1)

    def reset(self, seeds: np.ndarray | None = None) -> Any:
        """Raise EnvError."""
        raise EnvError("fitness='fqe' steps no environment, and there is none. fix: fitness='returns', and an env.")

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Any:
        """Raise EnvError."""
        return self.reset()

    def close(self) -> None:
        """No-op."""
