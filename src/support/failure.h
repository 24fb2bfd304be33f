// What can be wrong with the numbers that a plan is given, found by a Check while it runs: eager's own error and its
// words.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace trainc {

//    name           text            error         words
#define TRAINC_FAILURES(X)                                                                       \
  X(Index, "index", IndexError, "index out of range")                                            \
  X(Bounds, "bounds", RuntimeError, "index is out of bounds for its dimension")                  \
  X(Target, "target", IndexError, "Target is out of bounds.")                                    \
  X(Division, "division", RuntimeError, "ZeroDivisionError")                                     \
  X(Probability, "probability", RuntimeError, "all elements of input should be between 0 and 1") \
  X(Likelihood, "likelihood", RuntimeError, "all elements of target should be between 0 and 1")  \
  X(Class, "class", RuntimeError, "Class values must be non-negative and smaller than num_classes.")

/// The number is the status word of a kernel's Check (loop.h): never 0.
enum class Failure : uint8_t {
  None = 0,
#define X(name, text, error, words) name,
  TRAINC_FAILURES(X)
#undef X
};

std::string_view text_of(Failure);
/// The failure called `text`; throws InternalError for another word.
Failure failure_of(std::string_view text);
/// Throws IndexError, or std::runtime_error (Python: RuntimeError), with the failure's words; `where`: " in model.py:41
/// ...".
[[noreturn]] void throw_failure(Failure, const std::string& where);

}  // namespace trainc
