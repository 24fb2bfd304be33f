#include "loop/width.h"

#include <algorithm>

#include "cost/operations.h"

namespace trainc::loop {
namespace {

int64_t operations(const Expr& e) {
  int64_t n = e->kind == ExprKind::Apply ? cost::op_cost(e->op) : 0;
  for (const Expr& a : e->args) n += operations(a);
  return n;
}

bool long_chain(const Stmt& s) {
  return (s->value && operations(s->value) >= cost::kLongChain) ||
         std::any_of(s->body.begin(), s->body.end(), long_chain);
}
bool reduces(const Stmt& s) {
  return s->kind == StmtKind::Reduce || std::any_of(s->body.begin(), s->body.end(), reduces);
}

}  // namespace

int lanes_for(const std::vector<Stmt>& body, int lanes, int64_t extent) {
  if (std::any_of(body.begin(), body.end(), reduces) || std::none_of(body.begin(), body.end(), long_chain))
    return lanes;
  return lanes * static_cast<int>(std::clamp<int64_t>(extent / lanes, 1, cost::kMostRegisters));
}

}  // namespace trainc::loop
