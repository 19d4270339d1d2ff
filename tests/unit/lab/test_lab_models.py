# SPDX-License-Identifier: Apache-2.0
"""The lab's model: the same bytes every time, in the formats that loaders read."""

from __future__ import annotations

import hashlib
import json
import struct
from math import prod
from pathlib import Path
from typing import Any

import pytest

from lab import models


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return models.tiny_llama()


def shards(files: dict[str, bytes]) -> list[str]:
    return sorted(name for name in files if name.endswith(".safetensors"))


def header(shard: bytes) -> tuple[dict[str, Any], bytes]:
    (size,) = struct.unpack("<Q", shard[:8])
    return json.loads(shard[8 : 8 + size]), shard[8 + size :]


def test_the_bytes_are_always_the_same(files: dict[str, bytes]) -> None:
    assert models.tiny_llama() == files
    # No machine and no release of Python may make another model. Whoever changes the model changes this.
    digest = hashlib.sha256("".join(hashlib.sha256(files[n]).hexdigest() for n in sorted(files)).encode())
    assert digest.hexdigest() == "4542e1fc37ebf6009da49a6a79ea7e101a33b86d81b16984fffc51c1efd42a02"


def test_shards_are_safetensors_with_an_index(files: dict[str, bytes]) -> None:
    names = shards(files)
    index = json.loads(files["model.safetensors.index.json"])
    assert len(names) > 1
    total = 0
    for name in names:
        tensors, data = header(files[name])
        tensors.pop("__metadata__")
        end = 0
        for tensor, about in tensors.items():
            begin, stop = about["data_offsets"]
            assert (begin, stop - begin, about["dtype"]) == (end, 2 * prod(about["shape"]), "BF16")
            assert index["weight_map"].pop(tensor) == name
            end = stop
        assert end == len(data)
        total += end
    assert index["weight_map"] == {}
    assert index["metadata"]["total_size"] == total
    assert 3_000_000 < total / 2 < 4_000_000


def test_shapes_are_those_of_the_config(files: dict[str, bytes]) -> None:
    config = json.loads(files["config.json"])
    shapes = {
        t: a["shape"] for n in shards(files) for t, a in header(files[n])[0].items() if t != "__metadata__"
    }
    hidden, kv = config["hidden_size"], config["num_key_value_heads"] * config["head_dim"]
    assert shapes["model.embed_tokens.weight"] == shapes["lm_head.weight"] == [config["vocab_size"], hidden]
    assert shapes["model.layers.3.self_attn.k_proj.weight"] == [kv, hidden]
    assert shapes["model.layers.0.mlp.down_proj.weight"] == [hidden, config["intermediate_size"]]
    assert len(shapes) == 3 + 9 * config["num_hidden_layers"]
    assert kv < hidden


def test_tokenizer(files: dict[str, bytes]) -> None:
    model = json.loads(files["tokenizer.json"])["model"]
    vocabulary, merges = model["vocab"], [tuple(merge.split(" ")) for merge in model["merges"]]
    assert sorted(vocabulary.values()) == list(range(models.TOKENS))
    assert all(
        left + right in vocabulary and left in vocabulary and right in vocabulary for left, right in merges
    )
    assert len(set(merges)) == len(merges)
    assert [vocabulary[token] for token in models.SPECIAL_TOKENS] == list(range(5))


def test_only_text_is_ever_the_likeliest(files: dict[str, bytes]) -> None:
    tensors, data = header(files[shards(files)[-1]])
    begin = tensors["lm_head.weight"]["data_offsets"][0]
    vocabulary = json.loads(files["tokenizer.json"])["model"]["vocab"]
    allowed = set()
    for row in range(models.VOCAB_SIZE):
        low = begin + 2 * row * models.HIDDEN
        (channel,) = struct.unpack("<f", b"\0\0" + data[low : low + 2])
        assert channel in (0.0, -100.0)
        if channel == 0.0:
            allowed.add(row)
    assert {token for token in vocabulary if vocabulary[token] in allowed} == {
        token
        for token in vocabulary
        if token in (models.EOS, models.TURN_END)
        or (
            token not in models.SPECIAL_TOKENS
            and all("!" <= letter <= "~" or letter == "Ġ" for letter in token)
        )
    }
    assert max(allowed) == models.TOKENS - 1


def test_revisions_share_all_but_the_last_shard_and_the_readme(files: dict[str, bytes]) -> None:
    other = models.tiny_llama(1)
    assert {name for name in files if files[name] != other[name]} == {"README.md", shards(files)[-1]}
    assert models.tiny_llama(2)[shards(files)[-1]] != other[shards(files)[-1]]


def test_write(tmp_path: Path, files: dict[str, bytes]) -> None:
    models.write(tmp_path)
    written = {p.relative_to(tmp_path).as_posix(): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert written == files
    assert any(name.startswith("original/") for name in written)
