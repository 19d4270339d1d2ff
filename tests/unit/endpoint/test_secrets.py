# SPDX-License-Identifier: Apache-2.0
"""Keys and certificates of the endpoint on the control node: made once, private, and checked without being told."""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.common.instance_key import (
    UNMADE,
    InstanceKey,
    mark,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.desired.endpoint_settings import (
    BalancerHost,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.endpoint.plan import BalancerSecrets
from ansible_collections.instinct.fleet.plugins.plugin_utils.endpoint.secrets import (
    instance_key,
    load_secrets,
    self_signed,
)

from tests.worlds.defaults import balancer_settings


def made(base: Path, make: bool = True, **settings: Any) -> BalancerSecrets:
    host = BalancerHost("lb", "192.0.2.1", balancer_settings(**settings))
    return load_secrets([host], base, make, lambda path: path.read_text(), yaml.safe_load)["lb"]


def test_what_is_missing_is_made_once_and_privately(tmp_path: Path) -> None:
    first = made(tmp_path)
    keys, certificate = tmp_path / ".secrets/api-keys.yml", tmp_path / ".secrets/endpoint.pem"
    assert [path.stat().st_mode & 0o777 for path in (keys.parent, keys, certificate)] == [0o700, 0o600, 0o600]
    key = yaml.safe_load(keys.read_text())["default"]
    assert first.keys_map == f"{hashlib.sha256(key.encode()).hexdigest().upper()} default\n"
    assert first.certificate == certificate.read_text()
    assert made(tmp_path) == first
    assert key not in repr(first)


def test_plans_make_nothing(tmp_path: Path) -> None:
    assert made(tmp_path, make=False) == BalancerSecrets(
        None, None, str(tmp_path / ".secrets/api-keys.yml"), str(tmp_path / ".secrets/endpoint.pem")
    )
    assert list(tmp_path.iterdir()) == []


def test_opting_out_makes_nothing(tmp_path: Path) -> None:
    assert made(tmp_path, tls=False, auth=False) == BalancerSecrets()
    assert list(tmp_path.iterdir()) == []


def key_of(base: Path, make: bool = True, wanted: bool = True) -> InstanceKey:
    lb = BalancerHost("lb", "192.0.2.1", balancer_settings(instance_auth=wanted))
    return instance_key([lb], base, make, lambda path: path.read_text())


def test_the_instances_key_is_made_once_and_sent_as_long_as_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / ".secrets/instance-key"
    assert key_of(tmp_path, wanted=False) == InstanceKey(str(path))
    assert key_of(tmp_path, make=False) == InstanceKey(str(path), UNMADE, True)
    assert not path.exists()
    first = key_of(tmp_path)
    key = path.read_text().strip()
    assert (path.stat().st_mode & 0o777, len(key) > 40) == (0o600, True)
    assert first == key_of(tmp_path) == InstanceKey(str(path), mark(key), True, f"key Bearer {key}\n")
    assert key not in repr(first)
    assert key_of(tmp_path, wanted=False) == InstanceKey(str(path), "", True, f"key Bearer {key}\n")


@pytest.mark.parametrize("text", ["short", "has a space and is long enough", "x" * 20 + "'", ""])
def test_an_instances_key_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / ".secrets").mkdir()
    (tmp_path / ".secrets/instance-key").write_text(f"{text}\n")
    with pytest.raises(FleetError, match=r"instance-key does not hold a key: .* Remove the file") as error:
        key_of(tmp_path)
    assert not text or text not in str(error.value)


def test_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.pem").write_text(self_signed(["lb.example"]))
    found = made(tmp_path, certificate_file="mine.pem", api_keys=(("me", "k" * 20),))
    assert found.certificate == (tmp_path / "mine.pem").read_text()
    assert found.keys_map == f"{hashlib.sha256(b'k' * 20).hexdigest().upper()} me\n"
    assert found.keys_file == ""
    assert not (tmp_path / ".secrets").exists()


def test_a_self_signed_certificate_is_one_that_clients_can_trust(tmp_path: Path) -> None:
    path = tmp_path / "endpoint.pem"
    path.write_text(self_signed(["192.0.2.1", "lb.example", "2001:db8::1"]))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    client = ssl.create_default_context(cafile=str(path))
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # the default since Python 3.13
    for name in ("192.0.2.1", "lb.example", "2001:db8::1", "localhost"):
        shake_hands(server, client, name)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"other\.example"):
        shake_hands(server, client, "other.example")


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(3):
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue
    assert ends == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("default: too-short-secret", "its key must be text of at least 20 visible ASCII characters"),
        ("default: has spaces in it, and is long enough", "its key must be text of at least 20"),
        ("[]", "contains no keys"),
        ("a: [", "it cannot be decrypted or parsed"),
    ],
)
def test_keys_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / ".secrets").mkdir()
    (tmp_path / ".secrets/api-keys.yml").write_text(text)

    def parse(given: str) -> Any:
        try:
            return yaml.safe_load(given)
        except yaml.YAMLError as error:
            raise ValueError from error

    host = BalancerHost("lb", "192.0.2.1", balancer_settings())
    with pytest.raises(FleetError, match=message) as error:
        load_secrets([host], tmp_path, True, lambda path: path.read_text(), parse)
    assert "secret" not in str(error.value).replace(".secrets", "")


def test_a_certificate_without_its_key(tmp_path: Path) -> None:
    pem = self_signed(["lb.example"])
    (tmp_path / "mine.pem").write_text(pem[: pem.index("-----BEGIN PRIVATE")])
    with pytest.raises(
        FleetError, match=r"mine.pem contains no private key\. It must contain the certificate"
    ):
        made(tmp_path, certificate_file="mine.pem")
    with pytest.raises(FleetError, match=r"no.pem cannot be read: No such file"):
        made(tmp_path, certificate_file="no.pem")
