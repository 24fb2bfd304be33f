#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "support/cpu.h"
#include "support/dtype.h"
#include "support/error.h"
#include "support/rounding.h"

namespace trainc {
namespace {

TEST(DType, NamesReadBack) {
#define X(name, text, bytes, fl) EXPECT_EQ(dtype_of(text), DType::name);
  TRAINC_DTYPES(X)
#undef X
  EXPECT_THROW(dtype_of("float"), InternalError);
}

TEST(Rounding, Bfloat16) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(round_to(DType::BF16, 1 + 0x1p-8), 1.0);                   // a tie, to even
  EXPECT_EQ(round_to(DType::BF16, 1 + 3 * 0x1p-8), 1 + 0x1p-6);        // a tie, to even
  EXPECT_EQ(round_to(DType::BF16, 1 + 0x1p-8 + 0x1p-40), 1 + 0x1p-7);  // above a tie: f32 on the way would lose that
  EXPECT_EQ(round_to(DType::BF16, 0x1p-133), 0x1p-133);                // least subnormal
  EXPECT_EQ(round_to(DType::BF16, 0x1p-135), 0.0);
  EXPECT_EQ(round_to(DType::BF16, 3.4e38), inf);
  EXPECT_TRUE(std::signbit(round_to(DType::BF16, -0x1p-140)));
  EXPECT_TRUE(std::isnan(round_to(DType::BF16, std::nan(""))));
}

TEST(Rounding, HalfAgainstTheMachine) {
  for (int i = 0; i < 200000; ++i) {
    const double value = std::ldexp(1.0 + i * 0.000013, i % 45 - 27) * (i % 2 ? 1 : -1);
    EXPECT_EQ(round_to(DType::F16, value), static_cast<double>(static_cast<_Float16>(value))) << value;
  }
}

TEST(Rounding, IntegersWrap) {
  EXPECT_EQ(wrap_to(DType::I8, 130), -126);
  EXPECT_EQ(wrap_to(DType::U8, -1), 255);
  EXPECT_EQ(wrap_to(DType::I32, 1LL << 31), -(1LL << 31));
  EXPECT_EQ(wrap_to(DType::Bool, -7), 1);
}

TEST(Cpu, LevelsReadBackAndAreForced) {
#define X(name, text, cpu, lanes) EXPECT_EQ(cpu_level_of(text), CpuLevel::name);
  TRAINC_CPU_LEVELS(X)
#undef X
  const CpuLevel machine = machine_cpu_level();
  setenv("TRAINC_CPU", "avx2", 1);
  EXPECT_EQ(cpu_level(), CpuLevel::Avx2);
  setenv("TRAINC_CPU", "sse9", 1);
  EXPECT_THAT([] { cpu_level(); },
              ::testing::ThrowsMessage<UserError>(::testing::HasSubstr(
                  "TRAINC_CPU: 'sse9' is not a CPU level; there are amx, avx512_bf16, avx512, avx2")));
  if (machine != CpuLevel::Amx) {
    setenv("TRAINC_CPU", "amx", 1);
    EXPECT_THROW(cpu_level(), UserError);
    set_machine_cpu_level(CpuLevel::Amx);
    EXPECT_EQ(cpu_level(), CpuLevel::Amx);
    set_machine_cpu_level(machine);
  }
  unsetenv("TRAINC_CPU");
  EXPECT_EQ(cpu_level(), quickest_cpu_level());
}

TEST(Cpu, AgreesWithTheCompilersDetection) {
  __builtin_cpu_init();
  EXPECT_EQ(machine_cpu_level() <= CpuLevel::Avx512, static_cast<bool>(__builtin_cpu_supports("avx512vl")));
  EXPECT_EQ(cpu_is_intel(), static_cast<bool>(__builtin_cpu_is("intel")));
}

TEST(Cpu, CacheSizesAreSizesOfCaches) {
  const CacheSizes sizes = cache_sizes();
  EXPECT_GE(sizes.l1d, 16 << 10);
  EXPECT_LT(sizes.l1d, sizes.l2);
  EXPECT_LT(sizes.l2, sizes.l3);
  EXPECT_LE(sizes.l2, 64 << 20);
  EXPECT_GE(sizes.cores, 1);
}

}  // namespace
}  // namespace trainc
