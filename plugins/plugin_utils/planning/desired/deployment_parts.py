# SPDX-License-Identifier: Apache-2.0
"""Validate the parts of a deployment: image or build, GPUs, environment, container."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ....module_utils.common.errors import Path, suggest
from ....module_utils.common.hashing import canonical, text_hash
from ....module_utils.common.redact import MIN_LENGTH
from ...base.checker import Checker, KeyReader, kind
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
DOCKERFILE = "docker/Dockerfile.rocm"
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

    push_to: the repository of a registry from which other hosts pull it, "" for none; it does not change the image.
    """

    repo: str
    ref: str
    dockerfile: str
    args: tuple[tuple[str, str], ...]
    tag: str
    target: str = field(
        default="", repr=False
    )  # the tag depends on it already, and keys of starts contain the text of a build as it was before
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

    numa: "local" keeps an instance on the CPUs of its GPUs' NUMA node, if they share one. hang_timeout: after how long
    the engine is restarted if it makes no progress although it has requests, or answers nothing before the first token;
    0: never.
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


def image_or_build(keys: KeyReader, name: str) -> tuple[str, Build | None]:
    """Return the image of a deployment, or the build that makes it; neither after a problem. name: the deployment's."""
    check, path = keys.check, keys.path
    if "image" in keys and "build" in keys:
        check.wrong(
            path, "has both image and build.", "Keep one: image is pulled, build is built on one host."
        )
        return "", None
    if "image" not in keys and "build" not in keys:
        check.wrong(path, "has neither image nor build.", "Add image: with the reference of a vLLM image.")
        return "", None
    meaning = "a reference with a tag or a digest: registry/repository:tag or registry/repository@sha256:…"
    return keys.text("image", IMAGE, meaning), keys.parse("build", None, partial(_build, check, name))


def _build(check: Checker, name: str, value: Any, path: Path) -> Build:
    given = check.mapping(value, path, BUILD_KEYS)
    keys = KeyReader(check, {key: item for key, item in given.items() if item is not None}, path)
    keys.require("repo", "ref")
    args: tuple[tuple[str, str], ...] = keys.parse("args", (), partial(_build_args, check))
    url = r"([a-z+]+://|/|[^\s@/]+@[^\s:/]+:)\S+"
    repo = keys.parse("repo", "", lambda item, where: check.url(item, where, url, "a URL that git can clone"))
    ref = keys.text("ref", r"[^\s~^:?*\[\\]+", "a branch, tag or commit")
    dockerfile = keys.text("dockerfile", r"[^/\s][^\s]*", "a path inside the repository", DOCKERFILE)
    target = keys.text("target", r"[A-Za-z0-9][A-Za-z0-9_.-]*", "the name of a stage of the Dockerfile")
    tag = keys.text("tag", IMAGE, "a reference with a tag", f"instinct-fleet/{name or 'x'}:build")
    meaning = "a repository of a registry without a tag: registry.example/path"
    push_to = keys.text("push_to", REPOSITORY, meaning)
    # The tag ends in a hash of what is built, so that a changed build is another image.
    inputs = [repo, ref, dockerfile, list(args), *([target] if target else [])]
    recipe = text_hash(canonical(inputs))[:12]
    return Build(repo, ref, dockerfile, args, f"{tag}-{recipe}", target, push_to)


def _build_args(check: Checker, value: Any, path: Path) -> tuple[tuple[str, str], ...]:
    args = []
    for key, item in check.mapping(value, path).items():
        where: Path = (*path, key)
        if secret_place(key):
            what = "is a secret, and build arguments stay in the image's history and in the process list."
            check.wrong(where, what, "Leave it out; clone with credentials of the node instead.")
        elif refuses_secret(check, item, where):
            continue
        elif isinstance(item, (str, int, float)) and not isinstance(item, bool):
            args.append((key, str(item)))
        else:
            check.wrong(where, f"must be text or a number, not {kind(item)}.")
    return tuple(sorted(args))


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
                check.wrong(where, "contains a NUL character.")
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
            fix = f"It needs at least {MIN_LENGTH} characters. A shorter value is not a secret, and belongs in env."
            check.wrong(where, "is too short to be kept out of messages, or contains a NUL character.", fix)
        else:
            found.append((key, str(item)))
    return tuple(sorted(found))


def container_runtime(check: Checker, value: Any, path: Path) -> Runtime:
    given = check.mapping(value, path, RUNTIME_KEYS)
    keys = KeyReader(check, {key: item for key, item in given.items() if item is not None}, path)
    base = Runtime()
    return Runtime(
        extra_mounts=keys.parse("extra_mounts", (), partial(_mounts, check)),
        privileged=keys.boolean("privileged", base.privileged),
        shm_size=keys.size("shm_size", base.shm_size),
        ipc=keys.choice("ipc", base.ipc, ("host", "private")),
        memory=keys.size("memory", 0) or None,
        numa=keys.choice("numa", base.numa, NUMA),
        ulimits=keys.parse("ulimits", DEFAULT_ULIMITS, partial(_ulimits, check)),
        restart=keys.choice("restart", base.restart, ("unless-stopped", "on-failure", "no")),
        stop_timeout=keys.integer("stop_timeout", base.stop_timeout, 1, 3600),
        ready_timeout=keys.integer("ready_timeout", base.ready_timeout, 1, 86400),
        hang_timeout=keys.integer("hang_timeout", base.hang_timeout, 0, 86400),
        cap_add=keys.parse("cap_add", (), partial(_capabilities, check)),
    )


def _mounts(check: Checker, value: Any, path: Path) -> tuple[str, ...]:
    mounts = check.texts(value, path)
    for index, mount in enumerate(mounts):
        parts = mount.split(":")
        if not (
            len(parts) in (2, 3)
            and parts[0].startswith("/")
            and parts[1].startswith("/")
            and all(option in ("ro", "rw") for option in parts[2:])
        ):
            fix = "Write /path/on/node:/path/in/container or the same with :ro."
            check.wrong((*path, index), f"{mount!r} is not a mount.", fix)
    return mounts


def _capabilities(check: Checker, value: Any, path: Path) -> tuple[str, ...]:
    """Return the names of capabilities, each once."""
    names = check.texts(value, path)
    for at, name in enumerate(names):
        if name not in CAPABILITIES:
            check.wrong((*path, at), f"{name!r} is not a Linux capability.", suggest(name, CAPABILITIES))
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
