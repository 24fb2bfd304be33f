// Which rows are computed where: for any mask, each shown row once, hardly a hidden one, and all know their place.
#include "schedule/row_order.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "graph/verify.h"
#include "reference/reference.h"

namespace trainc::schedule {
namespace {

using reference::Tensor;

struct Ordered {
  Graph graph;
  RowOrder order;
};
Ordered make(int64_t rows, int64_t chunk, int64_t finest) {
  Ordered made;
  made.graph.input_count = 1;
  Builder b{made.graph, {}};
  made.order = order_rows(b, b.input(0, {DType::Bool, {rows}}), chunk, finest);
  for (const RowOrder::Part& p : made.order.parts)
    made.graph.outputs.insert(made.graph.outputs.end(), {{p.index, {}}, {p.runs, {}}});
  if (made.order.place) made.graph.outputs.push_back({made.order.place, {}});
  verify(made.graph);
  return made;
}

/// Rows that are computed.
int64_t check(const Ordered& made, const std::vector<int64_t>& shown, int64_t finest) {
  const auto rows = static_cast<int64_t>(shown.size());
  const std::vector<Tensor> got = reference::evaluate(made.graph, {{{DType::Bool, {rows}}, {}, shown}}, {});
  std::vector<int64_t> place(rows, made.order.total);
  int64_t at = 0, computed = 0;
  for (size_t k = 0; k < made.order.parts.size(); ++k) {
    const int64_t size = made.order.parts[k].rows;
    const std::vector<int64_t>& index = got[2 * k].i;
    EXPECT_EQ(static_cast<int64_t>(index.size()), size);
    for (int64_t j = 0; j < size; ++j) {
      EXPECT_TRUE(index[j] >= 0 && index[j] < rows);
      if (!got[2 * k + 1].i[0]) continue;
      EXPECT_EQ(place.at(index[j]), made.order.total) << "row " << index[j] << " is computed twice";
      place[index[j]] = at + j;
      ++computed;
    }
    at += size;
  }
  EXPECT_EQ(at, made.order.total);
  EXPECT_EQ(got.back().i, place);
  for (int64_t r = 0; r < rows; ++r)
    if (shown[r]) EXPECT_LT(place[r], made.order.total) << "row " << r << " is not computed";
  EXPECT_LT(computed - std::accumulate(shown.begin(), shown.end(), int64_t{0}), finest);
  return computed;
}

TEST(RowOrder, EachShownRowIsComputedOnce) {
  std::mt19937_64 rng(7);
  for (const int64_t rows : {2, 3, 7, 16, 33, 100})
    for (const int64_t chunk : {1, 2, 5, 8, 16, 33, 100})
      for (const int64_t finest : {1, 2, 3, 8}) {
        if (chunk > rows || finest > chunk) continue;
        SCOPED_TRACE(::testing::Message() << rows << " rows, " << chunk << " of a chunk, " << finest);
        const Ordered made = make(rows, chunk, finest);
        if (made.order.parts.empty()) {
          EXPECT_TRUE(chunk == rows && finest == chunk);
          continue;
        }
        for (int share = 0; share <= 10; ++share) {
          std::vector<int64_t> shown(rows);
          for (int64_t& s : shown) s = static_cast<int>(rng() % 10) < share;
          const int64_t computed = check(made, shown, finest);
          if (share == 0) EXPECT_EQ(computed, 0);
          if (HasFailure()) return;
        }
      }
}

// As if there were no labels: the chunks alone, in the program's order.
TEST(RowOrder, WhereAllAreShownTheChunksRun) {
  for (const int64_t rows : {10, 12, 13}) {
    const Ordered made = make(rows, 4, 1);
    ASSERT_EQ(made.order.parts.size(), static_cast<size_t>((rows + 3) / 4 + 2));
    const auto got = reference::evaluate(made.graph, {{{DType::Bool, {rows}}, {}, std::vector<int64_t>(rows, 1)}}, {});
    int64_t row = 0;
    for (size_t k = 0; k < made.order.parts.size(); ++k) {
      EXPECT_EQ(got[2 * k + 1].i[0], row < rows);
      if (row == rows) continue;
      for (const int64_t index : got[2 * k].i) EXPECT_EQ(index, row++);
    }
  }
}

}  // namespace
}  // namespace trainc::schedule
