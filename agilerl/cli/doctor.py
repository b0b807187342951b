"""`agilerl doctor`: installed and missing components, with fixes; `probing` has the checks that need torch."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from agilerl.cli.as_json import print_json
from agilerl.cli.commands import later
from agilerl.cli.errors import user_errors
from agilerl.cli.options import AsJson, Debug, Imports, examples
from agilerl.hpo.schemes import SCHEMES
from agilerl.native.library import VARIABLE, library, wanted
from agilerl.workers.connection import INSTALL, MIN_RAY

CORE = ("torch", "numpy", "gymnasium", "tensordict", "pydantic", "safetensors")
# Extra of the package -> (module that shows that it is installed, its purpose).
EXTRAS = {
    "box2d": ("Box2D", "LunarLander, BipedalWalker, CarRacing"),
    "mujoco": ("mujoco", "HalfCheetah, Ant, Humanoid"),
    "atari": ("ale_py", "Pong and the other Atari games"),
    "minigrid": ("minigrid", "MiniGrid and BabyAI"),
    "minatar": ("minatar", "MinAtar: five small Atari games"),
    "render": ("pygame", "films of most environments"),
    "video": ("imageio_ffmpeg", "films as MP4"),
    **{row.extra: ("sklearn", f"evolution.scheme={row.name}") for row in SCHEMES.values() if row.extra},
    "plots": ("matplotlib", "run.plot()"),
    "tensorboard": ("tensorboard", "--tensorboard"),
    "wandb": ("wandb", "--track"),
    "mlflow": ("mlflow", "--track mlflow"),
    "trackio": ("trackio", "--track trackio"),
    "optuna": ("optuna", "agilerl optuna: a run as an Optuna study"),
    "hub": ("huggingface_hub", "agilerl push; runs named hf://user/name"),
    "watch": ("starlette", "agilerl watch, --watch"),
    "onnx": ("onnx", "agilerl export --onnx"),
    "llm": ("peft", "language models: GRPO, DPO, SFT"),
}
MIN_DISK_BYTES, LOW_DISK_BYTES = 50e6, 1e9  # bytes: a run of a small network takes some MB, a replay of images hundreds
OK, NOTE, BROKEN = "ok", "note", "broken"
environment, torch_here, probes = (later("probing", name) for name in ("environment", "torch_here", "probes"))
app = typer.Typer(rich_markup_mode=None)


@dataclass(frozen=True)
class Finding:
    """One line: the component, "ok", "note" or "broken", and the fix."""

    name: str
    state: str
    text: str
    fix: str = ""

    @property
    def is_broken(self) -> bool:
        return self.state == BROKEN

    def __str__(self) -> str:
        sign = {OK: "ok  ", NOTE: "  - ", BROKEN: "!!  "}[self.state]
        return f"{sign}{self.name:<17} {self.text}{f'   fix: {self.fix}' if self.fix else ''}"


def examine(full: bool = False, env_id: str | None = None) -> Iterator[Finding]:
    """Yield findings as the checks run.

    Args:
        full: train on the probe environments too. env_id: make and step this environment, without training.
    """
    yield from packages()
    yield from extras()
    yield from machine()
    if env_id is not None:
        yield from environment(env_id)
    if full:
        yield from torch_here()
        yield from probes()


def packages() -> Iterator[Finding]:
    """Python and the required packages, by their metadata, without importing them."""
    version = sys.version.split()[0]
    old = sys.version_info < (3, 11)
    yield Finding("python", BROKEN if old else OK, version, "Python 3.11 or newer" if old else "")
    for name in CORE:
        try:
            yield Finding(name, OK, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding(name, BROKEN, "is not installed", f"pip install {name}")


def kernels() -> Finding:
    """What runs the updates: C, or torch alone."""
    built = library()
    if built is not None:
        return Finding(
            "kernels",
            OK,
            f"native: updates run in C for the algorithms of docs/speed.md, with vectors of {built.vector} bits",
        )
    if wanted() == "0":
        return Finding("kernels", NOTE, f"torch: {VARIABLE}=0 switches those in C off", f"unset {VARIABLE}")
    reason = "torch: none in C were built for this processor"
    return Finding("kernels", NOTE, reason, "install a C compiler, then agilerl again")


def extras() -> Iterator[Finding]:
    """Optional dependencies."""
    for extra, (module, purpose) in EXTRAS.items():
        if importlib.util.find_spec(module) is not None:
            yield Finding(extra, OK, f"installed: {purpose}")
        else:
            yield Finding(extra, NOTE, f"not installed: {purpose}", f'pip install "agilerl[{extra}]"')


def pool() -> Finding:
    """EnvPool and its version, from its metadata."""
    purpose = "environment.backend=envpool steps LunarLander and others in C++"
    try:
        return Finding("fast", OK, f"EnvPool {metadata.version('envpool')}: {purpose}")
    except metadata.PackageNotFoundError:
        return Finding("fast", NOTE, f"EnvPool is not installed: {purpose}", 'pip install "agilerl[fast]"')


def ray_here() -> Finding:
    """Ray and its version, from its metadata."""
    from packaging.version import Version

    purpose = "--ray puts workers on a cluster; a population as a trial of Ray Tune"
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return Finding("ray", NOTE, f"not installed: {purpose}", INSTALL)
    is_old = Version(version) < Version(MIN_RAY)
    text = f"Ray {version}, older than {MIN_RAY}" if is_old else f"Ray {version}"
    return Finding("ray", NOTE if is_old else OK, f"{text}: {purpose}", INSTALL if is_old else "")


def machine(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Cores and load, display, GPU, disk."""
    yield threads(os.cpu_count() or 1, os.getloadavg()[0] if hasattr(os, "getloadavg") else None)
    yield workers()
    yield kernels()
    yield pool()
    yield ray_here()
    if environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY") or sys.platform != "linux":
        yield Finding("display", OK, "there is one")
    else:
        yield Finding("display", OK, "none: agilerl record draws without one (SDL_VIDEODRIVER=dummy, MUJOCO_GL=egl)")
    yield gpu(Path("/proc/driver/nvidia/version").exists(), _cpu_build())
    yield disk(shutil.disk_usage(Path.cwd()).free, os.access(Path.cwd(), os.W_OK))


def threads(cores: int, load: float | None) -> Finding:
    """Cores and load: training slows down where other processes use the cores."""
    text = f"{cores} cores" + ("" if load is None else f", load {load:.1f}")
    if load is not None and load > cores:
        return Finding("threads", NOTE, text, "wait until it is less: training shares the cores")
    return Finding("threads", OK, f"{text}; wide networks use all of them in C, others one")


def workers() -> Finding:
    """How many processes `--workers auto` gives: `agilerl.core.threads.available_cores`, which imports torch."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding("workers", OK, f"--workers auto is {cores} here, one per core that this process may use")


def gpu(has_driver: bool, is_cpu_build: bool) -> Finding:
    """Whether this PyTorch can use the GPU."""
    if has_driver and is_cpu_build:
        return Finding("gpu", NOTE, "an NVIDIA driver, but PyTorch is a CPU build", "install PyTorch with CUDA")
    if has_driver:
        return Finding(
            "gpu", OK, "an NVIDIA driver; --full asks PyTorch for it. --device auto: small dense networks on the CPU"
        )
    return Finding("gpu", OK, "none: the CPU trains, which suits small networks")


def disk(free: float, is_writable: bool) -> Finding:
    """Disk space for run directories, which are created in the working directory."""
    text = f"{free / 1e9:.1f} GB free here"
    if not is_writable:
        return Finding("disk", BROKEN, "the working folder cannot be written", "--out DIR, or another folder")
    if free < MIN_DISK_BYTES:
        return Finding("disk", BROKEN, text, "make room: a run directory takes some MB")
    return Finding("disk", NOTE if free < LOW_DISK_BYTES else OK, text, "make room" if free < LOW_DISK_BYTES else "")


def _cpu_build() -> bool:
    try:
        return metadata.version("torch").endswith("+cpu")
    except metadata.PackageNotFoundError:
        return True


@app.command(epilog=examples("agilerl doctor", "agilerl doctor --full", "agilerl doctor --env Hopper-v5"))
def doctor(
    full: Annotated[
        bool, typer.Option("--full", help="Train on probe environments too, which takes about a minute.")
    ] = False,
    env_id: Annotated[
        str | None, typer.Option("--env", metavar="ENV_ID", help="Make and step this environment too.")
    ] = None,
    imports: Imports = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Check this machine and what is installed.

    Looks at versions, extras, threads, display, GPU and disk; exits with 1 if something is broken.
    """
    with user_errors(debug, imports):
        findings = []
        for finding in examine(full=full, env_id=env_id):
            findings.append(finding)
            if not as_json:
                typer.echo(str(finding))
        broken = any(finding.is_broken for finding in findings)
        if as_json:
            print_json("doctor", ok=not broken, findings=[vars(finding) for finding in findings])
        if broken:
            raise typer.Exit(1)
