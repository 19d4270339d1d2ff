# SPDX-License-Identifier: Apache-2.0
"""Runs on a node: changes of partition modes, one per line of JSON on stdin, each in a process of its own.

What it runs is what the module rocm_partition runs, without Ansible's start-up per case. Its clock goes ten
times as fast, or `speed` times; for programs too where one is to be killed, as it `hangs`: else they take the time that
a busy machine needs. `kill_at` ends the process without a word when the journal says that a step begins.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.partition.backends import Command
from ansible_collections.instinct.fleet.plugins.module_utils.partition.converge import change, services_of
from ansible_collections.instinct.fleet.plugins.module_utils.partition.journal import Journal
from ansible_collections.instinct.fleet.plugins.module_utils.partition.modes import CommandResult
from ansible_collections.instinct.fleet.plugins.module_utils.partition.node import PartitionNode
from ansible_collections.instinct.fleet.plugins.module_utils.partition.request import PartitionRequest

SPEED = 10.0


class FastNode(PartitionNode):
    """The node, in a hurry; it may come to a sudden end."""

    def __init__(self, kill_at: str | None, speed: float, hangs: bool) -> None:
        super().__init__()
        self.kill_at = kill_at
        self.speed = speed
        self.hangs = hangs

    def now(self) -> float:
        return time.monotonic() * self.speed

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / self.speed)

    def run(self, command: Command, timeout: float) -> CommandResult:
        return super().run(command, timeout / self.speed if self.hangs else timeout)

    def tools(self) -> tuple[dict[str, str | None], str | None]:
        self.die("check")
        return super().tools()

    def save_journal(self, journal: Journal) -> None:
        super().save_journal(journal)
        self.die(journal.step)

    def die(self, step: str) -> None:
        if step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def case(order: dict[str, Any]) -> dict[str, Any]:
    """The result of one change."""
    if order.get("user"):
        os.setuid(order["user"])
    request = PartitionRequest(**{**order["request"], "servers": services_of(order.get("servers", []))})
    try:
        node = FastNode(order.get("kill_at"), order.get("speed", SPEED), order.get("hangs", False))
        return asdict(change(node, request, order.get("check", False)))
    except NodeError as error:
        return {"error": str(error), "refused": True, "actions": [], "warnings": [], "changed": False}


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer orders until stdin ends: each by a fork of this process, which has everything loaded already."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                start = time.monotonic()
                result = answer(json.loads(line))
                print(json.dumps({**result, "seconds": round(time.monotonic() - start, 2)}), flush=True)
                status = 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(status)
        ended = (0, 0)
        while ended[0] != child:  # as process 1 of a host we are asked for what lost its parent, too
            ended = os.wait()
        if ended[1]:
            print(json.dumps({"killed": os.WTERMSIG(ended[1]), "status": ended[1]}), flush=True)


if __name__ == "__main__":
    serve(case)
