"""Files of Stable-Baselines3: the zip of `model.save`, of policies of dense layers.

Read are the tensors of `policy.pth` and `pytorch_variables.pth`, and the plain numbers of `data`. Its other entries are
pickles, and are not read.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from torch import Tensor

from agilerl.algorithms.imported.agents import Place, concatenated
from agilerl.algorithms.imported.dense import Dense, checked_activation, connected, layer, sequence
from agilerl.algorithms.imported.files import Layout, member_of, named_tensors, plain_json, read_zip, tensors_in
from agilerl.core.tree import Tree
from agilerl.errors import ConfigError, NotAvailableYetError, RunError

LIBRARY = "Stable-Baselines3"
POLICY, VARIABLES, DATA = "policy.pth", "pytorch_variables.pth", "data"
PICKLED = ":serialized:"
MIN_TEMPERATURE = 1e-8  # in place of ent_coef=0: SAC here stores log α
MAX_COUNT = 10**7  # of batches and rollouts; more is not a setting, and would not fit into memory
# Hyperparameters that the library often stores as pickles, with the names that they have here ("": none).
OFTEN_PICKLED = {
    "learning_rate": "lr", "clip_range": "clip_coef", "clip_range_vf": "", "train_freq": "learn_step",
    "action_noise": "expl_noise", "batch_size": "batch_size", "gamma": "gamma",
}  # fmt: skip
COMMON = {"gamma": ("gamma",), "batch_size": ("batch_size",)}
OF_VALUES = {**COMMON, "learning_rate": ("lr",)}
OF_ROLLOUTS = {
    **COMMON, "learning_rate": ("lr",), "gae_lambda": ("gae_lambda",), "n_epochs": ("update_epochs",),
    "ent_coef": ("ent_coef",), "vf_coef": ("vf_coef",), "max_grad_norm": ("max_grad_norm",),
    "target_kl": ("target_kl",),
}  # fmt: skip
OF_ACTOR_CRITICS = {**COMMON, "learning_rate": ("lr_actor", "lr_critic"), "tau": ("tau",)}
OF_SOFT = {
    **OF_ACTOR_CRITICS, "learning_rate": ("lr_actor", "lr_critic", "lr_alpha"), "target_entropy": ("target_entropy",),
}  # fmt: skip
OF_DETERMINISTIC = {
    **OF_ACTOR_CRITICS, "policy_delay": ("policy_freq",), "target_policy_noise": ("policy_noise",),
    "target_noise_clip": ("noise_clip",),
}  # fmt: skip


def read(path: str | os.PathLike[str], place: Place, activation: str | None = None) -> tuple[Any, list[str]]:
    """Return (agent, names of hyperparameters that the file holds as pickles alone).

    Args:
        activation: between hidden layers; None takes the file's text, else tanh for policies with a state value and
            ReLU for others, the defaults of the library.

    Raises:
        RunError: no such file, damaged, or an unknown layout. NotAvailableYetError: images, a memory, or gSDE.
        ConfigError: unknown activation. ShapeError, AlgorithmError: of another environment.
    """
    archive = read_zip(path)
    content = member_of(archive, POLICY, place.source)
    if content is None:
        raise RunError(f"{place.source} holds no {POLICY}. fix: a file that model.save of {LIBRARY} wrote.")
    layout = Layout(
        named_tensors(tensors_in(content, f"{place.source}: {POLICY}"), place.source), place.source, LIBRARY
    )
    data = plain_json(member_of(archive, DATA, place.source), f"{place.source}: {DATA}")
    if data.get("use_sde") is True or "actor.log_std" in layout:
        raise NotAvailableYetError(f"{place.source}: use_sde=True is not imported. fix: use_sde=False.")
    variables = member_of(archive, VARIABLES, place.source)
    ignored = [name for name in OFTEN_PICKLED if isinstance(data.get(name), Mapping) and PICKLED in data[name]]
    return _agent(layout, place, data, variables, activation or _activation(data)), ignored


def _activation(data: Mapping[str, Any]) -> str | None:
    """Return the activation that the file names in plain text beside a pickle; None without one.

    Raises:
        ConfigError: the text names something else than an activation of torch, which a default would replace silently.
    """
    options = data.get("policy_kwargs")
    text = options.get("activation_fn") if isinstance(options, Mapping) else None
    if text is None:
        return None
    match = re.fullmatch(r"<class 'torch\.nn\.modules\.activation\.(\w+)'>", text) if isinstance(text, str) else None
    if match is None:
        raise ConfigError(
            f"the policy has the activation {str(text)[:80]}, which is not one of torch. "
            "fix: activation='Tanh', or whichever computes the same."
        )
    return match[1]


def _agent(layout: Layout, place: Place, data: Mapping[str, Any], variables: bytes | None, act: str | None) -> Any:
    if layout.has("q_net."):
        return _of_values(layout, place, data, checked_activation(act or "ReLU"))
    if layout.has("action_net.") or layout.has("mlp_extractor."):
        return _of_rollouts(layout, place, data, checked_activation(act or "Tanh"))
    if "actor.mu.weight" in layout:
        return _soft(layout, place, data, variables, checked_activation(act or "ReLU"))
    if layout.has("actor.mu."):
        return _deterministic(layout, place, data, checked_activation(act or "ReLU"))
    raise layout.unknown("no policy of DQN, PPO, A2C, SAC, TD3 or DDPG")


def _whole(layout: Layout, prefix: str, act: str) -> list[Dense]:
    """Return the layers of one sequence that ends in an output."""
    layers = sequence(layout, prefix, act)
    if not layers:
        raise layout.unknown(f"{prefix}0.weight is missing")
    return connected(layout, layers, prefix.rstrip("."))


def _of_values(layout: Layout, place: Place, data: Mapping[str, Any], act: str) -> Any:
    layers = _whole(layout, "q_net.q_net.", act)
    target = _whole(layout, "q_net_target.q_net.", act)
    layout.finish()
    return place.values(layers, target, numbers(data, OF_VALUES))


def _of_rollouts(layout: Layout, place: Place, data: Mapping[str, Any], act: str) -> Any:
    shared = sequence(layout, "mlp_extractor.shared_net.", act)  # of versions before 1.8
    policy, value = (
        connected(layout, [*shared, *sequence(layout, f"mlp_extractor.{name}_net.", act), layer(layout, output)], name)
        for name, output in (("policy", "action_net"), ("value", "value_net"))
    )
    log_std = layout.take("log_std", 1) if "log_std" in layout else None
    layout.finish()
    settings = numbers(data, OF_ROLLOUTS)
    steps, lanes = data.get("n_steps"), data.get("n_envs")
    if _is_count(steps) and _is_count(lanes):
        settings["learn_step"] = steps * lanes
    return place.policy_gradient(policy, value, log_std, settings)


def _critics(layout: Layout, act: str) -> tuple[list[list[Dense]], list[list[Dense]]]:
    """Return the layers of the critics and of their targets."""
    count = 2 if layout.has("critic.qf1.") else 1
    critics, targets = (
        [_whole(layout, f"{name}.qf{k}.", act) for k in range(count)] for name in ("critic", "critic_target")
    )
    return critics, targets


def _soft(layout: Layout, place: Place, data: Mapping[str, Any], variables: bytes | None, act: str) -> Any:
    hidden = sequence(layout, "actor.latent_pi.", act)
    output = concatenated(layer(layout, "actor.mu"), layer(layout, "actor.log_std"))
    policy = connected(layout, [*hidden, output], "actor")
    critics, targets = _critics(layout, act)
    layout.finish()
    if len(critics) != 2:
        raise layout.unknown("SAC has two critics here")
    settings = numbers(data, OF_SOFT)
    if variables is not None:
        source = f"{place.source}: {VARIABLES}"
        tree = {
            name: part
            for name, part in _items(tensors_in(variables, source))
            if name in ("log_ent_coef", "ent_coef_tensor")
        }
        for name, tensor in named_tensors(tree, source).items():
            settings |= _temperature(name, tensor, source)
    return place.stochastic_actor_critic(policy, critics, targets, settings)


def _temperature(name: str, tensor: Tensor, source: str) -> dict[str, Any]:
    """Return the temperature α and whether it is learned, from `log_ent_coef` or the fixed `ent_coef_tensor`.

    Raises:
        RunError: not one number, or a negative α.
    """
    value = float(tensor.flatten()[0]) if tensor.numel() == 1 else math.nan
    is_learned = name == "log_ent_coef"
    alpha = math.exp(min(value, 80.0)) if is_learned else value
    if not alpha >= 0:
        raise RunError(
            f"{source}: {name} of shape {list(tensor.shape)} gives no temperature of SAC ({alpha:g}). "
            "fix: a file that model.save wrote."
        )
    return {"init_temperature": max(alpha, MIN_TEMPERATURE), "learn_temperature": is_learned}


def _items(tree: Tree) -> list[tuple[str, Any]]:
    return list(tree.items()) if isinstance(tree, Mapping) else []


def _deterministic(layout: Layout, place: Place, data: Mapping[str, Any], act: str) -> Any:
    policy, target = (_whole(layout, f"{name}.mu.", act) for name in ("actor", "actor_target"))
    critics, targets = _critics(layout, act)
    layout.finish()
    return place.deterministic_actor_critic((policy, target), critics, targets, numbers(data, OF_DETERMINISTIC))


def numbers(data: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return the plain numbers of a file by our names; other entries are left out."""
    taken: dict[str, Any] = {}
    for theirs, ours in names.items():
        value = data.get(theirs)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            continue
        if isinstance(value, int) and abs(value) > MAX_COUNT:
            continue
        taken |= dict.fromkeys(ours, value)
    return taken


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_COUNT
