"""Options of the server, and its limits."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from localspec.errors import UsageError

LOCAL = "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options of `localspec serve` (see its `--help`), and limits in bytes and seconds. Raises
    UsageError if one is invalid. `write_timeout`: how long a client may leave a full buffer unread;
    `drain`: time for running answers when the server stops."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = None
    insecure: bool = False
    cors: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    max_queue: int = 64
    max_tokens: int | None = None
    context_shift: bool = False
    slot_save_path: Path | None = None
    slots: bool = True
    ui: bool = True
    api_prefix: str = ""
    thinking: bool = True
    log_prompts: bool = False
    body: int = 4 << 20
    headers: int = 32 << 10
    connections: int = 512
    header_timeout: float = 10.0
    body_timeout: float = 30.0
    write_timeout: float = 30.0
    drain: float = 30.0

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(host.strip().strip("[]") for host in self.host.split(","))

    def __post_init__(self) -> None:
        if not all(host and host.isprintable() for host in self.hosts):
            raise UsageError("host is empty or not a name. Give an address, such as 127.0.0.1.")
        for option, names in (("host", self.hosts), ("allowed-host", self.allowed_hosts)):
            for name in names:
                if set(name) & set("/]*") or name.count(":") == 1:
                    why = "Give a name or an address alone, without a port or a path."
                    raise UsageError(f"{option} is '{name}'. {why}")
        if not 0 <= self.port <= 65535:
            raise UsageError(f"port is {self.port}. Give 1 to 65535, or 0 for a free one.")
        if self.max_queue < 0:
            raise UsageError(f"max-queue is {self.max_queue}. Give 0 or more.")
        if self.slot_save_path is not None and not self.slot_save_path.is_dir():
            raise UsageError(
                f"slot-save-path is not a folder: {self.slot_save_path}. Create it first."
            )
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"max-tokens is {self.max_tokens}. Give 1 or more.")
        if self.api_key is not None and not (
            self.api_key.isascii() and self.api_key.isprintable() and self.api_key.strip()
        ):
            raise UsageError("api-key is empty or has characters that a header cannot carry.")
        for origin in self.cors:
            parts = urlsplit(origin)
            whole = bool(parts.scheme and parts.netloc) and f"{parts.scheme}://{parts.netloc}"
            if origin not in ("*", LOCAL, whole):
                raise UsageError(
                    f"cors is '{origin}'. Give an origin such as http://localhost:3000, localhost "
                    "for all of this machine, or *."
                )
        open_to_others = [host for host in self.hosts if not is_loopback(host)]
        if self.api_key is None and not self.insecure and open_to_others:
            raise UsageError(
                f"Anyone who can reach {open_to_others[0]} could use this model. Set --api-key or "
                "LOCALSPEC_API_KEY, or --insecure."
            )


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    address = address_of(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)
