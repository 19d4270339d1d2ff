# SPDX-License-Identifier: Apache-2.0
"""Signatures of manifests: made and verified with an EC key, as model-signing does, and refused where they differ."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.content.model_manifest import (
    statement,
    statement_text,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize import signature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

STATEMENT = statement_text(statement("m", {"config.json": "a" * 64, "model.safetensors": "b" * 64}))


def private(curve: ec.EllipticCurve | None = None, password: bytes | None = None) -> bytes:
    key = ec.generate_private_key(curve or ec.SECP256R1())
    how = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)


@pytest.mark.parametrize(
    "curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda curve: curve.name
)
def test_what_a_key_signs_its_public_key_verifies(curve: ec.EllipticCurve) -> None:
    key = private(curve)
    public = signature.public_key_of(key)
    assert signature.verify(signature.sign(STATEMENT, key), STATEMENT, public) == signature.fingerprint(
        public
    )


def test_an_encrypted_key_needs_its_password() -> None:
    key = private(password=b"secret words")
    public = signature.public_key_of(key, b"secret words")
    assert signature.verify(signature.sign(STATEMENT, key, b"secret words"), STATEMENT, public)
    with pytest.raises(FleetError, match="needs a password"):
        signature.sign(STATEMENT, key)


def test_a_signature_of_another_key_or_statement_does_not_hold() -> None:
    key, other = private(), private()
    bundle = signature.sign(STATEMENT, key)
    with pytest.raises(signature.BadSignature, match="was not made with this key"):
        signature.verify(bundle, STATEMENT, signature.public_key_of(other))
    with pytest.raises(signature.BadSignature, match="another manifest"):
        signature.verify(bundle, STATEMENT.replace("a" * 64, "c" * 64), signature.public_key_of(key))


def test_a_payload_that_was_exchanged_does_not_hold() -> None:
    key = private()
    bundle = json.loads(signature.sign(STATEMENT, key))
    changed = STATEMENT.replace("a" * 64, "c" * 64)
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(changed.encode()).decode()
    with pytest.raises(signature.BadSignature, match="was not made with this key"):
        signature.verify(json.dumps(bundle), changed, signature.public_key_of(key))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"dsseEnvelope": {"payload": "?", "signatures": []}}'])
def test_a_broken_file_is_no_signature(text: str) -> None:
    with pytest.raises(signature.BadSignature, match="damaged"):
        signature.verify(text, STATEMENT, signature.public_key_of(private()))


def test_other_kinds_of_keys_are_refused_with_the_command_that_makes_one() -> None:
    rsa_key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for key in (rsa_key, private(ec.SECP256K1()), b"nothing"):
        with pytest.raises(FleetError, match="openssl ecparam"):
            signature.sign(STATEMENT, key)


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl verifies without this code")
def test_openssl_verifies_it_too(tmp_path: Path) -> None:
    key = private()
    envelope = json.loads(signature.sign(STATEMENT, key))["dsseEnvelope"]
    payload = base64.b64decode(envelope["payload"])
    kind = envelope["payloadType"]
    (tmp_path / "pae").write_bytes(f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload)
    (tmp_path / "sig").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    (tmp_path / "key").write_bytes(signature.public_key_of(key))
    command = ["openssl", "dgst", "-sha256", "-verify", "key", "-signature", "sig", "pae"]
    assert subprocess.run(command, cwd=tmp_path, check=True, capture_output=True).stdout == b"Verified OK\n"
