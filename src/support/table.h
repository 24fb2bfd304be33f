// A table of operations: one row each.
#pragma once
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>

#include "support/error.h"

namespace trainc {

/// What is done with each operation, by its name.
template <class Handler> class TableOf {
 public:
  /// One row for each name (those that differ in nothing a handler sees share it). A name has one row only.
  void add(std::initializer_list<const char*> names, Handler handler) {
    for (const char* name : names) require(rows_.emplace(name, handler).second, std::string("two rows for ") + name);
  }
  const Handler* find(std::string_view name) const {
    const auto it = rows_.find(name);
    return it == rows_.end() ? nullptr : &it->second;
  }
  const std::map<std::string, Handler, std::less<>>& rows() const { return rows_; }

 private:
  std::map<std::string, Handler, std::less<>> rows_;
};

}  // namespace trainc
