"""Which keys of a manifest need or exclude one another, as a table.

Beside the keys, its rows know these facts: `algorithm`, `says` (what it learns from), `has_training_episodes`,
`reads_state`, `changes_gamma` (a section that changes the discount, or empty) and `some_range` (of a hyperparameter).
"""

from __future__ import annotations

from agilerl.core.compatibility import OF_EXPLORATION, OF_LOOPS, OF_RUNS, Rule, Values, at_least, only
from agilerl.hpo.schemes import READERS, scheme_of

OF_TOURNAMENTS = (
    "mutation.probabilities", "mutation.mutation_sd", "mutation.mutate_elite", "tournament_selection.tournament_size",
    "tournament_selection.elitism",
)  # fmt: skip
"""Settings of schemes that mutate (`hpo.schemes.Scheme.mutates`)."""
WITHOUT_WAITING = {
    "evolution.scheme": "tournament", "evolution.restarts": False, "training.share": "shard",
    "training.eval_members": None, "training.ensemble": False, "training.elite_rescore_episodes": 0,
    "training.opponents": None, "training.fitness": "returns",
}  # fmt: skip
"""Values that settings must have in asynchronous mode; others compare all members within one generation."""
OF_HINDSIGHT = {
    "replay_buffer.n_step": 1, "replay_buffer.prioritized": False, "training.reward_scale": 1.0,
    "training.clip_rewards": False, "training.reward_floor": None,
}  # fmt: skip
"""Values that settings must have with hindsight, which computes rewards of the environment for single steps."""
_SHARE = "training.share"
_RANKED = "ranks members by the episodes that they train in, and {algorithm} {says}"
_BY_EVALUATION = "evolution.scheme=halving, or tournament, with judge=evaluation"
_TRAINS = {"has_training_episodes": only(True)}


def _readers(key: str, names: list[str]) -> Rule:
    """The row of a key that some schemes read."""
    others = "".join(f" or {name}" for name in names[1:])
    return Rule(
        (f"evolution.{key}",), {"evolution.scheme": Values(lambda x: key in scheme_of(x).reads, names[0], others)}
    )


RULES = (
    Rule(OF_TOURNAMENTS, {"evolution.scheme": Values(lambda name: scheme_of(name).mutates, "tournament")},
         yields=("evolution.scheme", *OF_TOURNAMENTS)),
    *(_readers(key, names) for key, names in READERS.items()),
    Rule(("evolution.widths",), {"evolution.founders": only("spread")}, yields=("evolution.widths",)),
    Rule(
        ("evolution.scheme",), {"mutation.rl_hp_selection": Values(bool, None)},
        "changes hyperparameters, and mutation.rl_hp_selection names none", "give the ranges of some: {some_range}",
        when=lambda name: scheme_of(name).only_hyperparameters,
    ),
    Rule(
        ("evolution.schedule",),
        {"training.pop_size": only(1), "evolution.scheme": only("tournament"), "evolution.restarts": only(False)},
        "is the evolution of one agent",
    ),
    Rule(("evolution.max_lag",), {"evolution.mode": only("async")}),
    Rule(("evolution.mode", "training.share"), {"training.shards": at_least(2)}),
    Rule(
        ("evolution.mode",), {key: only(value) for key, value in WITHOUT_WAITING.items() if key != _SHARE},
        "trains, evaluates and selects one shard at a time, while others train", yields=(*WITHOUT_WAITING,),
    ),
    Rule(("evolution.mode",), {_SHARE: only(WITHOUT_WAITING[_SHARE])}, yields=(_SHARE,)),  # of replay alone
    Rule(("training.eval_members",), _TRAINS, _RANKED, _BY_EVALUATION),
    Rule(("evolution.judge",), _TRAINS, _RANKED, _BY_EVALUATION),
    Rule(("evolution.scheme",), _TRAINS, _RANKED, _BY_EVALUATION, when=lambda name: scheme_of(name).by_returns),
    Rule(("replay_buffer.alpha",), {"replay_buffer.prioritized": only(True)}),
    Rule(("replay_buffer.goals_per_step",), {"replay_buffer.hindsight": Values(bool, "future")}),
    Rule(("replay_buffer.hindsight",), {k: only(value) for k, value in OF_HINDSIGHT.items()}, yields=(*OF_HINDSIGHT,)),
    Rule(
        ("replay_buffer.n_step",), {"changes_gamma": only("")},
        "sums rewards by one gamma for the whole population, which {changes_gamma} would change",
        "take gamma out of {changes_gamma}",
    ),
    Rule(
        ("environment.with_state",), {"reads_state": only(True)},
        "shows env.state() to values of all agents, which {algorithm} does not have", "algo='MAPPO'",
    ),
    Rule(
        ("algorithm.batch_size",), {"replay_buffer.max_size": Values(minimum="algorithm.batch_size")},
        "is more than the memory holds, so that nothing would be learned", when=bool,
    ),
)  # fmt: skip
OF_TRAINING = (*OF_LOOPS, *OF_EXPLORATION, *OF_RUNS)  # keys without the section `training`
