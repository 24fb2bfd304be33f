// Masks as the framework's dropout draws them on a device: every thread of its kernel in turn, with a generator of its
// own. The oracle of what kernels draw (lower/philox.cpp has the numbers of an element in closed form). Includes:
// nothing of ours.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

namespace trainc::reference {

/// Philox4x32-10 (Salmon et al., SC'11): four numbers of a counter and a key.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// out[i], 0 or 1, in the order in which a kernel of `threads` threads walks memory that it reads `vector` elements at
/// a time (1, 2, 4 or 8; 1: thread t has elements t, t + threads, ...); 1 where the uniform number in (0, 1] is less
/// than p. Each thread's sequence starts at offset / 4. `vector` divides numel.
std::vector<uint8_t> dropout_mask(uint64_t seed, uint64_t offset, int64_t numel, int64_t threads, int64_t vector,
                                  double p);

}  // namespace trainc::reference
