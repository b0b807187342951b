"""Workers of a run from a manifest: what they are made from, and how many there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium

from agilerl.config import Manifest
from agilerl.core import foreign
from agilerl.core.importing import import_code
from agilerl.core.threads import available_cores
from agilerl.envs.copies import as_copy
from agilerl.envs.healing import start_method
from agilerl.training.manifest.build import make_founders, make_options, make_replay
from agilerl.training.manifest.device import count_gpus, device_of
from agilerl.training.manifest.tasks import task_of
from agilerl.training.manifest.worker_settings import Workers
from agilerl.training.serving import ShardServer
from agilerl.workers.cluster import ClusterWorkers
from agilerl.workers.connection import LOCAL, connect
from agilerl.workers.executor import Executor
from agilerl.workers.later import START_AFTER, LaterWorkers
from agilerl.workers.local import LocalWorkers


def start_workers(
    manifest: Manifest,
    env: foreign.EnvLike,
    device: str,
    seed: int,
    imports: Sequence[str],
    workers: Workers,
    say: Callable[[str], None],
) -> Executor:
    """Start the workers beside this process, which works too, except in asynchronous mode.

    Args:
        env: passed by the user; None for the one named in the manifest. say: called with messages.
    """
    if workers.most > 1:
        make = partial(make_server, manifest, env, spec_of(manifest, env), device, seed, tuple(imports))
        start = partial(_start_spare, make, workers.most - 1)
        return LaterWorkers(start, say, START_AFTER)
    others = 0 if manifest.evolution.mode == "async" else 1
    spec = spec_of(manifest, env)
    if workers.ray is None:
        make = partial(make_server, manifest, env, spec, device, seed, tuple(imports))
        return LocalWorkers(make, int(workers.count) - others)
    device = device.partition(":")[0]  # Ray chooses which GPU
    make = partial(make_server, manifest, env, spec, device, seed, tuple(imports))
    count = available_cores() if workers.count == "auto" and workers.ray == LOCAL else workers.count
    cluster = connect(workers.ray, 1 if count == "auto" else max(1, int(count) - others), workers.allow_insecure_ray)
    count = max(2, cluster.total("CPU")) if count == "auto" else max(2, int(count))
    return ClusterWorkers(make, count - others, cluster, uses_gpu=device == "cuda")


def _start_spare(make: Callable[[int], ShardServer], count: int) -> LocalWorkers:
    return LocalWorkers(make, count, as_copy=as_copy if start_method() == "fork" else None)


def spec_of(manifest: Manifest, env: foreign.EnvLike) -> Any:
    """Return the registration of the environment named in the manifest; None for one passed by the user."""
    return gymnasium.registry.get(manifest.environment.name) if env is None else None


def make_server(
    manifest: Manifest, env: foreign.EnvLike, spec: Any, device: str, seed: int, imports: Sequence[str], place: int
) -> ShardServer:
    """Build in a worker what does its jobs; see `start_workers`.

    Args:
        spec: of the environment named in the manifest, which the script itself may have registered.
    """
    import_code(imports)
    if spec is not None:
        gymnasium.registry.setdefault(spec.id, spec)
    device = device_of(place + 1, device, count_gpus())  # the run itself is the first one
    task = task_of(manifest)
    train_env, eval_env = task.environments(env, device)
    options = make_options(manifest)
    collector = task.collector.make(train_env, options, lambda: make_replay(manifest, device, train_env), eval_env)
    return ShardServer(collector, make_founders(manifest, env, train_env, device, seed), seed, options.shards)
