"""Is a machine file one that can be controlled? What types cannot say: kinds that fit, units, geometry."""
