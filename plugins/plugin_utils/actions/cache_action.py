# SPDX-License-Identifier: Apache-2.0
"""Call the module instance_cache for other action plugins, and move bundles between the control node and a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleError

from . import bytecode  # before all others  # noqa: F401  # pylint: disable=unused-import

# isort: split
from ..base.file_hash import file_hash
from ..base.node_answers import AnswerError, fetch, known_request
from .cache_records import CacheRecords, parse_record
from .leased_action import LeasedAction

MODULE = "instinct.fleet.instance_cache"
LIMIT = "vllm_serve_bundle_limit"
DEFAULT_LIMIT = 2**30


class CacheAction(LeasedAction):
    """An action plugin that packs or restores the caches of instances."""

    def restored(
        self, servers: Iterable[Mapping[str, Any]], facts: dict[str, Any], limit: int | None = None
    ) -> dict[str, Any]:
        """Restore what is recorded for these servers. The node is only contacted if something is recorded."""
        instances, records = servers_with_key(servers), CacheRecords()
        known = {item["cache_key"]: records.get(item["cache_key"]) for item in instances}
        bundles = {key: record for key, record in known.items() if record and record["files"]}
        instances = [item for item in instances if item["cache_key"] in bundles]
        if not instances or not self._limit(facts, limit):
            return {"changed": False, "actions": [], "warm": [], "missing": []}
        args = {
            "state": "restored",
            "instances": instances,
            "bundles": bundles,
            "lease": self._lease(facts),
        }
        found = self._cache_call(args, facts)
        if not found.get("missing") or self._task.check_mode:
            return found
        files = {}
        try:
            offered = {str(record["sha256"]) for record in bundles.values()}
            for sha256 in [known_request(item, offered) for item in found["missing"]]:
                remote = self._connection._shell.join_path(self._temporary(), sha256)
                self._transfer_file(str(records.bundle(sha256)), remote)
                files[sha256] = remote
        except (AnsibleError, AnswerError, OSError) as error:
            return {**found, "warnings": [*found.get("warnings", ()), _cold(instances, error)]}
        return self._cache_call({**args, "files": files, "lease": self._lease(facts)}, facts)

    def packed(
        self, servers: Iterable[Mapping[str, Any]], facts: dict[str, Any], limit: int | None = None
    ) -> dict[str, Any]:
        """Pack the caches of the first server of each key that has no bundle yet, and record them here."""
        found: dict[str, Any] = {"changed": False, "actions": [], "bundles": {}, "warnings": []}
        most, records = self._limit(facts, limit), CacheRecords()
        firsts = {item["cache_key"]: item for item in reversed(servers_with_key(servers))}
        for key, instance in firsts.items() if most and not self._task.check_mode else ():
            try:
                with records.claimed(key) as mine:
                    own = self._packed(key, instance, most, facts, records) if mine else {}
            except (AnsibleError, AnswerError, OSError) as error:
                own = {
                    "warnings": [
                        f"{instance['name']}: its caches were not kept: {error}. Other instances start cold."
                    ]
                }
            found["changed"] |= bool(own.get("changed"))
            found["bundles"].update(own.get("bundles") or {})
            for name in ("actions", "warnings"):
                found[name] += own.get(name) or []
        return found

    def _packed(
        self, key: str, instance: dict[str, str], limit: int, facts: dict[str, Any], records: CacheRecords
    ) -> dict[str, Any]:
        export = self._temporary()
        args = {
            "state": "packed",
            "instances": [instance],
            "limit": limit,
            "export": export,
            "lease": self._lease(facts),
        }
        own = self._cache_call(args, facts)
        answer = (own.get("bundles") or {}).get(key)
        if not answer:
            return own
        record = parse_record(answer, limit)
        received = None
        if record["files"]:
            received = records.incoming(record["sha256"])
            source = self._connection._shell.join_path(export, record["sha256"])
            fetch(self._connection, source, received, record["bytes"])
            if file_hash(received) != record["sha256"]:
                received.unlink()
                raise AnsibleError("what arrived here does not have the SHA-256 of what was packed")
        records.add(key, {**record, "host": self._host(facts), "instance": instance["name"]}, received)
        return own

    def _cache_call(self, args: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
        """Return the module's result; a failure there is only a warning, as it merely makes a start slow."""
        found: dict[str, Any] = self._execute_module(module_name=MODULE, module_args=args, task_vars=facts)
        if found.get("failed"):
            text = _cold(args["instances"], found.get("msg") or "no message")
            return {
                "changed": False,
                "warnings": [text],
                **{key: found[key] for key in ("class", "why") if key in found},
            }
        return found

    def _temporary(self) -> str:
        """Return a directory of this task on the node, which the connection's user can read."""
        if not self._connection._shell.tmpdir:
            self._make_tmp_path()
        return str(self._connection._shell.tmpdir)

    def _limit(self, facts: Mapping[str, Any], limit: int | None) -> int:
        given = limit if limit is not None else facts.get(LIMIT, DEFAULT_LIMIT)
        return int(self._templar.template(given))


def servers_with_key(servers: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return name and key of the servers that have one."""
    return [
        {"name": str(item["name"]), "cache_key": str(item["cache_key"])}
        for item in servers
        if item.get("cache_key")
    ]


def _cold(instances: Iterable[Mapping[str, str]], why: object) -> str:
    names = ", ".join(item["name"] for item in instances)
    return f"{names}: caches were neither kept nor restored, which only makes starts slow: {why}"
