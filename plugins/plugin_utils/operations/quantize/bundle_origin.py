# SPDX-License-Identifier: Apache-2.0
"""Who made a bundle: known by its id, which is sent separately from the disk, or by the operator's signature. Pure.

Hashes inside a bundle show that it is intact. Whoever can write to the disk can also write hashes that match.
"""

from __future__ import annotations

import json
import re

from ....module_utils.common.errors import FleetError, Problem
from . import signature
from .public_key import signed_by

PREDICATE = "https://github.com/instinct-fleet/bundle/v1"
UNKNOWN = (
    "The bundle is intact, but nothing says who made it: whoever had the disk could have written another one. Give "
    "the id that bundle_create.yml printed (-e bundle_id=…), or have it signed (docs/air-gap.md)."
)
"""The warning where only integrity was checked."""
_ID = re.compile(r"[0-9a-f]{64}")


def bundle_statement(bundle_id: str) -> str:
    """Return the statement about a bundle that is signed: in-toto's, as for models, of another kind."""
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "bundle", "digest": {"sha256": bundle_id}}],
        "predicateType": PREDICATE,
        "predicate": {},
    }
    return json.dumps(statement, sort_keys=True, separators=(",", ":"))


def checked_id(given: str) -> str:
    """Return the id that the operator gave, "" for none. Raise FleetError if it is not an id."""
    text = given.strip().lower()
    if text and not _ID.fullmatch(text):
        fix = "Give the 64 hexadecimal digits that bundle_create.yml printed."
        raise FleetError([Problem(("bundle_id",), f"{given!r} is not the id of a bundle.", fix)])
    return text


def origin(bundle_id: str, wanted: str, there: str, key: bytes) -> str:
    """Return how it is known who made a bundle; UNKNOWN if it is not known.

    wanted: the id that was sent separately, "" for none. there: the signature next to the bundle. key: the public key
    that must have signed it, b"" for none. Raise FleetError for another id, and BadSignature where the signature is
    wrong, or is missing and there is no id.
    """
    if wanted and bundle_id != wanted:
        what = f"the bundle has the id {bundle_id}: it is another bundle, or its content was altered."
        fix = "Nothing of it was read. Ask whoever made the bundle for its id, by another way than the disk."
        raise FleetError([Problem(("bundle_id",), f"{wanted} is expected, and {what}", fix)])
    found = [f"its id is {wanted}"] if wanted else []
    if key and (there or not wanted):
        mark = signed_by(key, there, bundle_statement(bundle_id))
        found.append(f"it is signed with the key {mark[:12]}")
    return f"The bundle is the expected one: {' and '.join(found)}." if found else UNKNOWN


def signature_for(bundle_id: str, there: str, key: tuple[bytes, bytes | None]) -> tuple[str, str]:
    """Return the signature of a bundle, and the key's fingerprint. there: the present one, kept if it is valid."""
    public = signature.public_key_of(*key)
    try:
        signature.verify(there, bundle_statement(bundle_id), public)
        return there, signature.fingerprint(public)
    except signature.BadSignature:
        return signature.sign(bundle_statement(bundle_id), *key), signature.fingerprint(public)
