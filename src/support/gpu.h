// GPU architectures: what schedules ask about a device. Nothing here needs one.
#pragma once
#include <cstdint>
#include <string_view>

namespace trainc {

//         name   text      multiprocessors (of the largest part sold: A100, H100, B200)
#define TRAINC_GPUS(X)    \
  X(Sm80, "sm_80", 108)   \
  X(Sm90a, "sm_90a", 132) \
  X(Sm100, "sm_100", 148)

enum class Gpu : uint8_t {
#define X(name, text, multiprocessors) name,
  TRAINC_GPUS(X)
#undef X
};
std::string_view name_of(Gpu);
int multiprocessors(Gpu);
/// The architecture called `text`; UserError for another word, with the words there are.
Gpu gpu_of(std::string_view text);

}  // namespace trainc
