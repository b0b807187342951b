"""Neural contextual bandits: a reward network, and a design matrix of its last layer that measures what is unknown.

Algorithms differ in how they turn predicted rewards and confidence widths into scores of arms. What both papers leave
to an implementation is decided here:

* The design matrix counts the gradient of the last layer alone, as a full matrix. The diagonal over all weights, which
  the papers use in their experiments, ignores that features of the arms overlap.
* The network goes on from its weights: an update is one Adam step on a batch of replay in place of J steps of gradient
  descent from θ₀ over all rounds (Zhou et al. 2020, algorithm 2).
* Members of a population learn from one replay; each counts its own choices in its design matrix.
* A mutation makes past gradients those of another network. The matrix is then rebuilt from the newest rows of replay,
  as many as the member has chosen arms, with the gradients of the new network. Without a replay to rebuild it from, in
  a custom loop, it starts anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from torch import Tensor

from agilerl.algorithms import wrong_actions
from agilerl.algorithms.base.actions import DiscreteActions, legal_actions, masked_argmax, seen_with_mask
from agilerl.algorithms.base.building import build, register_network
from agilerl.algorithms.base.declared import ROUNDS, hp
from agilerl.algorithms.base.optimizer import OptimizerWrapper
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.algorithms.base.single_agent import RLAlgorithm, UpdateLoss
from agilerl.algorithms.base.transitions import as_tensor, check_observation_space, column, sampled_observations
from agilerl.components.running import RunningMeanStd
from agilerl.core import foreign, tree
from agilerl.core.ranges import Count, Positive, StepsPerUpdate
from agilerl.core.spaces import nested
from agilerl.engine.modules import raw_output
from agilerl.engine.protocol import Draws, Mask, TransitionBatch, UpdateEngine, UpdateResult
from agilerl.envs.bandit import ROUNDS as ROUNDS_OF_EPISODE
from agilerl.envs.bandit import is_bandit, rounds_of
from agilerl.errors import AlgorithmError, ShapeError
from agilerl.losses.actor_critic import weighted_squared_error
from agilerl.losses.bandits import inverse_design, scaled_gradient, squared_width, with_choice
from agilerl.modules.base import EvolvableModule
from agilerl.networks.bandits import RewardModule, RewardNetwork
from agilerl.ranks import ONE, Ranks
from agilerl.telemetry.evaluation import Evaluation

MAX_SCALE = 2  # of |mean|, deviation and 1 / deviation of features that are learned from unscaled, in large samples
MIN_ROWS = 16  # contexts in such statistics
MIN_DEVIATION = 1e-9  # relative to the mean; features that vary less are constant
CONTEXTS = ("context", "state", "observation")  # published names of the field "obs"


class NeuralBandit(RLAlgorithm):
    """Base class of neural bandits; a subclass implements `arm_scores`, and `width_scale` for its papers' constants.

    Args:
        observation_space: of the context of one arm: a Box [d] or an image, a Discrete, or a Dict or Tuple of these;
            or of all arms, with an axis [A, ...] more.
        action_space: Discrete, the arms.
        index: unique id within the population.
        hp_config: mutable hyperparameters, among gamma, lamb, reg, lr, batch_size, learn_step.
        net_config: `{"encoder_config": {"hidden_size": [..]}, "head_config": {..}, "latent_dim": ..}`.
        gamma: scale of exploration.
        lamb: λ, weight of the identity in the design matrix before the first round.
        reg: weight of ‖θ − θ₀‖² in the loss, over all weights. θ₀ are the initial weights; architecture mutations
            carry them over like those of a target network.
        batch_size: rounds per update.
        normalize_images: divide images with values from 0 to 255 by 255.
        lr: learning rate of Adam.
        learn_step: rounds per update.
        mut: label of the last mutation.
        actor_network: a `RewardNetwork`, or any evolvable module with one output, to use instead of building one.
        normalize_observations: normalise contexts in raw units, whose features are far from mean 0 and deviation 1; see
            `rescale`.
        device: device of the networks and batches.
        accelerator: stored only, see `EvolvableAlgorithm`.
        wrap: accepted for compatibility; ignored.
        seed: seed of weights and exploration; None follows `torch.initial_seed()`.

    Attributes:
        sigma_inv: [p, p] float64 inverse design matrix Z⁻¹, where p − 1 is the width of the last hidden layer.
        rounds: choices counted in it. scaled_rounds: choices before the last `rescale`; 0 before the first.
        regret: cumulative shortfall from a reward of 1 in each round, at the end of every generation.
    """

    policy_class = RewardNetwork
    action_spaces = ("Discrete",)
    action_form = DiscreteActions()
    criterion = UpdateLoss()
    experience = ROUNDS

    actor_target: EvolvableModule
    optimizer: OptimizerWrapper
    sigma_inv: Tensor

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: dict[str, Any] | None = None,
        gamma: Annotated[Positive, hp()] = 1.0,
        lamb: Annotated[Positive, hp()] = 1.0,
        reg: Annotated[Positive, hp()] = 0.000625,
        batch_size: Annotated[Count, hp()] = 64,
        normalize_images: bool = True,
        lr: Annotated[Positive, hp()] = 1e-3,
        learn_step: Annotated[StepsPerUpdate, hp()] = 2,
        mut: str | None = None,
        actor_network: EvolvableModule | None = None,
        device: str | torch.device = "cpu",
        accelerator: foreign.Accelerator | None = None,
        wrap: bool = True,
        *,
        seed: int | None = None,
        normalize_observations: Annotated[bool, hp()] = True,
    ) -> None:
        contexts = _contexts_of(type(self).__name__, observation_space, action_space)
        super().__init__(contexts, action_space, index, hp_config, device, accelerator, seed=seed)
        self.gamma, self.lamb, self.reg, self.lr = gamma, lamb, reg, lr
        self.batch_size, self.learn_step, self.mut = batch_size, learn_step, mut
        self.normalize_images, self.net_config = normalize_images, net_config
        if actor_network is not None and not isinstance(actor_network, RewardNetwork | RewardModule):
            actor_network = RewardModule(actor_network)
        self.actor = build(self, RewardNetwork, actor_network, "actor_network", 0)
        self.normalize_observations = bool(normalize_observations)
        register_network(self, "actor", "actor_target", "optimizer", "lr", policy=True)
        self.register_mutation_hook("forget_design")
        self.regret: list[float] = [0.0]
        self.rounds = self.scaled_rounds = 0
        self._is_stale = False
        self.sigma_inv = self.design_over(self._no_gradients())

    @property
    def network_space(self) -> gym.Space[Any]:
        """Space of the context of any one arm: its bounds cover those of all arms."""
        space: gym.Space[Any] = _of_one(self.observation_space)
        return space

    @property
    def arms(self) -> int:
        """Number of arms."""
        return int(self.action_space.n)

    # --- learning --------------------------------------------------------------------------------------------------

    def update_hyperparameters(self) -> dict[str, float]:
        return {"lr": self.lr, "reg": self.reg}

    def update_options(self) -> tuple[Any, ...]:
        return (self.normalize_observations,)

    def update(self, engine: UpdateEngine, batch: TransitionBatch) -> UpdateResult:
        """Perform one Adam step on (f(x; θ) − r)² + reg · ‖θ − θ₀‖², x the context of the chosen arm.

        Zhou et al. 2020 (arXiv:1911.04462), the loss of algorithm 2, with the mean over a batch.
        """
        reward = engine.network("actor")(batch.obs)[..., 0]
        error, _ = weighted_squared_error(reward, batch.reward, batch.weight)
        loss = error + engine.hp["reg"].reshape(error.shape) * engine.distance("actor")
        engine.minimise("optimizer", loss)
        return UpdateResult(loss.detach())

    def make_batch(self, experiences: Any) -> TransitionBatch:
        """Convert rounds to tensors: a mapping with obs (or context, state) [B, *context] of the chosen arms and reward
        [B], or a tuple in that order."""
        if isinstance(experiences, tuple | list) and len(experiences) >= 2:
            fields: dict[str, Any] = {"obs": experiences[0], "reward": experiences[-1 if len(experiences) == 2 else 2]}
        elif isinstance(experiences, Mapping) or hasattr(experiences, "keys"):
            named = {str(key): experiences[key] for key in experiences.keys()}  # noqa: SIM118 (a TensorDict)
            fields = {"obs" if name in CONTEXTS else name: value for name, value in named.items()}
        else:
            fields = {}
        if not {"obs", "reward"} <= fields.keys():
            raise ShapeError(
                f"{self.algo}.learn got {sorted(fields) or type(experiences).__name__}; expected obs, the context of "
                "the chosen arm, and reward. fix: memory.add({'obs': contexts[action], 'reward': reward})."
            )
        owner, dtype = f"{self.algo}.learn", next(iter(self.actor.parameters())).dtype
        obs = sampled_observations(self.network_space, fields["obs"], self.device, owner)
        count = tree.count_rows(obs)
        reward = column("reward", fields["reward"], count, self.device, owner).to(dtype)
        zeros = torch.zeros(count, dtype=dtype, device=reward.device)
        return TransitionBatch(obs, zeros.long(), reward, obs, zeros, zeros + 1 / count, number=self.learn_counter + 1)

    def learn_batch(self, batch: Any, plain: bool = False) -> UpdateResult:
        if not self.actor.normalize_observations and self.rounds >= 2 * self.scaled_rounds:  # in a custom loop
            self.rescale(batch.obs, max(1, self.rounds))
        return super().learn_batch(batch, plain)

    @torch.no_grad()
    def rescale(self, contexts: tree.Tree, rounds: int, ranks: Ranks = ONE) -> None:
        """Normalise inputs by the statistics of contexts [R, *context] of chosen arms, and forget the design matrix.

        No-op for features that are near mean 0 and deviation 1, for images and for modules of the script. A constant
        feature is at most divided by its magnitude. If every context fills one of A equal blocks, as in `BanditEnv`,
        the blocks share the statistics of the filled ones, and a block of zeros stays zero. `rounds`: choices so far.
        """
        self.scaled_rounds, network, statistics = rounds, self.actor, RunningMeanStd()
        if not (self.normalize_observations and isinstance(network, RewardNetwork) and network.reads_vectors):
            return
        rows = network.encoder_input(contexts)
        parts = rows.reshape(len(rows), self.arms if rows.shape[-1] % self.arms == 0 else 1, -1)
        blocks = parts.shape[1] if ranks.all(bool((parts.any(-1).sum(-1) <= 1).all())) else 1
        features = rows.reshape(len(rows), blocks, -1).sum(1).double().cpu()
        statistics.update_over(ranks, features.numpy(), features.shape[1:])
        if statistics.count < MIN_ROWS:
            return
        mean, deviation = statistics.mean, np.sqrt(statistics.var)
        is_constant = deviation <= MIN_DEVIATION * np.abs(mean).clip(MIN_DEVIATION)
        mean, deviation = np.where(is_constant, 0, mean), np.where(is_constant, np.abs(mean).clip(1), deviation)
        scales, limit = np.maximum(deviation, 1 / deviation), MAX_SCALE * (1 + 4 / math.sqrt(statistics.count))
        if np.maximum(np.abs(mean), scales).max() <= limit and not network.normalize_observations:
            return
        network.normalize_observations, network.blocks = True, blocks
        network.set_observation_statistics(np.tile(mean, blocks), np.tile(deviation**2, blocks), epsilon=0)
        self.forget_design()

    # --- acting ----------------------------------------------------------------------------------------------------

    def arm_scores(self, mean: Tensor, width: Tensor, draws: Draws) -> Tensor:
        """Return what each arm is chosen by [..., A].

        Args:
            mean, width: [..., A] float64 predicted rewards and `width_scale` times the root of `squared_width`.
            draws: result of `draw_exploration`.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement arm_scores(mean, width, draws) -> [..., A]")

    def width_scale(self) -> float:
        """Factor of the confidence width; γ by default."""
        return float(self.gamma)

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Draw nothing: the widths explore."""
        return ()

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """Return the legal arm of highest predicted reward [...] int64; outputs [..., A, 1 + m]."""
        return masked_argmax(outputs[..., 0], mask)

    def choose(
        self, outputs: Tensor, inverse: Tensor, scale: Tensor, draws: Draws, mask: Mask = None
    ) -> tuple[np.ndarray, Tensor]:
        """Choose an arm in every lane, and count the choices in the design matrices; members lie in leading axes.

        Lanes of one call do not see each other's choices.

        Args:
            outputs: [..., E, A, 1 + m] of the network. inverse: [..., p, p]. scale: [...] of the widths.
            draws: result of `draw_exploration`, each [..., E, ...]. mask: [..., E, A], 1 = legal.

        Returns:
            (arms [..., E] int64, inverse design matrices [..., p, p]).
        """
        outputs = outputs.to(inverse.dtype)
        gradient = scaled_gradient(outputs[..., 1:])
        width = scale[..., None, None] * squared_width(gradient, inverse.unsqueeze(-3)).sqrt()
        arms = masked_argmax(self.arm_scores(outputs[..., 0], width, draws), mask)
        index = torch.from_numpy(arms).to(outputs.device)[..., None, None].expand(*arms.shape, 1, gradient.shape[-1])
        for chosen in gradient.gather(-2, index).squeeze(-2).unbind(-2):
            inverse = with_choice(inverse, chosen)
        return arms, inverse

    def explore(self, outputs: Tensor, draws: Draws, epsilon: float, mask: Mask = None) -> np.ndarray:
        """Return the arms of this agent's design matrix, which then counts them; see `choose`."""
        inverse = self.sigma_inv.to(outputs.device)
        scale = inverse.new_tensor(self.width_scale())
        arms, self.sigma_inv = self.choose(outputs, inverse, scale, draws, mask)
        self.rounds += arms.size
        return arms

    def get_action(
        self, obs: tree.Tree, action_mask: tree.Tree | None = None, training: bool | None = None, **kwargs: Any
    ) -> Any:
        """Choose arms: exploring in training, and counting the choices; greedy outside of it.

        Args:
            obs: contexts of all arms [A, *context], or a batch [E, A, *context].
            action_mask: [A] or [E, A], 1 = legal.
            training: False is greedy; None is the agent's mode.

        Returns:
            int for one round, [E] int64 for a batch.
        """
        if kwargs:
            raise TypeError(f"{self.algo}.get_action got unexpected arguments {sorted(kwargs)}; it takes action_mask")
        obs, action_mask = seen_with_mask(self, obs, action_mask)
        first, space = next(tree.leaves(obs)), next(tree.leaves(nested(self.observation_space)))
        is_one = np.ndim(first) == len(space.shape)
        rows = tree.map_leaves(lambda leaf: leaf[None], obs) if is_one else obs
        with torch.no_grad():
            outputs = self.policy_output(rows)
            mask = legal_actions(self, action_mask, len(outputs))
            if self.training if training is None else training:
                arms = self.explore(outputs, self.draw_exploration(self._exploration, (len(outputs),)), 0.0, mask)
            else:
                arms = self.greedy(outputs, mask)
        arms = self.environment_action(arms)
        return int(arms[0]) if is_one else arms

    def _greedy(self, obs: tree.Tree, mask: Mask = None) -> np.ndarray:
        arms: np.ndarray = self.get_action(obs, mask, training=False)
        return arms

    def policy_program(self, network: Callable[[str], Any]) -> Any:
        run, arms = super().policy_program(network), self.arms

        def program(x: tree.Tree) -> Tensor:
            """Map prepared contexts [N, E, A, d] to outputs [N, E, A, 1 + m]."""
            outputs: Tensor = run(tree.map_leaves(lambda leaf: leaf.flatten(1, 2), x))
            return outputs.reshape(tree.count_rows(x), -1, arms, outputs.shape[-1])

        return program

    def policy_output(self, obs: tree.Tree, noisy: bool = False) -> Tensor:
        """Return (f, h) [E, A, 1 + m] for contexts [E, A, *context]."""

        def flat(space: Any, leaf: Any) -> Tensor:
            contexts = as_tensor(leaf, "cpu" if isinstance(leaf, np.ndarray) else leaf.device,
                                 f"{self.algo} got contexts", f"those of {self.observation_space}")  # fmt: skip
            if tuple(contexts.shape[1:]) != space.shape:
                raise ShapeError(
                    f"{self.algo} got contexts of shape {tuple(contexts.shape)}; it was built for [E, "
                    f"{', '.join(map(str, space.shape))}]. fix: what reset() and step() return."
                )
            return contexts.flatten(0, 1)

        outputs = super().policy_output(tree.map_leaves(flat, nested(self.observation_space), obs), noisy)
        return outputs.reshape(-1, self.arms, outputs.shape[-1])

    # --- design matrix ---------------------------------------------------------------------------------------------

    def _no_gradients(self) -> Tensor:
        """Return gradients [0, p] of the network."""
        network: Any = self.actor
        like = next(iter(network.parameters()))
        return torch.zeros(0, network.width + 1, dtype=torch.float64, device=like.device)

    def design_over(self, gradients: Tensor) -> Tensor:
        """Return the inverse design matrix of choices [R, p]."""
        return inverse_design(gradients, float(self.lamb))

    def forget_design(self) -> None:
        """Start the design matrix anew after a mutation; a source rebuilds it from replay, see `rebuild_design`."""
        self.sigma_inv, self._is_stale = self.design_over(self._no_gradients()), True

    @property
    def is_design_stale(self) -> bool:
        """Whether a mutation has made the design matrix that of another network."""
        return bool(self._is_stale)

    @torch.no_grad()
    def rebuild_design(self, contexts: tree.Tree | None) -> None:
        """Rebuild the design matrix from the contexts [R, *context] of chosen arms, with the present gradients.
        None: no arm was chosen."""
        gradients = self._no_gradients()
        if contexts is not None:
            gradients = scaled_gradient(raw_output(self.actor)(contexts)[..., 1:].double())
        self.sigma_inv = self.design_over(gradients)
        self._is_stale = False

    # --- evaluation ------------------------------------------------------------------------------------------------

    def test(
        self,
        env: foreign.Env,
        swap_channels: bool = False,
        max_steps: int | None = ROUNDS_OF_EPISODE,
        loop: int = 1,
        **more: Any,
    ) -> float:
        """Return the mean reward of `max_steps` greedy rounds, over `loop` times as many episodes; appended to
        `fitness`. See `RLAlgorithm.test`.

        Args:
            env: a `BanditEnv`, or any environment of `RLAlgorithm.test`.
        """
        env = rounds_of(env, max_steps or ROUNDS_OF_EPISODE) if is_bandit(env) else env
        return super().test(env, swap_channels, max_steps, loop, **more)

    def evaluate(
        self, episodes: int = 100, seed: int | None = None, env: foreign.Env | None = None, max_steps: int | None = None
    ) -> Evaluation:
        """Play greedy episodes; see `RLAlgorithm.evaluate`. `env` may be a `BanditEnv`."""
        env = rounds_of(env, max_steps or ROUNDS_OF_EPISODE) if is_bandit(env) else env
        return super().evaluate(episodes, seed, env, max_steps)


def _of_one(space: Any) -> Any:
    """Return the space of the context of any one arm, of a space of all."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _of_one(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_of_one(part) for part in space.spaces])
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.Discrete(int(space.nvec.max()))
    return spaces.Box(space.low.min(0), space.high.max(0), dtype=space.dtype.type)


def _is_context(space: gym.Space[Any]) -> bool:
    """Whether a leaf of a space is of the context of one arm."""
    return isinstance(space, spaces.Discrete) or (isinstance(space, spaces.Box) and len(space.shape) in (1, 3))


def _contexts_of(algo: str, space: Any, actions: Any) -> Any:
    """Return the space of the contexts of all arms [A, *context].

    Raises:
        AlgorithmError: other than contexts of one or of all arms.
    """
    if not isinstance(actions, spaces.Discrete):
        raise wrong_actions(algo, ("Discrete",), actions)
    arms = int(actions.n)
    if isinstance(space, gym.Space):
        check_observation_space(algo, space)
    parts = list(tree.leaves(nested(space))) if isinstance(space, gym.Space) else []
    if parts and all(_is_context(part) for part in parts):
        return batch_space(space, arms)
    kinds = (spaces.Box, spaces.MultiDiscrete)
    if parts and all(isinstance(part, kinds) and part.shape[:1] == (arms,) for part in parts):
        return space
    raise AlgorithmError(
        f"{algo} reads contexts of one arm or of all {arms}: Box, Discrete, or Dict and Tuple of them; got {space}. "
        "fix: env.observation_space of a BanditEnv, or Box(low, high, env.context_dim)."
    )
