"""Moved names of earlier published versions: old module -> old name -> new path.

Modules at old paths get their names by `forward`. Compatible names come with one DeprecationWarning; incompatible ones
raise an ImportError with the new name.
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
    "agilerl.training.trainer": {"LocalTrainer": "agilerl.trainer.LocalTrainer"},
    "agilerl.utils.algo_utils": {
        "observation_space_channels_to_first": "agilerl.utils.utils.observation_space_channels_to_first",
    },
    "agilerl.utils.utils": {
        "initialPopulation": "agilerl.utils.utils.create_population",
        "makeSkillVectEnvs": "agilerl.utils.utils.make_skill_vect_envs",
        "makeVectEnvs": "agilerl.utils.utils.make_vect_envs",
        "plotPopulationScore": "agilerl.utils.utils.plot_population_score",
        "printHyperparams": "agilerl.utils.utils.print_hyperparams",
    },
    "agilerl.wrappers.gem_wrappers": {
        "SyncGemVecEnv": "agilerl.llm_envs.multiturn.SyncMultiTurnVecEnv",
        "TokenObservationWrapper": "agilerl.llm_envs.multiturn.TokenObservationWrapper",
    },
}
# Names whose arguments have changed incompatibly: (new path, hint).
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
    """The `__getattr__` of a module, which resolves its old names.

    Raises (the returned function):
        ImportError: the name's replacement has other arguments; the message has its path.
        AttributeError: an unknown name.
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
