// Remarks: what was looked into for a program and refused, why, and for which of its lines; told by trainc.explain.
// Their shape is that of LLVM's missed-optimisation remarks: who refused what, one phrase for all that is refused
// alike, and what differs beside it.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace trainc {

struct Remark {
  std::string stage;   // the folder whose code refused: "schedule"
  std::string what;    // what was not done: one of `missed`
  std::string reason;  // one short phrase, the same for all that is refused alike
  std::string detail;  // what differs between them: an operation's name, a number; often nothing
  // lines of the program: of what was refused, then of what it was to go together with. None: of many lines
  std::vector<std::string> origins;
  int64_t count = 1;  // refusals that are equal in all of the above
  // of all of them: memory that what was refused would have spared, or would have spared the traffic of
  int64_t bytes = 0;
  bool operator==(const Remark&) const = default;
};

/// What may not be done.
namespace missed {
inline constexpr const char* kFuse = "fuse";  // two kernels as one
// contraction -> rows -> contraction as one kernel (flash-style fusion)
inline constexpr const char* kMatmulChain = "matmul chain";
inline constexpr const char* kSkipMasked = "skip masked";        // pass over what a causal mask hides
inline constexpr const char* kInPlace = "in place";              // a result in the memory of an operand
inline constexpr const char* kCompile = "compile";               // a kernel instead of a call of the framework
inline constexpr const char* kFrameworkCall = "framework call";  // an operator of the framework instead of our kernel
inline constexpr const char* kVendorProduct =
    "vendor product";                                    // a product of the vendor's library instead of our kernel
inline constexpr const char* kChunkRows = "chunk rows";  // a loss in chunks of rows
}  // namespace missed

/// Plans hold no more different ones: the rest is counted without its lines.
inline constexpr size_t kMostRemarks = 256;

/// Collects remarks, equal ones as one. Text is copied for those alone that differ from all before.
class Remarks {
 public:
  Remarks() = default;
  Remarks(const Remarks&) = delete;
  Remarks& operator=(const Remarks&) = delete;

  /// `origin`, `other`: lines, or "".
  void add(std::string_view stage, std::string_view what, std::string_view reason, std::string_view detail,
           std::string_view origin, std::string_view other, int64_t bytes, int64_t count = 1);
  void add(const std::vector<Remark>&);
  /// All so far, those of the most bytes first; empty afterwards.
  std::vector<Remark> take();

 private:
  using Key = std::tuple<std::string_view, std::string_view, std::string_view, std::string_view, std::string_view,
                         std::string_view>;
  std::deque<Remark> all_;  // does not move what is in it: keys look into it
  std::map<Key, Remark*> equal_;
};

/// Of two parts of a program that are one plan.
std::vector<Remark> together(const std::vector<Remark>&, const std::vector<Remark>&);

/// A value, or why there is none: a phrase that a remark can have for its reason.
template <class T> class OrRefused {
 public:
  OrRefused(T value) : value_(std::move(value)), why_(nullptr) {}
  OrRefused(const char* why) : value_{}, why_(why) {}
  explicit operator bool() const { return !why_; }
  const T& operator*() const { return value_; }
  const T* operator->() const { return &value_; }
  const char* why() const { return why_; }

 private:
  T value_;
  const char* why_;
};

}  // namespace trainc
