# SPDX-License-Identifier: Apache-2.0
"""Download one snapshot with the huggingface_hub of the vLLM image, inside a container of that image.

Its text is given to `python3 -c`, so it imports nothing of this package. It uses only functions that huggingface_hub
has had from 0.20 to 2.x. The last line that it prints is the report, as JSON after REPORT.
"""

from __future__ import annotations

import inspect
import json
import os
import random
import re
import sys
import threading
import time
from typing import Any

from ..content.probe_output import REPORT

ATTEMPTS = 5  # of a download that the network interrupts; files on disk are not downloaded again
ERRORS_SECONDS = 60.0  # for a hub that answers with errors: nobody sees the attempts
LIMIT_ATTEMPTS = 12  # with a hub that limits requests and says for how long: its windows are minutes
LONGEST_PAUSE = 900.0  # that one answer may ask for; people decide about a longer one


def causes(error: BaseException | None) -> list[dict[str, Any]]:
    """Return the chain of an error, outermost first: types, HTTP status, errno and text."""
    chain: list[dict[str, Any]] = []
    while error is not None and len(chain) < 8:
        chain.append(
            {
                "types": [kind.__name__ for kind in type(error).__mro__[:-2]],
                "status": getattr(getattr(error, "response", None), "status_code", None),
                "errno": getattr(error, "errno", None),
                "text": str(error)[:800],
            }
        )
        error = error.__cause__ or error.__context__
    return chain


def worth_another_try(chain: list[dict[str, Any]], seconds: float) -> bool:
    """Return whether the cause is the network or the hub's load; seconds: since the first attempt."""
    statuses = [link["status"] for link in chain if link["status"]]
    if statuses:
        return bool(statuses[0] == 429 or (statuses[0] >= 500 and seconds < ERRORS_SECONDS))
    names = " ".join(name for link in chain for name in link["types"])
    return any(word in names for word in ("ConnectionError", "Timeout", "ProtocolError", "NetworkError"))


def download(config: dict[str, Any], token: Any) -> str:
    """Download the snapshot and return its path."""
    from huggingface_hub import HfApi, snapshot_download

    options = {
        "repo_id": config["repo"],
        "revision": config["commit"],
        "cache_dir": config["cache_dir"],
        "allow_patterns": config["include"] or None,
        "ignore_patterns": config["exclude"] or None,
        "max_workers": config["max_workers"],
        "token": token,
    }
    if "resume_download" in inspect.signature(snapshot_download).parameters:
        options["resume_download"] = True  # before 0.23 an interrupted file starts again without it
    if config.get("bandwidth"):
        limit_bandwidth(config["bandwidth"])
    begun = time.monotonic()
    attempt = limited = 0
    known = False
    while True:
        try:
            if not known:
                # Queried first, because snapshot_download accepts a half-filled cache as final if the hub refuses it.
                HfApi(token=token).model_info(config["repo"], revision=config["commit"])
                known = True
            return str(snapshot_download(**options))
        except Exception as error:
            chain, pause = causes(error), asked_pause(error)
            if not worth_another_try(chain, time.monotonic() - begun):
                raise
            if pause is not None and pause <= LONGEST_PAUSE and limited < LIMIT_ATTEMPTS:
                limited += 1
                # Other nodes wait for the same moment, and must not all ask at once.
                pause += random.uniform(0, max(5.0, pause / 4))
                say(f"the hub limits requests: continuing in {pause:.0f} s")
            else:
                attempt += 1
                if attempt >= ATTEMPTS:
                    raise
                pause = 2.0**attempt
                say(f"attempt {attempt} of {ATTEMPTS} failed: {chain[0]['types'][0]}")
            time.sleep(pause)


def asked_pause(error: BaseException | None) -> float | None:
    """Return the seconds after which a hub that limits requests (429) can be asked again; None if it does not say.

    It says so as Retry-After, or as t=… of RateLimit: "api";r=0;t=42 (draft-ietf-httpapi-ratelimit-headers).
    """
    while error is not None:
        response = getattr(error, "response", None)
        if getattr(response, "status_code", None) == 429:
            headers = getattr(response, "headers", None) or {}
            texts = (headers.get("Retry-After"), re.search(r"\bt=(\d+)", headers.get("RateLimit") or ""))
            for text in (texts[0], texts[1].group(1) if texts[1] else None):
                if text and re.fullmatch(r"\s*\d{1,6}(\.\d+)?\s*", text):
                    return float(text)
            return None
        error = error.__cause__ or error.__context__
    return None


class LimitedFile:
    """A file whose writes take as long as a rate in bytes per second allows, together with those of others."""

    lock = threading.Lock()
    free_at = 0.0

    def __init__(self, file: Any, rate: int) -> None:
        self._file, self._rate = file, rate

    def write(self, data: bytes) -> int:
        """Write data, then wait until as much may have come: the sender is slowed down by what is not read."""
        count = int(self._file.write(data))
        with LimitedFile.lock:
            now = time.monotonic()
            LimitedFile.free_at = max(LimitedFile.free_at, now) + len(data) / self._rate
            pause = LimitedFile.free_at - now
        time.sleep(pause)
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def limit_bandwidth(rate: int) -> None:
    """Limit all downloads of huggingface_hub, whose http_get() has had the file as second argument since 0.20."""
    import huggingface_hub.file_download

    module: Any = huggingface_hub.file_download

    real = module.http_get

    def http_get(url: str, temp_file: Any, *args: Any, **options: Any) -> Any:
        # It calls itself to continue after an error.
        file = temp_file if isinstance(temp_file, LimitedFile) else LimitedFile(temp_file, rate)
        return real(url, file, *args, **options)

    module.http_get = http_get


def say(text: str) -> None:
    """Print a line at once, even if the output is a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(argv: list[str]) -> int:
    """Run the program. argv[1]: the configuration as JSON.

    Token and proxies come from files: no argument has them, and no variable that Docker shows.
    """
    config = json.loads(argv[1])
    if config["proxy_file"]:
        with open(config["proxy_file"], encoding="utf-8") as stream:
            os.environ.update(json.load(stream))
    token: Any = False  # False: send none, not even one stored in the cache
    if config["token_file"]:
        with open(config["token_file"], encoding="utf-8") as stream:
            token = stream.read().strip()
    try:
        report: dict[str, Any] = {"ok": True, "path": download(config, token)}
    except Exception as error:
        report = {"ok": False, "causes": causes(error)}
    say(REPORT + json.dumps(report))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
