"""Which web pages may use the server. A browser tells in `Origin` whose page asks, and in `Host` what it asked for.

* A page of somebody else must not use a server on its reader's machine: a foreign origin is 403, for preflights too.
* DNS rebinding makes a foreign name point at 127.0.0.1; then the `Host` is foreign. On a loopback address that is 403.

Programs send no `Origin`, so nothing here concerns them.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from werkzeug.datastructures import Headers

from jaxfold.api.http.errors import ApiError
from jaxfold.api.http.errors import printable

ANY = "*"
LOOPBACK = "loopback"
"""Among allowed origins: every http or https page of this machine."""
METHODS = "GET, HEAD, POST, PUT, DELETE, OPTIONS"
PREFLIGHT_SECONDS = 600
EXPOSED = "Retry-After, WWW-Authenticate"
"""Headers of an answer that a page's script may read besides the ordinary ones."""

_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~ ,-]{1,4096}")
_BRACKETED = re.compile(r"\[([^\]]*)\](:[0-9]*)?")
_PLAIN = re.compile(r"([^:]*)(:[0-9]*)?")


@dataclass(frozen=True, slots=True)
class BrowserRules:
    """What `Host` and `Origin` may be.

    Attributes:
        hosts: names that `Host` may have beside those of this machine; None allows any.
        origins: origins that may use the server ("https://example.org", "null", "loopback", "*"). A page of the
            server's own is always allowed.
    """

    hosts: tuple[str, ...] | None = ()
    origins: tuple[str, ...] = (LOOPBACK,)

    def check(self, host: str | None, origin: str | None) -> None:
        """Refuse a foreign host, then a foreign origin.

        Raises:
            ApiError: 403.
        """
        if host is not None and not self._host_allowed(host):
            shown = printable(host, 80)
            raise ApiError(
                403,
                f"this server does not answer to the name {shown}; --allowed-hosts adds names",
                code="host_not_allowed",
            )
        if origin is not None and not self.allows(origin, host):
            raise ApiError(
                403,
                f"pages of {printable(origin, 80)} may not use this server; --allowed-origins adds origins",
                code="origin_not_allowed",
            )

    def allows(self, origin: str, host: str | None) -> bool:
        """Whether a page of `origin` may use the server under the name `host`."""
        origin = normal_origin(origin)
        if ANY in self.origins or origin in self.origins:
            return True
        scheme, _, place = origin.partition("://")
        if scheme not in _DEFAULT_PORTS:
            return False
        if host is not None and place == host.lower().removesuffix(_DEFAULT_PORTS[scheme]):
            return True
        return LOOPBACK in self.origins and is_loopback(host_name(place))

    def _host_allowed(self, host: str) -> bool:
        if self.hosts is None or ANY in self.hosts:
            return True
        name = host_name(host)
        return is_loopback(name) or name in self.hosts


def cors_headers(origin: str) -> Mapping[str, str]:
    """What an answer to a page of an allowed origin says."""
    return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": EXPOSED}


def preflight_headers(asked: Headers) -> Mapping[str, str]:
    """What the answer to an allowed preflight says, by the preflight's own headers."""
    headers = {"Access-Control-Allow-Methods": METHODS, "Access-Control-Max-Age": str(PREFLIGHT_SECONDS)}
    names = asked.get("Access-Control-Request-Headers", "")
    if _HEADER_NAMES.fullmatch(names):
        headers["Access-Control-Allow-Headers"] = names
    if asked.get("Access-Control-Request-Private-Network", "").lower() == "true":
        headers["Access-Control-Allow-Private-Network"] = "true"
    return headers


def host_name(host: str) -> str:
    """The name in a Host header: no port, no brackets, no dot at the end, in lower case."""
    host = host.strip().lower()
    found = _BRACKETED.fullmatch(host) or _PLAIN.fullmatch(host)
    return (found.group(1) if found else host).removesuffix(".")


def normal_origin(origin: str) -> str:
    """An origin as it is compared: in lower case, without a slash at the end and without its scheme's own port."""
    origin = origin.strip().lower().rstrip("/")
    port = _DEFAULT_PORTS.get(origin.partition("://")[0])
    return origin if port is None else origin.removesuffix(port)


def is_origin(text: str) -> bool:
    """Whether `text` can be among the allowed origins: scheme://host[:port], "null", "loopback" or "*"."""
    if text in (ANY, LOOPBACK, "null"):
        return True
    try:
        parts = urlsplit(text)
        has_place = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    plain = parts.path in ("", "/") and not (parts.query or parts.fragment or "@" in parts.netloc)
    return bool(parts.scheme) and has_place and plain and text.isprintable() and " " not in text


def is_loopback(name: str) -> bool:
    """Whether a name or address (without port and brackets) can only be this machine."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
