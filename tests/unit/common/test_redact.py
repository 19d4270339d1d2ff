# SPDX-License-Identifier: Apache-2.0
"""Secrets in messages: known ones, and those recognised by their surroundings."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import (
    NodeError,
    finish,
    internal_error,
)
from ansible_collections.instinct.fleet.plugins.module_utils.common.redact import (
    MASK,
    Redactor,
    is_secret_name,
)
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.env_files import (
    env_assignments,
    env_secrets,
    mask_env,
)
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.short_secrets import (
    refuse_short_secrets,
)

CANARY = 'can"ary/Zq8 é-secret'


@pytest.mark.parametrize(
    "text",
    [
        f"token {CANARY} refused",
        json.dumps({"token": CANARY}),
        repr([CANARY]),
        "https://h/?t=can%22ary%2FZq8%20%C3%A9-secret&x",
    ],
)
def test_a_known_secret_goes_in_every_writing(text: str) -> None:
    redacted = Redactor([CANARY, None, ""])(text)
    assert MASK in redacted
    for part in ("Zq8", "ary"):
        assert part not in redacted


@pytest.mark.parametrize(
    "secret", ['quote"inside', "quote'inside", "back\\slash", "both'of\"them", "tab\tand\nline", "grün/é"]
)
def test_a_secret_goes_whole_in_whatever_quotes_it(secret: str) -> None:
    redact = Redactor([secret])
    assert redact(json.dumps({"token": secret})) == json.dumps({"token": MASK})
    assert redact(json.dumps([secret], ensure_ascii=False)) == json.dumps([MASK])
    assert redact(repr([secret]))[2:-2] == MASK
    assert redact(f"at https://h/{quote(secret, safe='')}?x") == f"at https://h/{MASK}?x"
    assert redact(f"<{secret}>") == f"<{MASK}>"


@pytest.mark.parametrize("secret", ["", " ", "   ", "\n", None])
def test_a_blank_secret_masks_no_text(secret: str | None) -> None:
    assert Redactor([secret])("text-without-blanks") == "text-without-blanks"


def test_a_secret_from_a_file_goes_without_its_newline_too() -> None:
    assert Redactor(["long-secret\n"])("x long-secret y") == f"x {MASK} y"


def test_the_longer_of_two_secrets_goes_whole() -> None:
    assert Redactor(["abcdefgh", "abcdefgh-ijkl"])("abcdefgh-ijkl") == MASK


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("hf_AbCdEfGhIjKlMnOpQrStUv", f"hf_{MASK}"),
        ("Authorization: Bearer sk-12345678", f"Authorization: Bearer {MASK}"),
        ("https://me:pass-word@host/x", f"https://{MASK}@host/x"),
        ("redis://:pa55@h:1/0", f"redis://{MASK}@h:1/0"),
        ("http://u:p@ss@h/x", f"http://{MASK}@h/x"),
        ('{"url": "http://h:80", "by": "a@b"}', '{"url": "http://h:80", "by": "a@b"}'),
        ("vllm serve m --api-key sk-123 --port 1", f"vllm serve m --api-key {MASK} --port 1"),
        (
            "non-default args: {'api_key': ['sk-1', 'sk-2'], 'port': 1}",
            f"non-default args: {{'api_key': [{MASK}], 'port': 1}}",
        ),
        ("Namespace(api_key='sk-1', port=1)", f"Namespace(api_key='{MASK}', port=1)"),
        ("Namespace(api_key=None, port=1)", "Namespace(api_key=None, port=1)"),
        ("VLLM_API_KEY=sk-1 HF_TOKEN=abc", f"VLLM_API_KEY={MASK} HF_TOKEN={MASK}"),
        ("TOKENIZERS_PARALLELISM=false", "TOKENIZERS_PARALLELISM=false"),
        ("max_num_batched_tokens=8192", "max_num_batched_tokens=8192"),
        ("registry http://10.0.0.1:5000/v2/x@sha256:00", "registry http://10.0.0.1:5000/v2/x@sha256:00"),
    ],
)
def test_unknown_secrets_go_by_their_surroundings(text: str, kept: str) -> None:
    assert Redactor()(text) == kept


def test_nested_data_is_redacted_whole_and_keeps_its_types() -> None:
    data = {"a": [f"x {CANARY}", 1, None, True], CANARY: ("t", {"b": CANARY})}
    assert Redactor([CANARY]).data(data) == {"a": [f"x {MASK}", 1, None, True], MASK: ["t", {"b": MASK}]}


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("VLLM_API_KEY", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("db_password", True),
        ("TOKENIZERS_PARALLELISM", False),
        ("VLLM_ROCM_USE_AITER", False),
        ("MAX_TOKENS", False),
        ("KEYBOARD", False),
        ("MYSERVICE_APIKEY", True),
        ("LMCACHE_REDIS_PASS", True),
        ("remote_password", True),
        ("remotePassword", True),
        ("secret-access-key", True),
        ("AccessKey", True),
        ("apiKey", True),
        ("VLLM_AUTH", True),
        ("auth", True),
        ("DB_PW", True),
        ("DB_PWD", True),
        ("CREDENTIALS_JSON", True),
        ("PWD", False),
        ("OLDPWD", False),
        ("pass_config", False),
        ("BYPASS", False),
        ("author", False),
        ("monkey", False),
        ("long-prefill-token-threshold", False),
        ("fp8_per_token_head", False),
    ],
)
def test_secret_names(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


ENV = """\
# comment with HF_TOKEN=x
A='b c'
export VLLM_API_KEY='s k'
B="q" # note
HF_TOKEN=abc
BROKEN='x
EMPTY=
"""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", ""),
        ("a b", "a"),
        ("a # note", "a"),
        ("a # don't", "a"),
        (" # note", ""),
        ("# no note", "#"),
        ("key#with-one", "key#with-one"),
        ("'a # b' # note", "a # b"),
        ("'a'\"b\"c", "abc"),
        ("'open", "'open"),
        ("back\\ slash", "back slash"),
    ],
)
def test_what_a_shell_takes_of_an_assignment(text: str, value: str) -> None:
    assert env_assignments(f"  export A_KEY={text}\nB=1") == {"A_KEY": value, "B": "1"}
    assert env_secrets(f"A_KEY={text}") == ([value] if value else [])


def test_environment_files() -> None:
    assert env_assignments(ENV) == {
        "A": "b c",
        "VLLM_API_KEY": "s k",
        "B": "q",
        "HF_TOKEN": "abc",
        "BROKEN": "'x",
        "EMPTY": "",
    }
    assert env_secrets(ENV) == ["s k", "abc"]
    masked = mask_env(ENV)
    assert f"export VLLM_API_KEY={MASK}\n" in masked
    assert f"\nHF_TOKEN={MASK}\n" in masked
    assert "A='b c'" in masked


class Module:
    """Stands in for AnsibleModule."""

    def __init__(self) -> None:
        self.params = {"token": CANARY}
        self.left: dict[str, Any] = {}

    def exit_json(self, **result: Any) -> None:
        assert result.pop("invocation") == {"module_args": {"token": MASK}}
        self.left = {"failed": False, **result}

    def fail_json(self, **result: Any) -> None:
        assert result.pop("invocation") == {"module_args": {"token": MASK}}
        self.left = {"failed": True, **result}


def test_finish_redacts_results_errors_and_bugs() -> None:
    module = Module()
    finish(module, [CANARY], lambda: {"changed": True, "x": CANARY})
    assert module.left == {"failed": False, "changed": True, "x": MASK}

    def wrong() -> dict[str, Any]:
        raise NodeError(f"no {CANARY}", changed=True, log=[CANARY])

    finish(module, [CANARY], wrong)
    assert module.left == {"failed": True, "msg": f"no {MASK}", "changed": True, "log": [MASK]}

    def bug() -> dict[str, Any]:
        raise ZeroDivisionError(CANARY)

    finish(module, [CANARY], bug)
    assert module.left["msg"].startswith(
        f"Internal error, please report it: ZeroDivisionError: {MASK} (test_redact"
    )
    assert "exception" not in module.left


def test_an_error_that_was_never_raised_has_no_place() -> None:
    assert internal_error(ValueError("x")) == "Internal error, please report it: ValueError: x"


def test_short_secrets_are_refused_without_saying_them() -> None:
    refuse_short_secrets({"a": None, "b": "long enough", "c": ""})
    with pytest.raises(NodeError, match="token has fewer than 8 characters") as refused:
        refuse_short_secrets({"token": "xyz7\n"})
    assert "xyz7" not in str(refused.value)
