"""Contextual bandits from labelled data: the published `BanditEnv`, and its rounds as a Gymnasium environment.

A context is drawn, the learner chooses an arm, and the reward is 1 if the arm is the class of the context, else 0. Arms
share one network, so that each arm sees the context in a block of its own (the disjoint contexts of Li et al. 2010,
arXiv:1003.0146, section 3.1, as in Zhou et al. 2020, arXiv:1911.04462, section 7.2).
"""

from __future__ import annotations

from copy import copy
from typing import Any, Self

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from agilerl.core import foreign, tree
from agilerl.core.rng import Purpose, resolve_seed, stream
from agilerl.core.spaces import nested
from agilerl.errors import EnvError, unknown_choice

ROUNDS = 100
"""Rounds of an episode, in training and evaluation: fitness is the reward of this many rounds."""
DATASETS = ("iris", "wine", "digits", "breast_cancer")
"""Data sets of scikit-learn with an id, `bandit/<name>`."""
FIX = "fix: BanditEnv(features [n, d], targets [n])."


class BanditEnv:
    """Labelled data as a bandit, with the published interface: no episodes, and two results of `step`.

    Args:
        features: [n, d] numbers: an array, or a frame of pandas. targets: [n] or [n, 1] class of each row, of any type.
        seed: of the order in which contexts are drawn; None follows `torch.initial_seed()`.

    Attributes:
        arms: number of classes; arm k stands for the k-th class in order of first appearance.
        context_dim: (arms · d,), the shape of the context of one arm.
        observation_space: Box(arms, arms · d), contexts of all arms. action_space: Discrete(arms).

    Raises:
        EnvError: features that are not finite numbers [n, d], other than one target for each row, missing targets
            (NaN, None) or targets that cannot be compared, or a single class.
    """

    def __init__(self, features: Any, targets: object, seed: int | None = None) -> None:
        self.features, self.targets = features, targets
        self._x, self._class = _numbers(features), _classes(targets)
        if len(self._x) != len(self._class):
            raise EnvError(f"BanditEnv got {len(self._x)} rows of features and {len(self._class)} targets. {FIX}")
        self.arms = int(self._class.max()) + 1
        if self.arms < 2:
            raise EnvError("BanditEnv got targets of one class, so that there is nothing to choose. fix: two or more.")
        self.context_dim = (self.arms * self._x.shape[1],)
        high = np.finfo(np.float32).max
        self.observation_space = spaces.Box(-high, high, (self.arms, *self.context_dim), np.float32)
        self.action_space = spaces.Discrete(self.arms)
        self._rng = stream(resolve_seed(seed), Purpose.ENVIRONMENT)
        self._row = 0

    def seed(self, seed: int) -> None:
        """Draw contexts from this seed on."""
        self._rng = stream(seed, Purpose.ENVIRONMENT)

    def with_new_stream(self) -> Self:
        """Return a copy that shares the data and draws its own contexts, seeded by `torch.initial_seed()`."""
        twin = copy(self)
        twin.seed(resolve_seed(None))
        return twin

    def reset(self) -> np.ndarray:
        """Draw a context; return [arms, arms · d] float32: row k holds it in block k, and zeros."""
        return self._drawn()

    def step(self, k: int) -> tuple[np.ndarray, float]:
        """Choose arm `k` for the last context; return (contexts of the next round, reward 0.0 or 1.0).

        Raises:
            EnvError: no such arm.
        """
        if not 0 <= int(k) < self.arms:
            raise EnvError(f"BanditEnv has arms 0 to {self.arms - 1}; got {k!r}. fix: one of them.")
        reward = float(int(k) == self._class[self._row])
        return self._drawn(), reward

    def _drawn(self) -> np.ndarray:
        self._row = int(self._rng.integers(len(self._x)))
        return disjoint(self._x[self._row], self.arms)


class BanditRounds(gym.Env[np.ndarray, Any]):
    """Rounds of a bandit as a Gymnasium environment; episodes end by a time limit alone.

    Args:
        bandit: with `reset() -> contexts`, `step(arm) -> (contexts, reward)`, `arms` and `context_dim`. One with
            `seed(int)` is repeatable.
    """

    def __init__(self, bandit: Any) -> None:
        self.bandit = bandit
        shape, space = (int(bandit.arms), *bandit.context_dim), foreign.observation_space(bandit)
        high = np.finfo(np.float32).max
        self.observation_space = spaces.Box(-high, high, shape, np.float32) if space is None else space
        self.action_space = spaces.Discrete(int(bandit.arms))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if seed is not None and foreign.has_methods(self.bandit, "seed"):
            self.bandit.seed(seed)
        return self._contexts(self.bandit.reset()), {}

    def step(self, action: int) -> Any:
        contexts, reward = self.bandit.step(int(action))
        return self._contexts(contexts), float(reward), False, False, {}

    def _contexts(self, contexts: tree.Tree) -> Any:
        return tree.map_leaves(
            lambda part, rows: np.asarray(rows, part.dtype), nested(self.observation_space), contexts
        )


def disjoint(features: np.ndarray, arms: int) -> np.ndarray:
    """Return contexts [arms, arms · d] of features [d]: row k has them in block k and zeros elsewhere."""
    size = len(features)
    contexts = np.zeros((arms, arms, size), dtype=np.float32)
    contexts[np.arange(arms), np.arange(arms)] = features
    return contexts.reshape(arms, arms * size)


def is_bandit(env: foreign.EnvLike) -> bool:
    """Whether this is a bandit with the published interface, which is no Gymnasium environment."""
    has_both = hasattr(env, "arms") and hasattr(env, "context_dim")
    return has_both and not isinstance(env, gym.Env | type) and foreign.has_methods(env, "reset", "step")


def rounds_of(bandit: object, rounds: int = ROUNDS) -> gym.Env[Any, Any]:
    """Return the bandit as a Gymnasium environment with episodes of this many rounds.

    A `BanditEnv`, also of a subclass, is copied with its data shared, so that every lane draws its own contexts.
    """
    lane = bandit.with_new_stream() if isinstance(bandit, BanditEnv) else bandit
    return gym.wrappers.TimeLimit(BanditRounds(lane), rounds)


# --- data sets with an id ---------------------------------------------------------------------------------------------


def labelled(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (features [n, d] float32 with mean 0 and deviation 1, targets [n]) of a data set of scikit-learn.

    Raises:
        EnvError: unknown name, or scikit-learn is missing.
    """
    if name not in DATASETS:
        raise EnvError(unknown_choice("data set of bandits", name, DATASETS))
    try:
        from sklearn import datasets
    except ImportError as error:
        raise EnvError(f'bandit/{name}: scikit-learn is missing. fix: pip install "agilerl[bandit]"') from error
    features, targets = vars(datasets)[f"load_{name}"](return_X_y=True)
    deviation = features.std(0)
    scaled = (features - features.mean(0)) / np.where(deviation > 0, deviation, 1.0)
    return scaled.astype(np.float32), targets


def of_data(name: str) -> BanditRounds:
    """Return the rounds of a data set of `DATASETS`."""
    return BanditRounds(BanditEnv(*labelled(name)))


def iris() -> BanditRounds:
    """150 flowers of 3 species, 4 measures each."""
    return of_data("iris")


def wine() -> BanditRounds:
    """178 wines of 3 cultivars, 13 measures each."""
    return of_data("wine")


def digits() -> BanditRounds:
    """1,797 digits, 64 grey values each."""
    return of_data("digits")


def breast_cancer() -> BanditRounds:
    """569 tumours, benign or malignant, 30 measures each."""
    return of_data("breast_cancer")


def _numbers(features: object) -> np.ndarray:
    try:
        x = np.asarray(features, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise EnvError(f"BanditEnv got features that are not numbers ({error}). {FIX}") from None
    if x.ndim != 2 or not x.size or not np.isfinite(x).all():
        raise EnvError(f"BanditEnv got features of shape {x.shape}; expected finite numbers [n, d]. {FIX}")
    return x


def _classes(targets: object) -> np.ndarray:
    """Return the number of each target's class, in order of first appearance."""
    labels = np.asarray(targets).ravel()
    if not labels.size:
        raise EnvError(f"BanditEnv got no targets. {FIX}")
    missing = [row for row, label in enumerate(labels.tolist()) if label is None or label != label]
    if missing:
        raise EnvError(f"BanditEnv got {len(missing)} missing targets, from row {missing[0]}. fix: leave them out.")
    try:
        _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    except TypeError as error:
        raise EnvError(f"BanditEnv got targets of types that cannot be compared ({error}). fix: one type.") from None
    order = np.argsort(np.argsort(first))
    return order[inverse.reshape(-1)]
