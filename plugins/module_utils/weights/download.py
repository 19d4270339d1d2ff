# SPDX-License-Identifier: Apache-2.0
"""Download a model to a node: one container per model and commit, which outlives the controller."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ..common.abandoned import leave_if_abandoned
from ..common.disk_space import free_bytes, human_size
from ..common.files import write_atomic
from ..common.hashing import canonical, text_hash
from ..common.module_main import NodeError, require_program
from ..content import proxies
from ..disk.beneath import directory_below
from ..docker.client import DockerClient, DockerError, Json, NotFound
from ..docker.containers import create_container, remove_container, wait_container
from ..docker.logs import container_log
from ..engines.failures import tail
from ..leases.run_lock import run_lock
from ..store.blobs import Store
from ..store.manifest import Manifest
from . import cache, from_store, in_store, verify
from .download_errors import DownloadContext, explain, explain_start, parse_report
from .snapshot import Snapshot, check_snapshot, missing_files, remove_file, sizes, wrong

SECRETS_DIR = "/run/instinct-fleet"
LABEL = "instinct-fleet.fetch"
RUNNING, LEFT = "running", "left"
DISK_MARGIN = 16 * 2**20  # bytes that must stay free after the download

_CACHE = "/hf"  # the cache inside the container
_TOKEN = "/run/secrets/hf_token"  # the token inside the container; this is a path
_PROXY = "/run/secrets/hf_proxy"  # the proxies' variables, whose URLs may hold accounts
_CA = "/run/secrets/ca.pem"
# Xet gets large files from hosts that the hub names, past any mirror (huggingface_hub#4475); downloads work without it.
_NO_XET = "HF_HUB_DISABLE_XET"
# Each client reads its own variable. Xet's trusts only what it was built with.
_TRUST = {**dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"), _CA), _NO_XET: "1"}
_HUBS = ("huggingface.co", "hf.co")
_WAIT_SLICE = 5.0  # seconds of one wait request


@dataclass(frozen=True)
class DownloadRequest:
    """The download to make. `token` is a secret and is in no other field; `proxy` may hold one. `timeout`: seconds.

    program: the text of programs/download.py, which runs in the container. verify: hash files that were hashed before.
    proxy: variables of its environment. ca_file: a bundle on the node of the CAs that it trusts in place of its own.
    store: the content store, whose files come before the hub's.
    bandwidth: bytes per second that it may take; 0 for no limit. offline: no hub is asked.
    """

    snapshot: Snapshot
    image: str
    endpoint: str
    token: str
    timeout: int
    max_workers: int
    program: str = ""
    verify: bool = False
    proxy: Mapping[str, str] = field(default_factory=dict)
    ca_file: str = ""
    store: Store = field(default_factory=Store)
    bandwidth: int = 0
    offline: bool = False

    @property
    def container(self) -> str:
        """Return the container's name, the same in every run, so that a second run finds the first one's download."""
        return f"instinct-fetch-{text_hash(f'{self.snapshot.repo}@{self.snapshot.commit}')[:12]}"

    @property
    def spec(self) -> str:
        """Return a hash that identifies a download: the same files into the same cache from the same hub."""
        snapshot = self.snapshot
        parts = [snapshot.cache_dir, snapshot.include, snapshot.exclude, self.endpoint]
        way: list[Any] = [dict(self.proxy), self.ca_file] if self.proxy or self.ca_file else []
        way += [self.bandwidth] if self.bandwidth else []
        return text_hash(canonical([*parts, *way]))[:16]

    @property
    def context(self) -> DownloadContext:
        """Return the facts about the download that messages may contain."""
        snapshot, hub = self.snapshot, self.endpoint or "https://huggingface.co"
        return DownloadContext(
            snapshot.repo,
            snapshot.commit,
            hub,
            snapshot.cache_dir,
            self.image,
            bool(self.token),
            proxies.through_proxy(self.proxy),
        )


def fetch_of(params: Mapping[str, Any]) -> DownloadRequest:
    """Build a download from the module's parameters. Raise NodeError if they are invalid."""
    for name in ("commit", "image"):
        if not params[name]:
            raise NodeError(f"{name} is needed to fetch {params['repo']} from the hub.")
    endpoint = str(params["endpoint"] or "").rstrip("/")
    if "@" in endpoint:
        raise NodeError("endpoint holds an account. Take it out: give the token as token.")
    files: dict[str, int] = {}
    for path, size in params["files"].items():
        try:
            files[str(path)] = int(size)
        except (TypeError, ValueError) as error:
            raise NodeError(f"files: the size of {path} is {size!r}, not a number of bytes.") from error
    snapshot = Snapshot(
        cache_dir=params["cache_dir"],
        repo=params["repo"],
        revision=params["revision"],
        commit=params["commit"],
        files=files,
        include=tuple(params["include"]),
        exclude=tuple(params["exclude"]),
        hashes=_hashes(params["hashes"]),
    )
    check_snapshot(snapshot)
    token = str(params["token"] or "").strip()
    limits = (params["timeout"], params["max_workers"])
    return DownloadRequest(
        snapshot,
        params["image"],
        endpoint,
        token,
        *limits,
        params["program"],
        params["verify"],
        proxies.environment(params["proxy"]),
        proxies.check_ca_file(params["ca_file"]),
        Store(params["store"]),
        params["bandwidth"],
        params["offline"],
    )


def _hashes(given: Mapping[str, Any]) -> dict[str, str]:
    for path, text in given.items():
        if not verify.HASH.fullmatch(str(text)):
            raise NodeError(f"hashes: {text!r} of {path} is neither sha256:… nor git-sha1:… in hex digits.")
    return {str(path): str(text) for path, text in given.items()}


def converge(client: DockerClient, fetch: DownloadRequest, check: bool) -> dict[str, Any]:
    """Download the snapshot if it is incomplete, verify every file, and mark it as complete."""
    with contextlib.nullcontext() if check else run_lock("hf_model", fetch.timeout):
        return _converge(client, fetch, check)


def _converge(client: DockerClient, fetch: DownloadRequest, check: bool) -> dict[str, Any]:
    snapshot = fetch.snapshot
    container = _container(client, fetch)
    found = sizes(snapshot)
    absent = missing_files(snapshot, found)
    # Another download may be writing blobs of the same repository at the same time.
    rubbish = {} if _running(client) else cache.abandoned_downloads(snapshot)
    marked = cache.has_marker(snapshot)
    stored = in_store.stored_snapshot(fetch.store, snapshot) if absent and container != RUNNING else None
    changes = _rubbish_actions(snapshot, rubbish) + planned_actions(fetch, found, container, stored)
    rehash = bool(absent) or container == RUNNING or not marked or fetch.verify
    actions = [*changes, *([f"verify {_amount(snapshot)} by their content"] if rehash else ())]
    if absent or not marked:
        actions.append(f"write {snapshot.repo_dir}/{snapshot.marker_place}")
    before = {"files": len(snapshot.files) - len(absent), "marked": marked}
    changed = bool(changes) or not marked
    result = {
        "changed": changed,
        "actions": actions,
        "bytes": snapshot.bytes,
        "snapshot": snapshot.path,
        "seconds": 0.0,
        "diff": _diff(fetch, before, changed),
    }
    if absent and container != RUNNING:
        if fetch.offline and stored is None and not check:
            raise _not_stored(fetch, absent)
        require_program(fetch.program)
        if stored is None or not fetch.store.beside(snapshot.cache_dir):
            check_disk(fetch, absent, sum(rubbish.values()))
    if check or not actions:
        return result
    started = time.monotonic()
    cache.remove_abandoned(snapshot, rubbish)
    used = snapshot.repository.size(snapshot.marker_place) is not None
    linked = from_store.NOTHING
    if stored is not None:
        cache.remove_marker(snapshot)
        linked = from_store.link(fetch.store, snapshot, stored, absent)
        found = sizes(snapshot)
        absent = missing_files(snapshot, found)
    if absent and container != RUNNING:
        if fetch.offline:
            raise _not_stored(fetch, absent)
        _start(client, fetch, found)
    if absent or container == RUNNING:
        _wait(client, fetch)
    elif container:
        remove_container(client, fetch.container)
    verify.check_sizes(snapshot)
    if not cache.has_ref(snapshot):
        cache.write_ref(snapshot)
    cache.make_readable(snapshot, fetch.store)
    if rehash:
        hashes = _check_content(fetch, linked, used)
        if absent or stored or not marked:
            cache.write_marker(snapshot, hashes)
    warnings = [from_store.wrong_text(fetch.store, snapshot, linked.wrong)] if linked.wrong else []
    return {**result, "seconds": round(time.monotonic() - started, 1), "warnings": warnings}


def _check_content(fetch: DownloadRequest, linked: from_store.LinkedFiles, used: bool) -> dict[str, str]:
    """Compare all files; what came from the store and differs from the lock must not come from there again."""
    source = f"{fetch.context.source} and {fetch.store.root}" if linked.hashes else fetch.context.source
    try:
        return verify.check_content(fetch.snapshot, source, used, linked.hashes)
    except NodeError:
        stored = fetch.store.manifest(in_store.manifest_name(fetch.snapshot)) if linked.hashes else None
        if stored is not None:
            fetch.store.drop(stored)
        raise


def _not_stored(fetch: DownloadRequest, absent: Sequence[str]) -> NodeError:
    return NodeError(
        f"{len(absent)} files of {fetch.context.repo}@{fetch.context.commit[:12]} are not in "
        f"{fetch.store.root}, or had wrong content there (such as {absent[0]}), and with air_gap no hub is asked. "
        "Load a bundle that has them (bundle_load.yml), or look above at why no other host passed them on."
    )


def _running(client: DockerClient) -> bool:
    """Return whether any download runs on this node."""
    return bool(client.json("GET", "/containers/json", {"filters": json.dumps({"label": [LABEL]})}))


def planned_actions(
    fetch: DownloadRequest, found: Mapping[str, int | None], container: str, stored: Manifest | None = None
) -> list[str]:
    """Return what it takes to have every file, in order, the same in check mode.

    container: of _container(). stored: the store has the files.
    """
    snapshot = fetch.snapshot
    absent = missing_files(snapshot, found)
    actions: list[str] = []
    if container == RUNNING:
        actions.append(f"wait for container {fetch.container} (downloads {snapshot.repo}@{snapshot.commit})")
    elif container:
        actions.append(f"DELETE /containers/{fetch.container} (left by an earlier run)")
    if absent and container != RUNNING:
        for name in wrong(snapshot, found):
            path, expected = os.path.join(snapshot.path, name), snapshot.files[name]
            actions.append(f"remove {path} ({found[name]} bytes instead of {expected})")
        amount = f"{len(absent)} files, {human_size(sum(snapshot.files[name] for name in absent))}"
        create = (
            f"POST /containers/create?name={fetch.container} (download {snapshot.repo}@{snapshot.commit}, "
            f"{amount}, into {snapshot.cache_dir})"
        )
        from_here = f"link {snapshot.repo}@{snapshot.commit} from {fetch.store.root} ({amount})"
        actions += [from_here] if stored else [create, f"POST /containers/{fetch.container}/start"]
    if not cache.has_ref(snapshot):
        actions.append(f"write {snapshot.repo_dir}/{snapshot.ref_place}")
    return actions


def _amount(snapshot: Snapshot) -> str:
    return f"{len(snapshot.files)} files ({human_size(snapshot.bytes)})"


def _diff(fetch: DownloadRequest, before: Mapping[str, Any], change: bool) -> dict[str, Any]:
    name = f"{fetch.snapshot.repo}@{fetch.snapshot.commit}"
    after = {"files": len(fetch.snapshot.files), "marked": True} if change else dict(before)
    return {"before": dict(before), "after": after, "before_header": name, "after_header": name}


def _rubbish_actions(snapshot: Snapshot, rubbish: Mapping[str, int]) -> list[str]:
    top = f"{snapshot.repo_dir}/blobs"
    return [
        f"remove {top}/{name} ({human_size(size)} that no download continues from)"
        for name, size in rubbish.items()
    ]


def check_disk(fetch: DownloadRequest, absent: Sequence[str], freed: int = 0) -> None:
    """Raise NodeError if the disk has too little space for the missing files; `freed`: bytes that are removed first."""
    snapshot = fetch.snapshot
    left = sum(snapshot.files[name] for name in absent) - cache.partial_bytes(snapshot)
    need, have = max(left, 0) + DISK_MARGIN, free_bytes(snapshot.cache_dir) + freed
    if have < need:
        raise NodeError(
            f"Not enough disk for {snapshot.repo}: {snapshot.cache_dir} has {human_size(have)} free, and "
            f"{human_size(need)} are needed ({len(absent)} files missing, and {human_size(DISK_MARGIN)} to spare). "
            "Remove weights that nothing uses from its hub directory, leave formats out with exclude, or "
            "set hf_model_cache_dir to a larger disk."
        )


# ---- the container -----------------------------------------------------------------------------------


def container_body(fetch: DownloadRequest, secrets: Mapping[str, str]) -> Json:
    """Return the download container's spec: it has the network and the cache, no GPU, and few capabilities.

    secrets: paths on the node of the files that exist, by their names inside.
    """
    snapshot = fetch.snapshot
    config = {
        "repo": snapshot.repo,
        "commit": snapshot.commit,
        "cache_dir": f"{_CACHE}/hub",
        "include": list(snapshot.include),
        "exclude": list(snapshot.exclude),
        "max_workers": fetch.max_workers,
        "bandwidth": fetch.bandwidth,
        "token_file": _TOKEN if _TOKEN in secrets else "",
        "proxy_file": _PROXY if _PROXY in secrets else "",
    }
    mounts: list[Json] = [{"Type": "bind", "Source": snapshot.cache_dir, "Target": _CACHE}]
    readable = {**secrets, **({_CA: fetch.ca_file} if fetch.ca_file else {})}
    for target, path in readable.items():
        mounts.append({"Type": "bind", "Source": path, "Target": target, "ReadOnly": True})
    env = {
        "HF_HOME": _CACHE,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "60",
        "HF_TOKEN_PATH": _TOKEN,
        **({"HF_ENDPOINT": fetch.endpoint} if fetch.endpoint else {}),
        **({_NO_XET: "1"} if fetch.bandwidth or not _is_the_hub(fetch.endpoint) else {}),
        **(_TRUST if fetch.ca_file else {}),
    }
    return {
        "Image": fetch.image,
        "User": "0:0",
        "Entrypoint": ["python3", "-c", fetch.program, json.dumps(config)],
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in env.items()],
        "Labels": {LABEL: fetch.spec},
        "HostConfig": {
            "Mounts": mounts,
            "NetworkMode": "host",
            "UsernsMode": "host",
            "Init": True,
            "CapDrop": ["ALL"],
            "CapAdd": ["CHOWN", "DAC_OVERRIDE", "FOWNER"],
            "SecurityOpt": ["no-new-privileges"],
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "1"}},
        },
    }


def _is_the_hub(endpoint: str) -> bool:
    """Return whether an endpoint is the hub itself, "" included; any other is a mirror."""
    host = urlsplit(endpoint).hostname or ""
    return not endpoint or any(host == name or host.endswith(f".{name}") for name in _HUBS)


def _container(client: DockerClient, fetch: DownloadRequest) -> str:
    """Return RUNNING if this very download is in progress, LEFT for any other container of its name, "" for none."""
    container = client.container(fetch.container)
    if container is None:
        return ""
    ours = (container["Config"].get("Labels") or {}).get(LABEL) == fetch.spec
    return RUNNING if ours and container["State"]["Running"] else LEFT


def _wait(client: DockerClient, fetch: DownloadRequest) -> None:
    """Wait for the end of the download. Raise NodeError with the reason if it failed."""
    deadline = time.monotonic() + fetch.timeout
    code = None
    while code is None:
        leave_if_abandoned()
        left = deadline - time.monotonic()
        if left <= 0:
            raise NodeError(
                f"The download of {fetch.snapshot.repo} did not finish within {fetch.timeout} s. It continues in "
                f"container {fetch.container} (docker logs {fetch.container}): run again to wait for it, or "
                "raise hf_model_timeout.",
                changed=True,
            )
        try:
            code = wait_container(client, fetch.container, min(left, _WAIT_SLICE))
        except NotFound as error:
            raise NodeError(
                f"Container {fetch.container} was removed while it downloaded {fetch.snapshot.repo}. Run "
                "again: what is on disk is kept.",
                changed=True,
            ) from error
    log = container_log(client, fetch.container)
    remove_container(client, fetch.container)
    report = parse_report(log)
    if code != 0 or not (report or {}).get("ok"):
        message = explain(fetch.context, report, code, log)
        raise NodeError(message, changed=True, log=tail(log) if report is None else [])


def _start(client: DockerClient, fetch: DownloadRequest, found: Mapping[str, int | None]) -> None:
    snapshot = fetch.snapshot
    # A download of an earlier run that has ended, or one of other files, which gets time to close them.
    engine_stop_and_remove(client, fetch.container)
    cache.remove_marker(snapshot)
    for name in wrong(snapshot, found):
        remove_file(snapshot, name)
    os.makedirs(snapshot.cache_dir, mode=0o755, exist_ok=True)
    with directory_below(snapshot.cache_dir, "hub", make=True):
        pass
    secrets = _write_secrets(fetch)
    try:
        create_container(client, fetch.container, container_body(fetch, secrets))
        client.start(fetch.container)
    except DockerError as error:
        remove_container(client, fetch.container)
        raise NodeError(explain_start(fetch.context, str(error))) from error
    finally:
        # By now the container has mounted the files, and keeps them after their names are removed.
        _remove_secrets()


def engine_stop_and_remove(client: DockerClient, name: str, seconds: int = 10) -> None:
    """Stop a container and remove it; do nothing if it does not exist."""
    try:
        client.stop(name, seconds)
    except NotFound:
        return
    remove_container(client, name)


def _write_secrets(fetch: DownloadRequest) -> dict[str, str]:
    """Write token and proxies to files that only root can read; return their paths by their names inside."""
    _remove_secrets()
    texts = {_TOKEN: fetch.token, _PROXY: json.dumps(dict(fetch.proxy)) if fetch.proxy else ""}
    paths = {}
    for target, text in texts.items():
        if text:
            os.makedirs(SECRETS_DIR, mode=0o700, exist_ok=True)
            os.chmod(SECRETS_DIR, 0o700)
            paths[target] = os.path.join(SECRETS_DIR, os.path.basename(target))
            write_atomic(paths[target], text, 0o600)
    return paths


def _remove_secrets() -> None:
    for target in (_TOKEN, _PROXY):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(SECRETS_DIR, os.path.basename(target)))
