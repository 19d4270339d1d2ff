# SPDX-License-Identifier: Apache-2.0
"""Read what load balancers are built from, on the control node: templates, programs, keys and certificates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError

from ....module_utils.common.errors import FleetError
from ....module_utils.credentials.instance_key import UNMADE
from ...base.bundle import script
from ..desired.endpoint_settings import BalancerHost
from ..desired.variables import to_plain_data
from ..instances.render import template_renderer, template_text
from .foreign_secrets import INSTANCE_KEY, LocalSecrets, foreign_secrets, in_use
from .plan import EndpointAssets, EndpointInputs
from .secrets import instance_key, load_secrets, replace_instance_key


class VaultReader:
    """Reads files of the control node that may be vaulted, with Ansible's own loader."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def text(self, path: Path) -> str:
        """Return a file's text. Raise OSError, or ValueError if it cannot be decrypted."""
        try:
            return str(self._loader.get_text_file_contents(str(path)))
        except AnsibleError:
            raise ValueError(path) from None

    def data(self, text: str) -> Any:
        """Return YAML text as plain data. Raise ValueError, which does not contain the text."""
        try:
            return to_plain_data(self._loader.load(text), str)
        except AnsibleError:  # its message would show the line
            raise ValueError from None


@dataclass(frozen=True)
class SecretsPolicy:
    """What a run may do with secrets.

    make: generate missing ones. replace: kinds that this run may replace in the fleet. check: refuse a run that has
    other secrets than the fleet's own. marks: fingerprints of the instances' keys, by GPU host.
    """

    make: bool = False
    replace: tuple[str, ...] = ()
    check: bool = True
    marks: Mapping[str, str] = field(default_factory=dict)


def load_endpoint(
    hosts: tuple[BalancerHost, ...],
    fleet: Iterable[str],
    base: Path,
    policy: SecretsPolicy,
    files: VaultReader,
) -> EndpointInputs | None:
    """Return the load balancers of `hosts` in front of the hosts of `fleet`; None if there are none.

    Keys and certificates are kept next to the inventory (`base`). Raise FleetError before any is generated.
    """
    if not hosts:
        return None
    here = _read_secrets(hosts, base, False, files)
    problems = foreign_secrets(hosts, policy.marks, here, policy.replace) if policy.check else ()
    if problems:
        raise FleetError(problems)
    rotate = INSTANCE_KEY in policy.replace and in_use(hosts, policy.marks, here.instance_key)
    if rotate and not policy.make:
        key = here.instance_key
        here = replace(here, instance_key=replace(key, mark=UNMADE if key.mark else "", map=None))
    if policy.make:
        if rotate:
            replace_instance_key(base)
        here = _read_secrets(hosts, base, True, files)
    assets = EndpointAssets(
        template_renderer(template_text("haproxy.cfg.j2")),
        script("haproxy_agent"),
        here.material,
        here.instance_key,
        script("router"),
        template_renderer(template_text("keepalived.conf.j2")),
        script("keepalived_check"),
    )
    return EndpointInputs(hosts, frozenset(fleet), assets)


def _read_secrets(
    hosts: tuple[BalancerHost, ...], base: Path, make: bool, files: VaultReader
) -> LocalSecrets:
    return LocalSecrets(
        load_secrets(hosts, base, make, files.text, files.data), instance_key(hosts, base, make, files.text)
    )
