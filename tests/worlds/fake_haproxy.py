# SPDX-License-Identifier: Apache-2.0
"""HAProxy's administration socket, as a stand-in answers on it."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

from tests.helpers.eventually import GENEROUS

HEAD = "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state …\n"
ROW = "3 llama 1 {name} 10.0.0.1 {up} {admin} 1 1 0 15 3 2 6 22 0 0 - 8000 - 0 0 - 127.0.0.1 8406"


class Socket:
    """An admin socket. answers: by the start of a command; None: hangs up at once; "": is silent until the end.

    leaves: as often it hangs up first, before a command is read.
    """

    def __init__(self, path: Path, answers: dict[str, str | None], leaves: int = 0) -> None:
        self.answers, self.asked, self.leaves = answers, list[str](), leaves
        self.over = threading.Event()
        path.parent.mkdir(parents=True, exist_ok=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = self.listener.accept()
                if self.leaves:
                    self.leaves -= 1
                    link.close()
                    continue
                threading.Thread(target=self.answer, args=(link,), daemon=True).start()

    def answer(self, link: socket.socket) -> None:
        with link, contextlib.suppress(OSError):
            command = link.recv(4096).decode().strip()
            self.asked.append(command)
            text = next((text for start, text in self.answers.items() if command.startswith(start)), None)
            if text == "":
                self.over.wait(GENEROUS)
            for part in (text or "")[:20], (text or "")[20:]:  # it need not come at once
                link.sendall(part.encode())

    def close(self) -> None:
        self.over.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(GENEROUS)
