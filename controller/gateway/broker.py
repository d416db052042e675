"""The broker that `pkm run` starts itself: a process of its own, loopback only, bounded queues."""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def mosquitto() -> str | None:
    """Path of mosquitto if installed; Debian puts it where a user's PATH does not look."""
    return shutil.which("mosquitto", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin")))


def command(host_port: str) -> list[str]:
    """The command line of a broker on "host:port": mosquitto where installed, otherwise amqtt.

    ValueError if the host is not this computer's loopback. The child should get a session of its own
    (start_new_session=True), or Ctrl-C takes it away before the last state is published.
    """
    host, _, port = host_port.rpartition(":")
    if host not in LOOPBACK or not port.isdecimal():
        raise ValueError(f"a broker is started on loopback only, 127.0.0.1:PORT is expected, found {host_port!r}")
    program = mosquitto()
    if program is None:
        return [sys.executable, "-m", "controller.gateway.embedded_broker", port]
    with tempfile.NamedTemporaryFile("w", prefix="pkm-mosquitto-", suffix=".conf", delete=False) as file:
        file.write(
            f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n"
            "max_queued_messages 1000\nmax_queued_bytes 16777216\nmemory_limit 268435456\nset_tcp_nodelay true\n"
            "log_dest stderr\nlog_type error\nlog_type warning\n"
        )
    atexit.register(Path(file.name).unlink, missing_ok=True)
    return [program, "-c", file.name]
