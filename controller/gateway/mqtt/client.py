"""One connection to the broker: protocol, credentials, a bounded inbox, and what went wrong in plain words."""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from controller import schema
from controller.gateway.mqtt import broker, credentials

TIMEOUT_S = 2.0  # for every answer of the broker
KEEPALIVE_S = 5
WAITING = 100  # messages
WAITING_OF_TOPIC = 8  # so that one sender cannot take the place of the others
MOST_BYTES = 8192  # of a message
PACKET_BYTES = 2 * MOST_BYTES  # the broker is asked to keep larger ones

_quiet = logging.getLogger("pkm.gateway.mqtt.client")
_quiet.setLevel(logging.CRITICAL)  # one line per unasked message would be another way to be flooded

_REFUSED = {  # codes of MQTT 5, into which the library turns those of 3.1.1
    132: "it does not speak this version of MQTT: set mqtt.version",
    133: "it does not accept the name of this client",
    134: "user or password is wrong",
    135: "this user may not connect, or user or password is wrong",
    136: "it is not available at present",
    137: "it is busy",
    138: "this client is banned",
}
_SILENT, _HUNG_UP = "it did not answer in time", "it hung up"
_BROKEN = (  # parts of messages of the operating system and of OpenSSL
    ("certificate has expired", "its certificate has expired, or the clock here is wrong"),
    ("certificate is not yet valid", "its certificate is not valid yet, or the clock here is wrong"),
    ("Hostname mismatch", "its certificate is that of another host: see mqtt.host and mqtt.tls.server_name"),
    ("IP address mismatch", "its certificate is not for this address: see mqtt.host and mqtt.tls.server_name"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not signed by an authority that mqtt.tls.ca names"),
    ("ALERT", "it refuses the certificate or the TLS version of this gateway"),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS at this port"),
    ("Connection refused", "nothing listens there"),
    ("Name or service not known", "no such host is known"),
    ("Temporary failure in name resolution", "the host's name cannot be looked up at present"),
    ("No route to host", "there is no way to that host"),
    ("Network is unreachable", "there is no network to it"),
    ("timed out", _SILENT),
    ("Connection reset", _HUNG_UP),
    ("not currently connected", _HUNG_UP),
    ("EOF occurred in violation of protocol", _HUNG_UP),
)


class Inbox(asyncio.Queue[aiomqtt.Message]):
    """Bounded in all ways: what is too large or too much is counted and thrown away unread."""

    def __init__(self, dropped: Callable[[], None], maxsize: int = WAITING) -> None:
        super().__init__(maxsize)
        self._dropped = dropped
        self._waiting = Counter[str]()

    def put_nowait(self, item: aiomqtt.Message) -> None:
        """Take a message in, or throw it away; never QueueFull."""
        topic = item.topic.value
        if len(item.payload) > MOST_BYTES or self._waiting[topic] >= WAITING_OF_TOPIC or self.full():
            self._dropped()
            return
        self._waiting[topic] += 1
        super().put_nowait(item)

    def get_nowait(self) -> aiomqtt.Message:
        """The oldest message."""
        item = super().get_nowait()
        self._waiting -= Counter((item.topic.value,))  # forgets topics at 0
        return item


def version(site: schema.Site) -> aiomqtt.ProtocolVersion:
    """Of the protocol: that of the site, unless the broker beside us speaks only the older one."""
    embedded = site.broker is not None and site.broker.start and broker.mosquitto() is None
    return aiomqtt.ProtocolVersion.V311 if embedded or site.mqtt.version == "3.1.1" else aiomqtt.ProtocolVersion.V5


def client(site: schema.Site, name: str, will: aiomqtt.Will, dropped: Callable[[], None]) -> aiomqtt.Client:
    """A client for one connection, not yet connected; `dropped` is called for each message that is thrown away.

    Raises:
        ConfigurationError: password or certificates cannot be used.
    """
    mqtt, protocol = site.mqtt, version(site)
    properties = None
    if protocol is aiomqtt.ProtocolVersion.V5:
        properties = Properties(PacketTypes.CONNECT)
        properties.MaximumPacketSize = PACKET_BYTES
    return aiomqtt.Client(
        mqtt.host, mqtt.port, identifier=name, protocol=protocol, properties=properties, will=will,
        username=mqtt.user or None, password=credentials.password(mqtt),
        tls_context=credentials.tls_context(mqtt.tls) if mqtt.tls else None,
        timeout=TIMEOUT_S, keepalive=KEEPALIVE_S, logger=_quiet,
        socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],  # else each message waits for a delayed ACK
        queue_type=cast("type[asyncio.Queue[aiomqtt.Message]]", partial(Inbox, dropped)),
        max_queued_incoming_messages=WAITING,
    )  # fmt: skip


async def subscribe(
    client: aiomqtt.Client, protocol: aiomqtt.ProtocolVersion, topic: str, *, qos: int = 0, as_published: bool = False
) -> bool:
    """Subscribe to a topic; whether the broker lets us.

    A message counts as retained when the broker had kept it, with `as_published` also (MQTT 5) when it is to be kept.
    """
    options: dict[str, Any] = {"qos": qos}
    if protocol is aiomqtt.ProtocolVersion.V5:
        options = {"options": SubscribeOptions(qos=qos, retainAsPublished=as_published)}
    codes = await client.subscribe(topic, **options)
    return all((code.value if isinstance(code, ReasonCode) else code) < 128 for code in codes)


def in_words(error: Exception, tls: bool, known: bool) -> str:
    """Why there is no connection, as one clause about the broker; `known`: it has answered before."""
    code = getattr(error, "rc", None)
    if isinstance(code, ReasonCode):
        if code.value == 142:
            return "another client took over with the name of this one"
        return _REFUSED.get(code.value, f"it refuses the connection: {code}")
    text = str(error)
    words = next((words for part, words in _BROKEN if part in text), text)
    if words in (_SILENT, _HUNG_UP) and not known:  # what a broker does that expects something else
        words += (
            ": is this a port with TLS, and does it want no certificate?" if tls else ": is this a port without TLS?"
        )
    return words
