# SPDX-License-Identifier: Apache-2.0
"""Ask an instance for text, on its node: without a load balancer, it only listens there."""

from __future__ import annotations

import shlex

PROGRAM = """
import json, sys, urllib.request
def call(path, body=None):
    request = urllib.request.Request(sys.argv[1] + path, body, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=120))
body = {"model": call("/v1/models")["data"][0]["id"], "prompt": sys.argv[2], "max_tokens": 32}
print(sys.argv[2] + call("/v1/completions", json.dumps(body).encode())["choices"][0]["text"])
"""


def question(port: int, prompt: str) -> str:
    """Return the node's shell command that prints the prompt, continued by the instance at this port."""
    return shlex.join(["python3", "-c", PROGRAM, f"http://127.0.0.1:{port}", prompt])
