// A contraction between plain arrays, for tests and the benchmark: builds the nest, runs it, holds the arrays.
#pragma once
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "emit/llvm/emit.h"
#include "lower/contraction.h"

namespace trainc::testing {

// Memory whose last byte is followed by a page that faults, so that a read or write beyond an operand is seen.
class Guarded {
 public:
  Guarded() = default;
  explicit Guarded(size_t bytes) : size_(bytes) {
    constexpr size_t kPage = 4096;
    mapped_ = (bytes + kPage - 1) / kPage * kPage + kPage;
    base_ = static_cast<char*>(mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + mapped_ - kPage, kPage, PROT_NONE);
    data_ = base_ + mapped_ - kPage - bytes;
  }
  Guarded(Guarded&& other) noexcept { *this = std::move(other); }
  Guarded& operator=(Guarded&& other) noexcept {
    std::swap(base_, other.base_), std::swap(data_, other.data_), std::swap(mapped_, other.mapped_),
        std::swap(size_, other.size_);
    return *this;
  }
  ~Guarded() {
    if (base_) munmap(base_, mapped_);
  }
  template <class T> T* as() const { return reinterpret_cast<T*>(data_); }
  size_t size() const { return size_; }

 private:
  char *base_ = nullptr, *data_ = nullptr;
  size_t mapped_ = 0, size_ = 0;
};

// Machine code, executable while this lives.
class Code {
 public:
  using Kernel = void (*)(void* const*, void*, uint32_t*, int64_t, int64_t);
  explicit Code(const emit::Blob& blob) : bytes_(blob.code.size()) {
    base_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::memcpy(base_, blob.code.data(), bytes_);
    mprotect(base_, bytes_, PROT_READ | PROT_EXEC);
    kernel = reinterpret_cast<Kernel>(static_cast<char*>(base_) + blob.entry);
  }
  Code(const Code&) = delete;
  ~Code() { munmap(base_, bytes_); }
  Kernel kernel = nullptr;

 private:
  void* base_ = nullptr;
  size_t bytes_ = 0;
};

struct GemmCase {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  bool lhs_k_contiguous = true, rhs_k_contiguous = true;
  DType dtype = DType::F32;
  bool in_parts = false;  // ContractionSpec::f32_in_parts

  int64_t lhs_at(int64_t b, int64_t row, int64_t kk) const {
    return lhs_k_contiguous ? (b * m + row) * k + kk : (b * k + kk) * m + row;
  }
  int64_t rhs_at(int64_t b, int64_t row, int64_t kk) const {
    return rhs_k_contiguous ? (b * n + row) * k + kk : (b * k + kk) * n + row;
  }
  int64_t out_at(int64_t b, int64_t row, int64_t column) const { return (b * m + row) * n + column; }
};

// An element of a bf16 array.
struct Bf16 {
  uint16_t bits = 0;
  Bf16() = default;
  explicit Bf16(double v) {
    const float f = static_cast<float>(v);
    uint32_t u;
    std::memcpy(&u, &f, 4);
    bits = static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
  operator float() const {
    const uint32_t u = uint32_t{bits} << 16;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
  }
};

enum GemmBuffer { kLhs, kRhs, kOut, kBias };

// out = lhs . rhs with plain loads and a plain store.
inline lower::ContractionSpec plain_spec(loop::LoopNest& nest, const GemmCase& c) {
  using namespace loop;
  nest.name = "gemm";
  nest.add_buffer({"lhs", c.dtype, c.batch * c.m * c.k});
  nest.add_buffer({"rhs", c.dtype, c.batch * c.n * c.k});
  nest.add_buffer({"out", c.dtype == DType::BF16 ? DType::F32 : c.dtype, c.batch * c.m * c.n, Space::Argument, true});
  lower::ContractionSpec spec{c.batch, c.m, c.n, c.k};
  spec.lhs_k_contiguous = c.lhs_k_contiguous;
  spec.rhs_k_contiguous = c.rhs_k_contiguous;
  spec.f32_in_parts = c.in_parts;
  spec.lhs = [&nest, c](Expr b, Expr row, Expr k) {
    return nest.load(kLhs, c.lhs_k_contiguous ? (b * c.m + row) * c.k + k : (b * c.k + k) * c.m + row);
  };
  spec.rhs = [&nest, c](Expr b, Expr row, Expr k) {
    return nest.load(kRhs, c.rhs_k_contiguous ? (b * c.n + row) * c.k + k : (b * c.k + k) * c.n + row);
  };
  spec.epilogue = [c](Expr b, Expr m, Expr n, Expr sum) { return store(kOut, (b * c.m + m) * c.n + n, sum); };
  return spec;
}

inline loop::LoopNest plain_gemm(const GemmCase& c, CpuLevel level, const CacheSizes& cache) {
  loop::LoopNest nest;
  lower::build_contraction(nest, plain_spec(nest, c), cpu_target(level, cache));
  return nest;
}

/// Whether it multiplies on AMX tiles.
inline bool on_tiles(const loop::LoopNest& nest) { return print(nest).find("tiledot") != std::string::npos; }

template <class T>
Guarded random_array(int64_t count, unsigned seed) {
  Guarded memory(count * sizeof(T));
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < count; ++i) memory.as<T>()[i] = static_cast<T>(normal(engine));
  return memory;
}

// Scratch memory full of NaN: what the nest reads before it wrote it shows in the result.
class Scratch {
 public:
  explicit Scratch(const loop::LoopNest& nest)
      : bytes_((nest.scratch_bytes() + 127) / 64 * 64), data_(static_cast<char*>(std::aligned_alloc(64, bytes_))) {
    poison();
  }
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch&) = delete;
  void poison() { std::memset(data_, 0xff, bytes_); }
  void* data() const { return data_; }

 private:
  size_t bytes_;
  char* data_;
};

}  // namespace trainc::testing
