# SPDX-License-Identifier: Apache-2.0
"""libtorrent, set up for a swarm of known members on a network of their own: few large pieces, no strangers.

The engine is Debian's python3-libtorrent (2.0). It is imported when a swarm starts, so that all else runs without it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..content.urls import with_brackets
from .swarm_job import SwarmJob, SwarmMember
from .swarm_pieces import PieceLayout, bencode, torrent

FORCED, HANDSHAKE = 0, 1  # encryption is required; after the handshake, content is sent as it is
_ALERTS = 0x1 | 0x2 | 0x8 | 0x20 | 0x40  # errors, peers, storage, connections, status
_BLOCK = 16 * 2**10  # bytes
_ASKED_PART = 200
_LEAST_OF_SOURCE, _LEAST, _MOST = 2, 8, 2000  # blocks; one in transit while the next is asked for
_FINISHED = 3  # the engine's state of a block that was written
_BANNED = 91  # the engine's error of a connection to a peer whose content was wrong
_QUIET = (
    "enable_dht",
    "enable_lsd",
    "enable_upnp",
    "enable_natpmp",
    "enable_incoming_utp",
    "enable_outgoing_utp",
)


def queue_depth(job: SwarmJob) -> int:
    """Return how many blocks each other member may have asked of this one at a time.

    The engine tells it to the others, which then take it in place of a limit of their own (max_out_request_queue). A
    receiver that has its share leaves the source, which has sent in vain what was still asked for; and towards the end
    the same blocks are asked of several members. So all together have 1/200 of the content at most.
    """
    receivers = sum(1 for member in job.members if not member.serves)
    amount = sum(job.manifest.blobs.values())
    share = amount // _ASKED_PART // (max(1, receivers) * _BLOCK)
    return max(_LEAST_OF_SOURCE if job.me.serves else _LEAST, min(_MOST, share))


def settings(job: SwarmJob) -> dict[str, Any]:
    """Return the engine's settings."""
    me = job.me
    return {
        **dict.fromkeys(_QUIET, False),
        "listen_interfaces": f"{with_brackets(me.address)}:{me.port}",
        "outgoing_interfaces": me.address,
        "listen_system_port_fallback": False,
        "max_retry_port_bind": 0,
        "allowed_enc_level": HANDSHAKE,
        "in_enc_policy": FORCED,
        "out_enc_policy": FORCED,
        "download_rate_limit": job.limit,
        "upload_rate_limit": job.limit,
        # Every member sends to every other one: no member has to earn it, and none is refused.
        "choking_algorithm": 0,
        "unchoke_slots_limit": -1,
        "connections_limit": 2 * len(job.members) + 20,
        "connection_speed": 200,
        "peer_turnover": 0,
        "close_redundant_connections": False,
        "auto_sequential": False,
        "initial_picker_threshold": 0,
        "strict_end_game_mode": True,
        # Sources need not hear of each piece of each receiver; they ask how far these are (swarm_hashes.py).
        "send_redundant_have": False,
        "use_parole_mode": True,
        # A member whose link was cut is back as soon as the link is.
        "min_reconnect_time": 1,
        "max_failcount": 10000,
        "peer_connect_timeout": 5,
        "peer_timeout": 6,
        "request_timeout": 6,
        "piece_timeout": 6,
        "request_queue_time": 2,
        "tick_interval": 250,
        "smooth_connects": False,
        "unchoke_interval": 1,
        "whole_pieces_threshold": 0,
        "max_allowed_in_request_queue": queue_depth(job),
        "send_buffer_watermark": 4 * 2**20,
        "alert_mask": _ALERTS,
    }


@dataclass(frozen=True)
class Peer:
    """What this member sees of another one."""

    address: str
    complete: bool


class SwarmEngine:
    """The torrent of a run."""

    def __init__(
        self, job: SwarmJob, cut: PieceLayout, hashes: Mapping[str, bytes], places: Mapping[str, str]
    ) -> None:
        """`places` has the path of each blob's file."""
        self.lt: Any = importlib.import_module("libtorrent")
        self.job, self.cut = job, cut
        self.session = self.lt.session(settings(job))
        self.banned: set[str] = set()
        self.admitted: list[SwarmMember] = []
        self.admit(job.members)
        info = torrent(cut, hashes, job.manifest.id, job.key)
        self.info = self.lt.torrent_info(self.lt.bdecode(bencode({"info": info})))
        for slot in cut.slots:
            self.info.rename_file(slot.file, places[slot.sha256])
        self.handle: Any = None
        self.before = (0, 0)  # totals() of what was restarted

    def admit(self, members: Iterable[SwarmMember]) -> None:
        """Allow connections with these members only, except those that sent wrong content; close others."""
        self.admitted = [member for member in members if member.address not in self.banned]
        found = self.lt.ip_filter()
        found.add_rule("0.0.0.0", "255.255.255.255", 1)
        found.add_rule("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 1)
        for member in self.admitted:
            found.add_rule(member.address, member.address, 0)
        self.session.set_ip_filter(found)

    def start(self, have: Sequence[bool], priorities: Sequence[int]) -> None:
        """Begin; `have` and `priorities` are by piece."""
        wanted = self.lt.add_torrent_params()
        wanted.ti = self.info
        wanted.save_path = self.job.root
        wanted.have_pieces = list(have)
        wanted.piece_priorities = list(priorities)
        flags = self.lt.torrent_flags
        wanted.flags = (
            flags.disable_dht
            | flags.disable_lsd
            | flags.disable_pex
            | flags.apply_ip_filter
            | flags.no_verify_files
        )
        wanted.storage_mode = self.lt.storage_mode_t.storage_mode_sparse
        self.handle = self.session.add_torrent(wanted)

    def connect(self, members: Iterable[SwarmMember]) -> None:
        """Connect to members; those that are connected stay so."""
        for member in members:
            self.handle.connect_peer((member.address, member.port))

    def peers(self) -> list[Peer]:
        """Return the connected members."""
        seed = self.lt.peer_info.seed | self.lt.peer_info.upload_only
        hidden = self.lt.peer_info.connecting | self.lt.peer_info.handshake
        return [
            Peer(peer.ip[0], bool(peer.flags & seed))
            for peer in self.handle.get_peer_info()
            if not peer.flags & hidden
        ]

    def have(self) -> list[bool]:
        """Return which pieces are here, checked."""
        pieces = list(self.handle.status(self.lt.torrent_handle.query_pieces).pieces)
        return pieces if len(pieces) == self.cut.count else [bool(pieces)] * self.cut.count

    def ask_for(self, changes: Mapping[int, int]) -> None:
        """Change priorities of pieces."""
        if changes:
            self.handle.prioritize_pieces(list(changes.items()))

    def copies(self) -> list[int]:
        """Return how many connected receivers have each piece."""
        found = list(self.handle.piece_availability())
        sources = found[self.cut.mark] if found else 0
        return [count - sources for count in found]

    def totals(self) -> tuple[int, int]:
        """Return the bytes of content received and sent."""
        status = self.handle.status(0)
        return self.before[0] + status.total_payload_download, self.before[1] + status.total_payload_upload

    def errors(self) -> list[str]:
        """Return what went wrong since the last call; note the members that sent wrong content."""
        found = []
        for alert in self.session.pop_alerts():
            kind = type(alert).__name__
            if kind == "peer_ban_alert":
                self.banned.add(alert.ip[0])
            elif kind in ("peer_disconnected_alert", "peer_error_alert"):
                if alert.error.value() == _BANNED:
                    self.banned.add(alert.ip[0])
            elif kind in ("file_error_alert", "torrent_error_alert", "listen_failed_alert"):
                found.append(alert.message())
        return found

    def moved(self, sha256: str, path: str) -> None:
        """Serve a blob from another name of the same file."""
        self.handle.rename_file(self.cut.slot(sha256).file, path)
        self.info.rename_file(self.cut.slot(sha256).file, path)

    def hangs(self) -> bool:
        """Return whether all blocks of a piece are here, and the engine waits for them.

        When a piece is found wrong before its last block is written, the block that is written then counts for the
        piece's next try, which nobody asks for or compares with its hash (seen with libtorrent 2.0.8).
        """
        queue = self.handle.get_download_queue()
        return any(all(block["state"] == _FINISHED for block in piece["blocks"]) for piece in queue)

    def restart(self) -> None:
        """Forget incomplete pieces, and all connections."""
        have, priorities = self.have(), self.handle.get_piece_priorities()
        self.before = self.totals()
        self.session.remove_torrent(self.handle)
        self.admit(self.admitted)
        self.start(have, priorities)

    def again(self) -> None:
        """Compare all that is here with the hashes of its pieces, and receive what is wrong."""
        self.handle.force_recheck()

    def close(self) -> None:
        """End all connections, and close the files."""
        if self.handle is not None:
            self.session.remove_torrent(self.handle)
        del self.session  # waits until all is closed
