"""Who the gateway is to the broker, and whom it believes to be the broker: password, certificates.

Everything is read from files each time it is used: a certificate that was renewed needs no restart.
"""

import ssl
from pathlib import Path
from typing import Any

from controller import schema
from controller.errors import ConfigurationError
from controller.settings import secret_of


class _Context(ssl.SSLContext):
    """A context that expects a certificate of `server_name` whatever host is called."""

    server_name = ""

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        if self.server_name:
            options["server_hostname"] = self.server_name
        return super().wrap_socket(*arguments, **options)


def password(mqtt: schema.Mqtt) -> str | None:
    """The first line of the password file; None without one.

    Raises:
        ConfigurationError: with the sentence for the user.
    """
    if not mqtt.password_file:
        return None
    if not mqtt.user:
        raise ConfigurationError("mqtt.user: found none, expected the user whose password is in mqtt.password_file")
    first = secret_of(Path(mqtt.password_file), "mqtt.password_file").partition("\n")[0].rstrip("\r")
    if not first:
        raise ConfigurationError(f"mqtt.password_file: {mqtt.password_file}: found nothing in its first line")
    return first


def tls_context(tls: schema.MqttTls) -> ssl.SSLContext:
    """A context that demands TLS 1.2 or later and a valid certificate of the broker.

    Raises:
        ConfigurationError: with the sentence for the user.
    """
    if bool(tls.certificate) != bool(tls.key):
        raise ConfigurationError("mqtt.tls: found one of certificate and key, expected both or none")
    context = _Context(ssl.PROTOCOL_TLS_CLIENT)  # verifies certificate and name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.server_name = tls.server_name
    at = "ca"
    try:
        if tls.ca:
            context.load_verify_locations(tls.ca)
        else:
            context.load_default_certs()
        if tls.key:
            secret_of(Path(tls.key), "mqtt.tls.key")
            at = "certificate"
            context.load_cert_chain(tls.certificate, tls.key, password="")  # else it asks at the terminal
    except ssl.SSLError as error:
        told = (error.reason or "").replace("_", " ").lower()
        expected = "certificates" if at == "ca" else "a certificate, and in mqtt.tls.key its key without a password"
        raise ConfigurationError(
            f"mqtt.tls.{at}: {getattr(tls, at)}: found no such thing ({told}), expected PEM: {expected}"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"mqtt.tls.{at}: {getattr(tls, at)}: {error.strerror}") from None
    return context


def check(mqtt: schema.Mqtt, site: Path) -> None:
    """Refuse what can be known to be wrong before anything starts; `site` is the file it stands in.

    Raises:
        ConfigurationError: with the sentence for the user.
    """
    try:
        password(mqtt)
        if mqtt.tls:
            tls_context(mqtt.tls)
    except ConfigurationError as error:
        raise ConfigurationError(f"{site}: {error}") from None
