# SPDX-License-Identifier: Apache-2.0
"""Download one snapshot with the huggingface_hub of the vLLM image, inside a container of that image.

Its text is given to `python3 -c`, so it imports nothing of this package. It uses only functions that huggingface_hub
has had from 0.20 to 2.x. The last line that it prints is the report, as JSON after REPORT.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from typing import Any

from ..common.probe_output import REPORT

ATTEMPTS = 5  # at a download that the network interrupts; files on disk are not downloaded again
ERRORS_SECONDS = 60.0  # for a hub that answers with errors: nobody sees anything of the attempts


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

    # Queried first, because snapshot_download accepts a half-filled cache as final if the hub refuses it.
    HfApi(token=token).model_info(config["repo"], revision=config["commit"])
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
    begun = time.monotonic()
    for attempt in range(1, ATTEMPTS):
        try:
            return str(snapshot_download(**options))
        except Exception as error:
            chain = causes(error)
            if not worth_another_try(chain, time.monotonic() - begun):
                raise
            say(f"attempt {attempt} of {ATTEMPTS} failed: {chain[0]['types'][0]}")
            time.sleep(2**attempt)
    return str(snapshot_download(**options))


def say(text: str) -> None:
    """Print a line at once, whoever reads the output."""
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
