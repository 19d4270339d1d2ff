# SPDX-License-Identifier: Apache-2.0
"""The common part of rocm-smi: command line, the log's layout, JSON and CSV, exit codes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn

from ..machine.topology import Partition
from .rocm_options import OUTPUT, options
from .smi import Lib, Status, Terminal

Action = tuple[str, Callable[[list[Partition], Any, argparse.Namespace], None]]
WIDTH = 90
TEXTS = {
    Status.INVALID_ARGS: "Invalid arguments provided",
    Status.NOT_SUPPORTED: "Not supported on the given system",
    Status.PERMISSION: "Permission denied",
    Status.INTERNAL_EXCEPTION: "An internal exception was caught",
    Status.UNEXPECTED_SIZE: "Unexpected amount of data read",
    Status.UNEXPECTED_DATA: "Unexpected data received",
    Status.BUSY: "Busy - resources are preventing call the ability to execute",
    Status.SETTING_UNAVAILABLE: "Requested setting is unavailable for current device",
    Status.AMDGPU_RESTART_ERR: "Could not successfully restart the amdgpu driver",
    Status.NOT_FOUND: "Item searched for but not found",
}
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


class Exit(Exception):
    """The tool ends here with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Parser(argparse.ArgumentParser):
    def __init__(self, terminal: Terminal, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._terminal = terminal

    def _print_message(self, message: str, file: Any = None) -> None:
        if message:
            (self._terminal.err if file is sys.stderr else self._terminal.out).write(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        if message:
            self._terminal.err.write(message)
        raise Exit(status)

    def error(self, message: str) -> NoReturn:
        self._terminal.err.write(self.format_usage())
        self.exit(2, f"{self.prog}: error: {message}\n")


class RocmBase(ABC):
    """Command line and output of rocm-smi; a release sets the attributes below and adds its actions."""

    version: str
    library: str
    lead = "\n\n"
    metrics = True  # has --showmetrics
    dies_without_data = False  # in CSV, a device of which nothing is known ends the tool
    reset_partition = False
    invalid = Status.INVALID_ARGS  # the status for EINVAL

    def __init__(self, lib: Lib, terminal: Terminal, prog: str = "/opt/rocm/bin/rocm-smi") -> None:
        self.lib = lib
        self.t = terminal
        self.prog = prog
        self.retcode = 0
        self.json_data: dict[str, dict[str, str]] | None = None
        self.level = 30

    @abstractmethod
    def actions(self) -> list[Action]:
        """Return the options that do something, in the order in which the tool carries them out."""

    @abstractmethod
    def show_version(self, csv: bool) -> None:
        """Run --version."""

    @abstractmethod
    def show_concise(self, devices: list[Partition]) -> None:
        """Print the view without options."""

    # ------------------------------------------------------------ command line

    def parser(self) -> argparse.ArgumentParser:
        parser = _Parser(
            self.t,
            prog="rocm-smi",
            description=f"AMD ROCm System Management Interface  |  ROCM-SMI version: {self.version}",
            formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=90, width=120),
        )
        group = parser.add_argument_group()
        for flags, keywords in options(self.metrics, self.reset_partition):
            group.add_argument(*flags, **keywords)
        files = parser.add_mutually_exclusive_group()
        files.add_argument("--load", metavar="FILE")
        files.add_argument("--save", metavar="FILE")
        output = parser.add_argument_group()
        for flags, keywords in OUTPUT:
            output.add_argument(*flags, **keywords)
        return parser

    def run(self, argv: list[str]) -> int:
        """Run one command line and return its exit code."""
        try:
            self._run(argv)
        except Exit as e:
            return e.code
        except EOFError as e:
            self.t.err.write(f"EOFError: {e}\n")
            return 1
        return self.retcode

    def _run(self, argv: list[str]) -> None:
        args = self.parser().parse_args(argv)
        if args.json or args.csv:
            self.json_data = {}
        if not self.lib.node.driver.loaded:
            self.t.err.write("ERROR:root:Driver not initialized (amdgpu not found in modules)\n")
            raise Exit(0)
        if args.version:
            self.show_version(args.csv)
            raise Exit(0)
        self.level = _LEVELS.get(args.loglevel or "warning", 30)
        unsimulated = self._unsimulated(args)
        changes = [
            name for name in vars(args) if name.startswith(("set", "reset", "ras")) and vars(args)[name]
        ]
        if (changes or args.load or args.gpureset) and self.lib.euid != 0:
            os.execvp("sudo", ["sudo", self.prog, *argv])
        if unsimulated:
            self.t.err.write(f"rocm-smi: {unsimulated} is not simulated in the lab\n")
            raise Exit(64)
        devices = self._selected(args)
        if self.json_data is not None:
            self.json_data.update({f"card{d.index}": {} for d in devices})
        else:
            self.t.print(self.lead, end="")
        concise = not argv or (len(argv) == 1 and (args.alldevices or args.json or args.csv))
        if not concise and not args.showhw:
            self.spacer(" ROCm System Management Interface ")
        if concise:
            self.show_concise(devices)
        for name, action in self.actions():
            value = getattr(args, name, None)
            if value is not None and value is not False:
                action(devices, value, args)
        if args.loglevel is None or self.level == 30:
            self.retcode = 0
        if self.json_data is not None:
            self._print_data(devices, args)
        if not concise and not args.showhw:
            self.spacer(" End of ROCm SMI Log ")

    def _unsimulated(self, args: argparse.Namespace) -> str | None:
        known = {name for name, _ in self.actions()} | {
            "version", "device", "alldevices", "autorespond", "loglevel", "json", "csv",
        }  # fmt: skip
        for name, value in vars(args).items():
            if name not in known and value is not None and value is not False:
                return f"--{name}"
        return None

    def _selected(self, args: argparse.Namespace) -> list[Partition]:
        if args.device is None:
            return list(self.lib.devices)
        chosen: list[Partition] = []
        for number in args.device:
            if not 0 <= number < len(self.lib.devices):
                self.warn(f"No such device card{number}")
                raise Exit(0)
            if self.lib.devices[number] not in chosen:
                chosen.append(self.lib.devices[number])
        return chosen

    # ------------------------------------------------------------ output

    def spacer(self, text: str = "", width: int = WIDTH) -> None:
        """Print a line of = with text in the middle. Lines have even widths only."""
        if self.json_data is not None:
            return
        if text and len(text) % 2:
            text += "="
        side = "=" * ((width + width % 2 - len(text)) // 2)
        self.t.print(f"{side}{text}{side}")

    def log(self, device: Partition | None, name: str, value: Any = None) -> None:
        """Print one line of the body; in JSON, only text with a colon becomes a key and a value."""
        text = name if value is None else f"{name}: {value}"
        if self.json_data is not None:
            if device is not None:
                self._collect(f"card{device.index}", text)
            return
        self.t.print(text if device is None else f"GPU[{device.index}]\t\t: {text}")

    def log_system(self, name: str, value: Any) -> None:
        """Print a line that concerns no device."""
        if self.json_data is not None:
            self._collect("system", f"{name}: {value}")
            return
        self.t.print(f"{name}: {value}")

    def _collect(self, key: str, text: str) -> None:
        assert self.json_data is not None
        for line in text.splitlines():
            if ":" in line:
                parts = line.split(": ")
                self.json_data.setdefault(key, {})[parts[0]] = parts[1].strip()

    def warn(self, text: str) -> None:
        if self.level <= 30:
            self.t.err.write(f"WARNING: {text}\n")

    def error(self, device: Partition, text: str) -> None:
        if self.json_data is None and self.level <= 40:
            self.t.err.write(f"ERROR: GPU[{device.index}]\t: {text}\n")

    def ok(
        self, status: Status, device: Partition | None = None, metric: str = "", silent: bool = True
    ) -> bool:
        """Return whether a call succeeded; a failure becomes the exit code, and a line unless silent.

        The library's unknown error is -1 in Python, for which the tool knows no text: nothing is printed.
        """
        if status is Status.SUCCESS:
            return True
        if self.json_data is None and not silent and status in TEXTS:
            self.log(device, f"{metric}, {TEXTS[status]}")
        self.retcode = int(status) & 0xFF
        return False

    def _print_data(self, devices: list[Partition], args: argparse.Namespace) -> None:
        assert self.json_data is not None
        data = {key: values for key, values in self.json_data.items() if values}
        if not data:
            self.warn("No JSON data to report")
            raise Exit(self.retcode)
        if not args.csv:
            self.t.print(json.dumps(data))
            return
        if "system" in data:
            rows = [f'"{key}", "{value}"' for key, value in data["system"].items()]
            self.t.print("name, value\n" + "".join(f"{row}\n" for row in rows))
            return
        missing = next((card for card in self.json_data if not self.json_data[card]), None)
        if missing is not None and self.dies_without_data:
            self.t.err.write(f"KeyError: {missing!r}\n")
            raise Exit(1)
        keys: list[str] = []
        for values in data.values():
            keys += [key for key in values if key not in keys]
        lines = [",".join(["device", *keys])]
        for card, values in data.items():
            cells = [values.get(key, "N/A").replace(",", "") for key in keys]
            lines.append(",".join([card, *cells]))
        self.t.print("".join(f"{line}\n" for line in lines))

    def _table(self, title: str, header: list[str], sub: list[str] | None, rows: list[list[str]]) -> None:
        if self.json_data is not None:
            what = "concise output" if sub else "concise hardware output"
            self.t.print(f"NOT_SUPPORTED: Cannot print JSON/CSV output for {what}")
            raise Exit(1)
        if sub:
            header, sub = (
                [h.ljust(len(s)) for h, s in zip(header, sub, strict=True)],
                [s.ljust(len(h)) for h, s in zip(header, sub, strict=True)],
            )
        widths = [max(len(row[i]) for row in [header, *rows]) + 2 for i in range(len(header))]

        def line(cells: list[str]) -> str:
            return "".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))

        width = sum(widths)
        self.spacer(" ROCm System Management Interface ", width)
        self.spacer(title, width)
        self.t.print(line(header))
        if sub:
            self.t.print(f"\033[3m{line(sub)}\033[0m")
            self.spacer(width=width)
        for row in rows:
            self.t.print(line(row))
        self.spacer(width=width)
        self.spacer(" End of ROCm SMI Log ", width)
