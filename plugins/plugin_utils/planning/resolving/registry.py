# SPDX-License-Identifier: Apache-2.0
"""Resolve references at registries and hubs. Control node only, imported if a pin is missing.

Messages never contain a token or a password: texts of the libraries' exceptions are not repeated.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Callable, TypeVar

from ....module_utils.common.errors import Path, Problem
from ....module_utils.content.image_names import Override, mirror_ref
from ....module_utils.content.image_ref import DEFAULT_REGISTRY, ImageRef, parse_ref
from ..desired.host_settings import Registry
from ..pins.lockfile import PLATFORM, ImagePin, ModelPin
from .model_cards import read_card

TIMEOUT = 20.0
HUB = "https://huggingface.co"
# Attempts at a hub that limits requests, with pauses between them; after that the operator decides.
RETRY_PAUSES = (2.0, 5.0, 10.0)
_HASH = re.compile(r"sha256:[0-9a-f]{64}|git-sha1:[0-9a-f]{40}")
CUT = re.compile(r"complete message body|IncompleteRead|Connection broken")
"""Messages of libraries about an answer that was shorter than announced."""
_T = TypeVar("_T")


REFUSED = "refused"
NOT_FOUND = "gone"
UNREACHABLE = "uncertain"


class ResolveError(Exception):
    """A reference cannot be resolved; the problem names the key and the fix.

    kind: REFUSED and GONE are answers of the registry or hub, which apply to nodes too; UNCERTAIN: it could not be
    reached from this machine.
    """

    def __init__(self, problem: Problem, kind: str = UNREACHABLE) -> None:
        super().__init__(problem.text())
        self.problem = problem
        self.kind = kind


_KINDS = {401: REFUSED, 403: REFUSED, 404: NOT_FOUND}


@dataclass(frozen=True)
class ManifestResponse:
    """A manifest and its digest."""

    manifest: Mapping[str, Any]
    digest: str


def image_pin(
    ref: str, path: Path, registries: Iterable[Registry], overrides: Iterable[Override] = ()
) -> ImagePin:
    """Return digest and transfer size of an image for linux/amd64, as its mirror has it. Raise ResolveError."""
    parsed = mirror_ref(parse_ref(ref), overrides)
    access = registry_of(parsed, registries)
    answer = _manifest(parsed, parsed.digest or parsed.tag, path, access)
    digest = parsed.digest or answer.digest
    manifest = answer.manifest
    if "manifests" in manifest:
        wanted = _platform_manifest(manifest["manifests"])
        if wanted is None:
            what = f"image {ref} has no manifest for {PLATFORM}."
            raise ResolveError(Problem(path, what, "Choose another tag."))
        manifest = _manifest(parsed, wanted, path, access).manifest
    try:
        layers = [manifest["config"]["size"], *(layer["size"] for layer in manifest["layers"])]
    except (KeyError, TypeError):
        what = f"the manifest of {ref} has an unknown format ({manifest.get('mediaType')})."
        fix = "Push the image again with a current Docker release."
        raise ResolveError(Problem(path, what, fix)) from None
    return ImagePin(digest, sum(int(size) for size in layers))


def registry_of(ref: ImageRef, registries: Iterable[Registry]) -> Registry:
    """Return how to reach an image's registry."""
    return next((item for item in registries if item.host == ref.registry), Registry(ref.registry))


def image_access(ref: ImageRef, digest: str, path: Path, access: Registry) -> None:
    """Request the manifest of a pinned image, which is the first step of a pull. Raise ResolveError."""
    _manifest(ref, digest, path, access)


def _platform_manifest(entries: Iterable[Mapping[str, Any]]) -> str | None:
    for entry in entries:
        platform = entry.get("platform") or {}
        if f"{platform.get('os')}/{platform.get('architecture')}" == PLATFORM:
            return str(entry["digest"])
    return None


def _manifest(ref: ImageRef, name: str, path: Path, access: Registry) -> ManifestResponse:
    """Request one manifest; every failure is reported in terms of the deployment's key."""
    import dxf
    import dxf.exceptions
    import requests

    def log_in(client: Any, response: Any) -> None:
        client.authenticate(
            access.username or None, access.password or None, actions=["pull"], response=response
        )

    host = "registry-1.docker.io" if ref.registry == DEFAULT_REGISTRY else ref.registry
    shown = f"{ref.repository}{'@' if name.startswith('sha256:') else ':'}{name}"
    where = f"vllm_image_registries: {{{ref.registry}: …}}"
    client = dxf.DXF(host, ref.path, auth=log_in, insecure=access.insecure, timeout=TIMEOUT)
    try:
        text, response = client.get_manifest_and_response(name)
    except dxf.exceptions.DXFAuthInsecureError:
        what = f"registry {ref.registry} requires a login, but is configured without TLS."
        fix = f"Serve it over https, and remove insecure from {where}."
        raise ResolveError(Problem(path, what, fix), REFUSED) from None
    except dxf.exceptions.DXFUnauthorizedError:
        what = f"registry {ref.registry} refuses access to {ref.path}"
        what += f" for user {access.username}." if access.username else " without a login."
        fix = f"Check the name, and set username and password in {where}."
        raise ResolveError(Problem(path, what, fix), REFUSED) from None
    except requests.exceptions.HTTPError as error:
        problem = _http_problem(error, ref, shown, path, where)
        status = error.response.status_code if error.response is not None else 0
        raise ResolveError(problem, _KINDS.get(status, UNREACHABLE)) from None
    except requests.exceptions.SSLError:
        what = f"registry {ref.registry} does not offer TLS that this machine trusts."
        fix = f"If it uses plain http, set insecure: true in {where}; otherwise install its CA."
        raise ResolveError(Problem(path, what, fix)) from None
    except (requests.exceptions.RequestException, OSError) as error:
        what = f"registry {ref.registry} cannot be reached from this machine ({_cause(error)})."
        fix = "Check the registry's name and port in the image's reference, and the network."
        raise ResolveError(Problem(path, what, fix)) from None
    try:
        manifest = json.loads(text)
        digest = response.headers.get("Docker-Content-Digest") or dxf.hash_bytes(response.content)
    except ValueError:
        what = f"registry {ref.registry} returned something that is not a manifest."
        raise ResolveError(Problem(path, what, "Check the registry's name and port.")) from None
    return ManifestResponse(manifest, str(digest))


def _http_problem(error: Any, ref: ImageRef, shown: str, path: Path, where: str) -> Problem:
    status = error.response.status_code if error.response is not None else 0
    if status == 404:
        kind = "digest" if "@" in shown else "tag"
        what = f"registry {ref.registry} has no such {kind}: {shown}."
        return Problem(path, what, "Check the repository and the tag, or push the image.")
    if status in (401, 403):
        what = f"registry {ref.registry} refuses access to {ref.path}."
        return Problem(path, what, f"Set username and password in {where}.")
    if status == 429:
        what = f"registry {ref.registry} limits requests (429)."
        return Problem(path, what, f"Wait, or log in: set username and password in {where}.")
    what = f"registry {ref.registry} returned status {status}."
    return Problem(path, what, "Check the registry's log.")


def _cause(error: BaseException) -> str:
    """Return the innermost cause in the operating system's words; never a URL, which may contain secrets."""
    text = str(error)
    for known in (
        "Connection refused",
        "Name or service not known",
        "Temporary failure in name resolution",
        "No address associated with hostname",
        "No route to host",
        "Network is unreachable",
        "Connection reset by peer",
        "timed out",
        "Remote end closed connection",
    ):
        if known.lower() in text.lower():
            return known.lower()
    return type(error).__name__


def model_pin(
    repo: str,
    revision: str,
    path: Path,
    endpoint: str,
    token: str | None,
    sleep: Callable[[float], None] = time.sleep,
) -> ModelPin:
    """Return commit, files with sizes, config.json and card of a model's revision. Raise ResolveError.

    `path` is the key that names the model; a revision's problems are reported at the key next to it.
    """
    hub = endpoint or HUB

    def ask() -> ModelPin:
        from huggingface_hub import HfApi

        # token=False: a token in the user's home directory must not decide what a fleet can download.
        api = HfApi(endpoint=hub, token=token or False)
        info = api.model_info(
            repo, revision=revision, files_metadata=True, securityStatus=True, timeout=TIMEOUT
        )
        siblings = info.siblings or []
        unsized = [item.rfilename for item in siblings if item.size is None]
        if not info.sha or unsized:
            what = f"the hub at {hub} does not report the {'size of ' + unsized[0] if unsized else 'commit'}."
            raise ResolveError(Problem(path, what, "Use a hub with the API of huggingface.co."))
        files = tuple(sorted((item.rfilename, int(item.size or 0)) for item in siblings))
        hashes = ((item.rfilename, _content_hash(item)) for item in siblings)
        return ModelPin(
            info.sha,
            files,
            _config(repo, info.sha, dict(files), hub, token),
            tuple(sorted((name, text) for name, text in hashes if text)),
            read_card(repo, info, lambda name: api.model_info(name, timeout=TIMEOUT)),
        )

    return _hub_request(ask, (repo, revision), path, hub, token, sleep)


def _content_hash(item: Any) -> str:
    """Return the hash of a file that a hub lists: git's id of a small one; "" if the hub states none."""
    lfs = getattr(item, "lfs", None)
    text = f"sha256:{lfs.sha256}" if lfs else f"git-sha1:{getattr(item, 'blob_id', '')}"
    return text if _HASH.fullmatch(text) else ""


def model_access(repo: str, pin: ModelPin, path: Path, endpoint: str, token: str | None) -> None:
    """Request a file of a pinned commit, as a download does. Raise ResolveError; there are no retries."""
    hub = endpoint or HUB
    names = [name for name, _unused in pin.files or ()]
    _hub_request(
        lambda: _config(repo, pin.commit, names, hub, token), (repo, pin.commit), path, hub, token, None
    )


def _hub_request(
    ask: Callable[[], _T],
    wanted: tuple[str, str],
    path: Path,
    hub: str,
    token: str | None,
    sleep: Callable[[float], None] | None,
) -> _T:
    """Return a hub's answer; every failure is reported in terms of the deployment's keys. sleep None: one attempt."""
    # Read at import: without it the first call also contacts huggingface.co, for any endpoint.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import huggingface_hub.errors as hub_errors

    repo, revision = wanted
    for pause in (*(RETRY_PAUSES if sleep else ()), None):
        try:
            return ask()
        except hub_errors.GatedRepoError:
            raise ResolveError(_gated(repo, path, hub, token), REFUSED) from None
        except hub_errors.RevisionNotFoundError:
            what = f"model {repo} has no revision {revision} on {hub}."
            fix = "Use a branch, tag or commit that exists there."
            beside = (*path[:-1], "revision") if path[-1:] == ("model",) else path
            raise ResolveError(Problem(beside, what, fix), NOT_FOUND) from None
        except hub_errors.RepositoryNotFoundError:
            raise ResolveError(_absent(repo, path, hub, token), REFUSED) from None
        except hub_errors.HfHubHTTPError as error:
            status = error.response.status_code
            if status == 429 and pause is not None and sleep is not None:
                sleep(pause)
                continue
            problem = _status_problem(status, repo, path, hub, token)
            raise ResolveError(problem, _KINDS.get(status, UNREACHABLE)) from None
        except ResolveError:
            raise
        except Exception as error:
            # httpx's errors, under the name of this huggingface_hub version, and the operating system's.
            what = f"the hub at {hub} cannot be reached from this machine ({_cause(error)})."
            fix = "Check hf_model_endpoint and the network; HF_HUB_OFFLINE must not be set."
            if CUT.search(str(error)):
                what = f"the hub at {hub} answers, but its answers end before they are complete."
                fix = "Something on the way cuts them: check proxy, mirror and firewall, or set hf_model_endpoint."
            raise ResolveError(Problem(path, what, fix)) from None
    raise AssertionError("the last try has no pause")  # pragma: no cover


def _config(
    repo: str, commit: str, names: Iterable[str], hub: str, token: str | None
) -> Mapping[str, Any] | None:
    """Return config.json; requesting a file also tests the access to a gated model, which listing does not."""
    import huggingface_hub.utils
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    utils: Any = huggingface_hub.utils  # documented there, but not declared for type checkers
    if "config.json" not in names:
        for name in sorted(names)[:1]:
            url = hf_hub_url(repo, name, revision=commit, endpoint=hub)
            get_hf_file_metadata(url, token=token or False, timeout=TIMEOUT)
        return None
    url = hf_hub_url(repo, "config.json", revision=commit, endpoint=hub)
    headers = utils.build_hf_headers(token=token or False)
    response = utils.get_session().get(url, headers=headers, follow_redirects=True, timeout=TIMEOUT)
    utils.hf_raise_for_status(response)
    try:
        content = json.loads(response.content)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _gated(repo: str, path: Path, hub: str, token: str | None) -> Problem:
    if token is None:
        what = f"model {repo} is gated on {hub}, and there is no token."
        fix = f"Ask for access at {hub}/{repo}, and set hf_model_token or hf_model_token_file."
        return Problem(path, what, fix)
    what = f"model {repo} is gated on {hub}, and the token of hf_model_token has no access to it."
    return Problem(
        path, what, f"Ask for access at {hub}/{repo} with the token's account, or use another token."
    )


def _absent(repo: str, path: Path, hub: str, token: str | None) -> Problem:
    what = f"there is no model {repo} on {hub}"
    if token is None:
        return Problem(
            path, f"{what}, or it is private.", "Check the name; for a private model set hf_model_token."
        )
    fix = "Check the name, and that the token of hf_model_token is valid and has access to it."
    return Problem(path, f"{what} for this token.", fix)


def _status_problem(status: int, repo: str, path: Path, hub: str, token: str | None) -> Problem:
    if status == 429:
        what = f"the hub at {hub} still limits requests (429) after {len(RETRY_PAUSES)} pauses."
        fix = "Wait some minutes" + (
            "." if token else ", or set hf_model_token: limits are higher with a token."
        )
        return Problem(path, what, fix)
    if status in (401, 403):
        what = f"the hub at {hub} refuses the token of hf_model_token for model {repo} ({status})."
        if token is None:
            what = f"the hub at {hub} refuses access to model {repo} without a token ({status})."
        return Problem(path, what, "Set a valid token in hf_model_token or hf_model_token_file.")
    return Problem(path, f"the hub at {hub} returned status {status} for model {repo}.", "Try again later.")
