"""`python -m controller.gateway.embedded_broker PORT`: amqtt on 127.0.0.1, where mosquitto is not installed.

MQTT 3.1.1 only, and its queues grow when a subscriber stops reading: for demonstrations, in its own process.
"""

import asyncio
import signal
import sys


async def serve(port: int) -> None:
    """Run the broker until SIGTERM or SIGINT."""
    from amqtt.broker import Broker  # a second's import  # pyright: ignore[reportMissingTypeStubs]

    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}", "max_connections": 50}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    await broker.start()
    await ending.wait()
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
