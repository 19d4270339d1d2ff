# SPDX-License-Identifier: Apache-2.0
"""Validate the parts of a deployment: image or build, GPUs, environment, container."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ....module_utils.common.errors import Path, suggest
from ....module_utils.common.hashing import canonical, text_hash
from ....module_utils.common.redact import MIN_LENGTH
from ...base.checker import Checker, kind
from .engine_options import refuses_secret
from .reserved_flags import ENV_OWNED, other_place, secret_place

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
IMAGE = (
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]+)?/)?"
    r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}|@sha256:[0-9a-f]{64}"
    r"|:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}@sha256:[0-9a-f]{64})"
)
BUILD_KEYS = ("repo", "ref", "dockerfile", "target", "args", "tag", "push_to")
REPOSITORY = r"[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+"
RUNTIME_KEYS = (
    "privileged", "shm_size", "ipc", "memory", "numa", "extra_mounts", "ulimits", "restart", "stop_timeout",
    "ready_timeout", "hang_timeout", "cap_add",
)  # fmt: skip
CAPABILITIES = (
    "AUDIT_CONTROL", "AUDIT_READ", "AUDIT_WRITE", "BLOCK_SUSPEND", "BPF", "CHECKPOINT_RESTORE", "CHOWN",
    "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "IPC_LOCK", "IPC_OWNER", "KILL", "LEASE",
    "LINUX_IMMUTABLE", "MAC_ADMIN", "MAC_OVERRIDE", "MKNOD", "NET_ADMIN", "NET_BIND_SERVICE",
    "NET_BROADCAST", "NET_RAW", "PERFMON", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYSLOG", "SYS_ADMIN",
    "SYS_BOOT", "SYS_CHROOT", "SYS_MODULE", "SYS_NICE", "SYS_PACCT", "SYS_PTRACE", "SYS_RAWIO",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "WAKE_ALARM",
)  # fmt: skip
"""Those of capabilities(7), as Docker names them."""
NUMA = ("local", "any")
ULIMITS = (
    "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss",
    "rtprio", "rttime", "sigpending", "stack",
)  # fmt: skip
# memlock: RCCL registers memory with RDMA NICs; nofile: the queues of 64 partitions exhaust the default.
DEFAULT_ULIMITS = (("memlock", -1, -1), ("nofile", 1048576, 1048576))


@dataclass(frozen=True)
class Build:
    """An image that one host builds from a Dockerfile of a git repository. target: its stage, "" for the last.

    push_to: the repository of a registry from which other hosts pull it, "" for none; it makes no other image.
    """

    repo: str
    ref: str
    dockerfile: str
    args: tuple[tuple[str, str], ...]
    tag: str
    target: str = field(
        default="", repr=False
    )  # the tag tells it; start keys have the text of what was there before
    push_to: str = field(default="", repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the arguments of the module vllm_image."""
        return {
            "repo": self.repo,
            "ref": self.ref,
            "dockerfile": self.dockerfile,
            **({"target": self.target} if self.target else {}),
            "args": dict(self.args),
            "tag": self.tag,
        }


@dataclass(frozen=True)
class Runtime:
    """The container's runtime options; sizes in bytes, timeouts in seconds.

    numa: "local" keeps an instance on the CPUs of its GPUs' NUMA node, if they share one. hang_timeout: without
    progress in spite of requests, or without any answer before the first token, until the engine is started again; 0:
    never.
    """

    privileged: bool = False
    shm_size: int = 16 << 30
    ipc: str = "host"
    memory: int | None = None
    numa: str = "local"
    extra_mounts: tuple[str, ...] = ()
    ulimits: tuple[tuple[str, int, int], ...] = DEFAULT_ULIMITS
    restart: str = "unless-stopped"
    stop_timeout: int = 120
    ready_timeout: int = 1800
    hang_timeout: int = 600
    cap_add: tuple[str, ...] = ()


def image_or_build(check: Checker, values: dict[str, Any], path: Path, name: str) -> tuple[str, Build | None]:
    if "image" in values and "build" in values:
        check.wrong(
            path, "has both image and build.", "Keep one: image is pulled, build is built on one host."
        )
        return "", None
    if "image" in values:
        meaning = (
            "a reference with a tag or a digest: registry/repository:tag or registry/repository@sha256:…"
        )
        return check.text(values["image"], (*path, "image"), "", IMAGE, meaning), None
    if "build" not in values:
        check.wrong(path, "has neither image nor build.", "Add image: with the reference of a vLLM image.")
        return "", None
    where: Path = (*path, "build")
    build = {k: v for k, v in check.mapping(values["build"], where, BUILD_KEYS).items() if v is not None}
    for key in ("repo", "ref"):
        if key not in build:
            check.wrong(where, f"the key {key} is missing.", f"Add {key}: to it.")
    args = []
    for key, value in check.mapping(build.get("args", {}), (*where, "args")).items():
        secret = secret_place(key)
        if secret:
            what = "is a secret, and build arguments stay in the image's history and in the process list."
            check.wrong(
                (*where, "args", key), what, "Leave it out; clone with credentials of the node instead."
            )
        elif refuses_secret(check, value, (*where, "args", key)):
            continue
        elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
            args.append((key, str(value)))
        else:
            check.wrong((*where, "args", key), f"must be text or a number, not {kind(value)}.")
    repo = check.url(
        build.get("repo", "x://x"),
        (*where, "repo"),
        r"([a-z+]+://|/|[^\s@/]+@[^\s:/]+:)\S+",
        "a URL that git can clone",
    )
    ref = check.text(
        build.get("ref", "x"), (*where, "ref"), "", r"[^\s~^:?*\[\\]+", "a branch, tag or commit"
    )
    dockerfile = check.text(
        build.get("dockerfile", "docker/Dockerfile.rocm"),
        (*where, "dockerfile"),
        "",
        r"[^/\s][^\s]*",
        "a path inside the repository",
    )
    target = ""
    if "target" in build:
        pattern, meaning = r"[A-Za-z0-9][A-Za-z0-9_.-]*", "the name of a stage of the Dockerfile"
        target = check.text(build["target"], (*where, "target"), "", pattern, meaning)
    tag = check.text(
        build.get("tag", f"instinct-fleet/{name or 'x'}:build"),
        (*where, "tag"),
        "",
        IMAGE,
        "a reference with a tag",
    )
    push_to = ""
    if "push_to" in build:
        meaning = "a repository of a registry without a tag: registry.example/path"
        push_to = check.text(build["push_to"], (*where, "push_to"), "", REPOSITORY, meaning)
    # The tag ends in a hash of what is built, so that a changed build is another image.
    inputs = [repo, ref, dockerfile, sorted(args), *([target] if target else [])]
    recipe = text_hash(canonical(inputs))[:12]
    return "", Build(repo, ref, dockerfile, tuple(sorted(args)), f"{tag}-{recipe}", target, push_to)


def gpu_list(check: Checker, value: Any, path: Path) -> tuple[int, ...]:
    found: list[int] = []
    for index, item in enumerate(check.listing(value, path)):
        gpu = check.integer(item, (*path, index), -1, 0, 511)
        if gpu in found:
            check.wrong((*path, index), f"GPU {gpu} is named twice.", "Name each GPU once.")
        elif gpu >= 0:
            found.append(gpu)
    if isinstance(value, (list, tuple)) and not value:
        check.wrong(path, "must not be empty.", "Leave it out to use the host's GPUs in order.")
    return tuple(found)


def environment(check: Checker, value: Any, path: Path) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    for key, item in check.mapping(value, path).items():
        where: Path = (*path, key)
        secret = secret_place(key)
        if not ENV_NAME.fullmatch(key):
            check.wrong(where, "is not the name of an environment variable.")
        elif secret:
            check.wrong(where, "is a secret, and would be readable in the instance's files.", secret)
        elif key in ENV_OWNED:
            check.wrong(where, "is set by the toolkit.", ENV_OWNED[key])
        elif refuses_secret(check, item, where):
            continue
        elif isinstance(item, bool):
            fix = 'Put it in quotes, as the variable wants it: "1", "0", "true" or "false".'
            check.wrong(where, "is a boolean, and variables are text.", fix)
        elif isinstance(item, (str, int, float)):
            if "\0" in str(item):
                check.wrong(where, "holds a NUL character.")
            found.append((key, str(item)))
        else:
            check.wrong(where, f"must be text or a number, not {kind(item)}.")
    return tuple(sorted(found))


def secret_variables(check: Checker, value: Any, path: Path) -> tuple[tuple[str, str], ...]:
    """Return the secret variables of a deployment. No message repeats a value."""
    found: list[tuple[str, str]] = []
    for key, item in check.mapping(value, path).items():
        where: Path = (*path, key)
        elsewhere = ENV_OWNED.get(key) or other_place(key)
        if not ENV_NAME.fullmatch(key):
            check.wrong(where, "is not the name of an environment variable.")
        elif elsewhere:
            check.wrong(where, "is set by the toolkit.", elsewhere)
        elif not isinstance(item, str):
            check.wrong(where, f"must be text, not {kind(item)}.", "Put it in quotes.")
        elif len(item.strip()) < MIN_LENGTH or "\0" in item:
            fix = f"It needs {MIN_LENGTH} characters at least. What is shorter is no secret, and belongs into env."
            check.wrong(where, "is too short to be kept out of messages, or holds a NUL character.", fix)
        else:
            found.append((key, str(item)))
    return tuple(sorted(found))


def container_runtime(check: Checker, value: Any, path: Path) -> Runtime:
    values = {k: v for k, v in check.mapping(value, path, RUNTIME_KEYS).items() if v is not None}
    base = Runtime()
    mounts = check.texts(values.get("extra_mounts", []), (*path, "extra_mounts"))
    for index, mount in enumerate(mounts):
        parts = mount.split(":")
        if not (
            len(parts) in (2, 3)
            and parts[0].startswith("/")
            and parts[1].startswith("/")
            and all(option in ("ro", "rw") for option in parts[2:])
        ):
            fix = "Write /path/on/node:/path/in/container or the same with :ro."
            check.wrong((*path, "extra_mounts", index), f"{mount!r} is not a mount.", fix)
    return Runtime(
        privileged=check.boolean(values.get("privileged", base.privileged), (*path, "privileged"), False),
        shm_size=check.size(values.get("shm_size", base.shm_size), (*path, "shm_size"), base.shm_size),
        ipc=check.choice(values.get("ipc", base.ipc), (*path, "ipc"), base.ipc, ("host", "private")),
        memory=check.size(values["memory"], (*path, "memory"), 1) if "memory" in values else None,
        numa=check.choice(values.get("numa", base.numa), (*path, "numa"), base.numa, NUMA),
        extra_mounts=mounts,
        ulimits=_ulimits(check, values.get("ulimits", {}), (*path, "ulimits")),
        restart=check.choice(
            values.get("restart", base.restart),
            (*path, "restart"),
            base.restart,
            ("unless-stopped", "on-failure", "no"),
        ),
        stop_timeout=check.integer(
            values.get("stop_timeout", base.stop_timeout), (*path, "stop_timeout"), base.stop_timeout, 1, 3600
        ),
        ready_timeout=check.integer(
            values.get("ready_timeout", base.ready_timeout),
            (*path, "ready_timeout"),
            base.ready_timeout,
            1,
            86400,
        ),
        hang_timeout=check.integer(
            values.get("hang_timeout", base.hang_timeout),
            (*path, "hang_timeout"),
            base.hang_timeout,
            0,
            86400,
        ),
        cap_add=_capabilities(check, values.get("cap_add", []), (*path, "cap_add")),
    )


def _capabilities(check: Checker, value: Any, path: Path) -> tuple[str, ...]:
    """Return the names of capabilities, each once."""
    names = check.texts(value, path)
    for at, name in enumerate(names):
        if name not in CAPABILITIES:
            check.wrong((*path, at), f"{name!r} is no Linux capability.", suggest(name, CAPABILITIES))
    return tuple(sorted({*names}))


def _ulimits(check: Checker, value: Any, path: Path) -> tuple[tuple[str, int, int], ...]:
    limits = {name: (soft, hard) for name, soft, hard in DEFAULT_ULIMITS}
    for name, limit in check.mapping(value, path, ULIMITS).items():
        where: Path = (*path, name)
        if limit is False:
            limits.pop(name, None)
        elif isinstance(limit, Mapping):
            pair = check.mapping(limit, where, ("soft", "hard"))
            hard = check.integer(pair.get("hard", -1), (*where, "hard"), -1, -1, 1 << 62)
            soft = check.integer(pair.get("soft", hard), (*where, "soft"), -1, -1, 1 << 62)
            limits[name] = (soft, hard)
        else:
            number = check.integer(limit, where, -1, -1, 1 << 62)
            limits[name] = (number, number)
    return tuple((name, soft, hard) for name, (soft, hard) in sorted(limits.items()))
