"""The JAX door: functions lowered by JAX to StableHLO, compiled by trainc, and called by XLA. Imports no PyTorch."""
