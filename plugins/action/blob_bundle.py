# SPDX-License-Identifier: Apache-2.0
"""Run the module blob_bundle on the node; sign what it made, or check here who made what it reads.

Documentation: plugins/modules/blob_bundle.py (`ansible-doc -t module instinct.fleet.blob_bundle`).
"""

from __future__ import annotations

from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.leased_action import LeasedAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.text import printable
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize.bundle_origin import (
    UNKNOWN,
    checked_id,
    origin,
    signature_for,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize.public_key import (
    read_public_key,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize.signature import BadSignature
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize.signing_key import (
    OPTIONS,
    read_signing_key,
)


class ActionModule(LeasedAction):
    """blob_bundle."""

    def call(self, args: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
        """Return the result of all steps, or of the first that failed."""
        secret = {name: args.pop(name, "") for name in OPTIONS}
        public = args.pop("public_key_file", "")
        try:
            if args.get("state") == "created":
                return self._created(args, facts, read_signing_key(**secret))
            return self._read(args, facts, read_public_key(str(public or "")))
        except BadSignature as error:
            why = (
                f"{error}. Sign it where it is made (bundle_create.yml with quantize_signing_key_file), or give the "
                "id of a bundle that is not signed (-e bundle_id=…)"
            )
        except FleetError as error:
            why = str(error).rstrip(".")
        msg = f"The bundle in {args.get('path')}: {why}. Nothing of it was loaded, and nothing was written."
        return {"failed": True, "changed": False, "msg": printable(msg)}

    def _created(
        self, args: dict[str, Any], facts: dict[str, Any], key: tuple[bytes, bytes | None]
    ) -> dict[str, Any]:
        result = super().call(args, facts)
        if result.get("failed") or "bundle_id" not in result or self._task.check_mode:
            return result
        bundle_id, word = str(result["bundle_id"]), "not signed: quantize_signing_key_file names a key"
        if key[0]:
            seen = super().call({**args, "step": "read"}, facts)
            if "signature" not in seen:
                return seen
            text, mark = signature_for(bundle_id, str(seen["signature"]), key)
            signed = super().call({**args, "step": "sign", "signature": text}, facts)
            if signed.get("failed") or signed.get("unreachable"):
                return signed
            word = f"signed with the key {mark[:12]}"
            actions = [*result["actions"], *signed["actions"]]
            result |= {"changed": bool(result["changed"] or signed["changed"]), "actions": actions}
        self._show(
            f"{self._host(facts)}: bundle_id {bundle_id}, {word}",
            "Send the id by another way than the disk. On the other side, for verify and then for load:",
            "  ansible-playbook -i INVENTORY playbooks/bundle_verify.yml --limit HOST -e bundle_dir=… -e "
            f"bundle_id={bundle_id}",
        )
        return result

    def _read(self, args: dict[str, Any], facts: dict[str, Any], key: bytes) -> dict[str, Any]:
        wanted = checked_id(str(args.get("id") or ""))
        seen = super().call({**args, "step": "read"}, facts)
        if seen.get("failed") or "bundle_id" not in seen:
            return seen
        bundle_id = str(seen["bundle_id"])
        known = origin(bundle_id, wanted, str(seen["signature"]), key)
        # The same bundle, even if somebody replaces it in the meantime.
        result = super().call({**args, "id": bundle_id}, facts)
        if not result.get("failed"):
            if known == UNKNOWN:
                self._display.warning(printable(f"{self._host(facts)}: {known}"))
            else:
                self._show(f"{self._host(facts)}: {known}")
        return {**result, "origin": known}

    def _show(self, *lines: str) -> None:
        self._display.display(printable("\n".join(lines)))
