# SPDX-License-Identifier: Apache-2.0
"""Explain why a download failed, with the next step. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..content.probe_output import REPORT
from ..engines.failures import tail

CUT = re.compile(
    r"complete message body|IncompleteRead|Connection broken|[Cc]onsistency check failed|closed prematurely"
)
"""What the libraries of the hub say of an answer that was shorter than announced."""


@dataclass(frozen=True)
class DownloadContext:
    """A request to the hub, as far as messages describe it.

    with_token: whether it had a token. through: " through the proxy …", or "".
    """

    repo: str
    commit: str
    hub: str
    cache_dir: str
    image: str
    with_token: bool
    through: str = ""

    @property
    def source(self) -> str:
        """Return where the files come from."""
        return self.hub + self.through


def parse_report(log: str) -> dict[str, Any] | None:
    """Return the report that the program printed; None if it printed none."""
    for line in reversed(log.splitlines()):
        if line.startswith(REPORT):
            try:
                report = json.loads(line[len(REPORT) :])
            except ValueError:
                return None
            return report if isinstance(report, dict) else None
    return None


@dataclass(frozen=True)
class _Failure:
    """What the program reports of a failure. names: the types of all exceptions. text: what all of them say."""

    names: frozenset[str]
    status: int | None
    errno: int | None
    text: str
    token: bool

    @classmethod
    def of(cls, context: DownloadContext, chain: Sequence[Mapping[str, Any]]) -> _Failure:
        """Return what a chain of exceptions tells. context: the request."""
        return cls(
            frozenset(name for link in chain for name in link["types"]),
            next((link["status"] for link in chain if link["status"]), None),
            next((link["errno"] for link in chain if isinstance(link["errno"], int)), None),
            " ".join(str(link["text"]) for link in chain),
            context.with_token,
        )

    @property
    def no_repository(self) -> bool:
        """Return whether the hub does not show the repository to this account."""
        return "RepositoryNotFoundError" in self.names

    @property
    def network(self) -> bool:
        """Return whether the hub was not reached."""
        names = " ".join(self.names)
        return bool(re.search(r"Connect|Timeout|ProxyError|NetworkError|ProtocolError|gaierror", names))


EXPLANATIONS: Sequence[tuple[Callable[[_Failure], bool], str]] = (
    (
        lambda at: "GatedRepoError" in at.names and not at.token,
        "the model is gated, and no token was given. Accept its terms at {hub}/{repo}, create a read token "
        "there, and set hf_model_token (or hf_model_token_file).",
    ),
    (
        lambda at: "GatedRepoError" in at.names,
        "the model is gated, and the account of this token has no access. Accept its terms at {hub}/{repo} "
        "with that account (some are granted by hand, later); a fine-grained token also needs the right "
        "to read gated repositories.",
    ),
    (
        lambda at: "RevisionNotFoundError" in at.names,
        "it has no commit {commit}. It may have been rewritten: run playbooks/plan.yml -e "
        "refresh=true to pin the revision again.",
    ),
    (
        lambda at: at.no_repository and not at.token,
        "{hub} has no such model, or it is private. Check the name; for a private one set hf_model_token.",
    ),
    (
        lambda at: at.status == 401 or (at.no_repository and at.status != 404),
        "{hub} does not accept the token. It is wrong or expired: create a new one, and set "
        "hf_model_token (or hf_model_token_file).",
    ),
    (
        lambda at: at.no_repository or at.status == 404,
        "{hub} has no such model, or the token's account may not see it. Check the name and the account.",
    ),
    (
        lambda at: at.status == 403,
        "{hub} forbids it (403). The token has no right to read this repository.",
    ),
    (
        lambda at: at.status == 429,
        "{hub} limits the number of requests from this address or account (429). Wait some minutes and "
        "run again (what is on disk is kept); a token raises the limit, and a mirror "
        "(hf_model_endpoint) avoids it.",
    ),
    (
        lambda at: bool(at.status and at.status >= 500),
        "{hub} answers, but keeps failing (HTTP {status}); nothing on this node is wrong. Run again later, "
        "or set hf_model_endpoint to a mirror; what is on disk is kept.",
    ),
    (
        lambda at: at.errno == 28 or "No space left on device" in at.text,
        "the disk of {cache_dir} is full. Make room, and run again: what is on disk is kept.",
    ),
    (
        lambda at: at.errno in (1, 13, 30),
        "the cache {cache_dir} cannot be written. Check its owner, its mount and its file system.",
    ),
    (
        lambda at: "ImportError" in at.names,
        "the image {image} has no usable huggingface_hub. Use a vLLM image.",
    ),
    (
        lambda at: "SSLError" in at.names or "CERTIFICATE_VERIFY_FAILED" in at.text,
        "the certificate of {hub} is not trusted inside the container. Set instinct_ca_file to a bundle on "
        "the node that holds its CA.",
    ),
    (
        lambda at: bool(CUT.search(at.text)),
        "{hub} answers, but its answers keep ending before they are complete. Something on the way cuts "
        "them, usually a proxy, a mirror or a firewall with a limit on size or time. Check those, or set "
        "hf_model_endpoint to another mirror; run again to resume (what is on disk is kept).",
    ),
    (
        lambda at: at.network or "LocalEntryNotFoundError" in at.names,
        "{hub} cannot be reached from this node{through}. Check name resolution, firewall and proxy "
        "(instinct_proxy), or set hf_model_endpoint to a mirror; run again to resume (files on disk are kept).",
    ),
)
"""What a failure is, and its explanation with the next step; the more specific first."""


def explain(context: DownloadContext, report: Mapping[str, Any] | None, code: int, log: str) -> str:
    """Explain why a download failed, with the next step."""
    repo = context.repo
    if report is None or not report.get("causes"):
        if code in (137, 143):
            return f"The download of {repo} was stopped from outside (exit code {code}). Run again to resume."
        last = " | ".join(tail(log, 2)) or "it wrote no log"
        return f"The download of {repo} broke off (exit code {code}): {last}"
    chain = report["causes"]
    text = str(chain[0]["text"]).strip() or "/".join(chain[0]["types"][:1])
    failure = _Failure.of(context, chain)
    for applies, explanation in EXPLANATIONS:
        if applies(failure):
            plain = explanation.format(**vars(context), status=failure.status)
            return f"Cannot fetch {repo}: {plain} ({_short(text)})"
    return f"Cannot fetch {repo}: {chain[0]['types'][0]}: {_short(text)}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else line[:300] + " …"


def explain_start(context: DownloadContext, message: str) -> str:
    """Explain why the download container could not be started."""
    if "No such image" in message:
        return (
            f"The image {context.image} is not on this node, and the download of {context.repo} runs in it. Run "
            f"the vllm_image role first. (Docker says: {message})"
        )
    if "python3" in message and "not found" in message:
        return f"The image {context.image} has no python3 in its PATH. Use a vLLM image. (Docker says: {message})"
    return f"The download container of {context.repo} could not be started: {message}"
