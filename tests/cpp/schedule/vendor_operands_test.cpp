// Operands of the vendor's library: where strides say their elements lie, for any movements.
#include "schedule/vendor_operands.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "graph/text.h"
#include "reference/reference.h"

namespace trainc::schedule {
namespace {

/// Movements over an input that holds its own positions.
const Node* random_view(Builder& b, std::mt19937_64& random) {
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  Dims shape;
  for (size_t k = 0; k < 1 + below(4); ++k) shape.push_back(static_cast<int64_t>(1 + below(6)));
  const Node* n = b.input(0, {DType::F32, shape});
  for (size_t step = below(5); step > 0; --step) {
    const Dims now = n->shape();
    switch (below(4)) {
      case 0: {
        Dims order(now.size());
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random);
        n = b.permute(n, order);
        break;
      }
      case 1: {
        const auto axis = static_cast<int64_t>(below(now.size()));
        const int64_t start = static_cast<int64_t>(below(static_cast<size_t>(now[axis]))), left = now[axis] - start,
                      by = static_cast<int64_t>(1 + below(2));
        const int64_t extent = (left + by - 1) / by;
        if (extent != now[axis]) n = b.slice_axis(n, axis, start, extent, by);  // a slice of everything is a copy
        break;
      }
      case 2: {
        Dims wider = now;
        for (int64_t& extent : wider)
          if (extent == 1 && below(2)) extent = 3;
        n = b.broadcast(n, wider);
        break;
      }
      default: {  // two axes as one, or one as two
        Dims cut;
        for (size_t k = 0; k < now.size(); ++k) {
          if (k + 1 < now.size() && below(2)) cut.push_back(now[k] * now[k + 1]), ++k;
          else if (now[k] % 2 == 0 && below(2)) cut.push_back(2), cut.push_back(now[k] / 2);
          else cut.push_back(now[k]);
        }
        if (below(3) == 0) cut.insert(cut.begin() + static_cast<int64_t>(below(cut.size() + 1)), 1);
        n = b.reshape(n, cut);
      }
    }
  }
  return n;
}

TEST(VendorOperands, StridesSayWhereTheElementsLie) {
  std::mt19937_64 random(3);
  int strided = 0, reordered = 0;
  for (int round = 0; round < 3000 && !::testing::Test::HasFailure(); ++round) {
    Graph g;
    Builder b{g, {}};
    const Node* n = random_view(b, random);
    const Node* source = vendor_source(n);
    g.outputs = {{n, {}}};
    g.input_count = 1;
    ASSERT_EQ(source->op, Op::Input);
    const auto strides = strides_in_source(n);
    if (!strides) continue;
    ASSERT_EQ(strides->size(), n->shape().size());
    reference::Tensor positions{source->type};
    positions.f.resize(static_cast<size_t>(source->type.numel()));
    std::iota(positions.f.begin(), positions.f.end(), 0);
    const auto found = reference::evaluate(g, {positions}, {})[0].f;
    ++strided;
    reordered += !std::is_sorted(found.begin(), found.end());
    for (size_t i = 0; i < found.size(); ++i) {
      int64_t left = static_cast<int64_t>(i), at = 0;
      for (size_t k = n->shape().size(); k-- > 0; left /= n->shape()[k]) at += left % n->shape()[k] * (*strides)[k];
      ASSERT_EQ(found[i] - found[0], static_cast<double>(at)) << "element " << i << "\n" << print(g);
    }
  }
  EXPECT_GT(strided, 2000);  // a reshape of what was permuted has none
  EXPECT_LT(strided, 3000);
  EXPECT_GT(reordered, 300);
}

TEST(VendorOperands, OnlyWhatDoesNotLieInMatricesIsCopied) {
  Graph g;
  Builder b{g, {}};
  const Node* x = b.input(0, {DType::BF16, {2, 6, 8}});
  const auto copied = [&](const Node* n) { return vendor_operand(b, n, false) != n; };
  EXPECT_FALSE(copied(x));
  EXPECT_FALSE(copied(b.cast(x, DType::F32)));
  EXPECT_FALSE(copied(b.permute(x, {0, 2, 1})));
  EXPECT_FALSE(copied(b.permute(x, {1, 0, 2})));  // rows 48 apart
  EXPECT_FALSE(copied(b.slice_axis(x, 2, 1, 4)));
  EXPECT_FALSE(copied(b.broadcast(b.slice_axis(x, 0, 0, 1), {5, 6, 8})));  // one matrix for all batches
  EXPECT_FALSE(copied(b.permute(x, {1, 2, 0})));  // columns 48 apart, their elements side by side
  EXPECT_TRUE(copied(b.permute(x, {2, 1, 0})));   // rows 8 apart, columns 48
  EXPECT_TRUE(copied(b.slice_axis(x, 2, 0, 4, 2)));
  EXPECT_TRUE(copied(b.broadcast(b.slice_axis(x, 1, 0, 1), {2, 6, 8})));
  EXPECT_TRUE(copied(b.reshape(b.permute(x, {1, 0, 2}), {1, 6, 16})));  // halves of a row are 48 apart
  const Node* widened = b.cast(b.slice_axis(x, 2, 0, 4, 2), DType::F32);
  const Node* copy = vendor_operand(b, widened, false);
  EXPECT_EQ(copy->dtype(), DType::F32);
  EXPECT_EQ(vendor_source(copy)->dtype(), DType::BF16);
}

}  // namespace
}  // namespace trainc::schedule
