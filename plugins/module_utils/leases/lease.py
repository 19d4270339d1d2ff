# SPDX-License-Identifier: Apache-2.0
"""Let one run at a time change a node: who may continue, who takes over, and whose plan is out of date.

docs/adr/one-writer.md says why.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, Callable

from ..common import paths
from ..common.files import make_private
from ..common.module_main import NodeError
from . import lease_file
from .lease_file import OTHER_RUN, at_work, lock_of, now, seconds_left

STALE_PLAN = "stale_plan"
HOLD = 120.0  # seconds in which the next call of a run comes
WAIT = 300.0  # seconds until a call of a run that is over has ended
KEPT = 8  # runs that a lease followed
LEASE_OPTION = {"lease": {"type": "dict"}}
_POLL = 0.2


def refusal(given: Mapping[str, Any], found: Mapping[str, Any], live: bool) -> str:
    """Return why a call may not change the node ("" if it may).

    given: run, void (runs that are known to be over), take_over, and seen: the tag in the run's plan, None without one.
    found: the lease. live: whether its run continues, as far as the node knows.
    """
    run, tag = found.get("run", ""), found.get("tag", "")
    followed = given["run"] in found.get("before", ())
    # A run that was taken over does not take the lease back.
    if live and run not in ("", given["run"], *given["void"]) and (followed or not given["take_over"]):
        return OTHER_RUN
    own = not tag or tag.startswith(f"{given['run']}:")
    return STALE_PLAN if followed or not (own or given["seen"] in (None, tag)) else ""


def run_leased(
    module: Any, work: Callable[[], Any], drained: Callable[[str], bool] | None = None
) -> Callable[[], Any]:
    """Return `work` under the lease that the module's action plugin gave.

    drained: whether a run has servers out of this load balancer. Its lease lasts longer then.
    """

    def working() -> Any:
        given = module.params["lease"]
        if not given or module.check_mode:
            return work()
        make_private(os.path.dirname(lease_file.LEASE))
        file = os.open(lease_file.LEASE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            tags = _take(file, given)
            try:
                result = work()
                tags = {} if result.get("changed", True) else tags
            except BaseException:
                tags = {}
                raise
            finally:
                _leave(file, given, tags, drained)
            return result
        finally:
            os.close(file)

    return working


def _take(file: int, given: Mapping[str, Any]) -> dict[str, str]:
    """Take the lease, and lock the run's byte. Return the former tag by the new one, to put back after no change."""
    run, begun = given["run"], now()
    with _alone(file) as found:
        old, tag = found.get("run", ""), found.get("tag", "")
        left = seconds_left(found, begun)
        live = left > 0 or at_work(file, old)
        why = refusal(given, found, live)
        if why:
            raise _refused(why, found)
        before = [name for name in (old, *found.get("before", ())) if name not in ("", run)][:KEPT]
        mine = {key: given[key] for key in ("run", "who", "command", "started")}
        renewed = f"{run}:{int(tag.rpartition(':')[2] or 0) + 1}" if given["changes"] else tag
        seconds = max(HOLD, left if old == run else 0)
        _write(file, {**mine, "tag": renewed, "before": before, "at": begun, "seconds": seconds})
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock_of(fcntl.F_RDLCK, run))
    taken = live and old not in ("", run, *given["void"])
    if taken:
        _note(f"{given['who']} ({given['command']}) took over from {found['who']} ({found['command']})")
    working = {name for name in before if at_work(file, name)}
    while any(at_work(file, name) for name in working):
        if now() > begun + WAIT:
            raise _refused(OTHER_RUN, found)
        time.sleep(_POLL)
    if working - set(given["void"]):  # it continued to change what this run's plan saw
        raise _refused(STALE_PLAN, found)
    return {} if taken else {renewed: tag}


def _leave(
    file: int, given: Mapping[str, Any], tags: Mapping[str, str], drained: Callable[[str], bool] | None
) -> None:
    """Let the lease last for the run's next call."""
    with _alone(file) as found:
        if found["run"] != given["run"]:  # another one took over
            return
        seconds = max(HOLD, seconds_left(found, now()))
        if drained:
            seconds = max(HOLD, given["hold"]) if drained(given["run"]) else HOLD
        _write(file, {**found, "tag": tags.get(found["tag"], found["tag"]), "at": now(), "seconds": seconds})


@contextlib.contextmanager
def _alone(file: int) -> Iterator[dict[str, Any]]:
    """Return the lease, which nobody else reads or writes in the meantime."""
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield dict(json.loads(os.pread(file, 4096, 0) or "{}"))
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _write(file: int, lease: Mapping[str, Any]) -> None:
    os.pwrite(file, json.dumps(lease).encode().ljust(os.fstat(file).st_size), 0)


def _note(line: str) -> None:
    os.makedirs(paths.STATE_DIR, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    journal = os.open(f"{paths.STATE_DIR}/journal.log", flags, 0o600)
    try:
        os.write(journal, f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}\n".encode())
    finally:
        os.close(journal)


def _refused(why: str, found: Mapping[str, Any]) -> NodeError:
    return NodeError(
        "Another run changes this node.", **{"class": OTHER_RUN, "why": why, "lease": dict(found)}
    )
