# SPDX-License-Identifier: Apache-2.0
"""An account in a URL is refused where an operator gives it, and masked wherever else it turns up."""

from __future__ import annotations

import json

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import MASK, Redactor
from ansible_collections.instinct.fleet.plugins.module_utils.content import proxies
from ansible_collections.instinct.fleet.plugins.module_utils.content.urls import holds_account, with_brackets
from ansible_collections.instinct.fleet.plugins.module_utils.docker.build_plan import build_plan
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import DockerClient
from ansible_collections.instinct.fleet.plugins.module_utils.quantize import converge as quantize_converge
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.checker import Checker
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.reserved_flags import (
    holds_secret,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

TOKEN = "ghp_Zq81canaryZq81canary"


@pytest.mark.parametrize(
    ("url", "holds"),
    [
        (f"https://{TOKEN}@github.com/x.git", True),
        (f"https://{TOKEN}:x-oauth-basic@github.com/x.git", True),
        (f"https://:{TOKEN}@github.com/x.git", True),
        (f"https://oauth2:{TOKEN}/with@slash@gitlab.example/x.git", True),
        (f"HTTPS://{TOKEN}@github.com/x.git", True),
        (f"git+https://{TOKEN}@github.com/x.git", True),
        (f"https://{TOKEN}@h/ssh://x", True),
        (f"https://{TOKEN}#@h/x", True),
        (f"https://{TOKEN}?@h/x", True),
        (f"http+git://{TOKEN}@h/x", True),
        (f"ssh://git:{TOKEN}@github.com/x.git", True),
        (f"git+ssh://git:{TOKEN}@github.com/x.git", True),
        (f"git:{TOKEN}@github.com:org/x.git", True),
        ("ssh://git@github.com:22/x.git", False),
        ("git+ssh://git@github.com/x.git", False),
        ("git@github.com:org/x.git", False),
        ("https://github.com/x.git", False),
        ("https://github.com:8443/x.git", False),
        ("/srv/git/x.git", False),
        ("", False),
    ],
)
def test_which_urls_hold_an_account(url: str, holds: bool) -> None:
    assert holds_account(url) is holds
    if holds:
        check = Checker()
        check.url(url, ("build", "repo"), r"\S+", "a URL")
        assert len(check.problems) == 1
        assert TOKEN not in "".join(map(str, check.problems))
        with pytest.raises(NodeError) as error:
            build_plan({"repo": url, "ref": "x"}, None)
        assert TOKEN not in str(error.value)
        shown = Redactor()(f"fatal: unable to access '{url}': 404")
        assert (
            TOKEN not in shown or "://" not in url or "/with@slash" in url
        )  # of no text it is known where that ends
    else:
        assert build_plan({"repo": url, "ref": "x"}, None).repo == url


def test_no_repository_is_an_option_of_git() -> None:
    with pytest.raises(NodeError, match="begins with a dash"):
        build_plan({"repo": "--upload-pack=touch /x", "ref": "x"}, None)


SCHEMES = st.sampled_from(
    ["http", "https", "HTTPS", "git", "git+https", "redis", "socks5", "s3", "ssh", "git+ssh"]
)
# What may be in an account as it is; the rest is written as %xx.
WORD = st.text("abcXYZ019-._~!$&()*+,;=%", min_size=1, max_size=12)
HOSTS = st.sampled_from(["h", "h.example", "127.0.0.1", "[::1]", "h:8080", "[fd00::1]:80"])
PATHS = st.sampled_from(["", "/", "/a/b.git", "/a?b=c#d", "/v2/x@sha256:00", "?x"])
AROUND = st.sampled_from(
    ["{}", "fatal: unable to access '{}': 404", '{{"url": "{}"}}', "x={} y", "({})", "a\n{}\nb"]
)


@settings(max_examples=100)
@given(SCHEMES, WORD, st.none() | WORD, HOSTS, PATHS, AROUND)
def test_an_account_is_masked_and_refused_in_any_url(
    scheme: str, user: str, password: str | None, host: str, path: str, around: str
) -> None:
    ssh = scheme.endswith("ssh")
    assume(not ssh or password is not None)
    user, secret = f"Qu{user}", f"Qp{password}"
    account = user if password is None else f"{user}:{secret}"
    url = f"{scheme}://{account}@{host}{path}"
    text = Redactor()(around.format(url))
    assert text == around.format(f"{scheme}://{MASK}@{host}{path}")
    assert holds_account(url)
    assert holds_secret(url)


@settings(max_examples=100)
@given(SCHEMES, HOSTS, st.sampled_from(["", "/", "/a/b.git", "/a?b=c#d"]), AROUND)
def test_a_url_without_an_account_stays(scheme: str, host: str, path: str, around: str) -> None:
    text = around.format(f"{scheme}://{host}{path}")
    assert Redactor()(text) == text
    assert not holds_account(f"{scheme}://{host}{path}")
    assert not holds_secret(f"{scheme}://{host}{path}")


@settings(max_examples=100)
@given(WORD, WORD | st.just("a/b"), HOSTS)
def test_a_proxys_account_is_known_as_a_secret_and_not_shown(user: str, password: str, host: str) -> None:
    user, password = f"user-{user}", f"pass-{password}"
    proxy = {"https_proxy": f"http://{user}:{password}@{host}"}
    redact = Redactor(proxies.secrets(proxy))
    said = redact(json.dumps({"text": f"curl: proxy {proxy['https_proxy']} refused {password}"}))
    assert password not in said
    assert f"{user}:" not in said
    assert proxies.through_proxy(proxy) == f" through the proxy http://{host}"


def test_an_index_with_an_account_is_refused_before_anything_is_asked() -> None:
    given_params = {"job": None, "index": f"https://{TOKEN}@pypi.example/simple"}
    with pytest.raises(NodeError, match="quantize_index"):
        quantize_converge.quantize(DockerClient("/nowhere"), given_params, True)


@pytest.mark.parametrize(
    ("address", "written"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "[2001:db8::1]"),
        ("::", "[::]"),
        ("n1.example", "n1.example"),
    ],
)
def test_an_address_as_it_is_written_before_a_port(address: str, written: str) -> None:
    assert with_brackets(address) == written
