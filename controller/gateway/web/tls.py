"""How the operator page proves who it is, and what of `[web]` can be known to be wrong before anything starts."""

import ipaddress
import ssl
from pathlib import Path

from controller.errors import ConfigurationError
from controller.gateway.accounts import read_users
from controller.schema import Web
from controller.settings import secret_of


def check(table: Web, site: Path) -> None:
    """Refuse what is wrong whatever happens later; `site` is the file it stands in.

    Raises:
        ConfigurationError: with the sentence for the user.
    """
    try:
        tls_context(table)
        if table.users:
            read_users(Path(table.users))
    except ConfigurationError as error:
        raise ConfigurationError(f"{site}: {error}") from None


def tls_context(table: Web) -> ssl.SSLContext | None:
    """The context of the certificate of the site; None without one, which is for loopback only.

    Raises:
        ConfigurationError: with the sentence for the user.
    """
    if not table.certificate and not table.key:
        if not _is_loopback(table.host.strip("[]")):
            raise ConfigurationError(
                f"web.host: found {table.host!r} without web.certificate: passwords and requests would travel readable;"
                " give a certificate, or listen at 127.0.0.1 behind something that has one"
            )
        return None
    if not (table.certificate and table.key):
        raise ConfigurationError("web.certificate, web.key: found one of them, expected both or none")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    secret_of(Path(table.key), "web.key")
    try:
        context.load_cert_chain(table.certificate, table.key, password="")  # else it asks at the terminal
    except OSError as error:  # ssl.SSLError, too
        raise ConfigurationError(
            f"web.certificate, web.key: {table.certificate} and {table.key} cannot be used: {error.strerror or error}"
        ) from None
    return context


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
