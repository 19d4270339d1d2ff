# SPDX-License-Identifier: Apache-2.0
"""The options of rocm-smi, in the order in which its usage text lists them."""

from __future__ import annotations

from typing import Any

_COMPUTE = ["CPX", "SPX", "DPX", "TPX", "QPX"]
_MEMORY = ["NPS1", "NPS2", "NPS4", "NPS8"]

# (flags, arguments to add_argument) in the order of the usage text. T is a plain switch.
_T: dict[str, Any] = {"action": "store_true"}
Option = tuple[tuple[str, ...], dict[str, Any]]


def _many(metavar: str, **more: Any) -> dict[str, Any]:
    return {"metavar": metavar, "nargs": "+", **more}


def _three(*metavar: str) -> dict[str, Any]:
    return {"metavar": metavar, "nargs": len(metavar)}


def _switches(text: str) -> list[Option]:
    return [(tuple(word.split("/")), _T) for word in text.split()]


_SHOW: list[Option] = [
    (("-V", "--version"), _T),
    (("-d", "--device"), {"type": int, "nargs": "+"}),
    *_switches("--alldevices --showhw -a/--showallinfo -i/--showid -v/--showvbios"),
    (("-e", "--showevents"), {"metavar": "EVENT", "nargs": "*"}),
    *_switches("--showdriverversion --showtempgraph"),
    (("--showfwinfo",), {"metavar": "BLOCK", "nargs": "*"}),
    *_switches(
        "--showmclkrange --showmemvendor --showsclkrange --showproductname --showserial --showuniqueid"
        " --showvoltagerange --showbus --showpagesinfo --showpendingpages --showretiredpages"
        " --showunreservablepages -f/--showfan -P/--showpower -t/--showtemp -u/--showuse --showmemuse"
        " --showvoltage -b/--showbw -c/--showclocks -g/--showgpuclocks -l/--showprofile -M/--showmaxpower"
        " -m/--showmemoverdrive -o/--showoverdrive -p/--showperflevel -S/--showclkvolt -s/--showclkfrq"
    ),
    (("--showmeminfo",), _many("TYPE")),
    (("--showpids",), {"metavar": "VERBOSE", "const": "summary", "nargs": "?"}),
    (("--showpidgpus",), {"nargs": "*"}),
    *_switches("--showreplaycount"),
    (("--showrasinfo",), {"nargs": "*"}),
    *_switches(
        "--showvc --showxgmierr --showtopo --showtopoaccess --showtopoweight --showtopohops --showtopotype"
        " --showtoponuma --showenergycounter --shownodesbw --showcomputepartition --showmemorypartition"
    ),
]
_RESET = (
    "-r/--resetclocks --resetfans --resetprofile --resetpoweroverdrive --resetxgmierr --resetperfdeterminism"
)
_SET: list[Option] = [
    (("--setclock",), _three("TYPE", "LEVEL")),
    (("--setsclk",), _many("LEVEL", type=int)),
    (("--setmclk",), _many("LEVEL", type=int)),
    (("--setpcie",), _many("LEVEL", type=int)),
    (("--setslevel",), _three("SCLKLEVEL", "SCLK", "SVOLT")),
    (("--setmlevel",), _three("MCLKLEVEL", "MCLK", "MVOLT")),
    (("--setvc",), _three("POINT", "SCLK", "SVOLT")),
    (("--setsrange",), _three("SCLKMIN", "SCLKMAX")),
    (("--setextremum",), _three("min|max", "sclk|mclk", "CLK")),
    (("--setmrange",), _three("MCLKMIN", "MCLKMAX")),
    (("--setfan",), {"metavar": "LEVEL"}),
    (("--setperflevel",), {"metavar": "LEVEL"}),
    (("--setoverdrive",), {"metavar": "%"}),
    (("--setmemoverdrive",), {"metavar": "%"}),
    (("--setpoweroverdrive",), {"metavar": "WATTS"}),
    (("--setprofile",), {}),
    (("--setperfdeterminism",), {"metavar": "SCLK", "type": int, "nargs": 1}),
]
_END: list[Option] = [
    (("--rasenable",), _three("BLOCK", "ERRTYPE")),
    (("--rasdisable",), _three("BLOCK", "ERRTYPE")),
    (("--rasinject",), {"metavar": "BLOCK", "nargs": 1}),
    (("--gpureset",), _T),
]
OUTPUT: list[Option] = [
    (("--autorespond",), {"metavar": "RESPONSE"}),
    (("--loglevel",), {"metavar": "LEVEL"}),
    (("--json",), _T),
    (("--csv",), _T),
]


def options(metrics: bool, reset_partition: bool) -> list[Option]:
    """Return all options except those for files and output; a release may have --showmetrics and resets of modes."""
    resets = _switches(_RESET)
    if reset_partition:
        resets += _switches("--resetcomputepartition --resetmemorypartition")
    shown = _switches("--showmetrics") if metrics else []
    modes: list[Option] = [
        (("--setcomputepartition",), {"choices": _COMPUTE + [m.lower() for m in _COMPUTE], "nargs": 1}),
        (("--setmemorypartition",), {"choices": _MEMORY + [m.lower() for m in _MEMORY], "nargs": 1}),
    ]
    return [*_SHOW, *shown, *resets, *_SET, *modes, *_END]
