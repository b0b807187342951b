"""Claim: calls of the kernels in C stay within their memory and repeat their bits, for shapes drawn at random.

    python benchmarks/sanitized_kernels.py --calls 1000000 [--plain] [--small] [--seed 0] [--first 0]

Fills the structures of `kernels/population.h` directly, without torch: about a thousand shapes a second. A shape is
drawn from (seed, number, small) alone, so `--first NUMBER --calls 1` repeats it. For each shape:

- every buffer lies between guard bytes, which must be unchanged afterwards, as must be all inputs; the room is exactly
  as large as the room function says. Guards, room and unused places of rows hold NaN, so that a number read from them
  shows in the results; on the sanitized build guards are poisoned as well.
- results are finite, but in every 20th shape, of which one number is NaN or infinite; members that are not live are
  unchanged.
- bits are equal with vectors of 256 and of 512 bits, and for members together, one by one, and in a call of its
  own (one member of every eighth shape).
- every 50th shape: outputs, and the errors of temporal differences, equal a plain forward pass in float64.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import POINTER, c_size_t, c_void_p, cast
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from agilerl.native import library as native
from agilerl.native.library import (
    ACTIVATIONS,
    MAX_DEPTH,
    ActorCritic,
    Forward,
    Library,
    Member,
    PolicyGradient,
    Rows,
    SoftActorCritic,
    TeamActorCritic,
    TeamAgent,
    TeamGroup,
    TemporalDifference,
)

GUARD = 64  # bytes between buffers
ARENA = 1 << 27  # bytes
POOL = 1 << 20  # random numbers that buffers are filled from
INTEGERS, ODD, SHIFT = 2048, np.uint64(0x9E3779B97F4A7C15), np.uint64(33)
EDGES = (1, 7, 8, 15, 16, 17, 31, 32, 33)
WIDTHS = [np.array([n for n in (*EDGES, *EDGES, *range(1, 41)) if n <= most]) for most in (8, 17, 17, 40)]
BATCHES = [[n for n in (*EDGES, 63, 64, 65, *range(1, 71)) if n <= most] for most in (8, 17, 17, 33, 70)]
DEPTHS = (1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 4, 4, 6, MAX_DEPTH)
LAYER = 18  # integers that describe a layer, in the order of the fields of `native.Layer`
NETWORKS = {
    Forward: ("member",), TemporalDifference: ("member",), PolicyGradient: ("policy", "critic"),
    ActorCritic: ("actor", "encoder", "head"), SoftActorCritic: ("actor", "encoder", "head"), TeamActorCritic: (),
}  # fmt: skip
STATE = ("value", "target", "first", "second", "steps")
SPOILED = ("obs", "next_obs", "joint", "next_joint", "reward", "discount", "numbers", "rows.value", "critics.target")
RESULTS = ("outputs", "loss", "policy_loss", "actor_loss", "divergence", "error")

Fields = dict[str, tuple[Any, int | None]]  # name -> (array, axis of its members)


@dataclass(frozen=True)
class Networks:
    """Random dense networks of N members.

    Attributes:
        described: `Member` structures as integers [N, 1 + MAX_DEPTH * LAYER]. used: layers that exist [N, depth].
        layers: [N, depth, LAYER]. ends: first column of a row after the parameters [N].
        is_dense: whether parameters follow one another without gaps.
    """

    described: Any
    used: Any
    layers: Any
    ends: Any
    is_dense: bool


@dataclass(frozen=True)
class Shape:
    """One call and its buffers.

    Attributes:
        label: kind of the call. settings: its plain fields. optimizer: plain fields of all rows.
        fields: buffers by name; those of rows as "rows.value", of agents and groups of a team as "group 0.policy".
        agents: column, start, width, legal and components of each agent of a team. groups: agents of each group.
        is_spoiled: whether one number is NaN or infinite, so that results may be.
    """

    label: str
    kind: Any
    is_float64: bool
    members: int
    settings: dict[str, Any]
    optimizer: dict[str, Any]
    fields: Fields
    agents: Sequence[Sequence[int]] = ()
    groups: Sequence[Sequence[int]] = ()
    is_spoiled: bool = False


class Draws:
    """Random numbers of one shape.

    Args:
        pools: kind -> precision -> numbers [POOL], slices of which fill buffers; "bits": integers.
        is_small: draw widths and batches of at most 17 but in every tenth shape.
    """

    def __init__(
        self, pools: Mapping[str, Mapping[bool, Any]], seed: int, number: int, is_small: bool = False
    ) -> None:  # fmt: skip
        self._pools, mixed = pools, _mixed(_mixed(seed) + number)
        start = mixed % (POOL - INTEGERS)
        bits = pools["bits"][True][start : start + INTEGERS] ^ np.uint64(mixed)
        self._array, self._taken = ((bits * ODD) >> SHIFT).view(np.int64), 0
        self._integers = self._array.tolist()
        self.is_float64 = self.chance(2)
        sizes = slice(3) if is_small and not self.chance(10) else slice(None)
        self._widths = self.one_of(WIDTHS[sizes])
        self.members, self.updates = self.one_of((1, 1, 2, 2, 3, 4, 5)), self.one_of((1, 1, 1, 1, 2, 3))
        self.batch = self.one_of(self.one_of(BATCHES[sizes]))

    def below(self, limit: int) -> int:
        """Return an integer in [0, limit)."""
        self._taken += 1
        return int(self._integers[self._taken % INTEGERS] % limit)

    def array(self, limit: Any, *shape: int) -> Any:
        """Return few integers in [0, limit)."""
        size = math.prod(shape)
        if self._taken + size >= INTEGERS:
            self._taken = 0
        self._taken += size
        return self._array[self._taken - size : self._taken].reshape(shape) % limit

    def choices(self, limit: Any, *shape: int) -> Any:
        """Return many integers in [0, limit)."""
        return (self.numbers("uniform", *shape, is_float64=True) * limit).astype(np.int64)

    def chance(self, count: int) -> bool:
        """Return True once in `count` times."""
        return self.below(count) == 0

    def one_of(self, choices: Sequence[Any]) -> Any:
        """Return one of the choices."""
        return choices[self.below(len(choices))]

    def width(self) -> int:
        """Return the width of a layer."""
        return int(self.one_of(self._widths))

    def widths(self, *shape: int) -> Any:
        """Return widths of layers."""
        return self._widths[self.array(len(self._widths), *shape)]

    def numbers(self, kind: str, *shape: int, is_float64: bool | None = None) -> Any:
        """Return numbers of a kind: "normal", "small" (weights) or "uniform"."""
        size, pool = math.prod(shape), self._pools[kind][self.is_float64 if is_float64 is None else is_float64]
        start = self.below(POOL - size)
        return pool[start : start + size].reshape(shape)

    def mask(self, *shape: int, legal: Any = None) -> Any:
        """Return a mask [..., choices] with these choices legal."""
        mask = (self.numbers("uniform", *shape) < 0.6).view(np.uint8)
        if legal is not None:
            np.put_along_axis(mask, legal[..., None], 1, -1)
        return mask


def pools() -> dict[str, dict[bool, Any]]:
    """Return the numbers that buffers are filled from."""
    rng = np.random.default_rng(0)
    normal, uniform = rng.standard_normal(POOL), rng.random(POOL)
    kinds = {"normal": normal, "small": 0.3 * normal, "uniform": uniform}
    numbers = {name: {True: x, False: x.astype(np.float32)} for name, x in kinds.items()}
    return {**numbers, "bits": {True: rng.integers(1 << 63, size=POOL, dtype=np.uint64)}}


def _mixed(number: int) -> int:
    """Return 63 bits that depend on all bits of a number (Steele et al. 2014, SplitMix)."""
    number = (number + 0x9E3779B97F4A7C15) % (1 << 64)
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 % (1 << 64)
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB % (1 << 64)
    return (number ^ (number >> 31)) >> 1


def convolution(draws: Draws, inputs: int) -> list[int]:
    """Return sizes of a convolution, the last fields of its layer, that reads images of `inputs` numbers."""
    channels = draws.one_of([n for n in range(1, inputs + 1) if inputs % n == 0])
    height = draws.one_of([n for n in range(1, inputs // channels + 1) if inputs // channels % n == 0])
    size, padding = (height, inputs // channels // height), [draws.below(2), draws.below(2)]
    kernel = [1 + draws.below(min(3, n + 2 * pad)) for n, pad in zip(size, padding, strict=True)]
    return [channels, *size, *kernel, 1 + draws.below(2), 1 + draws.below(2), *padding]


def positions(layers: Any) -> Any:
    """Return the outputs of each channel, 1 of a dense layer, of layers [..., LAYER]."""
    size, kernel, stride, padding = (layers[..., k : k + 2] for k in (10, 12, 14, 16))
    return ((size + 2 * padding - kernel) // np.maximum(stride, 1) + 1).prod(-1)


def weights(layers: Any) -> tuple[Any, Any]:
    """Return the terms and units, columns and rows of the weights, of layers [..., LAYER]."""
    channels = layers[..., 9]
    terms = np.where(channels > 0, channels * layers[..., 12:14].prod(-1), layers[..., 0])
    return terms, layers[..., 1] // positions(layers)


def networks(
    draws: Draws, count: int, inputs: Any, outputs: int, start: Any = 0, min_depth: int = 1, reads_images: bool = False
) -> Networks:
    """Draw networks of `count` members; depths differ in every fourth shape.

    Args:
        inputs: of all, or of each [count]. start: first column of a row for the parameters, of all or of each.
        reads_images: begin every second one of several layers by a convolution.
    """
    deepest = max(draws.one_of(DEPTHS), min_depth)
    depths = np.full(count, deepest)
    if draws.chance(4):
        depths = min_depth + draws.array(deepest + 1 - min_depth, count)
        deepest = int(depths.max())
    used = np.arange(deepest) < depths[:, None]
    widths = draws.widths(count, deepest + 1)
    widths[:, 0], widths[np.arange(count), depths] = inputs, outputs
    layers = np.zeros((count, deepest, LAYER), np.int64)
    if reads_images and depths.min() > 1 and draws.chance(2):
        layers[:, 0, 9:] = convolution(draws, inputs)
        widths[:, 1] = (1 + draws.array(6, count)) * positions(layers[:, 0])
    before, after = widths[:, :-1], widths[:, 1:]
    norm = draws.array(2, count, deepest) if draws.chance(2) else np.zeros_like(before)
    norm = norm * (layers[..., 9] == 0)
    is_dense = not draws.chance(3)
    layers[..., 0], layers[..., 1] = before, after
    before, after = weights(layers)
    if is_dense:
        row, column = before, after
        size = column * (row + 1 + 2 * norm) * used
    else:
        row, column = (before.max(0), after.max(0)) if draws.chance(2) else (before, after)
        row = row + draws.below(3)
        size = column * (row + 3) + draws.below(4)
    ends = size.cumsum(-1) + np.reshape(start, (-1, 1))
    described = np.zeros((count, 1 + MAX_DEPTH * LAYER), np.int64)
    layers[..., 2], layers[..., 3] = draws.array(len(ACTIVATIONS), count, deepest), norm
    layers[..., 4], layers[..., 5] = ends - size, row
    layers[..., 6] = layers[..., 4] + column * row
    layers[..., 7], layers[..., 8] = layers[..., 6] + column, layers[..., 6] + 2 * column
    described[:, 0], described[:, 1 : 1 + deepest * LAYER] = depths, layers.reshape(count, -1)
    last = ends[:, -1] if len(ends) == count else ends[:, -1].repeat(count)
    return Networks(described, used, layers, last, is_dense)


def parameters(parts: Iterable[Networks], count: int, stride: int) -> Any:
    """Return which numbers of rows [count, stride] are parameters."""
    begins, ends = [], []
    for part in parts:
        member, layer = np.nonzero(part.used)
        chosen = part.layers[member, layer]
        (inputs, outputs), base = weights(chosen), member * stride
        each = np.repeat(np.arange(len(chosen)), outputs)
        row = np.arange(len(each)) - np.repeat(outputs.cumsum() - outputs, outputs)
        weight = base[each] + chosen[each, 4] + row * chosen[each, 5]
        begins.append(weight)
        ends.append(weight + inputs[each])
        for column in (6, 7, 8):
            exists = slice(None) if column == 6 else chosen[:, 3] > 0
            begin = (base + chosen[:, column])[exists]
            begins.append(begin)
            ends.append(begin + outputs[exists])
    size = count * stride + 1
    marks = np.bincount(np.concatenate(begins), minlength=size) - np.bincount(np.concatenate(ends), minlength=size)
    return marks.cumsum()[:-1].reshape(count, stride) > 0


def state(draws: Draws, rows: str, parts: Sequence[Networks], copies: int | None = None) -> Fields:
    """Return the buffers of rows; numbers between parameters are NaN.

    Args:
        copies: networks of each member, row by row; None for one.
    """
    count = len(parts[0].ends)
    stride = max(int(part.ends.max()) for part in parts) + draws.below(4)
    if all(part.is_dense for part in parts):
        gaps = np.arange(stride) >= parts[-1].ends[:, None]
    else:
        gaps = ~parameters(parts, count, stride)
    return _state(draws, rows, gaps, (copies, count // copies) if copies else (count,))


def _state(draws: Draws, rows: str, gaps: Any, lead: tuple[int, ...]) -> Fields:
    stride, axis, fields = gaps.shape[-1], len(lead) - 1, Fields()
    kinds = {"value": "small", "target": "small", "first": "small", "second": "uniform"}
    for name, kind in kinds.items():
        numbers = draws.numbers(kind, *gaps.shape).copy()
        np.putmask(numbers, gaps, np.nan)
        fields[f"{rows}.{name}"] = numbers.reshape(*lead, stride), axis
    fields[f"{rows}.steps"] = draws.array(8, *lead).astype(np.float64), axis
    fields[f"{rows}.lr"] = 0.01 * draws.numbers("uniform", *lead, is_float64=True), axis
    return fields


def optimizer(draws: Draws) -> dict[str, Any]:
    """Return the plain fields of rows."""
    decay = draws.one_of((0.0, 0.01))
    return {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": decay, "decouples_decay": draws.below(2)}


def zeros(draws: Draws, *shape: int) -> Any:
    """Return a buffer for results."""
    return np.zeros(shape, np.float64 if draws.is_float64 else np.float32)


def transitions(draws: Draws, inputs: int, results: Sequence[str]) -> Fields:
    """Return the buffers that all updates from replay have: steps of the environments, tau, live and results."""
    lead = draws.updates, draws.members, draws.batch
    fields: Fields = {name: (draws.numbers("normal", *lead, inputs), 1) for name in ("obs", "next_obs")}
    fields |= {name: (draws.numbers("uniform", *lead), 1) for name in ("discount", "weight")}
    fields |= {"reward": (draws.numbers("normal", *lead), 1), "error": (zeros(draws, *lead), 1)}
    fields |= {name: (zeros(draws, *lead[:2]), 1) for name in results}
    return fields | of_members(draws)


def of_members(draws: Draws) -> Fields:
    """Return tau and, in every fourth shape, which members are live."""
    fields: Fields = {"tau": (draws.numbers("uniform", draws.members, is_float64=True), 0)}
    if draws.chance(4):
        fields["live"] = draws.array(2, draws.members).astype(np.uint8), 0
    return fields


def chosen_and_legal(draws: Draws, choices: int, name: str) -> Fields:
    """Return choices [U, N, B] and, in half of the shapes, masks of them."""
    lead = draws.updates, draws.members, draws.batch
    action = draws.choices(choices, *lead)
    fields: Fields = {name: (action, 1)}
    for mask in ("next_mask", "obs_mask"):
        if draws.chance(2):
            fields[mask] = draws.mask(*lead, choices, legal=action), 1
    return fields


def forward(draws: Draws) -> Shape:
    """Draw a forward pass."""
    count, inputs, outputs = draws.members, draws.width(), draws.width()
    nets = networks(draws, count, inputs, outputs, reads_images=True)
    rows = {name: x for name, x in state(draws, "rows", [nets]).items() if name == "rows.value"}
    fields = rows | {
        "member": (nets.described, 0),
        "obs": (draws.numbers("normal", count, draws.batch, inputs), 0),
        "outputs": (zeros(draws, count, draws.batch, outputs), 0),
    }
    return Shape("forward", Forward, draws.is_float64, count, {"batch": draws.batch}, {}, fields)


def td(draws: Draws) -> Shape:
    """Draw temporal-difference updates: double or not, with masks, with the conservative term."""
    count, inputs, actions = draws.members, draws.width(), 1 + draws.below(12)
    nets = networks(draws, count, inputs, actions, reads_images=True)
    fields = {"member": (nets.described, 0)} | state(draws, "rows", [nets]) | transitions(draws, inputs, ["loss"])
    fields |= chosen_and_legal(draws, actions, "action")
    if draws.chance(3):
        fields["conservative"] = draws.numbers("uniform", count, is_float64=True), 0
    settings = {"updates": draws.updates, "batch": draws.batch, "inputs": inputs, "is_double": draws.below(2)}
    return Shape("td", TemporalDifference, draws.is_float64, count, settings, optimizer(draws), fields)


def actor_critic(draws: Draws) -> Shape:
    """Draw updates of deterministic actors with one or two critics, which share the actor's encoder or not."""
    count, inputs, actions, twins = draws.members, draws.width(), 1 + draws.below(5), 1 + draws.below(2)
    shared = draws.below(3) if draws.chance(2) else 0
    actor = networks(draws, count, inputs, actions, min_depth=shared + 1, reads_images=True)
    fields = {"actor": (actor.described, 0)} | state(draws, "rows", [actor])
    fields |= critics(draws, actor, inputs, actions, 1, shared, twins, has_encoder=not shared)
    fields |= transitions(draws, inputs, ["loss", "actor_loss"])
    lead = draws.updates, count, draws.batch
    fields["action"] = draws.numbers("normal", *lead, actions), 1
    if draws.chance(2):
        fields["smoothing"] = draws.numbers("normal", *lead, actions), 1
        fields |= {name: (draws.numbers("uniform", count, is_float64=True), 0) for name in ("noise", "limit")}
    settings = {
        "updates": draws.updates, "batch": draws.batch, "inputs": inputs, "actions": actions, "twins": twins,
        "number": draws.below(5), "policy_interval": 1 + draws.below(3), "tracks_with_policy": draws.below(2),
        "shared": shared, "low": -1.5, "high": 2.0,
    }  # fmt: skip
    return Shape("actor-critic", ActorCritic, draws.is_float64, count, settings, optimizer(draws), fields)


def critics(
    draws: Draws, actor: Networks, inputs: int, actions: int, values: int, shared: int, twins: int, has_encoder: bool
) -> Fields:
    """Return the rows and networks [twins, N] of critics, which read the actor's features, an encoder's, or none."""
    count, parts, start, fields = draws.members * twins, [], 0, Fields()
    features: Any = inputs
    if shared:
        features = np.tile(actor.layers[:, shared - 1, 1], twins)
    if has_encoder:
        features = draws.width()
        parts.append(networks(draws, count, inputs, features))
        start = parts[0].ends
        fields["encoder"] = parts[0].described.reshape(twins, draws.members, -1), 1
    parts.append(networks(draws, count, features + actions, values, start))
    fields["head"] = parts[-1].described.reshape(twins, draws.members, -1), 1
    return fields | state(draws, "critics", parts, twins)


def soft_actor_critic(draws: Draws) -> Shape:
    """Draw updates of soft actor-critic, of Box or of discrete actions."""
    count, inputs, is_discrete = draws.members, draws.width(), draws.chance(2)
    choices, actions = (1 + draws.below(9), 0) if is_discrete else (0, 1 + draws.below(5))
    shared = draws.below(3) if draws.chance(2) else 0
    actor = networks(draws, count, inputs, choices or 2 * actions, min_depth=shared + 1, reads_images=True)
    fields = {"actor": (actor.described, 0)} | state(draws, "rows", [actor])
    has_encoder = not shared and draws.chance(2)
    fields |= critics(draws, actor, inputs, actions, choices or 1, shared, 2, has_encoder)
    fields |= transitions(draws, inputs, ["loss", "actor_loss"])
    log_alpha, stride = draws.below(3), 3
    gaps = np.broadcast_to(np.arange(stride) != log_alpha, (count, stride))
    scale = _state(draws, "temperature", gaps, (count,))
    del scale["temperature.target"]
    fields |= scale
    fields["target_entropy"] = draws.numbers("normal", count, is_float64=True), 0
    lead = draws.updates, count, draws.batch
    if is_discrete:
        fields |= chosen_and_legal(draws, choices, "choice")
    else:
        names = "action", "noise", "next_noise"
        fields |= {name: (draws.numbers("normal", *lead, actions), 1) for name in names}
    settings = {
        "updates": draws.updates, "batch": draws.batch, "inputs": inputs, "actions": actions, "choices": choices,
        "shared": shared, "log_alpha": log_alpha, "learns_temperature": draws.below(2),
    }  # fmt: skip
    label = f"soft actor-critic, {'discrete' if is_discrete else 'Box'}"
    return Shape(label, SoftActorCritic, draws.is_float64, count, settings, optimizer(draws), fields)


def policy_gradient(draws: Draws) -> Shape:
    """Draw minibatches of an epoch, of normal or of discrete actions of several components."""
    count, inputs, is_discrete = draws.members, draws.width(), draws.chance(2)
    components, samples = 1 + draws.below(3), draws.width()
    sizes = np.array([1 + draws.below(7) for _ in range(components)])
    width = int(sizes.sum()) if is_discrete else 2 * components
    policy = networks(draws, count, inputs, width, reads_images=True)
    critic = networks(draws, count, inputs, 1, policy.ends, reads_images=True)
    fields = {"policy": (policy.described, 0), "critic": (critic.described, 0)} | state(draws, "rows", [policy, critic])
    del fields["rows.target"]
    lead = draws.updates, count, draws.batch
    if is_discrete:
        choice = draws.choices(sizes, count, samples, components)
        fields |= {"sizes": (sizes, None), "choice": (choice, 0)}
        if draws.chance(2):
            starts = np.cumsum(sizes) - sizes
            mask = draws.mask(count, samples, width)
            np.put_along_axis(mask, choice + starts, 1, -1)
            fields["legal"] = mask, 0
    else:
        fields["action"] = draws.numbers("normal", count, samples, components), 0
        fields["least"] = np.array([draws.one_of((-20.0, -5.0, -0.5)) for _ in range(components)]), None
    names = "clip", "entropy_share", "value_share", "max_norm"
    fields |= {name: (draws.numbers("uniform", count, is_float64=True), 0) for name in names}
    fields |= {
        "obs": (draws.numbers("normal", count, samples, inputs), 0),
        "numbers": (draws.numbers("normal", count, samples, 4), 0),
        "weight": (draws.numbers("uniform", *lead), 1),
        "sample": (draws.choices(samples, *lead), 1),
        "live": ((draws.numbers("uniform", *lead[:2]) < 0.9).view(np.uint8), 1),
    }
    fields |= {name: (zeros(draws, *lead[:2]), 1) for name in ("loss", "policy_loss", "divergence")}
    settings = {
        "updates": draws.updates, "batch": draws.batch, "inputs": inputs, "samples": samples, "components": components,
        "clips_value": draws.below(2),
    }  # fmt: skip
    label = f"policy gradient, {'discrete' if is_discrete else 'normal'}"
    return Shape(label, PolicyGradient, draws.is_float64, count, settings, optimizer(draws), fields)


def team(draws: Draws) -> Shape:
    """Draw updates of a team of one to three groups of one to three agents."""
    count, twins = draws.members, 1 + draws.below(2)
    lead, fields = (draws.updates, count, draws.batch), Fields()
    agents: list[tuple[int, ...]] = []
    stored, groups = [], []
    column = start = legal = 0
    for number in range(1 + draws.below(3)):
        sizes = np.array([1 + draws.below(5) for _ in range(draws.below(3))], np.int64)
        width, inputs = int(sizes.sum()) or 1 + draws.below(3), draws.width()
        here = range(len(agents), len(agents) + 1 + draws.below(3))
        for agent in here:
            fields[f"agent {agent}.sizes"] = sizes if len(sizes) else np.zeros(1, np.int64), None
            for name in ("obs", "next_obs"):
                fields[f"agent {agent}.{name}"] = draws.numbers("normal", *lead, inputs), 1
            agents.append((column, start, width, legal if len(sizes) else 0, len(sizes)))
            column, start, legal = column + (len(sizes) or width), start + width, legal + int(sizes.sum())
            if len(sizes):
                stored.append(draws.choices(sizes, *lead, len(sizes)))
            else:
                stored.append(draws.numbers("normal", *lead, width))
        policy = networks(draws, count, inputs, width)
        fields[f"group {number}.policy"] = policy.described, 0
        fields |= state(draws, f"group {number} actor", [policy])
        fields[f"group {number}.agents"] = np.array(here), None
        groups.append(list(here))
    joint = draws.width()
    for number, group in enumerate(groups):
        for k in range(twins):
            latent, ids = draws.width(), len(group) if len(group) > 1 else 0
            encoder = networks(draws, count, joint, latent)
            head = networks(draws, count, latent + start + ids, 1, encoder.ends)
            fields[f"group {number}.encoder {k}"] = encoder.described, 0
            fields[f"group {number}.head {k}"] = head.described, 0
            fields |= state(draws, f"group {number} critic {k}", [encoder, head])
    fields |= {name: (draws.numbers("normal", *lead, joint), 1) for name in ("joint", "next_joint")}
    action = zeros(draws, *lead, column)
    np.concatenate(stored, -1, out=action, casting="same_kind")
    members = len(agents)
    present, following = (zeros(draws, *lead, members) for _ in range(2))
    for of_agents in (present, following):
        of_agents[:] = draws.numbers("uniform", *lead, members) < 0.8
    fields |= {
        "action": (action, 1), "present": (present, 1), "next_present": (following, 1),
        "gumbel": (draws.numbers("normal", *lead, start), 1), "reward": (draws.numbers("normal", *lead, members), 1),
        "discount": (draws.numbers("uniform", *lead, members), 1),
        "weight": (draws.numbers("uniform", *lead, members) * present, 1), "error": (zeros(draws, *lead, members), 1),
        "loss": (zeros(draws, *lead[:2]), 1), "actor_loss": (zeros(draws, *lead[:2]), 1),
    }  # fmt: skip
    fields |= of_members(draws)
    for name in ("obs_mask", "next_mask"):
        if legal and draws.chance(2):
            fields[name] = draws.mask(*lead, legal), 1
    if draws.chance(2):
        fields["smoothing"] = draws.numbers("normal", *lead, start), 1
        fields |= {name: (draws.numbers("uniform", count, is_float64=True), 0) for name in ("noise", "limit")}
    settings = {
        "updates": draws.updates, "batch": draws.batch, "inputs": joint, "features": start, "stored": column,
        "choices": legal, "twins": twins, "number": draws.below(5), "policy_interval": 1 + draws.below(3),
        "temperature": draws.one_of((0.5, 1.0)),
    }  # fmt: skip
    return Shape(
        "team", TeamActorCritic, draws.is_float64, count, settings, optimizer(draws), fields, agents, groups
    )  # fmt: skip


CALLS: tuple[tuple[int, Callable[[Draws], Shape]], ...] = (
    (4, forward), (4, td), (2, actor_critic), (2, soft_actor_critic), (3, policy_gradient), (1, team),
)  # fmt: skip


def draw(numbers: Mapping[str, Mapping[bool, Any]], seed: int, number: int, is_small: bool = False) -> Shape:
    """Return shape `number`."""
    draws = Draws(numbers, seed, number, is_small)
    build: Callable[[Draws], Shape] = draws.one_of([build for share, build in CALLS for _ in range(share)])
    shape = build(draws)
    return spoiled(draws, shape) if draws.chance(20) else shape


def spoiled(draws: Draws, shape: Shape) -> Shape:
    """Return the shape with one number NaN or infinite."""
    name = draws.one_of([name for name in SPOILED if name in shape.fields])
    array, axis = shape.fields[name]
    array = array.copy()
    array.flat[draws.below(array.size)] = draws.one_of((np.nan, np.inf, -np.inf))
    return replace(shape, fields={**shape.fields, name: (array, axis)}, is_spoiled=True)


@functools.cache
def is_written(kind: Any, name: str) -> bool:
    """Whether a call of this kind may change a buffer."""
    rows, _, values = name.rpartition(".")
    return values in STATE and kind is not Forward if rows else values in RESULTS


def member_alone(shape: Shape, n: int) -> Shape:
    """Return the same call for one member."""
    fields = {name: (x if axis is None else x.take([n], axis), axis) for name, (x, axis) in shape.fields.items()}
    return replace(shape, members=1, fields=fields)


def make_call(shape: Shape, at: Mapping[str, int]) -> Any:
    """Return the structure of a call, given the addresses of its buffers."""
    count, names = shape.members, NETWORKS[shape.kind]

    def rows_of(name: str) -> Rows:
        addresses = {part: at[f"{name}.{part}"] for part in (*STATE, "lr") if f"{name}.{part}" in at}
        stride = shape.fields[f"{name}.value"][0].shape[-1]
        return Rows(begin=0, end=count, members=count, stride=stride, **addresses, **shape.optimizer)

    def network(name: str) -> Any:
        return cast(at[name], POINTER(Member))

    plain = {name: x for name, x in at.items() if "." not in name and name not in names}
    if shape.kind is not TeamActorCritic:
        rows = {name: rows_of(name) for name in ("rows", "critics", "temperature") if f"{name}.value" in at}
        made = {name: network(name) for name in names if name in at}
        return shape.kind(**rows, **shape.settings, **made, **plain)
    agents, groups, twins = (
        (TeamAgent * len(shape.agents))(),
        (TeamGroup * len(shape.groups))(),
        shape.settings["twins"],
    )
    for k, (numbers, agent) in enumerate(zip(shape.agents, agents, strict=True)):
        agent.column, agent.start, agent.width, agent.legal, agent.components = numbers
        agent.sizes, agent.obs, agent.next_obs = (at[f"agent {k}.{name}"] for name in ("sizes", "obs", "next_obs"))
    for g, (of_group, group) in enumerate(zip(shape.groups, groups, strict=True)):
        group.count, group.agents = len(of_group), at[f"group {g}.agents"]
        group.actor, group.policy = rows_of(f"group {g} actor"), network(f"group {g}.policy")
        for k in range(twins):
            group.critic[k] = rows_of(f"group {g} critic {k}")
            group.encoder[k], group.head[k] = network(f"group {g}.encoder {k}"), network(f"group {g}.head {k}")
    return TeamActorCritic(
        rows=Rows(begin=0, end=count), members=count, agents=len(agents), groups=len(groups), agent=agents,
        group=groups, **shape.settings, **plain,
    )  # fmt: skip


@dataclass
class Placed:
    """Where the buffers of a shape lie: those that are written, then those that are not, then the room.

    Attributes:
        spans: begin and end of each in bytes. written: end of the first kind. room: begin of the room.
    """

    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    written: int = 0
    room: int = 0


class Fuzzer:
    """Runs shapes in one block of memory and compares.

    Args:
        libraries: the kernels for each width of vectors. poisons: whether AddressSanitizer is there to poison guards.
        is_small: draw small shapes.
    """

    def __init__(self, libraries: Sequence[Library], poisons: bool = False, is_small: bool = False) -> None:
        self.libraries, self.is_small, self._numbers = libraries, is_small, pools()
        self._live, self._initial = (np.full(ARENA + GUARD, 0xFF, np.uint8) for _ in range(2))
        skipped = -self._live.ctypes.data % GUARD
        self._live, self._initial = self._live[skipped:][:ARENA], self._initial[:ARENA]
        self._base = self._live.ctypes.data
        self._poison: Any = None
        if poisons:
            self._poison = ctypes.CDLL(None)["__asan_poison_memory_region"]
            self._unpoison = ctypes.CDLL(None)["__asan_unpoison_memory_region"]
            self._poison.argtypes = self._unpoison.argtypes = [c_void_p, c_size_t]

    def check(self, seed: int, number: int) -> tuple[str, list[str]]:
        """Return the kind of call of a shape, and what is wrong with it."""
        shape, first = draw(self._numbers, seed, number, self.is_small), number % len(self.libraries)
        found = self._check(shape, self.libraries[first], self.libraries[first - 1], number)
        return shape.label, found

    def _check(self, shape: Shape, one: Library, other: Library, number: int) -> list[str]:
        placed = self._place(shape)
        call = make_call(shape, {name: self._base + begin for name, (begin, _) in placed.spans.items()})
        try:
            found, together = self._run(shape, placed, call, one, range(1))
            if found:
                return found
            found, apart = self._run(shape, placed, call, other, range(shape.members))
            if found or not np.array_equal(together, apart):
                return found or [self._difference(shape, placed, call, other, together, apart)]
            found = self._dead(shape, placed, together)
            if number % 50 == 0 and not shape.is_spoiled:
                found += reference_errors(shape, self._results(shape, placed, together))
            if number % 8 == 0:
                found += self._alone(shape, placed, number // 8 % shape.members, one, together)
            return found
        except RuntimeError as error:
            return [f"status: {error}"]

    def _place(self, shape: Shape) -> Placed:
        """Lay out the buffers of a shape, each between guards, with their first contents."""
        placed, end, live = Placed(), GUARD, self._live
        live[:GUARD] = 0xFF
        written = {name: is_written(shape.kind, name) for name in shape.fields}
        for wanted in (True, False):
            for name, is_wanted in written.items():
                if is_wanted != wanted:
                    continue
                array = shape.fields[name][0]
                begin, size = end, array.nbytes
                end = begin + size
                live[begin:end].view(array.dtype).reshape(array.shape)[...] = array
                placed.spans[name] = begin, end
                begin = end
                end += GUARD + -size % 8
                live[begin:end] = 0xFF
            if wanted:
                placed.written = end
        placed.room = end
        self._initial[:end] = live[:end]
        return placed

    def _run(self, shape: Shape, placed: Placed, call: Any, kernels: Library, parts: range) -> tuple[list[str], Any]:
        """Run a call on the first contents: all members (one part) or one by one; what is wrong, and what was written.

        The contents are as at first afterwards.
        """
        live, initial, room = self._live, self._initial, placed.room
        for n in parts:
            call.rows.begin, call.rows.end = (n, n + 1) if len(parts) > 1 else (0, shape.members)
            end = room + kernels.room(call) * (8 if shape.is_float64 else 4)
            if end + GUARD > ARENA:
                raise RuntimeError("the shape needs more memory than there is")
            call.rows.room = self._base + room
            live[room : end + GUARD] = 0xFF
            if self._poison is not None:
                self._poison_guards(placed, end)
            kernels.run(call, shape.is_float64)
            if self._poison is not None:
                self._unpoison(self._base, end + GUARD)
            if live[end : end + GUARD].min() != 0xFF:
                return ["canary: the guard after the room was overwritten"], None
        results, real = live[: placed.written].copy(), np.float64 if shape.is_float64 else np.float32
        for begin, end in placed.spans.values():
            if begin >= placed.written:
                break
            live[begin:end] = initial[begin:end]
        if not np.array_equal(live[:room].view(np.uint64), initial[:room].view(np.uint64)):
            return [self._overwritten(placed)], None
        if shape.is_spoiled:
            np.putmask(results.view(real), np.isnan(results.view(real)), np.nan)  # its bits depend on the compiler
            return [], results
        before, after = (np.isfinite(x[: placed.written].view(real)) for x in (initial, results))
        if not np.array_equal(before, after):
            names = [
                name
                for name, (begin, end) in placed.spans.items()
                if end <= placed.written
                and not np.array_equal(*(np.isfinite(x[begin:end].view(real)) for x in (initial, results)))
            ]
            return [f"not finite, or a number beside the parameters: {', '.join(names)}"], None
        return [], results

    def _poison_guards(self, placed: Placed, end: int) -> None:
        ends = [0, *(end for _, end in placed.spans.values())]
        begins = [*(begin for begin, _ in placed.spans.values()), placed.room]
        for from_here, to_here in zip(ends, begins, strict=True):
            self._poison(self._base + from_here, to_here - from_here)
        self._poison(self._base + end, GUARD)

    def _overwritten(self, placed: Placed) -> str:
        """Name the first buffer that changed, or after which a guard did."""
        place = int(np.flatnonzero(self._live[: placed.room] != self._initial[: placed.room])[0])
        before = "the beginning"
        for name, (begin, end) in placed.spans.items():
            if begin <= place < end:
                return f"input: {name} was overwritten at byte {place - begin}"
            if end <= place:
                before = name
        return f"canary: the guard after {before} was overwritten"

    def _difference(
        self, shape: Shape, placed: Placed, call: Any, other: Library, together: Any, apart: Any
    ) -> str:  # fmt: skip
        """Say whether bits depend on the other members or on the width of vectors."""
        found, wider = self._run(shape, placed, call, other, range(1))
        if found:
            return found[0]
        if np.array_equal(together, wider):
            return f"bits: members differ together and one by one: {self._differing(placed, together, apart)}"
        return f"bits: vectors of {other.vector} bits differ: {self._differing(placed, together, wider)}"

    def _differing(self, placed: Placed, one: Any, other: Any) -> str:
        spans = ((name, slice(*span)) for name, span in placed.spans.items() if span[1] <= placed.written)
        return ", ".join(name for name, span in spans if not np.array_equal(one[span], other[span]))

    def _results(self, shape: Shape, placed: Placed, written: Any) -> dict[str, Any]:
        """Return the buffers that were written, as arrays of unsigned integers."""
        results = {}
        for name, (begin, end) in placed.spans.items():
            if end <= placed.written:
                array = shape.fields[name][0]
                results[name] = written[begin:end].view(array.dtype).reshape(array.shape)
        return results

    def _dead(self, shape: Shape, placed: Placed, written: Any) -> list[str]:
        """Return what changed of members that are not live."""
        if "live" not in shape.fields or shape.fields["live"][1] != 0:
            return []
        dead, found = np.flatnonzero(shape.fields["live"][0] == 0), []
        for name, result in self._results(shape, placed, written).items():
            array, axis = shape.fields[name]
            if result.take(dead, axis).tobytes() != array.take(dead, axis).tobytes():
                found.append(f"live: {name} of a member that is not live was overwritten")
        return found

    def _alone(self, shape: Shape, placed: Placed, n: int, kernels: Library, together: Any) -> list[str]:
        """Compare a member with itself in a call of one member."""
        alone, expected = member_alone(shape, n), self._results(shape, placed, together)
        place = self._place(alone)
        call = make_call(alone, {name: self._base + begin for name, (begin, _) in place.spans.items()})
        found, written = self._run(alone, place, call, kernels, range(1))
        if found:
            return [f"alone: {one}" for one in found]
        return [
            f"bits: {name} of member {n} differs in a call of its own"
            for name, result in self._results(alone, place, written).items()
            if result.tobytes() != expected[name].take([n], shape.fields[name][1]).tobytes()
        ]


def _gelu(x: Any) -> Any:
    return x * 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "Identity": lambda x: x, "ReLU": lambda x: np.maximum(x, 0), "LeakyReLU": lambda x: np.where(x < 0, 0.01 * x, x),
    "ELU": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), "Tanh": np.tanh,
    "Sigmoid": lambda x: 0.5 * (1 + np.tanh(x / 2)), "SiLU": lambda x: x * 0.5 * (1 + np.tanh(x / 2)), "GELU": _gelu,
    "Mish": lambda x: x * np.tanh(np.logaddexp(0, x)), "Softplus": lambda x: np.logaddexp(0, x),
    "Softsign": lambda x: x / (1 + np.abs(x)),
}  # fmt: skip


def plain_forward(described: Any, row: Any, x: Any) -> Any:
    """Return the outputs [R, O] of one member's network for inputs x [R, I], in float64."""
    row, x = row.astype(np.float64), x.astype(np.float64)
    for layer in described[1:].reshape(MAX_DEPTH, LAYER)[: described[0]].tolist():
        _, outputs, activation, norm, weight, weight_row, bias, gain, shift, channels, *sizes = layer
        terms, units = (int(n) for n in weights(np.array(layer)))
        rows = weight + weight_row * np.arange(units)[:, None] + np.arange(terms)
        if channels:
            size, kernel, stride, padding = (sizes[k : k + 2] for k in (0, 2, 4, 6))
            images = np.pad(x.reshape(-1, channels, *size), ((0, 0), (0, 0), *((n, n) for n in padding)))
            windows = np.lib.stride_tricks.sliding_window_view(images, kernel, (2, 3))  # type: ignore[arg-type]
            windows = windows[:, :, :: stride[0], :: stride[1]].transpose(0, 2, 3, 1, 4, 5)
            x = windows.reshape(*windows.shape[:3], terms) @ row[rows].T + row[bias : bias + units]
            x = np.moveaxis(x, -1, 1).reshape(len(x), outputs)
        else:
            x = x @ row[rows].T + row[bias : bias + outputs]
        if norm:
            x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
            x = x * row[gain : gain + outputs] + row[shift : shift + outputs]
        x = FUNCTIONS[ACTIVATIONS[activation]](x)
    return x


def reference_errors(shape: Shape, results: Mapping[str, Any]) -> list[str]:
    """Compare outputs, and the first update's errors of temporal differences, with a plain forward pass."""
    fields = {name: array for name, (array, _) in shape.fields.items()}
    tolerance = 1e-8 if shape.is_float64 else 1e-2
    found = []
    for n in range(shape.members):
        if shape.kind is Forward:
            expected = plain_forward(fields["member"][n], fields["rows.value"][n], fields["obs"][n])
            actual = results["outputs"][n]
        elif shape.kind is TemporalDifference and ("live" not in fields or fields["live"][n]):
            expected, actual = td_errors(shape, fields, n), results["error"][0, n]
        else:
            continue
        if not np.allclose(actual, expected, rtol=tolerance, atol=tolerance * (1 + np.abs(expected).max())):
            worst = float(np.abs(actual - expected).max())
            found.append(f"reference: member {n} differs from a plain forward pass by {worst:.2e}")
    return found


def td_errors(shape: Shape, fields: Mapping[str, Any], n: int) -> Any:
    """Return Q(s, a) - (r + discount max Q(s', .)) of the first update (arXiv:1509.06461, eq. 4)."""
    described, rows = fields["member"][n], np.arange(shape.settings["batch"])
    value, target = (fields[f"rows.{name}"][n] for name in ("value", "target"))
    obs, following = (fields[name][0, n] for name in ("obs", "next_obs"))
    after = plain_forward(described, target, following)
    scores = plain_forward(described, value, following) if shape.settings["is_double"] else after
    if "next_mask" in fields:
        scores = np.where(fields["next_mask"][0, n] > 0, scores, -np.inf)
    goals = fields["reward"][0, n] + fields["discount"][0, n] * after[rows, scores.argmax(-1)]
    return plain_forward(described, value, obs)[rows, fields["action"][0, n]] - goals


def fuzz(fuzzer: Fuzzer, seed: int, numbers: range, started: Callable[[int], None]) -> dict[str, Any]:
    """Check shapes; return counts by call and findings.

    Args:
        started: is told the number of each shape before its call.
    """
    counts, findings = Counter[str](), list[dict[str, Any]]()
    for number in numbers:
        started(number)
        label, found = fuzzer.check(seed, number)
        counts[label] += 1
        findings += [{"seed": seed, "number": number, "call": label, "finding": one} for one in found]
        if len(findings) >= 100:
            break
    return {"counts": dict(sorted(counts.items())), "shapes": counts.total(), "findings": findings}


def installed() -> list[Library]:
    """Return the kernels for each width of vectors of this machine."""
    library = native.library()
    if library is None:
        raise SystemExit("no kernels were built for this machine")
    widths = [512, 256] if library.vector == 512 else [library.vector]
    return [Library(library.path, width) for width in widths]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--poison", action="store_true", help="poison guards; needs AddressSanitizer")
    parser.add_argument("--small", action="store_true", help="widths and batches of at most 17 in nine of ten shapes")
    parser.add_argument("--progress", type=Path, help="file of 8 bytes that holds the number of the shape at work")
    options = parser.parse_args()
    begun = time.perf_counter()
    progress = np.memmap(options.progress, np.int64, "w+", shape=1) if options.progress else np.zeros(1, np.int64)

    def started(number: int) -> None:
        progress[0] = number

    numbers = range(options.first, options.first + options.calls)
    line = fuzz(Fuzzer(installed(), options.poison, options.small), options.seed, numbers, started)
    print(json.dumps({**line, "seconds": round(time.perf_counter() - begun, 1)}), flush=True)


if __name__ == "__main__":
    main()
