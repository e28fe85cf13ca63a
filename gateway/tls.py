"""Connections that nobody can read on their way."""

from __future__ import annotations

import ssl
from pathlib import Path

from gateway.config import GatewayConfig
from prefixcache.errors import ConfigError


def tls_context(config: GatewayConfig) -> ssl.SSLContext | None:
    """Return what serves TLS with the configured certificate; None: plain HTTP.

    Raises:
        ConfigError: the certificate or its key cannot be read, or they do not belong together.
    """
    if config.tls_certificate is None or config.tls_key is None:
        return None
    for setting in ("tls_certificate", "tls_key"):
        _require_readable(setting, getattr(config, setting))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(config.tls_certificate, config.tls_key, password=_no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = f"is no PEM certificate that fits its key {config.tls_key}: {error}"
        raise ConfigError("tls_certificate", config.tls_certificate, reason) from error
    return context


def _require_readable(setting: str, path: str) -> None:
    try:
        Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(setting, path, f"cannot be read: {error.strerror}") from error


def _no_password() -> str:
    """Raises ValueError: nobody is there to type a password."""
    raise ValueError("the key is encrypted; give one without a password")
