"""A stand-in for the Hugging Face Hub's HTTP interface, as far as pushing and loading a run use it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

WRITER, READER = "hf_writer0123456789abcdef", "hf_reader0123456789abcdef"  # tokens of the user "me"


@dataclass
class Repo:
    """A repository: its commits in order, each the whole of its files by name."""

    private: bool = False
    commits: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def commit(self, files: dict[str, bytes], message: str) -> str:
        sha = hashlib.sha1(f"{len(self.commits)} {sorted(files)} {message}".encode()).hexdigest()
        self.commits.append((sha, files))
        self.messages.append(message)
        return sha

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """(commit, files) of "main" or of a commit's id."""
        if revision == "main":
            return self.commits[-1]
        return next((commit for commit in self.commits if commit[0] == revision), None)


class HubStandIn(ThreadingHTTPServer):
    """The server, at `url`.

    Attributes:
        repos: by "user/name". requests: "METHOD path" of each, in order. lfs: suffixes of files in large storage.
        stored: objects of the large storage. answers: path -> status of every request to it, in place of the usual.
        sent: file name -> bytes that are sent in place of the content, whose checksum stays.
        sizes: file name -> size that is claimed.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.repos: dict[str, Repo] = {}
        self.requests: list[str] = []
        self.lfs: tuple[str, ...] = ()
        self.stored: dict[str, bytes] = {}
        self.answers: dict[str, int] = {}
        self.sent: dict[str, bytes] = {}
        self.sizes: dict[str, int] = {}
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self.thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: HubStandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    @property
    def token(self) -> str:
        return str(self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline().strip() or b"0", 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status: int, content: Any = None, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content if content is not None else {}).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status: int, code: str = "", message: str = "") -> None:
        more = {"X_Error_Code": code} if code else {}
        more |= {"X_Error_Message": message} if message else {}
        self.answer(status, {"error": message}, **more)

    def is_refused(self, repo: str | None, writes: bool) -> bool:
        """Answer a request that may not go on."""
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        if path in self.server.answers:
            self.refuse(self.server.answers[path], message="as the test asks")
            return True
        if self.token and self.token not in (WRITER, READER):
            self.refuse(401, message="Invalid credentials in Authorization header")
            return True
        if writes and not self.token:
            self.refuse(401, message="Invalid username or password.")
            return True
        if writes and (self.token != WRITER or (repo is not None and not repo.startswith("me/"))):
            self.refuse(403, message="You don't have the rights to create a model under this namespace")
            return True
        known = self.server.repos.get(repo) if repo is not None else None
        if repo is not None and (known is None or (known.private and not self.token)):
            self.refuse(404 if self.token else 401, "RepoNotFound", "Repository not found")
            return True
        return False

    def do_GET(self) -> None:
        self.body()
        path = unquote(urlsplit(self.path).path)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            repo, revision = match[1], match[2] or "main"
            if not self.is_refused(repo, writes=False):
                self.info(repo, revision)
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            repo, revision, name = match.groups()
            if not self.is_refused(repo, writes=False):
                self.file(repo, revision, name)
        else:
            self.refuse(404)

    def info(self, repo: str, revision: str) -> None:
        commit = self.server.repos[repo].at(revision)
        if commit is None:
            self.refuse(404, "RevisionNotFound", "Invalid rev id")
            return
        sha, files = commit
        has_metadata = "blobs" in parse_qs(urlsplit(self.path).query)
        siblings = [
            {"rfilename": name, **(self.blob(name, data) if has_metadata else {})} for name, data in files.items()
        ]
        self.answer(200, {"id": repo, "sha": sha, "private": self.server.repos[repo].private, "siblings": siblings})

    def blob(self, name: str, data: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"size": self.server.sizes.get(name, len(data))}
        entry["blobId"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        if name.endswith(self.server.lfs):
            sha256 = hashlib.sha256(data).hexdigest()
            entry |= {"blobId": "0" * 40, "lfs": {"sha256": sha256, "size": len(data), "pointerSize": 134}}
        return entry

    def file(self, repo: str, revision: str, name: str) -> None:
        commit = self.server.repos[repo].at(revision)
        if commit is None or name not in commit[1]:
            self.refuse(404, "EntryNotFound", "Entry not found")
            return
        self.answer(200, self.server.sent.get(name, commit[1][name]), X_Repo_Commit=commit[0])

    def do_POST(self) -> None:
        data, path = self.body(), unquote(urlsplit(self.path).path)
        if path == "/api/repos/create":
            asked = json.loads(data)
            repo = f"{asked.get('organization')}/{asked['name']}"
            if self.is_refused(None, writes=True):
                return
            if not repo.startswith("me/"):
                self.refuse(403, message="You don't have the rights to create a model under this namespace")
            elif repo in self.server.repos:
                self.answer(409, {"error": "You already created this model repo", "url": f"{self.server.url}/{repo}"})
            else:
                made = self.server.repos[repo] = Repo(private=asked.get("visibility") == "private")
                made.commit({".gitattributes": b"*.safetensors filter=lfs\n"}, "initial commit")
                self.answer(200, {"url": f"{self.server.url}/{repo}", "name": repo, "id": repo})
        elif path == "/api/validate-yaml":
            self.server.requests.append(f"POST {path}")
            self.answer(200, {"errors": [], "warnings": []})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            if not self.is_refused(match[1], writes=True):
                names = [each["path"] for each in json.loads(data)["files"]]
                modes = {name: "lfs" if name.endswith(self.server.lfs) else "regular" for name in names}
                files = [{"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes.items()]
                self.answer(200, {"files": files})
        elif match := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            if not self.is_refused(match[1], writes=True):
                objects = [
                    {**each, "actions": {"upload": {"href": f"{self.server.url}/storage/{each['oid']}"}}}
                    for each in json.loads(data)["objects"]
                ]
                self.answer(200, {"transfer": "basic", "objects": objects})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            if not self.is_refused(match[1], writes=True):
                self.commit(match[1], [json.loads(line) for line in data.splitlines()])
        else:
            self.refuse(404)

    def commit(self, repo: str, lines: list[dict[str, Any]]) -> None:
        files, message = dict(self.server.repos[repo].commits[-1][1]), ""
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                message = value["summary"]
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.stored[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        sha = self.server.repos[repo].commit(files, message)
        self.answer(200, {"success": True, "commitOid": sha, "commitUrl": f"{self.server.url}/{repo}/commit/{sha}"})

    def do_PUT(self) -> None:
        data, path = self.body(), urlsplit(self.path).path
        self.server.requests.append(f"PUT {path}")
        oid = path.rpartition("/")[2]
        if hashlib.sha256(data).hexdigest() != oid:
            self.refuse(422, message="another checksum")
            return
        self.server.stored[oid] = data
        self.answer(200)
