"""Who may ask the board: own hosts' names, own pages, and whoever has the token."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "potluck-board"
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on this host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """Lets requests through to the app, or answers them itself: 400, 403, or 401 without the token."""

    def __init__(self, app: App, host: str, token: str) -> None:
        self.app, self.host, self.token = app, host.lower(), token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        port = (scope.get("server") or ("", 0))[1]
        cookie = f"{COOKIE}-{port}"
        extra: list[tuple[bytes, bytes]] = []

        async def answer(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *own, *extra]
            await send(message)

        if refusal := self._refusal(scope, headers):
            await _refuse(answer, *refusal)
            return
        if self.token:
            given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
            if scope["path"] == "/" and self._matches(given):
                extra.append((b"set-cookie", f"{cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict".encode()))
            elif not self._matches(_cookie(headers.get(b"cookie", ""), cookie)):
                await _refuse(answer, 401, "This board needs its token: open the link that `potluck board` printed.")
                return
        await self.app(scope, receive, answer)

    def _refusal(self, scope: Scope, headers: dict[bytes, str]) -> tuple[int, str] | None:
        host = headers.get(b"host", "")
        if not self._is_own(host):
            return 400, "This board does not answer under this host name: open the address that it printed."
        own = headers.get(b"origin", "") == f"{scope.get('scheme', 'http')}://{host}"
        if scope["method"] not in ("GET", "HEAD") and not own:
            return 403, "Only the board's own page may ask for this."
        if headers.get(b"sec-fetch-site", "none") not in ("none", "same-origin") and scope["path"] != "/":
            return 403, "Only the board's own page may ask for this."
        return None

    def _is_own(self, given: str) -> bool:
        """Whether a Host header names this machine. A page of another name that points here (DNS rebinding) does not.

        An address is no name: it cannot be pointed elsewhere.
        """
        try:
            name = (urlsplit(f"//{given}").hostname or "").lower()
            address = ipaddress.ip_address(name)
        except ValueError:
            return bool(given) and name_of(given) in self._names()
        return address.is_loopback or not is_loopback(self.host)

    def _names(self) -> set[str]:
        if is_loopback(self.host):
            return {"localhost"}
        return {"localhost", self.host, socket.gethostname().lower(), socket.getfqdn().lower()}

    def _matches(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self.token.encode())


def name_of(host: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _cookie(header: str, name: str) -> str:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


async def _refuse(send: Send, status: int, text: str) -> None:
    kind = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": kind})
    await send({"type": "http.response.body", "body": f"{text}\n".encode()})
