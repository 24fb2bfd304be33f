// Which attributes an operation carries: for the verifier and the parser.
#pragma once
#include "graph/graph.h"

namespace trainc {

/// The kind of attributes that nodes of `op` carry, with default values.
inline Attrs attrs_of(Op op) {
  switch (op) {
    case Op::Input: return InputAttr{};
    case Op::Constant: return ConstantAttr{};
    case Op::Random: return RandomAttr{};
    case Op::Reduce: return ReduceAttr{};
    case Op::Iota:
    case Op::Scan:
    case Op::Concat:
    case Op::Gather: return AxisAttr{};
    case Op::Permute:
    case Op::Reverse: return AxesAttr{};
    case Op::Slice: return SliceAttr{};
    case Op::Pad: return PadAttr{};
    case Op::Window: return WindowAttr{};
    case Op::Scatter: return ScatterAttr{};
    case Op::Extern: return ExternAttr{};
    case Op::Result: return ResultAttr{};
    default: return NoAttr{};
  }
}

}  // namespace trainc
