"""Single-agent algorithms: spaces, batches, and the choice between the row engine and plain modules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from agilerl import tree
from agilerl.algorithms.core.observations import (
    as_tensor,
    check_discrete_actions,
    check_observation_space,
    column,
    sampled_observations,
)
from agilerl.algorithms.core.playing import Playing
from agilerl.algorithms.core.registry import HyperparameterConfig, NetworkGroup
from agilerl.algorithms.core.solo import SoloRows
from agilerl.algorithms.core.update import ModuleEngine, TransitionBatch, UpdateEngine, UpdateResult, raw_output
from agilerl.errors import AlgorithmError, NotAvailableYetError, RunError, ShapeError
from agilerl.modules.base import EvolvableModule
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.joint_actions import JointActions
from agilerl.networks.spaces import space_from_json, space_to_json
from agilerl.rng import Purpose, resolve_seed, seeds, stream
from agilerl.rollouts.off_policy import uniform_actions
from agilerl.storage.cohort import MemberBinding, NetworkBinding, OptimizerBinding
from agilerl.storage.optim import rule_of
from agilerl.storage.rows_engine import column_name, dense_parts
from agilerl.threads import one_thread

FIELDS = ("obs", "action", "reward", "next_obs", "done")
OLD_FIELDS = {"state": "obs", "next_state": "next_obs"}


class RLAlgorithm(Playing):
    """An algorithm for one policy in one observation space and one action space.

    `policy_class` is the network class of the policy, by which a saved one is made again.

    Args:
        observation_space, action_space: of one environment, not of the vector.
        seed: of this agent's exploration and evaluation streams; None follows `torch.initial_seed()`.

    The other arguments are `EvolvableAlgorithm`'s.
    """

    policy_class: type[EvolvableNetwork]
    normalize_images: bool
    is_on_policy = False  # learns from its own rollouts alone

    @property
    def is_recurrent(self) -> bool:
        """Whether acting needs more than the observation: a hidden state that goes through an episode."""
        return bool(getattr(self, "recurrent", False))

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        torch_compiler: str | None = None,
        name: str | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(index, hp_config, device, accelerator, torch_compiler, name)
        for what, space in (("observation_space", observation_space), ("action_space", action_space)):
            if not isinstance(space, gym.Space):
                raise AlgorithmError(
                    f"{self.algo}: {what} must be a gymnasium space; got {type(space).__name__}. "
                    f"fix: pass env.single_{what} (or env.{what})."
                )
        check_observation_space(self.algo, observation_space)
        self.observation_space = observation_space
        self.action_space = action_space
        self.seed = resolve_seed(seed)
        self.environment = None
        self._exploration = stream(self.seed, Purpose.EXPLORATION, member=index)
        self.learn_counter = 0

    def register_network_group(self, group: NetworkGroup) -> None:
        """As of the base. `normalize_images` becomes one thing for the agent and all of its networks.

        Images are divided by 255 unless the algorithm, or a network that it was given, says otherwise.
        """
        super().register_network_group(group)
        if not hasattr(self, "normalize_images"):
            return
        networks = [getattr(self, name) for name in self.registry.all_registered()]
        reading = [network for network in networks if isinstance(network, EvolvableNetwork)]
        self.normalize_images = bool(self.normalize_images) and all(n.normalize_images for n in reading)
        for network in reading:
            network.normalize_images = self.normalize_images

    @classmethod
    def policy_from_spec(cls, spec: Mapping[str, Any], device: str | torch.device) -> EvolvableNetwork:
        """The policy network that a saved `spec` describes, with fresh weights."""
        return cls.policy_class.from_spec(spec, device=device)

    # --- population engine ---------------------------------------------------------------------------------------

    def policy_network(self) -> EvolvableNetwork:
        """The policy, for algorithms whose policy is a network over an observation space."""
        policy = self.policy_module()
        assert isinstance(policy, EvolvableNetwork)
        return policy

    def policy_output(self, obs: Any, noisy: bool = False) -> Tensor:
        """Raw output of the policy for observations [E, ...], nested as the space is: what `greedy` and `explore` take.

        `noisy` keeps the noise of noisy layers, whatever mode the network is in.
        """
        policy = self.policy_module()
        before = policy.training
        policy.train(noisy)
        try:
            return raw_output(policy)(obs)
        finally:
            policy.train(before)

    def update_options(self) -> tuple[Any, ...]:
        """Options that `update` branches on; members of one cohort have them in common."""
        return ()

    def update_interval(self) -> int:
        """How often this agent learns; members of one cohort have it in common."""
        return int(getattr(self, "learn_step", 1))

    def update(self, engine: UpdateEngine, batch: TransitionBatch) -> UpdateResult:
        """One update of every member in `engine`; of this agent only the options above may be read."""
        raise NotImplementedError(f"{type(self).__name__} must implement update(engine, batch) or learn(experiences)")

    @staticmethod
    def greedy(outputs: Tensor, mask: np.ndarray | None = None) -> np.ndarray:
        """Greedy actions from policy outputs [..., out]; a subclass implements it."""
        raise NotImplementedError("an algorithm with update() must implement greedy(outputs, mask) -> actions")

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Random numbers that updates need, name -> [updates, K, ...]; `shape` is (updates, B). None by default.

        K is B for numbers of the batch's rows, anything else for numbers of another kind (`modules.noisy`).
        """
        return {}

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        """Random numbers for `explore`, each [*shape, ...]; `shape` is (vector steps, E), or (E,) for one call.

        What depends on this agent's own hyperparameters (the scale of its noise, say) is applied here: `explore` is
        called once for all members.
        """
        raise NotImplementedError("an algorithm with update() must implement draw_exploration(rng, shape)")

    def draw_acting_noise(self, rng: np.random.Generator, count: int) -> np.ndarray | None:
        """Noise of the policy's noisy layers for `count` vector steps [count, S]; None for a policy without any."""
        return None

    def explore(
        self, outputs: Tensor, draws: tuple[np.ndarray, ...], epsilon: float, mask: np.ndarray | None = None
    ) -> np.ndarray:
        """Actions to store, from raw policy outputs [..., out]; see `environment_action` for those to take."""
        raise NotImplementedError("an algorithm with update() must implement explore(outputs, draws, epsilon, mask)")

    def random_action(
        self, rng: np.random.Generator, shape: tuple[int, ...], mask: np.ndarray | None = None
    ) -> np.ndarray:
        """Uniformly random actions to store, [*shape] int64 or [*shape, A] in [-1, 1].

        `mask` [*shape, Σn], 1 = legal, is for Discrete and MultiDiscrete actions.
        """
        space = self.action_space
        if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
            choices = JointActions.of(space, self.algo)
            legal = None if mask is None else choices.legal(mask)
            return uniform_actions(rng.random(shape), choices.count, legal)
        return rng.uniform(-1, 1, size=(*shape, *(space.shape or ()))).astype(np.float32)

    acts_raw = False
    """Whether `get_action` gives what is stored, so that `environment_action` is still to come."""

    def environment_action(self, action: np.ndarray) -> np.ndarray:
        """Stored actions [..., A] as the environment takes them; the same by default."""
        return action

    def legal_choices(self, mask: np.ndarray) -> np.ndarray:
        """The environment's masks [..., Σn] as masks [..., A] of what the policy chooses among; the same by default."""
        return mask

    @staticmethod
    def is_stackable(network: nn.Module) -> bool:
        """Whether the network is still nothing but dense layers, without hooks."""
        return isinstance(network, EvolvableModule) and dense_parts(network) is not None

    def evaluation_networks(self) -> dict[str, nn.Module]:
        """The evaluation network of every group, by attribute name."""
        return {str(group.eval_network): getattr(self, str(group.eval_network)) for group in self.registry.groups}

    def binding(self) -> MemberBinding | None:
        """What of this agent can live in rows; None where a network or an optimiser does not stack."""
        self.follow_optimizers()
        if not isinstance(self.policy_module(), EvolvableNetwork):
            return None
        networks, optimizers = [], []
        for group in self.registry.groups:
            name = str(group.eval_network)
            parts = dense_parts(getattr(self, name))
            shared = [dense_parts(getattr(self, other)) for other in group.shared_networks or []]
            if parts is None or len(shared) > 1 or any(p is None or p.keys() != parts.keys() for p in shared):
                return None
            target, reads = shared[0] if shared else None, self._reads(name)
            for part, stack in parts.items():
                shadow = target[part] if target else None
                networks.append(NetworkBinding(column_name(name, part), stack, shadow, reads))
        for config in self.registry.optimizers:
            rule = rule_of(getattr(self, config.name).optimizer)
            if rule is None:
                return None
            optimizer = getattr(self, config.name).optimizer
            moved = tuple(n.name for name in config.networks for n in networks if n.name.split("/")[0] == name)
            optimizers.append(OptimizerBinding(config.name, moved, rule, optimizer))
        return MemberBinding(tuple(networks), tuple(optimizers))

    def _reads(self, name: str) -> tuple[str, int] | None:
        """The network whose features `name` reads, and how many of its layers give them."""
        lender = self.registry.lenders.get(name)
        depth = None if lender is None else getattr(self, name).lent_depth()
        return None if lender is None or depth is None else (lender, depth)

    def solo_rows(self) -> SoloRows | None:
        """This agent's own row, bound anew where its networks have changed; None where it does not stack."""
        rows: SoloRows | None = self.__dict__.get("_cohort")
        self.follow_optimizers()
        if rows is None or not rows.is_current(self):
            rows = SoloRows(self) if self.binding() is not None else None
            object.__setattr__(self, "_cohort", rows)
        return rows

    # --- learning ------------------------------------------------------------------------------------------------

    def learn(self, experiences: Any, *args: Any, **kwargs: Any) -> Any:
        """One update from sampled transitions.

        Args:
            experiences: what `ReplayBuffer.sample` returns in either dialect: a TensorDict or mapping with the keys
                obs, action, reward, next_obs, done, or a tuple in that order. `done` means terminated.
            args, kwargs: what `learn_from` of the algorithm takes beside them.

        Returns:
            What `learn_from` of the algorithm returns: the loss before the update, where nothing else is said.
        """
        return self.learn_from(experiences, *args, **kwargs)

    # The `learn` of this package: a subclass whose own differs from it brings an algorithm that no engine runs.
    published_learn = learn

    def learn_from(self, experiences: Any) -> Any:
        """What `learn` does; an algorithm that publishes further arguments or results overrides it.

        `learn` itself stays: the learners take an overridden one for an algorithm that does not run in the engine.
        """
        return float(self.learn_batch(self.make_batch(experiences)).loss.detach())

    def learn_batch(self, batch: TransitionBatch, plain: bool = False) -> UpdateResult:
        """One update from a prepared batch [B, ...]; `plain` forces plain torch modules. No member axis results."""
        self.remember_observations(batch.obs)
        self.learn_counter += 1
        rows = None if plain else self.solo_rows()
        if rows is None:
            self.follow_optimizers()
            return self.update(ModuleEngine(self), batch)
        prepare = self.policy_network().preprocess
        prepared = replace(batch, obs=prepare(batch.obs), next_obs=prepare(batch.next_obs))
        result = self.update(rows.refresh(self), prepared.map(lambda x: x.unsqueeze(0)))
        rows.stepped()
        return result.map(lambda x: x[0])

    def make_batch(self, experiences: Any) -> TransitionBatch:
        """Sampled transitions as tensors on this agent's device."""
        given = experience_fields(experiences)
        dtype = next(iter(self.policy_module().parameters())).dtype
        space, owner = self.observation_space, f"{self.algo}.learn"
        obs, next_obs = (sampled_observations(space, given[k], self.device, owner) for k in ("obs", "next_obs"))
        count = tree.count_rows(obs)
        counts = [len(leaf) for leaf in tree.leaves((obs, next_obs))]
        if set(counts) != {count}:
            raise ShapeError(
                f"{owner} got different numbers of observations in obs and next_obs (or their parts): {counts}. "
                "fix: agent.learn(memory.sample(agent.batch_size))."
            )
        reward, done = (column(k, given[k], count, self.device, owner).to(dtype) for k in ("reward", "done"))
        action = as_tensor(given["action"], self.device, f"{owner} got actions", "numbers")
        weight = torch.full((count,), 1 / count, dtype=dtype, device=reward.device)
        mask = None if "next_mask" not in given else torch.as_tensor(given["next_mask"]).to(self.device).bool()
        drawn = self.draw_noise(self._exploration, (1, count))
        return TransitionBatch(
            obs,
            self.prepare_action(action, count),
            reward,
            next_obs,
            done,
            weight,
            mask,
            noise={name: torch.as_tensor(x[0]).to(reward.device, dtype) for name, x in drawn.items()},
            number=self.learn_counter + 1,
        )

    def with_observations(self, experiences: Any, change: Callable[[Any], Any]) -> Any:
        """What `learn` takes, with `change` applied to all observations: for wrappers that alter what agents see."""
        fields = experience_fields(experiences)
        return {**fields, **{name: change(fields[name]) for name in ("obs", "next_obs")}}

    def prepare_action(self, action: Tensor, count: int) -> Tensor:
        """Stored actions as the update wants them: int64 [B] for discrete spaces."""
        if isinstance(self.action_space, gym.spaces.Discrete):
            check_discrete_actions(action, int(self.action_space.n), f"{self.algo}.learn")
        return column("actions", action, count, action.device, f"{self.algo}.learn").long()

    # --- files, copies, populations ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        spaces = {name: _space(getattr(self, name)) for name in ("observation_space", "action_space")}
        return {**super().state(), "spaces": spaces, "exploration": self._exploration.bit_generator.state}

    def load_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        super().load_state(state, source)
        if "exploration" in state:
            self._exploration.bit_generator.state = state["exploration"]

    @classmethod
    def _blank(cls, state: Mapping[str, Any], device: str | torch.device, accelerator: Any) -> Self:
        unknown = [name for name, space in state["spaces"].items() if space is None]
        if unknown:
            raise RunError(f"the file does not hold the {unknown[0]}. fix: make the agent, then load_checkpoint(path).")
        arguments: dict[str, Any] = {name: space_from_json(space) for name, space in state["spaces"].items()}
        if "share_encoders" in inspect.signature(cls).parameters:  # it decides which networks there are
            arguments["share_encoders"] = bool(state["attributes"].get("share_encoders", False))
        return cls(**arguments, device=device, accelerator=accelerator)

    def policy_spec(self) -> dict[str, Any]:
        """JSON-able description of the policy, with the environment that it was trained in."""
        return {**super().policy_spec(), "environment": self.environment}

    def clone(self, index: int | None = None, wrap: bool = True) -> Self:
        twin = super().clone(index, wrap)
        if index is not None and index != self.index:
            twin._exploration = stream(self.seed, Purpose.EXPLORATION, len(self.fitness), index)
        return twin

    @classmethod
    def population(
        cls,
        size: int,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        wrapper_cls: Any = None,
        wrapper_kwargs: dict[str, Any] | None = None,
        *,
        seed: int | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """`size` agents with indices 0 .. size-1, each with weights of its own."""
        run_seed = resolve_seed(seed)
        own = seeds(run_seed, Purpose.INITIAL_WEIGHTS, size)
        with one_thread():  # initial weights come out of a matrix factorisation, which rounds by thread count
            agents: list[Any] = [
                cls(observation_space, action_space, index=i, seed=int(own[i]), **kwargs) for i in range(size)
            ]
        return [wrapper_cls(a, **(wrapper_kwargs or {})) for a in agents] if wrapper_cls else agents


def _space(space: gym.Space[Any]) -> dict[str, Any] | None:
    """The space as JSON, None for a kind that cannot be described yet."""
    try:
        return space_to_json(space)
    except NotAvailableYetError:
        return None


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
