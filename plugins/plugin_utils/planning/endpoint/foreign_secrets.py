# SPDX-License-Identifier: Apache-2.0
"""Refuse a run that would replace secrets of the fleet by others, because its checkout lacks them. Pure.

The nodes tell only fingerprints. The fleet's secrets are here if one of those that it uses is: a run that replaced them
may have been interrupted, or a host may have been unreachable then.
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
    """The secrets beside the inventory: of each load balancer, and the key of the instances."""

    material: Mapping[str, BalancerSecrets]
    instance_key: InstanceKey


@dataclass(frozen=True)
class _Compared:
    """One kind of secret: the file with it, its fingerprints here, and on which hosts others are, by fingerprint."""

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
    """Return a problem for each kind of secret that the fleet has and this inventory lacks, or has differently.

    marks: of the keys of the instances, by GPU host. accepted: the kinds that the operator replaces in this run.
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
    """Compare the key of the instances: what load balancers send counts, and what nodes have only without them."""
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
    """Return whether all load balancers and nodes that tell have this key: then a new one is to be generated.

    Where some have another one, a run that replaces it was interrupted, and the next one has to go on with its key.
    Raise FleetError if a load balancer was not read: it would go on sending the old key.
    """
    there = set(marks.values()) - {""}
    sent = set(_by_mark(_files(hosts, INSTANCE_MAP)))
    if key.map is None or sent != {text_hash(key.map)} or not there <= {mark(key_of_map(key.map))}:
        return False
    unseen = tuple(sorted((host.name for host in hosts if host.observed is None), key=natural))
    if unseen:
        what = "a load balancer that was not read would go on sending the old key of the instances."
        fix = "Add it to --limit, or wait until it can be reached; one that is gone for good leaves the inventory."
        raise FleetError([Problem(("new_secrets",), what, fix, unseen)])
    return True


def _problem(found: _Compared, unseen: tuple[str, ...]) -> Problem | None:
    name, path = NAMES[found.kind], ("new_secrets",)
    if found.there and not found.here & set(found.there):
        holders = {host for some in found.there.values() for host in some}
        file = found.file or "the inventory"
        what = f"the fleet has {name}, and {file} {'holds others' if found.here else 'does not exist'}."
        fix = (
            f"With others, {LOSSES[found.kind]}. Bring .secrets from the checkout that deployed the fleet, or fetch "
            "what the hosts have: playbooks/fetch_secrets.yml. To replace them all the same: "
            f"-e new_secrets={found.kind} (docs/runbooks/endpoint.md)."
        )
        return Problem(path, what, fix, tuple(sorted(holders, key=natural)))
    if found.file and not found.here and not found.there and unseen:
        what = f"{found.file} does not exist, and a load balancer that may have {name} was not read."
        fix = f"Add it to --limit, or wait until it can be reached. To make new ones: -e new_secrets={found.kind}."
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
