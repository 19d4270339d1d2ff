# SPDX-License-Identifier: Apache-2.0
"""Plan a quantization on the control node, have the module do it, and sign its manifest here.

Documentation: plugins/modules/model_quantize.py (`ansible-doc -t module instinct.fleet.model_quantize`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError, Problem
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.program_action import ProgramAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.text import printable
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.load import load_quantization
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize import signature
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize.card import result_text
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize.plan import (
    QuantizePlan,
    QuantizeRequest,
    output_name,
    plan_quantization,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.quantize.signing_key import (
    OPTIONS,
    read_signing_key,
)


class ActionModule(ProgramAction):
    """model_quantize."""

    def call(self, args: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
        """Return the result of all steps, or of the first that failed."""
        secret = {name: args.pop(name, "") for name in OPTIONS}
        try:
            return self._quantize(args, facts, secret)
        except (FleetError, signature.BadSignature, OSError) as error:
            return {"failed": True, "changed": False, "msg": f"Nothing was quantized. {error}"}

    def _quantize(
        self, args: dict[str, Any], facts: dict[str, Any], secret: Mapping[str, Any]
    ) -> dict[str, Any]:
        data, requirements = load_quantization()
        request = _request(args)
        key = read_signing_key(**secret)
        output_name(request, data, "model")  # what is wrong here is wrong for any source
        seen = super().call({**args, "step": "facts"}, facts)
        if "facts" not in seen:  # it failed, or the host was not reached
            return seen
        plan = plan_quantization(request, data, requirements, seen["facts"], str(args["image"]))
        result = self._made(args, facts, plan, requirements[plan.scheme.backend])
        if result.get("failed") or result.get("unreachable"):
            return result
        signed, word = self._signed(args, facts, result, key)
        text = result_text(self._host(facts), plan.lines, result, plan.scheme, request.kv_cache, word)
        self._display.display(printable(f"\n{text}"))
        changed = bool(result["changed"] or signed.get("changed"))
        kept = {name: value for name, value in result.items() if name not in ("statement", "signature")}
        fingerprint = signed.get("key", "")
        return {**kept, "changed": changed, "signed": fingerprint, "text": text, **_failed(signed)}

    def _made(
        self,
        args: dict[str, Any],
        facts: dict[str, Any],
        plan: QuantizePlan,
        requirements: str,
    ) -> dict[str, Any]:
        if plan.there:
            return {**plan.there, "changed": False, "actions": [], "report": None}
        return super().call({**args, "step": "run", "job": plan.job, "requirements": requirements}, facts)

    def _signed(
        self,
        args: dict[str, Any],
        facts: dict[str, Any],
        result: Mapping[str, Any],
        key: tuple[bytes, bytes | None],
    ) -> tuple[dict[str, Any], str]:
        """Sign the output, unless this key signed it already. Return the step's result, and what to print."""
        if not key[0]:
            return {}, "not signed: quantize_signing_key_file names a key"
        public = signature.public_key_of(*key)
        mark = signature.fingerprint(public)
        done = f"signed with the key {mark[:12]}"
        if not result.get("path"):
            return {"key": mark}, f"would be {done}"
        try:
            signature.verify(result["signature"], result["statement"], public)
            return {"key": mark}, done
        except signature.BadSignature:
            text = signature.sign(result["statement"], *key)
        wanted = {"path": result["path"], "text": text}
        return {**super().call({**args, "step": "sign", "signature": wanted}, facts), "key": mark}, done


def _failed(step: Mapping[str, Any]) -> dict[str, Any]:
    return {name: step[name] for name in ("failed", "unreachable", "msg") if step.get(name)}


def _request(args: Mapping[str, Any]) -> QuantizeRequest:
    """Return the request; the module refuses values of other types."""
    exclude = args.get("exclude")
    try:
        samples, length = int(args.get("samples") or 128), int(args.get("length") or 512)
    except (TypeError, ValueError):
        raise FleetError([Problem(("quantize_samples",), "it or quantize_length is not a number.")]) from None
    return QuantizeRequest(
        scheme=str(args.get("scheme") or "ptpc_fp8"),
        kv_cache=str(args.get("kv_cache") or ""),
        name=str(args.get("name") or ""),
        device=str(args.get("device") or "auto"),
        exclude=None if exclude is None else tuple(map(str, exclude)),
        architecture=str(args.get("architecture") or ""),
        samples=samples,
        length=length,
        remote_code=boolean(args.get("remote_code") or False, strict=False),
    )
