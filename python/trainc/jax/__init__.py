"""The JAX door: functions lowered by JAX to StableHLO, compiled by trainc, and called by XLA. Imports no PyTorch."""


def install(least=None):
    """From now on `jax.jit` is `trainc.jit` for functions of at least `least` operations (60), those of functions within them
    counted; any other is JAX's, without a word. What was made by `jax.jit` before stays as it is, and so does what a module took
    from JAX before (`from jax import jit`): call it first, or run the program as `trainc run train.py` or with TRAINC_JAX=1."""
    from trainc.jax import everywhere

    everywhere.install(everywhere.LEAST if least is None else least)


def uninstall():
    """`jax.jit` is JAX's again."""
    from trainc.jax import everywhere

    everywhere.uninstall()


__all__ = ["install", "uninstall"]
