# SPDX-License-Identifier: Apache-2.0
"""Types of plan.json. What a dataclass writes as it is, such as an action, stands with its dataclass alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from ansible_collections.instinct.fleet.plugins.plugin_utils.base.json_record import Count, Text
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.recipes import Advice
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.decode import (
    DecodeStep,
    PeakRates,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.estimates import MeasuredStart
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.sizing.fit_result import Fit
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.attention_backends import Claim
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.changes.actions import ModelStep
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.changes.assumptions import Assumption
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.actions import Action, Role
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.reasons import Reason
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.placement.ranks import Rank

from .derive import Schema, schema

Number = Annotated[int, {"minimum": 1}]
Hash = Annotated[str, {"pattern": "^[0-9a-f]{64}$"}]
Batched = Literal["upgrade", "rollback", "restart", "stop", "benchmark"]
Status = Literal["observed", "declared"]


class Plan(TypedDict):
    schema: Literal[1]
    deployments: list[str]  # those that are planned from the inventory
    generations: list[Turn]  # what becomes of each deployment
    hosts: Mapping[str, Host]
    balancers: Mapping[str, Balancer]
    former_balancers: NotRequired[Mapping[str, Former]]  # on hosts that are not in the group load_balancer
    transfers: NotRequired[list[Transfer]]  # what hosts pass on to each other instead of fetching it each
    # hosts that download at the same time, so that the hub's limit of requests is kept; absent: all
    downloads_at_once: NotRequired[Number]
    downloads: NotRequired[list[Download]]  # repositories of hubs that hosts will download, with their terms
    partial: list[str]  # images that have to be asked which vLLM they hold before everything can be planned
    # of a run that changes what serves by batches; what each host does in a phase is not written here
    rollout: NotRequired[Rollout]
    sources: Mapping[str, Source]  # the documents that reasons name, by what stands before the # of a source
    unreachable: Mapping[str, str]  # hosts without an answer, with the reason
    # hosts that answered and cannot be planned, with what is wrong and the next step
    excluded: Mapping[str, str]
    warnings: list[str]


class Source(TypedDict):
    title: str
    url: str
    date: str


class Former(TypedDict):
    text: str  # what is there, and what removes it
    # when this run takes it down, relative to the change of instances
    phase: Literal["before", "after"] | None
    actions: list[Action]


class Rollout(TypedDict):
    operation: Literal["deploy", "upgrade", "rollback", "restart", "stop", "benchmark"]
    batches: list[Batch]
    soak: Count  # seconds under watch after each batch
    ignored: list[str]  # what the run does not do because of holds
    measured_hosts: list[str]  # hosts with instances that a measurement sends requests to
    returned: list[Returned]  # what a measurement takes out of each load balancer, and returns


class Returned(TypedDict):
    balancer: str
    servers: list[str]


class Batch(TypedDict):
    number: Number
    of: Number
    operation: Batched
    awaits: list[str]  # hosts whose instances have to have started before
    deployment: str
    generation: int | None  # that its instances get
    # the generations at which deployments are held when the batch is turned back; 0: not started
    holds: Mapping[str, Count]
    lost: list[str]  # instances (host/name) of which nothing is known to go back to
    why: str
    canary: str  # the instance (host/name) that is measured; empty: none
    hosts: list[str]
    all_hosts: list[str]  # of all batches of the deployment, and of all records of what is held with it
    units: list[list[str]]  # instances (host/name) that change together
    phases: list[str]  # what its hosts do, together and in this order
    way_back: list[str]  # what follows otherwise
    text: str


class Hold(TypedDict):
    generation: int  # 0: it did not serve before
    why: str
    since: str  # UTC; empty: from this run on
    failed: list[int]  # the generations that were turned back; empty where a record does not say it
    together: list[str]  # deployments that were turned back with it


class Trial(TypedDict):
    generation: int
    why: str
    since: str
    units: list[Any]
    baseline: Mapping[str, Any]
    before: int | None  # the generation before it; null where a record does not say it
    together: Mapping[str, int]  # the generations of the deployments that go back with it


class Turn(TypedDict):
    deployment: str
    # where its instances come from: the inventory; a generation (held, rollback); what runs (running)
    choice: Literal["inventory", "held", "rollback", "running"]
    generation: int | None  # what it will be; null: nothing is recorded of it, or it stays as it runs
    before: int | None  # the newest that runs on any host
    new: bool  # no host has this number yet
    known: bool  # what is wanted is the newest record of every host
    why: str
    held: Hold | None
    ignored: bool  # the inventory defines what was turned back
    trial: Trial | None
    hosts: Mapping[str, HostTurn]


HostTurn = TypedDict("HostTurn", {
    "from": Annotated[int | None, {"description": "What runs; the lowest, where there are several."}],
    "to": Annotated[int | None, {"description": "null: nothing of it."}],
    "record": Annotated[bool, {"description": "The host records it first."}],
})  # fmt: skip


class Generation(TypedDict):
    schema: Literal[1]
    deployment: str
    generation: Number
    made: str  # empty: the node says when
    why: Text
    image: str  # as the engine knows it
    image_ref: str  # as the inventory has it
    vllm: str
    model: str
    commit: str
    weights: list[tuple[str, str]]  # repository and commit of all that is loaded
    modes: str  # partition modes of its GPUs: SPX NPS1
    command: str  # of the first instance
    env: str  # of the first instance; secrets are masked
    models: list[str]  # names that clients ask for
    listen: str
    endpoint: bool
    stop_timeout: int
    toolkit: NotRequired[str]  # the release that composed it
    definition: NotRequired[str]  # a hash of what the inventory and the host gave it
    members: list[Member]
    needed: list[int]


class Member(TypedDict):
    name: str
    spec_hash: Hash
    port: int
    ports: list[int]
    render_nodes: list[str]
    share: float  # of each of its GPUs
    hosts: list[str]  # of its engine, where it spans hosts
    headless: bool
    limit: int  # requests that it gets at once


class Download(TypedDict):
    repo: str
    revision: str
    commit: str | None  # null: not pinned yet
    uses: list[str]  # model of llama
    hosts: list[str]
    card_read: bool  # else licences are what the catalogue says by the name
    licenses: list[License]  # also of the models that it was made from
    # by repository: how access is granted; empty where it is only kept from a region
    gates: Mapping[str, Literal["", "auto", "manual"]]
    scan: str  # of the hub, in words
    pickles_left_out: Count
    pickles: list[str]  # those that servers load
    code: Mapping[str, str]  # Python files that servers run, with their hashes; empty where the lock has none


class License(TypedDict):
    license: str  # what accepts it in licenses_accepted
    of: str  # the repository that states it
    link: str | None
    needs_acceptance: bool
    accepted: bool


class StoredServer(TypedDict):
    name: str
    deployment: str
    generation: int
    spec_hash: Hash
    image: str
    port: int
    served_model: str
    headless: bool
    stop_timeout: int


class StoredInstance(TypedDict):
    host: str
    name: str
    deployment: str
    generation: int
    model: str
    commit: str | None
    served_model: str
    image: str
    vllm: str
    port: int
    ports: list[int]
    render_nodes: list[str]
    argv: list[str]
    spec_hash: Hash
    server: StoredServer  # the module vllm_server reads the rest from the node's store


class Host(TypedDict):
    status: Status  # observed: the host was looked at; declared: planned from the inventory alone
    gpus: Gpus  # the host's GPUs as they will be
    actions: list[Action]  # in the order in which they run
    todo: list[Role]  # roles with something to do, in the order in which they run
    unknown_images: list[str]  # images to ask before the rest is planned
    packages: list[str]  # packages to install
    numa_balancing: bool | None  # the value to set; null: nothing to do
    # on the control node: the load balancers' key to bring; null: nothing to do
    instance_key_file: str | None
    partition: Partition | None  # how partition modes change; null: they stay
    builds: NotRequired[Builds]  # what is done about images that hosts build, in this order
    images: list[Image]  # to pull
    transfers: NotRequired[list[str]]  # names of those in which the host takes part
    # models made on the fleet that come here: their paths, and their manifests' names in the content store
    repositories: NotRequired[list[Repository]]
    models: list[ModelStep]  # to fetch
    servers: list[Server | StoredServer]  # to start or replace
    # those of servers that are started when all hosts are partitioned: not those of partition.serve
    serve: list[str]
    remove: list[str]  # instances to remove then: not those of partition.remove
    # servers that partition.yml starts at its end: those that span hosts where it changes modes, elsewhere those that
    # it found stopped, as a run that was cut off leaves them
    resume: list[str]
    spans: list[str]  # servers to start whose engine has others on other hosts: they wait for one another
    # all that are wanted; the node's store has all of a stored one
    instances: list[Instance | StoredInstance]
    generations: list[Generation]  # to record before anything stops; needed: numbers that are not pruned then
    bindings: list[Binding]  # holds to set, or (null) to lift
    kept: list[Kept]  # images and weights that are there for a rollback only
    # facts that only the host knows, and the kinds of actions that depend on them; offline only
    assumed: NotRequired[list[Assumption]]
    warnings: list[str]  # what is told of the host


class Gpus(TypedDict):
    model: str | None  # the product's name; null: not known
    count: int  # physical GPUs
    logical: int  # GPUs after partitioning
    compute: str | None  # the mode that is wanted; null leaves it


class Partition(TypedDict):
    compute: Literal["SPX", "DPX", "TPX", "QPX", "CPX"] | None  # null leaves it
    memory: Literal["NPS1", "NPS2", "NPS4"] | None  # null leaves it
    serve: list[str]  # servers to start before the next hosts are changed: those that do not span hosts
    remove: list[str]  # instances to remove then
    clean: bool  # reload the driver to free VRAM that no process holds
    interrupted: bool  # whether an earlier change did not end; it is finished, or undone
    backend: Literal["auto", "rocm-smi", "amd-smi", "sysfs"]
    stop_servers: list[Stop]  # instances that hold the GPUs


class Stop(TypedDict):
    name: str
    container_name: str
    stop_timeout: int


class Builds(TypedDict):
    build: list[Image]
    push: list[Push]
    transfers: list[str]  # names of those in which the host takes part
    load: list[Image]  # from another host, or from the registry


class Repository(TypedDict):
    path: str
    name: str


class Binding(TypedDict):
    deployment: str
    held: Hold | None
    trial: NotRequired[None]  # an unfinished rollout that ends with it


class Kept(TypedDict):
    kind: Literal["image", "weights"]
    name: str
    generations: list[str]


class Balancer(TypedDict):
    status: Status
    url: str  # where clients reach it
    backends: list[Backend]  # instances that share model names, of one deployment or several
    actions: list[Action]
    packages: list[str]
    files: Mapping[str, str]  # texts of its files but for those with secrets
    files_before: Mapping[str, str]  # the same while instances change
    keys_file: str | None  # on the control node
    certificate_file: str | None  # on the control node
    instance_key_file: str | None  # on the control node
    drain: list[str]  # servers to take out before anything stops
    undrain: list[str]  # servers to take in in the end
    gone: list[str]  # servers of hosts that left the inventory, to drain in the end
    warnings: list[str]


class Subset(TypedDict):
    name: str
    models: list[str]  # names that clients ask for, which all of the servers have
    queue: int  # requests that may wait
    key_limit: int  # requests that one API key may have in progress
    servers: list[str]  # by their names


class Backend(TypedDict):
    name: str
    models: list[str]  # names that clients ask for, which all of the servers have
    queue: int  # requests that may wait
    key_limit: int  # requests that one API key may have in progress
    subsets: NotRequired[list[Subset]]  # names that only some of the servers have
    servers: list[BackendServer]


class BackendServer(TypedDict):
    name: str  # HAProxy's: host.instance:port
    host: str
    instance: str
    deployment: str
    address: str
    port: int
    limit: int  # requests that it gets at once
    models: list[str]  # names that it is asked for
    weight: int  # its share of the requests, relative to others
    number: int  # above 1: a further server of the instance at this port
    coming: bool  # its instance does not run yet
    target: str  # address:port
    probe: str  # by what the agent beside HAProxy knows it


class Transfer(TypedDict):
    name: str
    # build: an image that the seed builds first. repository: a model that was made on the fleet
    kind: Literal["image", "model", "build", "repository"]
    what: str  # its name for people
    bytes: int  # of one copy; 0 where it is not built yet
    origin: str | None  # from where the seed fetches it; null: it has it
    seed: str  # the host that the others get it from
    offer: Mapping[str, Any]  # how it gets it; arguments of blob_fetch
    members: list[TransferMember]
    seconds: int | None  # an estimate; null where no rate is declared
    bound: Literal["uplink", "interface", "disk"] | None  # the rate that decides


class TransferMember(TypedDict):
    name: str
    address: str
    port: int
    serves: bool  # it has it before the others do


class Push(TypedDict):
    ref: str
    push_to: str
    registry: str
    image_id: NotRequired[str]  # the image that it has to be


class Image(TypedDict):
    ref: str
    pull: str | None  # by digest when it is pinned; null for one that is built
    digest: str | None
    bytes: int | None  # what a pull transfers
    registry: str
    offered: NotRequired[Literal[True]]  # other hosts get it from here
    build: Build | None


class Build(TypedDict):
    repo: str
    ref: str
    dockerfile: str
    target: NotRequired[str]
    from_store: NotRequired[Literal[True]]  # another host builds it
    image_id: NotRequired[str]  # the image that it has to be
    args: Mapping[str, str]
    tag: str


class Server(TypedDict):
    name: str
    deployment: str
    container_name: str
    directory: str
    cache_directory: str
    # of all that its compiled caches depend on; instances with the same key take over each other's
    cache_key: Annotated[str, {"pattern": "^[0-9a-f]{32}$"}]
    files: Files
    spec_hash: Hash
    container: Mapping[str, Any]  # the Docker Engine API's create body
    image: str
    port: int
    host: str  # where the node itself reaches the server
    served_model: str
    headless: bool  # it works for another server, and has no port
    memory: Memory  # what is recorded beside the memory that vLLM measures at its start
    attention: Claim | None  # the attention backend that its log is to prove; null: nothing is claimed
    ready_timeout: int
    stop_timeout: int
    secrets: NotRequired[str]  # the fingerprint of its secret variables, if it has any


class File(TypedDict):
    text: str
    mode: Annotated[str, {"pattern": "^0[0-7]{3}$"}]


Files = TypedDict("Files", {"serve.sh": File, "env": File, "container.json": File})


class Memory(TypedDict):
    key: str  # of all that this depends on
    # the least and the most of the KV cache; null: it is not estimated
    predicted_tokens: tuple[int, int] | None


class Peak(TypedDict):
    hbm_bytes_per_second: float
    flops: Mapping[str, Annotated[float, {"minimum": 0}]]  # dense FLOPS by data type


class Measured(TypedDict):
    host: str  # where
    at: str  # when, UTC
    kv_cache_bytes: int | None  # null: the release does not print it
    kv_cache_tokens: int  # with its max_model_len
    max_model_len: int | None  # with which it started
    weights_bytes_per_gpu: int | None  # of the rank that has most


WRITTEN_AS = {PeakRates: Peak, MeasuredStart: Measured}
"""Dataclasses inside of those that write their fields, and that write something else themselves."""


class Instance(TypedDict):
    name: str  # <deployment>-<index>
    deployment: str  # the name of its deployment
    host: str  # the host that it runs on
    index: int  # its place among the deployment's instances on the host, from 0
    model: str  # a repository of the hub, or a path on the node
    revision: str | None  # as the deployment says it; null: the model is a path
    commit: str | None  # what the revision is pinned to; null: not pinned, or a path
    served_model: str  # the name that clients ask for
    image: str  # the reference that the engine runs: by digest when pinned
    vllm: str  # the vLLM release that it is planned for
    # what it is tuned for; null: only what serves every purpose
    objective: Literal["latency", "interactive", "streaming", "throughput"] | None
    port: int  # where it answers; a headless one does not use it
    gpus: list[int]  # logical GPUs
    render_nodes: list[str]  # their names in /dev/dri; by the driver's rule where declared
    argv: list[str]  # the command, word by word
    env: Mapping[str, str]  # variables of the server
    devices: list[str]  # device files that the container gets
    ports: list[int]  # ports at which it listens that are known before it starts
    cpus: str | None  # CPUs of its NUMA node, as the kernel lists them; null: any
    rank: Rank | None  # its place among the servers of one engine; null: it is one alone
    spec_hash: Hash  # of its rendered files: an instance with another one is started anew
    reasons: list[Reason]  # every setting with its value, why, and who says so
    chosen: list[str]  # flags and variables that recipes added
    advice: list[Advice]  # what arithmetic shows to be better
    hints: list[Advice]  # what documents say of such a deployment in general
    notes: list[str]  # what the memory arithmetic has to say
    warnings: list[str]  # what vLLM would do all the same, and probably not as meant
    # whether the model fits, and how much the KV cache holds: memory of one GPU or partition, in bytes; tokens and
    # requests as vLLM's log counts them; null: the model's config.json is not known
    fit: Fit | None
    # what a decode step of the engine takes, for the roofline in results; null: the model's layers are not known,
    # servers share the engine, or it runs on CPUs
    decode_step: DecodeStep | None
    server: Server  # what the module vllm_server converges


def plan_schema() -> Schema:
    """Return the schema of plan.json."""
    return schema("plan.json", Plan, WRITTEN_AS)
