# SPDX-License-Identifier: Apache-2.0
"""Copy files of the control node into a node's content store, or from there to the control node.

Documentation: plugins/modules/control_files.py (`ansible-doc -t module instinct.fleet.control_files`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError, Problem
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.leased_action import LeasedAction
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.file_hash import file_hash
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.node_answers import (
    AnswerError,
    fetch,
    known_request,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.text import printable
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.control_node.named_files import (
    inventory_lines,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.control_node.placed_files import (
    PlacedFile,
    changed_files,
    parse_files,
    place_file,
    refuse_full_disk,
)

BATCH = 1 << 28
"""Bytes that are in the remote user's temporary directory at once; a larger file is there alone."""
EXPORTED = "exported"  # the file there that is fetched; each has this name in turn


class ActionModule(LeasedAction):
    """control_files."""

    TRANSFERS_FILES = False

    def call(self, args: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
        """Return the result of sending or receiving."""
        try:
            if args.get("state") == "received":
                return self._received(args, facts)
            return self._sent(args, facts)
        except (AnswerError, FleetError, OSError) as error:
            return {"failed": True, "changed": False, "msg": printable(str(error))}

    def _sent(self, args: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
        sources = {str(item["path"]): Path(item["source"]) for item in args.get("files") or ()}
        hashes = {path: file_hash(source) for path, source in sorted(sources.items())}
        by_hash = {sha256: sources[path] for path, sha256 in hashes.items()}
        sizes = {sha256: source.stat().st_size for sha256, source in by_hash.items()}
        files = [{"path": path, "size": sizes[sha256], "sha256": sha256} for path, sha256 in hashes.items()]
        given = {**args, "files": files}
        first = super().call({**given, "received": {}}, facts)
        if not first.get("missing") or self._task.check_mode:
            return first
        last = first
        wanted = [known_request(sha256, by_hash) for sha256 in first["missing"]]
        for batch in _batches({sha256: sizes[sha256] for sha256 in wanted}):
            received = {sha256: self._put(by_hash[sha256], sha256) for sha256 in batch}
            self._fixup_perms2((self._connection._shell.tmpdir, *received.values()), execute=False)
            last = super().call({**given, "received": received}, facts)
            if last.get("failed") or last.get("unreachable"):
                return last
        return {**last, "diff": first["diff"]}

    def _put(self, source: Path, sha256: str) -> str:
        """Copy a file into the remote user's temporary directory, as a stream, and return its path there."""
        return str(self._transfer_file(str(source), self._temporary(sha256)))

    def _received(self, args: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
        files, directory = parse_files(args.get("files") or ()), Path(str(args["directory"]))
        missing = changed_files(files, directory)
        if not self._task.check_mode:
            refuse_full_disk(missing, directory)
        for item in () if self._task.check_mode else missing:
            failed = self._exported(item.sha256, args, facts)
            if failed:
                return failed
            place_file(item, directory, self._fetch)
        lines = inventory_lines([item.path for item in files], str(directory))
        text = "\n".join(["\nIn the inventory, write:", *(f"  {line}" for line in lines)])
        self._display.display(printable(text))
        names = [item.path for item in missing]
        return {
            "changed": bool(missing),
            "actions": [f"place {name} in {directory}" for name in names],
            "inventory": lines,
            "diff": {"before": {"missing": names}, "after": {"missing": []}},
        }

    def _exported(self, sha256: str, args: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
        """Copy a blob, which only root reads, for the connection's user. Return the module's result if it fails."""
        found = super().call({**args, "export": {sha256: self._temporary(EXPORTED)}}, facts)
        return found if found.get("failed") or found.get("unreachable") else {}

    def _fetch(self, item: PlacedFile, target: Path) -> None:
        """Copy the exported blob to the control node, as a stream."""
        source = self._temporary(EXPORTED)
        try:
            fetch(self._connection, source, target, item.size)
        except AnsibleError as error:
            what = f"{source} cannot be copied to the control node: {error}"
            fix = "Check the connection and this machine's disk, and run again."
            raise FleetError([Problem((), what, fix)]) from error

    def _temporary(self, name: str) -> str:
        """Return a path in the remote user's temporary directory, which is removed when the task ends."""
        shell = self._connection._shell
        if shell.tmpdir is None:
            self._make_tmp_path()
        return str(shell.join_path(shell.tmpdir, name))


def _batches(missing: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield blobs that are together not larger than BATCH, or one that is."""
    batch: list[str] = []
    size = 0
    for sha256, own in missing.items():
        if batch and size + own > BATCH:
            yield batch
            batch, size = [], 0
        batch.append(sha256)
        size += own
    if batch:
        yield batch
