# SPDX-License-Identifier: Apache-2.0
"""Sign a manifest with the operator's EC key, and verify such a signature: model-signing's format, DSSE in a bundle.

This is for the control node, where `cryptography` comes with Ansible; a private key never reaches a node.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from ....module_utils.common.errors import FleetError, Problem

PAYLOAD_TYPE = "application/vnd.in-toto+json"
MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
CURVES = ("secp256r1", "secp384r1", "secp521r1")
_MAKE = "openssl ecparam -name prime256v1 -genkey -noout -out KEY makes one, openssl ec -in KEY -pubout its public key."


class BadSignature(Exception):
    """A signature that is not valid; the message says why."""


def sign(statement: str, key: bytes, password: bytes | None = None) -> str:
    """Return the signed bundle of a statement. key: a private key in PEM form. Raise FleetError."""
    from cryptography.hazmat.primitives.asymmetric import ec

    private = _private_key(key, password)
    payload = statement.encode()
    public = private.public_key()
    signature = private.sign(_encoded(payload), ec.ECDSA(_hash_of(public)))
    bundle = {
        "mediaType": MEDIA_TYPE,
        "verificationMaterial": {"publicKey": {"hint": fingerprint(_pem(public))}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
        },
    }
    return json.dumps(bundle, indent=1, sort_keys=True) + "\n"


def verify(bundle: str, statement: str, key: bytes) -> str:
    """Check with the public key that a bundle signs exactly this statement. Return the key's fingerprint.

    Raise BadSignature if it does not, FleetError if the key is unusable.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec

    public = _public_key(key)
    try:
        envelope = json.loads(bundle)["dsseEnvelope"]
        payload = base64.b64decode(envelope["payload"], validate=True)
        signature = base64.b64decode(envelope["signatures"][0]["sig"], validate=True)
        kind = envelope["payloadType"]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise BadSignature("the signature file is damaged") from error
    if kind != PAYLOAD_TYPE:
        raise BadSignature(f"it signs {kind}, which is not a manifest")
    if payload != statement.encode():
        raise BadSignature("it signs another manifest than the one next to it")
    try:
        public.verify(signature, _encoded(payload), ec.ECDSA(_hash_of(public)))
    except InvalidSignature as error:
        hint = str(json.loads(bundle).get("verificationMaterial", {}).get("publicKey", {}).get("hint") or "")
        other = (
            f"; it was made with the key {hint[:12]}" if hint and hint != fingerprint(_pem(public)) else ""
        )
        raise BadSignature(
            f"it was not made with this key ({fingerprint(_pem(public))[:12]}){other}"
        ) from error
    return fingerprint(_pem(public))


def public_key_of(key: bytes, password: bytes | None = None) -> bytes:
    """Return the public key of a private one, in PEM form."""
    return _pem(_private_key(key, password).public_key())


def fingerprint(pem: bytes) -> str:
    """Return the SHA-256 of a public key in PEM form, as model-signing names it."""
    return hashlib.sha256(pem).hexdigest()


def _encoded(payload: bytes) -> bytes:
    """Return what is signed: DSSE's pre-authentication encoding."""
    return f"DSSEv1 {len(PAYLOAD_TYPE)} {PAYLOAD_TYPE} {len(payload)} ".encode() + payload


def _private_key(text: bytes, password: bytes | None) -> Any:
    from cryptography.hazmat.primitives import serialization

    try:
        return _checked(serialization.load_pem_private_key(text, password), "quantize_signing_key_file")
    except (ValueError, TypeError) as error:
        needs = "password" in str(error).lower()
        what = "needs a password, but none was given" if needs else "is not a private key in PEM form"
        raise FleetError([Problem(("quantize_signing_key_file",), f"{what}.", _MAKE)]) from None


def _public_key(text: bytes) -> Any:
    from cryptography.hazmat.primitives import serialization

    try:
        return _checked(serialization.load_pem_public_key(text), "quantize_public_key_file")
    except ValueError:
        raise FleetError(
            [Problem(("quantize_public_key_file",), "is not a public key in PEM form.", _MAKE)]
        ) from None


def _checked(key: Any, variable: str) -> Any:
    curve = getattr(getattr(key, "curve", None), "name", "")
    if curve not in CURVES:
        what = f"has the curve {curve}." if curve else "is not an elliptic curve key."
        raise FleetError([Problem((variable,), what, f"Valid: {', '.join(CURVES)}. {_MAKE}")])
    return key


def _hash_of(public: Any) -> Any:
    from cryptography.hazmat.primitives import hashes

    return {256: hashes.SHA256(), 384: hashes.SHA384(), 521: hashes.SHA512()}[public.curve.key_size]


def _pem(public: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    found: bytes = public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return found
