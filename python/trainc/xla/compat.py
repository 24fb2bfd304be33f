"""Private names of jaxlib's, with what they are for."""

from __future__ import annotations

import functools

import jaxlib._jax
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, mhlo, stablehlo


def hlo_to_stablehlo(hlo: bytes) -> bytes:
    """A serialized HloModuleProto as MLIR's bytecode, which jaxlib has no public function for."""
    return jaxlib._jax.mlir.hlo_to_stablehlo(hlo)


@functools.cache
def context() -> ir.Context:
    """With the dialects of StableHLO's modules; those that they come with are registered by jaxlib's own extension alone."""
    found = ir.Context()
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    found.append_dialect_registry(registry)
    stablehlo.register_dialect(found)
    chlo.register_dialect(found)
    mhlo.register_mhlo_dialect(found)
    found.load_all_available_dialects()
    return found


__all__ = ["context", "hlo_to_stablehlo"]
