"""What `evolution.py` compares, and where the lines of its runs are.

Environments with algorithms (pairs), what is wrong at the start, and ways to train (arms).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner import RESULTS, read_lines

if TYPE_CHECKING:
    from agilerl.config import Manifest

CHECKPOINTS = 12


@dataclass(frozen=True)
class Pair:
    """An environment and an algorithm.

    Attributes:
        random: mean return of random play. target: what counts as solved.
        env_steps: budget of all members together, evaluation included. cpu_seconds: the other budget.
        sets: KEY=VALUE over the general preset, for all arms.
    """

    env: str
    algo: str
    random: float
    target: float
    env_steps: int
    cpu_seconds: float
    sets: tuple[str, ...] = ()


WIDE = {
    "DQN": {"lr": (1e-4, 1e-2), "gamma": (0.9, 0.999)},
    "PPO": {"lr": (1e-4, 1e-2), "gamma": (0.9, 0.999)},
    "SAC": {"lr_actor": (1e-4, 1e-2), "lr_critic": (1e-4, 1e-2), "gamma": (0.9, 0.999)},
    "TD3": {"lr_actor": (1e-4, 1e-2), "lr_critic": (1e-4, 1e-2), "gamma": (0.9, 0.999)},
}
PAIRS = {
    f"{pair.env}:{pair.algo}": pair
    for pair in (
        Pair("CartPole-v1", "DQN", 22.0, 475.0, 1_000_000, 60.0),
        Pair("CartPole-v1", "PPO", 22.0, 475.0, 1_000_000, 60.0),
        Pair("Acrobot-v1", "DQN", -499.0, -100.0, 1_000_000, 90.0),
        Pair("Acrobot-v1", "PPO", -499.0, -100.0, 1_000_000, 90.0),
        Pair("MountainCar-v0", "DQN", -200.0, -120.0, 2_000_000, 120.0),
        Pair("MountainCar-v0", "PPO", -200.0, -120.0, 2_000_000, 120.0),
        Pair("LunarLander-v3", "DQN", -180.0, 200.0, 2_000_000, 200.0),
        Pair("LunarLander-v3", "PPO", -180.0, 200.0, 3_000_000, 150.0),
        Pair("Pendulum-v1", "PPO", -1230.0, -170.0, 3_000_000, 150.0),
        Pair("Pendulum-v1", "SAC", -1230.0, -170.0, 150_000, 150.0),
        Pair("Pendulum-v1", "TD3", -1230.0, -170.0, 150_000, 150.0),
        Pair("LunarLanderContinuous-v3", "PPO", -190.0, 200.0, 3_000_000, 150.0),
        Pair("LunarLanderContinuous-v3", "SAC", -190.0, 200.0, 1_500_000, 400.0),
    )
}


@dataclass(frozen=True)
class Start:
    """What is changed of the good start."""

    lr_factor: float = 1.0
    gamma: float | None = None
    width: int | None = None
    batch_size: int | None = None
    off_centre: bool = False  # the range of the learning rate ends a tenth of a decade above the good value


STARTS = {
    "good": Start(),
    "lr_low": Start(lr_factor=0.1),
    "lr_high": Start(lr_factor=10.0),
    "gamma_low": Start(gamma=0.9),
    "narrow": Start(width=8),
    "batch_16": Start(batch_size=16),
    "off_centre": Start(lr_factor=0.1, off_centre=True),
}


@dataclass(frozen=True)
class Arm:
    """A way to train: settings over the plain start, and whether evolution is on; `opponent` names a script instead."""

    sets: dict[str, Any] = field(default_factory=dict)
    evolution: bool = True
    ranges: bool = False  # founders and mutations use the wide ranges, not those of the general preset
    rate: bool = False  # the algorithm's own rule for its learning rate, if it has one
    own: bool = False  # the ranges and the PLAIN keys of the general preset
    widths: bool = False  # founders have layers within those of the general preset, if it has some
    independent: bool = False  # members share no replay: each is a shard
    opponent: str | None = None


def probabilities(kinds: dict[str, float]) -> dict[str, float]:
    return {f"mutation.probabilities.{kind}": value for kind, value in kinds.items()}


# What general presets do beside their values: taken away from every arm, and given back to "ours".
PLAIN = {
    "evolution.founders": "equal",
    "evolution.scheme": "tournament",
    "evolution.widths": None,
    "training.eval_members": None,
    "training.eval_screen": 0,
    "training.patience": None,
    "training.elite_rescore_episodes": 0,
}
SPREAD = {"evolution.founders": "spread"}
EIGHT = {"training.pop_size": 8}
HALVING = {**SPREAD, **EIGHT, "evolution.scheme": "halving", "evolution.until": 0.25}
RACE = {**SPREAD, "evolution.scheme": "race", "training.eval_members": 1}
RATE = {"PPO": {"algorithm.lr_schedule": "adaptive"}}  # rules of members of their own, by algorithm
ALL_KINDS = {"no_mut": 0.4, "arch_mut": 0.2, "new_layer": 0.2, "params_mut": 0.2, "act_mut": 0.0, "rl_hp_mut": 0.2}
ARMS = {
    # One configuration for all members.
    "fixed": Arm(evolution=False),
    "single": Arm({"training.pop_size": 1}, evolution=False),
    # The published operators: equal founders, tournaments, steps of 0.8 and 1.2, all kinds of mutation.
    "published": Arm(
        {"evolution.scheme": "tournament", "training.evolve_from": 0.0, **probabilities(ALL_KINDS)},
        ranges=True,
    ),
    # The same draws, with more and more selection.
    "random": Arm(SPREAD, evolution=False, ranges=True, widths=True, independent=True),
    "tournament-spread": Arm(SPREAD, ranges=True),
    "halving": Arm(HALVING, ranges=True),
    "halving-training": Arm({**HALVING, "evolution.judge": "training"}, ranges=True),
    "race": Arm(RACE, ranges=True),
    "race-8": Arm({**RACE, **EIGHT}, ranges=True),
    # Schemes of others: a bandit's proposals, and parts of the population at two paces.
    "pb2": Arm({**SPREAD, "evolution.scheme": "pb2"}, ranges=True),
    "mf_pbt": Arm({**SPREAD, **EIGHT, "evolution.scheme": "mf_pbt", "evolution.frequencies": [1, 4]}, ranges=True),
    # Rates that follow the divergence, alone and with the race.
    "adaptive": Arm(rate=True, evolution=False),
    "adaptive-random": Arm(SPREAD, rate=True, evolution=False, ranges=True, independent=True),
    "adaptive-race": Arm(RACE, rate=True, ranges=True),
    # What the general presets do, and the same where nobody's training ends.
    "ours": Arm(rate=True, own=True),
    "unselected": Arm(evolution=False, rate=True, own=True),
    "sb3": Arm(opponent="opponent_peers.py"),
    "optuna": Arm(opponent="opponent_peers.py"),
    "ray": Arm(opponent="opponent_peers.py"),
    "agilerl-2.58.0": Arm(opponent="opponent_original_evolution.py"),
}


def settings(pair: Pair, start: Start, arm: Arm) -> Manifest:
    """The manifest of an arm from a start."""
    from agilerl.config import apply_overrides, apply_sets, preset_for

    general_preset = preset_for(pair.env, pair.algo, general=True)
    manifest = apply_sets(general_preset, pair.sets)
    own_rule = RATE.get(pair.algo, {})
    manifest = apply_overrides(manifest, {**PLAIN, **dict.fromkeys(own_rule, "constant")}, "plain")
    values = manifest.algorithm.hyperparameters
    rates = [name for name in values if name in ("lr", "lr_actor", "lr_critic", "lr_alpha")]
    changes: dict[str, Any] = {f"algorithm.{name}": values[name] * start.lr_factor for name in rates}
    if start.gamma is not None:
        changes["algorithm.gamma"] = start.gamma
    if start.batch_size is not None:
        changes["algorithm.batch_size"] = start.batch_size
    if start.width is not None:
        changes |= {
            f"network.{part}.{key}": value
            for part in ("encoder_config", "head_config")
            for key, value in (("hidden_size", [start.width]), ("min_mlp_nodes", start.width))
        }
        changes["network.latent_dim"] = start.width
    if arm.ranges or arm.own:
        general = {name: (span.min, span.max) for name, span in manifest.mutation.rl_hp_selection.items()}
        ranges = WIDE[pair.algo] if arm.ranges else general
        changes["mutation.rl_hp_selection"] = {
            name: dict(zip(("min", "max"), range_of(start, name, values, usual), strict=True))
            for name, usual in ranges.items()
        }
    if arm.own:
        changes |= {key: reduce(getattr, key.split("."), general_preset) for key in PLAIN if key != "training.patience"}
    changes["training.target_score"] = None
    manifest = apply_overrides(manifest, changes, "start")
    widths = {"evolution.widths": general_preset.evolution.widths} if arm.widths else {}
    manifest = apply_overrides(manifest, {**arm.sets, **widths, **(own_rule if arm.rate else {})}, "arm")
    members = manifest.training.pop_size
    if arm.independent and manifest.has_replay:
        manifest = apply_overrides(manifest, {"training.shards": members, "training.share": "shard"}, "independent")
    return apply_overrides(manifest, {"training.max_steps": 2 * pair.env_steps // members}, "budget")


def range_of(start: Start, name: str, values: dict[str, Any], usual: tuple[float, float]) -> tuple[float, float]:
    if start.off_centre and name.startswith("lr"):
        return 0.001 * values[name], 10**0.1 * values[name]
    return usual


def path_of(pair: str, start: str) -> Path:
    """A file for each start, so that none becomes large."""
    return RESULTS / f"evolution-{pair.replace(':', '-').lower()}-{start}.jsonl"


def lines_of(pair: str) -> list[dict[str, Any]]:
    """Those of all starts."""
    return [line for start in STARTS for line in read_lines(path_of(pair, start))]
