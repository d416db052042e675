"""The broker that `pkm run` starts itself: a process of its own, loopback only, bounded queues."""

import getpass
import os
import shutil
import sys
from pathlib import Path

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def mosquitto() -> str | None:
    """Path of mosquitto if installed; Debian puts it where a user's PATH does not look."""
    return shutil.which("mosquitto", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin")))


def command(host: str, port: int, folder: Path) -> list[str]:
    """The command line of a broker on host and port: mosquitto where installed, otherwise amqtt.

    mosquitto's configuration is written into `folder`. ValueError if the host is not this computer's loopback.
    """
    if host not in LOOPBACK:
        raise ValueError(f"a broker is started on loopback only, found host {host!r}")
    program = mosquitto()
    if program is None:
        return [sys.executable, "-m", "controller.gateway.mqtt.embedded_broker", str(port)]
    folder.mkdir(parents=True, exist_ok=True)
    configuration = folder / f"mosquitto-{port}.conf"
    configuration.write_text(
        # the same user: a change of user would cut the tie that ends the broker with the process that started it
        f"user {getpass.getuser()}\nlistener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n"
        "max_queued_messages 1000\nmax_queued_bytes 16777216\nmemory_limit 268435456\nset_tcp_nodelay true\n"
        "log_dest stderr\nlog_type error\nlog_type warning\n"
    )
    return [program, "-c", str(configuration)]
