// Integer division that rounds up. Of a >= 0 and b > 0; a + b must not overflow.
#pragma once

#include <cstdint>

namespace trainc {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
/// The least multiple of b that is not below a.
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace trainc
