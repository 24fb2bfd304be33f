#include "support/failure.h"

#include "support/error.h"

namespace trainc {
namespace {
using RuntimeError = std::runtime_error;  // nanobind gives Python's RuntimeError for it
}

std::string_view text_of(Failure failure) {
  switch (failure) {
    case Failure::None: return "none";
#define X(name, text, error, words) \
  case Failure::name: return text;
      TRAINC_FAILURES(X)
#undef X
  }
  return "?";
}

Failure failure_of(std::string_view text) {
#define X(name, word, error, words) \
  if (text == word) return Failure::name;
  TRAINC_FAILURES(X)
#undef X
  throw InternalError("no failure is called " + std::string(text));
}

void throw_failure(Failure failure, const std::string& where) {
  switch (failure) {
#define X(name, text, error, words) \
  case Failure::name: throw error(words + where);
    TRAINC_FAILURES(X)
#undef X
    case Failure::None: break;
  }
  throw IndexError("a check failed" + where);
}

}  // namespace trainc
