# SPDX-License-Identifier: Apache-2.0
"""Who made a bundle: by its id, by a signature, by both, or unknown; and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize import signature
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize.bundle_origin import (
    UNKNOWN,
    bundle_statement,
    checked_id,
    origin,
    signature_for,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize.signing_key import (
    read_signing_key,
)

from .test_signature import private

OWN, OTHER = "a" * 64, "b" * 64


@pytest.fixture(scope="module")
def keys() -> dict[str, tuple[bytes, bytes]]:
    """Private keys with their public ones."""
    made = {name: private() for name in ("mine", "theirs")}
    return {name: (key, signature.public_key_of(key)) for name, key in made.items()}


# The id that was given, who signed which bundle, whether there is a public key; and what comes of it.
CASES = [
    ("", "", False, UNKNOWN),
    (OWN, "", False, f"The bundle is the expected one: its id is {OWN}."),
    (OTHER, "", False, FleetError),
    (OTHER, f"mine {OWN}", True, FleetError),
    ("", "", True, signature.BadSignature),  # whoever altered it may have removed the signature
    (OWN, "", True, f"The bundle is the expected one: its id is {OWN}."),
    ("", f"mine {OWN}", True, "The bundle is the expected one: it is signed with the key "),
    (
        OWN,
        f"mine {OWN}",
        True,
        f"The bundle is the expected one: its id is {OWN} and it is signed with the key ",
    ),
    ("", f"mine {OTHER}", True, signature.BadSignature),  # the signature of another bundle
    ("", f"theirs {OWN}", True, signature.BadSignature),
    (OWN, f"theirs {OWN}", True, signature.BadSignature),
    ("", "broken", True, signature.BadSignature),
    ("", f"mine {OWN}", False, UNKNOWN),  # nobody says by which key it should be
]


@pytest.mark.parametrize(("wanted", "signed", "has_key", "expected"), CASES)
def test_by_what_a_bundle_is_known(
    keys: dict[str, tuple[bytes, bytes]],
    wanted: str,
    signed: str,
    has_key: bool,
    expected: str | type[Exception],
) -> None:
    who, _space, what = signed.partition(" ")
    there = signature.sign(bundle_statement(what), keys[who][0]) if what else signed
    key = keys["mine"][1] if has_key else b""
    if isinstance(expected, str):
        assert origin(OWN, wanted, there, key).startswith(expected)
        return
    with pytest.raises(expected):
        origin(OWN, wanted, there, key)


def test_a_signature_of_a_model_signs_no_bundle(keys: dict[str, tuple[bytes, bytes]]) -> None:
    statement = bundle_statement(OWN).replace("instinct-fleet/bundle", "sigstore/model")
    with pytest.raises(signature.BadSignature):
        origin(OWN, "", signature.sign(statement, keys["mine"][0]), keys["mine"][1])


def test_a_signature_that_holds_is_not_made_again(keys: dict[str, tuple[bytes, bytes]]) -> None:
    key = (keys["mine"][0], None)
    first, mark = signature_for(OWN, "", key)
    assert mark == signature.fingerprint(keys["mine"][1])
    assert signature_for(OWN, first, key) == (first, mark)
    assert signature_for(OTHER, first, key)[0] != first
    assert origin(OWN, "", first, keys["mine"][1]) != UNKNOWN


@pytest.mark.parametrize("given", ["", f" {OWN.upper()}\n", OWN])
def test_an_id_may_be_copied_with_blanks(given: str) -> None:
    assert checked_id(given) == given.strip().lower()


@pytest.mark.parametrize("given", ["x", OWN[:-1], OWN + "a", "sha256:" + OWN])
def test_what_is_no_id_is_refused(given: str) -> None:
    with pytest.raises(FleetError, match="is not the id of a bundle"):
        checked_id(given)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(private())
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(FleetError, match="can be read by others"):
        read_signing_key(str(tmp_path / "key"))
    assert read_signing_key("") == (b"", None)
