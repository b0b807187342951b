"""A run in shards keeps its bits whatever happens to its processes, and leaves none of them behind."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import faulty_runs
import pytest
import worker_runs
from faulty_runs import digest, resume, run_in, train
from worker_runs import TRAINED, finish, processes_of, said, start, wait_for_ready, wait_until_gone

import agilerl
from agilerl.runs.checkpoints import generations

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="finds processes by /proc"),
    pytest.mark.thorough,
]
DQN, OWN = "DQN-per-n-step", "PPO"
long = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Digest of a case trained in this process alone."""
    known: dict[str, str] = {}

    def of(name: str) -> str:
        if name not in known:
            known[name] = digest(train(TRAINED[name], tmp_path_factory.mktemp("alone")))
        return known[name]

    return of


@pytest.mark.parametrize(("name", "kills"), [(DQN, 2), *(pytest.param(name, 20, marks=long) for name in (DQN, OWN))])
def test_workers_killed_at_random_change_nothing(
    name: str, kills: int, alone: Callable[[str], str], tmp_path: Path
) -> None:
    rng, runs = random.Random(kills), 0
    left = kills
    while left:
        out, runs = tmp_path / str(runs), runs + 1
        process = start(name, out, workers=3, copies=True)
        left -= worker_runs.kill_workers(process, left, rng)
        path = finish(process, out)
        assert digest(path) == alone(name)
        assert re.search(r"a worker was lost: process \d+ was killed by SIGKILL; ", said(out))
        wait_until_gone(out)


@pytest.mark.parametrize(("name", "kills"), [(DQN, 1), *(pytest.param(name, 20, marks=long) for name in (DQN, OWN))])
def test_a_run_killed_at_random_is_resumed_and_leaves_nothing(
    name: str, kills: int, alone: Callable[[str], str], tmp_path: Path
) -> None:
    rng, before, runs = random.Random(kills), worker_runs.shared_memory(), 0
    out = tmp_path / "0"
    while True:
        process = start(name, out, workers=rng.choice([2, 3]), path=run_in(out) if out.exists() else None)
        if kills:
            wait_for_ready(process, 1)
            time.sleep(rng.uniform(0, 4))
            process.kill()
        kills -= process.wait() == -signal.SIGKILL  # unless the run had ended
        wait_until_gone(out)
        assert worker_runs.shared_memory() <= before
        assert process.returncode in (0, -signal.SIGKILL), said(out)
        if process.returncode == 0:
            path = run_in(out)
            assert path is not None
            assert digest(path) == alone(name)
            if not kills:
                return
            out, runs = tmp_path / str(runs + 1), runs + 1


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=long)])
def test_an_asynchronous_run_killed_at_random_has_the_bits_of_its_replay(kills: int, tmp_path: Path) -> None:
    """Workers are killed, then the run, again and again; the order of arrivals in evolution.jsonl is the last word."""
    rng, out = random.Random(kills), tmp_path / "0"
    process = start("DQN-async", out, workers=2, copies=True)
    for _ in range(kills):
        worker_runs.kill_workers(process, 1, rng)
        if process.poll() is None:
            process.kill()
        process.wait()
        wait_until_gone(out)
        last = run_in(out) if out.exists() else None
        process = start("DQN-async", out, workers=rng.choice([2, 3]), path=last, copies=True)
    path = finish(process, out)
    wait_until_gone(out)
    case = {**TRAINED["DQN-async"], "arrivals": path}
    assert digest(train(case, tmp_path / "replay")) == digest(path)


@pytest.mark.parametrize("name", [DQN, pytest.param("PPO", marks=long)])
def test_a_stopped_worker_does_not_stop_its_run(name: str, alone: Callable[[str], str], tmp_path: Path) -> None:
    process = start(name, tmp_path, workers=2, copies=True)
    (pid,) = wait_for_ready(process, 1)
    time.sleep(1)
    os.kill(pid, signal.SIGSTOP)
    assert digest(finish(process, tmp_path)) == alone(name)
    assert re.search(
        r"a worker is late with .*, which was done here|it did not take its job|in the middle of a", said(tmp_path)
    )
    wait_until_gone(tmp_path)


@pytest.mark.slow
def test_a_worker_without_memory_is_replaced(alone: Callable[[str], str], tmp_path: Path) -> None:
    process = start(DQN, tmp_path, workers=2)
    (pid,) = wait_for_ready(process, 1)
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[0])
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize(),) * 2)
    assert digest(finish(process, tmp_path)) == alone(DQN)
    wait_until_gone(tmp_path)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 0), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("is_waiting", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_signal_stops_a_run_resumable(
    number: int, code: int, is_waiting: bool, alone: Callable[[str], str], tmp_path: Path
) -> None:
    """Also where it waits for a worker that does not go on."""
    process = start(DQN, tmp_path, workers=2, copies=True)
    for pid in wait_for_ready(process, 1):
        time.sleep(1)
        if is_waiting:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(1)
    while _generations(tmp_path) < 1:
        time.sleep(0.05)
    process.send_signal(number)
    path = finish(process, tmp_path, code)
    assert json.loads((path / "run.json").read_text(encoding="utf-8"))["status"] == "interrupted"
    wait_until_gone(tmp_path)
    assert resume(path) == []
    assert digest(path) == alone(DQN)


# -- environments ------------------------------------------------------------------------------------------------------

ENVIRONMENT = """
import os, signal, time
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit
os.environ.setdefault("AGILERL_TESTS_DRIVER", str(os.getpid()))

def is_in_worker():
    return os.environ["AGILERL_TESTS_DRIVER"] != str(os.getpid())

class Own(CartPoleEnv):
    def __init__(self):
        super().__init__()
        if is_in_worker() and {where!r} == "constructor":
            {does}

    def step(self, action):
        time.sleep({seconds})
        if is_in_worker() and {where!r} == "step":
            {does}
        return super().step(action)

"""
MADE = "arguments['env'] = lambda: TimeLimit(Own(), 50)\n"


def script(where: str = "", does: str = "pass", seconds: float = 0.0, made: str = MADE) -> str:
    return ENVIRONMENT.format(where=where, does=does, seconds=seconds) + made


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of a run in the environment above, in this process."""
    arguments = {**faulty_runs.arguments(TRAINED[OWN]), "out": tmp_path_factory.mktemp("own")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGILERL_TESTS_DRIVER", str(os.getpid()))
        exec(script(), {"arguments": arguments})
        run = agilerl.train(**arguments)
    assert run.path is not None
    return digest(run.path)


MODULE = """
import pathlib
pathlib.Path("elsewhere").mkdir(exist_ok=True)
pathlib.Path("elsewhere/own_module.py").write_text({text!r})
sys.path.insert(0, "elsewhere")
import own_module
from gymnasium.wrappers import TimeLimit
"""
REGISTERED = """
import gymnasium
gymnasium.register("Own-v0", entry_point=Own, max_episode_steps=50)
arguments["env"] = "Own-v0"
"""


LIMITED = """
class Limited(TimeLimit):
    def __init__(self):
        super().__init__(Own(), 50)

arguments["env"] = Limited
"""
SETUPS = {
    "lambda": script(),
    "class": script(made=LIMITED),
    "object": script(made="arguments['env'] = TimeLimit(Own(), 50)"),
    "registered": script(made=REGISTERED),
    "module": MODULE.format(text=script(made="")) + "arguments['env'] = lambda: TimeLimit(own_module.Own(), 50)",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SETUPS)
def test_environments_of_a_script_without_a_guard_reach_the_workers(kind: str, own: str, tmp_path: Path) -> None:
    out = tmp_path / "workers"
    path = finish(start(OWN, out, workers=2, setup=SETUPS[kind]), out)
    assert "a worker" not in said(out)
    if kind in ("object", "registered"):  # one lane, and an environment that others can make: other runs
        own = digest(finish(start(OWN, tmp_path / "alone", workers=1, setup=SETUPS[kind]), tmp_path / "alone"))
    assert digest(path) == own


def test_an_environment_that_raises_in_workers_only_is_told_once(own: str, tmp_path: Path) -> None:
    process = start(OWN, tmp_path, workers=2, setup=script("step", "raise ValueError('no licence')"), copies=True)
    assert digest(finish(process, tmp_path)) == own
    assert len(re.findall(r"failed in a worker and is done here: .*no licence", said(tmp_path))) == 1
    wait_until_gone(tmp_path)


@pytest.mark.slow
def test_an_environment_that_cannot_be_made_in_workers_is_told_once(tmp_path: Path) -> None:
    process = start(OWN, tmp_path, workers=3, setup=script("constructor", "raise ValueError('no licence')"))
    finish(process, tmp_path, 1)
    assert len(re.findall(r"Error: a worker cannot start: .*no licence", said(tmp_path))) == 1
    assert "fix: env=make_env" in said(tmp_path)
    wait_until_gone(tmp_path)


@pytest.mark.slow
def test_an_environment_that_ends_every_worker_ends_the_run_with_the_shard_and_the_seed(tmp_path: Path) -> None:
    crash = script("step", "os.kill(os.getpid(), signal.SIGSEGV)", seconds=0.02)
    path = finish(start(OWN, tmp_path, workers=2, setup=crash), tmp_path, 1)
    assert re.search(
        r"RunError: (shard \d|episodes \d+ to \d+) of generation \d+ \(run seed 3\) has lost .* SIGSEGV.*fix: ",
        said(tmp_path),
    )
    assert json.loads((path / "run.json").read_text(encoding="utf-8"))["status"] == "failed"
    wait_until_gone(tmp_path)


@pytest.mark.slow
def test_an_environment_object_that_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    lock = "import threading\nenv = TimeLimit(Own(), 50)\nenv.lock = threading.Lock()\narguments['env'] = env\n"
    start(OWN, tmp_path, workers=2, setup=script(made=lock)).wait()
    assert "ConfigError: the environment cannot be sent to a worker (TypeError: cannot pickle" in said(tmp_path)
    assert "fix: pass a function that makes it" in said(tmp_path)
    assert processes_of(tmp_path) == {}


# -- over many generations ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_memory_and_descriptors_stay_while_workers_are_lost(tmp_path: Path) -> None:
    """30 generations, with a kill in every third one."""
    more = {"steps": 30 * 480}
    process = start(DQN, tmp_path, workers=3, more=more)
    sizes = []
    for kill in range(10):
        ready = wait_for_ready(process, 1)
        if not ready:
            break
        rss = int(Path(f"/proc/{process.pid}/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
        sizes.append((rss, len(os.listdir(f"/proc/{process.pid}/fd"))))
        os.kill(ready[-1], signal.SIGKILL)
        goal = 3 * kill + 3
        while process.poll() is None and _generations(tmp_path) < goal:
            time.sleep(0.05)
    finish(process, tmp_path)
    assert len(sizes) >= 5
    half = len(sizes) // 2
    assert max(fds for _, fds in sizes[half:]) <= max(fds for _, fds in sizes[:half]) + 1
    assert max(rss for rss, _ in sizes[half:]) < 1.1 * max(rss for rss, _ in sizes[1:half])


def _generations(out: Path) -> int:
    path = run_in(out)
    found = [] if path is None else generations(path / "checkpoints")
    return int(found[-1].name[4:]) if found else 0
