#include "cost/operations.h"

namespace trainc::cost {

int64_t op_cost(Op op) {
  switch (op) {
    case Op::Exp:
    case Op::Expm1:
    case Op::Log:
    case Op::Log1p:
    case Op::Sin:
    case Op::Cos:
    case Op::Tanh:
    case Op::Erf:
    case Op::Erfc:
    case Op::Pow: return kTranscendental;
    case Op::Sqrt:
    case Op::Rsqrt:
    case Op::Div:
    case Op::FloorDiv:
    case Op::Mod: return kDivision;
    default: return is_elementwise(op) ? kSimple : 0;
  }
}

}  // namespace trainc::cost
