// In which order steps run around what is in flight. Estimates for a few cores: what matters is which is longer, a
// kernel or what is in flight.
#pragma once
#include <cstdint>

namespace trainc::cost {

// FLOPs that kernels do in a second.
constexpr double kFlopsPerSecond = 50e9;
// Bytes that kernels read and write in a second.
constexpr double kBytesPerSecond = 10e9;
// Seconds that a step takes beside its work.
constexpr double kSecondsAStep = 5e-6;
// Bytes that an exchange with other processes moves in a second: a plan does not know on which network it runs.
constexpr double kExchangedBytesPerSecond = 1e9;
// Seconds that an exchange takes beside its bytes.
constexpr double kSecondsAnExchange = 100e-6;
// Orders are tried under rising limits of memory. One step up is this part of what the caller and the plan hold: 1/8.
constexpr int64_t kMemoryStep = 8;
// How many such steps above the present peak, each in turn; and without a limit.
constexpr int64_t kMemorySteps[] = {0, 1, 2, 4};

}  // namespace trainc::cost
