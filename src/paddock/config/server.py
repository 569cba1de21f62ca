"""The section `server`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from paddock.config.fields import Expanded, LogLevel, Section, Size, checked_name, hash_of_key, origin, upper


class KeySettings(Section):
    """One who may ask: by which key, for what, and how much."""

    key: str | None = Field(None, min_length=1, repr=False)
    hash: Annotated[str, AfterValidator(hash_of_key)] | None = None
    """Instead of the key itself; `paddock keys new` makes both."""
    models: list[str] | None = None
    """Names, aliases or patterns (`llama-*`) of those that may be asked; unless given, all of them."""
    admin: bool = False
    tenant: Annotated[str, AfterValidator(checked_name)] | None = None
    """Prefixes are shared within a tenant only; those without one have the same."""
    share_prefixes: bool = True
    """Otherwise with nobody, not even within the tenant."""
    priority: Literal["interactive", "batch"] = "interactive"
    weight: float = Field(1.0, gt=0, le=1000)
    """How large the share is beside others'."""
    requests_per_minute: int | None = Field(None, ge=1)
    tokens_per_minute: int | None = Field(None, ge=1)
    """Of prompts and answers together."""
    concurrent_requests: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> KeySettings:
        if (self.key is None) == (self.hash is None):
            raise ValueError("either key or hash is needed")
        if self.admin and self.models is not None:
            raise ValueError("admin and models exclude each other: an admin key may ask every model")
        return self


class ServerSettings(Section):
    """How the server is reached and what it says."""

    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    cors_origins: list[Annotated[str, AfterValidator(origin)]] = ["http://localhost:5000"]
    """Web pages that may ask, as `http://host:port`; `*`: all of them."""
    allowed_hosts: list[str] = []
    """Names by which it may be asked, besides addresses and names without a dot; `*`: any. Unless given, it may be
    asked by any name where others than this machine can reach it."""
    log_level: Annotated[LogLevel, BeforeValidator(upper)] = "INFO"
    log_format: Literal["text", "json"] = "text"
    log_disable: bool = False
    log_prompts: bool = False
    """Whether the log has the bodies of requests, prompts and all."""
    api_keys: list[str] = []
    api_key_file: Expanded | None = None
    """These and those of `api_keys` are admin keys without limits."""
    keys: dict[Annotated[str, AfterValidator(checked_name)], KeySettings] = {}
    """By name, those who may ask."""
    metrics_key: bool = False
    """Whether `/metrics` needs a key, where there are any."""
    ssl_key_file: Expanded | None = None
    ssl_cert_file: Expanded | None = None
    max_body_bytes: int = Field(32 * 1024 * 1024, gt=0)
    max_text_chars: int = Field(2**20, gt=0)
    """Of a question about text: `/tokenize`, `/apply-template`, and counting tokens."""
    max_header_bytes: int = Field(64 * 1024, ge=1024)
    max_header_count: int = Field(100, ge=16)
    max_url_bytes: int = Field(8 * 1024, ge=256)
    max_connections: int = Field(4096, gt=0)
    """Open at once. When there are as many, those without a request under way make room, the longest quiet first."""
    header_timeout: float = Field(20, gt=0)
    """Seconds for the head of a request, and for its first byte on a new connection."""
    body_timeout: float = Field(20, gt=0)
    """Seconds in which a body must end, or bring as many bytes as `body_rate` says."""
    body_rate: int = Field(8192, gt=0)
    """Bytes a second, the least at which a body must arrive."""
    max_buffered_bytes: Size | None = None
    """For the bodies of all requests under way together. Unless given: 256 MiB, or four times `max_body_bytes`."""
    write_timeout: float = Field(60, gt=0)
    """Seconds for which a client may leave unread what would be sent to it."""
    keep_alive_timeout: int = Field(75, gt=0)
    """Seconds between two requests on one connection."""
    metrics: bool = True
    """Whether `/metrics` says what is counted."""
    slots: bool = True
    """Whether `/slots` shows what is running."""
    slot_save_path: Expanded | None = None
    """The folder of the files that slots are saved to and restored from."""
    props: bool = False
    """Whether `POST /props` is allowed."""
    webui: bool = True
    """Whether there is a web page, and what it is fed by."""
    shutdown_grace: float = Field(10.0, ge=0)

    @property
    def body_budget(self) -> int:
        """Bytes that the bodies of all requests under way may take together."""
        return self.max_buffered_bytes or max(256 * 1024 * 1024, 4 * self.max_body_bytes)

    @model_validator(mode="after")
    def _one_body_fits(self) -> ServerSettings:
        if self.max_buffered_bytes is not None and self.max_buffered_bytes < 2 * self.max_body_bytes:
            raise ValueError(
                f"max_buffered_bytes is {self.max_buffered_bytes}, but a request may use half of it and max_body_bytes "
                f"is {self.max_body_bytes}: set it to {2 * self.max_body_bytes} at least"
            )
        return self
