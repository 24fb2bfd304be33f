// What is 0 where a label hides its row, and what only looks so.
#include "schedule/hidden_rows.h"

#include <gtest/gtest.h>

#include "graph/build.h"

namespace trainc::schedule {
namespace {

/// x [6, 4] and a value a row of it, r, which may be anything; labels, and a bool a row made of them: true where it has
/// one.
struct Rows {
  Graph graph;
  Builder b{graph, {}};
  const Node *x, *r, *label, *shown;
  Rows() {
    graph.input_count = 3;
    x = b.input(0, {DType::F32, {6, 4}}), r = b.input(1, {DType::F32, {6, 1}});
    label = b.input(2, {DType::I64, {2, 3}});
    shown = b.binary(Op::Ne, label, b.broadcast(b.constant_int(DType::I64, -3), {2, 3}));
  }
  const Node* along(const Node* row) { return b.broadcast(b.reshape(row, {6, 1}), {6, 4}); }
  const Node* number(double value) { return b.full(DType::F32, {6, 4}, value); }
  const Node* chosen(const Node* n, const Node* other) { return b.select(along(shown), n, other); }
  /// 0 in hidden rows.
  const Node* gradient() { return chosen(x, number(0)); }
  std::optional<ShownRows> found(const std::vector<const Node*>& zeros) { return shown_rows(zeros, 6, 4, {x, r}); }
};

TEST(HiddenRows, AreFoundByWhatIsZeroInThem) {
  Rows f;
  Builder& b = f.b;
  const Node* hidden =
      b.binary(Op::Eq, b.reshape(f.label, {6, 1}), b.broadcast(b.constant_int(DType::I64, -3), {6, 1}));
  const Node* here = b.binary(Op::Eq, b.cast(f.x, DType::I64), b.iota(DType::I64, {6, 4}, 1));
  const std::vector<const Node*> zeros[] = {
      {f.gradient()},
      {b.select(f.along(b.unary(Op::Not, f.shown)), f.number(0), f.x)},
      {b.mul(f.x, f.along(b.cast(f.shown, DType::F32)))},
      {b.unary(Op::Neg, b.cast(f.gradient(), DType::BF16))},
      {b.sub(f.gradient(), b.mul(f.x, f.along(b.reduce(ReduceKind::Sum, f.gradient(), {1}))))},
      {b.div(f.gradient(), f.number(3))},
      {b.select(b.binary(Op::And, here, f.along(f.shown)), f.x, f.number(0))},
      {b.select(here, f.gradient(), f.number(0))},
      // two spellings of one mask
      {f.gradient(), b.select(hidden, b.full(DType::F32, {6, 1}, 0), f.r)},
  };
  for (const auto& these : zeros) {
    const auto found = f.found(these);
    ASSERT_TRUE(found) << &these - zeros;
    EXPECT_TRUE(found->mask == f.shown ? found->shown : found->mask == hidden && !found->shown) << &these - zeros;
  }
}

TEST(HiddenRows, AreNotWhatOnlyLooksSo) {
  Rows f;
  Builder& b = f.b;
  const Node* other = b.binary(Op::Ne, f.label, b.broadcast(b.constant_int(DType::I64, 5), {2, 3}));
  const Node* columns = b.broadcast(b.reshape(b.cast(b.iota(DType::I64, {4}, 0), DType::Bool), {1, 4}), {6, 4});
  const std::vector<const Node*> not_zero[] = {
      {f.x},
      {f.chosen(f.x, f.number(0.5))},
      {f.chosen(f.number(0), f.x)},  // 0 in the rows that have a label: the others are shown
      {b.add(f.gradient(), f.x)},
      {b.sub(f.x, f.gradient())},
      {b.div(f.gradient(), f.x)},  // 0 / 0
      {b.div(f.number(1), f.gradient())},
      {b.unary(Op::Exp, f.gradient())},
      {b.select(b.binary(Op::Or, columns, f.along(f.shown)), f.x, f.number(0))},
      {b.select(columns, f.x, f.number(0))},
      {b.reduce(ReduceKind::Max, f.gradient(), {1})},
      // by two masks: no row is hidden by both
      {f.gradient(), b.select(f.along(other), f.x, f.number(0))},
      // made of x itself
      {b.select(b.binary(Op::Lt, f.x, f.number(0)), f.x, f.number(0))},
  };
  for (const auto& these : not_zero) {
    const auto found = f.found(these);
    if (&these - not_zero == 2) EXPECT_TRUE(found && !found->shown) << "hidden where the label is there";
    else EXPECT_FALSE(found) << &these - not_zero;
  }
}

}  // namespace
}  // namespace trainc::schedule
