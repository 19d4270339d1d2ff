# SPDX-License-Identifier: Apache-2.0
"""Create the endpoint's own certificate, and find what makes clients refuse one. Needs cryptography."""

from __future__ import annotations

import datetime
import functools
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

VALID_DAYS = 825  # the maximum that clients accept for a server's certificate
WARN_DAYS = 30
LOCAL = ("localhost", "127.0.0.1")
RENEW = "docs/runbooks/endpoint.md says how to renew it"


@dataclass(frozen=True)
class CertificateFacts:
    """What clients check. names: DNS names and addresses, as text. signs: whether it may sign other certificates."""

    end: datetime.datetime
    names: frozenset[str]
    signs: bool


def self_signed(addresses: Sequence[str]) -> str:
    """Return a certificate for these addresses and its private key, as PEM.

    Clients are told to trust it, so it must be valid for these names alone: it cannot sign others.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "instinct-fleet endpoint")])
    now = datetime.datetime.now(datetime.timezone.utc)
    names: list[x509.GeneralName] = []
    for address in dict.fromkeys((*addresses, *LOCAL)):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(address)))
        except ValueError:
            names.append(x509.DNSName(address))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(True, False, False, False, False, False, False, False, False), critical=True
        )
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode() + private.decode()


def certificate_warnings(
    path: str, text: str, addresses: Sequence[str], now: datetime.datetime
) -> tuple[str, ...]:
    """Return what is, or will soon be, wrong with a certificate. addresses: those that it must cover."""
    facts = _read(text)
    if facts is None:
        return ()
    found = []
    days = (facts.end - now).days
    if days < WARN_DAYS:
        when = f"expires in {days} days" if days >= 0 else "has expired"
        found.append(
            f"the certificate {path} {when}, on {facts.end:%Y-%m-%d}: clients refuse it from then on; {RENEW}"
        )
    missing = [address for address in addresses if address not in facts.names]
    if missing:
        found.append(f"{path} does not cover {', '.join(missing)}, and clients refuse it there; {RENEW}")
    if facts.signs and addresses:
        found.append(
            f"{path} can sign certificates for any name, and clients trust it: an older release made it; {RENEW}"
        )
    return tuple(found)


@functools.lru_cache(maxsize=8)
def _read(text: str) -> CertificateFacts | None:
    """Return the first certificate of a PEM text; None if it cannot be read, as HAProxy refuses it anyway."""
    from cryptography import x509

    try:
        made = x509.load_pem_x509_certificate(text.encode())
        names: set[str] = set()
        signs = False
        for extension in made.extensions:
            if isinstance(extension.value, x509.SubjectAlternativeName):
                names.update(extension.value.get_values_for_type(x509.DNSName))
                names.update(map(str, extension.value.get_values_for_type(x509.IPAddress)))
            elif isinstance(extension.value, x509.BasicConstraints):
                signs = extension.value.ca
    except ValueError:
        return None
    # not_valid_after_utc is missing before cryptography 42; the other attribute is deprecated since.
    end = getattr(made, "not_valid_after_utc", None) or made.not_valid_after.replace(
        tzinfo=datetime.timezone.utc
    )
    return CertificateFacts(end, frozenset(names), signs)
