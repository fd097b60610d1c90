"""The proxy between Penstock and the API server, as kubectl chooses it. Pure.

The `proxy-url` of a kubeconfig applies always. Without one, HTTPS_PROXY (HTTP_PROXY for a server address with
http) applies, unless NO_PROXY names the server, or the server is on this host. Names in lower case are read
as well; the upper case takes precedence.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from penstock.errors import BadRequest

__all__ = ["check_proxy", "proxy_of_environment"]


def check_proxy(text: str, where: str) -> str:
    """The URL of a proxy; "" if there is none. The scheme may be missing, as in HTTPS_PROXY=proxy:3128."""
    url = text.strip()
    if not url:
        return ""
    parts = _split(url if "://" in url else f"http://{url}")
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        # Without user and password.
        found = re.sub(r"//[^/]*@", "//", url)
        raise BadRequest(
            "unsupported proxy", where=where, found=found, expected="http://host:port or https://host:port"
        )
    return parts.geturl()


def proxy_of_environment(server: str, environ: Mapping[str, str]) -> str:
    """The proxy for a server according to environment variables; "": a direct connection."""
    parts = urlsplit(server)
    name = "HTTPS_PROXY" if parts.scheme == "https" else "HTTP_PROXY"
    found = next((one for one in (name, name.lower()) if environ.get(one)), "")
    if not found:
        return ""
    excluded = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    if _is_local(host) or any(_matches(one, host, port) for one in re.split(r"[,\s]+", excluded) if one):
        return ""
    return check_proxy(environ[found], found)


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        return parts if parts.port is None or parts.port > 0 else None
    except ValueError:
        return None


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None


def _is_local(host: str) -> bool:
    address = _address(host)
    return address.is_loopback if address is not None else host == "localhost"


def _matches(entry: str, host: str, port: int) -> bool:
    """Whether an entry of NO_PROXY names a server: *, a network, an address or a domain, perhaps with a port.

    `example.com` also names its subdomains, `.example.com` and `*.example.com` only these.
    """
    if entry == "*":
        return True
    address = _address(host)
    if "/" in entry:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    if _address(entry) is not None:
        return address == _address(entry)
    name, _, entry_port = entry.lower().rpartition(":") if ":" in entry else (entry.lower(), "", "")
    if entry_port and entry_port != str(port):
        return False
    if _address(name) is not None:
        return address == _address(name)
    if name.startswith(("*.", ".")):
        return host.endswith(name.removeprefix("*"))
    return bool(name) and (host == name or host.endswith(f".{name}"))
