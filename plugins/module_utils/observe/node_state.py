#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Read everything the planner needs to know of a node. Also the module node_state (library/node_state.py).

This file is sent to every host in every run, so it is one file that imports next to nothing: Ansible puts
the arguments into ARGUMENTS below and pipes the text into Python, without unpacking its module framework.
Data are plain dictionaries here, as importing dataclasses costs more than all the reading.
"""

from __future__ import annotations

import json
import os
import sys

DOCUMENTATION = r"""
module: node_state
short_description: Read the state of an AMD Instinct node
version_added: "0.1.0"
description:
  - Reads in one call what the planner needs to know of a node - operating system, NUMA, driver, ROCm, GPUs
    with their partitions, Docker engine, images, weights, running instances and free disk space.
  - Starts no program and changes nothing. A source that cannot be read gives null for its field and an entry
    in RV(node_state.problems); what the node does not have is null or an empty list, never a guess.
  - A script without Ansible's module framework, because it runs on every host in every run. It costs about a
    fifth of what M(ansible.builtin.ping) costs on the node.
options:
  state_dir:
    description: Where the instances' files live on the node.
    type: path
    default: /etc/instinct-fleet
  data_dir:
    description: Where weights and benchmark results live on the node.
    type: path
    default: /var/lib/instinct-fleet
  cache_dirs:
    description: Hugging Face caches (C(HF_HOME)) to look for weights in. Default is C(hf) in O(data_dir).
    type: list
    elements: path
  docker_socket:
    description: The Docker engine's socket.
    type: path
    default: /var/run/docker.sock
  sysfs_root:
    description: Prefix of C(/sys), C(/proc), C(/etc), C(/opt), C(/usr) and C(/dev), to read a captured tree.
    type: path
    default: /
attributes:
  check_mode:
    description: Can run in check mode and return the same result, as it only reads.
    support: full
  diff_mode:
    description: Will return details on what has changed. Nothing ever does.
    support: none
  idempotent:
    description: Running it twice in a row changes nothing the second time, nor the first.
    support: full
  platform:
    description: Target OS that can be operated against.
    support: full
    platforms: linux
requirements:
  - Python 3.9 on the node, standard library only
  - root, to see kernel and Docker state that other users do not see
author:
  - instinct-fleet contributors
"""

EXAMPLES = r"""
- name: Observe the node
  instinct.fleet.node_state:
  become: true
  register: node_state_result

- name: Observe a node with a second cache
  instinct.fleet.node_state:
    cache_dirs:
      - /var/lib/instinct-fleet/hf
      - /mnt/weights/hf
  become: true
"""

RETURN = r"""
node_state:
  description: What was found. Sizes are bytes.
  returned: success
  type: dict
  contains:
    schema: {description: Version of this structure., type: int, sample: 1}
    hostname: {description: The kernel's node name., type: str, sample: n1}
    euid: {description: Effective user id of the module., type: int, sample: 0}
    python: {description: Version of the Python that ran the module., type: str, sample: 3.11.2}
    os:
      description: C(ID), C(VERSION_ID) and C(PRETTY_NAME) of C(/etc/os-release).
      type: dict
      sample: {id: debian, version_id: "12", pretty_name: Debian GNU/Linux 12 (bookworm)}
    kernel: {description: Kernel release., type: str, sample: 6.8.0-79-generic}
    cmdline: {description: Words of the kernel command line., type: list, elements: str, sample: [iommu=pt]}
    numa_balancing:
      description:
        - Automatic NUMA balancing. RV(node_state.numa_balancing.runtime) is the kernel's value now, null when
          the kernel has no such setting.
        - RV(node_state.numa_balancing.persisted) is the value that the next boot gives, and
          RV(node_state.numa_balancing.file) what decides it - the last sysctl file that sets it, or
          C(/proc/cmdline); both null when nothing does.
      type: dict
      sample: {runtime: 0, persisted: 0, file: /etc/sysctl.d/60-instinct-fleet.conf}
    cpu: {description: Processor., type: dict, sample: {model: AMD EPYC 9654, sockets: 2, threads: 384}}
    numa_nodes:
      description: NUMA nodes with their CPUs and memory.
      type: list
      elements: dict
      sample: [{id: 0, cpus: "0-95,192-287", memory_bytes: 1082000000000}]
    memory_bytes: {description: Memory of the host., type: int}
    virtual_machine: {description: Whether the CPU reports a hypervisor., type: bool}
    driver:
      description: The amdgpu driver. Only AMD's DKMS driver has a version, the kernel's own has null.
      type: dict
      sample: {loaded: true, version: 6.12.12}
    rocm:
      description: ROCm release and its management tools; the version is null where ROCm is not installed.
      type: dict
      sample: {version: 7.0.0, tools: {amd-smi: /opt/rocm/bin/amd-smi, rocm-smi: /opt/rocm/bin/rocm-smi}}
    gpus:
      description: GPUs in the order of their PCI addresses.
      type: list
      elements: dict
      contains:
        index: {description: Position in this list., type: int}
        bdf: {description: PCI address., type: str, sample: "0000:05:00.0"}
        sysfs_path: {description: Its directory., type: str, sample: /sys/class/drm/renderD128/device}
        vendor_id: {description: PCI vendor., type: int, sample: 4098}
        device_id: {description: PCI device., type: int, sample: 29857}
        gfx: {description: Instruction set architecture., type: str, sample: gfx942}
        unique_id: {description: Serial number in hexadecimal., type: str}
        vram_total: {description: Memory of the GPU., type: int}
        vram_used: {description: Memory in use., type: int}
        numa_node: {description: NUMA node of its PCI slot., type: int}
        compute_partition: {description: Current mode., type: str, sample: SPX}
        available_compute_partitions:
          description: Modes offered under the current memory partition mode.
          type: list
          elements: str
        memory_partition: {description: Current mode., type: str, sample: NPS1}
        available_memory_partitions: {description: Modes offered., type: list, elements: str}
        link_speed: {description: Speed of the PCIe link., type: str, sample: 32.0 GT/s PCIe}
        link_width: {description: Lanes of the PCIe link., type: int, sample: 16}
        in_reset: {description: Whether the GPU is being reset now., type: bool}
        ecc_uncorrectable: {description: Uncorrectable memory errors since the boot; null where not counted., type: int}
        users: {description: Processes that KFD counts on it., type: list, elements: int}
        partitions:
          description: Logical GPUs (KFD nodes) of this GPU.
          type: list
          elements: dict
          contains:
            id: {description: Number of the partition on its GPU., type: int}
            render_node: {description: Name under C(/dev/dri)., type: str, sample: renderD128}
            render_minor: {description: Minor number of the render node., type: int}
            kfd_node: {description: Number of the KFD topology node., type: int}
            gpu_id: {description: KFD's hash for the partition., type: int}
            simd_count: {description: SIMD units. Four make a compute unit., type: int}
            num_xcc: {description: Accelerator dies in the partition., type: int}
            memory_bytes: {description: Memory of the partition., type: int}
    kfd_processes: {description: Processes that have C(/dev/kfd) open., type: list, elements: int}
    kfd_zombies: {description: Those of them that have ended and were not looked after., type: list, elements: int}
    partition_change:
      description: The step at which a change of partition modes was cut off, or is now; null when there is none.
      type: str
      sample: set
    device_gids:
      description: Numeric groups of C(/dev/kfd), the render nodes and the video devices.
      type: dict
      sample: {kfd: 109, render: 109, video: 44}
    interfaces:
      description:
        - Network interfaces with an address that other hosts may reach, neither loopback nor link-local.
          RV(node_state.interfaces[].speed) is in Mb/s, null where the driver does not tell.
      type: list
      elements: dict
      sample: [{name: eth0, addresses: [192.0.2.11], up: true, mtu: 1500, speed: 25000}]
    rdma:
      description:
        - Ports of the RDMA devices (HCAs). RV(node_state.rdma[].rate) is in Gb/s, RV(node_state.rdma[].interface) the
          network interface of the port, RV(node_state.rdma[].gid_index) that of its first RoCE v2 address for IPv4.
      type: list
      elements: dict
      sample: [{name: mlx5_0, port: 1, state: ACTIVE, layer: Ethernet, rate: 400, interface: rdma0, gid_index: 3}]
    instance_key: {description: By what the key of its instances can be recognised; null without one., type: str}
    verbs: {description: Whether C(/dev/infiniband) has devices for programs to use., type: bool}
    docker:
      description:
        - The Docker engine. RV(node_state.docker.installed) says whether its program is there,
          RV(node_state.docker.error) why it did not answer, RV(node_state.docker.community) whether it is Docker's
          own package and not the distribution's, RV(node_state.docker.buildx) whether its client for BuildKit is
          there.
      type: dict
      sample: {installed: true, available: true, version: 20.10.24, api_version: "1.41", community: false,
               buildx: false, root_dir: /var/lib/docker, error: null}
    git: {description: Whether git is there., type: bool}
    images:
      description:
        - Images of the engine. C(software) is what an image answered when M(vllm_image) asked what is in it, and
          null when it was not asked.
      type: list
      elements: dict
      sample: [{id: "sha256:11", tags: ["r:t"], digests: ["r@sha256:22"], bytes: 1,
                software: {vllm: 0.11.2+rocm700, platform: rocm, rocm: 7.0.0, pytorch: 2.9.0, python: 3.12.11,
                           gfx: [gfx942]}}]
    models:
      description: Weights with a marker of a finished fetch, and whether every file is there with its size.
      type: list
      elements: dict
      sample: [{cache_dir: /var/lib/instinct-fleet/hf, repo: lab/tiny-llama, commit: "40 hex digits",
                complete: true, bytes: 1, files: 5, exclude: [], include: []}]
    fetching:
      description: Repositories in a cache without such a marker, and what they hold so far.
      type: list
      elements: dict
      sample: [{cache_dir: /var/lib/instinct-fleet/hf, repo: lab/tiny-llama, bytes: 1}]
    instances:
      description:
        - Containers of instances. C(spec_hash) is what the container was made from, C(artefact_hash) what the
          instance's files say now; null when one is missing. C(files) has the sha256 of each.
        - C(supervisor) is what the program around vLLM says of itself, null when there is none - C(state) is one of
          V(waiting), V(starting), V(running), V(stopping), V(gave_up); C(failures) counts ends of vLLM in a row that
          nobody asked for, C(first) is the first of them; C(peer) is the end of another rank that ended the last run.
      type: list
      elements: dict
      sample: [{name: llama-0, deployment: llama, container: instinct-llama-0, container_id: "64 hex digits",
                state: running, spec_hash: 12ab, artefact_hash: 12ab, files: {env: 34cd},
                image_id: "sha256:11",
                started_at: "2026-01-01T00:00:00Z", exit_code: 0, restart_count: 0, ready: true,
                supervisor: {state: starting, since: 1795298436.1, why: "", failures: 1, peer: null,
                             first: {kind: out_of_memory, line: HIP out of memory, next_step: Use more GPUs}}}]
    generations:
      description:
        - What the node keeps of each deployment. C(kept) are its generations from old to new, without their files;
          C(held) and C(trial) say how it is bound, see M(serving_generation), C(lifted) and C(ended) when it last
          ceased to be. C(broken) says why its record cannot be read.
      type: list
      elements: dict
      sample: [{deployment: llama, held: null, trial: null, lifted: null, ended: null, broken: null,
                kept: [{schema: 1, deployment: llama, generation: 1, made: "2026-01-01T00:00:00Z", why: first one,
                        image: "r@sha256:22", image_ref: "r:t", vllm: 0.11.2, model: lab/tiny-llama,
                        commit: "40 hex digits", weights: [[lab/tiny-llama, "40 hex digits"]], modes: SPX NPS1,
                        command: vllm serve lab/tiny-llama, env: "A=1", models: [tiny], listen: 127.0.0.1,
                        endpoint: true, stop_timeout: 120,
                        members: [{name: llama-0, spec_hash: 12ab, port: 8000, ports: [8000],
                                   render_nodes: [renderD128], share: 1.0, hosts: [], headless: false, limit: 256}]}]}]
    disk:
      description: Space on the file systems of images, caches and data; equal C(device) is the same one.
      type: list
      elements: dict
      sample: [{path: /var/lib/docker, free_bytes: 1, total_bytes: 1, device: 123}]
    balancer:
      description:
        - The load balancer on this host. RV(node_state.balancer.files) are the hashes of the files in use,
          RV(node_state.balancer.applied) that of the configuration which HAProxy was last seen with,
          RV(node_state.balancer.config) what it serves, RV(node_state.balancer.out) which servers are out.
      type: dict
      sample: {installed: true, keepalived: false, running: true, files: {}, applied: null, config: null, out: null}
    problems:
      description: Sources that could not be read.
      type: list
      elements: dict
      sample: [{what: /sys/class/drm/renderD128/device/current_compute_partition,
                error: "Operation not permitted: the GPU is being reset"}]
"""

# The text between the quotes is replaced by JSON, in which three quotes in a row cannot occur.
ARGUMENTS = r"""<<INCLUDE_ANSIBLE_MODULE_JSON_ARGS>>"""

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost as much as reading eight GPUs
    from collections.abc import Callable
    from typing import Any

DEFAULTS = {
    "state_dir": "/etc/instinct-fleet",
    "data_dir": "/var/lib/instinct-fleet",
    "cache_dirs": None,
    "docker_socket": "/var/run/docker.sock",
    "sysfs_root": "/",
}
SUPERVISOR_STATES = ("waiting", "starting", "running", "stopping", "gave_up")
SUPERVISOR_BYTES = 65536  # its file has a few thousand
ARTEFACT_FILES = ("serve.sh", "env", "container.json")
SYSCTL_DIRS = tuple(f"{top}/sysctl.d" for top in ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib"))
AMD = 0x1002
ABSENT = (2, 20)  # ENOENT, ENOTDIR: the node does not have it
EPERM = 1


class Source:
    """Reads files under a root. What is absent is None; what cannot be read is None and a problem."""

    def __init__(self, root: str = "/") -> None:
        self.root = root.rstrip("/")
        self.problems: list[dict[str, str]] = []

    def problem(self, what: str, error: object) -> None:
        """Note that `what` could not be read."""
        if isinstance(error, OSError) and error.strerror:
            error = error.strerror
        self.problems.append({"what": what, "error": str(error)})

    def text(self, path: str, limit: int = 1 << 20) -> str | None:
        """The file's text without white space at its ends; at most `limit` bytes are read."""
        try:
            fd = os.open(self.root + path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                parts = []
                while limit > 0:
                    part = os.read(fd, min(limit, 65536))
                    if not part:
                        break
                    parts.append(part)
                    limit -= len(part)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno == EPERM and "compute_partition" in path:
                self.problem(path, f"{error.strerror}: the GPU is being reset")
            elif error.errno not in ABSENT:
                self.problem(path, error)
            return None
        return b"".join(parts).decode("utf-8", "replace").strip()

    def peek(self, path: str) -> str | None:
        """As text(), where drivers refuse what they do not know (the speed of a link that is down): no problem."""
        count = len(self.problems)
        found = self.text(path)
        del self.problems[count:]
        return found

    def number(self, path: str, base: int = 10) -> int | None:
        """The file's whole number."""
        text = self.text(path)
        if not text:
            return None
        try:
            return int(text, base)
        except ValueError:
            self.problem(path, f"not a number: {text[:40]!r}")
            return None

    def names(self, path: str) -> list[str]:
        """The directory's entries, sorted."""
        try:
            return sorted(os.listdir(self.root + path))
        except OSError as error:
            if error.errno not in ABSENT:
                self.problem(path, error)
            return []

    def exists(self, path: str) -> bool:
        """Whether there is something at `path`."""
        return os.path.exists(self.root + path)


def pairs(text: str | None, separator: str | None = None) -> dict[str, str]:
    """The first two words of every line, as KFD's and os-release's files have them."""
    words = (line.split(separator, 1) for line in (text or "").splitlines())
    return {word[0].strip(): word[1].strip() for word in words if len(word) == 2}


def integer(text: str | None) -> int | None:
    """Text of digits as a number; anything else is None."""
    return int(text) if text and text.isdigit() else None


def modes(text: str | None) -> list[str]:
    """ "SPX, DPX" as a list; "Not supported" is an empty one."""
    words = [word.strip().upper() for word in (text or "").split(",")]
    return [word for word in words if word.isalnum()]


def mode(text: str | None) -> str | None:
    """One mode; the driver writes UNKNOWN, or a sentence, where there is none."""
    words = modes(text)
    return words[0] if len(words) == 1 and words[0] != "UNKNOWN" else None


# --- GPUs ----------------------------------------------------------------------------------------------


def gfx_name(version: int | None) -> str | None:
    """90402 → gfx942; minor and stepping are hexadecimal digits."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else None


def location(bdf: str) -> tuple[int, int] | None:
    """(domain, bus and device) of a PCI address, as KFD numbers them: bus << 8 | device << 3."""
    try:
        domain, bus, rest = bdf.split(":")
        return int(domain, 16), int(bus, 16) << 8 | int(rest.split(".")[0], 16) << 3
    except ValueError:
        return None


def read_kfd_nodes(source: Source) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """KFD's GPU nodes, by the location of the GPU they belong to."""
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    top = "/sys/class/kfd/kfd/topology/nodes"
    for name in source.names(top):
        node = f"{top}/{name}"
        gpu_id = source.number(f"{node}/gpu_id")
        if not gpu_id:  # a CPU
            continue
        values = pairs(source.text(f"{node}/properties"))
        place, minor = integer(values.get("location_id")), integer(values.get("drm_render_minor"))
        if place is None:
            source.problem(f"{node}/properties", "no location_id")
            continue
        memory = 0
        for bank in source.names(f"{node}/mem_banks"):
            heap = pairs(source.text(f"{node}/mem_banks/{bank}/properties"))
            if heap.get("heap_type") in ("1", "2"):  # the GPU's own memory, visible to the host or not
                memory += integer(heap.get("size_in_bytes")) or 0
        # Newer drivers have the partition's number in bits 31:28, others in place of the PCI function.
        found.setdefault((integer(values.get("domain")) or 0, place & 0xFFF8), []).append({
            "id": place >> 28 & 0xF or place & 7,
            "render_node": f"renderD{minor}" if minor else None,
            "render_minor": minor or None,
            "kfd_node": integer(name),
            "gpu_id": gpu_id,
            "simd_count": integer(values.get("simd_count")),
            "num_xcc": integer(values.get("num_xcc")),
            "memory_bytes": memory or None,
            "gfx_target_version": integer(values.get("gfx_target_version")),
            "unique_id": integer(values.get("unique_id")),
        })  # fmt: skip
    return found


def read_gpus(source: Source) -> list[dict[str, Any]]:
    """GPUs of the amdgpu driver in PCI order, each with its partitions.

    Render nodes of partitions beyond the first belong to a platform device, which has no vendor file.
    """
    nodes = read_kfd_nodes(source)
    gpus: dict[tuple[int, int], dict[str, Any]] = {}
    for name in source.names("/sys/class/drm"):
        device = f"/sys/class/drm/{name}/device"
        if not name.startswith("renderD") or source.number(f"{device}/vendor", 16) != AMD:
            continue
        slot = pairs(source.text(f"{device}/uevent"), "=").get("PCI_SLOT_NAME")
        bdf = slot or os.path.basename(os.path.realpath(source.root + device))
        place = location(bdf)
        if place is None:
            source.problem(device, f"not a PCI address: {bdf!r}")
            continue
        parts = sorted(nodes.get(place, []), key=lambda part: (part["id"], part["kfd_node"]))
        if len({part["id"] for part in parts}) < len(parts):  # a driver that does not number them
            parts = sorted(parts, key=lambda part: part["render_minor"] or 0)
            for number, part in enumerate(parts):
                part["id"] = number
        mode_file = f"{device}/current_compute_partition"
        problems = len(source.problems)
        compute = mode(source.text(mode_file))
        in_reset = any("being reset" in problem["error"] for problem in source.problems[problems:])
        versions = [part.pop("gfx_target_version") for part in parts] or [None]
        serials = [part.pop("unique_id") for part in parts] or [None]
        numa = source.number(f"{device}/numa_node")
        gpus[place] = {
            "bdf": bdf.lower(),
            "sysfs_path": device,
            "vendor_id": AMD,
            "device_id": source.number(f"{device}/device", 16),
            "gfx": gfx_name(versions[0]),
            "unique_id": source.text(f"{device}/unique_id") or (f"{serials[0]:016x}" if serials[0] else None),
            "vram_total": source.number(f"{device}/mem_info_vram_total"),
            "vram_used": source.number(f"{device}/mem_info_vram_used"),
            "numa_node": numa if numa is not None and numa >= 0 else None,
            "compute_partition": compute,
            "available_compute_partitions": modes(source.text(f"{device}/available_compute_partition")),
            "memory_partition": mode(source.text(f"{device}/current_memory_partition")),
            "available_memory_partitions": modes(source.text(f"{device}/available_memory_partition")),
            "link_speed": source.text(f"{device}/current_link_speed"),
            "link_width": source.number(f"{device}/current_link_width"),
            "in_reset": in_reset,
            "ecc_uncorrectable": integer(pairs(source.text(f"{device}/ras/umc_err_count"), ":").get("ue")),
            "partitions": parts,
        }
    return [{"index": index, **gpus[place]} for index, place in enumerate(sorted(gpus))]


def kfd_processes(source: Source) -> list[int]:
    """Processes that KFD knows: any of them makes the driver refuse a change as busy."""
    return sorted(int(name) for name in source.names("/sys/class/kfd/kfd/proc") if name.isdigit())


def read_users(source: Source, gpus: list[dict[str, Any]], pids: list[int]) -> list[int]:
    """Note with every GPU which processes KFD counts on it. Returns those of them that are zombies."""
    known = {part["gpu_id"]: gpu for gpu in gpus for part in gpu["partitions"]}
    for gpu in gpus:
        gpu["users"] = []
    zombies = []
    for pid in pids:
        for name in source.names(f"/sys/class/kfd/kfd/proc/{pid}"):
            users = known.get(integer(name[5:]) or 0, {}).get("users") if name.startswith("vram_") else None
            if users is not None and pid not in users:
                users.append(pid)
        # The program's name is in parentheses and may hold anything.
        if (source.text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()[:1] == ["Z"]:
            zombies.append(pid)
    return zombies


def partition_change(source: Source, data_dir: str) -> str | None:
    """The step at which a change of partition modes was cut off, or is now; None when there is none."""
    path = os.path.join(data_dir, "partition.json")
    try:
        with open(path, encoding="utf-8") as file:
            return str(json.load(file)["step"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        source.problem(path, f"broken journal: {error}")
        return "unknown"


# --- host ----------------------------------------------------------------------------------------------


def sysctl_settings(source: Source, key: str) -> list[tuple[str, int, str]]:
    """(file, line number, value) of every setting of `key`, in the order in which a boot applies them.

    The rule of sysctl --system and systemd-sysctl: files of all directories sorted by name, of equal names
    only the first directory's file counts, /etc/sysctl.conf comes last; the last setting wins.
    """
    files: dict[str, str] = {}
    for directory in SYSCTL_DIRS:
        for name in source.names(directory):
            if name.endswith(".conf"):
                files.setdefault(name, f"{directory}/{name}")
    found: list[tuple[str, int, str]] = []
    for path in [*(files[name] for name in sorted(files)), "/etc/sysctl.conf"]:
        for number, line in enumerate((source.text(path) or "").splitlines(), 1):
            value = sysctl_value(line, key)
            if value is not None:
                found.append((path, number, value))
    return found


def sysctl_value(line: str, key: str) -> str | None:
    """The value that a line of a sysctl file gives to `key`, or None."""
    name, equals, value = line.strip().partition("=")
    if not equals or name.startswith(("#", ";")):
        return None
    return value.strip() if name.lstrip("-").strip().replace("/", ".") == key else None


def read_numa_balancing(source: Source, cmdline: list[str]) -> dict[str, Any]:
    """Automatic NUMA balancing now and after the next boot."""
    settings = sysctl_settings(source, "kernel.numa_balancing")
    persisted: int | None = None
    path: str | None = None
    if settings:
        path, persisted = settings[-1][0], integer(settings[-1][2])
    elif "numa_balancing=disable" in cmdline:
        path, persisted = "/proc/cmdline", 0
    return {"runtime": source.number("/proc/sys/kernel/numa_balancing"), "persisted": persisted, "file": path}


def cpu_set(text: str | None) -> set[int]:
    """ "0-3,8" → {0, 1, 2, 3, 8}."""
    found: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found.update(range(int(first), int(last or first) + 1))
    return found


def read_cpu(source: Source, cpuinfo: dict[str, str]) -> dict[str, Any]:
    """Model, sockets and threads. One file per socket is read, not one per CPU."""
    top = "/sys/devices/system/cpu"
    online = cpu_set(source.text(f"{top}/online"))
    sockets, left = 0, set(online)
    while left:
        first = min(left)
        topology = f"{top}/cpu{first}/topology"
        names = ("package_cpus_list", "core_siblings_list")  # of newer and older kernels
        package = next((text for text in (source.text(f"{topology}/{name}") for name in names) if text), None)
        if package is None:
            break
        left -= cpu_set(package) | {first}
        sockets += 1
    return {"model": cpuinfo.get("model name"), "sockets": sockets or None, "threads": len(online) or None}


def kib(values: dict[str, str], key: str) -> int | None:
    """A field of a meminfo file, in bytes."""
    words = values.get(key, "").split()
    number = integer(words[0]) if words else None
    return number * 1024 if number is not None else None


def read_numa_nodes(source: Source) -> list[dict[str, Any]]:
    """NUMA nodes with their CPUs and memory."""
    top = "/sys/devices/system/node"
    found = []
    names = [name[4:] for name in source.names(top) if name.startswith("node")]
    for number in sorted(int(name) for name in names if name.isdigit()):
        meminfo = pairs(source.text(f"{top}/node{number}/meminfo"), ":")
        found.append({
            "id": number,
            "cpus": source.text(f"{top}/node{number}/cpulist"),
            "memory_bytes": kib(meminfo, f"Node {number} MemTotal"),
        })  # fmt: skip
    return found


def read_driver(source: Source) -> dict[str, Any]:
    """The amdgpu module; the kernel's own driver has no version file."""
    loaded = source.exists("/sys/module/amdgpu")
    return {"loaded": loaded, "version": source.text("/sys/module/amdgpu/version") if loaded else None}


def read_rocm(source: Source) -> dict[str, Any]:
    """ROCm's release ("6.4.0-47" → "6.4.0") and where its tools are."""
    # Packages of 7.14 and later install into /opt/rocm/core-<release> (ROCm/TheRock#5475).
    version = source.text("/opt/rocm/.info/version") or source.text("/opt/rocm/core/.info/version")
    tools: dict[str, str | None] = {}
    for tool in ("amd-smi", "rocm-smi"):
        paths = [f"{directory}/{tool}" for directory in ("/opt/rocm/bin", "/usr/local/bin", "/usr/bin")]
        tools[tool] = next((path for path in paths if source.exists(path)), None)
    return {"version": version.split("-")[0] if version else None, "tools": tools}


def read_device_gids(source: Source) -> dict[str, int | None]:
    """Groups to give to a container, by number: names mean other groups inside an image."""
    groups = [line.split(":") for line in (source.text("/etc/group") or "").splitlines()]
    gids: dict[str, int | None] = {"kfd": None, "render": None, "video": None}
    gids.update({group[0]: integer(group[2]) for group in groups if len(group) > 2 and group[0] in gids})
    paths = {"kfd": "/dev/kfd"}
    for name in source.names("/dev/dri"):
        if name.startswith(("renderD", "card")):
            paths.setdefault("render" if name.startswith("renderD") else "video", f"/dev/dri/{name}")
    for kind, path in paths.items():
        try:
            gids[kind] = os.stat(source.root + path).st_gid
        except OSError as error:
            if error.errno not in ABSENT:
                source.problem(path, error)
    return gids


# --- network -------------------------------------------------------------------------------------------

GET_ADDRESSES, NEW_ADDRESS, DONE = 22, 20, 3  # messages of rtnetlink(7)
DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
IFA_ADDRESS, IFA_LOCAL = 1, 2
LINK_SCOPE = 253  # and above: link and host
GIDS = 16  # entries of a port's table that are looked at; a RoCE port has two per address, and often 256
MAPPED = "0000:0000:0000:0000:0000:ffff:"  # an IPv4 address as a GID


def read_interfaces(source: Source) -> list[dict[str, Any]]:
    """Interfaces with addresses that other hosts may reach. A captured tree has none: they are the kernel's alone."""
    addresses: dict[str, list[str]] = {}
    if not source.root:
        for index, address in kernel_addresses():
            addresses.setdefault(index, []).append(address)
    found = []
    for name in source.names("/sys/class/net") if addresses else []:
        device = f"/sys/class/net/{name}"
        own = addresses.get(source.text(f"{device}/ifindex") or "")
        if own:
            speed = integer(source.peek(f"{device}/speed"))  # refused, or -1, where there is none
            found.append({
                "name": name,
                "addresses": own,
                "up": source.text(f"{device}/operstate") in ("up", "unknown"),
                "mtu": source.number(f"{device}/mtu"),
                "speed": speed or None,
            })  # fmt: skip
    return found


def kernel_addresses() -> list[tuple[str, str]]:
    """(index of the interface, address) of all global addresses, asked by netlink: no program, one round trip."""
    import _socket

    request = (24).to_bytes(4, sys.byteorder) + GET_ADDRESSES.to_bytes(2, sys.byteorder)
    netlink = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, 0)
    try:
        netlink.settimeout(2)
        netlink.send(request + DUMP.to_bytes(2, sys.byteorder) + bytes(16))
        found: list[tuple[str, str]] = []
        while True:
            part, last = parse_addresses(netlink.recv(1 << 16))
            found += part
            if last:
                return found
    finally:
        netlink.close()


def parse_addresses(data: bytes) -> tuple[list[tuple[str, str]], bool]:
    """The addresses in a part of a netlink dump, and whether it was the last part."""
    import _socket

    def number(place: int, size: int) -> int:
        return int.from_bytes(data[place : place + size], sys.byteorder)

    found: list[tuple[str, str]] = []
    place = 0
    while place + 16 <= len(data):
        length, kind = number(place, 4), number(place + 4, 2)
        if kind != NEW_ADDRESS or length < 24:
            return found, True  # done, or an error
        family, scope, index = data[place + 16], data[place + 19], number(place + 20, 4)
        attributes: dict[int, bytes] = {}
        at = place + 24
        while at + 4 <= place + length:
            size = max(4, number(at, 2))
            attributes[number(at + 2, 2)] = data[at + 4 : at + size]
            at += (size + 3) & ~3
        # Of a point-to-point link, IFA_ADDRESS is the other end.
        address = attributes.get(IFA_LOCAL) or attributes.get(IFA_ADDRESS)
        if address and scope < LINK_SCOPE:
            found.append((str(index), _socket.inet_ntop(family, address)))
        place += (length + 3) & ~3
    return found, False


def read_rdma(source: Source) -> list[dict[str, Any]]:
    """Ports of the RDMA devices."""
    found = []
    top = "/sys/class/infiniband"
    for name in source.names(top):
        for port in source.names(f"{top}/{name}/ports"):
            place = f"{top}/{name}/ports/{port}"
            layer = source.text(f"{place}/link_layer")
            own = source.peek(f"{place}/gid_attrs/ndevs/0") or next(
                iter(source.names(f"{top}/{name}/device/net")), None
            )
            found.append({
                "name": name,
                "port": integer(port),
                "state": (source.text(f"{place}/state") or "").rpartition(" ")[2],
                "layer": layer,
                "rate": integer((source.peek(f"{place}/rate") or "").partition(" ")[0].partition(".")[0]),
                "interface": own,
                "gid_index": roce_gid(source, place) if layer == "Ethernet" else None,
            })  # fmt: skip
    return found


def roce_gid(source: Source, port: str) -> int | None:
    """The index of a port's first GID that is RoCE v2 with an IPv4 address; None when it has none."""
    for index in range(GIDS):
        # Entries that are not used are refused.
        if source.peek(f"{port}/gid_attrs/types/{index}") == "RoCE v2":
            gid = source.peek(f"{port}/gids/{index}") or ""
            if gid.startswith(MAPPED) and gid != f"{MAPPED}0000:0000":
                return index
    return None


# --- Docker, weights, disk -----------------------------------------------------------------------------


class Request:
    """A GET to the Docker engine, sent at once and read later, so that the engine works while files are read.

    HTTP/1.0 makes the engine answer without chunks and close the connection: no HTTP library is needed.
    """

    def __init__(self, socket_path: str, path: str, timeout: float = 15.0) -> None:
        import _socket  # what socket wraps, without the wrapper's 8 ms of imports

        self.path = path
        self.api_version: str | None = None
        self.socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self.socket.settimeout(timeout)
        self.socket.connect(socket_path)
        self.socket.sendall(f"GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())

    def answer(self) -> Any:
        """The JSON of the answer. Raises OSError or ValueError, saying what the engine said."""
        parts = []
        while True:
            part = self.socket.recv(1 << 20)
            if not part:
                break
            parts.append(part)
        self.socket.close()
        head, _, body = b"".join(parts).partition(b"\r\n\r\n")
        status = head.split(b" ", 2)
        self.api_version = pairs(head.decode("latin-1"), ":").get("Api-Version")
        if len(status) < 2 or status[1] != b"200":
            said = (body or head)[:300].decode("utf-8", "replace").strip()
            raise ValueError(f"GET {self.path}: {said or 'the engine closed the connection'}")
        return json.loads(body)


# Not /version: the engine starts two programs to answer it, and /info and the headers say the same.
DOCKER_QUERIES = {
    "info": "/info",
    "images": "/images/json",
    "containers": "/containers/json?all=1&filters=%7B%22label%22%3A%5B%22instinct-fleet.instance%22%5D%7D",
}


PLUGINS = ("/usr/libexec", "/usr/lib", "/usr/local/lib", "/usr/local/libexec")


def ask_docker(source: Source, socket_path: str) -> tuple[dict[str, Any], dict[str, Request]]:
    """Send all queries. Returns what is known already, and the pending requests."""
    programs = ("/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd")
    docker: dict[str, Any] = {
        "installed": any(source.exists(path) for path in programs),
        "community": source.exists("/var/lib/dpkg/info/docker-ce.list"),
        "buildx": any(source.exists(f"{place}/docker/cli-plugins/docker-buildx") for place in PLUGINS),
        "available": False,
        "version": None,
        "api_version": None,
        "root_dir": None,
        "error": None,
    }
    try:
        return docker, {name: Request(socket_path, path) for name, path in DOCKER_QUERIES.items()}
    except OSError as error:
        docker["error"] = f"{socket_path}: {error.strerror or error}"
        return docker, {}


def read_docker(docker: dict[str, Any], requests: dict[str, Request]) -> tuple[list[Any], list[Any]]:
    """Read the answers: fills `docker`, returns images and containers as the engine lists them."""
    try:
        answers = {name: request.answer() for name, request in requests.items()}
        info = answers["info"]
        docker.update(
            available=True,
            version=info.get("ServerVersion"),
            api_version=requests["info"].api_version,
            root_dir=info.get("DockerRootDir"),
        )
        return answers["images"] or [], answers["containers"] or []
    except (OSError, ValueError, AttributeError) as error:
        docker["error"] = str(error)
        return [], []


def read_images(source: Source, data_dir: str, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Images as the planner wants them, with what they answered when they were asked (see ask.py)."""
    answers = os.path.join(data_dir, "images")
    asked = set(listing(answers)) if entries else set()
    found = []
    for entry in entries:
        name = f"{str(entry.get('Id')).rpartition(':')[2]}.json"
        software = None
        if name in asked:
            path = os.path.join(answers, name)
            try:
                with open(path, encoding="utf-8") as file:
                    software = json.load(file)
            except (OSError, ValueError) as error:
                source.problem(path, f"broken answer of an image: {error}")
        found.append({**image(entry), "software": software})
    return found


def image(entry: dict[str, Any]) -> dict[str, Any]:
    """An image as the engine lists it."""
    return {
        "id": entry.get("Id"),
        "tags": [tag for tag in entry.get("RepoTags") or [] if tag != "<none>:<none>"],
        "digests": [digest for digest in entry.get("RepoDigests") or [] if digest != "<none>@<none>"],
        "bytes": entry.get("Size"),
    }


def artefact(directory: str) -> tuple[str | None, dict[str, str]]:
    """(hash of an instance's files, None when one is missing; {file name: sha256 of its text}).

    The hash is the sha256 over canonical JSON of {file name: text}, as hashing.spec_hash has it.
    """
    import hashlib

    texts = {}
    for name in ARTEFACT_FILES:
        try:
            with open(os.path.join(directory, name), encoding="utf-8", newline="") as file:
                texts[name] = file.read()
        except FileNotFoundError:
            continue
    whole = json.dumps(texts, sort_keys=True, separators=(",", ":")).encode()
    files = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    return hashlib.sha256(whole).hexdigest() if len(texts) == len(ARTEFACT_FILES) else None, files


def read_instances(
    source: Source, socket_path: str, state_dir: str, data_dir: str, containers: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Containers of instances with what only an inspection tells: start, exit code, restarts."""
    found = []
    pending = [(entry, Request(socket_path, f"/containers/{entry['Id']}/json")) for entry in containers]
    for entry, request in pending:
        labels = entry.get("Labels") or {}
        name = labels["instinct-fleet.instance"]
        try:
            details = request.answer()
        except (OSError, ValueError) as error:
            source.problem(f"container of {name}", error)
            details = {}
        try:
            whole, files = artefact(os.path.join(state_dir, "instances", name))
        except (OSError, ValueError) as error:
            source.problem(f"files of {name}", error)
            whole, files = None, {}
        state = details.get("State") or {}
        found.append({
            "name": name,
            "deployment": labels.get("instinct-fleet.deployment"),
            "container": (details.get("Name") or (entry.get("Names") or [""])[0]).lstrip("/") or None,
            "container_id": entry["Id"],
            "state": state.get("Status") or entry.get("State"),
            "spec_hash": labels.get("instinct-fleet.spec"),
            "artefact_hash": whole,
            "files": files,
            "image_id": details.get("Image") or entry.get("ImageID"),
            "started_at": state.get("StartedAt"),
            "exit_code": state.get("ExitCode"),
            "restart_count": details.get("RestartCount"),
            "ready": ready_container(state_dir, name) == entry["Id"],
            "supervisor": read_supervisor(os.path.join(data_dir, "cache", name)),
        })  # fmt: skip
    return sorted(found, key=lambda instance: str(instance["name"]))


def read_supervisor(cache_dir: str) -> dict[str, Any] | None:
    """What the program around an instance's vLLM says of itself; None when it says nothing that can be read."""
    try:
        data = supervisor_file(cache_dir) or {}
        failures = data["failures"]
        return {
            "state": data["state"] if data["state"] in SUPERVISOR_STATES else None,
            "since": float(data["since"]),
            "why": printable(data["why"]),
            "failures": len(failures),
            "first": told_failure(failures[0]) if failures else None,
            "peer": told_failure(data["peer"]) if data["peer"] else None,
        }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None


def supervisor_file(cache_dir: str) -> dict[str, Any] | None:
    """The supervisor's state.json as it is; None when there is none that can be read.

    The container's root writes it, so it may be anything: a link to a file of the node, a pipe, a huge file.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    opened: list[int] = []
    try:
        opened.append(os.open(cache_dir, flags | os.O_DIRECTORY))
        opened.append(os.open("supervise", flags | os.O_DIRECTORY, dir_fd=opened[-1]))
        if os.stat("state.json", dir_fd=opened[-1], follow_symlinks=False).st_mode & 0o170000 != 0o100000:
            return None  # no regular file
        opened.append(os.open("state.json", flags, dir_fd=opened[-1]))
        data = json.loads(os.read(opened[-1], SUPERVISOR_BYTES))
        return data if isinstance(data, dict) else None
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        for descriptor in opened:
            os.close(descriptor)


def told_failure(item: dict[str, Any]) -> dict[str, str]:
    """Of a failure, what people want to know; another rank's says which it was."""
    found = {key: printable(item[key]) for key in ("kind", "line", "next_step")}
    if "host" in item:
        found["line"] = printable(
            f"{item['host']} (rank {item['rank']}) ended: {found['kind']}: {found['line']}"
        )
        found["kind"] = "peer_lost" if item["kind"] in ("stopped", "peer_lost") else "peer_failed"
    return found


def printable(value: Any) -> str:
    """A text of unknown origin in one line, not too long."""
    return "".join(char if char.isprintable() else " " for char in str(value)[:800])


def ready_container(state_dir: str, name: str) -> str | None:
    """The container of an instance that has generated tokens since it was started, as vllm_server noted it."""
    try:
        with open(os.path.join(state_dir, "instances", name, "ready"), encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return None


def read_generations(source: Source, state_dir: str) -> list[dict[str, Any]]:
    """What the node keeps of each deployment (see genstore.py): two small files, unless a run was cut off."""
    found = []
    top = os.path.join(state_dir, "generations")
    for deployment in listing(top):
        kept: list[dict[str, Any]] = []
        state: dict[str, Any] = {}
        broken = None
        directory = os.path.join(top, deployment)
        names = listing(directory)
        numbers = sorted(int(name[:-5]) for name in names if name[:-5].isdigit() and name.endswith(".json"))
        try:
            kept = stored(directory, "summary.json")["kept"] if "summary.json" in names else []
            if [item["generation"] for item in kept] != numbers:  # a run was cut off between two files
                kept = [without_files(stored(directory, f"{number}.json")) for number in numbers]
            state = stored(directory, "state.json") if "state.json" in names else {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            broken = f"{directory}: {type(error).__name__}: {error}"
            source.problem(directory, f"broken record of generations: {type(error).__name__}: {error}")
        found.append({
            "deployment": deployment,
            "held": state.get("held"),
            "trial": state.get("trial"),
            "lifted": state.get("lifted"),
            "ended": state.get("ended"),
            "kept": kept,
            "broken": broken,
        })  # fmt: skip
    return found


def stored(directory: str, name: str) -> dict[str, Any]:
    """A file of the store."""
    with open(os.path.join(directory, name), encoding="utf-8") as file:
        data: dict[str, Any] = json.load(file)
    return data


def without_files(generation: dict[str, Any]) -> dict[str, Any]:
    """A generation as summary.json has it."""
    heavy = ("server", "described")
    members = [{key: item[key] for key in item if key not in heavy} for item in generation["members"]]
    return {**generation, "members": members}


NO_BALANCER = {
    "installed": False,
    "keepalived": False,
    "running": False,
    "files": {},
    "applied": None,
    "config": None,
    "out": None,
}


KEEPALIVED_PID = "/run/instinct-balancer-address.pid"


def read_balancer(source: Source, state_dir: str, data_dir: str) -> dict[str, Any]:
    """The load balancer: the hashes of its files, what HAProxy was last seen with, and which servers are out."""
    found: dict[str, Any] = {**NO_BALANCER, "installed": source.exists("/usr/sbin/haproxy")}
    found["keepalived"] = source.exists("/usr/sbin/keepalived")
    current = os.path.join(state_dir, "balancer", "current")
    if not os.path.isdir(current):
        return found
    import hashlib

    texts: dict[str, bytes] = {}
    for name in listing(current):
        with open(os.path.join(current, name), "rb") as file:
            texts[name] = file.read()
    state = os.path.join(data_dir, "balancer")
    for key, name in (("applied", "applied"), ("out", "out.json")):
        try:
            with open(os.path.join(state, name), encoding="utf-8") as file:
                found[key] = file.read().strip()
        except FileNotFoundError:
            continue
    found["out"] = json.loads(found["out"]) if found["out"] else None
    found["config"] = json.loads(texts["balancer.json"]) if "balancer.json" in texts else None
    found["files"] = {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}
    found["running"] = all(
        process_of(os.path.join(state, name), word)  # an absolute name stays as it is
        for name, word in (
            ("haproxy.pid", b"haproxy"),
            ("agent.pid", b"agent.py"),
            *([("router.pid", b"router.py")] if (found["config"] or {}).get("routers") else []),
            *([(f"{source.root}{KEEPALIVED_PID}", b"keepalived")] if "keepalived.conf" in texts else []),
        )
    )
    return found


def read_instance_key(state_dir: str) -> str | None:
    """The mark of the key that instances answer to, as instance_key.py makes it; None when there is none."""
    import hashlib

    try:
        with open(os.path.join(state_dir, "keys", "instances"), encoding="ascii") as file:
            name, _, key = file.read().strip().partition("=")
    except (OSError, ValueError):
        return None
    return hashlib.sha256(key.encode()).hexdigest()[:12] if name == "VLLM_API_KEY" else None


def process_of(pid_file: str, word: bytes) -> bool:
    """Whether the process of a pid file runs; `word` is in its command line."""
    try:
        with open(pid_file, "rb") as file, open(f"/proc/{int(file.read())}/cmdline", "rb") as command:
            return word in command.read()
    except (OSError, ValueError):
        return False


def read_model(path: str, cache_dir: str) -> dict[str, Any]:
    """Check one marker's files by their sizes. Raises OSError, ValueError, KeyError for a broken marker."""
    with open(path, encoding="utf-8") as file:
        marker = json.load(file)
    snapshot = os.path.join(os.path.dirname(os.path.dirname(path)), "snapshots", marker["commit"])
    complete = True
    for name, size in marker["files"].items():
        try:
            complete = complete and os.stat(os.path.join(snapshot, name)).st_size == size
        except FileNotFoundError:
            complete = False
    return {
        "cache_dir": cache_dir,
        "repo": marker["repo"],
        "commit": marker["commit"],
        "complete": complete,
        "bytes": marker["bytes"],
        "files": len(marker["files"]),
        "exclude": marker["exclude"],
        "include": marker["include"],
    }


def listing(directory: str) -> list[str]:
    """Entries of a directory, sorted; none when it is not there."""
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def size_of(directory: str) -> int:
    """Bytes of a directory's files. Files may go meanwhile: a download renames them."""
    size = 0
    for name in listing(directory):
        try:
            size += os.stat(os.path.join(directory, name)).st_size
        except FileNotFoundError:
            continue
    return size


def read_models(source: Source, cache_dirs: list[str]) -> tuple[list[Any], list[Any]]:
    """(weights with a marker, repositories without one and what they hold so far) of every cache."""
    models: list[dict[str, Any]] = []
    fetching: list[dict[str, Any]] = []
    for cache_dir in cache_dirs:
        hub = os.path.join(cache_dir, "hub")
        for repo in (name for name in listing(hub) if name.startswith("models--")):
            markers = os.path.join(hub, repo, ".instinct-fleet")
            names = [name for name in listing(markers) if name.endswith(".json")]
            if not names:
                name = repo[len("models--") :].replace("--", "/")
                size = size_of(os.path.join(hub, repo, "blobs"))
                fetching.append({"cache_dir": cache_dir, "repo": name, "bytes": size})
            for name in names:
                path = os.path.join(markers, name)
                try:
                    models.append(read_model(path, cache_dir))
                except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                    source.problem(path, f"broken marker: {type(error).__name__}: {error}")
    return models, fetching


def read_disk(source: Source, paths: list[str]) -> list[dict[str, Any]]:
    """Space for each path, on the file system of its nearest existing parent."""
    found = []
    for path in dict.fromkeys(paths):
        place = path
        while not os.path.exists(place) and os.path.dirname(place) != place:
            place = os.path.dirname(place)
        try:
            space, device = os.statvfs(place), os.stat(place).st_dev
        except OSError as error:
            source.problem(path, error)
            continue
        found.append({
            "path": path,
            "free_bytes": space.f_bavail * space.f_frsize,
            "total_bytes": space.f_blocks * space.f_frsize,
            "device": device,
        })  # fmt: skip
    return found


# --- the module ----------------------------------------------------------------------------------------


def node_state(args: dict[str, Any]) -> dict[str, Any]:
    """Read the node. A part that fails is null or empty, with a problem that names it."""
    source = Source(args["sysfs_root"])
    cache_dirs = args["cache_dirs"] or [os.path.join(args["data_dir"], "hf")]
    docker, requests = ask_docker(source, args["docker_socket"])

    def part(name: str, default: Any, read: Callable[..., Any], *values: Any) -> Any:
        try:
            return read(*values)
        except Exception as error:  # one unreadable source must not hide the others
            source.problem(name, f"{type(error).__name__}: {error}")
            return default

    release = pairs((source.text("/etc/os-release") or "").replace('"', ""), "=")
    cmdline = (source.text("/proc/cmdline") or "").split()
    # The first CPU's block tells all we need; the whole file takes the kernel long on hundreds of CPUs.
    cpuinfo = pairs((source.text("/proc/cpuinfo", 8192) or "").split("\n\n", maxsplit=1)[0], ":")
    flags = cpuinfo.get("flags")
    system = os.uname()
    state: dict[str, Any] = {
        "schema": 1,
        "hostname": system.nodename,
        "euid": os.geteuid(),
        "python": sys.version.split()[0],
        "os": {key: release.get(key.upper()) for key in ("id", "version_id", "pretty_name")},
        "kernel": system.release,
        "cmdline": cmdline,
        "numa_balancing": part("numa_balancing", {"runtime": None, "persisted": None, "file": None},
                               read_numa_balancing, source, cmdline),
        "cpu": part("cpu", {"model": None, "sockets": None, "threads": None}, read_cpu, source, cpuinfo),
        "numa_nodes": part("numa_nodes", [], read_numa_nodes, source),
        "memory_bytes": kib(pairs(source.text("/proc/meminfo"), ":"), "MemTotal"),
        "virtual_machine": "hypervisor" in flags.split() if flags is not None else None,
        "driver": read_driver(source),
        "rocm": read_rocm(source),
        "gpus": part("gpus", [], read_gpus, source),
        "kfd_processes": kfd_processes(source),
        "partition_change": partition_change(source, args["data_dir"]),
        "device_gids": part("device_gids", {"kfd": None, "render": None, "video": None},
                            read_device_gids, source),
    }  # fmt: skip
    state["kfd_zombies"] = part(
        "users of GPUs", [], read_users, source, state["gpus"], state["kfd_processes"]
    )
    state["interfaces"] = part("interfaces", [], read_interfaces, source)
    state["rdma"] = part("rdma", [], read_rdma, source)
    state["verbs"] = any(name.startswith("uverbs") for name in source.names("/dev/infiniband"))
    state["models"], state["fetching"] = part("models", ([], []), read_models, source, cache_dirs)
    images, containers = read_docker(docker, requests) if requests else ([], [])
    state["docker"] = docker
    state["git"] = source.exists("/usr/bin/git") or source.exists("/usr/local/bin/git")
    state["images"] = part("images", [], read_images, source, args["data_dir"], images)
    state["instances"] = part(
        "instances",
        [],
        read_instances,
        source,
        args["docker_socket"],
        args["state_dir"],
        args["data_dir"],
        containers,
    )
    state["generations"] = part("generations", [], read_generations, source, args["state_dir"])
    state["instance_key"] = read_instance_key(args["state_dir"])
    state["balancer"] = part(
        "balancer", {**NO_BALANCER}, read_balancer, source, args["state_dir"], args["data_dir"]
    )
    docker_root = docker["root_dir"] or "/var/lib/docker"
    state["disk"] = read_disk(source, [docker_root, *cache_dirs, args["data_dir"]])
    state["problems"] = source.problems
    return state


def check_args(given: Any) -> dict[str, Any]:
    """Fill in defaults. Raises ValueError that names the argument and the fix."""
    if not isinstance(given, dict):
        raise ValueError("node_state: arguments must be a map.")
    args: dict[str, Any] = dict(DEFAULTS)
    for key, value in given.items():
        if key.startswith("_ansible"):
            continue
        if key not in DEFAULTS:
            import difflib

            near = difflib.get_close_matches(key, DEFAULTS, 1)
            hint = f"Did you mean {near[0]}?" if near else f"Valid: {', '.join(sorted(DEFAULTS))}."
            raise ValueError(f"node_state: unknown argument {key}. {hint}")
        values = value if key == "cache_dirs" else [value]
        if value is None and key == "cache_dirs":
            continue
        if not isinstance(values, list) or any(
            not isinstance(item, str) or item[:1] != "/" for item in values
        ):
            kind = "a list of absolute paths" if key == "cache_dirs" else "an absolute path"
            raise ValueError(f"node_state: {key} must be {kind}, not {value!r}.")
        args[key] = value
    return args


def main() -> None:
    """Print the module's result."""
    try:
        text = ARGUMENTS
        if len(sys.argv) > 1:  # run by hand: node_state.py ARGUMENTS.json
            with open(sys.argv[1], encoding="utf-8") as file:
                text = file.read()
        result = {"changed": False, "node_state": node_state(check_args(json.loads(text)))}
    except Exception as error:  # a module's only channel is its result
        result = {"failed": True, "changed": False, "msg": str(error) or type(error).__name__}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
