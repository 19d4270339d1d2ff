# SPDX-License-Identifier: Apache-2.0
"""How Docker's messages name what a registry answered, as regular expressions; pulls and pushes advise on each."""

from __future__ import annotations

PLAIN_HTTP = "server gave HTTP response to HTTPS client|first record does not look like a TLS handshake"
UNTRUSTED = "x509|certificate|tls: "
LIMITED = "toomanyrequests|rate limit|429 Too Many"
DENIED = (
    "unauthorized|no basic auth credentials|authentication required|incorrect username or password"
    "|denied|403 Forbidden|401 Unauthorized"
)
UNREACHABLE = (
    "no such host|connection refused|network is unreachable|no route to host|i/o timeout"
    r"|context deadline exceeded|Client\.Timeout|connection reset|\bEOF\b|proxyconnect|temporary failure"
)
