# SPDX-License-Identifier: Apache-2.0
"""Proxies and CAs in the inventory: what is refused, and what becomes of them in files of programs."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.variables import InventoryReader

from tests import ROOT
from tests.unit.action.test_action_base import HostVars
from tests.worlds.plan_world import problems, state
from tests.worlds.way_out import ACCOUNT


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        (
            {"instinct_proxy": {"https_proxy": f"http://{ACCOUNT}@p:1", "http_proxy": "", "no_proxy": "a,b"}},
            "",
        ),
        ({"instinct_ca_file": "/etc/ssl/certs/ca-certificates.crt"}, ""),
        ({"instinct_proxy": {"htps_proxy": "http://p:1"}}, "instinct_proxy.htps_proxy"),
        (
            {"instinct_proxy": {"https_proxy": f"{ACCOUNT}@p:1"}},
            "instinct_proxy.https_proxy (host n1): is not a",
        ),
        ({"instinct_proxy": "http://p:1"}, "instinct_proxy (host n1): must be a map"),
        ({"instinct_ca_file": "ca.pem"}, "instinct_ca_file (host n1)"),
    ],
)
def test_what_is_refused(variables: dict[str, Any], text: str) -> None:
    found = problems({"n1": state()}, [], **variables)
    assert bool(found) == bool(text)
    assert not text or text in found[0]
    assert "ss-of-the-proxy" not in "".join(found)


@pytest.mark.parametrize(
    ("variables", "refused"),
    [
        ({"hf_model_endpoint": "http://mirror.example", "hf_model_token": "hf_x"}, True),
        ({"hf_model_endpoint": "http://mirror.example", "hf_model_token_file": "/x"}, True),
        ({"hf_model_endpoint": "http://localhost.example", "hf_model_token": "hf_x"}, True),
        ({"hf_model_endpoint": "https://mirror.example", "hf_model_token": "hf_x"}, False),
        ({"hf_model_endpoint": "http://mirror.example", "hf_model_token": ""}, False),
        ({"hf_model_endpoint": "http://127.0.0.1:8080", "hf_model_token": "hf_x"}, False),
        ({"hf_model_endpoint": "http://[::1]:8080/hub", "hf_model_token": "hf_x"}, False),
        (
            {"hf_model_endpoint": "http://m.example", "hf_model_token": "hf_x", "hf_model_insecure": True},
            False,
        ),
    ],
)
def test_a_token_in_clear_text(variables: dict[str, Any], refused: bool) -> None:
    reader = InventoryReader({"hostvars": HostVars({"n1": variables, "n2": dict(variables), "n3": {}})})
    found = [(item.path, item.hosts) for item in reader.clear_text_tokens(["n1", "n2", "n3"])]
    assert found == ([(("hf_model_endpoint",), ("n1", "n2"))] if refused else [])


def rendered(path: str, **variables: Any) -> str:
    env = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined, autoescape=False)
    return env.from_string((ROOT / path).read_text(encoding="utf-8")).render(**variables)


def test_files_of_programs() -> None:
    proxy = {"https_proxy": f"http://{ACCOUNT}@p:1", "no_proxy": "", "http_proxy": None}
    unit = rendered("roles/host_prep/templates/docker-proxy.conf.j2", instinct_proxy=proxy)
    # systemd takes a single % for one of its specifiers.
    assert unit.splitlines()[1:] == [
        "[Service]", f'Environment="HTTPS_PROXY=http://{ACCOUNT.replace("%", "%%")}@p:1"',
    ]  # fmt: skip
    pip = "roles/load_balancer/templates/pip.conf.j2"
    assert rendered(pip, instinct_proxy=proxy, instinct_ca_file="/ca.pem").splitlines()[1:] == [
        "[global]", f"proxy = http://{ACCOUNT}@p:1", "cert = /ca.pem",
    ]  # fmt: skip
    assert rendered(pip).splitlines()[1:] == ["[global]"]
