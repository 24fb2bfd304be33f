// Findings as they are collected: one message a kind of fault, with the first place and how often. Inside interpret
// only.
#pragma once
#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

namespace trainc::interpret {

class Report {
 public:
  void find(std::string what, const std::string& where) {
    Seen& s = seen_[std::move(what)];
    if (s.count++ == 0) s.first = where;
  }
  std::vector<std::string> messages() const {
    std::vector<std::string> all;
    for (const auto& [what, seen] : seen_)
      all.push_back(what + (seen.first.empty()
                                ? ""
                                : fmt::format(": {}{}", seen.first,
                                              seen.count > 1 ? fmt::format(" (first of {})", seen.count) : "")));
    return all;
  }

 private:
  struct Seen {
    std::string first;
    int64_t count = 0;
  };
  std::map<std::string, Seen> seen_;
};

}  // namespace trainc::interpret
