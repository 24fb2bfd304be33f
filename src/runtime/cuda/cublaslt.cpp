// cuBLASLt by dlopen: cublasLt.h's C functions and numbers, declared here as its documentation has them (11.4 and
// later).
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

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
constexpr int kMemoryBytes = 1, kAlignA = 5, kAlignB = 6, kAlignC = 7, kAlignD = 8;

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

}  // namespace

struct CublasLt::Impl {
  LtApi api{};
  Handle handle = nullptr;
  std::mutex mutex;
  std::map<std::string, Algorithm> known;  // by the call's text, alignments and memory

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
  find(a.multiply, "cublasLtMatmul");
  if (!complete || a.create(&impl->handle) != 0) return nullptr;
  return std::unique_ptr<CublasLt>(new CublasLt(std::move(impl)));
}

void CublasLt::multiply(const CublasLtCall& c, const Factors& f, Stream stream) {
  const LtApi& api = impl_->api;
  // Its memory has to begin at a multiple of 256 bytes; a plan's buffers begin at multiples of 64. It is told one size
  // wherever they lie: its choice depends on it.
  constexpr uintptr_t kAligned = 256;
  const int64_t bytes = std::max<int64_t>(f.bytes - static_cast<int64_t>(kAligned), 0);
  void* memory = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(f.memory) + kAligned - 1) / kAligned * kAligned);
  const bool f64 = c.d.dtype == DType::F64;
  void* made = nullptr;
  check(api.desc_create(&made,
                        f64      ? kComputeF64
                        : c.tf32 ? kComputeTf32
                                 : kComputeF32,
                        type_of(f64 ? DType::F64 : DType::F32)),
        "a description");
  const Described desc = impl_->described(made, api.desc_destroy);
  const int32_t transpose_a = c.transpose_a, transpose_b = c.transpose_b;
  check(api.desc_set(desc.get(), kTransposeA, &transpose_a, sizeof transpose_a), "the transpose of a");
  check(api.desc_set(desc.get(), kTransposeB, &transpose_b, sizeof transpose_b), "the transpose of b");
  const void* vector = c.bias ? f.bias : f.sums;
  if (vector) {  // before the choice of an algorithm, which depends on how the pointer is aligned
    const uint32_t epilogue = c.bias ? kAddBias : c.sums_a ? kSumsOfA : kSumsOfB;
    check(api.desc_set(desc.get(), kEpilogue, &epilogue, sizeof epilogue), "the epilogue");
    check(api.desc_set(desc.get(), kBiasPointer, &vector, sizeof vector), "its vector");
  }
  const Described la = impl_->layout(c.a, c.batch), lb = impl_->layout(c.b, c.batch), ld = impl_->layout(c.d, c.batch);

  const auto alignment = [](const CublasLtCall::Matrix& x, const void* p) {
    return static_cast<uint32_t>(lowest_alignment(p, x.offset * size_of(x.dtype)));
  };
  const void* summand = c.adds_c ? f.addend : f.result;  // where beta is 0, c is not read
  const uint32_t align[] = {alignment(c.a, f.rhs), alignment(c.b, f.lhs), alignment(c.d, summand),
                            alignment(c.d, f.result)};
  const std::string key = fmt::format("{} {} {} {} {} {} {}", print(c), align[0], align[1], align[2], align[3],
                                      lowest_alignment(vector), bytes);
  std::lock_guard lock(impl_->mutex);
  auto known = impl_->known.find(key);
  if (known == impl_->known.end()) {
    check(api.preference_create(&made), "a preference");
    const Described preference = impl_->described(made, api.preference_destroy);
    const auto allowed = static_cast<uint64_t>(bytes);
    check(api.preference_set(preference.get(), kMemoryBytes, &allowed, sizeof allowed), "its memory");
    const std::pair<int, uint32_t> alignments[] = {
        {kAlignA, align[0]}, {kAlignB, align[1]}, {kAlignC, align[2]}, {kAlignD, align[3]}};
    for (const auto& [attribute, value] : alignments)
      check(api.preference_set(preference.get(), attribute, &value, sizeof value), "an alignment");
    Heuristic best{};
    int found = 0;
    check(api.heuristic(impl_->handle, desc.get(), la.get(), lb.get(), ld.get(), ld.get(), preference.get(), 1, &best,
                        &found),
          "choosing an algorithm");
    if (found == 0 || best.state != 0) throw InternalError("cuBLASLt has no algorithm for " + print(c));
    known = impl_->known.emplace(key, best.algorithm).first;
  }
  const float one = 1, beta = c.adds_c ? 1 : 0;
  const double one64 = 1, beta64 = beta;
  const auto at = [](const CublasLtCall::Matrix& x, const void* p) {
    return static_cast<const uint8_t*>(p) + x.offset * size_of(x.dtype);
  };
  void* result = const_cast<uint8_t*>(at(c.d, f.result));
  check(api.multiply(impl_->handle, desc.get(), f64 ? static_cast<const void*>(&one64) : &one, at(c.a, f.rhs), la.get(),
                     at(c.b, f.lhs), lb.get(), f64 ? static_cast<const void*>(&beta64) : &beta, at(c.d, summand),
                     ld.get(), result, ld.get(), &known->second, memory, static_cast<size_t>(bytes), stream),
        "multiplying");
}

}  // namespace trainc::runtime::cuda
