# SPDX-License-Identifier: Apache-2.0
"""Requests to an image registry: log-in by token, redirects to a content network, and the rest of a cut answer.

An account goes to the registry and to the issuer of tokens that it names, over TLS only, and never along a redirect.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..common.module_main import NodeError
from ..content.image_ref import DEFAULT_REGISTRY, ImageRef

TIMEOUT = 60.0  # seconds without a byte
PAUSES = (1.0, 5.0, 15.0)  # between attempts after a cut connection, or a registry that limits requests
CERTIFICATES = "/etc/docker/certs.d"  # by registry, as the engine reads them
MANIFEST_TYPES = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
)
_MANIFEST_LIMIT = 16 * 2**20
_PART = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class RegistryAccess:
    """How to reach a registry. insecure: over http. proxy: variables of an environment. ca_file: CAs to trust."""

    username: str = ""
    password: str = field(default="", repr=False)
    insecure: bool = False
    proxy: Mapping[str, str] = field(default_factory=dict)
    ca_file: str = ""


class RegistryError(NodeError):
    """A registry refuses, or cannot be reached; the message says what to do. status: of its answer, 0 for none."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class CutAnswer(Exception):
    """An answer ended early; another attempt may continue from there."""


class RegistryClient:
    """Requests for one repository."""

    def __init__(self, ref: ImageRef, access: RegistryAccess) -> None:
        self.ref, self._access = ref, access
        host = "registry-1.docker.io" if ref.registry == DEFAULT_REGISTRY else ref.registry
        self._host = host
        self._base = f"{'http' if access.insecure else 'https'}://{host}/v2/{ref.path}"
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler(_proxies(access.proxy, host)),
            urllib.request.HTTPSHandler(context=_trust(access.ca_file, ref.registry)),
            _Redirects(),
        )
        self._authorization = ""

    def manifest(self, digest: str) -> bytes:
        """Return a manifest's text. Raise RegistryError; the caller compares the digest."""
        headers = {"Accept": ", ".join(MANIFEST_TYPES)}
        for pause in (*PAUSES, None):
            try:
                with self._get(f"manifests/{digest}", headers) as response:
                    return bytes(response.read(_MANIFEST_LIMIT))
            except (CutAnswer, OSError, http.client.HTTPException) as error:
                self._wait(pause, error)
        raise AssertionError("the last attempt has no pause")  # pragma: no cover

    def blob(self, digest: str, begin: int) -> Iterator[bytes]:
        """Yield a blob's content from an offset on. Raise CutAnswer where another attempt may continue."""
        headers = {"Range": f"bytes={begin}-"} if begin else {}
        try:
            with self._get(f"blobs/{digest}", headers) as response:
                skip = begin if response.status == http.client.OK else 0  # it does not know ranges
                while True:
                    part = response.read(2**20)
                    if not part:
                        return
                    if skip < len(part):
                        yield part[skip:]
                    skip = max(0, skip - len(part))
        except (OSError, http.client.HTTPException) as error:
            raise CutAnswer(_cause(error)) from error

    def unreachable(self, cause: str) -> RegistryError:
        """Return the error of a registry that does not answer."""
        return RegistryError(
            f"Registry {self.ref.registry} cannot be reached from this node ({cause}). Check name resolution, the "
            "firewall and instinct_proxy; run again to resume."
        )

    def _wait(self, pause: float | None, error: BaseException) -> None:
        if pause is None or isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
            raise self.unreachable(_cause(error)) from error
        time.sleep(pause)

    @contextmanager
    def _get(self, path: str, headers: Mapping[str, str]) -> Iterator[Any]:
        with closing(self._open(f"{self._base}/{path}", headers)) as response:
            yield response

    def _open(self, url: str, headers: Mapping[str, str]) -> Any:
        """Open a URL of the registry; log in when it asks for that, once."""
        for attempt in (1, 2):
            own = {"Authorization": self._authorization} if self._authorization else {}
            try:
                return self._opener.open(
                    urllib.request.Request(url, headers={**headers, **own}), timeout=TIMEOUT
                )
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == http.client.UNAUTHORIZED and attempt == 1:
                        self._authorization = self._log_in(str(error.headers.get("WWW-Authenticate") or ""))
                        continue
                    if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                        raise CutAnswer("nothing is left to send") from error
                    if error.code >= http.client.INTERNAL_SERVER_ERROR or error.code == 429:
                        raise CutAnswer(f"status {error.code}") from error
                    raise self._refused(error.code) from error
        raise AssertionError("the second attempt returns or raises")  # pragma: no cover

    def _log_in(self, challenge: str) -> str:
        """Return the value of the header for a challenge: the account itself, or a token that it gets."""
        kind, _unused, rest = challenge.partition(" ")
        account = self._access.username and f"{self._access.username}:{self._access.password}"
        basic = f"Basic {base64.b64encode(account.encode()).decode()}" if account else ""
        if kind.lower() == "basic":
            if not basic:
                raise self._refused(http.client.UNAUTHORIZED)
            if self._access.insecure:
                raise self._without_tls()
            return basic
        given = dict(_PART.findall(rest))
        realm = given.get("realm", "")
        if kind.lower() != "bearer" or not realm.startswith(("http://", "https://")):
            raise self._refused(http.client.UNAUTHORIZED)
        if basic and not realm.startswith("https://"):
            raise self._without_tls()
        query = {"service": given.get("service", ""), "scope": f"repository:{self.ref.path}:pull"}
        request = urllib.request.Request(f"{realm}?{urllib.parse.urlencode(query)}")
        if basic:
            request.add_unredirected_header("Authorization", basic)
        try:
            with closing(self._opener.open(request, timeout=TIMEOUT)) as response:
                answer = json.loads(response.read(2**20))
            return f"Bearer {answer.get('token') or answer['access_token']}"
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error.code) from error
        except (ValueError, KeyError, AttributeError) as error:
            raise self._refused(http.client.UNAUTHORIZED) from error

    def _without_tls(self) -> RegistryError:
        return RegistryError(
            f"Registry {self.ref.registry} requires a login, but does not offer TLS for it. Serve it over https, and "
            "remove insecure from vllm_image_registries."
        )

    def _refused(self, status: int) -> RegistryError:
        where = f"vllm_image_registries: {{{self.ref.registry}: …}}"
        if status in (401, 403):
            who = f"user {self._access.username}" if self._access.username else "access without a login"
            return RegistryError(
                f"Registry {self.ref.registry} refuses {who} to {self.ref.path}. Check the name, and username and "
                f"password in {where}.",
                status,
            )
        if status == http.client.NOT_FOUND:
            return RegistryError(
                f"Registry {self.ref.registry} has no such image or blob of {self.ref.path}. It may have been deleted: "
                "run playbooks/plan.yml -e refresh=true to resolve the tag again.",
                status,
            )
        return RegistryError(
            f"Registry {self.ref.registry} returned status {status}. Check the registry's log.", status
        )


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects, without the account where they lead to another host, and never from TLS to clear text."""

    def redirect_request(  # the signature is urllib's
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the request that follows."""
        if req.full_url.startswith("https://") and not newurl.startswith("https://"):
            raise urllib.error.URLError("it redirects from https to http")
        found = super().redirect_request(req, fp, code, msg, headers, newurl)
        if found is not None and found.host != req.host:
            found.remove_header("Authorization")
        return found


def _proxies(proxy: Mapping[str, str], host: str) -> dict[str, str]:
    """Return the proxies for this host; an environment of this process must not decide."""
    for name in re.split(r"[,\s]+", proxy.get("no_proxy", "")):
        bare = name.lstrip(".").lower()
        if bare and (
            bare in ("*", host.lower()) or f".{host.partition(':')[0].lower()}".endswith(f".{bare}")
        ):
            return {}
    return {scheme: proxy[f"{scheme}_proxy"] for scheme in ("http", "https") if proxy.get(f"{scheme}_proxy")}


def _trust(ca_file: str, registry: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file or None)
    directory = os.path.join(CERTIFICATES, registry)
    if os.path.isdir(directory):
        for name in sorted(os.listdir(directory)):
            if name.endswith(".crt"):
                context.load_verify_locations(os.path.join(directory, name))
    return context


def _cause(error: BaseException) -> str:
    """Return the reason in the operating system's words; never a URL, which may hold a signature."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {reason.verify_message}"
    if isinstance(reason, OSError) and reason.strerror:
        return str(reason.strerror)
    return str(reason) if isinstance(reason, (str, CutAnswer)) else type(reason).__name__
