// A matrix product as cuBLASLt is asked for it. Inside runtime/cuda, and for drivers without a GPU.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "runtime/cuda/driver.h"

namespace trainc::runtime::cuda {

/// cuBLASLt thinks in columns: its matrix of `rows` x `columns` has element (i, j) at i + j * leading. d[m, n] =
/// op(a)[m, k] op(b)[k, n], and what is added: bias[m] to each column, c as d lies (beta = 1). Beside it: the sums over
/// k of op(a), [m], or of op(b), [n].
struct CublasLtCall {
  // offset: elements, from the pointer of the buffer
  struct Matrix {
    DType dtype;
    int64_t rows, columns, leading, batch_stride, offset;
  };
  Matrix a, b, d;
  bool transpose_a = false, transpose_b = false;
  int64_t batch = 1;
  bool tf32 = false, bias = false, adds_c = false, sums_a = false, sums_b = false;
  std::string algorithm = {};  // one of CublasLt::algorithms; "": the library's choice
};

/// Its d is the transpose of our result, which has its rows side by side: so `a` is our rhs, and `b` our lhs.
CublasLtCall cublaslt_call(const plan::Product&);
/// A product step's pointers, of those of the plan's buffers.
Factors factors(const plan::Plan&, const plan::Step&, const std::vector<void*>& pointers);
/// "multiply 2 batches: a f32[96 x 32, leading 96, batch 3072, offset 0], b ..., d ...": what a driver without a GPU
/// notes.
std::string print(const CublasLtCall&);
/// Computes what cuBLASLt would, in the host's memory, by the definition above: for drivers without a GPU. f32
/// operands are rounded to tf32 where the call says so.
void run_on_host(const CublasLtCall&, const Factors&);

/// cuBLASLt by dlopen.
class CublasLt {
 public:
  /// nullptr where it cannot be loaded: the file that TRAINC_CUBLASLT names, else what the process has loaded or the
  /// loader finds.
  static std::unique_ptr<CublasLt> load();
  ~CublasLt();
  /// Whether it has an algorithm, or the one that is named, in memory that begins at multiples of 16 bytes; `bytes`: of
  /// memory that it may use.
  bool has_algorithm(const CublasLtCall&, int64_t bytes);
  /// At most so many that it has for the same, its choice first: its version, and what it knows them by. Each adds up
  /// in one order, and rounds once.
  std::vector<std::string> algorithms(const CublasLtCall&, int64_t bytes, int most);
  /// By the algorithm that is named where memory begins as it was asked for; by the library's choice where it does not.
  void multiply(const CublasLtCall&, const Factors&, Stream);

 private:
  struct Impl;
  explicit CublasLt(std::unique_ptr<Impl>);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainc::runtime::cuda
