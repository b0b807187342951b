"""Manifest keys that algorithms ignore, by the kind of their experience (`Experience.name`)."""

from __future__ import annotations

OF_DATA = ("training.dataset", "training.fitness", "training.held_out", "training.fqe_gamma", "training.fqe_updates")
OF_EXPLORATION = (
    "training.learning_delay", "training.random_steps", "training.eps_start", "training.eps_end", "training.eps_decay",
    "training.explore_hold", "training.explore_least",
)  # fmt: skip
OF_SHARED_REPLAY = ("training.ensemble", "training.overlap")
OF_ENVIRONMENTS = (
    "network", "replay_buffer", "environment.num_envs", "environment.backend", "environment.healing",
    "environment.num_workers", "environment.deadline_s", "environment.max_restarts", "environment.asynchronous",
    "environment.with_state", "training.eval_steps", "training.eval_episodes", "training.eval_screen",
    "training.eval_share", *OF_EXPLORATION, "training.train_max_episode_steps", "training.confirm_episodes",
    "training.stop_margin", "training.reward_floor", "training.reward_scale", "training.clip_rewards",
    "training.normalize_rewards", "training.lockstep", "training.carry_envs", "training.opponents",
    *OF_SHARED_REPLAY, "training.elite_rescore_episodes", *OF_DATA,
)  # fmt: skip
"""Keys of networks, episodes and environment steps, which a language policy ignores."""
IGNORED = {
    "transitions": ("training.opponents", *OF_DATA),
    "rounds": (
        *OF_EXPLORATION[1:], "environment.asynchronous", "training.ensemble", "training.opponents",
        "training.reward_floor", "replay_buffer.hindsight", *OF_DATA,
    ),
    "rollouts": (*OF_EXPLORATION, *OF_SHARED_REPLAY, "replay_buffer", "training.opponents", *OF_DATA),
    "dataset": (*OF_EXPLORATION, *OF_SHARED_REPLAY, "replay_buffer.hindsight", "training.opponents"),
    "team_transitions": (
        "training.eps_start", "training.eps_end", "training.eps_decay", "training.opponents",
        "training.ensemble", "environment.backend", "replay_buffer.hindsight", *OF_DATA,
    ),
    "team_values": ("training.opponents", "training.ensemble", "environment.backend", *OF_DATA),
    "team_rollouts": (*OF_EXPLORATION, *OF_SHARED_REPLAY, "replay_buffer", "environment.backend", *OF_DATA),
    "completions": OF_ENVIRONMENTS,
    "preferences": OF_ENVIRONMENTS,
    "examples": OF_ENVIRONMENTS,
}  # fmt: skip


def ignored_by(experience: str) -> tuple[str, ...]:
    """Dotted keys, or whole sections, that an algorithm of this experience ignores; empty for an unknown experience."""
    return IGNORED.get(experience, ())
