"""Private names of TensorFlow's, with what they are for."""

from __future__ import annotations

import ctypes
import functools
import glob
import os
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla as tf2xla  # operations of XLA's within a function
from tensorflow.python.eager import context, record

from trainc.base.errors import InternalError

_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
_MODULE_VERSION = 5  # of XlaCallModule: the oldest of StableHLO modules that say nothing of platforms' choice


def is_recording() -> bool:
    """Whether a GradientTape or a ForwardAccumulator watches what this thread computes."""
    return record.could_possibly_record()


def hlo_of(concrete: Any) -> bytes:
    """What XLA makes of a concrete function: a serialized HloModuleProto, not optimized.

    The public `experimental_get_compiler_ir` asks for the function's own arguments, and draws a random number to know the device.
    """
    count = len(concrete.inputs) - len(concrete.captured_inputs)
    specs = [tf.TensorSpec(t.shape, t.dtype) for t in concrete.inputs[:count]]
    return context.context().get_compiler_ir(
        device_name=_CPU, platform_name=None, function_name=concrete.name, flat_args=specs,
        captured_inputs=concrete.captured_inputs, stage="hlo_serialized",
    )  # fmt: skip


def shape_of_variable(handle: Any) -> tf.TensorSpec:
    """Of the variable behind a resource."""
    known = handle._handle_data.shape_and_type[0]
    return tf.TensorSpec(tf.TensorShape(known.shape), tf.as_dtype(known.dtype))


def call_module(module: bytes, operands: list[Any], specs: list[tf.TensorSpec]) -> list[Any]:
    """The results of a portable StableHLO module, within a function that XLA compiles."""
    return list(
        tf2xla.call_module(
            operands,
            version=_MODULE_VERSION,
            module=module,
            Tout=[s.dtype for s in specs],
            Sout=[s.shape for s in specs],
            platforms=["CPU"],
        )  # fmt: skip
    )


def barrier(tensors: list[Any]) -> list[Any]:
    """The same tensors, none of which XLA takes for a constant."""
    return list(tf2xla.optimization_barrier(*tensors)) if tensors else []


@functools.cache
def xla_interface() -> int:
    """The address of the interface of foreign functions of TensorFlow's XLA, which no Python of TensorFlow's gives."""
    folder = os.path.dirname(tf.__file__)
    for path in sorted(glob.glob(os.path.join(folder, "libtensorflow_cc.so*"))):
        function = getattr(ctypes.CDLL(path), "_ZN3xla3ffi12GetXlaFfiApiEv", None)  # xla::ffi::GetXlaFfiApi()
        if function is not None:
            function.restype = ctypes.c_void_p
            return function()
    raise InternalError(f"tensorflow {tf.__version__} has no XLA that calls foreign functions")


__all__ = ["barrier", "call_module", "hlo_of", "is_recording", "shape_of_variable", "xla_interface"]
