"""ONNX export of policies, verified against the agent on random observations."""

from __future__ import annotations

import importlib
import logging
import re
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.algorithms.base.predict import ACTING, greedy_of
from agilerl.algorithms.base.wrapped import overrides, unwrapped
from agilerl.algorithms.teams.base import weights_of
from agilerl.core import tree as trees
from agilerl.core.files import write_atomic
from agilerl.core.rng import Purpose, stream
from agilerl.core.spaces import mask_width, nested
from agilerl.envs.masks import component_sizes
from agilerl.errors import NotAvailableYetError, RunError
from agilerl.telemetry.files import jsonable
from agilerl.views.standalone.policy import Policy, PolicyError, build

ROWS = 10_000
MAX_NAME_BYTES = 150  # of a group in a file name; file systems allow 255
OPSET = 18
_BATCH = 500


@dataclass(frozen=True)
class OnnxReport:
    """The written file and its differences from the agent.

    Attributes:
        path: the file. observations: number of compared observations.
        largest_difference: of any component of any action.
        different_actions: observations with another action, for discrete actions; None for a Box.
    """

    path: Path
    observations: int
    largest_difference: float
    different_actions: int | None

    def __str__(self) -> str:
        others = "" if self.different_actions is None else f" ({self.different_actions} other actions)"
        return f"largest difference over {self.observations} observations: {self.largest_difference:.3g}{others}"


def plain_policy(agent: EvolvableAlgorithm) -> Policy:
    """The agent's greedy policy, built like in `best/policy.py`; NotAvailableYetError if it is not covered."""
    method = overrides(agent, *ACTING)
    if method is not None:
        raise NotAvailableYetError(
            f"{type(unwrapped(agent)).__name__} overrides {method}(), which a policy file does not contain. "
            "fix: agilerl.load(RUN).best acts."
        )
    try:
        state = {name: value.detach().cpu().clone() for name, value in agent.policy_state().items()}
        return build(jsonable(agent.policy_spec()), state)
    except PolicyError as error:
        what = f"{agent.algo} cannot be exported: {error}"
        raise NotAvailableYetError(f"{what} fix: agilerl.load(RUN).best acts.") from error


def export_onnx(agent: EvolvableAlgorithm, path: str | Path, *, rows: int = ROWS, seed: int = 0) -> OnnxReport:
    """Write the agent's greedy policy as ONNX: `observation` [batch, ...] -> `action` [batch, ...].

    Each part of a Dict or Tuple observation is a separate input, named by its keys or indices: `observation.camera`,
    `observation.inner.0`. Each part of a Dict or Tuple action is a separate output: `action.gear`.

    A policy that was trained with action masks has a second input, `action_mask` [batch, A] bool, and chooses only
    legal actions.

    Args:
        agent: such as `agilerl.load(RUN).best`. path: the file. rows: number of compared observations.
        seed: of these observations.

    Raises:
        RunError: the packages are missing, or the file does not run.
        NotAvailableYetError: an encoder or spaces that are not covered.
    """
    if hasattr(agent, "grouped_agents"):
        groups = ", ".join(agent.grouped_agents)
        raise RunError(f"{agent.algo} has one policy for each of the groups {groups}. fix: export_team(agent, folder).")
    policy = plain_policy(agent)
    return _exported(
        policy, agent.observation_space, agent.action_space, partial(greedy_actions, agent), path, rows, seed
    )


def export_team(agent: Any, path: str | Path, *, rows: int = ROWS, seed: int = 0) -> dict[str, OnnxReport]:
    """Write the greedy policy of every group of a team to `<path>.<group>.onnx`; see `export_onnx`.

    Returns:
        group -> report.
    """
    base, spec, state = Path(path), jsonable(agent.policy_spec()), agent.policy_state()
    reports: dict[str, OnnxReport] = {}
    for group, agents in agent.grouped_agents.items():
        weights = {k: v.cpu() for k, v in weights_of(group, agent.grouped_agents, state).items()}
        try:
            policy = build({**spec, "network": spec["networks"][group]}, weights)
        except PolicyError as error:
            what = f"{agent.algo}, group {group}, cannot be exported: {error}"
            raise NotAvailableYetError(f"{what} fix: agilerl.load(RUN).best acts.") from error
        policy.needs_mask = policy.needs_mask and mask_width(agent.action_space[group]) > 0
        target = base.with_name(f"{base.name.removesuffix('.onnx')}.{file_part(group)}.onnx")
        spaces = agent.observation_space[group], agent.action_space[group]
        reports[group] = _exported(policy, *spaces, partial(_greedy_of, agent, agents[0]), target, rows, seed)
    return reports


def file_part(group: str) -> str:
    """The name of a group for a file name.

    Characters that file systems reject become `%` and their hexadecimal code; a long name is cut and ends with its
    CRC-32.
    """
    safe = re.sub(r'[%/\\:*?"<>|\x00-\x1f]', lambda match: f"%{ord(match[0]):02x}", group)
    if len(safe.encode()) <= MAX_NAME_BYTES:
        return safe
    return f"{safe.encode()[: MAX_NAME_BYTES - 9].decode(errors='ignore')}-{zlib.crc32(group.encode()):08x}"


def _greedy_of(team: Any, agent: str, obs: Any, masks: np.ndarray | None = None) -> Any:
    """Greedy actions of one agent of a team for its observations [B, ...]."""
    infos = {} if masks is None else {agent: {"action_mask": masks}}
    return team.get_action({agent: obs}, infos, training=False)[0][agent]


def _exported(
    policy: Policy, space: Any, actions: Any, greedy: Callable[..., Any], path: str | Path, rows: int, seed: int
) -> OnnxReport:
    onnxruntime = _needed()
    obs = sample_observations(space, rows, seed)
    masks = sample_masks(actions, rows, seed) if policy.needs_mask else None
    target = Path(path)
    two = trees.map_leaves(lambda leaf: torch.from_numpy(leaf[:2]), obs)
    write_atomic(target, _program(policy, two, None if masks is None else torch.from_numpy(masks[:2])))
    try:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(target), options, providers=["CPUExecutionProvider"])
        inputs = named_inputs(obs) | ({} if masks is None else {"action_mask": masks})
        starts = range(0, rows, _BATCH)
        parts = [session.run(None, {name: x[i : i + _BATCH] for name, x in inputs.items()}) for i in starts]
    except Exception as error:  # the runtime has its own exception classes
        raise RunError(f"{target} was written, but onnxruntime does not run it ({error}).") from error
    expected = trees.leaves(greedy(obs, masks))
    largest, others, has_choices = 0.0, np.zeros(rows, bool), False
    for space, one, *got in zip(trees.leaves(nested(actions)), expected, *parts, strict=True):
        difference = np.abs(np.concatenate(got).astype(np.float64) - one.astype(np.float64)).reshape(rows, -1)
        largest = max(largest, float(difference.max()))
        if not isinstance(space, spaces.Box):
            others, has_choices = others | (difference > 0).any(-1), True
    return OnnxReport(target, rows, largest, int(others.sum()) if has_choices else None)


def greedy_actions(agent: EvolvableAlgorithm, obs: trees.Tree, masks: np.ndarray | None = None) -> Any:
    """The agent's greedy environment actions for observations [B, ...]; masks [B, A]."""
    before = agent.training
    agent.set_training_mode(False)
    try:
        starts = range(0, trees.count_rows(obs), _BATCH)
        legal = [None if masks is None else masks[i : i + _BATCH] for i in starts]
        parts = [trees.take(obs, slice(i, i + _BATCH)) for i in starts]
        act = greedy_of(agent)
        return trees.concatenate([act(part, m) for part, m in zip(parts, legal, strict=True)])
    finally:
        agent.set_training_mode(before)


def named_inputs(obs: trees.Tree, name: str = "observation") -> dict[str, Any]:
    """The parts of observations by input name."""
    if not isinstance(obs, dict | tuple):
        return {name: obs}
    inputs: dict[str, Any] = {}
    for key, part in obs.items() if isinstance(obs, dict) else enumerate(obs):
        inputs |= named_inputs(part, f"{name}.{key}")
    return inputs


def sample_observations(space: gym.Space[Any], rows: int, seed: int) -> Any:
    """Sample observations [rows, ...], nested like the space: uniform within finite bounds, else standard normal;
    uniform for discrete spaces."""
    if isinstance(space, spaces.Dict):
        return {key: sample_observations(part, rows, seed + i) for i, (key, part) in enumerate(space.items())}
    if isinstance(space, spaces.Tuple):
        return tuple(sample_observations(part, rows, seed + i) for i, part in enumerate(space))
    rng = stream(seed, Purpose.PROBE)
    if isinstance(space, spaces.Box):
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        bounded = np.isfinite(low) & np.isfinite(high) & (high - low < 1e6)
        uniform = rng.random((rows, *space.shape)) * np.where(bounded, high - low, 0) + np.where(bounded, low, 0)
        normal = np.clip(rng.standard_normal((rows, *space.shape)), low, high)
        return np.asarray(np.where(bounded, uniform, normal).astype(space.dtype))
    if isinstance(space, spaces.Discrete):
        return np.asarray(rng.integers(space.n, size=rows) + space.start)
    if isinstance(space, spaces.MultiDiscrete):
        return np.asarray(rng.integers(space.nvec, size=(rows, *space.nvec.shape)) + space.start)
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(2, size=(rows, *space.shape)).astype(np.int8)
    raise NotAvailableYetError(f"observations of {space} cannot be exported. fix: agilerl.load(RUN).best acts.")


def sample_masks(space: gym.Space[Any], rows: int, seed: int) -> np.ndarray:
    """Sample action masks [rows, A] bool: half of the actions on average, and at least one per component."""
    rng = stream(seed, Purpose.PROBE, 1)
    legal = rng.random((rows, mask_width(space))) < 0.5
    sizes = component_sizes(space)
    for last, size in zip(np.cumsum(sizes).tolist(), sizes, strict=True):
        legal[np.arange(rows), last - 1 - rng.integers(size, size=rows)] = True
    return np.asarray(legal)


class _ByPart(torch.nn.Module):
    """A policy with flat inputs and outputs: the leaves of nested observations and the mask, if any, to the leaves of
    nested actions."""

    def __init__(self, policy: Policy, like: trees.Tree) -> None:
        super().__init__()
        self.policy = policy
        numbers = iter(range(len(list(trees.leaves(like)))))
        self.places = trees.map_leaves(lambda _: next(numbers), like)
        self.count = len(list(trees.leaves(like)))

    def forward(self, *given: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        obs = trees.map_leaves(lambda number: given[number], self.places)
        action = self.policy(obs, *given[self.count :])
        return action if isinstance(action, torch.Tensor) else tuple(trees.leaves(action))


def _program(policy: Policy, example: trees.Tree, mask: torch.Tensor | None) -> bytes:
    """The policy as an ONNX program with a dynamic batch axis."""
    inputs = named_inputs(example) | ({} if mask is None else {"action_mask": mask})
    arguments, batch = tuple(inputs.values()), torch.export.Dim("batch")
    free: Any = tuple({0: batch} for _ in arguments)
    by_part = isinstance(example, dict | tuple) or not policy.single
    module: torch.nn.Module = _ByPart(policy, example).eval() if by_part else policy
    with torch.no_grad():
        outputs = named_inputs(policy(example, *arguments[len(list(trees.leaves(example))) :]), "action")
    log = logging.getLogger("torch.onnx")
    level = log.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the exporter itself
        log.setLevel(logging.ERROR)  # about packages that no policy needs
        program: Any = torch.onnx.export(
            module,
            arguments,
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=(free,) if by_part else free,
        )
    log.setLevel(level)
    return bytes(program.model_proto.SerializeToString())


def _needed() -> Any:
    try:
        for name in ("onnx", "onnxscript"):
            importlib.import_module(name)
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise RunError(f'ONNX needs {error.name or "onnx"}. fix: pip install "agilerl[onnx]"') from None
