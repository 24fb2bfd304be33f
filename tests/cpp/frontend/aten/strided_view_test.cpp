// What strides say of a value lies in memory where they say.
#include "frontend/aten/strided_view.h"

#include <gtest/gtest.h>

#include <random>

#include "graph/build.h"
#include "reference/reference.h"

namespace trainc::frontend::aten {
namespace {

/// A movement of x that does not repeat too much of it.
const Node* moved(Builder& b, const Node* x, std::mt19937& engine) {
  const auto any = [&](int64_t below) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(below)); };
  const Dims& shape = x->shape();
  switch (any(4)) {
    case 0: {  // apart, or together
      Dims to;
      for (size_t i = 0; i < shape.size(); ++i) {
        if (i > 0 && any(3) == 0) to.back() *= shape[i];
        else if (shape[i] % 2 == 0 && any(2) == 0) to.insert(to.end(), {2, shape[i] / 2});
        else to.push_back(shape[i]);
        if (any(4) == 0) to.push_back(1);
      }
      return b.reshape(x, to);
    }
    case 1: {
      Dims order(shape.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
      std::shuffle(order.begin(), order.end(), engine);
      return b.permute(x, order);
    }
    case 2: {
      Dims to = shape;
      for (int64_t& d : to)
        if (d == 1 && any(2) == 0) d = 3;
      return b.broadcast(x, to);
    }
    default: {
      Dims start, step, to;
      for (const int64_t d : shape) {
        start.push_back(any(d));
        step.push_back(1 + any(2));
        to.push_back(1 + any((d - start.back() - 1) / step.back() + 1));
      }
      return b.slice(x, start, to, step);
    }
  }
}

TEST(StridedView, ElementsLieWhereItSays) {
  int looked_through = 0, stopped = 0;
  for (unsigned seed = 0; seed < 600; ++seed) {
    std::mt19937 engine(seed);
    Graph g;
    Builder b{g, {}};
    const Node* x = b.input(0, {DType::F32, {4, 1, 6, 2}});
    for (int i = 0; i < 5; ++i) x = moved(b, x, engine);
    const StridedView v = strided_view(x);
    stopped += v.base->op != Op::Input;
    looked_through += x != v.base;
    g.outputs = {{v.base, {}}, {x, {}}};
    g.input_count = 1;
    reference::Tensor given{{DType::F32, {4, 1, 6, 2}}, {}, {}};
    for (int i = 0; i < 48; ++i) given.f.push_back(i);
    const auto values = reference::evaluate(g, {given}, {});
    const Dims dense = contiguous_strides(x->shape());
    for (int64_t e = 0; e < x->type.numel(); ++e) {
      int64_t at = v.offset;
      for (size_t axis = 0; axis < dense.size(); ++axis) at += e / dense[axis] % x->shape()[axis] * v.strides[axis];
      ASSERT_EQ(values[1].f[static_cast<size_t>(e)], values[0].f.at(static_cast<size_t>(at))) << "seed " << seed;
    }
  }
  EXPECT_GT(looked_through, 300);  // not that nothing is ever a view
  EXPECT_GT(stopped, 30);          // nor that everything is
}

TEST(StridedView, AnInputAsItLies) {
  Graph g;
  Builder b{g, {}};
  const Node* x = b.input(0, {DType::F32, {4, 6}}, {1, 8});
  const StridedView v = strided_view(b.permute(b.slice(x, {1, 2}, {3, 4}, {1, 1}), {1, 0}));
  EXPECT_EQ(v.base, x);
  EXPECT_EQ(v.strides, (Dims{8, 1}));
  EXPECT_EQ(v.offset, 17);
}

TEST(StridedView, OrderInMemory) {
  EXPECT_EQ(order_in_memory({2, 4, 16, 8}, {512, 8, 32, 1}), (Dims{0, 2, 1, 3}));
  EXPECT_EQ(order_in_memory({2, 4, 16, 8}, {512, 8, 32, 2}), Dims{});  // gaps
  EXPECT_EQ(order_in_memory({2, 4}, {0, 1}), Dims{});                  // one element at several places
  EXPECT_TRUE(lie_alike({2, 1, 4}, {4, 7, 1}, {4, 9, 1}));
  EXPECT_FALSE(lie_alike({2, 1, 4}, {4, 7, 1}, {8, 7, 1}));
}

}  // namespace
}  // namespace trainc::frontend::aten
