"""Which algorithms a manifest may name, and the keys that each one accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal

from annotated_types import Ge
from pydantic import BaseModel, ConfigDict, create_model

from agilerl.config.fields import Count, Fraction, NonNegative, Number, Positive, PositiveFraction
from agilerl.errors import AlgorithmError, NotAvailableYetError, nearest

AlgorithmKeys = Mapping[str, tuple[Any, Any]]
"""key -> (annotated type with its range, default)."""

DQN_KEYS: AlgorithmKeys = {
    "lr": (Positive, 1e-3),
    "batch_size": (Count, 64),
    "learn_step": (Count, 4),  # environment steps of one member per update
    "gamma": (Fraction, 0.99),
    "tau": (PositiveFraction, 0.01),
    "double": (bool, True),
}

RAINBOW_KEYS: AlgorithmKeys = {
    "lr": (Positive, 1e-3),
    "batch_size": (Count, 64),
    "learn_step": (Count, 4),
    "gamma": (Fraction, 0.99),
    "tau": (PositiveFraction, 0.01),
    "num_atoms": (Annotated[Count, Ge(2)], 51),
    "v_min": (Number, -100.0),
    "v_max": (Number, 100.0),
    "n_step": (Count, 3),
    "beta": (Fraction, 0.4),
    "prior_eps": (Positive, 1e-6),
    "noise_std": (Positive, 0.5),
    "double": (bool, True),
    "dueling": (bool, True),
    "distributional": (bool, True),
    "noisy": (bool, True),
}

_ACTOR_CRITIC_KEYS: AlgorithmKeys = {
    "lr_actor": (Positive, 1e-3),
    "lr_critic": (Positive, 1e-3),
    "batch_size": (Count, 128),
    "learn_step": (Count, 1),
    "gamma": (Fraction, 0.99),
    "tau": (PositiveFraction, 0.005),
    "share_encoders": (bool, False),  # critics read the policy's features
}

DDPG_KEYS: AlgorithmKeys = {
    **_ACTOR_CRITIC_KEYS,
    "policy_freq": (Count, 1),
    "O_U_noise": (bool, True),
    "expl_noise": (NonNegative, 0.1),
    "mean_noise": (Number, 0.0),
    "theta": (NonNegative, 0.15),
    "dt": (Positive, 1e-2),
}

TD3_KEYS: AlgorithmKeys = {
    **DDPG_KEYS,
    "policy_freq": (Count, 2),
    "O_U_noise": (bool, False),
    "policy_noise": (NonNegative, 0.2),
    "noise_clip": (NonNegative, 0.5),
}

SAC_KEYS: AlgorithmKeys = {
    **_ACTOR_CRITIC_KEYS,
    "lr_alpha": (Positive, 1e-3),
    "init_temperature": (Positive, 1.0),
    "target_entropy": (Number | None, None),  # null: from the action space
    "learn_temperature": (bool, True),
}

PPO_KEYS: AlgorithmKeys = {
    "lr": (Positive, 1e-3),
    "batch_size": (Count, 128),
    "learn_step": (Count, 1024),  # environment steps of one member per rollout
    "gamma": (Fraction, 0.99),
    "gae_lambda": (Fraction, 0.95),
    "action_std_init": (Positive, 0.6),  # a standard deviation
    "clip_coef": (Positive, 0.2),
    "ent_coef": (NonNegative, 0.01),
    "vf_coef": (NonNegative, 0.5),
    "max_grad_norm": (Positive | None, 0.5),
    "target_kl": (Positive | None, None),
    "update_epochs": (Count, 10),
    "share_encoders": (bool, False),
    "recurrent": (bool, False),
    "max_seq_len": (Count | None, None),
    "bptt_sequence_type": (Literal["chunked", "maximum", "fifty_percent_overlap"], "chunked"),
    "lr_schedule": (Literal["constant", "linear"], "constant"),
    "clip_schedule": (Literal["constant", "linear"], "constant"),
    "clip_value_loss": (bool, True),
    "normalize_observations": (bool, False),  # by running statistics, which are saved with the policy
}

ALGORITHMS: dict[str, AlgorithmKeys] = {
    "DDPG": DDPG_KEYS,
    "DQN": DQN_KEYS,
    "PPO": PPO_KEYS,
    "RainbowDQN": RAINBOW_KEYS,
    "SAC": SAC_KEYS,
    "TD3": TD3_KEYS,
}
"""Algorithms that run in this version. `register_algorithm` adds one."""

ACTIONS: dict[str, tuple[str, ...]] = {
    "DDPG": ("Box",),
    "DQN": ("Discrete", "MultiDiscrete"),
    "PPO": ("Box", "Discrete", "MultiBinary", "MultiDiscrete"),
    "RainbowDQN": ("Discrete", "MultiDiscrete"),
    "SAC": ("Box", "Discrete"),
    "TD3": ("Box",),
}
"""Kinds of action space that each algorithm takes."""

ON_POLICY = frozenset({"PPO"})
"""Algorithms that learn from their own rollouts: replay, and exploration beside the policy's, mean nothing to them."""

NOT_YET = (
    "BC_LM", "CISPO", "CQN", "DPO", "GRPO", "ILQL", "IPPO", "MADDPG", "MATD3", "NeuralTS", "NeuralUCB",
)  # fmt: skip
"""Published names that this version does not train yet."""


def wrong_actions(algo: str, space: Any, kinds: Sequence[str] | None = None) -> AlgorithmError:
    """The error for an algorithm on actions that it cannot take: what it needs, what it got, which algorithms fit.

    Args:
        algo: its name. kinds: of action space that it takes; None for those of a published algorithm.
    """
    kind = type(space).__name__
    fitting = sorted(name for name, kinds in ACTIONS.items() if kind in kinds)
    none = f"; no algorithm of this version takes {kind} actions"
    instead = f", or for {kind} actions one of: {', '.join(fitting)}" if fitting else none
    needed = " or ".join(ACTIONS.get(algo, ("other",)) if kinds is None else kinds)
    return AlgorithmError(
        f"{algo} needs {needed} actions; got {space}. fix: use an environment with {needed} actions{instead}."
    )


CLASSES: dict[str, Any] = {}
"""The classes of registered algorithms; `agilerl.algorithms.find_algorithm` finds them beside its own."""


def register_algorithm(name: str, keys: AlgorithmKeys, cls: type | None = None) -> None:
    """Let manifests name an algorithm of your own.

    Args:
        name: as manifests spell it. keys: as in `DQN_KEYS`.
        cls: the class, a subclass of `RLAlgorithm`. Without it a manifest with this name can be checked, not trained.
    """
    ALGORITHMS[name] = keys
    if cls is not None:
        CLASSES[name] = cls
    algorithm_model.cache_clear()


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c not in " -_")


def canonical_algorithm(name: str) -> str:
    """The algorithm's own spelling; case, spaces, dashes and underscores do not matter.

    Raises:
        NotAvailableYetError: published, but not in this version.
        AlgorithmError: unknown; names the nearest one.
    """
    for known in ALGORITHMS:
        if _plain(known) == _plain(name):
            return known
    available = ", ".join(sorted(ALGORITHMS))
    for later in NOT_YET:
        if _plain(later) == _plain(name):
            raise NotAvailableYetError(f"{later} is not available in this version. fix: use one of: {available}.")
    close = nearest(name, [*ALGORITHMS, *NOT_YET], limit=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise AlgorithmError(
        f"unknown algorithm {name!r}.{hint} (known: {available}; not in this version yet: {', '.join(NOT_YET)})"
    )


def algorithm_keys(name: str) -> AlgorithmKeys:
    """The keys that the algorithm accepts in the manifest, each with its type and default."""
    return ALGORITHMS[canonical_algorithm(name)]


@lru_cache(maxsize=32)
def algorithm_model(name: str) -> type[BaseModel]:
    """A pydantic model of the algorithm's keys (without `name`)."""
    fields: dict[str, Any] = dict(algorithm_keys(name))
    return create_model(f"{name}Keys", __config__=ConfigDict(extra="forbid"), **fields)
