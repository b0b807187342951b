"""Claim: the kernels in C neither reach beyond their memory nor depend on undefined behaviour.

    python benchmarks/sanitized_kernels.py [--shapes 2000] [--seed 0] [--plain] [--no-tests]
    python benchmarks/sanitized_kernels.py --calls 100000 [--small] [--first 0] [--seed 0] [--plain]
    python benchmarks/sanitized_kernels.py --threads

Builds them with AddressSanitizer and UndefinedBehaviorSanitizer (gcc), runs the differential tests on that build, then
updates of random shapes: depth, widths, rows, actions, masks, members, minibatches, both precisions and both widths of
vectors. Every shape's float64 results are compared with torch (1e-9). `--plain` uses the installed kernels instead:
many more shapes in the same time. `--calls` makes random calls of C alone instead, hundreds a second, and checks
memory and bits (`fuzz_kernels.py`). `--threads` runs the tests of calls on threads with ThreadSanitizer instead.
Prints one JSON line; the exit status is 1 if anything was found.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ["-std=c11", "-O1", "-g", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC",
         "-fno-omit-frame-pointer", "-pthread"]  # fmt: skip
MEMORY = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
TESTS = [
    f"tests/differential/test_native{name}.py"
    for name in ("", "_forward", "_policy", "_actor_critic", "_soft_actor_critic", "_teams")
]
OF_THREADS = [
    "tests/unit/benchmarks/test_fuzzed_kernels.py::test_members_on_threads_have_the_bits_of_one_thread",
    "tests/unit/native/test_kernel_threads.py",
]


def sanitized(folder: Path, kind: Sequence[str] = MEMORY, names: Sequence[str] = ("asan", "ubsan")) -> dict[str, str]:
    """Copy the package with a sanitized build into `folder`; return the environment that loads it.

    kind: flags of the sanitizer. names: of its runtime libraries.
    """
    shutil.copytree(ROOT / "agilerl", folder / "agilerl", ignore=shutil.ignore_patterns("_population*", "__pycache__"))
    native = folder / "agilerl" / "native"
    source, library = native / "kernels" / "population.c", native / "_population.so"
    subprocess.run(["gcc", *FLAGS, *kind, str(source), "-o", str(library), "-lm"], check=True)
    runtimes = [subprocess.check_output(["gcc", f"-print-file-name=lib{name}.so"], text=True).strip() for name in
                names]  # fmt: skip
    # A large quarantine of freed memory makes NumPy slow, and the kernels free nothing.
    # `python -m pytest` would otherwise put the working directory, with the ordinary build, before PYTHONPATH.
    return {**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1", "LD_PRELOAD": " ".join(runtimes),
            "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=16",
            "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:exitcode=66", "OMP_NUM_THREADS": "1"}  # fmt: skip


def population(
    kind: Any, obs: Any, space: Any, parts: dict[str, Any], depth: list[int], count: int, dtype: Any, number: int,
    more: dict[str, Any],
) -> list[Any]:  # fmt: skip
    """Return agents of random widths."""
    import numpy as np
    from torch import nn

    made, sizes = [], np.random.default_rng(number)
    latent = int(sizes.integers(1, 40))
    for index in range(count):
        encoder, head = ({"hidden_size": sizes.integers(1, 50, n).tolist(), "min_mlp_nodes": 1, **parts} for n in depth)
        latent = latent if more else int(sizes.integers(1, 40))  # critics of one group read as many features
        if len(obs.shape) == 3:  # members of one group have equal convolutions
            encoder = {"channel_size": [3 + number % 5, 6], "kernel_size": 2, "stride_size": [1 + number % 2, 1]}
            encoder |= {"padding_size": 1, "min_channel_size": 1, "activation": parts["activation"]}
        config = {"latent_dim": latent, "min_latent_dim": 1, "encoder_config": encoder, "head_config": head}
        agent = kind(obs, space, index=index, seed=index, net_config=config, **more)
        for name in agent.registry.all_registered():
            if isinstance(getattr(agent, name), nn.Module):
                getattr(agent, name).to(dtype)
        agent.reinit_optimizers()
        made.append(agent)
    return made


def team(
    kind: Any, rng: Any, parts: dict[str, Any], depth: list[int], count: int, dtype: Any, number: int, rows: int
) -> tuple[Any, Any]:
    """Return a function that makes teams of random agents and widths, and transitions of them."""
    import gymnasium as gym
    import numpy as np
    import torch

    from agilerl.algorithms import MATD3
    from agilerl.engine.protocol import TransitionBatches
    from agilerl.envs.protocol import AGENTS, JOINT, PRESENT

    spaces: dict[str, tuple[Any, Any, list[int]]] = {}
    for group in "abc"[: int(rng.integers(1, 4))]:
        sizes = [int(n) for n in rng.integers(1, 6, int(rng.integers(0, 3)))]
        action: Any = gym.spaces.MultiDiscrete(sizes) if sizes else gym.spaces.Box(-2, 3, (int(rng.integers(1, 4)),))
        seen = gym.spaces.Box(-1, 1, (int(rng.integers(1, 20)),))
        for k in range(int(rng.integers(1, 4))):
            spaces[f"{group}_{k}"] = seen, action, sizes
    updates, draws = int(rng.integers(1, 4)), torch.Generator().manual_seed(number)
    shape, members = (updates, count, rows), len(spaces)
    normal = lambda *s: torch.randn(*shape, *s, generator=draws, dtype=torch.float64).to(dtype)  # noqa: E731
    uniform = lambda *s: torch.rand(*shape, *s, generator=draws, dtype=torch.float64).to(dtype)  # noqa: E731
    stored = [
        torch.stack([(uniform() * n).floor() for n in sizes], -1) if sizes else normal(*action.shape).tanh()
        for _, action, sizes in spaces.values()
    ]
    features = sum(sum(sizes) or action.shape[0] for _, action, sizes in spaces.values())
    fields: dict[str, Any] = {"action": torch.cat(stored, -1), "reward": normal(members)}
    fields |= {"done": torch.zeros(*shape, members, dtype=dtype), "discount": 0.9 + 0.1 * uniform(members)}
    for name in ("obs", "next_obs"):
        agents = {agent: normal(*seen.shape) for agent, (seen, _, _) in spaces.items()}
        fields[name] = {AGENTS: agents, JOINT: torch.cat(list(agents.values()), -1), PRESENT: uniform(members) < 0.8}
        choices = sum(sum(sizes) for _, _, sizes in spaces.values())
        if choices and rng.integers(2):
            fields[{"obs": "obs_mask", "next_obs": "next_mask"}[name]] = uniform(choices) < 0.7
    noise = {name: normal(features) for name in ("gumbel", "smoothing")[: 2 if kind is MATD3 else 1]}
    made = TransitionBatches(fields, uniform() / rows, noise, updates, 1, True)
    more = {"policy_freq": int(rng.integers(1, 4))} if len(noise) > 1 else {}

    def agents_of() -> list[Any]:
        teams, widths = [], np.random.default_rng(number)
        latent = int(widths.integers(1, 40))
        for index in range(count):
            encoder, head = (
                {"hidden_size": widths.integers(1, 50, n).tolist(), "min_mlp_nodes": 1, **parts} for n in depth
            )
            encoder.pop("layer_norm")
            config = {"latent_dim": latent, "min_latent_dim": 1, "encoder_config": encoder, "head_config": head}
            seen, actions = ([one[k] for one in spaces.values()] for k in (0, 1))
            one = kind(seen, actions, agent_ids=list(spaces), index=index, seed=index, net_config=config, **more)
            for name in one.registry.all_registered():
                getattr(one, name).to(dtype)
            teams.append(one)
        return teams

    return agents_of, made


def fuzz(shapes: int, seed: int) -> None:
    """Update `shapes` random populations in C; raises AssertionError where float64 differs from torch."""
    import gymnasium as gym
    import numpy as np
    import torch

    from agilerl.algorithms import CQN, DDPG, DQN, MADDPG, MATD3, PPO, SAC, TD3
    from agilerl.engine.learner import Learner
    from agilerl.engine.protocol import TransitionBatches
    from agilerl.engine.rollouts import Rollout, plan_epoch
    from agilerl.engine.rows.kernels import NATIVE, TORCH
    from agilerl.engine.rows.native import NativeUpdates
    from agilerl.native import library as native

    found = native.library()
    assert found is not None, "no kernels were built for this machine"
    widths = [512, 256] if found.vector == 512 else [found.vector]
    libraries = [native.Library(found.path, width) for width in widths]
    torch.set_num_threads(1)
    dtypes = (torch.float32, torch.float64)

    def learned(agents: list[Any], kernels: Any, library: Any, learn: Any) -> list[Any]:
        learner = Learner(agents, kernels=kernels)
        if len(learner.groups) > 1:  # members of very different sizes; a batch here is for all of them
            return []
        if kernels is not TORCH:
            engine = learner.groups[0].engine
            engine._native = NativeUpdates(engine.cohorts, len(agents), dtypes, engine.places())
            engine._native.library = library
        results = learn(learner)
        assert results is not None, "C has no kernel for this shape"
        rows = [x for cohort in learner.groups[0].engine.cohorts for x in (cohort.value, cohort.target, cohort.first)]
        return [*[x.clone() for x in rows], torch.stack([result.loss for result in results])]

    def compare(number: int, agents: Any, in_c: Any, in_torch: Any, dtype: Any, library: Any) -> None:
        mine = learned(agents(), NATIVE, library, in_c)
        if dtype is torch.float64:
            for a, b in zip(mine, learned(agents(), TORCH, None, in_torch), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, msg=lambda m: f"shape {number}: {m}")

    for number in range(shapes):
        rng = np.random.default_rng((seed, number))
        kind = [DQN, CQN, PPO, DDPG, TD3, SAC, MADDPG, MATD3][number % 8]
        count, rows, inputs = (int(rng.integers(1, n)) for n in (4, 70, 40))
        dtype = [torch.float64, torch.float32][int(rng.integers(2))]
        library, masked = libraries[int(rng.integers(len(libraries)))], bool(rng.integers(2))
        parts = {"activation": str(rng.choice(native.ACTIVATIONS)), "layer_norm": bool(rng.integers(2))}
        depth = [int(n) for n in rng.integers(1, 4, 2)]
        is_image = bool(rng.integers(2))
        obs = gym.spaces.Box(-1, 1, tuple(int(n) for n in rng.integers(1, 6, 3)) if is_image else (inputs,))
        inputs = int(np.prod(obs.shape))
        space: Any = gym.spaces.Discrete(int(rng.integers(1, 12)))
        turn = number // 8
        if kind is PPO and turn % 2:
            space = gym.spaces.MultiDiscrete(rng.integers(1, 7, int(rng.integers(1, 4))))
        if (kind is PPO and turn % 3 == 0) or (kind is SAC and turn % 2) or kind in (DDPG, TD3):
            space, masked = gym.spaces.Box(-2, 3, (int(rng.integers(1, 5)),)), False

        if kind in (MADDPG, MATD3):
            agents, made = team(kind, rng, parts, depth, count, dtype, number, rows)
            in_c = lambda x, made=made: x.groups[0].learn_whole(made, None)  # noqa: E731
            in_torch = lambda x, made=made: x.groups[0].learn_each(made)  # noqa: E731
            compare(number, agents, in_c, in_torch, dtype, library)
            continue
        more: dict[str, Any] = {}
        if kind in (DDPG, TD3, SAC):
            more = {"share_encoders": bool(rng.integers(2))}
            more |= {"learn_temperature": turn % 3 > 0} if kind is SAC else {"policy_freq": int(rng.integers(1, 4))}
        agents = partial(population, kind, obs, space, parts, depth, count, dtype, number, more)
        draws = torch.Generator().manual_seed(number)
        normal = lambda *s, g=draws, d=dtype: torch.randn(*s, generator=g, dtype=torch.float64).to(d)  # noqa: E731
        is_choice = isinstance(space, gym.spaces.Discrete)
        sizes = [int(space.n)] if is_choice else [int(n) for n in getattr(space, "nvec", ())]
        updates = int(rng.integers(1, 4))
        shape = (count, rows) if kind is PPO else (updates, count, rows)
        chosen = [torch.randint(0, n, shape, generator=draws) for n in sizes]
        legal = None
        if masked:
            legal = torch.rand(*shape, sum(sizes), generator=draws) < 0.5
            for start, action in zip(np.cumsum([0, *sizes[:-1]]).tolist(), chosen, strict=True):
                legal.scatter_(-1, (start + action).unsqueeze(-1), True)
        if kind is PPO:
            action = normal(*shape, *space.shape) if not sizes else torch.stack(chosen, -1)
            action = action[..., 0] if is_choice else action
            of = Rollout(normal(*shape, inputs), action, normal(*shape, 4), legal, [np.arange(rows)] * count)
            batch = [int(n) for n in rng.integers(1, 40, count)]
            plan = plan_epoch([np.random.default_rng(i) for i in range(count)], of.samples, batch, [True] * count)
            in_c = lambda x, of=of, plan=plan: x.learn_epoch(0, of, plan)  # noqa: E731
            in_torch = lambda x, of=of, plan=plan: [x.learn(0, part) for part in of.batches(plan)]  # noqa: E731
        else:
            weight = torch.rand(*shape, generator=draws, dtype=torch.float64).to(dtype)
            fields = {
                "obs": normal(*shape, inputs),
                "next_obs": normal(*shape, inputs),
                "reward": normal(*shape),
                "done": torch.zeros(shape, dtype=dtype),
                "action": chosen[0] if sizes else normal(*shape, *space.shape),
                "discount": torch.full(shape, 0.9, dtype=dtype),
            }
            if legal is not None:
                fields |= {"next_mask": legal, "obs_mask": legal}
            names = {TD3: ("smoothing",), SAC: () if sizes else ("action", "next_action")}.get(kind, ())
            noise = {name: normal(*shape, *space.shape) for name in names}
            made = TransitionBatches(fields, weight, noise, updates, 1, False)
            in_c = lambda x, made=made: x.groups[0].learn_whole(made, None)  # noqa: E731
            in_torch = lambda x, made=made: x.groups[0].learn_each(made)  # noqa: E731
        compare(number, agents, in_c, in_torch, dtype, library)


def random_calls(calls: int, first: int, seed: int, flags: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Run `fuzz_kernels.py`; its line, or the number of the shape at which it died."""
    with tempfile.TemporaryDirectory() as folder:
        progress = Path(folder) / "number"
        command = [sys.executable, str(ROOT / "benchmarks" / "fuzz_kernels.py"), "--progress", str(progress)]
        command += ["--calls", str(calls), "--first", str(first), "--seed", str(seed), *flags]
        ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if ended.returncode == 0:
            line: dict[str, Any] = json.loads(ended.stdout)
            return line
        number = int.from_bytes(progress.read_bytes(), sys.byteorder) if progress.exists() else first
    finding = {"seed": seed, "number": number, "finding": f"ended with {ended.returncode}; see the error above"}
    return {"shapes": number - first, "findings": [finding]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--no-tests", action="store_true")
    parser.add_argument("--calls", type=int, default=0, help="random calls of C, in place of tests and shapes")
    parser.add_argument("--first", type=int, default=0, help="number of the first call")
    parser.add_argument("--small", action="store_true", help="small shapes among them, for the slow sanitized build")
    parser.add_argument(
        "--threads", action="store_true", help="look for races between threads, in place of tests and shapes"
    )
    parser.add_argument("--fuzz", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fuzz:
        fuzz(options.shapes, options.seed)
        return
    begun, codes = time.perf_counter(), {}
    with tempfile.TemporaryDirectory() as folder:
        if options.threads:
            environment = sanitized(Path(folder), ["-fsanitize=thread"], ["tsan"])
            command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow and not thorough", *OF_THREADS]
            code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
            print(json.dumps({"build": "tsan", "exit code": code, "seconds": round(time.perf_counter() - begun, 1)}))
            sys.exit(bool(code))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"} if options.plain else sanitized(Path(folder))
        if options.calls:
            flags = ["--small"] * options.small + ["--poison"] * (not options.plain)
            found = random_calls(options.calls, options.first, options.seed, flags, environment)
            build = "plain" if options.plain else "asan, ubsan"
            line = {"build": build, "seed": options.seed, "first": options.first, "small": options.small}
            print(json.dumps({**line, **found}))
            sys.exit(bool(found["findings"]))
        if not options.no_tests:
            command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "--capture=sys", *TESTS]
            codes["tests"] = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        command = [sys.executable, __file__, "--fuzz", "--shapes", str(options.shapes), "--seed", str(options.seed)]
        codes["shapes"] = subprocess.run(command, env=environment, check=False).returncode
    line = {"build": "plain" if options.plain else "asan, ubsan", "shapes": options.shapes, "seed": options.seed}
    print(json.dumps({**line, "exit codes": codes, "seconds": round(time.perf_counter() - begun, 1)}))
    sys.exit(any(codes.values()))


if __name__ == "__main__":
    main()
