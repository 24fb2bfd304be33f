#include "plan/cbor.h"

#include <cstdint>
#include <vector>

namespace trainc::plan {

constexpr size_t kDeepest = 16;  // a plan has five levels: plan, steps, step, product, matrix

bool is_flat_cbor(std::string_view bytes) {
  std::vector<uint64_t> wanted = {1};  // items that are still to come, at each level
  size_t at = 0;
  while (!wanted.empty()) {
    if (wanted.back() == 0) {
      wanted.pop_back();
      continue;
    }
    --wanted.back();
    if (at >= bytes.size()) return false;
    const uint8_t head = bytes[at++], kind = head >> 5, low = head & 31;
    if (low > 27) return false;  // reserved, or a length that is not given
    uint64_t length = low;
    if (low >= 24) {
      length = 0;
      const size_t more = size_t{1} << (low - 24);
      if (bytes.size() - at < more) return false;
      for (size_t i = 0; i < more; ++i) length = length << 8 | static_cast<uint8_t>(bytes[at++]);
    }
    switch (kind) {
      case 0:
      case 1:
      case 7: break;  // integers; false, true, null and floats: all of it is read
      case 2:
      case 3:  // bytes, text
        if (length > bytes.size() - at) return false;
        at += length;
        break;
      case 4:
      case 5:  // arrays, maps: every item takes a byte at least
        if (length > bytes.size() - at || wanted.size() > kDeepest) return false;
        wanted.push_back(kind == 5 ? 2 * length : length);
        break;
      default: return false;  // tags
    }
  }
  return at == bytes.size();
}

}  // namespace trainc::plan
