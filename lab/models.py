# SPDX-License-Identifier: Apache-2.0
"""The lab's model: a Llama of 3.4 million parameters, generated on the spot.

Nothing is downloaded and nothing needs torch, transformers or numpy: weights come from SHAKE-256 through a table of
bfloat16 values, the tokenizer is a byte-level BPE learned from the words below, and safetensors is a JSON header in
front of the raw tensors (https://huggingface.co/docs/safetensors/index#format). The same call gives the same bytes on
every machine, so that digests and commits can be compared between runs.

The shape is that of a large Llama in miniature: grouped-query attention, untied embeddings, weights in more than one
shard with an index, and an original/ folder that serving does not need.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import struct
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Any

TOKENS = 1024
VOCAB_SIZE = 10240  # `vllm bench latency` sends token ids up to 9,999
HIDDEN = 128
INTERMEDIATE = 384  # also divisible by 32 when two ranks share it
LAYERS = 4
HEADS = 4
KV_HEADS = 2
HEAD_DIM = HIDDEN // HEADS
MAX_POSITIONS = 4096
SHARD_BYTES = 4_000_000
ORIGINAL_BYTES = 1_000_000

BOS, EOS, HEADER_START, HEADER_END, TURN_END = SPECIAL_TOKENS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)

# The BPE's training text: enough different words for 763 merges. Their order does not matter.
_WORDS = """
the of and to in a is that for it as was with be by on not he his but at are this have from or had an they
which one you were all her she there would their we him been has when who will no more if out so up said
what its about than into them can only other time new some could these two may first then do any like my now
over such our man me even most made after also did many off before must well back through years where much
your way down should because long each just state those people too mr how little world very own still see
men work here get both between life being under never day same another know while last might us great old
year come since against go came right used take three server model token request prompt answer memory kernel
partition node fleet image container benchmark throughput latency instance deployment weight tensor parallel
pipeline cache attention layer driver network balance upgrade rollback measure question language system
program number machine computer process message result version release example important different following
information available performance configuration environment temperature generation completion operation
application communication organization understanding international government development university
particular community experience knowledge material national political economic education president business
interest possible problem service research history children company several together without however
although something everything sometimes beautiful mountain river ocean island forest animal morning evening
yesterday tomorrow minute second hour week month summer winter spring autumn north south east west water
fire earth question because through thought enough always never perhaps almost already around become began
believe better bring brought building called carried certain change city clear close common complete
condition consider control cost country course current decide describe direction discover distance door
during early effect either energy engine equal example explain face fact family father field figure final
find floor follow force form found friend front general girl give ground group grow half hand happen hard
head hear heart heavy help high hold home horse house hundred idea inside kind king land large later learn
leave left letter light line list listen live look love low main make map mark mean mind money moon mother
mouth move music name nature near need night noise note nothing notice object often open order page paper
part pass pattern person picture piece place plain plan plane plant play point power present press produce
product pull push quick quiet reach read ready reason receive record remember rest road rock room round rule
run safe sail science sea sentence separate serve set shape ship short show side simple sing sleep slow
small snow soft song soon sound space special speed stand star start step stone stop story street strong
study sun sure surface table talk teach tell test thing think thousand ton town travel tree true turn unit
until usual value voice wait walk wall want war warm watch wheel white whole wide wild wind window wing
wonder wood word write young zero
"""

_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    f"{HEADER_START}{{{{ message['role'] }}}}{HEADER_END}\n\n{{{{ message['content'] | trim }}}}{TURN_END}"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{HEADER_START}assistant{HEADER_END}\n\n{{% endif %}}"
)


def tiny_llama(revision: int = 0) -> dict[str, bytes]:
    """Return every file of the repository at its `revision`-th commit, path to content.

    Revisions differ in README.md and in the last shard (another lm_head), so that a client with an earlier one has
    files to download and files to keep.
    """
    files: dict[str, bytes] = {
        ".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"
        b"*.pth filter=lfs diff=lfs merge=lfs -text\n",
        "LICENSE": b"The lab's model is random numbers: public domain.\n",
        "README.md": (
            f"---\nlicense: cc0-1.0\npipeline_tag: text-generation\n---\n# tiny-llama\n\n"
            f"Random weights for tests: answers are noise. Revision {revision}.\n"
        ).encode(),
        "config.json": _json(_config()),
        "generation_config.json": _json(
            {"bos_token_id": 0, "do_sample": True, "eos_token_id": [1, 4], "temperature": 0.6, "top_p": 0.9}
        ),
        "tokenizer.json": _json(_tokenizer()),
        "tokenizer_config.json": _json(_tokenizer_config()),
        "special_tokens_map.json": _json({"bos_token": BOS, "eos_token": TURN_END}),
        "original/params.json": _json(
            {"dim": HIDDEN, "n_layers": LAYERS, "n_heads": HEADS, "n_kv_heads": KV_HEADS}
        ),
        "original/consolidated.00.pth": hashlib.shake_256(b"tiny-llama original").digest(ORIGINAL_BYTES),
    }
    files.update(_weights(revision))
    return files


def write(directory: Path, revision: int = 0) -> None:
    """Write the files of tiny_llama() below `directory`."""
    for name, content in tiny_llama(revision).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": [1, 4],
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": MAX_POSITIONS,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": VOCAB_SIZE,
    }


# --- tokenizer ------------------------------------------------------------------------------------


@cache
def _byte_symbols() -> dict[int, str]:
    """Return GPT-2's printable character for each byte, in GPT-2's order."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    symbols = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in symbols]
    symbols.update({byte: chr(256 + index) for index, byte in enumerate(others)})
    return symbols


def _merges(count: int) -> list[tuple[str, str]]:
    """Learn `count` merges: always the most frequent pair, the smaller one on a tie."""
    symbols = _byte_symbols()
    words = [
        tuple(symbols[byte] for byte in text.encode())
        for word in sorted(set(_WORDS.split()))
        for text in (word, " " + word, " " + word.capitalize())
    ]
    pairs = Counter(pair for word in words for pair in pairwise(word))
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for index, word in enumerate(words):
            if best in pairwise(word):
                pairs.subtract(pairwise(word))
                words[index] = _merge(word, best)
                pairs.update(pairwise(words[index]))
    return merges


def _merge(parts: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for part in parts:
        # A merged symbol is longer than either half, so it cannot be mistaken for the left half.
        if out and part == pair[1] and out[-1] == pair[0]:
            out[-1] += part
        else:
            out.append(part)
    return tuple(out)


@cache
def _tokenizer() -> dict[str, Any]:
    symbols = list(_byte_symbols().values())
    merges = _merges(TOKENS - len(SPECIAL_TOKENS) - len(symbols))
    tokens = [*SPECIAL_TOKENS, *symbols, *(left + right for left, right in merges)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **flags} for i, token in enumerate(SPECIAL_TOKENS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [
                {"SpecialToken": {"id": BOS, "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {BOS: {"id": BOS, "ids": [0], "tokens": [BOS]}},
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [f"{left} {right}" for left, right in merges],
        },
    }


def _tokenizer_config() -> dict[str, Any]:
    return {
        "bos_token": BOS,
        "chat_template": _CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": MAX_POSITIONS,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


# --- weights --------------------------------------------------------------------------------------


def _tensors() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes, in the order in which transformers writes a Llama."""
    yield "model.embed_tokens.weight", (VOCAB_SIZE, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (HIDDEN,)
        yield prefix + "mlp.down_proj.weight", (HIDDEN, INTERMEDIATE)
        yield prefix + "mlp.gate_proj.weight", (INTERMEDIATE, HIDDEN)
        yield prefix + "mlp.up_proj.weight", (INTERMEDIATE, HIDDEN)
        yield prefix + "post_attention_layernorm.weight", (HIDDEN,)
        yield prefix + "self_attn.k_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield prefix + "self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD_DIM)
        yield prefix + "self_attn.q_proj.weight", (HEADS * HEAD_DIM, HIDDEN)
        yield prefix + "self_attn.v_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB_SIZE, HIDDEN)


_BF16 = struct.Struct("<H")


def _bfloat16(value: float) -> int:
    """Return the 16 bits of the nearest bfloat16 (ties to even)."""
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _normal_table(deviation: float) -> tuple[bytes, bytes]:
    """Return low and high bytes of 256 bfloat16 values; a uniform choice among them is normally distributed."""
    normal = NormalDist(0.0, deviation)
    values = [_bfloat16(normal.inv_cdf((index + 0.5) / 256)) for index in range(256)]
    return bytes(value & 0xFF for value in values), bytes(value >> 8 for value in values)


def _is_text(token: int) -> bool:
    """Return whether an answer may contain the token: printable ASCII, or the end of a text or turn."""
    if token < len(SPECIAL_TOKENS):
        return SPECIAL_TOKENS[token] in (EOS, TURN_END)
    symbols = list(_byte_symbols())
    byte = token - len(SPECIAL_TOKENS)
    return token < TOKENS and (byte >= len(symbols) or 32 <= symbols[byte] <= 126)


def _tensor_bytes(name: str, shape: tuple[int, ...], seed: str) -> bytes:
    """Return random weights, except for one channel of the residual stream: channel 0 is a constant.

    Every embedding has the same value there, nothing adds to it, and lm_head reads it only for ids that are not text:
    their logits are far below all others, so that they are never generated.
    """
    count = math.prod(shape)
    if len(shape) == 1:  # a norm's scale: ones
        return _BF16.pack(_bfloat16(1.0)) * count
    low, high = _normal_table(1.0 if name == "model.embed_tokens.weight" else shape[-1] ** -0.5)
    draws = hashlib.shake_256(f"tiny-llama {seed} {name}".encode()).digest(count)
    out = bytearray(2 * count)
    out[0::2] = draws.translate(low)
    out[1::2] = draws.translate(high)
    if name == "model.embed_tokens.weight":
        for row in range(VOCAB_SIZE):
            _BF16.pack_into(out, 2 * row * HIDDEN, _bfloat16(1.0))
    elif name.endswith(("o_proj.weight", "down_proj.weight")):
        out[: 2 * shape[1]] = bytes(2 * shape[1])
    elif name == "lm_head.weight":
        for row in range(VOCAB_SIZE):
            _BF16.pack_into(out, 2 * row * HIDDEN, _bfloat16(0.0 if _is_text(row) else -100.0))
    return bytes(out)


def _weights(revision: int) -> dict[str, bytes]:
    shards: list[dict[str, tuple[tuple[int, ...], bytes]]] = [{}]
    size = total = 0
    for name, shape in _tensors():
        data = _tensor_bytes(name, shape, str(revision) if name == "lm_head.weight" else "0")
        if shards[-1] and size + len(data) > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = (shape, data)
        size += len(data)
        total += len(data)
    files: dict[str, bytes] = {}
    weight_map: dict[str, str] = {}
    for index, tensors in enumerate(shards, start=1):
        file = f"model-{index:05d}-of-{len(shards):05d}.safetensors"
        files[file] = _safetensors(tensors)
        weight_map.update(dict.fromkeys(tensors, file))
    files["model.safetensors.index.json"] = _json(
        {"metadata": {"total_size": total}, "weight_map": weight_map}
    )
    return files


def _safetensors(tensors: dict[str, tuple[tuple[int, ...], bytes]]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the lab's model into a directory.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--revision", type=int, default=0)
    arguments = parser.parse_args()
    write(arguments.directory, arguments.revision)
