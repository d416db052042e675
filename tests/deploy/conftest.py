"""What is deployed is run as it is deployed."""

from tests.gateway.conftest import no_orphans

__all__ = ["no_orphans"]
