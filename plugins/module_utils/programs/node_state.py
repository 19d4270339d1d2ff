# SPDX-License-Identifier: Apache-2.0
"""Read all facts that the planner needs about a node.

This is sent to every host in every run, so it is one script that imports next to nothing: Ansible puts the arguments
into ARGUMENTS below and pipes the text into Python, without unpacking its module framework. Data are plain dictionaries
here, because importing dataclasses costs more than all the reading.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_state
short_description: Read the state of an AMD Instinct node
version_added: "0.1.0"
description:
  - Reads in one call the facts that the planner needs about a node - operating system, NUMA, driver, ROCm, GPUs with
    their partitions, Docker engine, images, weights, running instances and free disk space.
  - Starts no program and changes nothing. A source that cannot be read gives null for its field and an entry in
    RV(node_state.problems); facts that the node does not have are null or an empty list, never a guess.
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
    description: Hugging Face caches (C(HF_HOME)) to search for weights. Default is C(hf) in O(data_dir).
    type: list
    elements: path
  sysfs_root:
    description: Prefix of C(/sys), C(/proc), C(/etc), C(/opt), C(/usr) and C(/dev), to read a captured tree.
    type: path
    default: /
extends_documentation_fragment:
  - instinct.fleet.attributes.read_only
  - instinct.fleet.docker
requirements:
  - Python 3.9 on the node, standard library only
  - root, to read kernel and Docker state that other users cannot read
author: instinct-fleet contributors (@instinct-fleet)
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
  description: The state of the node. Sizes are bytes.
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
        - Automatic NUMA balancing. C(runtime) is the kernel's value now, null if the kernel has no such setting.
        - C(persisted) is the value after the next boot, and C(file) its source - the last sysctl file that sets it, or
          C(/proc/cmdline); both are null if there is no source.
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
      description: The amdgpu driver. Only AMD's DKMS driver has a version; for the kernel's own driver it is null.
      type: dict
      sample: {loaded: true, version: 6.12.12}
    rocm:
      description: ROCm release and its management tools; the version is null if ROCm is not installed.
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
        ecc_uncorrectable: {description: Uncorrectable memory errors since the boot; null if not counted., type: int}
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
    kfd_zombies: {description: Those of them that are zombies., type: list, elements: int}
    partition_change:
      description: The step of a partition change that is in progress or was interrupted; null if there is none.
      type: str
      sample: set
    device_gids:
      description: Numeric groups of C(/dev/kfd), the render nodes and the video devices.
      type: dict
      sample: {kfd: 109, render: 109, video: 44}
    interfaces:
      description:
        - Network interfaces with an address that other hosts may reach, neither loopback nor link-local. C(speed) is
          in Mb/s, null if the driver does not report it.
      type: list
      elements: dict
      sample: [{name: eth0, addresses: [192.0.2.11], up: true, mtu: 1500, speed: 25000}]
    rdma:
      description:
        - Ports of the RDMA devices (HCAs). C(rate) is in Gb/s, C(interface) the network interface of the port,
          C(gid_index) that of its first RoCE v2 address for IPv4.
      type: list
      elements: dict
      sample: [{name: mlx5_0, port: 1, state: ACTIVE, layer: Ethernet, rate: 400, interface: rdma0, gid_index: 3}]
    instance_key: {description: Fingerprint of the key of its instances; null without one., type: str}
    verbs: {description: Whether C(/dev/infiniband) has devices that programs can use., type: bool}
    docker:
      description:
        - The Docker engine. C(installed) is whether its program exists, C(error) why it did not answer, C(community)
          whether it is Docker's own package and not the distribution's, C(buildx) whether its client for BuildKit
          exists.
      type: dict
      sample: {installed: true, available: true, version: 20.10.24, api_version: "1.41", community: false,
               buildx: false, root_dir: /var/lib/docker, error: null}
    git: {description: Whether git is installed., type: bool}
    images:
      description:
        - Images of the Docker engine. C(software) is what M(instinct.fleet.vllm_image) found when it probed the image,
          null if it has not been probed.
      type: list
      elements: dict
      sample: [{id: "sha256:11", tags: ["r:t"], digests: ["r@sha256:22"], bytes: 1,
                software: {vllm: 0.11.2+rocm700, platform: rocm, rocm: 7.0.0, pytorch: 2.9.0, python: 3.12.11,
                           gfx: [gfx942]}}]
    models:
      description: Weights with the marker of a finished download, and whether every file exists with its size.
      type: list
      elements: dict
      sample: [{cache_dir: /var/lib/instinct-fleet/hf, repo: lab/tiny-llama, commit: "40 hex digits",
                complete: true, bytes: 1, files: 5, exclude: [], include: [],
                verified: true}]
    fetching:
      description: Repositories in a cache without such a marker, and their bytes so far.
      type: list
      elements: dict
      sample: [{cache_dir: /var/lib/instinct-fleet/hf, repo: lab/tiny-llama, bytes: 1}]
    repositories:
      description: >-
        Models made on the fleet. C(commit) is that of the files in the manifest, empty without a manifest,
        C(signature) is the fingerprint of the signature, C(wrong) names files that differ, C(verified) is whether all
        were hashed since they changed.
      type: list
      elements: dict
      sample: [{path: /var/lib/instinct-fleet/models/llama-fp8/COMMIT, commit: "40 hex digits", signature: 8f1c2d0e5b7a,
                bytes: 1, wrong: [], verified: true}]
    stored:
      description: Images and models that the content store has complete, for other nodes.
      type: list
      elements: str
      sample: ["image sha256:8f1c"]
    held_bytes:
      description: >-
        Bytes of the content store, of weights with a marker and of models that were made on the fleet; hard links once,
        and on disks of this node only.
      type: int
    libtorrent:
      description: Whether libtorrent, which moves them between nodes, is installed.
      type: bool
    instances:
      description:
        - Containers of instances. C(spec_hash) is the hash of the files from which the container was created,
          C(artefact_hash) that of the instance's present files, null if one is missing. C(files) has their sha256.
          C(own_restart_policy) is the one that the container has while it should run. C(start) has the lines of vLLM's
          log with the memory that it measured when it started, null if they are not recorded.
        - C(supervisor) is the report of the supervisor around vLLM, null if there is none - C(state) is one of
          V(waiting), V(starting), V(running), V(stopping), V(gave_up); C(failures) counts consecutive unrequested ends
          of vLLM, C(first) is the first of them; C(peer) is the end of another rank that ended the last run.
      type: list
      elements: dict
      sample: [{name: llama-0, deployment: llama, container: instinct-llama-0, container_id: "64 hex digits",
                state: running, spec_hash: 12ab, artefact_hash: 12ab, files: {env: 34cd},
                image_id: "sha256:11",
                started_at: "2026-01-01T00:00:00Z", exit_code: 0, restart_count: 0, ready: true,
                restart_policy: always, own_restart_policy: always,
                start: {key: 56ef, predicted_tokens: [3853472, 4053248], container: "64 hex digits",
                        at: "2026-01-01T00:01:00Z", lines: ["GPU KV cache size: 3,994,976 tokens"]},
                supervisor: {state: starting, since: 1795298436.1, why: "", failures: 1, peer: null,
                             first: {kind: out_of_memory, line: HIP out of memory, next_step: Use more GPUs}}}]
    generations:
      description:
        - The node's records of each deployment. C(kept) are its generations from old to new, without their files;
          C(held) and C(trial) are its hold and trial, see M(instinct.fleet.serving_generation), C(lifted) and C(ended)
          when the last hold and trial ended. C(broken) is why its record cannot be read.
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
      description:
        - Space on the file systems of images, caches and data; an equal C(device) is the same file system, and
          C(network) the type of a network file system.
      type: list
      elements: dict
      sample: [{path: /var/lib/docker, free_bytes: 1, total_bytes: 1, device: 123}]
    balancer:
      description:
        - The load balancer on this host. C(files) are the hashes of the files in use, C(keys) fingerprints of the
          clients' keys, C(applied) the hash of the configuration last loaded by HAProxy, C(config) its configuration,
          C(out) the drained servers.
      type: dict
      sample: {installed: true, keepalived: false, running: true, files: {}, keys: [], applied: null, config: null,
               out: null}
    lease:
      description:
        - The run that is changing this node, or the last one that did; null if there was none since the boot. C(tag)
          names the last change; C(at_work) is whether a call of the run is at work now, C(left) for how many seconds
          its lease lasts without another call.
      type: dict
      sample: {run: 1d0b3c/4026531836/4242/99817, who: ann@control1, command: upgrade.yml,
               started: "2026-01-01T00:00:00Z", tag: "1d0b3c/4026531836/4242/99817:3", at_work: true, left: 118.2}
    benchmarks:
      description: What is kept of benchmarks that are not reported yet. C(runs) are the finished runs of each cell.
      type: list
      elements: dict
      sample: [{run: 20260131T101500Z, target: llama-0-serve, runs: [3, 3, 1]}]
    problems:
      description: Sources that could not be read.
      type: list
      elements: dict
      sample: [{what: /sys/class/drm/renderD128/device/current_compute_partition,
                error: "Operation not permitted: the GPU is being reset"}]
"""

import json
import sys

from ..observe.node_state import check_args, node_state

# The text between the quotes is replaced by JSON, in which three quotes in a row cannot occur.
ARGUMENTS = r"""<<INCLUDE_ANSIBLE_MODULE_JSON_ARGS>>"""


def main() -> None:
    """Print the module's result."""
    try:
        text = ARGUMENTS
        if len(sys.argv) > 1:  # run by hand: node_state.py ARGUMENTS.json
            with open(sys.argv[1], encoding="utf-8") as file:
                text = file.read()
        result = {"changed": False, "node_state": node_state(check_args(json.loads(text)))}
    except Exception as error:  # a module can report only through its result
        result = {"failed": True, "changed": False, "msg": str(error) or type(error).__name__}
    sys.stdout.write(f"{json.dumps(result)}\n")


if __name__ == "__main__":
    main()
