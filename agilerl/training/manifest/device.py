"""Choice of the device that a run trains on."""

from __future__ import annotations

from dataclasses import dataclass

from agilerl.algorithms import find_algorithm, is_team
from agilerl.config import Manifest
from agilerl.core import foreign
from agilerl.errors import ConfigError

# Units of the widest layer up to which "auto" stays on the CPU. Measured: see docs/decisions.md.
MAX_DENSE_UNITS = 128


@dataclass(frozen=True)
class DeviceChoice:
    """A device that is there, and why it was chosen."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


def resolve_device(device: str) -> str:
    """Return an available device: "auto" is CUDA if usable, else the CPU.

    Raises:
        ConfigError: unknown, not there, or not supported.
    """
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        asked = torch.device(device)
    except RuntimeError:
        raise _unknown(device) from None
    if asked.type == "mps":
        why = "optimisers count their steps in float64, which Apple's GPUs lack"
        raise ConfigError(f"device {device!r} is not supported: {why}. fix: --device cpu.")
    if asked.type not in ("cpu", "cuda"):
        raise _unknown(device)
    if asked.type == "cuda" and not torch.cuda.is_available():
        built = f"this PyTorch ({torch.__version__}) finds none"
        raise ConfigError(f"device {device!r} needs a CUDA GPU, but {built}. fix: --device cpu, or a CUDA build.")
    if asked.type == "cuda" and (asked.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {device!r}: there are {torch.cuda.device_count()} CUDA GPUs. fix: --device cuda:0.")
    return device


def _unknown(device: str) -> ConfigError:
    return ConfigError(f"unknown device {device!r}. fix: use auto, cpu, cuda or cuda:0.")


def choose_device(
    asked: str, manifest: Manifest, env: foreign.EnvLike = None, *, is_training: bool = True
) -> DeviceChoice:
    """Return the device of a run: `asked`, or for "auto" the CPU for small dense networks and else CUDA if usable.

    Args:
        manifest: resolved. env: passed by the user; None for the one named in the manifest.
        is_training: False does not make the environment to see whether agents of a team observe images.

    Raises:
        ConfigError: see `resolve_device`.
    """
    if asked != "auto":
        return DeviceChoice(resolve_device(asked), "as asked")
    name = resolve_device(asked)
    if name == "cpu":
        return DeviceChoice(name, "PyTorch finds no CUDA GPU")
    if reason := _large_part(manifest) or (_images_of_team(manifest, env) if is_training else ""):
        return DeviceChoice(name, reason)
    return DeviceChoice("cpu", f"dense layers of at most {MAX_DENSE_UNITS} units; --device cuda takes the GPU")


def _large_part(manifest: Manifest) -> str:
    """Return what of the networks is for a GPU; empty for dense layers of at most `MAX_DENSE_UNITS` units."""
    cls, network = find_algorithm(manifest.algorithm.name), manifest.network
    if cls.learns_language or cls.reads_texts:
        return "a language model"
    if network.simba or (network.encoder is not None and "hidden_size" not in network.encoder):
        return "an encoder of other than dense layers"
    layers = [] if network.encoder_config is None else network.encoder_config.hidden_size
    layers = [*layers, *network.head_config.hidden_size, network.latent_dim]
    layers += [int(units) for units in (network.encoder or {}).get("hidden_size", ())]
    return f"layers of {max(layers)} units" if max(layers) > MAX_DENSE_UNITS else ""


def _images_of_team(manifest: Manifest, env: foreign.EnvLike) -> str:
    """Return that agents of a team observe images; empty otherwise, and for single agents (see `with_encoder`)."""
    from agilerl.training.manifest.resolve import is_dense
    from agilerl.training.manifest.tasks import task_of

    if not is_team(manifest.algorithm.name):
        return ""
    spaces = task_of(manifest).spaces(env).observation_space  # type: ignore[attr-defined]  # tasks with environments
    return "" if all(is_dense(space) for space in spaces.values()) else "images of a team's agents"


def count_gpus() -> int:
    """Return the number of usable GPUs."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def device_of(number: int, device: str, gpus: int) -> str:
    """Return the device of one of several processes: GPU `number` modulo their number, if "cuda" leaves the choice."""
    return f"cuda:{number % gpus}" if gpus > 1 and device == "cuda" else device
