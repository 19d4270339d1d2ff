# SPDX-License-Identifier: Apache-2.0
"""What a Dockerfile declares, its base images by digest, and build arguments that it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.docker.dockerfile import (
    candidates,
    pin_bases,
    read_dockerfile,
    unknown_arguments,
)

from tests import ROOT

DIGEST = "sha256:" + "7" * 64
# As vLLM's docker/Dockerfile.rocm begins, shortened.
VLLM = """\
# default base image
ARG REMOTE_VLLM="0"
ARG COMMON_WORKDIR=/app
ARG BASE_IMAGE=rocm/vllm-dev:base
FROM ${BASE_IMAGE} AS base
ARG ARG_PYTORCH_ROCM_ARCH
ENV PYTORCH_ROCM_ARCH=${ARG_PYTORCH_ROCM_ARCH:-${PYTORCH_ROCM_ARCH}}
RUN apt-get update -q -y && apt-get install -q -y \\
    # a comment within
    FROM_is_no_instruction_here
RUN <<END
FROM nothing:1
ARG NOTHING
END
FROM base AS fetch_vllm_0
ARG USE_CYTHON
FROM --platform=linux/amd64 fetch_vllm_${REMOTE_VLLM} as fetch_vllm
from scratch as empty
FROM base AS final
"""


@pytest.mark.parametrize(
    ("text", "args", "bases"),
    [
        (VLLM, {}, ("rocm/vllm-dev:base",)),
        (VLLM, {"BASE_IMAGE": "own/base:1"}, ("own/base:1",)),
        ("FROM a:1\n", {}, ("a:1",)),
        ("FROM a:1 AS x\nFROM b:1\nCOPY --from=x / /\n", {}, ("a:1", "b:1")),
        ("FROM a:1 AS x\nFROM x\n", {}, ("a:1",)),
        ("FROM a:1 AS X\nFROM x\n", {}, ("a:1",)),
        ("ARG T\nFROM a:${T:-2}\n", {}, ("a:2",)),
        ("ARG T\nFROM a:${T:-2}\n", {"T": "3"}, ("a:3",)),
        ("ARG T=1\nARG N=a:$T\nFROM $N\n", {}, ("a:1",)),
        ("ARG D\nFROM a:1${D:+-dev}\n", {"D": "yes"}, ("a:1-dev",)),
        ("ARG D\nFROM a:1${D:+-dev}\n", {}, ("a:1",)),
        ("ARG B\nFROM $B\n", {}, ()),
        ("ARG T=1\nFROM a:$T\nARG T=9\nFROM b:$T\n", {}, ("a:1", "b:1")),
        ("# escape=`\nRUN x `\n  FROM y\nFROM a:1\n", {}, ("a:1",)),
        ("", {}, ()),
    ],
)
def test_bases(text: str, args: dict[str, str], bases: tuple[str, ...]) -> None:
    assert read_dockerfile(text, args).bases == bases


def test_arguments_of_all_stages() -> None:
    names = ("REMOTE_VLLM", "COMMON_WORKDIR", "BASE_IMAGE", "ARG_PYTORCH_ROCM_ARCH", "USE_CYTHON")
    assert read_dockerfile(VLLM, {}).arguments == names
    assert read_dockerfile("ARG A=1 B='x y' C\n", {}).arguments == ("A", "B", "C")


def test_only_the_lines_that_name_a_base_are_changed() -> None:
    base = f"rocm/vllm-dev@{DIGEST}"
    found = pin_bases(VLLM, {}, {"rocm/vllm-dev:base": base})
    assert found == VLLM.replace("FROM ${BASE_IMAGE} AS base", f"FROM {base} AS base")
    assert pin_bases(VLLM, {}, {}) == VLLM
    assert (
        pin_bases("FROM --platform=linux/amd64 a:1\n", {}, {"a:1": "a@x"})
        == "FROM --platform=linux/amd64 a@x\n"
    )
    assert pin_bases("FROM a:1 AS a\nFROM a\n", {}, {"a:1": "a@x", "a": "a@y"}) == "FROM a@x AS a\nFROM a\n"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            "USE_CYTON",
            "build.args: USE_CYTON is not an ARG of D, so it changes nothing. Did you mean USE_CYTHON?",
        ),
        (
            "use_cython",
            "build.args: use_cython is not an ARG of D, so it changes nothing. Did you mean USE_CYTHON?",
        ),
        ("USE_CYTHON", ""),
        ("https_proxy", ""),
        ("BUILDKIT_INLINE_CACHE", ""),
    ],
)
def test_arguments_that_change_nothing(given: str, text: str) -> None:
    assert unknown_arguments([given], ["USE_CYTHON", "BASE_IMAGE"], "D") == ([text] if text else [])


def test_a_dockerfile_without_arguments() -> None:
    assert unknown_arguments(["A"], [], "D") == ["build.args: A is not an ARG of D, so it changes nothing."]


@pytest.mark.parametrize(
    ("path", "places"),
    [
        ("docker/Dockerfile.rocm", ("docker/Dockerfile.rocm", "Dockerfile.rocm")),
        ("Dockerfile.rocm", ("Dockerfile.rocm", "docker/Dockerfile.rocm")),
        ("own/Dockerfile", ("own/Dockerfile",)),
    ],
)
def test_where_a_dockerfile_may_be(path: str, places: tuple[str, ...]) -> None:
    assert candidates(path) == places


OURS = sorted((ROOT / "dockerfiles").glob("*.Dockerfile"))


def test_ours_are_there() -> None:
    assert [path.name for path in OURS] == [
        "aiter.Dockerfile",
        "fastsafetensors.Dockerfile",
        "vllm.Dockerfile",
    ]


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_ours_begin_from_an_image_and_build_a_named_commit(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert read_dockerfile(text, {}).bases == ()
    found = read_dockerfile(text, {"BASE_IMAGE": "rocm/vllm:1"})
    assert found.bases == ("rocm/vllm:1",)
    by_digest = pin_bases(text, {"BASE_IMAGE": "rocm/vllm:1"}, {"rocm/vllm:1": f"rocm/vllm@{DIGEST}"})
    assert f"FROM rocm/vllm@{DIGEST}\n" in by_digest
    (ref,) = [name for name in found.arguments if name.endswith("_REF")]
    assert f'RUN test -n "${{{ref}}}"' in text, "without one it fails at once"
