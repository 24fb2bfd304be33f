// The thread's floating-point environment: what is seen of it, set, and put back.
#include "support/float_environment.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <thread>

namespace trainc {
namespace {

/// Half of the least normal number, divided where no compiler sees it.
double half_of_least() {
  volatile double least = 0x1p-1022, two = 2;
  return least / two;
}

TEST(FloatEnvironment, FlushesDenormalsAndComputesAsBeforeAfterwards) {
  EXPECT_FALSE(flushes_denormals());
  EXPECT_EQ(half_of_least(), 0x1p-1023);
  {
    const FloatEnvironment flushing(true);
    EXPECT_TRUE(flushes_denormals());
    EXPECT_TRUE(half_of_least() == 0 && !std::signbit(half_of_least()));
    {
      const FloatEnvironment exact(false);
      EXPECT_EQ(half_of_least(), 0x1p-1023);
    }
    EXPECT_TRUE(flushes_denormals());
  }
  EXPECT_FALSE(flushes_denormals());
}

TEST(FloatEnvironment, RoundsToNearestWhateverTheCallerDoes) {
  volatile double one = 1, three = 3;
  const double nearest = one / three;
  std::fesetround(FE_UPWARD);
  const double above = one / three;
  double within = 0;
  {
    const FloatEnvironment environment(false);
    within = one / three;
  }
  const double after = one / three;
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(within, nearest);
  EXPECT_GT(above, nearest);
  EXPECT_EQ(after, above);
}

TEST(FloatEnvironment, IsTheThreadsOwn) {
  const FloatEnvironment flushing(true);
  bool set = false;
  std::thread([&] {
    const FloatEnvironment exact(false);
    set = flushes_denormals();
  }).join();
  EXPECT_FALSE(set);
  EXPECT_TRUE(flushes_denormals());
}

}  // namespace
}  // namespace trainc
