"""The section `server`."""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, model_validator

from paddock.config.fields import (
    ANY_LOCAL_ORIGIN,
    Expanded,
    Flag,
    LogLevel,
    Section,
    Size,
    checked_name,
    file_mode,
    hash_of_key,
    http_token,
    level_of_verbosity,
    list_of_hosts,
    media_host,
    none_if_empty,
    on_off_or_auto,
    origin,
    path_prefix,
    upper,
)
from paddock.config.mcp import McpServer, ServerName, named_url
from paddock.hosts import is_loopback


class PreviousKey(Section):
    """An older key that still works."""

    key: str | None = Field(None, min_length=1, repr=False)
    """The key in clear text. Set either `key` or `hash`."""
    hash: Annotated[str, AfterValidator(hash_of_key)] | None = None
    """The SHA-256 hash of the key, as `paddock keys new` prints it, so that the file does not hold the key itself."""
    expires_at: AwareDatetime | None = None
    """When the key stops working, with a time zone, such as 2027-01-31T12:00:00Z. Without it: never."""

    @model_validator(mode="after")
    def _one_of_both(self) -> PreviousKey:
        if (self.key is None) == (self.hash is None):
            raise ValueError("set either key or hash")
        return self


class KeySettings(PreviousKey):
    """One API key: who holds it, which models it may use, and its limits."""

    previous: list[PreviousKey] = []
    """Older keys of the same name. They work until they expire or are removed, so that a key can be replaced without
    locking its owner out."""
    models: list[str] | None = None
    """Names, aliases or patterns (`llama-*`) of the models that this key may use. Without it: all models."""
    mcp_servers: list[str] = []
    """Names or patterns (`*`) of the MCP servers (`server.mcp_servers`) whose tools this key may use. Without it: none.
    An admin key may use all."""
    admin: bool = False
    """The key may also load and unload models, reload the settings, and read the usage of other keys."""
    metrics: bool = False
    """The key may read `/metrics` where `server.metrics_key` is set. An admin key may, too."""
    tenant: Annotated[str, AfterValidator(checked_name)] | None = None
    """Cached prefixes are shared between the keys of one tenant only. Keys without a tenant share one."""
    share_prefixes: bool = True
    """If false, this key shares cached prefixes with no other key, not even of its own tenant."""
    priority: Literal["interactive", "batch"] = "interactive"
    """Waiting requests of `interactive` keys start before those of `batch` keys, which still make some progress."""
    weight: float = Field(1.0, gt=0, le=1000)
    """The key's share of the machine relative to other keys while several of them wait."""
    requests_per_minute: int | None = Field(None, ge=1)
    """The most requests in one minute; more get a 429. Without it: no limit."""
    tokens_per_minute: int | None = Field(None, ge=1)
    """The most tokens in one minute, prompts and answers together; more get a 429. Without it: no limit."""
    concurrent_requests: int | None = Field(None, ge=1)
    """The most requests of this key at the same time; more get a 429. Without it: no limit."""

    @model_validator(mode="after")
    def _admin_may_use_all(self) -> KeySettings:
        if self.admin and self.models is not None:
            raise ValueError("admin and models are mutually exclusive: an admin key may use every model")
        if self.admin and self.mcp_servers:
            raise ValueError("admin and mcp_servers are mutually exclusive: an admin key may use every MCP server")
        return self


class ServerSettings(Section):
    """The HTTP server: address, keys, limits and log."""

    host: Annotated[str, AfterValidator(list_of_hosts), Flag("--host", metavar="ADDRESS,...", joins=True)] = "127.0.0.1"
    """The addresses to listen on, separated by commas. `0.0.0.0` is every IPv4 address of the machine. A path, or a
    name that ends with `.sock`, is a unix socket. With several addresses `::` is IPv6 only."""
    port: Annotated[int, Flag("--port")] = Field(8080, ge=0, le=65535)
    """The port to listen on. 0 is any free port."""
    ollama_port: Annotated[int | None, BeforeValidator(none_if_empty), Flag("--ollama-port")] = Field(
        None, ge=1, le=65535
    )
    """A second port on the same addresses, for programs that look for Ollama there: 11434. All routes answer on both
    ports; on this one `/` says that Ollama is running."""
    socket_mode: Annotated[str, AfterValidator(file_mode)] = "660"
    """The mode of the file of a unix socket, in octal digits. Who may write to the file may connect."""
    reuse_port: Annotated[bool, Flag("--reuse-port")] = False
    """Let several servers listen on the same port. The kernel divides the connections among them."""
    cors_origins: Annotated[
        list[Annotated[str, AfterValidator(origin)]], Flag("--cors-origins", metavar="ORIGIN,...")
    ] = ["http://localhost:5000", ANY_LOCAL_ORIGIN]
    """Origins (`http://host:port`) of web pages that may call the API from a browser. `*` allows every origin,
    `localhost` every port of localhost, 127.0.0.1 and [::1]."""
    cors_methods: Annotated[
        list[Annotated[str, AfterValidator(http_token)]], Flag("--cors-methods", metavar="METHOD,...")
    ] = ["GET", "POST", "DELETE", "OPTIONS"]
    """Methods that pages of other origins may use. `*` allows every method."""
    cors_headers: Annotated[
        list[Annotated[str, AfterValidator(http_token)]], Flag("--cors-headers", metavar="HEADER,...")
    ] = ["*"]
    """Request headers that pages of other origins may send. `*` allows every header."""
    cors_credentials: Annotated[bool, Flag("--cors-credentials/--no-cors-credentials")] = False
    """Let pages of other origins send cookies and other credentials of the browser, for a proxy that asks for them."""
    api_prefix: Annotated[str, AfterValidator(path_prefix), Flag("--api-prefix", metavar="PREFIX")] = ""
    """A path below which all routes are, such as `/llm`. Requests outside of it get a 404."""
    allowed_hosts: Annotated[list[str], Flag("--allowed-hosts", metavar="NAME,...")] = []
    """Host names that requests may use, besides IP addresses, the machine's own names and names without a dot. `*`
    allows every name. If empty, every name is allowed on a server with API keys that other machines can reach."""
    log_level: Annotated[
        LogLevel,
        BeforeValidator(upper),
        Flag("-v", "--verbose", "--log-verbose", value="DEBUG"),
        Flag("-lv", "--verbosity", "--log-verbosity", metavar="N", convert=level_of_verbosity),
    ] = "INFO"
    """The lowest level that is logged."""
    log_format: Annotated[
        Literal["text", "json"],
        Flag("--log-format"),
        Flag("--log-jsonl", value="json"),
        Flag("--no-log-jsonl", value="text"),
    ] = "text"
    """`text` goes to stderr, `json` to stdout, one object per line."""
    log_file: Annotated[Expanded | None, Flag("--log-file", metavar="FILE")] = None
    """Append the log to this file too, without colours. SIGHUP opens it again, for logrotate."""
    log_timestamps: Annotated[bool, Flag("--log-timestamps/--no-log-timestamps")] = True
    """Begin each line of the log with its time."""
    log_colors: Annotated[
        Literal["on", "off", "auto"], Flag("--log-colors", metavar="on|off|auto", convert=on_off_or_auto)
    ] = "auto"
    """Colour the log on stderr. `auto`: if it is a terminal."""
    log_disable: Annotated[bool, Flag("--log-disable")] = False
    """Log nothing."""
    log_prompts: Annotated[bool, Flag("--log-prompts")] = False
    """Log request bodies, including prompts."""
    api_keys: Annotated[list[str], Flag("--api-key", metavar="KEY,...")] = []
    """Admin keys without limits. See `keys` for keys with a name, permissions and limits."""
    api_key_file: Annotated[Expanded | None, Flag("--api-key-file")] = None
    """A file of more admin keys, one per line."""
    keys: dict[Annotated[str, AfterValidator(checked_name)], KeySettings] = {}
    """Named API keys, each with its own permissions and limits."""
    audit_log: Expanded | None = None
    """A file that gets a line of JSON for each admin action: key, action, time, address and result. It
    is created with mode 600 and only appended to."""
    receipt_key: Annotated[Expanded | None, BeforeValidator(none_if_empty), Flag("--receipt-key", metavar="FILE")] = (
        None
    )
    """The Ed25519 private key (PEM) that signs receipts; `paddock keys receipt` makes one. Without it receipts are not
    signed."""
    metrics_key: bool = False
    """`/metrics` requires an admin key, or a key with `metrics`, if there are any keys. It shows all keys' usage."""
    ssl_key_file: Annotated[Expanded | None, BeforeValidator(none_if_empty), Flag("--ssl-key-file")] = None
    """The TLS private key (PEM). Set it together with `ssl_cert_file` to serve HTTPS."""
    ssl_cert_file: Annotated[Expanded | None, BeforeValidator(none_if_empty), Flag("--ssl-cert-file")] = None
    """The TLS certificate chain (PEM)."""
    max_body_bytes: int = Field(32 * 1024 * 1024, gt=0)
    """The largest request body; larger ones get a 413."""
    max_text_chars: int = Field(2**20, gt=0)
    """The most characters in one request to `/tokenize`, `/apply-template` or a route that counts tokens."""
    max_header_bytes: int = Field(64 * 1024, ge=1024)
    """The most bytes of headers in one request."""
    max_header_count: int = Field(100, ge=16)
    """The most headers in one request."""
    max_url_bytes: int = Field(8 * 1024, ge=256)
    """The longest URL."""
    max_connections: int = Field(4096, gt=0)
    """The most open connections. At the limit, the connection that has been idle longest is closed for a new one.
    One in sixteen (64 at most) is reserved for health checks and admin routes."""
    max_connections_per_address: int | None = Field(None, gt=0)
    """The most connections from one address (IPv6: one /64 network), not counting those whose request has shown a key.
    If null, half of `max_connections`."""
    max_connections_per_key: int | None = Field(None, gt=0)
    """The most connections with a running request for one key or, without keys, one address. If null, half of
    `max_connections`."""
    max_watchers_per_key: int = Field(16, gt=0)
    """The most streams of `/models/sse` and `/live` for one key or, without keys, one address."""
    handshake_timeout: float = Field(10, gt=0)
    """Seconds for the TLS handshake of a new connection."""
    header_timeout: float = Field(20, gt=0)
    """Seconds to receive the headers of a request, and the first byte on a new connection."""
    body_timeout: float = Field(20, gt=0)
    """Seconds in which a body must end, or bring as many bytes as `body_rate` says. `--timeout` sets it too."""
    body_rate: int = Field(8192, gt=0)
    """The least rate, in bytes per second, at which a request body must arrive."""
    max_buffered_bytes: Size | None = None
    """The most bytes of request bodies held for all requests together. By default 256 MiB, or four times
    `max_body_bytes` if that is more."""
    write_timeout: Annotated[float, Flag("-to", "--timeout", metavar="SECONDS")] = Field(60, gt=0)
    """Seconds that a client may leave sent data unread before its connection is closed."""
    stream_buffers_per_key: int = Field(64, gt=0)
    """The most streams of one key that are kept for `GET /v1/stream`. At the limit the oldest finished one is
    dropped."""
    stream_buffer_bytes: Size = 4 * 1024 * 1024
    """The most bytes that are kept of one such stream: the last ones."""
    stream_buffer_seconds: float = Field(300, ge=0)
    """How long a finished stream is kept, in seconds."""
    keep_alive_timeout: int = Field(75, gt=0)
    """Seconds that an idle connection stays open between two requests."""
    lenient: Annotated[bool, Flag("--lenient")] = False
    """Accept request fields that llama-server accepts and this server refuses: numbers out of range, values of another
    type, fields without effect. The header `x-paddock-ignored-fields` names them."""
    metrics: Annotated[bool, Flag("--metrics/--no-metrics")] = True
    """Serve Prometheus metrics at `/metrics`."""
    slots: Annotated[bool, Flag("--slots/--no-slots")] = True
    """Serve the state of running requests at `/slots`."""
    slot_save_path: Annotated[Expanded | None, Flag("--slot-save-path", metavar="DIR")] = None
    """The folder in which slots are saved and from which they are restored. Without it, saving is refused."""
    props: Annotated[bool, Flag("--props")] = False
    """Allow `POST /props`."""
    webui: Annotated[bool, Flag("--webui/--no-webui", "--ui/--no-ui")] = True
    """Serve the web page at `/` and the routes that it uses."""
    static_path: Annotated[Expanded | None, Flag("--path", metavar="DIR")] = None
    """Serve the files of this folder instead of the web page. Anyone who can reach the server may read them."""
    media_url_hosts: Annotated[
        list[Annotated[str, AfterValidator(media_host)]], Flag("--media-url-hosts", metavar="HOST,...")
    ] = []
    """Hosts from which images and audio may be downloaded, such as `example.org`, `*.example.org`, `example.org:8080`
    or `*`. Addresses that are not public are refused, unless the host is such an address itself. Without it, http: and
    https: URLs are refused."""
    media_path: Annotated[Expanded | None, BeforeValidator(none_if_empty), Flag("--media-path", metavar="DIR")] = None
    """The folder of the images and audio that requests may name as `file://PATH`. Every client may use every file in
    it. Without it, file: URLs are refused."""
    mcp_servers: Annotated[dict[ServerName, McpServer], Flag("--mcp", metavar="NAME=URL", convert=named_url)] = {}
    """MCP servers, by name: clients list and call their tools through this server. The flag adds servers to those of
    the file."""
    data_dir: Annotated[Expanded | None, Flag("--data-dir", metavar="DIR")] = None
    """The folder for files, batches and stored responses. One server at a time can use it. By default `paddock` in the
    user's data folder (`XDG_DATA_HOME`, else `~/.local/share`), which is created when it is first needed."""
    shutdown_grace: float = Field(120.0, ge=0)
    """Seconds that running requests get to finish after SIGTERM. What stops the server (systemd) must wait longer."""

    @property
    def hosts(self) -> list[str]:
        """The addresses to listen on, and the paths of unix sockets."""
        return self.host.split(",")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        return all(map(is_loopback, self.hosts))

    @property
    def has_keys(self) -> bool:
        return bool(self.api_keys or self.api_key_file or self.keys)

    @property
    def stop_timeout(self) -> int:
        """Seconds within which the server stops by itself."""
        return math.ceil(self.shutdown_grace) + 30

    @property
    def body_budget(self) -> int:
        """The most bytes of request bodies of all running requests together."""
        return self.max_buffered_bytes or max(256 * 1024 * 1024, 4 * self.max_body_bytes)

    @model_validator(mode="after")
    def _keys_name_servers(self) -> ServerSettings:
        for key, settings in self.keys.items():
            for name in settings.mcp_servers:
                if not any(fnmatchcase(server, name) for server in self.mcp_servers):
                    raise ValueError(f"the key {key!r} names the MCP server {name!r}, and mcp_servers has none like it")
        return self

    @model_validator(mode="after")
    def _one_body_fits(self) -> ServerSettings:
        if self.max_buffered_bytes is not None and self.max_buffered_bytes < 2 * self.max_body_bytes:
            raise ValueError(
                f"max_buffered_bytes is {self.max_buffered_bytes}, but a request may use half of it and max_body_bytes "
                f"is {self.max_body_bytes}: set it to {2 * self.max_body_bytes} at least"
            )
        return self
