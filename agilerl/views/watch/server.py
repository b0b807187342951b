"""The server of the live view: this machine alone, a token in the path of every address."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import secrets
import socket
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from agilerl.core.importing import import_code
from agilerl.errors import AgileRLError, ConfigError
from agilerl.runs import steering
from agilerl.views.watch.film import Studio
from agilerl.views.watch.folder import RunList, find_group, find_run, root_of
from agilerl.views.watch.machine import Machine, process_of
from agilerl.views.watch.seeds import Seeds
from agilerl.views.watch.state import RUNNING, RunFollower
from agilerl.views.watch.wire import Cursor, Event, entry_facts, plain

try:
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from uvicorn import Config, Server
except ImportError as error:
    raise ConfigError(f'`watch` needs starlette and uvicorn ({error}). fix: pip install "agilerl[watch]".') from error

HOST = "127.0.0.1"
HOSTS = (HOST, "localhost")
SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_BETWEEN_LISTS = 2.0
MAX_BODY = 64 * 1024  # bytes of a request
MAX_FOLLOWED = 8  # runs in memory
STATIC = {
    "watch.css": "text/css", "main.js": "text/javascript", "store.js": "text/javascript",
    "charts.js": "text/javascript", "lineage.js": "text/javascript", "panels.js": "text/javascript",
    "vendor/uPlot.iife.min.js": "text/javascript", "vendor/uPlot.min.css": "text/css",
    "vendor/uPlot-LICENSE": "text/plain",
}  # fmt: skip
SAFETY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Watch:
    """What is watched: a run or a folder of runs.

    Attributes:
        token: first part of every path. pid: of the process whose run the page opens; None: none.
        imports: code that films and requests need, see `--import`.
    """

    root: Path
    token: str
    pid: int | None = None
    imports: tuple[str, ...] = ()


class Guard:
    """Refuses other hosts (DNS rebinding) and paths without the token, and adds headers to every answer."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # no route is one
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFETY.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await PlainTextResponse(refusal, status_code=403)(scope, receive, send_safely)
            return
        path = scope["path"][len(self._token) + 1 :]
        if not path:  # the page's links are relative
            await RedirectResponse(f"/{self._token}/")(scope, receive, send_safely)
            return
        inner = {**scope, "path": path, "raw_path": path.encode()}
        await self.app(inner, receive, send_safely)

    def _refusal(self, scope: Scope) -> str | None:
        headers = Headers(scope=scope)
        if _name_of(headers.get("host", "")) not in HOSTS:
            return f"this server answers to {HOST} and localhost alone"
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{headers['host']}":  # a page of another port is another site
            return "other sites may not ask this server"
        token = scope["path"].split("/")[1] if "/" in scope["path"] else ""
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            return "the address lacks its token. fix: use the whole address that `agilerl watch` prints"
        return None


def _name_of(host: str) -> str:
    return host.rpartition(":")[0] if ":" in host else host


class Runs:
    """Followers of runs by key, shared by all pages; those looked at last stay in memory."""

    def __init__(self, root: Path) -> None:
        self._root, self._lock = root, threading.Lock()
        self._followers: dict[str, RunFollower] = {}

    def follower(self, key: str) -> RunFollower | None:
        """The follower of a run; None for an unknown key. A run that has vanished keeps its follower."""
        with self._lock:
            follower = self._followers.pop(key, None)
            if follower is None:
                path = find_run(self._root, key)
                if path is None:
                    return None
                follower = RunFollower(path)
            self._followers[key] = follower  # as the newest one
            while len(self._followers) > MAX_FOLLOWED:
                del self._followers[next(iter(self._followers))]
            return follower

    def look(self, follower: RunFollower) -> bool:
        """Read what is new, unless another page has just done so; True if more is waiting."""
        with follower.lock:
            if time.monotonic() - follower.polled_s < SECONDS_BETWEEN_LOOKS / 2:
                return False
            has_more = follower.poll()
            follower.polled_s = -math.inf if has_more else time.monotonic()
            return has_more


class App:
    """The routes. `closing` is set when the server ends, so that streams end at once."""

    def __init__(self, watch: Watch) -> None:
        self.watch, self.runs, self.closing = watch, Runs(watch.root), threading.Event()
        self.studio = Studio(watch.imports)
        folder = resources.files("agilerl.views.watch") / "static"
        self._page = (folder / "index.html").read_bytes()
        self._static = {name: folder.joinpath(*name.split("/")).read_bytes() for name in STATIC}
        routes = [
            Route("/", self.page),
            Route("/static/{name:path}", self.static),
            Route("/events", self.events),
            Route("/film", self.film),
            Route("/film", self.begin_film, methods=["POST"]),
            Route("/steer", self.steer, methods=["POST"]),
        ]
        self.asgi = Guard(Starlette(routes=routes), watch.token)

    async def page(self, request: Request) -> Response:
        return Response(self._page, media_type="text/html")

    async def static(self, request: Request) -> Response:
        """Files of a fixed table; no path is built from the address."""
        name = request.path_params["name"]
        if name not in self._static:
            return PlainTextResponse("no such file", status_code=404)
        return Response(self._static[name], media_type=STATIC[name])

    async def events(self, request: Request) -> Response:
        """A stream of events: of a run (`?run=KEY`), a group of seeds (`?group=KEY`), or the list of runs."""
        key, group = (request.query_params.get(name) for name in ("run", "group"))
        if group is not None:
            folder = await run_in_threadpool(find_group, self.watch.root, group)
            if folder is None:
                return _failure(f"there is no group {group!r} in {self.watch.root}. fix: choose one of the list.", 404)
            return self._stream(self._list_events(Seeds(self.watch.root, folder).read))
        if key is None:
            return self._stream(self._list_events(partial(self._list, RunList(self.watch.root, self.watch.pid))))
        follower = await run_in_threadpool(self.runs.follower, key)
        if follower is None:
            return _failure(f"there is no run {key!r} in {self.watch.root}. fix: choose one of the list.", 404)
        return self._stream(self._run_events(follower, request.headers.get("last-event-id", "")))

    def _stream(self, events: AsyncIterator[bytes]) -> Response:
        return StreamingResponse(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    def _list(self, runs: RunList) -> dict[str, Any]:
        entries, root = entry_facts(runs.read()), self.watch.root
        return {"root": str(root), "exists": root.is_dir(), "runs": entries, "omitted": runs.omitted}

    async def _list_events(self, read: Callable[[], dict[str, Any]]) -> AsyncIterator[bytes]:
        sent, machine = None, Machine()
        while not self.closing.is_set():
            content = await run_in_threadpool(read)
            if content != sent:
                sent = content
                yield Event("runs", content).encode()
            yield Event("machine", {"load": asdict(machine.look())}).encode()
            await self._pause(SECONDS_BETWEEN_LISTS)

    async def _run_events(self, follower: RunFollower, last_id: str) -> AsyncIterator[bytes]:
        cursor, machine = Cursor(follower, last_id), Machine()
        while not self.closing.is_set():
            has_more = await run_in_threadpool(self.runs.look, follower)
            events = await run_in_threadpool(self._advance, cursor, follower, machine)
            for event in events:
                yield event
            if not has_more and cursor.is_complete:
                await self._pause(SECONDS_BETWEEN_LOOKS)

    def _advance(self, cursor: Cursor, follower: RunFollower, machine: Machine) -> list[bytes]:
        pid = process_of(follower.path) if follower.status == RUNNING else None
        extra = {
            "load": asdict(machine.look(pid)),
            "film": asdict(self.studio.film(follower.path)),
            "pending": waiting_requests(follower),
        }
        return [event.encode() for event in cursor.advance(extra)]

    async def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self.closing.is_set() and time.monotonic() < until:
            await asyncio.sleep(min(0.1, max(0.0, until - time.monotonic())))

    async def begin_film(self, request: Request) -> Response:
        follower = await self._asked(request)
        if follower is None:
            return _failure("the request names no run. fix: reload the page.", 404)
        return JSONResponse(asdict(await run_in_threadpool(self.studio.record, follower.path)))

    async def film(self, request: Request) -> Response:
        follower = await self._asked(request)
        content = None if follower is None else await run_in_threadpool(self.studio.content, follower.path)
        if content is None:
            return PlainTextResponse("no film", status_code=404)
        return Response(content, media_type="image/webp")

    async def steer(self, request: Request) -> Response:
        """Leave a request for the run: JSON of `runs.steering.Request`; errors are JSON with status 400."""
        follower = await self._asked(request)
        if follower is None:
            return _failure("the request names no run. fix: reload the page.", 404)
        try:
            content = await _body(request)
            name = await run_in_threadpool(ask, follower, content, self.watch.imports)
        except (AgileRLError, OSError) as error:
            return _failure(str(error), 400)
        return JSONResponse({"request": name})

    async def _asked(self, request: Request) -> RunFollower | None:
        return await run_in_threadpool(self.runs.follower, request.query_params.get("run", ""))


def _failure(message: str, status: int) -> Response:
    return JSONResponse({"error": message}, status_code=status)


async def _body(request: Request) -> Mapping[str, Any]:
    """The JSON object in a request.

    Raises:
        ConfigError: something else, or too long.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise ConfigError("a request is JSON. fix: Content-Type: application/json.")
    data = b""
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BODY:
            raise ConfigError(f"a request has at most {MAX_BODY} bytes. fix: a shorter reason.")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the request is not JSON ({error}). fix: an object with an action.") from None
    if not isinstance(content, dict):
        raise ConfigError('a request is an object. fix: {"action": "stop"}, say.')
    return content


def ask(follower: RunFollower, content: Mapping[str, Any], imports: Sequence[str] = ()) -> str:
    """Leave a request in the directory of a run that trains; returns its name.

    Args:
        imports: code that registers the run's algorithm.
    Raises:
        ConfigError: a member that has ended. Further errors: see `runs.steering.ask`.
    """
    request = steering.Request.from_dict(content)
    import_code(imports)
    with follower.lock:
        follower.poll()
        last = follower.last
        born = {birth.id for birth in follower.births if not last or birth.generation > last[0].generation}
    members = born | {member.id for member in last}
    if follower.status == RUNNING and request.member is not None and request.member not in members:
        raise ConfigError(f"member {request.member} is not in the population. fix: an id of the table of members.")
    return str(steering.ask(follower.path, request).stem)


def waiting_requests(follower: RunFollower) -> list[dict[str, Any]]:
    """Requests that the run has not taken over yet."""
    waiting = steering.pending(follower.path)
    return [{"key": name, **plain(asdict(request))} for name, request in waiting.items()]


class _Server(Server):
    """Ends at once on a signal: pages hold their streams open, and nothing is lost."""

    def __init__(self, config: Config, app: App) -> None:
        super().__init__(config)
        self._app = app

    def end(self) -> None:
        """End streams and the server."""
        self._app.closing.set()
        self.should_exit = self.force_exit = True

    def handle_exit(self, sig: int, frame: object) -> None:
        self.end()


def bind(port: int) -> socket.socket:
    """A socket of this machine alone; port 0: a free one.

    Raises:
        ConfigError: the port is taken, or may not be used.
    """
    if not 0 <= port < 65536:
        raise ConfigError(f"--port must be 0 to 65535; got {port}. fix: --port 0 takes a free one.")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if sys.platform != "win32":  # there it would share the port with another program
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(64)
    except OSError as error:
        listener.close()
        raise ConfigError(f"port {port} cannot be used ({error.strerror}). fix: --port 0 takes a free one.") from error
    return listener


def serve(
    path: str | os.PathLike[str],
    *,
    port: int = 0,
    browser: bool = True,
    imports: Sequence[str] = (),
    pid: int | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the page of a run or a folder until Ctrl-C.

    Args:
        port: 0 takes a free one. browser: open the page. imports: code that films and requests need.
        pid: the parent, a process that trains: the page opens its run, and the server ends with it.
        say: called with the line that shows the address.
    Raises:
        RunError: no such folder. ConfigError: the port is taken.
    """
    root = root_of(path, may_be_missing=pid is not None)
    app = App(Watch(root, secrets.token_urlsafe(24), pid, tuple(imports)))
    with contextlib.closing(app.studio), contextlib.closing(bind(port)) as listener:
        url = f"http://{HOST}:{listener.getsockname()[1]}/{app.watch.token}/"
        config = Config(app.asgi, log_level="critical", access_log=False, lifespan="off", server_header=False)
        server = _Server(config, app)
        if pid is not None:
            threading.Thread(target=_end_with, args=(pid, server), daemon=True).start()
        say(f"watch  {url}")
        with _opened(url) if browser else contextlib.nullcontext():
            server.run(sockets=[listener])


def _end_with(pid: int, server: _Server) -> None:
    """End the server when its parent has ended: also where that was killed."""
    while os.getppid() == pid and not server.should_exit:
        time.sleep(0.5)
    server.end()


@contextlib.contextmanager
def _opened(url: str) -> Any:
    """Open the page in a browser, if there is a display.

    The browser gets a file that only this user can read and that leads to the page: arguments of processes, the token
    in them, are visible to every user of a machine.
    """
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="agilerl-watch-") as folder:
        page = Path(folder) / "open.html"
        page.write_text(f'<meta http-equiv="refresh" content="0;url={url}">', encoding="utf-8")
        threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
        yield
