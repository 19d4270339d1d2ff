# SPDX-License-Identifier: Apache-2.0
"""What is known of an image by its name, and what is not."""

from __future__ import annotations

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.images import (
    ImageFacts,
    check_driver,
    check_image,
    look_up,
    needed_driver,
    split_reference,
)

from tests.worlds.catalogue import knowledge

DATA = knowledge().images
DIGEST = "sha256:" + "0" * 64


def unknown(found: ImageFacts) -> tuple[str, ...]:
    """What is not known of an image; of a tag that moves, nothing is."""
    names = ("vllm", "rocm", "entrypoint", "gfx")
    return tuple(name for name in names if found.floating or getattr(found, name) is None)


@pytest.mark.parametrize(
    ("ref", "parts"),
    [
        ("rocm/vllm:latest", ("rocm/vllm", "latest", "")),
        ("docker.io/rocm/vllm:latest", ("rocm/vllm", "latest", "")),
        ("rocm/vllm", ("rocm/vllm", "", "")),
        ("host:5000/a/b", ("host:5000/a/b", "", "")),
        ("host:5000/a/b:t@" + DIGEST, ("host:5000/a/b", "t", DIGEST)),
        ("rocm/vllm@" + DIGEST, ("rocm/vllm", "", DIGEST)),
    ],
)
def test_references(ref: str, parts: tuple[str, str, str]) -> None:
    assert split_reference(ref) == parts


@pytest.mark.parametrize("tag", DATA["tags"])
def test_every_listed_tag_is_found(tag: str) -> None:
    found = look_up(DATA, tag)
    assert found.basis == "tag"
    assert found.entrypoint in ("bash", "vllm-serve")
    assert found.source
    if found.vllm and found.vllm != "0.4.3":
        knowledge().release(found.vllm)


@pytest.mark.parametrize(
    ("ref", "basis", "vllm", "entrypoint", "probe"),
    [
        ("rocm/vllm:rocm6.4.1_vllm_0.9.1_20250715", "tag", "0.9.1", "bash", ("gfx",)),
        (
            "rocm/vllm:rocm7.14.0_cdna_ubuntu24.04_py3.14_pytorch_2.11.0_vllm_0.23.0",
            "tag",
            "0.23.0",
            "bash",
            (),
        ),
        ("vllm/vllm-openai-rocm:v0.20.0", "family", "0.20.0", "vllm-serve", ("gfx",)),
        ("docker.io/vllm/vllm-openai-rocm:v0.21.0", "family", "0.21.0", "vllm-serve", ("rocm", "gfx")),
        ("vllm/vllm-openai-rocm:v0.20.0@" + DIGEST, "family", "0.20.0", "vllm-serve", ("gfx",)),
        # a name that only looks as if it said something
        ("rocm/vllm:rocm9.9_vllm_0.99.0_20270101", "repository", None, "bash", ("vllm", "rocm", "gfx")),
        ("rocm/vllm-dev:nightly_main_20251010", "repository", None, "bash", ("vllm", "rocm", "gfx")),
        ("vllm/vllm-openai-rocm:v0.20.0-custom", "repository", None, "vllm-serve", ("vllm", "rocm", "gfx")),
        (
            "mirror.example/rocm/vllm:rocm6.4.1_vllm_0.9.1_20250715",
            "unknown",
            None,
            None,
            ("vllm", "rocm", "entrypoint", "gfx"),
        ),
        ("vllm/vllm-openai-rocm@" + DIGEST, "repository", None, "vllm-serve", ("vllm", "rocm", "gfx")),
        # a tag that moves tells nothing for certain
        ("rocm/vllm-dev:main", "tag", None, "bash", ("vllm", "rocm", "entrypoint", "gfx")),
        ("vllm/vllm-openai-rocm:nightly", "tag", None, "vllm-serve", ("vllm", "rocm", "entrypoint", "gfx")),
    ],
)
def test_look_up(
    ref: str, basis: str, vllm: str | None, entrypoint: str | None, probe: tuple[str, ...]
) -> None:
    found = look_up(DATA, ref)
    assert (found.basis, found.vllm, found.entrypoint, unknown(found)) == (basis, vllm, entrypoint, probe)


def test_a_digest_that_contradicts_its_tag() -> None:
    tag = "rocm/vllm:rocm10.0.0_ubuntu24.04_py3.14_pytorch_2.12.0_vllm_0.27.0"
    assert look_up(DATA, tag + "@sha256:b8a082f3" + "0" * 56).vllm == "0.27.0"
    assert look_up(DATA, f"{tag}@{DIGEST}").vllm is None


@pytest.mark.parametrize(
    ("ref", "gfx", "gpu", "said"),
    [
        (
            "rocm/vllm:rocm7.12.0_gfx950-dcgpu_ubuntu24.04_py3.12_pytorch_2.9.1_vllm_0.16.0",
            "gfx942",
            "MI300X",
            "built for gfx950",
        ),
        ("rocm/vllm:rocm6.4.1_vllm_0.9.1_20250715", "gfx950", "MI355X", "needs 7.0.1 or newer"),
        ("rocm/vllm-dev:base", "gfx942", "MI300X", "does not contain vLLM"),
    ],
)
def test_images_that_do_not_fit_the_gpu(ref: str, gfx: str, gpu: str, said: str) -> None:
    found = [finding for finding in check_image(DATA, look_up(DATA, ref), gfx, gpu) if finding.is_error]
    assert len(found) == 1
    assert said in found[0].text()


@pytest.mark.parametrize(
    ("ref", "gfx", "gpu", "said"),
    [
        ("rocm/vllm:rocm7.0.0_vllm_0.11.1_20251024", "gfx950", "MI355X", "needs 7.0.1 or newer"),
        ("rocm/vllm:rocm6.3.1_vllm_0.8.5_20250513", "gfx942", "MI325X", "needs 6.3.2 or newer"),
    ],
)
def test_images_of_the_same_series_are_warned_of(ref: str, gfx: str, gpu: str, said: str) -> None:
    found = check_image(DATA, look_up(DATA, ref), gfx, gpu)
    assert not any(finding.is_error for finding in found)
    assert said in found[0].text()


def test_an_image_that_fits() -> None:
    assert check_image(DATA, look_up(DATA, "vllm/vllm-openai-rocm:v0.25.0"), "gfx950", "MI355X") == ()


def test_deprecated_images_are_a_warning() -> None:
    found = check_image(DATA, look_up(DATA, "rocm/vllm:rocm6.4.1_vllm_0.9.1_20250715"), "gfx942", "MI300X")
    assert [finding.is_warning for finding in found] == [True]


@pytest.mark.parametrize(
    ("rocm", "module", "old"),
    [
        ("6.4.1", "6.8.5", False),
        ("6.4.1", "6.7.0", True),
        ("7.2.1", "6.8.5", True),
        ("7.2.1", "6.16.13", False),
        ("6.3.1", "6.1.0", False),  # nothing is known of the module's version
        ("12.0.0", "6.8.5", False),
        ("7.2.1", None, False),
        ("7.2.1", "Linuxversion6.8.0-79-generic", False),
    ],
)
def test_drivers(rocm: str, module: str | None, old: bool) -> None:
    found = check_driver(DATA, rocm, module)
    assert (found is not None) == old
    if found:
        assert found.is_warning
        assert rocm in found.text()


def test_the_entry_of_a_driver() -> None:
    entry = needed_driver(DATA, "6.4.3")
    assert entry is not None
    assert entry["basis"] == "tested"
    assert needed_driver(DATA, "5.7.1") is None
