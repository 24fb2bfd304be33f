// Errors have two owners. UserError: the person who called us can mend it; the text names the place and what to do.
// InternalError: ours; the front door turns it into a fallback with one warning.
#pragma once
#include <stdexcept>
#include <string>

namespace trainc {

struct UserError : std::runtime_error { using std::runtime_error::runtime_error; };
struct InternalError : std::logic_error { using std::logic_error::logic_error; };
/// A Gather or Scatter index out of bounds, found while a plan ran (Python: IndexError).
struct IndexError : std::runtime_error { using std::runtime_error::runtime_error; };

/// Throws InternalError with `what` where `ok` is false. Always on: a wrong graph must not become a wrong number.
inline void require(bool ok, const char* what) {
  if (!ok) throw InternalError(what);
}
inline void require(bool ok, const std::string& what) {
  if (!ok) throw InternalError(what);
}

}  // namespace trainc
