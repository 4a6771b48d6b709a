"""From the intent to start a run to its living worker: launchers, slots, shim, zygote and cleanup."""
