# SPDX-License-Identifier: Apache-2.0
"""The way out of a private network: the environment's proxy variables and a bundle of CAs, as modules get them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from ..common.module_main import NodeError

NAMES = ("http_proxy", "https_proxy", "no_proxy")

LOOPBACK = ("localhost", "127.0.0.1", "::1")

_USERINFO = re.compile(r"(?<=://).*(?=@)")


def environment(proxy: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the variables of an environment, in both spellings: programs differ in which one they read.

    What runs on the node itself is reached without a proxy, whether the inventory says it or not.
    """
    found: dict[str, str] = {}
    for name, value in (proxy or {}).items():
        if name not in NAMES:
            raise NodeError(f"proxy: {name!r} is not one of {', '.join(NAMES)}.")
        if value:
            found[name] = found[name.upper()] = str(value)
    if found:
        given = [part.strip() for part in found.get("no_proxy", "").split(",") if part.strip()]
        names = given if "*" in given else [*given, *(one for one in LOOPBACK if one not in given)]
        found["no_proxy"] = found["NO_PROXY"] = ",".join(names)
    return found


def secrets(proxy: Mapping[str, Any] | None) -> list[str]:
    """Return what must be masked: accounts and passwords in the proxies' URLs."""
    found: list[str] = []
    for value in (proxy or {}).values():
        for account in _USERINFO.findall(str(value or "")):
            password = account.partition(":")[2]
            found += [account, *(form for form in (password, unquote(password)) if form)]
    return found


def through_proxy(proxy: Mapping[str, Any] | None) -> str:
    """Return " through the proxy …" for messages, without an account; "" without a proxy."""
    value = str((proxy or {}).get("https_proxy") or (proxy or {}).get("http_proxy") or "")
    return f" through the proxy {_USERINFO.sub('', value).replace('@', '')}" if value else ""


def check_ca_file(path: str | None) -> str:
    """Return the path of a bundle of CAs on this node, "" for none. Raise NodeError if it is unusable."""
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            usable = "-----BEGIN CERTIFICATE-----" in file.read()
        why = "" if usable else "it has no certificate in PEM form"
    except OSError as error:
        why = str(error.strerror)
    if why:
        raise NodeError(
            f"instinct_ca_file {path} cannot be used on this node: {why}. Put your CA into "
            "/usr/local/share/ca-certificates, run update-ca-certificates, and name "
            "/etc/ssl/certs/ca-certificates.crt."
        )
    return os.path.realpath(path)  # a link leads elsewhere inside a container
