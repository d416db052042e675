"""`python -m controller.gateway.mqtt.embedded_broker PORT`: amqtt on 127.0.0.1, where mosquitto is not installed.

MQTT 3.1.1 only, and its queues grow when a subscriber stops reading: for demonstrations, in its own process.
"""

import asyncio
import signal
import sys


async def serve(port: int) -> None:
    """Run the broker until a signal ends the process."""
    from amqtt.broker import Broker  # a second's import  # pyright: ignore[reportMissingTypeStubs]

    # signals keep their default: an orderly shutdown of amqtt hangs at times, and there is nothing to save
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}", "max_connections": 50}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    await broker.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
