"""GPUs behind one protocol: NVML, AMD SMI, recorded replay, and a simulated card with known physics."""
