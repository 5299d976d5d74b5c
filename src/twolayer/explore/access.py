"""Who may ask: the hosts and origins that are ours, the token, and the headers that keep a page from doing harm.

A page of another site that a visitor has open can send requests to any address of his machine, also under a name of its
own that it lets point there (DNS rebinding). So the `Host` of a request must be one under which this server is reached,
its `Origin`, if it has one, must be the same, and everything that computes needs the token of the link, in a header
that other sites cannot send without being asked first.

Behind a proxy that speaks https the page has another origin than the server: the environment states it.
"""

import hmac
import ipaddress
import os
import re
import secrets
import socket
from dataclasses import dataclass

from twolayer.core.errors import InvalidInput, shown

TOKEN_HEADER = "x-twolayer-token"
TOKEN_VARIABLE = "TWOLAYER_EXPLORE_TOKEN"
ORIGIN_VARIABLE = "TWOLAYER_EXPLORE_ORIGIN"
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self' 'wasm-unsafe-eval'",  # WebAssembly, and no other code that is not a file of ours
        "style-src 'self'",
        "font-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)


@dataclass(frozen=True)
class Access:
    """Which requests are allowed: the host at which the server listens, and the token of its link.

    ``origin`` is that of a proxy before the server, such as "https://name"; ``state`` is what the link of a page says
    after ``#``.
    """

    host: str
    port: int
    token: str
    origin: str = ""
    state: str = ""

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host) and not self.origin

    @property
    def link(self) -> str:
        """The address to open."""
        return f"{self.origin or self._own_origin}/?token={self.token}{'#' * bool(self.state)}{self.state}"

    @property
    def _own_origin(self) -> str:
        host = "127.0.0.1" if self.host in ("0.0.0.0", "") else "[::1]" if self.host == "::" else self.host
        host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        return f"http://{host}:{self.port}"

    def visitor(self, peer: str, forwarded: str) -> str:
        """The address of a visitor: the one that the proxy before the server states, if it runs on this machine."""
        if not (self.origin and is_loopback(peer)):
            return peer
        stated = forwarded.rpartition(",")[2].strip()  # what stands before it are the visitor's own words
        return stated if _is_address(stated) else peer

    def refusal(self, headers: dict[bytes, bytes], path: str, query_token: str) -> str:
        """Why a request is not allowed, in one sentence; empty if it is."""
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._is_ours(host):
            return "The request must name this server as its host, but names another one."
        origin = headers.get(b"origin")
        allowed = {f"http://{host}".lower(), self.origin or f"http://{host}".lower()}
        if origin is not None and origin.decode("latin-1").lower() not in allowed:
            return "The request must come from the explorer's own page, but comes from another site."
        if headers.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none"):
            is_a_visit = path == "/" and headers.get(b"sec-fetch-mode") == b"navigate"
            if not is_a_visit:
                return "The request must come from the explorer's own page, but comes from another site."
        if path.startswith("/api/"):
            given = headers.get(TOKEN_HEADER.encode(), b"").decode("latin-1")
        elif path == "/" and not self.is_local:
            given = query_token
        else:
            return ""
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return "The request needs the token of the link that the server printed when it was started."
        return ""

    def _is_ours(self, host: str) -> bool:
        if self.origin and host.lower() == self.origin.partition("://")[2]:
            return True
        name, _, port = host.rpartition(":")
        if port != str(self.port) and not (self.port == 80 and ":" not in host):
            return False
        name = (name or host).strip("[]").lower()
        if is_loopback(self.host):
            return name == "localhost" or is_loopback(name)
        if name == self.host.lower():
            return True
        # Behind an address of all interfaces the server has many names; one that somebody else may point here is none.
        is_everywhere = self.host in ("0.0.0.0", "::", "")
        return is_everywhere and (_is_address(name) or name in ("localhost", socket.gethostname().lower()))


def new_token() -> str:
    """A random token, or the one that the environment states, with which links survive a new start of the server."""
    stated = os.environ.get(TOKEN_VARIABLE)
    if stated is None:
        return secrets.token_urlsafe(24)
    if not re.fullmatch(r"[A-Za-z0-9_-]{16,128}", stated):
        raise InvalidInput(
            f"The variable {TOKEN_VARIABLE} must be 16 to 128 letters, digits, hyphens and underscores, but is not."
        )
    return stated


def stated_origin() -> str:
    """The origin of the proxy before the server, which the environment states; empty without one."""
    stated = os.environ.get(ORIGIN_VARIABLE, "").strip().lower().removesuffix("/")
    if stated and not re.fullmatch(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?", stated):
        raise InvalidInput(
            f"The variable {ORIGIN_VARIABLE} must be an origin without a path, such as https://explorer.example, but "
            f"is {shown(stated)}."
        )
    return stated.removesuffix(":443" if stated.startswith("https") else ":80")  # as browsers write it


def is_loopback(host: str) -> bool:
    """Whether a host is this machine as seen from itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
