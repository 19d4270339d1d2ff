# SPDX-License-Identifier: Apache-2.0
"""Refuse a run that would replace the fleet's secrets because its checkout does not have them. Pure.

The nodes report only fingerprints. One match is enough to say that the fleet's secrets are here: a run that replaced
them may have been interrupted, or a host may have been unreachable then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ....module_utils.common.errors import FleetError, Problem, natural
from ....module_utils.common.hashing import text_hash
from ....module_utils.credentials.api_keys import key_marks
from ....module_utils.credentials.instance_key import InstanceKey, key_of_map, mark
from ..desired.endpoint_settings import BalancerHost
from .balancer_plan import BalancerSecrets
from .plan import CERTIFICATE_FILE, INSTANCE_MAP

API_KEYS, CERTIFICATE, INSTANCE_KEY = KINDS = ("api_keys", "certificate", "instance_key")
"""The values of the variable new_secrets."""
NAMES = {
    API_KEYS: "the API keys of its clients",
    CERTIFICATE: "the certificate that its clients trust",
    INSTANCE_KEY: "the key of its instances",
}
LOSSES = {
    API_KEYS: "clients get 401 until they have another key",
    CERTIFICATE: "clients refuse the connection until they trust another one",
    INSTANCE_KEY: "instances answer nobody until all of them are replaced",
}


@dataclass(frozen=True)
class LocalSecrets:
    """The secrets next to the inventory: those of each load balancer, and the key of the instances."""

    material: Mapping[str, BalancerSecrets]
    instance_key: InstanceKey


@dataclass(frozen=True)
class _Compared:
    """One kind of secret: its file, its fingerprints here, and the hosts that have others, by fingerprint."""

    kind: str
    file: str
    here: frozenset[str]
    there: Mapping[str, frozenset[str]]


def foreign_secrets(
    hosts: Sequence[BalancerHost],
    marks: Mapping[str, str],
    here: LocalSecrets,
    accepted: Collection[str] = (),
) -> tuple[Problem, ...]:
    """Return a problem for each kind of secret that the fleet has and this inventory does not, or not the same.

    marks: fingerprints of the instances' keys, by GPU host. accepted: kinds that the operator replaces in this run.
    """
    unseen = tuple(sorted((host.name for host in hosts if host.observed is None), key=natural))
    problems = (_problem(item, unseen) for item in _compare(hosts, marks, here) if item.kind not in accepted)
    return tuple(problem for problem in problems if problem)


def _compare(
    hosts: Sequence[BalancerHost], marks: Mapping[str, str], here: LocalSecrets
) -> Iterable[_Compared]:
    texts = {host.name: here.material.get(host.name, BalancerSecrets()) for host in hosts}
    with_keys = [host for host in hosts if host.settings.auth]
    if with_keys:
        yield _Compared(
            API_KEYS,
            next((texts[host.name].keys_file for host in with_keys if texts[host.name].keys_file), ""),
            frozenset(key for host in with_keys for key in key_marks(texts[host.name].keys_map or "")),
            _by_mark((host.name, key) for host in with_keys if host.observed for key in host.observed.keys),
        )
    signed = [host for host in hosts if host.settings.tls and not host.settings.certificate_file]
    if signed:
        given = [texts[host.name].certificate for host in signed]
        yield _Compared(
            CERTIFICATE,
            next(
                (texts[host.name].certificate_file for host in signed if texts[host.name].certificate_file),
                "",
            ),
            frozenset(text_hash(text) for text in given if text is not None),
            _by_mark(_files(signed, CERTIFICATE_FILE)),
        )
    yield from _compare_instance_keys(hosts, marks, here.instance_key)


def _compare_instance_keys(
    hosts: Sequence[BalancerHost], marks: Mapping[str, str], key: InstanceKey
) -> Iterable[_Compared]:
    """Compare the key of the instances with what load balancers send, or without any with what nodes have."""
    sent = _by_mark(_files(hosts, INSTANCE_MAP))
    own = key_of_map(key.map) if key.map is not None else ""
    if sent:
        here = {text_hash(key.map)} if key.map is not None else set()
        yield _Compared(INSTANCE_KEY, key.file, frozenset(here), sent)
    elif key.sent or own:
        here = {mark(own)} if own else set()
        yield _Compared(
            INSTANCE_KEY, key.file, frozenset(here), _by_mark((h, m) for h, m in marks.items() if m)
        )


def in_use(hosts: Sequence[BalancerHost], marks: Mapping[str, str], key: InstanceKey) -> bool:
    """Return whether all load balancers and nodes that were read have this key; then a new one must be generated.

    If some have another one, a run that was replacing it was interrupted, and the next run must continue with its key.
    Raise FleetError if a load balancer was not read: it would keep sending the old key.
    """
    there = set(marks.values()) - {""}
    sent = set(_by_mark(_files(hosts, INSTANCE_MAP)))
    if key.map is None or sent != {text_hash(key.map)} or not there <= {mark(key_of_map(key.map))}:
        return False
    unseen = tuple(sorted((host.name for host in hosts if host.observed is None), key=natural))
    if unseen:
        what = "a load balancer that was not read would keep sending the old key of the instances."
        fix = "Add it to --limit, or wait until it can be reached; remove one that is gone for good from the inventory."
        raise FleetError([Problem(("new_secrets",), what, fix, unseen)])
    return True


def _problem(found: _Compared, unseen: tuple[str, ...]) -> Problem | None:
    name, path = NAMES[found.kind], ("new_secrets",)
    if found.there and not found.here & set(found.there):
        holders = {host for some in found.there.values() for host in some}
        file = found.file or "the inventory"
        what = f"the fleet has {name}, but {file} {'contains others' if found.here else 'does not exist'}."
        fix = (
            f"With others, {LOSSES[found.kind]}. Copy .secrets from the checkout that deployed the fleet, or fetch "
            "what the hosts have: playbooks/fetch_secrets.yml. To replace them anyway: "
            f"-e new_secrets={found.kind} (docs/runbooks/endpoint.md)."
        )
        return Problem(path, what, fix, tuple(sorted(holders, key=natural)))
    if found.file and not found.here and not found.there and unseen:
        what = f"{found.file} does not exist, and a load balancer that may have {name} was not read."
        fix = f"Add it to --limit, or wait until it can be reached. To create new ones: -e new_secrets={found.kind}."
        return Problem(path, what, fix, unseen)
    return None


def _files(hosts: Iterable[BalancerHost], name: str) -> Iterable[tuple[str, str]]:
    return (
        (host.name, host.observed.files[name])
        for host in hosts
        if host.observed and name in host.observed.files
    )


def _by_mark(pairs: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for host, fingerprint in pairs:
        found.setdefault(fingerprint, set()).add(host)
    return {fingerprint: frozenset(hosts) for fingerprint, hosts in found.items()}
