# SPDX-License-Identifier: Apache-2.0
"""Ask every route of an installed vLLM's own application without a key; runs in vLLM's Python, without an engine.

Standard input: {"guard": source of the guard, "name": "instinct_guard.Guard"}. Standard output: a marker line with
{"open": [[kind, method, path, status], …], "closed": …, "right": …, "unguarded": …}: what let a request without the key
in, and what refused it; the status for who has the key; and that of a route which vLLM leaves open, without the guard.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MARKER = "instinct-fleet-routes:"
KEY = "k" * 30
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# All kinds of models, and what only developers switch on.
SETTINGS = {
    "VLLM_API_KEY": KEY,
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
WRONG = (
    (),
    ((b"authorization", b"Bearer " + b"x" * 30),),
    ((b"authorization", KEY.encode()),),
    ((b"x-api-key", KEY.encode()),),
)


def application(name: str) -> Any:
    """vLLM's application with the guard in front, as `vllm serve --middleware` makes it; name "": without."""
    from vllm.entrypoints.launchers.app import build_app  # type: ignore[import-not-found]
    from vllm.entrypoints.launchers.cli_args import make_arg_parser  # type: ignore[import-not-found]
    from vllm.tasks import FRONTEND_TASKS, GENERATION_TASKS, POOLING_TASKS  # type: ignore[import-not-found]
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]

    args = make_arg_parser(FlexibleArgumentParser()).parse_args(["--middleware", name] if name else [])
    return build_app(args, (*GENERATION_TASKS, *POOLING_TASKS, *FRONTEND_TASKS))


def paths(routes: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Kind and path of every route, mounted ones included."""
    for route in routes:
        path = prefix + re.sub(r"{[^}]*}", "x", str(getattr(route, "path", "")))
        yield ("websocket" if "WebSocket" in type(route).__name__ else "http"), path
        yield from paths(getattr(route, "routes", None) or (), path)


async def ask(app: Any, kind: str, method: str, path: str, headers: Any) -> int:
    """Status of the answer; 0 if the application raised, so let the request in; of a websocket the closing code."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        body = {"type": "http.request", "body": b"{}", "more_body": False}
        return {"type": "websocket.connect"} if kind == "websocket" else body

    scope = {
        "type": kind, "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "root_path": "", "scheme": "ws" if kind == "websocket" else "http",
        "query_string": b"", "headers": [(b"host", b"x"), *headers], "client": ("x", 1), "server": ("x", 80),
        "subprotocols": [], "state": {},
    }  # fmt: skip
    try:
        await asyncio.wait_for(app(scope, receive, send), 20)
    except Exception:
        return 0
    first: Any = next((item for item in sent if "status" in item or "code" in item), {})
    return int(first.get("status", first.get("code", 0)))


async def walk(app: Any) -> dict[str, Any]:
    """Ask for each path with each method and each kind of wrong key."""
    found: dict[str, Any] = {"open": set(), "closed": set()}
    for kind, path in sorted(set(paths(app.routes))):
        for variant in {path, path + "/", "/" + path, path.upper()}:
            for method in METHODS if kind == "http" else ("GET",):
                answers = {await ask(app, kind, method, variant, headers) for headers in WRONG}
                refused = answers <= ({401} if kind == "http" else {1008})
                found["closed" if refused else "open"].add((kind, method, variant, max(answers)))
    right = ((b"authorization", b"Bearer " + KEY.encode()),)
    found["right"] = await ask(app, "http", "GET", "/version", right)
    found["unguarded"] = await ask(application(""), "http", "POST", "/invocations", ())
    return {key: sorted(value) if isinstance(value, set) else value for key, value in found.items()}


def main() -> None:
    """Read the guard, print what was found."""
    given = json.load(sys.stdin)
    os.environ.update(SETTINGS)
    module = given["name"].partition(".")[0]
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, f"{module}.py").write_text(given["guard"], encoding="utf-8")
        sys.path.insert(0, directory)
        found = asyncio.run(walk(application(given["name"])))
    print("\n" + MARKER + json.dumps(found))


if __name__ == "__main__":
    main()
