"""The gateway process: from the ring to MQTT and recordings. Control never waits for it."""
