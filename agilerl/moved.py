"""Names of earlier published versions that live elsewhere now: old module -> old name -> new place.

A module that is left of an old path asks `forward` for its names. What works as before comes with one
DeprecationWarning; what does not is an ImportError that says the new name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

MOVED: dict[str, dict[str, str]] = {
    "agilerl.algorithms.core.base": {
        "MultiAgentAlgorithm": "agilerl.algorithms.core.MultiAgentRLAlgorithm",
        "SingleAgentAlgorithm": "agilerl.algorithms.core.RLAlgorithm",
    },
    "agilerl.algorithms.core.wrappers": {
        "AgentWrapper": "agilerl.wrappers.agent.AgentWrapper",
        "OptimizerWrapper": "agilerl.algorithms.core.optimizer_wrapper.OptimizerWrapper",
    },
    "agilerl.components.replay_data": {"ReplayDataset": "agilerl.components.data.ReplayDataset"},
    "agilerl.networks.custom_activation": {"GumbelSoftmax": "agilerl.modules.custom_components.GumbelSoftmax"},
    "agilerl.networks.custom_components": {
        "GumbelSoftmax": "agilerl.modules.custom_components.GumbelSoftmax",
        "NoisyLinear": "agilerl.modules.custom_components.NoisyLinear",
    },
    "agilerl.networks.evolvable_mlp": {"EvolvableMLP": "agilerl.modules.mlp.EvolvableMLP"},
    "agilerl.utils.algo_utils": {
        "observation_space_channels_to_first": "agilerl.utils.utils.observation_space_channels_to_first",
    },
    "agilerl.utils.utils": {
        "initialPopulation": "agilerl.utils.utils.create_population",
        "makeVectEnvs": "agilerl.utils.utils.make_vect_envs",
        "plotPopulationScore": "agilerl.utils.utils.plot_population_score",
        "printHyperparams": "agilerl.utils.utils.print_hyperparams",
    },
}
# Whose arguments are others now, so that a call would not mean the same: (new place, what to mind).
REPLACED: dict[str, dict[str, tuple[str, str]]] = {
    "agilerl.networks.evolvable_cnn": {
        "EvolvableCNN": ("agilerl.modules.cnn.EvolvableCNN", "it has no hidden_size; num_outputs follows input_shape"),
    },
    "agilerl.training.train": {
        "train": (
            "agilerl.training.train_off_policy.train_off_policy",
            "it counts environment steps (max_steps, evo_steps, eval_steps) in place of n_episodes and evo_epochs",
        ),
    },
    "agilerl.training.train_multi_agent": {
        "train_multi_agent": (
            "agilerl.training.train_multi_agent_off_policy.train_multi_agent_off_policy",
            "it counts environment steps (max_steps, evo_steps, eval_steps) in place of n_episodes and evo_epochs",
        ),
    },
    "agilerl.utils.multiprocessing_env": {
        "SubprocVecEnv": (
            "agilerl.vector.pz_async_vec_env.AsyncPettingZooVecEnv",
            "make_multi_agent_vect_envs(env, num_envs) makes one",
        ),
    },
}


def forward(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module: its old names, from where they are now.

    Raises (the returned function):
        ImportError: what stands for the name now takes other arguments; says where it is.
        AttributeError: no such name, neither old nor new.
    """

    def find(name: str) -> Any:
        if name in REPLACED.get(module, {}):
            new, hint = REPLACED[module][name]
            raise ImportError(f"{module}.{name} is now {new}: {hint}. fix: {_import(new)}", name=name, path=module)
        if name not in MOVED.get(module, {}):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = MOVED[module][name]
        text = f"{module}.{name} is now {new}; the old name keeps working. fix: {_import(new)}"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        home, _, value = new.rpartition(".")
        return getattr(import_module(home), value)

    return find


def _import(place: str) -> str:
    home, _, name = place.rpartition(".")
    return f"from {home} import {name}"
