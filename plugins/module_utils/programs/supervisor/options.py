# SPDX-License-Identifier: Apache-2.0
"""The command line of the supervisor.

--state DIR             directory of state.json and failure-N.log (default: /cache/supervise)
--gpu renderDNNN        wait until this GPU's memory is free before vLLM starts; repeatable

--group ADDRESS:PORT    where rank 0 of an engine that spans hosts listens, and the other ranks connect
--rank K                rank of this host, from 0
--hosts NAME,NAME,…     inventory names of the hosts by rank; the same on all ranks
--engine NAME           name that the ranks of one engine share; a rank with another name is refused

--ray-head PORT         start Ray's head here, wait for all its nodes, then run vLLM (rank 0)
--ray-worker ADDRESS:PORT   join the Ray cluster of that head and run no vLLM (all other ranks)
--ray-ip ADDRESS        this host's address in the Ray cluster
--ray-gpus N            GPUs that this host offers to Ray
--ray-cpus N            CPUs that this host offers to Ray (default: Ray counts them)
--ray-arg=WORD          an additional argument of `ray start`; repeatable

--signatures FILE       failure signatures (default: failure_signatures.json next to the program)

--time NAME=SECONDS     change a value of Times or HeartbeatTimes; repeatable
--sysfs DIR             use another directory than /sys, for tests
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields

from ...engines.failures import SIGNATURES_FILE
from .link import HeartbeatTimes, Membership, parse_address
from .ray import Ray


@dataclass(frozen=True)
class Times:
    """Seconds. gpu: until GPUs that are not clean are a failure; poll: between two checks of the GPUs; tell: between
    two messages about them; stop: for vLLM to end after another rank ended; grace: between SIGTERM and SIGKILL for
    remaining processes; settle: to find the cause of an end here, and twice that to be told by another rank; ray:
    for the Ray cluster to form; leave: at most for load balancers to notice that it stops, which they do within two of
    their checks, one a second; hang: without progress in spite of requests, or without any answer before the first
    token, until the engine counts as hung, 0: never; look: between two looks at the engine.
    """

    gpu: float = 600.0
    poll: float = 2.0
    tell: float = 30.0
    stop: float = 30.0
    grace: float = 10.0
    settle: float = 2.0
    ray: float = 180.0
    leave: float = 8.0
    # Twice what vLLM itself allows for one step of the model: VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS, 300.
    hang: float = 600.0
    look: float = 10.0


@dataclass(frozen=True)
class Options:
    """The parsed command line."""

    argv: tuple[str, ...]
    state: str
    signatures: str
    gpus: tuple[str, ...]
    sysfs: str
    times: Times
    pulse: HeartbeatTimes
    member: Membership | None
    ray: Ray | None


def parse(argv: Sequence[str]) -> Options:
    """Parse the command line; exit with code 2 if it is wrong."""
    parser = _parser()
    if "--" not in argv:
        parser.error("-- and the command to run are missing")
    border = list(argv).index("--")
    known = parser.parse_args(list(argv[:border]))
    command = tuple(argv[border + 1 :])
    if not command:
        parser.error("the command to run must follow --")
    try:
        times = _times(known.time)
        member = _member(known)
        ray = _ray(known, member)
    except ValueError as error:
        parser.error(str(error))
    pulse = {item.name for item in fields(HeartbeatTimes)}
    return Options(
        command,
        known.state,
        known.signatures,
        tuple(known.gpu),
        known.sysfs,
        Times(**{name: value for name, value in times.items() if name not in pulse}),
        HeartbeatTimes(**{name: value for name, value in times.items() if name in pulse}),
        member,
        ray,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="supervise.py", allow_abbrev=False, usage="see the program's text")
    parser.add_argument("--state", default="/cache/supervise")
    beside = os.path.dirname(os.path.abspath(sys.argv[0]))
    parser.add_argument("--signatures", default=os.path.join(beside, SIGNATURES_FILE))
    parser.add_argument("--sysfs", default="/sys")
    parser.add_argument("--rank", type=int, default=0)
    for name in ("--gpu", "--time", "--ray-arg"):
        parser.add_argument(name, action="append", default=[])
    texts = ("--group", "--hosts", "--engine", "--ray-head", "--ray-worker", "--ray-ip", "--ray-gpus")
    for name in (*texts, "--ray-cpus"):
        parser.add_argument(name, default="")
    return parser


def _times(given: Sequence[str]) -> dict[str, float]:
    names = [item.name for kind in (Times, HeartbeatTimes) for item in fields(kind)]
    found = {}
    for text in given:
        name, _unused, value = text.partition("=")
        if name not in names:
            raise ValueError(f"--time: {name} is not one of {', '.join(names)}")
        found[name] = float(value)
    return found


def _member(known: argparse.Namespace) -> Membership | None:
    if not known.group:
        return None
    hosts = tuple(known.hosts.split(","))
    if len(hosts) < 2 or not 0 <= known.rank < len(hosts):
        raise ValueError(f"--hosts {known.hosts}: rank {known.rank} is not among two hosts or more")
    return Membership(parse_address(known.group), known.rank, hosts, known.engine)


def _ray(known: argparse.Namespace, member: Membership | None) -> Ray | None:
    if not known.ray_head and not known.ray_worker:
        return None
    if member is None or bool(known.ray_head) != (member.rank == 0) or not known.ray_ip:
        raise ValueError(
            "Ray needs --group and --ray-ip; --ray-head is for rank 0, --ray-worker for the others"
        )
    address = f"{known.ray_ip}:{known.ray_head}" if known.ray_head else known.ray_worker
    return Ray(
        bool(known.ray_head), address, known.ray_ip, known.ray_gpus, known.ray_cpus, tuple(known.ray_arg)
    )
