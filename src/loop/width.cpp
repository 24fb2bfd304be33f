#include "loop/width.h"

#include <algorithm>

namespace trainc::loop {
namespace {

// Half a hundred cycles from the first operation to the last; out-of-order execution sees over some 200 instructions' worth of it.
constexpr int64_t kLongChain = 24;
constexpr int64_t kMostRegisters = 4;

int64_t operations(const Expr& e) {
  int64_t n = e->kind == ExprKind::Apply ? op_cost(e->op) : 0;
  for (const Expr& a : e->args) n += operations(a);
  return n;
}

bool long_chain(const Stmt& s) {
  return (s->value && operations(s->value) >= kLongChain) || std::any_of(s->body.begin(), s->body.end(), long_chain);
}
bool reduces(const Stmt& s) { return s->kind == StmtKind::Reduce || std::any_of(s->body.begin(), s->body.end(), reduces); }

}  // namespace

int64_t op_cost(Op op) {
  switch (op) {
    case Op::Exp: case Op::Expm1: case Op::Log: case Op::Log1p: case Op::Sin: case Op::Cos: case Op::Tanh: case Op::Erf: case Op::Pow: return 16;
    case Op::Sqrt: case Op::Rsqrt: case Op::Div: case Op::FloorDiv: case Op::Mod: return 4;
    default: return is_elementwise(op) ? 1 : 0;
  }
}

int lanes_for(const std::vector<Stmt>& body, int lanes, int64_t extent) {
  if (std::any_of(body.begin(), body.end(), reduces) || std::none_of(body.begin(), body.end(), long_chain)) return lanes;
  return lanes * static_cast<int>(std::clamp<int64_t>(extent / lanes, 1, kMostRegisters));
}

}  // namespace trainc::loop
