"""Preprocessing of observations to encoder input: one-hot encoding, channel-first images in [0, 1], nested dicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional as F

from agilerl.core import foreign
from agilerl.core.spaces import (
    WordCounts,
    channels_first,
    check_supported,
    counts_of,
    flat_size,
    is_byte_image,
    is_channels_last,
    parts_of,
)
from agilerl.core.transfer import to_device
from agilerl.core.tree import Tree
from agilerl.errors import NotAvailableYetError, ShapeError

FIX = "fix: pass them as the environment gives them, and build the agent from that environment's spaces."


class InputForm(Enum):
    """Input form of an encoder."""

    FLAT = "flat"  # [..., I]
    IMAGE = "image"  # [..., C, H, W], or the axes of the Box
    NESTED = "nested"  # a dict of these, nested like the space


def bounds_to_unit(space: spaces.Space[Any]) -> tuple[Tensor, Tensor] | None:
    """Return (centre [I], factor [I]) float64 such that (x − centre) · factor maps the bounds of a Box to [−1, 1].

    A feature with an infinite bound is unchanged (centre 0, factor 1); None if that holds for all. For images the order
    is channels first.
    """
    space = channels_first(space)
    if not isinstance(space, spaces.Box):
        return None
    low, high = space.low.astype(np.float64).ravel(), space.high.astype(np.float64).ravel()
    bounded = np.isfinite(low) & np.isfinite(high) & (high > low) & (high - low < 1e30)
    with np.errstate(invalid="ignore", over="ignore"):
        centre = np.where(bounded, (low + high) / 2, 0.0)
        factor = np.where(bounded, 2 / np.where(bounded, high - low, 1.0), 1.0)
    return torch.from_numpy(centre), torch.from_numpy(factor)


@dataclass(frozen=True, eq=False)
class Preprocessor:
    """Conversion of observations of one space to the input of one encoder.

    Attributes:
        space: of one observation, as returned by the environment.
        form: input form of the encoder. In FLAT form the parts of a Dict or Tuple are concatenated.
        unit: of a vector whose bounds are mapped to [-1, 1].
        is_bytes: True for images with values from 0 to 255.
        is_channels_last: True for images [H, W, C], which are transposed.
        parts: of a Dict or Tuple space.
        plain_width: of a vector that is used unchanged; 0 for everything else.
        widths: columns of each tensor of the input, in order; 0 for images.
    """

    space: spaces.Space[Any]
    form: InputForm
    unit: tuple[Tensor, Tensor] | None
    is_bytes: bool
    is_channels_last: bool
    parts: Mapping[str, Preprocessor]
    plain_width: int
    widths: list[int]

    @classmethod
    def build(cls, space: spaces.Space[Any], form: InputForm, scale: bool = False) -> Self:
        """Create for a space; `scale` maps vectors with finite bounds to [-1, 1] (not images)."""
        check_supported(space)
        inner = {}
        for key, sub in parts_of(space).items():
            image = form is InputForm.NESTED and len(sub.shape or ()) == 3 and isinstance(sub, spaces.Box)
            nested = form is InputForm.NESTED and bool(parts_of(sub))
            inner[key] = cls.build(sub, InputForm.IMAGE if image else form if nested else InputForm.FLAT, scale)
        is_bytes = is_byte_image(space)
        unit = bounds_to_unit(space) if scale and form is not InputForm.IMAGE and not is_bytes else None
        plain = isinstance(space, spaces.Box) and len(space.shape) == 1 and form is InputForm.FLAT and unit is None
        width = 0 if form is InputForm.IMAGE else flat_size(space)
        widths = [n for part in inner.values() for n in part.widths] if form is InputForm.NESTED else [width]
        return cls(space, form, unit, is_bytes, is_channels_last(space), inner, width if plain else 0, widths)

    def __deepcopy__(self, memo: dict[int, Any]) -> Preprocessor:
        return self  # immutable

    def __call__(self, obs: Tree, like: Tensor, owner: str, normalize_images: bool = True) -> Any:
        """Convert observations with any leading axes to a tensor or a dict of tensors; one becomes a batch of one.

        Args:
            obs: arrays, tensors or numbers; a mapping, TensorDict or tuple of them for a Dict or Tuple space.
            like: tensor with the target dtype and device.
            owner: name used in errors.
            normalize_images: divide byte images by 255.
        """
        if self.plain_width and isinstance(obs, np.ndarray | Tensor):  # hot path: `_leaf` inlined
            real = obs.is_floating_point() if isinstance(obs, Tensor) else obs.dtype.kind == "f"
            if real and obs.ndim > 1 and obs.shape[-1] == self.plain_width:
                if like.is_cuda:
                    return to_device(torch.as_tensor(obs), like.device, like.dtype)
                return torch.as_tensor(obs, device=like.device).to(like.dtype)
        if not self.parts:
            lead, x = self._leaf(obs, like, owner, normalize_images)
            return x if lead else x.unsqueeze(0)
        rows = self._rows(obs, like, owner, normalize_images, "")
        return self._arrange(rows, common_lead(rows, owner) or (1,), "")

    def _leaf(self, obs: Any, like: Tensor, owner: str, normalize: bool) -> tuple[tuple[int, ...], Tensor]:
        """Return (leading axes, tensor [lead, I] or [lead, *image])."""
        space, shape = self.space, self.space.shape or ()
        if isinstance(space, WordCounts) and _is_of_strings(obs):
            obs = counts_of(obs)
        x = _numbers(obs, like.device, owner, space)
        last, rank = self.is_channels_last, len(shape)
        obs_shape = tuple(x.shape[x.dim() - rank :]) if x.dim() >= rank else None
        if last and obs_shape == (shape[-1], *shape[:-1]):
            last = False  # the caller has already swapped the channels
        elif obs_shape != shape:
            raise ShapeError(f"{owner} got observations of shape {tuple(x.shape)}; it was built for {shape}. {FIX}")
        lead = tuple(x.shape[: x.dim() - rank])
        if isinstance(space, spaces.Discrete):
            x = _one_hot(x, int(space.start), int(space.n), owner, space)
        elif isinstance(space, spaces.MultiDiscrete):
            x = _one_hot_each(x.reshape(*lead, space.nvec.size), space, owner)
        elif last:
            x = x.movedim(-1, -3)
        x = x.to(like.dtype)
        if normalize and self.is_bytes:
            x = x / 255
        if self.form is not InputForm.IMAGE:
            x = x.reshape(*lead, -1) if x.dim() > len(lead) else x.unsqueeze(-1)
        if self.unit is not None:
            centre, factor = (part.to(like) for part in self.unit)
            x = (x - centre) * factor
        return lead, x

    def _rows(self, obs: Tree, like: Tensor, owner: str, normalize: bool, path: str) -> dict[str, Any]:
        """Return path of every leaf -> (space, leading axes, tensor)."""
        children = self._children(obs, owner, path)
        rows: dict[str, Any] = {}
        for key, part in self.parts.items():
            name = f"{path}{key}"
            if part.parts:
                rows |= part._rows(children[key], like, owner, normalize, f"{name}/")
            else:
                rows[name] = (part.space, *part._leaf(children[key], like, f"{owner}, part {name!r},", normalize))
        return rows

    def _children(self, obs: Tree, owner: str, path: str) -> dict[str, Any]:
        where = f"{owner}, part {path.rstrip('/')!r}," if path else owner
        if isinstance(obs, tuple | list) and isinstance(self.space, spaces.Tuple):
            children = {f"tuple_obs_{i}": part for i, part in enumerate(obs)}
        elif isinstance(obs, Mapping) or (hasattr(obs, "keys") and hasattr(obs, "__getitem__")):
            children = {str(key): obs[key] for key in obs.keys()}  # noqa: SIM118 (a TensorDict iterates over rows)
        else:
            raise ShapeError(f"{where} got observations of type {type(obs).__name__}; it reads {self.space}. {FIX}")
        missing = [key for key in self.parts if key not in children]
        if missing:
            raise ShapeError(f"{where} got observations without {missing}; they have {sorted(children)}. {FIX}")
        return children

    def _arrange(self, rows: dict[str, Any], lead: tuple[int, ...], path: str) -> Any:
        arranged: dict[str, Any] = {}
        for key, part in self.parts.items():
            name = f"{path}{key}"
            if part.parts:
                arranged[key] = part._arrange(rows, lead, f"{name}/")
            else:
                _, part_lead, x = rows[name]
                arranged[key] = x.reshape(*lead, *x.shape[len(part_lead) :])
        return torch.cat(list(arranged.values()), dim=-1) if self.form is InputForm.FLAT else arranged


def _numbers(obs: object, device: torch.device, owner: str, space: spaces.Space[Any]) -> Tensor:
    """Convert observations to a tensor of real numbers."""
    try:
        x = to_device(torch.as_tensor(np.asarray(obs) if not isinstance(obs, Tensor) else obs), device)
    except (TypeError, ValueError):  # strings, objects, ragged rows
        kind = foreign.dtype_name(obs)
        raise ShapeError(f"{owner} got observations of type {kind}; it was built for {space}. {FIX}") from None
    if x.is_complex():
        raise ShapeError(f"{owner} got complex observations; it was built for {space}. {FIX}")
    return x


def _one_hot(x: Tensor, start: int, count: int, owner: str, space: spaces.Space[Any]) -> Tensor:
    """One-hot encode integers [...] from `start` on to [..., count]."""
    is_whole = not x.is_floating_point() or bool((x == x.floor()).all())
    try:
        if is_whole:
            return F.one_hot(x.long() - start, count)
    except RuntimeError:  # outside of the range
        pass
    values, integers = f"values from {x.min():g} to {x.max():g}", f"integers from {start} to {start + count - 1}"
    raise ShapeError(f"{owner} got {values}; {space} holds {integers}. {FIX}")


def _one_hot_each(x: Tensor, space: spaces.MultiDiscrete, owner: str) -> Tensor:
    """One-hot encode components [..., K] to [..., sum of choices] at once: a board can have hundreds of them."""
    sizes, starts = space.nvec.ravel(), space.start.ravel()
    of = torch.as_tensor(np.repeat(np.arange(sizes.size), sizes), device=x.device)  # component of each column
    ends = np.cumsum(sizes)
    values = torch.as_tensor(np.arange(sizes.sum()) - np.repeat(ends - sizes - starts, sizes), device=x.device)
    low, high = (torch.as_tensor(bound, device=x.device) for bound in (starts, starts + sizes))
    wrong = (x < low) | (x >= high)
    if x.is_floating_point():
        wrong = wrong | (x != x.floor())
    if bool(wrong.any()):
        i = int(wrong.reshape(-1, sizes.size).any(0).nonzero()[0])
        _one_hot(x[..., i], int(starts[i]), int(sizes[i]), owner, space)  # raises with details
    return (x[..., of] == values).long()


def _is_of_strings(obs: object) -> bool:
    """Whether these are strings: one, a list of them, or an array."""
    if isinstance(obs, np.ndarray):
        return obs.dtype.kind == "U" or (obs.dtype.kind == "O" and obs.size > 0)
    return isinstance(obs, str) or (isinstance(obs, list | tuple) and bool(obs) and _is_of_strings(obs[0]))


def common_lead(rows: Mapping[str, Any], owner: str) -> tuple[int, ...]:
    """Return the leading axes shared by all parts; a scalar stored as a column [B, 1] counts as [B]."""
    leads = {name: lead for name, (_, lead, _) in rows.items()}
    least: tuple[int, ...] = min(leads.values(), key=len)
    for name, lead in leads.items():
        column = not (rows[name][0].shape or ()) and lead == (*least, 1)
        if lead != least and not column:
            raise ShapeError(f"{owner} got parts with different leading axes: {leads}. {FIX}")
    return least


def sample_batch(space: spaces.Space[Any], count: int, rng: np.random.Generator) -> Any:
    """Sample `count` synthetic observations [count, ...] from `rng`: uniform within bounds, standard normal otherwise.

    Bounds beyond ±10 are treated as unbounded: observations are rarely uniform over such a range. Byte images are
    uniform over all values. A Dict or Tuple space gives a TensorDict (of TensorDicts) of `count` rows.
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        # Lazy import: it takes a second and spaces without parts never need it.
        from tensordict import TensorDict

        return TensorDict({k: sample_batch(v, count, rng) for k, v in parts_of(space).items()}, batch_size=[count])
    if is_byte_image(space):
        return torch.as_tensor(rng.integers(0, 256, (count, *(space.shape or ()))).astype(space.dtype))
    if isinstance(space, spaces.Box):
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        normal = rng.standard_normal((count, *space.shape))
        bounded = (low >= -10) & (high <= 10)
        with np.errstate(invalid="ignore"):
            uniform = np.where(bounded, low, 0) + rng.random((count, *space.shape)) * np.where(bounded, high - low, 1)
        values = np.where(bounded, uniform, np.clip(normal, low, high))
        return torch.as_tensor(values.astype(space.dtype))
    if isinstance(space, spaces.Discrete):
        return torch.as_tensor(rng.integers(space.start, space.start + space.n, size=count))
    if isinstance(space, spaces.MultiDiscrete):
        draws = space.start + np.floor(rng.random((count, *space.shape)) * space.nvec)
        return torch.as_tensor(draws.astype(np.int64))
    if isinstance(space, spaces.MultiBinary):
        return torch.as_tensor(rng.integers(0, 2, size=(count, *space.shape)))
    raise NotAvailableYetError(f"observations of a {type(space).__name__} space cannot be drawn yet")
