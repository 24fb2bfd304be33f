#include "runtime/cuda/cublaslt.h"

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "support/error.h"
#include "support/rounding.h"

namespace trainc::runtime::cuda {

CublasLtCall cublaslt_call(const plan::Product& p) {
  CublasLtCall call{.a = {}, .b = {}, .d = {}, .batch = p.batch, .tf32 = p.tf32, .bias = p.bias, .adds_c = p.addend};
  call.algorithm = p.algorithm;
  // Our rows x columns, transposed: rows side by side are cuBLASLt's columns as they lie, columns side by side are
  // to be transposed back.
  const auto column_major = [](const plan::Matrix& x, int64_t rows, int64_t columns, bool& transpose) {
    // A single column has both strides; either reading is right where the other is too short to lead.
    transpose = x.column_stride != 1 || (x.row_stride == 1 && columns > 1);
    if (transpose) return CublasLtCall::Matrix{x.dtype, rows, columns, x.column_stride, x.batch_stride, x.offset};
    return CublasLtCall::Matrix{x.dtype, columns, rows, x.row_stride, x.batch_stride, x.offset};
  };
  call.sums_a = p.sums_of == plan::SumsOf::Rhs, call.sums_b = p.sums_of == plan::SumsOf::Lhs;
  bool transposed_result = false;
  call.a = column_major(p.rhs, p.k, p.n, call.transpose_a);
  call.b = column_major(p.lhs, p.m, p.k, call.transpose_b);
  call.d = column_major(p.result, p.m, p.n, transposed_result);
  require(!transposed_result, "a product whose result has no rows side by side");
  // of one column: never used, but checked
  for (CublasLtCall::Matrix* x : {&call.a, &call.b, &call.d}) x->leading = std::max(x->leading, x->rows);
  return call;
}

Factors factors(const plan::Plan& plan, const plan::Step& step, const std::vector<void*>& pointers) {
  const auto at = [&](size_t argument) { return pointers[static_cast<size_t>(step.arguments[argument])]; };
  const plan::Product& p = step.product;
  return {.lhs = at(0),
          .rhs = at(1),
          .result = at(2),
          .bias = p.bias ? at(4) : nullptr,
          .addend = p.addend ? at(p.bias ? 5 : 4) : nullptr,
          .sums = p.sums_of == plan::SumsOf::None ? nullptr : at(step.arguments.size() - 1),
          .memory = at(3),
          .bytes = plan.buffers[static_cast<size_t>(step.arguments[3])].bytes};
}

std::string print(const CublasLtCall& c) {
  const auto matrix = [](const char* name, const CublasLtCall::Matrix& x, bool transpose) {
    return fmt::format("{} {}[{} x {}, leading {}, batch {}, offset {}]{}", name, name_of(x.dtype), x.rows, x.columns,
                       x.leading, x.batch_stride, x.offset, transpose ? " transposed" : "");
  };
  return fmt::format("multiply {} batches{}: {}, {}, {}{}{}{}{}", c.batch, c.tf32 ? " in tf32" : "",
                     matrix("a", c.a, c.transpose_a), matrix("b", c.b, c.transpose_b), matrix("d", c.d, false),
                     c.adds_c ? ", + c" : "", c.bias ? ", + bias" : "",
                     c.sums_a   ? ", sums of a"
                     : c.sums_b ? ", sums of b"
                                : "",
                     c.algorithm.empty() ? "" : ", by " + c.algorithm);
}

namespace {

template <class T> T at(const void* p, int64_t i) {
  T v;
  std::memcpy(&v, static_cast<const uint8_t*>(p) + i * static_cast<int64_t>(sizeof(T)), sizeof v);
  return v;
}
template <class T> void put(void* p, int64_t i, T v) {
  std::memcpy(static_cast<uint8_t*>(p) + i * static_cast<int64_t>(sizeof(T)), &v, sizeof v);
}

float widened(uint16_t bits) {
  const uint32_t word = uint32_t{bits} << 16;
  float v;
  std::memcpy(&v, &word, sizeof v);
  return v;
}
double load(const void* p, int64_t i, DType d) {
  switch (d) {
    case DType::F64: return at<double>(p, i);
    case DType::F32: return at<float>(p, i);
    case DType::F16: return static_cast<float>(at<_Float16>(p, i));
    case DType::BF16: return widened(at<uint16_t>(p, i));
    default: throw InternalError("cuBLASLt multiplies floats");
  }
}
void store(void* p, int64_t i, DType d, double v) {
  switch (d) {
    case DType::F64: return put(p, i, v);
    case DType::F32: return put(p, i, static_cast<float>(v));
    case DType::F16: return put(p, i, static_cast<_Float16>(static_cast<float>(v)));
    case DType::BF16: {
      const float rounded = static_cast<float>(round_to(DType::BF16, static_cast<float>(v)));
      uint32_t bits;
      std::memcpy(&bits, &rounded, sizeof bits);
      return put(p, i, static_cast<uint16_t>(bits >> 16));
    }
    default: throw InternalError("cuBLASLt gives floats");
  }
}
/// 10 bits after the point, ties away from zero, as cvt.rna.tf32 rounds.
double tf32(double v) {
  const float x = static_cast<float>(v);
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7f800000) == 0x7f800000) return v;
  bits = (bits + 0x1000) & ~uint32_t{0x1fff};
  float rounded;
  std::memcpy(&rounded, &bits, sizeof rounded);
  return rounded;
}

}  // namespace

void run_on_host(const CublasLtCall& c, const Factors& f) {
  const int64_t m = c.transpose_a ? c.a.columns : c.a.rows, k = c.transpose_a ? c.a.rows : c.a.columns,
                n = c.transpose_b ? c.b.rows : c.b.columns;
  require(k == (c.transpose_b ? c.b.columns : c.b.rows) && m == c.d.rows && n == c.d.columns,
          "a product of matrices that do not fit");
  const auto element = [](const CublasLtCall::Matrix& x, int64_t batch, int64_t i, int64_t j) {
    return x.offset + batch * x.batch_stride + i + j * x.leading;
  };
  const auto operand = [&](const CublasLtCall::Matrix& x, const void* p, bool transpose, int64_t batch, int64_t i,
                           int64_t j) {
    const double v = load(p, transpose ? element(x, batch, j, i) : element(x, batch, i, j), x.dtype);
    return c.tf32 && x.dtype == DType::F32 ? tf32(v) : v;
  };
  for (int64_t r = 0; (c.sums_a || c.sums_b) && r < (c.sums_a ? m : n); ++r) {
    double sum = 0;
    for (int64_t q = 0; q < k; ++q)
      sum += c.sums_a ? operand(c.a, f.rhs, c.transpose_a, 0, r, q) : operand(c.b, f.lhs, c.transpose_b, 0, q, r);
    store(f.sums, r, c.d.dtype, sum);
  }
  for (int64_t batch = 0; batch < c.batch; ++batch)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t i = 0; i < m; ++i) {
        double sum = 0;
        for (int64_t q = 0; q < k; ++q)
          sum += operand(c.a, f.rhs, c.transpose_a, batch, i, q) * operand(c.b, f.lhs, c.transpose_b, batch, q, j);
        const int64_t at = element(c.d, batch, i, j);
        if (c.adds_c) sum += load(f.addend, at, c.d.dtype);
        if (c.bias) sum += load(f.bias, i, c.d.dtype);
        store(f.result, at, c.d.dtype, sum);
      }
}

}  // namespace trainc::runtime::cuda
