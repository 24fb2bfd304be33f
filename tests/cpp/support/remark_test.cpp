// Equal remarks are one, and there are never many.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "support/remark.h"

namespace trainc {
namespace {

using ::testing::ElementsAre;

Remark remark(const char* reason, std::vector<std::string> origins, int64_t count, int64_t bytes,
              const char* detail = "") {
  return {.stage = "schedule",
          .what = missed::kFuse,
          .reason = reason,
          .detail = detail,
          .origins = std::move(origins),
          .count = count,
          .bytes = bytes};
}

TEST(Remarks, EqualOnesAreOne) {
  Remarks all;
  for (int layer = 0; layer < 12; ++layer) {
    all.add("schedule", missed::kFuse, "too large", "", "m.py:1", "m.py:2", 10);
    all.add("schedule", missed::kFuse, "too large", "", "m.py:2", "m.py:1", 1);  // the other way round
    all.add("schedule", missed::kFuse, "a circle", "", "m.py:1", "m.py:2", 2);
    all.add("schedule", missed::kFuse, "too large", "exp", "m.py:1", "m.py:2", 3);
  }
  all.add({remark("a circle", {"m.py:1", "m.py:2"}, 5, 50)});
  EXPECT_THAT(all.take(), ElementsAre(remark("too large", {"m.py:1", "m.py:2"}, 12, 120),
                                      remark("a circle", {"m.py:1", "m.py:2"}, 17, 74),
                                      remark("too large", {"m.py:1", "m.py:2"}, 12, 36, "exp"),
                                      remark("too large", {"m.py:2", "m.py:1"}, 12, 12)));
  EXPECT_THAT(all.take(), ElementsAre());
}

TEST(Remarks, ALineIsToldOnce) {
  Remarks all;
  all.add("schedule", missed::kFuse, "a circle", "", "m.py:1", "m.py:1", 1);
  all.add("schedule", missed::kFuse, "a circle", "", "", "m.py:1", 1);
  all.add("schedule", missed::kFuse, "a circle", "", "", "", 1);
  EXPECT_THAT(all.take(), ElementsAre(remark("a circle", {"m.py:1"}, 2, 2), remark("a circle", {}, 1, 1)));
}

TEST(Remarks, TextIsCopied) {
  Remarks all;
  {
    const std::string line(100, 'x');
    all.add("schedule", missed::kFuse, "a circle", "", line, "", 1);
  }
  EXPECT_EQ(all.take().at(0).origins.at(0), std::string(100, 'x'));
}

TEST(Remarks, ThoseOfFewBytesAreCountedWithoutTheirLines) {
  Remarks all;
  for (int64_t i = 0; i < 10'000; ++i)
    all.add("schedule", missed::kFuse, i % 2 ? "a circle" : "too large", "", "m.py:" + std::to_string(i), "",
            20'000 - i);
  const std::vector<Remark> taken = all.take();
  ASSERT_EQ(taken.size(), kMostRemarks + 2);
  EXPECT_EQ(taken[0].bytes, 20'000);
  int64_t count = 0;
  for (const Remark& r : taken) count += r.count;
  EXPECT_EQ(count, 10'000);
  EXPECT_TRUE(taken[kMostRemarks].origins.empty() && taken[kMostRemarks + 1].origins.empty());
}

TEST(Remarks, BytesDoNotOverflow) {
  Remarks all;
  for (int i = 0; i < 3; ++i)
    all.add("schedule", missed::kFuse, "a circle", "", "m.py:1", "", std::numeric_limits<int64_t>::max() / 2);
  EXPECT_EQ(all.take().at(0).bytes, std::numeric_limits<int64_t>::max());
}

}  // namespace
}  // namespace trainc
