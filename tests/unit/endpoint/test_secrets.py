# SPDX-License-Identifier: Apache-2.0
"""Keys and certificates of the endpoint on the control node: made once, private, and checked without being told."""

from __future__ import annotations

import datetime
import hashlib
import ssl
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.instance_key import (
    UNMADE,
    InstanceKey,
    mark,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.endpoint_settings import (
    BalancerHost,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.balancer_plan import (
    BalancerSecrets,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.certificate import (
    certificate_warnings,
    self_signed,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.secrets import (
    instance_key,
    load_secrets,
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


def test_who_has_its_key_can_sign_for_no_other_name(tmp_path: Path) -> None:
    """What a CA's key could do with a client that trusts its certificate."""
    path = tmp_path / "endpoint.pem"
    path.write_text(self_signed(["192.0.2.1"]))
    for step in (
        "req -new -newkey rsa:2048 -nodes -subj /CN=login.bank.example -keyout k.pem -out r.csr",
        "x509 -req -in r.csr -CA endpoint.pem -CAkey endpoint.pem -CAcreateserial -out forged.pem",
    ):
        subprocess.run(["openssl", *step.split()], cwd=tmp_path, check=True, capture_output=True)
    for name, purpose, works in (
        ("endpoint.pem", "sslserver", True),
        ("endpoint.pem", "sslclient", False),
        ("forged.pem", "sslserver", False),
    ):
        verify = ["openssl", "verify", "-purpose", purpose, "-CAfile", "endpoint.pem", name]
        done = subprocess.run(verify, cwd=tmp_path, check=False, capture_output=True, text=True)
        assert (done.returncode == 0) is works, done.stdout + done.stderr


def test_it_is_for_all_load_balancers_and_one_that_is_not_is_told(tmp_path: Path) -> None:
    here = BalancerHost("lb", "192.0.2.1", balancer_settings())
    there = BalancerHost("lb-2", "192.0.2.2", balancer_settings(), absent="it could not be reached")
    reading = (lambda path: path.read_text(), yaml.safe_load)
    assert load_secrets([here, there], tmp_path, True, *reading)["lb"].warnings == ()
    new = BalancerHost("lb-3", "192.0.2.3", balancer_settings())
    found = load_secrets([here, replace(there, absent=""), new], tmp_path, True, *reading)
    assert (found["lb"].warnings, found["lb-2"].warnings) == ((), ())
    assert ["endpoint.pem does not cover 192.0.2.3, and" in text for text in found["lb-3"].warnings] == [True]


@pytest.mark.parametrize(
    ("days", "told"),
    [(0, ""), (794, ""), (796, "expires in 29 days"), (824, "expires in 1 days"), (826, "has expired")],
)
@pytest.mark.parametrize("addresses", [(), ("192.0.2.1", "localhost")])
def test_its_end_is_told_a_month_before(days: int, told: str, addresses: tuple[str, ...]) -> None:
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days, minutes=-5)
    found = certificate_warnings("mine.pem", self_signed(["192.0.2.1"]), addresses, now)
    assert [told in text for text in found] == ([True] if told else [])


def test_a_certificate_that_can_sign_is_told(tmp_path: Path) -> None:
    """As earlier releases made it."""
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 90 -subj /CN=x -addext subjectAltName=IP:192.0.2.1"
    )
    subprocess.run(
        [*command.split(), "-keyout", "k.pem", "-out", "c.pem"], cwd=tmp_path, check=True, capture_output=True
    )
    text, now = (tmp_path / "c.pem").read_text(), datetime.datetime.now(datetime.UTC)
    (found,) = certificate_warnings("c.pem", text, ["192.0.2.1"], now)
    assert "can sign certificates for any name" in found
    assert certificate_warnings("c.pem", text, (), now) == ()
    assert certificate_warnings("c.pem", "no certificate", ["192.0.2.1"], now) == ()


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
        FleetError, match=r"mine.pem does not contain a private key\. It must contain the certificate"
    ):
        made(tmp_path, certificate_file="mine.pem")
    with pytest.raises(FleetError, match=r"no.pem cannot be read: No such file"):
        made(tmp_path, certificate_file="no.pem")
