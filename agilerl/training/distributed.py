"""Distributed training: one population on several ranks, synchronised at start, during training and on resume.

Synchronisation during updates is implemented in `engine` and `collect`; this module is for the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.core import foreign
from agilerl.core.checkpoint import decode_tree, digest_tree, encode_tree
from agilerl.errors import ConfigError, NotAvailableYetError, RunError
from agilerl.hpo.evolution import Evolution
from agilerl.ranks import Ranks
from agilerl.training.population import filled
from agilerl.training.store import RunStore

SMALL = 1_000_000  # parameters below which communication takes longer than computation (docs/distributed.md)
EVERYTHING = 2**31
NOISE = ("noise_in", "noise_out")  # buffers of noisy layers: each rank draws its own


def broadcast_population(population: Sequence[Any], evolution: Evolution, ranks: Ranks) -> list[Any]:
    """Broadcast the population of rank 0 and the state of its evolution.

    Raises:
        NotAvailableYetError: the state of an agent or of the evolution cannot be sent.
    """
    if ranks.size == 1:
        return list(population)
    _check_states(population, evolution)
    ranks.check_equal(
        repr([type(agent).__name__ for agent in population]).encode(),
        "the populations given (number and classes of agents)",
        "the same script on all ranks",
    )
    state = {"members": [agent.run_state() for agent in population], "evolution": evolution.state()}
    sent = ranks.broadcast(encode_tree(state) if ranks.is_main else b"")
    if ranks.is_main:
        return list(population)
    tree = decode_tree(sent, "the state of rank 0")
    templates = {type(agent).__name__: agent for agent in population}
    evolution.load_state(tree["evolution"])
    return [filled(agent, templates, member) for agent, member in zip(population, tree["members"], strict=True)]


def _check_states(population: Sequence[Any], evolution: Evolution) -> None:
    for agent in population:
        if not foreign.has_methods(agent, "run_state", "load_run_state", "clone"):
            raise NotAvailableYetError(
                f"agent {agent.index} is a {type(agent).__name__} without run_state() and "
                "load_run_state(state), so rank 0 cannot send it to the others. fix: derive it from "
                "EvolvableAlgorithm, or start one process."
            )
    try:
        evolution.state()
    except RunError as error:
        raise NotAvailableYetError(
            f"several ranks evolve alike only from a state that can be sent. {error} (Or start one process.)"
        ) from error


def share_observations(population: Sequence[Any], ranks: Ranks) -> None:
    """Broadcast rank 0's recent observations and the actions taken in them, by which mutations measure their effect, so
    that all ranks agree."""
    if ranks.size == 1:
        return
    rows = [[a.probe_observations(EVERYTHING), a.taken_actions(EVERYTHING)] for a in population if ranks.is_main]
    sent = ranks.broadcast(encode_tree({"rows": rows}) if ranks.is_main else b"")
    if not ranks.is_main:
        received = decode_tree(sent, "the observations of rank 0")["rows"]
        for agent, (observations, actions) in zip(population, received, strict=True):
            if observations is not None:
                device = next(iter(agent.policy_module().parameters())).device
                agent.remember_observations(_on(observations, device), None if actions is None else actions.to(device))


def _on(tree: Any, device: Any) -> Any:
    return {key: _on(part, device) for key, part in tree.items()} if isinstance(tree, dict) else tree.to(device)


def check_alike(population: Sequence[Any], ranks: Ranks, generation: int) -> None:
    """Raise RankError if the populations of the ranks are not bit-identical; called once per generation."""
    if ranks.size > 1:
        fix = "report it with the script; ranks on unlike machines or versions round differently"
        ranks.check_equal(digest(population).encode(), f"after generation {generation} the weights", fix)


def digest(population: Sequence[Any]) -> str:
    """Return a sha256 of rank-invariant state: weights, targets, moments, hyperparameters, steps and fitness."""
    return digest_tree({"members": [_alike(agent) for agent in population]})


def _alike(agent: EvolvableAlgorithm) -> dict[str, Any]:
    """Return the rank-invariant part of an agent's state, without the noise of its layers and lanes."""
    state = agent.state()
    weights = {
        name: {key: part for key, part in network["weights"].items() if not key.endswith(NOISE)}
        for name, network in state["networks"].items()
    }
    numbers = {"index": int(agent.index), "steps": int(agent.steps[-1]), "fitness": [float(f) for f in agent.fitness]}
    hyperparameters = {name: repr(value) for name, value in agent.hyperparameters().items()}
    return {**{name: state[name] for name in ("class", "registry", "optimizers", "hp_config")}, "weights": weights,
            "hyperparameters": hyperparameters, **numbers}  # fmt: skip


# -- a run on disk ----------------------------------------------------------------------------------------------------


def folder_of(resume: Any, ranks: Ranks) -> Path | None:
    """Return the folder of a rank's part of a run: the run folder for rank 0, sub-folders of it for the others."""
    if resume is None or ranks.is_main:
        return None if resume is None else Path(resume)
    return Path(resume) / f"rank-{ranks.rank}"


def sync_resume(store: RunStore | None, ranks: Ranks) -> None:
    """Resume all ranks from the newest generation saved on all of them.

    Raises:
        RunError: the number of processes differs from the original run, or a rank's part is missing.
    """
    if store is None:
        return
    saved = store.saved
    saved_ranks = 0 if saved is None else int(saved.body["run"].get("ranks", 1))
    number = -1 if saved is None else saved.number
    saved_by_rank = ranks.gather_plain([saved_ranks, number])
    sizes, numbers = [entry[0] for entry in saved_by_rank], [entry[1] for entry in saved_by_rank]
    if sizes[0] not in (0, ranks.size):
        raise RunError(
            f"{store.folder} is of a run of {sizes[0]} process{'es' * (sizes[0] > 1)}, each with its own replay; "
            f"here {'is' if ranks.size == 1 else 'are'} {ranks.size}. fix: start {sizes[0]}, or another folder."
        )
    if len(set(sizes)) > 1:
        lost = [rank for rank, size in enumerate(sizes) if size != max(sizes)]
        raise RunError(
            f"the ranks {lost} have no part of the run that the others go on with. fix: the folder with all of its "
            "rank-<number> folders, on every machine those of its own ranks; or another folder."
        )
    if number > min(numbers):
        store.return_to(min(numbers))


# -- hints and checks --------------------------------------------------------------------------------------------------


def hint(population: Sequence[Any], ranks: Ranks) -> list[str]:
    """Return hints about distributed training, to show once."""
    if ranks.size == 1:
        return []
    hints = [f"{ranks.size} processes train one population: each makes 1/{ranks.size} of the steps and of every batch"]
    networks = population[0].evolvable_attributes(networks_only=True).values()
    count = sum(p.numel() for network in networks for p in network.parameters())
    if count < SMALL:
        hints.append(
            f"a member has {count} parameters: for networks as small as that, exchanging gradients takes longer than "
            "computing them, and a larger population or more environments in one process is cheaper"
        )
    return hints


def check_same_request(asked: dict[str, Any], ranks: Ranks) -> None:
    """Raise RankError if the ranks were called with different arguments."""
    ranks.check_equal(repr(sorted(asked.items())).encode(), f"the arguments ({', '.join(asked)})", "the same script")


def check_shares(population: Sequence[Any], ranks: Ranks) -> None:
    """Raise ConfigError if a batch has fewer rows than there are ranks."""
    small = [agent for agent in population if hasattr(agent, "batch_size") and agent.batch_size < ranks.size]
    if small:
        raise ConfigError(
            f"agent {small[0].index} has batch_size={small[0].batch_size}, and {ranks.size} processes share it. "
            f"fix: batch_size={ranks.size} or more (rows of all processes together)."
        )
