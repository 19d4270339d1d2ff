# SPDX-License-Identifier: Apache-2.0
"""The endpoint of a lab, as its clients and its administrator see it."""

from __future__ import annotations

import csv
import json
import ssl
import urllib.request
from typing import Any

from tests.load import Load, Target, first_key

from .conftest import Lab, Run, node_address
from .helpers import MODEL

RATE = 30  # requests per second
HOST = "lab-n1"  # the balancer's, and a GPU host too
URL = f"https://{node_address(1)}:8443"


class Endpoint:
    """The endpoint of a lab: its inventory, key and certificate."""

    run: Run  # what made it serve
    checked: Run  # of test_balancer: the run in check mode, and whether it made secrets
    secrets_of_check: bool

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.secrets = lab.inventory / ".secrets"
        self.ca = lab.tmp / "ca.crt"

    @classmethod
    def deployed(cls, lab: Lab, *command: str) -> Endpoint:
        """Run a playbook, or else site.yml without benchmarks, and return the endpoint that serves then."""
        made = cls(lab)
        made.run = lab.play(*(command or ("site", "--skip-tags", "benchmark")))
        assert made.run.rc == 0, made.run.out[-3000:]
        made.trust()
        return made

    def trust(self) -> None:
        text = (self.secrets / "endpoint.pem").read_text()
        self.ca.write_text(text[: text.index("-----BEGIN PRIVATE KEY-----")])

    @property
    def key(self) -> str:
        return first_key(self.secrets / "api-keys.yml")

    @property
    def instance_key(self) -> str:
        return (self.secrets / "instance-key").read_text().strip()

    def ask(self, path: str, body: Any = None, key: str | None = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON of one request."""
        data = None if body is None else json.dumps(body).encode()
        key = self.key if key is None else key
        sent = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        request = urllib.request.Request(f"{URL}{path}", data=data, headers={**sent, **headers})
        context = ssl.create_default_context(cafile=str(self.ca))
        try:
            with urllib.request.urlopen(request, timeout=120, context=context) as answer:
                return answer.status, json.loads(answer.read() or "null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def load(
        self,
        rate: float = RATE,
        tokens: int = Target.tokens,
        limit: float = Target.limit,
        stall: float = Target.stall,
    ) -> Load:
        target = Target(URL, MODEL, self.key, str(self.ca), tokens, limit=limit, stall=stall)
        return Load(target, rate)

    def stat(self, column: str) -> dict[str, int]:
        """A column of HAProxy's statistics, by server; their names are in section 9.1 of its management guide."""
        return {row["svname"]: int(row[column] or 0) for row in self._rows()}

    def in_service(self) -> int:
        """How many servers get requests."""
        return sum(row["status"].startswith("UP") for row in self._rows() if row["type"] == "2")

    def _rows(self) -> list[dict[str, str]]:
        program = (
            "import socket; s=socket.socket(socket.AF_UNIX); "
            "s.connect('/var/lib/instinct-fleet/balancer/admin.sock'); s.sendall(b'show stat -1 4 -1\\n'); "
            "print(s.makefile().read())"
        )
        text = self.lab.on(HOST, f'python3 -c "{program}"').removeprefix("# ")
        return [row for row in csv.DictReader(text.splitlines()) if row["pxname"] == "llama"]

    def requests(self) -> dict[str, int]:
        """Requests that each server has had."""
        return self.stat("stot")

    def served(self) -> dict[str, int]:
        """Requests that each server has answered with 200."""
        return self.stat("hrsp_2xx")

    def running(self) -> dict[str, int]:
        """Requests that each server works on."""
        return self.stat("scur")

    def broken(self) -> dict[str, int]:
        """Requests that each server has left without an answer or with only a part of it."""
        return self.stat("eresp")
