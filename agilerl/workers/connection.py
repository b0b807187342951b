"""Connection to Ray: one of this machine that a run starts, or a cluster that is there."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from packaging.version import Version

from agilerl.errors import ConfigError

MIN_RAY = "2.52"  # the first one with tokens
INSTALL = 'pip install "agilerl[ray]"'
LOCAL, RUNNING = "local", "auto"
AUTH_MODE = "RAY_AUTH_MODE"
PROBE_SECONDS, ANSWER_SECONDS = 60, 10
REFUSED = ("InvalidAuthToken", "Unauthenticated")  # in Ray's message to a client without a token
SILENT: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}


def check_installed() -> None:
    """Look for Ray without importing it.

    Raises:
        ConfigError: it is missing or too old.
    """
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        raise ConfigError(f"workers on Ray need Ray {MIN_RAY} or newer, which is missing. fix: {INSTALL}.") from None
    if Version(version) < Version(MIN_RAY):
        raise ConfigError(f"workers on Ray need Ray {MIN_RAY} or newer; got {version}. fix: {INSTALL}.")


@dataclass(frozen=True)
class Cluster:
    """A connection to Ray.

    Attributes:
        ray: the module. is_ours: whether this run made the connection, and closes it.
    """

    ray: Any
    is_ours: bool

    def total(self, resource: str) -> int:
        """Return how many of a resource, such as "CPU", the nodes have."""
        return int(self.ray.cluster_resources().get(resource, 0))

    def close(self) -> None:
        """Disconnect; a Ray that this run has started ends."""
        if self.is_ours:
            self.ray.shutdown()


def connect(address: str, cpus: int, allow_insecure: bool = False) -> Cluster:
    """Connect to Ray, or take the connection that this process has.

    Args:
        address: "local" starts a Ray of this machine with `cpus` CPUs, "auto" takes the running one, "HOST:PORT" that
            of another machine.
        allow_insecure: accept a cluster of other machines that asks for no token.

    Raises:
        ConfigError: Ray is missing or too old, nothing answers, or the cluster asks for no token.
    """
    check_installed()
    if address.startswith("ray://"):
        raise ConfigError(
            f"{address} is an address of Ray Client, which runs do not use. fix: start the command on a node of the "
            "cluster with --ray auto, as `ray job submit` does."
        )
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        return Cluster(sys.modules["ray"], is_ours=False)
    if address == LOCAL:
        return _start(cpus)
    needs_token = asks_for_token(address)
    if not needs_token and address != RUNNING:
        _check_secure(address, allow_insecure)
    ray = _imported(with_token=needs_token)
    try:
        with _own_signals():
            ray.init(address=address, **SILENT)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ConfigError(f"cannot connect to the cluster {address!r}: {first_line(error)}. fix: {_fix()}") from None
    cluster = Cluster(ray, is_ours=True)
    if not needs_token:
        try:
            _check_secure(ray.get_runtime_context().gcs_address, allow_insecure)
        except ConfigError:
            cluster.close()
            raise
    return cluster


def _start(cpus: int) -> Cluster:
    """Start a Ray of this machine. It listens on all interfaces, so that it must ask for a token."""
    was_imported = "ray" in sys.modules
    ray = _imported(with_token=True)
    with _own_signals():
        ray.init(address=LOCAL, num_cpus=cpus, include_dashboard=False, **SILENT)
    cluster = Cluster(ray, is_ours=True)
    if was_imported and AUTH_MODE not in os.environ and not asks_for_token(ray.get_runtime_context().gcs_address):
        cluster.close()
        raise ConfigError(f"Ray was imported without tokens. fix: {AUTH_MODE}=token in the environment.")
    return cluster


def _imported(with_token: bool) -> Any:
    """Import Ray, which reads its mode when it is imported; one that the user has chosen stays."""
    if with_token and "ray" not in sys.modules:
        os.environ.setdefault(AUTH_MODE, "token")
    import ray

    return ray


def asks_for_token(address: str) -> bool:
    """Whether a cluster refuses a client without a token, found by being one: `ray health-check` in a process.

    Raises:
        ConfigError: no cluster answers.
    """
    where = [] if address == RUNNING else ["--address", address]
    if address != RUNNING:
        _check_answers(address)
    command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "health-check", *where]
    try:
        answer = subprocess.run(
            command, env={**os.environ, AUTH_MODE: "disabled"}, capture_output=True, text=True, timeout=PROBE_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"the Ray cluster {address!r} does not answer. fix: {_fix()}") from None
    if answer.returncode == 0:
        return False
    output = answer.stdout + answer.stderr
    if any(word in output for word in REFUSED):
        return True
    last = (output.strip().splitlines() or ["no reason given"])[-1]
    raise ConfigError(f"no Ray cluster answers at {address!r}: {last}. fix: {_fix()}")


def _check_answers(address: str) -> None:
    """Raise ConfigError if nothing listens at HOST:PORT, which takes Ray most of a minute."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(f"no Ray cluster answers at {address!r}: {error}. fix: {_fix()}") from None


def _fix() -> str:
    return (
        "the address HOST:PORT that `ray start --head` printed, its token (RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token "
        f"with {AUTH_MODE}=token), the same Ray and Python on both sides, or --ray local."
    )


def _check_secure(address: str, allow_insecure: bool) -> None:
    """Raise ConfigError for the address of a cluster without tokens, unless it is on this machine."""
    host = address.rpartition(":")[0].strip("[]")
    if allow_insecure or _is_here(host):
        return
    raise ConfigError(
        f"the Ray cluster {address} asks for no token, so that everybody in its network can run code in it and here. "
        f"fix: start its nodes with {AUTH_MODE}=token, or allow_insecure_ray=True (--allow-insecure-ray) in a network "
        "of your own."
    )


def _is_here(host: str) -> bool:
    """Whether a host is this machine, which alone can listen at its address."""
    try:
        family, kind, *_, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as one:
            one.bind(where)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Context manager: the handler of SIGTERM stays, which `ray.init` replaces by one that ends the process."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)


def first_line(error: BaseException) -> str:
    """Return the first line of an error that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
