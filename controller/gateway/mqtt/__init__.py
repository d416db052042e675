"""MQTT: what is published, what is asked for, and the broker that `pkm run` starts."""
