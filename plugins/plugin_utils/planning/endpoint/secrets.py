# SPDX-License-Identifier: Apache-2.0
"""Read the keys and certificates of load balancers on the control node, and create missing ones.

They are stored next to the inventory in `.secrets` (Ansible ignores hidden directories of an inventory), readable by
their owner only. Either file may be vaulted. Control node only: it needs cryptography, which ansible-core requires.
"""

from __future__ import annotations

import datetime
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ....module_utils.common.errors import FleetError, Problem
from ....module_utils.credentials.api_keys import keys_map
from ....module_utils.credentials.instance_key import UNMADE, InstanceKey, header_map, key_wrong, mark
from ..desired.endpoint_settings import BalancerHost, key_problem
from .balancer_plan import BalancerSecrets
from .certificate import certificate_warnings, self_signed

DIRECTORY = ".secrets"
KEYS, CERTIFICATE, INSTANCE_KEY = "api-keys.yml", "endpoint.pem", "instance-key"

ReadText = Callable[[Path], Any]
"""Reads a text file, vaulted or not; raises OSError or ValueError."""


def load_secrets(
    hosts: Sequence[BalancerHost], base: Path, make: bool, load: ReadText, parse: Callable[[str], Any]
) -> dict[str, BalancerSecrets]:
    """Return each load balancer's secrets; `make` creates missing ones. Raise FleetError, without any secret."""
    wanted = [host for host in hosts if not host.absent]
    keys = base / DIRECTORY / KEYS
    own = base / DIRECTORY / CERTIFICATE
    if (
        make
        and any(host.settings.auth and not host.settings.api_keys for host in wanted)
        and not keys.exists()
    ):
        _write(
            keys, f"# API keys of the endpoint: a name, and a key that clients send.\ndefault: {_new_key()}\n"
        )
    # Also those outside this run: the certificate is the same on all.
    signed = [host for host in hosts if host.settings.tls and not host.settings.certificate_file]
    if make and any(host in wanted for host in signed) and not own.exists():
        _write(own, self_signed([address for host in signed for address in _addresses(host)]))
    return {host.name: _material(host, base, keys, own, load, parse) for host in wanted}


def instance_key(hosts: Sequence[BalancerHost], base: Path, make: bool, load: ReadText) -> InstanceKey:
    """Return the key between load balancers and instances; with `make`, create a missing one. Raise FleetError.

    All load balancers send an existing key even if new instances do not require one: older instances may still need it,
    and the others ignore it.
    """
    wanted = any(host.settings.instance_auth for host in hosts)
    path = base / DIRECTORY / INSTANCE_KEY
    if wanted and make and not path.exists():
        _write(path, f"{_new_key()}\n")
    if not path.exists():
        return InstanceKey(str(path), mark=UNMADE if wanted else "", sent=wanted)
    where = "load_balancer_instance_auth"
    try:
        key = str(load(path)).strip()
    except (OSError, ValueError) as error:
        raise _unreadable(where, path, hosts[0], error) from None
    wrong = key_wrong(key)
    if wrong:
        fix = "Remove the file to have a new one generated."
        raise FleetError([Problem((where,), f"{path} {wrong}.", fix, (hosts[0].name,))])
    return InstanceKey(str(path), mark=mark(key) if wanted else "", sent=True, map=header_map(key))


def _material(
    host: BalancerHost, base: Path, keys: Path, own: Path, load: ReadText, parse: Callable[[str], Any]
) -> BalancerSecrets:
    settings = host.settings
    keys_text = certificate = None
    if settings.auth and settings.api_keys:
        keys_text = keys_map(dict(settings.api_keys))
    elif settings.auth and keys.exists():
        keys_text = keys_map(_keys(keys, host, load, parse))
    path = own
    if settings.tls and settings.certificate_file:
        path = base / os.path.expanduser(settings.certificate_file)
        certificate = _pem(path, host, load)
    elif settings.tls and own.exists():
        certificate = _pem(own, host, load)
    return BalancerSecrets(
        keys_text,
        certificate,
        str(keys) if settings.auth and not settings.api_keys else "",
        str(path) if settings.tls else "",
        _warnings(host, path, certificate, path == own) if certificate else (),
    )


def _warnings(host: BalancerHost, path: Path, certificate: str, own: bool) -> tuple[str, ...]:
    """Return what is wrong with a certificate. Operators who provide one know which names their clients use."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return certificate_warnings(str(path), certificate, _addresses(host) if own else (), now)


def _addresses(host: BalancerHost) -> list[str]:
    """Return the addresses where clients reach the load balancer."""
    virtual = host.settings.virtual
    return [host.address, *([virtual.address] if virtual else [])]


def _keys(path: Path, host: BalancerHost, load: ReadText, parse: Callable[[str], Any]) -> dict[str, str]:
    try:
        found = parse(load(path))
    except (OSError, ValueError) as error:
        raise _unreadable("load_balancer_api_keys", path, host, error) from None
    if not isinstance(found, dict) or not found:
        what = f"{path} contains no keys."
        fix = "Write one line per key, name: key; or remove the file to have a key generated."
        raise FleetError([Problem(("load_balancer_api_keys",), what, fix, (host.name,))])
    problems = [(name, key_problem(name, key)) for name, key in found.items()]
    wrong = [
        Problem(("load_balancer_api_keys", str(n)), f"in {path}: {p}", "", (host.name,))
        for n, p in problems
        if p
    ]
    if wrong:
        raise FleetError(wrong)
    return {str(name): str(key) for name, key in found.items()}


def _pem(path: Path, host: BalancerHost, load: ReadText) -> str:
    key = "load_balancer_certificate_file"
    try:
        text = str(load(path)).strip() + "\n"
    except (OSError, ValueError) as error:
        raise _unreadable(key, path, host, error) from None
    for part in ("CERTIFICATE-----", "PRIVATE KEY-----"):
        if part not in text:
            what = f"{path} does not contain a {part.rstrip('-').lower()}."
            fix = "It must contain the certificate, its chain, and the private key without a passphrase, as PEM."
            raise FleetError([Problem((key,), what, fix, (host.name,))])
    return text


def _unreadable(key: str, path: Path, host: BalancerHost, error: Exception) -> FleetError:
    why = error.strerror if isinstance(error, OSError) else "it cannot be decrypted or parsed"
    return FleetError([Problem((key,), f"{path} cannot be read: {why}.", "", (host.name,))])


def _new_key() -> str:
    return f"sk-{secrets.token_urlsafe(32)}"


def replace_instance_key(base: Path) -> None:
    """Generate a new key between load balancers and instances, which replaces the present one."""
    path = base / DIRECTORY / INSTANCE_KEY
    part = path.with_name(f".{INSTANCE_KEY}.{os.getpid()}")
    _write(part, f"{_new_key()}\n")
    os.replace(part, path)


def _write(path: Path, text: str) -> None:
    """Create a file that only its owner may ever access. Never overwrite one that exists."""
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror}."
        fix = "Provide a key and a certificate (docs/runbooks/endpoint.md), or make the directory writable."
        raise FleetError([Problem((), what, fix)]) from None
