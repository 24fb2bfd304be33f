#include "interpret/traffic.h"

#include <algorithm>

#include "support/division.h"

namespace trainc::interpret {
namespace {

void keep_distinct(std::vector<int64_t>& v) {
  std::sort(v.begin(), v.end());
  v.erase(std::unique(v.begin(), v.end()), v.end());
}

/// Words of `bytes` each from each of the places, distinct.
std::vector<int64_t> touched(const std::vector<int64_t>& places, int64_t bytes, int64_t word) {
  std::vector<int64_t> words;
  for (int64_t place : places)
    for (int64_t w = place / word; w <= (place + bytes - 1) / word; ++w) words.push_back(w);
  keep_distinct(words);
  return words;
}

/// How often Shared memory must be asked: lanes take turns so that a turn's bytes fit into it; two words of one bank
/// never do.
int64_t wavefronts(const std::vector<int64_t>& places, int64_t bytes) {
  const size_t lanes = static_cast<size_t>(kTurnBytes / std::max(bytes, kBankBytes));
  int64_t all = 0;
  for (size_t first = 0; first < places.size(); first += lanes) {
    const auto from = places.begin() + static_cast<std::ptrdiff_t>(first);
    const std::vector<int64_t> turn(from, from + static_cast<std::ptrdiff_t>(std::min(lanes, places.size() - first)));
    std::array<int64_t, kBanks> of_bank{};
    for (int64_t word : touched(turn, bytes, kBankBytes)) ++of_bank[static_cast<size_t>(word % kBanks)];
    all += *std::max_element(of_bank.begin(), of_bank.end());
  }
  return all;
}

}  // namespace

void TrafficCount::note(int buffer, bool shared, bool written, const std::vector<int64_t>& places, int64_t bytes,
                        double weight) {
  if (places.empty()) return;
  Traffic& t = seen_[{buffer, written}];
  t.shared = shared;
  t.written = written;
  std::vector<int64_t> distinct = places;
  keep_distinct(distinct);
  const int64_t asked = static_cast<int64_t>(distinct.size()) * bytes;
  const int64_t units =
      shared ? wavefronts(distinct, bytes) : static_cast<int64_t>(touched(distinct, bytes, kSector).size());
  const int64_t least = shared
                            ? ceil_div(static_cast<int64_t>(distinct.size()), kTurnBytes / std::max(bytes, kBankBytes))
                            : ceil_div(asked, kSector);
  t.requests += weight;
  t.units += weight * static_cast<double>(units);
  t.least += weight * static_cast<double>(std::min(least, units));
  t.bytes += weight * static_cast<double>(asked);
}

std::vector<Traffic> TrafficCount::all(const std::vector<std::string>& names) const {
  std::vector<Traffic> all;
  for (const auto& [key, traffic] : seen_) {
    all.push_back(traffic);
    all.back().buffer = names.at(static_cast<size_t>(key.first));
  }
  return all;
}

}  // namespace trainc::interpret
