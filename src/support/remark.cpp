#include "support/remark.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace trainc {

void Remarks::add(std::string_view stage, std::string_view what, std::string_view reason, std::string_view detail,
                  std::string_view origin, std::string_view other, int64_t bytes, int64_t count) {
  if (origin.empty()) std::swap(origin, other);
  if (other == origin) other = {};
  auto found = equal_.find(Key{stage, what, reason, detail, origin, other});
  if (found == equal_.end()) {
    Remark& made = all_.emplace_back(
        Remark{std::string(stage), std::string(what), std::string(reason), std::string(detail), {}, 0, 0});
    for (std::string_view line : {origin, other})
      if (!line.empty()) made.origins.emplace_back(line);
    const auto line = [&](size_t i) {
      return i < made.origins.size() ? std::string_view(made.origins[i]) : std::string_view();
    };
    found = equal_.emplace(Key{made.stage, made.what, made.reason, made.detail, line(0), line(1)}, &made).first;
  }
  found->second->count += count;
  if (__builtin_add_overflow(found->second->bytes, bytes, &found->second->bytes))
    found->second->bytes = std::numeric_limits<int64_t>::max();
}

void Remarks::add(const std::vector<Remark>& remarks) {
  for (const Remark& r : remarks) {
    const auto line = [&](size_t i) {
      return i < r.origins.size() ? std::string_view(r.origins[i]) : std::string_view();
    };
    add(r.stage, r.what, r.reason, r.detail, line(0), line(1), r.bytes, r.count);
  }
}

std::vector<Remark> Remarks::take() {
  std::vector<Remark> taken;
  // in the order of the text: it is the same however they were met
  for (const auto& [key, remark] : equal_) taken.push_back(*remark);
  equal_.clear();
  all_.clear();
  std::stable_sort(taken.begin(), taken.end(), [](const Remark& a, const Remark& b) {
    return std::pair(a.bytes, a.count) > std::pair(b.bytes, b.count);
  });
  if (taken.size() <= kMostRemarks) return taken;
  Remarks rest;
  for (size_t i = kMostRemarks; i < taken.size(); ++i)
    rest.add(taken[i].stage, taken[i].what, taken[i].reason, "", "", "", taken[i].bytes, taken[i].count);
  taken.resize(kMostRemarks);
  for (const auto& [key, remark] : rest.equal_) taken.push_back(*remark);
  return taken;
}

std::vector<Remark> together(const std::vector<Remark>& a, const std::vector<Remark>& b) {
  Remarks remarks;
  remarks.add(a);
  remarks.add(b);
  return remarks.take();
}

}  // namespace trainc
