"""`create_population` for language algorithms: no spaces, one base model shared by all members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agilerl.core.rng import resolve_seed
from agilerl.core.signatures import constructor_signature
from agilerl.errors import AlgorithmError, ConfigError
from agilerl.utils.legacy import constructor_arguments

OF_THE_CALL = ("self", "index", "hp_config", "device", "accelerator", "wrap", "mut", "seed")
"""Arguments of constructors that `create_population` sets."""


def language_population(
    cls: Any,
    size: int,
    init_hp: Mapping[str, Any] | None,
    algo_kwargs: Mapping[str, Any] | None,
    base: Mapping[str, Any],
    meaningless: Mapping[str, Any],
    seed: int | None,
    **shared: Any,
) -> list[Any]:
    """See `create_population`.

    Args:
        base: actor_network, tokenizer, model_name, lora_config and vllm_config, as passed.
        meaningless: arguments of networks and spaces, as passed. shared: hp_config, device, accelerator.

    Raises:
        ConfigError: an argument that does not apply to language models. AlgorithmError: no base, or two.
    """
    for name, value in meaningless.items():
        if value is not None:
            raise ConfigError(
                f"create_population({name}=) describes networks or spaces, and {cls.__name__} adapts a language model. "
                "fix: leave it out; model_name= or actor_network= with tokenizer= names the model."
            )
    accepted = set(constructor_signature(cls).parameters).difference(OF_THE_CALL)
    base_arguments = {name: value for name, value in base.items() if value is not None}
    arguments = {**constructor_arguments(init_hp, accepted), **base_arguments, **dict(algo_kwargs or {})}
    unknown = sorted(set(arguments) - accepted)
    if unknown:
        raise AlgorithmError(f"{cls.__name__} has no argument {unknown[0]!r}. fix: leave it out of algo_kwargs.")
    population: list[Any] = cls.population(size, seed=resolve_seed(seed), **shared, **arguments)
    for agent in population:
        agent.check_registry()
    return population
