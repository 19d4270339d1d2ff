# SPDX-License-Identifier: Apache-2.0
"""A stand-in engine that serves on this machine."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import ROOT
from tests.helpers.ports import free_port

VLLM = ROOT / "lab/standin/vllm"


class Standin:
    """A running `vllm serve`."""

    def __init__(self, log: Path, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.port = free_port()
        self.log_path = log
        command = [str(VLLM), "serve", *arguments, "--host", "127.0.0.1"]
        if "--port" not in arguments:
            command += ["--port", str(self.port)]
        base = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, env={**base, **(env or {})}, stdout=out, stderr=out)

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if body is None or isinstance(body, (str, bytes)) else json.dumps(body)
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def complete(self, **payload: Any) -> dict[str, Any]:
        status, text = self.call("POST", "/v1/completions", {"model": "m", "prompt": "a b c", **payload})
        assert status == 200, text
        return json.loads(text)  # type: ignore[no-any-return]

    def stream(self, path: str = "/v1/completions", **payload: Any) -> list[dict[str, Any] | str]:
        status, text = self.call("POST", path, {"model": "m", "prompt": "a b c", "stream": True, **payload})
        assert status == 200, text
        return events(text)

    def wait(self, until: Callable[[], bool] | None = None, seconds: float = 60) -> None:
        """Until it answers /health, or something else is so."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if until() if until else self.call("GET", "/health")[0] == 200:
                    return
            except OSError:
                assert self.process.poll() is None, self.log
            time.sleep(0.01)
        raise AssertionError(self.log)

    def finish(self, seconds: float = 60) -> int:
        return self.process.wait(seconds)


def events(text: str) -> list[dict[str, Any] | str]:
    found = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in found]
