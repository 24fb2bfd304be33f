// cuBLASLt by dlopen: cublasLt.h's C functions and numbers, declared here as its documentation has them (11.4 and
// later).
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "runtime/cuda/cublaslt.h"
#include "support/error.h"

namespace trainc::runtime::cuda {
namespace {

using Status = int;
using Handle = void*;

// cudaDataType
int type_of(DType d) {
  switch (d) {
    case DType::F32: return 0;
    case DType::F64: return 1;
    case DType::F16: return 2;
    case DType::BF16: return 14;
    default: throw InternalError(fmt::format("cuBLASLt: no products of {}", name_of(d)));
  }
}
constexpr int kComputeF32 = 68, kComputeF64 = 70, kComputeTf32 = 77;  // cublasComputeType_t
// cublasLtMatmulDescAttributes_t: int32, 0 or 1
constexpr int kTransposeA = 3, kTransposeB = 4;
// uint32, cublasLtEpilogue_t; const void*, of d's dtype and as long as d has rows
constexpr int kEpilogue = 7, kBiasPointer = 8;
constexpr uint32_t kAddBias = 4, kSumsOfA = 256, kSumsOfB = 512;  // the last two write sums over k to that pointer
// cublasLtMatrixLayoutAttribute_t: int32; int64, elements
constexpr int kBatchCount = 5, kBatchStride = 6;
// cublasLtMatmulPreferenceAttributes_t: uint64; uint32, bytes
constexpr int kMemoryBytes = 1, kReductions = 3, kAlignA = 5, kAlignB = 6, kAlignC = 7, kAlignD = 8;
// Sums over parts of k are added up in the type that they were made in, in one order: rounded once, and the same each
// time. (cublasLtReductionScheme_t: not in place, and not in the type of the result.)
constexpr uint32_t kInComputeType = 2;
constexpr int kReductionOf = 3;                          // cublasLtMatmulAlgoConfigAttributes_t: uint32, a scheme
constexpr Status kNotSupported = 15, kInvalidValue = 7;  // cublasStatus_t

struct Algorithm { uint64_t data[8]; };
struct Heuristic {
  Algorithm algorithm;
  size_t bytes;
  Status state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Heuristic) == 96);

struct LtApi {
  Status (*create)(Handle*);
  Status (*destroy)(Handle);
  Status (*desc_create)(void**, int compute, int scale);
  Status (*desc_set)(void*, int attribute, const void*, size_t);
  Status (*desc_destroy)(void*);
  Status (*layout_create)(void**, int type, uint64_t rows, uint64_t columns, int64_t leading);
  Status (*layout_set)(void*, int attribute, const void*, size_t);
  Status (*layout_destroy)(void*);
  Status (*preference_create)(void**);
  Status (*preference_set)(void*, int attribute, const void*, size_t);
  Status (*preference_destroy)(void*);
  Status (*heuristic)(Handle, void* desc, void* a, void* b, void* c, void* d, void* preference, int wanted, Heuristic*,
                      int* found);
  Status (*check)(Handle, void* desc, void* a, void* b, void* c, void* d, const Algorithm*, Heuristic*);
  Status (*configured)(const Algorithm*, int attribute, void*, size_t, size_t* written);
  size_t (*version)();
  Status (*multiply)(Handle, void* desc, const void* alpha, const void* a, void* a_layout, const void* b,
                     void* b_layout, const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
                     const Algorithm*, void* memory, size_t bytes, void* stream);
};

void check(Status status, const char* what) {
  if (status != 0) throw InternalError(fmt::format("cuBLASLt, {}: status {}", what, status));
}

using Described = std::unique_ptr<void, Status (*)(void*)>;

int lowest_alignment(const void* p, int64_t offset = 0) {  // bytes, at most 16
  const auto address = reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(offset);
  int a = 16;
  while (address % static_cast<uintptr_t>(a) != 0) a /= 2;
  return a;
}

/// Its memory has to begin at a multiple of 256 bytes; a plan's buffers begin at multiples of 64. It is told one size
/// wherever they lie: its choice depends on it.
constexpr int64_t kAligned = 256;
int64_t usable(int64_t bytes) { return std::max<int64_t>(bytes - kAligned, 0); }

int64_t offset_bytes(const CublasLtCall::Matrix& x) { return x.offset * size_of(x.dtype); }

/// Of memory that is not there yet: it is not read.
const void* begin_of_any() { return reinterpret_cast<const void*>(uintptr_t{kAligned}); }

uint32_t alignment(const CublasLtCall::Matrix& x, const void* p) {
  return static_cast<uint32_t>(lowest_alignment(p, offset_bytes(x)));
}

}  // namespace

struct CublasLt::Impl {
  LtApi api{};
  Handle handle = nullptr;
  std::mutex mutex;
  // by the call's text, alignments and memory; none: the library has none
  std::map<std::string, std::optional<Algorithm>> known;

  ~Impl() {
    if (handle) api.destroy(handle);
  }

  Described described(void* p, Status (*destroy)(void*)) const { return {p, destroy}; }

  Described layout(const CublasLtCall::Matrix& x, int64_t batch) const {
    void* made = nullptr;
    check(api.layout_create(&made, type_of(x.dtype), static_cast<uint64_t>(x.rows), static_cast<uint64_t>(x.columns),
                            x.leading),
          "a layout");
    Described owned = described(made, api.layout_destroy);
    const auto count = static_cast<int32_t>(batch);
    check(api.layout_set(made, kBatchCount, &count, sizeof count), "the number of batches");
    check(api.layout_set(made, kBatchStride, &x.batch_stride, sizeof x.batch_stride), "the stride of batches");
    return owned;
  }

  /// A call as the library has it: layouts, and a description with what is done beside multiplying.
  struct Problem { Described desc, a, b, d; };
  /// `vector`: of the epilogue; nullptr where there is none.
  Problem problem(const CublasLtCall& c, const void* vector) const {
    const bool f64 = c.d.dtype == DType::F64;
    void* made = nullptr;
    check(api.desc_create(&made,
                          f64      ? kComputeF64
                          : c.tf32 ? kComputeTf32
                                   : kComputeF32,
                          type_of(f64 ? DType::F64 : DType::F32)),
          "a description");
    Described desc = described(made, api.desc_destroy);
    const int32_t transpose_a = c.transpose_a, transpose_b = c.transpose_b;
    check(api.desc_set(desc.get(), kTransposeA, &transpose_a, sizeof transpose_a), "the transpose of a");
    check(api.desc_set(desc.get(), kTransposeB, &transpose_b, sizeof transpose_b), "the transpose of b");
    if (vector) {  // before the choice of an algorithm, which depends on how the pointer is aligned
      const uint32_t epilogue = c.bias ? kAddBias : c.sums_a ? kSumsOfA : kSumsOfB;
      check(api.desc_set(desc.get(), kEpilogue, &epilogue, sizeof epilogue), "the epilogue");
      check(api.desc_set(desc.get(), kBiasPointer, &vector, sizeof vector), "its vector");
    }
    return {std::move(desc), layout(c.a, c.batch), layout(c.b, c.batch), layout(c.d, c.batch)};
  }

  Problem usual_problem(const CublasLtCall& c) const {
    return problem(c, c.bias || c.sums_a || c.sums_b ? begin_of_any() : nullptr);
  }

  /// Where the matrices begin: bytes that their addresses are multiples of, at most 16.
  struct Alignments { uint32_t a, b, c, d, vector; };

  /// That of all memory that begins at multiples of 16 bytes.
  static Alignments usual(const CublasLtCall& c) {
    const uint32_t d = alignment(c.d, begin_of_any());
    return {alignment(c.a, begin_of_any()), alignment(c.b, begin_of_any()), d, d, 16};
  }
  static bool at_least(const Alignments& x, const Alignments& y) {
    return x.a >= y.a && x.b >= y.b && x.c >= y.c && x.d >= y.d && x.vector >= y.vector;
  }

  /// The one that is named, or the library's first choice; nullptr where it has none. Needs: `mutex` held. `bytes`: of
  /// memory that it may use.
  const Algorithm* algorithm(const CublasLtCall& c, const Problem& p, const Alignments& at, int64_t bytes) {
    const std::string key = fmt::format("{} {} {} {} {} {} {}", print(c), at.a, at.b, at.c, at.d, at.vector, bytes);
    if (const auto it = known.find(key); it != known.end()) return it->second ? &*it->second : nullptr;
    std::optional<Algorithm> chosen;
    if (!c.algorithm.empty() && at_least(at, usual(c))) {
      chosen = named(c.algorithm, p, bytes);
    } else if (const std::vector<Heuristic> found = choices(p, at, bytes, 1); !found.empty()) {
      chosen = found[0].algorithm;
    }
    std::optional<Algorithm>& kept = known[key] = chosen;
    return kept ? &*kept : nullptr;
  }

  bool adds_in_one_order(const Algorithm& a) const {
    uint32_t scheme = 0;
    size_t written = 0;
    return api.configured(&a, kReductionOf, &scheme, sizeof scheme, &written) == 0 && written == sizeof scheme &&
           (scheme == 0 || scheme == kInComputeType);
  }

  /// "130002:1f00...": bytes in hexadecimal digits, without the zeros at the end.
  std::string name_of(const Algorithm& a) const {
    std::string name = fmt::format("{}:", api.version());
    const auto* bytes = reinterpret_cast<const uint8_t*>(&a);
    size_t count = sizeof a;
    while (count > 0 && bytes[count - 1] == 0) --count;
    for (size_t i = 0; i < count; ++i) name += fmt::format("{:02x}", bytes[i]);
    return name;
  }

  /// None where another version named it, or this one does not take it for this problem.
  std::optional<Algorithm> named(std::string_view name, const Problem& p, int64_t bytes) const {
    const std::string version = fmt::format("{}:", api.version());
    if (!name.starts_with(version)) return std::nullopt;
    name.remove_prefix(version.size());
    Algorithm a{};
    auto* to = reinterpret_cast<uint8_t*>(&a);
    if (name.size() % 2 != 0 || name.size() > 2 * sizeof a) return std::nullopt;
    for (size_t i = 0; i < name.size(); i += 2)
      if (const auto [end, error] = std::from_chars(&name[i], &name[i] + 2, to[i / 2], 16);
          error != std::errc() || end != &name[i] + 2)
        return std::nullopt;
    Heuristic result{};
    const Status status = api.check(handle, p.desc.get(), p.a.get(), p.b.get(), p.d.get(), p.d.get(), &a, &result);
    if (status != 0 || result.state != 0 || result.bytes > static_cast<size_t>(bytes) || !adds_in_one_order(a))
      return std::nullopt;
    return a;
  }

  /// What the library has, in the order in which it expects it to be fast.
  std::vector<Heuristic> choices(const Problem& p, const Alignments& at, int64_t bytes, int most) const {
    void* made = nullptr;
    check(api.preference_create(&made), "a preference");
    const Described preference = described(made, api.preference_destroy);
    const auto allowed = static_cast<uint64_t>(bytes);
    check(api.preference_set(made, kMemoryBytes, &allowed, sizeof allowed), "its memory");
    const std::pair<int, uint32_t> settings[] = {
        {kReductions, kInComputeType}, {kAlignA, at.a}, {kAlignB, at.b}, {kAlignC, at.c}, {kAlignD, at.d}};
    for (const auto& [attribute, value] : settings)
      check(api.preference_set(made, attribute, &value, sizeof value), "what algorithms it may choose");
    std::vector<Heuristic> best(static_cast<size_t>(most));
    int found = 0;
    const Status status = api.heuristic(handle, p.desc.get(), p.a.get(), p.b.get(), p.d.get(), p.d.get(), made, most,
                                        best.data(), &found);
    if (status == kNotSupported || status == kInvalidValue) return {};
    check(status, "choosing an algorithm");
    best.resize(static_cast<size_t>(std::clamp(found, 0, most)));
    std::erase_if(best, [](const Heuristic& h) { return h.state != 0; });
    return best;
  }
};

CublasLt::CublasLt(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CublasLt::~CublasLt() = default;

std::unique_ptr<CublasLt> CublasLt::load() {
  void* handle = nullptr;
  if (const char* named = std::getenv("TRAINC_CUBLASLT")) handle = dlopen(named, RTLD_NOW | RTLD_LOCAL);
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"})
    if (!handle) handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!handle) return nullptr;
  auto impl = std::make_unique<Impl>();
  LtApi& a = impl->api;
  bool complete = true;
  auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    complete &= function != nullptr;
  };
  find(a.create, "cublasLtCreate");
  find(a.destroy, "cublasLtDestroy");
  find(a.desc_create, "cublasLtMatmulDescCreate");
  find(a.desc_set, "cublasLtMatmulDescSetAttribute");
  find(a.desc_destroy, "cublasLtMatmulDescDestroy");
  find(a.layout_create, "cublasLtMatrixLayoutCreate");
  find(a.layout_set, "cublasLtMatrixLayoutSetAttribute");
  find(a.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(a.preference_create, "cublasLtMatmulPreferenceCreate");
  find(a.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(a.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(a.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(a.check, "cublasLtMatmulAlgoCheck");
  find(a.configured, "cublasLtMatmulAlgoConfigGetAttribute");
  find(a.version, "cublasLtGetVersion");
  find(a.multiply, "cublasLtMatmul");
  if (!complete || a.create(&impl->handle) != 0) return nullptr;
  return std::unique_ptr<CublasLt>(new CublasLt(std::move(impl)));
}

bool CublasLt::has_algorithm(const CublasLtCall& c, int64_t bytes) {
  const Impl::Problem problem = impl_->usual_problem(c);
  std::lock_guard lock(impl_->mutex);
  return impl_->algorithm(c, problem, Impl::usual(c), usable(bytes));
}

std::vector<std::string> CublasLt::algorithms(const CublasLtCall& c, int64_t bytes, int most) {
  const Impl::Problem problem = impl_->usual_problem(c);
  std::lock_guard lock(impl_->mutex);
  std::vector<std::string> names;
  for (const Heuristic& h : impl_->choices(problem, Impl::usual(c), usable(bytes), most)) {
    std::string name = impl_->name_of(h.algorithm);
    // it is asked of it again as a plan is loaded
    if (impl_->named(name, problem, usable(bytes))) names.push_back(std::move(name));
  }
  return names;
}

void CublasLt::multiply(const CublasLtCall& c, const Factors& f, Stream stream) {
  const LtApi& api = impl_->api;
  const int64_t bytes = usable(f.bytes);
  void* memory = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(f.memory) + kAligned - 1) / kAligned * kAligned);
  const void* vector = c.bias ? f.bias : f.sums;
  const void* summand = c.adds_c ? f.addend : f.result;  // where beta is 0, c is not read
  const Impl::Problem problem = impl_->problem(c, vector);
  std::lock_guard lock(impl_->mutex);
  const Algorithm* algorithm =
      impl_->algorithm(c, problem,
                       {alignment(c.a, f.rhs), alignment(c.b, f.lhs), alignment(c.d, summand), alignment(c.d, f.result),
                        static_cast<uint32_t>(lowest_alignment(vector))},
                       bytes);
  if (!algorithm) throw InternalError("cuBLASLt has no algorithm for " + print(c));
  const bool f64 = c.d.dtype == DType::F64;
  const float one = 1, beta = c.adds_c ? 1 : 0;
  const double one64 = 1, beta64 = beta;
  const auto at = [](const CublasLtCall::Matrix& x, const void* p) {
    return static_cast<const uint8_t*>(p) + offset_bytes(x);
  };
  void* result = const_cast<uint8_t*>(at(c.d, f.result));
  check(api.multiply(impl_->handle, problem.desc.get(), f64 ? static_cast<const void*>(&one64) : &one, at(c.a, f.rhs),
                     problem.a.get(), at(c.b, f.lhs), problem.b.get(), f64 ? static_cast<const void*>(&beta64) : &beta,
                     at(c.d, summand), problem.d.get(), result, problem.d.get(), algorithm, memory,
                     static_cast<size_t>(bytes), stream),
        "multiplying");
}

}  // namespace trainc::runtime::cuda
