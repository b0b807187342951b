"""The kinds of mutation: how they are asked for, drawn, shown and repeated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One kind of mutation.

    Attributes:
        name: in records (`telemetry.record.Birth.kind`). key: of its relative weight in `mutation.probabilities`.
        operator: "module:function" of the `hpo.mutation.Mutations` and an agent, which it changes in place; returns the
            `MutationRecord`, of kind "none" if nothing changed.
        argument: of `Mutations` for the weight, as published; else it is in `Mutations.others`.
        label: the agent's `mut` after it; empty: the path of the record.
        title: in legends; the name by default. short: in trees, at most nine characters; the path by default.
        of_language: whether it applies to language policies, whose base is frozen.
        replay: "module:function" of an agent, a `hpo.schedule.Change` and a generator, by which a schedule repeats it;
            empty if a schedule leaves it out.
    """

    name: str
    key: str
    operator: str = ""
    argument: str = ""
    label: str = ""
    title: str = ""
    short: str = ""
    of_language: bool = False
    replay: str = ""


_ROWS = (  # in the order of draws: append new ones
    Kind("none", "no_mut", argument="no_mutation", label="None", title="unchanged", of_language=True),
    Kind(
        "architecture", "arch_mut", "agilerl.hpo.mutation:Mutations._architecture", "architecture",
        replay="agilerl.hpo.schedule:set_architecture",
    ),
    Kind(
        "parameters", "params_mut", "agilerl.hpo.mutation:Mutations._parameters", "parameters", "param", short="noise"
    ),
    Kind(
        "activation", "act_mut", "agilerl.hpo.mutation:Mutations._activation", "activation", "act",
        replay="agilerl.hpo.schedule:set_activation",
    ),
    Kind(
        "rl_hp", "rl_hp_mut", "agilerl.hpo.mutation:Mutations._hyperparameter", "rl_hp", title="hyperparameter",
        of_language=True, replay="agilerl.hpo.schedule:set_values",
    ),
)  # fmt: skip
KINDS = {row.name: row for row in _ROWS}
REPLAYED = tuple(row.name for row in _ROWS if row.replay)
