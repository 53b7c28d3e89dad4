"""TLS between a cluster's processes: one self-signed certificate per cluster, pinned by everybody who dials its hub."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

from jupyter_aicluster.rundir import RunDir, write_private

_HUB = "aicluster-hub"
_OLDEST = ssl.TLSVersion.TLSv1_2  # said, because Python 3.11 takes the system's
_NO_CHECK_TIME = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME


def make_certificate(run: RunDir, uid: str) -> None:
    """Write the hub's key and certificate (valid for 400 days) into the run folder, mode 0600."""
    # Here, not at the top: only the client makes certificates, and the import costs 50 ms.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{_HUB}-{uid}")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks of nodes differ
        .not_valid_after(now + datetime.timedelta(days=400))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_private(run.hub_key, private)
    write_private(run.hub_cert, certificate.public_bytes(serialization.Encoding.PEM))


def pinned_context(certificate: Path) -> ssl.SSLContext:
    """Trusts this one certificate and nothing else, whatever address it is met at: who serves it holds the key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _OLDEST
    context.check_hostname = False  # the address changes with every attempt; the key does not
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)  # a clock that is wrong somewhere is no reason to lose a cluster
    context.load_verify_locations(certificate)
    return context


def serving_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _OLDEST
    context.load_cert_chain(certificate, key)
    return context
