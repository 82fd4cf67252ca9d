"""A local server that speaks Hugging Face's protocol, and fails on request.

Two ports: the hub, and the "CDN" that it redirects downloads to, as the real one does.
"""

import hashlib
import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_good"
COMMIT = "d" * 40


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one download: it ends after `cut` bytes of the body, maybe by a `reset`,
    which may lose what is on its way. An answer with `status`, `headers` and `body`
    instead of the file. The `whole` file in spite of a range; `corrupt`: a changed byte. `stall`:
    nothing more after the cut, on an open connection; `unframed`: no Content-Length, so that the
    end of the connection is that of the file; `extra` bytes; `shift`: begin that many bytes before
    the range, and say so."""

    cut: int | None = None
    reset: bool = False
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    whole: bool = False
    corrupt: bool = False
    stall: bool = False
    unframed: bool = False
    extra: int = 0
    shift: int = 0


@dataclass
class Repo:
    """A repository with its files and access rules."""

    files: dict[str, bytes]
    commit: str = COMMIT
    private: bool = False
    gated: bool = False
    checksums: dict[str, str] = field(default_factory=dict)
    """Announced instead of the correct checksums."""

    def checksum(self, file: str) -> str:
        return self.checksums.get(file) or sha256(self.files[file])


@dataclass(frozen=True, slots=True)
class Request:
    server: str
    method: str
    path: str
    range: str | None
    authorization: str | None


class Hub:
    """The server's state; tests change it while it runs. `faults`: taken one per download, in
    order; then all goes well; `api_faults`: the same for everything else; `sent`: bytes of bodies
    that the CDN sent."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults: list[Fault] = []
        self.api_faults: list[Fault] = []
        self.requests: list[Request] = []
        self.sent = 0
        self.released = threading.Event()
        self.on_sent: Callable[[int], None] = lambda _: None
        self.url = self.cdn_url = ""

    def downloads(self) -> list[Request]:
        return [request for request in self.requests if request.server == "cdn"]


@contextmanager
def running() -> Iterator[Hub]:
    hub = Hub()
    kinds = [type("Handler", (_Handler,), {"hub": hub, "kind": kind}) for kind in ("hub", "cdn")]
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), kind) for kind in kinds]
    hub.url, hub.cdn_url = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield hub
    finally:
        hub.released.set()
        for server in servers:
            server.shutdown()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    kind: str

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.path == "/api/agent-harnesses":  # the client asks once, about itself
            return self.reply(404)
        told = (self.headers.get(name) for name in ("Range", "Authorization"))
        self.hub.requests.append(Request(self.kind, self.command, self.path, *told))
        answer = self.answer_of_hub if self.kind == "hub" else self.answer_of_cdn
        return answer(unquote(urlsplit(self.path).path))

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer_of_hub(self, path: str) -> None:
        if self.hub.api_faults:
            fault = self.hub.api_faults.pop(0)
            if fault.status:
                return self.reply(fault.status, fault.body.encode(), **fault.headers)
            if fault.cut is not None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return None
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and token != TOKEN:
            return self.reply(401, X_Error_Message="Invalid credentials in Authorization header")
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            name, revision, file = found[1], found[2] or "main", None
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            name, revision, file = found.groups()
        else:
            return self.reply(404)
        if name not in self.hub.repos:
            for other in self.hub.repos:
                if other.casefold() == name.casefold():
                    return self.reply(307, b"", Location=self.path.replace(name, other, 1))
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and not token):
            return self.reply(401 if not token else 404, X_Error_Code="RepoNotFound")
        if revision not in ("main", "refs/pr/1", repo.commit):
            return self.reply(404, X_Error_Code="RevisionNotFound")
        if file is None:
            return self.listing(name, repo)
        if repo.gated:
            code, why = 403 if token else 401, "Access to model is restricted."
            body = json.dumps({"error": why}).encode()
            return self.reply(code, body, X_Error_Code="GatedRepo", X_Error_Message=why)
        return self.redirect(name, repo, file)

    def listing(self, name: str, repo: Repo) -> None:
        siblings = []
        for file, content in repo.files.items():
            lfs = {"size": len(content), "sha256": repo.checksum(file), "pointerSize": 135}
            blob = {"size": len(content), "blobId": hashlib.sha1(content).hexdigest(), "lfs": lfs}
            siblings.append({"rfilename": file, **blob})
        found = {"id": name, "sha": repo.commit, "tags": [], "siblings": siblings}
        self.reply(200, json.dumps(found).encode(), Content_Type="application/json")

    def redirect(self, name: str, repo: Repo, file: str) -> None:
        checksum = repo.checksum(file)
        headers = {
            "Location": f"{self.hub.cdn_url}/{name}/{checksum}/{file.encode().hex()}?sig=x",
            "X-Repo-Commit": repo.commit,
            "X-Linked-Etag": f'"{checksum}"',
            "X-Linked-Size": str(len(repo.files[file])),
        }
        self.reply(302, b"", **headers)

    def answer_of_cdn(self, path: str) -> None:
        hub = self.hub
        fault = hub.faults.pop(0) if hub.faults else Fault()
        if fault.status:
            return self.reply(fault.status, fault.body.encode(), **fault.headers)
        user, name, _, coded = path.strip("/").split("/")
        content = hub.repos[f"{user}/{name}"].files[bytes.fromhex(coded).decode()]
        if fault.corrupt:
            content = bytes([content[0] ^ 1]) + content[1:]
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        start = int(wanted[1]) - fault.shift if wanted and not fault.whole else 0
        body = content[start:] + b"x" * fault.extra
        self.send_response(206 if wanted and not fault.whole else 200)
        if wanted and not fault.whole:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if fault.unframed:
            self.close_connection = True
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.body(body if fault.cut is None else body[: fault.cut])
        if fault.stall:
            hub.released.wait(60)
        if fault.cut is not None or fault.unframed:
            self.close_connection = True
            if fault.reset:
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.connection.close()
            else:
                self.connection.shutdown(socket.SHUT_RDWR)
        return None

    def body(self, body: bytes) -> None:
        for at in range(0, len(body), 65536):
            piece = body[at : at + 65536]
            self.hub.sent += len(piece)  # first, as its reader may be faster than this thread
            self.wfile.write(piece)
            self.hub.on_sent(self.hub.sent)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
