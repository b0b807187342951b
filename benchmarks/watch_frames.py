"""Frame times of the page of `agilerl watch` in headless Chromium, while a large run grows.

    python benchmarks/watch_frames.py --members 1000 --generations 500
    python benchmarks/watch_frames.py --members 8 --generations 40 --shots shots

It writes a run of random births, of which all but the last generations are there at first, and appends a generation
every half second. A frame is the time between two calls of requestAnimationFrame; the CPU time of the main thread does
not depend on other processes. `--shots` writes pictures: light, dark, and 420 px wide.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HEADER = (
    "generation,id,slot,parent,fitness,score,env_steps,updates,loss,mutation,network,is_best,hp.batch_size,hp.gamma,"
    "hp.lr,hp.tau,population_env_steps,evaluation_env_steps,epsilon,confirmation,confirmation_episodes,seconds\n"
)
FRAMES = """(() => { const times = []; let last = performance.now();
  const next = (now) => { times.push(now - last); last = now; requestAnimationFrame(next); };
  requestAnimationFrame((now) => { last = now; requestAnimationFrame(next); });
  window.frameTimes = times;
  window.longTasks = [];
  new PerformanceObserver((list) => list.getEntries().forEach((entry) => window.longTasks.push(entry.duration)))
    .observe({ entryTypes: ["longtask"] });
})()"""


def browser() -> str | None:
    """Path of a Chromium; None without one."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


class Chromium:
    """A headless Chromium, driven by the DevTools protocol over pipes.

    Attributes:
        problems: errors on the console, exceptions and failed requests of the page so far.
    """

    def __init__(self, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        path = browser()
        assert path is not None, "no Chromium"
        self._folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()

        def pipes() -> None:  # the browser reads from 3 and writes to 4
            reads, writes = (fcntl.fcntl(each, fcntl.F_DUPFD, 100) for each in (theirs_in, theirs_out))
            os.dup2(reads, 3)
            os.dup2(writes, 4)

        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        flags += [f"--user-data-dir={self._folder.name}", f"--window-size={width},{height}"]
        flags += ["--disable-background-networking", "--disable-dev-shm-usage", "--hide-scrollbars"]
        self._process = subprocess.Popen(
            [path, *flags, "about:blank"], preexec_fn=pipes, close_fds=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        self._waiting, self._number, self.problems = b"", 0, list[str]()
        self._session = ""
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(each["targetId"] for each in targets if each["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Performance.enable", timeDomain="threadTicks")
        self.look(width, height, dark)

    def look(self, width: int, height: int, dark: bool) -> None:
        """Change the window and the colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._waiting:
            piece = os.read(self._in, 1 << 16)
            if not piece:
                raise RuntimeError("the browser has ended")
            self._waiting += piece
        line, _, self._waiting = self._waiting.partition(b"\0")
        return dict(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        method, content = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = content["exceptionDetails"]
            self.problems.append(str(details.get("exception", {}).get("description", details["text"])))
        elif method == "Runtime.consoleAPICalled" and content["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(each.get("value", each.get("description"))) for each in content["args"]))
        elif method == "Log.entryAdded" and content["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{content['entry']['text']} {content['entry'].get('url', '')}")

    def open(self, url: str) -> None:
        """Go to a page."""
        self.call("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """Value of a JavaScript expression; a promise is waited for."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 60.0) -> Any:
        """Wait until an expression is true.

        Raises:
            TimeoutError: it is not after `seconds`.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if value := self.value(expression):
                return value
            time.sleep(0.05)
        raise TimeoutError(f"{expression}; problems: {self.problems}")

    def busy(self) -> float:
        """CPU seconds of the tasks of the page's main thread so far."""
        metrics = {each["name"]: each["value"] for each in self.call("Performance.getMetrics")["metrics"]}
        return float(metrics["TaskDuration"])

    def shot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._folder.cleanup()


class Grown:
    """A run of random births that is written generation by generation."""

    def __init__(self, path: Path, members: int, generations: int, seed: int = 0) -> None:
        self.path, self._members, self._rng = path, members, random.Random(seed)
        path.mkdir(parents=True)
        options = {"max_steps": 1000 * generations, "evo_steps": 1000, "evo_first": None, "target": 400.0}
        facts = {"status": "running", "algo": "DQN", "env_id": "LunarLander-v3", "seed": seed, "device": "cpu"}
        facts |= {"started": "2026-11-28T08:00:00Z", "population": members, "max_env_steps": 1000 * generations}
        (path / "run.json").write_text(json.dumps({**facts, "options": options, "random_play": {"mean": -180.0}}))
        (path / "LOCK").write_text(json.dumps({"pid": os.getpid(), "host": os.uname().nodename, "token": "0" * 16}))
        ranges = "lr: {min: 0.0001, max: 0.01}, batch_size: {min: 16, max: 512}, gamma: {min: 0.9, max: 0.999}"
        task = "algorithm: {name: DQN}\nenvironment: {name: LunarLander-v3}\n"
        (path / "config.yaml").write_text(f"{task}mutation: {{rl_hp_selection: {{{ranges}}}}}\n")
        (path / "metrics.csv").write_text(HEADER)
        first = {"parent": "", "lr": 1e-3, "batch": 64, "gamma": 0.99, "kind": "founder"}
        self._living = [{**first, "id": slot, "worth": self._rng.gauss(-150, 40)} for slot in range(members)]
        self._next, self._number = members, 0
        self._births([(each["id"], None, 0, "founder", "", None, None) for each in self._living])

    def _births(self, births: list[tuple[Any, ...]]) -> None:
        names = ("id", "parent", "generation", "kind", "path", "before", "after")
        with open(self.path / "evolution.jsonl", "a") as file:
            file.writelines(json.dumps(dict(zip(names, birth, strict=True))) + "\n" for birth in births)

    def grow(self, count: int = 1) -> None:
        """Append generations."""
        rows = []
        for _ in range(count):
            number, rng = self._number, self._rng
            for each in self._living:
                each["fitness"] = each["worth"] + rng.gauss(0, 25)
            best = max(self._living, key=lambda each: each["fitness"])
            held = f"{best['worth']:.4f},20" if number % 9 == 8 else ","
            for slot, each in enumerate(self._living):
                steps = 1000 * (number + 1)
                who = f"{number},{each['id']},{slot},{each['parent']},{each['fitness']},{each['worth']},{steps},250,0.5"
                what = (
                    f"{each['kind']},[64] 64 [64],{int(each is best)},{each['batch']},{each['gamma']},{each['lr']},0.01"
                )
                whole = f"{steps * self._members},{steps * self._members // 3},0.1,{held},{4.2 * (number + 1)}"
                rows.append(f"{who},{what},{whole}\n")
            self._number += 1
            self._evolve()
        with open(self.path / "metrics.csv", "a") as file:
            file.writelines(rows)
        now = {"env_steps": 1000 * self._number + 400, "max_env_steps": 10**6, "generation": self._number}
        now |= {"generations": None, "seconds": 4.2 * self._number + 1.5, "time": time.time()}
        (self.path / "progress.json").write_text(json.dumps(now))

    def _evolve(self) -> None:
        rng, births = self._rng, []
        ranked = sorted(self._living, key=lambda each: -each["fitness"])
        following = [ranked[0]]
        while len(following) < self._members:
            parent = max(rng.sample(self._living, min(3, self._members)), key=lambda each: each["fitness"])
            kind = rng.choice(("none", "rl_hp", "rl_hp", "architecture", "parameters"))
            child = {
                **parent,
                "id": self._next,
                "parent": parent["id"],
                "worth": min(280, parent["worth"] + rng.gauss(4, 18)),
            }
            path, before, after = "", None, None
            if kind == "rl_hp":
                path = rng.choice(("lr", "batch", "gamma"))
                before = parent[path]
                after = {"lr": before * rng.choice((0.8, 1.2)), "batch": max(16, int(before * rng.choice((0.8, 1.25)))),
                         "gamma": min(0.999, before + rng.choice((-0.002, 0.002)))}[path]  # fmt: skip
                child[path] = after
            elif kind == "architecture":
                path, before, after = "encoder.add_node", "[64] 64 [64]", "[96] 64 [64]"
            child["kind"] = path or kind
            births.append((child["id"], parent["id"], self._number, kind, path, before, after))
            following.append(child)
            self._next += 1
        self._births(births)
        self._living = following

    def say(self, text: str) -> None:
        """Append a message."""
        with open(self.path / "messages.jsonl", "a") as file:
            file.write(json.dumps({"time": time.time(), "text": text}) + "\n")


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """`agilerl watch` of a folder in another process; gives its address."""
    command = [sys.executable, "-m", "agilerl", "watch", str(folder), "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[1]
    finally:
        process.terminate()
        process.communicate()


def measure(members: int, generations: int, seconds: float, shots: Path | None, say: Callable[..., None]) -> None:
    """Print frame times while a run grows, and write pictures."""
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as url:
        later = max(1, min(generations // 3, int(seconds / 0.5)))
        run = Grown(Path(folder) / "LunarLander-v3" / "dqn-0001", members, generations)
        run.say("learner: fused (every network consists of dense layers or small convolutions)")
        run.grow(generations - later)
        page = Chromium()
        try:
            begun = time.perf_counter()
            page.open(f"{url}#run=LunarLander-v3%2Fdqn-0001")
            page.wait_for(f"window.page && window.page.run.generations.length >= {generations - later}", 120)
            say(
                f"{generations - later} generations of {members} members read after {time.perf_counter() - begun:.1f} s"
            )
            time.sleep(2)
            page.value(FRAMES)
            before = page.busy()
            stop = threading.Event()

            def grow() -> None:
                for _ in range(later):
                    run.grow()
                    if stop.wait(0.5):
                        return

            thread = threading.Thread(target=grow)
            thread.start()
            thread.join(seconds + 30)
            stop.set()
            page.wait_for(f"window.page.run.generations.length >= {generations}", 30)
            busy = page.busy() - before
            frames, tasks = page.value("window.frameTimes"), page.value("window.longTasks")
            ordered = sorted(frames)
            p50, p95, p99 = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.95, 0.99))
            say(f"{len(frames)} frames, ms: p50 {p50:.1f}, p95 {p95:.1f}, p99 {p99:.1f}, largest {ordered[-1]:.0f}")
            say(f"tasks over 50 ms: {len(tasks)}, longest {max(tasks, default=0):.0f} ms, {later} generations appended")
            say(f"CPU of the page's main thread: {1000 * busy / later:.0f} ms per appended generation")
            heap = page.value("performance.memory.usedJSHeapSize / 1e6")
            say(f"heap of the page {heap:.0f} MB")
            if shots is not None:
                pictures(page, shots)
            say(f"problems: {page.problems or 'none'}")
        finally:
            page.close()


def pictures(page: Chromium, folder: Path) -> None:
    """Write light.png, dark.png and narrow.png."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, width, dark in (("light", 1280, False), ("dark", 1280, True), ("narrow", 420, False)):
        page.look(width, 900, dark)
        height = page.call("Page.getLayoutMetrics")["cssContentSize"]["height"]
        page.look(width, int(height), dark)  # so that charts below the window are drawn
        time.sleep(1.5)
        page.shot(folder / f"{name}.png")


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--generations", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=15.0, help="how long generations are appended")
    parser.add_argument("--shots", type=Path, help="folder for pictures")
    options = parser.parse_args()
    measure(options.members, options.generations, options.seconds, options.shots, print)


if __name__ == "__main__":
    main()
