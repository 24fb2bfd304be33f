// What warps ask of memory: sectors of global memory, wavefronts of Shared memory, and how few could do.
// From "Device Memory Accesses" and "Shared Memory" of NVIDIA's CUDA C++ programming guide. Includes: loop.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "loop/loop.h"

namespace trainc::interpret {

constexpr int64_t kSector = 32;                    // bytes: the least that global memory gives
constexpr int64_t kTurnBytes = loop::kBanksBytes;  // what Shared memory gives in one wavefront
constexpr int64_t kBankBytes = 4, kBanks = kTurnBytes / kBankBytes;

/// All requests of one kind to one buffer. A request is an instruction of a warp; a LoadMatrix is four.
struct Traffic {
  std::string buffer;
  bool shared = false, written = false;
  double requests = 0;
  // Global: sectors touched. Shared: wavefronts, of which each serves one word a bank.
  double units = 0;
  // Of both: so many as the same bytes would need side by side, beginning at a multiple of 32 bytes, and without a
  // conflict.
  double least = 0;
  double bytes = 0;  // distinct ones of each request
};

class TrafficCount {
 public:
  /// One request: where each active lane of a warp begins to read or write, in bytes of the buffer; `bytes` of each.
  void note(int buffer, bool shared, bool written, const std::vector<int64_t>& places, int64_t bytes, double weight);
  /// In the order of the nest's buffers, loads before stores; `names`: theirs.
  std::vector<Traffic> all(const std::vector<std::string>& names) const;

 private:
  std::map<std::pair<int, bool>, Traffic> seen_;
};

}  // namespace trainc::interpret
