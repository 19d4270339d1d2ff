# SPDX-License-Identifier: Apache-2.0
"""What load balancers are made with, read on the control node: templates, programs, keys and certificates."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError

from ..bundle import script
from ..desired.endpoint_settings import BalancerHost
from ..desired.variables import plain
from ..instances.render import drawer, template_text
from .plan import Endpoint, Kit
from .secrets import instance_key, materials


class VaultReader:
    """Files of the control node that may be vaulted, read with Ansible's own loader."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def text(self, path: Path) -> str:
        """Return a file's text. Raises OSError, and ValueError where it cannot be decrypted."""
        try:
            return str(self._loader.get_text_file_contents(str(path)))
        except AnsibleError:
            raise ValueError(path) from None

    def data(self, text: str) -> Any:
        """Return a text of YAML as plain data. Raises ValueError, which does not hold the text."""
        try:
            return plain(self._loader.load(text), templates=True)
        except AnsibleError:  # its message would show the line
            raise ValueError from None


def load_endpoint(
    hosts: tuple[BalancerHost, ...], fleet: Iterable[str], base: Path, make: bool, files: VaultReader
) -> Endpoint | None:
    """Return the load balancers of `hosts` in front of the hosts of `fleet`; None when there are none.

    Keys and certificates are kept beside the inventory (`base`); with `make`, missing ones are made. Raises FleetError.
    """
    if not hosts:
        return None
    kit = Kit(
        drawer(template_text("haproxy.cfg.j2")),
        script("haproxy_agent"),
        materials(hosts, base, make, files.text, files.data),
        instance_key(hosts, base, make, files.text),
        script("router"),
        drawer(template_text("keepalived.conf.j2")),
        script("keepalived_check"),
    )
    return Endpoint(hosts, frozenset(fleet), kit)
