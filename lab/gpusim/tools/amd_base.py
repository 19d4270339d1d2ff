# SPDX-License-Identifier: Apache-2.0
"""The common part of all amd-smi commands: command line, selection of devices, output, errors and exit codes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ..driver import faults
from ..machine.topology import Partition, bdf_of
from .amd_format import Row, csv_text, folded, human, json_text, size
from .smi import Lib, Status, Terminal

# amdsmi's number, name and text of a status.
AMDSMI = {
    Status.INVALID_ARGS: (1, "INVAL", "Invalid parameters"),
    Status.NOT_SUPPORTED: (2, "NOT_SUPPORTED", "Feature not supported"),
    Status.PERMISSION: (10, "NO_PERM", "Permission Denied"),
    Status.INTERNAL_EXCEPTION: (16, "INTERNAL_EXCEPTION", " Internal error"),
    Status.BUSY: (30, "BUSY", "Device busy"),
    Status.NOT_FOUND: (31, "NOT_FOUND", "Device Not found"),
    Status.UNEXPECTED_SIZE: (42, "UNEXPECTED_SIZE", "Unexpected size of data was read"),
    Status.UNEXPECTED_DATA: (43, "UNEXPECTED_DATA", "The data read or provided was unexpected"),
    Status.AMDGPU_RESTART_ERR: (54, "AMDGPU_RESTART_ERR", "Could not successfully restart the amdgpu driver"),
    Status.SETTING_UNAVAILABLE: (55, "SETTING_UNAVAILABLE", "Setting is not available"),
    Status.UNKNOWN: (0xFFFFFFFF, "UNKNOWN_ERROR", "An unknown error occurred"),
}
GROUPS = (
    "WARNING: User is missing the following required groups: render, video. Please add user to these groups."
)
NOT_SIMULATED = ("topology", "xgmi", "event", "firmware", "ucode", "bad-pages", "ras", "profile")


ALIASES = {"dmon": "monitor"}


class Exit(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class UsageError(Exception):
    """amd-smi's answer to a wrong command line: one line, or one JSON object, on stdout."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


class _Parser(argparse.ArgumentParser):
    terminal: Terminal

    def _print_message(self, message: str, file: Any = None) -> None:
        (self.terminal.err if file is sys.stderr else self.terminal.out).write(message or "")

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            raise _parameter(message.removeprefix("unrecognized arguments: "))
        self.terminal.err.write(f"{self.format_usage()}{self.prog}: error: {message}\n")
        raise Exit(2)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise Exit(status)


SEE = "Run '--help' for more info."


def _parameter(text: str) -> UsageError:
    return UsageError(f"Parameter '{text}' is invalid. {SEE}", -2)


class AmdBase:
    """Command line and output of amd-smi; a release sets the attributes below and adds do_<command>."""

    version: str
    library: str
    compute_options: tuple[str, ...] = ("-C", "--compute-partition")
    vbios_option = "-V/--vbios"
    reset_options: tuple[str, ...] = ("-G/--gpureset", "-r/--reload-driver")
    lower_arguments = True
    folds = False  # long lines of text
    static_wrap: str | None = "gpu_data"  # key of the object that holds static's and metric's rows in JSON
    not_loaded_exit = 255
    commands: tuple[str, ...] = (
        "version", "list", "static", "metric", "process", "set", "reset", "monitor", "dmon", "partition",
        "default",
    )  # fmt: skip

    def __init__(self, lib: Lib, terminal: Terminal) -> None:
        self.lib = lib
        self.t = terminal
        self.format = "text"

    # ------------------------------------------------------------ command line

    def run(self, argv: list[str]) -> int:
        """Run one command line and return its exit code."""
        if self.lower_arguments:
            argv = [a.lower() if a.startswith("--") or not a.startswith("-") else a for a in argv]
        self.format = "json" if "--json" in argv else "csv" if "--csv" in argv else "text"
        try:
            return self._run(argv)
        except Exit as e:
            return e.code
        except EOFError as e:
            self.t.err.write(f"EOFError: {e}\n")
            return 1
        except UsageError as e:
            return self.usage_error(e, argv)

    def usage_error(self, e: UsageError, argv: list[str]) -> int:
        """Print the error in the command line; the exit code is 0 anyway."""
        if self.format == "json":
            self.t.print(json.dumps({"error": e.text, "code": e.code}))
        elif self.format == "csv":
            self.t.print(f"error,code\n{e.text}, {e.code}")
        else:
            self.t.print(f"{e.text} Error code: {e.code}")
        return 0

    def _run(self, argv: list[str]) -> int:
        if not self.lib.node.driver.loaded:
            self.t.err.write("ERROR:root:Driver not loaded (amdgpu not found in modules)\n")
            return self.not_loaded_exit
        if not argv:
            argv = self._no_arguments()
        command, rest = argv[0], argv[1:]
        if command in ("-h", "--help"):
            self._help()
            return 0
        if command in NOT_SIMULATED:
            self.t.err.write(f"amd-smi: command '{command}' is not simulated in the lab\n")
            return 64
        if command not in self.commands:
            raise UsageError(f"Command '{command}' is invalid. {SEE}", -1)
        args = self._parser(command).parse_args(rest)
        if faults.value(self.lib.node, "warning-first"):
            self.t.print(GROUPS)
        action: Callable[[argparse.Namespace], None] = getattr(self, f"do_{ALIASES.get(command, command)}")
        action(args)
        return self.exit_code()

    def exit_code(self) -> int:
        """Return the exit code of a finished command."""
        return 0

    def _no_arguments(self) -> list[str]:
        return ["default"]

    def _help(self) -> None:
        versions = f"Version: {self.library} | ROCm version: {self.lib.node.release}"
        self.t.print("usage: amd-smi [-h]  ...\n")
        self.t.print(f"AMD System Management Interface | {versions} | Platform: {self._platform()}\n")
        self.t.print("options:\n  -h, --help          show this help message and exit\n\nAMD-SMI Commands:")
        for command in self.commands:
            self.t.print(f"    {command}")

    def _platform(self) -> str:
        kinds = {"baremetal": "Baremetal", "guest": "Guest", "passthrough": "Guest (Passthrough)"}
        return f"Linux {kinds[self.lib.node.platform]}"

    @property
    def bare(self) -> bool:
        """Return whether the partition options exist: not in a virtual machine."""
        return self.lib.node.platform == "baremetal"

    def _parser(self, command: str) -> argparse.ArgumentParser:
        parser = _Parser(
            prog=f"amd-smi {command}",
            formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=80, width=90),
        )
        parser.terminal = self.t
        self._arguments(parser, command)
        return parser

    def _arguments(self, parser: argparse.ArgumentParser, command: str) -> None:
        switches = {
            "version": ["-g/--gpu_version", "-c/--cpu_version"],
            "list": ["-e/--enumeration"],
            "static": ["-a/--asic", "-b/--bus", self.vbios_option, "-d/--driver", "-v/--vram", "-c/--cache",
                       "-B/--board", "-R/--process-isolation", "-r/--ras", "-p/--partition", "-l/--limit",
                       "-u/--numa"],
            "metric": ["-m/--mem-usage", "-u/--usage", "-p/--power", "-c/--clock", "-t/--temperature",
                       "-P/--pcie", "-e/--ecc", "-v/--throttle", "-E/--energy"],
            "process": ["-G/--general", "-e/--engine"],
            "monitor": ["-p/--power-usage", "-t/--temperature", "-u/--gfx", "-m/--mem", "-n/--encoder",
                        "-d/--decoder", "-e/--ecc", "-v/--vram-usage", "-r/--pcie", "-q/--process"],
            "partition": ["-c/--current", "-m/--memory", "-a/--accelerator"],
            "reset": list(self.reset_options),
        }  # fmt: skip
        switches["dmon"] = switches["monitor"]
        for words in switches.get(command, []):
            parser.add_argument(*words.split("/"), action="store_true")
        if command == "set" and self.bare:
            parser.add_argument(*self.compute_options, type=self.profile, metavar="TYPE/INDEX")
            memory = ["NPS1", "NPS2", "NPS4", "NPS8"]
            parser.add_argument(
                "-M", "--memory-partition", type=str.upper, choices=memory, metavar="PARTITION"
            )
        if command in ("process", "monitor", "dmon", "metric"):
            parser.add_argument("-w", "--watch", type=int, metavar="INTERVAL")
            parser.add_argument("-W", "--watch_time", type=int, metavar="TIME")
            parser.add_argument("-i", "--iterations", type=int, metavar="ITERATIONS")
        if command == "process":
            parser.add_argument("-p", "--pid", type=int)
            parser.add_argument("-n", "--name")
        if command not in ("version", "default"):
            parser.add_argument("-g", "--gpu", nargs="+", metavar="GPU")
        self._modifiers(parser)

    def _modifiers(self, parser: argparse.ArgumentParser) -> None:
        formats = parser.add_mutually_exclusive_group()
        formats.add_argument("--json", action="store_true")
        formats.add_argument("--csv", action="store_true")
        parser.add_argument("--file")
        parser.add_argument("--loglevel", metavar="LEVEL", type=str.upper, default="ERROR",
                            choices=["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"])  # fmt: skip

    def profile(self, text: str) -> str:
        """Return a compute mode given by name or index, checked against the driver's profiles (root only)."""
        node = self.lib.node
        if self.lib.euid != 0 or not node.driver.partition_config:
            raise UsageError(f"Command '--compute-partition' is not supported on the system. {SEE}", -7)
        modes = list(node.spec.compute_modes)
        valid = modes + [str(i) for i in range(len(modes))]
        if text.upper() not in valid:
            self.t.print(f"Valid inputs are {', '.join(valid)}")
            raise UsageError(f"Value '{text.upper()}' is not of valid type or format. {SEE}", -5)
        return modes[int(text)] if text.isdigit() else text.upper()

    def selected(self, args: argparse.Namespace) -> list[Partition]:
        """Return the devices named by index, PCI address or UUID; all without a selection."""
        names: Sequence[str] | None = args.gpu
        if names is None or "all" in names:
            return list(self.lib.devices)
        found = []
        for name in names:
            match = next(
                (d for d in self.lib.devices if name.lower() in (str(d.index), self.bdf(d), self.uuid(d))),
                None,
            )
            if match is None:
                if name.isdigit() or ":" in name or len(name) == 36:
                    raise UsageError(f"Can not find a device: GPU '{name}'", -3)
                raise UsageError(f"Value '{name}' is not of valid type or format. {SEE}", -5)
            found.append(match)
        return found

    # ------------------------------------------------------------ output

    def emit(self, rows: list[Row], wrap: str | None = None) -> None:
        """Print one row per GPU. `wrap` names the key of the object that contains them in JSON."""
        if self.format == "json":
            self.t.print(json_text({wrap: rows} if wrap else rows))
        elif self.format == "csv":
            self.t.print(csv_text(rows))
        else:
            texts = [folded(human(row)) if self.folds else human(row) for row in rows]
            self.t.print(texts[0] if len(texts) == 1 else "".join(f"{text}\n" for text in texts))

    def end_each(self, devices: Sequence[Partition]) -> None:
        """Print the empty line that follows rows printed one by one, if there were several."""
        if len(devices) > 1 and self.format == "text":
            self.t.print("")

    def unit(self, value: Any, unit: str) -> Any:
        if value == "N/A":
            return value
        return {"value": value, "unit": unit} if self.format == "json" else f"{value} {unit}"

    def bytes(self, value: int) -> Any:
        return {"value": value, "unit": "B"} if self.format == "json" else size(value)

    unnamed: tuple[Status, ...] = ()  # statuses for which the release's Python knows no name

    def chain(self, status: Status, last: str) -> NoReturn:
        """Print Python's report of an exception that caused another, without frames; exit code 1."""
        number, name, text = AMDSMI[status]
        if status in self.unnamed:
            _unused, name, text = AMDSMI[Status.UNKNOWN]
        self.t.err.write(
            f"amdsmi.amdsmi_exception.AmdSmiLibraryException: Error code:\n"
            f"\t{number} | AMDSMI_STATUS_{name} - {text}\n\n"
            f"The above exception was the direct cause of the following exception:\n\n{last}\n"
        )
        raise Exit(1)

    def elevation(self) -> NoReturn:
        self.chain(Status.PERMISSION, "PermissionError: Command requires elevation")

    # ------------------------------------------------------------ what a device is

    def bdf(self, device: Partition) -> str:
        return bdf_of(self.lib.start.gpus[device.gpu], device.part)

    def uuid(self, device: Partition) -> str:
        """Return the UUID from the unique id and the device id; from 7.0 on, partitions differ in the second byte."""
        return self.uuid_text(self.lib.start.gpus[device.gpu].unique_id, device.part or 0xFF)

    def uuid_text(self, serial: int, function: int) -> str:
        did = self.lib.start.spec.device_id
        low, mid, six, seven = serial & 0xFFFFFFFF, serial >> 32 & 0xFFFF, serial >> 48 & 0xFF, serial >> 56
        return f"{seven:02x}{function:02x}{did:04x}-0000-1000-80{six:02x}-{mid:04x}{low:08x}"
