"""Environments with something of their process: what a fork copies, or two processes cannot both have."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import queue
import random
import signal
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

LENGTH = 5  # steps of an episode


class Plain(gym.Env[Any, Any]):
    """Episodes of five steps; observed is a number of `draw`, and its sign is the better action.

    With AGILERL_TEST_STARTS every start of an episode is appended to that file.
    """

    observation_space = gym.spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space: Any = gym.spaces.Discrete(2)

    def draw(self) -> float:
        return float(self.np_random.normal())

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time, self.number = 0, self.draw()
        if path := os.environ.get("AGILERL_TEST_STARTS"):
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{self.number!r}\n")
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        reward = float((self.number > 0) == bool(action))
        self.time, self.number = self.time + 1, self.draw()
        return self._observe(), reward, False, self.time >= LENGTH, {}

    def _observe(self) -> np.ndarray:
        return np.clip(np.array([self.number, self.time / LENGTH], np.float32), -10, 10)


class GlobalGenerators(Plain):
    """Draws from all generators of the process, also when it is made."""

    def __init__(self) -> None:
        self.shift = np.random.rand() + random.random()

    def draw(self) -> float:
        return float(self.shift + np.random.normal() + random.gauss(0, 1) + torch.randn(()).item())


class SeedsGlobally(Plain):
    """Seeds the generators of the process with its own seed, and draws from them."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            np.random.seed(seed)
            random.seed(seed)
        return super().reset(seed=seed, options=options)

    def draw(self) -> float:
        return float(np.random.normal() + random.random())


class LateDraws(Plain):
    """Draws from the process's generator from the tenth episode of the process on."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        LateDraws.episodes += 1
        return super().reset(seed=seed, options=options)

    def draw(self) -> float:
        return float(np.random.normal()) if LateDraws.episodes > 10 else super().draw()


def _simulate(connection: Any) -> None:
    while True:
        try:
            connection.send(connection.recv())
        except (EOFError, OSError):
            return


class ChildProcess(Plain):
    """Its simulator is a process that it starts."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_simulate, args=(other,), daemon=True)
        self.process.start()
        other.close()

    def draw(self) -> float:
        self.connection.send(super().draw())
        return float(self.connection.recv())

    def close(self) -> None:
        self.process.terminate()
        self.process.join()


class Port(Plain):
    """Owns a port whose number its class counts."""

    count = 0
    first = 20_000 + os.getpid() % 20_000  # of the run, also in the processes that it starts

    def __init__(self) -> None:
        Port.count += 1
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after a closed one, not beside an open one
        self.socket.bind(("127.0.0.1", Port.first + Port.count))
        self.socket.listen()

    def draw(self) -> float:
        with socket.create_connection(self.socket.getsockname()) as client, self.socket.accept()[0] as server:
            client.sendall(str(super().draw()).encode())
            return float(server.recv(64))

    def close(self) -> None:
        self.socket.close()


class OpenFile(Plain):
    """Writes to a locked file whose number its class counts."""

    count = 0

    def __init__(self) -> None:
        OpenFile.count += 1
        self.file = open(Path(tempfile.gettempdir()) / f"agilerl-{os.getuid()}-{OpenFile.count}", "a+b")  # noqa: SIM115
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.file.close()
            raise

    def draw(self) -> float:
        number = super().draw()
        self.file.seek(0)
        self.file.truncate()
        self.file.write(str(number).encode())
        self.file.seek(0)
        return float(self.file.read())

    def close(self) -> None:
        self.file.close()


class Torch(Plain):
    """A small network of torch, with weights of its own, is a part of it."""

    def __init__(self) -> None:
        self.weight = torch.full((64, 64), 1.0 / 64)

    def draw(self) -> float:
        noise = torch.randn(64)
        with torch.no_grad():
            return float((noise @ self.weight).sum().clamp(-9, 9))


class Thread(Plain):
    """A thread does its steps."""

    def __init__(self) -> None:
        self.asked: queue.Queue[Any] = queue.Queue()
        self.answers: queue.Queue[float] = queue.Queue()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while (number := self.asked.get()) is not None:
            self.answers.put(number)

    def draw(self) -> float:
        self.asked.put(super().draw())
        return self.answers.get()

    def close(self) -> None:
        self.asked.put(None)
        self.thread.join()


class SlowStart(Plain):
    """Is made in 0.15 s."""

    def __init__(self) -> None:
        time.sleep(0.15)


class OneShot(Plain):
    """A process can make it once."""

    made = False

    def __init__(self) -> None:
        if OneShot.made:
            raise RuntimeError("the simulator can start once in a process")
        OneShot.made = True


KINDS: dict[str, Any] = {
    "global generators": GlobalGenerators,
    "global seeds": SeedsGlobally,
    "child process": ChildProcess,
    "port": Port,
    "open file": OpenFile,
    "torch": Torch,
    "thread": Thread,
    "slow start": SlowStart,
    "one-shot": OneShot,
}


class Crashing(GlobalGenerators):
    """Kills its process once, at the step for which there is a file."""

    folder: Path | None = None

    def step(self, action: Any) -> Any:
        for token in sorted(self.folder.iterdir()) if self.folder is not None else ():
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                token.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)
