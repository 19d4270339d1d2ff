# SPDX-License-Identifier: Apache-2.0
"""Compare a quantized checkpoint with its source by the headers of their files: names, types and shapes of tensors.

It runs in the container of the job, and needs no more than the standard library: a header is JSON before the tensors.
"""

from __future__ import annotations

import fnmatch
import json
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

HEADER_LIMIT = 2**27  # bytes; safetensors itself refuses larger ones
_NAMED = 5


class BadCheckpoint(Exception):
    """A checkpoint that no engine can load; the message says which file or tensor, and why."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint: its type as safetensors names it, its shape, and the file that has it."""

    dtype: str
    shape: tuple[int, ...]
    file: str


@dataclass
class TensorComparison:
    """What was found. problems: reasons to refuse the output.

    quantized: modules; left: matrices that no pattern names and that are unquantized anyway, such as embeddings;
    unmatched: patterns that name nothing.
    """

    quantized: list[str] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read_tensors(directory: str) -> dict[str, Tensor]:
    """Return all tensors of the *.safetensors of a directory. Raise BadCheckpoint for files that are broken."""
    found: dict[str, Tensor] = {}
    names = sorted(name for name in os.listdir(directory) if name.endswith(".safetensors"))
    if not names:
        raise BadCheckpoint(f"{directory} has no *.safetensors.")
    for name in names:
        path = os.path.join(directory, name)
        for key, entry in _header(path).items():
            if key == "__metadata__":
                continue
            if key in found:
                raise BadCheckpoint(f"The tensor {key} is in {found[key].file} and in {name}.")
            found[key] = Tensor(str(entry["dtype"]), tuple(entry["shape"]), name)
    return found


def _header(path: str) -> dict[str, Any]:
    with open(path, "rb") as stream:
        start = stream.read(8)
        size = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < size <= HEADER_LIMIT:
            raise BadCheckpoint(f"{path} does not begin as a safetensors file.")
        try:
            header: dict[str, Any] = json.loads(stream.read(size))
            end = max((item["data_offsets"][1] for key, item in header.items() if key[:2] != "__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadCheckpoint(f"{path} has a broken header.") from error
        if os.fstat(stream.fileno()).st_size != 8 + size + end:
            raise BadCheckpoint(f"{path} is truncated, or has bytes that no tensor owns.")
        return header


def check_index(directory: str, tensors: Mapping[str, Tensor]) -> None:
    """Raise BadCheckpoint if the index names other tensors or files than there are."""
    path = os.path.join(directory, "model.safetensors.index.json")
    if not os.path.exists(path):
        return
    with open(path, encoding="utf-8") as stream:
        index = json.load(stream).get("weight_map", {})
    there = {name: tensor.file for name, tensor in tensors.items()}
    wrong = sorted(name for name in {*index, *there} if index.get(name) != there.get(name))
    if wrong:
        raise BadCheckpoint(
            f"model.safetensors.index.json and the files disagree: {_some(wrong)}. An engine would not find them."
        )


def compare(
    source: Mapping[str, Tensor],
    output: Mapping[str, Tensor],
    expected: Mapping[str, Mapping[str, Any]],
    exclude: Sequence[str],
    kv_layers: Sequence[str],
) -> TensorComparison:
    """Return how the output differs from its source.

    expected: each tensor of a quantized module by the end of its name, with its dtypes and shape (catalog/
    quantization.yml). kv_layers: patterns of the modules that have an output_scale for the KV cache.
    """
    found = TensorComparison()
    matrices = [
        name[:-7] for name, item in source.items() if name.endswith(".weight") and len(item.shape) == 2
    ]
    for pattern in exclude:
        if not any(fnmatch.fnmatchcase(module, pattern) for module in _modules(source)):
            found.unmatched.append(pattern)
    for module in matrices:
        own, was = output.get(f"{module}.weight"), source[f"{module}.weight"]
        same = own is not None and (own.dtype, own.shape) == (was.dtype, was.shape)
        companions = [name for name in expected if name != "weight" and f"{module}.{name}" in output]
        if any(fnmatch.fnmatchcase(module, pattern) for pattern in exclude):
            found.excluded.append(module)
            if not same or companions:
                found.problems.append(f"{module} is excluded, but was changed")
        elif same and not companions:
            found.left.append(module)
        elif problems := _module_problems(module, was, output, expected):
            found.problems += problems
        else:
            found.quantized.append(module)
    _others(source, output, expected, matrices, found)
    _scales(source, output, kv_layers, found)
    if not found.quantized:
        found.problems.append("nothing is quantized")
    return found


def _modules(tensors: Iterable[str]) -> set[str]:
    """Return the names of all modules, with those that contain them."""
    found: set[str] = set()
    for name in tensors:
        parts = name.split(".")
        found.update(".".join(parts[:end]) for end in range(1, len(parts)))
    return found


def _module_problems(
    module: str, was: Tensor, output: Mapping[str, Tensor], expected: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    problems = []
    for name, wanted in expected.items():
        own = output.get(f"{module}.{name}")
        if own is None:
            problems.append(f"{module}.{name} is missing")
            continue
        shapes = [shape_of(shape, was.shape) for shape in wanted["shapes"]]
        if own.dtype not in wanted["dtypes"]:
            problems.append(f"{module}.{name} is {own.dtype}, not {' or '.join(wanted['dtypes'])}")
        elif own.shape not in shapes:
            problems.append(f"{module}.{name} has the shape {list(own.shape)}, not {list(shapes[0])}")
    return problems


def shape_of(words: Sequence[str], matrix: Sequence[int]) -> tuple[int, ...]:
    """Return a shape like [out, in/32] in numbers, for a matrix [out, in]."""
    size = {"out": matrix[0], "in": matrix[1]}
    found = []
    for word in words:
        name, _slash, divisor = str(word).partition("/")
        found.append(-(-size[name] // int(divisor or 1)) if name in size else int(name))
    return tuple(found)


def _others(
    source: Mapping[str, Tensor],
    output: Mapping[str, Tensor],
    expected: Mapping[str, Any],
    matrices: Sequence[str],
    found: TensorComparison,
) -> None:
    weights = {f"{module}.weight" for module in matrices}
    for name, was in source.items():
        own = output.get(name)
        if own is None:
            found.problems.append(f"{name} of the source is missing")
        elif name not in weights and own.shape != was.shape:
            found.problems.append(
                f"{name} has the shape {list(own.shape)}, but {list(was.shape)} in the source"
            )
    known = {f"{module}.{name}" for module in matrices for name in expected}
    strange = sorted(
        name for name in output if name not in source and name not in known and name[-13:] != ".output_scale"
    )
    if strange:
        found.problems.append(f"tensors that the scheme does not have: {_some(strange)}")


def _scales(
    source: Mapping[str, Tensor],
    output: Mapping[str, Tensor],
    kv_layers: Sequence[str],
    found: TensorComparison,
) -> None:
    wanted = {
        name[:-7]
        for name in source
        if name.endswith(".weight") and any(fnmatch.fnmatchcase(name[:-7], pattern) for pattern in kv_layers)
    }
    if kv_layers and not wanted:
        found.problems.append(f"no layer is named as {_some(kv_layers)}, so the KV cache has no scale")
    there = {name[:-13] for name in output if name.endswith(".output_scale")}
    for module in sorted(wanted - there):
        found.problems.append(f"{module}.output_scale is missing, the scale of the KV cache")
    for module in sorted(there - wanted):
        found.problems.append(f"{module}.output_scale is there, although no KV cache is quantized")
    for module in sorted(wanted & there):
        tensor = output[f"{module}.output_scale"]
        if tensor.shape not in ((), (1,)):
            found.problems.append(f"{module}.output_scale has the shape {list(tensor.shape)}, not one number")


def _some(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return ", ".join(every[:_NAMED]) + more
